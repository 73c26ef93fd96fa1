//! A virtual machine with Debian's full kernel, for features that the kernel of this machine lacks.
//!
//! The kernel package is unpacked, not installed. The machine is emulated in software, so that it
//! works anywhere. Its root file system is this machine's, read-only over 9p, so that test binaries
//! and Debian's programs have the same paths as here. `/tmp`, `/var/tmp` and `/run` are its own.
//! One boot of four seconds runs all tests.

mod initramfs;
mod jobs;
mod kernel;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::ci::{self, Extent, ONLY_FULL, Report};
use crate::run::{Program, ProgramFailure, shown, target_dir};
use crate::skips;
use crate::suite::{self, FULL_VARIABLE, ROUND_VARIABLE};
use crate::times::TestTime;
use jobs::Job;

/// The part of a test's name that marks it for the virtual machine (`testkit::feature::VM_MARK`).
pub(crate) const MARK: &str = "vm_";

/// How long the machine may run, including the boot: in every run, in a full run, and when all of
/// its tests run.
const DEADLINE: Duration = Duration::from_secs(1800);
const FULL_DEADLINE: Duration = Duration::from_secs(5400);
const EVERY_DEADLINE: Duration = Duration::from_secs(6 * 3600);

/// In a full run, tests of these packages run on Debian's kernel, which is older than most.
const ON_DEBIAN: &str =
    "--package netwright-kernel --package netwright-firewall --package netwright-plugins";

/// Tests that run there only with its mark in their names: they compare two programs on one kernel,
/// of any version, and take minutes.
const SLOW: &str = "differential::";

/// One full run includes one of this many tests of these packages, and other tests in each round
/// ([`suite::round`]). All of them take hours.
const PARTS: u64 = 12;

/// The same of the tests with its mark that only full runs have.
const FULL_PARTS: u64 = 4;

/// How long one test may take in it: everything is about ten times slower there, and more so on a
/// busy machine.
const TEST_DEADLINE: Duration = Duration::from_secs(300);
const FULL_TEST_DEADLINE: Duration = Duration::from_secs(900);

/// Memory, which also holds its file systems.
const MEMORY: &str = "3072M";

/// The script for the second half of booting, which also runs the jobs.
const STAGE: &str = include_str!("vm/stage.sh");

/// The line that says that everything was run.
const DONE: &str = "@done";

/// A line that the machine prints every few seconds during all tests, and how long it may print
/// neither this line nor output of a test. An emulated processor has been seen to spin for ever,
/// while its kernel reported that each minute.
const ALIVE: &str = "@alive";
const SILENCE: Duration = Duration::from_secs(120);

/// What the machine's kernel prints when a task keeps the processor while interrupts arrive. The
/// kernel then ends the machine (`softlockup_panic`).
const STUCK: &str = "Kernel panic - not syncing: softlockup";

/// What a line of a failed test's output has, before the line with the reason.
const PANICKED: &str = " panicked at ";

/// How often the machine is booted if it falls silent, or a processor of it is stuck.
const BOOTS: usize = 5;

/// Runs the tests with `vm_` in their names; in a full run also a part of those that only full runs
/// have, and of all tests that talk to the kernel.
pub(crate) fn tests(extent: Extent) -> Result<Report, String> {
    let jobs = jobs::find("--workspace", &[])?;
    let (mut due, mut later) = jobs::due(&jobs)?;
    let (mut more, mut why) = (Vec::new(), ONLY_FULL);
    if extent == Extent::Full {
        let (now, another) = of_this_round(later, FULL_PARTS);
        due.extend(now);
        (later, why) = (another, suite::OTHER_ROUND);
        let all = jobs::find(ON_DEBIAN, &["::"])?;
        // The same test may be in two builds of its package, with different features.
        let known: BTreeSet<_> = jobs.iter().map(Job::label).collect();
        let others = all.into_iter().filter(|job| !known.contains(&job.label()));
        more = of_this_round(others.filter(|job| !job.is_of(SLOW)).collect(), PARTS).0;
    }
    due.extend(&more);
    ci::begun("vm");
    run_jobs(due, &later, why, extent)
}

