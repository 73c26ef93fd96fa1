//! Ranges of addresses.
//!
//! A *range* is a run of addresses of one subnet. A *range set* is one or more ranges of one
//! family, from which an attachment gets one address. The *range sets* of a network give an
//! attachment all its addresses. The rules and the words of the errors are the reference's, upper
//! case included: callers match on them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

use crate::host;

/// A range as configurations write it, not yet checked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RangeSpec {
    /// The subnet; its address must have no host bits.
    #[serde(deserialize_with = "deserialize_subnet")]
    pub subnet: Option<IpNet>,
    /// The first address to assign; the one after the network's if absent, or if it is the
    /// network's.
    #[serde(rename = "rangeStart", with = "cni::text::optional_ip")]
    pub range_start: Option<IpAddr>,
    /// The last address to assign; if absent, the last of the subnet, for IPv4 the one before, even
    /// if the last is named.
    #[serde(rename = "rangeEnd", with = "cni::text::optional_ip")]
    pub range_end: Option<IpAddr>,
    /// The gateway, which is never assigned; the address after the network's if absent.
    #[serde(with = "cni::text::optional_ip")]
    pub gateway: Option<IpAddr>,
}

/// Reads a subnet for a field that may be absent.
///
/// An IPv4 subnet written as IPv6 is kept as it is written, so that [`RangeError::FamilyMismatch`]
/// can be reported.
///
/// # Errors
/// `invalid CIDR address: X`, in Go's words.
pub fn deserialize_subnet<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<IpNet>, D::Error> {
    let text = String::deserialize(deserializer)?;
    // Go's grammar comes first, because it is stricter.
    match (cni::text::parse_cidr(&text), text.parse()) {
        (Some(_), Ok(subnet)) => Ok(Some(subnet)),
        _ => Err(serde::de::Error::custom(format_args!("invalid CIDR address: {text}"))),
    }
}

/// A run of addresses in one subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    subnet: IpNet,
    start: IpAddr,
    end: IpAddr,
    gateway: IpAddr,
}

/// The reason why a range is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// There is no subnet.
    #[error("IP <nil> not v4 nor v6")]
    NoSubnet,
    /// The subnet has no room for a gateway and an address.
    #[error("Network {subnet} too small to allocate from")]
    TooSmall {
        /// The subnet.
        subnet: IpNet,
    },
    /// The subnet is an IPv4 address written as IPv6 with an IPv6 prefix length.
    #[error("IPNet IP and Mask version mismatch")]
    FamilyMismatch,
    /// No host can have any of the subnet's addresses.
    #[error("Network {subnet} is of {what}, which no host can have as its own")]
    Reserved {
        /// The subnet.
        subnet: IpNet,
        /// What its addresses are, as "multicast addresses".
        what: &'static str,
    },
    /// The range has only addresses that no host can have.
    #[error("range {start}-{end} of {subnet} leaves no address for a host")]
    NoHosts {
        /// The first address.
        start: IpAddr,
        /// The last address.
        end: IpAddr,
        /// The subnet.
        subnet: IpNet,
    },
    /// The subnet is written with an address within it.
    #[error(
        "Network has host bits set. For a subnet mask of length {prefix_len} the network address is {network}"
    )]
    HostBits {
        /// The subnet's prefix length.
        prefix_len: u8,
        /// How it should have been written.
        network: IpAddr,
    },
    /// The first address is not in the subnet, or after the last.
    #[error("RangeStart {start} not in network {subnet}")]
    StartOutside {
        /// The first address.
        start: IpAddr,
        /// The subnet.
        subnet: IpNet,
    },
    /// The last address is not in the subnet, or before the first.
    #[error("RangeEnd {end} not in network {subnet}")]
    EndOutside {
        /// The last address.
        end: IpAddr,
        /// The subnet.
        subnet: IpNet,
    },
}

impl Range {
    /// Checks and completes a range. Unlike the reference's, it leaves out addresses that no host
    /// can have, also if the configuration names them ([`host::hosts_between`]).
    ///
    /// # Errors
    /// [`RangeError`].
    pub fn new(spec: &RangeSpec) -> Result<Self, RangeError> {
        let subnet = spec.subnet.ok_or(RangeError::NoSubnet)?;
        if subnet.max_prefix_len() - 2 < subnet.prefix_len() {
            return Err(RangeError::TooSmall { subnet });
        }
        if subnet.addr().to_canonical() != subnet.addr() {
            return Err(RangeError::FamilyMismatch);
        }
        if subnet.addr() != subnet.network() {
            let (prefix_len, network) = (subnet.prefix_len(), subnet.network());
            return Err(RangeError::HostBits { prefix_len, network });
        }
        if let Some(what) = host::no_hosts(subnet) {
            return Err(RangeError::Reserved { subnet, what });
        }
        let second = from_number(to_number(subnet.network()) + 1, subnet.network());
        let canonical = |address: Option<IpAddr>| address.map(|address| address.to_canonical());
        let (start, end) = (canonical(spec.range_start), canonical(spec.range_end));
        // As in the reference, a start after the end is reported as a start outside.
        if let Some(start) = start
            && (!subnet.contains(&start) || end.is_some_and(|end| is_before(end, start)))
        {
            return Err(RangeError::StartOutside { start, subnet });
        }
        if let Some(end) = end
            && (!subnet.contains(&end) || is_before(end, start.unwrap_or(second)))
        {
            return Err(RangeError::EndOutside { end, subnet });
        }
        let (start, end) = (start.unwrap_or(second), end.unwrap_or(subnet.broadcast()));
        let Some((first, last)) = host::hosts_between(subnet, start, end) else {
            return Err(RangeError::NoHosts { start, end, subnet });
        };
        Ok(Range {
            subnet,
            start: first,
            end: last,
            gateway: canonical(spec.gateway).unwrap_or(second),
        })
    }

