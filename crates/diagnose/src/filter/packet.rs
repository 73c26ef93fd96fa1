//! A packet as filters see it.

use std::net::IpAddr;

use ipnet::IpNet;

use super::bits::{Byte, Truth, known};

/// A port of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// This one.
    Is(u16),
    /// One that the kernel chooses for a client: 32768 or more.
    High,
    /// Any.
    Any,
}

/// What a packet carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Payload {
    /// TCP.
    Tcp {
        /// The sender's port.
        source: Port,
        /// The receiver's port.
        destination: Port,
    },
    /// UDP.
    Udp {
        /// The sender's port.
        source: Port,
        /// The receiver's port.
        destination: Port,
    },
    /// ICMP or, between IPv6 addresses, ICMPv6.
    Icmp {
        /// The message's type.
        kind: u8,
    },
    /// ARP; the packet's addresses are those in it.
    Arp {
        /// It is an answer.
        reply: bool,
    },
}

/// What connection tracking knows of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is the first of its connection.
    New,
    /// It is an answer.
    Answer,
    /// It follows the first one and its answer, and has the same sender as the first one.
    Further,
    /// It is not tracked.
    Untracked,
}

/// A packet. What is not known of it is not used for a judgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// How many leading bits of source and destination are known; `None`: all.
    pub known_bits: [Option<u8>; 2],
    /// What it carries.
    pub carries: Payload,
    /// The link by which it came in.
    pub iif: Option<String>,
    /// The link by which it leaves.
    pub oif: Option<String>,
    /// Of the two links, those that are not known, each with the names of links that it is not.
    pub other_than: [Option<Vec<String>>; 2],
    /// What connection tracking knows of it.
    pub state: State,
    /// The connection's destination is translated (IPS_DST_NAT); `None`: not known.
    pub destination_translated: Option<bool>,
    /// The connection's source is translated (IPS_SRC_NAT); `None`: not known.
    pub source_translated: Option<bool>,
    /// What translation makes of an answer's destination.
    pub answers_to: Option<IpAddr>,
    /// What translation makes of an answer's source.
    pub answers_as: Option<IpAddr>,
    /// The mark; `None`: not known.
    pub mark: Option<u32>,
    /// The hardware addresses of sender and receiver, as far as they are known.
    pub macs: [Option<[u8; 6]>; 2],
    /// The VLAN whose tag the frame has.
    pub vlan: Option<u16>,
}

impl Packet {
    /// Creates the first packet of a connection.
    #[must_use]
    pub fn first(source: IpAddr, destination: IpAddr, carries: Payload) -> Self {
        Packet {
            source,
            destination,
            known_bits: [None, None],
            carries,
            iif: None,
            oif: None,
            other_than: [None, None],
            state: State::New,
            destination_translated: Some(false),
            source_translated: Some(false),
            answers_to: None,
            answers_as: None,
            mark: Some(0),
            macs: [None, None],
            vlan: None,
        }
    }

    /// Creates the answer to this packet, which its receiver sends.
    #[must_use]
    pub fn answer(&self) -> Self {
        let state = match self.state {
            State::New | State::Answer | State::Further => State::Answer,
            State::Untracked => State::Untracked,
        };
        Packet {
            source: self.destination,
            destination: self.source,
            known_bits: [self.known_bits[1], self.known_bits[0]],
            carries: self.carries.answer(),
            iif: None,
            oif: None,
            other_than: [None, None],
            state,
            mark: Some(0),
            macs: [self.macs[1], self.macs[0]],
            ..self.clone()
        }
    }

    /// Creates a further packet of the same sender, when this one was answered.
    #[must_use]
    pub fn further(&self) -> Self {
        let state = match self.state {
            State::Untracked => State::Untracked,
            _ => State::Further,
        };
        Packet { state, ..self.clone() }
    }

    /// Returns the packet on its way from one link to another.
    #[must_use]
    pub fn between(&self, iif: Option<&str>, oif: Option<&str>) -> Self {
        let (iif, oif) = (iif.map(str::to_owned), oif.map(str::to_owned));
        Packet { iif, oif, other_than: [None, None], ..self.clone() }
    }

