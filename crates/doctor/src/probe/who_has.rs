//! Asks all hosts on a link which of them has an address: by ARP (RFC 826) or neighbour
//! solicitation (RFC 4861).
//!
//! The kernel's table of neighbours is not asked: of several answers it keeps one.

use std::collections::BTreeSet;
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use diagnose::Answer;
use ipnet::IpNet;
use kernel::MacAddr;
use kernel::packet::{Filter, MAX_FRAME, PacketSocket};
use kernel::route::RouteSocket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How often to ask, and how long to wait for answers each time.
const TRIES: u32 = 2;
const WAIT: Duration = Duration::from_millis(500);

/// How long others may take that answer too.
const OTHERS: Duration = Duration::from_millis(100);

/// How many hardware addresses are reported: a container may answer with any number of them.
const MOST: usize = 8;

/// The header of Ethernet, and what a packet socket puts before it.
const ETHERNET: usize = 14;
const BUFFER: usize = MAX_FRAME + 64;

const ETH_P_ARP: u16 = 0x0806;
const ETH_P_IPV6: u16 = 0x86dd;

/// Ethernet, IPv4, and the lengths of their addresses (RFC 826).
const ARP_HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_REQUEST: [u8; 2] = [0, 1];
const ARP_REPLY: [u8; 2] = [0, 2];

/// RFC 4861 §4.3, §4.4 and §4.6.1.
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_LINK: [u8; 2] = [1, 1];
const TARGET_LINK: [u8; 2] = [2, 1];

/// ICMPv6 in IP's header, and the hop limit that shows that no router has passed it on.
const ICMPV6: u8 = 58;
const HOPS: u8 = 255;

/// How long a solicitation with the hardware address is, in bytes.
const SOLICITATION_LENGTH: u16 = 32;

/// Asks on a link of the calling thread's namespace.
pub(super) fn ask(address: IpAddr, link: &str) -> Answer {
    match exchange(address, link) {
        Ok(macs) => Answer::Owners { macs: macs.iter().map(ToString::to_string).collect() },
        Err(reason) => Answer::NotAsked { reason },
    }
}

fn with_causes(error: &dyn Error) -> String {
    cni::Error::from_chain(cni::code::IO_FAILURE, error).msg
}

fn exchange(address: IpAddr, name: &str) -> Result<BTreeSet<MacAddr>, String> {
    let mut routes = RouteSocket::open().map_err(|error| with_causes(&error))?;
    let link = routes.link_by_name(name).map_err(|error| with_causes(&error))?;
    let link = link.ok_or_else(|| format!("there is no link {name}"))?;
    let mac = link.mac.ok_or_else(|| format!("{name} has no hardware address"))?;
    let own = routes.addresses(Some(link.index)).map_err(|error| with_causes(&error))?;
    let usable = own.iter().filter(|one| !one.tentative() && !one.dad_failed());
    let own: Vec<IpNet> = usable.map(|one| one.address).collect();
    let (question, filter) = match address {
        IpAddr::V4(target) => (request(mac, source_v4(&own, target), target), Filter::arp()),
        IpAddr::V6(target) => {
            // An answer to the address itself would come to whoever else has it.
            let others: Vec<IpNet> =
                own.iter().copied().filter(|net| net.addr() != address).collect();
            let source = source_v6(&others, target);
            let source = source.ok_or_else(|| format!("{name} has no IPv6 address"))?;
            (solicitation(mac, source, target), Filter::advertisements())
        }
    };
    let socket = PacketSocket::open(link.index, &filter).map_err(|error| with_causes(&error))?;
    // On a sound network no machine answers for our own address.
    let is_own = own.iter().any(|net| net.addr() == address);
    let (tries, wait) = if is_own { (1, OTHERS) } else { (TRIES, WAIT) };
    let mut found = BTreeSet::new();
    for _ in 0..tries {
        socket.send(&question).map_err(|error| with_causes(&error))?;
        listen(&socket, address, wait, &mut found)?;
        if !found.is_empty() {
            break;
        }
    }
    Ok(found)
}

