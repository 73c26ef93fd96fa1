//! The messages (RFC 2131 §4.3.2, §4.4.1, table 5).

use std::net::Ipv4Addr;

use super::client::Phase;
use super::message::{Kind, Message, Op, code};
use super::{Action, Client, Delivery, MessageKind, RawOption, SavedLease, Transmit};
use crate::random::Random;
use crate::{MacAddr, Now, Timestamp};

/// RFC 2131 §2: the size that every client must accept.
const LEAST_MESSAGE_SIZE: u16 = 576;

/// Options that the client alone decides; `Config::send` does not change them.
const OURS: [u8; 6] = [
    code::PAD,
    code::REQUESTED_ADDRESS,
    code::OVERLOAD,
    code::MESSAGE_TYPE,
    code::SERVER,
    code::END,
];

impl Client {
    /// Option 61: from the configured options, or else the configured identifier.
    pub(super) fn client_id(&self) -> Option<Vec<u8>> {
        let sent = self.config.send.iter().rfind(|option| option.code == code::CLIENT_ID);
        sent.map(|option| option.value.clone()).or_else(|| self.config.client_id.clone())
    }

    /// §4.4.1: broadcast, perhaps with the preferred address.
    pub(super) fn send_discover(&mut self, now: Now) {
        let Phase::Selecting(exchange) = &mut self.phase else { return };
        exchange.sent(&self.config.timing, &mut self.random, now.at);
        exchange.secs = seconds_since(self.search.began, now);
        let (xid, secs) = (exchange.xid, exchange.secs);
        let mut message = self.ask(Kind::Discover, xid, secs);
        message.broadcast = self.config.broadcast;
        message.options.extend(self.search.wanted.map(requested));
        self.finish(message, MessageKind::Discover, Ipv4Addr::UNSPECIFIED, None);
    }

    /// §4.3.2 "SELECTING state": broadcast, with server identifier and requested address.
    pub(super) fn send_request(&mut self, now: Now) {
        let Phase::Requesting(exchange, offer) = &mut self.phase else { return };
        exchange.sent(&self.config.timing, &mut self.random, now.at);
        let (xid, secs, offer) = (exchange.xid, exchange.secs, *offer);
        let mut message = self.ask(Kind::Request, xid, secs);
        message.broadcast = self.config.broadcast;
        message.options.push(requested(offer.address));
        message.options.push(server(offer.server));
        self.finish(message, MessageKind::Request, Ipv4Addr::UNSPECIFIED, None);
    }

    /// §4.3.2 "INIT-REBOOT state": broadcast, with the requested address and no server identifier.
    pub(super) fn request_saved(&mut self, now: Now) {
        let Some(address) = self.lease().map(|lease| lease.address.addr()) else { return };
        let Phase::Rebooting(exchange) = &mut self.phase else { return };
        exchange.sent(&self.config.timing, &mut self.random, now.at);
        let (xid, secs) = (exchange.xid, seconds_since(exchange.first, now));
        let mut message = self.ask(Kind::Request, xid, secs);
        message.broadcast = self.config.broadcast;
        message.options.push(requested(address));
        self.finish(message, MessageKind::Request, Ipv4Addr::UNSPECIFIED, None);
    }

    /// §4.3.2 "RENEWING state", "REBINDING state": the address in `ciaddr`, neither server
    /// identifier nor requested address.
    pub(super) fn send_renewal(&mut self, now: Now) {
        let Some(lease) = self.lease() else { return };
        let (address, server, hint) = (lease.address.addr(), lease.server, lease.server_mac);
        let (renewal, to) = match &mut self.phase {
            Phase::Renewing(renewal) => (renewal, Some((server, hint))),
            Phase::Rebinding(renewal) => (renewal, None),
            _ => return,
        };
        renewal.sent(&self.config.timing, &mut self.random, now.at);
        let (xid, secs) = (renewal.xid, seconds_since(renewal.began, now));
        let mut message = self.ask(Kind::Request, xid, secs);
        message.ciaddr = address;
        self.finish(message, MessageKind::Request, address, to);
    }

    /// §4.4.1, §3.1, 5: broadcast, because the client must not use the address.
    pub(super) fn send_decline(&mut self, address: Ipv4Addr, from_server: Ipv4Addr) {
        let xid = u32::from_be_bytes(self.random.octets());
        let mut message = tell(Kind::Decline, xid, self.config.mac, self.client_id());
        message.options.push(requested(address));
        message.options.push(server(from_server));
        message.options.push(RawOption::new(code::MESSAGE, *b"address in use"));
        self.finish(message, MessageKind::Decline, Ipv4Addr::UNSPECIFIED, None);
    }

