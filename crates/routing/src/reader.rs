//! Reads documents of others, and says at which key they are wrong.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde_json::Value;

use crate::node::Underlay;
use crate::refused::{Cause, printable};
use net::IpFamily;
use net::MacAddr;

/// What is wrong, after the path of its key.
pub(crate) type Fault = (String, Cause);

/// The shortest and longest MTU that a link of the underlay can have, in bytes: IPv4's least (RFC
/// 791 §3.1), and what 16 bits count.
pub(crate) const MTU: (u64, u64) = (576, 65_535);

/// The largest network identifier: 24 bits, and 0 is kept for none (RFC 7348 §5).
pub(crate) const VNI: (u64, u64) = (1, (1 << 24) - 1);

/// A value in a document, with the path of its key.
#[derive(Debug, Clone)]
pub(crate) struct KeyedValue<'a> {
    path: String,
    value: &'a Value,
    any_case: bool,
}

impl<'a> KeyedValue<'a> {
    /// Returns the document itself.
    pub(crate) fn root(value: &'a Value) -> Self {
        KeyedValue { path: String::new(), value, any_case: false }
    }

    /// Finds keys in upper or lower case, as Go does.
    pub(crate) fn like_go(mut self) -> Self {
        self.any_case = true;
        self
    }

    /// Returns a fault of this value.
    pub(crate) fn fault(&self, cause: Cause) -> Fault {
        (self.path.clone(), cause)
    }

