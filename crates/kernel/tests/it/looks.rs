//! Reading the state of a namespace: sockets, settings of links, foreign rule sets.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

use kernel::nft::{Family, HookPoint, NftSocket, TableRef};
use kernel::route::{FilterInfo, IpFamily, RouteFilter, RouteSocket, TcHandle};
use kernel::sockets;

use crate::guard::{in_netns, sh, skip, try_sh};

#[test]
fn sockets_that_wait_are_listed_and_connections_are_not() {
    in_netns(|| {
        sh("ip link set lo up");
        assert_eq!(sockets::waiting(100).unwrap().sockets, []);
        let tcp = TcpListener::bind("127.0.0.1:81").unwrap();
        let _both = TcpListener::bind("[::]:82").unwrap();
        let _udp = UdpSocket::bind("[::1]:83").unwrap();
        let client = UdpSocket::bind("127.0.0.1:84").unwrap();
        client.connect("127.0.0.1:53").unwrap();
        let _connected = TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
        let found = sockets::waiting(100).unwrap();
        let all: Vec<(SocketAddr, bool, bool)> =
            found.sockets.iter().map(|one| (one.at, one.is_tcp, one.v6only)).collect();
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(
            all,
            [
                (at("127.0.0.1:81"), true, false),
                (at("[::]:82"), true, false),
                // An IPv6 address of its own serves no IPv4.
                (at("[::1]:83"), false, true),
            ]
        );
        assert!(!found.more);
        assert!(found.sockets.iter().all(|one| one.inode != 0), "{found:?}");
        let is_counted = found.sockets.iter().all(|one| one.unaccepted.is_some() == one.is_tcp);
        assert!(is_counted, "{found:?}");
        let some = sockets::waiting(1).unwrap();
        assert_eq!((some.sockets.len(), some.more), (1, true));
    });
}

#[test]
fn addresses_of_others_are_listed() {
    in_netns(|| {
        sh("ip link add d0 type veth peer name d1; ip link set d0 up; \
            ip neigh add proxy 192.0.2.7 dev d0; ip -6 neigh add proxy 2001:db8::7 dev d0; \
            ip neigh add 192.0.2.8 lladdr 02:00:00:00:00:08 dev d0 nud permanent");
        let mut socket = RouteSocket::open().unwrap();
        for (family, address) in [(IpFamily::V4, "192.0.2.7"), (IpFamily::V6, "2001:db8::7")] {
            let found = socket.proxied(family).unwrap();
            let all: Vec<String> = found.iter().map(|one| one.address.to_string()).collect();
            assert_eq!(all, [address]);
        }
    });
}

#[test]
fn settings_of_links_are_those_of_proc() {
    in_netns(|| {
        sh("ip link add d0 type veth peer name d1; ip link set d1 mtu 1000");
        sh("sysctl -qw net.ipv4.conf.d0.rp_filter=2 net.ipv4.conf.d0.route_localnet=1 \
            net.ipv4.conf.d0.arp_ignore=3 net.ipv4.conf.d0.proxy_arp=1 \
            net.ipv4.conf.d0.arp_filter=1 \
            net.ipv4.conf.d0.accept_local=1 net.ipv4.conf.d0.forwarding=1 \
            net.ipv6.conf.d0.accept_ra=2 net.ipv6.conf.d0.proxy_ndp=1 \
            net.ipv6.conf.d0.hop_limit=7 \
            net.ipv6.conf.d0.disable_ipv6=1 net.ipv6.conf.d0.forwarding=1 \
            net.ipv4.conf.d1.rp_filter=0");
        let links = RouteSocket::open().unwrap().links_with_settings().unwrap();
        let of = |name: &str| links.iter().find(|(link, _)| link.name == name).unwrap().1;
        let (ipv4, ipv6) = (of("d0").ipv4.unwrap(), of("d0").ipv6.unwrap());
        assert_eq!((ipv4.rp_filter, ipv4.route_localnet, ipv4.arp_ignore), (2, 1, 3));
        assert_eq!((ipv4.proxy_arp, ipv4.accept_local, ipv4.forwarding), (1, 1, 1));
        assert_eq!(ipv4.arp_filter, 1);
        assert_eq!((ipv6.accept_ra, ipv6.proxy_ndp, ipv6.hop_limit), (2, 1, 7));
        assert_eq!((ipv6.disable_ipv6, ipv6.forwarding), (1, 1));
        // A link with so small an MTU has no IPv6.
        assert_eq!((of("d1").ipv4.unwrap().rp_filter, of("d1").ipv6), (0, None));
    });
}

#[test]
fn a_list_of_a_namespace_of_others_has_an_end() {
    in_netns(|| {
        sh("ip link set lo up; for n in 1 2 3 4 5; do ip route add 192.0.2.$n dev lo; done");
        let mut socket = RouteSocket::open().unwrap();
        let main = RouteFilter::main(IpFamily::V4);
        assert_eq!((socket.routes(main).unwrap().len(), socket.take_cut()), (5, false));
        socket.set_most(3);
        assert_eq!((socket.routes(main).unwrap().len(), socket.take_cut()), (3, true));
        assert_eq!((socket.links().unwrap().len(), socket.take_cut()), (1, false));
    });
}

