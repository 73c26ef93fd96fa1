//! What is configured: networks, plugins, address pools, services.

use std::net::SocketAddr;

use ipnet::IpNet;
use net::IpFamily;

use super::switches::proxies::{answered, proxies};
use super::{Rule, containers, ways};
use crate::Look;
use crate::finding::Finding;
use crate::model::{Folder, Link, Network, Pool, PoolHolders, Scene, Transport};
use crate::path::Site;
use crate::routes::{RouteDecision, look_up};

pub(super) const RULE: Rule = Rule {
    judges: "network configurations",
    ids: &[
        "network-broken",
        "network-refused",
        "network-incomplete",
        "network-shadowed",
        "pool-nearly-full",
        "subnet-taken",
        "service-not-ready",
    ],
    judge,
    ..Rule::NONE
};

/// Of how many addresses of a pool one may be free before the pool counts as nearly full.
const NEARLY_FULL: u64 = 20;

/// The plugins that give a network a subnet of its own on this node.
const OWN_SUBNET: [&str; 2] = ["bridge", "ptp"];

/// The mark of a bridge that an attachment made.
const OUR_BRIDGE: &str = "netwright:bridge";

fn judge(look: Look<'_>) -> Vec<Finding> {
    let scene = look.scene;
    let mut found: Vec<Finding> = scene.broken.iter().map(broken).collect();
    for network in &scene.networks {
        found.extend(refused(scene, network));
        let incomplete = network.warnings.iter().map(|warning| {
            let object = format!("{}: {warning}", network.name);
            let says = format!("network {}: {warning}", network.name);
            in_file(Finding::warning("network-incomplete", object, says), network)
        });
        found.extend(incomplete);
        found.extend(taken(look, network));
    }
    found.extend(shadowed(scene));
    found.extend(scene.pools.iter().filter_map(|pool| pool_state(scene, pool)));
    found.extend(scene.folders.iter().filter_map(unwritable));
    for service in scene.services.iter().filter(|service| service.enabled) {
        if service.ready == Some(false) {
            let says = format!("service {} of netwrightd is not ready", service.name);
            let finding = Finding::error("service-not-ready", service.name.clone(), says)
                .advise("netwrightd agent status says more");
            found.push(match &service.lacks {
                Some(lacks) => finding.seen(lacks.clone()),
                None => finding,
            });
        }
    }
    found
}

fn broken((file, reason): &(String, String)) -> Finding {
    let says = format!("{file} cannot be used as a network configuration");
    Finding::error("network-broken", file.clone(), says)
        .at(file.clone())
        .seen(reason.clone())
        .advise(format!("correct the file; netwright lint {file} says where"))
}

fn in_file(finding: Finding, network: &Network) -> Finding {
    match &network.file {
        Some(file) => finding.at(file.clone()),
        None => finding,
    }
}

/// A plugin that cannot be used is the cause of a network that refuses.
fn refused(scene: &Scene, network: &Network) -> Vec<Finding> {
    let unusable = scene.plugins.iter().filter_map(|plugin| {
        let error = plugin.error.as_ref()?;
        network.plugins.contains(&plugin.plugin_type).then_some((plugin, error))
    });
    let mut found: Vec<Finding> = unusable
        .map(|(plugin, error)| {
            let says =
                format!("plugin {} of network {} cannot be used", plugin.plugin_type, network.name);
            let finding = Finding::error("network-refused", plugin.plugin_type.clone(), says)
                .seen(error.clone());
            let name = &plugin.plugin_type;
            match &plugin.path {
                Some(path) => finding.at(path.clone()).advise(format!(
                    "install plugin {name} again, in a version that network {} can use",
                    network.name
                )),
                None => {
                    let file = network.file.as_ref().map(|file| format!(" {file}"));
                    let file = file.unwrap_or_default();
                    let (finding, correct) = match &plugin.near {
                        Some(near) => (
                            finding.seen(format!("plugin {near:?} is there")),
                            format!(
                                "write {near:?} in place of {name:?} if that is meant, or install plugin {name}"
                            ),
                        ),
                        None => (finding, format!("install plugin {name}, or correct its type")),
                    };
                    in_file(finding, network)
                        .advise(format!("{correct}; netwright lint{file} checks it"))
                }
            }
        })
        .collect();
    let refusal =
        network.refusal.as_ref().filter(|text| !has_lent_its_device(scene, network, text));
    if let (true, Some(refusal)) = (found.is_empty(), refusal) {
        let says = format!("no container can be attached to network {} now", network.name);
        let finding =
            Finding::error("network-refused", network.name.clone(), says).seen(refusal.clone());
        let finding = in_file(finding, network);
        let mut pools = scene.pools.iter().filter(|pool| pool.network == network.name);
        found.push(match pools.find(|pool| pool.size.is_some_and(|size| size <= pool.used)) {
            Some(pool) => freed(finding, pool),
            None => finding.advise(format!(
                "see what is said, and ask again: netwright status {}",
                network.name
            )),
        });
    }
    found
}

