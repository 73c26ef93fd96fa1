//! Invalid configurations, drivers and answers: each gives an error that says so, and leaves
//! nothing.

use serde_json::{Value, json};
use testkit::Place;
use testkit::driver::Driver;

use super::{cnm, leaves_nothing, warm};
use crate::support::Node;

/// Asserts that ADD fails with a code and words, and leaves nothing.
#[track_caller]
fn refused(node: &Node, driver: &Driver<'_>, rules: Value, code: u32, words: &str) {
    // A driver that answers at once needs more than a moment on a busy machine.
    refused_within(node, driver, 60, rules, code, words);
}

/// The same, if the driver has so many seconds for an answer.
#[track_caller]
fn refused_within(
    node: &Node,
    driver: &Driver<'_>,
    timeout: u32,
    rules: Value,
    code: u32,
    words: &str,
) {
    eprintln!("{rules}");
    leaves_nothing(node, driver, || {
        let c1 = node.container("c1");
        driver.misbehave(rules);
        cnm(node, "ADD", &c1).config(json!({ "timeout": timeout })).call().fails(code, words);
        driver.misbehave(json!({}));
        assert_eq!(c1.sh("ip -o link show | grep -v ' lo:' || true"), "");
        cnm(node, "DEL", &c1).call().silent();
    });
}

#[test]
fn a_silent_driver_is_not_waited_for() {
    testkit::require!("root", "program:python3");
    let node = warm("cnm-silent");
    let driver = Driver::start(&node.lab, "weft");
    for method in [
        "Plugin.Activate",
        "IpamDriver.RequestPool",
        "IpamDriver.RequestAddress",
        "NetworkDriver.CreateNetwork",
        "NetworkDriver.CreateEndpoint",
        "NetworkDriver.Join",
        "NetworkDriver.ProgramExternalConnectivity",
    ] {
        let words = format!("driver \"weft\" did not answer {method} within 1s");
        let rules = json!({ method: { "silent": true } });
        refused_within(&node, &driver, 1, rules, 11, &words);
    }
}

#[test]
fn what_is_no_answer_is_told() {
    testkit::require!("root", "program:python3");
    let node = warm("cnm-answers");
    let driver = Driver::start(&node.lab, "weft");
    let of = |rule: Value| json!({ "NetworkDriver.CreateEndpoint": rule });
    for (rule, words) in [
        (json!({ "half": true }), "what is not HTTP: the message ended before its end"),
        (json!({ "flood": 2_000_000 }), "longer than 1048576 bytes"),
        (json!({ "raw": "what?\n\n" }), "what is not HTTP: not HTTP/1.1"),
        (json!({ "raw": "" }), "the message ended before its end"),
        (json!({ "body": "<html>" }), "answered NetworkDriver.CreateEndpoint with something else"),
        (json!({ "body": "[7]" }), "answered NetworkDriver.CreateEndpoint with something else"),
        (json!({ "body": "{\"Interface\":7}" }), "with something else: "),
        (
            json!({ "reply": { "Err": "no\nroom" } }),
            "refused NetworkDriver.CreateEndpoint: no room",
        ),
        (
            json!({ "status": 500, "body": "boom" }),
            "refused NetworkDriver.CreateEndpoint: status 500: boom",
        ),
        (json!({ "status": 500, "reply": { "Err": "boom" } }), "status 500: boom"),
        (
            json!({ "status": 404, "body": "" }),
            "does not know the call NetworkDriver.CreateEndpoint",
        ),
    ] {
        refused(&node, &driver, of(rule), 111, words);
    }
}

