//! What loses packets on purpose below the packet filters: queueing disciplines and filters of
//! traffic control (`man 8 tc`).

use net::IpFamily;

use super::{Rule, containers, is_outbound, unanswered};
use crate::Look;
use crate::command::within;
use crate::finding::{Finding, WayKind};
use crate::model::{Container, Link, Loss, Part, Redirect};
use crate::path::{Joint, Site, uplink};
use crate::question::{Answer, Hop};

pub(super) const RULE: Rule = Rule {
    judges: "queues and filters of traffic control",
    ids: &["queue-loses", "queue-delays", "tc-drops"],
    needs: &[Part::Links],
    inside: &[Part::Links],
    judge,
    ..Rule::NONE
};

/// From so many of a thousand packets on, nothing works that takes more than a few of them.
const TOO_MANY: u16 = 50;

/// A program that waits for an answer gives up after some seconds, and each packet of a connection
/// waits.
const LONG_MS: u32 = 1000;

/// EtherTypes (`linux include/uapi/linux/if_ether.h`).
const ETH_P_IP: u16 = 0x0800;
const ETH_P_ARP: u16 = 0x0806;
const ETH_P_IPV6: u16 = 0x86dd;

const OUT: &[WayKind] = &[WayKind::Outside, WayKind::Names, WayKind::Published];
const INSIDE: &[WayKind] = &[WayKind::Inside];
const HERE: &[WayKind] = &[WayKind::PublishedHere];
/// All ways by a container's link.
pub(super) const ALL: &[WayKind] = &[
    WayKind::Gateway,
    WayKind::Outside,
    WayKind::Names,
    WayKind::Between,
    WayKind::FromNode,
    WayKind::Published,
    WayKind::PublishedHere,
];

/// A link by which a container's packets go.
struct PassedLink<'s> {
    link: &'s Link,
    /// The container in whose namespace it is.
    inside: Option<&'s Container>,
    /// What goes by it.
    ways: &'static [WayKind],
}

impl PassedLink<'_> {
    /// Returns what the link is called, and the command that changes its traffic control.
    fn named(&self) -> (String, String) {
        named(self.link, self.inside)
    }

    /// Adds that a finding breaks all that goes by the link.
    fn broken(&self, finding: Finding, family: IpFamily) -> Finding {
        self.ways.iter().fold(finding, |finding, kind| finding.breaks(*kind, Some(family)))
    }
}

fn named(link: &Link, inside: Option<&Container>) -> (String, String) {
    let link = &link.name;
    match inside {
        Some(container) => (
            format!("{link} of {}", container.called()),
            format!("{}tc", within(container.netns.as_str())),
        ),
        None => (link.clone(), "tc".to_owned()),
    }
}

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for family in IpFamily::ALL {
        let out = uplink(look.scene, family == IpFamily::V4);
        for container in containers(look) {
            for site in Site::every(look.scene, container, family) {
                for passed in passed(look, &site, out) {
                    let losses = passed.link.losses.iter();
                    let of_family = losses.filter(|loss| concerns(loss.protocol, family));
                    found.extend(of_family.filter_map(|loss| told(look, &site, &passed, loss)));
                    let redirects = passed.link.redirects.iter();
                    let of_family = redirects.filter(|one| concerns(one.protocol, family));
                    found.extend(of_family.filter_map(|one| taken(look, &site, &passed, one)));
                    found.extend(delayed(&site, &passed));
                    found.extend(counted(look, &site, &passed));
                }
            }
        }
    }
    found.extend(ended(look));
    found
}

/// Disciplines that every link may have, and that drop what is too much for it.
const USUAL: [&str; 5] = ["fq", "fq_codel", "mq", "noqueue", "pfifo_fast"];

/// Says whether it is known why the queues of a link drop packets.
fn is_explained(link: &Link) -> bool {
    !link.losses.is_empty() || super::rates::limits(link)
}

