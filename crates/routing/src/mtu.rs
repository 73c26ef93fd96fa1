//! What fits.

use crate::path::Path;
use net::IpFamily;

/// The MTU that every IPv6 link must have (RFC 8200 §5).
pub const IPV6_LEAST: u32 = 1280;

/// Returns how many bytes of a packet of the underlay a path takes for itself.
#[must_use]
pub fn overhead(path: Path) -> u32 {
    // A path by a tunnel has an underlay of its own, whatever the family of pods' addresses.
    let underlay = path.underlay(IpFamily::V4);
    path.backend()
        .zip(underlay)
        .map_or(0, |(backend, underlay)| backend.backend().overhead(underlay))
}

/// Returns the least that a node can say of the network to it: pods everywhere keep IPv6.
#[must_use]
pub fn least(path: Path) -> u32 {
    IPV6_LEAST + overhead(path)
}

/// Returns the MTU of a path: what the smaller of both ends' underlays leaves.
#[must_use]
pub fn of_path(path: Path, way: u32, published: Option<u32>) -> u32 {
    way.min(published.unwrap_or(u32::MAX)).saturating_sub(overhead(path))
}
