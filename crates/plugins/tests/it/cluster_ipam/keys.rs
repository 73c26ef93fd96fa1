//! Each key, as the daemon receives it.

use std::fs;
use std::os::unix::fs::symlink;

use cni::json::UnknownKey;
use serde_json::{Value, json};

use super::{addresses, asked, call};
use crate::support::Node;
use crate::support::cluster::Daemon;

/// What the daemon receives of this configuration's network, and the result.
fn assigned(node: &Node, ipam: &Value, args: &str) -> (Value, Value) {
    let daemon = Daemon::start(node);
    let c1 = node.container("c1");
    let mut ipam = ipam.clone();
    ipam["type"] = json!("whereabouts");
    let result = call(node, "ADD", &c1, &ipam).args(args).call().ok();
    call(node, "DEL", &c1, &ipam).call().silent();
    let heard = daemon.heard();
    let node_api::ipam::Request::Assign(assign) = &heard[0] else { panic!("{heard:?}") };
    (serde_json::to_value(assign).unwrap(), result)
}

/// Cases of Whereabouts' keys, one after the other: the configuration, the daemon's request, and
/// the addresses that result.
#[test]
fn whereabouts_keys_mean_what_they_meant() {
    testkit::require!("root");
    let node = Node::new("cluster-keys");
    for (ipam, network, ips) in [
        (
            json!({ "range": "192.0.2.77/24" }),
            json!({ "ranges": [{ "subnet": "192.0.2.0/24" }] }),
            vec!["192.0.2.1/24"],
        ),
        (
            json!({ "range": "192.0.2.10-192.0.2.20/24" }),
            json!({ "ranges": [{ "subnet": "192.0.2.0/24", "first": "192.0.2.10", "last": "192.0.2.20" }] }),
            vec!["192.0.2.10/24"],
        ),
        (
            json!({ "range": "2001:db8::10-2001:db8::20/64" }),
            json!({ "ranges": [{ "subnet": "2001:db8::/64", "first": "2001:db8::10", "last": "2001:db8::20" }] }),
            vec!["2001:db8::10/64"],
        ),
        (
            json!({ "range": "192.0.2.0/24", "range_start": "192.0.2.100", "range_end": "192.0.2.101", "gateway": "192.0.2.100" }),
            json!({ "ranges": [{
                "subnet": "192.0.2.0/24", "first": "192.0.2.100", "last": "192.0.2.101", "gateway": "192.0.2.100",
            }] }),
            vec!["192.0.2.101/24"],
        ),
        (
            json!({ "range": "192.0.2.0/24", "exclude": ["192.0.2.0/30", "192.0.2.4"] }),
            json!({ "ranges": [{ "subnet": "192.0.2.0/24", "exclude": ["192.0.2.0/30", "192.0.2.4/32"] }] }),
            vec!["192.0.2.5/24"],
        ),
        (
            json!({
                "range": "192.0.2.0/24",
                "ipRanges": [
                    { "range": "2001:db8::/64", "exclude": ["2001:db8::/126"] },
                    { "range": "198.51.100.0/24", "range_start": "198.51.100.9", "gateway": "198.51.100.254" },
                ],
                "gateway": "192.0.2.254",
            }),
            json!({ "ranges": [
                { "subnet": "192.0.2.0/24", "gateway": "192.0.2.254" },
                { "subnet": "2001:db8::/64", "exclude": ["2001:db8::/126"] },
                { "subnet": "198.51.100.0/24", "first": "198.51.100.9", "gateway": "198.51.100.254" },
            ] }),
            vec!["192.0.2.1/24", "2001:db8::4/64", "198.51.100.9/24"],
        ),
        (
            json!({ "range": "192.0.2.0/24", "network_name": "blue", "enable_overlapping_ranges": false }),
            json!({ "space": "blue", "overlapping": false, "ranges": [{ "subnet": "192.0.2.0/24" }] }),
            vec!["192.0.2.1/24"],
        ),
        (
            json!({ "range": "10.0.0.0/8", "node_slice_size": "/26" }),
            json!({ "ranges": [{ "subnet": "10.0.0.0/8" }], "blockV4": 26, "blockV6": 122 }),
            vec!["10.0.0.1/8"],
        ),
        // A node's blocks need not be as large as its slice was: it takes another when one is full.
        (
            json!({ "range": "10.0.0.0/8", "node_slice_size": "22" }),
            json!({ "ranges": [{ "subnet": "10.0.0.0/8" }], "blockV4": 22, "blockV6": 118 }),
            vec!["10.0.0.1/8"],
        ),
        (
            json!({ "range": "10.0.0.0/8", "node_slice_size": "/16" }),
            json!({ "ranges": [{ "subnet": "10.0.0.0/8" }], "blockV4": 22, "blockV6": 118 }),
            vec!["10.0.0.1/8"],
        ),
        (
            json!({ "range": "fd00::/64", "blockSize": 124, "sticky": true }),
            json!({ "ranges": [{ "subnet": "fd00::/64" }], "blockV4": 28, "blockV6": 124, "sticky": true }),
            vec!["fd00::1/64"],
        ),
        (
            json!({
                "range": "192.0.2.0/24",
                "kubernetes": { "kubeconfig": "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig" },
                "datastore": "etcd", "etcd_host": "e:2379", "etcd_username": "u", "etcd_password": "p", "etcd_key_file": "/k",
                "etcd_cert_file": "/c", "etcd_ca_cert_file": "/ca", "log_file": "/tmp/whereabouts.log", "log_level": "debug",
                "leader_lease_duration": 1500, "leader_renew_deadline": 1000, "leader_retry_period": 500, "sleep_for_race": 5,
                "reconciler_cron_expression": "30 4 * * *",
            }),
            json!({ "ranges": [{ "subnet": "192.0.2.0/24" }] }),
            vec!["192.0.2.1/24"],
        ),
    ] {
        let (assign, result) = assigned(&node, &ipam, "");
        let mut wanted = json!({ "network": "n", "overlapping": true });
        wanted.as_object_mut().unwrap().extend(network.as_object().unwrap().clone());
        assert_eq!(assign["network"], wanted, "{ipam}");
        assert_eq!(addresses(&result), ips, "{ipam}");
    }
}

