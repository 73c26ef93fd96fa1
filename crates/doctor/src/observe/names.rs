//! Reads which servers of names the programs of a container ask, and what else its files say of
//! names.
//!
//! The files belong to the container: each may be a link that leads out of it, a FIFO, or of any
//! size.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use diagnose::model::NameFiles;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::resolv::{ResolvConf, addresses_in};

const RESOLV_CONF: &str = "resolv.conf";
/// The name of loopback (RFC 6761 §6.3).
const LOCALHOST: &str = "localhost";
/// How much of a file is read.
const MOST: u64 = 64 * 1024;
/// How many addresses of a name are kept, and how long a line or a name may be.
const ADDRESSES: usize = 16;
const LONG: usize = 255;
/// Where `ip netns exec NAME` finds what its program sees in place of `/etc` (`man 8 ip-netns`).
const OF_NAMED: &str = "/etc/netns";
/// Where `ip netns` keeps its names.
const NAMED: [&str; 2] = ["/run/netns", "/var/run/netns"];

/// What was read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ObservedNames {
    /// The servers; `None`: no process there asks one, or that is not known.
    pub(super) servers: Option<Vec<IpAddr>>,
    /// What other files say.
    pub(super) files: NameFiles,
    /// Which files could not be read, and why.
    pub(super) unread: Vec<String>,
}

/// Reads the hosts file that a process sees; empty if it has none.
pub(super) fn hosts(pid: u32) -> String {
    let root = open_root(Path::new(&format!("/proc/{pid}/root")));
    let text = root.map_err(io::Error::from).and_then(|root| read_file(&root, "etc/hosts"));
    text.unwrap_or_default()
}