    /// §4.4.6: to the server that granted the lease. A lease that is not in use yet is released
    /// too, and so is an address that the server may have reserved by now.
    pub(super) fn send_release(&mut self) {
        let granted = match &self.phase {
            Phase::Probing(probing) => Some(&probing.lease),
            _ => self.lease(),
        };
        let (address, server, hint) = match (granted, &self.phase) {
            (Some(lease), _) => (lease.address.addr(), lease.server, lease.server_mac),
            (None, Phase::Requesting(_, offer)) => (offer.address, offer.server, None),
            (None, _) => return,
        };
        let xid = u32::from_be_bytes(self.random.octets());
        let client_id = self.client_id();
        let transmit = release(xid, self.config.mac, client_id, address, (server, hint));
        self.actions.push_back(Action::Send(transmit));
    }

    /// What DISCOVER and REQUEST have in common.
    fn ask(&self, kind: Kind, xid: u32, secs: u16) -> Message {
        let config = &self.config;
        let mut message = tell(kind, xid, config.mac, config.client_id.clone());
        message.secs = secs;
        let size = config.max_message_size.max(LEAST_MESSAGE_SIZE);
        message.options.push(RawOption::new(code::MAX_MESSAGE_SIZE, size.to_be_bytes()));
        if !config.request.is_empty() {
            message.options.push(RawOption::new(code::REQUEST_LIST, config.request.as_slice()));
        }
        for option in config.send.iter().filter(|option| !OURS.contains(&option.code)) {
            match message.options.iter_mut().find(|there| there.code == option.code) {
                Some(there) => there.value.clone_from(&option.value),
                None => message.options.push(option.clone()),
            }
        }
        message
    }

    fn finish(
        &mut self,
        message: Message,
        kind: MessageKind,
        from: Ipv4Addr,
        to: Option<(Ipv4Addr, Option<MacAddr>)>,
    ) {
        let (to, how) = match to {
            Some((server, hint)) => (server, Delivery::Unicast { hint }),
            None => (Ipv4Addr::BROADCAST, Delivery::Broadcast),
        };
        let payload = message.write();
        self.actions.push_back(Action::Send(Transmit { payload, from, to, how, kind }));
    }
}

/// Returns the message that releases a lease whose client is gone, for instance one found after a
/// restart. Expect no reply: servers do not answer it.
pub fn release_message(saved: &SavedLease, seed: u64) -> Transmit {
    let xid = u32::from_be_bytes(Random::new(seed).octets());
    let SavedLease { mac, client_id, lease } = saved;
    let server = (lease.server, lease.server_mac);
    release(xid, *mac, client_id.clone(), lease.address.addr(), server)
}

/// §4.4.6, table 5: `ciaddr`, server identifier, client identifier, nothing else.
fn release(
    xid: u32,
    mac: MacAddr,
    client_id: Option<Vec<u8>>,
    address: Ipv4Addr,
    (to, hint): (Ipv4Addr, Option<MacAddr>),
) -> Transmit {
    let mut message = tell(Kind::Release, xid, mac, client_id);
    message.ciaddr = address;
    message.options.push(server(to));
    Transmit {
        payload: message.write(),
        from: address,
        to,
        how: Delivery::Unicast { hint },
        kind: MessageKind::Release,
    }
}

/// What all messages have in common.
fn tell(kind: Kind, xid: u32, mac: MacAddr, client_id: Option<Vec<u8>>) -> Message {
    let client_id = client_id.map(|id| RawOption::new(code::CLIENT_ID, id));
    Message {
        op: Op::Request,
        xid,
        secs: 0,
        broadcast: false,
        ciaddr: Ipv4Addr::UNSPECIFIED,
        yiaddr: Ipv4Addr::UNSPECIFIED,
        mac,
        options: [Some(kind.option()), client_id].into_iter().flatten().collect(),
    }
}

fn requested(address: Ipv4Addr) -> RawOption {
    RawOption::new(code::REQUESTED_ADDRESS, address.octets())
}

fn server(address: Ipv4Addr) -> RawOption {
    RawOption::new(code::SERVER, address.octets())
}

fn seconds_since(began: Timestamp, now: Now) -> u16 {
    u16::try_from(now.at.since(began).as_secs()).unwrap_or(u16::MAX)
}
