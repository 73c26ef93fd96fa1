//! Executables that are linked in different ways, beside the reference's plugins, in one run: their
//! sizes, a call of VERSION, and ADD and DEL on a bridge.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use testkit::Lab;

use crate::spread::Spread;
use crate::subject::{Bench, PLUGINS, Subject, ports_of};
use crate::{QUIET, SETTLE};

/// Prints a row for each executable, and one for the reference. Each has a bridge of its own, which a
/// resident attachment keeps; all are called in turn.
pub(crate) fn measure(lab: &Lab, reference: &Path, executables: &[PathBuf], rounds: usize) {
    let mut subjects = Vec::new();
    for (number, executable) in executables.iter().enumerate() {
        let bin = lab.dir().join(format!("linked{number}"));
        fs::create_dir(&bin).expect("a scratch folder is writable");
        for plugin in PLUGINS {
            symlink(executable, bin.join(plugin)).expect("a scratch folder is writable");
        }
        subjects.push(Subject { name: "nw", bin, is_ours: true });
    }
    subjects.push(Subject { name: "Go", bin: reference.to_owned(), is_ours: false });
    let numbered = subjects.iter().enumerate();
    let benches: Vec<Bench<'_>> =
        numbered.map(|(number, subject)| Bench::new(lab, subject, &ports_of(number))).collect();
    let resident: Vec<_> = benches
        .iter()
        .zip(20_000_u16..)
        .map(|(bench, port)| {
            let container = lab.container(&format!("linked{port}"));
            let attached = bench.add(&container, port);
            (bench, container, attached)
        })
        .collect();
    let count = benches.len();
    let containers: Vec<_> = (0..rounds * count).map(|n| lab.container(&format!("l{n}"))).collect();
    std::thread::sleep(QUIET);
    let mut times: Vec<[Vec<Duration>; 3]> = vec![<[Vec<Duration>; 3]>::default(); count];
    for round in 0..rounds {
        for turn in 0..count {
            let which = (round + turn) % count;
            let (bench, container) = (&benches[which], &containers[round * count + which]);
            std::thread::sleep(SETTLE);
            let version = version(&subjects[which].bin);
            let attached = bench.add(container, 30_000);
            std::thread::sleep(SETTLE);
            let del = bench.again("DEL", container, &attached);
            for (all, one) in times[which].iter_mut().zip([version, attached.took, del]) {
                all.push(one);
            }
        }
    }
    for (bench, container, attached) in resident {
        bench.again("DEL", &container, &attached);
    }
    println!("| plugin | bytes | VERSION, ms | ADD, ms | DEL, ms |\n|---|---|---|---|---|");
    for (subject, times) in subjects.iter().zip(&times) {
        let plugin = subject.bin.join("bridge");
        let plugin = plugin.canonicalize().unwrap_or(plugin);
        let bytes = fs::metadata(&plugin).map_or(0, |found| found.len());
        let told = times
            .each_ref()
            .map(|times| Spread::of(times).map_or_else(String::new, |spread| spread.to_string()));
        println!("| {} | {bytes} | {} |", plugin.display(), told.join(" | "));
    }
}

/// Calls VERSION of the plugin `bridge`; returns how long the process took.
#[expect(clippy::disallowed_methods, reason = "the reference's plugins are started too")]
fn version(bin: &Path) -> Duration {
    let mut command = Command::new(bin.join("bridge"));
    command.env_clear().env("CNI_COMMAND", "VERSION");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let started = Instant::now();
    let status = command.status().unwrap_or_else(|error| panic!("{}: {error}", bin.display()));
    let took = started.elapsed();
    assert!(status.success(), "{}: VERSION failed", bin.display());
    took
}
