//! The machine itself.

use std::collections::VecDeque;
use std::net::Ipv6Addr;

use super::{Action, Config, Lease, MessageKind, SavedLease, Transmit};
use crate::random::Random;
use crate::{Now, Timestamp};

/// How a client begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// With nothing: SOLICIT.
    Fresh,
    /// With a lease from before a restart, whose addresses are configured and in use: CONFIRM (RFC 8415 §18.2.3),
    /// or RENEW or REBIND if it is time. While the lease lasts it goes on holding, whether or not a server answers.
    /// If it is over, the first action is [`Action::Deconfigure`], and then its addresses are asked for again.
    Reboot(Box<SavedLease>),
}

/// Where a client stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Waits before the first or next SOLICIT.
    Init,
    /// SOLICIT is out.
    Soliciting,
    /// REQUEST is out.
    Requesting,
    /// CONFIRM is out.
    Confirming,
    /// Has addresses, and nothing to do.
    Bound,
    /// RENEW is out.
    Renewing,
    /// REBIND is out.
    Rebinding,
    /// DECLINE is out.
    Declining,
    /// RELEASE is out.
    Releasing,
    /// Over: released, stopped or failed. Does nothing any more.
    Ended,
}

/// A stateful DHCPv6 client for one identity association on one link.
#[derive(Debug)]
pub struct Client {
    config: Config,
    state: State,
    lease: Option<Lease>,
    actions: VecDeque<Action>,
    random: Random,
}

impl Client {
    /// A client that has begun. `seed` should differ between clients and runs.
    pub fn new(config: Config, start: Start, now: Now, seed: u64) -> Self {
        let _ = (start, now);
        let random = Random::new(seed);
        Client { config, state: State::Init, lease: None, actions: VecDeque::new(), random }
    }

    /// The next thing to do, if any. To be called until there is none after each other call.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call [`Client::on_timer`] next, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        None
    }

    /// Time has passed. Does nothing before [`Client::next_deadline`].
    pub fn on_timer(&mut self, now: Now) {
        let _ = now;
    }

    /// A UDP payload came to port 546. Anything may be in it: what is not for this client, or not an answer to
    /// what it asked last, does nothing.
    pub fn on_packet(&mut self, now: Now, payload: &[u8]) {
        let _ = (now, payload);
    }

    /// Another host uses one of the lease's addresses (the kernel marked it `dadfailed`): DECLINE, and begin anew.
    pub fn on_conflict(&mut self, now: Now, address: Ipv6Addr) {
        let _ = (now, address);
    }

    /// The link has a carrier and a usable link-local address now: what is due is sent at once. Not needed for a
    /// link that was up at the start.
    pub fn on_carrier(&mut self, now: Now) {
        let _ = now;
    }

    /// Renews the lease now instead of at T1, if there is one.
    pub fn renew(&mut self, now: Now) {
        let _ = now;
    }

    /// Gives the lease back: RELEASE is repeated until a server answers, four times at most, about seventeen
    /// seconds (RFC 8415 §18.2.7); the client may be dropped earlier. Without a lease it just ends.
    pub fn release(&mut self, now: Now) {
        let _ = now;
        self.state = State::Ended;
    }

    /// Ends without telling anybody: the lease stays the client's at the server.
    pub fn stop(&mut self) {
        self.state = State::Ended;
        self.actions.clear();
    }

    /// Where the client stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// The lease in use: what the last [`Action::Configure`] carried, or the saved one.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// The lease in use, as it is to be saved.
    pub fn saved(&self) -> Option<SavedLease> {
        let lease = self.lease.clone()?;
        Some(SavedLease { duid: self.config.duid.clone(), iaid: self.config.iaid, lease })
    }
}

/// The message that releases a lease whose client is gone, for instance one found after a restart.
pub fn release_message(saved: &SavedLease, seed: u64) -> Transmit {
    let _ = (saved, seed);
    Transmit { payload: Vec::new(), to: super::SERVERS, kind: MessageKind::Release }
}
