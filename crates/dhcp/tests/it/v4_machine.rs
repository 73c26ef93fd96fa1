//! Every transition from one state to another (RFC 2131 figure 5).

use std::time::Duration;

use netwright_dhcp::v4::{
    Action, Client, Delivery, IgnoreReason, LostReason, ReceiveOutcome, SavedLease, Start, State,
    Timing, release_message,
};

use crate::support::*;

#[test]
fn a_lease_takes_four_messages() {
    let mut bench = Bench::new(plain(), Start::Fresh);
    assert_eq!(bench.client.state(), State::Selecting);
    assert_eq!(bench.took(), ["DHCPDISCOVER"]);

    assert_eq!(bench.reply(&Reply::new(OFFER, &bench.last())), ReceiveOutcome::Taken);
    assert_eq!(bench.client.state(), State::Requesting);
    assert_eq!(bench.took(), ["DHCPREQUEST requested 192.0.2.50 server 192.0.2.1"]);

    assert_eq!(bench.reply(&Reply::new(ACK, &bench.last())), ReceiveOutcome::Taken);
    assert_eq!(bench.client.state(), State::Bound);
    assert_eq!(bench.took(), ["configure 192.0.2.50/24"]);
    assert_eq!(bench.lease().server_mac, Some(SERVER_MAC));
    assert_eq!(bench.lease().lease_s, Some(7200));
}

#[test]
fn discover_is_sent_again_after_4_8_16_32_and_64_seconds_each_64() {
    let mut bench = Bench::new(plain(), Start::Fresh);
    let xid = ParsedMessage::new(&bench.last()).xid;
    for at in [4, 12, 28, 60, 124, 188, 252] {
        assert_eq!(bench.step(), seconds(at));
        assert_eq!(bench.took().len(), 2 - usize::from(at != 4));
        let read = ParsedMessage::new(&bench.last());
        assert_eq!((read.xid, u64::from(read.secs)), (xid, at));
    }
}

#[test]
fn waits_vary_by_a_second_and_with_the_seed() {
    let mut config = plain();
    config.timing = Timing::default();
    let waits = (0..200).map(|seed| {
        let client = Client::new(config.clone(), Start::Fresh, after(Duration::ZERO), seed);
        client.next_deadline().unwrap().since(after(Duration::ZERO).at)
    });
    let (shortest, longest) =
        waits.fold((Duration::MAX, Duration::ZERO), |(a, b), wait| (a.min(wait), b.max(wait)));
    assert!(seconds(3) <= shortest && shortest < Duration::from_millis(3200), "{shortest:?}");
    assert!(Duration::from_millis(4800) < longest && longest <= seconds(5), "{longest:?}");
}

#[test]
fn request_keeps_xid_and_secs_and_is_given_up_after_four() {
    let mut bench = Bench::new(plain(), Start::Fresh);
    bench.run(seconds(5));
    let discover = ParsedMessage::new(&bench.last());
    assert_eq!(discover.secs, 4);
    bench.reply(&Reply::new(OFFER, &bench.last()));
    bench.actions.clear();
    for at in [9, 17, 33] {
        assert_eq!(bench.step(), seconds(at));
        let request = ParsedMessage::new(&bench.last());
        assert_eq!((request.kind(), request.xid, request.secs), (3, discover.xid, 4));
    }
    bench.actions.clear();
    assert_eq!(bench.step(), seconds(65));
    assert_eq!(bench.took(), ["DHCPDISCOVER"]);
    assert_ne!(ParsedMessage::new(&bench.last()).xid, discover.xid);
}

#[test]
fn a_lease_counts_from_its_first_request() {
    let mut bench = Bench::new(plain(), Start::Fresh);
    bench.run(seconds(1));
    bench.reply(&Reply::new(OFFER, &bench.last()));
    bench.run(seconds(6));
    bench.reply(&Reply::new(ACK, &bench.last()).lasting(100));
    let obtained = &bench.lease().obtained;
    assert_eq!((obtained.at_ms, obtained.wall_ms), (after(seconds(1)).at, after(seconds(1)).wall));
    assert_eq!(bench.lease().expires_at(), Some(after(seconds(101)).at));
}

