//! A stand-in for the service's engine, until it is there.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use policy::World;

#[derive(Debug, Clone)]
pub(super) struct Shared(Arc<Mutex<Engine>>);

impl Shared {
    #[cfg(test)]
    pub(super) fn of(engine: Engine) -> Self {
        Shared(Arc::new(Mutex::new(engine)))
    }

    pub(super) fn accept(&self) {}

    pub(super) fn engine(&self) -> MutexGuard<'_, Engine> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
pub(super) struct Engine {
    pub(super) world: World,
    pub(super) closed: Vec<Attachment>,
}

#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) key: cni::AttachmentKey,
    pub(super) pod: Option<node_api::Pod>,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) labels: BTreeMap<String, String>,
}

impl Engine {
    pub(super) fn node(&self) -> &str {
        "one"
    }

    pub(super) fn world(&self) -> &World {
        &self.world
    }

    pub(super) fn waits_for(&self) -> Vec<String> {
        Vec::new()
    }

    pub(super) fn notices(&self) -> Vec<String> {
        Vec::new()
    }

    pub(super) fn is_closed(&self, address: IpAddr) -> bool {
        self.closed.iter().any(|one| one.addresses.contains(&address))
    }

    pub(super) fn attachments(&self) -> impl Iterator<Item = &Attachment> {
        self.closed.iter()
    }
}
