//! Asks whether addresses answer, by echo requests (RFC 792, RFC 4443 §4).
//!
//! Asking needs CAP_NET_RAW, or a group in `net.ipv4.ping_group_range`.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recvfrom, sendto,
    socket_with,
};

use crate::netlink::bind_to_link;
use crate::route::is_link_local_v6;

const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST_6: u8 = 128;
const ECHO_REPLY_6: u8 = 129;
/// "Destination unreachable" (RFC 792, RFC 4443 §3.1).
pub(crate) const UNREACHABLE: u8 = 3;
pub(crate) const UNREACHABLE_6: u8 = 1;

/// Header and payload of the smallest request.
const LENGTH: usize = 16;

/// The payload begins with it, so that others' answers are not taken for ours.
const MARK: &[u8; 8] = b"netwrigt";

/// The longest packet (RFC 791 §3.1).
const LONGEST: usize = 65_535;

/// How many packets are read between two looks at the clock: another host may send faster than we
/// read.
const AT_A_TIME: usize = 256;

/// The distance between the identifiers of two calls of a process: processes that are started one
/// after the other have consecutive process IDs.
const STEP: u16 = 9973;

/// A question to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// The address that is asked.
    pub address: IpAddr,
    /// How many bytes the packet has, with its IP header. No router fragments it: a packet that
    /// does not fit does not arrive. A size that is too small for a question means the smallest.
    pub size: u32,
    /// The answer may come from another address of the host, as that to an anycast address does (RFC
    /// 4443 §2.2). On a host that forwards, the first address of each IPv6 prefix of a link is one
    /// (RFC 4291 §2.6.1).
    pub from_any: bool,
}

impl Question {
    /// The smallest question.
    #[must_use]
    pub fn small(address: IpAddr) -> Self {
        Question { address, size: 0, from_any: false }
    }

    /// Reports whether an address may have answered.
    fn is_answered_by(&self, from: IpAddr) -> bool {
        self.address == from || (self.from_any && self.address.is_ipv4() == from.is_ipv4())
    }
}

/// What became of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Echo {
    /// The address has answered, after this time.
    Answered(Duration),
    /// No host has answered.
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
    let identifier = identifier();
    let asker = Asker::open(address, identifier)?;
    asker.ping(identifier, address, scope, timeout, tries)
}

/// Asks an address by a link, whatever other links the routes prefer; otherwise as [`ping`].
///
/// # Errors
/// The kernel's, when it cannot be asked.
pub fn ping_by(
    link: &str,
    address: IpAddr,
    timeout: Duration,
    tries: u16,
) -> io::Result<Option<Duration>> {
    let identifier = identifier();
    let asker = Asker::open(address, identifier)?;
    bind_to_link(asker.socket.as_fd(), link.as_bytes())?;
    asker.ping(identifier, address, 0, timeout, tries)
}

/// Asks an address of IPv4, twice at most, and returns how many hops the packet of its answer might
/// still take; `None` without an answer, or if the socket does not show it.
///
/// # Errors
/// The kernel's, when it cannot be asked.
///
/// # Privileges
/// CAP_NET_RAW.
pub fn hops_left(address: Ipv4Addr, timeout: Duration) -> io::Result<Option<u8>> {
    let address = IpAddr::V4(address);
    let identifier = identifier();
    let asker = Asker::open(address, identifier)?;
    for sequence in 1..=2 {
        send(&asker.socket, &request(identifier, Question::small(address), sequence), address, 0)?;
        if let Some(heard) = asker.hear(address, sequence, Instant::now() + timeout)? {
            return Ok(heard);
        }
    }
    Ok(None)
}

/// The most questions that are asked at once.
pub const AT_ONCE: usize = 1024;

/// Asks all of these questions at once, at most [`AT_ONCE`] of them, and waits until every one is
/// answered or the time is over. The results are in the order of the questions; one beyond the most
/// counts as silent.
///
/// # Errors
/// The kernel's, when there is no socket to ask with.
pub fn ask_all(questions: &[Question], timeout: Duration) -> io::Result<Vec<Echo>> {
    ask_all_as(identifier(), questions, timeout)
}

