//! What tests need that no crate of ours ships: a private host, a view of its whole state, real
//! traffic and real programs.
//!
//! * [`Lab`]: a private "host" (mount and network namespace of its own) that is removed when the
//!   guard is dropped or the test process dies.
//! * [`Snapshot`]: the whole state of a node's networking, before and after, compared.
//! * [`Glance`]: nearly as much in a millisecond, for tests that compare thousands of times.
//! * [`fault`]: a program killed, or failed, at any system call.
//! * [`MemoryLimit`]: a limit on a process's memory.
//! * [`ModuleRequests`]: which modules the kernel looked for.
//! * [`Tally`]: what was tried and found, for the table at a run's end.
//! * [`traffic`]: ping, TCP and UDP from inside a namespace.
//! * [`probe`]: packets made by hand, and who hears them.
//! * [`page`]: a page of documentation, read for its commands.
//! * [`mod@reference`]: the Go plugins of two releases.
//! * [`drift`]: ways in which other programs change what ADD made.
//! * [`driver`]: a Docker network driver, in a lab.
//! * [`kube`]: a small Kubernetes API server.
//! * [`real`]: runtimes from Debian's packages, in a lab.
//! * [`router`]: a router that announces itself.
//! * [`share`]: which part of all cases a run with `--full` tries.
//! * [`require!`]: skips a test that cannot run here, visibly.
//!
//! This crate is a dev-dependency only. It does not use any other crate of ours: it queries the
//! kernel through Debian's programs (`ip`, `nft`, …), so that the code under test did not read what
//! it compares. Since it is for tests, it panics where a library would return an error, with the
//! object and the cause in the message.
//!
//! ```no_run
//! use testkit::{Lab, Place, Snapshot, traffic};
//!
//! let lab = Lab::new("example");
//! let before = Snapshot::take(&lab);
//! let c1 = lab.container("c1");
//! lab.sh("ip link add veth1 type veth peer name eth0 netns c1");
//! lab.sh("ip addr add 192.0.2.1/24 dev veth1; ip link set veth1 up");
//! c1.sh("ip addr add 192.0.2.2/24 dev eth0; ip link set eth0 up");
//! traffic::assert_pings(&c1, "192.0.2.1");
//! drop(c1); // the namespace goes, the veth pair with it
//! before.assert_same(&Snapshot::take(&lab));
//! ```

#![expect(clippy::disallowed_methods, reason = "running programs is what this crate is for")]
#![expect(clippy::print_stderr, reason = "skips are announced on stderr")]

pub mod cel;
mod chance;
pub mod chart;
mod detection;
pub mod drift;
pub mod driver;
pub mod fault;
pub mod feature;
mod frozen;
mod glance;
pub mod kube;
mod lab;
mod memory;
mod modules;
pub mod page;
mod place;
pub mod probe;
pub mod real;
pub mod reference;
pub mod router;
mod service;
pub mod share;
mod snapshot;
mod tally;
pub mod traffic;
pub mod watcher;

pub use chance::Chance;
pub use detection::wait_for_detection;
pub use frozen::FrozenCgroup;
pub use glance::{Eye, Glance};
pub use lab::{Container, Lab, Visit};
pub use memory::MemoryLimit;
pub use modules::ModuleRequests;
pub use place::{Place, RunningProgram, without_linkdown};
pub use service::{Service, TIMEOUT, wait_for, wait_until, wait_until_or_tell};
pub use snapshot::{Snapshot, sysctls};
pub use tally::Tally;
