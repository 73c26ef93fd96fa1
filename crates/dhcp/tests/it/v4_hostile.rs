//! Replies that a client must not believe.

use std::net::Ipv4Addr;
use std::time::Duration;

use netwright_dhcp::v4::{Client, IgnoreReason, ReceiveOutcome, Start, State};
use proptest::prelude::*;

use crate::support::*;

/// A client in state SELECTING.
fn asking() -> Bench {
    let mut config = plain();
    config.client_id = Some(b"\0me".to_vec());
    Bench::new(config, Start::Fresh)
}

fn ignored(bench: &mut Bench, payload: &[u8], why: IgnoreReason) {
    let state = bench.client.state();
    bench.actions.clear();
    assert_eq!(bench.packet(payload), ReceiveOutcome::Ignored(why));
    assert_eq!((bench.client.state(), bench.took().len()), (state, 0));
}

#[test]
fn replies_for_others() {
    let mut bench = asking();
    let good = Reply::new(OFFER, &bench.last());
    let mac = Reply { mac: OTHER_MAC, ..good.clone() };
    ignored(&mut bench, &mac.bytes(), IgnoreReason::OtherClient);
    ignored(&mut bench, &good.clone().with(61, b"\0you").bytes(), IgnoreReason::OtherClient);
    let xid = Reply { xid: [1, 2, 3, 4], ..good.clone() };
    ignored(&mut bench, &xid.bytes(), IgnoreReason::NotAwaited);
    assert_eq!(bench.reply(&good.with(61, b"\0me")), ReceiveOutcome::Taken);
}

#[test]
fn what_is_no_reply() {
    let mut bench = asking();
    let discover = bench.last();
    ignored(&mut bench, &discover, IgnoreReason::NotAReply);
    let good = Reply::new(OFFER, &discover);
    for kind in [0, 1, 3, 4, 7, 8, 9, 18, 255] {
        ignored(&mut bench, &good.clone().with(53, [kind]).bytes(), IgnoreReason::NotAReply);
    }
    ignored(&mut bench, &good.clone().with(53, []).bytes(), IgnoreReason::NotAReply);
    ignored(&mut bench, &good.clone().with(53, [2, 2]).bytes(), IgnoreReason::NotAReply);
    ignored(&mut bench, &Reply::new(ACK, &discover).bytes(), IgnoreReason::NotAwaited);
    ignored(&mut bench, &Reply::new(NAK, &discover).bytes(), IgnoreReason::NotAwaited);
}

#[test]
fn offers_of_nothing() {
    let mut bench = asking();
    let good = Reply::new(OFFER, &bench.last());
    for address in ["0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "255.255.255.255"] {
        let address: Ipv4Addr = address.parse().unwrap();
        ignored(&mut bench, &good.clone().giving(address).bytes(), IgnoreReason::Unusable);
        ignored(&mut bench, &good.clone().from(address).bytes(), IgnoreReason::Unusable);
    }
    ignored(&mut bench, &good.clone().with(54, []).bytes(), IgnoreReason::Unusable);
    ignored(&mut bench, &good.clone().with(54, [1, 2, 3]).bytes(), IgnoreReason::Unusable);
}

#[test]
fn grants_of_something_else() {
    let mut bench = asking();
    bench.reply(&Reply::new(OFFER, &bench.last()));
    let good = Reply::new(ACK, &bench.last());
    ignored(&mut bench, &good.clone().from(OTHER_SERVER).bytes(), IgnoreReason::OtherServer);
    ignored(&mut bench, &good.clone().giving(OTHER_ADDRESS).bytes(), IgnoreReason::Unusable);
    ignored(&mut bench, &good.clone().lasting(0).bytes(), IgnoreReason::Unusable);
    let nak = Reply::new(NAK, &bench.last());
    ignored(&mut bench, &nak.clone().from(OTHER_SERVER).bytes(), IgnoreReason::OtherServer);
    ignored(&mut bench, &nak.with(54, []).bytes(), IgnoreReason::OtherServer);
    let offer = Reply::new(OFFER, &bench.last());
    ignored(&mut bench, &offer.bytes(), IgnoreReason::NotAwaited);
    assert_eq!(bench.reply(&good), ReceiveOutcome::Taken);
    ignored(&mut bench, &good.bytes(), IgnoreReason::NotAwaited);
}

