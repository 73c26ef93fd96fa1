//! Finds out whether another host has the address (RFC 5227, RFC 2131 §4.4.1).

use std::time::Duration;

use super::client::{Announcements, Phase};
use super::{Action, Client, Defence, FailReason, LostReason};
use crate::frame::{ArpOperation, ArpPacket};
use crate::{MacAddr, Now};

/// RFC 5227 §1.1 DEFEND_INTERVAL.
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// RFC 5227 §1.1 MAX_CONFLICTS and RATE_LIMIT_INTERVAL: after this many conflicts, one address a
/// minute.
const MAX_CONFLICTS: u32 = 10;
const RATE_LIMIT_INTERVAL: Duration = Duration::from_secs(60);

impl Client {
    /// Handles an ARP packet. The client decides whether it is a conflict (RFC 5227 §2.1.1, §2.4).
    pub fn on_arp(&mut self, now: Now, packet: &ArpPacket) {
        if packet.sender_mac == self.config.mac {
            return;
        }
        if let Phase::Probing(probing) = &self.phase {
            let address = probing.lease.address.addr();
            let probed_too = packet.operation == ArpOperation::Request
                && packet.sender.is_unspecified()
                && packet.target == address;
            if packet.sender == address || probed_too {
                self.on_conflict(now, packet.sender_mac);
            }
        } else if self.lease().is_some_and(|held| held.address.addr() == packet.sender) {
            self.defend(now, packet.sender_mac);
        }
    }

    /// Another host is known to use the address that is being checked or used: sends DECLINE and
    /// starts again.
    pub fn on_conflict(&mut self, now: Now, holder: MacAddr) {
        if self.expire(now) {
            return;
        }
        let lease = match &self.phase {
            Phase::Probing(probing) => &probing.lease,
            _ => match self.lease() {
                Some(held) => held,
                None => return,
            },
        };
        let (address, server) = (lease.address.addr(), lease.server);
        self.send_decline(address, server);
        self.drop_held(LostReason::Conflict { holder }, now);
        self.search.failure = FailReason::Conflict { address, server, holder };
        self.search.wanted = None;
        self.search.conflicts = self.search.conflicts.saturating_add(1);
        let wait = self.config.timing.after_decline;
        let limited = MAX_CONFLICTS < self.search.conflicts;
        self.restart(if limited { wait.max(RATE_LIMIT_INTERVAL) } else { wait }, now);
    }

    /// §2.4 (b) and (c).
    fn defend(&mut self, now: Now, holder: MacAddr) {
        if self.expire(now) {
            return;
        }
        let again = self.defended.is_some_and(|last| now.at.since(last) < DEFEND_INTERVAL);
        match (again, self.config.defence) {
            (true, Defence::GiveUp) => self.on_conflict(now, holder),
            (true, Defence::Forever) => {}
            (false, _) => {
                self.defended = Some(now.at);
                self.announce();
            }
        }
    }

    /// Sends the next probe, or ends the check (§2.1.1).
    pub(super) fn probe(&mut self, now: Now) {
        let Phase::Probing(probing) = &mut self.phase else { return };
        let Some(timing) = &self.config.probe else { return };
        if probing.sent < timing.probes {
            probing.sent += 1;
            let wait = if probing.sent == timing.probes {
                timing.announce_wait
            } else {
                self.random.between(timing.shortest, timing.longest)
            };
            probing.next = now.at + wait;
            let address = probing.lease.address.addr();
            self.actions.push_back(Action::Probe { address });
            return;
        }
        let announcements = timing.announcements;
        let lease = probing.lease.clone();
        self.bind(lease, now);
        self.announcing = Some(Announcements { left: announcements, next: now.at });
        self.announce_if_due(now);
    }

    /// §2.3.
    pub(super) fn announce_if_due(&mut self, now: Now) {
        let Some(timing) = &self.config.probe else { return };
        let Some(announcing) = &mut self.announcing else { return };
        if announcing.left == 0 || self.held.is_none() {
            self.announcing = None;
        } else if announcing.next <= now.at {
            announcing.left -= 1;
            announcing.next = now.at + timing.announce_interval;
            if announcing.left == 0 {
                self.announcing = None;
            }
            self.announce();
        }
    }

    fn announce(&mut self) {
        if let Some(address) = self.lease().map(|lease| lease.address.addr()) {
            self.actions.push_back(Action::Announce { address });
        }
    }
}
