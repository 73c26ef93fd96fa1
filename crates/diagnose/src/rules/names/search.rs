//! Domains below which programs look for a name before they look for the name itself, where a
//! server has an address for any name: programs get that address for names of others.

use std::net::IpAddr;

use net::IpFamily;

use super::super::{Rule, containers};
use super::{reaches, servers};
use crate::Look;
use crate::finding::{Finding, WayKind};
use crate::model::Container;
use crate::question::{Answer, Probe, Question};

pub(in crate::rules) const RULE: Rule = Rule {
    judges: "domains in which containers look for names",
    ids: &["search-wildcard"],
    asks,
    judge,
    ..Rule::NONE
};

/// With one dot or none, a name of others such as `example.com` is looked for as it is first.
const FEW: u8 = 1;

/// How many domains are asked of one container.
const DOMAINS: usize = 6;

/// Each domain is asked of a server once, for all containers that ask it.
fn asks(look: Look<'_>) -> Vec<Question> {
    let mut asked: Vec<Question> = Vec::new();
    for container in containers(look) {
        for (server, domain) in looked_in(look, container) {
            let domain = domain.to_owned();
            let question = Probe::NameBelow { server, domain };
            if !asked.iter().any(|one| one.asked == question) {
                asked.push(Question { from: Some(container.id.clone()), asked: question });
            }
        }
    }
    asked
}

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (question, answer) in &look.answers.all {
        let (Probe::NameBelow { server, domain }, Answer::Addresses { all }) =
            (&question.asked, answer)
        else {
            continue;
        };
        let Some(address) = all.first() else { continue };
        found.extend(wildcard(look, *server, domain, *address));
    }
    found
}

/// All containers that ask this server for names below this domain.
fn wildcard(look: Look<'_>, server: IpAddr, domain: &str, address: IpAddr) -> Option<Finding> {
    let is_asked = |container: &&Container| {
        looked_in(look, container).any(|(own, below)| own == server && below == domain)
    };
    let mut hit = containers(look).filter(is_asked);
    let first = hit.next()?;
    let (called, ndots) = (first.called(), first.names.ndots.unwrap_or(FEW));
    let says = format!(
        "programs in {called} get {address} for a name such as example.com: they look for example.com.{domain} first, and {server} has that address for any name below {domain}"
    );
    let finding = Finding::warning("search-wildcard", format!("{server}: {domain}"), says)
        .at(format!("resolv.conf of {called}"))
        .seen(format!(
            "resolv.conf has the domain {domain} and \"options ndots:{ndots}\", so a name with fewer than {ndots} dots is looked for below {domain} before it is looked for as it is"
        ))
        .hits(first.id.clone())
        .advise(format!(
            "write \"options ndots:1\" into resolv.conf of {called}, or leave {domain} out of it; a name that ends with a dot is looked for as it is"
        ))
        .breaks(WayKind::Names, Some(IpFamily::V4));
    Some(hit.fold(finding, |finding, other| finding.hits(other.id.clone())))
}

/// Returns the domains below which programs look for a name with a dot first, with the server that
/// they ask first.
fn looked_in<'l>(
    look: Look<'l>,
    container: &'l Container,
) -> impl Iterator<Item = (IpAddr, &'l str)> {
    let asks = FEW < container.names.ndots.unwrap_or(FEW);
    let server = servers(container)
        .next()
        .filter(|server| asks && !server.is_loopback() && reaches(look, container, *server));
    let domains = container.names.search.iter().filter(|domain| domain.as_str() != ".");
    server.into_iter().flat_map(move |server| {
        domains.clone().take(DOMAINS).map(move |domain| (server, domain.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Scene;
    use crate::path::samples::{ip, node};
    use crate::question::Answers;

    fn with(ndots: Option<u8>) -> Scene {
        let mut scene = node();
        let container = &mut scene.containers[0];
        container.nameservers = Some(vec![ip("198.51.100.53"), ip("198.51.100.54")]);
        container.names.search = vec!["a.test".to_owned(), ".".to_owned(), "b.test".to_owned()];
        container.names.ndots = ndots;
        scene
    }

    fn look<'l>(scene: &'l Scene, answers: &'l Answers) -> Look<'l> {
        Look { scene, answers, only: None, to: None }
    }

    fn asked(scene: &Scene) -> Vec<Probe> {
        let answers = Answers::default();
        RULE.questions(look(scene, &answers)).into_iter().map(|one| one.asked).collect()
    }

    fn below(domain: &str) -> Probe {
        Probe::NameBelow { server: ip("198.51.100.53"), domain: domain.to_owned() }
    }

    #[test]
    fn domains_are_asked_where_a_name_with_a_dot_is_looked_for_below_them() {
        assert_eq!(asked(&with(None)), []);
        assert_eq!(asked(&with(Some(1))), []);
        assert_eq!(asked(&with(Some(2))), [below("a.test"), below("b.test")]);
        let mut own = with(Some(5));
        own.containers[0].nameservers = Some(vec![ip("127.0.0.1")]);
        assert_eq!(asked(&own), []);
    }

    #[test]
    fn a_domain_with_an_address_for_any_name_is_told_once() {
        let mut scene = with(Some(5));
        let mut other = scene.containers[0].clone();
        other.id = "c3".to_owned();
        scene.containers.push(other);
        assert_eq!(asked(&scene).len(), 2);
        let from = Some("c2".to_owned());
        let question = |domain| Question { from: from.clone(), asked: below(domain) };
        let all = vec![
            (question("a.test"), Answer::Addresses { all: Vec::new() }),
            (question("b.test"), Answer::Addresses { all: vec![ip("203.0.113.7")] }),
        ];
        let answers = Answers { all };
        let found = RULE.findings(look(&scene, &answers));
        let [one] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((one.id, one.object.as_str()), ("search-wildcard", "198.51.100.53: b.test"));
        assert_eq!(one.hits, ["c2", "c3"]);
        let says = "programs in c2 get 203.0.113.7 for a name such as example.com: they look for \
                    example.com.b.test first, and 198.51.100.53 has that address for any name below b.test";
        assert_eq!(one.says, says);
        // Programs of one container look for the name as it is first.
        scene.containers.last_mut().unwrap().names.ndots = Some(1);
        assert_eq!(RULE.findings(look(&scene, &answers))[0].hits, ["c2"]);
    }
}
