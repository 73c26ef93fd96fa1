//! Whole lives of containers, with real traffic.

use serde_json::{Value, json};
use testkit::real::{Docker, Engine, tell};
use testkit::traffic::{Server, assert_pings, assert_tcp};
use testkit::{Lab, Place, Snapshot, Visit, traffic};

use super::support::{CniContainer, Driver, LAN, assert_nothing_left, write_network};
use crate::system::{NETWRIGHT, SERVE, address_of, at, fetch, gateway_of, install};

macro_rules! needs_docker {
    () => {
        testkit::require!(
            "root",
            "program:dockerd",
            "program:containerd",
            "program:runc",
            "file:/usr/bin/docker",
            "file:/usr/bin/busybox"
        )
    };
}

macro_rules! needs_newest {
    () => {
        crate::docker::life::needs_docker!();
        testkit::require!("newest-engine");
    };
}

pub(crate) use {needs_docker, needs_newest};

/// Asserts that both reach each other in both families.
pub(crate) fn assert_neighbours(one: &impl Place, two: &impl Place) {
    for family in ["inet", "inet6"] {
        assert_pings(one, &address_of(two, "eth0", family).to_string());
        assert_pings(two, &address_of(one, "eth0", family).to_string());
    }
}

/// Asserts that the published port leads to the container: from the host, from another container,
/// from itself.
pub(crate) fn published(lab: &Lab, web: &Visit, other: &Visit, port: u16) {
    let _server = Server::tcp(web, "[::]:80", "web");
    assert_eq!(assert_tcp(lab, &format!("127.0.0.1:{port}")).server, "web");
    for family in ["-4", "-6"] {
        let gateway = at(gateway_of(web, family), port);
        assert_eq!(assert_tcp(lab, &gateway).server, "web");
        assert_eq!(assert_tcp(other, &gateway).server, "web");
        assert_eq!(assert_tcp(web, &gateway).server, "web", "to itself");
    }
}

#[test]
fn a_network_list_becomes_a_docker_network() {
    needs_docker!();
    network_list(Engine::Installed);
}

pub(super) fn network_list(engine: Engine) {
    let lab = Lab::with_processes("docker-lan");
    install(&lab);
    write_network(&lab, "lan", LAN);
    let driver = Driver::start(&lab);
    let docker = Docker::of(&lab, engine, &[]);
    tell(engine.name(), "version", &docker.run(&["version", "--format", "{{.Server.Version}}"]));
    let before = Snapshot::take(&lab);
    docker.create_network("--opt conflist=lan --ipv6 --ipam-driver netwright --ipam-opt conflist=lan --subnet 10.71.0.0/24 --subnet fd71::/64 lan");

    let web = docker.start_container("web", &["--network", "lan", "--publish", "8080:80"]);
    let other = docker.start_container(
        "other",
        &[
            "--network",
            "lan",
            "--ip",
            "10.71.0.99",
            "--ip6",
            "fd71::99",
            "--mac-address",
            "02:00:00:00:00:99",
        ],
    );
    assert_eq!(address_of(&other, "eth0", "inet").to_string(), "10.71.0.99");
    assert_eq!(address_of(&other, "eth0", "inet6").to_string(), "fd71::99");
    let link = other.sh("ip -brief link show eth0");
    assert!(link.contains("02:00:00:00:00:99"), "{link}");
    assert_neighbours(&web, &other);
    published(&lab, &web, &other, 8080);
    tell(engine.name(), "running", &docker.run(&["ps", "--format", "{{.Names}} {{.Status}}"]));

    // A container of a CNI runtime on the same network.
    let (run, cni) = CniContainer::run(&lab, &["--net", "lan"]);
    for docker in [&web, &other] {
        assert_neighbours(docker, &cni);
    }
    drop(cni);
    run.end();

    let said = &docker.inspect("other")["NetworkSettings"]["Networks"]["lan"];
    assert_eq!(said["IPAddress"], "10.71.0.99");
    assert_eq!(said["GlobalIPv6Address"], "fd71::99");
    assert_eq!(said["MacAddress"], "02:00:00:00:00:99");
    assert_eq!(said["Gateway"], "10.71.0.1");
    tell(engine.name(), "answered", &said["IPAddress"].to_string());

    drop((web, other));
    docker.remove(&["web", "other"]);
    docker.run(&["network", "rm", "lan"]);
    assert_nothing_left(&lab, &before);
    drop(driver);
}

/// The network that `install` writes, a container on it that is reached by its published port, and
/// the removal of everything.
#[test]
fn the_lines_of_the_readme() {
    testkit::require!("full", "program:curl");
    needs_docker!();
    readme(Engine::Installed);
}

