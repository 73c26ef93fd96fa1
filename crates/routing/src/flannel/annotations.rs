//! The annotations that flanneld writes to its Node, and reads of others.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::Backing;
use crate::kubernetes::{NodeFields, has_address};
use crate::node::{Dialect, Node};
use crate::reader::{self, KeyedValue, address_of};
use crate::refused::{Cause, Refusal};
use crate::settings::{Backend, FlannelSettings, Settings};
use net::IpFamily;
use net::MacAddr;

/// What annotations of flanneld begin with by default.
pub const PREFIX: &str = "flannel.alpha.coreos.com/";

/// flanneld has set the others.
const MANAGED: &str = "kube-subnet-manager";
const BACKEND_TYPE: &str = "backend-type";

/// The annotations of a family.
struct FamilyKeys {
    data: &'static str,
    public_ip: &'static str,
    overwrite: &'static str,
}

fn of_family(family: IpFamily) -> FamilyKeys {
    match family {
        IpFamily::V4 => FamilyKeys {
            data: "backend-data",
            public_ip: "public-ip",
            overwrite: "public-ip-overwrite",
        },
        IpFamily::V6 => FamilyKeys {
            data: "backend-v6-data",
            public_ip: "public-ipv6",
            overwrite: "public-ipv6-overwrite",
        },
    }
}

/// Reports whether an annotation, without its prefix, is read here.
pub(crate) fn is_read(name: &str) -> bool {
    let of = |keys: FamilyKeys| [keys.data, keys.public_ip, keys.overwrite].contains(&name);
    [MANAGED, BACKEND_TYPE].contains(&name)
        || IpFamily::ALL.into_iter().any(|one| of(of_family(one)))
}

/// Returns the keys of all that [`write()`] writes.
pub fn written(flannel: &FlannelSettings) -> impl Iterator<Item = String> {
    let of = |family| [of_family(family).data, of_family(family).public_ip];
    let of_families = IpFamily::ALL.into_iter().flat_map(of);
    let all = [MANAGED, BACKEND_TYPE].into_iter().chain(of_families);
    all.map(|name| format!("{}{name}", flannel.prefix))
}

/// Returns the annotations of this node, byte for byte as flanneld writes them.
///
/// `there` are those that the Node has: `public-ip-overwrite` is written into `public-ip`, as
/// flanneld does.
#[must_use]
pub fn write(
    node: &Node,
    flannel: &FlannelSettings,
    there: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let key = |name: &str| format!("{}{name}", flannel.prefix);
    let mut annotations = BTreeMap::from([
        (key(MANAGED), "true".to_owned()),
        (key(BACKEND_TYPE), flannel.backend.name().to_owned()),
    ]);
    for family in IpFamily::ALL {
        let keys = of_family(family);
        let backing = super::backing(node, flannel, family);
        let (data, address) = match (&backing, flannel.backend, family) {
            (Some(Backing { data: Some(data), address }), _, _) => (data.clone(), *address),
            (Some(Backing { data: None, address }), _, _) => ("null".to_owned(), *address),
            // With this backend flanneld writes IPv4's for nodes of any families.
            (None, Backend::HostGw, IpFamily::V4) => {
                ("null".to_owned(), IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED))
            }
            (None, _, _) => continue,
        };
        let overwrite = there.get(&key(keys.overwrite)).filter(|text| !text.is_empty());
        annotations.insert(key(keys.data), data);
        annotations
            .insert(key(keys.public_ip), overwrite.cloned().unwrap_or_else(|| address.to_string()));
    }
    annotations
}

/// Returns the key of the annotation by which an administrator sets a node's address.
#[must_use]
pub fn overwrite_key(flannel: &FlannelSettings, family: IpFamily) -> String {
    format!("{}{}", flannel.prefix, of_family(family).overwrite)
}

/// Returns the address that an administrator has set for a node.
#[must_use]
pub fn overwrite(
    fields: &NodeFields,
    flannel: &FlannelSettings,
    family: IpFamily,
) -> Option<IpAddr> {
    cni::text::parse_ip(fields.annotations.get(&overwrite_key(flannel, family))?)
}

