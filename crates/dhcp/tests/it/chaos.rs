//! A network that loses, doubles, delays and reorders packets, servers that go away, and a client
//! that is killed and started again. This file has what both families share. The invariants hold at
//! every step.

use std::collections::BTreeMap;
use std::fmt::Debug;

use netwright_dhcp::Now;

use crate::bench::{BOOT, BenchAction, Machine, at};
use crate::chance::Chance;

/// The longest delay of a packet.
pub(crate) const LATEST_MS: u64 = 20_000;

/// What a server does.
pub(crate) trait Server: Debug {
    fn answer(
        &mut self,
        chance: &mut Chance,
        payload: &[u8],
        now: u64,
        chaos: bool,
    ) -> Option<Vec<u8>>;
    /// Forgets all leases.
    fn forget(&mut self);
}

/// What differs between the families: the servers, and the invariants.
pub(crate) trait Family: Debug + Sized {
    type Client: Machine + Debug;
    type Server: Server;

    /// How long the chaos lasts, and then how long the client has to be bound again.
    const CHAOS_MS: u64;
    const PEACE_MS: u64;

    fn begin(chance: &mut Chance) -> (Self, <Self::Client as Machine>::Config, [Self::Server; 2]);
    /// Whether a message reaches a server.
    fn reaches(transmit: &Transmit<Self>, server: &Self::Server) -> bool;
    /// Another host has the client's address.
    fn conflict(client: &mut Self::Client, now: Now, in_use: Option<&Lease<Self>>);
    /// Checks that the client may send this with that lease in use.
    fn check_sent(&mut self, transmit: &Transmit<Self>, in_use: Option<&Lease<Self>>);
    /// Checks an action that only this family has.
    fn check_other(&self, action: &<Self::Client as Machine>::Action, in_use: Option<&Lease<Self>>);
    /// Checks that the lease in use is allowed.
    fn check_lease(servers: &[Self::Server; 2], lease: &Lease<Self>, now: u64);
}

pub(crate) type Lease<F> = <<F as Family>::Client as Machine>::Lease;
pub(crate) type Transmit<F> = <<F as Family>::Client as Machine>::Transmit;

#[derive(Debug)]
pub(crate) struct World<F: Family> {
    family: F,
    chance: Chance,
    pub(crate) now: u64,
    pub(crate) client: F::Client,
    config: <F::Client as Machine>::Config,
    servers: [F::Server; 2],
    up: [bool; 2],
    /// Packets by time of arrival, each with its receiver: a server's number, or the client.
    flying: BTreeMap<(u64, u64), (Option<usize>, Vec<u8>)>,
    serial: u64,
    /// How late the next timer is.
    late: u64,
    pub(crate) configured: Option<Lease<F>>,
    saved: Option<String>,
    pub(crate) sent: u64,
    pub(crate) bound: u64,
}

impl<F: Family> World<F> {
    pub(crate) fn new(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let (family, config, servers) = F::begin(&mut chance);
        let start = F::Client::start(None);
        let client = F::Client::begin(config.clone(), start, at(BOOT), chance.next());
        World {
            family,
            chance,
            now: BOOT,
            client,
            config,
            servers,
            up: [true; 2],
            flying: BTreeMap::new(),
            serial: 0,
            late: 0,
            configured: None,
            saved: None,
            sent: 0,
            bound: 0,
        }
    }

    fn chaos(&self) -> bool {
        self.now < BOOT + F::CHAOS_MS
    }

    fn fly(&mut self, to: Option<usize>, payload: &[u8]) {
        let copies = match (self.chaos(), self.chance.below(100)) {
            (true, 0..25) => 0,
            (true, 25..40) => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let late = self.chaos() && self.chance.percent(10);
            let delay = self.chance.below(if late { LATEST_MS } else { 40 });
            self.serial += 1;
            self.flying.insert((self.now + delay, self.serial), (to, payload.to_vec()));
        }
    }

