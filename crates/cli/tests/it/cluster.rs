//! Pods of two nodes on one network: the plugin `bridge` with addresses of `netwrightd ipam`, whose
//! records are in the Kubernetes API or in etcd.
//!
//! Both nodes are in one laboratory: each has its daemon, its folders for state and its bridge, and
//! a wire connects the bridges.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Output, Stdio};

use serde_json::{Value, json};
use testkit::kube::KubeApi;
use testkit::real::Etcd;
use testkit::traffic::assert_pings;
use testkit::{Container, Lab, Place, Service, require};

use crate::system::{NETWRIGHT, netwrightd};

struct Nodes<'l> {
    lab: &'l Lab,
    /// The flags that say where the daemons' records are.
    records: Vec<String>,
}

impl<'l> Nodes<'l> {
    fn new(lab: &'l Lab, records: Vec<String>) -> Self {
        // The plugin's name in Whereabouts' own definitions.
        let install = format!(
            "{NETWRIGHT} install --bin-dir /opt/cni/bin --no-config --also whereabouts 2>/dev/null
             ip link add wire1 type veth peer name wire2
             for n in 1 2; do ip link add br-n$n address 02:00:00:00:66:0$n type bridge && ip link set br-n$n up && ip link set wire$n master br-n$n up; done"
        );
        lab.sh(&install);
        Nodes { lab, records }
    }

    fn dir(&self, node: &str, what: &str) -> PathBuf {
        self.lab.dir().join(format!("{node}.{what}"))
    }

    fn daemon(&self, node: &str) -> Service {
        let mut command = self.lab.command(netwrightd().to_str().unwrap());
        command.args(["ipam", "--node", node]).args(&self.records);
        command.arg("--socketpath").arg(self.dir(node, "sock"));
        command.arg("--state").arg(self.dir(node, "state"));
        let mut daemon = Service::start(command, &self.dir(node, "log"));
        daemon.wait_until("the daemon to answer", || {
            self.call("STATUS", node, "", "").status.success()
        });
        daemon
    }

    /// Calls the plugin of a node as a runtime there does.
    fn call(&self, verb: &str, node: &str, pod: &str, result: &str) -> Output {
        let mut config = json!({
            "cniVersion": "1.1.0", "name": "blue", "type": "bridge", "bridge": format!("br-{node}"),
            "ipam": {
                "type": "whereabouts", "socket": self.dir(node, "sock"), "blockSize": 29,
                "ipRanges": [{"range": "10.66.0.0/24"}, {"range": "fd66::/64"}],
                "kubernetes": {"kubeconfig": "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"},
            },
        });
        if let Ok(result) = serde_json::from_str::<Value>(result) {
            config["prevResult"] = result;
        }
        let mut command = self.lab.command("/opt/cni/bin/bridge");
        command
            .env("NETWRIGHT_RUN_DIR", self.dir(node, "run"))
            .env("CNI_COMMAND", verb)
            .env("CNI_PATH", "/opt/cni/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if !pod.is_empty() {
            command
                .env("CNI_CONTAINERID", format!("sandbox-{pod}"))
                .env("CNI_NETNS", format!("/run/netns/{pod}"))
                .env("CNI_IFNAME", "eth0")
                .env("CNI_ARGS", format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID=sandbox-{pod};K8S_POD_UID=uid-{pod}"));
        }
        let mut child = command.spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), config.to_string().as_bytes())
            .unwrap();
        child.wait_with_output().unwrap()
    }

    /// Calls the plugin, and asserts success.
    #[track_caller]
    fn succeeds(&self, verb: &str, node: &str, pod: &str, result: &str) -> String {
        let output = self.call(verb, node, pod, result);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{verb} {pod}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        said
    }
}

fn addresses(result: &str) -> Vec<String> {
    let result: Value = serde_json::from_str(result).unwrap();
    let ips = result["ips"].as_array().unwrap().iter();
    ips.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned()).collect()
}

/// The checks that hold for every store of the records.
fn pods_of_two_nodes(nodes: &Nodes<'_>) {
    let n1 = nodes.daemon("n1");
    let n2 = nodes.daemon("n2");
    let pods: Vec<(&str, Container)> = (0..10)
        .map(|index| {
            (if index % 2 == 0 { "n1" } else { "n2" }, nodes.lab.container(&format!("p{index}")))
        })
        .collect();
    // All pods at once, as on nodes that boot; they need more addresses than a block has.
    let results: Vec<String> = std::thread::scope(|scope| {
        let all: Vec<_> = pods
            .iter()
            .map(|(node, pod)| scope.spawn(move || nodes.succeeds("ADD", node, pod.name(), "")))
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let given: Vec<_> = results.iter().flat_map(|result| addresses(result)).collect();
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), 20, "{given:?}");
    // Pods reach each other within one node, and from one node to the other.
    for other in [2, 1, 9] {
        for address in addresses(&results[other]) {
            assert_pings(&pods[0].1, &address);
        }
    }
    for ((node, pod), result) in pods.iter().zip(&results) {
        nodes.succeeds("CHECK", node, pod.name(), result);
    }
    // Without its daemon a node still detaches pods, and their addresses stay reserved until the
    // daemon learns of that.
    drop(n2);
    nodes.succeeds("DEL", "n2", "p1", &results[1]);
    nodes.succeeds("DEL", "n2", "p1", "");
    let last = nodes.lab.container("last");
    let refused = nodes.call("ADD", "n2", "last", "");
    let said = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(
        !refused.status.success()
            && said.contains("netwrightd does not say which addresses are free"),
        "{said}"
    );
    assert_eq!(last.sh("ip -o link show | grep -v ' lo:' | wc -l").trim(), "0");
    let n2 = nodes.daemon("n2");
    let found = addresses(&nodes.succeeds("ADD", "n2", "last", ""));
    let taken: Vec<_> =
        given.iter().filter(|address| !addresses(&results[1]).contains(address)).collect();
    assert!(found.iter().all(|address| !taken.contains(&address)), "{found:?} {taken:?}");
    assert_pings(&last, &addresses(&results[0])[0]);
    drop((n1, n2));
}

#[test]
fn pods_of_two_nodes_with_records_in_the_kubernetes_api() {
    require!("root");
    let lab = Lab::new("cluster-api");
    let api = lab.enter(KubeApi::start);
    for node in ["n1", "n2"] {
        api.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}));
    }
    let kubeconfig = api.kubeconfig(lab.dir()).to_str().unwrap().to_owned();
    let nodes = Nodes::new(&lab, vec!["--kubeconfig".to_owned(), kubeconfig]);
    pods_of_two_nodes(&nodes);
    let blocks = api.objects("addressblocks");
    let holders: BTreeSet<_> = blocks
        .iter()
        .flat_map(|block| block["spec"]["held"].as_object().into_iter().flatten())
        .map(|(_, holder)| holder["pod"]["name"].to_string())
        .collect();
    assert!(holders.contains("\"p0\"") && holders.contains("\"p9\""), "{holders:?}");
    assert!(api.objects("ippools").is_empty(), "Whereabouts' objects are left alone");
}

#[test]
fn pods_of_two_nodes_with_records_in_etcd() {
    require!("root", "program:etcd", "program:curl");
    let lab = Lab::new("cluster-etcd");
    let etcd = Etcd::start(&lab);
    let nodes = Nodes::new(&lab, vec!["--etcd".to_owned(), etcd.endpoints().join(",")]);
    pods_of_two_nodes(&nodes);
}
