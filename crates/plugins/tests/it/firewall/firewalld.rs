//! `firewall` with Debian's firewalld, on a message bus of the test's own.

use std::time::{Duration, Instant};

use ::firewall::cluster::Opener;
use ::firewall::firewalld::{Firewalld, TIMEOUT};
use serde_json::{Value, json};
use state::Index;
use testkit::traffic;
use testkit::{Container, Lab, Place, RunningProgram, Snapshot};

use super::{Host, server};
use crate::support::Node;

/// The bus's address if the configuration has no other.
const USUAL: &str = "/run/dbus/system_bus_socket";
/// How long the daemons may take to start.
const STARTED: Duration = Duration::from_secs(60);

/// A bus that permits every client everything and starts no services.
const BUS: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=SOCKET</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/></policy>
</busconfig>"#;

/// A host whose firewalld runs.
struct FirewalldHost {
    host: Host,
    socket: &'static str,
    daemon: Option<RunningProgram>,
    _bus: RunningProgram,
}

impl FirewalldHost {
    /// Puts the bus at its usual address.
    fn new(name: &str) -> Self {
        Self::with(name, USUAL, "nftables")
    }

    fn with(name: &str, socket: &'static str, backend: &str) -> Self {
        let mut node = Node::on(Lab::with_processes(name));
        let config = node.dir("bus").join("config.xml");
        std::fs::write(&config, BUS.replace("SOCKET", socket)).unwrap();
        node.sh(&format!(
            "mkdir -p $(dirname {socket}) /var/log /etc/firewalld && cd /etc/firewalld && \
             (cat /usr/share/doc/firewalld/firewalld.conf firewalld.conf 2>/dev/null || true) | \
             grep -v -e '^FirewallBackend=' > new; echo FirewallBackend={backend} >> new; mv new firewalld.conf"
        ));
        let config = format!("--config-file={}", config.display());
        let bus = node.lab.start("dbus-daemon", &[&config, "--nofork", "--nopidfile"]);
        if socket != USUAL {
            node.roots.system_bus = Some(format!("unix:path={socket}"));
        }
        let mut guarded = FirewalldHost { host: Host::on(node), socket, daemon: None, _bus: bus };
        guarded.wait(&format!("test -S {socket}"));
        guarded.start();
        guarded
    }

    fn start(&mut self) {
        let address = format!("DBUS_SYSTEM_BUS_ADDRESS=unix:path={}", self.socket);
        let args = [&address, "firewalld", "--nofork"];
        self.daemon = Some(self.host.node.lab.start("env", &args));
        let state = self.cmd_text("--state");
        self.wait(&state);
    }

    /// Ends firewalld as an administrator would; its rules are removed.
    fn stop(&mut self) {
        self.host.node.sh("kill $(cat /run/firewalld.pid)");
        self.daemon.take().unwrap().child().wait().unwrap();
    }

    #[track_caller]
    fn wait(&self, script: &str) {
        let end = Instant::now() + STARTED;
        while !self.host.node.lab.try_sh(script).status.success() {
            assert!(Instant::now() < end, "never succeeds: {script}");
        }
    }

    fn cmd_text(&self, args: &str) -> String {
        format!("DBUS_SYSTEM_BUS_ADDRESS=unix:path={} firewall-cmd {args}", self.socket)
    }

    #[track_caller]
    fn cmd(&self, args: &str) -> String {
        self.host.node.sh(&self.cmd_text(args)).trim().to_owned()
    }

    /// Uses a zone once: firewalld then makes its chains, and keeps them.
    fn warm(&self, zone: &str) {
        for verb in ["add", "remove"] {
            let [v4, v6] =
                ["192.0.2.1/32", "2001:db8::1/128"].map(|of| format!("--{verb}-source={of}"));
            self.cmd(&format!("--zone={zone} {v4} {v6}"));
        }
    }

