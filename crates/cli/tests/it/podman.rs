//! Debian's podman, with its CNI back end, on our plugins and on the reference's.

use testkit::real::{Podman, tell};
use testkit::traffic::{Server, assert_no_tcp, assert_pings, assert_tcp};
use testkit::{Lab, Place, Snapshot, Visit, require};

use crate::support::wait_for_addresses;
use crate::system::{
    NETWRIGHT, SERVE, address_of, assert_only_left, at, fetch, gateway_of, install,
};

/// Where Debian puts the reference plugins.
const GO: &str = "/usr/lib/cni";

/// A list of an administrator, in the newest version that podman reads.
const BY_HAND: &str = r#"{
  "cniVersion": "1.0.0", "name": "byhand",
  "plugins": [
    {"type": "bridge", "bridge": "hand0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
     "capabilities": {"ips": true},
     "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
              "ranges": [[{"subnet": "10.92.0.0/24"}], [{"subnet": "fd92::/64"}]]}},
    {"type": "portmap", "capabilities": {"portMappings": true}},
    {"type": "firewall"},
    {"type": "tuning", "mtu": 1400}
  ]
}"#;

/// Makes the list that podman writes itself: cniVersion 0.4.0, bridge, portmap, firewall and
/// tuning.
fn create_network(podman: &Podman<'_>, name: &str, number: u8) {
    let (v4, v6) = (format!("10.{number}.0.0/24"), format!("fd{number}::/64"));
    podman.run(&["network", "create", "--ipv6", "--subnet", &v4, "--subnet", &v6, name]);
}

/// Asserts that the last container leaves only what podman itself leaves.
fn assert_only_expected(lab: &Lab, before: &Snapshot) {
    assert_only_left(lab, before, &Podman::LEAVES);
}

/// Asserts that the published port leads to the container: from the host, from another container,
/// from itself.
fn published(lab: &Lab, web: &Visit, other: &Visit, port: u16) {
    let _server = Server::tcp(web, "[::]:80", "web");
    assert_eq!(assert_tcp(lab, &format!("127.0.0.1:{port}")).server, "web");
    for family in ["-4", "-6"] {
        let gateway = at(gateway_of(web, family), port);
        assert_eq!(assert_tcp(lab, &gateway).server, "web");
        assert_eq!(assert_tcp(other, &gateway).server, "web");
        assert_eq!(assert_tcp(web, &gateway).server, "web", "to itself");
    }
}

#[test]
fn a_network_that_podman_created() {
    require!("root", "program:podman", "program:crun", "file:/usr/bin/busybox");
    let lab = Lab::with_processes("podman-created");
    let outside = lab.outside();
    let podman = Podman::new(&lab, install(&lab));
    create_network(&podman, "n1", 93);
    let before = Snapshot::take(&lab);

    let web = podman.start("web", &["--publish", "8080:80", "--network", "n1"]);
    let other =
        podman.start("other", &["--network", "n1:ip=10.93.0.99,ip=fd93::99,mac=02:00:00:00:00:99"]);
    assert_eq!(address_of(&other, "eth0", "inet").to_string(), "10.93.0.99");
    assert_eq!(address_of(&other, "eth0", "inet6").to_string(), "fd93::99");
    let link = other.sh("ip -brief link show eth0");
    assert!(link.contains("02:00:00:00:00:99"), "{link}");
    for family in ["inet", "inet6"] {
        assert_pings(&other, &address_of(&web, "eth0", family).to_string());
        assert_pings(&web, &address_of(&other, "eth0", family).to_string());
    }
    published(&lab, &web, &other, 8080);
    let _server = Server::tcp(&outside, "[::]:7000", "outside");
    for (address, host) in
        [("198.51.100.2:7000", "198.51.100.1"), ("[2001:db8:ffff::2]:7000", "2001:db8:ffff::1")]
    {
        assert_eq!(assert_tcp(&web, address).seen.ip().to_string(), host, "masqueraded");
    }

    drop((web, other));
    podman.run(&["stop", "--time", "0", "web", "other"]);
    assert_only_expected(&lab, &before);
    podman.run(&["start", "web"]);
    let web = lab.visit(podman.netns("web"));
    let _server = Server::tcp(&web, "[::]:80", "again");
    assert_eq!(assert_tcp(&lab, "127.0.0.1:8080").server, "again");
    drop(web);
    podman.remove(&["web", "other"]);
    assert_only_expected(&lab, &before);
}

