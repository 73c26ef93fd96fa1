//! The device's return, whatever happened to it and to its container.

use kernel::netns::Netns;
use kernel::tun;
use serde_json::{Value, json};
use testkit::{Place, Snapshot};

use super::{add, check, del, device, fixed, link, network, succeeds, up, verbs};
use crate::support::Node;

#[test]
fn the_device_comes_home_as_it_was_found() {
    for state in ["up", "down"] {
        let node = Node::new("hd-home");
        device(&node, "nic0");
        node.sh(&format!("ip link set nic0 alias 'to the lab' mtu 1400 {state}"));
        let c1 = node.container("c1");
        let before = Snapshot::take(&node.lab);
        add(&node, &c1).config(fixed(&node)).call().ok();
        c1.sh("ip link set eth0 address 02:00:00:00:00:99 mtu 1300 arp off promisc on \
             allmulticast on multicast off txqueuelen 3 group 7");
        del(&node, &c1).config(fixed(&node)).call().silent();
        before.assert_same(&Snapshot::take(&node.lab));
        assert_eq!(up(&node.lab, "nic0"), state == "up");
        assert_eq!(verbs(&node), "ADD DEL ");
    }
}

/// A link that is made on a device survives the device's move to another namespace, and would keep
/// on receiving and sending by it.
#[test]
fn vm_links_that_the_container_made_on_the_device_end() {
    testkit::require!("full");
    testkit::require!("macvlan");
    let node = Node::new("hd-upper");
    device(&node, "nic0");
    let before = Snapshot::take(&node.lab);
    for (mode, with_record) in [("bridge", true), ("passthru", true), ("bridge", false)] {
        let c1 = node.container("c1");
        add(&node, &c1).call().ok();
        c1.sh(&format!(
            "ip link add up0 link eth0 type macvlan mode {mode} && ip link set up0 up && \
             ip link add own0 type veth peer name own1"
        ));
        if !with_record {
            node.sh(&format!("rm -r {}", node.roots.run.join("owners").display()));
        }
        let answer = del(&node, &c1).call();
        assert!(answer.stderr().contains("\"up0\""), "{answer:?}");
        answer.silent();
        let left = c1.sh("ip -o link show | grep -v ' lo:' | wc -l");
        assert_eq!(left.trim(), "2", "{mode}: {}", c1.sh("ip -o link"));
        assert_eq!(link(&node.lab, "nic0")["promiscuity"], 0);
        c1.delete();
    }
    before.assert_same(&Snapshot::take(&node.lab));
}

/// The other end of a lent pair is not made on the device, although the kernel names the device as
/// its link.
#[test]
fn the_other_end_of_a_lent_pair_stays() {
    let node = Node::new("hd-both-ends");
    device(&node, "nic0");
    let c1 = node.container("c1");
    node.sh(&format!("ip link set pnic0 netns {}", c1.name()));
    add(&node, &c1).call().ok();
    del(&node, &c1).call().silent();
    node.sh("ip link show nic0");
    c1.sh("ip link show pnic0");
}

/// <https://github.com/containernetworking/plugins/issues/1196>
#[test]
fn del_without_a_namespace_brings_it_home_and_releases_the_addresses() {
    let node = Node::new("hd-nons");
    device(&node, "nic0");
    let before = Snapshot::take(&node.lab);
    let c1 = node.container("c1");
    add(&node, &c1).config(fixed(&node)).call().ok();
    // The namespace still exists and the call does not name it: DEL finds it in the record.
    del(&node, &c1).config(fixed(&node)).netns("").call().silent();
    drop(c1);
    before.assert_same(&Snapshot::take(&node.lab));
    assert_eq!(verbs(&node), "ADD DEL ");
}

