//! The API server, for every service that asks it: found by a kubeconfig, or as a pod does.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
pub use kube::Client;
use kube::Config;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use service_kit::stop::words;
use thiserror::Error;
use tokio::sync::Mutex;
use tower::retry::RetryLayer;
use tower::timeout::TimeoutLayer;
use tower::{BoxError, ServiceBuilder, service_fn};

/// The same in each request, so that audit logs show us under this name.
const AGENT: &str = concat!("netwrightd/", env!("CARGO_PKG_VERSION"));

/// The timeout for connecting.
pub const CONNECT_TIME: Duration = Duration::from_secs(5);
/// The timeout of a request, unless its caller has less time.
const ANSWER_TIME: Duration = Duration::from_secs(15);
/// How long the head of an answer may take, that of a watch too: a server that accepts connections
/// and is frozen answers nothing.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// How long a connection may be silent. Each watch asks the server to end it after 290 s, so a
/// connection that is silent for longer has a frozen server at its end.
const LONGEST_SILENCE: Duration = Duration::from_secs(330);
/// How the client of a watch asks a busy server (429, 503, 504) again: within half a second, unless
/// the server names a time. After that come the pauses above, and the log names them.
const BUSY_DELAY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(80));
const BUSY_TRIES: u32 = 5;

/// The configuration names no API server.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be read.
    #[error("read the kubeconfig {path:?}: {cause}")]
    Kubeconfig {
        /// The file.
        path: String,
        /// Why.
        cause: String,
    },
    /// Nothing says where it is.
    #[error("there is no kubeconfig, and netwrightd does not run in a pod: {0}")]
    InCluster(String),
    /// What says where it is cannot be used.
    #[error("use the API server's configuration: {0}")]
    Client(String),
}

/// Reads the configuration from a file, or finds it as a pod does; sends nothing yet. A connection
/// may take `timeout` to open. A kubeconfig is read again when that may help (`RenewedClient`).
///
/// With `retry` the client itself repeats requests that got no answer. Do not use it for writes
/// where it matters whether they happened.
pub async fn client(
    kubeconfig: Option<&Path>,
    timeout: Duration,
    retry: bool,
) -> Result<Client, ConnectError> {
    let retry = retry.then(RetryPolicy::server_retry);
    connect(kubeconfig, Manner { timeout, retry, unacknowledged: UNACKNOWLEDGED }).await
}

/// The same for a watch. By default the client doubles its pauses up to a minute while the server
/// is busy, and reports nothing; so it notices the server's return a minute late.
pub async fn watching_client(
    kubeconfig: Option<&Path>,
    timeout: Duration,
) -> Result<Client, ConnectError> {
    let retry = RetryPolicy::new(BUSY_DELAY.0, BUSY_DELAY.1, BUSY_TRIES, true).ok();
    connect(kubeconfig, Manner { timeout, retry, unacknowledged: UNACKNOWLEDGED_SOON }).await
}