    /// Asks firewalld as `firewall-cmd --list-sources` does, which takes a quarter of a second to
    /// start.
    fn sources(&self, zone: &str) -> Vec<String> {
        let name = "org.fedoraproject.FirewallD1";
        let text = self.host.node.sh(&format!(
            "busctl --address=unix:path={} call {name} /org/fedoraproject/FirewallD1 {name}.zone \
             getSources s {zone}",
            self.socket
        ));
        // `as 2 "10.1.0.2/32" "fd00:1::2/128"`
        assert!(text.starts_with("as "), "{text}");
        let mut sources: Vec<String> =
            text.split('"').skip(1).step_by(2).map(str::to_owned).collect();
        sources.sort();
        sources
    }
}

fn firewalld() -> Value {
    json!({ "backend": "firewalld" })
}

const OF_C1: [&str; 2] = ["10.1.0.2/32", "fd00:1::2/128"];

/// The addresses of one family only.
fn only(prev: &Value, family: &str) -> Value {
    let mut prev = prev.clone();
    prev["ips"].as_array_mut().unwrap().retain(|ip| {
        let v6 = ip["address"].as_str().unwrap().contains(':');
        family == "dual" || v6 == (family == "v6")
    });
    prev
}

/// Row: firewall | firewalld. An address becomes a source of the zone, by configuration or because
/// the plugin finds that it must.
#[test]
fn addresses_are_sources_of_the_zone() {
    testkit::require!("root", "program:firewalld", "program:dbus-daemon");
    let on = FirewalldHost::new("fwd");
    let host = &on.host;
    let (c1, prev) = host.container("c1", 1, 2);
    let (c2, _) = host.container("c2", 1, 3);
    let _outside = server(&host.outside, "outside");
    let targets = [("v4", "198.51.100.2:80", 0), ("v6", "[2001:db8:ffff::2]:80", 1)];
    for (_, target, _) in targets {
        traffic::assert_no_tcp(&c1, target);
    }
    on.warm("trusted");
    let before = Snapshot::take(&host.node.lab);
    for keys in
        [json!({}), firewalld(), json!({ "backend": "no such", "firewalldZone": "trusted" })]
    {
        for family in ["v4", "v6", "dual"] {
            let prev = only(&prev, family);
            let run = |verb| host.run(verb, &c1, &prev, keys.clone());
            run("CHECK").call().fails(104, "failed to find the address");
            assert_eq!(run("ADD").call().ok()["ips"], prev["ips"]);
            let sources = on.sources("trusted");
            for (of, target, at) in targets {
                let has = family == "dual" || family == of;
                assert_eq!(sources.contains(&OF_C1[at].to_owned()), has);
                if has {
                    assert_eq!(traffic::assert_tcp(&c1, target).server, "outside");
                } else {
                    traffic::assert_no_tcp(&c1, target);
                }
            }
            traffic::assert_no_tcp(&c2, "198.51.100.2:80");
            run("CHECK").call().silent();
            let once = on.cmd("--list-all-zones");
            run("ADD").call().ok();
            assert_eq!(on.cmd("--list-all-zones"), once);
            run("DEL").call().silent();
            run("DEL").call().silent();
            assert_eq!(on.sources("trusted"), [""; 0]);
        }
    }
    before.assert_same(&Snapshot::take(&host.node.lab));
}

