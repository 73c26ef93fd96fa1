//! A process's own view of the mounts.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;

use super::{Devices, OwnMounts, Step, UndoneStep};
use crate::living::unescaped;

/// The file systems by which programs speak to the kernel. Nothing can be kept in them, and they
/// stay as they are, as with `ProtectSystem=strict`.
const KERNEL: [&str; 3] = ["/dev", "/proc", "/sys"];
/// `ProtectControlGroups=`
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";
/// `ProtectKernelLogs=` and `ProtectKernelModules=`
const HIDDEN: [&str; 4] = ["/dev/kmsg", "/proc/kmsg", "/lib/modules", "/usr/lib/modules"];
/// `PrivateTmp=`
const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];
const DEV: &str = "/dev";
/// The devices that every process may have.
const DEVICES: [&str; 6] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];
/// The folder of pseudo terminals, in which `ptmx` makes a new one.
const TERMINALS: &str = "/dev/pts";
/// What programs expect in `/dev` beside devices, and where it leads.
const LINKS: [(&str, &str); 4] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
];
/// A `/dev` has only names and folders of its own.
const DEV_OPTIONS: &CStr = c"mode=0755,size=64k,nr_inodes=64";
/// A hidden folder is empty, and a process without CAP_DAC_OVERRIDE cannot even list it.
const HIDDEN_OPTIONS: &CStr = c"mode=0000,size=4k,nr_inodes=1";
/// Every user may write temporary files, but a service's must not take all memory.
const TEMPORARY_OPTIONS: &CStr = c"mode=1777,size=10%";

/// Moves the process to mounts of its own, and restricts them. A step that fails does not keep others
/// from being done.
pub(super) fn enter(own: &OwnMounts<'_>, undone: &mut Vec<UndoneStep>) {
    if let Err(errno) = separate() {
        // All processes would see any further mount.
        undone.push(UndoneStep::new(Step::OwnMounts, errno));
        return;
    }
    make_read_only(own.writable, undone);
    if let Devices::Only(devices) = own.devices {
        restrict_devices(devices, undone);
    }
    hide(own.hidden, undone);
    if own.private_tmp {
        make_tmp_private(undone);
    }
}

/// Gives the process a copy of all mounts, which follows what other processes do to theirs.
fn separate() -> Result<(), Errno> {
    // SAFETY: no table of descriptors is unshared (UnshareFlags::FILES), only mounts, for the only
    // thread.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
    rustix::mount::mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )?;
    // From another working directory the process would see what is mounted over it.
    rustix::process::chdir("/")
}

/// A mount, as `man 5 proc_pid_mountinfo` describes it.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    place: PathBuf,
    flags: MountFlags,
}

/// Makes everything read-only but these paths and the kernel's file systems.
fn make_read_only(writable: &[&Path], undone: &mut Vec<UndoneStep>) {
    let mut keep: Vec<PathBuf> = KERNEL.map(PathBuf::from).to_vec();
    // Nothing else that is read-only already becomes writable.
    let mut named: Vec<PathBuf> = Vec::new();
    for path in writable {
        match mount_itself(path) {
            Ok(real) => {
                named.push(real.clone());
                keep.push(real);
            }
            Err(source) => undone.push(UndoneStep::new(Step::Writable(path.to_path_buf()), source)),
        }
    }
    let control_groups = PathBuf::from(CONTROL_GROUPS);
    // It is a mount nearly everywhere; where it is not, it must become one to be read-only.
    if control_groups.exists()
        && let Err(source) = mount_itself(&control_groups)
    {
        undone.push(UndoneStep::new(Step::ReadOnly(control_groups.clone()), source));
    }
    let mounts = match fs::read("/proc/thread-self/mountinfo") {
        Ok(table) => topmost(&table),
        Err(source) => {
            undone.push(UndoneStep::new(Step::ReadOnly("/".into()), source));
            return;
        }
    };
    let (kept, others): (Vec<_>, Vec<_>) = mounts
        .into_iter()
        .filter(|mount| !mount.flags.contains(MountFlags::RDONLY) || named.contains(&mount.place))
        .partition(|Mount { place, .. }| {
            !place.starts_with(&control_groups) && keep.iter().any(|path| place.starts_with(path))
        });
    // All in one call, which leaves out none: not one that was mounted since the table was read, and
    // none that another one covers.
    if set_read_only("/", Scope::WithBelow, true).is_ok() {
        for Mount { place, .. } in kept {
            if let Err(errno) = set_read_only(&place, Scope::Alone, false)
                && !is_out_of_reach(errno)
            {
                undone.push(UndoneStep::new(Step::Writable(place), errno));
            }
        }
        return;
    }
    // The kernel has no such call (before Linux 5.12), or a system call filter forbids it.
    for Mount { place, flags } in others {
        let flags = flags | MountFlags::BIND | MountFlags::RDONLY;
        if let Err(errno) = rustix::mount::mount_remount(&place, flags, c"")
            && !is_out_of_reach(errno)
        {
            undone.push(UndoneStep::new(Step::ReadOnly(place), errno));
        }
    }
    for Mount { place, flags } in kept {
        if flags.contains(MountFlags::RDONLY) {
            let flags = (flags - MountFlags::RDONLY) | MountFlags::BIND;
            if let Err(errno) = rustix::mount::mount_remount(&place, flags, c"") {
                undone.push(UndoneStep::new(Step::Writable(place), errno));
            }
        }
    }
}