/// Reads the files that a process sees. Without a process, reads those that `ip netns exec` would
/// give a process in the namespace, if the namespace has some of its own.
pub(super) fn read(pid: Option<u32>, netns: &str) -> ObservedNames {
    let mut found = ObservedNames::default();
    let (path, folder) = match (pid, of_named(netns)) {
        (Some(pid), _) => (format!("/proc/{pid}/root"), "etc/"),
        (None, Some(folder)) => (folder, ""),
        (None, None) => return found,
    };
    let root = match open_root(Path::new(&path)) {
        Ok(root) => root,
        // The process has ended, or there is no such folder.
        Err(Errno::NOENT | Errno::SRCH) => return found,
        Err(errno) => {
            found.unread.push(format!("{path}: {errno}"));
            return found;
        }
    };
    let mut text = |file: &str| {
        let inside = format!("{folder}{file}");
        match read_file(&root, &inside) {
            Ok(text) => Some((text, is_nodes_own(&root, &inside, file))),
            // Nothing in there is meant to ask for names.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                found.unread.push(format!("{path}/{inside}: {error}"));
                None
            }
        }
    };
    let (resolv_conf, is_nodes) =
        text(RESOLV_CONF).map_or((None, true), |(text, is_nodes)| (Some(text), is_nodes));
    let conf = resolv_conf.as_deref().map(ResolvConf::parse);
    let carriage_return = resolv_conf.as_deref().is_some_and(has_carriage_return);
    // A process that sees the node's own file was given no servers of its own.
    let is_given = |conf: &&ResolvConf| !conf.servers.is_empty() || !is_nodes;
    let servers = conf.as_ref().filter(is_given).map(|conf| conf.servers.clone());
    let conf = conf.unwrap_or_default();
    let mut own = |file: &str| text(file).filter(|(_, is_nodes)| !is_nodes).map(|(text, _)| text);
    let hosts = own("hosts").unwrap_or_default();
    let name = own("hostname").and_then(|text| hostname(&text));
    let files = NameFiles {
        sources: own("nsswitch.conf").and_then(|text| sources(&text)),
        localhost: addresses(&hosts, LOCALHOST),
        own_addresses: name.iter().flat_map(|name| addresses(&hosts, name)).collect(),
        own: name,
        carriage_return,
        search: conf.search,
        ndots: conf.ndots,
        by_tcp: conf.by_tcp,
    };
    ObservedNames { servers, files, ..found }
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
fn read_file(root: &OwnedFd, inside: &str) -> io::Result<String> {
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

/// Says whether a file below a root is the node's own of that name.
fn is_nodes_own(root: &OwnedFd, inside: &str, file: &str) -> bool {
    let found = open(root, inside, OFlags::PATH).and_then(rustix::fs::fstat);
    let own = rustix::fs::stat(format!("/etc/{file}"));
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

/// Says whether a server's address is followed by a carriage return at once. The GNU C library takes
/// it for a part of the address, and passes over the line (glibc resolv/res_init.c
/// `res_vinit_1`).
fn has_carriage_return(text: &str) -> bool {
    let is_so = |line: &str| {
        let rest = line.strip_prefix("nameserver")?.strip_suffix('\r')?;
        let address = rest.strip_prefix([' ', '\t'])?.trim_start_matches([' ', '\t']);
        (!address.is_empty() && !address.contains([' ', '\t'])).then_some(())
    };
    text.split('\n').any(|line| is_so(line).is_some())
}

/// Reads the first addresses that a hosts file has for a name.
fn addresses(text: &str, name: &str) -> Vec<IpAddr> {
    addresses_in(text, name).take(ADDRESSES).collect()
}

/// Reads what `man 5 nsswitch.conf` has for hosts; `None` if that is not one line.
fn sources(text: &str) -> Option<String> {
    let of = |line: &str| {
        let line = line.split('#').next()?.trim();
        Some(line.strip_prefix("hosts:")?.trim().to_owned())
    };
    let mut lines = text.lines().filter_map(of);
    let first = lines.next().filter(|line| line.len() <= LONG)?;
    lines.next().is_none().then_some(first)
}

/// Reads `man 5 hostname`.
fn hostname(text: &str) -> Option<String> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let name = lines.find(|line| !line.is_empty())?;
    let is_name = name.chars().all(|one| one.is_ascii_alphanumeric() || "-.".contains(one));
    (is_name && name.len() <= LONG && !name.eq_ignore_ascii_case(LOCALHOST))
        .then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_carriage_return_is_a_part_of_the_address() {
        for (text, is_so) in [
            ("nameserver 192.0.2.1\r\n", true),
            ("search a.b\r\nnameserver\t192.0.2.1\r", true),
            ("search a.b\r\nnameserver 192.0.2.1\n", false),
            ("nameserver 192.0.2.1 \r\n", false),
            (" nameserver 192.0.2.1\r\n", false),
        ] {
            assert_eq!(has_carriage_return(text), is_so, "{text:?}");
        }
    }

    #[test]
    fn hosts_and_their_sources_are_read() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let hosts = "127.0.0.1 localhost\n# 10.0.0.9 web\n::1 ip6-localhost LocalHost # web\n\
                     10.88.0.2\tweb web.example\nnonsense web\nfe80::1%lo web\n";
        assert_eq!(addresses(hosts, LOCALHOST), [ip("127.0.0.1"), ip("::1")]);
        assert_eq!(addresses(hosts, "web"), [ip("10.88.0.2"), ip("fe80::1")]);
        assert!(addresses(hosts, "db").is_empty());
        let switch = "# hosts: db\npasswd: files\nhosts:  files dns # here\n";
        assert_eq!(sources(switch).as_deref(), Some("files dns"));
        assert_eq!(sources("hosts: files\nhosts: dns\n"), None);
        assert_eq!(sources("passwd: files\n"), None);
        assert_eq!(hostname("# x\n\nweb-7f9c\n").as_deref(), Some("web-7f9c"));
        for text in ["", "$(reboot)\n", "localhost\n"] {
            assert_eq!(hostname(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_container_cannot_lead_the_reader_out_or_stop_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::create_dir_all(root.join("run")).unwrap();
        let file = root.join("etc/resolv.conf");
        let opened = open_root(&root).unwrap();
        let read = || read_file(&opened, "etc/resolv.conf");
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
        assert_eq!(read(None, "/proc/1/ns/net"), ObservedNames::default());
        assert_eq!(read(None, "/run/netns/nwt-none"), ObservedNames::default());
        assert_eq!(of_named("/run/netns/c1").as_deref(), Some("/etc/netns/c1"));
        assert_eq!(of_named("/run/other/c1"), None);
    }
}
