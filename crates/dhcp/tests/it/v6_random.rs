//! DHCPv6 in chaos, with servers that forget and refuse.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::time::Duration;

use netwright_dhcp::Now;
use netwright_dhcp::v6::{Action, Client, Config, Lease, MessageKind, State, Transmit};

use crate::chance::Chance;
use crate::chaos::{self, Family, LATEST_MS, World};
use crate::support6::*;

#[derive(Debug)]
struct Server {
    id: &'static [u8],
    number: u16,
    next_host: u16,
    /// Addresses, each with the time until which it is the client's.
    leases: BTreeMap<Ipv6Addr, u64>,
    /// The same, but never forgotten.
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
}

impl chaos::Server for Server {
    fn answer(
        &mut self,
        chance: &mut Chance,
        payload: &[u8],
        now: u64,
        chaos: bool,
    ) -> Option<Vec<u8>> {
        let read = ParsedMessage::new(payload);
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
                // Withdraws the first address, and assigns another.
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

    fn forget(&mut self) {
        self.leases.clear();
    }
}

#[derive(Debug)]
struct V6;

fn addresses(lease: Option<&Lease>) -> Vec<Ipv6Addr> {
    let addresses = lease.map(|lease| lease.addresses.as_slice()).unwrap_or_default();
    addresses.iter().map(|there| there.address).collect()
}

impl Family for V6 {
    type Client = Client;
    type Server = Server;

    const CHAOS_MS: u64 = 3 * 3600 * 1000;
    /// SOL_MAX_RT and a tenth, twice.
    const PEACE_MS: u64 = 8000 * 1000;

    fn begin(chance: &mut Chance) -> (Self, Config, [Server; 2]) {
        let config =
            Config { first_offer: chance.percent(50), rapid_commit: chance.percent(50), ..plain() };
        let valid_s = [40, 120, 600, 3600][usize::try_from(chance.below(4)).unwrap()];
        let server = |id, number| Server {
            id,
            number,
            next_host: 0,
            leases: BTreeMap::new(),
            granted: BTreeMap::new(),
            valid_s,
        };
        (V6, config, [server(SERVER, 1), server(OTHER_SERVER, 2)])
    }

    fn reaches(_: &Transmit, _: &Server) -> bool {
        true
    }

    fn conflict(client: &mut Client, now: Now, in_use: Option<&Lease>) {
        let address = addresses(in_use).first().copied();
        client.on_conflict(now, address.unwrap_or_else(|| ip("2001:db8::66")));
    }

    fn check_sent(&mut self, transmit: &Transmit, in_use: Option<&Lease>) {
        let said = ParsedMessage::new(&transmit.payload).addresses();
        let in_use = addresses(in_use);
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
    }

    fn check_other(&self, action: &Action, _: Option<&Lease>) {
        panic!("{action:?}");
    }

    fn check_lease(servers: &[Server; 2], lease: &Lease, now: u64) {
        assert_ne!(lease.addresses.len(), 0);
        for address in &lease.addresses {
            let lasts = Duration::from_secs(u64::from(address.valid_s.unwrap()));
            let ends = (lease.obtained.at_ms + lasts).as_millis();
            assert!(now < ends, "{address:?} used at {now}, over at {ends}");
            // Nor does the client use it for longer than some server granted it, except for the
            // time that a reply may have taken.
            let granted = servers.iter().filter_map(|server| server.granted.get(&address.address));
            let granted = granted.max().unwrap();
            assert!(ends <= granted + LATEST_MS, "{ends} after {granted}");
        }
    }
}

#[test]
fn whatever_happens() {
    let mut bound = 0;
    for seed in 0..80 {
        let mut world = World::<V6>::new(seed);
        world.run();
        let state = world.client.state();
        assert!(world.configured.is_some(), "in peace the client has a lease: {state:?}");
        // Five hours: less than a message in two seconds, whatever the servers do.
        assert!(world.sent < (V6::CHAOS_MS + V6::PEACE_MS) / 2000, "{} messages", world.sent);
        bound += world.bound;

        let in_use = addresses(world.configured.as_ref());
        world.client.release(at(world.now));
        let Some(Action::Deconfigure { .. }) = world.client.poll_action() else {
            panic!("not given up")
        };
        let Some(Action::Send(release)) = world.client.poll_action() else { panic!("no RELEASE") };
        assert_eq!(ParsedMessage::new(&release.payload).addresses(), in_use);
        assert_eq!(world.client.state(), State::Releasing);
    }
    assert!(5_000 < bound, "{bound} leases and renewals: the schedules do not get anywhere");
}
