//! Replies: which are accepted, and what they change (RFC 8415 §16, §18.2.9, §18.2.10).

use std::time::Duration;

use super::client::{Offer, Phase};
use super::message::{Association, Kind, Message, Status, code};
use super::{Client, FailReason, LostReason, terms};
use crate::{IgnoreReason, Now, ReceiveOutcome};

/// RFC 8415 §18.2.1: a server with this preference is not compared with others.
const HIGHEST: u8 = 255;

/// How long to wait before asking again a server that does not know the lease and refuses to renew
/// it; REN_TIMEOUT.
const MIN_RENEW_DELAY: Duration = Duration::from_secs(10);

impl Client {
    /// Handles a UDP payload to port 546. Its content may be anything: a payload that is not for
    /// this client, or does not answer its last request, does nothing. The return value is for
    /// logs.
    pub fn on_packet(&mut self, now: Now, payload: &[u8]) -> ReceiveOutcome {
        // A reply that arrives after an address has expired no longer renews it, whether or not the
        // timer was first.
        self.expire(now);
        self.receive(now, payload).into()
    }

    fn receive(&mut self, now: Now, payload: &[u8]) -> Result<(), IgnoreReason> {
        let reply = Message::parse(payload).map_err(|_| IgnoreReason::Malformed)?;
        if !matches!(reply.kind, Kind::Advertise | Kind::Reply) {
            return Err(IgnoreReason::NotAReply);
        }
        // §16.3, §16.10: a reply must contain a server identifier, and the client's own.
        if reply.option(code::CLIENT_ID) != Some(self.config.duid.as_bytes()) {
            return Err(IgnoreReason::OtherClient);
        }
        let server = terms::server(&reply).ok_or(IgnoreReason::Unusable)?;
        if self.exchange().is_none_or(|exchange| exchange.xid != reply.xid) {
            return Err(IgnoreReason::NotAwaited);
        }
        if let Some(asked) = self.asked_server()
            && asked != server
        {
            return Err(IgnoreReason::OtherServer);
        }
        match (&self.phase, reply.kind) {
            (Phase::Soliciting(..), Kind::Advertise) => self.on_advertise(now, &reply),
            (Phase::Soliciting(..), _) => {
                // §18.2.1: a client accepts an immediate reply only if it asked for one and the
                // reply is marked as one.
                if !self.config.rapid_commit || reply.option(code::RAPID_COMMIT).is_none() {
                    return Err(IgnoreReason::NotAwaited);
                }
                self.on_grant(now, &reply)
            }
            (_, Kind::Advertise) => Err(IgnoreReason::NotAwaited),
            (Phase::Requesting(..), _) => self.on_grant(now, &reply),
            (Phase::Confirming(_), _) => self.on_confirmation(now, &reply),
            (Phase::Renewing(_) | Phase::Rebinding(_), _) => self.on_renewal(now, &reply),
            (Phase::Declining(..), _) => {
                if self.held.is_some() {
                    self.resume(now);
                } else {
                    self.restart(self.config.timing.after_decline, now);
                }
                Ok(())
            }
            (Phase::Releasing(..), _) => {
                self.end();
                Ok(())
            }
            (Phase::Init { .. } | Phase::Bound | Phase::Ended, _) => Err(IgnoreReason::NotAwaited),
        }
    }

    /// The server that was asked, if it was a single one.
    fn asked_server(&self) -> Option<&[u8]> {
        match &self.phase {
            Phase::Requesting(_, offer)
            | Phase::Declining(_, offer)
            | Phase::Releasing(_, offer) => Some(&offer.server),
            Phase::Renewing(_) => self.lease().map(|lease| lease.server.as_slice()),
            _ => None,
        }
    }

    /// §18.2.9.
    fn on_advertise(&mut self, now: Now, advertise: &Message) -> Result<(), IgnoreReason> {
        // Even from a server that has no addresses.
        self.take_sol_max_rt(advertise);
        let association = terms::association(advertise, self.config.iaid);
        let status =
            terms::status(advertise, association.as_ref()).ok_or(IgnoreReason::Unusable)?;
        let addresses: Vec<_> = match association {
            Some(association) if status.code == Status::SUCCESS => association
                .addresses
                .iter()
                .filter(|option| 0 < option.valid_s)
                .map(|option| option.address)
                .collect(),
            _ => Vec::new(),
        };
        if addresses.is_empty() {
            self.note(status);
            return Err(IgnoreReason::Unusable);
        }
        let server = terms::server(advertise).ok_or(IgnoreReason::Unusable)?.to_vec();
        let preference = terms::preference(advertise);
        let offer = Offer { server, addresses, preference };
        let first_offer = self.config.first_offer;
        let Phase::Soliciting(exchange, best) = &mut self.phase else {
            return Err(IgnoreReason::NotAwaited);
        };
        // §18.2.1: after the first wait, the first advertisement is accepted.
        if preference == HIGHEST || first_offer || 1 < exchange.sent {
            self.request(offer, now);
        } else if best.as_ref().is_none_or(|best| best.preference < preference) {
            *best = Some(offer);
        }
        Ok(())
    }

