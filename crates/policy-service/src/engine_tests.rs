use std::time::Duration;

use agent::config;
use node_api::policy::{Enforcement, Owner, StartRequest};
use policy::program::Link;
use policy::{Direction, Protocol, Traffic, program};
use serde_json::{Value, json};
use testkit::Chance;

use super::super::isolate::isolation;
use super::super::lists::SETTLE;
use super::closed::CLOSED;
use super::*;

#[path = "engine_further_tests.rs"]
mod further;

/// This node.
const NODE: &str = "n1";

/// An engine, and a packet filter that is as strict as the kernel.
struct Rig {
    engine: Engine,
    filter: Program,
    now: Instant,
    /// All that was to be done, without what the packet filter has by now.
    done: Todo,
}

impl Rig {
    fn new(origin: Origin) -> Self {
        Rig::after(origin, PolicyCounts::default())
    }

    /// A run after one that knew these numbers of policies.
    fn after(origin: Origin, before: PolicyCounts) -> Self {
        Rig {
            engine: Engine::new(NODE, origin, isolation(&config::Policy::default()), before),
            filter: Program::empty(),
            now: Instant::now(),
            done: Todo::default(),
        }
    }

    /// Carries out what is to be done, as the loop does.
    fn carry_out(&mut self) {
        let todo = self.engine.take_todo(self.now);
        if todo.bring {
            self.filter = self.engine.whole().unwrap().into_owned();
        } else {
            for step in &todo.steps {
                self.filter.apply(step).unwrap_or_else(|error| panic!("{error}: {step:?}"));
            }
        }
        self.done.add(todo);
        if let Some(program) = self.engine.whole() {
            assert!(self.filter == *program, "the packet filter is not as the program");
        }
    }

    fn hear(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            self.engine.hear(event, self.now);
        }
        self.carry_out();
    }

    fn changed(&mut self, kind: Kind, object: &Value) {
        self.hear([Event::Changed(read(kind, object))]);
    }

    fn gone(&mut self, kind: Kind, object: &Value) {
        self.hear([Event::Gone(read(kind, object).key())]);
    }

    /// Lists a kind.
    fn list(&mut self, kind: Kind, objects: &[Value]) {
        let listed = objects.iter().map(|object| Event::Listed(read(kind, object)));
        let events: Vec<Event> =
            [Event::Begin(kind)].into_iter().chain(listed).chain([Event::Complete(kind)]).collect();
        self.hear(events);
    }

    /// Lists all kinds; only these have objects.
    fn list_all(&mut self, objects: &[(Kind, &[Value])]) {
        for kind in Kind::ALL {
            let of_kind = objects.iter().find(|(of, _)| *of == kind);
            self.list(kind, of_kind.map_or(&[], |(_, all)| all));
        }
    }

    /// What the plugin does at ADD.
    fn add(&mut self, started: &StartRequest) -> Enforcement {
        for address in &started.addresses {
            for direction in Direction::ALL {
                let unknown = program::unknown(direction);
                match started.meets.clone() {
                    None => self.filter.verdicts.insert((direction, *address), unknown),
                    Some(interface) => {
                        let link = Link { interface, address: *address };
                        self.filter.links.insert((direction, link), unknown)
                    }
                };
            }
        }
        self.engine.start(started.clone());
        self.carry_out();
        self.engine.enforced(&started.owner)
    }

    /// Returns the addresses whose connections end.
    fn end(&mut self, started: &StartRequest) -> BTreeSet<std::net::IpAddr> {
        let gone = self.engine.end(&started.owner);
        self.carry_out();
        gone
    }

    fn list_records(&mut self, records: &[&StartRequest]) {
        let all = records.iter().map(|started| (*started).clone().into()).collect();
        self.engine.list_records(all);
        self.carry_out();
    }

    /// Lets time pass until the next thing is due.
    fn wait(&mut self) {
        self.now = self.engine.due().expect("something is due");
        self.engine.tick(self.now);
        self.carry_out();
    }

    /// Where packets to an address go: `open`, `closed`, or `judged`.
    fn state(&self, address: &str) -> &'static str {
        let key = (Direction::Ingress, address.parse().unwrap());
        match self.filter.verdicts.get(&key) {
            None => "open",
            Some(chain) if *chain == program::unknown(Direction::Ingress) => "closed",
            Some(_) => "judged",
        }
    }

    /// The same on a further network, at an interface of the node.
    fn state_at(&self, interface: &str, address: &str) -> &'static str {
        let link = Link { interface: interface.to_owned(), address: address.parse().unwrap() };
        match self.filter.links.get(&(Direction::Ingress, link)).map(String::as_str) {
            None => "gone",
            Some(program::OPEN) => "open",
            Some("unknown-in") => "closed",
            Some(_) => "judged",
        }
    }

    fn news(&mut self) -> String {
        let news = std::mem::take(&mut self.done.news);
        news.iter().map(|news| news.text.as_str()).collect::<Vec<_>>().join("\n")
    }
}

fn read(kind: Kind, object: &Value) -> Object {
    Object::of(kind, object).unwrap()
}

fn namespace(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

fn pod(name: &str, uid: &str, node: &str) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": name, "uid": uid, "labels": {"app": name}},
        "spec": {"nodeName": node},
    })
}

fn with_address(mut pod: Value, address: &str) -> Value {
    pod["status"] = json!({"podIP": address});
    pod
}

/// A policy that lets only some other pods reach those with a label.
fn policy(name: &str, app: &str) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": name, "uid": name},
        "spec": {
            "podSelector": {"matchLabels": {"app": app}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}],
        },
    })
}

fn started(container: &str, pod: Option<(&str, &str)>, addresses: &[&str]) -> StartRequest {
    let pod = pod.map(|(name, uid)| node_api::Pod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
    });
    StartRequest {
        owner: Owner {
            network: "pods".to_owned(),
            container: container.to_owned(),
            ifname: "eth0".to_owned(),
            pod,
            ..Owner::default()
        },
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        ..StartRequest::default()
    }
}

/// A cluster with a namespace, two policies and nothing else.
fn shop() -> Rig {
    let mut rig = Rig::new(Origin::Server);
    rig.list_all(&[
        (Kind::Namespaces, &[namespace("shop")]),
        (Kind::NetworkPolicies, &[policy("db", "db"), policy("cache", "cache")]),
    ]);
    rig
}

