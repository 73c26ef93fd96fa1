//! What is checked before anything is programmed.

use std::fmt;

use ipnet::IpNet;

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
    "pod range {range} overlaps {}'s {}: nothing was programmed; choose another range, or set allow_overlap",
    host.link, host.prefix
)]
pub struct Overlap {
    /// The range.
    pub range: IpNet,
    /// What it overlaps.
    pub host: HostPrefix,
}

/// Finds what overlaps. Links and routes of ours, the pods' own links, and default routes are not
/// to be among `host`.
#[must_use]
pub fn find(ranges: &[IpNet], host: &[HostPrefix]) -> Vec<Overlap> {
    todo!()
}
