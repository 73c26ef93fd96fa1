//! The driver: what each call does. It never calls Docker.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cni::{Error, code};
use cni_runtime::Runtime;
use cnm::method::Method;
use cnm::network::{
    ActivateAnswer, AllocateAnswer, AllocateNetwork, Capabilities, GwAllocAnswer, Join,
};
use cnm::{Nothing, ipam as ipam_messages};
use serde::Serialize;
use serde::de::DeserializeOwned;
use service_kit::clock;
use service_kit::log;
use service_kit::log::Subject;
use state::Roots;

use super::journal::{Endpoint, Journal, short};
use super::pending_calls::{self, Intent, Intents};
use super::sandbox::Engine;

/// How long a call waits for another call for the same endpoint or network.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Everything a call needs.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(super) journal: Journal,
    pub(super) runtime: Runtime<'static>,
    /// The same with its own records: ports are published and withdrawn apart from the rest of the
    /// chain.
    pub(super) port_runtime: Runtime<'static>,
    pub(super) conf_dir: PathBuf,
    pub(super) roots: Roots,
    pub(super) boot_id: String,
    /// The timeout of plugins, for ADD and for DEL.
    pub(super) timeout: Duration,
    intents: Intents,
    keys: Keys,
    ending: AtomicBool,
    /// What looked forgotten at the last look; its removal may be under way.
    pub(super) suspects: Mutex<HashSet<String>>,
}

impl Driver {
    pub(crate) fn new(
        records: (Journal, Intents),
        runtimes: (Runtime<'static>, Runtime<'static>),
        conf_dir: PathBuf,
        roots: Roots,
        boot_id: String,
        timeout: Duration,
    ) -> Self {
        let (journal, intents) = records;
        let (runtime, port_runtime) = runtimes;
        let keys = Keys::default();
        Driver {
            journal,
            runtime,
            port_runtime,
            conf_dir,
            roots,
            boot_id,
            timeout,
            intents,
            keys,
            ending: AtomicBool::new(false),
            suspects: Mutex::default(),
        }
    }

    /// Answers a call. The caller keeps the note of it until the answer is sent.
    pub(crate) fn answer(
        self: &Arc<Self>,
        method: Method,
        body: &[u8],
        engine: Option<Engine>,
    ) -> Answer {
        if !pending_calls::has_content(method) {
            let asker = Asker { engine, call: String::new() };
            let (answer, subject) = self.act_told(method, body, &asker);
            return Answer { answer, subject, _note: None };
        }
        if !body.iter().all(u8::is_ascii_whitespace) {
            let note = self.intents.note(method, body);
            let asker = Asker { engine, call: note.name.clone() };
            let (answer, subject) = self.act_told(method, body, &asker);
            return Answer { answer, subject, _note: Some(note) };
        }
        if pending_calls::removes(method) {
            // It was done when the driver started, or before the previous driver was killed.
            return Answer { answer: reply(&Nothing {}), subject: Subject::new(), _note: None };
        }
        let (answer, subject) = match self.intents.recall(method) {
            Ok(left) => {
                let asker = Asker { engine, call: left.name.clone() };
                let answered = self.act_told(method, &left.body, &asker);
                left.forget();
                answered
            }
            Err(error) => (Err(error), Subject::new()),
        };
        Answer { answer, subject, _note: None }
    }

    /// Does what a call asks for; every line logged meanwhile names the call's subject.
    fn act_told(
        self: &Arc<Self>,
        method: Method,
        body: &[u8],
        asker: &Asker,
    ) -> (Result<Vec<u8>, Error>, Subject) {
        let subject = self.subject(body);
        let _about = log::about(subject.clone());
        (self.act(method, body, asker), subject)
    }

    /// Completes the removals that were under way when a previous driver was killed.
    pub(crate) fn finish_removals(self: &Arc<Self>) {
        for left in self.intents.left() {
            if !pending_calls::removes(left.method) {
                continue;
            }
            let (answer, subject) = self.act_told(left.method, &left.body, &Asker::default());
            let _about = log::about(subject);
            match answer {
                Ok(_) => {
                    tracing::info!(call = %left.method, "finished for an earlier driver");
                }
                Err(error) => {
                    tracing::warn!(call = %left.method, %error, "not finished by an earlier driver");
                }
            }
            left.forget();
        }
    }