/// A discipline of the node has dropped packets while a container's probes were lost. If some were
/// answered, others may have been lost elsewhere.
fn counted(look: Look<'_>, site: &Site<'_>, passed: &PassedLink<'_>) -> Option<Finding> {
    let link = passed.link;
    let drops = link.dropped.as_ref().filter(|_| passed.inside.is_none())?;
    let family = site.family();
    let own = || {
        let all = look.answers.from(Some(&site.container.id));
        all.filter(|(asked, _)| IpFamily::of(asked.address()) == family)
    };
    let is_lost = |answer: &Answer| answer.is_lost() || answer.has_owner() == Some(false);
    let is_heard = |answer: &Answer| answer.is_of_other_end() || answer.has_owner() == Some(true);
    if is_explained(link) || !own().any(|(_, answer)| is_lost(answer)) {
        return None;
    }
    let hears = own().any(|(_, answer)| is_heard(answer));
    let kind = &drops.kind;
    if hears && USUAL.contains(&kind.as_str()) {
        return None;
    }
    let (name, packets) = (&link.name, drops.packets);
    let what = if packets == 1 { "a packet".to_owned() } else { format!("{packets} packets") };
    let says = format!("traffic control on {name} dropped {what} while the probes were sent");
    let object = format!("{name} qdisc {kind}");
    let finding = match hears {
        true => Finding::warning("queue-loses", object, says)
            .seen("some probes were lost, and others were answered"),
        false => Finding::error("queue-loses", object, says)
            .seen(format!("{} got no answer by {family}", site.container.called())),
    };
    let finding = finding
        .at(format!("qdisc {kind} of {name}"))
        .hits(site.container.id.clone())
        .advise(format!(
            "look at what limits {name}: tc -s qdisc show dev {name}; tc -s filter show dev {name} ingress"
        ));
    Some(passed.broken(finding, family))
}

/// A probe ended at a queue of a link whose disciplines are not known to lose any.
fn ended(look: Look<'_>) -> Vec<Finding> {
    let all = look.answers.all.iter().filter_map(|(question, answer)| {
        let (Answer::Silent { hops } | Answer::Unreachable { hops, .. }) = answer else {
            return None;
        };
        let is_end = |hop: &&Hop| {
            hop.dropped.as_ref().is_some_and(|(_, reason)| reason.contains("QDISC_DROP"))
        };
        let hop = hops.iter().find(is_end)?;
        let inside = hop.container.as_deref().and_then(|id| look.scene.container(id));
        let namespace = match inside {
            Some(container) => container.inside.as_ref()?,
            None => &look.scene.host,
        };
        let link = namespace.link(hop.link.as_deref()?).filter(|link| !is_explained(link))?;
        let (of_whom, tool) = named(link, inside);
        let object = match (inside, &link.dropped) {
            (Some(container), _) => format!("{}: {} qdisc", container.id, link.name),
            (None, Some(drops)) => format!("{} qdisc {}", link.name, drops.kind),
            (None, None) => format!("{} qdisc", link.name),
        };
        let (function, reason) = hop.dropped.as_ref()?;
        let says = format!("the queue of {of_whom} dropped a probe");
        let family = Some(IpFamily::of(question.asked.address()));
        let finding = Finding::error("queue-loses", object, says)
            .seen(format!("a probe ended there: {function}, {reason}"))
            .advise(format!("look at what limits it: {tool} -s qdisc show dev {}", link.name));
        let finding = match &question.from {
            Some(id) => finding.hits(id.clone()),
            None => finding,
        };
        Some(ALL.iter().fold(finding, |finding, way| finding.breaks(*way, family)))
    });
    all.collect()
}

/// The links by which a container's packets go, as far as they are its own or the node's. `out` is
/// the node's link that leads out.
fn passed<'s>(look: Look<'s>, site: &Site<'s>, out: Option<&'s Link>) -> Vec<PassedLink<'s>> {
    let on_node = |link: &'s Link, ways| PassedLink { link, inside: None, ways };
    let inside = Some(site.container);
    let mut all =
        vec![PassedLink { link: site.link, inside, ways: ALL }, on_node(site.host_end, ALL)];
    for link in [site.node_port, site.bridge, Some(site.seen_by)].into_iter().flatten() {
        if all.iter().all(|one| one.inside.is_some() || one.link.index != link.index) {
            all.push(on_node(link, ALL));
        }
    }
    let own_loopback = site.inside.link("lo");
    all.extend(own_loopback.map(|link| PassedLink { link, inside, ways: INSIDE }));
    let node_loopback = look.scene.host.link("lo").filter(|_| !site.attachment.ports.is_empty());
    all.extend(node_loopback.map(|link| on_node(link, HERE)));
    let is_outbound = is_outbound(look.scene, site.container, site.family());
    let is_routed = site.joint == Joint::Pair && is_outbound;
    all.extend(out.filter(|_| is_routed).map(|link| on_node(link, OUT)));
    all
}