    /// Does the client's actions, and checks that each is allowed.
    fn drain(&mut self) {
        while let Some(action) = self.client.poll_action() {
            let in_use = self.configured.as_ref();
            match F::Client::wants(&action) {
                BenchAction::Send(transmit) => {
                    self.sent += 1;
                    self.family.check_sent(transmit, in_use);
                    for number in 0..self.servers.len() {
                        if F::reaches(transmit, &self.servers[number]) {
                            self.fly(Some(number), F::Client::payload(transmit));
                        }
                    }
                }
                BenchAction::Configure(lease, previous) => {
                    assert_eq!(previous, in_use);
                    self.bound += 1;
                    self.configured = Some(lease.clone());
                    // The client may have given up the lease that it had just got.
                    let saved = self.client.saved();
                    self.saved = saved.map(|saved| serde_json::to_string(&saved).unwrap());
                }
                BenchAction::Deconfigure(lease) => {
                    assert_eq!(Some(lease), in_use);
                    self.configured = None;
                    self.saved = None;
                }
                BenchAction::Other => self.family.check_other(&action, in_use),
            }
        }
        assert_eq!(self.client.lease(), self.configured.as_ref());
        if let Some(lease) = &self.configured {
            F::check_lease(&self.servers, lease, self.now);
        }
    }

    fn deadline(&self) -> u64 {
        let deadline = self.client.next_deadline();
        deadline.expect("there is always something to wait for").as_millis()
    }

    /// Something happens to the servers, the client or an address.
    fn upset(&mut self) {
        let which = usize::try_from(self.chance.below(2)).unwrap();
        let now = at(self.now);
        match self.chance.below(8) {
            0 => return self.up[which] = false,
            1 | 2 => return self.up[which] = true,
            3 => return self.servers[which].forget(),
            4 => self.client.on_carrier(now),
            5 => self.client.renew(now),
            6 => F::conflict(&mut self.client, now, self.configured.as_ref()),
            _ => {
                // kill -9: the pending actions are lost.
                let saved = self.saved.as_ref().map(|saved| serde_json::from_str(saved).unwrap());
                let (start, seed) = (F::Client::start(saved), self.chance.next());
                self.client = F::Client::begin(self.config.clone(), start, now, seed);
            }
        }
        self.drain();
    }

    pub(crate) fn run(&mut self) {
        self.drain();
        let mut next_upset = BOOT;
        while self.now < BOOT + F::CHAOS_MS + F::PEACE_MS {
            let timer = self.deadline() + self.late;
            let arrival = self.flying.keys().next().map_or(u64::MAX, |(at, _)| *at);
            let upset = if self.chaos() { next_upset } else { u64::MAX };
            self.now = self.now.max(timer.min(arrival).min(upset));
            if upset <= self.now {
                next_upset = self.now + self.chance.below(120_000);
                self.upset();
            } else if arrival <= self.now {
                let (_, (to, payload)) = self.flying.pop_first().unwrap();
                self.deliver(to, &payload);
            } else {
                self.client.on_timer(at(self.now));
                self.drain();
                let deadline = self.deadline();
                assert!(self.now < deadline, "{deadline} is over: it spins");
                let busy = self.chaos() && self.chance.percent(20);
                self.late = if busy { self.chance.below(3000) } else { 0 };
            }
            if !self.chaos() {
                self.up = [true; 2];
            }
        }
    }

    fn deliver(&mut self, to: Option<usize>, payload: &[u8]) {
        let (chaos, chance) = (self.chaos(), &mut self.chance);
        match to {
            Some(number) if self.up[number] => {
                let server = &mut self.servers[number];
                if let Some(reply) = server.answer(chance, payload, self.now, chaos) {
                    self.fly(None, &reply);
                }
            }
            Some(_) => {}
            None => {
                self.client.on_packet(at(self.now), payload);
                self.drain();
            }
        }
    }
}
