//! runc and crun call `netwright oci-hook`.

use std::io::Read as _;
use std::net::TcpStream;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use testkit::real::{Bundle, tell};
use testkit::{Lab, Place as _, Snapshot, require};

use crate::system::{NETWRIGHT, assert_nothing_left};

const RUNTIMES: [&str; 2] = ["runc", "crun"];

/// How long a container may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// A container with our hook at both stages.
fn bundle<'lab>(
    lab: &'lab Lab,
    runtime: &'static str,
    networks: &str,
    script: &str,
) -> Bundle<'lab> {
    Bundle::new(lab, runtime, "c1", script)
        .hook("createRuntime", &[NETWRIGHT, "oci-hook", "createRuntime"])
        .hook("poststop", &[NETWRIGHT, "oci-hook", "poststop"])
        .annotation("dev.netwright.networks", networks)
}

fn said(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// The lines of a text that contain a word.
fn lines(text: &str, word: &str) -> String {
    text.lines().filter(|line| line.contains(word)).map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_container_has_its_networks_and_leaves_nothing() {
    require!("root", "program:runc", "program:crun", "file:/usr/bin/busybox");
    for runtime in RUNTIMES {
        let lab = Lab::with_processes(runtime);
        let _outside = lab.outside();
        let before = Snapshot::take(&lab);
        let script = "set -e; ip address show dev net0; ping -c 1 -W 5 10.63.0.1; ping -6 -c 1 -W 5 fd63:b7c4:5e0a::1; \
                      ping -c 1 -W 5 198.51.100.2";
        let output = bundle(&lab, runtime, "netwright:ifname=net0,ip=10.63.0.77", script).run();
        let said = said(&output);
        assert!(output.status.success(), "{runtime}: {said}");
        assert!(said.contains("inet 10.63.0.77/16"), "{runtime}: {said}");
        assert!(said.contains("inet6 fd63:b7c4:5e0a::"), "{runtime}: {said}");
        tell(runtime, "answered", &lines(&said, "bytes from"));
        assert_nothing_left(&before, &lab);
        tell(runtime, "version", &lines(&lab.sh(&format!("{runtime} --version")), "version"));
    }
}

#[test]
fn a_published_port_leads_to_the_container() {
    require!("root", "program:runc", "program:crun", "file:/usr/bin/busybox");
    for runtime in RUNTIMES {
        let lab = Lab::with_processes(runtime);
        let before = Snapshot::take(&lab);
        let bundle = bundle(&lab, runtime, "", "echo from inside | nc -l -p 80")
            .annotation("dev.netwright.publish", "8080:80");
        thread::scope(|scope| {
            let run = scope.spawn(|| bundle.run());
            tell(runtime, "running", &until_running(&bundle));
            let read = read_from(&lab, "127.0.0.1:8080");
            let output = run.join().unwrap();
            assert!(output.status.success(), "{runtime}: {}", said(&output));
            assert_eq!(read.as_deref(), Some("from inside\n"), "{runtime}");
            tell(runtime, "answered", "127.0.0.1:8080 on the host: from inside");
        });
        assert_nothing_left(&before, &lab);
    }
}

/// The runtime's state of the container once it runs.
fn until_running(bundle: &Bundle<'_>) -> String {
    let deadline = Instant::now() + ANSWER;
    loop {
        let listed = bundle.list();
        if listed.contains("running") || deadline <= Instant::now() {
            return listed;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Connects repeatedly until it reads something.
fn read_from(lab: &Lab, address: &str) -> Option<String> {
    let address = address.parse().unwrap();
    let deadline = Instant::now() + ANSWER;
    loop {
        let mut text = String::new();
        let stream = lab.enter(|| TcpStream::connect_timeout(&address, ANSWER));
        let read = stream.and_then(|mut stream| stream.read_to_string(&mut text));
        if read.is_ok() && !text.is_empty() {
            return Some(text);
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_container_whose_hook_fails_does_not_start_and_leaves_nothing() {
    require!("root", "program:runc", "program:crun", "file:/usr/bin/busybox");
    // When the second network fails, the first is attached already. The second fails by its plugin,
    // or has no configuration.
    let blue = r#"{"cniVersion": "1.0.0", "name": "blue", "plugins": [
        {"type": "bridge", "bridge": "br-blue", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}},
        {"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.no_such_thing": "1"}}]}"#;
    for runtime in RUNTIMES {
        let lab = Lab::with_processes(runtime);
        lab.sh(&format!(
            "mkdir -p /etc/cni/net.d; cat > /etc/cni/net.d/blue.conflist <<'X'\n{blue}\nX"
        ));
        let before = Snapshot::take(&lab);
        for (networks, words) in
            [("netwright,blue", "no_such_thing"), ("netwright,nowhere", "nowhere")]
        {
            // crun discards the output of hooks unless configured with a file for it; runc shows
            // it.
            let errors = lab.dir().join("hook.errors");
            let output = bundle(&lab, runtime, networks, "echo started")
                .annotation("run.oci.hooks.stderr", errors.to_str().unwrap())
                .run();
            let said = said(&output);
            assert!(!output.status.success(), "{runtime}: {said}");
            assert!(!said.contains("started"), "{runtime}: {said}");
            let told = std::fs::read_to_string(&errors).unwrap_or_default() + &said;
            assert!(told.contains(words), "{runtime}: the reason is shown: {told}");
            assert_nothing_left(&before, &lab);
        }
    }
}
