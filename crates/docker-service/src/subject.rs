//! What a line of the log is about, in terms that Docker shows: `docker network ls` and
//! `docker inspect` have these IDs, and the container's namespace is its `SandboxKey`.

use std::path::PathBuf;

use serde::Deserialize;
use service_kit::log::Subject;

use super::driver::Driver;
use super::journal::{Endpoint, short};

/// The names in calls, for both interfaces (network and IPAM).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CallNames {
    #[serde(rename = "NetworkID")]
    network: String,
    #[serde(rename = "EndpointID")]
    endpoint: String,
    #[serde(rename = "SandboxKey")]
    sandbox: PathBuf,
    #[serde(rename = "PoolID")]
    pool: String,
    #[serde(rename = "Address")]
    address: String,
}

impl Driver {
    /// Reads what a call is about; for an endpoint that has joined, its record names the container.
    pub(super) fn subject(&self, body: &[u8]) -> Subject {
        let mut named: CallNames = cnm::read(body).unwrap_or_default();
        if named.sandbox.as_os_str().is_empty() && !named.endpoint.is_empty() {
            let endpoint = self.journal.endpoint(&named.endpoint).ok().flatten();
            named.sandbox = endpoint.and_then(|endpoint| endpoint.sandbox).unwrap_or_default();
        }
        named.subject()
    }
}

impl Endpoint {
    /// Returns what a log line about it is about.
    pub(super) fn subject(&self) -> Subject {
        let named = CallNames {
            network: self.network.clone(),
            endpoint: self.id.clone(),
            sandbox: self.sandbox.clone().unwrap_or_default(),
            ..CallNames::default()
        };
        named.subject()
    }
}

impl CallNames {
    fn subject(self) -> Subject {
        let all = [
            ("network", short(&self.network).to_owned()),
            ("endpoint", short(&self.endpoint).to_owned()),
            ("container", self.sandbox.to_string_lossy().into_owned()),
            ("pool", self.pool),
            ("address", self.address),
        ];
        all.into_iter().filter(|(_, value)| !value.is_empty()).collect()
    }
}

/// How many digits Docker's IDs have.
const WHOLE: usize = 64;

/// Returns a text with the IDs in it as Docker shows them, and as `netwright inspect` takes them.
pub(super) fn with_short_ids(text: &str) -> String {
    let is_digit = |letter: char| matches!(letter, '0'..='9' | 'a'..='f');
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(begin) = rest.find(is_digit) {
        let (before, from) = rest.split_at(begin);
        let (word, after) =
            from.split_at(from.find(|letter| !is_digit(letter)).unwrap_or(from.len()));
        shown.push_str(before);
        shown.push_str(if word.len() == WHOLE { short(word) } else { word });
        rest = after;
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_as_docker_shows_them() {
        let id = "0123456789ab".to_owned() + &"cd".repeat(26);
        let text = format!("address 10.1.0.2 is taken: lan/{id}/eth0 has it (x{id}x, {id}0)");
        let said = "address 10.1.0.2 is taken: lan/0123456789ab/eth0 has it (x0123456789abx, ";
        assert_eq!(with_short_ids(&text), format!("{said}{id}0)"));
        assert_eq!(with_short_ids(""), "");
    }
}
