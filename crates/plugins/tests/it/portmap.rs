//! `portmap`, row by row of the feature table, and known problems of other such plugins.

mod matrix;
mod two_networks;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use kernel::nflog::Packet;
use serde_json::{Value, json};
use testkit::probe::{Ends, Station, wait};
use testkit::traffic::{self, Server};
use testkit::{Container, Place, Snapshot};

use crate::support::{Node, Run};

/// The chain of network `n` and container `c1` in the reference's layout.
const DN: &str = "CNI-DN-9b00b9b7c2795a8a61a6e";

/// A host with the outside, and `cni0` with containers.
struct Host {
    node: Node,
    outside: Container,
}

impl Host {
    fn new(name: &str) -> Host {
        let node = Node::new(name);
        let outside = node.lab.outside();
        // A bridge without a MAC address of its own takes another one when a port is removed;
        // containers would send to the old one for half a minute.
        node.sh(
            "echo 1 > /proc/sys/net/ipv4/ip_forward && echo 1 > /proc/sys/net/ipv6/conf/all/forwarding && \
             echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad && \
             ip link add cni0 address 0a:58:0a:01:00:01 type bridge && ip addr add 10.1.0.1/24 dev cni0 && \
             ip addr add fd00:1::1/64 dev cni0 nodad && ip link set cni0 up",
        );
        Host { node, outside }
    }

    /// A container whose addresses end in `last`, and the result of a bridge plugin for it.
    fn container(&self, name: &str, last: u8) -> (Container, Value) {
        let container = self.node.container(name);
        // The link of an earlier container of this name goes some time after its namespace.
        self.node.sh(&format!(
            "ip link del v{name} 2>/dev/null; ip link add v{name} type veth peer name eth0 netns {name} && echo 1 > /proc/sys/net/ipv6/conf/v{name}/disable_ipv6 && \
             ip link set v{name} master cni0 up && bridge link set dev v{name} hairpin on"
        ));
        container.sh(&format!(
            "ip link set lo up && echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad && \
             ip addr add 10.1.0.{last}/24 dev eth0 && ip addr add fd00:1::{last}/64 dev eth0 nodad && \
             ip link set eth0 up && ip route add default via 10.1.0.1 && ip -6 route add default via fd00:1::1"
        ));
        // The bridge's link-local address appears with its first port.
        self.node.sh("for i in $(seq 500); do ip -6 addr show dev cni0 scope link | grep -q inet6 && break; sleep 0.01; done");
        let prev = json!({
            "cniVersion": "1.0.0",
            "interfaces": [
                { "name": "cni0" }, { "name": format!("v{name}") },
                { "name": "eth0", "sandbox": container.netns() },
            ],
            "ips": [
                { "interface": 2, "address": format!("10.1.0.{last}/24"), "gateway": "10.1.0.1" },
                { "interface": 2, "address": format!("fd00:1::{last}/64"), "gateway": "fd00:1::1" },
            ],
        });
        (container, prev)
    }

    fn run(&self, verb: &str, to: &Container, prev: &Value, mappings: &Value) -> Run<'_> {
        let run = self.node.run("portmap", verb).to(to).prev(prev);
        // The installed reference plugins know 1.0.0.
        run.version("1.0.0").config(json!({ "runtimeConfig": { "portMappings": mappings } }))
    }

    /// Calls the installed reference plugin.
    fn go(&self, run: Run<'_>) -> String {
        let dir = self.node.dir("go");
        let config = dir.join("config");
        std::fs::write(&config, run.document()).unwrap();
        let mut vars = String::new();
        let _ = run.env(|env| {
            vars = env.to_vars().iter().map(|(key, value)| format!("{key}={value} ")).collect();
        });
        self.node.sh(&format!("{vars} /usr/lib/cni/portmap < {}", config.display()))
    }
}

fn mapping(host: u16, protocol: &str) -> Value {
    json!({ "hostPort": host, "containerPort": 80, "protocol": protocol })
}

fn servers(place: &impl Place, name: &str) -> Vec<Server> {
    vec![Server::tcp(place, "[::]:80", name), Server::udp(place, "[::]:80", name)]
}

/// Row: portmap | DNAT v4/v6.
#[test]
fn dnat_v4_v6() {
    testkit::require!("root");
    let host = Host::new("pmdnat");
    let (c1, prev) = host.container("c1", 2);
    let before = Snapshot::take(&host.node.lab);
    let mappings = json!([mapping(8080, "tcp"), mapping(8080, "udp"), mapping(8080, "sctp")]);
    let answer = host.run("ADD", &c1, &prev, &mappings).call().ok();
    assert_eq!(answer["ips"], prev["ips"]);
    let _servers = servers(&c1, "c1");
    for to in ["198.51.100.1:8080", "[2001:db8:ffff::1]:8080"] {
        assert_eq!(traffic::assert_tcp(&host.outside, to).server, "c1");
        assert_eq!(traffic::assert_udp(&host.outside, to).server, "c1");
    }
    host.run("CHECK", &c1, &prev, &mappings).call().silent();
    host.run("DEL", &c1, &prev, &mappings).call().silent();
    traffic::assert_no_tcp(&host.outside, "198.51.100.1:8080");
    traffic::assert_no_udp(&host.outside, "198.51.100.1:8080");
    // The empty tables stay, as the reference's chains do.
    host.node.sh("nft delete table inet netwright; rmdir -p /run/netwright 2>/dev/null; true");
    before.assert_same(&Snapshot::take(&host.node.lab));
}

/// Row: portmap | a port of a program. The runtime must refuse it; the plugin warns whose traffic
/// it takes. It does not warn of programs that hold ports for containers.
#[test]
fn a_port_that_a_program_listens_on_is_published_with_a_warning() {
    testkit::require!("root", "program:socat");
    let host = Host::new("pmprogram");
    let (c1, prev) = host.container("c1", 2);
    let mappings = json!([
        mapping(8080, "tcp"),
        { "hostPort": 8081, "containerPort": 80, "protocol": "udp", "hostIP": "192.0.2.9" },
    ]);
    let add = || host.run("ADD", &c1, &prev, &mappings).call();
    let listen = |program: &str, port: u16| {
        host.node
            .sh(&format!("mkdir -p /run/programs && cp -n $(which socat) /run/programs/{program}"));
        let listening = host
            .node
            .lab
            .start(&format!("/run/programs/{program}"), &[&format!("TCP-LISTEN:{port}"), "STDOUT"]);
        host.node.sh(&format!(
            "timeout 60 sh -c 'until ss -Hltn sport = :{port} | grep -q .; do :; done'"
        ));
        listening
    };
    let program = listen("webserver", 8080);
    let said = add();
    assert!(said.succeeded());
    let warning = said.stderr();
    assert!(
        warning.contains("host port 8080/tcp is held by program \"webserver\" (process "),
        "{warning}"
    );
    assert!(
        warning.contains("192.0.2.9:8081/udp: the host does not have address 192.0.2.9"),
        "{warning}"
    );
    // Another program removed the rule: the port's program keeps what it has by now.
    let check = |keys: Value| host.run("CHECK", &c1, &prev, &mappings).config(keys).call();
    let repair = || check(json!({ cni::REPAIR: true }));
    assert!(repair().succeeded());
    host.node.sh("nft flush map inet netwright hostports4");
    let before = host.node.sh("nft list ruleset");
    let error = repair().error();
    let told = format!("{error:?}");
    assert!(told.contains("nothing was put back: host port 8080/tcp is held by program"), "{told}");
    assert_eq!(host.node.sh("nft list ruleset"), before);
    drop(program);
    assert!(repair().succeeded());
    check(json!({})).silent();
    let _conmon = listen("conmon", 8080);
    assert!(!add().stderr().contains("8080"));
}

