//! The default network, for hosts without a configured one.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use cni::NetworkList;
use cni_plugin::codes;
use cni_runtime::Attachment;
use kernel::ipv6::Ipv6Obstacle;
use kernel::route::{RouteSocket, TABLE_MAIN};
use plugins::shared::mtu;

use super::session::Network;
use crate::failure::Failure;

pub(crate) const NAME: &str = "netwright";

/// Its configuration. Its IPv4 range is one that few administrators choose; its IPv6 prefix is a
/// unique local one (RFC 4193), with a global ID drawn at random once.
const DOCUMENT: &str = include_str!("netwright.conflist");

/// The set with its IPv4 range, and what follows it with its IPv6 range.
const IPV4_SET: &str = r#"[{"subnet": "10.63.0.0/16"}]"#;
const IPV6_SET: &str = ",\n                    [{\"subnet\": \"fd63:b7c4:5e0a::/64\"}]";

/// Its bridge, and what the configuration has between this and the MTU of a host.
const BRIDGE: &str = "nw0";
const BEFORE_MTU: &str = "\"bridge\": \"nw0\",";
const MTU_KEY: &str = "\n            \"mtu\": ";

/// The MTU that links have anyway.
const KERNELS_MTU: u32 = 1500;

/// Returns its configuration on this host: where the host has no IPv6, it gives IPv4 addresses alone,
/// and where the uplink's MTU is not the kernel's own, it has that as a number.
pub(crate) fn document() -> Cow<'static, str> {
    of_host(Ipv6Obstacle::for_new_links().as_ref(), uplink_mtu())
}

/// Returns the MTU of new containers, if it is known and not the kernel's own.
fn uplink_mtu() -> Option<u32> {
    let mtu = mtu::of_bridge(&mut RouteSocket::open().ok()?, BRIDGE, TABLE_MAIN);
    mtu.ok().flatten().filter(|mtu| *mtu != KERNELS_MTU)
}

fn of_host(off: Option<&Ipv6Obstacle>, mtu: Option<u32>) -> Cow<'static, str> {
    let mut document = Cow::Borrowed(DOCUMENT);
    if off.is_some() {
        document = Cow::Owned(document.replace(IPV6_SET, ""));
    }
    if let Some(mtu) = mtu {
        let with_it = format!("{BEFORE_MTU}{MTU_KEY}{mtu},");
        document = Cow::Owned(document.replacen(BEFORE_MTU, &with_it, 1));
    }
    document
}

/// Says whether a file is the configuration as some host has it.
pub(crate) fn is_document(bytes: &[u8]) -> bool {
    let is_without_mtu = |text: &str| text == DOCUMENT || text == DOCUMENT.replace(IPV6_SET, "");
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let of_mtu = text.split_once(MTU_KEY).and_then(|(before, rest)| {
        let (mtu, after) = rest.split_once(',')?;
        mtu.parse::<u32>().ok().map(|_| format!("{before}{after}"))
    });
    is_without_mtu(text) || of_mtu.is_some_and(|text| is_without_mtu(&text))
}

/// Returns the network on this host.
pub(crate) fn list() -> NetworkList {
    NetworkList::parse(document().as_bytes()).expect("a test reads the embedded configuration")
}

/// Says why a network gives IPv4 addresses alone, if it is the default network without its IPv6
/// range.
pub(crate) fn lacks_ipv6(network: &Network) -> Option<String> {
    off_for(&network.list).map(|off| match network.file {
        Some(_) => why_file_has_ipv4_alone(&off),
        None => format!("{}; to have both: {}", gives_ipv4_alone(&off), off.remedy()),
    })
}

/// Says why the file that `install` writes gives IPv4 addresses alone, and what gives it both.
pub(crate) fn why_file_has_ipv4_alone(off: &Ipv6Obstacle) -> String {
    format!(
        "{}; its file has no IPv6 range; to have both: {}, then `netwright install` again",
        gives_ipv4_alone(off),
        off.remedy()
    )
}

fn gives_ipv4_alone(off: &Ipv6Obstacle) -> String {
    format!("network {NAME:?} gives containers IPv4 addresses alone: {off}")
}

/// Returns why this host has no IPv6, if a list is the default network without its IPv6 range.
fn off_for(list: &NetworkList) -> Option<Ipv6Obstacle> {
    let has = |part: &str| String::from_utf8_lossy(&list.source).contains(part);
    let is_it = list.name == NAME && has(IPV4_SET) && !has(IPV6_SET);
    is_it.then(Ipv6Obstacle::for_new_links).flatten()
}

/// Refuses a request for an IPv6 address where the default network has none to give.
///
/// # Errors
/// Code 100, naming the sysctl and the command.
pub(crate) fn refuse_ipv6(list: &NetworkList, attachment: &Attachment) -> Result<(), Failure> {
    let by_capability = attachment.capability_args.get("ips");
    let by_capability: Option<Vec<String>> =
        by_capability.and_then(|asked| serde_json::from_str(asked.get()).ok());
    let by_argument = attachment.args.get("IP").unwrap_or_default().split(',').map(str::to_owned);
    let is_v6 = |text: &String| {
        let address = text.split('/').next().unwrap_or_default().trim();
        address.parse::<Ipv6Addr>().is_ok()
    };
    let asked = by_capability.into_iter().flatten().chain(by_argument).find(is_v6);
    let Some((asked, off)) = asked.and_then(|asked| Some((asked, off_for(list)?))) else {
        return Ok(());
    };
    let text = format!("{asked} cannot be given: {}", gives_ipv4_alone(&off));
    Err(Failure::new(codes::KERNEL, text)
        .hint(format!("{}, or do not ask for an IPv6 address", off.remedy())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_configuration_is_valid() {
        let [list, v4, _] = [(None, None), (Some(&Ipv6Obstacle::Kernel), None), (None, Some(1400))]
            .map(|host| {
                let document = of_host(host.0, host.1);
                assert_eq!(document.contains("\"mtu\": 1400,\n"), host.1.is_some());
                assert!(is_document(document.as_bytes()));
                NetworkList::parse(document.as_bytes()).unwrap()
            });
        let text = |list: &NetworkList| String::from_utf8(list.source.clone()).unwrap();
        assert!(text(&list).contains("fd63:") && text(&list).contains(IPV4_SET));
        assert!(!text(&v4).contains("fd63:") && text(&v4).contains(IPV4_SET));
        assert_eq!(v4.plugins.len(), list.plugins.len());
        assert_eq!(list.name, NAME);
        assert_eq!(list.cni_version, cni::Version::CURRENT.as_str());
        let types: Vec<_> = list.plugins.iter().map(|plugin| plugin.plugin_type.as_str()).collect();
        assert_eq!(types, ["bridge", "portmap", "firewall"]);
    }

    #[test]
    fn our_own_plugins_know_every_key_of_it() {
        for plugin in list().plugins {
            let Some(ours) = plugins::find(&plugin.plugin_type) else { continue };
            let text = String::from_utf8(plugin.object.to_vec()).unwrap();
            let unknown = ours.unknown_keys(&text).unwrap();
            let unknown: Vec<_> = unknown
                .iter()
                .filter(|key| !key.parent.starts_with("ipam"))
                .filter(|key| key.key != "capabilities")
                .collect();
            assert!(unknown.is_empty(), "{}: {unknown:?}", plugin.plugin_type);
        }
    }
}
