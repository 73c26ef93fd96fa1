//! Neighbour discovery on a bridge: closed pods find each other's hardware addresses, and nothing
//! more.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use firewall::pods::{self, Logging, PodsTable};
use netwright_firewall as firewall;
use testkit::probe::{self, Ends, Station};
use testkit::{Container, Place as _, wait_until};

use crate::support::Node;

/// How long a packet may be on its way on a busy machine.
const DEADLINE: Duration = testkit::TIMEOUT;
/// The number in all packets of this test.
const ID: u16 = 7;

/// Types of ICMPv6, and hop limits. The last ones are those of neighbours (RFC 4861 §7.1).
const SENT: [(u8, u8); 7] =
    [(133, 255), (134, 255), (137, 255), (135, 64), (136, 254), (135, 255), (136, 255)];

/// Two containers, and the packets between them.
struct Way<'c> {
    from: &'c Container,
    stations: [Station; 2],
    ends: Ends,
}

impl Way<'_> {
    /// Sends all, and returns what arrives.
    fn arriving(&self) -> BTreeSet<(u8, u8)> {
        let [from, to] = &self.stations;
        for (kind, hop_limit) in SENT {
            let mut packet = self.ends.icmp6(kind, ID);
            packet.bytes[7] = hop_limit;
            from.send(&packet);
        }
        let (mut arrived, last) = (BTreeSet::new(), SENT[SENT.len() - 1]);
        while !arrived.contains(&last) {
            assert!(probe::wait(&to.descriptors(), DEADLINE), "{last:?} does not arrive");
            to.heard(|bytes| arrived.extend(self.read(bytes)));
        }
        arrived
    }

    /// Returns the type and the hop limit of a packet of this test.
    fn read(&self, bytes: &[u8]) -> Option<(u8, u8)> {
        let (header, message) = bytes.split_at_checked(40)?;
        let (IpAddr::V6(source), IpAddr::V6(destination)) =
            (self.ends.source, self.ends.destination)
        else {
            return None;
        };
        let ends = [source.octets(), destination.octets()].concat();
        let is_ours = header[6] == 58 && header[8..] == ends[..];
        let id = message.get(4..6)?;
        (is_ours && id == ID.to_be_bytes()).then(|| (message[0], header[7]))
    }

    /// Repeats neighbour discovery until it succeeds.
    fn finds(&self) {
        let to = self.ends.destination;
        self.from.sh("ip -6 neigh flush all");
        wait_until("the neighbour", || {
            let asked = format!("ping -n -q -c 1 -W 0.1 {to} >/dev/null; ip -6 neigh show {to}");
            self.from.sh(&asked).contains("lladdr")
        });
    }
}

/// Between ports of a bridge nothing is routed, so neighbour discovery has the largest hop limit.
/// Other packets of such types are judged like all packets.
#[test]
fn closed_pods_on_a_bridge_find_their_neighbours_and_hear_nothing_else() {
    testkit::require!("root");
    let node = Node::new("podsneighbours");
    node.br_netfilter(true);
    let mut table = node.lab.enter(|| PodsTable::open(Logging::default()).unwrap());
    let [source, destination] = ["fd00:1::2", "fd00:1::3"].map(|text| text.parse().unwrap());
    let way = Way {
        from: &node.c1,
        stations: [Station::at(&node.c1), Station::at(&node.c2)],
        ends: Ends { source, destination },
    };
    way.finds();
    assert_eq!(way.arriving(), BTreeSet::from(SENT));
    for closed in [source, destination] {
        pods::close(&mut table, &[closed]).unwrap();
        assert_eq!(way.arriving(), BTreeSet::from([(135, 255), (136, 255)]), "{closed}");
        pods::forget(&mut table, &[closed]).unwrap();
    }
    pods::close(&mut table, &[source, destination]).unwrap();
    way.finds();
    assert_eq!(way.arriving(), BTreeSet::from([(135, 255), (136, 255)]));
}
