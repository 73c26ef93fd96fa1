//! Messages by which a container tries to be the host's router.

use std::net::Ipv6Addr;

use kernel::packet::{Filter, PacketSocket};
use testkit::{Container, Place};

use crate::support::Node;

/// RFC 4861 §4.2, §4.5.
const ADVERTISEMENT: u8 = 134;
const REDIRECTION: u8 = 137;
/// IANA's numbers of protocols and extension headers.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const ICMPV6: u8 = 58;
const OPTIONS: u8 = 60;
/// EtherTypes.
const IPV6: u16 = 0x86dd;
const TAG: u16 = 0x8100;
const SERVICE_TAG: u16 = 0x88a8;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const TO_ALL: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

/// The message that leads packets elsewhere; a host that forwards takes none.
pub(super) const REDIRECT: &str = "a redirect";

/// What a host without the rules hears.
pub(super) const KINDS: [&str; 14] = [
    "plain",
    "to the host alone",
    "to an address of the host that is not of the link",
    "behind hop-by-hop options",
    "behind options for the destination",
    "behind many headers",
    "behind a routing header",
    "with a tag of VLAN 0",
    "with two tags",
    "with three tags",
    "with a service tag",
    "with a service tag and a tag",
    "to a group of bridges",
    REDIRECT,
];

/// The same in fragments.
pub(super) const IN_FRAGMENTS: [&str; 2] = ["one fragment", "two fragments"];

/// The same with tags that a bridge which filters VLANs removes or not.
pub(super) const IN_VLANS: [&str; 5] = [
    "with a tag of the bridge's VLAN",
    "with a tag of it and one of VLAN 0",
    "with a tag of VLAN 0",
    "with a service tag",
    "with a service tag and a tag",
];

/// One message, with what shows that the host has heard it.
pub(super) struct ForgedMessage {
    pub(super) kind: &'static str,
    frames: Vec<Vec<u8>>,
    /// In its routes.
    shows: String,
}

/// The host, the container's hardware address, and how many messages there are.
struct Writer {
    host: Ipv6Addr,
    host_mac: [u8; 6],
    mac: [u8; 6],
    number: u16,
}

fn mac(place: &impl Place, link: &str) -> [u8; 6] {
    let text = place.sh(&format!("ip -br link show dev {link}"));
    let octets = text.split_whitespace().nth(2).unwrap().split(':');
    let octets: Vec<u8> = octets.map(|octet| u8::from_str_radix(octet, 16).unwrap()).collect();
    octets.try_into().unwrap()
}

/// An address of the host's bridge.
fn address(node: &Node, scope: &str) -> Ipv6Addr {
    let text = node.sh(&format!("ip -6 -br addr show dev br0 scope {scope}"));
    let mut found = text.split_whitespace().filter_map(|word| word.split_once('/')?.0.parse().ok());
    found.next_back().unwrap_or_else(|| panic!("{text:?}"))
}

impl Writer {
    fn new(node: &Node, from: &Container) -> Self {
        let (host_mac, mac) = (mac(&node.lab, "br0"), mac(from, "eth0"));
        // Other containers have other numbers.
        let number = u16::from(mac[5]) << 8;
        Writer { host: address(node, "link"), host_mac, mac, number }
    }

