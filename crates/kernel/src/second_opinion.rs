//! Our bytes, decoded by rust-netlink's codecs (STYLE, section 6, rule 5).
//!
//! The codecs must know every attribute, and must encode what they decoded to our bytes again.

use netlink_packet_core::NetlinkMessage;
use netlink_packet_netfilter::NetfilterMessage;
use netlink_packet_route::RouteNetlinkMessage;

use crate::nft::{
    Batch, Element, Family, Hook, Key, KeyType, NewChain, NewRule, NewSet, TableRef, Value,
    Verdict, field,
};
use crate::route::IpFamily;
use crate::route::{
    AddressOptions, BridgeOptions, BridgeVlan, BridgeVlanSide, Change, Fdb, IpvlanMode,
    IpvlanOptions, IpvlanReach, LinkKind, LinkSet, MacvlanMode, MacvlanOptions, Neighbour,
    NeighbourState, NewLink, NextHop, Route, RouteProtocol, Rule, Scope, VethPeer, VlanOptions,
    VlanProtocol, VxlanFdb, VxlanOptions, VxlanSet,
};
use crate::wire::{self, Writer};
use crate::{MacAddr, netns::Netns};

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

fn messages(change: &Change) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    change.encode(&mut |kind, flags, body| {
        let mut writer = Writer::new();
        writer.message(kind, flags, 1, body);
        messages.push(writer.bytes().to_vec());
    });
    messages
}

/// Their text of a change, after a check that their bytes are ours.
#[track_caller]
fn read(change: &Change) -> String {
    let mut text = String::new();
    for bytes in messages(change) {
        let decoded = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&bytes).unwrap();
        let mut again = vec![0xff; decoded.buffer_len()];
        decoded.serialize(&mut again);
        assert_eq!(without_flags(&again), without_flags(&bytes), "{decoded:?}");
        text += &format!("{decoded:?}");
        assert!(!text.contains("Other("), "{text}");
    }
    text
}

/// The bytes with the attributes' NLA_F_NESTED cleared, which readers must ignore.
fn without_flags(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|&byte| if byte == 0x80 { 0 } else { byte }).collect()
}

#[track_caller]
fn says(change: &Change, words: &[&str]) {
    let text = read(change);
    for word in words {
        assert!(text.contains(word), "{word} is not in {text}");
    }
}

fn route(destination: &str) -> Route {
    Route::new(destination.parse().unwrap())
}

