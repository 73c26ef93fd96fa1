//! The containers of the Helm chart, run as it confines them under a real containerd: an image of
//! only our two executables, a read-only root, capabilities, seccomp, mounts.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::Value;
use serde_json::json;
use testkit::chart::{objects, render};
use testkit::kube::Front;
use testkit::real::{Containerd, Manifest, Pod};
use testkit::{Lab, Place, require, wait_until};

use crate::multinet::{CONFLIST, Cluster};
use crate::system::{NETWRIGHT, netwrightd};

/// The node's name.
const NODE: &str = "n1";

/// The label that says that the node serves a network.
const LABEL: &str = "networks.netwright/default.lan";

/// Values that enable everything. The services do nothing by themselves in the time of the test.
const EVERYTHING: [&str; 4] = [
    "config.collect.enable=true",
    "config.repair.enable=true",
    "config.repair.keep-plugins={/opt/cni/bin}",
    "config.dhcp.enable=true",
];

/// What a kubelet does for pods.
struct Kubelet<'c> {
    containerd: &'c Containerd<'c>,
    front: &'c Front,
    volumes: BTreeMap<&'static str, PathBuf>,
}

/// A container, and what its manifest wants.
struct StartedContainer {
    name: String,
    id: String,
    wanted: Manifest,
    capabilities: Vec<String>,
}

impl<'c> Kubelet<'c> {
    fn new(lab: &Lab, containerd: &'c Containerd<'c>, front: &'c Front) -> Self {
        let folder = |name: &'static str| {
            let path = lab.dir().join(name);
            lab.sh(&format!("mkdir {0} && chmod 1777 {0}", path.display()));
            (name, path)
        };
        let mut volumes = BTreeMap::from(["configuration", "run", "state"].map(folder));
        volumes.insert("token", front.account.clone());
        Kubelet { containerd, front, volumes }
    }

    /// Mounts a ConfigMap: all files appear at once.
    fn configure(&self, round: u32, toml: &str) {
        let folder = &self.volumes["configuration"];
        let data = format!("..{round}");
        std::fs::create_dir(folder.join(&data)).unwrap();
        std::fs::write(folder.join(&data).join("netwrightd.toml"), toml).unwrap();
        symlink(&data, folder.join("..data_tmp")).unwrap();
        std::fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
        let _ = symlink("..data/netwrightd.toml", folder.join("netwrightd.toml"));
    }

    /// Makes the sandbox of a DaemonSet's pod.
    fn sandbox(&self, daemon: &Value) -> (String, Pod) {
        let spec = &daemon["spec"]["template"]["spec"];
        assert_eq!(spec["hostNetwork"], true);
        let pod = Pod::new(daemon["metadata"]["name"].as_str().unwrap()).on_host();
        let pod = pod.with_host_pids(spec["hostPID"] == true);
        (self.containerd.run_pod(&pod), pod)
    }

    /// Starts a container of it.
    fn start(
        &self,
        daemon: &Value,
        container: &Value,
        (id, pod): &(String, Pod),
    ) -> StartedContainer {
        let spec = &daemon["spec"]["template"]["spec"];
        let wanted = Manifest::read(spec, container, NODE, &self.volumes);
        let environment = self.front.environment();
        let id = self.containerd.run_manifest(id, pod, &wanted, &environment);
        let added = container["securityContext"]["capabilities"]["add"].as_array();
        let capabilities = added.into_iter().flatten().filter_map(Value::as_str);
        StartedContainer {
            name: container["name"].as_str().unwrap().to_owned(),
            id,
            wanted,
            capabilities: capabilities.map(str::to_owned).collect(),
        }
    }

    /// Starts all containers of a pod, the initial ones one after the other.
    fn run(&self, daemon: &Value) -> (String, Vec<StartedContainer>) {
        let sandbox = self.sandbox(daemon);
        let spec = &daemon["spec"]["template"]["spec"];
        for container in spec["initContainers"].as_array().into_iter().flatten() {
            let started = self.start(daemon, container, &sandbox);
            self.wait_for_end(&started);
        }
        let containers = spec["containers"].as_array().into_iter().flatten();
        let all = containers.map(|container| self.start(daemon, container, &sandbox)).collect();
        (sandbox.0, all)
    }

    fn wait_for_end(&self, started: &StartedContainer) {
        wait_until(&started.name, || self.containerd.exit_code(&started.id).is_some());
        let output = self.containerd.output(&started.name);
        assert_eq!(self.containerd.exit_code(&started.id), Some(0), "{}: {output}", started.name);
    }

    fn wait_for_ready(&self, started: &StartedContainer) {
        let ready = || self.containerd.probe(&started.id, &started.wanted, "readinessProbe");
        wait_until(&format!("{} to be ready", started.name), || {
            self.assert_runs(started);
            ready().is_ok()
        });
    }

    fn assert_runs(&self, started: &StartedContainer) {
        let code = self.containerd.exit_code(&started.id);
        assert_eq!(code, None, "{}: {}", started.name, self.containerd.output(&started.name));
    }

    /// A service's own status, requested in its container.
    fn status(&self, started: &StartedContainer) -> Value {
        let command = ["/opt/netwright/netwrightd", "agent", "status", "-o", "json", &started.name];
        // The command fails while the service is not ready, and prints the same.
        let said = self.containerd.exec(&started.id, &command).unwrap_or_else(|said| said);
        let json = said.find('{').map_or("", |begin| &said[begin..]);
        let read = serde_json::Deserializer::from_str(json).into_iter::<Value>().next();
        read.and_then(Result::ok).unwrap_or_default()["services"][0].clone()
    }
}

