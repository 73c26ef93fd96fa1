//! The time between the ADD of the plugin that makes a link and that of `policy`, for a container
//! in which a process runs already.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::traffic::assert_pings;
use testkit::{Container, Place, feature};

use super::{Pod, assert_silent, closed, keys, links, no_bridge_shows, verdicts};
use crate::policy::inside::{CLOSED, inside};
use crate::policy::killed::{Fault, struck};
use crate::support::matrix::look;
use crate::support::{Node, on_parent};

/// One port at both ends: what the one sends is an answer to what the other sends.
const PORT: u16 = 9999;
const DEADLINE: Duration = Duration::from_secs(20);

/// A process that sends to each address of the tests' subnets again and again, and receives.
struct Racer {
    stop: Arc<AtomicBool>,
    /// From whom packets came, in words.
    received: Arc<Mutex<BTreeSet<String>>>,
    rounds: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Racer {
    /// Starts in a place, and sends its name.
    fn start(place: &impl Place, name: &str) -> Racer {
        let socket = place.enter(|| UdpSocket::bind(("::", PORT)).unwrap());
        socket.set_nonblocking(true).unwrap();
        let (stop, received) = (Arc::default(), Arc::default());
        let (begun, rounds) = channel();
        let (stops, hears, name) = (Arc::clone(&stop), Arc::clone(&received), name.to_owned());
        let run = move || race(&socket, &name, &stops, &hears, &begun);
        Racer { stop, received, rounds, thread: Some(thread::spawn(run)) }
    }

    /// Waits until it has sent to every address some times more.
    fn goes_on(&self) {
        while self.rounds.try_recv().is_ok() {}
        for _ in 0..30 {
            self.rounds.recv_timeout(DEADLINE).expect("it sends");
        }
    }

    fn received(&self) -> BTreeSet<String> {
        self.received.lock().unwrap().clone()
    }

    fn forget(&self) {
        self.received.lock().unwrap().clear();
    }

    #[track_caller]
    fn receives(&self, what: &[&str]) {
        let end = Instant::now() + DEADLINE;
        while !what.iter().all(|what| self.received().contains(*what)) {
            assert!(Instant::now() < end, "{what:?} does not arrive, {:?} do", self.received());
            self.goes_on();
        }
    }
}

impl Drop for Racer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking());
    }
}

