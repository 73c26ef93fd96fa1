//! Settings that exclude or need each other.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use crate::config::{Config, PolicySource, RoutingFlannel, RoutingSource};
use crate::keys::KeyName;

/// What the process finds around it that settings depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Surroundings {
    /// The API server is found without a kubeconfig, as in a pod, or is not needed.
    pub api_server: bool,
    /// Addresses are taken over from one store into another.
    pub two_stores: bool,
}

/// Something that a configuration must not say.
pub(crate) struct Rule {
    /// The keys that it is about; a message shows the first of them that is set.
    pub(crate) keys: &'static [KeyName],
    /// What is wrong, and what to do about it.
    pub(crate) error: &'static str,
    pub(crate) hint: &'static str,
    pub(crate) broken: fn(&Config, Surroundings) -> bool,
}

/// The longest time for the plugins of a Docker network: Docker's user waits for it.
const LONGEST_DOCKER_TIMEOUT: Duration = Duration::from_secs(300);
/// Shorter leases are renewed more often than useful.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);
/// A service on a loaded machine may need some seconds.
const SHORTEST_WATCHDOG: Duration = Duration::from_secs(5);

fn are_two_of_a_family(addresses: &[IpAddr]) -> bool {
    let of_v4 = addresses.iter().filter(|address| address.is_ipv4()).count();
    1 < of_v4 || 1 < addresses.len() - of_v4
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

pub(crate) const RULES: &[Rule] = &[
    Rule {
        keys: &[("agent", "watchdog")],
        error: "watchdog is shorter than 5s",
        hint: "the default is 2m",
        broken: |config, _| config.agent.watchdog < SHORTEST_WATCHDOG,
    },
    Rule {
        keys: &[("ipam", "kubeconfig"), ("ipam", "etcd")],
        error: "etcd and kubeconfig exclude each other: addresses are kept in one place",
        hint: "remove one of them",
        broken: |config, around| {
            let ipam = &config.ipam;
            !around.two_stores && !ipam.etcd.is_empty() && ipam.kubeconfig.is_some()
        },
    },
    Rule {
        keys: &[("ipam", "etcd-cert"), ("ipam", "etcd-key")],
        error: "etcd-cert and etcd-key go together",
        hint: "set both, or neither",
        broken: |config, _| config.ipam.etcd_cert.is_some() != config.ipam.etcd_key.is_some(),
    },
    Rule {
        keys: &[("ipam", "etcd-ca"), ("ipam", "etcd-cert"), ("ipam", "etcd-key")],
        error: "etcd-ca, etcd-cert and etcd-key need etcd",
        hint: "set etcd to the URLs of its members",
        broken: |config, _| {
            let ipam = &config.ipam;
            let files = [&ipam.etcd_ca, &ipam.etcd_cert, &ipam.etcd_key];
            ipam.etcd.is_empty() && files.iter().any(|file| file.is_some())
        },
    },
    Rule {
        keys: &[("ipam", "lease")],
        error: "lease is shorter than 1s",
        hint: "the default is 1h",
        broken: |config, _| config.ipam.lease < SHORTEST_LEASE,
    },
    Rule {
        keys: &[("ipam", "enable")],
        error: "ipam has no store for its addresses: this is not a pod, and neither etcd nor kubeconfig is set",
        hint: "set etcd to the URLs of its members, or kubeconfig to a file",
        broken: |config, around| {
            let ipam = &config.ipam;
            ipam.enable && !around.api_server && ipam.etcd.is_empty() && ipam.kubeconfig.is_none()
        },
    },
    Rule {
        keys: &[("multinet", "enable")],
        error: "multinet finds no API server: this is not a pod, and kubeconfig is not set",
        hint: "set kubeconfig to a file",
        broken: |config, around| {
            config.multinet.enable && !around.api_server && config.multinet.kubeconfig.is_none()
        },
    },
    Rule {
        keys: &[("dhcp", "pidfile")],
        error: "Error writing pidfile: path not absolute",
        hint: "write the whole path, from / on",
        broken: |config, _| config.dhcp.pidfile.as_ref().is_some_and(|path| !path.is_absolute()),
    },
    Rule {
        keys: &[("docker", "timeout")],
        error: "timeout must be from 1s to 5m",
        hint: "the default is 10s",
        broken: |config, _| {
            let timeout = config.docker.timeout;
            timeout < Duration::from_secs(1) || LONGEST_DOCKER_TIMEOUT < timeout
        },
    },
    Rule {
        keys: &[("repair", "private-key"), ("repair", "certificate")],
        error: "certificate and private-key go together",
        hint: "set both, or neither",
        broken: |config, _| {
            config.repair.certificate.is_some() != config.repair.private_key.is_some()
        },
    },
    Rule {
        keys: &[("collect", "interval")],
        error: "interval is shorter than 1ms",
        hint: "the default is 1m",
        broken: |config, _| config.collect.interval < Duration::from_millis(1),
    },
    Rule {
        keys: &[("repair", "interval")],
        error: "interval is shorter than 1ms",
        hint: "the default is 1m",
        broken: |config, _| config.repair.interval < Duration::from_millis(1),
    },
    Rule {
        keys: &[("routing", "nodes"), ("routing", "enable")],
        error: "routing does not know the other nodes: nodes is not set",
        hint: "set nodes to a file with the list of nodes, or source to kubernetes or etcd",
        broken: |config, _| {
            let routing = &config.routing;
            routing.enable && routing.source.0 == RoutingSource::File && routing.nodes.is_none()
        },
    },
    Rule {
        keys: &[("routing", "source"), ("routing", "enable")],
        error: "routing finds no API server: this is not a pod, and kubeconfig is not set",
        hint: "set kubeconfig to a file",
        broken: |config, around| {
            let routing = &config.routing;
            routing.enable
                && routing.source.0 == RoutingSource::Kubernetes
                && !around.api_server
                && routing.kubeconfig.is_none()
        },
    },
    Rule {
        keys: &[("routing", "nodes"), ("routing", "source")],
        error: "nodes is a list for the source file, and source is another",
        hint: "remove one of them",
        broken: |config, _| {
            config.routing.source.0 != RoutingSource::File && config.routing.nodes.is_some()
        },
    },
    Rule {
        keys: &[("routing", "source"), ("routing", "enable")],
        error: "routing does not know etcd's members: etcd is not set",
        hint: "set etcd to the URLs of its members",
        broken: |config, _| {
            let routing = &config.routing;
            routing.enable && routing.source.0 == RoutingSource::Etcd && routing.etcd.is_empty()
        },
    },
    Rule {
        keys: &[
            ("routing", "etcd"),
            ("routing", "etcd-ca"),
            ("routing", "etcd-cert"),
            ("routing", "etcd-key"),
            ("routing", "underlay"),
        ],
        error: "etcd, etcd-ca, etcd-cert, etcd-key and underlay need the source etcd",
        hint: "set source to etcd, or remove them; all but underlay may also be for spaces",
        broken: |config, _| {
            let routing = &config.routing;
            let files = [&routing.etcd_ca, &routing.etcd_cert, &routing.etcd_key];
            let of_etcd = !routing.etcd.is_empty() || files.iter().any(|file| file.is_some());
            let of_spaces = !routing.spaces.is_empty();
            routing.source.0 != RoutingSource::Etcd
                && (!routing.underlay.is_empty() || (of_etcd && !of_spaces))
        },
    },
    Rule {
        keys: &[("routing", "space-ranges"), ("routing", "spaces")],
        error: "spaces and space-ranges go together",
        hint: "spaces are names, as kubectl get addressspaces shows them; space-ranges are where their blocks are",
        broken: |config, _| {
            config.routing.spaces.is_empty() != config.routing.space_ranges.is_empty()
        },
    },
    Rule {
        keys: &[("routing", "space-ranges"), ("routing", "cluster")],
        error: "space-ranges overlap cluster, services or each other",
        hint: "give the network of the space a range of its own",
        broken: |config, _| {
            let routing = &config.routing;
            let spaces = &routing.space_ranges;
            let others = routing.cluster.iter().chain(&routing.services);
            let twice = spaces
                .iter()
                .enumerate()
                .any(|(place, range)| spaces[..place].iter().any(|other| overlap(range, other)));
            let mut others =
                others.filter(|other| spaces.iter().any(|range| overlap(range, other)));
            twice || others.next().is_some()
        },
    },
    Rule {
        keys: &[("routing", "spaces")],
        error: "routing finds no records of spaces: this is not a pod, and neither etcd nor kubeconfig is set",
        hint: "set what ipam has: etcd to the URLs of its members, or kubeconfig to a file",
        broken: |config, around| {
            let routing = &config.routing;
            routing.enable
                && !routing.spaces.is_empty()
                && !around.api_server
                && routing.etcd.is_empty()
                && routing.kubeconfig.is_none()
        },
    },
    Rule {
        keys: &[("ipam", "underlay")],
        error: "underlay has two addresses of one family",
        hint: "other nodes reach this one by one address of IPv4, and one of IPv6",
        broken: |config, _| are_two_of_a_family(&config.ipam.underlay),
    },
    Rule {
        keys: &[("routing", "etcd-cert"), ("routing", "etcd-key")],
        error: "etcd-cert and etcd-key go together",
        hint: "set both, or neither",
        broken: |config, _| config.routing.etcd_cert.is_some() != config.routing.etcd_key.is_some(),
    },
    Rule {
        keys: &[("routing", "underlay")],
        error: "underlay has two addresses of one family",
        hint: "other nodes reach this one by one address of IPv4, and one of IPv6",
        broken: |config, _| are_two_of_a_family(&config.routing.underlay),
    },
    Rule {
        keys: &[("routing", "flannel"), ("routing", "source")],
        error: "etcd has flannel's leases, and flannel is none",
        hint: "set flannel to replace, also where no node has a flanneld, or to standby",
        broken: |config, _| {
            let routing = &config.routing;
            routing.source.0 == RoutingSource::Etcd && routing.flannel.0 == RoutingFlannel::None
        },
    },
    Rule {
        keys: &[("routing", "cluster"), ("routing", "enable")],
        error: "routing does not know the ranges of pods: cluster is not set",
        hint: "set cluster to the ranges that contain all nodes' prefixes, such as 10.244.0.0/16",
        broken: |config, _| {
            let routing = &config.routing;
            let of_flannel = routing.flannel.0 != RoutingFlannel::None
                || routing.source.0 == RoutingSource::Etcd;
            routing.enable && !of_flannel && routing.cluster.is_empty()
        },
    },
    Rule {
        keys: &[("routing", "services"), ("routing", "cluster")],
        error: "a range of pods lies in a range of services: every node's prefix would be refused",
        hint: "correct services: it is what the API server has as --service-cluster-ip-range",
        broken: |config, _| {
            let routing = &config.routing;
            let mut ranges = routing.cluster.iter();
            ranges.any(|range| routing.services.iter().any(|services| services.contains(range)))
        },
    },
    Rule {
        keys: &[("routing", "cluster"), ("routing", "flannel")],
        error: "cluster is set, and flanneld's configuration has the ranges of pods too",
        hint: "remove cluster: what flannel-config or flannel-config-map names counts, or etcd's",
        broken: |config, _| {
            let routing = &config.routing;
            routing.flannel.0 != RoutingFlannel::None && !routing.cluster.is_empty()
        },
    },
    Rule {
        keys: &[("routing", "flannel-config-map")],
        error: "flannel-config-map is not NAMESPACE/NAME, and not none",
        hint: "the default is kube-flannel/kube-flannel-cfg",
        broken: |config, _| {
            let map = &config.routing.flannel_config_map;
            let is_one = |(namespace, name): (&str, &str)| {
                !namespace.is_empty() && !name.is_empty() && !name.contains('/')
            };
            map != "none" && !map.split_once('/').is_some_and(is_one)
        },
    },
    Rule {
        keys: &[("routing", "flannel"), ("routing", "source")],
        error: "flannel needs the source kubernetes or etcd: flanneld's records are there",
        hint: "set source to kubernetes or etcd, or flannel to none",
        broken: |config, _| {
            let routing = &config.routing;
            routing.flannel.0 != RoutingFlannel::None && routing.source.0 == RoutingSource::File
        },
    },
    Rule {
        keys: &[("policy", "objects"), ("policy", "enable")],
        error: "policy does not know any policies: objects is not set",
        hint: "set objects to a folder with policies, or source to kubernetes",
        broken: |config, _| {
            let policy = &config.policy;
            policy.enable && policy.source.0 == PolicySource::File && policy.objects.is_empty()
        },
    },
    Rule {
        keys: &[("policy", "source"), ("policy", "enable")],
        error: "policy finds no API server: this is not a pod, and kubeconfig is not set",
        hint: "set kubeconfig to a file",
        broken: |config, around| {
            let policy = &config.policy;
            policy.enable
                && policy.source.0 == PolicySource::Kubernetes
                && !around.api_server
                && policy.kubeconfig.is_none()
        },
    },
    Rule {
        keys: &[("policy", "objects"), ("policy", "source")],
        error: "objects are for the source file, and source is another",
        hint: "remove one of them",
        broken: |config, _| {
            config.policy.source.0 != PolicySource::File && !config.policy.objects.is_empty()
        },
    },
    Rule {
        keys: &[("policy", "kubeconfig"), ("policy", "source")],
        error: "kubeconfig is for the source kubernetes, and source is another",
        hint: "remove kubeconfig, or set source to kubernetes",
        broken: |config, _| {
            config.policy.source.0 != PolicySource::Kubernetes && config.policy.kubeconfig.is_some()
        },
    },
    Rule {
        keys: &[("policy", "interval")],
        error: "interval is shorter than 1ms",
        hint: "the default is 1m",
        broken: |config, _| config.policy.interval < Duration::from_millis(1),
    },
    Rule {
        keys: &[("routing", "interval")],
        error: "interval is shorter than 1ms",
        hint: "the default is 1m",
        broken: |config, _| config.routing.interval < Duration::from_millis(1),
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys;

    /// Returns the errors of a configuration of `routing`.
    fn errors(change: impl Fn(&mut crate::config::Routing)) -> Vec<&'static str> {
        let mut config = Config::default();
        change(&mut config.routing);
        let broken = RULES.iter().filter(|rule| (rule.broken)(&config, Surroundings::default()));
        broken.map(|rule| rule.error).collect()
    }

    #[test]
    fn what_routing_is_told_makes_sense() {
        let services = |services: &str| {
            let (cluster, services) = ("10.244.0.0/16".parse(), services.parse());
            errors(|routing| {
                (routing.cluster, routing.services) =
                    (vec![cluster.clone().unwrap()], vec![services.clone().unwrap()]);
            })
        };
        assert_eq!(services("10.96.0.0/12"), [""; 0]);
        // Some nodes can have prefixes beside it.
        assert_eq!(services("10.244.128.0/17"), [""; 0]);
        for all in ["10.244.0.0/16", "10.0.0.0/8"] {
            assert!(services(all)[0].starts_with("a range of pods lies in a range of services"));
        }
        let map = |name: &str| errors(|routing| routing.flannel_config_map = name.to_owned());
        for sound in ["kube-system/flannel", "none"] {
            assert_eq!(map(sound), [""; 0]);
        }
        for wrong in ["flannel", "/flannel", "kube-system/", "a/b/c"] {
            assert_eq!(map(wrong), ["flannel-config-map is not NAMESPACE/NAME, and not none"]);
        }
    }

    #[test]
    fn spaces_have_ranges_of_their_own_and_records() {
        let parse = |ranges: &str| -> Vec<IpNet> {
            ranges.split_terminator(',').map(|range| range.parse().unwrap()).collect()
        };
        let spaces = |spaces: &[&str], ranges: &str| {
            errors(|routing| {
                routing.cluster = parse("10.244.0.0/16");
                routing.services = parse("10.96.0.0/12");
                routing.spaces = spaces.iter().map(|space| (*space).to_owned()).collect();
                routing.space_ranges = parse(ranges);
            })
        };
        assert_eq!(spaces(&[], ""), [""; 0]);
        assert_eq!(spaces(&["storage"], "10.60.0.0/16,fd00:60::/64"), [""; 0]);
        for (names, ranges) in [(&["storage"][..], ""), (&[], "10.60.0.0/16")] {
            assert_eq!(spaces(names, ranges), ["spaces and space-ranges go together"]);
        }
        for wrong in ["10.244.128.0/17", "10.0.0.0/8", "10.100.0.0/16", "10.60.0.0/16,10.60.9.0/24"]
        {
            let error = "space-ranges overlap cluster, services or each other";
            assert_eq!(spaces(&["storage"], wrong), [error], "{wrong}");
        }
        let of_etcd = |spaces: &[&str]| {
            errors(|routing| {
                routing.space_ranges = parse(if spaces.is_empty() { "" } else { "10.60.0.0/16" });
                routing.spaces = spaces.iter().map(|space| (*space).to_owned()).collect();
                routing.etcd_ca = Some("/etc/etcd/ca.crt".into());
            })
        };
        assert_eq!(of_etcd(&["storage"]), [""; 0]);
        assert_eq!(of_etcd(&[]).len(), 1);
        let nowhere = errors(|routing| {
            routing.enable = true;
            routing.nodes = Some("/etc/nodes".into());
            routing.cluster = parse("10.244.0.0/16");
            (routing.spaces, routing.space_ranges) =
                (vec!["storage".to_owned()], parse("10.60.0.0/16"));
        });
        assert!(nowhere[0].starts_with("routing finds no records of spaces"), "{nowhere:?}");
    }

    #[test]
    fn rules_are_about_keys_that_exist_and_the_defaults_keep_them() {
        for rule in RULES {
            for (table, name) in rule.keys {
                assert!(keys::find(table, name).is_some(), "{table}.{name}");
            }
            assert!(!(rule.broken)(&Config::default(), Surroundings::default()), "{}", rule.error);
        }
    }
}
