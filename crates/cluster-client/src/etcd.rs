//! etcd, for every service that asks it. The only file that knows etcd's protocol.
//!
//! The daemon uses etcd's JSON gateway (etcd's documentation, "gRPC gateway"; since 3.4 at `/v3`),
//! over the HTTP client that it already has for the Kubernetes API: etcd's own protocol would need
//! a second HTTP stack and code that is generated at build time, for a few calls. Reads are
//! linearizable, as etcd's are unless a client asks otherwise.
//!
//! Every write is one transaction that compares the record's revision.

use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::io::{AsyncBufRead, AsyncBufReadExt as _};
use http::Request;
/// What keys and values are made of.
pub use k8s_openapi::ByteString;
use kube::client::Body;
use kube::{Client, Config};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use service_kit::stop::words;
use thiserror::Error;
use tokio::sync::{Notify, watch};

use crate::api_server;

/// The timeout for connecting.
const CONNECT_TIME: Duration = Duration::from_secs(3);
/// The timeout for one member: a member without a leader is silent for seconds, and another member
/// may have one.
const MEMBER_TIME: Duration = Duration::from_secs(2);
/// How many keys one page of a list has.
const PAGE: u32 = 500;

/// Why a question or a watch ends when connections are made anew.
const MADE_ANEW: &str = "connections are made anew, as an address of this host has gone";

/// The files for connections to etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EtcdFiles {
    /// The certificate of the authority that has signed the members'.
    pub ca: Option<PathBuf>,
    /// The client's certificate.
    pub certificate: Option<PathBuf>,
    /// The client's key.
    pub key: Option<PathBuf>,
}

impl EtcdFiles {
    /// Returns a number that differs if the client's certificate or key is another one.
    fn hash(&self) -> u64 {
        api_server::hash_of([&self.certificate, &self.key].into_iter().flatten())
    }
}

/// Why the daemon has no connection to etcd.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// An address cannot be used.
    #[error("use etcd at {url}: {cause}")]
    Client {
        /// The member.
        url: String,
        /// Why.
        cause: String,
    },
    /// A file cannot be read.
    #[error("read {path:?}: {cause}")]
    File {
        /// The file.
        path: String,
        /// Why.
        cause: String,
    },
}

/// Why etcd did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EtcdError {
    /// The outcome is unknown: it may have been done, or be done yet.
    #[error("{0}")]
    Away(String),
    /// It will not do it.
    #[error("etcd refuses: {0}")]
    Refused(String),
}

/// A key as etcd stores it.
#[derive(Debug, Deserialize)]
pub struct Pair {
    /// Its name.
    pub key: ByteString,
    /// What it has; a key that is gone has nothing.
    #[serde(default)]
    pub value: Option<ByteString>,
    /// The revision at which it came.
    #[serde(default)]
    pub create_revision: String,
    /// The revision at which it was written last.
    #[serde(default)]
    pub mod_revision: String,
    /// The number of etcd's lease, with which the key goes.
    #[serde(default)]
    pub lease: Option<String>,
}

/// What each answer begins with.
#[derive(Debug, Default, Deserialize)]
pub struct Header {
    /// The cluster that answers.
    #[serde(default)]
    pub cluster_id: String,
    /// The cluster's revision.
    #[serde(default)]
    pub revision: String,
    /// How many leaders were elected: it only grows.
    #[serde(default)]
    pub raft_term: String,
}

/// The answer to a question for keys.
#[derive(Debug, Deserialize)]
pub struct RangeAnswer {
    /// What it begins with.
    #[serde(default)]
    pub header: Header,
    /// The keys.
    #[serde(default)]
    pub kvs: Vec<Pair>,
    /// There are more than asked for.
    #[serde(default)]
    pub more: bool,
}

impl RangeAnswer {
    /// Returns the value of the one key that was asked for, if there is one.
    pub fn value(self) -> Option<String> {
        let value = self.kvs.into_iter().next()?.value.unwrap_or_default();
        Some(String::from_utf8_lossy(&value.0).into_owned())
    }
}