fn race(
    socket: &UdpSocket,
    name: &str,
    stop: &AtomicBool,
    received: &Mutex<BTreeSet<String>>,
    begun: &Sender<()>,
) {
    let all: Vec<IpAddr> = (2..8)
        .flat_map(|last| [format!("::ffff:10.1.0.{last}"), format!("fd00:1::{last}")])
        .chain(["::ffff:10.2.0.2".to_owned(), "fd00:2::2".to_owned()])
        .map(|text| text.parse().unwrap())
        .collect();
    let mut packet = [0; 16];
    while !stop.load(Ordering::Relaxed) {
        for address in &all {
            // There is no way yet, or nobody.
            let _ = socket.send_to(name.as_bytes(), SocketAddr::new(*address, PORT));
        }
        loop {
            match socket.recv_from(&mut packet) {
                Ok((length, from)) => {
                    let sender = String::from_utf8_lossy(&packet[..length]).into_owned();
                    let is_v4 = from.ip().to_canonical().is_ipv4();
                    let family = if is_v4 { 4 } else { 6 };
                    if sender != name {
                        received.lock().unwrap().insert(format!("{sender}{family}"));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The answer to an earlier packet: an error of ICMP.
                Err(_) => {}
            }
        }
        if begun.send(()).is_err() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// The host of a test, and where the kinds of links need one, their parent.
fn host(name: &str, by: &str) -> Node {
    if by == "macvlan" {
        return on_parent::host(name);
    }
    let node = Node::new(name);
    no_bridge_shows(&node);
    node
}

/// The configuration of a plugin that `policy` follows.
fn followed(node: &Node, by: &str) -> Value {
    let mut keys = keys(node, by);
    keys["netwright/followed-by"] = json!(["tuning", "policy"]);
    keys
}

/// Attaches a container before `policy`.
fn attach<'n>(node: &'n Node, c: Container, by: &'static str) -> Pod<'n> {
    let ifname = if by == "macvlan" { "net1" } else { "eth0" };
    Pod::of(node, c, by, followed(node, by), ("n", ifname))
}

/// A container of another network, whose packets the host routes.
fn elsewhere(node: &Node) -> Pod<'_> {
    let ranges = json!([[{ "subnet": "10.2.0.0/24" }], [{ "subnet": "fd00:2::/64" }]]);
    let routes = json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]);
    let ipam = json!({
        "type": "host-local", "dataDir": node.dir("elsewhere"), "ranges": ranges, "routes": routes,
    });
    Pod::of(node, node.container("c9"), "ptp", json!({ "ipam": ipam }), ("m", "eth0"))
}

/// Nothing passes before, between and after the two ADDs, in either direction.
#[test]
fn a_container_that_runs_already_is_closed_before_its_link_is_up() {
    testkit::require!("root");
    for by in ["bridge", "ptp", "macvlan"] {
        let node = host(&format!("policy-window-{by}"), by);
        let c1 = Pod::new(&node, "c1", by);
        let c9 = (by != "macvlan").then(|| elsewhere(&node));
        let peer = Racer::start(&*c1.c, "peer");
        let other = c9.as_ref().map(|c9| Racer::start(&*c9.c, "other"));
        let peers: Vec<&Racer> = other.iter().chain([&peer]).collect();
        let inside = node.container("c2");
        let racer = Racer::start(&inside, "racer");
        peers.iter().for_each(|peer| peer.goes_on());
        let c2 = attach(&node, inside, by);
        racer.goes_on();
        peers.iter().for_each(|peer| peer.goes_on());
        c2.add();
        racer.goes_on();
        peers.iter().for_each(|peer| peer.goes_on());
        // The host asks who has the address, and sends what has waited for the answer.
        if by != "macvlan" {
            for ip in c2.prev["ips"].as_array().unwrap() {
                let address = ip["address"].as_str().unwrap().split('/').next().unwrap();
                assert_pings(&node.lab, address);
            }
        }
        racer.goes_on();
        let no_racer = |peer: &Racer| !peer.received().iter().any(|from| from.contains("racer"));
        assert!(peers.iter().all(|peer| no_racer(peer)), "{by}: packets left the container");
        assert_eq!(racer.received(), BTreeSet::new(), "{by}: packets reached the container");
        c2.check();
        c2.run(by, "CHECK").config(followed(&node, by)).prev(&c2.prev).call().silent();
        // The test would see them.
        let open = node.container("c3");
        let racer = Racer::start(&open, "racer");
        let _c3 = Pod::of(&node, open, by, keys(&node, by), ("n", c2.ifname));
        racer.receives(&["peer4", "peer6"]);
        peer.receives(&["racer4", "racer6"]);
    }
}

/// Behind a plugin that does not close the link, no connection outlives the time before `policy`:
/// nor does one to an address that nobody had.
#[test]
fn connections_from_before_a_container_was_closed_end() {
    testkit::require!("root");
    for by in ["bridge", "ptp", "macvlan"] {
        let node = host(&format!("policy-before-{by}"), by);
        let c1 = Pod::new(&node, "c1", by);
        let peer = Racer::start(&*c1.c, "peer");
        peer.goes_on();
        let inside = node.container("c2");
        let racer = Racer::start(&inside, "racer");
        let ifname = c1.ifname;
        // A table that tracks connections, as the first judged container of a node has it.
        node.sh("nft add table inet t; nft 'add chain inet t f { type filter hook forward priority 0; }'; \
                 nft add rule inet t f ct state new");
        let c2 = Pod::of(&node, inside, by, keys(&node, by), ("n", ifname));
        racer.receives(&["peer4", "peer6"]);
        peer.receives(&["racer4", "racer6"]);
        c2.add();
        // What is on its way arrives.
        racer.goes_on();
        peer.goes_on();
        racer.forget();
        peer.forget();
        racer.goes_on();
        peer.goes_on();
        assert_eq!((racer.received(), peer.received()), Default::default(), "{by}");
    }
}

/// `flannel` makes the configuration of its delegate, and tells it what follows.
#[test]
fn a_delegates_link_comes_up_closed() {
    testkit::require!("root");
    let node = host("policy-delegate", "bridge");
    let other = Pod::new(&node, "c1", "bridge");
    let subnets = node.dir("flannel").join("subnet.env");
    let lines = "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.0.1/24\nFLANNEL_MTU=1450\n\
                 FLANNEL_IPV6_NETWORK=fd00:1::/48\nFLANNEL_IPV6_SUBNET=fd00:1::1/64\nFLANNEL_IPMASQ=false\n";
    std::fs::write(&subnets, lines).unwrap();
    let mut keys = followed(&node, "bridge");
    keys["delegate"] = json!({ "bridge": keys["bridge"], "isGateway": true });
    keys["ipam"] = json!({ "dataDir": keys["ipam"]["dataDir"] });
    keys["subnetFile"] = json!(subnets);
    keys["dataDir"] = json!(node.dir("delegated"));
    let c2 = Pod::of(&node, node.container("c2"), "flannel", keys, ("n", "eth0"));
    assert_silent(&*other.c, &c2.addresses());
    assert_silent(&*c2.c, &other.addresses());
    c2.add();
    assert_eq!(verdicts(&node), closed(&c2));
    c2.del();
    c2.detach();
    assert_eq!((verdicts(&node), links(&node)), (Vec::new(), String::new()));
}

/// An ADD of `policy` that is killed, or fails, opens nothing that was closed. DEL removes all.
#[test]
fn what_came_up_closed_stays_closed_until_it_is_removed() {
    testkit::require!("root", "program:strace");
    for by in ["bridge", "ptp", "macvlan"] {
        let node = host(&format!("policy-gate-{by}"), by);
        let other = Pod::new(&node, "c1", by);
        // What the node's first container leaves for the others.
        let c2 = attach(&node, node.container("c2"), by);
        c2.run("policy", "GC").config(json!({ "cni.dev/valid-attachments": [] })).call().silent();
        c2.detach();
        drop(c2);
        let before = look(&node);
        let c2 = attach(&node, node.container("c2"), by);
        assert_eq!(c2.recorded(), None);
        let assert_closed = |pod: &Pod<'_>| {
            assert_silent(&*other.c, &pod.addresses());
            assert_silent(&*pod.c, &other.addresses());
        };
        assert_closed(&c2);
        // A GC that comes between the two does not know the attachment.
        c2.run("policy", "GC").config(json!({ "cni.dev/valid-attachments": [] })).call().silent();
        assert_closed(&c2);
        // Without an ADD of `policy`, only the other plugin removes anything.
        c2.detach();
        assert_eq!((verdicts(&node), links(&node)), (Vec::new(), String::new()), "{by}");
        assert_eq!(c2.c.sh("nft list ruleset"), "", "{by}");
        drop(c2);
        before.assert_same(&look(&node));
        if by == "macvlan" {
            let c2 = attach(&node, node.container("c2"), by);
            assert_eq!(inside(&c2), CLOSED);
            c2.add();
            c2.del();
            c2.detach();
            continue;
        }
        // Both take the same way through the plugin.
        let is_full = feature::available("full");
        if by == "ptp" && !is_full {
            continue;
        }
        let moments = if is_full { 12 } else { 2 };
        let fault = Fault { calls: "sendto,sendmsg", is: "error=EPERM", moments };
        let look = |pod: &Pod<'_>, succeeded: bool, what: &str| {
            assert_closed(pod);
            assert_eq!(succeeded, pod.recorded().is_some(), "{what}");
            pod.add();
            assert_eq!(verdicts(&node), closed(pod), "{what}");
            pod.del();
        };
        struck(&node, (by, "ADD"), &fault, gate, look);
    }
}

/// Attaches a container again, closed.
fn gate(pod: &Pod<'_>) {
    pod.detach();
    let again = pod.run(pod.by, "ADD").config(followed(pod.node, pod.by)).call().ok();
    assert_eq!(again["interfaces"][0]["name"], pod.prev["interfaces"][0]["name"]);
}
