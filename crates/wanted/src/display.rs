//! How people read items.

use std::fmt;
use std::net::IpAddr;

use firewall::firewalld::Source;

use crate::{Address, ForeignPart, Item, Place, Rule, Shaping, SourceTables, State, Sysctl, Vrf};

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = match self.place {
            Place::Host => "link",
            Place::Container => "interface",
        };
        match &self.state {
            State::Link { link: name, kinds } => {
                write!(f, "{link} {name:?}")?;
                if kinds.is_empty() { Ok(()) } else { write!(f, " ({})", kinds.join(" or ")) }
            }
            State::Recorded { link: name } => write!(f, "{link} {name:?}, as ADD recorded it"),
            State::Peer { link: name, of } => {
                write!(f, "{link} {name:?}, the other end of interface {of:?}")
            }
            State::Mac { link: name, mac } => write!(f, "MAC address {mac} of {link} {name:?}"),
            State::Mtu { link: name, mtu } => write!(f, "MTU {mtu} of {link} {name:?}"),
            State::Up { link: name } => write!(f, "{link} {name:?} up"),
            State::QueueLength { link: name, length } => {
                write!(f, "transmission queue length {length} of {link} {name:?}")
            }
            State::Promiscuous { link: name, on } => {
                write!(f, "promiscuous mode {} of {link} {name:?}", on_off(*on))
            }
            State::AllMulticast { link: name, on } => {
                write!(f, "all-multicast mode {} of {link} {name:?}", on_off(*on))
            }
            State::Sysctls(sysctls) => {
                let values = sysctls.values.iter().map(ToString::to_string);
                f.write_str(&values.collect::<Vec<_>>().join(", "))
            }
            State::Mark { link: name, .. } => write!(f, "the owner's mark of {link} {name:?}"),
            State::Address(Address { link: name, address, gateway: true, .. }) => {
                write!(f, "gateway address {} of {name:?}", address.addr())
            }
            State::Address(Address { link: name, address, .. }) => {
                write!(f, "address {address} of {link} {name:?}")
            }
            State::Route(route) if self.place == Place::Host => {
                write!(f, "the host's route to {} by {:?}", route.destination, route.link)
            }
            State::Route(route) => {
                if let Some(drops) = route.drops {
                    return write!(f, "route {} {}", drops.word(), route.destination);
                }
                write!(f, "route {}", route.destination)?;
                if let Some(gateway) = route.gateway {
                    write!(f, " via {gateway}")?;
                }
                write!(f, " of {link} {:?}", route.link)
            }
            State::Path { link: name, to, .. } => {
                write!(f, "the host's packets to {to} leave by {name:?}")
            }
            State::SubnetRoute { link: name, gateway, .. } => {
                write!(f, "the host's route to {} by {name:?}", gateway.trunc())
            }
            State::NoNeighbour { link: name, address, mac } => {
                write!(f, "no lasting neighbour entry of {address} on {name:?} but {mac}")
            }
            State::Bridge(bridge) => write!(f, "bridge {:?}", bridge.link),
            State::Port(port) => {
                write!(f, "link {:?}: port of bridge {:?}", port.link, port.bridge)
            }
            State::VlanLink { link: name, bridge, vlan } => {
                write!(f, "link {name:?} to VLAN {vlan} of bridge {bridge:?}")
            }
            State::Gateways(gateways) => {
                let addresses = gateways.addresses.iter().map(|net| net.addr().to_string());
                let addresses: Vec<String> = addresses.collect();
                write!(f, "gateway addresses {} of {:?}", addresses.join(", "), gateways.link)
            }
            State::Taken { link: name, .. } => write!(f, "{link} {name:?}, which ADD took"),
            State::OvsPort { port, bridge, .. } => write!(f, "port {port:?} of bridge {bridge:?}"),
            State::OvsMirrors(mirrors) => {
                let of = |(name, columns): &(String, Vec<String>)| {
                    format!("{} of mirror {name:?}", columns.join(", "))
                };
                let all: Vec<String> = mirrors.iter().map(of).collect();
                write!(f, "the port in {}", all.join("; "))
            }
            State::OvsInterface { link: name, port, .. } => {
                write!(f, "link of port {port:?} as interface {name:?}")
            }
            State::BridgeMtu { link: name, mtu: Some(mtu), .. } => {
                write!(f, "MTU {mtu} of bridge {name:?}")
            }
            State::BridgeMtu { link: name, .. } => write!(f, "MTU of bridge {name:?}"),
            State::LinkLocal { link: name } => write!(f, "link-local IPv6 address of {name:?}"),
            State::NoAdvertisements { link: name } => {
                write!(f, "no router advertisements by {link} {name:?} (accept_ra 0)")
            }
            State::Forwarding { ipv4, .. } => {
                write!(f, "{} forwarding", if *ipv4 { "IPv4" } else { "IPv6" })
            }
            State::Filter { plan, iptables, addresses, .. } => {
                f.write_str("packet filter:")?;
                let mut elements = elements(plan);
                if *iptables {
                    let of = addresses.iter().map(|address| format!("iptables rules of {address}"));
                    elements.extend(of);
                }
                write!(f, " {}", elements.join(", "))
            }
            State::Foreign(foreign) => write!(f, "packet filter: {foreign}"),
            State::HostPorts(ports) => {
                let mut elements = elements(&ports.plan);
                elements.extend(ports.chains.iter().map(|_| "the reference's chains".to_owned()));
                write!(f, "host ports: {}", elements.join(", "))
            }
            State::Claim { object } => write!(f, "the claim {object:?}"),
            State::Rule(Rule { from, table, .. }) => {
                write!(f, "rule that sends packets from {from} to table {table}")
            }
            State::ShownPackets(shown) => {
                let families = [("IPv4", shown.ipv4), ("IPv6", shown.ipv6)];
                let families = families.into_iter().filter(|(_, is_shown)| *is_shown);
                let families: Vec<&str> = families.map(|(family, _)| family).collect();
                let (families, bridge) = (families.join(" and "), &shown.bridge);
                write!(f, "{families} packets within bridge {bridge:?} shown to the packet filter")
            }
            State::Verdicts { addresses } => {
                let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                write!(f, "verdicts of network policy for {}", addresses.join(", "))
            }
            State::Vrf(Vrf { link: name, vrf, .. }) => write!(f, "{link} {name:?} in VRF {vrf:?}"),
            State::Shaping(Shaping { link: name, limits, .. }) => {
                let to = [("to", limits.ingress), ("from", limits.egress)];
                let to = to.iter().filter_map(|(way, limit)| {
                    let rate = limit.as_ref()?.rate_bits_per_s;
                    Some(format!("{rate} bit/s {way} the container"))
                });
                write!(f, "{link} {name:?} limited to {}", to.collect::<Vec<_>>().join(", "))
            }
            State::SourceTables(SourceTables { link: name, tables, .. }) => {
                let tables: Vec<String> =
                    tables.iter().map(|own| format!("{} of {}", own.table, own.address)).collect();
                write!(f, "routes of {link} {name:?} in table {}", tables.join(" and table "))
            }
            State::NotOfHost { address, .. } => write!(f, "{address} is not the host's own"),
        }
    }
}

fn elements(plan: &firewall::Plan) -> Vec<String> {
    let shared = plan.shared.iter().flat_map(firewall::SharedObject::elements);
    let own = plan.own.iter().map(ToString::to_string);
    own.chain(shared.map(|element| element.to_string())).collect()
}

impl fmt::Display for ForeignPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |words: Vec<String>| words.join(", ");
        let addresses = |of: &[IpAddr]| list(of.iter().map(ToString::to_string).collect());
        match self {
            ForeignPart::Chains { addresses: of, .. } => {
                write!(f, "the reference's chains accept {}", addresses(of))
            }
            ForeignPart::Isolation(of) => {
                let bridges = of.iter().map(|one| format!("{:?}", one.bridge)).collect();
                write!(f, "the reference's chains isolate {}", list(bridges))
            }
            ForeignPart::Accept { addresses: of, .. } => {
                write!(f, "iptables accepts {}", addresses(of))
            }
            ForeignPart::Zones(sources) => {
                let source = |one: &Source| format!("{} in {} zone", one.address, one.zone);
                f.write_str(&list(sources.iter().map(source).collect()))
            }
        }
    }
}

impl fmt::Display for Sysctl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sysctl {} = {:?}", self.paths.join(" or "), self.value)
    }
}

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}
