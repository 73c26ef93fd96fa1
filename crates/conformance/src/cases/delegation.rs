//! Delegation: how a plugin calls its IPAM plugin, and what it does with the answer.

use serde_json::json;

use crate::bench::{Bench, MARK};
use crate::case::{Case, INTERFACE, Outcome, cases, expect, fail};
use crate::delegate::{self, Call, WORDS};

pub(super) const CASES: &[Case] = cases![
    "delegate-called" Must "4 Delegated plugin protocol" after "add-succeeds" for INTERFACE ["delegate-lookup"]
        "ADD executes the plugin that `ipam.type` names, found in a later folder of CNI_PATH." => |bench| added(bench).map(|_| ());
    "delegate-configuration" Must "4 Delegated plugin protocol" after "delegate-called" for INTERFACE ["delegate-complete-config", "delegate-same-input"]
        "The delegate gets the whole configuration, byte for byte." => configuration;
    "delegate-environment" Must "4 Delegated plugin protocol" after "delegate-called" for INTERFACE ["delegate-environment", "delegate-same-input"]
        "The delegate gets every environment variable that the delegating plugin got." => environment;
    "delegate-missing" Should "4 Delegated plugin execution procedure" after "delegate-called" for INTERFACE ["delegate-lookup"]
        "ADD fails with an error that names the delegate when the delegate is not found." => missing;
    "delegate-path" Must "1 Plugin configuration objects" after "delegate-called" for INTERFACE ["ipam-type-path", "plugin-type-path"]
        "An `ipam.type` with a path separator is refused, and nothing is executed." => outside;
    "delegate-error" Should "4 Delegated plugin execution procedure" after "delegate-called" for INTERFACE ["delegate-errors"]
        "When the delegate's ADD fails, ADD fails with the delegate's code and message." => error;
    "delegate-failed-add" Should "4 Delegated plugin execution procedure" after "delegate-called" for INTERFACE ["delegate-failed-add"]
        "When the delegate's ADD fails, the plugin executes its DEL before it returns the error." => failed_add;
    "delegate-stderr" Should "4 Delegated plugin execution procedure" after "delegate-called" for INTERFACE ["delegate-stderr"]
        "The plugin passes on what the delegate writes to standard error." => stderr;
    "delegate-released-on-failure" Should "4 Delegated plugin execution procedure" after "delegate-called" for INTERFACE ["delegate-failed-add"]
        "When ADD fails after the delegate gave an address, the delegate is executed with DEL." => released;
    "delegate-garbage" Must "4 Delegated plugin execution procedure" after "delegate-called" for INTERFACE []
        "ADD fails with an error object when the delegate prints garbage." => garbage;
];

fn call_of(verb: &str) -> Outcome<Call> {
    let calls = delegate::calls()?;
    let found = format!("{:?}", calls.iter().map(|call| &call.verb).collect::<Vec<_>>());
    match calls.into_iter().find(|call| call.verb == verb) {
        Some(call) => Ok(call),
        None => {
            fail(format!("the delegate is executed with {verb}"), format!("its calls: {found}"))
        }
    }
}

fn added(bench: &Bench) -> Outcome<Call> {
    bench.delegates()?;
    bench.attach(1)?;
    call_of("ADD")
}

fn configuration(bench: &Bench) -> Outcome {
    bench.delegates()?;
    if bench.profile.rewrites {
        return crate::case::not_applicable("it makes its delegate's configuration itself");
    }
    let target = bench.container(1)?;
    let keys =
        json!({ "x-unknown": { "kept": [1, "two", null], "big": 9_007_199_254_740_993_u64 } });
    for (verb, version) in [("ADD", None), ("DEL", Some(()))] {
        let ask = bench.about(verb, &target).with(&keys);
        let sent = ask.bytes();
        let answer = ask.send();
        if version.is_none() {
            answer.succeeded()?;
        }
        let call = call_of(verb)?;
        expect(call.stdin == sent, &format!("{verb}: the delegate reads what was sent"), || {
            crate::answer::shown(&call.stdin)
        })?;
    }
    Ok(())
}

