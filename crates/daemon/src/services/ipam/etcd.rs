//! Records in etcd. The only file that knows etcd's protocol.
//!
//! The daemon uses etcd's JSON gateway (etcd's documentation, "gRPC gateway"; since 3.4 at `/v3`),
//! over the HTTP client that it already has for the Kubernetes API: etcd's own protocol would need
//! a second HTTP stack and code that is generated at build time, for three calls. Reads are
//! linearizable, as etcd's are unless a client asks otherwise; every write is one transaction that
//! compares the record's revision.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cluster_ipam::store::{Entry, Filter, Key, Kind, Moment, Moments, Revision, Store, StoreError};
use http::Request;
use k8s_openapi::ByteString;
use kube::client::Body;
use kube::{Client, Config};
use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::runtime::Handle;

use super::super::kubernetes;
use super::super::setup::words;
use super::flags::EtcdFiles;
use super::http::{CONNECT_TIME, wait};

/// The prefix of our records' keys.
const PREFIX: &str = "/netwright/ipam/";
/// How many records one page of a list has.
const PAGE: u32 = 500;
/// The timeout for one member: a member without a leader is silent for seconds, and another member
/// may have one.
const MEMBER_TIME: Duration = Duration::from_secs(2);

/// Why the daemon has no connection to etcd.
#[derive(Debug, Error)]
pub(super) enum ConnectError {
    #[error("use etcd at {url}: {cause}")]
    Client { url: String, cause: String },
    #[error("read {path:?}: {cause}")]
    File { path: String, cause: String },
}

pub(super) struct Etcd {
    members: Vec<(String, Client)>,
    /// The member to ask next.
    preferred: AtomicUsize,
    handle: Handle,
    /// Each answer names its cluster and that cluster's revision.
    moments: Moments,
}

impl std::fmt::Debug for Etcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Etcd").finish_non_exhaustive()
    }
}

/// A record as etcd stores it.
#[derive(Debug, Deserialize)]
struct Pair {
    key: ByteString,
    #[serde(default)]
    value: Option<ByteString>,
    mod_revision: String,
}

#[derive(Debug, Default, Deserialize)]
struct Header {
    #[serde(default)]
    cluster_id: String,
    #[serde(default)]
    revision: String,
}

/// An answer with a header.
trait Headed: serde::de::DeserializeOwned {
    fn header(&self) -> &Header;
}

impl Headed for RangeAnswer {
    fn header(&self) -> &Header {
        &self.header
    }
}

impl Headed for TransactionAnswer {
    fn header(&self) -> &Header {
        &self.header
    }
}

#[derive(Debug, Deserialize)]
struct RangeAnswer {
    #[serde(default)]
    header: Header,
    #[serde(default)]
    kvs: Vec<Pair>,
    #[serde(default)]
    more: bool,
}

#[derive(Debug, Deserialize)]
struct TransactionAnswer {
    #[serde(default)]
    header: Header,
    #[serde(default)]
    succeeded: bool,
}

impl Etcd {
    /// Takes the addresses of the members; sends nothing yet.
    pub(super) fn new(
        endpoints: &[String],
        files: &EtcdFiles,
        handle: Handle,
    ) -> Result<Self, ConnectError> {
        let mut members = Vec::new();
        for url in endpoints {
            let client = client(url, files)?;
            members.push((url.clone(), client));
        }
        // So that not all nodes ask the same member.
        let first = usize::try_from(crate::clock::seed() % 1024).unwrap_or_default();
        let preferred = AtomicUsize::new(first);
        Ok(Etcd { members, preferred, handle, moments: Moments::default() })
    }

    /// Creates another client of the same cluster.
    #[cfg(test)]
    pub(super) fn another(&self) -> Self {
        let first = usize::try_from(crate::clock::seed() % 1024).unwrap_or_default();
        let (members, handle) = (self.members.clone(), self.handle.clone());
        let preferred = AtomicUsize::new(first);
        Etcd { members, preferred, handle, moments: Moments::default() }
    }

    /// Asks a member; if it is silent, the next request goes to another one.
    fn ask<T: Headed>(&self, call: &str, body: &Value) -> Result<T, StoreError> {
        let begun = self.moments.begin();
        let answer: T = self.ask_member(call, body)?;
        let header = answer.header();
        if let Ok(revision) = header.revision.parse() {
            self.moments.heard(begun, Moment { store: header.cluster_id.clone(), revision });
        }
        Ok(answer)
    }

