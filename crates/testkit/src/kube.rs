//! A small Kubernetes API server, for tests: real HTTP, stored in memory.
//!
//! It serves the kinds that we use ([`Kind`]) as the API's documentation describes (Kubernetes API
//! concepts): get, list in pages, watch from a resource version with bookmarks, create, update,
//! patch and delete, conflicts and expiry, selectors, sub-resources `status`, metadata only, kinds
//! with two versions, tokens, and role-based access control. It is never more lenient than a real
//! server: it refuses what it does not know. A test can make it slow, gone or silent, or make it
//! forget its history. It logs all requests.
//!
//! ```
//! use serde_json::json;
//! use testkit::kube::KubeApi;
//!
//! let api = KubeApi::start();
//! api.create(&json!({
//!     "apiVersion": "v1", "kind": "Pod",
//!     "metadata": {"name": "p", "namespace": "default"}, "spec": {"nodeName": "n1"},
//! }));
//! assert_eq!(api.object("pods", "default", "p").unwrap()["spec"]["nodeName"], "n1");
//! ```

mod admission;
mod front;
mod http;
mod kinds;
mod log;
mod patch;
mod policies;
mod rules;
mod select;
mod serve;
mod status;
mod store;

pub use front::Front;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use serde_json::Value;

use crate::service::TIMEOUT;
use admission::Admission;
use kinds::KINDS;
pub use kinds::Kind;
pub use log::LoggedRequest;
use rules::Rule;
use store::{Part, Store};

/// How often the listener checks whether it should listen.
const BEAT: Duration = Duration::from_millis(10);

/// How requests are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Up,
    /// No process listens.
    Refuse,
    /// Requests are accepted and never answered.
    Hang,
    /// Every request is answered with this code.
    Answer(u16),
}

#[derive(Debug)]
struct State {
    store: Store,
    log: Vec<LoggedRequest>,
    latency: Duration,
    mode: Mode,
    bookmarks: u64,
    /// How often all watches were ended.
    ends: u64,
    token: Option<String>,
    rules: Option<Vec<Rule>>,
    admission: Option<Admission>,
    /// The versions in which kinds are served that are not served as from the start.
    served: BTreeMap<usize, Vec<&'static str>>,
    /// Verb, resource and code of the requests that must fail; each fails once.
    failures: VecDeque<(String, String, u16)>,
    connections: BTreeMap<u64, TcpStream>,
    next: u64,
    ended: bool,
}

impl State {
    /// Returns the versions in which a kind is served.
    fn versions(&self, number: usize) -> Vec<&'static str> {
        self.served.get(&number).cloned().unwrap_or_else(|| vec![KINDS[number].version])
    }
}

#[derive(Debug)]
struct SharedState {
    state: Mutex<State>,
    changed: Condvar,
}

impl SharedState {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    fn faults(&self) -> (Duration, Mode) {
        let state = self.lock();
        (state.latency, state.mode)
    }

    fn wait_while(&self, mode: Mode) -> io::Result<()> {
        let mut state = self.lock();
        while state.mode == mode && !state.ended {
            state = self.wait(state, BEAT);
        }
        Ok(())
    }
}

/// The server. It stops when this is dropped.
#[derive(Debug)]
pub struct KubeApi {
    shared: Arc<SharedState>,
    address: SocketAddr,
    thread: Option<thread::JoinHandle<()>>,
}

impl KubeApi {
    /// Starts a server on a port of 127.0.0.1, in the network namespace of the calling thread.
    ///
    /// # Panics
    /// When it cannot listen.
    #[must_use]
    pub fn start() -> Self {
        Self::start_at("127.0.0.1")
    }

    /// Starts a server on a port of this address, in the network namespace of the calling thread.
    ///
    /// # Panics
    /// When it cannot listen.
    #[must_use]
    pub fn start_at(address: &str) -> Self {
        let listener = TcpListener::bind((address, 0)).expect("listen");
        let address = listener.local_addr().expect("the listener's address");
        let state = State {
            store: Store::default(),
            log: Vec::new(),
            latency: Duration::ZERO,
            mode: Mode::Up,
            bookmarks: 0,
            ends: 0,
            token: None,
            rules: None,
            admission: None,
            served: BTreeMap::new(),
            failures: VecDeque::new(),
            connections: BTreeMap::new(),
            next: 0,
            ended: false,
        };
        let shared = Arc::new(SharedState { state: Mutex::new(state), changed: Condvar::new() });
        let theirs = Arc::clone(&shared);
        let thread = thread::spawn(move || listen(&theirs, listener, address));
        KubeApi { shared, address, thread: Some(thread) }
    }