/// The reference sends its query and ignores the answer (cni.md §5.4). A reload forgets runtime
/// changes, and our own tables keep theirs.
#[test]
fn check_finds_what_firewalld_has_lost() {
    testkit::require!("root", "program:firewalld", "program:dbus-daemon");
    let on = FirewalldHost::new("fwdcheck");
    let host = &on.host;
    let (c1, prev) = host.container("c1", 1, 2);
    let (c2, prev2) = host.container("c2", 1, 3);
    let _outside = server(&host.outside, "outside");
    let _c1 = server(&c1, "c1");
    let keys = || json!({ "backend": "firewalld", "ingressPolicy": "isolated" });
    let run = |verb| host.run(verb, &c1, &prev, keys());
    host.run("ADD", &c2, &prev2, keys()).call().ok();
    for (damage, lost) in [
        ("--zone=trusted --remove-source=10.1.0.2/32", "10.1.0.2/32 in trusted zone"),
        ("--zone=trusted --remove-source=fd00:1::2/128", "fd00:1::2/128 in trusted zone"),
        ("--zone=drop --change-source=10.1.0.2/32", "10.1.0.2/32 in trusted zone"),
        ("--reload", "10.1.0.2/32 in trusted zone"),
    ] {
        run("ADD").call().ok();
        run("CHECK").call().silent();
        on.cmd(damage);
        run("CHECK").call().fails(104, lost);
        traffic::assert_no_tcp(&c2, "10.1.0.2:80");
        if damage.contains("drop") {
            // Another program wants the address in its zone.
            run("ADD").call().fails(108, "ZONE_CONFLICT");
            assert_eq!(on.sources("drop"), ["10.1.0.2/32"]);
            on.cmd("--zone=drop --remove-source=10.1.0.2/32");
        }
    }
    run("ADD").call().ok();
    assert_eq!(traffic::assert_tcp(&c1, "198.51.100.2:80").server, "outside");
}

/// A zone accepts a cluster's ranges, so that the cluster's forwarded packets pass. An attachment
/// whose address is in such a range still has a source of its own.
#[test]
fn ranges_of_a_cluster_are_sources_of_the_zone() {
    testkit::require!("root", "program:firewalld", "program:dbus-daemon");
    let on = FirewalldHost::new("fwdranges");
    let host = &on.host;
    let (c1, prev) = host.container("c1", 1, 2);
    let _servers = [server(&host.outside, "outside"), server(&c1, "c1")];
    let index = Index::new(&host.node.roots);
    let bus = format!("unix:path={}", on.socket);
    let ranges = ["10.0.0.0/14".parse().unwrap(), "fd00::/16".parse().unwrap()];
    let opener = |zone: &str| Opener {
        index: &index,
        firewalld: Firewalld::new(Some(&bus), TIMEOUT),
        zone: zone.to_owned(),
    };
    host.run("ADD", &c1, &prev, firewalld()).call().ok();
    host.node.lab.enter(|| {
        assert_eq!(opener("trusted").check(&ranges).unwrap().len(), 2);
        assert_eq!(opener("trusted").open(&ranges).unwrap(), []);
        assert_eq!(opener("trusted").open(&ranges).unwrap(), []);
        assert_eq!(opener("trusted").check(&ranges).unwrap(), [""; 0]);
        let error = opener("nowhere").open(&ranges).unwrap_err();
        assert_eq!(
            error.to_string(),
            "accept what the cluster forwards in firewalld's zone \"nowhere\""
        );
    });
    host.run("DEL", &c1, &prev, firewalld()).call().silent();
    assert_eq!(on.sources("trusted"), ["10.0.0.0/14", "fd00::/16"]);
    for target in ["198.51.100.2:80", "[2001:db8:ffff::2]:80"] {
        assert_eq!(traffic::assert_tcp(&c1, target).server, "outside");
    }
    // As docs/firewall.md says: only what comes from the ranges.
    traffic::assert_no_tcp(&host.outside, "10.1.0.2:80");
    host.node.lab.enter(|| opener("trusted").close(&ranges)).unwrap();
    assert_eq!(on.sources("trusted"), [""; 0]);
    host.node.lab.enter(|| opener("trusted").close(&ranges)).unwrap();
}

