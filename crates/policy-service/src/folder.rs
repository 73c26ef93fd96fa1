//! The source `file`: the same objects as a cluster has, as YAML or JSON in files.
//!
//! They are read again when they change. A file that cannot be read counts as it was when it could;
//! at the start, nothing is enforced before each can be read.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use policy::Refusal;
use serde_json::Value;
use service_kit::folders::Folders;

use super::engine::Event;
use super::kinds::{Key, Kind, Object};
use super::objects::{self, ObjectFile, Place};
use super::said::{IgnoredObjects, ObjectClass, Remarks, said};

/// The files.
#[derive(Debug)]
pub(super) struct Files {
    paths: Vec<PathBuf>,
    folders: Folders,
    /// What was in each file when it could be read last.
    last: BTreeMap<PathBuf, Content>,
    /// What the log has said of them.
    told: BTreeSet<String>,
}

/// What is in a file.
#[derive(Debug, Clone, Default, PartialEq)]
struct Content {
    objects: Vec<Object>,
    /// The objects that cannot be read, with their places.
    refused: Vec<Refusal>,
    /// What is refused of other objects, with their places.
    faults: Vec<String>,
    /// Policies of other programs.
    foreign: IgnoredObjects,
    /// Everything else.
    others: IgnoredObjects,
}

impl Content {
    /// Reads the objects of a file.
    fn of(path: &Path, objects: &[Value], places: &[Place]) -> Self {
        let mut content = Content::default();
        let path = cni::text::one_line(path.display());
        for (object, place) in objects.iter().zip(places) {
            let read = match said(object) {
                Ok(ObjectClass::Read(kind)) => Object::of(kind, object),
                // A pod is known by its record; the workload that makes it does not matter.
                Ok(ObjectClass::Workload(_)) => {
                    let kind = object.get("kind").and_then(Value::as_str);
                    content.others.add(kind.unwrap_or_default());
                    continue;
                }
                Ok(ObjectClass::Other(other)) => {
                    let all = match other.is_policy {
                        true => &mut content.foreign,
                        false => &mut content.others,
                    };
                    all.add(other.name);
                    continue;
                }
                Err(refused) => Err(refused),
            };
            let at = |what: &dyn std::fmt::Display| format!("{path}: {place}: {what}");
            match read {
                Ok(object) => {
                    content.faults.extend(object.faults().iter().map(|fault| at(fault)));
                    content.objects.push(object);
                }
                Err(refused) => {
                    content.refused.push(Refusal { object: at(&refused.object), ..refused });
                }
            }
        }
        content
    }
}

impl Files {
    /// Watches folders, and the folders of files.
    pub(super) fn new(paths: &[PathBuf]) -> io::Result<Self> {
        // A path that does not exist yet may become a file or a folder.
        let both = paths.iter().flat_map(|path| [Some(path.as_path()), path.parent()]);
        let folders = Folders::watching(both.flatten())?;
        let (last, told) = (BTreeMap::new(), BTreeSet::new());
        Ok(Files { paths: paths.to_owned(), folders, last, told })
    }

    /// Returns what is readable when something has changed.
    pub(super) fn descriptor(&self) -> &OwnedFd {
        self.folders.descriptor()
    }

    /// Takes note of what has changed.
    pub(super) fn heard(&self) {
        self.folders.heard();
    }

    /// Reads everything, and logs what it has not logged before. Returns what the files say, if
    /// every file was read at least once, and what people should know of them besides.
    pub(super) fn look(&mut self) -> (Vec<Event>, Remarks) {
        self.folders.watch();
        let mut wrong = Vec::new();
        let is_whole = match objects::read(&self.paths) {
            Ok(read) => self.take(read, &mut wrong),
            Err(why) => {
                // A folder that is gone is not a folder without policies.
                wrong.push(why);
                false
            }
        };
        let events = if is_whole { self.events() } else { Vec::new() };
        let mut remarks = Remarks { wrong, ..Remarks::default() };
        let mut others = Vec::new();
        for (path, content) in &self.last {
            let path = cni::text::one_line(path.display());
            remarks.wrong.extend(content.refused.iter().map(ToString::to_string));
            remarks.faults.extend(content.faults.iter().cloned());
            let foreign = content.foreign.list();
            remarks.foreign.extend(
                foreign.map(|kinds| format!("{path}: ignored, and not enforced here: {kinds}")),
            );
            let kinds = content.others.list();
            others.extend(kinds.map(|kinds| format!("{path}: ignored: {kinds}")));
        }
        self.tell(&remarks, &others);
        (events, remarks)
    }

    /// Logs what it has not logged before.
    fn tell(&mut self, remarks: &Remarks, others: &[String]) {
        let before = std::mem::take(&mut self.told);
        let is_new = |text: &&String| !before.contains(*text);
        for error in remarks.wrong.iter().chain(&remarks.faults).filter(is_new) {
            tracing::error!(error, "files with policies");
        }
        for text in remarks.foreign.iter().filter(is_new) {
            tracing::warn!("{text}");
        }
        for text in others.iter().filter(is_new) {
            tracing::info!("{text}");
        }
        let Remarks { wrong, faults, foreign } = remarks;
        self.told = wrong.iter().chain(faults).chain(foreign).chain(others).cloned().collect();
    }

    /// Takes what was read. Returns whether the content of every file is known.
    fn take(&mut self, read: Vec<ObjectFile>, wrong: &mut Vec<String>) -> bool {
        let mut now = BTreeMap::new();
        let mut is_whole = true;
        for ObjectFile { path, objects, places } in read {
            match objects {
                Ok(objects) => {
                    let content = Content::of(&path, &objects, &places);
                    now.insert(path, content);
                }
                Err(why) => {
                    let before = self.last.get(&path);
                    is_whole &= before.is_some();
                    let counts = if before.is_some() { "; its last content is used" } else { "" };
                    wrong.push(format!("{}: {why}{counts}", path.display()));
                    now.extend(before.map(|before| (path, before.clone())));
                }
            }
        }
        wrong.extend(twice(&now));
        self.last = now;
        is_whole
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
                twice.push(format!("{key} is in {before} and in {path}; the latter is used"));
            }
        }
    }
    twice
}
