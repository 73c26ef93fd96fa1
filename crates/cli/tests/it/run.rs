//! `run`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use testkit::{Lab, Place, Snapshot, traffic, without_linkdown};

use crate::support::{CommandOutput, assert_as_before, call_in, command_in};

fn run(lab: &Lab, args: &[&str]) -> CommandOutput {
    let mut words = vec!["run"];
    words.extend(args);
    call_in(lab, &words)
}

/// Starts a command that prints `ready` and then waits to be ended.
fn start(lab: &Lab, args: &[&str], script: &str) -> Child {
    let mut words = vec!["run"];
    words.extend(args);
    words.extend(["--", "sh", "-c", script]);
    let mut child = command_in(lab, &words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut line = String::new();
    // May read one byte more than the line: the command writes nothing else before the signal.
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

fn send(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

fn attachments(lab: &Lab) -> usize {
    let json = call_in(lab, &["list", "-o", "json"]).succeeded().json();
    json["attachments"].as_array().unwrap().len()
}

#[test]
fn a_command_has_a_network_and_leaves_nothing() {
    testkit::require!("root");
    let lab = Lab::new("cli-run");
    let outside = lab.outside();
    let before = Snapshot::take(&lab);
    let said = run(
        &lab,
        &["--", "sh", "-c", "ip -br a; ping -nc1 -W5 10.63.0.1 && ping -nc1 -W5 198.51.100.2 && ping -nc1 -W5 2001:db8:ffff::2"],
    )
    .succeeded();
    assert!(said.stdout.contains("10.63.0.2/16 fd63:b7c4:5e0a::2/64"), "{said:#?}");
    assert_as_before(&before, &lab);
    assert_eq!(attachments(&lab), 0);
    lab.sh(
        "test -z \"$(ls /run/netwright/owners 2>/dev/null)\" && test ! -e /run/netwright/plugins",
    );
    drop(outside);
}

#[test]
fn the_exit_code_is_the_commands() {
    testkit::require!("root");
    let lab = Lab::new("cli-run-code");
    lab.sh("rm -f /etc/resolv.conf; echo nameserver 198.51.100.53 >/etc/resolv.conf");
    run(&lab, &["--", "sh", "-c", "exit 7"]).failed(7);
    run(&lab, &["--", "sh", "-c", "kill -TERM $$"]).failed(128 + 15);
    let said = run(&lab, &["--", "nwt-none"]).failed(127);
    assert_eq!(said.stderr, "error: run \"nwt-none\"\ncause: No such file or directory\n");
    run(&lab, &["--", "/etc/passwd"]).failed(126);
    let said = run(&lab, &["--net", "nwt-none", "--", "true"]).failed(125);
    assert!(said.stderr.starts_with("error: no net configuration"), "{said:#?}");
    assert_eq!(attachments(&lab), 0);
}

#[test]
fn signals_reach_the_command_and_the_network_goes_afterwards() {
    testkit::require!("root");
    let lab = Lab::new("cli-run-signals");
    let before = Snapshot::take(&lab);
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::USR1, "USR1")] {
        let script = format!("trap 'exit 42' {name}; echo ready; while :; do sleep 0.01; done");
        let mut child = start(&lab, &[], &script);
        send(&child, signal);
        assert_eq!(child.wait().unwrap().code(), Some(42), "{name}");
    }
    let mut child = start(&lab, &[], "echo ready; exec sleep 1000");
    send(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert_as_before(&before, &lab);
    assert_eq!(attachments(&lab), 0);
}

#[test]
fn killed_outright_it_leaves_what_gc_finds() {
    testkit::require!("root");
    let lab = Lab::new("cli-run-killed");
    let before = Snapshot::take(&lab);
    let mut child =
        start(&lab, &["-p", "8080:80", "--name", "victim"], "echo ready; exec sleep 1000");
    send(&child, Signal::KILL);
    child.wait().unwrap();
    let list = call_in(&lab, &["list", "-o", "json"]).succeeded().json();
    assert_eq!(list["attachments"][0]["containerID"], "victim");
    assert_eq!(list["attachments"][0]["state"], "gone");
    let said = call_in(&lab, &["gc"]).succeeded();
    assert!(said.stdout.contains("removed eth0 of victim on netwright\n"), "{said:#?}");
    assert_eq!(attachments(&lab), 0);
    assert_as_before(&before, &lab);
    lab.sh("test ! -e /run/netwright/plugins");
}

#[test]
fn two_at_once_reach_each_other_and_a_published_port() {
    testkit::require!("root");
    let lab = Lab::new("cli-run-two");
    let before = Snapshot::take(&lab);
    let serve = "echo ready; exec python3 -m http.server --bind 10.63.0.2 80 >/dev/null 2>&1";
    let mut server = start(&lab, &["-p", "8080:80", "--ip", "10.63.0.2"], serve);
    let said = run(&lab, &["--", "ping", "-nc1", "-W5", "10.63.0.2"]).succeeded();
    assert!(said.stdout.contains("1 received"), "{said:#?}");
    // From the host and from the other container.
    let fetch = "for i in $(seq 100); do python3 -c \"import socket; socket.create_connection(('10.63.0.1', 8080), 5)\" \
                 2>/dev/null && exit 0; sleep 0.05; done; exit 1";
    lab.sh(fetch);
    run(&lab, &["--", "sh", "-c", fetch]).succeeded();
    send(&server, Signal::TERM);
    server.wait().unwrap();
    assert_as_before(&before, &lab);
}

#[test]
fn several_networks_give_several_interfaces() {
    testkit::require!("root");
    let lab = Lab::new("cli-run-nets");
    lab.sh("mkdir -p /etc/cni/net.d");
    let blue = r#"{"cniVersion": "1.1.0", "name": "blue", "plugins": [
        {"type": "bridge", "bridge": "br0", "ipam": {"type": "host-local", "subnet": "10.9.0.0/24"}}]}"#;
    std::fs::write(lab.path("/etc/cni/net.d/blue.conflist"), blue).unwrap();
    let said = run(
        &lab,
        &[
            "--net",
            "netwright",
            "--net",
            "blue:ip=10.9.0.77,mac=02:00:00:00:00:09",
            "--",
            "ip",
            "-br",
            "a",
        ],
    )
    .succeeded();
    assert!(said.stdout.contains("eth0"), "{said:#?}");
    let eth1 = said.stdout.lines().find(|line| line.starts_with("eth1")).unwrap().to_owned();
    assert!(eth1.contains("10.9.0.77/24"), "{said:#?}");
    // The default route is the first network's, unless the command line gives it to another.
    let blue = r#"{"cniVersion": "1.1.0", "name": "blue", "plugins": [
        {"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipam": {"type": "host-local", "subnet": "10.9.0.0/24"}}]}"#;
    std::fs::write(lab.path("/etc/cni/net.d/blue.conflist"), blue).unwrap();
    for (spec, expected) in [
        ("blue", "default via 10.63.0.1 dev eth0"),
        ("blue:ifname=data0,default-route", "default via 10.9.0.1 dev data0"),
        ("blue:default-route=10.9.0.7", "default via 10.9.0.7 dev eth1"),
    ] {
        let command = ["ip", "-4", "route", "show", "default"];
        let args = [&["--net", "netwright", "--net", spec, "--"][..], &command].concat();
        let shown = run(&lab, &args).succeeded().stdout;
        assert_eq!(without_linkdown(&shown).trim(), expected);
    }
    let said = run(
        &lab,
        &["--net", "netwright:default-route", "--net", "blue:default-route", "--", "true"],
    );
    let said = said.failed(125);
    assert!(
        said.stderr.contains("interfaces eth0 and eth1 are both to have the default route"),
        "{said:#?}"
    );
    // A failure on the second network also detaches the first.
    let before = Snapshot::take(&lab);
    run(&lab, &["--net", "netwright", "--net", "blue:ip=10.8.0.1", "--", "true"]).failed(125);
    assert_as_before(&before, &lab);
    assert_eq!(attachments(&lab), 0);
}

