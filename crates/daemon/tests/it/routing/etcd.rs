//! The source `etcd`: flannel's leases, in a real cluster of three members.

use std::collections::BTreeMap;
use std::fs;
use std::rc::Rc;

use cluster_client::etcd::ByteString;
use serde_json::{Value, json};
use testkit::real::Etcd;
use testkit::traffic::assert_pings;
use testkit::{Lab, Place as _, Snapshot, wait_for, wait_until};

use super::flannel::{Backend, Streams, flannel, flanneld, macs};
use super::pings::Pings;
use super::{Fabric, torture};

const PREFIX: &str = "/coreos.com/network";

/// Where the members are: on the router, which all nodes reach.
const HOST: &str = "192.0.2.1";

/// flanneld's configuration with one address family, and tunnels.
const V4: &str = r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#;

/// A lease as etcd has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Lease {
    value: String,
    /// The number of the grant; `0` is none.
    grant: String,
    modified: String,
}

fn bytes(text: &str) -> Value {
    json!(ByteString(text.as_bytes().to_vec()))
}

fn text(value: &Value) -> String {
    let bytes: ByteString = serde_json::from_value(value.clone()).unwrap_or_default();
    String::from_utf8_lossy(&bytes.0).into_owned()
}

/// Makes these members the source of the service on every node.
fn use_etcd(fabric: &mut Fabric, etcd: &Etcd<'_>) {
    let endpoints = etcd.endpoints().join(",");
    fabric.source = ["--source", "etcd", "--etcd", &endpoints].map(str::to_owned).to_vec();
    fabric.cluster = Vec::new();
}

/// Starts etcd with flanneld's configuration.
pub(super) fn start<'lab>(fabric: &mut Fabric, lab: &'lab Lab, configuration: &str) -> Etcd<'lab> {
    let etcd = Etcd::start_at(lab, HOST);
    use_etcd(fabric, &etcd);
    put(&etcd, "config", configuration, None);
    etcd
}

fn put(etcd: &Etcd<'_>, key: &str, value: &str, grant: Option<&str>) {
    let key = bytes(&format!("{PREFIX}/{key}"));
    etcd.ask("kv/put", &json!({"key": key, "value": bytes(value), "lease": grant.unwrap_or("0")}));
}

pub(super) fn put_lease(etcd: &Etcd<'_>, key: &str, value: &str, grant: Option<&str>) {
    put(etcd, &format!("subnets/{key}"), value, grant);
}

fn delete(etcd: &Etcd<'_>, key: &str) {
    etcd.ask("kv/deleterange", &json!({"key": bytes(&format!("{PREFIX}/{key}"))}));
}

fn delete_lease(etcd: &Etcd<'_>, key: &str) {
    delete(etcd, &format!("subnets/{key}"));
}

pub(super) fn grant(etcd: &Etcd<'_>, seconds: u32) -> String {
    let answer = etcd.ask("lease/grant", &json!({"TTL": seconds.to_string()}));
    answer["ID"].as_str().unwrap().to_owned()
}

/// The time for which a grant was given, in seconds.
fn granted(etcd: &Etcd<'_>, grant: &str) -> String {
    let answer = etcd.ask("lease/timetolive", &json!({"ID": grant}));
    answer["grantedTTL"].as_str().unwrap_or("0").to_owned()
}

fn leases(etcd: &Etcd<'_>) -> BTreeMap<String, Lease> {
    let prefix = format!("{PREFIX}/subnets/");
    let end = format!("{PREFIX}/subnets0");
    let answer = etcd.ask("kv/range", &json!({"key": bytes(&prefix), "range_end": bytes(&end)}));
    let found = answer["kvs"].as_array().cloned().unwrap_or_default();
    let found = found.iter().map(|pair| {
        let number = |key: &str| pair[key].as_str().unwrap_or("0").to_owned();
        let (value, grant, modified) =
            (text(&pair["value"]), number("lease"), number("mod_revision"));
        let key = text(&pair["key"]).strip_prefix(&prefix).unwrap().to_owned();
        (key, Lease { value, grant, modified })
    });
    found.collect()
}

/// The values of the leases, by their keys.
pub(super) fn values(etcd: &Etcd<'_>) -> BTreeMap<String, String> {
    leases(etcd).into_iter().map(|(key, lease)| (key, lease.value)).collect()
}

