//! `firewall` and masquerade (`ipMasq`), row by row of the feature table.

mod firewalld;
mod isolation;
mod matrix;

use serde_json::{Value, json};
use testkit::traffic::{self, Server};
use testkit::{Container, Place, Snapshot};

use crate::support::{Node, Run};

/// A host with the outside, and containers behind bridges `br1` (10.1.0.0/24, fd00:1::/64), `br2`,
/// …
struct Host {
    node: Node,
    outside: Container,
}

impl Host {
    fn new(name: &str) -> Host {
        Self::on(Node::new(name))
    }

    fn on(node: Node) -> Host {
        let outside = node.lab.outside();
        // The outside can reach containers without masquerade.
        outside.sh(
            "ip route add 10.0.0.0/8 via 198.51.100.1 && ip -6 route add fd00::/16 via 2001:db8:ffff::1",
        );
        node.sh(
            "echo 1 > /proc/sys/net/ipv4/ip_forward && echo 1 > /proc/sys/net/ipv6/conf/all/forwarding && \
             echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad",
        );
        Host { node, outside }
    }

    /// A container behind bridge `br<net>`, and the result of a bridge plugin for it.
    fn container(&self, name: &str, net: u8, last: u8) -> (Container, Value) {
        let container = self.node.container(name);
        self.node.sh(&format!(
            "test -e /sys/class/net/br{net} || {{ ip link add br{net} type bridge && \
             ip addr add 10.{net}.0.1/24 dev br{net} && ip addr add fd00:{net}::1/64 dev br{net} nodad && \
             ip link set br{net} up; }}; \
             ip link add v{name} type veth peer name eth0 netns {name} && echo 1 > /proc/sys/net/ipv6/conf/v{name}/disable_ipv6 && ip link set v{name} master br{net} up"
        ));
        container.sh(&format!(
            "ip link set lo up && echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad && \
             ip addr add 10.{net}.0.{last}/24 dev eth0 && ip addr add fd00:{net}::{last}/64 dev eth0 nodad && \
             ip link set eth0 up && ip route add default via 10.{net}.0.1 && \
             ip -6 route add default via fd00:{net}::1"
        ));
        // The bridge's link-local address appears some time after its first port is up.
        self.node.sh(&format!(
            "timeout 30 sh -c 'until ip -6 addr show dev br{net} scope link | grep -q inet6; do sleep 0.01; done'"
        ));
        let prev = json!({
            "cniVersion": "1.0.0",
            "interfaces": [
                { "name": format!("br{net}") }, { "name": format!("v{name}") },
                { "name": "eth0", "sandbox": container.netns() },
            ],
            "ips": [
                { "interface": 2, "address": format!("10.{net}.0.{last}/24") },
                { "interface": 2, "address": format!("fd00:{net}::{last}/64") },
            ],
        });
        (container, prev)
    }

    fn br_netfilter(&self, on: bool) {
        let value = u8::from(on);
        self.node.sh(&format!(
            "echo {value} > /proc/sys/net/bridge/bridge-nf-call-iptables && \
             echo {value} > /proc/sys/net/bridge/bridge-nf-call-ip6tables"
        ));
    }

    fn run(&self, verb: &str, to: &Container, prev: &Value, keys: Value) -> Run<'_> {
        self.node.run("firewall", verb).to(to).prev(prev).version("1.0.0").config(keys)
    }

    /// Calls the installed reference plugin.
    fn go(&self, plugin: &str, run: Run<'_>) -> std::process::Output {
        let config = self.node.dir("go").join("config");
        std::fs::write(&config, run.document()).unwrap();
        let mut vars = String::new();
        let _ = run.env(|env| {
            vars = env.to_vars().iter().map(|(key, value)| format!("{key}={value} ")).collect();
        });
        self.node.lab.try_sh(&format!(
            "{vars} CNI_PATH=/usr/lib/cni /usr/lib/cni/{plugin} < {}",
            config.display()
        ))
    }
}

fn server(place: &impl Place, name: &str) -> Server {
    Server::tcp(place, "[::]:80", name)
}

fn save(host: &Host) -> String {
    host.node.sh("(iptables-save; ip6tables-save) | grep -v '^#'; true")
}