    /// Returns the subnet; addresses are assigned with its prefix length.
    #[must_use]
    pub fn subnet(&self) -> IpNet {
        self.subnet
    }

    /// Returns the first address.
    #[must_use]
    pub fn start(&self) -> IpAddr {
        self.start
    }

    /// Returns the last address.
    #[must_use]
    pub fn end(&self) -> IpAddr {
        self.end
    }

    /// Returns the gateway. It need not be in the range, nor in the subnet.
    #[must_use]
    pub fn gateway(&self) -> IpAddr {
        self.gateway
    }

    /// Reports whether an address lies in the range.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.start.is_ipv4() && self.start <= address && address <= self.end
    }

    fn overlaps(&self, other: &Range) -> bool {
        self.start.is_ipv4() == other.start.is_ipv4()
            && self.start <= other.end
            && other.start <= self.end
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}

/// Returns whether `a` comes before `b`; never true for addresses of different families.
fn is_before(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4() && a < b
}

/// Turns an address into the number that orders it within its family.
pub(crate) fn to_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

/// Turns a number back into an address of the family of `like`.
pub(crate) fn from_number(number: u128, like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::from(
            u32::try_from(number).expect("the number lies between two IPv4 addresses"),
        )
        .into(),
        IpAddr::V6(_) => Ipv6Addr::from(number).into(),
    }
}

/// Consecutive addresses of one range, as numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run<'s> {
    /// The first.
    pub(crate) first: u128,
    /// The last.
    pub(crate) last: u128,
    range: &'s Range,
}

impl<'s> Run<'s> {
    fn new(range: &'s Range, first: IpAddr, last: IpAddr) -> Self {
        Run { first: to_number(first), last: to_number(last), range }
    }

    /// Turns one of the numbers back into an address.
    pub(crate) fn address(&self, number: u128) -> IpAddr {
        from_number(number, self.range.start)
    }

    /// Reports whether the addresses are IPv4.
    pub(crate) fn is_ipv4(&self) -> bool {
        self.range.start.is_ipv4()
    }
}

/// One or more ranges of one family that do not overlap: an attachment gets one address from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeSet(Vec<Range>);

/// The reason why a range set is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeSetError {
    /// There is no range.
    #[error("empty range set")]
    Empty,
    /// One of the ranges is invalid by itself.
    #[error(transparent)]
    Range(RangeError),
    /// There are IPv4 ranges and IPv6 ranges.
    #[error("mixed address families")]
    MixedFamilies,
    /// Two ranges share addresses.
    #[error("subnets {a} and {b} overlap")]
    Overlap {
        /// The earlier.
        a: Box<Range>,
        /// The later.
        b: Box<Range>,
    },
}

impl RangeSet {
    /// Checks and completes a range set.
    ///
    /// # Errors
    /// [`RangeSetError`].
    pub fn new(specs: &[RangeSpec]) -> Result<Self, RangeSetError> {
        let mut ranges: Vec<Range> = Vec::with_capacity(specs.len());
        for spec in specs {
            let range = Range::new(spec).map_err(RangeSetError::Range)?;
            if ranges.first().is_some_and(|first| first.start.is_ipv4() != range.start.is_ipv4()) {
                return Err(RangeSetError::MixedFamilies);
            }
            ranges.push(range);
        }
        if ranges.is_empty() {
            return Err(RangeSetError::Empty);
        }
        for (index, a) in ranges.iter().enumerate() {
            if let Some(b) = ranges[index + 1..].iter().find(|b| a.overlaps(b)) {
                return Err(RangeSetError::Overlap { a: a.clone().into(), b: b.clone().into() });
            }
        }
        Ok(RangeSet(ranges))
    }

