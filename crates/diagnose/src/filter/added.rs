//! Rules that are not there, so that it can be asked what they would change.

use super::place::Place;
use crate::model::filter::{Rule, Table};

/// A filter with changes that nobody has made.
#[derive(Debug, Clone, Copy, Default)]
pub struct Change<'c> {
    /// Places whose base chains are left out.
    pub without: &'c [Place],
    /// Rules of the node that are left out.
    pub ignored: &'c [Place],
    /// Rules besides those that are there.
    pub added: &'c [AddedRule],
}

/// A rule besides those that are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedRule {
    /// The ID of the container in whose namespace it is; `None`: the node's.
    pub(crate) inside: Option<String>,
    /// The family, as [`Place`] has it.
    pub(crate) family: &'static str,
    pub(crate) table: String,
    pub(crate) chain: String,
    /// How many rules of the chain come before it.
    pub(crate) index: usize,
    pub(crate) rule: NewRule,
}

/// A rule as its table has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NewRule {
    /// Of nftables.
    Steps(Rule),
    /// Of the older iptables: the whole line.
    Text(String),
}

impl AddedRule {
    /// Returns the rule if it comes into a chain of nftables, after so many others.
    pub(crate) fn of_nftables(&self, table: &Table, chain: &str, index: usize) -> Option<&Rule> {
        let is_here = self.family == table.family.as_str() && self.is_at(&table.name, chain, index);
        match &self.rule {
            NewRule::Steps(rule) if is_here => Some(rule),
            _ => None,
        }
    }

    /// Returns the rule if it comes into a chain of the older iptables, after so many others.
    pub(crate) fn of_iptables(
        &self,
        [family, table, chain]: [&str; 3],
        index: usize,
    ) -> Option<&str> {
        match &self.rule {
            NewRule::Text(text) if self.family == family && self.is_at(table, chain, index) => {
                Some(text)
            }
            _ => None,
        }
    }

    fn is_at(&self, table: &str, chain: &str, index: usize) -> bool {
        self.table == table && self.chain == chain && self.index == index
    }
}
