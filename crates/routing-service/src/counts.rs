//! What the service counts, for metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agent::metrics::Figure;

use super::answers::SharedRouting;

/// What the loop counts while it works; copies share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    made: AtomicU64,
    refused: AtomicU64,
    put_back: AtomicU64,
    looks: AtomicU64,
    /// How long the last look took, in milliseconds.
    look_ms: AtomicU64,
}

impl Counts {
    /// A change of the kernel was made, or the kernel refused it.
    pub(super) fn changed(&self, made: bool) {
        let which = if made { &self.0.made } else { &self.0.refused };
        which.fetch_add(1, Ordering::Relaxed);
    }

    /// Something that another program had changed was put back.
    pub(super) fn put_back(&self) {
        self.0.put_back.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a look at everything, and how long it took.
    pub(super) fn looked(&self, took: Duration) {
        self.0.looks.fetch_add(1, Ordering::Relaxed);
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.0.look_ms.store(millis, Ordering::Relaxed);
    }
}

/// Returns what is known of the nodes, and what was counted.
pub(super) fn figures(shared: &SharedRouting, counts: &Counts) -> Vec<Figure> {
    let (table, objects, blocks, is_silent) = {
        let routing = shared.routing();
        let is_silent = routing.cluster().silent_since().is_some();
        let blocks = routing.cluster().block_prefixes().count();
        (routing.table(), routing.observed().objects().len(), blocks, is_silent)
    };
    let mut nodes: BTreeMap<(String, &str), u64> = BTreeMap::new();
    for row in &table.rows {
        let family = row.family.map_or_else(|| "none".to_owned(), |family| family.to_string());
        *nodes.entry((family, row.state.name())).or_default() += 1;
    }
    let nodes = nodes.into_iter().map(|((family, state), count)| {
        Figure::new("netwright_routing_nodes", count).by("family", &family).by("state", state)
    });
    let counted = |which: &AtomicU64| which.load(Ordering::Relaxed);
    let changes = |result: &str, which: &AtomicU64| {
        Figure::new("netwright_routing_changes_total", counted(which)).by("result", result)
    };
    let mut figures: Vec<Figure> = nodes.collect();
    let [objects, blocks] = [objects, blocks].map(|count| u64::try_from(count).unwrap_or(u64::MAX));
    figures.extend([
        Figure::new("netwright_routing_blocks", blocks),
        Figure::new("netwright_routing_objects", objects),
        Figure::new("netwright_routing_source_silent", u64::from(is_silent)),
        changes("made", &counts.0.made),
        changes("refused", &counts.0.refused),
        Figure::new("netwright_routing_put_back_total", counted(&counts.0.put_back)),
        Figure::new("netwright_routing_looks_total", counted(&counts.0.looks)),
        Figure::new("netwright_routing_look_seconds", counted(&counts.0.look_ms)),
    ]);
    let mtu = table.pod_mtu.map(u64::from);
    figures.extend(mtu.map(|mtu| Figure::new("netwright_routing_pod_mtu_bytes", mtu)));
    figures
}
