//! What is said of a filter that stops packets.

use std::net::{IpAddr, SocketAddr};

use net::IpFamily;

use super::super::{BY_ITSELF, containers, unanswered};
use super::{FilterStop, besides, between, fix, tried};
use crate::Look;
use crate::filter::{Layer, Payload, Place, Port};
use crate::finding::{Finding, Severity, WayKind};
use crate::model::filter::{Hook, Step, Table};
use crate::model::{Container, Port as PublishedPort, Transport};
use crate::path::{Site, Trip};
use crate::trial::Trial;
use crate::whose;

/// What a packet was to do.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sort<'p> {
    Inside,
    Resolve,
    Outside,
    To(IpAddr, Payload),
    /// By these protocols, with the address of the other container.
    Between(&'p [&'static str], IpAddr),
    FromNode,
    Published(&'p PublishedPort),
    PublishedHere(&'p PublishedPort),
}

impl Sort<'_> {
    /// What does not work, for the containers of a network.
    fn fails(&self, site: &Site<'_>) -> String {
        let network = &site.attachment.network;
        let called = site.container.called();
        match self {
            Sort::Inside => format!("programs of {called} do not reach each other"),
            Sort::Resolve => format!("containers of {network} do not find their gateway"),
            Sort::Outside => format!("containers of {network} do not reach beyond this node"),
            Sort::To(to, Payload::Udp { .. }) => {
                format!("containers of {network} do not reach their server of names {to}")
            }
            Sort::To(to, _) => format!("containers of {network} do not reach {to}"),
            Sort::Between(names, _) => {
                format!("containers of {network} do not reach each other{}", between::by(names))
            }
            Sort::FromNode => format!("this node does not reach containers of {network}"),
            Sort::Published(port) => format!(
                "no host beyond this node reaches {called} by its published port {}/{}",
                port.host,
                port.transport.as_str()
            ),
            Sort::PublishedHere(port) => format!(
                "programs of this node do not reach {called} by its published port {}/{}",
                port.host,
                port.transport.as_str()
            ),
        }
    }

    /// The same, for one container.
    fn fails_alone(&self, site: &Site<'_>) -> String {
        let called = site.container.called();
        match self {
            Sort::Inside => self.fails(site),
            Sort::Resolve => format!("{called} does not find its gateway"),
            Sort::Outside => format!("{called} does not reach beyond this node"),
            Sort::To(to, Payload::Udp { .. }) => {
                format!("{called} does not reach its server of names {to}")
            }
            Sort::To(to, _) => format!("{called} does not reach {to}"),
            Sort::Between(names, _) => format!(
                "{called} and other containers of {} do not reach each other{}",
                site.attachment.network,
                between::by(names)
            ),
            Sort::FromNode => format!("this node does not reach {called}"),
            Sort::Published(_) | Sort::PublishedHere(_) => self.fails(site),
        }
    }

    /// The protocol and port that it leads to, if it is one.
    pub(super) fn port(&self) -> Option<(&'static str, u16)> {
        match self {
            Sort::To(_, Payload::Tcp { destination: Port::Is(port), .. }) => Some(("tcp", *port)),
            Sort::To(_, Payload::Udp { destination: Port::Is(port), .. }) => Some(("udp", *port)),
            Sort::Published(port) | Sort::PublishedHere(port) => {
                Some((port.transport.as_str(), port.container))
            }
            _ => None,
        }
    }

    /// Says whether a probe tries all that the rules are asked for.
    fn is_tried_alone(&self) -> bool {
        matches!(self, Sort::Inside | Sort::FromNode | Sort::Between(..))
    }

    /// Says whether it is by a protocol.
    pub(super) fn is_by(&self, transport: Transport) -> bool {
        self.port().is_some_and(|(protocol, _)| protocol == transport.as_str())
    }

    /// Names whom a packet was for.
    pub(super) fn whom(&self) -> String {
        match (self, self.port()) {
            (Sort::To(to, _), Some((protocol, port))) => {
                format!("{} by {}", SocketAddr::new(*to, port), protocol.to_uppercase())
            }
            (Sort::To(to, _), None) => to.to_string(),
            _ => "others".to_owned(),
        }
    }

    /// Says whether a program surely suffers if a filter of the container itself stops this: who
    /// may ask a container what, its owner decides.
    fn is_hurt(&self, look: Look<'_>, site: &Site<'_>) -> bool {
        match self {
            Sort::Inside | Sort::Resolve | Sort::To(..) => true,
            Sort::Published(_) | Sort::PublishedHere(_) => true,
            Sort::Outside => unanswered(look, site.container, site.family()).is_some(),
            Sort::Between(..) | Sort::FromNode => false,
        }
    }

    fn ways(&self) -> &'static [WayKind] {
        match self {
            Sort::Inside => &[WayKind::Inside],
            Sort::Resolve => &[
                WayKind::Gateway,
                WayKind::Outside,
                WayKind::Names,
                WayKind::FromNode,
                WayKind::Published,
                WayKind::PublishedHere,
            ],
            Sort::Outside => &[WayKind::Outside, WayKind::Names],
            Sort::To(_, Payload::Udp { .. }) => &[WayKind::Names],
            Sort::To(..) => &[WayKind::Outside],
            Sort::Between(..) => &[WayKind::Between],
            Sort::FromNode => &[WayKind::FromNode, WayKind::PublishedHere],
            Sort::Published(_) => &[WayKind::Published],
            Sort::PublishedHere(_) => &[WayKind::PublishedHere],
        }
    }
}

