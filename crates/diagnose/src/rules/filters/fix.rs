//! What lets packets through, and takes no more of a filter's protection away than it must.
//!
//! A rule of others stays: a rule before it lets the containers' packets pass. Whose the rule is,
//! decides whether it goes; what ends with it is said.

use std::cmp::Reverse;
use std::net::SocketAddr;

use ipnet::IpNet;
use net::IpFamily;

use super::super::unanswered;
use super::super::ways::{links_out, samples};
use super::matches::{Links, Match, RuleMatch};
use super::position::{Effect, Ending, FilterSite, InsertPoint, Position, StoppedTrips};
use super::say::Sort;
use super::{FilterStop, WEB, others, stateless, tcp};
use crate::Look;
use crate::command::within;
use crate::filter::{AddedRule, Change, Layer, Packet, Place, Port, walk_changed};
use crate::finding::Help;
use crate::model::filter::{Hook, Step, Table};
use crate::model::{Container, Scene, Transport};
use crate::path::{Outcome, Site, Trip, carries, follow_filters};
use crate::question::NAMES;
use crate::restored;
use crate::routes::{RouteDecision, look_up};
use crate::whose::{self, Owner};

/// A way that a filter stops, and what is to pass.
struct StoppedWay<'h> {
    look: Look<'h>,
    site: &'h Site<'h>,
    sort: &'h Sort<'h>,
    trips: &'h [Trip<'h>],
    caught: &'h FilterStop,
    /// The subnets of the container's network.
    nets: &'h [IpNet],
    /// The path of the container's namespace, if the filter is there.
    netns: Option<&'h str>,
}

/// Returns what lets a way of a container pass a filter. `trips` are those that were followed.
pub(super) fn help(
    look: Look<'_>,
    site: &Site<'_>,
    sort: &Sort<'_>,
    trips: &[Trip<'_>],
    caught: &FilterStop,
) -> Vec<Help> {
    let place = &caught.place;
    let inside = caught.inside.as_deref().and_then(|id| look.scene.container(id));
    let netns = inside.map(|container| container.netns.as_str());
    let nets = &subnets(look, site)[..];
    let way = StoppedWay { look, site, sort, trips, caught, nets, netns };
    if let Some(container) = inside {
        return of_container(&way, container);
    }
    let owner = whose::owner_of(place, look.scene).map(|(owner, _)| owner);
    let has_firewalld = look.scene.has_firewall("firewalld");
    let has_ufw = look.scene.has_firewall("ufw");
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
        Some(Owner::Firewalld) if has_firewalld && is_forwarded && has_policies(look.scene) => {
            all(policy(look.scene, sort, site, nets))
        }
        Some(Owner::Firewalld)
            if has_firewalld && place.hook == Hook::Input && sort.port().is_some() =>
        {
            all(nets.iter().map(|net| in_zone(place, &rich_rule(sort, site, net))).collect())
        }
        Some(Owner::Firewalld) if has_firewalld => with(
            nets.iter().map(zone).collect(),
            "this opens every service of this node to the containers, too".to_owned(),
        ),
        // What answers, its first rules let pass.
        Some(Owner::Ufw) if has_ufw && is_forwarded && !caught.back => all(nets
            .iter()
            .map(|net| ufw(&Links::of(look, site, sort, place), sort, site, net))
            .collect()),
        Some(Owner::Ufw) if has_ufw && place.hook == Hook::Input => match sort.port() {
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
            let_through(&way, accept(&way, InsertPoint::Chain(USER)))
        }
        Some(Owner::Ours) if place.rule.is_none() => all(vec![open(place)]),
        Some(Owner::Calico) if whose::is_for_services(place) => {
            let network = &site.attachment.network;
            let or =
                format!("or give network {network} a subnet in which the cluster has no Services");
            with(accept(&way, InsertPoint::Base), or)
        }
        // A rule before it would let everything past Calico's policies.
        Some(Owner::Calico) if whose::is_for_links(place) => {
            vec![Help::Advice(format!(
                "let Calico know the link {}: restart calico-node, and see why it does not run, or does not know the pod of {}",
                site.host_end.name,
                site.container.called()
            ))]
        }
        None if place.rule.is_some() => without(&way),
        Some(Owner::Docker) if place.chain == USER => without(&way),
        _ => let_through(&way, accept(&way, InsertPoint::Base)),
    }
}