/// Whether no mount is at the path any longer, or another mount covers the way to it.
fn is_out_of_reach(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::NOENT | Errno::NOTDIR)
}

/// Makes a path a mount, which can have flags of its own. Returns the path without symbolic links.
fn mount_itself(path: &Path) -> io::Result<PathBuf> {
    let real = fs::canonicalize(path)?;
    rustix::mount::mount_bind_recursive(&real, &real)?;
    Ok(real)
}

/// Which mounts a call of mount_setattr(2) changes.
#[derive(Clone, Copy)]
enum Scope {
    Alone,
    WithBelow,
}

/// Makes a mount read-only or writable, and does not change its other flags (`man 2 mount_setattr`).
fn set_read_only(
    place: impl rustix::path::Arg,
    scope: Scope,
    read_only: bool,
) -> Result<(), Errno> {
    let (set, clear) =
        if read_only { (libc::MOUNT_ATTR_RDONLY, 0) } else { (0, libc::MOUNT_ATTR_RDONLY) };
    let change = libc::mount_attr { attr_set: set, attr_clr: clear, propagation: 0, userns_fd: 0 };
    let flags = match scope {
        Scope::Alone => 0,
        Scope::WithBelow => libc::AT_RECURSIVE,
    };
    place.into_with_c_str(|place| {
        // SAFETY: the kernel reads the path, which ends with a zero byte, and as many bytes of the
        // structure as it is told. It writes nothing.
        let done = unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                libc::AT_FDCWD,
                place.as_ptr(),
                flags,
                &raw const change,
                mem::size_of_val(&change),
            )
        };
        if done == 0 { Ok(()) } else { Err(last_errno()) }
    })
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Reads the table of mounts. Of several at one place it returns the last, which covers the others.
fn topmost(table: &[u8]) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = Vec::new();
    for line in table.split(|byte| *byte == b'\n') {
        let mut words = line.split(|byte| *byte == b' ').skip(4);
        let (Some(place), Some(options)) = (words.next(), words.next()) else { continue };
        let place = PathBuf::from(std::ffi::OsString::from_vec(unescaped(place)));
        let flags = options.split(|byte| *byte == b',').map(flag).collect();
        mounts.retain(|mount| mount.place != place);
        mounts.push(Mount { place, flags });
    }
    mounts
}

/// The flag that an option stands for. A remount must repeat them, or they are cleared.
fn flag(option: &[u8]) -> MountFlags {
    match option {
        b"ro" => MountFlags::RDONLY,
        b"nosuid" => MountFlags::NOSUID,
        b"nodev" => MountFlags::NODEV,
        b"noexec" => MountFlags::NOEXEC,
        b"noatime" => MountFlags::NOATIME,
        b"nodiratime" => MountFlags::NODIRATIME,
        b"relatime" => MountFlags::RELATIME,
        b"nosymfollow" => MountFlags::NOSYMFOLLOW,
        _ => MountFlags::empty(),
    }
}

