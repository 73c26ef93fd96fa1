//! Decides what to change for a running pod, from what it has and what it is to have.
//!
//! A network with an interface name stays if both its name and its interface name do; one without
//! an interface name stays if there is one more of its name. What else is requested of a network
//! that stays is not compared: another address needs another interface.

use node_api::multinet::{NetworkResult, PlannedNetwork};
use npwg::annotation;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// Interfaces to detach, the last first.
    pub(super) detach: Vec<String>,
    /// Networks to attach, in order, each with its interface.
    pub(super) attach: Vec<PlannedNetwork>,
}

/// Compares the two; the default network always stays, as a pod's address does.
pub(super) fn difference(has: &[NetworkResult], wanted: &[PlannedNetwork]) -> Difference {
    let mut left: Vec<&NetworkResult> = has.iter().filter(|one| !one.default).collect();
    let mut missing: Vec<&PlannedNetwork> = Vec::new();
    let mut unnamed: Vec<&PlannedNetwork> = Vec::new();
    for network in wanted.iter().filter(|one| !one.default) {
        match &network.ifname {
            Some(ifname) => match left.iter().position(|one| one.ifname == *ifname) {
                Some(place) if left[place].name == network.name => {
                    left.remove(place);
                }
                _ => missing.push(network),
            },
            None => unnamed.push(network),
        }
    }
    for network in unnamed {
        match left.iter().position(|one| one.name == network.name) {
            Some(place) => {
                left.remove(place);
            }
            None => missing.push(network),
        }
    }
    let detach: Vec<String> = left.iter().rev().map(|one| one.ifname.clone()).collect();
    let stays = |name: &str| {
        has.iter().any(|one| one.ifname == name) && !detach.iter().any(|gone| gone == name)
    };
    let asked: Vec<Option<cni::IfName>> = missing
        .iter()
        .map(|network| network.ifname.as_ref().and_then(|name| cni::IfName::new(name).ok()))
        .collect();
    let names = annotation::interface_names(&asked, stays);
    let attach = missing.iter().zip(names).map(|(network, name)| PlannedNetwork {
        ifname: Some(name.as_str().to_owned()),
        ..(*network).clone()
    });
    Difference { attach: attach.collect(), detach }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(all: &[(&str, &str)]) -> Vec<NetworkResult> {
        let one = |(name, ifname): &(&str, &str)| NetworkResult {
            name: (*name).to_owned(),
            ifname: (*ifname).to_owned(),
            default: *ifname == "eth0",
            ..NetworkResult::default()
        };
        all.iter().map(one).collect()
    }

    fn wanted(all: &[(&str, &str)]) -> Vec<PlannedNetwork> {
        let one = |(name, ifname): &(&str, &str)| PlannedNetwork {
            name: (*name).to_owned(),
            ifname: Some((*ifname).to_owned()).filter(|ifname| !ifname.is_empty()),
            default: *name == "cluster",
            ..PlannedNetwork::default()
        };
        all.iter().map(one).collect()
    }

    #[track_caller]
    fn check(
        has_now: &[(&str, &str)],
        wanted_now: &[(&str, &str)],
        detach: &[&str],
        attach: &[(&str, &str)],
    ) {
        let found = difference(&has(has_now), &wanted(wanted_now));
        assert_eq!(found.detach, detach);
        assert_eq!(found.attach, wanted(attach));
    }

    #[test]
    fn what_is_as_it_was_stays() {
        let now = [("cluster", "eth0"), ("a", "net1"), ("a", "net2"), ("b", "data0")];
        check(&now, &[("cluster", ""), ("a", ""), ("a", ""), ("b", "data0")], &[], &[]);
        check(&[], &[("cluster", "")], &[], &[]);
    }

    #[test]
    fn one_comes_and_one_goes() {
        let now = [("cluster", "eth0"), ("a", "net1"), ("b", "net2")];
        check(&now, &[("cluster", ""), ("b", "")], &["net1"], &[]);
        // The name is the next that is free, not the one of its place.
        check(&now, &[("cluster", ""), ("b", ""), ("c", ""), ("a", "")], &[], &[("c", "net3")]);
        check(&now, &[("cluster", "")], &["net2", "net1"], &[]);
        check(&now, &[("cluster", ""), ("c", "net1"), ("b", "")], &["net1"], &[("c", "net1")]);
    }

    #[test]
    fn the_default_network_is_not_touched() {
        check(&[("cluster", "eth0")], &[("other", "")], &[], &[("other", "net1")]);
        check(&[("cluster", "eth0")], &[], &[], &[]);
    }
}