/// Returns what lets the containers' packets pass before a rule of others judges them.
fn without(way: &StoppedWay<'_>) -> Vec<Help> {
    let StoppedWay { look, site, sort, caught, .. } = way;
    if is_queue(&caught.place) {
        return of_queue(&removed(way));
    }
    let commands = accept(way, InsertPoint::Rule);
    // Who lists what containers may ask needs the rule that stops the rest.
    if commands.is_empty() || lets_others(*look, site, sort) {
        return let_through(way, commands);
    }
    let commands = commands.into_iter().map(Help::Command);
    commands.chain([Help::Advice(or_remove(&removed(way)))]).collect()
}

/// Returns what helps where no program judges the packets of a queue.
fn of_queue(removed: &str) -> Vec<Help> {
    let or = format!("if there is to be none, remove the rule: {removed}");
    let start = "start the program that reads the queue, or see why it judges none".to_owned();
    vec![Help::Advice(start), Help::Advice(or)]
}

/// Returns the commands that let packets pass; where no rule can, what a person does.
fn let_through(way: &StoppedWay<'_>, commands: Vec<String>) -> Vec<Help> {
    if !commands.is_empty() {
        return commands.into_iter().map(Help::Command).collect();
    }
    let place = &way.caught.place;
    let name = place.name();
    let otherwise = match place.rule {
        Some(_) => format!("; {}", or_remove(&removed(way))),
        None => String::new(),
    };
    let why = match matches(way).0.is_empty() {
        true => "no rule there tells answers from other packets",
        false => "each that helps would also let pass what other rules drop",
    };
    vec![Help::Advice(format!(
        "let {name} except what containers send and get; doctor names no command, since {why}{otherwise}"
    ))]
}

/// Returns what helps against a container's own filter, which is there because its owner wants it:
/// what lets the packets of the probe pass and no others, and what protection that takes away.
fn of_container(way: &StoppedWay<'_>, container: &Container) -> Vec<Help> {
    let place = &way.caught.place;
    if is_queue(place) {
        return of_queue(&removed(way));
    }
    let (what, commands) = way.narrow().unwrap_or_default();
    of_owner(container, place, &what, commands, &removed(way))
}

fn of_owner(
    container: &Container,
    place: &Place,
    what: &str,
    commands: Vec<String>,
    removed: &str,
) -> Vec<Help> {
    let called = container.called();
    let protects = match commands.is_empty() {
        true => "doctor names no command, since one would let more pass than a probe has tried"
            .to_owned(),
        false => format!("a command here takes its protection away for {what}"),
    };
    let mut all: Vec<Help> = commands.into_iter().map(Help::Command).collect();
    all.push(Help::Advice(format!(
        "the filter is {called}'s own and may be meant, as the kill switch of a VPN is, which lets \
         nothing pass beside the tunnel: ask its owner first"
    )));
    all.push(Help::Advice(protects));
    if place.rule.is_some() {
        all.push(Help::Advice(or_remove(removed)));
    }
    all
}

/// A probe that a container's own filter has dropped, as the filter sees it.
pub(super) struct DroppedProbe {
    pub(super) layer: Layer,
    pub(super) packet: Packet,
    pub(super) place: Place,
    pub(super) to: SocketAddr,
    pub(super) by: Transport,
    pub(super) back: bool,
}

/// Returns what helps where a container's own filter has dropped a probe, at a place. How the
/// container's packets reach the node does not matter for that.
pub(super) fn of_probe(
    scene: &Scene,
    container: &Container,
    place: &Place,
    probe: Option<DroppedProbe>,
) -> Vec<Help> {
    let Some(site) = FilterSite::of(scene, Some(&container.id)) else { return Vec::new() };
    let place = probe.as_ref().map_or(place, |probe| &probe.place);
    let netns = Some(container.netns.as_str());
    let removed = remove(&site.own(place), netns);
    if is_queue(place) {
        return of_queue(&removed);
    }
    let (what, commands) =
        probe.as_ref().map(|probe| probe.passes(site, netns)).unwrap_or_default();
    of_owner(container, place, &what, commands, &removed)
}

