//! An attachment meets its own past: a second ADD of a container's ID, by every door. The container
//! that lives keeps all that it has; one that is gone is no obstacle.

use serde_json::{Value, json};
use testkit::{Container, Lab, Place};

use crate::support::{CommandOutput, call_in, command_in, said_with};

/// The plugins of a network, by the network's name.
fn networks() -> Vec<(&'static str, Value)> {
    let pool = |subnet: &str| json!({ "type": "host-local", "subnet": subnet });
    let bridge = json!({ "type": "bridge", "bridge": "b0", "isGateway": true, "ipMasq": true,
                         "ipam": pool("10.4.1.0/24") });
    let ports = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    let mut fixed = bridge.clone();
    fixed["ipam"] = json!({ "type": "static", "addresses": [{ "address": "10.4.1.2/24" }] });
    let ptp = json!({ "type": "ptp", "ipam": pool("10.4.1.0/24") });
    let mut macvlan = ptp.clone();
    macvlan["type"] = json!("macvlan");
    macvlan["master"] = json!("e0");
    let members =
        [("a", bridge.clone()), ("b", json!({ "type": "ptp", "ipam": pool("10.5.1.0/24") }))];
    let members = members.map(|(name, config)| json!({ "name": name, "config": config }));
    vec![
        ("bridge", json!([bridge, ports])),
        ("fixed", json!([fixed, ports])),
        ("ptp", json!([ptp, ports])),
        ("macvlan", json!([macvlan])),
        ("tap", json!([{ "type": "tap", "ipam": pool("10.4.1.0/24") }])),
        ("chain", json!([{ "type": "chain", "plugins": [bridge, { "type": "firewall" }] }])),
        ("multi", json!([{ "type": "multi", "networks": members }])),
    ]
}

fn lab(name: &str) -> Lab {
    let lab = Lab::new(name);
    lab.sh("ip link add e0 type veth peer name e1 && ip link set e0 up && ip link set e1 up");
    call_in(&lab, &["install", "--bin-dir", "/run/bin", "--no-config"]).succeeded();
    lab.sh("mkdir -p /etc/cni/net.d");
    for (name, plugins) in networks() {
        let list = json!({ "cniVersion": "1.0.0", "name": name, "plugins": plugins });
        let path = lab.path(format!("/etc/cni/net.d/{name}.conflist"));
        std::fs::write(path, list.to_string()).unwrap();
    }
    lab
}

/// What the container has, and what the host keeps for it.
fn look(lab: &Lab, container: &Container) -> String {
    container.sh("ip -o addr show scope global; ip -o link show; ip route")
        + &lab.sh(
            "ip -br link | sort; find /var/lib/cni /run/netwright -type f | grep -v lock | sort; \
             nft list ruleset 2>/dev/null",
        )
}

/// `netwright add`, with a port where the network publishes ports.
fn add(lab: &Lab, network: &str, netns: &str) -> CommandOutput {
    let mut args = vec!["add", network, netns, "--container-id", "web"];
    if ["bridge", "fixed", "ptp"].contains(&network) {
        args.extend(["-p", "8080:80"]);
    }
    call_in(lab, &args)
}

/// The first plugin of a network, as a runtime starts it.
fn exec(lab: &Lab, verb: &str, network: &str, netns: &str) -> CommandOutput {
    let (_, plugins) = networks().into_iter().find(|(name, _)| *name == network).unwrap();
    let mut config = plugins[0].clone();
    config["cniVersion"] = json!("1.0.0");
    config["name"] = json!(network);
    let mut command = lab.command(&format!("/run/bin/{}", config["type"].as_str().unwrap()));
    command.env("CNI_COMMAND", verb).env("CNI_CONTAINERID", "web").env("CNI_IFNAME", "eth0");
    command.env("CNI_NETNS", netns).env("CNI_PATH", "/run/bin");
    said_with(command, config.to_string().as_bytes())
}

