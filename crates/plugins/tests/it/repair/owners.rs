//! Whose things a repair leaves alone, and what it cannot put back.

use serde_json::json;
use testkit::Place;

use super::Chain;
use crate::support::Node;

fn chain<'n>(node: &'n Node, container: &'n testkit::Container) -> Chain<'n> {
    let ipam = json!({
        "type": "host-local", "dataDir": node.dir("ipam"), "ranges": [[{ "subnet": "10.1.0.0/24" }]],
    });
    let ports = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
    let plugins = vec![
        ("bridge", json!({ "isDefaultGateway": true, "ipMasq": true, "ipam": ipam })),
        ("portmap", json!({ "runtimeConfig": { "portMappings": ports } })),
    ];
    Chain::add(node, container, plugins)
}

/// An address that another container has by now is not given to the first again.
#[test]
fn an_address_that_is_reserved_for_another_is_not_put_back() {
    testkit::require!("root");
    let node = Node::new("owner-address");
    let c1 = node.container("c1");
    let chain = chain(&node, &c1);
    c1.sh("ip addr del 10.1.0.2/24 dev eth0");
    let reservation = node.dir("ipam").join("n/10.1.0.2");
    // As whoever reserves it makes it: the file of before would keep the mark of whose it is.
    std::fs::remove_file(&reservation).unwrap();
    std::fs::write(&reservation, "other\r\neth0").unwrap();
    let (_, left) = chain.repair();
    assert!(left[0].contains("Failed to find address added by container c1"), "{left:?}");
    assert!(!c1.sh("ip addr show dev eth0").contains("10.1.0.2"));
    assert_eq!(std::fs::read_to_string(reservation).unwrap(), "other\r\neth0");
}

/// A host port that another living container has by now stays with it.
#[test]
fn a_host_port_that_another_has_is_not_taken_back() {
    testkit::require!("root");
    let node = Node::new("owner-port");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let first = chain(&node, &c1);
    node.sh("nft flush map inet netwright hostports4");
    let _second = chain(&node, &c2);
    let before = node.sh("nft list map inet netwright hostports4");
    let (_, left) = first.repair();
    assert!(left.iter().any(|line| line.contains("8080")), "{left:?}");
    assert_eq!(node.sh("nft list map inet netwright hostports4"), before);
}

/// A route of the host's that leads elsewhere by now, an address that is in the way, a bridge that is not ours.
#[test]
fn what_others_put_in_the_way_stays() {
    testkit::require!("root");
    let node = Node::new("owner-others");
    node.sh("ip link add cni0 type bridge && ip link set cni0 up");
    let c1 = node.container("c1");
    let chain = chain(&node, &c1);
    let link = || node.sh("ip -br link show cni0");
    // Its address is the administrator's to change.
    node.sh("ip link set cni0 address 02:00:00:00:00:99; ip link set cni0 promisc on");
    let before = link();
    let (_, left) = chain.repair();
    assert!(left.iter().any(|line| line.contains("02:00:00:00:00:99")), "{left:?}");
    assert_eq!(link(), before);
    // Another address of its own.
    node.sh("ip addr flush dev cni0; ip addr add 10.9.0.1/24 dev cni0");
    let (_, left) = chain.repair();
    assert!(left[0].contains("10.1.0.1") || left[0].contains("02:00:00:00:00:99"), "{left:?}");
    let addresses = node.sh("ip -br addr show dev cni0");
    assert!(addresses.contains("10.9.0.1/24") && !addresses.contains("10.1.0.1"), "{addresses}");
    // The bridge is gone, and was not ours.
    node.sh("ip link del cni0");
    let (_, left) = chain.repair();
    assert!(left[0].contains("bridge \"cni0\" is gone"), "{left:?}");
}

/// An interface that is gone, or another's link under its name, needs another ADD.
#[test]
fn an_interface_that_is_gone_is_reported() {
    testkit::require!("root");
    let node = Node::new("owner-gone");
    let c1 = node.container("c1");
    let chain = chain(&node, &c1);
    c1.sh("ip link del eth0; ip link add eth0 type veth peer name far");
    let (_, left) = chain.repair();
    assert!(left.iter().any(|line| line.contains("has MAC address")), "{left:?}");
    assert!(
        !c1.sh("ip -br addr show dev eth0").contains("10.1.0.2"),
        "another's link is left alone"
    );
    c1.sh("ip link del eth0");
    let (_, left) = chain.repair();
    assert!(left.iter().any(|line| line.contains("\"eth0\" is gone")), "{left:?}");
}

/// What another's plugin made is checked, and his to repair.
#[test]
fn what_we_have_no_record_of_is_only_checked() {
    testkit::require!("root");
    let node = Node::new("owner-record");
    let c1 = node.container("c1");
    let chain = chain(&node, &c1);
    std::fs::remove_dir_all(node.roots.run.join("owners")).unwrap();
    node.sh("nft flush ruleset");
    let (put_back, left) = chain.repair();
    assert_eq!((put_back.len(), left.is_empty()), (0, false), "{put_back:?}");
    assert_eq!(node.sh("nft list ruleset"), "");
}

/// Repairs and removals of many attachments at once: nothing is put back behind a DEL.
#[test]
fn a_repair_never_puts_back_behind_a_del() {
    testkit::require!("root");
    let node = Node::new("owner-race");
    let containers: Vec<_> = (1..=8).map(|n| node.container(&format!("c{n}"))).collect();
    let before = testkit::Snapshot::take(&node.lab);
    for round in 0..3 {
        let ipam = json!({
            "type": "host-local", "dataDir": node.dir("ipam"), "ranges": [[{ "subnet": "10.1.0.0/24" }]],
        });
        let chains: Vec<_> = containers
            .iter()
            .enumerate()
            .map(|(number, container)| {
                let ports =
                    json!([{ "hostPort": 8080 + number, "containerPort": 80, "protocol": "tcp" }]);
                let plugins = vec![
                    (
                        "bridge",
                        json!({ "isDefaultGateway": true, "ipMasq": true, "ipam": ipam.clone() }),
                    ),
                    ("portmap", json!({ "runtimeConfig": { "portMappings": ports } })),
                ];
                Chain::add(&node, container, plugins)
            })
            .collect();
        std::thread::scope(|scope| {
            for chain in &chains {
                scope.spawn(move || {
                    for _ in 0..5 {
                        chain.repair();
                    }
                });
            }
            scope.spawn(|| node.sh("for i in 1 2 3 4 5 6; do nft flush ruleset; done"));
            for chain in &chains {
                scope.spawn(move || chain.del());
            }
        });
        let rules = node.sh("nft list ruleset");
        assert!(!rules.contains("elements"), "round {round}: {rules}");
        let owners = std::fs::read_dir(node.roots.run.join("owners")).map_or(0, Iterator::count);
        assert_eq!(owners, 0, "round {round}");
        node.sh("nft flush ruleset");
    }
    before.assert_same(&testkit::Snapshot::take(&node.lab));
}
