//! What pods of this node may send to the node itself.
//!
//! NetworkPolicies and the isolation of namespaces leave a pod's own node alone.
//! ClusterNetworkPolicies decide about it by their egress rules to nodes and networks. The pods to
//! which the same of these policies apply are one set of addresses for each family. The base chain
//! leads packets from there to the node's addresses to the chains of these policies. It is there as
//! long as there is such a pod.
//!
//! The addresses are those of the Node's status: by all local addresses, a rule to `0.0.0.0/0`
//! would close the node's cache of names. An address of the Node that its host does not have is a
//! peer like others, since packets to it are forwarded. A map from address to class, as for
//! forwarded packets, would save look-ups, but plugins would have to close and forget a third
//! verdict of each address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::lines::{self, CompiledLines};
use super::sets::changed;
use super::{ChainTarget, Class, Compiler, class_hash, names};
use crate::policy::{Direction, Policy, PolicyId};
use crate::program::{Element, End, Line, LineAction, Match, Name, OWN_NODE, Set, Step};
use net::IpFamily;

/// What there is about this node.
#[derive(Debug, Default)]
struct NodeRules {
    chains: BTreeMap<Name, Vec<Line>>,
    sets: BTreeMap<Name, BTreeSet<IpAddr>>,
}

impl Compiler {
    /// Writes what there is about this node, as its pods and their policies are now.
    pub(super) fn write_own_node(&mut self) {
        let NodeRules { chains, sets } = self.own_node();
        for (name, now) in &sets {
            match self.program.sets.get(name) {
                Some(Set::Addresses(there)) => {
                    let there = there.clone();
                    for (address, comes) in changed(&there, now) {
                        self.emit_element(name.clone(), Element::Address(*address), comes);
                    }
                }
                _ => {
                    let set = Set::Addresses(now.clone());
                    self.emit(Step::AddSet { name: name.clone(), set });
                }
            }
        }
        let names: BTreeSet<Name> = chains.keys().cloned().collect();
        for (name, lines) in chains {
            self.put_chain(name, lines);
        }
        let before = std::mem::replace(&mut self.own_chains, names);
        self.stale.extend(before.difference(&self.own_chains).cloned());
        let before = std::mem::replace(&mut self.own_sets, sets.into_keys().collect());
        let gone: Vec<Name> = before.difference(&self.own_sets).cloned().collect();
        for name in gone {
            self.emit(Step::RemoveSet { name });
        }
    }

    fn own_node(&self) -> NodeRules {
        let mut own = NodeRules::default();
        let used =
            self.policies.iter().filter(|((direction, _), _)| *direction == Direction::Egress);
        let say = used.filter_map(|((_, id), policy)| Some((id, policy.own.as_ref()?)));
        let deciding: BTreeMap<&PolicyId, &CompiledLines> =
            say.filter(|(_, own)| !own.lines.is_empty()).collect();
        let Some(node) = self.world.node(&self.node).filter(|_| !deciding.is_empty()) else {
            return own;
        };
        let classes = self.own_classes(&deciding);
        let mut base = Vec::new();
        for (class, pods) in &classes {
            let hash = class_hash(&self.salt, class);
            let policy = |id| Some((self.world.policy(id)?, *deciding.get(id)?));
            let mut policies: Vec<(&Policy, &CompiledLines)> =
                class.iter().filter_map(policy).collect();
            policies.sort_by_key(|(policy, _)| policy.order());
            own.chains.extend(lines::own_class(&hash, &policies));
            for family in IpFamily::ALL {
                let from = names::own_pods(family, &hash);
                let is = |end, set| Match::Address { end, family, set };
                base.push(Line {
                    matches: vec![
                        is(End::Source, from.clone()),
                        is(End::Destination, names::own_addresses(family)),
                    ],
                    then: LineAction::Jump(names::own_class(&hash)),
                });
                own.sets.insert(from, of_family(pods, family));
            }
        }
        if !base.is_empty() {
            own.chains.insert(OWN_NODE.to_owned(), base);
            for family in IpFamily::ALL {
                own.sets.insert(names::own_addresses(family), of_family(&node.addresses, family));
            }
        }
        own
    }

    /// Returns the addresses of this node's pods by the policies that decide about the node.
    fn own_classes(
        &self,
        deciding: &BTreeMap<&PolicyId, &CompiledLines>,
    ) -> BTreeMap<Class, BTreeSet<IpAddr>> {
        let mut classes: BTreeMap<Class, BTreeSet<IpAddr>> = BTreeMap::new();
        for ((direction, address), leads) in &self.leads {
            let (Direction::Egress, ChainTarget::Class(class)) = (direction, leads) else {
                continue;
            };
            let own = class.iter().filter(|id| deciding.contains_key(id)).cloned();
            let own: Vec<PolicyId> = own.collect();
            if !own.is_empty() {
                classes.entry(own.into()).or_default().insert(*address);
            }
        }
        classes
    }
}

fn of_family<'a>(
    addresses: impl IntoIterator<Item = &'a IpAddr>,
    family: IpFamily,
) -> BTreeSet<IpAddr> {
    addresses.into_iter().copied().filter(|address| IpFamily::of(*address) == family).collect()
}
