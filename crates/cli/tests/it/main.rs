//! What the executable does, seen from outside.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod attach;
mod boot;
mod cluster;
mod cnitool;
mod cnitool_rows;
mod conformance;
mod containerd;
mod counts;
mod debian;
mod dispatch;
mod docker;
mod docs;
mod doctor;
mod foreign_forward;
mod held;
mod install;
mod interop;
mod linger;
mod lint;
mod living;
mod look_after;
mod manifests;
mod many_addresses;
mod multinet;
mod oci_hook;
mod oci_runtimes;
mod output;
mod ovn;
mod ovs;
mod pages;
mod podman;
mod refused;
mod repair;
mod run;
mod setup;
mod several;
mod skew;
mod support;
mod system;
mod told;
mod trust;
mod two_containers;
mod units;
mod upgrade;
