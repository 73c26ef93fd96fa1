//! A host that learns its IPv6 default route from its router, and gets containers.

use serde_json::{Value, json};
use testkit::router::advertise;
use testkit::{Container, Place, Snapshot};

use crate::support::Node;
use crate::support::matrix::{self, Family};

/// The host's way out by IPv6, as the kernel has learnt it.
fn learnt(node: &Node) -> String {
    node.sh("ip -6 route show default proto ra | cut -d' ' -f1-5")
}

/// Returns a host with an uplink to a router that has announced itself, and the router.
fn host(name: &str) -> (Node, Container) {
    let (node, router) = host_before(name);
    advertise(&node.lab, &router, "up0");
    assert_ne!(learnt(&node), "");
    (node, router)
}

/// The same before the router announces itself.
fn host_before(name: &str) -> (Node, Container) {
    let node = Node::new(name);
    let router = node.container("router");
    node.sh("sysctl -qw net.ipv6.conf.all.forwarding=0");
    connect(&node, &router);
    (node, router)
}

/// Connects the host's link `up0` to the router.
fn connect(node: &Node, router: &Container) {
    node.sh("ip link add up0 type veth peer name eth0 netns router; \
             sysctl -qw net.ipv6.conf.up0.accept_ra=1 net.ipv6.conf.up0.accept_dad=0");
    router.sh("sysctl -qw net.ipv6.conf.eth0.accept_dad=0; ip link set eth0 up");
    node.sh("ip link set up0 up");
}

/// Lets the router announce itself, and waits for the host's route by it.
fn hear(node: &Node, router: &Container) {
    advertise(&node.lab, router, "up0");
    node.sh(
        "timeout 60 sh -c 'until ip -6 route show default proto ra | grep -q up0; do sleep 0.01; done'",
    );
}

fn keys(node: &Node, plugin: &str) -> Value {
    let ipam = matrix::ipam(node, Family::V6);
    match plugin {
        "bridge" => json!({ "isGateway": true, "ipam": ipam }),
        _ => json!({ "ipam": ipam }),
    }
}

/// What must be as before. (The routes show how many seconds the kernel keeps them.)
fn settings(node: &Node) -> Vec<String> {
    let now = Snapshot::take(&node.lab);
    ["sysctls", "links", "nftables"].iter().flat_map(|section| now.section(section)).collect()
}

fn accept_ra(node: &Node) -> String {
    node.sh("sysctl -n net.ipv6.conf.up0.accept_ra").trim().to_owned()
}

/// The kernel deletes routes of advertisements when it begins to forward, and takes no more, where
/// `accept_ra` is 1.
#[test]
fn the_hosts_default_route_outlives_its_first_ipv6_container() {
    testkit::require!("root", "program:socat");
    for plugin in ["bridge", "ptp"] {
        let (node, router) = host(&format!("routers-{plugin}"));
        let before = learnt(&node);
        let other =
            node.sh("sysctl -n net.ipv6.conf.default.accept_ra net.ipv6.conf.all.accept_ra");
        let c1 = node.container("c1");
        let run = |verb| node.run(plugin, verb).to(&c1).config(keys(&node, plugin));
        let result = run("ADD").call().ok();
        assert_eq!(node.sh("sysctl -n net.ipv6.conf.all.forwarding").trim(), "1", "{plugin}");
        assert_eq!((learnt(&node), accept_ra(&node)), (before.clone(), "2".to_owned()), "{plugin}");
        run("DEL").prev(&result).call().silent();
        // Forwarding stays on, so this stays too.
        assert_eq!((learnt(&node), accept_ra(&node)), (before.clone(), "2".to_owned()), "{plugin}");
        // Another advertisement is taken as well.
        node.sh("ip -6 route del default");
        advertise(&node.lab, &router, "up0");
        assert_eq!(learnt(&node), before, "{plugin}");
        let after =
            node.sh("sysctl -n net.ipv6.conf.default.accept_ra net.ipv6.conf.all.accept_ra");
        assert_eq!(after, other, "{plugin}: links that come later");
    }
}

