//! Random acts on a node: pods and policies come and go, while the service is killed, its table is
//! damaged and the API server is away.
//!
//! After each burst of acts, packets pass or are dropped as the evaluator says of the objects. The
//! table is then the same as one that a service makes anew. When all pods and policies are gone,
//! nothing of them is left.

mod last;
mod made;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::traffic::try_tcp;
use testkit::{Chance, Container, Place as _, Service, share, wait_until};

use super::damage::{table, words};
use super::{Cluster, PORT, Pod, daemon, object, uid};

/// The number of acts. A burst takes seconds, so the test runs only with `--full`.
const ACTS: usize = 300;
const ALL_ACTS: usize = 1_200;

/// After this many acts the test checks whether all is right.
const BURST: usize = 24;

/// The largest number of pods at a time.
const PODS: usize = 4;

/// How long a connection may take.
const PATIENCE: Duration = Duration::from_millis(300);

/// How long it may take until all is right again. The service waits longer for the API server after
/// each failure.
const SOON: Duration = Duration::from_secs(60);

const NAMESPACES: [&str; 2] = ["shop", "bank"];
const APPS: [&str; 3] = ["a", "b", "c"];
const TEAMS: [&str; 2] = ["red", "blue"];

/// What other programs do to the table. Something that does not exist cannot be damaged. The
/// service gets no event about an added rule. It finds the rule when it looks, which it does when
/// something is removed.
const DAMAGE: [&str; 6] = [
    "nft flush ruleset",
    "nft delete table inet netwright-policy",
    "nft flush chain inet netwright-policy ingress",
    "nft insert rule inet netwright-policy egress accept; \
       nft flush chain inet netwright-policy ingress",
    "nft flush map inet netwright-policy in4",
    "for chain in $(nft list table inet netwright-policy | grep -o 'chain c[io]-[^ ]*' | cut -d' ' -f2); do \
       nft flush chain inet netwright-policy $chain; done",
];

/// What happens to the API server.
const TO_THE_SERVER: [&str; 5] = ["away", "slow", "cut off", "forgetful", "tired of watches"];

/// An object that may be removed: its kind, namespace and name.
type MadeObject = (&'static str, &'static str, String);

struct Torture {
    cluster: Cluster,
    chance: Chance,
    pods: Vec<Pod>,
    policies: Vec<MadeObject>,
    /// All addresses that pods have had.
    addresses: Vec<IpAddr>,
    /// How many pods have been created.
    count: usize,
    /// How often the objects that change last have changed.
    marks: usize,
    /// How often services had begun to enforce policies before the present one started.
    enforced: usize,
}