#[test]
fn a_network_written_by_hand() {
    require!("root", "program:podman", "program:crun", "file:/usr/bin/busybox");
    let lab = Lab::with_processes("podman-by-hand");
    let podman = Podman::new(&lab, install(&lab));
    podman.write_network("byhand", BY_HAND);
    let before = Snapshot::take(&lab);
    let web = podman.start("web", &["--publish", "8080:80", "--network", "byhand"]);
    let other = podman.start("other", &["--network", "byhand:ip=10.92.0.77"]);
    assert_eq!(address_of(&other, "eth0", "inet").to_string(), "10.92.0.77");
    assert_eq!(web.sh("cat /proc/sys/net/ipv6/conf/eth0/mtu").trim(), "1400");
    published(&lab, &web, &other, 8080);
    // The container's own view: its program runs, and sees what we made.
    let said = podman.run(&["exec", "web", "ip", "route"]);
    assert!(said.contains("default via 10.92.0.1 dev eth0"), "{said}");
    drop((web, other));
    podman.remove(&["web", "other"]);
    assert_only_expected(&lab, &before);
}

#[test]
fn a_container_on_two_networks() {
    require!("root", "program:podman", "program:crun", "file:/usr/bin/busybox");
    let lab = Lab::with_processes("podman-two");
    let podman = Podman::new(&lab, install(&lab));
    create_network(&podman, "n1", 94);
    create_network(&podman, "n2", 95);
    let before = Snapshot::take(&lab);
    let both = podman.start(
        "both",
        &[
            "--publish",
            "8080:80",
            "--network",
            "n1:interface_name=eth0",
            "--network",
            "n2:interface_name=eth1",
        ],
    );
    let second = podman.start("second", &["--network", "n2"]);
    assert_pings(&second, &address_of(&both, "eth1", "inet").to_string());
    assert_pings(&second, &address_of(&both, "eth1", "inet6").to_string());
    let server = Server::tcp(&both, "[::]:80", "both");
    assert_eq!(assert_tcp(&lab, "127.0.0.1:8080").server, "both");
    // Disconnected from one network and connected again: DEL and ADD of one interface while the
    // other works.
    podman.run(&["network", "disconnect", "n2", "both"]);
    assert!(!both.sh("ip -brief link").contains("eth1"));
    assert_eq!(assert_tcp(&lab, "127.0.0.1:8080").server, "both");
    podman.run(&["network", "connect", "n2", "both"]);
    assert_pings(&second, &address_of(&both, "eth1", "inet").to_string());
    // DEL and ADD with the same addresses, as after a firewall's restart.
    let address = address_of(&both, "eth0", "inet");
    podman.run(&["network", "reload", "both"]);
    assert_eq!(address_of(&both, "eth0", "inet"), address);
    assert_eq!(assert_tcp(&lab, "127.0.0.1:8080").server, "both");
    drop((server, both, second));
    podman.remove(&["both", "second"]);
    assert_only_expected(&lab, &before);
}

