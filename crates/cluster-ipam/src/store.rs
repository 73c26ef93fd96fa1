//! The state that all nodes share: records with revisions, and compare-and-swap.
//!
//! A [`Store`] is etcd or the Kubernetes API in `netwrightd`, and [`Memory`] in tests. It blocks.
//! Its answers are current: a write that finished before a request is in the answer (linearizable).
//!
//! [`StoreError::Away`] is the answer that makes this hard: the requested change may have happened,
//! may happen yet, or may never happen. Everything here is built so that all three do no harm: a
//! write names the revision that it replaces, and a writer that does not know the outcome of its
//! write reads before it goes on.

mod memory;
mod moments;
mod sure;

use std::fmt;

use serde_json::Value;
use thiserror::Error;

pub use memory::{Copy, Fault, Memory};
pub use moments::{Moment, Moments};
pub use sure::SureStore;

/// A kind of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// How a space is cut into blocks ([`SpaceRecord`](crate::record::SpaceRecord)).
    Space,
    /// The owner of a block ([`BlockRecord`](crate::record::BlockRecord)).
    Block,
    /// A node's lease ([`NodeRecord`](crate::record::NodeRecord)).
    Node,
    /// The addresses of a pod that keeps them ([`StickyRecord`](crate::record::StickyRecord)).
    Sticky,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Space, Kind::Block, Kind::Node, Kind::Sticky];

    /// Returns its name, of many.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Kind::Space => "spaces",
            Kind::Block => "blocks",
            Kind::Node => "nodes",
            Kind::Sticky => "sticky",
        }
    }
}

/// The name of a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its kind.
    pub kind: Kind,
    /// Its name among those of its kind; of a block, `<space>/<address>-<prefix length>`.
    pub name: String,
}

impl Key {
    /// Makes one.
    pub fn new(kind: Kind, name: impl Into<String>) -> Self {
        Key { kind, name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.plural(), self.name)
    }
}

/// The revision of a record: equal as long as the record is not written. Only its store can
/// interpret it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Revision(pub String);

/// A record as it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its name.
    pub key: Key,
    /// Its revision.
    pub revision: Revision,
    /// Its contents.
    pub value: Value,
}

/// Why a store operation failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StoreError {
    /// The record exists already, has another revision, or is gone. Nothing was done.
    #[error("another node was quicker")]
    Conflict,
    /// The outcome is unknown: it may have been done, or be done yet.
    #[error("the store does not answer: {0}")]
    Away(String),
    /// The store will not do it.
    #[error("the store refuses: {0}")]
    Refused(String),
}

/// Which records are listed. A store may return more: the caller checks their contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter<'a> {
    /// All of a kind.
    All,
    /// Blocks of a space.
    Space(&'a str),
    /// Blocks of a node.
    Node(&'a str),
}

/// Records that all nodes see.
pub trait Store: Send + Sync + fmt::Debug {
    /// Returns a record, if it exists.
    ///
    /// # Errors
    /// [`StoreError`], never [`StoreError::Conflict`].
    fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError>;

    /// Lists records of a kind.
    ///
    /// # Errors
    /// [`StoreError`], never [`StoreError::Conflict`].
    fn list(&self, kind: Kind, filter: Filter<'_>) -> Result<Vec<Entry>, StoreError>;

    /// Creates a record that must not exist.
    ///
    /// # Errors
    /// [`StoreError`].
    fn create(&self, key: &Key, value: &Value) -> Result<Revision, StoreError>;

    /// Replaces a record of this revision, or creates one that must not exist if there is none,
    /// provided that another one still has this revision. A store that was restored from a copy
    /// lacks what was written since, with any position that it reports.
    ///
    /// # Errors
    /// [`StoreError`]; [`StoreError::Conflict`] does not say which of the two it was.
    fn put_while(
        &self,
        key: &Key,
        was: Option<&Revision>,
        value: &Value,
        other: (&Key, &Revision),
    ) -> Result<Revision, StoreError>;

    /// Replaces a record of this revision.
    ///
    /// # Errors
    /// [`StoreError`].
    fn update(&self, key: &Key, was: &Revision, value: &Value) -> Result<Revision, StoreError>;

    /// Removes a record of this revision.
    ///
    /// # Errors
    /// [`StoreError`].
    fn delete(&self, key: &Key, was: &Revision) -> Result<(), StoreError>;

    /// Returns how often its answers were seen to go back, because it was restored from a copy.
    fn went_back(&self) -> u64 {
        0
    }

    /// Returns the position of its newest answer, if it reports one.
    fn moment(&self) -> Option<Moment> {
        None
    }

    /// Adopts the position that an earlier process saw.
    fn remember(&self, moment: &Moment) {
        let _ = moment;
    }

    /// Says whether a node is known to be gone and will not come back by itself: its object was
    /// deleted. Without such information it is not.
    ///
    /// # Errors
    /// [`StoreError`], never [`StoreError::Conflict`].
    fn is_gone(&self, node: &str) -> Result<bool, StoreError> {
        let _ = node;
        Ok(false)
    }
}
