//! The graph of causes: which finding explains which others.
//!
//! A person wants to hear of the uplink that is down, and not of every container that reaches
//! no other machine because of it. A finding explains another one if it lies deeper, hits the same
//! containers, and either the pair is known to belong together, or the other one is a symptom of a
//! way that the first one breaks.

mod joined;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;
use net::IpFamily;

use self::joined::joined;
use crate::finding::{Finding, Severity, Way, WayKind};
use crate::model::{Namespace, Scene};
use crate::rules::{
    BLAMED, BY_ITSELF, BY_SENDER, DENIED, LOSES_LARGE, NOT_ASKED, UNJUDGED, UnexaminedWay,
    is_because_of, is_ipv6_off,
};

/// A finding with what it explains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootCause {
    /// The cause.
    pub finding: Finding,
    /// What is so because of it.
    pub explains: Vec<Finding>,
}

/// What is wrong with a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// The causes: errors first, then warnings, then what could not be looked at; of each the
    /// deepest first.
    pub causes: Vec<RootCause>,
    /// What is as people decided, and filters that cannot be judged while nothing shows that they
    /// do harm.
    pub notes: Vec<Finding>,
    /// What was not examined, so that nothing is known of it.
    pub unexamined: Vec<UnexaminedWay>,
    /// How many things were looked at.
    pub looked_at: usize,
    /// How many findings were left out, because the caller ignores them.
    pub left_out: usize,
}

impl Diagnosis {
    /// Returns how many causes are errors.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.count(Severity::Error)
    }

    /// Returns how many causes are warnings.
    #[must_use]
    pub fn warnings(&self) -> usize {
        self.count(Severity::Warning)
    }

    /// Returns how many things could not be looked at.
    #[must_use]
    pub fn unknown(&self) -> usize {
        self.count(Severity::Unknown)
    }

    fn count(&self, severity: Severity) -> usize {
        self.causes.iter().filter(|cause| cause.finding.severity == severity).count()
    }

    /// Takes filters that cannot be judged for what could not be looked at: nothing was tried that
    /// would show whether they do harm.
    pub(crate) fn doubt_filters(&mut self) {
        let all = std::mem::take(&mut self.notes).into_iter();
        let (filters, notes): (Vec<_>, Vec<_>) = all.partition(|note| note.id == UNJUDGED);
        self.notes = notes;
        // They come first among these: see `DEPTHS`.
        let is_known = |cause: &RootCause| cause.finding.severity != Severity::Unknown;
        let place = self.causes.partition_point(is_known);
        let alone = |finding: Finding| RootCause { finding, explains: Vec::new() };
        drop(self.causes.splice(place..place, filters.into_iter().map(alone)));
    }
}

/// Findings by how deep they lie, the deepest first: those of a row do not explain each other.
const DEPTHS: [&[&str]; 22] = [
    &["not-seen", UNJUDGED],
    &["not-judged"],
    &["network-broken"],
    &["network-refused", "network-incomplete", "service-not-ready", "pool-nearly-full"],
    &["network-shadowed", "subnet-taken", "namespace-gone", "not-attached"],
    &["link-down", "no-carrier", "uplink-enslaved", "loopback-down"],
    &[
        "parent-down",
        "vlan-missing",
        "port-silenced",
        "queue-loses",
        "queue-delays",
        "rate-too-low",
        "tc-drops",
        "program-drops",
        "peer-not-allowed",
        "overlay-gone",
        "tunnel-astray",
        "tunnel-dropped",
        "tunnel-mtu",
        "tunnel-checksums",
    ],
    &["tunnel-silent"],
    &["address-duplicate", "mac-duplicate"],
    &["neighbour-wrong", "address-claimed"],
    &["hop-silent"],
    &[
        "route-covers-pool",
        "route-refuses",
        "rule-diverts",
        "inside-diverts",
        "source-rule-missing",
        "no-way-back",
        "default-route-silent",
    ],
    &[
        "no-default-route",
        "vrf-no-route",
        "forwarding-off",
        "hops-too-few",
        "answers-expire",
        "ipsec-drops",
        "conntrack-full",
        "neighbour-table-full",
        "local-ports-used",
        "router-advertisements",
    ],
    // A node without a route does not answer for others.
    &["requests-ignored"],
    &[
        "forward-dropped",
        "input-dropped",
        "output-dropped",
        "bridge-dropped",
        "inside-dropped",
        "port-redirected",
        "not-translated",
        "source-wrong",
        "proxy-missing",
    ],
    &["mtu-too-small"],
    &[
        "attachment-differs",
        "attachment-unfinished",
        "inside-differs",
        "node-differs",
        "not-checked",
        "switch-decides",
        "reverse-path-filter",
        "endpoint-silent",
        "port-address-gone",
        "flow-stale",
        "port-taken",
        "port-hidden",
    ],
    // A port that differs is another one for the switch.
    &["switch-drops"],
    &[
        "nothing-listens",
        "listens-on-loopback",
        "listens-elsewhere",
        "program-hangs",
        "nameserver-loopback",
        "nameserver-missing",
        "nameserver-skipped",
        "nameserver-unreachable",
        "search-wildcard",
        "hosts-wrong",
        "mtu-too-large",
        DENIED,
        BY_SENDER,
        BY_ITSELF,
    ],
    &["gateway-silent", "router-silent", NOT_ASKED],
    &["path-mtu", "nameserver-silent", "nameserver-half", "nameserver-fails"],
    SYMPTOMS,
];

