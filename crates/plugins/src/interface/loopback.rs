//! `loopback`: brings the container's `lo` up.
//!
//! It has no keys. The interface is always `lo`, even if `CNI_IFNAME` names another. ADD fails if
//! `lo` has an address that is not a loopback address, before it changes anything. DEL sets `lo`
//! down and does nothing else; it needs neither the namespace nor `prevResult`. There is no state
//! on the host, so GC has nothing to do: runtimes attach `lo` with a list that is in no
//! configuration folder, so no GC could remove a record of it.

use std::net::IpAddr;

use cni::{AddResult, Error, Interface, IpConfig};
use cni_plugin::{Call, Info, Plugin, Role, codes};
use ipnet::IpNet;
use kernel::netns::Netns;
use kernel::route::{Change, Link, LinkSet, RouteSocket};

use crate::shared::failure::Failure;

/// The only interface of this plugin.
const LO: &str = "lo";

/// What the plugin is.
pub const INFO: Info = Info::new("loopback").role(Role::Either);

/// The plugin `loopback`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Loopback;

impl Plugin for Loopback {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn add(&self, call: &Call<'_>) -> Result<AddResult, Error> {
        let previous = call.prev_result()?;
        let netns = call.open_netns()?;
        let mut netlink = open(&netns)?;
        let lo = find_lo(&mut netlink)?
            .ok_or_else(|| Error::new(codes::KERNEL, "the container has no link \"lo\""))?;
        loopback_addresses(&mut netlink, &lo)?;
        Ok(bring_up(call, &mut netlink, &lo, previous)?)
    }

    fn del(&self, call: &Call<'_>) -> Result<(), Error> {
        let Some(netns) = call.open_netns_if_there()? else { return Ok(()) };
        let mut netlink = open(&netns)?;
        match find_lo(&mut netlink)?.filter(Link::up) {
            Some(lo) => Ok(set_up(&mut netlink, &lo, false)?),
            None => Ok(()),
        }
    }

    fn check(&self, call: &Call<'_>) -> Result<(), Error> {
        let netns = call.open_netns()?;
        let mut netlink = open(&netns)?;
        match find_lo(&mut netlink)? {
            Some(lo) if lo.up() => Ok(()),
            Some(_) => Err(Error::new(codes::DRIFT, "loopback interface is down")),
            None => Err(Error::new(codes::DRIFT, "the container has no link \"lo\"")),
        }
    }

    fn repair(&self, call: &Call<'_>) -> Result<Vec<String>, Error> {
        let netns = call.open_netns()?;
        let mut netlink = open(&netns)?;
        match find_lo(&mut netlink)? {
            Some(lo) if !lo.up() => Ok(set_up(&mut netlink, &lo, true)
                .map(|()| vec!["loopback interface up".to_owned()])?),
            _ => Ok(Vec::new()),
        }
    }

    fn gc(&self, _call: &Call<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn status(&self, _call: &Call<'_>) -> Result<(), Error> {
        Ok(())
    }
}

fn open(netns: &Netns) -> Result<RouteSocket, Failure> {
    Ok(RouteSocket::open_in(netns)?)
}

fn bring_up(
    call: &Call<'_>,
    netlink: &mut RouteSocket,
    lo: &Link,
    previous: Option<AddResult>,
) -> Result<AddResult, Failure> {
    let made = !lo.up();
    if made {
        set_up(netlink, lo, true)?;
    }
    if let Some(previous) = previous {
        return Ok(previous);
    }
    // The kernel adds the addresses of `lo` when it comes up (linux net/ipv4/devinet.c
    // `inetdev_event`, net/ipv6/addrconf.c `init_loopback`), before it answers the request.
    let addresses = loopback_addresses(netlink, lo).map_err(|error| {
        if !made {
            return error;
        }
        match set_up(netlink, lo, false) {
            Ok(()) => error,
            Err(undo) => error.with_left(format!("could not take lo down again: {undo}")),
        }
    })?;
    Ok(result(&addresses, &call.env().netns))
}

fn find_lo(netlink: &mut RouteSocket) -> Result<Option<Link>, Failure> {
    Ok(netlink.link_by_name(LO)?)
}

fn set_up(netlink: &mut RouteSocket, lo: &Link, up: bool) -> Result<(), Failure> {
    let change = Change::SetLink { ifindex: lo.index, set: LinkSet::default().up(up) };
    Ok(netlink.apply_one(&change)?)
}

fn loopback_addresses(netlink: &mut RouteSocket, lo: &Link) -> Result<Vec<IpNet>, Failure> {
    let addresses = netlink.addresses(Some(lo.index))?;
    let addresses: Vec<IpNet> = addresses.into_iter().map(|address| address.address).collect();
    match addresses.iter().find(|address| !address.addr().is_loopback()) {
        None => Ok(addresses),
        Some(foreign) => Err(Failure::new(
            codes::CONFLICT,
            format!("loopback interface found with non-loopback address \"{}\"", foreign.addr()),
        )),
    }
}

/// Returns the first address of each family, IPv4 first. IPv6 may be off.
fn result(addresses: &[IpNet], netns: &str) -> AddResult {
    let first = |is_family: fn(&IpAddr) -> bool| {
        addresses.iter().find(|address| is_family(&address.addr())).copied()
    };
    let families = [first(IpAddr::is_ipv4), first(IpAddr::is_ipv6)];
    let ips = families
        .into_iter()
        .flatten()
        .map(|address| IpConfig { interface: Some(0), ..IpConfig::new(address, None) });
    AddResult {
        ips: ips.collect(),
        interfaces: vec![Interface {
            name: LO.to_owned(),
            mac: "00:00:00:00:00:00".to_owned(),
            sandbox: netns.to_owned(),
            ..Interface::default()
        }],
        ..AddResult::default()
    }
}
