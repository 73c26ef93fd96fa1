//! What lets packets through, and takes no more of a filter's protection away than it must.
//!
//! A rule of others stays: a rule before it lets the containers' packets pass. Whose the rule is,
//! decides whether it goes; what ends with it is said.

use ipnet::IpNet;
use net::IpFamily;
use scene::filter::{Hook, Step, Table};
use scene::{Scene, Transport};

use super::super::ways::{links_out, samples};
use super::matches::{self, Links, Match};
use super::say::Sort;
use super::{FilterStop, WEB, others, stateless, tcp};
use crate::Look;
use crate::command::within;
use crate::filter::{Layer, Place, Port};
use crate::finding::Help;
use crate::path::{Outcome, Site, Trip, carries, follow_filters};
use crate::question::NAMES;
use crate::restored;
use crate::routes::{RouteDecision, look_up};
use crate::whose::{self, Owner};

/// Returns what lets a way of a container pass a filter.
pub(super) fn help(
    look: Look<'_>,
    site: &Site<'_>,
    sort: &Sort<'_>,
    caught: &FilterStop,
) -> Vec<Help> {
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
    let all = |commands: Vec<String>| commands.into_iter().map(Help::Command).collect();
    let with = |commands: Vec<String>, advice: String| {
        let commands = commands.into_iter().map(Help::Command);
        commands.chain([Help::Advice(advice)]).collect()
    };
    match owner {
        // The plugin `firewall` opens the chain FORWARD of iptables, where it is closed.
        _ if plugin_opens(look.scene, place, sort)
            && site.attachment.has_plugin("firewall")
            && !site.attachment.by_others =>
        {
            restored::all(look.scene, site.attachment)
        }
        Some(Owner::Firewalld) if is_running && is_forwarded && has_policies(look.scene) => {
            all(policy(look.scene, sort, site, &nets))
        }
        Some(Owner::Firewalld)
            if is_running && place.hook == Hook::Input && sort.port().is_some() =>
        {
            all(nets.iter().map(|net| in_zone(place, &rich_rule(sort, site, net))).collect())
        }
        Some(Owner::Firewalld) if is_running => with(
            nets.iter().map(zone).collect(),
            "this opens every service of this node to the containers, too".to_owned(),
        ),
        // What answers, its first rules let pass.
        Some(Owner::Ufw) if is_forwarded && !caught.back => all(nets
            .iter()
            .map(|net| ufw(&Links::of(look, site, sort, place), sort, site, net))
            .collect()),
        Some(Owner::Ufw) => match sort.port() {
            Some((protocol, port)) => all(nets
                .iter()
                .map(|net| format!("ufw allow proto {protocol} from {net} to any port {port}"))
                .collect()),
            None => with(
                nets.iter().map(|net| format!("ufw allow from {net}")).collect(),
                "this opens every service of this node to the containers, too".to_owned(),
            ),
        },
        // A person wrote what is in DOCKER-USER; the rest is Docker's, and comes again.
        Some(Owner::Docker) if place.chain != USER && place.hook == Hook::Forward => {
            let commands = accept(look, InsertPoint::Docker, site, sort, caught, &nets, netns);
            let_through(commands, place, netns)
        }
        Some(Owner::Ours) if place.rule.is_none() => all(vec![open(place)]),
        Some(Owner::Calico) if whose::is_for_services(place) => {
            let network = &site.attachment.network;
            let or =
                format!("or give network {network} a subnet in which the cluster has no Services");
            with(accept(look, InsertPoint::Base, site, sort, caught, &nets, None), or)
        }
        // A rule before it would let everything past Calico's policies.
        Some(Owner::Calico) if whose::is_for_links(place) => {
            vec![Help::Advice(format!(
                "let Calico know the link {}: restart calico-node, and see why it does not run, or does not know the pod of {}",
                site.host_end.name,
                site.container.called()
            ))]
        }
        None if place.rule.is_some() => without(look, site, sort, caught, &nets, netns),
        Some(Owner::Docker) if place.chain == USER => {
            without(look, site, sort, caught, &nets, netns)
        }
        _ => {
            let commands = accept(look, InsertPoint::Base, site, sort, caught, &nets, netns);
            let_through(commands, place, netns)
        }
    }
}

