//! Says what is wrong with the folders that an ADD writes to.

use std::path::Path;

use scene::Folder;

use crate::net::session::Session;

/// Reads the folders of our runtime and of our plugins. Those of address pools are read with the
/// pools.
pub(super) fn read(session: &Session) -> Vec<Folder> {
    let folders = [
        (session.runtime.cache().results_dir(), "what is attached"),
        (session.roots.run.as_path(), "the plugins' records"),
    ];
    let folder = |(path, holds): (&Path, &str)| Folder {
        path: path.display().to_string(),
        holds: holds.to_owned(),
        trouble: state::obstacle(path).map(str::to_owned),
    };
    folders.map(folder).into()
}
