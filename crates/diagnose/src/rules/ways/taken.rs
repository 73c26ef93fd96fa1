//! Which way a container's packets take to an address: links, routes, routing rules and translation,
//! in the container and on the node. What is not certain is not told.

use std::net::{IpAddr, SocketAddr};

use net::IpFamily;

use super::{rule_text, text};
use crate::Look;
use crate::command::within;
use crate::filter::{Layer, NewDestination, Packet, Place, Port, Truth, walk};
use crate::finding::{Finding, Help};
use crate::model::filter::Hook;
use crate::model::{Container, Link, Namespace, Route, RouteRule, Transport};
use crate::path::{Joint, Site, address_of, carries, uplink};
use crate::question::{Answer, Hop};
use crate::routes::{RouteDecision, look_up};
use crate::rules::ip;

/// The way of a packet.
#[derive(Debug)]
pub(in crate::rules) struct PacketWay<'s> {
    /// Each part in words.
    parts: Vec<String>,
    /// The rule or the route that leads it elsewhere than the node's own packets.
    other: Option<String>,
    /// The container's interface by which it leaves, if no attachment made that.
    interface: Option<&'s str>,
    /// The link by which the node reaches others.
    uplink: Option<&'s Link>,
    /// Its source, as the container sends it.
    source: IpAddr,
    translated: Truth,
    /// The rule that takes it from connection tracking, so that it is not translated.
    untracked: Option<String>,
    /// Where it is for, after the rules that translate that.
    pub(super) to: IpAddr,
    /// How it leaves the node.
    pub(super) leaves: Option<(&'s Link, Option<IpAddr>, &'s Route)>,
    /// The routing rule that asks the route's table.
    pub(super) by_rule: Option<&'s RouteRule>,
    /// Where what it sends can be seen, if it does not pass the node's IP.
    beside: Option<String>,
    /// The routing rule that leads it elsewhere than the node's own packets go.
    pub(super) turn: Option<Turn<'s>>,
    /// What of the node's routing refuses it.
    pub(super) refusal: Option<Refusal<'s>>,
}

/// A routing rule of the node, or a route, that refuses a container's packets.
#[derive(Debug)]
pub(super) struct Refusal<'s> {
    pub(super) rule: Option<&'s RouteRule>,
    pub(super) route: Option<&'s Route>,
    pub(super) site: Site<'s>,
    /// The packet filter's rule that has given them the mark of the rule.
    pub(super) marked: Option<Place>,
}

/// Where a routing rule of the node leads a container's packets elsewhere.
#[derive(Debug)]
pub(super) struct Turn<'s> {
    pub(super) rule: &'s RouteRule,
    pub(super) route: &'s Route,
    /// The link by which they leave.
    pub(super) link: &'s Link,
    /// That of the node's own packets.
    pub(super) own: &'s Link,
    pub(super) site: Site<'s>,
    /// The packet filter has given them the mark of the rule: the table.
    pub(super) marked: Option<String>,
}

