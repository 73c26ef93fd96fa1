//! The rules of many policies as few lines.
//!
//! Of rules that are asked one after the other and do the same, the order does not matter. So those
//! with the same ports become one: its peers are the peers of all of them. Many selectors of pods
//! become one set of the pods that are in any of them. What a class costs the kernel then does not
//! grow with the number of policies: the kernel looks for the name of a set in a list of all sets of
//! the table (linux net/netfilter/nf_tables_api.c `nft_set_lookup`), so thousands of sets take it
//! minutes.

use std::collections::{BTreeMap, BTreeSet};

use super::lines::{CompiledLines, Lines, SetSubject};
use super::names;
use crate::labels::Selector;
use crate::policy::{Action, Block, Direction, Peer, PodSet, Policy, Ports, Rule, Tier};
use crate::program::Name;
use net::IpFamily;

/// Policies whose rules name more peers than this are merged, and more selectors than this are one
/// set. Fewer keep the chains and sets that other classes share with them.
const FEW: usize = 8;

/// The most different lists of ports that the rules with peers may have, of the policies that select
/// one pod. Each needs a line and a set of its own for each family.
pub const MOST_LISTS: usize = 256;

/// Reports whether the rules of these policies name so many peers that they are merged.
pub(crate) fn are_many(policies: &[&Policy], direction: Direction) -> bool {
    let peers = |rule: &Rule| rule.peers.as_ref().map_or(1, Vec::len);
    FEW < rules(policies, direction).map(peers).sum()
}

/// Reports whether the rules with peers have more different lists of ports than a node enforces for
/// one pod ([`MOST_LISTS`]): then it closes the pod.
///
/// `asked` are the policies that are asked about a pod, in their order.
#[must_use]
pub fn too_many_lists(asked: &[&Policy], direction: Direction) -> bool {
    let is_final = asked.iter().any(|policy| policy.tier == Tier::Namespaced);
    let tiers = [Tier::Admin, if is_final { Tier::Namespaced } else { Tier::Baseline }];
    let lists = |tier: Tier| -> usize {
        let of_tier = asked.iter().filter(|policy| policy.tier == tier);
        let rules = of_tier.flat_map(|policy| policy.rules(direction).unwrap_or_default());
        let (mut action, mut run, mut lists) = (None, 0_usize, BTreeSet::new());
        for rule in rules {
            if action.replace(rule.action) != Some(rule.action) {
                run += 1;
            }
            if rule.peers.is_some() {
                lists.insert((run, &rule.ports));
            }
        }
        lists.len()
    };
    MOST_LISTS < tiers.into_iter().map(lists).sum()
}

/// Compiles the policies of one tier, in the order in which they are asked. `name` is that of the
/// chain in which the lines will stand.
pub(crate) fn compile(
    policies: &[&Policy],
    name: &Name,
    direction: Direction,
    salt: &str,
) -> CompiledLines {
    let mut compiled = CompiledLines::default();
    let mut number = 0;
    for Run { action, everybody, groups } in runs(policies, direction) {
        let of_everybody = everybody.into_iter().map(|ports| (ports, None));
        let of_groups = groups.into_iter().map(|(ports, peers)| (ports, Some(peers.about())));
        for (ports, about) in of_everybody.chain(of_groups) {
            let ports = ports.map(|all| all.into_iter().collect());
            let lines = Lines { action, about, ports };
            lines.write(names::part(name, number), direction, salt, &mut compiled);
            number += 1;
        }
    }
    compiled
}

/// A list of ports; `None` is all traffic.
type List<'a> = Option<BTreeSet<&'a Ports>>;

/// Rules that are asked one after the other and do the same.
struct Run<'a> {
    action: Action,
    /// The ports at which every peer is meant; `None` if no rule means every peer.
    everybody: Option<List<'a>>,
    /// The other peers, by their ports.
    groups: BTreeMap<List<'a>, Peers<'a>>,
}

/// The peers of rules with the same ports.
#[derive(Default)]
pub(super) struct Peers<'a> {
    pods: BTreeSet<&'a PodSet>,
    nodes: BTreeSet<&'a Selector>,
    blocks: BTreeMap<IpFamily, BTreeSet<Block>>,
}

fn rules<'a>(policies: &[&'a Policy], direction: Direction) -> impl Iterator<Item = &'a Rule> {
    policies.iter().flat_map(move |policy| policy.rules(direction).unwrap_or_default())
}

fn runs<'a>(policies: &[&'a Policy], direction: Direction) -> Vec<Run<'a>> {
    let mut runs: Vec<Run<'a>> = Vec::new();
    for rule in rules(policies, direction) {
        match runs.last_mut() {
            Some(run) if run.action == rule.action => run.add(rule),
            _ => {
                let (everybody, groups) = (None, BTreeMap::new());
                let mut run = Run { action: rule.action, everybody, groups };
                run.add(rule);
                runs.push(run);
            }
        }
    }
    runs
}

impl<'a> Run<'a> {
    fn add(&mut self, rule: &'a Rule) {
        let ports: List<'a> = rule.ports.as_ref().map(|all| all.iter().collect());
        match &rule.peers {
            Some(peers) => self.groups.entry(ports).or_default().add(peers),
            None => match (&mut self.everybody, ports) {
                (Some(Some(there)), Some(ports)) => there.extend(ports),
                (Some(None), _) => {}
                (everybody, ports) => *everybody = Some(ports),
            },
        }
    }
}

impl<'a> Peers<'a> {
    pub(super) fn of(peers: &'a [Peer]) -> Self {
        let mut all = Peers::default();
        all.add(peers);
        all
    }

    fn add(&mut self, peers: &'a [Peer]) {
        for peer in peers {
            match peer {
                Peer::Pods(set) => {
                    self.pods.insert(set);
                }
                Peer::Nodes(selector) => {
                    self.nodes.insert(selector);
                }
                Peer::Block(block) => {
                    self.blocks.entry(block.family()).or_default().insert(block.clone());
                }
            }
        }
    }

    /// Returns what the sets are about that they need.
    pub(super) fn about(self) -> Vec<SetSubject> {
        let pods = in_sets(self.pods).into_iter().map(SetSubject::Pods);
        let nodes = in_sets(self.nodes).into_iter().map(SetSubject::Nodes);
        let blocks = self.blocks.into_iter().map(|(family, all)| SetSubject::Blocks(family, all));
        pods.chain(nodes).chain(blocks).collect()
    }
}

/// Divides selectors: a few have a set each, which others share, and many have one set.
fn in_sets<T: Clone>(all: BTreeSet<&T>) -> Vec<Vec<T>> {
    let all = all.into_iter().cloned();
    match FEW < all.len() {
        true => vec![all.collect()],
        false => all.map(|one| vec![one]).collect(),
    }
}
