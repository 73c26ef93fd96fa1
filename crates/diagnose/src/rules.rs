//! The rules, one file for each family of faults.

mod attachments;
mod configuration;
mod filters;
mod holes;
mod inside;
mod links;
mod names;
mod neighbours;
mod ports;
mod sizes;
mod switches;
mod ways;

use scene::{Container, Part, Scene};

use crate::Look;
use crate::finding::{Family, Finding};
use crate::question::Question;

/// A rule.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// The IDs of the findings that it returns.
    pub ids: &'static [&'static str],
    /// The parts of a scene that it needs. It says nothing of what it cannot see.
    pub needs: &'static [Part],
    /// The probes that it wants.
    pub asks: fn(Look<'_>) -> Vec<Question>,
    /// Judges.
    pub judge: fn(Look<'_>) -> Vec<Finding>,
}

/// Asks nothing.
fn nothing(_: Look<'_>) -> Vec<Question> {
    Vec::new()
}

/// Returns the living containers that are looked at.
fn containers(look: Look<'_>) -> impl Iterator<Item = &Container> {
    look.scene.containers.iter().filter(move |container| {
        container.alive != Some(false) && look.only.is_none_or(|only| container.id == only)
    })
}

/// Says whether a container has an address of a family on a network that leads beyond the node.
fn is_outbound(scene: &Scene, container: &Container, family: Family) -> bool {
    container.attachments.iter().any(|attachment| {
        let of_family = |address: &std::net::IpAddr| family_of(*address) == family;
        let network = scene.networks.iter().find(|one| one.name == attachment.network);
        let is_routed = attachment.has_plugin("bridge") || attachment.has_plugin("ptp");
        is_routed
            && attachment.gateways.iter().any(of_family)
            && network.is_none_or(|network| network.outbound)
    })
}

/// Returns the addresses beyond the node with which a container's way outside is tried: what the
/// caller named, or else the container's servers of names that are neither on this node nor on a
/// network of its containers.
fn targets(look: Look<'_>, container: &Container) -> Vec<std::net::IpAddr> {
    if let Some(to) = look.to {
        return vec![to.ip()];
    }
    let is_here = |address: &std::net::IpAddr| {
        address.is_loopback()
            || look.scene.host.owner_of(*address).is_some()
            || look
                .scene
                .networks
                .iter()
                .flat_map(|one| &one.subnets)
                .any(|net| net.contains(address))
    };
    let servers = container.nameservers.iter().flatten().copied();
    let mut targets: Vec<std::net::IpAddr> = servers.filter(|server| !is_here(server)).collect();
    targets.truncate(2);
    targets
}

/// Returns the family of an address.
fn family_of(address: std::net::IpAddr) -> Family {
    if address.is_ipv4() { Family::V4 } else { Family::V6 }
}

/// All rules.
pub const RULES: &[Rule] = &[
    holes::RULE,
    configuration::RULE,
    attachments::RULE,
    switches::RULE,
    links::RULE,
    ways::RULE,
    filters::RULE,
    neighbours::RULE,
    ports::RULE,
    inside::RULE,
    names::RULE,
    sizes::RULE,
];
