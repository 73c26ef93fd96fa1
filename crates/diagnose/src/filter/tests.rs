use std::net::IpAddr;

use super::samples::*;
use super::*;
use crate::model::filter::{Family, Hook, LegacyTable, Ruleset, Step, Verdict};
use crate::model::{Address, Link, Namespace};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A packet of a container to the outside.
fn outbound() -> Packet {
    let carries = Payload::Tcp { source: Port::High, destination: Port::Is(443) };
    Packet::first(ip("10.88.0.2"), ip("198.51.100.1"), carries).between(Some("cni0"), Some("up0"))
}

fn forward(namespace: &Namespace, packet: &Packet) -> String {
    let walked = walk(namespace, Layer::Ip, Hook::Forward, packet);
    match walked.end {
        End::Passes => "passes".to_owned(),
        End::Stopped(place, None) => format!("dropped: {place}"),
        End::Stopped(place, Some(_)) => format!("rejected: {place}"),
        End::Unknown(place) => format!("unknown: {}", place.name()),
        End::Lost(place) => format!("lost: {}", place.name()),
    }
}

fn in_forward(rules: Vec<crate::model::filter::Rule>) -> Namespace {
    namespace(vec![table(Family::Inet, "t", vec![base("f", Hook::Forward, 0, rules)])])
}

#[test]
fn a_rule_stops_what_it_surely_matches() {
    let packet = outbound();
    let cases = [
        (drop(), "dropped: table inet t, chain f, rule 1: drop"),
        (reject(), "rejected: table inet t, chain f, rule 1: reject with icmpx admin-prohibited"),
        ([iifname("cni0"), drop()].concat(), "dropped: table inet t, chain f, rule 1: drop"),
        ([iifname("cni1"), drop()].concat(), "passes"),
        ([oifname("up0"), drop()].concat(), "dropped: table inet t, chain f, rule 1: drop"),
        ([source("10.88.0.2"), drop()].concat(), "dropped: table inet t, chain f, rule 1: drop"),
        ([source("10.88.0.3"), drop()].concat(), "passes"),
        ([tcp_port(443), drop()].concat(), "dropped: table inet t, chain f, rule 1: drop"),
        ([tcp_port(80), drop()].concat(), "passes"),
        ([established(), drop()].concat(), "passes"),
        ([unknown("match geoip"), drop()].concat(), "unknown: inet t/f rule 1"),
        (
            vec![Step::Limit { over: true, says: None }, Step::Verdict(Verdict::Drop)],
            "unknown: inet t/f rule 1",
        ),
        (vec![Step::Verdict(Verdict::Queue)], "unknown: inet t/f rule 1"),
    ];
    for (steps, expected) in cases {
        assert_eq!(
            forward(&in_forward(vec![rule(std::slice::from_ref(&steps))]), &packet),
            expected,
            "{steps:?}"
        );
    }
}

/// Whether the first rule matches or not, the second drops.
#[test]
fn what_all_ways_have_in_common_is_certain() {
    let maybe_drop = rule(&[unknown("match geoip"), drop()]);
    let packet = outbound();
    let both = in_forward(vec![maybe_drop.clone(), rule(&[drop()])]);
    assert_eq!(forward(&both, &packet), "dropped: table inet t, chain f, rule 2: drop");
    let other = in_forward(vec![rule(&[unknown("match geoip"), accept()]), rule(&[drop()])]);
    assert_eq!(forward(&other, &packet), "unknown: inet t/f rule 2");
    let before = in_forward(vec![rule(&[accept()]), maybe_drop]);
    assert_eq!(forward(&before, &packet), "passes");
}

/// An accept ends its base chain, not the hook; a packet must pass all of them.
#[test]
fn base_chains_are_asked_by_priority() {
    let mut host = in_forward(vec![rule(&[accept()])]);
    host.filter.tables.push(table(
        Family::Ip,
        "later",
        vec![dropping(base("FORWARD", Hook::Forward, 10, Vec::new()))],
    ));
    host.filter.tables.push(table(
        Family::Ip6,
        "other",
        vec![base("FORWARD", Hook::Forward, -10, vec![rule(&[drop()])])],
    ));
    assert_eq!(forward(&host, &outbound()), "dropped: table ip later, chain FORWARD, policy drop");
    host.filter.tables[1].dormant = true;
    assert_eq!(forward(&host, &outbound()), "passes");
}

