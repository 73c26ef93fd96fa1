//! Says what is wrong with the folders that an ADD writes to.

use std::path::Path;

use diagnose::model::Folder;

use crate::node::Node;

/// Reads the folders of our runtime and of our plugins. Those of address pools are read with the
/// pools.
pub(super) fn read(node: &Node<'_>) -> Vec<Folder> {
    let folders = [
        (node.runtime.cache().results_dir(), "what is attached"),
        (node.roots.run.as_path(), "the plugins' records"),
    ];
    let folder = |(path, holds): (&Path, &str)| Folder {
        path: path.display().to_string(),
        holds: holds.to_owned(),
        trouble: state::obstacle(path).map(str::to_owned),
    };
    folders.map(folder).into()
}
