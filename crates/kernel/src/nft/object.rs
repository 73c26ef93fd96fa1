//! Chains, sets, maps and elements to create.

use ipnet::IpNet;

use super::key::{Key, KeyType, Value};
use super::names::{Hook, TableRef, Verdict};

/// A chain to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewChain {
    /// Its table.
    pub table: TableRef,
    /// Its name.
    pub name: String,
    /// Its netfilter hook, if it is a base chain.
    pub hook: Option<Hook>,
    /// The comment that people read in a listing. Kernel: 5.10.
    pub comment: Option<String>,
}

impl NewChain {
    /// A chain that rules jump to.
    #[must_use]
    pub fn regular(table: &TableRef, name: impl Into<String>) -> Self {
        Self { table: table.clone(), name: name.into(), hook: None, comment: None }
    }

    /// A chain that the kernel calls.
    #[must_use]
    pub fn base(table: &TableRef, name: impl Into<String>, hook: Hook) -> Self {
        Self { hook: Some(hook), ..Self::regular(table, name) }
    }

    /// Adds a comment.
    #[must_use]
    pub fn comment(self, comment: impl Into<String>) -> Self {
        Self { comment: Some(comment.into()), ..self }
    }
}

/// A set or map to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSet {
    /// Its table.
    pub table: TableRef,
    /// Its name.
    pub name: String,
    /// The components of its keys.
    pub key: Vec<KeyType>,
    /// What it maps its keys to; `None`: a set.
    pub data: Option<MapData>,
    /// Keys may be ranges ([`Element::end`]).
    pub interval: bool,
    /// The comment that people read in a listing. Kernel: 5.10.
    pub comment: Option<String>,
}

/// What a map maps its keys to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MapData {
    /// Verdicts.
    Verdict,
    /// Values: one, or several concatenated ones.
    Values(Vec<KeyType>),
}

impl NewSet {
    /// A set.
    #[must_use]
    pub fn set(
        table: &TableRef,
        name: impl Into<String>,
        key: impl IntoIterator<Item = KeyType>,
    ) -> Self {
        Self {
            table: table.clone(),
            name: name.into(),
            key: key.into_iter().collect(),
            data: None,
            interval: false,
            comment: None,
        }
    }

    /// A map to values.
    #[must_use]
    pub fn map(
        table: &TableRef,
        name: impl Into<String>,
        key: impl IntoIterator<Item = KeyType>,
        data: impl IntoIterator<Item = KeyType>,
    ) -> Self {
        let data = Some(MapData::Values(data.into_iter().collect()));
        Self { data, ..Self::set(table, name, key) }
    }

    /// A map to verdicts.
    #[must_use]
    pub fn verdict_map(
        table: &TableRef,
        name: impl Into<String>,
        key: impl IntoIterator<Item = KeyType>,
    ) -> Self {
        Self { data: Some(MapData::Verdict), ..Self::set(table, name, key) }
    }

    /// Lets keys be ranges.
    #[must_use]
    pub fn interval(self) -> Self {
        Self { interval: true, ..self }
    }

    /// Adds a comment.
    #[must_use]
    pub fn comment(self, comment: impl Into<String>) -> Self {
        Self { comment: Some(comment.into()), ..self }
    }
}

/// An element of a set or map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// Its key, or the start of its range.
    pub key: Key,
    /// The end of its range, in a set or map of ranges.
    pub end: Option<RangeEnd>,
    /// What it maps to.
    pub data: Option<ElementData>,
    /// The comment, for people and for finding the owner; at most
    /// [`MAX_COMMENT`](super::MAX_COMMENT) bytes.
    pub comment: Option<String>,
}

/// The last key of a range. The kernel stores the two kinds differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RangeEnd {
    /// Of keys of one component.
    Single(Key),
    /// For concatenated keys: each component has a range of its own.
    Concatenated(Key),
}

/// What an element of a map maps to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElementData {
    /// Values.
    Value(Key),
    /// A verdict.
    Verdict(Verdict),
}

impl Element {
    /// An element of a set.
    #[must_use]
    pub fn new(key: impl Into<Key>) -> Self {
        Self { key: key.into(), end: None, data: None, comment: None }
    }

    /// A range of keys of one component, both ends included.
    #[must_use]
    pub fn range(first: impl Into<Key>, last: impl Into<Key>) -> Self {
        Self { end: Some(RangeEnd::Single(last.into())), ..Self::new(first) }
    }

    /// The addresses of a prefix.
    #[must_use]
    pub fn net(net: IpNet) -> Self {
        Self::range(Value::from(net.network()), Value::from(net.broadcast()))
    }

    /// A range in each component of the keys, both ends included.
    #[must_use]
    pub fn concatenated_range(first: impl Into<Key>, last: impl Into<Key>) -> Self {
        Self { end: Some(RangeEnd::Concatenated(last.into())), ..Self::new(first) }
    }

    /// An element of a map to values.
    #[must_use]
    pub fn value(key: impl Into<Key>, data: impl Into<Key>) -> Self {
        Self { data: Some(ElementData::Value(data.into())), ..Self::new(key) }
    }

    /// An element of a verdict map.
    #[must_use]
    pub fn verdict(key: impl Into<Key>, verdict: Verdict) -> Self {
        Self { data: Some(ElementData::Verdict(verdict)), ..Self::new(key) }
    }

    /// Adds a comment.
    #[must_use]
    pub fn comment(self, comment: impl Into<String>) -> Self {
        Self { comment: Some(comment.into()), ..self }
    }
}
