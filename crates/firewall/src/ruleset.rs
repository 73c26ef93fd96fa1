//! Packet filters of a namespace as data of a scene, which the crate `diagnose` judges.
//!
//! [`read`] reads all of them, and `of_base_chain` what one base chain may ask.

mod steps;
mod xtables;

use std::collections::{BTreeMap, BTreeSet};

use diagnose::model::filter::{
    Base, Chain, Element, Family, Hook, MapTo, Ruleset, Set, Step, Table, Verdict,
};
use kernel::netlink::NetlinkError;
use kernel::nft::{
    ChainInfo, Element as KernelElement, ElementData, Family as KernelFamily, Hook as KernelHook,
    HookPoint, KeyType, NftSocket, Policy, RangeEnd, RuleInfo, SetInfo, TableInfo,
};

/// How much of a rule set is read.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Rules of all tables.
    pub rules: usize,
    /// Elements of all sets.
    pub elements: usize,
    /// Elements of one set.
    pub of_one_set: usize,
}

/// The node's own: more than the largest clusters' kube-proxy writes.
pub const NODE: Limits = Limits { rules: 60_000, elements: 120_000, of_one_set: 60_000 };

/// A container's: its user may write any number of rules.
pub const CONTAINER: Limits = Limits { rules: 2_000, elements: 4_000, of_one_set: 2_000 };

/// Why a rule set was not read.
#[derive(Debug)]
pub enum ReadFault {
    /// It could not be.
    Failed(NetlinkError),
    /// It changed while it was read, twice. This is what was read last.
    Changed(Ruleset),
}

/// Reads the rule set of the calling thread's namespace.
///
/// # Errors
/// [`ReadFault`].
pub fn read(limits: Limits) -> Result<Ruleset, ReadFault> {
    let mut socket = NftSocket::open().map_err(ReadFault::Failed)?;
    let (ruleset, changed) = once(&mut socket, limits).map_err(ReadFault::Failed)?;
    if !changed {
        return Ok(ruleset);
    }
    match once(&mut socket, limits).map_err(ReadFault::Failed)? {
        (ruleset, false) => Ok(ruleset),
        (ruleset, true) => Err(ReadFault::Changed(ruleset)),
    }
}

/// Reads it once. Says also whether it changed meanwhile.
fn once(socket: &mut NftSocket, limits: Limits) -> Result<(Ruleset, bool), NetlinkError> {
    let before = socket.generation()?;
    let infos = socket.tables(None)?;
    let mut ruleset = Ruleset::default();
    if !infos.is_empty() {
        let mut reader = Reader { socket: &mut *socket, left: limits, left_out: Vec::new() };
        let chains = reader.socket.chains(None)?;
        for info in &infos {
            ruleset.tables.push(reader.table(info, &chains)?);
        }
        ruleset.left_out = reader.left_out;
    }
    let changed = socket.generation()? != before;
    Ok((ruleset, changed))
}

/// How many chains are read of those that a base chain leads to. A node's usual rules have a dozen;
/// what is not read may hold any rule.
const CHAINS: usize = 64;

/// How much is read of what one base chain may ask. Plugins read it, so it is less than
/// [`NODE`]'s.
const OF_ONE_CHAIN: Limits = Limits { rules: 4_000, elements: 8_000, of_one_set: 4_000 };

