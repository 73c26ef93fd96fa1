//! Mistakes in configurations.

use expect_test::{Expect, expect};

use crate::support::Scratch;

/// Examines one file; the output has the scratch folder's name replaced.
#[track_caller]
fn check(document: &str, code: i32, expected: Expect) {
    let scratch = Scratch::new();
    let path = scratch.write("net.d/10-x.conflist", document);
    let said = scratch.call(&["lint", path.to_str().unwrap()]).failed(code);
    assert_eq!(said.stderr, "");
    expected.assert_eq(&scratch.plain(&said.stdout));
    // `lint` of the file's folder prints the same.
    let folder = scratch.call(&["lint"]).failed(code);
    assert_eq!(folder.stdout, said.stdout);
}

#[test]
fn a_sound_file_passes() {
    check(
        r#"{"cniVersion": "1.1.0", "name": "x", "plugins": [
            {"type": "bridge", "bridge": "br0", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}},
            {"type": "portmap", "capabilities": {"portMappings": true}}
        ]}"#,
        0,
        expect![[r#"
            1 file looked at: 0 errors, 0 warnings
        "#]],
    );
}

#[test]
fn the_embedded_network_passes() {
    let scratch = Scratch::new();
    let document = include_str!("../../src/net/netwright.conflist");
    scratch.write("net.d/99-netwright.conflist", document);
    scratch.call(&["lint", "--strict"]).succeeded();
}