impl DroppedProbe {
    /// Returns the commands that let it pass, and what passes then in words.
    fn passes(&self, site: FilterSite<'_>, netns: Option<&str>) -> (String, Vec<String>) {
        let DroppedProbe { layer, packet, place, to, by, back } = self;
        let protocol = by.as_str();
        let (what, says) = match back {
            true => (Match::Answers, "answers".to_owned()),
            false => (
                Match::Machine(to.ip(), protocol, to.port()),
                format!("what it sends to {to} by {}", protocol.to_uppercase()),
            ),
        };
        let ending = |added: &[AddedRule]| {
            let change = Change { added, ..Change::default() };
            let FilterSite { namespace, inside } = site;
            let walked = walk_changed(namespace, inside, *layer, place.hook, packet, change);
            Ending::of_walk(walked.end, place)
        };
        let (leaves, is_ipv4) = (leaves(place), to.is_ipv4());
        let rules = [RuleMatch { what, links: NO_LINKS, leaves, is_ipv4 }];
        let effect = Effect { ending: &ending, opens: &|_| false };
        let commands = inserted(site, place, InsertPoint::Rule, &rules, effect, netns);
        (says, commands.unwrap_or_default())
    }
}

impl StoppedWay<'_> {
    /// Returns the commands that let the packets of a probe pass a container's own filter, and what
    /// these are in words.
    fn narrow(&self) -> Option<(String, Vec<String>)> {
        let StoppedWay { look, site, sort, caught, .. } = *self;
        if !matches!(sort, Sort::Outside) || caught.back {
            let what = match (sort, sort.port()) {
                _ if caught.back => "answers".to_owned(),
                (Sort::To(..), _) => format!("what it sends to {}", sort.whom()),
                (Sort::Inside, _) => "what its programs send each other".to_owned(),
                (Sort::Resolve, _) => "questions for hardware addresses".to_owned(),
                (_, Some((protocol, port))) => {
                    format!("{} to its port {port}", protocol.to_uppercase())
                }
                _ => return None,
            };
            return Some((what, accept(self, InsertPoint::Rule)));
        }
        // All that it sends was followed; what is let through is what was sent.
        let (to, with) = unanswered(look, site.container, site.family())?;
        let sort = &Sort::To(to, with);
        sort.port()?;
        let trips = &[Trip::Outside { from: site, to, with }];
        let way = StoppedWay { sort, trips, ..*self };
        Some((format!("what it sends to {}", sort.whom()), accept(&way, InsertPoint::Rule)))
    }
}

/// Returns what lets all pass that a container sends, before a rule at the node's end of its link.
pub(super) fn sent(
    scene: &Scene,
    site: &Site<'_>,
    place: &Place,
    ending: &dyn Fn(&[AddedRule]) -> Ending,
) -> Vec<Help> {
    let is_ipv4 = site.family() == IpFamily::V4;
    let effect = Effect { ending, opens: &|_| false };
    let is_closed = place.rule.is_none_or(|(_, rule)| is_for_all(scene, place, rule));
    let all = stateless::sent(site, is_closed);
    let rules: Vec<RuleMatch<'_>> = all
        .iter()
        .map(|what| RuleMatch { what: *what, links: NO_LINKS, leaves: false, is_ipv4 })
        .collect();
    let at = FilterSite { namespace: &scene.host, inside: None };
    let commands = inserted(at, place, InsertPoint::Rule, &rules, effect, None).unwrap_or_default();
    let commands = commands.into_iter().map(Help::Command);
    commands.chain([Help::Advice(or_remove(&remove(&at.own(place), None)))]).collect()
}

