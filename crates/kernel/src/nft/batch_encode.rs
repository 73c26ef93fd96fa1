//! Encodes a transaction. Attribute numbers: `linux include/uapi/linux/netfilter/nf_tables.h`
//! NFTA_*.

use super::batch::{Mode, Operation};
use super::expr_encode::{self, put_value, put_verdict};
use super::key::{Key, byteorder, length, type_number};
use super::names::{Family, Policy, TableRef};
use super::object::{Element, ElementData, MapData, NewChain, NewSet, RangeEnd};
use super::rule::NewRule;
use super::userdata;
use super::{msg, nfgenmsg};
use crate::wire::{Emitter, Writer};

/// `man 7 netlink`.
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;

/// `linux include/uapi/linux/netfilter/nf_tables.h`.
const NFT_TABLE_F_OWNER: u32 = 0x2;
const NFT_SET_INTERVAL: u32 = 0x4;
const NFT_SET_MAP: u32 = 0x8;
const NFT_SET_CONCAT: u32 = 0x80;
pub(crate) const NFT_SET_ELEM_INTERVAL_END: u32 = 0x1;
pub(crate) const NFT_SET_ELEM_CATCHALL: u32 = 0x2;
/// NFT_DATA_VERDICT: the data type of verdict maps.
pub(crate) const VERDICT_TYPE: u32 = 0xffff_ff00;
/// One message carries elements up to this size: below the 64 KiB of the attribute around them.
const ELEMENTS_SIZE: usize = 48 * 1024;

impl Operation {
    /// Passes its messages to `emit`: one, or several if its elements do not fit into one. `set_id`
    /// identifies a new set in its batch.
    pub(crate) fn encode(&self, set_id: u32, emit: Emitter<'_>) {
        match self {
            Self::AddTable { table, comment, mode } => {
                emit(msg::NEW_TABLE, mode.flags(), &|writer| {
                    begin(writer, table.family);
                    writer.put_text(1, &table.name);
                    put_comment(writer, 6, userdata::COMMENT, comment.as_deref());
                });
            }
            Self::AddOwnTable { table } => {
                emit(msg::NEW_TABLE, Mode::Create.flags(), &|writer| {
                    begin(writer, table.family);
                    writer.put_text(1, &table.name);
                    writer.put_u32_be(2, NFT_TABLE_F_OWNER);
                });
            }
            Self::WakeTable { table } => emit(msg::NEW_TABLE, 0, &|writer| {
                begin(writer, table.family);
                writer.put_text(1, &table.name);
                writer.put_u32_be(2, 0);
            }),
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
                    encode_rule(writer, rule, None);
                });
            }
            Self::InsertRule { rule } => {
                emit(msg::NEW_RULE, NLM_F_CREATE, &|writer| encode_rule(writer, rule, None));
            }
            Self::ReplaceRule { rule, handle } => {
                emit(msg::NEW_RULE, NLM_F_REPLACE, &|writer| {
                    encode_rule(writer, rule, Some(*handle));
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
            // The kernel wants a length beside the type but determines this one itself.
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

/// Writes elements in as many messages as they need.
fn encode_elements(
    emit: Emitter<'_>,
    kind: u16,
    flags: u16,
    table: &TableRef,
    set: &str,
    elements: &[Element],
) {
    let mut list: Vec<u8> = Vec::new();
    let mut one = Writer::new();
    for element in elements {
        one.clear();
        encode_element(&mut one, element);
        if !list.is_empty() && ELEMENTS_SIZE < list.len() + one.bytes().len() {
            emit(kind, flags, &|writer| begin_elements(writer, table, set, &list));
            list.clear();
        }
        list.extend_from_slice(one.bytes());
    }
    if !list.is_empty() {
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

/// Writes a query for one element.
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
    // A range of single keys is two elements: the second is marked and one past the last key; a
    // range up to the very last key has no second one.
    if let Some(RangeEnd::Single(last)) = &element.end
        && let Some(behind) = last.next()
    {
        writer.nest(1, |writer| {
            put_value(writer, 1, behind.bytes());
            writer.put_u32_be(3, NFT_SET_ELEM_INTERVAL_END);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::info::{decode_elements, join_ranges};
    use super::super::key::Value;
    use super::*;
    use crate::wire;

    /// Each of them once, in their order.
    #[test]
    fn elements_are_in_as_many_messages_as_they_need() {
        // An element with an IPv4 address takes 16 bytes.
        for (count, messages) in [(0_u32, 0), (1, 1), (3072, 1), (3073, 2)] {
            let element = |number| Element::new(Value::Ipv4(Ipv4Addr::from_bits(number)));
            let elements: Vec<Element> = (0..count).map(element).collect();
            let operation = Operation::AddElements {
                table: TableRef::new(Family::Inet, "t"),
                set: "s".to_owned(),
                elements: elements.clone(),
                mode: Mode::Add,
            };
            let mut writer = Writer::new();
            operation.encode(1, &mut |kind, flags, body| writer.message(kind, flags, 1, body));
            let found: Vec<Vec<Element>> = wire::messages(writer.bytes())
                .map(|message| join_ranges(decode_elements(&message).unwrap()))
                .collect();
            assert_eq!(found.len(), messages, "{count}");
            assert_eq!(found.concat(), elements);
        }
    }
}
