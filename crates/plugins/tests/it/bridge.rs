//! `bridge`: each row of the reference's behaviour, and what ours does better.

mod matrix;
mod trunk;
mod vlan_link;
mod vrf;

use std::time::Duration;

use cni::AttachmentKey;
use kernel::packet::{Filter, PacketSocket};
use serde_json::{Value, json};
use state::{Index, file_name_of};
use testkit::traffic::{Server, assert_no_ping, assert_pings, assert_tcp};
use testkit::{Container, Place, Snapshot};

use crate::support::matrix::{Family, addresses, ipam as matrix_ipam};
use crate::support::{Node, Run};

/// Addresses for a container, which need no address plugin's state.
const ONE_V4: &str =
    r#"{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"}]}"#;
const DUAL: &str = r#"{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"address":"fd00:1::2/64","gateway":"fd00:1::1"}]}"#;

/// A node whose address plugin `fixed` answers ADD with `result` and logs its verbs to
/// `<dir>/verbs`.
fn node_with(name: &str, result: &str) -> Node {
    let node = Node::new(name);
    answer_with(&node, result);
    node
}

fn answer_with(node: &Node, result: &str) {
    let log = node.dir("log").join("verbs");
    node.stub(
        "fixed",
        &format!(
            "cat >/dev/null; echo $CNI_COMMAND >>{}; [ $CNI_COMMAND = ADD ] || exit 0; cat <<'X'\n{result}\nX",
            log.display()
        ),
    );
}

fn verbs(node: &Node) -> String {
    std::fs::read_to_string(node.dir("log").join("verbs")).unwrap_or_default().replace('\n', " ")
}

fn fixed() -> Value {
    json!({ "ipam": { "type": "fixed" } })
}

fn add<'n>(node: &'n Node, container: &Container) -> Run<'n> {
    node.run("bridge", "ADD").to(container)
}

fn del<'n>(node: &'n Node, container: &Container) -> Run<'n> {
    node.run("bridge", "DEL").to(container)
}

fn succeeds(place: &impl Place, script: &str) -> bool {
    place.try_sh(script).status.success()
}

fn link(place: &impl Place, name: &str) -> Value {
    let text = place.sh(&format!("ip -d -j link show {name}"));
    serde_json::from_str::<Value>(&text).unwrap()[0].clone()
}

fn host_ifname(result: &Value) -> String {
    result["interfaces"][1]["name"].as_str().unwrap().to_owned()
}

#[test]
fn creates_and_reuses_bridge() {
    let node = Node::new("bridge-reuse");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    add(&node, &c1).call().ok();
    let bridge = link(&node.lab, "cni0");
    assert_eq!(bridge["linkinfo"]["info_kind"], "bridge");
    assert!(bridge["flags"].as_array().unwrap().contains(&json!("UP")));
    add(&node, &c2).call().ok();
    assert_eq!(link(&node.lab, "cni0")["ifindex"], bridge["ifindex"]);

    node.sh("ip link add notbridge type veth peer name other");
    add(&node, &node.container("c3"))
        .config(json!({ "bridge": "notbridge" }))
        .call()
        .fails(108, "\"notbridge\" already exists but is not a bridge");
}

/// The reference names chains after the container. An ID so long that the kernel takes no such name
/// has none of them.
#[test]
fn a_container_with_a_long_id_is_removed() {
    let node = Node::new("bridge-long-id");
    let ipam = matrix_ipam(&node, Family::Dual);
    let config = json!({ "isGateway": true, "ipMasq": true, "ipam": ipam });
    let c1 = node.container("c1");
    for plugin in ["bridge", "ptp"] {
        // The chain's name would be longer than 255 bytes with or without its ending.
        for length in [236, 240, 1000] {
            let id = "x".repeat(length);
            let run = |verb: &str| node.run(plugin, verb).to(&c1).id(&id).config(config.clone());
            run("ADD").call().ok();
            run("DEL").call().silent();
            assert_eq!(addresses(&node), "", "{plugin}, {length}");
            run("DEL").call().silent();
        }
    }
}

#[test]
fn result_interfaces() {
    let node = node_with("bridge-result", DUAL);
    let c1 = node.container("c1");
    let result = add(&node, &c1).config(fixed()).call().ok();
    let interfaces = result["interfaces"].as_array().unwrap();
    assert_eq!(interfaces.len(), 3);
    assert_eq!(interfaces[0]["name"], "cni0");
    assert_eq!(interfaces[2]["name"], "eth0");
    assert_eq!(interfaces[2]["sandbox"], c1.netns().to_str().unwrap());
    assert!(interfaces[0].get("sandbox").is_none() && interfaces[1].get("sandbox").is_none());
    assert!(result["ips"].as_array().unwrap().iter().all(|ip| ip["interface"] == 2), "{result}");
    for (index, name) in [(0, "cni0".to_owned()), (1, host_ifname(&result))] {
        assert_eq!(link(&node.lab, &name)["address"], interfaces[index]["mac"]);
    }
    assert_eq!(link(&c1, "eth0")["address"], interfaces[2]["mac"]);
}

#[test]
fn host_veth_name() {
    let node = Node::new("bridge-name");
    let c1 = node.container("c1");
    let name = host_ifname(&add(&node, &c1).call().ok());
    let digits = name.strip_prefix("veth").unwrap();
    assert!(
        digits.len() == 8 && digits.bytes().all(|b| b"0123456789abcdef".contains(&b)),
        "{name}"
    );
    assert_eq!(link(&node.lab, &name)["ifalias"], "netwright:n/c1/eth0");
}

#[test]
fn a_configured_name_of_the_hosts_end() {
    let node = Node::new("bridge-host-ifname");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let named = |name: &str| json!({ "hostIfname": name });
    let links = || node.sh("ip -o link | cut -d: -f2");
    let before = links();
    let result = add(&node, &c1).config(named("web0")).call().ok();
    assert_eq!(host_ifname(&result), "web0");
    assert_eq!(link(&node.lab, "web0")["ifalias"], "netwright:n/c1/eth0");
    let check = || node.run("bridge", "CHECK").to(&c1).config(named("web0")).prev(&result).call();
    check().silent();
    node.sh("ip link set web0 mtu 1400");
    check().fails(104, "\"web0\" has MTU 1400");
    node.sh("ip link set web0 mtu 1500");
    // The name is that of one container, and nothing is changed for another.
    let change = links();
    let refused = || add(&node, &c2).config(named("web0")).call();
    refused().fails(108, "the host has a link \"web0\" already");
    refused().fails(108, "it is the link of n/c1/eth0");
    assert_eq!(change, links());
    // The runtime can name each; a name in both is the runtime's.
    let asked = json!({ "hostIfname": "web0", "runtimeConfig": { "hostIfname": "web1" } });
    let second = add(&node, &c2).config(asked).call().ok();
    assert_eq!(host_ifname(&second), "web1");
    // DEL and GC go by the record, whatever the configuration says.
    del(&node, &c2).call().silent();
    assert!(!succeeds(&node.lab, "ip link show web1"));
    node.run("bridge", "GC").of_network().valid(&[]).call().silent();
    assert_eq!(before, links());
    // Others' links stay.
    node.sh(
        "ip link add web0 type veth peer name other; ip link property add dev other altname web2",
    );
    for name in ["web0", "web2"] {
        add(&node, &c2).config(named(name)).call().fails(108, "did not make that link");
    }
    let status = || node.run("bridge", "STATUS").of_network().config(named("web0")).call();
    status().fails(50, "the host has a link \"web0\" already");
    for bad in ["veth%d", "all", "a b", "cni0", "0123456789abcdef"] {
        add(&node, &c2).config(named(bad)).call().fails(7, "hostIfname");
    }
    assert!(!succeeds(&node.lab, "ip link show cni0"));
}

/// The kernel deletes the links of a container that has ended some time later. They block neither
/// the container's next start, without its records, nor another container that has the same name
/// for its link.
#[test]
fn the_link_of_a_container_that_has_just_ended_is_replaced() {
    testkit::require!("root");
    let node = Node::new("bridge-ending");
    let crowd = node.container("crowd");
    crowd.sh("seq 100 | sed 's/.*/link add d& type veth peer name e&/' | ip -batch -");
    let links = |node: &Node| node.sh("ip -o link show type veth | wc -l").trim().to_owned();
    let before = links(&node);
    let named = json!({ "hostIfname": "web0" });
    let again: [(&str, &Value, &str); 3] = [
        ("p0", &json!({}), "p0"),
        ("p1", &named, "p1"),
        ("p2", &json!({ "hostIfname": "web2" }), "other"),
    ];
    let all = again.map(|(id, keys, next)| {
        let (first, second) = (node.container(id), node.container(&format!("{id}-next")));
        node.run("bridge", "ADD").to(&first).id(id).config(keys.clone()).call().ok();
        (first, second, keys, next)
    });
    std::fs::remove_dir_all(node.roots.run.join("owners")).unwrap();
    let (firsts, seconds): (Vec<_>, Vec<_>) =
        all.into_iter().map(|(first, second, keys, next)| (first, (second, keys, next))).unzip();
    drop(crowd);
    drop(firsts);
    for (second, keys, next) in &seconds {
        let add = node.run("bridge", "ADD").to(second).id(next).config((*keys).clone());
        let result = add.call().ok();
        assert!(succeeds(&node.lab, &format!("ip link show {}", host_ifname(&result))), "{next}");
    }
    assert_eq!(links(&node), (before.parse::<usize>().unwrap() + 3).to_string());
}

