//! What is planned for peers, and which changes that needs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{FamilyPlan, PeerPlan, Routing, Todo};
use crate::cluster::{News, Outcome, Peer};
use crate::mtu;
use crate::node::Node;
use crate::object::{Key, METRIC, Set, Value};
use crate::path::{self, Choice, Hop, Path, Reachability, Way};
use crate::plan::{self, Change, ForeignRoute, Objects};
use crate::settings::{LinkName, OwnNode, Source};
use crate::wanted::{self, Reach};
use net::{IpFamily, PerFamily};

/// The way to an address that has not been looked up.
static UNKNOWN: Way = Way::Unknown;

impl Routing {
    /// Plans again for the peers that something has changed.
    pub(super) fn follow(&mut self, outcome: Outcome) -> Todo {
        let Outcome { affected, is_own_changed, news } = outcome;
        let mut todo = self.replan(&affected, news);
        todo.document_changed = is_own_changed || !affected.is_empty();
        todo
    }

    /// Plans for peers, and for this node where that depends on them.
    pub(super) fn replan(&mut self, peers: &BTreeSet<String>, news: Vec<News>) -> Todo {
        let mut todo = Todo { news, ..Todo::default() };
        if self.waiting.is_some() || !self.looked {
            return todo;
        }
        let mut keys = Vec::new();
        if self.ways.len() > 4 * self.cluster.peers().count() + 64 {
            // Most of these addresses are of peers that are gone.
            let cluster = &self.cluster;
            self.ways.retain(|address, _| cluster.of_underlay(*address).is_some());
        }
        for name in peers {
            let node = self.cluster.peer(name).and_then(Peer::used_shared);
            match node {
                Some(node) => self.plan_peer(&node, &mut keys, &mut todo),
                None => self.plan_gone(name, &mut keys, &mut todo),
            }
        }
        let (own, native) = (self.cluster.own(), self.native());
        let (underlay, routed) = (self.underlay(), self.routed(native));
        let mut of_node = wanted::of_node(&self.settings, own, native, underlay, routed);
        self.keep_tunnels(&mut of_node);
        let is_new = self.wanted.keys_of("").len() != of_node.len()
            || of_node.iter().any(|(key, value)| self.wanted.get(key) != Some(value));
        if is_new {
            keys.extend(self.wanted.replace("", of_node));
        }
        if !self.complete && self.cluster.listed() && self.unplanned.is_empty() {
            self.complete = true;
            todo.changes = self.everything();
        } else {
            todo.changes = self.planned(&keys.into_iter().collect());
        }
        todo
    }

    /// Keeps the tunnel over a family in which this node has no address, or no longer has one, as
    /// it is: the next address is given to the same link. No packet goes by it until then.
    fn keep_tunnels(&self, of_node: &mut Objects) {
        let own = self.cluster.own();
        for of in &own.tunnels {
            let key = Key::Tunnel { link: of.name.clone() };
            // One with other numbers is an earlier configuration's.
            if let Some(Value::Tunnel(there)) = self.observed.objects().get(&key)
                && there.kind.backend == of.backend
                && own.numbers(of.backend) == Some(there.kind.numbers)
                && own.node.underlay.get(of.underlay).is_none()
            {
                of_node.insert(key, Value::Tunnel(there.clone()));
            }
        }
    }

