//! The state of nftables: tables, chains, rules, sets and their contents, without handles and
//! counters.

use std::collections::BTreeSet;

use super::dump::{Object, Socket, attributes, hex};

const SUBSYSTEM: u16 = 10 << 8;
const GET_TABLE: u16 = SUBSYSTEM | 1;
const GET_CHAIN: u16 = SUBSYSTEM | 4;
const GET_RULE: u16 = SUBSYSTEM | 7;
const GET_SET: u16 = SUBSYSTEM | 10;
const GET_ELEMENTS: u16 = SUBSYSTEM | 13;
/// The kind of the answer, not of the request.
const NEW_TABLE: u16 = SUBSYSTEM;
const NEW_ELEMENTS: u16 = SUBSYSTEM | 12;

pub(super) fn look(socket: &Socket, facts: &mut BTreeSet<String>) {
    let tables = socket.dump(GET_TABLE, &[0; 4], &[]);
    if tables.is_empty() {
        return;
    }
    for table in tables.iter().filter(|table| table.kind == NEW_TABLE) {
        // NFTA_TABLE_NAME, _FLAGS, _USERDATA.
        facts.insert(format!("table {} {}{}", family(table), table.text(1), table.hex(&[2, 6])));
    }
    for chain in socket.dump(GET_CHAIN, &[0; 4], &[]) {
        // NFTA_CHAIN_TABLE, _NAME, _HOOK, _POLICY, _TYPE, _FLAGS.
        let what = chain.hex(&[4, 5, 7, 10]);
        facts.insert(format!("chain {} {} {}{what}", family(&chain), chain.text(1), chain.text(3)));
    }
    for rule in socket.dump(GET_RULE, &[0; 4], &[]) {
        // NFTA_RULE_TABLE, _CHAIN, _EXPRESSIONS, _USERDATA.
        let chain = format!("{} {} {}", family(&rule), rule.text(1), rule.text(2));
        let expressions = rule.attribute(4).map(without_counters).unwrap_or_default();
        facts.insert(format!("rule {chain} {expressions}{}", rule.hex(&[7])));
    }
    for set in socket.dump(GET_SET, &[0; 4], &[]) {
        let (table, name) = (set.text(1), set.text(2));
        // NFTA_SET_FLAGS, _KEY_TYPE, _KEY_LEN.
        let what = set.hex(&[3, 4, 5]);
        let place = format!("{} {table} {name}", family(&set));
        facts.insert(format!("set {place}{what}"));
        let header = [set.fixed[0], 0, 0, 0];
        let mut rest = attribute(1, table.as_bytes());
        rest.extend(attribute(2, name.as_bytes()));
        for answer in socket.dump(GET_ELEMENTS, &header, &rest) {
            if answer.kind != NEW_ELEMENTS {
                continue;
            }
            for (_, element) in attributes(answer.attribute(3).unwrap_or(&[])) {
                // NFTA_SET_ELEM_KEY, _DATA, _FLAGS, _USERDATA, _KEY_END.
                let parts = attributes(element).filter(|(kind, _)| [1, 2, 3, 6, 10].contains(kind));
                let parts: String =
                    parts.map(|(kind, content)| format!(" {kind}={}", hex(content))).collect();
                facts.insert(format!("element {place}{parts}"));
            }
        }
    }
}

fn family(object: &Object) -> u8 {
    object.fixed.first().copied().unwrap_or_default()
}

/// Returns a rule's expressions without what counters have counted.
fn without_counters(expressions: &[u8]) -> String {
    let mut text = String::new();
    for (_, expression) in attributes(expressions) {
        let name = attributes(expression).find(|(kind, _)| *kind == 1);
        if name.is_some_and(|(_, name)| name.starts_with(b"counter")) {
            text += "counter ";
        } else {
            text += &hex(expression);
        }
    }
    text
}

/// An attribute of a request: a text with its closing NUL.
fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
    let length = 4 + content.len() + 1;
    let mut bytes = Vec::with_capacity(length.next_multiple_of(4));
    bytes.extend(u16::try_from(length).expect("names are short").to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(content);
    bytes.resize(length.next_multiple_of(4), 0);
    bytes
}
