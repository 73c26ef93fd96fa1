//! The source `kubernetes`: the nodes are the Nodes of a cluster.

use std::time::Instant;

use serde_json::{Value, json};
use testkit::kube::KubeApi;
use testkit::{Place as _, Snapshot, wait_until};

use super::Fabric;

pub(super) const KEY: &str = "routing.netwright.io/node";

/// Makes a Node for each node of a fabric, in an API server that all nodes reach.
pub(super) fn cluster(fabric: &mut Fabric) -> KubeApi {
    let api = fabric.lab.enter(|| KubeApi::start_at("192.0.2.1"));
    for number in 0..fabric.nodes.len() {
        api.create(&node(fabric, number));
    }
    let kubeconfig = api.kubeconfig(fabric.lab.dir());
    fabric.source = ["--source", "kubernetes", "--kubeconfig", kubeconfig.to_str().unwrap()]
        .map(str::to_owned)
        .to_vec();
    api
}

pub(super) fn node(fabric: &Fabric, number: usize) -> Value {
    let node = &fabric.nodes[number];
    let (v4, v6) = node.underlay();
    let number = node.number;
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name()},
        "spec": {"podCIDRs": [format!("10.244.{number}.0/24"), format!("fd00:244:{number}::/64")]},
        "status": {"addresses": [
            {"type": "Hostname", "address": node.name()},
            {"type": "InternalIP", "address": v4}, {"type": "InternalIP", "address": v6},
        ]},
    })
}

pub(super) fn annotation(api: &KubeApi, node: &str) -> Value {
    let node = api.object("nodes", "", node).unwrap();
    let text = node["metadata"]["annotations"][KEY].as_str();
    text.map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
}

/// The Node's condition of its network: status and reason.
pub(super) fn condition(api: &KubeApi, node: &str) -> Option<(String, String)> {
    let node = api.object("nodes", "", node).unwrap();
    let all = node["status"]["conditions"].as_array()?.clone();
    let found = all.iter().find(|one| one["type"] == "NetworkUnavailable")?;
    let text = |key: &str| found[key].as_str().unwrap().to_owned();
    Some((text("status"), text("reason")))
}

pub(super) fn is(status: &str, reason: &str) -> Option<(String, String)> {
    Some((status.to_owned(), reason.to_owned()))
}

/// Each node publishes in its own Node what the others need, and pods then reach each other. While
/// the API server is away, everything stays. A deleted node is removed from all others.
#[test]
fn vm_pods_of_a_cluster_reach_each_other() {
    testkit::require!("root", "vxlan", "vm-full");
    let mut fabric = Fabric::new("routing-cluster", &[2, 1]);
    let api = cluster(&mut fabric);
    let before: Vec<Snapshot> = fabric.nodes.iter().map(|node| Snapshot::of(&node.host)).collect();
    fabric.start();
    for from in &fabric.nodes {
        let name = from.name();
        wait_until("the annotation", || annotation(&api, &name) != Value::Null);
    }
    fabric.assert_all_reach_all();
    let said = annotation(&api, "a");
    assert_eq!(said["underlay"], json!(["192.0.2.11", "2001:db8::10"]), "{said}");
    assert_eq!((&said["version"], &said["mtu"]), (&json!(1), &json!(1500)), "{said}");
    wait_until("this node to be ready", || fabric.routes(0)["phase"] == "ready");
    for node in ["a", "b", "c"] {
        wait_until("the condition", || condition(&api, node) == is("False", "RoutingIsUp"));
    }

    // If what a node publishes is removed or damaged, the node writes it again.
    for wrong in [Value::Null, json!("{}")] {
        api.change("nodes", "", "a", &json!({"metadata": {"annotations": {KEY: wrong}}}));
        wait_until("the annotation to be as before", || annotation(&api, "a") == said);
    }
    // The others do not believe a Node that publishes an address which it does not have.
    let mut stolen = said.clone();
    stolen["underlay"] = json!(["192.0.2.12"]);
    stolen["offers"]["vxlan"].as_object_mut().unwrap().remove("mac6");
    let signal = |name: &str, fabric: &Fabric| {
        let pid = fabric.nodes[0].service.as_ref().unwrap().pid();
        fabric.lab.sh(&format!("kill -{name} {pid}"));
    };
    signal("STOP", &fabric);
    api.change("nodes", "", "a", &json!({"metadata": {"annotations": {KEY: stolen.to_string()}}}));
    let log = |fabric: &Fabric, number: usize| fabric.nodes[number].service.as_ref().unwrap().log();
    wait_until("it to be refused", || {
        log(&fabric, 1).contains("192.0.2.12 is not among the Node's addresses")
    });
    signal("CONT", &fabric);
    wait_until("the annotation to be as before", || annotation(&api, "a") == said);
    fabric.assert_all_reach_all();

    // The server goes away, and when it is back it has lost its history.
    api.refuse();
    wait_until("the silence to be told", || {
        fabric.routes(0)["phase"].to_string().contains("degraded")
    });
    fabric.assert_all_reach_all();
    api.restore();
    api.remove("nodes", "", "c");
    let routes = |fabric: &Fabric| fabric.nodes[0].host.sh("ip route show proto 78");
    wait_until("the third node to go", || !routes(&fabric).contains("10.244.3.0/24"));
    wait_until("this node to be ready again", || fabric.routes(0)["phase"] == "ready");
    // The node comes back as another Node, without what it wrote to the first.
    api.create(&node(&fabric, 2));
    wait_until("its annotation", || annotation(&api, "c") != Value::Null);
    fabric.assert_all_reach_all();

    for (number, before) in before.iter().enumerate() {
        let name = fabric.nodes[number].name();
        fabric.uninstall(number);
        assert_eq!(annotation(&api, &name), Value::Null);
        before.assert_same(&Snapshot::of(&fabric.nodes[number].host));
    }
}

