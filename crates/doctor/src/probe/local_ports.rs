//! Says whether a probe could not be sent because all local ports are in use.
//!
//! **Namespace**: the calling thread's.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};

use diagnose::Answer;
use diagnose::model::Transport;

/// Where the kernel lists sockets, those of IPv4 and those of IPv6 (linux
/// Documentation/networking/proc_net_tcp.rst).
const TABLES: &str = "/proc/thread-self/net";

/// From which ports the kernel chooses, for both IP versions (linux
/// Documentation/networking/ip-sysctl.rst), and which of them it leaves out.
const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// Returns the answer to a question for which the kernel has found no free port (`man 2 connect`,
/// EADDRNOTAVAIL; `man 2 bind`, EADDRINUSE), if all ports of the range are in use: the errors have
/// other causes too.
pub(super) fn used_up(error: &io::Error, transport: Transport, to: SocketAddr) -> Option<Answer> {
    use io::ErrorKind as Kind;
    if !matches!(error.kind(), Kind::AddrNotAvailable | Kind::AddrInUse) {
        return None;
    }
    let range = fs::read_to_string(RANGE).ok()?;
    let reserved = fs::read_to_string(RESERVED).unwrap_or_default();
    let name = transport.as_str();
    let table = |name: &str| fs::read_to_string(format!("{TABLES}/{name}")).unwrap_or_default();
    counted(&range, &reserved, &[table(name), table(&format!("{name}6"))], to)
}

fn counted(range: &str, reserved: &str, tables: &[String], to: SocketAddr) -> Option<Answer> {
    let mut numbers = range.split_ascii_whitespace().map(|word| word.parse::<u16>().ok());
    let (first, last) = (numbers.next()??, numbers.next()??);
    let mut ports: BTreeSet<u16> = BTreeSet::new();
    let mut used = 0_u32;
    for line in tables.iter().flat_map(|table| table.lines().skip(1)) {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let Some((_, port)) = fields.next().and_then(end) else { continue };
        ports.insert(port);
        let is_there = fields.next().and_then(end) == Some((to.ip(), to.port()));
        used += u32::from(is_there && (first..=last).contains(&port));
    }
    ports.extend(reserved.trim().split(',').filter_map(span).flatten());
    let is_full = (first..=last).all(|port| ports.contains(&port));
    (first <= last && is_full).then_some(Answer::NoPort { first, last, used })
}

/// Reads an address and a port as these tables print them.
fn end(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.rsplit_once(':')?;
    Some((kernel::listen::address_of(address)?, u16::from_str_radix(port, 16).ok()?))
}

/// Reads `8080` or `9000-9010`.
fn span(text: &str) -> Option<std::ops::RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as the kernel prints them on a machine with the byte order of this one.
    fn table(ports: &[u16]) -> String {
        let word = |address: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(address));
        let line = |port: &u16| {
            let (own, other) = (word([192, 0, 2, 78]), word([198, 51, 100, 10]));
            format!(
                "   0: {own}:{port:04X} {other}:0050 01 00000000:00000000 00:00000000 0 0 0 9\n"
            )
        };
        std::iter::once("  sl  local_address ...\n".to_owned())
            .chain(ports.iter().map(line))
            .collect()
    }

    #[test]
    fn ports_are_used_up_if_all_of_the_range_are_in_use() {
        let to = "198.51.100.10:80".parse().unwrap();
        let counted = |reserved: &str, ports: &[u16]| {
            counted("40000\t40003\n", reserved, &[table(ports), String::new()], to)
        };
        let all = Some(Answer::NoPort { first: 40_000, last: 40_003, used: 4 });
        assert_eq!(counted("\n", &[40_000, 40_001, 40_002, 40_003, 80]), all);
        assert_eq!(counted("\n", &[40_000, 40_001, 40_003, 80]), None);
        let three = Some(Answer::NoPort { first: 40_000, last: 40_003, used: 3 });
        assert_eq!(counted("80,40002-40002\n", &[40_000, 40_001, 40_003]), three);
    }

    #[test]
    fn other_errors_are_of_no_port() {
        let to = "198.51.100.10:80".parse().unwrap();
        let error = io::Error::from(io::ErrorKind::HostUnreachable);
        assert_eq!(used_up(&error, Transport::Tcp, to), None);
    }
}