/// Returns what lets the containers' packets pass before a rule of others judges them.
fn without(
    look: Look<'_>,
    site: &Site<'_>,
    sort: &Sort<'_>,
    caught: &FilterStop,
    nets: &[IpNet],
    netns: Option<&str>,
) -> Vec<Help> {
    let removed = remove(&caught.place, netns);
    if is_queue(&caught.place) {
        let or = format!("if there is to be none, remove the rule: {removed}");
        let start = "start the program that reads the queue, or see why it judges none".to_owned();
        return vec![Help::Advice(start), Help::Advice(or)];
    }
    let commands = accept(look, InsertPoint::Rule, site, sort, caught, nets, netns);
    // Who lists what containers may ask needs the rule that stops the rest.
    if commands.is_empty() || lets_others(look, site, sort) {
        return let_through(commands, &caught.place, netns);
    }
    let commands = commands.into_iter().map(Help::Command);
    commands.chain([Help::Advice(or_remove(&caught.place, netns))]).collect()
}

/// Returns the commands that let packets pass; where no rule can, what a person does.
fn let_through(commands: Vec<String>, place: &Place, netns: Option<&str>) -> Vec<Help> {
    if !commands.is_empty() {
        return commands.into_iter().map(Help::Command).collect();
    }
    let name = place.name();
    let otherwise = match place.rule {
        Some(_) => format!("; {}", or_remove(place, netns)),
        None => String::new(),
    };
    vec![Help::Advice(format!(
        "let {name} except what containers send and get; doctor names no command, since no rule there tells answers from other packets{otherwise}"
    ))]
}

/// Returns what lets all pass that a container sends, before a rule at the node's end of its link.
pub(super) fn sent(scene: &Scene, site: &Site<'_>, place: &Place) -> Vec<Help> {
    let is_ipv4 = site.family() == IpFamily::V4;
    let is_closed = place.rule.is_none_or(|(_, rule)| is_for_all(scene, place, rule));
    let all = stateless::sent(site, is_closed);
    let links = Links { near: None, far: None };
    let command = |one| Help::Command(insert(InsertPoint::Rule, place, &links, one, is_ipv4));
    all.iter().map(command).chain([Help::Advice(or_remove(place, None))]).collect()
}

/// Returns what lets packets of UDP to a port pass a filter of the node: from some subnets, or from
/// all if there are none.
pub(in crate::rules) fn opened(
    scene: &Scene,
    place: &Place,
    nets: &[IpNet],
    port: u16,
    family: IpFamily,
) -> Vec<Help> {
    let owner = whose::owner_of(place, scene).map(|(owner, _)| owner);
    let is_input = place.hook == Hook::Input;
    let commands: Vec<String> = match owner {
        Some(Owner::Firewalld) if is_input && scene.program("firewalld").is_some() => {
            let version = if family == IpFamily::V4 { "ipv4" } else { "ipv6" };
            let rule = |net: &IpNet| {
                format!(
                    "rule family={version} source address={net} port port={port} protocol=udp accept"
                )
            };
            nets.iter().map(|net| in_zone(place, &rule(net))).collect()
        }
        Some(Owner::Ufw) if is_input => nets
            .iter()
            .map(|net| format!("ufw allow proto udp from {net} to any port {port}"))
            .collect(),
        _ => {
            let at = match owner {
                None if place.rule.is_some() => InsertPoint::Rule,
                _ => InsertPoint::Base,
            };
            let all: Vec<Match<'_>> = match nets {
                [] => vec![Match::Port(None, "udp", port)],
                nets => nets.iter().map(|net| Match::Port(Some(net), "udp", port)).collect(),
            };
            let links = Links { near: None, far: None };
            let is_ipv4 = family == IpFamily::V4;
            all.iter().map(|one| insert(at, place, &links, one, is_ipv4)).collect()
        }
    };
    let or = place.rule.filter(|_| owner.is_none());
    let or = or.map(|_| Help::Advice(or_remove(place, None)));
    commands.into_iter().map(Help::Command).chain(or).collect()
}

