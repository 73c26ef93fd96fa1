//! Sees the packets of certain flows, and no others, at all links of a network namespace.
//!
//! A [`Tap`] is a packet socket (`man 7 packet`) with a program that the kernel runs on each
//! packet: the kernel copies only those of the given flows to it, with the link and the direction.
//! It marks and changes nothing, does not see other traffic, and needs neither tracing nor the
//! packet filter. It sees a packet that a link sends once the packet has left the link's queue, and
//! one that a link receives before any filter of that link.
//!
//! ```no_run
//! use kernel::nft::trace::{Flow, Protocol};
//! use kernel::tap::Tap;
//!
//! let flow = Flow {
//!     protocol: Protocol::Tcp,
//!     source: "10.88.0.2".parse()?,
//!     source_port: 40_000,
//!     destination: "192.0.2.1".parse()?,
//!     destination_port: 80,
//! };
//! let tap = Tap::open(&[flow])?;
//! // … packets …
//! for seen in tap.seen()? {
//!     println!("link {} {}", seen.ifindex, if seen.outgoing { "sent" } else { "received" });
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::io::Errno;
use rustix::net::addr::SocketAddrLen;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrAny, SocketFlags, SocketType};

use crate::bpf::{self, Instruction, jump, step};
use crate::nflog::Packet;
use crate::nft::trace::{self, Flow, Protocol};
use crate::packet::LinkAddress;

/// `linux include/uapi/linux/if_ether.h` ETH_P_ALL: the socket also gets what links send.
const ETH_P_ALL: u16 = 0x0003;
/// `linux include/uapi/linux/if_packet.h` PACKET_OTHERHOST and PACKET_OUTGOING.
const FOR_ANOTHER: u8 = 3;
const OUTGOING: u8 = 4;

/// How much of a packet is copied: the headers of IPv6 and TCP, with room for others between them.
const HEADERS: u32 = 128;
const BUFFER: usize = 128;
/// The most packets that one call returns.
const MOST: usize = 20_000;
/// The most ports, or identifiers, that a program compares: a jump leads over at most 255
/// instructions.
const MOST_PORTS: usize = 200;

/// The fields of `struct sockaddr_ll` that are read: its first 12 bytes have no gaps.
const ADDRESS: usize = 12;
const IFINDEX: std::ops::Range<usize> = 4..8;
const PACKET_TYPE: usize = 10;

/// RFC 791 §3.1, RFC 8200 §3.
const IPV6_HEADER: usize = 40;

/// A packet of one of the flows at a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeenPacket {
    /// The index of the link.
    pub ifindex: u32,
    /// The link has sent it; otherwise it has received it.
    pub outgoing: bool,
    /// The link has received it, and it is for another hardware address: unless the link is a port
    /// of a bridge, the kernel drops it, and mostly it is a copy.
    pub for_another: bool,
    /// The packet.
    pub packet: Packet,
    /// The identifier of an echo request or reply.
    pub identifier: Option<u16>,
}

/// Sees packets of flows in one namespace.
///
/// # Privileges
/// CAP_NET_RAW in the user namespace that owns the network namespace.
#[derive(Debug)]
pub struct Tap {
    socket: OwnedFd,
}