/// Says whether packets of a family are concerned: without ARP there are none of IPv4.
fn concerns(protocol: Option<u16>, family: IpFamily) -> bool {
    match protocol {
        None => true,
        Some(ETH_P_IP | ETH_P_ARP) => family == IpFamily::V4,
        Some(ETH_P_IPV6) => family == IpFamily::V6,
        Some(_) => false,
    }
}

fn told(look: Look<'_>, site: &Site<'_>, passed: &PassedLink<'_>, loss: &Loss) -> Option<Finding> {
    let proof = proof(look, passed, loss);
    // What only some packets meet is told if one has met it.
    if loss.per_mille.is_none() && proof.is_none() {
        return None;
    }
    let (link, kind) = (&passed.link.name, &loss.kind);
    let (of_whom, tool) = passed.named();
    let direction = if loss.leaving { "leave" } else { "come in" };
    let hook = if loss.leaving { "egress" } else { "ingress" };
    let (id, what, place, does, fix) = if loss.filter {
        let preference = loss.preference;
        (
            "tc-drops",
            format!("{hook} filter {preference}"),
            format!("filter {kind}, preference {preference}, at {hook} of {of_whom}"),
            match loss.per_mille {
                Some(_) => format!("drops all packets that {direction}"),
                None => format!("drops packets that {direction}"),
            },
            format!("{tool} filter del dev {link} {hook} pref {preference}"),
        )
    } else {
        (
            "queue-loses",
            format!("qdisc {kind}"),
            format!("qdisc {kind} of {of_whom}"),
            match loss.per_mille {
                Some(1000) => "loses all packets that leave".to_owned(),
                Some(1) => "loses packets that leave".to_owned(),
                Some(lost) => format!("loses {lost} of 1000 packets that leave"),
                None => "loses packets that leave".to_owned(),
            },
            format!("{tool} qdisc del dev {link} root"),
        )
    };
    let object = match passed.inside {
        Some(container) => format!("{}: {link} {what}", container.id),
        None => format!("{link} {what}"),
    };
    let says = format!("traffic control on {of_whom} {does} by it");
    let finding = match loss.per_mille {
        Some(lost) if lost < TOO_MANY && proof.is_none() => Finding::warning(id, object, says),
        _ => Finding::error(id, object, says),
    };
    let mut finding = finding.at(place).hits(site.container.id.clone()).fix(fix);
    finding.seen.extend(proof);
    let family = Some(site.family());
    Some(passed.ways.iter().fold(finding, |finding, way| finding.breaks(*way, family)))
}

/// A filter sends all packets of a container to another link, and nothing that it asked was
/// answered. From an `ifb` packets come back, and behind a `tun` may be a virtual machine that has
/// the container's address.
fn taken(
    look: Look<'_>,
    site: &Site<'_>,
    passed: &PassedLink<'_>,
    redirect: &Redirect,
) -> Option<Finding> {
    let namespace =
        passed.inside.map_or(Some(&look.scene.host), |container| container.inside.as_ref())?;
    let to = namespace.link_of(redirect.to)?;
    if matches!(to.kind.as_deref(), Some("ifb" | "tun")) {
        return None;
    }
    unanswered(look, site.container, site.family())?;
    let (link, preference) = (&passed.link.name, redirect.preference);
    let (of_whom, tool) = passed.named();
    let (direction, hook) =
        if redirect.leaving { ("leave", "egress") } else { ("come in", "ingress") };
    let what = format!("{link} {hook} filter {preference}");
    let object = match passed.inside {
        Some(container) => format!("{}: {what}", container.id),
        None => what,
    };
    let says = format!(
        "traffic control on {of_whom} sends all packets that {direction} by it to {}",
        to.name
    );
    let (called, family) = (site.container.called(), site.family());
    let finding = Finding::error("tc-drops", object, says)
        .at(format!("filter {}, preference {preference}, at {hook} of {of_whom}", redirect.kind))
        .seen(format!("nothing that {called} asked by {family} was answered"))
        .hits(site.container.id.clone())
        .fix(format!("{tool} filter del dev {link} {hook} pref {preference}"));
    Some(passed.ways.iter().fold(finding, |finding, way| finding.breaks(*way, Some(family))))
}

