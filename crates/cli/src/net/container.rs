//! Finds the container that a name means.

use std::path::{Path, PathBuf};

use cni::{ContainerId, owner};
use doctor::{Choice, presence};

use crate::failure::Failure;
use crate::world::World;

/// Where `ip netns` keeps its names (iproute2 include/namespace.h `NETNS_RUN_DIR`).
pub(crate) const NETNS_DIRS: [&str; 2] = ["/run/netns", "/var/run/netns"];

/// A name for a container, and the namespace that it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerName {
    /// As it was written.
    pub(crate) text: String,
    /// The path of the namespace that it means.
    pub(crate) netns: PathBuf,
    /// How the name was understood.
    pub(crate) kind: Kind,
}

/// How a name is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Path,
    Pid,
    Name,
}

/// Decides what a name means: a path if it has a slash, a process ID if it is a number, else a name
/// of `ip netns`. A number that `ip netns` knows and no process has is a name.
pub(crate) fn resolve(text: &str, world: &World) -> Result<ContainerName, Failure> {
    if text.is_empty() {
        return Err(Failure::usage("the container's name is empty"));
    }
    let named = |netns: PathBuf, kind| ContainerName { text: text.to_owned(), netns, kind };
    if text.contains('/') {
        return Ok(named(world.absolute(text), Kind::Path));
    }
    let by_name = NETNS_DIRS.iter().map(|dir| Path::new(dir).join(text));
    let by_name: Vec<PathBuf> = by_name.collect();
    let existing = by_name.iter().find(|path| path.exists()).cloned();
    if let Ok(pid) = text.parse::<u32>() {
        let process = PathBuf::from(format!("/proc/{pid}/ns/net"));
        return Ok(match existing {
            Some(path) if !process.exists() => named(path, Kind::Name),
            _ => named(process, Kind::Pid),
        });
    }
    let path = existing.unwrap_or_else(|| by_name[0].clone());
    Ok(named(path, Kind::Name))
}

impl ContainerName {
    /// Says whether the namespace exists.
    pub(crate) fn exists(&self) -> bool {
        presence::identity(&self.netns_text()).is_some()
    }

    /// Returns the namespace's path as runtimes write it.
    pub(crate) fn netns_text(&self) -> String {
        self.netns.to_string_lossy().into_owned()
    }

    /// Returns what `doctor` looks for.
    pub(crate) fn into_choice(self) -> Choice {
        Choice { id: self.derived_id(), text: self.text, netns: self.netns }
    }

    /// Returns the container ID that cnitool gives a namespace, so that both tools mean the same
    /// attachment.
    pub(crate) fn derived_id(&self) -> ContainerId {
        derived_id(&self.netns)
    }

    /// Refuses a namespace that does not exist.
    pub(crate) fn require(&self) -> Result<(), Failure> {
        let Err(error) = kernel::netns::Netns::open(&self.netns) else { return Ok(()) };
        let failure = Failure::of(cni::code::INVALID_NETNS, &error);
        // A path that exists and cannot be opened needs no suggestion of another name.
        let missing = std::fs::metadata(&self.netns)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        let is_other = matches!(error, kernel::netns::NetnsError::NotANamespace { .. });
        Err(match self.kind {
            _ if is_other => failure.hint("the path is not that of a network namespace"),
            Kind::Path => failure,
            _ if !missing => failure,
            Kind::Pid => failure.hint(format!("there is no process {}", self.text)),
            Kind::Name => failure.hint(format!(
                "create it with `ip netns add {}`, or name the container by the path of its namespace or a process ID",
                self.text
            )),
        })
    }
}

/// Reads a container ID from an option.
pub(crate) fn id(text: &str, option: &str) -> Result<ContainerId, Failure> {
    ContainerId::new(text).map_err(|error| {
        Failure::from(error.context(option)).hint(
            "a container's ID has letters, digits, `_`, `.` and `-`, the first a letter or digit",
        )
    })
}

/// Returns cnitool's container ID for a namespace: `cnitool-` and 20 digits of the SHA-512 of its
/// path.
pub(crate) fn derived_id(netns: &Path) -> ContainerId {
    let id = format!("cnitool-{}", owner::sha512_hex(&*netns.to_string_lossy(), 20));
    ContainerId::new(&id).expect("hexadecimal digits are allowed in a container ID")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world() -> World {
        World { environment: Vec::new(), directory: "/srv".into() }
    }

    #[test]
    fn names_lead_to_namespaces() {
        let of = |text: &str| {
            let name = resolve(text, &world()).unwrap();
            (name.netns_text(), name.kind)
        };
        assert_eq!(of("/run/netns/blue"), ("/run/netns/blue".to_owned(), Kind::Path));
        assert_eq!(of("./blue"), ("/srv/blue".to_owned(), Kind::Path));
        assert_eq!(of("1"), ("/proc/1/ns/net".to_owned(), Kind::Pid));
        assert_eq!(of("nwt-none"), ("/run/netns/nwt-none".to_owned(), Kind::Name));
        assert!(resolve("", &world()).is_err());
    }

    #[test]
    fn the_derived_id_is_cnitools() {
        // printf /run/netns/blue | sha512sum
        assert_eq!(
            derived_id(Path::new("/run/netns/blue")).as_str(),
            "cnitool-df26705e2e4ffd095eb1"
        );
    }
}
