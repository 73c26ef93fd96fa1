//! Tables, chains, sets, elements and rules as the kernel describes them.

use super::batch_encode::{NFT_SET_ELEM_CATCHALL, NFT_SET_ELEM_INTERVAL_END, VERDICT_TYPE};
use super::expr::Expr;
use super::expr_decode;
use super::key::{Key, KeyType, types_from_number};
use super::names::{ChainType, Family, Hook, HookPoint, Policy, TableRef};
use super::object::{Element, ElementData, MapData, RangeEnd};
use super::{NFGENMSG, msg, userdata};
use crate::wire::{Attribute, Message};

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableInfo {
    /// Which.
    pub table: TableRef,
    /// Its number.
    pub handle: u64,
    /// How many chains, sets and other objects it contains.
    pub used: u32,
    /// NFT_TABLE_F_*: 1 is a table that sees no packets.
    pub flags: u32,
    /// Its comment.
    pub comment: Option<String>,
}

/// A chain.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChainInfo {
    /// Its table.
    pub table: TableRef,
    /// Its name.
    pub name: String,
    /// Its number.
    pub handle: u64,
    /// Its netfilter hook, if it is a base chain.
    pub hook: Option<Hook>,
    /// The links whose packets it sees, if it is a base chain of ingress or egress.
    pub devices: Vec<String>,
    /// The number of its rules plus the number of jumps to it.
    pub used: u32,
    /// Its comment.
    pub comment: Option<String>,
}

/// A set or map.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetInfo {
    /// Its table.
    pub table: TableRef,
    /// Its name.
    pub name: String,
    /// Its number.
    pub handle: u64,
    /// NFT_SET_*.
    pub flags: u32,
    /// The components of its keys; `None` if one is of a type unknown to this code.
    pub key: Option<Vec<KeyType>>,
    /// How long its keys are, in bytes.
    pub key_len: u32,
    /// How long each component of its keys is, in bytes and without padding, as the program that
    /// created it said. Empty if its keys have one component, and for most sets without ranges.
    pub fields: Vec<u32>,
    /// What it maps to, if it is a map (and of known types).
    pub data: Option<MapData>,
    /// Its comment.
    pub comment: Option<String>,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleInfo {
    /// Its table.
    pub table: TableRef,
    /// Its chain.
    pub chain: String,
    /// Its number, used to remove it.
    pub handle: u64,
    /// The comment nft shows; for a rule made by iptables see
    /// [`iptables_comment`](Self::iptables_comment).
    pub comment: Option<String>,
    /// Its expressions.
    pub exprs: Vec<Expr>,
}

impl RuleInfo {
    /// The chains that the rule itself jumps or goes to; chains that its maps lead to are not
    /// included.
    pub fn targets(&self) -> impl Iterator<Item = &str> {
        self.exprs.iter().filter_map(|expr| match expr {
            Expr::Verdict(verdict) => verdict.chain(),
            _ => None,
        })
    }

    /// The text of iptables' `-m comment --comment`.
    #[must_use]
    pub fn iptables_comment(&self) -> Option<String> {
        self.exprs.iter().find_map(|expr| match expr {
            // `linux include/uapi/linux/netfilter/xt_comment.h`: 256 bytes of text.
            Expr::XtMatch { name, info, .. } if name == "comment" => Some(crate::wire::text(info)),
            _ => None,
        })
    }

    pub(crate) fn decode(message: &Message<'_>) -> Option<Self> {
        let (family, attributes) = open(message, msg::NEW_RULE)?;
        let mut rule = Self {
            table: TableRef::new(family, ""),
            chain: String::new(),
            handle: 0,
            comment: None,
            exprs: Vec::new(),
        };
        for attribute in attributes {
            match attribute.kind {
                1 => rule.table.name = attribute.text(),
                2 => rule.chain = attribute.text(),
                3 => rule.handle = attribute.u64_be()?,
                4 => {
                    rule.exprs =
                        attribute.nested().map(|expr| expr_decode::decode(&expr)).collect();
                }
                7 => rule.comment = userdata::find_text(attribute.value, userdata::COMMENT),
                _ => {}
            }
        }
        Some(rule)
    }
}

/// `linux include/uapi/linux/netfilter/nf_tables.h`.
const NFT_TABLE_F_DORMANT: u32 = 0x1;

