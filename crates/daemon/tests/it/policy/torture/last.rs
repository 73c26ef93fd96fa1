//! Checks whether the service has heard of everything: some objects change last, and the test asks
//! the service about them.

use std::time::Instant;

use serde_json::{Value, json};
use testkit::{Place as _, wait_until};

use super::super::{daemon, object, uid};
use super::{SOON, Torture};

/// The namespace and the name of the objects that change last. They are the last in a list.
const LAST: &str = "zz";

/// Whether policies allow connections from the pod of that name to addresses of these networks.
const ANSWERS: [(&str, bool); 3] =
    [("198.51.100", true), ("203.0.113", true), ("192.168.0", false)];

impl Torture {
    /// Waits until the service has heard of everything, and has carried it out: it enforces
    /// policies, knows the last object of each kind, and keeps no deleted object.
    pub(super) fn settle(&mut self, acts: &[String]) {
        self.marks += 1;
        let mark = 1 + self.marks % 200;
        for (plural, namespace, object) in marks(mark) {
            self.cluster.api.change(plural, namespace, LAST, &object);
        }
        let answers = ANSWERS.map(|(net, allowed)| (format!("{net}.{mark}"), Some(allowed)));
        let (mut is_so, mut differs) = (false, String::new());
        let begin = Instant::now();
        wait_until("the service to know what has come last", || {
            self.accept();
            let said = ANSWERS.map(|(net, _)| {
                let to = format!("{net}.{mark}");
                let said = self.said(&["explain", &format!("{LAST}/{LAST}"), &to, "80"]);
                (to, said["allowed"].as_bool())
            });
            let listed = self.said(&["list"]);
            let names = |rows: &str, name: &str| {
                let rows = listed[rows].as_array().into_iter().flatten();
                sorted(rows.map(|row| row[name].as_str().unwrap().to_owned()))
            };
            let (policies, pods) = (names("policies", "policy"), names("pods", "pod"));
            let found = (self.enforced < self.times_enforced(), said, policies, pods);
            let right = (true, answers.clone(), self.policies_there(), self.pods_there());
            differs = format!("{found:?}, and not {right:?}");
            is_so = found == right;
            is_so || SOON < begin.elapsed()
        });
        assert!(is_so, "{differs}\n{acts:#?}\n{}", self.cluster.log());
        // The service answers a plugin only after it has carried out everything that it knows.
        for pod in &self.pods {
            let _ = self.cluster.check(pod);
        }
    }

    /// The service's answer; null if it has none.
    fn said(&self, words: &[&str]) -> Value {
        let mut command = self.cluster.node.lab.command(&daemon());
        command.arg("policies").args(words).args(["-o", "json"]);
        command.env("NETWRIGHT_RUN_DIR", &self.cluster.node.roots.run);
        serde_json::from_slice(&command.output().unwrap().stdout).unwrap_or_default()
    }

    /// The policies of the API server, as the service names them.
    fn policies_there(&self) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let of = |plural| self.cluster.api.objects(plural).into_iter();
        let name = |object: Value| {
            let (kind, meta) = (text(&object["kind"]), &object["metadata"]);
            match meta["namespace"].as_str() {
                Some(namespace) => format!("{kind} {namespace}/{}", text(&meta["name"])),
                None => format!("{kind} {}", text(&meta["name"])),
            }
        };
        sorted(of("networkpolicies").chain(of("clusternetworkpolicies")).map(name))
    }

    fn pods_there(&self) -> Vec<String> {
        sorted(self.pods.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)))
    }
}

/// The objects that change last, each with its kind and namespace. A service gives the [`ANSWERS`]
/// only if it knows all of them with this mark: the cluster's policy allows the first, the pod's
/// policy allows the second and denies the third.
pub(super) fn marks(mark: usize) -> [(&'static str, &'static str, Value); 4] {
    let labels = json!({"mark": mark.to_string()});
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LAST, "labels": labels},
    });
    let mut pod = object(LAST, &uid(LAST), "n2");
    pod["metadata"]["namespace"] = json!(LAST);
    pod["metadata"]["labels"] = labels.clone();
    pod["status"] = json!({"podIPs": [{"ip": "10.64.0.9"}]});
    let [of_cluster, of_namespace, _] = ANSWERS.map(|(net, _)| format!("{net}.{mark}/32"));
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": LAST, "name": LAST},
        "spec": {
            "podSelector": {"matchLabels": labels}, "policyTypes": ["Egress"],
            "egress": [{"to": [{"ipBlock": {"cidr": of_namespace}}]}],
        },
    });
    let cluster_policy = json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": LAST},
        "spec": {
            "tier": "Admin", "priority": 900,
            "subject": {"namespaces": {"matchLabels": labels}},
            "egress": [{"action": "Accept", "to": [{"networks": [of_cluster]}]}],
        },
    });
    [
        ("namespaces", "", namespace),
        ("pods", LAST, pod),
        ("networkpolicies", LAST, policy),
        ("clusternetworkpolicies", "", cluster_policy),
    ]
}

fn sorted(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}