#[test]
fn routes_names_gateways_and_fixed_addresses_are_in_the_result() {
    testkit::require!("root");
    let node = Node::new("cluster-result");
    let ipam = json!({
        "ipRanges": [{ "range": "10.1.0.0/24" }, { "range": "fd00:1::/64" }], "gateway": "10.1.0.1",
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "198.51.100.0/24", "gw": "10.1.0.254" }],
        "dns": { "nameservers": ["192.0.2.53"], "search": ["example.com"] },
        "addresses": [{ "address": "192.0.2.9/24", "gateway": "192.0.2.1" }, { "address": "10.1.0.2/24" }],
    });
    let (assign, result) = assigned(&node, &ipam, "");
    assert_eq!(
        result["ips"],
        json!([
            // 10.1.0.2 is the second of the fixed addresses: no container gets it from the range.
            { "address": "10.1.0.3/24", "gateway": "10.1.0.1" },
            { "address": "fd00:1::1/64" },
            { "address": "192.0.2.9/24", "gateway": "192.0.2.1" },
            { "address": "10.1.0.2/24" },
        ])
    );
    assert_eq!(result["routes"], ipam["routes"]);
    assert_eq!(result["dns"], ipam["dns"]);
    assert_eq!(assign["wanted"], Value::Null);
    // One gateway of each family.
    let ipam = json!({ "ipRanges": ipam["ipRanges"], "gateway": "fd00:1::1, 10.1.0.1" });
    let (_, result) = assigned(&node, &ipam, "");
    assert_eq!(
        (&result["ips"][0]["gateway"], &result["ips"][1]["gateway"]),
        (&json!("10.1.0.1"), &json!("fd00:1::1"))
    );
}

