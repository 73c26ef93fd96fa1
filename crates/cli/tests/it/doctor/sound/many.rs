//! A hundred sound nodes, each with a random choice of other programs and of our kinds of networks.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use testkit::share;
use testkit::traffic::{SILENCE, Server, pings_within, try_tcp};
use testkit::{Chance, Container, Lab, Place, RunningProgram, require};

use super::kinds::{CLOSED, Kind, OPEN};
use super::{BUS_ADDRESS, firewalld};
use crate::doctor::situations::node::Node;
use crate::system::address_of;

const NODES: usize = 100;

/// How many of them one run tries: a node takes some ten seconds.
const SHARE: usize = 8;

/// One of this many nodes has firewalld, with zones.
const FIREWALLD: usize = 10;

/// How many containers the last node has on one network.
const CROWD: usize = 200;

/// How many networks a node has beside its first.
const NETWORKS: usize = 5;

/// How long traffic may take until it passes.
const SOON: Duration = Duration::from_secs(10);

/// The pause between tries.
const PAUSE: Duration = Duration::from_millis(20);

/// The intended kind of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sort {
    /// IPv4 only, with a published port.
    OneFamily,
    /// Both families, with a veth pair for each container.
    Pairs,
    /// Containers reach only each other.
    Isolated,
    /// Containers reach the node, but nothing beyond it.
    WithoutDefault,
    /// The containers' MTU is smaller than the uplink's.
    Small,
}

const SORTS: [Sort; 5] =
    [Sort::OneFamily, Sort::Pairs, Sort::Isolated, Sort::WithoutDefault, Sort::Small];

impl Sort {
    /// The plugins of the network with this number. Its range is not among those of a cluster's
    /// Services, which Calico rejects.
    fn plugins(self, number: usize) -> String {
        let v4 = format!(r#"[{{"subnet": "10.{}.0.0/24"}}]"#, 150 + number);
        let v6 = format!(r#"[{{"subnet": "fd00:{}::/64"}}]"#, 150 + number);
        let bridge = |keys: &str, ranges: &str| {
            format!(
                r#"{{"type": "bridge", "bridge": "nets{number}", {keys}
                    "ipam": {{"type": "host-local", "ranges": [{ranges}]}}}}"#
            )
        };
        let both = format!("{v4}, {v6}");
        match self {
            Sort::OneFamily => format!(
                r#"{}, {{"type": "portmap", "capabilities": {{"portMappings": true}}}},
                   {{"type": "firewall"}}"#,
                bridge(r#""isDefaultGateway": true, "ipMasq": true,"#, &v4)
            ),
            Sort::Pairs => format!(
                r#"{{"type": "ptp", "ipMasq": true, "ipam": {{"type": "host-local",
                     "ranges": [{both}], "routes": [{{"dst": "0.0.0.0/0"}}, {{"dst": "::/0"}}]}}}},
                   {{"type": "firewall"}}"#
            ),
            Sort::Isolated => format!(r#"{}, {{"type": "firewall"}}"#, bridge("", &v4)),
            Sort::WithoutDefault => {
                format!(r#"{}, {{"type": "firewall"}}"#, bridge(r#""isGateway": true,"#, &both))
            }
            Sort::Small => format!(
                r#"{}, {{"type": "firewall"}}"#,
                bridge(r#""isDefaultGateway": true, "ipMasq": true, "mtu": 1280,"#, &both)
            ),
        }
    }

    /// Whether its containers reach beyond the node.
    fn leads_out(self) -> bool {
        matches!(self, Sort::OneFamily | Sort::Pairs | Sort::Small)
    }

    /// The further arguments of `netwright add`.
    fn options(self, number: usize, first: bool) -> String {
        match self {
            Sort::OneFamily if first => format!("--publish {}:80", 9000 + number),
            _ => String::new(),
        }
    }
}

