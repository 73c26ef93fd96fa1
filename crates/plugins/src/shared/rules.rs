//! An attachment's part of the packet filter, for the plugins whose containers the host routes:
//! `bridge` and `ptp`. A [`Plan`] says what it needs; if the configuration asks for iptables, these
//! are the reference's rules.

use std::net::IpAddr;
use std::str::FromStr;

use cni::{AttachmentKey, code};
use cni_plugin::Call;
use firewall::masquerade::Sources;
use firewall::{Concern, Plan, iptables, masquerade};
use ipam::host::no_host;
use ipnet::IpNet;
use kernel::route::{RouteKind, RouteSocket};
use state::Index;
use wanted::{Item, Reason, State};

use super::failure::Failure;
use super::failures::Failures;
use super::filter::{self, SparedAttachments, remove_own, with_firewall};
use crate::engine::{Comparison, Mismatch};

/// The concerns of these plugins.
const CONCERNS: &[Concern] = &[Concern::Masquerade, Concern::Spoof, Concern::Routers];

/// The backend that masquerading was configured with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MasqueradeBackend {
    /// nftables, by our choice or by the configuration.
    Nftables(Sources),
    /// iptables, by the configuration.
    Iptables(Sources),
}

/// The keys `outboundAddr4` and `outboundAddr6` as written.
#[derive(Debug, Default)]
pub struct RawSources<'a> {
    /// The source address of packets of IPv4 to the outside.
    pub v4: &'a str,
    /// The same of IPv6.
    pub v6: &'a str,
}

impl RawSources<'_> {
    fn parse(&self) -> Result<Sources, Failure> {
        Ok(Sources { v4: source("outboundAddr4", self.v4)?, v6: source("outboundAddr6", self.v6)? })
    }
}

fn source<A>(key: &str, text: &str) -> Result<Option<A>, Failure>
where
    A: FromStr + Copy,
    IpAddr: From<A>,
{
    if text.is_empty() {
        return Ok(None);
    }
    let usable = |address: &A| no_host(IpNet::from(IpAddr::from(*address))).is_none();
    text.parse::<A>().ok().filter(usable).map(Some).ok_or_else(|| {
        let family = if key.ends_with('4') { "IPv4" } else { "IPv6" };
        Failure::new(code::INVALID_CONFIG, format!("invalid {key} {text:?}"))
            .with_details(format!("it is an {family} address of this host"))
    })
}

/// Warns of source addresses that the host does not have: no answers come back to them, unless the
/// host is asked for them all the same.
pub fn warn_of_sources(
    call: &Call<'_>,
    host: &mut RouteSocket,
    backend: Option<MasqueradeBackend>,
) {
    let Some(MasqueradeBackend::Nftables(sources) | MasqueradeBackend::Iptables(sources)) = backend
    else {
        return;
    };
    let addresses = sources.v4.map(IpAddr::V4).into_iter().chain(sources.v6.map(IpAddr::V6));
    for address in addresses {
        let route = host.route_to(address);
        if !route.ok().flatten().is_some_and(|route| route.kind == RouteKind::Local) {
            call.warn(format_args!(
                "containers take the source address {address}, which this host does not have: \
                 answers may not come back"
            ));
        }
    }
}

impl MasqueradeBackend {
    /// Reads the keys `ipMasq` and `ipMasqBackend`, of which the second counts only with the first, and
    /// the source addresses, which need the first.
    ///
    /// # Errors
    /// Code 7 for a backend that does not exist, and for an address that cannot be a source.
    pub fn parse(
        wanted: bool,
        name: Option<&str>,
        sources: &RawSources<'_>,
    ) -> Result<Option<Self>, Failure> {
        let sources = sources.parse()?;
        match name {
            _ if !wanted && !sources.is_empty() => Err(Failure::new(
                code::INVALID_CONFIG,
                "outboundAddr4 and outboundAddr6 need ipMasq",
            )
            .with_details("without it packets keep the container's address")),
            _ if !wanted => Ok(None),
            None | Some("" | "nftables") => Ok(Some(MasqueradeBackend::Nftables(sources))),
            Some("iptables") => Ok(Some(MasqueradeBackend::Iptables(sources))),
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
    if let Some(MasqueradeBackend::Nftables(sources)) = backend {
        for ip in ips {
            plan.join(masquerade::plan_from(network, host_ifname, *ip, sources));
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
    if let Some(MasqueradeBackend::Iptables(sources)) = backend {
        iptables::masquerade::add(key, ips, sources)?;
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
    because: Reason,
) -> Option<Item> {
    let (iptables, sources) = match backend {
        Some(MasqueradeBackend::Iptables(sources)) => (true, sources),
        _ => (false, Sources::default()),
    };
    (iptables || !plan.is_empty())
        .then(|| Item::host(State::Filter { plan, iptables, addresses, sources }, because))
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
pub fn collect(
    call: &Call<'_>,
    index: &Index,
    spared: &SparedAttachments<'_>,
) -> Result<(), Failure> {
    let mut failures = Failures::new();
    failures.note("nftables", filter::collect(call, index, CONCERNS, spared));
    let left = firewall::reference::gc_bridge(call.network().as_str(), &spared.keys());
    failures.note("rules of the reference plugin", left);
    failures.into_result()
}

/// Lists the differences between the packet filter and what ADD put there, one clause each. Those of
/// our tables no other plugins make; the rules of iptables are those of the reference plugins.
///
/// # Errors
/// Code 101 when the packet filter cannot be read.
pub(crate) fn differences(
    index: &Index,
    key: &AttachmentKey,
    backend: Option<MasqueradeBackend>,
    wanted: &Plan,
    ips: &[IpNet],
) -> Comparison {
    let mut found = Vec::new();
    if !wanted.is_empty() {
        let own = with_firewall(index, |firewall| firewall.check(key, wanted))?;
        found.extend(own.into_iter().map(|text| Mismatch::of_filter(&text).of_ours()));
    }
    if let Some(MasqueradeBackend::Iptables(sources)) = backend {
        let checked = iptables::masquerade::check(key, ips, sources);
        found.extend(checked?.iter().map(|text| Mismatch::of_filter(text)));
    }
    Ok(found)
}