fn daemons(values: &[&str]) -> (Vec<Value>, String) {
    let all = objects(&render(values).unwrap());
    let configuration = all.iter().find(|one| one["kind"] == "ConfigMap").unwrap();
    let toml = configuration["data"]["netwrightd.toml"].as_str().unwrap().to_owned();
    (all.into_iter().filter(|one| one["kind"] == "DaemonSet").collect(), toml)
}

/// Gives containerd the image of a DaemonSet: our two executables, and nothing else.
fn import(containerd: &Containerd<'_>, daemon: &Value) {
    let image = daemon["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap();
    containerd.import(
        image,
        &[
            (Path::new(NETWRIGHT), "/opt/netwright/netwright"),
            (&netwrightd(), "/opt/netwright/netwrightd"),
        ],
    );
}

/// The numbers of capabilities (linux include/uapi/linux/capability.h).
const CAPABILITIES: [(&str, u32); 7] = [
    ("DAC_OVERRIDE", 1),
    ("NET_BIND_SERVICE", 10),
    ("NET_BROADCAST", 11),
    ("NET_ADMIN", 12),
    ("NET_RAW", 13),
    ("SYS_PTRACE", 19),
    ("SYS_ADMIN", 21),
];

/// The kernel shows that a service's process has the rights of its manifest and no more: its
/// capabilities, a filter of system calls, and no way to further rights.
fn assert_confined(lab: &Lab, started: &StartedContainer) {
    let service = &started.name;
    let pids = lab.sh(&format!("pgrep -f '^[^ ]*netwrightd {service}( |$)'"));
    let pid = pids.split_whitespace().next().unwrap();
    let status = lab.sh(&format!("cat /proc/{pid}/status"));
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim_start_matches(':').trim().to_owned()
    };
    let bits = started.capabilities.iter().map(|name| {
        let known = CAPABILITIES.iter().find(|(known, _)| known == name);
        1_u64 << known.unwrap_or_else(|| panic!("{name}")).1
    });
    let wanted = format!("{:016x}", bits.sum::<u64>());
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        assert_eq!(field(set), wanted, "{service}: {set}");
    }
    assert_eq!((field("Seccomp"), field("NoNewPrivs")), ("2".into(), "1".into()), "{service}");
}

