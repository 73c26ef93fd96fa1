//! The shapes of results, version by version (CNI 1.1.0 §5 and the older texts): writes results for
//! plugins to read as `prevResult`, and checks what plugins print.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use crate::case::{Outcome, fail};

/// Every version of the specification, oldest first.
pub(crate) const VERSIONS: [&str; 7] =
    ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Returns a version's position among them; unknown ones are last.
pub(crate) fn rank(version: &str) -> usize {
    VERSIONS.iter().position(|known| *known == version).unwrap_or(VERSIONS.len())
}

/// Says whether a version's results have `ip4` and `ip6`.
pub(crate) fn is_old(version: &str) -> bool {
    rank(version) < rank("0.3.0")
}

/// Says whether the addresses in a version's results name their family.
pub(crate) fn says_family(version: &str) -> bool {
    !is_old(version) && rank(version) < rank("1.0.0")
}

/// Says whether a version has a verb.
pub(crate) fn has_verb(version: &str, verb: &str) -> bool {
    rank(match verb {
        "CHECK" => "0.4.0",
        "GC" | "STATUS" => "1.1.0",
        _ => "0.1.0",
    }) <= rank(version)
}

/// An address for a result.
#[derive(Debug, Clone)]
pub(crate) struct ResultAddress {
    pub(crate) address: IpNet,
    pub(crate) gateway: IpAddr,
    pub(crate) interface: Option<usize>,
}

/// Writes a result with a default route for each address.
pub(crate) fn write(version: &str, interfaces: &[Value], given: &[ResultAddress]) -> Value {
    let default = |net: &IpNet| if net.addr().is_ipv4() { "0.0.0.0/0" } else { "::/0" };
    if is_old(version) {
        let mut result = json!({ "cniVersion": version });
        for one in given {
            let key = if one.address.addr().is_ipv4() { "ip4" } else { "ip6" };
            result[key] = json!({
                "ip": one.address.to_string(), "gateway": one.gateway.to_string(),
                "routes": [{ "dst": default(&one.address) }],
            });
        }
        return result;
    }
    let ips: Vec<Value> = given
        .iter()
        .map(|one| {
            let mut ip =
                json!({ "address": one.address.to_string(), "gateway": one.gateway.to_string() });
            if let Some(interface) = one.interface {
                ip["interface"] = interface.into();
            }
            if says_family(version) {
                ip["version"] = if one.address.addr().is_ipv4() { "4" } else { "6" }.into();
            }
            ip
        })
        .collect();
    let routes: Vec<Value> =
        given.iter().map(|one| json!({ "dst": default(&one.address) })).collect();
    let mut result = json!({ "cniVersion": version, "ips": ips, "routes": routes });
    if !interfaces.is_empty() {
        result["interfaces"] = interfaces.into();
    }
    result
}

/// Returns every address of a result of any version.
pub(crate) fn addresses(result: &Value) -> Vec<String> {
    let new = result["ips"].as_array().into_iter().flatten().map(|ip| &ip["address"]);
    let old = ["ip4", "ip6"].into_iter().map(|key| &result[key]["ip"]);
    new.chain(old).filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

/// Checks a result's shape.
pub(crate) fn judge(result: &Value, version: &str, of_ipam: bool) -> Outcome {
    let expected = format!("a result in the shape of version {version}");
    let wrong = |what: String| fail(expected.clone(), format!("{what}: {result}"));
    if result["cniVersion"].as_str() != Some(version) {
        return wrong(format!("cniVersion is {}", result["cniVersion"]));
    }
    let Some(object) = result.as_object() else { return wrong("it is not an object".to_owned()) };
    let problem = if is_old(version) { old(object) } else { new(object, version, of_ipam) };
    match problem {
        Some(problem) => wrong(problem),
        None => Ok(()),
    }
}

fn old(result: &Map<String, Value>) -> Option<String> {
    if let Some(key) = ["ips", "interfaces", "routes"].iter().find(|key| result.contains_key(**key))
    {
        return Some(format!("it has `{key}`, which 0.3.0 introduced"));
    }
    ["ip4", "ip6"].iter().filter_map(|key| Some((key, result.get(*key)?))).find_map(|(key, ip)| {
        let v4 = *key == "ip4";
        let right = |net: &str| net.parse::<IpNet>().is_ok_and(|net| net.addr().is_ipv4() == v4);
        if !ip["ip"].as_str().is_some_and(right) {
            return Some(format!("{key}.ip is not an address with a prefix length"));
        }
        routes(ip.get("routes"))
    })
}

fn new(result: &Map<String, Value>, version: &str, of_ipam: bool) -> Option<String> {
    if let Some(key) = ["ip4", "ip6", "ip"].iter().find(|key| result.contains_key(**key)) {
        return Some(format!("it has `{key}`, which 0.3.0 removed"));
    }
    let list = |key: &str| match result.get(key) {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) => Ok(list.clone()),
        Some(_) => Err(format!("`{key}` is not a list")),
    };
    let (interfaces, ips) = match (list("interfaces"), list("ips")) {
        (Ok(interfaces), Ok(ips)) => (interfaces, ips),
        (Err(problem), _) | (_, Err(problem)) => return Some(problem),
    };
    if of_ipam && result.contains_key("interfaces") {
        return Some("an IPAM plugin's result has no `interfaces`".to_owned());
    }
    if interfaces.iter().any(|one| one["name"].as_str().is_none_or(str::is_empty)) {
        return Some("an interface has no `name`".to_owned());
    }
    for ip in &ips {
        let address = ip["address"].as_str().and_then(|text| text.parse::<IpNet>().ok());
        let Some(address) = address else {
            return Some(format!("{ip} has no `address` with a prefix length"));
        };
        let family = if address.addr().is_ipv4() { "4" } else { "6" };
        match (says_family(version), ip.get("version")) {
            (true, found) if found.and_then(Value::as_str) != Some(family) => {
                return Some(format!("{ip} lacks `version` \"{family}\""));
            }
            (false, Some(_)) => return Some(format!("{ip} has `version`, which 1.0.0 removed")),
            _ => {}
        }
        match ip.get("interface") {
            Some(_) if of_ipam => return Some(format!("{ip} of an IPAM plugin has `interface`")),
            Some(index) if index.as_u64().is_none_or(|at| count(&interfaces) <= at) => {
                return Some(format!("{ip} names an interface that is not listed"));
            }
            _ => {}
        }
        let gateway = ip.get("gateway").filter(|gateway| !gateway.is_null());
        if gateway.is_some_and(|text| text.as_str().is_none_or(|ip| ip.parse::<IpAddr>().is_err()))
        {
            return Some(format!("{ip} has a `gateway` that is not an address"));
        }
    }
    routes(result.get("routes"))
}

