//! Addresses that another host has (RFC 5227).

use std::time::Duration;

use netwright_dhcp::frame::{ArpOperation, ArpPacket};
use netwright_dhcp::v4::{Client, Config, Defence, ProbeTiming, Start, State};

use crate::support::*;

fn probing(timing: ProbeTiming) -> Config {
    Config { probe: Some(timing), ..plain() }
}

/// A client that got an address and probes it.
fn examined(timing: ProbeTiming) -> Bench {
    let mut bench = Bench::new(probing(timing), Start::Fresh);
    bench.reply(&Reply::new(OFFER, &bench.last()));
    bench.took();
    bench.reply(&Reply::new(ACK, &bench.last()));
    assert_eq!(bench.client.state(), State::Probing);
    bench
}

fn from_other(address: std::net::Ipv4Addr) -> ArpPacket {
    ArpPacket::announcement(OTHER_MAC, address)
}

#[test]
fn the_rfcs_times() {
    let mut bench = examined(ProbeTiming::rfc5227());
    let mut times = Vec::new();
    while bench.client.state() == State::Probing {
        times.push(bench.step());
    }
    assert_eq!(
        bench.took(),
        [
            "probe 192.0.2.50",
            "probe 192.0.2.50",
            "probe 192.0.2.50",
            "configure 192.0.2.50/24",
            "announce 192.0.2.50"
        ]
    );
    let waits: Vec<Duration> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(times[0] <= seconds(1));
    for wait in &waits[..2] {
        assert!(seconds(1) <= *wait && *wait <= seconds(2), "{waits:?}");
    }
    assert_eq!(waits[2], seconds(2));
    let bound = bench.since;
    bench.run(bound + seconds(60));
    assert_eq!(bench.took(), ["announce 192.0.2.50"]);
}

#[test]
fn the_quick_probe_takes_less_than_half_a_second() {
    let mut bench = examined(ProbeTiming::quick());
    bench.run(Duration::from_millis(499));
    assert_eq!(bench.client.state(), State::Bound);
    assert_eq!(bench.took().iter().filter(|line| *line == "probe 192.0.2.50").count(), 3);
}

#[test]
fn an_address_in_use_is_declined_and_another_asked_for_after_ten_seconds() {
    let reply = ArpPacket {
        operation: ArpOperation::Reply,
        sender_mac: OTHER_MAC,
        sender: ADDRESS,
        target_mac: MAC,
        target: std::net::Ipv4Addr::UNSPECIFIED,
    };
    let probe = ArpPacket::probe(OTHER_MAC, ADDRESS);
    for packet in [reply, probe, from_other(ADDRESS)] {
        let mut bench = examined(ProbeTiming::quick());
        bench.took();
        bench.with(|client, now| client.on_arp(now, &packet));
        assert_eq!(bench.took(), ["DHCPDECLINE requested 192.0.2.50 server 192.0.2.1"]);
        assert_eq!((bench.client.state(), bench.deadline()), (State::Init, Some(seconds(10))));
        bench.step();
        assert_eq!(bench.took(), ["DHCPDISCOVER"]);
    }
}

#[test]
fn what_is_no_conflict() {
    let mut bench = examined(ProbeTiming::quick());
    let own = ArpPacket::probe(MAC, ADDRESS);
    let about_it = ArpPacket { sender: OTHER_ADDRESS, ..ArpPacket::probe(OTHER_MAC, ADDRESS) };
    for packet in [own, about_it, from_other(OTHER_ADDRESS)] {
        bench.with(|client, now| client.on_arp(now, &packet));
        assert_eq!(bench.client.state(), State::Probing);
    }
}

#[test]
fn after_ten_conflicts_one_address_a_minute() {
    let mut bench = examined(ProbeTiming::quick());
    for conflict in 1..=12 {
        bench.with(|client, now| client.on_conflict(now, OTHER_MAC));
        let wait = bench.deadline().unwrap() - bench.since;
        assert_eq!(wait, seconds(if conflict <= 10 { 10 } else { 60 }), "{conflict}");
        bench.step();
        bench.reply(&Reply::new(OFFER, &bench.last()));
        bench.reply(&Reply::new(ACK, &bench.last()));
    }
}

#[test]
fn an_address_in_use_is_defended_once_and_then_given_up() {
    let mut bench = Bench::bound(plain(), 7200);
    bench.with(|client, now| client.on_arp(now, &from_other(ADDRESS)));
    assert_eq!(bench.took(), ["announce 192.0.2.50"]);
    bench.run(seconds(11));
    bench.with(|client, now| client.on_arp(now, &from_other(ADDRESS)));
    assert_eq!(bench.took(), ["announce 192.0.2.50"]);
    bench.run(seconds(20));
    bench.with(|client, now| client.on_arp(now, &from_other(ADDRESS)));
    assert_eq!(
        bench.took(),
        [
            "DHCPDECLINE requested 192.0.2.50 server 192.0.2.1",
            "deconfigure 192.0.2.50/24: in use by 02:00:00:00:00:66"
        ]
    );
    assert_eq!(bench.client.state(), State::Init);
}

#[test]
fn or_defended_for_ever_but_not_more_often() {
    let config = Config { defence: Defence::Forever, ..plain() };
    let mut bench = Bench::bound(config, 7200);
    for at in 1..100 {
        bench.run(seconds(at));
        bench.with(|client, now| client.on_arp(now, &from_other(ADDRESS)));
    }
    assert_eq!(bench.took(), ["announce 192.0.2.50"; 10]);
    assert_eq!(bench.client.state(), State::Bound);
}

#[test]
fn a_first_search_that_finds_only_addresses_in_use_says_so() {
    let mut config = probing(ProbeTiming::quick());
    config.timing.acquire = Some(seconds(5));
    let mut bench = Bench::new(config, Start::Fresh);
    bench.reply(&Reply::new(OFFER, &bench.last()));
    bench.reply(&Reply::new(ACK, &bench.last()));
    bench.with(|client, now| client.on_conflict(now, OTHER_MAC));
    bench.run(seconds(5));
    assert_eq!(
        bench.took().last().unwrap(),
        "failed: no more tries: 192.0.2.50, which DHCP server 192.0.2.1 gave, is in use by 02:00:00:00:00:66"
    );
}

#[test]
fn an_examination_is_not_cut_short_by_the_deadline() {
    let mut config = probing(ProbeTiming::rfc5227());
    config.timing.acquire = Some(seconds(2));
    let mut bench = Bench::new(config, Start::Fresh);
    bench.reply(&Reply::new(OFFER, &bench.last()));
    bench.reply(&Reply::new(ACK, &bench.last()));
    bench.run(seconds(10));
    assert_eq!(bench.client.state(), State::Bound);
}

#[test]
fn what_is_being_examined_can_be_released() {
    let mut bench = examined(ProbeTiming::quick());
    bench.took();
    bench.with(Client::release);
    assert_eq!(
        bench.took(),
        ["DHCPRELEASE to 192.0.2.1 from 192.0.2.50 ciaddr 192.0.2.50 server 192.0.2.1"]
    );
}

#[test]
fn a_lease_that_ends_under_examination_is_not_used() {
    let mut bench = Bench::new(probing(ProbeTiming::rfc5227()), Start::Fresh);
    bench.reply(&Reply::new(OFFER, &bench.last()));
    bench.reply(&Reply::new(ACK, &bench.last()).lasting(2));
    bench.run(seconds(10));
    assert!(!bench.took().iter().any(|line| line.starts_with("configure")));
    assert_eq!(bench.client.state(), State::Selecting);
}
