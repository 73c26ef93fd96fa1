//! Probes: what a rule wants to have sent, and what came of it.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::finding::WayKind;
use crate::model::{Container, Transport};
use crate::path::RARE_PORT;

/// A packet to send from a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// The ID of the container that sends; `None`: the node.
    pub from: Option<String>,
    /// What is sent.
    pub asked: Probe,
}

/// What is sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Probe {
    /// An echo request to an address.
    Echo {
        /// The address.
        to: IpAddr,
    },
    /// An echo request to an address by a link, whatever other links the routes prefer.
    EchoBy {
        /// The address.
        to: IpAddr,
        /// The name of the link.
        link: String,
    },
    /// A TCP connection, which is reset at once; no byte is sent.
    Connect {
        /// Where to.
        to: SocketAddr,
    },
    /// A TCP connection to a port at which hardly any program listens, of a container of this node:
    /// what is there refuses it ([`Probe::RARE_PORT`]).
    RarePort {
        /// The address.
        to: IpAddr,
    },
    /// Echo requests that may not be fragmented, of several sizes up to the link's MTU.
    Size {
        /// The address.
        to: IpAddr,
        /// The size that the links along the way promise, in bytes of IP.
        up_to: u32,
    },
    /// An echo request to an address of IPv4, for how many hops the answer might still take.
    HopsLeft {
        /// The address.
        to: std::net::Ipv4Addr,
    },
    /// A question to a server of names, by UDP.
    Name {
        /// The server.
        server: IpAddr,
    },
    /// A TCP connection to a server of names, which is reset at once: programs that ask by TCP alone
    /// begin so (`use-vc`).
    NameByTcp {
        /// The server.
        server: IpAddr,
    },
    /// A question to a server of names, by UDP, for a name below a domain that nobody gave to a host.
    NameBelow {
        /// The server.
        server: IpAddr,
        /// The domain.
        domain: String,
    },
    /// A question to all on a link who has an address (ARP, neighbour solicitation).
    WhoHas {
        /// The address.
        address: IpAddr,
        /// The name of the link.
        link: String,
    },
}

/// What came of a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Answer {
    /// It was answered.
    Reached {
        /// After how many microseconds.
        after_us: u64,
    },
    /// The other end refused: it is there, and nothing listens.
    Refused,
    /// A machine on the way refused it.
    Unreachable {
        /// The kernel's error.
        error: String,
        /// Where it ended, as far as could be followed.
        hops: Vec<Hop>,
    },
    /// No answer came.
    Silent {
        /// Where it ended, as far as could be followed.
        hops: Vec<Hop>,
    },
    /// Packets up to a size are answered, and larger ones are lost without a word.
    UpTo {
        /// The largest size that was answered, in bytes of IP.
        answered: u32,
        /// The smallest that was not.
        lost: u32,
    },
    /// These hardware addresses answered for an address.
    Owners {
        /// The hardware addresses.
        macs: Vec<String>,
    },
    /// A server of names answered.
    Named {
        /// After how many microseconds.
        after_us: u64,
        /// It knows the name, or says that there is none; otherwise its error.
        error: Option<String>,
    },
    /// A server of names answers questions for addresses of one kind of record, and of another kind
    /// none.
    OneKind {
        /// After how many microseconds it answered the one.
        after_us: u64,
        /// The kind of record that it answered: `A`.
        answered: String,
        /// That which it did not answer: `AAAA`.
        lost: String,
    },
    /// The sender has no free local port to send it from.
    NoPort {
        /// The first port of its range.
        first: u16,
        /// The last one.
        last: u16,
        /// How many of its sockets are connected to the same end.
        used: u32,
    },
    /// A server of names has these addresses for a name.
    Addresses {
        /// The addresses; none if it has none, or there is no such name.
        all: Vec<IpAddr>,
    },
    /// The packet of an answer might still take so many hops.
    HopsLeft {
        /// How many; a router takes one and sends on what has more.
        left: u8,
    },
    /// It could not be sent.
    NotAsked {
        /// Why.
        reason: String,
    },
}

/// The port of servers of names (RFC 1035 §4.2).
pub(crate) const NAMES: u16 = 53;

impl Probe {
    /// The port of [`Probe::RarePort`] (IANA: `tcpmux`).
    pub const RARE_PORT: u16 = RARE_PORT;

    /// Returns how the programs of a container ask a server of names: by UDP, or by TCP alone if its
    /// resolv.conf says so.
    #[must_use]
    pub fn name(container: &Container, server: IpAddr) -> Self {
        match container.names.by_tcp {
            true => Self::NameByTcp { server },
            false => Self::Name { server },
        }
    }