/// Reads what a base chain may ask: `rules`, which are its own, the chains that these lead to, and
/// the sets that they look up. The table has no other base chain. Rules that `skipped` picks are
/// left out. What is beyond the limits is left out too, and a walk does not know it then.
pub(crate) fn of_base_chain(
    socket: &mut NftSocket,
    info: &ChainInfo,
    rules: Vec<RuleInfo>,
    skipped: impl Fn(&RuleInfo) -> bool,
) -> Result<Table, NetlinkError> {
    let mut reader = Reader { socket, left: OF_ONE_CHAIN, left_out: Vec::new() };
    let table = &info.table;
    let known = reader.socket.sets(table)?;
    let (mut chains, mut sets) = (Vec::<Chain>::new(), Vec::<Set>::new());
    let mut wanted = vec![(info.name.clone(), Some(rules))];
    let mut next = 0;
    while let Some((name, own)) = wanted.get_mut(next) {
        let (name, own) = (name.clone(), own.take());
        next += 1;
        let rules = match own {
            Some(rules) => rules,
            None if CHAINS < next || reader.left.rules == 0 => break,
            None => reader.socket.rules(table, &name)?,
        };
        reader.left.rules = reader.left.rules.saturating_sub(rules.len());
        let mut read = Vec::with_capacity(rules.len());
        for rule in rules.iter().filter(|rule| !skipped(rule)) {
            let (rule, made_up) = steps::rule(rule);
            read.push(rule);
            sets.extend(made_up);
        }
        let chain = Chain { name, base: None, rules: read };
        let looked_up = looked_up(std::slice::from_ref(&chain));
        for set in known.iter().filter(|set| looked_up.contains(&set.name)) {
            if sets.iter().all(|read| read.name != set.name) {
                sets.push(reader.set(set)?);
            }
        }
        for target in targets(&chain, &sets) {
            if wanted.iter().all(|(known, _)| known != target) {
                wanted.push((target.to_owned(), None));
            }
        }
        chains.push(chain);
    }
    if let Some(first) = chains.first_mut() {
        first.base = info.hook.as_ref().map(|hook| base(hook, None));
    }
    Ok(Table {
        family: family(table.family),
        name: table.name.clone(),
        dormant: false,
        chains,
        sets,
    })
}

/// Lists the chains that a chain's rules, and the maps that they look up, lead to.
fn targets<'t>(chain: &'t Chain, sets: &'t [Set]) -> Vec<&'t str> {
    let mut found = Vec::new();
    let mut add = |verdict: &'t Verdict| match verdict {
        Verdict::Jump(name) | Verdict::Goto(name) => found.push(name.as_str()),
        _ => {}
    };
    for step in chain.rules.iter().flat_map(|rule| &rule.steps) {
        match step {
            Step::Verdict(verdict) => add(verdict),
            Step::Lookup { set, to: Some(MapTo::Verdict), .. } => {
                let map = sets.iter().filter(|known| known.name == *set);
                map.flat_map(|map| &map.elements)
                    .filter_map(|element| element.verdict.as_ref())
                    .for_each(&mut add);
            }
            _ => {}
        }
    }
    found
}

struct Reader<'s> {
    socket: &'s mut NftSocket,
    left: Limits,
    left_out: Vec<String>,
}

impl Reader<'_> {
    fn table(&mut self, info: &TableInfo, chains: &[ChainInfo]) -> Result<Table, NetlinkError> {
        let table = &info.table;
        let (rules, more) = self.socket.some_rules_of_table(table, self.left.rules)?;
        self.left.rules = self.left.rules.saturating_sub(rules.len());
        if more {
            let read = rules.len();
            self.left_out.push(format!("table {table}: all rules but the first {read}"));
        }
        let mut sets = Vec::new();
        let mut by_chain = by_chain(&rules, &mut sets);
        let mut read = Vec::new();
        for chain in chains.iter().filter(|chain| chain.table == *table) {
            read.extend(of_devices(chain, by_chain.remove(&chain.name).unwrap_or_default()));
        }
        let looked_up = looked_up(&read);
        for set in self.socket.sets(table)? {
            if looked_up.contains(&set.name) {
                sets.push(self.set(&set)?);
            }
        }
        Ok(Table {
            family: family(table.family),
            name: table.name.clone(),
            dormant: info.is_dormant(),
            chains: read,
            sets,
        })
    }

    fn set(&mut self, info: &SetInfo) -> Result<Set, NetlinkError> {
        let limit = self.left.of_one_set.min(self.left.elements);
        let found = self.socket.some_elements(&info.table, &info.name, limit)?;
        self.left.elements = self.left.elements.saturating_sub(found.elements.len());
        if found.more {
            self.left_out.push(format!(
                "set {} {}: all elements but {}",
                info.table,
                info.name,
                found.elements.len()
            ));
        }
        let parts = parts(info);
        Ok(Set {
            name: info.name.clone(),
            elements: found.elements.into_iter().map(|one| element(one, &parts)).collect(),
            // The value for all other keys is not among the elements.
            truncated: found.more || found.for_others,
        })
    }
}

/// Sorts rules by their chains, in order.
fn by_chain(
    rules: &[RuleInfo],
    sets: &mut Vec<Set>,
) -> BTreeMap<String, Vec<diagnose::model::filter::Rule>> {
    let mut found: BTreeMap<String, Vec<diagnose::model::filter::Rule>> = BTreeMap::new();
    for info in rules {
        let (rule, made_up) = steps::rule(info);
        sets.extend(made_up);
        match found.get_mut(&info.chain) {
            Some(chain) => chain.push(rule),
            None => {
                found.insert(info.chain.clone(), vec![rule]);
            }
        }
    }
    found
}

