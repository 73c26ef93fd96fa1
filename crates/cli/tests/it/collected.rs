//! What an attachment left is removed by what the plugins recorded, whatever became of the runtime's
//! cache and of the network's configuration.

use serde_json::{Value, json};
use testkit::{Lab, Place};

use crate::support::{EXECUTABLE, call_in};

fn write(lab: &Lab, plugins: &Value) {
    lab.sh("mkdir -p /etc/cni/net.d");
    let list = json!({ "cniVersion": "1.0.0", "name": "n", "plugins": plugins });
    std::fs::write(lab.path("/etc/cni/net.d/n.conflist"), list.to_string()).unwrap();
}

fn bridge() -> Value {
    let ipam =
        json!({ "type": "host-local", "subnet": "10.20.0.0/24", "dataDir": "/var/lib/pools" });
    json!({ "type": "bridge", "bridge": "b0", "isGateway": true, "ipMasq": true, "ipam": ipam })
}

/// What is left on the host.
fn left(lab: &Lab) -> String {
    lab.sh(
        "ip -br link | awk '{ print $1 }' | grep -v -e ^lo -e ^e[01]; ls /var/lib/pools/n | grep ^10
         nft list map inet netwright hostports4 2>/dev/null | grep 8080
         find /run/netwright/owners /var/lib/cni/results /var/lib/netwright -type f 2>/dev/null; true",
    )
}

fn listed(lab: &Lab) -> usize {
    let json = call_in(lab, &["list", "-o", "json"]).succeeded().json();
    json["attachments"].as_array().unwrap().len()
}

#[test]
fn gc_removes_by_records_what_no_configuration_names() {
    testkit::require!("root");
    let lab = Lab::new("collected");
    lab.sh("ip link add e0 type veth peer name e1 && ip link set e0 up && ip link set e1 up");
    let ports = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    let mut fixed = bridge();
    fixed["ipam"] = json!({ "type": "static" });
    let mut ptp = bridge();
    ptp["type"] = json!("ptp");
    ptp["ipam"]["subnet"] = json!("10.21.0.0/24");
    let macvlan = json!({ "type": "macvlan", "master": "e0", "ipam": bridge()["ipam"] });
    let many = json!({ "type": "multi", "networks": [
        { "name": "a", "config": bridge() }, { "name": "b", "config": ptp },
    ] });
    let chain = json!({ "type": "chain", "plugins": [bridge(), { "type": "firewall" }] });
    let published = json!([bridge(), ports]);
    for (attached, by_now) in [
        (&published, Some(published.clone())),
        (&published, Some(json!([ptp, ports]))),
        (&published, Some(json!([bridge()]))),
        (&published, Some(json!([fixed, ports]))),
        (&published, None),
        (&json!([macvlan]), Some(json!([fixed]))),
        (&json!([macvlan]), None),
        (&json!([many]), None),
        (&json!([chain]), Some(json!([ptp]))),
        (&json!([chain]), None),
    ] {
        for (cache, all) in [("truncate -s 0", false), ("rm", false), ("rm", true)] {
            let what = format!("{attached} {by_now:?} {cache} {all}");
            write(&lab, attached);
            let c1 = lab.container("c1");
            let mut add = vec!["add", "n", "c1"];
            if *attached == published {
                add.extend(["-p", "8080:80"]);
            }
            call_in(&lab, &add).succeeded();
            // What a power cut leaves of the runtime's cache.
            lab.sh(&format!("{cache} /var/lib/cni/results/n-*"));
            match &by_now {
                Some(plugins) => write(&lab, plugins),
                None => {
                    lab.sh("rm /etc/cni/net.d/n.conflist");
                }
            }
            // With --all what is of a container that lives, too.
            let c1 = if all {
                Some(c1)
            } else {
                drop(c1);
                None
            };
            let gc = if all { vec!["gc", "--all"] } else { vec!["gc"] };
            let said = call_in(&lab, &gc).succeeded();
            assert!(said.stdout.contains("of cnitool-"), "{what}: {said:#?}");
            assert_eq!(left(&lab), "", "{what}: {said:#?}");
            assert_eq!(listed(&lab), 0, "{what}");
            let said = call_in(&lab, &["gc", "--all"]).succeeded();
            assert_eq!(said.stdout, "removed 0, kept 0\n", "{what}");
            if let Some(c1) = c1 {
                assert_eq!(c1.sh("ip -br link | wc -l").trim(), "1", "{what}");
            }
        }
    }
}