/// As firewalld has it: zones by verdict maps, `goto`, a reject at the end.
#[test]
fn chains_that_are_jumped_to_come_back_or_do_not() {
    let zone = chain("zone", vec![rule(&[unknown("match x"), accept()])]);
    let filter = base(
        "filter_FORWARD",
        Hook::Forward,
        10,
        vec![rule(&[established(), accept()]), rule(&[iif_vmap("zones")]), rule(&[reject()])],
    );
    let with = |verdict: Verdict| {
        let mut table = table(Family::Inet, "firewalld", vec![filter.clone(), zone.clone()]);
        table.sets = vec![verdicts("zones", &[("cni0", verdict), ("up0", Verdict::Accept)])];
        namespace(vec![table])
    };
    let rejected = "rejected: table inet firewalld, chain filter_FORWARD, rule 3: reject with icmpx admin-prohibited";
    for (verdict, expected) in [
        (Verdict::Accept, "passes"),
        (Verdict::Drop, "dropped: table inet firewalld, chain filter_FORWARD, rule 2: drop"),
        (Verdict::Continue, rejected),
        (Verdict::Jump("zone".to_owned()), "unknown: inet firewalld/filter_FORWARD rule 3"),
        (Verdict::Goto("zone".to_owned()), "passes"),
        (Verdict::Return, "passes"),
        (Verdict::Jump("gone".to_owned()), "unknown: inet firewalld/filter_FORWARD rule 2"),
    ] {
        assert_eq!(forward(&with(verdict.clone()), &outbound()), expected, "{verdict:?}");
    }
    let answer = outbound().answer().between(Some("up0"), Some("cni0"));
    assert_eq!(forward(&with(Verdict::Drop), &answer), "passes");
    let mut cut = with(Verdict::Continue);
    cut.filter.tables[0].sets[0].elements.remove(0);
    assert_eq!(forward(&cut, &outbound()), rejected);
    cut.filter.tables[0].sets[0].truncated = true;
    assert_eq!(forward(&cut, &outbound()), "unknown: inet firewalld/filter_FORWARD rule 2");
}

#[test]
fn rules_that_jump_in_a_circle_are_given_up() {
    let round = |name: &str, to: &str| chain(name, vec![rule(&[jump(to)]), rule(&[jump(to)])]);
    let first = base("f", Hook::Forward, 0, vec![rule(&[jump("a")]), rule(&[drop()])]);
    let host =
        namespace(vec![table(Family::Inet, "t", vec![first, round("a", "b"), round("b", "a")])]);
    assert_eq!(forward(&host, &outbound()), "unknown: inet t/b rule 1");
}

#[test]
fn translations_decide_where_a_packet_goes() {
    let prerouting = |rules| nat("p", Hook::Prerouting, -100, rules);
    let host = namespace(vec![
        table(
            Family::Inet,
            "late",
            vec![nat(
                "p",
                Hook::Prerouting,
                -90,
                vec![rule(&[tcp_port(8080), dnat("10.88.0.2", 80)])],
            )],
        ),
        table(
            Family::Ip,
            "early",
            vec![prerouting(vec![rule(&[tcp_port(8080), dnat("10.99.0.9", 81)])])],
        ),
    ]);
    let carries = Payload::Tcp { source: Port::High, destination: Port::Is(8080) };
    let packet =
        Packet::first(ip("198.51.100.1"), ip("192.0.2.2"), carries).between(Some("up0"), None);
    let walked = walk(&host, Layer::Ip, Hook::Prerouting, &packet);
    assert_eq!(walked.end, End::Passes);
    let (place, new) = walked.destination.unwrap();
    assert_eq!(place.name(), "ip early/p rule 1");
    assert_eq!(new, NewDestination::To(Some(ip("10.99.0.9")), Some(81)));
    assert_eq!(walked.packet.destination, ip("10.99.0.9"));
    assert_eq!(walked.packet.destination_translated, Some(true));

    // Answers are translated back, and chains of type nat do not see them.
    let mut answer = packet.answer().between(Some("cni0"), None);
    answer.answers_to = Some(ip("203.0.113.7"));
    let walked = walk(&host, Layer::Ip, Hook::Prerouting, &answer);
    assert_eq!(walked.packet.destination, ip("203.0.113.7"));

    // It is not known whether the rule matches, so it is not known where the packet goes.
    let maybe = namespace(vec![table(
        Family::Ip,
        "early",
        vec![prerouting(vec![rule(&[unknown("match statistic"), dnat("10.99.0.9", 81)])])],
    )]);
    let walked = walk(&maybe, Layer::Ip, Hook::Prerouting, &packet);
    assert!(matches!(walked.end, End::Lost(_)));
}

