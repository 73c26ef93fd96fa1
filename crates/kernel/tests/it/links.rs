use std::sync::atomic::{AtomicBool, Ordering};

use kernel::netns::{Netns, within};
use kernel::route::{
    Change, LinkKind, LinkSet, MacvlanMode, MacvlanOptions, NewLink, OperState, RouteSocket,
    VethPeer,
};
use kernel::sysctl::Sysctl;
use kernel::{Errno, MacAddr};

use crate::guard::{fresh_netns, in_netns, json, sh, skip};

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

/// A pair that leads into a namespace.
fn pair_into(host: &mut RouteSocket, container: &Netns) -> kernel::route::Link {
    let peer = VethPeer { netns: Some(container.clone()), ..VethPeer::new("eth0") };
    let made = host.create_link(&NewLink::new("veth1", LinkKind::Veth(peer))).unwrap();
    host.link_by_index(made.index).unwrap().unwrap()
}

/// A socket that is closed keeps its namespace for some milliseconds more. That is nobody's: as soon
/// as the call returns the pair counts as ending.
#[test]
fn a_pair_ends_although_a_socket_in_its_namespace_was_just_closed() {
    in_netns(|| {
        let mut host = RouteSocket::open().unwrap();
        for _ in 0..3 {
            let container = fresh_netns();
            let link = pair_into(&mut host, &container);
            let inside = RouteSocket::open_in(&container).unwrap();
            drop(container);
            assert!(!host.is_ending(&link).unwrap(), "the socket is open");
            drop(inside);
            assert!(host.is_ending(&link).unwrap());
            host.delete_link(link.index).unwrap();
        }
    });
}

/// The whole fast path: everything about both ends in one message.
#[test]
fn a_veth_pair_is_born_in_two_namespaces() {
    in_netns(|| {
        sh("ip link add br0 type bridge");
        let container = fresh_netns();
        let mut host = RouteSocket::open().unwrap();
        let bridge = host.link_by_name("br0").unwrap().unwrap();
        let peer = VethPeer {
            mac: Some(MAC),
            mtu: Some(1400),
            netns: Some(container.clone()),
            ..VethPeer::new("eth0")
        };
        let made = host
            .create_link(&NewLink {
                mtu: Some(1400),
                master: Some(bridge.index),
                up: true,
                alias: Some("an owner".to_owned()),
                hairpin: Some(true),
                isolated: Some(true),
                ..NewLink::new("veth1", LinkKind::Veth(peer))
            })
            .unwrap();
        assert_eq!(made.name, "veth1");
        assert_eq!(made.master, Some(bridge.index));
        assert_eq!(made.mtu, 1400);
        assert!(made.up());
        assert_eq!(made.alias.as_deref(), Some("an owner"));
        assert_eq!(
            host.link_by_index(made.index).unwrap().unwrap().alias.as_deref(),
            Some("an owner")
        );
        let seen = &json("ip -j -d link show veth1")[0];
        assert_eq!(seen["ifalias"], "an owner");
        assert_eq!(seen["master"], "br0");
        assert_eq!(seen["ifindex"], made.index);
        assert!(seen["flags"].as_array().unwrap().iter().any(|flag| flag == "UP"));

        let port = host.link_by_index(made.index).unwrap().unwrap().port.unwrap();
        assert!(port.hairpin && port.isolated);

        let mut inside = RouteSocket::open_in(&container).unwrap();
        let eth0 = inside.link_by_index(made.peer_index.unwrap()).unwrap().unwrap();
        assert_eq!((eth0.name.as_str(), eth0.mac, eth0.mtu), ("eth0", Some(MAC), 1400));
        assert_eq!(eth0.peer_index, Some(made.index));
        assert!(!eth0.up() && eth0.is_kind("veth"));
        let seen = within(&container, || json("ip -j link show eth0")).unwrap();
        assert_eq!(seen[0]["address"], MAC.to_string());

        assert!(host.delete_link(made.index).unwrap());
        assert!(!host.delete_link(made.index).unwrap(), "gone is gone");
        assert_eq!(inside.link_by_name("eth0").unwrap(), None);
    });
}

