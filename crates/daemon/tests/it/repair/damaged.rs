//! Attachments whose runtime's file is damaged.

use std::fs;
use std::path::PathBuf;

use cni::AttachmentKey;
use state::Index;
use testkit::{Container, Place, traffic};

use super::{Host, after_looks, ready};
use crate::rig::{Daemon, wait_for};

fn file_of(host: &Host, container: &Container) -> PathBuf {
    host.cache.join("results").join(format!("n-{}-eth0", container.name()))
}

#[test]
fn a_damaged_cache_file_is_written_again_and_its_container_repaired() {
    testkit::require!("root");
    let host = Host::new("damaged");
    let lab = &host.node.lab;
    let _outside = lab.outside();
    let c1 = lab.container("c1");
    host.add(&c1, &host.list(8081));
    let file = file_of(&host, &c1);
    let whole = fs::read_to_string(&file).unwrap();
    let rules = lab.sh("nft list ruleset");
    let daemon = host.daemon("repair", &["--interval", "50ms"]);
    ready(&daemon);

    let half = whole.get(..whole.len() / 2).unwrap();
    let bad_result = whole.replace(r#""ips":["#, r#""ips":[7,"#);
    let contents = ["", r#"{"kind":"#, half, &bad_result];
    for content in contents {
        fs::write(&file, content).unwrap();
        lab.sh("nft flush ruleset");
        c1.sh("ip route del default");
        wait_for("the file", || fs::read_to_string(&file).unwrap() == whole);
        wait_for("a route", || c1.sh("ip route").contains("default via 10.1.0.1"));
        wait_for("the packet filter", || {
            let now = lab.sh("nft list ruleset");
            rules.lines().all(|line| now.contains(line.trim()))
        });
    }
    traffic::assert_pings(&c1, "198.51.100.2");
    let log = daemon.log();
    let written = log.matches("wrote the cache's damaged file again").count();
    assert_eq!(written, contents.len(), "{log}");
    assert_eq!(daemon.stop(), Some(0));
    host.del(&c1, &host.list(8081));
    assert!(!file.exists());
}

/// The service has not seen its content, a record has changed since, or the file belongs to another
/// program.
#[test]
fn a_damaged_file_that_cannot_be_written_again_is_told_of_once_and_stays() {
    testkit::require!("root");
    let host = Host::new("damaged-left");
    let lab = &host.node.lab;
    let told = |daemon: &Daemon| daemon.log().matches("its file in the cache is damaged").count();
    let lists = [8081, 8082, 8083, 8084, 8085].map(|port| host.list(port));
    let names = ["before", "foreign", "changed", "deleted", "sound"];
    let containers = names.map(|name| lab.container(name));
    for (container, list) in containers.iter().zip(&lists) {
        host.add(container, list);
    }
    let [before, foreign, changed, deleted, sound] = &containers;
    let [of_before, of_foreign, of_changed, of_deleted] =
        [before, foreign, changed, deleted].map(|container| file_of(&host, container));
    fs::write(&of_before, "").unwrap();
    // It looks only after an event.
    let daemon = host.daemon("repair", &["--interval", "1h"]);
    wait_for("the log of the first", || told(&daemon) == 1);

    let kind = r#"{"kind":"another"}"#;
    fs::write(&of_foreign, kind).unwrap();
    fs::write(&of_changed, "{").unwrap();
    let key = AttachmentKey {
        network: "n".parse().unwrap(),
        container_id: "changed".parse().unwrap(),
        ifname: "eth0".parse().unwrap(),
    };
    assert!(Index::new(&host.node.roots).remove(&key, "tuning").unwrap());
    after_looks(sound);
    wait_for("the log of all", || told(&daemon) == 3);
    fs::write(&of_deleted, "{").unwrap();
    host.del(deleted, &lists[3]);
    after_looks(sound);

    let log = daemon.log();
    assert_eq!(told(&daemon), 3, "{log}");
    for (file, content) in [(&of_before, ""), (&of_foreign, kind), (&of_changed, "{")] {
        assert_eq!(fs::read_to_string(file).unwrap(), content, "{log}");
    }
    assert!(!of_deleted.exists(), "{log}");
    assert_eq!(daemon.stop(), Some(0));
}
