//! Who goes on calling what a removal takes away: Docker's engine its network driver, and OCI
//! runtimes their hook.
//!
//! Neither notices a removal. Docker keeps a network of a driver that is gone, and can neither start
//! nor remove a container of it. A runtime whose hook is not there starts no container that the hook
//! is for.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cni::code;
use serde_json::Value;
use state::Roots;

use super::attached::listed;
use crate::failure::Failure;
use crate::net::runtimes::Runtimes;

/// The folders of the driver's records, and of their copies (docs/files.md, "Services of
/// `netwrightd`").
const RECORDS: &str = "docker";
const COPIES: &str = "docker/records";
const NETWORKS: &str = "networks";
const POOLS: &str = "pools";

/// Docker's own socket, and that of our driver. Docker calls a driver that is gone again and again for
/// half a minute; its own socket answers each call at once, that there is no such thing.
const DOCKER: &str = "/run/docker.sock";
const DRIVER: &str = "/run/docker/plugins/netwright.sock";

/// How many digits of an ID Docker shows.
const SHORT: usize = 12;

/// Where crun, runc and youki keep what they know of a container, below a folder of its name.
const CONTAINERS: [(&str, &str); 4] = [
    ("/run/crun", "config.json"),
    ("/run/runc", "state.json"),
    ("/run/youki", "config.json"),
    ("/run/youki", "youki_config.json"),
];

/// What Docker has of our driver.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::commands) struct DockerUse {
    /// The networks' IDs, as Docker shows them.
    networks: Vec<String>,
    /// The pools of addresses. Where there are pools and no network, they are of networks of another
    /// driver, of which Docker tells ours nothing else.
    pools: Vec<String>,
}

impl DockerUse {
    /// Reads the driver's records.
    pub(in crate::commands) fn find(roots: &Roots) -> Result<Self, Failure> {
        let of = |kind: &str| -> Result<Vec<String>, Failure> {
            let mut names = BTreeSet::new();
            for folder in [roots.lib.join(RECORDS), roots.run.join(COPIES)] {
                names.extend(records(&folder.join(kind))?);
            }
            Ok(names.into_iter().collect())
        };
        let short = |id: String| id.get(..SHORT).map_or(id.clone(), str::to_owned);
        let networks = of(NETWORKS)?.into_iter().map(short).collect();
        Ok(DockerUse { networks, pools: of(POOLS)? })
    }

    /// Returns what to call these networks; `None` if there are none.
    pub(in crate::commands) fn name(&self) -> Option<String> {
        let several = |one: &[String]| if one.len() == 1 { "" } else { "s" };
        match (self.networks.as_slice(), self.pools.as_slice()) {
            ([], []) => None,
            ([], pools) => {
                Some(format!("Docker's network{} of the pools {}", several(pools), listed(pools)))
            }
            (ids, _) => Some(format!("Docker's network{} {}", several(ids), listed(ids))),
        }
    }

    /// Refuses while there are any.
    pub(in crate::commands) fn refuse(&self) -> Result<(), Failure> {
        let Some(name) = self.name() else { return Ok(()) };
        Err(Failure::new(code::INVALID_CONFIG, format!("{name}: our driver serves it"))
            .because("without the driver, Docker starts none of its containers, and takes over a minute to remove one")
            .hint(format!(
                "while `netwrightd docker` runs: `docker rm -f` of its containers, then {}; if there \
                 is no Docker any more, give --force (for a package: NETWRIGHT_LEAVE_ATTACHED=1 in \
                 the environment)",
                self.remedy()
            )))
    }

    /// Returns the command that removes them.
    pub(in crate::commands) fn remedy(&self) -> String {
        match self.networks.is_empty() {
            true => "`docker network rm` of those with `--ipam-driver netwright`".to_owned(),
            false => format!("`docker network rm {}`", self.networks.join(" ")),
        }
    }

