//! Rules that spread connections over several machines, of which some do not answer: then only some
//! connections fail.

use std::net::SocketAddr;

use net::IpFamily;

use super::super::filters::denied::{Owners, is_denied};
use super::super::{FEW, Rule, containers};
use crate::Look;
use crate::filter::{Place, Port};
use crate::finding::{Finding, WayKind};
use crate::model::{Container, Transport};
use crate::path::{Site, carries};
use crate::question::{Answer, NAMES, Probe, Question};
use crate::whose;

pub(in crate::rules) const RULE: Rule = Rule {
    judges: "machines behind translation rules",
    ids: &["endpoint-silent"],
    asks,
    judge,
    ..Rule::NONE
};

/// How many machines behind one address are asked.
const ENDPOINTS: usize = 8;

/// What a container asks, and the machines over which a rule of the node spreads it.
struct Spread<'s> {
    container: &'s Container,
    to: SocketAddr,
    by: Transport,
    /// What it is for.
    kind: WayKind,
    place: Place,
    ends: Vec<SocketAddr>,
}

impl Spread<'_> {
    /// The questions to the machines.
    fn asked(&self) -> impl Iterator<Item = (SocketAddr, Probe)> + '_ {
        self.ends.iter().take(ENDPOINTS).filter_map(|end| {
            let asked = match self.by {
                Transport::Tcp if self.kind == WayKind::Names && end.port() == NAMES => {
                    Probe::NameByTcp { server: end.ip() }
                }
                Transport::Tcp => Probe::Connect { to: *end },
                Transport::Udp if end.port() == NAMES => Probe::Name { server: end.ip() },
                Transport::Udp => return None,
            };
            Some((*end, asked))
        })
    }
}

fn asks(look: Look<'_>) -> Vec<Question> {
    let mut all: Vec<Question> = Vec::new();
    for spread in spreads(look) {
        for (_, asked) in spread.asked() {
            // One container that asks stands for all.
            let is_known = all.iter().any(|one| one.asked == asked && look.only.is_none());
            if !is_known {
                all.push(Question { from: Some(spread.container.id.clone()), asked });
            }
        }
    }
    all
}

fn judge(look: Look<'_>) -> Vec<Finding> {
    let owners = Owners::of(look.scene);
    spreads(look).iter().filter_map(|spread| told(look, &owners, spread)).collect()
}

/// What containers ask by an address behind which several machines are: what the caller names, or
/// else their servers of names.
fn spreads(look: Look<'_>) -> Vec<Spread<'_>> {
    let mut all = Vec::new();
    // What is so for some is so for all.
    for container in containers(look).take(FEW) {
        let named = look.to.map(|to| (to, Transport::Tcp, WayKind::Outside));
        let by = if container.names.by_tcp { Transport::Tcp } else { Transport::Udp };
        let servers = container.nameservers.iter().flatten();
        let servers = servers.map(|server| (SocketAddr::new(*server, NAMES), by, WayKind::Names));
        let spread = |(to, by, kind)| spread(look, container, to, by, kind);
        all.extend(named.into_iter().chain(servers).filter_map(spread));
    }
    all
}

fn spread<'s>(
    look: Look<'s>,
    container: &'s Container,
    to: SocketAddr,
    by: Transport,
    kind: WayKind,
) -> Option<Spread<'s>> {
    let with = carries(by, Port::Is(to.port()));
    let choices = Site::all(look.scene, container, IpFamily::of(to.ip())).find_map(|site| {
        let choices = site.enter(&look.scene.host, to.ip(), with).choices;
        (!choices.is_empty()).then_some(choices)
    })?;
    let place = choices.first()?.0.clone();
    let ends = choices.iter().filter_map(|(_, new)| new.end(to));
    let mut ends: Vec<SocketAddr> = ends.filter(|end| *end != to).collect();
    ends.sort_unstable();
    ends.dedup();
    (1 < ends.len()).then_some(Spread { container, to, by, kind, place, ends })
}

