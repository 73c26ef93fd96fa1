//! The bench for DHCPv6.

use std::net::Ipv6Addr;
use std::time::Duration;

use netwright_dhcp::Now;
use netwright_dhcp::v6::{
    Action, Client, Config, Duid, Lease, MessageKind, ReceiveOutcome, SERVERS, Start,
};

pub(crate) use crate::bench::*;

pub(crate) const IAID: u32 = 0x0102_0304;
pub(crate) const SERVER: &[u8] = b"\0\x03\0\x01\x02\0\0\0\0\xfe";
pub(crate) const OTHER_SERVER: &[u8] = b"\0\x03\0\x01\x02\0\0\0\0\x66";

pub(crate) fn ip(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

/// No delay before the first message.
pub(crate) fn plain() -> Config {
    let mut config = Config::new(Duid::from_mac(MAC), IAID);
    config.timing.first_delay = Duration::ZERO;
    config.boot_id = Some("boot-1".to_owned());
    config
}

/// A message as the bench parses it, by hand, independent of the code under test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParsedMessage {
    pub(crate) kind: u8,
    pub(crate) xid: [u8; 3],
    pub(crate) options: Vec<(u16, Vec<u8>)>,
}

pub(crate) fn options(mut rest: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut options = Vec::new();
    while !rest.is_empty() {
        let length = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
        options.push((u16::from_be_bytes([rest[0], rest[1]]), rest[4..4 + length].to_vec()));
        rest = &rest[4 + length..];
    }
    options
}

impl ParsedMessage {
    pub(crate) fn new(payload: &[u8]) -> Self {
        ParsedMessage {
            kind: payload[0],
            xid: payload[1..4].try_into().unwrap(),
            options: options(&payload[4..]),
        }
    }

    pub(crate) fn option(&self, code: u16) -> Option<&[u8]> {
        self.options.iter().find(|(there, _)| *there == code).map(|(_, value)| value.as_slice())
    }

    /// The addresses in the one association.
    pub(crate) fn addresses(&self) -> Vec<Ipv6Addr> {
        let association = self.option(3).unwrap();
        assert_eq!(association[..12], [&IAID.to_be_bytes()[..], &[0; 8]].concat());
        let addresses = options(&association[12..]).into_iter().map(|(code, value)| {
            assert_eq!((code, value.len(), &value[16..]), (5, 24, &[0; 8][..]));
            Ipv6Addr::from(<[u8; 16]>::try_from(&value[..16]).unwrap())
        });
        addresses.collect()
    }
}

pub(crate) const ADVERTISE: u8 = 2;
pub(crate) const REPLY: u8 = 7;

/// A reply built by hand, with one association.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) kind: u8,
    pub(crate) xid: [u8; 3],
    pub(crate) options: Vec<(u16, Vec<u8>)>,
    pub(crate) iaid: u32,
    pub(crate) times: (u32, u32),
    /// Address, preferred and valid lifetime.
    pub(crate) addresses: Vec<(Ipv6Addr, u32, u32)>,
    pub(crate) status: Option<u16>,
    pub(crate) association: bool,
}

impl Reply {
    /// From [`SERVER`], 2001:db8::50 with lifetimes of one hour and two.
    pub(crate) fn new(kind: u8, to: &[u8]) -> Self {
        let read = ParsedMessage::new(to);
        Reply {
            kind,
            xid: read.xid,
            options: vec![(1, read.option(1).unwrap().to_vec()), (2, SERVER.to_vec())],
            iaid: IAID,
            times: (0, 0),
            addresses: vec![(ip("2001:db8::50"), 3600, 7200)],
            status: None,
            association: true,
        }
    }

    /// Sets an option.
    pub(crate) fn with(mut self, code: u16, value: impl AsRef<[u8]>) -> Self {
        self.options.retain(|(there, _)| *there != code);
        self.options.push((code, value.as_ref().to_vec()));
        self
    }

