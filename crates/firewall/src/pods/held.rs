//! What the table holds, for a service that does not know yet what it is to hold.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kernel::nft::{Element, KeyType, Value};
use policy::program::Link;
use policy::{Direction, IpFamily};

use super::PodsTable;
use super::layout;
use crate::error::FirewallError;

/// What the table holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableContent {
    /// The addresses in each map and set that leads them to chains.
    addresses: BTreeSet<(String, IpAddr)>,
    /// The same for further networks.
    links: BTreeSet<(String, Link)>,
    /// How many rules each chain has, and how many elements each other set.
    counts: BTreeMap<String, usize>,
}

/// What another program has taken from the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loss {
    /// Addresses that led to a chain.
    pub addresses: BTreeSet<IpAddr>,
    /// The same for further networks.
    pub links: BTreeSet<Link>,
    /// Rules, or elements that rules ask for: any address may be concerned.
    pub others: bool,
}

/// What a set's elements are.
enum Use {
    Addresses(IpFamily),
    Links(IpFamily),
    Other,
}

impl TableContent {
    /// Reads what the table holds; nothing if there is no table.
    ///
    /// # Errors
    /// [`FirewallError::Tables`] when the kernel does not answer.
    pub fn read(table: &mut PodsTable) -> Result<Self, FirewallError> {
        let own = layout::table();
        let mut held = TableContent::default();
        for set in table.ask().sets(&own).map_err(|error| table.unread(error))? {
            let elements =
                table.ask().elements(&own, &set.name).map_err(|error| table.unread(error))?;
            match use_of(&set.name) {
                Use::Addresses(family) => {
                    let all = elements.iter().filter_map(|element| address(element, family));
                    held.addresses.extend(all.map(|address| (set.name.clone(), address)));
                }
                Use::Links(family) => {
                    let all = elements.iter().filter_map(|element| link(element, family));
                    held.links.extend(all.map(|link| (set.name.clone(), link)));
                }
                Use::Other => {
                    held.counts.insert(format!("set {}", set.name), elements.len());
                }
            }
        }
        for rule in table.ask().rules_of_table(&own).map_err(|error| table.unread(error))? {
            *held.counts.entry(format!("chain {}", rule.chain)).or_default() += 1;
        }
        Ok(held)
    }

    /// Compares with what the table holds `now`.
    #[must_use]
    pub fn lost(&self, now: &TableContent) -> Loss {
        let addresses = self.addresses.difference(&now.addresses);
        let links = self.links.difference(&now.links);
        let is_less = |(name, before): (&String, &usize)| {
            now.counts.get(name).is_none_or(|count| count < before)
        };
        Loss {
            addresses: addresses.map(|(_, address)| *address).collect(),
            links: links.map(|(_, link)| link.clone()).collect(),
            others: self.counts.iter().any(is_less),
        }
    }
}

fn use_of(set: &str) -> Use {
    for direction in Direction::ALL {
        for family in IpFamily::ALL {
            if set == layout::map(direction, family) || set == layout::keys(direction, family) {
                return Use::Addresses(family);
            }
            let links = [layout::link_map(direction, family), layout::link_keys(direction, family)];
            if links.iter().any(|name| name == set) {
                return Use::Links(family);
            }
        }
    }
    Use::Other
}

fn address(element: &Element, family: IpFamily) -> Option<IpAddr> {
    ip(element.key.values(&[layout::key_type(family)])?.first()?)
}

fn link(element: &Element, family: IpFamily) -> Option<Link> {
    let kinds: [KeyType; 2] = layout::link_type(family);
    match element.key.values(&kinds)?.as_slice() {
        [Value::IfName(interface), at] => {
            Some(Link { interface: interface.clone(), address: ip(at)? })
        }
        _ => None,
    }
}

fn ip(value: &Value) -> Option<IpAddr> {
    match value {
        Value::Ipv4(address) => Some((*address).into()),
        Value::Ipv6(address) => Some((*address).into()),
        _ => None,
    }
}
