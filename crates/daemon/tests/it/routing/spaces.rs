//! Blocks of a space: pods of a secondary network, with addresses of `cluster-ipam`, reach each other
//! from node to node. Plugins, the service `ipam` and its store are real; pods are attached by `ptp`.

use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::rc::Rc;
use std::{env, fs};

use serde_json::{Value, json};
use state::Roots;
use testkit::kube::KubeApi;
use testkit::traffic::{self, Server, pings_within};
use testkit::{Container, Place as _, Service, Snapshot, wait_for, wait_until};

use super::flannel::Backend;
use super::{Fabric, SOON, cluster, daemon, etcd};
use crate::support::{Answer, Run};

const SPACE: &str = "storage";
const SPACES: [&str; 4] = ["--spaces", SPACE, "--space-ranges", "10.60.0.0/16,fd00:60::/64"];

/// A secondary network on the nodes of a fabric.
struct Network {
    /// The service of each node, before its files.
    services: Vec<Option<Service>>,
    store: Vec<String>,
    bin: PathBuf,
}

impl Network {
    /// Starts `netwrightd ipam` on each node.
    fn start(fabric: &Fabric, store: &[&str]) -> Self {
        let bin = fabric.lab.dir().join("bin");
        fs::create_dir(&bin).unwrap();
        for plugin in ["ptp", "cluster-ipam"] {
            symlink(env::current_exe().unwrap(), bin.join(plugin)).unwrap();
        }
        let services = fabric.nodes.iter().map(|_| None).collect();
        let store = store.iter().map(|&flag| flag.to_owned()).collect();
        let mut network = Network { services, store, bin };
        (0..fabric.nodes.len()).for_each(|node| network.start_on(fabric, node));
        network
    }

    fn start_on(&mut self, fabric: &Fabric, node: usize) {
        let of = &fabric.nodes[node];
        let mut command = of.host.command(&daemon());
        command
            .args(["ipam", "--idle", "1s", "--node", &format!("{}{}", self.prefix(), of.name())])
            .args(["--socketpath", of.dir.join("ipam.sock").to_str().unwrap()])
            .args(["--state", of.dir.join("ipam").to_str().unwrap()])
            .args(&self.store)
            .env("NETWRIGHT_RUN_DIR", of.dir.join("run"))
            .env("NETWRIGHT_STATE_DIR", of.dir.join("lib"));
        let service = Service::start(command, &of.dir.join("ipam.log"));
        wait_until("ipam to be ready", || service.log().contains(" ready "));
        self.services[node] = Some(service);
    }

    /// If the source has no names of nodes, `ipam` uses names of its own.
    fn prefix(&self) -> &'static str {
        if self.store.contains(&"--etcd".to_owned()) { "worker-" } else { "" }
    }

    /// Calls the plugin `ptp` on a node, as a runtime does.
    fn call(
        &self,
        fabric: &Fabric,
        node: usize,
        verb: &str,
        pod: &Container,
        name: &str,
    ) -> Answer {
        let of = &fabric.nodes[node];
        let roots = Roots::new(of.dir.join("run"), of.dir.join("lib"));
        let ipam = json!({
            "type": "cluster-ipam", "network_name": SPACE, "socket": of.dir.join("ipam.sock"),
            "ipRanges": [{ "range": "10.60.0.0/16" }, { "range": "fd00:60::/64" }],
            "gateway": "10.60.0.1,fd00:60::1", "blockSize": 29, "sticky": !name.is_empty(),
            "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
        });
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID=u",
            pod.name()
        );
        of.host.enter(|| {
            let run = Run::bare("ptp", verb).to(pod).network(SPACE).roots(&roots);
            run.path(self.bin.to_str().unwrap()).args(&args).config(json!({ "ipam": ipam })).call()
        })
    }

    /// Attaches a pod. Tries again while a route still leads to the block's former holder.
    fn add(&self, fabric: &Fabric, node: usize, pod: &Container, name: &str) -> Pod {
        let result = wait_for("the pod to be attached", || {
            let answer = self.call(fabric, node, "ADD", pod, name);
            if answer.succeeded() {
                return Some(answer.ok());
            }
            let error = answer.error();
            assert_eq!(error.code, cni::code::TRY_AGAIN_LATER, "{error:?}");
            None
        });
        Pod::of(&result)
    }

    fn del(&self, fabric: &Fabric, node: usize, pod: &Container) {
        self.call(fabric, node, "DEL", pod, "").silent();
    }
}

