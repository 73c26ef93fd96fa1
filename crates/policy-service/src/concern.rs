//! Which connections a change may forbid.

use std::collections::BTreeSet;
use std::net::IpAddr;

use policy::program::{Element, End, Line, LineAction, Match, OWN_NODE, Set};
use policy::{Name, Program, Step};

/// The addresses whose connections are to be judged again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Concern {
    /// Addresses of pods of this node: all their connections.
    pub(super) local: BTreeSet<IpAddr>,
    /// Addresses of other pods: their connections with pods of this node.
    pub(super) others: BTreeSet<IpAddr>,
}

impl Concern {
    /// Returns what concerns everything that a program judges.
    pub(super) fn all(program: &Program) -> Self {
        let local = program.verdicts.keys().map(|(_, address)| *address).collect();
        Concern { local, others: BTreeSet::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.local.is_empty() && self.others.is_empty()
    }

    /// Adds another one.
    pub(super) fn add(&mut self, more: Concern) {
        self.local.extend(more.local);
        self.others.extend(more.others);
    }

    /// Reports whether the connection between two addresses is to be judged.
    pub(super) fn has(&self, ends: [IpAddr; 2]) -> bool {
        ends.iter().any(|end| self.local.contains(end) || self.others.contains(end))
    }

    /// Returns what steps concern that have led to a program.
    pub(super) fn of(steps: &[Step], program: &Program) -> Self {
        let mut concern = Concern::default();
        let mut chains: BTreeSet<&Name> = BTreeSet::new();
        for step in steps {
            match step {
                Step::Verdict { address, chain: Some(_), .. } => {
                    concern.local.insert(*address);
                }
                Step::Link { link, chain: Some(_), .. } => {
                    concern.local.insert(link.address);
                }
                Step::AddElement { element, .. } | Step::RemoveElement { element, .. } => {
                    let (Element::Address(address) | Element::Port(address, ..)) = element;
                    concern.others.insert(*address);
                }
                // Nothing has judged before what these pods send to the node.
                Step::PutChain { name, lines, new: true } if name == OWN_NODE => {
                    concern.local.extend(sources(lines, program));
                }
                // Another new one stands below one that has changed.
                Step::PutChain { name, new: false, .. } => {
                    chains.insert(name);
                }
                // A pod that policies no longer judge may make any connection.
                _ => {}
            }
        }
        concern.local.extend(addresses_at(&chains, program));
        concern
    }
}

/// Returns the addresses of which these lines ask whether a packet comes from there.
fn sources(lines: &[Line], program: &Program) -> BTreeSet<IpAddr> {
    let mut all = BTreeSet::new();
    for wanted in lines.iter().flat_map(|line| &line.matches) {
        if let Match::Address { end: End::Source, set, .. } = wanted
            && let Some(Set::Addresses(addresses)) = program.sets.get(set)
        {
            all.extend(addresses);
        }
    }
    all
}

/// Returns the addresses that lead to one of these chains, or to one above it.
fn addresses_at<'p>(
    chains: &BTreeSet<&'p Name>,
    program: &'p Program,
) -> impl Iterator<Item = IpAddr> + use<'p> {
    let mut above = chains.clone();
    loop {
        let before = above.len();
        if before == 0 {
            break;
        }
        for (name, lines) in &program.chains {
            let jumps =
                |then: &LineAction| matches!(then, LineAction::Jump(to) if above.contains(to));
            if lines.iter().any(|line| jumps(&line.then)) {
                above.insert(name);
            }
        }
        if above.len() == before {
            break;
        }
    }
    let verdicts = program.verdicts.iter().filter(move |(_, chain)| above.contains(chain));
    verdicts.map(|((_, address), _)| *address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use policy::{Direction, IpFamily};

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn jump(to: &str) -> Vec<Line> {
        vec![Line { matches: Vec::new(), then: LineAction::Jump(to.to_owned()) }]
    }

    #[test]
    fn a_chain_concerns_those_above_it() {
        let mut program = Program::empty();
        program.chains.insert("ci-1".to_owned(), jump("ai-1"));
        program.chains.insert("ci-2".to_owned(), jump("pi-2"));
        program.chains.insert("ai-1".to_owned(), jump("pi-1"));
        for (chain, pod) in [("ci-1", "10.0.0.1"), ("ci-2", "10.0.0.2")] {
            program.verdicts.insert((Direction::Ingress, address(pod)), chain.to_owned());
        }
        let put = |name: &str, new| {
            let steps = [Step::PutChain { name: name.to_owned(), lines: Vec::new(), new }];
            Concern::of(&steps, &program).local.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(put("pi-1", false), [address("10.0.0.1")]);
        assert_eq!(put("ci-2", false), [address("10.0.0.2")]);
        assert_eq!(put("pi-1", true), [""; 0].map(address));
        assert_eq!(Concern::all(&program).local.len(), 2);
    }

    #[test]
    fn the_chain_of_the_node_itself_concerns_the_pods_that_meet_it() {
        let end =
            |end, set: &str| Match::Address { end, family: IpFamily::V4, set: set.to_owned() };
        let matches = vec![end(End::Source, "from4-1"), end(End::Destination, "own4-node")];
        let lines = vec![Line { matches, then: LineAction::Jump("cn-1".to_owned()) }];
        let mut program = Program::empty();
        for (set, at) in [("from4-1", "10.0.0.1"), ("own4-node", "192.0.2.1")] {
            let all = Set::Addresses(BTreeSet::from([address(at)]));
            program.sets.insert(set.to_owned(), all);
        }
        let put = |new| {
            let steps = [Step::PutChain { name: OWN_NODE.to_owned(), lines: lines.clone(), new }];
            Concern::of(&steps, &program)
        };
        assert_eq!(put(true).local, BTreeSet::from([address("10.0.0.1")]));
        assert!(put(false).is_empty());
    }

    #[test]
    fn elements_concern_their_addresses() {
        let element = Element::Address(address("10.0.0.9"));
        let steps = [
            Step::AddSet { name: "sel4-1".to_owned(), set: Set::Addresses(BTreeSet::new()) },
            Step::RemoveElement { set: "sel4-1".to_owned(), element },
            Step::Verdict {
                direction: Direction::Egress,
                address: address("10.0.0.1"),
                before: Some("co-1".to_owned()),
                chain: None,
            },
        ];
        let concern = Concern::of(&steps, &Program::empty());
        assert!(concern.local.is_empty(), "an address that is judged no more");
        assert!(concern.has([address("10.0.0.5"), address("10.0.0.9")]));
        assert!(!concern.has([address("10.0.0.5"), address("10.0.0.1")]));
    }
}