/// Says how a rule of others goes.
fn or_remove(place: &Place, netns: Option<&str>) -> String {
    format!("or remove the rule, if nobody needs it any more: {}", remove(place, netns))
}

/// Says whether a rule puts packets into a queue of a program.
pub(super) fn is_queue(place: &Place) -> bool {
    match place.legacy {
        true => place.says.contains("-j NFQUEUE") || place.says.contains("-j QUEUE"),
        false => place.says.starts_with("queue"),
    }
}

/// Returns what removes a rule of others, and says what ends with it.
pub(super) fn removal(place: &Place, netns: Option<&str>) -> Vec<Help> {
    let says = if place.says.is_empty() { "it" } else { place.says.as_str() };
    let ends = format!("another program or a person made this rule: {says:?} ends for all packets");
    vec![Help::Command(remove(place, netns)), Help::Advice(ends)]
}

/// Says whether the plugin `firewall` puts its rules before what stops a packet. It does so in the
/// chain FORWARD of iptables, where that drops whatever a container sends. A rule for some packets
/// does not close the chain, and neither does a queue, which may be there to judge packets.
fn plugin_opens(scene: &Scene, place: &Place, sort: &Sort<'_>) -> bool {
    let is_iptables = place.legacy || matches!(place.family, "ip" | "ip6");
    let is_in_forward = is_iptables && place.table == "filter" && place.chain == "FORWARD";
    let is_closed = match place.rule {
        None => true,
        Some(_) if is_queue(place) => false,
        Some((_, handle)) => matches!(sort, Sort::Outside) || is_for_all(scene, place, handle),
    };
    is_in_forward && is_closed
}

/// Says whether a rule of the node judges every packet that reaches it.
pub(super) fn is_for_all(scene: &Scene, place: &Place, handle: u64) -> bool {
    if place.legacy {
        let rule = place.says.strip_prefix(&format!("-A {} ", place.chain));
        return rule.is_some_and(|rule| rule.starts_with("-j "));
    }
    let is_of = |table: &&Table| table.family.as_str() == place.family && table.name == place.table;
    let chains = scene.host.filter.tables.iter().filter(is_of).flat_map(|table| &table.chains);
    let rules = chains.filter(|chain| chain.name == place.chain).flat_map(|chain| &chain.rules);
    let is_condition = |step: &Step| match step {
        Step::Compare { .. } | Step::Range { .. } | Step::Lookup { .. } | Step::Limit { .. } => {
            true
        }
        // That sends a frame on.
        Step::Unknown { name } => name != "fwd",
        _ => false,
    };
    rules.filter(|rule| rule.handle == handle).any(|rule| !rule.steps.iter().any(is_condition))
}

