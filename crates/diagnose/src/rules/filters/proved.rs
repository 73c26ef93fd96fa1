//! Filters that a probe has shown to drop it, although that could not be computed.

use net::IpFamily;

use super::fix::DroppedProbe;
use super::{fix, say};
use crate::Look;
use crate::filter::{End, Layer, Packet, Place, Port, walk};
use crate::finding::{Finding, Help, Severity, Way, WayKind};
use crate::model::filter::{Hook, Step};
use crate::model::{Container, Namespace};
use crate::path;
use crate::question::{Answer, Hop, Probe, Question};
use crate::routes::{RouteDecision, look_up};
use crate::rules::BY_ITSELF;
use crate::whose;

/// Adds what was seen of probes: to findings of the same rule, or as findings of their own.
pub(super) fn add(look: Look<'_>, found: &mut Vec<Finding>) {
    for (question, answer) in &look.answers.all {
        let (Answer::Silent { hops } | Answer::Unreachable { hops, .. }) = answer else { continue };
        let Some((hop, place, layer)) = hops.iter().rev().find_map(|hop| dropped_at(look, hop))
        else {
            continue;
        };
        if whose::is_policy(&place, hop.back, look.scene) {
            continue;
        }
        let object = match &hop.container {
            Some(id) => format!("{id}: {}", place.name()),
            None => place.name(),
        };
        let what = if hop.back { "the answer to a probe" } else { "a probe" };
        let to = target(&question.asked);
        let seen = format!("{what}{to} ended at this rule");
        if let Some(known) = found.iter_mut().find(|known| known.object == object) {
            if !known.seen.contains(&seen) {
                known.seen.insert(0, seen);
            }
            if known.id != BY_ITSELF {
                known.severity = Severity::Error;
            }
            let kind = way(question);
            let family = Some(IpFamily::of(question.asked.address()));
            let is_known =
                |way: &Way| way.kind == kind && (way.family.is_none() || way.family == family);
            if !known.breaks.iter().any(is_known) {
                known.breaks.push(Way { container: None, kind, family });
            }
            continue;
        }
        if !says_all(&question.asked, hop, &place) {
            continue;
        }
        let inside = hop.container.as_deref().and_then(|id| look.scene.container(id));
        let does = if place.says.ends_with("reject") { "refuses" } else { "drops" };
        let ends = format!("{does} {what}{to}");
        let (name, is_limit) = (place.name(), limited(&place.says));
        let finding = match inside {
            Some(container) => {
                let called = container.called();
                let says = format!("the packet filter in {called}, {name}, {ends}");
                Finding::error("inside-dropped", object, says).at(format!("in {called}: {place}"))
            }
            None => {
                let id = say::id(layer, place.hook);
                Finding::error(id, object, format!("{name} {ends}")).at(place.to_string())
            }
        };
        // What it does to others was not tried.
        let family = IpFamily::of(question.asked.address());
        let finding = finding.seen(seen).breaks(way(question), Some(family));
        let help = match inside {
            _ if is_limit => {
                let from = question.from.as_deref().and_then(|id| look.scene.container(id));
                let called = from.map_or("this node", |one| one.called());
                vec![Help::Advice(format!(
                    "the rule drops what exceeds a limit: see how many connections {called} keeps{to}, and how fast it begins them, before you raise the limit: ss -tan"
                ))]
            }
            Some(container) => {
                let probe = seen_by(container, question, hop, &place);
                fix::of_probe(look.scene, container, &place, probe)
            }
            None if hop.back || whose::is_for_links(&place) => Vec::new(),
            None => vec![Help::Advice(format!(
                "if {} is to be reached, let the rule except it; if not, nothing is wrong: try a machine that is to be reached, with --to ADDRESS:PORT",
                question.asked.whom()
            ))],
        };
        let finding = help.into_iter().fold(finding, Finding::help);
        let whose = match inside {
            Some(container) => Some(format!("{}, or who set it up", container.called())),
            None => whose::of_place(&place, look.scene),
        };
        let finding = Finding { whose, ..finding };
        let finding = match whose::is_for_links(&place) {
            true => finding.advise(
                "let Calico know the container's link: restart calico-node, and see why it does not run, or does not know the pod",
            ),
            false => finding,
        };
        found.push(match &question.from {
            Some(from) => finding.hits(from.clone()),
            None => finding,
        });
    }
}