/// Does the named damage to etcd: to its members, or to the lease of a node.
pub(super) fn suffer(etcd: &mut Etcd<'_>, what: &str, member: usize, number: usize) {
    match what {
        "away" => (0..3).for_each(|member| etcd.kill(member)),
        "without its leader" => etcd.leader().into_iter().for_each(|leader| etcd.kill(leader)),
        "with a member that is silent" => etcd.freeze(member, true),
        // The service cannot ask for what it missed meanwhile.
        "forgetful" => {
            (0..3).for_each(|member| etcd.kill(member));
            (0..3).for_each(|member| etcd.revive(member));
            etcd.wait_for_leader();
            delete_lease(etcd, &key(number));
            // This revision can still be compacted.
            put(etcd, "other", "", None);
            let answer = etcd.ask("kv/range", &json!({"key": bytes(PREFIX)}));
            let revision = answer["header"]["revision"].clone();
            etcd.ask("kv/compaction", &json!({"revision": revision, "physical": true}));
        }
        "made anew" => {
            etcd.make_anew();
            put(etcd, "config", &Backend::Vxlan.config(), None);
        }
        _ if !etcd.has_quorum() => {}
        "without leases" => {
            let [prefix, end] = ["/", "0"].map(|end| bytes(&format!("{PREFIX}/subnets{end}")));
            etcd.ask("kv/deleterange", &json!({"key": prefix, "range_end": end}));
        }
        "with a lease that has ended" => {
            if let Some(lease) = leases(etcd).remove(&key(number)) {
                etcd.ask("lease/revoke", &json!({"ID": lease.grant}));
            }
        }
        "with a lease that is wrong" => {
            if let Some(lease) = leases(etcd).remove(&key(number)) {
                let wrong = lease.value.replace("\"VNI\":1", "\"VNI\":2");
                put_lease(etcd, &key(number), &wrong, Some(&lease.grant));
            }
        }
        _ => {
            let passing = grant(etcd, 60);
            let other = value("192.0.2.40", "5e:72:04:aa:00:40");
            put_lease(etcd, "10.244.40.0-24", &other, Some(&passing));
        }
    }
}

/// Makes all members run and answer, without a stranger's lease.
pub(super) fn recover(etcd: &mut Etcd<'_>) {
    for member in 0..3 {
        etcd.freeze(member, false);
        if !etcd.runs(member) {
            etcd.revive(member);
        }
    }
    etcd.wait_for_leader();
    delete_lease(etcd, "10.244.40.0-24");
}

/// Waits until a lease is as the condition requires.
fn wait_for_lease(etcd: &Etcd<'_>, key: &str, is_so: impl Fn(&Lease) -> bool) -> Lease {
    wait_for(&format!("lease {key}"), || leases(etcd).remove(key).filter(&is_so))
}

/// The key of a node's lease of both families.
pub(super) fn key(number: usize) -> String {
    format!("10.244.{number}.0-24&fd00:244:{number}::-64")
}

/// What flanneld writes for an address of one family.
fn value(address: &str, mac: &str) -> String {
    format!(
        r#"{{"PublicIP":"{address}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"{mac}"}}}}"#
    )
}