/// A bridge, a macvlan that has the default route, a routed pair and a VLAN, each with a route of
/// its own.
#[test]
fn vm_a_command_on_four_networks_a_vlan_among_them() {
    testkit::require!("root", "vlan");
    let lab = Lab::new("cli-run-four");
    lab.sh("mkdir -p /etc/cni/net.d
        ip link add p0 type veth peer name p1 && ip link set p0 up && ip link set p1 up
        ip addr add 10.2.0.1/24 dev p1
        ip link add q0 type veth peer name q1 && ip link set q0 up && ip link set q1 up
        ip link add link q1 name q1.7 type vlan id 7 && ip link set q1.7 up && ip addr add 10.4.0.1/24 dev q1.7");
    let plugins = [
        r#""type": "macvlan", "master": "p0", "capabilities": {"ips": true}, "ipam": {"type": "static",
            "addresses": [{"address": "10.2.0.5/24", "gateway": "10.2.0.1"}], "routes": [{"dst": "192.0.2.0/24"}]}"#,
        r#""type": "ptp", "ipam": {"type": "host-local", "subnet": "10.3.0.0/24", "routes": [{"dst": "198.51.100.0/24"}]}"#,
        r#""type": "vlan", "master": "q0", "vlanId": 7, "ipam": {"type": "static",
            "addresses": [{"address": "10.4.0.5/24", "gateway": "10.4.0.1"}], "routes": [{"dst": "203.0.113.0/24"}]}"#,
    ];
    for (name, plugin) in ["lan", "pair", "tagged"].into_iter().zip(plugins) {
        let list =
            format!(r#"{{"cniVersion": "1.1.0", "name": "{name}", "plugins": [{{{plugin}}}]}}"#);
        std::fs::write(lab.path(format!("/etc/cni/net.d/{name}.conflist")), list).unwrap();
    }
    let networks = ["netwright", "lan:ifname=data0,default-route", "pair", "tagged:ifname=tagged0"];
    let mut args: Vec<&str> = networks.iter().flat_map(|name| ["--net", *name]).collect();
    let script = "ip -br link; ip -4 route; for a in 10.63.0.1 10.2.0.1 10.3.0.1 10.4.0.1; do ping -nc1 -W5 $a || exit 1; done";
    args.extend(["--", "sh", "-c", script]);
    // The first run leaves locks, and folders of addresses.
    run(&lab, &["--net", "netwright", "--net", "pair", "--", "true"]).succeeded();
    let before = Snapshot::take(&lab);
    let said = run(&lab, &args).succeeded();
    let links = said.stdout.lines().filter(|line| line.contains('<'));
    let names: Vec<_> = links.filter_map(|line| line.split([' ', '@']).next()).collect();
    assert_eq!(names, ["lo", "eth0", "data0", "eth2", "tagged0"], "{said:#?}");
    for route in [
        "default via 10.2.0.1 dev data0",
        "192.0.2.0/24 via 10.2.0.1 dev data0",
        "198.51.100.0/24 via 10.3.0.1 dev eth2",
        "203.0.113.0/24 via 10.4.0.1 dev tagged0",
    ] {
        assert!(said.stdout.contains(route), "{route}: {said:#?}");
    }
    assert_eq!(said.stdout.matches("default via").count(), 1, "{said:#?}");
    assert_as_before(&before, &lab);
    assert_eq!(attachments(&lab), 0);
}