impl TableInfo {
    /// Says whether the table is switched off: it sees no packets.
    #[must_use]
    pub fn is_dormant(&self) -> bool {
        self.flags & NFT_TABLE_F_DORMANT != 0
    }

    pub(crate) fn decode(message: &Message<'_>) -> Option<Self> {
        let (family, attributes) = open(message, msg::NEW_TABLE)?;
        let mut table =
            Self { table: TableRef::new(family, ""), handle: 0, used: 0, flags: 0, comment: None };
        for attribute in attributes {
            match attribute.kind {
                1 => table.table.name = attribute.text(),
                2 => table.flags = attribute.u32_be().unwrap_or_default(),
                3 => table.used = attribute.u32_be().unwrap_or_default(),
                4 => table.handle = attribute.u64_be().unwrap_or_default(),
                6 => table.comment = userdata::find_text(attribute.value, userdata::COMMENT),
                _ => {}
            }
        }
        Some(table)
    }
}

impl ChainInfo {
    pub(crate) fn decode(message: &Message<'_>) -> Option<Self> {
        let (family, attributes) = open(message, msg::NEW_CHAIN)?;
        let mut chain = Self {
            table: TableRef::new(family, ""),
            name: String::new(),
            handle: 0,
            hook: None,
            devices: Vec::new(),
            used: 0,
            comment: None,
        };
        let (mut place, mut kind, mut policy) = (None, String::new(), None);
        for attribute in attributes {
            match attribute.kind {
                1 => chain.table.name = attribute.text(),
                2 => chain.handle = attribute.u64_be().unwrap_or_default(),
                3 => chain.name = attribute.text(),
                4 => {
                    place = read_hook(&attribute, family);
                    chain.devices = read_devices(&attribute);
                }
                5 => policy = attribute.u32_be(),
                6 => chain.used = attribute.u32_be().unwrap_or_default(),
                7 => kind = attribute.text(),
                12 => chain.comment = userdata::find_text(attribute.value, userdata::COMMENT),
                _ => {}
            }
        }
        chain.hook = place.map(|(point, priority)| Hook {
            point,
            priority,
            kind: ChainType::from_name(kind),
            policy: policy.map(|policy| if policy == 0 { Policy::Drop } else { Policy::Accept }),
        });
        Some(chain)
    }
}

fn read_hook(hook: &Attribute<'_>, family: Family) -> Option<(HookPoint, i32)> {
    let point = HookPoint::from_number(hook.find(1)?.u32_be()?, family)?;
    Some((point, hook.find(2)?.i32_be()?))
}

/// Reads NFTA_HOOK_DEV, and NFTA_HOOK_DEVS with its NFTA_DEVICE_NAME.
fn read_devices(hook: &Attribute<'_>) -> Vec<String> {
    let single = hook.find(3).map(|name| name.text());
    let several = hook.find(4).into_iter().flat_map(|list| list.nested());
    let several = several.filter(|name| name.kind == 1).map(|name| name.text());
    let mut names: Vec<String> = single.into_iter().chain(several).collect();
    names.dedup();
    names
}

impl SetInfo {
    pub(crate) fn decode(message: &Message<'_>) -> Option<Self> {
        let (family, attributes) = open(message, msg::NEW_SET)?;
        let mut set = Self {
            table: TableRef::new(family, ""),
            name: String::new(),
            handle: 0,
            flags: 0,
            key: None,
            key_len: 0,
            fields: Vec::new(),
            data: None,
            comment: None,
        };
        for attribute in attributes {
            match attribute.kind {
                1 => set.table.name = attribute.text(),
                2 => set.name = attribute.text(),
                3 => set.flags = attribute.u32_be().unwrap_or_default(),
                4 => set.key = attribute.u32_be().and_then(types_from_number),
                5 => set.key_len = attribute.u32_be().unwrap_or_default(),
                6 => {
                    set.data = match attribute.u32_be()? {
                        VERDICT_TYPE => Some(MapData::Verdict),
                        number => types_from_number(number).map(MapData::Values),
                    }
                }
                9 => set.fields = read_fields(&attribute),
                13 => set.comment = userdata::find_text(attribute.value, userdata::SET_COMMENT),
                16 => set.handle = attribute.u64_be().unwrap_or_default(),
                _ => {}
            }
        }
        Some(set)
    }
}

