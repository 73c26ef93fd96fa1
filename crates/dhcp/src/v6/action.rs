//! What a client wants done.

use std::fmt;
use std::net::Ipv6Addr;

use super::Lease;

/// Something the client wants done, in the order of
/// [`Client::poll_action`](super::Client::poll_action).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Send this.
    Send(Transmit),
    /// Configure this lease's addresses with their lifetimes, remove those only in `previous`, and
    /// save it. The kernel checks the addresses (duplicate address detection); call
    /// [`Client::on_conflict`](super::Client::on_conflict) if one fails.
    Configure {
        /// The lease from now on.
        lease: Box<Lease>,
        /// The lease it replaces, if that is configured.
        previous: Option<Box<Lease>>,
    },
    /// Stop using this lease's addresses at once, and forget it. The client continues to look for
    /// others.
    Deconfigure {
        /// The lease that no longer holds.
        lease: Box<Lease>,
        /// Why.
        reason: LostReason,
    },
    /// The client got no lease in time. The client has ended.
    Failed(FailReason),
}

/// A message to send: from port 546 of a link-local address to port 547.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// The UDP payload.
    pub payload: Vec<u8>,
    /// The destination: [`SERVERS`](super::SERVERS), on the client's link.
    pub to: Ipv6Addr,
    /// What it is, for logs.
    pub kind: MessageKind,
}

/// The messages clients send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageKind {
    /// SOLICIT.
    Solicit,
    /// REQUEST.
    Request,
    /// CONFIRM.
    Confirm,
    /// RENEW.
    Renew,
    /// REBIND.
    Rebind,
    /// RELEASE.
    Release,
    /// DECLINE.
    Decline,
}

/// Why a lease no longer holds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostReason {
    /// Every address's valid lifetime is over and no server renewed it.
    Expired,
    /// A server says that the addresses are wrong for this link (NotOnLink), or withdrew them.
    Refused,
    /// Another host uses one of the addresses.
    Conflict {
        /// The address.
        address: Ipv6Addr,
    },
    /// The caller released it.
    Released,
}

/// Why the client got no lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FailReason {
    /// No server answered SOLICIT.
    #[error("no more tries: no DHCPv6 server answered")]
    NoServer,
    /// A server advertised and then did not reply.
    #[error(
        "no more tries: a DHCPv6 server offered addresses and did not answer the request for them"
    )]
    NoReply,
    /// Servers answered without an address.
    #[error("no more tries: DHCPv6 server answered with status {status}{}", quoted(message))]
    Status {
        /// The last status code; 2 is NoAddrsAvail (RFC 8415 §21.13).
        status: u16,
        /// The server's message, if any, made printable.
        message: String,
    },
}

fn quoted(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(" ({message})") }
}

impl fmt::Display for MessageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MessageKind::Solicit => "SOLICIT",
            MessageKind::Request => "REQUEST",
            MessageKind::Confirm => "CONFIRM",
            MessageKind::Renew => "RENEW",
            MessageKind::Rebind => "REBIND",
            MessageKind::Release => "RELEASE",
            MessageKind::Decline => "DECLINE",
        })
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LostReason::Expired => f.write_str("expired"),
            LostReason::Refused => f.write_str("refused by the server"),
            LostReason::Conflict { address } => write!(f, "{address} is in use by another host"),
            LostReason::Released => f.write_str("released"),
        }
    }
}