#[test]
fn answers_that_cannot_be_are_told() {
    testkit::require!("root", "program:python3");
    let node = warm("cnm-content");
    let driver = Driver::start(&node.lab, "weft");
    let endpoint = |interface: Value| json!({ "NetworkDriver.CreateEndpoint": { "add": { "Interface": interface } } });
    let join = |more: Value| json!({ "NetworkDriver.Join": { "add": more } });
    let name = |name: &str| join(json!({ "InterfaceName": { "SrcName": name } }));
    let route = |route: Value| join(json!({ "StaticRoutes": [route] }));
    for (rules, words) in [
        (
            endpoint(json!({ "Address": "10.9.9.9/24" })),
            "address 10.9.9.9/24 in place of 10.1.0.2/24",
        ),
        (endpoint(json!({ "MacAddress": "zz" })), "\"zz\" is not a MAC address"),
        (endpoint(json!({ "MacAddress": "01:00:5e:00:00:01" })), "is not a MAC address"),
        (name("gone0"), "driver \"weft\" named interface \"gone0\", which is not on the host"),
        (name("a/b"), "named an interface that cannot be"),
        (name("lo"), "named the loopback"),
        (name(""), "named no interface, and put none into the container"),
        (join(json!({ "Gateway": "x" })), "\"x\" is no gateway of its family"),
        (join(json!({ "Gateway": "fd00:1::1" })), "is no gateway of its family"),
        (route(json!({ "Destination": "x" })), "a route to \"x\", which is no destination"),
        (
            route(json!({ "Destination": "192.0.2.0/24", "RouteType": 0, "NextHop": "x" })),
            "which is no next hop",
        ),
        (
            route(json!({ "Destination": "192.0.2.0/24", "RouteType": 7 })),
            "of type 7, which is neither 0 nor 1",
        ),
    ] {
        refused(&node, &driver, rules, 111, words);
    }
    for (method, reply, words) in [
        (
            "IpamDriver.RequestPool",
            json!({ "PoolID": "p", "Pool": "x" }),
            "\"x\" is not an address with a prefix length",
        ),
        (
            "IpamDriver.RequestPool",
            json!({ "PoolID": "p", "Pool": "fd00::/64" }),
            "is of the other family",
        ),
        (
            "IpamDriver.RequestAddress",
            json!({ "Address": "10.1.0.9" }),
            "is not an address with a prefix length",
        ),
        ("Plugin.Activate", json!({ "Implements": ["VolumeDriver"] }), "and no NetworkDriver"),
    ] {
        refused(&node, &driver, json!({ method: { "reply": reply } }), 111, words);
    }
}

#[test]
fn a_full_pool_and_no_driver_are_told() {
    testkit::require!("root", "program:python3");
    let node = warm("cnm-none");
    let driver = Driver::start(&node.lab, "weft");
    let c1 = node.container("c1");
    leaves_nothing(&node, &driver, || {
        let small = json!({ "subnets": [{ "subnet": "10.1.0.0/31", "gateway": "10.1.0.0" }] });
        cnm(&node, "ADD", &c1).config(small.clone()).call().ok();
        let c2 = node.container("c2");
        cnm(&node, "ADD", &c2).config(small).call().fails(102, "no address is free");
        cnm(&node, "DEL", &c1).call().silent();
        let run = |driver: &str| cnm(&node, "ADD", &c1).config(json!({ "driver": driver })).call();
        run("nobody").fails(
            111,
            "driver \"nobody\" is not there: no driver of that name in /run/docker/plugins",
        );
        run("/srv/none.sock").fails(111, "is not there: connect to unix:///srv/none.sock");
        run("/srv/none.spec").fails(111, "/srv/none.spec: no such file");
        cnm(&node, "ADD", &c1)
            .config(json!({ "ipamDriver": "nobody" }))
            .call()
            .fails(111, "driver \"nobody\"");
    });
}

#[test]
fn keys_of_the_wrong_type_are_named() {
    testkit::require!("root", "program:python3");
    let node = warm("cnm-keys");
    let driver = Driver::start(&node.lab, "weft");
    let c1 = node.container("c1");
    leaves_nothing(&node, &driver, || {
        let _ = driver.take_names();
        for (key, value) in [
            ("driver", json!(7)),
            ("driver", json!("")),
            ("driver", json!("a b")),
            ("driver", json!("tcp://192.0.2.1:1")),
            ("options", json!([])),
            ("options", json!({ "a": 7 })),
            ("endpointOptions", json!("x")),
            ("internal", json!("yes")),
            ("ipv6", json!(1)),
            ("ipamDriver", json!({})),
            ("ipamOptions", json!(7)),
            ("subnets", json!({ "subnet": "10.1.0.0/24" })),
            ("subnets", json!([{ "subnet": "10.1.0.0" }])),
            ("subnets", json!([{ "subnet": "10.1.0.0/24", "gateway": "10.2.0.1" }])),
            ("defaultGateway", json!("yes")),
            ("timeout", json!(-1)),
            ("timeout", json!(100_000)),
            ("mac", json!(7)),
        ] {
            for verb in ["ADD", "STATUS"] {
                let run = cnm(&node, verb, &c1).config(json!({ key: value.clone() })).env(|env| {
                    if verb == "STATUS" {
                        env.container_id.clear();
                    }
                });
                run.call().fails(7, key);
            }
        }
        for (runtime, words) in [
            (json!({ "ips": ["x"] }), "\"ips\""),
            (
                json!({ "portMappings": [{ "hostPort": 70_000, "containerPort": 80 }] }),
                "hostPort 70000",
            ),
            (json!({ "mac": "x" }), "x"),
        ] {
            cnm(&node, "ADD", &c1)
                .config(json!({ "runtimeConfig": runtime }))
                .call()
                .fails(7, words);
        }
        assert_eq!(driver.take_names(), Vec::<String>::new(), "the driver got a request");
    });
}
