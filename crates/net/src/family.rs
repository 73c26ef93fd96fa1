//! The two versions of IP.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// A version of IP.
///
/// It has no format of its own: files, messages and programs name it differently, and each says how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// Both, IPv4 first.
    pub const ALL: [IpFamily; 2] = [IpFamily::V4, IpFamily::V6];

    /// Returns the version of an address.
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => IpFamily::V4,
            IpAddr::V6(_) => IpFamily::V6,
        }
    }

    /// Returns the version of a prefix.
    #[must_use]
    pub const fn of_prefix(prefix: IpNet) -> Self {
        match prefix {
            IpNet::V4(_) => IpFamily::V4,
            IpNet::V6(_) => IpFamily::V6,
        }
    }

    /// Returns its name: `IPv4` or `IPv6`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            IpFamily::V4 => "IPv4",
            IpFamily::V6 => "IPv6",
        }
    }

    /// Returns its digit, with which names of sets and maps end.
    #[must_use]
    pub const fn digit(self) -> char {
        match self {
            IpFamily::V4 => '4',
            IpFamily::V6 => '6',
        }
    }

    /// Returns how many bits its addresses have.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            IpFamily::V4 => 32,
            IpFamily::V6 => 128,
        }
    }

    /// Returns the other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            IpFamily::V4 => IpFamily::V6,
            IpFamily::V6 => IpFamily::V4,
        }
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One value for each version of IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct PerFamily<T> {
    /// IPv4's.
    pub v4: T,
    /// IPv6's.
    pub v6: T,
}

impl<T> PerFamily<T> {
    /// Makes the value of each version.
    pub fn with(mut make: impl FnMut(IpFamily) -> T) -> Self {
        PerFamily { v4: make(IpFamily::V4), v6: make(IpFamily::V6) }
    }

    /// Returns the value of one version.
    #[must_use]
    pub fn get(&self, family: IpFamily) -> &T {
        match family {
            IpFamily::V4 => &self.v4,
            IpFamily::V6 => &self.v6,
        }
    }

    /// Returns the value of one version, to change it.
    pub fn get_mut(&mut self, family: IpFamily) -> &mut T {
        match family {
            IpFamily::V4 => &mut self.v4,
            IpFamily::V6 => &mut self.v6,
        }
    }

    /// Returns both values, IPv4's first.
    pub fn iter(&self) -> impl Iterator<Item = (IpFamily, &T)> {
        [(IpFamily::V4, &self.v4), (IpFamily::V6, &self.v6)].into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_prefixes_have_a_version() {
        for (text, family, bits) in
            [("192.0.2.1", IpFamily::V4, 32), ("::ffff:192.0.2.1", IpFamily::V6, 128)]
        {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(IpFamily::of(address), family);
            assert_eq!(IpFamily::of_prefix(IpNet::from(address)), family);
            assert_eq!(family.bits(), bits);
            assert_eq!(family.other().other(), family);
            assert!(family.name().ends_with(family.digit()));
        }
    }

    #[test]
    fn each_version_has_its_value() {
        let mut names = PerFamily::with(IpFamily::name);
        assert_eq!(names.get(IpFamily::V6), &"IPv6");
        *names.get_mut(IpFamily::V4) = "four";
        assert_eq!(
            Vec::from_iter(names.iter()),
            [(IpFamily::V4, &"four"), (IpFamily::V6, &"IPv6")]
        );
    }
}
