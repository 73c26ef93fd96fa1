//! `static`, row by row, and beside the reference's own executable.

use cni::{Version, code};
use cni_plugin::codes;
use serde_json::{Value, json};

use testkit::{Place, Snapshot, traffic};

use crate::support::{Answer, Node, Run};

/// Prepares a call whose `ipam` has these keys beside the type.
fn run(verb: &str, ipam: Value) -> Run<'static> {
    let mut whole = json!({ "type": "static" });
    whole.as_object_mut().unwrap().extend(ipam.as_object().unwrap().clone());
    Run::bare("static", verb).netns("/nonexistent/netns").config(json!({ "ipam": whole }))
}

/// One address of each family, with gateways.
fn both() -> Value {
    json!({ "addresses": [
        { "address": "10.1.0.2/24", "gateway": "10.1.0.1" },
        { "address": "fd00:1::2/64", "gateway": "fd00:1::1" },
    ] })
}

/// The addresses of a result, each with its gateway.
#[track_caller]
fn given(answer: Answer) -> Vec<String> {
    let result = answer.ok();
    let ips = result["ips"].as_array().cloned().unwrap_or_default();
    let text = |ip: &Value| {
        let gateway = ip["gateway"].as_str().map(|at| format!(" via {at}")).unwrap_or_default();
        format!("{}{gateway}", ip["address"].as_str().unwrap())
    };
    ips.iter().map(text).collect()
}

/// `static | addresses`
#[test]
fn addresses_routes_and_dns_are_returned_as_they_are() {
    let keys = json!({
        "addresses": [
            { "address": "10.1.0.2/24", "gateway": "10.1.0.1" },
            { "address": "10.9.0.2/16" },
            { "address": "fd00:1::2/64", "gateway": "fd00:1::1" },
        ],
        "routes": [
            { "dst": "0.0.0.0/0" },
            { "dst": "192.0.2.0/24", "gw": "10.1.0.9", "mtu": 1400, "advmss": 1300, "priority": 3,
              "table": 5, "scope": 253 },
        ],
        "dns": { "nameservers": ["10.1.0.1"], "domain": "example.com", "search": ["example.com"],
                 "options": ["ndots:2"] },
    });
    let mut result = run("ADD", keys.clone()).call().ok();
    assert_eq!(result["cniVersion"], "1.1.0");
    assert_eq!(result["ips"], keys["addresses"]);
    assert_eq!(result["routes"], keys["routes"]);
    assert_eq!(result["dns"], keys["dns"]);
    result.as_object_mut().unwrap().retain(|key, _| !result_keys().contains(&key.as_str()));
    assert_eq!(result, json!({}));
}

fn result_keys() -> [&'static str; 4] {
    ["cniVersion", "ips", "routes", "dns"]
}

/// `static | addresses`: without requested addresses the result has none; the interface plugin
/// decides whether that is enough.
#[test]
fn without_addresses_the_result_is_empty() {
    assert_eq!(run("ADD", json!({})).call().ok(), json!({ "cniVersion": "1.1.0" }));
    assert_eq!(
        run("ADD", json!({ "addresses": null })).call().ok(),
        json!({ "cniVersion": "1.1.0" })
    );
}