fn told(look: Look<'_>, owners: &Owners<'_>, spread: &Spread<'_>) -> Option<Finding> {
    let Spread { container, to, kind, place, ends, .. } = spread;
    let mut dead: Vec<(SocketAddr, &str)> = Vec::new();
    for (end, asked) in spread.asked() {
        let from = Some(container.id.clone());
        let question = Question { from, asked };
        let Some(answer) = look.answers.to(&question) else { continue };
        if is_denied(look, owners, container, &question.asked, answer) {
            continue;
        }
        match answer {
            Answer::Silent { .. } => dead.push((end, "does not answer")),
            Answer::Unreachable { .. } => dead.push((end, "is not reached")),
            Answer::Refused => dead.push((end, "refuses: nothing listens there")),
            _ => {}
        }
    }
    let (first, _) = *dead.first()?;
    let called = container.called();
    let names: Vec<String> = dead.iter().map(|(end, _)| end.to_string()).collect();
    let others = if 1 < dead.len() { "do not answer" } else { "does not answer" };
    let some = if dead.len() < ends.len() { "some connections fail" } else { "connections fail" };
    let says = format!(
        "{} of the {} machines behind {to}, {}, {others} {called}, so {some}",
        dead.len(),
        ends.len(),
        names.join(" and ")
    );
    let finding = Finding::error("endpoint-silent", to.to_string(), says)
        .at(place.to_string())
        .hits(container.id.clone())
        .advise(format!(
            "see why {} does not answer; or, if it is gone, why the rule still leads to it: who writes the rules (kube-proxy mostly) does not run, or has not heard of it",
            first.ip()
        ))
        .breaks(*kind, Some(IpFamily::of(to.ip())));
    let finding = dead.iter().fold(finding, |finding, (end, what)| {
        finding.seen(format!("the rules for {to} also lead to {end}, which {what}"))
    });
    Some(Finding { whose: whose::of_place(place, look.scene), ..finding })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::samples::{destination, dnat, nat, rule, table, tcp_port, unknown};
    use crate::model::Scene;
    use crate::model::filter::Hook;
    use crate::model::filter::{Element, Family as Kin, MapTo, Set, Step};
    use crate::path::samples::{ip, node, with};
    use crate::question::Answers;

    const SERVICE: &str = "10.96.0.20";

    fn service(parts: &[Vec<Step>]) -> crate::model::filter::Rule {
        let first = [destination(SERVICE), tcp_port(80)];
        rule(&[first.as_slice(), parts].concat())
    }

    /// Rules one after the other, the first with a chance, as iptables writes them.
    fn by_chance() -> Scene {
        let rules = vec![
            service(&[unknown("match statistic"), dnat("10.42.1.5", 80)]),
            service(&[dnat("10.42.1.6", 80)]),
        ];
        let chain = nat("PREROUTING", Hook::Prerouting, -100, rules);
        with(node(), table(Kin::Ip, "nat", vec![chain]))
    }

    /// One rule with a map, as nft writes it: with ports, or without.
    fn by_map(ports: bool) -> Scene {
        let element = |number: u8, last: u8| Element {
            first: vec![number, 0, 0, 0],
            last: None,
            parts: Vec::new(),
            data: Some(
                [[10, 42, 1, last].as_slice(), if ports { &[0, 80, 0, 0] } else { &[] }].concat(),
            ),
            verdict: None,
        };
        let map = Set {
            name: "__map0".to_owned(),
            elements: vec![element(0, 5), element(1, 6)],
            truncated: false,
        };
        let lookup = Step::Lookup {
            set: "__map0".to_owned(),
            from: 0,
            invert: false,
            to: Some(MapTo::Register(0)),
        };
        let nat_to = Step::DestinationNat { address: Some(0), port: ports.then_some(1) };
        let rules = vec![service(&[unknown("numgen"), vec![lookup, nat_to]])];
        let mut own = table(Kin::Ip, "kube-proxy", vec![nat("pre", Hook::Prerouting, -100, rules)]);
        own.sets = vec![map];
        with(node(), own)
    }

    fn look<'s>(scene: &'s Scene, answers: &'s Answers) -> Look<'s> {
        let to = Some(SocketAddr::new(ip(SERVICE), 80));
        Look { scene, answers, only: Some("c2"), to }
    }

    fn told(scene: &Scene, last: &Answer) -> Vec<String> {
        let none = Answers::default();
        let asked = asks(look(scene, &none));
        let ends: Vec<String> = asked
            .iter()
            .map(|one| match one.asked {
                Probe::Connect { to } => to.to_string(),
                _ => panic!("{one:?}"),
            })
            .collect();
        assert_eq!(ends, ["10.42.1.5:80", "10.42.1.6:80"]);
        let reached = Answer::Reached { after_us: 1 };
        let all = asked.into_iter().zip([reached, last.clone()]).collect();
        let answers = Answers { all };
        judge(look(scene, &answers)).into_iter().map(|one| one.says).collect()
    }

    #[test]
    fn each_machine_behind_an_address_is_asked() {
        let says = "1 of the 2 machines behind 10.96.0.20:80, 10.42.1.6:80, does not answer c2, so some connections fail";
        let silent = Answer::Silent { hops: Vec::new() };
        for scene in [by_chance(), by_map(false), by_map(true)] {
            assert_eq!(told(&scene, &silent), [says]);
            assert_eq!(told(&scene, &Answer::Refused), [says]);
            assert_eq!(told(&scene, &Answer::Reached { after_us: 1 }), [""; 0]);
        }
    }

    #[test]
    fn one_machine_is_asked_by_its_service() {
        let rules = vec![service(&[dnat("10.42.1.5", 80)])];
        let chain = nat("PREROUTING", Hook::Prerouting, -100, rules);
        let scene = with(node(), table(Kin::Ip, "nat", vec![chain]));
        let none = Answers::default();
        assert_eq!(asks(look(&scene, &none)), []);
        assert_eq!(asks(look(&node(), &none)), []);
        // A map of which a part was not read says nothing.
        let mut cut = by_map(false);
        cut.host.filter.tables[0].sets[0].truncated = true;
        assert_eq!(asks(look(&cut, &none)), []);
    }
}
