use super::super::example::{NEIGHBOUR, OUT, link, node};
use super::*;

/// The thread that sends.
const US: u32 = 1930;
const IDLE: u32 = 0;
const LENGTH: u32 = 201;
const MARK: &str = "netwright probe 0";

fn marked() -> Event {
    event(100, US, false, PacketEvent::Marked(MARK.to_owned()))
}

fn event(at_us: u64, thread: u32, interrupted: bool, what: PacketEvent) -> Event {
    Event { at_us, thread, interrupted, what }
}

/// Our thread sends at a device.
fn sent(packet: u64) -> Event {
    let what = PacketEvent::Queued { packet, link: "eth0".to_owned(), length: LENGTH + 14 };
    event(110, US, false, what)
}

fn queued(packet: u64, link: &str) -> Event {
    let what = PacketEvent::Queued { packet, link: link.to_owned(), length: LENGTH + 14 };
    event(120, IDLE, true, what)
}

fn received(packet: u64, link: &str) -> Event {
    let what = PacketEvent::Received { packet, link: link.to_owned(), length: LENGTH };
    event(120, IDLE, true, what)
}

fn dropped(packet: u64, function: &str, reason: &str) -> Event {
    let (function, reason) = (function.to_owned(), reason.to_owned());
    event(130, IDLE, true, PacketEvent::Dropped { packet, protocol: IPV4, function, reason })
}

/// Returns the hops as text: `<` is the way back.
fn told(to: &str, events: &[Event]) -> Vec<String> {
    let sent = SentPacket {
        from: Some("c1"),
        mark: MARK,
        to: to.parse().unwrap(),
        length: LENGTH,
        answer: Some(LENGTH),
    };
    let show = |hop: Hop| {
        let way = if hop.back { "< " } else { "" };
        let place = hop.container.unwrap_or_else(|| "node".to_owned());
        let link = hop.link.unwrap_or_else(|| "-".to_owned());
        let end = hop.dropped.map(|(function, reason)| format!(" {function} {reason}"));
        format!("{way}{place} {link}{}", end.unwrap_or_default())
    };
    hops(&node(), &sent, events).into_iter().map(show).collect()
}

#[test]
fn a_packet_is_followed_to_where_it_is_dropped() {
    let events = [
        marked(),
        sent(7),
        received(7, "vetha"),
        received(7, "cni0"),
        dropped(7, "nft_do_chain", "NETFILTER_DROP"),
        // Later packets have the same address.
        dropped(7, "ip6_mc_input", "NOT_SPECIFIED"),
    ];
    let end = "node cni0 nft_do_chain NETFILTER_DROP";
    assert_eq!(told(OUT, &events), ["c1 eth0", "node vetha", end]);
}

/// What a tunnel has wrapped may be dropped anywhere, also in a namespace that is not known.
#[test]
fn what_has_left_by_a_tunnel_is_followed_no_further() {
    let way = [marked(), sent(7), received(7, "vetha"), received(7, "cni0")];
    let lost = dropped(7, "nft_do_chain", "NETFILTER_DROP");
    let events = [&way[..], &[queued(7, "vx0"), lost.clone()]].concat();
    assert_eq!(told(OUT, &events), ["c1 eth0", "node vetha", "node cni0", "node vx0"]);
    // The other end is of another namespace.
    let events = [&way[..], &[queued(7, "vx0"), received(7, "vx0"), lost.clone()]].concat();
    assert_eq!(told(OUT, &events), ["c1 eth0", "node vetha", "node cni0", "node vx0"]);
    let events = [&way[..], &[received(7, "vx0"), lost]].concat();
    let end = "node vx0 nft_do_chain NETFILTER_DROP";
    assert_eq!(told(OUT, &events), ["c1 eth0", "node vetha", "node cni0", end]);
}

#[test]
fn what_others_send_does_not_count() {
    let mut other = sent(8);
    other.thread = 4711;
    let mut late = sent(9);
    // An earlier packet of ours comes out of a neighbour's queue while our thread is interrupted.
    late.interrupted = true;
    let events = [
        sent(6),
        marked(),
        other,
        late,
        received(9, "vetha"),
        sent(7),
        received(8, "vethb"),
        received(7, "vetha"),
        dropped(9, "foreign", "NO_SOCKET"),
        dropped(8, "foreign", "NO_SOCKET"),
    ];
    assert_eq!(told(OUT, &events), ["c1 eth0", "node vetha"]);
    assert_eq!(told(OUT, &[sent(7)]), [""; 0], "nothing said which thread is ours");
}

/// What has left the node is followed no further: its address is another packet's at once.
#[test]
fn an_address_is_given_to_another_packet() {
    let way = [marked(), sent(7), received(7, "vetha"), received(7, "cni0"), queued(7, "up0")];
    let expected = ["c1 eth0", "node vetha", "node cni0", "node up0"];
    for next in [
        // Another container sends.
        queued(7, "eth0"),
        received(7, "cni0"),
        // The driver frees what it has sent.
        dropped(7, "dev_kfree_skb_any_reason", "NOT_SPECIFIED"),
        dropped(7, "kfree_skb_partial", ""),
    ] {
        let events = [&way[..], &[next, dropped(7, "foreign", "NO_SOCKET")]].concat();
        assert_eq!(told(OUT, &events), expected);
    }
    let mut long_after = dropped(7, "foreign", "NO_SOCKET");
    long_after.at_us = 130_000;
    let events = [&way[..4], &[long_after.clone()]].concat();
    assert_eq!(told(OUT, &events), expected[..3]);
    // But one may wait for a neighbour that does not answer.
    if let PacketEvent::Dropped { reason, .. } = &mut long_after.what {
        "NEIGH_FAILED".clone_into(reason);
    }
    let events = [&way[..4], &[long_after]].concat();
    assert_eq!(told(OUT, &events)[2], "node cni0 foreign NEIGH_FAILED");
    let queue = [&way[..], &[dropped(7, "__dev_queue_xmit", "QDISC_DROP")]].concat();
    assert_eq!(told(OUT, &queue)[3], "node up0 __dev_queue_xmit QDISC_DROP");
}

