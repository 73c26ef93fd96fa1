//! Plugins that assign addresses.

pub mod cluster_ipam;
pub mod dhcp;
pub mod host_local;
pub mod static_ipam;

use cni_plugin::Call;
use ipnet::IpNet;

/// The IP versions of the addresses that a network asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Families {
    pub(crate) v4: bool,
    pub(crate) v6: bool,
}

/// Returns the IP versions of the addresses that a configuration asks for, as far as it says itself:
/// those of other IPAM plugins than `host-local` and `static` are unknown before ADD, and not among
/// them.
pub(crate) fn families(call: &Call<'_>) -> Families {
    let asked = match call.ipam().map(|ipam| ipam.plugin_type().to_owned()).as_deref() {
        Some(name) if name == host_local::INFO.name => host_local::subnets(call),
        Some(name) if name == static_ipam::INFO.name => static_ipam::addresses(call),
        _ => Vec::new(),
    };
    Families {
        v4: asked.iter().any(|net| matches!(net, IpNet::V4(_))),
        v6: asked.iter().any(|net| matches!(net, IpNet::V6(_))),
    }
}
