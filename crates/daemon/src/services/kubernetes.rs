//! Who the API server is, for every service that asks it: what a kubeconfig says, or what a pod finds.

use std::path::Path;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use thiserror::Error;

use super::start::words;

/// The same in each request: who looks into an audit log finds us there.
const AGENT: &str = concat!("netwrightd/", env!("CARGO_PKG_VERSION"));

/// There is no API server to ask: the configuration says none.
#[derive(Debug, Error)]
pub(super) enum ConnectError {
    #[error("read the kubeconfig {path:?}: {cause}")]
    Kubeconfig { path: String, cause: String },
    #[error("there is no kubeconfig, and this is no pod: {0}")]
    InCluster(String),
    #[error("use the API server's configuration: {0}")]
    Client(String),
}

/// Takes the configuration of a file, or what a pod finds; asks nothing yet. A connection may take `patience` to be there.
///
/// With `retry` the client repeats by itself what was answered by nobody: not for writes of which it matters whether they happened.
pub(super) async fn client(
    kubeconfig: Option<&Path>,
    patience: Duration,
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
        // The token's file is read again as it is renewed.
        None => Config::incluster().map_err(|error| ConnectError::InCluster(words(&error)))?,
    };
    config.connect_timeout = Some(patience);
    config.disable_compression = true;
    config.default_retry = retry;
    if let (Ok(name), Ok(value)) = ("user-agent".parse(), AGENT.parse()) {
        config.headers.push((name, value));
    }
    Client::try_from(config).map_err(|error| ConnectError::Client(words(&error)))
}