    fn ask_member<T: serde::de::DeserializeOwned>(
        &self,
        call: &str,
        body: &Value,
    ) -> Result<T, StoreError> {
        let place = self.preferred.load(Ordering::Relaxed);
        let (url, client) = &self.members[place % self.members.len()];
        let answer = wait(&self.handle, MEMBER_TIME, ask(client, call, body));
        answer.map_err(|error| match error {
            StoreError::Away(why) => {
                let next = place.wrapping_add(1);
                // Unless another thread has switched members already.
                let _ = self.preferred.compare_exchange(
                    place,
                    next,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                StoreError::Away(format!("etcd at {url}: {why}"))
            }
            error => error,
        })
    }

    /// Applies a request if the record has this revision; 0 means that there is no record. Returns
    /// etcd's revision after that.
    fn change(&self, key: &Key, was: &str, request: &Value) -> Result<Revision, StoreError> {
        let body = json!({
            "compare": [{"key": name(key), "target": "MOD", "result": "EQUAL", "mod_revision": was}],
            "success": [request],
        });
        let answer: TransactionAnswer = self.ask("kv/txn", &body)?;
        if answer.succeeded {
            Ok(Revision(answer.header.revision))
        } else {
            Err(StoreError::Conflict)
        }
    }
}

fn client(url: &str, files: &EtcdFiles) -> Result<Client, ConnectError> {
    let failed = |cause: String| ConnectError::Client { url: url.to_owned(), cause };
    for path in [&files.ca, &files.certificate, &files.key].into_iter().flatten() {
        let read = std::fs::File::open(path);
        read.map_err(|error| ConnectError::File {
            path: path.display().to_string(),
            cause: error.to_string(),
        })?;
    }
    let address = url.parse().map_err(|error: http::uri::InvalidUri| failed(error.to_string()))?;
    let mut config = Config::new(address);
    config.connect_timeout = Some(CONNECT_TIME);
    config.disable_compression = true;
    // The client cannot know whether a write may be repeated.
    config.default_retry = false;
    if let Some(ca) = &files.ca {
        // The file alone says whom to trust: the system's certificates are not read.
        config.root_cert = Some(Vec::new());
        config.root_cert_file = Some(ca.clone());
    }
    let text = |path: &std::path::Path| path.display().to_string();
    config.auth_info.client_certificate = files.certificate.as_deref().map(text);
    config.auth_info.client_key = files.key.as_deref().map(text);
    kubernetes::open(config).map_err(|error| failed(words(&error)))
}

async fn ask<T: serde::de::DeserializeOwned>(
    client: &Client,
    call: &str,
    body: &Value,
) -> Result<T, StoreError> {
    let request = Request::post(format!("/v3/{call}"))
        .header("content-type", "application/json")
        .body(Body::from(body.to_string().into_bytes()))
        .map_err(|error| StoreError::Refused(error.to_string()))?;
    let away = |error: kube::Error| StoreError::Away(words(&error));
    let answer = client.send(request).await.map_err(away)?;
    let status = answer.status();
    let bytes = answer.into_body().collect_bytes().await.map_err(away)?;
    if status.is_success() {
        return serde_json::from_slice(&bytes)
            .map_err(|error| StoreError::Away(format!("no answer of etcd's: {error}")));
    }
    // {"error": "etcdserver: …", "code": …}
    let said: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let words = said["error"].as_str().unwrap_or_default().to_owned();
    let text = format!("{status} {words}");
    match status.as_u16() {
        // No leader, too many requests, a timeout; and 401 while its authentication is being
        // changed.
        401 | 408 | 429 | 500..=599 => Err(StoreError::Away(text)),
        _ => Err(StoreError::Refused(text)),
    }
}

fn path(key: &Key) -> String {
    format!("{PREFIX}{key}")
}

fn name(key: &Key) -> ByteString {
    ByteString(path(key).into_bytes())
}

fn entry(kind: Kind, pair: Pair) -> Option<Entry> {
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
        let prefix = match filter {
            Filter::Space(space) => format!("{PREFIX}{}/{space}/", kind.plural()),
            Filter::All | Filter::Node(_) => format!("{PREFIX}{}/", kind.plural()),
        };
        // The range of all keys with this prefix ends at the first key after them.
        let mut end = prefix.clone().into_bytes();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let (mut from, mut end) = (prefix.into_bytes(), ByteString(end));
        if let (Kind::Node, Filter::Node(node)) = (kind, filter) {
            // A node's record is named after it.
            from = path(&Key::new(kind, node)).into_bytes();
            end = ByteString([&from[..], &[0]].concat());
        }
        let mut all = Vec::new();
        let mut at = String::from("0");
        loop {
            let body = json!({
                "key": ByteString(from.clone()), "range_end": end, "limit": PAGE.to_string(),
                "revision": at,
            });
            let answer: RangeAnswer = self.ask("kv/range", &body)?;
            if at == "0" {
                // All pages are from one revision.
                at = answer.header.revision;
            }
            if let Some(last) = answer.kvs.last() {
                from.clone_from(&last.key.0);
                from.push(0);
            }
            let more = answer.more && !answer.kvs.is_empty();
            all.extend(answer.kvs.into_iter().filter_map(|pair| entry(kind, pair)));
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
        let put = json!({"request_put": {"key": name(key), "value": ByteString(value.to_string().into_bytes())}});
        self.change(key, "0", &put)
    }

    fn update(&self, key: &Key, was: &Revision, value: &Value) -> Result<Revision, StoreError> {
        let put = json!({"request_put": {"key": name(key), "value": ByteString(value.to_string().into_bytes())}});
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
