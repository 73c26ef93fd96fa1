//! The folders that have an installation.

use std::path::{Path, PathBuf};

use agent::installed;
use state::Roots;

use super::folder::Folder;
use super::manifest::{self, Manifest};
use crate::failure::Failure;
use crate::net::runtimes::{Runtimes, USUAL};

/// A folder, and what `install` did in it, if it did something.
#[derive(Debug)]
pub(in crate::commands) struct Place {
    pub(super) dir: PathBuf,
    pub(super) installed: Option<Manifest>,
}

impl Place {
    /// Reads a folder's manifest.
    pub(in crate::commands) fn read(dir: &Path) -> Result<Self, Failure> {
        let installed = if dir.is_dir() { Manifest::read(dir)? } else { None };
        Ok(Place { dir: dir.to_owned(), installed })
    }

    /// Returns the folders that the installation made, the outer ones first: those that go when they
    /// are empty, and the folder of configurations, which stays, with those above it.
    pub(super) fn made(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        match &self.installed {
            Some(installed) => made(installed),
            None => (Vec::new(), Vec::new()),
        }
    }
}

/// Returns the same of a manifest.
pub(super) fn made(installed: &Manifest) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let configurations = installed.config.as_ref().and_then(|config| config.path.parent());
    let stays = |dir: &PathBuf| configurations.is_some_and(|folder| folder.starts_with(dir));
    installed.created_dirs.iter().cloned().partition(|dir| !stays(dir))
}

/// Returns the folders that go with these installations if they are empty then.
pub(in crate::commands) fn vanishing(places: &[Place]) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = places.iter().flat_map(|place| place.made().0).collect();
    cni::order::sort(&mut folders);
    folders.dedup();
    folders
}

/// Returns the folders in which the machine's runtimes look for plugins.
pub(super) fn looked_at(runtimes: &Runtimes) -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> =
        runtimes.found.iter().flat_map(|runtime| runtime.plugin_dirs.iter().cloned()).collect();
    dirs.push(USUAL.into());
    cni::order::sort(&mut dirs);
    dirs.dedup();
    dirs
}

/// Returns those among them that have an installation.
pub(super) fn filled(runtimes: &Runtimes) -> Vec<PathBuf> {
    let mut found = Vec::new();
    different(looked_at(runtimes), &mut found);
    found
}

/// Returns the folders that still have an installation once those in `going` are gone: runtimes look
/// in them, or our state records them.
pub(in crate::commands) fn remaining(
    going: &[Place],
    runtimes: &Runtimes,
    roots: &Roots,
) -> Vec<PathBuf> {
    let recorded = installed::all(roots).found.into_iter().map(|one| one.dir);
    let mut found: Vec<PathBuf> = going.iter().map(|place| place.dir.clone()).collect();
    let going = found.len();
    different(looked_at(runtimes).into_iter().chain(recorded), &mut found);
    found.split_off(going)
}

/// Adds folders with an installation, unless they are there already by another path.
fn different(dirs: impl IntoIterator<Item = PathBuf>, found: &mut Vec<PathBuf>) {
    let real = |dir: &Path| dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    for dir in dirs {
        if manifest::is_in(&dir) && !found.iter().any(|other| real(other) == real(&dir)) {
            found.push(dir);
        }
    }
}

/// Hands the configuration that an installation wrote over to one that remains, so that it goes with
/// that. Returns whether there is one.
pub(super) fn hand_over(installed: &Manifest, remaining: &[PathBuf]) -> Result<bool, Failure> {
    let (Some(config), [first, ..]) = (&installed.config, remaining) else { return Ok(false) };
    let mut has_it = false;
    for dir in remaining {
        let other = Manifest::read(dir)?;
        has_it |= other.is_some_and(|other| other.config.as_ref() == Some(config));
    }
    if !has_it {
        let _folder = Folder::open(first)?;
        if let Some(mut other) = Manifest::read(first)?.filter(|other| other.config.is_none()) {
            other.config = Some(config.clone());
            other.write(first)?;
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::new(dir.path().join("run"), dir.path().join("lib"));
        let [one, other] = ["one", "other"].map(|name| dir.path().join(name));
        let empty = dir.path().join("empty");
        for dir in [&one, &other] {
            std::fs::create_dir_all(manifest::folder_of(dir)).unwrap();
            std::fs::write(manifest::folder_of(dir).join("manifest.json"), "{").unwrap();
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&one, &link).unwrap();
        for dir in [&one, &other, &empty, &link] {
            let dir = dir.clone();
            installed::InstallRecord { dir, executables: vec![], linked: false, links: vec![] }
                .write(&roots)
                .unwrap();
        }
        let going = [Place { dir: link, installed: None }];
        // This machine's own folders may have an installation.
        let mut found = remaining(&going, &Runtimes::default(), &roots);
        found.retain(|found| found.starts_with(dir.path()));
        assert_eq!(found, [other]);
    }
}
