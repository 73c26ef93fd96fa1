//! DHCPv4 in chaos, with servers that forget and refuse.

use std::collections::{BTreeMap, HashSet};
use std::net::Ipv4Addr;

use netwright_dhcp::frame::ArpPacket;
use netwright_dhcp::v4::{
    Action, Client, Config, Delivery, Lease, MessageKind, ProbeTiming, State, Transmit,
};
use netwright_dhcp::{Now, Timestamp};

use crate::chance::Chance;
use crate::chaos::{self, Family, World};
use crate::support::*;

/// A server's memory.
#[derive(Debug)]
struct Server {
    id: Ipv4Addr,
    next_host: u8,
    /// Addresses, each with the time until which it is the client's.
    leases: BTreeMap<Ipv4Addr, u64>,
    lease_s: u32,
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
                // INIT-REBOOT and renewals: the server assigns only what it knows, and by chance
                // another address.
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

    fn forget(&mut self) {
        self.leases.clear();
    }
}

#[derive(Debug)]
struct V4 {
    /// Transaction identifiers of renewals: each is used once.
    renewals: HashSet<[u8; 4]>,
}

fn address(lease: Option<&Lease>) -> Option<Ipv4Addr> {
    lease.map(|lease| lease.address.addr())
}

impl Family for V4 {
    type Client = Client;
    type Server = Server;

    const CHAOS_MS: u64 = 3 * 3600 * 1000;
    /// The end of every wait that began in chaos: 64 s between DISCOVERs, the same after refusals,
    /// and the same after ten conflicts.
    const PEACE_MS: u64 = 400 * 1000;

    fn begin(chance: &mut Chance) -> (Self, Config, [Server; 2]) {
        let mut config = Config::new(MAC);
        config.boot_id = Some("boot".to_owned());
        config.probe = match chance.below(3) {
            0 => None,
            1 => Some(ProbeTiming::quick()),
            _ => Some(ProbeTiming::rfc5227()),
        };
        let lease_s = [20, 60, 120, 600, 3600][usize::try_from(chance.below(5)).unwrap()];
        let server = |id| Server { id, next_host: 9, leases: BTreeMap::new(), lease_s };
        let servers = [server(SERVER), server(Ipv4Addr::new(198, 51, 100, 1))];
        (V4 { renewals: HashSet::new() }, config, servers)
    }

    fn reaches(transmit: &Transmit, server: &Server) -> bool {
        match transmit.how {
            Delivery::Broadcast => true,
            Delivery::Unicast { .. } => transmit.to == server.id,
        }
    }

    fn conflict(client: &mut Client, now: Now, in_use: Option<&Lease>) {
        let address = address(in_use).unwrap_or(ADDRESS);
        client.on_arp(now, &ArpPacket::announcement(OTHER_MAC, address));
    }

    fn check_sent(&mut self, transmit: &Transmit, in_use: Option<&Lease>) {
        let read = ParsedMessage::new(&transmit.payload);
        let form = (transmit.kind, read.requested(), read.server(), read.ciaddr);
        let in_use = address(in_use);
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
                assert!(self.renewals.insert(read.xid), "a transaction identifier is used twice");
            }
            (MessageKind::Decline, Some(_), Some(_), Ipv4Addr::UNSPECIFIED) => {}
            (MessageKind::Release, None, Some(_), ciaddr) => {
                assert!(in_use.is_none_or(|in_use| in_use == ciaddr));
            }
            other => panic!("{other:?}"),
        }
    }

    fn check_other(&self, action: &Action, in_use: Option<&Lease>) {
        match action {
            Action::Probe { address } => {
                assert_eq!(in_use, None, "{address} is examined before use");
            }
            Action::Announce { address: announced } => {
                assert_eq!(address(in_use), Some(*announced));
            }
            other => panic!("{other:?}"),
        }
    }

    fn check_lease(servers: &[Server; 2], lease: &Lease, now: u64) {
        let now = Timestamp::from_millis(now);
        let ends = lease.expires_at().unwrap();
        assert!(now < ends, "used at {now:?}, over at {ends:?}");
        // If the server that assigned the address believes that it is free, the client does not use
        // it either.
        let server = servers.iter().find(|server| server.id == lease.server).unwrap();
        if let Some(known) = server.leases.get(&lease.address.addr()) {
            assert!(ends <= Timestamp::from_millis(*known), "{ends:?} after {known}");
        }
    }
}

#[test]
fn whatever_happens() {
    let mut bound = 0;
    for seed in 0..150 {
        let mut world = World::<V4>::new(seed);
        world.run();
        let state = world.client.state();
        let held =
            matches!(state, State::Bound | State::Renewing | State::Rebinding | State::Rebooting);
        assert!(held && world.configured.is_some(), "in peace the client has a lease: {state:?}");
        // Three hours: less than a message in two seconds, whatever the servers do.
        assert!(world.sent < V4::CHAOS_MS / 2000, "{} messages", world.sent);
        bound += world.bound;

        let address = world.configured.as_ref().unwrap().address.addr();
        world.client.release(at(world.now));
        let Some(Action::Send(release)) = world.client.poll_action() else { panic!("no RELEASE") };
        assert_eq!(ParsedMessage::new(&release.payload).ciaddr, address);
    }
    assert!(10_000 < bound, "{bound} leases and renewals: the schedules do not get anywhere");
}