#[test]
fn del_needs_neither_the_cache_nor_the_configuration() {
    testkit::require!("root");
    let lab = Lab::new("collected-del");
    for valid in [false, true] {
        write(&lab, &json!([bridge()]));
        let c1 = lab.container("c1");
        call_in(&lab, &["add", "n", "c1"]).succeeded();
        lab.sh("rm -r /var/lib/cni/results /etc/cni/net.d");
        if valid {
            call_in(&lab, &["gc", "n", "--valid", "c2"]).succeeded();
        } else {
            let said = call_in(&lab, &["del", "n", "c1"]).succeeded();
            assert!(said.both().contains("detached eth0"), "{said:#?}");
        }
        assert_eq!((left(&lab), listed(&lab)), (String::new(), 0));
        drop(c1);
    }
}

/// gc does not say of anything that it removed it while it is there.
#[test]
fn gc_tells_what_stays() {
    testkit::require!("root");
    let lab = Lab::new("collected-stays");
    write(&lab, &json!([bridge()]));
    let c1 = lab.container("c1");
    call_in(&lab, &["add", "n", "c1"]).succeeded();
    lab.sh("rm /var/lib/cni/results/n-*; cd /run/netwright/owners/*/ && sed -i s/bridge/unheard-of/ *.json && mv *.json unheard-of.json");
    drop(c1);
    let said = call_in(&lab, &["gc"]);
    assert!(said.code != 0 && said.stdout.contains("the record of \"unheard-of\""), "{said:#?}");
    assert!(said.stdout.contains("removed 0, kept 0, 1 failed"), "{said:#?}");
}

#[test]
fn an_add_that_a_plugin_refuses_leaves_no_record() {
    testkit::require!("root");
    let lab = Lab::new("collected-refused");
    lab.sh(&format!("mkdir -p /run/bin /etc/cni/net.d && ln -s {EXECUTABLE} /run/bin/mybridge"));
    let pool = json!({ "type": "host-local", "subnet": "10.20.0.0/24" });
    for config in [
        json!({ "cniVersion": "v1.0.0", "type": "bridge", "bridge": "q0", "ipam": pool }),
        json!({ "cniVersion": "1.0", "type": "bridge", "bridge": "q0", "ipam": pool }),
        json!({ "cniVersion": "1.0.0", "type": "ovs", "bridge": "q0", "socket_file": "foo" }),
        json!({ "cniVersion": "1.0.0", "type": "mybridge", "bridge": "q0", "ipam": pool }),
        json!({ "cniVersion": "1.0.0", "type": "bridge", "bridge": "q0", "ipam": { "type": "host-local", "dataDir": 5 } }),
        json!({ "cniVersion": "1.0.0", "type": "bridge", "ipam": { "type": "dhcp", "daemonSocketPath": 5 } }),
        json!({ "cniVersion": "1.0.0", "type": "macvlan", "mtu": "x" }),
    ] {
        let mut config = config;
        config["name"] = json!("n");
        std::fs::write(lab.path("/etc/cni/net.d/n.conf"), config.to_string()).unwrap();
        let c1 = lab.container("c1");
        let mut add = crate::support::command_in(&lab, &["add", "n", "c1"]);
        add.env("CNI_PATH", "/run/bin");
        assert!(crate::support::said(add).code != 0, "{config}");
        assert_eq!(listed(&lab), 0, "{config}");
        drop(c1);
        assert_eq!(lab.sh("ls /var/lib/cni/results"), "", "{config}");
    }
}

