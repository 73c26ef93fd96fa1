//! DHCPv6: every transition from one state to another (RFC 8415 §18.2).

use std::time::Duration;

use netwright_dhcp::v6::{
    Action, Client, Config, Duid, IgnoreReason, ReceiveOutcome, Start, State, key_iaid,
    release_message,
};

use crate::support6::*;

const SECOND: Duration = Duration::from_secs(1);

fn within(wait: Duration, least: f64, most: f64) {
    assert!((least..=most).contains(&wait.as_secs_f64()), "{wait:?} in {least}..={most}");
}

#[test]
fn a_lease_takes_four_messages() {
    let mut bench = Bench::new(plain(), Start::Fresh);
    assert_eq!(
        (bench.client.state(), bench.took()),
        (State::Soliciting, vec!["SOLICIT".to_owned()])
    );
    assert_eq!(bench.reply(&Reply::new(ADVERTISE, &bench.last())), ReceiveOutcome::Taken);
    assert_eq!(bench.client.state(), State::Requesting);
    assert_eq!(bench.took(), ["REQUEST 2001:db8::50 to the server"]);
    assert_eq!(bench.reply(&Reply::new(REPLY, &bench.last())), ReceiveOutcome::Taken);
    assert_eq!(
        (bench.client.state(), bench.took()),
        (State::Bound, vec!["configure 2001:db8::50".to_owned()])
    );
    let lease = bench.lease();
    assert_eq!((lease.t1_s, lease.t2_s), (Some(1800), Some(2880)));
    assert_eq!(lease.expires_at(), Some(after(seconds(7200)).at));
}

#[test]
fn rapid_commit_takes_two() {
    let mut bench = Bench::new(plain(), Start::Fresh);
    assert_eq!(ParsedMessage::new(&bench.last()).option(14), Some(&[][..]));
    let reply = Reply::new(REPLY, &bench.last());
    assert_eq!(bench.reply(&reply), ReceiveOutcome::Ignored(IgnoreReason::NotAwaited));
    assert_eq!(bench.reply(&reply.with(14, [])), ReceiveOutcome::Taken);
    assert_eq!(bench.took(), ["SOLICIT", "configure 2001:db8::50"]);

    let mut bench = Bench::new(Config { rapid_commit: false, ..plain() }, Start::Fresh);
    assert_eq!(ParsedMessage::new(&bench.last()).option(14), None);
    let reply = Reply::new(REPLY, &bench.last()).with(14, []);
    assert_eq!(bench.reply(&reply), ReceiveOutcome::Ignored(IgnoreReason::NotAwaited));
}

#[test]
fn solicit_is_sent_again_ever_more_rarely_up_to_an_hour() {
    let mut bench = Bench::new(plain(), Start::Fresh);
    let xid = ParsedMessage::new(&bench.last()).xid;
    let mut wait = bench.wait();
    within(wait, 1.0, 1.1);
    for _ in 0..20 {
        let next = bench.wait();
        let (least, most) = (wait.as_secs_f64() * 1.89, wait.as_secs_f64() * 2.11);
        within(next, least.min(3240.0), most.min(3960.0));
        wait = next;
    }
    within(wait, 3240.0, 3960.0);
    let read = ParsedMessage::new(&bench.last());
    assert_eq!((read.xid, read.option(8)), (xid, Some(&[0xff, 0xff][..])));
}

#[test]
fn elapsed_time_counts_from_the_first_message() {
    let mut bench = Bench::new(plain(), Start::Fresh);
    assert_eq!(ParsedMessage::new(&bench.last()).option(8), Some(&[0, 0][..]));
    let hundredths = bench.wait().as_millis() / 10;
    assert_eq!(
        ParsedMessage::new(&bench.last()).option(8),
        Some(&u16::try_from(hundredths).unwrap().to_be_bytes()[..])
    );
}

#[test]
fn the_first_message_may_wait_a_second() {
    let mut config = plain();
    config.timing.first_delay = SECOND;
    let bench = Bench::new(config.clone(), Start::Fresh);
    assert_eq!((bench.client.state(), bench.actions.len()), (State::Init, 0));
    assert!(bench.deadline().unwrap() <= SECOND);
    let mut bench = Bench::new(config, Start::Fresh);
    bench.with(Client::on_carrier);
    assert_eq!(bench.took(), ["SOLICIT"]);
}

