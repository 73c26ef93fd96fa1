//! ADD.

use std::fs;

use cni::code;
use cni_plugin::codes;
use expect_test::expect;
use serde_json::json;
use testkit::Place;

use super::{add, backup, container, del, everything, files, has_flag, link, prev, sysctl};
use crate::support::{Node, Picture};

/// `tuning | sysctl`
#[test]
fn sysctls_are_set_in_the_namespace() {
    let node = Node::new("tun-sysctl");
    let host = node.sh("sysctl -n net.core.somaxconn");
    let c1 = container(&node, "c1");
    let sysctls = json!({ "sysctl": {
        "net.core.somaxconn": "77",
        "net.ipv4.conf.IFNAME.arp_notify": "1",
        "net/ipv4/conf/IFNAME/arp_ignore": "2",
        "net.ipv4.tcp_rmem": "4096 87380 1000000",
        "net.ipv4.route.flush": "1",
    }});
    add(&node, &c1, &sysctls).call().ok();
    assert_eq!(sysctl(&c1, "net.core.somaxconn"), "77");
    assert_eq!(sysctl(&c1, "net.ipv4.conf.eth0.arp_notify"), "1");
    assert_eq!(sysctl(&c1, "net.ipv4.conf.eth0.arp_ignore"), "2");
    assert_eq!(sysctl(&c1, "net.ipv4.tcp_rmem"), "4096\t87380\t1000000");
    assert_eq!(node.sh("sysctl -n net.core.somaxconn"), host);
    node.run("tuning", "CHECK").to(&c1).prev(&prev()).config(sysctls).call().silent();
}

/// The kernel answers EIO for `stable_secret` until it is written (`linux net/ipv6/addrconf.c`
/// `addrconf_sysctl_stable_secret`), and ADD failed for that.
#[test]
fn a_sysctl_that_cannot_be_read_before_it_is_written_is_set() {
    let node = Node::new("tun-unread");
    let c1 = container(&node, "c1");
    c1.sh("! cat /proc/sys/net/ipv6/conf/eth0/stable_secret");
    let secret = "2001:0db8:0000:0000:0000:0000:0000:0001";
    let sysctls = json!({ "sysctl": {
        "net.ipv6.conf.IFNAME.stable_secret": "2001:db8::1",
        "net.ipv6.conf.default.stable_secret": "2001:db8::1",
        "net.ipv6.route.flush": "1",
        "net.core.somaxconn": "77",
    }});
    let added = add(&node, &c1, &sysctls).call().ok();
    assert_eq!(sysctl(&c1, "net.ipv6.conf.eth0.stable_secret"), secret);
    assert_eq!(sysctl(&c1, "net.ipv6.conf.default.stable_secret"), secret);
    let check = || node.run("tuning", "CHECK").to(&c1).prev(&added).config(sysctls.clone());
    check().call().silent();
    add(&node, &c1, &sysctls).call().ok();
    check().config(json!({ "netwright/repair": true })).call().silent();
    del(&node, &c1).call().silent();
    assert_ne!(sysctl(&c1, "net.core.somaxconn"), "77");
    // A read-only value is refused, and everything is as before.
    let wrong = json!({ "sysctl": { "net.core.somaxconn": "77", "net.ipv6.conf.IFNAME.stable_secret": "x" } });
    add(&node, &c1, &wrong).call().fails(codes::KERNEL, "stable_secret");
    assert_ne!(sysctl(&c1, "net.core.somaxconn"), "77");
}

/// `tuning | sysctl`: dotted interface names.
#[test]
fn interface_names_may_have_dots() {
    let node = Node::new("tun-dots");
    let c1 = container(&node, "c1");
    // An older kernel does not rename a link that is up.
    c1.sh("ip link set eth0 down; ip link set eth0 name eth0.100; ip link set eth0.100 up");
    let config = json!({ "mtu": 1400, "sysctl": {
        "net.ipv4.conf.IFNAME.arp_notify": "1",
        "net/ipv4/conf/eth0.100/arp_ignore": "2",
        "net.ipv4.conf.eth0/100.arp_announce": "2",
    }});
    add(&node, &c1, &config).ifname("eth0.100").call().ok();
    for (name, value) in [("arp_notify", "1"), ("arp_ignore", "2"), ("arp_announce", "2")] {
        assert_eq!(sysctl(&c1, &format!("net/ipv4/conf/eth0.100/{name}")), value);
    }
    assert!(node.lab.path("/run/cni/tuning/c1_eth0.100.json").exists());
    del(&node, &c1).ifname("eth0.100").call().silent();
    assert_eq!(sysctl(&c1, "net/ipv4/conf/eth0.100/arp_notify"), "0");
}