/// Reads NFTA_SET_DESC_CONCAT: NFTA_SET_FIELD_LEN of each field.
fn read_fields(description: &Attribute<'_>) -> Vec<u32> {
    let fields = description.find(2).into_iter().flat_map(|list| list.nested());
    fields.filter_map(|field| field.find(1)?.u32_be()).collect()
}

/// An element, or the marker of the end of a range of single keys.
#[derive(Debug)]
pub(crate) enum ListEntry {
    Element(Element),
    RangeEnd(Key),
    /// The element for all keys that have none: NFT_SET_ELEM_CATCHALL. Kernel: 5.13.
    CatchAll,
}

/// Reads the elements of one reply.
pub(crate) fn decode_elements(message: &Message<'_>) -> Option<Vec<ListEntry>> {
    let (_, attributes) = open(message, msg::NEW_ELEMENT)?;
    let lists = attributes.filter(|attribute| attribute.kind == 3);
    Some(
        lists
            .flat_map(|list| list.nested())
            .filter_map(|element| decode_element(&element))
            .collect(),
    )
}

fn decode_element(element: &Attribute<'_>) -> Option<ListEntry> {
    let flags = element.find(3).and_then(|flags| flags.u32_be()).unwrap_or_default();
    if flags & NFT_SET_ELEM_CATCHALL != 0 {
        return Some(ListEntry::CatchAll);
    }
    let key = Key::from_bytes(expr_decode::read_value(&element.find(1)?)?);
    let mut decoded = Element { key, end: None, data: None, comment: None };
    for attribute in element.nested() {
        match attribute.kind {
            2 => {
                let value = expr_decode::read_value(&attribute).map(Key::from_bytes);
                let verdict = || expr_decode::read_verdict(&attribute).map(ElementData::Verdict);
                decoded.data = value.map(ElementData::Value).or_else(verdict);
            }
            3 if attribute.u32_be()? & NFT_SET_ELEM_INTERVAL_END != 0 => {
                return Some(ListEntry::RangeEnd(decoded.key));
            }
            6 => decoded.comment = userdata::find_text(attribute.value, userdata::COMMENT),
            10 => {
                let last = expr_decode::read_value(&attribute).map(Key::from_bytes);
                decoded.end = last.map(RangeEnd::Concatenated);
            }
            _ => {}
        }
    }
    Some(ListEntry::Element(decoded))
}

/// Restores the elements' ends. Ranges of one set do not overlap, so the end of each is the next
/// marker after it.
pub(crate) fn join_ranges(listed: Vec<ListEntry>) -> Vec<Element> {
    let (mut elements, mut ends) = (Vec::new(), Vec::new());
    for entry in listed {
        match entry {
            ListEntry::Element(element) => elements.push(element),
            ListEntry::RangeEnd(key) => ends.push(key),
            ListEntry::CatchAll => {}
        }
    }
    ends.sort_unstable_by(|one, other| one.bytes().cmp(other.bytes()));
    if ends.is_empty() {
        return elements;
    }
    for element in &mut elements {
        let behind = ends.partition_point(|end| end.bytes() <= element.key.bytes());
        let last = match ends.get(behind) {
            Some(end) => end.previous(),
            None => Some(Key::from_bytes(vec![0xff; element.key.bytes().len()])),
        };
        element.end = last.map(RangeEnd::Single);
    }
    elements
}

/// Restores the ends of as many elements as were read of a larger set. A range whose end was not
/// read is left out.
pub(crate) fn join_some_ranges(listed: Vec<ListEntry>) -> Vec<Element> {
    let has_ends = listed.iter().any(|entry| matches!(entry, ListEntry::RangeEnd(_)));
    let mut elements = join_ranges(listed);
    elements.retain(|element| match &element.end {
        Some(RangeEnd::Single(last)) => last.bytes().iter().any(|byte| *byte != 0xff),
        Some(RangeEnd::Concatenated(_)) => true,
        None => !has_ends,
    });
    elements
}

/// Returns the family and the attributes of a message of a type; `None` if it has another.
fn open<'a>(
    message: &Message<'a>,
    kind: u16,
) -> Option<(Family, impl Iterator<Item = Attribute<'a>> + use<'a>)> {
    if message.kind != kind {
        return None;
    }
    let family = Family::from_number(*message.body.first()?)?;
    Some((family, message.attributes(NFGENMSG)))
}