fn environment(bench: &Bench) -> Outcome {
    let call = added(bench)?;
    for (name, value) in [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/run/netns/c1"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=conformance"),
        ("CNI_PATH", bench.cni_path().as_str()),
        MARK,
    ] {
        let found = call.environment.iter().find(|(key, _)| key == name);
        let same = found.is_some_and(|(_, found)| found == value);
        expect(same, &format!("{name}={value}"), || format!("{found:?}"))?;
    }
    Ok(())
}

fn missing(bench: &Bench) -> Outcome {
    bench.delegates()?;
    let target = bench.container(1)?;
    let keys = json!({ "ipam": { "type": "nobody-has-this" } });
    let refusal = bench.about("ADD", &target).with(&keys).send().refused()?;
    let named = refusal.words().contains("nobody-has-this");
    expect(named, "the error names the delegate", || refusal.words())
}

fn outside(bench: &Bench) -> Outcome {
    bench.delegates()?;
    let target = bench.container(1)?;
    let path = format!("../bin/{}", delegate::NAME);
    let keys = json!({ "ipam": { "type": path } });
    bench.about("ADD", &target).with(&keys).send().refused()?;
    let calls = delegate::calls()?.len();
    expect(calls == 0, "nothing is executed", || format!("{calls} calls"))
}

fn fail_add() -> Outcome {
    delegate::fail_at(
        "ADD",
        &json!({ "code": 142, "msg": "no address today", "details": "come back" }),
    )
}

fn error(bench: &Bench) -> Outcome {
    bench.delegates()?;
    fail_add()?;
    let target = bench.container(1)?;
    let refusal = bench.about("ADD", &target).send().refused_with(142)?;
    let passed_on = refusal.words().contains("no address today");
    expect(passed_on, "the delegate's message", || refusal.words())
}

fn failed_add(bench: &Bench) -> Outcome {
    bench.delegates()?;
    fail_add()?;
    let target = bench.container(1)?;
    bench.about("ADD", &target).send().refused()?;
    call_of("DEL").map(|_| ())
}

fn stderr(bench: &Bench) -> Outcome {
    bench.delegates()?;
    let target = bench.container(1)?;
    let answer = bench.about("ADD", &target).send();
    answer.succeeded()?;
    let said = String::from_utf8_lossy(&answer.finished.stderr).into_owned();
    expect(said.contains(WORDS), &format!("standard error has \"{WORDS}\""), || said.clone())
}

fn released(bench: &Bench) -> Outcome {
    bench.delegates()?;
    let target = bench.container(1)?;
    // Addresses that no kernel accepts: one of another family than its gateway, and a multicast
    // one.
    let unusable = json!({
        "cniVersion": bench.version()?,
        "ips": [{ "address": "224.0.0.1/24", "gateway": "224.0.0.2" }],
        "routes": [{ "dst": "198.51.100.0/24", "gw": "203.0.113.1" }],
    });
    delegate::reply(&target.container.name, &target.ifname, &unusable)?;
    let answer = bench.about("ADD", &target).send();
    if answer.finished.code == Some(0) {
        return crate::case::not_applicable(
            "it accepts addresses that the suite takes for unusable",
        );
    }
    answer.refused()?;
    let calls = delegate::calls()?;
    let [given, taken] = ["ADD", "DEL"].map(|verb| calls.iter().any(|call| call.verb == verb));
    expect(!given || taken, "the delegate is executed with DEL", || "it is not".to_owned())
}

fn garbage(bench: &Bench) -> Outcome {
    bench.delegates()?;
    let target = bench.container(1)?;
    for reply in [json!("words"), json!([1]), json!({ "cniVersion": "1.1.0", "ips": "none" })] {
        delegate::reply(&target.container.name, &target.ifname, &reply)?;
        bench.about("ADD", &target).send().refused()?;
    }
    Ok(())
}
