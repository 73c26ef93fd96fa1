//! The table as data: what should be there, and what is there.

use std::collections::BTreeMap;

use kernel::nft::{
    Element, ElementData, Expr, Hook, Key, KeyType, MapData, NewSet, RangeEnd, Value, Verdict,
};
use policy::Program;

use super::encode;
use super::layout::{self, Form};
use super::repair::Repair;
use crate::difference::Difference;

/// `linux include/uapi/linux/netfilter/nf_tables.h` NFT_SET_*.
const NFT_SET_ANONYMOUS: u32 = 0x1;
const NFT_SET_INTERVAL: u32 = 0x4;
const NFT_SET_MAP: u32 = 0x8;

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
    pub(crate) fn has_ranges(&self) -> bool {
        self.flags & NFT_SET_INTERVAL != 0
    }

    /// What nft calls it.
    pub(crate) fn word(&self) -> &'static str {
        if self.flags & NFT_SET_MAP == 0 { "set" } else { "map" }
    }

    /// Whether it belongs to a rule, and is removed with it.
    pub(crate) fn is_anonymous(&self) -> bool {
        self.flags & NFT_SET_ANONYMOUS != 0
    }
}

impl TableState {
    /// Says what should be there.
    pub(crate) fn of(program: &Program, form: Form) -> Self {
        let mut chains: BTreeMap<String, ChainState> = BTreeMap::new();
        for chain in layout::chains(form.site) {
            chains.entry(chain.name).or_default().hook = chain.hook;
        }
        for rule in layout::rules(form) {
            chains.entry(rule.chain).or_default().add_rule(rule.exprs);
        }
        for (name, lines) in &program.chains {
            let chain = chains.entry(name.clone()).or_default();
            chain.hook = layout::chain_of_program(name).hook;
            encode::rules(name, lines).into_iter().for_each(|rule| chain.add_rule(rule.exprs));
        }
        let mut verdicts: BTreeMap<String, Vec<Element>> = BTreeMap::new();
        for ((direction, at), chain) in encode::leading(program) {
            let led = encode::leads(&at, chain.clone());
            verdicts.entry(at.map(direction)).or_default().push(led);
            if encode::judges(Some(chain)) {
                verdicts.entry(at.keys(direction)).or_default().push(Element::new(at.key()));
            }
        }
        let mut sets: BTreeMap<String, SetState> = BTreeMap::new();
        for set in layout::sets(form.site) {
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
        form: Form,
    ) -> Difference {
        Repair::new(self, found, program, form).difference()
    }
}