/// Mounts a `/dev` that has few devices.
fn restrict_devices(extra: &[&Path], undone: &mut Vec<UndoneStep>) {
    let mut devices = Vec::new();
    let wanted = DEVICES.iter().map(|path| (Path::new(path), false));
    for (path, must_exist) in wanted.chain(extra.iter().map(|path| (*path, true))) {
        match reach(path) {
            Ok(device) => devices.push((path, device)),
            Err(Errno::NOENT) if !must_exist => {}
            Err(errno) => undone.push(UndoneStep::new(Step::Device(path.to_owned()), errno)),
        }
    }
    let terminals = reach(Path::new(TERMINALS)).ok();
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV;
    if let Err(errno) = rustix::mount::mount("tmpfs", DEV, "tmpfs", flags, DEV_OPTIONS) {
        undone.push(UndoneStep::new(Step::Device(DEV.into()), errno));
        return;
    }
    for (path, device) in devices {
        if let Err(source) = show(path, &device) {
            undone.push(UndoneStep::new(Step::Device(path.to_owned()), source));
        }
    }
    let others = || -> io::Result<()> {
        if let Some(terminals) = terminals {
            fs::DirBuilder::new().mode(0o755).create(TERMINALS)?;
            rustix::mount::mount_bind_recursive(by_descriptor(&terminals), TERMINALS)?;
            // The device itself finds no terminals when it is a mount (linux fs/devpts/inode.c).
            symlink("pts/ptmx", "/dev/ptmx")?;
        }
        for (link, target) in LINKS {
            symlink(target, link)?;
        }
        let flags = flags | MountFlags::BIND | MountFlags::RDONLY;
        Ok(rustix::mount::mount_remount(DEV, flags, c"")?)
    };
    if let Err(source) = others() {
        undone.push(UndoneStep::new(Step::Device(DEV.into()), source));
    }
}

/// Refers to a path in such a way that it can be mounted elsewhere once something covers it.
fn reach(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

fn by_descriptor(what: &OwnedFd) -> String {
    format!("/proc/thread-self/fd/{}", what.as_raw_fd())
}

/// Mounts a device at its path in the new `/dev`.
fn show(path: &Path, device: &OwnedFd) -> io::Result<()> {
    if !path.starts_with(DEV) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    }
    fs::File::create_new(path)?;
    Ok(rustix::mount::mount_bind(by_descriptor(device), path)?)
}

/// Hides these paths and what no service needs.
fn hide(paths: &[&Path], undone: &mut Vec<UndoneStep>) {
    let mut hidden = Vec::new();
    for path in HIDDEN.iter().map(Path::new).chain(paths.iter().copied()) {
        // Several may be links to one.
        let mut hide = || -> io::Result<()> {
            let real = fs::canonicalize(path)?;
            if hidden.contains(&real) {
                return Ok(());
            }
            if fs::metadata(&real)?.is_dir() {
                let flags = MountFlags::RDONLY
                    | MountFlags::NOSUID
                    | MountFlags::NODEV
                    | MountFlags::NOEXEC;
                rustix::mount::mount("tmpfs", &real, "tmpfs", flags, HIDDEN_OPTIONS)?;
            } else {
                rustix::mount::mount_bind("/dev/null", &real)?;
            }
            hidden.push(real);
            Ok(())
        };
        report(hide(), || Step::Hidden(path.to_owned()), undone);
    }
}

fn make_tmp_private(undone: &mut Vec<UndoneStep>) {
    let mut private = Vec::new();
    for path in TEMPORARY {
        let mut make = || -> io::Result<()> {
            let real = fs::canonicalize(path)?;
            if !private.contains(&real) {
                let flags = MountFlags::NOSUID | MountFlags::NODEV;
                rustix::mount::mount("tmpfs", &real, "tmpfs", flags, TEMPORARY_OPTIONS)?;
                private.push(real);
            }
            Ok(())
        };
        report(make(), || Step::PrivateTmp(path.into()), undone);
    }
}

/// What does not exist needs no protection.
fn report(done: io::Result<()>, step: impl FnOnce() -> Step, undone: &mut Vec<UndoneStep>) {
    match done {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            undone.push(UndoneStep::new(step(), source));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_mounts_is_read() {
        let table = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            23 22 0:21 / /run/a\\040b rw,nosuid,nodev,noexec,noatime,nodiratime - tmpfs tmpfs rw\n\
            24 23 0:22 / /run/a\\040b ro,nosymfollow master:1 - tmpfs tmpfs rw\n\
            broken\n";
        let mounts = topmost(table);
        assert_eq!(
            mounts,
            [
                Mount { place: "/".into(), flags: MountFlags::RELATIME },
                Mount {
                    place: "/run/a b".into(),
                    flags: MountFlags::RDONLY | MountFlags::NOSYMFOLLOW
                },
            ]
        );
    }
}
