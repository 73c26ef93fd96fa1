//! One attachment's lease: its clients, their sockets, and what they want done.

mod look;
mod serve;

use std::collections::BTreeSet;
use std::time::Duration;

use cni::{AttachmentKey, Error};
use cni_plugin::codes;
use dhcp::{Now, Timestamp, v4, v6};
use kernel::netns::Netns;
use kernel::packet::{Filter, PacketSocket};
use kernel::route::{Change, LinkSet, RouteSocket};
use net::IpFamily;
use node_api::dhcp::{Client, LeaseRequest};
use state::NetnsIdentity;

use super::context::{Context, kernel_error};
use super::lease_result;
use super::release_path::ReleasePath;
use super::sockets::{V4Sockets, V6Socket, frame_of};
use super::store::{LeaseRecord, Place};
use super::token::Token;
use crate::clock;

/// How long to wait until frames pass on an interface. After that they are sent all the same, and
/// sent again.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between checks of the interface; it takes a few milliseconds.
const READY_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How often a lease's interface is checked. When it has gone without a DEL, the lease is released.
const CHECK_EVERY: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct HeldLease {
    pub(crate) id: u64,
    pub(crate) key: AttachmentKey,
    pub(crate) place: Place,
    pub(crate) client: Client,
    /// The connections that wait for the lease.
    pub(crate) waiters: BTreeSet<u64>,
    /// When the lease is to be woken, as the service has recorded it.
    pub(crate) scheduled: Option<Timestamp>,
    stage: Stage,
    check_at: Timestamp,
    /// The record on disk is out of date.
    unsaved: bool,
    v4: Option<SideV4>,
    v6: Option<SideV6>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Waits until frames pass.
    Preparing { until: Timestamp, look_at: Timestamp },
    /// Asks for its first lease.
    Asking,
    /// The container has the lease: the daemon changes the interface from now on.
    HandedOver,
}

#[derive(Debug)]
struct SideV4 {
    client: v4::Client,
    sockets: Option<V4Sockets>,
    current: Option<v4::Lease>,
}

#[derive(Debug)]
struct SideV6 {
    client: v6::Client,
    socket: Option<V6Socket>,
    current: Option<v6::Lease>,
}

/// The result of a turn.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Nothing to report.
    Going,
    /// Everything that was requested is granted, for the first time.
    Granted,
    /// The lease cannot be obtained.
    Failed(Error),
    /// The interface, or the namespace, is gone.
    Vanished,
}

impl HeldLease {
    /// Reads the interface that a lease is wanted for, and sets the lease up.
    pub(crate) fn prepare(
        world: &mut Context,
        id: u64,
        ask: LeaseRequest,
        now: Now,
    ) -> Result<Self, Error> {
        let LeaseRequest { attachment, netns: path, netns_id, pid_ns, client } = ask;
        let opened = Netns::open(&world.flags.on_host(&path))
            .map_err(|error| Error::from_chain(cni::code::INVALID_NETNS, &error))?;
        let found = NetnsIdentity::from(opened.id());
        if netns_id.is_some_and(|wanted| wanted != found) {
            return Err(Error::new(
                cni::code::INVALID_NETNS,
                format!("the daemon finds another namespace at {} than the plugin", path.display()),
            )
            .with_details(
                "the daemon must see the host's files: see -hostprefix in docs/dhcp.md",
            ));
        }
        let mut inside = RouteSocket::open_in(&opened).map_err(|error| kernel_error(&error))?;
        let ifname = attachment.ifname.as_str();
        let link = inside.link_by_name(ifname).map_err(|error| kernel_error(&error))?;
        let link = link.ok_or_else(|| {
            Error::new(codes::CONFLICT, format!("error looking up {ifname:?}: Link not found"))
                .with_details(
                    "DHCP is spoken over the interface: it must be there before IPAM is called",
                )
        })?;
        let Some(mac) = link.mac else {
            return Err(Error::new(
                codes::CONFLICT,
                format!("interface {ifname:?} has no Ethernet address, which DHCP needs"),
            ));
        };
        if client.families.contains(&IpFamily::V6) {
            look::switch_on_v6(&opened, ifname)?;
        }
        if !link.up() {
            let set = LinkSet::default().up(true);
            inside
                .apply_one(&Change::SetLink { ifindex: link.index, set })
                .map_err(|error| kernel_error(&error))?;
        }
        let place = Place {
            netns: path,
            netns_id: found,
            netns_cookie: opened.cookie(),
            pid_ns,
            ifindex: link.index,
            mac,
            way: ReleasePath::of(&mut world.host, &link),
        };
        tracing::info!(lease = %attachment, netns = %place.netns.display(), way = ?place.way, "looking for a lease");
        Ok(HeldLease {
            id,
            key: attachment,
            place,
            client,
            waiters: BTreeSet::new(),
            scheduled: None,
            stage: Stage::Preparing { until: now.at + READY_TIMEOUT, look_at: now.at },
            check_at: now.at + CHECK_EVERY,
            unsaved: false,
            v4: None,
            v6: None,
        })
    }

