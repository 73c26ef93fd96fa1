//! What services that change the kernel count, for metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use agent::metrics::Figure;

/// How many changes were made, refused by the kernel, and put back. Copies share the counts.
#[derive(Debug, Clone, Default)]
pub struct ChangeCounts(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    made: AtomicU64,
    refused: AtomicU64,
    put_back: AtomicU64,
}

impl ChangeCounts {
    /// A change was made, or the kernel refused it.
    pub fn changed(&self, made: bool) {
        let which = if made { &self.0.made } else { &self.0.refused };
        which.fetch_add(1, Ordering::Relaxed);
    }

    /// Something that another program had changed was put back.
    pub fn put_back(&self) {
        self.0.put_back.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts under these names.
    #[must_use]
    pub fn figures(&self, changes: &str, put_back: &str) -> [Figure; 3] {
        let counted = |which: &AtomicU64| which.load(Ordering::Relaxed);
        let by = |result: &str, which| Figure::new(changes, counted(which)).by("result", result);
        [
            by("made", &self.0.made),
            by("refused", &self.0.refused),
            Figure::new(put_back, counted(&self.0.put_back)),
        ]
    }
}
