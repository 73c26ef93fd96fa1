//! DEL and GC with whatever is missing.

use std::fs;
use std::path::PathBuf;

use serde_json::json;
use testkit::Place;
use testkit::driver::Driver;

use super::{cnm, leaves_nothing, of_network, warm};

#[test]
fn del_needs_nothing_but_the_key() {
    testkit::require!("root", "program:python3");
    let node = warm("cnm-key");
    let driver = Driver::start(&node.lab, "weft");
    leaves_nothing(&node, &driver, || {
        let c1 = node.container("c1");
        cnm(&node, "ADD", &c1).call().ok();
        drop(c1);
        node.run("cnm", "DEL").call().silent();
    });
    // The namespace exists, but the runtime does not name it.
    leaves_nothing(&node, &driver, || {
        let c1 = node.container("c1");
        cnm(&node, "ADD", &c1).call().ok();
        node.run("cnm", "DEL").call().silent();
        assert_eq!(c1.sh("ip -o link show eth0 2>/dev/null || true"), "");
    });
    leaves_nothing(&node, &driver, || {
        node.run("cnm", "DEL").call().silent();
        node.run("cnm", "DEL").config(json!({ "driver": 7, "subnets": "?" })).call().silent();
    });
}

#[test]
fn a_journal_that_is_lost_or_garbled_is_done_without() {
    testkit::require!("root", "program:python3");
    let node = warm("cnm-lost");
    let driver = Driver::start(&node.lab, "weft");
    for garbled in [false, true] {
        leaves_nothing(&node, &driver, || {
            let c1 = node.container("c1");
            cnm(&node, "ADD", &c1).call().ok();
            for entry in fs::read_dir(node.roots.lib.join("cnm/n")).unwrap() {
                let path = entry.unwrap().path();
                if !path.ends_with("network.json") {
                    if garbled {
                        fs::write(path, "{\"vers").unwrap();
                    } else {
                        fs::remove_file(path).unwrap();
                    }
                }
            }
            cnm(&node, "DEL", &c1).call().silent();
            cnm(&node, "DEL", &c1).call().silent();
        });
    }
    // All records are lost: the pools cannot be released then, and everything else is removed.
    let c1 = node.container("c1");
    cnm(&node, "ADD", &c1).call().ok();
    fs::write(node.roots.lib.join("cnm/n/network.json"), "").unwrap();
    cnm(&node, "DEL", &c1).call().silent();
    let held = driver.held();
    assert_eq!(held["networks"], json!({}));
    assert_eq!(held["endpoints"], json!({}));
    assert!(!node.roots.lib.join("cnm").exists());
}

