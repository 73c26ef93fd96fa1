//! Nodes with clocks that tests move.

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netwright_cluster_ipam::network::{NetworkSpec, RangeSpec};
use netwright_cluster_ipam::store::{Memory, Store};
use netwright_cluster_ipam::{Clock, Node, Settings};
use node_api::Refusal;
use node_api::ipam::{AssignRequest, AssignedAddress, HeldRequest, Owner};

/// What happens during a wait.
type WaitAction = Box<dyn Fn() + Send>;

/// A clock that a test moves.
#[derive(Clone, Default)]
pub(crate) struct Hands(Arc<AtomicU64>, Arc<Mutex<Option<WaitAction>>>);

impl std::fmt::Debug for Hands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Hands").field(&self.0).finish()
    }
}

impl Hands {
    pub(crate) fn pass(&self, time: Duration) {
        let ms = u64::try_from(time.as_millis()).unwrap();
        self.0.fetch_add(ms, Ordering::SeqCst);
    }

    /// Calls this during every wait, after the time has passed.
    pub(crate) fn meanwhile(&self, what: impl Fn() + Send + 'static) {
        *self.1.lock().unwrap() = Some(Box::new(what));
    }
}

impl Clock for Hands {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }

    fn pause(&self, time: Duration) {
        self.pass(time);
        if let Some(what) = &*self.1.lock().unwrap() {
            what();
        }
    }
}

pub(crate) const LEASE: Duration = Duration::from_secs(100);

pub(crate) fn settings(name: &str) -> Settings {
    Settings {
        lease: LEASE,
        idle: Duration::from_secs(10),
        ..Settings::new(name, "boot-1", &format!("machine-of-{name}"))
    }
}

pub(crate) fn node(dir: &Path, store: &Memory, clock: &Hands, name: &str) -> Node {
    node_with(dir, store, clock, settings(name))
}

pub(crate) fn node_with(dir: &Path, store: &Memory, clock: &Hands, settings: Settings) -> Node {
    let store: Arc<dyn Store> = Arc::new(store.clone());
    let dir = dir.join(&settings.node);
    Node::open(&dir, store, Arc::new(clock.clone()), settings).unwrap()
}

pub(crate) fn network(ranges: &[&str]) -> NetworkSpec {
    let mut spec = NetworkSpec::new("blue");
    spec.ranges = ranges.iter().map(|text| text.parse::<RangeSpec>().unwrap()).collect();
    spec
}

/// Blocks of eight addresses.
pub(crate) fn in_blocks(ranges: &[&str]) -> NetworkSpec {
    NetworkSpec { block_v4: Some(29), block_v6: Some(125), ..network(ranges) }
}

pub(crate) fn owner(container: &str) -> Owner {
    Owner { container: container.to_owned(), ifname: "eth0".to_owned(), ..Owner::default() }
}

pub(crate) fn assign(
    node: &Node,
    network: &NetworkSpec,
    container: &str,
) -> Result<Vec<IpAddr>, Refusal> {
    ask(node, network, container, &[])
}

pub(crate) fn ask(
    node: &Node,
    network: &NetworkSpec,
    container: &str,
    wanted: &[&str],
) -> Result<Vec<IpAddr>, Refusal> {
    let assign = AssignRequest {
        network: network.clone(),
        owner: owner(container),
        wanted: wanted.iter().map(|text| text.parse().unwrap()).collect(),
    };
    node.assign(&assign).map(addresses)
}

pub(crate) fn held(
    node: &Node,
    network: &NetworkSpec,
    container: &str,
) -> Result<Vec<IpAddr>, Refusal> {
    node.held(&HeldRequest { network: network.clone(), owner: owner(container) }).map(addresses)
}

pub(crate) fn addresses(assigned: Vec<AssignedAddress>) -> Vec<IpAddr> {
    assigned.into_iter().map(|one| one.address.addr()).collect()
}
