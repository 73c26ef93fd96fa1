//! The messages (RFC 8415 §18.2).

use std::net::Ipv6Addr;

use super::client::Phase;
use super::message::{Association, Kind, Message, XID_MASK, code};
use super::{Action, Client, Duid, MessageKind, RawOption, SERVERS, SavedLease, Transmit};
use crate::random::Random;
use crate::{Now, Timestamp};

/// Options that the client alone decides; `Config::send` does not change them.
const OURS: [u16; 8] = [
    code::CLIENT_ID,
    code::SERVER_ID,
    code::IA_NA,
    code::IA_ADDRESS,
    code::REQUEST,
    code::ELAPSED,
    code::STATUS,
    code::RAPID_COMMIT,
];

impl Client {
    /// Sends the message of the state the client is in, for the first time or again.
    pub(super) fn send(&mut self, now: Now) {
        let Some(exchange) = self.phase.exchange_mut() else { return };
        exchange.sent(self.sol_max_rt, &mut self.random, now.at);
        let (kind, xid, first) = (exchange.kind, exchange.xid, exchange.first);
        let held = || -> Vec<Ipv6Addr> {
            let addresses = self.lease().map(|lease| lease.addresses.as_slice());
            addresses.unwrap_or_default().iter().map(|address| address.address).collect()
        };
        let (server, addresses) = match &self.phase {
            Phase::Soliciting(..) => (None, self.search.wanted.clone()),
            // For a binding that the server had lost: what is still in use.
            Phase::Requesting(_, offer) if self.held.is_some() => {
                (Some(offer.server.clone()), held())
            }
            Phase::Requesting(_, offer)
            | Phase::Declining(_, offer)
            | Phase::Releasing(_, offer) => (Some(offer.server.clone()), offer.addresses.clone()),
            Phase::Renewing(_) => (self.lease().map(|lease| lease.server.clone()), held()),
            Phase::Confirming(_) | Phase::Rebinding(_) => (None, held()),
            Phase::Init { .. } | Phase::Bound | Phase::Ended => return,
        };
        let config = &self.config;
        let mut message = tell(kind, xid, &config.duid, server, elapsed(first, now));
        message.options.push(Association::ask(config.iaid, &addresses));
        let asks =
            !matches!(kind, MessageKind::Confirm | MessageKind::Release | MessageKind::Decline);
        if asks && !config.request.is_empty() {
            let codes = config.request.iter().flat_map(|code| code.to_be_bytes());
            message.options.push(RawOption::new(code::REQUEST, codes.collect::<Vec<_>>()));
        }
        if kind == MessageKind::Solicit && config.rapid_commit {
            message.options.push(RawOption::new(code::RAPID_COMMIT, []));
        }
        if asks || kind == MessageKind::Confirm {
            let sent = config.send.iter().filter(|option| !OURS.contains(&option.code));
            message.options.extend(sent.cloned());
        }
        self.actions.push_back(Action::Send(finish(&message, kind)));
    }
}

/// Returns the message that releases a lease whose client is gone, for instance one found after a
/// restart.
pub fn release_message(saved: &SavedLease, seed: u64) -> Transmit {
    let SavedLease { duid, iaid, lease } = saved;
    let xid = u32::from_be_bytes(Random::new(seed).octets()) & XID_MASK;
    let mut message = tell(MessageKind::Release, xid, duid, Some(lease.server.clone()), 0);
    let addresses: Vec<_> = lease.addresses.iter().map(|address| address.address).collect();
    message.options.push(Association::ask(*iaid, &addresses));
    finish(&message, MessageKind::Release)
}

/// What all messages have in common.
fn tell(
    kind: MessageKind,
    xid: u32,
    duid: &Duid,
    server: Option<Vec<u8>>,
    elapsed: u16,
) -> Message {
    let client_id = RawOption::new(code::CLIENT_ID, duid.as_bytes());
    let server_id = server.map(|server| RawOption::new(code::SERVER_ID, server));
    let elapsed = RawOption::new(code::ELAPSED, elapsed.to_be_bytes());
    Message {
        kind: match kind {
            MessageKind::Solicit => Kind::Solicit,
            MessageKind::Request => Kind::Request,
            MessageKind::Confirm => Kind::Confirm,
            MessageKind::Renew => Kind::Renew,
            MessageKind::Rebind => Kind::Rebind,
            MessageKind::Release => Kind::Release,
            MessageKind::Decline => Kind::Decline,
        },
        xid,
        options: [Some(client_id), server_id, Some(elapsed)].into_iter().flatten().collect(),
    }
}

fn finish(message: &Message, kind: MessageKind) -> Transmit {
    Transmit { payload: message.write(), to: SERVERS, kind }
}

/// RFC 8415 §21.9: hundredths of a second since the exchange began.
fn elapsed(first: Timestamp, now: Now) -> u16 {
    u16::try_from(now.at.since(first).as_millis() / 10).unwrap_or(u16::MAX)
}
