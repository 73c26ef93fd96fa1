//! Two containers that share a segment do not get the same address, nor the host's own.

mod beside;
mod segments;
mod told;

use serde_json::{Value, json};
use testkit::traffic::assert_pings;
use testkit::{Container, Place, Snapshot};

use crate::support::fixed;
use crate::support::{Answer, Node, Run};

/// One address, with a gateway where there is one.
fn one(address: &str, gateway: Option<&str>) -> Value {
    let mut ip = json!({ "address": address });
    if let Some(gateway) = gateway {
        ip["gateway"] = json!(gateway);
    }
    json!({ "ips": [ip] })
}

fn node(name: &str, answer: &Value) -> Node {
    let node = Node::new(name);
    fixed::answers(&node, answer);
    node
}

fn run<'n>(node: &'n Node, verb: &str, to: &Container, keys: &Value) -> Run<'n> {
    let plugin = keys["type"].as_str().unwrap();
    node.run(plugin, verb).to(to).config(fixed::ipam()).config(keys.clone())
}

fn add(node: &Node, to: &Container, keys: &Value) -> Answer {
    run(node, "ADD", to, keys).call()
}

fn bridge(name: &str) -> Value {
    json!({ "type": "bridge", "bridge": name })
}

fn macvlan(parent: &str) -> Value {
    json!({ "type": "macvlan", "master": parent })
}

fn cable(node: &Node, name: &str, address: &str) {
    node.sh(&format!(
        "ip link add {name} type veth peer name {name}x && ip link set {name}x up && \
         ip link set {name} up && ip addr add {address} dev {name}"
    ));
}

/// ADD of the second container fails, names the first and changes nothing, until the first has
/// left.
fn the_second_is_refused(node: &Node, keys: &Value, other: &Value) {
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let result = add(node, &c1, keys).ok();
    let before = Snapshot::take(&node.lab);
    let again = run(node, "ADD", &c2, other).network("other").call();
    again.fails(108, "address 10.1.0.2 is taken");
    run(node, "ADD", &c2, other).network("other").call().fails(108, "n/c1/eth0 has it");
    run(node, "DEL", &c2, other).network("other").call().silent();
    before.assert_same(&Snapshot::take(&node.lab));
    // The first keeps the address through the other's ADD and DEL.
    run(node, "CHECK", &c1, keys).prev(&result).call().silent();
    run(node, "ADD", &c2, other).network("other").call().fails(108, "n/c1/eth0 has it");
    run(node, "DEL", &c1, keys).call().silent();
    run(node, "ADD", &c2, other).network("other").call().ok();
    run(node, "DEL", &c2, other).network("other").call().silent();
    assert_eq!(node.sh(&format!("ls {}/claims", node.roots.run.display())), "");
}

#[test]
fn one_bridge_has_an_address_once() {
    testkit::require!("root");
    let node = node("claims-bridge", &one("10.1.0.2/24", None));
    the_second_is_refused(&node, &bridge("br0"), &bridge("br0"));
}

#[test]
fn one_parent_has_an_address_once() {
    testkit::require!("root");
    let node = node("claims-parent", &one("10.1.0.2/24", None));
    cable(&node, "p0", "192.0.2.1/24");
    the_second_is_refused(&node, &macvlan("p0"), &macvlan("p0"));
}

#[test]
fn the_host_routes_to_an_address_once() {
    testkit::require!("root");
    let node = node("claims-routes", &one("10.1.0.2/24", Some("10.1.0.1")));
    the_second_is_refused(&node, &json!({ "type": "ptp" }), &routed("br1"));
}

fn routed(name: &str) -> Value {
    let mut keys = bridge(name);
    keys["isGateway"] = json!(true);
    keys
}

