//! Nodes, containers that come and go on them, and an oracle that knows every assigned address.
//!
//! The file uses only the crate's public interface: the daemon's tests use it too, with real
//! stores.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use netwright_cluster_ipam::network::{NetworkSpec, RangeSpec};
use netwright_cluster_ipam::store::{Filter, Kind, Store};
use netwright_cluster_ipam::{Clock, Node, Reclaimer, Settings};
use node_api::ipam::{AssignRequest, Owner};

/// In how many rounds each node does its work.
const ROUNDS: usize = 5;
/// How long leases hold, by the world's clock.
const LEASE: Duration = Duration::from_secs(3600);

/// A clock that runs by itself, and faster on a test's request.
#[derive(Debug)]
struct WorldClock {
    began: Instant,
    more: Mutex<Duration>,
}

impl Clock for WorldClock {
    fn now(&self) -> Duration {
        self.began.elapsed() + *self.more.lock().unwrap()
    }

    fn pause(&self, _: Duration) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The size of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) nodes: usize,
    /// The ADDs of each node, each with its DEL.
    pub(crate) each: usize,
    pub(crate) threads: usize,
}

/// Which container has which address: the truth.
#[derive(Debug, Default)]
struct Oracle {
    given: BTreeMap<IpAddr, String>,
}

impl Oracle {
    fn gives(&mut self, address: IpAddr, to: &str) {
        if let Some(has) = self.given.insert(address, to.to_owned()) {
            assert_eq!(has, to, "{address} was given to {to} while {has} had it");
        }
    }

    fn takes(&mut self, address: IpAddr) {
        self.given.remove(&address);
    }
}

/// The nodes, the addresses and the time.
pub(crate) struct World {
    plan: Plan,
    _dir: tempfile::TempDir,
    clock: Arc<WorldClock>,
    nodes: Vec<(String, Arc<Node>)>,
    network: NetworkSpec,
    oracle: Mutex<Oracle>,
    times: Mutex<Vec<Duration>>,
    refused: Mutex<BTreeMap<String, usize>>,
    progress: AtomicUsize,
}

/// The nodes' names.
pub(crate) fn names(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|index| format!("node-{index:03}"))
}

impl World {
    /// Makes nodes, each with its view of the store.
    pub(crate) fn new(plan: Plan, store: impl Fn(&str) -> Arc<dyn Store>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(WorldClock { began: Instant::now(), more: Mutex::default() });
        let nodes = names(plan.nodes).map(|name| {
            let settings = Settings {
                lease: LEASE,
                idle: Duration::ZERO,
                ..Settings::new(&name, "boot", &format!("machine of {name}"))
            };
            let (store, clock) = (store(&name), Arc::clone(&clock) as Arc<dyn Clock>);
            let node = Node::open(&dir.path().join(&name), store, clock, settings).unwrap();
            (name, Arc::new(node))
        });
        let nodes = nodes.collect();
        let mut network = NetworkSpec::new("blue");
        // Just enough for all at once, in blocks of four, so that nodes compete.
        for text in ["10.0.0.0/20", "10.1.0.0-10.1.15.200/20", "2001:db8::/64"] {
            network.ranges.push(text.parse::<RangeSpec>().unwrap());
        }
        network.ranges[0].exclude = vec!["10.0.1.0/25".parse().unwrap()];
        (network.block_v4, network.block_v6) = (Some(30), Some(126));
        World {
            plan,
            _dir: dir,
            clock,
            nodes,
            network,
            oracle: Mutex::default(),
            times: Mutex::default(),
            refused: Mutex::default(),
            progress: AtomicUsize::new(0),
        }
    }

