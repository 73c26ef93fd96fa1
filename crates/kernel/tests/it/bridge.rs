use kernel::MacAddr;
use kernel::route::{
    BridgeOptions, BridgeVlan, BridgeVlanSide, Change, Fdb, LinkKind, LinkSet, NeighbourState,
    NewLink, RouteSocket,
};

use crate::guard::{in_netns, json, sh, skip};

#[test]
fn a_bridge_and_the_settings_of_its_ports() {
    in_netns(|| {
        let mut route = RouteSocket::open().unwrap();
        let options = BridgeOptions { multicast_snooping: Some(false), ..BridgeOptions::default() };
        let bridge = route
            .create_link(&NewLink { up: true, ..NewLink::new("br0", LinkKind::Bridge(options)) })
            .unwrap();
        assert!(bridge.is_kind("bridge") && bridge.up());
        assert!(!bridge.bridge.unwrap().vlan_filtering);
        sh("ip link add veth1 type veth peer name veth2");
        let port = route.link_by_name("veth1").unwrap().unwrap();
        assert_eq!(port.port, None);

        // The port is attached and configured in one message.
        let set = LinkSet {
            master: Some(Some(bridge.index)),
            hairpin: Some(true),
            isolated: Some(true),
            learning: Some(false),
            ..LinkSet::default()
        };
        route.apply(&[Change::SetLink { ifindex: port.index, set }]).unwrap();
        let link = route.link_by_index(port.index).unwrap().unwrap();
        let settings = link.port.unwrap();
        assert!(
            settings.hairpin && settings.isolated && !settings.learning && settings.unicast_flood
        );
        assert_eq!(link.port_kind.as_deref(), Some("bridge"));
        let seen = json("bridge -j -d link show dev veth1");
        assert_eq!(seen[0]["hairpin"], true);
        assert_eq!(seen[0]["isolated"], true);
        assert_eq!(seen[0]["learning"], false);
        assert_eq!(route.links_of_master(bridge.index).unwrap().len(), 1);

        let off = LinkSet { hairpin: Some(false), isolated: Some(false), ..LinkSet::default() };
        route.apply(&[Change::SetLink { ifindex: port.index, set: off }]).unwrap();
        let settings = route.link_by_index(port.index).unwrap().unwrap().port.unwrap();
        assert!(!settings.hairpin && !settings.isolated && !settings.learning);

        let snooping = LinkSet {
            bridge: BridgeOptions { multicast_snooping: Some(true), ..BridgeOptions::default() },
            ..LinkSet::default()
        };
        route.apply(&[Change::SetLink { ifindex: bridge.index, set: snooping }]).unwrap();
        assert_eq!(json("ip -j -d link show br0")[0]["linkinfo"]["info_data"]["mcast_snooping"], 1,);

        let detach = LinkSet { master: Some(None), ..LinkSet::default() };
        route.apply(&[Change::SetLink { ifindex: port.index, set: detach }]).unwrap();
        assert_eq!(route.link_by_index(port.index).unwrap().unwrap().master, None);
    });
}

#[test]
fn learning_from_link_local_frames_is_switched() {
    in_netns(|| {
        let mut route = RouteSocket::open().unwrap();
        let options =
            BridgeOptions { link_local_learning: Some(false), ..BridgeOptions::default() };
        let bridge = route.create_link(&NewLink::new("br0", LinkKind::Bridge(options))).unwrap();
        assert!(!bridge.bridge.unwrap().link_local_learning);
        for on in [true, false] {
            let options =
                BridgeOptions { link_local_learning: Some(on), ..BridgeOptions::default() };
            let set = LinkSet { bridge: options, ..LinkSet::default() };
            route.apply_one(&Change::SetLink { ifindex: bridge.index, set }).unwrap();
            let link = route.link_by_index(bridge.index).unwrap().unwrap();
            assert_eq!(link.bridge.unwrap().link_local_learning, on);
            let shown = if on { "no_linklocal_learn 0" } else { "no_linklocal_learn 1" };
            sh(&format!("ip -d link show br0 | grep -q '{shown}'"));
        }
    });
}

/// The two settings are independent, and the kernel keeps them even without `br_netfilter`.
#[test]
fn a_bridge_shows_packets_to_the_hooks_of_ip() {
    in_netns(|| {
        let mut route = RouteSocket::open().unwrap();
        let options = BridgeOptions { shows_ipv6: Some(true), ..BridgeOptions::default() };
        let bridge = route.create_link(&NewLink::new("br0", LinkKind::Bridge(options))).unwrap();
        let info = bridge.bridge.unwrap();
        let shown = sh("ip -d link show br0");
        if !shown.contains("nf_call_ip6tables") {
            skip("a_bridge_shows_packets_to_the_hooks_of_ip", "CONFIG_BRIDGE_NETFILTER");
            return;
        }
        assert!(!info.shows_ipv4 && info.shows_ipv6, "{shown}");
        for on in [true, false] {
            let options = BridgeOptions {
                shows_ipv4: Some(on),
                shows_ipv6: Some(!on),
                ..BridgeOptions::default()
            };
            let set = LinkSet { bridge: options, ..LinkSet::default() };
            route.apply_one(&Change::SetLink { ifindex: bridge.index, set }).unwrap();
            let info = route.link_by_index(bridge.index).unwrap().unwrap().bridge.unwrap();
            assert_eq!((info.shows_ipv4, info.shows_ipv6), (on, !on));
            let (four, six) = (u8::from(on), u8::from(!on));
            let shown = format!("nf_call_iptables {four} nf_call_ip6tables {six}");
            sh(&format!("ip -d link show br0 | grep -q '{shown}'"));
        }
    });
}

