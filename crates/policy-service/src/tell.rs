//! What is written about policies: a condition in the status of each ClusterNetworkPolicy, and
//! Events about NetworkPolicies, MultiNetworkPolicies and namespaces that do not hold as they are
//! written.
//!
//! The API leaves the types of conditions to implementations (network-policy-api v0.2.0,
//! ClusterNetworkPolicyStatus). Ours has our domain in its name, so that no other implementation
//! writes it too. It follows from the policy, so it is the same from every node, and a node that
//! sees another one writes it. Nodes take turns: the first by a hash is the only one that writes,
//! as long as it is alive. A write names the version of the object that was seen, so the server
//! refuses all but one of several.
//!
//! A pod of this node gets an Event too: if it may undo what is judged in its own namespace, or stays
//! closed, since it is not known or its policies are beyond what is enforced for one pod.
//!
//! The name of an Event follows from its words. Three nodes send it, those with the policy's pods
//! first; the server refuses what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use policy::object::Uid;
use policy::policy::Tier;
use policy::{Pod, Policy, PolicyId, Refusal, World};
use serde_json::{Value, json};

use super::kinds::{Key, Meta};

/// Our name, for people who read Events.
pub(super) const COMPONENT: &str = "netwrightd-policy";

/// The type of the condition.
pub(super) const CONDITION: &str = "policy.netwright.io/Accepted";

/// How long each turn is: a write, and its way through watches.
const TURN: Duration = Duration::from_secs(2);

/// How many turns there are. Nodes whose turn would be later take the time after them, at random.
const TURNS: u32 = 30;
const AFTER_TURNS: Duration = Duration::from_secs(240);

/// How much later the next write comes after one without effect.
const AGAIN: Duration = Duration::from_secs(120);

/// A server keeps Events for an hour.
const EVENTS_LAST: Duration = Duration::from_secs(3600);

/// How many nodes send an Event.
const SENDERS: usize = 3;

/// How many policies of one priority are named.
const MOST_NAMES: usize = 5;

/// The longest message of a condition (`meta/v1` Condition), and of an Event (core/v1, 1024 bytes).
const LONGEST_CONDITION: usize = 32_768;
const LONGEST_EVENT: usize = 1000;

/// Something to write.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ServerWrite {
    /// The status of a ClusterNetworkPolicy.
    Status(StatusWrite),
    /// An Event.
    Event(EventWrite),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct StatusWrite {
    pub(super) name: String,
    /// The version that was seen: for another one, another condition may be true.
    pub(super) version: String,
    pub(super) condition: Condition,
    /// Since when its status is so, if that stays.
    pub(super) since: Option<String>,
    /// The conditions of others.
    pub(super) others: Vec<Value>,
}

/// The condition, without its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) accepted: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) generation: u64,
}

impl Condition {
    /// Returns what is true of a policy.
    fn of(policy: &Policy, generation: u64, shared: Option<&str>) -> Self {
        let (accepted, reason, message) = if !policy.faults.is_empty() {
            (false, "Refused", sentences(&policy.faults))
        } else if let Some(shared) = shared {
            (true, "SharedPriority", shared.to_owned())
        } else {
            (true, "AsWritten", "the policy holds as it is written".to_owned())
        };
        let message = cut(&message, LONGEST_CONDITION).to_owned();
        Condition { accepted, reason, message, generation }
    }

    fn status(&self) -> &'static str {
        if self.accepted { "True" } else { "False" }
    }

    /// Returns it as the API has it, with the time since when it is so.
    pub(super) fn value(&self, since: &str) -> Value {
        json!({
            "type": CONDITION, "status": self.status(), "reason": self.reason,
            "message": self.message, "observedGeneration": self.generation,
            "lastTransitionTime": since,
        })
    }

    fn is(&self, there: &Value) -> bool {
        let since = there["lastTransitionTime"].as_str().unwrap_or_default();
        self.value(since) == *there
    }
}

/// A sentence for each place in a tier that several policies have.
struct SharedPlaces(BTreeMap<(Tier, u16), String>);