/// Separates what one of so many rounds has from what the others have.
fn of_this_round<T>(all: Vec<T>, rounds: u64) -> (Vec<T>, Vec<T>) {
    let (now, others): (Vec<_>, Vec<_>) = (0..rounds)
        .cycle()
        .zip(all)
        .partition(|(place, _)| suite::is_of_this_round(*place, rounds));
    let second = |all: Vec<(u64, T)>| all.into_iter().map(|(_, one)| one).collect();
    (second(now), second(others))
}

/// Makes sure that a kernel is there, before the machine needs it.
pub(crate) fn fetched() -> Result<String, String> {
    if cfg!(not(target_arch = "x86_64")) {
        return Ok("no kernel for this processor".to_owned());
    }
    let kernel = kernel::unpacked(&folder()?)?;
    Ok(format!("Linux {} is in {}", kernel.version, shown(&kernel.dir)))
}

/// The folder of the machine's files.
fn folder() -> Result<PathBuf, String> {
    let dir = target_dir().join("vm");
    fs::create_dir_all(&dir).map_err(|error| format!("create {}: {error}", dir.display()))?;
    Ok(dir)
}

/// `cargo xtask vm [--full] [-p PACKAGE] [-- FILTER…]`
pub(crate) fn command(extent: Extent, chosen: &[&str]) -> Result<(), String> {
    let (packages, filters) = match chosen {
        [] => ("--workspace".to_owned(), &[][..]),
        ["--", filters @ ..] => ("--workspace".to_owned(), filters),
        ["-p", package] => (format!("--package {package}"), &[][..]),
        ["-p", package, "--", filters @ ..] => (format!("--package {package}"), filters),
        other => return Err(format!("vm does not understand: {}", other.join(" "))),
    };
    let started = Instant::now();
    let jobs = jobs::find(&packages, filters)?;
    let (due, later) = match extent {
        Extent::EveryChange => jobs::due(&jobs)?,
        Extent::Full => (jobs.iter().collect(), Vec::new()),
    };
    let report = run_jobs(due, &later, ONLY_FULL, extent)?;
    println!("in {:.1} s", started.elapsed().as_secs_f64());
    println!("{} passed, {} failed, {} skipped", report.passed, report.failed, report.skips.len());
    if report.failed == 0 { Ok(()) } else { Err(String::new()) }
}

/// `cargo xtask vm --sh SCRIPT`
pub(crate) fn shell(script: &str) -> Result<(), String> {
    let jobs = [Job::script(script)];
    boot(&jobs.each_ref(), Extent::EveryChange, false, |line| println!("{line}"))
        .map_err(String::from)
}

/// Runs the jobs that are due, and reports others as skipped, with the reason.
fn run_jobs(
    mut left: Vec<&Job>,
    later: &[&Job],
    why: &str,
    extent: Extent,
) -> Result<Report, String> {
    let all = left.len() + later.len();
    if all == 0 {
        return Err(format!(
            "no test's name contains what was asked for, or \"{MARK}\" if nothing was"
        ));
    }
    let report = RefCell::new(Report::default());
    for line in later.iter().flat_map(|job| job.skipped(why)) {
        note(&line, &mut report.borrow_mut());
    }
    let mut boots = 0;
    let booted = loop {
        if left.is_empty() {
            break Ok(());
        }
        let said = RefCell::new(BTreeSet::new());
        let booted = boot(&left, extent, 0 < boots, |line| {
            said.borrow_mut().extend(jobs::said(line));
            note(line, &mut report.borrow_mut());
        });
        let said = said.into_inner();
        left.retain(|job| !said.contains(&job.label()));
        boots += 1;
        match booted {
            Err(failed) if failed.is_silent && boots < BOOTS && !left.is_empty() => {
                println!(
                    "the virtual machine said nothing for {SILENCE:?}, or a processor of it was stuck: it is booted again for {} tests",
                    left.len()
                );
            }
            booted => break booted,
        }
    };
    let mut report = report.into_inner();
    let ran = report.passed + report.failed + u64::try_from(report.skips.len()).unwrap_or(0);
    let missing = u64::try_from(all).unwrap_or(0).saturating_sub(ran);
    if let Err(ProgramFailure { message, .. }) = booted {
        println!("{message}");
        report.note = message.lines().next().unwrap_or_default().to_owned();
        report.failed += missing.max(1);
    } else if missing > 0 {
        report.note = format!("{missing} tests gave no result");
        report.failed += missing;
    }
    Ok(report)
}

