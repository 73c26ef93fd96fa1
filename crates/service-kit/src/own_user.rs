//! What root does so that a service can run as a user of its own ([`agent::rights::Rights::user`]):
//! it gives the service its folders, and copies of files that only root can read.
//!
//! The process that starts the service does this before: systemd by `ExecStartPre=+netwrightd
//! SERVICE --prepare`, and a service that confines itself before it becomes that user. It can be
//! done again at any time, also over files of a service that ran as root or as another user.
//!
//! Sockets of such a service stay root's, because plugins trust no other user: root opens them
//! before.
//!
//! The user has a name, which `systemd-sysusers` makes at the first start. Where no program makes
//! it, as in a container, the process uses a fixed number outside systemd's ranges. Such a service
//! reads its configuration again as its user, so all users must be able to read the configuration.
//!
//! Not used: `DynamicUser=`, which moves the state below `/var/lib/private`; `RuntimeDirectory=`,
//! which would give the user all of `/run/netwright`; `LoadCredential=`, which works only with
//! systemd; and dropping root's rights under systemd too, which needs CAP_SETUID and CAP_SETGID.

use std::fs;
use std::io;
use std::os::unix::fs::{
    MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, lchown,
};
use std::path::{Path, PathBuf};

use agent::Config;
use agent::rights;
use kernel::confine::User;
use node_api::{inbox, ready};
use rustix::fs::OFlags;
use state::{Durability, Roots};

use crate::attendant;

/// Where the system lists its users (`man 5 passwd`).
const USERS: &str = "/etc/passwd";

/// A folder of root that is on the way to the service's own ones.
const WAY: u32 = 0o711;
/// A folder of the service alone.
const OWN: u32 = 0o700;
/// The folder of its status socket, and of its error. Its group is root's: an earlier version's
/// unit starts the service as root without the capability to pass over the owner's rights.
const STATUS: u32 = 0o2770;
/// The folder of copies, and a copy: the service reads them.
const COPIES: (u32, u32) = (0o750, 0o640);
/// The file that says when the service was ready last. Its group is root's too.
const READY: u32 = 0o660;

/// Returns the user's numbers: those that the system knows, or else the ones that are kept for it.
pub fn of(user: &rights::User) -> User {
    let users = fs::read_to_string(USERS).unwrap_or_default();
    listed(&users, user.name).unwrap_or(User { uid: user.id, gid: user.id })
}

fn listed(users: &str, name: &str) -> Option<User> {
    users.lines().find_map(|line| {
        let mut words = line.split(':');
        let found = words.next() == Some(name);
        let mut number = |at| words.nth(at)?.parse().ok();
        let (uid, gid) = (number(1)?, number(0)?);
        found.then_some(User { uid, gid })
    })
}

/// Returns the user to whom systemd gave the folder of the service's state.
pub fn of_state(service: &str, roots: &Roots) -> io::Result<User> {
    let found = fs::metadata(roots.lib.join(service))?;
    Ok(User { uid: found.uid(), gid: found.gid() })
}

/// Makes everything that the service needs as this user.
pub fn prepare(service: &str, config: &Config, roots: &Roots, user: User) -> Result<(), String> {
    let at = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| format!("{path}: {error}")
    };
    let status = attendant::home(roots, service);
    let accepted = agent::accepted::path(roots);
    let passed = [Some(roots.run.as_path()), status.parent(), Some(&roots.lib), accepted.parent()];
    for folder in passed.into_iter().flatten() {
        open_the_way(folder).map_err(at(folder))?;
    }
    let (state, socket) = (state_of(service, config, roots), socket_of(service, config));
    let inbox = socket.as_deref().map(inbox::folder);
    for folder in [&state].into_iter().chain(&inbox) {
        give(folder, user, OWN).map_err(at(folder))?;
    }
    give(&status, User { gid: 0, ..user }, STATUS).map_err(at(&status))?;
    if let Some(file) = socket.as_deref().map(ready::file) {
        give_file(&file, User { gid: 0, ..user }).map_err(at(&file))?;
    }
    copy(service, config, roots, user)
}