/// What is on a node.
struct Plan {
    kinds: Vec<Kind>,
    networks: Vec<Sort>,
    firewalld: bool,
    crowd: bool,
}

impl Plan {
    fn draw(chance: &mut Chance, number: usize) -> Self {
        let firewalld = number % FIREWALLD == FIREWALLD - 1;
        // A node with two firewalls that each drop what they do not know is not sound.
        let closed: &[&[Kind]] = if firewalld { &[] } else { CLOSED };
        let mut kinds = Vec::new();
        for group in closed.iter().chain(OPEN) {
            if !chance.once_in(3) {
                kinds.push(*chance.of(group));
            }
        }
        let networks = (0..chance.below(NETWORKS + 1)).map(|_| *chance.of(&SORTS)).collect();
        Plan { kinds, networks, firewalld, crowd: number + 1 == NODES }
    }

    /// A description of the node, for the message of a failure.
    fn told(&self) -> String {
        let kinds: Vec<&str> = self.kinds.iter().map(|kind| kind.name).collect();
        let firewalld = if self.firewalld { ", firewalld" } else { "" };
        format!("{}{firewalld}; networks {:?}", kinds.join(", "), self.networks)
    }

    fn lab(&self) -> Lab {
        let name = "doctor-many";
        if self.firewalld { Lab::with_processes(name) } else { Lab::new(name) }
    }

    fn prepare(&self, lab: &Lab) -> Option<[RunningProgram; 2]> {
        let running = self.firewalld.then(|| {
            let running = firewalld(lab);
            zones(lab);
            running
        });
        for kind in &self.kinds {
            (kind.make)(lab);
        }
        running
    }
}

/// Gives firewalld zones with links and sources of their own.
fn zones(lab: &Lab) {
    let ask = |what: &str| lab.sh(&format!("{BUS_ADDRESS} firewall-cmd {what}"));
    ask("--zone=work --change-interface=up0");
    ask("--zone=work --add-service=http");
    ask("--zone=dmz --add-source=192.0.2.0/24");
    ask("--zone=drop --add-source=203.0.113.200/32");
    ask("--zone=block --add-source=2001:db8:77::/64");
}

/// Makes a node, and returns what is wrong with it.
fn tried(plan: &Plan) -> Vec<String> {
    let mut running = None;
    let node = Node::prepared(plan.lab(), |lab| running = plan.prepare(lab));
    let mut wrong = Vec::new();
    let mut members = Vec::new();
    for (number, sort) in plan.networks.iter().enumerate() {
        members.push(Members::join(&node, *sort, number, &mut wrong));
    }
    let crowd = if plan.crowd { crowd(&node, &mut wrong) } else { Vec::new() };
    for members in &members {
        members.prove(&node, &mut wrong);
    }
    wrong.extend(node.complaints());
    drop((crowd, members));
    // The programs end before the lab in which they run.
    drop(running);
    wrong
}

/// The containers of a network.
struct Members {
    sort: Sort,
    number: usize,
    containers: [Container; 2],
    _server: Server,
}

