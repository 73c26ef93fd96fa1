//! `netwright doctor`: its time and memory on a sound node with many containers, and for one
//! container, sound and where nothing answers.
//!
//! ```text
//! cargo run --release --package netwright-benches --bin attach -- \
//!     --rounds 0 --doctor 200 target/dist/netwright
//! ```

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use testkit::{Container, Lab, MemoryLimit, Place};

use crate::spread::Spread;

const ROUNDS: usize = 11;

/// The limit of the control group that counts memory, in bytes: more than any call needs.
const MOST_MEMORY: u64 = 1 << 30;

/// How long the kernel gets after many namespaces have come.
const QUIET: Duration = Duration::from_secs(5);

/// How long the server of names waits before it looks whether it is to end.
const POLL: Duration = Duration::from_millis(20);

const NETWORK: &str = r#"{"cniVersion": "1.0.0", "name": "bench", "plugins": [
    {"type": "bridge", "bridge": "bench0", "isDefaultGateway": true, "ipMasq": true,
     "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}], [{"subnet": "fd00:88::/64"}]]}},
    {"type": "portmap", "capabilities": {"portMappings": true}},
    {"type": "firewall"}]}"#;

/// Drops whatever the node receives but over loopback: every question waits as long as it may.
const BLACK: &str = "table inet black { chain first { \
    type filter hook prerouting priority -400; policy drop; iif lo accept; }; }";

/// Measures with this many containers on one network.
pub(crate) fn measure(executable: &Path, sizes: &[usize]) {
    let lab = Lab::new("bench-doctor");
    let outside = lab.outside();
    let names = Names::start(&outside);
    let make = "mkdir -p /etc/cni/net.d && sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1";
    lab.sh(make);
    fs::write(lab.path("/etc/cni/net.d/10-bench.conflist"), NETWORK).expect("a lab is writable");
    println!("\n| containers | doctor (at most) | ms | MB |\n|---|---|---|---|");
    let mut held: Vec<Container> = Vec::new();
    let mut sizes = sizes.to_vec();
    sizes.sort_unstable();
    for size in sizes {
        while held.len() < size {
            held.push(attach(&lab, executable, held.len()));
        }
        // The kernel is busy with all those namespaces for a while.
        thread::sleep(QUIET);
        // What is asked for is for 200 containers.
        row(&lab, executable, size, "all, no probes (800 ms, 32 MB)", &["--no-probe"], 0);
        row(&lab, executable, size, "all, with probes (1500 ms, 32 MB)", &[], 0);
        row(&lab, executable, size, "one, sound (300 ms)", &["c0"], 0);
        lab.sh(&format!("nft '{BLACK}'"));
        row(&lab, executable, size, "one, nothing answers (4000 ms)", &["c0"], 1);
        lab.sh("nft delete table inet black");
    }
    drop(names);
}

/// Attaches a container, which asks the outside for names.
fn attach(lab: &Lab, executable: &Path, number: usize) -> Container {
    let name = format!("c{number}");
    let container = lab.container(&name);
    container.sh("ip link set lo up");
    lab.sh(&format!("mkdir -p /etc/netns/{name}"));
    let file = lab.path(format!("/etc/netns/{name}/resolv.conf"));
    fs::write(file, "nameserver 198.51.100.2\n").expect("a lab is writable");
    let executable = executable.display();
    lab.sh(&format!("{executable} add bench {name} --container-id {name}"));
    container
}

/// Prints the time of some calls, and the most memory that another one used.
fn row(lab: &Lab, executable: &Path, size: usize, what: &str, arguments: &[&str], code: i32) {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let mut command = lab.command(&executable.display().to_string());
        command.arg("doctor").args(arguments);
        let started = Instant::now();
        let output = command.output().expect("doctor starts");
        times.push(started.elapsed());
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{what}: {said}");
    }
    let spread = Spread::of(&times).unwrap_or_default();
    println!("| {size} | {what} | {spread} | {} |", memory(lab, executable, arguments) >> 20);
}

/// Returns the most memory of a call, in bytes, as its control group counts it: that of the
/// programs which it executes, and the kernel's for it, are in it.
fn memory(lab: &Lab, executable: &Path, arguments: &[&str]) -> u64 {
    let limit = MemoryLimit::new(MOST_MEMORY);
    // It waits until it is counted.
    let mut command = lab.command("sh");
    command.args(["-c", "read -r go; exec \"$0\" doctor \"$@\""]).arg(executable).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("a shell starts");
    limit.hold(child.id());
    drop(child.stdin.take());
    child.wait().expect("doctor ends");
    limit.most_used()
}

/// A server of names that knows none.
struct Names {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Names {
    fn start(place: &impl Place) -> Self {
        let socket = place.enter(|| UdpSocket::bind("198.51.100.2:53")).expect("port 53 is free");
        socket.set_read_timeout(Some(POLL)).expect("a socket has timeouts");
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopping.load(Ordering::Relaxed) {
                let mut message = [0; 512];
                let Ok((length, from)) = socket.recv_from(&mut message) else { continue };
                if 12 <= length {
                    // An answer, and: there is no such name (RFC 1035 §4.1.1).
                    message[2] |= 0x80;
                    message[3] = 3;
                    let _ = socket.send_to(&message[..length], from);
                }
            }
        });
        Names { stop, thread: Some(thread) }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