#[test]
fn a_deleted_links_names_are_free_at_once() {
    in_netns(|| {
        let container = fresh_netns();
        let mut host = RouteSocket::open().unwrap();
        for _ in 0..20 {
            let peer = VethPeer { netns: Some(container.clone()), ..VethPeer::new("eth0") };
            let made = host.create_link(&NewLink::new("veth1", LinkKind::Veth(peer))).unwrap();
            assert!(host.delete_link(made.index).unwrap());
            assert_eq!(host.link_by_name("veth1").unwrap(), None);
        }
    });
}

/// It has no number for a namespace before one of its links leads there.
#[test]
fn the_number_of_another_namespace() {
    in_netns(|| {
        let container = fresh_netns();
        let mut host = RouteSocket::open().unwrap();
        assert_eq!(host.netns_id(&container).unwrap(), None);
        let peer = VethPeer { netns: Some(container.clone()), ..VethPeer::new("eth0") };
        host.create_link(&NewLink::new("veth1", LinkKind::Veth(peer))).unwrap();
        let link = host.link_by_name("veth1").unwrap().unwrap();
        assert!(link.link_netnsid.is_some());
        assert_eq!(host.netns_id(&container).unwrap(), link.link_netnsid);
    });
}

#[test]
fn what_cannot_be_deleted_is_told() {
    in_netns(|| {
        let mut host = RouteSocket::open().unwrap();
        let error = host.delete_link(1).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::OPNOTSUPP), "{error}");
        assert!(error.to_string().contains("delete link 1"), "{error}");
        assert!(host.link_by_name("lo").unwrap().is_some());
    });
}

