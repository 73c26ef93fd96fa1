//! What a call requests from the kernel, counted. Times would depend on the machine; counts do not.
//!
//! A limit is today's count. A change that needs more raises the limit and says why; one that needs
//! less lowers it.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use testkit::{Container, Lab, Place as _};

use crate::support::{call_in, said_with};

const PLUGINS: &str = "/run/bin";

/// The counts of one process.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Counts {
    /// System calls, except those for memory, which belong to the C library, and those that wait.
    calls: usize,
    /// Datagrams to the kernel.
    netlink: usize,
    /// Files opened.
    opened: usize,
    /// Processes and threads started, and programs executed except the first.
    started: usize,
    /// KiB requested from the heap, including those freed.
    allocated: usize,
}

const MEMORY: [&str; 6] = ["brk", "mmap", "munmap", "mremap", "mprotect", "madvise"];

/// The system calls that make up the start and the end of a process.
const PROCESS: [&str; 13] = [
    "arch_prctl",
    "execve",
    "exit",
    "exit_group",
    "gettid",
    "getrandom",
    "poll",
    "prlimit64",
    "rseq",
    "rt_sigaction",
    "rt_sigprocmask",
    "set_tid_address",
    "sigaltstack",
];

/// The system calls by which threads and processes wait for each other: a busy machine needs more of
/// them.
const WAITS: [&str; 6] =
    ["clock_nanosleep", "futex", "nanosleep", "restart_syscall", "sched_yield", "wait4"];

fn counts(trace: &Path, log: &str) -> Counts {
    let text = std::fs::read_to_string(trace).unwrap();
    let mut by_name: BTreeMap<&str, usize> = BTreeMap::new();
    // `123 openat(…) = 3`; the rest of an unfinished call is `<... name resumed>`.
    for line in text.lines() {
        let call = line.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
        let Some((name, _)) = call.split_once('(') else { continue };
        // The log, which the test needs for its last line; and a call that is made again, such as for
        // a lock that another process has: a busy machine needs more of these.
        if call.starts_with("write(2,") || call.contains(" = -1 EAGAIN ") {
            continue;
        }
        let left_out = [&MEMORY[..], &PROCESS, &WAITS];
        if !name.starts_with('<') && !left_out.iter().any(|names| names.contains(&name)) {
            *by_name.entry(name).or_default() += 1;
        }
    }
    let count = |names: &[&str]| names.iter().filter_map(|name| by_name.get(name)).sum();
    Counts {
        calls: by_name.values().sum(),
        netlink: count(&["sendto", "sendmsg"]),
        opened: count(&["open", "openat", "openat2"]),
        started: count(&["clone", "clone3", "fork", "vfork"]) + text.matches("execve(").count() - 1,
        allocated: allocated(log).div_ceil(1024),
    }
}

/// The number of bytes in the log's `allocated blocks=… bytes=…`.
fn allocated(log: &str) -> usize {
    let line = log.lines().rfind(|line| line.contains("allocated blocks=")).expect(log);
    let bytes = line.split("bytes=").nth(1).expect("a number of bytes");
    bytes.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

struct Host {
    lab: Lab,
}

impl Host {
    fn new(name: &str) -> Self {
        let lab = Lab::new(name);
        call_in(&lab, &["install", "--bin-dir", PLUGINS, "--no-config"]).succeeded();
        Host { lab }
    }

    /// Calls one plugin, and counts its requests.
    fn call(
        &self,
        plugin: &Value,
        verb: &str,
        to: &Container,
        previous: Option<&Value>,
    ) -> (Counts, Value) {
        let mut config = plugin.clone();
        config["cniVersion"] = json!("1.1.0");
        config["name"] = json!("n");
        if let Some(previous) = previous {
            config["prevResult"] = previous.clone();
        }
        let trace = self.lab.dir().join("trace");
        let mut command = self.lab.command("strace");
        command.args(["-f", "-qq", "-e", "signal=none", "-o"]).arg(&trace);
        command.arg(format!("{PLUGINS}/{}", plugin["type"].as_str().unwrap()));
        command.env_clear().env("CNI_COMMAND", verb).env("CNI_CONTAINERID", to.name());
        command.env("CNI_NETNS", to.netns()).env("CNI_IFNAME", "eth0").env("CNI_PATH", PLUGINS);
        command.env("NETWRIGHT_LOG", "debug");
        let said = said_with(command, config.to_string().as_bytes()).succeeded();
        let result = if verb == "ADD" { said.json() } else { Value::Null };
        let text = std::fs::read_to_string(&trace).unwrap();
        let by_name: Vec<&str> = text.lines().filter(|line| line.contains("SIOC")).collect();
        assert!(by_name.is_empty(), "the kernel may look for a module: {by_name:#?}");
        (counts(&trace, &said.stderr), result)
    }

    /// Counts the sockets for the packet filter and for connection tracking that the last call
    /// opened.
    fn netfilter_sockets(&self) -> usize {
        let text = std::fs::read_to_string(self.lab.dir().join("trace")).unwrap();
        let of_netfilter =
            |line: &&str| line.contains("socket(") && line.contains("NETLINK_NETFILTER");
        text.lines().filter(of_netfilter).count()
    }

    /// Attaches and detaches once more on a network that is in use, and returns the counts of each
    /// verb of each plugin.
    fn attach_and_detach(&self, plugins: fn(u16) -> Vec<Value>) -> Vec<(String, Counts)> {
        let mut all = Vec::new();
        let containers = ["resident", "c1"].map(|name| self.lab.container(name));
        for (container, port) in containers.iter().zip(8080..) {
            let plugins = &plugins(port);
            let mut previous: Option<Value> = None;
            for plugin in plugins {
                let (counts, result) = self.call(plugin, "ADD", container, previous.as_ref());
                previous = Some(result);
                all.push((format!("{} ADD", plugin["type"].as_str().unwrap()), counts));
            }
            if container.name() == "resident" {
                all.clear();
                continue;
            }
            for plugin in plugins.iter().rev() {
                let (counts, _) = self.call(plugin, "DEL", container, previous.as_ref());
                all.push((format!("{} DEL", plugin["type"].as_str().unwrap()), counts));
            }
        }
        all
    }
}

fn bridge(_: u16) -> Value {
    json!({ "type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipMasq": true,
            "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/16" }]] } })
}

