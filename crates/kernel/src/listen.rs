//! Finds out whether a port of this host is free, as `bind` says, and which program uses it.
//!
//! To ask, a socket is bound and closed again at once. It never listens, so it answers nothing, and
//! no module is loaded for it: on a kernel without SCTP, no program can have an SCTP port. The
//! program that uses a port is read from `/proc`, and only for a port that is taken. A TCP port
//! that a program has bound but does not yet listen on is taken too; connections that a program has
//! accepted, and closed ones, do not take a port.
//!
//! **Namespace**: the calling thread's.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::ipproto;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// Where the files of the calling thread's network namespace are.
const NET: &str = "/proc/thread-self/net";

/// How many generations of a process are read; no process has more.
const GENERATIONS: usize = 64;

/// A protocol whose ports can be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// What `bind` says about a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is free.
    Free,
    /// A program has it (EADDRINUSE).
    Taken,
    /// The host does not have the address (EADDRNOTAVAIL).
    NoSuchAddress,
    /// The kernel did not say: it lacks the protocol or family, or only others may have the port.
    Unknown(Errno),
}

/// The user and the program that use a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The user who made the socket.
    pub uid: u32,
    /// A process that has it open; `None` when none can be seen from here.
    pub process: Option<Process>,
}

/// A process that has a socket open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its ID.
    pub pid: u32,
    /// Its name (`/proc/PID/comm`).
    pub name: String,
    /// Whether it is the caller, or one of the processes that started it; the first process of a
    /// machine does not count.
    pub is_ancestor: bool,
}

/// Checks whether a port is free at an address; an unspecified address is every address of its
/// family.
///
/// **Privileges**: `CAP_NET_BIND_SERVICE` for ports below 1024; without it, the answer is
/// [`Answer::Unknown`].
#[must_use]
pub fn ask(transport: Transport, at: SocketAddr) -> Answer {
    let bound = match at {
        SocketAddr::V6(at) if at.ip().is_unicast_link_local() && at.scope_id() == 0 => {
            bind_on_links(transport, at)
        }
        _ => bind(transport, at),
    };
    match bound {
        Ok(()) => Answer::Free,
        Err(Errno::ADDRINUSE) => Answer::Taken,
        Err(Errno::ADDRNOTAVAIL) if !at.ip().is_unspecified() => Answer::NoSuchAddress,
        Err(errno) => Answer::Unknown(errno),
    }
}

/// Checks on each link that has a link-local address; without a link `bind` says nothing about one.
fn bind_on_links(transport: Transport, at: SocketAddrV6) -> Result<(), Errno> {
    let links = links_with(*at.ip());
    if links.is_empty() {
        return Err(Errno::ADDRNOTAVAIL);
    }
    let on = |link| SocketAddrV6::new(*at.ip(), at.port(), 0, link);
    links.into_iter().try_for_each(|link| bind(transport, on(link).into()))
}

/// Lists the links that have an address (linux net/ipv6/addrconf.c `if6_seq_show`).
fn links_with(address: Ipv6Addr) -> Vec<u32> {
    let wanted = format!("{:032x}", u128::from(address));
    let table = fs::read_to_string(Path::new(NET).join("if_inet6")).unwrap_or_default();
    let link = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let is_wanted = fields.next()? == wanted;
        is_wanted.then(|| u32::from_str_radix(fields.next()?, 16).ok()).flatten()
    };
    table.lines().filter_map(link).collect()
}

fn bind(transport: Transport, at: SocketAddr) -> Result<(), Errno> {
    match bind_as(transport, at, Reuse::No) {
        Err(Errno::ADDRINUSE) if transport == Transport::Tcp => {}
        bound => return bound,
    }
    // Bound as programs that listen do: then connections are not in the way. Nor is a socket that
    // is bound the same way and does not yet listen; its program would get no connections. The
    // kernel's tables contain only connections.
    bind_as(transport, at, Reuse::Yes)?;
    if rows(transport, at).is_empty() {
        // The last connection may have ended meanwhile.
        return bind_as(transport, at, Reuse::No);
    }
    Ok(())
}