/// The answer to a transaction.
#[derive(Debug, Deserialize)]
pub struct TransactionAnswer {
    /// What it begins with.
    #[serde(default)]
    pub header: Header,
    /// All comparisons held.
    #[serde(default)]
    pub succeeded: bool,
}

/// A member, and how it is asked.
struct Member {
    url: String,
    client: Mutex<Client>,
}

impl Member {
    fn new(url: &str, files: &EtcdFiles) -> Result<Self, ConnectError> {
        Ok(Member { url: url.to_owned(), client: Mutex::new(client(url, files)?) })
    }

    fn client(&self) -> Client {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A cluster of etcd.
pub struct Etcd {
    members: Vec<Member>,
    files: EtcdFiles,
    /// What the files had when clients were made of them: a client reads its certificate once.
    read: AtomicU64,
    /// The member to ask next.
    preferred: AtomicUsize,
    /// Tells questions and watches that connections are made anew.
    made_anew: watch::Sender<()>,
}

impl std::fmt::Debug for Etcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Etcd").finish_non_exhaustive()
    }
}

impl Etcd {
    /// Takes the addresses of the members; sends nothing yet.
    pub fn new(
        endpoints: impl IntoIterator<Item = impl AsRef<str>>,
        files: &EtcdFiles,
    ) -> Result<Self, ConnectError> {
        let mut members = Vec::new();
        let read = files.hash();
        for url in endpoints {
            members.push(Member::new(url.as_ref(), files)?);
        }
        Ok(Self::of(members, files.clone(), read))
    }

    /// Creates another client of the same cluster.
    #[must_use]
    pub fn another(&self) -> Self {
        let another = |of: &Member| Member { url: of.url.clone(), client: Mutex::new(of.client()) };
        let members = self.members.iter().map(another).collect();
        Self::of(members, self.files.clone(), self.read.load(Ordering::Relaxed))
    }

    fn of(members: Vec<Member>, files: EtcdFiles, read: u64) -> Self {
        // So that not all nodes ask the same member.
        let first = usize::try_from(service_kit::clock::seed() % 1024).unwrap_or_default();
        let (read, preferred) = (AtomicU64::new(read), AtomicUsize::new(first));
        Etcd { members, files, read, preferred, made_anew: watch::Sender::new(()) }
    }

    /// Returns the place of the member to ask next.
    pub fn preferred(&self) -> usize {
        self.preferred.load(Ordering::Relaxed)
    }

    /// Asks a member; if it is silent, the next request goes to another one.
    pub async fn ask<T: DeserializeOwned>(&self, call: &str, body: &Value) -> Result<T, EtcdError> {
        self.ask_member(self.preferred(), call, body).await
    }

    /// Asks one member after the other. What is asked may happen several times.
    pub async fn ask_any<T: DeserializeOwned>(
        &self,
        call: &str,
        body: &Value,
    ) -> Result<T, EtcdError> {
        let mut answer = self.ask(call, body).await;
        for _ in 1..self.members.len() {
            if !matches!(answer, Err(EtcdError::Away(_))) {
                break;
            }
            answer = self.ask(call, body).await;
        }
        answer
    }

    /// Lists all keys with a prefix, and etcd's revision at which they were so.
    pub async fn list(&self, prefix: &str) -> Result<(Vec<Pair>, u64), EtcdError> {
        let mut pages = Pages::of_prefix(prefix);
        let mut all = Vec::new();
        loop {
            let page: RangeAnswer = self.ask_any("kv/range", &pages.body()).await?;
            let more = pages.turn(&page);
            all.extend(page.kvs);
            if !more {
                return Ok((all, number(pages.revision())));
            }
        }
    }