#[test]
fn an_answer_from_outside_is_followed() {
    let way = [
        marked(),
        sent(7),
        received(7, "vetha"),
        received(7, "cni0"),
        queued(7, "up0"),
        received(8, "up1"),
    ];
    let there = ["c1 eth0", "node vetha", "node cni0", "node up0"];
    let told_with = |more: &[Event]| {
        let told = told(OUT, &[&way[..], more].concat());
        assert_eq!(told[..4], there);
        told[4..].to_vec()
    };
    let end = dropped(8, "ip_rcv_finish_core", "IP_RPFILTER");
    assert_eq!(told_with(&[end]), ["< node up1 ip_rcv_finish_core IP_RPFILTER"]);
    let back = [queued(8, "cni0"), queued(8, "vetha"), received(8, "eth0")];
    let expected = ["< node up1", "< node cni0", "< node vetha", "< c1 eth0"];
    assert_eq!(told_with(&back), expected);
    // Two packets may be the answer.
    assert_eq!(told_with(&[received(9, "up0")]), [""; 0]);
    // But the second comes when another probe was sent.
    let other = event(125, US + 1, false, PacketEvent::Marked("netwright probe 1".to_owned()));
    let mut sent_then = sent(10);
    sent_then.thread = US + 1;
    let both = [other.clone(), sent_then, received(9, "up0")];
    assert_eq!(told_with(&both), ["< node up1"]);
    // More packets have come than probes were sent, with the same address perhaps.
    assert_eq!(told_with(&[other, received(9, "up0")]), [""; 0]);
    assert_eq!(told_with(&[&both[..], &[received(9, "up0")]].concat()), [""; 0]);
    // A VLAN's link receives what the link below it has received.
    assert_eq!(told_with(&[received(8, "up0")]), ["< node up1", "< node up0"]);
}

#[test]
fn an_answer_of_a_container_is_followed() {
    let events = [
        marked(),
        sent(7),
        received(7, "vetha"),
        queued(7, "vethb"),
        received(7, "eth0"),
        queued(8, "eth0"),
        received(8, "vethb"),
        dropped(8, "nft_do_chain", "NETFILTER_DROP"),
    ];
    let there = ["c1 eth0", "node vetha", "node vethb", "c2 eth0"];
    let told = told(NEIGHBOUR, &events);
    assert_eq!(told[..4], there);
    assert_eq!(told[4..], ["< c2 eth0", "< node vethb nft_do_chain NETFILTER_DROP"]);
}

/// A bridge that does not know where a neighbour is sends copies to all of its ports.
#[test]
fn a_copy_says_nothing() {
    let copy = dropped(7, "ip_rcv_core", "OTHERHOST");
    let events = [marked(), sent(7), received(7, "vetha"), queued(7, "vethb"), copy];
    assert_eq!(told(NEIGHBOUR, &events), ["c1 eth0", "node vetha", "node vethb"]);
    let copy = dropped(7, "ip_rcv_core", "OTHERHOST");
    let bridge = [marked(), sent(7), received(7, "vetha"), received(7, "cni0"), copy];
    assert_eq!(told(OUT, &bridge), ["c1 eth0", "node vetha", "node cni0"]);
}

/// What comes from the other end of a pair, and by no bridge, is no copy.
#[test]
fn a_packet_for_another_hardware_address_ends_at_the_other_end() {
    let end = dropped(7, "ip_rcv_core", "OTHERHOST");
    let events = [marked(), sent(7), received(7, "vetha"), end];
    assert_eq!(told(OUT, &events), ["c1 eth0", "node vetha ip_rcv_core OTHERHOST"]);
}

#[test]
fn a_filter_of_the_sender_lets_nothing_out() {
    let mut end = dropped(7, "nft_do_chain", "NETFILTER_DROP");
    (end.thread, end.interrupted) = (US, false);
    let events = [marked(), dropped(6, "foreign", "NO_SOCKET"), end.clone()];
    assert_eq!(told(OUT, &events), ["c1 - nft_do_chain NETFILTER_DROP"]);
    // Closing a socket drops what it has received.
    end.at_us += 700_000;
    assert_eq!(told(OUT, &[marked(), end]), [""; 0]);
}

/// The parent of a container's link is in another namespace.
#[test]
fn links_on_a_parent_are_followed() {
    let mut scene = node();
    let inside = scene.containers[0].inside.as_mut().unwrap();
    inside.links = vec![link(2, "eth0", Some("macvlan"), Some(3))];
    let sent_by = |link: &str, to: &str| {
        let events = [marked(), sent(7), queued(7, link)];
        let sent = SentPacket {
            from: Some("c1"),
            mark: MARK,
            to: to.parse().unwrap(),
            length: LENGTH,
            answer: None,
        };
        let hops = hops(&scene, &sent, &events);
        hops.last().map(|hop| (hop.container.clone(), hop.link.clone().unwrap())).unwrap()
    };
    assert_eq!(sent_by("up1", OUT), (None, "up1".to_owned()));
    // That is not its parent.
    assert_eq!(sent_by("up0", OUT), (Some("c1".to_owned()), "eth0".to_owned()));
}