#[test]
fn the_preferred_server_is_asked_after_the_first_wait() {
    let patient = Config { first_offer: false, ..plain() };
    let mut bench = Bench::new(patient.clone(), Start::Fresh);
    let advertise = Reply::new(ADVERTISE, &bench.last());
    bench.reply(&advertise.clone().with(7, [9]).with(2, OTHER_SERVER));
    bench.reply(&advertise.clone().with(7, [10]));
    bench.reply(&advertise.clone().with(7, [10]).with(2, OTHER_SERVER));
    assert_eq!(bench.took(), ["SOLICIT"]);
    within(bench.wait(), 1.0, 1.1);
    assert_eq!(bench.took(), ["REQUEST 2001:db8::50 to the server"]);

    // A preference of 255 counts at once; after the first wait, any server's reply does.
    let mut bench = Bench::new(patient.clone(), Start::Fresh);
    bench.reply(&Reply::new(ADVERTISE, &bench.last()).with(7, [255]));
    assert_eq!(bench.client.state(), State::Requesting);
    let mut bench = Bench::new(patient, Start::Fresh);
    bench.wait();
    bench.reply(&Reply::new(ADVERTISE, &bench.last()));
    assert_eq!(bench.client.state(), State::Requesting);
}

#[test]
fn request_is_given_up_after_ten() {
    let mut bench = Bench::new(plain(), Start::Fresh);
    bench.reply(&Reply::new(ADVERTISE, &bench.last()));
    bench.took();
    within(bench.wait(), 0.9, 1.1);
    while bench.client.state() == State::Requesting {
        bench.wait();
    }
    let took = bench.took();
    assert_eq!((took.len(), took.last().unwrap().as_str()), (10, "SOLICIT"));
}

#[test]
fn renewed_at_t1_rebound_at_t2_and_over_at_the_end() {
    let mut bench = Bench::bound(|reply| reply);
    assert_eq!(bench.wait(), seconds(1800));
    assert_eq!(
        (bench.client.state(), bench.took()),
        (State::Renewing, vec!["RENEW 2001:db8::50 to the server".to_owned()])
    );
    within(bench.wait(), 9.0, 11.0);
    bench.run(seconds(2879));
    let renewals = bench.took();
    assert!((5..10).contains(&renewals.len()), "{renewals:?}");
    bench.run(seconds(2880));
    assert_eq!(
        (bench.client.state(), bench.took()),
        (State::Rebinding, vec!["REBIND 2001:db8::50".to_owned()])
    );
    bench.run(seconds(7199));
    bench.took();
    bench.run(seconds(7200));
    let took = bench.took();
    assert_eq!(
        took[took.len() - 2..],
        ["deconfigure 2001:db8::50: expired", "SOLICIT 2001:db8::50"]
    );
}

#[test]
fn a_renewal_counts_from_when_it_was_last_asked_for() {
    for (at, server) in [(1900, SERVER), (2900, OTHER_SERVER)] {
        let mut bench = Bench::bound(|reply| reply);
        bench.run(seconds(at));
        bench.took();
        let asked = bench.wait();
        bench.took();
        let reply = Reply::new(REPLY, &bench.last()).with(2, server);
        assert_eq!(bench.reply(&reply), ReceiveOutcome::Taken);
        assert_eq!(bench.took(), ["configure 2001:db8::50 over 2001:db8::50"]);
        let lease = bench.lease();
        assert_eq!(
            (lease.obtained.at_ms, lease.server.as_slice()),
            (after(seconds(at) + asked).at, server)
        );
    }
}

