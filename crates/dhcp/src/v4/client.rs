//! The state machine: its states and its timing.
//!
//! The lease in use is in `held.rs`, the handling of replies in each state in `reply.rs`, conflicts
//! and probes in `conflict.rs`, the messages in `send.rs`.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::Duration;

use super::exchange::{Exchange, Renewal};
use super::held::HeldLease;
use super::{Action, Config, FailReason, Lease, LostReason, SavedLease};
use crate::random::Random;
use crate::setback::Setbacks;
use crate::{Now, Timestamp};

/// The longest wait after setbacks in a row.
const MAX_SETBACK: Duration = Duration::from_secs(64);

/// Only a few steps are ever due at once. If a bug makes more of them due, the caller must not
/// hang.
const MAX_STEPS: u32 = 32;

/// How long an infinite lease that is renewed all the same is requested for.
const INFINITE_RENEWAL: Duration = Duration::from_secs(64);

/// How a client starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// With nothing: DISCOVER.
    Fresh,
    /// With a lease from before a restart, whose address is configured and in use: INIT-REBOOT. The
    /// lease stays valid until it expires, whether or not a server answers. If it has expired, the
    /// first action is [`Action::Deconfigure`], and then its address is requested again.
    Reboot(Box<SavedLease>),
}

/// The client's state (RFC 2131 §4.4, figure 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// INIT: waits before the first or next DISCOVER.
    Init,
    /// SELECTING: a DISCOVER was sent.
    Selecting,
    /// REQUESTING: a REQUEST for an offer was sent.
    Requesting,
    /// Granted, and being checked before use.
    Probing,
    /// BOUND.
    Bound,
    /// RENEWING: asks the server that granted the lease.
    Renewing,
    /// REBINDING: asks any server.
    Rebinding,
    /// REBOOTING: asks for the saved lease.
    Rebooting,
    /// Ended: released, stopped or failed. Does nothing from then on.
    Ended,
}

/// A state with its data.
#[derive(Debug)]
pub(super) enum Phase {
    Init { until: Timestamp },
    Selecting(Exchange),
    Requesting(Exchange, Offer),
    Probing(Box<Probe>),
    Bound,
    Renewing(Renewal),
    Rebinding(Renewal),
    Rebooting(Exchange),
    Ended,
}

/// An address that was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) address: Ipv4Addr,
    pub(super) server: Ipv4Addr,
}

/// An address that is examined.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) lease: Lease,
    pub(super) sent: u32,
    pub(super) next: Timestamp,
}

/// The search for a lease.
#[derive(Debug)]
pub(super) struct Search {
    pub(super) began: Timestamp,
    /// When a first lease must have been obtained.
    pub(super) deadline: Option<Timestamp>,
    /// Why there is no lease yet.
    pub(super) failure: FailReason,
    /// The address to ask for.
    pub(super) wanted: Option<Ipv4Addr>,
    pub(super) setbacks: Setbacks,
    pub(super) conflicts: u32,
}

/// Announcements still to send.
#[derive(Debug)]
pub(super) struct Announcements {
    pub(super) left: u32,
    pub(super) next: Timestamp,
}

/// A DHCPv4 client for one interface.
#[derive(Debug)]
pub struct Client {
    pub(super) config: Config,
    pub(super) random: Random,
    pub(super) actions: VecDeque<Action>,
    pub(super) phase: Phase,
    pub(super) held: Option<HeldLease>,
    pub(super) search: Search,
    pub(super) announcing: Option<Announcements>,
    /// When the address in use was last defended.
    pub(super) defended: Option<Timestamp>,
}

