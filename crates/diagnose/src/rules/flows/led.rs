//! Flows of containers that still go where rules led them once, and where nobody answers any more.

use net::IpFamily;

use super::super::{Look, containers};
use super::has_owner;
use crate::filter::{End, NewDestination, Payload, Port};
use crate::finding::{Finding, WayKind};
use crate::model::{Container, Flow, Part};
use crate::path::Site;
use crate::question::{Answer, NAMES, Probe, Question};

/// How many of them are asked about.
const ASKED: usize = 8;

/// Only of a server of names it can be asked whether it answers.
pub(super) fn asks(look: Look<'_>) -> Vec<Question> {
    let mut all: Vec<Question> = Vec::new();
    for (container, flow) in left(look) {
        let Some(question) = question(container, flow) else { continue };
        if all.len() < ASKED && !all.contains(&question) {
            all.push(question);
        }
    }
    all
}

fn question(container: &Container, flow: &Flow) -> Option<Question> {
    let server = flow.leads_to.ip();
    (flow.leads_to.port() == NAMES)
        .then(|| Question { from: Some(container.id.clone()), asked: Probe::Name { server } })
}

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    for (container, flow) in left(look) {
        let Some(why) = dead(look, container, flow) else { continue };
        let object = format!("{}: {} to {}", container.id, flow.to, flow.leads_to.ip());
        let client = format!("port {}", flow.client.port());
        match found.iter_mut().find(|known| known.object == object) {
            Some(known) if known.seen.len() < ASKED => known.seen.push(client),
            Some(_) => {}
            None => found.push(told(container, flow, object, why).seen(client)),
        }
    }
    found
}

/// The flows of containers that surely no rule would lead now where they go.
fn left<'s>(look: Look<'s>) -> Vec<(&'s Container, &'s Flow)> {
    let mut all = Vec::new();
    // A rule that was not read may lead a flow where it goes.
    if [Part::Nftables, Part::LegacyIptables].iter().any(|part| look.scene.lacks(*part, None)) {
        return all;
    }
    for container in containers(look) {
        let nets = || container.attachments.iter().flat_map(|one| &one.addresses);
        let of_own = look.scene.flows.iter().filter(|flow| {
            nets().any(|net| net.addr() == flow.client.ip()) && flow.leads_to != flow.to
        });
        let stale = of_own.filter(|flow| is_left(look, container, flow));
        all.extend(stale.map(|flow| (container, flow)));
    }
    all
}

fn is_left(look: Look<'_>, container: &Container, flow: &Flow) -> bool {
    // IPVS gives the node the addresses of its services, and translates by rules of its own.
    if look.scene.host.owner_of(flow.to.ip()).is_some() {
        return false;
    }
    let mut sites = Site::all(look.scene, container, IpFamily::of(flow.to.ip()));
    let Some(site) = sites.find(|site| site.address == flow.client.ip()) else { return false };
    let with = Payload::Udp {
        source: Port::Is(flow.client.port()),
        destination: Port::Is(flow.to.port()),
    };
    let walked = site.enter(&look.scene.host, flow.to.ip(), with);
    let leads_elsewhere =
        |new: &NewDestination| new.end(flow.to).is_some_and(|end| end != flow.leads_to);
    matches!(walked.end, End::Passes | End::Lost(_))
        && walked.choices.iter().all(|(_, new)| leads_elsewhere(new))
}

/// Says why nobody answers at the end of a flow; `None` if somebody may.
fn dead(look: Look<'_>, container: &Container, flow: &Flow) -> Option<String> {
    let end = flow.leads_to;
    let asked = question(container, flow).and_then(|question| look.answers.to(&question).cloned());
    match asked {
        Some(Answer::Silent { .. } | Answer::Unreachable { .. }) => {
            return Some(format!("{end} does not answer {}", container.called()));
        }
        Some(Answer::Refused) => return Some(format!("{end} refuses")),
        Some(Answer::NotAsked { .. }) | None => {}
        Some(_) => return None,
    }
    let mut pools = look.scene.networks.iter().flat_map(|network| &network.subnets);
    let is_gone = pools.any(|pool| pool.contains(&end.ip())) && !has_owner(look.scene, end.ip());
    is_gone.then(|| format!("no container has {}", end.ip()))
}

