//! Does what a lease's clients want done.

use std::net::Ipv6Addr;

use cni::Error;
use cni_plugin::codes;
use dhcp::frame::ArpPacket;
use dhcp::{MacAddr, v4, v6};
use kernel::netns::Netns;
use kernel::packet::PacketSocket;
use kernel::route::RouteSocket;
use service_kit::poll::Interest;

use super::super::context::{Context, NoNetns};
use super::super::deferred::chain;
use super::super::lease_result::{self, Terms};
use super::super::sockets::{SendError, V4Sockets, V6Socket};
use super::super::token::Token;
use super::look::link_local;
use super::{HeldLease, Outcome, SideV4, SideV6, Stage};

impl HeldLease {
    /// Does what the clients want, until they want nothing more.
    pub(super) fn pump(&mut self, world: &mut Context) -> Outcome {
        let (v4, v6) = (self.pump_v4(world), self.pump_v6(world));
        if self.unsaved && self.is_handed_over() {
            self.save(world);
        }
        for outcome in [v4, v6] {
            if !matches!(outcome, Outcome::Going) {
                return outcome;
            }
        }
        match self.stage {
            Stage::Asking if self.result().is_some() => Outcome::Granted,
            _ => Outcome::Going,
        }
    }

    fn pump_v4(&mut self, world: &Context) -> Outcome {
        let Some(mut side) = self.v4.take() else { return Outcome::Going };
        let outcome = self.serve_v4(world, &mut side);
        // No reply is expected: close the sockets, so that they do not keep the namespace alive.
        if matches!(side.client.state(), v4::State::Bound | v4::State::Ended) {
            side.sockets = None;
        }
        self.v4 = Some(side);
        outcome
    }

    fn serve_v4(&mut self, world: &Context, side: &mut SideV4) -> Outcome {
        while let Some(action) = side.client.poll_action() {
            let sent = match action {
                v4::Action::Send(message) => {
                    tracing::debug!(lease = %self.key, kind = %message.kind, to = %message.to, "send");
                    self.with_sockets(world, side, |sockets, netns, mac| {
                        sockets.send(netns, mac, &message)
                    })
                }
                v4::Action::Probe { address } => {
                    self.with_sockets(world, side, |sockets, _, mac| {
                        sockets.send_arp(&ArpPacket::probe(mac, address))
                    })
                }
                v4::Action::Announce { address } => {
                    self.with_sockets(world, side, |sockets, _, mac| {
                        sockets.send_arp(&ArpPacket::announcement(mac, address))
                    })
                }
                v4::Action::Configure { lease, .. } => {
                    tracing::info!(
                        lease = %self.key, address = %lease.address, server = %lease.server,
                        lease_s = lease.lease_s, t1_s = lease.t1_s, "bound"
                    );
                    let terms = |lease: &v4::Lease| Terms::of_v4(lease, self.client.priority);
                    let old = side.current.as_ref().map(terms).unwrap_or_default();
                    let new = terms(&lease);
                    side.current = Some(*lease);
                    self.change(world, &old, &new);
                    Ok(())
                }
                v4::Action::Deconfigure { lease, reason } => {
                    tracing::warn!(lease = %self.key, address = %lease.address, %reason, "the lease is lost");
                    side.current = None;
                    let old = Terms::of_v4(&lease, self.client.priority);
                    self.change(world, &old, &Terms::default());
                    Ok(())
                }
                v4::Action::Failed(reason) => return Outcome::Failed(no_lease(&reason)),
                other => {
                    tracing::debug!(lease = %self.key, action = ?other, "passed over");
                    Ok(())
                }
            };
            if let Err(outcome) = sent {
                return outcome;
            }
        }
        Outcome::Going
    }

    pub(super) fn pump_v6(&mut self, world: &Context) -> Outcome {
        let Some(mut side) = self.v6.take() else { return Outcome::Going };
        let outcome = self.serve_v6(world, &mut side);
        if matches!(side.client.state(), v6::State::Bound | v6::State::Ended) {
            side.socket = None;
        }
        self.v6 = Some(side);
        outcome
    }

    fn serve_v6(&mut self, world: &Context, side: &mut SideV6) -> Outcome {
        while let Some(action) = side.client.poll_action() {
            match action {
                v6::Action::Send(message) => {
                    tracing::debug!(lease = %self.key, kind = %message.kind, "send");
                    match self.v6_socket(world, side) {
                        Ok(socket) => {
                            if let Err(error) = socket.send(&message) {
                                tracing::debug!(lease = %self.key, error = chain(&error), "send");
                            }
                        }
                        Err(NoNetns::Gone) => return Outcome::Vanished,
                        Err(NoNetns::Failed(error)) => {
                            tracing::debug!(lease = %self.key, %error, "no DHCPv6 socket");
                        }
                    }
                }
                v6::Action::Configure { lease, .. } => {
                    let addresses: Vec<Ipv6Addr> =
                        lease.addresses.iter().map(|one| one.address).collect();
                    tracing::info!(lease = %self.key, ?addresses, t1_s = lease.t1_s, "bound");
                    let old = side.current.as_ref().map(Terms::of_v6).unwrap_or_default();
                    let new = Terms::of_v6(&lease);
                    side.current = Some(*lease);
                    self.change(world, &old, &new);
                }
                v6::Action::Deconfigure { lease, reason } => {
                    if reason == v6::LostReason::Released {
                        tracing::info!(lease = %self.key, "released the DHCPv6 lease");
                    } else {
                        tracing::warn!(lease = %self.key, %reason, "the DHCPv6 lease is lost");
                    }
                    side.current = None;
                    self.change(world, &Terms::of_v6(&lease), &Terms::default());
                }
                v6::Action::Failed(reason) => return Outcome::Failed(no_lease(&reason)),
                other => tracing::debug!(lease = %self.key, action = ?other, "passed over"),
            }
        }
        Outcome::Going
    }