#[track_caller]
fn refused(said: CommandOutput, words: &str) {
    assert!(said.code != 0 && said.both().contains(words), "{words}: {said:#?}");
}

#[test]
fn a_container_that_lives_keeps_what_it_has() {
    testkit::require!("root");
    let lab = lab("second-lives");
    for (network, _) in networks() {
        let (c1, c2) = (lab.container("c1"), lab.container("c2"));
        add(&lab, network, "c1").succeeded();
        let before = look(&lab, &c1);
        let same = |what: &str| {
            assert_eq!(look(&lab, &c1), before, "{network}: {what}");
            assert_eq!(c2.sh("ip -br link | wc -l").trim(), "1", "{network}: {what}");
        };
        refused(add(&lab, network, "c2"), "/run/netns/c1");
        same("another namespace");
        refused(exec(&lab, "ADD", network, "/run/netns/c2"), "/run/netns/c1");
        same("another namespace, by the plugin");
        // Another path to its own namespace.
        lab.sh("touch /run/other && mount --bind /run/netns/c1 /run/other");
        refused(add(&lab, network, "/run/other"), "already exists");
        same("its own namespace");
        // Another runtime attached it.
        lab.sh("mv /var/lib/cni/results /run/results");
        for netns in ["c2", "c1"] {
            refused(add(&lab, network, netns), "already exists");
        }
        lab.sh("rm -rf /var/lib/cni/results && mv /run/results /var/lib/cni/results");
        same("without the runtime's cache");
        // A container may rename its interface. `multi` goes by its record.
        if network != "multi" {
            c1.sh("ip link set eth0 down && ip link set eth0 name net0");
            refused(add(&lab, network, "c1"), "already exists");
            c1.sh("ip link set net0 name eth0 && ip link set eth0 up");
            assert_eq!(c1.sh("ip -br link | wc -l").trim(), "2", "{network}: renamed");
        }
        lab.sh("umount /run/other");
        call_in(&lab, &["del", network, "c1", "--container-id", "web"]).succeeded();
        assert_eq!(lab.sh("ls /var/lib/cni/networks/* | grep ^10 || true"), "", "{network}");
    }
}

/// Without records, nothing tells where the container is, and its link shows that it may live.
#[test]
fn a_link_whose_record_is_lost_is_not_replaced() {
    testkit::require!("root");
    let lab = lab("second-lost");
    for network in ["bridge", "fixed", "ptp", "chain"] {
        let (c1, _c2) = (lab.container("c1"), lab.container("c2"));
        exec(&lab, "ADD", network, "/run/netns/c1").succeeded();
        lab.sh("rm -r /run/netwright/owners");
        let before = look(&lab, &c1);
        refused(exec(&lab, "ADD", network, "/run/netns/c2"), "already exists");
        refused(add(&lab, network, "c2"), "already exists");
        assert_eq!(look(&lab, &c1), before, "{network}");
        exec(&lab, "DEL", network, "/run/netns/c1").succeeded();
    }
}

/// As after a power cut: nothing ran DEL, `/run` is empty, and the machine has another boot ID.
fn reboot(lab: &Lab) {
    lab.sh(
        "rm -rf /run/netwright; ip link del b0 2>/dev/null; ip link del nw0 2>/dev/null; nft flush ruleset
         echo 11111111-2222-4333-8444-555555555555 > /run/boot
         mount --bind /run/boot /proc/sys/kernel/random/boot_id",
    );
}

