//! `netwright install` on Debian, with its own containerd and podman as the packages configure them,
//! and with the containerd of Debian's unstable release.

use testkit::real::{Containerd, Pod, Podman, tell};
use testkit::traffic::assert_no_tcp;
use testkit::{Lab, Place, Snapshot, require, wait_until};

use crate::support::listing;
use crate::system::{NETWRIGHT, SERVE, assert_only_left, fetch, netwrightd};

/// The folder in which Debian's containerd is configured to look for plugins, and podman looks
/// first.
const DEBIANS: &str = "/usr/lib/cni";

/// containerd's file, as in the package.
const CONTAINERDS: &str = "/etc/containerd/config.toml";

/// A machine with Debian's runtimes and the plugins that they recommend. Writes to the plugins'
/// folder stay in the lab.
fn debian(name: &str) -> Lab {
    let lab = Lab::with_processes(name);
    let packaged = std::fs::read_to_string(CONTAINERDS).unwrap();
    assert!(packaged.contains(&format!("bin_dir = \"{DEBIANS}\"")), "{packaged}");
    lab.sh(&format!(
        "mkdir -p /var/lib/debians /etc/containerd && cp -a {DEBIANS}/. /var/lib/debians/ && \
         mount --bind /var/lib/debians {DEBIANS} && mountpoint -q {DEBIANS} && \
         cat >{CONTAINERDS} <<'E'\n{packaged}\nE"
    ));
    lab
}

/// Asserts that the container answers at its published port, from outside in both families; prints
/// the answers.
fn answers(outside: &impl Place, runtime: &str, version: &str, port: u16) {
    for host in ["198.51.100.1", "[2001:db8:ffff::1]"] {
        let url = format!("http://{host}:{port}/");
        let said = fetch(outside, &url);
        assert_eq!(said, "hello from web\n");
        let words = format!("after `install`, {version}, {url} from outside: {said}");
        tell(runtime, "answered", &words);
    }
}

