//! Records in etcd. Every write is one transaction that compares the record's revision.

use cluster_client::etcd::{
    ByteString, ConnectError, EtcdError, EtcdFiles, Header, Pages, Pair, RangeAnswer,
    TransactionAnswer, bytes,
};
use cluster_ipam::store::{Entry, Filter, Key, Kind, Moment, Moments, Revision, Store, StoreError};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::http::{ANSWER_TIME, wait};

/// The prefix of our records' keys.
pub(super) const PREFIX: &str = "/netwright/ipam/";

#[derive(Debug)]
pub(super) struct Etcd {
    etcd: cluster_client::etcd::Etcd,
    handle: Handle,
    /// Each answer names its cluster and that cluster's revision.
    moments: Moments,
}

/// An answer with a header.
trait HeadedAnswer: serde::de::DeserializeOwned {
    fn header(&self) -> &Header;
}

impl HeadedAnswer for RangeAnswer {
    fn header(&self) -> &Header {
        &self.header
    }
}

impl HeadedAnswer for TransactionAnswer {
    fn header(&self) -> &Header {
        &self.header
    }
}

fn store_error(error: EtcdError) -> StoreError {
    match error {
        EtcdError::Away(why) => StoreError::Away(why),
        EtcdError::Refused(why) => StoreError::Refused(why),
    }
}

impl Etcd {
    /// Takes the addresses of the members; sends nothing yet.
    pub(super) fn new(
        endpoints: &[String],
        files: &EtcdFiles,
        handle: Handle,
    ) -> Result<Self, ConnectError> {
        let etcd = cluster_client::etcd::Etcd::new(endpoints, files)?;
        Ok(Etcd { etcd, handle, moments: Moments::default() })
    }

    /// Creates another client of the same cluster.
    #[cfg(test)]
    pub(super) fn another(&self) -> Self {
        let (etcd, handle) = (self.etcd.another(), self.handle.clone());
        Etcd { etcd, handle, moments: Moments::default() }
    }

    /// Asks a member; if it is silent, the next request goes to another one.
    fn ask<T: HeadedAnswer>(&self, call: &str, body: &Value) -> Result<T, StoreError> {
        let begun = self.moments.begin();
        // It gives up a member earlier.
        let question = async { self.etcd.ask::<T>(call, body).await.map_err(store_error) };
        let answer = wait(&self.handle, ANSWER_TIME, question)?;
        let header = answer.header();
        if let Ok(revision) = header.revision.parse() {
            self.moments.heard(begun, Moment { store: header.cluster_id.clone(), revision });
        }
        Ok(answer)
    }

    /// Applies a request if the record has this revision; 0 means that there is no record. Returns
    /// etcd's revision after that.
    fn change(&self, key: &Key, was: &str, request: &Value) -> Result<Revision, StoreError> {
        self.change_if(&[is_at(key, was)], request)
    }

    /// Applies a request if all comparisons hold ([`is_at`]).
    fn change_if(&self, compare: &[Value], request: &Value) -> Result<Revision, StoreError> {
        let body = json!({"compare": compare, "success": [request]});
        let answer: TransactionAnswer = self.ask("kv/txn", &body)?;
        if answer.succeeded {
            Ok(Revision(answer.header.revision))
        } else {
            Err(StoreError::Conflict)
        }
    }
}

/// Compares a record's revision; 0 means that there is no record.
fn is_at(key: &Key, revision: &str) -> Value {
    json!({"key": name(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision})
}

fn path(key: &Key) -> String {
    format!("{PREFIX}{key}")
}

fn name(key: &Key) -> ByteString {
    bytes(&path(key))
}

pub(super) fn entry(kind: Kind, pair: Pair) -> Option<Entry> {
    let path = String::from_utf8(pair.key.0).ok()?;
    let name = path.strip_prefix(PREFIX)?.strip_prefix(kind.plural())?.strip_prefix('/')?;
    let value = pair.value.and_then(|value| serde_json::from_slice(&value.0).ok());
    Some(Entry {
        key: Key::new(kind, name),
        revision: Revision(pair.mod_revision),
        // What is not JSON is not a record: it is returned as found, with no owner.
        value: value.unwrap_or_default(),
    })
}

impl Store for Etcd {
    fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        let answer: RangeAnswer = self.ask("kv/range", &json!({"key": name(key)}))?;
        Ok(answer.kvs.into_iter().find_map(|pair| entry(key.kind, pair)))
    }

    fn list(&self, kind: Kind, filter: Filter<'_>) -> Result<Vec<Entry>, StoreError> {
        let all_of = format!("{PREFIX}{}/", kind.plural());
        let mut pages = match (kind, filter) {
            (_, Filter::Space(space)) => Pages::of_prefix(&format!("{all_of}{space}/")),
            // A node's record is named after it.
            (Kind::Node, Filter::Node(node)) => Pages::of_key(&path(&Key::new(kind, node))),
            (_, Filter::All | Filter::Node(_)) => Pages::of_prefix(&all_of),
        };
        let mut all = Vec::new();
        loop {
            let page: RangeAnswer = self.ask("kv/range", &pages.body())?;
            let more = pages.turn(&page);
            all.extend(page.kvs.into_iter().filter_map(|pair| entry(kind, pair)));
            if !more {
                break;
            }
        }
        if let Filter::Node(node) = filter {
            all.retain(|entry| entry.value["node"] == node);
        }
        Ok(all)
    }

    fn create(&self, key: &Key, value: &Value) -> Result<Revision, StoreError> {
        let put = json!({"request_put": {"key": name(key), "value": bytes(&value.to_string())}});
        self.change(key, "0", &put)
    }

    fn put_while(
        &self,
        key: &Key,
        was: Option<&Revision>,
        value: &Value,
        (other, revision): (&Key, &Revision),
    ) -> Result<Revision, StoreError> {
        let put = json!({"request_put": {"key": name(key), "value": bytes(&value.to_string())}});
        let was = was.map_or("0", |was| &was.0);
        self.change_if(&[is_at(key, was), is_at(other, &revision.0)], &put)
    }

    fn update(&self, key: &Key, was: &Revision, value: &Value) -> Result<Revision, StoreError> {
        let put = json!({"request_put": {"key": name(key), "value": bytes(&value.to_string())}});
        self.change(key, &was.0, &put)
    }

    fn went_back(&self) -> u64 {
        self.moments.went_back()
    }

    fn moment(&self) -> Option<Moment> {
        self.moments.newest()
    }

    fn remember(&self, moment: &Moment) {
        self.moments.remember(moment);
    }

    fn delete(&self, key: &Key, was: &Revision) -> Result<(), StoreError> {
        let delete = json!({"request_delete_range": {"key": name(key)}});
        self.change(key, &was.0, &delete).map(|_| ())
    }
}