/// Row: portmap | chains.
#[test]
fn chains() {
    testkit::require!("root");
    let host = Host::new("pmchains");
    let (c1, prev) = host.container("c1", 2);
    let mappings = json!([mapping(8080, "tcp")]);
    let run = |verb| host.run(verb, &c1, &prev, &mappings).config(json!({ "backend": "iptables" }));
    run("ADD").call().ok();
    let saved = || {
        host.node.sh("iptables-save -t nat | grep -v '^#'; ip6tables-save -t nat | grep -v '^#'")
    };
    let ours = saved();
    run("DEL").call().silent();
    host.node.sh("nft flush ruleset");
    host.go(run("ADD"));
    // Our chains have one more rule, which restricts loopback addresses to the host, and another
    // for packets from ::1.
    let is_guard = |line: &&str| line.ends_with("-j RETURN");
    assert_eq!(ours.lines().filter(is_guard).count(), 3, "{ours}");
    let rest: String =
        ours.lines().filter(|line| !is_guard(line)).map(|line| format!("{line}\n")).collect();
    assert_eq!(rest, saved());
}

/// Row: portmap | a port at a loopback address is for the host alone, with the reference's chains
/// too.
#[test]
fn ports_at_loopback_addresses_are_for_the_host_alone_by_iptables() {
    testkit::require!("root");
    let host = Host::new("pmloop");
    let (c1, prev) = host.container("c1", 2);
    let mappings = json!([
        { "hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "127.0.0.1" },
        { "hostPort": 8080, "containerPort": 80, "protocol": "udp", "hostIP": "127.0.0.1" },
        mapping(9090, "udp"),
        mapping(9091, "tcp"),
    ]);
    let run = |verb| host.run(verb, &c1, &prev, &mappings).config(json!({ "backend": "iptables" }));
    run("ADD").call().ok();
    run("CHECK").call().silent();
    let _servers = servers(&c1, "c1");
    assert_eq!(traffic::assert_tcp(&host.node.lab, "127.0.0.1:8080").server, "c1");
    assert_eq!(traffic::assert_udp(&host.node.lab, "127.0.0.1:9090").server, "c1");
    assert_eq!(traffic::assert_udp(&host.outside, "198.51.100.1:9090").server, "c1");
    // The reference's chains do not serve ::1: a connection to it is refused at once.
    for value in [0, 1] {
        host.node.sh(&format!("echo {value} > /proc/sys/net/bridge/bridge-nf-call-ip6tables"));
        let asked = host.node.lab.enter(|| {
            let to = "[::1]:9091".parse().unwrap();
            std::net::TcpStream::connect_timeout(&to, std::time::Duration::from_secs(20))
        });
        assert_eq!(asked.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    }
    host.outside.sh(
        "ip addr flush dev lo && ip route add 127.0.0.0/8 via 198.51.100.1 dev eth0 && \
                     for i in all eth0; do echo 1 > /proc/sys/net/ipv4/conf/$i/route_localnet; \
                     echo 0 > /proc/sys/net/ipv4/conf/$i/rp_filter; done",
    );
    for localnet in [0, 1] {
        host.node.sh(&format!("echo {localnet} > /proc/sys/net/ipv4/conf/up0/route_localnet"));
        traffic::assert_no_tcp(&host.outside, "127.0.0.1:8080");
        traffic::assert_no_udp(&host.outside, "127.0.0.1:8080");
        traffic::assert_no_udp(&host.outside, "127.0.0.1:9090");
    }
    // CHECK detects a chain of an older release, and ADD completes it.
    let guard = "-d 127.0.0.0/8 ! -i lo ! -o lo -j RETURN";
    host.node.sh(&format!("iptables -t nat -D {DN} {guard}"));
    let error = run("CHECK").call().error();
    assert!(format!("{error:?}").contains(guard), "{error:?}");
    run("ADD").call().ok();
    traffic::assert_no_udp(&host.outside, "127.0.0.1:8080");
}

/// Each plugin removes and checks what the other made.
#[test]
fn chains_are_interchangeable_with_the_reference() {
    testkit::require!("root", "file:/usr/lib/cni/portmap");
    let host = Host::new("pminter");
    let (c1, prev) = host.container("c1", 2);
    let mappings = json!([mapping(8080, "tcp"), mapping(5353, "udp")]);
    let run = |verb| host.run(verb, &c1, &prev, &mappings).config(json!({ "backend": "iptables" }));
    let dn_chains =
        || host.node.sh(&format!("(iptables-save; ip6tables-save) | grep -c {DN}; true"));
    run("ADD").call().ok();
    host.go(run("DEL"));
    assert_eq!(dn_chains(), "0\n");
    // Only our record was left.
    run("DEL").call().silent();
    // No CHECK by the reference: its 1.1.1 fails on its own rules where both families' iptables are
    // installed ("could not check ipv6 dnat"). `chains` shows that the rules are the same. Ours
    // removes the reference's: with its back end, with our back end, and with an almost empty
    // configuration.
    for keys in [
        json!({ "backend": "iptables" }),
        json!({}),
        json!({ "runtimeConfig": null, "prevResult": null }),
    ] {
        host.go(run("ADD"));
        assert_ne!(dn_chains(), "0\n");
        for backend in ["iptables", "nftables"] {
            let check = host.run("CHECK", &c1, &prev, &mappings);
            check.config(json!({ "backend": backend })).call().silent();
        }
        host.run("DEL", &c1, &prev, &mappings).config(keys).call().silent();
        assert_eq!(dn_chains(), "0\n");
    }
}

/// The same for nodes with legacy iptables.
#[test]
fn what_the_reference_left_in_legacy_iptables_goes() {
    testkit::require!("root", "program:iptables-legacy");
    let host = Host::new("pmlegacy");
    let (c1, prev) = host.container("c1", 2);
    host.node.sh(&format!(
        "iptables-legacy -t nat -N CNI-HOSTPORT-DNAT && iptables-legacy -t nat -N {DN} && \
         iptables-legacy -t nat -A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 8080 -j {DN} && \
         iptables-legacy -t nat -A {DN} -p tcp --dport 8080 -j DNAT --to-destination 10.1.0.2:80"
    ));
    host.run("DEL", &c1, &prev, &json!([])).call().silent();
    assert!(!host.node.sh("iptables-legacy-save").contains(DN));
}

/// Row: portmap | hairpin.
#[test]
fn hairpin() {
    testkit::require!("root");
    let host = Host::new("pmhair");
    let (c1, prev) = host.container("c1", 2);
    host.run("ADD", &c1, &prev, &json!([mapping(8080, "tcp")])).call().ok();
    let _servers = servers(&c1, "c1");
    for to in ["198.51.100.1:8080", "10.1.0.1:8080", "[fd00:1::1]:8080"] {
        assert_eq!(traffic::assert_tcp(&c1, to).server, "c1");
    }
}

/// Row: portmap | localhost.
#[test]
fn localhost() {
    testkit::require!("root");
    let host = Host::new("pmlocal");
    let (c1, prev) = host.container("c1", 2);
    let mappings = json!([mapping(8080, "tcp")]);
    for backend in ["nftables", "iptables"] {
        let run =
            |verb| host.run(verb, &c1, &prev, &mappings).config(json!({ "backend": backend }));
        run("ADD").call().ok();
        let servers = servers(&c1, "c1");
        assert_eq!(traffic::assert_tcp(&host.node.lab, "127.0.0.1:8080").server, "c1", "{backend}");
        let switch = "cat /proc/sys/net/ipv4/conf/cni0/route_localnet";
        assert_eq!(host.node.sh(switch), "1\n");
        drop(servers);
        run("DEL").call().silent();
        assert_eq!(host.node.sh(switch), "0\n", "{backend}");
    }
}

/// What cannot be restored on the host stays until somebody can restore it, and keeps no container.
#[test]
fn del_ends_where_proc_sys_is_read_only() {
    testkit::require!("root");
    let host = Host::new("pm-read-only");
    let (c1, prev) = host.container("c1", 2);
    let mappings = json!([mapping(8080, "tcp")]);
    let localnet = || host.node.sh("cat /proc/sys/net/ipv4/conf/cni0/route_localnet");
    for backend in ["nftables", "iptables"] {
        let run =
            |verb| host.run(verb, &c1, &prev, &mappings).config(json!({ "backend": backend }));
        run("ADD").call().ok();
        host.node.sh("mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys");
        run("DEL").call().silent();
        run("DEL").call().silent();
        // Until then the packets that the sysctl lets in are dropped.
        assert_eq!(localnet(), "1\n", "{backend}");
        host.node.sh("nft list set inet netwright localnet | grep -q cni0; umount /proc/sys");
        let gc = host.node.run("portmap", "GC").config(json!({ "backend": backend })).of_network();
        gc.valid(&[]).call().silent();
        assert_eq!(localnet(), "0\n", "{backend}");
        let rules = host.node.sh("nft list ruleset");
        assert!(!rules.contains("cni0"), "{backend}: {rules}");
    }
}

/// Row: portmap | snat false.
#[test]
fn snat_false() {
    testkit::require!("root");
    let host = Host::new("pmnosnat");
    let (c1, prev) = host.container("c1", 2);
    let mappings = json!([mapping(8080, "tcp")]);
    for backend in ["nftables", "iptables"] {
        let keys = json!({ "backend": backend, "snat": false });
        host.run("ADD", &c1, &prev, &mappings).config(keys.clone()).call().ok();
        let rules = host.node.sh("nft list ruleset; iptables-save -t nat");
        for word in ["\"cni0\"", "SETMARK", "HOSTPORT-MASQ"] {
            assert!(!rules.contains(word), "{backend} {word}: {rules}");
        }
        assert_eq!(host.node.sh("cat /proc/sys/net/ipv4/conf/cni0/route_localnet"), "0\n");
        host.run("DEL", &c1, &prev, &mappings).config(keys).call().silent();
    }
}

/// Row: portmap | masqAll.
#[test]
fn masq_all() {
    testkit::require!("root");
    let host = Host::new("pmall");
    let (c1, prev) = host.container("c1", 2);
    let mappings = json!([mapping(8080, "tcp")]);
    for backend in ["nftables", "iptables"] {
        let keys = json!({ "backend": backend, "masqAll": true });
        host.run("ADD", &c1, &prev, &mappings).config(keys.clone()).call().ok();
        let servers = servers(&c1, "c1");
        for (to, seen) in
            [("198.51.100.1:8080", "10.1.0.1"), ("[2001:db8:ffff::1]:8080", "fd00:1::1")]
        {
            let answer = traffic::assert_tcp(&host.outside, to);
            assert_eq!(answer.seen.ip().to_string(), seen, "{backend}");
        }
        drop(servers);
        host.run("DEL", &c1, &prev, &mappings).config(keys).call().silent();
    }
}

/// Row: portmap | markMasqBit.
#[test]
fn mark_masq_bit() {
    testkit::require!("root");
    let host = Host::new("pmbit");
    let (c1, prev) = host.container("c1", 2);
    let mappings = json!([mapping(8080, "tcp")]);
    let run =
        |bit: i32| host.run("ADD", &c1, &prev, &mappings).config(json!({ "markMasqBit": bit }));
    run(5).call().ok();
    assert!(host.node.sh("iptables-save -t nat").contains("--set-xmark 0x20/0x20"));
    run(32).call().fails(7, "MasqMarkBit must be between 0 and 31");
}

/// Row: portmap | externalSetMarkChain.
#[test]
fn external_set_mark_chain() {
    testkit::require!("root");
    let host = Host::new("pmext");
    let (c1, prev) = host.container("c1", 2);
    let mappings = json!([mapping(8080, "tcp")]);
    host.node.sh("iptables -t nat -N KUBE-MARK-MASQ; ip6tables -t nat -N KUBE-MARK-MASQ");
    let keys = json!({ "externalSetMarkChain": "KUBE-MARK-MASQ" });
    host.run("ADD", &c1, &prev, &mappings).config(keys.clone()).call().ok();
    let rules = host.node.sh("iptables-save -t nat");
    assert!(
        rules.contains("-j KUBE-MARK-MASQ") && !rules.contains("CNI-HOSTPORT-SETMARK"),
        "{rules}"
    );
    let both =
        host.run("ADD", &c1, &prev, &mappings).config(keys).config(json!({ "markMasqBit": 3 }));
    both.call().fails(7, "Cannot specify externalSetMarkChain and markMasqBit");
}

/// Row: portmap | hostIP.
#[test]
fn host_ip() {
    testkit::require!("root");
    let host = Host::new("pmhostip");
    let (c1, prev) = host.container("c1", 2);
    host.node.sh("ip addr add 198.51.100.11/24 dev up0");
    let at = |ip: &str| json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ip }]);
    let _servers = servers(&c1, "c1");
    for backend in ["nftables", "iptables"] {
        let run = |verb: &str, ip| {
            host.run(verb, &c1, &prev, &at(ip)).config(json!({ "backend": backend }))
        };
        run("ADD", "198.51.100.11").call().ok();
        assert_eq!(traffic::assert_tcp(&host.outside, "198.51.100.11:8080").server, "c1");
        traffic::assert_no_tcp(&host.outside, "198.51.100.1:8080");
        traffic::assert_no_tcp(&host.outside, "[2001:db8:ffff::1]:8080");
        run("DEL", "198.51.100.11").call().silent();
        run("ADD", "0.0.0.0").call().ok();
        assert_eq!(traffic::assert_tcp(&host.outside, "198.51.100.1:8080").server, "c1");
        traffic::assert_no_tcp(&host.outside, "[2001:db8:ffff::1]:8080");
        run("DEL", "0.0.0.0").call().silent();
        run("ADD", "::").call().ok();
        assert_eq!(traffic::assert_tcp(&host.outside, "[2001:db8:ffff::1]:8080").server, "c1");
        traffic::assert_no_tcp(&host.outside, "198.51.100.1:8080");
        run("DEL", "::").call().silent();
    }
}

