//! The source `file`: a list of nodes, the same on each.

use std::path::{Path, PathBuf};

use routing::cluster::NodeRecord;
use routing::{Settings, file};

/// The file, and what it said last.
#[derive(Debug)]
pub(super) struct Nodes {
    path: PathBuf,
    /// Its content, or why it cannot be read; `None` before the first look.
    last: Option<Result<Vec<u8>, String>>,
}

impl Nodes {
    pub(super) fn new(path: &Path) -> Self {
        Nodes { path: path.to_owned(), last: None }
    }

    /// Returns the path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file; `None` if it is as it was at the last look.
    pub(super) fn look(&mut self, settings: &Settings) -> Option<Result<Vec<NodeRecord>, String>> {
        let found = match state::read_optional(&self.path) {
            Ok(Some(text)) => Ok(text),
            Ok(None) => Err(format!("{}: there is no such file", self.path.display())),
            Err(error) => Err(service_kit::stop::words(&error)),
        };
        if self.last.as_ref() == Some(&found) {
            return None;
        }
        // What the file had before goes now: each may have a megabyte.
        let found = self.last.insert(found);
        let read = match found.as_deref().map(std::str::from_utf8) {
            Ok(Ok(text)) => file::read(text, settings),
            Ok(Err(error)) => Err(error.to_string()),
            Err(why) => return Some(Err(why.clone())),
        };
        Some(read.map_err(|why| format!("{}: {why}", self.path.display())))
    }
}