#[test]
fn what_is_not_tracked_is_not_translated() {
    let notrack = base(
        "raw",
        Hook::Prerouting,
        -300,
        vec![rule(&[iifname("cni0"), vec![Step::Effect { name: "notrack".to_owned() }]])],
    );
    let host = namespace(vec![
        table(Family::Inet, "t", vec![notrack]),
        table(
            Family::Ip,
            "n",
            vec![nat("p", Hook::Prerouting, -100, vec![rule(&[dnat("10.99.0.9", 81)])])],
        ),
    ]);
    let walked = walk(&host, Layer::Ip, Hook::Prerouting, &outbound().between(Some("cni0"), None));
    let place = walked.untracked.unwrap();
    assert_eq!(place.name(), "inet t/raw rule 1");
    assert_eq!(walked.packet.state, State::Untracked);
    assert_eq!(walked.destination, None);
    // A rule of the node is left out, and none of a container whose tables have the same names.
    let ignored = [place];
    let change = Change { ignored: &ignored, ..Change::default() };
    let packet = outbound().between(Some("cni0"), None);
    let untracked = |inside: Option<&str>| {
        walk_changed(&host, inside, Layer::Ip, Hook::Prerouting, &packet, change).untracked
    };
    assert_eq!(untracked(None), None);
    assert!(untracked(Some("c2")).is_some());
}

#[test]
fn the_host_knows_its_own_addresses() {
    let local = |destination: &str| {
        let steps = vec![
            Step::Fib { source: false, kind: true, to: 0 },
            Step::Compare {
                op: crate::model::filter::Comparison::Equal,
                from: 0,
                with: 2_u32.to_ne_bytes().to_vec(),
            },
            Step::Verdict(Verdict::Drop),
        ];
        let mut host = in_forward(vec![rule(&[steps])]);
        host.links.push(Link {
            index: 2,
            name: "up0".to_owned(),
            addresses: vec![Address {
                address: "192.0.2.2/24".parse().unwrap(),
                duplicate: false,
                tentative: false,
            }],
            ..Link::default()
        });
        forward(&host, &Packet { destination: ip(destination), ..outbound() })
    };
    assert_eq!(local("192.0.2.2"), "dropped: table inet t, chain f, rule 1: drop");
    // There is no route to it, so nothing is known of it.
    assert_eq!(local("198.51.100.1"), "unknown: inet t/f rule 1");
}