/// Returns the chain; if it sees the packets of several links, once for each.
fn of_devices(info: &ChainInfo, rules: Vec<diagnose::model::filter::Rule>) -> Vec<Chain> {
    let chain = |device: Option<&String>, rules| Chain {
        name: info.name.clone(),
        base: info.hook.as_ref().map(|hook| base(hook, device)),
        rules,
    };
    match info.devices.as_slice() {
        [] => vec![chain(None, rules)],
        several => several.iter().map(|device| chain(Some(device), rules.clone())).collect(),
    }
}

fn base(hook: &KernelHook, device: Option<&String>) -> Base {
    Base {
        hook: point(hook.point),
        priority: hook.priority,
        kind: hook.kind.name().to_owned(),
        drops: hook.policy == Some(Policy::Drop),
        device: device.cloned(),
    }
}

/// Returns the names of the sets that rules look up.
fn looked_up(chains: &[Chain]) -> BTreeSet<String> {
    let steps = chains.iter().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.steps);
    cni::order::gather(steps.filter_map(|step| match step {
        Step::Lookup { set, .. } => Some(set.clone()),
        _ => None,
    }))
}

/// Returns how long the parts of a set's concatenated keys are; none if its keys have one part.
fn parts(info: &SetInfo) -> Vec<u32> {
    if !info.fields.is_empty() {
        return info.fields.clone();
    }
    match info.key.as_deref() {
        None | Some([] | [_]) => Vec::new(),
        Some(several) => {
            let size = |kind: &KeyType| u32::try_from(kind.size()).unwrap_or_default();
            several.iter().map(size).collect()
        }
    }
}

fn element(one: KernelElement, parts: &[u32]) -> Element {
    let (data, verdict) = match one.data {
        None => (None, None),
        Some(ElementData::Value(value)) => (Some(value.bytes().to_vec()), None),
        Some(ElementData::Verdict(said)) => (None, steps::verdict(&said)),
    };
    let last = one.end.map(|end| match end {
        RangeEnd::Single(key) | RangeEnd::Concatenated(key) => key.bytes().to_vec(),
    });
    Element { first: one.key.bytes().to_vec(), last, parts: parts.to_vec(), data, verdict }
}

fn family(family: KernelFamily) -> Family {
    match family {
        KernelFamily::Inet => Family::Inet,
        KernelFamily::Ip => Family::Ip,
        KernelFamily::Ip6 => Family::Ip6,
        KernelFamily::Arp => Family::Arp,
        KernelFamily::Bridge => Family::Bridge,
        KernelFamily::Netdev => Family::Netdev,
    }
}

fn point(point: HookPoint) -> Hook {
    match point {
        HookPoint::Prerouting => Hook::Prerouting,
        HookPoint::Input => Hook::Input,
        HookPoint::Forward => Hook::Forward,
        HookPoint::Output => Hook::Output,
        HookPoint::Postrouting => Hook::Postrouting,
        HookPoint::Ingress => Hook::Ingress,
        HookPoint::Egress => Hook::Egress,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use diagnose::model::filter::Verdict;
    use kernel::nft::{Key, Value, Verdict as KernelVerdict};

    use super::*;

    #[test]
    fn elements_keep_their_ends_and_what_they_map_to() {
        let address = |last| Value::Ipv4(Ipv4Addr::new(192, 0, 2, last));
        let single = KernelElement::range(address(1), address(9));
        let mapped = element(single, &[]);
        assert_eq!((mapped.first, mapped.last), (vec![192, 0, 2, 1], Some(vec![192, 0, 2, 9])));
        let key = Key::of([Value::IfName("br0".into()), address(1)]);
        let jump = KernelElement::verdict(key, KernelVerdict::Jump("c".into()));
        let mapped = element(jump, &[16, 4]);
        assert_eq!((mapped.first.len(), mapped.parts), (20, vec![16, 4]));
        assert_eq!((mapped.data, mapped.verdict), (None, Some(Verdict::Jump("c".into()))));
        let value = KernelElement::value(address(1), address(2));
        assert_eq!(element(value, &[]).data, Some(vec![192, 0, 2, 2]));
    }
}
