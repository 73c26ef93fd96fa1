//! What in the kernel is not as it should be.

use std::fmt;

use kernel::nft::Batch;

/// What in a table is not as it should be, and the transaction that repairs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    lines: Vec<String>,
    first: Batch,
    batch: Batch,
}

impl Difference {
    /// There is nothing to do if and only if there are no lines.
    pub(crate) fn new(lines: Vec<String>, batch: Batch) -> Self {
        Difference { lines, first: Batch::new(), batch }
    }

    /// Adds a transaction before the one that repairs.
    pub(crate) fn after(self, first: Batch) -> Self {
        Difference { first, ..self }
    }

    /// Says whether all is as it should be.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Describes the differences, each in a line.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Returns the transaction that makes what the repair needs.
    pub(crate) fn first(&self) -> &Batch {
        &self.first
    }

    /// Returns the transaction that repairs them. Before it, another may make what it refers to.
    #[must_use]
    pub fn repair(&self) -> &Batch {
        &self.batch
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("; "))
    }
}