    /// Lists the ranges; there is at least one.
    #[must_use]
    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// Reports whether the set is IPv4.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        self.0[0].start.is_ipv4()
    }

    /// Returns the range that contains an address.
    #[must_use]
    pub fn range_of(&self, address: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.contains(address))
    }

    /// Walks once around all addresses of the set, beginning after `last`, or at the start if
    /// `last` is not in the set. Gateways are included.
    ///
    /// Nothing is computed in advance: taking a few addresses of a /64 costs a few steps.
    pub fn ring(&self, last: Option<IpAddr>) -> impl Iterator<Item = (IpAddr, &Range)> {
        self.runs(last).into_iter().flat_map(|run| {
            (run.first..=run.last).map(move |number| (run.address(number), run.range))
        })
    }

    /// Splits the walk of [`RangeSet::ring`] into runs of consecutive addresses.
    pub(crate) fn runs(&self, last: Option<IpAddr>) -> Vec<Run<'_>> {
        let whole = |range| Run::new(range, range.start, range.end);
        let position = last.and_then(|last| {
            self.0.iter().position(|range| range.contains(last)).map(|index| (index, last))
        });
        let Some((index, last)) = position else { return self.0.iter().map(whole).collect() };
        let range = &self.0[index];
        let mut runs = Vec::with_capacity(self.0.len() + 1);
        if last != range.end {
            let mut rest = whole(range);
            rest.first = to_number(last) + 1;
            runs.push(rest);
        }
        runs.extend(self.0[index + 1..].iter().map(whole));
        runs.extend(self.0[..index].iter().map(whole));
        runs.push(Run::new(range, range.start, last));
        runs
    }

    /// Counts the addresses of the set, gateways included. Saturates.
    #[must_use]
    pub fn size(&self) -> u128 {
        self.0.iter().fold(0, |sum: u128, range| {
            sum.saturating_add((to_number(range.end) - to_number(range.start)).saturating_add(1))
        })
    }

    fn overlaps(&self, other: &RangeSet) -> bool {
        self.0.iter().any(|a| other.0.iter().any(|b| a.overlaps(b)))
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.0.iter().enumerate() {
            if index != 0 {
                f.write_str(",")?;
            }
            write!(f, "{range}")?;
        }
        Ok(())
    }
}

/// The range sets of a network: an attachment gets one address of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeSets(Vec<RangeSet>);

/// The reason why a network's range sets are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeSetsError {
    /// There is no range set.
    #[error("no IP ranges specified")]
    Empty,
    /// A set is invalid by itself.
    #[error("invalid range set {index}")]
    Set {
        /// The set, counted from 0.
        index: usize,
        /// What is wrong with it.
        source: RangeSetError,
    },
    /// Two sets share addresses.
    #[error("range set {a} overlaps with {b}")]
    Overlap {
        /// The earlier set, counted from 0.
        a: usize,
        /// The later set.
        b: usize,
    },
}

impl RangeSets {
    /// Checks and completes the range sets of a network.
    ///
    /// # Errors
    /// [`RangeSetsError`].
    pub fn new(specs: Vec<Vec<RangeSpec>>) -> Result<Self, RangeSetsError> {
        let mut sets: Vec<RangeSet> = Vec::with_capacity(specs.len());
        for (index, specs) in specs.iter().enumerate() {
            let set =
                RangeSet::new(specs).map_err(|source| RangeSetsError::Set { index, source })?;
            sets.push(set);
        }
        if sets.is_empty() {
            return Err(RangeSetsError::Empty);
        }
        for (a, set) in sets.iter().enumerate() {
            if let Some(distance) = sets[a + 1..].iter().position(|other| set.overlaps(other)) {
                return Err(RangeSetsError::Overlap { a, b: a + 1 + distance });
            }
        }
        Ok(RangeSets(sets))
    }

    /// Lists the sets; there is at least one.
    #[must_use]
    pub fn sets(&self) -> &[RangeSet] {
        &self.0
    }

    /// Reports whether an address is the gateway of any range of any set.
    ///
    /// The reference checks only the gateway of the address's own range, and would assign one
    /// range's gateway from another range.
    #[must_use]
    pub fn is_gateway(&self, address: IpAddr) -> bool {
        self.0.iter().flat_map(|set| &set.0).any(|range| range.gateway == address)
    }

    /// Counts the addresses of a set that can be assigned: all but gateways. Saturates.
    #[must_use]
    pub fn capacity(&self, set: &RangeSet) -> u128 {
        let mut gateways: Vec<IpAddr> = self
            .0
            .iter()
            .flat_map(|set| &set.0)
            .map(|range| range.gateway)
            .filter(|gateway| set.range_of(*gateway).is_some())
            .collect();
        gateways.sort_unstable();
        gateways.dedup();
        set.size() - gateways.len().try_into().unwrap_or(0)
    }

    /// Reports whether a result could hold one address of each family only, as CNI before 0.3.0
    /// demands.
    #[must_use]
    pub fn has_one_set_per_family(&self) -> bool {
        let ipv4 = self.0.iter().filter(|set| set.is_ipv4()).count();
        ipv4 <= 1 && self.0.len() - ipv4 <= 1
    }
}

#[cfg(test)]
mod tests;