impl SharedPlaces {
    fn of<'p>(policies: impl Iterator<Item = &'p Policy>) -> Self {
        let mut places: BTreeMap<(Tier, u16), Vec<&PolicyId>> = BTreeMap::new();
        for policy in policies {
            places.entry((policy.tier, policy.priority)).or_default().push(&policy.id);
        }
        let shared = places.into_iter().filter(|(_, ids)| 1 < ids.len());
        let sentence = |(place, ids): ((Tier, u16), Vec<&PolicyId>)| {
            let mut names: Vec<String> =
                ids.iter().take(MOST_NAMES).map(ToString::to_string).collect();
            if MOST_NAMES < ids.len() {
                names.push(format!("{} more", ids.len() - MOST_NAMES));
            }
            let (names, (tier, priority)) = (names.join(" and "), place);
            let text = format!(
                "{names} have priority {priority} in tier {tier:?}: they are asked in the order \
                 of their names"
            );
            (place, text)
        };
        SharedPlaces(shared.map(sentence).collect())
    }

    fn about(&self, policy: &Policy) -> Option<&str> {
        self.0.get(&(policy.tier, policy.priority)).map(String::as_str)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct EventWrite {
    pub(super) namespace: String,
    pub(super) name: String,
    /// All but its times.
    pub(super) body: Value,
}

/// An object that does not hold as it is written.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FaultyObject {
    pub(super) kind: &'static str,
    pub(super) api: &'static str,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// An object does not hold as it is written.
const NOT_AS_WRITTEN: &str = "NotAsWritten";
/// A pod, about which only its own node sends Events.
const POD: &str = "Pod";
/// A pod may undo what policies say of it.
pub(super) const MAY_UNDO: &str = "PolicyCanBeUndone";
/// A pod is closed since its policies are too much for it.
pub(super) const CLOSED: &str = "ClosedByPolicies";
/// A pod is closed since too little is known of it.
pub(super) const UNKNOWN: &str = "PoliciesUnknown";

impl FaultyObject {
    fn event(&self) -> EventWrite {
        // An Event about an object without a namespace is in `default`.
        let namespace = if self.namespace.is_empty() { "default" } else { &self.namespace };
        let message = cut(&self.message, LONGEST_EVENT);
        let hash = cni::owner::sha512_hex(format!("{}\0{message}", self.uid), 16);
        let name = format!("{}.{hash}", short(&self.name));
        let body = json!({
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": self.api, "kind": self.kind, "namespace": self.namespace,
                "name": self.name, "uid": self.uid,
            },
            "reason": self.reason, "message": message, "type": "Warning",
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT, "reportingInstance": COMPONENT, "count": 1,
        });
        EventWrite { namespace: namespace.to_owned(), name, body }
    }
}

/// What is to be written, and when.
#[derive(Debug)]
pub(super) struct WriteQueue {
    node: String,
    /// What the server has of each ClusterNetworkPolicy.
    metas: BTreeMap<PolicyId, Meta>,
    /// Objects that do not hold as they are written, by their names in messages, and by the reason.
    faulty: BTreeMap<(String, &'static str), FaultyObject>,
    /// Conditions that are not there yet, and when they are written.
    waiting: BTreeMap<PolicyId, (Condition, Instant)>,
    /// Events that this node sent, or that other nodes send.
    sent: BTreeMap<String, Instant>,
    /// A ClusterNetworkPolicy has changed since the last look.
    changed: bool,
    /// An object has become faulty since Events were sent last.
    unsent: bool,
}

impl WriteQueue {
    pub(super) fn new(node: &str) -> Self {
        WriteQueue {
            node: node.to_owned(),
            metas: BTreeMap::new(),
            faulty: BTreeMap::new(),
            waiting: BTreeMap::new(),
            sent: BTreeMap::new(),
            changed: false,
            unsent: false,
        }
    }

    /// Takes note of a policy.
    pub(super) fn policy(&mut self, policy: &Policy, meta: Meta) {
        match &policy.id {
            PolicyId::Cluster { .. } => {
                self.metas.insert(policy.id.clone(), meta);
                self.changed = true;
            }
            PolicyId::Network { namespace, name } => {
                let of = policy.id.to_string();
                self.note(of, &policy.faults, |message| FaultyObject {
                    kind: "NetworkPolicy",
                    api: "networking.k8s.io/v1",
                    namespace: namespace.clone(),
                    name: name.clone(),
                    uid: meta.uid,
                    reason: NOT_AS_WRITTEN,
                    message,
                });
            }
            PolicyId::MultiNetwork { namespace, name } => {
                let of = policy.id.to_string();
                self.note(of, &policy.faults, |message| FaultyObject {
                    kind: "MultiNetworkPolicy",
                    api: "k8s.cni.cncf.io/v1beta1",
                    namespace: namespace.clone(),
                    name: name.clone(),
                    uid: meta.uid,
                    reason: NOT_AS_WRITTEN,
                    message,
                });
            }
            _ => {}
        }
    }

