//! What a repair leaves alone because it belongs to others, and what it cannot restore.

use serde_json::json;
use testkit::Place;

use super::Chain;
use crate::support::{Node, fixed};

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

/// Repair does not restore an address that another container has by now.
#[test]
fn an_address_that_is_reserved_for_another_is_not_put_back() {
    testkit::require!("root");
    let node = Node::new("owner-address");
    let c1 = node.container("c1");
    let chain = chain(&node, &c1);
    c1.sh("ip addr del 10.1.0.2/24 dev eth0");
    let reservation = node.dir("ipam").join("n/10.1.0.2");
    // A reservation is always a new file: the old one would keep its owner's mark.
    std::fs::remove_file(&reservation).unwrap();
    std::fs::write(&reservation, "other\r\neth0").unwrap();
    let (_, left) = chain.repair();
    assert!(left[0].contains("Failed to find address added by container c1"), "{left:?}");
    assert!(!c1.sh("ip addr show dev eth0").contains("10.1.0.2"));
    assert_eq!(std::fs::read_to_string(reservation).unwrap(), "other\r\neth0");
}

/// A host port stays with the living container that has it by now.
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

/// A route of another interface covers a container's address: repair reports it, and none of the
/// container's routes follows it.
#[test]
fn a_route_that_covers_an_address_is_named_and_never_followed() {
    testkit::require!("root");
    for (plugin, link) in [("bridge", "cni0"), ("ptp", "veth")] {
        let node = Node::new("owner-covered");
        node.sh(
            "ip link add tun0 type veth peer name tun1; ip link set tun0 up; ip link set tun1 up",
        );
        let c1 = node.container("c1");
        let ipam = json!({
            "type": "host-local", "dataDir": node.dir("ipam"),
            "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]],
        });
        let ports = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
        let first = match plugin {
            "bridge" => json!({ "isDefaultGateway": true, "ipMasq": true, "ipam": ipam }),
            _ => json!({ "ipMasq": true, "ipam": ipam }),
        };
        let mapped = json!({ "runtimeConfig": { "portMappings": ports } });
        let chain = Chain::add(&node, &c1, vec![(plugin, first), ("portmap", mapped)]);
        let look = || {
            node.sh("nft list table inet netwright; grep . /proc/sys/net/ipv4/conf/*/route_localnet; ip -6 route show table local | grep ^local.fd6e")
        };
        let before = look();
        assert!(before.contains(link), "{before}");
        for (add, told) in [
            ("ip route prepend 10.1.0.2/32 dev tun0", "10.1.0.2"),
            ("ip route prepend 10.1.0.2/32 via 192.0.2.9 dev tun0 onlink", "10.1.0.2"),
            ("ip -6 route add fd01::2/128 dev tun0 metric 1", "fd01::2"),
            ("ip route prepend blackhole 10.1.0.2/32", "10.1.0.2"),
        ] {
            node.sh(add);
            let by = if add.contains("blackhole") { "drops" } else { "\"tun0\"" };
            let is_told = |line: &String| line.contains(told) && line.contains(by);
            let drift = chain.drift();
            assert!(drift.iter().any(is_told), "{plugin}: {add}: {drift:?}");
            // The error says what helps, since repair would not.
            let helps = |line: &String| line.contains("remove or narrow that route");
            assert!(drift.iter().all(helps), "{plugin}: {add}: {drift:?}");
            // Repair restores another drift, and the routes stay.
            node.sh("nft flush map inet netwright hostports4");
            let (put_back, left) = chain.repair();
            assert!(!put_back.iter().any(|line| line.contains("tun0")), "{put_back:?}");
            assert!(left.iter().any(is_told), "{plugin}: {add}: {left:?}");
            assert_eq!(look(), before, "{plugin}: {add}");
            let delete = add.replace(" add ", " del ").replace(" prepend ", " del ");
            node.sh(&delete);
            assert!(chain.drift().is_empty(), "{:?}", chain.drift());
        }
        // A host's policy rule may lead elsewhere: repair ignores it.
        node.sh("ip route add default dev tun1 table 77; ip rule add to 10.1.0.2 lookup 77 priority 100");
        assert!(chain.drift().is_empty(), "{:?}", chain.drift());
        node.sh("nft flush map inet netwright hostports4");
        let (_, left) = chain.repair();
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(look(), before);
        node.sh("ip rule del priority 100");
        chain.del();
    }
}