/// The addresses of a pod, of IPv4 and of IPv6.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pod([String; 2]);

impl Pod {
    fn of(result: &Value) -> Self {
        let address = |n: usize| {
            let address = result["ips"][n]["address"].as_str().unwrap();
            address.split('/').next().unwrap().to_owned()
        };
        Pod([address(0), address(1)])
    }

    fn at(&self, port: u16) -> [String; 2] {
        let [v4, v6] = &self.0;
        [format!("{v4}:{port}"), format!("[{v6}]:{port}")]
    }
}

#[track_caller]
fn assert_reaches(fabric: &Fabric, from: &Container, to: &Pod) {
    for address in &to.0 {
        let log = || fabric.nodes.iter().map(log_of).collect::<String>();
        assert!(pings_within(from, address, SOON), "{} to {address}:\n{}", from.name(), log());
    }
}

fn log_of(node: &super::Node) -> String {
    let routes = node.host.sh("ip route; ip -6 route; ip nexthop");
    let log = node.service.as_ref().map_or(String::new(), Service::log);
    format!("--- {}\n{routes}\n{log}\n", node.name())
}

/// A node's routes to blocks of other nodes.
fn block_routes(fabric: &Fabric, node: usize) -> Vec<String> {
    let host = &fabric.nodes[node].host;
    let all = host.sh("ip -4 route show proto 78; ip -6 route show proto 78");
    let of_space = |line: &&str| line.starts_with("10.60.") || line.starts_with("fd00:60:");
    all.lines().filter(of_space).map(str::to_owned).collect()
}

/// Pods of a secondary network on three nodes, two on one segment and one behind a router, reach each
/// other with their own addresses, and the outside with their node's.
fn pods_reach_each_other(fabric: &Fabric, network: &Network) -> Vec<(Container, Pod)> {
    let pods: Vec<(Container, Pod)> = (0..fabric.nodes.len())
        .map(|node| {
            let pod = fabric.lab.container(&format!("storage-{node}"));
            let addresses = network.add(fabric, node, &pod, "");
            (pod, addresses)
        })
        .collect();
    for (from, own) in &pods {
        for (to, addresses) in &pods {
            if own == addresses {
                continue;
            }
            assert_reaches(fabric, from, addresses);
            for at in addresses.at(7) {
                let _server = Server::udp(to, &at, "pod");
                let seen = traffic::assert_udp(from, &at).seen.ip().to_string();
                assert!(own.0.contains(&seen), "{at} sees {seen}");
            }
        }
    }
    for (place, at) in ["192.0.2.1:7", "[2001:db8:0::1]:7"].into_iter().enumerate() {
        let _server = Server::udp(&*fabric.lab, at, "outside");
        let seen = traffic::assert_udp(&pods[0].0, at).seen.ip();
        let (v4, v6) = fabric.nodes[0].underlay();
        assert_eq!(seen, [v4, v6][place].parse::<IpAddr>().unwrap());
    }
    // The pods of the cluster's own network reach each other too.
    fabric.nodes[0].assert_reaches(&fabric.nodes[2]);
    assert!(pings_within(&pods[0].0, &fabric.nodes[2].pod_addresses()[0], SOON));
    pods
}

