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
pub mod flannel;
pub mod inquiry;
pub mod interface;
pub mod ipam;
pub mod judge;
pub mod marks;
pub mod multi;
pub mod netwright_multi;
pub mod own_folder;
pub mod recorded;
pub mod shared;

use std::io::Cursor;
use std::time::Instant;

use cni::nearest::nearest;
use cni_invoke::{Builtin, Executor, Output, Request};
use cni_plugin::{Context, Info, Plugin, respond};

use crate::engine::Life;
use crate::interface::single::LinkPlugin;

/// Lists every plugin, sorted by name. What a plugin is stands in its [`Plugin::info`]: no other
/// list of plugins is needed.
#[must_use]
pub fn all() -> &'static [&'static dyn Plugin] {
    static ALL: &[&dyn Plugin] = &[
        &Life(chained::bandwidth::Bandwidth),
        &Life(interface::bridge::Bridge),
        &chain::Chain,
        &ipam::cluster_ipam::ClusterIpam,
        &Life(interface::cnm::Cnm),
        &ipam::dhcp::Dhcp,
        &Life(LinkPlugin(interface::dummy::Dummy)),
        &Life(chained::firewall::FirewallPlugin),
        &flannel::Flannel,
        &Life(LinkPlugin(interface::host_device::HostDevice)),
        &ipam::host_local::HostLocal,
        &Life(LinkPlugin(interface::ipvlan::Ipvlan)),
        &interface::loopback::Loopback,
        &Life(LinkPlugin(interface::macvlan::Macvlan)),
        &multi::Multi,
        &netwright_multi::NetwrightMulti,
        &Life(interface::ovs::Ovs),
        &Life(interface::ovs::MirrorConsumer),
        &Life(interface::ovs::MirrorProducer),
        &Life(chained::policy::Policy),
        &Life(chained::portmap::Portmap),
        &Life(interface::ptp::Ptp),
        &Life(chained::sbr::Sbr),
        &ipam::static_ipam::Static,
        &Life(LinkPlugin(interface::tap::Tap)),
        &Life(chained::tuning::Tuning),
        &Life(LinkPlugin(interface::vlan::Vlan)),
        &Life(chained::vrf::Vrf),
    ];
    ALL
}

/// Lists the names that other projects' plugins have for ours, each with our plugin.
pub fn aliases() -> impl Iterator<Item = (&'static str, &'static dyn Plugin)> {
    let named = |plugin: &&'static dyn Plugin| {
        let plugin = *plugin;
        plugin.info().aliases.iter().map(move |alias| (*alias, plugin))
    };
    all().iter().flat_map(named)
}

/// Finds a plugin by its own type, or by the type of the other project's plugin it stands in for.
#[must_use]
pub fn find(name: &str) -> Option<&'static dyn Plugin> {
    all().iter().copied().find(|plugin| plugin.info().answers_to(name))
}

/// Returns the own name of the plugin that somebody may mean who calls it otherwise: a second one,
/// such as `flannel-wg` or `bridge2`, or a slip.
#[must_use]
pub fn meant(name: &str) -> Option<&'static str> {
    let names = || all().iter().map(|plugin| plugin.name());
    let begins = |own: &&str| {
        let rest = name.strip_prefix(own).unwrap_or("x");
        !rest.starts_with(|first: char| first.is_ascii_alphabetic())
    };
    names().filter(begins).max_by_key(|own| own.len()).or_else(|| nearest(name, names()))
}

/// Returns what a plugin is, by its own type or an alias; `None` if it is not ours.
#[must_use]
pub fn info(name: &str) -> Option<&'static Info> {
    find(name).map(Plugin::info)
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

#[cfg(test)]
mod tests {
    use cni_plugin::Role;
    use expect_test::expect;

    use super::*;

