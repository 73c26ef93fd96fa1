//! Resolves a name with the name servers in `/etc/resolv.conf`, within a bounded time.
//!
//! It does not use the C library's resolver: a static executable would load parts of that at run
//! time, and nothing bounds how long it takes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

/// The timeout for one server.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How many servers are tried (glibc `MAXNS`).
const SERVERS: usize = 3;
const PORT: u16 = 53;

/// RFC 1035 §3.2.2, RFC 3596 §2.1.
const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;
const CLASS_IN: u16 = 1;
/// RFC 1035 §2.3.4.
const LABEL_MAX: usize = 63;
/// A name in a message never has more parts; longer chains of pointers are loops.
const POINTERS_MAX: usize = 128;

/// A name's addresses, and the server that gave them; none for an address.
#[derive(Debug)]
pub(in crate::commands) struct Found {
    pub(in crate::commands) addresses: Vec<IpAddr>,
    pub(in crate::commands) server: Option<IpAddr>,
}

/// Resolves a name from the calling thread's namespace.
pub(in crate::commands) fn resolve(host: &str) -> Result<Found, String> {
    if let Ok(address) = host.parse() {
        return Ok(Found { addresses: vec![address], server: None });
    }
    let hosts = read(Path::new("/etc/hosts"));
    let addresses = in_hosts(&hosts, host);
    if !addresses.is_empty() {
        return Ok(Found { addresses, server: None });
    }
    let servers = servers(&read(Path::new("/etc/resolv.conf")));
    if servers.is_empty() {
        return Err(format!("resolve {host}: /etc/resolv.conf names no server"));
    }
    resolve_with(host, &servers)
}

/// Resolves a name from the calling thread's namespace with these servers.
pub(in crate::commands) fn resolve_with(host: &str, servers: &[IpAddr]) -> Result<Found, String> {
    let mut first_error = None;
    for server in servers.iter().copied().take(SERVERS) {
        match ask(server, host) {
            Ok(addresses) if addresses.is_empty() => {
                return Err(format!("resolve {host}: name server {server} knows no address of it"));
            }
            Ok(addresses) => return Ok(Found { addresses, server: Some(server) }),
            Err(error) => {
                first_error.get_or_insert(format!("resolve {host}: name server {server}: {error}"));
            }
        }
    }
    Err(first_error.unwrap_or_default())
}

fn read(path: &Path) -> String {
    let bytes = state::read_optional(path).ok().flatten().unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn in_hosts(hosts: &str, host: &str) -> Vec<IpAddr> {
    let lines = hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let address = words.next()?.parse().ok()?;
            words.any(|name| name.eq_ignore_ascii_case(host)).then_some(address)
        })
        .collect()
}

fn servers(resolv_conf: &str) -> Vec<IpAddr> {
    resolv_conf
        .lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"))
        .filter_map(|rest| rest.trim().split('%').next()?.parse().ok())
        .collect()
}

/// Asks one server for both kinds of addresses, at once.
fn ask(server: IpAddr, host: &str) -> io::Result<Vec<IpAddr>> {
    let own: SocketAddr = match server {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(own)?;
    socket.connect((server, PORT))?;
    let end = Instant::now() + TIMEOUT;
    // The socket is connected and its port random; the numbers tell the two questions apart.
    let questions = [(TYPE_A, 1_u16), (TYPE_AAAA, 2)];
    for (kind, number) in questions {
        socket.send(&question(host, kind, number)?)?;
    }
    let mut answered = [false; 2];
    let mut addresses = Vec::new();
    let mut buffer = [0_u8; 1500];
    while answered.contains(&false) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            // A server that answers only one of the two questions still answers.
            if addresses.is_empty() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"));
            }
            break;
        }
        socket.set_read_timeout(Some(left))?;
        let length = match socket.recv(&mut buffer) {
            Ok(length) => length,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock
                        | io::ErrorKind::TimedOut
                        | io::ErrorKind::Interrupted
                ) =>
            {
                continue;
            }
            Err(error) => return Err(error),
        };
        for (done, (_, number)) in answered.iter_mut().zip(questions) {
            if let Some(found) = answers(&buffer[..length], number) {
                *done = true;
                addresses.extend(found);
            }
        }
    }
    // IPv4 first: where only one family has a route, it is mostly that one.
    let (mut addresses, later): (Vec<_>, Vec<_>) = addresses.into_iter().partition(IpAddr::is_ipv4);
    addresses.extend(later);
    Ok(addresses)
}

