//! Hostports: a port of the host leads to a port of a container.
//!
//! The maps are looked up in prerouting and output, only for packets to an address of the host
//! (`fib daddr type local`): other traffic through the node on the same port must not be touched
//! (CVE-2025-67499). A port for one host address is looked up first, then a port for all addresses
//! of the family.
//!
//! The chains run ten after the usual priority of destination translation. So a service address
//! (kube-proxy and its like) that is also local goes to the service: the first translation of a
//! flow wins (CVE-2019-9946).
//!
//! Some flows must be masqueraded on the way to the container, because its answer would not come
//! back here otherwise:
//!
//! | flow | recognised by |
//! |---|---|
//! | leaves by its input interface: from the container itself, or its neighbours on a bridge | set `hairpin4` |
//! | the same, bridged in one go by `br_netfilter` | no input interface, source not of the host, set `local_snat4` |
//! | from 127.0.0.0/8 on the host | source, set `local_snat4` |
//! | from ::1 on the host | source `STAND_IN6` |
//! | any at all, if the configuration says `masqAll` | set `snat_all4` |
//!
//! A flow from 127.0.0.0/8 leaves only where `route_localnet` is on. We switch it on for the one
//! interface towards the container, and drop packets with such an address that *arrive* there
//! before anything else sees them (CVE-2020-8558).
//!
//! ::1 has no such sysctl, and the kernel drops packets to ::1 that arrive by another link than
//! `lo` before it looks up the owner of the address. It sees answers with that destination if
//! connection tracking has translated them earlier: at a bridge, with `br_netfilter`
//! (`bridge-nf-call-ip6tables=1`). So packets from ::1 to a port in the set `loopback6` get the
//! source `STAND_IN6` before connection tracking sees them, and answers get the destination ::1
//! back after connection tracking, in `input`. Packets with this address neither come in (`raw`)
//! nor leave (they are masqueraded). A local route makes it this host's address. A packet from ::1
//! that keeps its source is not translated: its sender would get no answer.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::element::{Element, Field, Protocol, Set, Value, ifname};
use crate::plan::{Plan, SharedObject};

/// The sets of this concern.
pub const SETS: &[Set] = &[
    Set::Hostports4,
    Set::Hostports6,
    Set::HostportsAt4,
    Set::HostportsAt6,
    Set::Hairpin4,
    Set::Hairpin6,
    Set::LocalSnat4,
    Set::LocalSnat6,
    Set::Loopback6,
    Set::SnatAll4,
    Set::SnatAll6,
    Set::Localnet,
];

/// One port of the host and where it leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Forward {
    /// The protocol.
    pub protocol: Protocol,
    /// The port on the host, not 0.
    pub host_port: u16,
    /// The port in the container, not 0.
    pub container_port: u16,
    /// The host's address. `None` is every address; an unspecified address is every address of its
    /// family.
    pub host_ip: Option<IpAddr>,
}

/// An address of the container, and the host interface that leads there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The address.
    pub address: IpAddr,
    /// The interface, if there is one: without it nothing can be masqueraded.
    pub host_ifname: Option<String>,
}

/// Which flows are masqueraded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Snat {
    /// None.
    No,
    /// Those whose answers would not come back otherwise.
    Needed,
    /// All.
    All,
}

/// One request maps the same port to two places.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "host port {host_port}/{protocol} is asked for twice, for container ports {first} and {second}"
)]
pub struct Contradiction {
    /// The protocol.
    pub protocol: Protocol,
    /// The port on the host.
    pub host_port: u16,
    /// The container port that was requested first.
    pub first: u16,
    /// The other one.
    pub second: u16,
}

/// Plans forwards to a container with at most one address of each family.
///
/// # Errors
/// [`Contradiction`] when one port of one host address is mapped to two places.
pub fn plan(forwards: &[Forward], targets: &[Target], snat: Snat) -> Result<Plan, Contradiction> {
    let mut plan = Plan::default();
    for target in targets {
        let mut seen: BTreeMap<Vec<Field>, u16> = BTreeMap::new();
        for forward in forwards.iter().filter(|forward| concerns(forward, target)) {
            let element = element(forward, target);
            if let Some(first) = seen.get(&element.key) {
                if *first == forward.container_port {
                    continue;
                }
                return Err(Contradiction {
                    protocol: forward.protocol,
                    host_port: forward.host_port,
                    first: *first,
                    second: forward.container_port,
                });
            }
            seen.insert(element.key.clone(), forward.container_port);
            if matches!(element.set, Set::HostportsAt4 | Set::HostportsAt6) {
                plan.share(reservation(forward.protocol, forward.host_port, target.address));
            }
            plan.own.push(element);
            if serves_loopback6(forward, target, snat) {
                let port = [Field::Protocol(forward.protocol), Field::Port(forward.host_port)];
                plan.push(Element::new(Set::Loopback6, port.to_vec()));
            }
        }
        if !seen.is_empty() {
            plan.join(snat_plan(target, snat));
        }
    }
    Ok(plan)
}

