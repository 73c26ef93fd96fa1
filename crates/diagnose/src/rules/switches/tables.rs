//! Tables of the kernel that are full, or nearly: of tracked connections in each namespace, and of
//! neighbours in all of them together.

use std::collections::BTreeSet;

use net::IpFamily;

use super::super::containers;
use crate::Look;
use crate::finding::{Finding, Severity, WayKind};
use crate::model::{Container, Namespace};
use crate::question::{Answer, Question};

/// What the kernel calls the end of a packet for which it could make no neighbour entry (linux
/// include/net/dropreason-core.h `SKB_DROP_REASON_NEIGH_CREATEFAIL`).
const NO_ENTRY: &str = "NEIGH_CREATEFAIL";

/// How full a table may be, in percent.
const PERCENT: u64 = 90;

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let host = &look.scene.host;
    let mut found: Vec<Finding> = conntrack(host, None).into_iter().collect();
    for container in containers(look) {
        let inside = container.inside.as_ref();
        found.extend(inside.and_then(|inside| conntrack(inside, Some(container))));
    }
    found.extend(neighbours(look, IpFamily::V4));
    found.extend(neighbours(look, IpFamily::V6));
    found
}

/// The kernel counts the connections of each namespace, and compares with one number for all (linux
/// net/netfilter/nf_conntrack_core.c `__nf_conntrack_alloc`).
fn conntrack(namespace: &Namespace, container: Option<&Container>) -> Option<Finding> {
    let table = namespace.conntrack?;
    let fill = Fill::of(table.count, table.max)?;
    let sysctl = "net.netfilter.nf_conntrack_max";
    let (object, whose) = match container {
        None => (sysctl.to_owned(), String::new()),
        Some(container) => {
            (format!("{}: {sysctl}", container.id), format!(" of {}", container.called()))
        }
    };
    let finding = match fill {
        Fill::All => Finding::error(
            "conntrack-full",
            object,
            format!(
                "the table of tracked connections{whose} is full, so new connections are dropped"
            ),
        )
        .breaks(WayKind::Outside, None)
        .breaks(WayKind::Published, None),
        Fill::Most => Finding::warning(
            "conntrack-full",
            object,
            format!("the table of tracked connections{whose} is nearly full"),
        ),
    };
    let finding = finding
        .seen(format!("{} of {} connections", table.count, table.max))
        .fix(format!("sysctl -w {sysctl}={}", table.max.saturating_mul(2)));
    Some(match container {
        None => finding,
        Some(container) => finding.hits(container.id.clone()),
    })
}

/// The kernel has one table of neighbours for all namespaces. If it is full, addresses that are not
/// in it are not resolved (linux net/core/neighbour.c `neigh_alloc`). Since Linux 5.0 configured
/// entries are in it and do not count. Not all of them are known here: those of namespaces that
/// belong to no container, and those that a routing program learnt. So this is a warning, unless a
/// probe ended for want of an entry.
fn neighbours(look: Look<'_>, family: IpFamily) -> Option<Finding> {
    let host = &look.scene.host;
    let version = match family {
        IpFamily::V4 => "ipv4",
        IpFamily::V6 => "ipv6",
    };
    let number = |name: &str| {
        let number = host.number(&format!("net.{version}.neigh.{name}"))?;
        u64::try_from(number).ok()
    };
    let (entries, most) = (number("entries")?, number("default.gc_thresh3")?);
    let insides = look.scene.containers.iter().filter_map(|one| one.inside.as_ref());
    let known = insides.chain([host]).flat_map(|namespace| &namespace.neighbours);
    let configured =
        known.filter(|one| one.permanent && IpFamily::of(one.address) == family).count();
    let entries = entries.saturating_sub(u64::try_from(configured).unwrap_or(u64::MAX));
    let fill = Fill::of(entries, most)?;
    let says = match fill {
        Fill::All => format!(
            "the table of {family} neighbours seems to be full: hardware addresses of others are then no longer found"
        ),
        Fill::Most => format!("the table of {family} neighbours is nearly full"),
    };
    let object = format!("net.{version}.neigh.default.gc_thresh3");
    let key = format!("net.{version}.neigh.default");
    let (second, third) = (most.saturating_mul(2), most.saturating_mul(4));
    let finding = Finding::warning("neighbour-table-full", object, says)
        .seen(format!(
            "{entries} entries in all namespaces, not counting those that are known to be configured; {most} are allowed"
        ))
        .fix(format!("sysctl -w {key}.gc_thresh3={third} {key}.gc_thresh2={second}"));
    let hits = if fill == Fill::All { without_entry(look, family) } else { Vec::new() };
    if hits.is_empty() {
        return Some(finding);
    }
    let finding = Finding { severity: Severity::Error, hits, ..finding }
        .seen("the kernel dropped a probe for want of an entry");
    let kinds = [WayKind::Gateway, WayKind::Outside, WayKind::Names, WayKind::FromNode];
    Some(kinds.into_iter().fold(finding, |finding, kind| finding.breaks(kind, Some(family))))
}