/// Findings that a probe shows, and that have a cause.
const SYMPTOMS: &[&str] =
    &["gateway-silent", "router-silent", "outside-silent", "port-silent", "container-silent"];

/// Pairs: the first explains the second.
const PAIRS: [(&str, &str); 27] = [
    ("link-down", "no-default-route"),
    ("no-default-route", "requests-ignored"),
    ("route-refuses", "requests-ignored"),
    ("link-down", "router-advertisements"),
    ("link-down", "reverse-path-filter"),
    ("no-carrier", "reverse-path-filter"),
    ("subnet-taken", "route-covers-pool"),
    ("network-broken", "network-refused"),
    ("service-not-ready", "not-checked"),
    ("namespace-gone", "attachment-differs"),
    ("route-covers-pool", "reverse-path-filter"),
    ("rule-diverts", "reverse-path-filter"),
    ("route-covers-pool", "address-claimed"),
    ("address-duplicate", "address-claimed"),
    ("mac-duplicate", "address-claimed"),
    ("address-duplicate", "neighbour-wrong"),
    ("no-carrier", "hop-silent"),
    ("uplink-enslaved", "hop-silent"),
    ("neighbour-wrong", "hop-silent"),
    ("address-claimed", "hop-silent"),
    ("link-down", "parent-down"),
    ("no-carrier", "parent-down"),
    ("tunnel-mtu", "path-mtu"),
    ("mtu-too-small", "path-mtu"),
    ("tunnel-dropped", "tunnel-silent"),
    ("forward-dropped", "path-mtu"),
    ("inside-dropped", BY_ITSELF),
];

fn depth(id: &str) -> usize {
    DEPTHS.iter().position(|row| row.contains(&id)).unwrap_or(DEPTHS.len())
}

/// Returns how deep a finding lies. A network that is refused for a filter of others, for its parent,
/// because a link has no IPv6, or because the host has its pool, lies below that.
fn depth_of(finding: &Finding) -> usize {
    let is_below = is_refused_for_filter(finding)
        || is_refused_for_parent(finding)
        || is_refused_for_ipv6(finding)
        || is_refused_for_pool(finding)
        || is_of_one_subnet(finding);
    match is_below {
        true => depth("attachment-differs"),
        false if is_ipv6_off(finding) => depth("mtu-too-small"),
        false if is_of_unreached(finding) => DEPTHS.len(),
        false => depth(finding.id),
    }
}

/// Of a server of names that the question did not come to, nothing is known: it lies below whatever
/// else the container does not reach.
fn is_of_unreached(finding: &Finding) -> bool {
    let is_blamed = finding.advice.iter().any(|text| text.contains(BLAMED));
    finding.id == "nameserver-silent" && !finding.advice.is_empty() && !is_blamed
}

/// The plugin `firewall` says so of filters that drop what is forwarded.
fn is_refused_for_filter(finding: &Finding) -> bool {
    let says = |text: &String| text.contains(" drops what ") || text.contains(" rejects what ");
    finding.id == "network-refused" && (says(&finding.says) || finding.seen.iter().any(says))
}

/// The plugin `vlan` says so of a parent that is down.
fn is_refused_for_parent(finding: &Finding) -> bool {
    let says = |text: &String| text.contains("parent \"") && text.contains("\" is down");
    finding.id == "network-refused" && finding.seen.iter().any(says)
}

/// The plugins say so of a link of the host without IPv6, and its attachments differ by that, too.
fn is_refused_for_ipv6(finding: &Finding) -> bool {
    let says = |text: &String| text.contains("IPv6 is switched off");
    finding.id == "network-refused" && finding.seen.iter().any(says)
}

/// The plugins say so of a pool that the host has by another link or route.
fn is_refused_for_pool(finding: &Finding) -> bool {
    let says = |text: &String| text.contains(ON_LINK) || text.contains(BY_ROUTE);
    finding.id == "network-refused" && finding.seen.iter().any(says)
}

/// Plugins say so of two networks whose bridges the host cannot both route to.
fn is_of_one_subnet(finding: &Finding) -> bool {
    finding.id == "network-incomplete" && finding.says.contains(" on two bridges, ")
}

