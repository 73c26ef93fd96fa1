//! Plugins that give addresses.

use serde_json::json;

use crate::bench::Bench;
use crate::case::{Case, IPAM, Outcome, cases, expect, not_applicable};
use crate::shape;

pub(super) const CASES: &[Case] = cases![
    "ipam-abbreviated" Must "5 Delegated plugins (IPAM)" after "add-succeeds" for IPAM ["ipam-abbreviated"]
        "An IPAM plugin's result has neither `interfaces` nor `ips[].interface`." => abbreviated;
    "ipam-addresses" Must "4 Delegated plugin protocol" after "add-succeeds" for IPAM ["ipam-determines"]
        "An IPAM plugin's result has an address with a prefix length." => addresses;
    "ipam-unique" Must "4 Delegated plugin protocol" after "add-succeeds" for IPAM ["plugins-concurrent"]
        "Attachments of one network have different addresses." => unique;
    "ipam-released" Should "2 DEL" after "del-succeeds" for IPAM ["del-undoes"]
        "DEL releases what ADD reserved: any number of containers may come and go." => released;
    "ipam-needs-no-namespace" Should "reference" after "add-succeeds" for IPAM []
        "ADD gives an address even if the namespace cannot be opened." => no_namespace;
    "ipam-ips-capability" Should "CONVENTIONS" after "add-succeeds" for IPAM []
        "ADD gives the address that the capability `ips` requests." => |bench| asked(bench, "capability");
    "ipam-ips-args" Should "CONVENTIONS" after "add-succeeds" for IPAM []
        "ADD gives the address that `args.cni.ips` requests." => |bench| asked(bench, "args.cni");
];

fn abbreviated(bench: &Bench) -> Outcome {
    let result = bench.attach(1)?.result;
    let clean = result.get("interfaces").is_none()
        && result["ips"].as_array().into_iter().flatten().all(|ip| ip.get("interface").is_none());
    expect(clean, "a result without interfaces", || result.to_string())
}

fn addresses(bench: &Bench) -> Outcome {
    let result = bench.attach(1)?.result;
    let found = shape::addresses(&result);
    let good = !found.is_empty() && found.iter().all(|net| net.parse::<ipnet::IpNet>().is_ok());
    expect(good, "addresses with prefix lengths", || result.to_string())
}

fn unique(bench: &Bench) -> Outcome {
    let mut all = Vec::new();
    for number in 1..=3 {
        all.extend(shape::addresses(&bench.attach(number)?.result));
    }
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    expect(all.len() == count, "three containers share no address", || all.join(", "))
}

fn released(bench: &Bench) -> Outcome {
    // A /29 has five addresses for containers.
    let small =
        json!({ "ipam": { "type": bench.job.plugin, "ranges": [[{ "subnet": "10.88.2.0/29" }]] } });
    if bench.job.plugin != "host-local" {
        return not_applicable("the suite does not know how to give it a small range");
    }
    for number in 1..=12 {
        let target = bench.container(number)?;
        bench.about("ADD", &target).with(&small).send().result()?;
        bench.about("DEL", &target).with(&small).send().succeeded()?;
    }
    Ok(())
}

fn no_namespace(bench: &Bench) -> Outcome {
    let target = bench.container(1)?;
    bench.about("ADD", &target).set("CNI_NETNS", "/run/netns/nowhere").send().result().map(|_| ())
}

fn asked(bench: &Bench, way: &str) -> Outcome {
    let wanted = "10.88.0.77/24";
    let target = bench.container(1)?;
    let keys = match way {
        "capability" => json!({ "runtimeConfig": { "ips": [wanted] } }),
        _ => json!({ "args": { "cni": { "ips": [wanted] } } }),
    };
    let result = bench.about("ADD", &target).with(&keys).send().result()?;
    let found = shape::addresses(&result);
    expect(found.iter().any(|net| net == wanted), &format!("it gives {wanted}"), || {
        found.join(", ")
    })
}