#[test]
fn nothing_is_enforced_before_everything_is_listed() {
    let mut rig = Rig::new(Origin::Server);
    let db = started("c1", Some(("db", "u1")), &["10.0.0.1"]);
    let web = started("c2", Some(("web", "u2")), &["10.0.0.2"]);
    let enforced = rig.add(&db);
    assert!(!enforced.known && enforced.notice.unwrap().contains("pods are being listed"));
    rig.list(Kind::Namespaces, &[namespace("shop")]);
    rig.list(Kind::NetworkPolicies, &[policy("db", "db")]);
    rig.list(Kind::Pods, &[pod("db", "u1", NODE), pod("web", "u2", NODE)]);
    rig.hear([Event::Silent(Kind::Nodes, "refused".to_owned())]);
    assert!(rig.engine.program().is_none());
    let notice = rig.add(&web).notice.unwrap();
    assert!(notice.contains("nodes: refused"), "{notice}");
    assert_eq!((rig.state("10.0.0.1"), rig.state("10.0.0.2")), ("closed", "closed"));
    rig.list(Kind::Nodes, &[]);
    rig.list(Kind::ClusterNetworkPolicies, &[]);
    rig.list(Kind::MultiNetworkPolicies, &[]);
    assert_eq!((rig.state("10.0.0.1"), rig.state("10.0.0.2")), ("judged", "open"));
    assert!(rig.engine.enforced(&db.owner).known);
    assert!(rig.engine.waits_for().is_empty());
}

/// The cluster may have another name for this node than its host's.
#[test]
fn a_node_that_the_cluster_calls_otherwise_is_told_so() {
    let mut rig = shop();
    rig.changed(Kind::Pods, &with_address(pod("db", "u1", "n1.example"), "10.0.0.1"));
    assert!(!rig.engine.notices().join("\n").contains("n1.example"), "no attachment is here");
    let enforced = rig.add(&started("c1", Some(("db", "u1")), &["10.0.0.1"]));
    let notice = enforced.notice.unwrap();
    assert!(!enforced.known && notice.contains("the API server has it on node n1.example"));
    assert!(notice.contains("this node is called n1 here"), "{notice}");
    assert_eq!(rig.state("10.0.0.1"), "closed");
    let notices = rig.engine.notices().join("\n");
    assert!(notices.contains("pod shop/db was attached on this node"), "{notices}");
}

#[test]
fn a_pod_is_closed_until_it_is_known() {
    let mut rig = shop();
    let db = started("c1", Some(("db", "u1")), &["10.0.0.1", "fd00::1"]);
    let enforced = rig.add(&db);
    assert!(!enforced.known);
    assert!(enforced.notice.unwrap().contains("pod shop/db is not known yet"));
    rig.hear([Event::Silent(Kind::Pods, "away".to_owned())]);
    assert_eq!(rig.state("10.0.0.1"), "closed");
    // Its status has no address yet, and another pod of the same name is not its pod.
    rig.changed(Kind::Pods, &pod("db", "u0", NODE));
    assert_eq!(rig.state("10.0.0.1"), "closed");
    rig.changed(Kind::Pods, &pod("db", "u1", NODE));
    assert_eq!((rig.state("10.0.0.1"), rig.state("fd00::1")), ("judged", "judged"));
    // A pod that no policy selects, as far as is known.
    rig.changed(Kind::Pods, &pod("web", "u2", NODE));
    let web = started("c2", Some(("web", "u2")), &["10.0.0.2"]);
    assert_eq!(rig.add(&web), Enforcement { known: true, notice: None });
    assert_eq!(rig.state("10.0.0.2"), "open");
    rig.hear([Event::Silent(Kind::NetworkPolicies, "away".to_owned())]);
    let Enforcement { known, notice } = rig.engine.enforced(&web.owner);
    assert!(known && notice.unwrap().starts_with("networkpolicies: away; newer ones"));
    rig.hear([Event::Answers(Kind::NetworkPolicies)]);
    assert_eq!(rig.engine.enforced(&web.owner), Enforcement { known: true, notice: None });
    // The API forgets a pod whose record is there.
    rig.gone(Kind::Pods, &pod("db", "u1", NODE));
    assert_eq!(rig.state("10.0.0.1"), "closed");
    rig.end(&db);
    assert_eq!(rig.state("10.0.0.1"), "open");
}

/// Nothing but its node reaches the pod, and the kubelet calls it running.
#[test]
fn a_pod_that_stays_closed_gets_an_event() {
    let events = |rig: &mut Rig, passed: Duration| {
        rig.now += passed;
        rig.engine.tick(rig.now);
        rig.carry_out();
        let events = std::mem::take(&mut rig.done.tell).into_iter().filter_map(|one| match one {
            ServerWrite::Event(event) => Some(event.body),
            ServerWrite::Status(_) => None,
        });
        events.collect::<Vec<_>>()
    };
    let moment = CLOSED - Duration::from_millis(1);
    let last = Duration::from_millis(1);
    for is_listed in [true, false] {
        let mut rig = if is_listed { shop() } else { Rig::new(Origin::Server) };
        let db = started("c1", Some(("db", "u1")), &["10.0.0.1"]);
        // Of a container without a pod no Event can be sent.
        rig.add(&started("c2", None, &["10.0.0.2"]));
        rig.add(&db);
        assert_eq!(events(&mut rig, moment), [json!(null); 0]);
        assert_eq!(rig.engine.due(), Some(rig.now + last));
        let sent = events(&mut rig, last);
        let [event] = sent.as_slice() else { panic!("{sent:?}") };
        assert_eq!(event["reason"], "PoliciesUnknown");
        assert_eq!(event["involvedObject"]["name"], "db");
        assert_eq!(event["involvedObject"]["uid"], "u1");
        let message = event["message"].as_str().unwrap();
        assert!(
            message.starts_with("pod shop/db is not known yet, and closed to all but its node")
        );
        // It is sent once, and nothing is due until a server has forgotten it.
        rig.list_records(&[&db]);
        assert_eq!(events(&mut rig, CLOSED + CLOSED), [json!(null); 0]);
        assert!(rig.engine.due().is_none_or(|due| rig.now + CLOSED < due));
    }
    // One that is known in time gets none.
    let mut rig = shop();
    let db = started("c1", Some(("db", "u1")), &["10.0.0.1"]);
    rig.add(&db);
    rig.changed(Kind::Pods, &pod("db", "u1", NODE));
    assert_eq!(events(&mut rig, CLOSED), [json!(null); 0]);
    // One that is closed later is found with the records, and again after it was known.
    for _ in 0..2 {
        rig.gone(Kind::Pods, &pod("db", "u1", NODE));
        rig.list_records(&[&db]);
        assert_eq!(events(&mut rig, CLOSED).len(), 1);
        rig.changed(Kind::Pods, &pod("db", "u1", NODE));
        rig.list_records(&[&db]);
        rig.now += Duration::from_secs(3600);
    }
}

