//! Packet filters that stop a container's packets, whichever program made them.

#[cfg(test)]
mod answers;
mod besides;
mod between;
pub(super) mod denied;
mod fix;
mod forwarded;
#[cfg(test)]
mod healed;
pub(super) mod large;
mod matches;
mod others;
mod ports;
mod position;
mod proved;
mod proxies;
mod say;
pub(super) mod sender;
#[cfg(test)]
mod sound;
mod source;
mod stateless;
#[cfg(test)]
mod tests;
mod tried;

use std::net::IpAddr;

use net::IpFamily;

pub(super) use self::fix::opened;
pub(super) use self::position::Ending;
use self::say::Sort;
use super::{Rule, containers, is_outbound};
use crate::Look;
use crate::filter::{Change, Layer, Payload, Place, Port, Truth};
use crate::finding::{Finding, Way};
use crate::model::filter::Hook;
use crate::model::{Part, Port as PublishedPort, Scene, Transport};
use crate::path::{
    self, Joint, Outcome, Site, Stop, StopCause, Trip, follow_changed, follow_filters,
};
use crate::whose;

pub(super) const RULE: Rule = Rule {
    judges: "packet filters",
    ids: &[
        "forward-dropped",
        "input-dropped",
        "output-dropped",
        "bridge-dropped",
        "inside-dropped",
        super::BY_ITSELF,
        "port-redirected",
        "not-translated",
        "source-wrong",
        "proxy-missing",
    ],
    needs: &[Part::Links, Part::Routes, Part::Nftables],
    asks: tried::asks,
    judge,
    ..Rule::NONE
};

/// How many filters on one way are named: each is looked for as if those before it were gone.
const FILTERS: usize = 4;

/// How many containers of a network are followed to all others of it. Of larger networks each is
/// followed to the next one.
const ALL_PAIRS: usize = 6;

/// How many containers are followed at most: what stops more of them stops these too, or is rare.
const CONTAINERS: usize = 1_000;

/// How many rules and elements a node may have until fewer containers are followed, and how many
/// those are.
const MANY: usize = 20_000;
const SOME: usize = 16;

fn judge(look: Look<'_>) -> Vec<Finding> {
    let scene = look.scene;
    let limit = limit(scene);
    let mut found: Vec<Finding> = say::dormant(look).into_iter().collect();
    for family in IpFamily::ALL {
        let sites = sites(look, family, limit);
        let beyond = others::samples(scene, family);
        // What leads all elsewhere leads published ports elsewhere, too.
        let leading = sites.iter().filter(|site| leads_out(scene, site));
        found.extend(leading.filter_map(|site| proxies::diverted(look, site, &beyond)));
        for container in containers(look).take(limit) {
            found.extend(ports::redirected(look, container, family, &beyond));
        }
        for site in &sites {
            one(look, site, &beyond, &mut found);
            for finding in ports::untracked(look, site, &beyond) {
                add(&mut found, finding);
            }
        }
        let others = self::sites(Look { only: None, ..look }, family, CONTAINERS);
        for (from, to) in pairs(&sites, &others) {
            found.extend(between::judge(look, from, to));
        }
    }
    proved::add(look, &mut found);
    besides::lead(&mut found);
    found.extend(source::judge(look));
    found.extend(large::judge(look));
    found.extend(forwarded::judge(look));
    found
}

/// How many containers are followed.
fn limit(scene: &Scene) -> usize {
    if MANY < size(scene) { SOME } else { CONTAINERS }
}

/// The sites of the containers that are looked at, up to a limit.
fn sites<'l>(look: Look<'l>, family: IpFamily, limit: usize) -> Vec<Site<'l>> {
    containers(look)
        .flat_map(|container| Site::every(look.scene, container, family))
        .take(limit)
        .collect()
}

/// How many rules and elements the node's filters have.
fn size(scene: &Scene) -> usize {
    let tables = &scene.host.filter.tables;
    let rules: usize =
        tables.iter().flat_map(|table| &table.chains).map(|chain| chain.rules.len()).sum();
    let elements: usize =
        tables.iter().flat_map(|table| &table.sets).map(|set| set.elements.len()).sum();
    let legacy: usize = scene.host.filter.legacy.iter().map(|table| table.rules.len()).sum();
    rules.saturating_add(legacy).saturating_add(elements / 8)
}