/// What ADD and STATUS say of such a pool.
const ON_LINK: &str = ", which is on the host's link";
const BY_ROUTE: &str = ", to which the host has a route";

/// Joins findings of the same object, and puts those that others explain below them.
pub(crate) fn sort(findings: Vec<Finding>, scene: &Scene) -> Diagnosis {
    let mut findings = joined(together(findings));
    findings.sort_by_cached_key(|one| (one.severity, depth_of(one), one.id, one.object.clone()));
    let mut sorted = CauseIndex::default();
    // Causes are deeper, so they are there before what they explain.
    findings.into_iter().for_each(|finding| sorted.put(finding));
    let causes = sorted.causes;
    // What cannot be judged may be the cause of what nothing else explains.
    let is_open = causes.iter().any(|cause| is_open(&cause.finding));
    let is_note = |cause: &RootCause| match cause.finding.id {
        UNJUDGED => !is_open,
        id => [DENIED, BY_SENDER, BY_ITSELF].contains(&id),
    };
    let (notes, causes): (Vec<RootCause>, Vec<RootCause>) = causes.into_iter().partition(is_note);
    let notes = notes.into_iter().map(|note| note.finding).collect();
    Diagnosis { causes, notes, unexamined: Vec::new(), looked_at: looked_at(scene), left_out: 0 }
}

/// Says whether a probe shows it, and nothing why.
fn is_open(finding: &Finding) -> bool {
    SYMPTOMS.contains(&finding.id)
        || ["hop-silent", "nameserver-silent", "path-mtu"].contains(&finding.id)
}

/// The command that restores what ADD made, of every container.
const REPAIR: &str = "netwright repair";

/// The same difference of several containers is one finding of their network. Several plugins may
/// tell it of one attachment.
fn together(findings: Vec<Finding>) -> Vec<Finding> {
    let difference = |finding: &Finding| {
        let (attachment, what) = finding.object.split_once(": ")?;
        let (network, _) = attachment.split_once('/')?;
        (finding.id == "attachment-differs")
            .then(|| (network.to_owned(), what.to_owned(), attachment.to_owned()))
    };
    let differences: Vec<Option<(String, String, String)>> =
        findings.iter().map(difference).collect();
    let mut attachments: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for (network, what, attachment) in differences.iter().flatten() {
        let same = attachments.entry((network.as_str(), what.as_str())).or_default();
        same.insert(attachment.as_str());
    }
    let mut all = Vec::with_capacity(findings.len());
    for (mut finding, own) in findings.into_iter().zip(&differences) {
        if let Some((network, what, _)) = own {
            let same = attachments.get(&(network.as_str(), what.as_str()));
            let count = same.map_or(0, BTreeSet::len);
            if 1 < count {
                finding.object = format!("{network}: {what}");
                finding.says = format!("{count} attachments to {network}: {what}");
                let is_repaired = !finding.fix.is_empty();
                if is_repaired && finding.fix.iter().all(|fix| fix.starts_with(REPAIR)) {
                    finding.fix = vec![REPAIR.to_owned()];
                }
            }
        }
        all.push(finding);
    }
    all
}

/// A cause by its number, or what it explains by the number of both.
type CausePosition = (usize, Option<usize>);

/// Causes with what they explain, and which of them hit a container: only findings that hit the
/// same one explain each other, and of each there may be 10,000.
#[derive(Default)]
struct CauseIndex {
    causes: Vec<RootCause>,
    by_container: HashMap<String, Vec<CausePosition>>,
    /// One that names no container hits all.
    of_all: Vec<CausePosition>,
}

impl CauseIndex {
    fn put(&mut self, finding: Finding) {
        let hits = finding.hits.clone();
        let at = match self.cause_of(&finding) {
            Some(number) => {
                let explains = &mut self.causes[number].explains;
                explains.push(finding);
                (number, Some(explains.len() - 1))
            }
            None => {
                self.causes.push(RootCause { finding, explains: Vec::new() });
                (self.causes.len() - 1, None)
            }
        };
        if hits.is_empty() {
            self.of_all.push(at);
        }
        for id in hits {
            self.by_container.entry(id).or_default().push(at);
        }
    }

    /// Returns the first cause that explains a finding, or of which something that it explains
    /// does.
    fn cause_of(&self, finding: &Finding) -> Option<usize> {
        if finding.hits.is_empty() {
            return self.causes.iter().position(|cause| {
                let mut all = std::iter::once(&cause.finding).chain(&cause.explains);
                all.any(|one| explains(one, finding))
            });
        }
        let own = finding.hits.iter().filter_map(|id| self.by_container.get(id)).flatten();
        let all = own.chain(&self.of_all);
        let is_cause =
            |at: &&CausePosition| self.at(**at).is_some_and(|one| explains(one, finding));
        all.filter(is_cause).map(|(number, _)| *number).min()
    }