/// An ADD was killed right after it had created the pair: of the record there is the name alone.
#[test]
fn del_and_gc_find_a_named_pair_whose_add_was_killed() {
    for verb in ["DEL", "GC"] {
        let node = node_with(&format!("bridge-named-{}", verb.to_lowercase()), "not a result");
        let c1 = node.container("c1");
        let keys = json!({ "hostIfname": "web0", "ipam": { "type": "fixed" } });
        let record = node.roots.run.join("owners");
        // While the address plugin runs, the pair is there.
        let copy = node.dir("copy");
        node.stub(
            "fixed",
            &format!(
                "cat >/dev/null; [ $CNI_COMMAND = ADD ] || exit 0; cp -a {}/. {}; ip link show web0 >{}/link; exit 1",
                record.display(),
                copy.display(),
                copy.display()
            ),
        );
        let failed = add(&node, &c1).config(keys.clone()).call();
        assert!(!failed.succeeded());
        assert!(node.sh(&format!("cat {}/link", copy.display())).contains("web0"));
        assert!(!succeeds(&node.lab, "ip link show web0"), "undone");
        // As it was then.
        node.sh(&format!(
            "rm {0}/link; cp -a {0}/. {1}; ip link add web0 type veth peer name eth0 netns c1; \
             ip link set web0 alias netwright:n/c1/eth0",
            copy.display(),
            record.display()
        ));
        match verb {
            "DEL" => del(&node, &c1).without("netns").call().silent(),
            _ => node.run("bridge", "GC").of_network().valid(&[]).call().silent(),
        }
        assert!(!succeeds(&node.lab, "ip link show web0"), "{verb}");
    }
}

#[test]
fn a_host_name_taken_by_somebody_else_is_passed_over() {
    let node = Node::new("bridge-taken");
    let c1 = node.container("c1");
    let name = host_ifname(&add(&node, &c1).call().ok());
    del(&node, &c1).call().silent();
    node.sh(&format!("ip link add {name} type veth peer name other"));
    let other = host_ifname(&add(&node, &c1).call().ok());
    assert_ne!(other, name);
    del(&node, &c1).call().silent();
    node.sh(&format!("ip link show {name}"));
    assert!(!succeeds(&node.lab, &format!("ip link show {other}")));
}

#[test]
fn existing_ifname() {
    let node = node_with("bridge-exists", ONE_V4);
    let c1 = node.container("c1");
    add(&node, &c1).config(fixed()).call().ok();
    // The kernel gives the bridge its own address some time after the port is up.
    node.sh("until ip -6 address show dev cni0 scope link | grep -q fe80; do sleep 0.01; done");
    let before = Snapshot::take(&node.lab);
    add(&node, &c1).config(fixed()).call().fails(106, "already exists");
    before.assert_same(&Snapshot::take(&node.lab));
    assert_eq!(verbs(&node), "ADD ", "the address plugin must not even be asked");
}

#[test]
fn is_gateway() {
    let node = node_with("bridge-gw", DUAL);
    node.sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0");
    let before = Snapshot::take(&node.lab);
    let c1 = node.container("c1");
    add(&node, &c1).config(fixed()).config(json!({ "isGateway": true })).call().ok();
    let addresses = node.sh("ip -o address show cni0");
    assert!(addresses.contains("10.1.0.1/24") && addresses.contains("fd00:1::1/64"), "{addresses}");
    assert_eq!(node.sh("sysctl -n net.ipv4.ip_forward net.ipv6.conf.all.forwarding"), "1\n1\n");
    assert_pings(&c1, "10.1.0.1");
    assert_pings(&c1, "fd00:1::1");
    del(&node, &c1).config(fixed()).config(json!({ "isGateway": true })).call().silent();
    c1.delete();
    before.assert_same(&Snapshot::take(&node.lab));
}

#[test]
fn is_gateway_without_one_from_ipam_takes_the_first_address() {
    let node =
        node_with("bridge-gw1", r#"{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}]}"#);
    let c1 = node.container("c1");
    let result = add(&node, &c1).config(fixed()).config(json!({ "isGateway": true })).call().ok();
    assert_eq!(result["ips"][0]["gateway"], "10.1.0.1");
    assert!(node.sh("ip -o address show cni0").contains("10.1.0.1/24"));
}

#[test]
fn is_default_gateway() {
    let node = node_with("bridge-defgw", DUAL);
    let c1 = node.container("c1");
    let result =
        add(&node, &c1).config(fixed()).config(json!({ "isDefaultGateway": true })).call().ok();
    assert!(c1.sh("ip route").contains("default via 10.1.0.1 dev eth0"));
    assert!(c1.sh("ip -6 route").contains("default via fd00:1::1 dev eth0"));
    assert_eq!(result["routes"].as_array().unwrap().len(), 2);
}

#[test]
fn default_gateway_and_ipam_default_route() {
    let node = node_with(
        "bridge-defgw2",
        r#"{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0"}]}"#,
    );
    let c1 = node.container("c1");
    add(&node, &c1).config(fixed()).config(json!({ "isDefaultGateway": true })).call().ok();
    assert_eq!(c1.sh("ip route show default").lines().count(), 1);
}

/// A default route of another table, or one on the link, is not the one that `isDefaultGateway`
/// asks for.
#[test]
fn default_gateway_and_a_default_route_of_another_table() {
    let node = node_with(
        "bridge-defgw3",
        r#"{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"address":"fd00:1::2/64","gateway":"fd00:1::1"}],
            "routes":[{"dst":"0.0.0.0/0","table":77},{"dst":"::/0","table":77}]}"#,
    );
    let c1 = node.container("c1");
    add(&node, &c1).config(fixed()).config(json!({ "isDefaultGateway": true })).call().ok();
    for (family, gateway) in [("-4", "10.1.0.1"), ("-6", "fd00:1::1")] {
        for table in ["main", "77"] {
            let routes = c1.sh(&format!("ip {family} route show default table {table}"));
            assert!(routes.contains(&format!("via {gateway} dev eth0")), "{table}: {routes}");
        }
    }
}

#[test]
fn v6_gateway_of_another_subnet_is_added() {
    let node = node_with("bridge-v6gw", DUAL);
    let gateway = json!({ "isGateway": true });
    add(&node, &node.container("c1")).config(fixed()).config(gateway.clone()).call().ok();
    answer_with(
        &node,
        r#"{"cniVersion":"1.1.0","ips":[{"address":"fd00:2::2/64","gateway":"fd00:2::1"}]}"#,
    );
    add(&node, &node.container("c2")).config(fixed()).config(gateway).call().ok();
    let addresses = node.sh("ip -o -6 address show cni0");
    assert!(
        addresses.contains("fd00:1::1/64") && addresses.contains("fd00:2::1/64"),
        "{addresses}"
    );
}

#[test]
fn address_conflict_and_force_address() {
    let node = node_with("bridge-conflict", ONE_V4);
    // Another port works: the bridge's carrier and limits do not depend on ours.
    node.sh(
        "ip link add cni0 type bridge; ip address add 10.9.0.1/24 dev cni0; ip link set cni0 up
        ip link add port type veth peer name far
        ip link set port up master cni0; ip link set far up",
    );
    let c1 = node.container("c1");
    let gateway = json!({ "isGateway": true });
    let before = Snapshot::take(&node.lab);
    add(&node, &c1)
        .config(fixed())
        .config(gateway.clone())
        .call()
        .fails(108, "\"cni0\" already has an IP address different from 10.1.0.1/24");
    before.assert_same(&Snapshot::take(&node.lab));
    assert_eq!(verbs(&node), "ADD DEL ", "the address must be released again");
    add(&node, &c1)
        .config(fixed())
        .config(gateway)
        .config(json!({ "forceAddress": true }))
        .call()
        .ok();
    let addresses = node.sh("ip -o -4 address show cni0");
    assert!(addresses.contains("10.1.0.1/24") && !addresses.contains("10.9.0.1"), "{addresses}");
}

