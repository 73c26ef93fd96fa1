//! The bench for DHCPv4, and replies made by hand.

use std::net::Ipv4Addr;
use std::time::Duration;

use netwright_dhcp::v4::{Action, Client, Config, Delivery, MessageKind, ReceiveOutcome, Start};
use netwright_dhcp::{MacAddr, Now};

pub(crate) use crate::bench::*;

pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub(crate) const OTHER_SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 50);
pub(crate) const OTHER_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 51);

/// A message as the bench parses it, by hand, independent of the code under test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParsedMessage {
    pub(crate) op: u8,
    pub(crate) xid: [u8; 4],
    pub(crate) secs: u16,
    pub(crate) flags: u16,
    pub(crate) ciaddr: Ipv4Addr,
    pub(crate) mac: MacAddr,
    pub(crate) options: Vec<(u8, Vec<u8>)>,
}

impl ParsedMessage {
    pub(crate) fn new(payload: &[u8]) -> Self {
        assert_eq!(payload[1..4], [1, 6, 0], "Ethernet, no hops");
        assert_eq!(payload[236..240], [99, 130, 83, 99]);
        let mut options: Vec<(u8, Vec<u8>)> = Vec::new();
        let mut at = 240;
        while payload[at] != 255 {
            let end = at + 2 + usize::from(payload[at + 1]);
            let value = &payload[at + 2..end];
            match options.iter_mut().find(|(code, _)| *code == payload[at]) {
                Some((_, there)) => there.extend_from_slice(value),
                None => options.push((payload[at], value.to_vec())),
            }
            at = end;
        }
        ParsedMessage {
            op: payload[0],
            xid: payload[4..8].try_into().unwrap(),
            secs: u16::from_be_bytes([payload[8], payload[9]]),
            flags: u16::from_be_bytes([payload[10], payload[11]]),
            ciaddr: address(&payload[12..16]),
            mac: MacAddr(payload[28..34].try_into().unwrap()),
            options,
        }
    }

    pub(crate) fn option(&self, code: u8) -> Option<&[u8]> {
        self.options.iter().find(|(there, _)| *there == code).map(|(_, value)| value.as_slice())
    }

    pub(crate) fn kind(&self) -> u8 {
        self.option(53).unwrap()[0]
    }

    pub(crate) fn requested(&self) -> Option<Ipv4Addr> {
        self.option(50).map(address)
    }

    pub(crate) fn server(&self) -> Option<Ipv4Addr> {
        self.option(54).map(address)
    }
}

fn address(octets: &[u8]) -> Ipv4Addr {
    Ipv4Addr::from(<[u8; 4]>::try_from(octets).unwrap())
}

pub(crate) const OFFER: u8 = 2;
pub(crate) const ACK: u8 = 5;
pub(crate) const NAK: u8 = 6;

/// A reply built by hand.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) xid: [u8; 4],
    pub(crate) yiaddr: Ipv4Addr,
    pub(crate) mac: MacAddr,
    pub(crate) file: Vec<u8>,
    pub(crate) sname: Vec<u8>,
    pub(crate) options: Vec<(u8, Vec<u8>)>,
}

impl Reply {
    /// From [`SERVER`], for [`ADDRESS`]/24, for two hours.
    pub(crate) fn new(kind: u8, to: &[u8]) -> Self {
        Reply {
            xid: ParsedMessage::new(to).xid,
            yiaddr: if kind == NAK { Ipv4Addr::UNSPECIFIED } else { ADDRESS },
            mac: ParsedMessage::new(to).mac,
            file: Vec::new(),
            sname: Vec::new(),
            options: match kind {
                NAK => vec![(53, vec![kind]), (54, SERVER.octets().to_vec())],
                _ => vec![
                    (53, vec![kind]),
                    (54, SERVER.octets().to_vec()),
                    (51, 7200_u32.to_be_bytes().to_vec()),
                    (1, vec![255, 255, 255, 0]),
                    (3, SERVER.octets().to_vec()),
                ],
            },
        }
    }

    /// Sets an option; an empty value removes it.
    pub(crate) fn with(mut self, code: u8, value: impl AsRef<[u8]>) -> Self {
        self.options.retain(|(there, _)| *there != code);
        if !value.as_ref().is_empty() {
            self.options.push((code, value.as_ref().to_vec()));
        }
        self
    }

