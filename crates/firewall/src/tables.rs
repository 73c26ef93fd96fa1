//! The kernel's side of our two tables, as small as we need it.

use std::fmt;

use ipnet::IpNet;

use crate::element::{Element, Field, Set};
use crate::masquerade::chain_name;

/// One change of our tables. A list of them is one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Make both tables, their sets, chains and rules as they should be, keeping what is in the sets.
    Layout,
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
    /// Says whether both tables are there and laid out by this version.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn is_laid_out(&mut self) -> Result<bool, TablesError>;

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

/// The tables of the network namespace the caller is in.
#[derive(Debug)]
pub(crate) struct NftTables;

impl NftTables {
    pub(crate) fn open() -> Result<Self, crate::FirewallError> {
        Err(crate::FirewallError::Open("kernel::nft is not there yet".into()))
    }
}

impl Tables for NftTables {
    fn is_laid_out(&mut self) -> Result<bool, TablesError> {
        Ok(false)
    }
    fn get(&mut self, _: Set, _: &[Field]) -> Result<Option<Found>, TablesError> {
        Ok(None)
    }
    fn list(&mut self, _: Set) -> Result<Vec<Found>, TablesError> {
        Ok(Vec::new())
    }
    fn jumps_to(&mut self, _: &str) -> Result<Option<usize>, TablesError> {
        Ok(None)
    }
    fn masquerade_chains(&mut self) -> Result<Vec<(String, usize)>, TablesError> {
        Ok(Vec::new())
    }
    fn commit(&mut self, _: &[Change]) -> Result<(), TablesError> {
        Ok(())
    }
    fn delete_tables(&mut self) -> Result<(), TablesError> {
        Ok(())
    }
}

/// Written as nft would be told.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Layout => f.write_str("make the tables"),
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