#[test]
fn mac_pinned() {
    let node = node_with("bridge-pin", ONE_V4);
    node.sh("ip link add cni0 type bridge; ip link set cni0 up");
    let gateway = json!({ "isGateway": true });
    add(&node, &node.container("c1")).config(fixed()).config(gateway).call().ok();
    let mac = link(&node.lab, "cni0")["address"].clone();
    node.sh("ip link add low address 02:00:00:00:00:01 type veth peer name far; ip link set low master cni0");
    assert_eq!(link(&node.lab, "cni0")["address"], mac);
    node.sh("ip link del low");
    assert_eq!(link(&node.lab, "cni0")["address"], mac);
}

#[test]
fn gateway_after_port_loss() {
    let node = node_with("bridge-ports", ONE_V4);
    // A bridge whose address was never pinned, and which had a port and lost it: the kernel leaves
    // it an all-zero address.
    node.sh("ip link add cni0 type bridge; ip link add p type veth peer name q; ip link set p master cni0; ip link del p");
    add(&node, &node.container("c1"))
        .config(fixed())
        .config(json!({ "isGateway": true }))
        .call()
        .ok();
}

#[test]
fn mtu() {
    let node = Node::new("bridge-mtu");
    let c1 = node.container("c1");
    let result = add(&node, &c1).config(json!({ "mtu": 1400 })).call().ok();
    for (mtu, what) in [
        (&link(&node.lab, "cni0")["mtu"], "bridge"),
        (&link(&node.lab, &host_ifname(&result))["mtu"], "host end"),
        (&link(&c1, "eth0")["mtu"], "container end"),
    ] {
        assert_eq!(*mtu, 1400, "{what}");
    }
}

/// Gives a node links with default routes: the name, the MTU and the route of each.
fn uplinks(node: &Node, links: &[(&str, u32, &str)]) {
    for (name, mtu, route) in links {
        node.sh(&format!(
            "ip link add {name} mtu {mtu} type veth peer name {name}x; ip link set {name}x up; \
             ip link set {name} up; ip route add {route} dev {name}"
        ));
    }
}

#[test]
fn the_mtu_of_the_uplink() {
    let node = Node::new("bridge-uplink");
    let auto = || json!({ "mtu": "auto" });
    let mtus = |id: &str| {
        let container = node.container(id);
        let result = add(&node, &container).config(auto()).call().ok();
        let check = node.run("bridge", "CHECK").to(&container).prev(&result).config(auto());
        check.call().silent();
        let end = link(&node.lab, &host_ifname(&result))["mtu"].clone();
        let mtus =
            [link(&node.lab, "cni0")["mtu"].clone(), end, link(&container, "eth0")["mtu"].clone()];
        assert!(mtus.iter().all(|mtu| *mtu == mtus[0]), "{mtus:?}");
        (container, mtus[0].as_u64().unwrap())
    };
    let detach = |container: &Container| del(&node, container).config(auto()).call().silent();
    // Without a default route the reference's default.
    let (c1, mtu) = mtus("c1");
    assert_eq!(mtu, 1500);
    // What is on the bridge stays reachable by it.
    uplinks(&node, &[("up0", 1400, "default")]);
    let (c2, mtu) = mtus("c2");
    assert_eq!(mtu, 1500);
    [&c1, &c2].into_iter().for_each(detach);
    let (c3, mtu) = mtus("c3");
    assert_eq!(mtu, 1400);
    // Repair creates the bridge again as it was, whatever the uplink has by now.
    node.sh("ip link set up0 mtu 1450");
    assert_eq!(mtus("c4").1, 1400);
    [&c3, &node.container("c4")].into_iter().for_each(detach);
    // The tunnels between nodes take their part.
    node.sh("ip link add nw-vxlan4 mtu 1370 type vxlan id 1 dev up0 dstport 4789");
    node.sh("ip link set nw-vxlan4 alias netwright:routing");
    assert_eq!(mtus("c5").1, 1370);
    add(&node, &node.container("c6")).config(json!({ "mtu": "1400" })).call().fails(6, "\"auto\"");
}

#[test]
fn hairpin() {
    let node = Node::new("bridge-hairpin");
    for (id, on) in [("c1", true), ("c2", false)] {
        let container = node.container(id);
        let result = add(&node, &container).config(json!({ "hairpinMode": on })).call().ok();
        let port = &link(&node.lab, &host_ifname(&result))["linkinfo"]["info_slave_data"];
        assert_eq!(port["hairpin"], on);
    }
}

#[test]
fn promisc() {
    let node = Node::new("bridge-promisc");
    let c1 = node.container("c1");
    let config = json!({ "promiscMode": true });
    let result = add(&node, &c1).config(config.clone()).call().ok();
    assert_eq!(link(&node.lab, "cni0")["promiscuity"], 1);
    let check = || node.run("bridge", "CHECK").to(&c1).prev(&result);
    check().config(config.clone()).call().silent();
    node.sh("ip link set cni0 promisc off");
    check().config(config).call().fails(104, "promiscuous mode off");
    add(&node, &node.container("c2"))
        .config(json!({ "promiscMode": true, "hairpinMode": true }))
        .call()
        .fails(7, "cannot set hairpin mode and promiscuous mode at the same time");
}

#[test]
fn vm_vlan_access_trunk_and_gateway() {
    testkit::require!("bridge-vlan-filtering");
    let node = node_with("bridge-vlan", ONE_V4);
    let before = Snapshot::take(&node.lab);
    let vids = |name: &str| {
        let text = node.sh(&format!("bridge -j vlan show dev {name}"));
        let value: Value = serde_json::from_str(&text).unwrap();
        let vlans = value[0]["vlans"].as_array().unwrap().clone();
        vlans
            .iter()
            .map(|vlan| {
                let pvid = vlan["flags"].as_array().is_some_and(|f| f.contains(&json!("PVID")));
                (vlan["vlan"].as_u64().unwrap(), pvid)
            })
            .collect::<Vec<_>>()
    };
    let (c1, c2, c3) = (node.container("c1"), node.container("c2"), node.container("c3"));
    let access = json!({ "vlan": 100, "isGateway": true, "ipam": { "type": "fixed" } });
    let result = add(&node, &c1).config(access.clone()).call().ok();
    assert_eq!(vids(&host_ifname(&result)), [(100, true)]);
    assert_eq!(result["interfaces"][3]["name"], "cni0.100");
    assert!(node.sh("ip -o address show cni0.100").contains("10.1.0.1/24"));
    assert_pings(&c1, "10.1.0.1");

    let trunk = json!({ "vlanTrunk": [{ "id": 7 }, { "minID": 10, "maxID": 12 }] });
    let result = add(&node, &c2).config(trunk.clone()).call().ok();
    assert_eq!(
        vids(&host_ifname(&result)),
        [(1, true), (7, false), (10, false), (11, false), (12, false)]
    );

    let keep = json!({ "vlan": 100, "preserveDefaultVlan": true });
    let result = add(&node, &c3).config(keep.clone()).call().ok();
    assert_eq!(vids(&host_ifname(&result)), [(1, false), (100, true)]);

    for (container, config) in [(c1, access), (c2, trunk), (c3, keep)] {
        del(&node, &container).config(config).call().silent();
        container.delete();
    }
    before.assert_same(&Snapshot::take(&node.lab));
}

/// A bridge that existed before: its ports begin in VLAN 10.
#[test]
fn vm_a_port_leaves_the_default_vlan_whichever_it_is() {
    testkit::require!("root", "bridge-vlan-filtering");
    let node = node_with("bridge-pvid", ONE_V4);
    let made = "ip link add cni0 type bridge vlan_filtering 1 vlan_default_pvid 10";
    node.sh(&format!("{made} && ip link set cni0 up"));
    let [c1, c2, c3] = ["c1", "c2", "c3"].map(|name| node.container(name));
    let result = add(&node, &c1).config(json!({ "vlan": 20 })).call().ok();
    let text = node.sh(&format!("bridge -j vlan show dev {}", host_ifname(&result)));
    let value: Value = serde_json::from_str(&text).unwrap();
    let vlans = value[0]["vlans"].as_array().unwrap();
    assert!(vlans.len() == 1 && vlans[0]["vlan"] == 20, "{text}");
    // A container that is put into that VLAN is on one segment with the containers that are in it
    // by default.
    add(&node, &c2).config(json!({ "ipam": { "type": "fixed" } })).call().ok();
    let named = json!({ "vlan": 10, "ipam": { "type": "fixed" } });
    add(&node, &c3).config(named).call().fails(108, "is taken on \"cni0\"");
}

