//! `netwrightd policy` on a node: real pods, real packets, and the plugins that runtimes call.
//!
//! The lab's host is the node `n1`. Pods of other nodes are addresses of one container behind it.

mod admission;
mod away;
mod bad;
mod cuts;
mod damage;
mod disk;
mod files;
mod inside;
mod kill;
mod links;
mod load;
mod networks;
mod size;
mod status;
mod torture;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::kube::KubeApi;
use testkit::traffic::{Server, assert_no_tcp, assert_tcp, try_tcp};
use testkit::{Container, Place as _, Service, wait_until};

use crate::support::{Answer, Node, Run};

const DAEMON: &str = env!("CARGO_BIN_EXE_netwrightd");

/// The executable: the tests' own, or an optimised one that is measured.
fn daemon() -> String {
    std::env::var("NETWRIGHTD_MEASURED").unwrap_or_else(|_| DAEMON.to_owned())
}

/// Returns a folder with the plugins of pods, if the environment names their executable, such as
/// `target/dist/netwright`. Otherwise they are called within the tests' process, which is not
/// optimised.
fn measured_plugins(node: &Node) -> Option<PathBuf> {
    let executable = std::env::var_os("NETWRIGHT_MEASURED")?;
    let bin = node.dir("measured");
    for plugin in ["host-local", "policy", "ptp"] {
        symlink(&executable, bin.join(plugin)).unwrap();
    }
    Some(bin)
}

/// Where servers of pods listen.
const PORT: u16 = 8080;

/// The node's addresses towards other nodes, and those of the container that stands for all other
/// nodes.
const NODE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const OTHERS: [&str; 2] = ["192.0.2.2", "2001:db8::2"];

/// Events must tell the service of every change: it looks by itself only once an hour.
const FLAGS: [&str; 4] = ["--interval", "1h", "--log-rate", "0"];

/// A node of a cluster.
struct Cluster {
    service: Option<Service>,
    api: KubeApi,
    /// The container with the addresses of other nodes' pods.
    others: Container,
    flags: Vec<String>,
    /// The plugins that are measured.
    plugins: Option<PathBuf>,
    node: Node,
}

/// A pod of this node.
struct Pod {
    container: Container,
    namespace: &'static str,
    name: String,
    uid: String,
    /// The result of its first plugin.
    result: Value,
    addresses: Vec<IpAddr>,
    servers: Vec<Server>,
}

impl Pod {
    fn v4(&self) -> String {
        self.addresses.iter().find(|address| address.is_ipv4()).unwrap().to_string()
    }

    /// Starts its servers.
    fn serve(&mut self) {
        let serve = |address: &IpAddr| {
            Server::tcp(&self.container, &SocketAddr::new(*address, PORT).to_string(), &self.name)
        };
        self.servers = self.addresses.iter().map(serve).collect();
    }

    /// What a runtime passes in `CNI_ARGS`.
    fn args(&self) -> String {
        format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_UID={}",
            self.namespace, self.name, self.uid
        )
    }

    /// Asserts that connections to all addresses of a pod succeed, or that all fail.
    #[track_caller]
    fn assert_reaches(&self, to: &Pod, reaches: bool) {
        for address in &to.addresses {
            let at = SocketAddr::new(*address, PORT).to_string();
            match reaches {
                true => drop(assert_tcp(&self.container, &at)),
                false => assert_no_tcp(&self.container, &at),
            }
        }
    }

    /// Reports whether a connection to a pod succeeds.
    fn reaches(&self, to: &Pod) -> bool {
        let at = SocketAddr::new(to.addresses[0], PORT);
        try_tcp(&self.container, at, Duration::from_millis(300)).is_ok()
    }
}