/// Row: portmap | bad hostIP (the reference ignores it), and the other mistakes in a mapping.
#[test]
fn bad_host_ip() {
    testkit::require!("root");
    let host = Host::new("pmbad");
    let (c1, prev) = host.container("c1", 2);
    let before = Snapshot::take(&host.node.lab);
    for (change, words) in [
        (json!({ "hostIP": "10.1.0" }), "invalid hostIP \"10.1.0\""),
        (json!({ "hostPort": 0 }), "Invalid host port number: 0"),
        (json!({ "hostPort": 65536 }), "Invalid host port number: 65536"),
        (json!({ "containerPort": 0 }), "Invalid container port number: 0"),
        (json!({ "protocol": "icmp" }), "unknown protocol \"icmp\""),
    ] {
        let mut wrong = mapping(8080, "tcp");
        wrong.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let mappings = json!([mapping(9090, "tcp"), wrong]);
        host.run("ADD", &c1, &prev, &mappings).call().fails(7, words);
        // The reference's DEL fails on them as well.
        host.run("DEL", &c1, &prev, &mappings).call().silent();
    }
    let twice =
        json!([mapping(8080, "tcp"), { "hostPort": 8080, "containerPort": 81, "protocol": "tcp" }]);
    host.run("ADD", &c1, &prev, &twice).call().fails(7, "asked for twice");
    before.assert_same(&Snapshot::take(&host.node.lab));
}