/// Everyday commands on one container: run, restart, kill, start, rm; each time its port leads to
/// it.
#[test]
fn a_container_is_restarted_killed_and_removed() {
    require!("root", "program:podman", "program:crun", "program:curl", "file:/usr/bin/busybox");
    let lab = Lab::with_processes("podman-life");
    let outside = lab.outside();
    let podman = Podman::new(&lab, install(&lab));
    tell("podman", "version", &podman.run(&["--version"]));
    create_network(&podman, "n1", 91);
    let before = Snapshot::take(&lab);
    let said = podman.run(&["run", "--rm", "--network", "n1", Podman::IMAGE, "ip", "-o", "addr"]);
    assert!(said.contains("inet 10.91.0.2/24") && said.contains("inet6 fd91::2/64"), "{said}");
    assert_only_expected(&lab, &before);

    let options =
        ["--hostname", "web", "--publish", "8080:80", "--network", "n1:ip=10.91.0.9,ip=fd91::9"];
    drop(podman.start_script("web", &options, SERVE));
    let state = || podman.run(&["ps", "--all", "--format", "{{.Names}} {{.Status}} {{.Ports}}"]);
    tell("podman", "running", &state());
    let answers = |when: &str| {
        for host in ["198.51.100.1", "[2001:db8:ffff::1]"] {
            let url = format!("http://{host}:8080/");
            let said = fetch(&outside, &url);
            assert_eq!(said, "hello from web\n", "{when}");
            tell("podman", "answered", &format!("{url} from outside, {when}: {said}"));
        }
        assert_eq!(fetch(&lab, "http://127.0.0.1:8080/"), "hello from web\n", "{when}");
    };
    answers("after run");
    podman.run(&["restart", "--time", "0", "web"]);
    answers("after restart");
    podman.run(&["kill", "web"]);
    // podman leaves a process that removes the network when the container has ended.
    podman.run(&["wait", "web"]);
    podman.run(&["container", "cleanup", "web"]);
    assert!(state().starts_with("web Exited"), "{}", state());
    assert_no_tcp(&outside, "198.51.100.1:8080");
    assert_only_expected(&lab, &before);
    podman.run(&["start", "web"]);
    answers("after kill and start");
    podman.run(&["rm", "--force", "--time", "0", "web"]);
    assert_eq!(state(), "");
    assert_only_expected(&lab, &before);
}

/// A lab that already routes and has what the reference's plugins leave for ever.
fn lab_with_leftovers(name: &str) -> Lab {
    let lab = Lab::with_processes(name);
    lab.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
    lab
}

/// Attaches and removes a container once with each set of plugins.
fn warm_up(lab: &Lab, podman: &Podman<'_>) {
    for plugins in [GO, "/opt/cni/bin"] {
        podman.use_plugins(plugins);
        let warm = podman.start("warm", &["--publish", "8080:80", "--network", "n1"]);
        wait_for_addresses(lab);
        drop(warm);
        podman.remove(&["warm"]);
    }
    lab.sh(&format!("{NETWRIGHT} gc --all"));
}

#[test]
fn attached_on_the_reference_and_removed_on_ours() {
    require!(
        "root",
        "program:podman",
        "program:crun",
        "file:/usr/bin/busybox",
        "file:/usr/lib/cni/bridge"
    );
    let lab = lab_with_leftovers("podman-go-ours");
    let podman = Podman::new(&lab, install(&lab));
    create_network(&podman, "n1", 96);
    warm_up(&lab, &podman);
    let before = Snapshot::take(&lab);
    podman.use_plugins(GO);
    let web = podman.start("web", &["--publish", "8080:80", "--network", "n1"]);
    let server = Server::tcp(&web, "[::]:80", "web");
    assert_eq!(assert_tcp(&lab, "127.0.0.1:8080").server, "web");
    podman.use_plugins("/opt/cni/bin");
    // Both on one bridge: the reference's container keeps working beside one of ours.
    let other = podman.start("other", &["--publish", "8081:80", "--network", "n1"]);
    assert_pings(&other, &address_of(&web, "eth0", "inet").to_string());
    assert_eq!(assert_tcp(&other, &at(gateway_of(&other, "-4"), 8080)).server, "web");
    drop((server, web, other));
    podman.remove(&["web", "other"]);
    assert_only_expected(&lab, &before);
}

#[test]
fn attached_on_ours_and_removed_on_the_reference_then_collected() {
    require!(
        "root",
        "program:podman",
        "program:crun",
        "file:/usr/bin/busybox",
        "file:/usr/lib/cni/bridge"
    );
    let lab = lab_with_leftovers("podman-ours-go");
    let podman = Podman::new(&lab, install(&lab));
    create_network(&podman, "n1", 97);
    warm_up(&lab, &podman);
    let before = Snapshot::take(&lab);
    podman.use_plugins("/opt/cni/bin");
    let web = podman.start("web", &["--publish", "8080:80", "--network", "n1"]);
    let server = Server::tcp(&web, "[::]:80", "web");
    assert_eq!(assert_tcp(&lab, "127.0.0.1:8080").server, "web");
    podman.use_plugins(GO);
    drop((server, web));
    podman.remove(&["web"]);
    lab.sh(&format!("{NETWRIGHT} gc --all"));
    assert_only_expected(&lab, &before);
}
