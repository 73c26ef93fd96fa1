//! What ADD has created, and how it is reported.

use cni::{AddResult, Interface};
use cni_plugin::Call;
use kernel::mac::MacAddr;
use kernel::route::{Change, LinkSet};

use super::connect::Site;
use super::interior;
use crate::shared::dns;
use crate::shared::failure::Failure;
use crate::shared::pair::Pair;

/// What the container has.
#[derive(Debug)]
pub(super) enum ContainerLink {
    Pair(Pair),
    Interior(interior::InteriorLink),
}

impl ContainerLink {
    pub(super) fn container_index(&self) -> u32 {
        match self {
            ContainerLink::Pair(pair) => pair.container_index,
            ContainerLink::Interior(taken) => taken.ifindex,
        }
    }

    /// The position of the container's interface in the result: after the host's end, if there is
    /// one.
    pub(super) fn position(&self) -> usize {
        match self {
            ContainerLink::Pair(_) => 1,
            ContainerLink::Interior(_) => 0,
        }
    }

    pub(super) fn bring_up(&self, site: &mut Site<'_>) -> Result<(), Failure> {
        let ContainerLink::Pair(pair) = self else { return Ok(()) };
        let set = LinkSet::default().up(true);
        Ok(site.host.apply_one(&Change::SetLink { ifindex: pair.host_index, set })?)
    }
}

/// Returns the result: the host's end first, if there is one.
pub(super) fn report(
    call: &Call<'_>,
    result: AddResult,
    made: &ContainerLink,
    mac: MacAddr,
) -> AddResult {
    let side = |name: &str, mac: MacAddr, mtu: u32| Interface {
        name: name.to_owned(),
        mac: mac.to_string(),
        mtu,
        ..Interface::default()
    };
    let mut interfaces = Vec::new();
    let mtu = match made {
        ContainerLink::Pair(pair) => {
            interfaces.push(side(&pair.host_ifname, pair.host_mac, pair.mtu));
            pair.mtu
        }
        ContainerLink::Interior(taken) => taken.mtu,
    };
    interfaces.push(Interface {
        sandbox: call.env().netns.clone(),
        ..side(call.ifname().as_str(), mac, mtu)
    });
    AddResult {
        interfaces,
        dns: dns::choose(call.common(), result.dns),
        ips: result.ips,
        routes: result.routes,
    }
}
