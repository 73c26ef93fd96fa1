//! The bridge's part of the packet filter: masquerading and spoof checks.

use cni::{AddResult, AttachmentKey, Error, IfName};
use cni_plugin::Call;
use firewall::{Concern, Firewall, Plan, iptables, masquerade, spoof};
use ipnet::IpNet;
use kernel::MacAddr;
use state::Index;

use super::config::{Config, MasqueradeBackend};
use super::connect::Facts;
use crate::shared::failures::Failures;
use crate::shared::filter::{drift, filter_error, iptables_error};

/// What this plugin looks after.
const CONCERNS: &[Concern] = &[Concern::Masquerade, Concern::Spoof];

/// Returns the interface by which a container's packets enter the host's routing.
fn routing_ifname(config: &Config) -> IfName {
    match config.vlans.access {
        Some(vlan) => super::config::gateway_name(&config.bridge, vlan)
            .unwrap_or_else(|_| config.bridge.clone()),
        None => config.bridge.clone(),
    }
}

/// Decides what an attachment wants of the packet filter.
pub(super) fn plan(
    network: &str,
    config: &Config,
    ips: &[IpNet],
    mac: MacAddr,
    host_ifname: &str,
) -> Plan {
    let mut plan = Plan::default();
    if config.masquerade == Some(MasqueradeBackend::Nftables) {
        let ifname = routing_ifname(config);
        for ip in ips {
            plan.join(masquerade::plan(network, ifname.as_str(), *ip));
        }
    }
    if config.check_spoofing {
        plan.join(spoof::plan(host_ifname, &[mac.0]));
    }
    plan
}

/// Puts the plan in place, in one transaction; and the reference's rules where the configuration asks for
/// iptables.
pub(super) fn add(
    index: &Index,
    key: &AttachmentKey,
    config: &Config,
    plan: &Plan,
    ips: &[IpNet],
) -> Result<(), Error> {
    if !plan.is_empty() {
        Firewall::open(index)
            .and_then(|mut firewall| firewall.add(key, plan))
            .map_err(|error| filter_error(&error))?;
    }
    if config.masquerade == Some(MasqueradeBackend::Iptables) {
        iptables::masquerade::add(key, ips).map_err(|error| iptables_error(&error))?;
    }
    Ok(())
}

/// Removes what this plugin, or the reference's in its place, put into the packet filter.
pub(super) fn remove(
    index: &Index,
    key: &AttachmentKey,
    facts: Option<&Facts>,
) -> Result<(), Error> {
    let mut failures = Failures::new();
    let removed = match facts {
        Some(facts) if facts.filter.is_empty() => Ok(()),
        Some(facts) => {
            Firewall::open(index).and_then(|mut firewall| firewall.remove(key, &facts.filter))
        }
        // Without a record: by the marks on the elements.
        None => {
            Firewall::open(index).and_then(|mut firewall| firewall.remove_unrecorded(key, CONCERNS))
        }
    };
    failures.note("nftables", removed.map_err(|error| filter_error(&error)));
    let addresses = facts.map(|facts| facts.ips.as_slice()).unwrap_or_default();
    let left = firewall::reference::remove_bridge(key, addresses);
    failures.note("rules of the reference plugin", left.map_err(|error| filter_error(&error)));
    failures.into_result()
}

/// Removes the elements of attachments of this network that are not valid.
pub(super) fn collect(call: &Call<'_>, index: &Index) -> Result<(), Error> {
    let valid = crate::shared::filter::valid_keys(call);
    let network = call.network().as_str();
    let mut failures = Failures::new();
    let collected = Firewall::open(index)
        .and_then(|mut firewall| firewall.gc(network, &valid, CONCERNS))
        .map(drop);
    failures.note("nftables", collected.map_err(|error| filter_error(&error)));
    let left = firewall::reference::gc_bridge(network, &valid);
    failures.note("rules of the reference plugin", left.map_err(|error| filter_error(&error)));
    failures.into_result()
}

/// Compares the packet filter with what ADD put there.
pub(super) fn check(
    call: &Call<'_>,
    config: &Config,
    result: &AddResult,
    mac: Option<MacAddr>,
    port: &str,
) -> Result<(), Error> {
    let key = call.attachment();
    let index = Index::new(call.roots());
    let ips: Vec<IpNet> =
        result.container_ips(call.ifname().as_str()).map(|ip| ip.address).collect();
    let wanted = match (Facts::read(&index, key), mac) {
        (Some(facts), _) => facts.filter,
        (None, Some(mac)) => plan(call.network().as_str(), config, &ips, mac, port),
        (None, None) => Plan::default(),
    };
    if !wanted.is_empty() {
        let differences = Firewall::open(&index)
            .and_then(|mut firewall| firewall.check(key, &wanted))
            .map_err(|error| filter_error(&error))?;
        drift(&differences)?;
    }
    if config.masquerade == Some(MasqueradeBackend::Iptables) {
        let differences =
            iptables::masquerade::check(key, &ips).map_err(|error| iptables_error(&error))?;
        drift(&differences)?;
    }
    Ok(())
}