/// <https://github.com/containernetworking/cni/issues/1167>
#[test]
fn del_with_the_namespace_gone_succeeds_and_releases_the_addresses() {
    let node = Node::new("hd-gone");
    device(&node, "nic0");
    let c1 = node.container("c1");
    let path = c1.netns();
    add(&node, &c1).config(fixed(&node)).call().ok();
    c1.delete();
    let run = || node.run("host-device", "DEL").id("c1").netns(&path);
    run().config(json!({ "device": "nic0" })).config(fixed(&node)).call().silent();
    std::fs::write(node.lab.path(&path), "").unwrap();
    run().config(json!({ "device": "nic0" })).config(fixed(&node)).call().silent();
    assert_eq!(verbs(&node), "ADD DEL DEL ");
}

/// A device returns with the alternative names that it had, and without those that the container
/// gave it. A container's name that the host also uses prevented the return, and any other would
/// have stayed on the host.
#[test]
fn names_that_the_container_gave_it_stay_behind() {
    let node = Node::new("hd-altnames");
    device(&node, "nic0");
    node.sh("ip link add mgmt0 type veth peer name mgmt1 && ip link property add dev nic0 altname enp3s0");
    let c1 = node.container("c1");
    let before = Snapshot::take(&node.lab);
    add(&node, &c1).call().ok();
    c1.sh("for n in mgmt0 docker0 nic0; do ip link property add dev eth0 altname $n; done");
    del(&node, &c1).call().silent();
    before.assert_same(&Snapshot::take(&node.lab));
    assert_eq!(link(&node.lab, "nic0")["altnames"], json!(["enp3s0"]));
    // A name that the host has given to another link meanwhile.
    add(&node, &c1).call().ok();
    node.sh("ip link property add dev mgmt0 altname enp3s0");
    del(&node, &c1).call().silent();
    assert_eq!(link(&node.lab, "nic0")["altnames"], Value::Null);
}

#[test]
fn a_second_del_succeeds() {
    let node = Node::new("hd-twice");
    device(&node, "nic0");
    let before = Snapshot::take(&node.lab);
    let c1 = node.container("c1");
    add(&node, &c1).call().ok();
    del(&node, &c1).call().silent();
    del(&node, &c1).call().silent();
    del(&node, &c1).netns("").call().silent();
    c1.delete();
    before.assert_same(&Snapshot::take(&node.lab));
}

#[test]
fn del_needs_no_legible_configuration() {
    let node = Node::new("hd-config");
    device(&node, "nic0");
    let before = Snapshot::take(&node.lab);
    let c1 = node.container("c1");
    for keys in [json!({ "device": 7 }), json!({}), json!({ "pciBusID": "none" })] {
        add(&node, &c1).call().ok();
        node.run("host-device", "DEL").to(&c1).config(keys).call().silent();
    }
    c1.delete();
    before.assert_same(&Snapshot::take(&node.lab));
}

/// <https://github.com/containernetworking/plugins/issues/766>
/// <https://github.com/containernetworking/plugins/issues/773>
#[test]
fn a_device_renamed_in_the_container_is_found() {
    let node = Node::new("hd-rename");
    device(&node, "nic0");
    let before = Snapshot::take(&node.lab);
    let c1 = node.container("c1");
    for also in ["", "ip link set wan alias mine;", "ip link add eth0 type veth peer name x;"] {
        add(&node, &c1).call().ok();
        c1.sh(&format!("ip link set eth0 down; ip link set eth0 name wan; {also}"));
        del(&node, &c1).call().silent();
        c1.sh("! ip link show wan");
        let _ = c1.try_sh("ip link del eth0");
    }
    c1.delete();
    before.assert_same(&Snapshot::take(&node.lab));
}

/// The kernel gives hardware back to the initial namespace under the container's name, or as `devN`
/// if that is taken, down, with the alias. The test moves the device by hand, since a virtual
/// device would go with the namespace.
#[test]
fn a_device_that_the_kernel_brought_back_gets_its_name() {
    for name in ["eth0", "dev9"] {
        let node = Node::new("hd-back");
        device(&node, "nic0");
        node.sh("ip link set nic0 up");
        if name == "dev9" {
            node.sh("ip link add eth0 type veth peer name other");
        }
        let before = Snapshot::take(&node.lab);
        let c1 = node.container("c1");
        let path = c1.netns();
        add(&node, &c1).config(fixed(&node)).call().ok();
        let back = format!(
            "ip link set eth0 down; ip link set eth0 name {name}; ip link set {name} netns {}",
            node.lab.netns_path().display()
        );
        c1.sh(&back);
        drop(c1);
        let run = node.run("host-device", "DEL").id("c1").netns(&path);
        run.config(json!({ "device": "nic0" })).config(fixed(&node)).call().silent();
        before.assert_same(&Snapshot::take(&node.lab));
    }
}

