//! Packets that are followed by tracepoints, and by the trace of rules.

use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::time::Duration;

use kernel::Errno;
use kernel::nft::trace::{Flow, FlowTrace, Protocol, TraceStep};
use kernel::nft::{
    Batch, Family, Hook, HookPoint, NewChain, NewRule, NftSocket, TableRef, Value, field,
};
use kernel::route::RouteSocket;
use kernel::tracefs::{PacketEvent, Trace};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::guard::{in_netns, lo_up, sh, skip};

const PORT: u16 = 9;
/// How long a packet may take to arrive.
const DEADLINE: Duration = Duration::from_secs(20);

/// Adds a rule that drops incoming UDP; returns its handle.
fn drop_udp() -> u64 {
    let table = TableRef::new(Family::Inet, "foreign");
    let mut batch = Batch::new();
    batch.add_table(&table, None);
    batch.add_chain(NewChain::base(&table, "in", Hook::filter(HookPoint::Input, 0)));
    batch.add_rule(NewRule::new(&table, "in").is(field::l4proto(), Value::UDP).drop());
    let mut nft = NftSocket::open().unwrap();
    nft.commit(&batch).unwrap();
    nft.rules(&table, "in").unwrap()[0].handle
}

fn sender() -> (UdpSocket, Flow) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = socket.local_addr().unwrap();
    let flow = Flow {
        protocol: Protocol::Udp,
        source: at.ip(),
        source_port: at.port(),
        destination: at.ip(),
        destination_port: PORT,
    };
    (socket, flow)
}

/// Waits until a packet is dropped; returns all events until then.
fn until_dropped(trace: &mut FlowTrace) -> Vec<TraceStep> {
    let deadline = Timespec::try_from(DEADLINE).unwrap();
    let mut all = Vec::new();
    while !all.iter().any(TraceStep::is_drop) {
        let mut waiting = [PollFd::from_borrowed_fd(trace.as_fd(), PollFlags::IN)];
        assert_eq!(poll(&mut waiting, Some(&deadline)).unwrap(), 1, "nothing is heard: {all:?}");
        all.extend(trace.heard().unwrap());
    }
    all
}

#[test]
fn a_rule_that_drops_a_packet_is_told_and_nothing_is_left() {
    in_netns(|| {
        lo_up(&mut RouteSocket::open().unwrap());
        let handle = drop_udp();
        let (socket, flow) = sender();
        let (other, other_flow) = sender();
        let mut trace = FlowTrace::open("nwt-trace", &[Family::Inet], &[flow]).unwrap();
        let mut foreign = Batch::new();
        foreign.delete_table(&TableRef::new(Family::Inet, "nwt-trace"));
        let refused = NftSocket::open().unwrap().commit(&foreign).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::PERM), "the table is the socket's");

        other.send_to(&[7; 100], ("127.0.0.1", PORT)).unwrap();
        socket.send_to(&[7; 100], ("127.0.0.1", PORT)).unwrap();
        let told = until_dropped(&mut trace);
        assert!(told.iter().all(|one| one.of_flow(&flow) == Some(false)), "{told:#?}");
        assert!(told.iter().all(|one| one.of_flow(&other_flow).is_none()), "{told:#?}");
        let dropped = told.iter().find(|one| one.is_drop()).unwrap();
        assert_eq!(dropped.table, TableRef::new(Family::Inet, "foreign"));
        assert_eq!((dropped.chain.as_str(), dropped.rule), ("in", Some(handle)));
        // `lo` is the first link.
        assert_eq!(dropped.ifindex_in, Some(1));

        drop(trace);
        assert_eq!(sh("nft list tables"), "table inet foreign\n");
    });
}

#[test]
fn a_packet_is_followed_to_where_it_is_dropped() {
    in_netns(|| {
        // With the headers of IP and UDP.
        const LENGTH: u32 = 323;
        let name = "a_packet_is_followed_to_where_it_is_dropped";
        lo_up(&mut RouteSocket::open().unwrap());
        drop_udp();
        let (socket, _) = sender();
        let trace = match Trace::open(&[LENGTH..=LENGTH, LENGTH + 14..=LENGTH + 14]) {
            Ok(trace) => trace,
            Err(error) => return skip(name, &format!("{error:?}")),
        };
        trace.mark("here");
        let payload = vec![7; usize::try_from(LENGTH).unwrap() - 28];
        socket.send_to(&payload, ("127.0.0.1", PORT)).unwrap();
        // The reason may be reported a moment later.
        let mut tries = 0;
        let (events, packet) = loop {
            let events = trace.read().unwrap();
            let begin =
                events.iter().position(|one| one.what == PacketEvent::Marked("here".to_owned()));
            let thread = events[begin.unwrap()].thread;
            let queued = events.iter().find_map(|one| match &one.what {
                PacketEvent::Queued { packet, link, length: 337 }
                    if link == "lo" && one.thread == thread =>
                {
                    Some(*packet)
                }
                _ => None,
            });
            let packet = queued.unwrap_or_else(|| panic!("{events:#?}"));
            let is_end = |what: &PacketEvent| matches!(what, PacketEvent::Dropped { packet: one, .. } if *one == packet);
            if events.iter().any(|one| is_end(&one.what)) {
                break (events, packet);
            }
            tries += 1;
            assert!(tries < 10_000, "{events:#?}");
            std::thread::yield_now();
        };
        let received = events.iter().any(|one| {
            let here = PacketEvent::Received { packet, link: "lo".to_owned(), length: LENGTH };
            one.what == here
        });
        assert!(received, "{events:#?}");
        let reasons: Vec<_> = events
            .iter()
            .filter_map(|one| match &one.what {
                PacketEvent::Dropped { packet: own, protocol: 0x0800, function, reason }
                    if *own == packet =>
                {
                    Some((function.as_str(), reason.as_str()))
                }
                _ => None,
            })
            .collect();
        assert!(reasons[0].0.is_empty() || reasons[0].0.starts_with("nft_do_chain"), "{reasons:?}");
        assert!(reasons[0].1.is_empty() || reasons[0].1 == "NETFILTER_DROP", "{reasons:?}");
    });
}

/// What came first stays, and no more is read than a bound.
#[test]
fn a_flood_of_packets_of_one_length_hides_no_beginning() {
    in_netns(|| {
        const LENGTH: u32 = 345;
        /// Each is sent, received and dropped.
        const PACKETS: usize = 20_000;
        const MOST_EVENTS: usize = 50_000;
        let name = "a_flood_of_packets_of_one_length_hides_no_beginning";
        lo_up(&mut RouteSocket::open().unwrap());
        drop_udp();
        let (socket, _) = sender();
        let trace = match Trace::open(&[LENGTH..=LENGTH, LENGTH + 14..=LENGTH + 14]) {
            Ok(trace) => trace,
            Err(error) => return skip(name, &format!("{error:?}")),
        };
        trace.mark("here");
        let payload = vec![7; usize::try_from(LENGTH).unwrap() - 28];
        for _ in 0..PACKETS {
            socket.send_to(&payload, ("127.0.0.1", PORT)).unwrap();
        }
        let events = trace.read().unwrap();
        assert!((1_000..=MOST_EVENTS).contains(&events.len()), "{}", events.len());
        let begin =
            events.iter().position(|one| one.what == PacketEvent::Marked("here".to_owned()));
        let mut behind = events[begin.unwrap()..].iter();
        let queued = behind.find(|one| matches!(one.what, PacketEvent::Queued { length: 359, .. }));
        assert!(queued.is_some(), "{:#?}", &events[..100]);
    });
}
