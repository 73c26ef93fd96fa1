//! What a client wants done.

use std::fmt;
use std::net::Ipv4Addr;

use super::Lease;
use crate::MacAddr;

/// Something the client wants done, in the order of
/// [`Client::poll_action`](super::Client::poll_action).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Send this.
    Send(Transmit),
    /// Send one ARP probe for this address
    /// ([`frame::ArpPacket::probe`](crate::frame::ArpPacket::probe)), and pass received ARP packets
    /// to [`Client::on_arp`](super::Client::on_arp). The client times its probes itself.
    Probe {
        /// The address that must not be in use yet.
        address: Ipv4Addr,
    },
    /// Send one ARP announcement of this address, which is configured.
    Announce {
        /// The address in use.
        address: Ipv4Addr,
    },
    /// Configure this lease, and save it. This is also returned after every renewal, mostly with
    /// only new times in it.
    Configure {
        /// The lease from now on.
        lease: Box<Lease>,
        /// The lease it replaces, if that is configured: a renewal may change everything but the
        /// address.
        previous: Option<Box<Lease>>,
    },
    /// Stop using this lease at once, and forget it. The client continues to look for another.
    Deconfigure {
        /// The lease that no longer holds.
        lease: Box<Lease>,
        /// Why.
        reason: LostReason,
    },
    /// The client got no lease in time. The client has ended.
    Failed(FailReason),
}

/// A message to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// The UDP payload.
    pub payload: Vec<u8>,
    /// The source address, port 68: 0.0.0.0 while there is none.
    pub from: Ipv4Addr,
    /// The destination address, port 67.
    pub to: Ipv4Addr,
    /// How to send it.
    pub how: Delivery,
    /// What it is, for logs.
    pub kind: MessageKind,
}

/// How to send a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// As a broadcast frame, from a raw socket: there may be no address or no route yet.
    Broadcast,
    /// To one host, through the namespace's own IP stack. If it no longer has one (the
    /// container's link is gone when a lease is released late), a frame to `hint` may do: the
    /// server's last message came from there.
    Unicast {
        /// The hardware address from which the server was last heard.
        hint: Option<MacAddr>,
    },
}

/// The messages clients send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// DHCPDISCOVER.
    Discover,
    /// DHCPREQUEST, in any of its uses.
    Request,
    /// DHCPDECLINE.
    Decline,
    /// DHCPRELEASE.
    Release,
}

/// Why a lease no longer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostReason {
    /// It has expired, and no server renewed it.
    Expired,
    /// A server said so (DHCPNAK).
    Refused,
    /// Another host uses the address.
    Conflict {
        /// The other host.
        holder: MacAddr,
    },
    /// A server assigned another address instead, which is now being checked.
    Replaced,
    /// The caller released it.
    Released,
}

/// Why the client got no lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FailReason {
    /// No server answered DISCOVER.
    #[error("no more tries: no DHCP server offered an address")]
    NoOffer,
    /// A server offered an address and then neither granted nor refused it.
    #[error(
        "no more tries: DHCP server {server} offered an address and did not answer the request for it"
    )]
    NoAck {
        /// The server that made the last offer.
        server: Ipv4Addr,
    },
    /// A server offered an address and then refused it.
    #[error("no more tries: DHCP server {server} refused the address it had offered")]
    Refused {
        /// The server.
        server: Ipv4Addr,
    },
    /// Every offered address was in use.
    #[error("no more tries: {address}, which DHCP server {server} gave, is in use by {holder}")]
    Conflict {
        /// The last address tried.
        address: Ipv4Addr,
        /// The server that assigned it.
        server: Ipv4Addr,
        /// The host that uses it.
        holder: MacAddr,
    },
    /// The server's reply has no subnet mask, without which nothing can be configured.
    #[error("DHCP option Subnet Mask not found in DHCPACK of server {server}")]
    NoSubnetMask {
        /// The server.
        server: Ipv4Addr,
    },
}

impl fmt::Display for MessageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MessageKind::Discover => "DHCPDISCOVER",
            MessageKind::Request => "DHCPREQUEST",
            MessageKind::Decline => "DHCPDECLINE",
            MessageKind::Release => "DHCPRELEASE",
        })
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LostReason::Expired => f.write_str("expired"),
            LostReason::Refused => f.write_str("refused by the server"),
            LostReason::Conflict { holder } => write!(f, "in use by {holder}"),
            LostReason::Replaced => f.write_str("replaced by the server"),
            LostReason::Released => f.write_str("released"),
        }
    }
}