/// Follows what a container sends to an address.
pub(in crate::rules) fn taken<'s>(
    look: Look<'s>,
    container: &'s Container,
    to: SocketAddr,
    transport: Transport,
) -> Option<PacketWay<'s>> {
    let inside = container.inside.as_ref()?;
    let called = container.called();
    let with = carries(transport, Port::Is(to.port()));
    let mut to = to.ip();
    let RouteDecision::By { link, .. } = look_up(inside, None, to, None, Some(0)) else {
        return owned(look, container, to);
    };
    let source = address_of(link, to.is_ipv4())?;
    let mut taken = PacketWay::begin(look, source, to);
    let sent = Packet::first(source, to, with).between(None, Some(&link.name));
    let walked = walk(inside, Layer::Ip, Hook::Output, &sent);
    if let Some((place, new)) = &walked.destination {
        taken.other = Some(format!("in {called}: {place}"));
        taken.parts.push(format!("{} of {called} sends it to {}", place.name(), end(new, to)));
        match new {
            NewDestination::To(Some(address), _) => to = *address,
            NewDestination::To(None, _) => {}
            _ => return Some(taken),
        }
    }
    let routed = look_up(inside, None, to, None, walked.packet.mark);
    let RouteDecision::By { link, via, route, rule } = routed else { return Some(taken) };
    taken.parts.push(format!("in {called} {}", by(inside, link, via, route, rule)));
    let is_node = look.scene.host.owner_of(via.unwrap_or(to)).is_some();
    let mut attachments = container.attachments.iter();
    let attachment = attachments.find(|attachment| attachment.ifname == link.name);
    if attachment.is_none() && link.name != "lo" && taken.other.is_none() {
        taken.other = Some(format!("in {called}: route {}", text(route, inside)));
        taken.interface = Some(&link.name);
    }
    let site = attachment
        .and_then(|attachment| Site::of(look.scene, container, attachment, IpFamily::of(to)));
    let is_routed = |site: &Site<'_>| site.is_the_nodes() && (is_node || site.is_routed());
    taken.to = to;
    let parent = site.as_ref().map(|site| (site.joint != Joint::Pair, &site.host_end.name));
    taken.beside = match (parent, attachment) {
        (Some((true, parent)), _) => Some(format!(
            "{} of {called} sends it by {parent}, beside the node's own packets: see what comes back there (tcpdump -ni {parent} host {to})",
            link.name
        )),
        (None, Some(_)) if link.name != "lo" => Some(format!(
            "it does not pass this node, as {} is a device of {called}: see what comes back there ({}tcpdump -ni {} host {to})",
            link.name,
            within(container.netns.as_str()),
            link.name
        )),
        _ => None,
    };
    if let Some(site) = site.filter(is_routed) {
        let packet = Packet { destination: to, ..walked.packet };
        taken.on_node(look, site, &packet);
    }
    Some(taken)
}

/// The container has the address itself.
fn owned<'s>(look: Look<'s>, container: &Container, to: IpAddr) -> Option<PacketWay<'s>> {
    let link = container.inside.as_ref()?.owner_of(to)?;
    let itself = format!("{} has {to} itself, on {}", container.called(), link.name);
    Some(PacketWay {
        parts: vec![itself.clone()],
        other: Some(itself),
        ..PacketWay::begin(look, to, to)
    })
}

impl<'s> PacketWay<'s> {
    /// The way of which nothing is known yet.
    fn begin(look: Look<'s>, source: IpAddr, to: IpAddr) -> Self {
        PacketWay {
            parts: Vec::new(),
            other: None,
            interface: None,
            uplink: uplink(look.scene, to.is_ipv4()),
            source,
            translated: Truth::Maybe,
            untracked: None,
            to,
            leaves: None,
            by_rule: None,
            beside: None,
            turn: None,
            refusal: None,
        }
    }

