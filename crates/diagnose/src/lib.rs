#![doc = include_str!("../README.md")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod causes;
mod command;
pub mod filter;
mod finding;
pub mod model;
pub mod path;
mod question;
mod restored;
pub mod routes;
mod rules;
mod safe;
mod trial;
mod whose;

use std::collections::HashSet;

pub use causes::{Diagnosis, RootCause};
pub use finding::{Finding, Ignore, Severity, Way, WayKind};
pub use net::IpFamily;
pub use question::{Answer, Answers, Hop, Probe, Question};
pub use restored::BY_OTHERS;
pub use rules::{RULES, Rule, UnexaminedWay, not_tried};
pub use trial::{Trial, Trials};

use crate::model::Scene;

/// What a rule looks at.
#[derive(Debug, Clone, Copy)]
pub struct Look<'l> {
    /// The node.
    pub scene: &'l Scene,
    /// What probes found; empty if none was sent.
    pub answers: &'l Answers,
    /// The ID of the only container that is asked for; `None`: all.
    pub only: Option<&'l str>,
    /// What beyond the node is tried, as the caller named it.
    pub to: Option<std::net::SocketAddr>,
}

/// Returns the questions that the rules have about a scene, each once.
#[must_use]
pub fn questions(look: Look<'_>) -> Vec<Question> {
    let mut known = HashSet::new();
    let asked = RULES.iter().flat_map(|rule| rule.questions(look));
    asked.filter(|question| known.insert(question.clone())).collect()
}

/// Judges a scene by all rules, without what is ignored, and sorts the findings by cause.
#[must_use]
pub fn diagnose(look: Look<'_>, ignore: &[Ignore]) -> Diagnosis {
    let mut findings = Vec::new();
    for rule in RULES {
        for finding in rule.findings(look) {
            let is_listed = rule.ids.contains(&finding.id) || finding.id == "not-judged";
            debug_assert!(is_listed, "{} is not listed", finding.id);
            findings.push(finding);
        }
    }
    let unexamined = rules::unexamined(look, &findings);
    let (ignored, mut findings): (Vec<Finding>, Vec<Finding>) =
        findings.into_iter().partition(|finding| ignore.iter().any(|one| one.is_of(finding)));
    // What is so because of it is known with it.
    findings.retain(|finding| !causes::is_explained(finding, &ignored));
    let left_out = causes::sort(ignored, look.scene);
    let left_out = left_out.causes.len() + left_out.notes.len();
    let holes: Vec<Finding> =
        findings.iter().filter(|finding| finding.id == "not-seen").cloned().collect();
    // Who knows what was not read knows what was not judged.
    findings.retain(|finding| {
        finding.id != "not-judged" || holes.iter().any(|hole| rules::is_because_of(finding, hole))
    });
    safe::mend(&mut findings, look.scene);
    let mut diagnosis = Diagnosis { unexamined, left_out, ..causes::sort(findings, look.scene) };
    let was_tried = !look.answers.all.is_empty() || questions(look).is_empty();
    if !was_tried {
        diagnosis.doubt_filters();
    }
    diagnosis
}