#[test]
fn renewed_at_t1_by_unicast_with_the_address_in_ciaddr() {
    let mut bench = Bench::bound(plain(), 7200);
    let t1 = bench.step();
    assert!(seconds(3540) <= t1 && t1 <= seconds(3600), "{t1:?}");
    assert_eq!(bench.client.state(), State::Renewing);
    let request = "DHCPREQUEST to 192.0.2.1 from 192.0.2.50 ciaddr 192.0.2.50";
    assert_eq!(bench.took(), [request]);
    let sent = bench.sent.clone().unwrap();
    assert_eq!(sent.how, Delivery::Unicast { hint: Some(SERVER_MAC) });

    bench.reply(&Reply::new(ACK, &bench.last()));
    assert_eq!(bench.client.state(), State::Bound);
    assert_eq!(bench.took(), ["configure 192.0.2.50/24 over 192.0.2.50/24"]);
    assert_eq!(bench.lease().obtained.at_ms, after(t1).at);
    assert!(t1 + seconds(3540) <= bench.deadline().unwrap());
}

#[test]
fn a_renewal_counts_from_the_message_that_was_answered() {
    let mut bench = Bench::bound(plain(), 7200);
    bench.step();
    let first = Reply::new(ACK, &bench.last());
    let again = bench.step();
    // The reply to the first message comes too late: the client cannot know from which message the
    // lease would count.
    assert_eq!(bench.reply(&first), ReceiveOutcome::Ignored(IgnoreReason::NotAwaited));
    bench.run(again + seconds(3));
    bench.reply(&Reply::new(ACK, &bench.last()));
    assert_eq!(bench.lease().obtained.at_ms, after(again).at);
}

#[test]
fn a_renewal_may_change_everything_but_the_address() {
    let mut bench = Bench::bound(plain(), 7200);
    bench.step();
    bench.actions.clear();
    bench.reply(&Reply::new(ACK, &bench.last()).with(6, [192, 0, 2, 9]).with(26, [5, 0]));
    let [Action::Configure { lease, previous: Some(previous) }] = bench.actions.as_slice() else {
        panic!("{:?}", bench.actions)
    };
    assert!(!lease.configures_like(previous));
    assert_eq!((lease.mtu, previous.mtu), (Some(1280), None));
}

#[test]
fn a_renewal_without_mask_keeps_the_one_there_was() {
    let mut bench = Bench::bound(plain(), 7200);
    bench.step();
    assert_eq!(bench.reply(&Reply::new(ACK, &bench.last()).with(1, [])), ReceiveOutcome::Taken);
    assert_eq!(bench.lease().address.to_string(), "192.0.2.50/24");
}

#[test]
fn renewals_come_after_half_the_time_left_and_a_minute_at_least() {
    let mut bench = Bench::bound(plain(), 7200);
    let mut at = bench.step();
    let mut seen = 0;
    while bench.client.state() == State::Renewing {
        let xid = ParsedMessage::new(&bench.last()).xid;
        let next = bench.step();
        assert!(seconds(60) <= next - at || bench.client.state() == State::Rebinding);
        assert_ne!(ParsedMessage::new(&bench.last()).xid, xid);
        at = next;
        seen += 1;
    }
    assert!((4..=8).contains(&seen), "{seen}");
    // T2: seven eighths.
    assert!(seconds(6240) <= at && at <= seconds(6300), "{at:?}");
    bench.took();
    bench.run(seconds(7199));
    let took = bench.took();
    assert!((3..=8).contains(&took.len()), "{took:?}");
    for line in took {
        assert_eq!(line, "DHCPREQUEST from 192.0.2.50 ciaddr 192.0.2.50");
    }
}

#[test]
fn short_leases_get_several_tries_too() {
    let mut bench = Bench::bound(plain(), 120);
    bench.run(seconds(119));
    let took = bench.took();
    let unicast = took.iter().filter(|line| line.contains("to 192.0.2.1")).count();
    assert!(3 <= unicast, "{took:?}");
    assert!(3 <= took.len() - unicast, "{took:?}");
}

