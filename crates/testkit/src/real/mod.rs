//! Runtimes from Debian's packages, run in a [`Lab`](crate::Lab).
//!
//! What they need beside their program is made here, without a registry: a root file system from the static busybox
//! ([`root_filesystem`]). Their storage, locks and state are the lab's and go with it, also when the test is killed.
//! Control groups are the only thing a lab does not hide: who makes some removes them, and those of tests that died.
//!
//! ```no_run
//! use testkit::{Lab, real::Podman};
//!
//! let lab = Lab::with_processes("example");
//! let podman = Podman::new(&lab, "/opt/cni/bin");
//! podman.run(&["network", "create", "n1"]);
//! podman.run(&["run", "--rm", "--network", "n1", Podman::IMAGE, "ip", "addr"]);
//! ```

use std::process::Output;

pub(crate) mod cgroup;
mod containerd;
mod docker;
mod etcd;
mod image;
mod manifest;
mod oci;
mod ovs;
mod podman;
mod proto;
mod root;
mod rootfs;

pub use containerd::{Containerd, Pod};
pub use docker::{Docker, Engine};
pub use etcd::Etcd;
pub use manifest::Manifest;
pub use oci::Bundle;
pub use ovs::{Ovs, Pki};
pub use podman::Podman;
pub use rootfs::{BUSYBOX, root_filesystem};

/// Returns what a program wrote that must have succeeded.
///
/// # Panics
/// When it failed, with what it wrote to standard error and the `log` of whom it spoke to.
#[track_caller]
fn succeeded(
    program: &str,
    arguments: &[&str],
    output: &Output,
    log: impl FnOnce() -> String,
) -> String {
    assert!(
        output.status.success(),
        "{program} {} failed ({}): {}\n{}",
        arguments.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr),
        log(),
    );
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// Tells a runtime's own words: `cargo xtask ci` finds them in what tests print, and shows them at its end.
///
/// `what` is `version`, `running` or `answered`: a run in which a runtime did not tell each of them is not complete.
pub fn tell(runtime: &str, what: &str, words: &str) {
    for line in words.lines().filter(|line| !line.trim().is_empty()) {
        eprintln!("RUNTIME {runtime} | {what} | {}", line.trim());
    }
}
