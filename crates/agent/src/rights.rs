//! What each service may do. The process that starts a service gives it this and nothing more:
//! systemd does so by the units that [`crate::units`] makes of it.
//!
//! The list is the only place where people write this. `agent::units` writes it into
//! `deploy/systemd/*.service` between two marker lines, `agent::chart` into the Helm chart, and the
//! table of `docs/security.md` is made from it; tests compare them, and fail if a setting that is
//! made is written by hand as well. For service managers that cannot confine a service, `netwrightd
//! SERVICE --confine` reads the same list and confines its own process (`kernel::confine`), because
//! its parent would need code between `fork` and `exec`. systemd's group `@system-service` is
//! copied into `kernel`; a test compares the copy with that of the installed systemd.
//!
//! If a service needs more, the list gets a line with the reason.

use std::path::{Path, PathBuf};

use crate::config::Config;

/// What a service may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    /// The service.
    pub service: &'static str,
    /// Its capabilities (`man 7 capabilities`), without `CAP_`.
    pub capabilities: &'static [&'static str],
    /// Why it needs them: whole sentences.
    pub reason: &'static str,
    /// The user that it runs as, if that is not root. Such a service has no capabilities.
    pub user: Option<User>,
    /// The system calls that it may make besides systemd's group `@system-service`.
    pub more_calls: &'static [&'static str],
    /// The families of its sockets (`man 2 socket`), without `AF_`.
    pub families: &'static [&'static str],
    /// The kinds of namespaces that it may create or enter.
    pub namespaces: Namespaces,
    /// The files that it may write.
    pub files: Files,
    /// The devices that it may use besides `/dev/null` and its kind.
    pub devices: &'static [&'static str],
    /// Whether it sees homes, `/tmp` and later mounts of the host.
    pub sees: HostView,
    /// How many files it may have open; `None` leaves the service manager's limit.
    pub open_files: Option<u32>,
}

/// A user of a service's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// Its name, which is its group's, too.
    pub name: &'static str,
    /// The number of both where the system knows no such user, as in a container.
    pub id: u32,
}

/// The kinds of namespaces that a service may create or enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespaces {
    /// None.
    None,
    /// Network namespaces.
    Network,
}

/// The files that a service may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Files {
    /// Every file that root may write. The service mounts namespaces that all processes must see
    /// and that outlive it, so it has no mount namespace of its own.
    Everywhere {
        /// The folder of its records, below `/var/lib`.
        state: &'static str,
    },
    /// These folders.
    Only {
        /// Below `/run`; they stay when the service ends.
        runtime: &'static [&'static str],
        /// Below `/var/lib`.
        state: &'static [&'static str],
        /// More folders, whole paths.
        more: &'static [&'static str],
    },
}

/// What a service sees of the host's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostView {
    /// All of them, later mounts too: a container's namespace may be anywhere, also in `/tmp` and
    /// `/run/user`, and one that it does not see would count as gone.
    Containers,
    /// No homes, and a `/tmp` of its own: it enters no namespaces and runs no plugins.
    NoContainers,
}

/// What plugins need.
const PLUGINS: &[&str] = &["SYS_ADMIN", "SYS_PTRACE", "NET_ADMIN", "NET_RAW", "DAC_OVERRIDE"];
const PLUGINS_FAMILIES: &[&str] = &["UNIX", "NETLINK", "INET", "INET6", "PACKET"];
/// Where plugins and runtimes keep their records.
const RECORDS: Files =
    Files::Only { runtime: &["netwright", "cni"], state: &["netwright", "cni"], more: &[] };
const TAP: &[&str] = &["/dev/net/tun"];

