//! For packets a change is one step: packets that are denied before and after never pass in
//! between, and packets that are allowed before and after always pass.

use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netwright_firewall as firewall;
use policy::{Change, Compiler, Program, World};
use serde_json::{Value, json};
use testkit::probe::{self, Ends, Station};

use super::clusters::support::{cluster, namespace, network, node, pod};
use super::clusters::{NODE, of_pod};
use super::lab::{OWN, PodLab, Site};

/// The number of swaps in every run, with `--full`, and in a run that tries all.
const SOME: usize = 500;
const MANY: usize = 4_000;
const ALL: usize = 20_000;
const DEADLINE: Duration = testkit::TIMEOUT;
const ALLOWED: u16 = 53;
const DENIED: u16 = 54;

/// Two programs that allow pod 1 to reach port 53 of pod 2 and nothing else, each in its own way.
fn programs() -> [Program; 2] {
    let with = |policies: Vec<Change>| {
        let mut objects: Vec<Change> =
            vec![node(NODE, json!({}), &OWN).into(), namespace("shop", json!({})).into()];
        for number in [1, 2] {
            let [v4, v6] = of_pod(number).map(|address| address.to_string());
            let name = format!("shop/pod-{number}");
            let labels = json!({"app": format!("pod-{number}")});
            objects.push(pod(&name, NODE, labels, &[&v4, &v6]).into());
        }
        objects.extend(policies);
        Compiler::new(World::of(None, objects), NODE).program().clone()
    };
    let app = |number: u8| json!({"matchLabels": {"app": format!("pod-{number}")}});
    let udp = json!([{"protocol": "UDP", "port": ALLOWED}]);
    let ingress = |name: &str, from: Value| -> Change {
        let rules = json!([{"from": from, "ports": udp}]);
        network(name, json!({"podSelector": app(2), "ingress": rules})).into()
    };
    let first = with(vec![ingress("shop/by-label", json!([{"podSelector": app(1)}]))]);
    let block = json!([{"ipBlock": {"cidr": "10.244.1.1/32"}}]);
    let second = with(vec![
        ingress("shop/by-block", block),
        network("shop/nothing", json!({"podSelector": app(2), "ingress": []})).into(),
        cluster(
            "admin",
            json!({
                "tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
                "ingress": [{"action": "Deny", "from": [{"namespaces": {}}],
                    "protocols": [{"udp": {"destinationPort": {"number": DENIED}}}]}],
            }),
        )
        .into(),
    ]);
    [first, second]
}

#[test]
fn packets_meet_one_program_or_the_other() {
    testkit::require!("root");
    let swaps = if super::has_time() { testkit::share::count(ALL, MANY) } else { SOME };
    let mut lab = PodLab::new("podsswap");
    let programs = programs();
    let steps = [
        Program::difference(&programs[0], &programs[1]),
        Program::difference(&programs[1], &programs[0]),
    ];
    lab.table.put(&programs[0]).unwrap();
    let sender = Station::at(&lab.pods[0]);
    let stop = AtomicBool::new(false);
    let ends = Ends { source: of_pod(1)[0], destination: of_pod(2)[0] };
    let (mut arrived, mut denied) = (0_u64, 0_u64);
    let sent = std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let mut sent = 0_u64;
            // Each packet is a connection of its own. The denied port comes first, then the other.
            for port in (1024..=u16::MAX).cycle() {
                sender.send(&ends.udp(port, DENIED));
                sender.send(&ends.udp(port, ALLOWED));
                sent += 1;
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
            sent
        });
        let stops = StopGuard(&stop);
        for number in 0..swaps {
            lab.table.apply(&steps[number % 2]).unwrap();
            // At least one packet meets each program.
            let station = lab.station(Site::Pod(2));
            assert!(probe::wait(&[station.descriptors()[0]], DEADLINE), "nothing passes");
            count(station, ends, &mut arrived);
            denied += heard(&mut lab);
        }
        drop(stops);
        flood.join().unwrap()
    });
    // The test waits for packets that are still on their way.
    while arrived < sent {
        let station = lab.station(Site::Pod(2));
        assert!(probe::wait(&[station.descriptors()[0]], DEADLINE), "{arrived} of {sent}");
        count(station, ends, &mut arrived);
    }
    while denied < sent {
        assert!(probe::wait(&[lab.log.as_fd()], DEADLINE), "{denied} of {sent} were dropped");
        denied += heard(&mut lab);
    }
    assert_eq!((arrived, denied), (sent, sent));
    println!("{sent} packets of each kind met {swaps} swaps");
}

/// Ends the flood, also when the test fails.
struct StopGuard<'a>(&'a AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Counts the packets that arrived, and asserts that no denied one did.
fn count(station: &Station, ends: Ends, arrived: &mut u64) {
    station.heard(|bytes| {
        let Some(packet) = kernel::nflog::Packet::read(bytes) else { return };
        let from: IpAddr = packet.source;
        if from == ends.source && packet.protocol == 17 {
            assert_ne!(packet.ports.map(|(_, to)| to), Some(DENIED), "{packet}");
            *arrived += 1;
        }
    });
}

fn heard(lab: &mut PodLab) -> u64 {
    let heard = lab.log.heard().unwrap();
    assert_eq!((heard.lost, heard.overrun), (0, false));
    for logged in &heard.packets {
        let packet = logged.packet().unwrap();
        assert_eq!(packet.ports.map(|(_, to)| to), Some(DENIED), "{packet}");
        assert_eq!(logged.prefix, firewall::pods::log_prefix(policy::Direction::Ingress));
    }
    u64::try_from(heard.packets.len()).unwrap()
}