/// `tuning | sysctl guard`
#[test]
fn nothing_outside_net_can_be_set() {
    let node = Node::new("tun-guard");
    let c1 = container(&node, "c1");
    let before = Picture::of(&c1);
    for key in
        ["kernel.hostname", "net/../kernel/hostname", "net/ipv4/../../kernel/hostname", "vm.x"]
    {
        let config = json!({ "mtu": 1400, "sysctl": { "net.core.somaxconn": "77", key: "1" } });
        add(&node, &c1, &config).call().fails(code::INVALID_CONFIG, "invalid net sysctl key: ");
    }
    before.assert_same(&Picture::of(&c1));
}

/// `tuning | allowlist`
#[test]
fn the_allowlist_is_enforced() {
    let node = Node::new("tun-allow");
    let c1 = container(&node, "c1");
    let allowlist = node.lab.path("/etc/cni/tuning/allowlist.conf");
    fs::create_dir_all(allowlist.parent().unwrap()).unwrap();
    fs::write(&allowlist, "^net\\.core\\.[a-z]+$\n\n  conf\\.IFNAME\\.arp_  \n").unwrap();
    let set = |key: &str| add(&node, &c1, &json!({ "sysctl": { key: "1" } })).call();
    set("net.core.somaxconn").ok();
    set("net.ipv4.conf.IFNAME.arp_notify").ok();
    set("net.ipv4.ip_forward").fails(
        code::INVALID_CONFIG,
        r"Sysctl net.ipv4.ip_forward is not allowed. Only the following sysctls are allowed: [^net\.core\.[a-z]+$ conf\.IFNAME\.arp_]",
    );
    assert_eq!(sysctl(&c1, "net.ipv4.ip_forward"), "0");
    let status = || node.run("tuning", "STATUS").call();
    status().silent();

    fs::write(&allowlist, "net.(core\n").unwrap();
    let words =
        "sysctl allowlist \"/etc/cni/tuning/allowlist.conf\" line 1: invalid pattern \"net.(core\"";
    set("net.core.somaxconn").fails(code::INVALID_CONFIG, words);
    status().fails(code::PLUGIN_NOT_AVAILABLE, words);
    // Requests without sysctls still succeed.
    add(&node, &c1, &json!({ "mtu": 1400 })).call().ok();

    fs::remove_file(&allowlist).unwrap();
    set("net.ipv4.ip_forward").ok();
}