fn count(list: &[Value]) -> u64 {
    u64::try_from(list.len()).unwrap_or(u64::MAX)
}

fn routes(routes: Option<&Value>) -> Option<String> {
    let routes = routes.filter(|routes| !routes.is_null())?;
    let Some(list) = routes.as_array() else { return Some("`routes` is not a list".to_owned()) };
    list.iter().find_map(|route| {
        let good = |net: &str| net.parse::<IpNet>().is_ok();
        if !route["dst"].as_str().is_some_and(good) {
            return Some(format!("{route} has no `dst` with a prefix length"));
        }
        let gateway = route.get("gw").filter(|gateway| !gateway.is_null());
        let bad = gateway.is_some_and(|text| {
            text.as_str().is_none_or(|ip| !ip.is_empty() && ip.parse::<IpAddr>().is_err())
        });
        bad.then(|| format!("{route} has a `gw` that is not an address"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given() -> Vec<ResultAddress> {
        ["10.0.0.2/24", "fd00::2/64"]
            .into_iter()
            .map(|address| {
                let address: IpNet = address.parse().unwrap();
                ResultAddress { address, gateway: address.addr(), interface: Some(0) }
            })
            .collect()
    }

    #[test]
    fn what_is_written_is_right_in_its_version_and_wrong_in_others() {
        let interfaces = [json!({ "name": "eth0" })];
        for version in VERSIONS {
            let result = write(version, &interfaces, &given());
            judge(&result, version, false).unwrap();
            assert_eq!(addresses(&result), ["10.0.0.2/24", "fd00::2/64"]);
            for other in VERSIONS.into_iter().filter(|other| *other != version) {
                assert!(judge(&result, other, false).is_err());
                let mut renamed = result.clone();
                renamed["cniVersion"] = other.into();
                let alike =
                    is_old(version) == is_old(other) && says_family(version) == says_family(other);
                assert_eq!(judge(&renamed, other, false).is_ok(), alike, "{version} as {other}");
            }
        }
    }

    #[test]
    fn mistakes_are_found() {
        for wrong in [
            json!({ "ips": [{ "address": "10.0.0.2" }] }),
            json!({ "ips": [{ "address": "10.0.0.2/24", "interface": 1 }] }),
            json!({ "ips": [{ "address": "10.0.0.2/24", "gateway": "x" }] }),
            json!({ "ips": {} }),
            json!({ "interfaces": [{ "mac": "x" }] }),
            json!({ "routes": [{ "gw": "10.0.0.1" }] }),
            json!({ "ip4": {} }),
        ] {
            let mut wrong = wrong;
            wrong["cniVersion"] = "1.1.0".into();
            assert!(judge(&wrong, "1.1.0", false).is_err(), "{wrong}");
        }
        let of_ipam = json!({ "cniVersion": "1.1.0", "interfaces": [] });
        assert!(judge(&of_ipam, "1.1.0", true).is_err());
    }
}