/// Says whether a network refuses because the device that it lends is in one of its own containers:
/// it works as it is meant to.
fn has_lent_its_device(scene: &Scene, network: &Network, refusal: &str) -> bool {
    let lends = network.plugins.first().is_some_and(|first| first == "host-device");
    let mut holders = scene.containers.iter().flat_map(|container| {
        let own = container.attachments.iter().filter(|one| one.network == network.name);
        own.map(|one| format!("{}/{}/{}", one.network, container.id, one.ifname))
    });
    lends && holders.any(|holder| refusal.split([' ', ';', ',']).any(|word| word == holder))
}

/// Two networks on one bridge that both have an address pool: a runtime that takes the first file
/// attaches containers to the wrong one, and the pools know nothing of each other.
fn shadowed(scene: &Scene) -> Vec<Finding> {
    let is_bridge = |network: &&Network| {
        network.plugins.first().is_some_and(|first| first == "bridge")
            && !network.subnets.is_empty()
    };
    let bridges: Vec<&Network> = scene.networks.iter().filter(is_bridge).collect();
    let mut found = Vec::new();
    for (place, first) in bridges.iter().enumerate() {
        for second in &bridges[place + 1..] {
            if first.link.is_none() || first.link != second.link || first.name == second.name {
                continue;
            }
            let bridge = first.link.as_deref().unwrap_or_default();
            let says = format!(
                "networks {} and {} both use bridge {bridge}, each with its own addresses; a runtime that takes the first file uses {}",
                first.name, second.name, first.name
            );
            let object = format!("{}+{}", first.name, second.name);
            let finding = Finding::warning("network-shadowed", object, says);
            let finding = in_file(finding, first).advise(format!(
                "give one of them a bridge of its own, or remove {}",
                first.file.as_deref().unwrap_or(&first.name)
            ));
            found.push(finding);
        }
    }
    found
}

fn pool_state(scene: &Scene, pool: &Pool) -> Option<Finding> {
    if !pool.writable {
        let says = format!("addresses of network {} cannot be reserved", pool.network);
        return Some(
            Finding::error("network-refused", pool.folder.clone(), says)
                .at(pool.folder.clone())
                .seen("the folder cannot be written")
                .advise(format!("make {} writable: see mount and df", pool.folder)),
        );
    }
    let size = pool.size?;
    let seen = format!("{} of {size} addresses are taken", pool.used);
    let is_told = |network: &Network| network.name == pool.network && network.refusal.is_some();
    if size <= pool.used && !scene.networks.iter().any(is_told) {
        let says = format!("network {} has no free address", pool.network);
        let finding = Finding::error("network-refused", pool.network.clone(), says)
            .at(pool.folder.clone())
            .seen(seen);
        return Some(freed(finding, pool));
    }
    let free = size.saturating_sub(pool.used);
    (NEARLY_FULL <= size && 0 < free && free * NEARLY_FULL <= size).then(|| {
        let says = format!("network {} has {free} free addresses left", pool.network);
        let finding = Finding::warning("pool-nearly-full", pool.network.clone(), says)
            .at(pool.folder.clone())
            .seen(seen);
        freed(finding, pool)
    })
}

