//! Which addresses a host can have in its subnet. Whoever gives out addresses, or warns about them,
//! asks here.
//!
//! ```
//! use netwright_ipam::host;
//!
//! let what = host::no_host("192.0.2.255/24".parse()?);
//! assert_eq!(what.as_deref(), Some("the broadcast address of 192.0.2.0/24"));
//! assert_eq!(host::no_host("192.0.2.255/31".parse()?), None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::net::IpAddr;

use ipnet::IpNet;

use crate::range::{from_number, to_number};

/// Consecutive addresses that no host can have in any subnet.
#[derive(Debug)]
struct Block {
    first: u128,
    last: u128,
    /// What one of them is.
    one: &'static str,
    /// What several of them are.
    several: &'static str,
}

impl Block {
    fn has(&self, address: IpAddr) -> bool {
        (self.first..=self.last).contains(&to_number(address))
    }
}

/// RFC 1122 §3.2.1.3, RFC 5771. Linux lets hosts have those of 240.0.0.0/4.
const V4: [Block; 4] = [
    Block {
        first: 0,
        last: 0x00ff_ffff,
        one: "an address of 0.0.0.0/8 (\"this network\")",
        several: "addresses of 0.0.0.0/8 (\"this network\")",
    },
    Block {
        first: 0x7f00_0000,
        last: 0x7fff_ffff,
        one: "a loopback address",
        several: "loopback addresses",
    },
    Block {
        first: 0xe000_0000,
        last: 0xefff_ffff,
        one: "a multicast address",
        several: "multicast addresses",
    },
    Block {
        first: 0xffff_ffff,
        last: 0xffff_ffff,
        one: "the broadcast address of every network",
        several: "the broadcast address of every network",
    },
];

/// RFC 4291 §2.5.2, §2.5.3, §2.7.
const V6: [Block; 3] = [
    Block { first: 0, last: 0, one: "the unspecified address", several: "the unspecified address" },
    Block { first: 1, last: 1, one: "the loopback address", several: "the loopback address" },
    Block {
        first: 0xff << 120,
        last: u128::MAX,
        one: "a multicast address",
        several: "multicast addresses",
    },
];

/// Says what an address is, as "the broadcast address of 192.0.2.0/24", if no host can have it in
/// its subnet: the subnet's network address (IPv6: that of its routers, RFC 4291 §2.6.1), IPv4's
/// broadcast address, a multicast or loopback address, one that stands for no host. Subnets of one
/// or two addresses have no network and no broadcast address (RFC 3021, RFC 6164).
#[must_use]
pub fn no_host(address: IpNet) -> Option<String> {
    if let Some(block) = blocks(address).iter().find(|block| block.has(address.addr())) {
        return Some(block.one.to_owned());
    }
    let ends = ends(address);
    let (what, _) = ends.iter().find(|(_, end)| *end == address.addr())?;
    Some(format!("the {what} of {}", address.trunc()))
}

/// Says what an address is if it cannot be a subnet's gateway. Unlike a host, a gateway can be
/// outside the subnet, and can have the address of an IPv6 subnet's routers.
#[must_use]
pub fn no_gateway(gateway: IpAddr, subnet: IpNet) -> Option<String> {
    let is_of_routers = gateway.is_ipv6() && gateway == subnet.network();
    let within = subnet.contains(&gateway) && !is_of_routers;
    let alone = IpNet::from(gateway);
    let length = if within { subnet.prefix_len() } else { alone.prefix_len() };
    no_host(IpNet::new(gateway, length).unwrap_or(alone))
}

/// Says what a subnet's addresses are, as "multicast addresses", if no host can have any of them.
#[must_use]
pub fn no_hosts(subnet: IpNet) -> Option<&'static str> {
    let ends = [subnet.network(), subnet.broadcast()];
    let block = blocks(subnet).iter().find(|block| ends.iter().all(|end| block.has(*end)))?;
    Some(block.several)
}

/// Returns the first and the last of the addresses of a subnet, between two of them, that hosts can
/// have. Of two runs of such addresses it is the first: only a quarter of all IPv4 addresses, or
/// more, has two.
#[must_use]
pub fn hosts_between(subnet: IpNet, first: IpAddr, last: IpAddr) -> Option<(IpAddr, IpAddr)> {
    let (mut first, mut last) = (to_number(first), to_number(last));
    let mut taken: Vec<(u128, u128)> =
        blocks(subnet).iter().map(|block| (block.first, block.last)).collect();
    taken.extend(ends(subnet).iter().map(|(_, end)| (to_number(*end), to_number(*end))));
    taken.sort_unstable();
    for (low, high) in &taken {
        if (low..=high).contains(&&first) {
            first = high.checked_add(1)?;
        }
    }
    if let Some((low, _)) = taken.iter().find(|(low, _)| first < *low && *low <= last) {
        last = low - 1;
    }
    let address = |number| from_number(number, subnet.addr());
    (first <= last).then(|| (address(first), address(last)))
}

fn blocks(subnet: IpNet) -> &'static [Block] {
    match subnet {
        IpNet::V4(_) => &V4,
        IpNet::V6(_) => &V6,
    }
}

/// Returns the ends of a subnet that no host can have.
fn ends(subnet: IpNet) -> Vec<(&'static str, IpAddr)> {
    if subnet.max_prefix_len() - 2 < subnet.prefix_len() {
        return Vec::new();
    }
    match subnet {
        IpNet::V4(net) => vec![
            ("network address", net.network().into()),
            ("broadcast address", net.broadcast().into()),
        ],
        IpNet::V6(net) => vec![("address of the routers", net.network().into())],
    }
}

#[cfg(test)]
mod tests;
