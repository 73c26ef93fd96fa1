//! The import of Whereabouts' reservations, from the API server and from files.

use std::fs;
use std::net::IpAddr;

use serde_json::{Value, json};
use testkit::kube::KubeApi;
use testkit::wait_for;

use super::rig::Cluster;

const POOLS: &str = "whereabouts.cni.cncf.io/v1alpha1";

/// Makes a pool of the network's first range, and pods. Three pods have addresses of the pool, and
/// one of them is gone.
fn whereabouts(api: &KubeApi) {
    let held = |name: &str| json!({"id": name, "podref": format!("ns/{name}"), "ifname": "net1"});
    api.create(&json!({
        "apiVersion": POOLS, "kind": "IPPool", "metadata": {"namespace": "kube-system", "name": "10.0.0.0-20"},
        "spec": {"range": "10.0.0.0/20", "allocations": {"1": held("old-1"), "2": held("old-2"), "3": held("gone")}},
    }));
    for (name, address) in [("old-1", "10.0.0.1"), ("old-2", "10.0.0.2"), ("gone", "10.0.0.3")] {
        api.create(&json!({
            "apiVersion": POOLS, "kind": "OverlappingRangeIPReservation",
            "metadata": {"namespace": "kube-system", "name": address},
            "spec": {"containerid": name, "podref": format!("ns/{name}"), "ifname": "net1"},
        }));
    }
    for (name, node) in [("old-1", "n1"), ("old-2", "n2")] {
        api.create(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ns", "name": name}, "spec": {"nodeName": node},
        }));
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn v4(addresses: &[IpAddr]) -> String {
    addresses.iter().find(|address| address.is_ipv4()).unwrap().to_string()
}

#[test]
fn what_whereabouts_gave_is_nobody_elses_until_its_pod_goes() {
    testkit::require!("root");
    let cluster = Cluster::new("ipam-import");
    whereabouts(&cluster.api);
    // The command writes nothing before the administrator asks for it.
    let shown = cluster.run(&["--import", "api"]);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    assert_eq!(
        text(&shown.stdout),
        "take over  10.0.0.1  of default: net1 of ns/old-1 on n1\n\
         take over  10.0.0.2  of default: net1 of ns/old-2 on n2\n\
         pass over  10.0.0.3  of 10.0.0.0-20: the pod ns/gone is gone\n\
         2 addresses would be taken over; --apply writes them down\n"
    );
    assert_eq!(cluster.api.objects("addressblocks"), Vec::<Value>::new());
    let applied = cluster.run(&["--import", "api", "--apply", "--output", "json"]);
    assert!(applied.status.success(), "{}", text(&applied.stderr));
    let said: Value = serde_json::from_slice(&applied.stdout).unwrap();
    assert_eq!(said["applied"], json!({"taken": 2, "known": 0, "refused": []}));
    assert_eq!(said["plan"]["blocks"][0]["node"], "n1");
    let again = text(&cluster.run(&["--import", "api", "--apply"]).stdout);
    assert!(again.ends_with("0 addresses taken over, 2 were before\n"), "{again}");

    let (n1, n2) = (cluster.daemon("n1", &[]), cluster.daemon("n2", &[]));
    // The containers keep their addresses, each on its node.
    wait_for("what is taken over to be known", || {
        (n1.assign("old-1").is_ok_and(|all| v4(&all) == "10.0.0.1")).then_some(())
    });
    let mut given = Vec::new();
    for index in 0..20 {
        let daemon = if index % 2 == 0 { &n1 } else { &n2 };
        given.push(v4(&daemon.assign(&format!("new-{index}")).unwrap()));
    }
    assert!(
        !given.contains(&"10.0.0.1".to_owned()) && !given.contains(&"10.0.0.2".to_owned()),
        "{given:?}"
    );
    given.sort();
    given.dedup();
    assert_eq!(given.len(), 20);
    // DEL, as the runtime calls it, of a container that our plugin never saw.
    n2.release("old-2");
    let shows = |container: &str| {
        let blocks = cluster.api.objects("addressblocks");
        blocks.iter().any(|block| block["spec"]["held"].to_string().contains(container))
    };
    wait_for("the API to show it", || (!shows("old-2") && shows("old-1")).then_some(()));
}

#[test]
fn files_need_no_server_and_mistakes_are_said() {
    testkit::require!("root");
    let cluster = Cluster::new("ipam-import-files");
    whereabouts(&cluster.api);
    let mut items = cluster.api.objects("ippools");
    items.extend(cluster.api.objects("overlappingrangeipreservations"));
    let file = cluster.dir.join("pools.json");
    let path = file.to_str().unwrap();
    let write = |value: &Value| fs::write(&file, value.to_string()).unwrap();
    write(&json!({"kind": "List", "items": items}));
    let refused = cluster.run(&["--import", path]);
    assert!(
        !refused.status.success() && text(&refused.stderr).contains("pools without pods"),
        "{refused:?}"
    );
    items.extend(cluster.api.objects("pods"));
    write(&json!({"kind": "List", "items": items}));
    let shown = cluster.run(&["--import", path]);
    assert!(
        text(&shown.stdout)
            .ends_with("2 addresses would be taken over; --apply writes them down\n"),
        "{shown:?}"
    );
    // Too late: a node has assigned one of them.
    let n1 = cluster.daemon("n1", &[]);
    n1.assign("new").unwrap();
    let late = cluster.run(&["--import", path, "--apply"]);
    let words = text(&late.stdout);
    assert!(
        !late.status.success() && words.contains("not taken over  10.0.0.1  of default: "),
        "{late:?}"
    );
    fs::write(&file, "tea").unwrap();
    let refused = cluster.run(&["--import", path]);
    assert!(text(&refused.stderr).contains("pools.json: not JSON"), "{refused:?}");
    let refused = cluster.run(&["--import", "/nowhere"]);
    assert!(text(&refused.stderr).contains("read /nowhere"), "{refused:?}");
}
