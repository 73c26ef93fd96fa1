//! A host that learns its IPv6 default route from its router, and gets containers.

mod forged;

use serde_json::{Value, json};
use testkit::router::advertise;
use testkit::traffic::assert_pings;
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

/// Returns a host whose uplink is a port of its bridge `br0`, and the router that has announced itself
/// there.
fn bridged(name: &str) -> (Node, Container) {
    let (node, router) = bridged_before(name);
    announce(&node, &router);
    (node, router)
}

/// The same before the router announces itself.
fn bridged_before(name: &str) -> (Node, Container) {
    let (node, router) = host_before(name);
    // What does not forward says in its answers that it is no router.
    router.sh("sysctl -qw net.ipv6.conf.all.forwarding=1");
    node.sh("ip link add br0 type bridge && sysctl -qw net.ipv6.conf.br0.accept_ra=1 \
         net.ipv6.conf.br0.accept_dad=0 && ip link set br0 up && ip link set up0 master br0");
    (node, router)
}

/// Lets the router announce itself by the bridge, and waits for the host's route by it.
fn announce(node: &Node, router: &Container) {
    advertise(&node.lab, router, "br0");
    node.sh("timeout 60 sh -c 'until ip -6 route show default proto ra | grep -q br0; do sleep 0.01; done'");
}

fn on_br0(node: &Node, family: Family) -> Value {
    json!({ "bridge": "br0", "isGateway": true, "ipam": matrix::ipam(node, family) })
}

fn accept_ra_of_br0(node: &Node) -> String {
    node.sh("cat /proc/sys/net/ipv6/conf/br0/accept_ra").trim().to_owned()
}

/// The ports whose containers the host does not hear as routers.
fn guarded(node: &Node) -> usize {
    let set = node.sh("nft list set bridge netwright no_routers 2>/dev/null; true");
    set.matches("comment").count()
}

/// The host may have its way out by the very bridge that containers are attached to. It goes on hearing
/// its router, and no container: neither in a plain frame nor in any that the host reads as one.
#[test]
fn a_host_hears_its_router_by_the_bridge_of_its_containers() {
    testkit::require!("root", "program:socat");
    for (family, gateway) in [(Family::V4, "10.1.0.1"), (Family::V6, "fd00:1::1")] {
        let (node, router) = bridged(&format!("routers-by-bridge-{family:?}").to_lowercase());
        let route = learnt(&node);
        let config = on_br0(&node, family);
        let run = |verb, to: &Container| node.run("bridge", verb).to(to).config(config.clone());
        let (c1, c2) = (node.container("c1"), node.container("c2"));
        run("STATUS", &c1).call().silent();
        let results = [&c1, &c2].map(|container| run("ADD", container).call().ok());
        let accepts = if family == Family::V6 { "2" } else { "1" };
        assert_eq!((learnt(&node), accept_ra_of_br0(&node).as_str()), (route.clone(), accepts));
        node.sh("ip -6 route del default");
        announce(&node, &router);
        assert_eq!(learnt(&node), route, "{family:?}: another advertisement is taken");
        let heard = |from: &Container| {
            let frames = forged::all(&node, from, &route);
            forged::send(from, &frames);
            // The host handles frames in order, and answers after these.
            assert_pings(from, gateway);
            forged::heard(&node, &frames)
        };
        let nothing: [&str; 0] = [];
        for container in [&c1, &c2] {
            assert_eq!(heard(container), nothing, "{family:?} {}", container.name());
        }
        assert_eq!(learnt(&node), route);
        let check = |to: &Container, keys| {
            let result = &results[usize::from(to.name() == "c2")];
            run("CHECK", to).prev(result).config(keys).call()
        };
        check(&c1, json!({})).silent();
        // What the rules are for.
        node.sh("nft flush set bridge netwright no_routers");
        check(&c1, json!({})).fails(104, "missing: bridge netwright no_routers");
        let all = heard(&c1);
        for kind in forged::KINDS {
            let is_host = family == Family::V4 || kind != forged::REDIRECT;
            assert_eq!(all.contains(&kind), is_host, "{family:?} {kind}: {all:?}");
        }
        for container in [&c1, &c2] {
            assert!(check(container, json!({ cni::REPAIR: true })).succeeded());
            check(container, json!({})).silent();
        }
        assert_eq!((guarded(&node), accept_ra_of_br0(&node).as_str()), (2, accepts));
        run("DEL", &c1).prev(&results[0]).call().silent();
        assert_eq!(guarded(&node), 1);
        // Of a container that nobody has recorded, as the Go plugins attach it, nothing is known.
        node.sh(&format!("rm -r {}/owners/*", node.roots.run.display()));
        let said = format!("{:?}", check(&c2, json!({ cni::REPAIR: true })));
        assert!(!said.contains("router advertisements"), "{said}");
        assert_eq!((learnt(&node).is_empty(), accept_ra_of_br0(&node).as_str()), (false, accepts));
        c2.sh("ip link del eth0");
        node.run("bridge", "GC").of_network().config(config.clone()).valid(&[]).call().silent();
        assert_eq!((guarded(&node), accept_ra_of_br0(&node).as_str()), (0, accepts));
    }
}