/// Does what [`ask_all`] does, with another identifier than this process's other questions, so that
/// no host on the way takes them for parts of the same exchange. A socket that needs no privilege
/// has an identifier that the kernel chooses.
///
/// # Errors
/// The kernel's, when there is no socket to ask with.
pub fn ask_all_as(
    identifier: u16,
    questions: &[Question],
    timeout: Duration,
) -> io::Result<Vec<Echo>> {
    let heard = hear_all(identifier, questions, timeout)?;
    Ok(heard.into_iter().map(|heard| heard.echo).collect())
}

/// What was heard of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EchoAnswer {
    /// What became of it.
    pub echo: Echo,
    /// The host that reported that it cannot deliver the question: a router on the way, or the last
    /// host, which does not have the address. Only a privileged socket receives such reports.
    pub undelivered_by: Option<IpAddr>,
}

/// Does what [`ask_all`] does, and also returns which host cannot deliver a question.
///
/// # Errors
/// The kernel's, when there is no socket to ask with.
pub fn ask_all_and_hear(questions: &[Question], timeout: Duration) -> io::Result<Vec<EchoAnswer>> {
    hear_all(identifier(), questions, timeout)
}

fn hear_all(
    identifier: u16,
    questions: &[Question],
    timeout: Duration,
) -> io::Result<Vec<EchoAnswer>> {
    let nothing = EchoAnswer { echo: Echo::Silent, undelivered_by: None };
    let mut found = vec![nothing; questions.len()];
    let mut askers: BTreeMap<bool, Asker> = BTreeMap::new();
    let began = Instant::now();
    let mut open_questions = 0_usize;
    for (number, question) in questions.iter().enumerate().take(AT_ONCE) {
        let of_v4 = question.address.is_ipv4();
        if let std::collections::btree_map::Entry::Vacant(free) = askers.entry(of_v4) {
            let asker = Asker::open(question.address, identifier)?;
            send_whole(&asker.socket, of_v4)?;
            free.insert(asker);
        }
        let sequence = u16::try_from(number).unwrap_or(u16::MAX);
        let packet = request(identifier, *question, sequence);
        match send(&askers[&of_v4].socket, &packet, question.address, 0) {
            Ok(()) => open_questions += 1,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                found[number].echo = Echo::Filtered;
            }
            // No route leads to it, its neighbour is silent, or the packet is too long: no host
            // answers.
            Err(_) => {}
        }
    }
    let end = began + timeout;
    let mut buffer = vec![0_u8; LONGEST];
    while 0 < open_questions {
        let left = end.saturating_duration_since(Instant::now());
        let mut waiting: Vec<PollFd<'_>> =
            askers.values().map(|asker| PollFd::new(&asker.socket, PollFlags::IN)).collect();
        match poll(&mut waiting, Timespec::try_from(left).ok().as_ref()) {
            Ok(0) => break,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        for asker in askers.values() {
            for _ in 0..AT_A_TIME {
                let read = recvfrom(&asker.socket, &mut buffer[..], RecvFlags::empty());
                let Ok((length, _, from)) = read else { break };
                let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                let Some(from) = from.map(|from| from.ip()) else { continue };
                let packet = &buffer[..length];
                if let Some((number, to)) = asker.undelivered(packet, from.is_ipv4())
                    && questions.get(number).is_some_and(|question| question.address == to)
                    && found[number] == nothing
                {
                    found[number].undelivered_by = Some(from);
                    open_questions = open_questions.saturating_sub(1);
                }
                let answered = asker.answer_to(packet, from);
                let number = answered.map(usize::from).filter(|number| {
                    questions.get(*number).is_some_and(|question| question.is_answered_by(from))
                });
                if let Some(number) = number
                    && found[number].echo == Echo::Silent
                {
                    // Something may have been heard of it before.
                    let was_open = usize::from(found[number] == nothing);
                    open_questions = open_questions.saturating_sub(was_open);
                    found[number].echo = Echo::Answered(began.elapsed());
                }
            }
        }
        if left.is_zero() {
            break;
        }
    }
    Ok(found)
}

