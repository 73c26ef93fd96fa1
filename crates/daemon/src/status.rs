//! What is known of all services: what each says at its status socket, and what its supervisor
//! knows of its process.

use std::path::Path;
use std::thread;
use std::time::Duration;

use agent::keys;
use agent::load::Surroundings;
use agent::report::{AGENT, Report, State, Status};
use agent::{Config, accepted};
use state::Roots;

use crate::attendant;
use crate::exchange::{NoAnswer, ask};
use crate::systemd;

/// How long a service may take to answer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How long the supervisor may take, which asks the services.
const LONG_TIMEOUT: Duration = Duration::from_secs(3);

/// Asks the supervisor, or, where there is none, each service.
pub(crate) fn look(roots: &Roots, file: &Path, around: Surroundings) -> Status {
    let agent = match ask_for::<Status>(roots, AGENT, LONG_TIMEOUT) {
        Ok(status @ Status { agent: Some(_), .. }) => return status,
        // A process answers for all services and has started none.
        Ok(_) | Err(NoAnswer::Nobody(_)) => None,
        Err(error) => Some(Report {
            state: State::Hung,
            why: Some(error.to_string()),
            ..Report::stopped(AGENT)
        }),
    };
    let config = accepted::standing(file, roots, around).map(|standing| standing.loaded.config);
    let services = unsupervised(roots, &config.unwrap_or_default());
    let accepted = accepted::read(roots, around);
    let is_configured =
        file.exists() || accepted.is_some_and(|accepted| !accepted.sources.is_empty());
    Status {
        agent,
        services: services
            .into_iter()
            .filter_map(|one| without_disabled(one, is_configured))
            .collect(),
    }
}

/// Leaves out the socket of a killed service that is no longer enabled. Where nothing says what is
/// enabled, as on a node whose services are in containers, a service that left its socket is missed.
fn without_disabled(report: Report, is_configured: bool) -> Option<Report> {
    match report.enabled || report.state != State::Stopped {
        true => Some(report),
        false if is_configured => None,
        false => {
            let why = Some("no process answers at its socket".to_owned());
            Some(Report { enabled: true, why, ..report })
        }
    }
}

/// Asks the services that are enabled or that have a socket, and systemd of those that do not
/// answer.
fn unsupervised(roots: &Roots, config: &Config) -> Vec<Report> {
    let found = enabled(roots, config).into_iter();
    match systemd::manages() {
        true => found
            .map(|report| match report.state {
                State::Stopped => systemd::known(report),
                _ => report,
            })
            .collect(),
        false => found.collect(),
    }
}

/// Asks the services that are enabled or that have a socket.
pub(crate) fn enabled(roots: &Roots, config: &Config) -> Vec<Report> {
    let report = |service| {
        let enabled = keys::is_enabled(config, service);
        let seen = attendant::socket(roots, service).exists();
        (enabled || seen).then(|| Report {
            enabled,
            hint: enabled.then(|| "netwrightd starts every enabled service".to_owned()),
            ..Report::stopped(service)
        })
    };
    let known: Vec<Report> = keys::services().filter_map(report).collect();
    gather(roots, known, Processes::Unknown)
}

/// Whether the processes of services are known, as to a supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Processes {
    Known,
    Unknown,
}

/// Asks the services all at once, and adds what they say to what is known of their processes.
pub(crate) fn gather(roots: &Roots, known: Vec<Report>, of: Processes) -> Vec<Report> {
    thread::scope(|scope| {
        let asked: Vec<_> = known
            .into_iter()
            .map(|report| scope.spawn(move || with_answer(roots, report, of)))
            .collect();
        asked.into_iter().filter_map(|thread| thread.join().ok()).collect()
    })
}

fn with_answer(roots: &Roots, known: Report, of: Processes) -> Report {
    if of == Processes::Known && known.pid.is_none() {
        return with_last_words(roots, known);
    }
    match ask_for::<Report>(roots, &known.service, TIMEOUT) {
        // An earlier process's answer says nothing of this one.
        Ok(said) if known.pid.is_none() || known.pid == said.pid => {
            let Report { enabled, restarts, ended, .. } = known;
            // A container has a configuration of its own.
            Report { enabled: enabled || said.contained, restarts, ended, ..said }
        }
        Ok(_) | Err(NoAnswer::Nobody(_)) => with_last_words(roots, known),
        Err(error) => Report { state: State::Hung, why: Some(error.to_string()), ..known },
    }
}

/// Adds the error with which a service ended last.
fn with_last_words(roots: &Roots, known: Report) -> Report {
    let failed = attendant::read_last_words(roots, &known.service);
    Report { failed, ..known }
}

fn ask_for<T: serde::de::DeserializeOwned>(
    roots: &Roots,
    name: &str,
    timeout: Duration,
) -> Result<T, NoAnswer> {
    let (_, body) = ask(&attendant::socket(roots, name), "/status", timeout)?;
    serde_json::from_slice(&body).map_err(|error| NoAnswer::Failed(error.to_string()))
}
