//! Gives up what a service does not need, where no service manager does it: its rights
//! ([`agent::rights`]) as the kernel takes them ([`kernel::confine`]).

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use agent::Config;
use agent::rights::{self, Files, HostView, Rights};
use kernel::confine::{
    Capability, Confinement, Devices, Family, Mounts, Namespaces, OwnMounts, SYSTEM_SERVICE, Step,
    UndoneStep, confine, may_become_another,
};
use rustix::fs::{StatVfsMountFlags, statvfs};
use service_kit::listen::{self, Listener};
use service_kit::own_user;
use service_kit::stop::{Stop, failed};
use state::Roots;

/// The host's folders that a service without access to containers does not see.
const HOMES: [&str; 3] = ["/home", "/root", "/run/user"];

/// The kernel parameters that plugins set in containers' namespaces.
const SYSCTLS: &str = "/proc/sys/net";

/// The mode of folders that are made for a service: its own, and those that it shares.
const OWN_MODE: u32 = 0o700;
const SHARED_MODE: u32 = 0o755;

/// What comes of a confinement.
#[derive(Debug, Default)]
pub(crate) struct ConfinementOutcome {
    /// What the process's own surroundings do not permit, as in a container.
    pub(crate) undone: Vec<UndoneStep>,
    /// The service's socket, which only root could open.
    pub(crate) socket: Option<Listener>,
}

/// Confines this process, which must have one thread, to the rights of a service.
pub(crate) fn apply(
    service: &str,
    config: &Config,
    roots: &Roots,
    environment: &[(OsString, OsString)],
) -> Result<ConfinementOutcome, Stop> {
    let rights = rights::of(service).expect("each service has its rights: a test looks");
    let folders = writable(rights, config, roots);
    let writable: Vec<&Path> = folders.iter().map(PathBuf::as_path).collect();
    let devices: Vec<&Path> =
        rights.devices.iter().map(Path::new).filter(|device| device.exists()).collect();
    let homes = HOMES.map(Path::new);
    let sees_containers = rights.sees == HostView::Containers;
    let mounts = match rights.files {
        Files::Everywhere { .. } => Mounts::Shared,
        Files::Only { .. } => Mounts::Own(OwnMounts {
            writable: &writable,
            devices: Devices::Only(&devices),
            hidden: if sees_containers { &[] } else { &homes },
            private_tmp: !sees_containers,
        }),
    };
    let capabilities: Vec<Capability> =
        rights.capabilities.iter().filter_map(|name| capability(name)).collect();
    let families: Vec<Family> = rights.families.iter().filter_map(|name| family(name)).collect();
    let mut undone = Vec::new();
    let user = rights.user.and_then(|user| {
        let user = own_user::of(&user);
        let lacks = || "it lacks CAP_CHOWN, CAP_SETUID or CAP_SETGID".to_owned();
        let may = if may_become_another() { Ok(()) } else { Err(lacks()) };
        match may.and_then(|()| own_user::prepare(service, config, roots, user)) {
            Ok(()) => Some(user),
            Err(why) => {
                undone
                    .push(UndoneStep { step: Step::User(user.uid), source: io::Error::other(why) });
                None
            }
        }
    });
    let socket = match own_user::socket_of(service, config).filter(|_| user.is_some()) {
        Some(path) => {
            let handed_over = listen::handed_over(environment).map_err(failed)?;
            Some(Listener::open(handed_over, &path).map_err(failed)?)
        }
        None => None,
    };
    let what = Confinement {
        capabilities: &capabilities,
        system_calls: &[SYSTEM_SERVICE, rights.more_calls].concat(),
        families: &families,
        namespaces: match rights.namespaces {
            rights::Namespaces::None => Namespaces::None,
            rights::Namespaces::Network => Namespaces::Network,
        },
        mounts,
        user,
        open_files: rights.open_files.map(u64::from),
    };
    let more = confine(&what).map_err(|error| {
        let why = cni::Error::from_chain(0, &error).msg;
        Stop::Failed(format!("confine the service {service}: {why}"))
    })?;
    undone.extend(more);
    Ok(ConfinementOutcome { undone, socket })
}

/// Returns the folders that the service may write, and makes those that are missing: those that its
/// rights name, and those that its configuration names.
fn writable(rights: &Rights, config: &Config, roots: &Roots) -> Vec<PathBuf> {
    let Files::Only { runtime, state, more } = rights.files else { return Vec::new() };
    let below = |top: &str, ours: &Path, folder: &str| match folder.split_once('/') {
        None if folder == "netwright" => ours.to_owned(),
        Some(("netwright", rest)) => ours.join(rest),
        _ => Path::new(top).join(folder),
    };
    let runtime = runtime.iter().map(|folder| below("/run", &roots.run, folder));
    let state = state.iter().map(|folder| below("/var/lib", &roots.lib, folder));
    let more = more.iter().map(|folder| match folder.strip_prefix("/run/netwright") {
        Some("") => roots.run.clone(),
        _ => PathBuf::from(folder),
    });
    let mut folders: Vec<PathBuf> = runtime.chain(state).chain(more).collect();
    folders.extend(rights::configured(rights.service, config));
    // An image may have no link from /var/run to /run, and both from the node.
    let other_name =
        |folder: &PathBuf| Some(Path::new("/var").join(folder.strip_prefix("/").ok()?));
    let is_apart = |path: &PathBuf| path.canonicalize().is_ok_and(|real| real == *path);
    folders.extend(
        folders
            .clone()
            .iter()
            .filter(|of| of.starts_with("/run"))
            .filter_map(other_name)
            .filter(is_apart),
    );
    for folder in &folders {
        let own = folder.starts_with(&roots.lib) && *folder != roots.lib;
        // What cannot be made is reported as a step that was not done.
        let _ = state::create_directory(folder, if own { OWN_MODE } else { SHARED_MODE });
    }
    // A container's is read-only.
    let is_read_only =
        |at: &str| statvfs(at).is_ok_and(|at| at.f_flag.contains(StatVfsMountFlags::RDONLY));
    if rights.namespaces == rights::Namespaces::Network && is_read_only(SYSCTLS) {
        folders.push(SYSCTLS.into());
    }
    folders
}

/// Returns the kernel's capability of this name.
fn capability(name: &str) -> Option<Capability> {
    Some(match name {
        "DAC_OVERRIDE" => Capability::DacOverride,
        "NET_ADMIN" => Capability::NetAdmin,
        "NET_BIND_SERVICE" => Capability::NetBindService,
        "NET_BROADCAST" => Capability::NetBroadcast,
        "NET_RAW" => Capability::NetRaw,
        "SYS_ADMIN" => Capability::SysAdmin,
        "SYS_PTRACE" => Capability::SysPtrace,
        _ => return None,
    })
}

/// Returns the family of sockets of this name.
fn family(name: &str) -> Option<Family> {
    Some(match name {
        "INET" => Family::Inet,
        "INET6" => Family::Inet6,
        "NETLINK" => Family::Netlink,
        "PACKET" => Family::Packet,
        "UNIX" => Family::Unix,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent::rights::RIGHTS;

    #[test]
    fn every_name_of_the_rights_is_the_kernels() {
        for rights in RIGHTS {
            for name in rights.capabilities {
                assert!(capability(name).is_some(), "{}: {name}", rights.service);
            }
            for name in rights.families {
                assert!(family(name).is_some(), "{}: {name}", rights.service);
            }
        }
    }
}
