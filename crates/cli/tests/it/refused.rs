//! `lint` and `status` report what ADD always refuses, before ADD does.
//!
//! Docker's `network create` makes the same checks; its table is beside it
//! (`docker-service/src/create_options.rs`).

use serde_json::{Value, json};
use testkit::{Lab, Place};

use crate::support::{call_in, said};

/// How `lint` rates a problem.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Lint {
    /// It is a mistake on every host.
    Error,
    /// The reason lies in this host, and the file may be for another host.
    Warning,
}
use Lint::{Error, Warning};

/// The plugins of a list, the rating, words of the message, and the key that it names.
type Row = (Value, Lint, &'static str, &'static str);

fn pool() -> Value {
    json!({ "type": "host-local", "subnet": "10.1.0.0/24" })
}

fn with(mut plugin: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        plugin[key] = value.clone();
    }
    plugin
}

fn bridge(more: &Value) -> Value {
    with(json!({ "type": "bridge", "bridge": "br0", "ipam": pool() }), more)
}

fn ovs(more: &Value) -> Value {
    with(json!({ "type": "ovs", "bridge": "br0", "ipam": pool() }), more)
}

/// `flannel` completes the configuration of `bridge` by what flanneld says of the node.
fn flannel(delegate: &Value) -> Value {
    json!({ "type": "flannel", "subnetFile": "/etc/subnet.env", "delegate": delegate })
}

/// A plugin that makes one link on parent `eth0`, whose MTU is 1500.
fn on(plugin: &str, more: &Value) -> Value {
    with(json!({ "type": plugin, "master": "eth0", "ipam": pool() }), more)
}

fn rows() -> Vec<Row> {
    let host_bits = json!({ "ipam": { "type": "host-local", "subnet": "10.1.0.5/24" } });
    let uplinks = json!({ "type": "host-local", "subnet": "198.51.100.0/24" });
    let trunk = json!([{ "minID": 20, "maxID": 10 }]);
    let long = "abcdefghijklmnopqrstuvwxyz";
    let folder = |dir: &str| {
        let ipam = json!({ "type": "host-local", "subnet": "10.1.0.0/24", "dataDir": dir });
        bridge(&json!({ "ipam": ipam }))
    };
    let mut rows: Vec<Row> = vec![
        (bridge(&host_bits), Error, "write 10.1.0.0/24", "subnet"),
        (bridge(&json!({ "vlan": 5000 })), Error, "invalid VLAN ID 5000", "vlan"),
        (on("vlan", &json!({ "vlanId": 5000 })), Error, "invalid VLAN ID 5000", "vlanId"),
        (ovs(&json!({ "vlan": 5000 })), Error, "incorrect vlan parameter: 5000", "vlan"),
        (bridge(&json!({ "vlanTrunk": trunk })), Error, "minID is greater", "vlanTrunk"),
        (ovs(&json!({ "trunk": trunk })), Error, "minID is greater", "trunk"),
        (ovs(&json!({ "ofport_request": 0 })), Error, "invalid ofport_request 0", "ofport_request"),
        (
            ovs(&json!({ "tunnel": { "type": "gre", "vni": 5, "remotes": ["192.0.2.1"] } })),
            Error,
            "unknown tunnel type \"gre\"",
            "tunnel",
        ),
        (bridge(&json!({ "bridge": long })), Error, "invalid bridge name", "bridge"),
        (
            ovs(&json!({ "bridge": long, "createBridge": true })),
            Error,
            "invalid bridge name",
            "bridge",
        ),
        (
            bridge(&json!({ "bridge": "eth0" })),
            Warning,
            "\"eth0\" already exists but is not a bridge",
            "",
        ),
        (
            flannel(&json!({ "bridge": "eth0" })),
            Warning,
            "\"eth0\" already exists but is not a bridge",
            "",
        ),
        (flannel(&json!({ "mtu": 99999 })), Error, "invalid MTU", "mtu"),
        (flannel(&json!({ "name": "x" })), Error, "must not have 'name' field", "delegate"),
        (
            bridge(&json!({ "isGateway": true, "ipam": uplinks })),
            Warning,
            "which is on the host's link \"eth0\"",
            "",
        ),
        (
            json!({ "type": "ptp", "ipam": uplinks }),
            Warning,
            "which is on the host's link \"eth0\"",
            "",
        ),
        (folder("/etc/plain/file"), Warning, "/etc/plain: it is not a folder", "dataDir"),
        (folder("/etc/sealed/file"), Warning, "Read-only file system", "dataDir"),
        (json!({ "type": "host-local", "ipam": pool() }), Error, "hands out addresses", ""),
        (json!({ "type": "portmap" }), Error, "but is the first", ""),
        (json!({ "type": "locked" }), Error, "/opt/cni/bin/locked", ""),
        (bridge(&json!({ "ipam": { "type": "locked" } })), Error, "/opt/cni/bin/locked", ""),
        (json!({ "type": "later" }), Error, "9.9.9", ""),
    ];
    for mtu in [1, 99999] {
        for plugin in
            [bridge(&json!({})), ovs(&json!({})), json!({ "type": "ptp", "ipam": pool() })]
        {
            rows.push((with(plugin, &json!({ "mtu": mtu })), Error, "invalid MTU", "mtu"));
        }
        for plugin in ["macvlan", "ipvlan", "tap"] {
            rows.push((on(plugin, &json!({ "mtu": mtu })), Error, "invalid MTU", "mtu"));
        }
    }
    rows.push((on("vlan", &json!({ "vlanId": 5, "mtu": 99999 })), Error, "invalid MTU", "mtu"));
    for plugin in ["macvlan", "ipvlan", "vlan"] {
        let above = json!({ "vlanId": 5, "mtu": 9000 });
        rows.push((on(plugin, &above), Warning, "must be [0, master MTU(1500)]", "mtu"));
    }
    rows
}

