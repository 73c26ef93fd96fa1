//! MultiNetworkPolicies: which pods reach each other on their further networks.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::traffic::{Server, assert_no_tcp, assert_tcp, try_tcp};
use testkit::wait_until;

use super::{Cluster, PORT, Pod, allow, object, uid};
use crate::support::Run;

/// An interface of a pod on a further network.
pub(super) struct FurtherInterface<'c> {
    pub(super) pod: &'c Pod,
    network: &'static str,
    ifname: &'static str,
    /// The result of its first plugin.
    result: Value,
    pub(super) address: IpAddr,
    /// The addresses of the other family.
    others: Vec<IpAddr>,
    servers: Vec<Server>,
}

impl<'c> FurtherInterface<'c> {
    /// Attaches a pod to a further network, as `netwright-multi` does.
    pub(super) fn attach(
        cluster: &Cluster,
        pod: &'c Pod,
        (network, ifname): (&'static str, &'static str),
    ) -> Self {
        let (by, keys) = match network {
            "storage" => ("bridge", json!({"bridge": "br-storage"})),
            "fabric" => ("macvlan", json!({"master": "p0"})),
            _ => ("ptp", json!({})),
        };
        let ranges = match network {
            "storage" => json!([[{"subnet": "172.16.0.0/24"}]]),
            "fabric" => json!([[{"subnet": "172.18.0.0/24"}], [{"subnet": "fd00:18::/64"}]]),
            _ => json!([[{"subnet": "172.17.0.0/24"}]]),
        };
        let ipam = json!({"type": "host-local", "ranges": ranges});
        let run = cluster.node.run(by, "ADD").network(network).ifname(ifname).to(&pod.container);
        let result = run.args(&pod.args()).config(keys).config(json!({"ipam": ipam})).call().ok();
        let ips = result["ips"].as_array().unwrap().iter();
        let texts = ips.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap());
        let mut others: Vec<IpAddr> = texts.map(|text| text.parse().unwrap()).collect();
        let (address, servers) = (others.remove(0), Vec::new());
        let mut further =
            FurtherInterface { pod, network, ifname, result, address, others, servers };
        further.admit(cluster);
        let serve = |address: IpAddr| {
            Server::tcp(&pod.container, &SocketAddr::new(address, PORT).to_string(), &pod.name)
        };
        further.servers = further.addresses().map(serve).collect();
        further
    }

    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        [self.address].into_iter().chain(self.others.iter().copied())
    }

    /// A call of the plugin `policy`.
    pub(super) fn policy<'n>(&self, cluster: &'n Cluster, verb: &str) -> Run<'n> {
        let run = cluster.policy(verb, self.pod).ifname(self.ifname).network(self.network);
        run.prev(&self.result)
    }

    /// Calls ADD of the plugin `policy`; returns its warnings.
    pub(super) fn admit(&self, cluster: &Cluster) -> String {
        let answer = self.policy(cluster, "ADD").call();
        let told = answer.stderr();
        assert_eq!(answer.ok(), self.result);
        told
    }

    pub(super) fn reaches(&self, to: &FurtherInterface<'_>) -> bool {
        let at = SocketAddr::new(to.address, PORT);
        try_tcp(&self.pod.container, at, Duration::from_millis(300)).is_ok()
    }

    #[track_caller]
    pub(super) fn assert_reaches(&self, to: &FurtherInterface<'_>, reaches: bool) {
        for address in to.addresses() {
            let at = SocketAddr::new(address, PORT).to_string();
            match reaches {
                true => drop(assert_tcp(&self.pod.container, &at)),
                false => assert_no_tcp(&self.pod.container, &at),
            }
        }
    }
}

/// A pod that requests further networks.
pub(super) fn asks(name: &str, networks: &str) -> Value {
    let mut pod = object(name, &uid(name), "n1");
    pod["metadata"]["annotations"] = json!({"k8s.v1.cni.cncf.io/networks": networks});
    pod
}

/// A MultiNetworkPolicy for these networks, with the spec of this NetworkPolicy.
pub(super) fn on(networks: &str, policy: Value) -> Value {
    let mut policy = policy;
    policy["apiVersion"] = json!("k8s.cni.cncf.io/v1beta1");
    policy["kind"] = json!("MultiNetworkPolicy");
    policy["metadata"]["annotations"] = json!({"k8s.v1.cni.cncf.io/policy-for": networks});
    policy
}

/// On a bridge and on a routed link, a policy limits only the networks that it names, from the
/// first packet on. Policies of the pods' own network limit neither.
#[test]
fn pods_reach_each_other_on_further_networks_as_policies_say() {
    testkit::require!("root");
    let mut cluster = Cluster::new("policy-further");
    cluster.api.create(&on("storage", allow("db", "db", &["web"])));
    cluster.api.create(&allow("shut", "db", &[]));
    cluster.start();
    let names = ["db", "web", "other"];
    for name in names {
        cluster.api.create(&asks(name, "storage, shop/backup"));
    }
    let pods = names.map(|name| cluster.attach(name));
    let attach =
        |network| [0, 1, 2].map(|at: usize| FurtherInterface::attach(&cluster, &pods[at], network));
    let change = |change: &Value| cluster.api.change("multi-networkpolicies", "shop", "db", change);
    let [db, web, other] = attach(("storage", "net1"));
    web.assert_reaches(&db, true);
    other.assert_reaches(&db, false);
    db.assert_reaches(&other, true);
    change(&json!({"spec": {"ingress": []}}));
    wait_until("the other policy", || !web.reaches(&db));

    // The policy does not name this network.
    let [backup_db, backup_web, backup_other] = attach(("backup", "net2"));
    backup_web.assert_reaches(&backup_db, true);
    backup_other.assert_reaches(&backup_db, true);
    let backup = json!({"k8s.v1.cni.cncf.io/policy-for": "backup"});
    change(&json!({"metadata": {"annotations": backup}}));
    wait_until("the policy for the other network", || {
        web.reaches(&db) && other.reaches(&db) && !backup_web.reaches(&backup_db)
    });
    cluster.api.remove("multi-networkpolicies", "shop", "db");
    wait_until("no policy", || backup_web.reaches(&backup_db));
    // The policy does not limit their own network.
    pods[1].assert_reaches(&pods[0], false);
    pods[0].assert_reaches(&pods[1], true);
}

/// An interface on an unknown network is closed until the pod's status names the network.
#[test]
fn an_interface_is_closed_until_its_network_is_known() {
    testkit::require!("root");
    let mut cluster = Cluster::new("policy-whose");
    cluster.start();
    let pods = ["db", "web"].map(|name| cluster.pod(name));
    let on = ("storage", "net1");
    let [db, web] = [0, 1].map(|at: usize| FurtherInterface::attach(&cluster, &pods[at], on));
    let told = db.admit(&cluster);
    assert!(told.contains("says which network net1 is on"), "{told}");
    web.assert_reaches(&db, false);
    db.assert_reaches(&web, false);
    for one in [&db, &web] {
        let status = json!([
            {"name": "pods", "interface": "eth0", "ips": [], "default": true},
            {"name": "shop/storage", "interface": "net1", "ips": [one.address]},
        ]);
        let annotations = json!({"k8s.v1.cni.cncf.io/network-status": status.to_string()});
        let change = json!({"metadata": {"annotations": annotations}});
        cluster.api.change("pods", "shop", &one.pod.name, &change);
    }
    wait_until("both to be known", || web.reaches(&db) && db.reaches(&web));
    assert_eq!(db.admit(&cluster), "");
}