impl Client {
    /// Creates a started client: its first actions can be polled. `seed` should differ between
    /// clients and runs: transaction identifiers and jitter come from it.
    pub fn new(config: Config, start: Start, now: Now, seed: u64) -> Self {
        let deadline = match start {
            Start::Fresh => config.timing.acquire.map(|acquire| now.at + acquire),
            Start::Reboot(_) => None,
        };
        let search = Search {
            began: now.at,
            deadline,
            failure: FailReason::NoOffer,
            wanted: None,
            setbacks: Setbacks::default(),
            conflicts: 0,
        };
        let mut client = Client {
            config,
            random: Random::new(seed),
            actions: VecDeque::new(),
            phase: Phase::Init { until: now.at },
            held: None,
            search,
            announcing: None,
            defended: None,
        };
        match start {
            Start::Fresh => client.discover(now),
            Start::Reboot(saved) => client.reboot(saved.lease, now),
        }
        client
    }

    /// Returns the next action, if any. Call this until it returns `None` after each other call.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to call [`Client::on_timer`] next, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let phase = match &self.phase {
            Phase::Init { until } => Some(*until),
            Phase::Selecting(exchange)
            | Phase::Requesting(exchange, _)
            | Phase::Rebooting(exchange) => Some(exchange.next),
            Phase::Probing(probing) => Some(probing.next),
            Phase::Bound => self.times().map(|times| times.t1),
            Phase::Renewing(renewal) => Some(renewal.until.min(renewal.next)),
            Phase::Rebinding(renewal) => Some(renewal.next),
            Phase::Ended => return None,
        };
        let expires = self.times().map(|times| times.expires);
        let announce = self.announcing.as_ref().map(|announcing| announcing.next);
        [phase, expires, self.give_up_at(), announce].into_iter().flatten().min()
    }

    /// Handles the passing of time. Does nothing before [`Client::next_deadline`].
    pub fn on_timer(&mut self, now: Now) {
        // Each step moves the deadline on, or ends a state; waits are never zero.
        for _ in 0..MAX_STEPS {
            if self.next_deadline().is_none_or(|deadline| now.at < deadline) {
                return;
            }
            self.step(now);
        }
    }

    fn step(&mut self, now: Now) {
        if self.expire(now) {
            return;
        }
        if self.give_up_at().is_some_and(|deadline| deadline <= now.at) {
            self.actions.push_back(Action::Failed(self.search.failure));
            self.phase = Phase::Ended;
            return;
        }
        self.announce_if_due(now);
        let times = self.times();
        match &mut self.phase {
            Phase::Init { until } if *until <= now.at => self.discover(now),
            Phase::Selecting(exchange) if exchange.next <= now.at => self.send_discover(now),
            Phase::Requesting(exchange, offer) if exchange.next <= now.at => {
                if exchange.sent < self.config.timing.request_tries {
                    self.send_request(now);
                } else {
                    self.search.failure = FailReason::NoAck { server: offer.server };
                    self.discover(now);
                }
            }
            Phase::Rebooting(exchange) if exchange.next <= now.at => {
                if exchange.sent < self.config.timing.request_tries {
                    self.request_saved(now);
                } else {
                    // RFC 2131 §3.2, 4: no server answers, so the lease is used until it expires.
                    self.resume(now);
                }
            }
            Phase::Probing(probing) if probing.next <= now.at => self.probe(now),
            Phase::Bound if times.is_some_and(|times| times.t1 <= now.at) => self.resume(now),
            Phase::Renewing(renewal) if renewal.until <= now.at => self.resume(now),
            Phase::Renewing(renewal) | Phase::Rebinding(renewal) if renewal.next <= now.at => {
                self.send_renewal(now);
            }
            _ => {}
        }
    }

    /// Enters the state that matches the lease's age.
    fn resume(&mut self, now: Now) {
        let Some(times) = self.times().filter(|times| times.t1 <= now.at) else {
            self.phase = Phase::Bound;
            return;
        };
        self.phase = if now.at < times.t2 {
            Phase::Renewing(Renewal::new(now.at, times.t2))
        } else {
            Phase::Rebinding(Renewal::new(now.at, times.expires))
        };
        self.send_renewal(now);
    }

    /// The link has a carrier now: everything sent before was lost, so pending messages are sent at
    /// once. Not needed for a link that was up at the start.
    pub fn on_carrier(&mut self, now: Now) {
        if self.expire(now) {
            return;
        }
        match &mut self.phase {
            Phase::Selecting(exchange)
            | Phase::Requesting(exchange, _)
            | Phase::Rebooting(exchange) => exchange.again(now.at),
            Phase::Renewing(renewal) | Phase::Rebinding(renewal) => renewal.next = now.at,
            Phase::Probing(probing) => (probing.sent, probing.next) = (0, now.at),
            Phase::Init { .. } | Phase::Bound | Phase::Ended => return,
        }
        self.on_timer(now);
    }

    /// Renews the lease now instead of at T1, if there is one.
    pub fn renew(&mut self, now: Now) {
        if self.expire(now) {
            return;
        }
        match &mut self.phase {
            Phase::Bound => {
                let until = self.times().map_or(now.at + INFINITE_RENEWAL, |times| times.t2);
                self.phase = Phase::Renewing(Renewal::new(now.at, until));
                self.send_renewal(now);
            }
            Phase::Renewing(_) | Phase::Rebinding(_) => self.send_renewal(now),
            _ => {}
        }
    }

    /// Releases the lease and ends. Without a lease it only ends.
    pub fn release(&mut self, now: Now) {
        self.drop_expired(now);
        self.send_release();
        if let Some(held) = self.held.take() {
            self.actions.push_back(Action::Deconfigure {
                lease: Box::new(held.lease),
                reason: LostReason::Released,
            });
        }
        self.end();
    }

    /// Ends without sending a message: for the server the lease still belongs to the client.
    pub fn stop(&mut self) {
        self.actions.clear();
        self.end();
    }

    fn end(&mut self) {
        self.phase = Phase::Ended;
        self.held = None;
        self.announcing = None;
    }

    /// Returns the client's state.
    pub fn state(&self) -> State {
        match self.phase {
            Phase::Init { .. } => State::Init,
            Phase::Selecting(_) => State::Selecting,
            Phase::Requesting(..) => State::Requesting,
            Phase::Probing(_) => State::Probing,
            Phase::Bound => State::Bound,
            Phase::Renewing(_) => State::Renewing,
            Phase::Rebinding(_) => State::Rebinding,
            Phase::Rebooting(_) => State::Rebooting,
            Phase::Ended => State::Ended,
        }
    }

    /// The lease in use: that of the last [`Action::Configure`], or the saved one.
    pub fn lease(&self) -> Option<&Lease> {
        self.held.as_ref().map(|held| &held.lease)
    }

    /// The lease in use, in the form to save.
    pub fn saved(&self) -> Option<SavedLease> {
        let lease = self.lease()?.clone();
        Some(SavedLease { mac: self.config.mac, client_id: self.client_id(), lease })
    }

    /// Starts to look for a lease with a new transaction.
    pub(super) fn discover(&mut self, now: Now) {
        self.phase = Phase::Selecting(Exchange::new(&mut self.random, now.at));
        self.send_discover(now);
    }

    /// Looks for a lease again after `wait`.
    pub(super) fn restart(&mut self, wait: Duration, now: Now) {
        if wait.is_zero() {
            self.discover(now);
        } else {
            self.phase = Phase::Init { until: now.at + wait };
        }
    }

    /// Returns how long to wait after one more setback.
    pub(super) fn setback(&mut self) -> Duration {
        self.search.setbacks.one_more(MAX_SETBACK)
    }

    /// An address that is being checked is not given up because of the deadline.
    fn give_up_at(&self) -> Option<Timestamp> {
        match self.phase {
            Phase::Init { .. } | Phase::Selecting(_) | Phase::Requesting(..) => {
                self.search.deadline
            }
            _ => None,
        }
    }

    /// Whether the client never had a lease and has a deadline for the first one.
    pub(super) fn is_first_search(&self) -> bool {
        self.search.deadline.is_some()
    }

    pub(super) fn fail(&mut self, reason: FailReason) {
        self.actions.push_back(Action::Failed(reason));
        self.end();
    }
}