/// The socket's buffer cannot hold the events of all the other links.
#[test]
fn a_deletion_is_seen_among_any_number_of_others() {
    in_netns(|| {
        let netns = Netns::current().unwrap();
        sh("ip link add noise0 type veth peer name noise1");
        let mut host = RouteSocket::open().unwrap();
        let noise = host.link_index("noise0").unwrap().unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut socket = RouteSocket::open_in(&netns).unwrap();
                    let changes: Vec<Change> = (0..100)
                        .map(|n| {
                            let set = LinkSet::default().up(n % 2 == 0);
                            Change::SetLink { ifindex: noise, set }
                        })
                        .collect();
                    while !stop.load(Ordering::Relaxed) {
                        socket.apply(&changes).unwrap();
                    }
                });
            }
            for _ in 0..20 {
                let kind = LinkKind::Veth(VethPeer::new("b"));
                let made = host.create_link(&NewLink::new("a", kind)).unwrap();
                assert!(host.delete_link(made.index).unwrap());
                assert_eq!(host.link_by_name("a").unwrap(), None);
                assert!(host.link_by_name("noise0").unwrap().is_some());
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn a_taken_name_is_told_and_changes_nothing() {
    in_netns(|| {
        sh("ip link add veth1 type veth peer name other; ip link set veth1 alias theirs");
        let container = fresh_netns();
        within(&container, || sh("ip link add eth0 type veth peer name x")).unwrap();
        let mut host = RouteSocket::open().unwrap();
        let before = sh("ip -d link");
        for (name, peer) in [("veth1", "fresh"), ("veth2", "eth0")] {
            let peer = VethPeer { netns: Some(container.clone()), ..VethPeer::new(peer) };
            let link = NewLink {
                alias: Some("ours".to_owned()),
                up: true,
                ..NewLink::new(name, LinkKind::Veth(peer))
            };
            let error = host.create_link(&link).unwrap_err();
            assert!(error.is_exists(), "{error}");
            assert!(
                error.to_string().contains(&format!("create veth {name:?} with peer")),
                "{error}"
            );
            assert!(error.to_string().contains("file exists (EEXIST)"), "{error}");
        }
        assert_eq!(sh("ip -d link"), before);
    });
}

#[test]
fn lookups() {
    in_netns(|| {
        sh("ip link add veth1 type veth peer name veth2");
        sh("ip link property add dev veth1 altname a-name-of-more-than-fifteen-bytes");
        let mut route = RouteSocket::open().unwrap();
        let lo = route.link_by_name("lo").unwrap().unwrap();
        assert!(lo.loopback() && lo.kind.is_none() && !lo.up());
        assert_eq!(lo.index, 1);
        assert_eq!(route.link_by_name("nothing").unwrap(), None);
        assert_eq!(route.link_by_index(4711).unwrap(), None);
        let named = route.link_by_name("a-name-of-more-than-fifteen-bytes").unwrap().unwrap();
        assert_eq!(named.name, "veth1");
        assert_eq!(named.alt_names, ["a-name-of-more-than-fifteen-bytes"]);
        assert_eq!(named.oper_state, OperState::Down);
        let names: Vec<_> = route.links().unwrap().into_iter().map(|link| link.name).collect();
        for name in ["lo", "veth1", "veth2"] {
            assert!(names.iter().any(|found| found == name), "{names:?}");
        }
    });
}

#[test]
fn settings_of_a_link() {
    in_netns(|| {
        sh("ip link add veth1 type veth peer name veth2");
        let mut route = RouteSocket::open().unwrap();
        let ifindex = route.link_by_name("veth1").unwrap().unwrap().index;
        let set = LinkSet {
            mtu: Some(1300),
            mac: Some(MAC),
            name: Some("renamed".to_owned()),
            alias: Some("words".to_owned()),
            promiscuous: Some(true),
            all_multicast: Some(true),
            tx_queue_len: Some(77),
            group: Some(9),
            ..LinkSet::default()
        };
        route.apply(&[Change::SetLink { ifindex, set }]).unwrap();
        let link = route.link_by_index(ifindex).unwrap().unwrap();
        assert_eq!(link.name, "renamed");
        assert_eq!((link.mtu, link.mac, link.tx_queue_len, link.group), (1300, Some(MAC), 77, 9));
        assert!(link.promiscuous() && link.all_multicast());
        assert_eq!(link.promiscuity, 1);
        assert_eq!(link.alias.as_deref(), Some("words"));
        let seen = &json("ip -j -d link show renamed")[0];
        assert_eq!(seen["promiscuity"], 1);
        assert_eq!(seen["mtu"], 1300);

        let undo = LinkSet {
            promiscuous: Some(false),
            all_multicast: Some(false),
            alias: Some(String::new()),
            ..LinkSet::default()
        };
        route.apply(&[Change::SetLink { ifindex, set: undo }]).unwrap();
        let link = route.link_by_index(ifindex).unwrap().unwrap();
        assert!(!link.promiscuous() && !link.all_multicast());
        assert_eq!((link.promiscuity, link.alias), (0, None));
        // Unnamed attributes stayed as they were.
        assert_eq!((link.mtu, link.group), (1300, 9));
    });
}

#[test]
fn a_link_moves_to_another_namespace() {
    in_netns(|| {
        sh("ip link add veth1 type veth peer name veth2");
        let container = fresh_netns();
        let mut route = RouteSocket::open().unwrap();
        let ifindex = route.link_by_name("veth2").unwrap().unwrap().index;
        let set = LinkSet {
            netns: Some(container.clone()),
            name: Some("eth0".to_owned()),
            ..LinkSet::default()
        };
        route.apply(&[Change::SetLink { ifindex, set }]).unwrap();
        assert_eq!(route.link_by_name("veth2").unwrap(), None);
        let mut inside = RouteSocket::open_in(&container).unwrap();
        assert!(inside.link_by_name("eth0").unwrap().is_some());
    });
}

#[test]
fn a_macvlan_is_born_in_the_container() {
    in_netns(|| {
        sh("ip link add veth1 type veth peer name veth2");
        let container = fresh_netns();
        let mut route = RouteSocket::open().unwrap();
        let parent = route.link_by_name("veth1").unwrap().unwrap();
        let options = MacvlanOptions { mode: MacvlanMode::Bridge, broadcast_queue_len: Some(500) };
        let made = route
            .create_link(&NewLink {
                parent: Some(parent.index),
                netns: Some(container.clone()),
                mac: Some(MAC),
                alias: Some("ours".to_owned()),
                ..NewLink::new("eth0", LinkKind::Macvlan(options))
            })
            .unwrap();
        assert!(made.is_kind("macvlan"));
        assert_eq!((made.mac, made.peer_index), (Some(MAC), Some(parent.index)));
        let seen = within(&container, || json("ip -j -d link show eth0")).unwrap();
        assert_eq!(seen[0]["linkinfo"]["info_data"]["mode"], "bridge");
        assert_eq!(seen[0]["ifalias"], "ours");
        assert_eq!(route.link_by_name("eth0").unwrap(), None);
    });
}

#[test]
fn vm_kinds_this_kernel_may_lack() {
    in_netns(|| {
        use kernel::route::{IpvlanMode, IpvlanOptions, IpvlanReach, VlanOptions, VlanProtocol};
        sh("ip link add veth1 type veth peer name veth2");
        let mut route = RouteSocket::open().unwrap();
        let parent = route.link_by_name("veth1").unwrap().unwrap().index;
        let ipvlan = IpvlanOptions { mode: IpvlanMode::L3, reach: Some(IpvlanReach::Private) };
        for (name, kind) in [
            ("ifb", LinkKind::Ifb),
            ("dummy", LinkKind::Dummy),
            ("vlan", LinkKind::Vlan(VlanOptions { id: 42, protocol: VlanProtocol::Dot1Ad })),
            ("ipvlan", LinkKind::Ipvlan(ipvlan)),
            ("vrf", LinkKind::Vrf { table: 77 }),
        ] {
            let on_parent = matches!(kind, LinkKind::Vlan(_) | LinkKind::Ipvlan(_));
            let new = NewLink { parent: on_parent.then_some(parent), ..NewLink::new("it", kind) };
            let link = match route.create_link(&new) {
                Ok(link) => link,
                Err(error) if error.is_unsupported() => {
                    skip(&format!("vm_kinds_this_kernel_may_lack/{name}"), &error.to_string());
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            assert!(link.is_kind(name), "{link:?}");
            let seen = &json("ip -j -d link show it")[0]["linkinfo"];
            assert_eq!(seen["info_kind"], name);
            match name {
                "vlan" => {
                    assert_eq!(seen["info_data"]["id"], 42);
                    assert_eq!(seen["info_data"]["protocol"], "802.1ad");
                    let vlan = link.vlan.unwrap();
                    assert_eq!((vlan.id, vlan.protocol), (42, VlanProtocol::Dot1Ad.number()));
                }
                "ipvlan" => {
                    assert_eq!(seen["info_data"]["mode"], "l3");
                    assert_eq!(link.ipvlan_mode, Some(IpvlanMode::L3));
                    assert_eq!(link.ipvlan_reach, Some(IpvlanReach::Private));
                }
                "vrf" => assert_eq!(link.vrf_table, Some(77)),
                _ => {}
            }
            assert!(route.delete_link(link.index).unwrap());
        }
    });
}

#[test]
fn the_first_failure_of_many_is_told() {
    in_netns(|| {
        let mut route = RouteSocket::open().unwrap();
        let up = |ifindex| Change::SetLink { ifindex, set: LinkSet::default().up(true) };
        let error = route.apply(&[up(1), up(4711), up(1), up(4712)]).unwrap_err();
        assert_eq!(error.index, 1);
        assert_eq!(error.source.errno(), Some(Errno::NODEV));
        assert_eq!(error.to_string(), "change link 4711 (up): no such device (ENODEV)");
        // The socket still works afterwards.
        route.apply(&[up(1)]).unwrap();
        assert!(route.link_by_index(1).unwrap().unwrap().up());
        route.apply(&[]).unwrap();
    });
}

#[test]
fn more_changes_than_one_datagram_takes() {
    in_netns(|| {
        let mut route = RouteSocket::open().unwrap();
        let up = |ifindex| Change::SetLink { ifindex, set: LinkSet::default().up(true) };
        let mut changes = vec![up(1); 1000];
        route.apply(&changes).unwrap();
        changes.push(up(4711));
        assert_eq!(route.apply(&changes).unwrap_err().index, 1000);
    });
}

#[test]
fn a_refusal_keeps_the_kernels_words() {
    in_netns(|| {
        let mut route = RouteSocket::open().unwrap();
        let set = LinkSet { mtu: Some(1), ..LinkSet::default() };
        sh("ip link add veth1 type veth peer name veth2");
        let ifindex = route.link_by_name("veth1").unwrap().unwrap().index;
        let error = route.apply_one(&Change::SetLink { ifindex, set }).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::INVAL));
        assert_eq!(error.ext_ack().unwrap().message, "mtu less than device minimum");
        assert_eq!(
            error.to_string(),
            format!(
                "change link {ifindex} (mtu 1): invalid argument (EINVAL): mtu less than device minimum"
            )
        );
    });
}

#[test]
fn names_that_would_become_others_are_not_sent() {
    in_netns(|| {
        let mut route = RouteSocket::open().unwrap();
        for (name, peer, why) in [
            ("veth%d", "x", "a name contains a per cent sign"),
            ("x", "veth%d", "a name contains a per cent sign"),
            ("veth\0x", "x", "a name contains a NUL byte"),
        ] {
            let error = route
                .create_link(&NewLink::new(name, LinkKind::Veth(VethPeer::new(peer))))
                .unwrap_err();
            assert!(error.to_string().ends_with(why), "{error}");
            let error = route
                .apply(&[Change::SetLink {
                    ifindex: 1,
                    set: LinkSet { name: Some(format!("{name}{peer}")), ..LinkSet::default() },
                }])
                .unwrap_err();
            assert!(error.to_string().ends_with(why), "{error}");
        }
        assert_eq!(route.links().unwrap().len(), 1);
    });
}

#[test]
fn dumps_while_others_change_things() {
    in_netns(|| {
        let stop = std::sync::atomic::AtomicBool::new(false);
        let here = kernel::netns::Netns::current().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut route = RouteSocket::open_in(&here).unwrap();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let made = route
                        .create_link(&NewLink::new("veth1", LinkKind::Veth(VethPeer::new("veth2"))))
                        .unwrap();
                    route.delete_link(made.index).unwrap();
                }
            });
            let mut route = RouteSocket::open_in(&here).unwrap();
            for _ in 0..200 {
                match route.links() {
                    Ok(links) => assert!(links.iter().any(|link| link.name == "lo")),
                    Err(error) => assert!(error.is_transient(), "{error}"),
                }
                // This is not a dump, so it cannot be interrupted.
                let names = Sysctl::links_in("net/ipv4/conf").unwrap();
                assert!(["all", "default", "lo"].iter().all(|one| names.iter().any(|n| n == one)));
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    });
}

/// The socket keeps its state between requests, and a long name is never cut off to one that a link
/// has.
#[test]
fn a_name_is_looked_up_again_and_again_on_one_socket() {
    in_netns(|| {
        sh("ip link add fifteen-bytes-0 type veth peer name b0");
        sh("ip link property add dev b0 altname other");
        let host = RouteSocket::open().unwrap();
        let index = |name: &str| host.link_index(name).unwrap();
        let number = |name: &str| {
            let text = sh(&format!("ip -o link show dev {name}"));
            text.split(':').next().unwrap().parse().ok()
        };
        for _ in 0..2 {
            assert_eq!(index("lo"), Some(1));
            assert_eq!(index("absent"), None);
            assert_eq!(index("fifteen-bytes-0"), number("fifteen-bytes-0"));
            assert_eq!(index("other"), index("b0"));
            assert_eq!(index("fifteen-bytes-0x"), None);
            assert_eq!(index(""), None);
            assert_eq!(index("lo\0x"), None);
        }
    });
}
