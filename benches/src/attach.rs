//! `attach`: the cost of ADD, CHECK and DEL, of plugins executed one by one, ours and the
//! reference's in turn.
//!
//! ```text
//! cargo run --release --package netwright-benches --bin attach -- \
//!     [--rounds N] [--reference DIR] [--plot FILE] [--crowd] [--scale N,N…] [--doctor N,N…] \
//!     [--netavark FILE] [--beside FILE]… EXECUTABLE
//! ```
//!
//! Every round attaches, checks and detaches one container with each subject and each case, in an
//! order that changes from round to round, so that other load on the machine affects all of them
//! alike. A resident attachment of each subject keeps bridges and tables in place, as on a node
//! that is in use. Times are of whole processes, each from its start to its end, with files for
//! standard input and output. The program prints medians and quartiles, and how many times faster
//! ours are. It does the same with netavark if that is installed or named. `--crowd` attaches 8 and
//! 64 at once; `--scale` measures with this many attachments on the host, beside the kernel's cost
//! for the same; `--doctor` measures `netwright doctor` with this many containers; `--beside`
//! compares the executable with another one of ours, such as one that is linked in another way.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a bench prints its tables, and what failed"
)]

mod crowd;
mod doctor;
mod last;
mod linked;
mod netavark;
mod plot;
mod scale;
mod spread;
mod steps;
mod subject;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use testkit::Lab;

use plot::Pair;
use spread::Spread;
use subject::{Bench, CASES, Case, PLUGINS, Subject};

const ROUNDS: usize = 40;
/// How long the kernel gets after a call, so that its late work for one subject is not charged to
/// the next.
const SETTLE: Duration = Duration::from_millis(80);
/// The same after many namespaces have come or gone.
const QUIET: Duration = Duration::from_secs(2);
const REFERENCE: &str = "/usr/lib/cni";
/// netavark's path in Debian.
const NETAVARK: &str = "/usr/lib/podman/netavark";
const VERBS: [&str; 3] = ["ADD", "CHECK", "DEL"];

/// The command line's options.
struct Options {
    rounds: usize,
    reference: PathBuf,
    plot: Option<PathBuf>,
    crowd: bool,
    scale: Vec<usize>,
    doctor: Vec<usize>,
    netavark: PathBuf,
    beside: Vec<PathBuf>,
    executable: PathBuf,
}

impl Options {
    fn read(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let mut options = Options {
            rounds: ROUNDS,
            reference: REFERENCE.into(),
            plot: None,
            crowd: false,
            scale: Vec::new(),
            doctor: Vec::new(),
            netavark: NETAVARK.into(),
            beside: Vec::new(),
            executable: PathBuf::new(),
        };
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--rounds" => options.rounds = args.next()?.parse().ok()?,
                "--reference" => options.reference = args.next()?.into(),
                "--plot" => options.plot = Some(args.next()?.into()),
                "--netavark" => options.netavark = args.next()?.into(),
                "--beside" => options.beside.push(PathBuf::from(args.next()?).canonicalize().ok()?),
                "--crowd" => options.crowd = true,
                "--scale" => options.scale = numbers(&args.next()?)?,
                "--doctor" => options.doctor = numbers(&args.next()?)?,
                _ => options.executable = PathBuf::from(arg).canonicalize().ok()?,
            }
        }
        options.executable.is_file().then_some(options)
    }
}

/// Reads `10,200`.
fn numbers(text: &str) -> Option<Vec<usize>> {
    text.split(',').map(|number| number.parse().ok()).collect()
}

