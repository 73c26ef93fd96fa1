//! The crates that are published, and the check that cargo can pack them.
//!
//! The author of a plugin or a runtime needs seven of them; `ovsdb` and `dhcp` are useful by
//! themselves. All others say `publish = false`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::ci::{Extent, Report};
use crate::remap::cargo_home;
use crate::run::{Program, quiet, root};

/// The folders of the published crates, each after those that it needs.
pub(crate) const PUBLISHED: [&str; 9] =
    ["net", "cni", "kernel", "state", "cni-invoke", "cni-plugin", "cni-runtime", "ovsdb", "dhcp"];

/// With `--full` cargo also compiles what it has packed.
const DEADLINE: Duration = Duration::from_secs(1200);

/// Packs the published crates as `cargo publish` would upload them. With `--full` cargo also
/// compiles each of them from its package, and asks the registry as a real publication does.
pub(crate) fn check(extent: Extent) -> Result<Report, String> {
    let (verb, what) = match extent {
        Extent::EveryChange => ("package --no-verify", "packed"),
        Extent::Full => ("publish --dry-run", "ready to publish"),
    };
    if let Some(home) = cargo_home() {
        forget_unpacked(&home.join("registry/src"))?;
    }
    let line = format!("nice -n 5 cargo {verb} --quiet --locked --allow-dirty");
    let program = Program::new(&line).deadline(DEADLINE);
    let names = PUBLISHED.map(|folder| format!("--package=netwright-{folder}"));
    names.into_iter().fold(program, Program::arg).logged("publish", quiet)?;
    let manifest = root().join("Cargo.toml");
    let manifest = fs::read_to_string(&manifest)
        .map_err(|error| format!("{}: {error}", manifest.display()))?;
    let oldest = oldest_rust(&manifest).ok_or("Cargo.toml names no rust-version")?;
    let rust = about_rust(oldest, &Program::new("rustc --version").output()?);
    Ok(Report::check(format!("{} crates {what}; {rust}", PUBLISHED.len())))
}

/// Returns the oldest Rust that the crates are for, as the workspace's manifest says.
fn oldest_rust(manifest: &str) -> Option<&str> {
    let line = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \""));
    line?.strip_suffix('"')
}

/// Says whether the compiler at hand is of the oldest Rust that the crates are for: if it is, every
/// run shows that they are.
fn about_rust(oldest: &str, compiler: &str) -> String {
    let is = compiler.split(' ').nth(1).unwrap_or("unknown");
    let rest = is.strip_prefix(oldest);
    if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.')) {
        format!("Rust {is} is the oldest that they are for")
    } else {
        format!("by Rust {is}; the oldest that they are for, {oldest}, was not tried")
    }
}

