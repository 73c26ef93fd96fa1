//! DHCPv6: a client, servers and a network that loses, doubles, delays and reorders, with servers that forget, refuse and
//! go away, and a client that is killed and started again. What must hold, holds at every step.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::time::Duration;

use netwright_dhcp::v6::{Action, Client, Config, Lease, MessageKind, SavedLease, Start, State};
use netwright_dhcp::{Now, Timestamp, UnixTime};

use crate::chance::Chance;
use crate::support::{BOOT, WALL};
use crate::support6::*;

/// How long chaos reigns, and then how long the client has to be bound again: SOL_MAX_RT and a tenth, twice.
const CHAOS_MS: u64 = 3 * 3600 * 1000;
const PEACE_MS: u64 = 8000 * 1000;

/// The longest a packet flies.
const LATEST_MS: u64 = 20_000;

#[derive(Debug)]
struct Server {
    id: &'static [u8],
    number: u16,
    next_host: u16,
    up: bool,
    /// Addresses and until when they are the client's.
    leases: BTreeMap<Ipv6Addr, u64>,
    /// The same, without ever forgetting.
    granted: BTreeMap<Ipv6Addr, u64>,
    valid_s: u32,
}

impl Server {
    fn fresh(&mut self) -> Ipv6Addr {
        self.next_host += 1;
        Ipv6Addr::new(0x2001, 0xdb8, self.number, 0, 0, 0, 0, self.next_host)
    }

    fn grant(&mut self, mut reply: Reply, addresses: &[Ipv6Addr], now: u64) -> Reply {
        for address in addresses {
            let until = now + u64::from(self.valid_s) * 1000;
            self.leases.insert(*address, until);
            self.granted.insert(*address, until);
        }
        let lasting = |address: &Ipv6Addr| (*address, self.valid_s / 2, self.valid_s);
        reply.addresses = addresses.iter().map(lasting).collect();
        reply
    }

    fn answer(
        &mut self,
        chance: &mut Chance,
        payload: &[u8],
        now: u64,
        chaos: bool,
    ) -> Option<Vec<u8>> {
        let read = Read::new(payload);
        if read.option(2).is_some_and(|server| server != self.id) {
            return None;
        }
        let addresses = read.addresses();
        let own: Vec<_> =
            addresses.iter().copied().filter(|there| self.leases.contains_key(there)).collect();
        let reply = Reply::new(REPLY, payload).with(2, self.id);
        let bare = Reply { association: false, ..reply.clone() };
        let upset = chaos && chance.percent(10);
        let reply = match read.kind {
            1 => {
                let known = self.leases.keys().next().copied();
                let mut offered = vec![known.unwrap_or_else(|| self.fresh())];
                if chance.percent(30) {
                    offered.push(self.fresh());
                }
                if upset {
                    Reply { kind: ADVERTISE, ..reply.refusing(2) }
                } else if chance.percent(30) && read.option(14).is_some() {
                    self.grant(reply.with(14, []), &offered, now)
                } else {
                    let offer = self.grant(reply, &offered, now);
                    Reply { kind: ADVERTISE, ..offer.with(7, [u8::try_from(self.number).unwrap()]) }
                }
            }
            3 if upset => reply.refusing([1, 2, 4][usize::try_from(chance.below(3)).unwrap()]),
            3 => self.grant(reply, &addresses, now),
            4 if chaos && chance.percent(20) => bare.with(13, [0, 4]),
            4 => bare.with(13, [0, 0]),
            5 | 6 if own.is_empty() => reply.refusing(3),
            5 | 6 if upset => {
                // Withdraws the first, gives another.
                self.leases.remove(&own[0]);
                let other = self.fresh();
                let mut reply = self.grant(reply, &[other], now);
                reply.addresses.push((own[0], 0, 0));
                reply
            }
            5 | 6 => self.grant(reply, &own, now),
            8 | 9 => {
                addresses
                    .iter()
                    .for_each(|address| self.leases.retain(|there, _| there != address));
                bare
            }
            kind => panic!("message type {kind}"),
        };
        Some(reply.bytes())
    }
}

#[derive(Debug)]
struct World {
    chance: Chance,
    now: u64,
    client: Client,
    config: Config,
    servers: Vec<Server>,
    /// By time of arrival, and to whom: a server's number, or the client.
    flying: BTreeMap<(u64, u64), (Option<usize>, Vec<u8>)>,
    serial: u64,
    /// By how much the next timer is late.
    late: u64,
    configured: Option<Lease>,
    saved: Option<String>,
    sent: u64,
    bound: u64,
}

fn at(ms: u64) -> Now {
    Now { at: Timestamp::from_millis(ms), wall: UnixTime::from_millis(WALL + ms) }
}

fn addresses(lease: Option<&Lease>) -> Vec<Ipv6Addr> {
    let addresses = lease.map(|lease| lease.addresses.as_slice()).unwrap_or_default();
    addresses.iter().map(|there| there.address).collect()
}