impl Cluster {
    /// Makes a node, and an API server that has the namespace `shop` and the Nodes.
    fn new(name: &str) -> Self {
        let node = Node::new(name);
        let others = node.container("others");
        let [v4, v6] = NODE;
        let [others4, others6] = OTHERS;
        node.sh(&format!(
            "sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1\n\
             ip -batch - <<END\n\
             link add up0 type veth peer name eth0 netns {name}\n\
             link set up0 addrgenmode none up\n\
             addr add {v4}/24 dev up0\n\
             addr add {v6}/64 dev up0 nodad\n\
             END\n\
             ip -n {name} -batch - <<END\n\
             link set lo up\n\
             link set eth0 addrgenmode none up\n\
             addr add {others4}/24 dev eth0\n\
             addr add {others6}/64 dev eth0 nodad\n\
             route add default via {v4}\n\
             route add default via {v6}\n\
             END\n\
             ip route add 10.64.0.0/10 via {others4}",
            name = others.name(),
        ));
        let api = node.lab.enter(|| KubeApi::start_at(v4));
        let kubeconfig = api.kubeconfig(node.lab.dir());
        let source = ["--source", "kubernetes", "--kubeconfig", kubeconfig.to_str().unwrap()];
        let flags = source.iter().chain(&FLAGS).map(|word| (*word).to_owned()).collect();
        api.create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}));
        for (name, [v4, v6]) in [("n1", NODE), ("n2", OTHERS)] {
            api.create(&json!({
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
                "status": {"addresses": [
                    {"type": "InternalIP", "address": v4}, {"type": "InternalIP", "address": v6},
                ]},
            }));
        }
        let plugins = measured_plugins(&node);
        Cluster { service: None, api, others, flags, plugins, node }
    }

    fn socket(&self) -> PathBuf {
        self.node.lab.dir().join("policy.sock")
    }

    /// The service's command.
    fn command(&self) -> Command {
        let mut command = self.node.lab.command(&daemon());
        command
            .args(["policy", "--node", "n1", "--socketpath", self.socket().to_str().unwrap()])
            .args(&self.flags)
            .env("NETWRIGHT_RUN_DIR", &self.node.roots.run)
            .env("NETWRIGHT_STATE_DIR", &self.node.roots.lib)
            .stdin(Stdio::null());
        command
    }

    /// The service's command under `strace`, which writes these calls to [`Cluster::trace`], and
    /// manipulates them as the options say.
    fn traced(&self, calls: &str, options: &[&str]) -> Command {
        let command = self.command();
        let mut traced = self.node.lab.command("strace");
        traced.args(["-D", "-f", "-qq", "--seccomp-bpf", "-e", &format!("trace={calls}")]);
        traced.args(options).arg("-o").arg(self.trace());
        let daemon = daemon();
        traced.args(command.get_args().skip_while(|word| *word != daemon.as_str()));
        traced.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        traced
    }

    fn trace(&self) -> PathBuf {
        self.node.lab.dir().join("trace")
    }

    fn log_path(&self) -> PathBuf {
        self.node.lab.dir().join("policy.log")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Starts the service, and waits until it answers plugins.
    fn spawn(&mut self) {
        let times = |log: &str| log.matches(" ready ").count();
        let before = times(&self.log());
        self.service = Some(Service::start(self.command(), &self.log_path()));
        wait_until("the service to be ready", || before < times(&self.log()));
    }

    /// Starts the service, and waits until it enforces policies.
    fn start(&mut self) {
        let times = |log: &str| log.matches("policies are enforced").count();
        let before = times(&self.log());
        self.spawn();
        wait_until("policies to be enforced", || before < times(&self.log()));
    }

    fn kill(&mut self) {
        if let Some(service) = self.service.take() {
            service.kill();
        }
    }

    /// Ends the service as its manager does.
    fn stop(&mut self) {
        if let Some(service) = self.service.take() {
            assert_eq!(service.stop(), Some(0));
        }
    }

    /// Creates a pod of this node in the API server, as a user and the scheduler would.
    fn create(&self, name: &str) {
        self.api.create(&object(name, &uid(name), "n1"));
    }

    /// Attaches a pod as a runtime does, with a server in it.
    fn attach(&self, name: &str) -> Pod {
        self.attach_in("shop", name)
    }

    /// Attaches a pod of a namespace.
    fn attach_in(&self, namespace: &'static str, name: &str) -> Pod {
        let mut pod = self.connect(namespace, name);
        self.admit(&pod);
        pod.serve();
        pod
    }

    /// Attaches a container whose runtime names no pod. Its name is its label.
    fn attach_container(&self, name: &str) -> Pod {
        let mut pod = self.connect("default", name);
        let labels = json!([{"key": "app", "value": name}]);
        let run =
            self.policy("ADD", &pod).args("").config(json!({"args": {"cni": {"labels": labels}}}));
        run.call().ok();
        pod.serve();
        pod
    }

    /// Calls the plugins before `policy`.
    fn connect(&self, namespace: &'static str, name: &str) -> Pod {
        self.connect_by("ptp", &json!({}), namespace, name)
    }

    /// Does the same with this plugin and its configuration.
    fn connect_by(&self, by: &str, keys: &Value, namespace: &'static str, name: &str) -> Pod {
        let container = self.node.container(name);
        let mut pod = Pod {
            container,
            namespace,
            name: name.to_owned(),
            uid: uid(name),
            result: Value::Null,
            addresses: Vec::new(),
            servers: Vec::new(),
        };
        let ranges = json!([[{"subnet": "10.0.0.0/16"}], [{"subnet": "fd00::/64"}]]);
        let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
        let ipam = json!({"type": "host-local", "ranges": ranges, "routes": routes});
        let run = self.node.run(by, "ADD").network("pods").to(&pod.container);
        let run = run.args(&pod.args()).config(keys.clone()).config(json!({"ipam": ipam}));
        pod.result = self.call(run).ok();
        let ips = pod.result["ips"].as_array().unwrap().iter();
        let address = |ip: &Value| {
            let text = ip["address"].as_str().unwrap();
            text.split('/').next().unwrap().parse().unwrap()
        };
        pod.addresses = ips.map(address).collect();
        pod
    }

    /// Creates a pod and attaches it.
    fn pod(&self, name: &str) -> Pod {
        self.create(name);
        self.attach(name)
    }

    /// A call of the plugin `policy` for a pod.
    fn policy<'n>(&'n self, verb: &str, pod: &Pod) -> Run<'n> {
        let run = self.node.run("policy", verb).network("pods").to(&pod.container);
        run.args(&pod.args()).prev(&pod.result).config(json!({"socketpath": self.socket()}))
    }

    /// Makes a call, of the plugin that is measured if there is one.
    #[track_caller]
    fn call(&self, run: Run<'_>) -> Answer {
        match &self.plugins {
            Some(bin) => run.call_in(bin),
            None => run.call(),
        }
    }

    /// Calls the plugin `policy`; returns what it warned of.
    #[track_caller]
    fn admit(&self, pod: &Pod) -> String {
        let answer = self.call(self.policy("ADD", pod));
        let told = answer.stderr();
        assert_eq!(answer.ok(), pod.result);
        told
    }

    /// Returns the value in a line of the service's metrics.
    #[track_caller]
    fn metric(&self, line: &str) -> u64 {
        let socket = self.node.roots.run.join("agent/policy.sock");
        let asked = "curl -s --fail http://netwrightd/metrics --unix-socket";
        let all = self.node.sh(&format!("{asked} {}", socket.display()));
        let mut values = all.lines().filter_map(|said| said.strip_prefix(line));
        let value = values.next().and_then(|value| value.trim().parse().ok());
        value.unwrap_or_else(|| panic!("no {line} in {all}"))
    }

    /// Calls CHECK of the plugin `policy`.
    fn check(&self, pod: &Pod) -> Answer {
        self.policy("CHECK", pod).call()
    }

    /// Calls STATUS of the plugin `policy`.
    fn status(&self) -> Answer {
        let run = self.node.run("policy", "STATUS").network("pods").of_network();
        run.config(json!({"socketpath": self.socket()})).call()
    }

    /// Detaches a pod as a runtime does.
    fn detach(&self, pod: &Pod) {
        self.call(self.policy("DEL", pod)).silent();
        self.disconnect(pod);
    }

    /// Calls the plugins before `policy` at the end of a pod.
    fn disconnect(&self, pod: &Pod) {
        let run = self.node.run("ptp", "DEL").network("pods").to(&pod.container);
        let run = run.config(json!({"ipam": {"type": "host-local"}})).prev(&pod.result);
        self.call(run).silent();
    }
}