#[test]
fn addresses_come_and_go_with_renewals() {
    let mut bench = Bench::bound(|reply| {
        reply.giving(&[
            ("2001:db8::50", 3600, 7200),
            ("2001:db8::51", 3600, 5000),
            ("2001:db8::52", 3600, 7200),
        ])
    });
    bench.run(seconds(1800));
    bench.took();
    // The reply does not name 51, which keeps its lifetimes; it withdraws 52, and 53 is new.
    bench.reply(&Reply::new(REPLY, &bench.last()).giving(&[
        ("2001:db8::50", 3600, 7200),
        ("2001:db8::52", 0, 0),
        ("2001:db8::53", 3600, 7200),
    ]));
    assert_eq!(
        bench.took(),
        [
            "configure 2001:db8::50,2001:db8::53,2001:db8::51 over 2001:db8::50,2001:db8::51,2001:db8::52"
        ]
    );
    let last = bench.lease().addresses.last().unwrap();
    assert_eq!((last.preferred_s, last.valid_s), (Some(1800), Some(3200)));
    // It expires alone.
    bench.run(seconds(4999));
    bench.took();
    bench.run(seconds(5000));
    let took = bench.took();
    assert_eq!(
        took[0],
        "configure 2001:db8::50,2001:db8::53 over 2001:db8::50,2001:db8::53,2001:db8::51"
    );
}

#[test]
fn withdrawn_addresses_are_given_up_at_once() {
    let mut bench = Bench::bound(|reply| reply);
    bench.run(seconds(1800));
    bench.took();
    bench.reply(&Reply::new(REPLY, &bench.last()).giving(&[("2001:db8::50", 0, 0)]));
    assert_eq!(bench.took(), ["deconfigure 2001:db8::50: refused by the server", "SOLICIT"]);
}

#[test]
fn a_server_without_memory_is_asked_to_bind_what_is_in_use() {
    let mut bench = Bench::bound(|reply| reply);
    bench.run(seconds(1800));
    bench.took();
    bench.reply(&Reply::new(REPLY, &bench.last()).refusing(3));
    assert_eq!(bench.took(), ["REQUEST 2001:db8::50 to the server"]);
    assert!(bench.client.lease().is_some());
    bench.reply(&Reply::new(REPLY, &bench.last()));
    assert_eq!(bench.took(), ["configure 2001:db8::50 over 2001:db8::50"]);
}

#[test]
fn what_ended_meanwhile_is_not_asked_for() {
    let mut bench = Bench::bound(|reply| {
        reply
            .times(1800, 1900)
            .giving(&[("2001:db8::50", 3600, 7200), ("2001:db8::51", 1802, 1802)])
    });
    bench.run(seconds(1800));
    bench.reply(&Reply::new(REPLY, &bench.last()).refusing(3));
    bench.took();
    bench.run(seconds(1804));
    assert_eq!(
        bench.took(),
        [
            "REQUEST 2001:db8::50 2001:db8::51 to the server",
            "configure 2001:db8::50 over 2001:db8::50,2001:db8::51",
            "REQUEST 2001:db8::50 to the server"
        ]
    );
}

#[test]
fn one_that_does_not_want_to_is_not_asked_without_pause() {
    let mut bench = Bench::bound(|reply| reply);
    bench.run(seconds(1800));
    let mut messages = 0;
    while bench.since < seconds(2800) {
        messages += bench.took().len();
        assert!(messages < 100, "{messages} at {:?}", bench.since);
        let reply = Reply::new(REPLY, &bench.last()).refusing(3);
        if matches!(bench.client.state(), State::Renewing | State::Requesting) {
            bench.reply(&reply);
        }
        if matches!(bench.client.state(), State::Renewing) {
            bench.wait();
        }
    }
    assert!(bench.client.lease().is_some());
}

#[test]
fn replies_that_renew_nothing_do_not_stop_renewing() {
    let mut bench = Bench::bound(|reply| reply);
    bench.run(seconds(1800));
    let reply = Reply::new(REPLY, &bench.last());
    for reply in [
        reply.clone().refusing(1),
        reply.clone().refusing(2),
        reply.clone().giving(&[]),
        Reply { association: false, ..reply.clone() },
        reply.with(13, [0, 1]),
    ] {
        assert_eq!(bench.reply(&reply), ReceiveOutcome::Ignored(IgnoreReason::Unusable));
        assert_eq!(bench.client.state(), State::Renewing);
    }
}

