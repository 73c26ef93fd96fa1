//! Checks our dependencies: licences, what the executable must not link, duplicates, and which
//! crate may use which.
//!
//! This and the bill of materials are our own code, although `cargo deny` and `cargo cyclonedx`
//! exist: neither is in Debian, and to install them takes five minutes of processor time, of a run
//! that may take 20. `deny.toml` says the same to `cargo deny`, which runs where it is installed.

use std::collections::{BTreeMap, BTreeSet};

use crate::deny;
use crate::run::Program;

/// Licences that everything we use must be available under. *See* CONTRIBUTING.md.
pub(crate) const LICENCES: [&str; 9] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "MIT",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "0BSD",
];

/// What the executable `netwright` must not contain: it is blocking and small. The only code in it
/// that is compiled from C is ring, for databases of Open vSwitch at `ssl:` addresses.
const NOT_IN_EXECUTABLE: [&str; 11] = [
    "tokio",
    "async-std",
    "smol",
    "regex",
    "regex-automata",
    "openssl",
    "openssl-sys",
    "native-tls",
    "bindgen",
    "cmake",
    "pkg-config",
];

/// Crates present in two versions, each with the reason, and with the condition under which the
/// duplicate can go.
pub(crate) const DUPLICATES: [(&str, &str); 5] = [
    (
        "syn",
        "only in procedural macros; 2 is asked for by derive_more 0.99 (of netlink-packet-netfilter) and zerocopy",
    ),
    ("bitflags", "1 is asked for by smoltcp 0.14, which only the DHCP clients' tests use"),
    (
        "base64",
        "0.22 is asked for by k8s-openapi 0.29 and tower-http 0.7, beside kube's 0.23; the daemon's only",
    ),
    (
        "derive_more",
        "only a procedural macro; 0.99 is asked for by netlink-packet-netfilter, 2 by kube",
    ),
    (
        "getrandom",
        "0.2 is asked for by ring 0.17 and 0.3 by ahash 0.8, which kube uses; the daemon's only, beside tests' 0.4",
    ),
];

/// Our crates by layer: a crate uses only crates of a lower one.
const LAYERS: [(&str, u8); 38] = [
    ("netwright-net", 0),
    ("netwright-cni", 0),
    ("netwright-diagnose", 1),
    ("netwright-kernel", 1),
    ("netwright-state", 2),
    ("netwright-firewall", 3),
    ("netwright-ipam", 3),
    ("netwright-dhcp", 3),
    ("netwright-node-api", 3),
    ("netwright-cnm", 2),
    ("netwright-npwg", 2),
    ("netwright-policy", 2),
    ("netwright-cluster-ipam", 4),
    ("netwright-routing", 4),
    ("netwright-ovsdb", 2),
    ("netwright-wanted", 4),
    ("netwright-cni-invoke", 4),
    ("netwright-agent", 5),
    ("netwright-cni-plugin", 5),
    ("netwright-cni-runtime", 5),
    ("netwright-service-kit", 6),
    ("netwright-plugins", 6),
    ("netwright-cluster-client", 7),
    ("netwright-conformance", 7),
    ("netwright-doctor", 7),
    ("netwright-docker-service", 8),
    ("netwright-ipam-service", 8),
    ("netwright-multinet-service", 8),
    ("netwright-policy-service", 8),
    ("netwright-dhcp-service", 9),
    ("netwright-repair-service", 9),
    ("netwright-routing-service", 9),
    ("netwright", 10),
    ("netwright-daemon", 10),
    ("netwright-testkit", 11),
    ("netwright-benches", 12),
    ("netwright-fuzz", 12),
    ("netwright-release", 12),
];

/// Pairs that the layers allow and the design forbids.
const STRANGERS: [(&str, &str); 3] = [
    ("netwright-kernel", "netwright-cni"),
    ("netwright-kernel", "netwright-state"),
    ("netwright-diagnose", "netwright-cni"),
];

/// How the name of a service's crate ends.
const SERVICE: &str = "-service";