/// The rights of every service.
pub const RIGHTS: &[Rights] = &[
    Rights {
        service: "collect",
        capabilities: PLUGINS,
        reason: "It removes links, files and elements of the packet filter, as DEL does.",
        user: None,
        more_calls: &[],
        families: PLUGINS_FAMILIES,
        namespaces: Namespaces::Network,
        files: RECORDS,
        devices: &[],
        sees: HostView::Containers,
        open_files: None,
    },
    Rights {
        service: "dhcp",
        capabilities: &[
            "SYS_ADMIN",
            "SYS_PTRACE",
            "NET_ADMIN",
            "NET_RAW",
            "NET_BIND_SERVICE",
            "DAC_OVERRIDE",
        ],
        reason: "It enters containers' network namespaces, sets links up, and sends frames.",
        user: None,
        more_calls: &[],
        families: PLUGINS_FAMILIES,
        namespaces: Namespaces::Network,
        // Plugins leave notes in /run/cni while it is down; its socket made the folder.
        files: Files::Only {
            runtime: &["netwright/agent"],
            state: &["netwright/dhcp"],
            more: &["/run/cni"],
        },
        devices: &[],
        sees: HostView::Containers,
        open_files: Some(1 << 20),
    },
    Rights {
        service: "docker",
        capabilities: &[
            "SYS_ADMIN",
            "SYS_PTRACE",
            "NET_ADMIN",
            "NET_RAW",
            "NET_BIND_SERVICE",
            "DAC_OVERRIDE",
        ],
        reason: "It makes, moves and removes links, files and elements of the packet filter, as ADD \
                 and DEL do. It checks whether a container exists as Docker sees it (SYS_PTRACE) and \
                 whether a port is free (NET_BIND_SERVICE), and mounts the namespaces that hold \
                 interfaces.",
        user: None,
        more_calls: &["mount", "umount2"],
        families: PLUGINS_FAMILIES,
        namespaces: Namespaces::Network,
        files: Files::Everywhere { state: "netwright/docker" },
        devices: TAP,
        sees: HostView::Containers,
        open_files: Some(1 << 16),
    },
    Rights {
        service: "ipam",
        capabilities: &[],
        reason: "It reads and writes its own files, and talks to its store. Sockets in root's folders are \
                 opened for it.",
        // In none of the ranges that distributions, systemd and containers give to users
        // (systemd's documentation, "Users, Groups, UIDs and GIDs on systemd Systems").
        user: Some(User { name: "netwright-ipam", id: 65_521 }),
        more_calls: &[],
        families: &["UNIX", "INET", "INET6"],
        namespaces: Namespaces::None,
        // The folder is root's, and in it are few files of the user's.
        files: Files::Only { runtime: &[], state: &["netwright/ipam"], more: &["/run/netwright"] },
        devices: &[],
        sees: HostView::NoContainers,
        open_files: Some(1 << 16),
    },
    Rights {
        service: "multinet",
        capabilities: PLUGINS,
        reason: "The plugins that it runs enter pods' namespaces, and change links, routes, sysctls \
                 and the packet filter.",
        user: None,
        more_calls: &[],
        families: PLUGINS_FAMILIES,
        namespaces: Namespaces::Network,
        files: Files::Only {
            runtime: &["netwright", "cni", "k8s.cni.cncf.io"],
            state: &["netwright", "cni"],
            more: &[],
        },
        devices: TAP,
        sees: HostView::Containers,
        open_files: Some(1 << 16),
    },
    Rights {
        service: "policy",
        capabilities: &["SYS_ADMIN", "SYS_PTRACE", "NET_ADMIN"],
        reason: "It writes its table of the packet filter, hears what that drops, and makes connection \
                 tracking forget connections. It restores the rules, the names and the bridges' \
                 settings that policies need of pods' links. It enters the network namespaces of containers whose \
                 networks do not pass the node (SYS_ADMIN, SYS_PTRACE), for the same there. It asks the \
                 API server.",
        user: None,
        more_calls: &[],
        families: &["UNIX", "NETLINK", "INET", "INET6"],
        namespaces: Namespaces::Network,
        files: Files::Only { runtime: &["netwright"], state: &["netwright/policy"], more: &[] },
        devices: &[],
        sees: HostView::Containers,
        open_files: Some(1 << 16),
    },
    Rights {
        service: "repair",
        capabilities: &[
            "SYS_ADMIN",
            "SYS_PTRACE",
            "NET_ADMIN",
            "NET_RAW",
            "NET_BROADCAST",
            "DAC_OVERRIDE",
        ],
        reason: "It receives events from containers' namespaces (NET_BROADCAST), enters the \
                 namespaces, and changes links, routes, sysctls and the packet filter.",
        user: None,
        more_calls: &[],
        families: PLUGINS_FAMILIES,
        namespaces: Namespaces::Network,
        files: RECORDS,
        devices: &[],
        sees: HostView::Containers,
        open_files: None,
    },
    Rights {
        service: "routing",
        capabilities: &["NET_ADMIN", "NET_RAW"],
        reason: "It changes tunnels, routes, neighbours, forwarding and its table of the packet \
                 filter, asks the API server or etcd, and asks nodes whether they answer.",
        user: None,
        more_calls: &[],
        families: &["UNIX", "NETLINK", "INET", "INET6"],
        namespaces: Namespaces::None,
        files: Files::Only { runtime: &["netwright"], state: &["netwright/routing"], more: &[] },
        devices: &[],
        sees: HostView::NoContainers,
        open_files: None,
    },
];

