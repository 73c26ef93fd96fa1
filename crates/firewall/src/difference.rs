//! What in the kernel is not as it should be.

use std::fmt;

use kernel::nft::Batch;

/// What in a table is not as it should be, and the transaction that repairs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    lines: Vec<String>,
    batch: Batch,
}

impl Difference {
    /// The transaction is empty if there are no lines, and only then.
    pub(crate) fn new(lines: Vec<String>, batch: Batch) -> Self {
        Difference { lines, batch }
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

    /// Returns the transaction that repairs them.
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