    /// Asks the member at a place.
    pub async fn ask_member<T: DeserializeOwned>(
        &self,
        place: usize,
        call: &str,
        body: &Value,
    ) -> Result<T, EtcdError> {
        let mut made_anew = self.made_anew.subscribe();
        let client = self.member(place).client();
        let answer = in_time(ask(&client, call, body), &mut made_anew).await;
        answer.map_err(|error| self.passed_over(place, error))
    }

    /// Watches all keys with a prefix, from a revision on, at the member at a place.
    pub async fn watch(
        &self,
        place: usize,
        prefix: &str,
        from: u64,
    ) -> Result<Watch<'_>, EtcdError> {
        let body = json!({"create_request": {
            "key": bytes(prefix),
            "range_end": ByteString(after_prefix(prefix)),
            "start_revision": from.to_string(),
            // If there are no changes, etcd says so every ten minutes.
            "progress_notify": true,
        }});
        let request =
            request("watch", &body).map_err(|error| EtcdError::Refused(error.to_string()))?;
        let mut made_anew = self.made_anew.subscribe();
        let client = self.member(place).client();
        let away = |error: kube::Error| EtcdError::Away(words(&error));
        let asked = async { client.request_stream(request).await.map_err(away) };
        let lines = in_time(asked, &mut made_anew).await;
        let lines = lines.map_err(|error| self.passed_over(place, error))?;
        Ok(Watch { etcd: self, place, lines: Box::pin(lines), line: Vec::new(), made_anew })
    }

    /// Makes all connections anew, and ends every question and watch: from a connection whose own
    /// address has gone from this host, nothing is heard any more, not even its end. A runtime is
    /// needed around it.
    fn reconnect(&self) {
        self.make_clients();
        self.made_anew.send_replace(());
    }

    /// Does that each time that a bell rings, for ever.
    pub async fn reconnect_at(&self, bell: &Notify) {
        loop {
            bell.notified().await;
            self.reconnect();
        }
    }

    fn member(&self, place: usize) -> &Member {
        &self.members[place % self.members.len()]
    }

    /// Makes the clients anew if their certificate has been renewed. One that is just being written
    /// may not serve yet, and is another one when it does.
    fn renew(&self) {
        let read = self.files.hash();
        if self.read.swap(read, Ordering::Relaxed) != read {
            self.make_clients();
        }
    }

    fn make_clients(&self) {
        for member in &self.members {
            if let Ok(renewed) = client(&member.url, &self.files) {
                *member.client.lock().unwrap_or_else(PoisonError::into_inner) = renewed;
            }
        }
    }

    /// Names the member in an error, and has another one asked next if it was silent.
    fn passed_over(&self, place: usize, error: EtcdError) -> EtcdError {
        let EtcdError::Away(why) = error else { return error };
        self.renew();
        // Unless another thread has switched members already.
        let next = place.wrapping_add(1);
        let (order, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        let _ = self.preferred.compare_exchange(place, next, order, failed);
        EtcdError::Away(format!("etcd at {}: {why}", self.member(place).url))
    }
}

/// A list of keys, page by page. All pages are from one revision.
#[derive(Debug)]
pub struct Pages {
    from: Vec<u8>,
    end: ByteString,
    revision: String,
}

impl Pages {
    /// Lists all keys with a prefix.
    pub fn of_prefix(prefix: &str) -> Self {
        Self::between(prefix.as_bytes().to_vec(), after_prefix(prefix))
    }

    /// Lists one key.
    pub fn of_key(key: &str) -> Self {
        Self::between(key.as_bytes().to_vec(), [key.as_bytes(), &[0]].concat())
    }

    fn between(from: Vec<u8>, end: Vec<u8>) -> Self {
        Pages { from, end: ByteString(end), revision: "0".to_owned() }
    }

    /// Returns the request for the next page.
    pub fn body(&self) -> Value {
        json!({
            "key": ByteString(self.from.clone()), "range_end": self.end,
            "limit": PAGE.to_string(), "revision": self.revision,
        })
    }

