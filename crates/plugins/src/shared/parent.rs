//! The parent link of a container's link: chosen by its name in `master`, as in the reference, or
//! by another property.

use std::net::IpAddr;
use std::path::Path;

use cni::code;
use cni_plugin::codes;
use kernel::mac::MacAddr;
use kernel::netlink::{Errno, nothing_if};
use kernel::route::{IpFamily, Link, RouteFilter, RouteSocket, default_link};
use serde::Deserialize;

use super::device;
use super::failure::Failure;
use super::mac::parse_mac;

/// The folder where the kernel shows devices and drivers.
const SYSFS: &str = "/sys";

/// The key `parent` as written: exactly one of its keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RawParent {
    /// A hardware address.
    pub mac: String,
    /// A PCI address, `0000:3b:00.1`.
    #[serde(rename = "pciBusID")]
    pub pci_bus_id: String,
    /// A driver's name, if only one link has it.
    pub driver: String,
    /// An address: selects the link by which packets to it leave.
    pub route_to: String,
}

/// How the parent is chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// By its name, key `master`.
    Name(String),
    /// By its hardware address, key `parent.mac`.
    Mac(MacAddr),
    /// By its PCI address, key `parent.pciBusID`.
    Pci(String),
    /// By its driver, key `parent.driver`.
    Driver(String),
    /// By the route to an address, key `parent.routeTo`.
    RouteTo(IpAddr),
    /// The link of the default route: no key.
    DefaultRoute,
}

impl Selector {
    /// Reads the keys `master` and `parent`; if both are absent, the parent is the default route's
    /// link.
    ///
    /// # Errors
    /// Code 7 for both at once, for a `parent` that does not have exactly one key, and for
    /// malformed values.
    pub fn parse(master: &str, parent: Option<&RawParent>) -> Result<Self, Failure> {
        let Some(parent) = parent.filter(|parent| **parent != RawParent::default()) else {
            return Ok(if master.is_empty() {
                Selector::DefaultRoute
            } else {
                Selector::Name(master.to_owned())
            });
        };
        let given = [&parent.mac, &parent.pci_bus_id, &parent.driver, &parent.route_to];
        let keys = given.iter().filter(|text| !text.is_empty()).count();
        if !master.is_empty() || keys != 1 {
            return Err(invalid(
                "\"master\" and the keys of \"parent\" exclude each other",
                "give \"master\", or \"parent\" with one of mac, pciBusID, driver, routeTo",
            ));
        }
        if !parent.mac.is_empty() {
            return parse_mac(&parent.mac).map(Selector::Mac);
        }
        if !parent.pci_bus_id.is_empty() {
            return plain_name("parent.pciBusID", &parent.pci_bus_id).map(Selector::Pci);
        }
        if !parent.driver.is_empty() {
            return plain_name("parent.driver", &parent.driver).map(Selector::Driver);
        }
        parent.route_to.parse().map(Selector::RouteTo).map_err(|_| {
            invalid(
                format!("parent.routeTo {:?} is not an IP address", parent.route_to),
                "write an address, not a prefix",
            )
        })
    }

    /// Finds the parent.
    ///
    /// # Errors
    /// Code 7 naming the key when no link matches, or several do; code 100 when the kernel does not
    /// answer.
    pub fn find(&self, socket: &mut RouteSocket) -> Result<Link, Failure> {
        match self {
            Selector::Name(name) => by_name(socket, name)?.ok_or_else(|| {
                invalid(
                    format!("failed to lookup master {name:?}: Link not found"),
                    "key \"master\" names a link that is not there",
                )
            }),
            Selector::Mac(mac) => {
                let links = socket.links()?;
                // A macvlan or VLAN may have its parent's hardware address, but is not the link that
                // the address selects.
                let found = links.into_iter().filter(|link| {
                    link.mac == Some(*mac) && !link.is_on_parent() && !link.loopback()
                });
                only(found.collect(), &format!("hardware address {mac}"), "parent.mac")
            }
            Selector::Pci(address) => {
                let folder = Path::new(SYSFS).join("bus/pci/devices").join(address);
                let found = device::links_of(socket, &folder)?;
                only(found, &format!("PCI address {address}"), "parent.pciBusID")
            }
            Selector::Driver(driver) => {
                let links = socket.links()?;
                let found = links.into_iter().filter(|link| {
                    device::driver(link).as_deref() == Some(driver.as_str()) || link.is_kind(driver)
                });
                only(found.collect(), &format!("driver {driver:?}"), "parent.driver")
            }
            Selector::RouteTo(address) => {
                let route = socket.route_to(*address)?;
                let index =
                    route.as_ref().and_then(|route| route.links().next()).ok_or_else(|| {
                        invalid(
                            format!("no route to {address}"),
                            "key \"parent.routeTo\" names an address that no link leads to",
                        )
                    })?;
                by_index(socket, index)
            }
            Selector::DefaultRoute => {
                let index = default_route_link(socket)?.ok_or_else(|| {
                    invalid(
                        "no default route interface found",
                        "give the network a \"master\", or the host a default route",
                    )
                })?;
                by_index(socket, index)
            }
        }
    }
}

