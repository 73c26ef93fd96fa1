//! What the service counts, for metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use agent::metrics::Figure;
use policy::program::OPEN;
use policy::{Direction, PolicyId};
use service_kit::counts::ChangeCounts;

use super::log::Counters;
use super::records::Attachment;
use super::shared::SharedEngine;

/// What is counted while work is done; copies share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    /// Transactions.
    pub(super) changes: ChangeCounts,
    cuts: Arc<AtomicU64>,
}

impl Counts {
    /// Counts connections that were ended.
    pub(super) fn cut(&self, count: usize) {
        self.cuts.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Returns what is known, and what was counted.
pub(super) fn figures(shared: &SharedEngine, counts: &Counts, counters: &Counters) -> Vec<Figure> {
    let mut figures = of_engine(shared);
    figures.extend(
        counts
            .changes
            .figures("netwright_policy_transactions_total", "netwright_policy_put_back_total"),
    );
    let cuts = counts.cuts.load(Ordering::Relaxed);
    figures.push(Figure::new("netwright_policy_cuts_total", cuts));
    if let Some(dropped) = counters.dropped() {
        let drops = [
            ("ingress", dropped.incoming),
            ("egress", dropped.outgoing),
            ("revived", dropped.revived),
        ];
        figures.extend(drops.map(|(direction, count)| {
            Figure::new("netwright_policy_drops_total", count).by("direction", direction)
        }));
    }
    figures
}

fn of_engine(shared: &SharedEngine) -> Vec<Figure> {
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let engine = shared.engine();
    let world = engine.world();
    let of = |kind: fn(&PolicyId) -> bool| {
        number(world.policies().filter(|policy| kind(&policy.id)).count())
    };
    let policies = [
        ("NetworkPolicy", of(|id| matches!(id, PolicyId::Network { .. }))),
        ("ClusterNetworkPolicy", of(|id| matches!(id, PolicyId::Cluster { .. }))),
        ("MultiNetworkPolicy", number(engine.networks().policies().count())),
        (
            "isolation",
            of(|id| matches!(id, PolicyId::Isolation { .. } | PolicyId::DefaultDeny { .. })),
        ),
    ];
    let (mut judged, mut open, mut closed) = (0, 0, 0);
    let own = world.pods_on(engine.node()).flat_map(|pod| pod.own_addresses().iter().copied());
    let recorded = engine.attachments().flat_map(|one| one.own().iter().copied());
    let addresses: std::collections::BTreeSet<_> = own.chain(recorded).collect();
    for address in addresses {
        let leads = |direction| {
            engine
                .program()
                .is_some_and(|program| program.verdicts.contains_key(&(direction, address)))
        };
        if engine.is_closed(address) {
            closed += 1;
        } else if Direction::ALL.into_iter().any(leads) {
            judged += 1;
        } else {
            open += 1;
        }
    }
    for inside in engine.attachments().filter(|one| one.inside.is_some()) {
        if engine.is_closed_inside(inside) {
            closed += 1;
        } else if engine.networks().is_judged_inside(&inside.key()) {
            judged += 1;
        } else {
            open += 1;
        }
    }
    for link in engine.attachments().flat_map(Attachment::links) {
        let is_judged = |direction| {
            let chain = engine.networks().leads(direction, &link);
            chain.is_some_and(|chain| chain != OPEN)
        };
        if engine.is_closed_link(&link) {
            closed += 1;
        } else if Direction::ALL.into_iter().any(is_judged) {
            judged += 1;
        } else {
            open += 1;
        }
    }
    let local = [("judged", judged), ("open", open), ("closed", closed)];
    let policies = policies
        .map(|(kind, count)| Figure::new("netwright_policy_policies", count).by("kind", kind));
    let local = local
        .map(|(state, count)| Figure::new("netwright_policy_local_pods", count).by("state", state));
    let mut figures: Vec<Figure> = policies.into_iter().chain(local).collect();
    figures.extend([
        Figure::new("netwright_policy_pods", number(world.pods().count())),
        Figure::new("netwright_policy_refused_objects", number(engine.faults().len())),
        Figure::new("netwright_policy_held_objects", number(engine.held().len())),
        Figure::new("netwright_policy_source_silent", u64::from(engine.silence().is_some())),
    ]);
    figures
}
