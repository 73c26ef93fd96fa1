//! Installing what the tests need.

use std::collections::BTreeSet;

use crate::reference;
use crate::run::{Program, exists, quiet};

const PACKAGES: &str = include_str!("../debian-packages.txt");

/// Installs what is missing, and says what.
pub(crate) fn install() -> Result<String, String> {
    let installed = packages_of_debian(&packages().collect::<Vec<_>>())?;
    Ok(format!("{installed}; {}", reference::unpacked()?))
}

/// Installs one of the packages, for who needs no other.
pub(crate) fn install_only(package: &str) -> Result<String, String> {
    packages_of_debian(&[package])
}

fn packages_of_debian(wanted: &[&str]) -> Result<String, String> {
    if !exists("dpkg-query") || !exists("apt-get") {
        return Ok(format!(
            "not a Debian system: install what these hold yourself: {}",
            wanted.join(" ")
        ));
    }
    let installed = Program::new("dpkg-query --show")
        .arg("--showformat=${Package} ${db:Status-Status}\\n")
        .output()?;
    let installed: BTreeSet<&str> =
        installed.lines().filter_map(|line| line.strip_suffix(" installed")).collect();
    let missing: Vec<&str> =
        wanted.iter().copied().filter(|name| !installed.contains(name)).collect();
    if missing.is_empty() {
        return Ok(format!("all {} Debian packages are there", wanted.len()));
    }
    let list = missing.join(" ");
    println!("apt-get install {list}");
    apt("apt-get update --quiet", "setup-update")?;
    apt(&format!("apt-get install --yes --quiet --no-install-recommends {list}"), "setup-install")
        .map_err(|error| format!("{error} (root is needed)"))?;
    Ok(format!("installed {list}"))
}

fn apt(line: &str, log: &str) -> Result<(), String> {
    Program::new(line).variable("DEBIAN_FRONTEND", "noninteractive").logged(log, quiet)?;
    Ok(())
}

fn packages() -> impl Iterator<Item = &'static str> {
    PACKAGES.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::packages;

    #[test]
    fn packages_are_names_each_once() {
        let mut seen = std::collections::BTreeSet::new();
        for name in packages() {
            let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
            assert!(name.chars().all(valid), "{name}");
            assert!(seen.insert(name), "{name} twice");
        }
        assert!(seen.contains("iproute2"));
    }
}
