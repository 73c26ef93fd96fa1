//! Many peers.

use netwright_routing::cluster::{Event, NodeRecord};
use netwright_routing::{Node, Settings, file};

use crate::support::{Machine, by_gateway, ip, net, one_of_many};

/// The larger of the two sizes, whose counts equal those with 50 peers: `NETWRIGHT_FULL` makes it
/// 5,000.
#[test]
fn one_peers_change_costs_the_same_among_many() {
    let full = std::env::var_os("NETWRIGHT_FULL").is_some();
    for count in [50, if full { 5000 } else { 500 }] {
        let mut settings = Settings::new(vec![net("10.128.0.0/9"), net("fd00:244::/48")]);
        settings.service_ranges = vec![net("10.96.0.0/12")];
        let nodes: Vec<Node> = (10..10 + count).map(one_of_many).collect();
        let mut machine = Machine::start(settings, |_| by_gateway());
        // This node's own prefix is in another range.
        let todo = machine.list(&nodes);
        assert_eq!(todo.look_up.len(), usize::from(count) * 2);
        assert_eq!(machine.routing.cluster().used().count(), usize::from(count));
        machine.take_log();
        let mut new = one_of_many(9000);
        let change = |new: &Node, machine: &mut Machine| {
            machine.event(Event::Changed(NodeRecord::whole(new.clone())));
            let counts = (machine.messages, machine.transactions);
            machine.take_log();
            counts
        };
        assert_eq!(change(&new, &mut machine), (8, 1), "{count}");
        assert_eq!(change(&new, &mut machine), (0, 0), "{count}");
        new.underlay.set(ip("198.18.255.1"));
        new.underlay.set(ip("2001:db8::ffff"));
        assert_eq!(change(&new, &mut machine), (2, 1), "{count}");
        new.prefixes = vec![net("10.255.0.0/24"), net("fd00:244:0:ffff::/64")];
        assert_eq!(change(&new, &mut machine), (7, 0), "{count}");
        machine.event(Event::Deleted("node-9000".to_owned()));
        assert_eq!((machine.messages, machine.transactions), (8, 1), "{count}");
        machine.assert_right();
    }
}

/// A list may have at most this many nodes. If a name comes twice, the place in the list decides.
#[test]
fn a_list_of_five_thousand_nodes_is_read() {
    let entry = |n: u16| {
        let node = one_of_many(n);
        let text = |of: Vec<String>| of.join("\", \"");
        let prefixes = text(node.prefixes.iter().map(ToString::to_string).collect());
        let underlay = text(node.underlay.iter().map(|address| address.to_string()).collect());
        let name = node.name;
        format!(
            "[[node]]\nname = \"{name}\"\nprefixes = [\"{prefixes}\"]\nunderlay = [\"{underlay}\"]\n\n"
        )
    };
    let settings = Settings::new(vec![net("10.128.0.0/9"), net("fd00:244::/48")]);
    let mut list: String = (10..5009).map(entry).collect();
    list.push_str(&entry(10));
    assert!(list.len() < file::LONGEST, "{} bytes", list.len());
    let seen = file::read(&list, &settings).unwrap();
    assert_eq!(seen.len(), 4999);
    let wrong: Vec<&str> =
        seen.iter().filter(|seen| seen.node.is_err()).map(|seen| seen.name.as_str()).collect();
    assert_eq!(wrong, ["node-10"]);
    // The lines of such a text do not show where a node begins, so it is parsed as a whole.
    assert_eq!(file::read(&format!("# '''\n{list}"), &settings).unwrap(), seen);
    let spaced = list.replacen("[[node]]", " [[ node ]] # the first", 3);
    assert_eq!(file::read(&spaced, &settings).unwrap(), seen);
    assert_eq!(file::read(&(list + &entry(6000)), &settings).unwrap_err().lines().count(), 1);
}
