//! Tunnels and their forwarding entries, seen by iproute2.

use kernel::ethtool::{set_tx_checksums, tx_checksums};
use kernel::netns::Netns;
use kernel::route::{
    Change, Link, LinkKind, LinkSet, NeighbourState, NewLink, RouteSocket, VxlanFdb, VxlanOptions,
    VxlanSet,
};
use kernel::{Errno, MacAddr};

use crate::guard::{in_netns, json, sh};

const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// A link with addresses that carries tunnels.
fn underlay(socket: &mut RouteSocket) -> u32 {
    sh("ip link add veth1 type veth peer name veth2; ip link set veth1 up; ip link set veth2 up; \
        ip addr add 192.0.2.1/24 dev veth1; ip addr add 2001:db8::1/64 dev veth1 nodad");
    socket.link_by_name("veth1").unwrap().unwrap().index
}

fn tunnel(socket: &mut RouteSocket, name: &str, options: VxlanOptions) -> Link {
    let link = NewLink {
        mac: Some(OWN),
        mtu: Some(1400),
        up: true,
        alias: Some("an owner".to_owned()),
        no_own_ipv6: true,
        ..NewLink::new(name, LinkKind::Vxlan(options))
    };
    let made = socket.create_link(&link).unwrap();
    socket.link_by_index(made.index).unwrap().unwrap()
}

#[test]
fn a_tunnel_is_what_was_asked_for() {
    in_netns(|| {
        let mut socket = RouteSocket::open().unwrap();
        let underlay = underlay(&mut socket);
        for (name, local, key) in [("t4", "192.0.2.1", "local"), ("t6", "2001:db8::1", "local6")] {
            let options = VxlanOptions {
                local: Some(local.parse().unwrap()),
                underlay: Some(underlay),
                checksum: false,
                zero_checksum6_rx: true,
                ..VxlanOptions::new(1, 8472)
            };
            let made = tunnel(&mut socket, name, options);
            assert!(made.up() && made.is_kind("vxlan"));
            assert_eq!((made.mac, made.mtu), (Some(OWN), 1400));
            assert_eq!(made.alias.as_deref(), Some("an owner"));
            let info = made.vxlan.unwrap();
            assert_eq!((info.options, info.group), (options, None));
            assert_eq!(info.switches, [""; 0]);

            let seen = &json(&format!("ip -j -d link show {name}"))[0]["linkinfo"];
            assert_eq!(seen["info_kind"], "vxlan");
            let seen = &seen["info_data"];
            assert_eq!((&seen["id"], &seen["port"]), (&1.into(), &8472.into()));
            assert_eq!((&seen[key], &seen["link"]), (&local.into(), &"veth1".into()));
            assert_eq!(seen["learning"], false);
            assert_eq!(seen["udp_csum"], false);
            assert_eq!(seen["udp_zero_csum6_tx"], false);
            assert_eq!(seen["udp_zero_csum6_rx"], true);
        }
    });
}

#[test]
fn what_is_not_ours_in_a_tunnel_is_seen() {
    in_netns(|| {
        let mut socket = RouteSocket::open().unwrap();
        let underlay = underlay(&mut socket);
        sh("ip link add vx type vxlan id 7 dev veth1 group 239.1.1.1 dstport 4789 gbp l2miss");
        let info = socket.link_by_name("vx").unwrap().unwrap().vxlan.unwrap();
        assert_eq!(info.group, Some("239.1.1.1".parse().unwrap()));
        assert_eq!(info.switches, ["l2miss", "gbp"]);
        let expected =
            VxlanOptions { underlay: Some(underlay), learning: true, ..VxlanOptions::new(7, 4789) };
        assert_eq!(info.options, expected);
    });
}

#[test]
fn a_tunnel_changes_in_place() {
    in_netns(|| {
        let mut socket = RouteSocket::open().unwrap();
        let underlay = underlay(&mut socket);
        let options = VxlanOptions {
            local: Some("192.0.2.1".parse().unwrap()),
            underlay: Some(underlay),
            ..VxlanOptions::new(1, 8472)
        };
        let ifindex = tunnel(&mut socket, "vx", options).index;
        sh("ip addr add 192.0.2.7/24 dev veth1; ip link add veth3 type veth peer name veth4; \
            bridge fdb add 02:00:00:00:00:02 dst 192.0.2.2 dev vx self permanent");
        let other = socket.link_by_name("veth3").unwrap().unwrap().index;
        let change =
            |vxlan| Change::SetLink { ifindex, set: LinkSet { vxlan, ..LinkSet::default() } };
        let local = Some("192.0.2.7".parse().unwrap());
        let set = VxlanSet { local, underlay: Some(other), learning: Some(true) };
        socket.apply_one(&change(set)).unwrap();
        let found = socket.link_by_index(ifindex).unwrap().unwrap();
        let wanted = VxlanOptions { local, underlay: Some(other), learning: true, ..options };
        assert!(found.up());
        assert_eq!(found.vxlan.unwrap().options, wanted);
        let entries = socket.vxlan_fdb(ifindex).unwrap();
        assert_eq!(entries.len(), 1, "its entries stay");
        assert!(entries[0].state.is_permanent());

        let wrong = VxlanSet { local: Some("2001:db8::1".parse().unwrap()), ..VxlanSet::default() };
        let error = socket.apply_one(&change(wrong)).unwrap_err();
        assert!(error.is_unsupported(), "{error}");
        assert!(
            error.to_string().starts_with(&format!("change link {ifindex} (local 2001:db8::1)"))
        );

        // The tunnel is deleted with its underlay.
        sh("ip link del veth3");
        assert_eq!(socket.link_by_index(ifindex).unwrap(), None);
    });
}