/// What flanneld writes for a node of both families.
pub(super) fn value_of(node: &super::Node, backend: Backend, [mac4, mac6]: &[String; 2]) -> String {
    let (v4, v6) = node.underlay();
    let v6 = v6.parse::<std::net::Ipv6Addr>().unwrap();
    let data = match backend {
        Backend::HostGw => String::new(),
        Backend::Vxlan | Backend::DirectRouting => format!(
            r#","BackendData":{{"VNI":1,"VtepMAC":"{mac4}"}},"BackendV6Data":{{"VNI":1,"VtepMAC":"{mac6}"}}"#
        ),
    };
    let name = backend.name();
    format!(r#"{{"PublicIP":"{v4}","PublicIPv6":"{v6}","BackendType":"{name}"{data}}}"#)
}

/// Writes `subnet.env` as an earlier flanneld leaves it: the node's pods have addresses of these
/// prefixes.
pub(super) fn had_prefixes(fabric: &Fabric, node: usize) {
    let node = &fabric.nodes[node];
    let number = node.number;
    let env = format!(
        "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.{number}.1/24\n\
         FLANNEL_IPV6_NETWORK=fd00:244::/32\nFLANNEL_IPV6_SUBNET=fd00:244:{number}::1/64\n\
         FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
    );
    fs::write(node.dir.join("subnet.env"), env).unwrap();
}

/// The same with IPv4 alone.
fn had_prefix(fabric: &Fabric, node: usize) {
    let node = &fabric.nodes[node];
    let env = format!(
        "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.{}.1/24\n\
         FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n",
        node.number
    );
    fs::write(node.dir.join("subnet.env"), env).unwrap();
}

/// Starts the service as a node's flanneld.
pub(super) fn replace(fabric: &mut Fabric, node: usize) {
    flannel(fabric, node, "replace");
    fabric.start_on(node);
}

pub(super) fn uninstall(fabric: &mut Fabric, node: usize, flags: &[&str]) -> String {
    flannel(fabric, node, "replace");
    fabric.leave(node, flags)
}

fn log(fabric: &Fabric, node: usize) -> String {
    fabric.nodes[node].service.as_ref().unwrap().log()
}

fn is_ready(fabric: &Fabric, node: usize) -> bool {
    fabric.routes(node)["phase"] == "ready"
}

/// The routes to other nodes.
fn routes(fabric: &Fabric, node: usize) -> String {
    fabric.nodes[node].host.sh("ip route show proto 78; ip -6 route show proto 78")
}

/// The hardware addresses of a node's tunnels.
fn tunnels(fabric: &Fabric, node: usize) -> [String; 2] {
    ["flannel.1", "flannel-v6.1"].map(|link| {
        let shown = fabric.nodes[node].host.sh(&format!("ip -o link show {link}"));
        shown.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap().to_owned()
    })
}

fn signal(fabric: &Fabric, node: usize, name: &str) {
    let pid = fabric.nodes[node].service.as_ref().unwrap().pid();
    fabric.lab.sh(&format!("kill -{name} {pid}"));
}

/// Each node takes its former prefix, and pods reach each other. A lease is what flanneld writes,
/// byte for byte, and lasts as long. If a node's own lease ends or is deleted, the node makes it
/// again. If another node's lease ends, that node is removed. `--uninstall` removes this node's
/// lease.
#[test]
fn vm_nodes_lease_their_prefixes_and_pods_reach_each_other() {
    testkit::require!("root", "vxlan", "vm-full", "program:etcd", "program:curl");
    let mut fabric = Fabric::new("routing-etcd", &[2, 1]);
    let lab = Rc::clone(&fabric.lab);
    let etcd = start(&mut fabric, &lab, &Backend::Vxlan.config());
    let before: Vec<Snapshot> = fabric.nodes.iter().map(|node| Snapshot::of(&node.host)).collect();
    for node in 0..3 {
        had_prefixes(&fabric, node);
        replace(&mut fabric, node);
    }
    fabric.assert_all_reach_all();
    let all = leases(&etcd);
    for node in 0..3 {
        let lease = &all[&key(node + 1)];
        let want = value_of(&fabric.nodes[node], Backend::Vxlan, &tunnels(&fabric, node));
        assert_eq!(lease.value, want);
        assert_eq!(granted(&etcd, &lease.grant), "86400");
    }
    assert_eq!(all.len(), 3, "{all:?}");
    let table = fabric.routes(0);
    assert_eq!(table["podMtu"], 1430, "{table}");
    // The device is as flanneld makes it.
    let device = fabric.nodes[0].host.sh("ip -d -o link show flannel.1; ip -o addr show flannel.1");
    for part in ["vxlan id 1 ", " dstport 8472 ", " nolearning ", " inet 10.244.1.0/32 "] {
        assert!(device.contains(part), "{part}: {device}");
    }

    // A service that starts again changes nothing.
    assert_eq!(fabric.nodes[0].service.take().unwrap().stop(), Some(0));
    replace(&mut fabric, 0);
    wait_until("it to be ready", || is_ready(&fabric, 0));
    assert_eq!(leases(&etcd), all);

    // A service that starts while its node has another address leases another prefix. When the
    // first address is back, the first prefix is too, and nothing is left of the other.
    assert_eq!(fabric.nodes[0].service.take().unwrap().stop(), Some(0));
    let (whole, of_tunnels) = (values(&etcd), tunnels(&fabric, 0));
    fabric.nodes[0].host.sh(&torture::uplink_renumbered(&fabric.nodes[0]));
    replace(&mut fabric, 0);
    wait_until("another lease", || values(&etcd).len() == 4);
    fabric.nodes[0].host.sh(&torture::uplink_is_whole(&fabric.nodes[0]));
    wait_until("the leases of before", || values(&etcd) == whole);
    assert_eq!(tunnels(&fabric, 0), of_tunnels);
    fabric.assert_all_reach_all();
    let all = leases(&etcd);

    // The lease ends, and then is deleted: the service makes it again.
    etcd.ask("lease/revoke", &json!({"ID": all[&key(1)].grant}));
    let again = wait_for_lease(&etcd, &key(1), |lease| lease.grant != all[&key(1)].grant);
    assert_eq!(again.value, all[&key(1)].value);
    delete_lease(&etcd, &key(1));
    let again = wait_for_lease(&etcd, &key(1), |lease| lease.modified != again.modified);
    assert_eq!(again.value, all[&key(1)].value);
    fabric.assert_all_reach_all();
    // Another client writes something else into the lease.
    let wrong = all[&key(1)].value.replace("\"VNI\":1", "\"VNI\":2");
    put_lease(&etcd, &key(1), &wrong, Some(&again.grant));
    wait_for_lease(&etcd, &key(1), |lease| lease.value == all[&key(1)].value);

    // Another node's lease ends. etcd then revokes its grant, which the test does without waiting.
    let passing = grant(&etcd, 3600);
    let other = r#"{"PublicIP":"192.0.2.40","PublicIPv6":"2001:db8::40","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"5e:72:04:aa:00:40"},"BackendV6Data":{"VNI":1,"VtepMAC":"5e:72:06:aa:00:40"}}"#;
    put_lease(&etcd, &key(40), other, Some(&passing));
    wait_until("the route to it", || {
        log(&fabric, 0).contains("node 10.244.40.0-24&fd00:244:40::-64: 10.244.40.0/24")
    });
    etcd.ask("lease/revoke", &json!({"ID": passing}));
    wait_until("its end", || {
        log(&fabric, 0).contains("node 10.244.40.0-24&fd00:244:40::-64: gone")
            && !routes(&fabric, 0).contains("10.244.40.0/24")
    });

    for (node, before) in before.iter().enumerate() {
        uninstall(&mut fabric, node, &["--uninstall"]);
        assert!(!leases(&etcd).contains_key(&key(node + 1)));
        before.assert_same(&Snapshot::of(&fabric.nodes[node].host));
    }
}

/// A wrong lease affects only itself. If another node has this node's prefix by now, that node
/// keeps it: this node takes another prefix, and says that pods of the first are cut off.
#[test]
fn vm_a_wrong_lease_is_refused_and_a_lost_one_is_not_stolen() {
    testkit::require!("root", "vxlan", "vm-full", "program:etcd", "program:curl");
    let mut fabric = Fabric::new("routing-etcd-bad", &[1]);
    let lab = Rc::clone(&fabric.lab);
    let etcd = start(&mut fabric, &lab, V4);
    had_prefix(&fabric, 0);
    replace(&mut fabric, 0);
    wait_until("it to be ready", || is_ready(&fabric, 0));
    let mac = |number: usize| macs(number)[0].clone();
    put_lease(&etcd, "10.244.20.0-24", &value("192.0.2.40", &mac(2)), None);
    let huge = format!(r#"{{"PublicIP":"{}"}}"#, "1".repeat(5000));
    let other_vni = value("192.0.2.41", &mac(3)).replace("\"VNI\":1", "\"VNI\":7");
    for (key, value, words) in [
        ("10.244.30.0-24", value("192.0.2.11", &mac(4)), "PublicIP: 192.0.2.11 is this node's"),
        ("10.244.31.0-24", other_vni, "BackendData.VNI: it is 7, and this node's is 1"),
        (
            "10.244.32.1-24",
            value("192.0.2.42", &mac(5)),
            "key: 10.244.32.1/24 has bits set after its length: 10.244.32.0/24 may be meant",
        ),
        ("10.244.33.0-24", huge, "value: it has 5015 bytes, and at most 4096 are read"),
        ("10.244.34.0-24", "PublicIP=192.0.2.43".to_owned(), "value: it cannot be read: "),
        (
            "10.99.1.0-24",
            value("192.0.2.44", &mac(6)),
            "key: 10.99.1.0/24 is outside the cluster's IPv4 ranges (10.244.0.0/16)",
        ),
        ("nonsense", value("192.0.2.45", &mac(7)), "key: \"nonsense\" is not a lease's"),
        (
            "10.244.35.0-24",
            value("192.0.2.46", &mac(8)).replace("vxlan", "udp"),
            "BackendType: flanneld's backend \"udp\" is not one of vxlan and host-gw",
        ),
    ] {
        put_lease(&etcd, key, &value, None);
        let words = format!("node {key}: refused: {words}");
        wait_until(&words, || log(&fabric, 0).contains(&words));
    }
    put_lease(&etcd, "10.244.21.0-24", &value("192.0.2.47", &mac(9)), None);
    wait_until("the routes to the others", || {
        let routes = routes(&fabric, 0);
        routes.contains("10.244.20.0/24") && routes.contains("10.244.21.0/24")
    });
    assert!(!routes(&fabric, 0).contains("10.244.3"), "{}", routes(&fabric, 0));

    delete_lease(&etcd, "10.244.30.0-24");
    wait_until("it to go", || log(&fabric, 0).contains("node 10.244.30.0-24: gone"));
    // While the service is away, its lease ends and another node takes the prefix.
    signal(&fabric, 0, "STOP");
    delete_lease(&etcd, "10.244.1.0-24");
    let theirs = value("192.0.2.48", "5e:72:04:aa:00:48");
    put_lease(&etcd, "10.244.1.0-24", &theirs, None);
    signal(&fabric, 0, "CONT");
    let is_new =
        |(key, lease): (&String, &Lease)| lease.value.contains("192.0.2.11").then(|| key.clone());
    let new = wait_for("another lease", || leases(&etcd).iter().find_map(is_new));
    wait_until("it to be said", || {
        log(&fabric, 0).contains(
            "pods still live in 10.244.1.0/24, which this node had before and which is node \
             10.244.1.0-24's now: other nodes do not reach them any more",
        )
    });
    assert_eq!(leases(&etcd)["10.244.1.0-24"].value, theirs);
    let prefix = new.replace('-', "/");
    // Until it takes the lease, it is ready with the first.
    wait_until("the other prefix", || {
        is_ready(&fabric, 0) && fabric.routes(0)["prefixes"] == json!([prefix])
    });
    assert_pings(&fabric.nodes[0].host, "10.244.1.2");
    // The files for pods are written last.
    let subnet = format!("FLANNEL_SUBNET={}\n", prefix.replace(".0/", ".1/"));
    wait_until(&subnet, || {
        let env = fs::read_to_string(fabric.nodes[0].dir.join("subnet.env")).unwrap();
        env.contains(&subnet)
    });

    // The node gets another address, and keeps its lease.
    let said = leases(&etcd)[&new].value.clone();
    fabric.nodes[0].host.sh("ip addr flush dev eth0 scope global\n\
         ip addr add 192.0.2.30/26 dev eth0 && ip route replace default via 192.0.2.1");
    let moved = said.replace("192.0.2.11", "192.0.2.30");
    wait_for_lease(&etcd, &new, |lease| lease.value == moved);
}

/// A node is taken over from flanneld and given back while pods ping each other: its lease, and
/// those of flannelds, stay byte for byte.
fn taken_over_and_given_back(name: &str, segments: &[usize], backend: Backend) {
    let mut fabric = Fabric::new(name, segments);
    let lab = Rc::clone(&fabric.lab);
    let etcd = start(&mut fabric, &lab, &backend.config());
    for number in 0..fabric.nodes.len() {
        let node = &fabric.nodes[number];
        let value = value_of(node, backend, &macs(node.number));
        put_lease(&etcd, &key(node.number), &value, Some(&grant(&etcd, 3600)));
        flanneld(&fabric, number, backend);
    }
    let before = Snapshot::of(&fabric.nodes[0].host);
    let said = leases(&etcd);

    flannel(&mut fabric, 0, "standby");
    fabric.start_on(0);
    wait_until("the leases", || fabric.routes(0)["standby"].to_string().contains("10.244.2.0/24"));
    assert_eq!(fabric.leave(0, &["--uninstall"]), "in standby the service has made nothing\n");
    before.assert_same(&Snapshot::of(&fabric.nodes[0].host));
    assert_eq!(leases(&etcd), said);

    fabric.assert_all_reach_all();
    let pings = Pings::everywhere(&fabric);
    let streams = Streams::start(&fabric.nodes[0], &fabric.nodes[1]);
    replace(&mut fabric, 0);
    wait_until("the node to be ready", || is_ready(&fabric, 0));
    fabric.assert_all_reach_all();
    let own = wait_for_lease(&etcd, &key(1), |lease| lease.grant != said[&key(1)].grant);
    assert_eq!(own.value, said[&key(1)].value);
    assert_eq!(granted(&etcd, &own.grant), "86400");
    for (key, lease) in said.iter().skip(1) {
        assert_eq!(leases(&etcd)[key], *lease);
    }

    assert_eq!(fabric.nodes[0].service.take().unwrap().stop(), Some(0));
    flanneld(&fabric, 0, backend);
    uninstall(&mut fabric, 0, &["--uninstall", "--to-flannel"]);
    fabric.assert_all_reach_all();
    Pings::assert_nothing_lost(&fabric, pings);
    streams.assert_nothing_lost();
    assert_eq!(leases(&etcd)[&key(1)], own);
    before.assert_same(&Snapshot::of(&fabric.nodes[0].host));
}

#[test]
fn vm_a_node_is_taken_over_by_its_lease_and_given_back() {
    testkit::require!("root", "vxlan", "vm-full", "program:etcd", "program:curl", "program:ping");
    taken_over_and_given_back("routing-etcd-flannel", &[2, 1], Backend::Vxlan);
}

#[test]
fn a_node_without_tunnels_is_taken_over_by_its_lease_and_given_back() {
    testkit::require!("root", "program:etcd", "program:curl", "program:ping");
    taken_over_and_given_back("routing-etcd-flannel-gw", &[2], Backend::HostGw);
}

/// The service waits for flanneld's configuration, and says why it does not reach etcd. It takes
/// the prefix that an administrator has reserved, and the prefix stays reserved.
#[test]
fn vm_a_reserved_prefix_stays_reserved_and_what_is_missing_is_said() {
    testkit::require!(
        "root",
        "vxlan",
        "vm-full",
        "program:etcd",
        "program:curl",
        "program:openssl"
    );
    let mut fabric = Fabric::new("routing-etcd-tls", &[1]);
    let lab = Rc::clone(&fabric.lab);
    let etcd = Etcd::start_secure_at(&lab, HOST);
    let files = |authority: &str, fabric: &mut Fabric| {
        use_etcd(fabric, &etcd);
        let [certificate, private] = etcd.files("client");
        for (flag, path) in [
            ("--etcd-ca", etcd.authority(authority)),
            ("--etcd-cert", certificate),
            ("--etcd-key", private),
        ] {
            fabric.source.extend([flag.to_owned(), path.display().to_string()]);
        }
    };
    // A file is missing, and then the members belong to another cluster.
    flannel(&mut fabric, 0, "standby");
    files("nobody", &mut fabric);
    let output = fabric.command(0, "routing").args(&fabric.source).args(&fabric.flags).output();
    let output = output.unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && words.contains("nobody.pem\": No such file"), "{words}");
    files("other", &mut fabric);
    fabric.spawn_on(0);
    wait_until("the certificate to be refused", || {
        let log = log(&fabric, 0).to_lowercase();
        log.contains("read /coreos.com/network/config") && log.contains("certificate")
    });
    assert_eq!(fabric.nodes[0].service.take().unwrap().stop(), Some(0));

    files("ca", &mut fabric);
    fabric.spawn_on(0);
    wait_until("it to lack the configuration", || {
        log(&fabric, 0).contains("etcd has no /coreos.com/network/config")
    });
    for (wrong, words) in [
        ("{", "etcd's /coreos.com/network/config: the whole: it cannot be read"),
        (
            r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/48","Backend":{"Type":"vxlan"}}"#,
            "EnableIPv4: ",
        ),
    ] {
        put(&etcd, "config", wrong, None);
        wait_until("it to be refused", || log(&fabric, 0).contains(words));
    }
    fabric.nodes[0].host.sh("ip route del default && ip -6 route del default");
    put(&etcd, "config", V4, None);
    wait_until("it to lack an address", || {
        log(&fabric, 0).contains("are to reach this node: set underlay")
    });
    assert_eq!(fabric.nodes[0].service.take().unwrap().stop(), Some(0));
    fabric.source.extend(["--underlay".to_owned(), "192.0.2.11".to_owned()]);
    fabric.start_on(0);
    wait_until("it to lack a lease", || {
        log(&fabric, 0).contains("etcd has no lease of 192.0.2.11")
    });
    assert_eq!(leases(&etcd), BTreeMap::new());
    assert_eq!(fabric.nodes[0].service.take().unwrap().stop(), Some(0));

    // An administrator's reservation has few keys.
    put_lease(&etcd, "10.244.1.0-24", r#"{"PublicIP":"192.0.2.11"}"#, None);
    replace(&mut fabric, 0);
    wait_until("it to be ready", || is_ready(&fabric, 0));
    let lease = wait_for_lease(&etcd, "10.244.1.0-24", |lease| lease.value.contains("VtepMAC"));
    assert_eq!(lease.grant, "0");
    // Removing the service needs no configuration in etcd.
    delete(&etcd, "config");
    uninstall(&mut fabric, 0, &["--uninstall"]);
    assert_eq!(leases(&etcd)["10.244.1.0-24"], lease);
}

/// The leader is killed. Then all members are away, and everything stays. A service that starts
/// then has everything from the disk. When the members are back, they have forgotten the changes
/// since.
#[test]
fn vm_everything_stays_while_etcd_is_away_and_nothing_is_missed() {
    testkit::require!("full", "root", "vxlan", "program:etcd", "program:curl", "program:nft");
    let mut fabric = Fabric::new("routing-etcd-away", &[2]);
    let lab = Rc::clone(&fabric.lab);
    let mut etcd = start(&mut fabric, &lab, &Backend::Vxlan.config());
    for node in 0..2 {
        had_prefixes(&fabric, node);
        replace(&mut fabric, node);
    }
    fabric.assert_all_reach_all();
    let other = |number: usize| {
        format!(
            r#"{{"PublicIP":"192.0.2.{number}","PublicIPv6":"2001:db8::{number}","BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"5e:72:04:aa:00:{number}"}},"BackendV6Data":{{"VNI":1,"VtepMAC":"5e:72:06:aa:00:{number}"}}}}"#
        )
    };
    let has = |fabric: &Fabric, number: usize| {
        routes(fabric, 0).contains(&format!("10.244.{number}.0/24"))
    };
    let leader = etcd.wait_for_leader();
    etcd.kill(leader);
    put_lease(&etcd, &key(40), &other(40), None);
    wait_until("a lease after the leader's death", || has(&fabric, 40));
    etcd.revive(leader);

    // One member after the other is silent, and closes no connection.
    for (member, number) in [(0, 41), (1, 42), (2, 43)] {
        etcd.wait_for_leader();
        etcd.freeze(member, true);
        put_lease(&etcd, &key(number), &other(number), None);
        wait_until("a lease while a member is silent", || has(&fabric, number));
        etcd.freeze(member, false);
    }

    for member in 0..3 {
        etcd.kill(member);
    }
    let is_degraded = |fabric: &Fabric| fabric.routes(0)["phase"].to_string().contains("degraded");
    wait_until("the silence to be told", || is_degraded(&fabric));
    fabric.assert_all_reach_all();
    assert_eq!(fabric.nodes[0].service.take().unwrap().stop(), Some(0));
    fabric.nodes[0].host.sh("ip nexthop flush proto 78");
    replace(&mut fabric, 0);
    fabric.assert_all_reach_all();
    assert!(has(&fabric, 40));

    // The first node hears nothing yet.
    fabric.lab.sh("nft 'table inet t { chain c { type filter hook input priority 0; ip saddr 192.0.2.11 tcp dport 2379-2400 drop; }; }'");
    for member in 0..3 {
        etcd.revive(member);
    }
    etcd.wait_for_leader();
    delete_lease(&etcd, &key(40));
    put_lease(&etcd, &key(50), &other(50), None);
    let answer = etcd.ask("kv/range", &json!({"key": bytes(PREFIX)}));
    let revision = answer["header"]["revision"].as_str().unwrap().to_owned();
    etcd.ask("kv/compaction", &json!({"revision": revision, "physical": true}));
    wait_until("the second node to hear it", || {
        let routes = routes(&fabric, 1);
        routes.contains("10.244.50.0/24") && !routes.contains("10.244.40.0/24")
    });
    assert!(has(&fabric, 40) && !has(&fabric, 50));
    fabric.lab.sh("nft delete table inet t");
    wait_until("the first node to hear it", || has(&fabric, 50) && !has(&fabric, 40));
    wait_until("it to be ready", || is_ready(&fabric, 0));
    fabric.assert_all_reach_all();

    put(&etcd, "config", &Backend::HostGw.config(), None);
    wait_until("another configuration to be noticed", || {
        log(&fabric, 0).contains("takes effect after a restart")
    });
}