/// Pauses between attempts to find the server: at first, and at most.
const FIND_RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Finds the server, for a watch. If the kubeconfig is wrong, it reports that and tries again: an
/// administrator may correct it.
pub async fn find(kubeconfig: Option<&Path>, silent: impl Fn(String)) -> Client {
    let mut pause = FIND_RETRY.0;
    loop {
        match watching_client(kubeconfig, CONNECT_TIME).await {
            Ok(client) => return client,
            Err(error) => silent(words(&error)),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(FIND_RETRY.1);
    }
}

/// How a client treats a server that does not answer.
#[derive(Clone)]
struct Manner {
    /// The time for a connection.
    timeout: Duration,
    /// When a request is sent again.
    retry: Option<RetryPolicy>,
    /// How long sent data may stay unacknowledged.
    unacknowledged: Duration,
}

async fn connect(kubeconfig: Option<&Path>, manner: Manner) -> Result<Client, ConnectError> {
    let Some(path) = kubeconfig else {
        return connect_once(None, manner).await;
    };
    let credentials = Credentials::read(path);
    let client = connect_once(Some(path), manner.clone()).await?;
    let namespace = client.default_namespace().to_owned();
    let renewed = Arc::new(RenewedClient {
        manner,
        present: Mutex::new((client, credentials)),
        is_in_doubt: AtomicBool::new(false),
    });
    let send = move |request: Request<Body>| {
        let renewed = Arc::clone(&renewed);
        async move { renewed.send(request).await }
    };
    Ok(Client::new(service_fn(send), namespace))
}

/// Makes a client that keeps what it has read.
async fn connect_once(kubeconfig: Option<&Path>, manner: Manner) -> Result<Client, ConnectError> {
    let config = configuration(kubeconfig, manner.timeout).await?;
    open_with(config, manner.retry, manner.unacknowledged)
        .map_err(|error| ConnectError::Client(words(&error)))
}

async fn configuration(
    kubeconfig: Option<&Path>,
    timeout: Duration,
) -> Result<Config, ConnectError> {
    let mut config = match kubeconfig {
        Some(path) => {
            let failed = |error: kube::config::KubeconfigError| ConnectError::Kubeconfig {
                path: path.display().to_string(),
                cause: words(&error),
            };
            let file = Kubeconfig::read_from(path).map_err(failed)?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(file, &options).await.map_err(failed)?
        }
        // The client reads the token's file again as it is renewed.
        None => Config::incluster().map_err(|error| ConnectError::InCluster(words(&error)))?,
    };
    config.connect_timeout = Some(timeout);
    config.read_timeout = Some(LONGEST_SILENCE);
    config.disable_compression = true;
    if let (Ok(name), Ok(value)) = ("user-agent".parse(), AGENT.parse()) {
        config.headers.push((name, value));
    }
    Ok(config)
}

/// A client that is made anew when that may help. A client reads its kubeconfig, and the
/// certificates that this names, once; administrators and kubelets renew them. (The token's file,
/// and a pod's own certificate of the server, it reads again by itself.)
///
/// So once the server has not answered a request or has not let it pass, later requests look whether
/// they are others by now, until one of these is answered. A watch goes on where it was: the
/// kubeconfig still names the same cluster.
struct RenewedClient {
    manner: Manner,
    present: Mutex<(Client, Credentials)>,
    is_in_doubt: AtomicBool,
}

impl RenewedClient {
    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        let was_there = self.is_in_doubt.load(Ordering::Relaxed);
        let (client, wrong) = self.client(was_there).await;
        let mut doubt = Doubt { of: &self.is_in_doubt, was_there, is_answered: false };
        let answer = client.send(request).await;
        doubt.is_answered = answer.as_ref().is_ok_and(|answer| {
            let status = answer.status();
            !status.is_server_error()
                && status != StatusCode::UNAUTHORIZED
                && status != StatusCode::FORBIDDEN
        });
        match wrong {
            // What the kubeconfig says by now cannot be used, and what it said no longer serves.
            Some(error) if !doubt.is_answered => Err(kube::Error::Service(error.into())),
            _ => answer,
        }
    }

    /// Returns the client to ask, and why no newer one could be made.
    async fn client(&self, is_in_doubt: bool) -> (Client, Option<ConnectError>) {
        let mut present = self.present.lock().await;
        let mut wrong = None;
        if is_in_doubt && present.1.are_others() {
            let credentials = Credentials::read(&present.1.kubeconfig);
            let path = Some(&*credentials.kubeconfig);
            match connect_once(path, self.manner.clone()).await {
                Ok(client) => {
                    tracing::info!("the kubeconfig or its certificates have changed: read again");
                    *present = (client, credentials);
                }
                Err(error) => wrong = Some(error),
            }
        }
        (present.0.clone(), wrong)
    }
}

/// A request that is under way. Its caller may give it up, which is no answer either. An answer ends
/// only a doubt that was there before the request: the request has looked at the files then.
struct Doubt<'r> {
    of: &'r AtomicBool,
    was_there: bool,
    is_answered: bool,
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        if self.was_there || !self.is_answered {
            self.of.store(!self.is_answered, Ordering::Relaxed);
        }
    }
}

/// What a client was made of: a kubeconfig, and the certificates that it names.
#[derive(Debug)]
struct Credentials {
    kubeconfig: PathBuf,
    hash: u64,
}

impl Credentials {
    /// Reads them, for a client that is made afterwards.
    fn read(kubeconfig: &Path) -> Self {
        Credentials { hash: hash(kubeconfig), kubeconfig: kubeconfig.to_owned() }
    }

    /// Reports whether they are others by now: another client may be answered.
    fn are_others(&self) -> bool {
        hash(&self.kubeconfig) != self.hash
    }
}

/// Returns a number that differs if a kubeconfig says something else, or a certificate that it
/// names does.
fn hash(path: &Path) -> u64 {
    // One that cannot be read names no files.
    let Ok(config) = Kubeconfig::read_from(path) else { return hash_of([path]) };
    let of_servers = config.clusters.into_iter().filter_map(|named| named.cluster);
    let of_users = config.auth_infos.into_iter().filter_map(|named| named.auth_info);
    let of_servers = of_servers.filter_map(|server| server.certificate_authority);
    let of_users = of_users.flat_map(|user| [user.client_certificate, user.client_key]);
    let named = of_servers.chain(of_users.flatten()).map(PathBuf::from);
    hash_of([path.to_owned()].into_iter().chain(named))
}

/// Returns a number that differs if one of these files has other contents.
pub fn hash_of(files: impl IntoIterator<Item = impl AsRef<Path>>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for file in files {
        std::fs::read(file).ok().hash(&mut hasher);
    }
    hasher.finish()
}

/// After this silence the kernel probes whether the other end of a connection is there; the other
/// two say how often and at which interval until it gives up. A watch may carry nothing for
/// minutes, and its server may vanish silently.
const SILENCE: Duration = Duration::from_secs(8);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(4);
const PROBES: u32 = 3;
/// How long sent data may stay unacknowledged. The second is that of a client that asks again anyway:
/// if the address from which it was connected has gone from this host, that takes no longer.
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);
const UNACKNOWLEDGED_SOON: Duration = Duration::from_secs(3);