impl Tap {
    /// Begins to see packets of these flows, and of their answers, at all links of the calling
    /// thread's namespace. Of more than 200 flows the first ones count.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(flows: &[Flow]) -> io::Result<Self> {
        // It has no protocol until it is bound, so that nothing is queued before the program is
        // there.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None)?;
        bpf::attach(socket.as_fd(), &program(flows))?;
        let address = LinkAddress::everywhere(ETH_P_ALL).ok_or(Errno::INVAL)?;
        rustix::net::bind(&socket, &address)?;
        Ok(Tap { socket })
    }

    /// Returns the packets since the last call, in their order, without waiting. They include
    /// packets of other flows with the same port. What does not fit the socket's queue is lost.
    ///
    /// # Errors
    /// The kernel's.
    pub fn seen(&self) -> io::Result<Vec<SeenPacket>> {
        let mut all = Vec::new();
        let mut buffer = [0_u8; BUFFER];
        while all.len() < MOST {
            match rustix::net::recvfrom(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((length, _, from)) => {
                    let octets = buffer.get(..length).unwrap_or_default();
                    all.extend(from.and_then(|from| read(octets, &from)));
                }
                Err(Errno::AGAIN) => break,
                // A link goes down.
                Err(Errno::INTR | Errno::NETDOWN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(all)
    }
}

fn read(octets: &[u8], from: &SocketAddrAny) -> Option<SeenPacket> {
    let address = address(from)?;
    let packet = Packet::read(octets)?;
    let length = match octets.first()? >> 4 {
        4 => usize::from(octets.first()? & 0x0f) * 4,
        _ => IPV6_HEADER,
    };
    let identifier = trace::identifier(&packet, octets.get(length..).unwrap_or_default());
    let ifindex = i32::from_ne_bytes(address.get(IFINDEX)?.try_into().ok()?);
    let packet_type = *address.get(PACKET_TYPE)?;
    Some(SeenPacket {
        ifindex: u32::try_from(ifindex).ok()?,
        outgoing: packet_type == OUTGOING,
        for_another: packet_type == FOR_ANOTHER,
        packet,
        identifier,
    })
}

/// Returns the first bytes of an address of a packet socket.
fn address(from: &SocketAddrAny) -> Option<[u8; ADDRESS]> {
    let least = SocketAddrLen::try_from(ADDRESS).ok()?;
    if from.address_family() != AddressFamily::PACKET || from.addr_len() < least {
        return None;
    }
    // SAFETY: the pointer is to `addr_len` bytes that the kernel has written, which are at least as
    // many as are read, as was just compared. Bytes need no alignment, and any value is valid.
    let bytes = unsafe { from.as_ptr().cast::<[u8; ADDRESS]>().read() };
    Some(bytes)
}

/// Returns the program that lets packets of flows pass: those of TCP and UDP that have one of the
/// flows' ports at either end, and those of ICMP that have one of the flows' identifiers. The data
/// begins with IP's header.
fn program(flows: &[Flow]) -> Vec<Instruction> {
    let of = |is_echo: bool| -> Vec<u32> {
        let flows = flows.iter().filter(|flow| (flow.protocol == Protocol::Echo) == is_echo);
        let mut numbers: BTreeSet<u16> = BTreeSet::new();
        numbers.extend(flows.map(|flow| flow.source_port));
        numbers.into_iter().take(MOST_PORTS).map(u32::from).collect()
    };
    let mut ports = [0, 2].map(|offset| compare(offset, &of(false))).concat();
    ports.push(step(bpf::RETURN, 0));
    let mut echoes = compare(4, &of(true));
    echoes.push(step(bpf::RETURN, 0));
    let over_ports = u32::try_from(ports.len()).unwrap_or(u32::MAX);
    let mut program = vec![
        // The version.
        step(bpf::LOAD_BYTE, 0),
        step(bpf::AND, 0xf0),
        jump(bpf::JUMP_IF_EQUAL, 0x40, 0, 4),
        // IPv4: the protocol, and the header's length.
        step(bpf::LOAD_BYTE, 9),
        step(bpf::STORE_SCRATCH, 0),
        step(bpf::X_IS_IP_HEADER_LENGTH, 0),
        step(bpf::JUMP, 5),
        jump(bpf::JUMP_IF_EQUAL, 0x60, 1, 0),
        step(bpf::RETURN, 0),
        // IPv6, without extension headers.
        step(bpf::LOAD_BYTE, 6),
        step(bpf::STORE_SCRATCH, 0),
        step(bpf::X_IS, 40),
        // Both.
        step(bpf::LOAD_SCRATCH, 0),
        jump(bpf::JUMP_IF_EQUAL, 6, 5, 0),
        jump(bpf::JUMP_IF_EQUAL, 17, 4, 0),
        jump(bpf::JUMP_IF_EQUAL, 1, 2, 0),
        jump(bpf::JUMP_IF_EQUAL, 58, 1, 0),
        step(bpf::RETURN, 0),
        step(bpf::JUMP, over_ports),
    ];
    program.extend(ports);
    program.extend(echoes);
    program
}

/// Compares two bytes of the header above IP with numbers. If they equal none, the program goes on.
fn compare(offset: u32, numbers: &[u32]) -> Vec<Instruction> {
    let Some((last, others)) = numbers.split_last() else { return Vec::new() };
    let mut all = vec![step(bpf::LOAD_HALF_INDEXED, offset)];
    for (place, number) in others.iter().enumerate() {
        // To the end of the list, where it passes.
        let on = u8::try_from(others.len() - place).unwrap_or(u8::MAX);
        all.push(jump(bpf::JUMP_IF_EQUAL, *number, on, 0));
    }
    all.push(jump(bpf::JUMP_IF_EQUAL, *last, 0, 1));
    all.push(step(bpf::RETURN, HEADERS));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program as the kernel does, on a packet.
    fn passes(program: &[Instruction], packet: &[u8]) -> bool {
        let byte = |at: usize| packet.get(at).copied().map(u32::from);
        let half = |at: usize| Some(byte(at)? << 8 | byte(at + 1)?);
        let (mut at, mut a, mut x, mut scratch) = (0_usize, 0_u32, 0_usize, 0_u32);
        loop {
            let (code, yes, no, operand) = program[at].parts();
            let k = usize::try_from(operand).unwrap();
            at += 1;
            match code {
                // A load beyond the packet ends the program.
                bpf::LOAD_BYTE => {
                    let Some(value) = byte(k) else { return false };
                    a = value;
                }
                bpf::LOAD_HALF_INDEXED => {
                    let Some(value) = half(x + k) else { return false };
                    a = value;
                }
                bpf::AND => a &= operand,
                bpf::STORE_SCRATCH => scratch = a,
                bpf::LOAD_SCRATCH => a = scratch,
                bpf::X_IS => x = k,
                bpf::X_IS_IP_HEADER_LENGTH => {
                    let Some(value) = packet.get(k) else { return false };
                    x = usize::from(value & 0x0f) * 4;
                }
                bpf::JUMP => at += k,
                bpf::JUMP_IF_EQUAL => at += usize::from(if a == operand { yes } else { no }),
                bpf::RETURN => return operand != 0,
                other => panic!("{other:#x}"),
            }
        }
    }

    fn flow(protocol: Protocol, port: u16) -> Flow {
        Flow {
            protocol,
            source: "10.88.0.2".parse().unwrap(),
            source_port: port,
            destination: "192.0.2.1".parse().unwrap(),
            destination_port: 80,
        }
    }

    fn v4(protocol: u8, options: u8, above: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45 + options];
        packet.extend([0; 8]);
        packet.push(protocol);
        packet.resize(20 + usize::from(options) * 4, 0);
        packet.extend(above);
        packet
    }

    fn v6(protocol: u8, above: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, protocol];
        packet.resize(40, 0);
        packet.extend(above);
        packet
    }

    /// The two ports of a header.
    fn ports(from: u16, to: u16) -> Vec<u8> {
        [from.to_be_bytes(), to.to_be_bytes(), [0; 2], [0; 2]].concat()
    }

    fn echo(identifier: u16) -> Vec<u8> {
        [[8, 0], [0; 2], identifier.to_be_bytes(), [0; 2]].concat()
    }

    #[test]
    fn only_packets_of_the_flows_pass() {
        let flows = [
            flow(Protocol::Tcp, 40_000),
            flow(Protocol::Udp, 40_001),
            flow(Protocol::Tcp, 40_002),
            flow(Protocol::Echo, 7),
        ];
        let program = program(&flows);
        for port in [40_000, 40_001, 40_002] {
            for protocol in [6, 17] {
                assert!(passes(&program, &v4(protocol, 0, &ports(port, 80))));
                assert!(passes(&program, &v4(protocol, 3, &ports(80, port))), "IP has options");
                assert!(passes(&program, &v6(protocol, &ports(80, port))));
            }
        }
        assert!(!passes(&program, &v4(6, 0, &ports(40_003, 80))));
        assert!(!passes(&program, &v4(6, 0, &ports(7, 80))), "7 is an identifier");
        assert!(!passes(&program, &v4(47, 0, &ports(40_000, 80))), "it is no port");
        assert!(passes(&program, &v4(1, 0, &echo(7))));
        assert!(passes(&program, &v6(58, &echo(7))));
        assert!(!passes(&program, &v4(1, 0, &echo(8))));
        let arp = [0, 1, 8, 0, 6, 4, 0, 1];
        assert!(!passes(&program, &arp));
        assert!(!passes(&program, &[]));
    }

    #[test]
    fn the_program_is_never_too_long() {
        let flows: Vec<Flow> = (1..=500)
            .flat_map(|port| [flow(Protocol::Tcp, port), flow(Protocol::Echo, port)])
            .collect();
        let program = program(&flows);
        assert!(program.len() < 4096, "BPF_MAXINSNS");
        assert!(passes(&program, &v4(6, 0, &ports(1, 2000))));
        assert!(passes(&program, &v4(6, 0, &ports(2000, 200))));
        assert!(!passes(&program, &v4(6, 0, &ports(2000, 201))));
        assert!(passes(&program, &v4(1, 0, &echo(200))));
    }

    #[test]
    fn without_flows_nothing_passes() {
        let program = program(&[]);
        assert!(!passes(&program, &v4(6, 0, &ports(1, 2))));
        assert!(!passes(&program, &v4(1, 0, &echo(1))));
    }
}
