//! DEL and GC.

use std::fs;

use serde_json::json;
use testkit::Place;

use super::{add, backup, container, del, everything, files, link, sysctl};
use crate::support::{Node, Picture, fixed};

/// `tuning | restore`
#[test]
fn del_brings_everything_back() {
    let node = Node::new("tun-del");
    let c1 = container(&node, "c1");
    c1.sh("ip link set eth0 allmulticast on");
    let before = Picture::of(&c1);
    let mut config = everything();
    config["allmulti"] = json!(false);
    config["sysctl"] = json!({
        "net.core.somaxconn": "77",
        "net.ipv4.conf.IFNAME.arp_notify": "1",
        "net.ipv6.conf.IFNAME.mtu": "1300",
    });
    add(&node, &c1, &config).call().ok();
    // Restoring the link's MTU did not reset IPv6's.
    assert_eq!(sysctl(&c1, "net.ipv6.conf.eth0.mtu"), "1300");
    del(&node, &c1).config(config.clone()).call().silent();
    before.assert_same(&Picture::of(&c1));
    assert_eq!((files(&node).as_str(), backup(&node, "c1")), ("", None));
    del(&node, &c1).config(config).call().silent();
    before.assert_same(&Picture::of(&c1));
}

#[test]
fn del_needs_no_configuration_that_add_would_take() {
    let node = Node::new("tun-del-config");
    let c1 = container(&node, "c1");
    let before = Picture::of(&c1);
    let mut config = everything();
    config["sysctl"] = json!({ "net.core.somaxconn": "77" });
    config["dataDir"] = json!(node.dir("data"));
    add(&node, &c1, &config).call().ok();
    let bad = json!({ "mac": "bad", "sysctl": { "kernel.x": "1" }, "mtu": -5, "prevResult": { "cniVersion": "9" } });
    // DEL needs neither valid CNI_ARGS nor the folder that ADD got.
    del(&node, &c1).config(bad).args("FOO=1;;").call().silent();
    let left = fs::read_dir(node.dir("data")).unwrap().count();
    assert_eq!((left, files(&node).as_str()), (0, ""));
    before.assert_same(&Picture::of(&c1));
}

/// One letter of the path in the record is wrong: DEL looks where the configuration says.
#[test]
fn del_finds_the_backup_that_a_damaged_record_misses() {
    let node = Node::new("tun-del-damaged");
    let c1 = container(&node, "c1");
    let before = Picture::of(&c1);
    let mut config = everything();
    config["dataDir"] = json!(node.dir("data"));
    add(&node, &c1, &config).call().ok();
    let records = format!("{}/owners/*/tuning.json", node.roots.run.display());
    node.sh(&format!("sed -i 's,/data/c1_eth0,/dbta/c1_eth0,' {records}"));
    node.sh(&format!("grep -q /dbta/c1_eth0 {records}"));
    del(&node, &c1).config(config).call().silent();
    let left = fs::read_dir(node.dir("data")).unwrap().count();
    assert_eq!((left, files(&node).as_str()), (0, ""));
    before.assert_same(&Picture::of(&c1));
}