/// Row: portmap | conditions.
#[test]
fn conditions() {
    testkit::require!("root");
    let host = Host::new("pmcond");
    let (c1, prev) = host.container("c1", 2);
    host.node.sh("ip addr add 198.51.100.11/24 dev up0");
    let mappings = json!([mapping(8080, "tcp")]);
    let run = |verb: &str, keys: Value| host.run(verb, &c1, &prev, &mappings).config(keys);
    let only = json!({ "conditionsV4": ["-d", "198.51.100.11"] });
    run("ADD", only.clone()).call().ok();
    let _servers = servers(&c1, "c1");
    assert_eq!(traffic::assert_tcp(&host.outside, "198.51.100.11:8080").server, "c1");
    traffic::assert_no_tcp(&host.outside, "198.51.100.1:8080");
    run("CHECK", only.clone()).call().silent();
    run("DEL", only).call().silent();
    let wrong = json!({ "backend": "nftables", "conditionsV4": ["-d", "198.51.100.11"] });
    run("ADD", wrong)
        .call()
        .fails(7, "nftables backend was requested but configuration contains iptables-specific");
    let wrong = json!({ "backend": "iptables", "conditionsV4": ["ip", "daddr", "198.51.100.11"] });
    run("ADD", wrong)
        .call()
        .fails(7, "iptables backend was requested but configuration contains nftables-specific");
    let later = json!({ "conditionsV4": ["ip", "daddr", "198.51.100.11"] });
    run("ADD", later).call().fails(2, "conditionsV4");
}

/// Row: portmap | 16 ports.
#[test]
fn sixteen_ports() {
    testkit::require!("root");
    let host = Host::new("pm16");
    let (c1, prev) = host.container("c1", 2);
    let mappings: Vec<Value> = (9001..9017).map(|port| mapping(port, "tcp")).collect();
    host.run("ADD", &c1, &prev, &json!(mappings))
        .config(json!({ "backend": "iptables" }))
        .call()
        .ok();
    let rules = host.node.sh("iptables-save -t nat");
    let entries: Vec<&str> = rules.lines().filter(|line| line.contains("multiport")).collect();
    assert_eq!(entries.len(), 2, "{rules}");
    let _servers = servers(&c1, "c1");
    assert_eq!(traffic::assert_tcp(&host.outside, "198.51.100.1:9016").server, "c1");
}

