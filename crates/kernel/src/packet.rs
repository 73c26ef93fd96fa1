//! Packet sockets (`man 7 packet`): whole Ethernet frames of one link, filtered by the kernel.
//!
//! For protocols that run before the link has an address (DHCP, ARP probes), or after it is gone. A
//! [`PacketSocket`] keeps the namespace it was opened in; it is non-blocking, so that one loop can
//! serve many.
//!
//! ```no_run
//! use kernel::netns::Netns;
//! use kernel::packet::{Filter, PacketSocket};
//!
//! let container = Netns::open("/run/netns/example".as_ref())?;
//! let socket = PacketSocket::open_in(&container, 2, &Filter::udp4_to_port(68))?;
//! let mut buffer = vec![0; 2048];
//! while let Some(frame) = socket.receive(&mut buffer)? {
//!     println!("{} octets", frame.octets.len());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;
use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use thiserror::Error;

use crate::bpf::{self, Instruction, jump, step};
use crate::netns::{Netns, NetnsError, within};

/// `linux include/uapi/linux/if_ether.h` ETH_P_*.
const ETH_P_IP: u16 = 0x0800;
const ETH_P_ARP: u16 = 0x0806;
const ETH_P_IPV6: u16 = 0x86dd;
/// `linux include/uapi/linux/if_packet.h`.
const PACKET_VNET_HDR: libc::c_int = 15;
/// Size of `struct virtio_net_hdr`, which PACKET_VNET_HDR puts before each frame, in both
/// directions.
const VNET_HDR: usize = 10;
/// `linux include/uapi/linux/virtio_net.h` VIRTIO_NET_HDR_F_NEEDS_CSUM: the checksum is only
/// started.
const VNET_NEEDS_CSUM: u8 = 1;
/// The largest frame that is sent or received: an Ethernet link's MTU and header, and room for
/// tags.
pub const MAX_FRAME: usize = 2048;

