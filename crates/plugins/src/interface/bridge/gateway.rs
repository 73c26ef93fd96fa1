//! The gateways' addresses on the link that carries them.

use std::net::IpAddr;

use cni::{IfName, code};
use cni_plugin::{Call, codes};
use ipnet::IpNet;
use kernel::route::{AddressOptions, Change, Link, RouteSocket};
use wanted::{Gateways, Place};

use super::bridge_link;
use super::config::Config;
use crate::engine::{Comparison, Picture, differs, sound};
use crate::ipam::host_local;
use crate::shared::container;
use crate::shared::failure::Failure;
use crate::shared::readiness;

pub(super) fn present(host: &mut RouteSocket, ifindex: u32) -> Result<Vec<IpNet>, Failure> {
    let addresses = host.addresses(Some(ifindex))?;
    Ok(addresses.into_iter().map(|address| address.address).collect())
}

/// Adds the missing ones, and records them in `made`.
///
/// # Errors
/// Code 108 for a conflicting address; code 100 with the kernel's words.
pub(super) fn add(
    host: &mut RouteSocket,
    link: &Link,
    gateways: &[IpNet],
    others: ConflictPolicy,
    made: &mut Vec<IpNet>,
) -> Result<(), Failure> {
    if gateways.is_empty() {
        return Ok(());
    }
    let present = present(host, link.index)?;
    let plan = plan(&link.name, &present, gateways, others)?;
    let options = |address| AddressOptions {
        nodad: true,
        broadcast: container::broadcast_of(address),
        ..AddressOptions::default()
    };
    remove(host, link.index, &plan.remove)?;
    let changes: Vec<Change> = plan
        .add
        .iter()
        .map(|address| Change::AddAddress {
            ifindex: link.index,
            address: *address,
            options: options(*address),
        })
        .collect();
    if let Err(error) = host.apply(&changes) {
        // The link may have been there before, and keeps none of them.
        let _ = remove(host, link.index, &plan.add);
        return Err(readiness::explain(error, &changes, &link.name));
    }
    made.retain(|address| !plan.remove.contains(address) && !plan.add.contains(address));
    made.extend(plan.add);
    Ok(())
}

/// Removes addresses from a link. One that is already missing counts as removed: the kernel removes
/// a secondary address with its primary one.
///
/// # Errors
/// Code 100 with the kernel's words; the rest was tried all the same.
pub(super) fn remove(
    host: &mut RouteSocket,
    ifindex: u32,
    addresses: &[IpNet],
) -> Result<(), Failure> {
    let mut done = Ok(());
    for address in addresses {
        match host.apply_one(&Change::DelAddress { ifindex, address: *address }) {
            Err(error) if !error.is_not_found() => done = done.and(Err(Failure::from(error))),
            _ => {}
        }
    }
    done
}

/// The changes to a bridge's addresses.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    remove: Vec<IpNet>,
    add: Vec<IpNet>,
}

/// What becomes of addresses that conflict with a gateway's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConflictPolicy {
    /// They stay, and ours is not added.
    Refuse,
    /// They are removed.
    Replace,
    /// They stay in addition to ours.
    Keep,
}

impl ConflictPolicy {
    /// Reads it from the configuration.
    pub(super) fn of(config: &Config) -> Self {
        if config.force_address { ConflictPolicy::Replace } else { ConflictPolicy::Refuse }
    }
}

