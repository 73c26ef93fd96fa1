//! Each error reaches Docker's user, and leaves nothing.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use testkit::real::Docker;
use testkit::{Lab, Place, Snapshot, require, wait_until};

use super::life::needs_docker;
use super::support::{Driver, LAN, assert_nothing_left, write_network};
use crate::system::install;

/// A list whose plugin hangs.
const HANGING: &str = r#"{"cniVersion": "1.0.0", "name": "hanging",
  "plugins": [{"type": "hang", "ipam": {"type": "static"}}]}"#;

/// A list that names a port of the host itself.
const OWN_PORT: &str = r#"{"cniVersion": "1.0.0", "name": "own", "plugins": [
    {"type": "bridge", "bridge": "own0", "ipam": {"type": "host-local", "subnet": "10.76.0.0/24"}},
    {"type": "portmap", "runtimeConfig": {"portMappings": [{"hostPort": 2222, "containerPort": 80, "protocol": "tcp"}]}}]}"#;

/// Asserts that there are neither records nor namespaces of ours. The driver answers a call before it
/// deletes the call's note.
#[track_caller]
fn assert_no_state(lab: &Lab) {
    let all = "ls /var/lib/netwright/docker/*/ /run/netwright/docker/netns /run/netwright/docker/calls | grep -v : || true";
    wait_until("no record, namespace or note", || lab.sh(all).trim().is_empty());
}

#[test]
fn what_docker_shows_its_user() {
    needs_docker!();
    let lab = Lab::with_processes("docker-bad");
    install(&lab);
    write_network(&lab, "lan", LAN);
    write_network(&lab, "own", OWN_PORT);
    lab.sh("cp /opt/cni/bin/bridge /opt/cni/bin/mybridge");
    let driver = Driver::start_at(&lab, super::support::SOCKET, &["--timeout", "2"]);
    let docker = Docker::new(&lab);
    let before = Snapshot::take(&lab);
    let create = |options: &[&str]| {
        let head = ["network", "create", "--driver", "netwright"];
        docker.refused(&[&head[..], options, &["n"]].concat())
    };
    for (options, said) in [
        (&["-o", "mtuu=1400"][..], "unknown option \"mtuu\""),
        (&["-o", "conflist=lan", "-o", "mtu=1400"], "unknown option \"mtu\""),
        (&["-o", "conflist=nowhere"], "no net configuration with name \"nowhere\""),
        (&["-o", "type=nothing"], "nothing"),
        (&["-o", "type=../x"], "invalid"),
        (&["-o", "type=mybridge"], "mybridge is not the type of a plugin"),
        (
            &["--ipam-driver", "null", "-o", "type=ptp", "-o", "ipam={\"type\":\"mybridge\"}"],
            "is not the type of a plugin",
        ),
        (&["-o", "name=lan"], "there is a network list named \"lan\""),
        (&["-o", "conflist=lan", "--subnet", "10.99.0.0/24"], "Docker chose the pool 10.99.0.0/24"),
        (&["--ipam-driver", "null"], "this network has no source of addresses"),
        (&["--ipam-driver", "netwright", "--ipam-opt", "x=y"], "unknown IPAM option \"x\""),
        (
            &["--ipam-driver", "netwright", "--ipam-opt", "conflist=nowhere"],
            "no net configuration with name",
        ),
    ] {
        let text = create(options);
        assert!(text.contains("netwright: ") && text.contains(said), "{options:?}: {text}");
        assert_no_state(&lab);
    }

    docker.create_network("--ipam-driver netwright --subnet 10.75.0.0/24 one");
    let text = create(&["--ipam-driver", "netwright", "--subnet", "10.75.0.0/16"]);
    assert!(text.contains("overlaps pool 10.75.0.0/24, which is in use"), "{text}");
    let web = docker
        .start_container("web", &["--network", "one", "--ip", "10.75.0.9", "--publish", "8080:80"]);
    let _programs = [
        testkit::traffic::Server::tcp(&lab, "0.0.0.0:2222", "host"),
        testkit::traffic::Server::udp(&lab, "[::]:2223", "host"),
    ];
    docker.create_network("--opt conflist=own --ipam-driver null own");
    let run = |options: &[&str]| {
        let said =
            docker.refused(&[&["run", "--rm"][..], options, &[Docker::IMAGE, "true"]].concat());
        docker.try_run(&["container", "prune", "--force"]);
        said
    };
    for (options, said) in [
        (&["--network", "one", "--ip", "10.75.0.9"][..], "address 10.75.0.9 is taken"),
        (&["--network", "one", "--ip", "10.75.0.1"], "10.75.0.1 is taken"),
        (&["--network", "name=one,driver-opt=what=1"], "unknown option \"what\""),
        (&["--network", "name=one,driver-opt=cap.ips=[]"], "[] changes nothing"),
        (&["--network", "one", "--publish", "8080:80"], "8080"),
        (
            &["--network", "one", "--publish", "2222:80"],
            "host port 2222/tcp is held by a program of this host",
        ),
        (
            &["--network", "one", "--publish", "127.0.0.1:2222:80"],
            "host port 127.0.0.1:2222/tcp is held",
        ),
        (&["--network", "one", "--publish", "2223:80/udp"], "host port 2223/udp is held"),
        (&["--network", "own"], "host port 2222/tcp is held"),
        (
            &["--network", "one", "--publish", "192.0.2.9:8081:80"],
            "the host does not have address 192.0.2.9",
        ),
    ] {
        let text = run(options);
        assert!(text.contains("netwright: ") && text.contains(said), "{options:?}: {text}");
        let endpoints = lab.sh("ls /var/lib/netwright/docker/endpoints | wc -l");
        assert_eq!(endpoints.trim(), "1", "{options:?}");
    }
    drop(web);
    docker.remove(&["web"]);
    docker.run(&["network", "rm", "one", "own"]);
    assert_no_state(&lab);
    assert_nothing_left(&lab, &before);
    drop(driver);
}