#[test]
fn links() {
    let netns = Netns::current().unwrap();
    let peer =
        VethPeer { mac: Some(MAC), mtu: Some(1400), netns: Some(netns), ..VethPeer::new("eth0") };
    let veth = NewLink {
        master: Some(7),
        up: true,
        mtu: Some(1400),
        mac: Some(MAC),
        tx_queue_len: Some(100),
        group: Some(3),
        ..NewLink::new("veth1", LinkKind::Veth(peer))
    };
    says(
        &Change::NewLink(veth),
        &[
            r#"IfName("veth1")"#,
            "Controller(7)",
            "Kind(Veth)",
            r#"Peer(LinkMessage"#,
            r#"IfName("eth0")"#,
            "NetNsFd(",
        ],
    );
    let bridge = BridgeOptions {
        vlan_filtering: Some(true),
        default_pvid: Some(0),
        multicast_snooping: Some(false),
        stp: Some(true),
        // Unknown to that crate.
        link_local_learning: None,
        shows_ipv4: Some(true),
        shows_ipv6: Some(false),
    };
    says(
        &Change::NewLink(NewLink::new("br0", LinkKind::Bridge(bridge))),
        &[
            "VlanFiltering(true)",
            "VlanDefaultPvid(0)",
            "MulticastSnooping(false)",
            "StpState(",
            "NfCallIpTables(true)",
            "NfCallIp6Tables(false)",
        ],
    );
    let macvlan = MacvlanOptions { mode: MacvlanMode::Bridge, broadcast_queue_len: Some(5) };
    let macvlan = NewLink { parent: Some(2), ..NewLink::new("m", LinkKind::Macvlan(macvlan)) };
    says(&Change::NewLink(macvlan), &["Link(2)", "Mode(Bridge)", "BcQueueLen(5)"]);
    let vlan = VlanOptions { id: 42, protocol: VlanProtocol::Dot1Ad };
    let vlan = NewLink { parent: Some(2), ..NewLink::new("v", LinkKind::Vlan(vlan)) };
    says(&Change::NewLink(vlan), &["Kind(Vlan)", "Id(42)", "Protocol(Ieee8021Ad)"]);
    let ipvlan = IpvlanOptions { mode: IpvlanMode::L3s, reach: Some(IpvlanReach::Private) };
    let ipvlan = NewLink { parent: Some(2), ..NewLink::new("i", LinkKind::Ipvlan(ipvlan)) };
    says(&Change::NewLink(ipvlan), &["Kind(IpVlan)", "Mode(L3S)", "Flags(IpVlanFlags(Private"]);
    says(
        &Change::NewLink(NewLink::new("v", LinkKind::Vrf { table: 9 })),
        &["Kind(Vrf)", "TableId(9)"],
    );
    let vxlan = VxlanOptions {
        local: Some("192.0.2.1".parse().unwrap()),
        underlay: Some(3),
        zero_checksum6_rx: true,
        ..VxlanOptions::new(1, 8472)
    };
    let words = [
        "Kind(Vxlan)",
        "Id(1)",
        "Link(3)",
        "Local(192.0.2.1)",
        "Learning(false)",
        "Port(8472)",
        "UDPCsum(true)",
        "UDPZeroCsumTX(false)",
        "UDPZeroCsumRX(true)",
    ];
    says(&Change::NewLink(NewLink::new("t", LinkKind::Vxlan(vxlan))), &words);
    let vxlan = VxlanSet {
        local: Some("2001:db8::1".parse().unwrap()),
        underlay: Some(3),
        learning: Some(true),
    };
    let set = LinkSet { vxlan, ..LinkSet::default() };
    says(
        &Change::SetLink { ifindex: 5, set },
        &["Kind(Vxlan)", "Local6(2001:db8::1)", "Link(3)", "Learning(true)"],
    );
    let set = LinkSet {
        master: Some(Some(7)),
        hairpin: Some(true),
        isolated: Some(true),
        promiscuous: Some(true),
        ..LinkSet::default()
    };
    says(
        &Change::SetLink { ifindex: 5, set },
        &["HairpinMode(true)", "Isolated(true)", "Controller(7)", "Promisc"],
    );
    // They would send the alias with a NUL, which then counts as part of it; iproute2 sends it
    // without, and so do we.
    let alias = LinkSet { alias: Some("an owner".to_owned()), ..LinkSet::default() };
    let bytes = messages(&Change::SetLink { ifindex: 5, set: alias });
    let decoded = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&bytes[0]).unwrap();
    assert!(format!("{decoded:?}").contains(r#"IfAlias("an owner")"#), "{decoded:?}");
    says(&Change::DelLink { ifindex: 5 }, &["DelLink", "index: 5"]);
}

#[test]
fn vlans_of_ports() {
    let (ifindex, side) = (5, BridgeVlanSide::Port);
    says(
        &Change::AddBridgeVlan { ifindex, side, vlan: BridgeVlan::access(10) },
        &["SetLink", "interface_family: Bridge", "Pvid | Untagged", "vid: 10"],
    );
    says(
        &Change::DelBridgeVlan { ifindex, side, vlan: BridgeVlan::tagged_range(100, 200) },
        &["DelLink", "RangeBegin", "vid: 100", "RangeEnd", "vid: 200"],
    );
}

#[test]
fn addresses_and_neighbours() {
    let options = AddressOptions {
        nodad: true,
        noprefixroute: true,
        scope: Some(Scope::LINK),
        broadcast: Some("192.0.2.255".parse().unwrap()),
    };
    for address in ["192.0.2.1/24", "2001:db8::1/64"] {
        let change = Change::AddAddress { ifindex: 5, address: address.parse().unwrap(), options };
        says(
            &change,
            &["Nodad | Noprefixroute", "scope: Link", address.split('/').next().unwrap()],
        );
    }
    let neighbour = Neighbour {
        ext_learned: true,
        protocol: Some(RouteProtocol::STATIC),
        ..Neighbour::permanent(5, "192.0.2.9".parse().unwrap(), MAC)
    };
    says(
        &Change::SetNeighbour(neighbour),
        &["NewNeighbour", "Permanent", "ExtLearned", "Protocol(Static)", "192.0.2.9"],
    );
    let entry =
        Fdb { ifindex: 5, mac: MAC, vlan: Some(10), state: NeighbourState::NOARP, master: None };
    says(&Change::DelFdb(entry), &["DelNeighbour", "Vlan(10)", "Controller"]);
    for destination in ["192.0.2.2", "2001:db8::2"] {
        let entry = VxlanFdb {
            vni: Some(7),
            port: Some(8472),
            oif: Some(3),
            ..VxlanFdb::new(5, MAC, destination.parse().unwrap())
        };
        // They read a destination as an address only in messages of its family.
        let bytes = messages(&Change::SetVxlanFdb(entry));
        let decoded = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&bytes[0]).unwrap();
        let text = format!("{decoded:?}");
        for word in ["Bridge", "Own", "Permanent", "Vni(7)", "Port(8472)", "IfIndex(3)"] {
            assert!(text.contains(word), "{word} is not in {text}");
        }
        let mut again = vec![0xff; decoded.buffer_len()];
        decoded.serialize(&mut again);
        assert_eq!(without_flags(&again), without_flags(&bytes[0]), "{text}");
    }
}