/// Follows the ways of one container. `beyond` are addresses beyond the node.
fn one(look: Look<'_>, site: &Site<'_>, beyond: &[IpAddr], found: &mut Vec<Finding>) {
    let scene = look.scene;
    let family = site.family();
    let tried = |sort: &Sort<'_>, trips: &[Trip<'_>]| {
        say::all(look, site, sort, trips, &agreed(scene, trips))
    };
    found.extend(tried(&Sort::Inside, &[Trip::Inside { of: site }]));
    if site.gateway.is_some() {
        found.extend(tried(&Sort::Resolve, &[Trip::Resolve { from: site }]));
    }
    found.extend(tried(&Sort::FromNode, &[Trip::FromNode { to: site }]));
    if leads_out(scene, site) {
        let with = path::carries(Transport::Tcp, Port::Any);
        let trips: Vec<Trip<'_>> =
            beyond.iter().map(|to| Trip::Outside { from: site, to: *to, with }).collect();
        found.extend(tried(&Sort::Outside, &trips));
        let usual = beyond.first().into_iter().flat_map(|to| WEB.map(|port| (*to, tcp(port))));
        for (to, with) in usual.chain(named(look, site)) {
            if let Some(finding) = not_translated(look, site, to, with) {
                add(found, finding);
            }
        }
        found.extend(proxies::judge(look, site, beyond));
        for (to, with) in named(look, site) {
            found.extend(tried(&Sort::To(to, with), &[Trip::Outside { from: site, to, with }]));
        }
    }
    for port in &site.attachment.ports {
        found.extend(tried(&Sort::Published(port), &published(scene, site, port, beyond)));
        if ports::is_here(port, family) {
            let here = [Trip::PublishedHere { to: site, port }];
            found.extend(tried(&Sort::PublishedHere(port), &here));
        }
    }
}

/// Says whether a container is to reach machines beyond the node by a site.
fn leads_out(scene: &Scene, site: &Site<'_>) -> bool {
    is_outbound(scene, site.container, site.family())
        || site.joint != Joint::Pair
        || site.router(scene).is_some()
}

/// Adds a finding, or what it breaks to one of the same container that the same commands mend.
fn add(found: &mut Vec<Finding>, finding: Finding) {
    let is_same = |known: &&mut Finding| {
        known.id == finding.id
            && known.hits == finding.hits
            && finding.fix.iter().all(|command| known.fix.contains(command))
    };
    match found.iter_mut().find(is_same) {
        Some(known) => {
            let seen = finding.seen.into_iter().filter(|seen| !known.seen.contains(seen));
            let seen: Vec<String> = seen.collect();
            known.seen.extend(seen);
            let new = finding.breaks.into_iter().filter(|way| !known.breaks.contains(way));
            let new: Vec<Way> = new.collect();
            known.breaks.extend(new);
        }
        None => found.push(finding),
    }
}

/// Ports that most containers connect to (IANA: `https`, `http`).
const WEB: [u16; 2] = [443, 80];

fn tcp(port: u16) -> Payload {
    path::carries(Transport::Tcp, Port::Is(port))
}

/// The addresses beyond the node that are tried by name: the one that the caller names, and the
/// container's servers of names.
fn named(look: Look<'_>, site: &Site<'_>) -> Vec<(IpAddr, Payload)> {
    let is_of =
        |address: &IpAddr| IpFamily::of(*address) == site.family() && !address.is_loopback();
    let to = look.to.filter(|to| is_of(&to.ip())).map(|to| (to.ip(), tcp(to.port())));
    let servers = site.container.nameservers.iter().flatten().copied().filter(is_of);
    let dns = path::carries(Transport::Udp, Port::Is(53));
    to.into_iter().chain(servers.take(3).map(|server| (server, dns))).collect()
}

/// Returns the trips of hosts beyond the node to a published port.
fn published<'s>(
    scene: &'s Scene,
    site: &'s Site<'s>,
    port: &'s PublishedPort,
    beyond: &[IpAddr],
) -> Vec<Trip<'s>> {
    let Some((at, by)) = ports::entrance(scene, site.family(), port) else { return Vec::new() };
    let clients = ports::clients(by, site.family(), beyond);
    clients.map(|from| Trip::Published { to: site, port, at, by, from }).collect()
}

/// Returns pairs of containers of one network.
fn pairs<'v, 's>(
    sites: &'v [Site<'s>],
    others: &'v [Site<'s>],
) -> Vec<(&'v Site<'s>, &'v Site<'s>)> {
    let mut pairs = Vec::new();
    for from in sites {
        let is_near = |to: &&Site<'_>| {
            to.container.id != from.container.id && to.attachment.network == from.attachment.network
        };
        let all: Vec<&Site<'_>> = others.iter().filter(is_near).collect();
        if all.len() <= ALL_PAIRS {
            pairs.extend(all.into_iter().map(|to| (from, to)));
        } else {
            // Containers are sorted by their IDs.
            let next = all.iter().find(|to| from.container.id < to.container.id);
            pairs.extend(next.or(all.first()).map(|to| (from, *to)));
        }
    }
    pairs
}