/// firewalld was killed, and its rules stay: they drop what no zone forwards, and no daemon can
/// report what the zones forward.
#[test]
fn check_tells_of_a_firewalld_that_left_its_rules_behind() {
    testkit::require!("root", "program:firewalld", "program:dbus-daemon");
    let mut on = FirewalldHost::new("fwdkilled");
    let host = &on.host;
    let (c1, prev) = host.container("c1", 1, 2);
    host.run("ADD", &c1, &prev, json!({})).call().ok();
    host.run("CHECK", &c1, &prev, json!({})).call().silent();
    host.node.sh("kill -KILL $(cat /run/firewalld.pid)");
    on.daemon.take().unwrap().child().wait().unwrap();
    let host = &on.host;
    let check = || host.run("CHECK", &c1, &prev, json!({}));
    check().call().fails(104, "firewalld rejects what no zone forwards, and it is not running");
    // A repair does not accept that either.
    let repair = || check().config(json!({ "netwright/repair": true })).call();
    repair().fails(104, "it is not running");
    check().call().fails(104, "it is not running");
    host.run("DEL", &c1, &prev, json!({})).call().silent();
}

/// CVE-2025-54388, CVE-2025-54410: a reload removed isolation and no program restored it. Our
/// isolation stays; a repair restores the container's zone source, which firewalld forgets. If
/// another container now has the address, it keeps it.
#[test]
fn a_reload_keeps_isolation_and_is_repaired() {
    testkit::require!("root", "program:firewalld", "program:dbus-daemon");
    let on = FirewalldHost::new("fwdrepair");
    let host = &on.host;
    let (c1, prev) = host.container("c1", 1, 2);
    let (c2, prev2) = host.container("c2", 1, 3);
    let _outside = server(&host.outside, "outside");
    let _c1 = server(&c1, "c1");
    let keys = || json!({ "backend": "firewalld", "ingressPolicy": "isolated" });
    host.run("ADD", &c1, &prev, keys()).call().ok();
    host.run("ADD", &c2, &prev2, keys()).call().ok();
    let repair = |container: &Container, prev: &Value| {
        let run = host.run("CHECK", container, prev, keys());
        run.config(json!({ "netwright/repair": true })).call()
    };
    for damage in ["--reload", "--complete-reload"] {
        on.cmd(damage);
        traffic::assert_no_tcp(&c2, "10.1.0.2:80");
        traffic::assert_no_tcp(&c1, "198.51.100.2:80");
        for (container, prev) in [(&c1, &prev), (&c2, &prev2)] {
            let repaired = cni::RepairReport::parse(&repair(container, prev).output.stdout);
            assert!(repaired.lines[0].contains("in trusted zone"), "{damage}: {repaired:?}");
        }
        traffic::assert_no_tcp(&c2, "10.1.0.2:80");
        assert_eq!(traffic::assert_tcp(&c1, "198.51.100.2:80").server, "outside");
    }
    on.cmd("--zone=drop --change-source=10.1.0.2/32");
    repair(&c1, &prev).fails(104, "10.1.0.2/32 in trusted zone");
    assert_eq!(on.sources("drop"), ["10.1.0.2/32"]);
}

/// For an unknown zone the error has firewalld's own words, and ADD leaves nothing.
#[test]
fn the_zone_is_the_configured_one() {
    testkit::require!("root", "program:firewalld", "program:dbus-daemon");
    let on = FirewalldHost::new("fwdzone");
    let host = &on.host;
    let (c1, prev) = host.container("c1", 1, 2);
    on.warm("work");
    on.warm("home");
    let before = Snapshot::take(&host.node.lab);
    let zone = |name: &str| json!({ "backend": "firewalld", "firewalldZone": name });
    host.run("ADD", &c1, &prev, zone("nowhere")).call().fails(
        7,
        "failed to add the address 10.1.0.2/32 to nowhere zone: INVALID_ZONE: nowhere; firewalldZone",
    );
    before.assert_same(&Snapshot::take(&host.node.lab));
    let status = |keys: Value| host.node.run("firewall", "STATUS").config(keys).call();
    status(zone("nowhere")).fails(50, "nowhere");
    status(zone("work")).silent();
    status(json!({})).silent();
    status(json!({ "firewalldZone": "nowhere" })).fails(51, "nowhere");
    status(json!({ "backend": "firewalld", "firewalldZone": 7 })).fails(6, "firewalldZone");
    host.run("ADD", &c1, &prev, zone("work")).call().ok();
    assert_eq!(on.sources("work"), OF_C1);
    // The configuration now has another zone: ADD moves the address, and DEL finds it whatever the
    // configuration is.
    host.run("ADD", &c1, &prev, zone("home")).call().ok();
    assert_eq!(
        (on.sources("work").len(), on.sources("home")),
        (0, OF_C1.map(str::to_owned).to_vec())
    );
    host.run("DEL", &c1, &prev, zone("nowhere")).call().silent();
    before.assert_same(&Snapshot::take(&host.node.lab));
}

