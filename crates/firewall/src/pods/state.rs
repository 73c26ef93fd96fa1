//! The table as it should be, as data.

use std::collections::BTreeMap;

use kernel::nft::Element;
use policy::Program;

use super::encode;
use super::layout::{self, Form};
use crate::declared::{self, ChainState, SetState, TableState};

/// Says what a program's table should be.
pub(crate) fn wanted(program: &Program, form: Form) -> TableState {
    TableState::new(chains(program, form), sets(program, form))
}

/// Says what the chains of a program's table should be.
pub(crate) fn chains(program: &Program, form: Form) -> BTreeMap<String, ChainState> {
    let chains = layout::chains(form.site).into_iter();
    let chains = chains.chain(program.chains.keys().map(|name| layout::chain_of_program(name)));
    let own = program.chains.iter().flat_map(|(name, lines)| encode::rules(name, lines));
    declared::chains(chains, layout::rules(form).into_iter().chain(own))
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
