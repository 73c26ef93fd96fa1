//! Further networks whose packets do not pass the node: macvlans of one parent. Policies for them
//! are enforced in the pods' own namespaces.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::{Place as _, wait_until};

use super::networks::{FurtherInterface, asks, on};
use super::{Cluster, Pod, allow};

const DEADLINE: Duration = testkit::TIMEOUT;
const NETWORK: (&str, &str) = ("fabric", "net1");

/// A cluster with a policy for the network, and with pods that request the network.
pub(super) fn cluster(name: &str) -> Cluster {
    let cluster = Cluster::new(name);
    cluster
        .node
        .sh("ip link add p0 type veth peer name p0x && ip link set p0x up && ip link set p0 up");
    cluster.api.create(&on("fabric", allow("db", "db", &["web"])));
    cluster
}

pub(super) fn pods<const N: usize>(cluster: &Cluster, names: [&str; N]) -> [Pod; N] {
    names.map(|name| {
        cluster.api.create(&asks(name, "fabric"));
        cluster.attach(name)
    })
}

fn change(cluster: &Cluster, change: &Value) {
    cluster.api.change("multi-networkpolicies", "shop", "db", change);
}

/// Policies hold from the first packet on, in both families, and after each change of a policy or a
/// label. New pods are judged too.
#[test]
fn pods_on_a_macvlan_reach_each_other_as_policies_say() {
    testkit::require!("root");
    let mut cluster = cluster("policy-inside");
    cluster.start();
    let pods = pods(&cluster, ["db", "web", "other"]);
    let [db, web, other] =
        [0, 1, 2].map(|at: usize| FurtherInterface::attach(&cluster, &pods[at], NETWORK));
    assert_eq!(db.admit(&cluster), "");
    web.assert_reaches(&db, true);
    other.assert_reaches(&db, false);
    db.assert_reaches(&other, true);
    // The policy does not apply to the pods' own network, and the node's table has nothing about
    // this network.
    pods[2].assert_reaches(&pods[0], true);
    let table = cluster.node.sh("nft list table inet netwright-policy");
    assert!(!table.contains("net1"), "{table}");
    cluster.api.change("pods", "shop", "other", &json!({"metadata": {"labels": {"app": "web"}}}));
    wait_until("the other label", || other.reaches(&db));
    change(&cluster, &json!({"spec": {"ingress": []}}));
    wait_until("the other policy", || !other.reaches(&db) && !web.reaches(&db));
    // The service is killed: nothing opens and nothing closes.
    cluster.kill();
    web.assert_reaches(&db, false);
    db.assert_reaches(&web, true);
    // A pod that is attached meanwhile is closed. DEL needs no service.
    assert!(other.admit(&cluster).contains("nothing reaches net1"));
    other.assert_reaches(&web, false);
    assert!(other.policy(&cluster, "DEL").call().succeeded());
    assert_eq!(other.pod.container.sh("nft list ruleset"), "");
    // The next service enforces the change that was made meanwhile. A list without the policy would
    // have to be confirmed.
    change(&cluster, &json!({"spec": {"ingress": [{}]}}));
    cluster.start();
    wait_until("the policy that lets all in", || web.reaches(&db));
    cluster.api.remove("multi-networkpolicies", "shop", "db");
    db.policy(&cluster, "DEL").call().silent();
    assert_eq!(db.pod.container.sh("nft list ruleset"), "");
}

/// The service restores what was changed in the pod's namespace, and still carries out changes of
/// policies.
#[test]
fn what_a_pod_does_to_its_table_is_put_back() {
    testkit::require!("root");
    let mut cluster = cluster("policy-undone");
    cluster.start();
    let pods = pods(&cluster, ["db", "other"]);
    let [db, other] =
        [0, 1].map(|at: usize| FurtherInterface::attach(&cluster, &pods[at], NETWORK));
    other.assert_reaches(&db, false);
    for damage in [
        "nft flush ruleset",
        "nft insert rule inet netwright-policy ingress accept",
        "nft flush map inet netwright-policy at-in",
    ] {
        db.pod.container.sh(damage);
        // CHECK reports the damage, and makes the service look again.
        db.policy(&cluster, "CHECK").call().fails(104, "netwright-policy");
        wait_until("the table to be put back", || !other.reaches(&db));
        wait_until("CHECK to be content", || db.policy(&cluster, "CHECK").call().succeeded());
    }
    // The service also looks again when it cannot add elements to a set that is gone.
    db.pod.container.sh("nft delete table inet netwright-policy");
    cluster.api.change("pods", "shop", "other", &json!({"metadata": {"labels": {"app": "web"}}}));
    let address = other.address.to_string();
    wait_until("the label", || db.pod.container.sh("nft list ruleset").contains(&address));
    other.assert_reaches(&db, true);
    assert!(cluster.log().contains("put back what was changed in the namespace of pod shop/db"));
}

