//! An attachment for tests of [`Wants::wanted`](super::Wants::wanted): `eth0` of container `c1` on
//! network `n`.

use cni::{AddResult, AttachmentKey, ContainerId, IfName, Interface, IpConfig, NetworkName, Route};

/// Whose it is.
pub(crate) fn key() -> AttachmentKey {
    AttachmentKey {
        network: NetworkName::new("n").unwrap(),
        container_id: ContainerId::new("c1").unwrap(),
        ifname: IfName::new("eth0").unwrap(),
    }
}

/// A link of the host.
pub(crate) fn host_link(name: &str, mac: &str) -> Interface {
    Interface { name: name.to_owned(), mac: mac.to_owned(), mtu: 1500, ..Interface::default() }
}

/// The container's interface.
pub(crate) fn interface() -> Interface {
    let sandbox = "/run/netns/c1".to_owned();
    Interface { sandbox, ..host_link("eth0", "02:00:00:00:00:03") }
}

/// A result with these interfaces, addresses of the container's, each with its gateway, and routes
/// without a next hop.
pub(crate) fn result(
    interfaces: Vec<Interface>,
    ips: &[(&str, &str)],
    routes: &[&str],
) -> AddResult {
    let place = interfaces.iter().position(|link| !link.sandbox.is_empty());
    let ip = |(address, gateway): &(&str, &str)| {
        let gateway = Some(gateway.parse().unwrap());
        IpConfig { interface: place, ..IpConfig::new(address.parse().unwrap(), gateway) }
    };
    let ips = ips.iter().map(ip).collect();
    let routes = routes.iter().map(|to| Route::new(to.parse().unwrap(), None)).collect();
    AddResult { interfaces, ips, routes, ..AddResult::default() }
}