    /// REPLY with the first addresses, or with those for a binding that the server had lost
    /// (§18.2.10.1).
    fn on_grant(&mut self, now: Now, reply: &Message) -> Result<(), IgnoreReason> {
        self.take_sol_max_rt(reply);
        let association = terms::association(reply, self.config.iaid);
        let status = terms::status(reply, association.as_ref()).ok_or(IgnoreReason::Unusable)?;
        if let Some(association) = association.filter(|_| status.code == Status::SUCCESS)
            && self.update(now, reply, &association)
        {
            return Ok(());
        }
        let code = status.code;
        self.note(status);
        match code {
            Status::SUCCESS | Status::NO_ADDRESSES | Status::NO_BINDING | Status::NOT_ON_LINK => {}
            // UnspecFail and unknown codes: the message is resent as if no reply had come.
            _ => return Err(IgnoreReason::Unusable),
        }
        let wait = self.setback();
        match (code, self.held.is_some()) {
            (Status::NOT_ON_LINK, true) => self.lose(LostReason::Refused, wait, now),
            // Addresses in use stay until they expire.
            (_, true) => self.resume_later(wait.max(MIN_RENEW_DELAY), now),
            (_, false) => self.restart(wait, now),
        }
        Ok(())
    }

    /// REPLY to CONFIRM (§18.2.10.2): on the link or not; it contains nothing else.
    fn on_confirmation(&mut self, now: Now, reply: &Message) -> Result<(), IgnoreReason> {
        match terms::status(reply, None).ok_or(IgnoreReason::Unusable)?.code {
            Status::SUCCESS => self.resume(now),
            Status::NOT_ON_LINK => {
                let wait = self.setback();
                self.lose(LostReason::Refused, wait, now);
            }
            _ => return Err(IgnoreReason::Unusable),
        }
        Ok(())
    }

    /// REPLY to RENEW or REBIND (§18.2.10.1).
    fn on_renewal(&mut self, now: Now, reply: &Message) -> Result<(), IgnoreReason> {
        self.take_sol_max_rt(reply);
        let association = terms::association(reply, self.config.iaid);
        let status = terms::status(reply, association.as_ref()).ok_or(IgnoreReason::Unusable)?;
        match (status.code, association) {
            (Status::SUCCESS, Some(association)) if !association.addresses.is_empty() => {
                if !self.update(now, reply, &association) {
                    let wait = self.setback();
                    self.lose(LostReason::Refused, wait, now);
                }
            }
            // The server has lost the binding: it is asked to bind what is in use.
            (Status::NO_BINDING, _) => {
                let server = terms::server(reply).ok_or(IgnoreReason::Unusable)?.to_vec();
                let held = self.lease().map(|lease| lease.addresses.as_slice());
                let addresses =
                    held.unwrap_or_default().iter().map(|address| address.address).collect();
                self.request(Offer { server, addresses, preference: 0 }, now);
            }
            (Status::NOT_ON_LINK, _) => {
                let wait = self.setback();
                self.lose(LostReason::Refused, wait, now);
            }
            // No addresses, no association, some failure: renewing continues.
            _ => return Err(IgnoreReason::Unusable),
        }
        Ok(())
    }

    /// Applies what a reply grants. Says whether an address is left.
    fn update(&mut self, now: Now, reply: &Message, association: &Association) -> bool {
        let asked = self.exchange().map_or(now.at, |exchange| exchange.asked);
        let lease = terms::lease(reply, association, self.moment(asked, now), self.lease());
        match lease {
            Some(lease) => {
                self.bind(lease, now);
                true
            }
            None => false,
        }
    }

    /// Records why there are no addresses: success without any counts as none available.
    fn note(&mut self, status: Status) {
        let Status { code, message } = status;
        let status = if code == Status::SUCCESS { Status::NO_ADDRESSES } else { code };
        self.search.failure = FailReason::Status { status, message };
    }

    fn take_sol_max_rt(&mut self, message: &Message) {
        if let Some(sol_max_rt) = terms::sol_max_rt(message) {
            self.sol_max_rt = sol_max_rt;
        }
    }
}