/// A filter that stops a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FilterStop {
    layer: Layer,
    hook: Hook,
    place: Place,
    reject: Option<String>,
    /// It lets the packet take so few hops that a router drops it, the node mostly. On a sound node a
    /// rule gives so few to multicasts at most, which no container sends to others.
    expires: bool,
    back: bool,
    /// It stops what follows the first packet and its answer.
    further: bool,
    /// The container in whose namespace it is.
    inside: Option<String>,
}

impl FilterStop {
    /// Says whether it is a fault: what a program drops because people decided who may talk to whom
    /// is none.
    fn is_fault(&self, scene: &Scene) -> bool {
        !whose::is_policy(&self.place, self.back, scene)
    }

    /// Says whether it is the same filter. It may stop one packet on its way, and the answer to
    /// another one.
    fn is_at(&self, other: &FilterStop) -> bool {
        self.place == other.place && self.inside == other.inside
    }

    /// Says whether both are in what one base chain asks: the first of them hides the other one.
    fn may_hide(&self, other: &FilterStop) -> bool {
        self.place.is_of_same_base(&other.place) && self.inside == other.inside
    }
}

/// Returns the filters that stop each of some trips. In one base chain several rules may, each some
/// trips: the last one counts, since those before it are for the addresses of their trips alone. The
/// first trip that passes ends it.
fn agreed(scene: &Scene, trips: &[Trip<'_>]) -> Vec<FilterStop> {
    let mut all: Vec<Vec<FilterStop>> = Vec::new();
    for trip in trips {
        let stops = caught(scene, trip);
        if stops.is_empty() {
            return Vec::new();
        }
        all.push(stops);
    }
    let Some((first, others)) = all.split_first() else { return Vec::new() };
    let is_in = |stops: &Vec<FilterStop>, one: &FilterStop| {
        stops.iter().any(|other| other.is_at(one) || other.may_hide(one))
    };
    let of_all = first.iter().filter(|one| others.iter().all(|stops| is_in(stops, one)));
    let last = |one: &FilterStop| {
        let same = all.iter().flatten().filter(|other| other.may_hide(one));
        let later = same.filter(|other| one.place.depth() < other.place.depth());
        later.max_by_key(|other| other.place.depth()).unwrap_or(one).clone()
    };
    of_all.map(last).collect()
}

/// Returns the filters that stop a packet: the first one, then the first one without that, and so
/// on.
fn caught(scene: &Scene, trip: &Trip<'_>) -> Vec<FilterStop> {
    let mut all: Vec<FilterStop> = Vec::new();
    for _ in 0..FILTERS {
        let without: Vec<Place> = all.iter().map(|one| one.place.clone()).collect();
        let Outcome::Stopped(stop) = follow_filters(scene, trip, &without) else { break };
        let Stop { why, back, further, inside } = *stop;
        let (layer, hook, place, reject, expires) = match why {
            StopCause::Filter { layer, hook, place, reject } => (layer, hook, place, reject, false),
            StopCause::Expires { layer, hook, place } => (layer, hook, place, None, true),
            _ => break,
        };
        if without.contains(&place) {
            break;
        }
        let inside = inside.map(str::to_owned);
        all.push(FilterStop { layer, hook, place, reject, expires, back, further, inside });
    }
    all
}

/// Rules take packets from connection tracking, so that their source is not translated, which it is
/// otherwise; or their answers, which are not translated back then. If there are several such rules,
/// all of them must go.
fn not_translated(look: Look<'_>, site: &Site<'_>, to: IpAddr, with: Payload) -> Option<Finding> {
    let trip = &Trip::Outside { from: site, to, with };
    let mut all: Vec<(Place, bool)> = Vec::new();
    let is_translated = loop {
        let ignored: Vec<Place> = all.iter().map(|(place, _)| place.clone()).collect();
        let change = Change { ignored: &ignored, ..Change::default() };
        let Outcome::Passes(passed) = follow_changed(look.scene, trip, change) else {
            break false;
        };
        let is_of_answer = passed.source == Truth::Yes;
        match passed.untracked {
            Some(place) if all.len() < FILTERS && !ignored.contains(&place) => {
                all.push((place, is_of_answer));
            }
            untracked => break is_of_answer && untracked.is_none(),
        }
    };
    let findings = all.into_iter().filter(|_| is_translated).map(|(place, is_of_answer)| {
        let finding = say::not_translated(look, site, &place, with);
        match is_of_answer {
            false => finding,
            true => Finding {
                says: format!(
                    "answers to containers of {} are not translated back to their addresses: {} exempts them from connection tracking",
                    site.attachment.network,
                    place.name()
                ),
                seen: vec!["by the rules as they are, an answer stays with this node".to_owned()],
                ..finding
            },
        }
    });
    // A rule may be named by its number, so the last one goes first.
    findings.reduce(|first, further| Finding {
        fix: [further.fix, first.fix].concat(),
        seen: [first.seen, vec![further.says]].concat(),
        ..first
    })
}
