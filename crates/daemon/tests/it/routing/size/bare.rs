//! A bare netlink program: it makes the same objects for other nodes as the service does, and
//! nothing else. It prepares its messages before the clock starts. Also a listener that notices
//! when objects exist, whichever program makes them.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send,
    socket_with, sockopt,
};
use testkit::Place;

use super::OtherNode;

/// How long it may take until the objects exist.
const TIMEOUT: Duration = Duration::from_secs(120);

/// How many messages are in one datagram.
const TOGETHER: usize = 128;

/// `linux include/uapi/linux/netlink.h`, `rtnetlink.h`, `neighbour.h`, `nexthop.h`.
const NLMSG_ERROR: u16 = 2;
const RTM_NEWROUTE: u16 = 24;
const RTM_NEWNEIGH: u16 = 28;
const RTM_NEWNEXTHOP: u16 = 104;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const REPLACE: u16 = 0x100;
const EXCL: u16 = 0x200;
const CREATE: u16 = 0x400;
const RTN_UNICAST: u8 = 1;
const TABLE_MAIN: u8 = 254;
/// RTPROT_*: the service's.
const PROTOCOL: u8 = 78;

/// `linux include/uapi/linux/netfilter/nfnetlink.h`, `nf_tables.h`: NFT_MSG_NEWGEN of nftables, which
/// ends each transaction.
const NEW_GENERATION: u16 = (10 << 8) | 15;

/// Listens to events about the service's routes, and about transactions of the packet filter.
pub(super) struct Ear {
    route: OwnedFd,
    filter: OwnedFd,
}

impl Ear {
    pub(super) fn open(place: &impl Place) -> Self {
        // RTNLGRP_IPV4_ROUTE and RTNLGRP_IPV6_ROUTE are the groups 7 and 11; NFNLGRP_NFTABLES is 7.
        let listen = |protocol: Option<Protocol>, groups: u32| {
            let socket = socket(protocol);
            bind(&socket, &SocketAddrNetlink::new(0, groups)).unwrap();
            sockopt::set_socket_recv_buffer_size_force(&socket, 256 << 20).unwrap();
            socket
        };
        place.enter(|| Ear {
            route: listen(None, (1 << 6) | (1 << 10)),
            filter: listen(Some(netlink::NETFILTER), 1 << 6),
        })
    }

    /// Waits until this many routes were made, and, if requested, a transaction.
    pub(super) fn until(&self, routes: usize, transaction: bool) {
        let deadline = Instant::now() + TIMEOUT;
        let (mut missing, mut is_open) = (routes, transaction);
        while 0 < missing || is_open {
            assert!(Instant::now() < deadline, "{missing} of {routes} routes are missing");
            let mut ready = [&self.route, &self.filter].map(|of| PollFd::new(of, PollFlags::IN));
            let second = Timespec { tv_sec: 1, tv_nsec: 0 };
            poll(&mut ready, Some(&second)).unwrap();
            missing = missing.saturating_sub(count(&self.route, |kind, body| {
                kind == RTM_NEWROUTE && body[5] == PROTOCOL && body[7] == RTN_UNICAST
            }));
            is_open &= count(&self.filter, |kind, _| kind == NEW_GENERATION) == 0;
        }
    }
}

fn socket(protocol: Option<Protocol>) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).unwrap()
}

/// Counts the available messages of a kind.
fn count(socket: &OwnedFd, is_it: impl Fn(u16, &[u8]) -> bool) -> usize {
    let mut buffer = vec![0; 1 << 16];
    let mut found = 0;
    while let Ok((_, length)) = recv(socket, &mut buffer[..], RecvFlags::DONTWAIT) {
        found += messages(&buffer[..length]).filter(|(kind, _, body)| is_it(*kind, body)).count();
    }
    found
}

/// The messages of a datagram: type, sequence number and body.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, u32, &[u8])> {
    let number = |bytes: &[u8], at: usize| {
        u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    };
    std::iter::from_fn(move || {
        if bytes.len() < 16 {
            return None;
        }
        let (message, length) = (bytes, usize::try_from(number(bytes, 0)).unwrap());
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
        let kind = u16::from_ne_bytes([message[4], message[5]]);
        Some((kind, number(message, 8), &message[16..length]))
    })
}

/// The program: its datagrams, each with the sequence number of its last message.
pub(super) struct BareProgram(Vec<(Vec<u8>, u32)>);

impl BareProgram {
    /// Prepares the messages that make these nodes reachable by two tunnels, in the service's
    /// order: FDB entries, neighbours, nexthops, routes.
    pub(super) fn new(others: &[OtherNode], tunnels: [u32; 2]) -> Self {
        let mut all: Vec<Vec<u8>> = Vec::new();
        for step in [fdb, neighbour, nexthop, route] {
            for (family, tunnel) in tunnels.into_iter().enumerate() {
                all.extend(others.iter().map(|other| step(*other, family, tunnel)));
            }
        }
        let mut datagrams = Vec::new();
        let mut sequence = 0_u32;
        for together in all.chunks_mut(TOGETHER) {
            let last = together.len() - 1;
            for (number, message) in together.iter_mut().enumerate() {
                sequence += 1;
                message[8..12].copy_from_slice(&sequence.to_ne_bytes());
                if number == last {
                    // The kernel handles messages in order, and always answers those that it
                    // refuses.
                    let flags = u16::from_ne_bytes([message[6], message[7]]) | ACK;
                    message[6..8].copy_from_slice(&flags.to_ne_bytes());
                }
            }
            datagrams.push((together.concat(), sequence));
        }
        BareProgram(datagrams)
    }