/// Without the route of our own, packets go by the default route. That route covers nothing: it is the
/// missing one that differs.
#[test]
fn a_default_route_covers_no_address() {
    testkit::require!("root");
    let node = Node::new("owner-default");
    node.sh("ip link add tun0 type veth peer name tun1 && ip link set tun1 up && ip link set tun0 up && \
         ip route add default dev tun0");
    let c1 = node.container("c1");
    let ipam = json!({
        "type": "host-local", "dataDir": node.dir("ipam"), "ranges": [[{ "subnet": "10.1.0.0/24" }]],
    });
    let ports = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
    let plugins = vec![
        ("ptp", json!({ "ipMasq": true, "ipam": ipam })),
        ("portmap", json!({ "runtimeConfig": { "portMappings": ports } })),
    ];
    let chain = Chain::add(&node, &c1, plugins);
    node.sh("ip route del 10.1.0.2");
    let drift = chain.drift();
    assert!(drift.iter().any(|line| line.contains("10.1.0.2")), "{drift:?}");
    assert!(!drift.iter().any(|line| line.contains("covers it")), "{drift:?}");
    chain.repair();
    assert!(chain.drift().is_empty(), "{:?}", chain.drift());
    chain.del();
}

/// If the bridge belongs to a VRF, the VRF's table counts, and not the main one.
#[test]
fn vm_a_route_of_a_vrf_that_covers_an_address_is_named() {
    testkit::require!("root", "full", "vrf");
    let node = Node::new("owner-covered-vrf");
    let c1 = node.container("c1");
    let ipam = json!({
        "type": "host-local", "dataDir": node.dir("ipam"), "ranges": [[{ "subnet": "10.1.0.0/24" }]],
    });
    let bridge = json!({ "isDefaultGateway": true, "ipam": ipam });
    let chain = Chain::add(&node, &c1, vec![("bridge", bridge)]);
    node.sh("ip link add red type vrf table 10 && ip link set red up && \
         ip link add tun0 type veth peer name tun1 && ip link set tun1 up && \
         ip link set tun0 master red && ip link set tun0 up && ip link set cni0 master red");
    assert!(chain.drift().is_empty(), "{:?}", chain.drift());
    for (route, by) in [
        ("10.1.0.2/32 dev tun0 table 10", "the host reaches 10.1.0.2 by \"tun0\", not by \"cni0\""),
        ("blackhole 10.1.0.2/32 table 10", "the host drops what is for 10.1.0.2"),
    ] {
        node.sh(&format!("ip route add {route}"));
        let drift = chain.drift();
        assert!(drift.iter().any(|line| line.contains(by)), "{route}: {drift:?}");
        let (put_back, left) = chain.repair();
        assert!(!put_back.iter().any(|line| line.contains("tun0")), "{route}: {put_back:?}");
        assert!(left.iter().any(|line| line.contains(by)), "{route}: {left:?}");
        node.sh(&format!("ip route del {route}"));
        assert!(chain.drift().is_empty(), "{:?}", chain.drift());
    }
    node.sh("ip route add blackhole 10.1.0.2/32");
    assert!(chain.drift().is_empty(), "{:?}", chain.drift());
    node.sh("ip route del blackhole 10.1.0.2/32");
    chain.del();
}

