//! Exploits of similar daemons.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use testkit::Place as _;

use crate::rig::{Rig, wait_for};

/// How often the process went to sleep voluntarily, and whether it sleeps.
fn sleeps(pid: u32) -> (String, bool) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = |key: &str| {
        let found = status.lines().find_map(|line| line.strip_prefix(key));
        found.unwrap_or_default().trim().to_owned()
    };
    let sleeping = line("State:").starts_with('S');
    (line("voluntary_ctxt_switches:") + &line("nonvoluntary_ctxt_switches:"), sleeping)
}

/// CVE-2026-35406: a client that sent half of the announced bytes and left made the daemon loop for
/// ever.
#[test]
fn clients_that_go_away_in_the_middle_leave_it_asleep() {
    testkit::require!("root");
    let rig = Rig::new("vanish");
    let daemon = rig.daemon();
    for said in [&b""[..], b"{", b"{\"version\":1,\"ask\":", b"{\"version\":1,\"ask\":\"status\"}"]
    {
        for how in [std::net::Shutdown::Write, std::net::Shutdown::Read, std::net::Shutdown::Both] {
            let mut stream = rig.node.lab.enter(|| UnixStream::connect(&rig.socket)).unwrap();
            let _ = stream.write_all(said);
            let _ = stream.shutdown(how);
            drop(stream);
        }
    }
    rig.dhcp("STATUS").call().silent();
    // The daemon sleeps, and does not wake between two checks, which a process in a loop would do.
    let mut calm = 0;
    let mut before = sleeps(daemon.pid());
    wait_for("the daemon to sleep", || {
        let now = sleeps(daemon.pid());
        calm = if now == before && now.1 { calm + 1 } else { 0 };
        before = now;
        10 <= calm
    });
    assert_eq!(daemon.stop(), Some(0));
}

/// Docker's driver answers while other clients hold its socket open and send nothing.
#[test]
fn clients_that_say_nothing_keep_docker_from_nothing() {
    testkit::require!("root");
    let lab = testkit::Lab::new("docker-many-silent");
    let socket = lab.dir().join("docker.sock");
    let mut command = lab.command(env!("CARGO_BIN_EXE_netwrightd"));
    command
        .args(["docker", "--socketpath"])
        .arg(&socket)
        .env("NETWRIGHT_RUN_DIR", lab.dir().join("run"))
        .env("NETWRIGHT_STATE_DIR", lab.dir().join("lib"))
        .env("NETWRIGHT_LOG", "debug");
    let mut service = testkit::Service::start(command, &lab.dir().join("docker.log"));
    let activate = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(&socket)?;
        stream.set_read_timeout(Some(std::time::Duration::from_secs(60)))?;
        stream
            .write_all(b"POST /Plugin.Activate HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    service.wait_until("the driver to listen", || activate().is_ok());
    let connect = |_| UnixStream::connect(&socket).unwrap();
    let silent: Vec<UnixStream> = (0..600).map(connect).collect();
    let answer = activate().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("NetworkDriver"), "{answer}");
    drop(silent);
}