#[test]
fn legacy_tables_are_read_as_text() {
    let with = |policy: &str, rules: &[&str]| Namespace {
        filter: Ruleset {
            legacy: vec![LegacyTable {
                ipv4: true,
                name: "filter".to_owned(),
                policies: vec![("FORWARD".to_owned(), policy.to_owned())],
                chains: vec!["EMPTY".to_owned(), "ufw-track-forward".to_owned()],
                rules: rules.iter().map(|rule| (*rule).to_owned()).collect(),
            }],
            ..Ruleset::default()
        },
        ..Namespace::default()
    };
    let dropped = "dropped: iptables (legacy), table filter, chain FORWARD, ";
    for (policy, rules, expected) in [
        ("ACCEPT", &[][..], "passes".to_owned()),
        ("DROP", &[][..], format!("{dropped}policy DROP")),
        ("DROP", &["-A FORWARD -s 10.88.0.0/24 -j ACCEPT"][..], "passes".to_owned()),
        (
            "ACCEPT",
            &["-A FORWARD ! -s 10.88.0.0/24 -j DROP", "-A FORWARD -i cni+ -p tcp -m tcp --dport 443 -j DROP"][..],
            format!("{dropped}rule 2: -A FORWARD -i cni+ -p tcp -m tcp --dport 443 -j DROP"),
        ),
        (
            "ACCEPT",
            &["-N OWN", "-A FORWARD -j OWN", "-A FORWARD -j DROP", "-A OWN -o up0 -j RETURN"][..],
            format!("{dropped}rule 2: -A FORWARD -j DROP"),
        ),
        (
            "DROP",
            &["-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"][..],
            format!("{dropped}policy DROP"),
        ),
        (
            "DROP",
            &["-A FORWARD -j EMPTY", "-A FORWARD -g ufw-track-forward"][..],
            format!("{dropped}policy DROP"),
        ),
        // It is a chain that was not read, or a target that is not known.
        (
            "DROP",
            &["-A FORWARD -j OTHER"][..],
            "unknown: iptables filter/FORWARD rule 1".to_owned(),
        ),
        (
            "DROP",
            &["-A FORWARD -p icmp -m icmp --icmp-type 8 -j ACCEPT"][..],
            format!("{dropped}policy DROP"),
        ),
        (
            "DROP",
            &["-A FORWARD -m set --match-set good src -j ACCEPT"][..],
            "unknown: iptables filter/FORWARD policy".to_owned(),
        ),
        (
            "ACCEPT",
            &["-A FORWARD -m comment --comment \"no more\" -j REJECT --reject-with icmp-host-prohibited"][..],
            "rejected: iptables (legacy), table filter, chain FORWARD, rule 1: -A FORWARD -m comment --comment \"no more\" -j REJECT --reject-with icmp-host-prohibited".to_owned(),
        ),
    ] {
        assert_eq!(forward(&with(policy, rules), &outbound()), expected, "{policy} {rules:?}");
    }
}

#[test]
fn a_queue_needs_a_program() {
    let with = |bypass: bool, read: Option<&[u16]>| {
        let queue = vec![Step::Queue { first: 7, last: 8, bypass }];
        let mut host = in_forward(vec![rule(&[queue]), rule(&[drop()])]);
        host.queues = read.map(<[u16]>::to_vec);
        forward(&host, &outbound())
    };
    let judged = "unknown: inet t/f rule 1";
    assert_eq!(with(false, None), judged);
    assert_eq!(with(false, Some(&[3, 8][..])), judged);
    let dropped = "dropped: table inet t, chain f, rule 1: queue to 7-8";
    assert_eq!(with(false, Some(&[9][..])), dropped);
    // It ends the base chain.
    assert_eq!(with(true, Some(&[9][..])), "passes");
    assert_eq!(with(true, Some(&[7][..])), judged);
    // Its program judges nothing.
    let stuck = |bypass: bool, read: &[u16], stuck: &[u16]| {
        let queue = vec![Step::Queue { first: 7, last: 8, bypass }];
        let mut host = in_forward(vec![rule(&[queue])]);
        (host.queues, host.stuck_queues) = (Some(read.to_vec()), stuck.to_vec());
        forward(&host, &outbound())
    };
    assert_eq!(stuck(false, &[7], &[7]), dropped);
    assert_eq!(stuck(true, &[7, 8], &[7, 8]), dropped);
    // Some packets pass.
    assert_eq!(stuck(true, &[7], &[7]), judged);
    assert_eq!(stuck(false, &[7, 8], &[7]), judged);
    assert_eq!(stuck(false, &[7, 9], &[9]), judged);

    let legacy = |settings: &str| {
        let table = LegacyTable {
            ipv4: true,
            name: "filter".to_owned(),
            policies: vec![("FORWARD".to_owned(), "ACCEPT".to_owned())],
            chains: Vec::new(),
            rules: vec![format!("-A FORWARD -j NFQUEUE {settings}")],
        };
        let filter = Ruleset { legacy: vec![table], ..Ruleset::default() };
        let host = Namespace { filter, queues: Some(vec![8]), ..Namespace::default() };
        forward(&host, &outbound())
    };
    let dropped = "dropped: iptables (legacy), table filter, chain FORWARD, rule 1: -A FORWARD -j NFQUEUE --queue-num 7";
    assert_eq!(legacy("--queue-num 7"), dropped);
    assert_eq!(legacy("--queue-num 7 --queue-bypass"), "passes");
    assert_eq!(legacy("--queue-balance 7:9"), "unknown: iptables filter/FORWARD rule 1");
}

