//! The two address families.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Family {
    /// IPv4.
    #[serde(rename = "ipv4")]
    V4,
    /// IPv6.
    #[serde(rename = "ipv6")]
    V6,
}

impl Family {
    /// Both, IPv4 first.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// Returns the family of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// Returns the family of a prefix.
    #[must_use]
    pub fn of_prefix(prefix: IpNet) -> Self {
        Family::of(prefix.addr())
    }

    /// Returns its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }

    /// Returns the other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Family::V4 => Family::V6,
            Family::V6 => Family::V4,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One value for each family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct PerFamily<T> {
    /// IPv4's.
    pub v4: T,
    /// IPv6's.
    pub v6: T,
}

impl<T> PerFamily<T> {
    /// Makes the value of each family.
    pub fn with(mut make: impl FnMut(Family) -> T) -> Self {
        PerFamily { v4: make(Family::V4), v6: make(Family::V6) }
    }

    /// Returns a family's value.
    #[must_use]
    pub fn get(&self, family: Family) -> &T {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    /// Returns a family's value, to change it.
    pub fn get_mut(&mut self, family: Family) -> &mut T {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }

    /// Returns both values, IPv4's first.
    pub fn iter(&self) -> impl Iterator<Item = (Family, &T)> {
        [(Family::V4, &self.v4), (Family::V6, &self.v6)].into_iter()
    }
}
