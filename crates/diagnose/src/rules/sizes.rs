//! Packets that vanish for their size.

use std::net::IpAddr;

use net::IpFamily;

use super::filters::large::is_of_echo_alone;
use super::{Rule, containers, leads_beyond, targets};
use crate::Look;
use crate::finding::{Finding, WayKind};
use crate::model::{Attachment, Container, Link, Network, Scene};
use crate::path::Site;
use crate::question::{Answer, Probe, Question};
use crate::routes::{RouteDecision, look_up};

pub(super) const RULE: Rule =
    Rule { judges: "sizes of packets", ids: &["path-mtu"], asks, judge, ..Rule::NONE };

/// The largest packet (RFC 791 §3.1, RFC 8200 §4.5).
const LARGEST: u32 = 65_535;

/// A link that sends fewer packets of the lost size in a second may have delayed or dropped some of
/// a probe's.
const SLOW: u64 = 100;

/// Plugins that have a key `mtu`.
const WITH_MTU: [&str; 7] = ["bridge", "ptp", "macvlan", "ipvlan", "vlan", "ovs", "tap"];

fn asks(look: Look<'_>) -> Vec<Question> {
    let mut questions = Vec::new();
    for container in containers(look) {
        let is_named = look.only.is_some() && look.to.is_some();
        let is_meant =
            |to: &IpAddr| is_named || leads_beyond(look.scene, container, IpFamily::of(*to));
        for to in targets(look, container).into_iter().filter(is_meant) {
            let Some((_, up_to)) = way_out(container, to) else { continue };
            let from = Some(container.id.clone());
            questions.push(Question { from, asked: Probe::Size { to, up_to } });
        }
    }
    questions
}

/// Returns the link by which a container reaches an address, and how large packets may be there.
fn way_out(container: &Container, to: IpAddr) -> Option<(&Link, u32)> {
    match look_up(container.inside.as_ref()?, None, to, None, Some(0)) {
        RouteDecision::By { link, route, .. } if link.name != "lo" => {
            let mtu = route.mtu.filter(|mtu| *mtu != 0).map_or(link.mtu, |mtu| mtu.min(link.mtu));
            Some((link, mtu.min(LARGEST)))
        }
        _ => None,
    }
}

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for container in containers(look) {
        for (asked, answer) in look.answers.from(Some(&container.id)) {
            if let (Probe::Size { to, .. }, Answer::UpTo { answered, lost }) = (asked, answer)
                && !is_of_echo_alone(look, container, *to)
                && !is_slow(look.scene, container, *to, *lost)
            {
                found.push(black_hole(look, container, *to, (*answered, *lost)));
            }
        }
    }
    found
}

/// Says whether a link on the way on this node loses packets, or sends so slowly that it may have
/// lost those of a probe: then their size is not known to be the reason.
fn is_slow(scene: &Scene, container: &Container, to: IpAddr, size: u32) -> bool {
    let is_limited = |link: &Link| {
        let needed = SLOW.saturating_mul(u64::from(size));
        !link.losses.is_empty() || link.rate.is_some_and(|rate| rate.bytes_per_s < needed)
    };
    let host = &scene.host;
    let of_host = |site: &Site<'_>| {
        let iif = Some(site.seen_by.name.as_str());
        let out = match look_up(host, Some(site.address), to, iif, None) {
            RouteDecision::By { link, .. } => is_limited(link),
            _ => false,
        };
        out || is_limited(site.host_end) || is_limited(site.seen_by)
    };
    let named = container.attachments.iter().flat_map(|attachment| &attachment.host_links);
    way_out(container, to).is_some_and(|(link, _)| is_limited(link))
        || named.filter_map(|name| host.link(name)).any(is_limited)
        || Site::every(scene, container, IpFamily::of(to)).any(|site| of_host(&site))
        || crate::path::uplink(scene, to.is_ipv4()).is_some_and(is_limited)
}

fn black_hole(
    look: Look<'_>,
    container: &Container,
    to: IpAddr,
    (answered, lost): (u32, u32),
) -> Finding {
    let about = if lost == answered.saturating_add(1) { "" } else { "about " };
    let called = container.called();
    let says = format!("packets of more than {about}{answered} bytes from {called} to {to} vanish");
    Finding::error("path-mtu", to.to_string(), says)
        .seen(format!(
            "{answered} bytes were answered and {lost} were not; no router said \"fragmentation needed\": small requests work, transfers hang"
        ))
        .hits(container.id.clone())
        .advise(format!(
            "{}, or let ICMP \"fragmentation needed\" (type 3 code 4, ICMPv6 type 2) pass on the way",
            smaller(look.scene, container, to, &format!("{about}{answered}"))
        ))
        .breaks(WayKind::Outside, Some(IpFamily::of(to)))
}

