//! What a new configuration changes: which services start, stop or restart, and which only read it
//! again.

use std::fmt;

use serde::Serialize;

use crate::config::Config;
use crate::keys::{self, KEYS, Key, KeyName, is_enabled};
use crate::report::{AGENT, Report, State, Status};

/// What has to be done so that a new configuration counts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Change {
    /// Services that are enabled now.
    pub start: Vec<&'static str>,
    /// Services that are no longer enabled.
    pub stop: Vec<&'static str>,
    /// Services that must start again.
    pub restart: Vec<ServiceChange>,
    /// Services that only have to read the configuration again.
    pub tell: Vec<ServiceChange>,
}

/// A service, and the keys that changed for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceChange {
    /// Its name.
    pub service: &'static str,
    /// The keys, those of other tables with the table's name: `log.level`.
    pub keys: Vec<String>,
}

impl Change {
    /// Reports whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Change::default()
    }

    /// Notes that keys of a service that goes on have changed.
    fn note(&mut self, service: &'static str, changed: &[&Key]) {
        let keys: Vec<String> = changed.iter().map(|key| key.name_for(service)).collect();
        let list = match changed.iter().any(|key| !key.live) {
            true => &mut self.restart,
            false => &mut self.tell,
        };
        if !keys.is_empty() {
            list.push(ServiceChange { service, keys });
        }
    }
}

/// Returns what has to be done so that `new` counts where `old` does.
#[must_use]
pub fn between(old: &Config, new: &Config) -> Change {
    let mut change = Change::default();
    let (mut before, mut after) = (old.clone(), new.clone());
    let of_agent = KEYS.iter().filter(|key| key.for_agent);
    let differs = |key: &&Key| shown(key, &mut before) != shown(key, &mut after);
    change.note(AGENT, &of_agent.filter(differs).collect::<Vec<_>>());
    for service in keys::services() {
        match (is_enabled(old, service), is_enabled(new, service)) {
            (false, false) => {}
            (false, true) => change.start.push(service),
            (true, false) => change.stop.push(service),
            (true, true) => {
                change.note(service, &keys_for(service, old, new));
            }
        }
    }
    change
}

/// Returns what has to be done so that `new` counts for processes that say what they run with.
#[must_use]
pub fn for_running(status: &Status, new: &Config) -> Change {
    let mut change = Change::default();
    if let Some(agent) = &status.agent {
        change.note(AGENT, &differing(KEYS.iter().filter(|key| key.for_agent), agent, AGENT, new));
    }
    for service in keys::services() {
        let runs = status.services.iter().find(|report| report.service == service);
        let runs = runs.filter(|report| report.pid.is_some() || report.state == State::Hung);
        match (runs, is_enabled(new, service)) {
            (None, false) => {}
            (None, true) => change.start.push(service),
            (Some(_), false) => change.stop.push(service),
            (Some(report), true) => {
                change.note(service, &differing(read_by(service), report, service, new));
            }
        }
    }
    change
}

/// Returns the keys for which a process says that it runs with another value.
fn differing(
    keys: impl Iterator<Item = &'static Key>,
    report: &Report,
    service: &str,
    new: &Config,
) -> Vec<&'static Key> {
    let mut new = new.clone();
    let differs = |key: &&Key| {
        let runs_with = report.values.get(&key.name_for(service));
        runs_with.is_some_and(|value| *value != shown(key, &mut new))
    };
    keys.filter(differs).collect()
}

/// Keys of a service that another service reads too: `routing` writes into its network
/// configuration whether pods start under network policy.
const ALSO_READ: [(&str, KeyName); 2] =
    [("routing", ("policy", "enable")), ("routing", ("policy", "socketpath"))];

/// Returns the keys that a service reads: those of its own table and of the tables that belong to
/// no service, and some of another service's.
pub fn read_by(service: &str) -> impl Iterator<Item = &'static Key> {
    let also = move |key: &Key| ALSO_READ.contains(&(service, (key.table, key.name)));
    let is_shared = |key: &Key| {
        !key.for_agent && keys::TABLES.iter().any(|of| of.name == key.table && !of.service)
    };
    let is_own = move |key: &Key| key.table == service && key.name != "enable";
    KEYS.iter().filter(move |key| is_shared(key) || is_own(key) || also(key))
}

