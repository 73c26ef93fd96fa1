//! With many attachments on the host: our plugins' time, beside the kernel's cost for the same.

use std::time::{Duration, Instant};

use kernel::netns::Netns;
use kernel::route::{AddressOptions, Change, LinkKind, LinkSet, NewLink, RouteSocket, VethPeer};
use testkit::{Container, Lab, Place as _};

use crate::spread::Spread;
use crate::subject::{Bench, Subject, ports_of};

/// How many ports each bridge gets: the kernel's limit is 1,023.
const PER_BRIDGE: usize = 900;
const ROUNDS: usize = 21;
/// The pause between two measurements, so that the kernel's late work for one is not charged to the
/// next.
const SETTLE: Duration = Duration::from_millis(100);

pub(crate) fn measure(lab: &Lab, ours: &Subject, sizes: &[usize]) {
    println!(
        "\n| held on the host | ADD, ms | instructions | DEL, ms | instructions | the kernel alone: make, ms | delete, ms |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut held: Vec<Container> = Vec::new();
    for &size in sizes {
        while held.len() < size {
            let container = lab.container(&format!("held{}", held.len()));
            let bench = Bench::new(lab, ours, &ports_of(held.len() / PER_BRIDGE));
            bench.add(&container, 0);
            held.push(container);
        }
        // The kernel is busy with all those namespaces for a while.
        std::thread::sleep(Duration::from_secs(5));
        let case = ports_of(size.saturating_sub(1) / PER_BRIDGE);
        let bench = Bench::new(lab, ours, &case);
        let mut times: [Vec<Duration>; 4] = Default::default();
        let mut own = [0; 2];
        for round in 0..ROUNDS {
            let container = lab.container(&format!("one{round}"));
            std::thread::sleep(SETTLE);
            let attached = bench.add(&container, 0);
            std::thread::sleep(SETTLE);
            let del = bench.again("DEL", &container, &attached);
            std::thread::sleep(SETTLE);
            let [make, delete] = lab.enter(|| bare(&container, &case.bridge(ours)));
            for (all, one) in times.iter_mut().zip([attached.took, del, make, delete]) {
                all.push(one);
            }
            if round == 0 {
                own = ["ADD", "DEL"].map(|verb| bench.instructions(verb, &container));
            }
        }
        let [add, del, make, delete] = times.map(|times| Spread::of(&times).unwrap_or_default());
        let [add_own, del_own] = own;
        println!("| {size} | {add} | {add_own} | {del} | {del_own} | {make} | {delete} |");
    }
}

/// A pair, one end a port of the bridge, the other in the container with an address: the times to
/// make it and to delete it.
fn bare(container: &Container, bridge: &str) -> [Duration; 2] {
    let netns = Netns::open(&container.netns()).expect("the container is there");
    let mut host = RouteSocket::open().expect("netlink can be opened");
    let bridge = host.link_by_name(bridge).expect("links can be asked for").expect("a bridge");
    let peer = VethPeer { netns: Some(netns.clone()), ..VethPeer::new("bare0") };
    let pair = NewLink {
        master: Some(bridge.index),
        no_own_ipv6: true,
        ..NewLink::new("bare1", LinkKind::Veth(peer))
    };
    let started = Instant::now();
    let made = host.create_link(&pair).expect("a pair");
    let mut inside = RouteSocket::open_in(&netns).expect("netlink can be opened");
    let ifindex = made.peer_index.expect("a pair has two ends");
    let address = "10.255.0.2/24".parse().expect("an address");
    let changes = [
        Change::AddAddress { ifindex, address, options: AddressOptions::default() },
        Change::SetLink { ifindex, set: LinkSet::default().up(true) },
    ];
    inside.apply(&changes).expect("an address");
    host.apply(&[Change::SetLink { ifindex: made.index, set: LinkSet::default().up(true) }])
        .expect("up");
    let make = started.elapsed();
    std::thread::sleep(SETTLE);
    let started = Instant::now();
    host.delete_link(made.index).expect("the pair is there");
    [make, started.elapsed()]
}