#[test]
fn a_rule_says_how_many_hops_are_left() {
    let hops = |rules: Vec<crate::model::filter::Rule>| {
        walk(&in_forward(rules), Layer::Ip, Hook::Forward, &outbound()).hops
    };
    assert!(matches!(hops(vec![rule(&[tcp_port(443), ttl(1)])]), Hops::Set(1, _)));
    assert_eq!(hops(vec![rule(&[tcp_port(80), ttl(1)])]), Hops::Kept);
    let maybe = || rule(&[unknown("match geoip"), ttl(64)]);
    assert_eq!(hops(vec![rule(&[ttl(1)]), maybe()]), Hops::Unknown);
    let accepts = rule(&[unknown("match geoip"), accept()]);
    assert_eq!(hops(vec![accepts, rule(&[ttl(1)])]), Hops::Unknown);
    let counts = vec![Step::Effect { name: "TTL".to_owned() }];
    assert_eq!(hops(vec![rule(&[ttl(9)]), rule(&[counts])]), Hops::Unknown);
    let less = || rule(&[vec![Step::Effect { name: "TTL -3".to_owned() }]]);
    assert!(matches!(hops(vec![less(), less()]), Hops::Fewer(6, _)));
    assert!(matches!(hops(vec![rule(&[ttl(9)]), less()]), Hops::Set(6, _)));
    assert_eq!(hops(vec![maybe(), less()]), Hops::Unknown);
    // Later rules see the rest of the header as it was.
    let both = in_forward(vec![rule(&[ttl(1)]), rule(&[tcp_port(443), drop()])]);
    assert_eq!(forward(&both, &outbound()), "dropped: table inet t, chain f, rule 2: drop");
}

/// The mark that a packet has after the hook `forward`, and the rule that gave it.
fn marked(namespace: &Namespace) -> (Option<u32>, Option<String>) {
    let walked = walk(namespace, Layer::Ip, Hook::Forward, &outbound());
    (walked.packet.mark, walked.marked.map(|place| place.to_string()))
}

#[test]
fn a_rule_that_marks_is_computed() {
    let bytes = |number: u32| number.to_ne_bytes().to_vec();
    let immediate =
        |to: u32| vec![Step::Immediate { to: 0, data: bytes(to) }, Step::Mark { from: 0 }];
    // meta mark set meta mark or 0x4000
    let or = vec![
        Step::Meta { key: crate::model::filter::Meta::Mark, to: 0 },
        Step::Bitwise { from: 0, to: 0, mask: bytes(!0x4000), xor: bytes(0x4000) },
        Step::Mark { from: 0 },
    ];
    let one = rule(&[iifname("cni0"), immediate(0x80000)]);
    let place = "table inet t, chain f, rule 1: meta mark set 0x80000".to_owned();
    assert_eq!(marked(&in_forward(vec![one.clone()])), (Some(0x80000), Some(place)));
    let both = in_forward(vec![one, rule(std::slice::from_ref(&or))]);
    assert_eq!(marked(&both).0, Some(0x84000));
    let other = in_forward(vec![rule(&[iifname("cni1"), immediate(7)])]);
    assert_eq!(marked(&other), (Some(0), None));
    // It may be marked, or not, or with what a connection has.
    let maybe = in_forward(vec![rule(&[unknown("match geoip"), immediate(7)])]);
    assert_eq!(marked(&maybe), (None, None));
    let unclear = in_forward(vec![rule(&[vec![Step::Effect { name: "meta mark".to_owned() }]])]);
    assert_eq!(marked(&unclear), (None, None));
    let legacy = |settings: &str| {
        let table = LegacyTable {
            ipv4: true,
            name: "mangle".to_owned(),
            policies: vec![("FORWARD".to_owned(), "ACCEPT".to_owned())],
            chains: Vec::new(),
            rules: vec![format!("-A FORWARD -i cni0 -j MARK {settings}")],
        };
        let filter = Ruleset { legacy: vec![table], ..Ruleset::default() };
        marked(&Namespace { filter, ..Namespace::default() }).0
    };
    assert_eq!(legacy("--set-xmark 0x80000/0xff0000"), Some(0x80000));
    assert_eq!(legacy("--set-xmark 0x80000/0xff0000 -m geoip"), Some(0x80000));
    assert_eq!(legacy("--or-mark 0x1"), None);
}