/// Sends a datagram to a port of each address at which no process listens. Waits until every host
/// has reported that (RFC 1122 §4.1.3.1), or the time is over. Returns for each address whether its
/// host has.
///
/// Without a checksum, which only IPv4 permits (RFC 768), an address of IPv6 is not asked.
///
/// # Errors
/// The kernel's, when there is no socket to ask with.
pub fn ask_closed_ports(
    addresses: &[IpAddr],
    port: u16,
    with_checksum: bool,
    timeout: Duration,
) -> io::Result<Vec<bool>> {
    let mut sockets = Vec::new();
    for address in addresses {
        if !with_checksum && address.is_ipv6() {
            sockets.push(None);
            continue;
        }
        let any: IpAddr = match address {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0))?;
        if !with_checksum {
            leave_checksum_out(&socket)?;
        }
        let sent = socket.connect((*address, port)).and_then(|()| socket.send(MARK));
        sockets.push(sent.is_ok().then_some(socket));
    }
    let end = Instant::now() + timeout;
    let mut answered = Vec::new();
    for socket in sockets {
        let Some(socket) = socket else {
            answered.push(false);
            continue;
        };
        // The kernel takes zero for no limit.
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        socket.set_read_timeout(Some(left))?;
        let said = socket.recv(&mut [0; 8]);
        answered.push(said.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused));
    }
    Ok(answered)
}

/// Has a socket send no checksums (linux include/uapi/asm-generic/socket.h SO_NO_CHECK).
fn leave_checksum_out(socket: &UdpSocket) -> io::Result<()> {
    let yes: libc::c_int = 1;
    let length =
        libc::socklen_t::try_from(std::mem::size_of_val(&yes)).expect("four bytes are few");
    // SAFETY: the pointer is to `length` bytes, which the kernel copies before the call returns.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NO_CHECK,
            std::ptr::from_ref(&yes).cast(),
            length,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes a socket's packets arrive whole or not at all, even if the kernel has learnt a smaller MTU
/// of the path.
fn send_whole(socket: &OwnedFd, of_v4: bool) -> io::Result<()> {
    match of_v4 {
        true => sockopt::set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::PROBE)?,
        false => sockopt::set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::PROBE)?,
    }
    Ok(())
}

/// A socket with which questions of one identifier are asked.
#[derive(Debug)]
struct Asker {
    socket: OwnedFd,
    /// Answers begin with an IP header.
    has_ip_header: bool,
    /// `None`: the kernel chooses the identifier, and gives the socket only its own answers. A raw
    /// socket gets those to all questions of this host.
    identifier: Option<u16>,
}

