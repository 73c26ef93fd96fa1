//! The daemon against real DHCP servers, asked by the plugin as runtimes call it.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "skips are announced on stderr")]

mod dhcp;
mod forged;
mod ipam;
mod multinet;
mod output;
mod repair;
mod rig;
mod security;

/// What tests of plugins have, from there.
#[allow(unused_macros, unused_imports, reason = "tests of other plugins use the rest")]
#[path = "../../../plugins/tests/it"]
mod plugins_tests {
    pub(crate) mod support;
}

use plugins_tests::support;