    /// Resumes a lease that an earlier daemon kept.
    pub(crate) fn resume(world: &Context, id: u64, saved: LeaseRecord, now: Now) -> Self {
        let place = Place {
            netns: saved.netns,
            netns_id: saved.netns_id,
            netns_cookie: saved.netns_cookie,
            pid_ns: saved.pid_ns,
            ifindex: saved.ifindex,
            mac: saved.mac,
            way: saved.way,
        };
        let wants = |family| saved.client.families.contains(&family);
        let v4 = wants(IpFamily::V4).then(|| {
            let config = world.v4_config(&saved.attachment, &place, &saved.client, true);
            let current = saved.v4.as_ref().map(|saved| saved.lease.clone());
            let start =
                saved.v4.map_or(v4::Start::Fresh, |saved| v4::Start::Reboot(Box::new(saved)));
            let client = v4::Client::new(config, start, now, clock::seed());
            SideV4 { client, sockets: None, current }
        });
        let v6 = wants(IpFamily::V6).then(|| {
            let config = world.v6_config(&saved.attachment, true);
            let current = saved.v6.as_ref().map(|saved| saved.lease.clone());
            let start =
                saved.v6.map_or(v6::Start::Fresh, |saved| v6::Start::Reboot(Box::new(saved)));
            let client = v6::Client::new(config, start, now, clock::seed());
            SideV6 { client, socket: None, current }
        });
        HeldLease {
            id,
            key: saved.attachment,
            place,
            client: saved.client,
            waiters: BTreeSet::new(),
            scheduled: None,
            stage: Stage::HandedOver,
            // Check at once: the interface may have gone meanwhile.
            check_at: now.at,
            unsaved: false,
            v4,
            v6,
        }
    }