/// Where forwarding is switched off again, links listen as before.
#[test]
fn links_listen_as_before_once_the_host_does_not_forward() {
    testkit::require!("root", "program:socat");
    let (node, _router) = host("routers-restored");
    let c1 = node.container("c1");
    let before = settings(&node);
    let mut config = keys(&node, "ptp");
    config["restoreForwarding"] = json!(true);
    let run = |verb| node.run("ptp", verb).to(&c1).config(config.clone());
    let result = run("ADD").call().ok();
    assert_eq!(accept_ra(&node), "2");
    run("DEL").prev(&result).call().silent();
    assert_eq!(accept_ra(&node), "1");
    assert_eq!(settings(&node), before);
}

/// Repair switches forwarding on again as ADD does.
#[test]
fn repair_keeps_the_default_route_too() {
    testkit::require!("root", "program:socat");
    let (node, router) = host("routers-repair");
    let c1 = node.container("c1");
    let run = |verb| node.run("ptp", verb).to(&c1);
    let result = run("ADD").config(keys(&node, "ptp")).call().ok();
    node.sh("sysctl -qw net.ipv6.conf.all.forwarding=0 net.ipv6.conf.up0.accept_ra=1");
    advertise(&node.lab, &router, "up0");
    let before = learnt(&node);
    assert_ne!(before, "");
    let mut config = keys(&node, "ptp");
    config[cni::REPAIR] = json!(true);
    assert!(run("CHECK").prev(&result).config(config).call().succeeded());
    assert_eq!(node.sh("sysctl -n net.ipv6.conf.all.forwarding").trim(), "1");
    assert_eq!((learnt(&node), accept_ra(&node)), (before, "2".to_owned()));
}

/// Where the sysctl cannot be written, ADD fails before the host forwards, and says what to do.
#[test]
fn an_add_that_would_take_the_default_route_away_is_refused() {
    testkit::require!("root", "program:socat");
    let (node, _router) = host("routers-refused");
    let route = learnt(&node);
    let file = "/proc/sys/net/ipv6/conf/up0/accept_ra";
    node.sh(&format!("mount --bind {file} {file}; mount -o remount,ro,bind {file}"));
    let c1 = node.container("c1");
    let before = settings(&node);
    let error = node.run("ptp", "ADD").to(&c1).config(keys(&node, "ptp")).call().error();
    assert!(error.msg.contains("link \"up0\" listening to routers"), "{error:?}");
    let command = "sysctl -w net.ipv6.conf.up0.accept_ra=2";
    assert!(error.details.contains(command), "{error:?}");
    assert!(!error.details.contains("forwarding=1"), "{error:?}");
    assert_eq!(learnt(&node), route);
    assert_eq!(settings(&node), before);
    // Where nothing can be written, the command keeps the route as well.
    node.sh(&format!(
        "umount {file}; sysctl -qw net.ipv6.conf.default.accept_ra=0; mount --bind /proc/sys /proc/sys; \
                      mount -o remount,ro,bind /proc/sys"
    ));
    let error = node.run("ptp", "STATUS").config(keys(&node, "ptp")).call().error();
    let command = format!("{command} net.ipv6.conf.all.forwarding=1");
    assert!(error.details.ends_with(&command), "{error:?}");
}

/// A router may announce itself only after the first container came, and the host has no address yet.
#[test]
fn a_router_that_announces_itself_later_is_heard() {
    testkit::require!("root", "program:socat");
    for plugin in ["bridge", "ptp"] {
        let (node, router) = host_before(&format!("routers-later-{plugin}"));
        let c1 = node.container("c1");
        let run = |verb| node.run(plugin, verb).to(&c1).config(keys(&node, plugin));
        let result = run("ADD").call().ok();
        assert_eq!(accept_ra(&node), "2", "{plugin}");
        hear(&node, &router);
        // Nothing of ours takes advertisements.
        let listening = node.sh(
            "cd /proc/sys/net/ipv6/conf; for l in *; do [ $(cat $l/accept_ra) = 2 ] && echo $l; done; true",
        );
        assert_eq!(listening.trim(), "up0", "{plugin}");
        run("DEL").prev(&result).call().silent();
    }
}

