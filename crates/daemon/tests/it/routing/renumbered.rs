//! A node gets other prefixes while its pods run.

use std::fs;

use serde_json::{Value, json};
use testkit::{Place as _, wait_until};

use super::Fabric;
use super::cluster::{annotation, cluster, node};

/// If a Node is recreated with other prefixes, the node keeps the prefixes that its pods use, until
/// the last of these pods is gone or another node has the prefixes. New pods get addresses of the
/// new prefixes.
#[test]
fn a_node_that_gets_other_prefixes_keeps_its_pods() {
    testkit::require!("root");
    let mut fabric = Fabric::new("routing-renumbered", &[2]);
    let api = cluster(&mut fabric);
    let conflist = fabric.lab.dir().join("10-pods.conflist");
    let direct = ["--path".to_owned(), "direct".to_owned()];
    let with_files =
        [&direct[..], &["--conflist".to_owned(), conflist.display().to_string()]].concat();
    fabric.flags = direct.to_vec();
    fabric.start_on(1);
    fabric.flags = with_files;
    fabric.start_on(0);
    fabric.assert_all_reach_all();
    // This is how host-local records the pods' addresses.
    fabric.lab.sh("mkdir -p /var/lib/cni/networks/pods; cd /var/lib/cni/networks/pods; \
                   for address in 10.244.1.2 fd00:244:1::2; do printf 'pod-a\\r\\neth0' >$address; done");
    let plugin = || -> Value {
        let text = fs::read(&conflist).unwrap_or_default();
        let list: Value = serde_json::from_slice(&text).unwrap_or_default();
        list["plugins"][0].clone()
    };
    wait_until("the configuration", || plugin()["bridge"] == "nw-pods");
    let routes_of_b = |fabric: &Fabric| {
        fabric.nodes[1].host.sh("ip -4 route show proto 78; ip -6 route show proto 78")
    };
    let both = json!(["10.244.1.0/24", "fd00:244:1::/64"]);
    let keeps = |prefixes: &Value| annotation(&api, "a")["kept"] == *prefixes;

    api.remove("nodes", "", "a");
    wait_until("it to be gone", || !routes_of_b(&fabric).contains("10.244.1.0/24"));
    let mut again = node(&fabric, 0);
    again["spec"]["podCIDRs"] = json!(["10.244.101.0/24", "fd00:244:101::/64"]);
    api.create(&again);
    wait_until("what its pods live in to be kept", || keeps(&both));
    fabric.assert_all_reach_all();
    for prefix in ["10.244.101.0/24", "fd00:244:101::/64", "10.244.1.0/24", "fd00:244:1::/64"] {
        wait_until(prefix, || routes_of_b(&fabric).contains(prefix));
    }
    assert_eq!(fabric.routes(0)["kept"], both);
    // A bridge with the old prefix cannot have the new prefix's gateway address.
    wait_until("the new prefix for pods", || plugin()["bridge"] == "nw-pods1");
    let ranges = plugin()["ipam"]["ranges"].clone();
    assert_eq!(ranges[0][0]["subnet"], "10.244.101.0/24", "{ranges}");
    assert!(!ranges.to_string().contains("10.244.1.0"), "{ranges}");

    // A service that starts again without its record of nodes still knows the old prefixes.
    fabric.nodes[0].service.take().unwrap().kill();
    fs::remove_dir_all(fabric.nodes[0].dir.join("lib")).unwrap();
    fabric.start_on(0);
    wait_until("it to be ready", || fabric.routes(0)["phase"] == "ready");
    assert!(keeps(&both), "{}", annotation(&api, "a"));
    fabric.assert_all_reach_all();

    // Another node gets the old prefix. The other node keeps it, and this node says so.
    let says = json!({"version": 1, "underlay": ["192.0.2.20"], "offers": {"direct": {}}});
    api.create(&json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "c", "annotations": {"routing.netwright.io/node": says.to_string()}},
        "spec": {"podCIDRs": ["10.244.1.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.20"}]},
    }));
    wait_until("it to be the other's", || keeps(&json!(["fd00:244:1::/64"])));
    wait_until("it to be said", || {
        let warnings = fabric.routes(0)["warnings"].to_string();
        warnings.contains("10.244.1.0/24, which this node had before and which is node c's now")
    });
    let explained = fabric.command(1, "routes explain 10.244.1.2").output().unwrap();
    let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(explained.contains("10.244.1.0/24, a prefix of node c"), "{explained}");
    api.remove("nodes", "", "c");
    wait_until("it to be kept again", || keeps(&both));
    fabric.assert_all_reach_all();

    // The last pod ends.
    fabric.nodes[0].host.sh("ip link del p0");
    wait_until("nothing to be kept", || keeps(&Value::Null));
    wait_until("the others to know", || {
        let routes = routes_of_b(&fabric);
        !routes.contains("10.244.1.0/24") && !routes.contains("fd00:244:1::/64")
    });
    assert!(routes_of_b(&fabric).contains("10.244.101.0/24"));
    let log = fabric.nodes[0].service.as_ref().unwrap().log();
    assert!(log.contains("the last pod in the earlier prefix 10.244.1.0/24 is gone"), "{log}");
}