/// The container's name for the device may be the device's own: it has returned, but not in its
/// former state.
#[test]
fn a_device_that_kept_its_name_gets_its_state() {
    let node = Node::new("hd-same");
    device(&node, "eth0");
    node.sh("ip link set eth0 up");
    let before = Snapshot::take(&node.lab);
    let c1 = node.container("c1");
    let path = c1.netns();
    add(&node, &c1).config(json!({ "device": "eth0" })).call().ok();
    c1.sh(&format!("ip link set eth0 mtu 1400 netns {}", node.lab.netns_path().display()));
    drop(c1);
    node.run("host-device", "DEL")
        .id("c1")
        .netns(&path)
        .config(json!({ "device": "eth0" }))
        .call()
        .silent();
    before.assert_same(&Snapshot::take(&node.lab));
}

#[test]
fn a_name_taken_meanwhile_is_told_and_the_device_still_comes_home() {
    let node = Node::new("hd-taken");
    device(&node, "nic0");
    let c1 = node.container("c1");
    let mac = link(&node.lab, "nic0")["address"].as_str().unwrap().to_owned();
    add(&node, &c1).call().ok();
    node.sh("ip link add nic0 type veth peer name other");
    let answer = del(&node, &c1).call();
    assert!(answer.succeeded() && answer.stderr().contains("another link is called"), "{answer:?}");
    assert!(!succeeds(&c1, "ip link show eth0"));
    let links = node.sh("ip -o link");
    let home = links.lines().find(|line| line.contains(&mac)).unwrap();
    assert!(home.contains(" dev") && home.contains("alias nic0"), "{home}");
    // The device keeps that name even when its own is free again: no further DEL comes for it.
    node.sh("ip link del nic0");
    del(&node, &c1).call().silent();
    assert_eq!(node.sh("ip -o link | grep -c ' nic0[@:]' || true").trim(), "0");
    assert!(node.sh("ip -o link").lines().any(|line| line.contains(" dev") && line.contains(&mac)));
}

/// A dead container's device is taken over. The container got no DEL, and the next container
/// requests the device by its original name, which it no longer has, or by something that it has
/// kept.
#[test]
fn a_dead_holders_device_is_taken_over() {
    for key in ["device", "hwaddr"] {
        let node = Node::new("hd-dead");
        device(&node, "nic0");
        node.sh("ip link set nic0 up");
        let keys = match key {
            "device" => json!({ "device": "nic0" }),
            _ => json!({ "device": "", "hwaddr": link(&node.lab, "nic0")["address"] }),
        };
        let before = Snapshot::take(&node.lab);
        let (c1, c2) = (node.container("c1"), node.container("c2"));
        add(&node, &c1).config(keys.clone()).call().ok();
        let path = c1.netns();
        c1.sh(&format!("ip link set eth0 netns {}", node.lab.netns_path().display()));
        drop(c1);
        let result = add(&node, &c2).config(keys.clone()).call().ok();
        assert_eq!(link(&c2, "eth0")["ifalias"], "nic0", "{key}");
        // The dead container's DEL comes late and takes nothing.
        let late = node.run("host-device", "DEL").id("c1").netns(&path).config(keys.clone());
        late.call().silent();
        check(&node, &c2, &result).config(keys.clone()).call().silent();
        del(&node, &c2).config(keys).call().silent();
        drop(c2);
        before.assert_same(&Snapshot::take(&node.lab));
    }
}