#[test]
fn any_server_renews_at_t2() {
    let mut bench = Bench::bound(plain(), 7200);
    bench.run(seconds(6400));
    assert_eq!(bench.client.state(), State::Rebinding);
    bench.actions.clear();
    bench.step();
    bench.took();
    bench.reply(&Reply::new(ACK, &bench.last()).from(OTHER_SERVER));
    assert_eq!(bench.client.state(), State::Bound);
    assert_eq!(bench.lease().server, OTHER_SERVER);
}

#[test]
fn expiry_takes_the_address_away_and_asks_for_it_again() {
    let mut config = plain();
    config.timing.acquire = Some(seconds(30));
    let mut bench = Bench::bound(config, 600);
    bench.run(seconds(599));
    bench.took();
    bench.run(seconds(600));
    let took = bench.took();
    assert_eq!(
        took[took.len() - 2..],
        ["deconfigure 192.0.2.50/24: expired", "DHCPDISCOVER requested 192.0.2.50"]
    );
    assert_eq!(bench.client.lease(), None);
    // The deadline was for the first lease only.
    bench.run(seconds(3600));
    assert_eq!(bench.client.state(), State::Selecting);
}

#[test]
fn an_ack_after_expiry_renews_nothing_even_if_the_timer_is_late() {
    let mut bench = Bench::bound(plain(), 600);
    bench.run(seconds(599));
    let ack = Reply::new(ACK, &bench.last());
    bench.actions.clear();
    bench.since = seconds(601);
    assert_eq!(bench.reply(&ack), ReceiveOutcome::Ignored(IgnoreReason::NotAwaited));
    assert_eq!(
        bench.took(),
        ["deconfigure 192.0.2.50/24: expired", "DHCPDISCOVER requested 192.0.2.50"]
    );
}

#[test]
fn a_timer_that_is_very_late_ends_the_lease_first() {
    let mut bench = Bench::bound(plain(), 600);
    bench.since = seconds(100_000);
    bench.with(Client::on_timer);
    assert_eq!(
        bench.took(),
        ["deconfigure 192.0.2.50/24: expired", "DHCPDISCOVER requested 192.0.2.50"]
    );
}

#[test]
fn infinite_leases_wait_for_nothing() {
    let mut bench = Bench::bound(plain(), u32::MAX);
    assert_eq!(bench.lease().lease_s, None);
    assert_eq!((bench.deadline(), bench.lease().expires_at()), (None, None));
    bench.with(Client::renew);
    bench.reply(&Reply::new(ACK, &bench.last()));
    assert_eq!(bench.client.state(), State::Bound);
    assert_eq!(bench.lease().lease_s, Some(7200));
    // No server answers: the lease stays as it was.
    let mut bench = Bench::bound(plain(), u32::MAX);
    bench.with(Client::renew);
    bench.run(seconds(1000));
    assert_eq!((bench.client.state(), bench.deadline()), (State::Bound, None));
    assert!((2..6).contains(&bench.took().len()));
}

#[test]
fn a_server_that_says_no_lease_time_gives_an_hour() {
    let mut bench = Bench::new(plain(), Start::Fresh);
    bench.reply(&Reply::new(OFFER, &bench.last()));
    bench.reply(&Reply::new(ACK, &bench.last()).with(51, []));
    let lease = bench.lease();
    assert_eq!((lease.lease_s, lease.t1_s, lease.t2_s), (Some(3600), 1800, 3150));
}

#[test]
fn nak_for_an_offer_begins_anew_and_then_more_slowly() {
    let mut bench = Bench::new(plain(), Start::Fresh);
    let mut waits = Vec::new();
    for _ in 0..9 {
        bench.reply(&Reply::new(OFFER, &bench.last()));
        bench.reply(&Reply::new(NAK, &bench.last()));
        let began = bench.since;
        if bench.client.state() == State::Init {
            bench.step();
        }
        waits.push((bench.since - began).as_secs());
        assert_eq!(bench.client.state(), State::Selecting);
    }
    assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 64, 64]);
}

