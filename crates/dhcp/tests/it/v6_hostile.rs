//! DHCPv6: the messages octet for octet, leases on disk, and replies that a client must not
//! believe.

use netwright_dhcp::v6::{
    Client, Config, IgnoreReason, RawOption, ReceiveOutcome, SavedLease, Start, State,
};
use proptest::prelude::*;

use crate::support6::*;

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

#[test]
fn the_messages() {
    let client = "0001000a00030001020000000001";
    let server = "0002000a000300010200000000fe";
    let no_time = "000800020000";
    let oro = "00060006001700180052";
    let ia = "0003002801020304000000000000000000050018\
              20010db8000000000000000000000050\
              0000000000000000";
    let mut bench = Bench::new(plain(), Start::Fresh);
    let dump = |bench: &Bench| {
        let payload = bench.last();
        (payload[0], hex(&payload[4..]))
    };
    let empty = "0003000c010203040000000000000000";
    assert_eq!(dump(&bench), (1, format!("{client}{no_time}{empty}{oro}000e0000")));
    bench.reply(&Reply::new(ADVERTISE, &bench.last()));
    assert_eq!(dump(&bench), (3, format!("{client}{server}{no_time}{ia}{oro}")));
    bench.reply(&Reply::new(REPLY, &bench.last()));
    let saved = bench.saved();
    bench.run(seconds(1800));
    assert_eq!(dump(&bench), (5, format!("{client}{server}{no_time}{ia}{oro}")));
    bench.run(seconds(2880));
    assert_eq!(dump(&bench), (6, format!("{client}{no_time}{ia}{oro}")));
    bench.with(Client::release);
    assert_eq!(dump(&bench), (8, format!("{client}{server}{no_time}{ia}")));
    let mut bench = Bench::at(plain(), Start::Reboot(saved), seconds(10));
    assert_eq!(dump(&bench), (4, format!("{client}{no_time}{ia}")));
    bench.with(|client, now| client.on_conflict(now, ip("2001:db8::50")));
    assert_eq!(dump(&bench), (9, format!("{client}{server}{no_time}{ia}")));
}

#[test]
fn options_to_send_are_added_but_not_to_the_protocol() {
    let mut config = plain();
    config.request = vec![];
    config.send = [1, 2, 3, 5, 6, 8, 13, 14, 16]
        .map(|code| RawOption::new(code, *b"mine"))
        .into_iter()
        .chain([RawOption::new(17, vec![0; 65_536])])
        .collect();
    let bench = Bench::new(config, Start::Fresh);
    let read = ParsedMessage::new(&bench.last());
    let codes: Vec<u16> = read.options.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, [1, 8, 3, 14, 16]);
    assert_eq!(read.option(16), Some(&b"mine"[..]));
}

/// Format version 1, as it is on disks. Never change it: a later version gets a text of its own.
const V1: &str = r#"{
  "version": 1,
  "duid": "00030001020000000001",
  "iaid": 16909060,
  "lease": {
    "addresses": [{ "address": "2001:db8::50", "preferred_s": 3600, "valid_s": null }],
    "server": "000300010200000000fe",
    "dns": ["2001:db8::5"],
    "search": ["example.org"],
    "obtained": { "at_ms": 1000000, "wall_ms": 1700000000000, "boot_id": null },
    "t1_s": 1800,
    "t2_s": null,
    "options": [{ "code": 23, "value": "00" }]
  }
}"#;

#[test]
fn version_1_is_read_and_written_as_ever() {
    let saved: SavedLease = serde_json::from_str(V1).unwrap();
    assert_eq!(saved.iaid, IAID);
    let written: serde_json::Value = serde_json::to_value(&saved).unwrap();
    assert_eq!(written, serde_json::from_str::<serde_json::Value>(V1).unwrap());
    let newer = V1.replace("\"version\": 1", "\"version\": 2");
    let error = serde_json::from_str::<SavedLease>(&newer).unwrap_err().to_string();
    assert!(error.starts_with("saved lease has format version 2, this program reads 1"), "{error}");
}

fn ignored(bench: &mut Bench, payload: &[u8], why: IgnoreReason) {
    let state = bench.client.state();
    bench.actions.clear();
    assert_eq!(bench.packet(payload), ReceiveOutcome::Ignored(why));
    assert_eq!((bench.client.state(), bench.took().len()), (state, 0));
}

