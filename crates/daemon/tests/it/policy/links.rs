//! What verdicts stand on besides their table: the rules of pods' links, the links' names and
//! bridges, and what bridges show to the packet filter. Other programs change it.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use testkit::traffic::try_tcp;
use testkit::{Container, Place as _, wait_until};

use super::damage::words;
use super::{Cluster, PORT, Pod, allow};

/// A node with pods on routed links and on a bridge. Of each kind, `db` lets `web` in.
struct Scene {
    cluster: Cluster,
    routed: [Pod; 3],
    bridged: [Pod; 3],
}

impl Scene {
    fn new(name: &str, interval: &str) -> Self {
        let mut cluster = Cluster::new(name);
        cluster.flags.extend(["--interval".to_owned(), interval.to_owned()]);
        cluster.node.sh(
            "sysctl -qw net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0",
        );
        cluster.api.create(&allow("db", "db", &["web"]));
        cluster.api.create(&allow("port-db", "port-db", &["port-web"]));
        cluster.start();
        let routed = ["db", "web", "other"].map(|name| cluster.pod(name));
        let keys = json!({"bridge": "br0", "isGateway": true});
        let bridged = ["port-db", "port-web", "port-other"].map(|name| {
            cluster.create(name);
            let mut pod = cluster.connect_by("bridge", &keys, "shop", name);
            cluster.admit(&pod);
            pod.serve();
            pod
        });
        for [db, web, other] in [&routed, &bridged] {
            // The other one can send as `web`, and `db` counts what opens connections from there: the
            // last packets of an earlier one may be late.
            other.container.sh(&format!("ip addr add {}/32 dev lo", web.v4()));
            db.container.sh(&format!(
                "nft 'add table inet t; add chain inet t c {{ type filter hook input priority 0; }}; \
                 add rule inet t c ip saddr {} tcp flags & (syn | ack) == syn counter'",
                web.v4()
            ));
        }
        Scene { cluster, routed, bridged }
    }

    /// What verdicts stand on.
    fn ground(&self) -> String {
        let found = self.cluster.node.lab.try_sh(
            "nft -s list table inet netwright; nft -s list table bridge netwright
             ip -o link | cut -d@ -f1; ip -d link show br0 | grep -o 'nf_call_ip[^ ]* [01]'",
        );
        words(&String::from_utf8_lossy(&found.stdout)).join(" ")
    }

    /// Returns a script that the service sees when all of it is done: it might put the first step right
    /// before the second.
    fn at_once(&self, script: &str) -> String {
        let pid = self.cluster.service.as_ref().unwrap().pid();
        format!(
            "set -e; kill -STOP {pid}; \
             timeout 60 sh -c 'while grep -L \"^State:.T\" /proc/{pid}/task/*/status | grep -q .; \
             do sleep 0.01; done'; {script}; kill -CONT {pid}"
        )
    }

    /// Whether the service says that it can do its work.
    fn is_ready(&self) -> bool {
        self.cluster.metric("netwright_service_ready{service=\"policy\"} ") == 1
    }

    /// Asserts that nobody is taken for another, and that what policies allow passes.
    #[track_caller]
    fn assert_judged(&self, what: &str) {
        self.assert_closed(what);
        for [db, web, _] in [&self.routed, &self.bridged] {
            assert!(web.reaches(db), "{what}: {} does not reach {}", web.name, db.name);
        }
    }

    /// Asserts the former alone.
    #[track_caller]
    fn assert_closed(&self, what: &str) {
        assert_eq!(self.passed(), [(0, false); 2], "{what}: forged packets, and a connection");
    }

    /// What passes of each kind that is forbidden.
    fn passed(&self) -> [(u64, bool); 2] {
        let all = [&self.routed, &self.bridged];
        thread::scope(|scope| {
            let tries = all.map(|pods| {
                let [(db, to), (_, web), (other, _)] =
                    pods.each_ref().map(|pod| (&pod.container, pod.v4()));
                scope.spawn(move || passed(db, &to, other, &web))
            });
            tries.map(|one| one.join().unwrap())
        })
    }
}

/// Sends from one pod with the address of another, and with its own. Returns how many of the former
/// packets arrive, and whether the latter do.
fn passed(db: &Container, to: &str, other: &Container, web: &str) -> (u64, bool) {
    let count = || {
        let rules = db.sh("nft list chain inet t c");
        let packets = rules.split("packets ").nth(1).and_then(|rest| rest.split(' ').next());
        packets.unwrap().parse::<u64>().unwrap()
    };
    let before = count();
    other.sh(&format!(
        "curl -s --max-time 0.2 --interface {web} http://{to}:{PORT} >/dev/null || true"
    ));
    let at = SocketAddr::new(to.parse().unwrap(), PORT);
    let reaches = try_tcp(other, at, Duration::from_millis(200)).is_ok();
    (count() - before, reaches)
}

/// The host's side of a pod's link.
fn link(pod: &Pod) -> &str {
    let interfaces = pod.result["interfaces"].as_array().unwrap().iter();
    let mut names = interfaces.map(|one| one["name"].as_str().unwrap());
    names.find(|name| name.starts_with("veth")).unwrap()
}