/// A packet socket could not be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PacketError {
    /// The namespace could not be entered.
    #[error("open a packet socket")]
    Enter(#[source] NetnsError),
    /// The socket could not be set up.
    #[error("open a packet socket on link {ifindex}: {step}")]
    Open {
        /// The link.
        ifindex: u32,
        /// The operation.
        step: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A frame could not be sent.
    #[error("send a frame of {length} octets")]
    Send {
        /// The frame's length.
        length: usize,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Frames could not be received.
    #[error("receive frames")]
    Receive(#[source] io::Error),
}

impl PacketError {
    /// Whether the link is down or gone (ENETDOWN, ENODEV, ENXIO).
    #[must_use]
    pub fn is_link_down(&self) -> bool {
        let source = match self {
            Self::Enter(_) => return false,
            Self::Open { source, .. } | Self::Send { source, .. } | Self::Receive(source) => source,
        };
        let down = [Errno::NETDOWN, Errno::NODEV, Errno::NXIO];
        down.iter().any(|errno| source.raw_os_error() == Some(errno.raw_os_error()))
    }
}

/// The frames a socket receives: an EtherType, and a program that the kernel runs on each frame
/// (`man 7 socket`, SO_ATTACH_FILTER). Frames that this host sends are not among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    ethertype: u16,
    program: Vec<Instruction>,
}

/// Offsets into a frame, from its first octet.
mod offset {
    pub(super) const IP: u32 = 14;
    pub(super) const IP_FRAGMENT: u32 = IP + 6;
    pub(super) const IP_PROTOCOL: u32 = IP + 9;
    pub(super) const IP6_NEXT_HEADER: u32 = IP + 6;
    pub(super) const IP6_UDP_DESTINATION: u32 = IP + 40 + 2;
    pub(super) const IP6_ICMP_TYPE: u32 = IP + 40;
    pub(super) const UDP_DESTINATION: u32 = 2;
}

const UDP: u32 = 17;
const ICMPV6: u32 = 58;
/// RFC 4861 §4.4.
const ADVERTISEMENT: u32 = 136;
/// More fragments follow, or this is not the first.
const IP_IS_FRAGMENT: u32 = 0x3fff;

impl Filter {
    /// IPv4 UDP datagrams to a port, whole ones.
    #[must_use]
    pub fn udp4_to_port(port: u16) -> Self {
        let program = vec![
            step(bpf::LOAD_BYTE, offset::IP_PROTOCOL),
            jump(bpf::JUMP_IF_EQUAL, UDP, 0, 6),
            step(bpf::LOAD_HALF, offset::IP_FRAGMENT),
            jump(bpf::JUMP_IF_ANY_BIT, IP_IS_FRAGMENT, 4, 0),
            step(bpf::X_IS_IP_HEADER_LENGTH, offset::IP),
            step(bpf::LOAD_HALF_INDEXED, offset::IP + offset::UDP_DESTINATION),
            jump(bpf::JUMP_IF_EQUAL, port.into(), 0, 1),
            step(bpf::RETURN, u32::MAX),
            step(bpf::RETURN, 0),
        ];
        Filter { ethertype: ETH_P_IP, program }
    }

    /// IPv6 UDP datagrams to a port, without extension headers.
    #[must_use]
    pub fn udp6_to_port(port: u16) -> Self {
        let program = vec![
            step(bpf::LOAD_BYTE, offset::IP6_NEXT_HEADER),
            jump(bpf::JUMP_IF_EQUAL, UDP, 0, 3),
            step(bpf::LOAD_HALF, offset::IP6_UDP_DESTINATION),
            jump(bpf::JUMP_IF_EQUAL, port.into(), 0, 1),
            step(bpf::RETURN, u32::MAX),
            step(bpf::RETURN, 0),
        ];
        Filter { ethertype: ETH_P_IPV6, program }
    }

    /// Neighbour advertisements of IPv6, without extension headers.
    #[must_use]
    pub fn advertisements() -> Self {
        let program = vec![
            step(bpf::LOAD_BYTE, offset::IP6_NEXT_HEADER),
            jump(bpf::JUMP_IF_EQUAL, ICMPV6, 0, 3),
            step(bpf::LOAD_BYTE, offset::IP6_ICMP_TYPE),
            jump(bpf::JUMP_IF_EQUAL, ADVERTISEMENT, 0, 1),
            step(bpf::RETURN, u32::MAX),
            step(bpf::RETURN, 0),
        ];
        Filter { ethertype: ETH_P_IPV6, program }
    }

    /// ARP.
    #[must_use]
    pub fn arp() -> Self {
        Filter { ethertype: ETH_P_ARP, program: vec![step(bpf::RETURN, u32::MAX)] }
    }

    /// Nothing: for a socket that only sends.
    #[must_use]
    pub fn nothing() -> Self {
        Filter { ethertype: 0, program: vec![step(bpf::RETURN, 0)] }
    }
}

/// A frame that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The Ethernet header and what follows; cut at the size of the buffer.
    pub octets: &'a [u8],
    /// Whether the sender on this host left the UDP or TCP checksum to hardware that does not exist
    /// (veth): then the field does not contain a checksum and must not be compared.
    pub checksum_missing: bool,
}

/// A non-blocking packet socket of one link.
///
/// # Privileges
/// CAP_NET_RAW in the user namespace that owns the network namespace; [`open_in`](Self::open_in)
/// also what [`within`] needs.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Opens a socket on a link of the calling thread's namespace. The link must exist; it may be
    /// down.
    ///
    /// # Errors
    /// [`PacketError::Open`].
    pub fn open(ifindex: u32, filter: &Filter) -> Result<Self, PacketError> {
        let failed =
            |step| move |errno: Errno| PacketError::Open { ifindex, step, source: errno.into() };
        // It has no protocol until it is bound, so that no frame of another link is queued
        // meanwhile.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .map_err(failed("socket"))?;
        bpf::attach(fd.as_fd(), &filter.program).map_err(failed("SO_ATTACH_FILTER"))?;
        let on: libc::c_int = 1;
        bpf::set_option(fd.as_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, &on)
            .map_err(failed("PACKET_VNET_HDR"))?;
        let address = LinkAddress::new(filter.ethertype, ifindex)
            .ok_or(Errno::NODEV)
            .map_err(failed("bind"))?;
        rustix::net::bind(&fd, &address).map_err(failed("bind"))?;
        Ok(Self { fd })
    }

    /// Opens a socket on a link of another namespace, without leaving the thread there.
    ///
    /// # Errors
    /// [`PacketError::Enter`], [`PacketError::Open`].
    pub fn open_in(netns: &Netns, ifindex: u32, filter: &Filter) -> Result<Self, PacketError> {
        within(netns, || Self::open(ifindex, filter)).map_err(PacketError::Enter)?
    }

    /// Sends a frame as it is, Ethernet header first.
    ///
    /// # Errors
    /// [`PacketError::Send`], also for a full queue (EAGAIN, ENOBUFS).
    pub fn send(&self, frame: &[u8]) -> Result<(), PacketError> {
        let length = frame.len();
        let failed = |source| PacketError::Send { length, source };
        if MAX_FRAME < length {
            return Err(failed(Errno::MSGSIZE.into()));
        }
        let mut buffer = [0; VNET_HDR + MAX_FRAME];
        let whole = &mut buffer[..VNET_HDR + length];
        whole[VNET_HDR..].copy_from_slice(frame);
        rustix::net::send(&self.fd, whole, SendFlags::NOSIGNAL)
            .map(drop)
            .map_err(|errno| failed(errno.into()))
    }

    /// Takes the next frame out of the queue; `None` when the queue is empty.
    ///
    /// The buffer should have [`MAX_FRAME`] octets.
    ///
    /// # Errors
    /// [`PacketError::Receive`]: once, with ENETDOWN, when the link goes down.
    pub fn receive<'b>(&self, buffer: &'b mut [u8]) -> Result<Option<Frame<'b>>, PacketError> {
        let length = loop {
            match rustix::net::recv(&self.fd, &mut *buffer, RecvFlags::empty()) {
                Ok((length, _)) => break length,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(PacketError::Receive(errno.into())),
            }
        };
        let received = buffer.get(..length).unwrap_or_default();
        let octets = received.get(VNET_HDR..).unwrap_or_default();
        let flags = received.first().copied().unwrap_or_default();
        Ok(Some(Frame { octets, checksum_missing: flags & VNET_NEEDS_CSUM != 0 }))
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// `struct sockaddr_ll` with the fields that `bind` reads.
pub(crate) struct LinkAddress(libc::sockaddr_ll);

impl LinkAddress {
    fn new(ethertype: u16, ifindex: u32) -> Option<Self> {
        Self::at(ethertype, i32::try_from(ifindex).ok().filter(|&index| 0 < index)?)
    }

    /// Of all links.
    pub(crate) fn everywhere(ethertype: u16) -> Option<Self> {
        Self::at(ethertype, 0)
    }

    fn at(ethertype: u16, ifindex: i32) -> Option<Self> {
        Some(LinkAddress(libc::sockaddr_ll {
            sll_family: u16::try_from(libc::AF_PACKET).ok()?,
            sll_protocol: ethertype.to_be(),
            sll_ifindex: ifindex,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        }))
    }
}

// SAFETY: `with_sockaddr` must pass a pointer to a socket address and its length, valid during the
// call: it points to the structure in `self`, whole and initialised, with that structure's size.
unsafe impl SocketAddrArg for LinkAddress {
    unsafe fn with_sockaddr<R>(
        &self,
        f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R,
    ) -> R {
        let length = SocketAddrLen::try_from(size_of::<libc::sockaddr_ll>())
            .expect("a socket address is short");
        f(ptr::from_ref(&self.0).cast(), length)
    }
}
