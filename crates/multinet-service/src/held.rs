//! What each sandbox has: one file each, which may vanish at a reboot, as that ends every sandbox.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use node_api::multinet::{AttachReport, Request, Sandbox};
use state::{Durability, FileError};

/// All sandboxes with several networks.
#[derive(Debug)]
pub(super) struct Sandboxes {
    folder: PathBuf,
    /// The sandbox files by pod (`namespace/name`): one, but two for a moment when a pod gets
    /// another sandbox.
    index: Mutex<HashMap<String, Vec<String>>>,
}

impl Sandboxes {
    pub(super) fn open(folder: PathBuf) -> Result<Self, FileError> {
        state::create_directory(&folder, 0o700)?;
        state::remove_abandoned(&folder);
        let held = Sandboxes { folder, index: Mutex::default() };
        let failed = |source| FileError::List { path: held.folder.clone(), source };
        for entry in std::fs::read_dir(&held.folder).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
            if let Some(attached) = held.read(&name) {
                held.note(&attached, name);
            }
        }
        Ok(held)
    }

    /// Records what a sandbox has.
    pub(super) fn put(&self, attached: &AttachReport) -> Result<(), FileError> {
        let name = file_name(&attached.sandbox);
        let text = serde_json::to_vec(attached).unwrap_or_default();
        state::write_atomic(&self.folder.join(&name), &text, 0o600, Durability::Volatile)?;
        self.note(attached, name);
        Ok(())
    }

    /// Records what a sandbox has now, if it still exists; says whether it does.
    pub(super) fn replace(&self, attached: &AttachReport) -> Result<bool, FileError> {
        // `remove` takes this lock too: a sandbox that is gone does not come back.
        let name = file_name(&attached.sandbox);
        let index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        if !index.values().flatten().any(|known| *known == name) {
            return Ok(false);
        }
        let text = serde_json::to_vec(attached).unwrap_or_default();
        state::write_atomic(&self.folder.join(&name), &text, 0o600, Durability::Volatile)?;
        Ok(true)
    }

    /// Removes the record of a sandbox.
    pub(super) fn remove(&self, sandbox: &Sandbox) -> Result<(), FileError> {
        let name = file_name(sandbox);
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        state::remove_file(&self.folder.join(&name))?;
        index.retain(|_, names| {
            names.retain(|known| *known != name);
            !names.is_empty()
        });
        Ok(())
    }

    /// Returns what the sandboxes of a pod have.
    pub(super) fn of_pod(&self, id: &str) -> Vec<AttachReport> {
        let index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let names = index.get(id).cloned().unwrap_or_default();
        drop(index);
        names.iter().filter_map(|name| self.read(name)).collect()
    }

    /// Returns all pods that have sandboxes.
    pub(super) fn pods(&self) -> Vec<String> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    fn read(&self, name: &str) -> Option<AttachReport> {
        let text = state::read_optional(&self.folder.join(name)).ok().flatten()?;
        serde_json::from_slice(&text).ok()
    }

    fn note(&self, attached: &AttachReport, name: String) {
        let id = format!("{}/{}", attached.pod.namespace, attached.pod.name);
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let names = index.entry(id).or_default();
        if !names.contains(&name) {
            names.push(name);
        }
    }
}

/// Returns the name that the plugin also gives to what it leaves for us about a sandbox.
fn file_name(sandbox: &Sandbox) -> String {
    let of = node_api::multinet::DetachReport { sandbox: sandbox.clone(), pod: None };
    Request::Detached(of).todo_name().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use node_api::Pod;

    use super::*;

    #[test]
    fn what_is_held_outlives_the_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let held = Sandboxes::open(dir.path().join("s")).unwrap();
        let pod = Pod { namespace: "ns".into(), name: "p".into(), uid: "7".into() };
        let sandbox = |container: &str| Sandbox {
            container: container.into(),
            ifname: "eth0".into(),
            netns: String::new(),
        };
        let attached = |container| AttachReport {
            sandbox: sandbox(container),
            pod: pod.clone(),
            ..AttachReport::default()
        };
        held.put(&attached("c1")).unwrap();
        held.put(&attached("c2")).unwrap();
        held.put(&attached("c1")).unwrap();
        let next = Sandboxes::open(dir.path().join("s")).unwrap();
        assert_eq!(next.of_pod("ns/p").len(), 2);
        next.remove(&sandbox("c1")).unwrap();
        next.remove(&sandbox("c1")).unwrap();
        assert_eq!(next.of_pod("ns/p"), [attached("c2")]);
        next.remove(&sandbox("c2")).unwrap();
        assert!(next.pods().is_empty());
    }
}
