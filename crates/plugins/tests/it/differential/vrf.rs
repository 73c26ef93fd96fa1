//! `vrf` beside the reference's, after `macvlan`.

use serde_json::{Value, json};

use super::{Case, PARENT, PLAIN, dual_stack, vm_tests};

/// `macvlan` with addresses of both families, and `vrf` with these keys.
fn chain(vrf: Value) -> Vec<Value> {
    let mut ipam = dual_stack();
    ipam["routes"] = json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]);
    let mut last = json!({ "type": "vrf" });
    last.as_object_mut().unwrap().extend(vrf.as_object().unwrap().clone());
    vec![
        json!({ "type": "macvlan", "master": "p0", "mac": "02:00:00:00:00:07", "ipam": ipam }),
        last,
    ]
}

const CASES: &[Case] = &[
    Case {
        name: "vrf/table",
        host: PARENT,
        chain: |_| chain(json!({ "vrfname": "blue", "table": 77 })),
        ..PLAIN
    },
    Case {
        name: "vrf/chosen-table",
        version: "1.1.0",
        host: PARENT,
        chain: |_| chain(json!({ "vrfname": "blue" })),
        ..PLAIN
    },
    Case {
        name: "vrf/nameless",
        host: PARENT,
        succeeds: false,
        chain: |_| chain(json!({})),
        ..PLAIN
    },
];
vm_tests!(CASES, "vrf");
