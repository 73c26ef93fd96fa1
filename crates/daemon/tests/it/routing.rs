//! `netwrightd routing` on several nodes. Each is a namespace of one lab, with its own service,
//! files and pod; they share a file with the list of nodes.

mod admission;
mod attached;
mod beside;
mod cluster;
mod damage;
mod etcd;
mod files;
mod flannel;
mod forged;
mod kill;
mod managers;
mod paths;
mod pings;
mod probe;
mod reach;
mod refused;
mod renumbered;
mod side_by_side;
mod size;
mod spaces;
mod survives;
mod torture;
mod unproven;

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::rc::Rc;

use serde_json::Value;
use testkit::traffic::pings_within;
use testkit::{Container, Lab, Place, Service, wait_until};

const DAEMON: &str = env!("CARGO_BIN_EXE_netwrightd");

/// The executable: the tests' own, or an optimised one that is measured.
fn daemon() -> String {
    std::env::var("NETWRIGHTD_MEASURED").unwrap_or_else(|_| DAEMON.to_owned())
}

/// How long it may take after a change until a pod reaches another, on a busy machine. Events must
/// tell the service of the change: it looks by itself only once an hour.
const SOON: std::time::Duration = std::time::Duration::from_secs(60);
const INTERVAL: [&str; 2] = ["--interval", "1h"];

/// The names of our tunnels, and of those that we make in flanneld's place.
const TUNNELS: [&str; 2] = ["nw-vxlan4", "nw-vxlan6"];
const FLANNELS_TUNNELS: [&str; 2] = ["flannel.1", "flannel-v6.1"];

/// Returns a script for tunnels with these names.
fn with_tunnels(script: &str, names: [&str; 2]) -> String {
    let [v4, v6] = TUNNELS;
    script.replace(v4, names[0]).replace(v6, names[1])
}

/// The ranges of all pods.
const RANGES: &str = "10.244.0.0/16,fd00:244::/32";

/// Two segments with a router between them, with nodes on both and a pod on each node.
struct Fabric {
    nodes: Vec<Node>,
    /// The lab; other programs that run in it may borrow it.
    lab: Rc<Lab>,
    /// The flags with the source of the nodes, and with the ranges of their pods.
    source: Vec<String>,
    cluster: Vec<String>,
    flags: Vec<String>,
}

/// How pods are attached to their nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attach {
    /// To a bridge that has the gateway's address.
    Bridge,
    /// Each by a veth pair, with a route to this pod only, as the plugin `ptp` makes it.
    Ptp,
    /// By this plugin, after the service has written the network configuration.
    Plugin(&'static str),
}

impl Attach {
    /// The commands.
    fn script(self, host: &str, pod: &str, n: usize) -> String {
        let pair = batch(host, &format!("link add p0 type veth peer name eth0 netns {pod}"))
            + &batch(pod, "link set lo up\nlink set eth0 addrgenmode none up");
        let (of_host, of_pod) = match self {
            Attach::Plugin(_) => return String::new(),
            Attach::Bridge => (
                format!(
                    "link add nw-pods type bridge mcast_snooping 0\n\
                     link set nw-pods addrgenmode none up\n\
                     addr add fe80::1/64 dev nw-pods nodad\n\
                     addr add 10.244.{n}.1/24 dev nw-pods\n\
                     addr add fd00:244:{n}::1/64 dev nw-pods nodad\n\
                     link set p0 master nw-pods addrgenmode none up"
                ),
                format!(
                    "addr add 10.244.{n}.2/24 dev eth0\n\
                     addr add fd00:244:{n}::2/64 dev eth0 nodad\n\
                     route add default via 10.244.{n}.1\n\
                     route add default via fd00:244:{n}::1"
                ),
            ),
            Attach::Ptp => (
                format!(
                    "link set p0 addrgenmode none up\n\
                     addr add fe80::1/64 dev p0 nodad\n\
                     addr add 10.244.{n}.1/32 dev p0\n\
                     addr add fd00:244:{n}::1/128 dev p0 nodad\n\
                     route add 10.244.{n}.2/32 dev p0\n\
                     route add fd00:244:{n}::2/128 dev p0"
                ),
                format!(
                    "addr add 10.244.{n}.2/32 dev eth0\n\
                     addr add fd00:244:{n}::2/128 dev eth0 nodad\n\
                     route add 10.244.{n}.1/32 dev eth0\n\
                     route add fd00:244:{n}::1/128 dev eth0\n\
                     route add default via 10.244.{n}.1\n\
                     route add default via fd00:244:{n}::1"
                ),
            ),
        };
        pair + &batch(host, &of_host) + &batch(pod, &of_pod)
    }
}

