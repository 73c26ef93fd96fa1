//! A client, servers and a network that loses, doubles, delays and reorders, with servers that forget, refuse and go
//! away, and a client that is killed and started again. What must hold, holds at every step.

use std::collections::{BTreeMap, HashSet};
use std::net::Ipv4Addr;

use netwright_dhcp::frame::ArpPacket;
use netwright_dhcp::v4::{
    Action, Client, Config, How, Lease, MessageKind, ProbeTiming, SavedLease, Start, State,
};
use netwright_dhcp::{Now, Timestamp, UnixTime};

use crate::chance::Chance;
use crate::support::*;

/// How long chaos reigns, and then how long the client has to be bound again. Until every wait that began in chaos is
/// over: 64 s between DISCOVERs, as much after refusals, the same after ten conflicts.
const CHAOS_MS: u64 = 3 * 3600 * 1000;
const PEACE_MS: u64 = 400 * 1000;

/// What a server remembers.
#[derive(Debug)]
struct Server {
    id: Ipv4Addr,
    next_host: u8,
    up: bool,
    /// Addresses and until when they are the client's.
    leases: BTreeMap<Ipv4Addr, u64>,
    lease_s: u32,
}

impl Server {
    fn answer(
        &mut self,
        chance: &mut Chance,
        payload: &[u8],
        now: u64,
        chaos: bool,
    ) -> Option<Vec<u8>> {
        let read = Read::new(payload);
        let grant = |server: &mut Self, address: Ipv4Addr| {
            server.leases.insert(address, now + u64::from(server.lease_s) * 1000);
            Some(Reply::new(ACK, payload).from(server.id).giving(address).lasting(server.lease_s))
        };
        let refuse = |server: &Self| Some(Reply::new(NAK, payload).from(server.id));
        let reply = match read.kind() {
            1 => {
                self.next_host = self.next_host.checked_add(1).unwrap_or(10);
                let [a, b, c, _] = self.id.octets();
                let fresh = Ipv4Addr::new(a, b, c, self.next_host);
                let known = self.leases.keys().next().copied();
                let address = known.filter(|_| !chance.percent(20)).unwrap_or(fresh);
                Some(Reply::new(OFFER, payload).from(self.id).giving(address).lasting(self.lease_s))
            }
            3 => match (read.server(), read.requested()) {
                (Some(server), Some(_)) if server != self.id => None,
                (Some(_), Some(_)) if chaos && chance.percent(10) => refuse(self),
                (Some(_), Some(address)) => grant(self, address),
                // INIT-REBOOT and renewals: only what is known, and chance may have another address.
                (None, requested) => {
                    let address = requested.unwrap_or(read.ciaddr);
                    match self.leases.contains_key(&address) {
                        _ if chaos && chance.percent(5) => refuse(self),
                        true if chaos && chance.percent(5) => {
                            let [a, b, c, d] = address.octets();
                            grant(self, Ipv4Addr::new(a, b, c, d ^ 1))
                        }
                        true => grant(self, address),
                        false if chance.percent(50) => refuse(self),
                        false => None,
                    }
                }
                other => panic!("REQUEST with {other:?}"),
            },
            4 => {
                self.leases.remove(&read.requested().unwrap());
                None
            }
            7 => {
                assert_eq!(read.server(), Some(self.id));
                self.leases.remove(&read.ciaddr);
                None
            }
            kind => panic!("message type {kind}"),
        };
        reply.map(|reply| reply.bytes())
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
    /// Transaction identifiers of renewals: each is used once.
    renewals: HashSet<[u8; 4]>,
    sent: u64,
    bound: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let mut config = Config::new(MAC);
        config.boot_id = Some("boot".to_owned());
        config.probe = match chance.below(3) {
            0 => None,
            1 => Some(ProbeTiming::quick()),
            _ => Some(ProbeTiming::rfc5227()),
        };
        let lease_s = [20, 60, 120, 600, 3600][usize::try_from(chance.below(5)).unwrap()];
        let server = |id| Server { id, next_host: 9, up: true, leases: BTreeMap::new(), lease_s };
        let client = Client::new(config.clone(), Start::Fresh, at(BOOT), chance.next());
        World {
            chance,
            now: BOOT,
            client,
            config,
            servers: vec![server(SERVER), server(Ipv4Addr::new(198, 51, 100, 1))],
            flying: BTreeMap::new(),
            serial: 0,
            late: 0,
            configured: None,
            saved: None,
            renewals: HashSet::new(),
            sent: 0,
            bound: 0,
        }
    }

    fn chaos(&self) -> bool {
        self.now < BOOT + CHAOS_MS
    }