    pub(crate) fn lasting(self, seconds: u32) -> Self {
        self.with(51, seconds.to_be_bytes())
    }

    pub(crate) fn from(self, server: Ipv4Addr) -> Self {
        self.with(54, server.octets())
    }

    pub(crate) fn giving(mut self, address: Ipv4Addr) -> Self {
        self.yiaddr = address;
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut payload = vec![2, 1, 6, 0];
        payload.extend(self.xid);
        payload.extend([0; 8]);
        payload.extend(self.yiaddr.octets());
        payload.extend([0; 8]);
        payload.extend(self.mac.0);
        payload.resize(44, 0);
        payload.extend(&self.sname);
        payload.resize(108, 0);
        payload.extend(&self.file);
        payload.resize(236, 0);
        payload.extend([99, 130, 83, 99]);
        for (code, value) in &self.options {
            let mut parts = value.chunks(255).collect::<Vec<_>>();
            if parts.is_empty() {
                parts.push(&[]);
            }
            for part in parts {
                payload.extend([*code, u8::try_from(part.len()).unwrap()]);
                payload.extend(part);
            }
        }
        payload.push(255);
        payload
    }
}

/// The RFC's timing without jitter, and no probes, so that a test can compute the times.
pub(crate) fn plain() -> Config {
    let mut config = Config::new(MAC);
    config.timing.jitter = Duration::ZERO;
    config.probe = None;
    config.boot_id = Some("boot-1".to_owned());
    config
}

pub(crate) type Bench = crate::bench::Bench<Client>;

impl Bench {
    /// A client bound to [`ADDRESS`] for this long, without pending actions.
    pub(crate) fn bound(config: Config, lease_s: u32) -> Self {
        let mut bench = Bench::new(config, Start::Fresh);
        bench.reply(&Reply::new(OFFER, &bench.last()));
        bench.reply(&Reply::new(ACK, &bench.last()).lasting(lease_s));
        bench.actions.clear();
        bench
    }

    pub(crate) fn reply(&mut self, reply: &Reply) -> ReceiveOutcome {
        self.packet(&reply.bytes())
    }
}

crate::bench::machine!(v4 {
    fn on_packet(&mut self, now: Now, payload: &[u8]) -> ReceiveOutcome {
        Self::on_packet(self, now, payload, Some(SERVER_MAC))
    }
    fn short(action: &Action) -> String {
        short(action)
    }
});

/// An action in one line.
pub(crate) fn short(action: &Action) -> String {
    match action {
        Action::Send(transmit) => {
            let read = ParsedMessage::new(&transmit.payload);
            let mut line = transmit.kind.to_string();
            let kind = match transmit.kind {
                MessageKind::Discover => 1,
                MessageKind::Request => 3,
                MessageKind::Decline => 4,
                MessageKind::Release => 7,
            };
            assert_eq!((read.op, read.kind()), (1, kind));
            match transmit.how {
                Delivery::Broadcast => assert_eq!(transmit.to, Ipv4Addr::BROADCAST),
                Delivery::Unicast { .. } => line += &format!(" to {}", transmit.to),
            }
            if !transmit.from.is_unspecified() {
                line += &format!(" from {}", transmit.from);
            }
            if !read.ciaddr.is_unspecified() {
                line += &format!(" ciaddr {}", read.ciaddr);
            }
            if let Some(requested) = read.requested() {
                line += &format!(" requested {requested}");
            }
            if let Some(server) = read.server() {
                line += &format!(" server {server}");
            }
            line
        }
        Action::Probe { address } => format!("probe {address}"),
        Action::Announce { address } => format!("announce {address}"),
        Action::Configure { lease, previous: None } => format!("configure {}", lease.address),
        Action::Configure { lease, previous: Some(previous) } => {
            format!("configure {} over {}", lease.address, previous.address)
        }
        Action::Deconfigure { lease, reason } => {
            format!("deconfigure {}: {reason}", lease.address)
        }
        Action::Failed(reason) => format!("failed: {reason}"),
        other => panic!("{other:?}"),
    }
}