pub(super) fn readme(engine: Engine) {
    let lab = Lab::with_processes("docker-readme");
    let outside = lab.outside();
    let name = engine.name();
    tell(name, "install", &lab.sh(&format!("{NETWRIGHT} install --bin-dir /opt/cni/bin 2>&1")));
    let driver = Driver::start(&lab);
    let docker = Docker::of(&lab, engine, &[]);
    let version = docker.run(&["version", "--format", "{{.Server.Version}}"]);
    let before = Snapshot::take(&lab);
    docker.create_network(
        "--opt conflist=netwright --ipv6 --ipam-driver netwright --ipam-opt conflist=netwright \
         --subnet 10.63.0.0/16 --subnet fd63:b7c4:5e0a::/64 netwright",
    );
    docker.run(&[
        "run",
        "--detach",
        "--name",
        "web",
        "--hostname",
        "web",
        "--network",
        "netwright",
        "--publish",
        "8080:80",
        Docker::IMAGE,
        "/bin/sh",
        "-c",
        SERVE,
    ]);
    let state = docker.run(&["ps", "--format", "{{.Names}} {{.Status}} on {{.Networks}}"]);
    tell(name, "running", &state);
    for host in ["198.51.100.1", "[2001:db8:ffff::1]"] {
        let url = format!("http://{host}:8080/");
        let said = fetch(&outside, &url);
        assert_eq!(said, "hello from web\n");
        tell(name, "answered", &format!("after `install`, {version}, {url} from outside: {said}"));
    }
    docker.remove(&["web"]);
    traffic::assert_no_tcp(&outside, "198.51.100.1:8080");
    docker.run(&["network", "rm", "netwright"]);
    assert_nothing_left(&lab, &before);
    drop((docker, driver));
    tell(name, "uninstall", &lab.sh(&format!("{NETWRIGHT} uninstall --bin-dir /opt/cni/bin 2>&1")));
    lab.sh("test ! -e /opt/cni/bin && test ! -e /etc/cni/net.d/99-netwright.conflist");
}

#[test]
fn a_network_made_of_options() {
    needs_docker!();
    made_of_options(Engine::Installed);
}

pub(super) fn made_of_options(engine: Engine) {
    let lab = Lab::with_processes("docker-made");
    install(&lab);
    let driver = Driver::start(&lab);
    let docker = Docker::of(&lab, engine, &[]);
    let before = Snapshot::take(&lab);
    // With Docker's own IPAM.
    docker.create_network("--opt bridge=made0 --opt mtu=1400 --ipv6 --subnet 10.72.0.0/24 --gateway 10.72.0.254 --subnet fd72::/64 made");
    let web = docker.start_container("web", &["--network", "made", "--publish", "8080:80"]);
    let label = "name=made,driver-opt=label.app=web";
    let other = docker.start_container("other", &["--network", label]);
    // The runtime's cache has what the plugins were given.
    let given = lab
        .sh("for file in /var/lib/cni/results/*; do jq -r .config $file | base64 -d; echo; done");
    let labels = r#""args":{"cni":{"labels":[{"key":"app","value":"web"}]}}"#;
    assert_eq!(given.lines().filter(|line| line.contains(labels)).count(), 1, "{given}");
    assert_eq!(
        web.sh(
            "cat /sys/class/net/eth0/mtu 2>/dev/null || ip link show eth0 | grep -o 'mtu [0-9]*'"
        )
        .trim(),
        "mtu 1400"
    );
    assert_eq!(gateway_of(&web, "-4").to_string(), "10.72.0.254");
    assert_neighbours(&web, &other);
    published(&lab, &web, &other, 8080);
    // Docker's own resolver resolves names.
    let said = docker.run(&["exec", "web", "nslookup", "other", "127.0.0.11"]);
    assert!(said.contains(&address_of(&other, "eth0", "inet").to_string()), "{said}");

    // A second network while the container runs, without access to the outside; then disconnected
    // again.
    docker.create_network("--internal --ipam-driver netwright inner");
    docker.run(&["network", "connect", "inner", "web"]);
    docker.run(&["network", "connect", "inner", "other"]);
    assert_pings(&web, &address_of(&other, "eth1", "inet").to_string());
    assert_eq!(gateway_of(&web, "-4").to_string(), "10.72.0.254");
    docker.run(&["network", "disconnect", "inner", "web"]);
    docker.run(&["network", "disconnect", "inner", "other"]);
    assert!(!web.sh("ip -brief link").contains("eth1"));
    assert_neighbours(&web, &other);

    // A container that is stopped is gone, and comes back when it starts.
    drop((web, other));
    docker.run(&["restart", "--time", "0", "web"]);
    let (web, other) = (docker.netns("web"), docker.netns("other"));
    assert_neighbours(&web, &other);
    published(&lab, &web, &other, 8080);
    drop((web, other));
    docker.remove(&["web", "other"]);
    docker.run(&["network", "prune", "--force"]);
    assert_nothing_left(&lab, &before);
    drop(driver);
}

