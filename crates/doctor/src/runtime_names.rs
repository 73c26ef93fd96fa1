//! Names that Docker and podman have for containers, by their files.
//!
//! Both keep a file with a container's name and one of its processes; that process is in the
//! container's namespace.

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

/// The containers.
#[derive(Debug, Default)]
pub struct RuntimeNames {
    all: Vec<RuntimeContainer>,
    /// The node's own namespace.
    own: Option<NetnsId>,
}

/// A container, as its runtime's files have it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeContainer {
    /// Its ID.
    pub id: String,
    /// Its name.
    pub name: String,
    /// `Docker` or `podman`.
    runtime: &'static str,
    /// One of its processes, if it runs.
    pid: Option<u32>,
    netns: Option<NetnsId>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct DockerContainer {
    #[serde(rename = "ID")]
    id: String,
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
    pub fn read() -> Self {
        let mut all = dockers(Path::new(DOCKERS));
        all.extend(podmans(Path::new(PODMANS), Path::new(PODMANS_RUNNING)));
        for one in &mut all {
            let netns = one.pid.and_then(|pid| Netns::of_pid(pid).ok());
            one.netns = netns.map(|netns| netns.id());
        }
        RuntimeNames { all, own: Netns::current_id().ok() }
    }

    /// Returns the name of the container in the namespace at a path.
    pub fn of(&self, netns: &str) -> Option<String> {
        if self.all.is_empty() {
            return None;
        }
        let netns = Some(presence::identity(netns)?);
        let found = self.all.iter().find(|one| one.netns == netns && netns != self.own)?;
        Some(found.name.clone())
    }

    /// Returns the container of a name, an ID or the beginning of an ID that no other one has.
    pub fn find(&self, text: &str) -> Option<&RuntimeContainer> {
        let exact = self.all.iter().find(|one| one.name == text || one.id == text);
        let mut begins = self.all.iter().filter(|one| one.id.starts_with(text));
        exact.or_else(|| begins.next().filter(|_| begins.next().is_none()))
    }

    /// Returns the namespace of the container of a name or an ID.
    pub fn namespace(&self, text: &str) -> Option<NetnsId> {
        let mut all = self.all.iter();
        self.own_of(all.find(|one| one.name == text || one.id == text)?)
    }

    /// Returns a container's namespace; `None` if it does not run, or has that of the node itself.
    pub fn own_of(&self, container: &RuntimeContainer) -> Option<NetnsId> {
        container.netns.filter(|netns| Some(*netns) != self.own)
    }

    /// Says of a container that a text means why it has no namespace of its own to look at.
    pub fn why_not(&self, text: &str) -> Option<String> {
        let found = self.find(text)?;
        let (name, runtime) = (&found.name, found.runtime);
        if found.netns.is_none() {
            return Some(format!("{name} is a container of {runtime}'s, and does not run"));
        }
        let is_own = found.netns == self.own;
        is_own.then(|| {
            format!("{name} is a container of {runtime}'s, and has the network of this node itself")
        })
    }
}

impl RuntimeContainer {
    /// Returns the path of its namespace.
    pub(crate) fn path(&self) -> Option<String> {
        self.pid.map(|pid| format!("/proc/{pid}/ns/net"))
    }
}

/// Returns Docker's containers.
fn dockers(folder: &Path) -> Vec<RuntimeContainer> {
    let folders = std::fs::read_dir(folder).into_iter().flatten().flatten().take(MOST);
    let read = |path: PathBuf| {
        let found: DockerContainer = parse(&path.join("config.v2.json"))?;
        let is_running = found.state.running && found.state.pid != 0;
        let name = found.name.trim_start_matches('/').to_owned();
        let pid = is_running.then_some(found.state.pid);
        let one = RuntimeContainer { id: found.id, name, runtime: "Docker", pid, netns: None };
        (!one.name.is_empty()).then_some(one)
    };
    folders.filter_map(|entry| read(entry.path())).collect()
}

/// Returns podman's containers.
fn podmans(list: &Path, running: &Path) -> Vec<RuntimeContainer> {
    let all: Vec<PodmanContainer> = parse(list).unwrap_or_default();
    let read = |found: PodmanContainer| {
        // An ID has no folders in it.
        let folder = Path::new(&found.id).file_name()?.to_owned();
        let pid = state::read_optional(&running.join(folder).join("userdata/pidfile"));
        let pid = pid.ok().flatten().and_then(|pid| String::from_utf8(pid).ok());
        let pid = pid.and_then(|pid| pid.trim().parse().ok());
        let name = found.names.into_iter().next()?;
        Some(RuntimeContainer { id: found.id, name, runtime: "podman", pid, netns: None })
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
        let of = |all: Vec<RuntimeContainer>| {
            let mut all: Vec<(String, Option<u32>)> =
                all.into_iter().map(|one| (format!("{} {}", one.id, one.name), one.pid)).collect();
            cni::order::sort(&mut all);
            all
        };
        let stopped = (" old".to_owned(), None);
        let web = ("4711 web".to_owned(), Some(812));
        assert_eq!(of(dockers(&folder.path().join("d"))), [stopped, web]);
        write(
            "p.json",
            r#"[{"id": "aa", "names": ["db"]}, {"id": "bb", "names": ["stopped"]}, {"id": "cc"}]"#,
        );
        write("r/aa/userdata/pidfile", "913\n");
        let found = podmans(&folder.path().join("p.json"), &folder.path().join("r"));
        assert_eq!(of(found), [("aa db".to_owned(), Some(913)), ("bb stopped".to_owned(), None)]);
        assert_eq!(dockers(&folder.path().join("none")), []);
        assert_eq!(podmans(&folder.path().join("d"), &folder.path().join("none")), []);
    }
    #[test]
    fn a_container_is_found_by_its_name_and_its_id() {
        let one = |id: &str, name: &str, netns: Option<NetnsId>| RuntimeContainer {
            id: id.to_owned(),
            name: name.to_owned(),
            runtime: "Docker",
            pid: netns.map(|_| 1),
            netns,
        };
        let own = Netns::current_id().ok();
        let all = vec![one("4711", "web", own), one("4799", "47", None), one("5000", "db", None)];
        let names = RuntimeNames { all, own };
        let found = |text: &str| names.find(text).map(|one| one.id.clone()).unwrap_or_default();
        let texts = ["web", "4711", "471", "47", "4", "5", "other"];
        let ids = ["4711", "4711", "4711", "4799", "", "5000", ""];
        assert_eq!(texts.map(found), ids);
        assert_eq!((names.namespace("web"), names.namespace("db")), (None, None));
        let why = |text: &str| names.why_not(text).unwrap_or_default();
        assert!(why("web").ends_with("has the network of this node itself"), "{}", why("web"));
        assert!(why("db").ends_with("does not run"), "{}", why("db"));
        assert_eq!(why("other"), "");
    }
}
