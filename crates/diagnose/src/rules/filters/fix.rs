//! Commands that let packets through.

use ipnet::IpNet;
use scene::filter::Hook;

use super::Caught;
use super::say::Sort;
use crate::Look;
use crate::filter::{Layer, Place};
use crate::finding::Family;
use crate::path::Site;
use crate::whose::{self, Owner};

/// Returns the commands that let a way of a container pass a filter.
pub(super) fn commands(
    look: Look<'_>,
    site: &Site<'_>,
    sort: &Sort<'_>,
    caught: &Caught,
) -> Vec<String> {
    let place = &caught.place;
    let netns = caught.inside.as_deref().and_then(|id| look.scene.container(id));
    let netns = netns.map(|container| container.netns.as_str());
    let owner = match netns {
        Some(_) => None,
        None => whose::owner_of(place, look.scene).map(|(owner, _)| owner),
    };
    let nets = subnets(look, site);
    let is_running = look.scene.program("firewalld").is_some();
    let is_forwarded = matches!(place.hook, Hook::Forward | Hook::Prerouting | Hook::Postrouting);
    match owner {
        // The plugin `firewall` opens the chain FORWARD of iptables, where it is closed.
        _ if is_forward_policy(place) && site.attachment.has_plugin("firewall") => {
            vec!["netwright repair".to_owned()]
        }
        Some(Owner::Firewalld) if is_running => nets.iter().map(zone).collect(),
        Some(Owner::Ufw) if is_forwarded => {
            let allow = |net: &IpNet| {
                [format!("ufw route allow from {net}"), format!("ufw route allow to {net}")]
            };
            nets.iter().flat_map(allow).collect()
        }
        Some(Owner::Ufw) => nets.iter().map(|net| format!("ufw allow from {net}")).collect(),
        // A person wrote what is in DOCKER-USER; the rest is Docker's, and comes again.
        Some(Owner::Docker) if place.chain != "DOCKER-USER" && place.hook == Hook::Forward => {
            nets.iter().flat_map(|net| docker(net, place.legacy)).collect()
        }
        Some(Owner::Ours) if place.rule.is_none() => vec![open(place)],
        Some(Owner::Calico) if whose::is_for_services(place) => {
            let network = &site.attachment.network;
            let or =
                format!("or give network {network} a subnet in which the cluster has no Services");
            accept(site, sort, caught, &nets, None).into_iter().chain([or]).collect()
        }
        None if place.rule.is_some() => remove(place, netns),
        Some(Owner::Docker) if place.chain == "DOCKER-USER" => remove(place, netns),
        _ => accept(site, sort, caught, &nets, netns),
    }
}

/// Says whether a place is the policy of the chain FORWARD of iptables.
fn is_forward_policy(place: &Place) -> bool {
    let is_iptables = place.legacy || matches!(place.family, "ip" | "ip6");
    is_iptables && place.rule.is_none() && place.table == "filter" && place.base == "FORWARD"
}

/// The subnets of a container's network, of its family; its address if they are not known.
fn subnets(look: Look<'_>, site: &Site<'_>) -> Vec<IpNet> {
    let is_of = |net: &&IpNet| net.addr().is_ipv4() == (site.family() == Family::V4);
    let network = look.scene.networks.iter().find(|one| one.name == site.attachment.network);
    let of_network = network.into_iter().flat_map(|network| &network.subnets);
    let nets: Vec<IpNet> =
        of_network.filter(is_of).filter(|net| net.contains(&site.address)).copied().collect();
    if !nets.is_empty() {
        return nets;
    }
    let own = site.attachment.addresses.iter().filter(|net| net.addr() == site.address);
    own.map(IpNet::trunc).collect()
}

fn zone(net: &IpNet) -> String {
    format!("firewall-cmd --permanent --zone=trusted --add-source={net} && firewall-cmd --reload")
}

fn docker(net: &IpNet, legacy: bool) -> [String; 2] {
    let tool = match (net.addr().is_ipv4(), legacy) {
        (true, false) => "iptables",
        (true, true) => "iptables-legacy",
        (false, false) => "ip6tables",
        (false, true) => "ip6tables-legacy",
    };
    [
        format!("{tool} -I DOCKER-USER -s {net} -j ACCEPT"),
        format!("{tool} -I DOCKER-USER -d {net} -j ACCEPT"),
    ]
}