/// Lists the forwards that a plan holds, each once. A forward for all addresses of a family has no
/// address.
#[must_use]
pub fn forwards(plan: &Plan) -> Vec<Forward> {
    let mut found: Vec<Forward> = Vec::new();
    for element in &plan.own {
        let (host_ip, protocol, host_port) = match (element.set, element.key.as_slice()) {
            (Set::Hostports4 | Set::Hostports6, [Field::Protocol(protocol), Field::Port(port)]) => {
                (None, *protocol, *port)
            }
            (
                Set::HostportsAt4 | Set::HostportsAt6,
                [Field::Address(at), Field::Protocol(protocol), Field::Port(port)],
            ) => (Some(*at), *protocol, *port),
            _ => continue,
        };
        let Value::Endpoint { port: container_port, .. } = element.value else { continue };
        let forward = Forward { protocol, host_port, container_port, host_ip };
        if !found.contains(&forward) {
            found.push(forward);
        }
    }
    found
}

/// Returns the object that records the holders of a port *at some address*, so that a caller who
/// wants the port at every address need not read every element.
#[must_use]
pub fn reservation(protocol: Protocol, port: u16, family: IpAddr) -> SharedObject {
    SharedObject::Hostport { protocol, port, ipv4: family.is_ipv4() }
}

/// Returns what to hold for a plan whose ports iptables forwards. Its elements are not made, but
/// other attachments must see its ports with any backend.
#[must_use]
pub fn held_by_iptables(plan: &Plan) -> Plan {
    let mut held = Plan::default();
    for element in plan.own.iter().filter(|element| element.set.is_exclusive()) {
        let ipv4 = matches!(element.set, Set::Hostports4 | Set::HostportsAt4);
        let (at, protocol, port) = match element.key.as_slice() {
            [Field::Protocol(protocol), Field::Port(port)] => (None, *protocol, *port),
            [Field::Address(at), Field::Protocol(protocol), Field::Port(port)] => {
                (Some(*at), *protocol, *port)
            }
            _ => continue,
        };
        // Attachments that want the port at every address look this up.
        held.share(SharedObject::Hostport { protocol, port, ipv4 });
        let at = at.unwrap_or_else(|| everywhere(ipv4));
        held.share(SharedObject::IptablesHostport { protocol, port, at });
    }
    held
}

/// The address that stands for every address of a family.
pub(crate) fn everywhere(ipv4: bool) -> IpAddr {
    if ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

fn concerns(forward: &Forward, target: &Target) -> bool {
    forward.host_ip.is_none_or(|address| address.is_ipv4() == target.address.is_ipv4())
}

fn element(forward: &Forward, target: &Target) -> Element {
    let port = [Field::Protocol(forward.protocol), Field::Port(forward.host_port)];
    let value = Value::Endpoint { address: target.address, port: forward.container_port };
    let ipv4 = target.address.is_ipv4();
    match forward.host_ip.filter(|address| !address.is_unspecified()) {
        None => {
            let set = if ipv4 { Set::Hostports4 } else { Set::Hostports6 };
            Element::with_value(set, port.to_vec(), value)
        }
        Some(address) => {
            let set = if ipv4 { Set::HostportsAt4 } else { Set::HostportsAt6 };
            let [protocol, port] = port;
            Element::with_value(set, vec![Field::Address(address), protocol, port], value)
        }
    }
}

/// Says whether a forward has to answer at ::1.
fn serves_loopback6(forward: &Forward, target: &Target, snat: Snat) -> bool {
    let at = |address: IpAddr| address.is_unspecified() || address == Ipv6Addr::LOCALHOST;
    target.address.is_ipv6()
        && target.host_ifname.is_some()
        && snat != Snat::No
        && forward.host_ip.is_none_or(at)
}

fn snat_plan(target: &Target, snat: Snat) -> Plan {
    let mut plan = Plan::default();
    let Some(out) = target.host_ifname.as_deref().filter(|_| snat != Snat::No) else {
        return plan;
    };
    let address = Field::Address(target.address);
    let by_family = |v4, v6| if target.address.is_ipv4() { v4 } else { v6 };
    let hairpin = by_family(Set::Hairpin4, Set::Hairpin6);
    plan.push(Element::new(hairpin, vec![ifname(out), ifname(out), address.clone()]));
    let local = by_family(Set::LocalSnat4, Set::LocalSnat6);
    plan.push(Element::new(local, vec![ifname(out), address.clone()]));
    if snat == Snat::All {
        let all = by_family(Set::SnatAll4, Set::SnatAll6);
        plan.push(Element::new(all, vec![ifname(out), address]));
    }
    plan.share(if target.address.is_ipv4() {
        SharedObject::Localnet(out.to_owned())
    } else {
        SharedObject::Loopback6(out.to_owned())
    });
    plan
}

/// Stands for ::1 where packets must not carry that: an address of a private prefix (RFC 4193) that
/// appears only between our hooks.
pub(crate) const STAND_IN6: Ipv6Addr =
    Ipv6Addr::new(0xfd6e, 0x6574, 0x7772, 0x6967, 0x6874, 0, 0, 1);

/// Returns an address as a route's destination.
pub(crate) fn host_net(address: Ipv6Addr) -> IpNet {
    IpNet::from(IpAddr::V6(address))
}