    /// Returns the range of addresses in which the source is, or the destination.
    pub(crate) fn range(&self, of_source: bool) -> IpNet {
        let (address, known) = match of_source {
            true => (self.source, self.known_bits[0]),
            false => (self.destination, self.known_bits[1]),
        };
        let exact = IpNet::from(address);
        known.and_then(|known| IpNet::new(address, known).ok()).unwrap_or(exact)
    }

    /// Returns the source's bytes, or the destination's.
    fn address(&self, of_source: bool) -> Vec<Byte> {
        let range = self.range(of_source);
        let (address, mask) = match (range.addr(), range.netmask()) {
            (IpAddr::V4(address), IpAddr::V4(mask)) => {
                (address.octets().to_vec(), mask.octets().to_vec())
            }
            (IpAddr::V6(address), IpAddr::V6(mask)) => {
                (address.octets().to_vec(), mask.octets().to_vec())
            }
            _ => return Vec::new(),
        };
        address.iter().zip(mask).map(|(byte, mask)| Byte::partly(*byte, mask)).collect()
    }

    /// Says whether it is IPv4's, or ARP's.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        self.destination.is_ipv4()
    }

    pub(crate) fn is_arp(&self) -> bool {
        matches!(self.carries, Payload::Arp { .. })
    }

    /// The transport protocol; ARP has none.
    pub(crate) fn protocol(&self) -> Option<u8> {
        match self.carries {
            Payload::Tcp { .. } => Some(6),
            Payload::Udp { .. } => Some(17),
            Payload::Icmp { .. } => Some(if self.is_ipv4() { 1 } else { 58 }),
            Payload::Arp { .. } => None,
        }
    }

    pub(crate) fn ethertype(&self) -> u16 {
        match (self.is_arp(), self.is_ipv4()) {
            (true, _) => 0x0806,
            (false, true) => 0x0800,
            (false, false) => 0x86dd,
        }
    }

    /// Ethernet's header.
    pub(crate) fn link_header(&self) -> Vec<Byte> {
        let mut header = Vec::with_capacity(18);
        header.extend(mac(self.macs[1]));
        header.extend(mac(self.macs[0]));
        if let Some(vlan) = self.vlan {
            // IEEE 802.1Q: the priority is not known.
            let [high, low] = vlan.to_be_bytes();
            header.extend(known(&[0x81, 0x00]));
            header.extend([Byte::partly(high, 0x0f), Byte::of(low)]);
        }
        header.extend(known(&self.ethertype().to_be_bytes()));
        header
    }

    /// The header of IP or ARP.
    pub(crate) fn network_header(&self) -> Vec<Byte> {
        if let Payload::Arp { reply } = self.carries {
            return self.arp(reply);
        }
        match (self.source, self.destination) {
            (IpAddr::V4(_), IpAddr::V4(_)) => {
                let mut header = vec![Byte::UNKNOWN; 12];
                header[0] = Byte::of(0x45);
                // It may not be fragmented, or it may; it is not a fragment.
                header[6] = Byte::partly(0, 0xbf);
                header[7] = Byte::of(0);
                header[9] = self.protocol().map_or(Byte::UNKNOWN, Byte::of);
                header.extend(self.address(true));
                header.extend(self.address(false));
                header
            }
            (IpAddr::V6(_), IpAddr::V6(_)) => {
                let mut header = vec![Byte::UNKNOWN; 8];
                header[0] = Byte::partly(0x60, 0xf0);
                header[6] = self.protocol().map_or(Byte::UNKNOWN, Byte::of);
                // Neighbour discovery comes with a hop limit of 255 (RFC 4861 §4).
                if matches!(self.carries, Payload::Icmp { kind: 133..=137 }) {
                    header[7] = Byte::of(255);
                }
                header.extend(self.address(true));
                header.extend(self.address(false));
                header
            }
            _ => Vec::new(),
        }
    }

    /// RFC 826, for Ethernet and IPv4.
    fn arp(&self, reply: bool) -> Vec<Byte> {
        let address = |address: IpAddr| match address {
            IpAddr::V4(address) => address.octets().map(Byte::of),
            IpAddr::V6(_) => [Byte::UNKNOWN; 4],
        };
        let mut header = known(&[0, 1, 8, 0, 6, 4, 0, if reply { 2 } else { 1 }]);
        header.extend(mac(self.macs[0]));
        header.extend(address(self.source));
        header.extend(if reply { mac(self.macs[1]) } else { [Byte::UNKNOWN; 6] });
        header.extend(address(self.destination));
        header
    }

    /// The header of TCP, UDP or ICMP.
    pub(crate) fn transport_header(&self) -> Vec<Byte> {
        match self.carries {
            Payload::Tcp { source, destination } => {
                let mut header = vec![Byte::UNKNOWN; 20];
                header[..2].copy_from_slice(&source.bytes());
                header[2..4].copy_from_slice(&destination.bytes());
                // SYN, or SYN and ACK, or ACK and perhaps PSH. ECE and CWR may be set as well.
                let (flags, known) = match self.state {
                    State::Answer => (0x12, 0x3f),
                    State::Further => (0x10, 0x37),
                    State::New | State::Untracked => (0x02, 0x3f),
                };
                header[13] = Byte::partly(flags, known);
                header
            }
            Payload::Udp { source, destination } => {
                let mut header = vec![Byte::UNKNOWN; 8];
                header[..2].copy_from_slice(&source.bytes());
                header[2..4].copy_from_slice(&destination.bytes());
                header
            }
            Payload::Icmp { kind } => {
                let mut header = vec![Byte::UNKNOWN; 8];
                header[0] = Byte::of(kind);
                header[1] = Byte::of(0);
                header
            }
            Payload::Arp { .. } => Vec::new(),
        }
    }
}