/// Fast-moving or heavy crates, by the beginning of their names, and the only crates of ours that
/// may name them, by the end of theirs.
const CONFINED: [(&str, &[&str]); 15] = [
    ("dhcproto", &["netwright-dhcp"]),
    ("flate2", &["netwright-release"]),
    ("md-5", &["netwright-release"]),
    ("netlink-", &["netwright-kernel"]),
    ("clap", &["netwright", "netwright-daemon", "netwright-service-kit", SERVICE]),
    ("regex-lite", &["netwright-plugins"]),
    ("k8s-openapi", &["netwright-cluster-client"]),
    ("kube", &["netwright-cluster-client"]),
    ("hyper-", &["netwright-cluster-client"]),
    ("tower", &["netwright-cluster-client"]),
    ("tokio", &["netwright-cluster-client", "netwright-daemon", "netwright-service-kit", SERVICE]),
    ("rustls", &["netwright-ovsdb"]),
    ("seccompiler", &["netwright-kernel"]),
    ("syscalls", &["netwright-kernel"]),
    ("smoltcp", &["netwright-dhcp"]),
];

/// A package as `cargo tree --prefix depth --format '{p}|{l}'` prints it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    depth: usize,
    name: String,
    version: String,
    licence: String,
    ours: bool,
}

/// Checks everything; the error lists every problem.
pub(crate) fn check() -> Result<String, String> {
    let triple = crate::run::host_triple()?;
    let tree = |what: &str| {
        let line = format!(
            "cargo tree --locked --target {triple} --prefix depth --charset ascii {what} --format"
        );
        Program::new(&line).arg("{p}|{l}").output().map(|text| parse(&text))
    };
    let all = tree("--workspace --edges normal,build,dev --no-dedupe")?;
    let executable = tree("--package netwright --edges normal,build --no-dedupe")?;
    let direct = tree("--workspace --edges normal,build --depth 1 --no-dedupe")?;
    let mut problems = licences(&all);
    problems.extend(forbidden(&executable));
    problems.extend(duplicates(&all));
    problems.extend(edges(&direct));
    if problems.is_empty() {
        let count = |packages: &[Package]| {
            packages
                .iter()
                .filter(|package| !package.ours)
                .map(|package| (&package.name, &package.version))
                .collect::<BTreeSet<_>>()
                .len()
        };
        return Ok(format!(
            "{} crates of others, {} in the executable; {}",
            count(&all),
            count(&executable),
            deny::check()?
        ));
    }
    problems.sort();
    problems.dedup();
    Err(problems.join("\n"))
}

fn parse(tree: &str) -> Vec<Package> {
    let package = |line: &str| {
        let (package, licence) = line.split_once('|')?;
        let digits = package.chars().take_while(char::is_ascii_digit).count();
        let depth = package.get(..digits)?.parse().ok()?;
        let mut words = package.get(digits..)?.split(' ');
        let name = words.next()?.to_owned();
        let version = words.next()?.trim_start_matches('v').to_owned();
        let ours = package.contains(" (/");
        Some(Package {
            depth,
            name,
            version,
            licence: licence.trim_end_matches(" (*)").to_owned(),
            ours,
        })
    };
    tree.lines().filter_map(package).collect()
}

fn licences(all: &[Package]) -> Vec<String> {
    let bad = all.iter().filter(|package| !is_allowed(&package.licence));
    bad.map(|Package { name, version, licence, .. }| {
        format!("{name} {version}: licence \"{licence}\"")
    })
    .collect()
}

/// Whether our licences alone satisfy an SPDX expression. (`/` is what old manifests write for
/// `OR`.)
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let (allowed, rest) = any_of(&words);
    allowed && rest.is_empty()
}

