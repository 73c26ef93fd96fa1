//! The protocol, which applies to every plugin: verbs, environment, errors, versions. A plugin
//! obeys it before it changes anything.

use serde_json::{Value, json};

use crate::bench::{Bench, CallDraft, IFNAME};
use crate::case::{ANY, Case, Outcome, cases, expect, fail};
use crate::shape;

pub(super) const CASES: &[Case] = cases![
    "version-answers" Must "2 VERSION" for ANY ["version-prints", "exit-code"]
        "VERSION ends with exit code 0 and one JSON object on standard output." => answers;
    "version-keys" Must "5 Version" after "version-answers" for ANY ["version-keys"]
        "A version result has `cniVersion`, and `supportedVersions` with a version of the specification." => version_keys;
    "version-echoes" Should "5 Version" after "version-answers" for ANY ["version-keys"]
        "A version result has the `cniVersion` of the input." => version_echoes;
    "version-needs-no-input" Should "reference" after "version-answers" for ANY []
        "VERSION succeeds with empty standard input: runtimes that probe a plugin send nothing." => version_without_input;
    "version-needs-no-path" Should "2 VERSION" after "version-answers" for ANY []
        "VERSION needs no variable but CNI_COMMAND." => version_alone;
    "verb-unknown" Must "2 Parameters" after "version-answers" for ANY ["error-environment-names"]
        "An unknown CNI_COMMAND is an error." => |bench| refused(container(bench, "NOPE"), &[4]);
    "verb-lower-case" Should "reference" after "version-answers" for ANY []
        "Verbs are upper case: `add` is not a verb." => |bench| refused(container(bench, "add"), &[4]);
    "verb-missing-does-nothing" Should "reference" after "version-answers" for ANY []
        "Without CNI_COMMAND a plugin prints nothing to standard output that looks like a result." => no_verb;

    "add-needs-container-id" Must "2 ADD" after "version-answers" for ANY
        ["add-required-environment", "error-environment-names", "container-id-not-empty"]
        "ADD without CNI_CONTAINERID fails with code 4 and names the variable." => |bench| missing(bench, "ADD", "CNI_CONTAINERID");
    "add-needs-netns" Must "2 ADD" after "version-answers" for ANY ["add-required-environment", "error-environment-names"]
        "ADD without CNI_NETNS fails with code 4 and names the variable." => |bench| missing(bench, "ADD", "CNI_NETNS");
    "add-needs-ifname" Must "2 ADD" after "version-answers" for ANY ["add-required-environment", "error-environment-names"]
        "ADD without CNI_IFNAME fails with code 4 and names the variable." => |bench| missing(bench, "ADD", "CNI_IFNAME");
    "del-needs-container-id" Must "2 DEL" after "version-answers" for ANY ["del-required-environment", "error-environment-names"]
        "DEL without CNI_CONTAINERID fails with code 4 and names the variable." => |bench| missing(bench, "DEL", "CNI_CONTAINERID");
    "del-needs-ifname" Must "2 DEL" after "version-answers" for ANY ["del-required-environment", "error-environment-names"]
        "DEL without CNI_IFNAME fails with code 4 and names the variable." => |bench| missing(bench, "DEL", "CNI_IFNAME");
    "check-needs-container-id" Must "2 CHECK" after "version-answers" for ANY ["check-required-environment", "error-environment-names"]
        "CHECK without CNI_CONTAINERID fails with code 4 and names the variable." => |bench| missing(bench, "CHECK", "CNI_CONTAINERID");
    "check-needs-netns" Must "2 CHECK" after "version-answers" for ANY ["check-required-environment", "error-environment-names"]
        "CHECK without CNI_NETNS fails with code 4 and names the variable." => |bench| missing(bench, "CHECK", "CNI_NETNS");
    "check-needs-ifname" Must "2 CHECK" after "version-answers" for ANY ["check-required-environment", "error-environment-names"]
        "CHECK without CNI_IFNAME fails with code 4 and names the variable." => |bench| missing(bench, "CHECK", "CNI_IFNAME");
    "gc-needs-path" Must "2 GC" after "version-answers" for ANY ["gc-required-environment", "error-environment-names"]
        "GC without CNI_PATH fails with code 4 and names the variable." => gc_needs_path;

    "container-id-characters" Must "2 Parameters" after "version-answers" for ANY ["container-id-characters", "container-id-parameter"]
        "A CNI_CONTAINERID with characters that the specification forbids is refused." => container_ids;
    "ifname-unusable" Must "2 Parameters" after "version-answers" for ANY ["ifname-unusable"]
        "A CNI_IFNAME that no link can have is refused: `/`, `:`, white space, `.`, `..`, 16 bytes." => ifnames;

    "stdin-no-json" Must "5 Error" after "version-answers" for ANY ["error-codes-reserved"]
        "Standard input that is not JSON is refused with code 6." => no_json;
    "stdin-empty" Must "5 Error" after "version-answers" for ANY ["error-codes-reserved"]
        "Empty standard input is refused with code 6." =>
        |bench| refused(container(bench, "ADD").stdin(b""), &[6]);
    "stdin-wrong-types" Must "5 Error" after "version-answers" for ANY []
        "A configuration whose keys have types other than the specification's is refused." => wrong_types;
    "name-missing" Must "1 Configuration format" after "version-answers" for ANY ["error-codes-reserved"]
        "A configuration without a name is refused with code 7." =>
        |bench| refused(container(bench, "ADD").without("name"), &[7]);
    "name-characters" Must "1 Configuration format" after "version-answers" for ANY ["network-name-characters"]
        "A network's name with characters that the specification forbids is refused with code 7." => names;
    "version-unsupported" Must "5 Error" after "version-answers" for ANY ["error-codes-reserved"]
        "A cniVersion that the plugin does not support is refused with code 1." =>
        |bench| refused(container(bench, "ADD").version("9.9.9"), &[1]);
    "version-inexact" Should "reference" after "version-answers" for ANY []
        "A cniVersion is compared as it is written: `1.1` is not 1.1.0." =>
        |bench| refused(container(bench, "ADD").version("1.1"), &[1]);
    "version-unreadable" Should "reference" after "version-answers" for ANY []
        "A cniVersion that is not a version is refused with code 6 or 1." =>
        |bench| refused(container(bench, "CHECK").version("abc"), &[6, 1]);
    "check-before-0.4.0" Should "reference" after "version-answers" for ANY []
        "CHECK with a cniVersion before 0.4.0 is refused with code 1." =>
        |bench| too_old(bench, "CHECK", "0.3.1");
    "gc-before-1.1.0" Should "reference" after "version-answers" for ANY []
        "GC with a cniVersion before 1.1.0 is refused with code 1." =>
        |bench| too_old(bench, "GC", "1.0.0");
    "status-before-1.1.0" Should "reference" after "version-answers" for ANY []
        "STATUS with a cniVersion before 1.1.0 is refused with code 1." =>
        |bench| too_old(bench, "STATUS", "1.0.0");

    "error-object" Should "2 Errors" after "version-answers" for ANY ["error-structure", "exit-code"]
        "A plugin that fails prints an error object on standard output and ends with an exit code other than 0." => error_object;
    "failure-changes-nothing" Must "5 Error" after "version-answers" for ANY []
        "A call that is refused leaves the machine as it was." => failure_changes_nothing;
];