/// The subnets of a container's network, of its family; its address if they are not known.
fn subnets(look: Look<'_>, site: &Site<'_>) -> Vec<IpNet> {
    let is_of = |net: &&IpNet| net.addr().is_ipv4() == (site.family() == IpFamily::V4);
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

/// Says whether firewalld has policies, which let packets pass between zones: since 0.9, and with
/// nftables it then has these chains.
fn has_policies(scene: &Scene) -> bool {
    chains_of_firewalld(scene).any(|chain| chain.starts_with("filter_FORWARD_POLICIES"))
}

fn chains_of_firewalld(scene: &Scene) -> impl Iterator<Item = &str> {
    let tables = scene.host.filter.tables.iter().filter(|table| table.name == "firewalld");
    tables.flat_map(|table| &table.chains).map(|chain| chain.name.as_str())
}

/// The policy of firewalld that lets what containers send be forwarded, and nothing else.
const POLICY: &str = "netwright";

/// Returns the commands for it. A policy of that name may be there.
fn policy(scene: &Scene, sort: &Sort<'_>, site: &Site<'_>, nets: &[IpNet]) -> Vec<String> {
    let tool = "firewall-cmd --permanent";
    let is_there = chains_of_firewalld(scene).any(|chain| chain.ends_with(&format!("_{POLICY}")));
    let made = (!is_there).then(|| {
        [
            format!("{tool} --new-policy={POLICY}"),
            format!("{tool} --policy={POLICY} --add-ingress-zone=ANY"),
            format!("{tool} --policy={POLICY} --add-egress-zone=ANY"),
        ]
    });
    let rules = nets.iter().map(|net| {
        let rule = rich_rule(sort, site, net);
        format!("{tool} --policy={POLICY} --add-rich-rule='{rule}' && firewall-cmd --reload")
    });
    made.into_iter().flatten().chain(rules).collect()
}

fn zone(net: &IpNet) -> String {
    format!("firewall-cmd --permanent --zone=trusted --add-source={net} && firewall-cmd --reload")
}

/// Returns the command that adds a rule to the zone of firewalld whose chain stops packets to the node;
/// without a zone it is the one for all links that have none.
fn in_zone(place: &Place, rule: &str) -> String {
    let zone = ["filter_IN_", "IN_"].iter().find_map(|before| place.chain.strip_prefix(before));
    let ends = ["_pre", "_log", "_deny", "_allow", "_post"];
    let whole = |zone| ends.iter().find_map(|end| str::strip_suffix(zone, end)).unwrap_or(zone);
    let zone = zone.filter(|zone| !zone.starts_with("policy_")).map(whole);
    let zone = zone.map(|zone| format!(" --zone={zone}")).unwrap_or_default();
    format!("firewall-cmd --permanent{zone} --add-rich-rule='{rule}' && firewall-cmd --reload")
}

/// Returns a rule of firewalld that lets what does not pass, and no more.
fn rich_rule(sort: &Sort<'_>, site: &Site<'_>, net: &IpNet) -> String {
    let family = if net.addr().is_ipv4() { "ipv4" } else { "ipv6" };
    let from = format!("rule family={family} source address={net}");
    match (sort, sort.port()) {
        (Sort::To(to, _), Some((protocol, port))) => {
            format!("{from} destination address={to} port port={port} protocol={protocol} accept")
        }
        (Sort::Published(_) | Sort::PublishedHere(_), Some((protocol, port))) => format!(
            "rule family={family} destination address={} port port={port} protocol={protocol} accept",
            site.address
        ),
        _ => format!("{from} accept"),
    }
}

/// Returns the command with which ufw lets pass what does not.
fn ufw(links: &Links<'_>, sort: &Sort<'_>, site: &Site<'_>, net: &IpNet) -> String {
    let link = |word: &str, link: Option<&str>| {
        link.map(|link| format!(" {word} on {link}")).unwrap_or_default()
    };
    let on = link("in", links.near) + &link("out", links.far);
    match (sort, sort.port()) {
        (Sort::To(to, _), Some((protocol, port))) => {
            format!("ufw route allow{on} proto {protocol} from {net} to {to} port {port}")
        }
        (Sort::Published(_) | Sort::PublishedHere(_), Some((protocol, port))) => {
            format!("ufw route allow proto {protocol} from any to {} port {port}", site.address)
        }
        (Sort::Between(..), _) => format!("ufw route allow from {net} to {net}"),
        (Sort::FromNode, _) => format!("ufw route allow to {net}"),
        _ => format!("ufw route allow{on} from {net}"),
    }
}

/// Says whether a filter that stops what a container asks of one machine lets the same container ask
/// others, or other ports: a person has then listed what containers may ask, or may not.
pub(super) fn lets_others(look: Look<'_>, site: &Site<'_>, sort: &Sort<'_>) -> bool {
    if !matches!(sort, Sort::To(..)) {
        return false;
    }
    let all = others::samples(look.scene, site.family());
    let kinds = [tcp(WEB[0]), tcp(WEB[1]), carries(Transport::Udp, Port::Is(NAMES))];
    let by_port = all.first().into_iter().flat_map(|to| kinds.map(|with| (*to, with)));
    let any = carries(Transport::Tcp, Port::Any);
    let mut tried = by_port.chain(all.iter().map(|to| (*to, any)));
    tried.any(|(to, with)| {
        let trip = Trip::Outside { from: site, to, with };
        matches!(follow_filters(look.scene, &trip, &[]), Outcome::Passes(_))
    })
}

/// Returns the command that removes a rule.
pub(super) fn remove(place: &Place, netns: Option<&str>) -> String {
    let Place { family, table, chain, .. } = place;
    let command = if place.legacy {
        let rule = place.says.strip_prefix("-A ").unwrap_or(&place.says);
        format!("{family}-legacy -t {table} -D {rule}")
    } else {
        let handle = place.rule.map(|(_, handle)| handle).unwrap_or_default();
        format!("nft delete rule {family} {table} {chain} handle {handle}")
    };
    within(netns) + &command
}

/// Where a rule is inserted that lets packets pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InsertPoint {
    /// At the beginning of the base chain: the chain's owner may write its other chains again.
    Base,
    /// Before the rule that stops the packets: what comes earlier still judges them.
    Rule,
    /// At the beginning of the chain that Docker leaves to others.
    Docker,
}