/// Returns what lets packets of UDP to a port pass a filter of the node: from some subnets, or from
/// all if there are none.
pub(in crate::rules) fn opened(
    scene: &Scene,
    place: &Place,
    nets: &[IpNet],
    port: u16,
    family: IpFamily,
    ending: &dyn Fn(&[AddedRule]) -> Ending,
) -> Vec<Help> {
    let owner = whose::owner_of(place, scene).map(|(owner, _)| owner);
    let is_input = place.hook == Hook::Input;
    let effect = Effect { ending, opens: &|_| false };
    let site = FilterSite { namespace: &scene.host, inside: None };
    let commands: Vec<String> = match owner {
        Some(Owner::Firewalld) if is_input && scene.has_firewall("firewalld") => {
            let version = if family == IpFamily::V4 { "ipv4" } else { "ipv6" };
            let rule = |net: &IpNet| {
                format!(
                    "rule family={version} source address={net} port port={port} protocol=udp accept"
                )
            };
            nets.iter().map(|net| in_zone(place, &rule(net))).collect()
        }
        Some(Owner::Ufw) if is_input && scene.has_firewall("ufw") => nets
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
            let (is_ipv4, leaves) = (family == IpFamily::V4, leaves(place));
            let rule = |what| RuleMatch { what, links: NO_LINKS, leaves, is_ipv4 };
            let rules: Vec<RuleMatch<'_>> = all.into_iter().map(rule).collect();
            inserted(site, place, at, &rules, effect, None).unwrap_or_default()
        }
    };
    let or = place.rule.filter(|_| owner.is_none());
    let or = or.map(|_| Help::Advice(or_remove(&remove(&site.own(place), None))));
    commands.into_iter().map(Help::Command).chain(or).collect()
}

/// Says how a rule of others goes.
fn or_remove(removed: &str) -> String {
    format!("or remove the rule, if nobody needs it any more: {removed}")
}

