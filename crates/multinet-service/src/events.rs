//! Events of pods, which people see with `kubectl describe pod`.
//!
//! The same words about the same pod are one Event with a count, as in other components of
//! Kubernetes.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use serde_json::json;

use super::api::MANAGER;
use super::facts::PodFacts;
use super::outbox::Item;

/// How many Events are remembered, so that they can be counted: some for each pod of a node.
const REMEMBERED: usize = 1024;
/// The longest message that the API takes (core/v1 Event, 1024 bytes).
const LONGEST: usize = 1000;

/// Whether the news is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Normal,
    Warning,
}

/// The Events sent so far.
#[derive(Debug)]
pub(super) struct Events {
    node: String,
    told: Mutex<HashMap<(String, String, String), SentEvent>>,
}

#[derive(Debug, Clone)]
struct SentEvent {
    name: String,
    first: String,
    count: u64,
}

impl Events {
    pub(super) fn new(node: &str) -> Self {
        Events { node: node.to_owned(), told: Mutex::default() }
    }

    /// Returns what to write for an Event about a pod; `now` is in RFC 3339, `seed` is a number
    /// that no other caller has.
    pub(super) fn item(
        &self,
        pod: &PodFacts,
        tone: Tone,
        reason: &str,
        message: &str,
        (now, seed): (&str, u64),
    ) -> Item {
        let message = cut(message);
        let key = (pod.uid.clone(), reason.to_owned(), message.to_owned());
        let mut all = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if REMEMBERED <= all.len() {
            all.clear();
        }
        let told = all.entry(key).or_insert_with(|| SentEvent {
            // Named as client-go names them.
            name: format!("{}.{seed:016x}", short(&pod.name)),
            first: now.to_owned(),
            count: 0,
        });
        told.count += 1;
        let SentEvent { name, first, count } = told.clone();
        drop(all);
        let tone = match tone {
            Tone::Normal => "Normal",
            Tone::Warning => "Warning",
        };
        let event = json!({
            "metadata": {"name": name, "namespace": pod.namespace},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name,
                "uid": pod.uid,
            },
            "reason": reason, "message": message, "type": tone,
            "source": {"component": MANAGER, "host": self.node},
            "reportingComponent": MANAGER, "reportingInstance": self.node,
            "firstTimestamp": first, "lastTimestamp": now, "count": count,
        });
        let patch = (1 < count).then(|| json!({"count": count, "lastTimestamp": now}));
        Item::Event { namespace: pod.namespace.clone(), name, event, patch }
    }
}

fn cut(message: &str) -> &str {
    if message.len() <= LONGEST {
        return message;
    }
    let mut end = LONGEST;
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}

/// Shortens a name: Event names are object names of 253 bytes at most, with the number.
fn short(name: &str) -> &str {
    name.get(..230).unwrap_or(name).trim_end_matches(['-', '.'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_words_are_counted() {
        let events = Events::new("n1");
        let pod = PodFacts { name: "p".into(), uid: "7".into(), ..PodFacts::default() };
        let tell = |words: &str, seed| match events.item(
            &pod,
            Tone::Warning,
            "R",
            words,
            ("2026-01-01T00:00:00Z", seed),
        ) {
            Item::Event { name, event, patch, .. } => (name, event["count"].as_u64(), patch),
            Item::Status { .. } => panic!("an Event"),
        };
        let first = tell("no", 1);
        assert_eq!(first, ("p.0000000000000001".to_owned(), Some(1), None));
        let again = tell("no", 2);
        assert_eq!((again.0, again.1), (first.0, Some(2)));
        assert_eq!(again.2.unwrap()["count"], 2);
        assert_eq!(tell("other", 3).1, Some(1));
        assert_eq!(tell(&"ä".repeat(600), 4).1, Some(1));
        assert_eq!(cut(&"ä".repeat(600)).len(), 1000);
    }
}