impl<'s> Links<'s> {
    fn of(look: Look<'s>, site: &Site<'s>, sort: &Sort<'_>, place: &Place) -> Self {
        let none = Links { near: None, far: None };
        let to = match sort {
            Sort::To(to, _) => *to,
            Sort::Outside => samples(site.family())[0],
            _ => return none,
        };
        let host = &look.scene.host;
        let near = site.seen_by;
        let routed = look_up(host, Some(site.address), to, Some(&near.name), None);
        let RouteDecision::By { link: far, .. } = routed else { return none };
        if place.hook != Hook::Forward || site.bridge.is_none() || far.index == near.index {
            return none;
        }
        let is_one = links_out(host, to).is_none();
        let far = is_one.then_some(far.name.as_str());
        Links { near: Some(near.name.as_str()), far }
    }
}

/// Returns the commands that let packets pass.
fn accept<'n>(
    look: Look<'_>,
    at: InsertPoint,
    site: &Site<'_>,
    sort: &Sort<'_>,
    caught: &FilterStop,
    nets: &'n [IpNet],
    netns: Option<&str>,
) -> Vec<String> {
    let place = &caught.place;
    let is_ipv4 = site.family() == IpFamily::V4;
    if caught.layer != Layer::Ip || (is_raw(place) && caught.back) {
        let matches = stateless::matches(look, site, sort, caught, nets).unwrap_or_default();
        let links = Links { near: None, far: None };
        let command = |one| within(netns) + &insert(at, place, &links, one, is_ipv4);
        return matches.iter().map(command).collect();
    }
    let each = |of: fn(&'n IpNet) -> Match<'n>| nets.iter().map(of);
    // There the answers to translated packets still have this node's address.
    let answers = || match is_untranslated(place) {
        true => vec![Match::Answers],
        false => each(Match::AnswersTo).collect(),
    };
    let matches: Vec<Match<'n>> = match (sort, sort.port()) {
        (Sort::Resolve, _) => vec![Match::Neighbours],
        (Sort::Inside, _) => vec![Match::Loopback],
        _ if caught.back && netns.is_some() => vec![Match::Answers],
        (Sort::Outside | Sort::To(..), _) if caught.back => answers(),
        (Sort::Between(..), _) if caught.back => each(Match::Within).collect(),
        _ if caught.back => each(Match::AnswersFrom).collect(),
        // A container's own filter is opened for what does not pass, and for no more.
        (Sort::To(to, _), Some((protocol, port))) if netns.is_some() && leaves(place) => {
            vec![Match::Machine(*to, protocol, port), Match::Answers]
        }
        (_, Some((protocol, port))) if netns.is_some() => {
            vec![Match::Port(None, protocol, port), Match::Answers]
        }
        (_, None) if netns.is_some() && leaves(place) => {
            vec![Match::Sender(site.address), Match::Answers]
        }
        (Sort::Published(port), _) if is_untranslated(place) => {
            vec![Match::Port(None, port.transport.as_str(), port.host), Match::Answers]
        }
        (Sort::PublishedHere(port), _) if is_untranslated(place) && netns.is_none() => {
            vec![Match::Port(None, port.transport.as_str(), port.host)]
        }
        (Sort::Published(port), _) => {
            let to = Match::Published(site.address, port.transport.as_str(), port.container);
            [to].into_iter().chain(each(Match::AnswersFrom)).collect()
        }
        (Sort::FromNode | Sort::PublishedHere(_), _) if netns.is_none() => {
            each(Match::To).collect()
        }
        (Sort::FromNode | Sort::PublishedHere(_), _) => vec![Match::Answers],
        // The node's own services stay closed but for this one.
        (_, Some((protocol, port))) if place.hook == Hook::Input => {
            nets.iter().map(|net| Match::Port(Some(net), protocol, port)).collect()
        }
        (Sort::To(to, _), Some((protocol, port))) => {
            let flows = nets.iter().map(|net| Match::Flow(net, *to, protocol, port));
            flows.chain(answers()).collect()
        }
        (Sort::Between(..), _) => each(Match::Within).collect(),
        _ => each(Match::From).chain(answers()).collect(),
    };
    let is_tracked = !is_raw(place);
    // What drops the later packets of a connection does so between containers, too, where it sees
    // their frames, and no packet that begins one shows that.
    let links = match caught.further {
        true => Links { near: None, far: None },
        false => Links::of(look, site, sort, place),
    };
    let matches = matches.iter().filter(|one| is_tracked || !one.is_of_tracking());
    let command = |one| within(netns) + &insert(at, place, &links, one, is_ipv4);
    matches.map(command).collect()
}