fn mac(address: Option<[u8; 6]>) -> [Byte; 6] {
    address.map_or([Byte::UNKNOWN; 6], |mac| mac.map(Byte::of))
}

impl Port {
    fn bytes(self) -> [Byte; 2] {
        match self {
            Port::Is(port) => port.to_be_bytes().map(Byte::of),
            Port::High => [Byte::partly(0x80, 0x80), Byte::UNKNOWN],
            Port::Any => [Byte::UNKNOWN; 2],
        }
    }

    /// Says whether it lies in a range.
    pub(crate) fn is_in(self, first: u16, last: u16) -> Truth {
        match self {
            Port::Is(port) => Truth::known((first..=last).contains(&port)),
            Port::High if last < 0x8000 => Truth::No,
            Port::High if first <= 0x8000 && last == u16::MAX => Truth::Yes,
            Port::Any if first == 0 && last == u16::MAX => Truth::Yes,
            Port::High | Port::Any => Truth::Maybe,
        }
    }
}

impl Payload {
    fn answer(self) -> Self {
        match self {
            Payload::Tcp { source, destination } => {
                Payload::Tcp { source: destination, destination: source }
            }
            Payload::Udp { source, destination } => {
                Payload::Udp { source: destination, destination: source }
            }
            // Echo: RFC 792 and RFC 4443 §4. Neighbours: RFC 4861 §4.3 and §4.4.
            Payload::Icmp { kind: 8 } => Payload::Icmp { kind: 0 },
            Payload::Icmp { kind: 128 } => Payload::Icmp { kind: 129 },
            Payload::Icmp { kind: 135 } => Payload::Icmp { kind: 136 },
            Payload::Icmp { kind } => Payload::Icmp { kind },
            Payload::Arp { .. } => Payload::Arp { reply: true },
        }
    }

    /// Returns it with another port of the receiver.
    pub(crate) fn to_port(self, port: Port) -> Self {
        match self {
            Payload::Tcp { source, .. } => Payload::Tcp { source, destination: port },
            Payload::Udp { source, .. } => Payload::Udp { source, destination: port },
            other => other,
        }
    }

    pub(crate) fn ports(self) -> Option<(Port, Port)> {
        match self {
            Payload::Tcp { source, destination } | Payload::Udp { source, destination } => {
                Some((source, destination))
            }
            Payload::Icmp { .. } | Payload::Arp { .. } => None,
        }
    }
}
