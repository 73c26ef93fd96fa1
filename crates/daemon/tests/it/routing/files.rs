//! The files that runtimes and plugins read, and the ranges that are refused before anything is
//! programmed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};
use testkit::traffic::{self, Server};
use testkit::{Place as _, Service, Snapshot, wait_until};

use super::cluster::cluster;
use super::{Fabric, INTERVAL, RANGES};

/// The service writes the configuration and `subnet.env` once this node is programmed, and restores
/// them when they are changed. `--uninstall` removes them.
#[test]
fn files_for_pods_are_written_last_and_put_back() {
    testkit::require!("root");
    let mut fabric = Fabric::new("routing-files", &[2]);
    let folder = fabric.lab.dir().join("net.d");
    fs::create_dir(&folder).unwrap();
    let (conflist, env) = (folder.join("10-pods.conflist"), fabric.lab.dir().join("subnet.env"));
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    fabric.flags =
        ["--conflist", &text(&conflist), "--subnet-env", &text(&env), "--path", "direct"]
            .map(str::to_owned)
            .to_vec();
    let before = Snapshot::of(&fabric.nodes[0].host);
    fabric.start_on(0);
    wait_until("the configuration", || conflist.exists());
    let list: Value = serde_json::from_slice(&fs::read(&conflist).unwrap()).unwrap();
    let plugin = &list["plugins"][0];
    assert_eq!((&list["name"], &plugin["type"]), (&"pods".into(), &"bridge".into()));
    assert_eq!((&plugin["mtu"], &plugin["ipMasq"]), (&1500.into(), &false.into()));
    assert_eq!(plugin["ipam"]["ranges"][0][0]["subnet"], "10.244.1.0/24");
    assert_eq!(
        fs::read_to_string(&env).unwrap(),
        "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n\
         FLANNEL_IPV6_NETWORK=fd00:244::/32\nFLANNEL_IPV6_SUBNET=fd00:244:1::1/64\n\
         FLANNEL_MTU=1500\nFLANNEL_IPMASQ=true\n"
    );
    assert_eq!(fs::metadata(&env).unwrap().permissions().mode() & 0o777, 0o644);
    let whole = fs::read(&conflist).unwrap();
    for spoilt in [None, Some("{}")] {
        match spoilt {
            None => fs::remove_file(&conflist).unwrap(),
            Some(text) => fs::write(&conflist, text).unwrap(),
        }
        wait_until("it to be put back", || fs::read(&conflist).is_ok_and(|now| now == whole));
    }
    // The underlay's MTU shrinks: the pods' MTU does too, at once.
    fabric.nodes[0].host.sh("ip link set eth0 mtu 1400");
    wait_until("the new MTU", || {
        let text = fs::read(&conflist).unwrap();
        serde_json::from_slice::<Value>(&text).is_ok_and(|list| list["plugins"][0]["mtu"] == 1400)
    });
    fabric.nodes[0].host.sh("ip link set eth0 mtu 1500");
    fabric.uninstall(0);
    assert!(!conflist.exists() && !env.exists());
    before.assert_same(&Snapshot::of(&fabric.nodes[0].host));
}

