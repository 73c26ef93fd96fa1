//! `netwright-multi`: the networks of a Kubernetes pod, with a stand-in for the daemon.

mod asks;
mod bad;
mod four;
mod lost;
mod matrix;
mod networks;
mod running;

use cni::json::Object;
use node_api::multinet::PlannedNetwork;
use serde_json::{Value, json};
use testkit::Container;

use crate::support::{Node, Run};

/// The `CNI_ARGS` of kubelet.
const POD: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=uid-1";

/// A folder of configurations with the default network `cluster`, which does not sort first.
fn node(name: &str) -> Node {
    let node = Node::new(name);
    conf(&node, "50-cluster.conflist", &list("cluster", json!([bridge(&node, 1)])));
    let other = list("another", json!([{ "type": "no-such-plugin" }]));
    conf(&node, "10-another.conflist", &other);
    node
}

fn conf(node: &Node, file: &str, content: &Value) {
    std::fs::write(node.dir("net.d").join(file), content.to_string()).unwrap();
}

fn list(name: &str, plugins: Value) -> Value {
    json!({ "cniVersion": "1.1.0", "name": name, "plugins": plugins })
}

fn bridge(node: &Node, number: u8) -> Value {
    json!({
        "type": "bridge", "bridge": format!("br{number}"), "isGateway": true,
        "capabilities": { "ips": true, "mac": true },
        "ipam": {
            "type": "host-local", "dataDir": node.dir("held"),
            "ranges": [[{ "subnet": format!("10.{number}.0.0/24") }], [{ "subnet": format!("fd00:{number}::/64") }]],
            "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]
        }
    })
}

/// A network as the daemon plans it.
fn planned(name: &str, list: &Value) -> PlannedNetwork {
    let list = Some(object(list));
    PlannedNetwork { name: name.to_owned(), list, ..PlannedNetwork::default() }
}

/// The default network, which the node has.
fn default() -> PlannedNetwork {
    PlannedNetwork {
        name: "cluster".to_owned(),
        default: true,
        on_node: "cluster".to_owned(),
        ..PlannedNetwork::default()
    }
}

fn object(value: &Value) -> Object {
    Object::parse(value.to_string().as_bytes()).unwrap()
}

/// A call for a pod.
fn pod<'n>(node: &'n Node, verb: &str, to: &Container) -> Run<'n> {
    bare(node, verb, to).args(POD)
}

/// A call for a container that is not a pod.
fn bare<'n>(node: &'n Node, verb: &str, to: &Container) -> Run<'n> {
    node.run("netwright-multi", verb).to(to).network("multi").config(json!({
        "confDir": node.dir("net.d"), "clusterNetwork": "cluster", "deviceInfoDir": node.dir("devinfo"),
    }))
}

/// How many interfaces a container has.
#[track_caller]
fn links(container: &Container) -> Vec<String> {
    use testkit::Place as _;
    let shown = container.sh("ip -o link show | sed 's/^[0-9]*: //; s/[@:].*//'");
    shown.split_whitespace().filter(|name| *name != "lo").map(str::to_owned).collect()
}

/// Makes a plugin that records its calls with their input, and returns `result`.
fn stub(node: &Node, name: &str, result: &Value) {
    let log = node.dir("log");
    let mut result = result.clone();
    result["cniVersion"] = json!("1.1.0");
    node.stub(
        name,
        &format!(
            "cat >{log}/{name}.$CNI_COMMAND.$CNI_IFNAME; echo {name} $CNI_COMMAND $CNI_IFNAME >>{log}/calls\n\
             echo \"$CNI_ARGS\" >{log}/{name}.args\n[ $CNI_COMMAND = ADD ] || exit 0\ncat <<'X'\n{result}\nX",
            log = log.display()
        ),
    );
}

/// The calls of such plugins so far.
fn calls(node: &Node) -> Vec<String> {
    let text = std::fs::read_to_string(node.dir("log").join("calls")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// The standard input of a call of such a plugin.
fn given(node: &Node, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(node.dir("log").join(name)).unwrap()).unwrap()
}
