use super::super::example::{NEIGHBOUR, NODE, OUT, OWN, node};
use super::*;

const PORT: u16 = 40_000;

fn flow(to: &str) -> Flow {
    Flow {
        protocol: Protocol::Tcp,
        source: OWN.parse().unwrap(),
        source_port: PORT,
        destination: to.parse().unwrap(),
        destination_port: 80,
    }
}

fn octets(address: &str) -> [u8; 4] {
    let address: std::net::Ipv4Addr = address.parse().unwrap();
    address.octets()
}

/// A packet of TCP.
fn headers(from: (&str, u16), to: (&str, u16)) -> Headers {
    let mut header = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
    header.extend(octets(from.0));
    header.extend(octets(to.0));
    header.extend(from.1.to_be_bytes());
    header.extend(to.1.to_be_bytes());
    Headers::read(&header).unwrap()
}

/// Where a packet is seen: `>eth0` is sent and `eth0` is received.
fn frame(scene: &Scene, place: Place<'_>, at: &str, headers: Headers) -> Frame {
    let name = at.trim_start_matches('>');
    let link = chain::namespace(scene, place).unwrap().link(name).unwrap().index;
    let outgoing = at.starts_with('>');
    Frame { link, outgoing, for_another: false, headers, identifier: None }
}

/// What was counted: of each namespace the links at which the packet was seen, and behind `|` those
/// of the answer.
struct Counts<'t> {
    to: &'t str,
    seen: &'t [(Place<'static>, &'t str)],
    connection: Connection,
    silent: &'t [&'t str],
    rule: Option<(u64, u64)>,
}

const NOTHING: Counts<'static> =
    Counts { to: OUT, seen: &[], connection: Connection::None, silent: &[], rule: None };

/// Returns the hops as text: `<` is the way back.
fn told(counts: &Counts<'_>) -> Vec<String> {
    let scene = node();
    let flows = [flow(counts.to), Flow { source: NODE.parse().unwrap(), ..flow(counts.to) }];
    let there = headers((OWN, PORT), (counts.to, 80));
    let back = headers((counts.to, 80), (OWN, PORT));
    let places = [Some("c1"), None, Some("c2")].map(|place| {
        let line = counts.seen.iter().find(|(one, _)| *one == place).map_or("", |(_, line)| *line);
        let (first, second) = line.split_once('|').unwrap_or((line, ""));
        let frames = [(first, there), (second, back)].into_iter().flat_map(|(links, headers)| {
            let scene = &scene;
            links.split_whitespace().map(move |at| frame(scene, place, at, headers))
        });
        let rule = counts.rule.filter(|_| place.is_none()).map(|(handle, packets)| {
            (("inet foreign".to_owned(), "forward".to_owned(), handle), packets)
        });
        PlaceCounts {
            place,
            namespace: chain::namespace(&scene, place).unwrap(),
            frames: frames.collect(),
            reason: None,
            rule,
            silent: counts.silent.iter().map(|one| one.parse().unwrap()).collect(),
        }
    });
    let mut counted = Tally {
        scene: &scene,
        places: places.into_iter().collect(),
        connections: vec![counts.connection],
    };
    let way = Way { from: Some("c1"), flows: &flows, asks_names: false };
    // Another probe ended on the node.
    counted.forget_others(&[None, None]);
    let (mut hops, end) = counted.follow(0, &way);
    if let (Some(place), Some(hop)) = (end, hops.last_mut()) {
        counted.say_why(hop, place, &flows);
    }
    let show = |hop: Hop| {
        let way = if hop.back { "< " } else { "" };
        let place = hop.container.unwrap_or_else(|| "node".to_owned());
        let link = hop.link.unwrap_or_else(|| "-".to_owned());
        let end = hop.dropped.map(|(_, reason)| format!(" {reason}")).unwrap_or_default();
        let rule = hop.rule.map(|(_, _, handle)| format!(" rule {handle}")).unwrap_or_default();
        format!("{way}{place} {link}{end}{rule}")
    };
    hops.into_iter().map(show).collect()
}

#[test]
fn a_packet_ends_where_it_is_seen_last() {
    let forwarded = [(Some("c1"), ">eth0"), (None, "vetha cni0")];
    let hops = told(&Counts { seen: &forwarded, ..NOTHING });
    assert_eq!(hops, ["c1 eth0", "node vetha", "node cni0 NOT_SPECIFIED"]);
    // Translation may have given it another port.
    let passed = Counts { seen: &forwarded, connection: Connection::Passed, ..NOTHING };
    assert_eq!(told(&passed), ["c1 eth0", "node vetha", "node cni0"]);
    let unknown = Counts { seen: &forwarded, connection: Connection::Unknown, ..NOTHING };
    assert_eq!(told(&unknown)[2], "node cni0 NOT_SPECIFIED", "nothing translates here");
    let answered = Counts { seen: &forwarded, connection: Connection::Answered, ..NOTHING };
    assert_eq!(told(&answered)[3], "< node - NOT_SPECIFIED");
    // It has left the node.
    let left = [(Some("c1"), ">eth0"), (None, "vetha cni0 >up0")];
    let hops = told(&Counts { seen: &left, connection: Connection::Passed, ..NOTHING });
    assert_eq!(hops[3..], ["node up0"]);
    // A port of the bridge is down, or its other end.
    let lost = [(Some("c1"), ">eth0"), (None, "vetha >vethb")];
    let hops = told(&Counts { to: NEIGHBOUR, seen: &lost, ..NOTHING });
    assert_eq!(hops[2..], ["node vethb NOT_SPECIFIED"]);
}

