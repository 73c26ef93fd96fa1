//! Decides whether a base chain surely drops what a container sends beyond the host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use diagnose::filter::{End, Layer, Packet, Payload, Port, State, walk};
use diagnose::model::Namespace;
use diagnose::model::filter::{Hook, LegacyTable};
use ipnet::IpNet;
use kernel::netlink::NetlinkError;
use kernel::nft::{ChainInfo, HookPoint, NftSocket, RuleInfo};
use kernel::route::{IpFamily, Link, RouteFilter, RouteKind, RouteSocket};
use state::Index;

use super::{ObservedTable, hooks, is_ours};
use crate::iptables::filter::is_of_attachment;
use crate::{reference, ruleset};

/// What is known of a container whose packets are judged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sender<'s> {
    /// The host's links that may be those by which its packets come in: its bridge, or its own.
    /// None: its link is not there yet, unless it is a bridge.
    pub links: Vec<&'s str>,
    /// Its addresses, or the ranges that they are from. None: it may have any.
    pub sources: Vec<IpNet>,
}

/// How many routes of a family are read, and by how many links packets may leave. Where there are
/// more, nothing is known of the link.
const ROUTES: usize = 2_000;
const WAYS: usize = 8;

/// Connection tracking sees packets at this priority (linux include/uapi/linux/netfilter_ipv4.h
/// `NF_IP_PRI_CONNTRACK`); what takes them from it comes before.
const CONNTRACK: i32 = -200;

/// A link at one end of the way through the host.
#[derive(Debug, Clone)]
enum LinkEnd {
    Is(String),
    /// It has none of these names.
    Not(Vec<String>),
}

/// A host, and a container there.
#[derive(Debug)]
pub(super) struct Judge {
    /// The host's links, without filters.
    host: Namespace,
    /// By which links packets come from the container.
    inner: Vec<LinkEnd>,
    /// By which links they leave, by family.
    outer: Vec<(IpFamily, Vec<LinkEnd>)>,
    /// The families that count, with the container's addresses.
    sources: Vec<(IpFamily, IpNet)>,
}

impl Judge {
    /// Reads the host's links and routes.
    pub(super) fn new(sender: &Sender<'_>) -> Result<Self, NetlinkError> {
        let mut socket = RouteSocket::open()?;
        let links = socket.links()?;
        let mut outer = Vec::new();
        for family in IpFamily::ALL {
            outer.push((family, outer_of(family, &links)?));
        }
        let sources = match sender.sources.as_slice() {
            [] => any_of(&outer),
            known => known.iter().map(|net| (IpFamily::of(net.addr()), *net)).collect(),
        };
        for (_, ways) in &mut outer {
            if ways.is_empty() {
                ways.push(LinkEnd::Not(vec!["lo".to_owned()]));
            }
        }
        let host =
            Namespace { links: links.iter().map(to_scene).collect(), ..Namespace::default() };
        Ok(Judge { host, inner: inner_of(sender, &links), outer, sources })
    }

    /// Says whether a base chain surely drops the packets. A rule set that changes meanwhile is
    /// read again, and not judged if it changes once more.
    pub(super) fn chain(
        &self,
        socket: &mut NftSocket,
        index: &Index,
        info: &ChainInfo,
        rules: Vec<RuleInfo>,
        families: &[IpFamily],
    ) -> Result<bool, NetlinkError> {
        let mut rules = Some(rules);
        for _ in 0..2 {
            let before = socket.generation()?;
            let own = match rules.take() {
                Some(rules) => rules,
                None => socket.rules(&info.table, &info.name)?,
            };
            let table = ruleset::of_base_chain(socket, info, own, reference::is_attachments)?;
            if socket.generation()? == before {
                let mut host = self.host.clone();
                host.filter.tables.push(table);
                return self.is_stopped(socket, index, &host, families);
            }
        }
        Ok(false)
    }

    /// Says the same of the chain FORWARD of legacy iptables.
    pub(super) fn legacy(
        &self,
        socket: &mut NftSocket,
        index: &Index,
        family: IpFamily,
        observed: &ObservedTable,
    ) -> Result<bool, NetlinkError> {
        let mut host = self.host.clone();
        host.filter.legacy.push(table_of(family, observed));
        self.is_stopped(socket, index, &host, &[family])
    }