/// Decides how a bridge gets its gateways' addresses. Any other IPv4 address, or an IPv6 address of
/// an overlapping subnet, is in the way; link-local addresses never are.
fn plan(
    bridge: &str,
    present: &[IpNet],
    wanted: &[IpNet],
    others: ConflictPolicy,
) -> Result<Plan, Failure> {
    let mut plan = Plan::default();
    for gateway in wanted.iter().filter(|gateway| !present.contains(gateway)) {
        let conflicts =
            present.iter().filter(|other| !wanted.contains(other)).filter(|other| {
                match (gateway, other) {
                    (IpNet::V4(_), IpNet::V4(other)) => !other.addr().is_link_local(),
                    (IpNet::V6(gateway), IpNet::V6(other)) => {
                        !other.addr().is_unicast_link_local()
                            && (gateway.contains(other) || other.contains(gateway))
                    }
                    _ => false,
                }
            });
        for conflict in conflicts.filter(|_| others != ConflictPolicy::Keep) {
            if others == ConflictPolicy::Refuse {
                return Err(Failure::new(
                    codes::CONFLICT,
                    format!("{bridge:?} already has an IP address different from {gateway}"),
                )
                .with_details(format!(
                    "it has {conflict}; remove that address, choose another bridge, or set forceAddress"
                )));
            }
            if !plan.remove.contains(conflict) {
                plan.remove.push(*conflict);
            }
        }
        plan.add.push(*gateway);
    }
    Ok(plan)
}

/// Refuses a link if its addresses conflict with those of the gateways.
///
/// # Errors
/// Code 108.
pub(crate) fn refuse_others(
    link: &str,
    present: &[IpNet],
    gateways: &[IpNet],
) -> Result<(), Failure> {
    plan(link, present, gateways, ConflictPolicy::Refuse).map(drop)
}

/// Compares the addresses of the gateways. If the bridge is gone, another item says so.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub(super) fn compare(picture: &mut Picture<'_>, wanted: &Gateways) -> Comparison {
    let name = &wanted.link;
    let bridge = picture.link(Place::Host, &wanted.bridge)?;
    if bridge.is_none_or(|link| !link.is_kind("bridge")) {
        return sound();
    }
    let Some(link) = picture.link(Place::Host, name)? else {
        return differs(format!("link {name:?} with the gateway is gone"));
    };
    let present = picture.addresses(Place::Host, link.index)?;
    // An address counts with any prefix length.
    let is_present = |gateway: &IpAddr| present.iter().any(|one| one.address.addr() == *gateway);
    let gateways = wanted.addresses.iter().map(IpNet::addr);
    let missing: Vec<IpAddr> = gateways.filter(|gateway| !is_present(gateway)).collect();
    match missing.as_slice() {
        [] => sound(),
        [gateway] => differs(format!("gateway address {gateway} is gone from {name:?}")),
        several => {
            let several: Vec<String> = several.iter().map(ToString::to_string).collect();
            let several = several.join(", ");
            differs(format!("gateway addresses {several} are gone from {name:?}"))
        }
    }
}

/// Adds the addresses that are missing, and the link of a VLAN if that is gone.
///
/// # Errors
/// Code 108 when a foreign address on a foreign link is in the way; code 100 with the kernel's
/// words.
pub(super) fn restore(picture: &mut Picture<'_>, wanted: &Gateways) -> Result<(), Failure> {
    let host = &mut picture.namespaces.get()?.host;
    let Some(bridge) = host.link_by_name(&wanted.bridge)? else { return Ok(()) };
    // An address that is in the way by now is a foreign one. On a link of ours it can stay in
    // addition to ours.
    let others = if wanted.ours { ConflictPolicy::Keep } else { ConflictPolicy::Refuse };
    bridge_link::add_gateways(host, picture.index, &bridge, wanted, others, &mut |_| Ok(()))
        .map(drop)
}

/// The gateways of a configuration, as far as they are known before addresses are assigned: with the
/// IPAM plugin `host-local`.
#[derive(Debug)]
pub(crate) struct ConfiguredGateways {
    /// The link of the host that carries them.
    pub(crate) link: String,
    /// The VRF that the link belongs to.
    pub(crate) vrf: Option<IfName>,
    /// Their addresses, with the prefix lengths of their subnets.
    pub(crate) addresses: Vec<IpNet>,
    /// Other addresses of the link do not matter: they are removed.
    pub(crate) replaces: bool,
}