    /// Its address: `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Writes a kubeconfig for it into a folder, with the token if one is required.
    ///
    /// # Panics
    /// When it cannot be written.
    #[must_use]
    pub fn kubeconfig(&self, folder: &Path) -> PathBuf {
        let user = match &self.shared.lock().token {
            Some(token) => serde_json::json!({"token": token}),
            None => serde_json::json!({}),
        };
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url()}}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        let path = folder.join("kubeconfig");
        std::fs::write(&path, config.to_string()).expect("write a kubeconfig");
        path
    }

    /// Sends one request from the calling thread's network namespace; returns the code and the whole
    /// answer. A PATCH is a merge patch.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn send(&self, method: &str, path: &str, body: &Value) -> (u16, String) {
        let (body, address) = (body.to_string(), self.address);
        let kind = if method == "PATCH" { "merge-patch+json" } else { "json" };
        let ask = || -> io::Result<String> {
            let mut stream = TcpStream::connect(address)?;
            write!(
                stream,
                "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/{kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            )?;
            stream.shutdown(Shutdown::Write)?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = ask().unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        (code.unwrap_or_default(), answer)
    }

    /// Creates an object of the kind it contains, and its namespace if that is missing. The server
    /// does not validate a policy that is created in this way, because another version of the
    /// server, or of the kind's definition, may have stored it. It validates a policy that a
    /// request sends.
    ///
    /// # Panics
    /// When the API would refuse it, whichever versions of the kind are served.
    #[expect(clippy::must_use_candidate, reason = "creating is often all that is wanted")]
    pub fn create(&self, object: &Value) -> Value {
        let (number, kind) = kind_of(object);
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let mut state = self.shared.lock();
        if kind.namespaced {
            let _ = state.store.create(0, "", serde_json::json!({"metadata": {"name": namespace}}));
        }
        let made = state.store.create(number, namespace, object.clone());
        drop(state);
        self.shared.changed.notify_all();
        made.unwrap_or_else(|refusal| panic!("create {object}: {}", refusal.status()))
    }

    /// Returns the object of a kind, named by the kind's plural.
    #[must_use]
    pub fn object(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = (number(plural), namespace.to_owned(), name.to_owned());
        self.shared.lock().store.get(&key).ok().cloned()
    }

    /// All objects of a kind.
    #[must_use]
    pub fn objects(&self, plural: &str) -> Vec<Value> {
        let state = self.shared.lock();
        let all = select::Selector::default();
        let page = state.store.list(number(plural), "", &all, usize::MAX, None);
        page.items.into_iter().map(|stored| stored.object.clone()).collect()
    }

    /// Changes an object by a merge patch of any part, bypassing access control.
    ///
    /// # Panics
    /// When the object does not exist.
    pub fn change(&self, plural: &str, namespace: &str, name: &str, by: &Value) {
        let key = (number(plural), namespace.to_owned(), name.to_owned());
        let mut state = self.shared.lock();
        for part in [Part::Main, Part::Status] {
            let changed = state.store.update(&key, part, |before| {
                let mut after = before.clone();
                patch::merge(&mut after, by);
                Ok(after)
            });
            changed.unwrap_or_else(|refusal| panic!("change {key:?}: {}", refusal.status()));
            if !KINDS[key.0].status {
                break;
            }
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// No longer serves a kind, as if its definition was deleted: its objects are removed, its
    /// watches end, and requests are answered with 404.
    pub fn withdraw(&self, plural: &str) {
        let mut state = self.shared.lock();
        state.store.delete_all(number(plural));
        state.served.insert(number(plural), Vec::new());
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Serves a kind in these versions and in no other, as if its definition was changed: its
    /// objects stay, and watches in other versions end. It may have been withdrawn.
    ///
    /// # Panics
    /// When the kind does not have one of the versions.
    pub fn serve(&self, plural: &str, versions: &[&str]) {
        let number = number(plural);
        let version = |name: &&str| {
            let found = KINDS[number].version_named(name);
            found.unwrap_or_else(|| panic!("{plural} have no version {name}"))
        };
        let versions = versions.iter().map(version).collect();
        self.shared.lock().served.insert(number, versions);
        self.shared.changed.notify_all();
    }

    /// Removes an object, if it exists.
    pub fn remove(&self, plural: &str, namespace: &str, name: &str) {
        let key = (number(plural), namespace.to_owned(), name.to_owned());
        let _ = self.shared.lock().store.delete(&key, &Value::Null);
        self.shared.changed.notify_all();
    }

    /// Answers only clients with this token.
    pub fn require_token(&self, token: &str) {
        self.shared.lock().token = Some(token.to_owned());
    }

    /// Allows only what these roles allow. Each role is the object's `rules`, with its namespace if
    /// it has one.
    pub fn allow_only(&self, roles: &[(Value, Option<&str>)]) {
        let rules = roles.iter().flat_map(|(rules, namespace)| Rule::read(rules, *namespace));
        self.shared.lock().rules = Some(rules.collect());
    }

    /// Checks creations and changes by these ValidatingAdmissionPolicies, as if this user
    /// (`userInfo` of an admission request) had requested them.
    ///
    /// # Panics
    /// When one of their expressions is not understood.
    pub fn admit(&self, policies: &[Value], user: &Value) {
        self.shared.lock().admission = Some(Admission::new(policies, user));
    }

    /// Delays every answer by this long.
    pub fn slow(&self, latency: Duration) {
        self.shared.lock().latency = latency;
    }

    /// Goes away: connections end, and new ones are refused.
    pub fn refuse(&self) {
        self.set(Mode::Refuse);
        let deadline = Instant::now() + Duration::from_secs(5);
        while TcpStream::connect_timeout(&self.address, BEAT).is_ok() && Instant::now() < deadline {
            thread::yield_now();
        }
    }

    /// Accepts requests, and does not answer; watches end.
    pub fn hang(&self) {
        self.set(Mode::Hang);
    }

    /// Answers every request with an error code.
    pub fn fail(&self, code: u16) {
        self.set(Mode::Answer(code));
    }

    /// Serves requests again.
    pub fn restore(&self) {
        self.set(Mode::Up);
    }

    fn set(&self, mode: Mode) {
        let mut state = self.shared.lock();
        state.mode = mode;
        if mode == Mode::Refuse {
            cut(&mut state);
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Ends all connections.
    pub fn cut(&self) {
        cut(&mut self.shared.lock());
    }

    /// Ends all watches without an error, as when their time is over; clients then watch again.
    pub fn end_watches(&self) {
        self.shared.lock().ends += 1;
        self.shared.changed.notify_all();
    }

    /// Fails the next request with a verb for a resource (`pods/status`) with this code, once.
    pub fn fail_next(&self, verb: &str, resource: &str, code: u16) {
        self.shared.lock().failures.push_back((verb.to_owned(), resource.to_owned(), code));
    }

    /// Cancels the failures that [`KubeApi::fail_next`] announced.
    pub fn fail_no_more(&self) {
        self.shared.lock().failures.clear();
    }

    /// Forgets its history: watches from an earlier version start with 410.
    pub fn compact(&self) {
        self.shared.lock().store.compact();
    }

    /// Sends a bookmark to every watch that asked for them.
    pub fn bookmark(&self) {
        self.shared.lock().bookmarks += 1;
        self.shared.changed.notify_all();
    }

    /// Returns the requests so far.
    #[must_use]
    pub fn asked(&self) -> Vec<LoggedRequest> {
        self.shared.lock().log.clone()
    }

    /// Forgets the requests so far.
    pub fn forget(&self) {
        self.shared.lock().log.clear();
    }

    /// Waits until a condition of the server holds.
    ///
    /// # Panics
    /// When it does not within [`TIMEOUT`].
    pub fn wait_until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !holds(self) {
            let state = self.shared.lock();
            assert!(
                Instant::now() < deadline,
                "{what}: not within time; there are {}; asked: {:#?}",
                serve::known(&state),
                state.log.iter().map(|asked| (&asked.line, asked.code)).collect::<Vec<_>>()
            );
            drop(self.shared.wait(state, BEAT));
        }
    }
}

impl Drop for KubeApi {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ended = true;
        cut(&mut state);
        drop(state);
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn cut(state: &mut State) {
    for (_, stream) in std::mem::take(&mut state.connections) {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn number(plural: &str) -> usize {
    let found = KINDS.iter().position(|kind| kind.plural == plural);
    found.unwrap_or_else(|| panic!("no kind {plural}"))
}

fn kind_of(object: &Value) -> (usize, &'static Kind) {
    let found = KINDS.iter().enumerate().find(|(_, kind)| {
        let is_of = |version: &str| object["apiVersion"] == kind.api_version(version);
        object["kind"] == kind.kind && (is_of(kind.version) || kind.later.is_some_and(is_of))
    });
    found.unwrap_or_else(|| panic!("no such kind: {object}"))
}

/// Accepts connections, a thread each, while it should listen.
fn listen(shared: &Arc<SharedState>, listener: TcpListener, address: SocketAddr) {
    let mut listener = Some(listener);
    loop {
        let (ended, mode) = {
            let state = shared.lock();
            (state.ended, state.mode)
        };
        if ended {
            return;
        }
        if mode == Mode::Refuse {
            listener = None;
            drop(shared.wait(shared.lock(), BEAT));
            continue;
        }
        let Some(open) = &listener else {
            listener = TcpListener::bind(address).ok();
            continue;
        };
        let beat = rustix::event::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let mut ready = [PollFd::new(open, PollFlags::IN)];
        if poll(&mut ready, Some(&beat)).is_ok_and(|count| 0 < count)
            && let Ok((stream, _)) = open.accept()
        {
            begin(shared, stream);
        }
    }
}

fn begin(shared: &Arc<SharedState>, stream: TcpStream) {
    let Ok(copy) = stream.try_clone() else { return };
    let _ = stream.set_nodelay(true);
    let mut state = shared.lock();
    let number = state.next;
    state.next += 1;
    state.connections.insert(number, copy);
    drop(state);
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        // Ignore errors: the peer is gone.
        let _ = serve::serve(&shared, &stream);
        let _ = stream.shutdown(Shutdown::Both);
        shared.lock().connections.remove(&number);
    });
}
