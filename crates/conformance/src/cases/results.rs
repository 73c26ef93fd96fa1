//! Results: the shape of each version, and whether their content is true.

use serde_json::Value;

use crate::bench::{Bench, IFNAME, find, given};
use crate::case::{
    ALL, Case, INTERFACE, Kind, LINKS, OrBroken as _, Outcome, cases, expect, fail, not_applicable,
};
use crate::shape;

pub(super) const CASES: &[Case] = cases![
    "result-0.1.0" Must "5 ADD Success" after "add-succeeds" for ALL ["result-version", "result-keys"]
        "A configuration of 0.1.0 gets a result of its shape: `ip4`, `ip6`." => |bench| in_version(bench, "0.1.0");
    "result-0.2.0" Must "5 ADD Success" after "add-succeeds" for ALL ["result-version", "result-keys"]
        "A configuration of 0.2.0 gets a result of its shape: `ip4`, `ip6`." => |bench| in_version(bench, "0.2.0");
    "result-0.3.0" Must "5 ADD Success" after "add-succeeds" for ALL ["result-version", "result-keys"]
        "A configuration of 0.3.0 gets a result of its shape: `ips` with their `version`." => |bench| in_version(bench, "0.3.0");
    "result-0.3.1" Must "5 ADD Success" after "add-succeeds" for ALL ["result-version", "result-keys"]
        "A configuration of 0.3.1 gets a result of its shape: `ips` with their `version`." => |bench| in_version(bench, "0.3.1");
    "result-0.4.0" Must "5 ADD Success" after "add-succeeds" for ALL ["result-version", "result-keys"]
        "A configuration of 0.4.0 gets a result of its shape: `ips` with their `version`." => |bench| in_version(bench, "0.4.0");
    "result-1.0.0" Must "5 ADD Success" after "add-succeeds" for ALL ["result-version", "result-keys"]
        "A configuration of 1.0.0 gets a result of its shape: `ips` without `version`." => |bench| in_version(bench, "1.0.0");
    "result-1.1.0" Must "5 ADD Success" after "add-succeeds" for ALL ["result-version", "result-keys"]
        "A configuration of 1.1.0 gets a result of its shape." => |bench| in_version(bench, "1.1.0");
    "result-addresses" Must "4 Delegated plugin protocol" after "add-succeeds" for INTERFACE ["ipam-determines"]
        "The addresses of the delegate are in the result, with their gateways." => addresses;
    "result-interfaces" Must "5 ADD Success" after "add-succeeds" for LINKS ["result-interfaces"]
        "Every link that ADD made is in the result, including those on the machine." => interfaces;
    "result-sandbox" Should "5 ADD Success" after "add-succeeds" for INTERFACE ["result-sandbox"]
        "An interface in the container has CNI_NETNS as `sandbox`; one on the machine has none." => sandbox;
    "result-true" Must "5 ADD Success" after "add-succeeds" for INTERFACE ["result-keys"]
        "Hardware address and MTU of the result are those of the link." => truth;
];

fn in_version(bench: &Bench, version: &str) -> Outcome {
    if !bench.versions()?.iter().any(|own| own == version) {
        return not_applicable(format!("it does not support {version}"));
    }
    if bench.kind() == Kind::Chained && shape::is_old(version) {
        return not_applicable("plugins are chained from 0.3.0 on");
    }
    let mut target = bench.container(1)?;
    if bench.delegates().is_ok() {
        bench.set_reply(&target, version)?;
    }
    if let Some(before) = &mut target.before {
        restyle(before, version);
    }
    let answer = bench.about("ADD", &target).version(version).send();
    shape::judge(&answer.result()?, version, bench.kind() == Kind::Ipam)
}