/// The network between the nodes drops the tunnels' packets, while the nodes answer at their own
/// addresses. The service then tells the cluster that pods have no network. The condition of
/// another agent stays. The service waits half a minute before it says so, so this test runs only
/// with `--full`. In every run a test of `netwright-routing` shows the decision with a virtual
/// clock (`routing::a_node_without_peers_is_available_and_one_whose_peers_are_cut_off_is_not`).
#[test]
fn vm_a_node_that_is_cut_off_says_so() {
    testkit::require!("root", "vxlan", "full", "program:nft");
    let mut fabric = Fabric::new("routing-cut-off", &[1, 1]);
    let api = cluster(&mut fabric);
    let pressure =
        json!({"type": "DiskPressure", "status": "False", "reason": "KubeletHasNoDiskPressure"});
    api.change("nodes", "", "a", &json!({"status": {"conditions": [pressure]}}));
    fabric.lab.sh("nft 'table inet t { chain c { type filter hook forward priority 0; udp dport 8472 drop; }; }'");
    fabric.start();
    wait_until("it to be said", || condition(&api, "a") == is("True", "NoNodeAnswers"));
    fabric.lab.sh("nft delete table inet t");
    wait_until("the end of it", || condition(&api, "a") == is("False", "RoutingIsUp"));
    let node = api.object("nodes", "", "a").unwrap();
    assert!(node["status"]["conditions"].to_string().contains("DiskPressure"), "{node}");
}

/// A node waits until its Node and its prefix exist, and says for what it waits.
#[test]
fn a_node_waits_for_its_prefix() {
    testkit::require!("root");
    let mut fabric = Fabric::new("routing-no-prefix", &[1]);
    fabric.flags = vec!["--path".to_owned(), "direct".to_owned()];
    let api = cluster(&mut fabric);
    api.remove("nodes", "", "a");
    let before = Snapshot::of(&fabric.nodes[0].host);
    fabric.start_on(0);
    let phase = |fabric: &Fabric| fabric.routes(0)["phase"].to_string();
    wait_until("it to lack its Node", || phase(&fabric).contains("has no Node"));
    let mut bare = node(&fabric, 0);
    let spec = std::mem::take(&mut bare["spec"]);
    api.create(&bare);
    wait_until("it to lack its prefix", || phase(&fabric).contains("has no spec.podCIDRs"));
    // The cluster's controller and this service are configured with different ranges.
    api.change("nodes", "", "a", &json!({"spec": {"podCIDRs": ["10.99.1.0/24"]}}));
    wait_until("it to refuse its prefix", || {
        phase(&fabric).contains("10.99.1.0/24 is outside the cluster's IPv4 ranges")
    });
    before.assert_same(&Snapshot::of(&fabric.nodes[0].host));
    api.change("nodes", "", "a", &json!({"spec": spec}));
    wait_until("it to be ready", || fabric.routes(0)["phase"] == "ready");
    wait_until("the annotation", || annotation(&api, "a") != Value::Null);
    // There is no other node, which is not a fault.
    wait_until("the condition", || condition(&api, "a") == is("False", "RoutingIsUp"));
}