    /// The node's link by which it leaves.
    fn out(&self) -> Option<&'s Link> {
        self.leaves.map(|(link, ..)| link)
    }

    /// Says whether a route of the node leads it, as far as its way on the node is known.
    pub(super) fn goes_by(&self, route: &Route) -> bool {
        self.beside.is_none() && self.leaves.is_none_or(|(.., own)| own == route)
    }

    fn on_node(&mut self, look: Look<'s>, site: Site<'s>, packet: &Packet) {
        let host = &look.scene.host;
        let iif = Some(site.seen_by.name.as_str());
        let walked = walk(host, Layer::Ip, Hook::Prerouting, &packet.between(iif, None));
        self.untracked = walked.untracked.as_ref().map(ToString::to_string);
        let mut to = packet.destination;
        if let Some((place, new)) = &walked.destination {
            self.other = Some(place.to_string());
            self.parts.push(format!("{} sends it to {}", place.name(), end(new, to)));
            match new {
                NewDestination::To(Some(address), _) => to = *address,
                NewDestination::To(None, _) => {}
                _ => return,
            }
        }
        self.to = to;
        match look_up(host, Some(self.source), to, iif, walked.packet.mark) {
            RouteDecision::By { link, via, route, rule } => {
                self.parts.push(format!("on this node {}", by(host, link, via, route, rule)));
                self.leaves = Some((link, via, route));
                self.by_rule = rule;
                let own = look_up(host, None, to, None, Some(0));
                let is_other = matches!(own, RouteDecision::By { link: other, .. } if other.index != link.index);
                if let (true, RouteDecision::By { link: other, .. }) = (is_other, own) {
                    self.parts
                        .push(format!("what this node itself sends there goes by {}", other.name));
                }
                if let (true, Some(rule), RouteDecision::By { link: own, .. }) =
                    (is_other, rule, own)
                {
                    let marked = walked.marked.as_ref().map(ToString::to_string);
                    self.turn = Some(Turn { rule, route, link, own, site, marked });
                }
                let is_unusual =
                    is_other || self.uplink.is_some_and(|uplink| uplink.index != link.index);
                if is_unusual && self.other.is_none() {
                    let rule = rule.map(|rule| format!("rule {}; then ", rule_text(rule)));
                    self.other =
                        Some(format!("{}route {}", rule.unwrap_or_default(), text(route, host)));
                }
                let left = Packet { destination: to, ..walked.packet };
                let left = left.between(iif, Some(&link.name));
                self.translated = walk(host, Layer::Ip, Hook::Postrouting, &left).source;
                match self.translated {
                    Truth::Yes => self.parts.push("its source is translated".to_owned()),
                    Truth::No => self.parts.push(format!("its source {} stays", self.source)),
                    Truth::Maybe => {}
                }
            }
            RouteDecision::Local(link) => {
                let at = format!("this node has {to} itself, on {}", link.name);
                self.other.get_or_insert_with(|| at.clone());
                self.parts.push(at);
            }
            RouteDecision::Unknown => {
                self.parts.push("on this node a rule about marks may decide".to_owned());
            }
            RouteDecision::Refused { route, rule } => {
                let rule_text = rule.map(|rule| format!("rule {}", rule_text(rule)));
                let route_text = route.map(|route| format!("route {}", text(route, host)));
                let by: Vec<String> = rule_text.into_iter().chain(route_text).collect();
                self.parts.push(format!("on this node {} refuses it", by.join("; then ")));
                let own = look_up(host, None, to, None, Some(0));
                if !matches!(own, RouteDecision::Refused { .. }) {
                    self.other.get_or_insert_with(|| by.join("; then "));
                }
                self.refusal = Some(Refusal { rule, route, site, marked: walked.marked });
            }
            RouteDecision::Nowhere => self.parts.push(format!("this node has no route to {to}")),
        }
    }

    /// Says whether a probe was seen leaving by the link that leads to others.
    fn is_gone(&self, answer: &Answer) -> bool {
        let out = self.out();
        let is_uplink =
            out.is_some_and(|out| self.uplink.is_some_and(|uplink| uplink.index == out.index));
        is_uplink && seen_last(answer).is_some_and(|hop| self.is_out(hop))
    }

    fn is_out(&self, hop: &Hop) -> bool {
        hop.container.is_none()
            && self.out().is_some_and(|out| hop.link.as_deref() == Some(out.name.as_str()))
    }

    /// Returns the link by which a probe was seen leaving as answers can come back to it: by the link
    /// to which the routes lead it, and translated; or beside the node's own packets.
    pub(in crate::rules) fn left<'a>(&self, answer: &'a Answer) -> Option<&'a str> {
        let last = seen_last(answer)?;
        let is_left = self.beside.is_some() || self.is_out(last);
        last.link.as_deref().filter(|_| is_left && self.translated != Truth::No)
    }

    /// Says whether the node translates its source.
    pub(in crate::rules) fn is_translated(&self) -> bool {
        self.translated == Truth::Yes
    }

    /// Returns the command that asks the kernel what it does with it.
    fn question(&self, hop: &Hop) -> String {
        let version = ip(IpFamily::of(self.to));
        let iif = hop.link.as_ref().map(|link| format!(" iif {link}")).unwrap_or_default();
        format!("{version} route get {} from {}{iif}", self.to, self.source)
    }

    /// Says whether it is another way than that of the node's own packets.
    pub(in crate::rules) fn is_unusual(&self) -> bool {
        self.other.is_some() || self.translated == Truth::No
    }

    /// Adds the way to a finding of what was not answered, if it has no place yet.
    pub(in crate::rules) fn tell(&self, finding: Finding, answer: &Answer) -> Finding {
        if finding.place.is_some() || self.parts.is_empty() {
            return finding;
        }
        let left = if self.is_gone(answer) { "; it was seen leaving there" } else { "" };
        finding.at(format!("{}{left}", self.parts.join("; ")))
    }

    /// What helps where the node itself is answered. The fault lies beyond the node only if the
    /// packet was seen leaving as the node's own do.
    pub(in crate::rules) fn help(&self, called: &str, answer: &Answer) -> Help {
        if let (Some(interface), Some(other)) = (self.interface, &self.other) {
            return Help::Advice(format!(
                "look at what made {interface}, such as a VPN of {called}: no attachment did, and {called} sends it there ({other})"
            ));
        }
        if let Some(hop) = refused_at(answer).filter(|_| self.other.is_none()) {
            return Help::Advice(format!(
                "find what of this node's routes and routing rules refuses it: {}",
                self.question(hop)
            ));
        }
        Help::Advice(match (&self.other, self.translated) {
            (Some(other), _) => {
                format!(
                    "let what {called} sends take the way of this node's own packets, from which this keeps it: {other}"
                )
            }
            (None, Truth::No) if self.untracked.is_some() => format!(
                "let its source be translated, from which this keeps it: {}",
                self.untracked.as_deref().unwrap_or_default()
            ),
            (None, Truth::No) if self.is_in_subnet_out() => format!(
                "let the network translate what it sends (ipMasq), or let this node answer for {} on {}, in whose subnet it is: {}",
                self.source,
                self.out().map_or("the link out", |out| out.name.as_str()),
                self.entry()
            ),
            (None, Truth::No) => format!(
                "let the network translate what it sends (ipMasq), or give the routers beyond this node a route to {}",
                self.source
            ),
            (None, Truth::Yes) if self.is_gone(answer) => format!(
                "find what beyond this node drops the answers to {called}, or what it sends"
            ),
            _ => match &self.beside {
                Some(beside) => format!("follow what {called} sends: {beside}"),
                None => format!("follow what {called} sends: it was not seen leaving this node"),
            },
        })
    }
}