    /// Sends the datagrams, and waits until the kernel has handled each.
    pub(super) fn run(&self) {
        let socket = socket(None);
        let mut buffer = vec![0; 1 << 16];
        for (datagram, last) in &self.0 {
            send(&socket, datagram, SendFlags::empty()).unwrap();
            let mut is_done = false;
            while !is_done {
                let (_, length) = recv(&socket, &mut buffer[..], RecvFlags::empty()).unwrap();
                for (kind, sequence, body) in messages(&buffer[..length]) {
                    assert_eq!((kind, &body[..4]), (NLMSG_ERROR, &[0; 4][..]), "{sequence}");
                    is_done |= sequence == *last;
                }
            }
        }
    }
}

/// AF_INET, AF_INET6.
const FAMILIES: [u8; 2] = [2, 10];

fn fdb(other: OtherNode, family: usize, tunnel: u32) -> Vec<u8> {
    let to: IpAddr = other.underlay()[family].parse().unwrap();
    let mac = other.macs()[family];
    // AF_BRIDGE; NUD_PERMANENT; NTF_SELF; NDA_LLADDR, NDA_DST.
    let header = [&[7, 0, 0, 0][..], &tunnel.to_ne_bytes(), &0x80_u16.to_ne_bytes(), &[2, 0]];
    let attributes = [(2, &mac[..]), (1, &bytes(to)[..])];
    message(RTM_NEWNEIGH, CREATE | REPLACE, &header.concat(), &attributes)
}

fn neighbour(other: OtherNode, family: usize, tunnel: u32) -> Vec<u8> {
    let mac = other.macs()[family];
    // NUD_PERMANENT; NDA_DST, NDA_LLADDR, NDA_PROTOCOL.
    let header =
        [&[FAMILIES[family], 0, 0, 0][..], &tunnel.to_ne_bytes(), &0x80_u16.to_ne_bytes(), &[0, 0]];
    let attributes =
        [(1, &bytes(gateway(other, family))[..]), (2, &mac[..]), (12, &[PROTOCOL][..])];
    message(RTM_NEWNEIGH, CREATE | REPLACE, &header.concat(), &attributes)
}

fn nexthop(other: OtherNode, family: usize, tunnel: u32) -> Vec<u8> {
    // RTNH_F_ONLINK; NHA_ID, NHA_OIF, NHA_GATEWAY.
    let header = [&[FAMILIES[family], 0, PROTOCOL, 0][..], &4_u32.to_ne_bytes()];
    let attributes = [
        (1, &id(other, family).to_ne_bytes()[..]),
        (5, &tunnel.to_ne_bytes()[..]),
        (6, &bytes(gateway(other, family))[..]),
    ];
    message(RTM_NEWNEXTHOP, CREATE | EXCL, &header.concat(), &attributes)
}

fn route(other: OtherNode, family: usize, _: u32) -> Vec<u8> {
    let prefix: ipnet::IpNet = other.prefixes()[family].parse().unwrap();
    // RTA_DST, RTA_PRIORITY, RTA_NH_ID.
    let header = [
        &[FAMILIES[family], prefix.prefix_len(), 0, 0, TABLE_MAIN, PROTOCOL, 0, RTN_UNICAST][..],
        &[0; 4],
    ];
    let attributes = [
        (1, &bytes(prefix.addr())[..]),
        (6, &2000_u32.to_ne_bytes()[..]),
        (30, &id(other, family).to_ne_bytes()[..]),
    ];
    message(RTM_NEWROUTE, CREATE | EXCL, &header.concat(), &attributes)
}

fn id(other: OtherNode, family: usize) -> u32 {
    0x4e00_0000 + 2 * u32::from(other.name) + u32::try_from(family).unwrap()
}

fn gateway(other: OtherNode, family: usize) -> IpAddr {
    let prefix: ipnet::IpNet = other.prefixes()[family].parse().unwrap();
    match prefix.addr() {
        IpAddr::V6(_) => format!("fe80::{:x}", other.name).parse().unwrap(),
        v4 => v4,
    }
}

fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// One message, padded, with room for its sequence number.
fn message(kind: u16, flags: u16, header: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut body = header.to_vec();
    for (kind, value) in attributes {
        body.extend_from_slice(&u16::try_from(value.len() + 4).unwrap().to_ne_bytes());
        body.extend_from_slice(&kind.to_ne_bytes());
        body.extend_from_slice(value);
        body.resize(body.len().next_multiple_of(4), 0);
    }
    let length = u32::try_from(body.len() + 16).unwrap();
    let start = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &(flags | REQUEST).to_ne_bytes()];
    [&start.concat()[..], &[0; 8], &body].concat()
}
