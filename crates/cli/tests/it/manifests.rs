//! The containers of `deploy/kubernetes`, run as the manifests confine them: an image of only our
//! two executables, a read-only root, capabilities, mounts, seccomp.

use std::path::Path;

use serde_json::{Value, json};
use testkit::real::{Containerd, Manifest, Pod, manifests};
use testkit::{Lab, Place, require, wait_until};

use crate::multinet::{CONFLIST, Cluster};
use crate::system::{NETWRIGHT, netwrightd};

/// The node's name.
const NODE: &str = "n1";

/// The template of every pod in the manifests, with the name of its owner.
fn templates() -> Vec<(String, Value)> {
    let all = manifests().into_iter();
    all.filter_map(|one| {
        let spec = one.pointer("/spec/template/spec")?.clone();
        Some((one["metadata"]["name"].as_str().unwrap().to_owned(), spec))
    })
    .collect()
}

/// A node has nothing of ours except a runtime and the cluster's own network;
/// `kubectl apply -f deploy/kubernetes/` is all that happens. A pod then has the networks of its
/// annotation, and the address daemon listens.
#[test]
fn every_container_does_its_work_as_it_is_confined() {
    require!(
        "root",
        "program:containerd",
        "program:runc",
        "program:curl",
        "program:openssl",
        "program:socat",
        "file:/usr/bin/busybox"
    );
    let cluster = Cluster::bare(Lab::with_processes("manifests"));
    let lab = &cluster.lab;
    lab.sh("rm -f /etc/machine-id; echo 0123456789abcdef0123456789abcdef >/etc/machine-id");
    lab.sh("mkdir -p /var/lib/kubelet/device-plugins");
    cluster.api.require_token("a-token");
    let front = cluster.api.serve_pods(lab, "a-token");
    cluster.define_all();
    let containerd = Containerd::without_network(lab, "/opt/cni/bin");
    let templates = templates();
    let names: Vec<_> = templates.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["netwright", "netwright-addresses"]);
    let images = templates
        .iter()
        .flat_map(|(_, spec)| ["initContainers", "containers"].map(|kind| spec[kind].clone()));
    let mut images: Vec<String> = images
        .filter_map(|list| list.as_array().cloned())
        .flatten()
        .map(|one| one["image"].as_str().unwrap().to_owned())
        .collect();
    images.sort();
    images.dedup();
    for image in &images {
        containerd.import(
            image,
            &[
                (Path::new(NETWRIGHT), "/opt/netwright/netwright"),
                (&netwrightd(), "/opt/netwright/netwrightd"),
            ],
        );
    }

    let mut running = Vec::new();
    for (name, spec) in &templates {
        assert_eq!(spec["hostNetwork"], true, "{name}");
        let mut spec = spec.clone();
        // The mounts and variables that the kubelet adds to each container of a pod with a service
        // account.
        let account =
            json!({"name": "account", "hostPath": {"path": front.account, "type": "Directory"}});
        let mount = json!({"name": "account", "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"});
        spec["volumes"].as_array_mut().unwrap().push(account);
        let pod = Pod::new(name).on_host();
        let id = containerd.run_pod(&pod);
        for kind in ["initContainers", "containers"] {
            for container in spec[kind].as_array().cloned().unwrap_or_default() {
                let mut container = container;
                container["volumeMounts"].as_array_mut().unwrap().push(mount.clone());
                let wanted = Manifest::read(&spec, &container, NODE);
                let started = containerd.run_manifest(&id, &pod, &wanted, &front.environment());
                let own = container["name"].as_str().unwrap().to_owned();
                if kind == "initContainers" {
                    wait_until(&own, || containerd.exit_code(&started).is_some());
                    let code = containerd.exit_code(&started);
                    assert_eq!(code, Some(0), "{name}/{own}: {}", containerd.output(&own));
                } else {
                    running.push((own, started));
                }
            }
        }
        if name == "netwright" {
            assert!(lab.sh("ls /opt/cni/bin").contains("netwright-multi"));
            assert!(!lab.sh("ls /etc/cni/net.d").contains("99-netwright"), "no network of its own");
            wait_until("pods to be answered", || {
                let output = containerd.output("netwrightd");
                for (own, started) in &running {
                    assert_eq!(containerd.exit_code(started), None, "{own}: {output}");
                }
                containerd.loaded_network()["name"] == "netwright-multi"
            });
            assert!(lab.path(CONFLIST).exists());
        } else {
            wait_until("the daemon of addresses to listen", || {
                let output = containerd.output("netwrightd");
                for (own, started) in &running {
                    assert_eq!(containerd.exit_code(started), None, "{own}: {output}");
                }
                lab.path("/run/netwright/ipam.sock").exists()
            });
        }
    }

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
    containerd.remove_pod(&web).unwrap();
    for (own, started) in &running {
        assert_eq!(containerd.exit_code(started), None, "{own}: {}", containerd.output(own));
    }
}
