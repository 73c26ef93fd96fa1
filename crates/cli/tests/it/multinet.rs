//! Pods of Kubernetes with several networks: the plugin `netwright-multi`, `netwrightd multinet`
//! and an API server, as on a node.

use std::process::{Output, Stdio};
use std::sync::Barrier;

use serde_json::{Value, json};
use testkit::kube::KubeApi;
use testkit::real::{Containerd, Pod, tell};
use testkit::traffic::assert_pings;
use testkit::{Lab, MemoryLimit, Place, Service, require, wait_until};

use crate::support::call_in;
use crate::system::{install, netwrightd};

/// The default network.
const CLUSTER: &str = r#"{
  "cniVersion": "1.0.0", "name": "cluster",
  "plugins": [{"type": "bridge", "bridge": "pods0", "isGateway": true,
     "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": "10.97.0.0/16"}]]}}]
}"#;

pub(crate) const CONFLIST: &str = "/etc/cni/net.d/00-netwright.conflist";

/// A node of a cluster.
pub(crate) struct Cluster {
    pub(crate) lab: Lab,
    pub(crate) api: KubeApi,
}

impl Cluster {
    pub(crate) fn new(lab: Lab) -> Self {
        install(&lab);
        Cluster::bare(lab)
    }

    /// Makes a node without plugins.
    pub(crate) fn bare(lab: Lab) -> Self {
        let api = lab.enter(KubeApi::start);
        lab.sh(&format!(
            "mkdir -p /etc/cni/net.d && cat >/etc/cni/net.d/10-cluster.conflist <<'E'\n{CLUSTER}\nE"
        ));
        api.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}));
        Cluster { lab, api }
    }

    pub(crate) fn define(&self, name: &str, config: &Value) {
        self.api.create(&json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"namespace": "default", "name": name}, "spec": {"config": config.to_string()},
        }));
    }

    /// Defines three networks: a bridge on which addresses can be requested, a routed pair, and a
    /// macvlan.
    pub(crate) fn define_all(&self) {
        self.lab.sh(
            "ip link add up0 type veth peer name up1 && ip link set up0 up && ip link set up1 up",
        );
        let pool = |subnet: &str| json!({"type": "host-local", "ranges": [[{"subnet": subnet}]]});
        self.define("lan", &json!({
            "cniVersion": "1.0.0", "plugins": [{
                "type": "bridge", "bridge": "lan0", "capabilities": {"ips": true}, "ipam": pool("10.71.0.0/16"),
            }],
        }));
        self.define(
            "pair",
            &json!({"cniVersion": "1.0.0", "type": "ptp", "ipam": pool("10.72.0.0/16")}),
        );
        self.define("mac", &json!({
            "cniVersion": "1.0.0", "type": "macvlan", "master": "up0", "ipam": pool("10.73.0.0/16"),
        }));
    }

    pub(crate) fn pod(&self, name: &str, uid: &str, networks: &str) {
        self.api.create(&json!({
            "apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "n1"},
            "metadata": {"namespace": "default", "name": name, "uid": uid,
                "annotations": {"k8s.v1.cni.cncf.io/networks": networks}},
        }));
    }

    fn daemon(&self) -> Service {
        let mut command = self.lab.command("sh");
        command
            .args(["-c", "echo $$ >/run/netwrightd.pid; exec \"$0\" \"$@\""])
            .arg(netwrightd())
            .args([
                "multinet",
                "--node",
                "n1",
                "--cluster-network",
                "cluster",
                "--conflist",
                CONFLIST,
            ])
            .arg("--kubeconfig")
            .arg(self.api.kubeconfig(self.lab.dir()));
        Service::start(command, &self.lab.dir().join("multinet.log"))
    }

    /// Starts the daemon, and waits until it can serve pods.
    fn ready(&self) -> Service {
        let daemon = self.daemon();
        wait_until("pods to be answered", || self.lab.sh_status(&format!("test -e {CONFLIST}")));
        daemon
    }

    /// Kills the daemon, also in a lab with its own PID namespace, where another process starts it.
    fn kill(&self, mut daemon: Service) {
        self.lab.sh("kill -KILL $(cat /run/netwrightd.pid)");
        let _ = daemon.child().wait();
    }

    /// Calls the plugin as containerd does.
    fn call(&self, verb: &str, pod: &str, uid: &str) -> Output {
        let config = self.lab.sh(&format!("cat {CONFLIST}"));
        let list: Value = serde_json::from_str(&config).unwrap();
        let mut config = list["plugins"][0].clone();
        config["name"] = list["name"].clone();
        config["cniVersion"] = list["cniVersions"][1].clone();
        let mut command = self.lab.command("/opt/cni/bin/netwright-multi");
        command
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", format!("sandbox-{pod}"))
            .env("CNI_NETNS", format!("/run/netns/{pod}"))
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", "/opt/cni/bin")
            .env("CNI_ARGS", format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID=sandbox-{pod};K8S_POD_UID={uid}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), config.to_string().as_bytes())
            .unwrap();
        child.wait_with_output().unwrap()
    }

    #[track_caller]
    pub(crate) fn succeeds(&self, verb: &str, pod: &str, uid: &str) -> Value {
        let output = self.call(verb, pod, uid);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{verb} {pod}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_str(&said).unwrap_or_default()
    }

    fn status(&self, pod: &str) -> Option<Value> {
        let pod = self.api.object("pods", "default", pod)?;
        let text = pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"].as_str()?;
        serde_json::from_str(text).ok()
    }

    pub(crate) fn interfaces(&self, pod: &str) -> Vec<(String, String)> {
        let status = self.status(pod).unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let list = status.as_array().cloned().unwrap_or_default();
        list.iter().map(|one| (text(&one["name"]), text(&one["interface"]))).collect()
    }

    pub(crate) fn annotate(&self, pod: &str, networks: &str) {
        let change =
            json!({"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": networks}}});
        self.api.change("pods", "default", pod, &change);
    }
}

