//! The runtimes work in a lab with the reference's plugins, so a failure with ours comes from ours.

use std::path::Path;

use testkit::real::{Bundle, Podman};
use testkit::traffic::{Server, assert_pings, assert_tcp};
use testkit::{Lab, Place as _, Snapshot, require};

/// Debian's plugins.
const GO: &str = "/usr/lib/cni";

#[test]
fn podman_runs_containers_with_networks() {
    require!(
        "root",
        "program:podman",
        "program:crun",
        "file:/usr/bin/busybox",
        "file:/usr/lib/cni/bridge"
    );
    let lab = Lab::with_processes("podman");
    let podman = Podman::new(&lab, GO);
    podman.run(&["network", "create", "--subnet", "10.89.0.0/24", "n1"]);
    let web = podman.start("web", &["--publish", "8080:80", "--network", "n1"]);
    let _server = Server::tcp(&web, "0.0.0.0:80", "web");
    assert_eq!(assert_tcp(&lab, "127.0.0.1:8080").server, "web");
    assert_pings(&web, "10.89.0.1");
    drop(web);
    podman.remove(&["web"]);
    assert_eq!(lab.sh("ls /run/netns"), "");
}

#[test]
fn podman_without_networks_leaves_little() {
    require!("root", "program:podman", "program:crun", "file:/usr/bin/busybox");
    let lab = Lab::with_processes("podman-none");
    lab.sh("mkdir -p /opt/cni/bin");
    let podman = Podman::new(&lab, "/opt/cni/bin");
    let before = Snapshot::take(&lab);
    let said =
        podman.run(&["run", "--rm", "--network", "none", Podman::IMAGE, "ls", "/sys/class/net"]);
    assert_eq!(said, "lo");
    let mut changed = before.diff(&Snapshot::take(&lab));
    changed.retain(|line| !Podman::LEAVES.iter().any(|text| line.contains(text)));
    assert!(changed.is_empty(), "{changed:#?}");
}

#[test]
fn bundles_run_under_runc_and_crun_and_leave_no_control_group() {
    require!("root", "file:/usr/bin/busybox", "program:runc", "program:crun");
    for runtime in ["runc", "crun"] {
        let lab = Lab::with_processes(runtime);
        let bundle = Bundle::new(&lab, runtime, "c1", "ls /sys/class/net; exit 7")
            .hook("createRuntime", &["/bin/sh", "-c", "cat > /run/state"])
            .annotation("org.example", "value");
        let output = bundle.run();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(7), "{runtime}: {said}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "lo", "{runtime}");
        assert!(lab.sh("cat /run/state").contains(r#""org.example":"value""#), "{runtime}");
        drop(bundle);
        assert!(
            !control_groups().any(|name| name.starts_with(&format!("nwt-{}-", std::process::id())))
        );
    }
}

fn control_groups() -> impl Iterator<Item = String> {
    let root = Path::new("/sys/fs/cgroup");
    let below = |dir: &Path| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let hierarchies = below(root);
    let groups: Vec<_> =
        hierarchies.iter().flat_map(|dir| below(dir)).chain(hierarchies.clone()).collect();
    groups.into_iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
}