fn main() -> ExitCode {
    let Some(options) = Options::read(std::env::args().skip(1)) else {
        println!(
            "usage: attach [--rounds N] [--reference DIR] [--plot FILE] [--crowd] [--scale N,N…] [--doctor N,N…] [--netavark FILE] [--beside FILE]… EXECUTABLE"
        );
        return ExitCode::FAILURE;
    };
    let lab = Lab::new("bench");
    let bin = lab.dir().join("bin");
    fs::create_dir(&bin).expect("a scratch folder is writable");
    for plugin in PLUGINS {
        symlink(&options.executable, bin.join(plugin)).expect("a scratch folder is writable");
    }
    let subjects = [
        Subject { name: "nw", bin, is_ours: true },
        Subject { name: "Go", bin: options.reference, is_ours: false },
    ];
    let mut pairs = Vec::new();
    if 0 < options.rounds {
        println!("| case | verb | Go, ms | ours, ms | times faster |\n|---|---|---|---|---|");
        for case in &CASES {
            pairs.extend(measure(&lab, &subjects, case, options.rounds));
        }
        last::measure(&lab, &subjects, options.rounds);
    }
    if 0 < options.rounds && options.netavark.is_file() {
        netavark::measure(&lab, &subjects[0], &options.netavark, options.rounds);
    }
    if 0 < options.rounds && !options.beside.is_empty() {
        let executables = [std::slice::from_ref(&options.executable), &options.beside].concat();
        linked::measure(&lab, &subjects[1].bin, &executables, options.rounds);
    }
    if let Some(file) = options.plot {
        fs::write(&file, plot::svg(&pairs)).unwrap_or_else(|error| panic!("{error}"));
    }
    if options.crowd {
        crowd::measure(&lab, &subjects);
    }
    if !options.scale.is_empty() {
        scale::measure(&lab, &subjects[0], &options.scale);
    }
    if !options.doctor.is_empty() {
        doctor::measure(&options.executable, &options.doctor);
    }
    ExitCode::SUCCESS
}

fn measure(lab: &Lab, subjects: &[Subject; 2], case: &Case, rounds: usize) -> Vec<Pair> {
    let benches = subjects.each_ref().map(|subject| Bench::new(lab, subject, case));
    let resident: Vec<_> = benches
        .iter()
        .zip(20_000_u16..)
        .map(|(bench, port)| {
            let container = lab.container(&format!("resident{port}"));
            let attached = bench.add(&container, port);
            (bench, container, attached)
        })
        .collect();
    // All are made before and removed afterwards: the end of a namespace keeps the kernel busy,
    // with the lock for links.
    let containers: Vec<_> = (0..rounds * 2).map(|n| lab.container(&format!("c{n}"))).collect();
    std::thread::sleep(QUIET);
    let mut times: [[Vec<Duration>; 3]; 2] = Default::default();
    for round in 0..rounds {
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for which in order {
            let bench = &benches[which];
            let container = &containers[round * 2 + which];
            let port = 30_000 + u16::try_from(which).unwrap_or_default();
            std::thread::sleep(SETTLE);
            let attached = bench.add(container, port);
            std::thread::sleep(SETTLE);
            // The reference's portmap does not pass its own CHECK on a network without IPv6.
            let check = bench.try_again("CHECK", container, &attached);
            let del = bench.again("DEL", container, &attached);
            for (all, one) in times[which].iter_mut().zip([Ok(attached.took), check, Ok(del)]) {
                all.extend(one);
            }
        }
    }
    for (bench, container, attached) in resident {
        bench.again("DEL", &container, &attached);
    }
    drop(containers);
    std::thread::sleep(QUIET);
    let [ours, theirs] = times.map(|verbs| verbs.map(|times| Spread::of(&times)));
    let lines = VERBS.iter().zip(ours.iter().zip(&theirs));
    let pair = |(verb, (ours, theirs)): (&&str, (&Option<Spread>, &Option<Spread>))| {
        let (Some(ours), Some(theirs)) = (ours, theirs) else {
            let told =
                |spread: &Option<Spread>| spread.map_or("fails".to_owned(), |s| s.to_string());
            println!("| {} | {verb} | {} | {} | |", case.name, told(theirs), told(ours));
            return None;
        };
        let times = theirs.median / ours.median;
        println!("| {} | {verb} | {theirs} | {ours} | {times:.1} |", case.name);
        let label = format!("{}, {verb}", case.name);
        Some(Pair { label, theirs: theirs.median, ours: ours.median })
    };
    lines.filter_map(pair).collect()
}