/// Row: portmap | UDP conntrack. k8s#59033, plugins#123, and on DEL plugins#1190.
#[test]
fn udp_conntrack() {
    testkit::require!("root");
    let host = Host::new("pmudp");
    let (c1, prev1) = host.container("c1", 2);
    let (c2, prev2) = host.container("c2", 3);
    let mappings = json!([mapping(5300, "udp")]);
    let _servers = (servers(&c1, "c1"), servers(&c2, "c2"));
    let to = "198.51.100.1:5300";
    // One socket for all packets makes one flow.
    let socket = host.outside.enter(|| std::net::UdpSocket::bind("198.51.100.2:0").unwrap());
    socket.set_read_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
    let ask = || -> Option<String> {
        socket.send_to(b"?", to).unwrap();
        let mut answer = [0; 64];
        let (length, _) = socket.recv_from(&mut answer).ok()?;
        String::from_utf8_lossy(&answer[..length]).split(' ').next().map(str::to_owned)
    };
    // No server listens yet, and the flow begins untranslated. The host's refusal is an error on
    // the socket.
    let _ = ask();
    host.run("ADD", &c1, &prev1, &mappings).call().ok();
    let first = ask().or_else(ask);
    assert_eq!(first.as_deref(), Some("c1"));
    // A foreign flow on the same port passes through the host and is not forgotten.
    let _resolver = Server::udp(&host.outside, "198.51.100.2:5300", "resolver");
    host.outside.sh("ip route add 10.1.0.0/24 via 198.51.100.1");
    assert_eq!(traffic::assert_udp(&c2, "198.51.100.2:5300").server, "resolver");
    let transit = || host.node.sh("conntrack -L -p udp -d 198.51.100.2 2>/dev/null | wc -l");
    assert_eq!(transit(), "1\n");
    host.run("DEL", &c1, &prev1, &mappings).call().silent();
    let left = host.node.sh("conntrack -L -p udp -d 198.51.100.1 2>/dev/null; true");
    assert_eq!(left, "");
    // Nor is a flow to an address of a service, which another program translates.
    host.node.sh("nft 'add table ip service; \
         add chain ip service first { type nat hook prerouting priority -100; }; \
         add rule ip service first ip daddr 10.96.0.10 udp dport 5300 dnat to 10.1.0.2:80'");
    host.outside.sh("ip route add 10.96.0.0/16 via 198.51.100.1");
    assert_eq!(traffic::assert_udp(&host.outside, "10.96.0.10:5300").server, "c1");
    let service = || host.node.sh("conntrack -L -p udp -d 10.96.0.10 2>/dev/null | wc -l");
    assert_eq!(service(), "1\n");
    host.run("ADD", &c2, &prev2, &mappings).call().ok();
    let second = ask().or_else(ask);
    assert_eq!(second.as_deref(), Some("c2"));
    assert_eq!((transit(), service()), ("1\n".to_owned(), "1\n".to_owned()));
}

/// The DEL of a container that died comes after another got its address and port: the flows to the
/// other stay.
#[test]
fn del_leaves_the_flows_of_another_with_the_same_address() {
    testkit::require!("root");
    let host = Host::new("pmlate");
    let mappings = json!([mapping(5300, "udp")]);
    let flows = || host.node.sh("conntrack -L -p udp -d 198.51.100.1 2>/dev/null | wc -l");
    for (last, keys) in [(2, json!({})), (3, json!({ "backend": "iptables" }))] {
        let run = |verb: &str, to: &Container, prev: &Value| {
            host.run(verb, to, prev, &mappings).config(keys.clone()).call()
        };
        let (c1, prev1) = host.container(&format!("first{last}"), last);
        run("ADD", &c1, &prev1).ok();
        c1.delete();
        let (c2, prev2) = host.container(&format!("next{last}"), last);
        run("ADD", &c2, &prev2).ok();
        let _server = Server::udp(&c2, "[::]:80", "c2");
        assert_eq!(traffic::assert_udp(&host.outside, "198.51.100.1:5300").server, "c2");
        let before = flows();
        assert_ne!(before, "0\n");
        run("DEL", &c1, &prev1).silent();
        assert_eq!(flows(), before);
        run("DEL", &c2, &prev2).silent();
        assert_eq!(flows(), "0\n");
    }
}

/// SCTP as UDP: a client that begins anew from the same port reaches the next container. Its first
/// packet shows that, so nobody here needs SCTP itself.
#[test]
fn vm_sctp_conntrack() {
    testkit::require!("root", "sctp-conntrack");
    let host = Host::new("pmsctp");
    let (c1, prev1) = host.container("c1", 2);
    let (c2, prev2) = host.container("c2", 3);
    let mappings = json!([mapping(3868, "sctp")]);
    // The kernel tracks connections only if something is published. The client's next packet comes
    // before the kernel forgets the previous one.
    host.run("ADD", &c2, &prev2, &json!([mapping(9090, "tcp")])).call().ok();
    host.node.sh("cd /proc/sys/net/netfilter && for state in closed cookie_wait; do \
         echo 600 > nf_conntrack_sctp_timeout_$state; done");
    let client = Station::at(&host.outside);
    let (first, second) = (Station::at(&c1), Station::at(&c2));
    let ends = Ends {
        source: "198.51.100.2".parse().unwrap(),
        destination: "198.51.100.1".parse().unwrap(),
    };
    let is_init = |bytes: &[u8]| {
        Packet::read(bytes).is_some_and(|packet| {
            packet.protocol == 132 && packet.ports.is_some_and(|(_, to)| to == 80)
        })
    };
    let reaches = |container: &Station| {
        (0..10).any(|_| {
            client.send(&ends.sctp(40000, 3868));
            let mut came = false;
            while !came && wait(&container.descriptors(), traffic::SILENCE) {
                container.heard(|bytes| came |= is_init(bytes));
            }
            came
        })
    };
    // No container has the port yet, so the flow begins untranslated.
    client.send(&ends.sctp(40000, 3868));
    host.node.sh("timeout 5 sh -c \
         'until conntrack -L -p sctp 2>/dev/null | grep -q dport=3868; do sleep 0.02; done'");
    host.run("ADD", &c1, &prev1, &mappings).call().ok();
    assert!(reaches(&first), "the flow that began before still leads to the host");
    host.run("DEL", &c1, &prev1, &mappings).call().silent();
    assert_eq!(host.node.sh("conntrack -L -p sctp 2>/dev/null; true"), "");
    host.run("ADD", &c2, &prev2, &mappings).call().ok();
    assert!(reaches(&second), "the client does not reach the next container");
}

/// TCP flows stay: a connection continues when its container's ports are published again. A client
/// that starts again from the same port still reaches the next container.
#[test]
fn tcp_conntrack() {
    testkit::require!("root", "program:socat");
    let host = Host::new("pmtcp");
    let (c1, prev1) = host.container("c1", 2);
    let (c2, prev2) = host.container("c2", 3);
    let mappings = json!([mapping(8080, "tcp")]);
    host.run("ADD", &c1, &prev1, &mappings).call().ok();
    let listener = c1.enter(|| TcpListener::bind("[::]:80").unwrap());
    let mut client = host.outside.enter(|| TcpStream::connect("198.51.100.1:8080").unwrap());
    let (mut server, _) = listener.accept().unwrap();
    host.run("DEL", &c1, &prev1, &mappings).call().silent();
    host.run("ADD", &c1, &prev1, &mappings).call().ok();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(traffic::ANSWER_DEADLINE)).unwrap();
    }
    client.write_all(b"?").unwrap();
    server.read_exact(&mut [0]).unwrap();
    server.write_all(b"!").unwrap();
    client.read_exact(&mut [0]).unwrap();
    drop((listener, server, client));

    let ask = || host.outside.sh("socat -u TCP:198.51.100.1:8080,sourceport=40000,reuseaddr -");
    let first = Server::tcp(&c1, "[::]:80", "c1");
    assert!(ask().starts_with("c1 "));
    host.run("DEL", &c1, &prev1, &mappings).call().silent();
    host.run("ADD", &c2, &prev2, &mappings).call().ok();
    drop(first);
    let _second = Server::tcp(&c2, "[::]:80", "c2");
    assert!(ask().starts_with("c2 "));
}

