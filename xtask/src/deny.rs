//! Checks where dependencies come from, and runs `cargo-deny` where it is installed.
//!
//! `deny.toml` contains the same rules as [`dependencies`](crate::dependencies): a test compares
//! them. Advisories need RustSec's database, which `cargo deny fetch` downloads; if it is missing,
//! the check reports that it did not look at them.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::run::{Program, exists, quiet, root};

/// The only permitted source of dependencies.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Our lock files: the workspace's, and the fuzz targets'.
const LOCKS: [&str; 2] = ["Cargo.lock", "fuzz/libfuzzer/Cargo.lock"];

/// How long `cargo deny` may take: it reads manifests and a database.
const DEADLINE: Duration = Duration::from_secs(120);

/// Checks sources and checksums, and runs `cargo-deny` if it is installed; returns what was
/// checked.
pub(crate) fn check() -> Result<String, String> {
    let mut problems = Vec::new();
    for lock in LOCKS {
        let text = fs::read_to_string(root().join(lock)).map_err(|e| format!("{lock}: {e}"))?;
        problems.extend(sources(lock, &text));
    }
    if !problems.is_empty() {
        return Err(problems.join("\n"));
    }
    if !exists("cargo-deny") {
        return Ok("all from the registry; no cargo-deny here".to_owned());
    }
    deny("bans licenses sources")?;
    if !has_advisories() {
        return Ok("cargo-deny: bans, licences, sources; no database of advisories here".to_owned());
    }
    deny("advisories")?;
    Ok("cargo-deny: bans, licences, sources, advisories".to_owned())
}

fn deny(what: &str) -> Result<(), String> {
    let line = format!("cargo deny --offline --locked check {what}");
    let run = Program::new(&line).deadline(DEADLINE).logged("deny", quiet);
    run.map(drop).map_err(|failed| format!("{}\n{}", failed.message, failed.lines.join("\n")))
}

/// Whether `cargo deny fetch` or `cargo audit` has run here: a folder with a database.
fn has_advisories() -> bool {
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    let entries = home.and_then(|home| fs::read_dir(home.join("advisory-dbs")).ok());
    entries.into_iter().flatten().flatten().any(|entry| entry.path().join("crates").is_dir())
}

/// Names packages of a lock file that come from elsewhere, or that have no checksum.
fn sources(file: &str, lock: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for package in packages(lock) {
        let LockedPackage { name, version, source, checksum } = package;
        match (source, checksum) {
            (None, _) if name.starts_with("netwright") || name == "xtask" => {}
            (None, _) => problems.push(format!("{file}: {name} {version} is a path, and not ours")),
            (Some(source), _) if source != REGISTRY => {
                problems.push(format!("{file}: {name} {version} is from {source}"));
            }
            (Some(_), None) => problems.push(format!("{file}: {name} {version} has no checksum")),
            (Some(_), Some(_)) => {}
        }
    }
    problems
}

/// A package of a lock file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockedPackage<'l> {
    pub(crate) name: &'l str,
    pub(crate) version: &'l str,
    pub(crate) source: Option<&'l str>,
    pub(crate) checksum: Option<&'l str>,
}

/// Lists the packages of a lock file.
pub(crate) fn packages(lock: &str) -> impl Iterator<Item = LockedPackage<'_>> {
    lock.split("[[package]]").skip(1).filter_map(|block| {
        let field = |key: &str| {
            block
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"'))
        };
        let (source, checksum) = (field("source"), field("checksum"));
        Some(LockedPackage { name: field("name")?, version: field("version")?, source, checksum })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dependencies::{DUPLICATES, LICENCES};

    /// Returns the list under a key of `deny.toml`.
    fn list(key: &str) -> Vec<String> {
        let text = fs::read_to_string(root().join("deny.toml")).unwrap();
        let (_, rest) = text.split_once(&format!("\n{key} = [")).unwrap();
        let (list, _) = rest.split_once(']').unwrap();
        list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn both_checks_have_the_same_rules() {
        assert_eq!(list("allow"), LICENCES);
        let skipped = list("skip");
        let names: Vec<_> = skipped.iter().filter_map(|skip| skip.split('@').next()).collect();
        assert_eq!(names, DUPLICATES.map(|(name, _)| name));
    }

    #[test]
    fn everything_comes_from_the_registry() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\
            source = \"registry+https://github.com/rust-lang/crates.io-index\"\nchecksum = \"00\"\n\n\
            [[package]]\nname = \"b\"\nversion = \"2.0.0\"\nsource = \"git+https://example.com/b#1\"\n\n\
            [[package]]\nname = \"c\"\nversion = \"3.0.0\"\n\n\
            [[package]]\nname = \"d\"\nversion = \"4.0.0\"\n\
            source = \"registry+https://github.com/rust-lang/crates.io-index\"\n\n\
            [[package]]\nname = \"netwright-cni\"\nversion = \"0.1.0\"\n";
        assert_eq!(
            sources("L", lock),
            [
                "L: b 2.0.0 is from git+https://example.com/b#1",
                "L: c 3.0.0 is a path, and not ours",
                "L: d 4.0.0 has no checksum",
            ]
        );
        for file in LOCKS {
            let text = fs::read_to_string(root().join(file)).unwrap();
            assert!(10 < packages(&text).count(), "{file}");
            assert_eq!(sources(file, &text), [""; 0]);
        }
    }
}
