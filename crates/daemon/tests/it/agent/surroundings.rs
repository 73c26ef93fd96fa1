//! Surroundings in which the agent cannot do everything: a container, no rights, a path that is
//! taken.

use std::fs;
use std::os::unix::net::UnixListener;

use testkit::Place as _;

use super::node::{ALL, DAEMON, Node, kernel_says, text, until};

/// What the status says of a service's confinement.
fn unconfined(node: &Node, service: &str) -> Vec<String> {
    let report = node.service(service);
    let steps = report["unconfined"].as_array().cloned().unwrap_or_default();
    steps.iter().map(|step| step.as_str().unwrap().to_owned()).collect()
}

/// Starts the agent with some words before it.
fn start(node: &mut Node, words: &[&str]) {
    let mut command = node.lab.command(words[0]);
    command.args(&words[1..]).arg(DAEMON);
    node.start_as(command);
}

/// A container with few capabilities.
#[test]
fn without_capabilities_services_keep_what_they_have_and_say_so() {
    testkit::require!("root", "program:setpriv");
    let mut node = Node::with_all("agent-capabilities");
    start(&mut node, &["setpriv", "--bounding-set=-sys_admin,-sys_resource,-setuid,-setpcap"]);
    let pids = node.wait_until_ready(ALL.len());
    for service in ALL {
        let steps = unconfined(&node, service);
        let says = |what: &str| steps.iter().any(|step| step.starts_with(what));
        assert!(says("cannot move to a host name of its own: "), "{service}: {steps:?}");
        assert!(says("cannot cut down the bounding set of capabilities: "), "{service}: {steps:?}");
        let shares = service == "docker";
        assert_eq!(says("cannot move to mounts of its own: "), !shares, "{service}: {steps:?}");
        let is_root =
            says("cannot become the user 65521: it lacks CAP_CHOWN, CAP_SETUID or CAP_SETGID");
        assert_eq!(is_root, service == "ipam", "{service}: {steps:?}");
        // The services that need no capability work.
        assert_eq!(kernel_says(pids[service], "Seccomp"), "2", "{service}");
        assert_eq!(kernel_says(pids[service], "NoNewPrivs"), "1", "{service}");
    }
    assert_eq!(kernel_says(pids["ipam"], "CapEff"), "0000000000000000");
    assert_eq!(kernel_says(pids["ipam"], "Uid"), "0\t0\t0\t0");
    let said = text(&node.run(&["agent", "status"]).stdout);
    assert!(said.contains("less confined: cannot move to mounts of its own: "), "{said}");
    assert_eq!(node.stop(), Some(0));
}

/// A container whose root has no rights outside.
#[test]
fn in_a_user_namespace_services_keep_what_they_have_and_say_so() {
    testkit::require!("root", "program:unshare");
    let mut node = Node::with_all("agent-user-namespace");
    start(&mut node, &["unshare", "--user", "--map-root-user"]);
    until("the services", || node.pids().len() == 5);
    let pids = node.pids();
    for (service, pid) in &pids {
        assert_eq!(kernel_says(*pid, "Seccomp"), "2", "{service}");
    }
    // The network namespace does not belong to this user namespace. So the services that need
    // rights in it end, and say why.
    until("the reason", || {
        let failed = node.service("repair")["failed"]["text"].clone();
        failed.as_str().is_some_and(|why| why.contains("Operation not permitted"))
    });
    // The user namespace maps only root.
    let steps = unconfined(&node, "ipam");
    let user = steps.iter().find(|step| step.starts_with("cannot become the user 65521: "));
    assert!(user.is_some_and(|why| why.contains("Invalid argument")), "{steps:?}");
    assert_eq!(kernel_says(pids["ipam"], "CapEff"), "0000000000000000");
    assert_eq!(node.stop(), Some(0));
}

#[test]
fn what_is_in_the_way_of_the_agent_is_named() {
    testkit::require!("root", "program:setpriv");
    let node = Node::with_all("agent-way");
    let refused = |words: &[&str], want: &str| {
        let mut command = node.lab.command(words[0]);
        let said = command.args(&words[1..]).output().unwrap();
        let text = text(&said.stderr);
        assert_eq!(said.status.code(), Some(1), "{text}");
        assert!(text.contains(want), "{text}");
        assert!(!text.contains("started the service"), "{text}");
    };
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", DAEMON];
    refused(&nobody, "services are started by root, and this is user 65534: start it as root");
    refused(
        &[&nobody[..], &["dhcp"]].concat(),
        "create directory \"/var/lib/netwright/dhcp/leases\": Permission denied",
    );
    let path = node.path("/run/netwright/agent/agent.sock");
    node.lab.sh("mkdir -p /run/netwright/agent");
    fs::write(&path, "mine").unwrap();
    let want =
        "listen at \"/run/netwright/agent/agent.sock\": a file that is not a socket is there";
    refused(&[DAEMON], want);
    refused(&[DAEMON, "agent", "serve"], want);
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    fs::remove_file(&path).unwrap();
    let _living = UnixListener::bind(&path).unwrap();
    let want = "\"/run/netwright/agent/agent.sock\" is in use: a daemon answers there";
    refused(&[DAEMON], want);
    refused(&[DAEMON, "agent", "serve"], want);
}