fn iptables() -> Value {
    json!({ "backend": "iptables" })
}

/// Row: firewall | iptables rules. Our rules equal the reference's, and each plugin removes and
/// checks the other's.
#[test]
fn iptables_rules() {
    testkit::require!("root", "file:/usr/lib/cni/firewall");
    let host = Host::new("fwrules");
    let (c1, prev) = host.container("c1", 1, 2);
    let run = |verb| host.run(verb, &c1, &prev, iptables());
    run("ADD").call().ok();
    let ours = save(&host);
    assert!(host.go("firewall", run("CHECK")).status.success());
    assert!(host.go("firewall", run("DEL")).status.success());
    let bare = save(&host);
    assert!(!bare.contains("10.1.0.2") && !bare.contains("fd00:1::2"), "{bare}");
    host.node.sh("nft flush ruleset");
    assert!(host.go("firewall", run("ADD")).status.success());
    assert_eq!(ours, save(&host));
    run("CHECK").call().silent();
    run("DEL").call().silent();
    assert_eq!(bare, save(&host));
}

/// A node that used the reference's plugins before: the default configuration, legacy iptables, a
/// lost result.
#[test]
fn what_the_reference_left_goes() {
    testkit::require!("root", "file:/usr/lib/cni/firewall", "legacy-tables");
    let host = Host::new("fwleft");
    let (c1, prev) = host.container("c1", 1, 2);
    let run = |verb| host.run(verb, &c1, &prev, json!({}));
    assert!(host.go("firewall", run("ADD")).status.success());
    host.node.sh(
        "iptables-legacy -N CNI-FORWARD && iptables-legacy -A CNI-FORWARD -s 10.1.0.2 -j ACCEPT && \
         iptables-legacy -A CNI-FORWARD -s 10.1.0.3 -j ACCEPT",
    );
    run("DEL").call().silent();
    assert!(!save(&host).contains("10.1.0.2"));
    let legacy = host.node.sh("iptables-legacy-save");
    assert!(!legacy.contains("10.1.0.2") && legacy.contains("10.1.0.3"), "{legacy}");
}

/// The rules in the reference's chains carry no owner. Two attachments have one address: their
/// networks never meet, or the DEL of a container that died comes after another got its address.
#[test]
fn del_leaves_the_rules_of_another_with_the_same_address() {
    testkit::require!("root");
    let host = Host::new("fwsame");
    let (c1, prev1) = host.container("c1", 1, 2);
    let c2 = host.node.container("c2");
    let mut prev2 = prev1.clone();
    prev2["interfaces"][2]["sandbox"] = json!(c2.netns());
    for keys in [iptables(), json!({})] {
        host.run("ADD", &c1, &prev1, keys.clone()).call().ok();
        host.run("ADD", &c2, &prev2, iptables()).call().ok();
        host.run("DEL", &c1, &prev1, keys.clone()).call().silent();
        host.run("CHECK", &c2, &prev2, iptables()).call().silent();
        // Once more: a runtime may repeat it, with what it remembers.
        host.run("DEL", &c1, &prev1, keys).call().silent();
        host.run("CHECK", &c2, &prev2, iptables()).call().silent();
        host.run("DEL", &c2, &prev2, iptables()).call().silent();
        let left = save(&host);
        assert!(!left.contains("10.1.0.2") && !left.contains("fd00:1::2"), "{left}");
    }
    // An attachment whose record is lost keeps no rules: nobody would remove them.
    host.run("ADD", &c1, &prev1, iptables()).call().ok();
    std::fs::remove_dir_all(host.node.roots.run.join("owners")).unwrap();
    host.run("ADD", &c2, &prev2, iptables()).call().ok();
    host.run("DEL", &c2, &prev2, iptables()).call().silent();
    let left = save(&host);
    assert!(!left.contains("10.1.0.2") && !left.contains("fd00:1::2"), "{left}");
}