    /// The address of the next router that there is not.
    fn router(&mut self) -> Ipv6Addr {
        self.number += 1;
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0x666, self.number)
    }

    fn shown(&self) -> String {
        format!("fe80::666:{:x} ", self.number)
    }

    /// Writes an advertisement behind headers: the type and the content of each, without the number of
    /// the next one.
    fn advertise(&mut self, to: Ipv6Addr, headers: &[(u8, [u8; 7])]) -> Vec<u8> {
        let mut message = vec![ADVERTISEMENT, 0, 0, 0, 64, 0, 0x07, 0x08];
        message.extend([0; 8]);
        ipv6(self.router(), to, headers, &mut message)
    }

    fn frame(&self, to: [u8; 6], types: &[u16], packet: &[u8]) -> Vec<u8> {
        let mut frame = [to, self.mac].concat();
        for (number, kind) in types.iter().enumerate() {
            frame.extend(kind.to_be_bytes());
            if number + 1 < types.len() {
                // Priority 5, VLAN 0.
                frame.extend([0xa0, 0]);
            }
        }
        frame.extend(packet);
        frame
    }

    fn forged(&self, kind: &'static str, frames: Vec<Vec<u8>>) -> ForgedMessage {
        ForgedMessage { kind, frames, shows: self.shown() }
    }

    fn for_all(
        &mut self,
        kind: &'static str,
        types: &[u16],
        headers: &[(u8, [u8; 7])],
    ) -> ForgedMessage {
        let packet = self.advertise(ALL_NODES, headers);
        self.forged(kind, vec![self.frame(TO_ALL, types, &packet)])
    }

    fn for_host(
        &mut self,
        kind: &'static str,
        to: Ipv6Addr,
        headers: &[(u8, [u8; 7])],
    ) -> ForgedMessage {
        let packet = self.advertise(to, headers);
        self.forged(kind, vec![self.frame(self.host_mac, &[IPV6], &packet)])
    }
}

fn ipv6(from: Ipv6Addr, to: Ipv6Addr, headers: &[(u8, [u8; 7])], message: &mut [u8]) -> Vec<u8> {
    let mut counted = [from.octets(), to.octets()].concat();
    counted.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    counted.extend([0, 0, 0, ICMPV6]);
    counted.extend(&*message);
    message[2..4].copy_from_slice(&checksum(&counted));
    let kinds = headers.iter().map(|(kind, _)| *kind).chain([ICMPV6]);
    let kinds: Vec<u8> = kinds.collect();
    let mut content = Vec::new();
    for ((_, header), next) in headers.iter().zip(&kinds[1..]) {
        content.push(*next);
        content.extend(header);
    }
    content.extend(&*message);
    packet(from, to, kinds[0], &content)
}

fn packet(from: Ipv6Addr, to: Ipv6Addr, next: u8, content: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
    packet.extend([next, 255]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(content);
    packet
}

/// RFC 1071 §1.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|word| {
        u32::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or_default()]))
    });
    let mut sum: u32 = words.sum();
    while 0xffff < sum {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    (!u16::try_from(sum).unwrap()).to_be_bytes()
}

/// Padding (RFC 8200 §4.2).
const PADDING: [u8; 7] = [0, 1, 4, 0, 0, 0, 0];

/// Writes each of [`KINDS`]. `route` is the host's way out.
pub(super) fn all(node: &Node, from: &Container, route: &str) -> Vec<ForgedMessage> {
    let mut writer = Writer::new(node, from);
    let (host, other) = (writer.host, address(node, "global"));
    let (hop, options, routing) = ((HOP_BY_HOP, PADDING), (OPTIONS, PADDING), (ROUTING, [0; 7]));
    let many = [hop, options, options, options, options];
    let mut all = vec![
        writer.for_all("plain", &[IPV6], &[]),
        writer.for_host("to the host alone", host, &[]),
        writer.for_host("to an address of the host that is not of the link", other, &[]),
        writer.for_all("behind hop-by-hop options", &[IPV6], &[hop]),
        writer.for_all("behind options for the destination", &[IPV6], &[options]),
        writer.for_all("behind many headers", &[IPV6], &many),
        writer.for_host("behind a routing header", host, &[routing]),
        writer.for_all("with a tag of VLAN 0", &[TAG, IPV6], &[]),
        writer.for_all("with two tags", &[TAG, TAG, IPV6], &[]),
        writer.for_all("with three tags", &[TAG, TAG, TAG, IPV6], &[]),
        writer.for_all("with a service tag", &[SERVICE_TAG, IPV6], &[]),
        writer.for_all("with a service tag and a tag", &[SERVICE_TAG, TAG, IPV6], &[]),
    ];
    let packet = writer.advertise(ALL_NODES, &[]);
    let groups = (0..16).map(|last| [0x01, 0x80, 0xc2, 0, 0, last]);
    let frames = groups.map(|group| writer.frame(group, &[IPV6], &packet)).collect();
    all.push(writer.forged("to a group of bridges", frames));
    all.push(redirect(&mut writer, route));
    all
}

