//! The routes of flanneld, whose place this node takes: which go, and which show that flanneld still
//! runs here.

use std::net::IpAddr;

use ipnet::IpNet;

use super::Routing;
use crate::cluster::News;
use crate::node::Node;
use crate::object::Key;
use crate::plan::{Change, ForeignRoute, ObservedObjects};

/// flanneld has made no route yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("flanneld has no routes here yet, and pods would be cut off: start it first")]
pub struct NoRoutesOfFlanneld;

/// Returns the prefixes of the cluster to which there is a route of ours, and none of flanneld's.
///
/// # Errors
/// There is none of flanneld's at all.
pub fn without_flannels(
    observed: &ObservedObjects,
    ranges: &[IpNet],
) -> Result<Vec<IpNet>, NoRoutesOfFlanneld> {
    let ours = observed.objects().keys().filter_map(|key| match key {
        Key::Route { prefix } => Some(*prefix),
        _ => None,
    });
    let of_cluster = ours.filter(|prefix| ranges.iter().any(|range| range.contains(prefix)));
    let has_flannels = |prefix: &IpNet| {
        let routes = observed.foreign.get(prefix);
        routes.is_some_and(|routes| routes.iter().any(ForeignRoute::may_be_flannels))
    };
    let (there, lacking): (Vec<IpNet>, Vec<IpNet>) = of_cluster.partition(has_flannels);
    if there.is_empty() && !lacking.is_empty() {
        return Err(NoRoutesOfFlanneld);
    }
    Ok(lacking)
}

impl Routing {
    /// Returns the removals of flanneld's routes, once a source has given a complete list: where
    /// ours are wanted, and of peers that are gone or are not used. Until then a route of flanneld's
    /// may be newer than what the disk has.
    pub(super) fn flannels_routes<'a>(
        &self,
        prefixes: impl Iterator<Item = &'a IpNet>,
    ) -> Vec<Change> {
        if self.settings.flannel.is_none() || !self.complete {
            return Vec::new();
        }
        let mut changes = Vec::new();
        for prefix in prefixes {
            let Some(routes) = self.observed.foreign.get(prefix) else { continue };
            let is_wanted = self.wanted.get(&Key::Route { prefix: *prefix }).is_some();
            let node = self.used_at(*prefix);
            if !is_wanted && node.is_some() {
                continue;
            }
            let theirs = routes.iter().filter(|route| self.is_like_flannels(route, node));
            changes.extend(theirs.map(|route| Change::RemoveForeign(*prefix, route.clone())));
        }
        changes
    }

    /// Says what is cut off when a route of flanneld's goes, and none of ours takes its place. What
    /// is on the tunnel is this node's, and packets of a peer that is refused are dropped: its route
    /// alone would keep nothing.
    #[must_use]
    pub fn cut_off_by(&self, change: &Change) -> Option<News> {
        let Change::RemoveForeign(prefix, route) = change else { return None };
        if self.wanted.get(&Key::Route { prefix: *prefix }).is_some() {
            return None;
        }
        let name = self.cluster.owner_of(*prefix);
        let why = match name.and_then(|name| self.cluster.peer(name)?.unusable()) {
            Some(unusable) => unusable.to_string(),
            None => "no node that is used has the prefix".to_owned(),
        };
        let of_node = name.map_or_else(String::new, |name| format!("node {name}: "));
        let text = format!(
            "{of_node}flanneld's route {prefix} {route} goes, and none of ours takes its place: \
             {why}"
        );
        Some(News::warning(name, text))
    }

    /// Returns a route as flanneld makes them that was made since the first look: it was not there
    /// then, or this node has removed it since. In flanneld's place this shows that flanneld still
    /// runs on this node, or that another program makes its routes.
    ///
    /// `None` does not show that flanneld does not run: with tunnels it makes routes only when it
    /// starts, and to nodes that are new.
    #[must_use]
    pub fn flannels_return(&self) -> Option<String> {
        if self.settings.flannel.is_none() || self.settings.standby {
            return None;
        }
        self.observed.foreign.iter().find_map(|(prefix, routes)| {
            let earlier = self.found_first.get(prefix);
            let node = self.used_at(*prefix);
            let is_new = |route: &&ForeignRoute| {
                earlier.is_none_or(|earlier| !earlier.contains(route))
                    && self.is_like_flannels(route, node)
            };
            routes.iter().find(is_new).map(|route| format!("{prefix} {route}"))
        })
    }

    /// Takes note of the routes of others that the first look has found.
    pub(super) fn note_first(&mut self) {
        if self.settings.flannel.is_some() {
            self.found_first.clone_from(&self.observed.foreign);
        }
    }

    /// Takes note that a route of others was removed: if it is there again, another program has made
    /// it again.
    pub(super) fn note_removed(&mut self, change: &Change) {
        if let Change::RemoveForeign(prefix, route) = change
            && let Some(routes) = self.found_first.get_mut(prefix)
        {
            routes.retain(|other| other != route);
        }
    }

    /// Reports whether flanneld may have made a route to a prefix of a peer.
    fn is_like_flannels(&self, route: &ForeignRoute, peer: Option<&Node>) -> bool {
        let tunnels = self.cluster.own().tunnels.iter();
        let tunnels: Vec<&str> = tunnels.map(|of| &*of.name).collect();
        let underlay: Vec<IpAddr> =
            peer.into_iter().flat_map(|peer| peer.underlay.iter()).collect();
        route.is_like_flannels(&tunnels, &underlay)
    }

    /// Returns the used peer that a prefix is of.
    fn used_at(&self, prefix: IpNet) -> Option<&Node> {
        let (_, name) = self.cluster.of_address(prefix.network())?;
        self.cluster.peer(name)?.used()
    }
}

#[cfg(test)]
mod tests {
    use crate::object::Value;

    use super::*;

    /// A node is given back once flanneld reaches what the service reaches.
    #[test]
    fn what_flanneld_does_not_reach_yet_is_found() {
        let net = |text: &str| -> IpNet { text.parse().unwrap() };
        let (b, c, block) = (net("10.244.2.0/24"), net("10.244.3.0/24"), net("10.9.0.0/29"));
        let ours = [b, c, block]
            .map(|prefix| (Key::Route { prefix }, Value::Route { nexthop: Some(1), mtu: None }));
        let mut observed: ObservedObjects = ours.into_iter().collect();
        let ranges = [net("10.244.0.0/16")];
        // The route to this node's own pods is none of flanneld's.
        let bridge =
            ForeignRoute { metric: 0, protocol: 2, link: Some("cni0".into()), gateway: None };
        observed.foreign.insert(net("10.244.1.0/24"), vec![bridge.clone()]);
        assert_eq!(without_flannels(&observed, &ranges), Err(NoRoutesOfFlanneld));
        let flannels = ForeignRoute { protocol: 3, gateway: Some(b.network()), ..bridge };
        observed.foreign.insert(b, vec![flannels.clone()]);
        assert_eq!(without_flannels(&observed, &ranges).unwrap(), [c]);
        observed.foreign.insert(c, vec![flannels]);
        assert!(without_flannels(&observed, &ranges).unwrap().is_empty());
        // Without another node there is nothing to wait for.
        assert!(without_flannels(&ObservedObjects::default(), &ranges).unwrap().is_empty());
    }
}
