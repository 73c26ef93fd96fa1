//! The state of this node: how far it is, whether peers answer, what fits.

use std::collections::BTreeSet;
use std::time::Duration;

use ipnet::IpNet;

use super::{Answer, PeerPlan, Phase, Probe, Routing, Target};
use crate::condition::{self, Condition, Health, ProgrammingFault};
use crate::flannel::subnet_env::SubnetEnv;
use crate::node::Node;
use crate::object::{Key, Value};
use crate::path::Path;
use crate::settings::PodMtu;
use crate::time::Time;
use crate::wanted;
use net::IpFamily;

/// How long an answer of a peer counts.
const FRESH: Duration = Duration::from_secs(180);

impl Routing {
    /// Returns what can be probed: every peer and family that has a path, and something there that
    /// answers.
    pub fn targets(&self) -> impl Iterator<Item = Target> {
        let used = self.cluster.used();
        used.flat_map(|(_, node)| IpFamily::ALL.map(|family| self.target(node, family))).flatten()
    }

    fn target(&self, node: &Node, family: IpFamily) -> Option<Target> {
        let plan = self.plans.get(&node.name)?.families.get(family).as_ref()?;
        let underlay = node.underlay.get(plan.path.underlay(family)?)?;
        let tunnel = node.tunnel_address(family).filter(|_| node.has_tunnels());
        // Without tunnels, only pods' gateway has an address of the peer's prefix.
        let path = tunnel.or_else(|| match plan.path {
            Path::Direct => Some(underlay),
            Path::Native => node.gateway_address(family),
            _ => None,
        })?;
        let (peer, by) = (node.name.clone(), plan.path);
        Some(Target { peer, family, by, path, underlay, mtu: plan.mtu })
    }

    /// Returns how far this node is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        if let Some(why) = &self.waiting {
            return Phase::Waiting(why.clone());
        }
        if let Some(since) = self.cluster.silent_since() {
            return Phase::Degraded(since);
        }
        if !self.cluster.listed() {
            return Phase::Restoring;
        }
        if self.settings.standby {
            return Phase::Standby;
        }
        let is_done =
            |(key, value): (&Key, &Value)| self.has(key, value) || self.is_still_refused(key);
        let all = self.looked && self.unplanned.is_empty() && self.wanted.iter().all(is_done);
        // Objects that are to be removed are not among the wanted ones: `failing` finds removals
        // that failed.
        if all && self.failing().is_none() { Phase::Ready } else { Phase::Syncing }
    }

    /// Returns the condition `NetworkUnavailable`; `None`: it stays as it is.
    #[must_use]
    pub fn condition(&self, now: Time) -> Option<Condition> {
        if self.settings.standby {
            return None;
        }
        let own = self.wanted.keys_of("");
        let failure = own.iter().find_map(|key| self.failures.get(key));
        let is_there = |key: &Key| self.wanted.get(key).is_some_and(|value| self.has(key, value));
        let programmed = if let Some(failure) = failure {
            Err(ProgrammingFault::Failed(failure.error.clone()))
        } else if self.waiting.is_none() && self.looked && own.iter().all(is_there) {
            Ok(())
        } else {
            Err(ProgrammingFault::NotYet)
        };
        let has_path = |plan: &&PeerPlan| {
            let mut families = plan.families.iter().filter_map(|(_, plan)| plan.as_ref());
            families.any(|plan| plan.path != Path::None)
        };
        let health = Health {
            programmed,
            peers_known: self.cluster.listed(),
            peers: self.plans.values().filter(has_path).count(),
            answered: self.answered(now),
            cut_off_since: self.cut_off_since,
        };
        condition::decide(&health, now)
    }

    /// Returns the MTU of pods, in bytes; `None` while nothing is known of the underlay.
    #[must_use]
    pub fn pod_mtu(&self) -> Option<u32> {
        let own = self.cluster.own();
        let uplinks = || own.uplinks.iter().filter_map(|(_, uplink)| uplink.as_ref());
        let underlay =
            || self.settings.underlay_mtu.or_else(|| uplinks().map(|uplink| uplink.mtu).min());
        match self.settings.pod_mtu {
            PodMtu::Fixed(mtu) => Some(mtu),
            PodMtu::Underlay => underlay(),
            PodMtu::Paths => {
                let plans = self.plans.values().flat_map(|plan| plan.families.iter());
                let used = plans.filter_map(|(_, plan)| plan.as_ref()?.pod_mtu).min();
                // Without a peer, as if every offer were in use: the first peer changes nothing.
                let offered = || {
                    let tunnels = IpFamily::ALL.into_iter();
                    let tunnels = tunnels.flat_map(|of| wanted::tunnels(&self.settings, own, of));
                    tunnels.map(|(_, tunnel)| tunnel.mtu).min()
                };
                used.or_else(offered).or_else(underlay)
            }
        }
    }

    /// Returns what flannel's plugin reads; `None` while there is no prefix or no MTU.
    #[must_use]
    pub fn subnet_env(&self) -> Option<SubnetEnv> {
        let own = &self.cluster.own().node;
        let mut subnets: Vec<IpNet> = Vec::new();
        let mut networks: Vec<IpNet> = Vec::new();
        for family in IpFamily::ALL {
            let mut of_family = own
                .prefixes
                .iter()
                .copied()
                .filter(|prefix| IpFamily::of_prefix(*prefix) == family);
            let Some(subnet) = of_family.next() else { continue };
            let mut ranges = self.settings.cluster_ranges.iter().copied();
            networks.push(ranges.find(|range| range.contains(&subnet))?);
            subnets.push(subnet);
        }
        if subnets.is_empty() {
            return None;
        }
        Some(SubnetEnv { networks, subnets, mtu: self.pod_mtu()?, ip_masq: true })
    }

    fn fresh(&self, now: Time) -> impl Iterator<Item = (&str, &Probe)> {
        let fresh = move |at: &Time| now.since(*at) <= FRESH;
        let probes = self.probes.iter().filter(move |(_, (_, at))| fresh(at));
        probes.map(|((name, _), (probe, _))| (name.as_str(), probe))
    }

    fn answered(&self, now: Time) -> usize {
        let answered = self.fresh(now).filter(|(_, probe)| probe.path == Answer::Yes);
        answered.map(|(name, _)| name).collect::<BTreeSet<_>>().len()
    }

    /// Finds out since when peers are cut off: none answers by its path, one at least by its
    /// underlay address.
    ///
    /// Peers with native paths do not count: the network may drop questions to pods' addresses, and
    /// carry everything else.
    pub(super) fn judge_probes(&mut self, now: Time) {
        let is_native = |name: &str, family: IpFamily| {
            let plan = self.plans.get(name).and_then(|plan| plan.families.get(family).as_ref());
            plan.is_some_and(|plan| plan.path == Path::Native)
        };
        let mut probes = self.probes.iter();
        let is_any = probes.any(|((name, family), (probe, at))| {
            let is_cut_off = probe.path == Answer::No && probe.underlay == Answer::Yes;
            is_cut_off && now.since(*at) <= FRESH && !is_native(name, *family)
        });
        let any = is_any && self.answered(now) == 0;
        self.cut_off_since = any.then(|| self.cut_off_since.unwrap_or(now));
    }
}