    /// Returns the value of a key, unless it is missing or null.
    pub(crate) fn get(&self, key: &str) -> Result<Option<KeyedValue<'a>>, Fault> {
        let object = self.object()?;
        let any_case = || {
            let same = |(other, _): &(&String, _)| other.eq_ignore_ascii_case(key);
            object.iter().find(same).map(|(_, value)| value)
        };
        let found = object.get(key).or_else(|| if self.any_case { any_case() } else { None });
        Ok(found.filter(|value| !value.is_null()).map(|value| self.below(key, value)))
    }

    /// Returns the value of a key that has to be there.
    pub(crate) fn required(&self, key: &str) -> Result<KeyedValue<'a>, Fault> {
        self.get(key)?.ok_or_else(|| (join(&self.path, key), Cause::Missing))
    }

    /// Returns the keys.
    pub(crate) fn keys(&self) -> Result<impl Iterator<Item = &'a str> + use<'a>, Fault> {
        Ok(self.object()?.keys().map(String::as_str))
    }

    fn below(&self, key: &str, value: &'a Value) -> KeyedValue<'a> {
        KeyedValue { path: join(&self.path, key), value, any_case: self.any_case }
    }

    fn object(&self) -> Result<&'a serde_json::Map<String, Value>, Fault> {
        self.value.as_object().ok_or_else(|| self.not("an object"))
    }

    fn not(&self, wanted: &str) -> Fault {
        // JSON has its own quotes.
        let text = printable(&self.value.to_string());
        self.fault(Cause::NotA { text, wanted: wanted.to_owned() })
    }

    pub(crate) fn text(&self) -> Result<&'a str, Fault> {
        self.value.as_str().ok_or_else(|| self.not("a text"))
    }

    /// Returns the entries of a list that has at most `most`.
    pub(crate) fn list(&self, most: usize) -> Result<Vec<KeyedValue<'a>>, Fault> {
        let list = self.value.as_array().ok_or_else(|| self.not("a list"))?;
        if most < list.len() {
            return Err(self.fault(Cause::TooMany { count: list.len(), most }));
        }
        let entry = |(number, value)| KeyedValue {
            path: format!("{}[{number}]", self.path),
            value,
            any_case: self.any_case,
        };
        Ok(list.iter().enumerate().map(entry).collect())
    }

    pub(crate) fn flag(&self) -> Result<bool, Fault> {
        self.value.as_bool().ok_or_else(|| self.not("true or false"))
    }

    /// Returns a whole number in a range.
    pub(crate) fn number<T: TryFrom<u64>>(&self, (least, most): (u64, u64)) -> Result<T, Fault> {
        let value = self.value.as_u64().ok_or_else(|| self.not("a whole number"))?;
        let out_of_range = || self.fault(Cause::OutOfRange { value, least, most });
        if !(least..=most).contains(&value) {
            return Err(out_of_range());
        }
        T::try_from(value).map_err(|_| out_of_range())
    }

    pub(crate) fn mtu(&self) -> Result<u32, Fault> {
        self.number(MTU)
    }

    pub(crate) fn vni(&self) -> Result<u32, Fault> {
        self.number(VNI)
    }

    pub(crate) fn port(&self) -> Result<u16, Fault> {
        self.number((1, u64::from(u16::MAX)))
    }

    pub(crate) fn mac(&self) -> Result<MacAddr, Fault> {
        let text = self.text()?;
        let wanted = "a hardware address such as 02:00:00:00:00:01";
        let mac: MacAddr = text.parse().map_err(|_| self.fault(Cause::not_a(text, wanted)))?;
        if !mac.is_unicast() {
            return Err(self.fault(Cause::NotUnicast { mac }));
        }
        Ok(mac)
    }

    pub(crate) fn prefix(&self) -> Result<IpNet, Fault> {
        prefix(self.text()?).map_err(|cause| self.fault(cause))
    }

    /// Reads a list of prefixes that do not overlap.
    pub(crate) fn prefixes(&self, most: usize) -> Result<Vec<IpNet>, Fault> {
        let mut prefixes: Vec<IpNet> = Vec::new();
        for entry in self.list(most)? {
            let prefix = entry.prefix()?;
            if let Some(other) = prefixes.iter().copied().find(|other| overlap(*other, prefix)) {
                return Err(entry.fault(Cause::OverlapsItself { prefix, other }));
            }
            prefixes.push(prefix);
        }
        Ok(prefixes)
    }

    /// Reads a list of underlay addresses: one, or one of each family.
    pub(crate) fn underlay(&self) -> Result<Underlay, Fault> {
        let mut underlay = Underlay::default();
        for entry in self.list(2)? {
            let address = address(entry.text()?).map_err(|cause| entry.fault(cause))?;
            let family = IpFamily::of(address);
            if underlay.get(family).is_some() {
                let why = format!("there are two {family} addresses");
                return Err(entry.fault(Cause::Invalid { why }));
            }
            underlay.set(address);
        }
        if underlay == Underlay::default() {
            return Err(self.fault(Cause::Missing));
        }
        Ok(underlay)
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Reads a JSON document that has at most `most` bytes.
pub(crate) fn json(text: &[u8], most: usize) -> Result<Value, Cause> {
    if most < text.len() {
        return Err(Cause::TooLong { bytes: text.len(), most });
    }
    serde_json::from_slice(text)
        .map_err(|error| Cause::Malformed { why: cni::json::explain(text, &error).to_string() })
}

/// Reads a prefix without host bits.
pub(crate) fn prefix(text: &str) -> Result<IpNet, Cause> {
    let prefix = cni::text::parse_cidr(text)
        .ok_or_else(|| Cause::not_a(text, "a prefix such as 10.244.1.0/24"))?;
    let network = prefix.trunc();
    if network != prefix {
        return Err(Cause::HostBits { prefix, network });
    }
    Ok(prefix)
}

/// Reads an address by which other nodes can reach a node.
pub(crate) fn address(text: &str) -> Result<IpAddr, Cause> {
    let address = cni::text::parse_ip(text)
        .ok_or_else(|| Cause::not_a(text, "an address such as 192.0.2.1"))?;
    let what = match address {
        _ if address.is_unspecified() => "no host's",
        _ if address.is_loopback() => "a loopback address",
        _ if address.is_multicast() => "a multicast address",
        IpAddr::V4(v4) if v4 == Ipv4Addr::BROADCAST => "the broadcast address",
        // A link-local address means nothing without its link, which is not given.
        IpAddr::V6(v6) if v6.is_unicast_link_local() => "a link-local address",
        IpAddr::V4(v4) if v4.octets()[0] == 0 => "no host's",
        _ => return Ok(address),
    };
    Err(Cause::Unreachable { address, what: what.to_owned() })
}

/// Reads an address of a family by which other nodes can reach a node.
pub(crate) fn address_of(text: &str, family: IpFamily) -> Result<IpAddr, Cause> {
    let address = address(text)?;
    if IpFamily::of(address) != family {
        return Err(Cause::WrongFamily { value: address.to_string(), family });
    }
    Ok(address)
}

/// Reports whether two prefixes have addresses in common.
#[must_use]
pub(crate) fn overlap(one: IpNet, other: IpNet) -> bool {
    one.contains(&other) || other.contains(&one)
}

/// Returns the prefix that has one address only.
pub(crate) fn host_prefix(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

/// Returns the address after one, for `subnet.env` and gateways.
pub(crate) fn next_address(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from(u32::from(v4).wrapping_add(1))),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from(u128::from(v6).wrapping_add(1))),
    }
}
