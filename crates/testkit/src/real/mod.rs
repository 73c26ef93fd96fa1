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

mod cgroup;
mod oci;
mod podman;
mod rootfs;

pub use oci::Bundle;
pub use podman::Podman;
pub use rootfs::{BUSYBOX, root_filesystem};
