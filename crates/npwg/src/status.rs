//! The annotation that reports the state of a pod's networks ([`crate::annotation::STATUS`]).

use std::net::IpAddr;

use cni::json::Object;
use cni::{AddResult, Dns};
use serde::Serialize;

/// The annotation's format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Form {
    /// As the standard's own library writes it, and as its readers expect it: addresses without
    /// their prefix length, `dns` always, `default` only if it is true.
    #[default]
    Library,
    /// As in the standard's example: addresses with their prefix length, `dns` if there is any,
    /// `default` always.
    Text,
}

/// The status of one interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// `<namespace>/<name>` of its definition, else the name of a network on the node.
    pub name: String,
    /// The interface; empty if there is none.
    pub interface: String,
    /// Its addresses.
    pub ips: Vec<ipnet::IpNet>,
    /// Its hardware address.
    pub mac: String,
    /// Its MTU; 0 if not reported.
    pub mtu: u32,
    /// Whether it is the default network's.
    pub default: bool,
    /// Name resolution.
    pub dns: Dns,
    /// What is known of its device.
    pub device_info: Option<Object>,
    /// The gateways of the default routes over its network.
    pub gateway: Vec<IpAddr>,
}

/// Describes a network's result: usually one interface, or each interface that it created in the
/// pod if there are several.
///
/// `ifname` is the requested interface name: results before version 0.3.0 do not contain it.
#[must_use]
pub fn of_result(
    name: &str,
    ifname: &str,
    default: bool,
    result: &AddResult,
    device_info: Option<&Object>,
) -> Vec<Status> {
    let of_network = Status {
        name: name.to_owned(),
        dns: result.dns.clone(),
        device_info: device_info.cloned(),
        gateway: gateways(result),
        ..Status::default()
    };
    let of_link = |link: &cni::Interface| Status {
        interface: link.name.clone(),
        mac: link.mac.clone(),
        mtu: link.mtu,
        ..of_network.clone()
    };
    let in_pod = |link: &&cni::Interface| !link.sandbox.is_empty();
    let all: Vec<_> = result.ips.iter().map(|ip| ip.address).collect();
    if result.interfaces.iter().filter(in_pod).count() <= 1 && result.interfaces.len() <= 1 {
        let mut one =
            result.interfaces.iter().find(in_pod).map_or_else(|| of_network.clone(), of_link);
        if result.interfaces.is_empty() && !all.is_empty() {
            ifname.clone_into(&mut one.interface);
        }
        return vec![Status { ips: all, default, ..one }];
    }
    let places: Vec<usize> = result
        .interfaces
        .iter()
        .enumerate()
        .filter(|(_, link)| in_pod(link))
        .map(|(place, _)| place)
        .collect();
    let Some(last) = places.last().copied() else {
        // All links are on the host: only the addresses are the pod's.
        let unplaced = result.ips.iter().filter(|ip| ip.interface.is_none());
        return vec![Status {
            ips: unplaced.map(|ip| ip.address).collect(),
            default,
            ..of_network
        }];
    };
    let with_gateway =
        result.ips.iter().filter(|ip| ip.gateway.is_some()).find_map(|ip| ip.interface);
    let chosen = with_gateway.filter(|place| places.contains(place)).unwrap_or(places[0]);
    let status = |place: &usize| {
        let own = result.ips.iter().filter(|ip| ip.interface.unwrap_or(last) == *place);
        Status {
            ips: own.map(|ip| ip.address).collect(),
            default: default && *place == chosen,
            ..of_link(&result.interfaces[*place])
        }
    };
    places.iter().map(status).collect()
}

/// Writes the annotation: a list whose elements are indented by four spaces, as the standard's
/// library joins them.
#[must_use]
pub fn write(statuses: &[Status], form: Form) -> String {
    let elements: Vec<String> = statuses.iter().map(|status| element(status, form)).collect();
    format!("[{}]", elements.join(","))
}

fn element(status: &Status, form: Form) -> String {
    /// In the field order of the standard's library.
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct Element<'a> {
        name: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        interface: &'a str,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        ips: Vec<String>,
        #[serde(skip_serializing_if = "str::is_empty")]
        mac: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        mtu: Option<u32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        default: Option<bool>,
        #[serde(skip_serializing_if = "Option::is_none")]
        dns: Option<&'a Dns>,
        #[serde(skip_serializing_if = "Option::is_none")]
        device_info: Option<&'a Object>,
        #[serde(skip_serializing_if = "<[IpAddr]>::is_empty")]
        gateway: &'a [IpAddr],
    }
    let ip = |ip: &ipnet::IpNet| match form {
        Form::Library => ip.addr().to_string(),
        Form::Text => ip.to_string(),
    };
    let element = Element {
        name: &status.name,
        interface: &status.interface,
        ips: status.ips.iter().map(ip).collect(),
        mac: &status.mac,
        mtu: Some(status.mtu).filter(|mtu| *mtu != 0),
        default: Some(status.default).filter(|default| *default || form == Form::Text),
        dns: Some(&status.dns).filter(|dns| form == Form::Library || !dns.is_empty()),
        device_info: status.device_info.as_ref(),
        gateway: &status.gateway,
    };
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
    element.serialize(&mut serializer).expect("our types serialise to JSON");
    String::from_utf8(text).expect("JSON is text")
}

/// The gateways of the default routes.
fn gateways(result: &AddResult) -> Vec<IpAddr> {
    let of_family = |route: &cni::Route| {
        let gateways = result.ips.iter().filter_map(|ip| ip.gateway);
        let is_v4 = route.dst.addr().is_ipv4();
        gateways.into_iter().find(|gateway| gateway.is_ipv4() == is_v4)
    };
    let defaults = result.routes.iter().filter(|route| route.is_default());
    defaults.filter_map(|route| route.gw.or_else(|| of_family(route))).collect()
}