fn any_of<'a>(words: &'a [&'a str]) -> (bool, &'a [&'a str]) {
    let (mut allowed, mut rest) = all_of(words);
    while let ["OR", more @ ..] = rest {
        let (next, after) = all_of(more);
        (allowed, rest) = (allowed || next, after);
    }
    (allowed, rest)
}

fn all_of<'a>(words: &'a [&'a str]) -> (bool, &'a [&'a str]) {
    let (mut allowed, mut rest) = one(words);
    while let ["AND", more @ ..] = rest {
        let (next, after) = one(more);
        (allowed, rest) = (allowed && next, after);
    }
    (allowed, rest)
}

fn one<'a>(words: &'a [&'a str]) -> (bool, &'a [&'a str]) {
    match words {
        ["(", inner @ ..] => match any_of(inner) {
            (allowed, [")", rest @ ..]) => (allowed, rest),
            (_, rest) => (false, rest),
        },
        [licence, "WITH", exception, rest @ ..] => {
            (LICENCES.contains(&format!("{licence} WITH {exception}").as_str()), rest)
        }
        [licence, rest @ ..] => (LICENCES.contains(licence), rest),
        [] => (false, words),
    }
}

fn forbidden(executable: &[Package]) -> Vec<String> {
    let found =
        executable.iter().filter(|package| NOT_IN_EXECUTABLE.contains(&package.name.as_str()));
    found.map(|package| format!("{} must not be in the executable", package.name)).collect()
}

fn duplicates(all: &[Package]) -> Vec<String> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in all {
        versions.entry(&package.name).or_default().insert(&package.version);
    }
    let excused = |name: &str| DUPLICATES.iter().any(|(excused, _)| *excused == name);
    let mut problems = Vec::new();
    for (name, versions) in &versions {
        let list: Vec<_> = versions.iter().copied().collect();
        match (list.len(), excused(name)) {
            (2.., false) => problems.push(format!("{name} is there as {}", list.join(" and "))),
            (1, true) => problems.push(format!("{name} is there once: its exception can go")),
            _ => {}
        }
    }
    problems
}

fn edges(direct: &[Package]) -> Vec<String> {
    let layer =
        |name: &str| LAYERS.iter().find(|(known, _)| *known == name).map(|(_, layer)| *layer);
    let mut problems = Vec::new();
    let mut user = "";
    for Package { depth, name, ours, .. } in direct {
        if *depth == 0 {
            user = name;
            if user != "xtask" && layer(user).is_none() {
                problems.push(format!("{user} has no layer in xtask/src/dependencies.rs"));
            }
            continue;
        }
        let confined = CONFINED.iter().find(|(start, _)| name.starts_with(start));
        if let Some((_, users)) = confined
            && !users.iter().any(|one| user.ends_with(one))
        {
            let of_service = |user: &&'static str| if *user == SERVICE { "services" } else { user };
            let users: Vec<&str> = users.iter().map(of_service).collect();
            problems.push(format!("{user} uses {name}, which only {} may", users.join(", ")));
        }
        if *ours && layer(user) <= layer(name) {
            problems.push(format!("{user} uses {name}, which is not of a lower layer"));
        }
        if STRANGERS.contains(&(user, name)) {
            problems.push(format!("{user} must not know {name}"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::{duplicates, edges, forbidden, is_allowed, parse};

    #[test]
    fn licence_expressions_are_understood() {
        for (expression, expected) in [
            ("MIT", true),
            ("MIT OR Apache-2.0", true),
            ("MIT/Apache-2.0", true),
            ("Unlicense OR MIT", true),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
            ("GPL-3.0-only", false),
            ("MIT AND GPL-3.0-only", false),
            ("(MIT OR Apache-2.0) AND OpenSSL", false),
            ("Apache-2.0 WITH Other-exception", false),
            ("(MIT", false),
            ("", false),
        ] {
            assert_eq!(is_allowed(expression), expected, "{expression}");
        }
    }

    #[test]
    fn problems_are_found() {
        let tree = "0netwright-kernel v0.1.0 (/w/crates/kernel)|Apache-2.0\n\
                    1netwright-cni v0.1.0 (/w/crates/cni)|Apache-2.0\n\
                    1netlink-sys v0.9.0|MIT\n\
                    0netwright-cni v0.1.0 (/w/crates/cni)|Apache-2.0\n\
                    1netwright-plugins v0.1.0 (/w/crates/plugins)|Apache-2.0\n\
                    1netlink-sys v0.8.0|MIT\n\
                    1tokio v1.0.0|MIT (*)\n";
        let packages = parse(tree);
        assert_eq!(packages.len(), 7);
        assert_eq!(
            edges(&packages),
            [
                "netwright-kernel must not know netwright-cni",
                "netwright-cni uses netwright-plugins, which is not of a lower layer",
                "netwright-cni uses netlink-sys, which only netwright-kernel may",
                "netwright-cni uses tokio, which only netwright-cluster-client, netwright-daemon, netwright-service-kit, services may",
            ]
        );
        assert_eq!(duplicates(&packages), ["netlink-sys is there as 0.8.0 and 0.9.0"]);
        assert_eq!(forbidden(&packages), ["tokio must not be in the executable"]);
    }
}