#[test]
fn addresses_that_are_asked_for() {
    testkit::require!("root");
    let node = Node::new("cluster-wanted");
    let ipam = json!({ "ipRanges": [{ "range": "10.1.0.0/24", "range_end": "10.1.0.99" }, { "range": "fd00:1::/64" }] });
    let (assign, result) = assigned(
        &node,
        &ipam,
        "IP=10.1.0.77/24,192.0.2.9/24;GATEWAY=10.1.0.1,192.0.2.1;IgnoreUnknown=1;X=1",
    );
    assert_eq!(assign["wanted"], json!(["10.1.0.77"]));
    // An address of no range is assigned beside the others, as with Whereabouts.
    assert_eq!(
        result["ips"],
        json!([
            { "address": "10.1.0.77/24", "gateway": "10.1.0.1" },
            { "address": "fd00:1::1/64" },
            { "address": "192.0.2.9/24", "gateway": "192.0.2.1" },
        ])
    );
    let daemon = Daemon::start(&node);
    let c1 = node.container("c1");
    let mut ours = ipam.clone();
    ours["type"] = json!("cluster-ipam");
    let ask = |keys: Value| call(&node, "ADD", &c1, &ours).config(keys).call();
    let result = ask(json!({ "runtimeConfig": { "ips": ["fd00:1::9/64", "10.1.0.9"] } })).ok();
    assert_eq!(addresses(&result), ["10.1.0.9/24", "fd00:1::9/64"]);
    // Our daemon passes the addresses twice: by capability and, for older plugins, by CNI_ARGS.
    let both = json!({ "runtimeConfig": { "ips": ["10.1.0.9/24"] }, "args": { "cni": { "ips": ["10.1.0.9"] } } });
    call(&node, "ADD", &c1, &ours).config(both).args("IP=10.1.0.9/24").call().ok();
    daemon.heard();
    for (keys, code, words) in [
        (
            json!({ "runtimeConfig": { "ips": ["10.1.0.100/24"] } }),
            102,
            "the address 10.1.0.100 is asked for, which no range gives",
        ),
        (json!({ "runtimeConfig": { "ips": ["10.1.0.0/24"] } }), 102, "which no range gives"),
        (
            json!({ "runtimeConfig": { "ips": ["10.1.0.8", "10.1.0.9"] } }),
            102,
            "10.1.0.9 is asked for beside another of its range",
        ),
        (
            json!({ "runtimeConfig": { "ips": ["tea"] } }),
            7,
            "runtimeConfig.ips: \"tea\" is no address",
        ),
        (
            json!({ "args": { "cni": { "ips": ["tea"] } } }),
            7,
            "args.cni.ips: \"tea\" is no address",
        ),
    ] {
        ask(keys).fails(code, words);
    }
    let args = |args: &str| call(&node, "ADD", &c1, &ours).args(args).call();
    args("IP=tea").fails(4, "invalid CIDR tea");
    args("IP=192.0.2.9").fails(102, "which no range gives");
    args("GATEWAY=tea").fails(4, "GATEWAY of CNI_ARGS: tea is no address");
    args("X=1").fails(4, "X");
    assert_eq!(daemon.words(), [""; 0], "the daemon is not asked");
    // No host can have these in the subnet of a range, or anywhere.
    let c3 = node.container("c3");
    for (wanted, what) in [
        ("10.1.0.255/24", "10.1.0.255 is the broadcast address of 10.1.0.0/24"),
        ("10.1.0.255/32", "10.1.0.255 is the broadcast address of 10.1.0.0/24"),
        ("192.0.2.0/24", "192.0.2.0 is the network address of 192.0.2.0/24"),
        ("fd00:1::/64", "fd00:1:: is the address of the routers of fd00:1::/64"),
        ("224.0.0.7/24", "224.0.0.7 is a multicast address"),
        ("ff02::7/64", "ff02::7 is a multicast address"),
        ("127.0.0.5/8", "127.0.0.5 is a loopback address"),
        ("::1/128", "::1 is the loopback address"),
    ] {
        args(&format!("IP={wanted}")).fails(7, what);
        let mut named = ours.clone();
        named["addresses"] = json!([{ "address": wanted }]);
        for verb in ["ADD", "STATUS"] {
            call(&node, verb, &c3, &named).call().fails(7, what);
        }
        call(&node, "DEL", &c3, &named).call().silent();
    }
    let said = daemon.words();
    assert!(said.iter().all(|word| *word == "release"), "{said:?}");
    // A pair of addresses has no ends.
    assert_eq!(addresses(&args("IP=192.0.2.9/31").ok())[2], "192.0.2.9/31");
    // An address that another container has is refused in the daemon's words.
    let c2 = node.container("c2");
    let taken = call(&node, "ADD", &c2, &ours).args("IP=10.1.0.9/24").call();
    taken.fails(102, "address 10.1.0.9 is taken");
}