fn told(container: &Container, flow: &Flow, object: String, why: String) -> Finding {
    let called = container.called();
    let Flow { client, to, leads_to } = flow;
    let says = format!(
        "what {called} sends by UDP from some ports to {to} still goes to {leads_to}, where no rule leads it any more, and nobody answers"
    );
    let version = if to.is_ipv4() { "" } else { "-f ipv6 " };
    Finding::warning("flow-stale", object, says)
        .at(format!("flow of {client} to {to}, answered by {leads_to}"))
        .seen(why)
        .hits(container.id.clone())
        .fix(format!(
            "conntrack {version}-D -p udp --orig-src {} --orig-dst {} --orig-port-dst {} --reply-src {}",
            client.ip(),
            to.ip(),
            to.port(),
            leads_to.ip()
        ))
        .advise("a program that goes on sending from the same port is led by its flow, not by the rules; new ports are led by the rules")
        .breaks(
            if to.port() == NAMES { WayKind::Names } else { WayKind::Outside },
            Some(IpFamily::of(to.ip())),
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::samples::{dnat, nat, rule, table, udp_port, unknown};
    use crate::model::Scene;
    use crate::model::filter::Hook;
    use crate::model::filter::{Family as Kin, Step};
    use crate::path::samples::{ip, node, with};
    use crate::question::Answers;

    /// The service 10.96.0.53 is led to some machines; a flow of c2 to it goes to another one.
    fn scene(parts: &[Vec<Vec<Step>>], leads_to: &str) -> Scene {
        let rules = parts.iter().map(|parts| rule(parts)).collect();
        let chain = nat("pre", Hook::Prerouting, -100, rules);
        let mut scene = with(node(), table(Kin::Ip, "kube-proxy", vec![chain]));
        scene.flows = vec![Flow {
            client: "10.88.0.2:41000".parse().unwrap(),
            to: "10.96.0.53:53".parse().unwrap(),
            leads_to: leads_to.parse().unwrap(),
        }];
        scene
    }

    fn led(to: &str) -> Vec<Vec<Step>> {
        vec![udp_port(53), dnat(to, 53)]
    }

    fn told(scene: &Scene, answer: Option<Answer>) -> Vec<String> {
        let none = Answers::default();
        let asked = asks(Look { scene, answers: &none, only: None, to: None });
        let all = asked.into_iter().zip(answer).collect();
        let answers = Answers { all };
        let found = judge(Look { scene, answers: &answers, only: None, to: None });
        found.into_iter().flat_map(|one| one.fix).collect()
    }

    #[test]
    fn a_flow_to_where_no_rule_leads_any_more() {
        let silent = || Some(Answer::Silent { hops: Vec::new() });
        let named = || Some(Answer::Named { after_us: 1, error: None });
        let old = scene(&[led("192.0.2.53")], "192.0.2.1:53");
        let fix = "conntrack -D -p udp --orig-src 10.88.0.2 --orig-dst 10.96.0.53 --orig-port-dst 53 --reply-src 192.0.2.1";
        assert_eq!(told(&old, silent()), [fix]);
        // There is no rule at all any more.
        assert_eq!(told(&scene(&[], "192.0.2.1:53"), silent()), [fix]);
        // It still answers there, or that is not known.
        assert_eq!(told(&old, named()), [""; 0]);
        assert_eq!(told(&old, None), [""; 0]);
        // A rule leads there, or one of several does.
        assert_eq!(told(&scene(&[led("192.0.2.1")], "192.0.2.1:53"), silent()), [""; 0]);
        let first = vec![udp_port(53), unknown("match statistic"), dnat("192.0.2.1", 53)];
        let both = scene(&[first, led("192.0.2.53")], "192.0.2.1:53");
        assert_eq!(told(&both, silent()), [""; 0]);
        // Another port has no question, but nobody has the address.
        let gone = |end: &str| {
            let mut gone = scene(&[], end);
            gone.flows[0].to = "10.96.0.53:514".parse().unwrap();
            told(&gone, None).len()
        };
        assert_eq!((gone("10.88.0.99:514"), gone("10.88.0.3:514")), (1, 0));
        assert_eq!(gone("192.0.2.1:514"), 0);
    }

    #[test]
    fn what_other_means_translate_is_not_judged() {
        let silent = || Some(Answer::Silent { hops: Vec::new() });
        // IPVS has the address on a link of its own.
        let mut scene = scene(&[], "192.0.2.1:53");
        let own = crate::routes::samples::link(50, "kube-ipvs0", &["10.96.0.53/32"]);
        scene.host.links.push(own);
        assert_eq!(told(&scene, silent()), [""; 0]);
        assert_eq!(scene.host.owner_of(ip("10.96.0.53")).unwrap().name, "kube-ipvs0");
    }
}