/// Begins a call with every variable set, for a container that does not exist.
fn container<'b>(bench: &'b Bench, verb: &str) -> CallDraft<'b> {
    bench
        .ask(verb)
        .set("CNI_CONTAINERID", "c1")
        .set("CNI_NETNS", "/run/netns/c1")
        .set("CNI_IFNAME", IFNAME)
}

fn refused(ask: CallDraft<'_>, codes: &[u64]) -> Outcome {
    let answer = ask.send();
    let refusal = answer.refused()?;
    expect(codes.contains(&refusal.code), &format!("an error with code {codes:?}"), || {
        format!("code {}: {}", refusal.code, refusal.words())
    })
}

fn missing(bench: &Bench, verb: &str, variable: &str) -> Outcome {
    if verb != "ADD" {
        bench.needs_verb(verb)?;
    }
    let refusal = container(bench, verb).unset(variable).send().refused_with(4)?;
    expect(refusal.words().contains(variable), &format!("the error names {variable}"), || {
        refusal.words()
    })
}

fn too_old(bench: &Bench, verb: &str, version: &str) -> Outcome {
    bench.needs_verb(verb)?;
    refused(container(bench, verb).version(version), &[1])
}

fn answers(bench: &Bench) -> Outcome {
    bench.ask("VERSION").send().result().map(|_| ())
}

