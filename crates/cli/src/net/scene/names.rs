//! Reads the name servers that the programs of a container ask.
//!
//! The file belongs to the container: it may be a link that leads out of it, a FIFO, or of any
//! size.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

const RESOLV_CONF: &str = "etc/resolv.conf";
const NODES_OWN: &str = "/etc/resolv.conf";
/// How much of the file is read.
const MOST: u64 = 64 * 1024;
/// Where `ip netns exec NAME` finds what its program sees in place of `/etc` (`man 8 ip-netns`).
const OF_NAMED: &str = "/etc/netns";
/// Where `ip netns` keeps its names.
const NAMED: [&str; 2] = ["/run/netns", "/var/run/netns"];

/// Reads the name servers that a process asks. Without a process, reads those that `ip netns exec`
/// would give a process in the namespace, if the namespace has servers of its own. `None`: no
/// process there asks a server.
///
/// # Errors
/// Why the file cannot be read.
pub(super) fn servers(pid: Option<u32>, netns: &str) -> Result<Option<Vec<IpAddr>>, String> {
    let (path, inside) = match (pid, of_named(netns)) {
        (Some(pid), _) => (format!("/proc/{pid}/root"), RESOLV_CONF),
        (None, Some(folder)) => (folder, "resolv.conf"),
        (None, None) => return Ok(None),
    };
    let root = match open_root(Path::new(&path)) {
        Ok(root) => root,
        // The process has ended, or there is no such folder.
        Err(Errno::NOENT | Errno::SRCH) => return Ok(None),
        Err(errno) => return Err(format!("{path}: {errno}")),
    };
    match read(&root, inside) {
        Ok(text) => {
            let servers = parse(&text);
            // A process that sees the node's own file was given no servers of its own.
            let is_given = !servers.is_empty() || !is_nodes_own(&root, inside);
            Ok(is_given.then_some(servers))
        }
        // Nothing in there is meant to ask for names.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{path}/{inside}: {error}")),
    }
}

fn of_named(netns: &str) -> Option<String> {
    let path = Path::new(netns);
    let name = path.file_name()?.to_str()?;
    let is_named = NAMED.iter().any(|folder| path.parent() == Some(Path::new(folder)));
    is_named.then(|| format!("{OF_NAMED}/{name}"))
}

fn open_root(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// Reads the beginning of a file, whose links do not lead out of the root.
fn read(root: &OwnedFd, inside: &str) -> io::Result<String> {
    // Examined before it is opened, since opening a device acts on it.
    let examined = open(root, inside, OFlags::PATH)?;
    require_file(&examined)?;
    let opened = open(root, inside, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    require_file(&opened)?;
    let mut bytes = Vec::new();
    File::from(opened).take(MOST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn open(root: &OwnedFd, inside: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, inside, flags | OFlags::CLOEXEC, Mode::empty(), within)
}

/// Says whether a file below a root is the node's own.
fn is_nodes_own(root: &OwnedFd, inside: &str) -> bool {
    let found = open(root, inside, OFlags::PATH).and_then(rustix::fs::fstat);
    let own = rustix::fs::stat(NODES_OWN);
    let number = |stat: Stat| (stat.st_dev, stat.st_ino);
    found.ok().map(number).is_some_and(|found| own.ok().map(number) == Some(found))
}

fn require_file(file: &OwnedFd) -> io::Result<()> {
    let found = rustix::fs::fstat(file.as_fd())?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Ok(()),
        _ => Err(io::Error::other("it is not a file")),
    }
}

/// Reads `man 5 resolv.conf`. The part after `%` names a link.
fn parse(text: &str) -> Vec<IpAddr> {
    let address = |line: &str| {
        let mut words = line.split_whitespace();
        (words.next()? == "nameserver").then_some(())?;
        words.next()?.split('%').next()?.parse().ok()
    };
    text.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn servers_are_read() {
        let text = "# nameserver 192.0.2.9\nsearch a.b\nnameserver 10.96.0.10\n nameserver fe80::1%eth0\n\
                    nameserver\nnameserver nonsense\nnameservers 192.0.2.8\n";
        let expected: [IpAddr; 2] = ["10.96.0.10".parse().unwrap(), "fe80::1".parse().unwrap()];
        assert_eq!(parse(text), expected);
    }

    #[test]
    fn a_container_cannot_lead_the_reader_out_or_stop_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::create_dir_all(root.join("run")).unwrap();
        let file = root.join("etc/resolv.conf");
        let opened = open_root(&root).unwrap();
        let read = || read(&opened, RESOLV_CONF);
        std::fs::write(folder.path().join("secret"), "nameserver 192.0.2.66\n").unwrap();
        std::fs::write(root.join("run/own"), "nameserver 192.0.2.1\n").unwrap();
        // Out of the root, up and by an absolute path.
        for target in ["../../secret", folder.path().join("secret").to_str().unwrap()] {
            symlink(target, &file).unwrap();
            assert_eq!(read().unwrap_err().kind(), io::ErrorKind::NotFound);
            std::fs::remove_file(&file).unwrap();
        }
        symlink("/run/own", &file).unwrap();
        assert_eq!(read().unwrap(), "nameserver 192.0.2.1\n");
        std::fs::remove_file(&file).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &file, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(read().unwrap_err().to_string(), "it is not a file");
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, "#".repeat(1 << 20)).unwrap();
        assert_eq!(read().unwrap().len(), 64 * 1024);
    }

    #[test]
    fn a_namespace_without_a_process_asks_nobody() {
        assert_eq!(servers(None, "/proc/1/ns/net"), Ok(None));
        assert_eq!(servers(None, "/run/netns/nwt-none"), Ok(None));
        assert_eq!(of_named("/run/netns/c1").as_deref(), Some("/etc/netns/c1"));
        assert_eq!(of_named("/run/other/c1"), None);
    }
}