/// In the name of the host's router: another router is the better one for an address.
fn redirect(writer: &mut Writer, route: &str) -> ForgedMessage {
    let gateway = route.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    let mut message = vec![REDIRECTION, 0, 0, 0, 0, 0, 0, 0];
    message.extend(writer.router().octets());
    message.extend(FAR.octets());
    let packet = ipv6(gateway, writer.host, &[], &mut message);
    writer.forged(REDIRECT, vec![writer.frame(writer.host_mac, &[IPV6], &packet)])
}

/// Far away.
const FAR: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x77, 0, 0, 0, 0, 1);

/// Writes each of [`IN_FRAGMENTS`].
pub(super) fn in_fragments(node: &Node, from: &Container) -> Vec<ForgedMessage> {
    let mut writer = Writer::new(node, from);
    let mut whole = |ends: &[usize]| {
        let packet = writer.advertise(ALL_NODES, &[(OPTIONS, PADDING)]);
        let (source, content) = (writer.number, &packet[40..]);
        let source = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0x666, source);
        let starts = [0].iter().chain(ends);
        let frames = starts.zip(ends).map(|(start, end)| {
            let more = u16::from(*end < content.len());
            let offset = u16::try_from(*start).unwrap() | more;
            let mut fragment = vec![OPTIONS, 0];
            fragment.extend(offset.to_be_bytes());
            fragment.extend(u32::from(writer.number).to_be_bytes());
            fragment.extend(&content[*start..*end]);
            writer.frame(TO_ALL, &[IPV6], &self::packet(source, ALL_NODES, FRAGMENT, &fragment))
        });
        let kind = IN_FRAGMENTS[ends.len() - 1];
        writer.forged(kind, frames.collect())
    };
    // The options and the message have 24 octets.
    vec![whole(&[24]), whole(&[16, 24])]
}

/// Writes each of [`IN_VLANS`].
pub(super) fn in_vlans(node: &Node, from: &Container) -> Vec<ForgedMessage> {
    let mut writer = Writer::new(node, from);
    let types: [&[u16]; 5] = [
        &[TAG, IPV6],
        &[TAG, TAG, IPV6],
        &[TAG, IPV6],
        &[SERVICE_TAG, IPV6],
        &[SERVICE_TAG, TAG, IPV6],
    ];
    let mut all: Vec<ForgedMessage> =
        IN_VLANS.into_iter().zip(types).map(|(kind, of)| writer.for_all(kind, of, &[])).collect();
    // The first tag's VLAN 1, with which bridges begin.
    for frame in all.iter_mut().take(2).flat_map(|one| &mut one.frames) {
        frame[15] = 1;
    }
    all
}

/// Sends each frame.
pub(super) fn send(from: &Container, forged: &[ForgedMessage]) {
    let shown = from.sh("ip -o link show dev eth0");
    let ifindex = shown.split(':').next().unwrap().parse().unwrap();
    from.enter(|| {
        let socket = PacketSocket::open(ifindex, &Filter::nothing()).unwrap();
        for frame in forged.iter().flat_map(|one| &one.frames) {
            socket.send(frame).unwrap();
        }
    });
}

/// Returns the kinds that the host has heard.
pub(super) fn heard(node: &Node, forged: &[ForgedMessage]) -> Vec<&'static str> {
    let routes = node.sh(&format!("ip -6 route show default; ip -6 route get {FAR}"));
    forged.iter().filter(|one| routes.contains(&one.shows)).map(|one| one.kind).collect()
}