impl World {
    fn new(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let config =
            Config { first_offer: chance.percent(50), rapid_commit: chance.percent(50), ..plain() };
        let valid_s = [40, 120, 600, 3600][usize::try_from(chance.below(4)).unwrap()];
        let server = |id, number| Server {
            id,
            number,
            next_host: 0,
            up: true,
            leases: BTreeMap::new(),
            granted: BTreeMap::new(),
            valid_s,
        };
        let client = Client::new(config.clone(), Start::Fresh, at(BOOT), chance.next());
        World {
            chance,
            now: BOOT,
            client,
            config,
            servers: vec![server(SERVER, 1), server(OTHER_SERVER, 2)],
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
        self.now < BOOT + CHAOS_MS
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

    /// Does what the client wants, and checks that it may want it.
    fn drain(&mut self) {
        while let Some(action) = self.client.poll_action() {
            match action {
                Action::Send(transmit) => {
                    self.sent += 1;
                    let said = Read::new(&transmit.payload).addresses();
                    let in_use = addresses(self.configured.as_ref());
                    match transmit.kind {
                        MessageKind::Solicit => assert_eq!(in_use, [] as [Ipv6Addr; 0]),
                        MessageKind::Request => {
                            assert!(in_use.is_empty() || said == in_use, "{said:?} {in_use:?}");
                        }
                        MessageKind::Confirm | MessageKind::Renew | MessageKind::Rebind => {
                            assert_eq!(said, in_use);
                        }
                        MessageKind::Release | MessageKind::Decline => {
                            assert!(!said.iter().any(|address| in_use.contains(address)));
                        }
                    }
                    for number in 0..self.servers.len() {
                        self.fly(Some(number), &transmit.payload);
                    }
                }
                Action::Configure { lease, previous } => {
                    assert_eq!(previous.as_deref(), self.configured.as_ref());
                    assert_ne!(lease.addresses.len(), 0);
                    self.bound += 1;
                    self.configured = Some(*lease);
                    let saved = self.client.saved();
                    self.saved = saved.map(|saved| serde_json::to_string(&saved).unwrap());
                }
                Action::Deconfigure { lease, .. } => {
                    assert_eq!(Some(*lease), self.configured.take());
                    self.saved = None;
                }
                other => panic!("{other:?}"),
            }
        }
        self.check();
    }

    fn check(&self) {
        assert_eq!(self.client.lease(), self.configured.as_ref());
        let Some(lease) = &self.configured else { return };
        for address in &lease.addresses {
            let lasts = Duration::from_secs(u64::from(address.valid_s.unwrap()));
            let ends = (lease.obtained.at_ms + lasts).as_millis();
            assert!(self.now < ends, "{address:?} used at {}, over at {ends}", self.now);
            // Nor for longer than some server granted it, save for what a reply may have been on its way.
            let granted =
                self.servers.iter().filter_map(|server| server.granted.get(&address.address));
            let granted = granted.max().unwrap();
            assert!(ends <= granted + LATEST_MS, "{ends} after {granted}");
        }
    }

    /// Something happens to servers, the client or an address.
    fn upset(&mut self) {
        let which = usize::try_from(self.chance.below(2)).unwrap();
        match self.chance.below(8) {
            0 => return self.servers[which].up = false,
            1 | 2 => return self.servers[which].up = true,
            3 => return self.servers[which].leases.clear(),
            4 => self.client.on_carrier(at(self.now)),
            5 => self.client.renew(at(self.now)),
            6 => {
                let address = addresses(self.configured.as_ref()).first().copied();
                let address = address.unwrap_or_else(|| ip("2001:db8::66"));
                self.client.on_conflict(at(self.now), address);
            }
            _ => {
                let start = match &self.saved {
                    Some(saved) => {
                        let saved: SavedLease = serde_json::from_str(saved).unwrap();
                        Start::Reboot(Box::new(saved))
                    }
                    None => Start::Fresh,
                };
                let seed = self.chance.next();
                self.client = Client::new(self.config.clone(), start, at(self.now), seed);
            }
        }
        self.drain();
    }

    fn run(&mut self) {
        self.drain();
        let mut next_upset = BOOT;
        while self.now < BOOT + CHAOS_MS + PEACE_MS {
            let timer = self.client.next_deadline().expect("there is always something to wait for");
            let timer = timer.as_millis() + self.late;
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
                let deadline = self.client.next_deadline().unwrap();
                assert!(self.now < deadline.as_millis(), "{deadline:?} is over: it spins");
                let busy = self.chaos() && self.chance.percent(20);
                self.late = if busy { self.chance.below(3000) } else { 0 };
            }
            if !self.chaos() {
                self.servers.iter_mut().for_each(|server| server.up = true);
            }
        }
    }

    fn deliver(&mut self, to: Option<usize>, payload: &[u8]) {
        let chaos = self.chaos();
        match to {
            Some(number) => {
                let server = &mut self.servers[number];
                if !server.up {
                    return;
                }
                if let Some(reply) = server.answer(&mut self.chance, payload, self.now, chaos) {
                    self.fly(None, &reply);
                }
            }
            None => {
                self.client.on_packet(at(self.now), payload);
                self.drain();
            }
        }
    }
}

#[test]
fn whatever_happens() {
    let mut bound = 0;
    for seed in 0..80 {
        let mut world = World::new(seed);
        world.run();
        let state = world.client.state();
        assert!(world.configured.is_some(), "in peace the client has a lease: {state:?}");
        // Five hours: less than a message in two seconds, whatever the servers do.
        assert!(world.sent < (CHAOS_MS + PEACE_MS) / 2000, "{} messages", world.sent);
        bound += world.bound;

        let in_use = addresses(world.configured.as_ref());
        world.client.release(at(world.now));
        let Some(Action::Deconfigure { .. }) = world.client.poll_action() else {
            panic!("not given up")
        };
        let Some(Action::Send(release)) = world.client.poll_action() else { panic!("no RELEASE") };
        assert_eq!(Read::new(&release.payload).addresses(), in_use);
        assert_eq!(world.client.state(), State::Releasing);
    }
    assert!(5_000 < bound, "{bound} leases and renewals: the schedules do not get anywhere");
}
