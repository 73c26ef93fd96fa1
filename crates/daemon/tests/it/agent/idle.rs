//! What services do while nothing happens: they wake up when one of their timers is due, and sleep.

use std::collections::BTreeMap;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use testkit::real::Ovs;
use testkit::{Lab, Place as _, Service};

use super::node::{ALL, DAEMON, Node, until};
use crate::repair::Host;

/// How long they are observed, also with `--full`, and how often each thread is looked at meanwhile.
const WINDOW: Duration = Duration::from_secs(6);
const LONG_WINDOW: Duration = Duration::from_secs(60);
const LOOKS: u32 = 20;
/// Something that has just started may still have something to do.
const WINDOWS: usize = 4;
/// `repair` looks at many containers again after their own events, and the longer a look takes, the
/// longer it waits before the next one.
const WINDOWS_BESIDE_MANY: usize = 20;
/// The most that a process may take of a processor, with `--full`.
const MOST: f64 = 0.01;
/// The same where `repair` looks at 200 containers once a minute: some seconds of an executable that
/// is not optimised.
const MOST_BESIDE_MANY: f64 = 0.1;

/// The timers: of which processes' threads (by the beginning of their names), how often, in
/// seconds, and how often that thread is switched away each time, at most.
const TIMERS: &[(&str, &str, u64, u64)] = &[
    // It asks each service whether it goes on (`supervisor::LOOK`), and each answers.
    ("agent", "netwrightd", 5, 17),
    ("supervised ", "attendant", 5, 4),
    // `serve::PAUSE`.
    ("agent serve", "netwrightd", 5, 2),
    // `attendant::LOOK`: whether the configuration's file has changed.
    ("following ", "attendant", 2, 2),
    // `dhcp::service::NOTES_EVERY`.
    ("dhcp", "netwrightd", 5, 3),
    // `ready::INTERVAL`.
    ("ipam", "netwrightd", 5, 2),
    ("multinet", "netwrightd", 5, 4),
    ("policy", "server", 5, 4),
    // `ipam::tend::POLL_INTERVAL`: one thread asks another.
    ("ipam", "netwrightd", 1, 5),
    ("ipam", "tokio-rt-worker", 1, 3),
    // `policy::SERVICES`: the kernel does not report that IPVS has some.
    ("policy", "netwrightd", 1, 2),
    // `ovs::SILENCE` and the longest of `ovs::RETRY_DELAYS`.
    ("repair", "listen unix:/sw", 2, 2),
    ("repair", "listen unix:", 10, 4),
];

/// How many voluntary switches a thread may make in this time.
fn allowed(process: &str, thread: &str, window: Duration) -> u64 {
    let kind = |manner: &str| process.strip_prefix(manner);
    let service = kind("supervised ").or(kind("following ")).unwrap_or(process);
    let of = TIMERS.iter().filter(|(whose, name, ..)| {
        (service.starts_with(whose) || process.starts_with(whose)) && thread.starts_with(name)
    });
    of.map(|(.., every, switches)| (window.as_secs() / every + 1) * switches).sum()
}

/// What the kernel has counted of the threads of one name.
#[derive(Debug, Default, Clone, Copy)]
struct Count {
    /// How often they have gone to sleep.
    switches: u64,
    /// The processor time.
    nanos: u64,
    /// How often they were looked at, and were awake.
    looks: u32,
    awake: u32,
}

type Counts = BTreeMap<(String, String), Count>;

/// Adds what is known of the threads of these processes.
fn count(processes: &BTreeMap<String, u64>) -> Counts {
    let mut all = Counts::new();
    for (process, pid) in processes {
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
            let status = read("status");
            let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
            let Some(switches) = line("voluntary_ctxt_switches:") else { continue };
            let name = line("Name:").unwrap_or_default().trim().to_owned();
            let nanos = read("schedstat").split(' ').next().and_then(|nanos| nanos.parse().ok());
            let one = all.entry((process.clone(), name)).or_default();
            one.switches += switches.trim().parse::<u64>().unwrap();
            one.nanos += nanos.unwrap_or(0_u64);
            one.looks += 1;
            one.awake +=
                u32::from(line("State:").is_some_and(|state| state.trim().starts_with('R')));
        }
    }
    all
}

/// Observes processes for a while. Returns what each thread did, and which threads did what no
/// timer of theirs explains.
fn observe(processes: &BTreeMap<String, u64>, window: Duration) -> (String, Vec<String>) {
    let (since, before) = (Instant::now(), count(processes));
    let (mut looks, mut awake) = (BTreeMap::new(), BTreeMap::new());
    for _ in 0..LOOKS {
        sleep(window / LOOKS);
        for (thread, count) in count(processes) {
            *looks.entry(thread.clone()).or_insert(0) += count.looks;
            *awake.entry(thread).or_insert(0) += count.awake;
        }
    }
    let (took, after) = (since.elapsed(), count(processes));
    let (mut table, mut unexplained) = (String::new(), Vec::new());
    for (thread, now) in &after {
        let then = before.get(thread).copied().unwrap_or_default();
        let (process, name) = thread;
        let (switches, most) = (now.switches - then.switches, allowed(process, name, took));
        let micros = (now.nanos - then.nanos) / 1000;
        let line = format!("{process} | {name} | {switches} of {most} | {micros} µs");
        // A loop that never sleeps is not switched away either.
        if most < switches || looks[thread] < 2 * awake[thread] {
            unexplained.push(format!("{line}, awake in {} of {}", awake[thread], looks[thread]));
        }
        if 0 < switches + most {
            table.push_str(&format!("{line}\n"));
        }
    }
    (table, unexplained)
}

