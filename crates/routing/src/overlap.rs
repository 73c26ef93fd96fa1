//! What is checked before anything is programmed.

use ipnet::IpNet;

use crate::reader::overlap;
use crate::settings::LinkName;

/// A prefix that this host uses itself: an address with its length, or a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPrefix {
    /// The link.
    pub link: LinkName,
    /// The prefix; an address keeps its host bits.
    pub prefix: IpNet,
}

/// A range of the cluster, and what it overlaps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "pod range {range} overlaps {}'s {}: nothing was programmed; choose another range, or set \
     allow-overlap",
    host.link, host.prefix
)]
pub struct Overlap {
    /// The range.
    pub range: IpNet,
    /// What it overlaps.
    pub host: HostPrefix,
}

/// Finds which ranges of the cluster overlap what this host uses; default routes overlap nothing.
///
/// What routing itself has made, and the links of pods, are not to be among `host`.
#[must_use]
pub fn find(ranges: &[IpNet], host: &[HostPrefix]) -> Vec<Overlap> {
    let of_range = |range: &IpNet| {
        let range = *range;
        let used = host.iter().filter(move |host| {
            host.prefix.prefix_len() != 0 && overlap(range, host.prefix.trunc())
        });
        used.map(move |host| Overlap { range, host: host.clone() })
    };
    ranges.iter().flat_map(of_range).collect()
}
