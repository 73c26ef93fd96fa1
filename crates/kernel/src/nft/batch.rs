//! A transaction as a value.

use std::fmt;

use super::names::TableRef;
use super::object::{Element, NewChain, NewSet};
use super::rule::NewRule;

/// A transaction: either all of its operations are done, or none.
///
/// Its operations are plain values ([`Batch::operations`]) that print like nft's commands, so that
/// a plan can be tested without a kernel. Names are those of nft: *add* accepts an object that
/// exists already, *create* does not; *delete* fails for a missing object, *destroy* does not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    operations: Vec<Operation>,
    generation: Option<u32>,
}

/// Whether an object may exist already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It may exist (`add`).
    Add,
    /// It must not: EEXIST (`create`).
    Create,
}

/// One operation of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Creates a table.
    AddTable {
        /// Which.
        table: TableRef,
        /// The comment that people read in a listing. Kernel: 5.10.
        comment: Option<String>,
        /// Whether it may exist.
        mode: Mode,
    },
    /// Creates a table that only the socket which creates it may change, and that is removed when
    /// that socket is closed (NFT_TABLE_F_OWNER); it must not exist. Kernel: 5.12.
    AddOwnTable {
        /// Which.
        table: TableRef,
    },
    /// Lets a table see packets again that was switched off (NFT_TABLE_F_DORMANT).
    WakeTable {
        /// Which.
        table: TableRef,
    },
    /// Removes a table with everything in it.
    DeleteTable {
        /// Which.
        table: TableRef,
    },
    /// Creates a chain.
    AddChain {
        /// Which.
        chain: NewChain,
        /// Whether it may exist.
        mode: Mode,
    },
    /// Removes an empty chain that nothing jumps to.
    DeleteChain {
        /// Its table.
        table: TableRef,
        /// Its name.
        chain: String,
    },
    /// Removes all rules of a chain.
    FlushChain {
        /// Its table.
        table: TableRef,
        /// Its name.
        chain: String,
    },
    /// Creates a set or map.
    AddSet {
        /// Which.
        set: NewSet,
        /// Whether it may exist.
        mode: Mode,
    },
    /// Removes a set or map that no rule uses.
    DeleteSet {
        /// Its table.
        table: TableRef,
        /// Its name.
        set: String,
    },
    /// Removes all elements of a set or map.
    FlushSet {
        /// Its table.
        table: TableRef,
        /// Its name.
        set: String,
    },
    /// Adds elements to a set or map.
    AddElements {
        /// Its table.
        table: TableRef,
        /// Its name.
        set: String,
        /// Which.
        elements: Vec<Element>,
        /// Whether they may exist; in a map an existing element with other data is an error in
        /// either mode.
        mode: Mode,
    },
    /// Removes elements of a set or map.
    DeleteElements {
        /// Its table.
        table: TableRef,
        /// Its name.
        set: String,
        /// The elements; only keys count.
        elements: Vec<Element>,
    },
    /// Removes elements of a set or map that may be missing. Kernel: 6.3.
    DestroyElements {
        /// Its table.
        table: TableRef,
        /// Its name.
        set: String,
        /// The elements; only keys count.
        elements: Vec<Element>,
    },
    /// Adds a rule at the end of its chain.
    AddRule {
        /// Which.
        rule: NewRule,
    },
    /// Adds a rule at the start of its chain.
    InsertRule {
        /// Which.
        rule: NewRule,
    },
    /// Replaces a rule by another.
    ReplaceRule {
        /// The new one.
        rule: NewRule,
        /// The old one.
        handle: u64,
    },
    /// Removes a rule.
    DeleteRule {
        /// Its table.
        table: TableRef,
        /// Its chain.
        chain: String,
        /// Which.
        handle: u64,
    },
}

impl Batch {
    /// A transaction of no operation.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns its operations.
    #[must_use]
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Whether it has no operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Counts the netlink messages that it takes, without those that begin and end it: one for each
    /// operation, and more for elements that do not fit into one.
    #[must_use]
    pub fn messages(&self) -> usize {
        let mut messages = 0;
        for operation in &self.operations {
            operation.encode(0, &mut |_, _, _| messages += 1);
        }
        messages
    }

