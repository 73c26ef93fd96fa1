//! The three shapes of a result on the wire.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{AddResult, Dns, DropKind, Interface, IpConfig, Route};
use crate::error::{Error, code};
use crate::json;
use crate::text::{self, quote};
use crate::version::{ResultFamily, Version};

fn decode(error: &json::JsonError) -> Error {
    Error::new(code::DECODE_FAILURE, format!("error parsing result: {error}"))
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct OnlyVersion {
    #[serde(rename = "cniVersion")]
    cni_version: String,
}

/// Returns `cniVersion` as written; empty when there is none.
pub(super) fn version_text(document: &[u8]) -> Result<String, Error> {
    let OnlyVersion { cni_version } = json::from_slice(document).map_err(|error| decode(&error))?;
    Ok(cni_version)
}

pub(super) fn version_of(document: &[u8]) -> Result<Option<Version>, Error> {
    let said = version_text(document)?;
    if said.is_empty() {
        return Ok(None);
    }
    Version::parse(&said).map(Some).ok_or_else(|| {
        Error::new(code::DECODE_FAILURE, format!("unsupported CNI result version {}", quote(&said)))
    })
}

pub(super) fn parse(document: &[u8], assumed: Version) -> Result<AddResult, Error> {
    parse_as(document, version_of(document)?.unwrap_or(assumed))
}

/// Reads a result in a version's shape, even if it names another version.
pub(super) fn parse_as(document: &[u8], version: Version) -> Result<AddResult, Error> {
    match version.family() {
        ResultFamily::V0_2 => json::from_slice::<OldResult>(document).map(AddResult::from),
        ResultFamily::V0_4 => json::from_slice::<NewResult>(document).map(|mut result| {
            result.interfaces.iter_mut().for_each(strip_to_v0_4);
            AddResult::from(result)
        }),
        ResultFamily::V1 => json::from_slice::<NewResult>(document).map(AddResult::from),
    }
    .map_err(|error| decode(&error))
}

/// Keeps the fields of an interface that 0.3.x and 0.4.0 know.
fn strip_to_v0_4(link: &mut Interface) {
    *link = Interface {
        name: std::mem::take(&mut link.name),
        mac: std::mem::take(&mut link.mac),
        sandbox: std::mem::take(&mut link.sandbox),
        ..Interface::default()
    };
}

pub(super) fn write(result: &AddResult, version: Version, indent: bool) -> Result<Vec<u8>, Error> {
    fn text<T: Serialize>(value: &T, indent: bool) -> Vec<u8> {
        if indent {
            crate::to_json_indented(value)
        } else {
            serde_json::to_vec(value).expect("results serialise to JSON")
        }
    }
    Ok(match version.family() {
        ResultFamily::V0_2 => text(&OldResult::try_from_new(result, version)?, indent),
        ResultFamily::V0_4 => text(&NewResult::of_v0_4(result, version), indent),
        ResultFamily::V1 => text(&NewResult::of_v1(result, version), indent),
    })
}

/// 0.3.0 and newer.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct NewResult {
    #[serde(rename = "cniVersion")]
    cni_version: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<Interface>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ips: Vec<NewIp>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
    /// Always written before 1.0.0; since then only when it is not empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    dns: Option<Dns>,
}

#[derive(Serialize, Deserialize)]
struct NewIp {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    interface: Option<i64>,
    #[serde(with = "text::cidr")]
    address: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::optional_ip")]
    gateway: Option<IpAddr>,
}

impl NewResult {
    fn of_v1(result: &AddResult, version: Version) -> Self {
        NewResult {
            cni_version: version.to_string(),
            interfaces: result.interfaces.clone(),
            ips: result.ips.iter().map(|ip| NewIp::of(ip, false)).collect(),
            routes: result.routes.clone(),
            dns: (!result.dns.is_empty()).then(|| result.dns.clone()),
        }
    }

    fn of_v0_4(result: &AddResult, version: Version) -> Self {
        let mut interfaces = result.interfaces.clone();
        interfaces.iter_mut().for_each(strip_to_v0_4);
        NewResult {
            cni_version: version.to_string(),
            interfaces,
            ips: result.ips.iter().map(|ip| NewIp::of(ip, true)).collect(),
            routes: result.routes.clone(),
            dns: Some(result.dns.clone()),
        }
    }
}

impl NewIp {
    fn of(ip: &IpConfig, with_version: bool) -> Self {
        let version = if ip.address.addr().is_ipv4() { "4" } else { "6" };
        NewIp {
            version: with_version.then(|| version.to_owned()),
            interface: ip.interface.and_then(|index| i64::try_from(index).ok()),
            address: ip.address,
            gateway: ip.gateway,
        }
    }
}