#[test]
fn del_converges_whatever_is_missing() {
    let node = Node::new("tun-missing");
    let config = {
        let mut config = everything();
        config["sysctl"] =
            json!({ "net.core.somaxconn": "77", "net.ipv4.conf.IFNAME.arp_notify": "1" });
        config
    };
    type Loss = fn(&Node, &testkit::Container);
    let gone: &[(&str, Loss)] = &[
        ("link", |_, c| drop(c.sh("ip link del eth0"))),
        ("namespace", |_, c| c.delete()),
        ("backup", |node, _| drop(node.sh("rm /run/cni/tuning/*"))),
        ("backup's folder", |node, _| drop(node.sh("rm -r /run/cni"))),
        ("record", |node, _| fs::remove_dir_all(node.roots.run.join("owners")).unwrap()),
        ("notes", |node, _| fs::remove_dir_all(node.roots.run.join("shared")).unwrap()),
        ("all of ours", |node, _| fs::remove_dir_all(&node.roots.run).unwrap()),
    ];
    for (index, (what, lose)) in gone.iter().enumerate() {
        let c = container(&node, &format!("c{index}"));
        let before = Picture::of(&c);
        add(&node, &c, &config).call().ok();
        lose(&node, &c);
        for _ in 0..2 {
            del(&node, &c).call().silent();
        }
        assert_eq!(backup(&node, c.name()), None, "{what}");
        let owners = node.roots.run.join("owners");
        assert!(!owners.exists() || fs::read_dir(&owners).unwrap().next().is_none(), "{what}");
        match *what {
            "link" => assert_ne!(sysctl(&c, "net.core.somaxconn"), "77"),
            "record" => {
                assert_eq!(link(&c)["mtu"], 1500);
                // The sysctls' record is lost; GC finds the attachment.
                node.run("tuning", "GC").valid(&[]).call().silent();
            }
            "backup" | "backup's folder" => assert_ne!(sysctl(&c, "net.core.somaxconn"), "77"),
            "notes" | "all of ours" => assert_eq!(link(&c)["mtu"], 1500),
            _ => drop(before),
        }
        assert_eq!(files(&node), "", "{what}");
    }
}

#[test]
fn files_that_make_no_sense_are_passed_over_and_removed() {
    let node = Node::new("tun-garbage");
    let c1 = container(&node, "c1");
    add(&node, &c1, &everything()).call().ok();
    fs::write(node.lab.path("/run/cni/tuning/c1_eth0.json"), "{\"mtu\":").unwrap();
    let answer = del(&node, &c1).call();
    assert!(
        answer.stderr().contains("ignored backup \"/run/cni/tuning/c1_eth0.json\""),
        "{answer:?}"
    );
    answer.silent();
    assert_eq!((files(&node).as_str(), backup(&node, "c1")), ("", None));
}

#[test]
fn what_the_reference_tuned_is_brought_back() {
    let node = Node::new("tun-reference");
    let c1 = container(&node, "c1");
    let before = Picture::of(&c1);
    node.sh("mkdir -m 600 -p /run/cni/tuning");
    let text = "{\n \"mac\": \"02:00:00:00:00:aa\",\n \"promisc\": false,\n \"mtu\": 1500\n}";
    fs::write(node.lab.path("/run/cni/tuning/c1_eth0.json"), text).unwrap();
    c1.sh("ip link set eth0 address 02:00:5e:00:53:01 mtu 1400 promisc on");
    // ADD after the same ADD of the reference does not lose the originals.
    let config = json!({ "mac": "02:00:5e:00:53:01", "mtu": 1400, "promisc": true });
    add(&node, &c1, &config).call().ok();
    assert_eq!(backup(&node, "c1").as_deref(), Some(text));
    del(&node, &c1).config(config).call().silent();
    before.assert_same(&Picture::of(&c1));
    assert_eq!(backup(&node, "c1"), None);
}

#[test]
fn another_namespace_at_the_same_path_is_left_alone() {
    let node = Node::new("tun-reused");
    let c1 = container(&node, "c1");
    let mut config = everything();
    config["sysctl"] = json!({ "net.core.somaxconn": "77" });
    add(&node, &c1, &config).call().ok();
    // Keeps the old namespace open, so that the new one does not get its inode number.
    let _old = c1.enter(|| fs::File::open("/proc/thread-self/ns/net").unwrap());
    c1.delete();
    let new = container(&node, "c1");
    new.sh("ip link set eth0 mtu 1450 && sysctl -qw net.core.somaxconn=66");
    let before = Picture::of(&new);
    del(&node, &new).call().silent();
    before.assert_same(&Picture::of(&new));
    assert_eq!((files(&node).as_str(), backup(&node, "c1")), ("", None));

    // ADD in the new namespace does not take the old one's values for the originals.
    let before = Picture::of(&new);
    add(&node, &new, &config).call().ok();
    new.delete();
    let third = container(&node, "c1");
    let fresh = Picture::of(&third);
    add(&node, &third, &config).call().ok();
    del(&node, &third).call().silent();
    fresh.assert_same(&Picture::of(&third));
    assert_eq!(files(&node), "");
    drop(before);
}

