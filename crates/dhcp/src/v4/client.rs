//! The machine itself.

use std::collections::VecDeque;

use super::{Action, Config, Lease, SavedLease, Transmit};
use crate::frame::ArpPacket;
use crate::random::Random;
use crate::{MacAddr, Now, Timestamp};

/// How a client begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// With nothing: DISCOVER.
    Fresh,
    /// With a lease from before a restart, whose address is configured and in use: INIT-REBOOT. While the lease
    /// lasts it goes on holding, whether or not a server answers. If it is over, the first action is
    /// [`Action::Deconfigure`], and then its address is asked for again.
    Reboot(Box<SavedLease>),
}

/// Where a client stands (RFC 2131 §4.4, figure 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// INIT: waits before the first or next DISCOVER.
    Init,
    /// SELECTING: DISCOVER is out.
    Selecting,
    /// REQUESTING: REQUEST for an offer is out.
    Requesting,
    /// Granted, and examined before use.
    Probing,
    /// BOUND.
    Bound,
    /// RENEWING: asks the server that granted the lease.
    Renewing,
    /// REBINDING: asks any server.
    Rebinding,
    /// REBOOTING: asks for the saved lease.
    Rebooting,
    /// Over: released, stopped or failed. Does nothing any more.
    Ended,
}

/// A DHCPv4 client for one interface.
#[derive(Debug)]
pub struct Client {
    config: Config,
    state: State,
    lease: Option<Lease>,
    actions: VecDeque<Action>,
    random: Random,
}

impl Client {
    /// A client that has begun. `seed` should differ between clients and runs: transaction identifiers and
    /// jitter come from it.
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

    /// A UDP payload came to port 68, in a frame from `source` if that is known. Anything may be in it: what is
    /// not for this client, or not an answer to what it asked last, does nothing.
    pub fn on_packet(&mut self, now: Now, payload: &[u8], source: Option<MacAddr>) {
        let _ = (now, payload, source);
    }

    /// An ARP packet came. The client decides whether it is a conflict (RFC 5227 §2.1.1, §2.4).
    pub fn on_arp(&mut self, now: Now, packet: &ArpPacket) {
        let _ = (now, packet);
    }

    /// Another host is known to use the address that is being examined or used: DECLINE, and begin anew.
    pub fn on_conflict(&mut self, now: Now, holder: MacAddr) {
        let _ = (now, holder);
    }

    /// The link has a carrier now: whatever was sent before was lost, so what is due is sent at once. Not needed for
    /// a link that was up at the start.
    pub fn on_carrier(&mut self, now: Now) {
        let _ = now;
    }

    /// Renews the lease now instead of at T1, if there is one.
    pub fn renew(&mut self, now: Now) {
        let _ = now;
    }

    /// Gives the lease back and ends. Without a lease it just ends.
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
        Some(SavedLease { mac: self.config.mac, client_id: self.config.client_id.clone(), lease })
    }
}

/// The message that releases a lease whose client is gone, for instance one found after a restart.
/// Nothing is awaited: servers do not answer it.
pub fn release_message(saved: &SavedLease, seed: u64) -> Transmit {
    let _ = seed;
    Transmit {
        payload: Vec::new(),
        from: saved.lease.address.addr(),
        to: saved.lease.server,
        how: super::How::Unicast { hint: saved.lease.server_mac },
        kind: super::MessageKind::Release,
    }
}
