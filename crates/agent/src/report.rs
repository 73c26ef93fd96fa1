//! What a service says of itself, and how people read it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use cni::text::one_line;
use serde::{Deserialize, Serialize};

use crate::metrics::Figure;

/// What a service is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It does not run.
    #[default]
    Stopped,
    /// It runs and does not serve yet.
    Starting,
    /// It can do its work.
    Ready,
    /// It serves, and something that it needs is missing.
    Waiting,
    /// Its loop, or the whole process, does not go on.
    Hung,
    /// It is ending.
    Stopping,
    /// It ended, although it is wanted.
    Failed,
}

impl State {
    /// Returns the word that people and programs read.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            State::Stopped => "stopped",
            State::Starting => "starting",
            State::Ready => "ready",
            State::Waiting => "waiting",
            State::Hung => "hung",
            State::Stopping => "stopping",
            State::Failed => "failed",
        }
    }
}

/// Something that a service needs and does not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmetNeed {
    /// What it is, such as `API server`.
    pub what: String,
    /// Why it is missing.
    pub why: String,
}

/// Something that a service logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// When, as in RFC 3339.
    pub at: String,
    /// The line.
    pub text: String,
}

/// What is known of a service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Its name.
    pub service: String,
    /// What it is doing.
    pub state: State,
    /// Whether the configuration wants it.
    pub enabled: bool,
    /// Whether it is in a container that a runtime confines, with a configuration of its own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub contained: bool,
    /// Since when it is in this state, as in RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Why it is in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The namespace in which that number is its process (`man 7 pid_namespaces`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<String>,
    /// The version of its executable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The file from which it reads the configuration, if it starts services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<PathBuf>,
    /// How often the supervisor has started it again.
    pub restarts: u32,
    /// How its process ended last, if it did so by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// How often it has read its configuration again.
    pub reloads: u64,
    /// What it needs and does not have.
    pub missing: Vec<UnmetNeed>,
    /// The values of the keys that it runs with, as TOML; without those that its flags set.
    pub values: BTreeMap<String, String>,
    /// Changed keys that count only once it starts again.
    pub outdated: Vec<String>,
    /// Which steps of its confinement its surroundings did not permit.
    pub unconfined: Vec<String>,
    /// What it logged last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub did: Option<LogLine>,
    /// The last error or warning that it logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<LogLine>,
    /// What it counts, for metrics.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Figure>,
    /// The command that helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Report {
    /// Returns the report of a service that does not run.
    #[must_use]
    pub fn stopped(service: &str) -> Self {
        Report { service: service.to_owned(), ..Report::default() }
    }

    /// Returns its process, if its number is one of this process's PID namespace. In another
    /// namespace the same number is another process.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        let own = pid_namespace();
        self.pid.filter(|_| own.is_some() && own == self.pid_namespace)
    }

    /// Returns why it cannot work, in one line; nothing if it can.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        if self.state == State::Ready {
            return None;
        }
        let missing = self.missing.iter().map(|one| format!("{}: {}", one.what, one.why));
        let all: Vec<String> = self.why.iter().cloned().chain(missing).collect();
        Some(match all.is_empty() {
            true => self.state.word().to_owned(),
            false => format!("{}: {}", self.state.word(), all.join("; ")),
        })
    }
}

/// Returns the name of this process's PID namespace.
#[must_use]
pub fn pid_namespace() -> Option<String> {
    let link = std::fs::read_link("/proc/self/ns/pid").ok()?;
    Some(link.display().to_string())
}

/// The name of the process that starts the services, in its report and in messages.
pub const AGENT: &str = "agent";

/// What is known of the whole agent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The process that starts the services; `None` if that is a service manager or a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<Report>,
    /// The services that are enabled or run.
    pub services: Vec<Report>,
}

impl Status {
    /// Reports whether every service that is enabled can do its work.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.wanted().all(|report| report.state == State::Ready)
    }

    /// Returns what keeps the agent from being ready, in one line.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let of = |report: &Report| Some(format!("{} {}", report.service, report.trouble()?));
        let all: Vec<String> = self.wanted().filter_map(of).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// Returns which of its processes do not go on, in one line.
    #[must_use]
    pub fn hung(&self) -> Option<String> {
        let hung = |report: &&Report| report.state == State::Hung;
        let of = |report: &Report| Some(format!("{} {}", report.service, report.trouble()?));
        let all: Vec<String> =
            self.agent.iter().chain(self.wanted()).filter(hung).filter_map(of).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    fn wanted(&self) -> impl Iterator<Item = &Report> {
        self.services.iter().filter(|report| report.enabled)
    }
}