/// Returns the gateways of a configuration; `None` if it has none, or they are not known.
///
/// # Errors
/// Code 7 when the link of the VLAN has no name.
pub(super) fn configured(
    call: &Call<'_>,
    config: &Config,
) -> Result<Option<ConfiguredGateways>, Failure> {
    if !config.gateway {
        return Ok(None);
    }
    let addresses = host_local::gateways(call);
    let (link, vrf) = (config.wanted_gateways()?.link, config.vrf.clone());
    let replaces = config.force_address;
    Ok((!addresses.is_empty()).then_some(ConfiguredGateways { link, vrf, addresses, replaces }))
}

/// Returns the address that a subnet's gateway has on the bridge: the IPAM plugin's, or the first
/// of the subnet.
///
/// # Errors
/// Code 7 when the subnet has no room for a gateway.
pub(super) fn of(address: &IpNet, gateway: Option<IpAddr>) -> Result<IpNet, Failure> {
    let ip = match gateway {
        Some(ip) => ip,
        None => first_of(address).ok_or_else(|| {
            Failure::new(code::INVALID_CONFIG, format!("no gateway can be found for {address}"))
                .with_details("give the subnet a gateway")
        })?,
    };
    IpNet::new(ip, address.prefix_len()).map_err(|_| {
        Failure::new(
            code::INVALID_CONFIG,
            format!("gateway {ip} is not of the family of {address}"),
        )
    })
}

fn first_of(address: &IpNet) -> Option<IpAddr> {
    match address.network() {
        IpAddr::V4(network) => u32::from(network).checked_add(1).map(|ip| IpAddr::V4(ip.into())),
        IpAddr::V6(network) => u128::from(network).checked_add(1).map(|ip| IpAddr::V6(ip.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn plan(present: &[&str], wanted: &[&str], force: bool) -> Result<Plan, String> {
        let others = if force { ConflictPolicy::Replace } else { ConflictPolicy::Refuse };
        super::plan("br0", &nets(present), &nets(wanted), others)
            .map_err(|error| error.message().to_owned())
    }

    #[test]
    fn an_address_that_is_there_is_left_alone() {
        assert_eq!(plan(&["192.0.2.1/24"], &["192.0.2.1/24"], false), Ok(Plan::default()));
    }

    #[test]
    fn another_v4_address_is_in_the_way_unless_forced() {
        assert_eq!(
            plan(&["192.0.2.1/24"], &["198.51.100.1/24"], false),
            Err("\"br0\" already has an IP address different from 198.51.100.1/24".to_owned())
        );
        assert_eq!(
            plan(&["192.0.2.1/24"], &["198.51.100.1/24"], true),
            Ok(Plan { remove: nets(&["192.0.2.1/24"]), add: nets(&["198.51.100.1/24"]) })
        );
    }

    #[test]
    fn two_v4_gateways_of_one_network_do_not_exclude_each_other() {
        let both = ["192.0.2.1/24", "198.51.100.1/24"];
        assert_eq!(plan(&[], &both, false), Ok(Plan { remove: vec![], add: nets(&both) }));
        assert_eq!(
            plan(&["192.0.2.1/24"], &both, false),
            Ok(Plan { remove: vec![], add: nets(&["198.51.100.1/24"]) })
        );
    }

    #[test]
    fn only_overlapping_v6_subnets_are_in_the_way() {
        assert!(plan(&["2001:db8:1::1/64", "fe80::1/64"], &["2001:db8:2::1/64"], false).is_ok());
        assert!(plan(&["2001:db8::9/64"], &["2001:db8::1/64"], false).is_err());
    }

    #[test]
    fn the_first_address_is_the_gateway_when_ipam_names_none() {
        let gateway = of(&"192.0.2.7/24".parse().unwrap(), None).unwrap();
        assert_eq!(gateway.to_string(), "192.0.2.1/24");
    }
}
