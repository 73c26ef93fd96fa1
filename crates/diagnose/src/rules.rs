//! The rules, one file for each family of faults.

mod attachments;
mod configuration;
mod filters;
mod holes;
mod inside;
mod links;
mod names;
mod neighbours;
mod ports;
mod sizes;
mod switches;
mod ways;

use scene::Part;

use crate::finding::Finding;
use crate::question::Question;
use crate::Look;

/// A rule.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// The IDs of the findings that it returns.
    pub ids: &'static [&'static str],
    /// The parts of a scene that it needs. It says nothing of what it cannot see.
    pub needs: &'static [Part],
    /// The probes that it wants.
    pub asks: fn(Look<'_>) -> Vec<Question>,
    /// Judges.
    pub judge: fn(Look<'_>) -> Vec<Finding>,
}

/// Asks nothing.
fn nothing(_: Look<'_>) -> Vec<Question> {
    Vec::new()
}

/// All rules.
pub const RULES: &[Rule] = &[
    holes::RULE,
    configuration::RULE,
    attachments::RULE,
    switches::RULE,
    links::RULE,
    ways::RULE,
    filters::RULE,
    neighbours::RULE,
    ports::RULE,
    inside::RULE,
    names::RULE,
    sizes::RULE,
];