/// What people read where no service is enabled.
const NONE: &str = "no service is enabled\nhint: set enable = true in the table of a service; \
                    netwrightd config default prints the tables\n";

/// Returns it as people read it: a line for each service, and more below it.
#[must_use]
pub fn text(status: &Status) -> String {
    let reports: Vec<&Report> = status.agent.iter().chain(&status.services).collect();
    let width = reports.iter().map(|report| report.service.len()).max().unwrap_or_default();
    let mut text = String::new();
    for report in reports {
        let since =
            report.since.as_deref().map_or(String::new(), |since| format!(" since {since}"));
        let is_service = status.agent.as_ref() != Some(report);
        let enabled = match report {
            Report { contained: true, .. } => " (in a container)",
            Report { enabled: false, .. } if is_service => " (not enabled)",
            _ => "",
        };
        let word = report.state.word();
        let _ = writeln!(text, "{:width$}  {word}{since}{enabled}", report.service);
        let mut more = |name: &str, value: &str| {
            let _ = writeln!(text, "{:width$}    {name}: {}", "", one_line(value));
        };
        if let Some(why) = &report.why {
            more("why", why);
        }
        for missing in &report.missing {
            more("missing", &format!("{}: {}", missing.what, missing.why));
        }
        if 0 < report.restarts {
            let ended = report.ended.as_ref().map_or(String::new(), |how| format!(" ({how})"));
            more("restarts", &format!("{}{ended}", report.restarts));
        }
        if let Some(did) = &report.did {
            more("last", &format!("{} ({})", did.text, did.at));
        }
        if let Some(failed) = &report.failed {
            more("last failure", &format!("{} ({})", failed.text, failed.at));
        }
        if !report.outdated.is_empty() {
            more("counts after a restart", &report.outdated.join(", "));
        }
        // The container's runtime confines it, and nobody can permit more there.
        for step in report.unconfined.iter().filter(|_| !report.contained) {
            more("less confined", step);
        }
        if let Some(hint) = &report.hint {
            more("hint", hint);
        }
    }
    if status.services.is_empty() {
        text.push_str(NONE);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn people_read_the_state_first() {
        let ready = Report {
            service: "dhcp".to_owned(),
            state: State::Ready,
            enabled: true,
            since: Some("2026-11-24T02:00:00Z".to_owned()),
            did: Some(LogLine {
                at: "2026-11-24T02:00:01Z".to_owned(),
                text: "bound\nforged".to_owned(),
            }),
            ..Report::default()
        };
        let waiting = Report {
            service: "multinet".to_owned(),
            state: State::Waiting,
            enabled: true,
            restarts: 2,
            ended: Some("signal 9 ended it".to_owned()),
            missing: vec![UnmetNeed { what: "API server".to_owned(), why: "refused".to_owned() }],
            ..Report::default()
        };
        let contained = Report {
            contained: true,
            unconfined: vec!["cannot move to mounts of its own: EPERM".to_owned()],
            state: State::Ready,
            ..Report::stopped("ipam")
        };
        let services = vec![ready.clone(), contained, waiting.clone(), Report::stopped("repair")];
        let status = Status { agent: None, services };
        expect![[r#"
            dhcp      ready since 2026-11-24T02:00:00Z
                        last: bound\nforged (2026-11-24T02:00:01Z)
            ipam      ready (in a container)
            multinet  waiting
                        missing: API server: refused
                        restarts: 2 (signal 9 ended it)
            repair    stopped (not enabled)
        "#]]
        .assert_eq(&text(&status));
        assert_eq!(status.trouble().unwrap(), "multinet waiting: API server: refused");
        assert_eq!(status.hung(), None);
        let hung = Report { state: State::Hung, enabled: true, ..Report::stopped("dhcp") };
        let hung = Status { agent: None, services: vec![waiting.clone(), hung] };
        assert_eq!(hung.hung().unwrap(), "dhcp hung");
        let services = vec![ready, Report::stopped("repair")];
        assert!(!status.is_ready() && Status { agent: None, services }.is_ready());
        assert!(text(&Status::default()).starts_with("no service is enabled"));
        assert_eq!(waiting.trouble().unwrap(), "waiting: API server: refused");
        let read: Report = serde_json::from_str(&serde_json::to_string(&waiting).unwrap()).unwrap();
        assert_eq!(read, waiting);
    }
}
