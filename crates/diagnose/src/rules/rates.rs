//! Limits of rates that are so low that traffic dies.

use net::IpFamily;

use super::{Rule, containers, is_outbound};
use crate::Look;
use crate::command::within;
use crate::finding::{Finding, Severity, WayKind};
use crate::model::{Container, Link};
use crate::path::{Site, uplink};
use crate::trial::Trials;

pub(super) const RULE: Rule =
    Rule { judges: "limits of rates", ids: &["rate-too-low"], judge, ..Rule::NONE };

const FAMILIES: [IpFamily; 2] = IpFamily::ALL;

/// The links by which the plugin `bandwidth` limits what comes from a container.
const REDIRECTED: &str = "ifb";

/// How long a packet may take, in milliseconds.
const SLOW_MS: u64 = 400;

fn judge(look: Look<'_>) -> Vec<Finding> {
    let host = &look.scene.host;
    let [out_v4, out_v6] = FAMILIES.map(|family| uplink(look.scene, family == IpFamily::V4));
    let trials = Trials::of(look);
    let mut found = Vec::new();
    for container in containers(look) {
        // What the gateway answers waits in the bucket, too.
        let loses = WayKind::BY_LINK.iter().any(|kind| trials.loses(container, *kind));
        let mut limited: Vec<(&Link, bool)> = Vec::new();
        let every = FAMILIES.iter().flat_map(|family| Site::every(look.scene, container, *family));
        let own = container.attachments.iter().map(|one| one.ifname.as_str());
        let inside = container.inside.as_ref();
        let own = own.filter_map(|name| inside.and_then(|inside| inside.link(name)));
        limited.extend(own.map(|link| (link, true)));
        for site in every {
            let out = if site.family() == IpFamily::V4 { out_v4 } else { out_v6 };
            let out = out.filter(|_| is_outbound(look.scene, container, site.family()));
            let named = site.attachment.host_links.iter().filter_map(|name| host.link(name));
            let redirected = named.filter(|link| link.kind.as_deref() == Some(REDIRECTED));
            limited.extend([site.host_end, site.seen_by].map(|link| (link, false)));
            limited.extend(out.into_iter().chain(redirected).map(|link| (link, false)));
        }
        limited.sort_by_key(|(link, is_inside)| (*is_inside, link.index));
        limited.dedup_by_key(|(link, is_inside)| (*is_inside, link.index));
        let too_low = limited.into_iter().filter_map(|(link, is_inside)| {
            told(link, container, is_inside, loses)
                .map(|finding| finding.hits(container.id.clone()))
        });
        found.extend(too_low);
    }
    found
}

/// The last words about a bucket that is smaller than a packet.
pub(crate) const LOSES_LARGE: &str = "larger packets are dropped";

/// Says whether a bucket of a link is told here.
pub(super) fn limits(link: &Link) -> bool {
    told(link, &Container::default(), false, true).is_some()
}