#[test]
fn damaged_messages() {
    let mut bench = asking();
    let good = Reply::new(OFFER, &bench.last());
    let bytes = good.bytes();
    for length in 0..bytes.len() - 1 {
        let state = bench.client.state();
        let received = bench.packet(&bytes[..length]);
        // Whole options may be missing from the end, and the end mark itself.
        if received != ReceiveOutcome::Ignored(IgnoreReason::Malformed) {
            assert!(240 <= length, "{length}: {received:?}");
        }
        if bench.client.state() != state {
            bench = asking();
        }
    }
    let mut bench = asking();
    for (at, value) in [(0, 3), (1, 6), (2, 16), (236, 0)] {
        let mut bytes = Reply::new(OFFER, &bench.last()).bytes();
        bytes[at] = value;
        ignored(&mut bench, &bytes, IgnoreReason::Malformed);
    }
    ignored(&mut bench, &good.with(52, [4]).bytes(), IgnoreReason::Malformed);
}

#[test]
fn the_end_mark_may_be_missing() {
    let mut bench = asking();
    let mut bytes = Reply::new(OFFER, &bench.last()).bytes();
    assert_eq!(bytes.pop(), Some(255));
    assert_eq!(bench.packet(&bytes), ReceiveOutcome::Taken);
}

/// A client in each state that accepts replies.
fn listeners() -> Vec<Client> {
    let requesting = || {
        let mut bench = asking();
        bench.reply(&Reply::new(OFFER, &bench.last()));
        bench
    };
    let renewing = |at| {
        let mut bench = Bench::bound(plain(), 7200);
        bench.run(seconds(at));
        bench
    };
    let saved = Bench::bound(plain(), 7200).saved();
    let rebooting = Bench::at(plain(), Start::Reboot(saved), seconds(10));
    let benches = [asking(), requesting(), renewing(3700), renewing(6400), rebooting];
    benches.into_iter().map(|bench| bench.client).collect()
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(payload in prop::collection::vec(any::<u8>(), 0..700)) {
        for mut client in listeners() {
            let before = client.state();
            client.on_packet(after(seconds(6500)), &payload, None);
            prop_assert!(client.state() == before || client.lease().is_none());
        }
    }

    /// The header and the transaction are right, the options are random: the resulting state can be
    /// saved and read.
    #[test]
    fn no_options_make_it_panic(
        options in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..40)), 0..20),
        kind in prop::sample::select(vec![OFFER, ACK, NAK]),
        raw in prop::collection::vec(any::<u8>(), 0..60),
        overload in 0_u8..4,
    ) {
        for state in 0..2 {
            let mut bench = asking();
            if state == 1 {
                bench.reply(&Reply::new(OFFER, &bench.last()));
            }
            let mut reply = Reply::new(kind, &bench.last());
            reply.options.extend(options.clone());
            if overload != 0 {
                reply.options.push((52, vec![overload]));
                reply.file.clone_from(&raw);
                reply.sname.clone_from(&raw);
            }
            bench.reply(&reply);
            if let Some(saved) = bench.client.saved() {
                let text = serde_json::to_string(&saved).unwrap();
                let read = serde_json::from_str(&text).unwrap();
                prop_assert_eq!(saved, read);
            }
            bench.run(Duration::from_secs(20));
        }
    }

    /// A real reply with a few octets changed.
    #[test]
    fn no_damage_makes_it_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bench = asking();
        bench.reply(&Reply::new(OFFER, &bench.last()));
        let full = Reply::new(ACK, &bench.last())
            .with(121, [24, 198, 51, 100, 192, 0, 2, 3])
            .with(119, b"\x03eng\x07example\x03org\0\x03ops\xc0\x04");
        let mut bytes = full.bytes();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bench.packet(&bytes);
        bench.run(Duration::from_secs(60));
        prop_assert_ne!(bench.client.state(), State::Ended);
    }
}