/// Gathers answers until no more come.
fn listen(
    socket: &PacketSocket,
    address: IpAddr,
    wait: Duration,
    found: &mut BTreeSet<MacAddr>,
) -> Result<(), String> {
    let mut buffer = vec![0; BUFFER];
    let mut end = Instant::now() + wait;
    while found.len() < MOST {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        let ready = poll(&mut [PollFd::new(socket, PollFlags::IN)], timeout.as_ref());
        if left.is_zero() || ready.is_ok_and(|ready| ready == 0) {
            break;
        }
        let frame = socket.receive(&mut buffer).map_err(|error| with_causes(&error))?;
        if let Some(mac) = frame.and_then(|frame| owner(frame.octets, address))
            && found.insert(mac)
        {
            end = end.min(Instant::now() + OTHERS);
        }
    }
    Ok(())
}

/// Our address that the kernel would ask from for a packet of ours: one in the target's subnet, or
/// else another one. Without an address, and for our own, we ask as a host does that looks for a free
/// one (RFC 5227 §2.1.1): another machine that has ours would answer nothing else.
fn source_v4(own: &[IpNet], target: Ipv4Addr) -> Ipv4Addr {
    let of = |net: &IpNet| match net.addr() {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    };
    let near = own.iter().filter(|net| net.contains(&IpAddr::V4(target)));
    let is_own = own.iter().any(|net| net.addr() == IpAddr::V4(target));
    let source = near.chain(own).find_map(of).filter(|_| !is_own);
    source.unwrap_or(Ipv4Addr::UNSPECIFIED)
}

/// The same; a link-local address comes last, unless the target is one too: an answer to another
/// address would leave the link.
fn source_v6(own: &[IpNet], target: Ipv6Addr) -> Option<Ipv6Addr> {
    let of = |net: &IpNet| match net.addr() {
        IpAddr::V6(address) => Some(address),
        IpAddr::V4(_) => None,
    };
    let near = own.iter().filter(|net| net.contains(&IpAddr::V6(target)));
    let is_like =
        |address: &Ipv6Addr| address.is_unicast_link_local() == target.is_unicast_link_local();
    let mut like = near.chain(own).filter_map(of).filter(is_like);
    like.next().or_else(|| own.iter().find_map(of))
}

fn ethernet(to: [u8; 6], from: MacAddr, ethertype: u16) -> Vec<u8> {
    let mut frame = to.to_vec();
    frame.extend_from_slice(&from.0);
    frame.extend_from_slice(&ethertype.to_be_bytes());
    frame
}

fn request(mac: MacAddr, source: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut frame = ethernet([0xff; 6], mac, ETH_P_ARP);
    frame.extend_from_slice(&ARP_HEAD);
    frame.extend_from_slice(&ARP_REQUEST);
    frame.extend_from_slice(&mac.0);
    frame.extend_from_slice(&source.octets());
    frame.extend_from_slice(&[0; 6]);
    frame.extend_from_slice(&target.octets());
    frame
}