/// Returns the value of a key as TOML; empty if there is none.
#[must_use]
pub fn shown(key: &Key, config: &mut Config) -> String {
    (key.setting)(config).show().unwrap_or_default()
}

/// Returns the keys that differ and that a service reads.
#[must_use]
pub fn keys_for(service: &str, old: &Config, new: &Config) -> Vec<&'static Key> {
    let (mut old, mut new) = (old.clone(), new.clone());
    read_by(service).filter(|key| shown(key, &mut old) != shown(key, &mut new)).collect()
}

impl Key {
    /// Returns the key's name as a message about a service has it.
    #[must_use]
    pub fn name_for(&self, service: &str) -> String {
        match self.table == service {
            true => self.name.to_owned(),
            false => format!("{}.{}", self.table, self.name),
        }
    }
}

/// One line for each service, such as `restarts dhcp: timeout`.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for service in &self.start {
            writeln!(f, "starts {service}")?;
        }
        for service in &self.stop {
            writeln!(f, "stops {service}")?;
        }
        for changed in &self.restart {
            writeln!(f, "restarts {}: {}", changed.service, changed.keys.join(", "))?;
        }
        for changed in &self.tell {
            writeln!(f, "tells {}: {}", changed.service, changed.keys.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_a_service_runs_with_counts() {
        let mut new = Config::default();
        (new.collect.enable, new.repair.enable, new.dhcp.enable) = (true, true, true);
        new.collect.grace = Duration::from_secs(7);
        let runs = |service: &str, values: &[(&str, &str)]| Report {
            pid: Some(7),
            values: values.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            ..Report::stopped(service)
        };
        new.agent.listen = crate::setting::Item::parse("9470");
        let services = vec![
            // The interval is a flag's.
            runs("collect", &[("grace", "\"5m\""), ("log.level", "\"info\"")]),
            runs("docker", &[]),
            runs("repair", &[("path", "[\"/other\"]")]),
            Report::stopped("dhcp"),
        ];
        let status = |agent| Status { agent, services: services.clone() };
        let want = "starts dhcp\nstops docker\nrestarts repair: path\ntells collect: grace\n";
        assert_eq!(for_running(&status(None), &new).to_string(), want);
        let agent = Some(runs(AGENT, &[("listen", "")]));
        let told = want.replace("tells collect", "tells agent: listen\ntells collect");
        assert_eq!(for_running(&status(agent), &new).to_string(), told);
    }

    /// Its network configuration says whether pods start under network policy.
    #[test]
    fn routing_starts_again_when_network_policy_comes_or_goes() {
        let mut old = Config::default();
        old.routing.enable = true;
        let mut new = old.clone();
        new.policy.enable = true;
        assert_eq!(
            between(&old, &new).to_string(),
            "starts policy\nrestarts routing: policy.enable\n"
        );
        // `routing` does not read the other keys of that table.
        old.policy.enable = true;
        new.policy.interval = Duration::from_secs(7);
        assert_eq!(between(&old, &new).to_string(), "tells policy: interval\n");
    }

    #[test]
    fn a_service_starts_again_only_when_it_must() {
        let mut old = Config::default();
        (old.collect.enable, old.dhcp.enable, old.repair.enable) = (true, true, true);
        assert!(between(&old, &old).is_empty());
        let mut new = old.clone();
        new.repair.enable = false;
        // The service stops, so this key does not matter.
        new.repair.interval = Duration::from_secs(1);
        new.docker.enable = true;
        new.collect.grace = Duration::from_secs(7);
        new.dhcp.timeout = Duration::from_secs(7);
        new.log.level.0 = crate::config::LogLevel::Debug;
        new.agent.listen = crate::setting::Item::parse("9470");
        assert_eq!(
            between(&old, &new).to_string(),
            "starts docker\nstops repair\nrestarts dhcp: log.level, timeout\n\
             tells agent: listen\ntells collect: log.level, grace\n"
        );
    }
}