/// Row: portmap | nft backend. DEL removes the reference's layout; our rules are in our own tables.
#[test]
fn nft_backend() {
    testkit::require!("root");
    let host = Host::new("pmnft");
    let (c1, prev) = host.container("c1", 2);
    // As the reference 1.6 and later writes it; the installed one is older.
    host.node.sh("nft -f - <<'E'\n\
         table ip cni_hostport {\n chain hostports {\n\
           tcp dport 8080 dnat to 10.1.0.2:80 comment \"c1\"\n\
           tcp dport 9090 dnat to 10.9.0.2:80 comment \"c1\"\n\
           tcp dport 7070 dnat to 10.1.0.3:80 comment \"c2\"\n }\n\
         chain masquerading { type nat hook postrouting priority srcnat;\n\
           ip saddr 10.1.0.2 ip daddr 10.1.0.2 masquerade comment \"c1\"\n }\n}\nE");
    host.run("DEL", &c1, &prev, &json!([])).call().silent();
    let left = host.node.sh("nft list table ip cni_hostport");
    assert!(!left.contains("10.1.0.2"), "{left}");
    assert!(left.contains("10.1.0.3:80") && left.contains("10.9.0.2:80"), "{left}");
    host.run("ADD", &c1, &prev, &json!([mapping(8080, "tcp")]))
        .config(json!({ "backend": "nftables" }))
        .call()
        .ok();
    assert!(host.node.sh("nft list map inet netwright hostports4").contains("tcp . 8080"));
}

/// Row: portmap | nft isolation per network. The reference tags its rules with the container only.
#[test]
fn nft_isolation_per_network() {
    testkit::require!("root");
    let host = Host::new("pmnets");
    let (c1, prev) = host.container("c1", 2);
    let (a, b) = (json!([mapping(8080, "tcp")]), json!([mapping(9090, "tcp")]));
    host.run("ADD", &c1, &prev, &a).network("a").call().ok();
    host.run("ADD", &c1, &prev, &b).network("b").ifname("eth0").call().ok();
    let _servers = servers(&c1, "c1");
    host.run("DEL", &c1, &prev, &a).network("a").call().silent();
    traffic::assert_no_tcp(&host.outside, "198.51.100.1:8080");
    assert_eq!(traffic::assert_tcp(&host.outside, "198.51.100.1:9090").server, "c1");
    host.run("CHECK", &c1, &prev, &b).network("b").call().silent();
}

/// Row: portmap | DEL.
#[test]
fn del() {
    testkit::require!("root");
    let host = Host::new("pmdel");
    let (c1, prev1) = host.container("c1", 2);
    let (c2, prev2) = host.container("c2", 3);
    let (a, b) =
        (json!([mapping(8080, "tcp"), mapping(8081, "udp")]), json!([mapping(9090, "tcp")]));
    host.run("ADD", &c2, &prev2, &b).call().ok();
    let before = Snapshot::take(&host.node.lab);
    let bare = || host.node.run("portmap", "DEL").id("c1").version("1.0.0");
    // DEL works without configuration and result, namespace, or our record.
    for missing in ["nothing", "result", "namespace", "record"] {
        host.run("ADD", &c1, &prev1, &a).call().ok();
        match missing {
            "nothing" => host.run("DEL", &c1, &prev1, &a).call().silent(),
            "record" => {
                std::fs::remove_dir_all(host.node.roots.run.join("owners")).unwrap();
                bare().call().silent();
            }
            "namespace" => bare().netns("/run/netns/gone").call().silent(),
            _ => bare().to(&c1).call().silent(),
        }
        before.assert_same(&Snapshot::take(&host.node.lab));
        bare().call().silent();
    }
    let _servers = servers(&c2, "c2");
    assert_eq!(traffic::assert_tcp(&host.outside, "198.51.100.1:9090").server, "c2");
}

/// Row: portmap | CHECK.
#[test]
fn check() {
    testkit::require!("root");
    let host = Host::new("pmcheck");
    let (c1, prev) = host.container("c1", 2);
    let mappings = json!([mapping(8080, "tcp"), mapping(8081, "udp")]);
    let run = |verb: &str, backend: &str| {
        host.run(verb, &c1, &prev, &mappings).config(json!({ "backend": backend }))
    };
    run("CHECK", "nftables").call().fails(104, "hostports4");
    for damage in [
        "nft delete element inet netwright hostports4 '{ tcp . 8080 }'",
        "nft delete element inet netwright hostports6 '{ udp . 8081 }'",
        "nft delete element inet netwright hairpin4 '{ cni0 . cni0 . 10.1.0.2 }'",
        "nft delete element inet netwright localnet '{ cni0 }'",
        "nft delete element inet netwright hostports4 '{ tcp . 8080 }'; \
         nft add element inet netwright hostports4 '{ tcp . 8080 : 10.1.0.9 . 80 }'",
        "echo 0 > /proc/sys/net/ipv4/conf/cni0/route_localnet",
        "nft flush ruleset",
    ] {
        run("ADD", "nftables").call().ok();
        run("CHECK", "nftables").call().silent();
        host.node.sh(damage);
        run("CHECK", "nftables").call().fails(104, "packet filter");
        run("DEL", "nftables").call().silent();
        host.node.sh("nft flush ruleset");
    }
    for damage in [
        format!("iptables -t nat -D {DN} 1"),
        "iptables -t nat -F CNI-HOSTPORT-DNAT".to_owned(),
        format!("ip6tables -t nat -F {DN}"),
    ] {
        run("ADD", "iptables").call().ok();
        run("CHECK", "iptables").call().silent();
        host.node.sh(&damage);
        run("CHECK", "iptables").call().fails(104, "missing");
        run("DEL", "iptables").call().silent();
    }
}

/// CHECK compares rules, and does not only count them; a repair restores them.
#[test]
fn a_rule_that_was_replaced_is_put_back() {
    testkit::require!("root");
    let host = Host::new("pmreplaced");
    let (c1, prev) = host.container("c1", 2);
    let mappings = json!([mapping(8080, "tcp")]);
    let check = |repair: bool| {
        let keys = if repair { json!({ "netwright/repair": true }) } else { json!({}) };
        host.run("CHECK", &c1, &prev, &mappings).config(keys).call()
    };
    host.run("ADD", &c1, &prev, &mappings).call().ok();
    check(false).silent();
    let rule = "add rule inet netwright hostports accept\n".repeat(4);
    host.node.sh(&format!("nft -f - <<'END'\nflush chain inet netwright hostports\n{rule}END"));
    let told = "chain hostports of table inet netwright has other rules";
    check(false).fails(104, told);
    assert!(check(true).succeeded());
    check(false).silent();
    let _servers = servers(&c1, "c1");
    assert_eq!(traffic::assert_tcp(&host.outside, "198.51.100.1:8080").server, "c1");
}