    pub(crate) fn without(mut self, code: u16) -> Self {
        self.options.retain(|(there, _)| *there != code);
        self
    }

    pub(crate) fn giving(mut self, addresses: &[(&str, u32, u32)]) -> Self {
        self.addresses = addresses.iter().map(|(a, p, v)| (ip(a), *p, *v)).collect();
        self
    }

    pub(crate) fn times(mut self, t1: u32, t2: u32) -> Self {
        self.times = (t1, t2);
        self
    }

    /// A status within the association, which then has no addresses.
    pub(crate) fn refusing(mut self, status: u16) -> Self {
        self.status = Some(status);
        self.addresses.clear();
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut payload = vec![self.kind];
        payload.extend(self.xid);
        for (code, value) in &self.options {
            put(&mut payload, *code, value);
        }
        if self.association {
            let mut value = self.iaid.to_be_bytes().to_vec();
            value.extend(self.times.0.to_be_bytes());
            value.extend(self.times.1.to_be_bytes());
            for (address, preferred, valid) in &self.addresses {
                let lifetimes = [preferred.to_be_bytes(), valid.to_be_bytes()].concat();
                put(&mut value, 5, &[&address.octets()[..], &lifetimes].concat());
            }
            if let Some(status) = self.status {
                put(&mut value, 13, &[&status.to_be_bytes()[..], b"so\nthere"].concat());
            }
            put(&mut payload, 3, &value);
        }
        payload
    }
}

pub(crate) fn put(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    to.extend(code.to_be_bytes());
    to.extend(u16::try_from(value.len()).unwrap().to_be_bytes());
    to.extend(value);
}

pub(crate) type Bench = crate::bench::Bench<Client>;

impl Bench {
    /// A client bound with the reply's addresses, without pending actions.
    pub(crate) fn bound(change: impl Fn(Reply) -> Reply) -> Self {
        let mut bench = Bench::new(plain(), Start::Fresh);
        bench.reply(&Reply::new(ADVERTISE, &bench.last()));
        bench.reply(&change(Reply::new(REPLY, &bench.last())));
        bench.actions.clear();
        bench
    }

    pub(crate) fn reply(&mut self, reply: &Reply) -> ReceiveOutcome {
        self.packet(&reply.bytes())
    }
}

crate::bench::machine!(v6 {
    fn on_packet(&mut self, now: Now, payload: &[u8]) -> ReceiveOutcome {
        Self::on_packet(self, now, payload)
    }
    fn short(action: &Action) -> String {
        short(action)
    }
});

fn list(lease: &Lease) -> String {
    let addresses: Vec<_> = lease.addresses.iter().map(|one| one.address.to_string()).collect();
    addresses.join(",")
}

/// An action in one line.
pub(crate) fn short(action: &Action) -> String {
    match action {
        Action::Send(transmit) => {
            assert_eq!(transmit.to, SERVERS);
            let read = ParsedMessage::new(&transmit.payload);
            let kind = match transmit.kind {
                MessageKind::Solicit => 1,
                MessageKind::Request => 3,
                MessageKind::Confirm => 4,
                MessageKind::Renew => 5,
                MessageKind::Rebind => 6,
                MessageKind::Release => 8,
                MessageKind::Decline => 9,
            };
            assert_eq!(read.kind, kind);
            let mut line = transmit.kind.to_string();
            for address in read.addresses() {
                line += &format!(" {address}");
            }
            match read.option(2) {
                Some(SERVER) => line += " to the server",
                Some(_) => line += " to another server",
                None => {}
            }
            line
        }
        Action::Configure { lease, previous: None } => format!("configure {}", list(lease)),
        Action::Configure { lease, previous: Some(previous) } => {
            format!("configure {} over {}", list(lease), list(previous))
        }
        Action::Deconfigure { lease, reason } => format!("deconfigure {}: {reason}", list(lease)),
        Action::Failed(reason) => format!("failed: {reason}"),
        other => panic!("{other:?}"),
    }
}
