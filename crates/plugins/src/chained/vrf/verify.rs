//! CHECK and STATUS.

use cni::Error;
use cni_plugin::Call;
use ipnet::IpNet;
use kernel::route::{LinkKind, NewLink, Route, RouteSocket, TABLE_MAIN};

use super::config::Config;
use super::{NAME, NO_PREVIOUS, node};
use crate::shared::{container, drift, identity, kernel_error as kernel, trial};

/// The table that STATUS tries; its namespace contains nothing else.
const TRIAL_TABLE: u32 = 10;

/// Runs CHECK: the VRF, the interface in it, and its addresses and routes.
pub(super) fn check(call: &Call<'_>) -> Result<(), Error> {
    let config = Config::of(call)?;
    let result = call.require_prev_result(NO_PREVIOUS)?;
    let netns = call.open_netns()?;
    identity::refuse_another(call, NAME)?;
    let mut socket = RouteSocket::open_in(&netns).map_err(kernel)?;
    let name = &config.vrf;
    let vrf = socket
        .link_by_name(name)
        .map_err(kernel)?
        .ok_or_else(|| drift(format!("VRF {name:?} is gone")))?;
    let table = vrf.vrf_table.ok_or_else(|| drift(format!("Netlink {name} is not a VRF")))?;
    if let Some(wanted) = config.table.filter(|&wanted| wanted != table) {
        return Err(drift(format!(
            "VRF {name:?} has table {table}, the configuration asks for {wanted}"
        )));
    }
    if !vrf.up() {
        return Err(drift(format!("VRF {name:?} is down")));
    }
    let ifname = call.ifname().as_str();
    let link = socket
        .link_by_name(ifname)
        .map_err(kernel)?
        .ok_or_else(|| drift(format!("interface {ifname:?} is gone from the container")))?;
    if link.master != Some(vrf.index) {
        return Err(drift(format!("interface {ifname:?} is not in VRF {name:?} any more")));
    }
    let ips: Vec<_> = result.container_ips(ifname).collect();
    container::check(&mut socket, link.index, ifname, &ips, &result.routes)?;
    // What ADD moved, and not what someone added after us: CNI 1.1.0 §2 "CHECK".
    let moved = |to: &IpNet| {
        result.routes.iter().any(|route| route.dst.trunc() == *to)
            || ips.iter().any(|ip| ip.address.trunc() == *to)
    };
    let left = node::routes_of(&mut socket, link.index)?;
    let astray = |route: &&Route| route.table == TABLE_MAIN && moved(&route.destination);
    match left.iter().find(astray) {
        Some(route) => Err(drift(format!("route {route} is not in the table of VRF {name:?}"))),
        None => Ok(()),
    }
}

/// Runs STATUS: whether the configuration is valid, and whether the kernel has VRFs. STATUS tries
/// that in a namespace of its own, which is deleted at once.
pub(super) fn status(call: &Call<'_>) -> Result<(), Error> {
    Config::of(call)?;
    trial::in_fresh_netns(|socket| {
        let vrf = NewLink::new("trial", LinkKind::Vrf { table: TRIAL_TABLE });
        let made = socket.create_link(&vrf).map(drop);
        made.map_err(|error| kernel(error).with_details("the kernel needs CONFIG_NET_VRF"))
    })
}
