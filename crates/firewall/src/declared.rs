//! A table of nftables as data: what should be in it, what is in it, and what differs.
//!
//! The tables of policies ([`crate::pods`]) and of routing ([`crate::cluster`]) are read and compared
//! here, so that what another program does to one of them has the same name in both. Those of
//! attachments have their rules compared here, too, but not their sets: CHECK asks for the elements
//! of its attachment only.

mod kernel_table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use kernel::netlink::NetlinkError;
use kernel::nft::{
    Element, ElementData, Expr, Hook, Key, KeyType, MapData, NewChain, NewRule, NewSet, NftSocket,
    RangeEnd, TableRef, Value, Verdict,
};

pub(crate) use self::kernel_table::KernelTable;

use crate::meaning::{Meaning, SetKeys};

/// `linux include/uapi/linux/netfilter/nf_tables.h` NFT_SET_*.
const NFT_SET_ANONYMOUS: u32 = 0x1;
const NFT_SET_INTERVAL: u32 = 0x4;
const NFT_SET_MAP: u32 = 0x8;

/// Chains within rules have such names, and are removed with their rules.
const ANONYMOUS_CHAIN: &str = "__chain";

/// How many elements a line names: after a flush there are thousands.
const NAMED: usize = 3;

/// A table.
#[derive(Debug, Clone, Default)]
pub(crate) struct TableState {
    /// Whether there is a table at all.
    pub(crate) exists: bool,
    /// NFT_TABLE_F_*.
    pub(crate) flags: u32,
    /// How many things there are in it besides chains and sets.
    pub(crate) others: u32,
    pub(crate) chains: BTreeMap<String, ChainState>,
    pub(crate) sets: BTreeMap<String, SetState>,
}

/// A chain.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ChainState {
    pub(crate) hook: Option<Hook>,
    pub(crate) rules: Vec<Vec<Expr>>,
}

/// A set or map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetState {
    pub(crate) kind: SetKind,
    pub(crate) elements: Elements,
}

/// The type of a set, as far as we know types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetKind {
    pub(crate) key: Option<Vec<KeyType>>,
    pub(crate) data: Option<MapData>,
    pub(crate) flags: u32,
}

/// The elements of a set, and where they lead to in a map.
pub(crate) type Elements = BTreeMap<Span, Option<String>>;

/// A key: the bytes of its first and its last value, which are equal unless it is a range.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    first: Vec<u8>,
    last: Option<Vec<u8>>,
}

/// Puts chains and their rules together. A rule makes its chain if that is not among them.
pub(crate) fn chains(
    chains: impl IntoIterator<Item = NewChain>,
    rules: impl IntoIterator<Item = NewRule>,
) -> BTreeMap<String, ChainState> {
    let mut all: BTreeMap<String, ChainState> = BTreeMap::new();
    for chain in chains {
        all.entry(chain.name).or_default().hook = chain.hook;
    }
    for rule in rules {
        all.entry(rule.chain).or_default().add_rule(rule.exprs);
    }
    all
}

impl TableState {
    /// Returns a table as it should be.
    pub(crate) fn new(
        chains: BTreeMap<String, ChainState>,
        sets: BTreeMap<String, SetState>,
    ) -> Self {
        TableState { exists: true, flags: 0, others: 0, chains, sets }
    }

    /// Reads a table. The cost grows with the number of rules and elements.
    ///
    /// # Errors
    /// The kernel's. A table that is not there is no error.
    pub(crate) fn read(socket: &mut NftSocket, table: &TableRef) -> Result<Self, NetlinkError> {
        let mut state = TableState::default();
        let Some(info) = socket.get_table(table)? else { return Ok(state) };
        state.exists = true;
        state.flags = info.flags;
        let chains = socket.chains(Some(table.family))?;
        for chain in chains.into_iter().filter(|chain| chain.table == *table) {
            state.chains.entry(chain.name).or_default().hook = chain.hook;
        }
        for rule in socket.rules_of_table(table)? {
            state.chains.entry(rule.chain).or_default().add_rule(rule.exprs);
        }
        for set in socket.sets(table)?.into_iter().filter(|set| set.table == *table) {
            let kind = SetKind { key: set.key, data: set.data, flags: set.flags };
            let elements = match kind.is_anonymous() {
                true => Vec::new(),
                false => socket.elements(table, &set.name)?,
            };
            state.sets.insert(set.name, SetState::new(kind, &elements));
        }
        let known = state.chains.len() + state.sets.len();
        state.others = info.used.saturating_sub(u32::try_from(known).unwrap_or(u32::MAX));
        Ok(state)
    }
}