/// Returns a line of a script that runs commands of `ip` in a namespace. `ip` is started only once,
/// because each start makes a mount namespace.
fn batch(netns: &str, commands: &str) -> String {
    format!("ip -n {netns} -batch - <<END\n{commands}\nEND\n")
}

/// One node.
struct Node {
    /// The service ends before its namespaces are removed.
    service: Option<Service>,
    number: usize,
    segment: usize,
    host: Container,
    pod: Container,
    dir: PathBuf,
}

impl Fabric {
    /// Makes nodes `a`, `b`, …, this many on each segment, and starts no service.
    fn new(name: &str, segments: &[usize]) -> Self {
        Fabric::with_pods(name, segments, Attach::Bridge)
    }

    /// Has the services choose this path to every node.
    fn by(mut self, path: &str) -> Self {
        self.flags = ["--path", path].map(str::to_owned).to_vec();
        self
    }

    /// Does the same, with pods that are attached in this way.
    fn with_pods(name: &str, segments: &[usize], attach: Attach) -> Self {
        let lab = Rc::new(Lab::new(name));
        let mut script = String::from("set -e\n");
        let mut nodes = Vec::new();
        let mut number = 0;
        for (segment, count) in segments.iter().enumerate() {
            // The router is the lab's host.
            let _ = writeln!(
                script,
                "ip link add seg{segment} type bridge mcast_snooping 0; ip link set seg{segment} addrgenmode none up\n\
                 ip addr add 192.0.2.{}/26 dev seg{segment}\n\
                 ip addr add fe80::ff/64 dev seg{segment} nodad; ip addr add 2001:db8:{segment}::1/64 dev seg{segment} nodad",
                segment * 64 + 1
            );
            for _ in 0..*count {
                number += 1;
                let node = Node::new(&lab, number, segment);
                let (host, pod) = (node.host.name(), node.pod.name());
                let ((v4, v6), gateway) = (node.underlay(), segment * 64 + 1);
                let of_host = format!(
                    "link set lo up\n\
                     link set eth0 addrgenmode none up\n\
                     addr add fe80::{number}/64 dev eth0 nodad\n\
                     addr add {v4}/26 dev eth0\n\
                     addr add {v6}/64 dev eth0 nodad\n\
                     route add default via 192.0.2.{gateway}\n\
                     route add default via 2001:db8:{segment}::1"
                );
                let _ = writeln!(
                    script,
                    "ip link add n{number} type veth peer name eth0 netns {host}\n\
                     ip link set n{number} master seg{segment} up\n\
                     {}{}",
                    batch(host, &of_host),
                    attach.script(host, pod, number),
                );
                nodes.push(node);
            }
        }
        script.push_str("sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1\n");
        lab.sh(&script);
        let list: String = nodes.iter().map(Node::entry).collect();
        let source = vec!["--nodes".to_owned(), lab.dir().join("nodes.toml").display().to_string()];
        let cluster = ["--cluster", RANGES].map(str::to_owned).to_vec();
        let fabric = Fabric { lab, nodes, source, cluster, flags: Vec::new() };
        fabric.write_list(&list);
        fabric
    }

    fn list(&self) -> PathBuf {
        self.lab.dir().join("nodes.toml")
    }

    /// Replaces the list of nodes in one step.
    fn write_list(&self, list: &str) {
        let scratch = self.lab.dir().join("nodes.new");
        fs::write(&scratch, list).unwrap();
        fs::rename(scratch, self.list()).unwrap();
    }

    /// Starts the service on every node.
    fn start(&mut self) {
        for number in 0..self.nodes.len() {
            self.start_on(number);
        }
    }

    fn start_on(&mut self, node: usize) {
        let log = self.nodes[node].dir.join("log");
        let times = |log: &str| log.matches(" ready ").count();
        let before = times(&fs::read_to_string(&log).unwrap_or_default());
        let service = self.spawn_on(node);
        wait_until("the service to be ready", || before < times(&service.log()));
    }