/// `static | CNI_ARGS IP/GATEWAY`
#[test]
fn cni_args_add_addresses_and_gateways_by_network() {
    let args = "IP=10.2.0.7/24, fd00:2::7/64;GATEWAY=10.2.0.5, fd00:2::1";
    assert_eq!(
        given(run("ADD", both()).args(args).call()),
        [
            "10.1.0.2/24 via 10.1.0.1",
            "fd00:1::2/64 via fd00:1::1",
            "10.2.0.7/24 via 10.2.0.5",
            "fd00:2::7/64 via fd00:2::1",
        ]
    );
    // Order does not matter, empty values count as absent, and other keys are ignored if the caller
    // asks for that.
    let args = "IgnoreUnknown=1;K8S_POD_NAME=web;GATEWAY=10.2.0.5;IP=10.2.0.7/24";
    assert_eq!(given(run("ADD", json!({})).args(args).call()), ["10.2.0.7/24 via 10.2.0.5"]);
    assert_eq!(given(run("ADD", json!({})).args("IP=;GATEWAY=").call()), [""; 0]);
    // The configured gateway wins; a configured address without one takes it, which the reference
    // forgets.
    let args = "GATEWAY=10.1.0.9,10.3.0.1";
    let keys = json!({ "addresses": [
        { "address": "10.1.0.2/24", "gateway": "10.1.0.1" }, { "address": "10.3.0.2/24" },
    ] });
    assert_eq!(
        given(run("ADD", keys).args(args).call()),
        ["10.1.0.2/24 via 10.1.0.1", "10.3.0.2/24 via 10.3.0.1"]
    );
    // An address named twice is assigned once.
    assert_eq!(
        given(run("ADD", both()).args("IP=10.1.0.2/24").call()),
        ["10.1.0.2/24 via 10.1.0.1", "fd00:1::2/64 via fd00:1::1"]
    );
}

/// `static | override order`
#[test]
fn the_runtimes_addresses_replace_those_of_args_and_configuration() {
    let runtime = json!({ "runtimeConfig": { "ips": ["10.1.0.7/24", "fd00:1::7/64"] } });
    let args = json!({ "args": { "cni": { "ips": ["10.1.0.8/24"] } } });
    let env = "IP=10.1.0.9/24;GATEWAY=10.1.0.254";
    let add = || run("ADD", both());
    assert_eq!(
        given(add().config(runtime.clone()).config(args.clone()).call()),
        ["10.1.0.7/24", "fd00:1::7/64"]
    );
    assert_eq!(given(add().config(args.clone()).call()), ["10.1.0.8/24"]);
    // The addresses of CNI_ARGS are replaced as well, and their gateway stays: the reference loses
    // it.
    assert_eq!(given(add().config(args.clone()).args(env).call()), ["10.1.0.8/24 via 10.1.0.254"]);
    assert_eq!(given(add().config(runtime).args("IP=10.9.0.9/24").call()).len(), 2);
    // Empty lists replace nothing.
    let empty = json!({ "runtimeConfig": { "ips": [] }, "args": { "cni": { "ips": null } } });
    assert_eq!(given(add().config(empty).call()).len(), 2);
}

/// A runtime that picks one of the configured addresses: the reference loses the gateway.
#[test]
fn a_picked_address_keeps_its_configured_gateway() {
    for picked in [
        json!({ "runtimeConfig": { "ips": ["10.1.0.2/24", "fd00:1::2/64"] } }),
        json!({ "args": { "cni": { "ips": ["10.1.0.2/24", "fd00:1::2/64"] } } }),
    ] {
        assert_eq!(
            given(run("ADD", both()).config(picked).call()),
            ["10.1.0.2/24 via 10.1.0.1", "fd00:1::2/64 via fd00:1::1"]
        );
    }
}

