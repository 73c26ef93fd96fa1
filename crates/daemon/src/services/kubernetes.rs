//! Finds the API server for every service that asks it: by a kubeconfig, or as a pod does.

use std::path::Path;
use std::time::Duration;

use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use thiserror::Error;
use tower::retry::RetryLayer;
use tower::{BoxError, ServiceBuilder};

use super::setup::words;

/// The same in each request, so that audit logs show us under this name.
const AGENT: &str = concat!("netwrightd/", env!("CARGO_PKG_VERSION"));

/// The configuration names no API server.
#[derive(Debug, Error)]
pub(super) enum ConnectError {
    #[error("read the kubeconfig {path:?}: {cause}")]
    Kubeconfig { path: String, cause: String },
    #[error("there is no kubeconfig, and netwrightd does not run in a pod: {0}")]
    InCluster(String),
    #[error("use the API server's configuration: {0}")]
    Client(String),
}

/// Reads the configuration from a file, or finds it as a pod does; sends nothing yet. A connection
/// may take `timeout` to open.
///
/// With `retry` the client itself repeats requests that got no answer. Do not use it for writes
/// where it matters whether they happened.
pub(super) async fn client(
    kubeconfig: Option<&Path>,
    timeout: Duration,
    retry: bool,
) -> Result<Client, ConnectError> {
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
    config.disable_compression = true;
    config.default_retry = retry;
    if let (Ok(name), Ok(value)) = ("user-agent".parse(), AGENT.parse()) {
        config.headers.push((name, value));
    }
    open(config).map_err(|error| ConnectError::Client(words(&error)))
}

/// After this silence the kernel probes whether the other end of a connection is there; the other
/// two say how often and at which interval until it gives up. A watch may carry nothing for
/// minutes, and its server may vanish silently.
const SILENCE: Duration = Duration::from_secs(8);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(4);
const PROBES: u32 = 3;
/// How long sent data may stay unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);

/// Makes a client from a configuration, as kube's own function does, but with other connections:
/// they notice within 20 s that their other end is gone, and without TLS no certificates are read.
pub(super) fn open(mut config: Config) -> Result<Client, kube::Error> {
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
    tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
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
    let retry = config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry()));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(retry)
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace))
}