/// Checks an MTU against the parent's.
///
/// # Errors
/// Code 7 in the reference's words.
pub fn check_mtu(mtu: Option<u32>, parent: &Link) -> Result<(), Failure> {
    match mtu {
        Some(mtu) if parent.mtu < mtu => Err(invalid(
            format!("invalid MTU {mtu}, must be [0, master MTU({})]", parent.mtu),
            format!("key \"mtu\" exceeds that of {:?}", parent.name),
        )),
        _ => Ok(()),
    }
}

fn invalid(message: impl Into<String>, details: impl Into<String>) -> Failure {
    Failure::new(code::INVALID_CONFIG, message.into()).with_details(details.into())
}

/// Checks a name that becomes part of a path.
fn plain_name(key: &str, text: &str) -> Result<String, Failure> {
    if text.starts_with('.') || text.contains('/') || text.contains('\0') {
        return Err(invalid(format!("invalid {key} {text:?}"), "it is not the name of a device"));
    }
    Ok(text.to_owned())
}

fn only(mut found: Vec<Link>, what: &str, key: &str) -> Result<Link, Failure> {
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(invalid(
            format!("no link has {what}"),
            format!("key {key:?} names something that is not there"),
        )),
        _ => {
            let mut names: Vec<_> = found.iter().map(|link| link.name.as_str()).collect();
            names.sort_unstable();
            Err(invalid(
                format!("several links have {what}: {}", names.join(", ")),
                format!("key {key:?} must name one; use \"master\""),
            ))
        }
    }
}

/// Finds a link by name. A name that is too long belongs to no link.
fn by_name(socket: &mut RouteSocket, name: &str) -> Result<Option<Link>, Failure> {
    Ok(nothing_if(socket.link_by_name(name), &[Errno::RANGE])?)
}

fn by_index(socket: &mut RouteSocket, index: u32) -> Result<Link, Failure> {
    socket
        .link_by_index(index)?
        .ok_or_else(|| Failure::new(codes::CONFLICT, format!("link {index} vanished")))
}

/// Returns the link of the default route with the lowest metric, IPv4 before IPv6.
fn default_route_link(socket: &mut RouteSocket) -> Result<Option<u32>, Failure> {
    for family in [IpFamily::V4, IpFamily::V6] {
        if let Some(index) = default_link(&socket.routes(RouteFilter::main(family))?) {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(master: &str, parent: &str, expected: Expect) {
        let raw: Option<RawParent> = cni::json::from_str(parent).unwrap();
        let text = match Selector::parse(master, raw.as_ref()) {
            Ok(selector) => format!("{selector:?}"),
            Err(error) => format!("{} {error}", error.code()),
        };
        expected.assert_eq(&text);
    }

    #[test]
    fn a_parent_is_chosen_in_one_way() {
        check("eth0", "null", expect![[r#"Name("eth0")"#]]);
        check("", "{}", expect!["DefaultRoute"]);
        check("", r#"{"driver":"virtio_net"}"#, expect![[r#"Driver("virtio_net")"#]]);
        check("", r#"{"routeTo":"2001:db8::1"}"#, expect!["RouteTo(2001:db8::1)"]);
        check(
            "eth0",
            r#"{"driver":"virtio_net"}"#,
            expect![[
                r#"7 "master" and the keys of "parent" exclude each other; give "master", or "parent" with one of mac, pciBusID, driver, routeTo"#
            ]],
        );
        check(
            "",
            r#"{"pciBusID":"../../x"}"#,
            expect![[r#"7 invalid parent.pciBusID "../../x"; it is not the name of a device"#]],
        );
        check(
            "",
            r#"{"routeTo":"192.0.2.0/24"}"#,
            expect![[
                r#"7 parent.routeTo "192.0.2.0/24" is not an IP address; write an address, not a prefix"#
            ]],
        );
    }
}