impl Torture {
    fn new() -> Self {
        let mut cluster = Cluster::new("policy-torture");
        cluster.api.create(&json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "bank", "labels": {"team": "red"}},
        }));
        for (_, _, mark) in last::marks(0) {
            cluster.api.create(&mark);
        }
        cluster.start();
        Torture {
            cluster,
            chance: Chance::new(share::seed_of_this_round(20_261_126)),
            pods: Vec::new(),
            policies: Vec::new(),
            addresses: Vec::new(),
            count: 0,
            marks: 0,
            enforced: 0,
        }
    }

    /// Does a random act, and returns its description.
    fn act(&mut self) -> String {
        match self.chance.below(12) {
            0..=2 if self.pods.len() < PODS => self.pod_comes(),
            0..=4 => self.pod_goes(),
            5 => self.label_changes(),
            6..=8 => self.policy_changes(),
            9 => self.service_ends(),
            10 => {
                let what = *self.chance.of(&DAMAGE);
                let _ = self.cluster.node.lab.try_sh(what);
                what.to_owned()
            }
            _ => self.server_suffers(),
        }
    }

    fn pod_comes(&mut self) -> String {
        self.count += 1;
        let (name, namespace) = (format!("p{}", self.count), *self.chance.of(&NAMESPACES));
        let mut pod = object(&name, &uid(&name), "n1");
        pod["metadata"]["namespace"] = json!(namespace);
        pod["metadata"]["labels"]["app"] = json!(self.chance.of(&APPS));
        // The API server may have the pod only after the pod is attached.
        let is_late = self.chance.once_in(3);
        if !is_late {
            self.cluster.api.create(&pod);
        }
        let attached = self.cluster.attach_in(namespace, &name);
        if is_late {
            self.cluster.api.create(&pod);
        }
        let ips: Vec<Value> = attached.addresses.iter().map(|ip| json!({"ip": ip})).collect();
        self.cluster.api.change("pods", namespace, &name, &json!({"status": {"podIPs": ips}}));
        self.addresses.extend(&attached.addresses);
        self.pods.push(attached);
        format!("{namespace}/{name} comes")
    }

    fn pod_goes(&mut self) -> String {
        if self.pods.is_empty() {
            return "no pod goes".to_owned();
        }
        let place = self.chance.below(self.pods.len());
        let is_early = self.chance.once_in(2);
        self.remove_pod(place, is_early)
    }

    /// Removes a pod. The API server may lose it before it is detached.
    fn remove_pod(&mut self, place: usize, is_early: bool) -> String {
        let pod = self.pods.swap_remove(place);
        let forget = || self.cluster.api.remove("pods", pod.namespace, &pod.name);
        if is_early {
            forget();
        }
        self.cluster.detach(&pod);
        if !is_early {
            forget();
        }
        format!("{}/{} goes", pod.namespace, pod.name)
    }

    fn label_changes(&mut self) -> String {
        let place = self.chance.below(PODS);
        let (app, team) = (*self.chance.of(&APPS), *self.chance.of(&TEAMS));
        let api = &self.cluster.api;
        let Some(pod) = self.pods.get(place) else {
            api.change("namespaces", "", "bank", &json!({"metadata": {"labels": {"team": team}}}));
            return format!("bank is of team {team}");
        };
        let labels = json!({"metadata": {"labels": {"app": app}}});
        api.change("pods", pod.namespace, &pod.name, &labels);
        format!("{}/{} is {app}", pod.namespace, pod.name)
    }

    /// Removes a policy, and usually creates another one with its name.
    fn policy_changes(&mut self) -> String {
        let number = self.chance.below(5);
        let made: MadeObject = match number {
            0..3 => ("networkpolicies", *self.chance.of(&NAMESPACES), format!("np{number}")),
            _ => ("clusternetworkpolicies", "", format!("cnp{number}")),
        };
        self.policies.retain(|known| *known != made);
        let (plural, namespace, name) = &made;
        self.cluster.api.remove(plural, namespace, name);
        if self.chance.once_in(4) {
            return format!("{name} {namespace} goes");
        }
        let policy = match number {
            0..3 => json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": {"namespace": namespace, "name": name},
                "spec": made::spec(&mut self.chance),
            }),
            _ => json!({
                "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
                "metadata": {"name": name}, "spec": made::spec_of_cluster(&mut self.chance, number),
            }),
        };
        self.cluster.api.create(&policy);
        self.policies.push(made);
        policy.to_string()
    }

    /// The service is killed or ended, and perhaps starts again.
    fn service_ends(&mut self) -> String {
        let is_killed = self.chance.once_in(2);
        match self.cluster.service.take() {
            Some(service) if is_killed => service.kill(),
            Some(service) => {
                // A service that has just started may not handle the signal yet, and then does not
                // end with 0.
                let _ = service.stop();
            }
            None => {}
        }
        let comes_back = self.chance.once_in(2);
        if comes_back {
            self.start();
        }
        format!("the service is killed: {is_killed}, starts again: {comes_back}")
    }

    /// Starts the service without waiting.
    fn start(&mut self) {
        self.enforced = self.times_enforced();
        let service = Service::start(self.cluster.command(), &self.cluster.log_path());
        self.cluster.service = Some(service);
    }

    fn times_enforced(&self) -> usize {
        self.cluster.log().matches("policies are enforced").count()
    }

    fn server_suffers(&mut self) -> String {
        let what = *self.chance.of(&TO_THE_SERVER);
        let api = &self.cluster.api;
        match what {
            "away" => api.refuse(),
            "slow" => api.slow(Duration::from_millis(20)),
            "cut off" => api.cut(),
            "forgetful" => {
                api.compact();
                api.cut();
            }
            _ => api.end_watches(),
        }
        format!("the API server is {what}")
    }

    /// Lets the API server and the service work again.
    fn recover(&mut self) {
        self.cluster.api.slow(Duration::ZERO);
        self.cluster.api.restore();
        if self.cluster.service.is_none() {
            self.start();
        }
    }

    /// Confirms that the objects which a list lacks are gone. The callers repeat this, because the
    /// service may not answer yet.
    fn accept(&self) {
        let mut command = self.cluster.node.lab.command(&daemon());
        command.args(["policies", "accept"]).env("NETWRIGHT_RUN_DIR", &self.cluster.node.roots.run);
        let _ = command.output().unwrap();
    }

    /// Each pod with each address of every other pod.
    fn pairs(&self) -> Vec<(&Pod, SocketAddr)> {
        let all = || self.pods.iter().flat_map(|pod| &pod.addresses);
        let mut pairs = Vec::new();
        for pod in &self.pods {
            let others = all().filter(|address| !pod.addresses.contains(address));
            pairs.extend(others.map(|address| (pod, SocketAddr::new(*address, PORT))));
        }
        pairs
    }

    /// Returns the connections for which `is_made` is true. All are tried at the same time.
    fn connections(
        &self,
        is_made: impl Fn(&Container, IpAddr, SocketAddr) -> bool + Sync,
    ) -> Vec<String> {
        let is_made = &is_made;
        thread::scope(|scope| {
            let asked: Vec<_> = self
                .pairs()
                .into_iter()
                .map(|(pod, to)| {
                    let (container, name) = (&pod.container, pod.name.as_str());
                    let from = pod.addresses.iter().find(|at| at.is_ipv4() == to.is_ipv4());
                    let from = *from.unwrap();
                    let ask =
                        move || is_made(container, from, to).then(|| format!("{name} to {to}"));
                    scope.spawn(ask)
                })
                .collect();
            asked.into_iter().filter_map(|one| one.join().unwrap()).collect()
        })
    }

    /// The connections that the evaluator allows.
    fn expected(&self) -> Vec<String> {
        let kinds = ["namespaces", "nodes", "pods", "networkpolicies", "clusternetworkpolicies"];
        let items: Vec<Value> =
            kinds.iter().flat_map(|kind| self.cluster.api.objects(kind)).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        let file = self.cluster.node.lab.dir().join("objects.json");
        fs::write(&file, list.to_string()).unwrap();
        self.connections(|_, from, to| {
            let mut command = self.cluster.node.lab.command(&daemon());
            command.args(["policies", "explain", "-o", "json", "--file"]).arg(&file);
            command.args([from.to_string(), to.ip().to_string(), to.port().to_string()]);
            let output = command.output().unwrap();
            let said = serde_json::from_slice::<Value>(&output.stdout);
            let said = said.unwrap_or_else(|error| panic!("{command:?}: {error}: {output:?}"));
            said["allowed"].as_bool().unwrap()
        })
    }

    /// The connections that succeed.
    fn found(&self) -> Vec<String> {
        self.connections(|container, _, to| try_tcp(container, to, PATIENCE).is_ok())
    }

    #[track_caller]
    fn assert_right(&mut self, acts: &[String]) {
        let expected = self.expected();
        let mut found = Vec::new();
        let begin = Instant::now();
        wait_until("packets to meet what the evaluator says", || {
            self.accept();
            found = self.found();
            found == expected || SOON < begin.elapsed()
        });
        assert_eq!(found, expected, "{acts:#?}\n{}", self.cluster.log());
        // Packets may be treated correctly before the service has heard of the last changes.
        self.settle(acts);
        self.cluster.kill();
        let by_changes = table(&self.cluster);
        let _ = self.cluster.node.lab.try_sh("nft delete table inet netwright-policy");
        self.start();
        let mut anew = String::new();
        let begin = Instant::now();
        wait_until("the table to be made anew", || {
            self.accept();
            anew = table(&self.cluster);
            words(&anew) == words(&by_changes) || SOON < begin.elapsed()
        });
        assert_eq!(words(&anew), words(&by_changes), "{acts:#?}\n{anew}\n{by_changes}");
    }
}