/// Another project's plugin that answers every verb with the same error.
fn answers(lab: &Lab, name: &str, code: u32) {
    let script = format!(
        "#!/bin/sh\ncat >/dev/null\necho '{{\"code\":{code},\"msg\":\"range foo is wrong\"}}'\nexit 1\n"
    );
    std::fs::write(lab.path(format!("/run/bin/{name}")), script).unwrap();
    lab.sh(&format!("chmod +x /run/bin/{name}"));
}

/// A plugin that refuses its configuration at ADD and at DEL has made nothing, wherever in a
/// network it is.
#[test]
fn an_add_that_a_plugin_inside_another_refuses_leaves_no_record() {
    testkit::require!("root");
    let lab = Lab::new("collected-inside");
    lab.sh(&format!(
        "mkdir -p /run/bin /run/flannel /etc/cni/net.d
         for name in bridge host-local chain multi netwright-multi flannel firewall; do
             ln -s {EXECUTABLE} /run/bin/$name
         done"
    ));
    answers(&lab, "refuses", 7);
    let refuses = json!({ "type": "refuses" });
    let mut by_pool = bridge();
    by_pool["ipam"] = refuses.clone();
    let wrong_pool = json!({ "type": "bridge", "ipam": { "type": "host-local", "subnet": "x" } });
    let nobody = json!({ "type": "bridge", "ipam": { "type": "nobody" } });
    let chain = |plugins: Value| json!({ "type": "chain", "plugins": plugins });
    let several = |config: &Value| {
        let named = |name: &str, config: &Value| json!({ "name": name, "config": config });
        json!({ "type": "multi", "networks": [named("a", &bridge()), named("b", config)] })
    };
    let flannel = |keys: Value| {
        let mut config = json!({ "type": "flannel", "subnetFile": "/run/flannel/subnet.env" });
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        config
    };
    let (range, absent) = ("range foo is wrong", "\"nobody\"");
    let refused = [
        (json!([refuses]), range),
        (json!([by_pool]), range),
        (json!([bridge(), refuses]), range),
        (json!([chain(json!([refuses]))]), range),
        (json!([chain(json!([by_pool, { "type": "firewall" }]))]), range),
        (json!([chain(json!([bridge(), refuses]))]), range),
        (json!([chain(json!([wrong_pool]))]), "invalid CIDR"),
        (json!([chain(json!([nobody]))]), absent),
        (json!([chain(json!([bridge(), { "type": "nobody" }]))]), absent),
        (json!([several(&refuses)]), range),
        (json!([several(&by_pool)]), range),
        (json!([several(&wrong_pool)]), "invalid CIDR"),
        (json!([several(&nobody)]), absent),
        (json!([several(&json!({ "type": "nobody" }))]), absent),
        (json!([flannel(json!({ "subnetFile": "/run/flannel/none" }))]), "subnet.env"),
        (json!([flannel(json!({ "delegate": { "type": "nobody" } }))]), absent),
        (json!([flannel(json!({ "delegate": refuses }))]), range),
        (json!([flannel(json!({ "ipam": { "type": "refuses" } }))]), range),
        (json!([chain(json!([flannel(json!({ "delegate": refuses }))]))]), range),
    ];
    let subnet = "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.0.1/24\nFLANNEL_MTU=1450\n\
                  FLANNEL_IPMASQ=true\n";
    std::fs::write(lab.path("/run/flannel/subnet.env"), subnet).unwrap();
    let add = || {
        let mut add = crate::support::command_in(&lab, &["add", "n", "c1"]);
        add.env("CNI_PATH", "/run/bin");
        crate::support::said(add)
    };
    let files = "find /run/netwright/owners /var/lib/cni/results /var/lib/cni/flannel \
                 /var/lib/netwright/multi -mindepth 1 2>/dev/null || true";
    for (plugins, words) in refused {
        write(&lab, &plugins);
        let c1 = lab.container("c1");
        let said = add();
        assert!(said.code != 0 && said.stderr.contains(words), "{plugins}: {said:#?}");
        assert!(!said.stderr.contains("undoing"), "{plugins}: {said:#?}");
        assert_eq!((listed(&lab), lab.sh(files)), (0, String::new()), "{plugins}: {said:#?}");
        assert_eq!(c1.sh("ip -br link | wc -l").trim(), "1", "{plugins}");
        drop(c1);
        let said = call_in(&lab, &["gc", "--all"]).succeeded();
        assert_eq!(said.stdout, "removed 0, kept 0\n", "{plugins}");
    }
    // What it answers for another reason, nobody knows: the record stays until a DEL succeeds.
    answers(&lab, "refuses", 100);
    for plugins in [
        json!([refuses]),
        json!([by_pool]),
        json!([chain(json!([bridge(), refuses]))]),
        json!([several(&by_pool)]),
        json!([flannel(json!({ "delegate": refuses }))]),
    ] {
        write(&lab, &plugins);
        let c1 = lab.container("c1");
        let said = add();
        assert!(said.code != 0 && said.stderr.contains("undoing"), "{plugins}: {said:#?}");
        drop(c1);
        let gc = || {
            let mut gc = crate::support::command_in(&lab, &["gc", "--all"]);
            gc.env("CNI_PATH", "/run/bin");
            crate::support::said(gc)
        };
        let said = gc();
        assert!(said.stdout.contains("range foo is wrong"), "{plugins}: {said:#?}");
        assert_eq!(listed(&lab), 1, "{plugins}");
        lab.sh("mv /run/bin/refuses /run/refuses && ln -s /bin/true /run/bin/refuses");
        gc().succeeded();
        assert_eq!((listed(&lab), lab.sh(files)), (0, String::new()), "{plugins}");
        lab.sh("mv /run/refuses /run/bin/refuses");
    }
}

