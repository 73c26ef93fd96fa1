//! The table as data: what should be there, what is there, and the difference.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use kernel::nft::{
    Batch, Element, ElementData, Expr, Hook, Key, KeyType, MapData, Mode, NewChain, NewSet,
    RangeEnd, Value, Verdict,
};
use policy::{Family, Program};

use super::{Logging, encode, layout};
use crate::difference::Difference;

/// `linux include/uapi/linux/netfilter/nf_tables.h` NFT_SET_*.
const NFT_SET_ANONYMOUS: u32 = 0x1;
const NFT_SET_INTERVAL: u32 = 0x4;
const NFT_SET_MAP: u32 = 0x8;
/// Chains within rules have such names, and go with their rules.
const ANONYMOUS_CHAIN: &str = "__chain";

/// A key: the bytes of its first and its last value, which are equal unless it is a range.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    first: Vec<u8>,
    last: Option<Vec<u8>>,
}

/// The elements of a set, and where they lead to in a map.
pub(crate) type Elements = BTreeMap<Span, Option<String>>;

/// The table.
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
    kind: SetKind,
    pub(crate) elements: Elements,
}

/// The type of a set, as far as we know types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetKind {
    pub(crate) key: Option<Vec<KeyType>>,
    pub(crate) data: Option<MapData>,
    pub(crate) flags: u32,
}

impl Span {
    fn of(element: &Element, ranges: bool) -> Self {
        let first = element.key.bytes().to_vec();
        let last = match &element.end {
            Some(RangeEnd::Single(last) | RangeEnd::Concatenated(last)) => {
                Some(last.bytes().to_vec())
            }
            // A range that nothing ends reaches the last key.
            None if ranges => Some(vec![0xff; first.len()]),
            None => None,
        };
        let last = last.filter(|last| *last != first);
        Span { first, last }
    }

    fn element(&self, ranges: bool) -> Element {
        let key = |bytes: &[u8]| Key::from_bytes(bytes);
        match &self.last {
            Some(last) => Element::range(key(&self.first), key(last)),
            None if ranges => Element::range(key(&self.first), key(&self.first)),
            None => Element::new(key(&self.first)),
        }
    }

    /// Writes it as nft does, except that a range is never shortened to a prefix.
    fn text(&self, kinds: &[KeyType]) -> String {
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

impl ChainState {
    /// Leaves out what packets change.
    pub(crate) fn add_rule(&mut self, rule: Vec<Expr>) {
        let at_rest = |expr: Expr| match expr {
            Expr::Counter { .. } => Expr::Counter { packets: 0, bytes: 0 },
            other => other,
        };
        self.rules.push(rule.into_iter().map(at_rest).collect());
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

    fn of(set: &NewSet, elements: &[Element]) -> Self {
        let flags = [(set.interval, NFT_SET_INTERVAL), (set.data.is_some(), NFT_SET_MAP)];
        let flags = flags.iter().filter(|flag| flag.0).fold(0, |all, flag| all | flag.1);
        let kind = SetKind { key: Some(set.key.clone()), data: set.data.clone(), flags };
        SetState::new(kind, elements)
    }
}

impl SetKind {
    fn has_ranges(&self) -> bool {
        self.flags & NFT_SET_INTERVAL != 0
    }

    fn word(&self) -> &'static str {
        if self.flags & NFT_SET_MAP == 0 { "set" } else { "map" }
    }

    /// Whether it belongs to a rule, and goes with it.
    pub(crate) fn is_anonymous(&self) -> bool {
        self.flags & NFT_SET_ANONYMOUS != 0
    }
}

impl TableState {
    /// Says what should be there.
    pub(crate) fn of(program: &Program, logging: Logging) -> Self {
        let mut chains: BTreeMap<String, ChainState> = BTreeMap::new();
        for chain in layout::chains() {
            chains.entry(chain.name).or_default().hook = chain.hook;
        }
        for rule in layout::rules(logging) {
            chains.entry(rule.chain).or_default().add_rule(rule.exprs);
        }
        for (name, lines) in &program.chains {
            let chain = chains.entry(name.clone()).or_default();
            lines.iter().for_each(|line| chain.add_rule(encode::rule(name, line).exprs));
        }
        let mut verdicts: BTreeMap<String, Vec<Element>> = BTreeMap::new();
        for ((direction, address), chain) in &program.verdicts {
            let family = Family::of(*address);
            let led = encode::leads(*address, chain.clone());
            let key = Element::new(led.key.clone());
            verdicts.entry(layout::map(*direction, family)).or_default().push(led);
            verdicts.entry(layout::keys(*direction, family)).or_default().push(key);
        }
        let mut sets: BTreeMap<String, SetState> = BTreeMap::new();
        for set in layout::sets() {
            let elements = verdicts.remove(&set.name).unwrap_or_default();
            sets.insert(set.name.clone(), SetState::of(&set, &elements));
        }
        for (name, set) in &program.sets {
            let state = SetState::of(&encode::new_set(name, set), &encode::elements(set));
            sets.insert(name.clone(), state);
        }
        TableState { exists: true, flags: 0, others: 0, chains, sets }
    }

    /// Compares what should be there with what is.
    pub(crate) fn difference(
        &self,
        found: &TableState,
        program: &Program,
        logging: Logging,
    ) -> Difference {
        let mut repair = Repair { wanted: self, found, program, logging, lines: Vec::new() };
        let batch = repair.batch();
        Difference::new(repair.lines, batch)
    }
}

/// How many elements a line names: after a flush there are thousands.
const NAMED: usize = 3;

struct Repair<'a> {
    wanted: &'a TableState,
    found: &'a TableState,
    program: &'a Program,
    logging: Logging,
    lines: Vec<String>,
}

/// What is different in the elements of a set.
#[derive(Default)]
struct Changed {
    gone: Vec<Element>,
    come: Vec<Element>,
}

impl<'a> Repair<'a> {
    /// Names the differences, and returns what repairs them.
    fn batch(&mut self) -> Batch {
        if !self.found.exists {
            self.tell(format!("missing: table {}", layout::table()));
            return encode::whole(self.program, self.logging);
        }
        // What cannot be changed is made anew, and with it everything.
        let anew = self.unchangeable();
        let chains = self.chains();
        let sets = self.sets();
        if anew {
            return encode::whole(self.program, self.logging);
        }
        if self.lines.is_empty() {
            return Batch::new();
        }
        self.repair(&chains, sets)
    }