#[test]
fn without_a_command_the_probe_tells_what_works() {
    testkit::require!("root");
    let lab = Lab::new("cli-run-probe");
    let said = run(&lab, &["--to", "198.51.100.2:80"]).succeeded();
    assert!(said.stdout.contains("gateway  10.63.0.1: answers after "), "{said:#?}");
    let verdict = "outside  this machine cannot reach 198.51.100.2:80 either: connect to 198.51.100.2:80: Network ";
    // "Network is unreachable", or in the words of musl "Network unreachable".
    let line = said.stdout.lines().find_map(|line| line.split_once(verdict)).map(|(_, rest)| rest);
    assert!(line.is_some_and(|rest| rest.contains("unreachable")), "{said:#?}");
    let outside = lab.outside();
    let server = traffic::Server::tcp(&outside, "198.51.100.2:80", "web");
    let said = run(&lab, &["--to", "198.51.100.2:80", "-o", "json"]).succeeded();
    assert_eq!(said.json()["outside"]["reached"], true, "{said:#?}");
    drop(server);
    let said = run(&lab, &["--to", "198.51.100.2:80"]).succeeded();
    assert!(said.stdout.contains("reached 198.51.100.2:80, which serves nothing"), "{said:#?}");
}

#[test]
fn a_name_server_of_the_machine_alone_is_asked_from_there() {
    testkit::require!("root");
    let lab = Lab::new("cli-run-dns");
    let outside = lab.outside();
    // No server listens there; the lookup must fail soon and say why.
    std::fs::write(lab.path("/etc/resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
    let said = run(&lab, &["--to", "example.com:80"]);
    assert!(said.stdout.contains("resolve example.com: name server 127.0.0.1: "), "{said:#?}");
    drop(outside);
}

/// The test kills `run` after every whole number of milliseconds below this: an attachment takes
/// about ten.
const MOMENTS_MS: u64 = 40;

/// Sends a signal to one run after another, each time at another moment.
fn interrupt_at_every_moment(lab: &Lab, signal: Signal) {
    for moment_ms in 0..MOMENTS_MS {
        let mut child = command_in(lab, &["run", "-p", "8080:80", "--", "true"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // This does not wait for an event: the moment is what the test varies.
        std::thread::sleep(Duration::from_millis(moment_ms));
        send(&child, signal);
        child.wait().unwrap();
    }
}

#[test]
fn ended_at_any_moment_it_leaves_nothing() {
    testkit::require!("root");
    let lab = Lab::new("cli-run-ended");
    let before = Snapshot::take(&lab);
    interrupt_at_every_moment(&lab, Signal::TERM);
    assert_eq!(attachments(&lab), 0);
    // GC also removes what belongs to no attachment: the folders of a process that could not catch
    // the signal.
    call_in(&lab, &["gc"]).succeeded();
    assert_as_before(&before, &lab);
}

#[test]
fn killed_at_any_moment_it_leaves_nothing_that_gc_does_not_find() {
    testkit::require!("root");
    let lab = Lab::new("cli-run-killed-any");
    let before = Snapshot::take(&lab);
    interrupt_at_every_moment(&lab, Signal::KILL);
    call_in(&lab, &["gc"]).succeeded();
    assert_eq!(attachments(&lab), 0);
    assert_as_before(&before, &lab);
}

/// A plugin that records, for each verb, whether the namespace existed when it was called.
const WITNESS: &str = r#"#!/bin/sh
if [ -n "$CNI_NETNS" ] && [ -e "$CNI_NETNS" ]; then there=yes; else there=no; fi
echo "$CNI_COMMAND $there $CNI_NETNS" >> "$(dirname "$0")/log"
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion": "1.1.0"}'
exit 0
"#;

/// Runs `true` on a network of one witness; returns its records, without the namespace's path, and
/// that path.
fn witnessed(name: &str) -> (Vec<String>, String) {
    let lab = Lab::new(name);
    let dir = lab.dir().join("bin");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("witness"), WITNESS).unwrap();
    lab.sh(&format!("chmod +x {}/witness && mkdir -p /etc/cni/net.d", dir.display()));
    let seen = r#"{"cniVersion": "1.1.0", "name": "seen", "plugins": [{"type": "witness"}]}"#;
    std::fs::write(lab.path("/etc/cni/net.d/seen.conflist"), seen).unwrap();
    let mut command = command_in(&lab, &["run", "--net", "seen", "--", "true"]);
    command.env("CNI_PATH", &dir);
    crate::support::said(command).succeeded();
    let log = std::fs::read_to_string(dir.join("log")).unwrap();
    let netns = log.split_whitespace().nth(2).unwrap().to_owned();
    let lines = log.lines().map(|line| line.replace(&netns, "").trim().to_owned()).collect();
    (lines, netns)
}

/// `--publish 22:22` cut off the machine's own sshd. Another test covers ports of other containers.
#[test]
fn a_port_that_a_program_of_the_host_has_is_refused_and_the_program_named() {
    testkit::require!("root");
    let lab = Lab::new("cli-run-taken");
    let _outside = lab.outside();
    let _programs = [
        traffic::Server::tcp(&lab, "0.0.0.0:2222", "v4"),
        traffic::Server::tcp(&lab, "[::]:2223", "dual stack"),
        traffic::Server::udp(&lab, "127.0.0.1:2224", "udp"),
    ];
    let mut c1 = lab.container("c1");
    let (pid, path) = (c1.pid(), c1.netns());
    let hook = |port: &str| {
        let state = serde_json::json!({ "id": "c1", "status": "creating", "pid": pid,
                                        "annotations": { "dev.netwright.publish": port } });
        crate::support::said_with(
            command_in(&lab, &["oci-hook", "createRuntime"]),
            state.to_string().as_bytes(),
        )
    };
    let before = Snapshot::take(&lab);
    let holder = format!("(process {})", std::process::id());
    for (port, told) in [
        ("2222:80", "host port 2222/tcp is held by program"),
        ("127.0.0.1:2222:80", "host port 127.0.0.1:2222/tcp is held by program"),
        ("2223:80", "host port 2223/tcp is held by program"),
        ("[::1]:2223:80", "host port [::1]:2223/tcp is held by program"),
        ("2224:80/udp", "host port 2224/udp is held by program"),
        ("192.0.2.9:8080:80", "the host does not have address 192.0.2.9"),
        ("[2001:db8::9]:8080:80", "the host does not have address 2001:db8::9"),
    ] {
        let add = call_in(&lab, &["add", "netwright", path.to_str().unwrap(), "--publish", port]);
        for said in [run(&lab, &["--publish", port, "--", "true"]), add, hook(port)] {
            assert_ne!(said.code, 0, "{said:#?}");
            assert!(said.stderr.contains(told), "{port}: {said:#?}");
            assert!(told.contains("does not have") || said.stderr.contains(&holder), "{said:#?}");
        }
    }
    // Ports that a network's list itself names, and those of networks within.
    let own = r#""runtimeConfig": {"portMappings": [{"hostPort": 2222, "containerPort": 80, "protocol": "tcp"}]}"#;
    let bridge = r#"{"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.9.0.0/24"}}"#;
    let portmap = r#""type": "portmap""#;
    let within = r#""capabilities": {"portMappings": true}"#;
    let lists = [
        ("own", format!("{bridge}, {{{portmap}, {own}}}")),
        (
            "many",
            format!(
                r#"{{"type": "multi", "networks": [{{"config": {{"cniVersion": "1.0.0", "name": "in",
                   "plugins": [{bridge}, {{{portmap}, {within}}}]}}, {own}}}]}}"#
            ),
        ),
    ];
    for (name, plugins) in &lists {
        let list =
            format!(r#"{{"cniVersion": "1.0.0", "name": "{name}", "plugins": [{plugins}]}}"#);
        std::fs::create_dir_all(lab.path("/etc/cni/net.d")).unwrap();
        let file = lab.path(format!("/etc/cni/net.d/{name}.conflist"));
        std::fs::write(&file, list).unwrap();
        let add = call_in(&lab, &["add", name, path.to_str().unwrap()]);
        for said in [run(&lab, &["--net", name, "--", "true"]), add] {
            assert_ne!(said.code, 0, "{name}: {said:#?}");
            assert!(said.stderr.contains("host port 2222/tcp is held by program"), "{said:#?}");
        }
        std::fs::remove_file(&file).unwrap();
    }
    lab.sh("rmdir /etc/cni/net.d /etc/cni");
    assert_as_before(&before, &lab);
    // The same ports are free with other protocols and addresses.
    for port in ["2222:80/udp", "198.51.100.1:2224:80/udp", "2224:80", "2222:80/sctp"] {
        run(&lab, &["--publish", port, "--", "true"]).succeeded();
    }
}