#[test]
fn an_attachment_is_made_again_and_ends() {
    let mut rig = shop();
    rig.changed(Kind::Pods, &with_address(pod("db", "u1", NODE), "10.0.0.1"));
    assert_eq!(rig.state("10.0.0.1"), "judged", "by its status");
    let db = started("c1", Some(("db", "u1")), &["10.0.0.1"]);
    for _ in 0..2 {
        // The plugin closes it each time.
        assert!(rig.add(&db).known);
        assert_eq!(rig.state("10.0.0.1"), "judged");
    }
    rig.list_records(&[&db]);
    rig.end(&db);
    assert_eq!(rig.state("10.0.0.1"), "judged", "its status still has it");
    // Its record is still there for a moment. Until it goes, its address is closed if no other pod
    // has it.
    rig.list_records(&[&db]);
    assert!(rig.engine.awaits_ends());
    assert_eq!(rig.state("10.0.0.1"), "closed");
    rig.gone(Kind::Pods, &pod("db", "u1", NODE));
    let web = started("c2", Some(("web", "u2")), &["10.0.0.1"]);
    rig.changed(Kind::Pods, &pod("web", "u2", NODE));
    rig.add(&web);
    rig.list_records(&[&db, &web]);
    assert_eq!(rig.state("10.0.0.1"), "open", "it is another pod's, which no policy selects");
    rig.list_records(&[&web]);
    assert!(!rig.engine.awaits_ends());
    // The container died without DEL.
    rig.list_records(&[]);
    assert_eq!(rig.engine.attachments().count(), 0);
}

#[test]
fn pods_are_found_by_what_runtimes_call_them() {
    let mut rig = shop();
    // By its name, where the runtime passes no UID: of two pods of one name, the one that is not
    // terminating.
    let db = started("c1", Some(("db", "")), &["10.0.0.1"]);
    rig.add(&db);
    rig.changed(Kind::Pods, &pod("db", "u1", NODE));
    assert_eq!(rig.state("10.0.0.1"), "judged");
    let mut ending = pod("db", "u1", NODE);
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    rig.changed(Kind::Pods, &ending);
    rig.changed(Kind::Pods, &pod("db", "u2", NODE));
    assert_eq!(rig.state("10.0.0.1"), "judged");
    let of =
        |rig: &Rig, uid: &str| rig.engine.world().pod(&Uid::from(uid)).unwrap().addresses.len();
    assert_eq!((of(&rig, "u1"), of(&rig, "u2")), (0, 1));
    rig.gone(Kind::Pods, &pod("db", "u2", NODE));
    assert_eq!(of(&rig, "u1"), 1);
    // A static pod, by the UID that the kubelet gives it.
    let mut mirror = pod("cache", "m1", NODE);
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "s1"});
    rig.add(&started("c2", Some(("cache", "s1")), &["10.0.0.2"]));
    assert_eq!(rig.state("10.0.0.2"), "closed");
    rig.changed(Kind::Pods, &mirror);
    assert_eq!(rig.state("10.0.0.2"), "judged");
    // Neither a pod of another node nor a container without a pod.
    rig.changed(Kind::Pods, &pod("db", "u3", "n2"));
    assert!(!rig.add(&started("c3", Some(("db", "u3")), &["10.0.0.3"])).known);
    let notice = rig.add(&started("c4", None, &["10.0.0.4"])).notice.unwrap();
    assert!(notice.contains("the runtime names no pod"), "{notice}");
}

#[test]
fn records_count_more_than_statuses() {
    let mut rig = shop();
    // The old address of a pod is another one's by now, as the pod's status will say.
    rig.changed(Kind::Pods, &with_address(pod("db", "u1", NODE), "10.0.0.1"));
    rig.changed(Kind::Pods, &pod("web", "u2", NODE));
    let new = started("c2", Some(("web", "u2")), &["10.0.0.1"]);
    assert!(!rig.add(&new).known);
    assert!(rig.add(&started("c1", Some(("db", "u1")), &["10.0.0.2"])).known);
    assert_eq!((rig.state("10.0.0.1"), rig.state("10.0.0.2")), ("closed", "judged"));
    rig.changed(Kind::Pods, &with_address(pod("db", "u1", NODE), "10.0.0.2"));
    assert!(rig.engine.enforced(&new.owner).known);
    assert_eq!((rig.state("10.0.0.1"), rig.state("10.0.0.2")), ("open", "judged"));
    // A pod in the host's network has no address of its own.
    let mut host = with_address(pod("db", "u5", NODE), "192.0.2.1");
    host["spec"]["hostNetwork"] = json!(true);
    rig.changed(Kind::Pods, &host);
    assert_eq!(rig.state("192.0.2.1"), "open");
}

/// A pod of another node that has gone may still count.
#[test]
fn a_closed_address_that_another_nodes_pod_has_is_known_as_such() {
    let mut rig = shop();
    let unknown = |rig: &Rig| -> Vec<String> {
        rig.engine.unknown().map(|(attachment, _)| attachment.label()).collect()
    };
    rig.changed(Kind::Pods, &with_address(pod("cache", "u1", "n2"), "10.0.0.3"));
    rig.add(&started("c1", Some(("web", "u2")), &["10.0.0.3"]));
    assert_eq!((unknown(&rig), rig.state("10.0.0.3")), (vec!["shop/web".to_owned()], "closed"));
    rig.changed(Kind::Pods, &pod("web", "u2", NODE));
    assert_eq!((unknown(&rig), rig.state("10.0.0.3")), (Vec::new(), "open"));
}

