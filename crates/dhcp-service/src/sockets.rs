//! The sockets of one lease, open only while something is awaited: an open socket keeps a namespace
//! alive.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};

use dhcp::frame::{ArpPacket, Checksums, UdpFrame, UdpPacket};
use dhcp::v4::{self, Delivery, MessageKind, Transmit};
use dhcp::{MacAddr, v6};
use kernel::netns::{Netns, NetnsError, within};
use kernel::packet::{Filter, MAX_FRAME, PacketError, PacketSocket};
use thiserror::Error;

/// How many frames one turn takes from a socket, so that one container cannot keep the loop busy.
const FRAMES_A_TURN: usize = 32;

/// A message could not be sent.
#[derive(Debug, Error)]
pub(crate) enum SendError {
    #[error(transparent)]
    Packet(#[from] PacketError),
    #[error("put a message into a frame")]
    Frame(#[from] dhcp::frame::FrameError),
    #[error("send a datagram to {to}")]
    Datagram {
        to: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error("wait for a socket")]
    Watch(#[source] rustix::io::Errno),
}

/// The sockets of a DHCPv4 client.
#[derive(Debug)]
pub(crate) struct V4Sockets {
    pub(crate) udp: PacketSocket,
    pub(crate) arp: PacketSocket,
    /// For renewals, through the namespace's own stack. Replies are read from `udp`; this socket
    /// stays bound so that the kernel does not tell the server that the port is closed.
    unicast: Option<UdpSocket>,
}

impl V4Sockets {
    pub(crate) fn open(netns: &Netns, ifindex: u32) -> Result<Self, PacketError> {
        let open = || {
            let udp = PacketSocket::open(ifindex, &Filter::udp4_to_port(v4::CLIENT_PORT))?;
            let arp = PacketSocket::open(ifindex, &Filter::arp())?;
            Ok(V4Sockets { udp, arp, unicast: None })
        };
        within(netns, open).map_err(PacketError::Enter)?
    }

    /// Sends a message as its `Delivery` requires.
    pub(crate) fn send(
        &mut self,
        netns: &Netns,
        mac: MacAddr,
        message: &Transmit,
    ) -> Result<(), SendError> {
        let renewal =
            matches!(message.how, Delivery::Unicast { .. }) && message.kind == MessageKind::Request;
        // The address may have been removed, or another program may have the port: then a frame
        // serves as well.
        if renewal && self.send_datagram(netns, message).is_ok() {
            return Ok(());
        }
        Ok(self.udp.send(&frame_of(message, mac)?)?)
    }

    fn send_datagram(&mut self, netns: &Netns, message: &Transmit) -> Result<(), SendError> {
        let to = SocketAddr::from((message.to, v4::SERVER_PORT));
        let failed = |source| SendError::Datagram { to, source };
        let from = SocketAddr::from((message.from, v4::CLIENT_PORT));
        let bound = |socket: &UdpSocket| socket.local_addr().is_ok_and(|bound| bound == from);
        let socket = match self.unicast.take().filter(bound) {
            Some(socket) => socket,
            None => {
                let socket = within(netns, || UdpSocket::bind(from))?.map_err(failed)?;
                socket.set_nonblocking(true).map_err(failed)?;
                socket
            }
        };
        let socket = self.unicast.insert(socket);
        socket.send_to(&message.payload, to).map(drop).map_err(failed)
    }

    pub(crate) fn send_arp(&self, packet: &ArpPacket) -> Result<(), SendError> {
        Ok(self.arp.send(&packet.to_frame())?)
    }

    /// Takes what came for the client: payloads with the hardware address that sent them.
    pub(crate) fn receive(
        &self,
        mut take: impl FnMut(&[u8], Option<MacAddr>),
    ) -> Result<(), PacketError> {
        let mut buffer = [0; MAX_FRAME];
        for _ in 0..FRAMES_A_TURN {
            let Some(frame) = self.udp.receive(&mut buffer)? else { break };
            let checksums =
                if frame.checksum_missing { Checksums::Trust } else { Checksums::Verify };
            match UdpPacket::parse_frame(frame.octets, checksums) {
                Ok(packet) => take(packet.payload, packet.source_mac),
                Err(error) => tracing::trace!(%error, "passed over a frame"),
            }
        }
        Ok(())
    }

    /// Takes the ARP packets that came.
    pub(crate) fn receive_arp(&self, mut take: impl FnMut(&ArpPacket)) -> Result<(), PacketError> {
        let mut buffer = [0; MAX_FRAME];
        for _ in 0..FRAMES_A_TURN {
            let Some(frame) = self.arp.receive(&mut buffer)? else { break };
            if let Ok(packet) = ArpPacket::parse_frame(frame.octets) {
                take(&packet);
            }
        }
        Ok(())
    }
}

/// Returns the frame of a message: to all hosts, or to the server's last known address.
pub(crate) fn frame_of(
    message: &Transmit,
    mac: MacAddr,
) -> Result<Vec<u8>, dhcp::frame::FrameError> {
    let target_mac = match message.how {
        Delivery::Broadcast => MacAddr::BROADCAST,
        Delivery::Unicast { hint } => hint.unwrap_or(MacAddr::BROADCAST),
    };
    UdpFrame {
        source_mac: mac,
        target_mac,
        source: SocketAddrV4::new(message.from, v4::CLIENT_PORT),
        target: SocketAddrV4::new(message.to, v4::SERVER_PORT),
        payload: &message.payload,
    }
    .to_frame()
}

/// The socket of a DHCPv6 client.
#[derive(Debug)]
pub(crate) struct V6Socket {
    pub(crate) udp: UdpSocket,
    ifindex: u32,
}

impl V6Socket {
    /// Opens it on a link-local address that is ready for use.
    pub(crate) fn open(netns: &Netns, ifindex: u32, address: Ipv6Addr) -> Result<Self, SendError> {
        let from = SocketAddrV6::new(address, v6::CLIENT_PORT, 0, ifindex);
        let failed = |source| SendError::Datagram { to: from.into(), source };
        let udp = within(netns, || UdpSocket::bind(from))?.map_err(failed)?;
        udp.set_nonblocking(true).map_err(failed)?;
        Ok(V6Socket { udp, ifindex })
    }

    pub(crate) fn send(&self, message: &v6::Transmit) -> Result<(), SendError> {
        let to = SocketAddrV6::new(message.to, v6::SERVER_PORT, 0, self.ifindex);
        let sent = self.udp.send_to(&message.payload, to);
        sent.map(drop).map_err(|source| SendError::Datagram { to: to.into(), source })
    }

    /// Takes what came for the client.
    pub(crate) fn receive(&self, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        let mut buffer = [0; MAX_FRAME];
        for _ in 0..FRAMES_A_TURN {
            match self.udp.recv_from(&mut buffer) {
                Ok((length, _)) => take(buffer.get(..length).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