    fn fly(&mut self, to: Option<usize>, payload: Vec<u8>) {
        let copies = if !self.chaos() {
            1
        } else if self.chance.percent(25) {
            0
        } else if self.chance.percent(15) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let late = self.chaos() && self.chance.percent(10);
            let delay = self.chance.below(if late { 20_000 } else { 40 });
            self.serial += 1;
            self.flying.insert((self.now + delay, self.serial), (to, payload.clone()));
        }
    }

    /// Does what the client wants, and checks that it may want it.
    fn drain(&mut self) {
        while let Some(action) = self.client.poll_action() {
            match action {
                Action::Send(transmit) => {
                    self.sent += 1;
                    let read = Read::new(&transmit.payload);
                    let form = (transmit.kind, read.requested(), read.server(), read.ciaddr);
                    let in_use = self.configured.as_ref().map(|lease| lease.address.addr());
                    match form {
                        (MessageKind::Discover, _, None, Ipv4Addr::UNSPECIFIED) => {
                            assert_eq!(in_use, None, "a client with an address looks for none");
                        }
                        (MessageKind::Request, Some(_), Some(_), Ipv4Addr::UNSPECIFIED) => {
                            assert_eq!(in_use, None);
                        }
                        (MessageKind::Request, Some(address), None, Ipv4Addr::UNSPECIFIED) => {
                            assert_eq!(in_use, Some(address), "INIT-REBOOT");
                        }
                        (MessageKind::Request, None, None, ciaddr) => {
                            assert_eq!(in_use, Some(ciaddr), "renewal");
                            assert_eq!(transmit.from, ciaddr);
                            assert!(self.renewals.insert(read.xid), "one transaction twice");
                        }
                        (MessageKind::Decline, Some(_), Some(_), Ipv4Addr::UNSPECIFIED) => {}
                        (MessageKind::Release, None, Some(_), ciaddr) => {
                            assert!(in_use.is_none_or(|in_use| in_use == ciaddr));
                        }
                        other => panic!("{other:?}"),
                    }
                    for number in 0..self.servers.len() {
                        let reached = match transmit.how {
                            How::Broadcast => true,
                            How::Unicast { .. } => transmit.to == self.servers[number].id,
                        };
                        if reached {
                            self.fly(Some(number), transmit.payload.clone());
                        }
                    }
                }
                Action::Configure { lease, previous } => {
                    assert_eq!(previous.as_deref(), self.configured.as_ref());
                    self.bound += 1;
                    self.configured = Some(*lease);
                    let saved = self.client.saved().unwrap();
                    self.saved = Some(serde_json::to_string(&saved).unwrap());
                }
                Action::Deconfigure { lease, .. } => {
                    assert_eq!(Some(*lease), self.configured.take());
                    self.saved = None;
                }
                Action::Probe { address } => {
                    assert_eq!(self.configured, None, "{address} is examined before use");
                }
                Action::Announce { address } => {
                    assert_eq!(self.configured.as_ref().unwrap().address.addr(), address);
                }
                other => panic!("{other:?}"),
            }
        }
        self.check();
    }

    fn check(&self) {
        let now = Timestamp::from_millis(self.now);
        assert_eq!(self.client.lease(), self.configured.as_ref());
        if let Some(lease) = &self.configured {
            let ends = lease.expires_at().unwrap();
            assert!(now < ends, "used at {now:?}, over at {ends:?}");
            // Nor is it used when the server that granted it thinks it free.
            let server = self.servers.iter().find(|server| server.id == lease.server).unwrap();
            if let Some(known) = server.leases.get(&lease.address.addr()) {
                assert!(ends <= Timestamp::from_millis(*known), "{ends:?} after {known}");
            }
        }
        assert!(self.client.next_deadline().is_some(), "there is always something to wait for");
    }

    /// Something happens to servers, the client or the address.
    fn upset(&mut self) {
        let which = usize::try_from(self.chance.below(2)).unwrap();
        match self.chance.below(8) {
            0 => return self.servers[which].up = false,
            1 | 2 => return self.servers[which].up = true,
            3 => return self.servers[which].leases.clear(),
            4 => self.client.on_carrier(at(self.now)),
            5 => self.client.renew(at(self.now)),
            6 => {
                let address =
                    self.configured.as_ref().map_or(ADDRESS, |lease| lease.address.addr());
                let packet = ArpPacket::announcement(OTHER_MAC, address);
                self.client.on_arp(at(self.now), &packet);
            }
            _ => {
                // kill -9: what was to be done and was not, is not.
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
        let mut next_upset = BOOT;
        while self.now < BOOT + CHAOS_MS + PEACE_MS {
            let timer = self.client.next_deadline().unwrap().as_millis() + self.late;
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
                    self.fly(None, reply);
                }
            }
            None => {
                self.client.on_packet(at(self.now), payload, Some(SERVER_MAC));
                self.drain();
            }
        }
    }
}

fn at(ms: u64) -> Now {
    Now { at: Timestamp::from_millis(ms), wall: UnixTime::from_millis(WALL + ms) }
}

#[test]
fn whatever_happens() {
    let mut bound = 0;
    for seed in 0..150 {
        let mut world = World::new(seed);
        world.run();
        let state = world.client.state();
        let held =
            matches!(state, State::Bound | State::Renewing | State::Rebinding | State::Rebooting);
        assert!(held && world.configured.is_some(), "in peace the client has a lease: {state:?}");
        // Three hours: less than a message in two seconds, whatever the servers do.
        assert!(world.sent < CHAOS_MS / 2000, "{} messages", world.sent);
        bound += world.bound;

        let address = world.configured.as_ref().unwrap().address.addr();
        world.client.release(at(world.now));
        let Some(Action::Send(release)) = world.client.poll_action() else { panic!("no RELEASE") };
        assert_eq!(Read::new(&release.payload).ciaddr, address);
    }
    assert!(10_000 < bound, "{bound} leases and renewals: the schedules do not get anywhere");
}