/// A host with a link, a folder that no process can write to, and two foreign plugins that do not
/// serve.
fn host(name: &str) -> Lab {
    let lab = Lab::new(name);
    lab.sh("mkdir -p /etc/cni/net.d /etc/sealed /opt/cni/bin && touch /etc/plain && \
         printf 'FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n' \
           >/etc/subnet.env && \
         mount -t tmpfs -o ro sealed /etc/sealed && \
         ip link add eth0 type veth peer name far && ip link set eth0 up && ip link set far up && \
         ip addr add 198.51.100.10/24 dev eth0");
    let script =
        "#!/bin/sh\\necho '{\"cniVersion\":\"9.9.9\",\"supportedVersions\":[\"9.9.9\"]}'\\n";
    lab.sh(&format!(
        "printf '%b' '{}' > /opt/cni/bin/later && cp /opt/cni/bin/later /opt/cni/bin/locked && \
         chmod 0755 /opt/cni/bin/later && chmod 0644 /opt/cni/bin/locked",
        script.replace('\'', "'\\''")
    ));
    lab
}

fn write(lab: &Lab, name: &str, version: &str, plugin: &Value) {
    let list = json!({ "cniVersion": version, "name": name, "plugins": [plugin] });
    let path = lab.path(format!("/etc/cni/net.d/{name}.conflist"));
    std::fs::write(path, list.to_string()).unwrap();
}

#[test]
fn what_add_always_refuses_is_said_before() {
    testkit::require!("root");
    let lab = host("cli-refused");
    let _c1 = lab.container("c1");
    let before = lab.sh("ip -o link");
    let mut accepted = Vec::new();
    for (plugin, lint, words, key) in rows() {
        for version in ["1.0.0", "1.1.0"] {
            write(&lab, "x", version, &plugin);
            let mut wrong = |who: &str, said: &dyn std::fmt::Debug| {
                accepted.push(format!("{who}, {version}: {plugin}: {said:?}"));
            };
            let linted = call_in(&lab, &["lint"]);
            let (code, severity) = match lint {
                Error => (1, "error: "),
                Warning => (0, "warning: on this host "),
            };
            if linted.code != code
                || !linted.stdout.contains(severity)
                || !linted.stdout.contains(words)
                || !(key.is_empty()
                    || linted.stdout.contains(&format!("key {key:?}"))
                    || linted.stdout.contains(&format!("key \"{key}.")))
            {
                wrong("lint", &linted);
            }
            let status = call_in(&lab, &["status", "x"]);
            if status.code == 0
                || !status.stdout.contains("not ready")
                || !status.stdout.contains(words)
            {
                wrong("status", &status);
            }
            let add = call_in(&lab, &["add", "x", "c1"]);
            if add.code == 0 {
                wrong("add", &add);
            }
        }
    }
    assert!(accepted.is_empty(), "{}", accepted.join("\n"));
    assert_eq!(lab.sh("ip -o link"), before);
}

/// Two lists may share a bridge, unless both give it addresses that exclude each other.
#[test]
fn two_lists_on_one_bridge_with_different_subnets_are_told() {
    testkit::require!("root");
    let lab = host("cli-two-lists");
    let (_c1, _c2) = (lab.container("c1"), lab.container("c2"));
    let on = |subnet: &str, more: &Value| {
        let ipam = json!({ "type": "host-local", "subnet": subnet });
        with(bridge(&json!({ "isGateway": true, "ipam": ipam })), more)
    };
    write(&lab, "a", "1.1.0", &on("10.1.0.0/24", &json!({})));
    for same in [on("10.1.0.0/24", &json!({})), on("10.2.0.0/24", &json!({ "vlan": 7 }))] {
        write(&lab, "b", "1.1.0", &same);
        assert!(!call_in(&lab, &["lint"]).succeeded().stdout.contains("different subnets"));
    }
    write(&lab, "b", "1.1.0", &on("10.2.0.0/24", &json!({})));
    let words = "are on bridge \"br0\" with different subnets, as 10.2.0.1/24 and 10.1.0.1/24";
    assert!(call_in(&lab, &["lint"]).succeeded().stdout.contains(words));
    assert!(call_in(&lab, &["status", "b"]).succeeded().stdout.contains(words));
    call_in(&lab, &["add", "a", "c1"]).succeeded();
    let status = call_in(&lab, &["status", "b"]);
    assert!(
        status.code != 0 && status.stdout.contains("\"br0\" already has an IP address"),
        "{status:?}"
    );
    assert_ne!(call_in(&lab, &["add", "b", "c2"]).code, 0);
    call_in(&lab, &["status", "a"]).succeeded();
    call_in(&lab, &["del", "a", "c1"]).succeeded();
    call_in(&lab, &["add", "b", "c2"]).succeeded();
}