fn version_keys(bench: &Bench) -> Outcome {
    let reply = bench.ask("VERSION").send().result()?;
    let known = |value: &Value| value.as_str().is_some_and(|text| shape::VERSIONS.contains(&text));
    let list = reply["supportedVersions"].as_array();
    let good = reply["cniVersion"].is_string()
        && list.is_some_and(|list| !list.is_empty() && list.iter().any(known));
    expect(good, "cniVersion, and supportedVersions with a version of the specification", || {
        reply.to_string()
    })?;
    let strings = list.into_iter().flatten().all(Value::is_string);
    expect(strings, "supportedVersions is a list of strings", || reply.to_string())
}

fn version_echoes(bench: &Bench) -> Outcome {
    for version in bench.versions()? {
        let reply = bench.ask("VERSION").version(version).send().result()?;
        expect(
            reply["cniVersion"] == version.as_str(),
            &format!("cniVersion is {version}"),
            || reply.to_string(),
        )?;
    }
    Ok(())
}

fn version_without_input(bench: &Bench) -> Outcome {
    bench.ask("VERSION").stdin(b"").send().result().map(|_| ())
}

fn version_alone(bench: &Bench) -> Outcome {
    bench.ask("VERSION").unset("CNI_PATH").send().result().map(|_| ())
}

fn no_verb(bench: &Bench) -> Outcome {
    let answer = container(bench, "").unset("CNI_COMMAND").send();
    answer.orderly()?;
    let printed: Value = serde_json::from_slice(&answer.finished.stdout).unwrap_or_default();
    let result = printed.get("ips").or(printed.get("interfaces")).is_some();
    expect(!result, "no result", || printed.to_string())
}

fn gc_needs_path(bench: &Bench) -> Outcome {
    bench.needs_verb("GC")?;
    let mut ask = bench.ask("GC").unset("CNI_PATH");
    ask.config["cni.dev/valid-attachments"] = json!([]);
    let refusal = ask.send().refused_with(4)?;
    expect(refusal.words().contains("CNI_PATH"), "the error names CNI_PATH", || refusal.words())
}

fn container_ids(bench: &Bench) -> Outcome {
    for id in ["a b", "a/b", "-a", ".a", "a\u{e9}", "../a", "a\n"] {
        refused(container(bench, "ADD").set("CNI_CONTAINERID", id), &[3, 4])?;
    }
    Ok(())
}

fn ifnames(bench: &Bench) -> Outcome {
    for name in ["a/b", "a:b", "a b", ".", "..", "a234567890123456", "a\tb"] {
        refused(container(bench, "ADD").set("CNI_IFNAME", name), &[4])?;
    }
    Ok(())
}

fn no_json(bench: &Bench) -> Outcome {
    for text in ["{", "hello", "{} {}", "[1", "\u{0}"] {
        refused(container(bench, "ADD").stdin(text.as_bytes()), &[6])?;
    }
    Ok(())
}

fn wrong_types(bench: &Bench) -> Outcome {
    for keys in [json!({ "name": 5 }), json!({ "cniVersion": 5 })] {
        container(bench, "ADD").with(&keys).send().refused()?;
    }
    container(bench, "ADD").stdin(b"[]").send().refused()?;
    Ok(())
}

fn names(bench: &Bench) -> Outcome {
    for name in ["te%st", "a/b", ".a", "a b", "../x"] {
        refused(container(bench, "ADD").with(&json!({ "name": name })), &[7])?;
    }
    Ok(())
}

fn error_object(bench: &Bench) -> Outcome {
    let answer = container(bench, "ADD").unset("CNI_IFNAME").send();
    let refusal = answer.refused()?;
    if refusal.value.get("details").is_some_and(|details| !details.is_string()) {
        return fail("`details` is a string", refusal.value.to_string());
    }
    expect(refusal.code != 0, "a code other than 0", || refusal.value.to_string())
}

fn failure_changes_nothing(bench: &Bench) -> Outcome {
    let before = bench.machine()?;
    container(bench, "ADD").unset("CNI_IFNAME").send().failed()?;
    container(bench, "ADD").version("9.9.9").send().failed()?;
    container(bench, "ADD").stdin(b"{").send().failed()?;
    let changes = bench.machine()?.since(&before);
    expect(changes.is_empty(), "nothing is changed", || changes.join("\n"))
}
