//! Names that Docker and podman have for containers, by their files.
//!
//! Both keep a file with a container's name and one of its processes; that process is in the
//! container's namespace.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kernel::netns::{Netns, NetnsId};
use serde::Deserialize;

use crate::presence;

/// Docker's folder of containers, one folder with a file `config.v2.json` each.
const DOCKERS: &str = "/var/lib/docker/containers";
/// podman's list of containers, and its folder of running ones.
const PODMANS: &str = "/var/lib/containers/storage/overlay-containers/containers.json";
const PODMANS_RUNNING: &str = "/run/containers/storage/overlay-containers";
/// How many containers are looked at.
const MOST: usize = 20_000;

/// The names, with their namespaces.
#[derive(Debug, Default)]
pub struct RuntimeNames {
    by_namespace: BTreeMap<NetnsId, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct DockerContainer {
    name: String,
    state: DockerState,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct DockerState {
    running: bool,
    pid: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodmanContainer {
    id: String,
    names: Vec<String>,
}

impl RuntimeNames {
    /// Reads the files of this machine. A file that is missing or has another form names no
    /// container.
    #[must_use]
    pub fn read() -> Self {
        let mut names = Self::default();
        for (name, pid) in dockers(Path::new(DOCKERS))
            .into_iter()
            .chain(podmans(Path::new(PODMANS), Path::new(PODMANS_RUNNING)))
        {
            if let Ok(netns) = Netns::of_pid(pid) {
                names.by_namespace.entry(netns.id()).or_insert(name);
            }
        }
        // The node's own is no container's.
        if let Ok(own) = Netns::current_id() {
            names.by_namespace.remove(&own);
        }
        names
    }

    /// Returns the name of the container in the namespace at a path.
    #[must_use]
    pub fn of(&self, netns: &str) -> Option<String> {
        if self.by_namespace.is_empty() {
            return None;
        }
        self.by_namespace.get(&presence::identity(netns)?).cloned()
    }

    /// Returns the namespace of the container of a name.
    #[must_use]
    pub fn namespace(&self, name: &str) -> Option<NetnsId> {
        let mut all = self.by_namespace.iter();
        all.find(|(_, own)| *own == name).map(|(netns, _)| *netns)
    }
}

/// Returns the running containers' names and processes.
fn dockers(folder: &Path) -> Vec<(String, u32)> {
    let folders = std::fs::read_dir(folder).into_iter().flatten().flatten().take(MOST);
    let read = |path: PathBuf| {
        let found: DockerContainer = parse(&path.join("config.v2.json"))?;
        let is_running = found.state.running && found.state.pid != 0;
        let name = found.name.trim_start_matches('/').to_owned();
        (is_running && !name.is_empty()).then_some((name, found.state.pid))
    };
    folders.filter_map(|entry| read(entry.path())).collect()
}

fn podmans(list: &Path, running: &Path) -> Vec<(String, u32)> {
    let all: Vec<PodmanContainer> = parse(list).unwrap_or_default();
    let read = |found: PodmanContainer| {
        // An ID has no folders in it.
        let id = Path::new(&found.id).file_name()?;
        let pid = state::read_optional(&running.join(id).join("userdata/pidfile")).ok()??;
        let pid = std::str::from_utf8(&pid).ok()?.trim().parse().ok()?;
        Some((found.names.into_iter().next()?, pid))
    };
    all.into_iter().take(MOST).filter_map(read).collect()
}

fn parse<T: for<'de> Deserialize<'de>>(path: &Path) -> Option<T> {
    let bytes = state::read_optional(path).ok()??;
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_both_runtimes_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "d/4711/config.v2.json",
            r#"{"State": {"Running": true, "Pid": 812}, "ID": "4711", "Name": "/web"}"#,
        );
        write(
            "d/4712/config.v2.json",
            r#"{"State": {"Running": false, "Pid": 0}, "Name": "/old"}"#,
        );
        write("d/4713/config.v2.json", "garbage");
        assert_eq!(dockers(&folder.path().join("d")), [("web".to_owned(), 812)]);
        write(
            "p.json",
            r#"[{"id": "aa", "names": ["db"]}, {"id": "bb", "names": ["stopped"]}, {"id": "cc"}]"#,
        );
        write("r/aa/userdata/pidfile", "913\n");
        let found = podmans(&folder.path().join("p.json"), &folder.path().join("r"));
        assert_eq!(found, [("db".to_owned(), 913)]);
        assert_eq!(dockers(&folder.path().join("none")), []);
        assert_eq!(podmans(&folder.path().join("d"), &folder.path().join("none")), []);
    }
}
