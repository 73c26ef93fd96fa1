//! What fits.

use crate::path::Path;
use net::IpFamily;

/// The MTU that every IPv6 link must have (RFC 8200 §5).
pub const IPV6_LEAST: u32 = 1280;

/// Returns how many bytes of a packet of the underlay a path takes for itself.
///
/// VXLAN: the outer IP and UDP headers, its own header, and the inner Ethernet header.
#[must_use]
pub fn overhead(path: Path) -> u32 {
    match path {
        Path::Vxlan { underlay } => vxlan_overhead(underlay),
        _ => 0,
    }
}

/// Returns how many bytes VXLAN takes over a family.
#[must_use]
pub fn vxlan_overhead(underlay: IpFamily) -> u32 {
    match underlay {
        IpFamily::V4 => 20 + 8 + 8 + 14,
        IpFamily::V6 => 40 + 8 + 8 + 14,
    }
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
