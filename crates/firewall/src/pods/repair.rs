//! The transactions that repair what differs between the table and what it should be.

use kernel::nft::{Batch, Element, Mode};
use policy::Program;
use policy::program::OWN_NODE;

use super::encode;
use super::layout::{self, Form};
use super::state;
use crate::declared::{ElementDifference, TableDifference, TableState, leading};
use crate::difference::Difference;

/// Compares what is there with a program: in words, and as the transactions that repair it.
pub(crate) fn difference(found: &TableState, program: &Program, form: Form) -> Difference {
    // Without a table nothing is compared: reading a large program takes time.
    let wanted = match found.exists {
        true => state::wanted(program, form),
        false => TableState::default(),
    };
    let mut different = TableDifference::between(&wanted, found, &layout::table());
    let lines = std::mem::take(&mut different.lines);
    // If something cannot be changed, the whole table is made anew.
    if different.needs_new_table {
        return Difference::new(lines, encode::whole(program, form));
    }
    let repair = Repair { wanted: &wanted, program, form, different };
    let first = repair.first();
    Difference::new(lines, repair.second()).after(first)
}

struct Repair<'a> {
    wanted: &'a TableState,
    program: &'a Program,
    form: Form,
    different: TableDifference<'a>,
}

impl Repair<'_> {
    /// Makes the missing sets and chains but for the base chain of a program. As long as nothing
    /// leads to them, no packet meets them.
    fn first(&self) -> Batch {
        let missing = &self.different.missing_sets;
        let mut batch = Batch::new();
        for set in layout::sets(self.form.site) {
            if missing.contains(set.name.as_str()) {
                batch.add_set(set);
            }
        }
        for (name, set) in &self.program.sets {
            if missing.contains(name.as_str()) {
                encode::add_set(&mut batch, name, set, Mode::Create);
            }
        }
        let is_missing =
            |name: &str| name != OWN_NODE && self.different.missing_chains.contains(name);
        for chain in layout::chains(self.form.site) {
            if is_missing(&chain.name) {
                batch.add_chain(chain);
            }
        }
        for name in self.program.chains.keys().filter(|name| is_missing(name)) {
            batch.add_chain(layout::chain_of_program(name));
        }
        self.write(&mut batch, is_missing);
        batch
    }

    /// Writes the rules of some chains.
    fn write(&self, batch: &mut Batch, which: impl Fn(&str) -> bool) {
        for rule in layout::rules(self.form) {
            if which(&rule.chain) {
                batch.add_rule(rule);
            }
        }
        for (name, lines) in &self.program.chains {
            if which(name) {
                encode::add_rules(batch, name, lines);
            }
        }
    }

    /// Does everything else. Each object is removed after those that refer to it.
    fn second(&self) -> Batch {
        let table = layout::table();
        let different = &self.different;
        let (foreign_chains, foreign_sets) = (&different.foreign_chains, &different.foreign_sets);
        let mut batch = Batch::new();
        foreign_chains.iter().for_each(|name| batch.flush_chain(&table, *name));
        foreign_sets.iter().for_each(|name| batch.flush_set(&table, *name));
        different.changed_chains.iter().for_each(|name| batch.flush_chain(&table, *name));
        let is_new = |name: &str| name == OWN_NODE && different.missing_chains.contains(name);
        if self.program.chains.keys().any(|name| is_new(name)) {
            batch.add_chain(layout::chain_of_program(OWN_NODE));
        }
        self.write(&mut batch, |name| is_new(name) || different.changed_chains.contains(name));
        for (name, ElementDifference { gone, come }) in &different.elements {
            if !gone.is_empty() {
                batch.delete_elements(&table, *name, gone.clone());
            }
            if !come.is_empty() {
                batch.create_elements(&table, *name, come.clone());
            }
        }
        self.fill_new_maps(&mut batch);
        foreign_chains.iter().for_each(|name| batch.delete_chain(&table, *name));
        foreign_sets.iter().for_each(|name| batch.delete_set(&table, *name));
        batch
    }

    /// Fills the maps of the layout that were missing, now that the chains are there.
    fn fill_new_maps(&self, batch: &mut Batch) {
        let fixed = layout::sets(self.form.site).into_iter().map(|set| set.name);
        let is_missing = |name: &String| self.different.missing_sets.contains(name.as_str());
        for name in fixed.filter(is_missing) {
            let Some(set) = self.wanted.sets.get(&name) else { continue };
            let filled = set.elements.iter();
            let filled = filled.map(|(span, chain)| leading(span, chain.as_ref(), false));
            let filled: Vec<Element> = filled.collect();
            if !filled.is_empty() {
                batch.create_elements(&layout::table(), &name, filled);
            }
        }
    }
}