/// Makes a container that asks the node's server for names.
fn container(node: &Node, name: &str) -> Container {
    let container = node.lab.container(name);
    container.sh("ip link set lo up");
    let folder = node.lab.path(format!("/etc/netns/{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("resolv.conf"), "nameserver 203.0.113.2\n").unwrap();
    container
}

impl Members {
    /// Makes a network with two containers.
    fn join(node: &Node, sort: Sort, number: usize, wrong: &mut Vec<String>) -> Self {
        let text = format!(
            r#"{{"cniVersion": "1.0.0", "name": "net{number}", "plugins": [{}]}}"#,
            sort.plugins(number)
        );
        node.network(&format!("{}-net{number}", 60 + number), &text);
        let names = ["a", "b"].map(|which| format!("n{number}{which}"));
        let containers = names.each_ref().map(|name| container(node, name));
        for (name, first) in names.iter().zip([true, false]) {
            let options = sort.options(number, first);
            let add = format!("netwright add net{number} {name} --container-id {name} {options}");
            let (done, said) = node.run(&add);
            if !done {
                wrong.push(format!("{sort:?}: {said}"));
            }
        }
        let server = Server::tcp(&containers[0], "0.0.0.0:80", &names[0]);
        Members { sort, number, containers, _server: server }
    }

    /// Shows by traffic that the network is as intended.
    fn prove(&self, node: &Node, wrong: &mut Vec<String>) {
        let [a, b] = &self.containers;
        let own = address_of(a, "eth0", "inet");
        let mut must = |what: &str, is_so: bool| {
            if !is_so {
                wrong.push(format!("{:?}, network {}: {what}", self.sort, self.number));
            }
        };
        must("its containers reach each other", serves(b, own, 80, a.name()));
        let beyond = IpAddr::from([203, 0, 113, 2]);
        if self.sort.leads_out() {
            must("it leads beyond the node", serves(a, beyond, 80, "server"));
        } else {
            let asked = try_tcp(a, SocketAddr::new(beyond, 80), SILENCE);
            must("it does not lead beyond the node", asked.is_err());
        }
        match self.sort {
            Sort::OneFamily => {
                let server = node.lab.visit("/run/netns/server");
                let port = 9000 + u16::try_from(self.number).unwrap();
                let at = IpAddr::from([198, 51, 100, 1]);
                must("its port is reached", serves(&server, at, port, a.name()));
            }
            Sort::WithoutDefault => {
                let gateway = format!("10.{}.0.1", 150 + self.number);
                must("it reaches the node", pings_within(a, &gateway, SOON));
            }
            Sort::Pairs | Sort::Isolated | Sort::Small => {}
        }
    }
}

/// Says whether a server answers soon.
fn serves(from: &impl Place, at: IpAddr, port: u16, name: &str) -> bool {
    let deadline = Instant::now() + SOON;
    loop {
        let answer = try_tcp(from, SocketAddr::new(at, port), SILENCE);
        if answer.is_ok_and(|answer| answer.server == name) {
            return true;
        }
        if deadline < Instant::now() {
            return false;
        }
        thread::sleep(PAUSE);
    }
}

/// Attaches containers to the first network until it has as many as [`CROWD`].
fn crowd(node: &Node, wrong: &mut Vec<String>) -> Vec<Container> {
    let add = |number: usize| {
        let name = format!("m{number}");
        let container = container(node, &name);
        let (done, said) = node.run(&format!("netwright add mynet {name} --container-id {name}"));
        (container, (!done).then_some(said))
    };
    // The node has two already.
    let (containers, said): (Vec<_>, Vec<_>) = (2..CROWD).map(add).unzip();
    wrong.extend(said.into_iter().flatten());
    containers
}

#[test]
fn on_a_hundred_sound_nodes_nothing_is_found() {
    require!(
        "root",
        "full",
        "program:nft",
        "program:iptables-nft-restore",
        "program:ip6tables-nft-restore",
        "legacy-tables",
        "program:firewalld",
        "program:dbus-daemon",
        "file:/dev/net/tun"
    );
    let mut chance = Chance::new(25);
    let mut wrong = Vec::new();
    let plans: Vec<(usize, Plan)> =
        (0..NODES).map(|number| (number, Plan::draw(&mut chance, number))).collect();
    let plans = share::of_this_round(plans, SHARE);
    let tried_nodes = plans.len();
    for (number, plan) in plans {
        let complaints = tried(&plan);
        if !complaints.is_empty() {
            wrong.push((number, plan.told(), complaints));
        }
    }
    eprintln!(
        "MEASURED of {tried_nodes} sound nodes nothing was found on {}",
        tried_nodes - wrong.len()
    );
    assert!(wrong.is_empty(), "{} of {tried_nodes}: {wrong:#?}", wrong.len());
}
