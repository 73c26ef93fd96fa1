//! An address plugin `fixed` that assigns what the test says, and records its calls.

use std::fs;

use serde_json::{Value, json};
use testkit::Place;

use super::Node;

/// Makes ADD answer with `result`; every other verb succeeds.
pub(crate) fn answers(node: &Node, result: &Value) {
    let log = node.dir("log").join("verbs");
    let mut result = result.clone();
    result["cniVersion"] = json!("1.1.0");
    node.stub(
        "fixed",
        &format!(
            "cat >/dev/null; echo $CNI_COMMAND >>{}; [ $CNI_COMMAND = ADD ] || exit 0; cat <<'X'\n{result}\nX",
            log.display()
        ),
    );
}

/// Makes ADD answer with these addresses.
pub(crate) fn gives(node: &Node, ips: &Value) {
    answers(node, &json!({ "ips": ips }));
}

/// Makes `verb` fail with an error object.
pub(crate) fn fails(node: &Node, verb: &str, error: &Value) {
    let log = node.dir("log").join("verbs");
    node.stub(
        "fixed",
        &format!(
            "cat >/dev/null; echo $CNI_COMMAND >>{}; [ $CNI_COMMAND = {verb} ] || exit 0; echo '{error}'; exit 1",
            log.display()
        ),
    );
}

/// The verbs of all calls.
pub(crate) fn verbs(node: &Node) -> String {
    let text = fs::read_to_string(node.dir("log").join("verbs")).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Forgets the verbs.
pub(crate) fn forget(node: &Node) {
    let _ = fs::remove_file(node.dir("log").join("verbs"));
}

/// The keys of a configuration that uses it.
pub(crate) fn ipam() -> Value {
    json!({ "ipam": { "type": "fixed" } })
}

/// A link as `ip -d -j link show` shows it.
pub(crate) fn link(place: &impl Place, name: &str) -> Value {
    let text = place.sh(&format!("ip -d -j link show {name}"));
    serde_json::from_str::<Value>(&text).unwrap()[0].clone()
}

pub(crate) fn succeeds(place: &impl Place, script: &str) -> bool {
    place.try_sh(script).status.success()
}