/// A bridge that filters VLANs removes a tag of its own VLAN, and leaves tags of the other kind where
/// they are.
#[test]
fn vm_a_host_hears_no_container_as_its_router_by_a_bridge_that_filters_vlans() {
    testkit::require!("root", "program:socat", "bridge-vlan-filtering");
    let (node, _router) = bridged("routers-vlans");
    node.sh("ip link set br0 type bridge vlan_filtering 1");
    let route = learnt(&node);
    let config = on_br0(&node, Family::V4);
    let c1 = node.container("c1");
    let run = |verb| node.run("bridge", verb).to(&c1).config(config.clone());
    let result = run("ADD").call().ok();
    let port = result["interfaces"][1]["name"].as_str().unwrap();
    node.sh(&format!("bridge vlan add dev {port} vid 1 pvid untagged"));
    let heard = || {
        let frames = forged::in_vlans(&node, &c1);
        forged::send(&c1, &frames);
        assert_pings(&c1, "10.1.0.1");
        forged::heard(&node, &frames)
    };
    assert_eq!(heard(), [""; 0]);
    assert_eq!(learnt(&node), route);
    node.sh("nft flush set bridge netwright no_routers");
    assert_eq!(heard(), forged::IN_VLANS);
    run("DEL").prev(&result).call().silent();
}

/// A bridge with `br_netfilter` joins fragments, and what it hands to the host is no fragment any more:
/// the host would take it.
#[test]
fn a_host_hears_no_router_in_fragments_that_its_bridge_joins() {
    testkit::require!("root", "program:socat");
    let (node, _router) = bridged("routers-fragments");
    let route = learnt(&node);
    node.sh("nft add table ip6 track && nft add chain ip6 track in '{ type filter hook prerouting priority 0; }' && \
         nft add rule ip6 track in ct state invalid counter");
    let config = on_br0(&node, Family::V4);
    let c1 = node.container("c1");
    let run = |verb| node.run("bridge", verb).to(&c1).config(config.clone());
    let result = run("ADD").call().ok();
    let heard = |joined: bool| {
        node.sh(&format!("sysctl -qw net.bridge.bridge-nf-call-ip6tables={}", u8::from(joined)));
        let frames = forged::in_fragments(&node, &c1);
        forged::send(&c1, &frames);
        assert_pings(&c1, "10.1.0.1");
        forged::heard(&node, &frames)
    };
    let nothing: [&str; 0] = [];
    assert_eq!((heard(false), heard(true)), (nothing.to_vec(), nothing.to_vec()));
    assert_eq!(learnt(&node), route);
    node.sh("nft flush set bridge netwright no_routers");
    assert_eq!(heard(false), nothing, "RFC 6980");
    assert_eq!(heard(true), forged::IN_FRAGMENTS);
    run("DEL").prev(&result).call().silent();
}

/// Containers that came while the bridge heard nothing rely on that.
#[test]
fn a_bridge_that_hears_no_router_for_its_containers_stays_so() {
    testkit::require!("root", "program:socat");
    let (node, router) = bridged_before("routers-off");
    let config = on_br0(&node, Family::V4);
    let run = |verb, to: &Container| node.run("bridge", verb).to(to).config(config.clone());
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let result = run("ADD", &c1).call().ok();
    assert_eq!((accept_ra_of_br0(&node).as_str(), guarded(&node)), ("0", 0));
    // Somebody switches it on again, and the host learns its way out.
    node.sh("sysctl -qw net.ipv6.conf.br0.accept_ra=1");
    announce(&node, &router);
    let (route, before) = (learnt(&node), settings(&node));
    for verb in ["STATUS", "ADD"] {
        let error = run(verb, &c2).call().error();
        assert!(error.msg.contains("IPv6 default route"), "{verb}: {error:?}");
        assert!(error.details.contains("detach them first"), "{verb}: {error:?}");
    }
    run("DEL", &c2).call().silent();
    assert_eq!((learnt(&node), settings(&node)), (route.clone(), before));
    // Once they have gone, the next ones are kept from it.
    run("DEL", &c1).prev(&result).call().silent();
    assert_eq!(accept_ra_of_br0(&node), "1");
    let result = run("ADD", &c2).call().ok();
    assert_eq!((learnt(&node), accept_ra_of_br0(&node).as_str(), guarded(&node)), (route, "1", 1));
    run("DEL", &c2).prev(&result).call().silent();
    assert_eq!(accept_ra_of_br0(&node), "1");
}