#[test]
fn a_container_gets_its_own_address_again() {
    testkit::require!("root");
    let lab = lab("second-again");
    let address =
        |container: &Container| container.sh("ip -o -4 addr show eth0 | awk '{ print $4 }'");
    for (network, _) in networks() {
        for rebooted in [false, true] {
            let c1 = lab.container("c1");
            add(&lab, network, "c1").succeeded();
            let had = address(&c1);
            drop(c1);
            if rebooted {
                reboot(&lab);
            }
            let c2 = lab.container("c2");
            let what = format!("{network}, rebooted: {rebooted}");
            let said = add(&lab, network, "c2").succeeded();
            assert_eq!(address(&c2), had, "{what}: {said:#?}");
            lab.sh("mountpoint -q /proc/sys/kernel/random/boot_id && umount /proc/sys/kernel/random/boot_id || true");
            call_in(&lab, &["del", network, "c2", "--container-id", "web"]).succeeded();
            let left = lab.sh("ls /var/lib/cni/networks/* | grep ^10 || true");
            assert_eq!(left, "", "{what}");
        }
    }
}

/// A reboot does not prove to anybody else that a container is gone.
#[test]
fn another_container_gets_no_address_because_of_a_reboot() {
    testkit::require!("root");
    let lab = lab("second-other");
    let c1 = lab.container("c1");
    exec(&lab, "ADD", "macvlan", "/run/netns/c1").succeeded();
    lab.sh("rm -rf /run/netwright");
    lab.sh("echo 11111111-2222-4333-8444-555555555555 > /run/boot && mount --bind /run/boot /proc/sys/kernel/random/boot_id");
    let _c2 = lab.container("c2");
    let ask = ["add", "macvlan", "c2", "--container-id", "other", "--ip", "10.4.1.2"];
    refused(call_in(&lab, &ask), "10.4.1.2");
    assert_eq!(lab.sh("ls /var/lib/cni/networks/macvlan | grep ^10"), "10.4.1.2\n");
    drop(c1);
}

#[test]
fn the_oci_hook_starts_again_what_a_power_cut_ended_and_nothing_that_lives() {
    testkit::require!("root");
    let lab = lab("second-hook");
    let hook = |pid: u32, networks: &str| {
        let state = json!({ "ociVersion": "1.0.2", "id": "web", "status": "creating", "pid": pid,
                            "annotations": { "dev.netwright.networks": networks } });
        said_with(command_in(&lab, &["oci-hook", "createRuntime"]), state.to_string().as_bytes())
    };
    for networks in ["netwright", "netwright:ip=10.63.7.7", "bridge ptp:ip=10.4.1.9"] {
        let networks = networks.replace(' ', ",");
        let mut c1 = lab.container("c1");
        hook(c1.pid(), &networks).succeeded();
        let before = look(&lab, &c1);
        let mut c2 = lab.container("c2");
        refused(hook(c2.pid(), &networks), "already exists");
        assert_eq!(look(&lab, &c1), before, "{networks}");
        let addresses =
            |one: &Container| one.sh("ip -o -4 addr show scope global | awk '{ print $2, $4 }'");
        let had = addresses(&c1);
        drop(c1);
        reboot(&lab);
        hook(c2.pid(), &networks).succeeded();
        assert_eq!(addresses(&c2), had, "{networks}");
        lab.sh("umount /proc/sys/kernel/random/boot_id");
        drop(c2);
        call_in(&lab, &["gc", "--all"]).succeeded();
    }
}