/// The UID of a pod.
fn uid(name: &str) -> String {
    format!("uid-of-{name}")
}

/// A pod as the API has it; its label `app` is its name.
fn object(name: &str, uid: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": name, "uid": uid, "labels": {"app": name}},
        "spec": {"nodeName": node},
    })
}

/// Lets only pods with one of these labels `app` reach those with another, at the port.
fn allow(name: &str, app: &str, from: &[&str]) -> Value {
    let pods = json!({"matchExpressions": [{"key": "app", "operator": "In", "values": from}]});
    let from = if from.is_empty() { json!([]) } else { json!([{"podSelector": pods}]) };
    let rules = if from == json!([]) {
        json!([])
    } else {
        json!([{"from": from, "ports": [{"port": PORT}]}])
    };
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": name},
        "spec": {
            "podSelector": {"matchLabels": {"app": app}}, "policyTypes": ["Ingress"],
            "ingress": rules,
        },
    })
}

/// Policies decide from a pod's first packet on whether two pods reach each other, and every change
/// of a policy takes effect.
#[test]
fn pods_reach_each_other_as_policies_say() {
    testkit::require!("root");
    let mut cluster = Cluster::new("policy-pods");
    cluster.api.create(&allow("db", "db", &["web"]));
    cluster.start();
    let [db, web, other] = ["db", "web", "other"].map(|name| cluster.pod(name));
    web.assert_reaches(&db, true);
    other.assert_reaches(&db, false);
    db.assert_reaches(&other, true);
    // The node reaches all pods, and all pods reach the node.
    assert_tcp(&cluster.node.lab, &format!("{}:{PORT}", db.v4()));

    // A label changes, then a policy; then there is no policy, then one for all namespaces.
    cluster.api.change("pods", "shop", "other", &json!({"metadata": {"labels": {"app": "web"}}}));
    wait_until("the other label", || other.reaches(&db));
    cluster.api.change("networkpolicies", "shop", "db", &json!({"spec": {"ingress": []}}));
    wait_until("the other policy", || !other.reaches(&db) && !web.reaches(&db));
    cluster.api.remove("networkpolicies", "shop", "db");
    wait_until("no policy", || web.reaches(&db));
    cluster.api.create(&json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "quarantine"},
        "spec": {
            "tier": "Admin", "priority": 1,
            "subject": {"pods": {"podSelector": {"matchLabels": {"app": "db"}}}},
            "egress": [{"action": "Deny", "to": [{"namespaces": {}}]}],
        },
    }));
    wait_until("the policy of the cluster", || !db.reaches(&web));
    web.assert_reaches(&db, true);
    // The verdicts of a pod are removed with the pod.
    for pod in [&db, &web, &other] {
        cluster.detach(pod);
    }
    let rules = cluster.node.sh("nft list table inet netwright-policy");
    assert!(
        !pod_addresses(&[&db, &web, &other]).any(|address| rules.contains(&address)),
        "{rules}"
    );
}