/// Whatever is missing when DEL and GC come, they leave nothing of the attachment, and keep what
/// another one uses.
#[test]
fn del_and_gc_take_the_sources_of_the_attachment() {
    testkit::require!("root", "program:firewalld", "program:dbus-daemon");
    let mut on = FirewalldHost::with("fwddel", "/run/elsewhere/bus", "nftables");
    let host = &on.host;
    let (c1, prev) = host.container("c1", 1, 2);
    let (c2, prev2) = host.container("c2", 1, 3);
    let bare = || host.node.run("firewall", "DEL").id("c1").version("1.0.0");
    host.run("ADD", &c2, &prev2, firewalld()).call().ok();
    let of_c2 = ["10.1.0.3/32", "fd00:1::3/128"];
    for missing in ["nothing", "result", "namespace", "configuration", "record"] {
        host.run("ADD", &c1, &prev, firewalld()).call().ok();
        assert_eq!(on.sources("trusted").len(), 4);
        match missing {
            "nothing" => host.run("DEL", &c1, &prev, firewalld()).call().silent(),
            "result" => bare().to(&c1).config(firewalld()).call().silent(),
            "namespace" => bare().netns("/run/netns/gone").call().silent(),
            "configuration" => {
                bare().config(json!({ "backend": 7, "firewalldZone": 7 })).call().silent();
            }
            _ => {
                let owners = host.node.roots.run.join("owners");
                for record in std::fs::read_dir(owners).unwrap() {
                    let record = record.unwrap().path().join("firewall.json");
                    if std::fs::read_to_string(&record).is_ok_and(|text| text.contains("\"c1\"")) {
                        std::fs::remove_file(record).unwrap();
                    }
                }
                host.run("DEL", &c1, &prev, json!({})).call().silent();
            }
        }
        assert_eq!(on.sources("trusted"), of_c2, "{missing}");
        bare().call().silent();
    }
    // Two networks with the same addresses: DEL of the last one removes the source.
    let other = |verb| host.run(verb, &c1, &prev, firewalld()).network("m");
    host.run("ADD", &c1, &prev, firewalld()).call().ok();
    other("ADD").call().ok();
    host.run("DEL", &c1, &prev, firewalld()).call().silent();
    assert_eq!(on.sources("trusted").len(), 4);
    other("CHECK").call().silent();
    other("DEL").call().silent();
    assert_eq!(on.sources("trusted"), of_c2);
    // GC keeps what is valid.
    host.run("ADD", &c1, &prev, firewalld()).call().ok();
    let gc = |valid: &[(&str, &str)]| host.node.run("firewall", "GC").valid(valid).call().silent();
    gc(&[("c1", "eth0"), ("c2", "eth0")]);
    assert_eq!(on.sources("trusted").len(), 4);
    gc(&[("c1", "eth0")]);
    assert_eq!(on.sources("trusted"), OF_C1);
    // firewalld has gone, and its sources with it.
    on.stop();
    let host = &on.host;
    host.run("DEL", &c1, &prev, firewalld()).call().silent();
    let held = host.node.sh(&format!(
        "find {} -name '*firewalld*' -type d",
        host.node.roots.run.join("shared").display()
    ));
    assert_eq!(held, "");
}

