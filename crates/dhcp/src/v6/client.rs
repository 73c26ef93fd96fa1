//! The state machine: its states and its timing.
//!
//! The lease in use is in `held.rs`, the handling of replies in each state in `reply.rs`, the
//! messages in `send.rs`.

use std::collections::VecDeque;
use std::net::Ipv6Addr;
use std::time::Duration;

use super::exchange::Exchange;
use super::held::HeldLease;
use super::{Action, Config, FailReason, Lease, LostReason, MessageKind, SavedLease};
use crate::random::Random;
use crate::setback::Setbacks;
use crate::{Now, Timestamp};

/// RFC 8415 §7.6 SOL_MAX_RT.
const SOL_MAX_RT: Duration = Duration::from_secs(3600);

/// The longest wait after setbacks in a row.
const MAX_SETBACK: Duration = Duration::from_secs(120);

/// Only a few steps are ever due at once. If a bug makes more of them due, the caller must not
/// hang.
const MAX_STEPS: u32 = 32;

/// How a client starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// With nothing: SOLICIT.
    Fresh,
    /// With a lease from before a restart, whose addresses are configured and in use: CONFIRM
    /// (RFC 8415 §18.2.3), or RENEW or REBIND if it is time. The lease stays valid until it
    /// expires, whether or not a server answers. If it has expired, the first action is
    /// [`Action::Deconfigure`], and then its addresses are requested again.
    Reboot(Box<SavedLease>),
}

/// The client's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Waits before the first or next SOLICIT.
    Init,
    /// A SOLICIT was sent.
    Soliciting,
    /// A REQUEST was sent.
    Requesting,
    /// A CONFIRM was sent.
    Confirming,
    /// Has addresses and nothing to do.
    Bound,
    /// A RENEW was sent.
    Renewing,
    /// A REBIND was sent.
    Rebinding,
    /// A DECLINE was sent.
    Declining,
    /// A RELEASE was sent.
    Releasing,
    /// Ended: released, stopped or failed. Does nothing from then on.
    Ended,
}

/// A state with its data.
#[derive(Debug)]
pub(super) enum Phase {
    Init { until: Timestamp },
    Soliciting(Exchange, Option<Offer>),
    Requesting(Exchange, Offer),
    Confirming(Exchange),
    Bound,
    Renewing(Exchange),
    Rebinding(Exchange),
    Declining(Exchange, Offer),
    Releasing(Exchange, Offer),
    Ended,
}

/// A server and its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) server: Vec<u8>,
    pub(super) addresses: Vec<Ipv6Addr>,
    pub(super) preference: u8,
}

/// The search for a lease.
#[derive(Debug)]
pub(super) struct Search {
    /// When a first lease must have been obtained.
    pub(super) deadline: Option<Timestamp>,
    /// Why there is no lease yet.
    pub(super) failure: FailReason,
    /// The addresses to ask for.
    pub(super) wanted: Vec<Ipv6Addr>,
    pub(super) setbacks: Setbacks,
}

/// A stateful DHCPv6 client for one identity association on one link.
#[derive(Debug)]
pub struct Client {
    pub(super) config: Config,
    pub(super) random: Random,
    pub(super) actions: VecDeque<Action>,
    pub(super) phase: Phase,
    pub(super) held: Option<HeldLease>,
    pub(super) search: Search,
    pub(super) sol_max_rt: Duration,
}

