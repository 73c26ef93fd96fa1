//! Which case tests which rule of the specification, and why some rules have no case.
//!
//! `docs/spec/cni-1.1.0.toml` lists the rules; a test compares the two.

use std::fmt::Write as _;

/// Rules without a case, each with its reason.
pub const WITHOUT_CASE: &[(&str, &[&str])] = &[
    (
        "A rule for authors of configurations.",
        &["network-name-unique", "reserved-keys", "config-constant"],
    ),
    (
        "A rule for runtimes. Here the suite is the runtime, so no plugin can break it.",
        &[
            "disable-check",
            "disable-gc",
            "load-only-inlined-plugins",
            "inlined-plugins-needed",
            "highest-version",
            "runtime-domain",
            "add-not-twice",
            "check-only-attached",
            "check-prev-result",
            "check-same-parameters",
            "gc-not-del",
            "netns-first",
            "netns-last",
            "no-parallel-on-a-container",
            "gc-exclusive",
            "all-parameters-set",
            "path-provided",
            "add-order",
            "add-missing-plugin",
            "add-halts",
            "add-stores-result",
            "delete-order",
            "delete-prev-result",
            "delete-halts",
            "check-disabled-succeeds",
            "check-order",
            "check-attachment-parameters",
            "gc-order",
            "request-version",
            "request-name",
            "request-type",
            "request-prev-result",
            "request-capabilities-removed",
            "request-valid-attachments",
            "request-rest-unaltered",
            "request-runtime-config",
        ],
    ),
    ("A rule for authors of the specification.", &["format-compatible"]),
    (
        "Each plugin documents what it does with `ipMasq` and `dns`; every case about delegates tests `ipam`.",
        &["well-known-keys"],
    ),
    (
        "No input makes every plugin fail with code 2: each plugin decides which fields it does not support.",
        &["error-unsupported-field"],
    ),
];

/// Lists the cases that test a rule.
pub fn cases_of(rule: &str) -> impl Iterator<Item = &'static str> {
    crate::cases().filter(move |case| case.rules.contains(&rule)).map(|case| case.id)
}

/// Returns the reason why a rule has no case.
#[must_use]
pub fn reason_of(rule: &str) -> Option<&'static str> {
    WITHOUT_CASE.iter().find(|(_, rules)| rules.contains(&rule)).map(|(reason, _)| *reason)
}

/// Lists the rules of the specification that have no case, each reason once, for
/// `docs/conformance.md`.
#[must_use]
pub fn list_of_rules_without_case() -> String {
    let mut text = String::new();
    for (reason, rules) in WITHOUT_CASE {
        let rules: Vec<_> = rules.iter().map(|rule| format!("`{rule}`")).collect();
        let _ = writeln!(text, "- {reason} {}", rules.join(", "));
    }
    text
}