    /// Says what Docker does without the driver; `None` if there are no such networks.
    pub(in crate::commands) fn left(&self) -> Option<String> {
        let name = self.name()?;
        Some(format!(
            "{name}: without the driver, Docker starts none of its containers, and takes over a minute \
             to remove one, unless `ln -sf {DOCKER} {DRIVER}` lets its calls fail at once"
        ))
    }
}

/// Returns the names of a folder's records.
fn records(folder: &Path) -> Result<Vec<String>, Failure> {
    let failed = |error: std::io::Error| {
        Failure::of(code::IO_FAILURE, &error).context(format_args!("read {}", folder.display()))
    };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".json").map(str::to_owned));
    }
    Ok(names)
}

/// Returns the files that have a runtime call one of these executables as a hook.
pub(in crate::commands) fn hooks(executables: &[PathBuf]) -> Vec<PathBuf> {
    let calls = |file: &PathBuf| {
        let bytes = state::read_optional(file).ok().flatten().unwrap_or_default();
        let read: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        // In version 0.1.0 the path stands there itself (`man 5 oci-hooks`).
        let path = read["hook"].as_str().or(read["hook"]["path"].as_str());
        path.is_some_and(|path| executables.iter().any(|one| one == Path::new(path)))
    };
    let mut files = Runtimes::hooks();
    files.retain(calls);
    files
}

/// Refuses while a runtime's configuration calls one of these executables as a hook.
pub(in crate::commands) fn refuse_hooks(executables: &[PathBuf]) -> Result<(), Failure> {
    let files = hooks(executables);
    if files.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    Err(Failure::new(code::INVALID_CONFIG, "a runtime calls our executable as a hook")
        .because(listed(&names))
        .because("without it, no container starts that the hook is for")
        .hint(format!("rm {} (docs/oci-hook.md); --force goes on", names.join(" "))))
}

/// Says what no longer works of hooks that call these executables.
pub(in crate::commands) fn left_by_hooks(executables: &[PathBuf]) -> Vec<String> {
    let line = |file: PathBuf| {
        format!("{}: it calls what is removed; no container starts that it is for", file.display())
    };
    hooks(executables).into_iter().map(line).collect()
}

/// Returns the containers of crun, runc and youki that have this executable as a hook. Their runtime
/// calls it when it deletes them; crun ends with 141 (SIGPIPE) if it is not there.
pub(super) fn containers(executable: &Path) -> Vec<String> {
    let quoted = format!("\"{}\"", executable.display());
    let mut ids = BTreeSet::new();
    for (folder, name) in CONTAINERS {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let read = state::read_optional(&entry.path().join(name)).ok().flatten();
            if String::from_utf8_lossy(&read.unwrap_or_default()).contains(&quoted) {
                ids.insert(entry.file_name().to_string_lossy().into_owned());
            }
        }
    }
    ids.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_docker_are_known_by_either_record() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::new(dir.path().join("run"), dir.path().join("lib"));
        assert_eq!(DockerUse::find(&roots).unwrap().left(), None);
        let write = |folder: PathBuf, name: &str| {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(name), "").unwrap();
        };
        write(roots.run.join("docker/records/pools"), "lan.10.71.0.0-24.json");
        let name = || DockerUse::find(&roots).unwrap().name().unwrap();
        assert_eq!(name(), "Docker's network of the pools lan.10.71.0.0-24");
        write(roots.run.join("docker/records/networks"), "0123456789abcdef.json");
        write(roots.lib.join("docker/networks"), "0123456789abcdef.json");
        assert_eq!(name(), "Docker's network 0123456789ab");
        write(roots.lib.join("docker/networks"), "fedcba9876543210.json");
        let found = DockerUse::find(&roots).unwrap();
        assert_eq!(found.remedy(), "`docker network rm 0123456789ab fedcba987654`");
        assert!(found.refuse().is_err());
        // What cannot be read may be a network.
        std::fs::remove_dir_all(roots.lib.join("docker")).unwrap();
        std::fs::write(roots.lib.join("docker"), "").unwrap();
        assert!(DockerUse::find(&roots).is_err());
    }
}
