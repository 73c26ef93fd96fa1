//! Further networks: which are judged, and where.

use super::*;

/// An attachment of a pod to a further network, at a bridge.
fn further(container: &str, pod: (&str, &str), bridge: &str, address: &str) -> StartRequest {
    let mut started = started(container, Some(pod), &[address]);
    started.owner.ifname = "net1".to_owned();
    started.meets = Some(bridge.to_owned());
    started
}

/// A pod that asks for a further network as `net1`.
fn asks(mut pod: Value, network: &str) -> Value {
    pod["metadata"]["annotations"] = json!({"k8s.v1.cni.cncf.io/networks": network});
    pod
}

/// A pod's status on a further network.
fn has(mut pod: Value, network: &str, address: &str) -> Value {
    let status = json!([{"name": network, "interface": "net1", "ips": [address]}]);
    pod["metadata"]["annotations"] =
        json!({"k8s.v1.cni.cncf.io/network-status": status.to_string()});
    pod
}

fn multi(name: &str, app: &str, networks: &str) -> Value {
    let mut policy = policy(name, app);
    policy["metadata"]["annotations"] = json!({"k8s.v1.cni.cncf.io/policy-for": networks});
    policy
}

#[test]
fn further_networks_have_policies_of_their_own() {
    let mut rig = shop();
    rig.changed(Kind::MultiNetworkPolicies, &multi("db", "db", "storage"));
    // The pods' own network has the policy `db` too. A pod that says nothing of the network is
    // closed.
    rig.changed(Kind::Pods, &pod("db", "u1", NODE));
    let db = further("c1", ("db", "u1"), "br1", "10.0.0.1");
    let enforced = rig.add(&db);
    let notice = enforced.notice.unwrap();
    assert!(!enforced.known && notice.contains("says which network net1 is on"), "{notice}");
    assert_eq!((rig.state_at("br1", "10.0.0.1"), rig.state("10.0.0.1")), ("closed", "open"));
    rig.changed(Kind::Pods, &asks(pod("db", "u1", NODE), "storage"));
    assert_eq!(rig.state_at("br1", "10.0.0.1"), "judged");
    assert!(rig.engine.enforced(&db.owner).known);
    // The same address on another network.
    rig.changed(Kind::Pods, &asks(pod("cache", "u2", NODE), "other/backup"));
    assert!(rig.add(&further("c2", ("cache", "u2"), "br2", "10.0.0.1")).known);
    assert_eq!((rig.state_at("br2", "10.0.0.1"), rig.state("10.0.0.1")), ("open", "open"));
    rig.changed(Kind::MultiNetworkPolicies, &multi("db", "db", "backup"));
    assert_eq!(rig.state_at("br1", "10.0.0.1"), "open");
    rig.changed(Kind::MultiNetworkPolicies, &multi("db", "db", "a,,b"));
    assert_eq!(rig.state_at("br1", "10.0.0.1"), "judged", "it was meant for some network");
    // The status of pods of other nodes says which of them are peers.
    let web = has(pod("web", "u3", "n2"), "shop/storage", "10.0.0.9");
    rig.changed(Kind::Pods, &web);
    let tcp = Traffic::to(Protocol::Tcp, 80);
    let at = |text: &str| text.parse().unwrap();
    assert!(!rig.engine.forbids(at("10.0.0.9"), at("10.0.0.1"), tcp));
    rig.gone(Kind::MultiNetworkPolicies, &multi("db", "db", ""));
    assert_eq!(rig.state_at("br1", "10.0.0.1"), "open");
    // Pods and records go.
    rig.gone(Kind::Pods, &pod("db", "u1", NODE));
    assert_eq!(rig.state_at("br1", "10.0.0.1"), "closed");
    let gone = rig.end(&db);
    assert!(gone.is_empty(), "connections of {gone:?} may be those of another network");
    assert_eq!(rig.state_at("br1", "10.0.0.1"), "gone");
}

