//! The output for people.

use expect_test::expect;
use netwright_routing::cluster::{Event, NodeRecord, RecordFault};
use netwright_routing::routing::{Answer, Probe};
use netwright_routing::show::Table;
use netwright_routing::{IpFamily, Node};

use crate::support::{Machine, at, by_gateway, ip, node, on_link, settings, v4_node};

fn machine() -> Machine {
    let mut machine = Machine::start(settings(), |address| {
        if address == ip("192.0.2.2") { on_link() } else { by_gateway() }
    });
    let twin = Node { created: Some(at(5)), underlay: v4_node("d", 4).underlay, ..v4_node("d", 3) };
    machine.list(&[v4_node("b", 2), v4_node("c", 3), twin]);
    let starting = NodeRecord {
        name: "e".to_owned(),
        node: Err(RecordFault::Incomplete("spec.podCIDRs is empty".to_owned())),
        faults: Vec::new(),
    };
    machine.event(Event::Changed(starting));
    let probe = Probe {
        path: Answer::Yes,
        underlay: Answer::Yes,
        rtt_us: Some(412),
        mtu: Some(1500),
        udp: Some(true),
    };
    machine.routing.probed("b", IpFamily::V4, probe, at(30));
    machine
}

#[test]
fn the_table_has_a_row_for_each_peer_and_family() {
    let table = machine().routing.table();
    let json = serde_json::to_string_pretty(&table).unwrap();
    expect![[r#"
        {
          "version": 1,
          "node": "a",
          "prefixes": [
            "10.244.1.0/24",
            "fd00:244:0:1::/64"
          ],
          "phase": "ready",
          "podMtu": 1450,
          "warnings": [],
          "rows": [
            {
              "peer": "b",
              "family": "ipv4",
              "prefixes": [
                "10.244.2.0/24"
              ],
              "path": "direct",
              "because": "192.0.2.2 is on the segment of eth0",
              "state": "probed",
              "since": 1700049600000,
              "mtu": 1500,
              "probe": {
                "path": "yes",
                "underlay": "yes",
                "rttUs": 412,
                "mtu": 1500,
                "udp": true
              },
              "probed": 1700049630000,
              "faults": []
            },
            {
              "peer": "c",
              "family": "ipv4",
              "prefixes": [
                "10.244.3.0/24"
              ],
              "path": "vxlan",
              "because": "both offer it, by way of 192.0.2.3",
              "state": "programmed",
              "since": 1700049600000,
              "mtu": 1450,
              "probe": null,
              "probed": null,
              "faults": []
            },
            {
              "peer": "d",
              "family": null,
              "prefixes": [
                "10.244.3.0/24"
              ],
              "path": "none",
              "because": "",
              "state": {
                "refused": "spec.podCIDRs: 10.244.3.0/24 overlaps 10.244.3.0/24, which is node c's since 12:00 UTC"
              },
              "since": 1700049600000,
              "mtu": null,
              "probe": null,
              "probed": null,
              "faults": []
            },
            {
              "peer": "e",
              "family": null,
              "prefixes": [],
              "path": "none",
              "because": "",
              "state": {
                "incomplete": "spec.podCIDRs is empty"
              },
              "since": 1700049600000,
              "mtu": null,
              "probe": null,
              "probed": null,
              "faults": []
            }
          ]
        }"#]]
    .assert_eq(&json);
    assert_eq!(serde_json::from_str::<Table>(&json).unwrap(), table);
}

#[test]
fn the_way_of_packets_is_explained() {
    let mut machine = machine();
    let mut text = String::new();
    let mut explain = |machine: &Machine, address: &str| {
        let explained = machine.routing.explain(ip(address));
        for sentence in &explained.sentences {
            text.push_str(&format!("{sentence}\n"));
        }
        for passed in &explained.passed_over {
            text.push_str(&format!("  not {}: {}\n", passed.path, passed.why));
        }
        text.push('\n');
    };
    for address in ["10.244.1.9", "10.244.2.9", "10.244.3.9", "10.244.77.9", "203.0.113.9"] {
        explain(&machine, address);
    }
    machine.event(Event::Deleted("c".to_owned()));
    explain(&machine, "10.244.3.9");
    machine.event(Event::Changed(NodeRecord::whole(Node {
        offers: netwright_routing::node::Offers { direct: true, ..Default::default() },
        ..v4_node("f", 6)
    })));
    explain(&machine, "10.244.6.9");
    expect![[r#"
        10.244.1.9 is in 10.244.1.0/24, a prefix of this node: its pod is here

        10.244.2.9 is in 10.244.2.0/24, a prefix of node b
        packets go by path direct: 192.0.2.2 is on the segment of eth0
        1500 bytes fit
        it has answered by this path

        10.244.3.9 is in 10.244.3.0/24, a prefix of node c
        packets go by path vxlan: both offer it, by way of 192.0.2.3
        1450 bytes fit
          not direct: 192.0.2.3 is behind a gateway on eth0

        10.244.77.9 is in the cluster's range 10.244.0.0/16, and in no prefix of a node that is used: packets are answered with "unreachable"

        203.0.113.9 is not a pod's: it is in none of the cluster's ranges, and packets follow the other routes of this node

        10.244.3.9 is in 10.244.3.0/24, a prefix of node d
        packets go by path vxlan: both offer it, by way of 192.0.2.4
        1450 bytes fit
          not direct: 192.0.2.4 is behind a gateway on eth0

        10.244.6.9 is in 10.244.6.0/24, a prefix of node f
        packets do not go there: 192.0.2.6 is behind a gateway on eth0; f does not offer VXLAN
          not direct: 192.0.2.6 is behind a gateway on eth0
          not vxlan: f does not offer VXLAN
          not vxlan6: f does not offer VXLAN

    "#]].assert_eq(&text);
}

#[test]
fn what_somebody_should_look_at_comes_first() {
    let mut machine = Machine::start(settings(), |_| on_link());
    let nodes: Vec<Node> = (2..12).map(|n| node(&format!("n{n}"), n)).collect();
    machine.list(&nodes);
    machine.list(&nodes[..1]);
    machine.event(Event::Silent);
    assert_eq!(
        machine.routing.table().warnings,
        [
            "held: the source lists 1 of 10 nodes; nothing is removed until 12:10 UTC, or until \
             `netwright routes accept`",
            "the source is silent since 12:00 UTC; peers kept: 10",
        ]
    );
    assert_eq!(machine.routing.table().rows.len(), 20);
}