#[test]
fn the_namespace_exists_before_the_first_plugin_is_called() {
    testkit::require!("root");
    let (calls, _) = witnessed("cli-run-first");
    assert_eq!(calls.first().map(String::as_str), Some("ADD yes"), "{calls:?}");
}

#[test]
fn the_namespace_goes_after_the_last_plugin_was_called() {
    testkit::require!("root");
    let (calls, netns) = witnessed("cli-run-last");
    assert_eq!(calls, ["ADD yes", "DEL yes"]);
    assert!(!std::path::Path::new(&netns).exists(), "{netns}");
}

/// A network that gives name servers, and one that gives none.
const WITH_DNS: &str = r#"{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "bridge",
  "bridge": "n0", "isGateway": true, "dns": {"nameservers": ["192.0.2.53"],
  "search": ["example.org", "example.net"], "options": ["ndots:2"]},
  "ipam": {"type": "host-local", "subnet": "10.20.0.0/24"}}]}"#;

/// The command's `/etc/resolv.conf`, also where that is a symbolic link, as systemd-resolved's is.
#[test]
fn the_command_has_name_servers_that_it_reaches() {
    testkit::require!("root");
    let lab = Lab::new("cli-run-resolv");
    lab.sh("mkdir -p /run/systemd/resolve /etc/cni/net.d; rm -f /etc/resolv.conf; \
            echo nameserver 127.0.0.53 >/run/systemd/resolve/stub-resolv.conf; \
            ln -s ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf");
    std::fs::write(lab.path("/etc/cni/net.d/n.conflist"), WITH_DNS).unwrap();
    let show = ["--", "cat", "/etc/resolv.conf"];
    let with = |args: &[&str]| run(&lab, &[args, &show[..]].concat()).succeeded();
    // None is known that the container reaches.
    let said = with(&[]);
    assert_eq!(said.stdout, "nameserver 127.0.0.53\n");
    assert!(
        said.stderr.contains("reaches no name server of /etc/resolv.conf; name one with --dns")
    );
    let before = Snapshot::take(&lab);
    lab.sh("printf 'nameserver 198.51.100.53\\nsearch host.example\\n' >/run/systemd/resolve/resolv.conf");
    let said = with(&[]);
    assert_eq!(said.stdout, "nameserver 198.51.100.53\nsearch host.example\n", "{said:#?}");
    assert_eq!(said.stderr, "");
    let rest = "search example.org example.net\noptions ndots:2\n";
    let said = with(&["--net", "n"]);
    assert_eq!(said.stdout, format!("{rest}nameserver 192.0.2.53\n"), "{said:#?}");
    let said = with(&["--net", "n", "--dns", "203.0.113.5", "--dns", "2001:db8::5"]);
    let servers = "nameserver 203.0.113.5\nnameserver 2001:db8::5\n";
    assert_eq!(said.stdout, format!("{rest}{servers}"), "{said:#?}");
    // The host's own file is as it was, also for other processes while the command runs.
    let mounts = || lab.sh("grep -c resolv /proc/self/mountinfo || true");
    let mounted = mounts();
    let mut child = start(
        &lab,
        &["--net", "n"],
        "grep -q 192.0.2.53 /etc/resolv.conf && echo ready; \
                                                  read -r line",
    );
    assert_eq!(lab.sh("cat /etc/resolv.conf"), "nameserver 127.0.0.53\n");
    assert_eq!(mounts(), mounted);
    drop(child.stdin.take());
    child.wait().unwrap();
    // host-local keeps the folder of a network.
    lab.sh("rm -r /run/systemd/resolve/resolv.conf /var/lib/cni/networks/n");
    assert_as_before(&before, &lab);
}

