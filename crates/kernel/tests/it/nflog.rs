//! Packets that a rule logs, and those that are lost.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::time::Duration;

use kernel::Errno;
use kernel::netns::Netns;
use kernel::nflog::{LogBatch, NflogSocket, Settings};
use kernel::nft::{Batch, Family, Hook, HookPoint, NewChain, NewRule, NftSocket, TableRef};
use kernel::route::RouteSocket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::guard::{fresh_netns, in_netns, lo_up};

const GROUP: u16 = 7;
/// How long a packet may take to arrive.
const DEADLINE: Duration = Duration::from_secs(20);

/// Adds a rule that logs what this namespace sends.
fn log_all() {
    let table = TableRef::new(Family::Inet, "nwt");
    let mut batch = Batch::new();
    batch.add_table(&table, None);
    batch.add_chain(NewChain::base(&table, "out", Hook::filter(HookPoint::Output, 0)));
    let udp = kernel::nft::Value::UDP;
    let rule = NewRule::new(&table, "out").is(kernel::nft::field::l4proto(), udp);
    batch.add_rule(rule.log_to_group("nwt-out ", GROUP, 48));
    NftSocket::open().unwrap().commit(&batch).unwrap();
}

fn socket(address: &str) -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    let at = socket.local_addr().unwrap();
    (socket, at)
}

fn next(log: &mut NflogSocket) -> LogBatch {
    let mut waiting = [PollFd::from_borrowed_fd(log.as_fd(), PollFlags::IN)];
    let deadline = Timespec::try_from(DEADLINE).unwrap();
    assert_eq!(poll(&mut waiting, Some(&deadline)).unwrap(), 1, "nothing is heard");
    log.heard().unwrap()
}

#[test]
fn packets_are_heard_with_their_headers() {
    in_netns(|| {
        let mut route = RouteSocket::open().unwrap();
        lo_up(&mut route);
        log_all();
        for delay in [Duration::ZERO, Duration::from_millis(10)] {
            let settings = Settings { delay, ..Settings::default() };
            let mut log = NflogSocket::open(GROUP, &settings).unwrap();
            assert_eq!(log.heard().unwrap(), LogBatch::default());
            let error = NflogSocket::open(GROUP, &settings).unwrap_err();
            assert_eq!(error.errno(), Some(Errno::PERM), "a group is one socket's");
            for address in ["127.0.0.1", "::1"] {
                let (socket, at) = socket(address);
                socket.send_to(&[7; 100], (address, 9)).unwrap();
                let heard = next(&mut log);
                assert_eq!((heard.lost, heard.overrun), (0, false));
                let [logged] = heard.packets.as_slice() else { panic!("{heard:?}") };
                assert_eq!(logged.prefix, "nwt-out ");
                // NF_INET_LOCAL_OUT; `lo` is the first link.
                assert_eq!(
                    (logged.hook, logged.ifindex_in, logged.ifindex_out),
                    (Some(3), None, Some(1))
                );
                assert_eq!(logged.payload.len(), 48);
                let packet = logged.packet().unwrap();
                let to: SocketAddr = (address.parse::<std::net::IpAddr>().unwrap(), 9).into();
                assert_eq!(packet.to_string(), format!("{at} to {to}, protocol 17"));
            }
            drop(log);
        }
        // A socket in another namespace gets nothing from this one.
        let mut elsewhere =
            NflogSocket::open_in(&fresh_netns(), GROUP, &Settings::default()).unwrap();
        let mut here =
            NflogSocket::open_in(&Netns::current().unwrap(), GROUP, &Settings::default()).unwrap();
        socket("127.0.0.1").0.send_to(b"packet", ("127.0.0.1", 9)).unwrap();
        assert_eq!(next(&mut here).packets.len(), 1);
        assert_eq!(elsewhere.heard().unwrap(), LogBatch::default());
    });
}

#[test]
fn what_is_lost_is_counted() {
    in_netns(|| {
        let mut route = RouteSocket::open().unwrap();
        lo_up(&mut route);
        log_all();
        // The kernel makes the queue as small as it can be.
        let settings = Settings { queue: 0, delay: Duration::ZERO, ..Settings::default() };
        let mut log = NflogSocket::open(GROUP, &settings).unwrap();
        let (socket, _) = socket("127.0.0.1");
        let send = |count: usize| {
            for _ in 0..count {
                socket.send_to(b"packet", ("127.0.0.1", 9)).unwrap();
            }
        };
        for _ in 0..2 {
            send(200);
            let heard = log.heard().unwrap();
            let first = heard.packets.len();
            assert!(heard.overrun && 0 < first && first < 200, "{first} of 200 were heard");
            // The next packet says how many are missing.
            send(1);
            let heard = log.heard().unwrap();
            assert_eq!((heard.packets.len(), heard.overrun), (1, false));
            assert_eq!(heard.lost, 200 - u64::try_from(first).unwrap());
        }
    });
}