    fn unchangeable(&mut self) -> bool {
        let before = self.lines.len();
        let table = layout::table();
        if self.found.flags != 0 {
            self.tell(format!("table {table} has flags {:#x}", self.found.flags));
        }
        if self.found.others != 0 {
            self.tell(format!(
                "foreign: {} objects of table {table} that are neither chains nor sets",
                self.found.others
            ));
        }
        let (wanted, found) = (self.wanted, self.found);
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
        before < self.lines.len()
    }

    /// Names what is different in chains, and returns those to write again.
    fn chains(&mut self) -> BTreeSet<String> {
        let table = layout::table();
        let (wanted, found) = (self.wanted, self.found);
        let mut again = BTreeSet::new();
        for (name, chain) in &wanted.chains {
            match found.chains.get(name) {
                None => self.tell(format!("missing: chain {name} of table {table}")),
                Some(there) if there.rules != chain.rules => {
                    self.tell(format!("chain {name} of table {table} has other rules"));
                }
                Some(_) => continue,
            }
            again.insert(name.clone());
        }
        for name in self.foreign_chains() {
            self.tell(format!("foreign: chain {name} of table {table}"));
        }
        again
    }

    /// Names what is different in sets, and returns how to change those that are there.
    fn sets(&mut self) -> BTreeMap<String, Changed> {
        let table = layout::table();
        let (wanted, found) = (self.wanted, self.found);
        let mut changed = BTreeMap::new();
        for (name, set) in &wanted.sets {
            match found.sets.get(name) {
                None => {
                    self.tell(format!("missing: {} {name} of table {table}", set.kind.word()));
                }
                Some(there) if there.kind == set.kind => {
                    changed.insert(name.clone(), self.elements(name, set, there));
                }
                Some(_) => {}
            }
        }
        for name in self.foreign_sets() {
            self.tell(format!("foreign: set {name} of table {table}"));
        }
        changed
    }

    fn elements(&mut self, name: &str, wanted: &SetState, found: &SetState) -> Changed {
        let kinds = wanted.kind.key.as_deref().unwrap_or_default();
        let name = format!("{} {name}", wanted.kind.word());
        let ranges = wanted.kind.has_ranges();
        let mut changed = Changed::default();
        let (mut missing, mut foreign, mut misled) = (Vec::new(), Vec::new(), Vec::new());
        for (span, leads) in &wanted.elements {
            let there = found.elements.get(span);
            if there == Some(leads) {
                continue;
            }
            let element = span.element(ranges);
            match there {
                Some(elsewhere) => {
                    let elsewhere = elsewhere.as_deref().unwrap_or("nowhere");
                    misled.push(format!("{} to {elsewhere}", span.text(kinds)));
                    changed.gone.push(element.clone());
                }
                None => missing.push(span.text(kinds)),
            }
            let verdict = leads.clone().map(|chain| ElementData::Verdict(Verdict::Goto(chain)));
            changed.come.push(Element { data: verdict, ..element });
        }
        for span in found.elements.keys().filter(|span| !wanted.elements.contains_key(*span)) {
            foreign.push(span.text(kinds));
            changed.gone.push(span.element(ranges));
        }
        for (what, texts) in
            [("missing from", missing), ("foreign in", foreign), ("led elsewhere by", misled)]
        {
            if !texts.is_empty() {
                self.tell(told(what, &name, &texts));
            }
        }
        changed
    }