/// Where `[policy]` is enabled, pods start under network policy. Each has a veth pair of its own,
/// unless the configuration asks for a bridge.
#[test]
fn pods_start_under_network_policy_where_it_is_enabled() {
    testkit::require!("root");
    let mut fabric = Fabric::new("routing-policy", &[1]);
    let folder = fabric.lab.dir().join("net.d");
    fs::create_dir(&folder).unwrap();
    let conflist = folder.join("10-pods.conflist");
    let file = fabric.lab.dir().join("netwrightd.toml");
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let (path, file_shown) = (text(&conflist), text(&file));
    for (more, attach, shown) in [
        (
            "socketpath = \"/run/p.sock\"",
            None,
            json!({ "type": "policy", "socketpath": "/run/p.sock" }),
        ),
        ("", Some("bridge"), json!({ "type": "policy" })),
    ] {
        let policy = format!("[policy]\nenable = true\nobjects = [\"/etc/policies\"]\n{more}\n");
        fs::write(&file, policy).unwrap();
        let flags = ["--configuration", &file_shown, "--conflist", &path, "--path", "direct"];
        let attached = attach.map(|attach| ["--attach", attach]);
        let flags = flags.into_iter().chain(attached.into_iter().flatten());
        fabric.flags = flags.map(str::to_owned).collect();
        fabric.start_on(0);
        wait_until("the configuration", || conflist.exists());
        let list: Value = serde_json::from_slice(&fs::read(&conflist).unwrap()).unwrap();
        let plugins = list["plugins"].as_array().unwrap();
        let types: Vec<&str> = plugins.iter().filter_map(|one| one["type"].as_str()).collect();
        assert_eq!(types, [attach.unwrap_or("ptp"), "policy", "portmap"]);
        assert_eq!(plugins[1], shown);
        fabric.uninstall(0);
    }
}

/// If runtimes take another configuration before ours, the service names it and says what to do,
/// but leaves it.
#[test]
fn a_configuration_that_comes_before_ours_is_named() {
    testkit::require!("root");
    let mut fabric = Fabric::new("routing-second", &[1]);
    let folder = fabric.lab.dir().join("net.d");
    fs::create_dir(&folder).unwrap();
    let conflist = folder.join("10-pods.conflist");
    let path = conflist.to_str().unwrap().to_owned();
    fabric.flags = vec!["--path".to_owned(), "direct".to_owned(), "--conflist".to_owned(), path];
    let other = folder.join("05-other.conflist");
    let text = r#"{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"bridge"}]}"#;
    fs::write(&other, text).unwrap();
    // One configuration leads to ours, one comes after ours, and runtimes do not read the last.
    fs::write(folder.join("00-multus.conf"), r#"{"name":"m","type":"multus"}"#).unwrap();
    fs::write(folder.join("99-last.conflist"), text).unwrap();
    fs::write(folder.join("01-other.conflist.disabled"), text).unwrap();
    fabric.start_on(0);
    wait_until("our configuration", || conflist.exists());
    let warnings = |fabric: &Fabric| fabric.routes(0)["warnings"].clone();
    wait_until("it to be named", || warnings(&fabric).as_array().unwrap().len() == 1);
    let other_shown = other.display();
    let sentence = format!(
        "{other_shown} comes before 10-pods.conflist: containerd and CRI-O use it, and attach no \
         pods to \"pods\"; if it is not needed: mv {other_shown} {other_shown}.disabled"
    );
    assert_eq!(warnings(&fabric)[0], *sentence);
    // The service says it once, and again when there is another configuration.
    fs::write(folder.join("99-last.conflist"), "{}").unwrap();
    fs::write(folder.join("07-more.json"), text).unwrap();
    wait_until("both to be named", || warnings(&fabric).as_array().unwrap().len() == 2);
    let log = fabric.nodes[0].service.as_ref().unwrap().log();
    assert_eq!(log.matches("05-other.conflist comes before").count(), 1, "{log}");
    assert_eq!(fs::read_to_string(&other).unwrap(), text);
    fs::remove_file(folder.join("07-more.json")).unwrap();
    fs::rename(&other, folder.join("05-other.conflist.disabled")).unwrap();
    wait_until("nothing to be named", || warnings(&fabric) == Value::Array(Vec::new()));
}

/// Pods of a bridge need `br_netfilter` to reach services on their own node.
#[test]
fn frames_that_the_packet_filter_does_not_see_are_named() {
    testkit::require!("root");
    let mut fabric = Fabric::new("routing-frames", &[1]);
    let folder = fabric.lab.dir().join("net.d");
    fs::create_dir(&folder).unwrap();
    let conflist = folder.join("10-pods.conflist").display().to_string();
    fabric.flags =
        vec!["--path".to_owned(), "direct".to_owned(), "--conflist".to_owned(), conflist];
    let _api = cluster(&mut fabric);
    let sysctls = fabric.nodes[0].dir.join("sysctls");
    let set = |name: &str, value: &str| {
        let file = sysctls.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, value).unwrap();
    };
    for name in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        set(name, "1\n");
    }
    set("net/bridge/bridge-nf-call-iptables", "1\n");
    let mut command = fabric.routing(0);
    command.args(INTERVAL).env("NETWRIGHT_SYSCTL_DIR", &sysctls);
    fabric.nodes[0].service = Some(Service::start(command, &fabric.nodes[0].dir.join("log")));
    let warnings = |fabric: &Fabric| fabric.routes(0)["warnings"].to_string();
    wait_until("the service", || fabric.nodes[0].dir.join("routing.sock").exists());
    wait_until("it to be named", || {
        warnings(&fabric).contains("net.bridge.bridge-nf-call-ip6tables is not 1: ")
    });
    set("net/bridge/bridge-nf-call-ip6tables", "1\n");
    // A change in the folder makes the service look.
    fs::write(folder.join("99-last.conflist"), "{}").unwrap();
    wait_until("nothing to be named", || warnings(&fabric) == "[]");
}