fn within(netns: Option<&str>, command: String) -> String {
    match netns {
        Some(netns) => format!("nsenter --net={netns} {command}"),
        None => command,
    }
}

/// Returns the command that removes a rule.
pub(super) fn remove(place: &Place, netns: Option<&str>) -> Vec<String> {
    let Place { family, table, chain, .. } = place;
    let command = if place.legacy {
        let rule = place.says.strip_prefix("-A ").unwrap_or(&place.says);
        format!("{family}-legacy -t {table} -D {rule}")
    } else {
        let handle = place.rule.map(|(_, handle)| handle).unwrap_or_default();
        format!("nft delete rule {family} {table} {chain} handle {handle}")
    };
    vec![within(netns, command)]
}

/// What is to be let through.
enum Match<'n> {
    From(&'n IpNet),
    To(&'n IpNet),
    Answers,
    Published,
    Neighbours,
    Loopback,
}

/// Returns the commands that let packets pass a base chain that drops what it does not know.
fn accept(
    site: &Site<'_>,
    sort: &Sort<'_>,
    caught: &Caught,
    nets: &[IpNet],
    netns: Option<&str>,
) -> Vec<String> {
    let place = &caught.place;
    if caught.layer != Layer::Ip {
        return vec![within(netns, open(place))];
    }
    let matches: Vec<Match<'_>> = match sort {
        Sort::Resolve => vec![Match::Neighbours],
        Sort::Inside => vec![Match::Loopback],
        _ if caught.back => vec![Match::Answers],
        Sort::Published(_) => vec![Match::Published, Match::Answers],
        Sort::FromNode | Sort::PublishedHere(_) if netns.is_none() => {
            nets.iter().map(Match::To).collect()
        }
        Sort::FromNode | Sort::PublishedHere(_) => vec![Match::Answers],
        _ => nets.iter().map(Match::From).chain([Match::Answers]).collect(),
    };
    let is_ipv4 = site.family() == Family::V4;
    matches.iter().map(|one| within(netns, insert(place, one, is_ipv4))).collect()
}

/// Returns the command that gives a base chain the policy `accept`.
fn open(place: &Place) -> String {
    let Place { family, table, base, .. } = place;
    format!("nft chain {family} {table} {base} '{{ policy accept; }}'")
}

fn insert(place: &Place, what: &Match<'_>, is_ipv4: bool) -> String {
    let Place { family, table, base, .. } = place;
    let leaves = matches!(place.hook, Hook::Output | Hook::Postrouting);
    let is_iptables =
        matches!(*family, "ip" | "ip6") && base.chars().all(|letter| letter.is_ascii_uppercase());
    if place.legacy || is_iptables {
        let tool = if is_ipv4 { "iptables" } else { "ip6tables" };
        let kind = if place.legacy { "legacy" } else { "nft" };
        let what = match what {
            Match::From(net) => format!("-s {net}"),
            Match::To(net) => format!("-d {net}"),
            Match::Answers => "-m conntrack --ctstate ESTABLISHED,RELATED".to_owned(),
            Match::Published => "-m conntrack --ctstate DNAT".to_owned(),
            Match::Neighbours => "-p ipv6-icmp".to_owned(),
            Match::Loopback if leaves => "-o lo".to_owned(),
            Match::Loopback => "-i lo".to_owned(),
        };
        return format!("{tool}-{kind} -t {table} -I {base} {what} -j ACCEPT");
    }
    let ip = if is_ipv4 { "ip" } else { "ip6" };
    let what = match what {
        Match::From(net) => format!("{ip} saddr {net}"),
        Match::To(net) => format!("{ip} daddr {net}"),
        Match::Answers => "ct state established,related".to_owned(),
        Match::Published => "ct status dnat".to_owned(),
        Match::Neighbours => "icmpv6 type '{ nd-neighbor-solicit, nd-neighbor-advert }'".to_owned(),
        Match::Loopback if leaves => "oifname lo".to_owned(),
        Match::Loopback => "iifname lo".to_owned(),
    };
    format!("nft insert rule {family} {table} {base} {what} accept")
}
