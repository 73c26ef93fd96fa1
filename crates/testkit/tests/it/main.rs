//! The test kit keeps its promises: what it makes is private, what it observes is complete, and it
//! leaves nothing.

#![expect(clippy::disallowed_methods, reason = "a test runs itself as a process that is killed")]

mod kube;
mod lab;
mod modules;
mod real;
mod snapshot;
mod traffic;
