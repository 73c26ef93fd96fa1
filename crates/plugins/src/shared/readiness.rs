//! What ADD needs of the host's kernel: looked at before a container comes (STATUS, `lint`,
//! `doctor`), and said in the same words when ADD fails for the lack of it.
//!
//! What cannot be told is no obstacle here: a caller without privileges, for instance, sees nothing
//! of what root may write.

use std::path::Path;

use cni::code;
use cni_plugin::{Call, codes};
use kernel::ipv6::Ipv6Obstacle;
use kernel::remedy;
use kernel::route::{ApplyError, Change, RouteSocket};

use super::claim::{self, ContainerRouting};
use super::failure::Failure;
use super::{advertisements, forwarding};
use crate::ipam::{self, Families, host_local};

/// What can be done where a network asks for IPv6 and the host has none.
const LEAVE_OUT: &str = "or leave the IPv6 addresses out of the network";

/// Refuses a network whose host end of a link, a new one or the existing link `ifname`, needs
/// what this host does not have: IPv6, forwarding of a family, or a way to keep containers from
/// becoming its router. `quieted` is the existing link if it must accept no router advertisements.
///
/// # Errors
/// Code 100, naming the sysctl and the command.
pub(crate) fn refuse_unfit(
    call: &Call<'_>,
    ifname: Option<&str>,
    quieted: Option<&str>,
    routed: bool,
) -> Result<(), Failure> {
    let Families { v4, v6 } = ipam::families(call);
    // In the order in which ADD meets them. The container's pair is new in any case.
    let links = [Some(advertisements::NEW_LINKS), quieted];
    links.into_iter().flatten().try_for_each(advertisements::refuse_unwritable)?;
    if routed {
        let off = ifname.map_or_else(Ipv6Obstacle::for_new_links, Ipv6Obstacle::for_link);
        if let Some(off) = off.filter(|_| v6) {
            return Err(no_ipv6(&off));
        }
        for (ipv4, needed) in [(true, v4), (false, v6)] {
            if needed {
                forwarding::refuse_unwritable(ipv4)?;
            }
        }
        return Ok(());
    }
    refuse_without_kernel(call)
}

/// Refuses every network where this process may not configure any, or where no more records fit
/// beside those of the plugins.
///
/// # Errors
/// Code 50.
pub(crate) fn refuse_unable(call: &Call<'_>) -> Result<(), Failure> {
    if remedy::lacks_net_admin() {
        let text = "the plugin runs without the capability CAP_NET_ADMIN";
        return Err(Failure::new(code::PLUGIN_NOT_AVAILABLE, text).with_details(
            "whoever calls it must have the capability: no link can be made without",
        ));
    }
    refuse_full("what is made for a container", &call.roots().run)
}

/// Refuses a network of which something cannot be written down in a folder.
///
/// # Errors
/// Code 50.
pub(crate) fn refuse_full(what: &str, folder: &Path) -> Result<(), Failure> {
    let Some(why) = state::obstacle(folder) else { return Ok(()) };
    let text = format!("{what} cannot be written down in {}: {why}", folder.display());
    Err(Failure::new(code::PLUGIN_NOT_AVAILABLE, text)
        .with_details("make room or mount it writable (`df`, and `df -i` for files)"))
}

/// Refuses a network of which every address is another's on this host, to which it has to route: a
/// pool that is the uplink's subnet, for instance. Only those of `host-local` are known before ADD.
///
/// # Errors
/// As [`claim::refuse_unroutable`].
pub(crate) fn refuse_unroutable(
    call: &Call<'_>,
    host: &mut RouteSocket,
    routed: &ContainerRouting,
) -> Result<(), Failure> {
    for set in host_local::pools(call) {
        let mut refused = Ok(());
        for pool in &set {
            refused = claim::refuse_pool(call, host, routed, pool);
            if refused.is_ok() {
                break;
            }
        }
        refused?;
    }
    Ok(())
}

/// Refuses a network with IPv6 addresses where the kernel has no IPv6: then not even a container has
/// any.
///
/// # Errors
/// Code 100.
pub(crate) fn refuse_without_kernel(call: &Call<'_>) -> Result<(), Failure> {
    match ipam::families(call).v6 && Ipv6Obstacle::in_kernel() {
        true => Err(no_ipv6(&Ipv6Obstacle::Kernel)),
        false => Ok(()),
    }
}

/// Says why the kernel refused addresses of a link of the host. If one is of IPv6 and the link has
/// none, that is why: the kernel itself says "permission denied".
pub(crate) fn explain(refused: ApplyError, changes: &[Change], ifname: &str) -> Failure {
    let is_v6 = match changes.get(refused.index) {
        Some(Change::AddAddress { address, .. }) => address.addr().is_ipv6(),
        _ => false,
    };
    let off = is_v6.then(|| Ipv6Obstacle::for_link(ifname)).flatten();
    off.map_or_else(|| refused.into(), |off| no_ipv6(&off))
}

fn no_ipv6(off: &Ipv6Obstacle) -> Failure {
    Failure::new(codes::KERNEL, off.to_string())
        .with_details(format!("{}, {LEAVE_OUT}", off.remedy()))
}

/// Says what to do where a sysctl must have a value, and cannot be written because its file system
/// is read-only or the caller lacks a privilege. `what` says what is wrong, and `by_hand` what
/// `sysctl -w` has to set on the host.
pub(crate) fn unwritable(what: &str, by_hand: &str) -> Failure {
    Failure::new(codes::KERNEL, format!("{what}, and /proc/sys cannot be written"))
        .with_details(format!("mount it writable, or run on the host: sysctl -w {by_hand}"))
}