/// The credentials with which the service was started are no longer valid, as when a certificate or
/// a token expires. The service reads the kubeconfig again, without a restart.
#[test]
fn a_kubeconfig_that_changes_is_read_again() {
    testkit::require!("root");
    let mut fabric = Fabric::new("routing-kubeconfig", &[1]);
    fabric.flags = vec!["--path".to_owned(), "direct".to_owned()];
    let api = cluster(&mut fabric);
    fabric.start_on(0);
    wait_until("it to be ready", || fabric.routes(0)["phase"] == "ready");
    api.require_token("another");
    api.end_watches();
    wait_until("the silence to be told", || {
        fabric.routes(0)["phase"].to_string().contains("degraded")
    });
    let _ = api.kubeconfig(fabric.lab.dir());
    // The watch goes on where it was, and what the service says of its Node goes the new way too.
    api.change("nodes", "", "a", &json!({"metadata": {"annotations": {KEY: Value::Null}}}));
    wait_until("the annotation", || annotation(&api, "a") != Value::Null);
    wait_until("it to be ready again", || fabric.routes(0)["phase"] == "ready");
}

/// The server is too busy to answer, and then it disappears without closing the connection: a watch
/// without news is usual, so the connection itself must detect that. Both are told, nothing goes
/// meanwhile, and what changed is known soon after the server is back.
#[test]
fn a_server_that_is_busy_or_gone_without_a_word_is_noticed_and_heard_again() {
    testkit::require!("root", "program:nft");
    let mut fabric = Fabric::new("routing-half-open", &[2]);
    fabric.flags = vec!["--path".to_owned(), "direct".to_owned()];
    let api = cluster(&mut fabric);
    fabric.start();
    let has_other = |fabric: &Fabric| {
        fabric.nodes[0].host.sh("ip route show proto 78").contains("10.244.2.0/24")
    };
    let url = api.url();
    let port = url.rsplit(':').next().unwrap();
    let cut = format!(
        "nft 'table inet cut {{ chain input {{ type filter hook input priority 0; tcp dport {port} drop; }}; \
         chain output {{ type filter hook output priority 0; tcp sport {port} drop; }}; }}'"
    );
    let mut said = Vec::new();
    for what in ["busy", "gone without a word"] {
        wait_until("the other node", || has_other(&fabric));
        wait_until("this node to be ready", || fabric.routes(0)["phase"] == "ready");
        match what {
            "busy" => api.fail(503),
            _ => drop(fabric.lab.sh(&cut)),
        }
        api.remove("nodes", "", "b");
        let since = Instant::now();
        wait_until("the silence to be told", || {
            fabric.routes(0)["phase"].to_string().contains("degraded")
        });
        let noticed = since.elapsed().as_secs_f64();
        assert!(has_other(&fabric), "it stays while the server is {what}");
        match what {
            "busy" => api.restore(),
            _ => drop(fabric.lab.sh("nft delete table inet cut")),
        }
        let since = Instant::now();
        wait_until("the other node to go", || !has_other(&fabric));
        let heard = since.elapsed().as_secs_f64();
        said.push(format!("{what}: noticed after {noticed:.1} s, heard again {heard:.1} s later"));
        api.create(&node(&fabric, 1));
    }
    eprintln!("MEASURED routing: an API server that is {}", said.join("; "));
}

/// Nodes have prefixes of both families, and the cluster's pods have addresses of one family.
#[test]
fn nodes_may_have_a_family_of_which_the_cluster_has_no_range() {
    testkit::require!("root");
    let mut fabric = Fabric::new("routing-one-family", &[2]);
    fabric.flags = vec!["--path".to_owned(), "direct".to_owned()];
    let _api = cluster(&mut fabric);
    fabric.cluster = ["--cluster", "10.244.0.0/16"].map(str::to_owned).to_vec();
    fabric.start();
    let routes = |fabric: &Fabric| fabric.nodes[0].host.sh("ip route show proto 78");
    wait_until("the other node", || routes(&fabric).contains("10.244.2.0/24"));
    wait_until("this node to be ready", || fabric.routes(0)["phase"] == "ready");
    let table = fabric.routes(0);
    assert_eq!(table["prefixes"], json!(["10.244.1.0/24"]), "{table}");
    assert!(!table["rows"].to_string().contains("refused"), "{table}");
    let said = "this node's prefix fd00:244:1::/64 is not used: the cluster has no range of IPv6";
    assert!(table["warnings"].to_string().contains(said), "{table}");
}