/// So may the router of a VLAN, also in a VRF. Behind a bridge's VLAN there may be containers.
#[test]
fn vm_a_vlan_that_leads_out_is_listened_to() {
    testkit::require!("root", "vlan", "vrf");
    let (node, _router) = host_before("routers-vlan");
    node.sh("set -e; sysctl -qw net.ipv6.conf.default.accept_ra=1
         ip link add red type vrf table 77; ip link set red up
         ip link add br9 type bridge; ip link set br9 up
         for of in up0.5 up0.6 br9.7; do
             ip link add link ${of%.*} name $of type vlan id ${of#*.}; ip link set $of up
         done
         ip link set up0.6 master red");
    let found = node.lab.enter(|| {
        let mut host = kernel::route::RouteSocket::open().unwrap();
        kernel::routers::listening(&mut host).unwrap()
    });
    let mut names: Vec<String> = found.into_iter().map(|one| one.link).collect();
    names.sort();
    assert_eq!(names, ["up0", "up0.5", "up0.6"]);
}

/// A link may come, or come back, while containers are attached.
#[test]
fn a_link_that_comes_later_is_listened_to() {
    use plugins::shared::shared_object::{links_that_ignore_routers, listen_on_new_links};
    testkit::require!("root", "program:socat");
    let (node, router) = host("routers-new-link");
    let index = || state::Index::new(&node.roots);
    let c1 = node.container("c1");
    let mut config = keys(&node, "ptp");
    config["restoreForwarding"] = json!(true);
    let run = |verb| node.run("ptp", verb).to(&c1).config(config.clone());
    let result = run("ADD").call().ok();
    let listen = || {
        let (one, other) = (index(), index());
        let found = node.lab.enter(move || links_that_ignore_routers(&one).unwrap());
        let made = node.lab.enter(move || listen_on_new_links(&other).unwrap());
        assert_eq!(found, made);
        made
    };
    assert_eq!(listen(), [""; 0]);
    for _ in 0..2 {
        node.sh("ip link del up0");
        connect(&node, &router);
        assert_eq!(accept_ra(&node), "1");
        assert_eq!(listen(), ["up0"]);
        hear(&node, &router);
    }
    // What an administrator sets back stays.
    node.sh("sysctl -qw net.ipv6.conf.up0.accept_ra=1");
    assert_eq!(listen(), [""; 0]);
    node.sh("sysctl -qw net.ipv6.conf.up0.accept_ra=2");
    run("DEL").prev(&result).call().silent();
    assert_eq!(accept_ra(&node), "1");
}

/// The host may have its way out by the very bridge that containers are to be attached to. It keeps it,
/// and no container gets where it could become the host's router.
#[test]
fn a_bridge_that_the_host_has_its_default_route_by_is_refused() {
    testkit::require!("root", "program:socat");
    let (node, router) = host_before("routers-by-bridge");
    node.sh("ip link add br0 type bridge && sysctl -qw net.ipv6.conf.br0.accept_ra=1 \
         net.ipv6.conf.br0.accept_dad=0 && ip link set br0 up && ip link set up0 master br0");
    advertise(&node.lab, &router, "br0");
    node.sh("timeout 60 sh -c 'until ip -6 route show default proto ra | grep -q br0; do sleep 0.01; done'");
    let route = learnt(&node);
    let before = settings(&node);
    let c1 = node.container("c1");
    for family in [Family::V4, Family::V6] {
        let ipam = matrix::ipam(&node, family);
        let config = json!({ "bridge": "br0", "isGateway": true, "ipam": ipam });
        let run = |verb| node.run("bridge", verb).to(&c1).config(config.clone());
        for verb in ["STATUS", "ADD"] {
            let error = run(verb).call().error();
            assert!(error.msg.contains("IPv6 default route"), "{verb}: {error:?}");
            let command = "sysctl -w net.ipv6.conf.br0.accept_ra=0";
            assert!(error.details.ends_with(command), "{verb}: {error:?}");
        }
        run("DEL").call().silent();
        assert_eq!((learnt(&node), settings(&node)), (route.clone(), before.clone()));
    }
    // Another way out will do.
    node.sh("ip -6 route add default via fe80::1 dev br0 metric 5");
    let config = json!({ "bridge": "br0", "ipam": matrix::ipam(&node, Family::V4) });
    let run = |verb| node.run("bridge", verb).to(&c1).config(config.clone());
    let result = run("ADD").call().ok();
    assert_eq!(node.sh("cat /proc/sys/net/ipv6/conf/br0/accept_ra"), "0\n");
    run("DEL").prev(&result).call().silent();
    assert_eq!(node.sh("cat /proc/sys/net/ipv6/conf/br0/accept_ra"), "1\n");
}
