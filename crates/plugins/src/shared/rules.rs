//! An attachment's part of the packet filter, for the plugins whose containers the host routes:
//! `bridge` and `ptp`. A [`Plan`] says what it needs; if the configuration asks for iptables, these
//! are the reference's rules.

use cni::{AttachmentKey, code};
use cni_plugin::Call;
use firewall::{Concern, Plan, iptables, masquerade};
use ipnet::IpNet;
use state::Index;
use wanted::{Because, Item, State};

use super::failure::Failure;
use super::failures::Failures;
use super::filter::{self, Spared, remove_own, with_firewall};

/// The concerns of these plugins.
const CONCERNS: &[Concern] = &[Concern::Masquerade, Concern::Spoof];

/// The backend that masquerading was configured with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MasqueradeBackend {
    /// nftables, by our choice or by the configuration.
    Nftables,
    /// iptables, by the configuration.
    Iptables,
}

impl MasqueradeBackend {
    /// Reads the keys `ipMasq` and `ipMasqBackend`; the second counts only with the first.
    ///
    /// # Errors
    /// Code 7 for a backend that does not exist.
    pub fn parse(wanted: bool, name: Option<&str>) -> Result<Option<Self>, Failure> {
        match name {
            _ if !wanted => Ok(None),
            None | Some("" | "nftables") => Ok(Some(MasqueradeBackend::Nftables)),
            Some("iptables") => Ok(Some(MasqueradeBackend::Iptables)),
            Some(other) => {
                Err(Failure::new(code::INVALID_CONFIG, format!("unknown ipmasq backend {other:?}"))
                    .with_details("ipMasqBackend is \"nftables\" or \"iptables\""))
            }
        }
    }
}

/// Decides which entries of our tables masquerading needs, for packets that enter the host's
/// routing by `host_ifname`.
#[must_use]
pub fn masquerade(
    backend: Option<MasqueradeBackend>,
    network: &str,
    host_ifname: &str,
    ips: &[IpNet],
) -> Plan {
    let mut plan = Plan::default();
    if backend == Some(MasqueradeBackend::Nftables) {
        for ip in ips {
            plan.join(masquerade::plan(network, host_ifname, *ip));
        }
    }
    plan
}

/// Applies the plan in one transaction, and the reference's rules if the configuration asks for
/// iptables.
///
/// # Errors
/// Code 101, 11 when the lock cannot be taken in time.
pub fn add(
    index: &Index,
    key: &AttachmentKey,
    backend: Option<MasqueradeBackend>,
    plan: &Plan,
    ips: &[IpNet],
) -> Result<(), Failure> {
    if !plan.is_empty() {
        with_firewall(index, |firewall| firewall.add(key, plan))?;
    }
    if backend == Some(MasqueradeBackend::Iptables) {
        iptables::masquerade::add(key, ips)?;
    }
    Ok(())
}

/// Does what [`add`] does, for a repair: another program may have put its rules in place of ours.
///
/// # Errors
/// As [`add`].
pub fn restore(
    index: &Index,
    key: &AttachmentKey,
    backend: Option<MasqueradeBackend>,
    plan: &Plan,
    ips: &[IpNet],
) -> Result<(), Failure> {
    if !plan.is_empty() {
        with_firewall(index, |firewall| firewall.mend(plan))?;
    }
    add(index, key, backend, plan, ips)
}

/// Describes an attachment's part of the packet filter as an item, if it needs any.
#[must_use]
pub fn wanted(
    backend: Option<MasqueradeBackend>,
    plan: Plan,
    addresses: Vec<IpNet>,
    because: Because,
) -> Option<Item> {
    let iptables = backend == Some(MasqueradeBackend::Iptables);
    (iptables || !plan.is_empty())
        .then(|| Item::host(State::Filter { plan, iptables, addresses }, because))
}

/// Removes what the plugin, or the reference's in its place, put into the packet filter; `recorded`
/// is the recorded plan and addresses.
///
/// # Errors
/// As [`add`]; everything else goes on.
pub fn remove(
    call: &Call<'_>,
    index: &Index,
    key: &AttachmentKey,
    recorded: Option<(&Plan, &[IpNet])>,
) -> Result<(), Failure> {
    let mut failures = Failures::new();
    let plan = recorded.map(|(plan, _)| plan);
    failures.note("nftables", remove_own(index, key, plan, CONCERNS));
    let addresses = recorded.map(|(_, ips)| ips).unwrap_or_default();
    if !call.is_renewed() {
        let left = firewall::reference::remove_bridge(key, addresses);
        failures.note("rules of the reference plugin", left);
    }
    failures.into_result()
}

/// Removes the elements of attachments of this network that are not spared.
///
/// # Errors
/// As [`remove`].
pub fn collect(call: &Call<'_>, index: &Index, spared: &Spared<'_>) -> Result<(), Failure> {
    let mut failures = Failures::new();
    failures.note("nftables", filter::collect(call, index, CONCERNS, spared));
    let left = firewall::reference::gc_bridge(call.network().as_str(), &spared.keys());
    failures.note("rules of the reference plugin", left);
    failures.into_result()
}

/// Lists the differences between the packet filter and what ADD put there, one clause each.
///
/// # Errors
/// Code 101 when the packet filter cannot be read.
pub fn differences(
    index: &Index,
    key: &AttachmentKey,
    backend: Option<MasqueradeBackend>,
    wanted: &Plan,
    ips: &[IpNet],
) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    if !wanted.is_empty() {
        found.extend(with_firewall(index, |firewall| firewall.check(key, wanted))?);
    }
    if backend == Some(MasqueradeBackend::Iptables) {
        let checked = iptables::masquerade::check(key, ips);
        found.extend(checked?);
    }
    Ok(found.into_iter().map(|text| format!("packet filter: {text}")).collect())
}