/// The device returned after DEL had given up: only the mark has its name.
#[test]
fn a_device_that_came_back_late_is_found_by_its_mark() {
    let node = Node::new("hd-late");
    device(&node, "nic0");
    let before = Snapshot::take(&node.lab);
    node.sh("ip link set nic0 alias nic0 && ip link set nic0 name eth0");
    let c1 = node.container("c1");
    add(&node, &c1).call().ok();
    del(&node, &c1).call().silent();
    drop(c1);
    before.assert_same(&Snapshot::take(&node.lab));
}

#[test]
fn gc_brings_home_the_devices_of_stale_attachments_only() {
    let node = Node::new("hd-gc");
    for name in ["nic0", "nic1"] {
        device(&node, name);
    }
    let (c1, c2) = (node.container("c1"), node.container("c2"));
    let result = add(&node, &c1).call().ok();
    let before = Snapshot::take(&node.lab);
    // A container whose namespace exists: only GC's list shows that it is stale.
    node.sh("ip link show nic1");
    add(&node, &c2).config(json!({ "device": "nic1" })).call().ok();
    network(&node, "GC").valid(&[("c1", "eth0")]).call().silent();
    before.assert_same(&Snapshot::take(&node.lab));
    check(&node, &c1, &result).call().silent();
    network(&node, "GC").valid(&[]).call().silent();
    node.sh("ip link show nic0");
}

/// A device that the Go plugin moved has its mark and no record of ours.
#[test]
fn what_the_reference_moved_comes_home() {
    let node = Node::new("hd-theirs");
    device(&node, "nic0");
    let before = Snapshot::take(&node.lab);
    let c1 = node.container("c1");
    let theirs = |container: &testkit::Container| {
        node.sh(&format!("ip link set nic0 netns {}", container.name()));
        container
            .sh("ip link set nic0 alias nic0 && ip link set nic0 name eth0 && ip link set eth0 up");
    };
    theirs(&c1);
    node.run("host-device", "DEL")
        .to(&c1)
        .config(json!({ "hwaddr": "02:00:00:00:00:01" }))
        .call()
        .silent();
    node.sh("ip link show nic0 | grep -qv alias");
    // The device was renamed inside: its name is in the configuration.
    theirs(&c1);
    c1.sh("ip link set eth0 down; ip link set eth0 name wan");
    del(&node, &c1).call().silent();
    // The device's namespace is gone.
    theirs(&c1);
    c1.sh(&format!("ip link set eth0 netns {}", node.lab.netns_path().display()));
    drop(c1);
    node.run("host-device", "DEL")
        .id("c1")
        .netns("/run/netns/c1")
        .config(json!({ "device": "nic0" }))
        .call()
        .silent();
    before.assert_same(&Snapshot::take(&node.lab));
}

/// Our device meets what the Go plugin's DEL expects: the interface's name, and the device's former
/// name as its alias.
#[test]
fn the_reference_can_bring_ours_home() {
    let node = Node::new("hd-ours");
    device(&node, "nic0");
    let before = Snapshot::take(&node.lab);
    let c1 = node.container("c1");
    add(&node, &c1).call().ok();
    let alias = link(&c1, "eth0")["ifalias"].as_str().unwrap().to_owned();
    c1.sh(&format!("ip link set eth0 down && ip link set eth0 name {alias} && ip link set {alias} alias '' && ip link set {alias} netns {}", node.lab.netns_path().display()));
    // The record still exists; our DEL and GC must not fail on it.
    del(&node, &c1).call().silent();
    c1.delete();
    before.assert_same(&Snapshot::take(&node.lab));
}

/// An interface of that name without a mark and without a record is foreign.
#[test]
fn a_foreign_interface_is_left_alone() {
    let node = Node::new("hd-foreign");
    let c1 = node.container("c1");
    for alias in ["", "alias netwright:other/c1/eth0", "alias 'two words'"] {
        c1.sh("ip link add eth0 type veth peer name x");
        if !alias.is_empty() {
            c1.sh(&format!("ip link set eth0 {alias}"));
        }
        let answer = del(&node, &c1).call();
        assert!(answer.succeeded() && answer.stderr().contains("left alone"), "{answer:?}");
        c1.sh("ip link del eth0");
    }
}