    /// Runs every node's containers; `meanwhile` gets the number of ADDs so far.
    pub(crate) fn run(&self, meanwhile: &(dyn Fn(usize) + Sync)) {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.plan.threads {
                scope.spawn(|| {
                    loop {
                        let index = next.fetch_add(1, Ordering::SeqCst);
                        // Round after round, so that all nodes run at once.
                        let (round, place) = (index / self.nodes.len(), index % self.nodes.len());
                        if ROUNDS <= round {
                            return;
                        }
                        self.round(round, place, meanwhile);
                    }
                });
            }
        });
    }

    fn round(&self, round: usize, place: usize, meanwhile: &(dyn Fn(usize) + Sync)) {
        let (name, node) = &self.nodes[place];
        let each = self.plan.each / ROUNDS;
        let mut here = Vec::new();
        for index in 0..each {
            let container = format!("{name}-{round}-{index}");
            meanwhile(self.progress.fetch_add(1, Ordering::SeqCst));
            if let Some(addresses) = self.add(node, &container) {
                here.push((container, addresses));
            }
            // Three containers live at once.
            if 3 < here.len() {
                let (container, addresses) = here.remove(0);
                self.del(node, &container, &addresses);
            }
        }
        let _ = node.tend();
        for (container, addresses) in here {
            self.del(node, &container, &addresses);
        }
        let _ = node.tend();
    }

    fn add(&self, node: &Node, container: &str) -> Option<Vec<IpAddr>> {
        let ask = AssignRequest {
            network: self.network.clone(),
            owner: owner(container),
            wanted: vec![],
        };
        // The test does what a runtime does: it repeats an ADD that failed temporarily, and undoes
        // one that failed permanently by DEL.
        for _ in 0..200 {
            let began = Instant::now();
            match node.assign(&ask) {
                Ok(assigned) => {
                    let addresses: Vec<IpAddr> =
                        assigned.iter().map(|one| one.address.addr()).collect();
                    self.times.lock().unwrap().push(began.elapsed());
                    let mut oracle = self.oracle.lock().unwrap();
                    for address in &addresses {
                        oracle.gives(*address, container);
                    }
                    return Some(addresses);
                }
                Err(refusal) => {
                    *self.refused.lock().unwrap().entry(refusal.msg).or_default() += 1;
                    let _ = node.sweep();
                }
            }
        }
        node.release(&owner(container)).unwrap();
        None
    }

    fn del(&self, node: &Node, container: &str, addresses: &[IpAddr]) {
        // From here on others may get it.
        let mut oracle = self.oracle.lock().unwrap();
        for address in addresses {
            oracle.takes(*address);
        }
        drop(oracle);
        node.release(&owner(container)).unwrap();
    }

    /// One node dies with its containers and is known to be gone; another one is given up while it
    /// lives, and comes back late.
    pub(crate) fn give_up_the_dead(&self, store: Arc<dyn Store>, gone: impl Fn(&str)) {
        let [dead, late] = [&self.nodes[0], &self.nodes[1]];
        let mut living = Vec::new();
        for (name, node) in [dead, late] {
            for index in 0..8 {
                let container = format!("{name}-last-{index}");
                let addresses = self.add(node, &container).expect("a node that is well gives");
                living.push((name.clone(), container, addresses));
            }
            node.tend().unwrap();
            gone(name);
        }
        let mut reclaimer = Reclaimer::new(store, Arc::clone(&self.clock) as Arc<dyn Clock>);
        assert!(reclaimer.look("looker").unwrap().is_empty());
        self.pass(LEASE * 2);
        let others: Vec<_> = self.nodes[2..].iter().collect();
        for (_, node) in &others {
            node.renew().unwrap();
        }
        let done = reclaimer.look("looker").unwrap();
        assert_eq!(done.len(), 2, "{done:?}");
        // The dead node's addresses are free. The other node's containers live on, and from now on
        // others may get their addresses.
        let mut oracle = self.oracle.lock().unwrap();
        for (_, _, addresses) in &living {
            for address in addresses {
                oracle.takes(*address);
            }
        }
        drop(oracle);
        let mut fresh = Vec::new();
        for (name, node) in &others {
            for index in 0..10 {
                let container = format!("{name}-after-{index}");
                let addresses = self.add(node, &container).expect("there is room");
                fresh.push((Arc::clone(node), container, addresses));
            }
        }
        let (name, node) = late;
        node.renew().unwrap();
        let lost: BTreeSet<IpAddr> = node.lost().into_iter().map(|one| one.address).collect();
        let oracle = self.oracle.lock().unwrap();
        for (_, _, addresses) in living.iter().filter(|(of, _, _)| of == name) {
            for address in addresses {
                // The node reports each address that another has by now.
                assert!(
                    !oracle.given.contains_key(address) || lost.contains(address),
                    "{address} belongs to another, and no node reported it"
                );
            }
        }
        drop(oracle);
        for (_, container, _) in living.iter().filter(|(of, _, _)| of == name) {
            node.release(&owner(container)).unwrap();
        }
        // It continues to assign addresses, but none that others have.
        for index in 0..10 {
            let container = format!("{name}-back-{index}");
            let addresses = self.add(node, &container).expect("it is back");
            self.del(node, &container, &addresses);
        }
        for (node, container, addresses) in fresh {
            self.del(&node, &container, &addresses);
        }
    }

    /// Asserts that nothing is left, and prints how long ADDs took.
    pub(crate) fn end(&self, store: &dyn Store) {
        self.pass(Duration::from_secs(1));
        for (place, (name, node)) in self.nodes.iter().enumerate() {
            if place == 0 {
                continue;
            }
            node.renew().unwrap_or_else(|error| panic!("{name}: {error}"));
            node.sweep().unwrap();
            node.tend().unwrap();
            node.tend().unwrap();
        }
        let oracle = self.oracle.lock().unwrap();
        assert!(oracle.given.is_empty(), "{:?}", oracle.given);
        let left = store.list(Kind::Block, Filter::All).unwrap();
        let left: Vec<_> = left.iter().map(|entry| (&entry.key.name, &entry.value)).collect();
        assert!(left.is_empty(), "left: {left:#?}");
        let mut times = self.times.lock().unwrap();
        times.sort_unstable();
        let at = |per_mille: usize| times[(times.len() - 1) * per_mille / 1000];
        eprintln!(
            "MEASURED cluster addresses: {} nodes, {} ADDs: median {:?}, p99 {:?}, longest {:?}",
            self.plan.nodes,
            times.len(),
            at(500),
            at(990),
            at(1000),
        );
        for (why, count) in self.refused.lock().unwrap().iter() {
            eprintln!("MEASURED cluster addresses: refused {count} times: {why}");
        }
        assert!(self.plan.nodes * self.plan.each / ROUNDS * ROUNDS <= times.len(), "ADDs failed");
    }

    fn pass(&self, time: Duration) {
        *self.clock.more.lock().unwrap() += time;
    }
}

fn owner(container: &str) -> Owner {
    Owner { container: container.to_owned(), ifname: "eth0".to_owned(), ..Owner::default() }
}