/// The host would have two routes to the subnet, and reach the containers of one bridge alone.
#[test]
fn the_host_routes_to_a_subnet_by_one_bridge() {
    testkit::require!("root");
    let node = node("claims-subnet", &one("10.1.0.2/24", Some("10.1.0.1")));
    let (c1, c2, c3) = (node.container("c1"), node.container("c2"), node.container("c3"));
    let other =
        |verb, to: &Container, keys: &Value| run(&node, verb, to, keys).network("other").call();
    add(&node, &c1, &routed("br0")).ok();
    let before = Snapshot::take(&node.lab);
    fixed::answers(&node, &one("10.1.0.3/24", Some("10.1.0.1")));
    let words = "address 10.1.0.3 is of subnet 10.1.0.0/24, which is on the host's link \"br0\"";
    other("ADD", &c2, &routed("br1")).fails(108, words);
    other("ADD", &c2, &routed("br1")).fails(108, "give the network a subnet of its own");
    before.assert_same(&Snapshot::take(&node.lab));
    // The same bridge, one without a gateway, and pairs with a route each are in nobody's way.
    for keys in [routed("br0"), bridge("br1"), json!({ "type": "ptp" })] {
        other("ADD", &c2, &keys).ok();
        other("DEL", &c2, &keys).silent();
    }
    // The network may say that it is meant. Once it has a container, another one changes nothing.
    let mut meant = routed("br1");
    meant["allowAddressConflict"] = json!(true);
    other("ADD", &c2, &meant).ok();
    fixed::answers(&node, &one("10.1.0.4/24", Some("10.1.0.1")));
    other("ADD", &c3, &routed("br1")).ok();
}

#[test]
fn networks_that_never_meet_have_equal_addresses() {
    testkit::require!("root");
    let node = node("claims-apart", &one("10.1.0.2/24", None));
    cable(&node, "p0", "192.0.2.1/24");
    cable(&node, "p1", "192.0.2.2/24");
    let networks = [bridge("br0"), bridge("br1"), macvlan("p0"), macvlan("p1")];
    let mut containers = Vec::new();
    for (keys, number) in networks.iter().zip(1..) {
        let container = node.container(&format!("c{number}"));
        add(&node, &container, keys).ok();
        containers.push(container);
    }
}

/// The container's process may have ended, or its namespace's name may have been removed, while
/// other processes live in the namespace.
#[test]
fn a_container_that_lost_only_its_path_keeps_its_address() {
    testkit::require!("root");
    let node = node("claims-path", &one("10.1.0.2/24", None));
    let (mut c1, c2) = (node.container("c1"), node.container("c2"));
    c1.pid();
    add(&node, &c1, &bridge("br0")).ok();
    c1.delete();
    add(&node, &c2, &bridge("br0")).fails(108, "n/c1/eth0 has it");
    drop(c1);
    add(&node, &c2, &bridge("br0")).ok();
}

#[test]
fn a_dead_container_and_a_lost_del_are_in_nobodys_way() {
    testkit::require!("root");
    let node = node("claims-dead", &one("10.1.0.2/24", None));
    let (c1, c2, c3) = (node.container("c1"), node.container("c2"), node.container("c3"));
    add(&node, &c1, &bridge("br0")).ok();
    drop(c1);
    add(&node, &c2, &bridge("br0")).ok();
    // The dead container's DEL comes late, and takes nothing from the living one.
    node.run("bridge", "DEL").id("c1").config(bridge("br0")).call().silent();
    add(&node, &c3, &bridge("br0")).fails(108, "n/c2/eth0 has it");
    // Everything that we know of the holder is lost, so nothing can show that it lives.
    node.sh(&format!("rm -r {}/owners", node.roots.run.display()));
    add(&node, &c3, &bridge("br0")).ok();
}

/// An unreadable record may belong to a living container. If a whole folder is lost, the kernel's
/// routes still show the address.
#[test]
fn a_garbled_record_keeps_its_address_and_a_route_its_own() {
    testkit::require!("root");
    let node = node("claims-garbled", &one("10.1.0.2/24", Some("10.1.0.1")));
    let run_dir = node.roots.run.display();
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    add(&node, &c1, &bridge("br0")).ok();
    node.sh(&format!("for record in {run_dir}/owners/*/bridge*; do echo '{{' >$record; done"));
    add(&node, &c2, &bridge("br0")).fails(108, "is taken on \"br0\": the owner of ");
    run(&node, "DEL", &c1, &bridge("br0")).call().silent();
    let ptp = json!({ "type": "ptp" });
    add(&node, &c1, &ptp).ok();
    node.sh(&format!("rm -r {run_dir}"));
    add(&node, &c2, &ptp).fails(108, "the host has a route to 10.1.0.2 already");
}