/// Says whether packets that come to a place have not been seen by connection tracking.
/// `NF_IP_PRI_CONNTRACK`, linux/netfilter_ipv4.h.
fn is_raw(place: &Place) -> bool {
    matches!(place.hook, Hook::Prerouting | Hook::Output) && place.priority <= -200
}

/// Says whether packets that come to a place still have the destination that their sender gave
/// them. `NF_IP_PRI_NAT_DST`, linux/netfilter_ipv4.h.
fn is_untranslated(place: &Place) -> bool {
    matches!(place.hook, Hook::Prerouting | Hook::Output) && place.priority <= -100
}

/// Returns the command that gives a base chain the policy `accept`.
fn open(place: &Place) -> String {
    let Place { family, table, base, .. } = place;
    format!("nft chain {family} {table} {base} '{{ policy accept; }}'")
}

/// Says whether packets at a hook leave the namespace.
fn leaves(place: &Place) -> bool {
    matches!(place.hook, Hook::Output | Hook::Postrouting)
}

/// Returns the command that inserts a rule.
fn insert(
    at: InsertPoint,
    place: &Place,
    links: &Links<'_>,
    what: &Match<'_>,
    is_ipv4: bool,
) -> String {
    let Place { family, table, base, .. } = place;
    let (chain, rule) = match at {
        InsertPoint::Base => (base.as_str(), None),
        InsertPoint::Rule => (place.chain.as_str(), place.rule),
        InsertPoint::Docker => (USER, None),
    };
    let number = rule.map(|(number, _)| format!(" {number}")).unwrap_or_default();
    let by =
        |tool: &str, what: String| format!("{tool} -t {table} -I {chain}{number} {what} -j ACCEPT");
    let of_ip = || matches::iptables(what, links, leaves(place));
    // So are those of iptables-nft, ebtables-nft and arptables-nft.
    let is_upper = base.chars().all(|letter| letter.is_ascii_uppercase());
    match (*family, is_ipv4) {
        (_, true) if place.legacy => by("iptables-legacy", of_ip()),
        (_, false) if place.legacy => by("ip6tables-legacy", of_ip()),
        ("ip" | "ip6", true) if is_upper => by("iptables-nft", of_ip()),
        ("ip" | "ip6", false) if is_upper => by("ip6tables-nft", of_ip()),
        ("bridge", _) if is_upper => by("ebtables-nft", matches::ebtables(what, is_ipv4)),
        ("arp", _) if is_upper => by("arptables-nft", matches::arptables(what)),
        _ => {
            let what = matches::nft(what, links, leaves(place), is_ipv4);
            let before = rule.map(|(_, handle)| format!(" handle {handle}")).unwrap_or_default();
            format!("nft insert rule {family} {table} {chain}{before} {what} accept")
        }
    }
}

/// The chain that Docker leaves to others.
const USER: &str = "DOCKER-USER";