impl ChainState {
    /// Adds a rule, without what packets change in it.
    pub(crate) fn add_rule(&mut self, rule: Vec<Expr>) {
        let at_rest = |expr: Expr| match expr {
            Expr::Counter { .. } => Expr::Counter { packets: 0, bytes: 0 },
            other => other,
        };
        self.rules.push(rule.into_iter().map(at_rest).collect());
    }

    /// Says whether its rules mean and count what these do, in a table of this family whose sets
    /// have these keys.
    pub(crate) fn has_rules(
        &self,
        wanted: &[Vec<Expr>],
        table: &TableRef,
        sets: SetKeys<'_>,
    ) -> bool {
        let counters =
            |rule: &[Expr]| rule.iter().filter(|expr| matches!(expr, Expr::Counter { .. })).count();
        let is_same = |found: &[Expr], wanted: &[Expr]| {
            let of = |rule| Meaning::of(table.family, sets, rule);
            let agree = || of(found).agrees(&of(wanted)) && counters(found) == counters(wanted);
            found == wanted || agree()
        };
        let mut both = self.rules.iter().zip(wanted);
        self.rules.len() == wanted.len() && both.all(|(found, wanted)| is_same(found, wanted))
    }
}

impl SetState {
    pub(crate) fn new(kind: SetKind, elements: &[Element]) -> Self {
        let ranges = kind.has_ranges();
        let read = |element: &Element| {
            let leads = match &element.data {
                Some(ElementData::Verdict(Verdict::Goto(chain))) => Some(chain.clone()),
                Some(ElementData::Verdict(other)) => Some(other.to_string()),
                _ => None,
            };
            (Span::of(element, ranges), leads)
        };
        SetState { elements: elements.iter().map(read).collect(), kind }
    }

    /// Returns a set as it should be.
    pub(crate) fn of(set: &NewSet, elements: &[Element]) -> Self {
        SetState::new(SetKind::of(set), elements)
    }
}

impl SetKind {
    /// Returns the type that a new set gets.
    pub(crate) fn of(set: &NewSet) -> Self {
        let flags = [(set.interval, NFT_SET_INTERVAL), (set.data.is_some(), NFT_SET_MAP)];
        let flags = flags.iter().filter(|flag| flag.0).fold(0, |all, flag| all | flag.1);
        SetKind { key: Some(set.key.clone()), data: set.data.clone(), flags }
    }

    pub(crate) fn has_ranges(&self) -> bool {
        self.flags & NFT_SET_INTERVAL != 0
    }

    /// What nft calls it.
    pub(crate) fn word(&self) -> &'static str {
        if self.flags & NFT_SET_MAP == 0 { "set" } else { "map" }
    }

    /// Whether it belongs to a rule, and is removed with it.
    fn is_anonymous(&self) -> bool {
        self.flags & NFT_SET_ANONYMOUS != 0
    }
}

impl Span {
    /// Returns the key from one value to another.
    pub(crate) fn new(first: Vec<u8>, last: Vec<u8>) -> Self {
        let last = Some(last).filter(|last| *last != first);
        Span { first, last }
    }

    /// Reads an element of a set. A range that nothing ends reaches the last key.
    pub(crate) fn of(element: &Element, ranges: bool) -> Self {
        let first = element.key.bytes().to_vec();
        let last = match &element.end {
            Some(RangeEnd::Single(last) | RangeEnd::Concatenated(last)) => last.bytes().to_vec(),
            None if ranges => vec![0xff; first.len()],
            None => first.clone(),
        };
        Span::new(first, last)
    }

