//! Counts what `doctor` requests from the kernel. Times would depend on the machine; counts do not.

use testkit::{Container, Place as _, require};

use super::situations::node::Node;
use crate::support::{EXECUTABLE, said};

/// The most that a container costs, beyond the cost of the node: `doctor` reads its namespace once,
/// and each of its plugins compares the present state with what ADD made.
const MOST_OF_ONE: Counts = Counts { calls: 900, netlink: 120, read: 512 * 1024 };

/// The counts of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counts {
    /// System calls, except those for memory and for waiting.
    calls: usize,
    /// Datagrams to the kernel.
    netlink: usize,
    /// Bytes read from files and from the kernel.
    read: usize,
}

const NOT_COUNTED: [&str; 9] =
    ["brk", "mmap", "munmap", "mremap", "mprotect", "madvise", "futex", "poll", "sched_yield"];

const READS: [&str; 6] = ["read", "pread64", "readv", "recvfrom", "recvmsg", "getdents64"];

/// Runs `doctor` and counts.
fn counted(node: &Node, arguments: &[&str]) -> Counts {
    let trace = node.lab.dir().join("trace");
    let mut command = node.lab.command("strace");
    command.args(["-f", "-qq", "-e", "signal=none", "-o"]).arg(&trace);
    command.args([EXECUTABLE, "doctor", "--no-probe"]).args(arguments);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    said(command).succeeded();
    read(&std::fs::read_to_string(&trace).unwrap())
}

/// Reads what `strace` has written: `123 read(3, "…", 8) = 8`, and of a call that another thread
/// has interrupted `123 read(3,  <unfinished ...>` and `123 <... read resumed>"…", 8) = 8`.
fn read(trace: &str) -> Counts {
    let mut counts = Counts { calls: 0, netlink: 0, read: 0 };
    for line in trace.lines() {
        let call = line.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
        let (name, is_rest) = match call.strip_prefix("<... ") {
            Some(rest) => (rest.split(' ').next().unwrap_or_default(), true),
            None => (call.split('(').next().unwrap_or_default(), false),
        };
        if NOT_COUNTED.contains(&name) {
            continue;
        }
        if !is_rest {
            counts.calls += 1;
            counts.netlink += usize::from(["sendto", "sendmsg"].contains(&name));
        }
        if READS.contains(&name) {
            let result = call.rsplit(" = ").next().and_then(|text| text.split(' ').next());
            counts.read += result.and_then(|text| text.parse().ok()).unwrap_or(0);
        }
    }
    counts
}

/// The cost of each of a number of additional containers.
fn of_each(before: Counts, after: Counts, number: usize) -> Counts {
    let each = |before: usize, after: usize| after.saturating_sub(before).div_ceil(number);
    Counts {
        calls: each(before.calls, after.calls),
        netlink: each(before.netlink, after.netlink),
        read: each(before.read, after.read),
    }
}

/// Attaches containers whose names end in these numbers.
fn attach(node: &Node, numbers: std::ops::Range<usize>) -> Vec<Container> {
    let add = |number: usize| {
        let name = format!("m{number}");
        let container = node.lab.container(&name);
        container.sh("ip link set lo up");
        node.lab.sh(&format!("mkdir -p /etc/netns/{name}"));
        let names = node.lab.path(format!("/etc/netns/{name}/resolv.conf"));
        std::fs::write(names, "nameserver 203.0.113.2\n").unwrap();
        let (done, said) = node.run(&format!("netwright add mynet {name} --container-id {name}"));
        assert!(done, "{said}");
        container
    };
    numbers.map(add).collect()
}

#[test]
fn a_container_costs_a_bounded_number_of_calls() {
    require!("root", "program:strace");
    let node = Node::new("doctor-counts");
    let two = counted(&node, &[]);
    let _more = attach(&node, 0..2);
    let four = counted(&node, &[]);
    let one = counted(&node, &["c1"]);
    let each = of_each(two, four, 2);
    println!("two containers {two:?}, four {four:?}, one of four {one:?}, each {each:?}");
    let most = MOST_OF_ONE;
    assert!(each.calls <= most.calls && each.netlink <= most.netlink, "{each:?}");
    assert!(each.read <= most.read, "{each:?}");
    // A call for one container does not read the others.
    assert!(one.calls < four.calls && one.netlink < four.netlink, "{one:?}, {four:?}");
}

/// A container costs the same beside many others as beside few.
#[test]
fn the_cost_grows_with_the_number_of_containers_alone() {
    require!("root", "program:strace", "full");
    let node = Node::new("doctor-counts-many");
    let mut all = attach(&node, 0..10);
    let few = counted(&node, &[]);
    all.extend(attach(&node, 10..40));
    let some = counted(&node, &[]);
    all.extend(attach(&node, 40..70));
    let many = counted(&node, &[]);
    let (first, second) = (of_each(few, some, 30), of_each(some, many, 30));
    println!("each of the first thirty {first:?}, of the next {second:?}");
    for (then, now) in
        [(first.calls, second.calls), (first.netlink, second.netlink), (first.read, second.read)]
    {
        assert!(now * 10 <= then * 12, "{first:?}, {second:?}");
    }
    drop(all);
}

#[test]
fn a_trace_is_read() {
    let trace = "7 openat(AT_FDCWD, \"/proc\", O_RDONLY) = 3\n\
                 7 read(3, \"a = b\", 8192)              = 5\n\
                 7 read(3,  <unfinished ...>\n\
                 8 sendto(4, [{nlmsg_len=20}], 20, 0, NULL, 0) = 20\n\
                 8 futex(0x7f, FUTEX_WAIT, 2, NULL) = -1 EAGAIN (Resource temporarily unavailable)\n\
                 7 <... read resumed>\"x\", 8192)     = 100\n\
                 8 recvfrom(4, \"\", 8192, 0, NULL, NULL) = -1 EAGAIN (Resource temporarily unavailable)\n";
    assert_eq!(read(trace), Counts { calls: 5, netlink: 1, read: 105 });
}