#[test]
fn random_acts_on_a_node_end_as_the_evaluator_says() {
    testkit::require!("root", "program:nft", "full");
    let mut torture = Torture::new();
    // The table after one pod was attached and detached.
    torture.pod_comes();
    torture.remove_pod(0, false);
    let empty = table(&torture.cluster);
    let mut left = share::count(ALL_ACTS, ACTS);
    while 0 < left {
        let burst = BURST.min(left);
        left -= burst;
        let mut acts: Vec<String> = (0..burst).map(|_| torture.act()).collect();
        // There must be enough pods to connect.
        while torture.pods.len() < PODS - 1 {
            acts.push(torture.pod_comes());
        }
        torture.recover();
        torture.assert_right(&acts);
    }
    // Nothing is left of removed pods and policies.
    while !torture.pods.is_empty() {
        torture.remove_pod(0, false);
    }
    for (plural, namespace, name) in std::mem::take(&mut torture.policies) {
        torture.cluster.api.remove(plural, namespace, &name);
    }
    wait_until("the table to be as it was", || {
        torture.accept();
        words(&table(&torture.cluster)) == words(&empty)
    });
    let node = &torture.cluster.node;
    let records = node.sh(&format!("find {} -name policy.json", node.roots.run.display()));
    assert_eq!(records, "");
    let rules = node.sh("nft list ruleset");
    let there = words(&rules);
    let is_left = |address: &&IpAddr| there.iter().any(|word| *word == address.to_string());
    let left: Vec<&IpAddr> = torture.addresses.iter().filter(is_left).collect();
    assert!(left.is_empty(), "{left:?} of {rules}");
}