#[test]
fn connections_on_further_networks_are_judged() {
    let mut rig = shop();
    rig.changed(Kind::MultiNetworkPolicies, &multi("db", "db", "storage"));
    rig.changed(Kind::Pods, &asks(pod("db", "u1", NODE), "storage"));
    rig.add(&further("c1", ("db", "u1"), "br1", "10.0.0.1"));
    for (name, uid, address) in [("web", "u2", "10.0.0.2"), ("other", "u3", "10.0.0.3")] {
        rig.changed(Kind::Pods, &has(pod(name, uid, "n2"), "shop/storage", address));
    }
    let tcp = Traffic::to(Protocol::Tcp, 80);
    let at = |text: &str| text.parse().unwrap();
    let forbids = |rig: &Rig, source: &str| rig.engine.forbids(at(source), at("10.0.0.1"), tcp);
    assert!(!forbids(&rig, "10.0.0.2") && forbids(&rig, "10.0.0.3"));
    // A pod of the pods' own network has the address too, and lets every peer in: it is not known
    // which of the two a connection is to.
    rig.changed(Kind::Pods, &pod("web", "u4", NODE));
    rig.add(&started("c4", Some(("web", "u4")), &["10.0.0.1"]));
    assert!(!forbids(&rig, "10.0.0.3"));
}

/// Packets of macvlan and its kind are judged in the container's namespace; the node has nothing of
/// their addresses.
#[test]
fn what_does_not_pass_the_node_is_judged_inside() {
    let mut rig = shop();
    rig.changed(Kind::MultiNetworkPolicies, &multi("db", "db", "storage"));
    rig.changed(Kind::Pods, &pod("db", "u1", NODE));
    let mut db = further("c1", ("db", "u1"), "br1", "10.0.0.1");
    (db.meets, db.inside) = (None, true);
    db.owner.netns = "/run/netns/c1".to_owned();
    rig.engine.start(db.clone());
    let todo = rig.engine.take_todo(rig.now);
    assert!(todo.inside && todo.closed.len() == 1, "the plugin has closed it");
    let notice = rig.engine.enforced(&db.owner).notice.unwrap();
    assert!(notice.contains("says which network net1 is on: it is closed until then"), "{notice}");
    let leads = |engine: &Engine| {
        let containers = engine.containers();
        let [container] = containers.as_slice() else { panic!("{containers:?}") };
        assert_eq!(container.noted.path.to_str(), Some("/run/netns/c1"));
        let program = engine.program_inside(container).unwrap();
        program.interfaces[&(Direction::Ingress, "net1".to_owned())].clone()
    };
    assert_eq!(leads(&rig.engine), program::unknown(Direction::Ingress));
    rig.engine
        .hear(Event::Changed(read(Kind::Pods, &asks(pod("db", "u1", NODE), "storage"))), rig.now);
    let todo = rig.engine.take_todo(rig.now);
    assert!(todo.inside && todo.closed.is_empty());
    let address: std::net::IpAddr = "10.0.0.1".parse().unwrap();
    assert!(todo.concern.local.contains(&address), "its connections are judged again");
    assert!(rig.engine.enforced(&db.owner).known);
    assert!(leads(&rig.engine).starts_with("ci-"));
    // The node's table has nothing of it.
    assert_eq!(rig.engine.expected(&db.owner), Some(Vec::new()));
    assert!(!rig.engine.is_closed(address) && rig.engine.whole().unwrap().links.is_empty());
    // A peer is an element, by which no program becomes another one.
    let web = has(pod("web", "u3", "n2"), "shop/storage", "10.0.0.9");
    rig.engine.hear(Event::Changed(read(Kind::Pods, &web)), rig.now);
    let todo = rig.engine.take_todo(rig.now);
    assert!(!todo.inside, "{:?}", todo.steps);
    assert!(matches!(&todo.steps[..], [Step::AddElement { .. }]), "{:?}", todo.steps);
    let container = rig.engine.containers().remove(0);
    let tcp = Traffic::to(Protocol::Tcp, 80);
    let forbids =
        |from: &str| rig.engine.forbids_inside(&container, (from.parse().unwrap(), address), tcp);
    assert!(!forbids("10.0.0.9") && forbids("10.0.0.8"));
    // It ends: what is in its namespace is the plugin's to remove.
    rig.engine.end(&db.owner);
    assert!(rig.engine.containers().is_empty() && !rig.engine.judges_inside());
}

