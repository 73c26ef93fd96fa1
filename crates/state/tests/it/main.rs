//! Files, locks and the index in real directories.

#![allow(clippy::unwrap_used, reason = "tests")]

extern crate netwright_state as state;

mod file;
mod index;
mod lock;
mod shared;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

pub(crate) fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// The names in a directory, sorted.
pub(crate) fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