    /// Takes note of a namespace.
    pub(super) fn namespace(&mut self, namespace: &policy::Namespace, meta: Meta) {
        let of = format!("Namespace {}", namespace.name);
        self.note(of, &namespace.faults, |message| FaultyObject {
            kind: "Namespace",
            api: "v1",
            namespace: String::new(),
            name: namespace.name.clone(),
            uid: meta.uid,
            reason: NOT_AS_WRITTEN,
            message,
        });
    }

    /// Takes note of a pod of this node that is not as its policies say, for one reason.
    pub(super) fn pod(&mut self, pod: &Pod, reason: &'static str, message: String) {
        self.note_pod(pod.namespace.to_string(), pod.name.clone(), &pod.uid, reason, message);
    }

    /// Takes note of a pod that a runtime attached and of which too little is known.
    pub(super) fn unknown(&mut self, pod: &node_api::Pod, message: String) {
        let (namespace, name) = (pod.namespace.clone(), pod.name.clone());
        self.note_pod(namespace, name, &pod.uid.as_str().into(), UNKNOWN, message);
    }

    fn note_pod(
        &mut self,
        namespace: String,
        name: String,
        uid: &Uid,
        reason: &'static str,
        message: String,
    ) {
        let of = (Key::Pod(uid.clone()).to_string(), reason);
        let uid = uid.to_string();
        let faulty = FaultyObject { kind: POD, api: "v1", namespace, name, uid, reason, message };
        if self.faulty.get(&of) != Some(&faulty) {
            self.faulty.insert(of, faulty);
            self.unsent = true;
        }
    }

    /// Takes note that the reason is gone.
    pub(super) fn pod_is_right(&mut self, uid: &Uid, reason: &'static str) {
        self.faulty.remove(&(Key::Pod(uid.clone()).to_string(), reason));
    }

    fn note(
        &mut self,
        of: String,
        faults: &[Refusal],
        faulty: impl FnOnce(String) -> FaultyObject,
    ) {
        let of = (of, NOT_AS_WRITTEN);
        if faults.is_empty() {
            self.faulty.remove(&of);
            return;
        }
        self.faulty.insert(of, faulty(sentences(faults)));
        self.unsent = true;
    }

    /// An object is gone.
    pub(super) fn forget(&mut self, key: &Key) {
        if let Key::Policy(id) = key {
            self.waiting.remove(id);
            self.changed |= self.metas.remove(id).is_some();
        }
        for reason in [NOT_AS_WRITTEN, MAY_UNDO, CLOSED, UNKNOWN] {
            self.faulty.remove(&(key.to_string(), reason));
        }
    }

    /// Decides what is to be written once the objects are known.
    pub(super) fn look(&mut self, world: &World, now: Instant) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let shared = SharedPlaces::of(self.metas.keys().filter_map(|id| world.policy(id)));
        let nodes = u32::try_from(world.nodes().count()).unwrap_or(u32::MAX);
        let mut waiting = BTreeMap::new();
        for (id, meta) in &self.metas {
            let Some(policy) = world.policy(id) else { continue };
            let condition = Condition::of(policy, meta.generation, shared.about(policy));
            if ours(meta).is_some_and(|there| condition.is(there)) {
                continue;
            }
            let due = match self.waiting.get(id) {
                Some((same, due)) if *same == condition => *due,
                _ => now + self.turn(&format!("{id}\0{}", meta.generation), nodes),
            };
            waiting.insert(id.clone(), (condition, due));
        }
        self.waiting = waiting;
    }

    /// Returns when something is to be written.
    pub(super) fn due(&self) -> Option<Instant> {
        let events = self.sent.values().map(|sent| *sent + EVENTS_LAST);
        self.waiting.values().map(|(_, due)| *due).chain(events).min()
    }