/// Other nodes judge by what the API server has. As long as that is the pod before, they would give
/// its rights to the pod that has the address now.
#[test]
fn an_address_is_closed_as_long_as_other_nodes_take_it_for_another_pods() {
    let mut rig = shop();
    let at: IpAddr = "10.0.0.1".parse().unwrap();
    let old = with_address(pod("web", "u1", NODE), "10.0.0.1");
    let (first, second) = (
        started("c1", Some(("web", "u1")), &["10.0.0.1"]),
        started("c2", Some(("x", "u2")), &["10.0.0.1"]),
    );
    rig.changed(Kind::Pods, &old);
    assert!(rig.add(&first).known);
    rig.end(&first);
    rig.list_records(&[]);
    let new = pod("x", "u2", NODE);
    rig.changed(Kind::Pods, &new);
    let notice = rig.add(&second).notice.unwrap();
    assert!(notice.contains("until only one of shop/web and shop/x has it"), "{notice}");
    assert!(rig.engine.world().is_contested(at));
    // The old pod is to be deleted, and nobody knows that the new one has the address.
    let mut leaving = old.clone();
    leaving["metadata"]["deletionTimestamp"] = json!("2026-11-28T00:00:00Z");
    rig.changed(Kind::Pods, &leaving);
    assert_eq!(rig.state("10.0.0.1"), "closed");
    // Now that is known: the one that is to be deleted gives way.
    rig.changed(Kind::Pods, &with_address(new.clone(), "10.0.0.1"));
    assert_eq!(rig.state("10.0.0.1"), "open");
    rig.changed(Kind::Pods, &old);
    assert_eq!(rig.state("10.0.0.1"), "closed");
    // Its status loses the address, it ends, or it goes.
    let mut ended = old.clone();
    ended["status"]["phase"] = json!("Succeeded");
    for without in [pod("web", "u1", NODE), ended] {
        rig.changed(Kind::Pods, &without);
        assert_eq!(rig.state("10.0.0.1"), "open");
        rig.changed(Kind::Pods, &old);
        assert_eq!(rig.state("10.0.0.1"), "closed");
    }
    rig.changed(Kind::Pods, &new);
    rig.gone(Kind::Pods, &old);
    assert_eq!(rig.state("10.0.0.1"), "open");
    assert!(rig.engine.enforced(&second.owner).known);
}

/// The status of a pod is written by its node, which may say anything.
#[test]
fn an_address_that_is_attached_here_stays_with_its_pod_whatever_other_nodes_say() {
    let mut rig = shop();
    let at: IpAddr = "10.0.0.1".parse().unwrap();
    let owner = |rig: &Rig| rig.engine.world().owner(at).map(|pod| pod.name.clone());
    let web = || {
        let mut thief = with_address(pod("web", "u3", "n2"), "10.0.0.1");
        thief["status"]["podIPs"] = json!([{"ip": "10.0.0.1"}, {"ip": "fd00::7"}]);
        thief
    };
    let claim =
        "pod shop/web of node n2 says that it has 10.0.0.1, which pod shop/db has on this node";
    rig.changed(Kind::Pods, &pod("db", "u1", NODE));
    let db = started("c1", Some(("db", "u1")), &["10.0.0.1"]);
    assert!(rig.add(&db).known);
    rig.changed(Kind::Pods, &pod("cache", "u2", NODE));
    rig.add(&started("c2", Some(("cache", "u2")), &["10.0.0.2"]));
    // Before and after: the claim comes, and goes; the attachment comes, and goes.
    let members = |rig: &Rig| -> BTreeSet<IpAddr> {
        let sets = rig.filter.sets.iter().filter(|(name, _)| name.starts_with("sel"));
        let of_set = sets.flat_map(|(_, set)| match set {
            policy::program::Set::Addresses(all) => all.clone(),
            _ => BTreeSet::new(),
        });
        of_set.collect()
    };
    for _ in 0..2 {
        assert_eq!((rig.state("10.0.0.1"), owner(&rig).as_deref()), ("judged", Some("db")));
        rig.changed(Kind::Pods, &web());
        assert_eq!((rig.state("10.0.0.1"), owner(&rig).as_deref()), ("judged", Some("db")));
        assert_eq!(members(&rig), BTreeSet::from(["fd00::7".parse().unwrap()]));
        assert!(rig.engine.notices().iter().any(|one| one.starts_with(claim)));
        assert_eq!(rig.news().matches(claim).count(), 1);
        rig.changed(Kind::Pods, &web());
        assert_eq!(rig.news().matches(claim).count(), 0, "it is told once");
        rig.end(&db);
        rig.list_records(&[&started("c2", Some(("cache", "u2")), &["10.0.0.2"])]);
        assert_eq!((rig.state("10.0.0.1"), owner(&rig).as_deref()), ("open", Some("web")));
        assert_eq!(members(&rig).len(), 2);
        assert!(!rig.engine.notices().iter().any(|one| one.starts_with(claim)));
        assert!(rig.add(&db).known);
        assert_eq!((rig.state("10.0.0.1"), owner(&rig).as_deref()), ("judged", Some("db")));
        assert_eq!(members(&rig).len(), 1);
        // It is told again, since it had been right in between.
        assert_eq!(rig.news().matches(claim).count(), 1);
        rig.gone(Kind::Pods, &web());
        assert_eq!(rig.state("10.0.0.1"), "judged");
        assert!(!rig.engine.notices().iter().any(|one| one.starts_with(claim)));
    }
}

/// A plugin tells of the end before it removes the record. Records that are listed between the two
/// have it still.
#[test]
fn what_has_ended_is_not_told_as_unknown() {
    let mut rig = shop();
    let one = started("c1", Some(("db", "u1")), &["10.0.0.1"]);
    rig.add(&one);
    assert_eq!(rig.engine.unknown().count(), 1);
    rig.end(&one);
    rig.list_records(&[&one]);
    assert_eq!(rig.state("10.0.0.1"), "closed");
    assert_eq!(rig.engine.unknown().count(), 0);
    rig.list_records(&[]);
    assert_eq!(rig.state("10.0.0.1"), "open");
}

