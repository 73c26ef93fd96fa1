//! A transaction as a value.

use std::fmt;

use super::expr_encode::{self, put_value, put_verdict};
use super::key::{Key, byteorder, length, type_number};
use super::names::{Family, Policy, TableRef};
use super::object::{Element, ElementData, MapData, NewChain, NewSet, RangeEnd};
use super::rule::NewRule;
use super::userdata;
use super::{msg, nfgenmsg};
use crate::wire::Writer;

/// `man 7 netlink`.
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;

/// `linux include/uapi/linux/netfilter/nf_tables.h`.
const NFT_SET_INTERVAL: u32 = 0x4;
const NFT_SET_MAP: u32 = 0x8;
const NFT_SET_CONCAT: u32 = 0x80;
pub(crate) const NFT_SET_ELEM_INTERVAL_END: u32 = 0x1;
/// NFT_DATA_VERDICT: the data type of verdict maps.
pub(crate) const VERDICT_TYPE: u32 = 0xffff_ff00;
/// One message carries elements up to this size: below the 64 KiB of the attribute around them.
const ELEMENTS_SIZE: usize = 48 * 1024;

/// A transaction: all of its operations happen, or none.
///
/// Its operations are plain values ([`Batch::operations`]) that print like nft's commands, so that a plan can be tested
/// without a kernel. Names are those of nft: *add* is content with what is there already, *create* is not, *delete* fails
/// for what is not there, *destroy* does not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    operations: Vec<Operation>,
    generation: Option<u32>,
}

/// Whether an object may be there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It may (`add`).
    Add,
    /// It must not: EEXIST (`create`).
    Create,
}

