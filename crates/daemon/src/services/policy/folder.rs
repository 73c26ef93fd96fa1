//! The source `file`: the same objects as a cluster has, as YAML or JSON in files.
//!
//! They are read again when they change. A file that cannot be read counts as it was when it could;
//! at the start, nothing is enforced before each can be read.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use policy::Refused;

use super::engine::Event;
use super::kinds::{Key, Kind, Object};
use super::objects::{self, FileRead};
use crate::services::folders::Folders;

/// The files.
#[derive(Debug)]
pub(super) struct Files {
    paths: Vec<PathBuf>,
    folders: Folders,
    /// What was in each file when it could be read last.
    last: BTreeMap<PathBuf, Content>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Content {
    objects: Vec<Object>,
    refused: Vec<Refused>,
}

impl Files {
    /// Watches folders, and the folders of files.
    pub(super) fn new(paths: &[PathBuf]) -> io::Result<Self> {
        // Of what does not exist yet it is not known whether it is a folder.
        let both = paths.iter().flat_map(|path| [Some(path.as_path()), path.parent()]);
        let folders = Folders::watching(both.flatten())?;
        Ok(Files { paths: paths.to_owned(), folders, last: BTreeMap::new() })
    }

    /// Returns what is readable when something has changed.
    pub(super) fn descriptor(&self) -> &OwnedFd {
        self.folders.descriptor()
    }

    /// Takes note of what has changed.
    pub(super) fn heard(&self) {
        self.folders.heard();
    }

    /// Reads everything. Returns what the files say, if that is known of all of them, and what is
    /// wrong with them.
    pub(super) fn look(&mut self) -> (Vec<Event>, Result<(), String>) {
        self.folders.watch();
        let read = match objects::read(&self.paths) {
            Ok(read) => read,
            // A folder that is gone is no folder without policies.
            Err(why) => return (Vec::new(), Err(why)),
        };
        let mut wrong = Vec::new();
        let mut now = BTreeMap::new();
        let mut is_whole = true;
        for FileRead { path, objects, .. } in read {
            match objects {
                Ok(values) => {
                    let mut content = Content::default();
                    for value in &values {
                        match Object::read(value) {
                            Ok(Some(object)) => content.objects.push(object),
                            // Another kind, such as a Deployment beside its policy.
                            Ok(None) => {}
                            Err(refused) => content.refused.push(refused),
                        }
                    }
                    now.insert(path, content);
                }
                Err(why) => {
                    let before = self.last.get(&path);
                    is_whole &= before.is_some();
                    let counts = if before.is_some() { "; what it had before counts" } else { "" };
                    wrong.push(format!("{}: {why}{counts}", path.display()));
                    now.extend(before.map(|before| (path, before.clone())));
                }
            }
        }
        wrong.extend(twice(&now));
        self.last = now;
        let wrong = if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) };
        (if is_whole { self.events() } else { Vec::new() }, wrong)
    }

    fn events(&self) -> Vec<Event> {
        // Of two objects of one name, that of the later file counts.
        let mut objects: BTreeMap<Key, &Object> = BTreeMap::new();
        for content in self.last.values() {
            objects.extend(content.objects.iter().map(|object| (object.key(), object)));
        }
        let mut events = vec![Event::Reread];
        let refused = self.last.values().flat_map(|content| &content.refused);
        events.extend(refused.cloned().map(Event::Unreadable));
        for kind in Kind::ALL {
            events.push(Event::Begin(kind));
            let of_kind = objects.iter().filter(|(key, _)| key.kind() == Some(kind));
            events.extend(of_kind.map(|(_, object)| Event::Listed((*object).clone())));
            events.push(Event::Complete(kind));
        }
        events
    }
}

/// Says which objects are in several files.
fn twice(files: &BTreeMap<PathBuf, Content>) -> Vec<String> {
    let mut found: BTreeMap<Key, &Path> = BTreeMap::new();
    let mut twice = Vec::new();
    for (path, content) in files {
        for object in &content.objects {
            let key = object.key();
            if let Some(before) = found.insert(key.clone(), path) {
                let (path, before) = (path.display(), before.display());
                twice.push(format!("{key} is in {before} and in {path}, which counts"));
            }
        }
    }
    twice
}