    fn at(&self, (number, explained): CausePosition) -> Option<&Finding> {
        let cause = self.causes.get(number)?;
        match explained {
            None => Some(&cause.finding),
            Some(number) => cause.explains.get(number),
        }
    }
}

/// Says whether one of some findings explains another one.
pub(crate) fn is_explained(finding: &Finding, by: &[Finding]) -> bool {
    by.iter().any(|cause| {
        let is_common = cause.hits.is_empty()
            || finding.hits.is_empty()
            || finding.hits.iter().any(|id| cause.hits.contains(id));
        is_common && explains(cause, finding)
    })
}

/// Says whether a finding explains another one, if they hit a container in common.
fn explains(cause: &Finding, finding: &Finding) -> bool {
    if is_because_of(finding, cause) {
        return true;
    }
    let is_deeper = depth_of(cause) < depth_of(finding) && cause.severity <= finding.severity;
    if !is_deeper || cause.severity == Severity::Unknown {
        return false;
    }
    if PAIRS.contains(&(cause.id, finding.id)) {
        return true;
    }
    if finding.id == "hop-silent" {
        return is_on_the_way(cause, finding);
    }
    // What a rule leads to a router that does not answer goes nowhere because of that.
    if (cause.id, finding.id) == ("hop-silent", "rule-diverts") {
        let route = cause.place.as_deref().unwrap_or("link");
        return finding.place.as_deref().is_some_and(|place| place.ends_with(route));
    }
    let is_shown = match (cause.id, finding.id) {
        ("attachment-differs", "switch-drops") => is_of_plugin(cause, "ovs"),
        ("rate-too-low", "path-mtu") => cause.says.ends_with(LOSES_LARGE),
        ("answers-expire", "outside-silent") => is_expired(finding),
        _ => false,
    };
    if is_shown {
        return true;
    }
    // A question that cannot be sent is no question of its own where something else is broken.
    if finding.id == NOT_ASKED {
        return cause.severity == Severity::Error;
    }
    if is_refused_for_filter(finding) {
        return cause.id == "forward-dropped";
    }
    if is_refused_for_parent(finding) {
        let said = format!("parent \"{}\" is down", cause.object);
        let is_link = ["parent-down", "link-down", "no-carrier"].contains(&cause.id);
        return is_link && finding.seen.iter().any(|text| text.contains(&said));
    }
    if is_refused_for_pool(finding) {
        let says = |words: &str| finding.seen.iter().any(|text| text.contains(words));
        return match cause.id {
            "subnet-taken" => cause.object == finding.object && says(ON_LINK),
            "route-covers-pool" => says(&format!(" is of {}{BY_ROUTE}", cause.object)),
            _ => false,
        };
    }
    if is_of_one_subnet(finding) {
        let name = format!("{:?}", cause.object);
        return cause.id == "subnet-taken" && finding.says.contains(&name);
    }
    if finding.id == "attachment-differs" {
        return is_told_twice(cause, finding);
    }
    let is_symptom = SYMPTOMS.contains(&finding.id)
        || ["nameserver-silent", "nameserver-unreachable"].contains(&finding.id);
    is_symptom
        && finding.breaks.iter().any(|way| cause.breaks.iter().any(|broken| covers(broken, way)))
}

/// Says whether a plugin tells a difference.
fn is_of_plugin(difference: &Finding, plugin: &str) -> bool {
    let place = difference.place.as_deref().and_then(|place| place.strip_prefix("plugin "));
    place.is_some_and(|rest| rest.starts_with(plugin))
}

/// Says whether the answer of a silent machine was seen to end where the node sends it on (linux
/// net/ipv4/ip_forward.c, net/ipv6/ip6_output.c).
fn is_expired(silent: &Finding) -> bool {
    let is_there = |text: &String| {
        text.contains("the answer ended at")
            && ["ip_forward", "ip6_forward"].iter().any(|function| text.contains(function))
    };
    silent.seen.iter().any(is_there)
}

/// What keeps a link, or what is below it, from carrying packets.
const OF_LINKS: [&str; 7] = [
    "parent-down",
    "vlan-missing",
    "port-silenced",
    "queue-loses",
    "queue-delays",
    "tc-drops",
    "program-drops",
];

/// Says whether a router does not answer because of a link that leads there: the object of such a
/// cause begins with the link's name, and the place of a silent router ends with it.
fn is_on_the_way(cause: &Finding, silent: &Finding) -> bool {
    let link = cause.object.split([' ', ':']).next().unwrap_or_default();
    let names = |text: &str| {
        ["link ", "dev "].iter().any(|before| {
            text.split(before).skip(1).any(|rest| rest.split(' ').next() == Some(link))
        })
    };
    OF_LINKS.contains(&cause.id) && !link.is_empty() && silent.place.as_deref().is_some_and(names)
}