/// A node has a runtime, and the cluster's own network with its plugins. The chart is installed,
/// its configuration is changed, its daemons are killed, and `mode: remove` gives the node back.
#[test]
fn every_container_does_its_work_as_it_is_confined() {
    require!(
        "root",
        "helm",
        "program:containerd",
        "program:runc",
        "program:curl",
        "program:openssl",
        "program:socat",
        "file:/usr/bin/busybox",
        "file:/usr/lib/cni/bridge"
    );
    let cluster = Cluster::bare(Lab::with_processes("manifests"));
    let lab = &cluster.lab;
    lab.sh("rm -f /etc/machine-id; echo 0123456789abcdef0123456789abcdef >/etc/machine-id");
    lab.sh("mkdir -p /var/lib/kubelet/device-plugins /opt/cni/bin && cd /usr/lib/cni && cp bridge host-local loopback /opt/cni/bin/");
    let plugins_before = lab.sh("cd /opt/cni/bin && sha256sum -- *");
    cluster.api.require_token("a-token");
    let front = cluster.api.serve_pods(lab, "a-token");
    cluster.define_all();
    let containerd = Containerd::without_network(lab, "/opt/cni/bin");
    let kubelet = Kubelet::new(lab, &containerd, &front);
    let (all, toml) = daemons(&EVERYTHING);
    import(&containerd, &all[0]);

    kubelet.configure(0, &toml);
    let pods: Vec<(String, Vec<StartedContainer>)> =
        all.iter().map(|daemon| kubelet.run(daemon)).collect();
    assert!(!lab.sh("ls /etc/cni/net.d").contains("99-netwright"), "no network of its own");
    let running: BTreeMap<&str, &StartedContainer> =
        pods.iter().flat_map(|(_, all)| all).map(|one| (one.name.as_str(), one)).collect();
    let services = ["collect", "dhcp", "ipam", "multinet", "repair"];
    assert_eq!(running.keys().copied().collect::<Vec<_>>(), services);
    for (service, started) in &running {
        kubelet.wait_for_ready(started);
        containerd.probe(&started.id, &started.wanted, "livenessProbe").unwrap();
        assert_confined(lab, started);
        // If a service could not confine itself further, it says so. A machine may permit fewer
        // open files than the service requests.
        let unconfined = kubelet.status(started)["unconfined"].clone();
        let mut said: Vec<&str> =
            unconfined.as_array().unwrap().iter().filter_map(serde_json::Value::as_str).collect();
        said.retain(|line| !line.starts_with("cannot limit open files"));
        match *service {
            "ipam" => {
                assert!(said.iter().any(|line| line.contains("mounts of its own")), "{said:?}");
            }
            _ => assert!(said.is_empty(), "{service}: {said:?}"),
        }
    }
    wait_until("pods to be answered", || containerd.loaded_network()["name"] == "netwright-multi");
    assert!(lab.path(CONFLIST).exists());
    let label =
        || cluster.api.object("nodes", "", NODE).unwrap()["metadata"]["labels"][LABEL].clone();
    wait_until("the node's label", || label() == "true");

    cluster.pod("web", "uid-web", "lan,pair");
    let web = containerd.run_pod(&Pod::new("web"));
    wait_until("the status", || cluster.interfaces("web").len() == 3);
    let links = containerd.netns(&web).sh("ip -o link");
    for ifname in ["eth0", "net1", "net2"] {
        assert!(links.contains(&format!(" {ifname}@")), "{links}");
    }
    // The daemon in its container attaches one more network while the pod runs.
    cluster.annotate("web", "lan,pair,lan@more0");
    wait_until("the fourth", || cluster.interfaces("web").len() == 4);
    // Another program removes an address.
    containerd.netns(&web).sh("ip address flush dev net1");
    wait_until("the address to be put back", || {
        containerd.netns(&web).sh("ip -o -4 address show dev net1").contains("10.71.")
    });

    // Changes are applied without a new pod: one key while the service continues, another by a
    // restart of the process in the same container.
    let changed = toml.replace("[repair]\n", "[repair]\ninterval = \"7s\"\n");
    let changed = changed.replace("[multinet]\n", "[multinet]\nnamespace-isolation = true\n");
    assert_ne!(changed, toml);
    kubelet.configure(1, &changed);
    let value = |service: &str, key: &str| kubelet.status(running[service])["values"][key].clone();
    wait_until("the new values", || {
        value("repair", "interval") == "\"7s\""
            && value("multinet", "namespace-isolation") == "true"
    });
    for started in running.values() {
        kubelet.wait_for_ready(started);
    }
    assert_confined(lab, running["multinet"]);
    // A wrong configuration changes nothing, and is reported.
    kubelet.configure(2, &changed.replace("7s", "seven"));
    wait_until("the status to say so", || {
        let why = kubelet.status(running["repair"])["missing"].to_string();
        why.contains("netwrightd.toml:") && why.contains("interval must be a duration")
    });
    assert_eq!(value("repair", "interval"), "\"7s\"");
    kubelet.configure(3, &changed);
    kubelet.wait_for_ready(running["repair"]);

    // Another package removes plugins, and the executable to which they are links. The record is on
    // the node, so the node's own command knows it too.
    let record = lab.sh("cat /var/lib/netwright/installed/*.json");
    assert!(record.contains("\"dir\": \"/opt/cni/bin\""), "{record}");
    lab.sh("cd /opt/cni/bin && rm netwright vlan");
    wait_until("the plugins to be put back", || {
        lab.try_sh("test -x /opt/cni/bin/netwright && test -x /opt/cni/bin/vlan").status.success()
    });
    kubelet.wait_for_ready(running["repair"]);

    // The chart is uninstalled without `mode: remove`: pods that request no network start on the
    // cluster's own network.
    for (id, _) in &pods {
        containerd.remove_pod(id).unwrap();
    }
    lab.sh("echo 0 >/run/netwright/multinet.sock.ready");
    let plain = containerd.run_pod(&Pod::new("plain").annotation("team", "a"));
    assert!(containerd.netns(&plain).sh("ip -o -4 address show dev eth0").contains("10.97."));

    // With `mode: remove`, new pods start on the cluster's own network at once. The node is given
    // back when our last pod has ended.
    // The daemon may have seen the node without plugins at its last look, and have ended before it
    // looked again.
    let labelled = json!({"metadata": {"labels": {LABEL: "true"}}});
    cluster.api.change("nodes", "", NODE, &labelled);
    let (removal, _) = daemons(&["mode=remove"]);
    let [daemon] = removal.as_slice() else { panic!("{removal:?}") };
    let spec = &daemon["spec"]["template"]["spec"];
    let sandbox = kubelet.sandbox(daemon);
    let unlabel = kubelet.start(daemon, &spec["initContainers"][0], &sandbox);
    kubelet.wait_for_end(&unlabel);
    assert!(label().is_null());
    let remove = kubelet.start(daemon, &spec["initContainers"][1], &sandbox);
    wait_until("the cluster's own network", || {
        kubelet.assert_runs(&remove);
        containerd.loaded_network()["name"] == "cluster"
    });
    wait_until("it to say what it waits for", || {
        containerd.output("remove").contains("waiting for the end of ")
    });
    assert!(!lab.sh("head -c 50 /opt/cni/bin/bridge | tr -d '\\0'").contains("netwright"));
    let after = containerd.run_pod(&Pod::new("after"));
    assert!(containerd.netns(&after).sh("ip -o -4 address show dev eth0").contains("10.97."));
    kubelet.assert_runs(&remove);
    containerd.remove_pod(&web).unwrap();
    containerd.remove_pod(&plain).unwrap();
    kubelet.wait_for_end(&remove);
    let done = kubelet.start(daemon, &spec["containers"][0], &sandbox);
    kubelet.wait_for_ready(&done);
    assert_eq!(lab.sh("cd /opt/cni/bin && sha256sum -- *"), plugins_before);
    assert_eq!(lab.sh("ls -A /run/netwright /var/lib/netwright | grep -v :$ || true").trim(), "");
    assert_eq!(lab.sh("nft list tables | grep netwright || true").trim(), "");
    assert_eq!(lab.sh("ls /etc/cni/net.d").trim(), "10-cluster.conflist");
    for network in ["lan", "pair"] {
        let held = format!("ls /var/lib/cni/networks/{network} | grep -c '^10\\.' || true");
        assert_eq!(lab.sh(&held).trim(), "0", "{network}");
    }
    containerd.remove_pod(&after).unwrap();
    // The node was given back already, or never had anything of ours.
    containerd.remove_pod(&sandbox.0).unwrap();
    let sandbox = kubelet.sandbox(daemon);
    let again = kubelet.start(daemon, &spec["initContainers"][1], &sandbox);
    kubelet.wait_for_end(&again);
}