/// nerdctl#4253: the error names the holder of a port, which keeps it.
#[test]
fn a_held_port_is_refused() {
    testkit::require!("root");
    let host = Host::new("pmheld");
    let (c1, prev1) = host.container("c1", 2);
    let (c2, prev2) = host.container("c2", 3);
    let mappings = json!([mapping(8080, "tcp")]);
    host.run("ADD", &c1, &prev1, &mappings).call().ok();
    let before = Snapshot::take(&host.node.lab);
    let more = json!([mapping(7070, "tcp"), mapping(8080, "tcp")]);
    let error = host.run("ADD", &c2, &prev2, &more).call().error();
    assert_eq!(error.code, 103, "{error}");
    assert!(error.msg.contains("8080/tcp") && error.msg.contains("\"c1\""), "{error}");
    before.assert_same(&Snapshot::take(&host.node.lab));
    // The holder's namespace goes, and its DEL never comes.
    c1.delete();
    host.run("ADD", &c2, &prev2, &mappings).call().ok();
    let _servers = servers(&c2, "c2");
    assert_eq!(traffic::assert_tcp(&host.outside, "198.51.100.1:8080").server, "c2");
    host.node.run("portmap", "DEL").id("c1").version("1.0.0").call().silent();
    assert_eq!(traffic::assert_tcp(&host.outside, "198.51.100.1:8080").server, "c2");
}

/// Podman passes the same ports to each network of a container: the first network publishes them,
/// and the next takes over.
#[test]
fn another_network_of_the_container_takes_over() {
    testkit::require!("root");
    let host = Host::new("pmsibling");
    let (c1, prev1) = host.container("c1", 2);
    // The container's second interface.
    let (other, prev2) = host.container("other", 3);
    let before = Snapshot::take(&host.node.lab);
    let mappings = json!([mapping(8080, "tcp"), mapping(8080, "udp")]);
    let on = |verb: &str, network: &str, prev: &Value| {
        host.run(verb, &c1, prev, &mappings).network(network).call()
    };
    let _servers = (servers(&c1, "first"), servers(&other, "second"));
    let answers = |name: &str| {
        assert_eq!(traffic::assert_tcp(&host.outside, "198.51.100.1:8080").server, name);
        assert_eq!(traffic::assert_udp(&host.outside, "198.51.100.1:8080").server, name);
    };
    on("ADD", "a", &prev1).ok();
    on("ADD", "b", &prev2).ok();
    answers("first");
    on("CHECK", "b", &prev2).silent();
    on("DEL", "a", &prev1).silent();
    answers("second");
    on("CHECK", "b", &prev2).silent();
    on("DEL", "b", &prev2).silent();
    traffic::assert_no_tcp(&host.outside, "198.51.100.1:8080");
    // An ADD that is killed just before it waits leaves an empty folder.
    let waiting = host.node.roots.run.join("shared/hostports%20of%20c1");
    std::fs::create_dir_all(&waiting).unwrap();
    on("DEL", "b", &prev2).silent();
    assert!(!waiting.exists());
    let lock = host.node.roots.run.join("locks/hostports%20of%20c1.lock");
    assert!(!lock.exists(), "it stays after its container");
    host.node.sh("nft delete table inet netwright");
    before.assert_same(&Snapshot::take(&host.node.lab));
}

/// A second ADD with other ports replaces the first's.
#[test]
fn adding_again_replaces() {
    testkit::require!("root");
    let host = Host::new("pmagain");
    let (c1, prev) = host.container("c1", 2);
    let _servers = servers(&c1, "c1");
    for backend in ["nftables", "iptables", "nftables"] {
        for port in [8080, 8081] {
            let mappings = json!([mapping(port, "tcp")]);
            host.run("ADD", &c1, &prev, &mappings)
                .config(json!({ "backend": backend }))
                .call()
                .ok();
            assert_eq!(
                traffic::assert_tcp(&host.outside, &format!("198.51.100.1:{port}")).server,
                "c1"
            );
            let other = 16161 - port;
            traffic::assert_no_tcp(&host.outside, &format!("198.51.100.1:{other}"));
        }
    }
    host.run("ADD", &c1, &prev, &json!([])).call().ok();
    traffic::assert_no_tcp(&host.outside, "198.51.100.1:8081");
}

/// GC removes what belongs to attachments that are not valid, with our record of them and without.
#[test]
fn gc() {
    testkit::require!("root");
    let host = Host::new("pmgc");
    let (c1, prev1) = host.container("c1", 2);
    let (c2, prev2) = host.container("c2", 3);
    let gc = |network: &str, valid: &[(&str, &str)]| {
        host.node.run("portmap", "GC").network(network).valid(valid).call().silent();
    };
    let ports = || {
        host.node.sh("nft list map inet netwright hostports4 | grep -o 'tcp . [0-9]*' | sort; true")
    };
    for forget in [false, true] {
        host.run("ADD", &c1, &prev1, &json!([mapping(8080, "tcp")])).call().ok();
        host.run("ADD", &c2, &prev2, &json!([mapping(9090, "tcp")])).call().ok();
        host.run("ADD", &c2, &prev2, &json!([mapping(7070, "tcp")])).network("m").call().ok();
        if forget {
            std::fs::remove_dir_all(host.node.roots.run.join("owners")).unwrap();
        }
        gc("n", &[("c2", "eth0")]);
        assert_eq!(ports(), "tcp . 7070\ntcp . 9090\n", "forget {forget}");
        gc("n", &[]);
        assert_eq!(ports(), "tcp . 7070\n");
        gc("m", &[]);
        assert_eq!(ports(), "");
        assert_eq!(host.node.sh("cat /proc/sys/net/ipv4/conf/cni0/route_localnet"), "0\n");
    }
    let keys = json!({ "backend": "iptables" });
    host.run("ADD", &c1, &prev1, &json!([mapping(8080, "tcp")])).config(keys.clone()).call().ok();
    host.go(host.run("ADD", &c2, &prev2, &json!([mapping(9090, "tcp")])).config(keys));
    gc("n", &[("c1", "eth0")]);
    let rules = host.node.sh("iptables-save -t nat");
    assert!(rules.contains("--dports 8080") && !rules.contains("--dports 9090"), "{rules}");
    gc("n", &[]);
    assert!(!host.node.sh("iptables-save -t nat").contains("CNI-DN-"));
}