#[test]
fn an_address_is_shared_where_the_network_says_so() {
    testkit::require!("root");
    let node = node("claims-shared", &one("10.1.0.2/24", None));
    let (c1, c2, c3) = (node.container("c1"), node.container("c2"), node.container("c3"));
    add(&node, &c1, &bridge("br0")).ok();
    let mut shared = bridge("br0");
    shared["allowAddressConflict"] = json!(true);
    add(&node, &c2, &shared).ok();
    run(&node, "DEL", &c2, &shared).call().silent();
    add(&node, &c3, &bridge("br0")).fails(108, "n/c1/eth0 has it");
}

/// All attachments that share an address hold it: no other gets it until the last of them has left.
#[test]
fn those_who_share_an_address_all_hold_it() {
    testkit::require!("root");
    let node = node("claims-sharers", &one("10.1.0.2/24", None));
    let [c1, c2, c3, c4] = ["c1", "c2", "c3", "c4"].map(|name| node.container(name));
    let mut shared = bridge("br0");
    shared["allowAddressConflict"] = json!(true);
    add(&node, &c1, &bridge("br0")).ok();
    add(&node, &c2, &shared).ok();
    add(&node, &c3, &shared).ok();
    // The first leaves by DEL; another dies.
    run(&node, "DEL", &c1, &bridge("br0")).call().silent();
    add(&node, &c4, &bridge("br0")).fails(108, "n/c2/eth0 has it");
    drop(c2);
    add(&node, &c4, &bridge("br0")).fails(108, "n/c3/eth0 has it");
    // Even without its record, an attachment releases only its own share.
    node.run("bridge", "DEL").id("c2").config(shared.clone()).call().silent();
    add(&node, &c1, &shared).ok();
    node.sh(&format!("rm -r {}/owners/*/bridge*", node.roots.run.display()));
    run(&node, "DEL", &c1, &shared).call().silent();
    let claims = node.sh(&format!("readlink {}/claims/*", node.roots.run.display()));
    assert_eq!(claims.trim().len(), 32, "{claims}");
    run(&node, "DEL", &c3, &shared).call().silent();
    assert_eq!(node.sh(&format!("ls {}/claims", node.roots.run.display())), "");
    add(&node, &c4, &bridge("br0")).ok();
}

/// Many attachments come and go at once, and each finds that the current ones hold the address.
#[test]
fn sharers_that_come_and_go_at_once_lose_no_claim() {
    testkit::require!("root");
    let node = node("claims-crowd", &one("10.1.0.2/24", None));
    let mut shared = bridge("br0");
    shared["allowAddressConflict"] = json!(true);
    let stays = node.container("stays");
    add(&node, &stays, &shared).ok();
    let containers: Vec<_> = (0..4).map(|n| node.container(&format!("c{n}"))).collect();
    std::thread::scope(|scope| {
        for container in &containers {
            let (node, shared) = (&node, &shared);
            scope.spawn(move || {
                for _ in 0..4 {
                    add(node, container, shared).ok();
                    run(node, "DEL", container, shared).call().silent();
                }
            });
        }
    });
    let other = node.container("other");
    add(&node, &other, &bridge("br0")).fails(108, "n/stays/eth0 has it");
    run(&node, "DEL", &stays, &shared).call().silent();
    assert_eq!(node.sh(&format!("ls {}/claims", node.roots.run.display())), "");
}

/// An address equals another whatever its spelling and its subnet are.
#[test]
fn an_address_is_the_same_with_another_prefix_or_writing() {
    testkit::require!("root");
    let node = node("claims-written", &one("10.1.0.2/24", None));
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    add(&node, &c1, &bridge("br0")).ok();
    for other in ["10.1.0.2/16", "10.1.0.2/32", "::ffff:10.1.0.2/120"] {
        fixed::answers(&node, &one(other, None));
        add(&node, &c2, &bridge("br0")).fails(108, "n/c1/eth0 has it");
    }
    fixed::answers(&node, &one("2001:db8::0:2/64", None));
    add(&node, &c2, &bridge("br0")).ok();
    fixed::answers(&node, &one("2001:DB8:0:0::2/48", None));
    let c3 = node.container("c3");
    add(&node, &c3, &bridge("br0")).fails(108, "n/c2/eth0 has it");
}

