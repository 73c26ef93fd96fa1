//! The key `mtu`: bytes, 0 for the kernel's choice, or `"auto"` for what leaves this host.

use std::fmt;
use std::ops::RangeInclusive;

use cni::code;
use kernel::route::{RouteSocket, TABLE_MAIN};
use serde::de::{self, Deserialize, Deserializer, Visitor};

use super::failure::Failure;
use super::owner;

/// The MTU range that the kernel accepts for a pair, a macvlan or an ipvlan (linux
/// include/uapi/linux/if_ether.h ETH_MIN_MTU, ETH_MAX_MTU).
pub const ETHERNET_MTU: RangeInclusive<u32> = 68..=65_535;

/// The MTU that every IPv6 link must have (RFC 8200 §5). A smaller one would take IPv6 away from a
/// container because an uplink of IPv4 is small.
const IPV6_LEAST: u32 = 1280;

/// The text that stands for the uplink's MTU.
const AUTO: &str = "auto";

/// The key as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawMtu {
    /// A number of bytes; 0 leaves it to the kernel.
    Bytes(i64),
    /// `"auto"`.
    Auto,
}

/// The MTU of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mtu {
    /// The kernel's choice.
    Kernels,
    /// A number of bytes.
    Bytes(u32),
    /// That of the host's uplink.
    Uplink,
}

impl Default for RawMtu {
    fn default() -> Self {
        RawMtu::Bytes(0)
    }
}