    /// The whole table: what changes here changes what runtimes, `lint` and Docker are told.
    #[test]
    fn what_each_plugin_is() {
        let mut told = String::new();
        for plugin in all() {
            let Info {
                name,
                aliases,
                role,
                versions,
                capabilities,
                sole_capability,
                routed,
                inner,
                ..
            } = plugin.info();
            told.push_str(&format!("{name}: {role:?}, from {}", versions[0]));
            let mut tell = |what: &str, has: bool, value: &dyn std::fmt::Debug| {
                if has {
                    told.push_str(&format!(", {what} {value:?}"));
                }
            };
            tell("aliases", !aliases.is_empty(), aliases);
            tell("reads", !capabilities.is_empty(), capabilities);
            tell("only for", sole_capability.is_some(), &sole_capability.unwrap_or_default());
            tell("routed", *routed != cni_plugin::HostRouting::Never, routed);
            tell("inner", inner.is_some(), inner);
            tell("alone", plugin.info().succeeds_alone, &true);
            tell("over the link", plugin.info().over_the_link, &true);
            tell("any requested", plugin.info().gives_any_requested, &true);
            told.push('\n');
        }
        expect![[r#"
            bandwidth: Chained, from 0.3.0, reads ["bandwidth"], alone true
            bridge: Interface, from 0.1.0, reads ["mac", "hostIfname"], routed IfSet(["isGateway", "isDefaultGateway"])
            chain: Either, from 0.1.0, inner Some(Plugins("plugins"))
            cluster-ipam: Addresses, from 0.1.0, aliases ["whereabouts"], reads ["ips"]
            cnm: Interface, from 0.1.0, reads ["mac", "ips", "portMappings"]
            dhcp: Addresses, from 0.1.0, over the link true
            dummy: Interface, from 0.1.0, reads ["mac"]
            firewall: Chained, from 0.4.0
            flannel: Interface, from 0.1.0, inner Some(Delegate { key: "delegate", default_type: "bridge" })
            host-device: Interface, from 0.1.0, reads ["deviceID"]
            host-local: Addresses, from 0.1.0, reads ["ips", "ipRanges"], any requested true
            ipvlan: Either, from 0.1.0
            loopback: Either, from 0.1.0
            macvlan: Interface, from 0.1.0, reads ["mac"]
            multi: Interface, from 0.1.0, inner Some(Networks("networks"))
            netwright-multi: Interface, from 0.1.0, aliases ["multus", "multus-shim"], inner Some(Delegates("delegates"))
            ovs: Interface, from 0.1.0, reads ["mac"]
            ovs-mirror-consumer: Chained, from 0.1.0
            ovs-mirror-producer: Chained, from 0.1.0
            policy: Chained, from 0.1.0
            portmap: Chained, from 0.1.0, reads ["portMappings"], only for "portMappings"
            ptp: Interface, from 0.1.0, reads ["hostIfname"], routed Always
            sbr: Chained, from 0.1.0
            static: Addresses, from 0.1.0, reads ["ips"], any requested true
            tap: Interface, from 0.1.0, reads ["mac"]
            tuning: Chained, from 0.1.0, reads ["mac"]
            vlan: Interface, from 0.1.0
            vrf: Chained, from 0.3.1
        "#]]
        .assert_eq(&told);
    }

    /// What the table says of capabilities is what the plugins' parsers read.
    #[test]
    fn a_plugin_reads_the_capabilities_of_its_row() {
        // The keys outside `ipam` are for the plugin that an IPAM plugin is called by to judge.
        for plugin in all().iter().filter(|plugin| plugin.info().role != Role::Addresses) {
            let unknown = plugin.unknown_keys(r#"{"runtimeConfig": {"no such": 1}}"#).unwrap();
            let parsed = unknown.iter().find(|key| key.parent == "runtimeConfig");
            let mut parsed = parsed.map(|key| key.known.to_vec()).unwrap_or_default();
            let mut stated = plugin.info().capabilities.to_vec();
            parsed.sort_unstable();
            stated.sort_unstable();
            assert_eq!(stated, parsed, "{}", plugin.name());
        }
    }

    #[test]
    fn a_name_is_one_plugins_and_the_table_is_sorted() {
        let own: Vec<&str> = all().iter().map(|plugin| plugin.name()).collect();
        assert!(own.is_sorted(), "{own:?}");
        let mut names: Vec<&str> = aliases().map(|(alias, _)| alias).chain(own).collect();
        names.sort_unstable();
        let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
        assert_eq!(twice, None);
        for (alias, plugin) in aliases() {
            assert_eq!(find(alias).map(Plugin::name), Some(plugin.name()));
        }
        assert!(info("theirs").is_none());
    }

    #[test]
    fn a_sole_capability_is_one_that_is_read() {
        for info in all().iter().map(|plugin| plugin.info()) {
            let mut sole = info.sole_capability.iter();
            assert!(sole.all(|capability| info.capabilities.contains(capability)), "{}", info.name);
        }
    }
}