#[test]
fn the_hosts_own_address_is_refused_where_the_container_reaches_it() {
    testkit::require!("root");
    let node = node("claims-own", &one("192.0.2.1/24", Some("192.0.2.254")));
    cable(&node, "p0", "192.0.2.1/24");
    let c1 = node.container("c1");
    let mut routed = bridge("br0");
    routed["isGateway"] = json!(true);
    let before = Snapshot::take(&node.lab);
    for keys in [&routed, &json!({ "type": "ptp" }), &macvlan("p0")] {
        add(&node, &c1, keys).fails(108, "address 192.0.2.1 is the host's own, on link \"p0\"");
    }
    before.assert_same(&Snapshot::take(&node.lab));
    // The host does not route to this bridge, so nothing reaches the address there.
    add(&node, &c1, &bridge("br0")).ok();
}

/// The bridge would take the router's address, and the host would lose its route to the router.
#[test]
fn a_pool_that_is_the_uplinks_own_subnet_is_refused() {
    testkit::require!("root");
    let node = node("claims-uplink", &one("192.0.2.7/24", Some("192.0.2.1")));
    let outside = node.container("outside");
    node.sh("ip link add up0 type veth peer name eth0 netns outside && ip link set up0 up && \
             ip addr add 192.0.2.10/24 dev up0");
    outside.sh("ip link set eth0 up && ip addr add 192.0.2.1/24 dev eth0");
    assert_pings(&node.lab, "192.0.2.1");
    let c1 = node.container("c1");
    let mut routed = bridge("br0");
    routed["isGateway"] = json!(true);
    let before = Snapshot::take(&node.lab);
    for keys in [&routed, &json!({ "type": "ptp" })] {
        let words =
            "address 192.0.2.7 is of subnet 192.0.2.0/24, which is on the host's link \"up0\"";
        add(&node, &c1, keys).fails(108, words);
    }
    before.assert_same(&Snapshot::take(&node.lab));
    assert_pings(&node.lab, "192.0.2.1");
}

/// The host could no longer reach such a network, for example a VPN's.
#[test]
fn a_network_that_the_host_has_a_route_to_is_refused() {
    testkit::require!("root");
    let host = |name: &str, routes: &str| {
        let node = node(name, &one("10.1.0.2/24", Some("10.1.0.1")));
        cable(&node, "up0", "192.0.2.10/24");
        node.sh("ip link add tun0 type veth peer name tun1 && ip link set tun0 up");
        node.sh(routes);
        node
    };
    let mut routed = bridge("br0");
    routed["isGateway"] = json!(true);
    for (number, (route, words)) in [
        ("10.1.0.0/24 via 192.0.2.1", "to which the host has a route by 192.0.2.1 on link \"up0\""),
        ("10.1.0.0/25 dev tun0", "of 10.1.0.0/25, to which the host has a route on link \"tun0\""),
        ("10.1.0.0/24 nexthop via 192.0.2.1 nexthop via 192.0.2.2", "has a route on link \"up0\""),
    ]
    .into_iter()
    .enumerate()
    {
        let node = host(&format!("claims-behind{number}"), &format!("ip route add {route}"));
        let c1 = node.container("c1");
        let before = Snapshot::take(&node.lab);
        for keys in [&routed, &json!({ "type": "ptp" })] {
            add(&node, &c1, keys).fails(108, words);
            before.assert_same(&Snapshot::take(&node.lab));
        }
        // A bridge to which the host does not route is not affected.
        add(&node, &c1, &bridge("br1")).ok();
        run(&node, "DEL", &c1, &bridge("br1")).call().silent();
        routed["allowAddressConflict"] = json!(true);
        add(&node, &c1, &routed).ok();
        routed.as_object_mut().unwrap().remove("allowAddressConflict");
    }
    // One route leads to more than the network, and one carries no traffic.
    let routes = "ip route add default via 192.0.2.1; ip route add 10.0.0.0/8 dev tun0; \
                  ip route add blackhole 10.1.0.0/24 metric 9";
    let node = host("claims-wider", routes);
    for (id, keys) in [("c1", &routed), ("c2", &json!({ "type": "ptp" }))] {
        let to = node.container(id);
        add(&node, &to, keys).ok();
        run(&node, "DEL", &to, keys).call().silent();
    }
}

