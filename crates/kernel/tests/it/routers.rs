use kernel::netlink::NetlinkError;
use kernel::route::RouteSocket;
use kernel::routers::{self, Listener};

use crate::guard::{fresh_netns, in_netns, sh, veth_to};

/// Returns the names, sorted.
fn names(found: Result<Vec<Listener>, NetlinkError>) -> Vec<String> {
    let mut names: Vec<String> = found.unwrap().into_iter().map(|one| one.link).collect();
    names.sort();
    names
}

/// Links that learn from routers, or may learn from one yet, listen on beside forwarding; links with a
/// default route that an administrator has made, links of containers, and those that an administrator
/// has set, stay as they are.
#[test]
fn links_with_a_router_listen_beside_forwarding() {
    in_netns(|| {
        sh("set -e; cd /proc/sys/net/ipv6/conf; echo 0 >all/forwarding; echo 0 >default/forwarding
            echo 1 >default/accept_ra; echo 0 >default/disable_ipv6
            for name in route.1 learnt default4 default6 none always never v4only routes; do
                ip link add $name type veth peer name p-$name
                ip link set $name up; ip link set p-$name up
                ip -6 addr add fe80::a/64 dev $name nodad
            done
            ip -6 route add default via fe80::1 dev route.1 proto ra metric 1
            ip -6 addr add 2001:db8:1::5/64 dev learnt valid_lft 600 preferred_lft 600
            ip addr add 192.0.2.5/24 dev default4; ip route add default via 192.0.2.1
            ip -6 route add default via fe80::1 dev default6 metric 2
            ip -6 addr add 2001:db8:2::5/64 dev none
            metric=3
            for name in always never v4only routes; do
                ip -6 route add default via fe80::1 dev $name proto ra metric $metric
                metric=$((metric + 1))
            done
            echo 2 >always/accept_ra; echo 0 >never/accept_ra; echo 1 >routes/forwarding
            echo 1 >v4only/disable_ipv6");
        let mut netlink = RouteSocket::open().unwrap();
        assert_eq!(names(routers::listening(&mut netlink)), ["learnt", "route.1"]);
        let values = || {
            let shown = sh("cd /proc/sys/net/ipv6/conf; cat always/accept_ra never/accept_ra \
                            none/accept_ra route.1/accept_ra");
            shown.split_whitespace().collect::<String>()
        };
        for link in ["always", "never", "route.1", "gone"] {
            routers::keep(link).unwrap();
        }
        assert_eq!(values(), "2012");
        assert_eq!(names(routers::listening(&mut netlink)), ["learnt"]);
        for link in ["never", "route.1", "gone"] {
            routers::restore(link).unwrap();
        }
        assert_eq!(values(), "2011");
        // Without an IPv6 default route, the first advertisement may be yet to come.
        sh("while ip -6 route del default 2>/dev/null; do :; done");
        assert_eq!(names(routers::listening(&mut netlink)), ["default4", "learnt"]);
    });
}

/// A link that leads out of the host may hear its first router after forwarding was switched on. One
/// that may lead to a container is not listened to.
#[test]
fn a_router_that_has_not_announced_itself_yet_will_be_heard() {
    in_netns(|| {
        let mut netlink = RouteSocket::open().unwrap();
        sh("set -e; cd /proc/sys/net/ipv6/conf; echo 0 >all/forwarding; echo 0 >default/forwarding
            echo 1 >default/accept_ra; echo 0 >default/disable_ipv6
            ip link add br0 type bridge; ip link set br0 up");
        let _others = ["out", "port", "marked", "routed", "routed6"].map(|name| {
            let other = fresh_netns();
            veth_to(&mut netlink, name, &other);
            other
        });
        sh("set -e; ip link set port master br0; ip link set marked alias someone
            ip route add 10.9.0.2 dev routed; ip -6 route add fd00:9::2 dev routed6
            ip link add near type veth peer name p-near; ip link set near up");
        let listening = |netlink: &mut RouteSocket| names(routers::listening(netlink));
        let ignoring = |netlink: &mut RouteSocket| names(routers::ignoring(netlink));
        assert_eq!(listening(&mut netlink), ["out"]);
        assert_eq!(ignoring(&mut netlink), [""; 0]);
        sh("echo 1 >/proc/sys/net/ipv6/conf/all/forwarding");
        assert_eq!(listening(&mut netlink), [""; 0]);
        assert_eq!(ignoring(&mut netlink), ["out"]);
        // Another router's route does not say that there is none here.
        sh("ip -6 route add default via fe80::1 dev near proto ra");
        assert_eq!(ignoring(&mut netlink), ["near", "out"]);
        // An administrator's does.
        sh("ip -6 route del default; ip -6 route add default via fe80::1 dev near");
        assert_eq!(ignoring(&mut netlink), [""; 0]);
        sh("ip -6 route del default; echo 0 >/proc/sys/net/ipv6/conf/out/accept_ra");
        assert_eq!(ignoring(&mut netlink), [""; 0]);
    });
}
