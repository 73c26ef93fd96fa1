//! A network's addresses: ranges, exclusions, gateways, and how ranges are cut into blocks.
//!
//! A [`NetworkSpec`] is the configuration, as the plugin sends it; a [`Network`] is a checked one.
//! Addresses of both families are 128-bit numbers here.
//!
//! Addresses are unique within a *space*. That is either all ranges with the same
//! [`NetworkSpec::space`], of any network ([`NetworkSpec::overlapping`]), or only one range's
//! subnet in it.
//!
//! All nodes cut a space by one record, `SpaceRecord`, to which parts are only ever added. So
//! ranges of several networks may overlap, and the configurations of two nodes may disagree,
//! without a lock over the space. A range in use keeps its blocks, whatever configuration or
//! version say later. In a small subnet a block is one address, so that each node gets one as long
//! as one is free.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use net::IpFamily;
use thiserror::Error;

pub use node_api::ipam::{NetworkSpec, RangeSpec};

/// How many ranges a network may have: more addresses on one interface would be a mistake.
pub const MAX_RANGES: usize = 64;
/// How many exclusions a range may have.
pub const MAX_EXCLUSIONS: usize = 4096;
/// The longest name of a space: as much as names of Kubernetes objects leave room for.
pub const MAX_SPACE_NAME: usize = 63;
/// A block has at most 2 to the power of this many addresses: its record is written whole.
pub const MAX_BLOCK_BITS: u8 = 10;
/// By default a block has 2 to the power of this many addresses, if the range is large enough.
pub const USUAL_BLOCK_BITS: u8 = 6;
/// By default a range has at least this many blocks, or its blocks have one address each.
pub const LEAST_BLOCKS: usize = 64;
/// By default a range has at least this many blocks for each node, or its blocks have one address
/// each.
pub const BLOCKS_A_NODE: usize = 4;
/// The space of networks that name none.
pub const UNNAMED_SPACE: &str = "default";

/// Returns the address with this number; bits beyond an IPv4 address are cut.
#[must_use]
pub fn address_of(family: IpFamily, number: u128) -> IpAddr {
    match family {
        IpFamily::V4 => {
            let low = u32::try_from(number & u128::from(u32::MAX)).unwrap_or(u32::MAX);
            IpAddr::V4(Ipv4Addr::from_bits(low))
        }
        IpFamily::V6 => IpAddr::V6(Ipv6Addr::from_bits(number)),
    }
}

/// Returns an address as a number.
#[must_use]
pub fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Returns the first and the last number of a prefix.
#[must_use]
pub fn bounds(prefix: &IpNet) -> (u128, u128) {
    (number(prefix.network()), number(prefix.broadcast()))
}

/// Reads a prefix, or a single address as a prefix of full length. Host bits are ignored.
#[must_use]
pub fn parse_prefix(text: &str) -> Option<IpNet> {
    let text = text.trim();
    match text.parse::<IpNet>() {
        Ok(prefix) => Some(prefix.trunc()),
        Err(_) => text.parse::<IpAddr>().ok().map(IpNet::from),
    }
}

/// Why a network's addresses are invalid. Each is a sentence for the configuration's author.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// The network has no name.
    #[error("the network has no name")]
    NoName,
    /// The space's name cannot be the name of a Kubernetes object.
    #[error(
        "network_name {0:?} is not valid: it has at most {MAX_SPACE_NAME} lower-case letters, digits, dots and dashes, and begins and ends with a letter or digit"
    )]
    SpaceName(String),
    /// There are no ranges.
    #[error("network {0:?} has no range of addresses")]
    NoRanges(String),
    /// There are too many ranges.
    #[error("{0} ranges, more than {MAX_RANGES}")]
    ManyRanges(usize),
    /// There are too many exclusions.
    #[error("{count} exclusions of {subnet}, more than {MAX_EXCLUSIONS}")]
    ManyExclusions {
        /// The range's subnet.
        subnet: IpNet,
        /// The number found.
        count: usize,
    },
    /// An end of a range is not in its subnet.
    #[error("the range's {end} {address} is not in its subnet {subnet}")]
    Outside {
        /// `start` or `end`.
        end: &'static str,
        /// The address.
        address: IpAddr,
        /// The subnet.
        subnet: IpNet,
    },
    /// No host can have any address of a subnet.
    #[error("the range of {subnet} has {what}, which no host can have as its own")]
    Reserved {
        /// The subnet.
        subnet: IpNet,
        /// What its addresses are, as "multicast addresses".
        what: &'static str,
    },
    /// A range ends before it begins.
    #[error("the range of {subnet} ends at {last}, before its start {first}")]
    Backwards {
        /// The subnet.
        subnet: IpNet,
        /// Its first address.
        first: IpAddr,
        /// Its last address.
        last: IpAddr,
    },
    /// A range contains no address.
    #[error("the range of {0} leaves no address to assign")]
    Nothing(IpNet),
    /// A gateway is of the other family.
    #[error("the gateway {gateway} of {subnet} is of the other family")]
    Gateway {
        /// The gateway.
        gateway: IpAddr,
        /// The subnet.
        subnet: IpNet,
    },
    /// Blocks cannot have that size.
    #[error(
        "blocks of /{prefix} do not fit: {family} blocks are from /{longest} to /{shortest}, at most {} addresses",
        1_u32 << MAX_BLOCK_BITS
    )]
    BlockSize {
        /// The requested length.
        prefix: u8,
        /// The family.
        family: IpFamily,
        /// The smallest number.
        longest: u8,
        /// The largest number.
        shortest: u8,
    },
}

