//! The table as data: what should be there, what is there, and the difference.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use ipnet::IpNet;
use kernel::nft::{Element, Expr, Hook, Key, KeyType, RangeEnd, Value};

use super::layout::{self, Set};
use super::{ClusterFilter, batch_of};
use crate::cluster::ranges::Net;
use crate::difference::Difference;

/// An element: the bytes of its first and its last key, which are equal in a set without ranges.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    first: Vec<u8>,
    last: Vec<u8>,
}

impl Entry {
    /// The addresses of a prefix.
    pub(crate) fn range(prefix: IpNet) -> Self {
        let bytes = |address| Value::from(address).bytes();
        Entry { first: bytes(prefix.network()), last: bytes(prefix.broadcast()) }
    }

    /// An interface's name.
    pub(crate) fn ifname(name: &str) -> Self {
        let bytes = Value::IfName(name.to_owned()).bytes();
        Entry { first: bytes.clone(), last: bytes }
    }

    /// Reads an element of a set. A range that nothing ends reaches the last key.
    pub(crate) fn of(element: &Element, ranges: bool) -> Self {
        let first = element.key.bytes().to_vec();
        let last = match &element.end {
            Some(RangeEnd::Single(last) | RangeEnd::Concatenated(last)) => last.bytes().to_vec(),
            None if ranges => vec![0xff; first.len()],
            None => first.clone(),
        };
        Entry { first, last }
    }

    pub(crate) fn element(&self, set: Set) -> Element {
        let key = |bytes: &[u8]| Key::from_bytes(bytes);
        if set.has_ranges() {
            Element::range(key(&self.first), key(&self.last))
        } else {
            Element::new(key(&self.first))
        }
    }

    /// Writes it as nft does, except that a range is never shortened to a prefix.
    pub(crate) fn text(&self, kind: KeyType) -> String {
        let one = |bytes: &[u8]| {
            let values = Key::from_bytes(bytes).values(&[kind]);
            let value = values.and_then(|values| values.into_iter().next());
            value.map_or_else(|| format!("{bytes:02x?}"), |value| value.to_string())
        };
        if self.first == self.last {
            one(&self.first)
        } else {
            format!("{}-{}", one(&self.first), one(&self.last))
        }
    }
}

/// Returns the element that has the addresses of a prefix, as [`Entry::element`] makes it: a node has
/// those of thousands of others.
pub(crate) fn element(set: Set, prefix: IpNet) -> Element {
    let first = Value::from(prefix.network());
    if set.has_ranges() {
        Element::range(first, Value::from(prefix.broadcast()))
    } else {
        Element::new(first)
    }
}

/// The table, or what should be it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TableState {
    /// Whether there is a table at all.
    pub(crate) exists: bool,
    /// NFT_TABLE_F_*.
    pub(crate) flags: u32,
    pub(crate) chains: BTreeMap<String, ChainState>,
    pub(crate) sets: BTreeMap<String, SetState>,
}

/// A chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChainState {
    hook: Option<Hook>,
    rules: Vec<Vec<Expr>>,
}

impl ChainState {
    /// Leaves out what packets change.
    pub(crate) fn new(hook: Option<Hook>, rules: impl IntoIterator<Item = Vec<Expr>>) -> Self {
        let at_rest = |expr: Expr| match expr {
            Expr::Counter { .. } => Expr::Counter { packets: 0, bytes: 0 },
            other => other,
        };
        let rules = rules.into_iter().map(|rule| rule.into_iter().map(at_rest).collect());
        ChainState { hook, rules: rules.collect() }
    }
}

/// A set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetState {
    /// Its type, as far as we know types.
    pub(crate) key: Option<Vec<KeyType>>,
    /// NFT_SET_*.
    pub(crate) flags: u32,
    pub(crate) entries: BTreeSet<Entry>,
}

/// `linux include/uapi/linux/netfilter/nf_tables.h` NFT_SET_INTERVAL.
const NFT_SET_INTERVAL: u32 = 0x4;