/// Rewrites a result of the newest versions in another version's shape.
fn restyle(result: &mut Value, version: &str) {
    result["cniVersion"] = version.into();
    for ip in result["ips"].as_array_mut().into_iter().flatten() {
        let family =
            if ip["address"].as_str().is_some_and(|a| a.contains(':')) { "6" } else { "4" };
        if shape::says_family(version) {
            ip["version"] = family.into();
        } else if let Some(ip) = ip.as_object_mut() {
            ip.remove("version");
        }
    }
}

fn addresses(bench: &Bench) -> Outcome {
    bench.delegates()?;
    let target = bench.attach(1)?;
    let listed = target.result["ips"].as_array().cloned().unwrap_or_default();
    for one in given(1, None) {
        let (address, gateway) = (one.address.to_string(), one.gateway.to_string());
        let found = listed.iter().any(|ip| {
            ip["address"] == address.as_str()
                && (ip["gateway"].is_null() || ip["gateway"] == gateway.as_str())
        });
        expect(found, &format!("ips has {address}"), || target.result.to_string())?;
    }
    Ok(())
}

fn interfaces(bench: &Bench) -> Outcome {
    let target = bench.container(1)?;
    let mut host = kernel::route::RouteSocket::open().or_broken("open netlink")?;
    let names = |links: Vec<kernel::route::Link>| -> Vec<String> {
        links.into_iter().map(|link| link.name).collect()
    };
    let before = names(host.links().or_broken("list links")?);
    let target = bench.attach_target(target)?;
    let listed = target.result["interfaces"].as_array().cloned().unwrap_or_default();
    for name in names(host.links().or_broken("list links")?) {
        let known = before.contains(&name) || listed.iter().any(|one| one["name"] == name.as_str());
        expect(known, &format!("the new link {name} is in `interfaces`"), || {
            target.result.to_string()
        })?;
    }
    if bench.profile.makes_link {
        let inside = listed.iter().any(|one| one["name"] == IFNAME);
        expect(inside, "the container's interface is in `interfaces`", || {
            target.result.to_string()
        })?;
    }
    Ok(())
}

fn sandbox(bench: &Bench) -> Outcome {
    let target = bench.attach(1)?;
    let path = target.container.path.display().to_string();
    let mut host = kernel::route::RouteSocket::open().or_broken("open netlink")?;
    for one in target.result["interfaces"].as_array().into_iter().flatten() {
        let name = one["name"].as_str().unwrap_or_default();
        let here = host.link_by_name(name).or_broken("look for a link")?.is_some();
        let inside =
            bench.inside(&target.container)?.link_by_name(name).or_broken("look")?.is_some();
        let found = one["sandbox"].as_str().unwrap_or_default();
        let good = match (here, inside) {
            (false, true) => found == path,
            (true, false) => found.is_empty(),
            // `lo` is in both; another case tests for links that are in neither.
            _ => true,
        };
        expect(good, &format!("{name} has its sandbox"), || one.to_string())?;
    }
    Ok(())
}

fn truth(bench: &Bench) -> Outcome {
    let target = bench.attach(1)?;
    let listed = target.result["interfaces"].as_array().cloned().unwrap_or_default();
    for one in listed {
        let name = one["name"].as_str().unwrap_or_default();
        let mut netlink = match one["sandbox"].as_str().unwrap_or_default() {
            "" => kernel::route::RouteSocket::open().or_broken("open netlink")?,
            _ => bench.inside(&target.container)?,
        };
        let link = find(&mut netlink, name)?;
        let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
        match one["mac"].as_str() {
            Some(said)
                if !said.is_empty() && !mac.is_empty() && !said.eq_ignore_ascii_case(&mac) =>
            {
                return fail(format!("{name} has {said}"), mac);
            }
            _ => {}
        }
        if let Some(mtu) = one["mtu"].as_u64().filter(|mtu| *mtu != 0) {
            expect(mtu == u64::from(link.mtu), &format!("{name} has MTU {mtu}"), || {
                link.mtu.to_string()
            })?;
        }
    }
    Ok(())
}
