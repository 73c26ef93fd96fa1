//! Switches and tables of the whole node.

mod arp;
mod forwarding;
mod hops;
mod ipsec;
pub(super) mod proxies;
mod tables;

use net::IpFamily;

use super::Rule;
use crate::Look;
use crate::command::within;
use crate::finding::{Finding, WayKind};
use crate::question::Answer;

pub(super) const RULE: Rule = Rule {
    judges: "kernel parameters",
    ids: &[
        "forwarding-off",
        "hops-too-few",
        "ipsec-drops",
        "requests-ignored",
        "reverse-path-filter",
        "conntrack-full",
        "neighbour-table-full",
    ],
    judge,
    ..Rule::NONE
};

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(forwarding::judge(look, IpFamily::V4));
    found.extend(forwarding::judge(look, IpFamily::V6));
    found.extend(reverse_path(look));
    found.extend(arp::judge(look));
    found.extend(proxies::judge(look));
    found.extend(tables::judge(look));
    found.extend(hops::judge(look));
    found.extend(ipsec::judge(look));
    found
}

/// The kernel drops what comes in by a link by which it would not answer. Only a probe that ended so
/// is a proof: a link that is strict is no fault.
fn reverse_path(look: Look<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    for (question, answer) in &look.answers.all {
        let (Answer::Silent { hops } | Answer::Unreachable { hops, .. }) = answer else { continue };
        let Some(hop) = hops.iter().find(|hop| {
            hop.dropped.as_ref().is_some_and(|(_, reason)| reason.contains("RPFILTER"))
        }) else {
            continue;
        };
        let link = hop.link.clone().unwrap_or_else(|| "a link".to_owned());
        let inside = hop.container.as_deref().and_then(|id| look.scene.container(id));
        let (object, whose, tool) = match inside {
            None => (link.clone(), "this node", String::new()),
            Some(inside) => {
                let tool = within(inside.netns.as_str());
                (format!("{}: {link}", inside.id), inside.called(), tool)
            }
        };
        let says = format!(
            "the reverse path filter drops what comes in by {link}: {whose} would answer by another link"
        );
        let finding = Finding::error("reverse-path-filter", object, says)
            .at(format!("net.ipv4.conf.{link}.rp_filter and net.ipv4.conf.all.rp_filter"))
            .seen("the kernel dropped a probe's packet there, with the reason IP_RPFILTER")
            // The larger value of the link's and that of all counts (linux Documentation/networking/ip-sysctl.rst).
            .fix(format!("{tool}sysctl -w net.ipv4.conf.{link}.rp_filter=2"))
            .breaks(WayKind::Outside, Some(IpFamily::V4))
            .breaks(WayKind::Names, Some(IpFamily::V4))
            .breaks(WayKind::Published, Some(IpFamily::V4));
        found.push(match &question.from {
            Some(container) => finding.hits(container.clone()),
            None => finding,
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Attachment, Container, Scene};
    use crate::question::{Answers, Hop, Probe, Question};

    fn ids(scene: &Scene, answers: &Answers) -> Vec<&'static str> {
        let look = Look { scene, answers, only: None, to: None };
        judge(look).into_iter().map(|finding| finding.id).collect()
    }

    fn node() -> Scene {
        let attachment = Attachment {
            network: "mynet".to_owned(),
            ifname: "eth0".to_owned(),
            plugins: vec!["bridge".to_owned()],
            gateways: vec!["10.88.0.1".parse().unwrap()],
            addresses: vec!["10.88.0.2/24".parse().unwrap()],
            ..Attachment::default()
        };
        let container = Container {
            id: "c1".to_owned(),
            alive: Some(true),
            attachments: vec![attachment],
            ..Container::default()
        };
        let mut scene = Scene { containers: vec![container], ..Scene::default() };
        let sysctls = &mut scene.host.sysctls;
        sysctls.insert("net.ipv4.ip_forward".to_owned(), "1".to_owned());
        sysctls.insert("net.ipv6.conf.all.forwarding".to_owned(), "0".to_owned());
        scene
    }

    #[test]
    fn forwarding_matters_where_a_container_needs_it() {
        let mut scene = node();
        // No container has IPv6.
        assert_eq!(ids(&scene, &Answers::default()), [""; 0]);
        scene.host.sysctls.insert("net.ipv4.ip_forward".to_owned(), "0\n".to_owned());
        assert_eq!(ids(&scene, &Answers::default()), ["forwarding-off"]);
    }

    #[test]
    fn a_drop_by_the_reverse_path_filter_is_proved_by_a_probe() {
        let hop = Hop {
            container: None,
            link: Some("up1".to_owned()),
            dropped: Some(("ip_rcv_finish_core".to_owned(), "IP_RPFILTER".to_owned())),
            rule: None,
            back: true,
        };
        let to = "198.51.100.1".parse().unwrap();
        let question = Question { from: Some("c1".to_owned()), asked: Probe::Echo { to } };
        let answers = Answers { all: vec![(question, Answer::Silent { hops: vec![hop] })] };
        let node = node();
        let look = Look { scene: &node, answers: &answers, only: None, to: None };
        let found = judge(look);
        assert_eq!(found[0].id, "reverse-path-filter");
        // Other links stay strict.
        assert_eq!(found[0].fix, ["sysctl -w net.ipv4.conf.up1.rp_filter=2"]);
        // A container with two networks has such a filter too.
        let mut within = answers.clone();
        let Answer::Silent { hops } = &mut within.all[0].1 else { panic!("not silent") };
        hops[0].container = Some("c1".to_owned());
        let found = judge(Look { answers: &within, ..look });
        assert_eq!(found[0].object, "c1: up1");
        assert!(found[0].fix[0].starts_with("nsenter --net="), "{:?}", found[0].fix);
    }
}