    fn plan_peer(&mut self, node: &Node, keys: &mut Vec<Key>, todo: &mut Todo) {
        let unknown: Vec<IpAddr> =
            node.underlay.iter().filter(|address| !self.ways.contains_key(address)).collect();
        if !unknown.is_empty() {
            // What was made for it before stays until then.
            todo.look_up.extend(unknown);
            if !self.plans.contains_key(&node.name) {
                self.unplanned.insert(node.name.clone());
            }
            return;
        }
        let own = self.cluster.own_shared();
        let mut families = PerFamily::default();
        let mut reach = PerFamily::default();
        for family in IpFamily::ALL {
            let prefixes: Vec<IpNet> = node.prefixes_of(family).collect();
            if prefixes.is_empty() {
                continue;
            }
            let reachability = self.reachability(node, &prefixes);
            let is_on_link = matches!(reachability.ways.get(family), Way::OnLink(_));
            let chosen = path::choose_path(&own.node, node, family, reachability);
            let (path, turns) = self.turn(node, family, chosen);
            // Within a segment the peer may offer it by now, and know that this node does.
            let may_turn = is_on_link && own.node.offers.direct && !chosen.is_plain();
            let hop = self.hop(node, family, path);
            let pod_mtu = self.path_mtu(&own, node, family, path, hop.as_ref());
            let mtu = pod_mtu.map(|mtu| self.with_learnt(mtu, path, hop.as_ref()));
            let link_mtu = match path.backend().zip(path.underlay(family)) {
                Some((backend, underlay)) => {
                    backend.backend().link_mtu(&self.settings, &own, underlay, hop.as_ref())
                }
                None => mtu,
            };
            let preferred = prefixes.iter().find_map(|prefix| {
                match self.observed.objects().get(&Key::Route { prefix: *prefix }) {
                    Some(Value::Route { nexthop, .. }) => *nexthop,
                    _ => None,
                }
            });
            let observed = &self.observed;
            let is_free = |id: u32| {
                !observed.foreign_nexthops.contains(&id)
                    && !observed.objects().contains_key(&Key::Nexthop { id })
            };
            let nexthop = self.ids.of(&node.name, family, preferred, is_free);
            *reach.get_mut(family) = Some(Reach {
                path,
                nexthop,
                hop,
                mtu: mtu.filter(|mtu| link_mtu.is_none_or(|link| *mtu < link)),
                turns: turns || may_turn,
            });
            *families.get_mut(family) = Some(FamilyPlan { prefixes, path, mtu, pod_mtu });
        }
        let plan = PeerPlan { families };
        self.tell_conflicts(node, &plan, &mut todo.news);
        self.unplanned.remove(&node.name);
        if let Some(before) = self.plans.get(&node.name) {
            todo.flush_flows.extend(changed_prefixes(before, Some(&plan)));
        }
        self.plans.insert(node.name.clone(), plan);
        keys.extend(self.wanted.replace(&node.name, wanted::of_peer(&own, node, &reach)));
    }

    fn plan_gone(&mut self, name: &str, keys: &mut Vec<Key>, todo: &mut Todo) {
        keys.extend(self.wanted.replace(name, Objects::new()));
        self.ids.release(name);
        self.unplanned.remove(name);
        for family in IpFamily::ALL {
            self.probes.remove(&(name.to_owned(), family));
            self.turns.remove(&(name.to_owned(), family));
        }
        if let Some(before) = self.plans.remove(name) {
            let prefixes = changed_prefixes(&before, None);
            self.conflicts.retain(|prefix, _| !prefixes.contains(prefix));
            todo.flush_flows.extend(prefixes);
        }
    }

    /// Chooses the path to a peer. The reasons are not kept: a caller that shows them has it chosen
    /// again.
    pub(crate) fn choose(&self, node: &Node, family: IpFamily, prefixes: &[IpNet]) -> Choice {
        let reachability = self.reachability(node, prefixes);
        path::choose(&self.cluster.own().node, node, family, reachability)
    }