    /// Takes a page. Returns whether there are more.
    pub fn turn(&mut self, page: &RangeAnswer) -> bool {
        if self.revision == "0" {
            self.revision.clone_from(&page.header.revision);
        }
        let Some(last) = page.kvs.last() else { return false };
        self.from.clone_from(&last.key.0);
        self.from.push(0);
        page.more
    }

    /// Returns the revision of the pages.
    pub fn revision(&self) -> &str {
        &self.revision
    }
}

/// A message of a watch.
#[derive(Debug, Default, Deserialize)]
pub struct WatchReport {
    /// What it begins with.
    #[serde(default)]
    pub header: Header,
    /// It has begun.
    #[serde(default)]
    pub created: bool,
    /// It has ended.
    #[serde(default)]
    pub canceled: bool,
    #[serde(default)]
    cancel_reason: String,
    /// It cannot begin so early: what was before this revision is forgotten.
    #[serde(default)]
    pub compact_revision: Option<String>,
    /// What has changed.
    #[serde(default)]
    pub events: Vec<WatchEvent>,
}

impl WatchReport {
    /// Returns why it has ended, in words.
    pub fn reason(&self) -> &str {
        match self.cancel_reason.as_str() {
            "" => "the watch was ended",
            reason => reason,
        }
    }
}

/// A change of a key.
#[derive(Debug, Deserialize)]
pub struct WatchEvent {
    /// `DELETE`; one that is left out is a put.
    #[serde(default, rename = "type")]
    kind: String,
    /// The key.
    pub kv: Pair,
}

impl WatchEvent {
    /// Reports whether the key is gone.
    pub fn is_deletion(&self) -> bool {
        self.kind == "DELETE"
    }
}

/// A watch of keys.
pub struct Watch<'a> {
    etcd: &'a Etcd,
    place: usize,
    lines: Pin<Box<dyn AsyncBufRead + 'a>>,
    /// What of the next line has arrived.
    line: Vec<u8>,
    made_anew: watch::Receiver<()>,
}

impl std::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Watch<'_> {
    /// Returns the place of the member that reports.
    pub fn place(&self) -> usize {
        self.place
    }

    /// Returns the next report. If waiting for it is given up, nothing is lost.
    pub async fn next(&mut self) -> Result<WatchReport, EtcdError> {
        let read = {
            let line = self.lines.read_until(b'\n', &mut self.line);
            let (line, made_anew) = (pin!(line), pin!(self.made_anew.changed()));
            match select(line, made_anew).await {
                Either::Left((read, _)) => Some(read),
                Either::Right(_) => None,
            }
        };
        let away = |why: String| self.etcd.passed_over(self.place, EtcdError::Away(why));
        let Some(read) = read else { return Err(away(MADE_ANEW.to_owned())) };
        read.map_err(|error| away(words(&error)))?;
        if self.line.last() != Some(&b'\n') {
            return Err(away("it has closed the connection".to_owned()));
        }
        let line = std::mem::take(&mut self.line);
        // {"result": …}, or at the end {"error": {"message": …}}
        let mut said: Value = serde_json::from_slice(&line)
            .map_err(|error| away(format!("no report of etcd's: {error}")))?;
        if said["result"].is_null() {
            return Err(away(message(&said["error"])));
        }
        serde_json::from_value(said["result"].take())
            .map_err(|error| away(format!("no report of etcd's: {error}")))
    }
}

/// Reads a number as the gateway writes it.
pub fn number(text: &str) -> u64 {
    text.parse().unwrap_or_default()
}

/// Returns a text as etcd takes keys and values.
pub fn bytes(text: &str) -> ByteString {
    ByteString(text.as_bytes().to_vec())
}

/// Returns the first key after all keys with a prefix.
pub fn after_prefix(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
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
    api_server::open(config).map_err(|error| failed(words(&error)))
}

fn request(call: &str, body: &Value) -> Result<Request<Vec<u8>>, http::Error> {
    Request::post(format!("/v3/{call}"))
        .header("content-type", "application/json")
        .body(body.to_string().into_bytes())
}