#[test]
fn a_tunnel_that_cannot_be_is_refused() {
    in_netns(|| {
        let mut socket = RouteSocket::open().unwrap();
        let make = |name, vni| NewLink::new(name, LinkKind::Vxlan(VxlanOptions::new(vni, 8472)));
        socket.create_link(&make("t", 1)).unwrap();
        let error = socket.create_link(&make("u", 1)).unwrap_err();
        assert!(error.is_exists(), "{error}");
        assert!(
            error.to_string().starts_with(r#"create vxlan "u": file exists (EEXIST)"#),
            "{error}"
        );
        let error = socket.create_link(&make("u", 1 << 24)).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::RANGE), "{error}");
        assert_eq!(socket.link_by_name("u").unwrap(), None);
    });
}

#[test]
fn forwarding_entries_of_a_tunnel() {
    in_netns(|| {
        let mut socket = RouteSocket::open().unwrap();
        let underlay = underlay(&mut socket);
        for (name, local, peers) in [
            ("t4", "192.0.2.1", ["192.0.2.2", "192.0.2.3"]),
            ("t6", "2001:db8::1", ["2001:db8::2", "2001:db8::3"]),
        ] {
            let local = Some(local.parse().unwrap());
            let options = VxlanOptions { local, ..VxlanOptions::new(1, 8472) };
            let ifindex = tunnel(&mut socket, name, options).index;
            assert_eq!(socket.vxlan_fdb(ifindex).unwrap(), []);
            let entry = VxlanFdb::new(ifindex, PEER, peers[0].parse().unwrap());
            // A second call changes nothing.
            socket.apply(&[Change::SetVxlanFdb(entry), Change::SetVxlanFdb(entry)]).unwrap();
            assert_eq!(socket.vxlan_fdb(ifindex).unwrap(), [entry]);
            let seen = &json(&format!("bridge -j fdb show dev {name}"))[0];
            assert_eq!((&seen["mac"], &seen["dst"]), (&PEER.to_string().into(), &peers[0].into()));
            assert_eq!(seen["state"], "permanent");
            assert_eq!(seen["flags"], serde_json::json!(["self"]));

            let moved = VxlanFdb {
                destination: peers[1].parse().unwrap(),
                vni: Some(7),
                port: Some(4789),
                oif: Some(underlay),
                state: NeighbourState::REACHABLE,
                ..entry
            };
            socket.apply_one(&Change::SetVxlanFdb(moved)).unwrap();
            let found = socket.vxlan_fdb(ifindex).unwrap();
            assert_eq!(found.len(), 1, "replaced, not added: {found:?}");
            let found = found[0];
            assert_eq!((found.destination, found.vni), (moved.destination, moved.vni));
            assert_eq!((found.port, found.oif), (moved.port, moved.oif));

            // The entry leads elsewhere by now, so the kernel removes nothing.
            socket.apply_one(&Change::DelVxlanFdb(entry)).unwrap();
            assert_eq!(socket.vxlan_fdb(ifindex).unwrap(), [found]);
            socket.apply_one(&Change::DelVxlanFdb(found)).unwrap();
            assert_eq!(socket.vxlan_fdb(ifindex).unwrap(), []);
            let gone = socket.apply_one(&Change::DelVxlanFdb(found)).unwrap_err();
            assert_eq!(gone.errno(), Some(Errno::NOENT), "{gone}");
        }
        assert_eq!(socket.vxlan_fdb(underlay).unwrap(), []);
        assert_eq!(socket.vxlan_fdb(4711).unwrap(), []);
    });
}

#[test]
fn the_checksums_of_a_tunnel_are_left_to_it_or_not() {
    in_netns(|| {
        let mut socket = RouteSocket::open().unwrap();
        tunnel(&mut socket, "vx", VxlanOptions::new(1, 8472));
        let here = Netns::current().unwrap();
        let seen = || sh("ethtool -k vx | grep tx-checksum-ip-generic").trim().to_owned();
        assert!(tx_checksums(&here, "vx").unwrap());
        for _ in 0..2 {
            set_tx_checksums(&here, "vx", false).unwrap();
            assert!(!tx_checksums(&here, "vx").unwrap());
            assert_eq!(seen(), "tx-checksum-ip-generic: off");
        }
        set_tx_checksums(&here, "vx", true).unwrap();
        assert_eq!(seen(), "tx-checksum-ip-generic: on");
        let error = tx_checksums(&here, "u").unwrap_err();
        assert_eq!(error.to_string(), r#"read offloading of "u""#);
    });
}
