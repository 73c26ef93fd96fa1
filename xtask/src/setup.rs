//! Installs what the tests need.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::ci::Extent;
use crate::kubernetes;
use crate::reference;
use crate::run::{Program, exists, quiet};

const PACKAGES: &str = include_str!("../debian-packages.txt");

/// The packages that only a full run uses.
const FULL_PACKAGES: &str = include_str!("../debian-packages-full.txt");

/// The program that Debian's packages ask before they start a service (`man 8 invoke-rc.d`).
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Its answer that no service may be started. The tests start what they need, each in its own
/// namespaces.
const NO_SERVICE: &str =
    "#!/bin/sh\n# Here while `cargo xtask setup` installs packages.\nexit 101\n";

/// Installs what is missing for a run, and returns what that was.
pub(crate) fn install(extent: Extent) -> Result<String, String> {
    Ok(format!("{}; {}", installed(extent)?, unpacked(extent)?))
}

/// Installs the packages that are missing for a run; compilers are among them.
pub(crate) fn installed(extent: Extent) -> Result<String, String> {
    let mut wanted: Vec<&str> = packages(PACKAGES).collect();
    if extent == Extent::Full {
        wanted.extend(packages(FULL_PACKAGES));
    }
    packages_of_debian(&wanted)
}

/// Unpacks what is not installed: only tests need it.
pub(crate) fn unpacked(extent: Extent) -> Result<String, String> {
    let mut said = vec![reference::unpacked()?, kubernetes::fetched()?];
    if extent == Extent::Full {
        said.push(reference::empty_debian()?);
    }
    Ok(said.join("; "))
}

/// Installs one of the packages, for callers that need no other.
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
    let _quiet = NoServices::begin(Path::new(POLICY))
        .map_err(|error| format!("write {POLICY}: {error} (root is needed)"))?;
    apt("apt-get update --quiet", "setup-update")?;
    apt(&format!("apt-get install --yes --quiet --no-install-recommends {list}"), "setup-install")
        .map_err(|error| format!("{error} (root is needed)"))?;
    Ok(format!("installed {list}"))
}

fn apt(line: &str, log: &str) -> Result<(), String> {
    Program::new(line).variable("DEBIAN_FRONTEND", "noninteractive").logged(log, quiet)?;
    Ok(())
}

/// While this value lives, installed packages start no services: a developer who only wants to run
/// tests gets neither a firewall nor a switch on the host.
struct NoServices<'p> {
    path: &'p Path,
    ours: bool,
}

impl<'p> NoServices<'p> {
    /// An administrator's own answer stays; an answer that a killed run left is taken over.
    fn begin(path: &'p Path) -> io::Result<Self> {
        match OpenOptions::new().write(true).create_new(true).mode(0o755).open(path) {
            Ok(mut file) => {
                let guard = Self { path, ours: true };
                file.write_all(NO_SERVICE.as_bytes())?;
                Ok(guard)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let ours = fs::read(path)? == NO_SERVICE.as_bytes();
                Ok(Self { path, ours })
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for NoServices<'_> {
    fn drop(&mut self) {
        if self.ours {
            let _ = fs::remove_file(self.path);
        }
    }
}

fn packages(list: &'static str) -> impl Iterator<Item = &'static str> {
    list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::{FULL_PACKAGES, NO_SERVICE, NoServices, PACKAGES, fs, packages};

    #[test]
    fn services_do_not_start_while_packages_are_installed() {
        let folder = std::env::temp_dir().join(format!("netwright-policy-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("policy-rc.d");
        let guard = NoServices::begin(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
        let answer = std::process::Command::new(&path).status().unwrap();
        assert_eq!(answer.code(), Some(101));
        drop(guard);
        assert!(!path.exists());

        fs::write(&path, NO_SERVICE).unwrap();
        drop(NoServices::begin(&path).unwrap());
        assert!(!path.exists(), "what a killed run left goes");

        fs::write(&path, "#!/bin/sh\nexit 0\n").unwrap();
        drop(NoServices::begin(&path).unwrap());
        assert!(path.exists(), "an administrator's stays");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn packages_are_names_each_once() {
        let mut seen = std::collections::BTreeSet::new();
        for name in [PACKAGES, FULL_PACKAGES].into_iter().flat_map(packages) {
            let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
            assert!(name.chars().all(valid), "{name}");
            assert!(seen.insert(name), "{name} is listed twice");
        }
        assert!(seen.contains("iproute2"));
    }
}
