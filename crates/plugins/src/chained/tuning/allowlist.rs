//! The administrator's list of sysctls that configurations may set.

use std::path::Path;

use cni::code;
use regex_lite::Regex;

use crate::shared::failure::Failure;

/// Patterns, one per line; a key may be set if a pattern matches anywhere in it.
///
/// They are Go regular expressions. Syntax that Go supports and this parser does not (`\pL`,
/// `\Q…\E`) is an error, so no pattern silently matches something else.
#[derive(Debug)]
pub(super) struct Allowlist {
    patterns: Vec<Regex>,
}

impl Allowlist {
    /// Reads the file; `None` if there is none, which allows everything.
    ///
    /// # Errors
    /// Code 105 when it cannot be read, code 7 when a line is not a pattern.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, Failure> {
        let bytes = state::read_optional(path)?;
        let Some(bytes) = bytes else { return Ok(None) };
        let text = std::str::from_utf8(&bytes).map_err(|_| {
            Failure::new(
                code::INVALID_CONFIG,
                format!("sysctl allowlist {path:?} is not UTF-8 text"),
            )
        })?;
        Allowlist::parse(text, path).map(Some)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, Failure> {
        let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
        let patterns = lines.map(|(index, line)| {
            Regex::new(line).map_err(|error| {
                Failure::new(
                    code::INVALID_CONFIG,
                    format!(
                        "sysctl allowlist {path:?} line {}: invalid pattern {line:?}",
                        index + 1
                    ),
                )
                .with_details(error.to_string())
            })
        });
        Ok(Allowlist { patterns: patterns.collect::<Result<_, _>>()? })
    }

    /// Refuses a key, as the configuration writes it, that no pattern matches.
    ///
    /// # Errors
    /// Code 7 in the reference's words.
    pub(super) fn require(&self, key: &str) -> Result<(), Failure> {
        if self.patterns.iter().any(|pattern| pattern.is_match(key)) {
            return Ok(());
        }
        let patterns: Vec<_> = self.patterns.iter().map(Regex::as_str).collect();
        Err(Failure::new(
            code::INVALID_CONFIG,
            format!(
                "Sysctl {key} is not allowed. Only the following sysctls are allowed: [{}]",
                patterns.join(" ")
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use cni_plugin::codes;

    use super::*;

    #[track_caller]
    fn check(list: &str, key: &str, expect: Expect) {
        let verdict = Allowlist::parse(list, Path::new("/etc/cni/tuning/allowlist.conf"))
            .and_then(|list| list.require(key));
        expect.assert_eq(&match verdict {
            Ok(()) => "allowed".to_owned(),
            Err(error) => format!("code {}: {}", error.code(), error.message()),
        });
    }

    #[test]
    fn patterns_match_anywhere_in_the_key_as_written() {
        let list = "\n  ^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$ \r\n\ncore\n";
        check(list, "net.ipv4.conf.IFNAME.arp_notify", expect!["allowed"]);
        check(list, "net/core/somaxconn", expect!["allowed"]);
        check(
            list,
            "net.ipv4.ip_forward",
            expect![[
                r"code 7: Sysctl net.ipv4.ip_forward is not allowed. Only the following sysctls are allowed: [^net\.ipv4\.conf\.IFNAME\.[a-z_]*$ core]"
            ]],
        );
    }

    #[test]
    fn an_empty_list_allows_nothing() {
        check(
            "\n",
            "net.a",
            expect![
                "code 7: Sysctl net.a is not allowed. Only the following sysctls are allowed: []"
            ],
        );
    }

    #[test]
    fn a_line_that_is_no_pattern_is_named() {
        check(
            "net\\.\nnet.(ipv4\n",
            "net.a",
            expect![[
                r#"code 7: sysctl allowlist "/etc/cni/tuning/allowlist.conf" line 2: invalid pattern "net.(ipv4""#
            ]],
        );
        check(
            r"\pL",
            "net.a",
            expect![[
                r#"code 7: sysctl allowlist "/etc/cni/tuning/allowlist.conf" line 1: invalid pattern "\\pL""#
            ]],
        );
    }

    #[test]
    fn no_file_allows_everything_and_an_unreadable_one_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Allowlist::read(&dir.path().join("allowlist.conf")).unwrap().is_none());
        assert_eq!(Allowlist::read(dir.path()).unwrap_err().code(), codes::STATE);
    }
}