/// The configuration asks for firewalld, which does not run.
#[test]
fn without_firewalld_the_back_end_says_so() {
    testkit::require!("root", "program:firewalld", "program:dbus-daemon");
    let mut on = FirewalldHost::new("fwdgone");
    on.stop();
    let host = &on.host;
    let (c1, prev) = host.container("c1", 1, 2);
    let before = Snapshot::take(&host.node.lab);
    for bus in [None, Some("unix:path=/run/no/bus".to_owned())] {
        on.host.node.roots.system_bus = bus;
        let node = &on.host.node;
        let run = |verb| node.run("firewall", verb).to(&c1).prev(&prev).version("1.0.0");
        run("ADD").config(firewalld()).call().fails(101, "firewalld is not running");
        before.assert_same(&Snapshot::take(&node.lab));
        let status = node.run("firewall", "STATUS").config(firewalld());
        status.call().fails(50, "firewalld is not running");
        run("DEL").config(firewalld()).call().silent();
        // The default back end does not need it.
        run("ADD").call().ok();
        run("DEL").call().silent();
        node.run("firewall", "STATUS").call().silent();
    }
    let host = &on.host;
    // firewalld's rules exist, but its bus does not belong to us: ADD warns the administrator.
    host.node.sh("nft -f - <<'E'\ntable inet firewalld {\n chain filter_FORWARD {\n\
         type filter hook forward priority 10;\n ct state established,related accept\n\
         reject with icmpx admin-prohibited\n }\n}\nE");
    let answer = host.run("ADD", &c1, &prev, json!({})).call();
    assert!(answer.succeeded() && answer.stderr().contains("--add-source"), "{answer:?}");
    host.node.run("firewall", "STATUS").call().fails(51, "firewalld");
    host.run("DEL", &c1, &prev, json!({})).call().silent();
}

/// Each plugin removes what the other made, and the reference's CHECK accepts ours.
#[test]
fn either_removes_what_the_other_made() {
    testkit::require!(
        "root",
        "program:firewalld",
        "program:dbus-daemon",
        "file:/usr/lib/cni/firewall"
    );
    let on = FirewalldHost::new("fwdgo");
    let host = &on.host;
    let (c1, prev) = host.container("c1", 1, 2);
    for keys in [json!({}), firewalld()] {
        let run = |verb| host.run(verb, &c1, &prev, keys.clone());
        assert!(host.go("firewall", run("ADD")).status.success());
        assert_eq!(on.sources("trusted"), OF_C1);
        run("CHECK").call().silent();
        run("DEL").call().silent();
        assert_eq!(on.sources("trusted"), [""; 0]);
        run("ADD").call().ok();
        assert!(host.go("firewall", run("CHECK")).status.success());
        assert!(host.go("firewall", run("DEL")).status.success());
        assert_eq!(on.sources("trusted"), [""; 0]);
        run("DEL").call().silent();
    }
}

/// With its iptables back end firewalld's rules look like an administrator's, and a reload removes
/// ours with them. ADD makes the address a source of the zone as well, which lasts until then.
#[test]
fn firewalld_with_iptables_gets_the_source_too() {
    testkit::require!("root", "program:firewalld", "program:dbus-daemon");
    let on = FirewalldHost::with("fwdipt", USUAL, "iptables");
    let host = &on.host;
    let (c1, prev): (Container, Value) = host.container("c1", 1, 2);
    let _outside = server(&host.outside, "outside");
    traffic::assert_no_tcp(&c1, "198.51.100.2:80");
    on.warm("trusted");
    let before = Snapshot::take(&host.node.lab);
    let run = |verb| host.run(verb, &c1, &prev, json!({}));
    run("ADD").call().ok();
    assert_eq!(on.sources("trusted"), OF_C1);
    assert_eq!(traffic::assert_tcp(&c1, "198.51.100.2:80").server, "outside");
    assert_eq!(traffic::assert_tcp(&c1, "[2001:db8:ffff::2]:80").server, "outside");
    run("CHECK").call().silent();
    run("DEL").call().silent();
    before.assert_same(&Snapshot::take(&host.node.lab));
}