#[test]
fn a_network_list_that_gives_the_addresses_itself() {
    needs_docker!();
    own_addresses(Engine::Installed);
}

/// Asserts that `list` shows the container "one" with its port and Docker's data, and that the
/// driver's log does too.
fn shown(lab: &Lab, docker: &Docker<'_>, driver: &Driver<'_>, port: u64) {
    let said = docker.inspect("one");
    let sandbox = said["NetworkSettings"]["SandboxKey"].as_str().unwrap();
    let lan = &said["NetworkSettings"]["Networks"]["lan"];
    let id = |key: &str| lan[key].as_str().unwrap().to_owned();
    let (endpoint, network) = (id("EndpointID"), id("NetworkID"));
    let (endpoint_short, network_short) = (&endpoint[..12], &network[..12]);
    let ports = format!("{port}:80/tcp");
    let pid = said["State"]["Pid"].to_string();
    for name in [sandbox, &pid, endpoint_short, &endpoint] {
        let list = lab.sh(&format!("{NETWRIGHT} list -o json {name}"));
        let list: Value = serde_json::from_str(&list).unwrap();
        let [one] = &list["attachments"].as_array().unwrap()[..] else { panic!("{name}: {list}") };
        assert_eq!(one["ports"], json!([ports]), "{one}");
        assert_eq!((&one["netns"], &one["network"]), (&json!(sandbox), &json!("lan")));
        assert_eq!(one["containerID"], json!(endpoint));
        assert_eq!(one["docker"], json!({ "endpoint": endpoint_short, "network": network_short }));
        let text = lab.sh(&format!("{NETWRIGHT} inspect {name}"));
        assert!(text.contains(&format!("published: {ports}")), "{text}");
        assert!(text.contains(&format!("netns: {sandbox}")), "{text}");
    }
    let text = lab.sh(&format!("{NETWRIGHT} list"));
    tell("docker", "list", &text);
    let line = text.lines().find(|line| line.contains(&ports)).unwrap();
    assert!(line.contains(sandbox) && line.contains(&format!("docker:{endpoint_short}")), "{text}");
    assert!(!line.contains(&endpoint) && !line.contains("/run/netwright"), "{text}");
    let log = driver.log();
    for call in ["CreateEndpoint", "Join", "ProgramExternalConnectivity"] {
        let of_call = format!("call=NetworkDriver.{call} ");
        let mine = |line: &&str| line.contains(&of_call) && line.contains(endpoint_short);
        let line = log.lines().find(mine).unwrap_or_else(|| panic!("{call}: {log}"));
        assert!(line.contains(&format!(" network={network_short}")), "{line}");
        let told = line.contains(&format!(" container={sandbox}"));
        assert_eq!(told, call != "CreateEndpoint", "{line}");
    }
}

pub(super) fn own_addresses(engine: Engine) {
    let lab = Lab::with_processes("docker-null");
    install(&lab);
    write_network(&lab, "lan", LAN);
    let driver = Driver::start(&lab);
    let docker = Docker::of(&lab, engine, &[]);
    let before = Snapshot::take(&lab);
    docker.create_network("--opt conflist=lan --ipam-driver null lan");
    let one = docker.start_container("one", &["--network", "lan", "--publish", "80"]);
    let two = docker.start_container("two", &["--network", "lan"]);
    assert_neighbours(&one, &two);
    let said = &docker.inspect("one")["NetworkSettings"]["Networks"]["lan"];
    assert_eq!(said["IPAddress"], address_of(&one, "eth0", "inet").to_string());
    assert_eq!(said["GlobalIPv6Address"], address_of(&one, "eth0", "inet6").to_string());
    // Our driver chose the port.
    let collected = driver.ports();
    let port = collected.first().copied().unwrap();
    let _server = Server::tcp(&one, "[::]:80", "one");
    assert_eq!(assert_tcp(&lab, &format!("127.0.0.1:{port}")).server, "one");
    shown(&lab, &docker, &driver, port);
    drop((one, two));
    docker.remove(&["one", "two"]);
    docker.run(&["network", "rm", "lan"]);
    assert_nothing_left(&lab, &before);
}