    /// Adds an operation.
    pub fn push(&mut self, operation: Operation) {
        self.operations.push(operation);
    }

    /// Adds the operations of another.
    pub fn append(&mut self, other: Self) {
        self.operations.extend(other.operations);
        self.generation = self.generation.or(other.generation);
    }

    /// Lets the transaction succeed only if nothing has changed since a generation
    /// ([`NftSocket::generation`](super::NftSocket::generation)) was read; otherwise it fails with
    /// ERESTART ([`NftError::is_changed`](super::NftError::is_changed)).
    pub fn require_generation(&mut self, generation: u32) {
        self.generation = Some(generation);
    }

    pub(crate) fn generation(&self) -> Option<u32> {
        self.generation
    }

    /// Creates a table unless it exists.
    pub fn add_table(&mut self, table: &TableRef, comment: Option<&str>) {
        let comment = comment.map(str::to_owned);
        self.push(Operation::AddTable { table: table.clone(), comment, mode: Mode::Add });
    }

    /// Creates a table of the socket's own, which is removed when the socket is closed; fails with
    /// EEXIST if it exists. Kernel: 5.12; older ones fail with EINVAL or EOPNOTSUPP.
    pub fn add_own_table(&mut self, table: &TableRef) {
        self.push(Operation::AddOwnTable { table: table.clone() });
    }

    /// Lets a table that exists see packets, whether it was dormant or not. A transaction of its
    /// own: if the same one also deletes or creates base chains, the kernel mistakes which hooks
    /// are in place (linux net/netfilter/nf_tables_api.c `nf_tables_updtable`).
    pub fn wake_table(&mut self, table: &TableRef) {
        self.push(Operation::WakeTable { table: table.clone() });
    }

    /// Removes a table with everything in it; fails with ENOENT if it does not exist.
    pub fn delete_table(&mut self, table: &TableRef) {
        self.push(Operation::DeleteTable { table: table.clone() });
    }

    /// Creates a chain unless it exists.
    pub fn add_chain(&mut self, chain: NewChain) {
        self.push(Operation::AddChain { chain, mode: Mode::Add });
    }

    /// Removes an empty chain; fails with EBUSY if something jumps to it.
    pub fn delete_chain(&mut self, table: &TableRef, chain: impl Into<String>) {
        self.push(Operation::DeleteChain { table: table.clone(), chain: chain.into() });
    }

    /// Removes all rules of a chain.
    pub fn flush_chain(&mut self, table: &TableRef, chain: impl Into<String>) {
        self.push(Operation::FlushChain { table: table.clone(), chain: chain.into() });
    }

    /// Creates a set or map unless it exists.
    pub fn add_set(&mut self, set: NewSet) {
        self.push(Operation::AddSet { set, mode: Mode::Add });
    }

    /// Removes a set or map; fails with EBUSY if a rule uses it.
    pub fn delete_set(&mut self, table: &TableRef, set: impl Into<String>) {
        self.push(Operation::DeleteSet { table: table.clone(), set: set.into() });
    }

    /// Removes all elements of a set or map.
    pub fn flush_set(&mut self, table: &TableRef, set: impl Into<String>) {
        self.push(Operation::FlushSet { table: table.clone(), set: set.into() });
    }

    /// Adds elements to a set or map unless they exist; fails with EBUSY or EEXIST if one exists
    /// with other data.
    pub fn add_elements(
        &mut self,
        table: &TableRef,
        set: impl Into<String>,
        elements: impl IntoIterator<Item = Element>,
    ) {
        self.elements(table, set, elements, Mode::Add);
    }

    /// Adds elements to a set or map; fails with EEXIST if one exists.
    pub fn create_elements(
        &mut self,
        table: &TableRef,
        set: impl Into<String>,
        elements: impl IntoIterator<Item = Element>,
    ) {
        self.elements(table, set, elements, Mode::Create);
    }

    /// Adds one to the elements of an operation that is in the transaction already; returns whether
    /// that operation has elements.
    pub fn add_to(&mut self, operation: usize, element: Element) -> bool {
        match self.operations.get_mut(operation) {
            Some(
                Operation::AddElements { elements, .. }
                | Operation::DeleteElements { elements, .. }
                | Operation::DestroyElements { elements, .. },
            ) => {
                elements.push(element);
                true
            }
            _ => false,
        }
    }