#[test]
fn install_has_effect_on_the_runtimes_that_are_there() {
    require!(
        "root",
        "program:containerd",
        "program:runc",
        "program:podman",
        "program:crun",
        "program:curl",
        "file:/usr/bin/busybox",
        "file:/usr/lib/cni/bridge",
        "file:/etc/containerd/config.toml"
    );
    let lab = debian("debian-install");
    let outside = lab.outside();
    let before = lab.enter(|| listing(DEBIANS.as_ref()));
    let call = |arguments: &str| lab.sh(&format!("{NETWRIGHT} {arguments} 2>&1"));

    // The command names a folder that it ignores.
    let said = call("install --no-config --bin-dir /opt/cni/bin");
    assert!(said.contains("note: containerd looks for plugins elsewhere: in /usr/lib/cni (/etc/containerd/config.toml)"), "{said}");
    assert!(said.contains(" from /usr/lib/cni first (its default)"), "{said}");
    call("uninstall --bin-dir /opt/cni/bin");

    let said = call("install");
    assert!(said.contains(" in /usr/lib/cni with "), "{said}");
    assert!(
        said.contains("used by containerd (/etc/containerd/config.toml) and podman (its default)"),
        "{said}"
    );
    assert!(!said.contains("elsewhere") && !said.contains(" first ("), "{said}");
    let said = call("lint");
    assert!(said.contains("0 errors, 0 warnings"), "{said}");

    let containerd = Containerd::without_network(&lab, DEBIANS);
    let pod = Pod::new("web").tcp(8080, 80);
    let web = containerd.run_pod(&pod);
    containerd.run_container(&web, &pod, SERVE);
    answers(&outside, "containerd", &containerd.version(), 8080);

    let podman = Podman::new(&lab, DEBIANS);
    podman.use_defaults();
    // Any command makes podman read every network; it warns of those that its plugins do not
    // support.
    let output = podman.try_run(&["network", "ls"]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let options = ["--hostname", "web", "--network", "netwright", "--publish", "8081:80"];
    drop(podman.start_script("web", &options, SERVE));
    answers(&outside, "podman", &podman.run(&["--version"]), 8081);
    let listed = call("list");
    assert_eq!(listed.matches("netwright").count(), 2, "both are ours: {listed}");

    // The command warns of what older runtimes cannot read, before a container fails.
    lab.sh("sed 's/\"name\": \"netwright\"/\"name\": \"newest\"/; s/\"cniVersion\": \"1.0.0\"/\"cniVersion\": \"1.1.0\"/' \
            /etc/cni/net.d/99-netwright.conflist >/etc/cni/net.d/99-newest.conflist");
    for command in ["lint", "status"] {
        let said = call(&format!("{command} || true"));
        for runtime in ["containerd 1.", "podman 4."] {
            let line = said.lines().find(|line| line.contains(runtime)).unwrap_or_default();
            assert!(
                line.contains("reads CNI up to 1.0.0") && line.contains("\"newest\""),
                "{said}"
            );
        }
    }
    lab.sh("rm /etc/cni/net.d/99-newest.conflist");

    podman.remove(&["web"]);
    containerd.remove_pod(&web).unwrap();
    call("uninstall");
    assert_eq!(lab.enter(|| listing(DEBIANS.as_ref())), before);
}

/// The same commands with Debian unstable's containerd, which reads CNI 1.1.0.
#[test]
fn install_has_effect_on_the_newest_containerd() {
    require!(
        "full",
        "root",
        "program:containerd",
        "program:runc",
        "program:curl",
        "file:/usr/bin/busybox",
        "newest-engine"
    );
    let lab = Lab::with_processes("debian-newest");
    let outside = lab.outside();
    let runtime = "containerd-unstable";
    // A folder that both roots see.
    let dir = lab.dir().display().to_string();
    lab.sh(&format!("cp {NETWRIGHT} {} {dir}/", netwrightd().display()));
    let folder = |containerd: &Containerd<'_>| {
        containerd.sh_in_root(&format!("cd {DEBIANS} && busybox ls -lA"))
    };
    let mut packaged = String::new();
    let containerd = Containerd::newest(&lab, DEBIANS, |root| {
        packaged = folder(root);
        let said = root.sh_in_root(&format!("{dir}/netwright install 2>&1"));
        assert!(said.contains(" in /usr/lib/cni with "), "{said}");
        assert!(said.contains("used by containerd (/etc/containerd/config.toml)"), "{said}");
        tell(runtime, "install", &said);
        let said = root.sh_in_root(&format!("{dir}/netwright lint 2>&1"));
        assert!(said.contains("0 errors, 0 warnings"), "{said}");
    });
    tell(runtime, "version", &containerd.version());
    assert!(containerd.version().contains("containerd 2."), "{}", containerd.version());
    assert_eq!(containerd.loaded_network()["name"], "netwright");
    let before = Snapshot::take(&lab);

    let pod = Pod::new("web").tcp(8080, 80);
    let web = containerd.run_pod(&pod);
    let server = containerd.run_container(&web, &pod, SERVE);
    let states = [containerd.pod_state(&web), containerd.container_state(&server)];
    assert_eq!(states, ["SANDBOX_READY", "CONTAINER_RUNNING"]);
    let addresses = containerd.addresses(&web);
    assert_eq!(addresses.len(), 2, "{addresses:?}");
    tell(
        runtime,
        "running",
        &format!("pod web {} {addresses:?}; container {}", states[0], states[1]),
    );
    answers(&outside, runtime, &containerd.version(), 8080);

    containerd.remove_pod(&web).unwrap();
    assert_no_tcp(&outside, "198.51.100.1:8080");
    let said = containerd.sh_in_root(&format!("{dir}/netwright gc"));
    assert!(said.contains("removed 0, kept 0"), "{said}");
    assert_only_left(&lab, &before, &Containerd::LEAVES);
    let said = containerd.sh_in_root(&format!("{dir}/netwright uninstall 2>&1"));
    tell(runtime, "uninstall", &said);
    assert_eq!(folder(&containerd), packaged, "the plugins' folder is as the packages left it");
}

/// The same containerd already runs and has no network: `install` makes it ready without a restart,
/// and it notices `uninstall` as well.
#[test]
fn what_install_writes_is_noticed_while_the_newest_containerd_runs() {
    require!(
        "full",
        "root",
        "program:containerd",
        "program:runc",
        "program:curl",
        "file:/usr/bin/busybox",
        "newest-engine"
    );
    let lab = Lab::with_processes("debian-newest-notices");
    let dir = lab.dir().display().to_string();
    lab.sh(&format!("cp {NETWRIGHT} {} {dir}/", netwrightd().display()));
    let containerd = Containerd::newest(&lab, DEBIANS, |_| {});
    assert!(containerd.version().contains("containerd 2."), "{}", containerd.version());
    for time in 1..=20 {
        containerd.network_ready().expect_err("there is no network");
        containerd.sh_in_root(&format!("{dir}/netwright install"));
        wait_until(&format!("the network to be ready, time {time}"), || {
            containerd.network_ready().is_ok()
        });
        assert_eq!(containerd.loaded_network()["name"], "netwright");
        let pod = containerd.run_pod(&Pod::new("any"));
        assert_eq!(containerd.addresses(&pod).len(), 2);
        containerd.remove_pod(&pod).unwrap();
        containerd.sh_in_root(&format!("{dir}/netwright uninstall"));
        wait_until("the network to be gone", || containerd.network_ready().is_err());
    }
    tell("containerd-unstable", "noticed", "20 of 20 times, install and uninstall");
}