    fn act(self: &Arc<Self>, method: Method, body: &[u8], asker: &Asker) -> Result<Vec<u8>, Error> {
        let engine = asker.engine;
        match method {
            Method::Activate => reply(&ActivateAnswer {
                implements: vec!["NetworkDriver".to_owned(), "IpamDriver".to_owned()],
            }),
            Method::NetworkCapabilities => reply(&Capabilities {
                scope: "local".to_owned(),
                connectivity_scope: "local".to_owned(),
                gw_alloc_checker: false,
            }),
            Method::GwAllocCheck => reply(&GwAllocAnswer::default()),
            Method::AllocateNetwork => {
                let asked: AllocateNetwork = read(body)?;
                reply(&AllocateAnswer { options: asked.options })
            }
            Method::FreeNetwork | Method::DiscoverNew | Method::DiscoverDelete => {
                reply(&Nothing {})
            }
            Method::CreateNetwork => {
                self.create_network(&read(body)?, engine).and_then(|()| reply(&Nothing {}))
            }
            Method::DeleteNetwork => {
                self.delete_network(&read(body)?).and_then(|()| reply(&Nothing {}))
            }
            Method::CreateEndpoint => reply(&self.create_endpoint(read(body)?)?),
            Method::EndpointOperInfo => reply(&self.oper_info(&read(body)?)?),
            Method::DeleteEndpoint => {
                self.delete_endpoint(&read(body)?).and_then(|()| reply(&Nothing {}))
            }
            Method::Join => {
                let asked: Join = read(body)?;
                let joined = self.join(&asked, engine)?;
                self.settle_later(&asked.endpoint_id);
                reply(&joined)
            }
            Method::Leave => self.leave(&read(body)?).and_then(|()| reply(&Nothing {})),
            Method::ProgramExternalConnectivity => {
                self.publish(&read(body)?, engine).and_then(|()| reply(&Nothing {}))
            }
            Method::RevokeExternalConnectivity => {
                self.withdraw(&read(body)?).and_then(|()| reply(&Nothing {}))
            }
            Method::IpamCapabilities => reply(&ipam_messages::Capabilities::default()),
            Method::DefaultAddressSpaces => reply(&self.address_spaces()),
            Method::RequestPool => reply(&self.request_pool(&read(body)?, asker)?),
            Method::ReleasePool => {
                self.release_pool(&read(body)?).and_then(|()| reply(&Nothing {}))
            }
            Method::RequestAddress => reply(&self.request_address(&read(body)?, engine)?),
            Method::ReleaseAddress => {
                self.release_address(&read(body)?).and_then(|()| reply(&Nothing {}))
            }
            other => Err(Error::new(code::INVALID_CONFIG, format!("call {other} is not known"))),
        }
    }

    pub(super) fn endpoints_of(&self, network: &str) -> Vec<Endpoint> {
        let mut endpoints = self.journal.endpoints();
        endpoints.retain(|endpoint| endpoint.network == network);
        endpoints
    }

    /// Waits until no other call holds this ID, and holds it.
    pub(super) fn hold(&self, id: &str) -> Result<KeyGuard<'_>, Error> {
        super::journal::check_id(id)?;
        self.keys.hold(id, LOCK_TIMEOUT).ok_or_else(|| {
            Error::new(
                code::TRY_AGAIN_LATER,
                format!("another call for {} is still running", short(id)),
            )
        })
    }

    /// Does what [`Driver::hold`] does, but does not wait.
    pub(super) fn try_hold(&self, id: &str) -> Option<KeyGuard<'_>> {
        self.keys.hold(id, Duration::ZERO)
    }

    /// Writes an endpoint to disk with its new phase.
    pub(super) fn record(
        &self,
        endpoint: &mut Endpoint,
        phase: super::journal::Phase,
    ) -> Result<(), Error> {
        endpoint.phase = phase;
        endpoint.boot_id.clone_from(&self.boot_id);
        endpoint.since_s = clock::boot_ms() / 1000;
        self.journal.put_endpoint(endpoint)
    }

    /// Records that the service is ending: waits stop.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// The folder of files that a reboot may delete.
    pub(super) fn run_dir(&self) -> &Path {
        &self.roots.run
    }
}

/// The engine that asks, and its call.
#[derive(Debug, Clone, Default)]
pub(super) struct Asker {
    pub(super) engine: Option<Engine>,
    /// The name of the call; the same when it is repeated after a driver was killed during it.
    pub(super) call: String,
}

/// The answer to a call.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) answer: Result<Vec<u8>, Error>,
    /// What the call was about.
    pub(crate) subject: Subject,
    _note: Option<Intent>,
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    cnm::read(body).map_err(|error| {
        Error::new(code::DECODE_FAILURE, format!("the request is not valid: {error}"))
    })
}

fn reply<T: Serialize>(message: &T) -> Result<Vec<u8>, Error> {
    Ok(cnm::write(message))
}

/// The IDs that calls hold now.
#[derive(Debug, Default)]
struct Keys {
    held: Mutex<HashSet<String>>,
    changed: Condvar,
}

impl Keys {
    fn held(&self) -> MutexGuard<'_, HashSet<String>> {
        // Ignore poisoning: a panic cannot leave the set half changed.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, id: &str, timeout: Duration) -> Option<KeyGuard<'_>> {
        let free = |held: &mut HashSet<String>| held.contains(id);
        let waited = self.changed.wait_timeout_while(self.held(), timeout, free);
        let (mut held, _) = waited.unwrap_or_else(PoisonError::into_inner);
        held.insert(id.to_owned()).then(|| KeyGuard { keys: self, id: id.to_owned() })
    }
}

/// Keeps other calls off the ID until it is dropped.
#[derive(Debug)]
pub(super) struct KeyGuard<'a> {
    keys: &'a Keys,
    id: String,
}

impl Drop for KeyGuard<'_> {
    fn drop(&mut self) {
        self.keys.held().remove(&self.id);
        self.keys.changed.notify_all();
    }
}

/// Returns texts by key, as Docker shows them.
pub(super) fn texts<const N: usize>(pairs: [(&str, String); N]) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(key, text)| (key.to_owned(), text)).collect()
}