/// Says whether what breaks one way breaks another one.
pub(crate) fn covers(broken: &Way, way: &Way) -> bool {
    let is_of = |one: &Option<String>, other: &Option<String>| {
        one.is_none() || other.is_none() || one == other
    };
    let is_family = broken.family.is_none() || way.family.is_none() || broken.family == way.family;
    // Servers of names are outside, unless something else is said of them.
    let is_kind = broken.kind == way.kind
        || (broken.kind == WayKind::Outside && way.kind == WayKind::Names)
        || (broken.kind == WayKind::Gateway && way.kind != WayKind::Inside);
    is_of(&broken.container, &way.container) && is_family && is_kind
}

/// Says whether a difference that CHECK tells is what a deeper finding tells: it names the same
/// object, or what it misses was only to let the network through there.
fn is_told_twice(cause: &Finding, difference: &Finding) -> bool {
    let text = &difference.says;
    let is_of = |plugin: &str| is_of_plugin(difference, plugin);
    let words: &[&str] = match cause.id {
        "forward-dropped" if is_of("firewall") => return true,
        "route-covers-pool" | "rule-diverts" | "subnet-taken" if is_of("portmap") => return true,
        "subnet-taken" => &["route"],
        "forwarding-off" => &["forwarding is off"],
        // Without IPv6 on the link, all that is of IPv6 there is gone.
        "mtu-too-small" | "inside-differs" => {
            let mut broken = difference.breaks.iter();
            return (cause.id == "mtu-too-small" && text.contains("MTU"))
                || text.contains("IPv6")
                || addresses(text).any(|net| net.addr().is_ipv6())
                || (!difference.breaks.is_empty()
                    && broken.all(|way| way.family == Some(IpFamily::V6)));
        }
        "route-covers-pool" => return has_address_of(text, &cause.object),
        "neighbour-wrong" | "link-down" | "no-carrier" | "parent-down" | "vlan-missing" => &[],
        _ => return false,
    };
    if words.iter().any(|word| text.contains(word)) {
        return true;
    }
    // The object of a neighbour is its address, of a link its name.
    let object = cause.object.split(' ').next().unwrap_or_default();
    words.is_empty() && !object.is_empty() && text.contains(object)
}

/// Says whether a text names an address or a prefix within the destination of a route, with which
/// its object begins.
fn has_address_of(text: &str, route: &str) -> bool {
    let first = route.split(' ').next().unwrap_or_default();
    let Ok(to) = first.parse::<IpNet>() else { return false };
    addresses(text).any(|net| to.contains(&net))
}

/// Returns the addresses and prefixes that a text names.
fn addresses(text: &str) -> impl Iterator<Item = IpNet> + '_ {
    let ends = |one: char| one.is_whitespace() || ",;\"()[]{}".contains(one);
    // An address may end with a colon itself.
    let words = text.split(ends).flat_map(|word| [word, word.trim_end_matches(':')]);
    words.filter_map(|word| {
        word.parse().ok().or_else(|| word.parse::<IpAddr>().ok().map(IpNet::from))
    })
}

/// Counts what a diagnosis looked at.
fn looked_at(scene: &Scene) -> usize {
    let insides = scene.containers.iter().filter_map(|container| container.inside.as_ref());
    let namespaces: usize = insides.chain([&scene.host]).map(things).sum();
    let attachments: usize = scene.containers.iter().map(|one| one.attachments.len()).sum();
    namespaces
        .saturating_add(attachments)
        .saturating_add(scene.networks.len())
        .saturating_add(scene.broken.len())
        .saturating_add(scene.plugins.len())
        .saturating_add(scene.pools.len())
        .saturating_add(scene.services.len())
}