/// Row: firewall | custom admin chain.
#[test]
fn custom_admin_chain() {
    testkit::require!("root");
    let host = Host::new("fwadmin");
    let (c1, prev) = host.container("c1", 1, 2);
    let _outside = server(&host.outside, "outside");
    let keys = json!({ "backend": "iptables", "iptablesAdminChainName": "MINE" });
    host.run("ADD", &c1, &prev, keys.clone()).call().ok();
    assert_eq!(traffic::assert_tcp(&c1, "198.51.100.2:80").server, "outside");
    host.node.sh("iptables -A MINE -s 10.1.0.2 -p tcp -j DROP");
    traffic::assert_no_tcp(&c1, "198.51.100.2:80");
    host.run("CHECK", &c1, &prev, keys).call().silent();
}

/// Row: firewall | idempotent.
#[test]
fn idempotent() {
    testkit::require!("root");
    let host = Host::new("fwtwice");
    let (c1, prev) = host.container("c1", 1, 2);
    let isolated = json!({ "backend": "iptables", "ingressPolicy": "isolated" });
    host.node.sh("iptables -P FORWARD DROP");
    for keys in [iptables(), json!({}), isolated] {
        host.run("ADD", &c1, &prev, keys.clone()).call().ok();
        let before = Snapshot::take(&host.node.lab);
        host.run("ADD", &c1, &prev, keys).call().ok();
        before.assert_same(&Snapshot::take(&host.node.lab));
    }
}

/// Row: firewall | DEL. Whatever is missing, DEL leaves nothing of the attachment.
#[test]
fn del() {
    testkit::require!("root");
    let host = Host::new("fwdel");
    let (c1, prev) = host.container("c1", 1, 2);
    let (c2, prev2) = host.container("c2", 1, 3);
    host.node.sh("iptables -P FORWARD DROP; ip6tables -P FORWARD DROP");
    let bare = || host.node.run("firewall", "DEL").id("c1").version("1.0.0");
    for keys in [
        json!({ "ingressPolicy": "isolated" }),
        json!({ "backend": "iptables", "ingressPolicy": "same-bridge" }),
    ] {
        host.run("ADD", &c2, &prev2, keys.clone()).call().ok();
        let before = Snapshot::take(&host.node.lab);
        for missing in ["nothing", "result", "namespace", "record"] {
            let by_address_only = keys["backend"] == "iptables" && missing == "record";
            host.run("ADD", &c1, &prev, keys.clone()).call().ok();
            match missing {
                "nothing" => host.run("DEL", &c1, &prev, keys.clone()).call().silent(),
                "namespace" => bare().netns("/run/netns/gone").call().silent(),
                "result" => bare().to(&c1).call().silent(),
                _ => {
                    std::fs::remove_dir_all(host.node.roots.run.join("owners")).unwrap();
                    // The reference's rules carry no mark except the address.
                    let del = if by_address_only { bare().prev(&prev) } else { bare() };
                    del.call().silent();
                    break;
                }
            }
            before.assert_same(&Snapshot::take(&host.node.lab));
            bare().call().silent();
        }
        let left = format!("{}{}", save(&host), host.node.sh("nft list ruleset"));
        assert!(!left.contains("10.1.0.2") && !left.contains("vc1"), "{left}");
        assert!(left.contains("10.1.0.3"), "{left}");
        host.run("DEL", &c2, &prev2, keys).call().silent();
    }
}