#[test]
fn who_may_undo_policies_is_told() {
    let mut rig = shop();
    let mut db = further("c1", ("db", "u1"), "br1", "10.0.0.1");
    (db.meets, db.inside) = (None, true);
    let mut events = Vec::new();
    for (context, may) in [
        (json!({}), false),
        (json!({"capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}}), false),
        (json!({"capabilities": {"add": ["NET_ADMIN"]}}), true),
        (json!({"capabilities": {"add": ["CAP_NET_ADMIN"]}}), true),
        (json!({"privileged": true}), true),
    ] {
        let mut object = asks(pod("db", "u1", NODE), "storage");
        object["spec"]["containers"] = json!([{"name": "c", "securityContext": context}]);
        rig.engine.hear(Event::Changed(read(Kind::Pods, &object)), rig.now);
        rig.engine.start(db.clone());
        let todo = rig.engine.take_todo(rig.now);
        let told = rig.engine.who_may_undo();
        assert_eq!(told.len(), usize::from(may), "{context}: {told:?}");
        if may {
            assert!(
                told[0].starts_with("shop/db: packets of net1 do not pass the node"),
                "{told:?}"
            );
        }
        events.extend(todo.tell);
    }
    // This node sends it, and once.
    let [ServerWrite::Event(event)] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(event.body["reason"], "PolicyCanBeUndone");
    assert_eq!(event.body["involvedObject"]["kind"], "Pod");
    assert_eq!(event.body["involvedObject"]["uid"], "u1");
}

#[test]
fn a_network_without_the_plugin_is_told() {
    let mut rig = shop();
    rig.changed(Kind::Pods, &has(pod("db", "u1", NODE), "shop/storage", "10.0.0.1"));
    assert_eq!(rig.engine.not_judged(), [""; 0]);
    rig.changed(Kind::MultiNetworkPolicies, &multi("db", "db", "storage"));
    assert_eq!(
        rig.engine.not_judged(),
        ["shop/db is on shop/storage at net1 without the plugin policy: no MultiNetworkPolicy \
          judges it there"]
    );
    rig.add(&further("c1", ("db", "u1"), "br1", "10.0.0.1"));
    assert_eq!(rig.engine.not_judged(), [""; 0]);
    assert_eq!(rig.state_at("br1", "10.0.0.1"), "judged");
}

/// As on the pods' own network, a list of records may have it still.
#[test]
fn what_has_ended_on_a_further_network_is_not_told_as_closed() {
    let mut rig = shop();
    rig.changed(Kind::MultiNetworkPolicies, &multi("db", "db", "storage"));
    let db = further("c1", ("db", "u1"), "br1", "10.0.0.1");
    rig.add(&db);
    assert_eq!(rig.engine.closed_further().count(), 1);
    rig.end(&db);
    rig.list_records(&[&db]);
    assert_eq!(rig.state_at("br1", "10.0.0.1"), "closed");
    assert_eq!(rig.engine.closed_further().count(), 0);
}

/// Without a cluster a network is what its configuration calls it.
#[test]
fn files_have_further_networks_too() {
    let mut rig = Rig::new(Origin::Files);
    let mut policy = multi("db", "db", "pods");
    policy["metadata"]["namespace"] = json!("default");
    rig.list_all(&[(Kind::MultiNetworkPolicies, &[policy])]);
    let mut db = further("c1", ("db", "u1"), "br1", "10.0.0.1");
    db.owner.pod = None;
    db.labels.insert("app".to_owned(), "db".to_owned());
    assert!(rig.add(&db).known);
    assert_eq!((rig.state_at("br1", "10.0.0.1"), rig.state("10.0.0.1")), ("judged", "open"));
    let mut other = db.clone();
    (other.owner.network, other.owner.container) = ("else".to_owned(), "c2".to_owned());
    other.addresses = vec!["10.0.0.2".parse().unwrap()];
    assert!(rig.add(&other).known);
    assert_eq!(rig.state_at("br1", "10.0.0.2"), "open");
    rig.list_records(&[&other]);
    assert_eq!(rig.state_at("br1", "10.0.0.1"), "gone");
}
