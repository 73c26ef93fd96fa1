//! The ways off, on a machine whose Docker has networks of ours.

use std::fs;
use std::process::Stdio;

use testkit::real::{Docker, Engine};
use testkit::{Lab, Place, wait_until};

use super::life::needs_docker;
use super::support::{Driver, LAN, write_network};
use crate::system::{NETWRIGHT, install};

/// Another project's plugin, which knows nothing of our tables.
const THEIRS: &str = "mkdir -p /opt/cni/bin && printf '#!/bin/sh\\ncat >/dev/null\\n' >/opt/cni/bin/portmap && \
                      chmod 0755 /opt/cni/bin/portmap";

/// Docker keeps its networks, and asks the driver for the end of each container: while it has one,
/// nothing goes that the driver needs.
#[test]
fn nothing_goes_while_docker_has_networks() {
    needs_docker!();
    let lab = Lab::with_processes("docker-off");
    lab.sh(THEIRS);
    install(&lab);
    write_network(&lab, "lan", LAN);
    let driver = Driver::start(&lab);
    let docker = Docker::of(&lab, Engine::Installed, &[]);
    let way_off = |more: &[&str]| {
        let mut command = lab.command(NETWRIGHT);
        command.args(["uninstall", "--bin-dir", "/opt/cni/bin"]).args(more);
        command
    };
    docker.create_network(
        "--opt conflist=lan --ipam-driver netwright --ipam-opt conflist=lan --subnet 10.71.0.0/24 \
         lan",
    );
    let id = docker.run(&["network", "inspect", "--format", "{{.Id}}", "lan"]);
    let id = &id.trim()[..12];
    for more in [&[][..], &["--keep-state"], &["--keep-state", "--dry-run"]] {
        let said = way_off(more).output().unwrap();
        let text = String::from_utf8_lossy(&said.stderr);
        assert!(!said.status.success(), "{more:?}");
        assert!(text.contains(&format!("docker network rm {id}`")), "{more:?}: {text}");
    }
    let start = |name: &str, ports: &str| {
        drop(docker.start_container(name, &["--network", "lan", "--publish", ports]));
    };

    // Another project's plugin does the DEL, and leaves what ours had made: the port goes with the
    // interface.
    start("early", "8079:80");
    lab.sh("cd /opt/cni/bin && mv portmap ours && cp .netwright-replaced/portmap portmap");
    docker.remove(&["early"]);
    lab.sh("cd /opt/cni/bin && mv ours portmap");
    assert!(!lab.sh("nft list ruleset").contains("8079"));
    let listed = lab.sh(&format!("{NETWRIGHT} list"));
    assert!(!listed.contains(" gone "), "{listed}");

    start("web", "8080:80");
    let log = lab.dir().join("wait.log");
    let output = fs::File::create(&log).unwrap();
    let mut waiting = way_off(&["--wait"])
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .unwrap();
    let said = || fs::read_to_string(&log).unwrap();
    wait_until("it waits", || said().contains("waiting for"));
    docker.remove(&["web"]);
    let rules = lab.sh("nft list ruleset");
    assert!(!rules.contains("8080"), "{rules}\n{}", said());
    assert!(waiting.try_wait().unwrap().is_none(), "Docker has the network: {}", said());
    docker.run(&["network", "rm", "lan"]);
    assert!(waiting.wait().unwrap().success(), "{}", said());
    assert!(
        said().contains(&format!("waiting for the end of Docker's network {id}")),
        "{}",
        said()
    );
    lab.sh("grep -q cat /opt/cni/bin/portmap && test ! -e /opt/cni/bin/netwright");
    drop(driver);
}

/// Docker repeats its calls of a driver that is gone. The link that is printed lets them fail at once.
#[test]
fn containers_can_be_removed_without_the_driver() {
    needs_docker!();
    let lab = Lab::with_processes("docker-gone");
    install(&lab);
    write_network(&lab, "lan", LAN);
    let mut driver = Driver::start(&lab);
    let docker = Docker::of(&lab, Engine::Installed, &[]);
    docker.create_network(
        "--opt conflist=lan --ipam-driver netwright --ipam-opt conflist=lan --subnet 10.71.0.0/24 \
         lan",
    );
    drop(docker.start_container("web", &["--network", "lan", "--publish", "8080:80"]));
    driver.kill();
    let mut command = lab.command(NETWRIGHT);
    command.args(["uninstall", "--bin-dir", "/opt/cni/bin", "--force"]);
    let said = command.output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "{text}");
    let printed = text.split('`').find(|words| words.starts_with("ln -sf ")).unwrap_or_default();
    let [(_, host), _] = docker.environment();
    lab.sh(&format!("ln -s {} /run/docker.sock && {printed}", host.trim_start_matches("unix://")));
    docker.remove(&["web"]);
    docker.run(&["network", "rm", "lan"]);
    assert!(!docker.log().contains("retrying in"), "{}", docker.log());
}