fn things(namespace: &Namespace) -> usize {
    let addresses: usize = namespace.links.iter().map(|link| link.addresses.len()).sum();
    let chains = namespace.filter.tables.iter().flat_map(|table| &table.chains);
    let rules: usize = chains.map(|chain| chain.rules.len().saturating_add(1)).sum();
    let legacy: usize = namespace.filter.legacy.iter().map(|table| table.rules.len()).sum();
    [
        namespace.links.len(),
        addresses,
        namespace.routes.len(),
        namespace.rules.len(),
        namespace.neighbours.len(),
        namespace.fdb.len(),
        namespace.sysctls.len(),
        namespace.listeners.len(),
        rules,
        legacy,
    ]
    .iter()
    .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(findings: Vec<Finding>) -> Vec<String> {
        let line = |cause: &RootCause| {
            let explains: Vec<&str> = cause.explains.iter().map(|one| one.id).collect();
            format!("{} {}: {}", cause.finding.id, cause.finding.object, explains.join(" "))
        };
        sort(findings, &Scene::default()).causes.iter().map(line).collect()
    }

    fn silent(id: &str) -> Finding {
        Finding::error("outside-silent", id, "no answer")
            .hits(id)
            .breaks(WayKind::Outside, Some(IpFamily::V4))
    }

    /// Who knows the cause knows what is so because of it.
    #[test]
    fn what_an_ignored_cause_explains_is_left_out() {
        let cause = Finding::error("link-down", "up0", "up0 is down")
            .breaks(WayKind::Outside, None)
            .hits("c1");
        let symptom = |id: &str| {
            Finding::error("outside-silent", id, "silent").breaks(WayKind::Outside, None).hits(id)
        };
        let ignored = [cause];
        assert!(is_explained(&symptom("c1"), &ignored));
        assert!(!is_explained(&symptom("c2"), &ignored));
        assert!(!is_explained(&Finding::error("loopback-down", "c1", "down").hits("c1"), &ignored));
    }

    #[test]
    fn it_is_known_how_deep_each_finding_lies() {
        let ids = crate::rules::RULES.iter().flat_map(|rule| rule.ids);
        let missing: Vec<&&str> = ids.filter(|id| depth(id) == DEPTHS.len()).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn a_route_explains_what_check_says_of_the_addresses_that_it_covers() {
        let route = Finding::error("route-covers-pool", "10.88.0.0/25 dev lo", "covers").hits("c1");
        let differs = |what: &str| {
            let object = format!("mynet/c1/eth0: {what}");
            Finding::error("attachment-differs", object, format!("eth0 of c1 on mynet: {what}"))
                .hits("c1")
        };
        let covered = "the host reaches 10.88.0.2 by \"lo\", not by \"cni0\"";
        let own = "address 10.88.0.2: it is the host's own";
        let other = "the host reaches 10.88.0.130 by \"lo\", not by \"cni0\"";
        assert_eq!(
            listed(vec![route, differs(covered), differs(own), differs(other)]),
            [
                "route-covers-pool 10.88.0.0/25 dev lo: attachment-differs attachment-differs"
                    .to_owned(),
                format!("attachment-differs mynet/c1/eth0: {other}: "),
            ]
        );
    }

    #[test]
    fn what_only_follows_from_a_cause_is_no_second_one() {
        let of = |id: &'static str, says: &str| Finding::error(id, "object", says).hits("c1");
        let differs = |plugin: &str| {
            of("attachment-differs", "its port has tag 101")
                .at(format!("plugin {plugin} of network n"))
        };
        let drops = || of("switch-drops", "the switch drops what c1 sends");
        let count = |cause: Finding, other: Finding| listed(vec![other, cause]).len();
        assert_eq!((count(differs("ovs"), drops()), count(differs("bridge"), drops())), (1, 2));
        let rate = |says: &str| of("rate-too-low", says);
        let large = || of("path-mtu", "packets of more than 986 bytes vanish");
        assert_eq!(count(rate(&format!("1000 bytes pass at once: {LOSES_LARGE}")), large()), 1);
        assert_eq!(count(rate("a packet takes 750 ms"), large()), 2);
        let expire = || of("answers-expire", "answers come with a TTL of 1");
        let ended = |how: &str| silent("c1").seen(format!("a probe was not answered{how}"));
        let forward = "; the answer ended at eth0 of the node: ip_forward, IP_INHDR";
        assert_eq!(count(expire(), ended(forward)), 1);
        assert_eq!(count(expire(), ended("")), 2);
    }

    #[test]
    fn a_cause_explains_the_symptoms_of_the_ways_that_it_breaks() {
        let down = Finding::error("link-down", "up0", "up0 is down")
            .breaks(WayKind::Outside, Some(IpFamily::V4));
        let route = Finding::error("no-default-route", "IPv4", "no default route");
        let names = Finding::error("nameserver-silent", "192.0.2.53", "silent")
            .hits("c1")
            .breaks(WayKind::Names, Some(IpFamily::V4));
        assert_eq!(
            listed(vec![silent("c1"), silent("c2"), names, route, down.clone()]),
            ["link-down up0: no-default-route nameserver-silent outside-silent outside-silent"]
        );
        let six =
            Finding { breaks: Vec::new(), ..down }.breaks(WayKind::Outside, Some(IpFamily::V6));
        assert_eq!(listed(vec![silent("c1"), six]), ["link-down up0: ", "outside-silent c1: "]);
    }

    /// A repair that does not raise the MTU brings no IPv6 back.
    #[test]
    fn a_small_mtu_explains_what_differs_by_ipv6() {
        let small = Finding::error("mtu-too-small", "cni0", "IPv6 needs 1280").hits("c1");
        let differs = |what: &str, family| {
            Finding::error("attachment-differs", format!("mynet/c1/eth0: {what}"), what)
                .hits("c1")
                .breaks(WayKind::Gateway, Some(family))
        };
        assert_eq!(
            listed(vec![
                differs("bridge \"cni0\" has MTU 1000, not 1500", IpFamily::V4),
                differs("gateway address fd00::1 is gone", IpFamily::V6),
                differs("link \"veth1\" is down", IpFamily::V4),
                small,
            ]),
            [
                "mtu-too-small cni0: attachment-differs attachment-differs",
                "attachment-differs mynet/c1/eth0: link \"veth1\" is down: ",
            ]
        );
    }

    /// What is explained explains, too, whatever it hits.
    #[test]
    fn a_cause_explains_what_its_consequences_explain() {
        let pool = Finding::error("subnet-taken", "mynet", "taken").hits("c1");
        let covers = Finding::error("route-covers-pool", "10.88.0.0/25", "covers")
            .hits("c1")
            .hits("c2")
            .breaks(WayKind::Outside, None);
        assert_eq!(
            listed(vec![silent("c2"), covers, pool, silent("c3")]),
            ["subnet-taken mynet: route-covers-pool outside-silent", "outside-silent c3: "]
        );
    }

    /// If each were compared with all before it, this test would take very long.
    #[test]
    fn findings_of_many_containers_are_sorted() {
        const MANY: usize = 10_000;
        let of_one = |number: usize| {
            let id = format!("c{number}");
            let down = Finding::error("inside-dropped", id.clone(), "dropped").hits(id.clone());
            [down.breaks(WayKind::Outside, None), silent(&id)]
        };
        let found = sort((0..MANY).flat_map(of_one).collect(), &Scene::default());
        assert_eq!(found.causes.len(), MANY);
        assert!(found.causes.iter().all(|cause| cause.explains.len() == 1));
    }

    #[test]
    fn a_fault_of_one_container_does_not_explain_another() {
        let dropped = Finding::error("inside-dropped", "c1", "dropped")
            .hits("c1")
            .breaks(WayKind::Outside, None);
        assert_eq!(
            listed(vec![silent("c1"), silent("c2"), dropped]),
            ["inside-dropped c1: outside-silent", "outside-silent c2: "]
        );
    }

    #[test]
    fn the_same_object_is_one_finding() {
        let dropped = |id: &str| {
            Finding::error("forward-dropped", "inet t/f rule 1", "dropped").hits(id).fix("nft …")
        };
        let found = sort(vec![dropped("c1"), dropped("c2"), dropped("c1")], &Scene::default());
        assert_eq!(found.causes.len(), 1);
        assert_eq!(found.causes[0].finding.hits, ["c1", "c2"]);
        assert_eq!(found.causes[0].finding.fix, ["nft …"]);
        assert_eq!((found.errors(), found.warnings(), found.unknown()), (1, 0, 0));
    }

    #[test]
    fn errors_come_first_and_what_was_not_seen_last() {
        let unknown = Finding::unknown("not-seen", "routes", "not read");
        let warning = Finding::warning("mtu-too-large", "mynet", "too large");
        assert_eq!(
            listed(vec![unknown, warning, silent("c1")]),
            ["outside-silent c1: ", "mtu-too-large mynet: ", "not-seen routes: "]
        );
    }

    #[test]
    fn what_nobody_judges_is_told_with_what_nothing_explains() {
        let unjudged = Finding::unknown(UNJUDGED, "this node", "has filters");
        let all = |more: Vec<Finding>| {
            let found = sort([vec![unjudged.clone()], more].concat(), &Scene::default());
            let ids: Vec<&str> = found.causes.iter().map(|cause| cause.finding.id).collect();
            (ids, found.notes.len(), found.unknown())
        };
        assert_eq!(all(Vec::new()), (vec![], 1, 0));
        assert_eq!(all(vec![silent("c1")]), (vec!["outside-silent", UNJUDGED], 0, 1));
        let down = Finding::error("link-down", "up0", "up0 is down")
            .breaks(WayKind::Outside, Some(IpFamily::V4));
        assert_eq!(all(vec![silent("c1"), down]), (vec!["link-down"], 1, 0));
    }

    /// Who reads of the router first removes a route that is sound.
    #[test]
    fn what_keeps_a_link_from_carrying_comes_before_the_router_behind_it() {
        let silent = |place: &str| {
            Finding::error("hop-silent", "192.0.2.1", "no machine answers").at(place).hits("c1")
        };
        let of_link = silent("link up0");
        let drops = |link: &str| {
            Finding::error("tc-drops", format!("{link} egress filter 10"), "drops").hits("c1")
        };
        assert_eq!(
            listed(vec![of_link.clone(), drops("up0")]),
            ["tc-drops up0 egress filter 10: hop-silent"]
        );
        let of_route = silent("route default via 192.0.2.1 dev up0 table 7");
        assert_eq!(listed(vec![of_route.clone(), drops("up0")]).len(), 1);
        assert_eq!(listed(vec![of_link.clone(), drops("veth1")]).len(), 2);
        assert_eq!(listed(vec![of_link.clone(), drops("up01")]).len(), 2);
        // A routing rule that leads there is not the cause either.
        let place = "rule 7: from all lookup 7; then route default via 192.0.2.1 dev up0 table 7";
        let rule = Finding::error("rule-diverts", "IPv4 rule 7", "diverts").at(place).hits("c1");
        assert_eq!(listed(vec![rule.clone(), of_route]), ["hop-silent 192.0.2.1: rule-diverts"]);
        assert_eq!(listed(vec![rule, of_link]).len(), 2);
    }

    #[test]
    fn a_filter_explains_that_a_network_is_refused() {
        let refused = Finding::error("network-refused", "mynet", "ADD would fail")
            .seen("firewalld rejects what no zone forwards");
        let other = Finding::error("network-refused", "other", "ADD would fail");
        let dropped = Finding::error("forward-dropped", "inet firewalld/f rule 4", "dropped");
        assert_eq!(
            listed(vec![refused, other, dropped]),
            ["network-refused other: ", "forward-dropped inet firewalld/f rule 4: network-refused"]
        );
    }

    #[test]
    fn a_parent_explains_that_a_network_is_refused() {
        let refused = |network: &str, parent: &str| {
            Finding::error("network-refused", network, "ADD would fail")
                .seen(format!("failed to create vlan: parent \"{parent}\" is down; bring it up"))
        };
        let down = Finding::error("parent-down", "up1", "up1 is down").hits("c1");
        assert_eq!(
            listed(vec![refused("lan", "up1"), refused("other", "up10"), down]),
            ["parent-down up1: network-refused", "network-refused other: "]
        );
    }

    #[test]
    fn a_pool_that_the_host_has_explains_that_its_network_is_refused() {
        let refused = |network: &str, text: &str| {
            Finding::error("network-refused", network, "ADD would fail").seen(text)
        };
        let of_link = "every address from 10.1.0.2 to 10.1.0.254 is of subnet 10.1.0.0/24, which is \
                       on the host's link \"up0\"";
        let of_route = "every address from 10.2.0.2 to 10.2.0.254 is of 10.2.0.0/16, to which the \
                        host has a route on link \"tun0\"";
        let taken = Finding::error("subnet-taken", "lan", "taken");
        let other = || refused("other", of_link);
        assert_eq!(
            listed(vec![refused("lan", of_link), other(), taken]),
            ["subnet-taken lan: network-refused", "network-refused other: "]
        );
        let covers = Finding::error("route-covers-pool", "10.2.0.0/16", "covered");
        assert_eq!(
            listed(vec![refused("vpn", of_route), other(), covers]),
            ["route-covers-pool 10.2.0.0/16: network-refused", "network-refused other: "]
        );
        let both = "network lan: networks \"lan\" and \"wan\" both have subnet 10.1.0.0/24 on two \
                    bridges, \"br1\" and \"br0\": the host reaches the containers of one of them alone";
        let both = || Finding::warning("network-incomplete", both, both);
        let taken = |name: &str| Finding::error("subnet-taken", name, "taken");
        assert_eq!(listed(vec![both(), taken("wan")]), ["subnet-taken wan: network-incomplete"]);
        assert_eq!(
            listed(vec![both(), taken("other")]),
            ["subnet-taken other: ", &format!("network-incomplete {}: ", both().object)]
        );
    }

    #[test]
    fn differences_of_many_containers_are_one() {
        let differs = |id: &str, what: &str| {
            Finding::error("attachment-differs", format!("mynet/{id}/eth0: {what}"), what)
                .at("plugin firewall of network mynet")
                .hits(id)
        };
        let all = vec![
            differs("c1", "link \"cni0\" is down"),
            differs("c2", "link \"cni0\" is down"),
            differs("c2", "link \"veth2\" is down"),
        ];
        assert_eq!(
            listed(all.clone()),
            [
                "attachment-differs mynet/c2/eth0: link \"veth2\" is down: ",
                "attachment-differs mynet: link \"cni0\" is down: ",
            ]
        );
        let dropped = Finding::error("forward-dropped", "ip filter/FORWARD rule 1", "dropped");
        assert_eq!(listed([all, vec![dropped]].concat()).len(), 1);
        // Two plugins miss the same thing.
        let table = "missing: table inet netwright";
        let portmap = differs("c1", table).at("plugin portmap of network mynet");
        assert_eq!(
            listed(vec![differs("c1", table), portmap]),
            ["attachment-differs mynet/c1/eth0: missing: table inet netwright: "]
        );
    }
}