    /// Returns the address to which routes lead it; `None` if a link is chosen for it, or if it shows
    /// nothing of the way that another does not show.
    pub(crate) fn destination(&self) -> Option<IpAddr> {
        match self {
            Self::Echo { to } | Self::Size { to, .. } => Some(*to),
            Self::Connect { .. } | Self::Name { .. } | Self::NameByTcp { .. } => {
                self.program().map(|(at, _)| at.ip())
            }
            Self::EchoBy { .. }
            | Self::HopsLeft { .. }
            | Self::NameBelow { .. }
            | Self::RarePort { .. }
            | Self::WhoHas { .. } => None,
        }
    }

    /// Returns the address that it is for.
    pub(crate) fn address(&self) -> IpAddr {
        match self {
            Self::Echo { to }
            | Self::EchoBy { to, .. }
            | Self::RarePort { to }
            | Self::Size { to, .. } => *to,
            Self::Connect { to } => to.ip(),
            Self::HopsLeft { to } => IpAddr::V4(*to),
            Self::Name { server } | Self::NameByTcp { server } | Self::NameBelow { server, .. } => {
                *server
            }
            Self::WhoHas { address, .. } => *address,
        }
    }

    /// Returns whom it asks, as people write it: with the port, if it has one of its own.
    pub(crate) fn whom(&self) -> String {
        match self {
            Self::Connect { to } => to.to_string(),
            _ => self.address().to_string(),
        }
    }

    /// Returns the place of the program that it asks, and by what; `None` if the kernel of the other
    /// machine answers it.
    pub(crate) fn program(&self) -> Option<(SocketAddr, Transport)> {
        match self {
            Self::Connect { to } => Some((*to, Transport::Tcp)),
            Self::Name { server } => Some((SocketAddr::new(*server, NAMES), Transport::Udp)),
            Self::NameByTcp { server } => Some((SocketAddr::new(*server, NAMES), Transport::Tcp)),
            _ => None,
        }
    }

    /// Returns the way that is broken if it is lost.
    pub(crate) fn way(&self) -> WayKind {
        match self {
            Self::Name { .. } | Self::NameByTcp { .. } | Self::NameBelow { .. } => WayKind::Names,
            Self::RarePort { to } if to.is_loopback() => WayKind::Inside,
            Self::RarePort { .. } => WayKind::Between,
            _ => WayKind::Outside,
        }
    }
}

impl Answer {
    /// Says whether the other end was there: it answered something, or refused.
    #[must_use]
    pub fn is_of_other_end(&self) -> bool {
        matches!(
            self,
            Answer::Reached { .. }
                | Answer::Refused
                | Answer::Named { .. }
                | Answer::OneKind { .. }
        )
    }

    /// Says whether a machine on the link answered who has an address; `None`: that was not asked, or
    /// could not be.
    pub(crate) fn has_owner(&self) -> Option<bool> {
        match self {
            Answer::Owners { macs } => Some(!macs.is_empty()),
            _ => None,
        }
    }

    /// Says whether the other end did not answer: nobody did, or a machine on the way refused.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Answer::Silent { .. } | Answer::Unreachable { .. })
    }
}

/// A place that a probe passed, or where it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hop {
    /// The ID of the container; `None`: the node.
    pub container: Option<String>,
    /// The link.
    pub link: Option<String>,
    /// The kernel's function that dropped it, and its reason; `None` while it went on. Where packets
    /// were only counted, the function is `counters`.
    pub dropped: Option<(String, String)>,
    /// The rule that judged it, as table, chain and handle.
    pub rule: Option<(String, String, u64)>,
    /// It was the answer, on its way back.
    pub back: bool,
}

/// What probes found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answers {
    /// Each question with its answer.
    pub all: Vec<(Question, Answer)>,
}

impl Answers {
    /// Returns the answer to a question; `None` if it was not asked.
    #[must_use]
    pub fn to(&self, question: &Question) -> Option<&Answer> {
        self.all.iter().find(|(asked, _)| asked == question).map(|(_, answer)| answer)
    }

    /// Returns what a container, or the node, asked, with the answers.
    pub fn from<'a>(
        &'a self,
        container: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a Probe, &'a Answer)> {
        let of = move |(question, _): &&(Question, Answer)| question.from.as_deref() == container;
        self.all.iter().filter(of).map(|(question, answer)| (&question.asked, answer))
    }
}

impl Question {
    /// Creates the question of a container, or of the node, to all on a link who has an address.
    pub(crate) fn who_has(from: Option<&Container>, link: &str, address: IpAddr) -> Self {
        let asked = Probe::WhoHas { address, link: link.to_owned() };
        Question { from: from.map(|container| container.id.clone()), asked }
    }

    /// Creates the question of a TCP connection; other protocols have no question that is safe.
    #[must_use]
    pub fn connect(from: Option<&str>, transport: Transport, to: SocketAddr) -> Option<Self> {
        (transport == Transport::Tcp)
            .then(|| Question { from: from.map(str::to_owned), asked: Probe::Connect { to } })
    }
}
