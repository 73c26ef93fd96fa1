//! The graph of causes: which finding explains which others.
//!
//! A person wants to hear of the uplink that is down, and not of every container that reaches
//! nobody because of it. A finding explains another one if it lies deeper, hits the same
//! containers, and either the pair is known to belong together, or the other one is a symptom of a
//! way that the first one breaks.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;

use scene::{Namespace, Scene};

use crate::finding::{Finding, Severity, Way, WayKind};
use crate::rules::{DENIED, UNJUDGED, is_because_of};

/// A finding with what it explains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
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
    pub causes: Vec<Explained>,
    /// What is as people decided, and filters that cannot be judged while nothing shows that they do
    /// harm.
    pub notes: Vec<Finding>,
    /// How many things were looked at.
    pub looked_at: usize,
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
}

/// Findings by how deep they lie, the deepest first: those of a row do not explain each other.
const DEPTHS: [&[&str]; 17] = [
    &["not-seen", UNJUDGED],
    &["not-judged"],
    &["network-broken"],
    &["network-refused", "network-incomplete", "service-not-ready", "pool-nearly-full"],
    &["network-shadowed", "subnet-taken", "namespace-gone"],
    &["link-down", "no-carrier", "uplink-enslaved", "loopback-down"],
    &[
        "parent-down",
        "vlan-missing",
        "port-silenced",
        "queue-loses",
        "rate-too-low",
        "tc-drops",
        "peer-not-allowed",
        "tunnel-mtu",
        "tunnel-checksums",
    ],
    &["address-duplicate", "mac-duplicate"],
    &["neighbour-wrong", "address-claimed"],
    &["hop-silent"],
    &["route-covers-pool", "route-refuses", "rule-diverts"],
    &[
        "no-default-route",
        "vrf-no-route",
        "forwarding-off",
        "hops-too-few",
        "requests-ignored",
        "conntrack-full",
        "neighbour-table-full",
        "router-advertisements",
    ],
    &[
        "forward-dropped",
        "input-dropped",
        "output-dropped",
        "bridge-dropped",
        "inside-dropped",
        "port-redirected",
        "not-translated",
    ],
    &[
        "attachment-differs",
        "attachment-unfinished",
        "inside-differs",
        "not-checked",
        "switch-decides",
        "reverse-path-filter",
        "port-address-gone",
        "flow-stale",
        "port-taken",
        "port-hidden",
    ],
    &[
        "nothing-listens",
        "listens-on-loopback",
        "listens-elsewhere",
        "nameserver-loopback",
        "nameserver-unreachable",
        "mtu-too-large",
        "mtu-too-small",
        DENIED,
    ],
    &["path-mtu", "nameserver-silent", "nameserver-fails"],
    SYMPTOMS,
];

/// Findings that a probe shows, and that have a cause.
const SYMPTOMS: &[&str] =
    &["gateway-silent", "router-silent", "outside-silent", "port-silent", "container-silent"];

/// Pairs: the first explains the second.
const PAIRS: [(&str, &str); 20] = [
    ("link-down", "no-default-route"),
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
    ("attachment-differs", "mtu-too-small"),
    ("no-carrier", "hop-silent"),
    ("uplink-enslaved", "hop-silent"),
    ("neighbour-wrong", "hop-silent"),
    ("link-down", "parent-down"),
    ("no-carrier", "parent-down"),
    ("tunnel-mtu", "path-mtu"),
];

fn depth(id: &str) -> usize {
    DEPTHS.iter().position(|row| row.contains(&id)).unwrap_or(DEPTHS.len())
}

/// Returns how deep a finding lies. A network that is refused for a filter of others lies below the
/// filter.
fn depth_of(finding: &Finding) -> usize {
    if is_refused_for_filter(finding) { depth("attachment-differs") } else { depth(finding.id) }
}

/// The plugin `firewall` says so of filters that drop what is forwarded.
fn is_refused_for_filter(finding: &Finding) -> bool {
    let says = |text: &String| text.contains(" drops what ") || text.contains(" rejects what ");
    finding.id == "network-refused" && (says(&finding.says) || finding.seen.iter().any(says))
}

/// Joins findings of the same object, and puts those that others explain below them.
pub(crate) fn sort(findings: Vec<Finding>, scene: &Scene) -> Diagnosis {
    let mut findings = joined(together(findings));
    findings.sort_by(|one, other| {
        let key = |finding: &Finding| (finding.severity, depth_of(finding));
        key(one)
            .cmp(&key(other))
            .then_with(|| (one.id, one.object.as_str()).cmp(&(other.id, other.object.as_str())))
    });
    let mut causes: Vec<Explained> = Vec::new();
    for finding in findings {
        // What is explained was looked at before: causes are deeper.
        let cause = causes.iter_mut().find(|cause| {
            explains(&cause.finding, &finding)
                || cause.explains.iter().any(|explained| explains(explained, &finding))
        });
        match cause {
            Some(cause) => cause.explains.push(finding),
            None => causes.push(Explained { finding, explains: Vec::new() }),
        }
    }
    // What nobody judges may be the cause of what nothing else explains.
    let is_open = causes.iter().any(|cause| is_open(&cause.finding));
    let is_note = |cause: &Explained| match cause.finding.id {
        UNJUDGED => !is_open,
        id => id == DENIED,
    };
    let (notes, causes): (Vec<Explained>, Vec<Explained>) = causes.into_iter().partition(is_note);
    let notes = notes.into_iter().map(|note| note.finding).collect();
    Diagnosis { causes, notes, looked_at: looked_at(scene) }
}