/// `netwrightd routing` has not yet heard that the block of addresses belongs to this node, which
/// does not last long.
#[test]
fn an_address_that_routing_knows_elsewhere_is_asked_for_again() {
    testkit::require!("root");
    let node = node("claims-routing", &one("10.1.0.2/16", Some("10.1.0.1")));
    cable(&node, "up0", "192.0.2.10/24");
    node.sh("ip route add unreachable 10.1.0.0/16 proto 78 metric 4294967295; \
             ip route add 10.1.0.0/26 via 192.0.2.1 proto 78 metric 2000");
    let (c1, ptp) = (node.container("c1"), json!({ "type": "ptp" }));
    let before = Snapshot::take(&node.lab);
    let words = "address 10.1.0.2 is of 10.1.0.0/26, to which the host has a route by 192.0.2.1";
    add(&node, &c1, &ptp).fails(11, words);
    before.assert_same(&Snapshot::take(&node.lab));
    node.sh("ip route del 10.1.0.0/26 proto 78; ip route add 10.1.0.64/26 via 192.0.2.1 proto 78");
    add(&node, &c1, &ptp).ok();
}

/// The subnet would be on two links: when the uplink's route is made anew, the bridge's replaces
/// it. `ptp` routes to each container and has only the address.
#[test]
fn a_bridge_does_not_take_the_uplinks_own_address_for_a_gateway() {
    testkit::require!("root");
    for (number, (own, pool, gateway, router)) in [
        ("192.0.2.10/24", "192.0.2.7/24", "192.0.2.10", "192.0.2.1"),
        ("192.0.2.10/16", "192.0.2.7/24", "192.0.2.10", "192.0.2.1"),
        ("2001:db8::10/64", "2001:db8::7/64", "2001:db8::10", "2001:db8::1"),
    ]
    .into_iter()
    .enumerate()
    {
        let node = node(&format!("claims-taken{number}"), &one(pool, Some(gateway)));
        let outside = node.container("outside");
        node.sh(&format!(
            "ip link add up0 type veth peer name eth0 netns outside && ip link set up0 up && \
             sysctl -qw net.ipv6.conf.up0.keep_addr_on_down=1 && ip addr add {own} dev up0 nodad"
        ));
        let (_, length) = own.split_once('/').unwrap();
        outside.sh(&format!("ip link set eth0 up && ip addr add {router}/{length} dev eth0 nodad"));
        let (c1, c2) = (node.container("c1"), node.container("c2"));
        let mut routed = bridge("br0");
        routed["isGateway"] = json!(true);
        let before = Snapshot::take(&node.lab);
        let words = "which is on the host's link \"up0\"";
        add(&node, &c1, &routed).fails(108, words);
        before.assert_same(&Snapshot::take(&node.lab));
        routed["forceAddress"] = json!(true);
        add(&node, &c1, &routed).fails(108, words);
        before.assert_same(&Snapshot::take(&node.lab));
        add(&node, &c2, &json!({ "type": "ptp" })).ok();
        node.sh("ip link set up0 down && ip link set up0 up");
        assert_pings(&node.lab, router);
    }
}

fn repair(node: &Node, to: &Container, keys: &Value, result: &Value) -> Answer {
    let run = run(node, "CHECK", to, keys).prev(result);
    run.config(json!({ cni::REPAIR: true })).call()
}