    /// Starts the service on a node without waiting.
    fn spawn_on(&mut self, node: usize) -> &Service {
        let mut command = self.routing(node);
        command.args(INTERVAL);
        let node = &mut self.nodes[node];
        let service = Service::start(command, &node.dir.join("log"));
        node.service.insert(service)
    }

    /// A command of the daemon on a node, with the node's own files.
    fn command(&self, node: usize, name: &str) -> Command {
        let node = &self.nodes[node];
        let mut command = node.host.command(&daemon());
        command
            .args(name.split(' '))
            .args(["--socketpath", node.dir.join("routing.sock").to_str().unwrap()])
            .env("NETWRIGHT_RUN_DIR", node.dir.join("run"))
            .env("NETWRIGHT_STATE_DIR", node.dir.join("lib"));
        if name == "routing" {
            command.args(["--node", &node.name()]);
        }
        command.stdin(Stdio::null());
        command
    }

    /// The service's command on a node.
    fn routing(&self, node: usize) -> Command {
        let mut command = self.command(node, "routing");
        command.args(&self.source).args(&self.cluster).args(&self.flags);
        command
    }

    /// What `netwrightd routes -o json` prints on a node.
    fn routes(&self, node: usize) -> Value {
        let output = self.command(node, "routes").args(["-o", "json"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What `netwrightd routes probe` prints on a node, and whether it finds everything sound.
    fn probe(&self, node: usize, more: &[&str]) -> (bool, String) {
        let output = self.command(node, "routes probe").args(more).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    /// Asserts that every pod reaches every other, in both families.
    #[track_caller]
    fn assert_all_reach_all(&self) {
        for from in &self.nodes {
            for to in self.nodes.iter().filter(|to| to.number != from.number) {
                from.assert_reaches(to);
            }
        }
    }

    /// Ends the service on a node, and removes everything that it made. Returns its output.
    fn uninstall(&mut self, node: usize) -> String {
        self.leave(node, &["--uninstall"])
    }

    /// Does the same with further flags.
    fn leave(&mut self, node: usize, flags: &[&str]) -> String {
        if let Some(service) = self.nodes[node].service.take() {
            assert_eq!(service.stop(), Some(0));
        }
        let output = self.routing(node).args(flags).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Node {
    fn new(lab: &Lab, number: usize, segment: usize) -> Self {
        let name = char::from(b'a' + u8::try_from(number - 1).unwrap());
        let dir = lab.dir().join(format!("node-{name}"));
        fs::create_dir(&dir).unwrap();
        let host = lab.container(&name.to_string());
        let pod = lab.container(&format!("pod-{name}"));
        Node { number, segment, host, pod, dir, service: None }
    }

    fn name(&self) -> String {
        self.host.name().to_owned()
    }

    /// Its addresses on its segment.
    fn underlay(&self) -> (String, String) {
        let (number, segment) = (self.number, self.segment);
        (
            format!("192.0.2.{}", segment * 64 + 10 + number),
            format!("2001:db8:{segment}::{number}0"),
        )
    }

    /// Its entry in the list of nodes.
    fn entry(&self) -> String {
        let ((v4, v6), number) = (self.underlay(), self.number);
        format!(
            "[[node]]\nname = \"{}\"\nprefixes = [\"10.244.{number}.0/24\", \"fd00:244:{number}::/64\"]\n\
             underlay = [\"{v4}\", \"{v6}\"]\n\n",
            self.name()
        )
    }

    /// The addresses of its pod.
    fn pod_addresses(&self) -> [String; 2] {
        [format!("10.244.{}.2", self.number), format!("fd00:244:{}::2", self.number)]
    }

    /// Asserts that its pod reaches another's, in both families.
    #[track_caller]
    fn assert_reaches(&self, to: &Node) {
        for address in to.pod_addresses() {
            assert!(
                pings_within(&self.pod, &address, SOON),
                "the pod of {} does not reach {address}:\n{}\n{}",
                self.name(),
                self.host.sh(
                    "ip -d link show type vxlan; ip route; ip -6 route; ip nexthop; ip neigh; \
                     bridge fdb; nft list table inet netwright-routing"
                ),
                self.service.as_ref().map_or(String::new(), Service::log),
            );
        }
    }
}
