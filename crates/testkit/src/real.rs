//! Runtimes from Debian's packages, run in a [`Lab`](crate::Lab).
//!
//! What they need beside their program is made here, without a registry: a root file system from
//! the static busybox ([`root_filesystem`]). Their storage, locks and state are the lab's and are
//! removed with it, also when the test is killed. Only control groups are not hidden by a lab: the
//! code that creates some removes them, and those of dead tests.
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
mod debian;
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
pub use debian::{Debian, REMOVE_OURS};
pub use docker::{Docker, Engine};
pub use etcd::Etcd;
pub use manifest::{Manifest, manifest_file, manifests};
pub use oci::Bundle;
pub use ovs::{Ovs, Pki};
pub use podman::Podman;
pub use rootfs::{BUSYBOX, root_filesystem};

/// Returns the output of a program that must have succeeded.
///
/// # Panics
/// When it failed, with its standard error and the `log` of the program it talked to.
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

/// Prints a runtime's own words: `cargo xtask ci` finds them in the output of tests, and shows them
/// at its end.
///
/// `what` is `version`, `running` or `answered`: a run in which a runtime did not report each of
/// them is incomplete.
pub fn tell(runtime: &str, what: &str, words: &str) {
    for line in words.lines().filter(|line| !line.trim().is_empty()) {
        eprintln!("RUNTIME {runtime} | {what} | {}", line.trim());
    }
}
