//! A separate process waits for the kernel's slow work after a detach; the caller does not notice
//! it.

use std::io::Read as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testkit::{Lab, Place as _};

use crate::support::{call_in, command_in, said_with};

const CONFIG: &str = r#"{"cniVersion":"1.1.0","name":"n","type":"bridge","bridge":"br0","isGateway":true,
    "ipMasq":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.2.0/24"}]]}}"#;

const PLUGINS: &str = "/run/bin";

fn plugin(lab: &Lab, verb: &str, netns: &str) -> std::process::Command {
    let mut command = command_in(lab, &["bridge"]);
    command.env("CNI_COMMAND", verb).env("CNI_CONTAINERID", "c1").env("CNI_NETNS", netns);
    command.env("CNI_IFNAME", "eth0").env("CNI_PATH", PLUGINS);
    command
}

#[test]
fn a_detach_leaves_nobody_with_the_callers_pipes() {
    testkit::require!("root");
    let lab = Lab::with_processes("linger");
    let container = lab.container("c1");
    let netns = container.netns().display().to_string();
    call_in(&lab, &["install", "--bin-dir", PLUGINS, "--no-config"]).succeeded();
    let before = lab.processes();
    said_with(plugin(&lab, "ADD", &netns), CONFIG.as_bytes()).succeeded();

    let config = lab.dir().join("config");
    std::fs::write(&config, CONFIG).unwrap();
    let mut command = plugin(&lab, "DEL", &netns);
    command.stdin(std::fs::File::open(&config).unwrap());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipes: [Box<dyn Pipe>; 2] =
        [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
    assert!(child.wait().unwrap().success());
    for pipe in &mut pipes {
        let now = Timespec::try_from(Duration::ZERO).unwrap();
        let mut fds = [PollFd::new(pipe, PollFlags::IN)];
        poll(&mut fds, Some(&now)).unwrap();
        assert!(fds[0].revents().contains(PollFlags::HUP), "a process holds the caller's pipe");
        let mut said = String::new();
        pipe.read_to_string(&mut said).unwrap();
        assert_eq!(said, "");
    }
    container.sh("! ip link show eth0 2>/dev/null");

    let deadline = Instant::now() + testkit::TIMEOUT;
    while lab.processes() != before {
        assert!(Instant::now() < deadline, "what stayed behind for the kernel's sake does not end");
        std::thread::yield_now();
    }
}

trait Pipe: std::io::Read + std::os::fd::AsFd {}
impl<T: std::io::Read + std::os::fd::AsFd> Pipe for T {}