/// `tuning | mac/mtu/promisc/allmulti/txQLen`, `tuning | result mac`, `tuning | backup file`
#[test]
fn the_link_is_changed_and_what_it_was_is_kept() {
    let node = Node::new("tun-link");
    let c1 = container(&node, "c1");
    let result = add(&node, &c1, &everything()).call().ok();
    let now = link(&c1);
    assert_eq!(now["address"], "02:00:5e:00:53:01");
    assert_eq!(now["mtu"], 1400);
    assert_eq!(now["txqlen"], 5);
    assert!(has_flag(&now, "PROMISC") && has_flag(&now, "ALLMULTI"), "{now}");
    // The link of the same name on the host is not the one that was changed.
    assert_eq!(
        result["interfaces"],
        json!([
            { "name": "eth0", "mac": "02:00:00:00:00:bb" },
            { "name": "eth0", "mac": "02:00:5e:00:53:01", "mtu": 1400, "sandbox": "/run/netns/c1" },
        ])
    );
    expect![[r#"
        {
         "mac": "02:00:00:00:00:aa",
         "promisc": false,
         "mtu": 1500,
         "allmulti": false,
         "txQLen": 1000
        }"#]]
    .assert_eq(&backup(&node, "c1").unwrap());
    let mode = node.sh("stat -c %a /run/cni/tuning/c1_eth0.json");
    assert_eq!(mode.trim(), "600");
}

#[test]
fn only_what_is_changed_is_in_the_backup() {
    let node = Node::new("tun-partial");
    let c1 = container(&node, "c1");
    let dir = node.dir("data");
    let config = json!({ "dataDir": dir, "txQLen": 0, "promisc": false, "sysctl": { "net.core.somaxconn": "5" } });
    add(&node, &c1, &config).call().ok();
    expect![[r#"
        {
         "txQLen": 1000
        }"#]]
    .assert_eq(&fs::read_to_string(dir.join("c1_eth0.json")).unwrap());
    // `ip` does not show a length of zero.
    assert!(link(&c1).get("txqlen").is_none());
    assert_eq!(backup(&node, "c1"), None);
    // Sysctls alone need neither a backup nor a link.
    let c2 = node.container("c2");
    add(&node, &c2, &json!({ "sysctl": { "net.core.somaxconn": "5" } })).call().ok();
    assert_eq!(backup(&node, "c2"), None);
}

/// `tuning | re-ADD keeps originals`
#[test]
fn a_second_add_keeps_the_originals() {
    let node = Node::new("tun-again");
    let c1 = container(&node, "c1");
    let before = Picture::of(&c1);
    let with = |mtu: u32, value: &str| json!({ "mtu": mtu, "promisc": true, "sysctl": { "net.core.somaxconn": value } });
    add(&node, &c1, &with(1400, "77")).call().ok();
    let first = backup(&node, "c1");
    add(&node, &c1, &with(1400, "77")).call().ok();
    assert_eq!(backup(&node, "c1"), first);
    // The same with another configuration.
    add(&node, &c1, &with(1300, "78")).call().ok();
    assert_eq!(backup(&node, "c1"), first);
    assert_eq!(sysctl(&c1, "net.core.somaxconn"), "78");
    del(&node, &c1).call().silent();
    before.assert_same(&Picture::of(&c1));
    assert_eq!(files(&node), "");
}

/// `tuning | duplicate sysctl keys`
#[test]
fn a_sysctl_given_twice_is_refused() {
    let node = Node::new("tun-twice");
    let c1 = container(&node, "c1");
    let prev = prev();
    let text = format!(
        r#"{{"cniVersion":"1.1.0","name":"n","type":"tuning","prevResult":{prev},
            "sysctl":{{"net.core.somaxconn":"5","net.core.somaxconn":"5"}}}}"#
    );
    for verb in ["ADD", "CHECK"] {
        let answer = node.run("tuning", verb).to(&c1).stdin(text.clone()).call();
        answer.fails(code::DECODE_FAILURE, "duplicated sysctl keys are not allowed");
    }
    // DEL succeeds nevertheless.
    node.run("tuning", "DEL").to(&c1).stdin(text).call().silent();
}

/// `tuning | args.cni only`
#[test]
fn args_alone_are_enough() {
    let node = Node::new("tun-args");
    let c1 = container(&node, "c1");
    let args = json!({ "args": { "cni": {
        "sysctl": { "net.core.somaxconn": "77" }, "mac": "02:00:5e:00:53:04", "promisc": true,
        "mtu": 1300, "allmulti": true, "txQLen": 9,
    }}});
    add(&node, &c1, &args).args("MAC=02:00:5e:00:53:02").call().ok();
    let now = link(&c1);
    assert_eq!(
        (&now["address"], &now["mtu"], &now["txqlen"]),
        (&json!("02:00:5e:00:53:04"), &json!(1300), &json!(9))
    );
    assert_eq!(sysctl(&c1, "net.core.somaxconn"), "77");
}

#[test]
fn a_refused_sysctl_brings_everything_back() {
    let node = Node::new("tun-undo");
    let c1 = container(&node, "c1");
    let before = Picture::of(&c1);
    let mut config = everything();
    config["sysctl"] = json!({
        "net.core.somaxconn": "77",
        "net.ipv4.conf.IFNAME.arp_notify": "1",
        "net.ipv4.conf.IFNAME.rp_filter": "banana",
    });
    let error = add(&node, &c1, &config).call().error();
    assert_eq!(error.code, codes::KERNEL);
    assert!(error.msg.contains("net/ipv4/conf/eth0/rp_filter"), "{error}");
    before.assert_same(&Picture::of(&c1));
    assert_eq!((files(&node).as_str(), backup(&node, "c1")), ("", None));

    // After a good ADD, a bad one leaves what the good one made; the values from before both are
    // still known.
    let mut good = everything();
    good["sysctl"] = json!({ "net.core.somaxconn": "55" });
    add(&node, &c1, &good).call().ok();
    let tuned = Picture::of(&c1);
    config["mtu"] = json!(1300);
    add(&node, &c1, &config).call().error();
    tuned.assert_same(&Picture::of(&c1));
    del(&node, &c1).call().silent();
    before.assert_same(&Picture::of(&c1));
    assert_eq!((files(&node).as_str(), backup(&node, "c1")), ("", None));
}

#[test]
fn a_backup_that_cannot_be_written_stops_add_before_anything_is_changed() {
    let node = Node::new("tun-nodir");
    let c1 = container(&node, "c1");
    let before = Picture::of(&c1);
    let file = node.dir("files").join("file");
    fs::write(&file, "").unwrap();
    let mut config = everything();
    config["dataDir"] = json!(file.join("below"));
    config["sysctl"] = json!({ "net.core.somaxconn": "55" });
    add(&node, &c1, &config).call().fails(codes::STATE, "below");
    before.assert_same(&Picture::of(&c1));
    assert_eq!(files(&node), "");
}

#[test]
fn checks_come_before_acts() {
    let node = Node::new("tun-checks");
    let c1 = container(&node, "c1");
    let before = Picture::of(&c1);
    let refused = |config: serde_json::Value, code: u32, words: &str| {
        let mut all = json!({ "txQLen": 5, "sysctl": { "net.core.somaxconn": "55" } });
        all.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
        add(&node, &c1, &all).call().fails(code, words);
    };
    refused(
        json!({ "mtu": 70000 }),
        code::INVALID_CONFIG,
        "invalid MTU 70000: link \"eth0\" takes 68 to 65535",
    );
    refused(json!({ "mtu": 67 }), code::INVALID_CONFIG, "invalid MTU 67");
    refused(json!({ "mac": "01:00:00:00:00:01" }), code::INVALID_CONFIG, "invalid MAC address");
    refused(json!({ "mac": "02:00" }), code::INVALID_CONFIG, "address 02:00: invalid MAC address");
    refused(
        json!({ "sysctl": { "net.core.somaxconn": "5", "net.ipv4.nothing": "1" } }),
        codes::KERNEL,
        "sysctl \"net/ipv4/nothing\" does not exist in the container",
    );
    before.assert_same(&Picture::of(&c1));
    let answer = add(&node, &c1, &everything()).ifname("eth9").call();
    answer.fails(code::INVALID_CONFIG, "failed to get \"eth9\": Link not found");
    let answer = add(&node, &c1, &everything()).netns("/run/netns/gone").call();
    answer.fails(code::INVALID_NETNS, "gone");
    assert_eq!((files(&node).as_str(), backup(&node, "c1")), ("", None));
}

#[test]
fn nothing_to_do_leaves_nothing() {
    let node = Node::new("tun-nothing");
    let c1 = container(&node, "c1");
    let before = Picture::of(&c1);
    let result = add(&node, &c1, &json!({})).call().ok();
    assert_eq!(result, prev());
    before.assert_same(&Picture::of(&c1));
    assert_eq!((files(&node).as_str(), backup(&node, "c1")), ("", None));
    node.run("tuning", "CHECK").to(&c1).prev(&prev()).call().silent();
    del(&node, &c1).call().silent();
}

/// The result's version cannot express what ADD made, so ADD must undo it.
#[test]
fn a_result_that_cannot_be_written_is_undone() {
    let node = Node::new("tun-unwritable");
    let c1 = container(&node, "c1");
    let before = Picture::of(&c1);
    let prev = json!({ "cniVersion": "0.2.0" });
    let answer = add(&node, &c1, &everything()).version("0.2.0").prev(&prev).call();
    answer.fails(code::DECODE_FAILURE, "cannot convert: no valid IP addresses");
    before.assert_same(&Picture::of(&c1));
    assert_eq!((files(&node).as_str(), backup(&node, "c1")), ("", None));
}

#[test]
fn a_folder_that_changes_between_adds_does_not_lose_the_originals() {
    let node = Node::new("tun-moved");
    let c1 = container(&node, "c1");
    let before = Picture::of(&c1);
    let with = |dir: &str| json!({ "mtu": 1400, "dataDir": node.dir(dir) });
    add(&node, &c1, &with("old")).call().ok();
    add(&node, &c1, &with("new")).call().ok();
    del(&node, &c1).config(with("newest")).call().silent();
    before.assert_same(&Picture::of(&c1));
    for dir in ["old", "new", "newest"] {
        assert_eq!(fs::read_dir(node.dir(dir)).unwrap().count(), 0, "{dir}");
    }
}

#[test]
fn keys_that_nobody_reads_are_listed() {
    let plugin = plugins::find("tuning").unwrap();
    let unknown = |text: &str| -> Vec<String> {
        let keys = plugin.unknown_keys(text).unwrap();
        keys.into_iter().map(|key| format!("{}.{} at {}", key.parent, key.key, key.line)).collect()
    };
    let known = r#"{"cniVersion":"1.1.0","name":"n","type":"tuning","capabilities":{"mac":true},
        "sysctl":{"net.x":"1"},"MTU":1,"txQLen":1,"args":{"cni":{"mac":""}},"runtimeConfig":{"mac":""}}"#;
    assert_eq!(unknown(known), Vec::<String>::new());
    let misspelt = r#"{"name":"n",
        "txqlenn":1, "args":{"cni":{"promiscuous":true}}}"#;
    assert_eq!(unknown(misspelt), [".txqlenn at 2", "args.cni.promiscuous at 2"]);
}