    fn reachability(&self, node: &Node, prefixes: &[IpNet]) -> Reachability<'_> {
        let ways = PerFamily::with(|family| {
            let way = node.underlay.get(family).and_then(|address| self.ways.get(&address));
            way.unwrap_or(&UNKNOWN)
        });
        let is_learned = |prefix: &IpNet| {
            let routes = self.observed.foreign.get(prefix);
            routes.is_some_and(|routes| routes.iter().any(ForeignRoute::is_learned))
        };
        Reachability { ways, learned: prefixes.iter().all(is_learned) }
    }

    /// Returns the way that a path's packets go.
    fn hop(&self, node: &Node, family: IpFamily, path: Path) -> Option<Hop> {
        let underlay = path.underlay(family).unwrap_or(family);
        match self.ways.get(&node.underlay.get(underlay)?)? {
            Way::OnLink(hop) | Way::ByGateway(hop) => Some(hop.clone()),
            Way::Unknown | Way::Missing => None,
        }
    }

    /// Returns what fits through a path, by what both ends know of the underlay, and nobody else says
    /// of it.
    fn path_mtu(
        &self,
        own: &OwnNode,
        node: &Node,
        family: IpFamily,
        path: Path,
        hop: Option<&Hop>,
    ) -> Option<u32> {
        let underlay = path.underlay(family)?;
        let uplink = || own.uplinks.get(underlay).as_ref().map(|uplink| uplink.mtu);
        let way = self.settings.underlay_mtu.or(hop.map(|hop| hop.mtu)).or_else(uplink)?;
        let published = match self.settings.source {
            Source::File => node.mtu,
            // A node says it of itself, and all pods of the cluster follow.
            Source::Kubernetes | Source::Etcd => node.mtu.map(|mtu| mtu.max(mtu::least(path))),
        };
        Some(mtu::of_path(path, way, published))
    }

    /// Returns what fits through a path if what the kernel has learnt on the way counts too. Anybody can
    /// send the kernel that, so pods everywhere keep IPv6.
    fn with_learnt(&self, mtu: u32, path: Path, hop: Option<&Hop>) -> u32 {
        match hop.and_then(|hop| hop.learnt_mtu) {
            // A person knows better.
            Some(learnt) if self.settings.underlay_mtu.is_none() => {
                mtu.min(mtu::of_path(path, learnt.max(mtu::least(path)), None))
            }
            _ => mtu,
        }
    }

    /// Reports routes of other programs that are in the way of a peer's.
    fn tell_conflicts(&mut self, node: &Node, plan: &PeerPlan, news: &mut Vec<News>) {
        if self.observed.foreign.is_empty() && self.conflicts.is_empty() {
            return;
        }
        let own = self.cluster.own();
        let tunnels: Vec<&str> = own.tunnels.iter().map(|of| &*of.name).collect();
        let underlay: Vec<IpAddr> = node.underlay.iter().collect();
        let mut conflicts = Vec::new();
        for prefix in node.all_prefixes() {
            let plan = plan.families.get(IpFamily::of_prefix(prefix)).as_ref();
            // A path without a route of ours follows theirs.
            let ours = plan.is_some_and(|plan| plan.path.has_route());
            let routes = self.observed.foreign.get(&prefix).filter(|_| ours);
            let wins = |route: &&ForeignRoute| {
                let flannels =
                    self.settings.flannel.is_some() && route.is_like_flannels(&tunnels, &underlay);
                route.metric <= METRIC && !route.is_learned() && !flannels
            };
            conflicts.push((prefix, routes.and_then(|routes| routes.iter().find(wins)).cloned()));
        }
        for (prefix, route) in conflicts {
            let Some(route) = route else {
                self.conflicts.remove(&prefix);
                continue;
            };
            if self.conflicts.get(&prefix) != Some(&route) {
                let name = &node.name;
                let text = format!(
                    "node {name}: another program's route is in the way and stays: {prefix} {route}"
                );
                news.push(News::warning(Some(name), text));
                self.conflicts.insert(prefix, route);
            }
        }
    }

    /// Returns the changes of everything.
    pub(super) fn everything(&self) -> Vec<Change> {
        if self.waiting.is_some() || !self.looked {
            return Vec::new();
        }
        let mut changes = plan::difference(&self.wanted, &self.observed);
        changes.retain(|change| self.may(change) && self.goes(change));
        before_removals(&mut changes, self.flannels_routes(self.observed.foreign.keys()));
        changes
    }

    /// Returns the changes where the kernel differs from what is wanted.
    pub(super) fn repairs(&self, keys: &BTreeSet<Key>) -> Todo {
        let mut changes = self.planned(keys);
        changes.retain(|change| self.goes(change));
        Todo { changes, ..Todo::default() }
    }

    /// Reports whether a change is not a removal, or is a removal that can be made. Before all
    /// peers of a complete list are planned, nothing is removed: an object that no planned peer
    /// wants may belong to a peer that is not planned yet. Before the records of spaces were read,
    /// no route of a block is removed.
    fn goes(&self, change: &Change) -> bool {
        let Change::Remove(key, _) = change else { return true };
        let may_be_block = match key {
            Key::Route { prefix }
            | Key::Unreachable { prefix }
            | Key::Element { set: Set::Local | Set::Plain, prefix } => {
                !self.cluster.blocks_listed() && self.settings.is_of_space(*prefix)
            }
            _ => false,
        };
        self.wanted.get(key).is_some() || (self.complete && !may_be_block)
    }

    /// Returns the changes of objects of which something else is wanted now.
    fn planned(&self, keys: &BTreeSet<Key>) -> Vec<Change> {
        if self.waiting.is_some() || !self.looked {
            return Vec::new();
        }
        let mut changes = plan::difference_of(keys, &self.wanted, &self.observed);
        changes.retain(|change| self.may(change));
        let prefixes = keys.iter().filter_map(|key| match key {
            Key::Route { prefix } => Some(prefix),
            _ => None,
        });
        before_removals(&mut changes, self.flannels_routes(prefixes));
        changes
    }

    /// Reports whether a change can be made now: by a link of others that is down, nothing can.
    fn may(&self, change: &Change) -> bool {
        if self.down.is_empty() {
            return true;
        }
        let (Change::Create(_, value) | Change::Replace(_, value)) = change else { return true };
        let nexthop = match value {
            Value::Route { nexthop: Some(id), .. } => self.wanted.get(&Key::Nexthop { id: *id }),
            value => Some(value),
        };
        match nexthop {
            Some(Value::Nexthop(nexthop)) => !self.down.contains(&nexthop.link),
            _ => true,
        }
    }

    /// Returns the families of which a peer's path is native.
    fn native(&self) -> PerFamily<bool> {
        PerFamily::with(|family| {
            self.plans.values().any(|plan| {
                let plan = plan.families.get(family).as_ref();
                plan.is_some_and(|plan| plan.path == Path::Native)
            })
        })
    }

    /// Reports whether the network between the nodes knows the way to pods of a family, of one peer at
    /// least.
    #[must_use]
    pub fn is_native(&self, family: IpFamily) -> bool {
        self.cluster.own().node.offers.native || *self.native().get(family)
    }

    /// Returns the links by which packets of other nodes may come.
    fn underlay(&self) -> BTreeSet<LinkName> {
        let own = self.cluster.own();
        let mut links = own.links.clone();
        for way in self.ways.values() {
            if let Way::OnLink(hop) | Way::ByGateway(hop) = way
                && !links.contains(&hop.link)
            {
                links.insert(hop.link.clone());
            }
        }
        for tunnel in &own.tunnels {
            links.remove(&tunnel.name);
        }
        links
    }

    /// Returns where the kernel's routes decide by which uplink packets from pods' addresses come:
    /// everywhere, if the network between the nodes knows the way to a peer; in spaces, if a peer's
    /// packets come without a tunnel; and where other programs have routes, but for peers whose packets
    /// may come by any link between nodes. An administrator's route may be in the way of ours.
    fn routed(&self, native: PerFamily<bool>) -> BTreeSet<IpNet> {
        let own = self.cluster.own();
        let plan_of = |name: &str, family: IpFamily| {
            let plan = self.plans.get(name);
            plan.and_then(|plan| plan.families.get(family).as_ref())
        };
        let plain = PerFamily::with(|family| {
            let mut plans = self.plans.keys().filter_map(|name| plan_of(name, family));
            !self.settings.space_ranges.is_empty() && plans.any(|plan| plan.path.is_plain())
        });
        let is_native =
            |prefix: &IpNet| own.node.offers.native || *native.get(IpFamily::of_prefix(*prefix));
        let of_cluster = self.settings.cluster_ranges.iter().filter(|range| is_native(range));
        let of_spaces = self.settings.space_ranges.iter();
        let of_spaces =
            of_spaces.filter(|range| is_native(range) || *plain.get(IpFamily::of_prefix(**range)));
        let is_plain = |prefix: IpNet| {
            let Some((of_peer, name)) = self.cluster.of_address(prefix.network()) else {
                return false;
            };
            let plan = plan_of(name, IpFamily::of_prefix(prefix));
            of_peer.contains(&prefix) && plan.is_some_and(|plan| plan.path.is_plain())
        };
        // By a tunnel, no route is needed.
        let is_tunnel = |link: &LinkName| own.tunnel_named(link).is_some();
        let leads = |route: &ForeignRoute| match &route.link {
            Some(link) => !is_tunnel(link),
            None => route.gateway.is_some(),
        };
        let of_others = self.observed.foreign.iter().filter(|(prefix, routes)| {
            routes.iter().any(leads) && !is_native(prefix) && !is_plain(**prefix)
        });
        let ranges = of_cluster.chain(of_spaces).map(IpNet::trunc);
        ranges.chain(of_others.map(|(prefix, _)| *prefix)).collect()
    }

    pub(super) fn whose_prefix(&self, prefix: IpNet) -> Option<String> {
        self.cluster.of_address(prefix.network()).map(|(_, name)| name.to_owned())
    }
}

/// Puts changes behind what is made, and before what is removed: routes go before what they need.
fn before_removals(changes: &mut Vec<Change>, more: Vec<Change>) {
    let is_removal = |change: &Change| matches!(change, Change::Remove(..));
    let kept = changes.iter().rposition(|change| !is_removal(change)).map_or(0, |last| last + 1);
    changes.splice(kept..kept, more);
}

/// Returns the prefixes whose packets go another way now.
fn changed_prefixes(before: &PeerPlan, after: Option<&PeerPlan>) -> Vec<IpNet> {
    let mut changed = Vec::new();
    for (family, before) in before.families.iter() {
        let Some(before) = before else { continue };
        let after = after.and_then(|after| after.families.get(family).as_ref());
        let same_path = after.is_some_and(|after| after.path == before.path);
        let stays = |prefix: &&IpNet| {
            same_path && after.is_some_and(|after| after.prefixes.contains(prefix))
        };
        changed.extend(before.prefixes.iter().filter(|prefix| !stays(prefix)));
    }
    changed
}