/// Whether a script succeeds.
trait ScriptStatus {
    fn sh_status(&self, script: &str) -> bool;
}

impl<P: Place> ScriptStatus for P {
    fn sh_status(&self, script: &str) -> bool {
        let mut command = self.command("/bin/sh");
        command
            .args(["-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}

/// The links of a namespace except `lo`, by name.
pub(crate) fn links(pod: &impl Place) -> Vec<String> {
    let text = pod.sh("ip -brief link");
    let names = text.lines().filter_map(|line| line.split([' ', '@']).next());
    let mut names: Vec<_> = names.filter(|name| *name != "lo").map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn a_pod_with_four_networks_and_what_changes_while_it_runs() {
    require!("root");
    let cluster = Cluster::new(Lab::new("multinet-life"));
    cluster.define_all();
    let networks = json!([
        {"name": "lan", "interface": "data0", "ips": ["10.71.0.99/16"]},
        {"name": "pair", "default-route": ["10.72.0.1"]},
        {"name": "mac"},
    ]);
    cluster.pod("web", "uid-web", &networks.to_string());
    let daemon = cluster.ready();
    let web = cluster.lab.container("web");
    let result = cluster.succeeds("ADD", "web", "uid-web");
    assert_eq!(result["interfaces"].as_array().unwrap().last().unwrap()["name"], "eth0");
    assert_eq!(links(&web), ["data0", "eth0", "net2", "net3"]);
    assert!(web.sh("ip -4 addr show dev data0").contains("10.71.0.99/16"));
    let routes = web.sh("ip -4 route show default");
    assert!(routes.contains("via 10.72.0.1 dev net2") && !routes.contains("eth0"), "{routes}");
    let wanted = |all: &[(&str, &str)]| -> Vec<(String, String)> {
        all.iter().map(|(name, ifname)| ((*name).to_owned(), (*ifname).to_owned())).collect()
    };
    let all = [
        ("cluster", "eth0"),
        ("default/lan", "data0"),
        ("default/pair", "net2"),
        ("default/mac", "net3"),
    ];
    wait_until("the status", || cluster.interfaces("web") == wanted(&all));
    assert_eq!(cluster.status("web").unwrap()[1]["ips"], json!(["10.71.0.99"]));
    // The list has a row for each of its networks, and no other.
    let listed = call_in(&cluster.lab, &["list", "-o", "json"]).succeeded().json();
    let row = |row: &Value| {
        let text = |key: &str| row[key].as_str().unwrap().to_owned();
        (text("network"), text("ifname"), row["addresses"].as_array().unwrap().len())
    };
    let mut rows: Vec<_> = listed["attachments"].as_array().unwrap().iter().map(row).collect();
    rows.sort();
    let expected = [("cluster", "eth0"), ("lan", "data0"), ("mac", "net3"), ("pair", "net2")];
    let expected = expected.map(|(name, ifname)| (name.to_owned(), ifname.to_owned(), 1));
    assert_eq!(rows, expected, "{listed}");
    let network = call_in(&cluster.lab, &["inspect", "cluster"]).succeeded();
    assert!(network.stdout.contains("# attached: sandbox-web eth0 10.97."), "{}", network.stdout);
    cluster.succeeds("STATUS", "web", "uid-web");

    // One network is removed, the others stay.
    let without = json!([{"name": "lan", "interface": "data0"}, {"name": "pair"}]);
    cluster.annotate("web", &without.to_string());
    wait_until("the status without it", || cluster.interfaces("web") == wanted(&all[..3]));
    assert_eq!(links(&web), ["data0", "eth0", "net2"]);
    // Another network is added.
    let with = json!([
        {"name": "lan", "interface": "data0"}, {"name": "pair"}, {"name": "lan", "interface": "data1"},
    ]);
    cluster.annotate("web", &with.to_string());
    let mut more = all[..3].to_vec();
    more.push(("default/lan", "data1"));
    wait_until("the status with it", || cluster.interfaces("web") == wanted(&more));
    assert_eq!(links(&web), ["data0", "data1", "eth0", "net2"]);
    assert_pings(&web, "10.97.0.1");

    // DEL needs neither the API server nor the daemon.
    cluster.api.refuse();
    drop(daemon);
    cluster.succeeds("DEL", "web", "uid-web");
    assert_eq!(links(&web), Vec::<String>::new());
    cluster.succeeds("DEL", "web", "uid-web");
    drop(web);
    let left = cluster.lab.sh("ls /run/netwright/multinet/sandboxes").lines().count();
    assert_eq!(left, 1, "the next daemon gets the report");
    let _daemon = cluster.daemon();
    wait_until("the report to arrive", || {
        cluster.lab.sh("ls /run/netwright/multinet/sandboxes").is_empty()
    });
}

/// Commands know that the networks of a pod are parts of what its runtime attached: they ask the
/// plugin of the whole, or with the results that it recorded.
#[test]
fn commands_take_a_pods_networks_for_parts_of_it() {
    require!("root");
    let cluster = Cluster::new(Lab::new("multinet-commands"));
    let outside = cluster.lab.outside();
    outside.sh("ip route add 10.96.0.0/11 via 198.51.100.1");
    for (name, plugin, subnet) in
        [("lan", "bridge", "10.71.0.0/16"), ("pair", "ptp", "10.72.0.0/16")]
    {
        let pool = json!({"type": "host-local", "ranges": [[{"subnet": subnet}]]});
        cluster.define(name, &json!({"cniVersion": "1.0.0", "type": plugin, "ipam": pool}));
    }
    let networks = json!([{"name": "lan", "interface": "data0"}, {"name": "pair"}]);
    cluster.pod("web", "uid-web", &networks.to_string());
    let _daemon = cluster.ready();
    let web = cluster.lab.container("web");
    web.sh("ip link set lo up");
    let list: Value = serde_json::from_str(&cluster.lab.sh(&format!("cat {CONFLIST}"))).unwrap();
    let whole = list["name"].as_str().unwrap();
    let run = |args: &[&str]| call_in(&cluster.lab, args);
    let id = ["web", "--container-id", "sandbox-web"];
    let of_pod = [
        "IgnoreUnknown=1",
        "K8S_POD_NAMESPACE=default",
        "K8S_POD_NAME=web",
        "K8S_POD_INFRA_CONTAINER_ID=sandbox-web",
        "K8S_POD_UID=uid-web",
    ];
    let of_pod = of_pod.map(|arg| ["--arg", arg]).concat();
    run(&[&["add", whole], &id[..], &of_pod].concat()).succeeded();
    assert_eq!(links(&web), ["data0", "eth0", "net2"]);

    let errors = || -> Vec<Value> {
        let said = run(&["doctor", "--output", "json"]).json();
        let findings = said["findings"].as_array().expect("findings").clone();
        findings.into_iter().filter(|finding| finding["severity"] == "error").collect()
    };
    assert_eq!(errors(), Vec::<Value>::new());
    let repaired = run(&["repair", "-o", "json"]).succeeded().json();
    let told = [&repaired["attachments"], &repaired["sound"], &repaired["apart"]];
    assert_eq!(told, [&json!([]), &json!(1), &Value::Null], "{repaired}");
    for (network, ifname) in
        [(whole, "eth0"), ("cluster", "eth0"), ("lan", "data0"), ("pair", "net2")]
    {
        run(&[&["check", network], &id[..], &["--ifname", ifname]].concat()).succeeded();
    }
    let listed = run(&["list", "-o", "json"]).succeeded().json();
    assert_eq!(listed["attachments"].as_array().unwrap().len(), 3, "{listed}");

    // Each of them sees a network that differs, once.
    web.sh("ip link set data0 down");
    let said = run(&[&["check", "lan"], &id[..], &["--ifname", "data0"]].concat());
    assert!(said.code != 0 && said.both().contains("data0"), "{said:?}");
    let found = errors();
    let differ = found.iter().filter(|finding| finding["id"] == "attachment-differs");
    assert_eq!(differ.count(), 1, "{found:#?}");
    let repaired = run(&["repair", "--network", "lan", "-o", "json"]).succeeded().json();
    assert_eq!(repaired["attachments"].as_array().unwrap().len(), 1, "{repaired}");
    assert_eq!(errors(), Vec::<Value>::new());
    run(&[&["del", whole], &id[..], &of_pod].concat()).succeeded();
    assert_eq!(run(&["list"]).succeeded().stdout, "no attachments\n");
}

/// A node on which pods were attached to the cluster's network alone, before the daemon wrote its
/// configuration.
#[test]
fn a_pod_from_before_the_switch_leaves_nothing() {
    require!("root");
    let cluster = Cluster::new(Lab::new("multinet-switch"));
    // A network with another name, as an earlier configuration may have had, and with a bridge of
    // its own.
    cluster.lab.sh("sed 's/\"cluster\"/\"old\"/; s/pods0/old0/; s/10[.]97/10.96/' /etc/cni/net.d/10-cluster.conflist >/etc/cni/net.d/20-old.conflist");
    let pods = [("web", "cluster"), ("db", "old")];
    let containers = pods.map(|(pod, network)| {
        let container = cluster.lab.container(pod);
        let id = format!("sandbox-{pod}");
        let add = ["add", network, pod, "--container-id", &id];
        call_in(&cluster.lab, &add).succeeded();
        container
    });
    cluster.lab.sh("rm /etc/cni/net.d/20-old.conflist");
    let _daemon = cluster.ready();
    // There is also a pod of this plugin itself, whose network had another name.
    let renamed = cluster.lab.container("renamed");
    let mut before: Value =
        serde_json::from_str(&cluster.lab.sh(&format!("cat {CONFLIST}"))).unwrap();
    before["name"] = json!("before");
    let file = "/etc/cni/net.d/30-before.conflist";
    cluster.lab.sh(&format!("cat >{file} <<'E'\n{before}\nE"));
    call_in(&cluster.lab, &["add", "before", "renamed", "--container-id", "sandbox-renamed"])
        .succeeded();
    cluster.lab.sh(&format!("rm {file}"));
    for pod in ["web", "db", "renamed"] {
        cluster.succeeds("DEL", pod, pod);
        cluster.succeeds("DEL", pod, pod);
    }
    for container in containers.iter().chain([&renamed]) {
        assert_eq!(links(container), Vec::<String>::new());
    }
    assert_eq!(cluster.lab.sh("ls /var/lib/cni/results"), "");
    let held = "cd /var/lib/cni/networks && ls cluster old | grep -c '^10\\.' || true";
    assert_eq!(cluster.lab.sh(held).trim(), "0");
    let listed = call_in(&cluster.lab, &["list"]).succeeded();
    assert_eq!(listed.stdout, "no attachments\n");
}

#[test]
fn refusals_leave_no_pod_half_attached() {
    require!("root");
    let cluster = Cluster::new(Lab::new("multinet-refuse"));
    cluster.define_all();
    cluster.define(
        "broken",
        &json!({"cniVersion": "1.0.0", "type": "macvlan", "master": "nowhere0", "ipam": {}}),
    );
    let _daemon = cluster.ready();
    for (name, networks, words) in [
        ("malformed", "lan,,pair", "there is a comma too many"),
        ("missing", "lan,nothing", "there is no NetworkAttachmentDefinition"),
        ("unserved", r#"[{"name":"pair","mac":"02:00:00:00:00:09"}]"#, "capability"),
        ("fails", "lan,broken", "nowhere0"),
    ] {
        cluster.pod(name, name, networks);
        let pod = cluster.lab.container(name);
        let output = cluster.call("ADD", name, name);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!output.status.success() && said.contains(words), "{name}: {said}");
        assert_eq!(said.matches(&format!("pod default/{name}")).count(), 1, "{said}");
        assert_eq!(links(&pod), Vec::<String>::new(), "{name}");
        cluster.api.wait_until("an Event", |api| {
            api.objects("events").iter().any(|event| {
                event["involvedObject"]["name"] == name
                    && event["message"].to_string().contains(words)
            })
        });
        assert_eq!(cluster.status(name), None);
    }
}

/// Annotations request addresses that another pod or the node has.
#[test]
fn an_address_that_another_has_is_refused_to_a_pod() {
    require!("root");
    let cluster = Cluster::new(Lab::new("multinet-addresses"));
    cluster.define_all();
    cluster.lab.sh("ip addr add 192.0.2.1/24 dev up0");
    for (name, mut plugin) in [
        ("fixed", json!({"type": "bridge", "bridge": "fix0"})),
        ("beside", json!({"type": "macvlan", "master": "up0"})),
    ] {
        plugin["capabilities"] = json!({"ips": true});
        plugin["ipam"] = json!({"type": "static"});
        cluster.define(name, &json!({"cniVersion": "1.0.0", "plugins": [plugin]}));
    }
    let _daemon = cluster.ready();
    let ask = |pod: &str, network: &str, address: &str| {
        let networks = json!([{"name": network, "ips": [address]}]);
        cluster.pod(pod, pod, &networks.to_string());
        let container = cluster.lab.container(pod);
        (container, cluster.call("ADD", pod, pod))
    };
    let (_first, given) = ask("first", "fixed", "10.74.0.9/24");
    assert!(given.status.success(), "{given:?}");
    for (pod, network, address, words) in [
        ("second", "fixed", "10.74.0.9/16", "10.74.0.9 is taken"),
        ("node", "beside", "192.0.2.1/24", "192.0.2.1 is the host's own"),
    ] {
        let (container, refused) = ask(pod, network, address);
        let said = String::from_utf8_lossy(&refused.stdout).into_owned();
        assert!(!refused.status.success() && said.contains(words), "{pod}: {said}");
        assert_eq!(links(&container), Vec::<String>::new(), "{pod}");
    }
}

/// The node boots: all pods start at once, with the daemon in the memory that `deploy/kubernetes`
/// gives it. Then all pods end while the API server is away.
#[test]
fn many_pods_at_once_and_all_gone_without_an_api_server() {
    require!("root", "file:/sys/fs/cgroup");
    let pods: usize =
        if std::env::var_os(testkit::feature::FULL_VARIABLE).is_some() { 500 } else { 60 };
    let cluster = Cluster::new(Lab::new("multinet-many"));
    cluster.define_all();
    let names: Vec<_> = (0..pods).map(|number| format!("p{number}")).collect();
    for name in &names {
        cluster.pod(name, name, "lan,pair");
    }
    let limit = MemoryLimit::new(64 << 20);
    let mut daemon = cluster.daemon();
    limit.hold(daemon.pid());
    wait_until("pods to be answered", || cluster.lab.sh_status(&format!("test -e {CONFLIST}")));
    let containers: Vec<_> = names.iter().map(|name| cluster.lab.container(name)).collect();
    let all_at_once = |verb: &str| {
        let start = Barrier::new(pods);
        std::thread::scope(|scope| {
            for name in &names {
                let (cluster, start) = (&cluster, &start);
                scope.spawn(move || {
                    start.wait();
                    cluster.succeeds(verb, name, name);
                });
            }
        });
    };
    all_at_once("ADD");
    for (name, container) in names.iter().zip(&containers) {
        assert_eq!(links(container), ["eth0", "net1", "net2"], "{name}");
        wait_until("every status", || cluster.interfaces(name).len() == 3);
    }
    assert!(daemon.child().try_wait().unwrap().is_none(), "the daemon lives");
    eprintln!("{pods} pods: the daemon had at most {} KiB", limit.most_used() >> 10);
    cluster.api.refuse();
    all_at_once("DEL");
    for container in &containers {
        assert_eq!(links(container), Vec::<String>::new());
    }
    assert_eq!(cluster.lab.sh("ls /run/netwright/multinet/sandboxes"), "");
    drop(daemon);
}

/// The daemon is killed as each of its requests arrives, while the plugin waits for the answer.
#[test]
fn a_daemon_killed_in_the_middle_of_an_add_loses_and_leaves_nothing() {
    require!("root");
    let cluster = Cluster::new(Lab::new("multinet-kill"));
    cluster.define_all();
    drop(cluster.ready());
    for life in 0..8 {
        let name = format!("p{life}");
        cluster.pod(&name, &name, "lan,pair");
        let pod = cluster.lab.container(&name);
        cluster.api.forget();
        let daemon = cluster.daemon();
        std::thread::scope(|scope| {
            let (cluster, name) = (&cluster, &name);
            // A kubelet repeats ADD until it succeeds, with DEL before.
            let add = scope.spawn(move || {
                while !cluster.call("ADD", name, name).status.success() {
                    cluster.succeeds("DEL", name, name);
                }
            });
            cluster.api.wait_until("the request", |api| {
                life < api.asked().len() || cluster.interfaces(name).len() == 3
            });
            drop(daemon);
            let _next = cluster.daemon();
            add.join().unwrap();
            wait_until("the status", || cluster.interfaces(name).len() == 3);
        });
        assert_eq!(links(&pod), ["eth0", "net1", "net2"]);
        cluster.succeeds("DEL", &name, &name);
        assert_eq!(links(&pod), Vec::<String>::new());
    }
    let _last = cluster.daemon();
    wait_until("nothing to be left", || {
        cluster.lab.sh("ls /run/netwright/multinet/sandboxes /run/netwright/multinet.sock.todo 2>/dev/null | grep -v : || true").trim().is_empty()
    });
    for network in ["cluster", "lan", "pair"] {
        let left = cluster
            .lab
            .sh(&format!("ls /var/lib/cni/networks/{network} | grep -c '^10\\.' || true"));
        assert_eq!(left.trim(), "0", "addresses of {network}");
    }
}

/// The same through containerd, which names the pod, and finds the plugin by the file that the
/// daemon writes.
#[test]
fn pods_of_containerd_have_their_networks() {
    require!("root", "program:containerd", "program:runc", "file:/usr/bin/busybox");
    let cluster = Cluster::new(Lab::with_processes("multinet-containerd"));
    cluster.define_all();
    let _daemon = cluster.ready();
    let list = cluster.lab.sh(&format!("cat {CONFLIST}"));
    let containerd = Containerd::new(&cluster.lab, "/opt/cni/bin", &list);
    let pod = Pod::new("web");
    cluster.pod("web", "uid-web", "lan@data0,pair");
    let id = containerd.run_pod(&pod);
    let inside = containerd.netns(&id);
    assert_eq!(links(&inside), ["data0", "eth0", "net2"]);
    wait_until("the status", || cluster.interfaces("web").len() == 3);
    cluster.annotate("web", "lan@data0");
    wait_until("one less", || cluster.interfaces("web").len() == 2);
    assert_eq!(links(&inside), ["data0", "eth0"]);
    drop(inside);
    containerd.stop_pod(&id).unwrap();
    tell(
        "containerd",
        "answered",
        "a pod with networks of its annotation, one detached while it ran",
    );
}

/// containerd runs and has a network already when the daemon comes; it uses the daemon's as soon as
/// that is written. The daemon restores the file when another program changes or removes it, and
/// containerd notices each time.
#[test]
fn what_the_daemon_writes_is_noticed_while_containerd_runs() {
    require!("root", "program:containerd", "program:runc", "program:curl", "file:/usr/bin/busybox");
    let cluster = Cluster::new(Lab::with_processes("multinet-notices"));
    let containerd = Containerd::without_network(&cluster.lab, "/opt/cni/bin");
    let uses = |name: &str| {
        let what = format!("containerd to use {name}");
        wait_until(&what, || containerd.loaded_network()["name"] == name);
    };
    let full = std::env::var_os(testkit::feature::FULL_VARIABLE).is_some();
    for _ in 0..if full { 20 } else { 3 } {
        uses("cluster");
        let daemon = cluster.ready();
        uses("netwright-multi");
        cluster.kill(daemon);
        cluster.lab.sh(&format!("rm {CONFLIST}"));
    }
    uses("cluster");
    let daemon = cluster.ready();
    let whole = cluster.lab.sh(&format!("cat {CONFLIST}"));
    for damage in [
        format!("rm {CONFLIST}"),
        format!("mv {CONFLIST} /etc/cni/net.d/00-netwright.conflist.old"),
        format!("printf '{{' >{CONFLIST}"),
        format!(
            "sed s/netwright-multi/other/ {CONFLIST} >/etc/cni/net.d/x && mv /etc/cni/net.d/x {CONFLIST}"
        ),
    ] {
        cluster.lab.sh(&damage);
        wait_until(&format!("it to be put back after {damage}"), || {
            cluster.lab.sh(&format!("cat {CONFLIST} || true")) == whole
        });
        uses("netwright-multi");
    }
    // A daemon that is being replaced does not make a node NotReady; one that stays away does.
    wait_until("the daemon to say that it is ready", || {
        cluster.lab.sh_status("test -s /run/netwright/multinet.sock.ready")
    });
    cluster.kill(daemon);
    cluster.succeeds("STATUS", "any", "any");
    // Pods that request no network need no daemon, so the node stays ready.
    cluster.lab.sh("echo soon >/run/netwright/multinet.sock.ready");
    cluster.succeeds("STATUS", "any", "any");
    cluster.lab.sh(&format!("sed -i '/plainPodsWithoutDaemon/d' {CONFLIST}"));
    let output = cluster.call("STATUS", "any", "any");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("netwrightd does not answer"), "{said}");
}