    /// Removes elements; fails with ENOENT if one does not exist. That failure is slow: check
    /// first.
    pub fn delete_elements(
        &mut self,
        table: &TableRef,
        set: impl Into<String>,
        elements: impl IntoIterator<Item = Element>,
    ) {
        let elements = elements.into_iter().collect();
        self.push(Operation::DeleteElements { table: table.clone(), set: set.into(), elements });
    }

    /// Removes elements that may be missing. Kernel: 6.3; older ones fail with EINVAL.
    pub fn destroy_elements(
        &mut self,
        table: &TableRef,
        set: impl Into<String>,
        elements: impl IntoIterator<Item = Element>,
    ) {
        let elements = elements.into_iter().collect();
        self.push(Operation::DestroyElements { table: table.clone(), set: set.into(), elements });
    }

    /// Adds a rule at the end of its chain, even if an equal one exists.
    pub fn add_rule(&mut self, rule: NewRule) {
        self.push(Operation::AddRule { rule });
    }

    /// Adds a rule at the start of its chain.
    pub fn insert_rule(&mut self, rule: NewRule) {
        self.push(Operation::InsertRule { rule });
    }

    /// Removes a rule; fails with ENOENT if it does not exist.
    pub fn delete_rule(&mut self, table: &TableRef, chain: impl Into<String>, handle: u64) {
        self.push(Operation::DeleteRule { table: table.clone(), chain: chain.into(), handle });
    }

    fn elements(
        &mut self,
        table: &TableRef,
        set: impl Into<String>,
        elements: impl IntoIterator<Item = Element>,
        mode: Mode,
    ) {
        let elements = elements.into_iter().collect();
        self.push(Operation::AddElements { table: table.clone(), set: set.into(), elements, mode });
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.operations.iter().try_for_each(|operation| writeln!(f, "{operation}"))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Add => "add",
            Self::Create => "create",
        })
    }
}

/// The operation's description, printed before the kernel's error.
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddTable { table, mode, .. } => write!(f, "{mode} table {table}"),
            Self::AddOwnTable { table } => write!(f, "create table {table} of our own"),
            Self::WakeTable { table } => write!(f, "wake table {table}"),
            Self::DeleteTable { table } => write!(f, "delete table {table}"),
            Self::AddChain { chain, mode } => {
                write!(f, "{mode} chain {} {}", chain.table, chain.name)
            }
            Self::DeleteChain { table, chain } => write!(f, "delete chain {table} {chain}"),
            Self::FlushChain { table, chain } => write!(f, "flush chain {table} {chain}"),
            Self::AddSet { set, mode } => {
                let what = if set.data.is_some() { "map" } else { "set" };
                write!(f, "{mode} {what} {} {}", set.table, set.name)
            }
            Self::DeleteSet { table, set } => write!(f, "delete set {table} {set}"),
            Self::FlushSet { table, set } => write!(f, "flush set {table} {set}"),
            Self::AddElements { table, set, elements, mode } => {
                write!(f, "{mode} {} of {table} {set}", Count(elements.len()))
            }
            Self::DeleteElements { table, set, elements } => {
                write!(f, "delete {} of {table} {set}", Count(elements.len()))
            }
            Self::DestroyElements { table, set, elements } => {
                write!(f, "destroy {} of {table} {set}", Count(elements.len()))
            }
            Self::AddRule { rule } => write!(f, "add rule to {} {}", rule.table, rule.chain),
            Self::InsertRule { rule } => {
                write!(f, "insert rule into {} {}", rule.table, rule.chain)
            }
            Self::ReplaceRule { rule, handle } => {
                write!(f, "replace rule {handle} of {} {}", rule.table, rule.chain)
            }
            Self::DeleteRule { table, chain, handle } => {
                write!(f, "delete rule {handle} of {table} {chain}")
            }
        }
    }
}

struct Count(usize);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("element"),
            many => write!(f, "{many} elements"),
        }
    }
}