/// The values of a cluster whose only network is that of the service `routing`.
const ROUTING: [&str; 4] = [
    "config.multinet.enable=false",
    "config.ipam.enable=false",
    "config.routing.enable=true",
    "config.routing.cluster={10.244.0.0/16}",
];

/// A node that has only a runtime: the chart makes its network, by which its pods reach those of
/// another node, and removes it again.
#[test]
fn routing_alone_makes_a_nodes_network() {
    require!(
        "root",
        "helm",
        "program:containerd",
        "program:runc",
        "program:curl",
        "program:openssl",
        "program:socat",
        "file:/usr/bin/busybox"
    );
    let cluster = Cluster::bare(Lab::with_processes("manifests-routing"));
    let lab = &cluster.lab;
    lab.sh("rm /etc/cni/net.d/10-cluster.conflist; mkdir -p /opt/cni/bin");
    // Another node on the same segment, with a pod.
    let far = lab.container("far");
    lab.sh("ip link add eth1 type veth peer name eth0 netns far && ip addr add 192.0.2.7/24 dev eth1 && ip link set eth1 up");
    far.sh("ip link set lo up && ip addr add 192.0.2.8/24 dev eth0 && ip link set eth0 up && ip addr add 10.244.2.1/32 dev lo && ip route add 10.244.1.0/24 via 192.0.2.7");
    let fields = |number: u8, address: &str| {
        serde_json::json!({
            "spec": {"podCIDRs": [format!("10.244.{number}.0/24")]},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]},
        })
    };
    cluster.api.change("nodes", "", NODE, &fields(1, "192.0.2.7"));
    let mut other = fields(2, "192.0.2.8");
    other["apiVersion"] = "v1".into();
    other["kind"] = "Node".into();
    other["metadata"] = serde_json::json!({"name": "far", "annotations": {
        "routing.netwright.io/node": r#"{"version":1,"underlay":["192.0.2.8"],"offers":{"direct":{}}}"#,
    }});
    cluster.api.create(&other);
    cluster.api.require_token("a-token");
    let front = cluster.api.serve_pods(lab, "a-token");
    let containerd = Containerd::without_network(lab, "/opt/cni/bin");
    let kubelet = Kubelet::new(lab, &containerd, &front);
    let (all, toml) = daemons(&ROUTING);
    let [daemon] = all.as_slice() else { panic!("{all:?}") };
    import(&containerd, daemon);

    kubelet.configure(0, &toml);
    lab.sh("echo 0 >/proc/sys/net/ipv4/ip_forward");
    let (sandbox, running) = kubelet.run(daemon);
    let [routing] = running.as_slice() else { panic!("one container") };
    kubelet.wait_for_ready(routing);
    containerd.probe(&routing.id, &routing.wanted, "livenessProbe").unwrap();
    assert_confined(lab, routing);
    assert_eq!(lab.sh("cat /proc/sys/net/ipv4/ip_forward").trim(), "1");
    wait_until("the network", || containerd.loaded_network()["name"] == "pods");
    let node = || cluster.api.object("nodes", "", NODE).unwrap();
    wait_until("the annotation", || {
        node()["metadata"]["annotations"]["routing.netwright.io/node"].is_string()
    });
    wait_until("the condition", || node()["status"].to_string().contains("RoutingIsUp"));
    let web = containerd.run_pod(&Pod::new("web"));
    let pod = containerd.netns(&web);
    pod.sh("ping -n -c 1 -W 20 10.244.2.1");
    containerd.remove_pod(&web).unwrap();

    containerd.remove_pod(&sandbox).unwrap();
    assert!(lab.sh("ip route show proto 78").contains("10.244.2.0/24"), "they stay");
    let (removal, _) = daemons(&[&["mode=remove"], &ROUTING[..]].concat());
    let [removal] = removal.as_slice() else { panic!("{removal:?}") };
    // Without another network the node keeps this one, and stays ready.
    let first = &removal["spec"]["template"]["spec"]["initContainers"][0];
    let sandbox = kubelet.sandbox(removal);
    let refused = kubelet.start(removal, first, &sandbox);
    wait_until("the refusal", || containerd.exit_code(&refused.id) == Some(1));
    let said = containerd.output("remove");
    assert!(said.contains("there is no network in /etc/cni/net.d"), "{said}");
    assert_eq!(containerd.loaded_network()["name"], "pods");
    containerd.remove_pod(&sandbox.0).unwrap();
    lab.sh(r#"cp /bin/true /opt/cni/bin/theirs; echo '{"cniVersion": "1.0.0", "name": "next", "plugins": [{"type": "theirs"}]}' >/etc/cni/net.d/20-next.conflist"#);
    let (_, done) = kubelet.run(removal);
    kubelet.wait_for_ready(&done[0]);
    assert_eq!(lab.sh("ip route show proto 78; ip route show proto 79").trim(), "");
    assert!(!lab.path("/etc/cni/net.d/10-pods.conflist").exists());
    assert!(node()["metadata"]["annotations"]["routing.netwright.io/node"].is_null());
    assert_eq!(lab.sh("nft list tables | grep netwright || true").trim(), "");
}