#[test]
fn a_file_has_what_the_definition_does_not_say() {
    testkit::require!("root");
    let node = Node::new("cluster-flat");
    let usual = "/etc/cni/net.d/whereabouts.d/whereabouts.conf";
    let write = |path: &str, keys: Value| {
        let file = node.lab.path(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, keys.to_string()).unwrap();
    };
    write(
        usual,
        json!({ "datastore": "kubernetes", "range": "192.0.2.0/24", "network_name": "blue", "gateway": "192.0.2.9" }),
    );
    let (assign, _) =
        assigned(&node, &json!({ "range": "192.0.2.128/25", "gateway": "192.0.2.200" }), "");
    assert_eq!(
        assign["network"],
        json!({ "network": "n", "space": "blue", "overlapping": true, "ranges": [{ "subnet": "192.0.2.128/25", "gateway": "192.0.2.200" }] })
    );
    // The second place has precedence over the first, and a file that the configuration names has
    // precedence over both.
    write(
        "/etc/kubernetes/cni/net.d/whereabouts.d/whereabouts.conf",
        json!({ "range": "198.51.100.0/24" }),
    );
    let (assign, _) = assigned(&node, &json!({}), "");
    assert_eq!(assign["network"]["ranges"], json!([{ "subnet": "198.51.100.0/24" }]));
    write("/etc/mine.conf", json!({ "range": "203.0.113.0/24", "sticky": true }));
    let (assign, _) = assigned(&node, &json!({ "configuration_path": "/etc/mine.conf" }), "");
    assert_eq!(
        (&assign["network"]["ranges"], &assign["network"]["sticky"]),
        (&json!([{ "subnet": "203.0.113.0/24" }]), &json!(true))
    );
}