#[test]
fn nak_in_renewal_takes_the_address_away_at_once() {
    for (until, server) in [(3700, SERVER), (6400, OTHER_SERVER)] {
        let mut bench = Bench::bound(plain(), 7200);
        bench.run(seconds(until));
        bench.actions.clear();
        assert_eq!(
            bench.reply(&Reply::new(NAK, &bench.last()).from(server)),
            ReceiveOutcome::Taken
        );
        assert_eq!(
            bench.took(),
            ["deconfigure 192.0.2.50/24: refused by the server", "DHCPDISCOVER"]
        );
    }
}

#[test]
fn nak_of_a_stranger_does_not_end_a_renewal() {
    let mut bench = Bench::bound(plain(), 7200);
    bench.run(seconds(3700));
    bench.actions.clear();
    let nak = Reply::new(NAK, &bench.last()).from(OTHER_SERVER);
    assert_eq!(bench.reply(&nak), ReceiveOutcome::Ignored(IgnoreReason::OtherServer));
    assert_eq!(bench.client.state(), State::Renewing);
    assert_eq!(bench.took(), [""; 0]);
}

#[test]
fn another_address_in_a_renewal_is_examined_first_and_the_old_one_given_up() {
    let mut config = plain();
    config.probe = Some(netwright_dhcp::v4::ProbeTiming::quick());
    let mut bench = Bench::bound(config, 7200);
    bench.run(seconds(3700));
    bench.actions.clear();
    bench.reply(&Reply::new(ACK, &bench.last()).giving(OTHER_ADDRESS));
    assert_eq!(
        bench.took(),
        ["deconfigure 192.0.2.50/24: replaced by the server", "probe 192.0.2.51"]
    );
    bench.run(seconds(3701));
    assert_eq!(bench.took()[2..], ["configure 192.0.2.51/24", "announce 192.0.2.51"]);
}

#[test]
fn a_first_lease_not_had_in_time_is_a_failure() {
    let mut config = plain();
    config.timing = Timing::from_flags(seconds(10), seconds(62), seconds(208));
    config.timing.jitter = Duration::ZERO;
    let mut bench = Bench::new(config, Start::Fresh);
    bench.run(seconds(207));
    assert_eq!(bench.took(), ["DHCPDISCOVER"; 7]);
    bench.run(seconds(208));
    assert_eq!(bench.took(), ["failed: no more tries: no DHCP server offered an address"]);
    assert_eq!((bench.client.state(), bench.deadline()), (State::Ended, None));
}

#[test]
fn the_flags_of_the_reference_are_kept_within_sense() {
    let ms = Duration::from_millis;
    let timing = Timing::from_flags(seconds(2), seconds(10), seconds(20));
    assert_eq!((timing.initial, timing.longest), (seconds(2), seconds(10)));
    assert_eq!(timing.acquire, Some(seconds(20)));
    let timing = Timing::from_flags(Duration::ZERO, Duration::ZERO, Duration::ZERO);
    assert_eq!((timing.initial, timing.longest, timing.jitter), (ms(100), ms(100), ms(50)));
}

#[test]
fn failures_say_how_far_it_came() {
    let mut config = plain();
    config.timing.acquire = Some(seconds(100));
    let mut bench = Bench::new(config.clone(), Start::Fresh);
    bench.reply(&Reply::new(OFFER, &bench.last()));
    bench.run(seconds(101));
    assert_eq!(
        bench.took().last().unwrap(),
        "failed: no more tries: DHCP server 192.0.2.1 offered an address and did not answer the request for it"
    );

    let mut bench = Bench::new(config.clone(), Start::Fresh);
    bench.reply(&Reply::new(OFFER, &bench.last()));
    bench.reply(&Reply::new(NAK, &bench.last()));
    bench.run(seconds(101));
    assert_eq!(
        bench.took().last().unwrap(),
        "failed: no more tries: DHCP server 192.0.2.1 refused the address it had offered"
    );

    let mut bench = Bench::new(config, Start::Fresh);
    bench.reply(&Reply::new(OFFER, &bench.last()).with(1, []));
    bench.reply(&Reply::new(ACK, &bench.last()).with(1, []));
    assert_eq!(
        bench.took()[2..],
        [
            "DHCPRELEASE to 192.0.2.1 from 192.0.2.50 ciaddr 192.0.2.50 server 192.0.2.1",
            "failed: DHCP option Subnet Mask not found in DHCPACK of server 192.0.2.1"
        ]
    );
}

