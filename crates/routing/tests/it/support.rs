//! Nodes and clusters to test with.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netwright_routing::cluster::{Event, NodeRecord};
use netwright_routing::kubernetes::NodeFields;
use netwright_routing::node::{Dialect, Offers, Underlay, Vxlan};
use netwright_routing::path::{Hop, Way};
use netwright_routing::plan::ObservedObjects;
use netwright_routing::routing::Todo;
use netwright_routing::settings::{Backend, FlannelSettings, NodeFacts, Uplink};
use netwright_routing::{
    IpFamily, Node, OwnNode, PerFamily, Routing, Settings, Time, mac_of_tunnel,
};

use crate::kernel::Kernel;

/// 12:00 UTC of some day.
pub(crate) const NOW: Time = Time::from_seconds(1_700_049_600);

/// Returns a moment some seconds later.
pub(crate) fn at(seconds: u64) -> Time {
    Time(NOW.0 + seconds * 1000)
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn net(text: &str) -> ipnet::IpNet {
    text.parse().unwrap()
}

pub(crate) fn settings() -> Settings {
    Settings::new(vec![net("10.244.0.0/16"), net("fd00:244::/48")])
}

pub(crate) fn flannel() -> FlannelSettings {
    FlannelSettings {
        prefix: "flannel.alpha.coreos.com/".to_owned(),
        backend: Backend::Vxlan,
        direct_routing: false,
        mtu: None,
    }
}

pub(crate) fn flannel_settings() -> Settings {
    Settings { flannel: Some(flannel()), ..settings() }
}

/// Node number `n`: 10.244.n.0/24 and fd00:244:0:n::/64, at 192.0.2.n and 2001:db8::n.
pub(crate) fn node(name: &str, n: u16) -> Node {
    let mut underlay = Underlay::default();
    underlay.set(ip(&format!("192.0.2.{n}")));
    underlay.set(ip(&format!("2001:db8::{n:x}")));
    numbered(name, &format!("10.244.{n}.0/24"), &format!("fd00:244:0:{n:x}::/64"), underlay)
}

/// One of many nodes, dual stack.
pub(crate) fn one_of_many(n: u16) -> Node {
    let [high, low] = n.to_be_bytes();
    let mut underlay = Underlay::default();
    underlay.set(ip(&format!("198.18.{high}.{low}")));
    underlay.set(ip(&format!("2001:db8::{n:x}")));
    let v4 = format!("10.{}.{low}.0/24", 128 + u16::from(high));
    let v6 = format!("fd00:244:0:{n:x}::/64");
    numbered(&format!("node-{n}"), &v4, &v6, underlay)
}

fn numbered(name: &str, v4: &str, v6: &str, underlay: Underlay) -> Node {
    let vxlan = Vxlan {
        vni: 1,
        port: 8472,
        mac4: Some(mac_of_tunnel(name, IpFamily::V4)),
        mac6: Some(mac_of_tunnel(name, IpFamily::V6)),
    };
    Node {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        created: Some(Time::from_seconds(1_600_000_000)),
        prefixes: vec![net(v4), net(v6)],
        kept: Vec::new(),
        blocks: Vec::new(),
        underlay,
        addresses: Vec::new(),
        offers: Offers { direct: true, vxlan: Some(vxlan), ..Default::default() },
        mtu: Some(1500),
        zone: None,
        dialect: Dialect::Netwright,
    }
}

/// The same with IPv4 only.
pub(crate) fn v4_node(name: &str, n: u16) -> Node {
    let mut node = node(name, n);
    node.prefixes.truncate(1);
    node.underlay.v6 = None;
    if let Some(vxlan) = &mut node.offers.vxlan {
        vxlan.mac6 = None;
    }
    node
}

/// What this node, number 1, finds out about itself.
pub(crate) fn found() -> NodeFacts {
    let uplink = || Uplink { name: "eth0".into(), mtu: 1500 };
    NodeFacts {
        name: "a".to_owned(),
        uid: "uid-a".to_owned(),
        prefixes: vec![net("10.244.1.0/24"), net("fd00:244:0:1::/64")],
        kept: Vec::new(),
        zone: None,
        uplinks: PerFamily {
            v4: Some((uplink(), ip("192.0.2.1"))),
            v6: Some((uplink(), ip("2001:db8::1"))),
        },
        taken_over: PerFamily::default(),
    }
}

pub(crate) fn own(settings: &Settings) -> OwnNode {
    OwnNode::new(settings, found())
}

pub(crate) fn on_link() -> Way {
    Way::OnLink(Hop { link: "eth0".into(), mtu: 1500, learnt_mtu: None })
}

pub(crate) fn by_gateway() -> Way {
    Way::ByGateway(Hop { link: "eth0".into(), mtu: 1500, learnt_mtu: None })
}

pub(crate) fn seen(nodes: &[Node]) -> Vec<NodeRecord> {
    nodes.iter().cloned().map(NodeRecord::whole).collect()
}

/// A node with its kernel: what the daemon does, without a daemon.
pub(crate) struct Machine {
    pub(crate) routing: Routing,
    pub(crate) kernel: Kernel,
    /// The route to an underlay address.
    pub(crate) way: fn(IpAddr) -> Way,
    /// All changes, in order.
    pub(crate) log: Vec<String>,
    /// Changes that are messages of rtnetlink, and transactions of the packet filter.
    pub(crate) messages: usize,
    pub(crate) transactions: usize,
}

impl Machine {
    /// Starts a node whose kernel has nothing of ours.
    pub(crate) fn start(settings: Settings, way: fn(IpAddr) -> Way) -> Self {
        Machine::start_with(settings, way, Kernel::default())
    }

    pub(crate) fn start_with(settings: Settings, way: fn(IpAddr) -> Way, kernel: Kernel) -> Self {
        let own = own(&settings);
        let routing = Routing::new(settings, "a");
        let (log, messages, transactions) = (Vec::new(), 0, 0);
        let mut machine = Machine { routing, kernel, way, log, messages, transactions };
        let observed = machine.kernel.observed();
        let todo = machine.routing.look(observed);
        machine.carry_out(todo);
        let todo = machine.routing.own(own, NOW);
        machine.carry_out(todo);
        machine
    }

    pub(crate) fn event(&mut self, event: Event) -> Todo {
        let todo = self.routing.event(event, NOW);
        self.carry_out(todo.clone());
        todo
    }

    pub(crate) fn list(&mut self, nodes: &[Node]) -> Todo {
        self.event(Event::Listed(seen(nodes)))
    }

    /// Applies all planned changes; the kernel must accept each.
    pub(crate) fn carry_out(&mut self, todo: Todo) {
        for change in &todo.changes {
            self.kernel.apply(change).unwrap_or_else(|error| panic!("{change}: {error}"));
            self.routing.done(change);
            self.log.push(change.to_string());
            self.messages += usize::from(!change.is_filter());
        }
        let runs = todo.changes.chunk_by(|one, other| one.is_filter() == other.is_filter());
        self.transactions += runs.filter(|run| run[0].is_filter()).count();
        if !todo.look_up.is_empty() {
            let way = self.way;
            let ways: Vec<_> =
                todo.look_up.iter().map(|address| (*address, way(*address))).collect();
            let todo = self.routing.ways(ways);
            assert!(todo.look_up.is_empty(), "all ways are known");
            self.carry_out(todo);
        }
    }

    /// Reads everything that the kernel has, and repairs it.
    pub(crate) fn look(&mut self) {
        let observed: ObservedObjects = self.kernel.observed();
        let todo = self.routing.look(observed);
        self.carry_out(todo);
    }

    /// Returns the changes since the last call.
    pub(crate) fn take_log(&mut self) -> String {
        (self.messages, self.transactions) = (0, 0);
        self.log.drain(..).map(|line| line + "\n").collect()
    }

    /// Asserts that the kernel has all wanted objects, and no others of ours.
    #[track_caller]
    pub(crate) fn assert_right(&self) {
        let wanted: Vec<_> = self.routing.wanted().iter().collect();
        let there: Vec<_> = self.kernel.objects.iter().collect();
        assert_eq!(wanted, there);
    }
}

/// The fields of a Node with flannel's annotations, as flanneld writes them.
pub(crate) fn flannel_fields(name: &str, n: u16) -> NodeFields {
    let annotations = [
        ("kube-subnet-manager", "true".to_owned()),
        ("backend-type", "vxlan".to_owned()),
        ("backend-data", format!(r#"{{"VNI":1,"VtepMAC":"02:00:00:00:04:{n:02x}"}}"#)),
        ("backend-v6-data", format!(r#"{{"VNI":1,"VtepMAC":"02:00:00:00:06:{n:02x}"}}"#)),
        ("public-ip", format!("192.0.2.{n}")),
        ("public-ipv6", format!("2001:db8::{n:x}")),
    ];
    let prefixed =
        |(key, value): (&str, String)| (format!("flannel.alpha.coreos.com/{key}"), value);
    NodeFields {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        created: Some(Time::from_seconds(1_600_000_000)),
        pod_cidrs: vec![format!("10.244.{n}.0/24"), format!("fd00:244:0:{n:x}::/64")],
        addresses: vec![format!("192.0.2.{n}"), format!("2001:db8::{n:x}"), name.to_owned()],
        zone: None,
        annotations: annotations.into_iter().map(prefixed).collect(),
    }
}

/// The fields of a Node with our annotation.
pub(crate) fn fields(node: &Node) -> NodeFields {
    let key = netwright_routing::annotation::KEY.to_owned();
    NodeFields {
        name: node.name.clone(),
        uid: node.uid.clone(),
        created: node.created,
        pod_cidrs: node.prefixes.iter().map(ToString::to_string).collect(),
        addresses: node.underlay.iter().map(|address| address.to_string()).collect(),
        zone: node.zone.clone(),
        annotations: BTreeMap::from([(key, netwright_routing::annotation::write(node))]),
    }
}

/// The number of random cases for a property: few in each run, ten times as many with
/// `NETWRIGHT_FULL`.
pub(crate) fn cases(few: u32) -> proptest::prelude::ProptestConfig {
    let full = std::env::var_os("NETWRIGHT_FULL").is_some();
    proptest::prelude::ProptestConfig::with_cases(if full { few * 10 } else { few })
}

/// Numbers that look random, the same in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        // Marsaglia, "Xorshift RNGs" (2003).
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(bound).unwrap()).unwrap()
    }
}
