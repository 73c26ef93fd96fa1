//! Asks whether addresses answer, by echo requests (RFC 792, RFC 4443 §4).
//!
//! Asking needs CAP_NET_RAW, or a group in `net.ipv4.ping_group_range`.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recvfrom, sendto,
    socket_with,
};

use crate::route::is_link_local_v6;

const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST_6: u8 = 128;
const ECHO_REPLY_6: u8 = 129;

/// Header and payload of the request.
const LENGTH: usize = 16;

/// What became of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Echo {
    /// The address has answered, after this time.
    Answered(Duration),
    /// Nobody has answered.
    Silent,
    /// This host does not let the question through.
    Filtered,
}

/// Asks an address, at most `tries` times; returns how long the answer took, or `None` without one.
///
/// `scope` is the index of the link by which a link-local address is reached.
///
/// # Errors
/// The kernel's, when it cannot be asked.
pub fn ping(
    address: IpAddr,
    scope: u32,
    timeout: Duration,
    tries: u16,
) -> io::Result<Option<Duration>> {
    let (socket, has_ip_header) = open(address)?;
    for sequence in 1..=tries {
        let began = Instant::now();
        let sent = send(&socket, &request(address, sequence), address, scope);
        match sent {
            Ok(()) => {}
            // The neighbour has not answered yet; it may still do so.
            Err(error) if error.kind() == io::ErrorKind::HostUnreachable => continue,
            Err(error) => return Err(error),
        }
        if wait(&socket, address, has_ip_header, sequence, began + timeout)? {
            return Ok(Some(began.elapsed()));
        }
    }
    Ok(None)
}

/// The most addresses that are asked at once.
pub const AT_ONCE: usize = 1024;

/// Asks all of these addresses at once, at most [`AT_ONCE`] of them, and waits until every one has
/// answered or the time is over. The results are in the order of the addresses; one beyond the most
/// counts as silent.
///
/// # Errors
/// The kernel's, when there is no socket to ask with.
pub fn ask_all(addresses: &[IpAddr], timeout: Duration) -> io::Result<Vec<Echo>> {
    let mut found = vec![Echo::Silent; addresses.len()];
    let mut sockets: BTreeMap<bool, (OwnedFd, bool)> = BTreeMap::new();
    let began = Instant::now();
    let mut open_questions = 0_usize;
    for (number, address) in addresses.iter().enumerate().take(AT_ONCE) {
        let of_v4 = address.is_ipv4();
        if let std::collections::btree_map::Entry::Vacant(free) = sockets.entry(of_v4) {
            free.insert(open(*address)?);
        }
        let sequence = u16::try_from(number).unwrap_or(u16::MAX);
        match send(&sockets[&of_v4].0, &request(*address, sequence), *address, 0) {
            Ok(()) => open_questions += 1,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                found[number] = Echo::Filtered;
            }
            // No way to it, or its neighbour is silent: nobody answers.
            Err(_) => {}
        }
    }
    let end = began + timeout;
    let mut buffer = [0_u8; 2048];
    while 0 < open_questions {
        let left = end.saturating_duration_since(Instant::now());
        let mut waiting: Vec<PollFd<'_>> =
            sockets.values().map(|(socket, _)| PollFd::new(socket, PollFlags::IN)).collect();
        match poll(&mut waiting, Timespec::try_from(left).ok().as_ref()) {
            Ok(0) => break,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        for (socket, has_ip_header) in sockets.values() {
            while let Ok((length, _, from)) = recvfrom(socket, &mut buffer[..], RecvFlags::empty())
            {
                let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                let Some(from) = from.map(|from| from.ip()) else { continue };
                let packet = &buffer[..length];
                let answers = |sequence| is_answer(packet, from, *has_ip_header, sequence);
                let number = sequence_of(packet, *has_ip_header)
                    .filter(|sequence| answers(*sequence))
                    .map(usize::from)
                    .filter(|number| addresses.get(*number) == Some(&from));
                if let Some(number) = number
                    && found[number] == Echo::Silent
                {
                    found[number] = Echo::Answered(began.elapsed());
                    open_questions -= 1;
                }
            }
        }
        if left.is_zero() {
            break;
        }
    }
    Ok(found)
}