/// Before its first lists the service does not know the policies. It then closes what a pod has
/// opened, and leaves everything else as it is.
#[test]
fn what_a_pod_undoes_before_policies_are_known_is_closed() {
    testkit::require!("root");
    let mut cluster = cluster("policy-undone-early");
    let interval = cluster.flags.iter().position(|flag| flag == "1h").unwrap();
    cluster.flags[interval] = "1s".to_owned();
    cluster.start();
    let pods = pods(&cluster, ["db", "web", "other"]);
    let [db, web, other] =
        [0, 1, 2].map(|at: usize| FurtherInterface::attach(&cluster, &pods[at], NETWORK));
    wait_until("the pods to be known", || web.reaches(&db));
    cluster.kill();
    cluster.api.refuse();
    cluster.spawn();
    // The service restores the chains that are the same for all pods, and the pod's verdicts stay.
    db.pod.container.sh("nft insert rule inet netwright-policy ingress accept");
    wait_until("the rules to be put back", || !other.reaches(&db));
    web.assert_reaches(&db, true);
    db.pod.container.sh("nft flush ruleset");
    wait_until("the pod to be closed", || !other.reaches(&db) && !web.reaches(&db));
    assert!(cluster.log().contains("pod shop/db had lost its verdicts"));
    other.assert_reaches(&web, true);
    cluster.api.restore();
    wait_until("the pod to be known again", || web.reaches(&db));
    other.assert_reaches(&db, false);
}

/// When a change forbids a connection, it ends, even if its addresses are not recorded.
#[test]
fn connections_on_a_macvlan_are_cut() {
    testkit::require!("root");
    let mut cluster = cluster("policy-inside-cuts");
    cluster.start();
    let pods = pods(&cluster, ["db", "web"]);
    let [db, web] = [0, 1].map(|at: usize| FurtherInterface::attach(&cluster, &pods[at], NETWORK));
    let mut link_local = String::new();
    wait_until("the address of the link", || {
        let shown = "ip -j -6 addr show dev net1 scope link -tentative | \
                     jq -r '.[].addr_info[]?.local // empty'";
        link_local = db.pod.container.sh(shown);
        !link_local.is_empty()
    });
    let index = web.pod.container.sh("ip -j link show dev net1 | jq '.[0].ifindex'");
    let link_local: Ipv6Addr = link_local.trim().parse().unwrap();
    let link_local = SocketAddrV6::new(link_local, 9000, 0, index.trim().parse().unwrap());
    let listener = db.pod.container.enter(|| TcpListener::bind("[::]:9000").unwrap());
    for at in [SocketAddr::new(db.address, 9000), link_local.into()] {
        change(&cluster, &json!({"spec": {"ingress": [{"ports": [{"port": 9000}]}]}}));
        let connect = || TcpStream::connect_timeout(&at, Duration::from_millis(300)).ok();
        let mut client = None;
        wait_until("the connection", || {
            client = web.pod.container.enter(connect);
            client.is_some()
        });
        let mut client = client.unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.set_read_timeout(Some(DEADLINE)).unwrap();
        client.write_all(b"?").unwrap();
        server.read_exact(&mut [0; 1]).unwrap();
        change(&cluster, &json!({"spec": {"ingress": []}}));
        // The kernel sends the reset of a link-local connection through the first link that has
        // such addresses, so the client may not receive it. No more of its data arrives.
        server.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        wait_until(&format!("the end of the connection to {at}"), || {
            let sent = client.write_all(b"?");
            match at == SocketAddr::from(link_local) {
                true => !server.read(&mut [0; 64]).is_ok_and(|length| 0 < length),
                false => sent.is_err_and(|error| {
                    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
                }),
            }
        });
    }
}

/// A pod with NET_ADMIN can remove the rules: the service writes one Event about that.
#[test]
fn a_pod_that_can_undo_it_is_told_of() {
    testkit::require!("root");
    let mut cluster = cluster("policy-inside-event");
    cluster.start();
    let mut mighty = asks("db", "fabric");
    let context = json!({"capabilities": {"add": ["NET_ADMIN"]}});
    mighty["spec"]["containers"] = json!([{"name": "c", "securityContext": context}]);
    cluster.api.create(&mighty);
    let [db, web] = [cluster.attach("db"), cluster.pod("web")];
    assert_eq!(cluster.api.objects("events"), Vec::<Value>::new());
    let _further = [&db, &web].map(|pod| FurtherInterface::attach(&cluster, pod, NETWORK));
    wait_until("the Event", || !cluster.api.objects("events").is_empty());
    let events = cluster.api.objects("events");
    let [event] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(event["reason"], "PolicyCanBeUndone");
    assert_eq!(event["involvedObject"]["name"], "db");
    assert!(event["message"].as_str().unwrap().contains("NET_ADMIN"), "{event}");
}