/// A DEL that found no service listening removes its record just after the service has read it.
#[test]
fn a_record_that_goes_while_the_service_starts_leaves_nothing_behind() {
    testkit::require!("root", "program:nft");
    let mut cluster = Cluster::new("policy-start");
    cluster.api.create(&allow("web", "web", &["other"]));
    cluster.start();
    let web = cluster.pod("web");
    let found =
        cluster.node.sh(&format!("find {} -name policy.json", cluster.node.roots.run.display()));
    let path = PathBuf::from(found.trim());
    let record = fs::read(&path).unwrap();
    loop {
        cluster.kill();
        fs::write(&path, &record).unwrap();
        let begin = Instant::now();
        cluster.start();
        let is_there = damage::table(&cluster).contains(&format!("{} ", web.v4()));
        assert!(is_there, "{}", damage::table(&cluster));
        fs::remove_file(&path).unwrap();
        // After that time the service may have read the records again.
        if begin.elapsed() < Duration::from_secs(1) {
            break;
        }
    }
    wait_until("the pod's address to lead nowhere", || {
        !damage::table(&cluster).contains(&format!("{} ", web.v4()))
    });
}

fn pod_addresses<'p>(pods: &'p [&Pod]) -> impl Iterator<Item = String> + use<'p> {
    let addresses = pods.iter().flat_map(|pod| &pod.addresses);
    addresses.map(|address| format!("{address} "))
}