/// A network whose addresses are valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    spec: NetworkSpec,
    ranges: Vec<Range>,
}

impl Network {
    /// Checks a configuration.
    ///
    /// # Errors
    /// [`NetworkError`].
    pub fn new(spec: NetworkSpec) -> Result<Self, NetworkError> {
        if spec.network.is_empty() {
            return Err(NetworkError::NoName);
        }
        if !spec.space.is_empty() && !is_space_name(&spec.space) {
            return Err(NetworkError::SpaceName(spec.space));
        }
        if spec.ranges.is_empty() {
            return Err(NetworkError::NoRanges(spec.network));
        }
        if MAX_RANGES < spec.ranges.len() {
            return Err(NetworkError::ManyRanges(spec.ranges.len()));
        }
        for (prefix, family) in [(spec.block_v4, IpFamily::V4), (spec.block_v6, IpFamily::V6)] {
            let Some(prefix) = prefix else { continue };
            let (longest, shortest) = (family.bits() - MAX_BLOCK_BITS, family.bits());
            if prefix < longest || shortest < prefix {
                return Err(NetworkError::BlockSize { prefix, family, longest, shortest });
            }
        }
        let ranges = spec.ranges.iter().map(Range::new).collect::<Result<_, _>>()?;
        Ok(Network { spec, ranges })
    }

    /// Returns the checked configuration.
    #[must_use]
    pub fn spec(&self) -> &NetworkSpec {
        &self.spec
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.network
    }

    /// Returns its ranges, in the order of the configuration.
    #[must_use]
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Returns the name of the space in which a range's addresses are unique.
    #[must_use]
    pub fn space(&self, range: &Range) -> String {
        let name = if self.spec.space.is_empty() { UNNAMED_SPACE } else { &self.spec.space };
        if self.spec.overlapping {
            return name.to_owned();
        }
        // The name of a space cannot contain this character.
        format!("{name}@{}-{}", range.subnet.addr(), range.subnet.prefix_len())
    }

    /// Returns the prefix length of a range's blocks that the configuration requests.
    #[must_use]
    pub fn asked_block_prefix(&self, range: &Range) -> Option<u8> {
        match range.family() {
            IpFamily::V4 => self.spec.block_v4,
            IpFamily::V6 => self.spec.block_v6,
        }
    }

    /// Returns the prefix length of blocks in a range, in a cluster of that many nodes, unless the
    /// space already uses another.
    ///
    /// A block has as many addresses as leave [`LEAST_BLOCKS`] blocks, and [`BLOCKS_A_NODE`] for
    /// each node: a power of two, from 1 to 64. Large blocks need few requests to the store. But no
    /// other node can use the rest of a block that a node has started, so there must be many more
    /// blocks than nodes.
    #[must_use]
    pub fn block_prefix(&self, range: &Range, nodes: usize) -> u8 {
        let bits = range.family().bits();
        let blocks = nodes.saturating_mul(BLOCKS_A_NODE).max(LEAST_BLOCKS);
        let blocks = u128::try_from(blocks).unwrap_or(u128::MAX);
        let in_block = ceil_log2(range.capacity()).saturating_sub(ceil_log2(blocks));
        let usual = bits - in_block.min(USUAL_BLOCK_BITS);
        let asked = self.asked_block_prefix(range).unwrap_or(usual);
        asked.max(range.subnet.prefix_len()).min(bits)
    }
}

/// A range that makes sense.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    subnet: IpNet,
    first: u128,
    last: u128,
    gateway: Option<IpAddr>,
    /// Sorted and disjoint.
    excluded: Vec<(u128, u128)>,
}