/// Makes a client from a configuration, as kube's own function does, but with other connections:
/// they notice within 20 s that their other end is gone, and without TLS no certificates are read.
pub fn open(config: Config) -> Result<Client, kube::Error> {
    let retry = config.default_retry.then(RetryPolicy::server_retry);
    open_with(config, retry, UNACKNOWLEDGED_SOON)
}

fn open_with(
    mut config: Config,
    retry: Option<RetryPolicy>,
    unacknowledged: Duration,
) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() {
        // It reports that it does not support this.
        return Client::try_from(config);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(SILENCE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(PROBES));
    tcp.set_tcp_user_timeout(Some(unacknowledged));
    if config.cluster_url.scheme_str() == Some("http") {
        // No certificate is checked, so no file of trusted ones is needed.
        config.root_cert = Some(Vec::new());
        config.root_cert_file = None;
    }
    let tls = config.rustls_https_connector_with_connector(tcp)?;
    let mut connector = TimeoutConnector::new(tls);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let http: hyper_util::client::legacy::Client<_, Body> =
        hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(retry.map(RetryLayer::new))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .layer(TimeoutLayer::new(HEAD_TIME))
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace))
}

/// Why the API server did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ApiError {
    /// The object does not exist, or it is another one of the same name.
    #[error("the API server has no such object: {0}")]
    Gone(String),
    /// The server does not have the kind of objects.
    #[error("the API server does not have this kind of objects: {0}")]
    NoKind(String),
    /// There is an object of that name.
    #[error("the API server has such an object: {0}")]
    Exists(String),
    /// The object has another version by now.
    #[error("another writer was quicker: {0}")]
    Conflict(String),
    /// Our token is not accepted, or our rights do not suffice. It may be renewed, and they may be
    /// granted, in a moment.
    #[error("the API server does not permit it: {0}")]
    Forbidden(String),
    /// It may succeed later.
    #[error("the API server does not answer: {0}")]
    Away(String),
    /// It will not succeed.
    #[error("the API server refuses: {0}")]
    Refused(String),
}

impl ApiError {
    /// Says whether the object, or its whole kind, is not there.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        matches!(self, ApiError::Gone(_) | ApiError::NoKind(_))
    }

    /// Says whether the same request may succeed later.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, ApiError::Conflict(_) | ApiError::Forbidden(_) | ApiError::Away(_))
    }

    /// Returns what the server said, or why it said nothing.
    #[must_use]
    pub fn into_text(self) -> String {
        match self {
            ApiError::Gone(text)
            | ApiError::NoKind(text)
            | ApiError::Exists(text)
            | ApiError::Conflict(text)
            | ApiError::Forbidden(text)
            | ApiError::Away(text)
            | ApiError::Refused(text) => text,
        }
    }
}

/// Returns `None` for an object that does not exist.
///
/// # Errors
/// All others, [`ApiError::NoKind`] among them.
pub fn unless_gone<T>(answer: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(ApiError::Gone(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Puts a timeout on a request.
pub(crate) async fn within<T>(
    question: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ApiError> {
    match tokio::time::timeout(ANSWER_TIME, question).await {
        Ok(answer) => answer.map_err(|error| api_error(&error)),
        Err(_) => Err(ApiError::Away(format!("nothing within {} s", ANSWER_TIME.as_secs()))),
    }
}

pub(crate) fn api_error(error: &kube::Error) -> ApiError {
    let kube::Error::Api(status) = error else { return ApiError::Away(words(error)) };
    let text = status.message.clone();
    // For an unknown kind the server names no object.
    let names_object = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
    match status.code {
        404 if names_object => ApiError::Gone(text),
        404 => ApiError::NoKind(text),
        409 if status.reason == "AlreadyExists" => ApiError::Exists(text),
        409 => ApiError::Conflict(text),
        401 | 403 => ApiError::Forbidden(text),
        // There are too many requests, the server starts or stops, or it cannot reach its store.
        408 | 410 | 429 | 500..=599 => ApiError::Away(text),
        _ => ApiError::Refused(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_others_once_a_file_says_something_else() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let config = |server: &str| {
            let config = serde_json::json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "test",
                "clusters": [{"name": "test", "cluster": {
                    "server": server, "certificate-authority": "ca.crt",
                }}],
                "users": [{"name": "test", "user": {
                    "client-certificate": "user.crt", "client-key": "user.key",
                }}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            });
            write("kubeconfig", &config.to_string());
        };
        for name in ["ca.crt", "user.crt", "user.key"] {
            write(name, "first");
        }
        config("https://192.0.2.1:6443");
        let path = folder.path().join("kubeconfig");
        let change = |act: &dyn Fn()| {
            let read = Credentials::read(&path);
            assert!(!read.are_others());
            act();
            read.are_others()
        };
        for name in ["ca.crt", "user.crt", "user.key"] {
            assert!(!change(&|| write(name, "first")), "{name}");
            assert!(change(&|| write(name, "second")), "{name}");
        }
        assert!(change(&|| config("https://192.0.2.2:6443")));
        assert!(change(&|| write("kubeconfig", "{")));
        assert!(change(&|| std::fs::remove_file(&path).unwrap()));
    }
}