#[test]
fn times_are_the_servers_or_ours() {
    let times = |t1: u32, t2: u32, preferred: u32, valid: u32| {
        let bench =
            Bench::bound(|reply| reply.times(t1, t2).giving(&[("2001:db8::50", preferred, valid)]));
        let lease = bench.lease();
        (lease.t1_s, lease.t2_s)
    };
    const NEVER: u32 = u32::MAX;
    assert_eq!(times(100, 200, 3600, 7200), (Some(100), Some(200)));
    assert_eq!(times(0, 200, 3600, 7200), (Some(200), Some(200)));
    assert_eq!(times(3000, 0, 3600, 7200), (Some(3000), Some(3000)));
    assert_eq!(times(100, 0, 3600, 7200), (Some(100), Some(2880)));
    assert_eq!(times(0, 0, NEVER, NEVER), (None, None));
    assert_eq!(times(NEVER, NEVER, 3600, 7200), (None, None));
    assert_eq!(times(0, 0, 0, 100), (Some(50), Some(80)));
    assert_eq!(times(0, 0, 1, 1), (Some(1), Some(1)));
    let bench = Bench::bound(|reply| reply.giving(&[("2001:db8::50", NEVER, NEVER)]));
    assert_eq!((bench.deadline(), bench.lease().expires_at()), (None, None));
}

#[test]
fn refusals_are_waited_out_and_reported() {
    let mut config = plain();
    config.timing.acquire = Some(seconds(60));
    let mut bench = Bench::new(config.clone(), Start::Fresh);
    let none = Reply::new(ADVERTISE, &bench.last()).refusing(2);
    assert_eq!(bench.reply(&none), ReceiveOutcome::Ignored(IgnoreReason::Unusable));
    bench.run(seconds(60));
    assert_eq!(
        bench.took().last().unwrap(),
        "failed: no more tries: DHCPv6 server answered with status 2 (sothere)"
    );
    assert_eq!((bench.client.state(), bench.deadline()), (State::Ended, None));

    let mut waits = Vec::new();
    let mut bench = Bench::new(plain(), Start::Fresh);
    for _ in 0..10 {
        bench.reply(&Reply::new(ADVERTISE, &bench.last()));
        bench.reply(&Reply::new(REPLY, &bench.last()).refusing(2));
        waits.push(if bench.client.state() == State::Init { bench.wait().as_secs() } else { 0 });
    }
    assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 64, 120, 120]);

    let mut bench = Bench::new(config.clone(), Start::Fresh);
    bench.run(seconds(60));
    assert_eq!(bench.took().last().unwrap(), "failed: no more tries: no DHCPv6 server answered");

    config.timing.acquire = Some(seconds(300));
    let mut bench = Bench::new(config, Start::Fresh);
    bench.reply(&Reply::new(ADVERTISE, &bench.last()));
    bench.run(seconds(300));
    assert_eq!(
        bench.took().last().unwrap(),
        "failed: no more tries: a DHCPv6 server offered addresses and did not answer the request for them"
    );
}

#[test]
fn servers_say_how_long_to_wait() {
    let mut bench = Bench::new(plain(), Start::Fresh);
    let none = Reply::new(ADVERTISE, &bench.last()).refusing(2);
    bench.reply(&none.clone().with(82, 60_u32.to_be_bytes()));
    bench.run(seconds(600));
    bench.wait();
    within(bench.wait(), 54.0, 66.0);
    // Out of range: nothing changes.
    for bad in [0_u32, 59, 86_401, u32::MAX] {
        bench.reply(&none.clone().with(82, bad.to_be_bytes()));
        within(bench.wait(), 54.0, 66.0);
    }
}

#[test]
fn release_is_repeated_until_answered() {
    let mut bench = Bench::bound(|reply| reply);
    bench.with(Client::release);
    assert_eq!(
        bench.took(),
        ["deconfigure 2001:db8::50: released", "RELEASE 2001:db8::50 to the server"]
    );
    assert_eq!(bench.client.state(), State::Releasing);
    within(bench.wait(), 0.9, 1.1);
    assert_eq!(bench.took(), ["RELEASE 2001:db8::50 to the server"]);
    let done = Reply { association: false, ..Reply::new(REPLY, &bench.last()) };
    assert_eq!(bench.reply(&done), ReceiveOutcome::Taken);
    assert_eq!((bench.client.state(), bench.deadline()), (State::Ended, None));

    let mut bench = Bench::bound(|reply| reply);
    bench.with(Client::release);
    bench.run(seconds(20));
    assert_eq!(bench.took().len(), 5);
    assert_eq!(bench.client.state(), State::Ended);
}