#[test]
fn policies_that_a_list_lacks_stay_until_another_one_does() {
    let mut rig = shop();
    rig.changed(Kind::Pods, &pod("db", "u1", NODE));
    rig.changed(Kind::Pods, &pod("cache", "u2", NODE));
    rig.add(&started("c1", Some(("db", "u1")), &["10.0.0.1"]));
    rig.add(&started("c2", Some(("cache", "u2")), &["10.0.0.2"]));
    rig.news();
    // A policy that the watch reports as deleted goes.
    rig.gone(Kind::NetworkPolicies, &policy("cache", "cache"));
    assert_eq!(rig.state("10.0.0.2"), "open");
    rig.changed(Kind::NetworkPolicies, &policy("cache", "cache"));
    // The server has lost everything.
    rig.list(Kind::NetworkPolicies, &[]);
    assert!(rig.news().contains("a list of networkpolicies lacks 2 that were there"));
    assert_eq!((rig.state("10.0.0.1"), rig.state("10.0.0.2")), ("judged", "judged"));
    assert!(rig.engine.notices().join("\n").contains("NetworkPolicy shop/cache"));
    // One shows up again, the other one is asked for again.
    rig.changed(Kind::NetworkPolicies, &policy("db", "db"));
    let begin = rig.now;
    rig.wait();
    assert_eq!(rig.now - begin, CONFIRM);
    assert_eq!(std::mem::take(&mut rig.done.relist), [Kind::NetworkPolicies]);
    // The server is away now: all stays.
    rig.wait();
    assert_eq!(rig.done.relist, [Kind::NetworkPolicies], "it is asked for again, and not at once");
    assert_eq!(rig.state("10.0.0.2"), "judged");
    rig.list(Kind::NetworkPolicies, &[policy("db", "db")]);
    assert_eq!((rig.state("10.0.0.1"), rig.state("10.0.0.2")), ("judged", "open"));
    // An administrator confirms that it is right.
    rig.list(Kind::NetworkPolicies, &[]);
    assert_eq!(rig.state("10.0.0.1"), "judged");
    rig.engine.accept(rig.now);
    rig.carry_out();
    assert_eq!(rig.state("10.0.0.1"), "open");
}

#[test]
fn most_objects_do_not_vanish_at_once() {
    let mut rig = shop();
    let names = ["db", "a", "b", "c", "d", "e"];
    let pods: Vec<Value> = names
        .iter()
        .enumerate()
        .map(|(n, name)| with_address(pod(name, name, NODE), &format!("10.0.0.{n}")))
        .collect();
    rig.list(Kind::Pods, &pods);
    let db = started("c1", Some(("db", "db")), &["10.0.0.0"]);
    rig.add(&db);
    rig.list(Kind::Namespaces, &[]);
    rig.list(Kind::Pods, &pods[5..]);
    // One namespace is few, so it goes, and its pods are closed; the pods stay.
    assert_eq!(rig.state("10.0.0.1"), "closed");
    rig.changed(Kind::Namespaces, &namespace("shop"));
    assert_eq!((rig.state("10.0.0.0"), rig.engine.held().len()), ("judged", 5));
    // Another pod has an address of one that is only kept.
    rig.changed(Kind::Pods, &with_address(pod("web", "new", NODE), "10.0.0.1"));
    assert_eq!((rig.state("10.0.0.1"), rig.engine.held().len()), ("open", 4));
    rig.changed(Kind::Pods, &pods[2]);
    let begin = rig.now;
    rig.wait();
    assert_eq!(rig.now - begin, BRAKE);
    assert!(rig.done.relist.is_empty(), "the service does not list all pods for that");
    assert_eq!(rig.engine.held().len(), 0);
    assert_eq!(rig.state("10.0.0.0"), "closed", "its record is there");
    assert_eq!(rig.engine.world().pods().count(), 3);
}

#[test]
fn the_first_lists_are_not_believed_if_they_lack_what_there_was() {
    let before = PolicyCounts { network_policies: 2, ..PolicyCounts::default() };
    let lists = |rig: &mut Rig, policies: &[Value]| {
        rig.list_all(&[
            (Kind::Namespaces, &[namespace("shop")]),
            (Kind::Pods, &[pod("db", "u1", NODE)]),
            (Kind::NetworkPolicies, policies),
        ]);
    };
    let mut rig = Rig::after(Origin::Server, before);
    lists(&mut rig, &[policy("db", "db")]);
    assert!(rig.engine.program().is_some(), "one of two may be right");

    let mut rig = Rig::after(Origin::Server, before);
    lists(&mut rig, &[]);
    assert!(rig.news().contains("there are 0 networkpolicies, but there were 2"));
    let db = started("c1", Some(("db", "u1")), &["10.0.0.1"]);
    let notice = rig.add(&db).notice.unwrap();
    assert!(notice.contains("netwright policy accept"), "{notice}");
    assert_eq!((rig.engine.program().is_some(), rig.state("10.0.0.1")), (false, "closed"));
    // Other lists do not change that.
    rig.list(Kind::Nodes, &[]);
    assert!(rig.engine.program().is_none());
    // An Event about the pod that is closed meanwhile.
    rig.wait();
    assert!(matches!(rig.done.tell.as_slice(), [ServerWrite::Event(_)]), "{:?}", rig.done.tell);
    rig.wait();
    assert_eq!(rig.done.relist, Kind::POLICIES);
    rig.list(Kind::ClusterNetworkPolicies, &[]);
    rig.list(Kind::MultiNetworkPolicies, &[]);
    assert!(rig.engine.program().is_none());
    rig.list(Kind::NetworkPolicies, &[]);
    assert_eq!((rig.engine.program().is_some(), rig.state("10.0.0.1")), (true, "open"));

    // The second list has them.
    let mut rig = Rig::after(Origin::Server, before);
    lists(&mut rig, &[]);
    rig.wait();
    rig.list(Kind::NetworkPolicies, &[policy("db", "db"), policy("cache", "cache")]);
    rig.list(Kind::ClusterNetworkPolicies, &[]);
    rig.list(Kind::MultiNetworkPolicies, &[]);
    rig.add(&db);
    assert_eq!(rig.state("10.0.0.1"), "judged");
    assert_eq!(rig.engine.known(), before);

    // An administrator confirms that it is right.
    let mut rig = Rig::after(Origin::Server, before);
    lists(&mut rig, &[]);
    rig.engine.accept(rig.now);
    rig.carry_out();
    assert!(rig.engine.program().is_some());
}