/// Returns the findings of the filters that stop a way of a container, and so some of the trips that
/// were followed.
pub(super) fn all(
    look: Look<'_>,
    site: &Site<'_>,
    sort: &Sort<'_>,
    trips: &[Trip<'_>],
    caught: &[FilterStop],
) -> Vec<Finding> {
    let faults = caught.iter().filter(|one| one.is_fault(look.scene));
    faults.map(|one| stopped(look, site, sort, trips, one)).collect()
}

/// Returns the finding's ID for a filter of the node.
pub(super) fn id(layer: Layer, hook: Hook) -> &'static str {
    match (layer, hook) {
        (Layer::Bridge | Layer::Device, _) => "bridge-dropped",
        (_, Hook::Input) => "input-dropped",
        (_, Hook::Output) => "output-dropped",
        _ => "forward-dropped",
    }
}

fn stopped(
    look: Look<'_>,
    site: &Site<'_>,
    sort: &Sort<'_>,
    trips: &[Trip<'_>],
    caught: &FilterStop,
) -> Finding {
    let FilterStop { place, back, inside, .. } = caught;
    let does = match caught.reject {
        Some(_) => "refuses",
        None if caught.expires => "leaves too few hops to",
        None => "drops",
    };
    let what = match (*back, caught.further) {
        (true, _) => "the answers",
        (false, true) => "the packets that follow the first of a connection",
        (false, false) => "the packets",
    };
    let name = place.name();
    let finding = match inside {
        Some(container) => {
            let called =
                look.scene.container(container).map_or(container.as_str(), Container::called);
            let fails = sort.fails_alone(site);
            let says = format!("{fails}: the packet filter in {called}, {name}, {does} {what}");
            let object = format!("{container}: {name}");
            let finding = match sort.is_hurt(look, site) {
                true => Finding::error("inside-dropped", object, says),
                false => Finding::warning(BY_ITSELF, object, says),
            };
            finding.at(format!("in {called}: {place}"))
        }
        None => {
            let says = format!("{}: {name} {does} {what}", sort.fails(site));
            Finding::error(id(caught.layer, caught.hook), name, says).at(place.to_string())
        }
    };
    let trial = tried::tried(look, site, sort, caught.reject.is_some());
    let finding = finding.seen(shown(look, site, sort, caught) + tells(trial, sort));
    let severity = if is_doubtful(trial, sort) { Severity::Warning } else { finding.severity };
    let finding = Finding { severity, ..finding }.hits(site.container.id.clone());
    let kinds = sort.ways();
    let finding =
        kinds.iter().fold(finding, |finding, kind| finding.breaks(*kind, Some(site.family())));
    let besides = besides::closed(look, site, caught, kinds);
    let finding = match besides.is_empty() {
        true => finding,
        false => finding.seen(besides::says(&besides)),
    };
    let finding = (besides.iter())
        .fold(finding, |finding, one| finding.breaks(one.kind, Some(site.family())));
    let whose = match inside {
        Some(_) => Some(format!("{}, or who set it up", site.container.called())),
        None => whose::of_place(place, look.scene),
    };
    let finding = Finding { whose, ..finding };
    let finding = match fix::lets_others(look, site, sort) {
        true => allowed(finding, site.container.called(), &sort.whom()),
        false => finding,
    };
    if finding.id == BY_ITSELF {
        return finding.advise("if that is not meant, change the filter in the container");
    }
    fix::help(look, site, sort, trips, caught).into_iter().fold(finding, Finding::help)
}

/// Says what a probe shows of what the rules say.
fn tells(trial: Trial, sort: &Sort<'_>) -> &'static str {
    match (trial, sort.is_tried_alone()) {
        (Trial::Never, _) => "; no probe has tried it",
        (Trial::Works, true) => "; a probe that should end there was answered",
        _ => "",
    }
}

/// Says whether it is not certain that a flow suffers that somebody needs: a probe was answered, or no
/// probe was sent and the node alone would send.
fn is_doubtful(trial: Trial, sort: &Sort<'_>) -> bool {
    match trial {
        Trial::Works => sort.is_tried_alone(),
        Trial::Never => matches!(sort, Sort::FromNode),
        Trial::Fails => false,
    }
}

/// Adds to the finding of a filter that lets containers ask some machines and not others that this
/// may be meant.
pub(super) fn allowed(finding: Finding, called: &str, to: &str) -> Finding {
    finding
        .seen(format!(
            "it lets what {called} sends to others pass: somebody listed what may be asked"
        ))
        .advise(format!(
            "if {called} is not to ask {to}, nothing is wrong: try a machine that it is to reach, \
             with --to ADDRESS:PORT"
        ))
}

/// Says what was computed, and what the rule has counted.
fn shown(look: Look<'_>, site: &Site<'_>, sort: &Sort<'_>, caught: &FilterStop) -> String {
    let address = site.address;
    let packet = match sort {
        Sort::Inside => "a packet over loopback".to_owned(),
        Sort::Resolve if address.is_ipv4() => format!("an ARP request of {address}"),
        Sort::Resolve => format!("a neighbour solicitation of {address}"),
        Sort::Outside => format!("a packet from {address} to any address beyond this node"),
        Sort::To(to, _) => format!("a packet from {address} to {to}"),
        Sort::Between(names, _) => {
            format!("a packet of {} from {address} to another container", names.join(" or "))
        }
        Sort::FromNode => format!("a packet from this node to {address}"),
        Sort::Published(port) | Sort::PublishedHere(port) => {
            format!("a packet to port {}/{}", port.host, port.transport.as_str())
        }
    };
    let answer = match (caught.back, caught.further) {
        (true, _) => "the answer to ",
        (false, true) => "what follows the answer to ",
        (false, false) => "",
    };
    let counted = match counted(look, caught) {
        Some(packets) => format!("; the rule has counted {packets} packets"),
        None => String::new(),
    };
    let because = because(look, caught);
    format!("by the rules as they are, {answer}{packet} ends there{because}{counted}")
}

/// What the rule itself does not say.
fn because(look: Look<'_>, caught: &FilterStop) -> &'static str {
    let is_queue = fix::is_queue(&caught.place);
    let inside = match &caught.inside {
        Some(id) => look.scene.container(id).and_then(|container| container.inside.as_ref()),
        None => Some(&look.scene.host),
    };
    let is_stuck = inside.is_some_and(|inside| !inside.stuck_queues.is_empty());
    match (is_queue, caught.expires) {
        (true, _) if is_stuck => {
            ": no program reads the queue, or the one that does lets packets wait and judges none"
        }
        (true, _) => ": no program reads the queue",
        (_, true) => " or at the next router: it may take no more hops",
        _ => "",
    }
}

fn counted(look: Look<'_>, caught: &FilterStop) -> Option<u64> {
    let Place { family, table, chain, rule, .. } = &caught.place;
    let (_, handle) = (*rule)?;
    let namespace = match &caught.inside {
        Some(id) => look.scene.container(id)?.inside.as_ref()?,
        None => &look.scene.host,
    };
    let mut tables = namespace.filter.tables.iter();
    let table = tables.find(|one| one.name == *table && one.family.as_str() == *family)?;
    let chain = table.chains.iter().find(|one| one.name == *chain)?;
    let rule = chain.rules.iter().find(|one| one.handle == handle)?;
    rule.steps.iter().find_map(|step| match step {
        Step::Counter { packets, .. } => Some(*packets),
        _ => None,
    })
}

/// A foreign rule takes a published port first.
pub(super) fn redirected(
    look: Look<'_>,
    container: &Container,
    family: IpFamily,
    port: &PublishedPort,
    place: &Place,
) -> Finding {
    let what = format!("{}/{}", port.host, port.transport.as_str());
    let says = format!(
        "published port {what} of {} leads elsewhere: {} takes it first",
        container.called(),
        place.name()
    );
    let kind = match place.hook {
        Hook::Output => WayKind::PublishedHere,
        _ => WayKind::Published,
    };
    let finding = Finding::error("port-redirected", place.name(), says)
        .at(place.to_string())
        .seen(format!("by the rules as they are, a packet to port {what} is sent elsewhere there"))
        .hits(container.id.clone())
        .breaks(kind, Some(family));
    let finding = Finding { whose: whose::of_place(place, look.scene), ..finding };
    fix::removal(place, None).into_iter().fold(finding, Finding::help)
}

/// Our own table is there, and the kernel shows it no packets (NFT_TABLE_F_DORMANT).
pub(super) fn dormant(look: Look<'_>) -> Option<Finding> {
    let is_ours =
        |table: &&Table| table.name == whose::OUR_TABLE && table.family.as_str() == "inet";
    let is_off = |table: &&Table| table.dormant && is_ours(table);
    let table = look.scene.host.filter.tables.iter().find(is_off)?;
    let name = format!("{} {}", table.family.as_str(), table.name);
    let says = format!(
        "the table {name} is dormant, so nothing is translated and no port leads to a container"
    );
    let finding = Finding::error("not-translated", name.clone(), says)
        .at(format!("table {name}, flags dormant"))
        .of("unknown: a person, or a program that uses nft")
        .fix(format!("nft add table {name}"))
        .breaks(WayKind::Outside, None)
        .breaks(WayKind::Names, None)
        .breaks(WayKind::Published, None)
        .breaks(WayKind::PublishedHere, None);
    let hits = containers(look).map(|container| container.id.clone()).collect();
    Some(Finding { hits, ..finding })
}

/// A rule exempts packets from connection tracking, and so from translation.
pub(super) fn not_translated(
    look: Look<'_>,
    site: &Site<'_>,
    place: &Place,
    with: Payload,
) -> Finding {
    let (of, way) = match with {
        Payload::Tcp { destination: Port::Is(port), .. } => {
            (format!(" to TCP port {port}"), WayKind::Outside)
        }
        Payload::Udp { destination: Port::Is(port), .. } => {
            (format!(" to UDP port {port}"), WayKind::Names)
        }
        _ => (String::new(), WayKind::Outside),
    };
    let says = format!(
        "packets{of} of containers of {} leave this node with their own addresses, which other hosts cannot answer: {} exempts them from connection tracking",
        site.attachment.network,
        place.name()
    );
    let finding = Finding::error("not-translated", place.name(), says)
        .at(place.to_string())
        .seen(format!("by the rules as they are, the source {} is not translated", site.address))
        .hits(site.container.id.clone())
        .breaks(way, Some(site.family()));
    exempted(look, place, finding)
        .advise("or let the rule exempt only what does not come from containers")
}

/// Says whose a rule is that exempts packets, and how it goes.
fn exempted(look: Look<'_>, place: &Place, finding: Finding) -> Finding {
    let finding = Finding { whose: whose::of_place(place, look.scene), ..finding };
    fix::removal(place, None).into_iter().fold(finding, Finding::help)
}

/// Rules exempt what is sent to a published port, or the answers (`true`).
pub(super) fn untracked(
    look: Look<'_>,
    site: &Site<'_>,
    port: &PublishedPort,
    hook: Hook,
    rules: &[(Place, bool)],
) -> Option<Finding> {
    let (place, is_of_answer) = rules.first()?;
    let what = format!("{}/{}", port.host, port.transport.as_str());
    let (called, rule) = (site.container.called(), place.name());
    let (says, seen) = match is_of_answer {
        false => (
            format!(
                "published port {what} of {called} leads nowhere: {rule} exempts what comes to it from connection tracking"
            ),
            format!("by the rules as they are, a packet to port {what} is not translated"),
        ),
        true => (
            format!(
                "answers from published port {what} of {called} are not translated back: {rule} exempts them from connection tracking"
            ),
            format!("by the rules as they are, an answer from port {what} is not translated back"),
        ),
    };
    let kind = match hook {
        Hook::Output => WayKind::PublishedHere,
        _ => WayKind::Published,
    };
    let finding = Finding::error("not-translated", rule, says)
        .at(place.to_string())
        .seen(seen)
        .hits(site.container.id.clone())
        .breaks(kind, Some(site.family()));
    // A rule may be named by its number, so the last one goes first.
    let finding =
        rules.iter().rev().fold(finding, |finding, (place, _)| exempted(look, place, finding));
    Some(finding.advise(format!("or let the rule except port {what}")))
}