/// Opens a raw socket, or one of the kind that needs no privilege; says whether its answers begin
/// with an IP header.
fn open(address: IpAddr) -> io::Result<(OwnedFd, bool)> {
    let (family, protocol) = match address {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match socket_with(family, SocketType::RAW, flags, Some(protocol)) {
        Ok(socket) => Ok((socket, address.is_ipv4())),
        Err(_) => Ok((socket_with(family, SocketType::DGRAM, flags, Some(protocol))?, false)),
    }
}

fn request(address: IpAddr, sequence: u16) -> [u8; LENGTH] {
    let mut packet = [0_u8; LENGTH];
    packet[0] = if address.is_ipv4() { ECHO_REQUEST } else { ECHO_REQUEST_6 };
    packet[4..6].copy_from_slice(&identifier());
    packet[6..8].copy_from_slice(&sequence.to_be_bytes());
    packet[8..].copy_from_slice(b"netwrigt");
    // The kernel computes the checksum of ICMPv6, which covers the IP header.
    if address.is_ipv4() {
        let sum = checksum(&packet);
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

/// Returns an identifier that tells our answers from those to other processes: the low half of the
/// process ID.
fn identifier() -> [u8; 2] {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    [high, low]
}

/// Computes the Internet checksum (RFC 1071).
fn checksum(packet: &[u8]) -> u16 {
    let mut sum: u32 =
        packet.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while 0xffff < sum {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("the carry has been folded in")
}

fn send(socket: &OwnedFd, packet: &[u8], address: IpAddr, scope: u32) -> io::Result<()> {
    let to = match address {
        IpAddr::V4(address) => SocketAddr::V4(SocketAddrV4::new(address, 0)),
        IpAddr::V6(address) => {
            let scope = if is_link_local_v6(address.into()) { scope } else { 0 };
            SocketAddr::V6(SocketAddrV6::new(address, 0, 0, scope))
        }
    };
    sendto(socket, packet, SendFlags::empty(), &to)?;
    Ok(())
}

/// Waits for the answer until `end`; ignores other packets.
fn wait(
    socket: &OwnedFd,
    address: IpAddr,
    has_ip_header: bool,
    sequence: u16,
    end: Instant,
) -> io::Result<bool> {
    let mut buffer = [0_u8; 2048];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], timeout.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        match recvfrom(socket, &mut buffer[..], RecvFlags::empty()) {
            Ok((length, ..)) if is_answer(&buffer[..length], address, has_ip_header, sequence) => {
                return Ok(true);
            }
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Returns the ICMP message of a packet.
fn message(packet: &[u8], has_ip_header: bool) -> Option<&[u8]> {
    if !has_ip_header {
        return Some(packet);
    }
    // The length of the header is in words of 32 bits (RFC 791 §3.1 IHL).
    let header = packet.first().map(|first| usize::from(first & 0x0f) * 4).unwrap_or_default();
    packet.get(header..)
}

fn sequence_of(packet: &[u8], has_ip_header: bool) -> Option<u16> {
    let sequence = message(packet, has_ip_header)?.get(6..8)?;
    Some(u16::from_be_bytes([sequence[0], sequence[1]]))
}

fn is_answer(packet: &[u8], address: IpAddr, has_ip_header: bool, sequence: u16) -> bool {
    let wanted = if address.is_ipv4() { ECHO_REPLY } else { ECHO_REPLY_6 };
    // The kernel chooses the identifier of a socket that needs no privilege, and gives it only its
    // own answers.
    message(packet, has_ip_header).is_some_and(|icmp| {
        icmp.first() == Some(&wanted)
            && icmp.get(6..8) == Some(&sequence.to_be_bytes()[..])
            && icmp.get(8..16) == Some(&b"netwrigt"[..])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_packet_with_checksum_is_zero() {
        let packet = request("192.0.2.1".parse().unwrap(), 1);
        assert_eq!(checksum(&packet), 0);
    }

    #[test]
    fn only_the_answer_counts() {
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        let mut packet = vec![0x45; 20];
        packet.extend(request(address, 7));
        assert!(!is_answer(&packet, address, true, 7), "a request is no answer");
        packet[20] = ECHO_REPLY;
        assert!(is_answer(&packet, address, true, 7));
        assert!(!is_answer(&packet, address, true, 8));
        assert!(!is_answer(&packet[..10], address, true, 7));
        assert!(!is_answer(&[], address, true, 7));
    }
}
