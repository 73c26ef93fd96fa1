//! Plans in the kernel of the test's own host, with real traffic.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "skips are announced on stderr")]

mod cluster;
mod engine;
mod hostport;
mod localnet;
mod masquerade;
mod outside;
mod pod_link;
mod pods;
mod support;

// The shared generator of clusters is a part of that crate's tests, which call it so.
extern crate policy as netwright_policy;
