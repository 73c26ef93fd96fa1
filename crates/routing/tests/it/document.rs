//! The last known peers on the disk.

use netwright_routing::document::{self, Document};
use netwright_routing::settings::{ExistingTunnel, OwnNode};
use netwright_routing::{MacAddr, Routing};

use crate::support::{Machine, NOW, Random, found, node, on_link, own, settings};

fn written() -> String {
    let mut machine = Machine::start(settings(), |_| on_link());
    machine.list(&[node("b", 2), node("c", 3)]);
    machine.routing.document()
}

#[test]
fn the_last_known_peers_are_programmed_before_anybody_was_asked() {
    let document = document::read(written().as_bytes()).unwrap();
    assert_eq!(document.own.as_ref().unwrap().name, "a");
    let macs = own(&settings()).macs;
    assert_eq!((document.macs.v4, document.macs.v6), (Some(macs.v4), Some(macs.v6)));
    let names: Vec<&str> = document.peers.iter().map(|(node, _)| node.name.as_str()).collect();
    assert_eq!(names, ["b", "c"]);

    let mut machine = Machine::start(settings(), |_| on_link());
    let todo = machine.routing.restore(document, NOW);
    machine.carry_out(todo);
    assert!(machine.kernel.end(node("b", 2).prefixes[0]).is_some());
    machine.assert_right();
    // The first complete list removes peers that are gone.
    machine.list(&[node("c", 3)]);
    assert!(machine.kernel.end(node("b", 2).prefixes[0]).is_none());
    assert!(machine.kernel.end(node("c", 3).prefixes[0]).is_some());
    machine.assert_right();
}

/// Others do not know the hardware address of a tunnel for which this node has no address just then,
/// and the UID from which it follows may be another one by now.
#[test]
fn a_tunnels_hardware_address_outlives_an_address_that_goes() {
    let mac = MacAddr([2, 0, 0, 0, 0, 9]);
    let tunnel = ExistingTunnel { name: "nw-vxlan6".into(), mac: Some(mac) };
    let mut found = found();
    found.uplinks.v6 = None;
    found.taken_over.v6 = Some(tunnel);
    let own = OwnNode::new(&settings(), found);
    assert_eq!(own.node.offers.vxlan.unwrap().mac6, None);
    assert_eq!(own.macs.v6, mac);
}

#[test]
fn a_node_without_a_prefix_keeps_no_record_of_itself() {
    let routing = Routing::new(settings(), "a");
    assert_eq!(document::read(routing.document().as_bytes()), Ok(Document::default()));
    assert_eq!(own(&settings()).node.name, "a");
}

#[test]
fn any_damage_is_found_and_nothing_is_taken() {
    let good = written().into_bytes();
    let mut random = Random(7);
    for round in 0..1000 {
        let mut bad = good.clone();
        let place = random.below(bad.len());
        match round % 4 {
            0 => bad.truncate(place),
            1 => bad[place] ^= 1 << random.below(8),
            2 => drop(bad.drain(place..(place + 9).min(good.len()))),
            _ => bad.insert(place, b"0\"{},:"[random.below(6)]),
        }
        if bad == good {
            continue;
        }
        // A change of white space, or of the name of an unknown key, is not a damage.
        if let Ok(read) = document::read(&bad) {
            assert_eq!(Ok(read), document::read(&good), "{}", String::from_utf8_lossy(&bad));
        }
    }
    for garbage in [&b""[..], b"null", b"[]", b"{}", b"\xff\xfe", br#"{"version":2}"#] {
        assert!(document::read(garbage).is_err());
    }
    let newer = String::from_utf8(good).unwrap().replacen("\"version\":1", "\"version\":2", 1);
    assert_eq!(
        document::read(newer.as_bytes()).unwrap_err().to_string(),
        "the last known peers cannot be read: it has version 2"
    );
}