/// A route of another interface covered a container's address before ADD: the rules for host ports
/// use the container's route all the same, and work once the other route is gone.
#[test]
fn a_route_that_covered_an_address_before_is_named_and_never_followed() {
    testkit::require!("root");
    for (plugin, link) in [("bridge", "cni0"), ("ptp", "veth")] {
        let node = Node::new("owner-covered-before");
        node.sh(
            "ip link add tun0 type veth peer name tun1; ip link set tun0 up; ip link set tun1 up; \
             ip route add 10.1.0.0/25 dev tun0; ip -6 route add fd01::/65 dev tun0",
        );
        let c1 = node.container("c1");
        let ipam = json!({
            "type": "host-local", "dataDir": node.dir("ipam"),
            "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]],
        });
        let ports = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
        // ADD would refuse a subnet to which the host has a route.
        let mut first = json!({ "ipMasq": true, "ipam": ipam, "allowAddressConflict": true });
        if plugin == "bridge" {
            first["isDefaultGateway"] = true.into();
        }
        let mapped = json!({ "runtimeConfig": { "portMappings": ports } });
        let chain = Chain::add(&node, &c1, vec![(plugin, first), ("portmap", mapped)]);
        let made = node.sh("nft list table inet netwright; grep -l 1 /proc/sys/net/ipv4/conf/*/route_localnet; ip -6 route show table local | grep ^local.fd6e");
        assert!(made.contains(link) && !made.contains("tun0"), "{plugin}: {made}");
        node.sh("ip route del 10.1.0.0/25 dev tun0; ip -6 route del fd01::/65 dev tun0");
        assert!(chain.drift().is_empty(), "{plugin}: {:?}", chain.drift());
        let _server = testkit::traffic::Server::tcp(&c1, "[::]:80", "c1");
        let answer = testkit::traffic::assert_tcp(&node.lab, "127.0.0.1:8080");
        assert_eq!(answer.server, "c1", "{plugin}");
        chain.del();
    }
}