/// Adds what frees addresses of a pool: `netwright gc` frees those of containers that are recorded and
/// gone, and of others a person knows whether they exist.
fn freed(finding: Finding, pool: &Pool) -> Finding {
    let PoolHolders { gone, unrecorded, some } = match &pool.holders {
        Some(holders) => holders.clone(),
        // Who holds them was not read.
        None => PoolHolders { gone: pool.used, ..PoolHolders::default() },
    };
    let network = &pool.network;
    let finding = match gone {
        0 => finding,
        _ => finding.fix("netwright gc"),
    };
    let finding = match some.first() {
        None => finding,
        Some((id, ifname)) => {
            let names: Vec<&str> = some.iter().map(|(id, _)| id.as_str()).collect();
            let more =
                match unrecorded.saturating_sub(u64::try_from(some.len()).unwrap_or(u64::MAX)) {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
            let ifname = ifname.as_deref().unwrap_or("eth0");
            finding
                .seen(format!(
                    "{unrecorded} are reserved for containers of which no attachment is recorded: {}{more}",
                    names.join(", ")
                ))
                .advise(format!(
                    "free the addresses of those of them that do not exist, which `netwright gc` cannot know, such as {id}: netwright del {network} {id} --container-id {id} --ifname {ifname}"
                ))
        }
    };
    match gone + unrecorded {
        0 => finding.advise(format!(
            "give network {network} a larger range: containers that are there hold the others"
        )),
        _ => finding,
    }
}

fn unwritable(folder: &Folder) -> Option<Finding> {
    let trouble = folder.trouble.as_ref()?;
    let (path, holds) = (&folder.path, &folder.holds);
    let says = format!("no container can be attached: {holds} cannot be written");
    Some(
        Finding::error("network-refused", path.clone(), says)
            .at(path.clone())
            .seen(trouble.clone())
            .advise(format!("make {path} writable, and give it space: see mount and df")),
    )
}

/// A subnet of a network in which the node has an address by another link: answers to its containers
/// leave by that link.
fn taken(look: Look<'_>, network: &Network) -> Vec<Finding> {
    let scene = look.scene;
    let has_own = network.plugins.first().is_some_and(|first| OWN_SUBNET.contains(&first.as_str()));
    if !has_own {
        return Vec::new();
    }
    let is_container_end = |name: &str| {
        let mut attachments = scene.containers.iter().flat_map(|one| &one.attachments);
        attachments.any(|attachment| attachment.host_links.iter().any(|link| link == name))
    };
    let foreign = scene.host.links.iter().filter(|link| {
        network.link.as_ref() != Some(&link.name)
            && match link.alias.as_deref() {
                None => !is_container_end(&link.name),
                Some(OUR_BRIDGE) => is_before(scene, link, network),
                Some(_) => false,
            }
    });
    let mut found = Vec::new();
    for link in foreign {
        let told = |address: &&crate::model::Address| !is_a_containers(scene, address.address);
        for address in link.addresses.iter().filter(told) {
            let mut subnets = network.subnets.iter();
            let is_taken = |subnet: &&IpNet| {
                overlap(subnet, &address.address)
                    && !is_one_of(&address.address, subnet)
                    && !works_within(look, network, subnet, (link, address.address))
            };
            if let Some(subnet) = subnets.find(is_taken) {
                let says = format!(
                    "network {:?} has {subnet}, which {} has too, so the node and the containers reach only one of the two",
                    network.name, link.name
                );
                let finding = Finding::error("subnet-taken", network.name.clone(), says)
                    .seen(format!("{} has {}", link.name, address.address));
                found.push(in_file(finding, network).advise(format!(
                    "give network {:?} a subnet that is free on this node and around it",
                    network.name
                )));
            }
        }
    }
    found
}

/// Says whether a subnet within that of another link works all the same: the node's routes to its
/// containers are more specific, and answers come back to each of them, as the node answers for it
/// there, or translates its source, or a probe was answered.
fn works_within(
    look: Look<'_>,
    network: &Network,
    subnet: &IpNet,
    (link, address): (&Link, IpNet),
) -> bool {
    let host = &look.scene.host;
    let is_within = address.prefix_len() < subnet.prefix_len() && !subnet.contains(&address.addr());
    let family = IpFamily::of(subnet.addr());
    let everybody = containers(Look { only: None, ..look });
    let sites = everybody.flat_map(|one| Site::all(look.scene, one, family));
    let mut sites = sites
        .filter(|site| site.attachment.network == network.name && subnet.contains(&site.address))
        .peekable();
    let is_routed = |site: &Site<'_>| {
        let routed = look_up(host, None, site.address, None, Some(0));
        matches!(routed, RouteDecision::By { link, .. } if link.index == site.seen_by.index)
    };
    let answers_for_all = ["all", link.name.as_str()].iter().any(|name| {
        let key = format!("net.ipv4.conf.{name}.proxy_arp");
        family == IpFamily::V4 && host.number(&key).is_some_and(|value| value != 0)
    });
    let [sample, ..] = ways::samples(family);
    // That an entry has no effect is told by another rule.
    let is_answered = |site: &Site<'_>| {
        answers_for_all
            || proxies(host, site.address).any(|on| on.index == link.index)
            || answered(look, site.container, family) == Some(true)
            || ways::taken::taken(
                look,
                site.container,
                SocketAddr::new(sample, 443),
                Transport::Tcp,
            )
            .is_some_and(|way| way.is_translated())
    };
    is_within && sites.peek().is_some() && sites.all(|site| is_routed(&site) && is_answered(&site))
}

