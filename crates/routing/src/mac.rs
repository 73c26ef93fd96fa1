//! Hardware addresses of tunnels.

use net::{IpFamily, MacAddr};
use sha2::{Digest as _, Sha256};

/// Returns the address of a node's tunnel over one version of IP: the same whenever it is made, so
/// that peers need not hear of it.
#[must_use]
pub fn mac_of_tunnel(uid: &str, underlay: IpFamily) -> MacAddr {
    let digest = Sha256::digest(["netwright routing ", underlay.name(), " ", uid].concat());
    let mut octets = [0; 6];
    octets.copy_from_slice(&digest[..6]);
    MacAddr::local(octets)
}