#[test]
fn a_carrier_that_comes_late_costs_no_time() {
    let mut bench = Bench::new(plain(), Start::Fresh);
    bench.run(Duration::from_millis(4100));
    bench.took();
    bench.since = Duration::from_millis(4300);
    bench.with(Client::on_carrier);
    assert_eq!(bench.took(), ["DHCPDISCOVER"]);
    // The waits also start again.
    assert_eq!(bench.deadline(), Some(Duration::from_millis(8300)));
    let mut bench = Bench::bound(plain(), 7200);
    bench.with(Client::on_carrier);
    assert_eq!(bench.took(), [""; 0]);
}

#[test]
fn release_goes_to_the_server_from_the_address() {
    for until in [10, 3700, 6400] {
        let mut bench = Bench::bound(plain(), 7200);
        bench.run(seconds(until));
        bench.actions.clear();
        bench.with(Client::release);
        assert_eq!(
            bench.took(),
            [
                "DHCPRELEASE to 192.0.2.1 from 192.0.2.50 ciaddr 192.0.2.50 server 192.0.2.1",
                "deconfigure 192.0.2.50/24: released"
            ]
        );
        assert_eq!((bench.client.state(), bench.deadline()), (State::Ended, None));
        bench.with(Client::release);
        assert_eq!(bench.took(), [""; 0]);
    }
}

#[test]
fn a_lease_that_is_over_is_not_released() {
    let mut bench = Bench::bound(plain(), 600);
    bench.since = seconds(600);
    bench.with(Client::release);
    assert_eq!(bench.took(), ["deconfigure 192.0.2.50/24: expired"]);
    assert_eq!(bench.client.state(), State::Ended);
}

#[test]
fn release_of_what_is_only_asked_for_frees_it_and_of_nothing_says_nothing() {
    let mut bench = Bench::new(plain(), Start::Fresh);
    bench.took();
    bench.with(Client::release);
    assert_eq!(bench.took(), [""; 0]);

    let mut bench = Bench::new(plain(), Start::Fresh);
    bench.reply(&Reply::new(OFFER, &bench.last()));
    bench.took();
    bench.with(Client::release);
    assert_eq!(
        bench.took(),
        ["DHCPRELEASE to 192.0.2.1 from 192.0.2.50 ciaddr 192.0.2.50 server 192.0.2.1"]
    );
}

#[test]
fn a_saved_lease_can_be_released_without_a_client() {
    let mut config = plain();
    config.client_id = Some(b"\0c1/net/eth0".to_vec());
    let bench = Bench::bound(config, 7200);
    let transmit = release_message(&bench.saved(), 7);
    assert_eq!(transmit.how, Delivery::Unicast { hint: Some(SERVER_MAC) });
    assert_eq!(ParsedMessage::new(&transmit.payload).option(61), Some(&b"\0c1/net/eth0"[..]));
    assert_eq!(
        short(&Action::Send(transmit)),
        "DHCPRELEASE to 192.0.2.1 from 192.0.2.50 ciaddr 192.0.2.50 server 192.0.2.1"
    );
}

#[test]
fn stop_is_silent() {
    let mut bench = Bench::bound(plain(), 7200);
    bench.with(|client, _| client.stop());
    assert_eq!(bench.took(), [""; 0]);
    assert_eq!((bench.client.state(), bench.deadline()), (State::Ended, None));
}

/// A client with the lease that another, which ran before it, obtained at 0.
fn reborn(lease_s: u32, at: Duration) -> Bench {
    let saved = Bench::bound(plain(), lease_s).saved();
    Bench::at(plain(), Start::Reboot(saved), at)
}