#[test]
fn vlan_validation() {
    let node = Node::new("bridge-vlanbad");
    let c1 = node.container("c1");
    let before = Snapshot::take(&node.lab);
    for (config, words) in [
        (json!({ "vlan": 4095 }), "invalid VLAN ID 4095"),
        (json!({ "vlanTrunk": [{ "minID": 5 }] }), "maxID is missing"),
        (json!({ "vlanTrunk": [{ "minID": 6, "maxID": 5 }] }), "minID is greater than maxID"),
        (json!({ "vlanTrunk": [null] }), "incorrect trunk"),
    ] {
        add(&node, &c1).config(config).call().fails(7, words);
    }
    before.assert_same(&Snapshot::take(&node.lab));
}

#[test]
fn port_isolation() {
    let node = Node::new("bridge-isolated");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    for (container, address) in [(&c1, "10.1.0.2"), (&c2, "10.1.0.3")] {
        answer_with(
            &node,
            &format!(
                r#"{{"cniVersion":"1.1.0","ips":[{{"address":"{address}/24","gateway":"10.1.0.1"}}]}}"#
            ),
        );
        let config = json!({ "portIsolation": true, "isGateway": true });
        let result = add(&node, container).config(fixed()).config(config).call().ok();
        let port = link(&node.lab, &host_ifname(&result));
        assert_eq!(port["linkinfo"]["info_slave_data"]["isolated"], true);
    }
    assert_pings(&c1, "10.1.0.1");
    assert_no_ping(&c1, "10.1.0.3");
}

#[test]
fn macspoofchk() {
    let node = node_with("bridge-spoof", ONE_V4);
    let c1 = node.container("c1");
    let config = json!({ "macspoofchk": true, "isGateway": true, "ipam": { "type": "fixed" } });
    let result = add(&node, &c1).config(config.clone()).call().ok();
    let mac = result["interfaces"][2]["mac"].as_str().unwrap().to_owned();
    let check = || node.run("bridge", "CHECK").to(&c1).prev(&result).config(config.clone()).call();
    assert_pings(&c1, "10.1.0.1");
    check().silent();
    c1.sh("ip link set eth0 address 02:00:00:00:00:66");
    assert_no_ping(&c1, "10.1.0.1");
    c1.sh(&format!("ip link set eth0 address {mac}"));
    assert_pings(&c1, "10.1.0.1");
    node.sh("nft flush set bridge netwright spoof_allowed");
    check().fails(104, "packet filter: missing");
    del(&node, &c1).config(config).call().silent();
    assert!(!node.sh("nft list table bridge netwright").contains("elements"));
}

/// Lets a container send frames with another's source address to each group that bridges treat
/// specially, untagged and in a VLAN. Returns the bridge's FDB entries of that address.
fn forge_to_link_local_groups(node: &Node, forger: &Container, mac: &str) -> Vec<String> {
    let source: Vec<u8> =
        mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    let ifindex = link(forger, "eth0")["ifindex"].as_u64().unwrap();
    forger.enter(|| {
        let ifindex = u32::try_from(ifindex).unwrap();
        let socket = PacketSocket::open(ifindex, &Filter::nothing()).unwrap();
        for group in 0..16 {
            for tag in [&[][..], &[0x81, 0, 0, 7]] {
                let to = [0x01, 0x80, 0xc2, 0, 0, group];
                let frame = [&to[..], &source, tag, &[0x88, 0xb5], &[b'x'; 60]].concat();
                socket.send(&frame).unwrap();
            }
        }
    });
    // The host answers only after it has processed the forged frames.
    assert_pings(forger, "10.1.0.1");
    let learnt = node.sh("bridge fdb show");
    let of_it = |line: &&str| line.starts_with(&format!("{mac} ")) && !line.contains(" self");
    learnt.lines().filter(of_it).map(str::to_owned).collect()
}

fn forge_link_local_frames(name: &str, keys: &Value, options: &str) {
    let node = node_with(name, ONE_V4);
    node.sh(&format!("ip link add cni0 type bridge {options} && ip link set cni0 up"));
    let option = || link(&node.lab, "cni0")["linkinfo"]["info_data"]["no_linklocal_learn"].clone();
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let config = json!({ "macspoofchk": true, "isGateway": true, "ipam": { "type": "fixed" } });
    let run = |verb, of: &Container| {
        node.run("bridge", verb).to(of).config(config.clone()).config(keys.clone())
    };
    let r1 = run("ADD", &c1).call().ok();
    answer_with(&node, &ONE_V4.replace("10.1.0.2", "10.1.0.3"));
    let r2 = run("ADD", &c2).call().ok();
    if options.contains("stp_state 1") {
        node.sh("timeout 20 sh -c 'until [ $(bridge link show | grep -c forwarding) = 2 ]; do sleep 0.05; done'");
    }
    // Without IPv6 the container sends nothing unasked, which would correct where its frames go.
    c2.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1");
    assert_pings(&c2, "10.1.0.1");
    let mac = r2["interfaces"][2]["mac"].as_str().unwrap();
    let elsewhere = |line: &&String| !line.contains(&format!("dev {} ", host_ifname(&r2)));
    let learnt = forge_to_link_local_groups(&node, &c1, mac);
    assert_eq!(learnt.iter().find(elsewhere), None);
    // A program undoes the setting: the other's frames go to the forger, CHECK reports it, and a
    // repair restores it.
    let check = |keys: Value| run("CHECK", &c1).prev(&r1).config(keys).call();
    check(json!({})).silent();
    node.sh("ip link set cni0 type bridge no_linklocal_learn 0");
    let learnt = forge_to_link_local_groups(&node, &c1, mac);
    assert!(learnt.iter().any(|line| elsewhere(&line)), "not what is guarded against: {learnt:?}");
    check(json!({})).fails(104, "learns from link-local frames");
    let said = check(json!({ cni::REPAIR: true }));
    let told = cni::RepairReport::parse(&said.output.stdout).lines;
    assert!(
        told.iter().any(|line| line.contains("no learning from link-local frames")),
        "{said:?}"
    );
    check(json!({})).silent();
    // The last DEL leaves the host as it was.
    for (container, result) in [(&c1, &r1), (&c2, &r2)] {
        assert_eq!(option(), 1);
        run("DEL", container).prev(result).call().silent();
    }
    assert_eq!(option(), 0);
}

/// Unless learning is restricted, bridges learn from frames to 01:80:c2:00:00:00 to :0f, which
/// bypass the packet filter. By a forged source address a container received another container's
/// frames.
#[test]
fn macspoofchk_is_not_passed_by_link_local_frames() {
    testkit::require!("root");
    forge_link_local_frames("bridge-ll", &json!({}), "stp_state 0");
}

/// With STP, the bridge intercepts frames to :00 too.
#[test]
fn macspoofchk_is_not_passed_by_link_local_frames_with_stp() {
    testkit::require!("root");
    forge_link_local_frames("bridge-ll-stp", &json!({}), "stp_state 1 forward_delay 200");
}

#[test]
fn vm_macspoofchk_is_not_passed_by_link_local_frames_in_a_vlan() {
    testkit::require!("root", "bridge-vlan-filtering");
    forge_link_local_frames("bridge-ll-vlan", &json!({ "vlan": 7 }), "vlan_filtering 1");
}

#[test]
fn disable_container_interface() {
    let node = node_with("bridge-down", ONE_V4);
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let config = json!({ "disableContainerInterface": true });
    add(&node, &c1).config(config.clone()).call().ok();
    assert_eq!(link(&c1, "eth0")["operstate"], "DOWN");
    add(&node, &c2)
        .config(config)
        .config(fixed())
        .call()
        .fails(7, "cannot use IPAM when DisableContainerInterface flag is set");
}

#[test]
fn layer_2_only_and_its_check() {
    let node = Node::new("bridge-l2");
    let c1 = node.container("c1");
    let result = add(&node, &c1).call().ok();
    assert!(result.get("ips").is_none());
    assert!(link(&c1, "eth0")["flags"].as_array().unwrap().contains(&json!("UP")));
    assert!(!c1.sh("ip -o -4 address show eth0").contains("inet"));
    node.run("bridge", "CHECK").to(&c1).prev(&result).call().silent();
}

#[test]
fn explicit_mac_sources() {
    let node = Node::new("bridge-mac");
    let (args, cni, runtime) = ("02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03");
    for (id, config, want) in [
        ("c1", json!({}), args),
        ("c2", json!({ "args": { "cni": { "mac": cni } } }), cni),
        (
            "c3",
            json!({ "args": { "cni": { "mac": cni } }, "runtimeConfig": { "mac": runtime } }),
            runtime,
        ),
    ] {
        let container = node.container(id);
        let result = add(&node, &container).args(&format!("MAC={args}")).config(config).call().ok();
        assert_eq!(link(&container, "eth0")["address"], want);
        assert_eq!(result["interfaces"][2]["mac"], want);
    }
    for bad in ["nonsense", "01:00:5e:00:00:01"] {
        add(&node, &node.container("c4"))
            .config(json!({ "runtimeConfig": { "mac": bad } }))
            .call()
            .fails(7, "invalid MAC address");
    }
}