/// Writes a question (RFC 1035 §4.1).
fn question(host: &str, kind: u16, number: u16) -> io::Result<Vec<u8>> {
    let mut message = Vec::with_capacity(64);
    message.extend(number.to_be_bytes());
    // Recursion desired; one question.
    message.extend([0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in host.trim_end_matches('.').split('.') {
        let length = u8::try_from(label.len())
            .ok()
            .filter(|length| *length != 0 && usize::from(*length) <= LABEL_MAX);
        let length = length.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        message.push(length);
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend(kind.to_be_bytes());
    message.extend(CLASS_IN.to_be_bytes());
    Ok(message)
}

/// Reads the addresses in an answer; `None` when it does not answer the question of that number.
fn answers(message: &[u8], number: u16) -> Option<Vec<IpAddr>> {
    let word = |at: usize| Some(u16::from_be_bytes(message.get(at..at + 2)?.try_into().ok()?));
    let is_answer = message.get(2)? & 0x80 != 0;
    if word(0)? != number || !is_answer {
        return None;
    }
    let (questions, records) = (word(4)?, word(6)?);
    let mut at = 12;
    for _ in 0..questions {
        at = skip_name(message, at)? + 4;
    }
    let mut addresses = Vec::new();
    for _ in 0..records {
        at = skip_name(message, at)?;
        let (kind, length) = (word(at)?, usize::from(word(at + 8)?));
        let data = message.get(at + 10..at + 10 + length)?;
        match kind {
            TYPE_A => addresses.push(IpAddr::from(<[u8; 4]>::try_from(data).ok()?)),
            TYPE_AAAA => addresses.push(IpAddr::from(<[u8; 16]>::try_from(data).ok()?)),
            _ => {}
        }
        at += 10 + length;
    }
    Some(addresses)
}

/// Returns the offset after a name, which ends with an empty label or a pointer (RFC 1035 §4.1.4).
fn skip_name(message: &[u8], mut at: usize) -> Option<usize> {
    for _ in 0..POINTERS_MAX {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length if length & 0xc0 == 0xc0 => return Some(at + 2),
            length => at += 1 + usize::from(length),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read() {
        let mut message = question("example.com", TYPE_A, 1).unwrap();
        message[2] |= 0x80;
        message[7] = 2;
        // CNAME (to the root), then an A record; both names are pointers to the question.
        message.extend([0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 60, 0, 1, 0]);
        message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 203, 0, 113, 9]);
        let found = answers(&message, 1).unwrap();
        assert_eq!(found, ["203.0.113.9".parse::<IpAddr>().unwrap()]);
        assert_eq!(answers(&message, 2), None);
    }

    #[test]
    fn no_answer_breaks_the_reader() {
        let mut message = question("example.com", TYPE_A, 1).unwrap();
        message[2] |= 0x80;
        message[7] = 200;
        message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0xff, 0xff, 1]);
        for length in 0..message.len() {
            let _ = answers(&message[..length], 1);
        }
        assert_eq!(answers(&message, 1), None);
        assert_eq!(answers(&[], 1), None);
    }

    #[test]
    fn files_are_read_as_the_c_library_reads_them() {
        let hosts = "127.0.0.1 localhost\n# 192.0.2.1 commented\n192.0.2.2 a Example.COM # b\n";
        assert_eq!(in_hosts(hosts, "example.com"), ["192.0.2.2".parse::<IpAddr>().unwrap()]);
        assert!(in_hosts(hosts, "commented").is_empty());
        let conf =
            "search x\nnameserver 192.0.2.53\nnameserver fe80::1%eth0\n#nameserver 1.1.1.1\n";
        let servers: Vec<_> = servers(conf).iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["192.0.2.53", "fe80::1"]);
        assert!(question("a..b", TYPE_A, 1).is_err());
        assert!(question(&"x".repeat(64), TYPE_A, 1).is_err());
    }
}