/// A bucket through which a packet of the link's size takes more than a second, or never passes. One
/// that may get only some of the packets is a warning; so is a slow one as long as the container
/// loses nothing.
fn told(link: &Link, container: &Container, is_inside: bool, loses: bool) -> Option<Finding> {
    let rate = link.rate?;
    let name = &link.name;
    let (object, whose, tool) = if is_inside {
        let tool = within(container.netns.as_str());
        (format!("{}: {name}", container.id), format!("{name} of {}", container.called()), tool)
    } else {
        (name.clone(), name.clone(), String::new())
    };
    let (sender, severity) = if rate.of_some {
        (format!("one of the queues of {whose}"), Severity::Warning)
    } else {
        (whose.clone(), Severity::Error)
    };
    let bits = rate.bytes_per_s.saturating_mul(8);
    let mtu = u64::from(link.mtu);
    let takes_ms = mtu.saturating_mul(1_000).checked_div(rate.bytes_per_s);
    let mut severity = severity;
    // The kernel reports the bucket's size as a time in 32 bits, which a slower rate exceeds.
    let says = if rate.bytes_per_s < mtu {
        format!(
            "{sender} may send {bits} bit/s, so a packet of {mtu} bytes takes more than a second"
        )
    } else if rate.burst < link.mtu {
        let (burst, mtu) = (rate.burst, link.mtu);
        format!(
            "{sender} sends packets of up to {mtu} bytes, but its limit lets only {burst} bytes pass at once: {LOSES_LARGE}"
        )
    } else if let Some(takes_ms) = takes_ms.filter(|takes_ms| SLOW_MS <= *takes_ms) {
        severity = if loses { severity } else { Severity::Warning };
        format!(
            "{sender} may send {bits} bit/s, so a packet of {mtu} bytes takes {takes_ms} ms, and transfers nearly stop"
        )
    } else {
        return None;
    };
    let finding = Finding { severity, ..Finding::error("rate-too-low", object, says) }
        .at(format!("queueing discipline of {whose} (tbf or htb)"))
        .advise(format!(
            "set a larger rate or burst in the configuration of the plugin bandwidth; or, if another program set the limit: {tool}tc qdisc del dev {name} root"
        ));
    Some(WayKind::BY_LINK.into_iter().fold(finding, |finding, kind| finding.breaks(kind, None)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Rate, Scene};
    use crate::path::samples::{ip, node};
    use crate::question::{Answer, Answers, Probe, Question};

    fn told(scene: &Scene) -> Vec<String> {
        let answers = Answers::default();
        let found = judge(Look { scene, answers: &answers, only: None, to: None });
        let line = |one: Finding| format!("{} {}", one.object, one.hits.join(" "));
        found.into_iter().map(line).collect()
    }

    #[test]
    fn a_bucket_within_another_queue_is_a_warning() {
        let mut scene = node();
        let link = scene.host.links.iter_mut().find(|link| link.name == "veth2").unwrap();
        limit(link, 1_000, 3_000);
        link.rate = link.rate.map(|rate| Rate { of_some: true, ..rate });
        let answers = Answers::default();
        let found = judge(Look { scene: &scene, answers: &answers, only: None, to: None });
        let told: Vec<(Severity, &str)> =
            found.iter().map(|one| (one.severity, one.says.as_str())).collect();
        let says = "one of the queues of veth2 may send 8000 bit/s, so a packet of 1500 bytes takes more than a second";
        assert_eq!(told, [(Severity::Warning, says)]);
    }

    fn limit(link: &mut Link, bytes_per_s: u64, burst: u32) {
        link.mtu = 1500;
        link.rate = Some(Rate { bytes_per_s, burst, of_some: false });
    }

    #[test]
    fn a_rate_by_which_a_packet_takes_more_than_a_second() {
        let mut scene = node();
        assert_eq!(told(&scene), [""; 0]);
        let host_end = |scene: &mut Scene, rate, burst| {
            let link = scene.host.links.iter_mut().find(|link| link.name == "veth2").unwrap();
            limit(link, rate, burst);
        };
        host_end(&mut scene, 8_000, 3_000);
        assert_eq!(told(&scene), [""; 0]);
        host_end(&mut scene, 1_000, 3_000);
        assert_eq!(told(&scene), ["veth2 c2"]);
        // A bucket that is too small for the packets.
        host_end(&mut scene, 1_000_000, 1_000);
        assert_eq!(told(&scene), ["veth2 c2"]);
        host_end(&mut scene, 1_000_000, 1_514);
        let inside = scene.containers[1].inside.as_mut().unwrap();
        limit(&mut inside.links[1], 100, 3_000);
        assert_eq!(told(&scene), ["c3: eth0 c3"]);
    }

    #[test]
    fn a_rate_at_which_transfers_nearly_stop_is_a_warning() {
        let mut scene = node();
        let link = scene.host.links.iter_mut().find(|link| link.name == "veth2").unwrap();
        limit(link, 2_500, 3_000);
        let answers = Answers::default();
        let found = judge(Look { scene: &scene, answers: &answers, only: None, to: None });
        let told: Vec<(Severity, &str)> =
            found.iter().map(|one| (one.severity, one.says.as_str())).collect();
        let says = "veth2 may send 20000 bit/s, so a packet of 1500 bytes takes 600 ms, and transfers nearly stop";
        assert_eq!(told, [(Severity::Warning, says)]);
        // The gateway gives its address, and its answer to an echo request waits in the bucket.
        let gateway = ip("10.88.0.1");
        let asked = [
            (Probe::WhoHas { address: gateway, link: "eth0".to_owned() }, true),
            (Probe::Echo { to: gateway }, false),
        ];
        let all = asked.map(|(asked, is_answered)| {
            let answer = match is_answered {
                true => Answer::Owners { macs: vec!["02:00:00:00:00:01".to_owned()] },
                false => Answer::Silent { hops: Vec::new() },
            };
            (Question { from: Some("c2".to_owned()), asked }, answer)
        });
        let answers = Answers { all: all.to_vec() };
        let found = judge(Look { scene: &scene, answers: &answers, only: None, to: None });
        assert_eq!(found[0].severity, Severity::Error);
    }

    #[test]
    fn a_limit_of_what_comes_from_a_container() {
        let mut scene = node();
        let mut ifb = Link {
            index: 40,
            name: "bwp1".to_owned(),
            kind: Some("ifb".to_owned()),
            ..Link::default()
        };
        limit(&mut ifb, 10, 3_000);
        scene.host.links.push(ifb);
        assert_eq!(told(&scene), [""; 0]);
        scene.containers[0].attachments[0].host_links.push("bwp1".to_owned());
        assert_eq!(told(&scene), ["bwp1 c2"]);
    }
}
