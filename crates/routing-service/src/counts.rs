//! What the service counts, for metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agent::metrics::Figure;
use service_kit::counts::ChangeCounts;

use super::answers::SharedRouting;

/// What the loop counts while it works; copies share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    /// Changes of the kernel.
    pub(super) changes: ChangeCounts,
    looks: Arc<LookCounts>,
}

#[derive(Debug, Default)]
struct LookCounts {
    looks: AtomicU64,
    /// How long the last look took, in milliseconds.
    last_ms: AtomicU64,
}

impl Counts {
    /// Counts a look at everything, and how long it took.
    pub(super) fn looked(&self, took: Duration) {
        self.looks.looks.fetch_add(1, Ordering::Relaxed);
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.looks.last_ms.store(millis, Ordering::Relaxed);
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
    let mut figures: Vec<Figure> = nodes.collect();
    let [objects, blocks] = [objects, blocks].map(|count| u64::try_from(count).unwrap_or(u64::MAX));
    figures.extend([
        Figure::new("netwright_routing_blocks", blocks),
        Figure::new("netwright_routing_objects", objects),
        Figure::new("netwright_routing_source_silent", u64::from(is_silent)),
    ]);
    figures.extend(
        counts
            .changes
            .figures("netwright_routing_changes_total", "netwright_routing_put_back_total"),
    );
    let counted = |which: &AtomicU64| which.load(Ordering::Relaxed);
    figures.extend([
        Figure::new("netwright_routing_looks_total", counted(&counts.looks.looks)),
        Figure::new("netwright_routing_look_seconds", counted(&counts.looks.last_ms)),
    ]);
    let mtu = table.pod_mtu.map(u64::from);
    figures.extend(mtu.map(|mtu| Figure::new("netwright_routing_pod_mtu_bytes", mtu)));
    figures
}