/// A discipline holds each packet so long that programs give up.
fn delayed(site: &Site<'_>, passed: &PassedLink<'_>) -> Option<Finding> {
    let (link, delay_ms) = (&passed.link.name, passed.link.delay_ms);
    if delay_ms < LONG_MS {
        return None;
    }
    let (of_whom, tool) = passed.named();
    let object = match passed.inside {
        Some(container) => format!("{}: {link}", container.id),
        None => link.clone(),
    };
    let says = format!("traffic control on {of_whom} holds packets that leave for {delay_ms} ms");
    let finding = Finding::error("queue-delays", object, says)
        .at(format!("qdisc netem of {of_whom}"))
        .hits(site.container.id.clone())
        .fix(format!("{tool} qdisc del dev {link} root"));
    Some(passed.broken(finding, site.family()))
}

/// Returns what shows that a probe ended there.
fn proof(look: Look<'_>, passed: &PassedLink<'_>, loss: &Loss) -> Option<String> {
    let reason = match (loss.filter, loss.leaving) {
        (false, _) => "QDISC_DROP",
        (true, true) => "TC_EGRESS",
        (true, false) => "TC_INGRESS",
    };
    let is_there = |hop: &&Hop| {
        hop.link.as_deref() == Some(passed.link.name.as_str())
            && hop.container.as_deref() == passed.inside.map(|container| container.id.as_str())
            && hop.dropped.as_ref().is_some_and(|(_, why)| why.contains(reason))
    };
    let mut ends = look.answers.all.iter().filter_map(|(_, answer)| match answer {
        Answer::Silent { hops } | Answer::Unreachable { hops, .. } => hops.iter().find(is_there),
        _ => None,
    });
    let (function, why) = ends.next()?.dropped.as_ref()?;
    Some(format!("a probe ended there: {function}, {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Scene;
    use crate::path::samples::node;
    use crate::question::{Answers, Probe, Question};

    fn loss(kind: &str, per_mille: Option<u16>) -> Loss {
        Loss {
            kind: kind.to_owned(),
            filter: kind != "netem",
            leaving: kind == "netem",
            preference: if kind == "netem" { 0 } else { 10 },
            protocol: None,
            per_mille,
        }
    }

    fn with(name: &str, loss: Loss) -> Scene {
        let mut scene = node();
        scene.host.links.iter_mut().find(|link| link.name == name).unwrap().losses = vec![loss];
        scene
    }

    /// Severity, ID, object and whom it hits, of each.
    fn found(scene: &Scene, answers: &Answers) -> Vec<String> {
        let look = Look { scene, answers, only: None, to: None };
        let sorted = crate::causes::sort(judge(look), scene);
        let line = |one: &Finding| {
            format!("{:?} {} {}: {}", one.severity, one.id, one.object, one.hits.join(" "))
        };
        sorted.causes.iter().map(|one| line(&one.finding)).collect()
    }

    fn silently(scene: &Scene) -> Vec<String> {
        found(scene, &Answers::default())
    }

    #[test]
    fn a_queue_that_loses_packets_is_named() {
        assert_eq!(silently(&node()), [""; 0]);
        let ends = with("veth2", loss("netem", Some(300)));
        assert_eq!(silently(&ends), ["Error queue-loses veth2 qdisc netem: c2"]);
        let uplink = with("up0", loss("netem", Some(10)));
        assert_eq!(silently(&uplink), ["Warning queue-loses up0 qdisc netem: c2 c3"]);
        // No container's packets go by it.
        assert_eq!(silently(&with("tun0", loss("netem", Some(1000)))), [""; 0]);
    }

    #[test]
    fn it_is_found_in_the_container_too() {
        let mut scene = node();
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.links[1].losses = vec![loss("netem", Some(1000))];
        assert_eq!(silently(&scene), ["Error queue-loses c2: eth0 qdisc netem: c2"]);
        let answers = Answers::default();
        let look = Look { scene: &scene, answers: &answers, only: None, to: None };
        let fix = &judge(look)[0].fix;
        assert_eq!(fix, &["nsenter --net=/run/netns/c2 tc qdisc del dev eth0 root"]);
    }

    #[test]
    fn a_queue_that_holds_packets_for_seconds() {
        let delays = |name: &str, delay_ms: u32| {
            let mut scene = node();
            scene.host.links.iter_mut().find(|link| link.name == name).unwrap().delay_ms = delay_ms;
            silently(&scene)
        };
        // As a person tries how programs bear a long line.
        assert_eq!(delays("up0", 300), [""; 0]);
        assert_eq!(delays("up0", 3000), ["Error queue-delays up0: c2 c3"]);
        assert_eq!(delays("veth2", 3000), ["Error queue-delays veth2: c2"]);
        assert_eq!(delays("tun0", 3000), [""; 0]);
    }

    #[test]
    fn loopback_has_a_queue_too() {
        let mut scene = with("lo", loss("netem", Some(1000)));
        let answers = Answers::default();
        let kinds_of = |scene: &Scene| -> Vec<WayKind> {
            let look = Look { scene, answers: &answers, only: None, to: None };
            judge(look).iter().flat_map(|one| &one.breaks).map(|way| way.kind).collect()
        };
        // Of each IP version; one container has a port.
        assert_eq!(silently(&scene), ["Error queue-loses lo qdisc netem: c2"]);
        assert_eq!(kinds_of(&scene), [WayKind::PublishedHere; 2]);
        scene.host.links[0].losses.clear();
        let inside = scene.containers[1].inside.as_mut().unwrap();
        inside.links[0].losses = vec![loss("netem", Some(1000))];
        assert_eq!(silently(&scene), ["Error queue-loses c3: lo qdisc netem: c3"]);
        assert_eq!(kinds_of(&scene), [WayKind::Inside; 2]);
    }

    #[test]
    fn a_filter_that_takes_all_is_named_and_another_if_a_probe_met_it() {
        let all = with("veth2", loss("matchall", Some(1000)));
        assert_eq!(silently(&all), ["Error tc-drops veth2 ingress filter 10: c2"]);
        let some = with("veth2", loss("flower", None));
        assert_eq!(silently(&some), [""; 0]);
        let hop = Hop {
            container: None,
            link: Some("veth2".to_owned()),
            dropped: Some(("tcf_classify".to_owned(), "TC_INGRESS".to_owned())),
            rule: None,
            back: false,
        };
        let asked = Probe::Echo { to: "10.88.0.1".parse().unwrap() };
        let question = Question { from: Some("c2".to_owned()), asked };
        let answers = Answers { all: vec![(question, Answer::Silent { hops: vec![hop] })] };
        assert_eq!(found(&some, &answers), ["Error tc-drops veth2 ingress filter 10: c2"]);
    }

    /// On a sound node another filter brings it back.
    #[test]
    fn a_filter_that_sends_all_elsewhere_is_named_if_nothing_is_answered() {
        let mut scene = node();
        let to = |scene: &mut Scene, to: u32, protocol: Option<u16>| {
            let link = scene.host.links.iter_mut().find(|link| link.name == "veth2").unwrap();
            let kind = "matchall".to_owned();
            let leaving = false;
            link.redirects = vec![Redirect { kind, leaving, preference: 10, protocol, to }];
        };
        to(&mut scene, 2, Some(ETH_P_IP));
        let asked = |scene: &Scene, answer: Answer| {
            let asked = Probe::Name { server: "198.51.100.53".parse().unwrap() };
            let question = Question { from: Some("c2".to_owned()), asked };
            found(scene, &Answers { all: vec![(question, answer)] })
        };
        let silent = || Answer::Silent { hops: Vec::new() };
        let is_told = ["Error tc-drops veth2 ingress filter 10: c2"];
        assert_eq!(silently(&scene), [""; 0]);
        assert_eq!(asked(&scene, silent()), is_told);
        assert_eq!(asked(&scene, Answer::Named { after_us: 900, error: None }), [""; 0]);
        to(&mut scene, 2, Some(ETH_P_IPV6));
        assert_eq!(asked(&scene, silent()), [""; 0]);
        to(&mut scene, 9, None);
        assert_eq!(asked(&scene, silent()), is_told);
        // The plugin `bandwidth` does so.
        let tun = scene.host.links.iter_mut().find(|link| link.name == "tun0").unwrap();
        tun.kind = Some("ifb".to_owned());
        assert_eq!(asked(&scene, silent()), [""; 0]);
    }

    /// The gateway is not at fault.
    #[test]
    fn what_was_dropped_while_probes_were_lost_is_a_candidate() {
        let mut scene = node();
        let drops = |name: &str, kind: &str| {
            let mut scene = node();
            let link = scene.host.links.iter_mut().find(|link| link.name == name).unwrap();
            link.dropped = Some(crate::model::QueueDrops { kind: kind.to_owned(), packets: 4 });
            scene
        };
        let question = |to: &str| Question {
            from: Some("c2".to_owned()),
            asked: Probe::Echo { to: to.parse().unwrap() },
        };
        let lost = || (question("10.88.0.1"), Answer::Silent { hops: Vec::new() });
        let heard = || (question("192.0.2.1"), Answer::Reached { after_us: 9 });
        let judged = |scene: &Scene, all: Vec<(Question, Answer)>| found(scene, &Answers { all });
        let bucket = drops("veth2", "tbf");
        assert_eq!(judged(&bucket, Vec::new()), [""; 0]);
        assert_eq!(judged(&bucket, vec![heard()]), [""; 0]);
        assert_eq!(judged(&bucket, vec![lost()]), ["Error queue-loses veth2 qdisc tbf: c2"]);
        let some = judged(&bucket, vec![lost(), heard()]);
        assert_eq!(some, ["Warning queue-loses veth2 qdisc tbf: c2"]);
        // A busy link drops some of what everybody sends.
        let usual = drops("up0", "fq_codel");
        assert_eq!(judged(&usual, vec![lost(), heard()]), [""; 0]);
        assert_eq!(judged(&usual, vec![lost()]), ["Error queue-loses up0 qdisc fq_codel: c2"]);
        // No packet of it goes there.
        assert_eq!(judged(&drops("tun0", "tbf"), vec![lost()]), [""; 0]);
        // Another rule says how slow the bucket is.
        let mut slow = drops("veth2", "tbf");
        let link = slow.host.links.iter_mut().find(|link| link.name == "veth2").unwrap();
        (link.mtu, link.rate) =
            (1500, Some(crate::model::Rate { bytes_per_s: 125, burst: 40, of_some: false }));
        assert_eq!(judged(&slow, vec![lost()]), [""; 0]);
        // The trace shows it.
        let hop = |container: Option<&str>, link: &str| Hop {
            container: container.map(str::to_owned),
            link: Some(link.to_owned()),
            dropped: Some(("tbf_enqueue".to_owned(), "QDISC_DROP".to_owned())),
            rule: None,
            back: false,
        };
        let at = |hop: Hop| vec![(question("10.88.0.1"), Answer::Silent { hops: vec![hop] })];
        let own = at(hop(Some("c2"), "eth0"));
        assert_eq!(judged(&scene, own), ["Error queue-loses c2: eth0 qdisc: c2"]);
        assert_eq!(judged(&scene, at(hop(None, "up0"))), ["Error queue-loses up0 qdisc: c2"]);
        scene = with("up0", loss("netem", Some(300)));
        assert_eq!(
            judged(&scene, at(hop(None, "up0"))),
            ["Error queue-loses up0 qdisc netem: c2 c3"]
        );
    }

    #[test]
    fn a_filter_of_a_protocol_breaks_that_alone() {
        let of = |protocol| Loss { protocol: Some(protocol), ..loss("matchall", Some(1000)) };
        let families = |scene: &Scene| {
            let answers = Answers::default();
            let look = Look { scene, answers: &answers, only: None, to: None };
            judge(look).iter().filter_map(|one| one.breaks[0].family).collect::<Vec<_>>()
        };
        assert_eq!(families(&with("veth2", of(ETH_P_ARP))), [IpFamily::V4]);
        assert_eq!(families(&with("veth2", of(ETH_P_IPV6))), [IpFamily::V6]);
        // LLDP.
        assert_eq!(families(&with("veth2", of(0x88cc))), []);
    }
}