/// Says whether another network's bridge keeps containers of this network from the node: they are
/// refused for it, or the node's route to the subnet leads there.
fn is_before(scene: &Scene, other: &Link, network: &Network) -> bool {
    let links = &scene.host.links;
    let own = links.iter().find(|link| network.link.as_ref() == Some(&link.name));
    let is_shared = |own: &Link, other: &IpNet| {
        own.addresses.iter().any(|address| address.address.trunc() == other.trunc())
    };
    let shared = own.and_then(|own| {
        let mut of_other = other.addresses.iter().map(|address| address.address);
        Some((own, of_other.find(|net| is_shared(own, net))?.trunc()))
    });
    let Some((own, subnet)) = shared else {
        let words = format!("on the host's link {:?}", other.name);
        return network.refusal.as_ref().is_some_and(|refusal| refusal.contains(&words));
    };
    let first = scene.host.routes.iter().find(|route| {
        route.to == subnet
            && route.hops.iter().any(|hop| [Some(own.index), Some(other.index)].contains(&hop.link))
    });
    own.master == other.master
        && first.is_some_and(|route| route.hops.iter().any(|hop| hop.link == Some(other.index)))
}

/// Says whether the node has a single address, and a container has it: that is told as a duplicate.
fn is_a_containers(scene: &Scene, address: IpNet) -> bool {
    let mut given = scene.containers.iter().flat_map(|one| &one.attachments);
    address.prefix_len() == address.max_prefix_len()
        && given.any(|one| one.addresses.iter().any(|net| net.addr() == address.addr()))
}