/// The host has no `/etc/resolv.conf`, or a link that leads nowhere.
#[test]
fn the_command_has_its_name_servers_where_the_host_has_no_file() {
    testkit::require!("root");
    let lab = Lab::new("cli-run-no-resolv");
    let as_it_is = "ls -l /etc/resolv.conf 2>&1; ls /etc | wc -l";
    let show = "cat /etc/resolv.conf; echo more >> /etc/resolv.conf && tail -n 1 /etc/resolv.conf";
    for make in [
        "ln -s ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf",
        "ln -s /run/nowhere/resolv.conf /etc/resolv.conf",
        "ln -s resolv.conf /etc/resolv.conf",
        "true",
    ] {
        lab.sh(&format!("rm -f /etc/resolv.conf; {make}"));
        let before = lab.sh(as_it_is);
        let said = run(&lab, &["--dns", "203.0.113.5", "--", "sh", "-c", show]).succeeded();
        assert_eq!(said.stdout, "nameserver 203.0.113.5\nmore\n", "{make}: {said:#?}");
        assert_eq!(said.stderr, "", "{make}");
        assert_eq!(lab.sh(as_it_is), before, "{make}");
        // None is chosen: nothing is covered.
        let said = run(&lab, &["--", "cat", "/etc/resolv.conf"]);
        assert!(said.stderr.contains("reaches no name server of /etc/resolv.conf"), "{said:#?}");
    }
    // Everything else of the folder is the host's.
    lab.sh("mkdir -p /etc/one/two; echo 1 >/etc/one/file; ln -s one/file /etc/link; \
            mount -t tmpfs none /etc/one/two; echo 2 >/etc/one/two/file");
    let script = "cat /etc/link /etc/one/two/file; readlink /etc/link; echo 3 >/etc/one/file; \
                  touch /etc/new 2>/dev/null || echo refused";
    let said = run(&lab, &["--dns", "203.0.113.5", "--", "sh", "-c", script]).succeeded();
    assert_eq!(said.stdout, "1\n2\none/file\nrefused\n", "{said:#?}");
    assert_eq!(lab.sh("cat /etc/one/file; ls /etc/new 2>&1 || true").lines().next(), Some("3"));
}