/// Says whether a probe shows it, and nothing why.
fn is_open(finding: &Finding) -> bool {
    SYMPTOMS.contains(&finding.id)
        || ["hop-silent", "nameserver-silent", "path-mtu"].contains(&finding.id)
}

/// Joins findings that have ID and object in common. One may hit 10,000 containers.
fn joined(findings: Vec<Finding>) -> Vec<Finding> {
    let mut groups: Vec<Vec<Finding>> = Vec::new();
    let mut places: HashMap<(&'static str, String), usize> = HashMap::new();
    for finding in findings {
        match places.entry((finding.id, finding.object.clone())) {
            Entry::Occupied(place) => groups[*place.get()].push(finding),
            Entry::Vacant(place) => {
                place.insert(groups.len());
                groups.push(vec![finding]);
            }
        }
    }
    groups.into_iter().filter_map(join).collect()
}

/// How many lines of evidence a finding has at most: the first of 200 containers says it all.
const SEEN: usize = 4;

/// Joins findings of one object, in their order.
fn join(mut group: Vec<Finding>) -> Option<Finding> {
    if group.len() < 2 {
        return group.pop();
    }
    let mut others = group.into_iter();
    let mut one = others.next()?;
    let mut hits = Different::of(std::mem::take(&mut one.hits));
    let mut fix = Different::of(std::mem::take(&mut one.fix));
    let mut breaks = Different::of(std::mem::take(&mut one.breaks));
    for other in others {
        one.severity = one.severity.min(other.severity);
        one.place = one.place.take().or(other.place);
        one.whose = one.whose.take().or(other.whose);
        for line in other.seen {
            if one.seen.len() < SEEN && !one.seen.contains(&line) {
                one.seen.push(line);
            }
        }
        hits.add(other.hits);
        fix.add(other.fix);
        breaks.add(other.breaks);
    }
    one.seen.truncate(SEEN);
    Some(Finding { hits: hits.all, fix: fix.all, breaks: breaks.all, ..one })
}

/// What is there once, in the order in which it came.
struct Different<T> {
    all: Vec<T>,
    known: HashSet<T>,
}

impl<T: Clone + Eq + Hash> Different<T> {
    fn of(all: Vec<T>) -> Self {
        let known = all.iter().cloned().collect();
        Different { all, known }
    }

    fn add(&mut self, more: Vec<T>) {
        for one in more {
            if self.known.insert(one.clone()) {
                self.all.push(one);
            }
        }
    }
}

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
                finding.fix = vec!["netwright repair".to_owned()];
            }
        }
        all.push(finding);
    }
    all
}

/// Says whether a finding explains another one.
fn explains(cause: &Finding, finding: &Finding) -> bool {
    if is_because_of(finding, cause) {
        return true;
    }
    let is_deeper = depth_of(cause) < depth_of(finding) && cause.severity <= finding.severity;
    if !is_deeper || cause.severity == Severity::Unknown || !hits_same(cause, finding) {
        return false;
    }
    if PAIRS.contains(&(cause.id, finding.id)) {
        return true;
    }
    if is_refused_for_filter(finding) {
        return cause.id == "forward-dropped";
    }
    if finding.id == "attachment-differs" {
        return is_told_twice(cause, finding);
    }
    let is_symptom = SYMPTOMS.contains(&finding.id)
        || ["nameserver-silent", "nameserver-unreachable"].contains(&finding.id);
    is_symptom
        && finding.breaks.iter().any(|way| cause.breaks.iter().any(|broken| covers(broken, way)))
}

/// Says whether a finding hits one of the containers that another one hits. One that names none
/// hits all.
fn hits_same(cause: &Finding, finding: &Finding) -> bool {
    cause.hits.is_empty()
        || finding.hits.is_empty()
        || finding.hits.iter().any(|id| cause.hits.contains(id))
}