/// k8s#39823, moby#39439: another program sets FORWARD to DROP, and containers lose the outside.
#[test]
fn a_host_that_drops_is_opened_for_the_container() {
    testkit::require!("root");
    let host = Host::new("fwdrop");
    let (c1, prev) = host.container("c1", 1, 2);
    let (c2, _) = host.container("c2", 1, 3);
    let _servers = (server(&host.outside, "outside"), server(&c1, "c1"));
    let works = |from: &Container| {
        assert_eq!(traffic::assert_tcp(from, "198.51.100.2:80").server, "outside");
        assert_eq!(traffic::assert_tcp(from, "[2001:db8:ffff::2]:80").server, "outside");
    };
    let run = |verb| host.run(verb, &c1, &prev, json!({}));
    // No rule drops, so ADD adds nothing.
    let before = Snapshot::take(&host.node.lab);
    run("ADD").call().ok();
    works(&c1);
    run("DEL").call().silent();
    before.assert_same(&Snapshot::take(&host.node.lab));

    for docker in [false, true] {
        if docker {
            host.node.sh(
                "for t in iptables ip6tables; do $t -N DOCKER-USER && $t -A DOCKER-USER -j RETURN && \
                 $t -I FORWARD -j DOCKER-USER; done",
            );
        }
        host.node.sh("iptables -P FORWARD DROP && ip6tables -P FORWARD DROP");
        let before = Snapshot::take(&host.node.lab);
        traffic::assert_no_tcp(&c1, "198.51.100.2:80");
        run("ADD").call().ok();
        works(&c1);
        // The host accepts replies, and connections that it translates itself; it accepts no new
        // connections from outside.
        traffic::assert_no_tcp(&host.outside, "10.1.0.2:80");
        traffic::assert_no_tcp(&c2, "198.51.100.2:80");
        let chain = if docker { "DOCKER-USER" } else { "FORWARD" };
        assert!(save(&host).contains(&format!("-A {chain} -s 10.1.0.2/32")), "{}", save(&host));
        let mapped = host.node.run("portmap", "ADD").to(&c1).prev(&prev).version("1.0.0").config(json!({
            "runtimeConfig": { "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }] }
        }));
        mapped.call().ok();
        assert_eq!(traffic::assert_tcp(&host.outside, "198.51.100.1:8080").server, "c1");
        host.node.run("portmap", "DEL").to(&c1).version("1.0.0").call().silent();
        host.node.sh("nft delete table inet netwright");
        run("CHECK").call().silent();
        host.node.sh(&format!("iptables -D {chain} 1"));
        run("CHECK").call().fails(104, "10.1.0.2");
        run("DEL").call().silent();
        before.assert_same(&Snapshot::take(&host.node.lab));
    }
}

/// An administrator has flushed `FORWARD`, or Docker's jump has a condition by now.
#[test]
fn accepts_to_which_nothing_leads_are_moved() {
    testkit::require!("root");
    let host = Host::new("fwmoved");
    let (c1, prev) = host.container("c1", 1, 2);
    let _server = server(&host.outside, "outside");
    let works = || {
        assert_eq!(traffic::assert_tcp(&c1, "198.51.100.2:80").server, "outside");
        assert_eq!(traffic::assert_tcp(&c1, "[2001:db8:ffff::2]:80").server, "outside");
    };
    let each = |commands: &str| {
        for tool in ["iptables", "ip6tables"] {
            host.node.sh(&commands.replace("TOOL", tool));
        }
    };
    let run = |verb| host.run(verb, &c1, &prev, json!({}));
    let places = |chain: &str| save(&host).matches(&format!("-A {chain} -s ")).count();
    each(
        "TOOL -N DOCKER-USER && TOOL -A DOCKER-USER -j RETURN && TOOL -A FORWARD -j DOCKER-USER && \
          TOOL -P FORWARD DROP",
    );
    for loses in ["TOOL -F FORWARD", "TOOL -R FORWARD 1 -i docker0 -j DOCKER-USER"] {
        run("ADD").call().ok();
        works();
        assert_eq!((places("DOCKER-USER"), places("FORWARD")), (2, 0));
        each(loses);
        traffic::assert_no_tcp(&c1, "198.51.100.2:80");
        run("CHECK").call().fails(104, "-A FORWARD -s 10.1.0.2/32");
        host.run("CHECK", &c1, &prev, json!({ "netwright/repair": true })).call().ok();
        works();
        assert_eq!((places("DOCKER-USER"), places("FORWARD")), (0, 2));
        run("CHECK").call().silent();
        // Docker starts again.
        each("TOOL -F FORWARD && TOOL -A FORWARD -j DOCKER-USER");
        run("CHECK").call().fails(104, "-A DOCKER-USER -s 10.1.0.2/32");
        run("ADD").call().ok();
        works();
        each(loses);
        run("DEL").call().silent();
        assert_eq!((places("DOCKER-USER"), places("FORWARD")), (0, 0));
        // From the beginning nothing leads there.
        run("ADD").call().ok();
        works();
        assert_eq!((places("DOCKER-USER"), places("FORWARD")), (0, 2));
        run("DEL").call().silent();
        each("TOOL -F FORWARD && TOOL -A FORWARD -j DOCKER-USER");
    }
}

/// The same with legacy iptables, which nftables does not show.
#[test]
fn a_host_that_drops_by_legacy_iptables_is_opened() {
    testkit::require!("root", "program:iptables-legacy");
    let host = Host::new("fwdropleg");
    let (c1, prev) = host.container("c1", 1, 2);
    let _outside = server(&host.outside, "outside");
    host.node.sh("iptables-legacy -P FORWARD DROP");
    let before = host.node.sh("iptables-legacy-save | grep -v '^[#:]'");
    traffic::assert_no_tcp(&c1, "198.51.100.2:80");
    host.run("ADD", &c1, &prev, json!({})).call().ok();
    assert_eq!(traffic::assert_tcp(&c1, "198.51.100.2:80").server, "outside");
    // IPv6 passes as it is; legacy ip6tables is not even set up.
    assert_eq!(host.node.sh("cat /proc/net/ip6_tables_names"), "");
    host.run("DEL", &c1, &prev, json!({})).call().silent();
    assert_eq!(host.node.sh("iptables-legacy-save | grep -v '^[#:]'"), before);
}

/// ADD cannot overrule an administrator's rules: it warns of them.
#[test]
fn a_foreign_table_that_drops_is_told() {
    testkit::require!("root");
    let host = Host::new("fwforeign");
    let (c1, prev) = host.container("c1", 1, 2);
    host.node.sh("nft add table inet mine && \
         nft 'add chain inet mine strict { type filter hook forward priority 0; policy drop; }'");
    let answer = host.run("ADD", &c1, &prev, json!({})).call();
    assert!(
        answer.succeeded() && answer.stderr().contains("chain strict of table inet mine"),
        "{answer:?}"
    );
    host.node.run("firewall", "STATUS").call().fails(51, "inet mine");
    host.node.sh("nft delete table inet mine");
    host.node.run("firewall", "STATUS").call().silent();
}

/// Each error names the wrong key, and ADD changes nothing.
#[test]
fn bad_input_changes_nothing() {
    testkit::require!("root");
    let host = Host::new("fwbad");
    let (c1, prev) = host.container("c1", 1, 2);
    host.node.sh("iptables -P FORWARD DROP");
    let before = Snapshot::take(&host.node.lab);
    for (keys, code, words) in [
        (json!({ "backend": 7 }), 6, "backend"),
        (json!({ "firewalldZone": {} }), 6, "firewalldZone"),
        (json!({ "iptablesAdminChainName": [] }), 6, "iptablesAdminChainName"),
        (json!({ "ingressPolicy": true }), 6, "ingressPolicy"),
        (json!({ "ingressPolicy": "Isolated" }), 7, "unknown ingress policy: \"Isolated\""),
        (
            json!({ "backend": "iptables", "iptablesAdminChainName": "a b" }),
            7,
            "iptablesAdminChainName \"a b\"",
        ),
    ] {
        for verb in ["ADD", "CHECK"] {
            host.run(verb, &c1, &prev, keys.clone()).call().fails(code, words);
        }
        host.node.run("firewall", "STATUS").config(keys.clone()).call().fails(code, words);
        host.run("DEL", &c1, &prev, keys).call().silent();
    }
    before.assert_same(&Snapshot::take(&host.node.lab));
}

/// Row: firewall | CHECK.
#[test]
fn check() {
    testkit::require!("root");
    let host = Host::new("fwcheck");
    let (c1, prev) = host.container("c1", 1, 2);
    let run = |verb| host.run(verb, &c1, &prev, iptables());
    run("CHECK").call().fails(104, "missing");
    for damage in [
        "iptables -D CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT",
        "ip6tables -D CNI-FORWARD -s fd00:1::2/128 -j ACCEPT",
        "iptables -F FORWARD",
        "iptables -F CNI-FORWARD",
    ] {
        run("ADD").call().ok();
        run("CHECK").call().silent();
        host.node.sh(damage);
        run("CHECK").call().fails(104, "missing");
    }
    host.node
        .run("firewall", "CHECK")
        .to(&c1)
        .version("1.0.0")
        .call()
        .fails(7, "missing prevResult");
    Run::bare("firewall", "ADD")
        .netns("/nonexistent")
        .call()
        .fails(7, "missing prevResult from earlier plugin");
    Run::bare("firewall", "ADD")
        .netns("/nonexistent")
        .version("0.3.1")
        .call()
        .fails(1, "incompatible");
}

/// GC removes what belongs to attachments that are not valid, with our record of them and without.
#[test]
fn gc() {
    testkit::require!("root");
    let host = Host::new("fwgc");
    let (c1, prev1) = host.container("c1", 1, 2);
    let (c2, prev2) = host.container("c2", 1, 3);
    host.node.sh("iptables -P FORWARD DROP");
    let keys = || json!({ "ingressPolicy": "isolated" });
    let ports = || {
        host.node
            .sh("nft list set bridge netwright isolated_ports | grep -o '\"v[^\"]*\"' | sort; true")
    };
    let gc = |valid: &[(&str, &str)]| host.node.run("firewall", "GC").valid(valid).call().silent();
    for forget in [false, true] {
        host.run("ADD", &c1, &prev1, keys()).call().ok();
        host.run("ADD", &c2, &prev2, keys()).call().ok();
        if forget {
            std::fs::remove_dir_all(host.node.roots.run.join("owners")).unwrap();
        }
        gc(&[("c2", "eth0")]);
        assert_eq!(ports(), "\"vc2\"\n", "forget {forget}");
        assert!(!save(&host).contains("10.1.0.2"), "{}", save(&host));
        assert!(save(&host).contains("10.1.0.3"), "{}", save(&host));
        gc(&[]);
        assert_eq!(ports(), "");
        assert!(!host.node.sh("nft list set inet netwright policy_bridges").contains("br1"));
    }
}

mod ip_masq {
    use super::*;

    fn bridge<'n>(host: &'n Host, verb: &str, to: &Container, keys: Value) -> Run<'n> {
        host.node
            .run("bridge", verb)
            .to(to)
            .version("1.0.0")
            .config(json!({
                "bridge": "cni0", "isGateway": true, "ipMasq": true,
                "ipam": { "type": "host-local", "dataDir": host.node.dir("ipam"), "ranges": [
                    [{ "subnet": "10.9.0.0/24" }], [{ "subnet": "fd00:9::/64" }],
                ], "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }] },
            }))
            .config(keys)
    }

    fn new(name: &str) -> (Host, Container) {
        let host = Host::new(name);
        let container = host.node.container("c1");
        // Without masquerade the outside must not have a route back.
        host.outside.sh("ip route del 10.0.0.0/8; ip -6 route del fd00::/16");
        (host, container)
    }

    fn iptables() -> Value {
        json!({ "ipMasqBackend": "iptables" })
    }

    fn seen(host: &Host, c1: &Container) -> [String; 2] {
        let _outside = server(&host.outside, "outside");
        ["198.51.100.2:80", "[2001:db8:ffff::2]:80"]
            .map(|to| traffic::assert_tcp(c1, to).seen.ip().to_string())
    }

    /// Row: ipMasq | iptables rules.
    #[test]
    fn iptables_rules() {
        testkit::require!("root", "file:/usr/lib/cni/bridge");
        let (host, c1) = new("masqrules");
        bridge(&host, "ADD", &c1, iptables()).call().ok();
        assert_eq!(seen(&host, &c1), ["198.51.100.1", "2001:db8:ffff::1"]);
        let ours = save(&host);
        bridge(&host, "DEL", &c1, iptables()).call().silent();
        host.node.sh("nft flush ruleset");
        let dir = host.node.dir("ipam");
        std::fs::remove_dir_all(dir).unwrap();
        assert!(host.go("bridge", bridge(&host, "ADD", &c1, json!({}))).status.success());
        assert_eq!(ours, save(&host));
        assert!(ours.contains(":CNI-9b00b9b7c2795a8a61a6eec1"), "{ours}");
    }

    /// Row: ipMasq | multicast exempt.
    #[test]
    fn multicast_exempt() {
        testkit::require!("root");
        for backend in ["nftables", "iptables"] {
            let (host, c1) = new("masqmcast");
            bridge(&host, "ADD", &c1, json!({ "ipMasqBackend": backend })).call().ok();
            let rules = host.node.sh("nft list ruleset");
            for multicast in ["224.0.0.0/4", "ff00::/8"] {
                assert!(rules.contains(multicast), "{backend}: {rules}");
            }
        }
    }

    /// Rows: ipMasq | DEL cleans, both cleaned on DEL. Each plugin removes what the other made,
    /// even if the namespace is gone, where the reference leaves its rules.
    #[test]
    fn del_cleans_both() {
        testkit::require!("root", "file:/usr/lib/cni/bridge");
        let (host, c1) = new("masqdel");
        let chains = || {
            let rules = format!("{}{}", save(&host), host.node.sh("nft list ruleset"));
            rules.contains("CNI-9b00") || rules.contains("chain masquerade-")
        };
        for (made_by_us, keys, removed_by_us) in [
            (true, iptables(), true),
            (true, iptables(), false),
            (true, json!({}), true),
            (false, json!({}), true),
        ] {
            if made_by_us {
                bridge(&host, "ADD", &c1, keys).call().ok();
            } else {
                assert!(host.go("bridge", bridge(&host, "ADD", &c1, keys)).status.success());
            }
            assert!(chains());
            if removed_by_us {
                // The configuration has changed meanwhile, and the path leads nowhere.
                bridge(&host, "DEL", &c1, json!({ "ipMasq": false }))
                    .netns("/run/netns/gone")
                    .call()
                    .silent();
                c1.sh("ip link del eth0 2>/dev/null; true");
            } else {
                assert!(host.go("bridge", bridge(&host, "DEL", &c1, iptables())).status.success());
                std::fs::remove_dir_all(host.node.roots.run.join("owners")).unwrap();
            }
            assert!(!chains(), "made by us {made_by_us}: {}", host.node.sh("nft list ruleset"));
        }
    }

    /// Row: ipMasq | nftables backend. Ours has its own tables; DEL removes what the reference
    /// left.
    #[test]
    fn nftables_backend() {
        testkit::require!("root");
        let (host, c1) = new("masqnft");
        // The reference 1.5 and later writes this, with the comments of the table's test vectors.
        host.node.sh("nft -f - <<'E'\ntable inet cni_plugins_masquerade {\n chain masq_checks {\n\
             ip saddr 10.9.0.2 ip daddr != 10.9.0.0/24 masquerade comment \
             \"917148ec47923f2e-f4d01f2ef4b92245, net: n, if: eth0, id: c1\"\n\
             ip saddr 10.9.0.3 ip daddr != 10.9.0.0/24 masquerade comment \
             \"917148ec47923f2e-0000000000000000, net: n, if: eth0, id: c2\"\n }\n}\nE");
        bridge(&host, "DEL", &c1, json!({})).call().silent();
        let left = host.node.sh("nft list table inet cni_plugins_masquerade");
        assert!(!left.contains("10.9.0.2 ") && left.contains("10.9.0.3 "), "{left}");
        bridge(&host, "ADD", &c1, json!({ "ipMasqBackend": "nftables" })).call().ok();
        assert_eq!(seen(&host, &c1), ["198.51.100.1", "2001:db8:ffff::1"]);
        host.node
            .run("bridge", "GC")
            .config(json!({ "ipam": {} }))
            .valid(&[("c1", "eth0")])
            .call()
            .silent();
        let left = host.node.sh("nft list table inet cni_plugins_masquerade");
        assert!(!left.contains("10.9.0.3 "), "{left}");
        assert_eq!(seen(&host, &c1), ["198.51.100.1", "2001:db8:ffff::1"]);
    }

    /// Row: ipMasq | nft idempotent is `adding_again_changes_nothing_and_a_leftover_is_replaced` in
    /// crate firewall: the bridge plugin refuses a second ADD, as the reference's does.
    ///
    /// Row: ipMasq | auto backend.
    #[test]
    fn auto_backend() {
        testkit::require!("root");
        let (host, c1) = new("masqauto");
        bridge(&host, "ADD", &c1, json!({})).call().ok();
        assert!(host.node.sh("nft list ruleset").contains("chain masquerade-"));
        assert!(!save(&host).contains("CNI-"));
        bridge(&host, "DEL", &c1, json!({})).call().silent();
        bridge(&host, "ADD", &c1, json!({ "ipMasqBackend": "x" }))
            .call()
            .fails(7, "unknown ipmasq backend \"x\"");
    }
}
