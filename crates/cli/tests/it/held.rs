//! Containers that live although their namespace has no path, and no process of its own.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;

use serde_json::Value;
use testkit::{Lab, Place as _, require, wait_until};

use crate::support::call_in;

const BLUE: &str = r#"{
    "cniVersion": "1.1.0", "name": "blue", "plugins": [
        {"type": "bridge", "bridge": "br-blue", "isGateway": true,
         "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}}
    ]}"#;

fn lab(name: &str) -> Lab {
    let lab = Lab::new(name);
    lab.sh("mkdir -p /etc/cni/net.d");
    std::fs::write(lab.path("/etc/cni/net.d/blue.conflist"), BLUE).unwrap();
    lab
}

/// The state that `list` shows of the only attachment.
fn state(lab: &Lab) -> String {
    let json = call_in(lab, &["list", "-o", "json"]).succeeded().json();
    let rows: &Vec<Value> = json["attachments"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "{json}");
    rows[0]["state"].as_str().unwrap().to_owned()
}

/// Asserts that GC leaves the container alone, and then, once `release` has let go of its
/// namespace, removes it.
fn stays_until(lab: &Lab, release: impl FnOnce()) {
    let counts = || {
        let done = call_in(lab, &["gc", "-o", "json"]).succeeded().json();
        ["removed", "kept"].map(|what| done[what].as_array().unwrap().len())
    };
    assert_eq!(state(lab), "alive");
    assert_eq!(counts(), [0, 1]);
    release();
    wait_until("the container to be gone", || state(lab) == "gone");
    assert_eq!(counts(), [1, 0]);
}

/// Only one thread of a process is in the namespace; the rest of the process is elsewhere.
#[test]
fn a_container_that_one_thread_holds_keeps_its_network() {
    require!("root");
    let lab = lab("held-thread");
    let c1 = lab.container("c1");
    call_in(&lab, &["add", "blue", "c1"]).succeeded();
    let (inside, is_inside) = mpsc::channel();
    let (leave, leaves) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let c1 = &c1;
        let held = scope.spawn(move || {
            c1.enter(move || {
                inside.send(()).unwrap();
                // An error says that the test is done.
                let _ = leaves.recv();
            });
        });
        is_inside.recv().unwrap();
        c1.delete();
        stays_until(&lab, || {
            drop(leave);
            held.join().unwrap();
        });
    });
}

/// No process is in the namespace. It is mounted, but only the processes of another mount namespace
/// see the mount.
#[test]
fn a_container_that_is_mounted_elsewhere_keeps_its_network() {
    require!("root");
    let lab = lab("held-mount");
    let c1 = lab.container("c1");
    call_in(&lab, &["add", "blue", "c1"]).succeeded();
    let hold = "mkdir -p /run/view && mount -t tmpfs view /run/view && touch /run/view/n && \
                mount --bind /run/netns/c1 /run/view/n && echo held && exec sleep 1000";
    let mut command = lab.command("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", hold]);
    let mut holder = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "held\n");
    drop(c1);
    stays_until(&lab, || {
        holder.kill().unwrap();
        holder.wait().unwrap();
    });
}