/// Returns the packet of a container's probe as the container's own filter saw it where it dropped
/// it; `None` if by the rules as they are it does not end there.
fn seen_by(
    container: &Container,
    question: &Question,
    hop: &Hop,
    place: &Place,
) -> Option<DroppedProbe> {
    let inside = container.inside.as_ref()?;
    let (to, by) = question.asked.program()?;
    if question.from.as_ref() != Some(&container.id) {
        return None;
    }
    let RouteDecision::By { link, .. } = look_up(inside, None, to.ip(), None, Some(0)) else {
        return None;
    };
    let own = path::address_of(link, to.is_ipv4())?;
    let sent = Packet::first(own, to.ip(), path::carries(by, Port::Is(to.port())));
    let name = Some(link.name.as_str());
    let (packet, hooks) = match hop.back {
        false => (sent.between(None, name), LEAVING),
        true => (sent.answer().between(name, None), COMING),
    };
    let is_it = |one: &Place| {
        let of = |one: &Place| (one.family, one.rule);
        of(one) == of(place) && one.table == place.table && one.chain == place.chain
    };
    hooks.into_iter().find_map(|(layer, hook)| match walk(inside, layer, hook, &packet).end {
        End::Stopped(place, _) | End::Unknown(place) if is_it(&place) => {
            Some(DroppedProbe { layer, packet: packet.clone(), place, to, by, back: hop.back })
        }
        _ => None,
    })
}

/// Where a container's filter sees what it sends, and what comes to it.
const LEAVING: [(Layer, Hook); 3] =
    [(Layer::Ip, Hook::Output), (Layer::Ip, Hook::Postrouting), (Layer::Device, Hook::Egress)];
const COMING: [(Layer, Hook); 3] =
    [(Layer::Device, Hook::Ingress), (Layer::Ip, Hook::Prerouting), (Layer::Ip, Hook::Input)];

/// The way that is broken if a probe is lost.
fn way(question: &Question) -> WayKind {
    match &question.asked {
        Probe::RarePort { .. } if question.from.is_none() => WayKind::FromNode,
        asked => asked.way(),
    }
}

/// The limits for which a rule asks, in words: by its addresses and ports alone it looks as if it
/// dropped all.
fn conditions(steps: &[Step]) -> Vec<&str> {
    steps.iter().filter_map(limit).collect()
}

fn limit(step: &Step) -> Option<&str> {
    match step {
        Step::Limit { says, .. } => says.as_deref(),
        Step::Unknown { name } => LIMITS.iter().copied().find(|word| name.ends_with(word)),
        _ => None,
    }
}

/// Expressions, and matches of iptables, that ask how much there was before.
const LIMITS: [&str; 6] = ["connlimit", "hashlimit", "limit", "quota", "recent", "connbytes"];

/// Says whether the words of a rule tell a limit.
fn limited(says: &str) -> bool {
    says.contains("ct count")
        || says.contains("rate")
        || LIMITS.iter().any(|word| says.contains(word))
}

/// Says whether a probe that a rule drops shows a fault. Many firewalls drop echo requests and let
/// all else through, and many take nothing from containers but questions for names.
fn says_all(asked: &Probe, hop: &Hop, place: &Place) -> bool {
    match asked {
        Probe::Name { .. } => true,
        Probe::Connect { .. } | Probe::NameByTcp { .. } => hop.back || place.hook != Hook::Input,
        Probe::Echo { .. }
        | Probe::EchoBy { .. }
        | Probe::RarePort { .. }
        | Probe::Size { .. }
        | Probe::HopsLeft { .. }
        | Probe::NameBelow { .. }
        | Probe::WhoHas { .. } => false,
    }
}

fn target(asked: &Probe) -> String {
    match asked {
        Probe::WhoHas { .. } => format!(" for {}", asked.whom()),
        _ => format!(" to {}", asked.whom()),
    }
}

/// Returns the rule that dropped a probe, as the kernel told it.
pub(super) fn dropped_at<'h>(look: Look<'_>, hop: &'h Hop) -> Option<(&'h Hop, Place, Layer)> {
    hop.dropped.as_ref()?;
    let (table, chain, handle) = hop.rule.as_ref()?;
    let namespace: &Namespace = match &hop.container {
        Some(id) => look.scene.container(id)?.inside.as_ref()?,
        None => &look.scene.host,
    };
    let is_table = |one: &&crate::model::filter::Table| {
        one.name == *table || format!("{} {}", one.family.as_str(), one.name) == *table
    };
    namespace.filter.tables.iter().filter(is_table).find_map(|table| {
        let chain = table.chains.iter().find(|one| one.name == *chain)?;
        let hook = chain.base.as_ref().map_or(Hook::Forward, |base| base.hook);
        let layer = match table.family {
            crate::model::filter::Family::Bridge => Layer::Bridge,
            crate::model::filter::Family::Arp => Layer::Arp,
            crate::model::filter::Family::Netdev => Layer::Device,
            _ => Layer::Ip,
        };
        // No rule has the handle 0: it is the policy.
        if *handle == 0 {
            return Some((hop, Place::of_policy(table, hook, &chain.name), layer));
        }
        let at = chain.rules.iter().position(|rule| rule.handle == *handle)?;
        let rule = chain.rules.get(at)?;
        let place = Place::of_rule(table, hook, [&chain.name, &chain.name], at, rule);
        let rejects = rule.steps.iter().any(|step| matches!(step, Step::Reject { .. }));
        let does = if rejects { "reject" } else { "drop" };
        let words = conditions(&rule.steps);
        let says = match words.is_empty() {
            true => does.to_owned(),
            false => format!("{}: {does}", words.join(", ")),
        };
        Some((hop, place.saying(says), layer))
    })
}