impl Client {
    /// Creates a started client: its first actions can be polled. `seed` should differ between
    /// clients and runs.
    pub fn new(config: Config, start: Start, now: Now, seed: u64) -> Self {
        let deadline = match start {
            Start::Fresh => config.timing.acquire.map(|acquire| now.at + acquire),
            Start::Reboot(_) => None,
        };
        let mut client = Client {
            config,
            random: Random::new(seed),
            actions: VecDeque::new(),
            phase: Phase::Init { until: now.at },
            held: None,
            search: Search {
                deadline,
                failure: FailReason::NoServer,
                wanted: Vec::new(),
                setbacks: Setbacks::default(),
            },
            sol_max_rt: SOL_MAX_RT,
        };
        match start {
            Start::Fresh => {
                let delay = client.random.up_to(client.config.timing.first_delay);
                client.restart(delay, now);
            }
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
        let held = self.held.as_ref();
        let phase = match &self.phase {
            Phase::Init { until } => Some(*until),
            Phase::Bound => held.and_then(|held| held.t1),
            Phase::Ended => return None,
            _ => self.exchange().map(|exchange| exchange.next),
        };
        let t2 = match &self.phase {
            Phase::Renewing(_) => held.and_then(|held| held.t2),
            _ => None,
        };
        let expires = held.and_then(|held| held.ends.iter().flatten().min().copied());
        [phase, t2, expires, self.give_up_at()].into_iter().flatten().min()
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
            self.actions.push_back(Action::Failed(self.search.failure.clone()));
            self.end();
            return;
        }
        let due = |at: Option<Timestamp>| at.is_some_and(|at| at <= now.at);
        let t2 = self.held.as_ref().and_then(|held| held.t2);
        match &mut self.phase {
            Phase::Init { .. } => self.solicit(now),
            // The time for comparing servers is over (RFC 8415 §18.2.1).
            Phase::Soliciting(_, best @ Some(_)) => {
                if let Some(offer) = best.take() {
                    self.request(offer, now);
                }
            }
            Phase::Bound => self.resume(now),
            Phase::Renewing(_) if due(t2) => self.resume(now),
            Phase::Ended => {}
            _ => match self.exchange() {
                Some(exchange) if exchange.is_over(now.at) => self.in_vain(now),
                _ => self.send(now),
            },
        }
    }

    /// No server has answered for long enough.
    fn in_vain(&mut self, now: Now) {
        match &self.phase {
            Phase::Releasing(..) => self.end(),
            // RFC 8415 §18.2.2, §18.2.3, §18.2.8: existing addresses are used until they expire.
            _ if self.held.is_some() => self.resume(now),
            Phase::Declining(..) => self.restart(self.config.timing.after_decline, now),
            _ => {
                self.search.failure = FailReason::NoReply;
                self.solicit(now);
            }
        }
    }

    /// Enters the state that matches the lease's age.
    pub(super) fn resume(&mut self, now: Now) {
        self.resume_quietly(now);
        self.send(now);
    }

    fn resume_quietly(&mut self, now: Now) {
        let Some(held) = &self.held else { return };
        let due = |at: Option<Timestamp>| at.is_some_and(|at| at <= now.at);
        self.phase = if due(held.t2) {
            Phase::Rebinding(self.begin(MessageKind::Rebind, now))
        } else if due(held.t1) {
            Phase::Renewing(self.begin(MessageKind::Renew, now))
        } else {
            Phase::Bound
        };
    }

    /// Continues to renew, but not at once: a server that has just refused is not asked again
    /// without pause.
    pub(super) fn resume_later(&mut self, wait: Duration, now: Now) {
        self.resume_quietly(now);
        if let Some(exchange) = self.phase.exchange_mut() {
            exchange.next = now.at + wait;
        }
    }

    /// Another host uses one of the lease's addresses (the kernel marked it `dadfailed`): sends
    /// DECLINE, and continues with the others, or starts again.
    pub fn on_conflict(&mut self, now: Now, address: Ipv6Addr) {
        self.expire(now);
        let Some(held) = &mut self.held else { return };
        let Some(which) = held.lease.addresses.iter().position(|there| there.address == address)
        else {
            return;
        };
        let server = held.lease.server.clone();
        if held.lease.addresses.len() == 1 {
            self.drop_held(LostReason::Conflict { address });
        } else {
            let previous = Some(Box::new(held.lease.clone()));
            held.lease.addresses.remove(which);
            held.ends.remove(which);
            let lease = Box::new(held.lease.clone());
            self.actions.push_back(Action::Configure { lease, previous });
        }
        let offer = Offer { server, addresses: vec![address], preference: 0 };
        self.phase = Phase::Declining(self.begin(MessageKind::Decline, now), offer);
        self.send(now);
    }

    /// The link has a carrier and a usable link-local address now: pending messages are sent at
    /// once. Not needed for a link that was up at the start.
    pub fn on_carrier(&mut self, now: Now) {
        self.expire(now);
        if let Phase::Init { until } = &mut self.phase {
            // The delay before the first message only spreads hosts out; the wait after a setback
            // stays.
            if self.search.setbacks.is_none() && *until <= now.at + self.config.timing.first_delay {
                *until = now.at;
            }
        } else if let Some(exchange) = self.phase.exchange_mut() {
            exchange.again(now.at);
        }
        self.on_timer(now);
    }