impl From<NewResult> for AddResult {
    fn from(new: NewResult) -> Self {
        let ips = new.ips.into_iter().map(|ip| IpConfig {
            address: ip.address,
            gateway: ip.gateway,
            interface: ip.interface.and_then(|index| usize::try_from(index).ok()),
        });
        AddResult {
            interfaces: new.interfaces,
            ips: ips.collect(),
            routes: new.routes,
            dns: new.dns.unwrap_or_default(),
        }
    }
}

/// 0.1.0 and 0.2.0.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct OldResult {
    #[serde(rename = "cniVersion")]
    cni_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip4: Option<OldIp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip6: Option<OldIp>,
    dns: Dns,
}

#[derive(Serialize, Deserialize)]
struct OldIp {
    #[serde(with = "text::cidr")]
    ip: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::optional_ip")]
    gateway: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
}

impl OldResult {
    fn try_from_new(result: &AddResult, version: Version) -> Result<Self, Error> {
        let family = |v4: bool| {
            let ip = result.ips.iter().find(|ip| ip.address.addr().is_ipv4() == v4)?;
            let routes = result.routes.iter().filter(|route| route.dst.addr().is_ipv4() == v4);
            Some(OldIp {
                ip: ip.address,
                gateway: ip.gateway,
                routes: routes
                    .filter(|route| route.drops.is_none())
                    .map(|route| Route::new(route.dst, route.gw))
                    .collect(),
            })
        };
        let (ip4, ip6) = (family(true), family(false));
        if ip4.is_none() && ip6.is_none() {
            return Err(Error::new(code::DECODE_FAILURE, "cannot convert: no valid IP addresses")
                .with_details(format!("a result of CNI {version} needs an address")));
        }
        Ok(OldResult { cni_version: version.to_string(), ip4, ip6, dns: result.dns.clone() })
    }
}

impl From<OldResult> for AddResult {
    fn from(old: OldResult) -> Self {
        let mut result = AddResult { dns: old.dns, ..AddResult::default() };
        for ip in [old.ip4, old.ip6].into_iter().flatten() {
            result.ips.push(IpConfig::new(ip.ip, ip.gateway));
            result.routes.extend(ip.routes);
        }
        result
    }
}

#[derive(Serialize, Deserialize)]
struct WireRoute {
    #[serde(with = "text::cidr")]
    dst: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::optional_ip")]
    gw: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "absent_or_zero")]
    mtu: Option<u32>,
    #[serde(default, skip_serializing_if = "absent_or_zero")]
    advmss: Option<u32>,
    #[serde(default, skip_serializing_if = "absent_or_zero")]
    priority: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    table: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scope: Option<u8>,
    #[serde(rename = "type", default, skip_serializing_if = "RouteType::leads_somewhere")]
    route_type: RouteType,
}

/// The key `type`: an empty one is as good as none, as in netavark's configurations.
#[derive(Default, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RouteType {
    #[default]
    #[serde(alias = "")]
    Unicast,
    Blackhole,
    Unreachable,
    Prohibit,
}

impl RouteType {
    fn leads_somewhere(&self) -> bool {
        self.drops().is_none()
    }

    fn drops(self) -> Option<DropKind> {
        match self {
            RouteType::Unicast => None,
            RouteType::Blackhole => Some(DropKind::Blackhole),
            RouteType::Unreachable => Some(DropKind::Unreachable),
            RouteType::Prohibit => Some(DropKind::Prohibit),
        }
    }
}

impl From<Option<DropKind>> for RouteType {
    fn from(drops: Option<DropKind>) -> Self {
        match drops {
            None => RouteType::Unicast,
            Some(DropKind::Blackhole) => RouteType::Blackhole,
            Some(DropKind::Unreachable) => RouteType::Unreachable,
            Some(DropKind::Prohibit) => RouteType::Prohibit,
        }
    }
}

fn absent_or_zero(value: &Option<u32>) -> bool {
    value.is_none_or(|value| value == 0)
}

impl Serialize for Route {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Route { dst, gw, mtu, advmss, priority, table, scope, drops } = *self;
        let route_type = drops.into();
        WireRoute { dst, gw, mtu, advmss, priority, table, scope, route_type }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Route {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = WireRoute::deserialize(deserializer)?;
        let said = |value: Option<u32>| value.filter(|value| *value != 0);
        let drops = raw.route_type.drops();
        if let (Some(_), Some(gw)) = (drops, raw.gw) {
            let words = format_args!("gw {gw} of a route that drops packets");
            return Err(serde::de::Error::custom(words));
        }
        Ok(Route {
            dst: raw.dst,
            gw: raw.gw,
            mtu: said(raw.mtu),
            advmss: said(raw.advmss),
            priority: said(raw.priority),
            table: raw.table,
            scope: raw.scope,
            drops,
        })
    }
}
