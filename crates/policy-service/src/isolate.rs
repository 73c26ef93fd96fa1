//! The isolation of namespaces, as the configuration says it.

use std::collections::BTreeSet;

use agent::config::{self, IsolationScope};
use agent::reachable::ReachableEnd;
use policy::Protocol;
use policy::isolation::{Exemption, Isolation};
use policy::labels::{NAMESPACE_NAME, Operator, Requirement, Selector};
use policy::policy::{Block, Peer, PodSet, Ports};

/// The label by which a namespace chooses for itself.
const LABEL: &str = "policy.netwright.io/isolate";

/// Where servers of the cluster's names listen: CoreDNS, and OpenShift's.
const DNS_PORTS: [u16; 2] = [53, 5353];

/// Returns which namespaces are isolated, and what their pods may do all the same.
pub(crate) fn isolation(config: &config::Policy) -> Isolation {
    let of_label = |value: &str| BTreeSet::from([value.to_owned()]);
    let label = |must| Requirement { key: LABEL.to_owned(), must };
    let namespaces = match config.isolate.0 {
        IsolationScope::None => Selector::new([label(Operator::In(of_label("true")))]),
        IsolationScope::Namespaces => {
            let except: BTreeSet<String> = config.isolate_except.iter().cloned().collect();
            let named = (!except.is_empty()).then(|| Requirement {
                key: NAMESPACE_NAME.to_owned(),
                must: Operator::NotIn(except),
            });
            Selector::new([label(Operator::NotIn(of_label("false")))].into_iter().chain(named))
        }
    };
    let exemptions = |list: &[ReachableEnd]| -> Vec<Exemption> {
        list.iter().map(|one| Exemption { peer: peer(one), ports: None }).collect()
    };
    let dns = config
        .isolate_dns
        .iter()
        .map(|server| Exemption { peer: peer(server), ports: Some(dns_ports()) });
    Isolation {
        namespaces,
        from: exemptions(&config.isolate_from),
        to: dns.chain(exemptions(&config.isolate_to)).collect(),
    }
}

fn dns_ports() -> Vec<Ports> {
    let of = |protocol| DNS_PORTS.map(|port| Ports::Range { protocol, first: port, last: port });
    [of(Protocol::Udp), of(Protocol::Tcp)].concat()
}

fn peer(reachable: &ReachableEnd) -> Peer {
    match reachable {
        ReachableEnd::Range(range) => Peer::Block(Block::whole(*range)),
        ReachableEnd::Pods { namespace, label } => {
            let pods = label.iter().map(|(key, value)| Requirement {
                key: key.clone(),
                must: Operator::In(BTreeSet::from([value.clone()])),
            });
            Peer::Pods(PodSet::own(namespace, Selector::new(pods)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use agent::setting::Item as _;
    use policy::{Change, Traffic, World, verdict};
    use serde_json::json;

    use super::*;

    /// A world with a pod in each of these namespaces, which has its number as its address.
    fn world(config: &config::Policy, namespaces: &[(&str, &str)]) -> World {
        let mut objects: Vec<Change> = Vec::new();
        for (number, (name, label)) in namespaces.iter().enumerate() {
            let labels = if label.is_empty() { json!({}) } else { json!({LABEL: label}) };
            let namespace = json!({"metadata": {"name": name, "labels": labels}});
            objects.push(policy::Namespace::read(&namespace).unwrap().into());
            let pod = json!({
                "metadata": {
                    "namespace": name, "name": name, "uid": name, "labels": {"k8s-app": "kube-dns"},
                },
                "spec": {"nodeName": "n1"},
                "status": {"podIP": format!("10.0.0.{}", number + 1)},
            });
            objects.push(policy::Pod::read(&pod).unwrap().into());
        }
        World::of(Some(isolation(config)), objects)
    }

    fn may(world: &World, from: u8, to: u8, traffic: Traffic) -> bool {
        let at = |number: u8| IpAddr::from([10, 0, 0, number]);
        verdict(world, at(from), at(to), traffic).allowed()
    }

    #[test]
    fn namespaces_are_isolated() {
        let web = Traffic::to(Protocol::Tcp, 80);
        let dns = Traffic::to(Protocol::Udp, 53);
        let namespaces =
            [("a", ""), ("b", ""), ("kube-system", ""), ("open", "false"), ("shut", "true")];
        let world_of = |change: &dyn Fn(&mut config::Policy)| {
            let mut config = config::Policy::default();
            change(&mut config);
            world(&config, &namespaces)
        };
        let none = world_of(&|_| {});
        assert!(may(&none, 1, 2, web) && !may(&none, 1, 5, web) && !may(&none, 5, 1, web));
        let all = world_of(&|config| config.isolate.0 = IsolationScope::Namespaces);
        assert!(!may(&all, 1, 2, web) && may(&all, 1, 1, web));
        assert!(may(&all, 4, 3, web), "neither is isolated");
        assert!(may(&all, 1, 3, dns) && !may(&all, 1, 3, web), "the cluster's names");
        let more = world_of(&|config| {
            config.isolate.0 = IsolationScope::Namespaces;
            config.isolate_except = Vec::new();
            config.isolate_from = vec![ReachableEnd::parse("open").unwrap()];
            config.isolate_to = vec![ReachableEnd::parse("192.0.2.0/24").unwrap()];
        });
        assert!(may(&more, 4, 1, web) && !may(&all, 4, 1, web) && !may(&more, 2, 1, web));
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(verdict(&more, at("10.0.0.1"), at("192.0.2.7"), web).allowed());
        assert!(!verdict(&more, at("10.0.0.1"), at("192.0.3.7"), web).allowed());
        assert!(!verdict(&more, at("192.0.2.7"), at("10.0.0.1"), web).allowed());
    }
}