#[test]
fn a_file_that_is_none_is_not_read() {
    testkit::require!("root");
    let node = Node::new("cluster-flat-bad");
    let daemon = Daemon::start(&node);
    let c1 = node.container("c1");
    let (good, path) = (r#"{"range": "192.0.2.0/24"}"#, node.lab.path("/etc/own.conf"));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let add = |named: &str| {
        call(&node, "ADD", &c1, &json!({ "type": "whereabouts", "configuration_path": named }))
            .call()
    };
    add("/etc/own.conf").fails(7, "ipam.configuration_path: there is no file \"/etc/own.conf\"");
    add("own.conf").fails(7, "\"own.conf\" is not absolute");
    add("/etc").fails(7, "/etc: is no file");
    fs::write(node.lab.path("/etc/real.conf"), good).unwrap();
    symlink("real.conf", &path).unwrap();
    add("/etc/own.conf").fails(7, "is a symbolic link, which is not followed");
    fs::remove_file(&path).unwrap();
    node.sh("mkfifo /etc/own.conf");
    add("/etc/own.conf").fails(7, "is no file");
    fs::remove_file(&path).unwrap();
    fs::write(&path, format!("{good}{}", " ".repeat(64 * 1024))).unwrap();
    add("/etc/own.conf").fails(7, "is longer than 65536 bytes");
    // The error shows nothing of the file's contents.
    fs::write(&path, "{\"range\": {\"secret\": \"hunter2\"}}").unwrap();
    let error = add("/etc/own.conf").error();
    assert!(error.msg.contains("line 1, column 11, range: is not as it should be"), "{error:?}");
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    fs::write(&path, good).unwrap();
    for (change, back) in [("chmod 666", "chmod 644"), ("chown 65534", "chown 0")] {
        node.sh(&format!("{change} /etc/own.conf"));
        add("/etc/own.conf").fails(7, "can be written by others than root");
        node.sh(&format!("{back} /etc/own.conf"));
    }
    assert_eq!(daemon.words(), [""; 0]);
    // The file names the daemon's socket, too; DEL succeeds when the file is gone.
    fs::write(&path, json!({ "range": "192.0.2.0/24", "socket": "/nowhere.sock" }).to_string())
        .unwrap();
    let gone = call(&node, "ADD", &c1, &json!({ "configuration_path": "/etc/own.conf" }));
    gone.deadline(std::time::Duration::from_secs(5))
        .call()
        .fails(11, "connect to \"/nowhere.sock\"");
    fs::remove_file(&path).unwrap();
    let del = json!({ "type": "whereabouts", "configuration_path": "/etc/own.conf" });
    call(&node, "DEL", &c1, &del).call().silent();
    assert_eq!(daemon.words(), ["release"]);
}

#[test]
fn another_socket() {
    testkit::require!("root");
    let node = Node::new("cluster-socket");
    let daemon = Daemon::start(&node);
    let c1 = node.container("c1");
    let socket = crate::support::cluster::socket(&node);
    let elsewhere = node.dir("elsewhere").join("s");
    fs::rename(socket, &elsewhere).unwrap();
    let ipam = json!({ "type": "cluster-ipam", "range": "192.0.2.0/24", "socket": elsewhere });
    call(&node, "ADD", &c1, &ipam).call().ok();
    assert_eq!(asked(&daemon).owner.container, "c1");
    call(&node, "DEL", &c1, &ipam).call().silent();
    assert_eq!(daemon.words(), ["release"]);
    fs::rename(&elsewhere, crate::support::cluster::socket(&node)).unwrap();
}

#[test]
fn lint_is_told_what_is_not_read() {
    let plugin = plugins::find("cluster-ipam").unwrap();
    let config = r#"{"type":"bridge","bridge":"b","ipam":{"type":"whereabouts","range":"192.0.2.0/24","rnge":1,
        "ipRanges":[{"range":"192.0.2.0/24","subnet":"x"}],"kubernetes":{"kubeconfig":"/k","k8s_api_root":""}}}"#;
    let unknown = plugin.unknown_keys(config).unwrap();
    let names: Vec<_> =
        unknown.iter().map(|key: &UnknownKey| (key.parent.as_str(), key.key.as_str())).collect();
    assert_eq!(names, [("ipam", "rnge"), ("ipam.ipRanges[0]", "subnet")]);
    let ignored: Vec<_> = plugin.ignored_keys().iter().map(|(key, _)| *key).collect();
    assert!(ignored.contains(&"kubernetes") && ignored.contains(&"sleep_for_race"), "{ignored:?}");
    // The plugin accepts each of these keys.
    let all: Vec<_> = ignored.iter().map(|key| format!("\"{key}\":1")).collect();
    let config = format!("{{\"ipam\":{{{}}}}}", all.join(","));
    assert_eq!(plugin.unknown_keys(&config).unwrap().len(), 0);
}