#[test]
fn a_container_without_ipv6_addresses_has_its_link_local_one_at_once() {
    const V4: &str = r#"{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}]}"#;
    let node = node_with("bridge-fe80", V4);
    let c1 = node.container("c1");
    let result = add(&node, &c1).config(fixed()).call().ok();
    let mac: kernel::MacAddr = result["interfaces"][2]["mac"].as_str().unwrap().parse().unwrap();
    let shown = || c1.sh("ip -6 -oneline address show dev eth0");
    let inet6 = format!("inet6 {}/64 scope link nodad", mac.link_local());
    assert!(shown().contains(&inet6) && shown().lines().count() == 1, "{}", shown());
    // The kernel makes the same address when the link comes up again.
    c1.sh("ip link set eth0 down && ip link set eth0 up");
    let inet6 = format!("inet6 {}/64 scope link", mac.link_local());
    assert!(shown().contains(&inet6) && shown().lines().count() == 1, "{}", shown());

    answer_with(&node, &V4.replace("0.2/", "0.3/"));
    let c2 = node.container("c2");
    c2.sh("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
    add(&node, &c2).config(fixed()).call().ok();
    assert_eq!(c2.sh("ip -6 address show dev eth0"), "");
}

#[test]
fn duplicate_address_detection_and_notification() {
    let node = node_with("bridge-dad", DUAL);
    let read = |container: &Container, key: &str| {
        container.sh(&format!("cat /proc/sys/net/{key}")).trim().to_owned()
    };
    let c1 = node.container("c1");
    add(&node, &c1).config(fixed()).call().ok();
    assert_eq!(read(&c1, "ipv6/conf/eth0/accept_dad"), "0");
    assert_eq!(read(&c1, "ipv4/conf/eth0/arp_notify"), "1");
    assert_eq!(read(&c1, "ipv6/conf/eth0/keep_addr_on_down"), "1");
    assert!(!c1.sh("ip -6 address show eth0").contains("tentative"));
    del(&node, &c1).config(fixed()).call().silent();

    add(&node, &c1).config(fixed()).config(json!({ "enabledad": true })).call().ok();
    assert_eq!(read(&c1, "ipv6/conf/eth0/accept_dad"), "1");
    assert_eq!(read(&c1, "ipv6/conf/eth0/enhanced_dad"), "1");
    assert!(!c1.sh("ip -6 address show eth0 scope global").contains("tentative"));

    let c2 = node.container("c2");
    add(&node, &c2)
        .config(fixed())
        .config(json!({ "enabledad": true, "allowAddressConflict": true }))
        .call()
        .fails(108, "duplicate address detection failed for fd00:1::2/64");
    assert!(!succeeds(&c2, "ip link show eth0"));
}

#[test]
fn ipv6_is_enabled_where_it_was_off() {
    let node = node_with("bridge-v6on", DUAL);
    let c1 = node.container("c1");
    c1.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
    add(&node, &c1).config(fixed()).call().ok();
    assert_eq!(
        c1.sh("sysctl -n net.ipv6.conf.lo.disable_ipv6 net.ipv6.conf.eth0.disable_ipv6"),
        "0\n0\n"
    );
    assert!(c1.sh("ip -6 address show eth0").contains("fd00:1::2/64"));
}

#[test]
fn dns_override() {
    let node = node_with(
        "bridge-dns",
        r#"{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}],"dns":{"nameservers":["10.0.0.53"]}}"#,
    );
    for (id, config, want) in [
        ("c1", json!({}), json!(["10.0.0.53"])),
        ("c2", json!({ "dns": {} }), json!(["10.0.0.53"])),
        ("c3", json!({ "dns": { "nameservers": ["10.0.0.9"] } }), json!(["10.0.0.9"])),
        ("c4", json!({ "dns": { "nameservers": [] } }), Value::Null),
    ] {
        let result = add(&node, &node.container(id)).config(fixed()).config(config).call().ok();
        assert_eq!(result["dns"]["nameservers"], want, "{id}");
    }
}

#[test]
fn del_with_netns_gone() {
    let node = node_with("bridge-gone", ONE_V4);
    let before = Snapshot::take(&node.lab);
    for netns in ["", "/run/netns/nowhere"] {
        let c1 = node.container("c1");
        let config = json!({ "isGateway": true, "ipMasq": true });
        add(&node, &c1).config(fixed()).config(config.clone()).call().ok();
        c1.delete();
        for _ in 0..2 {
            node.run("bridge", "DEL")
                .netns(netns)
                .config(fixed())
                .config(config.clone())
                .call()
                .silent();
        }
        // The empty tables stay, as docs/firewall.md says.
        before.assert_same_but(&Snapshot::take(&node.lab), &["inet netwright"]);
    }
    assert_eq!(verbs(&node), "ADD DEL DEL ADD DEL DEL ");
}

#[test]
fn del_with_a_plain_file_as_netns() {
    let node = node_with("bridge-file", ONE_V4);
    let c1 = node.container("c1");
    add(&node, &c1).config(fixed()).call().ok();
    c1.delete();
    let file = node.dir("x").join("netns");
    std::fs::write(&file, "").unwrap();
    node.run("bridge", "DEL").netns(&file).config(fixed()).call().silent();
    assert_eq!(verbs(&node), "ADD DEL ");
    assert!(!succeeds(&node.lab, "ip link show cni0"));
}

#[test]
fn del_leaves_an_interface_of_another_attachment_alone() {
    let node = Node::new("bridge-other");
    let c1 = node.container("c1");
    add(&node, &c1).call().ok();
    // The same namespace under another container ID: an old sandbox whose namespace is in use
    // again.
    let answer = node.run("bridge", "DEL").netns(c1.netns()).id("old").call();
    assert!(answer.stderr().contains("belongs to n/c1/eth0"), "{answer:?}");
    answer.silent();
    c1.sh("ip link show eth0");
}

#[test]
fn failed_add_leaves_nothing() {
    let node = node_with("bridge-undo", r#"{"cniVersion":"1.1.0","ips":[]}"#);
    let c1 = node.container("c1");
    let before = Snapshot::take(&node.lab);
    add(&node, &c1).config(fixed()).call().fails(7, "IPAM plugin returned missing IP config");
    assert_eq!(verbs(&node), "ADD DEL ");
    before.assert_same(&Snapshot::take(&node.lab));

    // The kernel refuses the route, which is the last step.
    answer_with(
        &node,
        r#"{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}],"routes":[{"dst":"10.7.0.0/16","gw":"10.1.0.2","scope":254}]}"#,
    );
    add(&node, &c1).config(fixed()).call().error();
    assert!(!succeeds(&c1, "ip link show eth0"));
    before.assert_same(&Snapshot::take(&node.lab));
    assert_eq!(verbs(&node), "ADD DEL ADD DEL ");
}

/// An ADD was killed right after it had created the bridge. It left the note with the bridge's
/// hardware address, and a bridge that has no holder and does not carry our mark yet.
#[test]
fn del_removes_a_bridge_whose_add_was_killed_while_creating_it() {
    let node = node_with("bridge-killed", ONE_V4);
    let c1 = node.container("c1");
    let before = Snapshot::take(&node.lab);
    let leave_behind = |mac: &str| {
        std::fs::create_dir_all(node.roots.run.join("shared")).unwrap();
        let note = json!({"created": true, "mac": "02:00:00:00:00:09"}).to_string();
        std::fs::write(node.roots.run.join("shared/bridge%20cni0.made"), note).unwrap();
        node.sh(&format!("ip link add cni0 address {mac} type bridge"));
    };
    leave_behind("02:00:00:00:00:09");
    del(&node, &c1).config(fixed()).call().silent();
    before.assert_same(&Snapshot::take(&node.lab));

    // A foreign bridge that now has this name stays.
    leave_behind("02:00:00:00:00:0a");
    del(&node, &c1).config(fixed()).call().silent();
    node.sh("ip link show cni0");
    assert!(!node.roots.run.join("shared/bridge%20cni0.made").exists());
}

/// Two DELs at once, one of which has no configuration but goes by what was recorded: it comes when
/// that is gone, and must not take the bridge for the one of a configuration without a name.
#[test]
fn a_del_locks_no_bridge_that_no_attachment_has_used() {
    let node = node_with("bridge-no-lock", ONE_V4);
    let c1 = node.container("c1");
    let named = json!({ "bridge": "br0", "ipam": { "type": "fixed" } });
    add(&node, &c1).config(named.clone()).call().ok();
    del(&node, &c1).config(named).call().silent();
    del(&node, &c1).config(fixed()).call().silent();
    let locks = node.sh(&format!("ls {}", node.roots.run.join("locks").display()));
    let of_bridges: Vec<&str> = locks.lines().filter(|lock| lock.starts_with("bridge")).collect();
    assert_eq!(of_bridges, ["bridge%20br0.lock"]);
}

#[test]
fn check_names_what_is_missing() {
    let node = node_with("bridge-check", DUAL);
    let c1 = node.container("c1");
    let config = json!({ "isDefaultGateway": true, "ipam": { "type": "fixed" } });
    let result = add(&node, &c1).config(config.clone()).call().ok();
    let check = || node.run("bridge", "CHECK").to(&c1).prev(&result).config(config.clone()).call();
    check().silent();
    let port = host_ifname(&result);
    let mac = result["interfaces"][2]["mac"].as_str().unwrap();
    let bridge_mac = result["interfaces"][0]["mac"].as_str().unwrap();
    for (place, drift, repair, words) in [
        (
            &c1 as &dyn Drift,
            "ip route del default",
            "ip route add default via 10.1.0.1",
            "failed to find route 0.0.0.0/0",
        ),
        (
            &c1,
            "ip address del 10.1.0.2/24 dev eth0",
            "ip address add 10.1.0.2/24 dev eth0; ip route add default via 10.1.0.1",
            "failed to find IP 10.1.0.2/24",
        ),
        (
            &c1,
            "ip link set eth0 address 02:00:00:00:00:07",
            &format!("ip link set eth0 address {mac}"),
            "has MAC address 02:00:00:00:00:07",
        ),
        (
            &node.lab,
            "ip link set cni0 address 02:00:00:00:00:08",
            &format!("ip link set cni0 address {bridge_mac}"),
            "has MAC address 02:00:00:00:00:08",
        ),
        (
            &node.lab,
            "ip address del 10.1.0.1/24 dev cni0",
            "ip address add 10.1.0.1/24 dev cni0",
            "gateway address 10.1.0.1 is gone",
        ),
        (
            &node.lab,
            &format!("ip link set {port} nomaster"),
            &format!("ip link set {port} master cni0"),
            "is not a port of bridge",
        ),
        (
            &node.lab,
            &format!("bridge link set dev {port} hairpin on"),
            &format!("bridge link set dev {port} hairpin off"),
            "has hairpin mode on",
        ),
    ] {
        place.run(drift);
        check().fails(104, words);
        place.run(repair);
        check().silent();
    }
    node.sh(&format!("ip link del {port}"));
    check().fails(104, "interface \"eth0\" is gone");
}

/// Damages on the host and in the container, in one table.
trait Drift {
    fn run(&self, script: &str);
}

impl<P: Place> Drift for P {
    fn run(&self, script: &str) {
        self.sh(script);
    }
}

/// The routes of a container that drop packets, as `ip route` shows them.
fn dropping(container: &Container) -> String {
    let shown = container.sh("ip -4 route show table all; ip -6 route show table all");
    let kinds = ["blackhole", "unreachable", "prohibit"];
    let of_kinds = shown.lines().filter(|line| kinds.iter().any(|kind| line.starts_with(kind)));
    let routes: Vec<&str> =
        of_kinds.map(|line| line.split(" dev ").next().unwrap().trim()).collect();
    routes.join(", ")
}

#[test]
fn routes_that_drop_packets() {
    let node = Node::new("bridge-dropping");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let config = |routes: Value| {
        json!({ "isDefaultGateway": true, "ipam": { "type": "host-local", "routes": routes, "ranges": [
            [{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00:1::/64" }]] } })
    };
    let routes = json!([
        { "dst": "10.7.0.0/16", "type": "blackhole" },
        { "dst": "10.8.0.0/16", "type": "unreachable", "priority": 42 },
        { "dst": "10.9.0.0/16", "type": "prohibit", "table": 123 },
        { "dst": "0.0.0.0/0", "type": "blackhole", "priority": 9999 },
        { "dst": "fd07::/16", "type": "blackhole" },
        { "dst": "10.10.0.0/16", "type": "unicast" },
    ]);
    let config = config(routes.clone());
    let result = add(&node, &c1).config(config.clone()).call().ok();
    let all = "prohibit 10.9.0.0/16 table 123, blackhole default metric 9999, blackhole 10.7.0.0/16, \
               unreachable 10.8.0.0/16 metric 42, blackhole fd07::/16";
    assert_eq!(dropping(&c1), all);
    assert!(c1.sh("ip route").contains("default via 10.1.0.1 dev eth0"));
    assert!(c1.sh("ip route").contains("10.10.0.0/16 via 10.1.0.1"));
    assert_eq!(result["routes"][0], routes[0]);
    assert_eq!(result["routes"][4], routes[4]);
    // CHECK compares them, and repair restores them.
    let check = || node.run("bridge", "CHECK").to(&c1).prev(&result).config(config.clone());
    check().call().silent();
    c1.sh("ip route del blackhole 10.7.0.0/16; ip route add 10.7.0.0/16 dev eth0");
    check().call().fails(104, "failed to find route blackhole 10.7.0.0/16");
    c1.sh("ip route del 10.7.0.0/16");
    check().config(json!({ "netwright/repair": true })).call();
    check().call().silent();
    assert_eq!(dropping(&c1), all);
    // They have no link that would take them away, and DEL does.
    c1.sh("ip route add blackhole 10.77.0.0/16");
    del(&node, &c1).config(config.clone()).prev(&result).call().silent();
    assert_eq!(dropping(&c1), "blackhole 10.77.0.0/16");
    // Another's are not touched by an ADD that fails for them.
    c2.sh("ip route add blackhole 10.7.0.0/16");
    add(&node, &c2).config(config.clone()).call().fails(106, "blackhole 10.7.0.0/16");
    assert_eq!(dropping(&c2), "blackhole 10.7.0.0/16");
    for wrong in [
        json!({ "dst": "10.7.0.0/16", "type": "throw" }),
        json!({ "dst": "10.7.0.0/16", "type": "blackhole", "gw": "10.1.0.1" }),
    ] {
        let keys =
            json!({ "ipam": { "type": "host-local", "subnet": "10.1.0.0/24", "routes": [wrong] } });
        let refused = add(&node, &c2).config(keys).call();
        refused.fails(6, "routes");
    }
}

/// An ADD that fails after the container is configured takes the routes away again.
#[test]
fn routes_that_drop_packets_are_undone() {
    let node = Node::new("bridge-dropping-undone");
    let c1 = node.container("c1");
    let config = json!({ "isGateway": true, "ipam": { "type": "host-local", "subnet": "10.1.0.0/24",
        "routes": [{ "dst": "10.7.0.0/16", "type": "blackhole" }, { "dst": "10.8.0.0/16", "gw": "10.1.0.1", "table": 7 }] } });
    // The kernel refuses the second route, after the first.
    let config_of = |gw: &str| {
        let mut config = config.clone();
        config["ipam"]["routes"][1]["gw"] = json!(gw);
        config
    };
    let failed = add(&node, &c1).config(config_of("224.0.0.1")).call();
    assert!(!failed.succeeded());
    assert_eq!(dropping(&c1), "");
    add(&node, &c1).config(config_of("10.1.0.1")).call().ok();
    assert_eq!(dropping(&c1), "blackhole 10.7.0.0/16");
}

/// Packets to the outside take the network's own source address, by either backend.
#[test]
fn an_outbound_source_address() {
    for backend in ["nftables", "iptables"] {
        let node = node_with(&format!("bridge-outbound-{backend}"), DUAL);
        let c1 = node.container("c1");
        let outside = node.lab.outside();
        node.sh("ip address add 198.51.100.77/32 dev lo; ip link set lo up; ip -6 address add 2001:db8:77::1/128 dev lo nodad");
        outside.sh("ip route add 198.51.100.77 via 198.51.100.1; ip -6 route add 2001:db8:77::1 via 2001:db8:ffff::1");
        let config = json!({ "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": backend,
            "outboundAddr4": "198.51.100.77", "outboundAddr6": "2001:db8:77::1", "ipam": { "type": "fixed" } });
        let run = |verb: &'static str| node.run("bridge", verb).to(&c1).config(config.clone());
        let result = run("ADD").call().ok();
        let _servers = [Server::tcp(&outside, "[::]:80", "outside")];
        let seen = |to: &str| assert_tcp(&c1, to).seen.ip().to_string();
        assert_eq!(seen("198.51.100.2:80"), "198.51.100.77", "{backend}");
        assert_eq!(seen("[2001:db8:ffff::2]:80"), "2001:db8:77::1", "{backend}");
        let check = || run("CHECK").prev(&result).call();
        check().silent();
        // CHECK names a rule that was exchanged, and repair restores it.
        match backend {
            "nftables" => node.sh(
                "for chain in $(nft list chains inet | grep -o 'masquerade-[0-9a-f]*'); do \
                 nft flush chain inet netwright $chain; nft add rule inet netwright $chain masquerade; done",
            ),
            _ => node.sh("iptables -t nat -F $(iptables -t nat -S | grep -o 'CNI-[0-9a-f]*' | head -1)"),
        };
        check().fails(104, "packet filter");
        run("CHECK").prev(&result).config(json!({ "netwright/repair": true })).call();
        check().silent();
        assert_eq!(seen("198.51.100.2:80"), "198.51.100.77", "{backend}");
        run("DEL").call().silent();
        let left = node.sh("nft list ruleset");
        assert!(!left.contains("198.51.100.77") && !left.contains("2001:db8:77::1"), "{left}");
    }
}

#[test]
fn outbound_source_addresses_are_checked() {
    let node = node_with("bridge-outbound-bad", ONE_V4);
    let c1 = node.container("c1");
    let keys = |keys: Value| {
        let mut all = json!({ "isGateway": true, "ipMasq": true, "ipam": { "type": "fixed" } });
        all.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        all
    };
    for (bad, words) in [
        (json!({ "outboundAddr4": "2001:db8::1" }), "invalid outboundAddr4"),
        (json!({ "outboundAddr6": "192.0.2.1" }), "invalid outboundAddr6"),
        (json!({ "outboundAddr4": "192.0.2.0/24" }), "invalid outboundAddr4"),
        (json!({ "outboundAddr4": "0.0.0.0" }), "invalid outboundAddr4"),
        (json!({ "outboundAddr4": "127.0.0.1" }), "invalid outboundAddr4"),
        (json!({ "outboundAddr4": "255.255.255.255" }), "invalid outboundAddr4"),
        (json!({ "outboundAddr6": "ff02::1" }), "invalid outboundAddr6"),
        (json!({ "outboundAddr4": "192.0.2.1", "ipMasq": false }), "need ipMasq"),
    ] {
        add(&node, &c1).config(keys(bad)).call().fails(7, words);
    }
    // One that the host does not have may be routed to it.
    let answer = add(&node, &c1).config(keys(json!({ "outboundAddr4": "192.0.2.1" }))).call();
    assert!(answer.stderr().contains("192.0.2.1, which this host does not have"), "{answer:?}");
    assert!(answer.succeeded());
}

#[test]
fn routes_with_attributes() {
    let node = node_with(
        "bridge-routes",
        r#"{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"}],"routes":[
            {"dst":"10.7.0.0/16"},
            {"dst":"10.8.0.0/16","priority":42,"mtu":1300,"advmss":1200},
            {"dst":"10.9.0.0/16","table":123},
            {"dst":"10.10.0.0/16","gw":"10.1.0.3"},{"dst":"10.10.0.0/16","gw":"10.1.0.4","priority":9},
            {"dst":"10.11.0.0/16","scope":253,"gw":""}]}"#,
    );
    let c1 = node.container("c1");
    let result = add(&node, &c1).config(fixed()).call().ok();
    let main = c1.sh("ip route");
    for line in [
        "10.7.0.0/16 via 10.1.0.1",
        "10.8.0.0/16 via 10.1.0.1",
        "metric 42 mtu 1300 advmss 1200",
        "10.10.0.0/16 via 10.1.0.3",
        "10.10.0.0/16 via 10.1.0.4",
    ] {
        assert!(main.contains(line), "{line} in {main}");
    }
    assert!(c1.sh("ip route show table 123").contains("10.9.0.0/16 via 10.1.0.1"));
    node.run("bridge", "CHECK").to(&c1).prev(&result).config(fixed()).call().silent();
}

/// A route with `scope` and no `gw` used to lose its gateway: IPv6 has no scopes (`man 8 ip-route`,
/// "scope"), so the reference's routes keep it.
#[test]
fn a_scope_takes_no_gateway_from_an_ipv6_route() {
    let routes = r#"[{"dst":"::/0","scope":253},{"dst":"fd00:7::/64","scope":253,"table":77},
        {"dst":"fd00:8::/64","scope":254},{"dst":"10.11.0.0/16","scope":253}]"#;
    let both = DUAL.replacen("\"ips\"", &format!("\"routes\":{routes},\"ips\""), 1);
    for plugin in ["bridge", "ptp"] {
        let node = node_with("scope-v6", &both);
        let c1 = node.container("c1");
        let run = |verb| node.run(plugin, verb).to(&c1).config(fixed());
        let result = run("ADD").config(json!({ "isGateway": true })).call().ok();
        let routes = || c1.sh("ip -6 route show table all; ip route");
        let lines = [
            "default via fd00:1::1 ",
            "fd00:7::/64 via fd00:1::1 dev eth0 table 77 ",
            "fd00:8::/64 via fd00:1::1 ",
            "10.11.0.0/16 dev eth0 scope link",
        ];
        let there = |lines: &[&str]| lines.iter().all(|line| routes().contains(line));
        assert!(there(&lines), "{plugin}: {}", routes());
        let check = || node.run(plugin, "CHECK").to(&c1).config(fixed()).prev(&result);
        check().call().silent();
        c1.sh("ip -6 route del fd00:8::/64");
        check().call().fails(104, "fd00:8::/64");
        check().config(json!({ "netwright/repair": true })).call().ok();
        assert!(there(&lines), "{plugin}, repaired: {}", routes());
        run("DEL").call().silent();
    }
}

#[test]
fn status_forwards_to_ipam_and_looks_at_the_bridge() {
    let node = Node::new("bridge-status");
    node.stub("busy", r#"echo '{"code":50,"msg":"pool is exhausted"}'; exit 1"#);
    node.run("bridge", "STATUS")
        .config(json!({ "ipam": { "type": "busy" } }))
        .call()
        .fails(50, "pool is exhausted");
    node.run("bridge", "STATUS").call().silent();
    node.sh("ip link add cni0 type veth peer name other");
    node.run("bridge", "STATUS").call().fails(50, "is not a bridge");
}

#[test]
fn gc_collects_exactly_the_orphans() {
    let node = node_with("bridge-gc", ONE_V4);
    let containers: Vec<_> = (0..4).map(|n| node.container(&format!("c{n}"))).collect();
    let config = json!({ "ipMasq": true, "isGateway": true, "allowAddressConflict": true,
                         "ipam": { "type": "fixed" } });
    let names: Vec<_> = containers
        .iter()
        .map(|container| host_ifname(&add(&node, container).config(config.clone()).call().ok()))
        .collect();
    // One orphan's record is lost, too: only the mark on its link names its owner.
    node.sh(&format!("rm -r {}/owners", node.roots.run.display()));
    node.run("bridge", "GC")
        .config(config)
        .valid(&[("c1", "eth0"), ("c3", "eth0")])
        .call()
        .silent();
    let alive: Vec<_> =
        names.iter().map(|name| succeeds(&node.lab, &format!("ip link show {name}"))).collect();
    assert_eq!(alive, [false, true, false, true]);
    assert!(verbs(&node).ends_with("GC "));
}

#[test]
fn two_hundred_at_once_on_a_bridge_that_is_not_there_yet() {
    let node = Node::new("bridge-200");
    let data = node.dir("networks");
    let config = json!({
        "isGateway": true, "ipMasq": true,
        "ipam": { "type": "host-local", "dataDir": data, "subnet": "10.1.0.0/16" },
    });
    let containers: Vec<_> = (0..200).map(|n| node.container(&format!("c{n}"))).collect();
    let results: Vec<Value> = std::thread::scope(|scope| {
        let adds: Vec<_> = containers
            .iter()
            .map(|container| {
                let (node, config) = (&node, config.clone());
                scope.spawn(move || add(node, container).config(config).call().ok())
            })
            .collect();
        adds.into_iter().map(|add| add.join().unwrap()).collect()
    });
    let mut addresses: Vec<_> =
        results.iter().map(|result| result["ips"][0]["address"].to_string()).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 200);
    assert_eq!(node.sh("ip -o link show type bridge").lines().count(), 1);
    assert_eq!(node.sh("ip -o link show master cni0").lines().count(), 200);
    assert_pings(&containers[199], "10.1.0.1");
}

fn key(container_id: &str) -> AttachmentKey {
    AttachmentKey {
        network: "n".parse().unwrap(),
        container_id: container_id.parse().unwrap(),
        ifname: "eth0".parse().unwrap(),
    }
}

fn has_bridge(node: &Node) -> bool {
    succeeds(&node.lab, "ip link show cni0")
}

/// A container comes back under its ID after its namespace went, and its ADD fails. The record is
/// that of the old container.
#[test]
fn an_add_that_fails_beside_an_earlier_one_leaves_no_bridge() {
    let node = node_with("bridge-add-again", ONE_V4);
    let (old, new) = (node.container("old"), node.container("new"));
    let first = host_ifname(&add(&node, &old).id("c1").config(fixed()).call().ok());
    old.delete();
    node.stub(
        "fixed",
        r#"cat >/dev/null; [ $CNI_COMMAND = ADD ] || exit 0; echo '{"cniVersion":"1.1.0","code":11,"msg":"later"}'; exit 1"#,
    );
    add(&node, &new).id("c1").config(fixed()).call().fails(11, "later");
    assert!(!succeeds(&new, "ip link show eth0"), "its pair stays");
    assert!(!has_bridge(&node));

    answer_with(&node, ONE_V4);
    let again = add(&node, &new).id("c1").config(fixed()).call().ok();
    assert_eq!(host_ifname(&again), first);
    del(&node, &new).id("c1").config(fixed()).call().silent();
    assert!(!has_bridge(&node));
}

/// What remains of an attachment whose hold on the bridge is gone: a DEL ran out of time while it
/// waited for the attachment's ADD, or an administrator removed the file.
#[test]
fn a_bridge_on_which_an_attachment_is_stays_for_its_own_del() {
    let node = node_with("bridge-unheld", ONE_V4);
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let config = json!({ "isGateway": true, "ipam": { "type": "fixed" } });
    let shared = node.roots.run.join("shared").join(file_name_of("bridge cni0"));
    add(&node, &c1).config(config.clone()).call().ok();
    std::fs::remove_file(shared.join(key("c1").hash())).unwrap();
    del(&node, &c2).config(config.clone()).call().silent();
    assert_pings(&c1, "10.1.0.1");
    del(&node, &c1).config(config).call().silent();
    assert!(!has_bridge(&node));
}

/// DEL releases the address last. An ADD that began before that would lose its address, and one
/// that met a DEL without a record lost its hold on the bridge.
#[test]
fn a_del_keeps_adds_off_until_its_end() {
    let node = node_with("bridge-del-alone", ONE_V4);
    let c1 = node.container("c1");
    let index = Index::new(&node.roots);
    let (here, go) = (node.dir("log").join("here"), node.dir("log").join("go"));
    node.sh(&format!("mkfifo {} {}", here.display(), go.display()));
    for is_attached in [false, true] {
        answer_with(&node, ONE_V4);
        if is_attached {
            add(&node, &c1).config(fixed()).call().ok();
        }
        let (at, until) = (here.display(), go.display());
        node.stub("fixed", &format!("cat >/dev/null; echo >{at}; cat {until} >/dev/null"));
        let begun = std::thread::scope(|scope| {
            let deleting = scope.spawn(|| del(&node, &c1).config(fixed()).call().silent());
            std::fs::read(&here).unwrap();
            let begun = index.begin_attachment(&key("c1"), Duration::ZERO);
            std::fs::write(&go, "").unwrap();
            deleting.join().unwrap();
            begun
        });
        assert!(begun.is_err_and(|error| error.is_busy()), "attached: {is_attached}");
        assert!(!node.roots.run.join("owners").join(key("c1").hash()).exists());
    }
}

#[test]
fn gc_leaves_an_attachment_alone_that_somebody_is_at() {
    let node = node_with("bridge-gc-alone", ONE_V4);
    let c1 = node.container("c1");
    add(&node, &c1).config(fixed()).call().ok();
    let gc = || node.run("bridge", "GC").of_network().config(fixed()).valid(&[]).call();
    let index = Index::new(&node.roots);
    let lock = index.begin_attachment(&key("c1"), Duration::ZERO).unwrap();
    gc().fails(11, "held by");
    assert!(succeeds(&c1, "ip link show eth0") && has_bridge(&node));
    drop(lock);
    gc().silent();
    assert!(!has_bridge(&node));
}

/// An administrator flushed the bridge's addresses, and the next ADD added the gateway again.
#[test]
fn a_gateway_that_was_given_twice_goes_once() {
    let node = node_with("bridge-flushed", DUAL);
    node.sh(
        "ip link add cni0 type bridge && ip link set cni0 up && ip addr add 192.0.2.1/32 dev lo",
    );
    let config = json!({ "isGateway": true, "ipam": { "type": "fixed" } });
    let containers = ["c1", "c2"].map(|name| node.container(name));
    let give = |last: usize| {
        let v4 = DUAL.replace(".2/24", &format!(".{last}/24"));
        answer_with(&node, &v4.replace("::2/64", &format!("::{last}/64")));
    };
    for (number, container) in containers.iter().enumerate() {
        give(2 + number);
        add(&node, container).config(config.clone()).call().ok();
        node.sh("ip addr flush dev cni0 scope global");
    }
    give(4);
    let last = node.container("c3");
    add(&node, &last).config(config.clone()).call().ok();
    for container in containers.iter().chain([&last]) {
        del(&node, container).config(config.clone()).call().silent();
    }
    assert_eq!(node.sh("ip -o addr show dev cni0 scope global").trim(), "");
    // A note of an earlier release names the address twice.
    add(&node, &last).config(config.clone()).call().ok();
    let note = node.roots.run.join("shared").join(format!("{}.made", file_name_of("bridge cni0")));
    let mut made: Value = serde_json::from_slice(&std::fs::read(&note).unwrap()).unwrap();
    let twice = made["addresses"].as_array_mut().expect("the note names addresses");
    twice.extend(twice.clone());
    std::fs::write(&note, made.to_string()).unwrap();
    del(&node, &last).config(config).call().silent();
    assert_eq!(node.sh("ip -o addr show dev cni0 scope global").trim(), "");
}

fn rename(node: &Node, from: &str, to: &str) {
    node.sh(&format!(
        "ip link set {from} down && ip link set {from} name {to} && ip link set {to} up"
    ));
}

/// A bridge of ours was renamed, and an attachment on it lost its hold: the attachment's DEL
/// removes the bridge.
#[test]
fn a_renamed_bridge_on_which_an_attachment_is_stays_for_its_own_del() {
    let node = node_with("bridge-renamed-unheld", ONE_V4);
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let config = json!({ "isGateway": true, "ipam": { "type": "fixed" } });
    let shared = node.roots.run.join("shared").join(file_name_of("bridge cni0"));
    add(&node, &c1).config(config.clone()).call().ok();
    rename(&node, "cni0", "other");
    std::fs::remove_file(shared.join(key("c1").hash())).unwrap();
    del(&node, &c2).config(config.clone()).call().silent();
    assert_pings(&c1, "10.1.0.1");
    del(&node, &c1).config(config).call().silent();
    assert!(!succeeds(&node.lab, "ip link show other"));
}

/// DEL restores what we changed of a bridge that stays, whatever its name is by then.
#[test]
fn a_renamed_bridge_that_stays_is_as_it_was() {
    let node = node_with("bridge-renamed-stays", ONE_V4);
    let c1 = node.container("c1");
    let config = json!({ "isGateway": true, "macspoofchk": true, "ipam": { "type": "fixed" } });
    // A foreign bridge.
    node.sh("ip link add cni0 address 02:00:00:00:01:01 type bridge && ip link set cni0 up");
    let learning = |name: &str| link(&node.lab, name)["linkinfo"]["info_data"].clone();
    let before = learning("cni0");
    add(&node, &c1).config(config.clone()).call().ok();
    rename(&node, "cni0", "other");
    del(&node, &c1).config(config.clone()).call().silent();
    assert_eq!(node.sh("ip -o -4 addr show dev other").trim(), "");
    let kept = |data: &Value| (data["no_linklocal_learn"].clone(), data["vlan_filtering"].clone());
    assert_eq!(kept(&learning("other")), kept(&before));
    assert_eq!(node.sh("cat /proc/sys/net/ipv6/conf/other/accept_ra").trim(), "1");
    // A second bridge, which we made under the old name meanwhile, does not hide it.
    rename(&node, "other", "cni0");
    add(&node, &c1).config(config.clone()).call().ok();
    rename(&node, "cni0", "other");
    let c2 = node.container("c2");
    answer_with(&node, &ONE_V4.replace(".2/24", ".3/24"));
    let mut beside = config.clone();
    // The first bridge still has the gateway's subnet.
    add(&node, &c2).config(beside.clone()).call().fails(108, "on the host's link \"other\"");
    beside["allowAddressConflict"] = json!(true);
    add(&node, &c2).config(beside).call().ok();
    del(&node, &c1).config(config.clone()).call().silent();
    del(&node, &c2).config(config.clone()).call().silent();
    assert!(!has_bridge(&node));
    assert_eq!(node.sh("ip -o -4 addr show dev other").trim(), "");
    // A bridge of ours that has a foreign port.
    add(&node, &c1).config(config.clone()).call().ok();
    node.sh("ip link add his type veth peer name his1 && ip link set his master cni0");
    rename(&node, "cni0", "ours");
    del(&node, &c1).config(config).call().silent();
    assert_eq!(node.sh("ip -o -4 addr show dev ours").trim(), "");
}
