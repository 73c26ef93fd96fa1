//! Reads the tables of the older iptables, by `iptables-legacy-save`: the kernel shows them in a
//! form that differs from version to version.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use diagnose::model::filter::LegacyTable;

use crate::programs;

/// Where programs of the administrator are.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"];
/// How long one may run.
const TIMEOUT: Duration = Duration::from_secs(5);
/// In how many namespaces the program is run at most.
const RUNS: usize = 64;
/// How many rules are kept of a namespace.
const RULES: usize = 60_000;

/// Runs the program, but not for any number of namespaces.
#[derive(Debug, Default)]
pub(super) struct LegacyReader {
    runs: AtomicUsize,
}

/// What was read, and why the rest was not.
#[derive(Debug, Default)]
pub(super) struct ObservedTables {
    pub(super) tables: Vec<LegacyTable>,
    pub(super) left_out: Vec<String>,
    pub(super) unread: Option<String>,
}

impl LegacyReader {
    /// Reads the tables of the calling thread's namespace. Where the kernel says that there is
    /// none, nothing is run.
    pub(super) fn read(&self) -> ObservedTables {
        let mut found = ObservedTables::default();
        for (ipv4, names, program) in [
            (true, "/proc/thread-self/net/ip_tables_names", "iptables-legacy-save"),
            (false, "/proc/thread-self/net/ip6_tables_names", "ip6tables-legacy-save"),
        ] {
            match fs::read_to_string(names) {
                Ok(names) if names.trim().is_empty() => {}
                Ok(names) => self.add(&mut found, ipv4, &names, program),
                // The kernel has no such tables, or none was ever made.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => found.unread = Some(format!("{names}: {error}")),
            }
        }
        found
    }

    fn add(&self, found: &mut ObservedTables, ipv4: bool, names: &str, program: &str) {
        let tables: Vec<&str> = names.split_whitespace().collect();
        let tables = tables.join(", ");
        let Some(path) = installed(program) else {
            found.unread =
                Some(format!("there are tables ({tables}), and {program} is not installed"));
            return;
        };
        if RUNS <= self.runs.fetch_add(1, Ordering::Relaxed) {
            found.unread =
                Some(format!("there are tables ({tables}), as in {RUNS} namespaces before"));
            return;
        }
        match run(&path) {
            Ok(text) => {
                let mut read = parse(&text, ipv4);
                found.left_out.extend(cut(&mut read, RULES));
                found.tables.append(&mut read);
            }
            Err(reason) => found.unread = Some(format!("{}: {reason}", path.display())),
        }
    }
}

/// Returns the path of a program of the administrator.
pub(super) fn installed(program: &str) -> Option<PathBuf> {
    FOLDERS.iter().map(|folder| Path::new(folder).join(program)).find(|path| path.exists())
}

#[expect(clippy::disallowed_methods, reason = "only the program reads what the kernel shows")]
fn run(path: &Path) -> Result<String, String> {
    let output = programs::output(&mut Command::new(path), TIMEOUT);
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: {}", output.status, said.trim()))
}

/// Reads what the program prints.
fn parse(text: &str, ipv4: bool) -> Vec<LegacyTable> {
    let mut tables: Vec<LegacyTable> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            let (name, chains) = (name.trim().to_owned(), Vec::new());
            let (policies, rules) = (Vec::new(), Vec::new());
            tables.push(LegacyTable { ipv4, name, policies, chains, rules });
            continue;
        }
        let Some(table) = tables.last_mut() else { continue };
        if let Some(chain) = line.strip_prefix(':') {
            let mut words = chain.split_whitespace();
            match (words.next(), words.next()) {
                // It is not built in.
                (Some(name), Some("-")) => table.chains.push(name.to_owned()),
                (Some(name), Some(policy)) => {
                    table.policies.push((name.to_owned(), policy.to_owned()));
                }
                _ => {}
            }
        } else if line.starts_with("-A ") {
            table.rules.push(line.to_owned());
        }
    }
    tables
}

/// Keeps at most `left` rules. Returns what it leaves out.
fn cut(tables: &mut [LegacyTable], mut left: usize) -> Vec<String> {
    let mut left_out = Vec::new();
    for table in tables {
        if left < table.rules.len() {
            table.rules.truncate(left);
            let name = &table.name;
            left_out.push(format!("table {name} of iptables: all rules but the first {left}"));
        }
        left = left.saturating_sub(table.rules.len());
    }
    left_out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = "# Generated by iptables-save v1.8.9 on Thu Nov 26\n*filter\n:INPUT ACCEPT [12:3456]\n\
                         :FORWARD DROP [0:0]\n:DOCKER-USER - [0:0]\n-A FORWARD -s 10.88.0.0/24 -j ACCEPT\n\
                         -A DOCKER-USER -j RETURN\nCOMMIT\n*nat\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n";

    #[test]
    fn tables_policies_and_rules_are_read() {
        let tables = parse(SAVED, true);
        assert_eq!(tables.len(), 2);
        let own = |name: &str, policy: &str| (name.to_owned(), policy.to_owned());
        assert_eq!(tables[0].policies, [own("INPUT", "ACCEPT"), own("FORWARD", "DROP")]);
        assert_eq!(tables[0].chains, ["DOCKER-USER"]);
        assert_eq!(
            tables[0].rules,
            ["-A FORWARD -s 10.88.0.0/24 -j ACCEPT", "-A DOCKER-USER -j RETURN"]
        );
        assert_eq!((tables[1].name.as_str(), tables[1].rules.len()), ("nat", 0));
        assert_eq!(parse("-A FORWARD\n:X ACCEPT\nnonsense", true), []);
    }

    #[test]
    fn what_is_too_much_is_left_out_and_said() {
        let mut tables = parse(SAVED, false);
        assert_eq!(cut(&mut tables, 2), [""; 0]);
        assert_eq!(cut(&mut tables, 1), ["table filter of iptables: all rules but the first 1"]);
        assert_eq!(tables[0].rules.len(), 1);
    }
}