    fn is_stopped(
        &self,
        socket: &mut NftSocket,
        index: &Index,
        host: &Namespace,
        families: &[IpFamily],
    ) -> Result<bool, NetlinkError> {
        let counted = self.sources.iter().filter(|(family, _)| families.contains(family));
        for (family, source) in counted {
            if self.is_stopped_from(host, *family, *source, State::New)
                && (self.is_stopped_from(host, *family, *source, State::Untracked)
                    || !may_be_untracked(socket, index)?)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Says whether no connection of TCP or UDP from there comes to be, whichever links it takes.
    fn is_stopped_from(
        &self,
        host: &Namespace,
        family: IpFamily,
        source: IpNet,
        state: State,
    ) -> bool {
        let ways = self.outer.iter().filter(|(of, _)| *of == family);
        let outer: Vec<&LinkEnd> = ways.flat_map(|(_, ways)| ways).collect();
        let (from, to) = (Port::High, Port::Any);
        let carried = [
            Payload::Tcp { source: from, destination: to },
            Payload::Udp { source: from, destination: to },
        ];
        carried.iter().all(|carries| {
            self.inner.iter().all(|inner| {
                outer.iter().all(|outer| {
                    let first = Packet { state, ..first(source, *carries) };
                    is_cut(host, &first, inner, outer)
                })
            })
        })
    }
}

/// Says whether the first packet is surely dropped, or its answer, or what follows.
fn is_cut(host: &Namespace, first: &Packet, inner: &LinkEnd, outer: &LinkEnd) -> bool {
    let out = between(first, inner, outer);
    let answer = between(&first.answer(), outer, inner);
    let is_dropped = |packet: &Packet| {
        matches!(walk(host, Layer::Ip, Hook::Forward, packet).end, End::Stopped(..))
    };
    [&out, &answer, &out.further()].into_iter().any(is_dropped)
}

/// The first packet of a connection to anywhere. Other hooks may mark it or translate its source.
fn first(source: IpNet, carries: Payload) -> Packet {
    let anywhere: IpAddr = match source.addr() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    Packet {
        known_bits: [Some(source.prefix_len()), Some(0)],
        mark: None,
        source_translated: None,
        ..Packet::first(source.addr(), anywhere, carries)
    }
}

fn between(packet: &Packet, iif: &LinkEnd, oif: &LinkEnd) -> Packet {
    let (mut packet, ends) = (packet.between(None, None), [iif, oif]);
    packet.mark = None;
    packet.other_than = ends.map(|end| match end {
        LinkEnd::Is(_) => None,
        LinkEnd::Not(others) => Some(others.clone()),
    });
    let [iif, oif] = ends.map(|end| match end {
        LinkEnd::Is(name) => Some(name.clone()),
        LinkEnd::Not(_) => None,
    });
    Packet { iif, oif, ..packet }
}

/// Returns the families that surely count for a container of which no address is known, with all
/// addresses: that by which the host reaches others, and IPv4 where it has both or none. A host
/// that drops what it forwards of IPv6 alone serves containers of IPv4.
fn any_of(outer: &[(IpFamily, Vec<LinkEnd>)]) -> Vec<(IpFamily, IpNet)> {
    let leads = |family| outer.iter().any(|(of, ways)| *of == family && !ways.is_empty());
    if !leads(IpFamily::V4) && leads(IpFamily::V6) {
        return vec![(IpFamily::V6, IpNet::V6(ipnet::Ipv6Net::default()))];
    }
    vec![(IpFamily::V4, IpNet::V4(ipnet::Ipv4Net::default()))]
}

/// Returns the links by which the host's routes lead to others; none if there are none.
fn outer_of(family: IpFamily, links: &[Link]) -> Result<Vec<LinkEnd>, NetlinkError> {
    let filter = match family {
        IpFamily::V4 => RouteFilter::main(IpFamily::V4),
        IpFamily::V6 => RouteFilter::main(IpFamily::V6),
    };
    let unknown = || vec![LinkEnd::Not(vec!["lo".to_owned()])];
    let Some(routes) = RouteSocket::open()?.routes_if_few(filter, ROUTES)? else {
        return Ok(unknown());
    };
    let mut names: Vec<&str> = Vec::new();
    for route in routes.iter().filter(|route| route.kind == RouteKind::Unicast) {
        let to = route.destination;
        let is_hosts = to.prefix_len() == to.max_prefix_len() && route.gateway.is_none();
        let is_near = matches!(to.addr(), IpAddr::V6(address) if address.is_unicast_link_local());
        if is_hosts || is_near {
            continue;
        }
        let hops = route.next_hops.iter().filter_map(|hop| hop.oif);
        for oif in route.oif.into_iter().chain(hops) {
            let Some(link) = links.iter().find(|link| link.index == oif) else { continue };
            // Behind a bridge without a router are containers, not others.
            if link.loopback() || (link.bridge.is_some() && !leaves(&routes, oif)) {
                continue;
            }
            if link.master.is_some() {
                return Ok(unknown());
            }
            if !names.contains(&link.name.as_str()) {
                names.push(&link.name);
            }
        }
    }
    if WAYS < names.len() {
        return Ok(unknown());
    }
    Ok(names.into_iter().map(|name| LinkEnd::Is(name.to_owned())).collect())
}

/// Says whether a route to a gateway leads out by a link.
fn leaves(routes: &[kernel::route::Route], oif: u32) -> bool {
    routes.iter().any(|route| {
        (route.oif == Some(oif) && route.gateway.is_some())
            || route.next_hops.iter().any(|hop| hop.oif == Some(oif))
    })
}

/// Returns the links by which the container's packets come in. A port of a bridge is not seen at
/// this hook, and in place of what is in a VRF the VRF is.
fn inner_of(sender: &Sender<'_>, links: &[Link]) -> Vec<LinkEnd> {
    let mut inner = Vec::new();
    for name in &sender.links {
        let link = links.iter().find(|link| link.name == *name);
        let master = link
            .and_then(|link| link.master)
            .and_then(|master| links.iter().find(|link| link.index == master));
        match master {
            None => inner.push(LinkEnd::Is((*name).to_owned())),
            Some(vrf) if vrf.vrf_table.is_some() => inner.push(LinkEnd::Is(vrf.name.clone())),
            Some(_) => {}
        }
    }
    if inner.is_empty() {
        let others = links.iter().filter(|link| !may_be_containers(link, links));
        inner.push(LinkEnd::Not(others.map(|link| link.name.clone()).collect()));
    }
    inner
}

/// Says whether packets of a container to come may come in by a link that is there.
fn may_be_containers(link: &Link, links: &[Link]) -> bool {
    match link.kind.as_deref() {
        Some("bridge" | "vrf" | "openvswitch") => true,
        // A VLAN of a bridge.
        Some("vlan") => {
            let below = link.peer_index;
            below.is_none_or(|below| {
                links.iter().any(|other| other.index == below && other.bridge.is_some())
            })
        }
        _ => false,
    }
}

fn to_scene(link: &Link) -> diagnose::model::Link {
    diagnose::model::Link {
        index: link.index,
        name: link.name.clone(),
        kind: link.kind.clone(),
        master: link.master,
        ..diagnose::model::Link::default()
    }
}

/// Says whether something of others may take packets from connection tracking.
fn may_be_untracked(socket: &mut NftSocket, index: &Index) -> Result<bool, NetlinkError> {
    let early = hooks(socket, index, HookPoint::Prerouting)?.into_iter().any(|hook| {
        hook.priority < CONNTRACK && hook.chain.is_some_and(|(table, _)| !is_ours(&table))
    });
    Ok(early || reference::legacy_uses("raw"))
}

/// Returns a table of legacy iptables as data, without the accepts of attachments that are there.
fn table_of(family: IpFamily, observed: &ObservedTable) -> LegacyTable {
    let policy = observed.policy("FORWARD").unwrap_or("ACCEPT").to_owned();
    let rules = observed.chains().flat_map(|(chain, rules)| {
        let foreign = rules.iter().filter(|rule| !is_of_attachment(rule));
        foreign.map(move |rule| format!("-A {chain} {rule}"))
    });
    LegacyTable {
        ipv4: family == IpFamily::V4,
        name: "filter".to_owned(),
        policies: vec![("FORWARD".to_owned(), policy)],
        chains: observed.chains().map(|(chain, _)| chain.to_owned()).collect(),
        rules: rules.collect(),
    }
}