/// Removes what cargo unpacked of our crates when it last compiled them: cargo does not notice that
/// a package of the same version has changed. Their registry is on this disk, so its name begins
/// with a dash, where the names of other registries have a host.
fn forget_unpacked(sources: &Path) -> Result<(), String> {
    let Ok(registries) = fs::read_dir(sources) else { return Ok(()) };
    let local = registries.flatten().filter(|one| one.file_name().as_encoded_bytes()[0] == b'-');
    for package in local.filter_map(|one| fs::read_dir(one.path()).ok()).flatten().flatten() {
        if package.file_name().as_encoded_bytes().starts_with(b"netwright-") {
            let path = package.path();
            fs::remove_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{PUBLISHED, about_rust, forget_unpacked, oldest_rust};
    use crate::run::root;

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    #[test]
    fn packages_of_an_earlier_run_are_forgotten() {
        let dir = std::env::temp_dir().join(format!("netwright-publish-{}", std::process::id()));
        for one in ["-0a/netwright-cni-0.1.0", "-0a/serde-1.0.0", "host-1b/netwright-cni-0.1.0"] {
            fs::create_dir_all(dir.join(one)).unwrap();
        }
        forget_unpacked(&dir).unwrap();
        assert!(!dir.join("-0a/netwright-cni-0.1.0").exists());
        assert!(dir.join("-0a/serde-1.0.0").exists());
        assert!(dir.join("host-1b/netwright-cni-0.1.0").exists());
        forget_unpacked(&dir.join("none")).unwrap();
        fs::remove_dir_all(&dir).unwrap();
    }

    /// Releases are built by the oldest Rust that the crates are for, so what uses a later one fails.
    #[test]
    fn the_oldest_rust_is_the_one_of_releases() {
        let manifest = read(&root().join("Cargo.toml"));
        let oldest = oldest_rust(&manifest).unwrap();
        let toolchain = read(&root().join("release/toolchain.toml"));
        assert!(toolchain.contains(&format!("\nchannel = \"{oldest}.")), "{toolchain}");
        let everywhere = "\nrust-version.workspace = true\n";
        for folder in folders() {
            assert!(read(&folder.join("Cargo.toml")).contains(everywhere), "{}", folder.display());
        }
        let tried = about_rust("1.95", "rustc 1.95.0 (59807616e 2026-04-14)\n");
        assert_eq!(tried, "Rust 1.95.0 is the oldest that they are for");
        let tried = about_rust("1.9", "rustc 1.95.0 (59807616e 2026-04-14)\n");
        assert_eq!(tried, "by Rust 1.95.0; the oldest that they are for, 1.9, was not tried");
    }

    fn folders() -> Vec<PathBuf> {
        let entries = fs::read_dir(root().join("crates")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Returns the value of a key in `[package]`.
    fn said<'m>(manifest: &'m str, key: &str) -> Option<&'m str> {
        let package = manifest.split("\n[").next().unwrap();
        package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "))
    }

    #[test]
    fn a_crate_is_published_or_says_that_it_is_not() {
        for folder in folders() {
            let name = folder.file_name().unwrap().to_str().unwrap();
            let manifest = read(&folder.join("Cargo.toml"));
            if !PUBLISHED.contains(&name) {
                assert_eq!(said(&manifest, "publish"), Some("false"), "{name}");
                continue;
            }
            let package = format!("\"netwright-{name}\"");
            assert_eq!(said(&manifest, "name"), Some(package.as_str()));
            assert_eq!(said(&manifest, "publish"), None, "{name}");
            for key in ["description", "readme", "keywords", "categories", "documentation"] {
                assert!(said(&manifest, key).is_some_and(|value| 4 < value.len()), "{name}: {key}");
            }
            let keywords = said(&manifest, "keywords").unwrap().matches(',').count() + 1;
            assert!((1..=5).contains(&keywords), "{name}: the registry takes five keywords");
            assert!(manifest.contains("\n[package.metadata.docs.rs]\n"), "{name}");
            let readme = read(&folder.join("README.md"));
            let has_example = ["```rust", "```no_run"].iter().any(|fence| readme.contains(fence));
            assert!(has_example, "{name}: README.md");
            let library = read(&folder.join("src/lib.rs"));
            let tested = "#![doc = include_str!(\"../README.md\")]";
            assert!(library.starts_with(tested), "{name}: nothing compiles the README's example");
            assert_eq!(read(&folder.join("LICENSE")), read(&root().join("LICENSE")), "{name}");
        }
    }

    /// A published crate needs published ones only, except in its tests.
    #[test]
    fn what_is_published_needs_nothing_that_is_not() {
        for (place, folder) in PUBLISHED.iter().enumerate() {
            let manifest = read(&root().join("crates").join(folder).join("Cargo.toml"));
            let (_, needed) = manifest.split_once("\n[dependencies]\n").unwrap();
            let needed = needed.split("\n[").next().unwrap();
            for (name, _) in needed.lines().filter_map(|line| line.split_once(" = ")) {
                let ours = root().join("crates").join(name).is_dir();
                assert!(!ours || PUBLISHED[..place].contains(&name), "{folder} needs {name}");
            }
        }
    }

    /// A crate's package contains no file outside the crate's folder.
    #[test]
    fn no_file_of_a_published_crate_is_outside_it() {
        for folder in PUBLISHED {
            let folder = root().join("crates").join(folder);
            let mut open = vec![folder.clone()];
            let mut sources = 0;
            while let Some(path) = open.pop() {
                if path.is_dir() {
                    open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    sources += 1;
                    let text = read(&path);
                    let named = ["include_str!(\"", "include_bytes!(\""]
                        .iter()
                        .flat_map(|call| text.split(call).skip(1))
                        .map(|rest| rest.split('"').next().unwrap());
                    for named in named {
                        let is = path.parent().unwrap().join(named).canonicalize().unwrap();
                        let within = is.starts_with(folder.canonicalize().unwrap());
                        assert!(within, "{} includes {named}", path.display());
                    }
                }
            }
            assert!(0 < sources);
        }
    }
}