/// `static | CIDR errors`, and every other wrong input: the error names the object and the key.
#[test]
fn bad_input_is_refused() {
    let one = |address: Value| json!({ "addresses": [{ "address": address }] });
    let runtime = |ips: Value| json!({ "runtimeConfig": { "ips": ips } });
    let nothing = || json!({});
    for (ipam, more, args, code, words) in [
        (
            one(json!("10.1.0.2")),
            nothing(),
            "",
            code::INVALID_CONFIG,
            "the 'address' field is expected to be in CIDR notation, got: '10.1.0.2'; ipam.addresses[0].address",
        ),
        (one(json!("10.1.0.2/33")), nothing(), "", code::INVALID_CONFIG, "'10.1.0.2/33'"),
        (one(json!("10.01.0.2/24")), nothing(), "", code::INVALID_CONFIG, "'10.01.0.2/24'"),
        (one(json!("")), nothing(), "", code::INVALID_CONFIG, "got: ''"),
        (one(json!(7)), nothing(), "", code::DECODE_FAILURE, "ipam.addresses[0].address"),
        (
            json!({ "addresses": "10.1.0.2/24" }),
            nothing(),
            "",
            code::DECODE_FAILURE,
            "ipam.addresses",
        ),
        (
            json!({ "routes": [{ "dst": "x" }] }),
            nothing(),
            "",
            code::DECODE_FAILURE,
            "ipam.routes[0]",
        ),
        (
            json!({ "addresses": [{ "address": "10.1.0.2/24", "gateway": "x" }] }),
            nothing(),
            "",
            code::DECODE_FAILURE,
            "invalid IP address: x",
        ),
        (
            both(),
            nothing(),
            "IP=10.1.0.7",
            code::INVALID_ENVIRONMENT,
            "the 'ip' field is expected to be in CIDR notation, got: '10.1.0.7'",
        ),
        (both(), nothing(), "IP=,", code::INVALID_ENVIRONMENT, "got: ''"),
        (both(), nothing(), "GATEWAY=zz", code::INVALID_ENVIRONMENT, "invalid gateway address: zz"),
        (both(), nothing(), "FOO=1", code::INVALID_ENVIRONMENT, "unknown args [\"FOO=1\"]"),
        (
            both(),
            runtime(json!(["10.1.0.7"])),
            "",
            code::INVALID_CONFIG,
            "an entry in the 'ips' field is NOT in CIDR notation, got: '10.1.0.7'; runtimeConfig.ips[0]",
        ),
        (
            both(),
            json!({ "args": { "cni": { "ips": ["10.1.0.7/24", "x"] } } }),
            "",
            code::INVALID_CONFIG,
            "an entry in the 'ips' field is NOT in CIDR notation, got: 'x'; args.cni.ips[1]",
        ),
        (both(), runtime(json!("10.1.0.7/24")), "", code::DECODE_FAILURE, "runtimeConfig.ips"),
        (
            both(),
            json!({ "ipam": null }),
            "",
            code::INVALID_CONFIG,
            "IPAM config missing 'ipam' key",
        ),
    ] {
        for verb in ["ADD", "CHECK", "STATUS"] {
            run(verb, ipam.clone()).config(more.clone()).args(args).call().fails(code, words);
        }
    }
}

/// `host-local | version rule`, which applies to `static` too.
#[test]
fn old_versions_take_one_address_of_each_family() {
    let two = json!({ "addresses": [{ "address": "10.1.0.2/24" }, { "address": "10.1.0.3/24" }] });
    let six = json!({ "addresses": [{ "address": "fd00::2/64" }, { "address": "fd00::3/64" }] });
    for version in ["0.1.0", "0.2.0"] {
        for keys in [&two, &six] {
            let words =
                format!("CNI version {version} does not support more than 1 address per family");
            run("ADD", keys.clone()).version(version).call().fails(code::INVALID_CONFIG, &words);
        }
    }
    for version in Version::ALL {
        let result = run("ADD", both()).version(version.as_str()).call().ok();
        assert_eq!(result["cniVersion"], version.as_str());
        if *version < Version::V0_3_0 {
            assert_eq!(result["ip4"], json!({ "ip": "10.1.0.2/24", "gateway": "10.1.0.1" }));
            assert_eq!(result["ip6"], json!({ "ip": "fd00:1::2/64", "gateway": "fd00:1::1" }));
        } else {
            assert_eq!(result["ips"].as_array().unwrap().len(), 2);
            assert_eq!(given(run("ADD", two.clone()).version(version.as_str()).call()).len(), 2);
        }
    }
}