fn ports(port: u16) -> Value {
    json!({ "portMappings": [{ "hostPort": port, "containerPort": 80, "protocol": "tcp" }] })
}

fn apart(port: u16) -> Vec<Value> {
    vec![
        bridge(port),
        json!({ "type": "portmap", "runtimeConfig": ports(port) }),
        json!({ "type": "firewall" }),
        json!({ "type": "tuning", "mtu": 1400, "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1" } }),
    ]
}

/// The same in one process: the outer plugin gets the runtime's arguments, and passes them on by
/// capability.
fn together(port: u16) -> Vec<Value> {
    let mut plugins = apart(port);
    plugins[1] = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    vec![json!({ "type": "chain", "plugins": plugins, "runtimeConfig": ports(port) })]
}

/// calls, netlink, opened, started
type Limit = (&'static str, [usize; 5]);

#[track_caller]
fn hold(found: &[(String, Counts)], limits: &[Limit]) {
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, limits.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    let over = found.iter().zip(limits).filter(|((_, counts), (_, limit))| {
        let counts =
            [counts.calls, counts.netlink, counts.opened, counts.started, counts.allocated];
        counts.iter().zip(limit).any(|(count, limit)| limit < count)
    });
    let over: Vec<_> = over.collect();
    assert!(over.is_empty(), "more is asked of the kernel than it was: {over:#?}");
}

#[test]
fn a_plugin_asks_no_more_of_the_kernel_than_it_did() {
    testkit::require!("root", "program:strace");
    let found = Host::new("counts").attach_and_detach(apart);
    let limits = [
        // The calls of an ADD include: two for the marks of two reservations; six for the
        // namespace's cookie, so that an address is not kept for ever for another namespace with
        // the same number; six and a datagram to find whether another container or the host has the
        // address; three and a file for the port's `accept_ra`; seven and a datagram to find
        // whether the gateway's address is free. Two datagrams set the link-local address, in place
        // of a parameter. One datagram asks for all twelve chains of our table; each answer is a
        // call. Memory grows with the rules of all chains, which are made once for the comparison.
        // Two calls find whether the attachment has a record, two whether its pair is there, and one
        // reads what processes in the namespace see. The record has the `ipam` object: 3 KiB. The
        // file of the address plugin's name is read (`commands/install.rs`).
        ("bridge ADD", [229, 15, 28, 0, 391]),
        // Five calls find whether a program has the port; among them one socket is bound and
        // closed.
        ("portmap ADD", [116, 9, 15, 0, 312]),
        ("firewall ADD", [67, 2, 11, 0, 134]),
        ("tuning ADD", [93, 2, 17, 0, 140]),
        ("tuning DEL", [88, 2, 13, 0, 132]),
        ("firewall DEL", [92, 6, 13, 0, 200]),
        // In each DEL four calls lock out repairs: open, flock, stat, close. One call finds what an
        // ADD left that was killed before it waited for the ports of another network.
        ("portmap DEL", [125, 14, 14, 1, 301]),
        // Two calls release the address on the bridge, and two release it among those that the host
        // routes to. host-local's index takes a dozen calls, however many addresses are held,
        // instead of four for each. Four calls list which plugins recorded something.
        ("bridge DEL", [198, 10, 24, 1, 369]),
    ];
    hold(&found, &limits);
}

#[test]
fn a_chain_asks_no_more_of_the_kernel_than_it_did() {
    testkit::require!("root", "program:strace");
    let found = Host::new("counts-chain").attach_and_detach(together);
    // Each chained plugin looks for a record of an earlier ADD, and the file of its name is read
    // (`commands/install.rs`). `portmap` reads whether the reverse path filter is
    // strict: two sysctls.
    hold(&found, &[("chain ADD", [431, 27, 59, 0, 877]), ("chain DEL", [427, 32, 48, 2, 873])]);
}

/// To close a socket of the packet filter may hold up all other calls, since the daemon of network
/// policy deletes at each of them. So a call has one, and another for connection tracking, and a
/// helper closes them.
#[test]
fn a_call_under_network_policy_has_one_socket_of_the_packet_filter() {
    testkit::require!("root", "program:strace");
    let host = Host::new("counts-policy");
    let c1 = host.lab.container("c1");
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/16" }]] });
    let (_, made) = host.call(&json!({ "type": "ptp", "ipam": ipam }), "ADD", &c1, None);
    for verb in ["ADD", "DEL"] {
        let (counts, _) = host.call(&json!({ "type": "policy" }), verb, &c1, Some(&made));
        assert_eq!((host.netfilter_sockets(), counts.started), (2, 1), "{verb}");
    }
}

/// A CHECK that repairs observes a sound attachment once: beyond the calls of CHECK it needs those
/// for the attachment's lock and its claims, and those of the IPAM plugin's own repair.
#[test]
fn a_repair_of_what_is_sound_costs_one_check() {
    testkit::require!("root", "program:strace");
    let host = Host::new("counts-repair");
    let c1 = host.lab.container("c1");
    let plugins = apart(8080);
    let mut previous: Option<Value> = None;
    for plugin in &plugins {
        previous = Some(host.call(plugin, "ADD", &c1, previous.as_ref()).1);
    }
    let mut found = Vec::new();
    for plugin in &plugins {
        let name = plugin["type"].as_str().unwrap();
        let (check, _) = host.call(plugin, "CHECK", &c1, previous.as_ref());
        let mut repairing = plugin.clone();
        repairing["netwright/repair"] = json!(true);
        let (repair, _) = host.call(&repairing, "CHECK", &c1, previous.as_ref());
        println!("{name}: CHECK {check:?}, with repair {repair:?}");
        let room = if name == "bridge" { 51 } else { 0 };
        assert!(repair.calls <= check.calls + room, "{name}: {repair:?}, CHECK {check:?}");
        found.push((format!("{name} CHECK"), check));
    }
    // With the last container its bridge is removed too; what changed it went before, as a runtime
    // does it.
    for plugin in plugins[1..].iter().rev() {
        host.call(plugin, "DEL", &c1, previous.as_ref());
    }
    let (del, _) = host.call(&plugins[0], "DEL", &c1, previous.as_ref());
    found.push(("bridge DEL, the last".to_owned(), del));
    let limits = [
        // CHECK reads the rules of a table: fewer calls than one for each chain, and more memory. One
        // datagram asks whether the table is dormant, and one whether its ten base chains are at
        // their hooks; each answer is a call.
        // The file of the address plugin's name is read.
        ("bridge CHECK", [147, 14, 15, 0, 755]),
        // Two sysctls tell whether the reverse path filter is strict.
        ("portmap CHECK", [68, 9, 5, 0, 645]),
        ("firewall CHECK", [32, 1, 4, 0, 140]),
        ("tuning CHECK", [87, 2, 11, 0, 210]),
        // The calls are one or two more when the kernel's messages come one by one.
        ("bridge DEL, the last", [284, 14, 30, 2, 514]),
    ];
    hold(&found, &limits);
}

/// With many other attachments on the host, a call requests the same as with few.
#[test]
fn a_call_asks_the_same_beside_many_others() {
    testkit::require!("root", "program:strace");
    let host = Host::new("counts-many");
    let few = host.attach_and_detach(|port| vec![bridge(port)]);
    let others: Vec<_> = (0..40)
        .map(|number| {
            let container = host.lab.container(&format!("other{number}"));
            host.call(&bridge(0), "ADD", &container, None);
            container
        })
        .collect();
    let c2 = host.lab.container("c2");
    let (add, result) = host.call(&bridge(0), "ADD", &c2, None);
    let (del, _) = host.call(&bridge(0), "DEL", &c2, Some(&result));
    println!("{few:#?} {add:#?} {del:#?}");
    for (now, (verb, then)) in [(add, &few[0]), (del, &few[1])] {
        assert!(now.netlink <= then.netlink, "{verb}: {now:?}, was {then:?}");
        // A busy node costs only one or two more tries for a lock.
        assert!(now.calls * 10 <= then.calls * 11, "{verb}: {now:?}, was {then:?}");
    }
    drop(others);
}