impl<'de> Deserialize<'de> for RawMtu {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MtuVisitor;
        impl Visitor<'_> for MtuVisitor {
            type Value = RawMtu;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a number of bytes or {AUTO:?}")
            }
            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<RawMtu, E> {
                Ok(RawMtu::Bytes(bytes))
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<RawMtu, E> {
                let fits = i64::try_from(bytes).map(RawMtu::Bytes);
                fits.map_err(|_| E::invalid_value(de::Unexpected::Unsigned(bytes), &self))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<RawMtu, E> {
                match text {
                    AUTO => Ok(RawMtu::Auto),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(MtuVisitor)
    }
}

impl RawMtu {
    /// Reads the key of a link whose packets the host forwards.
    ///
    /// # Errors
    /// Code 7 for a number that the kernel accepts for no pair.
    pub fn of_pair(self) -> Result<Mtu, Failure> {
        if self == RawMtu::Auto {
            return Ok(Mtu::Uplink);
        }
        Ok(self.within(&ETHERNET_MTU)?.map_or(Mtu::Kernels, Mtu::Bytes))
    }

    /// Reads the key of a link whose packets do not pass the host's routes: one on a parent has the
    /// parent's MTU anyway.
    ///
    /// # Errors
    /// Code 7 for `"auto"`, and for a number that is not one of an MTU.
    pub fn bytes(self) -> Result<Option<u32>, Failure> {
        match self {
            RawMtu::Auto => Err(invalid(
                format!("invalid MTU {AUTO:?}"),
                "it is for bridge and ptp; without the key, a link on a parent has the parent's MTU",
            )),
            RawMtu::Bytes(0) => Ok(None),
            RawMtu::Bytes(mtu) => u32::try_from(mtu).map(Some).map_err(|_| {
                invalid(format!("invalid MTU {mtu}"), "key \"mtu\" is a number of bytes")
            }),
        }
    }

    /// Reads the key as [`RawMtu::bytes`] does, of a link for which the kernel accepts only values in
    /// `range`.
    ///
    /// # Errors
    /// Code 7.
    pub fn within(self, range: &RangeInclusive<u32>) -> Result<Option<u32>, Failure> {
        let wanted = self.bytes()?;
        let Some(mtu) = wanted.filter(|mtu| !range.contains(mtu)) else { return Ok(wanted) };
        let (least, most) = (range.start(), range.end());
        Err(invalid(
            format!("invalid MTU {mtu}, must be [{least}, {most}]"),
            format!(
                "key \"mtu\" is a number of bytes from {least} to {most}, or 0 for the kernel's choice"
            ),
        ))
    }
}

impl Mtu {
    /// Returns the bytes that a configuration names.
    #[must_use]
    pub fn configured(self) -> Option<u32> {
        match self {
            Mtu::Bytes(mtu) => Some(mtu),
            Mtu::Kernels | Mtu::Uplink => None,
        }
    }

    /// Returns the bytes of a pair that is created now; `None` leaves them to the kernel.
    ///
    /// # Errors
    /// Code 100 when the kernel does not answer.
    pub fn of_now(self, host: &mut RouteSocket) -> Result<Option<u32>, Failure> {
        match self {
            Mtu::Uplink => of_uplink(host, TABLE_MAIN),
            _ => Ok(self.configured()),
        }
    }

    /// The same of a port of a bridge, whose packets leave by `table`. One segment has one MTU: a
    /// bridge that has ports already keeps its own.
    ///
    /// # Errors
    /// Code 100 when the kernel does not answer.
    pub fn of_port(
        self,
        host: &mut RouteSocket,
        bridge: &str,
        table: u32,
    ) -> Result<Option<u32>, Failure> {
        match self {
            Mtu::Uplink => of_bridge(host, bridge, table),
            _ => Ok(self.configured()),
        }
    }
}

/// Returns the MTU of a new port of a bridge, which may not exist yet: that of the bridge, if it has
/// ports, or else that of the uplink. `None` leaves it to the kernel.
///
/// # Errors
/// Code 100 when the kernel does not answer.
pub fn of_bridge(host: &mut RouteSocket, bridge: &str, table: u32) -> Result<Option<u32>, Failure> {
    if let Some(bridge) = host.link_by_name(bridge)?.filter(|link| link.is_kind("bridge"))
        && !host.links_of_master(bridge.index)?.is_empty()
    {
        return Ok(Some(bridge.mtu));
    }
    of_uplink(host, table)
}

/// Returns the largest packet that leaves this host by the default routes of a table, and by the
/// tunnels of `netwrightd routing`, within what a pair can have. `None` without a default route.
fn of_uplink(host: &mut RouteSocket, table: u32) -> Result<Option<u32>, Failure> {
    let Some(uplink) = host.uplink_mtu(table)? else { return Ok(None) };
    let tunnels = host.links_of_kind("vxlan")?;
    let of_routing = tunnels.iter().filter(|link| link.alias.as_deref() == Some(owner::ROUTING));
    let least = of_routing.map(|link| link.mtu).fold(uplink, u32::min);
    Ok(Some(least.clamp(IPV6_LEAST, *ETHERNET_MTU.end())))
}

fn invalid(message: impl Into<String>, details: impl Into<String>) -> Failure {
    Failure::new(code::INVALID_CONFIG, message.into()).with_details(details.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus() {
        let read = |text: &str| cni::json::from_str::<RawMtu>(text);
        assert_eq!(read("0").unwrap().bytes().unwrap(), None);
        assert_eq!(read("1400").unwrap().bytes().unwrap(), Some(1400));
        assert_eq!(read("-1").unwrap().bytes().unwrap_err().code(), code::INVALID_CONFIG);
        assert_eq!(read("\"auto\"").unwrap().of_pair().unwrap(), Mtu::Uplink);
        assert_eq!(read("1400").unwrap().of_pair().unwrap(), Mtu::Bytes(1400));
        assert_eq!(read("0").unwrap().of_pair().unwrap(), Mtu::Kernels);
        let refused = read("\"auto\"").unwrap().within(&ETHERNET_MTU).unwrap_err();
        assert_eq!(refused.code(), code::INVALID_CONFIG);
        assert_eq!(read("65536").unwrap().of_pair().unwrap_err().code(), code::INVALID_CONFIG);
        for wrong in ["\"1400\"", "1.5", "true", "[]", "18446744073709551615"] {
            read(wrong).unwrap_err();
        }
    }
}