/// The service hears of each damage from the kernel, and puts it right: it looks by itself only once
/// an hour.
#[test]
fn what_verdicts_stand_on_is_put_right() {
    testkit::require!(
        "root",
        "program:nft",
        "program:curl",
        "file:/proc/sys/net/bridge/bridge-nf-call-iptables"
    );
    let scene = Scene::new("policy-stands", "1h");
    scene.assert_judged("at first");
    let ([_, web, other], [_, _, port]) = (&scene.routed, &scene.bridged);
    let (web, other, port) = (link(web), link(other), link(port));
    let whole = scene.ground();
    // While the service does nothing, all passes.
    let pid = scene.cluster.service.as_ref().unwrap().pid();
    scene.cluster.node.sh(&format!("kill -STOP {pid}; nft flush ruleset"));
    let passed = scene.passed();
    assert!(passed.iter().all(|(forged, reaches)| 0 < *forged && *reaches), "{passed:?}");
    scene.cluster.node.sh(&format!("kill -CONT {pid}"));
    wait_until("it to be put right", || scene.ground() == whole);
    for damage in [
        "nft flush ruleset".to_owned(),
        "nft delete table inet netwright; nft delete table bridge netwright".to_owned(),
        "nft flush chain inet netwright forward; nft flush chain bridge netwright prerouting"
            .to_owned(),
        "nft flush set inet netwright pod_links; nft flush set bridge netwright pod_ports"
            .to_owned(),
        "ip link set br0 type bridge nf_call_iptables 0 nf_call_ip6tables 0".to_owned(),
        format!("ip link set {other} name moved0; ip link set {port} name moved1"),
        scene.at_once(&format!(
            "ip link set {web} name x; ip link set {other} name {web}; ip link set x name {other}"
        )),
    ] {
        let begin = Instant::now();
        scene.cluster.node.sh(&damage);
        wait_until("it to be put right", || scene.ground() == whole);
        eprintln!("{damage}: right again after {:?}", begin.elapsed());
        scene.assert_judged(&damage);
        assert!(scene.is_ready(), "{damage}: {}", scene.cluster.log());
    }
    // What concerns all bridges does not concern this one.
    scene.cluster.node.sh("sysctl -qw net.bridge.bridge-nf-call-iptables=0");
    scene.assert_judged("the sysctl");
}

/// A link that cannot be put right passes nothing, and the service is not ready, until somebody has
/// put it right.
#[test]
fn what_cannot_be_put_right_is_closed() {
    testkit::require!(
        "root",
        "program:nft",
        "program:curl",
        "file:/proc/sys/net/bridge/bridge-nf-call-iptables"
    );
    let mut scene = Scene::new("policy-closes", "1s");
    let node = |scene: &Scene, script: &str| drop(scene.cluster.node.sh(script));
    let (other, port) = (link(&scene.routed[2]).to_owned(), link(&scene.bridged[2]).to_owned());
    node(
        &scene,
        "ip link add br9 type bridge; ip link set br9 up; ip addr add 10.0.255.9/16 dev br9",
    );
    let from = |address: String, dev: &str| {
        format!(
            "ip route add {address}/32 dev {dev}; sysctl -qw net.ipv4.conf.{dev}.proxy_arp=1 \
             net.ipv4.conf.{dev}.rp_filter=0"
        )
    };
    for (what, damage, undo) in [
        (
            format!("link {port:?} is a port of bridge \"br9\", not of \"br0\""),
            format!("ip link set {port} master br9; {}", from(scene.bridged[2].v4(), "br9")),
            format!("ip link set {port} master br0"),
        ),
        (
            format!("link {port:?} is a port of bridge none, not of \"br0\""),
            format!("ip link set {port} nomaster; {}", from(scene.bridged[2].v4(), &port)),
            format!("ip link set {port} master br0"),
        ),
        (
            format!("link {other:?} is a port of bridge \"br9\", not of none"),
            format!("ip link set {other} master br9; sysctl -qw net.ipv4.conf.br9.proxy_arp=1"),
            format!("ip link set {other} nomaster"),
        ),
        (
            format!("link {other:?} was renamed to \"moved0\""),
            scene.at_once(&format!(
                "ip link set {other} name moved0; ip link add {other} type bridge"
            )),
            format!("ip link del {other}"),
        ),
        (
            "shows no packets: the kernel's module br_netfilter is not loaded".to_owned(),
            "mount -t tmpfs none /proc/sys/net/bridge".to_owned(),
            "umount /proc/sys/net/bridge".to_owned(),
        ),
    ] {
        node(&scene, &damage);
        wait_until("the service to say so", || {
            !scene.is_ready() && scene.cluster.log().replace('\\', "").contains(&what)
        });
        scene.assert_closed(&what);
        node(&scene, &undo);
        wait_until("the service to be ready", || scene.is_ready());
        scene.assert_judged(&what);
    }
    // DEL leaves nothing of a link that is closed elsewhere.
    node(&scene, &format!("ip link set {port} nomaster"));
    wait_until("the service to close it", || !scene.is_ready());
    scene.cluster.kill();
    let pod = &scene.bridged[2];
    assert!(scene.cluster.policy("DEL", pod).call().succeeded());
    let left = scene.cluster.node.sh("nft list ruleset");
    assert!(!left.contains(&port), "{left}");
}
