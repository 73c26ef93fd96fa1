//! Every Netwright plugin: one module for each, and one table that lists them all.
//!
//! A plugin parses its configuration into types that cannot be wrong, observes what it must know,
//! plans changes as data, applies them with their undo recorded, and reports. [`shared`] holds what
//! several plugins use: the container's side of an interface, undo, naming.
//!
//! Nothing here prints, exits, or reads the environment or the clock: [`cni_plugin::Call`] carries
//! all of that.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod chain;
pub mod chained;
mod engine;
pub mod interface;
pub mod ipam;
pub mod judge;
pub mod multi;
pub mod netwright_multi;
pub mod shared;

use std::io::Cursor;
use std::time::Instant;

use cni_invoke::{Builtin, Executor, Output, Request};
use cni_plugin::{Context, Plugin, respond};

/// Lists every plugin, sorted by name.
#[must_use]
pub fn all() -> &'static [&'static dyn Plugin] {
    static ALL: &[&dyn Plugin] = &[
        &chained::bandwidth::Bandwidth,
        &interface::bridge::Bridge,
        &chain::Chain,
        &ipam::cluster_ipam::ClusterIpam,
        &interface::cnm::Cnm,
        &ipam::dhcp::Dhcp,
        &interface::single::Single(interface::dummy::Dummy),
        &chained::firewall::FirewallPlugin,
        &interface::single::Single(interface::host_device::HostDevice),
        &ipam::host_local::HostLocal,
        &interface::single::Single(interface::ipvlan::Ipvlan),
        &interface::loopback::Loopback,
        &interface::single::Single(interface::macvlan::Macvlan),
        &multi::Multi,
        &netwright_multi::NetwrightMulti,
        &interface::ovs::Ovs,
        &interface::ovs::MirrorConsumer,
        &interface::ovs::MirrorProducer,
        &chained::portmap::Portmap,
        &interface::ptp::Ptp,
        &chained::sbr::Sbr,
        &ipam::static_ipam::Static,
        &interface::single::Single(interface::tap::Tap),
        &chained::tuning::Tuning::new(),
        &interface::single::Single(interface::vlan::Vlan),
        &chained::vrf::Vrf,
    ];
    ALL
}

/// Lists the names that other projects' plugins have for ours, each with our plugin.
pub fn aliases() -> impl Iterator<Item = (&'static str, &'static dyn Plugin)> {
    let multi = netwright_multi::ALIASES
        .map(|name| (name, &netwright_multi::NetwrightMulti as &dyn Plugin));
    let cluster = ipam::cluster_ipam::ALIASES
        .map(|name| (name, &ipam::cluster_ipam::ClusterIpam as &dyn Plugin));
    multi.into_iter().chain(cluster)
}

/// Finds a plugin by its own type, or by the type of the other project's plugin it stands in for.
#[must_use]
pub fn find(name: &str) -> Option<&'static dyn Plugin> {
    if let Some((_, plugin)) = aliases().find(|(alias, _)| *alias == name) {
        return Some(plugin);
    }
    all().iter().copied().find(|plugin| plugin.name() == name)
}

/// The plugins of this executable, to be called within the process.
#[derive(Debug, Clone)]
pub struct Builtins {
    /// The folders that hold state.
    pub roots: state::Roots,
    /// The version printed when a plugin is asked what it is.
    pub build: &'static str,
}

impl Builtin for Builtins {
    fn call(
        &self,
        name: &str,
        request: &Request,
        executor: &dyn Executor,
        deadline: Option<Instant>,
    ) -> Option<Output> {
        let plugin = find(name)?;
        let context = Context { roots: &self.roots, executor, deadline, build: self.build };
        Some(respond(plugin, &request.env, &mut Cursor::new(&request.stdin), &context))
    }
}
