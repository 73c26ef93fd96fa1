//! Many peers.

use netwright_routing::cluster::{Event, Seen};
use netwright_routing::{Node, Settings};

use crate::support::{Machine, by_gateway, net, one_of_many};

/// The same counts at 50 and at many: `NETWRIGHT_FULL` makes it 5,000.
#[test]
fn one_peers_change_costs_the_same_among_many() {
    let full = std::env::var_os("NETWRIGHT_FULL").is_some();
    for count in [50, if full { 5000 } else { 500 }] {
        let mut settings = Settings::new(vec![net("10.128.0.0/9"), net("fd00:244::/48")]);
        settings.service_ranges = vec![net("10.96.0.0/12")];
        let nodes: Vec<Node> = (10..10 + count).map(one_of_many).collect();
        let mut machine = Machine::start(settings, |_| by_gateway());
        // This node's own prefix is of another range.
        let todo = machine.list(&nodes);
        assert_eq!(todo.look_up.len(), usize::from(count) * 2);
        assert_eq!(machine.routing.cluster().used().count(), usize::from(count));
        machine.take_log();
        let new = one_of_many(9000);
        machine.event(Event::Changed(Seen::whole(new.clone())));
        assert_eq!(machine.messages, 8, "{count}");
        machine.take_log();
        machine.event(Event::Changed(Seen::whole(new)));
        assert_eq!(machine.messages, 0, "{count}");
        machine.event(Event::Deleted("node-9000".to_owned()));
        assert_eq!(machine.messages, 8, "{count}");
        machine.assert_right();
    }
}