/// Says whether what breaks one way breaks another one.
fn covers(broken: &Way, way: &Way) -> bool {
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
    let is_of = |plugin: &str| {
        difference.place.as_deref().is_some_and(|place| {
            place.strip_prefix("plugin ").is_some_and(|rest| rest.starts_with(plugin))
        })
    };
    let words: &[&str] = match cause.id {
        "forward-dropped" if is_of("firewall") => return true,
        "route-covers-pool" | "rule-diverts" | "subnet-taken" if is_of("portmap") => return true,
        "subnet-taken" => &["route"],
        "forwarding-off" => &["forwarding is off"],
        "neighbour-wrong" | "link-down" | "no-carrier" | "route-covers-pool" | "parent-down"
        | "vlan-missing" => &[],
        _ => return false,
    };
    if words.iter().any(|word| text.contains(word)) {
        return true;
    }
    // The object of a neighbour is its address, of a link its name, of a route its destination.
    let object = cause.object.split(' ').next().unwrap_or_default();
    words.is_empty() && !object.is_empty() && text.contains(object)
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
    use crate::finding::Family;

    fn listed(findings: Vec<Finding>) -> Vec<String> {
        let line = |cause: &Explained| {
            let explains: Vec<&str> = cause.explains.iter().map(|one| one.id).collect();
            format!("{} {}: {}", cause.finding.id, cause.finding.object, explains.join(" "))
        };
        sort(findings, &Scene::default()).causes.iter().map(line).collect()
    }

    fn silent(id: &str) -> Finding {
        Finding::error("outside-silent", id, "no answer")
            .hits(id)
            .breaks(WayKind::Outside, Some(Family::V4))
    }

    #[test]
    fn it_is_known_how_deep_each_finding_lies() {
        let ids = crate::rules::RULES.iter().flat_map(|rule| rule.ids);
        let missing: Vec<&&str> = ids.filter(|id| depth(id) == DEPTHS.len()).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn a_cause_explains_the_symptoms_of_the_ways_that_it_breaks() {
        let down = Finding::error("link-down", "up0", "up0 is down")
            .breaks(WayKind::Outside, Some(Family::V4));
        let route = Finding::error("no-default-route", "IPv4", "no default route");
        let names = Finding::error("nameserver-silent", "192.0.2.53", "silent")
            .hits("c1")
            .breaks(WayKind::Names, Some(Family::V4));
        assert_eq!(
            listed(vec![silent("c1"), silent("c2"), names, route, down.clone()]),
            ["link-down up0: no-default-route nameserver-silent outside-silent outside-silent"]
        );
        let six = Finding { breaks: Vec::new(), ..down }.breaks(WayKind::Outside, Some(Family::V6));
        assert_eq!(listed(vec![silent("c1"), six]), ["link-down up0: ", "outside-silent c1: "]);
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

    /// As it was written down at first: each is compared with all before it.
    fn joined_one_by_one(findings: Vec<Finding>) -> Vec<Finding> {
        fn extend<T: PartialEq>(all: &mut Vec<T>, more: Vec<T>) {
            for one in more {
                if !all.contains(&one) {
                    all.push(one);
                }
            }
        }
        let mut all: Vec<Finding> = Vec::new();
        for other in findings {
            let same =
                all.iter_mut().find(|one| one.id == other.id && one.object == other.object);
            match same {
                None => all.push(other),
                Some(one) => {
                    one.severity = one.severity.min(other.severity);
                    one.place = one.place.take().or(other.place);
                    one.whose = one.whose.take().or(other.whose);
                    extend(&mut one.seen, other.seen);
                    one.seen.truncate(SEEN);
                    extend(&mut one.hits, other.hits);
                    extend(&mut one.fix, other.fix);
                    extend(&mut one.breaks, other.breaks);
                }
            }
        }
        all
    }

    #[test]
    fn joining_keeps_order_and_whatever_is_different() {
        let finding = |number: usize| {
            let id = ["forward-dropped", "input-dropped"][number % 2];
            let says = format!("it is number {number}");
            let object = format!("rule {}", number % 5);
            let finding = match number % 3 {
                0 => Finding::warning(id, object, says),
                _ => Finding::error(id, object, says),
            };
            let finding = (0..number % 7).fold(finding, |one, line| {
                one.seen(format!("line {}", line + number % 11)).fix(format!("fix {line}"))
            });
            let finding = match number % 4 {
                3 => finding.at(format!("place {number}")).of("somebody"),
                _ => finding,
            };
            let family = [None, Some(Family::V4), Some(Family::V6)][number % 3];
            // The first one of a group may have something twice.
            let id = format!("c{}", number % 13);
            finding.hits(id.clone()).hits(id).breaks(WayKind::Outside, family)
        };
        let all: Vec<Finding> = (0..200).map(finding).collect();
        assert_eq!(joined(all.clone()), joined_one_by_one(all));
    }

    /// If each were compared with all before it, this test would take very long.
    #[test]
    fn many_containers_are_joined() {
        const MANY: usize = 20_000;
        let of_all = |number: usize| {
            Finding::error("forward-dropped", "ip filter/FORWARD rule 1", "dropped")
                .hits(format!("container {number}"))
        };
        let of_one = |number: usize| {
            let object = format!("container {number}");
            Finding::error("loopback-down", object.clone(), "down").hits(object)
        };
        let all: Vec<Finding> = (0..MANY).map(of_all).chain((0..MANY).map(of_one)).collect();
        let found = joined(all);
        assert_eq!((found.len(), found[0].hits.len()), (MANY + 1, MANY));
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
            .breaks(WayKind::Outside, Some(Family::V4));
        assert_eq!(all(vec![silent("c1"), down]), (vec!["link-down"], 1, 0));
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