    /// Says whether the container has the lease.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.stage == Stage::HandedOver
    }

    /// Says whether the namespace of a request is this lease's.
    pub(crate) fn is_in(&self, world: &Context, ask: &LeaseRequest) -> bool {
        ask.netns_id.is_none_or(|id| id == self.place.netns_id)
            && !world.is_another(&ask.netns, &self.place)
    }

    /// Records that the container has the lease from now on.
    pub(crate) fn hand_over(&mut self) {
        self.stage = Stage::HandedOver;
    }

    /// Returns when something is to be done, if nothing happens before.
    pub(crate) fn deadline(&self) -> Timestamp {
        let look = match self.stage {
            Stage::Preparing { look_at, .. } => look_at,
            Stage::Asking | Stage::HandedOver => self.check_at,
        };
        let v4 = self.v4.as_ref().and_then(|side| side.client.next_deadline());
        let v6 = self.v6.as_ref().and_then(|side| side.client.next_deadline());
        [v4, v6].into_iter().flatten().fold(look, Timestamp::min)
    }

    /// Does what is due now.
    pub(crate) fn on_timer(&mut self, world: &mut Context, now: Now) -> Outcome {
        if let Stage::Preparing { until, .. } = self.stage {
            match self.is_ready(world) {
                Err(outcome) => return outcome,
                Ok(false) if now.at < until => {
                    self.stage = Stage::Preparing { until, look_at: now.at + READY_POLL_INTERVAL };
                    return Outcome::Going;
                }
                Ok(ready) => {
                    if !ready {
                        tracing::warn!(lease = %self.key, "no carrier yet: asking anyway");
                    }
                    self.begin(world, now);
                }
            }
        }
        if self.is_handed_over() {
            self.follow(world);
        }
        if self.check_at <= now.at {
            self.check_at = now.at + CHECK_EVERY;
            if self.is_gone(world, now) {
                return Outcome::Vanished;
            }
        }
        if let Some(side) = &mut self.v4 {
            side.client.on_timer(now);
        }
        if let Some(side) = &mut self.v6 {
            side.client.on_timer(now);
        }
        self.pump(world)
    }

    /// Reads from a socket that is ready.
    pub(crate) fn on_readable(&mut self, world: &mut Context, token: Token, now: Now) -> Outcome {
        let failed = match token {
            Token::V4(_) => self.v4.as_mut().and_then(|SideV4 { client, sockets, .. }| {
                let sockets = sockets.as_ref()?;
                let mut take = |payload: &[u8], source| {
                    let received = client.on_packet(now, payload, source);
                    tracing::debug!(lease = %self.key, ?received, "received");
                };
                sockets.receive(&mut take).err()
            }),
            Token::Arp(_) => self.v4.as_mut().and_then(|SideV4 { client, sockets, .. }| {
                sockets.as_ref()?.receive_arp(|packet| client.on_arp(now, packet)).err()
            }),
            Token::V6(_) => {
                let received = self.v6.as_mut().and_then(|SideV6 { client, socket, .. }| {
                    let mut take = |payload: &[u8]| {
                        let received = client.on_packet(now, payload);
                        tracing::debug!(lease = %self.key, ?received, "received");
                    };
                    socket.as_ref()?.receive(&mut take).err()
                });
                if let Some(error) = received {
                    tracing::debug!(lease = %self.key, %error, "receive a DHCPv6 message");
                }
                None
            }
            Token::Listener | Token::Connection(_) => None,
        };
        if let Some(error) = failed {
            tracing::debug!(lease = %self.key, error = %super::deferred::chain(&error), "receive");
            // If the link is gone, the lease goes with it; a link that is down comes back.
            self.check_at = now.at;
        }
        self.pump(world)
    }

    /// Returns what is granted, as ADD's result; `None` while something is missing.
    pub(crate) fn result(&self) -> Option<cni::AddResult> {
        let v4 = self.v4.as_ref().map(|side| side.current.as_ref());
        let v6 = self.v6.as_ref().map(|side| side.current.as_ref());
        if v4 == Some(None) || v6 == Some(None) || (v4.is_none() && v6.is_none()) {
            return None;
        }
        Some(lease_result::result(v4.flatten(), v6.flatten(), self.client.priority))
    }

    /// Returns what is to be kept on disk.
    pub(crate) fn saved(&self, world: &Context) -> LeaseRecord {
        let mut saved = LeaseRecord::new(
            world.boot_id.clone(),
            self.key.clone(),
            &self.place,
            self.client.clone(),
        );
        saved.v4 = self
            .v4
            .as_ref()
            .filter(|side| side.current.is_some())
            .and_then(|side| side.client.saved());
        saved.v6 = self
            .v6
            .as_ref()
            .filter(|side| side.current.is_some())
            .and_then(|side| side.client.saved());
        saved
    }

    /// Releases what is granted, over the interface. Returns what is left to be released without
    /// the interface.
    pub(crate) fn give_back(&mut self, world: &Context) -> Option<LeaseRecord> {
        let saved = self.saved(world);
        if saved.v4.is_none() && saved.v6.is_none() {
            return None;
        }
        let now = clock::now();
        let Ok(netns) = world.netns(&self.place) else { return Some(saved) };
        if let Some(side) = &mut self.v6 {
            side.client.release(now);
            self.pump_v6(world);
        }
        let v4 = saved.v4.as_ref()?;
        let message = v4::release_message(v4, clock::seed());
        let sent =
            frame_of(&message, v4.mac).map_err(|error| error.to_string()).and_then(|frame| {
                PacketSocket::open_in(&netns, self.place.ifindex, &Filter::nothing())
                    .and_then(|socket| socket.send(&frame))
                    .map_err(|error| super::deferred::chain(&error))
            });
        match sent {
            Ok(()) => {
                tracing::info!(lease = %self.key, address = %v4.lease.address, "released the lease");
                None
            }
            Err(error) => {
                tracing::debug!(lease = %self.key, error, "cannot release the lease over its interface");
                Some(saved)
            }
        }
    }

    fn begin(&mut self, world: &Context, now: Now) {
        self.stage = Stage::Asking;
        let wants = |family| self.client.families.contains(&family);
        if wants(IpFamily::V4) || self.client.families.is_empty() {
            let config = world.v4_config(&self.key, &self.place, &self.client, false);
            let client = v4::Client::new(config, v4::Start::Fresh, now, clock::seed());
            self.v4 = Some(SideV4 { client, sockets: None, current: None });
        }
        if wants(IpFamily::V6) {
            let config = world.v6_config(&self.key, false);
            let client = v6::Client::new(config, v6::Start::Fresh, now, clock::seed());
            self.v6 = Some(SideV6 { client, socket: None, current: None });
        }
    }
}