/// cni.md §5.4: the reference does not notice an address that is missing altogether.
#[test]
fn check_compares_every_address_with_the_result() {
    let result = run("ADD", both()).call().ok();
    let check = || run("CHECK", both());
    check().prev(&result).call().silent();
    check().call().fails(code::INVALID_CONFIG, "Required prevResult missing");
    for index in [0, 1] {
        let address = both()["addresses"][index]["address"].as_str().unwrap().to_owned();
        let host = address.split('/').next().unwrap();
        let mut missing = result.clone();
        missing["ips"].as_array_mut().unwrap().remove(index);
        let words = format!("static: Failed to find addr {address} on interface eth0");
        check().prev(&missing).call().fails(codes::DRIFT, &words);
        for (key, value) in [
            ("gateway", json!(if index == 0 { "10.1.0.9" } else { "fd00:1::9" })),
            ("gateway", Value::Null),
            ("address", json!(format!("{host}/26"))),
        ] {
            let mut other = result.clone();
            other["ips"][index][key] = value;
            if other["ips"][index][key].is_null() {
                other["ips"][index].as_object_mut().unwrap().remove(key);
            }
            let words = format!("static: Failed to match addr {host} on interface eth0");
            check().prev(&other).call().fails(codes::DRIFT, &words);
        }
    }
    // An address of another interface does not count.
    let mut elsewhere = result.clone();
    elsewhere["interfaces"] = json!([{ "name": "eth1", "sandbox": "/run/netns/x" }]);
    elsewhere["ips"][0]["interface"] = json!(0);
    check().prev(&elsewhere).call().fails(codes::DRIFT, "10.1.0.2/24");
    // The runtime's request counts.
    let picked = json!({ "runtimeConfig": { "ips": ["10.1.0.7/24"] } });
    let result = run("ADD", both()).config(picked.clone()).call().ok();
    check().config(picked).prev(&result).call().silent();
    check().prev(&result).call().fails(codes::DRIFT, "10.1.0.2/24");
}

/// DEL and GC do nothing, whatever the configuration now is.
#[test]
fn del_and_gc_read_nothing() {
    for keys in [both(), json!({ "addresses": 7 })] {
        for _ in 0..2 {
            run("DEL", keys.clone()).args("IP=x").call().silent();
            run("DEL", keys.clone()).env(|env| env.netns.clear()).call().silent();
        }
        run("GC", keys.clone()).valid(&[]).call().silent();
    }
    run("DEL", json!({})).without("ipam").call().silent();
}

#[test]
fn lint_knows_the_keys() {
    let keys = json!({ "addresses": [{ "address": "10.1.0.2/24", "gatway": "10.1.0.1" }], "dns": {}, "rutes": [] });
    let document = String::from_utf8(run("ADD", keys).document()).unwrap();
    let unknown = plugins::find("static").unwrap().unknown_keys(&document).unwrap();
    let names: Vec<_> = unknown.iter().map(|key| format!("{}.{}", key.parent, key.key)).collect();
    assert_eq!(names, ["ipam.addresses[0].gatway", "ipam.rutes"]);
}

/// The reference's executable gives the same answer to the same input, except for the differences
/// that the plugin's documentation lists.
#[test]
fn answers_are_the_references() {
    testkit::require!("root", "file:/usr/lib/cni/static");
    let node = Node::new("static-go");
    let ips = |key: &str, list: Value| match key {
        "runtimeConfig" => json!({ "runtimeConfig": { "ips": list } }),
        _ => json!({ "args": { "cni": { "ips": list } } }),
    };
    let mut calls = Vec::new();
    for version in ["0.2.0", "0.4.0", "1.0.0"] {
        for args in
            ["", "IP=10.2.0.7/24,fd00:2::7/64;GATEWAY=10.2.0.5", "IP=10.1.0.9", "GATEWAY=x", "IP=,"]
        {
            for keys in [
                json!({}),
                ips("runtimeConfig", json!(["10.3.0.7/24", "fd00:3::7/64"])),
                ips("runtimeConfig", json!(["10.3.0.7"])),
                ips("args", json!(["10.3.0.8/24"])),
                ips("args", json!(["x"])),
            ] {
                for ipam in [both(), json!({}), json!({ "addresses": [{ "address": "10.1.0.2" }] })]
                {
                    calls.push(run("ADD", ipam).version(version).args(args).config(keys.clone()));
                }
            }
        }
    }
    for call in calls {
        let config = node.dir("go").join("config");
        std::fs::write(&config, call.document()).unwrap();
        let mut vars = String::new();
        let call = call.env(|env| {
            vars = env.to_vars().iter().map(|(key, value)| format!("'{key}={value}' ")).collect();
        });
        let text = String::from_utf8(call.document()).unwrap();
        let go = node.lab.try_sh(&format!("env {vars} /usr/lib/cni/static < {}", config.display()));
        let theirs: Value = serde_json::from_slice(&go.stdout).unwrap();
        let answer = call.call();
        let mut ours: Value = serde_json::from_slice(&answer.output.stdout).unwrap();
        if theirs["code"].is_null() {
            let mut theirs = theirs;
            for result in [&mut ours, &mut theirs] {
                result.as_object_mut().unwrap().remove("dns");
            }
            assert_eq!(ours, theirs, "{vars}{text}");
        } else {
            assert_eq!(ours["msg"], theirs["msg"], "{vars}{text}");
        }
    }
}