/// A route of the host that now leads elsewhere, an address that conflicts, a bridge that is not
/// ours.
#[test]
fn what_others_put_in_the_way_stays() {
    testkit::require!("root");
    let node = Node::new("owner-others");
    node.sh("ip link add cni0 type bridge && ip link set cni0 up");
    let c1 = node.container("c1");
    let chain = chain(&node, &c1);
    let link = || node.sh("ip -br link show cni0");
    // The administrator may change the bridge's address.
    node.sh("ip link set cni0 address 02:00:00:00:00:99; ip link set cni0 promisc on");
    let before = link();
    let (_, left) = chain.repair();
    assert!(left.iter().any(|line| line.contains("02:00:00:00:00:99")), "{left:?}");
    assert_eq!(link(), before);
    // The bridge has another address by now.
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

/// If the interface is gone, or another link has its name, only another ADD helps.
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

/// A link of another kind has the bridge's name by now: it gets neither the gateways nor the port.
#[test]
fn a_link_that_is_no_bridge_is_left_alone() {
    testkit::require!("root");
    let node = Node::new("owner-no-bridge");
    let c1 = node.container("c1");
    let chain = chain(&node, &c1);
    node.sh("ip link del cni0; ip link add cni0 type veth peer name far; ip link set cni0 up");
    let before = node.sh("ip -d link show dev cni0; ip -4 addr show dev cni0; ip route");
    let (_, left) = chain.repair();
    assert!(left.iter().any(|line| line.contains("is no longer a bridge")), "{left:?}");
    let after = node.sh("ip -d link show dev cni0; ip -4 addr show dev cni0; ip route");
    assert_eq!(before, after);
}

/// Without an IPAM plugin, ADD of a bridge makes no gateway. Addresses that a later plugin adds to
/// the result do not need one either.
#[test]
fn a_bridge_without_ipam_wants_no_gateway() {
    testkit::require!("root");
    let node = Node::new("owner-no-ipam");
    let c1 = node.container("c1");
    let config = json!({ "isGateway": true });
    let mut result = node.run("bridge", "ADD").to(&c1).config(config.clone()).call().ok();
    result["ips"] = json!([{ "address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 2 }]);
    c1.sh("ip addr add 10.1.0.2/24 dev eth0");
    node.sh("sysctl -qw net.ipv4.ip_forward=0");
    let check = |keys| node.run("bridge", "CHECK").to(&c1).config(config.clone()).config(keys);
    check(json!({})).prev(&result).call().silent();
    let repair = json!({ "netwright/repair": true });
    assert!(check(repair).prev(&result).call().succeeded());
    assert!(!node.sh("ip addr show dev cni0").contains("10.1.0.1"));
    assert_eq!(node.sh("sysctl -n net.ipv4.ip_forward").trim(), "0");
}

/// An interface that was left down is not configured by a repair: the guest behind it may have the
/// hardware address that ADD reported.
#[test]
fn an_interface_that_was_left_down_keeps_its_address() {
    testkit::require!("root");
    let node = Node::new("owner-left-down");
    let c1 = node.container("c1");
    let config = json!({ "disableContainerInterface": true });
    let result = node.run("bridge", "ADD").to(&c1).config(config.clone()).call().ok();
    c1.sh("ip link set eth0 address 02:00:00:00:00:07");
    let repair = json!({ "netwright/repair": true });
    let run = node.run("bridge", "CHECK").to(&c1).config(config).config(repair);
    run.prev(&result).call().fails(104, "has MAC address 02:00:00:00:00:07");
    assert!(c1.sh("ip link show dev eth0").contains("02:00:00:00:00:07"));
}

/// The packet filter cannot be restored: the port stays off the bridge until it can.
#[test]
fn a_port_without_its_filter_stays_off_the_bridge() {
    testkit::require!("root");
    let node = Node::new("owner-unfiltered");
    let c1 = node.container("c1");
    let config = json!({ "macspoofchk": true });
    let result = node.run("bridge", "ADD").to(&c1).config(config.clone()).call().ok();
    let port = result["interfaces"][1]["name"].as_str().unwrap().to_owned();
    // Another program has created a table with the name of ours, and a set of another type in it.
    node.sh(&format!(
        "ip link set {port} nomaster; nft delete table bridge netwright; \
         nft add table bridge netwright; nft add set bridge netwright spoof_ports '{{ type mark; }}'"
    ));
    // Restoring this begins another round, in which the port must stay off as well.
    c1.sh("ip link set eth0 down");
    let check = |keys| node.run("bridge", "CHECK").to(&c1).config(config.clone()).config(keys);
    let repair = || json!({ "netwright/repair": true });
    let said = check(repair()).prev(&result).call();
    assert!(!said.succeeded(), "{said:?}");
    assert!(!node.sh(&format!("ip link show dev {port}")).contains("master"), "{said:?}");
    node.sh("nft delete table bridge netwright");
    let said = check(repair()).prev(&result).call();
    assert!(said.succeeded(), "{said:?}");
    assert!(node.sh(&format!("ip link show dev {port}")).contains("master cni0"));
}

/// Two interfaces of a container have the same gateway, as without a gateway in the configuration:
/// each gets its own route back.
#[test]
fn interfaces_with_one_gateway_get_their_own_routes_back() {
    testkit::require!("root");
    let node = Node::new("owner-gateway");
    let c1 = node.container("c1");
    let ptp = |verb: &str, ifname: &str, address: &str| {
        fixed::answers(&node, &json!({ "ips": [{ "address": address }] }));
        node.run("ptp", verb).to(&c1).ifname(ifname).config(fixed::ipam())
    };
    ptp("ADD", "eth0", "10.1.0.2/32").call().ok();
    let second = ptp("ADD", "net1", "10.2.0.2/24").call().ok();
    let routes = || c1.sh("ip route show dev net1 | sort");
    let before = routes();
    assert!(before.contains("169.254.1.1") && before.contains("10.2.0.0/24"), "{before}");
    c1.sh("ip link set net1 down");
    let repair = json!({ "netwright/repair": true });
    let said = ptp("CHECK", "net1", "10.2.0.2/24").prev(&second).config(repair).call();
    assert!(said.succeeded(), "{said:?}");
    assert_eq!(routes(), before);
}

/// The host's route to the container is gone, and another route has its place. The repair does not
/// claim to have restored it, and restores the rest.
#[test]
fn a_route_whose_place_is_taken_is_not_said_to_be_back() {
    testkit::require!("root");
    let node = Node::new("owner-taken");
    node.sh("ip link add tun0 type veth peer name tun1; ip link set tun0 up; ip link set tun1 up");
    let c1 = node.container("c1");
    let ipam = json!({
        "type": "host-local", "dataDir": node.dir("ipam"), "ranges": [[{ "subnet": "10.1.0.0/24" }]],
        "routes": [{ "dst": "0.0.0.0/0" }],
    });
    let chain = Chain::add(&node, &c1, vec![("ptp", json!({ "ipMasq": true, "ipam": ipam }))]);
    node.sh("ip route del 10.1.0.2; ip route add 10.1.0.2/32 dev tun0");
    c1.sh("ip route del default");
    let (_, left) = chain.repair();
    assert!(left[0].contains("the host's route to 10.1.0.2/32"), "{left:?}");
    assert!(left[0].contains("could not put it back"), "{left:?}");
    assert!(c1.sh("ip route").contains("default"), "the rest is restored");
    node.sh("ip route del 10.1.0.2");
    assert_eq!(chain.repair().1, [""; 0]);
}

/// A container renames its interface and gives the name to a pair of its own: that pair is not
/// configured in the interface's place.
#[test]
fn a_link_in_the_place_of_the_interface_is_not_configured() {
    testkit::require!("root");
    let node = Node::new("owner-place");
    node.sh("ip link add p0 type veth peer name p1 && ip link set p0 up && ip link set p1 up");
    let ipam = json!({
        "type": "host-local", "dataDir": node.dir("ipam"), "ranges": [[{ "subnet": "10.1.0.0/24" }]],
        "routes": [{ "dst": "0.0.0.0/0" }],
    });
    for (plugin, keys, words) in [
        ("ptp", json!({ "ipMasq": true, "ipam": ipam }), "the host's end of interface \"eth0\""),
        ("macvlan", json!({ "master": "p0", "ipam": ipam }), "is no longer of kind macvlan"),
    ] {
        let c1 = node.container("c1");
        let chain = Chain::add(&node, &c1, vec![(plugin, keys)]);
        c1.sh("ip link set eth0 down && ip link set eth0 name hidden && \
               ip link add eth0 type veth peer name far");
        let look = || {
            c1.sh("ip -o link show dev eth0 | sed 's/<.*//'; ip -o addr show dev eth0; ip route")
        };
        let before = look();
        let (_, left) = chain.repair();
        assert!(left.iter().any(|line| line.contains(words)), "{plugin}: {left:?}");
        assert_eq!(look(), before, "{plugin}");
        c1.sh("ip link del eth0 && ip link set hidden name eth0 && ip link set eth0 up");
        let (_, left) = chain.repair();
        assert_eq!(left, [""; 0], "{plugin}");
        chain.del();
        c1.delete();
    }
}

/// A container may rename its interface and give the name to a link of its own: repair does not
/// configure that link, and keeps the record of the first.
#[test]
fn an_interface_that_is_another_link_by_now_is_left_alone() {
    testkit::require!("root");
    let node = Node::new("owner-another");
    let c1 = node.container("c1");
    let ipam = json!({
        "type": "host-local", "dataDir": node.dir("ipam"), "ranges": [[{ "subnet": "10.1.0.0/24" }]],
    });
    let tuning = json!({
        "dataDir": node.dir("tuning"), "mtu": 1400, "sysctl": { "net.ipv4.conf.IFNAME.log_martians": "1" },
    });
    let own_sysctl = json!({ "sysctl": { "net.ipv4.conf.IFNAME.log_martians": "1" } });
    let bridge = || json!({ "isDefaultGateway": true, "ipam": ipam.clone() });
    for (plugin, keys) in [
        ("tuning", tuning),
        ("tuning", own_sysctl),
        ("sbr", json!({})),
        ("bandwidth", json!({ "ingressRate": 8_000_000, "ingressBurst": 8_000_000 })),
    ] {
        let chain = Chain::add(&node, &c1, vec![("bridge", bridge()), (plugin, keys)]);
        let mac = c1.sh("ip -br link show dev eth0 | awk '{ print $3 }'");
        let record =
            || node.sh(&format!("cat {}/owners/*/{plugin}.json", node.roots.run.display()));
        let before = record();
        assert!(chain.drift().is_empty(), "{plugin}: {:?}", chain.drift());
        let mac = mac.trim();
        match plugin {
            "bandwidth" => {
                // The other end of a pair of the host, under the name of the shaped link.
                let host =
                    node.sh("ip -br link show master cni0").split('@').next().unwrap().to_owned();
                c1.sh("ip link set eth0 down && ip link set eth0 name hidden");
                node.sh(&format!(
                    "ip link set {host} down && ip link set {host} name was && \
                     ip link add {host} type veth peer name eth0 netns c1 && ip link set {host} up"
                ));
            }
            _ => {
                c1.sh("ip link set eth0 down && ip link set eth0 name hidden && \
                     ip link add eth0 type veth peer name x");
            }
        }
        c1.sh(&format!(
            "ip link set hidden address 02:00:00:00:00:09 && ip link set eth0 address {mac} up && \
             ip addr flush dev hidden && ip addr add 10.1.0.2/24 dev eth0"
        ));
        // Without carrier states, which the kernel notices later.
        let links = r"ip -o link | sed -E 's/<[^>]*>|(qdisc|state) \w+//g'";
        let look = || {
            // Without link-local routes, which come once the kernel has found no other address.
            let more = "ip rule; ip route show table all | grep -v fe80; \
                        grep . /proc/sys/net/ipv4/conf/*/log_martians";
            (c1.sh(&format!("{links}; {more}")), node.sh(&format!("{links}; tc qdisc")))
        };
        let found = look();
        let is_told = |line: &String| line.contains("is another link than the one that ADD saw");
        let drift = chain.drift();
        assert!(drift.iter().any(is_told), "{plugin}: {drift:?}");
        let repaired = chain.repair_of(plugin);
        assert!(is_told(&repaired), "{plugin}: {repaired}");
        assert_eq!(look(), found, "{plugin}");
        assert_eq!(record(), before, "{plugin}");
        chain.del();
        c1.sh("ip link del eth0 2>/dev/null; ip link del hidden 2>/dev/null; true");
        node.sh("ip link del was 2>/dev/null; true");
    }
}

#[test]
fn vm_an_interface_of_a_vrf_that_is_another_link_by_now_is_left_alone() {
    testkit::require!("root", "vrf");
    let node = Node::new("owner-vrf");
    let c1 = node.container("c1");
    let ipam = json!({
        "type": "host-local", "dataDir": node.dir("ipam"), "ranges": [[{ "subnet": "10.1.0.0/24" }]],
    });
    let vrf = ("vrf", json!({ "vrfname": "red" }));
    let chain = Chain::add(&node, &c1, vec![("bridge", json!({ "ipam": ipam })), vrf]);
    c1.sh("ip link set eth0 down && ip link set eth0 name hidden && \
         ip link add eth0 type veth peer name x && ip link set eth0 up");
    let look = || c1.sh(r"ip -d -o link | sed -E 's/<[^>]*>|(qdisc|state) \w+//g'");
    let before = look();
    let told = chain.repair_of("vrf");
    assert!(told.contains("is another link than the one that ADD saw"), "{told}");
    assert_eq!(look(), before);
    chain.del();
}

/// CHECK compares what another plugin made, and leaves the repair to that plugin.
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

/// Repairs and removals of many attachments at once: no repair restores anything after a DEL.
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