/// The peer on the host shows which end of the pair has returned.
fn end_of(node: &Node, peer: &str) -> Value {
    link(&node.lab, peer)["link"].clone()
}

/// A container may give any link of its own the name and the alias of the device.
#[test]
fn a_link_that_the_container_made_does_not_come_home_in_the_devices_place() {
    let node = Node::new("hd-forged");
    device(&node, "nic0");
    let c1 = node.container("c1");
    let result = add(&node, &c1).call().ok();
    let mac = link(&c1, "eth0")["address"].as_str().unwrap().to_owned();
    c1.sh(&format!(
        "ip link set eth0 down && ip link set eth0 name hidden alias '' && \
         ip link add eth0 address {mac} type veth peer name far && ip link set eth0 alias nic0 && \
         ip link set eth0 up"
    ));
    check(&node, &c1, &result).call().fails(104, "another device than ADD moved");
    del(&node, &c1).call().silent();
    assert_eq!(end_of(&node, "pnic0"), "nic0");
    assert!(!succeeds(&c1, "ip link show hidden"), "the device is still in the container");
    assert!(succeeds(&c1, "ip link show eth0"), "the container's own link was taken");
}

/// The link is left even if it has the ifindex that the device had.
#[test]
fn a_link_in_a_deleted_devices_place_stays_in_the_container() {
    let node = Node::new("hd-forged-index");
    device(&node, "nic0");
    let c1 = node.container("c1");
    add(&node, &c1).call().ok();
    let index = link(&c1, "eth0")["ifindex"].as_u64().unwrap();
    c1.sh(&format!(
        "ip link del eth0 && ip link add name eth0 index {index} type veth peer name far && \
         ip link set eth0 alias nic0"
    ));
    assert_eq!(link(&c1, "eth0")["ifindex"], index);
    let answer = del(&node, &c1).call();
    assert!(answer.stderr().contains("is another link than device"), "{answer:?}");
    answer.silent();
    assert!(!succeeds(&node.lab, "ip link show nic0"), "a link of the container's came home");
    assert!(succeeds(&c1, "ip link show eth0"));
}

/// A program that has opened a tap reads and writes its packets wherever the tap is moved.
#[test]
fn vm_a_tap_that_the_container_has_opened_does_not_come_home() {
    testkit::require!("root", "tun");
    for queues in ["", "multi_queue"] {
        let node = Node::new("hd-tap-open");
        node.sh(&format!("ip tuntap add dev nic0 mode tap {queues} && ip link set nic0 up"));
        let c1 = node.container("c1");
        add(&node, &c1).call().ok();
        let open = || tun::open_tap(&Netns::current().unwrap(), "eth0", !queues.is_empty());
        let program = c1.enter(|| open().unwrap());
        for _ in 0..2 {
            del(&node, &c1).call().fails(11, "a program has device \"nic0\" open");
            assert!(!succeeds(&node.lab, "ip link show nic0"));
            assert!(succeeds(&c1, "ip link show eth0"));
        }
        drop(program);
        del(&node, &c1).call().silent();
        assert!(up(&node.lab, "nic0"));
    }
}

/// A program of the host has it open: a virtual machine, whose tap is lent meanwhile.
#[test]
fn vm_a_tap_that_the_host_has_open_comes_home() {
    testkit::require!("root", "tun");
    let node = Node::new("hd-tap-of-host");
    node.sh("ip tuntap add dev nic0 mode tap");
    let open = || tun::open_tap(&Netns::current().unwrap(), "nic0", false);
    let program = node.lab.enter(|| open().unwrap());
    let c1 = node.container("c1");
    add(&node, &c1).call().ok();
    del(&node, &c1).call().silent();
    assert!(succeeds(&node.lab, "ip link show nic0"));
    drop(program);
}
