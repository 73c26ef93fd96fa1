//! Everything that is compared, as texts by name.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use testkit::Snapshot;

use super::names::Names;
use super::world::{CallOutcome, World};

/// The sections of a container's snapshot that belong to the host.
const HOSTS: [&str; 2] = ["mounts", "files"];

/// Files of the harness.
const OWN_FILES: &str = "/run/netns";

/// Where `tuning` keeps the values from before it.
const BACKUPS: &str = "/run/cni/tuning/";

/// The value of an object that has properties.
const THERE: &str = "there";

/// An observation of a host, its containers and the plugins' answers.
#[derive(Debug)]
pub(super) struct Observation {
    pub(super) facts: BTreeMap<String, String>,
}

/// The state of a host and of its containers.
#[derive(Debug)]
pub(super) struct WorldState {
    host: Snapshot,
    containers: Vec<Snapshot>,
}

impl WorldState {
    pub(super) fn of(world: &World<'_>) -> Self {
        Self {
            host: Snapshot::take(&world.node.lab),
            containers: world.containers.iter().map(Snapshot::of).collect(),
        }
    }

    /// Returns the differences, as [`Snapshot::diff`] does.
    pub(super) fn diff(&self, after: &Self) -> Vec<String> {
        let containers = self.containers.iter().zip(&after.containers);
        let mut lines = self.host.diff(&after.host);
        lines.extend(containers.flat_map(|(before, after)| before.diff(after)));
        lines
    }
}

impl Observation {
    /// Observes everything.
    pub(super) fn of(world: &World<'_>) -> Self {
        Self::made(world, &WorldState::of(world))
    }

    /// Makes an observation of what was seen.
    pub(super) fn made(world: &World<'_>, WorldState { host, containers }: &WorldState) -> Self {
        let names = Names::of(world, host, containers);
        let mut facts = BTreeMap::new();
        for (container, added) in world.containers.iter().zip(&world.added) {
            answer(&mut facts, &names, &format!("result {}", container.name()), added);
        }
        if world.said.iter().any(|(call, _)| call.starts_with("DEL")) {
            // These facts were compared after ADD.
            facts.clear();
        }
        for (call, ended) in &world.said {
            answer(&mut facts, &names, call, ended);
        }
        snapshot(&mut facts, &names, "host", host, &[]);
        for (container, seen) in world.containers.iter().zip(containers) {
            snapshot(&mut facts, &names, container.name(), seen, &HOSTS);
        }
        Self { facts }
    }

    /// Observes only how the last calls ended; their answers contain no names.
    pub(super) fn of_answers(world: &World<'_>) -> Self {
        let mut facts = BTreeMap::new();
        for (call, ended) in &world.said {
            answer(&mut facts, &Names::default(), call, ended);
        }
        Self { facts }
    }

    /// The links that only this observation has.
    pub(super) fn lone_links<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a str> {
        let here = self.facts.iter().filter(|(_, value)| *value == THERE).map(|(key, _)| key);
        let lone = here.filter(|key| !other.facts.contains_key(*key));
        lone.filter_map(|key| key.split_once(" links ").map(|(_, link)| link))
    }

    /// The nftables tables that only this observation has, as ` FAMILY NAME `.
    pub(super) fn lone_tables<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = String> + 'a {
        let lone = self.facts.keys().filter(|key| !other.facts.contains_key(*key));
        lone.filter_map(|key| Some(format!(" {} ", key.split_once(" nftables table ")?.1)))
    }

    /// Whether a fact is a property of an object that only one of the two has.
    pub(super) fn is_part(&self, other: &Self, key: &str) -> bool {
        let whole = key.match_indices('.').map(|(at, _)| &key[..at]);
        whole.into_iter().any(|whole| {
            let here = self.facts.get(whole).is_some_and(|value| value == THERE);
            let there = other.facts.get(whole).is_some_and(|value| value == THERE);
            here != there
        })
    }
}

/// How a call ended. An error counts only as such: other tests compare the texts.
fn answer(facts: &mut BTreeMap<String, String>, names: &Names, name: &str, ended: &CallOutcome) {
    match ended {
        Ok(value) => {
            facts.insert(format!("{name} ends"), "well".to_owned());
            flatten(facts, &|text| names.replace(text), name, value);
        }
        Err(_) => {
            facts.insert(format!("{name} ends"), "with an error".to_owned());
        }
    }
}

fn snapshot(
    facts: &mut BTreeMap<String, String>,
    names: &Names,
    place: &str,
    snapshot: &Snapshot,
    without: &[&str],
) {
    for (section, name, value) in snapshot.facts() {
        let own = name.starts_with(OWN_FILES);
        if without.contains(&section) || own || (section == "nftables" && of_iptables(name)) {
            continue;
        }
        let name = if section == "iptables" { &with_sorted_ports(name) } else { name };
        let key = names.replace(&format!("{place} {section} {name}"));
        match serde_json::from_str::<Value>(value) {
            Ok(value @ Value::Object(_)) if section != "nftables" => {
                flatten(facts, &|text| names.replace(text), &key, &value);
                facts.insert(key, THERE.to_owned());
            }
            _ => {
                // Backups of random addresses: only their size is comparable.
                let random = section == "files" && name.starts_with(BACKUPS);
                let value = if random { before(value, ", hash") } else { value };
                facts.insert(key, names.replace(value));
            }
        }
    }
}

/// Sorts the ports of a rule of iptables, each once. The reference's order is random.
fn with_sorted_ports(rule: &str) -> String {
    let Some((start, rest)) = rule.split_once(" --dports ") else { return rule.to_owned() };
    let (ports, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let ports: BTreeSet<&str> = ports.split(',').collect();
    let ports: Vec<&str> = ports.into_iter().collect();
    format!("{start} --dports {} {rest}", ports.join(","))
}

fn before<'t>(text: &'t str, mark: &str) -> &'t str {
    text.split_once(mark).map_or(text, |(before, _)| before)
}

/// Whether an nftables object is in a table of iptables', which shows it too.
fn of_iptables(name: &str) -> bool {
    let words: Vec<&str> = name.split(' ').collect();
    let [_, "ip" | "ip6", table, ..] = words[..] else { return false };
    ["filter", "nat", "mangle", "raw", "security"].contains(&table)
}

/// One fact for each value: `NAME a.b[0]`.
fn flatten(
    facts: &mut BTreeMap<String, String>,
    replace: &dyn Fn(&str) -> String,
    name: &str,
    value: &Value,
) {
    match value {
        Value::Object(map) => {
            let dot = if name.contains(' ') && !name.ends_with(' ') { "." } else { "" };
            for (key, inner) in map {
                flatten(facts, replace, &format!("{name}{dot}{key}"), inner);
            }
        }
        Value::Array(items) if items.iter().all(Value::is_string) => {
            let items: Vec<_> = items.iter().filter_map(Value::as_str).collect();
            facts.insert(name.to_owned(), replace(&items.join(" ")));
        }
        Value::Array(items) => {
            for (at, inner) in items.iter().enumerate() {
                flatten(facts, replace, &format!("{name}[{at}]"), inner);
            }
        }
        Value::String(text) => {
            facts.insert(name.to_owned(), replace(text));
        }
        Value::Null => {}
        other => {
            facts.insert(name.to_owned(), other.to_string());
        }
    }
}