/// `/run/netwright/claims` may be lost while containers run.
#[test]
fn repair_holds_again_what_was_lost() {
    testkit::require!("root");
    let node = node("claims-lost", &one("10.1.0.2/24", Some("10.1.0.1")));
    cable(&node, "p0", "192.0.2.1/24");
    let lose = || node.sh(&format!("rm -r {}/claims", node.roots.run.display()));
    let mut routed = bridge("br0");
    routed["isGateway"] = json!(true);
    for (keys, places) in [
        (routed, vec!["on br0", "routed"]),
        (json!({ "type": "ptp" }), vec!["routed"]),
        (macvlan("p0"), vec!["on p0"]),
    ] {
        let (c1, c2) = (node.container("c1"), node.container("c2"));
        let result = add(&node, &c1, &keys).ok();
        lose();
        let expected: Vec<String> =
            places.iter().map(|place| format!("claim of address 10.1.0.2 {place}")).collect();
        let said = repair(&node, &c1, &keys, &result);
        assert_eq!(cni::RepairReport::parse(&said.output.stdout).lines, expected, "{said:?}");
        let said = repair(&node, &c1, &keys, &result);
        assert_eq!(cni::RepairReport::parse(&said.output.stdout).lines, Vec::<String>::new());
        add(&node, &c2, &keys).fails(108, "n/c1/eth0");
        run(&node, "DEL", &c1, &keys).call().silent();
        c1.delete();
        c2.delete();
    }
    // Another container got the address meanwhile: the repair reports that, and takes nothing from
    // it.
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let result = add(&node, &c1, &bridge("br0")).ok();
    lose();
    add(&node, &c2, &bridge("br0")).ok();
    repair(&node, &c1, &bridge("br0"), &result).fails(104, "n/c2/eth0 has it");
    run(&node, "DEL", &c1, &bridge("br0")).call().silent();
    run(&node, "DEL", &c2, &bridge("br0")).call().silent();
}

/// The host has the gateway's address.
#[test]
fn a_gateway_takes_no_address_that_a_container_has() {
    testkit::require!("root");
    let node = node("claims-gateway", &one("10.1.0.1/24", Some("10.1.0.1")));
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let mut routed = bridge("br0");
    routed["isGateway"] = json!(true);
    let before = Snapshot::take(&node.lab);
    for keys in [&routed, &json!({ "type": "ptp" })] {
        let words = "address 10.1.0.1 is the container's and its gateway's";
        add(&node, &c1, keys).fails(108, words);
    }
    before.assert_same(&Snapshot::take(&node.lab));
    // The address of another container, on a bridge that had no gateway.
    fixed::answers(&node, &one("10.1.0.5/24", None));
    add(&node, &c1, &bridge("br0")).ok();
    fixed::answers(&node, &one("10.1.0.6/24", Some("10.1.0.5")));
    let before = Snapshot::take(&node.lab);
    add(&node, &c2, &routed).fails(108, "address 10.1.0.5 is taken on \"br0\": n/c1/eth0 has it");
    before.assert_same(&Snapshot::take(&node.lab));
    routed["allowAddressConflict"] = json!(true);
    add(&node, &c2, &routed).ok();
}

/// The pool is larger or smaller than the uplink's subnet, or the uplink has only an address
/// without a subnet, as clouds give it.
#[test]
fn a_gateway_that_is_the_hosts_router_is_refused() {
    testkit::require!("root");
    for (number, (own, pool)) in [
        ("192.0.2.10/24", "192.0.99.7/16"),
        ("192.0.2.10/16", "192.0.2.7/24"),
        ("192.0.2.10/32", "192.0.2.7/24"),
    ]
    .into_iter()
    .enumerate()
    {
        let node = node(&format!("claims-router{number}"), &one(pool, Some("192.0.2.1")));
        cable(&node, "up0", own);
        node.sh("ip route replace 192.0.2.1 dev up0 && ip route replace default via 192.0.2.1");
        let c1 = node.container("c1");
        let mut routed = bridge("br0");
        routed["isGateway"] = json!(true);
        let before = Snapshot::take(&node.lab);
        for keys in [&routed, &json!({ "type": "ptp" })] {
            let words = "gateway 192.0.2.1 is a router of the host, on link \"up0\"";
            add(&node, &c1, keys).fails(108, words);
        }
        before.assert_same(&Snapshot::take(&node.lab));
    }
}
