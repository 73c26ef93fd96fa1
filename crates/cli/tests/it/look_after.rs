//! `netwrightd repair` and `netwrightd collect` beside runtimes that do not know them.

use std::process::Stdio;
use std::time::Duration;

use testkit::real::{Containerd, Pod, Podman, tell};
use testkit::traffic::{Server, assert_no_tcp, assert_pings, assert_tcp, try_tcp};
use testkit::{Lab, Place, RunningProgram, require, wait_until};

use crate::system::{SERVE, fetch, install, netwrightd};

const PODS: &str = r#"{
  "cniVersion": "1.0.0", "name": "pods",
  "plugins": [
    {"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": true,
     "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": "10.98.0.0/24"}]]}},
    {"type": "portmap", "capabilities": {"portMappings": true}},
    {"type": "firewall", "ingressPolicy": "same-bridge"}
  ]
}"#;

/// Starts the repair service, which hears events and does not need its periodic look.
fn repairing(lab: &Lab) -> RunningProgram {
    lab.start(
        netwrightd().to_str().unwrap(),
        &["repair", "--interval", "1h", "--path", "/opt/cni/bin"],
    )
}

/// Runs the collection once; returns its log.
fn collect(lab: &Lab, more: &[&str]) -> String {
    let mut command = lab.command(netwrightd().to_str().unwrap());
    command.args(["collect", "--once", "--grace", "0", "--path", "/opt/cni/bin"]).args(more);
    let output = command.env("NETWRIGHT_LOG", "debug").stdin(Stdio::null()).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{log}");
    log
}

/// The ruleset of a cluster's node is flushed, and the node loses power.
#[test]
fn pods_of_containerd_are_repaired_and_collected() {
    require!("root", "program:containerd", "program:runc", "program:curl", "file:/usr/bin/busybox");
    let lab = Lab::with_processes("look-after-pods");
    let outside = lab.outside();
    let containerd = Containerd::new(&lab, install(&lab), PODS);
    let pod = Pod::new("web").tcp(8080, 80);
    let web = containerd.run_pod(&pod);
    containerd.run_container(&web, &pod, SERVE);
    let gone = containerd.run_pod(&Pod::new("gone").tcp(8081, 80));
    let url = "http://198.51.100.1:8080/";
    assert_eq!(fetch(&outside, url), "hello from web\n");

    let service = repairing(&lab);
    let elements = |text: &str| lab.sh("nft list ruleset").contains(text);
    // The service does not say when it is ready, but its first look finds what was flushed before.
    lab.sh("nft flush ruleset");
    wait_until("the packet filter", || elements("tcp . 8080") && elements("tcp . 8081"));
    containerd.netns(&web).sh("ip route del default");
    wait_until("a route", || containerd.netns(&web).sh("ip route").contains("default"));
    assert_eq!(fetch(&outside, url), "hello from web\n");
    tell("containerd", "repaired", "its pods answer again after nft flush ruleset");
    drop(service);

    // It removes nothing of pods that containerd has, whatever happened to their namespaces.
    assert!(!collect(&lab, &["--act"]).contains("removed;"));
    let netns = lab.sh("grep -ls 8081 /var/lib/cni/results/* | xargs grep -oh '/var/run/netns/cni-[0-9a-f-]*' | head -n 1");
    let netns = netns.trim();
    assert!(!netns.is_empty());
    let number = lab.sh(&format!("stat -L -c %i {netns}"));
    let number = number.trim();
    lab.sh(&format!("umount --lazy {netns} && rm {netns}"));
    let reservations = || lab.sh("ls /var/lib/cni/networks/pods");
    let before = reservations();
    assert!(!collect(&lab, &["--act"]).contains("removed;"), "containerd has it");
    // After a power cut a runtime has nothing below /run.
    lab.sh(&format!(
        "rm -rf /run/containerd/io.containerd.grpc.v1.cri/sandboxes/{gone} /run/containerd/io.containerd.runtime.v2.task/k8s.io/{gone} \
         /run/containerd/runc/k8s.io/{gone}"
    ));
    assert!(!collect(&lab, &["--act"]).contains("removed;"), "its processes go on");
    let processes = format!(
        "for p in /proc/[0-9]*; do [ \"$(stat -L -c %i $p/ns/net 2>/dev/null)\" != {number} ] || echo ${{p#/proc/}}; done"
    );
    lab.sh(&format!("for p in $({processes}); do kill -9 $p; done"));
    wait_until("its processes to be gone", || lab.sh(&processes).is_empty());
    let log = collect(&lab, &[]);
    assert!(log.contains("would remove") && log.contains(&gone) && !log.contains(&web), "{log}");
    assert_eq!(reservations(), before);
    let log = collect(&lab, &["--act"]);
    assert!(log.contains("removed; its container is gone") && log.contains(&gone), "{log}");
    assert!(!elements("tcp . 8081") && elements("tcp . 8080"));
    assert_ne!(reservations(), before);
    assert_eq!(fetch(&outside, url), "hello from web\n");
    tell(
        "containerd",
        "collected",
        "a pod whose namespace and folders were gone; the other still answers",
    );
    containerd.stop_pod(&web).unwrap();
}