/// Says how a container sends no packets that are larger than a size.
fn smaller(scene: &Scene, container: &Container, to: IpAddr, size: &str) -> String {
    let called = container.called();
    let Some((link, _)) = way_out(container, to) else {
        return format!("give {called} an MTU of {size}");
    };
    let is_by = |one: &&Attachment| one.ifname == link.name;
    let Some(attachment) = container.attachments.iter().find(is_by) else {
        return format!("set an MTU of {size} where {} of {called} is made", link.name);
    };
    if attachment.dockers {
        return format!(
            "an MTU of {size} for the network {} (com.docker.network.driver.mtu)",
            attachment.network
        );
    }
    let network = scene.networks.iter().find(|one| one.name == attachment.network);
    if let Some(overlay) = network.and_then(|network| network.overlay.as_ref()) {
        return format!(
            "let the network between the nodes carry larger packets; or lower the MTU below flannel's tunnel until flanneld, started again, writes a FLANNEL_MTU of {size} or less to {}, and make the pods again",
            overlay.file
        );
    }
    let file = network.and_then(|network: &Network| network.file.as_deref());
    let file = file.unwrap_or("the network's file");
    match attachment.plugins.first().map(String::as_str) {
        Some(plugin) if WITH_MTU.contains(&plugin) => format!("\"mtu\": {size} in {file}"),
        Some("host-device") => {
            format!("the plugin tuning with \"mtu\": {size} after host-device in {file}")
        }
        Some(plugin) => format!("an MTU of {size} in the configuration of {plugin}, see {file}"),
        None => format!("an MTU of {size} for {} of {called}", link.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Loss, MacvlanMode, Overlay, Rate};
    use crate::path::samples::{ip, node, on_parent};
    use crate::question::Answers;
    use crate::routes::samples::{link, route};

    fn sized(mut scene: Scene) -> Scene {
        for container in &mut scene.containers {
            let inside = container.inside.as_mut().unwrap();
            inside.links.iter_mut().for_each(|link| link.mtu = 1500);
        }
        scene.containers.truncate(1);
        scene
    }

    fn look<'s>(scene: &'s Scene, answers: &'s Answers) -> Look<'s> {
        Look { scene, answers, only: Some("c2"), to: Some("198.51.100.1:80".parse().unwrap()) }
    }

    /// Up to which size is asked.
    fn asked(scene: &Scene) -> Vec<u32> {
        let none = Answers::default();
        let size = |question: Question| match question.asked {
            Probe::Size { up_to, .. } => up_to,
            other => panic!("{other:?}"),
        };
        asks(look(scene, &none)).into_iter().map(size).collect()
    }

    fn found(scene: &Scene, answered: u32, lost: u32) -> Vec<Finding> {
        let asked = Probe::Size { to: ip("198.51.100.1"), up_to: 1500 };
        let question = Question { from: Some("c2".to_owned()), asked };
        let answers = Answers { all: vec![(question, Answer::UpTo { answered, lost })] };
        judge(look(scene, &answers))
    }

    fn advice(scene: &Scene) -> String {
        let advice = found(scene, 1300, 1301).remove(0).advice.remove(0);
        advice.split(", or let ICMP").next().unwrap().to_owned()
    }

    #[test]
    fn a_black_hole_is_named_with_the_size_that_passes() {
        let scene = sized(node());
        assert_eq!(asked(&scene), [1500]);
        let says = |answered, lost| found(&scene, answered, lost).remove(0).says;
        let exact = "packets of more than 1300 bytes from c2 to 198.51.100.1 vanish";
        assert_eq!(says(1300, 1301), exact);
        let about = "packets of more than about 60000 bytes from c2 to 198.51.100.1 vanish";
        assert_eq!(says(60_000, 60_100), about);
    }

    #[test]
    fn sizes_are_tried_by_every_kind_of_link() {
        let macvlan = on_parent("macvlan", |link| link.macvlan = Some(MacvlanMode::Bridge));
        assert_eq!(asked(&sized(macvlan)), [1500]);
        // A device of the host's has no other end that is known.
        let mut device = sized(on_parent("host-device", |link| link.kind = None));
        assert_eq!(asked(&device), [1500]);
        let file = Network {
            name: "mynet".to_owned(),
            file: Some("my.conflist".to_owned()),
            ..Network::default()
        };
        device.networks = vec![file];
        let tuning = "the plugin tuning with \"mtu\": 1300 after host-device in my.conflist";
        assert_eq!(advice(&device), tuning);
        device.containers[0].attachments[0].plugins = vec!["cilium-cni".to_owned()];
        let other = "an MTU of 1300 in the configuration of cilium-cni, see my.conflist";
        assert_eq!(advice(&device), other);
    }

    #[test]
    fn no_packet_is_larger_than_the_link_of_its_route() {
        let mut scene = sized(node());
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.links.push(Link { mtu: 1420, ..link(7, "tun0", &["10.8.0.2/24"]) });
        inside.routes.push(route("128.0.0.0/1", 7, Some("10.8.0.1")));
        assert_eq!(asked(&scene), [1420]);
        assert_eq!(advice(&scene), "set an MTU of 1300 where tun0 of c2 is made");
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.routes.last_mut().unwrap().mtu = Some(1380);
        assert_eq!(asked(&scene), [1380]);
    }

    #[test]
    fn what_a_slow_link_loses_is_no_matter_of_size() {
        let limited = |bytes_per_s| {
            let mut scene = sized(node());
            let veth = scene.host.links.iter_mut().find(|link| link.name == "veth2").unwrap();
            veth.rate = Some(Rate { bytes_per_s, burst: 3000, of_some: false });
            found(&scene, 576, 590).len()
        };
        assert_eq!((limited(2_500), limited(1_000_000)), (0, 1));
        let mut scene = sized(node());
        let loss = Loss {
            kind: "netem".to_owned(),
            filter: false,
            leaving: true,
            preference: 0,
            protocol: None,
            per_mille: Some(300),
        };
        let uplink = scene.host.links.iter_mut().find(|link| link.name == "up0").unwrap();
        uplink.losses.push(loss);
        assert_eq!(found(&scene, 576, 590).len(), 0);
    }

    #[test]
    fn the_mtu_of_flannels_containers_is_flannelds() {
        let mut scene = sized(node());
        let file = "/run/flannel/subnet.env".to_owned();
        scene.networks[0].overlay = Some(Overlay { file, ..Overlay::default() });
        assert!(advice(&scene).contains("/run/flannel/subnet.env"), "{}", advice(&scene));
        scene.networks[0].overlay = None;
        assert_eq!(advice(&scene), "\"mtu\": 1300 in the network's file");
    }
}
