//! Which rule judged a packet, by the packet filter's trace.

use diagnose::Hop;
use diagnose::model::Scene;
use kernel::nft::trace::{Flow, TraceStep};

use super::{Place, chain, counted, on_the_way};

/// The kernel's function that asks the rules, and its name for a packet that they drop.
const FUNCTION: &str = "nft_do_chain";
const REASON: &str = "NETFILTER_DROP";
/// Reasons that say nothing else: a kernel may give none.
const OF_FILTERS: [&str; 3] = [REASON, "NOT_SPECIFIED", ""];

/// The trace of a namespace's packet filter.
#[derive(Debug)]
pub(super) struct FilterTrace<'s> {
    /// The namespace.
    pub(super) place: Place<'s>,
    /// What was done to packets.
    pub(super) judged: Vec<TraceStep>,
}

/// Adds to a packet's hops the rule that dropped it, or its answer. Without tracepoints, also adds
/// the namespaces that the packet passed.
pub(super) fn add(
    hops: &mut Vec<Hop>,
    scene: &Scene,
    from: Place<'_>,
    flows: &[Flow],
    heard: &[FilterTrace<'_>],
) {
    let mut ordered = on_the_way(heard, from, |one| one.place);
    for back in [false, true] {
        let is_traced = hops.iter().any(|hop| hop.back == back);
        for one in &ordered {
            let is_own =
                |judged: &&TraceStep| flows.iter().any(|flow| judged.of_flow(flow) == Some(back));
            let own: Vec<&TraceStep> = one.judged.iter().filter(is_own).collect();
            let Some(first) = own.first() else { continue };
            let link = |judged: &TraceStep| {
                let inside = chain::namespace(scene, one.place)?;
                Some(inside.link_of(judged.ifindex_in.or(judged.ifindex_out)?)?.name.clone())
            };
            let hop = |judged: &TraceStep| Hop {
                container: one.place.map(str::to_owned),
                link: link(judged),
                dropped: None,
                rule: None,
                back,
            };
            match own.iter().find(|judged| judged.is_drop()) {
                Some(end) => drop_at(hops, hop(end), end),
                None if !is_traced => push(hops, hop(first)),
                None => {}
            }
        }
        ordered.reverse();
    }
}

/// Records the rule that dropped a packet: at the hop that is known, or else at this one.
fn drop_at(hops: &mut Vec<Hop>, hop: Hop, end: &TraceStep) {
    let table = end.table.to_string();
    let rule = Some((table, end.chain.clone(), end.rule.unwrap_or_default()));
    let is_there = |one: &&mut Hop| one.back == hop.back && one.dropped.is_some();
    match hops.iter_mut().find(is_there) {
        Some(known) => {
            let is_by_filter = known.container == hop.container
                && known
                    .dropped
                    .as_ref()
                    .is_some_and(|(_, reason)| OF_FILTERS.contains(&reason.as_str()));
            if is_by_filter {
                known.rule = rule;
                if known.dropped.as_ref().is_some_and(|(by, _)| by == counted::FUNCTION) {
                    known.dropped = Some((FUNCTION.to_owned(), REASON.to_owned()));
                }
            }
        }
        None => {
            let dropped = Some((FUNCTION.to_owned(), REASON.to_owned()));
            push(hops, Hop { dropped, rule, ..hop });
        }
    }
}

/// Adds a hop behind the others in its direction.
fn push(hops: &mut Vec<Hop>, hop: Hop) {
    let behind = match hop.back {
        true => hops.len(),
        false => hops.iter().position(|one| one.back).unwrap_or(hops.len()),
    };
    hops.insert(behind, hop);
}

#[cfg(test)]
mod tests {
    use super::*;
    use diagnose::model::{Container, Link, Namespace};
    use kernel::nflog::Packet;
    use kernel::nft::trace::Protocol;
    use kernel::nft::{Family, TableRef, Verdict};

    fn scene() -> Scene {
        let link = |index, name: &str| Link { index, name: name.to_owned(), ..Link::default() };
        let inside = Namespace { links: vec![link(2, "eth0")], ..Namespace::default() };
        let container =
            Container { id: "c1".to_owned(), inside: Some(inside), ..Container::default() };
        let mut scene = Scene { containers: vec![container], ..Scene::default() };
        scene.host.links = vec![link(3, "cni0"), link(4, "up0")];
        scene
    }

    fn flow() -> Flow {
        Flow {
            protocol: Protocol::Tcp,
            source: "10.88.0.2".parse().unwrap(),
            source_port: 40_000,
            destination: "198.51.100.1".parse().unwrap(),
            destination_port: 80,
        }
    }

    /// A packet of the flow, or of its answer, which the rule with handle 7 judges.
    fn judged(verdict: Verdict, back: bool) -> TraceStep {
        let mut header = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
        let mut ends = [[10_u8, 88, 0, 2], [198, 51, 100, 1]];
        let mut ports = [[0x9c_u8, 0x40], [0, 80]];
        if back {
            ends.reverse();
            ports.reverse();
        }
        header.extend(ends.concat());
        header.extend(ports.concat());
        TraceStep {
            table: TableRef::new(Family::Inet, "foreign"),
            chain: "forward".to_owned(),
            rule: Some(7),
            verdict: Some(verdict),
            ifindex_in: Some(if back { 4 } else { 3 }),
            ifindex_out: None,
            packet: Packet::read(&header),
            identifier: None,
        }
    }

    fn hop(link: &str, reason: Option<&str>) -> Hop {
        Hop {
            container: None,
            link: Some(link.to_owned()),
            dropped: reason.map(|reason| ("nft_do_chain".to_owned(), reason.to_owned())),
            rule: None,
            back: false,
        }
    }

    fn added(mut hops: Vec<Hop>, judged: Vec<TraceStep>) -> Vec<Hop> {
        let heard = [FilterTrace { place: None, judged }];
        add(&mut hops, &scene(), Some("c1"), &[flow()], &heard);
        hops
    }

    fn rule() -> Option<(String, String, u64)> {
        Some(("inet foreign".to_owned(), "forward".to_owned(), 7))
    }

    #[test]
    fn the_rule_is_told_where_tracepoints_saw_the_end() {
        let known = vec![hop("cni0", Some("NETFILTER_DROP"))];
        let told = added(known.clone(), vec![judged(Verdict::Drop, false)]);
        assert_eq!(told, [Hop { rule: rule(), ..known[0].clone() }]);
        // It ended elsewhere: another packet was dropped by the rule.
        let elsewhere = vec![hop("up0", Some("QDISC_DROP"))];
        assert_eq!(added(elsewhere.clone(), vec![judged(Verdict::Drop, false)]), elsewhere);
    }

    #[test]
    fn rules_alone_tell_the_namespace_and_the_end() {
        let told = added(Vec::new(), vec![judged(Verdict::Accept, false)]);
        assert_eq!(told, [hop("cni0", None)]);
        let told =
            added(Vec::new(), vec![judged(Verdict::Accept, false), judged(Verdict::Drop, true)]);
        let end = Hop { rule: rule(), back: true, ..hop("up0", Some("NETFILTER_DROP")) };
        assert_eq!(told, [hop("cni0", None), end]);
    }

    #[test]
    fn packets_of_others_say_nothing() {
        let other = Flow { source_port: 40_001, ..flow() };
        let heard = [FilterTrace { place: None, judged: vec![judged(Verdict::Drop, false)] }];
        let mut hops = Vec::new();
        add(&mut hops, &scene(), Some("c1"), &[other], &heard);
        assert_eq!(hops, []);
    }
}
