//! What is known of all services: what each says at its status socket, and what its supervisor
//! knows of its process.

use std::path::Path;
use std::thread;
use std::time::Duration;

use agent::change::for_running;
use agent::keys;
use agent::load::{self, Surroundings};
use agent::report::{AGENT, Report, State, Status};
use agent::{Config, accepted};
use cni::order::sort_by_key;
use service_kit::attendant;
use service_kit::exchange::{NoAnswer, ask};
use service_kit::process::CONFIGURATION;
use state::Roots;

use crate::systemd;

/// The command by which a supervisor reads the configuration again.
const RELOAD: &str = "netwrightd agent reload";

/// How long a service may take to answer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How long the supervisor may take, which asks the services.
const LONG_TIMEOUT: Duration = Duration::from_secs(3);

/// Asks the supervisor, or, where there is none, each service.
pub(crate) fn look(roots: &Roots, file: &Path, around: Surroundings) -> Status {
    let agent = match ask_for::<Status>(roots, AGENT, LONG_TIMEOUT) {
        Ok(status @ Status { agent: Some(_), .. }) => {
            let file = file_of(&status).unwrap_or(file);
            return match load::load(file, around) {
                Ok(new) => with_unread(status, &new.config),
                Err(_) => status,
            };
        }
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

/// Returns the file from which the supervisor reads the configuration, if one runs.
pub(crate) fn file_of(status: &Status) -> Option<&Path> {
    status.agent.as_ref()?.configuration.as_deref()
}

/// Adds what the supervisor has not read of the configuration: services that it does not start, and
/// the command by which it reads the rest.
fn with_unread(mut status: Status, new: &Config) -> Status {
    let Some(agent) = &status.agent else { return status };
    let is_known = |name: &str| status.services.iter().any(|of| of.enabled && of.service == name);
    let mut change = for_running(&status, new);
    change.start.retain(|service| !is_known(service));
    change.stop.retain(|service| is_known(service));
    if change.is_empty() && agent.missing.iter().all(|missing| missing.what != CONFIGURATION) {
        return status;
    }
    let unread: Vec<String> = change.to_string().lines().map(ToOwned::to_owned).collect();
    let hint = match unread.is_empty() {
        true => RELOAD.to_owned(),
        false => format!("{RELOAD} ({})", unread.join("; ")),
    };
    status.agent = Some(Report { hint: Some(hint), ..agent.clone() });
    for service in change.start {
        let hint = Some(RELOAD.to_owned());
        status.services.push(Report { enabled: true, hint, ..Report::stopped(service) });
    }
    sort_by_key(&mut status.services, |report| report.service.clone());
    status
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
