//! What an attachment needs on this host.

use std::net::IpAddr;
use std::time::Instant;

use cni::{AddResult, code};
use cni_plugin::Call;
use firewall::firewalld::{Firewalld, Source, TIMEOUT};
use firewall::forward::{self, Blocker, Drops, Sender};
use firewall::iptables::isolation::Isolation;
use firewall::policy::{self, IngressPolicy};
use ipnet::IpNet;
use net::IpFamily;
use state::Index;

use super::config::{Backend, Config};
use super::recorded::{AcceptingChain, RecordData};
use crate::shared::drift;
use crate::shared::failure::Failure;

/// Lists the addresses of a result, on all interfaces, as the reference does.
pub(super) fn addresses(result: &AddResult) -> Vec<IpAddr> {
    result.ips.iter().map(|ip| ip.address.addr()).collect()
}

/// Decides what the attachment needs. Reads, changes nothing. `before` is what an earlier ADD
/// recorded for it.
pub(super) fn want(
    call: &Call<'_>,
    config: &Config,
    result: &AddResult,
    before: Option<&RecordData>,
) -> Result<RecordData, Failure> {
    let addresses = addresses(result);
    let mut recorded =
        RecordData { iptables: config.backend == Backend::Iptables, ..RecordData::default() };
    if config.policy != IngressPolicy::Open {
        let (bridge, port) = bridge_and_port(call, config.policy, result)?;
        if recorded.iptables {
            recorded.plan = policy::plan_within_bridge(config.policy, port);
            let families = [true, false].into_iter();
            let used = families.filter(|ipv4| addresses.iter().any(|at| at.is_ipv4() == *ipv4));
            let of_family = |ipv4| Isolation::of(config.policy, bridge, ipv4);
            recorded.isolation = used.filter_map(of_family).collect();
        } else {
            recorded.plan = policy::plan(config.policy, bridge, port);
        }
    }
    let sources = || -> Vec<Source> {
        let source = |address: &IpAddr| Source { zone: config.zone.clone(), address: *address };
        addresses.iter().map(source).collect()
    };
    let mut zone_accepts = config.backend == Backend::Firewalld;
    let links = result.interfaces.iter().filter(|link| link.sandbox.is_empty());
    let sender = Sender {
        links: links.map(|link| link.name.as_str()).collect(),
        sources: addresses.iter().map(|address| IpNet::from(*address)).collect(),
    };
    for Drops { blocker, is_certain } in blockers(call, &sender)? {
        match &blocker {
            Blocker::Iptables { family, legacy } if config.backend == Backend::Auto => {
                let ipv4 = *family == IpFamily::V4;
                if addresses.iter().any(|at| at.is_ipv4() == ipv4) {
                    recorded.accepted.push(AcceptingChain { ipv4, legacy: *legacy });
                    // Old firewalld versions keep their rules in iptables, and remove ours when
                    // they reload.
                    zone_accepts = zone_accepts || is_running(call)?;
                }
            }
            // FORWARD jumps to the reference's chains.
            Blocker::Iptables { .. } if config.backend == Backend::Iptables => {}
            Blocker::Firewalld if config.backend == Backend::Firewalld => {}
            Blocker::Firewalld if config.backend == Backend::Auto && is_running(call)? => {
                zone_accepts = true;
            }
            Blocker::Firewalld if before.is_some_and(|before| !before.sources.is_empty()) => {
                let text = format!(
                    "{blocker}, and it is not running: nothing says whether it lets the container through"
                );
                return Err(drift(text).with_details("start firewalld, or remove its rules"));
            }
            // Whoever asks for the differences as data (doctor) judges the rules of others too.
            other if is_certain && !call.common().look => call.warn(format_args!(
                "{other}: the container may not reach beyond the host; {}",
                hint(other)
            )),
            _ => {}
        }
    }
    if zone_accepts {
        recorded.sources = sources();
    }
    recorded.addresses = addresses;
    Ok(recorded)
}

/// Returns firewalld, by the bus that the caller named.
pub(super) fn firewalld(call: &Call<'_>) -> Firewalld {
    let timeout = match call.context().deadline {
        Some(deadline) => TIMEOUT.min(deadline.saturating_duration_since(Instant::now())),
        None => TIMEOUT,
    };
    Firewalld::new(call.roots().system_bus.as_deref(), timeout)
}

fn is_running(call: &Call<'_>) -> Result<bool, Failure> {
    Ok(firewalld(call).is_running()?)
}

/// Returns what the administrator can do about rules that this configuration does not open.
pub(super) fn hint(blocker: &Blocker) -> &'static str {
    match blocker {
        Blocker::Firewalld => forward::ZONE_BY_HAND,
        other => other.hint().unwrap_or("leave backend out, and they are opened for the container"),
    }
}

/// Finds the bridge and the container's port on it in the previous plugin's result.
fn bridge_and_port<'r>(
    call: &Call<'_>,
    policy: IngressPolicy,
    result: &'r AddResult,
) -> Result<(&'r str, &'r str), Failure> {
    let name = match policy {
        IngressPolicy::Open => "open",
        IngressPolicy::SameBridge => "same-bridge",
        IngressPolicy::Isolated => "isolated",
    };
    let missing = || {
        Failure::new(
            code::INVALID_CONFIG,
            format!(
                "interface needs to be set for ingress policy {name:?}, make sure to chain \"firewall\" plugin \
                 with \"bridge\""
            ),
        )
    };
    let mut host = result.interfaces.iter().filter(|link| link.sandbox.is_empty());
    let bridge = host.next().ok_or_else(missing)?;
    match host.next() {
        Some(port) => Ok((&bridge.name, &port.name)),
        None if policy == IngressPolicy::SameBridge => Ok((&bridge.name, "")),
        None => Err(missing().with_details(format!(
            "prevResult of {} lists no port of bridge {:?}",
            call.ifname(),
            bridge.name
        ))),
    }
}

/// Lists what drops forwarded packets of a container.
pub(super) fn blockers(call: &Call<'_>, sender: &Sender<'_>) -> Result<Vec<Drops>, Failure> {
    Ok(forward::blockers(&Index::new(call.roots()), sender)?)
}
