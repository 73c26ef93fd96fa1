//! The services `multinet` beside an API server, and `ipam` with an API server and with etcd.

use std::fs;

use serde_json::{Value, json};
use testkit::kube::KubeApi;
use testkit::real::Etcd;
use testkit::traffic::assert_pings;
use testkit::{Lab, Place, feature, require, wait_until};

use super::{Host, call};
use crate::multinet::{CONFLIST, Cluster, links};

#[test]
fn pods_get_and_lose_networks_within_the_unit() {
    const UNIT: &str = "netwrightd@multinet.service";
    require!("root", "file:/lib/systemd/systemd");
    let cluster = Cluster::new(Lab::with_systemd("unit-multinet"));
    cluster.define_all();
    let lab = &cluster.lab;
    let host = Host::new(lab);
    let kubeconfig = cluster.api.kubeconfig(lab.dir());
    // The generator lets the service write to the conflist's folder.
    host.enable(&format!(
        "[multinet]\nenable = true\nnode = \"n1\"\ncluster-network = \"cluster\"\nlabel-node = true\n\
         conflist = \"{CONFLIST}\"\nkubeconfig = \"{}\"\n",
        kubeconfig.display()
    ));
    wait_until("pods to be answered", || lab.path(CONFLIST).exists());

    let networks =
        json!([{"name": "lan", "interface": "data0", "ips": ["10.71.0.99/16"]}, {"name": "pair"}]);
    cluster.pod("web", "uid-web", &networks.to_string());
    let web = lab.container("web");
    cluster.succeeds("ADD", "web", "uid-web");
    assert_eq!(links(&web), ["data0", "eth0", "net2"]);
    wait_until("the status", || cluster.interfaces("web").len() == 3);

    // The service's own children make the changes while it runs.
    if feature::available("tun") {
        cluster.define("taps", &json!({"cniVersion": "1.0.0", "type": "tap"}));
        cluster.annotate("web", "lan@data0,pair@pair0,taps@tap0");
        wait_until("a tap", || links(&web).contains(&"tap0".to_owned()));
    }
    let more = json!([{"name": "lan", "interface": "data0"}, {"name": "mac", "interface": "mac0"}, {"name": "pair", "interface": "pair0"}]);
    cluster.annotate("web", &more.to_string());
    wait_until("the status with others", || links(&web) == ["data0", "eth0", "mac0", "pair0"]);
    wait_until("the status", || cluster.interfaces("web").len() == 4);
    assert_pings(&web, "10.97.0.1");
    host.systemctl(&format!("restart {UNIT}"));
    cluster.annotate("web", "pair@pair0");
    wait_until("those to go", || links(&web) == ["eth0", "pair0"]);
    wait_until("the status", || cluster.interfaces("web").len() == 2);
    host.systemctl(&format!("kill --signal KILL {UNIT}"));
    cluster.succeeds("DEL", "web", "uid-web");
    assert_eq!(links(&web), Vec::<String>::new());
    wait_until("the report to arrive", || {
        lab.sh("ls /run/netwright/multinet/sandboxes").is_empty()
    });
    let node = cluster.api.object("nodes", "", "n1").unwrap();
    assert_eq!(node["metadata"]["labels"]["networks.netwright/default.lan"], "true", "{node}");
    host.assert_confined(UNIT);
}

/// Calls the address plugin as an interface plugin does.
#[track_caller]
fn addresses(lab: &Lab, verb: &str, pod: &str) -> Value {
    let config = json!({
        "cniVersion": "1.0.0", "name": "blue", "type": "bridge",
        "ipam": {"type": "cluster-ipam", "ipRanges": [{"range": "10.66.0.0/24"}, {"range": "fd66::/64"}]},
    });
    let sandbox = format!("sandbox-{pod}");
    let pod = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod}");
    call(lab, "cluster-ipam", verb, &[("CNI_CONTAINERID", &sandbox), ("CNI_ARGS", &pod)], &config)
}

/// The checks that hold for every store of the records.
fn addresses_within_the_unit(lab: &Lab, records: &str) {
    const UNIT: &str = "netwrightd@ipam.service";
    let host = Host::new(lab);
    // It runs as root, as earlier versions did; then as its own user; and then as root again.
    let as_root = || host.edit(UNIT, "User=root\nExecStartPre=");
    let is_root = || host.main_process(UNIT)["Uid"] == "0\t0\t0\t0";
    as_root();
    host.enable(&format!("[ipam]\nenable = true\nnode = \"n1\"\n{records}\n"));
    let _c1 = lab.container("c1");
    let one = addresses(lab, "ADD", "one");
    assert_eq!(one["ips"].as_array().unwrap().len(), 2, "{one}");
    assert!(is_root());
    lab.sh(&format!("rm /etc/systemd/system/{UNIT}.d/override.conf"));
    host.systemctl("daemon-reload");
    host.systemctl(&format!("restart {UNIT}"));
    let two = addresses(lab, "ADD", "two");
    assert_ne!(one["ips"], two["ips"]);
    assert!(!is_root());
    let owners =
        "stat -c %U /var/lib/netwright/ipam /run/netwright/ipam.sock.todo /run/netwright/ipam.sock";
    assert_eq!(lab.sh(owners), "netwright-ipam\nnetwright-ipam\nroot\n");
    let status = lab.try_sh("/opt/cni/bin/netwrightd agent status ipam --wait");
    assert!(status.status.success(), "{}", host.said());
    as_root();
    host.systemctl(&format!("restart {UNIT}"));
    let three = addresses(lab, "ADD", "three");
    assert!(is_root() && three["ips"] != one["ips"] && three["ips"] != two["ips"], "{three}");
    lab.sh(&format!("rm /etc/systemd/system/{UNIT}.d/override.conf"));
    host.systemctl("daemon-reload");
    host.systemctl(&format!("restart {UNIT}"));
    addresses(lab, "DEL", "three");
    host.systemctl(&format!("stop {UNIT}"));
    addresses(lab, "DEL", "one");
    host.systemctl(&format!("start {UNIT}"));
    addresses(lab, "DEL", "two");
    host.assert_confined(UNIT);
}

#[test]
fn addresses_are_given_within_the_unit_with_records_in_the_kubernetes_api() {
    require!("root", "file:/lib/systemd/systemd");
    let lab = Lab::with_systemd("unit-ipam-api");
    let api = lab.enter(KubeApi::start);
    api.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}));
    // The service does not see what is in /tmp and /var/tmp.
    let kubeconfig = fs::read(api.kubeconfig(lab.dir())).unwrap();
    fs::write(lab.path("/etc/kubeconfig"), kubeconfig).unwrap();
    addresses_within_the_unit(&lab, "kubeconfig = \"/etc/kubeconfig\"");
}

#[test]
fn addresses_are_given_within_the_unit_with_records_in_etcd() {
    require!("root", "program:etcd", "program:curl", "file:/lib/systemd/systemd");
    let lab = Lab::with_systemd("unit-ipam-etcd");
    let etcd = Etcd::start(&lab);
    addresses_within_the_unit(&lab, &format!("etcd = {:?}", etcd.endpoints()));
}