/// Returns the command that removes the rule that stops a way, and no others.
fn removed(way: &StoppedWay<'_>) -> String {
    let place = &way.caught.place;
    let site = FilterSite::of(way.look.scene, way.caught.inside.as_deref());
    remove(&site.map_or_else(|| place.clone(), |site| site.own(place)), way.netns)
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

impl<'s> Links<'s> {
    fn of(look: Look<'s>, site: &Site<'s>, sort: &Sort<'_>, place: &Place) -> Self {
        let none = NO_LINKS;
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

/// Where it does not count by which link packets come and leave.
const NO_LINKS: Links<'_> = Links { near: None, far: None };

/// Returns the commands that let packets pass; none if nothing shows that they do.
fn accept(way: &StoppedWay<'_>, at: InsertPoint) -> Vec<String> {
    let StoppedWay { look, site, caught, netns, .. } = *way;
    let place = &caught.place;
    let is_ipv4 = site.family() == IpFamily::V4;
    let (matches, links) = matches(way);
    let leaves = leaves(place);
    let rules = matches.into_iter().map(|what| RuleMatch { what, links, leaves, is_ipv4 });
    let rules: Vec<RuleMatch<'_>> = rules.collect();
    let Some(filter) = FilterSite::of(look.scene, caught.inside.as_deref()) else {
        return Vec::new();
    };
    let stopped = StoppedTrips::of(look.scene, caught, way.trips);
    let effect = Effect {
        ending: &|added: &[AddedRule]| stopped.ending(added),
        opens: &|added: &[AddedRule]| stopped.opens(added),
    };
    inserted(filter, place, at, &rules, effect, netns).unwrap_or_default()
}

/// Returns what is to pass, and by which links.
fn matches<'h>(way: &StoppedWay<'h>) -> (Vec<Match<'h>>, Links<'h>) {
    let StoppedWay { look, site, sort, caught, nets, netns, .. } = *way;
    let place = &caught.place;
    if caught.layer != Layer::Ip || (is_raw(place) && caught.back) {
        let matches = stateless::matches(look, site, sort, caught, nets).unwrap_or_default();
        return (matches, NO_LINKS);
    }
    let each = |of: fn(&'h IpNet) -> Match<'h>| nets.iter().map(of);
    // There the answers to translated packets still have this node's address.
    let answers = || match is_untranslated(place) {
        true => vec![Match::Answers],
        false => each(Match::AnswersTo).collect(),
    };
    let matches: Vec<Match<'h>> = match (sort, sort.port()) {
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
        (_, None) if netns.is_some() => Vec::new(),
        (Sort::Published(port), _) if is_untranslated(place) => {
            vec![Match::Port(None, port.transport.as_str(), port.host), Match::Answers]
        }
        (Sort::PublishedHere(port), _) if is_untranslated(place) => {
            vec![Match::Port(None, port.transport.as_str(), port.host)]
        }
        (Sort::Published(port), _) => {
            let to = Match::Published(site.address, port.transport.as_str(), port.container);
            [to].into_iter().chain(each(Match::AnswersFrom)).collect()
        }
        (Sort::FromNode | Sort::PublishedHere(_), _) => each(Match::To).collect(),
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
        true => NO_LINKS,
        false => Links::of(look, site, sort, place),
    };
    let matches = matches.into_iter().filter(|one| is_tracked || !one.is_of_tracking());
    (matches.collect(), links)
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

/// Returns the commands that put rules where they let packets pass. `None`: nothing shows that they do.
fn inserted(
    site: FilterSite<'_>,
    place: &Place,
    at: InsertPoint,
    rules: &[RuleMatch<'_>],
    effect: Effect<'_>,
    netns: Option<&str>,
) -> Option<Vec<String>> {
    let placed = site.placed(place, at, rules, effect)?;
    let first = placed.first().map(|(_, position)| position.clone())?;
    // A container's own filter is opened for what is shown to need it, and for no more.
    let is_used = |one: usize| placed.iter().any(|(used, _)| *used == one);
    let numbers = (0..rules.len()).filter(|one| netns.is_none() || is_used(*one));
    let mut all: Vec<(Position, String)> = numbers
        .filter_map(|one| {
            let own = placed.iter().find(|(used, _)| *used == one);
            let position = own.map_or_else(|| first.clone(), |(_, position)| position.clone());
            let command = within(netns) + &insert(place, &position, rules.get(one)?);
            Some((position, command))
        })
        .collect();
    // A rule that goes in changes the numbers of those below.
    all.sort_by_key(|(position, _)| Reverse(position.number()));
    Some(all.into_iter().map(|(_, command)| command).collect())
}

/// Returns the command that puts a rule into a chain.
fn insert(place: &Place, position: &Position, rule: &RuleMatch<'_>) -> String {
    let Place { family, table, base, .. } = place;
    let Position { chain, before, .. } = position;
    let is_ipv4 = rule.is_ipv4;
    let by = |tool: &str, what: String| match before {
        Some((number, _)) => format!("{tool} -t {table} -I {chain} {number} {what} -j ACCEPT"),
        None => format!("{tool} -t {table} -A {chain} {what} -j ACCEPT"),
    };
    // So are those of iptables-nft, ebtables-nft and arptables-nft.
    let is_upper = base.chars().all(|letter| letter.is_ascii_uppercase());
    match (*family, is_ipv4) {
        (_, true) if place.legacy => by("iptables-legacy", rule.iptables()),
        (_, false) if place.legacy => by("ip6tables-legacy", rule.iptables()),
        ("ip" | "ip6", true) if is_upper => by("iptables-nft", rule.iptables()),
        ("ip" | "ip6", false) if is_upper => by("ip6tables-nft", rule.iptables()),
        ("bridge", _) if is_upper => by("ebtables-nft", rule.ebtables()),
        ("arp", _) if is_upper => by("arptables-nft", rule.arptables()),
        _ => {
            let what = rule.nft();
            match before {
                Some((_, handle)) => {
                    format!(
                        "nft insert rule {family} {table} {chain} handle {handle} {what} accept"
                    )
                }
                None => format!("nft add rule {family} {table} {chain} {what} accept"),
            }
        }
    }
}

/// The chain that Docker leaves to others.
const USER: &str = "DOCKER-USER";