    /// Runs `send` with the client's sockets, opening them first if they are not open. A message
    /// that cannot be sent counts as lost: the client sends it again.
    fn with_sockets(
        &self,
        world: &Context,
        side: &mut SideV4,
        send: impl FnOnce(&mut V4Sockets, &Netns, MacAddr) -> Result<(), SendError>,
    ) -> Result<(), Outcome> {
        let netns = match world.netns(&self.place) {
            Ok(netns) => netns,
            Err(NoNetns::Gone) => return Err(Outcome::Vanished),
            Err(NoNetns::Failed(error)) => {
                tracing::warn!(lease = %self.key, %error, "cannot enter the namespace");
                return Ok(());
            }
        };
        let sockets = match side.sockets.take() {
            Some(sockets) => Ok(sockets),
            None => self.open_v4(world, &netns),
        };
        match sockets {
            Ok(mut sockets) => {
                if let Err(error) = send(&mut sockets, &netns, self.place.mac) {
                    tracing::debug!(lease = %self.key, error = chain(&error), "send");
                }
                side.sockets = Some(sockets);
            }
            Err(error) => {
                tracing::warn!(lease = %self.key, error = chain(&error), "cannot open sockets");
            }
        }
        Ok(())
    }

    fn open_v4(&self, world: &Context, netns: &Netns) -> Result<V4Sockets, SendError> {
        let sockets = V4Sockets::open(netns, self.place.ifindex)?;
        let watch = |socket: &PacketSocket, token: Token| {
            world.poller.add(socket, token.number(), Interest::Read).map_err(SendError::Watch)
        };
        watch(&sockets.udp, Token::V4(self.id))?;
        watch(&sockets.arp, Token::Arp(self.id))?;
        Ok(sockets)
    }

    fn v6_socket<'s>(
        &self,
        world: &Context,
        side: &'s mut SideV6,
    ) -> Result<&'s mut V6Socket, NoNetns> {
        let socket = match side.socket.take() {
            Some(socket) => socket,
            None => {
                let netns = world.netns(&self.place)?;
                let failed = |error: &dyn std::error::Error| {
                    NoNetns::Failed(Error::from_chain(codes::KERNEL, error))
                };
                let mut inside = RouteSocket::open_in(&netns).map_err(|error| failed(&error))?;
                let address = link_local(&mut inside, self.place.ifindex)
                    .map_err(|error| failed(&error))?
                    .ok_or_else(|| {
                        NoNetns::Failed(Error::new(codes::KERNEL, "no link-local address is ready"))
                    })?;
                let socket = V6Socket::open(&netns, self.place.ifindex, address)
                    .map_err(|error| failed(&error))?;
                world
                    .poller
                    .add(&socket.udp, Token::V6(self.id).number(), Interest::Read)
                    .map_err(|errno| failed(&errno))?;
                socket
            }
        };
        Ok(side.socket.insert(socket))
    }

    /// Changes the interface, if the daemon is to do that: until ADD is answered, the plugin that
    /// asked does it.
    fn change(&mut self, world: &Context, old: &Terms, new: &Terms) {
        self.unsaved = true;
        let changes = lease_result::plan(self.place.ifindex, old, new);
        if !self.is_handed_over() || changes.is_empty() {
            return;
        }
        let inside = world.netns(&self.place).ok().map(|netns| RouteSocket::open_in(&netns));
        let Some(Ok(mut inside)) = inside else {
            tracing::warn!(lease = %self.key, "the interface could not be changed");
            return;
        };
        for change in &changes {
            match inside.apply_one(change) {
                Ok(()) => tracing::info!(lease = %self.key, %change, "changed the interface"),
                Err(error) if error.is_exists() || error.is_not_found() => {
                    tracing::debug!(lease = %self.key, %change, "nothing to change");
                }
                Err(error) => {
                    tracing::error!(lease = %self.key, %change, error = chain(&error), "the interface is not as the lease says");
                }
            }
        }
    }

    /// Writes the lease to disk.
    fn save(&mut self, world: &Context) {
        match world.store.put(&self.saved(world)) {
            Ok(()) => self.unsaved = false,
            // Tried again with the next renewal; the record on disk is older, but still ours.
            Err(error) => {
                tracing::error!(lease = %self.key, error = chain(&error), "cannot write the lease to disk");
            }
        }
    }
}

/// Returns the error with which ADD fails.
fn no_lease(reason: &dyn std::error::Error) -> Error {
    Error::from_chain(codes::ADDRESS, reason)
        .with_details("read the server's log, and check that frames reach the server: the daemon's log says what was sent")
}
