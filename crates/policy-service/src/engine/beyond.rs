//! Pods that are closed since their policies are beyond what is enforced for one pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use policy::explain::why_closed;
use policy::object::Uid;
use policy::{Direction, Pod, World};

use super::super::tell;
use super::{Engine, Phase};

/// The pods whose policies are, and in which directions.
pub(super) type BeyondPods = BTreeMap<Uid, BTreeSet<Direction>>;

impl Engine {
    /// Logs which pods are closed now or no longer, and sends an Event for each that is.
    pub(super) fn tell_who_is_beyond(&mut self) {
        let mut now = BeyondPods::new();
        let mut new: Vec<(Pod, Direction)> = Vec::new();
        for (pod, direction) in self.all_beyond() {
            let before = self.beyond.get(&pod.uid);
            let is_known = before.is_some_and(|before| before.contains(&direction));
            if now.entry(pod.uid.clone()).or_default().insert(direction) && !is_known {
                new.push((pod.clone(), direction));
            }
        }
        for (pod, direction) in new {
            let why = why_closed(direction);
            self.news(true, format!("{}: {why}", pod.full_name()));
            self.tell.pod(&pod, tell::CLOSED, why);
        }
        let mut before = std::mem::replace(&mut self.beyond, now);
        before.retain(|uid, _| !self.beyond.contains_key(uid));
        for uid in before.into_keys() {
            self.tell.pod_is_right(&uid, tell::CLOSED);
            if let Some(name) = self.world().pod(&uid).map(Pod::full_name) {
                self.news(false, format!("{name}: its policies are enforced again"));
            }
        }
    }

    /// Returns the pods that are closed, on the pods' own network and on further ones.
    fn all_beyond(&self) -> Vec<(&Pod, Direction)> {
        let Phase::Standing(compiler) = &self.phase else { return Vec::new() };
        let own = compiler.beyond().map(|(direction, at)| (compiler.world(), direction, at));
        own.chain(self.networks.beyond()).filter_map(pod_at).collect()
    }

    /// Says why an address of the pods' own network is closed, if its policies are the cause.
    pub(super) fn why_beyond(&self, address: IpAddr) -> Option<String> {
        let Phase::Standing(compiler) = &self.phase else { return None };
        let (direction, _) = compiler.beyond().find(|(_, at)| *at == address)?;
        Some(why_closed(direction))
    }
}

fn pod_at((world, direction, at): (&World, Direction, IpAddr)) -> Option<(&Pod, Direction)> {
    Some((world.claimants(at).first().copied()?, direction))
}