impl Asker {
    /// Opens a raw socket, or one of the kind that needs no privilege. An error is `Unsupported`, so
    /// that no caller takes it for one of the way to an address.
    fn open(address: IpAddr, identifier: u16) -> io::Result<Self> {
        let (family, protocol) = match address {
            IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
            IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match socket_with(family, SocketType::RAW, flags, Some(protocol)) {
            Ok(socket) => {
                let has_ip_header = address.is_ipv4();
                Ok(Asker { socket, has_ip_header, identifier: Some(identifier) })
            }
            Err(_) => {
                let socket = socket_with(family, SocketType::DGRAM, flags, Some(protocol))
                    .map_err(|error| {
                        let said = format!("there is no socket for echo requests: {error}");
                        io::Error::new(io::ErrorKind::Unsupported, said)
                    })?;
                Ok(Asker { socket, has_ip_header: false, identifier: None })
            }
        }
    }

    /// Asks an address, at most `tries` times.
    fn ping(
        &self,
        identifier: u16,
        address: IpAddr,
        scope: u32,
        timeout: Duration,
        tries: u16,
    ) -> io::Result<Option<Duration>> {
        for sequence in 1..=tries {
            let began = Instant::now();
            let packet = request(identifier, Question::small(address), sequence);
            match send(&self.socket, &packet, address, scope) {
                Ok(()) => {}
                // The neighbour has not answered yet; it may still do so.
                Err(error) if error.kind() == io::ErrorKind::HostUnreachable => continue,
                Err(error) => return Err(error),
            }
            if self.wait(address, sequence, began + timeout)? {
                return Ok(Some(began.elapsed()));
            }
        }
        Ok(None)
    }

    fn wait(&self, address: IpAddr, sequence: u16, end: Instant) -> io::Result<bool> {
        self.hear(address, sequence, end).map(|heard| heard.is_some())
    }

    /// Waits until `end` for the address's answer to the question of this number; ignores other
    /// packets. Returns how many hops its packet might still take, if the socket shows that.
    fn hear(&self, address: IpAddr, sequence: u16, end: Instant) -> io::Result<Option<Option<u8>>> {
        let mut buffer = [0_u8; 2048];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let timeout = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], timeout.as_ref()) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            match recvfrom(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((length, _, from)) => {
                    let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                    let is_from = from.is_some_and(|from| from.ip() == address);
                    if is_from && self.answer_to(&buffer[..length], address) == Some(sequence) {
                        // RFC 791 §3.1, "Time to Live".
                        return Ok(Some(buffer.get(8).copied().filter(|_| self.has_ip_header)));
                    }
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Returns the number of the question that a packet from an address answers.
    fn answer_to(&self, packet: &[u8], from: IpAddr) -> Option<u16> {
        answer_to(packet, from, self.has_ip_header, self.identifier)
    }

    fn undelivered(&self, packet: &[u8], of_v4: bool) -> Option<(usize, IpAddr)> {
        undelivered(packet, of_v4, self.has_ip_header, self.identifier)
    }
}

fn request(identifier: u16, question: Question, sequence: u16) -> Vec<u8> {
    let of_v4 = question.address.is_ipv4();
    // The kernel puts the IP header before it (RFC 791 §3.1, RFC 8200 §3).
    let header = if of_v4 { 20 } else { 40 };
    let whole = usize::try_from(question.size).map_or(LONGEST, |size| size.min(LONGEST));
    let mut packet = vec![0_u8; whole.saturating_sub(header).max(LENGTH)];
    packet[0] = if of_v4 { ECHO_REQUEST } else { ECHO_REQUEST_6 };
    packet[4..6].copy_from_slice(&identifier.to_be_bytes());
    packet[6..8].copy_from_slice(&sequence.to_be_bytes());
    packet[8..16].copy_from_slice(MARK);
    // The kernel computes the checksum of ICMPv6, which covers the IP header.
    if of_v4 {
        let sum = checksum(&packet);
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

/// Returns an identifier that tells the answers of one call from those of other calls and other
/// processes.
fn identifier() -> u16 {
    static CALLS: AtomicU16 = AtomicU16::new(0);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    u16::from_be_bytes([high, low]).wrapping_add(call.wrapping_mul(STEP))
}

/// Computes the Internet checksum (RFC 1071).
fn checksum(packet: &[u8]) -> u16 {
    // An odd last byte counts as if a zero followed.
    let word = |pair: &[u8]| u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
    let mut sum: u32 = packet.chunks(2).map(|pair| u32::from(word(pair))).sum();
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

/// Returns the ICMP message of a packet.
pub(crate) fn message(packet: &[u8], has_ip_header: bool) -> Option<&[u8]> {
    if !has_ip_header {
        return Some(packet);
    }
    // The length of the header is in words of 32 bits (RFC 791 §3.1 IHL).
    let header = packet.first().map(|first| usize::from(first & 0x0f) * 4).unwrap_or_default();
    packet.get(header..)
}

/// Returns the number of the question that a packet answers.
fn answer_to(
    packet: &[u8],
    address: IpAddr,
    has_ip_header: bool,
    identifier: Option<u16>,
) -> Option<u16> {
    let wanted = if address.is_ipv4() { ECHO_REPLY } else { ECHO_REPLY_6 };
    let icmp = message(packet, has_ip_header)?;
    let is_own = identifier.is_none_or(|own| icmp.get(4..6) == Some(&own.to_be_bytes()[..]));
    let is_answer = icmp.first() == Some(&wanted) && icmp.get(8..16) == Some(&MARK[..]);
    let sequence = icmp.get(6..8).filter(|_| is_own && is_answer)?;
    Some(u16::from_be_bytes([sequence[0], sequence[1]]))
}

/// Returns the number and the destination of the question that cannot be delivered, as the packet
/// says: such a message quotes the question.
fn undelivered(
    packet: &[u8],
    of_v4: bool,
    has_ip_header: bool,
    identifier: Option<u16>,
) -> Option<(usize, IpAddr)> {
    let icmp = message(packet, has_ip_header)?;
    let kind = if of_v4 { UNREACHABLE } else { UNREACHABLE_6 };
    let quoted = icmp.get(8..).filter(|_| icmp.first() == Some(&kind))?;
    // Its IP header first (RFC 791 §3.1, RFC 8200 §3).
    let (to, asked): (IpAddr, &[u8]) = if of_v4 {
        let to: [u8; 4] = quoted.get(16..20)?.try_into().ok()?;
        (to.into(), message(quoted, true)?)
    } else {
        let to: [u8; 16] = quoted.get(24..40)?.try_into().ok()?;
        (to.into(), quoted.get(40..)?)
    };
    let request = if of_v4 { ECHO_REQUEST } else { ECHO_REQUEST_6 };
    let is_own = identifier.is_none_or(|own| asked.get(4..6) == Some(&own.to_be_bytes()[..]));
    let is_question = asked.first() == Some(&request) && asked.get(8..16) == Some(&MARK[..]);
    let sequence = asked.get(6..8).filter(|_| is_own && is_question)?;
    Some((u16::from_be_bytes([sequence[0], sequence[1]]).into(), to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_packet_with_checksum_is_zero() {
        for size in [0, 1500, 1501] {
            let small = Question::small("192.0.2.1".parse().unwrap());
            let packet = request(4711, Question { size, ..small }, 1);
            assert_eq!(checksum(&packet), 0);
            assert_eq!(packet.len(), if size == 0 { LENGTH } else { size as usize - 20 });
        }
    }

    #[test]
    fn only_the_answer_counts() {
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        let mut packet = vec![0x45; 20];
        packet.extend(request(4711, Question::small(address), 7));
        let own = Some(4711);
        assert_eq!(answer_to(&packet, address, true, own), None, "a request is no answer");
        packet[20] = ECHO_REPLY;
        assert_eq!(answer_to(&packet, address, true, own), Some(7));
        assert_eq!(answer_to(&packet, address, true, Some(4712)), None, "it is another's");
        assert_eq!(answer_to(&packet, address, true, None), Some(7));
        assert_eq!(answer_to(&packet[..10], address, true, own), None);
        assert_eq!(answer_to(&[], address, true, own), None);
    }

    /// A raw socket gets the answers to all questions of this host.
    #[test]
    fn the_answers_to_others_are_not_taken_for_ours() {
        let one = "127.0.0.1".parse().unwrap();
        let asker = Asker::open(one, 4711).ok().filter(|asker| asker.identifier.is_some());
        // Only root has one.
        let Some(asker) = asker else { return };
        let ask = |identifier: u16, sequence: u16| {
            send(&asker.socket, &request(identifier, Question::small(one), sequence), one, 0)
        };
        let soon = || Instant::now() + Duration::from_millis(1);
        ask(4712, 1).unwrap();
        assert!(!asker.wait(one, 1, soon()).unwrap(), "the answer is to another question");
        ask(4711, 1).unwrap();
        assert!(asker.wait(one, 1, Instant::now() + Duration::from_secs(20)).unwrap());
        ask(4711, 2).unwrap();
        let other = "127.0.0.2".parse().unwrap();
        assert!(!asker.wait(other, 2, soon()).unwrap(), "the answer is another address's");
    }

    #[test]
    fn who_cannot_deliver_a_question_quotes_it() {
        for (address, header, at) in [("192.0.2.1", 20, 16), ("2001:db8::1", 40, 24)] {
            let address: IpAddr = address.parse().unwrap();
            let of_v4 = address.is_ipv4();
            let to = match address {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            let mut quoted = vec![0_u8; header];
            quoted[0] = if of_v4 { 0x45 } else { 0x60 };
            quoted[at..at + to.len()].copy_from_slice(&to);
            quoted.extend(request(4711, Question::small(address), 7));
            let mut packet = if of_v4 { vec![0x45_u8; 20] } else { Vec::new() };
            let begin = packet.len();
            packet.extend([if of_v4 { UNREACHABLE } else { UNREACHABLE_6 }, 1, 0, 0, 0, 0, 0, 0]);
            packet.extend(quoted);
            let own = Some(4711);
            assert_eq!(undelivered(&packet, of_v4, of_v4, own), Some((7, address)));
            assert_eq!(undelivered(&packet, of_v4, of_v4, Some(4712)), None, "another's question");
            for length in 0..packet.len() {
                let short = undelivered(&packet[..length], of_v4, of_v4, own);
                assert_eq!(short, None, "{address}: {length} bytes");
            }
            assert_eq!(answer_to(&packet, address, of_v4, own), None);
            // A question of another program, an answer, another message.
            let mark = packet.len() - 1;
            for (place, byte) in [(mark, 0), (begin + 8 + header, 0), (begin, 11)] {
                let mut other = packet.clone();
                other[place] = byte;
                assert_eq!(undelivered(&other, of_v4, of_v4, own), None, "{address}: {place}");
            }
        }
    }
}