#[test]
fn an_answer_ends_where_it_is_seen_last() {
    let connection = Connection::Answered;
    let dropped = [(Some("c1"), ">eth0"), (None, "vetha cni0 >up0|up0")];
    let hops = told(&Counts { seen: &dropped, connection, ..NOTHING });
    assert_eq!(hops[3..], ["node up0", "< node up0 NOT_SPECIFIED"]);
    let inside = [(Some("c1"), ">eth0|eth0"), (None, "vetha cni0 >up0|up0 >cni0 >vetha")];
    let hops = told(&Counts { seen: &inside, connection, ..NOTHING });
    assert_eq!(hops[4..], ["< node up0", "< node cni0", "< node vetha", "< c1 eth0 NOT_SPECIFIED"]);
    let between = [(Some("c1"), ">eth0"), (None, "vetha >vethb|vethb"), (Some("c2"), "eth0|>eth0")];
    let hops = told(&Counts { to: NEIGHBOUR, seen: &between, ..NOTHING });
    let expected = ["node vethb", "c2 eth0", "< c2 eth0", "< node vethb NOT_SPECIFIED"];
    assert_eq!(hops[2..], expected);
    let kept = [(Some("c1"), ">eth0"), (None, "vetha >vethb"), (Some("c2"), "eth0")];
    let hops = told(&Counts { to: NEIGHBOUR, seen: &kept, ..NOTHING });
    assert_eq!(hops[3..], ["c2 eth0 NOT_SPECIFIED"]);
}

#[test]
fn what_is_not_even_sent_ends_at_the_sender() {
    assert_eq!(told(&NOTHING), ["c1 - NOT_SPECIFIED"]);
    let waits = Counts { silent: &[OUT], ..NOTHING };
    assert_eq!(told(&waits), ["c1 - NEIGH_FAILED"]);
}

#[test]
fn a_rule_is_told_if_it_counted_all_that_ended() {
    let seen = [(Some("c1"), ">eth0"), (None, "vetha cni0")];
    let both = Counts { seen: &seen, rule: Some((7, 2)), ..NOTHING };
    assert_eq!(told(&both)[2], "node cni0 NETFILTER_DROP rule 7");
    let one = Counts { seen: &seen, rule: Some((7, 1)), ..NOTHING };
    assert_eq!(told(&one)[2], "node cni0 NOT_SPECIFIED");
}

/// Returns the links at which a packet of c1 was seen, with the reason of its end, and whether it
/// surely ended. Each link that received it did so for another hardware address, except those with
/// `!`.
fn misaddressed(scene: &Scene, to: &str, seen: &[(Place<'static>, &[&str])]) -> (String, bool) {
    let there = headers((OWN, PORT), (to, 80));
    let at = |(place, links): &(Place<'static>, &[&str])| PlaceCounts {
        place: *place,
        namespace: chain::namespace(scene, *place).unwrap(),
        frames: links
            .iter()
            .map(|link| {
                let frame = frame(scene, *place, link.trim_end_matches('!'), there);
                Frame { for_another: !frame.outgoing && !link.ends_with('!'), ..frame }
            })
            .collect(),
        reason: None,
        rule: None,
        silent: Vec::new(),
    };
    let places = seen.iter().map(at).collect();
    let counted = Tally { scene, places, connections: vec![Connection::None] };
    let flows = [flow(to)];
    let way = Way { from: Some("c1"), flows: &flows, asks_names: false };
    let (hops, end) = counted.follow(0, &way);
    let show = |hop: &Hop| {
        let reason = hop.dropped.as_ref().map(|(_, reason)| format!(" {reason}"));
        format!("{}{}", hop.link.as_deref().unwrap(), reason.unwrap_or_default())
    };
    let links: Vec<String> = hops.iter().map(show).collect();
    (links.join(", "), end.is_some())
}

#[test]
fn copies_for_others_say_nothing() {
    let flooded: [(Place<'static>, &[&str]); 3] =
        [(Some("c1"), &[">eth0"]), (None, &["vetha", ">vethb"]), (Some("c2"), &["eth0"])];
    let told = misaddressed(&node(), OUT, &flooded);
    assert_eq!(told, ("eth0, vetha, vethb".to_owned(), false));
    // It has the address, and the sender has another hardware address for it.
    let told = misaddressed(&node(), NEIGHBOUR, &flooded);
    assert_eq!(told, ("eth0, vetha, vethb, eth0 OTHERHOST".to_owned(), true));
    // The sender's own port sends it back, after the other port.
    let hairpin: [(Place<'static>, &[&str]); 2] =
        [(Some("c1"), &[">eth0", "eth0"]), (None, &["vetha", ">vethb", ">vetha"])];
    let told = misaddressed(&node(), OUT, &hairpin);
    assert_eq!(told, ("eth0, vetha, vethb, vetha".to_owned(), false));
    // A switch sends a copy to another link of the node, which has the address.
    let switched: [(Place<'static>, &[&str]); 2] =
        [(Some("c1"), &[">eth0"]), (None, &["vetha", "cni0!", "up1"])];
    let told = misaddressed(&node(), NODE, &switched);
    assert_eq!(told, ("eth0, vetha, cni0".to_owned(), true));
}

/// What comes from the other end of a pair, and by no bridge, is no copy.
#[test]
fn a_packet_for_another_hardware_address_ends_at_the_other_end() {
    let mut scene = node();
    let mut links = scene.host.links.iter_mut();
    links.find(|link| link.name == "vetha").unwrap().master = None;
    let seen: [(Place<'static>, &[&str]); 2] = [(Some("c1"), &[">eth0"]), (None, &["vetha"])];
    assert_eq!(misaddressed(&scene, OUT, &seen), ("eth0, vetha OTHERHOST".to_owned(), true));
}