    /// What refers goes before what is referred to, and comes after it.
    fn repair(&self, chains: &BTreeSet<String>, changed: BTreeMap<String, Changed>) -> Batch {
        let table = layout::table();
        let mut batch = Batch::new();
        let (foreign_chains, foreign_sets) = (self.foreign_chains(), self.foreign_sets());
        foreign_chains.iter().for_each(|name| batch.flush_chain(&table, *name));
        foreign_sets.iter().for_each(|name| batch.flush_set(&table, *name));
        for set in layout::sets() {
            if !self.found.sets.contains_key(&set.name) {
                batch.add_set(set);
            }
        }
        for (name, set) in &self.program.sets {
            if !self.found.sets.contains_key(name) {
                encode::add_set(&mut batch, name, set, Mode::Create);
            }
        }
        for chain in layout::chains() {
            if !self.found.chains.contains_key(&chain.name) {
                batch.add_chain(chain);
            }
        }
        for name in self.program.chains.keys() {
            if !self.found.chains.contains_key(name) {
                batch.add_chain(NewChain::regular(&table, name));
            }
        }
        chains.iter().for_each(|name| batch.flush_chain(&table, name));
        for rule in layout::rules(self.logging) {
            if chains.contains(&rule.chain) {
                batch.add_rule(rule);
            }
        }
        for (name, lines) in &self.program.chains {
            if chains.contains(name) {
                encode::add_rules(&mut batch, name, lines);
            }
        }
        for (name, Changed { gone, come }) in changed {
            if !gone.is_empty() {
                batch.delete_elements(&table, &name, gone);
            }
            if !come.is_empty() {
                batch.create_elements(&table, &name, come);
            }
        }
        self.fill_new_maps(&mut batch);
        foreign_chains.iter().for_each(|name| batch.delete_chain(&table, *name));
        foreign_sets.iter().for_each(|name| batch.delete_set(&table, *name));
        batch
    }

    /// Fills the maps of the layout that were missing, now that the chains are there.
    fn fill_new_maps(&self, batch: &mut Batch) {
        let fixed = layout::sets().into_iter().map(|set| set.name);
        for name in fixed.filter(|name| !self.found.sets.contains_key(name)) {
            let Some(set) = self.wanted.sets.get(&name) else { continue };
            let filled = set.elements.iter().map(|(span, leads)| {
                let verdict = leads.clone().map(|chain| ElementData::Verdict(Verdict::Goto(chain)));
                Element { data: verdict, ..span.element(false) }
            });
            let filled: Vec<Element> = filled.collect();
            if !filled.is_empty() {
                batch.create_elements(&layout::table(), &name, filled);
            }
        }
    }

    fn foreign_chains(&self) -> Vec<&'a str> {
        let (wanted, found) = (self.wanted, self.found);
        let is_foreign = |name: &&String| {
            !wanted.chains.contains_key(*name) && !name.starts_with(ANONYMOUS_CHAIN)
        };
        found.chains.keys().filter(is_foreign).map(String::as_str).collect()
    }

    fn foreign_sets(&self) -> Vec<&'a str> {
        let (wanted, found) = (self.wanted, self.found);
        let is_foreign = |(name, set): &(&String, &SetState)| {
            !wanted.sets.contains_key(*name) && !set.kind.is_anonymous()
        };
        found.sets.iter().filter(is_foreign).map(|(name, _)| name.as_str()).collect()
    }

    fn tell(&mut self, line: String) {
        self.lines.push(line);
    }
}

fn told(what: &str, set: &str, texts: &[String]) -> String {
    let named = texts.get(..NAMED).unwrap_or(texts).join(", ");
    let mut line = format!("{what} {set} of table {}: {named}", layout::table());
    if NAMED < texts.len() {
        let _ = write!(line, " and {} more", texts.len() - NAMED);
    }
    line
}
