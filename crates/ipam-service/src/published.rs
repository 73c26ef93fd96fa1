//! What the service publishes, for other services that read it: records in the API server, or in
//! etcd.

use cluster_client::api_server::Client;
use cluster_client::etcd::Pair;
use cluster_client::follow::Follow;
use cluster_ipam::store::{Entry, Kind};
use serde_json::Value;

use super::{etcd, objects};

/// Follows a kind of records of a space.
pub fn of_space(client: &Client, kind: Kind, space: &str) -> Follow {
    Follow::new(client, objects::kind_of(kind)).labels(&objects::of_space(space))
}

/// Returns the record of an object.
pub fn of_object(kind: Kind, object: Value) -> Option<Entry> {
    objects::entry(kind, object)
}

/// Returns what the keys of a space's records of a kind begin with in etcd.
pub fn keys_of_space(kind: Kind, space: &str) -> String {
    format!("{}{}/{space}/", etcd::PREFIX, kind.plural())
}

/// Returns the record of a pair.
pub fn of_pair(kind: Kind, pair: Pair) -> Option<Entry> {
    etcd::entry(kind, pair)
}