#[test]
fn after_a_restart_the_lease_is_asked_for_and_goes_on() {
    let mut bench = reborn(7200, seconds(100));
    assert_eq!(bench.client.state(), State::Rebooting);
    assert_eq!(bench.took(), ["DHCPREQUEST requested 192.0.2.50"]);
    assert_eq!(bench.lease().address.addr(), ADDRESS);
    bench.reply(&Reply::new(ACK, &bench.last()).from(OTHER_SERVER));
    assert_eq!(bench.took(), ["configure 192.0.2.50/24 over 192.0.2.50/24"]);
    assert_eq!(bench.lease().obtained.at_ms, after(seconds(100)).at);
}

#[test]
fn after_a_restart_without_a_server_the_lease_keeps_its_own_times() {
    let mut bench = reborn(7200, seconds(100));
    bench.run(seconds(200));
    assert_eq!(bench.client.state(), State::Bound);
    assert_eq!(bench.took(), ["DHCPREQUEST requested 192.0.2.50"; 4]);
    let t1 = bench.step();
    assert!(seconds(3540) <= t1 && t1 <= seconds(3600), "{t1:?}");
    bench.run(seconds(7200));
    assert_eq!(bench.client.lease(), None);
    for (at, state) in [(4000, State::Renewing), (6400, State::Rebinding)] {
        let mut bench = reborn(7200, seconds(at));
        bench.run(seconds(at + 60));
        assert_eq!(bench.client.state(), state);
    }
}

#[test]
fn after_a_restart_a_server_may_refuse_the_lease() {
    let mut bench = reborn(7200, seconds(100));
    bench.took();
    bench.reply(&Reply::new(NAK, &bench.last()).from(OTHER_SERVER));
    assert_eq!(bench.took(), ["deconfigure 192.0.2.50/24: refused by the server", "DHCPDISCOVER"]);
}

#[test]
fn a_lease_that_ended_meanwhile_is_taken_away_first() {
    let mut bench = reborn(7200, seconds(7200));
    assert_eq!(
        bench.took(),
        ["deconfigure 192.0.2.50/24: expired", "DHCPDISCOVER requested 192.0.2.50"]
    );
}

#[test]
fn the_age_of_a_lease_is_by_the_wall_clock_after_another_boot_only() {
    let saved = Bench::bound(plain(), 7200).saved();
    let start = |boot: &str, at: u64, wall: i64| {
        let mut now = after(seconds(at));
        let wall = now.wall.as_millis().checked_add_signed(wall * 1000).unwrap();
        now.wall = netwright_dhcp::UnixTime::from_millis(wall);
        let mut config = plain();
        config.boot_id = Some(boot.to_owned());
        let start = Start::Reboot(saved.clone());
        Client::new(config, start, now, 1).state()
    };
    // The date was changed by an hour or ten: within the same boot that does not matter.
    assert_eq!(start("boot-1", 100, 36_000), State::Rebooting);
    assert_eq!(start("boot-1", 100, -36_000), State::Rebooting);
    assert_eq!(start("boot-1", 7200, -36_000), State::Selecting);
    // Another boot has only the date. The age of a lease from the future is unknown.
    assert_eq!(start("boot-2", 100, 0), State::Rebooting);
    assert_eq!(start("boot-2", 100, 36_000), State::Selecting);
    assert_eq!(start("boot-2", 100, -36_000), State::Selecting);
}

#[test]
fn renew_asks_now() {
    let mut bench = Bench::bound(plain(), 7200);
    bench.run(seconds(5));
    bench.with(Client::renew);
    assert_eq!(bench.took(), ["DHCPREQUEST to 192.0.2.1 from 192.0.2.50 ciaddr 192.0.2.50"]);
    bench.reply(&Reply::new(ACK, &bench.last()));
    assert_eq!(bench.lease().obtained.at_ms, after(seconds(5)).at);
}

#[test]
fn the_reason_of_a_loss_is_data_too() {
    let mut bench = Bench::bound(plain(), 600);
    bench.run(seconds(600));
    let lost = |action: &Action| match action {
        Action::Deconfigure { reason, .. } => Some(*reason),
        _ => None,
    };
    assert_eq!(bench.actions.iter().find_map(lost), Some(LostReason::Expired));
    let _: Option<SavedLease> = bench.client.saved();
}