    /// Returns what is to be written now.
    pub(super) fn take_due(&mut self, world: &World, now: Instant) -> Vec<ServerWrite> {
        let mut due = Vec::new();
        for (id, (condition, at)) in &mut self.waiting {
            let (PolicyId::Cluster { name }, Some(meta)) = (id, self.metas.get(id)) else {
                continue;
            };
            if now < *at {
                continue;
            }
            *at = now + AGAIN;
            let before = ours(meta).filter(|there| there["status"] == condition.status());
            let since = before.and_then(|there| there["lastTransitionTime"].as_str());
            let is_other = |one: &&Value| one["type"] != CONDITION;
            due.push(ServerWrite::Status(StatusWrite {
                name: name.clone(),
                version: meta.version.clone(),
                condition: condition.clone(),
                since: since.map(str::to_owned),
                others: meta.conditions.iter().filter(is_other).cloned().collect(),
            }));
        }
        let sent = self.sent.len();
        self.sent.retain(|_, sent| now < *sent + EVENTS_LAST);
        if !std::mem::take(&mut self.unsent) && self.sent.len() == sent {
            return due;
        }
        for faulty in self.faulty.values() {
            let event = faulty.event();
            if self.sent.contains_key(&event.name) {
                continue;
            }
            self.sent.insert(event.name.clone(), now);
            if self.sends(faulty, &event.name, world) {
                due.push(ServerWrite::Event(event));
            }
        }
        due
    }

    /// Returns the Events about pods that are to be written now, before the objects are known: by
    /// them it is decided who writes about everything else.
    pub(super) fn take_pods(&mut self, now: Instant) -> Vec<ServerWrite> {
        let of_pods =
            self.faulty.values().filter(|faulty| faulty.kind == POD).map(FaultyObject::event);
        let unsent: Vec<EventWrite> =
            of_pods.filter(|event| !self.sent.contains_key(&event.name)).collect();
        self.sent.extend(unsent.iter().map(|event| (event.name.clone(), now)));
        unsent.into_iter().map(ServerWrite::Event).collect()
    }

    /// Returns after which time it is this node's turn to write something, if no other node has.
    fn turn(&self, what: &str, nodes: u32) -> Duration {
        let hash = number(&format!("{}\0{what}", self.node));
        // All nodes stand in a row, as it were, in the order of their hashes.
        let place = u128::from(hash) * u128::from(nodes.max(1));
        let within = u64::try_from((place & u128::from(u64::MAX)) >> 33).unwrap_or_default();
        let part = |of: Duration| {
            of.mul_f64(f64::from(u32::try_from(within).unwrap_or(0)) / 2f64.powi(31))
        };
        match u32::try_from(place >> 64) {
            Ok(turn) if turn < TURNS => TURN * turn + part(TURN),
            _ => TURN * TURNS + part(AFTER_TURNS),
        }
    }

    /// Reports whether this node sends an Event. Only a pod's own node sends one about it.
    fn sends(&self, faulty: &FaultyObject, event: &str, world: &World) -> bool {
        if faulty.kind == POD {
            return true;
        }
        let subject = world
            .policy(&PolicyId::Network {
                namespace: faulty.namespace.clone(),
                name: faulty.name.clone(),
            })
            .and_then(|policy| policy.subject.as_ref());
        let mut nodes: BTreeSet<&str> = BTreeSet::new();
        if let Some(subject) = subject {
            let pods = world.pods_of(&faulty.namespace).filter(|pod| world.is_in(pod, subject));
            nodes.extend(pods.filter_map(|pod| pod.node.as_deref()));
        }
        if nodes.is_empty() {
            nodes.extend(world.nodes().map(|node| node.name.as_str()));
        }
        let mut row: Vec<(u64, &str)> =
            nodes.into_iter().map(|node| (number(&format!("{node}\0{event}")), node)).collect();
        row.sort_unstable();
        row.iter().take(SENDERS).any(|(_, node)| *node == self.node)
    }
}

fn ours(meta: &Meta) -> Option<&Value> {
    meta.conditions.iter().find(|one| one["type"] == CONDITION)
}

/// Returns a number that follows from a text.
fn number(text: &str) -> u64 {
    u64::from_str_radix(&cni::owner::sha512_hex(text, 16), 16).unwrap_or_default()
}

/// Writes what is wrong with an object, without repeating its name.
fn sentences(faults: &[Refusal]) -> String {
    let mut text = String::new();
    for fault in faults {
        let Refusal { path, cause, effect, .. } = fault;
        let separator = if text.is_empty() { "" } else { "; " };
        let _ = write!(text, "{separator}{path}: {cause}; {effect}");
    }
    text
}

fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// Shortens a name: Events' names are object names of 253 bytes at most, with the hash.
fn short(name: &str) -> &str {
    cut(name, 230).trim_end_matches(['-', '.'])
}

#[cfg(test)]
#[path = "tell_tests.rs"]
mod tests;
