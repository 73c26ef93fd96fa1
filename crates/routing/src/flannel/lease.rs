//! The leases of flannelds in etcd: `subnets/10.5.52.0-24`, dual stack `10.5.52.0-24&fd00::-64`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::{Families, LONGEST};
use crate::cluster::{NodeRecord, RecordFault};
use crate::node::{Dialect, Node};
use crate::reader::{self, KeyedValue, address_of, prefix};
use crate::refused::{Cause, Refusal, printable};
use crate::settings::{Backend, FlannelSettings, Settings};
use net::IpFamily;
use net::MacAddr;

/// Returns the key of a node's lease, below the prefix's `subnets/`; `None` without an IPv4 prefix,
/// which flannel's keys need.
#[must_use]
pub fn key(node: &Node) -> Option<String> {
    let first = |family| {
        node.prefixes.iter().copied().find(|prefix| IpFamily::of_prefix(*prefix) == family)
    };
    let part = |prefix: IpNet| format!("{}-{}", prefix.network(), prefix.prefix_len());
    let v4 = part(first(IpFamily::V4)?);
    Some(match first(IpFamily::V6) {
        Some(v6) => format!("{v4}&{}", part(v6)),
        None => v4,
    })
}

/// Returns the value of a node's lease, byte for byte as flanneld writes it.
#[must_use]
pub fn value(node: &Node, flannel: &FlannelSettings) -> String {
    let [v4, v6] = IpFamily::ALL.map(|family| super::backing(node, flannel, family));
    let address = |backing: &Option<super::Backing>, none: &str| match backing {
        Some(backing) => format!("{:?}", backing.address.to_string()),
        None => none.to_owned(),
    };
    let mut text = format!(
        r#"{{"PublicIP":{},"PublicIPv6":{},"BackendType":"{}""#,
        address(&v4, "\"0.0.0.0\""),
        address(&v6, "null"),
        flannel.backend.name()
    );
    for (key, backing) in [("BackendData", &v4), ("BackendV6Data", &v6)] {
        if let Some(data) = backing.as_ref().and_then(|backing| backing.data.as_ref()) {
            text.push_str(&format!(r#","{key}":{data}"#));
        }
    }
    text.push('}');
    text
}

/// Returns the name of a lease's node: its key, as a message shows it.
#[must_use]
pub fn name(key: &str) -> String {
    printable(key)
}

/// Returns the IPv4 address of a lease's node, as far as the value can be read.
#[must_use]
pub fn address(value: &[u8]) -> Option<IpAddr> {
    let json = reader::json(value, LONGEST).ok()?;
    cni::text::parse_ip(KeyedValue::root(&json).like_go().get("PublicIP").ok()??.text().ok()?)
}

/// Returns the hardware address of a node's tunnel over a family, as its lease says.
#[must_use]
pub fn mac(value: &[u8], family: IpFamily) -> Option<MacAddr> {
    let json = reader::json(value, LONGEST).ok()?;
    let key = match family {
        IpFamily::V4 => "BackendData",
        IpFamily::V6 => "BackendV6Data",
    };
    KeyedValue::root(&json).like_go().get(key).ok()??.get("VtepMAC").ok()??.mac().ok()
}

/// Reads a lease: the last part of its key, and its value.
///
/// A lease names no node: the key is the name.
#[must_use]
pub fn read(key: &str, value: &[u8], flannel: &FlannelSettings, settings: &Settings) -> NodeRecord {
    let mut faults = Vec::new();
    let node = read_lease(key, value, flannel, settings, &mut faults).map_err(RecordFault::Refused);
    NodeRecord { name: name(key), node, faults }
}

fn read_lease(
    key: &str,
    value: &[u8],
    flannel: &FlannelSettings,
    settings: &Settings,
    faults: &mut Vec<Refusal>,
) -> Result<Node, Refusal> {
    let refused = |field: &str, cause| Refusal::new(key, field, cause);
    let prefixes = prefixes(key).map_err(|cause| refused("key", cause))?;
    let json = reader::json(value, LONGEST).map_err(|cause| refused("value", cause))?;
    let lease = KeyedValue::root(&json).like_go();
    let of_lease = |(path, cause): (String, Cause)| {
        refused(if path.is_empty() { "value" } else { &path }, cause)
    };
    let backend = match lease.get("BackendType").map_err(of_lease)? {
        Some(name) => name.text().map_err(of_lease)?,
        // What this backend of flanneld writes is left out, as it is empty.
        None => "udp",
    };
    let backend = Backend::of_name(backend)
        .ok_or_else(|| refused("BackendType", super::other_backend(backend)))?;
    let mut read = Families::new(backend, flannel, settings);
    for (family, address_key, data_key) in
        [(IpFamily::V4, "PublicIP", "BackendData"), (IpFamily::V6, "PublicIPv6", "BackendV6Data")]
    {
        if !prefixes.iter().any(|prefix| IpFamily::of_prefix(*prefix) == family) {
            continue;
        }
        let mut one = || {
            let text = lease.required(address_key)?;
            let address = address_of(text.text()?, family).map_err(|cause| text.fault(cause))?;
            let data: Option<&Value> = json_of(&json, data_key);
            read.take(family, address, data).map_err(|(path, cause)| {
                (
                    if path.is_empty() {
                        data_key.to_owned()
                    } else {
                        format!("{data_key}.{path}")
                    },
                    cause,
                )
            })
        };
        if let Err(fault) = one() {
            faults.push(of_lease(fault));
        }
    }
    let Some((underlay, offers)) = read.finish() else {
        let first = faults.drain(..).next();
        return Err(first.unwrap_or_else(|| refused("value", Cause::NothingOffered)));
    };
    Ok(Node {
        name: name(key),
        uid: String::new(),
        created: None,
        prefixes,
        kept: Vec::new(),
        blocks: Vec::new(),
        underlay,
        addresses: Vec::new(),
        offers,
        mtu: None,
        zone: None,
        dialect: Dialect::Flannel,
    })
}

fn json_of<'a>(json: &'a Value, key: &str) -> Option<&'a Value> {
    let same = |(other, _): &(&String, _)| other.eq_ignore_ascii_case(key);
    json.as_object()?.iter().find(same).map(|(_, value)| value)
}

/// Reads the prefixes that a key has: IPv4's, and IPv6's after `&`.
pub(super) fn prefixes(key: &str) -> Result<Vec<IpNet>, Cause> {
    let wanted = "a lease's, such as 10.5.52.0-24 or 10.5.52.0-24&fd00::-64";
    let mut prefixes = Vec::new();
    let parts = key.split('&').zip(IpFamily::ALL);
    if 2 < key.split('&').count() {
        return Err(Cause::not_a(key, wanted));
    }
    for (part, family) in parts {
        let (address, length) = part.rsplit_once('-').ok_or_else(|| Cause::not_a(key, wanted))?;
        let prefix = prefix(&format!("{address}/{length}")).map_err(|cause| match cause {
            Cause::NotA { .. } => Cause::not_a(key, wanted),
            cause => cause,
        })?;
        if IpFamily::of_prefix(prefix) != family {
            return Err(Cause::WrongFamily { value: prefix.to_string(), family });
        }
        prefixes.push(prefix);
    }
    Ok(prefixes)
}
