//! The host's settings outside nftables.

use std::fmt::Debug;
use std::net::Ipv6Addr;

use kernel::Errno;
use kernel::netlink::NetlinkError;
use kernel::route::{Change, Route, RouteKind, RouteSocket, TABLE_LOCAL};
use kernel::sysctl::{Sysctl, SysctlError};
use serde_json::json;
use state::Index;

use crate::error::FirewallError;
use crate::hostport::{self, STAND_IN6};
use crate::plan::SharedObject;
use crate::reference;

/// Switches on and off what a shared object needs beside nftables. The caller holds the firewall's
/// lock.
pub(crate) trait SharedSysctls: Debug {
    /// Switches it on and notes in the index what changed.
    ///
    /// # Errors
    /// When the kernel refuses or the note cannot be written.
    fn on(&mut self, index: &Index, shared: &SharedObject) -> Result<(), FirewallError>;

    /// Restores it as the note says and deletes the note. What ports that the reference's plugins
    /// publish stand on stays. `false` means that the machine forbids
    /// that, as it will the next time: then it stays as it is, and so does the note.
    ///
    /// # Errors
    /// When the kernel refuses or the note cannot be removed.
    fn off(&mut self, index: &Index, shared: &SharedObject) -> Result<bool, FirewallError>;

    /// Describes what is not as it should be.
    ///
    /// # Errors
    /// When the kernel cannot be asked: then it is unknown.
    fn check(&mut self, shared: &SharedObject) -> Result<Option<String>, FirewallError>;
}

/// The first metric of the local routes to the address that stands for ::1 ([`STAND_IN6`]). Each
/// link has a metric of its own, derived from its index: of two routes with the same metric the
/// kernel keeps one.
const LOOPBACK_METRIC: u32 = 4096;

/// The settings of the network namespace the caller is in.
#[derive(Debug)]
pub(crate) struct HostSysctls;

impl SharedSysctls for HostSysctls {
    fn on(&mut self, index: &Index, shared: &SharedObject) -> Result<(), FirewallError> {
        match shared {
            SharedObject::Localnet(ifname) => {
                let sysctl = route_localnet(ifname)?;
                let was = sysctl.read().map_err(|error| failed(&sysctl, error))?;
                if was == "1" {
                    return Ok(());
                }
                note(index, shared, &json!({ "was": was }))?;
                sysctl.write("1").map_err(|error| failed(&sysctl, error))
            }
            SharedObject::Loopback6(ifname) => {
                let refused = |error| FirewallError::Switch {
                    what: loopback_route_on(ifname),
                    source: Box::new(error),
                };
                let Some(route) = loopback_route(ifname)? else { return Ok(()) };
                let mut netlink = RouteSocket::open().map_err(refused)?;
                note(index, shared, &json!({ "route": STAND_IN6 }))?;
                match netlink.apply_one(&Change::ReplaceRoute(route)) {
                    // Where IPv6 is off, failing ADD over this is not worth it: the reference does
                    // not forward from ::1 at all.
                    Err(error) if is_a_refusal(&error) => {
                        tracing::warn!(ifname, %error, "no forwarding from ::1");
                        Ok(())
                    }
                    made => made.map_err(refused),
                }
            }
            _ => Ok(()),
        }
    }

    fn off(&mut self, index: &Index, shared: &SharedObject) -> Result<bool, FirewallError> {
        if !matches!(shared, SharedObject::Localnet(_) | SharedObject::Loopback6(_)) {
            return Ok(true);
        }
        let object = shared.object();
        let refused = |source| FirewallError::State { object: object.clone(), source };
        if !index.has_note(&object).map_err(refused)? {
            return Ok(true);
        }
        // A garbled note came from a first change, and the kernel's own value is off.
        let made = index.known_note(&object).map_err(refused)?.unwrap_or_default();
        match shared {
            // It is what their published ports stand on by now. Our own ports in their form were
            // removed before.
            SharedObject::Localnet(ifname) if reference::forwards_through(ifname)? => {}
            SharedObject::Localnet(ifname) => {
                let sysctl = route_localnet(ifname)?;
                let was = made.get("was").and_then(serde_json::Value::as_str).unwrap_or("0");
                match sysctl.write_if_different(was) {
                    Err(error) if error.is_forbidden() => {
                        tracing::warn!(%error, "it stays as it is");
                        return Ok(false);
                    }
                    Err(error) if !error.is_missing() => return Err(failed(&sysctl, error)),
                    _ => {}
                }
            }
            SharedObject::Loopback6(ifname) => {
                if let Some(route) = loopback_route(ifname)? {
                    let mut doomed = vec![route.clone()];
                    let recorded = made.get("route").and_then(serde_json::Value::as_str);
                    if recorded != Some(STAND_IN6.to_string().as_str()) {
                        // Older executables made routes to ::1 itself, and before that with one
                        // metric for all links.
                        let destination = hostport::host_net(Ipv6Addr::LOCALHOST);
                        let older = Route { destination, ..route };
                        doomed.push(Route { priority: Some(LOOPBACK_METRIC), ..older.clone() });
                        doomed.push(older);
                    }
                    for route in doomed {
                        match delete(route) {
                            Err(error) if !error.is_not_found() => {
                                let what = loopback_route_on(ifname);
                                return Err(FirewallError::Switch {
                                    what,
                                    source: Box::new(error),
                                });
                            }
                            _ => {}
                        }
                    }
                }
            }
            _ => {}
        }
        index.take_note(&object).map(|_| true).map_err(refused)
    }

