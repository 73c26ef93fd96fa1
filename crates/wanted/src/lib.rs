#![doc = include_str!("../README.md")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod display;
mod state;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use state::*;

/// The version of the format. A reader that does not know an item's state cannot read the value; it
/// says so by the version.
pub const FORMAT: u32 = 1;

/// Everything that one plugin wants for one attachment.
///
/// Items are in the order in which they are restored: an item needs only those before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// [`FORMAT`] when it was written.
    pub version: u32,
    /// The items.
    pub items: Vec<Item>,
}

impl Default for Wanted {
    fn default() -> Self {
        Wanted { version: FORMAT, items: Vec::new() }
    }
}

impl Wanted {
    /// Creates one without items.
    #[must_use]
    pub fn new() -> Self {
        Wanted::default()
    }

    /// Adds an item, to be restored after all others.
    pub fn push(&mut self, item: Item) {
        self.items.push(item);
    }
}

impl Extend<Item> for Wanted {
    fn extend<I: IntoIterator<Item = Item>>(&mut self, items: I) {
        self.items.extend(items);
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for item in &self.items {
            let place = match item.place {
                Place::Host => "host",
                Place::Container => "container",
            };
            writeln!(f, "{place}: {item} ({})", item.because)?;
        }
        Ok(())
    }
}

/// One thing that is as the plugin wants it, or differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Where it is.
    pub place: Place,
    /// What it is.
    pub state: State,
    /// Why the plugin wants it.
    pub because: Reason,
}

impl Item {
    /// Creates an item of the host.
    #[must_use]
    pub fn host(state: State, because: Reason) -> Self {
        Item { place: Place::Host, state, because }
    }

    /// Creates an item of the container.
    #[must_use]
    pub fn container(state: State, because: Reason) -> Self {
        Item { place: Place::Container, state, because }
    }

    /// Returns how it is restored.
    #[must_use]
    pub fn restored(&self) -> Remedy {
        match &self.state {
            State::Link { .. }
            | State::Recorded { .. }
            | State::Peer { .. }
            | State::Taken { .. } => Remedy::ByHand(ATTACH_ANEW),
            State::Path { .. } => Remedy::ByHand(ROUTE_OF_OTHERS),
            State::NotOfHost { .. } => Remedy::ByHand(
                "give the network addresses that the host does not have, and attach the container \
                 anew",
            ),
            _ => Remedy::ByRepair,
        }
    }
}

/// A network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Place {
    /// The one that the plugin runs in.
    Host,
    /// The container's.
    Container,
}

/// Why a plugin wants something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reason {
    /// ADD created it and reported it.
    Created,
    /// The IPAM plugin assigned it.
    Ipam,
    /// A key of the configuration asks for it.
    Key(String),
    /// The container reaches other hosts by it.
    Outbound,
    /// The host reaches the container by it.
    Inbound,
    /// What a container sends must not change the host.
    Safety,
    /// It shows which attachment owns what.
    Ownership,
    /// Network policy judges by it.
    Policy,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Created => f.write_str("ADD created it"),
            Reason::Ipam => f.write_str("the IPAM plugin assigned it"),
            Reason::Key(key) => write!(f, "the configuration's {key} asks for it"),
            Reason::Outbound => f.write_str("the container reaches others by it"),
            Reason::Inbound => f.write_str("the host reaches the container by it"),
            Reason::Safety => f.write_str("a container must not change the host"),
            Reason::Ownership => f.write_str("it shows the owner"),
            Reason::Policy => f.write_str("network policy judges by it"),
        }
    }
}

/// What an administrator does about a link that repair cannot create again.
pub const ATTACH_ANEW: &str = "detach the container, and attach it anew";

/// What an administrator does about another program's route that covers one of ours.
pub const ROUTE_OF_OTHERS: &str = "remove or narrow that route (`ip route`, `ip -6 route`), or \
                                   give the network another subnet: repair leaves the routes of \
                                   others alone";