#[test]
fn broken_json_is_pointed_at() {
    check(
        "{\n    \"name\": \"x\",\n    \"plugins\": [\n        {\"type\" \"bridge\"}\n    ]\n}\n",
        1,
        expect![[r#"
            error: error parsing configuration list: expected `:`
              --> SCRATCH/net.d/10-x.conflist:4:17
              |
            4 |         {"type" "bridge"}
              |                 ^

            1 file looked at: 1 error, 0 warnings
        "#]],
    );
    check(
        "",
        1,
        expect![[r#"
        error: the file is empty
          --> SCRATCH/net.d/10-x.conflist

        1 file looked at: 1 error, 0 warnings
    "#]],
    );
    check(
        "[1, 2]",
        1,
        expect![[r#"
        error: error parsing configuration list: found a list, wanted an object
          --> SCRATCH/net.d/10-x.conflist:1:1
          |
        1 | [1, 2]
          | ^

        1 file looked at: 1 error, 0 warnings
    "#]],
    );
}

/// What cannot be seen is named.
#[test]
fn what_is_not_json_is_named_and_pointed_at() {
    let sound = r#"{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "dummy"}]}"#;
    check(
        &format!("\u{feff}{sound}"),
        1,
        expect![[r#"
        error: error parsing configuration list: the file begins with a byte order mark (U+FEFF): save it as UTF-8 without one
          --> SCRATCH/net.d/10-x.conflist:1:1
          |
        1 | ﻿{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "dummy"}]}
          | ^

        1 file looked at: 1 error, 0 warnings
    "#]],
    );
    check(
        &sound.replace(", \"name\"", ",\u{a0}\"name\""),
        1,
        expect![[r#"
        error: error parsing configuration list: U+00A0 (a non-breaking space) is not allowed here
          --> SCRATCH/net.d/10-x.conflist:1:24
          |
        1 | {"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "dummy"}]}
          |                        ^

        1 file looked at: 1 error, 0 warnings
    "#]],
    );
    check(
        &sound.replace("\"plugins\"", "// mine\n\"plugins\""),
        1,
        expect![[r#"
        error: error parsing configuration list: JSON has no comments
          --> SCRATCH/net.d/10-x.conflist:1:38
          |
        1 | {"cniVersion": "1.0.0", "name": "x", // mine
          |                                      ^

        1 file looked at: 1 error, 0 warnings
    "#]],
    );
    check(
        &sound.replace("}]}", "},]}"),
        1,
        expect![[r#"
        error: error parsing configuration list: there is a comma too many before ']'
          --> SCRATCH/net.d/10-x.conflist:1:68
          |
        1 | {"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "dummy"},]}
          |                                                                    ^

        1 file looked at: 1 error, 0 warnings
    "#]],
    );
    check(
        &sound.replace("\"name\"", "\u{201c}name\u{201d}"),
        1,
        expect![[r#"
        error: error parsing configuration list: U+201C is not a quotation mark of JSON (")
          --> SCRATCH/net.d/10-x.conflist:1:25
          |
        1 | {"cniVersion": "1.0.0", “name”: "x", "plugins": [{"type": "dummy"}]}
          |                         ^

        1 file looked at: 1 error, 0 warnings
    "#]],
    );
}

/// `.0` and `.255` stand in many published configurations, and the reference gives them away.
#[test]
fn addresses_that_no_host_can_have_are_warned_about() {
    let bridge = |ipam: &str| {
        format!(
            "{{\"cniVersion\": \"1.0.0\", \"name\": \"x\", \"plugins\": [\n{{\"type\": \"bridge\", \"ipam\": {{{ipam}}}}}]}}\n"
        )
    };
    check(
        &bridge(
            r#""type": "host-local", "subnet": "192.168.100.0/24", "rangeStart": "192.168.100.0", "rangeEnd": "192.168.100.255""#,
        ),
        0,
        expect![[r#"
            warning: plugin "host-local": 192.168.100.0 is the network address of 192.168.100.0/24 and goes to no container
              --> SCRATCH/net.d/10-x.conflist:2:81
              |
            2 | e": "bridge", "ipam": {"type": "host-local", "subnet": "192.168.100.0/24", "rangeStart": "192.168.10
              |                                                                            ^
              hint: key "rangeStart": name one that a host can have

            warning: plugin "host-local": 192.168.100.255 is the broadcast address of 192.168.100.0/24 and goes to no container
              --> SCRATCH/net.d/10-x.conflist:2:112
              |
            2 | "host-local", "subnet": "192.168.100.0/24", "rangeStart": "192.168.100.0", "rangeEnd": "192.168.100.
              |                                                                            ^
              hint: key "rangeEnd": name one that a host can have

            1 file looked at: 0 errors, 2 warnings
        "#]],
    );
    check(
        &bridge(
            r#""type": "host-local", "ranges": [[{"subnet": "10.0.0.0/8", "rangeStart": "10.1.2.0", "rangeEnd": "10.1.2.255"}], [{"subnet": "fd00::/64", "rangeStart": "fd00::"}]]"#,
        ),
        0,
        expect![[r#"
            warning: plugin "host-local": fd00:: is the address of the routers of fd00::/64 and goes to no container
              --> SCRATCH/net.d/10-x.conflist:2:28
              |
            2 | {"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/8", "rangeStart":
              |                            ^
              hint: key "rangeStart": name one that a host can have

            1 file looked at: 0 errors, 1 warning
        "#]],
    );
    check(
        &bridge(
            r#""type": "static", "addresses": [{"address": "10.1.0.255/24"}, {"address": "10.1.0.2/31"}]"#,
        ),
        0,
        expect![[r#"
            warning: plugin "static": 10.1.0.255 is the broadcast address of 10.1.0.0/24: no host reaches it
              --> SCRATCH/net.d/10-x.conflist:2:47
              |
            2 | {"type": "bridge", "ipam": {"type": "static", "addresses": [{"address": "10.1.0.255/24"}, {"address"
              |                                               ^
              hint: key "addresses": name one that a host can have

            1 file looked at: 0 errors, 1 warning
        "#]],
    );
    check(
        &bridge(r#""type": "host-local", "subnet": "224.0.0.0/24""#),
        1,
        expect![[r#"
        error: plugin "host-local": invalid range set 0: Network 224.0.0.0/24 is of multicast addresses, which no host can have as its own
          --> SCRATCH/net.d/10-x.conflist:2:51
          |
        2 | {"type": "bridge", "ipam": {"type": "host-local", "subnet": "224.0.0.0/24"}}]}
          |                                                   ^
          hint: key "subnet": name one of unicast addresses

        1 file looked at: 1 error, 0 warnings
    "#]],
    );
    check(
        &bridge(r#""type": "static", "addresses": [{"address": "ff02::7/64"}]"#),
        1,
        expect![[r#"
            error: plugin "static": ff02::7 is a multicast address, which no interface can have as its own
              --> SCRATCH/net.d/10-x.conflist:2:47
              |
            2 | {"type": "bridge", "ipam": {"type": "static", "addresses": [{"address": "ff02::7/64"}]}}]}
              |                                               ^
              hint: key "addresses": name a unicast address

            1 file looked at: 1 error, 0 warnings
        "#]],
    );
    check(
        &bridge(r#""type": "cluster-ipam", "ranges": [{"range": "239.0.0.0/24"}]"#),
        1,
        expect![[r#"
            warning: unknown key "ranges": "ipam" of plugin "cluster-ipam" does not read it
              --> SCRATCH/net.d/10-x.conflist:2:53
              |
            2 | {"type": "bridge", "ipam": {"type": "cluster-ipam", "ranges": [{"range": "239.0.0.0/24"}]}}]}
              |                                                     ^
              hint: did you mean "range"?

            error: plugin "cluster-ipam": network "x" has no range of addresses
              --> SCRATCH/net.d/10-x.conflist:2:28
              |
            2 | {"type": "bridge", "ipam": {"type": "cluster-ipam", "ranges": [{"range": "239.0.0.0/24"}]}}]}
              |                            ^

            1 file looked at: 1 error, 1 warning
        "#]],
    );
}

/// The reference returns such a gateway; a default route by it makes ADD fail, or leads nowhere.
#[test]
fn gateways_that_no_host_can_have_are_warned_about() {
    let warning = |ipam: &str| {
        let scratch = Scratch::new();
        let list = r#"{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "macvlan", "master": "e", "ipam": {"#;
        scratch.write("net.d/10-x.conflist", &format!("{list}{ipam}}}}}]}}"));
        let said = scratch.call(&["lint"]).succeeded().stdout;
        let found = said.lines().filter_map(|line| line.strip_prefix("warning: plugin "));
        found.map(str::to_owned).collect::<Vec<_>>().join("\n")
    };
    for (ipam, words) in [
        (
            r#""type": "host-local", "subnet": "10.1.0.0/24", "gateway": "10.1.0.255""#,
            "\"host-local\": gateway 10.1.0.255 is the broadcast address of 10.1.0.0/24: no host can have it",
        ),
        (
            r#""type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24", "gateway": "224.0.0.1"}]]"#,
            "\"host-local\": gateway 224.0.0.1 is a multicast address: no host can have it",
        ),
        (
            r#""type": "host-local", "subnet": "::/64""#,
            "\"host-local\": gateway ::1 is the loopback address: no host can have it",
        ),
        (
            r#""type": "static", "addresses": [{"address": "10.1.0.2/24", "gateway": "10.1.0.0"}]"#,
            "\"static\": gateway 10.1.0.0 is the network address of 10.1.0.0/24: no host can have it",
        ),
        (
            r#""type": "cluster-ipam", "range": "10.1.0.0/24", "gateway": "10.1.0.255""#,
            "\"cluster-ipam\": gateway 10.1.0.255 is the broadcast address of 10.1.0.0/24: no host can have it",
        ),
        (
            r#""type": "cluster-ipam", "range": "10.1.0.0/24", "addresses": [{"address": "fd00::2/64", "gateway": "ff02::1"}]"#,
            "\"cluster-ipam\": gateway ff02::1 is a multicast address: no host can have it",
        ),
        // Outside the subnet, and that of an IPv6 subnet's routers.
        (r#""type": "host-local", "subnet": "10.1.0.0/24", "gateway": "10.2.0.255""#, ""),
        (r#""type": "host-local", "subnet": "fd00::/64", "gateway": "fd00::""#, ""),
        (
            r#""type": "static", "addresses": [{"address": "10.1.0.1/31", "gateway": "10.1.0.0"}]"#,
            "",
        ),
    ] {
        assert_eq!(warning(ipam), words, "{ipam}");
    }
}

#[test]
fn unknown_keys_are_warned_about_with_the_nearest() {
    check(
        r#"{
    "cniVersion": "1.1.0",
    "name": "x",
    "disableGc": true,
    "disableChek": true,
    "plugins": [
        {
            "type": "bridge",
            "isGatway": true,
            "ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "gatway": "10.1.0.1"}
        }
    ]
}
"#,
        0,
        expect![[r#"
            warning: unknown key "disableChek": a network list does not read it
              --> SCRATCH/net.d/10-x.conflist:5:5
              |
            5 |     "disableChek": true,
              |     ^
              hint: did you mean "disableCheck"?

            warning: unknown key "isGatway": plugin "bridge" does not read it
              --> SCRATCH/net.d/10-x.conflist:9:13
              |
            9 |             "isGatway": true,
              |             ^
              hint: did you mean "isGateway"?

            warning: unknown key "gatway": "ipam" of plugin "host-local" does not read it
              --> SCRATCH/net.d/10-x.conflist:10:69
               |
            10 |             "ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "gatway": "10.1.0.1"}
               |                                                                     ^
              hint: did you mean "gateway"?

            1 file looked at: 0 errors, 3 warnings
        "#]],
    );
}

#[test]
fn keys_of_other_projects_are_told_to_have_no_effect() {
    check(
        r#"{
    "cniVersion": "1.1.0",
    "name": "x",
    "plugins": [
        {
            "type": "macvlan",
            "ipam": {
                "type": "cluster-ipam", "range": "192.0.2.0/24", "rnge_end": "192.0.2.9",
                "kubernetes": {"kubeconfig": "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"}
            }
        }
    ]
}
"#,
        0,
        expect![[r#"
            warning: unknown key "rnge_end": "ipam" of plugin "cluster-ipam" does not read it
              --> SCRATCH/net.d/10-x.conflist:8:66
              |
            8 |                 "type": "cluster-ipam", "range": "192.0.2.0/24", "rnge_end": "192.0.2.9",
              |                                                                  ^
              hint: did you mean "range_end"?

            warning: key "kubernetes" has no effect: the plugin has no credentials and talks to no store: netwrightd ipam does, and its own flags say where
              --> SCRATCH/net.d/10-x.conflist:9:17
              |
            9 |                 "kubernetes": {"kubeconfig": "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"}
              |                 ^

            1 file looked at: 0 errors, 2 warnings
        "#]],
    );
    check(
        r#"{
    "cniVersion": "1.1.0",
    "name": "x",
    "plugins": [{"type": "netwright-multi", "clusterNetwork": "a", "logLevel": "debug"}]
}
"#,
        0,
        expect![[r#"
            warning: key "logLevel" has no effect: the plugin logs to standard error, which the runtime keeps; NETWRIGHT_LOG says how much
              --> SCRATCH/net.d/10-x.conflist:4:68
              |
            4 |     "plugins": [{"type": "netwright-multi", "clusterNetwork": "a", "logLevel": "debug"}]
              |                                                                    ^

            1 file looked at: 0 errors, 1 warning
        "#]],
    );
}

/// The plugin completes its delegate's configuration: neither `ipam` without ranges nor a missing
/// `type` is a mistake.
#[test]
fn the_delegate_of_flannel_is_looked_at() {
    check(
        r#"{"cniVersion": "0.3.1", "name": "cbr0", "plugins": [
    {"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true},
     "ipam": {"type": "host-local", "routes": [{"dst": "10.96.0.0/12"}]}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
]}
"#,
        0,
        expect![[r#"
            1 file looked at: 0 errors, 0 warnings
        "#]],
    );
    check(
        r#"{"cniVersion": "0.3.1", "name": "cbr0", "plugins": [
    {"type": "flannel", "subnetfiles": "/x",
     "delegate": {"hairpinMod": true, "mtu": 99999},
     "ipam": {"type": "host-local", "dataDirs": "/x"}}
]}
"#,
        1,
        expect![[r#"
            warning: unknown key "hairpinMod": plugin "bridge" does not read it
              --> SCRATCH/net.d/10-x.conflist:3:19
              |
            3 |      "delegate": {"hairpinMod": true, "mtu": 99999},
              |                   ^
              hint: did you mean "hairpinMode"?

            warning: unknown key "subnetfiles": plugin "flannel" does not read it
              --> SCRATCH/net.d/10-x.conflist:2:25
              |
            2 |     {"type": "flannel", "subnetfiles": "/x",
              |                         ^
              hint: did you mean "subnetFile"?

            warning: unknown key "dataDirs": "ipam" of plugin "host-local" does not read it
              --> SCRATCH/net.d/10-x.conflist:4:37
              |
            4 |      "ipam": {"type": "host-local", "dataDirs": "/x"}}
              |                                     ^
              hint: did you mean "dataDir"?

            error: plugin "flannel": delegated plugin "bridge": invalid MTU 99999, must be [68, 65535]
              --> SCRATCH/net.d/10-x.conflist:2:14
              |
            2 |     {"type": "flannel", "subnetfiles": "/x",
              |              ^
              hint: key "mtu" is a number of bytes from 68 to 65535, or 0 for the kernel's choice

            1 file looked at: 1 error, 3 warnings
        "#]],
    );
    check(
        r#"{"cniVersion": "0.3.1", "name": "cbr0", "plugins": [
    {"type": "flannel", "delegate": {"type": "brigde", "name": "x"}}
]}
"#,
        1,
        expect![[r#"
            error: failed to find plugin "brigde" in SCRATCH/bin
              --> SCRATCH/net.d/10-x.conflist:2:46
              |
            2 |     {"type": "flannel", "delegate": {"type": "brigde", "name": "x"}}
              |                                              ^
              hint: did you mean "bridge"?

            error: plugin "flannel": 'delegate' dictionary must not have 'name' field, it'll be set by flannel
              --> SCRATCH/net.d/10-x.conflist:2:25
              |
            2 |     {"type": "flannel", "delegate": {"type": "brigde", "name": "x"}}
              |                         ^
              hint: remove the key "delegate.name"

            1 file looked at: 2 errors, 0 warnings
        "#]],
    );
}

#[test]
fn wrong_types_are_pointed_at() {
    check(
        r#"{"cniVersion": "1.1.0", "name": "x", "plugins": [
    {"type": "bridge",
     "mtu": "large"}
]}
"#,
        1,
        expect![[r#"
            error: mtu: found "large", wanted a number of bytes or "auto"
              --> SCRATCH/net.d/10-x.conflist:3:13
              |
            3 |      "mtu": "large"}
              |             ^

            1 file looked at: 1 error, 0 warnings
        "#]],
    );
}

#[test]
fn missing_plugins_are_named() {
    check(
        r#"{"cniVersion": "1.1.0", "name": "x", "plugins": [
    {"type": "brigde", "ipam": {"type": "whereabouts"}}
]}
"#,
        1,
        expect![[r#"
            error: failed to find plugin "brigde" in SCRATCH/bin
              --> SCRATCH/net.d/10-x.conflist:2:14
              |
            2 |     {"type": "brigde", "ipam": {"type": "whereabouts"}}
              |              ^
              hint: did you mean "bridge"?

            error: failed to find plugin "whereabouts" in SCRATCH/bin
              --> SCRATCH/net.d/10-x.conflist:2:41
              |
            2 |     {"type": "brigde", "ipam": {"type": "whereabouts"}}
              |                                         ^
              hint: `install --also whereabouts` places ours under that name

            1 file looked at: 2 errors, 0 warnings
        "#]],
    );
}

#[test]
fn network_policy_without_status_is_named() {
    let list = |versions: &str| {
        format!(
            r#"{{{versions}, "name": "x", "plugins": [
    {{"type": "ptp", "ipam": {{"type": "static", "addresses": [{{"address": "10.1.0.2/24"}}]}}}},
    {{"type": "policy"}}
]}}
"#
        )
    };
    check(
        &list(r#""cniVersion": "1.0.0""#),
        0,
        expect![[r#"
        warning: runtimes do not ask STATUS of this version: the node stays ready while netwrightd policy is away and new pods are closed
          --> SCRATCH/net.d/10-x.conflist:3:14
          |
        3 |     {"type": "policy"}
          |              ^
          hint: add "cniVersions": ["1.0.0", "1.1.0"]: older runtimes keep to `cniVersion`

        1 file looked at: 0 errors, 1 warning
    "#]],
    );
    check(
        &list(r#""cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"]"#),
        0,
        expect![[r#"
            1 file looked at: 0 errors, 0 warnings
        "#]],
    );
}

#[test]
fn network_policy_needs_packets_that_this_node_filters() {
    check(
        r#"{"cniVersion": "1.1.0", "name": "x", "plugins": [
    {"type": "tap"},
    {"type": "policy"}
]}
"#,
        1,
        expect![[r#"
            error: network policy cannot judge packets of "tap", which pass this node's packet filter by
              --> SCRATCH/net.d/10-x.conflist:3:14
              |
            3 |     {"type": "policy"}
              |              ^
              hint: attach by ptp or bridge where network policy is to hold

            1 file looked at: 1 error, 0 warnings
        "#]],
    );
    check(
        r#"{"cniVersion": "1.1.0", "name": "x", "plugins": [
    {"type": "chain", "plugins": [{"type": "tap"}, {"type": "policy"}]}
]}
"#,
        1,
        expect![[r#"
            error: plugin "chain": network policy cannot judge packets of "tap", which pass this node's packet filter by
              --> SCRATCH/net.d/10-x.conflist:2:14
              |
            2 |     {"type": "chain", "plugins": [{"type": "tap"}, {"type": "policy"}]}
              |              ^
              hint: attach by ptp or bridge where network policy is to hold

            1 file looked at: 1 error, 0 warnings
        "#]],
    );
    // In the container, on further networks.
    check(
        r#"{"cniVersion": "1.1.0", "name": "x", "plugins": [
    {"type": "macvlan", "master": "eth1"},
    {"type": "policy"}
]}
"#,
        0,
        expect![[r#"
            warning: network policy judges packets of "macvlan" in the container, and only on further networks: as eth0 it is refused
              --> SCRATCH/net.d/10-x.conflist:3:14
              |
            3 |     {"type": "policy"}
              |              ^

            1 file looked at: 0 errors, 1 warning
        "#]],
    );
}

#[test]
fn the_order_of_a_chain_is_looked_at() {
    check(
        r#"{"cniVersion": "1.1.0", "name": "x", "plugins": [
    {"type": "portmap"},
    {"type": "bridge"},
    {"type": "host-local"},
    {"type": "portmap", "capabilities": {"portMappings": true}}
]}
"#,
        1,
        expect![[r#"
            error: plugin "portmap" changes what plugins before it made, but is the first
              --> SCRATCH/net.d/10-x.conflist:2:14
              |
            2 |     {"type": "portmap"},
              |              ^
              hint: put a plugin that makes an interface before it, such as bridge

            warning: plugin "portmap" has nothing to do without the capability "portMappings"
              --> SCRATCH/net.d/10-x.conflist:2:14
              |
            2 |     {"type": "portmap"},
              |              ^
              hint: add "capabilities": {"portMappings": true}

            warning: plugin "bridge" makes an interface of its own and ignores what "portmap" before it made
              --> SCRATCH/net.d/10-x.conflist:3:14
              |
            3 |     {"type": "bridge"},
              |              ^
              hint: put the second interface in a network of its own

            error: plugin "host-local" hands out addresses and cannot be a link of the chain
              --> SCRATCH/net.d/10-x.conflist:4:14
              |
            4 |     {"type": "host-local"},
              |              ^
              hint: put it into the `ipam` of the plugin that makes the interface: "ipam": {"type": "host-local"}

            warning: plugin "portmap" is in the chain twice
              --> SCRATCH/net.d/10-x.conflist:5:14
              |
            5 |     {"type": "portmap", "capabilities": {"portMappings": true}}
              |              ^

            1 file looked at: 2 errors, 3 warnings
        "#]],
    );
}

/// A container on the bridge may answer for DHCP, and name any address as the host's.
#[test]
fn a_gateway_from_dhcp_is_told() {
    check(
        r#"{"cniVersion": "1.1.0", "name": "x", "plugins": [
    {"type": "bridge", "isGateway": true, "ipam": {"type": "dhcp"}}
]}
"#,
        0,
        expect![[r#"
            warning: the host takes as its own the gateway that a DHCP server names, and every container on the bridge can answer as one
              --> SCRATCH/net.d/10-x.conflist:2:14
              |
            2 |     {"type": "bridge", "isGateway": true, "ipam": {"type": "dhcp"}}
              |              ^
              hint: leave out `isGateway`, or use another address plugin

            1 file looked at: 0 errors, 1 warning
        "#]],
    );
    check(
        r#"{"cniVersion": "1.1.0", "name": "x", "plugins": [
    {"type": "bridge", "ipam": {"type": "dhcp"}}
]}
"#,
        0,
        expect![[r#"
            1 file looked at: 0 errors, 0 warnings
        "#]],
    );
}

/// Runtimes pass on the arguments of every capability that is declared; a misspelt one is lost
/// without a word.
#[test]
fn a_capability_that_nothing_reads_is_told() {
    check(
        r#"{"cniVersion": "1.1.0", "name": "x", "plugins": [
    {"type": "bridge", "capabilities": {"ips": true, "mac": true, "dns": true, "aliases": false},
     "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}},
    {"type": "bandwidth", "capabilities": {"bandwith": true}},
    {"type": "firewall", "capabilities": {"portMappings": true}},
    {"type": "chain", "capabilities": {"bandwidth": true}, "plugins": [{"type": "tuning"}]}
]}
"#,
        0,
        expect![[r#"
            warning: capability "dns" has no effect: plugin "bridge" does not read it
              --> SCRATCH/net.d/10-x.conflist:2:67
              |
            2 |     {"type": "bridge", "capabilities": {"ips": true, "mac": true, "dns": true, "aliases": false},
              |                                                                   ^
              hint: known are mac, hostIfname, ips, ipRanges

            warning: capability "bandwith" has no effect: plugin "bandwidth" does not read it
              --> SCRATCH/net.d/10-x.conflist:4:44
              |
            4 |     {"type": "bandwidth", "capabilities": {"bandwith": true}},
              |                                            ^
              hint: did you mean "bandwidth"?

            warning: capability "portMappings" has no effect: plugin "firewall" does not read it
              --> SCRATCH/net.d/10-x.conflist:5:43
              |
            5 |     {"type": "firewall", "capabilities": {"portMappings": true}},
              |                                           ^

            1 file looked at: 0 errors, 3 warnings
        "#]],
    );
    // Another project's IPAM plugin may read it.
    let text = r#"{"cniVersion": "1.1.0", "name": "x", "plugins": [
    {"type": "bridge", "capabilities": {"ips": true}, "ipam": {"type": "theirs"}}]}"#;
    let scratch = Scratch::new();
    scratch.write("net.d/10-x.conflist", text);
    let said = scratch.call(&["lint"]).failed(1);
    assert!(!said.stdout.contains("capability"), "{}", said.stdout);
}

/// ADD ignores it, as the reference does.
#[test]
fn a_backend_that_nothing_has_is_told() {
    let scratch = Scratch::new();
    let list = r#"{"cniVersion": "1.1.0", "name": "x", "plugins": [
        {"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}},
        {"type": "firewall", "backend": "nft"}]}"#;
    scratch.write("net.d/10-x.conflist", list);
    let said = scratch.call(&["lint"]).succeeded();
    assert!(
        said.stdout.contains("warning: plugin \"firewall\": backend \"nft\" is ignored"),
        "{said:#?}"
    );
    scratch.call(&["lint", "--strict"]).failed(1);
    for known in ["iptables", "firewalld", "nftables"] {
        scratch.write("net.d/10-x.conflist", &list.replace("\"nft\"", &format!("{known:?}")));
        scratch.call(&["lint", "--strict"]).succeeded();
    }
}

#[test]
fn names_and_versions_are_looked_at() {
    check(
        r#"{"name": "x y", "plugins": [{"type": "loopback"}]}"#,
        1,
        expect![[r#"
        error: invalid characters found in network name
          --> SCRATCH/net.d/10-x.conflist:1:10
          |
        1 | {"name": "x y", "plugins": [{"type": "loopback"}]}
          |          ^
          hint: letters, digits, `_`, `.` and `-` are allowed, the first a letter or digit

        warning: without `cniVersion` the version is 0.1.0, which has no CHECK, GC or STATUS
          --> SCRATCH/net.d/10-x.conflist
          hint: add "cniVersion": "1.1.0"

        1 file looked at: 1 error, 1 warning
    "#]],
    );
    check(
        r#"{"cniVersion": "1.0", "name": "x", "plugins": [{"type": "loopback"}]}"#,
        1,
        expect![[r#"
            error: no plugin supports version "1.0"
              --> SCRATCH/net.d/10-x.conflist:1:16
              |
            1 | {"cniVersion": "1.0", "name": "x", "plugins": [{"type": "loopback"}]}
              |                ^
              hint: the versions are 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0

            1 file looked at: 1 error, 0 warnings
        "#]],
    );
}

#[test]
fn a_shadowed_file_is_told() {
    let scratch = Scratch::new();
    let document = r#"{"cniVersion": "1.1.0", "name": "x", "plugins": [{"type": "loopback"}]}"#;
    scratch.write("net.d/10-a.conflist", document);
    scratch.write("net.d/20-b.conflist", document);
    let said = scratch.call(&["lint"]).succeeded();
    expect![[r#"
        warning: network "x" is defined by SCRATCH/net.d/10-a.conflist before this file
          --> SCRATCH/net.d/20-b.conflist
          hint: runtimes use the first file in the order of names

        2 files looked at: 0 errors, 1 warning
    "#]]
    .assert_eq(&scratch.plain(&said.stdout));
    scratch.call(&["lint", "--strict"]).failed(1);
}

#[test]
fn programs_get_places_as_numbers() {
    let scratch = Scratch::new();
    scratch.write("net.d/10-a.conflist", "{\n  \"name\": 1}");
    let json = scratch.call(&["lint", "-o", "json"]).failed(1).json();
    let finding = &json["findings"][0];
    assert_eq!(finding["severity"], "error");
    assert_eq!(finding["line"], 2, "{json}");
    assert!(finding["message"].as_str().unwrap().contains("invalid name type"), "{json}");
}

#[test]
fn a_path_that_leads_nowhere_is_an_error() {
    let scratch = Scratch::new();
    let said = scratch.call(&["lint", "/nonexistent/file"]).failed(1);
    assert!(said.stderr.starts_with("error: /nonexistent/file does not exist\n"));
}