/// Returns the containers of which a probe ended because no neighbour entry could be made.
fn without_entry(look: Look<'_>, family: IpFamily) -> Vec<String> {
    let ended = |(question, answer): &(Question, Answer)| {
        let (Answer::Silent { hops } | Answer::Unreachable { hops, .. }) = answer else {
            return None;
        };
        let to = question.asked.destination()?;
        let mut ends = hops.iter().filter_map(|hop| hop.dropped.as_ref());
        let is_it = IpFamily::of(to) == family && ends.any(|(_, reason)| reason == NO_ENTRY);
        question.from.clone().filter(|_| is_it)
    };
    let mut all: BTreeSet<String> = BTreeSet::new();
    all.extend(look.answers.all.iter().filter_map(ended));
    all.into_iter().collect()
}

/// How full a table is, if that is worth a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fill {
    All,
    Most,
}

impl Fill {
    fn of(count: u64, max: u64) -> Option<Self> {
        if max == 0 || count.saturating_mul(100) < max.saturating_mul(PERCENT) {
            None
        } else if max <= count {
            Some(Fill::All)
        } else {
            Some(Fill::Most)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ConntrackTable, Neighbour, Scene};
    use crate::question::{Answers, Probe};

    fn told(scene: &Scene) -> Vec<String> {
        let answers = Answers::default();
        let found = judge(Look { scene, answers: &answers, only: None, to: None });
        found.into_iter().map(|one| format!("{:?} {}", one.severity, one.object)).collect()
    }

    #[test]
    fn a_table_of_connections_may_be_the_nodes_or_a_containers() {
        let table = |count| Some(ConntrackTable { count, max: 1000 });
        let mut scene = Scene::default();
        scene.host.conntrack = Some(ConntrackTable { count: 10, max: 262_144 });
        assert_eq!(told(&scene), [""; 0]);
        scene.host.conntrack = table(1000);
        assert_eq!(told(&scene), ["Error net.netfilter.nf_conntrack_max"]);
        scene.host.conntrack = table(950);
        assert_eq!(told(&scene), ["Warning net.netfilter.nf_conntrack_max"]);
        scene.host.conntrack = None;
        let inside = Namespace { conntrack: table(2000), ..Namespace::default() };
        let id = "c1".to_owned();
        scene.containers = vec![Container { id, inside: Some(inside), ..Container::default() }];
        assert_eq!(told(&scene), ["Error c1: net.netfilter.nf_conntrack_max"]);
    }

    #[test]
    fn a_table_of_neighbours_is_of_one_ip_version() {
        let mut scene = Scene::default();
        let mut put = |entries: &str| {
            let sysctls = &mut scene.host.sysctls;
            sysctls.insert("net.ipv6.neigh.entries".to_owned(), entries.to_owned());
            sysctls.insert("net.ipv6.neigh.default.gc_thresh3".to_owned(), "1024".to_owned());
            told(&scene)
        };
        assert_eq!(put("12"), [""; 0]);
        assert_eq!(put("1000"), ["Warning net.ipv6.neigh.default.gc_thresh3"]);
        assert_eq!(put("1024"), ["Warning net.ipv6.neigh.default.gc_thresh3"]);
        // Configured ones do not count.
        let permanent = |number: u16| Neighbour {
            link: 2,
            address: [0xfd00_u16, 0, 0, 0, 0, 0, 0, number].into(),
            mac: None,
            permanent: true,
            failed: false,
        };
        let neighbours: Vec<Neighbour> = (0..200).map(permanent).collect();
        let inside = Namespace { neighbours, ..Namespace::default() };
        scene.containers = vec![Container { inside: Some(inside), ..Container::default() }];
        assert_eq!(told(&scene), [""; 0]);
    }

    #[test]
    fn a_probe_shows_that_the_table_of_neighbours_is_full() {
        use crate::question::Hop;
        let mut scene = Scene::default();
        for (name, value) in [("entries", "1024"), ("default.gc_thresh3", "1024")] {
            scene.host.sysctls.insert(format!("net.ipv4.neigh.{name}"), value.to_owned());
        }
        let told = |reason: &str| {
            let hop = Hop {
                container: None,
                link: Some("cni0".to_owned()),
                dropped: Some(("ip_finish_output2".to_owned(), reason.to_owned())),
                rule: None,
                back: false,
            };
            let asked = Probe::Echo { to: "198.51.100.1".parse().unwrap() };
            let question = Question { from: Some("c1".to_owned()), asked };
            let answers = Answers { all: vec![(question, Answer::Silent { hops: vec![hop] })] };
            let found = judge(Look { scene: &scene, answers: &answers, only: None, to: None });
            found.into_iter().map(|one| (one.severity, one.hits.join(" "))).collect::<Vec<_>>()
        };
        assert_eq!(told("NEIGH_FAILED"), [(Severity::Warning, String::new())]);
        assert_eq!(told(NO_ENTRY), [(Severity::Error, "c1".to_owned())]);
    }
}