    /// Renews the lease now instead of at T1, if there is one.
    pub fn renew(&mut self, now: Now) {
        self.expire(now);
        match self.phase {
            Phase::Bound => {
                self.phase = Phase::Renewing(self.begin(MessageKind::Renew, now));
                self.send(now);
            }
            Phase::Renewing(_) | Phase::Rebinding(_) => self.send(now),
            _ => {}
        }
    }

    /// Releases the lease: RELEASE is repeated until a server answers, four times at most, about
    /// fifteen seconds (RFC 8415 §18.2.7); the client may be dropped earlier. Without a lease it
    /// only ends.
    pub fn release(&mut self, now: Now) {
        self.drop_expired(now);
        if matches!(self.phase, Phase::Releasing(..) | Phase::Ended) {
            return;
        }
        let asked_for = match &self.phase {
            Phase::Requesting(_, offer) => Some(offer.clone()),
            _ => None,
        };
        let in_use = self.held.as_ref().map(|held| Offer {
            server: held.lease.server.clone(),
            addresses: held.lease.addresses.iter().map(|address| address.address).collect(),
            preference: 0,
        });
        self.drop_held(LostReason::Released);
        match in_use.or(asked_for) {
            Some(offer) => {
                self.search.deadline = None;
                self.phase = Phase::Releasing(self.begin(MessageKind::Release, now), offer);
                self.send(now);
            }
            None => self.end(),
        }
    }

    /// Ends without sending a message: for the server the lease still belongs to the client.
    pub fn stop(&mut self) {
        self.actions.clear();
        self.end();
    }

    pub(super) fn end(&mut self) {
        self.phase = Phase::Ended;
        self.held = None;
    }

    /// Returns the client's state.
    pub fn state(&self) -> State {
        match self.phase {
            Phase::Init { .. } => State::Init,
            Phase::Soliciting(..) => State::Soliciting,
            Phase::Requesting(..) => State::Requesting,
            Phase::Confirming(_) => State::Confirming,
            Phase::Bound => State::Bound,
            Phase::Renewing(_) => State::Renewing,
            Phase::Rebinding(_) => State::Rebinding,
            Phase::Declining(..) => State::Declining,
            Phase::Releasing(..) => State::Releasing,
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
        Some(SavedLease { duid: self.config.duid.clone(), iaid: self.config.iaid, lease })
    }

    pub(super) fn begin(&mut self, kind: MessageKind, now: Now) -> Exchange {
        Exchange::new(kind, &mut self.random, now.at)
    }

    fn solicit(&mut self, now: Now) {
        self.phase = Phase::Soliciting(self.begin(MessageKind::Solicit, now), None);
        self.send(now);
    }

    pub(super) fn request(&mut self, offer: Offer, now: Now) {
        self.phase = Phase::Requesting(self.begin(MessageKind::Request, now), offer);
        self.send(now);
    }

    /// Looks for a lease again after `wait`.
    pub(super) fn restart(&mut self, wait: Duration, now: Now) {
        if wait.is_zero() {
            self.solicit(now);
        } else {
            self.phase = Phase::Init { until: now.at + wait };
        }
    }

    /// Returns how long to wait after one more setback.
    pub(super) fn setback(&mut self) -> Duration {
        self.search.setbacks.one_more(MAX_SETBACK)
    }

    fn give_up_at(&self) -> Option<Timestamp> {
        match self.phase {
            Phase::Releasing(..) | Phase::Ended => None,
            _ => self.search.deadline,
        }
    }

    pub(super) fn exchange(&self) -> Option<&Exchange> {
        match &self.phase {
            Phase::Soliciting(exchange, _)
            | Phase::Requesting(exchange, _)
            | Phase::Confirming(exchange)
            | Phase::Renewing(exchange)
            | Phase::Rebinding(exchange)
            | Phase::Declining(exchange, _)
            | Phase::Releasing(exchange, _) => Some(exchange),
            Phase::Init { .. } | Phase::Bound | Phase::Ended => None,
        }
    }
}

impl Phase {
    pub(super) fn exchange_mut(&mut self) -> Option<&mut Exchange> {
        match self {
            Phase::Soliciting(exchange, _)
            | Phase::Requesting(exchange, _)
            | Phase::Confirming(exchange)
            | Phase::Renewing(exchange)
            | Phase::Rebinding(exchange)
            | Phase::Declining(exchange, _)
            | Phase::Releasing(exchange, _) => Some(exchange),
            Phase::Init { .. } | Phase::Bound | Phase::Ended => None,
        }
    }
}