#[test]
fn what_does_not_count() {
    let mut bench = Bench::new(plain(), Start::Fresh);
    let solicit = bench.last();
    let good = Reply::new(ADVERTISE, &solicit);
    ignored(&mut bench, &solicit, IgnoreReason::NotAReply);
    for kind in [0, 10, 11, 12, 13, 255] {
        ignored(&mut bench, &Reply { kind, ..good.clone() }.bytes(), IgnoreReason::Malformed);
    }
    ignored(&mut bench, &good.clone().without(1).bytes(), IgnoreReason::OtherClient);
    ignored(&mut bench, &good.clone().with(1, b"you").bytes(), IgnoreReason::OtherClient);
    ignored(&mut bench, &good.clone().without(2).bytes(), IgnoreReason::Unusable);
    ignored(&mut bench, &good.clone().with(2, b"").bytes(), IgnoreReason::Unusable);
    ignored(&mut bench, &good.clone().with(2, [0; 131]).bytes(), IgnoreReason::Unusable);
    let xid = Reply { xid: [1, 2, 3], ..good.clone() };
    ignored(&mut bench, &xid.bytes(), IgnoreReason::NotAwaited);
    let iaid = Reply { iaid: 7, ..good.clone() };
    ignored(&mut bench, &iaid.bytes(), IgnoreReason::Unusable);
    ignored(&mut bench, &good.clone().times(200, 100).bytes(), IgnoreReason::Unusable);
    for address in ["::", "::1", "ff02::1", "fe80::1", "::ffff:192.0.2.1"] {
        ignored(
            &mut bench,
            &good.clone().giving(&[(address, 1, 2)]).bytes(),
            IgnoreReason::Unusable,
        );
    }
    ignored(
        &mut bench,
        &good.clone().giving(&[("2001:db8::50", 3, 2)]).bytes(),
        IgnoreReason::Unusable,
    );
    ignored(
        &mut bench,
        &good.clone().giving(&[("2001:db8::50", 0, 0)]).bytes(),
        IgnoreReason::Unusable,
    );
    assert_eq!(bench.reply(&good), ReceiveOutcome::Taken);
    let reply = Reply::new(REPLY, &bench.last());
    ignored(&mut bench, &reply.clone().with(2, OTHER_SERVER).bytes(), IgnoreReason::OtherServer);
    let late = Reply::new(ADVERTISE, &bench.last()).bytes();
    ignored(&mut bench, &late, IgnoreReason::NotAwaited);
    assert_eq!(bench.reply(&reply), ReceiveOutcome::Taken);
    ignored(&mut bench, &reply.bytes(), IgnoreReason::NotAwaited);
}

#[test]
fn cut_off_messages_are_ignored() {
    let mut bench = Bench::new(plain(), Start::Fresh);
    let bytes = Reply::new(ADVERTISE, &bench.last()).bytes();
    for length in 0..bytes.len() {
        assert_ne!(bench.packet(&bytes[..length]), ReceiveOutcome::Taken, "{length}");
    }
    assert_eq!(bench.packet(&bytes), ReceiveOutcome::Taken);
}

#[test]
fn more_addresses_than_sense_are_cut() {
    let many: Vec<_> = (0..100).map(|n| (format!("2001:db8::1:{n}"), 3600, 7200)).collect();
    let many: Vec<_> = many.iter().map(|(address, p, v)| (address.as_str(), *p, *v)).collect();
    let bench = Bench::bound(|reply| reply.giving(&many));
    assert_eq!(bench.lease().addresses.len(), 16);
    let twice = [("2001:db8::1", 3600, 7200), ("2001:db8::1", 1, 2)];
    assert_eq!(Bench::bound(|reply| reply.giving(&twice)).lease().addresses.len(), 1);
}

/// A client in each state that accepts replies.
fn listeners() -> Vec<Bench> {
    let requesting = || {
        let mut bench = Bench::new(plain(), Start::Fresh);
        bench.reply(&Reply::new(ADVERTISE, &bench.last()));
        bench
    };
    let later = |at| {
        let mut bench = Bench::bound(|reply| reply);
        bench.run(seconds(at));
        bench
    };
    let leaving = |how: fn(&mut Bench)| {
        let mut bench = later(10);
        how(&mut bench);
        bench
    };
    let saved = Bench::bound(|reply| reply).saved();
    vec![
        Bench::new(plain(), Start::Fresh),
        Bench::new(Config { first_offer: false, ..plain() }, Start::Fresh),
        requesting(),
        later(1800),
        later(2880),
        Bench::at(plain(), Start::Reboot(saved), seconds(10)),
        leaving(|bench| bench.with(Client::release)),
        leaving(|bench| bench.with(|client, now| client.on_conflict(now, ip("2001:db8::50")))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bytes_make_it_panic(payload in prop::collection::vec(any::<u8>(), 0..300)) {
        for mut bench in listeners() {
            let before = bench.client.state();
            bench.client.on_packet(after(bench.since), &payload);
            prop_assert_eq!(bench.client.state(), before);
        }
    }

    /// The client, the server and the transaction are right, and a few octets are changed or random
    /// ones added.
    #[test]
    fn no_damage_makes_it_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        extra in prop::collection::vec((0_u16..100, prop::collection::vec(any::<u8>(), 0..40)), 0..6),
        kind in prop::sample::select(vec![ADVERTISE, REPLY]),
        times in any::<(u32, u32)>(),
        lifetimes in any::<(u32, u32)>(),
    ) {
        for mut bench in listeners() {
            let mut reply = Reply::new(kind, &bench.last()).times(times.0, times.1);
            reply.addresses.push((ip("2001:db8::51"), lifetimes.0, lifetimes.1));
            reply.options.extend(extra.clone());
            let mut bytes = reply.bytes();
            for (at, value) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            bench.packet(&bytes);
            if let Some(saved) = bench.client.saved() {
                let text = serde_json::to_string(&saved).unwrap();
                prop_assert_eq!(saved, serde_json::from_str(&text).unwrap());
            }
            bench.run(bench.since + seconds(100));
            prop_assert!(bench.client.state() == State::Ended || bench.deadline().is_none_or(|at| bench.since < at));
        }
    }
}