/// Returns where a probe was seen last, if nothing is known to have dropped it.
fn seen_last(answer: &Answer) -> Option<&Hop> {
    let (Answer::Silent { hops } | Answer::Unreachable { hops, .. }) = answer else { return None };
    let mut there = hops.iter().filter(|hop| !hop.back);
    let is_dropped = there.clone().any(|hop| hop.dropped.is_some());
    there.next_back().filter(|_| !is_dropped)
}

impl PacketWay<'_> {
    /// Says whether its source is in the subnet of the link by which it leaves: routers there ask for
    /// it on that link.
    fn is_in_subnet_out(&self) -> bool {
        let nets = self.out().into_iter().flat_map(|out| &out.addresses);
        nets.map(|own| own.address).any(|own| own.contains(&self.source))
    }

    /// The command that lets the node answer for its source.
    fn entry(&self) -> String {
        let link = self.out().map_or("LINK", |out| out.name.as_str());
        match self.source {
            IpAddr::V4(source) => format!("ip neigh add proxy {source} dev {link}"),
            IpAddr::V6(source) => {
                format!("ip -6 neigh add proxy {source} dev {link}, and proxy_ndp of {link}")
            }
        }
    }
}

/// Returns the place where this node's routing refused a packet on its way (linux net/ipv4/route.c
/// `ip_error`, net/ipv6/route.c `ip6_pkt_drop`; reasons of Linux 6.13).
pub(in crate::rules) fn refused_at(answer: &Answer) -> Option<&Hop> {
    let (Answer::Silent { hops } | Answer::Unreachable { hops, .. }) = answer else { return None };
    hops.iter().find(|hop| {
        let is_by_routing = hop.dropped.as_ref().is_some_and(|(function, reason)| {
            function == "ip_error"
                || function.starts_with("ip6_pkt_")
                || function.starts_with("dst_discard")
                || reason.contains("NOROUTES")
        });
        !hop.back && hop.container.is_none() && is_by_routing
    })
}

