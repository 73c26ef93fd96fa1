//! A silent server of names that the node takes for a machine on a link of its own, since a subnet
//! of the link has the server's address. If the prefix is too short, the server is behind a router,
//! and no machine on the link answers for it. (Where it is so short that it is surely wrong,
//! `neighbours` says so.)

use std::net::IpAddr;

use ipnet::IpNet;

use super::super::asks_links;
use crate::Look;
use crate::finding::Finding;
use crate::model::Link;
use crate::question::{Answer, Question};
use crate::routes::{RouteDecision, look_up};

/// The node asks who has the server's hardware address.
pub(super) fn asks(look: Look<'_>, server: IpAddr) -> Option<Question> {
    if !asks_links(look) {
        return None;
    }
    taken(look, server).map(|(link, _)| Question::who_has(None, &link.name, server))
}

/// Adds to the finding of a silent server that no machine on the link answers for it.
pub(super) fn add(look: Look<'_>, server: IpAddr, finding: Finding) -> Finding {
    let Some((link, own)) = taken(look, server) else { return finding };
    let asked = Question::who_has(None, &link.name, server);
    if look.answers.to(&asked).and_then(Answer::has_owner) != Some(false) {
        return finding;
    }
    let name = &link.name;
    finding
        .seen(format!(
            "this node has {own} on {name}, so it asks no router for {server}, and no machine on {name} answers for it"
        ))
        .advise(format!(
            "or, if {server} is not on {name}, give {} the prefix length of its own subnet in place of {}",
            own.addr(),
            own.prefix_len()
        ))
}

/// Returns the node's link on which the server should be, and the address that says so.
fn taken<'l>(look: Look<'l>, server: IpAddr) -> Option<(&'l Link, IpNet)> {
    let scene = look.scene;
    let routed = look_up(&scene.host, None, server, None, Some(0));
    let RouteDecision::By { link, via: None, .. } = routed else { return None };
    let own = link.addresses.iter().find(|own| own.address.contains(&server))?.address;
    let is_asked = link.up && link.carrier && link.mac.is_some() && !link.no_arp;
    // Containers' addresses are given out by pools.
    let mut pools = scene.networks.iter().flat_map(|network| &network.subnets);
    let is_of_pool = pools.any(|pool| pool.contains(&server));
    // A machine with a configured entry need not answer requests.
    let mut entries = scene.host.neighbours.iter();
    let is_configured =
        entries.any(|one| one.permanent && one.link == link.index && one.address == server);
    (is_asked && !is_of_pool && !is_configured && link.name != "lo").then_some((link, own))
}

#[cfg(test)]
mod tests {
    use super::super::RULE;
    use super::*;
    use crate::model::Scene;
    use crate::path::samples::{ip, node};
    use crate::question::{Answers, Probe};

    /// A node whose uplink has an address with this prefix length, and a server behind its router.
    fn with(prefix: &str) -> Scene {
        let mut scene = node();
        scene.containers[0].nameservers = Some(vec![ip("192.0.100.53")]);
        let subnet: IpNet = prefix.parse().unwrap();
        let uplink = scene.host.links.iter_mut().find(|link| link.name == "up0").unwrap();
        uplink.mac = Some("02:00:00:00:00:20".to_owned());
        uplink.addresses[0].address = subnet;
        scene.host.routes[1].to = subnet.trunc();
        scene
    }

    /// What was seen of the silent server, if these machines on the link answered for it.
    fn seen(scene: &Scene, macs: Vec<String>) -> Vec<String> {
        let answers = Answers::default();
        let look = Look { scene, answers: &answers, only: None, to: None };
        let silent = |question: Question| {
            let answer = match question.asked {
                Probe::WhoHas { .. } => Answer::Owners { macs: macs.clone() },
                _ => Answer::Silent { hops: Vec::new() },
            };
            (question, answer)
        };
        let all = RULE.questions(look).into_iter().map(silent).collect();
        let found = RULE.findings(Look { answers: &Answers { all }, ..look });
        found.into_iter().flat_map(|one| one.seen).collect()
    }

    #[test]
    fn a_subnet_that_is_too_large_is_told_with_the_server_that_it_hides() {
        let lost = "a question to 192.0.100.53:53 by UDP was not answered".to_owned();
        assert_eq!(seen(&with("192.0.2.2/24"), Vec::new()), std::slice::from_ref(&lost));
        let near = "this node has 192.0.2.2/16 on up0, so it asks no router for 192.0.100.53, and \
                    no machine on up0 answers for it";
        let wide = with("192.0.2.2/16");
        assert_eq!(seen(&wide, Vec::new()), [lost.clone(), near.to_owned()]);
        // It is there.
        assert_eq!(seen(&wide, vec!["02:00:00:00:00:53".to_owned()]), std::slice::from_ref(&lost));
        let mut pool = with("192.0.2.2/16");
        pool.networks[0].subnets.push("192.0.100.0/24".parse().unwrap());
        assert_eq!(seen(&pool, Vec::new()), [lost]);
    }
}
