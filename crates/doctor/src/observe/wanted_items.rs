//! Maps the differences from what a plugin wants to the items of a scene.

use cni::ItemDrift;
use diagnose::model::{Item, ItemKind};
use ipnet::IpNet;
use wanted::{Item as WantedItem, Place, State};

/// Maps one difference. A state that is not known here has no kind, and may break anything.
pub(super) fn item(differs: &ItemDrift) -> Item {
    let what = differs.what.clone();
    let wanted =
        differs.item.clone().and_then(|item| serde_json::from_value::<WantedItem>(item).ok());
    let ItemDrift { ours, hairpin, .. } = *differs;
    let Some(wanted) = wanted else { return Item { what, ours, hairpin, ..Item::default() } };
    let host = wanted.place == Place::Host;
    let link = wanted.state.link().map(str::to_owned);
    let (addresses, sysctls) = (addresses(&wanted.state), sysctls(&wanted.state));
    Item { kind: kind(&wanted.state), what, host, link, addresses, sysctls, ours, hairpin }
}

fn kind(state: &State) -> ItemKind {
    match state {
        State::Link { .. }
        | State::Recorded { .. }
        | State::Peer { .. }
        | State::Taken { .. }
        | State::OvsInterface { .. }
        | State::Up { .. } => ItemKind::Link,
        State::Mac { .. } => ItemKind::Mac,
        State::Mtu { .. } | State::BridgeMtu { .. } => ItemKind::Mtu,
        State::QueueLength { .. }
        | State::Promiscuous { .. }
        | State::AllMulticast { .. }
        | State::Mark { .. }
        | State::OvsMirrors(_)
        | State::NoAdvertisements { .. } => ItemKind::Setting,
        State::Sysctls(_) => ItemKind::Sysctls,
        State::Address(address) if address.gateway => ItemKind::Gateways,
        State::Address(_) => ItemKind::Address,
        State::Gateways(_) => ItemKind::Gateways,
        State::Route(_) | State::Path { .. } | State::SubnetRoute { .. } => ItemKind::Route,
        State::NoNeighbour { .. } => ItemKind::Neighbour,
        State::Bridge(_) => ItemKind::Bridge,
        State::Port(_) | State::VlanLink { .. } | State::OvsPort { .. } => ItemKind::Port,
        State::LinkLocal { .. } => ItemKind::LinkLocal,
        State::Forwarding { .. } => ItemKind::Forwarding,
        State::Filter { .. } => ItemKind::Filter,
        State::Foreign(_) => ItemKind::Foreign,
        State::HostPorts(_) => ItemKind::HostPorts,
        State::Rule(_) | State::SourceTables(_) => ItemKind::PolicyRoute,
        State::Shaping(_) => ItemKind::Shaping,
        State::Vrf(_) => ItemKind::Vrf,
        State::ShownPackets(_) | State::Verdicts { .. } => ItemKind::Policy,
        _ => ItemKind::Other,
    }
}

/// Returns the addresses that a state is about: they show the IP version.
fn addresses(state: &State) -> Vec<IpNet> {
    match state {
        State::Address(address) => vec![address.address],
        State::Gateways(gateways) => gateways.addresses.clone(),
        State::Route(route) => vec![route.destination],
        State::Path { to, .. } | State::SubnetRoute { to, .. } => vec![IpNet::from(*to)],
        State::NoNeighbour { address, .. } | State::NotOfHost { address, .. } => {
            vec![IpNet::from(*address)]
        }
        State::Filter { addresses, .. } => addresses.clone(),
        State::Verdicts { addresses } => addresses.iter().copied().map(IpNet::from).collect(),
        State::Rule(rule) => vec![IpNet::from(rule.from)],
        State::SourceTables(tables) => tables.tables.iter().map(|own| own.address).collect(),
        // Only the state shows which of both it is.
        State::Forwarding { ipv4: true, .. } => vec![any("0.0.0.0/0")],
        State::Forwarding { ipv4: false, .. } => vec![any("::/0")],
        _ => Vec::new(),
    }
}

/// Every address of an IP version.
fn any(net: &str) -> IpNet {
    net.parse().expect("it is a network")
}

fn sysctls(state: &State) -> Vec<String> {
    match state {
        State::Sysctls(sysctls) => {
            sysctls.values.iter().flat_map(|value| value.paths.iter().cloned()).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wanted::{Reason, Route};

    fn it_differs() -> ItemDrift {
        ItemDrift {
            what: "it differs".to_owned(),
            remedy: String::new(),
            item: None,
            ours: false,
            hairpin: false,
        }
    }

    fn of(wanted: &WantedItem) -> Item {
        let item = Some(serde_json::to_value(wanted).unwrap());
        super::item(&ItemDrift { item, ..it_differs() })
    }

    #[test]
    fn an_item_says_what_it_is_and_of_which_ip_version() {
        let route = State::Route(Route::new("eth0", "::/0".parse().unwrap()));
        let found = of(&WantedItem::container(route, Reason::Ipam));
        assert_eq!((found.kind, found.host), (ItemKind::Route, false));
        assert_eq!(found.link.as_deref(), Some("eth0"));
        assert_eq!(found.addresses, ["::/0".parse::<IpNet>().unwrap()]);
        let forwarding = State::Forwarding { ipv4: true, restore: false };
        let found = of(&WantedItem::host(forwarding, Reason::Outbound));
        assert_eq!((found.kind, found.host), (ItemKind::Forwarding, true));
        assert_eq!(found.addresses, ["0.0.0.0/0".parse::<IpNet>().unwrap()]);
    }

    /// A newer plugin may want what this program does not know.
    #[test]
    fn what_is_not_known_is_of_no_kind() {
        let item = Some(serde_json::json!({ "place": "host", "state": "telepathy" }));
        let differs = ItemDrift { item, ..it_differs() };
        let expected = Item { what: "it differs".to_owned(), ..Item::default() };
        assert_eq!(super::item(&differs), expected);
    }

    /// The words are for people: what a rule asks is data.
    #[test]
    fn what_only_our_plugins_make_stays_known() {
        let port = serde_json::json!({ "place": "host", "state": "telepathy" });
        for (ours, hairpin) in [(true, false), (false, true)] {
            let differs = ItemDrift { item: Some(port.clone()), ours, hairpin, ..it_differs() };
            let text = serde_json::to_string(&differs).unwrap();
            let found = super::item(&serde_json::from_str(&text).unwrap());
            assert_eq!((found.ours, found.hairpin), (ours, hairpin));
        }
    }
}
