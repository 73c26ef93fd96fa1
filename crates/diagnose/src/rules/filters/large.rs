//! Rules that drop packets for their size. What vanishes is shown by a probe; that such a rule is on
//! the way, by the rule.

use std::net::IpAddr;

use net::IpFamily;

use super::{fix, source};
use crate::Look;
use crate::filter::{End, Payload, Place, Port};
use crate::finding::{Finding, WayKind};
use crate::model::filter::{Header, Meta, Step, Table};
use crate::model::{Container, Namespace, Transport};
use crate::path::{Site, carries, echo};
use crate::question::{Answer, Probe};
use crate::whose;

/// NFT_META_LEN (linux include/uapi/linux/netfilter/nf_tables.h).
const META_LENGTH: u32 = 0;

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (question, answer) in &look.answers.all {
        let (Probe::Size { to, .. }, Answer::UpTo { answered, lost }) = (&question.asked, answer)
        else {
            continue;
        };
        let container = question.from.as_deref().and_then(|id| look.scene.container(id));
        let Some(container) = container else { continue };
        let Some(place) = asked(look, container, *to, tcp()) else { continue };
        let called = container.called();
        let says = format!(
            "{} drops packets of {called} to {to} that are larger than {answered} bytes",
            place.name()
        );
        let finding = Finding::error("forward-dropped", place.name(), says)
            .at(place.to_string())
            .seen(format!("{answered} bytes were answered and {lost} were not"))
            .hits(container.id.clone())
            .breaks(WayKind::Outside, Some(IpFamily::of(*to)));
        let finding = Finding { whose: whose::of_place(&place, look.scene), ..finding };
        found.push(fix::removal(&place, None).into_iter().fold(finding, Finding::help));
    }
    found
}

/// Says whether a rule of the node drops large echo requests of a container, and lets large packets of
/// TCP pass.
pub(in crate::rules) fn is_of_echo_alone(
    look: Look<'_>,
    container: &Container,
    to: IpAddr,
) -> bool {
    asked(look, container, to, echo(to)).is_some() && asked(look, container, to, tcp()).is_none()
}

/// A connection to a port that large packets go to (IANA: `https`).
fn tcp() -> Payload {
    carries(Transport::Tcp, Port::Is(443))
}

/// Returns the rule that may drop a container's packets to an address for their size.
fn asked(look: Look<'_>, container: &Container, to: IpAddr, with: Payload) -> Option<Place> {
    let host = &look.scene.host;
    let mut sites = Site::all(look.scene, container, IpFamily::of(to));
    let walked = sites.find_map(|site| source::through(look, &site, to, with))?;
    walked.into_iter().find_map(|walked| match walked.end {
        End::Unknown(place) if asks_for_size(host, &place) => Some(place),
        _ => None,
    })
}

fn asks_for_size(host: &Namespace, place: &Place) -> bool {
    if place.legacy {
        return place.says.contains("-m length");
    }
    let Some((_, handle)) = place.rule else { return false };
    let is_table =
        |table: &&Table| table.name == place.table && table.family.as_str() == place.family;
    host.filter.tables.iter().filter(is_table).any(|table| {
        let chains = table.chains.iter().filter(|chain| chain.name == place.chain);
        let mut rules = chains.flat_map(|chain| &chain.rules).filter(|one| one.handle == handle);
        rules.any(|rule| rule.steps.iter().any(is_size))
    })
}

/// The length of a packet, or that in the header of IPv4 or IPv6; or the match of iptables.
fn is_size(step: &Step) -> bool {
    match step {
        Step::Meta { key: Meta::Other(META_LENGTH), .. } => true,
        Step::Payload { base: Header::Network, offset: 2 | 4, len: 2, .. } => true,
        Step::Unknown { name } => name == "length",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::model::Scene;
    use crate::model::filter::{Comparison, Family as Kin, Hook};

    use super::*;
    use crate::filter::samples::{base, drop, protocol, rule, table};
    use crate::path::samples::{ip, node, with};
    use crate::question::{Answers, Question};

    /// A rule that drops packets of more than 1300 bytes, of these.
    fn limits(of: Vec<Step>) -> Scene {
        let large = vec![
            Step::Meta { key: Meta::Other(META_LENGTH), to: 0 },
            Step::Compare { op: Comparison::Greater, from: 0, with: vec![0, 0, 5, 20] },
        ];
        let rules = vec![rule(&[of, large, drop()])];
        with(node(), table(Kin::Ip, "own", vec![base("forward", Hook::Forward, 0, rules)]))
    }

    /// The rules that are told, and whether only echo requests are meant.
    fn told(scene: &Scene) -> (Vec<String>, bool) {
        let to = ip("198.51.100.1");
        let asked = Probe::Size { to, up_to: 1500 };
        let question = Question { from: Some("c2".to_owned()), asked };
        let lost = Answer::UpTo { answered: 1300, lost: 1301 };
        let answers = Answers { all: vec![(question, lost)] };
        let look = Look { scene, answers: &answers, only: None, to: None };
        let objects = judge(look).into_iter().map(|one| one.object).collect();
        (objects, is_of_echo_alone(look, &scene.containers[0], to))
    }

    #[test]
    fn a_rule_that_drops_large_packets() {
        assert_eq!(told(&node()), (vec![], false));
        let all = limits(Vec::new());
        assert_eq!(told(&all), (vec!["ip own/forward rule 1".to_owned()], false));
        assert_eq!(told(&limits(protocol(1))), (vec![], true));
        // What else may drop says nothing of sizes.
        let mut other = limits(Vec::new());
        other.host.filter.tables[0].chains[0].rules[0].steps[0] =
            Step::Meta { key: Meta::Other(99), to: 0 };
        assert_eq!(told(&other), (vec![], false));
    }
}
