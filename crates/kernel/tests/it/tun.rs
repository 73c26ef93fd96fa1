use std::io::{Read as _, Write as _};

use kernel::route::{Change, LinkSet, RouteSocket};
use kernel::tun::{self, NewTap};

use crate::guard::{fresh_netns, in_netns, json};
use kernel::netns::within;

fn tap(name: &str) -> NewTap {
    NewTap { name: name.to_owned(), multi_queue: false, vnet_hdr: true, owner: None, group: None }
}

/// The tap is made in another namespace, with every attribute, and it persists.
#[test]
fn a_tap_is_made_where_it_shall_be_and_stays() {
    in_netns(|| {
        let container = fresh_netns();
        let wanted = NewTap { multi_queue: true, owner: Some(1234), group: Some(0), ..tap("tap0") };
        tun::create_tap(&container, &wanted).unwrap();
        let mut inside = RouteSocket::open_in(&container).unwrap();
        let link = inside.link_by_name("tap0").unwrap().unwrap();
        assert!(link.is_kind("tun") && !link.up());
        let info = link.tun.unwrap();
        assert!(info.tap && info.persistent && info.multi_queue && info.vnet_hdr);
        assert_eq!((info.owner, info.group), (Some(1234), Some(0)));
        let seen = within(&container, || json("ip -j -d link show tap0")).unwrap();
        let data = &seen[0]["linkinfo"]["info_data"];
        assert_eq!(data["type"], "tap");
        assert_eq!((&data["persist"], &data["multi_queue"]), (&true.into(), &true.into()));
        assert_eq!((&data["user"], &data["group"]), (&1234.into(), &"root".into()), "{data}");
        assert!(RouteSocket::open().unwrap().link_by_name("tap0").unwrap().is_none());
    });
}

/// A name that a tap or another link has is an error: the call does not open an existing tap.
#[test]
fn a_tap_is_new() {
    in_netns(|| {
        let here = kernel::netns::Netns::current().unwrap();
        tun::create_tap(&here, &tap("tap0")).unwrap();
        assert!(tun::create_tap(&here, &tap("tap0")).unwrap_err().is_exists());
        assert!(tun::create_tap(&here, &tap("lo")).unwrap_err().is_exists());
        for name in ["", "tap%d", "a-name-of-17-byte"] {
            let error = tun::create_tap(&here, &tap(name)).unwrap_err();
            assert!(!error.is_exists(), "{error:?}");
        }
        let mut socket = RouteSocket::open().unwrap();
        assert_eq!(socket.links().unwrap().len(), 2);
    });
}

/// What a program writes arrives at the kernel's end, and the other way round.
#[test]
fn a_program_opens_it_and_speaks() {
    in_netns(|| {
        let here = kernel::netns::Netns::current().unwrap();
        tun::create_tap(&here, &tap("tap0")).unwrap();
        let mut socket = RouteSocket::open().unwrap();
        let link = socket.link_by_name("tap0").unwrap().unwrap();
        let mut program = std::fs::File::from(tun::open_tap(&here, "tap0", false).unwrap());
        socket
            .apply(&[
                Change::SetLink { ifindex: link.index, set: LinkSet::default().up(true) },
                Change::AddAddress {
                    ifindex: link.index,
                    address: "192.0.2.1/24".parse().unwrap(),
                    options: kernel::route::AddressOptions::default(),
                },
            ])
            .unwrap();
        let mut arp = Vec::new();
        arp.extend([0xff; 6]);
        arp.extend([2, 0, 0, 0, 0, 2]);
        arp.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        arp.extend([2, 0, 0, 0, 0, 2, 192, 0, 2, 2]);
        arp.extend([0, 0, 0, 0, 0, 0, 192, 0, 2, 1]);
        program.write_all(&arp).unwrap();
        let mut buffer = [0; 2048];
        loop {
            let length = program.read(&mut buffer).unwrap();
            let frame = &buffer[..length];
            if frame[12..14] == [8, 6] && frame[21] == 2 {
                assert_eq!(&frame[..6], &[2, 0, 0, 0, 0, 2]);
                assert_eq!(&frame[28..32], &[192, 0, 2, 1]);
                return;
            }
        }
    });
}