/// Two lists may have one subnet on two bridges only if the host routes to the containers of one, or
/// by two tables.
#[test]
fn two_lists_with_one_subnet_on_two_bridges_are_told() {
    testkit::require!("root");
    let lab = host("cli-one-subnet");
    let (_c1, _c2, _c3) = (lab.container("c1"), lab.container("c2"), lab.container("c3"));
    let on = |name: &str, subnet: &str, more: &Value| {
        let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": subnet }]] });
        let keys = json!({ "bridge": name, "isGateway": true, "ipam": ipam });
        with(bridge(&keys), more)
    };
    write(&lab, "a", "1.1.0", &on("br0", "10.1.0.0/24", &json!({})));
    for apart in [
        on("br1", "10.1.0.0/24", &json!({ "isGateway": false })),
        on("br1", "10.1.0.0/24", &json!({ "vrf": "blue" })),
        on("br1", "10.2.0.0/24", &json!({})),
        with(on("br1", "10.1.0.0/24", &json!({})), &json!({ "type": "ptp" })),
    ] {
        write(&lab, "b", "1.1.0", &apart);
        assert!(!call_in(&lab, &["lint"]).stdout.contains("on two bridges"), "{apart}");
    }
    write(&lab, "b", "1.1.0", &on("br1", "10.1.0.0/16", &json!({})));
    let words = "have subnets 10.1.0.0/16 and 10.1.0.0/24, which overlap, on two bridges";
    assert!(call_in(&lab, &["lint"]).succeeded().stdout.contains(words));
    write(&lab, "b", "1.1.0", &on("br1", "10.1.0.0/24", &json!({})));
    let words =
        "networks \"b\" and \"a\" both have subnet 10.1.0.0/24 on two bridges, \"br1\" and \"br0\"";
    assert!(call_in(&lab, &["lint"]).succeeded().stdout.contains(words));
    assert!(call_in(&lab, &["status", "b"]).succeeded().stdout.contains(words));
    call_in(&lab, &["add", "a", "c1"]).succeeded();
    let on_link = "is of subnet 10.1.0.0/24, which is on the host's link \"br0\"";
    for refused in [call_in(&lab, &["status", "b"]), call_in(&lab, &["add", "b", "c2"])] {
        assert!(
            refused.code != 0 && refused.stdout.contains(on_link)
                || refused.stderr.contains(on_link),
            "{refused:?}"
        );
    }
    // A node that has containers of both goes on, and is told.
    write(&lab, "b", "1.1.0", &on("br1", "10.1.0.0/24", &json!({ "allowAddressConflict": true })));
    call_in(&lab, &["add", "b", "c2"]).succeeded();
    write(&lab, "b", "1.1.0", &on("br1", "10.1.0.0/24", &json!({})));
    call_in(&lab, &["add", "b", "c3"]).succeeded();
    let status = call_in(&lab, &["status", "b"]).succeeded();
    assert!(status.stdout.contains(words), "{status:?}");
    let looked = call_in(&lab, &["doctor"]).stdout;
    assert_eq!(looked.matches("x subnet-taken").count(), 1, "{looked}");
    assert!(looked.contains("network \"b\" has 10.1.0.0/24, which br0 has too"), "{looked}");
}

/// A list may call our plugin by the name that another project gives to it.
#[test]
fn an_alias_behind_an_interface_is_told_as_its_plugin_is() {
    let scratch = crate::support::Scratch::new();
    for name in ["netwright-multi", "multus"] {
        let plugins = json!([bridge(&json!({})), { "type": name, "clusterNetwork": "a" }]);
        let list = json!({ "cniVersion": "1.1.0", "name": "x", "plugins": plugins });
        scratch.write("net.d/x.conflist", &list.to_string());
        let linted = said(scratch.command(&["lint"]));
        let words =
            format!("plugin {name:?} makes an interface of its own and ignores what \"bridge\"");
        assert!(linted.stdout.contains(&words), "{linted:?}");
    }
}
