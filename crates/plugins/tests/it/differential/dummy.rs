//! `dummy` beside the reference's, which the installed release does not have.

use serde_json::json;

use super::{Case, PLAIN, dual_stack, vm_unstable_tests};

const CASES: &[Case] = &[Case {
    name: "dummy/dual",
    version: "1.1.0",
    chain: |_| vec![json!({ "type": "dummy", "ipam": dual_stack() })],
    ..PLAIN
}];
vm_unstable_tests!(CASES, "dummy");