fn solicitation(mac: MacAddr, source: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    // RFC 4291 §2.7.1 and RFC 2464 §7.
    let [.., a, b, c] = target.octets();
    let node = [0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c];
    let mut message = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    message.extend_from_slice(&target.octets());
    message.extend_from_slice(&SOURCE_LINK);
    message.extend_from_slice(&mac.0);
    let sum = checksum(&source.octets(), &node, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = ethernet([0x33, 0x33, 0xff, a, b, c], mac, ETH_P_IPV6);
    frame.extend_from_slice(&[0x60, 0, 0, 0]);
    frame.extend_from_slice(&SOLICITATION_LENGTH.to_be_bytes());
    frame.extend_from_slice(&[ICMPV6, HOPS]);
    frame.extend_from_slice(&source.octets());
    frame.extend_from_slice(&node);
    frame.extend_from_slice(&message);
    frame
}

/// The checksum of ICMPv6 (RFC 8200 §8.1, RFC 1071).
fn checksum(source: &[u8; 16], to: &[u8; 16], message: &[u8]) -> u16 {
    let [high, low] = SOLICITATION_LENGTH.to_be_bytes();
    let rest = [0, 0, high, low, 0, 0, 0, ICMPV6];
    let mut sum: u32 = 0;
    for part in [source.as_slice(), to.as_slice(), rest.as_slice(), message] {
        for pair in part.chunks_exact(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
        }
    }
    while 0xffff < sum {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

/// Returns the hardware address that a frame announces for an address.
fn owner(frame: &[u8], address: IpAddr) -> Option<MacAddr> {
    let packet = frame.get(ETHERNET..)?;
    let mac = |bytes: &[u8]| <[u8; 6]>::try_from(bytes).ok().map(MacAddr);
    match address {
        IpAddr::V4(target) => {
            let is_reply = packet.get(..6)? == ARP_HEAD && packet.get(6..8)? == ARP_REPLY;
            let is_of = packet.get(14..18)? == target.octets();
            (is_reply && is_of).then(|| mac(packet.get(8..14)?)).flatten()
        }
        IpAddr::V6(target) => {
            let message = packet.get(40..)?;
            let is_answer =
                packet.get(6) == Some(&ICMPV6) && message.first() == Some(&ADVERTISEMENT);
            if !is_answer || message.get(8..24)? != target.octets() {
                return None;
            }
            match message.get(24..26) {
                Some(option) if option == TARGET_LINK => mac(message.get(26..32)?),
                _ => mac(frame.get(6..12)?),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    #[test]
    fn a_request_is_answered_by_the_owner_alone() {
        let target: Ipv4Addr = "10.88.0.1".parse().unwrap();
        let source: Ipv4Addr = "10.88.0.2".parse().unwrap();
        let asked = request(OWN, source, target);
        assert_eq!(asked.len(), 42);
        assert_eq!(owner(&asked, target.into()), None);
        // The answer has the roles changed.
        let mut reply = request(OTHER, target, source);
        reply[21] = 2;
        assert_eq!(owner(&reply, target.into()), Some(OTHER));
        assert_eq!(owner(&reply, source.into()), None);
        for length in 0..reply.len() - 10 {
            assert_eq!(owner(&reply[..length], target.into()), None, "{length}");
        }
    }

    #[test]
    fn a_solicitation_has_a_checksum_and_its_answer_an_owner() {
        let target: Ipv6Addr = "fd00:88::1".parse().unwrap();
        let source: Ipv6Addr = "fe80::2".parse().unwrap();
        let asked = solicitation(OWN, source, target);
        assert_eq!(asked.len(), 86);
        assert_eq!(asked[..6], [0x33, 0x33, 0xff, 0, 0, 1]);
        // The sum over all of it, its checksum too, is zero.
        let node: [u8; 16] = asked[38..54].try_into().unwrap();
        assert_eq!(checksum(&source.octets(), &node, &asked[54..]), 0);
        assert_eq!(owner(&asked, target.into()), None);
        let mut answer = solicitation(OTHER, target, target);
        answer[54] = ADVERTISEMENT;
        assert_eq!(owner(&answer, target.into()), Some(OTHER), "by its Ethernet header");
        answer[78..80].copy_from_slice(&TARGET_LINK);
        answer[80..86].copy_from_slice(&OWN.0);
        assert_eq!(owner(&answer, target.into()), Some(OWN), "by its option");
        for length in 0..78 {
            assert_eq!(owner(&answer[..length], target.into()), None, "{length}");
        }
    }

    #[test]
    fn it_is_asked_with_the_address_of_the_same_subnet() {
        let own = ["192.0.2.2/24", "10.88.0.2/24", "fe80::2/64", "2001:db8::2/64", "fd00:88::2/64"];
        let own: Vec<IpNet> = own.iter().map(|net| net.parse().unwrap()).collect();
        let near: Ipv4Addr = "10.88.0.1".parse().unwrap();
        assert_eq!(source_v4(&own, near), "10.88.0.2".parse::<Ipv4Addr>().unwrap());
        let far: Ipv4Addr = "198.51.100.1".parse().unwrap();
        assert_eq!(source_v4(&own, far), "192.0.2.2".parse::<Ipv4Addr>().unwrap());
        assert_eq!(source_v4(&own[2..], far), Ipv4Addr::UNSPECIFIED);
        assert_eq!(source_v4(&own, Ipv4Addr::new(10, 88, 0, 2)), Ipv4Addr::UNSPECIFIED);
        let near: Ipv6Addr = "fd00:88::1".parse().unwrap();
        assert_eq!(source_v6(&own, near), Some("fd00:88::2".parse().unwrap()));
        assert_eq!(source_v6(&own[..4], near), Some("2001:db8::2".parse().unwrap()));
        assert_eq!(source_v6(&own[..3], near), Some("fe80::2".parse().unwrap()));
        assert_eq!(source_v6(&own[..2], near), None);
        let of_link: Ipv6Addr = "fe80::1".parse().unwrap();
        assert_eq!(source_v6(&own, of_link), Some("fe80::2".parse().unwrap()));
        assert_eq!(source_v6(&own[3..], of_link), Some("2001:db8::2".parse().unwrap()));
    }
}