/// Whether a socket may be bound beside others that do not listen (`SO_REUSEADDR`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reuse {
    Yes,
    No,
}

fn bind_as(transport: Transport, at: SocketAddr, reuse: Reuse) -> Result<(), Errno> {
    let (kind, protocol) = match transport {
        Transport::Tcp => (SocketType::STREAM, None),
        Transport::Udp => (SocketType::DGRAM, None),
        // Opening a socket would load the module.
        Transport::Sctp if !Path::new(NET).join("sctp").exists() => return Ok(()),
        Transport::Sctp => (SocketType::STREAM, Some(ipproto::SCTP)),
    };
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, protocol)?;
    if transport == Transport::Tcp && reuse == Reuse::Yes {
        sockopt::set_socket_reuseaddr(&fd, true)?;
    }
    if at.is_ipv6() {
        // IPv4 is checked separately.
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    rustix::net::bind(&fd, &at)
}

/// Finds the process that has a port; `None` when the kernel's tables name none. Reads the caller's
/// ancestors first, then the programs with one of the likely names, and only then all others: every
/// descriptor of every process.
#[must_use]
pub fn holder(transport: Transport, at: SocketAddr, likely: &[&str]) -> Option<Holder> {
    let socket = sockets(transport, at).into_iter().min_by_key(|socket| !socket.listens)?;
    Some(Holder { uid: socket.uid, process: process(socket.inode, likely) })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Socket {
    inode: u64,
    uid: u32,
    listens: bool,
}

/// Lists the sockets that some process may have open.
fn sockets(transport: Transport, at: SocketAddr) -> Vec<Socket> {
    let mut open = rows(transport, at);
    open.retain(|socket| socket.inode != 0);
    open
}

/// Lists the entries of the kernel's tables for a port, including closed connections.
fn rows(transport: Transport, at: SocketAddr) -> Vec<Socket> {
    let tables: &[&str] = match transport {
        Transport::Tcp => &["tcp", "tcp6"],
        Transport::Udp => &["udp", "udp6"],
        Transport::Sctp => &["sctp/eps"],
    };
    let read = |table| fs::read_to_string(Path::new(NET).join(table)).unwrap_or_default();
    let rows = tables.iter().map(|table| read(*table));
    rows.flat_map(|rows| {
        let line = |line: &str| match transport {
            Transport::Sctp => of_sctp(line, at.port()),
            _ => of_inet(line, at),
        };
        rows.lines().skip(1).filter_map(line).collect::<Vec<_>>()
    })
    .collect()
}

/// Reads a line of `/proc/net/tcp` and its like (linux Documentation/networking/proc_net_tcp.rst).
fn of_inet(line: &str, at: SocketAddr) -> Option<Socket> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (address, port) = fields.get(1)?.rsplit_once(':')?;
    if u16::from_str_radix(port, 16).ok()? != at.port() || !overlaps(address_of(address)?, at.ip())
    {
        return None;
    }
    Some(Socket {
        inode: fields.get(9)?.parse().ok()?,
        uid: fields.get(7)?.parse().ok()?,
        // include/net/tcp_states.h TCP_LISTEN
        listens: *fields.get(3)? == "0A",
    })
}

/// Reads a line of `/proc/net/sctp/eps` (linux net/sctp/proc.c `sctp_eps_seq_show`).
fn of_sctp(line: &str, port: u16) -> Option<Socket> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    if fields.get(5)?.parse::<u16>().ok()? != port {
        return None;
    }
    let (uid, inode) = (fields.get(6)?.parse().ok()?, fields.get(7)?.parse().ok()?);
    Some(Socket { inode, uid, listens: true })
}