    fn check(&mut self, shared: &SharedObject) -> Result<Option<String>, FirewallError> {
        match shared {
            SharedObject::Localnet(ifname) => {
                let sysctl = route_localnet(ifname)?;
                match sysctl.read() {
                    Ok(value) if value == "1" => Ok(None),
                    Ok(value) => {
                        Ok(Some(format!("route_localnet of {ifname:?} is {value}, not 1")))
                    }
                    // The plugin that created the interface reports that it is gone.
                    Err(error) if error.is_missing() => Ok(None),
                    Err(error) => Err(unread(sysctl.to_string(), error)),
                }
            }
            SharedObject::Loopback6(ifname) => {
                // The kernel removes it with the link's other IPv6 routes when IPv6 is switched off
                // there. A route of any link will do.
                let found =
                    RouteSocket::open().and_then(|mut netlink| netlink.route_to(STAND_IN6.into()));
                match found {
                    Ok(Some(route)) if route.kind == RouteKind::Local => Ok(None),
                    Ok(_) => Ok(Some(format!("missing: {}", loopback_route_on(ifname)))),
                    // Where IPv6 is off, there never was one.
                    Err(error) if is_a_refusal(&error) => Ok(None),
                    Err(error) => Err(unread(loopback_route_on(ifname), error)),
                }
            }
            _ => Ok(None),
        }
    }
}

/// Says whether the kernel rejected the request itself. When the kernel ran out of memory nothing
/// is known.
fn is_a_refusal(error: &NetlinkError) -> bool {
    error.errno().is_some_and(|errno| ![Errno::NOMEM, Errno::NOBUFS].contains(&errno))
}

fn delete(route: Route) -> Result<(), NetlinkError> {
    RouteSocket::open()?.apply_one(&Change::DelRoute(route))
}

fn note(
    index: &Index,
    shared: &SharedObject,
    made: &serde_json::Value,
) -> Result<(), FirewallError> {
    let object = shared.object();
    let refused = |source| FirewallError::State { object: object.clone(), source };
    if index.known_note(&object).map_err(refused)?.is_some() {
        // The value before our first change is the one that counts.
        return Ok(());
    }
    index.note(&object, made).map_err(refused)
}

fn route_localnet(ifname: &str) -> Result<Sysctl, FirewallError> {
    Sysctl::of_link("net/ipv4/conf", ifname, "route_localnet").map_err(|error| {
        let what = format!("route_localnet of {ifname:?}");
        FirewallError::Switch { what, source: Box::new(error) }
    })
}

fn failed(sysctl: &Sysctl, source: SysctlError) -> FirewallError {
    FirewallError::Switch { what: sysctl.to_string(), source: Box::new(source) }
}

fn unread(what: String, source: impl std::error::Error + Send + Sync + 'static) -> FirewallError {
    FirewallError::Read { what, source: Box::new(source) }
}

fn loopback_route_on(ifname: &str) -> String {
    format!("the route to {STAND_IN6} on {ifname:?}")
}

/// Returns the route, or `None` when the interface is gone.
fn loopback_route(ifname: &str) -> Result<Option<Route>, FirewallError> {
    let link = RouteSocket::open().and_then(|mut netlink| netlink.link_by_name(ifname));
    let link = link.map_err(|error| {
        let what = loopback_route_on(ifname);
        FirewallError::Switch { what, source: Box::new(error) }
    })?;
    Ok(link.map(|link| {
        let mut route = Route::new(hostport::host_net(STAND_IN6));
        route.kind = RouteKind::Local;
        route.table = TABLE_LOCAL;
        route.oif = Some(link.index);
        route.priority = Some(LOOPBACK_METRIC.saturating_add(link.index));
        route
    }))
}
