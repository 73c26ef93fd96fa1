//! The daemon with real DHCP servers; the plugin calls it as runtimes would.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "skips are announced on stderr")]

mod agent;
mod chart;
mod configuration;
mod dhcp;
mod forged;
mod ipam;
mod managers;
mod multinet;
mod output;
mod policies;
mod policy;
mod repair;
mod rig;
mod routing;
mod security;

/// The support code of the plugins' tests, from their folder.
#[allow(unused_macros, unused_imports, reason = "tests of other plugins use the rest")]
#[path = "../../../plugins/tests/it"]
mod plugins_tests {
    pub(crate) mod support;
}

use plugins_tests::support;