/// Waits for an answer for [`MEMBER_TIME`], unless connections are made anew meanwhile.
async fn in_time<T>(
    answer: impl Future<Output = Result<T, EtcdError>>,
    made_anew: &mut watch::Receiver<()>,
) -> Result<T, EtcdError> {
    let answer = pin!(tokio::time::timeout(MEMBER_TIME, answer));
    match select(answer, pin!(made_anew.changed())).await {
        Either::Left((Ok(answer), _)) => answer,
        Either::Left((Err(_), _)) => {
            Err(EtcdError::Away(format!("nothing within {} s", MEMBER_TIME.as_secs())))
        }
        Either::Right(_) => Err(EtcdError::Away(MADE_ANEW.to_owned())),
    }
}

async fn ask<T: DeserializeOwned>(
    client: &Client,
    call: &str,
    body: &Value,
) -> Result<T, EtcdError> {
    let request = request(call, body).map_err(|error| EtcdError::Refused(error.to_string()))?;
    let away = |error: kube::Error| EtcdError::Away(words(&error));
    let answer = client.send(request.map(Body::from)).await.map_err(away)?;
    let status = answer.status();
    let bytes = answer.into_body().collect_bytes().await.map_err(away)?;
    if status.is_success() {
        return serde_json::from_slice(&bytes)
            .map_err(|error| EtcdError::Away(format!("no answer of etcd's: {error}")));
    }
    // {"error": "etcdserver: …", "code": …}
    let said: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let text = format!("{status} {}", message(&said["error"]));
    match status.as_u16() {
        // No leader, too many requests, a timeout; and 401 while its authentication is being
        // changed.
        401 | 408 | 429 | 500..=599 => Err(EtcdError::Away(text)),
        _ => Err(EtcdError::Refused(text)),
    }
}

/// Returns the words of an error, which are a text or in an object.
fn message(error: &Value) -> String {
    error.as_str().or(error["message"].as_str()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use futures_util::future::join;

    use super::*;
    use service_kit::asynchronous::runtime;

    /// Each connection of this member is answered once, in this way, and stays.
    const ANSWERS: [&str; 3] = [
        "content-length: 2\r\n\r\n{}",
        "content-length: 2\r\n\r\n{}",
        "transfer-encoding: chunked\r\n\r\n",
    ];

    /// As when the address has gone from which they were made: nothing is heard by them.
    #[test]
    fn silent_connections_are_made_anew() {
        let member = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", member.local_addr().unwrap());
        let made_anew = EtcdError::Away(format!("etcd at {url}: {MADE_ANEW}"));
        let serve = move || {
            let streams = ANSWERS.map(|answer| {
                let (mut stream, _) = member.accept().unwrap();
                assert_ne!(stream.read(&mut [0; 1024]).unwrap(), 0);
                write!(stream, "HTTP/1.1 200 OK\r\n{answer}").unwrap();
                stream
            });
            (member, streams)
        };
        let serving = std::thread::spawn(serve);
        runtime(1).unwrap().block_on(async {
            let etcd = Etcd::new([&url], &EtcdFiles::default()).unwrap();
            let body = json!({});
            for _ in 0..2 {
                let answer: Value = etcd.ask("kv/range", &body).await.unwrap();
                assert_eq!(answer, body);
                etcd.reconnect();
            }
            let mut watch = etcd.watch(0, "/", 1).await.unwrap();
            let (report, ()) = join(watch.next(), async { etcd.reconnect() }).await;
            assert_eq!(report.unwrap_err(), made_anew);
            // Nobody waits for the watch's next report at that moment.
            etcd.reconnect();
            assert_eq!(watch.next().await.unwrap_err(), made_anew);
            let question = etcd.ask_member::<Value>(0, "kv/range", &body);
            let (answer, ()) = join(question, async { etcd.reconnect() }).await;
            assert_eq!(answer.unwrap_err(), made_anew);
        });
        drop(serving.join().unwrap());
    }
}
