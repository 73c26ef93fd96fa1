//! The state that rtnetlink reports: links, addresses, routes, rules, neighbours, qdiscs, filters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::dump::{Object, Socket, attributes, hex, text};

const GET_LINK: u16 = 18;
const GET_ADDRESS: u16 = 22;
const GET_ROUTE: u16 = 26;
const GET_NEIGHBOUR: u16 = 30;
const GET_RULE: u16 = 34;
const GET_QDISC: u16 = 38;
const GET_FILTER: u16 = 46;

/// Flags of links that programs set: up, promiscuous, all multicast, no ARP.
const LINK_FLAGS: u32 = 0x1 | 0x100 | 0x200 | 0x80;
/// A route's protocol: the kernel made it.
const KERNEL: u8 = 2;
const PERMANENT: u8 = 0x80;
/// The parent of filters on the ingress qdisc.
const INGRESS: u32 = 0xffff_0000;

pub(super) fn look(socket: &Socket, facts: &mut BTreeSet<String>) {
    let links = socket.dump(GET_LINK, &[0; 16], &[]);
    let names: BTreeMap<u32, String> =
        links.iter().map(|link| (link.fixed_number(4), link.text(3))).collect();
    let name = |index: u32| match names.get(&index) {
        Some(name) => name.clone(),
        None => format!("#{index}"),
    };
    for link in &links {
        facts.insert(of_link(link, &name));
    }
    for address in socket.dump(GET_ADDRESS, &[0; 8], &[]) {
        let Some(ip) = address.attribute(2).or(address.attribute(1)).and_then(ip_of) else {
            continue;
        };
        if !is_of_the_kernel(ip) {
            let dev = name(address.fixed_number(4));
            facts.insert(format!("address {dev} {ip}/{}", address.fixed[1]));
        }
    }
    for route in socket.dump(GET_ROUTE, &[0; 12], &[]) {
        let to = route.attribute(1).and_then(ip_of);
        // The kernel adds these with a link-local address or a carrier.
        if to.is_some_and(is_of_the_kernel) {
            continue;
        }
        let to = to.map_or_else(|| "default".to_owned(), |to| to.to_string());
        let dev = name(route.number(4));
        let [family, length, _, _, _, protocol, scope, kind] = route.fixed[..8] else { continue };
        // The kernel adds these after an address, at a time that it chooses: local, broadcast and
        // anycast.
        if protocol == KERNEL && matches!(kind, 2..=4) {
            continue;
        }
        let more = route.hex(&[3, 5, 6, 7, 8, 9, 15, 18, 22]);
        facts.insert(format!(
            "route {family} {to}/{length} dev {dev} kind {kind} protocol {protocol} scope {scope}{more}"
        ));
    }
    for rule in socket.dump(GET_RULE, &[0; 12], &[]) {
        let all: Vec<u16> = (0..32).collect();
        facts.insert(format!("rule {}{}", hex(&rule.fixed), rule.hex(&all)));
    }
    for neighbour in socket.dump(GET_NEIGHBOUR, &[0; 12], &[]) {
        let Some(ip) = neighbour.attribute(1).and_then(ip_of) else { continue };
        if neighbour.fixed[8] & PERMANENT != 0 && !is_of_the_kernel(ip) {
            let dev = name(neighbour.fixed_number(4));
            facts.insert(format!("neighbour {dev} {ip}{}", neighbour.hex(&[2])));
        }
    }
    for qdisc in socket.dump(GET_QDISC, &[0; 20], &[]) {
        let index = qdisc.fixed_number(4);
        let kind = qdisc.text(1);
        facts.insert(format!("qdisc {} {kind}{}", name(index), qdisc.hex(&[2])));
        if kind == "ingress" || kind == "clsact" {
            let mut header = [0; 20];
            header[4..8].copy_from_slice(&index.to_ne_bytes());
            header[12..16].copy_from_slice(&INGRESS.to_ne_bytes());
            for (number, filter) in socket.dump(GET_FILTER, &header, &[]).iter().enumerate() {
                facts.insert(format!("filter {} {number} {}", name(index), filter.text(1)));
            }
        }
    }
}

fn of_link(link: &Object, name: &impl Fn(u32) -> String) -> String {
    let mut line = format!("link {}", link.text(3));
    let mut tell = |what: &str, value: String| {
        if !value.is_empty() {
            line += &format!(" {what} {value}");
        }
    };
    let kind = attributes(link.attribute(18).unwrap_or(&[])).find(|(kind, _)| *kind == 1);
    tell("kind", kind.map(|(_, kind)| text(kind)).unwrap_or_default());
    tell("flags", format!("{:x}", link.fixed_number(8) & LINK_FLAGS));
    tell("mtu", link.number(4).to_string());
    tell("mac", hex(link.attribute(1).unwrap_or(&[])));
    tell("master", link.attribute(10).map(|_| name(link.number(10))).unwrap_or_default());
    tell("alias", link.text(20));
    tell("queue", link.number(13).to_string());
    // Sysctls: IFLA_AF_SPEC, of IPv4 IFLA_INET_CONF, of IPv6 IFLA_INET6_CONF.
    for (family, of_family) in attributes(link.attribute(26).unwrap_or(&[])) {
        let wanted = match family {
            2 => 1,
            10 => 2,
            _ => continue,
        };
        for (kind, values) in attributes(of_family).filter(|(kind, _)| *kind == wanted) {
            let values = values.chunks(4).map(|value| hex(value).trim_end_matches('0').to_owned());
            tell(&format!("sysctls {family}.{kind}"), values.collect::<Vec<_>>().join(","));
        }
    }
    line
}

fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(v4.into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

/// Whether the kernel itself adds and removes such addresses and routes.
fn is_of_the_kernel(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_multicast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_multicast(),
    }
}
