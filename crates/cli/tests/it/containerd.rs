//! Debian's containerd with our plugins, through its CRI plugin: what a kubelet would call.

use serde_json::{Value, json};
use testkit::real::{Containerd, Pod, tell};
use testkit::traffic::{Server, assert_no_tcp, assert_pings, assert_tcp, assert_udp};
use testkit::{Lab, Place, Snapshot, require, wait_until};

use crate::system::{NETWRIGHT, SERVE, assert_only_left, fetch, install};

/// The list of a cluster's installer, in the newest version that this containerd reads.
const PODS: &str = r#"{
  "cniVersion": "1.0.0", "name": "pods",
  "plugins": [
    {"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
     "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
              "ranges": [[{"subnet": "10.98.0.0/24"}], [{"subnet": "fd98::/64"}]]}},
    {"type": "portmap", "capabilities": {"portMappings": true}},
    {"type": "bandwidth", "capabilities": {"bandwidth": true}},
    {"type": "firewall"},
    {"type": "tuning", "mtu": 1400}
  ]
}"#;

#[test]
fn pods_with_hostports_and_shaping_outlive_a_restart() {
    require!("root", "program:containerd", "program:runc", "program:curl", "file:/usr/bin/busybox");
    let lab = Lab::with_processes("containerd-pods");
    let outside = lab.outside();
    let mut containerd = Containerd::new(&lab, install(&lab), PODS);
    tell("containerd", "version", &containerd.version());
    let before = Snapshot::take(&lab);

    let pod = Pod::new("web")
        .tcp(8080, 80)
        .udp(5353, 53)
        .annotation("kubernetes.io/ingress-bandwidth", "10M")
        .annotation("kubernetes.io/egress-bandwidth", "20M");
    let web = containerd.run_pod(&pod);
    let server = containerd.run_container(&web, &pod, SERVE);
    let addresses = containerd.addresses(&web);
    let words = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let states = [containerd.pod_state(&web), containerd.container_state(&server)];
    assert_eq!(states, ["SANDBOX_READY", "CONTAINER_RUNNING"]);
    tell(
        "containerd",
        "running",
        &format!("pod web {} {words}; container {}", states[0], states[1]),
    );
    let [v4, v6] = addresses[..] else { panic!("two addresses: {addresses:?}") };
    assert!(v4.is_ipv4() && v6.is_ipv6(), "{addresses:?}");

    let listed: Value =
        serde_json::from_str(&lab.sh(&format!("{NETWRIGHT} list -o json"))).unwrap();
    // The other network is containerd's own, of `lo`.
    let pods =
        listed["attachments"].as_array().unwrap().iter().find(|one| one["network"] == "pods");
    assert_eq!(pods.unwrap()["ports"], json!(["8080:80/tcp", "5353:53/udp"]));

    // The published port works from outside in both families, from the host, from another pod and
    // from the pod itself.
    let outer = ["198.51.100.1", "[2001:db8:ffff::1]"];
    for host in outer {
        let said = fetch(&outside, &format!("http://{host}:8080/"));
        assert_eq!(said, "hello from web\n");
        tell("containerd", "answered", &format!("http://{host}:8080/ from outside: {said}"));
    }
    let other = containerd.run_pod(&Pod::new("other"));
    let (inside, visitor) = (containerd.netns(&web), containerd.netns(&other));
    for place in [&inside, &visitor] {
        assert_eq!(fetch(place, "http://198.51.100.1:8080/"), "hello from web\n");
    }
    assert_eq!(fetch(&lab, "http://127.0.0.1:8080/"), "hello from web\n");
    let names = Server::udp(&inside, "[::]:53", "names");
    for host in outer {
        assert_eq!(assert_udp(&outside, &format!("{host}:5353")).server, "names");
    }
    assert_pings(&visitor, &v4.to_string());
    assert_pings(&visitor, &v6.to_string());
    let shaped = lab.sh("tc qdisc show");
    for rate in ["rate 10Mbit", "rate 20Mbit"] {
        assert!(shaped.contains(rate), "{rate}: {shaped}");
    }

    // The daemon is killed and started: pods and their ports keep working, and what it made before
    // is removed after.
    containerd.restart();
    assert_eq!(containerd.pod_state(&web), "SANDBOX_READY");
    assert_eq!(fetch(&outside, "http://198.51.100.1:8080/"), "hello from web\n");
    drop((names, inside));
    // Kubelets stop pods repeatedly; the second time containerd calls DEL without namespace and
    // previous result.
    for _ in 0..2 {
        containerd.stop_pod(&web).unwrap();
    }
    assert_eq!(containerd.pod_state(&web), "SANDBOX_NOTREADY");
    assert_no_tcp(&outside, "198.51.100.1:8080");
    // The other pod is not affected.
    let lives = Server::tcp(&visitor, "[::]:80", "other");
    assert_eq!(
        assert_tcp(&lab, &format!("{}:80", containerd.addresses(&other)[0])).server,
        "other"
    );
    drop((lives, visitor));
    containerd.remove_pod(&web).unwrap();
    // The port is free for the next pod.
    let again = containerd.run_pod(&pod);
    containerd.run_container(&again, &pod, SERVE);
    assert_eq!(fetch(&outside, "http://198.51.100.1:8080/"), "hello from web\n");
    for id in [&again, &other] {
        containerd.stop_pod(id).unwrap();
        containerd.remove_pod(id).unwrap();
    }
    assert_only_left(&lab, &before, &Containerd::LEAVES);
}