/// One operation of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Makes a table.
    AddTable {
        /// Which.
        table: TableRef,
        /// What people read in a listing. Kernel: 5.10.
        comment: Option<String>,
        /// Whether it may be there.
        mode: Mode,
    },
    /// Removes a table with all that is in it.
    DeleteTable {
        /// Which.
        table: TableRef,
    },
    /// Makes a chain.
    AddChain {
        /// Which.
        chain: NewChain,
        /// Whether it may be there.
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
    /// Makes a set or map.
    AddSet {
        /// Which.
        set: NewSet,
        /// Whether it may be there.
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
    /// Puts elements into a set or map.
    AddElements {
        /// Its table.
        table: TableRef,
        /// Its name.
        set: String,
        /// Which.
        elements: Vec<Element>,
        /// Whether they may be there; with other data (of a map) they may not in either mode.
        mode: Mode,
    },
    /// Removes elements of a set or map.
    DeleteElements {
        /// Its table.
        table: TableRef,
        /// Its name.
        set: String,
        /// Which; only keys count.
        elements: Vec<Element>,
    },
    /// Removes elements of a set or map that may be gone. Kernel: 6.3.
    DestroyElements {
        /// Its table.
        table: TableRef,
        /// Its name.
        set: String,
        /// Which; only keys count.
        elements: Vec<Element>,
    },
    /// Makes a rule, at the end of its chain.
    AddRule {
        /// Which.
        rule: NewRule,
    },
    /// Makes a rule, at the start of its chain.
    InsertRule {
        /// Which.
        rule: NewRule,
    },
    /// Puts a rule in the place of another.
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

    /// What it consists of.
    #[must_use]
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Whether it consists of nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
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

    /// Lets it happen only if nothing was changed since a generation ([`NftSocket::generation`](super::NftSocket::generation))
    /// was read; otherwise it fails with ERESTART ([`NftError::is_changed`](super::NftError::is_changed)).
    pub fn require_generation(&mut self, generation: u32) {
        self.generation = Some(generation);
    }

    pub(crate) fn generation(&self) -> Option<u32> {
        self.generation
    }

    /// Makes a table unless it is there.
    pub fn add_table(&mut self, table: &TableRef, comment: Option<&str>) {
        let comment = comment.map(str::to_owned);
        self.push(Operation::AddTable { table: table.clone(), comment, mode: Mode::Add });
    }

    /// Removes a table with all that is in it; fails with ENOENT if it is not there.
    pub fn delete_table(&mut self, table: &TableRef) {
        self.push(Operation::DeleteTable { table: table.clone() });
    }

    /// Makes a chain unless it is there.
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

    /// Makes a set or map unless it is there.
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

    /// Puts elements into a set or map unless they are there; fails with EBUSY or EEXIST if one is there with other data.
    pub fn add_elements(
        &mut self,
        table: &TableRef,
        set: impl Into<String>,
        elements: impl IntoIterator<Item = Element>,
    ) {
        self.elements(table, set, elements, Mode::Add);
    }

    /// Puts elements into a set or map; fails with EEXIST if one is there.
    pub fn create_elements(
        &mut self,
        table: &TableRef,
        set: impl Into<String>,
        elements: impl IntoIterator<Item = Element>,
    ) {
        self.elements(table, set, elements, Mode::Create);
    }

    /// Removes elements; fails with ENOENT if one is not there. That failure is slow: ask first.
    pub fn delete_elements(
        &mut self,
        table: &TableRef,
        set: impl Into<String>,
        elements: impl IntoIterator<Item = Element>,
    ) {
        let elements = elements.into_iter().collect();
        self.push(Operation::DeleteElements { table: table.clone(), set: set.into(), elements });
    }

    /// Removes elements that may be gone. Kernel: 6.3; older ones fail with EINVAL.
    pub fn destroy_elements(
        &mut self,
        table: &TableRef,
        set: impl Into<String>,
        elements: impl IntoIterator<Item = Element>,
    ) {
        let elements = elements.into_iter().collect();
        self.push(Operation::DestroyElements { table: table.clone(), set: set.into(), elements });
    }

    /// Makes a rule at the end of its chain, even if there is the same one.
    pub fn add_rule(&mut self, rule: NewRule) {
        self.push(Operation::AddRule { rule });
    }

    /// Makes a rule at the start of its chain.
    pub fn insert_rule(&mut self, rule: NewRule) {
        self.push(Operation::InsertRule { rule });
    }

    /// Removes a rule; fails with ENOENT if it is not there.
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

/// One netlink message: its type, its flags beside NLM_F_REQUEST and NLM_F_ACK, and what follows its header.
pub(crate) type Emit<'a> = &'a mut dyn FnMut(u16, u16, &dyn Fn(&mut Writer));

impl Operation {
    /// Hands over its messages: one, or several if its elements do not fit one. `set_id` tells a new set in its batch.
    pub(crate) fn encode(&self, set_id: u32, emit: Emit<'_>) {
        match self {
            Self::AddTable { table, comment, mode } => {
                emit(msg::NEW_TABLE, mode.flags(), &|writer| {
                    begin(writer, table.family);
                    writer.put_text(1, &table.name);
                    put_comment(writer, 6, userdata::COMMENT, comment.as_deref());
                })
            }
            Self::DeleteTable { table } => emit(msg::DEL_TABLE, 0, &|writer| {
                begin(writer, table.family);
                writer.put_text(1, &table.name);
            }),
            Self::AddChain { chain, mode } => {
                emit(msg::NEW_CHAIN, mode.flags(), &|writer| encode_chain(writer, chain));
            }
            Self::DeleteChain { table, chain } => emit(msg::DEL_CHAIN, 0, &|writer| {
                begin(writer, table.family);
                writer.put_text(1, &table.name);
                writer.put_text(3, chain);
            }),
            Self::FlushChain { table, chain } => emit(msg::DEL_RULE, 0, &|writer| {
                begin_rule(writer, table, chain);
            }),
            Self::AddSet { set, mode } => {
                emit(msg::NEW_SET, mode.flags(), &|writer| encode_set(writer, set, set_id));
            }
            Self::DeleteSet { table, set } => emit(msg::DEL_SET, 0, &|writer| {
                begin(writer, table.family);
                writer.put_text(1, &table.name);
                writer.put_text(2, set);
            }),
            Self::FlushSet { table, set } => emit(msg::DEL_ELEMENT, 0, &|writer| {
                begin(writer, table.family);
                writer.put_text(1, &table.name);
                writer.put_text(2, set);
            }),
            Self::AddElements { table, set, elements, mode } => {
                encode_elements(emit, msg::NEW_ELEMENT, mode.flags(), table, set, elements);
            }
            Self::DeleteElements { table, set, elements } => {
                encode_elements(emit, msg::DEL_ELEMENT, 0, table, set, elements);
            }
            Self::DestroyElements { table, set, elements } => {
                encode_elements(emit, msg::DESTROY_ELEMENT, 0, table, set, elements);
            }
            Self::AddRule { rule } => {
                emit(msg::NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, &|writer| {
                    encode_rule(writer, rule, None)
                });
            }
            Self::InsertRule { rule } => {
                emit(msg::NEW_RULE, NLM_F_CREATE, &|writer| encode_rule(writer, rule, None));
            }
            Self::ReplaceRule { rule, handle } => {
                emit(msg::NEW_RULE, NLM_F_REPLACE, &|writer| {
                    encode_rule(writer, rule, Some(*handle))
                });
            }
            Self::DeleteRule { table, chain, handle } => emit(msg::DEL_RULE, 0, &|writer| {
                begin_rule(writer, table, chain);
                writer.put_u64_be(3, *handle);
            }),
        }
    }

    /// Whether all comments are short enough.
    pub(crate) fn comments_fit(&self) -> bool {
        match self {
            Self::AddTable { comment, .. } => userdata::fits(comment.as_deref()),
            Self::AddChain { chain, .. } => userdata::fits(chain.comment.as_deref()),
            Self::AddSet { set, .. } => userdata::fits(set.comment.as_deref()),
            Self::AddElements { elements, .. } => {
                elements.iter().all(|element| userdata::fits(element.comment.as_deref()))
            }
            Self::AddRule { rule } | Self::InsertRule { rule } | Self::ReplaceRule { rule, .. } => {
                userdata::fits(rule.comment.as_deref())
            }
            _ => true,
        }
    }
}

impl Mode {
    fn flags(self) -> u16 {
        match self {
            Self::Add => NLM_F_CREATE,
            Self::Create => NLM_F_CREATE | NLM_F_EXCL,
        }
    }
}

fn begin(writer: &mut Writer, family: Family) {
    writer.raw(&nfgenmsg(family.number(), 0));
}

/// NFTA_RULE_TABLE, NFTA_RULE_CHAIN.
fn begin_rule(writer: &mut Writer, table: &TableRef, chain: &str) {
    begin(writer, table.family);
    writer.put_text(1, &table.name);
    writer.put_text(2, chain);
}

fn put_comment(writer: &mut Writer, attribute: u16, kind: u8, comment: Option<&str>) {
    if let Some(comment) = comment {
        writer.put(attribute, &userdata::text(kind, comment));
    }
}

/// NFTA_CHAIN_*, NFTA_HOOK_*.
fn encode_chain(writer: &mut Writer, chain: &NewChain) {
    begin(writer, chain.table.family);
    writer.put_text(1, &chain.table.name);
    writer.put_text(3, &chain.name);
    if let Some(hook) = &chain.hook {
        writer.nest(4, |writer| {
            writer.put_u32_be(1, hook.point.number(chain.table.family));
            writer.put(2, &hook.priority.to_be_bytes());
        });
        if let Some(policy) = hook.policy {
            writer.put_u32_be(5, u32::from(policy == Policy::Accept));
        }
        writer.put_text(7, hook.kind.name());
    }
    put_comment(writer, 12, userdata::COMMENT, chain.comment.as_deref());
}

/// NFTA_SET_*.
fn encode_set(writer: &mut Writer, set: &NewSet, id: u32) {
    let size = |types: &[_]| u32::try_from(length(types)).unwrap_or(u32::MAX);
    let concat_interval = set.interval && 1 < set.key.len();
    let flags = [
        (set.interval, NFT_SET_INTERVAL),
        (set.data.is_some(), NFT_SET_MAP),
        (concat_interval, NFT_SET_CONCAT),
    ];
    let flags = flags.iter().filter(|flag| flag.0).fold(0, |all, flag| all | flag.1);
    begin(writer, set.table.family);
    writer.put_text(1, &set.table.name);
    writer.put_text(2, &set.name);
    writer.put_u32_be(3, flags);
    writer.put_u32_be(4, type_number(&set.key));
    writer.put_u32_be(5, size(&set.key));
    let mut notes = userdata::number(userdata::SET_KEY_BYTEORDER, byteorder(&set.key));
    match &set.data {
        None => {}
        Some(MapData::Verdict) => {
            writer.put_u32_be(6, VERDICT_TYPE);
            // The kernel wants a length beside the type and knows this one itself.
            writer.put_u32_be(7, 0);
            notes.extend(userdata::number(userdata::SET_DATA_BYTEORDER, 0));
        }
        Some(MapData::Values(types)) => {
            writer.put_u32_be(6, type_number(types));
            writer.put_u32_be(7, size(types));
            notes.extend(userdata::number(userdata::SET_DATA_BYTEORDER, byteorder(types)));
        }
    }
    if concat_interval {
        // NFTA_SET_DESC, NFTA_SET_DESC_CONCAT, NFTA_LIST_ELEM, NFTA_SET_FIELD_LEN.
        writer.nest(9, |writer| {
            writer.nest(2, |writer| {
                for kind in &set.key {
                    let size = u32::try_from(kind.size()).unwrap_or(u32::MAX);
                    writer.nest(1, |writer| writer.put_u32_be(1, size));
                }
            });
        });
    }
    writer.put_u32_be(10, id);
    if let Some(comment) = &set.comment {
        notes.extend(userdata::text(userdata::SET_COMMENT, comment));
    }
    writer.put(13, &notes);
}

/// NFTA_RULE_*.
fn encode_rule(writer: &mut Writer, rule: &NewRule, handle: Option<u64>) {
    begin_rule(writer, &rule.table, &rule.chain);
    if let Some(handle) = handle {
        writer.put_u64_be(3, handle);
    }
    writer.nest(4, |writer| {
        for expr in &rule.exprs {
            expr_encode::encode(writer, expr);
        }
    });
    put_comment(writer, 7, userdata::COMMENT, rule.comment.as_deref());
}

/// Writes elements, as many messages as they need.
fn encode_elements(
    emit: Emit<'_>,
    kind: u16,
    flags: u16,
    table: &TableRef,
    set: &str,
    elements: &[Element],
) {
    let mut encoded = elements.iter().map(|element| {
        let mut writer = Writer::new();
        encode_element(&mut writer, element);
        writer
    });
    let mut next = encoded.next();
    while let Some(first) = next.take() {
        let mut list = first.bytes().to_vec();
        for element in encoded.by_ref() {
            if ELEMENTS_SIZE < list.len() + element.bytes().len() {
                next = Some(element);
                break;
            }
            list.extend_from_slice(element.bytes());
        }
        emit(kind, flags, &|writer| begin_elements(writer, table, set, &list));
    }
}

/// NFTA_SET_ELEM_LIST_TABLE, _SET, _ELEMENTS.
fn begin_elements(writer: &mut Writer, table: &TableRef, set: &str, list: &[u8]) {
    begin(writer, table.family);
    writer.put_text(1, &table.name);
    writer.put_text(2, set);
    writer.nest(3, |writer| writer.raw(list));
}

/// Writes a question for one element.
pub(crate) fn encode_question(writer: &mut Writer, table: &TableRef, set: &str, key: &Key) {
    let mut element = Writer::new();
    element.nest(1, |writer| put_value(writer, 1, key.bytes()));
    begin_elements(writer, table, set, element.bytes());
}

/// NFTA_LIST_ELEM, NFTA_SET_ELEM_*.
fn encode_element(writer: &mut Writer, element: &Element) {
    writer.nest(1, |writer| {
        put_value(writer, 1, element.key.bytes());
        if let Some(RangeEnd::Concatenated(last)) = &element.end {
            put_value(writer, 10, last.bytes());
        }
        match &element.data {
            None => {}
            Some(ElementData::Value(value)) => put_value(writer, 2, value.bytes()),
            Some(ElementData::Verdict(verdict)) => put_verdict(writer, 2, verdict),
        }
        put_comment(writer, 6, userdata::COMMENT, element.comment.as_deref());
    });
    // A range of single keys is two elements, the second marked and one behind the last; none behind the very last key.
    if let Some(RangeEnd::Single(last)) = &element.end
        && let Some(behind) = last.next()
    {
        writer.nest(1, |writer| {
            put_value(writer, 1, behind.bytes());
            writer.put_u32_be(3, NFT_SET_ELEM_INTERVAL_END);
        });
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

/// What is being done, to go before the kernel's error.
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddTable { table, mode, .. } => write!(f, "{mode} table {table}"),
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