/// An attachment keeps its network even if its own record, or the network's, is lost.
#[test]
fn an_add_removes_no_network_that_another_is_on() {
    testkit::require!("root", "program:python3");
    let node = warm("cnm-others");
    let driver = Driver::start(&node.lab, "weft");
    leaves_nothing(&node, &driver, || {
        let [c1, c2] = ["c1", "c2"].map(|name| node.container(name));
        cnm(&node, "ADD", &c1).call().ok();
        let held = driver.held();
        let files: Vec<PathBuf> = fs::read_dir(node.roots.lib.join("cnm/n"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        for file in files {
            let content = fs::read(&file).unwrap();
            let is_network = file.ends_with("network.json");
            let another = json!({ "options": { "another": "one" } });
            for damage in [Some(&b"{"[..]), None] {
                match damage {
                    Some(bytes) => fs::write(&file, bytes).unwrap(),
                    None if is_network => fs::remove_file(&file).unwrap(),
                    None => continue,
                }
                let run = cnm(&node, "ADD", &c2);
                match is_network {
                    true => run.call().fails(105, "the record of network n is damaged"),
                    false => run.config(another.clone()).call().fails(108, "another configuration"),
                };
                assert_eq!(driver.held(), held, "{file:?} {damage:?}");
                fs::write(&file, &content).unwrap();
            }
        }
        cnm(&node, "ADD", &c2).call().ok();
        for one in [&c1, &c2] {
            cnm(&node, "DEL", one).call().silent();
        }
    });
}

#[test]
fn a_driver_that_is_down_fails_del_and_is_asked_again() {
    testkit::require!("root", "program:python3");
    let node = warm("cnm-down");
    let mut driver = Driver::start(&node.lab, "weft");
    let _ = driver.take_calls();
    let c1 = node.container("c1");
    let before = super::look(&node);
    cnm(&node, "ADD", &c1).call().ok();
    driver.kill();
    cnm(&node, "DEL", &c1)
        .call()
        .fails(109, "is not there: connect to unix:///run/docker/plugins/weft.sock");
    driver.again();
    cnm(&node, "DEL", &c1).netns("").call().silent();
    driver.assert_empty();
    super::assert_settles(&before, &node);
}

#[test]
fn a_refusal_counts_only_while_the_endpoint_is_known() {
    testkit::require!("root", "program:python3");
    let node = warm("cnm-refusal");
    let driver = Driver::start(&node.lab, "weft");
    leaves_nothing(&node, &driver, || {
        let c1 = node.container("c1");
        cnm(&node, "ADD", &c1).call().ok();
        let no = json!({ "reply": { "Err": "not today" } });
        driver.misbehave(json!({ "NetworkDriver.Leave": no, "NetworkDriver.DeleteEndpoint": no }));
        cnm(&node, "DEL", &c1).call().fails(111, "refused NetworkDriver.DeleteEndpoint: not today");
        driver.misbehave(json!({}));
        cnm(&node, "DEL", &c1).call().silent();
    });
    // A driver that refuses to delete its network keeps it, and gets the request again the next
    // time.
    leaves_nothing(&node, &driver, || {
        let c1 = node.container("c1");
        cnm(&node, "ADD", &c1).call().ok();
        driver.misbehave(
            json!({ "NetworkDriver.DeleteNetwork": { "reply": { "Err": "not today" } } }),
        );
        let answer = cnm(&node, "DEL", &c1).call();
        assert!(answer.stderr().contains("the network stays"), "{answer:?}");
        answer.silent();
        driver.misbehave(json!({}));
        of_network(&node, "GC").valid(&[]).call().silent();
    });
}

#[test]
fn gc_gives_back_after_a_reboot() {
    testkit::require!("root", "program:python3");
    let node = warm("cnm-reboot");
    let driver = Driver::start(&node.lab, "weft");
    leaves_nothing(&node, &driver, || {
        let c1 = node.container("c1");
        cnm(&node, "ADD", &c1).call().ok();
        drop(c1);
        fs::remove_dir_all(node.roots.run.join("owners")).unwrap();
        let c2 = node.container("c2");
        cnm(&node, "ADD", &c2).call().ok();
        of_network(&node, "GC").valid(&[("c2", "eth0")]).call().silent();
        assert_eq!(driver.held()["endpoints"].as_object().unwrap().len(), 1);
        cnm(&node, "DEL", &c2).call().silent();
    });
}

/// After a reboot the plugin creates the network again, since the driver may have forgotten it.
#[test]
fn a_network_is_told_again_after_a_reboot() {
    testkit::require!("root", "program:python3");
    let node = warm("cnm-told");
    let driver = Driver::start(&node.lab, "weft");
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    cnm(&node, "ADD", &c1).call().ok();
    let path = node.roots.lib.join("cnm/n/network.json");
    let text = fs::read_to_string(&path).unwrap();
    let boot = state::boot_id().unwrap();
    fs::write(&path, text.replace(&boot, "another")).unwrap();
    let _ = driver.take_calls();
    cnm(&node, "ADD", &c2).call().ok();
    let names = driver.take_names();
    assert!(names.iter().any(|name| name == "CreateNetwork"), "{names:?}");
    assert!(!names.iter().any(|name| name == "RequestPool"), "{names:?}");
    for container in [&c1, &c2] {
        cnm(&node, "DEL", container).call().silent();
    }
    driver.assert_empty();
}

#[test]
fn an_ipam_driver_that_forgets_is_asked_again_after_a_reboot() {
    testkit::require!("root", "program:python3");
    let node = warm("cnm-replay");
    let driver = Driver::start(&node.lab, "weft");
    let replays = json!({ "add": { "RequiresRequestReplay": true } });
    driver.misbehave(json!({ "IpamDriver.GetCapabilities": replays }));
    let c1 = node.container("c1");
    cnm(&node, "ADD", &c1).call().ok();
    driver.forget();
    let path = node.roots.lib.join("cnm/n/network.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace(&state::boot_id().unwrap(), "another")).unwrap();
    drop(c1);
    let c2 = node.container("c2");
    node.sh("for link in $(ls /sys/class/net | grep '^d[bv]'); do ip link del $link || true; done");
    let result = cnm(&node, "ADD", &c2).call().ok();
    // The first address belongs to c1 until a DEL or GC releases it.
    assert_eq!(result["ips"][0]["address"], "10.1.0.3/24");
    assert_eq!(result["ips"][0]["gateway"], "10.1.0.1");
    of_network(&node, "GC").valid(&[("c2", "eth0")]).call().silent();
    cnm(&node, "DEL", &c2).call().silent();
    driver.assert_empty();
}

#[test]
fn a_container_is_not_attached_twice() {
    testkit::require!("root", "program:python3");
    let node = warm("cnm-twice");
    let driver = Driver::start(&node.lab, "weft");
    leaves_nothing(&node, &driver, || {
        let (c1, c2) = (node.container("c1"), node.container("c2"));
        cnm(&node, "ADD", &c1).call().ok();
        cnm(&node, "ADD", &c1).call().fails(106, "already exists");
        cnm(&node, "ADD", &c1)
            .netns(c2.netns())
            .call()
            .fails(106, "already exists in network namespace");
        // Another interface of the same container is another attachment.
        cnm(&node, "ADD", &c1).ifname("eth1").call().ok();
        cnm(&node, "DEL", &c1).ifname("eth1").call().silent();
        cnm(&node, "DEL", &c1).call().silent();
    });
}

/// A container may give any link of its own the mark of the one that the driver lent.
#[test]
fn a_link_that_the_container_made_is_not_given_to_the_driver() {
    testkit::require!("root", "program:python3");
    let node = warm("cnm-double");
    let driver = Driver::start(&node.lab, "weft");
    leaves_nothing(&node, &driver, || {
        let c1 = node.container("c1");
        cnm(&node, "ADD", &c1).call().ok();
        c1.sh("ip link set eth0 down && ip link set eth0 name hidden alias '' && \
             ip link add eth0 type veth peer name x && ip link set eth0 alias netwright:n/c1/eth0");
        let answer = cnm(&node, "DEL", &c1).call();
        assert!(answer.succeeded(), "{answer:?}");
        assert_eq!(c1.sh("ip -o link show hidden 2>/dev/null || true"), "");
        assert_ne!(c1.sh("ip -o link show eth0 2>/dev/null || true"), "");
    });
}