/// Returns the folder of the service's state.
fn state_of(service: &str, config: &Config, roots: &Roots) -> PathBuf {
    let configured = if service == "ipam" { config.ipam.state.clone() } else { None };
    configured.unwrap_or_else(|| roots.lib.join(service))
}

/// Returns the socket at which the service serves.
pub fn socket_of(service: &str, config: &Config) -> Option<PathBuf> {
    (service == "ipam").then(|| config.ipam.socketpath.clone())
}

/// The files that a service reads, and that root only may be able to read.
fn files(service: &str, config: &Config) -> Vec<(&'static str, PathBuf)> {
    let ipam = &config.ipam;
    let named = [
        ("etcd-ca", &ipam.etcd_ca),
        ("etcd-cert", &ipam.etcd_cert),
        ("etcd-key", &ipam.etcd_key),
        ("kubeconfig", &ipam.kubeconfig),
    ];
    let named = named.into_iter().filter(|_| service == "ipam");
    named.filter_map(|(key, path)| Some((key, path.clone()?))).collect()
}

fn copies(roots: &Roots, service: &str) -> PathBuf {
    roots.run.join("agent").join(format!("{service}.files"))
}

/// Copies the files that the configuration names to where the service's user can read them.
fn copy(service: &str, config: &Config, roots: &Roots, user: User) -> Result<(), String> {
    let folder = copies(roots, service);
    let words = |error: &dyn std::error::Error| cni::Error::from_chain(0, error).msg;
    // A copy of a file that is no longer named goes.
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(format!("{}: {error}", folder.display()));
        }
        _ => {}
    }
    for (key, path) in files(service, config) {
        // The service says what is wrong with a file that is missing.
        let Ok(Some(bytes)) = state::read_optional(&path) else { continue };
        state::create_directory(&folder, COPIES.0).map_err(|error| words(&error))?;
        let to = folder.join(key);
        state::write_atomic(&to, &bytes, COPIES.1, Durability::Volatile)
            .map_err(|error| words(&error))?;
        for path in [&to, &folder] {
            chown(path, None, Some(user.gid))
                .map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    Ok(())
}

/// Takes the copies of some files, each with its key, if this process may not read one of the files
/// itself. They belong together: a certificate that was renewed does not fit the copy of the key
/// before. A copy is as old as the start of the service.
pub fn readable(service: &str, files: &mut [(&str, &mut Option<PathBuf>)], roots: &Roots) {
    let mut paths = files.iter().flat_map(|(_, path)| path.iter());
    let may_read = |path: &PathBuf| fs::File::open(path).is_ok();
    if rustix::process::geteuid().is_root() || paths.all(may_read) {
        return;
    }
    for (key, path) in files {
        let copy = copies(roots, service).join(*key);
        if path.is_some() && copy.exists() {
            **path = Some(copy);
        }
    }
}

/// Makes a folder of root, or lets every user pass through it, but not look into it.
fn open_the_way(folder: &Path) -> io::Result<()> {
    state::create_directory(folder, WAY).map_err(io::Error::other)?;
    let mode = fs::metadata(folder)?.permissions().mode();
    match mode & 0o001 {
        0 => fs::set_permissions(folder, fs::Permissions::from_mode(mode | 0o001)),
        _ => Ok(()),
    }
}

/// Makes a folder, or gives one with everything in it, to a user. The folder itself comes last: if
/// that was interrupted, the next call gives all of it again.
fn give(folder: &Path, user: User, mode: u32) -> io::Result<()> {
    if let Some(above) = folder.parent() {
        state::create_directory(above, WAY).map_err(io::Error::other)?;
    }
    state::create_directory(folder, mode).map_err(io::Error::other)?;
    let found = fs::symlink_metadata(folder)?;
    if !found.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    if (found.uid(), found.gid()) != (user.uid, user.gid) {
        let mut open = vec![folder.to_owned()];
        while let Some(next) = open.pop() {
            for entry in fs::read_dir(&next)? {
                let entry = entry?;
                lchown(entry.path(), Some(user.uid), Some(user.gid))?;
                if entry.file_type()?.is_dir() {
                    open.push(entry.path());
                }
            }
        }
        lchown(folder, Some(user.uid), Some(user.gid))?;
    }
    match found.permissions().mode() & 0o7777 == mode {
        true => Ok(()),
        false => fs::set_permissions(folder, fs::Permissions::from_mode(mode)),
    }
}

/// Makes a file, or gives one, to a user who may write it and nothing else of its folder.
fn give_file(path: &Path, user: User) -> io::Result<()> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(READY)
        .custom_flags(flags)
        .open(path)?;
    std::os::unix::fs::fchown(&file, Some(user.uid), Some(user.gid))?;
    file.set_permissions(fs::Permissions::from_mode(READY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_their_names() {
        let users =
            "root:x:0:0:root:/root:/bin/bash\nbroken:x\nnetwright-ipam:x:990:991::/:/none\n";
        assert_eq!(listed(users, "netwright-ipam"), Some(User { uid: 990, gid: 991 }));
        assert_eq!(listed(users, "netwright"), None);
    }

    /// This needs root, as everything does that gives files away.
    #[test]
    fn what_is_given_is_the_users_and_comes_back() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let roots = Roots::new(path("run"), path("lib"));
        let mut config = Config::default();
        config.ipam.socketpath = path("run/ipam.sock");
        config.ipam.etcd_key = Some(path("key"));
        config.ipam.etcd_ca = Some(path("missing"));
        fs::write(path("key"), "secret").unwrap();
        // What a service left that ran as root, and what a plugin left for it.
        for left in ["lib/ipam/blocks", "run/ipam.sock.todo"] {
            state::create_directory(&path(left), 0o700).unwrap();
        }
        for left in ["lib/ipam/node.json", "lib/ipam/blocks/b", "run/ipam.sock.todo/a"] {
            fs::write(path(left), "").unwrap();
        }
        std::os::unix::fs::symlink("/etc/hostname", path("lib/ipam/link")).unwrap();
        let owner = |name: &str| {
            let found = fs::symlink_metadata(path(name)).unwrap();
            (found.uid(), found.gid(), found.mode() & 0o7777)
        };
        let etc = fs::metadata("/etc/hostname").map(|found| found.uid()).unwrap_or_default();
        for user in [User { uid: 65_521, gid: 65_520 }, User { uid: 0, gid: 0 }] {
            prepare("ipam", &config, &roots, user).unwrap();
            let own = (user.uid, user.gid);
            for given in ["lib/ipam/node.json", "lib/ipam/blocks/b", "run/ipam.sock.todo/a"] {
                assert_eq!((owner(given).0, owner(given).1), own, "{given}");
            }
            for given in ["lib/ipam", "run/ipam.sock.todo"] {
                assert_eq!(owner(given), (user.uid, user.gid, 0o700), "{given}");
            }
            assert_eq!(owner("run/agent/ipam"), (user.uid, 0, 0o2770));
            assert_eq!(owner("run/ipam.sock.ready"), (user.uid, 0, 0o660));
            assert_eq!(owner("run/agent/ipam.files"), (0, user.gid, 0o750));
            assert_eq!(owner("run/agent/ipam.files/etcd-key"), (0, user.gid, 0o640));
            for passed in ["run", "run/agent", "lib", "lib/agent"] {
                assert_eq!((owner(passed).0, owner(passed).2 & 0o007), (0, 0o001), "{passed}");
            }
        }
        assert_eq!(fs::metadata("/etc/hostname").map(|found| found.uid()).unwrap_or_default(), etc);
        config.ipam.etcd_key = None;
        prepare("ipam", &config, &roots, User { uid: 0, gid: 0 }).unwrap();
        assert!(!path("run/agent/ipam.files").exists());
    }
}