#[test]
fn a_lease_that_is_over_is_not_released() {
    let mut bench = Bench::bound(|reply| reply);
    bench.since = seconds(7200);
    bench.with(Client::release);
    assert_eq!(bench.took(), ["deconfigure 2001:db8::50: expired"]);
    assert_eq!(bench.client.state(), State::Ended);
}

#[test]
fn release_of_what_is_only_asked_for_frees_it_and_of_nothing_says_nothing() {
    let mut bench = Bench::new(plain(), Start::Fresh);
    bench.took();
    bench.with(Client::release);
    assert_eq!((bench.took().len(), bench.client.state()), (0, State::Ended));
    let mut bench = Bench::new(plain(), Start::Fresh);
    bench.reply(&Reply::new(ADVERTISE, &bench.last()));
    bench.took();
    bench.with(Client::release);
    assert_eq!(bench.took(), ["RELEASE 2001:db8::50 to the server"]);
}

#[test]
fn a_saved_lease_can_be_released_without_a_client() {
    let transmit = release_message(&Bench::bound(|reply| reply).saved(), 7);
    assert_eq!(short(&Action::Send(transmit)), "RELEASE 2001:db8::50 to the server");
}

#[test]
fn an_address_in_use_is_declined_and_another_asked_for() {
    let mut bench = Bench::bound(|reply| reply);
    bench.with(|client, now| client.on_conflict(now, ip("2001:db8::99")));
    assert_eq!(bench.took(), [""; 0]);
    bench.with(|client, now| client.on_conflict(now, ip("2001:db8::50")));
    assert_eq!(
        bench.took(),
        [
            "deconfigure 2001:db8::50: 2001:db8::50 is in use by another host",
            "DECLINE 2001:db8::50 to the server"
        ]
    );
    let done = Reply { association: false, ..Reply::new(REPLY, &bench.last()) };
    bench.reply(&done);
    assert_eq!((bench.client.state(), bench.deadline()), (State::Init, Some(seconds(10))));
    bench.wait();
    assert_eq!(bench.took(), ["SOLICIT"]);
    // Without an answer too.
    let mut bench = Bench::bound(|reply| reply);
    bench.with(|client, now| client.on_conflict(now, ip("2001:db8::50")));
    bench.run(seconds(40));
    assert_eq!(bench.client.state(), State::Soliciting);
}

#[test]
fn the_other_addresses_stay() {
    let mut bench = Bench::bound(|reply| {
        reply.giving(&[("2001:db8::50", 3600, 7200), ("2001:db8::51", 3600, 7200)])
    });
    bench.with(|client, now| client.on_conflict(now, ip("2001:db8::50")));
    assert_eq!(
        bench.took(),
        [
            "configure 2001:db8::51 over 2001:db8::50,2001:db8::51",
            "DECLINE 2001:db8::50 to the server"
        ]
    );
    bench.reply(&Reply { association: false, ..Reply::new(REPLY, &bench.last()) });
    assert_eq!((bench.client.state(), bench.deadline()), (State::Bound, Some(seconds(1800))));
}

/// A client with the lease that another, which ran before it, obtained at 0.
fn reborn(at: u64) -> Bench {
    let saved = Bench::bound(|reply| reply).saved();
    Bench::at(plain(), Start::Reboot(saved), seconds(at))
}

#[test]
fn after_a_restart_the_lease_is_confirmed() {
    let mut bench = reborn(100);
    assert_eq!(bench.client.state(), State::Confirming);
    assert_eq!(bench.took(), ["CONFIRM 2001:db8::50"]);
    assert_eq!(ParsedMessage::new(&bench.last()).option(6), None);
    let confirmed = Reply { association: false, ..Reply::new(REPLY, &bench.last()) };
    assert_eq!(
        bench.reply(&confirmed.with(2, OTHER_SERVER).with(13, [0, 0])),
        ReceiveOutcome::Taken
    );
    assert_eq!((bench.client.state(), bench.deadline()), (State::Bound, Some(seconds(1800))));
    assert_eq!(bench.lease().server, SERVER);
}

#[test]
fn after_a_restart_without_a_server_the_lease_goes_on() {
    let mut bench = reborn(100);
    bench.run(seconds(109));
    assert_eq!(bench.client.state(), State::Confirming);
    bench.run(seconds(110));
    let took = bench.took();
    assert!((4..=6).contains(&took.len()), "{took:?}");
    assert_eq!((bench.client.state(), bench.deadline()), (State::Bound, Some(seconds(1800))));
}

