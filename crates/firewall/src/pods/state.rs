//! The table as it should be, as data.

use std::collections::BTreeMap;

use kernel::nft::Element;
use policy::Program;

use super::encode;
use super::layout::{self, Form};
use crate::declared::{ChainState, SetState, TableState};

/// Says what a program's table should be.
pub(crate) fn wanted(program: &Program, form: Form) -> TableState {
    TableState {
        exists: true,
        flags: 0,
        others: 0,
        chains: chains(program, form),
        sets: sets(program, form),
    }
}

fn chains(program: &Program, form: Form) -> BTreeMap<String, ChainState> {
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
    chains
}

fn sets(program: &Program, form: Form) -> BTreeMap<String, SetState> {
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
    sets
}