impl TableState {
    /// Says what should be there.
    pub(crate) fn of(filter: &ClusterFilter) -> Self {
        let mut rules: BTreeMap<String, Vec<Vec<Expr>>> = BTreeMap::new();
        for rule in layout::rules(filter.rules()) {
            rules.entry(rule.chain).or_default().push(rule.exprs);
        }
        let chains = layout::chains().into_iter().map(|chain| {
            let own = rules.remove(&chain.name).unwrap_or_default();
            (chain.name, ChainState::new(chain.hook, own))
        });
        let sets = Set::ALL.into_iter().map(|set| {
            let flags = if set.has_ranges() { NFT_SET_INTERVAL } else { 0 };
            let entries = filter.entries(set);
            (set.name().to_owned(), SetState { key: Some(vec![set.key()]), flags, entries })
        });
        TableState { exists: true, flags: 0, chains: chains.collect(), sets: sets.collect() }
    }

    /// Compares what should be there with what is.
    pub(crate) fn difference(&self, found: &TableState, filter: &ClusterFilter) -> Difference {
        let mut lines = self.layout_differences(found);
        if !lines.is_empty() {
            return Difference::new(lines, filter.batch());
        }
        let mut net = Net::new();
        for set in Set::ALL {
            let entries = |state: &TableState| {
                let set = state.sets.get(set.name());
                set.map(|set| set.entries.clone()).unwrap_or_default()
            };
            let (wanted, there) = (entries(self), entries(found));
            let missing: Vec<&Entry> = wanted.difference(&there).collect();
            let foreign: Vec<&Entry> = there.difference(&wanted).collect();
            lines.extend(told("missing from", set, &missing));
            lines.extend(told("foreign in", set, &foreign));
            missing.into_iter().for_each(|entry| net.come((set, entry.clone())));
            foreign.into_iter().for_each(|entry| net.go((set, entry.clone())));
        }
        Difference::new(lines, batch_of(net))
    }

    fn layout_differences(&self, found: &TableState) -> Vec<String> {
        let table = layout::table();
        if !found.exists {
            return vec![no_table()];
        }
        let mut lines = Vec::new();
        if found.flags != 0 {
            lines.push(format!("table {table} has flags {:#x}", found.flags));
        }
        for (name, chain) in &self.chains {
            match found.chains.get(name) {
                None => lines.push(format!("missing: chain {name} of table {table}")),
                Some(there) if there.hook != chain.hook => {
                    lines.push(format!("chain {name} of table {table} is at another hook"));
                }
                Some(there) if there.rules != chain.rules => {
                    lines.push(format!("chain {name} of table {table} has other rules"));
                }
                Some(_) => {}
            }
        }
        for (name, set) in &self.sets {
            match found.sets.get(name) {
                None => lines.push(format!("missing: set {name} of table {table}")),
                Some(there) if (&there.key, there.flags) != (&set.key, set.flags) => {
                    lines.push(format!("set {name} of table {table} has another type"));
                }
                Some(_) => {}
            }
        }
        let foreign = |name: &&String| !self.chains.contains_key(*name);
        for name in found.chains.keys().filter(foreign) {
            lines.push(format!("foreign: chain {name} of table {table}"));
        }
        let foreign = |name: &&String| !self.sets.contains_key(*name);
        for name in found.sets.keys().filter(foreign) {
            lines.push(format!("foreign: set {name} of table {table}"));
        }
        lines
    }
}

/// Says that there is no table.
pub(crate) fn no_table() -> String {
    format!("missing: table {}", layout::table())
}

/// How many elements a line names: after a flush there are thousands.
const NAMED: usize = 3;

fn told(what: &str, set: Set, entries: &[&Entry]) -> Option<String> {
    if entries.is_empty() {
        return None;
    }
    let mut line = format!("{what} set {} of table {}: ", set.name(), layout::table());
    for (index, entry) in entries.iter().take(NAMED).enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        let _ = write!(line, "{comma}{}", entry.text(set.key()));
    }
    if NAMED < entries.len() {
        let _ = write!(line, " and {} more", entries.len() - NAMED);
    }
    Some(line)
}