#[test]
fn containers_of_podman_are_repaired_and_collected() {
    require!("root", "program:podman", "program:crun", "file:/usr/bin/busybox");
    let lab = Lab::with_processes("look-after-podman");
    let _outside = lab.outside();
    let podman = Podman::new(&lab, install(&lab));
    podman.run(&["network", "create", "--subnet", "10.93.0.0/24", "n1"]);
    let web = podman.start("web", &["--publish", "8080:80", "--network", "n1"]);
    let other = podman.start("other", &["--publish", "8081:80", "--network", "n1"]);
    let serving = Server::tcp(&web, "[::]:80", "web");
    let service = repairing(&lab);
    lab.sh("nft flush ruleset; sysctl -qw net.ipv4.ip_forward=0");
    wait_until("the ports", || lab.sh("nft list ruleset").contains("tcp . 8081"));
    web.sh("ip route del default");
    wait_until("a route", || web.sh("ip route").contains("default"));
    wait_until("forwarding", || lab.sh("sysctl -n net.ipv4.ip_forward").trim() == "1");
    // The rules for the port may still be missing: a connection would then reach podman, which
    // holds the port open and never answers.
    let port = "127.0.0.1:8080".parse().unwrap();
    wait_until("its answer", || {
        try_tcp(&lab, port, Duration::from_secs(1)).is_ok_and(|answer| answer.server == "web")
    });
    assert_pings(&web, "198.51.100.2");
    tell("podman", "repaired", "its containers answer again after nft flush ruleset");
    drop(service);

    // Its namespace ends without a call to podman, as when all processes of a container are killed.
    let netns = podman.netns("other");
    drop(other);
    let id = podman.run(&["inspect", "--format", "{{.Id}}", "other"]);
    // The monitor must go first: it would have podman clean up.
    let state = "{{.State.ConmonPid}} {{.State.Pid}}";
    let processes = podman.run(&["inspect", "--format", state, "other"]);
    lab.sh(&format!("kill -KILL {}", processes.trim()));
    lab.try_sh(&format!("umount --lazy {netns}; rm -f {netns}; rm -rf /run/crun/{}", id.trim()));
    // The namespace exists until its process has ended.
    let mut log = String::new();
    wait_until("its end", || {
        let before = std::mem::replace(&mut log, collect(&lab, &["--act"]));
        if log != before {
            eprintln!("{log}");
        }
        assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
        log.contains("removed; its container is gone")
    });
    assert!(!lab.sh("nft list ruleset").contains("tcp . 8081"), "{log}");
    assert_no_tcp(&lab, "127.0.0.1:8081");
    assert_eq!(assert_tcp(&lab, "127.0.0.1:8080").server, "web");
    drop((serving, web));
    podman.remove(&["web", "other"]);
}