/// Counts and shows a line from the machine.
fn note(line: &str, report: &mut Report) {
    match count(line, report) {
        Some(shown) => println!("{shown}"),
        None => println!("        {line}"),
    }
}

/// Returns what the machine's log says about its tests.
pub(crate) fn report(log: &[String]) -> Report {
    let mut report = Report::default();
    for line in log {
        count(line.trim_end_matches('\r'), &mut report);
    }
    report
}

/// Counts a line from the machine, `@test RESULT MS PACKAGE NAME`, or a line that belongs to the
/// test before; returns how to show the first kind. `@try FAIL …` is a first try, which counts
/// nothing, and whose panics are shown at the end. The machine prints panics of failed tries only.
fn count(line: &str, report: &mut Report) -> Option<String> {
    if let Some(rest) = line.strip_prefix("@try ") {
        report.failures.push(format!("TRY 1 {rest}"));
        return Some(format!("  TRY 1 {rest}"));
    }
    let Some(rest) = line.strip_prefix("@test ") else {
        report.skips.extend(skips::find([line]));
        let is_reason = report.failures.last().is_some_and(|last| last.contains(PANICKED));
        if is_reason || line.contains(PANICKED) {
            report.failures.push(line.to_owned());
        }
        return None;
    };
    let words: Vec<&str> = rest.split(' ').collect();
    let [result, millis, place @ ..] = words.as_slice() else { return None };
    match *result {
        "PASS" => report.passed += 1,
        "FLAKY" => {
            report.passed += 1;
            report.flaky += 1;
            report.note = suite::flaky_note(report.flaky);
        }
        "FAIL" => {
            report.failed += 1;
            report.failures.push(format!("FAIL {}", place.join(" ")));
        }
        _ => {}
    }
    let seconds = millis.parse::<f64>().unwrap_or(0.0) / 1000.0;
    report.times.extend(place.last().map(|name| TestTime {
        of: "vm".to_owned(),
        name: (*name).to_owned(),
        seconds,
    }));
    report.tests.extend(place.last().map(|name| ((*name).to_owned(), *result != "FAIL")));
    Some(format!("  {result} [{seconds:>7.3}s] {}", place.join(" ")))
}

/// Boots the machine, runs the jobs in it and passes each of its lines to `each`.
fn boot(
    jobs: &[&Job],
    extent: Extent,
    again: bool,
    each: impl Fn(&str),
) -> Result<(), ProgramFailure> {
    let deadline = match extent {
        Extent::EveryChange => DEADLINE,
        Extent::Full if suite::is_every() => EVERY_DEADLINE,
        Extent::Full => FULL_DEADLINE,
    };
    let (kernel, image) = prepare(jobs, extent).map_err(ProgramFailure::message)?;
    let started = Instant::now();
    let (done, is_stuck) = (Cell::new(false), Cell::new(false));
    let machine = qemu(&kernel.image, &image, deadline)
        .silence(SILENCE, |line| line.starts_with('@'))
        .appending(again);
    machine.logged("vm", |line| {
        let line = line.trim_end_matches('\r');
        if done.get() || line == DONE {
            done.set(true);
            return false;
        }
        is_stuck.set(is_stuck.get() || line.contains(STUCK));
        match line {
            ALIVE => {}
            "@up" => println!(
                "  booted Linux {} in {:.1} s, {} to run",
                kernel.version,
                started.elapsed().as_secs_f64(),
                jobs.len()
            ),
            line => each(line),
        }
        false
    })?;
    if done.get() {
        return Ok(());
    }
    let message = "the virtual machine stopped before it was done; its output is in ci/vm.log";
    Err(ProgramFailure { is_silent: is_stuck.get(), ..ProgramFailure::message(message.to_owned()) })
}