/// With STP a new port listens for twice the forward delay; switching STP off does not end that.
#[test]
fn a_port_that_listens_is_told_to_forward() {
    in_netns(|| {
        let mut route = RouteSocket::open().unwrap();
        let bridge = route
            .create_link(&NewLink {
                up: true,
                ..NewLink::new("br0", LinkKind::Bridge(BridgeOptions::default()))
            })
            .unwrap();
        assert!(!bridge.bridge.unwrap().stp);
        let mut stp = |on| {
            let options = BridgeOptions { stp: Some(on), ..BridgeOptions::default() };
            let set = LinkSet { bridge: options, ..LinkSet::default() };
            route.apply_one(&Change::SetLink { ifindex: bridge.index, set }).unwrap();
            assert_eq!(route.link_by_index(bridge.index).unwrap().unwrap().bridge.unwrap().stp, on);
        };
        stp(true);
        sh("ip link add veth1 type veth peer name veth2 && ip link set veth2 up");
        sh("ip link set veth1 up master br0");
        let state = || {
            let mut route = RouteSocket::open().unwrap();
            route.link_by_name("veth1").unwrap().unwrap().port.unwrap().state
        };
        assert_ne!(state(), 3);
        stp(false);
        assert_ne!(state(), 3);
        let port = route.link_by_name("veth1").unwrap().unwrap().index;
        let set = LinkSet { forwarding: true, ..LinkSet::default() };
        route.apply_one(&Change::SetLink { ifindex: port, set }).unwrap();
        assert_eq!(state(), 3);
    });
}

#[test]
fn link_local_addresses_are_made_or_not() {
    in_netns(|| {
        sh("ip link add veth1 type veth peer name veth2");
        let mut route = RouteSocket::open().unwrap();
        let mut made = |mode| {
            sh(&format!("ip link set veth1 addrgenmode {mode}"));
            let link = route.link_by_name("veth1").unwrap().unwrap();
            (link.link_local_of_mac(), link.no_own_ipv6())
        };
        assert_eq!(made("eui64"), (true, false));
        assert_eq!(made("none"), (false, true));
        assert_eq!(made("random"), (false, false));
    });
}

#[test]
fn forwarding_entries() {
    in_netns(|| {
        sh("ip link add br0 type bridge; ip link add veth1 type veth peer name veth2");
        sh("ip link set veth1 master br0");
        let mut route = RouteSocket::open().unwrap();
        let port = route.link_by_name("veth1").unwrap().unwrap().index;
        let mac = MacAddr([2, 0, 0, 0, 0, 9]);
        let entry =
            Fdb { ifindex: port, mac, vlan: None, state: NeighbourState::NOARP, master: None };
        route.apply(&[Change::SetFdb(entry)]).unwrap();
        let found = route.fdb(port).unwrap();
        let found = found.iter().find(|found| found.mac == mac).unwrap();
        assert_eq!(found.state, NeighbourState::NOARP);
        let bridge = route.link_by_name("br0").unwrap().unwrap().index;
        assert_eq!(found.master, Some(bridge));
        assert!(sh("bridge fdb show dev veth1").contains("02:00:00:00:00:09 master br0 static"));
        route.apply(&[Change::DelFdb(entry)]).unwrap();
        assert!(route.fdb(port).unwrap().iter().all(|found| found.mac != mac));
        assert!(route.apply_one(&Change::DelFdb(entry)).unwrap_err().is_not_found());
        assert_eq!(route.fdb(4711).unwrap(), []);
    });
}

#[test]
fn vm_vlans_of_a_port() {
    in_netns(|| {
        let mut route = RouteSocket::open().unwrap();
        let options = BridgeOptions { vlan_filtering: Some(true), ..BridgeOptions::default() };
        let bridge = match route.create_link(&NewLink::new("br0", LinkKind::Bridge(options))) {
            Ok(bridge) => bridge,
            Err(error) if error.is_unsupported() => {
                return skip(
                    "vm_vlans_of_a_port",
                    "this kernel has no CONFIG_BRIDGE_VLAN_FILTERING",
                );
            }
            Err(error) => panic!("{error}"),
        };
        assert!(bridge.bridge.unwrap().vlan_filtering);
        assert_eq!(bridge.bridge.unwrap().default_pvid, Some(1));
        sh("ip link add veth1 type veth peer name veth2; ip link set veth1 master br0");
        let ifindex = route.link_by_name("veth1").unwrap().unwrap().index;
        assert_eq!(route.bridge_vlans(ifindex).unwrap(), [BridgeVlan::access(1)]);
        let side = BridgeVlanSide::Port;
        let (access, trunk) = (BridgeVlan::access(10), BridgeVlan::tagged_range(100, 110));
        route
            .apply(&[
                Change::DelBridgeVlan { ifindex, side, vlan: BridgeVlan::tagged(1) },
                Change::AddBridgeVlan { ifindex, side, vlan: access },
                Change::AddBridgeVlan { ifindex, side, vlan: trunk },
                Change::AddBridgeVlan {
                    ifindex: bridge.index,
                    side: BridgeVlanSide::Bridge,
                    vlan: BridgeVlan::tagged(10),
                },
            ])
            .unwrap();
        assert_eq!(route.bridge_vlans(ifindex).unwrap(), [access, trunk]);
        let seen = json("bridge -json -compressvlans vlan show dev veth1");
        let vlans = seen[0]["vlans"].as_array().unwrap();
        assert_eq!(vlans[0]["vlan"], 10);
        assert_eq!(vlans[0]["flags"], serde_json::json!(["PVID", "Egress Untagged"]));
        assert_eq!((&vlans[1]["vlan"], &vlans[1]["vlanEnd"]), (&100.into(), &110.into()));
        let own = route.bridge_vlans(bridge.index).unwrap();
        assert!(own.contains(&BridgeVlan::tagged(10)), "{own:?}");
    });
}