fn by(
    namespace: &Namespace,
    link: &Link,
    via: Option<IpAddr>,
    route: &Route,
    rule: Option<&RouteRule>,
) -> String {
    let via = via.map(|via| format!(" via {via}")).unwrap_or_default();
    let rule = rule.map(|rule| format!(", rule {}", rule_text(rule))).unwrap_or_default();
    format!("by {}{via} (route {}{rule})", link.name, text(route, namespace))
}

fn end(new: &NewDestination, to: IpAddr) -> String {
    match new {
        NewDestination::To(address, Some(port)) => {
            SocketAddr::new(address.unwrap_or(to), *port).to_string()
        }
        NewDestination::To(address, None) => address.unwrap_or(to).to_string(),
        NewDestination::Here(Some(port)) => format!("port {port} of its own"),
        NewDestination::Here(None) => "an address of its own".to_owned(),
        NewDestination::Unknown => "an address that is not known".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::samples::{base, dnat, nat, rule, table, tcp_port};
    use crate::model::filter::{Family as Kin, Step};
    use crate::model::{RuleAction, Scene};
    use crate::path::samples::{ip, node, with};
    use crate::question::Answers;
    use crate::routes::samples::{route, rule as rule_of};

    /// The way of c2 to a server, and what helps if the node is answered there.
    fn told(scene: &Scene, hops: Vec<Hop>) -> (String, String) {
        let answers = Answers::default();
        let look = Look { scene, answers: &answers, only: None, to: None };
        let to = SocketAddr::new(ip("198.51.100.1"), 80);
        let way = taken(look, &scene.containers[0], to, Transport::Tcp).unwrap();
        let answer = Answer::Silent { hops };
        let finding = way.tell(Finding::error("outside-silent", "c2", "silent"), &answer);
        let Help::Advice(advice) = way.help("c2", &answer) else { panic!("a command") };
        (finding.place.unwrap_or_default(), advice)
    }

    fn hop(link: &str) -> Hop {
        let link = Some(link.to_owned());
        Hop { container: None, link, dropped: None, rule: None, back: false }
    }

    #[test]
    fn only_what_was_seen_leaving_is_lost_beyond_this_node() {
        let (place, advice) = told(&node(), vec![hop("cni0"), hop("up0")]);
        assert_eq!(
            place,
            "in c2 by eth0 via 10.88.0.1 (route default via 10.88.0.1 dev eth0); on this node by up0 \
             via 192.0.2.1 (route default via 192.0.2.1 dev up0); its source is translated; it was \
             seen leaving there"
        );
        assert!(advice.starts_with("find what beyond this node"), "{advice}");
        for hops in [Vec::new(), vec![hop("cni0")]] {
            let (_, advice) = told(&node(), hops);
            assert!(advice.starts_with("follow what c2 sends"), "{advice}");
        }
        let dropped = Some(("nf_hook_slow".to_owned(), "NETFILTER_DROP".to_owned()));
        let (_, advice) = told(&node(), vec![Hop { dropped, ..hop("up0") }]);
        assert!(advice.starts_with("follow what c2 sends"), "{advice}");
    }

    #[test]
    fn a_rule_a_route_and_a_translation_are_named() {
        // A routing rule for containers leads to a tunnel.
        let mut scene = node();
        let mut tunnel = route("0.0.0.0/0", 9, None);
        tunnel.table = 77;
        scene.host.routes.push(tunnel);
        let mut first = rule_of(100, RuleAction::Table(77));
        first.from = Some("10.88.0.0/24".parse().unwrap());
        scene.host.rules = vec![first, rule_of(32766, RuleAction::Table(254))];
        let (place, advice) = told(&scene, Vec::new());
        assert!(place.contains("on this node by tun0 (route default dev tun0 table 77"), "{place}");
        assert!(place.contains("what this node itself sends there goes by up0"), "{place}");
        let words = "rule 100: from 10.88.0.0/24 lookup 77; then route default dev tun0 table 77";
        assert!(advice.ends_with(words), "{advice}");
        // The container's own rule.
        let mut scene = node();
        let redirect = rule(&[tcp_port(80), vec![Step::Redirect { port: None }]]);
        let own = table(Kin::Ip, "nat", vec![nat("out", Hook::Output, -100, vec![redirect])]);
        scene.containers[0].inside.as_mut().unwrap().filter.tables.push(own);
        let (place, _) = told(&scene, Vec::new());
        assert_eq!(place, "ip nat/out rule 1 of c2 sends it to an address of its own");
        // The node's.
        let led = rule(&[tcp_port(80), dnat("192.0.2.99", 81)]);
        let chain = nat("PREROUTING", Hook::Prerouting, -100, vec![led]);
        let scene = with(node(), table(Kin::Ip, "nat", vec![chain]));
        let (place, advice) = told(&scene, vec![hop("cni0"), hop("up0")]);
        assert!(place.contains("ip nat/PREROUTING rule 1 sends it to 192.0.2.99:81"), "{place}");
        assert!(!advice.contains("beyond"), "{advice}");
    }

    /// A VPN of the container's own.
    #[test]
    fn an_interface_that_no_attachment_made_is_named() {
        let mut scene = node();
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.links.push(crate::routes::samples::link(7, "tun0", &["10.9.0.2/24"]));
        inside.routes.push(route("128.0.0.0/1", 7, None));
        let (place, advice) = told(&scene, Vec::new());
        assert_eq!(place, "in c2 by tun0 (route 128.0.0.0/1 dev tun0)");
        let words = "look at what made tun0, such as a VPN of c2: no attachment did, and c2 sends it there \
                     (in c2: route 128.0.0.0/1 dev tun0)";
        assert_eq!(advice, words);
    }

    #[test]
    fn a_rule_that_exempts_from_translation_is_named() {
        let notrack = vec![Step::Effect { name: "notrack".to_owned() }];
        let raw = base("raw", Hook::Prerouting, -300, vec![rule(&[tcp_port(80), notrack])]);
        let scene = with(node(), table(Kin::Ip, "perf", vec![raw]));
        let (_, advice) = told(&scene, vec![hop("cni0"), hop("up0")]);
        let words = "let its source be translated, from which this keeps it: table ip perf, chain raw, rule 1: notrack";
        assert_eq!(advice, words);
    }

    #[test]
    fn what_is_not_translated_and_what_is_at_hand_is_told() {
        let mut scene = node();
        let chains = &mut scene.host.filter.tables[0].chains;
        chains.iter_mut().find(|chain| chain.name == "postrouting").unwrap().rules.clear();
        let (place, advice) = told(&scene, vec![hop("cni0"), hop("up0")]);
        assert!(place.contains("its source 10.88.0.2 stays"), "{place}");
        assert!(advice.contains("ipMasq"), "{advice}");
        // Somebody gave this node the address.
        let mut scene = node();
        scene.host.links[0].addresses.push(crate::model::Address {
            address: "198.51.100.1/32".parse().unwrap(),
            duplicate: false,
            tentative: false,
        });
        let (place, advice) = told(&scene, Vec::new());
        assert!(place.ends_with("this node has 198.51.100.1 itself, on lo"), "{place}");
        assert!(advice.ends_with("itself, on lo"), "{advice}");
    }
}
