//! What a limit does to real traffic: the kernel counts bytes, second by second, while `iperf3`
//! sends.

use std::fmt::Write as _;
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{Container, Place, feature};

use super::{both, host, qdiscs, reference, run};
use crate::support::Node;

const MBIT: f64 = 1_000_000.0;
/// How many seconds are measured to judge the limit, and to judge latency.
const SECONDS: usize = 5;
const SECONDS_OF_PING: usize = 3;

/// The direction of traffic, seen from the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

/// Reads how many bytes a link of the calling thread's namespace has received.
fn received(link: &str) -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = text.lines().find_map(|line| line.trim().strip_prefix(&format!("{link}:"))).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// The rates, in Mbit/s, of consecutive seconds, counted from the first byte.
fn rates(place: &impl Place, link: &str, seconds: usize) -> Vec<f64> {
    place.enter(|| {
        let start = received(link);
        let deadline = Instant::now() + Duration::from_secs(20);
        // Thirty kilobytes: the handshakes are over.
        while received(link) < start + 30_000 {
            assert!(Instant::now() < deadline, "no traffic");
            std::thread::sleep(Duration::from_millis(1));
        }
        let (mut before, mut at) = (received(link), Instant::now());
        let mut rates = Vec::new();
        for _ in 0..seconds {
            std::thread::sleep(Duration::from_secs(1).saturating_sub(at.elapsed()));
            let (now, elapsed) = (received(link), at.elapsed());
            at += elapsed;
            #[allow(clippy::cast_precision_loss, reason = "a rate to be printed")]
            rates.push((now - before) as f64 * 8.0 / MBIT / elapsed.as_secs_f64());
            before = now;
        }
        rates
    })
}

/// Sends through a container's link for some seconds; returns the rates, and what `ping` reports
/// meanwhile.
fn push(
    node: &Node,
    c1: &Container,
    way: Way,
    seconds: usize,
    protocol: &str,
) -> (Vec<f64>, String) {
    let until = seconds + 2;
    let pings = (seconds * 8).to_string();
    let mut ping = node.lab.command("ping");
    let ping = ping.args(["-i", "0.1", "-c", &pings, "-q", "10.1.0.3"]).stdout(Stdio::piped());
    let client =
        ["-c", "10.1.0.3", "-t", &until.to_string(), "-i", "0", "--connect-timeout", "20000"];
    let mut client: Vec<&str> = client.to_vec();
    client.extend(protocol.split_whitespace());
    if way == Way::Out {
        client.push("-R");
    }
    let mut server = c1.command("iperf3");
    let server = server.args(["-s", "-1", "--forceflush"]).stdout(Stdio::piped()).spawn().unwrap();
    wait_for_listener(c1);
    let mut pusher = node.lab.command("iperf3");
    let pusher = pusher.args(&client).stdout(Stdio::piped()).spawn().unwrap();
    let ping = ping.spawn().unwrap();
    let rates = match way {
        Way::In => rates(c1, "eth0", seconds),
        Way::Out => rates(&node.lab, "cni0", seconds),
    };
    let text = |child: std::process::Child| {
        String::from_utf8_lossy(&child.wait_with_output().unwrap().stdout).into_owned()
    };
    let latency = text(ping);
    let latency = latency.lines().last().unwrap_or_default().to_owned();
    text(pusher);
    text(server);
    (rates, latency)
}