#[test]
fn after_a_restart_on_another_link_the_lease_is_given_up() {
    let mut bench = reborn(100);
    bench.took();
    let reply = Reply { association: false, ..Reply::new(REPLY, &bench.last()) };
    bench.reply(&reply.with(13, [0, 4]));
    assert_eq!(bench.took(), ["deconfigure 2001:db8::50: refused by the server", "SOLICIT"]);
}

#[test]
fn after_a_late_restart_the_lease_is_renewed_or_over() {
    assert_eq!(reborn(1800).took(), ["RENEW 2001:db8::50 to the server"]);
    assert_eq!(reborn(2880).took(), ["REBIND 2001:db8::50"]);
    assert_eq!(reborn(7200).took(), ["deconfigure 2001:db8::50: expired", "SOLICIT 2001:db8::50"]);
}

#[test]
fn of_an_unknown_age_only_what_lasts_for_ever_holds() {
    let start = |valid: u32| {
        let saved = Bench::bound(|reply| reply.giving(&[("2001:db8::50", valid, valid)])).saved();
        let mut now = after(seconds(100));
        now.wall = netwright_dhcp::UnixTime::from_millis(1);
        let config = Config { boot_id: Some("boot-2".to_owned()), ..plain() };
        Client::new(config, Start::Reboot(saved), now, 1).state()
    };
    assert_eq!((start(7200), start(u32::MAX)), (State::Soliciting, State::Confirming));
}

#[test]
fn renew_asks_now_and_a_carrier_again() {
    let mut bench = Bench::bound(|reply| reply);
    bench.run(seconds(5));
    bench.with(Client::renew);
    bench.run(seconds(6));
    bench.with(Client::on_carrier);
    assert_eq!(bench.took(), ["RENEW 2001:db8::50 to the server"; 2]);
    assert_eq!(ParsedMessage::new(&bench.last()).option(8), Some(&[0, 0][..]));
}

#[test]
fn a_reply_after_the_end_renews_nothing_even_if_the_timer_is_late() {
    let mut bench = Bench::bound(|reply| reply);
    bench.run(seconds(7199));
    let reply = Reply::new(REPLY, &bench.last());
    bench.took();
    bench.since = seconds(7201);
    assert_eq!(bench.reply(&reply), ReceiveOutcome::Ignored(IgnoreReason::NotAwaited));
    assert_eq!(bench.took(), ["deconfigure 2001:db8::50: expired", "SOLICIT 2001:db8::50"]);
}

#[test]
fn everything_typed() {
    let bench = Bench::bound(|reply| {
        let dns =
            [ip("2001:db8::5").octets(), ip("2001:db8::6").octets(), ip("2001:db8::5").octets()];
        reply
            .with(23, dns.concat())
            .with(24, b"\x07example\x03org\0\x03ops\x07example\x03org\0")
            .with(99, [1])
    });
    let lease = bench.lease();
    assert_eq!(lease.dns, [ip("2001:db8::5"), ip("2001:db8::6")]);
    assert_eq!(lease.search, ["example.org", "ops.example.org"]);
    assert_eq!(lease.option(99), Some(&[1][..]));
    // RFC 8415 §10: no compression.
    let bench = Bench::bound(|reply| reply.with(24, b"\x01a\0\x01b\xc0\0"));
    assert_eq!(bench.lease().search, [] as [String; 0]);
}

#[test]
fn identifiers_follow_from_the_key() {
    let duid = Duid::from_key("c1/net/eth0");
    assert_eq!(duid, Duid::from_key("c1/net/eth0"));
    assert_ne!(duid, Duid::from_key("c2/net/eth0"));
    let bytes = duid.as_bytes();
    assert_eq!((bytes.len(), &bytes[..2], bytes[8] >> 4, bytes[10] >> 6), (18, &[0, 4][..], 8, 2));
    assert_eq!(format!("{:?}", Duid::from_mac(MAC)), "00030001020000000001");
    assert_ne!(key_iaid("c1/net/eth0"), key_iaid("c1/net/eth1"));
}