/// STATUS tests whether nftables, or iptables if configured, can be used.
#[test]
fn status() {
    testkit::require!("root");
    let host = Host::new("pmstatus");
    host.node.run("portmap", "STATUS").call().silent();
    host.node.run("portmap", "STATUS").config(json!({ "backend": "iptables" })).call().silent();
    host.node.sh("mount --bind /bin/false $(readlink -f /usr/sbin/iptables)");
    host.node.run("portmap", "STATUS").call().silent();
    let iptables = host.node.run("portmap", "STATUS").config(json!({ "backend": "iptables" }));
    iptables.call().fails(50, "iptables");
}

/// What the plugin decides before it changes anything.
#[test]
fn without_what_it_needs() {
    Run::bare("portmap", "ADD")
        .netns("/nonexistent")
        .call()
        .fails(7, "must be called as chained plugin");
    let bad =
        Run::bare("portmap", "ADD").netns("/nonexistent").config(json!({ "backend": "ipfw" }));
    bad.call().fails(7, "unrecognized backend \"ipfw\"");
}

/// Row: protocol | prevResult pass-through.
#[test]
fn nothing_asked_for_passes_the_result_on() {
    testkit::require!("root");
    let host = Host::new("pmnone");
    let (c1, prev) = host.container("c1", 2);
    let before = Snapshot::take(&host.node.lab);
    assert_eq!(host.run("ADD", &c1, &prev, &json!([])).call().ok()["ips"], prev["ips"]);
    let null = host.node.run("portmap", "ADD").to(&c1).prev(&prev).version("1.0.0");
    null.config(json!({ "runtimeConfig": { "portMappings": null } })).call().ok();
    before.assert_same(&Snapshot::take(&host.node.lab));
}

/// A port at all addresses or at one, with each back end: ADD of a second container fails, until
/// the first has left or is gone.
#[test]
fn a_port_is_one_containers_whichever_backend_forwards_it() {
    testkit::require!("root", "program:iptables");
    let host = Host::new("pmbackends");
    let (c1, first) = host.container("c1", 2);
    let (c2, second) = host.container("c2", 3);
    let run = |verb: &str, to: &Container, prev: &Value, wanted: &(&str, Value)| {
        host.run(verb, to, prev, &wanted.1).config(json!({ "backend": wanted.0 }))
    };
    let everywhere = || json!([mapping(8080, "tcp")]);
    let at = |address: &str| {
        let mut mapping = mapping(8080, "tcp");
        mapping["hostIP"] = json!(address);
        json!([mapping])
    };
    let (nft, ipt) = ("nftables", "iptables");
    for (holder, other) in [
        ((nft, everywhere()), (ipt, everywhere())),
        ((ipt, everywhere()), (nft, everywhere())),
        ((ipt, everywhere()), (ipt, everywhere())),
        ((nft, everywhere()), (ipt, at("198.51.100.1"))),
        ((nft, at("198.51.100.1")), (ipt, everywhere())),
        ((nft, at("198.51.100.1")), (ipt, at("198.51.100.1"))),
        ((ipt, everywhere()), (nft, at("198.51.100.1"))),
        ((ipt, everywhere()), (ipt, at("2001:db8:ffff::1"))),
        ((ipt, at("2001:db8:ffff::1")), (nft, everywhere())),
        ((ipt, at("198.51.100.1")), (nft, at("198.51.100.1"))),
        ((ipt, at("198.51.100.1")), (ipt, everywhere())),
    ] {
        let what = format!("{holder:?}, then {other:?}");
        run("ADD", &c1, &first, &holder).call().ok();
        let before = Snapshot::take(&host.node.lab);
        let said = run("ADD", &c2, &second, &other).call();
        assert!(!said.succeeded(), "{what}");
        said.fails(103, "8080/tcp is held by container \"c1\"");
        before.assert_same(&Snapshot::take(&host.node.lab));
        run("CHECK", &c1, &first, &holder).call().silent();
        // The first container can get its port again.
        run("ADD", &c1, &first, &holder).call().ok();
        run("DEL", &c1, &first, &holder).call().silent();
        run("ADD", &c2, &second, &other).call().ok();
        run("DEL", &c2, &second, &other).call().silent();
    }
    // Two mappings at two addresses, or with different conditions, do not conflict.
    for (holder, other) in [
        ((ipt, at("198.51.100.1")), (nft, at("192.0.2.7"))),
        ((nft, at("198.51.100.1")), (ipt, at("192.0.2.7"))),
    ] {
        run("ADD", &c1, &first, &holder).call().ok();
        run("ADD", &c2, &second, &other).call().ok();
        run("DEL", &c1, &first, &holder).call().silent();
        run("DEL", &c2, &second, &other).call().silent();
    }
    let one = (ipt, everywhere());
    for (to, prev, from) in [(&c1, &first, "192.0.2.0/25"), (&c2, &second, "192.0.2.128/25")] {
        let conditions = json!({ "conditionsV4": ["-s", from], "conditionsV6": ["-s", "::/0"] });
        run("ADD", to, prev, &one).config(conditions).call().ok();
    }
    run("DEL", &c1, &first, &one).call().silent();
    run("DEL", &c2, &second, &one).call().silent();
    let shared = host.node.roots.run.join("shared");
    assert!(!shared.exists() || host.node.sh(&format!("ls {}", shared.display())).is_empty());
}

/// iptables' rules come before our elements: a dead container's rules would take the port from the
/// living container.
#[test]
fn the_port_of_a_container_that_is_gone_is_taken_over_from_iptables() {
    testkit::require!("root", "program:iptables");
    let host = Host::new("pmtakeover");
    let mappings = json!([mapping(8080, "tcp")]);
    // Each container has addresses of its own: the kernel does not ask again at once for a
    // neighbour that has just changed.
    for (backend, last) in [("nftables", 2), ("iptables", 4)] {
        let (c1, first) = host.container("c1", last);
        let (c2, second) = host.container("c2", last + 1);
        let run = |verb: &str, to: &Container, prev: &Value, backend: &str| {
            host.run(verb, to, prev, &mappings).config(json!({ "backend": backend }))
        };
        run("ADD", &c1, &first, "iptables").call().ok();
        drop(c1);
        run("ADD", &c2, &second, backend).call().ok();
        let server = Server::tcp(&c2, "[::]:80", "c2");
        for to in ["198.51.100.1:8080", "[2001:db8:ffff::1]:8080"] {
            assert_eq!(traffic::assert_tcp(&host.outside, to).server, "c2", "{backend}");
        }
        // The first container's DEL comes late.
        host.node
            .run("portmap", "DEL")
            .id("c1")
            .config(json!({ "backend": "iptables" }))
            .call()
            .silent();
        assert_eq!(traffic::assert_tcp(&host.outside, "198.51.100.1:8080").server, "c2");
        run("DEL", &c2, &second, backend).call().silent();
        drop(server);
        drop(c2);
    }
}
