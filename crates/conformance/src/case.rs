//! What a case is, and what becomes of one.

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
    /// Nobody told: only what holds for every plugin is asked of it.
    Unknown,
}

/// One thing that the suite asks of a plugin.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Its name, for `--case` and for reports.
    pub id: &'static str,
    /// How binding it is.
    pub level: Level,
    /// Where the rule stands: a section of the specification, `CONVENTIONS`, or the reference implementation.
    pub section: &'static str,
    /// What is asked, as one sentence.
    pub text: &'static str,
    /// The rules of `docs/spec/cni-1.1.0.toml` that it holds.
    pub rules: &'static [&'static str],
    /// The kinds of plugins it is for.
    pub kinds: &'static [Kind],
    /// The case without which this one means nothing: it is skipped when that one failed.
    pub after: Option<&'static str>,
    /// Asks it.
    pub(crate) run: fn(&Bench) -> Outcome,
}

/// What became of a case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "verdict")]
pub enum Verdict {
    /// The plugin does what is asked.
    Passed,
    /// It does not.
    Failed {
        /// What was expected.
        expected: String,
        /// What there was.
        found: String,
        /// The calls that led to it, the last one last.
        #[serde(default)]
        evidence: Vec<String>,
    },
    /// It could not be asked here: the machine lacks something, or a case before it failed.
    Skipped {
        /// Why.
        reason: String,
    },
    /// It means nothing for this plugin.
    NotApplicable {
        /// Why.
        reason: String,
    },
}

/// Why a case ended before its end.
#[derive(Debug)]
pub(crate) enum Stop {
    Failed {
        expected: String,
        found: String,
    },
    Skipped(String),
    NotApplicable(String),
    /// The laboratory broke, not the plugin.
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

/// Ends the case as meaningless for the plugin.
pub(crate) fn not_applicable<T>(reason: impl Into<String>) -> Outcome<T> {
    Err(Stop::NotApplicable(reason.into()))
}

/// Turns a failure of the laboratory into one of the suite's own.
pub(crate) trait OrBroken<T> {
    fn or_broken(self, what: &str) -> Outcome<T>;
}

impl<T, E: fmt::Display> OrBroken<T> for Result<T, E> {
    fn or_broken(self, what: &str) -> Outcome<T> {
        self.map_err(|error| Stop::Broken(format!("{what}: {error}")))
    }
}

/// Writes a table of cases: `"id" LEVEL "section" after "case" for KINDS [rules] "text" => function;`.
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
/// Every plugin of which an attachment can be made.
pub(crate) const ALL: &[Kind] = &[Kind::Interface, Kind::Chained, Kind::Ipam];
/// Plugins that make interfaces.
pub(crate) const INTERFACE: &[Kind] = &[Kind::Interface];
/// Plugins that change what is there.
pub(crate) const CHAINED: &[Kind] = &[Kind::Chained];
/// Plugins that act on links.
pub(crate) const LINKS: &[Kind] = &[Kind::Interface, Kind::Chained];
/// Plugins that give addresses.
pub(crate) const IPAM: &[Kind] = &[Kind::Ipam];