/// Another program removes the path of a pod's namespace. The pod's processes and its network
/// continue.
#[test]
fn a_pod_that_lost_only_its_path_keeps_its_network() {
    require!(
        "full",
        "root",
        "program:containerd",
        "program:runc",
        "program:curl",
        "file:/usr/bin/busybox"
    );
    let lab = Lab::with_processes("containerd-path");
    let outside = lab.outside();
    let containerd = Containerd::new(&lab, install(&lab), PODS);
    let pod = Pod::new("web").tcp(8080, 80);
    let web = containerd.run_pod(&pod);
    containerd.run_container(&web, &pod, SERVE);
    let listed: Value =
        serde_json::from_str(&lab.sh(&format!("{NETWRIGHT} list -o json"))).unwrap();
    let rows = listed["attachments"].as_array().unwrap();
    let row = rows.iter().find(|one| one["network"] == "pods").unwrap();
    let netns = row["netns"].as_str().unwrap();
    lab.sh(&format!("umount --lazy {netns} && rm {netns}"));
    let collected = lab.sh(&format!("{NETWRIGHT} gc"));
    assert!(collected.contains("removed 0"), "{collected}");
    // Another pod does not get its port either.
    let why = containerd.try_run_pod(&Pod::new("thief").tcp(8080, 80)).unwrap_err();
    assert!(why.contains("8080"), "{why}");
    assert_eq!(fetch(&outside, "http://198.51.100.1:8080/"), "hello from web\n");
}

#[test]
fn a_pod_whose_network_fails_leaves_nothing() {
    require!("root", "program:containerd", "program:runc", "program:curl", "file:/usr/bin/busybox");
    let lab = Lab::with_processes("containerd-fails");
    let broken =
        PODS.replace(r#""mtu": 1400"#, r#""sysctl": {"net.ipv4.conf.IFNAME.no_such_thing": "1"}"#);
    let containerd = Containerd::new(&lab, install(&lab), &broken);
    let before = Snapshot::take(&lab);
    let why = containerd.try_run_pod(&Pod::new("web").tcp(8080, 80)).unwrap_err();
    assert!(why.contains("no_such_thing"), "{why}");
    assert_only_left(&lab, &before, &Containerd::LEAVES);
}

/// How often the test changes the configuration while a runtime runs.
fn times() -> usize {
    if std::env::var_os(testkit::feature::FULL_VARIABLE).is_some() { 20 } else { 3 }
}

/// The node's runtime already runs and has no network: `install` makes it ready, without a restart.
/// It notices `uninstall` as well.
#[test]
fn what_install_writes_is_noticed_while_containerd_runs() {
    require!("root", "program:containerd", "program:runc", "program:curl", "file:/usr/bin/busybox");
    let lab = Lab::with_processes("containerd-notices-install");
    let containerd = Containerd::without_network(&lab, "/opt/cni/bin");
    for time in 1..=times() {
        containerd.network_ready().expect_err("there is no network");
        lab.sh(&format!("{NETWRIGHT} install --bin-dir /opt/cni/bin"));
        wait_until(&format!("the network to be ready, time {time}"), || {
            containerd.network_ready().is_ok()
        });
        assert_eq!(containerd.loaded_network()["name"], "netwright");
        let pod = containerd.run_pod(&Pod::new("any"));
        assert_eq!(containerd.addresses(&pod).len(), 2);
        containerd.remove_pod(&pod).unwrap();
        lab.sh(&format!("{NETWRIGHT} uninstall --bin-dir /opt/cni/bin"));
        wait_until("the network to be gone", || containerd.network_ready().is_err());
    }
}
