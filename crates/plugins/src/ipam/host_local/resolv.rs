//! Name servers from a file in the form of `man 5 resolv.conf`.

use std::path::Path;

use cni::{Dns, code};
use state::FileError;

use crate::shared::failure::Failure;

/// Reads a file.
///
/// # Errors
/// Code 7 when it does not exist or cannot be read: the configuration names it.
pub(super) fn read(path: &Path) -> Result<Dns, Failure> {
    let failed = |reason: &dyn std::fmt::Display| {
        Failure::new(code::INVALID_CONFIG, format!("open {}: {reason}", path.display()))
            .with_details("ipam.resolvConf names this file")
    };
    match state::read_optional(path) {
        Ok(Some(content)) => Ok(parse(&String::from_utf8_lossy(&content))),
        // Go's words for ENOENT.
        Ok(None) => Err(failed(&"no such file or directory")),
        Err(FileError::Read { source, .. }) => Err(failed(&source)),
        Err(error) => Err(failed(&error)),
    }
}

/// Parses text as the reference does: one server per line; `search` and `options` accumulate over
/// lines; the last `domain` counts; lines of one word or beginning with `#` or `;` are ignored.
fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(key) = words.next().filter(|word| !word.starts_with(['#', ';'])) else { continue };
        let values: Vec<String> = words.map(str::to_owned).collect();
        let Some(first) = values.first() else { continue };
        match key {
            "nameserver" => dns.nameservers.push(first.clone()),
            "domain" => dns.domain.clone_from(first),
            "search" => dns.search.extend(values),
            "options" => dns.options.extend(values),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_the_reference_reads_them() {
        let dns = parse(
            "# comment\n; another\n  #nameserver 192.0.2.9\nnameserver 192.0.2.1 192.0.2.2\n\
             nameserver\t2001:db8::1  # not a comment\ndomain a\ndomain b.example\nsearch x y\nsearch z\n\
             options ndots:2\noptions edns0 trust-ad\nsortlist 1\nnameserver\n\ngarbage",
        );
        let text = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            dns,
            Dns {
                nameservers: text(&["192.0.2.1", "2001:db8::1"]),
                domain: "b.example".to_owned(),
                search: text(&["x", "y", "z"]),
                options: text(&["ndots:2", "edns0", "trust-ad"]),
            }
        );
    }
}