/// The folder of policies may not be mounted yet, or be empty by a mistake.
#[test]
fn files_that_lack_what_there_was_are_not_believed_at_the_start() {
    let before = PolicyCounts { network_policies: 2, ..PolicyCounts::default() };
    let start = || {
        let mut rig = Rig::after(Origin::Files, before);
        rig.list_all(&[]);
        assert!(rig.news().contains("there are 0 networkpolicies, but there were 2"));
        let db = started("c1", None, &["10.0.0.1"]);
        let notice = rig.add(&db).notice.unwrap();
        assert!(notice.contains("netwright policy accept"), "{notice}");
        assert_eq!((rig.engine.program().is_some(), rig.state("10.0.0.1")), (false, "closed"));
        rig
    };
    // They come.
    let mut rig = start();
    let of = |name: &str, app: &str| {
        let mut policy = policy(name, app);
        policy["metadata"]["namespace"] = json!("default");
        policy
    };
    rig.list(Kind::NetworkPolicies, &[of("db", "db"), of("cache", "cache")]);
    assert!(rig.engine.program().is_some());
    assert_eq!(rig.engine.known(), before);
    // They do not come.
    let mut rig = start();
    rig.list(Kind::NetworkPolicies, &[]);
    assert!(rig.engine.program().is_none());
    rig.wait();
    assert_eq!((rig.engine.program().is_some(), rig.state("10.0.0.1")), (true, "open"));
    // An administrator confirms that it is right.
    let mut rig = start();
    rig.engine.accept(rig.now);
    rig.carry_out();
    assert!(rig.engine.program().is_some());
}

#[test]
fn containers_without_a_cluster_are_pods() {
    let mut rig = Rig::new(Origin::Files);
    let mut policy = policy("db", "db");
    policy["metadata"]["namespace"] = json!("default");
    rig.list_all(&[(Kind::NetworkPolicies, std::slice::from_ref(&policy))]);
    let mut db = started("c1", None, &["10.0.0.1"]);
    db.labels.insert("app".to_owned(), "db".to_owned());
    assert!(rig.add(&db).known);
    let web = started("c2", None, &["10.0.0.2"]);
    assert!(rig.add(&web).known);
    assert_eq!((rig.state("10.0.0.1"), rig.state("10.0.0.2")), ("judged", "open"));
    assert!(rig.engine.world().namespace("default").is_some());
    // Its namespace may be defined, and then is there without a definition.
    rig.list(Kind::Namespaces, &[namespace("default"), namespace("shop")]);
    rig.list(Kind::Namespaces, &[]);
    rig.wait();
    assert!(rig.engine.world().namespace("default").is_some());
    assert!(rig.engine.world().namespace("shop").is_none());
    assert_eq!(rig.state("10.0.0.1"), "judged");
    // A policy whose file is gone goes in a moment.
    rig.list(Kind::NetworkPolicies, &[]);
    assert_eq!(rig.state("10.0.0.1"), "judged");
    let begin = rig.now;
    rig.wait();
    assert_eq!((rig.now - begin, rig.state("10.0.0.1")), (SETTLE, "open"));
    // Addresses go from one to another, and records go.
    rig.list(Kind::NetworkPolicies, &[policy]);
    rig.add(&started("c3", None, &["10.0.0.1"]));
    assert_eq!(rig.state("10.0.0.1"), "open");
    let gone = rig.end(&started("c3", None, &["10.0.0.1"]));
    assert!(gone.is_empty(), "another one has {gone:?}");
    assert_eq!(rig.state("10.0.0.1"), "judged");
    assert_eq!(rig.end(&db).len(), 1);
    rig.list_records(&[&web]);
    assert_eq!((rig.state("10.0.0.1"), rig.engine.world().pods().count()), ("open", 1));
}

#[test]
fn connections_are_judged_at_ends_of_this_node() {
    let mut rig = shop();
    let at = |text: &str| text.parse::<std::net::IpAddr>().unwrap();
    let web = Traffic::to(Protocol::Tcp, 80);
    assert!(!rig.engine.forbids(at("10.0.0.9"), at("10.0.0.1"), web));
    rig.changed(Kind::Pods, &pod("db", "u1", NODE));
    rig.changed(Kind::Pods, &with_address(pod("web", "u2", "n2"), "10.0.1.2"));
    rig.changed(Kind::Pods, &with_address(pod("cache", "u3", "n2"), "10.0.1.3"));
    rig.add(&started("c1", Some(("db", "u1")), &["10.0.0.1"]));
    assert!(!rig.engine.forbids(at("10.0.1.2"), at("10.0.0.1"), web));
    assert!(rig.engine.forbids(at("10.0.1.3"), at("10.0.0.1"), web));
    // In the other direction no policy of this node forbids it.
    assert!(!rig.engine.forbids(at("10.0.0.1"), at("10.0.1.3"), web));
    // A change concerns the pods that it is about.
    rig.done.concern = Concern::default();
    let mut other = with_address(pod("web", "u2", "n2"), "10.0.1.2");
    other["metadata"]["labels"] = json!({});
    rig.changed(Kind::Pods, &other);
    let concern = std::mem::take(&mut rig.done.concern);
    assert!(concern.has([at("10.0.1.2"), at("10.0.0.1")]) && concern.local.is_empty());
    assert!(rig.engine.forbids(at("10.0.1.2"), at("10.0.0.1"), web));
    let mut closed = policy("db", "db");
    closed["spec"]["ingress"] = json!([]);
    rig.changed(Kind::NetworkPolicies, &closed);
    assert!(rig.done.concern.local.contains(&at("10.0.0.1")));
    // What is not known is closed.
    rig.add(&started("c2", Some(("new", "u4")), &["10.0.0.4"]));
    assert!(rig.engine.forbids(at("10.0.0.4"), at("192.0.2.1"), web));
}