    pub(crate) fn element(&self, ranges: bool) -> Element {
        let key = |bytes: &[u8]| Key::from_bytes(bytes);
        match &self.last {
            Some(last) => Element::range(key(&self.first), key(last)),
            None if ranges => Element::range(key(&self.first), key(&self.first)),
            None => Element::new(key(&self.first)),
        }
    }

    /// Writes it as nft does, except that a range is never shortened to a prefix.
    pub(crate) fn text(&self, kinds: &[KeyType]) -> String {
        let one = |bytes: &[u8]| match Key::from_bytes(bytes).values(kinds) {
            Some(values) => {
                let texts: Vec<String> = values.iter().map(Value::to_string).collect();
                texts.join(" . ")
            }
            None => format!("{bytes:02x?}"),
        };
        match &self.last {
            Some(last) => format!("{}-{}", one(&self.first), one(last)),
            None => one(&self.first),
        }
    }
}

/// What differs between a table and what it should be.
#[derive(Debug, Default)]
pub(crate) struct TableDifference<'a> {
    /// A sentence about each thing.
    pub(crate) lines: Vec<String>,
    /// Whether something is different that no change puts right.
    pub(crate) needs_new_table: bool,
    /// Chains that have other rules.
    pub(crate) changed_chains: BTreeSet<&'a str>,
    pub(crate) missing_chains: BTreeSet<&'a str>,
    pub(crate) foreign_chains: BTreeSet<&'a str>,
    pub(crate) missing_sets: BTreeSet<&'a str>,
    pub(crate) foreign_sets: BTreeSet<&'a str>,
    /// What is different in sets that are there.
    pub(crate) elements: BTreeMap<&'a str, ElementDifference>,
}

/// What is different in the elements of a set.
#[derive(Debug, Default)]
pub(crate) struct ElementDifference {
    /// Those that must go: also those that lead elsewhere.
    pub(crate) gone: Vec<Element>,
    /// Those that must come.
    pub(crate) come: Vec<Element>,
}

impl<'a> TableDifference<'a> {
    /// Compares a table with what it should be.
    pub(crate) fn between(wanted: &'a TableState, found: &'a TableState, table: &TableRef) -> Self {
        let mut difference = TableDifference::default();
        if !found.exists {
            difference.tell(format!("missing: table {table}"));
            difference.needs_new_table = true;
            return difference;
        }
        difference.unchangeable(wanted, found, table);
        difference.chains(wanted, found, table);
        difference.sets(wanted, found, table);
        difference
    }

    /// Says whether nothing but elements differs.
    pub(crate) fn is_of_elements(&self) -> bool {
        let objects = [
            &self.changed_chains,
            &self.missing_chains,
            &self.foreign_chains,
            &self.missing_sets,
            &self.foreign_sets,
        ];
        !self.needs_new_table && objects.into_iter().all(BTreeSet::is_empty)
    }

    fn unchangeable(&mut self, wanted: &TableState, found: &TableState, table: &TableRef) {
        if found.flags != 0 {
            self.tell(format!("table {table} has flags {:#x}", found.flags));
        }
        if found.others != 0 {
            let others = found.others;
            self.tell(format!(
                "foreign: {others} objects of table {table} that are neither chains nor sets"
            ));
        }
        for (name, chain) in &wanted.chains {
            if found.chains.get(name).is_some_and(|there| there.hook != chain.hook) {
                self.tell(format!("chain {name} of table {table} is at another hook"));
            }
        }
        for (name, set) in &wanted.sets {
            if found.sets.get(name).is_some_and(|there| there.kind != set.kind) {
                let word = set.kind.word();
                self.tell(format!("{word} {name} of table {table} has another type"));
            }
        }
        self.needs_new_table = !self.lines.is_empty();
    }