#[test]
fn a_plugin_that_hangs() {
    needs_docker!();
    let lab = Lab::with_processes("docker-hang");
    install(&lab);
    write_network(&lab, "hanging", HANGING);
    lab.sh("printf '#!/bin/sh\\n[ $CNI_COMMAND = ADD ] && exec sleep 1000\\necho {}\\n' >/opt/cni/bin/hang; chmod +x /opt/cni/bin/hang");
    let driver = Driver::start_at(&lab, super::support::SOCKET, &["--timeout", "1"]);
    let docker = Docker::new(&lab);
    docker.create_network("-o conflist=hanging --ipam-driver null hanging");
    let began = Instant::now();
    let said = docker.refused(&["run", "--rm", "--network", "hanging", Docker::IMAGE, "true"]);
    eprintln!("DOCKER a plugin that hangs held docker run for {:?}", began.elapsed());
    assert!(said.contains("did not finish within"), "{said}");
    docker.run(&["network", "rm", "hanging"]);
    assert_no_state(&lab);
    drop(driver);
}

/// Requests that no engine sends.
#[test]
fn requests_that_are_none() {
    require!("root");
    let lab = Lab::with_processes("docker-nonsense");
    install(&lab);
    let driver = Driver::start(&lab);
    let ask = |bytes: &[u8]| {
        let mut stream = UnixStream::connect(driver.socket()).unwrap();
        // The driver may stop reading a request that is too long.
        let _ = stream.write_all(bytes);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let call = |name: &str, body: &str| {
        ask(format!(
            "POST /{name} HTTP/1.1\r\nHost: \r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .as_bytes())
    };
    for (name, body, status, said) in [
        ("NetworkDriver.CreateNetwork", "{", "200", "the request is not valid"),
        ("NetworkDriver.CreateNetwork", "[]", "200", "the request is not valid"),
        ("NetworkDriver.CreateNetwork", "{}", "200", "is not an ID"),
        ("NetworkDriver.CreateNetwork", r#"{"NetworkID":"../../x"}"#, "200", "is not an ID"),
        ("NetworkDriver.CreateNetwork", "", "200", "came without content"),
        (
            "NetworkDriver.CreateEndpoint",
            r#"{"NetworkID":"n","EndpointID":"e"}"#,
            "200",
            "network n is not known",
        ),
        (
            "NetworkDriver.Join",
            r#"{"NetworkID":"n","EndpointID":"e","SandboxKey":"/x"}"#,
            "200",
            "network n is not known",
        ),
        ("NetworkDriver.Leave", r#"{"NetworkID":"n","EndpointID":"e"}"#, "200", "{}"),
        ("NetworkDriver.DeleteEndpoint", r#"{"NetworkID":"n","EndpointID":"e"}"#, "200", "{}"),
        ("NetworkDriver.DeleteNetwork", r#"{"NetworkID":"n"}"#, "200", "{}"),
        (
            "NetworkDriver.EndpointOperInfo",
            r#"{"NetworkID":"n","EndpointID":"e"}"#,
            "200",
            "{\"Value\":{}}",
        ),
        ("IpamDriver.RequestAddress", r#"{"PoolID":"p"}"#, "200", "pool \\\"p\\\" is not known"),
        (
            "IpamDriver.RequestPool",
            r#"{"Pool":"10.0.0.0"}"#,
            "200",
            "is not an address with its length",
        ),
        ("IpamDriver.ReleasePool", r#"{"PoolID":"p"}"#, "200", "{}"),
        ("NetworkDriver.Nonsense", "{}", "404", "there is no call"),
        ("VolumeDriver.Create", "{}", "404", "there is no call"),
    ] {
        let answer = call(name, body);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(said),
            "{name} {body}: {answer}"
        );
        assert_no_state(&lab);
    }
    let long =
        ask(b"POST /NetworkDriver.CreateNetwork HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n{");
    assert!(long.starts_with("HTTP/1.1 413 ") && long.contains("longer than"), "{long}");
    let get = ask(b"GET /Plugin.Activate HTTP/1.1\r\n\r\n");
    assert!(get.starts_with("HTTP/1.1 405 "), "{get}");
    let noise = ask(b"\x16\x03\x01 this is not HTTP\r\n\r\n");
    assert!(noise.starts_with("HTTP/1.1 400 "), "{noise}");
    let activated = call("Plugin.Activate", "");
    assert!(activated.contains(r#"{"Implements":["NetworkDriver","IpamDriver"]}"#), "{activated}");
}