/// The records are objects of the API server. A block moves, is given back, and then belongs to an
/// unknown node. The server is away. A pod keeps its address on another node.
#[test]
fn vm_a_secondary_network_spans_the_nodes_of_a_cluster() {
    testkit::require!("root", "vxlan", "vm-full");
    let mut fabric = Fabric::new("routing-spaces", &[2, 1]);
    let api = cluster::cluster(&mut fabric);
    fabric.flags = SPACES.map(str::to_owned).to_vec();
    let before: Vec<Snapshot> = fabric.nodes.iter().map(|node| Snapshot::of(&node.host)).collect();
    fabric.start();
    let kubeconfig = api.kubeconfig(fabric.lab.dir());
    let network = Network::start(&fabric, &["--kubeconfig", kubeconfig.to_str().unwrap()]);
    let pods = pods_reach_each_other(&fabric, &network);

    let table = fabric.routes(0);
    let rows = table["rows"].as_array().unwrap().iter().filter(|row| row["peer"] == "b");
    let blocks = rows.map(|row| &row["blocks"][0]).inspect(|block| {
        assert_eq!(block["space"], SPACE, "{table}");
    });
    let of_b: Vec<String> =
        blocks.map(|block| block["prefix"].as_str().unwrap().to_owned()).collect();
    assert_eq!(of_b.len(), 2, "{table}");
    assert_eq!(table["blocks"].as_array().unwrap().len(), 2, "{table}");
    let own = table["blocks"][0]["prefix"].as_str().unwrap();
    let announced = fabric.nodes[0].host.sh("ip route show proto 79");
    assert!(announced.contains(&format!("unreachable {own}")), "{announced}");
    let unknown = pods[0].0.try_sh("ping -n -c 1 -W 5 10.60.255.7");
    let unknown = String::from_utf8_lossy(&unknown.stdout).into_owned();
    assert!(unknown.contains("Unreachable"), "{unknown}");

    a_strangers_block_is_named_and_not_routed(&fabric, &api);
    a_block_moves_without_a_lost_route(&fabric, &api);
    a_kept_address_is_where_the_pod_is(&fabric, &network, &pods[0].0);

    // While the server is away, everything stays, even for a service that starts then. The record is
    // written at most every five seconds.
    let record = fabric.nodes[0].dir.join("lib/routing/peers");
    wait_until("the blocks to be recorded", || {
        let written = fs::read_to_string(&record).unwrap_or_default();
        of_b.iter().all(|block| written.contains(block))
    });
    api.refuse();
    wait_until("the silence to be told", || {
        fabric.routes(0)["warnings"]
            .to_string()
            .contains("records of blocks of space storage cannot be read")
    });
    fabric.nodes[0].service.take().unwrap().kill();
    fabric.nodes[0].host.sh("ip nexthop flush proto 78");
    fabric.start_on(0);
    assert_reaches(&fabric, &pods[0].0, &pods[1].1);
    api.restore();
    // The service takes a quarter of a minute to notice that a watch without events works again.
    for kind in ["addressblocks", "stickyaddresses"] {
        let name = api.objects(kind)[0]["metadata"]["name"].as_str().unwrap().to_owned();
        api.change(kind, "", &name, &json!({"metadata": {"annotations": {"x": "y"}}}));
    }
    wait_until("the server to be heard", || {
        !fabric.routes(0)["warnings"].to_string().contains("cannot be read")
    });

    // The last pods are gone, and their blocks are given back, except one with a kept address.
    for (node, (pod, _)) in pods.iter().enumerate() {
        network.del(&fabric, node, pod);
    }
    drop(pods);
    wait_until("no block to be routed", || block_routes(&fabric, 1).is_empty());
    drop(network);
    for (node, before) in before.iter().enumerate() {
        fabric.uninstall(node);
        before.assert_same(&Snapshot::of(&fabric.nodes[node].host));
    }
}

/// Makes the record of a block as `ipam` does.
fn block(api: &KubeApi, prefix: &str, node: &str) {
    let labels = api.objects("addressblocks")[0]["metadata"]["labels"].clone();
    let (address, length) = prefix.split_once('/').unwrap();
    let name = format!("block-{}", address.replace('.', "-"));
    api.create(&json!({
        "apiVersion": "ipam.netwright.io/v1alpha1", "kind": "AddressBlock",
        "metadata": {"name": name, "labels": labels},
        "spec": {"key": format!("{SPACE}/{address}-{length}"), "space": SPACE, "block": prefix, "node": node, "epoch": 1},
    }));
}

fn a_strangers_block_is_named_and_not_routed(fabric: &Fabric, api: &KubeApi) {
    block(api, "10.60.200.0/29", "x");
    block(api, "10.61.0.0/29", "b");
    let said =
        "node x is none that the source knows: its blocks are not routed (1, 10.60.200.0/29 first)";
    let outside = "node b: refused: block 10.61.0.0/29 of space storage: it is outside space-ranges (10.60.0.0/16, fd00:60::/64)";
    for words in [said, outside] {
        wait_until(words, || fabric.routes(0)["warnings"].to_string().contains(words));
        let log = fabric.nodes[0].service.as_ref().unwrap().log();
        assert_eq!(log.matches(words).count(), 1, "{log}");
    }
    let routes = block_routes(fabric, 0).join("\n");
    assert!(!routes.contains("10.60.200.0/29") && !routes.contains("10.61."), "{routes}");
    api.remove("addressblocks", "", "block-10-60-200-0");
    api.remove("addressblocks", "", "block-10-61-0-0");
    wait_until("it to be forgotten", || fabric.routes(0)["warnings"] == json!([]));
}