/// The path of a DEL may lead to another container by now. A backup of the reference's that names the
/// removed one is no reason to change it.
#[test]
fn what_the_reference_saved_is_not_given_to_another_container() {
    let node = Node::new("tun-anothers");
    let c2 = container(&node, "c2");
    let data_dir = node.dir("tuning");
    let config = json!({ "mtu": 1400, "dataDir": data_dir });
    add(&node, &c2, &config).call().ok();
    let before = Picture::of(&c2);
    fs::write(data_dir.join("c1_eth0.json"), r#"{"mtu": 1300}"#).unwrap();
    del(&node, &c2).id("c1").config(config).call().silent();
    before.assert_same(&Picture::of(&c2));
}

#[test]
fn a_sysctl_stays_while_another_attachment_of_the_container_wants_it() {
    let node = Node::new("tun-two");
    let c1 = container(&node, "c1");
    let before = Picture::of(&c1);
    let config = json!({ "sysctl": { "net.core.somaxconn": "77" } });
    add(&node, &c1, &config).call().ok();
    add(&node, &c1, &config).network("m").ifname("far").call().ok();
    del(&node, &c1).call().silent();
    assert_eq!(sysctl(&c1, "net.core.somaxconn"), "77");
    del(&node, &c1).network("m").ifname("far").call().silent();
    before.assert_same(&Picture::of(&c1));
    assert_eq!(files(&node), "");
}

#[test]
fn gc_removes_what_no_valid_attachment_owns() {
    let node = Node::new("tun-gc");
    let config = json!({ "mtu": 1400, "sysctl": { "net.core.somaxconn": "77" } });
    let (stays, gone, other) =
        (container(&node, "stays"), container(&node, "gone"), container(&node, "other"));
    let alive = container(&node, "alive");
    let fresh = Picture::of(&alive);
    for c in [&stays, &gone, &alive] {
        add(&node, c, &config).call().ok();
    }
    add(&node, &other, &config).network("m").call().ok();
    // A container that was attached to this network and is now attached to another, under the same
    // names.
    add(&node, &other, &config).call().ok();
    gone.delete();

    // Without the list GC knows no attachment to be invalid.
    node.run("tuning", "GC").config(config.clone()).call().silent();
    assert!(backup(&node, "gone").is_some());

    node.run("tuning", "GC").config(config.clone()).valid(&[("stays", "eth0")]).call().silent();
    let left = |name: &str| backup(&node, name).is_some();
    assert!(left("stays") && !left("gone") && !left("alive"));
    // A container that lives gets its values back.
    fresh.assert_same(&Picture::of(&alive));
    assert_eq!(link(&stays)["mtu"], 1400);
    assert!(left("other"), "its name is that of a backup of network m");
    del(&node, &other).network("m").call().silent();
    assert!(!left("other"));

    node.run("tuning", "GC").config(config).valid(&[]).call().silent();
    assert!(!left("stays"));
    assert_eq!(files(&node), "");
}

/// DEL restores an interface's own sysctls on the link that was tuned, too.
#[test]
fn own_sysctls_come_back_on_the_link_that_was_tuned() {
    let node = Node::new("tun-own");
    let c1 = container(&node, "c1");
    let key = |ifname: &str| sysctl(&c1, &format!("net.ipv4.conf.{ifname}.log_martians"));
    let before = key("eth0");
    let config = json!({ "sysctl": { "net.ipv4.conf.IFNAME.log_martians": "1" } });
    add(&node, &c1, &config).call().ok();
    c1.sh("ip link set eth0 down && ip link set eth0 name hidden && ip link set hidden up && \
         ip link add eth0 type veth peer name x && sysctl -qw net.ipv4.conf.eth0.log_martians=1");
    del(&node, &c1).config(config).call().silent();
    assert_eq!([key("hidden"), key("eth0")], [before, "1".to_owned()]);
    assert_eq!(files(&node), "");
}

/// A container may rename its link, and give its name to another: the saved values are those of the
/// first.
#[test]
fn values_come_back_on_the_link_that_was_tuned() {
    let node = Node::new("tun-renamed");
    let c1 = container(&node, "c1");
    let before = fixed::link(&c1, "eth0");
    add(&node, &c1, &everything()).call().ok();
    c1.sh("ip link set eth0 down && ip link set eth0 name hidden && ip link set hidden up && \
         ip link add eth0 mtu 1300 type veth peer name x");
    del(&node, &c1).config(everything()).call().silent();
    let after = fixed::link(&c1, "hidden");
    for key in ["mtu", "address", "txqlen", "promiscuity"] {
        assert_eq!(after[key], before[key], "{key}");
    }
    assert_eq!(fixed::link(&c1, "eth0")["mtu"], 1300);
    assert_eq!((files(&node).as_str(), backup(&node, "c1")), ("", None));
}

/// The container's link, or `lo`, has a value by now that the kernel does not take back, and ends
/// with the container.
#[test]
fn del_ends_whatever_of_the_container_cannot_be_restored() {
    testkit::require!("root");
    let node = Node::new("tun-del-refused");
    node.sh("ip link add p0 mtu 9000 type veth peer name p1 && ip link set p0 up");
    let c1 = node.container("c1");
    let attach = || {
        node.sh(
            "ip link set p0 mtu 9000; ip link add link p0 name m0 mtu 9000 netns c1 type macvlan",
        );
        c1.sh("ip link set m0 name eth0 && ip link set eth0 up");
        add(&node, &c1, &json!({ "mtu": 1400 })).call().ok();
        node.sh("ip link set p0 mtu 1500");
    };
    attach();
    let answer = del(&node, &c1).config(json!({ "mtu": 1400 })).call();
    assert!(answer.stderr().contains("could not set mtu 9000"), "{answer:?}");
    answer.silent();
    assert_eq!((files(&node).as_str(), backup(&node, "c1")), ("", None));
    c1.sh("ip link del eth0");

    // The kernel takes no address of zeros, which `lo` had.
    let mac = json!({ "mac": "02:00:5e:00:53:01" });
    let prev = json!({ "cniVersion": "1.1.0", "interfaces": [{ "name": "lo", "sandbox": "/run/netns/c1" }] });
    let run = |verb| node.run("tuning", verb).to(&c1).ifname("lo").config(mac.clone()).prev(&prev);
    run("ADD").call().ok();
    run("DEL").call().silent();
    assert_eq!(files(&node), "");

    // GC removes it as DEL does.
    attach();
    node.run("tuning", "GC").config(json!({})).of_network().valid(&[]).call().silent();
    assert_eq!((files(&node).as_str(), backup(&node, "c1")), ("", None));
    c1.sh("ip link del eth0");

    // A link that was lent outlives the container: the next DEL tries again.
    attach();
    let key = cni::AttachmentKey {
        network: "n".parse().unwrap(),
        container_id: "c1".parse().unwrap(),
        ifname: "eth0".parse().unwrap(),
    };
    let lent = state::Record::new(key, "host-device", state::boot_id().unwrap(), json!({}));
    state::Index::new(&node.roots).put(&lent).unwrap();
    del(&node, &c1).config(json!({ "mtu": 1400 })).call().fails(100, "mtu 9000");
    assert!(backup(&node, "c1").is_some());
    node.sh("ip link set p0 mtu 9000");
    del(&node, &c1).config(json!({ "mtu": 1400 })).call().silent();
    assert_eq!(backup(&node, "c1"), None);
}
