//! Checks a lease's interface.

use std::net::{IpAddr, Ipv6Addr};

use cni::Error;
use cni_plugin::codes;
use dhcp::Now;
use kernel::NetlinkError;
use kernel::netns::{Netns, within};
use kernel::route::{Link, OperState, RouteSocket};
use kernel::sysctl::Sysctl;
use net::IpFamily;

use super::super::context::{Context, NoNetns, kernel_error};
use super::super::release_path::ReleasePath;
use super::{HeldLease, Outcome};

/// `linux include/uapi/linux/if_bridge.h` BR_STATE_FORWARDING.
const FORWARDING: u8 = 3;

impl HeldLease {
    /// Goes to where Docker has put the interface, if it was made in a namespace of Docker's
    /// driver.
    pub(super) fn follow(&mut self, world: &Context) {
        if !state::is_passage(&self.place.netns) {
            return;
        }
        let found = match world.dockers.find(&self.key, |path| world.flags.on_host(path)) {
            Ok(Some(found)) => found,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(lease = %self.key, %error, "cannot follow the interface to Docker's container");
                return;
            }
        };
        let (netns, link) = (found.netns, found.link);
        tracing::info!(lease = %self.key, netns = %found.sandbox.display(), "the interface is in Docker's container");
        self.place.netns = found.sandbox;
        self.place.netns_id = netns.id().into();
        self.place.netns_cookie = netns.cookie();
        self.place.ifindex = link.index;
        self.unsaved = true;
        // They are in the namespace where the interface was.
        if let Some(side) = &mut self.v4 {
            side.sockets = None;
        }
        if let Some(side) = &mut self.v6 {
            side.socket = None;
        }
    }

    /// Says whether frames pass. A link without carrier, or behind a bridge port that does not
    /// forward yet, drops them silently.
    pub(super) fn is_ready(&mut self, world: &mut Context) -> Result<bool, Outcome> {
        let netns = match world.netns(&self.place) {
            Ok(netns) => netns,
            Err(NoNetns::Gone) => return Err(Outcome::Vanished),
            Err(NoNetns::Failed(error)) => return Err(Outcome::Failed(error)),
        };
        let failed = |error: kernel::NetlinkError| Outcome::Failed(kernel_error(&error));
        let mut inside = RouteSocket::open_in(&netns).map_err(failed)?;
        let link = inside.link_by_index(self.place.ifindex).map_err(failed)?;
        let Some(link) = link else { return Err(Outcome::Vanished) };
        if !works(&link) {
            return Ok(false);
        }
        if let (ReleasePath::Bridge { .. }, Some(peer)) = (&self.place.way, link.peer_index) {
            let peer = world.host.link_by_index(peer).map_err(failed)?;
            let forwards =
                |peer: &Link| works(peer) && peer.port.is_none_or(|port| port.state == FORWARDING);
            if !peer.as_ref().is_some_and(forwards) {
                return Ok(false);
            }
        }
        if self.client.families.contains(&IpFamily::V6) {
            return Ok(link_local(&mut inside, self.place.ifindex).map_err(failed)?.is_some());
        }
        Ok(true)
    }

    /// Says whether the interface is gone. Also tells the client about an address that the kernel
    /// found elsewhere.
    pub(super) fn is_gone(&mut self, world: &Context, now: Now) -> bool {
        let netns = match world.netns(&self.place) {
            Ok(netns) => netns,
            Err(NoNetns::Gone) => return true,
            Err(NoNetns::Failed(error)) => {
                tracing::warn!(lease = %self.key, %error, "cannot observe the interface");
                return false;
            }
        };
        let Ok(mut inside) = RouteSocket::open_in(&netns) else { return false };
        if matches!(inside.link_by_index(self.place.ifindex), Ok(None)) {
            // Docker has it, and will have put it into the container.
            return !state::is_passage(&self.place.netns);
        }
        if let Some(side) = &mut self.v6
            && let Ok(addresses) = inside.addresses(Some(self.place.ifindex))
        {
            for duplicate in addresses.iter().filter(|address| address.dad_failed()) {
                if let std::net::IpAddr::V6(address) = duplicate.address.addr() {
                    side.client.on_conflict(now, address);
                }
            }
        }
        false
    }
}

/// Says whether the link carries frames. The kernel reports that only once it has started the
/// link's queues: before, it drops frames although there is a carrier.
fn works(link: &Link) -> bool {
    match link.oper_state {
        OperState::Up => true,
        // Drivers that do not report their state.
        OperState::Unknown => link.lower_up(),
        _ => false,
    }
}

/// Returns the link's own address, once duplicate address detection has found no other host with
/// it.
pub(super) fn link_local(
    inside: &mut RouteSocket,
    ifindex: u32,
) -> Result<Option<Ipv6Addr>, NetlinkError> {
    let addresses = inside.addresses(Some(ifindex))?;
    let ready = addresses.iter().filter(|address| !address.tentative() && !address.dad_failed());
    Ok(ready
        .filter_map(|address| match address.address.addr() {
            IpAddr::V6(address) => Some(address),
            IpAddr::V4(_) => None,
        })
        .find(Ipv6Addr::is_unicast_link_local))
}

/// Runtimes and images switch IPv6 off; a configuration that requests DHCPv6 needs it on.
pub(super) fn switch_on_v6(netns: &Netns, ifname: &str) -> Result<(), Error> {
    let key = format!("net/ipv6/conf/{ifname}/disable_ipv6");
    within(netns, || Sysctl::parse(&key).and_then(|key| key.write_if_different("0")))
        .map_err(|error| Error::from_chain(cni::code::INVALID_NETNS, &error))?
        .map(drop)
        .map_err(|error| {
            Error::from_chain(codes::KERNEL, &error)
                .with_details(error.remedy().unwrap_or_default())
        })
}