/// Asserts that processes sleep but for their timers, and prints what they did.
#[track_caller]
fn assert_idle(what: &str, processes: &BTreeMap<String, u64>, windows: usize, most: f64) {
    let full = testkit::feature::available("full");
    let mut last = Vec::new();
    for _ in 0..windows {
        let (_, unexplained) = observe(processes, WINDOW);
        last = unexplained;
        if last.is_empty() {
            break;
        }
    }
    assert!(last.is_empty(), "{what}: no timer explains\n{}", last.join("\n"));
    if !full {
        return;
    }
    let (before, since) = (count(processes), Instant::now());
    let (table, _) = observe(processes, LONG_WINDOW);
    eprintln!(
        "MEASURED idle for {LONG_WINDOW:?}, {what}: process | thread | wake-ups | time\n{table}"
    );
    let mut time: BTreeMap<String, u64> = BTreeMap::new();
    for (thread, now) in count(processes) {
        *time.entry(thread.0.clone()).or_default() += now.nanos - before[&thread].nanos;
    }
    for (process, nanos) in time {
        let part = Duration::from_nanos(nanos).as_secs_f64() / since.elapsed().as_secs_f64();
        assert!(part < most, "{what}: {process} takes {part:.3} of a processor\n{table}");
    }
}

/// Starts a service, and returns it once it is ready.
fn started(lab: &Lab, words: &[&str], name: &str) -> Service {
    let mut command = lab.command(DAEMON);
    command.args(words);
    let service = Service::start(command, &lab.dir().join(format!("{name}.log")));
    until("it to be ready", || service.log().contains(" ready "));
    service
}

/// With the configuration that packages install: a loop whose bell had no other end never slept,
/// and no test had looked.
#[test]
fn services_sleep_but_for_their_timers() {
    testkit::require!("root", "program:ovs-vswitchd", "program:ovsdb-server");
    let mut processes = BTreeMap::new();
    let with_all = |name: &str| {
        let node = Node::with_all(name);
        // The watchdog of that configuration is for tests of the watchdog.
        node.configure(&node.all().replace("watchdog = \"5s\"\n", ""));
        node
    };
    let mut node = with_all("idle-supervised");
    node.start();
    let pids = node.wait_until_ready(ALL.len());
    processes.extend(pids.into_iter().map(|(service, pid)| (format!("supervised {service}"), pid)));
    processes.insert("agent".to_owned(), node.supervisor());
    // As the chart starts them.
    let alone = with_all("idle-alone");
    let mut services = Vec::new();
    let mut note = |name: String, service: Service| {
        processes.insert(name, u64::from(service.pid()));
        services.push(service);
    };
    for service in ALL {
        let name = format!("following {service}");
        note(name, started(&alone.lab, &[service, "--follow"], service));
    }
    note("agent serve".to_owned(), started(&alone.lab, &["agent", "serve"], "serve"));
    // Beside a switch, and where one is still to come.
    let lab = Lab::new("idle-switch");
    let ovs = Ovs::start(&lab);
    let remotes = format!("{},unix:/switch/to/come.sock", ovs.remote());
    let switched = started(&lab, &["repair", "--ovsdb", &remotes], "repair");
    until("it to listen", || switched.log().contains("listening"));
    note("repair of switches".to_owned(), switched);
    assert_idle("without containers", &processes, WINDOWS, MOST);
    assert_eq!(node.stop(), Some(0));
    for service in services {
        assert_eq!(service.stop(), Some(0));
    }
}

#[test]
fn services_sleep_beside_two_hundred_containers() {
    testkit::require!("root", "round:1/3");
    let host = Host::new("idle-many");
    let _all: Vec<_> = (0..200)
        .map(|number| {
            let container = host.node.container(&format!("c{number}"));
            host.add(&container, &host.list(8000 + number));
            container
        })
        .collect();
    let services = ["collect", "repair"].map(|service| (service, host.daemon(service, &[])));
    let mut processes = BTreeMap::new();
    for (service, daemon) in &services {
        until("it to be ready", || daemon.log().contains(" ready "));
        processes.insert((*service).to_owned(), u64::from(daemon.pid()));
    }
    assert_idle("with 200 containers", &processes, WINDOWS_BESIDE_MANY, MOST_BESIDE_MANY);
}