/// A rootless runtime has user, mount and network namespaces of its own, and the machine's PID
/// namespace: it sees processes that do not show it their namespaces.
#[test]
fn what_ended_in_a_user_namespace_is_gone() {
    testkit::require!("root", "program:setpriv");
    let lab = Lab::new("collected-rootless");
    let plugins = json!([
        { "type": "bridge", "bridge": "b0", "isGateway": true,
          "ipam": { "type": "host-local", "subnet": "10.4.0.0/29" } },
        { "type": "portmap", "capabilities": { "portMappings": true } },
    ]);
    let list = json!({ "cniVersion": "1.0.0", "name": "n", "plugins": plugins });
    let script = format!(
        "for dir in /run /etc /var; do mount -t tmpfs none $dir; done
         mkdir -p /etc/cni/net.d && echo '{list}' > /etc/cni/net.d/n.conflist
         ip link set lo up
         netwright() {{ NETWRIGHT_CACHE_DIR=/var/cni {EXECUTABLE} \"$@\" 2>> /run/log; }}
         for count in 1 2 3 4 5 6 7 8; do
             unshare -n sleep 1000 >/dev/null 2>&1 & own=$!
             until [ \"$(readlink /proc/$own/ns/net)\" != \"$(readlink /proc/self/ns/net)\" ]; do sleep 0.01; done
             netwright add n /proc/$own/ns/net -p 8080:80 | grep -c 10.4.0.
             kill -9 $own; wait $own 2>/dev/null
         done
         netwright list | grep -c gone
         netwright gc | tail -n 1
         netwright list
         cat /run/log >&2"
    );
    std::fs::write(lab.path("/run/script"), script).unwrap();
    let said = lab.sh(
        "setpriv --reuid 65534 --regid 65534 --clear-groups unshare -Urmn --propagation private \
         bash -c 'exec 3< /run/script; . /dev/fd/3'",
    );
    let ended = "1\n".repeat(8) + "8\n";
    assert!(said.starts_with(&ended), "{said}");
    assert!(said.ends_with("removed 8, kept 0\nno attachments\n"), "{said}");
}

/// Records and cache are lost: what the kernel has is known by its marks. Two networks, of which the
/// records of one stay.
#[test]
fn gc_of_everything_finds_marks_without_records() {
    testkit::require!("root");
    let lab = Lab::new("collected-marks");
    let ports = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
    let mut ptp = bridge();
    ptp["type"] = json!("ptp");
    ptp["ipam"]["subnet"] = json!("10.21.0.0/24");
    for (plugins, lost) in [
        (json!([bridge(), ports, { "type": "firewall" }]), "/run/netwright"),
        (json!([ptp, ports]), "/run/netwright/owners"),
        (json!([bridge(), ports]), "/run/netwright/owners"),
    ] {
        for lives in [true, false] {
            write(&lab, &plugins);
            let c1 = lab.container("c1");
            call_in(&lab, &["add", "n", "c1", "-p", "8080:80"]).succeeded();
            lab.sh(&format!("rm -r {lost} /var/lib/cni/results /etc/cni/net.d"));
            let c1 = lives.then_some(c1);
            if !lives {
                // The kernel deletes the pair some time after the namespace.
                lab.sh("timeout 20 sh -c 'while ip -br link | grep -q ^veth; do sleep 0.05; done'");
            }
            let what = format!("{plugins} {lost} {lives}");
            let dry = call_in(&lab, &["gc", "--all", "--dry-run"]).succeeded();
            assert_ne!(left(&lab), "10.20.0.2\n", "{what}");
            let said = call_in(&lab, &["gc", "--all"]).succeeded();
            if lives {
                let told = "not looked at: what address plugins reserved on network n ";
                assert!(said.stdout.contains("removed eth0 of cnitool-"), "{what}: {said:#?}");
                assert!(said.stdout.contains(told), "{what}: {said:#?}");
                assert!(dry.stdout.contains("would remove eth0 of cnitool-"), "{what}: {dry:#?}");
            } else {
                let told = "entries of network n in the packet filter\n";
                assert!(said.stdout.contains(told), "{what}: {said:#?}");
                assert!(dry.stdout.contains(told), "{what}: {dry:#?}");
                let told = "not looked at: what address plugins reserved on network n ";
                assert!(said.stdout.contains(told), "{what}: {said:#?}");
            }
            let address = lab.sh("cd /var/lib/pools/n && ls | grep ^10; rm -r /var/lib/pools/n");
            assert_eq!(
                left(&lab).replace(
                    "ls: cannot access '/var/lib/pools/n': No such file or directory\n",
                    ""
                ),
                "",
                "{what} {address}: {said:#?}"
            );
            assert!(!lab.sh("nft list ruleset").contains("table"), "{what}");
            let again = call_in(&lab, &["gc", "--all"]).succeeded();
            assert_eq!(again.stdout, "removed 0, kept 0\n", "{what}");
            drop(c1);
        }
    }
}

/// A foreign bridge, a tunnel of `netwrightd routing`, and what known attachments have stay.
#[test]
fn gc_of_one_network_leaves_the_marks_of_others() {
    testkit::require!("root");
    let lab = Lab::new("collected-others");
    write(&lab, &json!([bridge()]));
    let _c1 = lab.container("c1");
    call_in(&lab, &["add", "n", "c1"]).succeeded();
    lab.sh("rm -r /run/netwright/owners /var/lib/cni/results; \
         ip link add e0 alias netwright:routing type veth peer name e1; ip link add br9 type bridge");
    let before = lab.sh("ip -br link; nft list ruleset");
    let said = call_in(&lab, &["gc", "netwright", "--all"]).succeeded();
    assert_eq!(said.stdout, "removed 0, kept 0\n");
    // Nothing knows this one.
    call_in(&lab, &["gc", "other", "--all"]).failed(1);
    assert_eq!(lab.sh("ip -br link; nft list ruleset"), before);
    let said = call_in(&lab, &["gc", "--all"]).succeeded();
    assert!(said.stdout.contains("removed eth0 of "), "{said:#?}");
    let links = lab.sh("ip -br link");
    let has = |name: &str| links.lines().any(|link| link.starts_with(name));
    assert!(has("e0@") && has("br9 ") && !has("b0 "), "{links}");
}

/// What a DEL could not release stays recorded until it is released.
#[test]
fn a_release_that_failed_is_tried_again() {
    testkit::require!("root");
    let lab = Lab::new("collected-again");
    lab.sh("ip link add e0 type veth peer name e1 && ip link set e0 up && ip link set e1 up");
    let of = |kind: &str| {
        let mut config = bridge();
        config["type"] = json!(kind);
        match kind {
            "macvlan" => config["master"] = json!("e0"),
            "tap" => {
                config.as_object_mut().unwrap().remove("bridge");
            }
            _ => {}
        }
        config
    };
    for (kind, lives) in [
        ("bridge", true),
        ("bridge", false),
        ("ptp", true),
        ("macvlan", true),
        ("macvlan", false),
        ("tap", true),
    ] {
        let what = format!("{kind} {lives}");
        write(&lab, &json!([of(kind)]));
        let c1 = lab.container("c1");
        call_in(&lab, &["add", "n", "c1"]).succeeded();
        let c1 = lives.then_some(c1);
        lab.sh("rm -r /var/lib/cni/results /etc/cni/net.d
             mount --bind /var/lib/pools /var/lib/pools
             mount -o remount,bind,ro /var/lib/pools");
        let verb: &[&str] = if lives { &["del", "n", "c1"] } else { &["gc"] };
        for _ in 0..2 {
            let said = call_in(&lab, verb);
            assert!(said.code != 0, "{what}: {said:#?}");
            assert!(said.both().contains("release the addresses"), "{what}: {said:#?}");
        }
        assert_eq!(listed(&lab), 1, "{what}");
        lab.sh("umount /var/lib/pools");
        call_in(&lab, verb).succeeded();
        assert_eq!((left(&lab), listed(&lab)), (String::new(), 0), "{what}");
        drop(c1);
    }
}

#[test]
fn gc_does_not_fail_over_what_it_has_just_removed() {
    testkit::require!("root");
    let lab = Lab::new("collected-members");
    let mut ptp = bridge();
    ptp["type"] = json!("ptp");
    ptp["ipam"]["subnet"] = json!("10.21.0.0/24");
    let member = |name: &str, config: &Value| {
        let list = json!({ "cniVersion": "1.0.0", "name": name, "plugins": [config] });
        std::fs::write(lab.path(format!("/etc/cni/net.d/{name}.conflist")), list.to_string())
            .unwrap();
    };
    let many = json!({ "type": "multi", "networks": [{ "name": "lan" }, { "name": "sto", "ifname": "d0" }] });
    write(&lab, &json!([many]));
    member("lan", &bridge());
    member("sto", &ptp);
    let c1 = lab.container("c1");
    call_in(&lab, &["add", "n", "c1"]).succeeded();
    drop(c1);
    lab.sh("rm /etc/cni/net.d/lan.conflist /etc/cni/net.d/sto.conflist");
    let said = call_in(&lab, &["gc"]).succeeded();
    assert!(said.stdout.contains("d0 of cnitool-"), "{said:#?}");
    assert_eq!(listed(&lab), 0);
    assert_eq!(lab.sh("ls /var/lib/pools/* | grep ^10 || true"), "");
}
