//! The configuration of `policy`, read and checked.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cni::code;
use cni_plugin::Call;
use node_api::{policy, socket_in};
use serde::Deserialize;

use crate::shared::failure::Failure;

/// The keys as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Raw {
    socketpath: Option<PathBuf>,
    args: RawArgs,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawArgs {
    cni: RawCni,
}

/// `args.cni` (CNI conventions, "dynamic plugin specific fields").
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawCni {
    labels: Vec<RawLabel>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawLabel {
    key: String,
    value: String,
}

/// The checked configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    /// Where the daemon listens.
    pub(super) socket: PathBuf,
    /// The labels that the runtime gives the container.
    pub(super) labels: BTreeMap<String, String>,
}

impl Config {
    /// Reads and checks everything.
    ///
    /// # Errors
    /// Code 6 when a type is wrong, 7 when a value is.
    pub(super) fn of(call: &Call<'_>) -> Result<Self, Failure> {
        let raw: Raw = call.read_config()?;
        raw.check(by_default(call))
    }
}

/// Returns where the daemon of a call listens whose configuration may be unreadable.
pub(super) fn socket_of(call: &Call<'_>) -> PathBuf {
    let raw: Raw = call.read_config().unwrap_or_default();
    raw.socketpath.filter(|path| path.is_absolute()).unwrap_or_else(|| by_default(call))
}

fn by_default(call: &Call<'_>) -> PathBuf {
    socket_in(&call.roots().run, policy::SOCKET)
}

impl Raw {
    fn check(self, by_default: PathBuf) -> Result<Config, Failure> {
        let invalid = |message: String| Failure::new(code::INVALID_CONFIG, message);
        let socket = self.socketpath.unwrap_or(by_default);
        if !socket.is_absolute() {
            return Err(invalid(format!("socketpath {socket:?} does not begin with a slash")));
        }
        let mut labels = BTreeMap::new();
        for RawLabel { key, value } in self.args.cni.labels {
            if key.is_empty() {
                return Err(invalid("args.cni.labels: a label without a key".to_owned()));
            }
            if labels.insert(key.clone(), value.clone()).is_some_and(|before| before != value) {
                return Err(invalid(format!("args.cni.labels: label {key:?} has two values")));
            }
        }
        Ok(Config { socket, labels })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<Config, Failure> {
        cni::json::from_str::<Raw>(text).unwrap().check(PathBuf::from("/run/netwright/policy.sock"))
    }

    #[test]
    fn what_may_be_asked_for() {
        let config = check("{}").unwrap();
        assert_eq!(config.socket, PathBuf::from("/run/netwright/policy.sock"));
        assert!(config.labels.is_empty());
        let config = check(
            r#"{"socketpath": "/x", "args": {"cni": {"ips": ["192.0.2.1"],
                "labels": [{"key": "app", "value": "web"}, {"key": "app", "value": "web"}, {"key": "tier"}]}}}"#,
        )
        .unwrap();
        assert_eq!(config.socket, PathBuf::from("/x"));
        let labels: Vec<_> = config.labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(labels, ["app=web", "tier="]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, words) in [
            (r#"{"socketpath": "policy.sock"}"#, "socketpath \"policy.sock\" does not begin"),
            (r#"{"socketpath": ""}"#, "socketpath \"\" does not begin"),
            (r#"{"args": {"cni": {"labels": [{"value": "x"}]}}}"#, "a label without a key"),
            (
                r#"{"args": {"cni": {"labels": [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]}}}"#,
                "label \"a\" has two values",
            ),
        ] {
            let error = check(text).unwrap_err();
            assert_eq!(error.code(), code::INVALID_CONFIG);
            assert!(error.message().contains(words), "{error}");
        }
    }
}