fn wait_for_listener(c1: &Container) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !c1.sh("ss -Hltn sport = 5201").contains("5201") {
        assert!(Instant::now() < deadline, "iperf3 does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn show(rates: &[f64]) -> String {
    rates.iter().fold(String::new(), |mut text, rate| {
        let _ = write!(text, "{rate:.2} ");
        text
    })
}

/// Asserts that no second is more than a tenth above the limit, and that the mean is at least half
/// of it; [`is_full_in_every_second`] asserts more.
#[track_caller]
fn assert_held(what: &str, rates: &[f64], limit: f64) {
    eprintln!("MEASURED bandwidth: {what}, Mbit/s by the second: {}", show(rates));
    for rate in rates {
        assert!(
            *rate <= limit * 1.1,
            "{what}: {rate:.2} Mbit/s in a second, asked {limit}: {rates:?}"
        );
    }
    #[allow(clippy::cast_precision_loss, reason = "five")]
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    assert!(limit * 0.5 <= mean, "{what}: {mean:.2} Mbit/s, asked {limit}: {rates:?}");
}

fn held_each_way(name: &str, keys: &Value, limit: f64) {
    let (node, c1, prev) = host(name);
    run(&node, "ADD", &c1, &prev, keys.clone()).call().ok();
    for way in [Way::In, Way::Out] {
        held(&node, &c1, way, "", limit);
    }
}

#[track_caller]
fn held(node: &Node, c1: &Container, way: Way, protocol: &str, limit: f64) {
    let words = match way {
        Way::In => "to the container",
        Way::Out => "from the container",
    };
    let mut seen = Vec::new();
    let full = (0..ATTEMPTS).any(|_| {
        let (rates, latency) = push(node, c1, way, SECONDS, protocol);
        assert_held(&format!("{limit} Mbit/s {words} {protocol}, {latency}"), &rates, limit);
        let full = is_full_in_every_second(&rates, limit);
        seen.push(rates);
        full
    });
    assert!(full, "{limit} Mbit/s {words}: each time less than asked in a second: {seen:?}");
}

/// How often the lower bound is tried: it needs a machine that can send fast enough all the time.
const ATTEMPTS: usize = 4;

/// Reports whether no second has more than a tenth too little. Only `--full` asks, and not in the
/// virtual machine.
fn is_full_in_every_second(rates: &[f64], limit: f64) -> bool {
    let in_vm = std::env::var_os(feature::VM_VARIABLE).is_some();
    in_vm || !feature::available("full") || rates.iter().all(|rate| limit * 0.9 <= *rate)
}

/// Issue: with a limit of 20 Mbit/s, every second is within 10 %.
#[test]
fn twenty_megabits_are_twenty_megabits_in_every_second() {
    testkit::require!("root", "program:iperf3", "program:ping");
    held_each_way("bw-20", &both(20_000_000, 4_294_967_295), 20.0);
}

/// The configured burst is four seconds' worth: it passes as quickly as the link carries it, then
/// the rate holds.
#[test]
fn a_burst_that_somebody_chose_is_let_through() {
    testkit::require!("root", "program:iperf3", "program:ping");
    let (node, c1, prev) = host("bw-burst");
    let (limit, burst) = (8.0, 32.0);
    run(&node, "ADD", &c1, &prev, both(8_000_000, 32_000_000)).call().ok();
    for (way, words) in [(Way::In, "to the container"), (Way::Out, "from the container")] {
        let (rates, _) = push(&node, &c1, way, SECONDS, "");
        eprintln!(
            "MEASURED bandwidth: 8 Mbit/s and a burst of 32 Mbit {words}, Mbit/s by the second: {}",
            show(&rates)
        );
        assert!(rates.iter().any(|rate| 2.0 * limit < *rate), "no burst {words}: {rates:?}");
        #[allow(clippy::cast_precision_loss, reason = "five")]
        let most = (limit * rates.len() as f64 + burst) * 1.1;
        assert!(rates.iter().sum::<f64>() <= most, "more than asked {words}: {rates:?}");
    }
}

/// What kubelet writes lets the reference send 256 MB at once (kubernetes#90838).
#[test]
fn the_first_second_is_like_the_others() {
    testkit::require!("root", "program:iperf3", "program:ping");
    let runtime = json!({ "runtimeConfig": { "bandwidth": {
        "ingressRate": 10_000_000, "ingressBurst": 2_147_483_647,
        "egressRate": 10_000_000, "egressBurst": 2_147_483_647,
    } } });
    held_each_way("bw-10", &runtime, 10.0);
}

/// UDP does not slow down by itself.
#[test]
fn who_does_not_care_is_held_too() {
    testkit::require!("root", "program:iperf3", "program:ping");
    let (node, c1, prev) = host("bw-udp");
    run(&node, "ADD", &c1, &prev, both(5_000_000, 4_294_967_295)).call().ok();
    for way in [Way::In, Way::Out] {
        held(&node, &c1, way, "-u -b 50M -l 1200", 5.0);
    }
}

/// What a full link does to other traffic, beside the reference's plugin. The test prints this and
/// does not judge it.
#[test]
fn vm_loaded_latency_beside_the_references() {
    testkit::require!(
        "full",
        "root",
        "program:iperf3",
        "program:ping",
        "file:/usr/lib/cni/bandwidth",
        "fq_codel",
        "ifb",
        "tbf"
    );
    for ours in [true, false] {
        let (node, c1, mut prev) = host("bw-lat");
        prev["cniVersion"] = json!("1.0.0");
        let add = run(&node, "ADD", &c1, &prev, both(10_000_000, 10_000_000)).version("1.0.0");
        if ours {
            add.call().ok();
        } else {
            reference(&node, add);
        }
        let who = if ours { "ours" } else { "the reference" };
        for (way, words) in [(Way::In, "to"), (Way::Out, "from")] {
            let (rates, latency) = push(&node, &c1, way, SECONDS_OF_PING, "");
            eprintln!(
                "MEASURED bandwidth: latency under load, {who}, 10 Mbit/s {words} the container: {latency}; \
                 Mbit/s by the second: {}",
                show(&rates)
            );
        }
    }
}

/// CHECK expects the queue only where ADD could make it.
#[test]
fn vm_packets_queue_fairly() {
    testkit::require!("root", "fq_codel", "ifb", "tbf");
    let (node, c1, prev) = host("bw-fair");
    let keys = || both(10_000_000, 10_000_000);
    run(&node, "ADD", &c1, &prev, keys()).call().ok();
    for link in ["vc1", "bwp9b00b9b7c279"] {
        let all = qdiscs(&node, link);
        assert!(all.iter().any(|qdisc| qdisc["kind"] == "fq_codel"), "{all:?}");
    }
    run(&node, "ADD", &c1, &prev, both(20_000_000, 10_000_000)).call().ok();
    run(&node, "ADD", &c1, &prev, keys()).call().ok();
    run(&node, "CHECK", &c1, &prev, keys()).call().silent();
    node.sh("tc qdisc replace dev vc1 parent 1:1 handle 7: bfifo limit 20000");
    run(&node, "CHECK", &c1, &prev, keys())
        .call()
        .fails(104, "queue (fq_codel) of link \"vc1\" is gone");
}
