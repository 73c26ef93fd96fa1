//! Files and their contents.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

pub(super) fn look(path: &Path, facts: &mut BTreeSet<String>) {
    let Ok(metadata) = fs::symlink_metadata(path) else { return };
    let shown = path.display();
    if metadata.is_dir() {
        facts.insert(format!("folder {shown}"));
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            look(&entry.path(), facts);
        }
    } else if metadata.is_symlink() {
        let target = fs::read_link(path).unwrap_or_default();
        facts.insert(format!("link {shown} to {}", target.display()));
    } else if metadata.is_file() {
        let content = fs::read(path).unwrap_or_default();
        let content: String = String::from_utf8_lossy(&content).chars().take(400).collect();
        facts.insert(format!("file {shown} {content:?}"));
    } else {
        facts.insert(format!("special {shown}"));
    }
}