/// No node uses a prefix that overlaps a range of services. Pods' packets to services keep their
/// source address.
#[test]
fn ranges_of_services_are_left_to_them() {
    testkit::require!("root");
    let mut fabric = Fabric::new("routing-services", &[2]);
    fabric.flags = ["--path", "direct", "--services", "10.244.2.0/23,203.0.113.0/24"]
        .map(str::to_owned)
        .to_vec();
    fabric.start();
    let touches = "10.244.2.0/24 overlaps 10.244.2.0/23, a range for services";
    let row = fabric.routes(0)["rows"][0].clone();
    assert_eq!(row["state"]["refused"], format!("prefixes: {touches}"), "{row}");
    let phase = fabric.routes(1)["phase"].to_string();
    assert!(phase.contains(&format!("this node's prefix {touches}: give it another")), "{phase}");

    wait_until("the first node to be ready", || fabric.routes(0)["phase"] == "ready");
    fabric
        .lab
        .sh("ip addr add 203.0.113.7/24 dev seg0 && ip route add 10.244.1.0/24 via 192.0.2.11");
    for (at, want) in [("203.0.113.7:7", "10.244.1.2"), ("192.0.2.1:7", "192.0.2.11")] {
        let _server = Server::udp(&*fabric.lab, at, "it");
        let seen = traffic::assert_udp(&fabric.nodes[0].pod, at).seen.ip().to_string();
        assert_eq!(seen, want, "{at}");
    }
}

/// A range of pods that the host itself uses is refused before anything is programmed.
#[test]
fn a_range_that_the_host_uses_is_refused() {
    testkit::require!("root");
    let mut fabric = Fabric::new("routing-overlap", &[1]);
    fabric.flags = vec!["--path".to_owned(), "direct".to_owned()];
    fabric.nodes[0].host.sh("ip addr add 10.244.200.1/24 dev eth0");
    let before = Snapshot::of(&fabric.nodes[0].host);
    fabric.start_on(0);
    let phase = fabric.routes(0)["phase"].to_string();
    assert!(phase.contains("pod range 10.244.0.0/16 overlaps eth0's 10.244.200.1/24"), "{phase}");
    before.assert_same(&Snapshot::of(&fabric.nodes[0].host));
    // After the administrator has removed the address, the service continues by itself.
    fabric.nodes[0].host.sh("ip addr del 10.244.200.1/24 dev eth0");
    wait_until("it to be ready", || fabric.routes(0)["phase"] == "ready");
    assert!(RANGES.contains("10.244.0.0/16"));
}