#[test]
fn connections_to_the_node_are_judged_by_what_names_nodes() {
    let mut rig = shop();
    let at = |text: &str| text.parse::<std::net::IpAddr>().unwrap();
    let web = Traffic::to(Protocol::Tcp, 80);
    let addresses = json!([{"type": "InternalIP", "address": "192.0.2.1"}]);
    let node = json!({"metadata": {"name": NODE}, "status": {"addresses": addresses}});
    rig.changed(Kind::Nodes, &node);
    rig.changed(Kind::Pods, &pod("db", "u1", NODE));
    rig.add(&started("c1", Some(("db", "u1")), &["10.0.0.1"]));
    let forbids =
        |rig: &Rig, from: &str, to: &str| rig.engine.forbids_at_node(at(from), at(to), web);
    assert!(!forbids(&rig, "10.0.0.1", "192.0.2.1"));
    rig.done.concern = Concern::default();
    let denies = json!({
        "metadata": {"name": "nodes", "uid": "nodes"},
        "spec": {
            "tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
            "egress": [{"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}]}],
        },
    });
    rig.changed(Kind::ClusterNetworkPolicies, &denies);
    assert!(rig.done.concern.local.contains(&at("10.0.0.1")));
    assert!(forbids(&rig, "10.0.0.1", "192.0.2.1"));
    // No Node has this address, and a pod that is closed reaches its node.
    assert!(!forbids(&rig, "10.0.0.1", "169.254.20.10"));
    rig.add(&started("c2", Some(("new", "u4")), &["10.0.0.4"]));
    assert!(!forbids(&rig, "10.0.0.4", "192.0.2.1"));
    // What another node's pod sends is judged there.
    rig.changed(Kind::Pods, &with_address(pod("far", "u5", "n2"), "10.0.9.9"));
    assert!(!forbids(&rig, "10.0.9.9", "192.0.2.1"));
}

/// What a pod sends to an address of its Node that the host does not have is forwarded.
#[test]
fn connections_to_an_address_that_the_host_lacks_are_judged_like_others() {
    let mut rig = shop();
    let at = |text: &str| text.parse::<std::net::IpAddr>().unwrap();
    let addresses = json!([{"address": "192.0.2.1"}, {"address": "203.0.113.9"}]);
    let node = json!({"metadata": {"name": NODE}, "status": {"addresses": addresses}});
    rig.changed(Kind::Nodes, &node);
    let mut mute = policy("db", "db");
    mute["spec"]["policyTypes"] = json!(["Egress"]);
    rig.changed(Kind::NetworkPolicies, &mute);
    rig.changed(Kind::Pods, &pod("db", "u1", NODE));
    rig.add(&started("c1", Some(("db", "u1")), &["10.0.0.1"]));
    let forbids = |rig: &Rig, to: &str| {
        rig.engine.forbids(at("10.0.0.1"), at(to), Traffic::to(Protocol::Tcp, 80))
    };
    assert_eq!((forbids(&rig, "192.0.2.1"), forbids(&rig, "203.0.113.9")), (false, false));
    rig.engine.take_host(BTreeSet::from([at("192.0.2.1")]));
    rig.carry_out();
    assert_eq!((forbids(&rig, "192.0.2.1"), forbids(&rig, "203.0.113.9")), (false, true));
}

#[test]
fn what_is_wrong_is_known_and_harms_no_other() {
    let mut rig = shop();
    rig.changed(Kind::Pods, &pod("db", "u1", NODE));
    rig.changed(Kind::Pods, &pod("cache", "u2", NODE));
    rig.add(&started("c1", Some(("db", "u1")), &["10.0.0.1"]));
    rig.add(&started("c2", Some(("cache", "u2")), &["10.0.0.2"]));
    let cache = rig.filter.verdicts[&(Direction::Ingress, "10.0.0.2".parse().unwrap())].clone();
    let mut wrong = policy("db", "db");
    wrong["spec"]["ingress"][0]["ports"] = json!([{"port": "no port"}]);
    rig.changed(Kind::NetworkPolicies, &wrong);
    let faults: Vec<String> = rig.engine.faults().iter().map(ToString::to_string).collect();
    assert_eq!(faults.len(), 1);
    assert!(faults[0].starts_with("NetworkPolicy shop/db: refused: spec.ingress[0].ports[0].port"));
    let of = |rig: &Rig, address: &str| {
        rig.filter.verdicts[&(Direction::Ingress, address.parse().unwrap())].clone()
    };
    assert_eq!(of(&rig, "10.0.0.2"), cache);
    let at = |text: &str| text.parse::<std::net::IpAddr>().unwrap();
    rig.changed(Kind::Pods, &with_address(pod("web", "u3", "n2"), "10.0.1.2"));
    let web = Traffic::to(Protocol::Tcp, 80);
    assert!(rig.engine.forbids(at("10.0.1.2"), at("10.0.0.1"), web), "its rule allows nothing");
    assert!(!rig.engine.forbids(at("10.0.1.2"), at("10.0.0.2"), web));
    // An object without a name and namespace.
    let nameless = Object::of(Kind::Pods, &json!({})).unwrap_err();
    rig.news();
    rig.hear([Event::Unreadable(nameless)]);
    assert!(rig.news().contains("a Pod: refused: metadata.namespace: it is missing"));
    assert_eq!(rig.engine.faults().len(), 2);
    rig.hear([Event::Reread]);
    rig.changed(Kind::NetworkPolicies, &policy("db", "db"));
    assert_eq!(rig.engine.faults().len(), 0);
}

/// Random changes in a random order lead to the same as all that is there at the end, at once. After
/// each of them the packet filter is as the program, and no pod with a record that is not known is
/// open.
#[test]
fn any_order_leads_to_the_same() {
    let mut chance = Chance::new(23);
    for _ in 0..60 {
        let mut rig = Rig::new(Origin::Server);
        let (mut pods, mut policies) = (BTreeMap::new(), BTreeMap::new());
        let mut records: BTreeMap<String, StartRequest> = BTreeMap::new();
        for _ in 0..40 {
            let number = chance.below(6);
            let (uid, address) = (format!("u{number}"), format!("10.0.0.{number}"));
            let app = *chance.of(&["db", "cache", "web"]);
            let node = *chance.of(&[NODE, NODE, "n2"]);
            match chance.below(9) {
                0 | 1 => {
                    let mut new = pod(&format!("p{number}"), &uid, node);
                    new["metadata"]["labels"] = json!({"app": app});
                    // A status may have the address of another pod's attachment.
                    let said = match chance.below(4) {
                        0 => Some(address),
                        1 => Some(format!("10.0.0.{}", chance.below(6))),
                        _ => None,
                    };
                    let mut new = said.map_or(new.clone(), |said| with_address(new, &said));
                    if chance.once_in(4) {
                        new["metadata"]["deletionTimestamp"] = json!("2026-11-28T00:00:00Z");
                    }
                    rig.changed(Kind::Pods, &new);
                    pods.insert(uid, new);
                }
                2 => {
                    if let Some(old) = pods.remove(&uid) {
                        rig.gone(Kind::Pods, &old);
                    }
                }
                3 => {
                    let name = format!("policy{}", chance.below(4));
                    let new = policy(&name, app);
                    rig.changed(Kind::NetworkPolicies, &new);
                    policies.insert(name, new);
                }
                4 => {
                    if let Some((_, old)) = policies.pop_first() {
                        rig.gone(Kind::NetworkPolicies, &old);
                    }
                }
                5 | 6 => {
                    let uid = if chance.once_in(4) { "" } else { &uid };
                    let new = started(
                        &format!("c{number}"),
                        Some((&format!("p{number}"), uid)),
                        &[&address],
                    );
                    rig.add(&new);
                    records.insert(format!("c{number}"), new);
                }
                7 => {
                    if let Some(old) = records.remove(&format!("c{number}")) {
                        rig.end(&old);
                        rig.list_records(&records.values().collect::<Vec<_>>());
                    }
                }
                _ => {
                    let (pods, policies): (Vec<Value>, Vec<Value>) =
                        (pods.values().cloned().collect(), policies.values().cloned().collect());
                    rig.list_all(&[
                        (Kind::Namespaces, &[namespace("shop")]),
                        (Kind::Pods, &pods),
                        (Kind::NetworkPolicies, &policies),
                    ]);
                }
            }
            for started in records.values() {
                let (pod, enforced) = (&started.owner.pod, rig.engine.enforced(&started.owner));
                if rig.engine.program().is_some() && !enforced.known {
                    let address = started.addresses[0].to_string();
                    assert_eq!(rig.state(&address), "closed", "{pod:?}: {enforced:?}");
                }
            }
        }
        let (pods, policies): (Vec<Value>, Vec<Value>) =
            (pods.into_values().collect(), policies.into_values().collect());
        let all: [(Kind, &[Value]); 3] = [
            (Kind::Namespaces, &[namespace("shop")]),
            (Kind::Pods, &pods),
            (Kind::NetworkPolicies, &policies),
        ];
        rig.list_all(&all);
        let mut anew = Rig::new(Origin::Server);
        anew.list_records(&records.values().collect::<Vec<_>>());
        anew.list_all(&all);
        assert_eq!(rig.filter, anew.filter);
    }
}

/// The cost of a pod's change does not grow with the number of pods and policies.
#[test]
fn a_change_costs_the_same_among_many() {
    let steps = |count: usize| {
        let mut rig = shop();
        rig.changed(Kind::Pods, &pod("db", "u1", NODE));
        rig.add(&started("c1", Some(("db", "u1")), &["10.0.0.1"]));
        for number in 0..count {
            let (name, [high, low]) =
                (format!("p{number}"), u16::try_from(number).unwrap().to_be_bytes());
            rig.changed(
                Kind::Pods,
                &with_address(pod(&name, &name, "n2"), &format!("10.1.{high}.{low}")),
            );
            rig.changed(Kind::NetworkPolicies, &policy(&name, &name));
        }
        let count = |rig: &mut Rig, kind, object: &Value| {
            rig.engine.hear(Event::Changed(read(kind, object)), rig.now);
            let todo = rig.engine.take_todo(rig.now);
            todo.steps.iter().for_each(|step| rig.filter.apply(step).unwrap());
            todo.steps.len()
        };
        let mut other = with_address(pod("x", "x", "n2"), "10.2.0.1");
        let comes = count(&mut rig, Kind::Pods, &other);
        other["metadata"]["labels"] = json!({"app": "web"});
        let relabelled = count(&mut rig, Kind::Pods, &other);
        let mut closed = policy("db", "db");
        closed["spec"]["ingress"] = json!([]);
        (comes, relabelled, count(&mut rig, Kind::NetworkPolicies, &closed))
    };
    assert_eq!(steps(10), (0, 1, 3));
    assert_eq!(steps(10), steps(500));
}

/// Policies with more different lists of ports than are enforced close their pod, and one of them
/// less opens it.
#[test]
fn a_pod_beyond_what_is_enforced_is_closed_and_told() {
    let mut rig = Rig::new(Origin::Server);
    let of_number = |number: usize| {
        let mut object = policy(&format!("p{number}"), "db");
        object["spec"]["ingress"][0]["ports"] = json!([{"port": 1 + number}]);
        object
    };
    let policies: Vec<Value> = (0..policy::MOST_LISTS).map(of_number).collect();
    let db = pod("db", "u1", NODE);
    rig.list_all(&[
        (Kind::Namespaces, &[namespace("shop")]),
        (Kind::NetworkPolicies, &policies),
        (Kind::Pods, &[db]),
    ]);
    let attached = started("c1", Some(("db", "u1")), &["10.0.0.1"]);
    assert_eq!(rig.add(&attached), Enforcement { known: true, notice: None });
    assert_eq!(rig.state("10.0.0.1"), "judged");
    rig.news();
    let more = [of_number(1000), of_number(1001)];
    more.iter().for_each(|one| rig.changed(Kind::NetworkPolicies, one));
    assert_eq!(rig.state("10.0.0.1"), "closed");
    let notice = rig.engine.enforced(&attached.owner).notice.unwrap();
    let why = "the ingress rules of its policies have more than 256 different lists of ports";
    assert!(notice.starts_with(&format!("pod shop/db: {why}")), "{notice}");
    let told = rig.news();
    assert_eq!(told.matches(why).count(), 1, "once: {told}");
    let events = std::mem::take(&mut rig.done.tell);
    let [ServerWrite::Event(event)] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(event.body["reason"], "ClosedByPolicies");
    assert_eq!(event.body["involvedObject"]["uid"], "u1");
    let listed = super::super::listing::list(rig.engine.world(), Some(NODE), vec![], vec![]);
    let row = serde_json::to_value(&listed.pods[0]).unwrap();
    assert!(row["ingress"]["closed"].as_str().unwrap().starts_with(why), "{row}");
    assert_eq!(row["egress"], "open");
    more.iter().for_each(|one| rig.gone(Kind::NetworkPolicies, one));
    assert_eq!(rig.state("10.0.0.1"), "judged");
    assert_eq!(rig.news(), "shop/db: its policies are enforced again");
    assert!(rig.engine.enforced(&attached.owner).known);
}