/// Returns the address by which flannelds reach a node.
#[must_use]
pub fn public_ip(
    fields: &NodeFields,
    flannel: &FlannelSettings,
    family: IpFamily,
) -> Option<IpAddr> {
    let key = format!("{}{}", flannel.prefix, of_family(family).public_ip);
    address_of(fields.annotations.get(&key)?, family).ok()
}

/// Returns the hardware address of a node's tunnel over a family, as flannelds know it.
#[must_use]
pub fn mac(fields: &NodeFields, flannel: &FlannelSettings, family: IpFamily) -> Option<MacAddr> {
    let text = fields.annotations.get(&format!("{}{}", flannel.prefix, of_family(family).data))?;
    let json = reader::json(text.as_bytes(), super::LONGEST).ok()?;
    KeyedValue::root(&json).like_go().get("VtepMAC").ok()??.mac().ok()
}

/// Reads the annotations of a Node; `None` if flanneld does not manage it.
///
/// A family whose annotations are wrong is left out, and a fault: the other one counts.
///
/// # Errors
/// What is wrong with them, if no family counts.
pub(crate) fn read(
    fields: &NodeFields,
    prefixes: Vec<IpNet>,
    flannel: &FlannelSettings,
    settings: &Settings,
    faults: &mut Vec<Refusal>,
) -> Option<Result<Node, Refusal>> {
    let get = |name: &str| fields.annotations.get(&format!("{}{name}", flannel.prefix));
    get(MANAGED).filter(|managed| managed.as_str() == "true")?;
    let refused =
        |name: &str, cause| Refusal::new(&fields.name, format!("{}{name}", flannel.prefix), cause);
    let backend = match get(BACKEND_TYPE).map(String::as_str) {
        Some(name) => match Backend::of_name(name) {
            Some(backend) => backend,
            None => return Some(Err(refused(BACKEND_TYPE, super::other_backend(name)))),
        },
        None => return Some(Err(refused(BACKEND_TYPE, Cause::Missing))),
    };
    let mut read = super::Families::new(backend, flannel, settings);
    for family in IpFamily::ALL {
        if !prefixes.iter().any(|prefix| IpFamily::of_prefix(*prefix) == family) {
            continue;
        }
        let keys = of_family(family);
        let mut one = || {
            let text =
                get(keys.public_ip).ok_or_else(|| refused(keys.public_ip, Cause::Missing))?;
            let address =
                address_of(text, family).map_err(|cause| refused(keys.public_ip, cause))?;
            let overwritten = overwrite(fields, flannel, family) == Some(address);
            if !overwritten && !settings.any_address {
                has_address(fields, address).map_err(|cause| refused(keys.public_ip, cause))?;
            }
            let data = get(keys.data).map(|text| {
                reader::json(text.as_bytes(), super::LONGEST)
                    .map_err(|cause| refused(keys.data, cause))
            });
            let data = data.transpose()?;
            read.take(family, address, data.as_ref()).map_err(|(path, cause)| {
                let key = if path.is_empty() { String::new() } else { format!(": {path}") };
                refused(&format!("{}{key}", keys.data), cause)
            })
        };
        if let Err(fault) = one() {
            faults.push(fault);
        }
    }
    let (underlay, offers) = match read.finish() {
        Some(read) => read,
        None => {
            let first = faults.drain(..).next();
            return Some(
                Err(first.unwrap_or_else(|| refused(BACKEND_TYPE, Cause::NothingOffered))),
            );
        }
    };
    Some(Ok(Node {
        name: fields.name.clone(),
        uid: fields.uid.clone(),
        created: fields.created,
        prefixes,
        kept: Vec::new(),
        blocks: Vec::new(),
        underlay,
        addresses: Vec::new(),
        offers,
        mtu: None,
        zone: fields.zone.clone(),
        dialect: Dialect::Flannel,
    }))
}
