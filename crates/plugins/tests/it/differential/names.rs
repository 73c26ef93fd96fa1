//! Names for random values: links and MAC addresses that the configuration does not set.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use serde_json::Value;
use testkit::Snapshot;

use super::world::World;

/// MAC addresses that a case sets begin with this, and keep their value.
const CHOSEN: &str = "02:00:00:";

/// Random texts with their names, longest first.
#[derive(Debug, Default)]
pub(super) struct Names(Vec<(String, String)>);

impl Names {
    /// Looks at every link of a host and its containers, in their snapshots.
    pub(super) fn of(world: &World<'_>, host: &Snapshot, containers: &[Snapshot]) -> Self {
        let mut names = Self::default();
        names.add(world.node.lab.dir().to_str().unwrap(), "<lab>");
        let links = objects(host, "links");
        // The links that the results name come first, since each belongs to a container; then the
        // rest.
        let mut order: Vec<String> = Vec::new();
        for result in world.added.iter().flatten() {
            let interfaces = result["interfaces"].as_array().into_iter().flatten();
            order.extend(interfaces.filter_map(|at| Some(at["name"].as_str()?.to_owned())));
        }
        order.extend(links.iter().map(|(link, _)| (*link).to_owned()));
        let mut seen = BTreeSet::new();
        let mut letters = 'A'..='Z';
        for (prefix, digits) in [("veth", 8), ("bwp", 12)] {
            let random = order.iter().filter(|name| is_random(name, prefix, digits));
            for name in random.filter(|name| seen.insert((*name).clone())) {
                let letter = letters.next().unwrap();
                names.add(name, &format!("{prefix}<{letter}>"));
            }
        }
        for (container, snapshot) in world.containers.iter().zip(containers) {
            for (link, value) in objects(snapshot, "links") {
                names.mac(&text(&value, "address"), &format!("{link} of {}", container.name()));
            }
        }
        // A bridge may have the address of one of its ports: ports first.
        let (bridges, others): (Vec<_>, Vec<_>) =
            links.iter().partition(|(_, link)| link["linkinfo"]["info_kind"] == "bridge");
        for (link, value) in others.into_iter().chain(bridges) {
            let name = names.replace(link);
            names.mac(&text(value, "address"), &name);
        }
        for snapshot in std::iter::once(host).chain(containers) {
            for (name, address) in objects(snapshot, "addresses") {
                let link = name.split(' ').next().unwrap_or_default();
                if address["scope"] == "link" {
                    let owner = names.replace(link);
                    names.left_over(&text(&address, "local"), &owner);
                }
            }
        }
        names.0.sort_by_key(|(random, _)| std::cmp::Reverse(random.len()));
        names
    }

    fn add(&mut self, random: &str, name: &str) {
        if !self.0.iter().any(|(known, _)| known == random) {
            self.0.push((random.to_owned(), name.to_owned()));
        }
    }

    /// The address, the link-local address and the multicast group made from it.
    fn mac(&mut self, mac: &str, owner: &str) {
        let bytes: Vec<u8> =
            mac.split(':').filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
        let [a, b, c, d, e, f] = bytes[..] else { return };
        if mac.starts_with(CHOSEN) || bytes.iter().all(|byte| *byte == 0) {
            return;
        }
        self.add(mac, &format!("<MAC of {owner}>"));
        let pair = |high: u8, low: u8| u16::from_be_bytes([high, low]);
        let local = Ipv6Addr::new(
            0xfe80,
            0,
            0,
            0,
            pair(a ^ 2, b),
            pair(c, 0xff),
            pair(0xfe, d),
            pair(e, f),
        );
        self.add(&local.to_string(), &format!("<fe80:: of {owner}>"));
        self.add(&format!("33:33:ff:{d:02x}:{e:02x}:{f:02x}"), &format!("<33:33:ff of {owner}>"));
    }

    /// A link-local address made from a MAC address that the link no longer has.
    fn left_over(&mut self, address: &str, owner: &str) {
        let Ok(parsed) = address.parse::<Ipv6Addr>() else { return };
        let [.., b, c, d, e, f] = parsed.octets();
        if [b, c] == [0xff, 0xfe] {
            self.add(address, &format!("<old fe80:: of {owner}>"));
            self.add(
                &format!("33:33:ff:{d:02x}:{e:02x}:{f:02x}"),
                &format!("<old 33:33:ff of {owner}>"),
            );
        }
    }

    /// Replaces every random value in the text by its name.
    pub(super) fn replace(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (random, name)| {
            if text.contains(random.as_str()) { text.replace(random, name) } else { text }
        })
    }
}

fn is_random(name: &str, prefix: &str, digits: usize) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| {
        rest.len() == digits && rest.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// The objects of one section of a snapshot, by name.
fn objects<'s>(snapshot: &'s Snapshot, section: &str) -> Vec<(&'s str, Value)> {
    let facts = snapshot.facts().filter(|(of, _, _)| *of == section);
    facts.map(|(_, name, value)| (name, serde_json::from_str(value).unwrap())).collect()
}

fn text(link: &Value, key: &str) -> String {
    link[key].as_str().unwrap_or_default().to_owned()
}