/// Says whether an address is one of a larger subnet: it makes no route to the others. A tunnel of
/// flannel's has the subnet's first address so.
fn is_one_of(address: &IpNet, subnet: &IpNet) -> bool {
    address.prefix_len() == address.max_prefix_len() && subnet.prefix_len() < address.prefix_len()
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(&other.addr()) || other.contains(&one.addr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        Address, Attachment, Container, NextHop, Plugin, Route, RouteKind, Service,
    };
    use crate::question::Answers;

    fn says(scene: &Scene) -> Vec<(&'static str, String)> {
        let answers = Answers::default();
        let look = Look { scene, answers: &answers, only: None, to: None };
        judge(look).into_iter().map(|finding| (finding.id, finding.says)).collect()
    }

    fn network(name: &str) -> Network {
        Network {
            name: name.to_owned(),
            plugins: vec!["bridge".to_owned(), "portmap".to_owned()],
            link: Some("cni0".to_owned()),
            subnets: vec!["10.88.0.0/24".parse().unwrap()],
            ..Network::default()
        }
    }

    #[test]
    fn a_sound_network_is_not_mentioned() {
        let own = Link {
            name: "cni0".to_owned(),
            addresses: vec![Address {
                address: "10.88.0.1/24".parse().unwrap(),
                duplicate: false,
                tentative: false,
            }],
            ..Link::default()
        };
        let mut scene = Scene { networks: vec![network("mynet")], ..Scene::default() };
        scene.host.links = vec![own];
        let pool = Pool {
            network: "mynet".to_owned(),
            used: 12,
            size: Some(253),
            writable: true,
            ..Pool::default()
        };
        scene.pools = vec![pool];
        assert_eq!(says(&scene), []);
        scene.pools[0].used = 250;
        let nearly = "network mynet has 3 free addresses left".to_owned();
        assert_eq!(says(&scene), [("pool-nearly-full", nearly)]);
    }

    /// `netwright gc` removes what is recorded.
    #[test]
    fn what_frees_a_pool_depends_on_who_holds_it() {
        let helps = |holders: PoolHolders, refusal: Option<&str>| {
            let pool = Pool {
                network: "mynet".to_owned(),
                used: 253,
                size: Some(253),
                writable: true,
                holders: Some(holders),
                ..Pool::default()
            };
            let refusal = refusal.map(str::to_owned);
            let networks = vec![Network { refusal, ..network("mynet") }];
            let scene = Scene { networks, pools: vec![pool], ..Scene::default() };
            let answers = Answers::default();
            let look = Look { scene: &scene, answers: &answers, only: None, to: None };
            let mut found = judge(look);
            assert_eq!((found.len(), found[0].id), (1, "network-refused"), "{found:?}");
            let found = found.remove(0);
            (found.fix, found.advice.join(" "), found.seen.join("; "))
        };
        for refusal in [None, Some("no IP addresses available in range set")] {
            let holders = PoolHolders { gone: 3, ..PoolHolders::default() };
            let (fix, advice, _) = helps(holders, refusal);
            assert_eq!((fix, advice.as_str()), (vec!["netwright gc".to_owned()], ""));
            let some =
                vec![("old1".to_owned(), Some("net1".to_owned())), ("old2".to_owned(), None)];
            let holders = PoolHolders { unrecorded: 9, some, ..PoolHolders::default() };
            let (fix, advice, seen) = helps(holders, refusal);
            assert!(fix.is_empty(), "{fix:?}");
            let command = "netwright del mynet old1 --container-id old1 --ifname net1";
            assert!(advice.ends_with(command), "{advice}");
            assert!(seen.ends_with("no attachment is recorded: old1, old2 and 7 more"), "{seen}");
            let (fix, advice, _) = helps(PoolHolders::default(), refusal);
            assert!(fix.is_empty() && advice.starts_with("give network mynet a larger range"));
        }
    }

    #[test]
    fn a_pool_of_the_uplink_is_an_error() {
        let uplink = Link {
            name: "up0".to_owned(),
            addresses: vec![Address {
                address: "10.88.0.9/16".parse().unwrap(),
                duplicate: false,
                tentative: false,
            }],
            ..Link::default()
        };
        let mut scene = Scene { networks: vec![network("mynet")], ..Scene::default() };
        scene.host.links = vec![uplink];
        assert_eq!(says(&scene)[0].0, "subnet-taken");
        // A single address, as a tunnel of flannel's has it, takes no subnet.
        scene.host.links[0].addresses[0].address = "10.88.0.0/32".parse().unwrap();
        assert_eq!(says(&scene), []);
    }

    /// The node reaches the containers of the bridge that its route leads to.
    #[test]
    fn a_subnet_of_two_bridges_is_an_error_of_the_second() {
        let bridge = |name: &str, index: u32| Link {
            name: name.to_owned(),
            index,
            alias: Some(OUR_BRIDGE.to_owned()),
            addresses: vec![Address {
                address: "10.88.0.1/24".parse().unwrap(),
                duplicate: false,
                tentative: false,
            }],
            ..Link::default()
        };
        let to = |link: u32| Route {
            to: "10.88.0.0/24".parse().unwrap(),
            table: 254,
            kind: RouteKind::Unicast,
            metric: 0,
            hops: vec![NextHop { via: None, link: Some(link) }],
            source: None,
            mtu: None,
            protocol: Some(2),
        };
        let second = Network { link: Some("cni1".to_owned()), ..network("second") };
        let mut scene = Scene { networks: vec![network("first"), second], ..Scene::default() };
        scene.host.links = vec![bridge("cni0", 5), bridge("cni1", 6)];
        scene.host.routes = vec![to(5), to(6)];
        let told = |network: &str, link: &str| {
            format!(
                "network {network:?} has 10.88.0.0/24, which {link} has too, so the node and the containers reach only one of the two"
            )
        };
        assert_eq!(says(&scene), [("subnet-taken", told("second", "cni0"))]);
        scene.host.routes.reverse();
        assert_eq!(says(&scene), [("subnet-taken", told("first", "cni1"))]);
        // Two VRFs have a route each.
        scene.host.links[1].master = Some(9);
        assert_eq!(says(&scene), []);
        // Without a container of its own a network is refused, or it may be in another VRF.
        scene.host.links.pop();
        assert_eq!(says(&scene), []);
        scene.networks[1].refusal =
            Some("every address is of a subnet, which is on the host's link \"cni0\"".to_owned());
        let found = says(&scene);
        assert!(found.contains(&("subnet-taken", told("second", "cni0"))), "{found:?}");
    }

    /// The node's routes are more specific, and something lets answers come back.
    #[test]
    fn a_subnet_within_that_of_another_link_may_work() {
        use crate::path::samples::{ip, node};
        use crate::question::{Answer, Probe, Question};
        let subnet: IpNet = "fd00:88::/64".parse().unwrap();
        let mut scene = node();
        scene.containers.truncate(1);
        scene.networks[0].plugins = vec!["bridge".to_owned()];
        scene.host.filter.tables.clear();
        scene.host.links[1].addresses[1].address = "fd00::2/16".parse().unwrap();
        let told = |scene: &Scene, all: Vec<(Question, Answer)>| {
            let answers = Answers { all };
            let look = Look { scene, answers: &answers, only: None, to: None };
            judge(look).into_iter().map(|finding| finding.id).collect::<Vec<_>>()
        };
        assert_eq!(told(&scene, Vec::new()), ["subnet-taken"]);
        let entry = crate::model::ProxiedAddress { link: 2, address: ip("fd00:88::2") };
        let with = |change: fn(&mut Scene), entry: crate::model::ProxiedAddress| {
            let mut scene = scene.clone();
            scene.host.proxied.push(entry);
            change(&mut scene);
            told(&scene, Vec::new())
        };
        assert_eq!(with(|_| {}, entry.clone()), [""; 0]);
        // On another link, or while the node's route leads elsewhere.
        let other = crate::model::ProxiedAddress { link: 9, ..entry.clone() };
        assert_eq!(with(|_| {}, other), ["subnet-taken"]);
        let lose = |scene: &mut Scene| {
            scene.host.routes.retain(|one| one.to != "fd00:88::/64".parse().unwrap());
        };
        assert_eq!(with(lose, entry.clone()), ["subnet-taken"]);
        // The node's own address is one of the network's, or the subnet is the same.
        let within = |scene: &mut Scene| {
            scene.host.links[1].addresses[1].address = "fd00:88::77/16".parse().unwrap();
        };
        assert_eq!(with(within, entry.clone()), ["subnet-taken"]);
        let same = |scene: &mut Scene| {
            scene.host.links[1].addresses[1].address = "fd00:88::77/64".parse().unwrap();
        };
        assert_eq!(with(same, entry), ["subnet-taken"]);
        // An answer shows that it works, and so does a translation.
        let asked = Probe::Echo { to: ip("2001:db8::1") };
        let question = Question { from: Some("c2".to_owned()), asked };
        let reached = vec![(question, Answer::Reached { after_us: 1 })];
        assert_eq!(told(&scene, reached), [""; 0]);
        scene.host.filter.tables = node().host.filter.tables;
        assert_eq!(told(&scene, Vec::new()), [""; 0]);
        assert!(scene.networks[0].subnets.contains(&subnet));
    }

    #[test]
    fn a_network_whose_container_has_its_only_device_is_sound() {
        let mut lending = network("lab");
        lending.plugins = vec!["host-device".to_owned()];
        let refusal =
            "device nic1 is in use by lab/c1/eth0; a device is in one container at a time";
        lending.refusal = Some(refusal.to_owned());
        let mut scene = Scene { networks: vec![lending], ..Scene::default() };
        assert_eq!(says(&scene)[0].0, "network-refused", "nobody knows that container");
        let attachment = Attachment {
            network: "lab".to_owned(),
            ifname: "eth0".to_owned(),
            ..Attachment::default()
        };
        let container = Container {
            id: "c1".to_owned(),
            attachments: vec![attachment],
            ..Container::default()
        };
        scene.containers = vec![container];
        assert_eq!(says(&scene), []);
        scene.containers[0].attachments[0].network = "other".to_owned();
        assert_eq!(says(&scene)[0].0, "network-refused");
    }

    #[test]
    fn a_folder_that_cannot_be_written_refuses_all_networks() {
        let folder = |trouble: Option<&str>| Folder {
            path: "/run/netwright".to_owned(),
            holds: "the plugins' records".to_owned(),
            trouble: trouble.map(str::to_owned),
        };
        let mut scene = Scene { folders: vec![folder(None)], ..Scene::default() };
        assert_eq!(says(&scene), []);
        scene.folders = vec![folder(Some("its file system has no space left"))];
        let told = "no container can be attached: the plugins' records cannot be written";
        assert_eq!(says(&scene), [("network-refused", told.to_owned())]);
    }

    #[test]
    fn a_missing_plugin_is_the_cause_of_a_refusal() {
        let mut refusing = network("mynet");
        refusing.refusal = Some("plugin \"portmap\" is missing".to_owned());
        let plugin = Plugin {
            plugin_type: "portmap".to_owned(),
            error: Some("it is in none of the folders".to_owned()),
            ..Plugin::default()
        };
        let service =
            Service { name: "ipam".to_owned(), enabled: true, ready: Some(false), lacks: None };
        let scene = Scene {
            networks: vec![refusing, Network { name: "other".to_owned(), ..network("other") }],
            plugins: vec![plugin],
            services: vec![service],
            ..Scene::default()
        };
        let ids: Vec<&str> = says(&scene).into_iter().map(|(id, _)| id).collect();
        assert_eq!(
            ids,
            ["network-refused", "network-refused", "network-shadowed", "service-not-ready"]
        );
    }

    #[test]
    fn what_to_do_about_a_plugin_depends_on_what_is_there() {
        let mut absent = network("mynet");
        absent.file = Some("/etc/cni/net.d/10-mynet.conflist".to_owned());
        let plugin = Plugin {
            plugin_type: "portmap".to_owned(),
            error: Some("it is in none of the folders".to_owned()),
            ..Plugin::default()
        };
        let advice = |plugin: Plugin| {
            let scene =
                Scene { networks: vec![absent.clone()], plugins: vec![plugin], ..Scene::default() };
            let found = refused(&scene, &scene.networks[0]);
            found.into_iter().flat_map(|finding| finding.advice).collect::<Vec<String>>()
        };
        assert_eq!(
            advice(plugin.clone()),
            [
                "install plugin portmap, or correct its type; netwright lint /etc/cni/net.d/10-mynet.conflist checks it"
            ]
        );
        let near = Some("portman".to_owned());
        assert_eq!(
            advice(Plugin { near, ..plugin.clone() }),
            [
                "write \"portman\" in place of \"portmap\" if that is meant, or install plugin portmap; netwright lint /etc/cni/net.d/10-mynet.conflist checks it"
            ]
        );
        let path = Some("/opt/cni/bin/portmap".to_owned());
        assert_eq!(
            advice(Plugin { path, ..plugin }),
            ["install plugin portmap again, in a version that network mynet can use"]
        );
    }
}
