//! The difference between the table and what it should be: in words, and as the transactions that
//! repair it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use kernel::nft::{Batch, Element, ElementData, Mode, Verdict};
use policy::Program;
use policy::program::OWN_NODE;

use super::encode;
use super::layout::{self, Form};
use super::state::{SetState, TableState};
use crate::difference::Difference;

/// Chains within rules have such names, and are removed with their rules.
const ANONYMOUS_CHAIN: &str = "__chain";

/// How many elements a line names: after a flush there are thousands.
const NAMED: usize = 3;

/// The comparison of what should be there with what is.
pub(crate) struct Repair<'a> {
    wanted: &'a TableState,
    found: &'a TableState,
    program: &'a Program,
    form: Form,
    lines: Vec<String>,
}

/// What is different in the elements of a set.
#[derive(Default)]
struct SetDifference {
    gone: Vec<Element>,
    come: Vec<Element>,
}

impl<'a> Repair<'a> {
    pub(crate) fn new(
        wanted: &'a TableState,
        found: &'a TableState,
        program: &'a Program,
        form: Form,
    ) -> Self {
        Repair { wanted, found, program, form, lines: Vec::new() }
    }

    pub(crate) fn difference(mut self) -> Difference {
        let [first, batch] = self.batches();
        Difference::new(self.lines, batch).after(first)
    }

    /// Names the differences, and returns the transactions that repair them.
    fn batches(&mut self) -> [Batch; 2] {
        if !self.found.exists {
            self.tell(format!("missing: table {}", layout::table()));
            return [Batch::new(), encode::whole(self.program, self.form)];
        }
        // If something cannot be changed, the whole table is made anew.
        let anew = self.unchangeable();
        let chains = self.chains();
        let sets = self.sets();
        if anew {
            return [Batch::new(), encode::whole(self.program, self.form)];
        }
        [self.first(), self.repair(&chains, sets)]
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

    /// Names what is different in chains, and returns the existing ones to rewrite.
    fn chains(&mut self) -> BTreeSet<String> {
        let table = layout::table();
        let (wanted, found) = (self.wanted, self.found);
        let mut again = BTreeSet::new();
        for (name, chain) in &wanted.chains {
            match found.chains.get(name) {
                None => self.tell(format!("missing: chain {name} of table {table}")),
                Some(there) if there.rules != chain.rules => {
                    self.tell(format!("chain {name} of table {table} has other rules"));
                    again.insert(name.clone());
                }
                Some(_) => {}
            }
        }
        for name in self.foreign_chains() {
            self.tell(format!("foreign: chain {name} of table {table}"));
        }
        again
    }

    /// Names what is different in sets, and returns how to change the existing ones.
    fn sets(&mut self) -> BTreeMap<String, SetDifference> {
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

    fn elements(&mut self, name: &str, wanted: &SetState, found: &SetState) -> SetDifference {
        let kinds = wanted.kind.key.as_deref().unwrap_or_default();
        let name = format!("{} {name}", wanted.kind.word());
        let ranges = wanted.kind.has_ranges();
        let mut changed = SetDifference::default();
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

    /// Makes the missing sets and chains but for the base chain of a program. As long as nothing
    /// leads to them, no packet meets them.
    fn first(&self) -> Batch {
        let found = self.found;
        let mut batch = Batch::new();
        for set in layout::sets(self.form.site) {
            if !found.sets.contains_key(&set.name) {
                batch.add_set(set);
            }
        }
        for (name, set) in &self.program.sets {
            if !found.sets.contains_key(name) {
                encode::add_set(&mut batch, name, set, Mode::Create);
            }
        }
        let is_missing = |name: &String| name != OWN_NODE && !found.chains.contains_key(name);
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
    fn write(&self, batch: &mut Batch, which: impl Fn(&String) -> bool) {
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

    /// Each object is removed after those that refer to it.
    fn repair(&self, chains: &BTreeSet<String>, changed: BTreeMap<String, SetDifference>) -> Batch {
        let table = layout::table();
        let mut batch = Batch::new();
        let (foreign_chains, foreign_sets) = (self.foreign_chains(), self.foreign_sets());
        foreign_chains.iter().for_each(|name| batch.flush_chain(&table, *name));
        foreign_sets.iter().for_each(|name| batch.flush_set(&table, *name));
        chains.iter().for_each(|name| batch.flush_chain(&table, name));
        let is_new = |name: &str| name == OWN_NODE && !self.found.chains.contains_key(name);
        if self.program.chains.keys().any(|name| is_new(name)) {
            batch.add_chain(layout::chain_of_program(OWN_NODE));
        }
        self.write(&mut batch, |name| is_new(name) || chains.contains(name));
        for (name, SetDifference { gone, come }) in changed {
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
        let fixed = layout::sets(self.form.site).into_iter().map(|set| set.name);
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