impl Range {
    fn new(spec: &RangeSpec) -> Result<Self, NetworkError> {
        let subnet = spec.subnet.trunc();
        let family = IpFamily::of(subnet.addr());
        if let Some(what) = ipam::host::no_hosts(subnet) {
            return Err(NetworkError::Reserved { subnet, what });
        }
        let (lowest, highest) = bounds(&subnet);
        let end = |end: &'static str, address: Option<IpAddr>, default: u128| match address {
            None => Ok(default),
            Some(address) if !subnet.contains(&address) => {
                Err(NetworkError::Outside { end, address, subnet })
            }
            Some(address) => Ok(number(address)),
        };
        let (first, last) = (end("start", spec.first, lowest)?, end("end", spec.last, highest)?);
        if last < first {
            let (first, last) = (address_of(family, first), address_of(family, last));
            return Err(NetworkError::Backwards { subnet, first, last });
        }
        if let Some(gateway) = spec.gateway
            && IpFamily::of(gateway) != family
        {
            return Err(NetworkError::Gateway { gateway, subnet });
        }
        if MAX_EXCLUSIONS < spec.exclude.len() {
            let count = spec.exclude.len();
            return Err(NetworkError::ManyExclusions { subnet, count });
        }
        let of_family = spec.exclude.iter().filter(|one| IpFamily::of(one.addr()) == family);
        let mut excluded: Vec<_> = of_family.map(bounds).collect();
        excluded.extend(spec.gateway.map(|gateway| (number(gateway), number(gateway))));
        let hosts =
            ipam::host::hosts_between(subnet, address_of(family, first), address_of(family, last));
        let (first, last) = hosts.ok_or(NetworkError::Nothing(subnet))?;
        let range = Range {
            subnet,
            first: number(first),
            last: number(last),
            gateway: spec.gateway,
            excluded: merged(excluded),
        };
        match range.next(range.first) {
            Some(_) => Ok(range),
            None => Err(NetworkError::Nothing(subnet)),
        }
    }

    /// Returns the subnet.
    #[must_use]
    pub fn subnet(&self) -> IpNet {
        self.subnet
    }

    /// Returns the family.
    #[must_use]
    pub fn family(&self) -> IpFamily {
        IpFamily::of(self.subnet.addr())
    }

    /// Returns the gateway.
    #[must_use]
    pub fn gateway(&self) -> Option<IpAddr> {
        self.gateway
    }

    /// Returns the first address, which may be excluded.
    #[must_use]
    pub fn first(&self) -> IpAddr {
        address_of(self.family(), self.first)
    }

    /// Returns the last address, which may be excluded.
    #[must_use]
    pub fn last(&self) -> IpAddr {
        address_of(self.family(), self.last)
    }

    /// Returns the first and the last address as numbers.
    #[must_use]
    pub fn bounds(&self) -> (u128, u128) {
        (self.first, self.last)
    }

    /// Says whether a prefix contains addresses between the first and the last.
    #[must_use]
    pub fn overlaps(&self, prefix: &IpNet) -> bool {
        let (low, high) = bounds(prefix);
        IpFamily::of(prefix.addr()) == self.family() && low <= self.last && self.first <= high
    }

    /// Says whether an address may be assigned.
    #[must_use]
    pub fn allows(&self, address: IpAddr) -> bool {
        let number = number(address);
        IpFamily::of(address) == self.family() && self.next(number) == Some(number)
    }

    /// Returns the first number at or after `from` that may be assigned.
    #[must_use]
    pub fn next(&self, from: u128) -> Option<u128> {
        let mut at = from.max(self.first);
        let begin = self.excluded.partition_point(|(_, last)| *last < at);
        for (first, last) in &self.excluded[begin..] {
            if at < *first {
                break;
            }
            at = last.checked_add(1)?;
        }
        (at <= self.last).then_some(at)
    }

    /// Returns an upper bound of how many addresses may be assigned.
    #[must_use]
    pub fn capacity(&self) -> u128 {
        let mut count = (self.last - self.first).saturating_add(1);
        for (first, last) in &self.excluded {
            let (first, last) = ((*first).max(self.first), (*last).min(self.last));
            if first <= last {
                count = count.saturating_sub((last - first).saturating_add(1));
            }
        }
        count
    }
}

/// Returns how many bits count this many things.
fn ceil_log2(count: u128) -> u8 {
    let bits = u128::BITS - count.saturating_sub(1).leading_zeros();
    u8::try_from(bits).unwrap_or(u8::MAX)
}

fn merged(mut parts: Vec<(u128, u128)>) -> Vec<(u128, u128)> {
    parts.sort_unstable();
    let mut whole: Vec<(u128, u128)> = Vec::with_capacity(parts.len());
    for (first, last) in parts {
        match whole.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => whole.push((first, last)),
        }
    }
    whole
}

fn is_space_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.len() <= MAX_SPACE_NAME
        && name.chars().all(inner)
        && edge(name.chars().next())
        && edge(name.chars().next_back())
}

#[cfg(test)]
mod tests;