/// The rights of the process that answers for all services where systemd starts them.
pub const AGENT: Rights = Rights {
    service: crate::report::AGENT,
    capabilities: &[],
    reason: "It asks the services, and answers probes.",
    user: None,
    more_calls: &[],
    families: &["UNIX", "INET", "INET6"],
    namespaces: Namespaces::None,
    files: Files::Only { runtime: &["netwright/agent"], state: &[], more: &[] },
    devices: &[],
    sees: HostView::NoContainers,
    open_files: None,
};

/// Returns the rights of a service.
#[must_use]
pub fn of(service: &str) -> Option<&'static Rights> {
    RIGHTS.iter().find(|rights| rights.service == service)
}

/// Returns the folders that a service writes because its configuration says so.
#[must_use]
pub fn configured(service: &str, config: &Config) -> Vec<PathBuf> {
    let above = |path: &Path| path.parent().map(Path::to_owned);
    let mut folders: Vec<Option<PathBuf>> = Vec::new();
    match service {
        "collect" => folders.extend(config.collect.cache.iter().cloned().map(Some)),
        "dhcp" => {
            let dhcp = &config.dhcp;
            folders.extend([above(&dhcp.socketpath), dhcp.state.clone()]);
            folders.push(dhcp.pidfile.as_deref().and_then(above));
        }
        "ipam" => folders.extend([above(&config.ipam.socketpath), config.ipam.state.clone()]),
        "multinet" => {
            folders.push(above(&config.multinet.socketpath));
            folders.push(config.multinet.conflist.as_deref().and_then(above));
        }
        "policy" => {
            folders.extend([above(&config.policy.socketpath), config.policy.state.clone()]);
        }
        "repair" => {
            let repair = &config.repair;
            folders.extend(repair.cache.iter().chain(&repair.keep_plugins).cloned().map(Some));
        }
        "routing" => {
            let routing = &config.routing;
            folders.extend([above(&routing.socketpath), routing.state.clone()]);
            let written = [routing.conflist.clone(), routing.subnet_env()];
            folders.extend(written.map(|path| path.as_deref().and_then(above)));
        }
        _ => {}
    }
    folders.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_service_has_its_rights() {
        let services: Vec<&str> = RIGHTS.iter().map(|rights| rights.service).collect();
        assert_eq!(services, crate::keys::services().collect::<Vec<_>>());
        // A process that becomes another user loses them (man 7 capabilities).
        assert!(RIGHTS.iter().all(|one| one.user.is_none() || one.capabilities.is_empty()));
    }
}