/// One verb of `static` under `bridge`, on a real kernel.
fn matrix(verb: &str, families: &[&str]) {
    testkit::require!("root");
    let node = Node::new("static-matrix");
    let c1 = node.container("c1");
    let mut addresses = both()["addresses"].as_array().unwrap().clone();
    addresses.retain(|one| {
        let is_v6 = one["address"].as_str().unwrap().contains(':');
        families.contains(&if is_v6 { "v6" } else { "v4" })
    });
    let bridge = |verb: &str| {
        node.run("bridge", verb).to(&c1).config(json!({
            "bridge": "br0", "isGateway": true, "ipam": { "type": "static", "addresses": addresses },
        }))
    };
    let before = Snapshot::take(&node.lab);
    let result = bridge("ADD").call().ok();
    let has = |address: &Value| {
        let text = c1.sh("ip -o addr show dev eth0");
        text.contains(address["address"].as_str().unwrap())
    };
    assert!(addresses.iter().all(has));
    match verb {
        "add" => {
            for address in &addresses {
                traffic::assert_pings(&c1, address["gateway"].as_str().unwrap());
            }
        }
        "del" => {
            bridge("DEL").call().silent();
            before.assert_same(&Snapshot::take(&node.lab));
            bridge("DEL").call().silent();
        }
        "check" => {
            bridge("CHECK").prev(&result).call().silent();
            for (index, address) in addresses.iter().enumerate() {
                let mut missing = result.clone();
                missing["ips"].as_array_mut().unwrap().remove(index);
                let address = address["address"].as_str().unwrap();
                let words = format!("static: Failed to find addr {address}");
                bridge("CHECK").prev(&missing).call().fails(codes::DRIFT, &words);
            }
        }
        "gc" => {
            bridge("GC").valid(&[("c1", "eth0")]).call().silent();
            assert!(addresses.iter().all(has));
        }
        _ => {
            bridge("STATUS").call().silent();
            let mut wrong = addresses.clone();
            wrong[0]["address"] = json!("nowhere");
            let keys = json!({ "ipam": { "type": "static", "addresses": wrong } });
            bridge("STATUS").config(keys).call().fails(code::INVALID_CONFIG, "nowhere");
        }
    }
}

#[test]
fn matrix_add_v4() {
    matrix("add", &["v4"]);
}

#[test]
fn matrix_add_v6() {
    matrix("add", &["v6"]);
}

#[test]
fn matrix_add_dual() {
    matrix("add", &["v4", "v6"]);
}

#[test]
fn matrix_del_v4() {
    matrix("del", &["v4"]);
}

#[test]
fn matrix_del_v6() {
    matrix("del", &["v6"]);
}

#[test]
fn matrix_del_dual() {
    matrix("del", &["v4", "v6"]);
}

#[test]
fn matrix_check_v4() {
    matrix("check", &["v4"]);
}

#[test]
fn matrix_check_v6() {
    matrix("check", &["v6"]);
}

#[test]
fn matrix_check_dual() {
    matrix("check", &["v4", "v6"]);
}

#[test]
fn matrix_gc_v4() {
    matrix("gc", &["v4"]);
}

#[test]
fn matrix_gc_v6() {
    matrix("gc", &["v6"]);
}

#[test]
fn matrix_gc_dual() {
    matrix("gc", &["v4", "v6"]);
}

#[test]
fn matrix_status_v4() {
    matrix("status", &["v4"]);
}

#[test]
fn matrix_status_v6() {
    matrix("status", &["v6"]);
}

#[test]
fn matrix_status_dual() {
    matrix("status", &["v4", "v6"]);
}