/// Makes sure that a kernel is there, and builds what the machine boots from.
fn prepare(jobs: &[&Job], extent: Extent) -> Result<(kernel::Kernel, PathBuf), String> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err("the virtual machine is made for x86_64 only".to_owned());
    }
    let dir = folder()?;
    let kernel = kernel::unpacked(&dir)?;
    let stage = write(&dir.join("stage.sh"), STAGE.as_bytes())?;
    let list: String = jobs.iter().map(|job| job.line()).collect();
    let list = write(&dir.join("jobs"), list.as_bytes())?;
    let test_deadline = match extent {
        Extent::EveryChange => TEST_DEADLINE,
        Extent::Full => FULL_TEST_DEADLINE,
    };
    let settings = [
        ("KERNEL_DIR", kernel.dir.display().to_string()),
        ("JOBS", list.display().to_string()),
        ("TEST_DEADLINE", test_deadline.as_secs().to_string()),
        (ROUND_VARIABLE, suite::round().to_string()),
        (FULL_VARIABLE, if extent == Extent::Full { "1".to_owned() } else { String::new() }),
    ];
    let image = write(&dir.join("initramfs"), &initramfs::make(&kernel, &stage, &settings)?)?;
    Ok((kernel, image))
}

fn qemu(kernel: &Path, initramfs: &Path, deadline: Duration) -> Program {
    // The machine has one processor. With two, the emulator sometimes runs old code for ever after
    // the kernel has patched itself, and beside other work each test took two to three times as
    // long.
    //
    // It has a higher priority than the tests beside it: an emulated machine that loses a processor
    // for a moment loses more than that moment. Without root, `nice` reports that it cannot do
    // this, and continues.
    //
    // A fast string instruction is slow in emulation, which does it byte by byte: without `erms`,
    // `fsrm` and `rep_good` (112) the kernel clears and copies memory by ordinary instructions.
    // Page tables of five levels (`la57`) only cost a level. `init_on_alloc` would clear what the
    // kernel is about to fill: reading every sysctl took three times as long with all of these.
    let line = "nice -n -4 qemu-system-x86_64 -accel tcg,thread=multi \
                -cpu max,-erms,-fsrm,-la57 -smp 1 -m";
    let program = Program::new(line)
        .arg(MEMORY)
        .arg("-nodefaults")
        .arg("-no-reboot")
        .arg("-display")
        .arg("none")
        .arg("-serial")
        .arg("stdio")
        .arg("-kernel")
        .arg(kernel.display().to_string())
        .arg("-initrd")
        .arg(initramfs.display().to_string())
        .arg("-append")
        // An emulated timer that comes late is not broken, but the kernel would think so
        // (`no_timer_check`). Code at another address is translated again each time: without
        // `norandmaps` a dynamic program takes twice as long to start. A processor that is stuck in
        // the kernel for a minute ends the machine, with the place where it is stuck (`loglevel=5`).
        .arg(
            "console=ttyS0 quiet loglevel=5 panic=-1 softlockup_panic=1 watchdog_thresh=30 \
             mitigations=off tsc=reliable no_timer_check norandmaps init_on_alloc=0 clearcpuid=112",
        )
        .arg("-fsdev")
        .arg("local,id=root,path=/,security_model=none,readonly=on,multidevs=remap")
        .arg("-device")
        .arg("virtio-9p-pci,fsdev=root,mount_tag=root")
        // A network card to move into containers. 10.0.2.2 answers pings there; nothing leaves the
        // machine.
        .arg("-netdev")
        .arg("user,id=spare,restrict=on")
        .arg("-device")
        .arg("virtio-net-pci,netdev=spare,romfile=");
    program.deadline(deadline)
}

fn write(path: &Path, content: &[u8]) -> Result<PathBuf, String> {
    fs::write(path, content).map_err(|error| format!("write {}: {error}", path.display()))?;
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::report;

    #[test]
    fn a_test_that_passes_at_its_second_try_is_counted_and_shown() {
        let log = [
            "@try FAIL 120 daemon a::vm_b",
            "thread 'a::vm_b' panicked at a.rs:2:2:",
            "the reason",
            "note: how to see more",
            "@test FLAKY 80 daemon a::vm_b",
            "@test FAIL 90 daemon a::vm_c",
        ];
        let report = report(&log.map(str::to_owned));
        assert_eq!((report.passed, report.failed), (1, 1));
        assert_eq!(report.note, "1 FLAKY: passed when tried once more");
        assert_eq!(report.tests, [("a::vm_b".to_owned(), true), ("a::vm_c".to_owned(), false)]);
        let shown = ["TRY 1 FAIL 120 daemon a::vm_b", log[1], log[2], "FAIL daemon a::vm_c"];
        assert_eq!(report.failures, shown);
    }
}