/// Another runtime's container has the attachment's names: nothing but its reservation tells.
#[test]
fn an_undo_leaves_the_reservation_that_was_there_before() {
    testkit::require!("root");
    let lab = lab("second-undo");
    let pool = json!({ "type": "host-local", "subnet": "10.4.1.0/24" });
    let mut broken = pool.clone();
    broken["resolvConf"] = json!("/nonexistent");
    let write = |name: &str, plugins: Value| {
        let list = json!({ "cniVersion": "1.0.0", "name": name, "plugins": plugins });
        let path = lab.path(format!("/etc/cni/net.d/{name}.conflist"));
        std::fs::write(path, list.to_string()).unwrap();
    };
    let bridge = |ipam: &Value| json!({ "type": "bridge", "bridge": "b0", "ipam": ipam });
    // Refusals of the address plugin, of another code too, and of the plugin itself.
    for (ipam, words) in [(&pool, "duplicate"), (&broken, "/nonexistent")] {
        let member = json!({ "name": "n", "config": bridge(ipam) });
        for plugins in [
            json!([bridge(ipam), { "type": "portmap", "capabilities": { "portMappings": true } }]),
            json!([{ "type": "ptp", "ipam": ipam }]),
            json!([{ "type": "tap", "ipam": ipam }]),
            json!([{ "type": "macvlan", "master": "e0", "ipam": ipam }]),
            json!([{ "type": "host-device", "device": "d0", "ipam": ipam }]),
            json!([{ "type": "chain", "plugins": [bridge(ipam)] }]),
            json!([{ "type": "multi", "networks": [member] }]),
        ] {
            let kind = plugins[0]["type"].as_str().unwrap();
            if *ipam == broken && !["bridge", "macvlan", "multi"].contains(&kind) {
                continue;
            }
            lab.sh("ip link add d0 type veth peer name d1");
            // A member of `multi` has the name of the network here.
            let name = if kind == "multi" { "outer" } else { "n" };
            write(name, plugins.clone());
            let c2 = lab.container("c2");
            lab.sh("mkdir -p /var/lib/cni/networks/n; cd /var/lib/cni/networks/n
                 printf 'web\\r\\neth0' > 10.4.1.2");
            let said = add_without_ports(&lab, name, "c2");
            refused(said, words);
            let left = lab.sh("cat /var/lib/cni/networks/n/10.4.1.2; ls /var/lib/cni/results");
            assert_eq!(left, "web\r\neth0", "{plugins}");
            assert_eq!(c2.sh("ip -br link | wc -l").trim(), "1", "{plugins}");
            lab.sh("rm -r /var/lib/cni/networks/n; ip link del d0");
            drop(c2);
        }
    }
    // By the hook.
    lab.sh(
        "mkdir -p /var/lib/cni/networks/n; printf 'web\\r\\neth0' > /var/lib/cni/networks/n/10.4.1.2",
    );
    write("n", json!([bridge(&pool)]));
    let mut c2 = lab.container("c2");
    let state = json!({ "ociVersion": "1.0.2", "id": "web", "status": "creating", "pid": c2.pid(),
                        "annotations": { "dev.netwright.networks": "n" } });
    let command = command_in(&lab, &["oci-hook", "createRuntime"]);
    refused(said_with(command, state.to_string().as_bytes()), "duplicate");
    assert_eq!(lab.sh("ls /var/lib/cni/networks/n | grep ^10"), "10.4.1.2\n");
}

fn add_without_ports(lab: &Lab, network: &str, netns: &str) -> CommandOutput {
    call_in(lab, &["add", network, netns, "--container-id", "web"])
}

/// Without records, the container keeps its reservation, and an interface that it has renamed.
#[test]
fn what_nothing_is_recorded_of_is_not_undone() {
    testkit::require!("root");
    let lab = lab("second-unrecorded");
    for network in ["macvlan", "tap"] {
        let (c1, _c2) = (lab.container("c1"), lab.container("c2"));
        add(&lab, network, "c1").succeeded();
        lab.sh("rm -r /run/netwright /var/lib/cni/results");
        let has = || {
            let links = c1.sh("ip -br link | awk '{ print $1 }'");
            links + &lab.sh(&format!("ls /var/lib/cni/networks/{network} | grep ^10"))
        };
        let before = has();
        refused(add(&lab, network, "c2"), "duplicate");
        assert_eq!(has(), before, "{network}");
        c1.sh("ip link set eth0 down && ip link set eth0 name net0");
        let before = has();
        refused(add(&lab, network, "c1"), "already exists");
        assert_eq!(has(), before, "{network}");
        call_in(&lab, &["del", network, "c1", "--container-id", "web"]).succeeded();
        assert_eq!(lab.sh("ls /var/lib/cni/networks/* | grep ^10 || true"), "", "{network}");
    }
}
