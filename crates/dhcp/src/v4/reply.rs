//! Replies: which are accepted, and what they change.

use super::client::{Offer, Phase, Probe};
use super::message::{Kind, Message, Op, code};
use super::terms::{self, TermsError};
use super::{Client, FailReason, Lease, LostReason};
use crate::{IgnoreReason, MacAddr, Now, ReceiveOutcome, Timestamp};

impl Client {
    /// Handles a UDP payload to port 68, in a frame from `source` if that is known. Its content may
    /// be anything: a payload that is not for this client, or does not answer its last request,
    /// does nothing. The return value is for logs.
    pub fn on_packet(
        &mut self,
        now: Now,
        payload: &[u8],
        source: Option<MacAddr>,
    ) -> ReceiveOutcome {
        // A reply that arrives after the lease has expired renews nothing, whether or not the timer
        // was first.
        self.expire(now);
        self.receive(now, payload, source).into()
    }

    fn receive(
        &mut self,
        now: Now,
        payload: &[u8],
        source: Option<MacAddr>,
    ) -> Result<(), IgnoreReason> {
        let reply = Message::parse(payload).map_err(|_| IgnoreReason::Malformed)?;
        let kind = match (reply.op, reply.kind()) {
            (Op::Reply, Some(kind @ (Kind::Offer | Kind::Ack | Kind::Nak))) => kind,
            _ => return Err(IgnoreReason::NotAReply),
        };
        // RFC 6842: servers return the client identifier; servers older than it did not.
        let returned = reply.option(code::CLIENT_ID);
        if reply.mac != self.config.mac
            || returned.is_some_and(|returned| Some(returned) != self.client_id().as_deref())
        {
            return Err(IgnoreReason::OtherClient);
        }
        let xid = match &self.phase {
            Phase::Selecting(exchange)
            | Phase::Requesting(exchange, _)
            | Phase::Rebooting(exchange) => exchange.xid,
            Phase::Renewing(renewal) | Phase::Rebinding(renewal) => renewal.xid,
            Phase::Init { .. } | Phase::Probing(_) | Phase::Bound | Phase::Ended => {
                return Err(IgnoreReason::NotAwaited);
            }
        };
        if reply.xid != xid {
            return Err(IgnoreReason::NotAwaited);
        }
        match (&self.phase, kind) {
            (Phase::Selecting(_), Kind::Offer) => self.on_offer(now, &reply),
            (Phase::Selecting(_), _) | (_, Kind::Offer) => Err(IgnoreReason::NotAwaited),
            (Phase::Requesting(..), Kind::Nak) => self.on_refusal(now, &reply),
            (Phase::Requesting(..), _) => self.on_grant(now, &reply, source),
            (_, Kind::Nak) => self.on_withdrawal(now, &reply),
            (_, _) => self.on_renewal(now, &reply, source),
        }
    }

    /// The first usable offer is accepted: containers wait.
    fn on_offer(&mut self, now: Now, reply: &Message) -> Result<(), IgnoreReason> {
        let Phase::Selecting(exchange) = &self.phase else { return Err(IgnoreReason::NotAwaited) };
        let server = terms::server(reply).ok_or(IgnoreReason::Unusable)?;
        if !terms::is_host(reply.yiaddr) {
            return Err(IgnoreReason::Unusable);
        }
        let offer = Offer { address: reply.yiaddr, server };
        self.phase = Phase::Requesting(exchange.follow(now.at), offer);
        self.send_request(now);
        Ok(())
    }

    /// DHCPACK for an offer.
    fn on_grant(
        &mut self,
        now: Now,
        reply: &Message,
        source: Option<MacAddr>,
    ) -> Result<(), IgnoreReason> {
        let Phase::Requesting(exchange, offer) = &self.phase else {
            return Err(IgnoreReason::NotAwaited);
        };
        let (asked, offer) = (exchange.first, *offer);
        if terms::server(reply) != Some(offer.server) {
            return Err(IgnoreReason::OtherServer);
        }
        if reply.yiaddr != offer.address {
            return Err(IgnoreReason::Unusable);
        }
        match terms::lease(reply, source, self.moment(asked, now), None) {
            Ok(lease) => self.examine(lease, now),
            Err(TermsError::SubnetMask) => {
                self.send_release();
                let reason = FailReason::NoSubnetMask { server: offer.server };
                if self.is_first_search() {
                    self.fail(reason);
                } else {
                    let wait = self.setback();
                    self.restart(wait, now);
                }
            }
            Err(_) => return Err(IgnoreReason::Unusable),
        }
        Ok(())
    }

    /// DHCPNAK for an offer.
    fn on_refusal(&mut self, now: Now, reply: &Message) -> Result<(), IgnoreReason> {
        let Phase::Requesting(_, offer) = &self.phase else { return Err(IgnoreReason::NotAwaited) };
        let server = offer.server;
        if terms::server(reply) != Some(server) {
            return Err(IgnoreReason::OtherServer);
        }
        self.search.failure = FailReason::Refused { server };
        self.search.wanted = None;
        let wait = self.setback();
        self.restart(wait, now);
        Ok(())
    }

    /// DHCPACK for the lease in use.
    fn on_renewal(
        &mut self,
        now: Now,
        reply: &Message,
        source: Option<MacAddr>,
    ) -> Result<(), IgnoreReason> {
        let asked = self.asked().ok_or(IgnoreReason::NotAwaited)?;
        let renewed = terms::lease(reply, source, self.moment(asked, now), self.lease());
        let lease = renewed.map_err(|_| IgnoreReason::Unusable)?;
        if self.lease().is_some_and(|held| held.address.addr() == lease.address.addr()) {
            self.bind(lease, now);
        } else {
            // Not while the old address is in use: the new one is checked, and its lease runs from
            // now.
            self.drop_held(LostReason::Replaced, now);
            self.examine(lease, now);
        }
        Ok(())
    }

    /// DHCPNAK for the lease in use. During renewal only the server that granted it may send one;
    /// otherwise any server was asked.
    fn on_withdrawal(&mut self, now: Now, reply: &Message) -> Result<(), IgnoreReason> {
        let granted_by = self.lease().map(|lease| lease.server);
        let renewing = matches!(self.phase, Phase::Renewing(_));
        if renewing && terms::server(reply).is_some_and(|server| Some(server) != granted_by) {
            return Err(IgnoreReason::OtherServer);
        }
        let wait = self.setback();
        self.lose(LostReason::Refused, wait, now);
        Ok(())
    }

    /// Starts to check an address, or uses it unchecked.
    fn examine(&mut self, lease: Lease, now: Now) {
        match &self.config.probe {
            Some(timing) => {
                let next = now.at + self.random.up_to(timing.wait);
                self.phase = Phase::Probing(Box::new(Probe { lease, sent: 0, next }));
                if next == now.at {
                    self.probe(now);
                }
            }
            None => self.bind(lease, now),
        }
    }

    /// Returns when the message that is being answered was sent.
    fn asked(&self) -> Option<Timestamp> {
        match &self.phase {
            Phase::Rebooting(exchange) => Some(exchange.first),
            Phase::Renewing(renewal) | Phase::Rebinding(renewal) => Some(renewal.asked),
            _ => None,
        }
    }
}