#[test]
fn vm_what_loses_packets_is_told() {
    in_netns(|| {
        sh("ip link add d0 type veth peer name d1; ip link set d0 up; ip link set d1 up");
        if try_sh("tc qdisc add dev d0 root netem loss 50%").0 != Some(0) {
            assert!(std::env::var_os("NETWRIGHT_VM").is_none(), "it should have netem");
            return skip("looks::vm_what_loses_packets_is_told", "the kernel has no netem");
        }
        sh("tc qdisc add dev d1 clsact; \
            tc filter add dev d1 ingress pref 5 protocol ip matchall action drop; \
            tc filter add dev d1 egress pref 6 protocol all u32 match ip dst 192.0.2.1/32 action drop; \
            tc filter add dev d1 egress pref 7 protocol ipv6 matchall action ok");
        let mut socket = RouteSocket::open().unwrap();
        let links = socket.links().unwrap();
        let of = |name: &str| links.iter().find(|link| link.name == name).unwrap().index;
        let all = socket.qdiscs().unwrap();
        let loss = |name: &str| {
            let of_link = all.iter().filter(|found| found.qdisc.ifindex == of(name));
            of_link.map(|found| found.loss).max().unwrap()
        };
        let half = u32::MAX / 2;
        assert!(loss("d0").abs_diff(half) < u32::MAX / 1000, "{all:?}");
        assert_eq!(loss("d1"), 0);
        let mut found = |parent| -> Vec<_> {
            let found = socket.filters(of("d1"), parent).unwrap();
            let told = |one: &FilterInfo| (one.preference, one.protocol, one.takes_all, one.drops);
            found.iter().map(told).collect()
        };
        assert_eq!(found(TcHandle::INGRESS_FILTERS), [(5, 0x0800, true, true)]);
        assert_eq!(
            found(TcHandle::EGRESS_FILTERS),
            [(6, 3, false, true), (7, 0x86dd, true, false)]
        );
    });
}

#[test]
fn vm_classes_say_what_they_may_send() {
    in_netns(|| {
        sh("ip link add d0 type veth peer name d1");
        if try_sh("tc qdisc add dev d0 root handle 1: htb default 20").0 != Some(0) {
            assert!(std::env::var_os("NETWRIGHT_VM").is_none(), "it should have htb");
            return skip("looks::vm_classes_say_what_they_may_send", "the kernel has no htb");
        }
        sh("tc class add dev d0 parent 1: classid 1:1 htb rate 80kbit; \
            tc class add dev d0 parent 1:1 classid 1:20 htb rate 8kbit ceil 16kbit");
        let mut socket = RouteSocket::open().unwrap();
        let index = socket.link_by_name("d0").unwrap().unwrap().index;
        let all = socket.qdiscs().unwrap();
        let root = all.iter().find(|found| found.qdisc.ifindex == index).unwrap();
        assert_eq!(root.default_class, Some(TcHandle::new(1, 0x20)));
        let mut classes: Vec<_> = (socket.classes(index).unwrap().iter())
            .map(|one| (one.handle, one.parent, one.rate, one.ceil))
            .collect();
        classes.sort();
        let (above, below) = (TcHandle::new(1, 1), TcHandle::new(1, 0x20));
        let expected = [(above, TcHandle::ROOT, 10_000, 10_000), (below, above, 1_000, 2_000)];
        assert_eq!(classes, expected);
        assert_eq!(socket.classes(9_999).unwrap(), []);
    });
}

#[test]
fn vm_vlans_of_all_ports_are_listed() {
    in_netns(|| {
        if try_sh("ip link add br0 type bridge vlan_filtering 1").0 != Some(0) {
            return skip(
                "looks::vm_vlans_of_all_ports_are_listed",
                "this kernel has no CONFIG_BRIDGE_VLAN_FILTERING",
            );
        }
        sh("ip link add d0 type veth peer name d1; ip link set d0 master br0; \
            bridge vlan add dev d0 vid 7; bridge vlan del dev br0 vid 1 self");
        let mut socket = RouteSocket::open().unwrap();
        let links = socket.links().unwrap();
        let of = |name: &str| links.iter().find(|link| link.name == name).unwrap().index;
        let all = socket.vlans_of_ports().unwrap();
        let vlans = |name: &str| -> Vec<u16> {
            let of_port = all.iter().filter(|(port, _)| *port == of(name));
            of_port.flat_map(|(_, vlans)| vlans).map(|vlan| vlan.first).collect()
        };
        assert_eq!((vlans("d0"), vlans("d1"), vlans("br0")), (vec![1, 7], vec![], vec![]));
    });
}

