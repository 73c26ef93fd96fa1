//! Cases and their verdicts.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::bench::Bench;

/// How binding the rule behind a case is (RFC 2119).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Level {
    /// A plugin that fails it does not conform.
    Must,
    /// A plugin that fails it should have a reason.
    Should,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Must => "MUST",
            Level::Should => "SHOULD",
        })
    }
}

/// What a plugin is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It makes the container's interface.
    Interface,
    /// It changes what the plugins before it made.
    Chained,
    /// Other plugins ask it for addresses.
    Ipam,
    /// Its kind is not known: it is tested only for what applies to every plugin.
    Unknown,
}

/// One requirement that the suite tests.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Its name, for `--case` and for reports.
    pub id: &'static str,
    /// How binding it is.
    pub level: Level,
    /// Where the rule is written: a section of the specification, `CONVENTIONS`, or the reference
    /// implementation.
    pub section: &'static str,
    /// The requirement, as one sentence.
    pub text: &'static str,
    /// The rules of `docs/spec/cni-1.1.0.toml` that it tests.
    pub rules: &'static [&'static str],
    /// The kinds of plugins it is for.
    pub kinds: &'static [Kind],
    /// The case that this one depends on: this one is skipped when that one failed.
    pub after: Option<&'static str>,
    /// Tests it.
    pub(crate) run: fn(&Bench) -> Outcome,
}

/// The result of a case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "verdict")]
pub enum Verdict {
    /// The plugin meets the requirement.
    Passed,
    /// It does not.
    Failed {
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
        /// The calls that led to it, in order.
        #[serde(default)]
        evidence: Vec<String>,
    },
    /// It could not be tested here: the machine lacks something, or a case before it failed.
    Skipped {
        /// Why.
        reason: String,
    },
    /// The requirement does not apply to this plugin.
    NotApplicable {
        /// Why.
        reason: String,
    },
}

/// Why a case ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    Failed {
        expected: String,
        found: String,
    },
    Skipped(String),
    NotApplicable(String),
    /// The suite's own machinery failed, not the plugin.
    Broken(String),
}

/// What a case's function returns.
pub(crate) type Outcome<T = ()> = Result<T, Stop>;

/// Fails the case.
pub(crate) fn fail<T>(expected: impl Into<String>, found: impl Into<String>) -> Outcome<T> {
    Err(Stop::Failed { expected: expected.into(), found: found.into() })
}

/// Fails the case unless something holds.
pub(crate) fn expect(holds: bool, expected: &str, found: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { fail(expected, found()) }
}

/// Ends the case as not applicable to the plugin.
pub(crate) fn not_applicable<T>(reason: impl Into<String>) -> Outcome<T> {
    Err(Stop::NotApplicable(reason.into()))
}

/// Turns an error of the suite's own machinery into `Stop::Broken`.
pub(crate) trait OrBroken<T> {
    fn or_broken(self, what: &str) -> Outcome<T>;
}

impl<T, E: fmt::Display> OrBroken<T> for Result<T, E> {
    fn or_broken(self, what: &str) -> Outcome<T> {
        self.map_err(|error| Stop::Broken(format!("{what}: {error}")))
    }
}

/// Defines a table of cases:
/// `"id" LEVEL "section" after "case" for KINDS [rules] "text" => function;`.
macro_rules! cases {
    ($( $id:literal $level:ident $section:literal $(after $after:literal)? for $kinds:ident
        [$($rule:literal),*] $text:literal => $run:expr; )*) => {
        &[$( $crate::case::Case {
            id: $id,
            level: $crate::case::Level::$level,
            section: $section,
            text: $text,
            rules: &[$($rule),*],
            kinds: $kinds,
            after: cases!(@after $($after)?),
            run: $run,
        } ),*]
    };
    (@after) => { None };
    (@after $after:literal) => { Some($after) };
}
pub(crate) use cases;

/// Every plugin.
pub(crate) const ANY: &[Kind] = &[Kind::Interface, Kind::Chained, Kind::Ipam, Kind::Unknown];
/// Every plugin that can have an attachment.
pub(crate) const ALL: &[Kind] = &[Kind::Interface, Kind::Chained, Kind::Ipam];
/// Plugins that make interfaces.
pub(crate) const INTERFACE: &[Kind] = &[Kind::Interface];
/// Plugins that change what exists.
pub(crate) const CHAINED: &[Kind] = &[Kind::Chained];
/// Plugins that act on links.
pub(crate) const LINKS: &[Kind] = &[Kind::Interface, Kind::Chained];
/// Plugins that give addresses.
pub(crate) const IPAM: &[Kind] = &[Kind::Ipam];