    fn chains(&mut self, wanted: &'a TableState, found: &'a TableState, table: &TableRef) {
        let keys = |name: &str| {
            wanted.sets.get(name).and_then(|set| set.kind.key.clone()).unwrap_or_default()
        };
        for (name, chain) in &wanted.chains {
            match found.chains.get(name) {
                None => {
                    self.tell(format!("missing: chain {name} of table {table}"));
                    self.missing_chains.insert(name);
                }
                Some(there) if !there.has_rules(&chain.rules, table, &keys) => {
                    self.tell(format!("chain {name} of table {table} has other rules"));
                    self.changed_chains.insert(name);
                }
                Some(_) => {}
            }
        }
        let is_foreign = |name: &&String| {
            !wanted.chains.contains_key(*name) && !name.starts_with(ANONYMOUS_CHAIN)
        };
        for name in found.chains.keys().filter(is_foreign) {
            self.tell(format!("foreign: chain {name} of table {table}"));
            self.foreign_chains.insert(name);
        }
    }

    fn sets(&mut self, wanted: &'a TableState, found: &'a TableState, table: &TableRef) {
        for (name, set) in &wanted.sets {
            match found.sets.get(name) {
                None => {
                    self.tell(format!("missing: {} {name} of table {table}", set.kind.word()));
                    self.missing_sets.insert(name);
                }
                Some(there) if there.kind == set.kind => {
                    let different = self.elements(name, set, there, table);
                    self.elements.insert(name, different);
                }
                Some(_) => {}
            }
        }
        let is_foreign = |(name, set): &(&String, &SetState)| {
            !wanted.sets.contains_key(*name) && !set.kind.is_anonymous()
        };
        for (name, _) in found.sets.iter().filter(is_foreign) {
            self.tell(format!("foreign: set {name} of table {table}"));
            self.foreign_sets.insert(name);
        }
    }

    fn elements(
        &mut self,
        name: &str,
        wanted: &SetState,
        found: &SetState,
        table: &TableRef,
    ) -> ElementDifference {
        let kinds = wanted.kind.key.as_deref().unwrap_or_default();
        let ranges = wanted.kind.has_ranges();
        let mut changed = ElementDifference::default();
        let (mut missing, mut foreign, mut misled) = (Vec::new(), Vec::new(), Vec::new());
        for (span, leads) in &wanted.elements {
            let there = found.elements.get(span);
            if there == Some(leads) {
                continue;
            }
            match there {
                Some(elsewhere) => {
                    let elsewhere = elsewhere.as_deref().unwrap_or("nowhere");
                    misled.push(format!("{} to {elsewhere}", span.text(kinds)));
                    changed.gone.push(span.element(ranges));
                }
                None => missing.push(span.text(kinds)),
            }
            changed.come.push(leading(span, leads.as_ref(), ranges));
        }
        for span in found.elements.keys().filter(|span| !wanted.elements.contains_key(*span)) {
            foreign.push(span.text(kinds));
            changed.gone.push(span.element(ranges));
        }
        let word = wanted.kind.word();
        for (what, texts) in
            [("missing from", missing), ("foreign in", foreign), ("led elsewhere by", misled)]
        {
            if !texts.is_empty() {
                self.tell(format!("{what} {word} {name} of table {table}: {}", some(&texts)));
            }
        }
        changed
    }

    fn tell(&mut self, line: String) {
        self.lines.push(line);
    }
}

/// Returns an element of a map that leads to a chain, or of a set.
pub(crate) fn leading(span: &Span, chain: Option<&String>, ranges: bool) -> Element {
    let data = chain.map(|chain| ElementData::Verdict(Verdict::Goto(chain.clone())));
    Element { data, ..span.element(ranges) }
}

/// Names the first of many.
fn some(texts: &[String]) -> String {
    let mut line = texts.get(..NAMED).unwrap_or(texts).join(", ");
    if NAMED < texts.len() {
        let _ = write!(line, " and {} more", texts.len() - NAMED);
    }
    line
}