/// Reads an address as these tables print it: words of 32 bits, each a number in the machine's byte
/// order.
#[must_use]
pub fn address_of(hex: &str) -> Option<IpAddr> {
    let words = hex.as_bytes().chunks(8).map(|word| {
        let word = std::str::from_utf8(word).ok()?;
        u32::from_str_radix(word, 16).ok().map(u32::to_ne_bytes)
    });
    let bytes: Vec<u8> = words.collect::<Option<Vec<_>>>()?.concat();
    if let Ok(four) = <[u8; 4]>::try_from(bytes.as_slice()) {
        return Some(Ipv4Addr::from(four).into());
    }
    let sixteen = <[u8; 16]>::try_from(bytes.as_slice()).ok()?;
    Some(Ipv6Addr::from(sixteen).to_canonical())
}

/// Whether a socket at one address keeps others from using another: `::` may mean IPv4 too.
fn overlaps(has: IpAddr, wanted: IpAddr) -> bool {
    match (has, wanted) {
        (IpAddr::V6(has), _) if has.is_unspecified() => true,
        _ if has.is_ipv4() != wanted.is_ipv4() => false,
        _ => has.is_unspecified() || wanted.is_unspecified() || has == wanted,
    }
}

fn process(inode: u64, likely: &[&str]) -> Option<Process> {
    let link = format!("socket:[{inode}]");
    let has = |pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|to| to == Path::new(&link))
    };
    let name = |pid: u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
    };
    // The first process is an ancestor of every process.
    let ancestor = ancestors().into_iter().filter(|pid| *pid != 1).find(has);
    if let Some(pid) = ancestor {
        return Some(Process { pid, name: name(pid), is_ancestor: true });
    }
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all: Vec<(u32, String)> = all
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .map(|pid| (pid, name(pid)))
        .collect();
    let (first, rest): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|(_, name)| likely.contains(&name.as_str()));
    let mut ordered = first.into_iter().chain(rest);
    let (pid, name) = ordered.find(|(pid, _)| has(pid))?;
    Some(Process { pid, name, is_ancestor: false })
}

/// Lists the calling process and the processes that started it.
fn ancestors() -> Vec<u32> {
    let mut known = vec![std::process::id()];
    while let Some(pid) = known.last().copied().filter(|pid| *pid > 1)
        && known.len() < GENERATIONS
    {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        let Some(parent) = parent.and_then(|text| text.trim().parse().ok()) else { break };
        known.push(parent);
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_the_kernel_are_read() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let line = "   1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0000000000000000 100 0 0 10 0";
        let socket = Socket { inode: 4711, uid: 1000, listens: true };
        if cfg!(target_endian = "little") {
            assert_eq!(of_inet(line, at("127.0.0.1:8080")), Some(socket));
            assert_eq!(of_inet(line, at("0.0.0.0:8080")), Some(socket));
            assert_eq!(of_inet(line, at("127.0.0.2:8080")), None);
            assert_eq!(of_inet(line, at("127.0.0.1:8081")), None);
            assert_eq!(of_inet(line, at("[::]:8080")), None);
        }
        let six = line.replace("0100007F", &"0".repeat(32));
        for text in ["0.0.0.0:8080", "192.0.2.1:8080", "[::]:8080", "[2001:db8::1]:8080"] {
            assert_eq!(of_inet(&six, at(text)), Some(socket), "{text}");
        }
        let sctp = " ffff9c00 ffff9c01 2   10  36   9999   1000   4711 127.0.0.1";
        assert_eq!(of_sctp(sctp, 9999), Some(socket));
        assert_eq!(of_sctp(sctp, 9998), None);
        for nonsense in ["", "1: 2 3", "1: zz:1F90 a b c d e f g h", "x y z 1 2 99999 1 1"] {
            assert_eq!(
                (of_inet(nonsense, at("0.0.0.0:8080")), of_sctp(nonsense, 8080)),
                (None, None)
            );
        }
    }

    #[test]
    fn the_caller_is_its_own_ancestor() {
        let known = ancestors();
        assert_eq!(known.first(), Some(&std::process::id()));
        assert!(1 < known.len());
    }
}