/// The kernel reports the replaced route, and no deleted one.
fn a_block_moves_without_a_lost_route(fabric: &Fabric, api: &KubeApi) {
    let prefix = "10.60.201.0/29";
    block(api, prefix, "b");
    let host = &fabric.nodes[0].host;
    let by = || host.sh(&format!("ip route show {prefix} proto 78"));
    let nexthop = |pod: &str| {
        let line = host.sh(&format!("ip route show {pod} proto 78"));
        line.split_once("nhid ").unwrap().1.split(' ').next().unwrap().to_owned()
    };
    let (of_b, of_c) = (nexthop("10.244.2.0/24"), nexthop("10.244.3.0/24"));
    wait_until("the block's route", || by().contains(&format!("nhid {of_b} ")));
    let told = fabric.lab.dir().join("monitor");
    let out = fs::File::create(&told).unwrap();
    let mut monitor = host.command("ip");
    let mut monitor = monitor.args(["monitor", "route"]).stdout(out).spawn().unwrap();
    let heard = || fs::read_to_string(&told).unwrap();
    wait_until("the monitor to hear", || {
        host.sh("ip route add 10.200.0.0/24 dev lo; ip route del 10.200.0.0/24 dev lo");
        heard().contains("10.200.0.0/24")
    });
    for _ in 0..5 {
        for (node, nexthop) in [("c", &of_c), ("b", &of_b)] {
            api.change("addressblocks", "", "block-10-60-201-0", &json!({"spec": {"node": node}}));
            wait_until("the block to move", || by().contains(&format!("nhid {nexthop} ")));
        }
    }
    wait_until("all to be heard", || 10 <= heard().matches(prefix).count());
    monitor.kill().unwrap();
    monitor.wait().unwrap();
    assert!(!heard().contains(&format!("Deleted {prefix}")), "{}", heard());
    api.remove("addressblocks", "", "block-10-60-201-0");
    wait_until("the block's route to go", || by().is_empty());
}

/// A pod that keeps its address ends on the second node and starts on the third. Its block stays
/// with the second node.
fn a_kept_address_is_where_the_pod_is(fabric: &Fabric, network: &Network, from: &Container) {
    let first = fabric.lab.container("web-first");
    let kept = network.add(fabric, 1, &first, "web-0");
    assert_reaches(fabric, from, &kept);
    network.del(fabric, 1, &first);
    let second = fabric.lab.container("web-second");
    assert_eq!(network.add(fabric, 2, &second, "web-0"), kept);
    assert_reaches(fabric, from, &kept);
    let routes = block_routes(fabric, 0).join("\n");
    assert!(routes.contains(&format!("{} ", kept.0[0])), "{routes}");
    network.del(fabric, 2, &second);
    wait_until("the address's route to go", || {
        !block_routes(fabric, 0).join("\n").contains(&format!("{} ", kept.0[0]))
    });
}

/// The records are in etcd, as flannel's leases are. The leases do not name nodes; the addresses in
/// the records identify them.
#[test]
fn vm_a_secondary_network_spans_nodes_with_leases() {
    testkit::require!("root", "vxlan", "vm-full", "program:etcd", "program:curl");
    let mut fabric = Fabric::new("routing-spaces-etcd", &[2, 1]);
    let lab = Rc::clone(&fabric.lab);
    let store = etcd::start(&mut fabric, &lab, &Backend::Vxlan.config());
    fabric.source.extend(SPACES.map(str::to_owned));
    for node in 0..3 {
        etcd::had_prefixes(&fabric, node);
        etcd::replace(&mut fabric, node);
    }
    let network = Network::start(&fabric, &["--etcd", &store.endpoints().join(",")]);
    let pods = pods_reach_each_other(&fabric, &network);
    assert_eq!(fabric.routes(0)["warnings"], json!([]));
    drop(network);
    drop(pods);
}
