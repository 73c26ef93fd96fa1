//! Real runtimes that know one network, and containers on three: plugin `multi`.

use testkit::real::{Containerd, Pod, Podman, tell};
use testkit::traffic::{Server, assert_pings, assert_tcp};
use testkit::{Lab, Place, Snapshot, require};

use crate::system::{SERVE, address_of, assert_only_left, fetch, install};

/// The first network publishes ports, the second has the default route, the third is in a file of
/// its own.
const PODS: &str = r#"{
  "cniVersion": "1.0.0", "name": "pods",
  "plugins": [{
    "type": "multi", "capabilities": {"portMappings": true}, "confDir": "/etc/netwright/net.d",
    "networks": [
      {"config": {"name": "front", "plugins": [
        {"type": "bridge", "bridge": "front0", "isDefaultGateway": true, "ipMasq": true,
         "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.94.0.0/24"}]]}},
        {"type": "portmap", "capabilities": {"portMappings": true}}]}},
      {"config": {"name": "back", "type": "bridge", "bridge": "back0", "isDefaultGateway": true, "ipMasq": true,
                  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.95.0.0/24"}]]}},
       "ifname": "back0", "defaultRoute": true},
      {"name": "storage"}
    ]
  }]
}"#;

const STORAGE: &str = r#"{
  "cniVersion": "1.0.0", "name": "storage",
  "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.96.0.0/24"}]]}}]
}"#;

fn write_storage(lab: &Lab) {
    lab.sh("mkdir -p /etc/netwright/net.d");
    std::fs::write(lab.path("/etc/netwright/net.d/storage.conflist"), STORAGE).unwrap();
}

fn assert_on_three(lab: &Lab, one: &impl Place, other: &impl Place) {
    for ifname in ["eth0", "back0", "net2"] {
        assert_pings(one, &address_of(other, ifname, "inet").to_string());
    }
    assert_eq!(one.sh("ip route show default").trim(), "default via 10.95.0.1 dev back0");
    assert_pings(one, "198.51.100.2");
    assert_pings(lab, &address_of(one, "net2", "inet").to_string());
}

#[test]
fn containers_of_podman() {
    require!("root", "program:podman", "program:crun", "file:/usr/bin/busybox");
    let lab = Lab::with_processes("several-podman");
    let _outside = lab.outside();
    let podman = Podman::new(&lab, install(&lab));
    podman.write_network("pods", PODS);
    write_storage(&lab);
    let before = Snapshot::take(&lab);
    let web = podman.start("web", &["--publish", "8080:80", "--network", "pods"]);
    let other = podman.start("other", &["--network", "pods"]);
    assert_on_three(&lab, &web, &other);
    let served = Server::tcp(&web, "0.0.0.0:80", "web");
    assert_eq!(assert_tcp(&lab, "127.0.0.1:8080").server, "web");
    tell("podman", "several networks", "two containers on three networks each");
    drop((served, web, other));
    // DEL uses the attached networks, and not the present files.
    lab.sh("rm -r /etc/netwright/net.d");
    podman.remove(&["web", "other"]);
    // The folder stays, empty.
    let stays = [
        "files: /etc/netwright",
        "files: /var/lib/netwright is new",
        "files: /var/lib/netwright/multi is new",
    ];
    assert_only_left(&lab, &before, &[&Podman::LEAVES[..], &stays].concat());
}

#[test]
fn pods_of_containerd() {
    require!("root", "program:containerd", "program:runc", "program:curl", "file:/usr/bin/busybox");
    let lab = Lab::with_processes("several-pods");
    let outside = lab.outside();
    write_storage(&lab);
    let containerd = Containerd::new(&lab, install(&lab), PODS);
    let pod = Pod::new("web").tcp(8080, 80);
    let web = containerd.run_pod(&pod);
    containerd.run_container(&web, &pod, SERVE);
    let other = containerd.run_pod(&Pod::new("other"));
    assert_on_three(&lab, &containerd.netns(&web), &containerd.netns(&other));
    assert_eq!(fetch(&outside, "http://198.51.100.1:8080/"), "hello from web\n");
    // The pod's address is the first network's.
    let addresses = containerd.addresses(&web);
    assert!(
        addresses.iter().all(|address| address.to_string().starts_with("10.94.0.")),
        "{addresses:?}"
    );
    tell("containerd", "several networks", "two pods on three networks each");
    for id in [&web, &other] {
        containerd.stop_pod(id).unwrap();
    }
    for bridge in ["front0", "back0"] {
        assert_eq!(
            lab.sh(&format!("ip -o link show master {bridge} 2>/dev/null | wc -l")).trim(),
            "0"
        );
    }
    assert!(!lab.sh("ls /var/lib/cni/networks/*").contains("10."), "addresses are held");
    assert_eq!(lab.sh("ls /var/lib/netwright/multi").trim(), "");
}
