//! Conventions: agreements of runtimes and plugins beside the specification (CONVENTIONS.md), and
//! robustness.

use serde_json::{Value, json};

use crate::bench::{Bench, IFNAME, find};
use crate::case::{ALL, Case, INTERFACE, Outcome, cases, expect, not_applicable};
use crate::profile::mac;

pub(super) const CASES: &[Case] = cases![
    "unknown-keys" Must "1 Plugin configuration objects" after "add-succeeds" for ALL ["plugin-keys-pass-unchanged", "unknown-keys-preserved"]
        "Keys that the plugin does not know do no harm." => unknown_keys;
    "unknown-args" Should "CONVENTIONS" after "add-succeeds" for ALL []
        "`args` that the plugin does not know are ignored." => unknown_args;
    "unknown-capability" Should "CONVENTIONS" after "add-succeeds" for ALL []
        "Capability arguments that the plugin does not know are ignored." => unknown_capability;
    "unknown-cni-args" Should "CONVENTIONS" after "add-succeeds" for ALL []
        "Unknown CNI_ARGS are ignored when IgnoreUnknown is set, wherever in CNI_ARGS it stands." => unknown_cni_args;
    "capability-mac" Should "CONVENTIONS" after "add-succeeds" for INTERFACE []
        "The interface gets the hardware address of the capability `mac`." => capability_mac;
    "large-configuration" Should "robustness" after "add-succeeds" for ALL []
        "A configuration of a megabyte is read." => large;
    "deep-configuration" Should "robustness" after "version-answers" for ALL []
        "A configuration nested ten thousand levels deep gets a result or an error object." => deep;
    "null-keys" Should "robustness" after "add-succeeds" for ALL []
        "A key that is null counts as absent." => null_keys;
];

fn adds(bench: &Bench, keys: &Value) -> Outcome {
    let target = bench.container(1)?;
    bench.about("ADD", &target).with(keys).send().result()?;
    bench.about("DEL", &target).with(keys).send().succeeded()
}

fn unknown_keys(bench: &Bench) -> Outcome {
    adds(bench, &json!({ "x-conformance": { "a": [1, 2] }, "cni.dev/unknown": true, "yKey": null }))
}

fn unknown_args(bench: &Bench) -> Outcome {
    adds(
        bench,
        &json!({ "args": { "conformance": { "x": 1 }, "cni": { "labels": [{ "key": "a", "value": "b" }] } } }),
    )
}

fn unknown_capability(bench: &Bench) -> Outcome {
    let mut runtime = (bench.profile.runtime)(1).unwrap_or_else(|| json!({}));
    runtime["conformance"] = json!({ "x": 1 });
    adds(bench, &json!({ "runtimeConfig": runtime }))
}

fn unknown_cni_args(bench: &Bench) -> Outcome {
    let arguments = ["IgnoreUnknown=1;FOO=1", "IgnoreUnknown=true;FOO=1", "FOO=1;IgnoreUnknown=1"];
    for (number, args) in (1..).zip(arguments) {
        let target = bench.container(number)?;
        bench.about("ADD", &target).set("CNI_ARGS", args).send().result()?;
        bench.about("DEL", &target).set("CNI_ARGS", args).send().succeeded()?;
    }
    Ok(())
}

fn capability_mac(bench: &Bench) -> Outcome {
    if !bench.profile.takes_mac || bench.job.config.is_some() {
        return not_applicable("the suite does not know whether it has the capability `mac`");
    }
    let target = bench.attach(1)?;
    let link = find(&mut bench.inside(&target.container)?, IFNAME)?;
    let found = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    expect(found == mac(1), &format!("eth0 has {}", mac(1)), || found.clone())
}

fn large(bench: &Bench) -> Outcome {
    adds(bench, &json!({ "x-conformance": "x".repeat(1 << 20) }))
}

fn deep(bench: &Bench) -> Outcome {
    let target = bench.container(1)?;
    let ask = bench.about("ADD", &target);
    let nested = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let mut text = String::from_utf8_lossy(&ask.bytes()).into_owned();
    text.truncate(text.len() - 1);
    let answer = ask.stdin(format!("{text},\"x\":{nested}}}").as_bytes()).send();
    if answer.finished.code == Some(0) {
        return answer.result().map(|_| ());
    }
    answer.refused().map(|_| ())
}

fn null_keys(bench: &Bench) -> Outcome {
    adds(bench, &json!({ "dns": null, "args": null, "x-null": null }))
}