fn of_vrf_and_further(pref: u32) -> (bool, bool) {
    let rules = RouteSocket::open().unwrap().rules(IpFamily::V4).unwrap();
    let rule = rules.iter().find(|rule| rule.priority == Some(pref)).unwrap();
    (rule.of_vrf, rule.further)
}

#[test]
fn rules_with_further_conditions_are_told_apart() {
    in_netns(|| {
        sh("ip rule add pref 901 ipproto tcp lookup 7; \
            ip rule add pref 902 lookup main suppress_prefixlength 0; \
            ip rule add pref 903 from 192.0.2.1 lookup 7; ip rule add pref 904 dsfield 0x10 lookup 7");
        let found = [901, 902, 903, 904, 32766].map(of_vrf_and_further);
        assert_eq!(found, [true, true, false, true, false].map(|further| (false, further)));
        let rules = RouteSocket::open().unwrap().rules(IpFamily::V4).unwrap();
        let suppress: Vec<Option<u32>> = rules.iter().map(|rule| rule.suppress).collect();
        // Before them is that of the table `local`, and after them those of `main` and `default`.
        assert_eq!(suppress, [None, None, Some(0), None, None, None, None]);
    });
}

#[test]
fn vm_rules_of_vrfs_are_told_apart() {
    in_netns(|| {
        let (status, _, errors) = try_sh("ip rule add pref 900 l3mdev");
        if status != Some(0) {
            return skip("looks::vm_rules_of_vrfs_are_told_apart", errors.trim());
        }
        assert_eq!(of_vrf_and_further(900), (true, false));
    });
}

#[test]
fn a_bounded_look_at_a_large_set_says_that_there_is_more() {
    in_netns(|| {
        // One message has more than a thousand.
        let range = |n: u32| format!("10.{0}.{1}.10-10.{0}.{1}.20", n / 250, n % 250);
        let many: Vec<String> = (0..3000).map(range).collect();
        let file = format!(
            "table inet t {{\n set s {{ type ipv4_addr; flags interval; elements = {{ {} }}\n }}\n \
             map m {{ type ipv4_addr : verdict; elements = {{ 192.0.2.1 : drop, * : accept }}\n }}\n \
             set c {{ type inet_proto . ipv6_addr . inet_service; flags interval; }}\n \
             chain a {{ {} }}\n}}\n",
            many.join(", "),
            "counter\n".repeat(30)
        );
        let path = std::env::temp_dir().join(format!("nwt-looks-{}", std::process::id()));
        std::fs::write(&path, file).unwrap();
        sh(&format!("nft -f {}", path.display()));
        std::fs::remove_file(&path).unwrap();
        let table = TableRef::new(Family::Inet, "t");
        let mut nft = NftSocket::open().unwrap();
        let all = nft.some_elements(&table, "s", 10_000).unwrap();
        assert_eq!((all.elements.len(), all.more, all.for_others), (3000, false, false));
        assert_eq!(all.elements, nft.elements(&table, "s").unwrap());
        let some = nft.some_elements(&table, "s", 10).unwrap();
        let count = some.elements.len();
        assert!(some.more && 0 < count && count < 2900, "{count}");
        // No returned rule matches more than the kernel's rule.
        assert!(some.elements.iter().all(|one| all.elements.contains(one)), "{some:?}");
        assert_eq!(nft.some_elements(&table, "none", 10).unwrap().elements, []);
        let map = nft.some_elements(&table, "m", 10).unwrap();
        assert_eq!((map.elements.len(), map.more, map.for_others), (1, false, true));
        let (rules, more) = nft.some_rules_of_table(&table, 10).unwrap();
        assert_eq!((rules.len(), more), (10, true));
        let (rules, more) = nft.some_rules_of_table(&table, 100).unwrap();
        assert_eq!((rules.len(), more), (30, false));
        assert_eq!(nft.get_set(&table, "c").unwrap().unwrap().fields, [1, 16, 2]);
        assert_eq!(nft.get_set(&table, "s").unwrap().unwrap().fields, [0; 0]);
    });
}

#[test]
fn chains_of_links_say_of_which() {
    in_netns(|| {
        sh("ip link add d0 type veth peer name d1");
        sh(
            "nft 'add table netdev t; add chain netdev t one { type filter hook ingress device d0 priority 0; }; \
            add chain netdev t two { type filter hook ingress devices = { d0, d1 } priority 0; }; \
            add chain netdev t plain'",
        );
        let chains = NftSocket::open().unwrap().chains(Some(Family::Netdev)).unwrap();
        let of = |name: &str| {
            let chain = chains.iter().find(|chain| chain.name == name).unwrap();
            let mut devices = chain.devices.clone();
            devices.sort();
            (chain.hook.as_ref().map(|hook| hook.point), devices.join(" "))
        };
        assert_eq!(of("one"), (Some(HookPoint::Ingress), "d0".to_owned()));
        assert_eq!(of("two"), (Some(HookPoint::Ingress), "d0 d1".to_owned()));
        assert_eq!(of("plain"), (None, String::new()));
    });
}
