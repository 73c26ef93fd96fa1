//! The kernel's side of our two tables, as small as we need it.

use std::fmt;

use ipnet::IpNet;

use crate::element::{Element, Field, Set, Table};
use crate::masquerade::chain_name;

/// One change of our tables. A list of them is one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Make a table, its sets, chains and rules as they should be, keeping what is in the sets.
    Layout(Table),
    /// Make the chain that masquerades what leaves a prefix of a network.
    AddMasquerade {
        /// The network's name.
        network: String,
        /// The prefix.
        prefix: IpNet,
    },
    /// Delete such a chain.
    DeleteMasquerade {
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
pub struct Found {
    /// The key.
    pub key: Vec<Field>,
    /// What it maps to.
    pub value: FoundValue,
    /// The comment; empty when there is none.
    pub comment: String,
}

/// What an element maps to, as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundValue {
    /// Nothing.
    Nothing,
    /// An address and a port.
    Endpoint(std::net::IpAddr, u16),
    /// A jump to a chain.
    Jump(String),
    /// Something that we do not put there.
    Foreign,
}

/// What we ask of the kernel about our tables, and tell it.
///
/// Absent tables, sets and chains are the same as empty ones. The caller holds the firewall's lock.
pub trait Tables: fmt::Debug {
    /// Says whether a table is there, in whatever layout.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn exists(&mut self, table: Table) -> Result<bool, TablesError>;

    /// Says whether a table is there and laid out by this version.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn is_laid_out(&mut self, table: Table) -> Result<bool, TablesError>;

    /// Looks one element up.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn get(&mut self, set: Set, key: &[Field]) -> Result<Option<Found>, TablesError>;

    /// Lists a set.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn list(&mut self, set: Set) -> Result<Vec<Found>, TablesError>;

    /// Returns how many elements jump to a masquerade chain; `None` when there is no such chain.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn jumps_to(&mut self, chain: &str) -> Result<Option<usize>, TablesError>;

    /// Lists the masquerade chains and how many elements jump to each.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn masquerade_chains(&mut self) -> Result<Vec<(String, usize)>, TablesError>;

    /// Carries changes out, all or none.
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
    /// What was tried.
    pub operation: String,
    /// Something that the request names was not there.
    pub absent: bool,
    /// The kernel's answer.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Written as nft would be told.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Layout(table) => write!(f, "lay out {table}"),
            Change::AddMasquerade { network, prefix } => {
                write!(f, "add chain inet netwright {}", chain_name(network, *prefix))?;
                write!(f, " # {network} {prefix}")
            }
            Change::DeleteMasquerade { chain } => {
                write!(f, "delete chain inet netwright {chain}")
            }
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