/// How an item is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Repair restores it under the running container.
    ByRepair,
    /// An administrator does this.
    ByHand(&'static str),
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use firewall::firewalld::Source;
    use ipnet::IpNet;

    use super::*;

    #[test]
    fn states_of_chained_plugins_are_read_back_and_say_what_they_are() {
        let address: IpAddr = "192.0.2.2".parse().unwrap();
        let sysctl = Sysctl {
            paths: vec!["net/core/somaxconn".to_owned()],
            value: "77".to_owned(),
            shown: None,
        };
        let source = Source { zone: "trusted".to_owned(), address };
        let link = || "eth0".to_owned();
        let net = IpNet::new(address, 24).unwrap();
        let route = SourceRoute {
            destination: net.trunc(),
            gateway: None,
            source: Some(address),
            scope: Some(253),
            protocol: Some(2),
            priority: None,
            onlink: false,
        };
        let table = SourceTable {
            address: net,
            table: 100,
            gateway: None,
            replaces: false,
            routes: vec![route],
        };
        let egress = Some(Limit { rate_bits_per_s: 8000, burst_bytes: None });
        let limits = Limits { ingress: None, egress };
        for (state, text) in [
            (
                State::Sysctls(Sysctls { link: None, values: vec![sysctl] }),
                "sysctl net/core/somaxconn = \"77\"",
            ),
            (
                State::QueueLength { link: link(), length: 5 },
                "transmission queue length 5 of interface \"eth0\"",
            ),
            (
                State::AllMulticast { link: link(), on: false },
                "all-multicast mode off of interface \"eth0\"",
            ),
            (
                State::Foreign(ForeignPart::Zones(vec![source])),
                "packet filter: 192.0.2.2 in trusted zone",
            ),
            (
                State::Foreign(ForeignPart::Accept { addresses: vec![address], legacy: true }),
                "packet filter: iptables accepts 192.0.2.2",
            ),
            (
                State::Rule(Rule { link: link(), from: address, table: 100 }),
                "rule that sends packets from 192.0.2.2 to table 100",
            ),
            (
                State::SourceTables(SourceTables {
                    link: link(),
                    tables: vec![table],
                    hints: false,
                    keeps_main: false,
                }),
                "routes of interface \"eth0\" in table 100 of 192.0.2.2/24",
            ),
            (
                State::Shaping(Shaping { link: link(), limits, fair: true, recorded: true }),
                "interface \"eth0\" limited to 8000 bit/s from the container",
            ),
            (
                State::Vrf(Vrf { link: link(), vrf: "blue".to_owned(), table: None }),
                "interface \"eth0\" in VRF \"blue\"",
            ),
            (
                State::ShownPackets(ShownPackets {
                    bridge: "br0".to_owned(),
                    ipv4: true,
                    ipv6: true,
                    tagged: false,
                }),
                "IPv4 and IPv6 packets within bridge \"br0\" shown to the packet filter",
            ),
            (
                State::Verdicts { addresses: vec![address] },
                "verdicts of network policy for 192.0.2.2",
            ),
        ] {
            let written = serde_json::to_string(&state).unwrap();
            assert_eq!(serde_json::from_str::<State>(&written).unwrap(), state);
            assert_eq!(Item::container(state, Reason::Created).to_string(), text);
        }
    }

    #[test]
    fn a_wanted_state_is_read_back_as_it_was_written() {
        let mut wanted = Wanted::new();
        wanted.push(Item::host(
            State::Forwarding { ipv4: true, restore: false },
            Reason::Key("isGateway".to_owned()),
        ));
        wanted.push(Item::container(
            State::Route(Route {
                gateway: Some("192.0.2.1".parse().unwrap()),
                satisfied_by: RouteMatch::Any,
                ..Route::new("eth0", "0.0.0.0/0".parse().unwrap())
            }),
            Reason::Ipam,
        ));
        let text = serde_json::to_string(&wanted).unwrap();
        assert_eq!(serde_json::from_str::<Wanted>(&text).unwrap(), wanted);
        assert_eq!(
            wanted.to_string(),
            "host: IPv4 forwarding (the configuration's isGateway asks for it)\n\
             container: route 0.0.0.0/0 via 192.0.2.1 of interface \"eth0\" (the IPAM plugin assigned it)\n"
        );
    }
}