/// A network without a route to the name servers, the host's and its own; a default route that a
/// route to the server's subnet cuts off.
#[test]
fn name_servers_without_a_route_are_warned_about() {
    testkit::require!("root");
    let lab = Lab::new("cli-run-no-route");
    lab.sh("mkdir -p /etc/cni/net.d; rm -f /etc/resolv.conf");
    let write = |name: &str, dns: &str, subnet: &str, routes: &str| {
        let list = format!(
            r#"{{"cniVersion": "1.0.0", "name": "{name}", "plugins": [{{"type": "bridge", "bridge": "{name}",
            "isGateway": true, "dns": {{{dns}}},
            "ipam": {{"type": "host-local", "subnet": "{subnet}", "routes": [{routes}]}}}}]}}"#
        );
        std::fs::write(lab.path(format!("/etc/cni/net.d/{name}.conflist")), list).unwrap();
    };
    write("plain", "", "10.20.0.0/24", "");
    write("own", r#""nameservers": ["192.0.2.53", "192.0.2.54"]"#, "10.21.0.0/24", "");
    write("six", "", "fd20::/64", "");
    let default = r#"{"dst": "0.0.0.0/0"}"#;
    let cut = format!(r#"{default}, {{"dst": "192.0.2.0/24", "type": "unreachable"}}"#);
    write("cut", "", "10.22.0.0/24", &cut);
    write("dropped", "", "10.23.0.0/24", &cut.replace("unreachable", "blackhole"));
    write("sound", "", "10.24.0.0/24", default);
    for (host, args, server) in [
        ("192.0.2.9", &["--net", "plain"][..], Some("192.0.2.9")),
        ("192.0.2.9", &["--net", "own"], Some("192.0.2.53, 192.0.2.54")),
        ("2001:db8::53", &["--net", "six"], Some("2001:db8::53")),
        ("192.0.2.9", &["--net", "cut"], Some("192.0.2.9")),
        ("192.0.2.9", &["--net", "dropped"], Some("192.0.2.9")),
        ("192.0.2.9", &["--net", "plain", "--dns", "192.0.2.7"], Some("192.0.2.7")),
        // On the network itself, by a default route, by another network's, one of two.
        ("10.20.0.1", &["--net", "plain"], None),
        ("fd20::1", &["--net", "six"], None),
        ("192.0.2.9", &["--net", "sound"], None),
        ("192.0.2.9", &["--net", "plain", "--net", "sound"], None),
        ("192.0.2.9", &["--net", "plain", "--dns", "192.0.2.7", "--dns", "10.20.0.1"], None),
        ("192.0.2.9", &["--net", "plain", "--dns", "127.0.0.1"], None),
    ] {
        lab.sh(&format!("echo nameserver {host} >/etc/resolv.conf"));
        let said = run(&lab, &[args, &["--", "true"]].concat()).succeeded();
        let want = server.map_or_else(String::new, |server| {
            format!(
                "warning: the command resolves no names: the container has no route to name server \
                 {server}; name one with --dns ADDRESS\n"
            )
        });
        assert_eq!(said.stderr, want, "{host} {args:?}");
    }
}
