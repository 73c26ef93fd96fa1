//! The part of the kernel's interface to our two tables that we need.
//!
//! After the last DEL of a runtime the empty tables stay. To make them again takes 3 ms, and a
//! process that deletes a base chain waits for the kernel. `netwright gc --all`, `uninstall` and
//! the end of the last `netwright run` remove them.

use std::collections::BTreeSet;
use std::fmt;

use kernel::netlink::NetlinkError;
use kernel::nft::NftError;

use crate::element::{Element, Field, Set, Table};
use crate::masquerade::Outbound;

/// One change of our tables. A list of them is one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Create a table, its sets, chains and rules as they should be, keeping the contents of sets.
    Layout(Table),
    /// Create the chain that masquerades what leaves a prefix of a network.
    AddMasquerade(Outbound),
    /// Delete a chain and its rules.
    DeleteChain {
        /// The chain's table.
        table: Table,
        /// The chain's name.
        chain: String,
    },
    /// Add an element.
    AddElement {
        /// The element.
        element: Element,
        /// Whose it is; see [`Owner`](crate::owner::Owner).
        comment: String,
    },
    /// Delete an element.
    DeleteElement {
        /// The set.
        set: Set,
        /// The key.
        key: Vec<Field>,
    },
}

/// An element as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedElement {
    /// The key.
    pub key: Vec<Field>,
    /// What it maps to.
    pub value: ObservedValue,
    /// The comment; empty when there is none.
    pub comment: String,
}

/// What an element maps to, as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObservedValue {
    /// Nothing.
    Nothing,
    /// An address and a port.
    Endpoint(std::net::IpAddr, u16),
    /// A jump to a chain.
    Jump(String),
    /// A value that we do not write there.
    Foreign,
}

/// What is not as it should be of a table of ours, besides its elements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Alteration {
    /// It is dormant: it sees no packets.
    pub dormant: bool,
    /// Its chains that are at another hook, or have another priority or policy.
    pub hooks: BTreeSet<String>,
    /// Its chains that have other rules, or are missing.
    pub rules: BTreeSet<String>,
    /// Chains of others in it that are at a hook.
    pub foreign: BTreeSet<String>,
}

impl Alteration {
    /// Describes each difference.
    #[must_use]
    pub fn describe(&self, table: Table) -> Vec<String> {
        let dormant = self.dormant.then(|| format!("table {table} is dormant: it sees no packets"));
        let hooks = self.hooks.iter().map(|chain| {
            format!("chain {chain} of table {table} is at another hook, or has another policy")
        });
        let rules = self
            .rules
            .iter()
            .map(|chain| format!("chain {chain} of table {table} has other rules"));
        let foreign = self.foreign.iter();
        let foreign = foreign.map(|chain| format!("foreign: chain {chain} of table {table}"));
        dormant.into_iter().chain(hooks).chain(rules).chain(foreign).collect()
    }
}

/// The kernel operations on our tables.
///
/// Absent tables, sets and chains count as empty. The caller holds the firewall's lock.
pub trait Tables: fmt::Debug {
    /// Says whether a table exists, in any layout.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn exists(&mut self, table: Table) -> Result<bool, TablesError>;

    /// Says whether a table exists with this version's layout and sees packets: by its chains,
    /// their hooks and the number of their rules.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn is_laid_out(&mut self, table: Table) -> Result<bool, TablesError>;

    /// Compares a table with this version's layout, rule by rule; also these masquerade chains:
    /// networks and prefixes. Looks for chains of others at hooks. `None` if there is no table.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn altered(
        &mut self,
        table: Table,
        masquerades: &BTreeSet<Outbound>,
    ) -> Result<Option<Alteration>, TablesError>;

    /// Looks one element up.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn get(&mut self, set: Set, key: &[Field]) -> Result<Option<ObservedElement>, TablesError>;

    /// Lists a set.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn list(&mut self, set: Set) -> Result<Vec<ObservedElement>, TablesError>;

    /// Returns how many elements jump to a masquerade chain; `None` if the chain does not exist.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn jumps_to(&mut self, chain: &str) -> Result<Option<usize>, TablesError>;

    /// Lists the masquerade chains and how many elements jump to each.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn masquerade_chains(&mut self) -> Result<Vec<(String, usize)>, TablesError>;

    /// Commits changes, all or none.
    ///
    /// # Errors
    /// When the kernel refuses; nothing has changed then.
    fn commit(&mut self, changes: &[Change]) -> Result<(), TablesError>;

    /// Deletes both tables with everything in them. Success when they are gone already.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn delete_tables(&mut self) -> Result<(), TablesError>;
}

/// The kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("{operation}")]
pub struct TablesError {
    /// The attempted operation.
    pub operation: String,
    /// Something that the request names did not exist.
    pub absent: bool,
    /// The kernel's answer.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

impl TablesError {
    /// The kernel did not say what there is.
    pub(crate) fn read(what: impl fmt::Display, source: NetlinkError) -> Self {
        let absent = source.is_not_found();
        TablesError { operation: format!("read {what}"), absent, source: Box::new(source) }
    }

    /// The kernel did not commit a transaction.
    pub(crate) fn change(what: impl fmt::Display, source: NftError) -> Self {
        let absent = source.is_not_found();
        TablesError { operation: format!("change {what}"), absent, source: Box::new(source) }
    }

    /// Says whether the kernel refused to delete what is still referred to.
    pub(crate) fn is_busy(&self) -> bool {
        let error: Option<&NftError> = self.source.downcast_ref();
        error.is_some_and(NftError::is_busy)
    }
}

/// Written as an nft command.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Layout(table) => write!(f, "lay out {table}"),
            Change::AddMasquerade(outbound) => {
                let Outbound { network, prefix, source } = outbound;
                write!(f, "add chain inet netwright {}", outbound.chain_name())?;
                write!(f, " # {network} {prefix}")?;
                source.map_or(Ok(()), |source| write!(f, " by {source}"))
            }
            Change::DeleteChain { table, chain } => write!(f, "delete chain {table} {chain}"),
            Change::AddElement { element, comment } => {
                write!(f, "add element {element} # {comment}")
            }
            Change::DeleteElement { set, key } => {
                let element = Element::new(*set, key.clone());
                write!(f, "delete element {element}")
            }
        }
    }
}