#[test]
fn routes_and_rules() {
    let full = Route {
        gateway: Some("192.0.2.2".parse().unwrap()),
        oif: Some(5),
        table: 1000,
        priority: Some(7),
        mtu: Some(1400),
        advmss: Some(1300),
        onlink: true,
        source: Some("192.0.2.1".parse().unwrap()),
        ..route("198.51.100.0/24")
    };
    let words = [
        "Table(1000)",
        "Priority(7)",
        "Mtu(1400)",
        "Advmss(1300)",
        "Onlink",
        "PrefSource(",
        "scope: Universe",
    ];
    says(&Change::AddRoute(full), &words);
    let near = Route { oif: Some(5), ..route("198.51.100.0/24") };
    says(&Change::ReplaceRoute(near.clone()), &["scope: Link", "protocol: Boot", "kind: Unicast"]);
    says(&Change::DelRoute(near), &["DelRoute", "scope: NoWhere"]);
    let by_object = Route {
        nexthop: Some(78_000_001),
        protocol: Some(RouteProtocol::STATIC),
        // Reported with an object, and not to be sent.
        gateway: Some("192.0.2.2".parse().unwrap()),
        oif: Some(5),
        onlink: true,
        ..route("198.51.100.0/24")
    };
    let text = read(&Change::ReplaceRoute(by_object));
    for word in ["NhId(78000001)", "scope: Universe", "protocol: Static"] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    for word in ["Gateway", "Oif", "Onlink"] {
        assert!(!text.contains(word), "{word} is in {text}");
    }
    let hop = |gateway: &str| NextHop {
        gateway: Some(gateway.parse().unwrap()),
        oif: Some(5),
        weight: 2,
        onlink: false,
    };
    let ways = Route { next_hops: vec![hop("2001:db8::2"), hop("2001:db8::3")], ..route("::/0") };
    says(&Change::AddRoute(ways), &["MultiPath([", "2001:db8::2", "2001:db8::3", "hops: 1"]);
    let via =
        Route { gateway: Some("2001:db8::2".parse().unwrap()), oif: Some(5), ..route("0.0.0.0/0") };
    says(&Change::AddRoute(via), &["Via(Inet6(2001:db8::2))"]);
    let rule = Rule {
        priority: Some(5),
        source: Some("192.0.2.0/24".parse().unwrap()),
        mark: Some((1, 0xff)),
        ..Rule::to_table(IpFamily::V4, 1000)
    };
    says(
        &Change::AddRule(rule),
        &["Priority(5)", "Table(1000)", "FwMark(1)", "FwMask(255)", "192.0.2.0"],
    );
}

#[test]
fn transactions() {
    let table = TableRef::new(Family::Inet, "t");
    let mut batch = Batch::new();
    batch.add_table(&table, None);
    batch.add_chain(NewChain::regular(&table, "c"));
    batch.add_chain(NewChain::base(&table, "base", Hook::postrouting_srcnat()));
    batch.add_set(NewSet::verdict_map(&table, "m", [KeyType::IfName, KeyType::InetService]));
    let key = Key::of([Value::IfName("br0".into()), Value::Port(80)]);
    batch.add_elements(&table, "m", [Element::verdict(key, Verdict::Jump("c".into()))]);
    let port = [field::oifname(), field::th_dport()];
    batch.add_rule(NewRule::new(&table, "base").is(field::l4proto(), Value::TCP).vmap(&port, "m"));
    batch.delete_rule(&table, "base", 5);
    let words: [&[&str]; 7] = [
        &["NewTable", r#"Name("t")"#],
        &["NewChain", r#"Name("c")"#],
        &["PostRouting", "Priority(100)", r#"Type("nat")"#],
        &["NewSet", "KeyType(2637)", "KeyLen(20)"],
        &["NewSetElement", "Jump", r#"Chain("c")"#],
        &["NewRule", "Oifname", "L4Proto", "Verdict", r#"Set("m")"#],
        &["DeleteRule", "Handle(5)"],
    ];
    for (operation, words) in batch.operations().iter().zip(words) {
        let mut writer = Writer::new();
        operation.encode(1, &mut |kind, flags, body| writer.message(kind, flags, 1, body));
        let bytes = writer.bytes();
        assert_eq!(wire::messages(bytes).count(), 1);
        let decoded = NetlinkMessage::<NetfilterMessage>::deserialize(bytes).unwrap();
        let text = format!("{decoded:?}");
        for word in words {
            assert!(text.contains(word), "{word} is not in {text}");
        }
        let mut again = vec![0xff; decoded.buffer_len()];
        decoded.serialize(&mut again);
        assert_eq!(without_flags(&again), without_flags(bytes), "{text}");
    }
}
