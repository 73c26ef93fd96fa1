//! `netwrightd agent`: all services at once, as people and scripts need them.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use agent::change::{Change, for_running};
use agent::load::{LoadedConfig, Surroundings};
use agent::metrics;
use agent::report::{self, AGENT, Report, State, Status};
use agent::setting::Setting as _;
use agent::{accepted, keys};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use service_kit::command_line::{self, is_json, json, output};
use service_kit::process::CONFIGURATION;
use service_kit::stdio;
use service_kit::stop::Stop;
use state::Roots;

use crate::removal;
use crate::status::{self, look};
use crate::systemd;

const WAIT: &str = "wait";
const DRY_RUN: &str = "dry-run";
const LIVE: &str = "live";
const SERVICES: &str = "service";
const DAEMON_SETS: &str = "daemon-sets";
const KUBECONFIG: &str = "kubeconfig";
const TIMEOUT: &str = "timeout";

/// The exit code when a service is not ready, or does not follow.
const NOT_READY: u8 = 1;
/// The pause between looks while a user waits.
const PAUSE: Duration = Duration::from_millis(200);
/// How long services have to read their configuration again.
const TIME_TO_READ: Duration = Duration::from_secs(10);

/// Returns the command.
pub(crate) fn command() -> Command {
    let wait = Arg::new(WAIT)
        .long(WAIT)
        .value_name("DURATION")
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("60s")
        .help("wait until every enabled service is ready, at most so long");
    let names = PossibleValuesParser::new(keys::services().collect::<Vec<_>>());
    let services = Arg::new(SERVICES)
        .value_name("SERVICE")
        .num_args(0..)
        .value_parser(names)
        .help("only these services, as if they were enabled");
    let live = Arg::new(LIVE)
        .long(LIVE)
        .action(ArgAction::SetTrue)
        .help("exit code 0 unless a service hangs or does not run, even if it waits for something");
    let dry_run = Arg::new(DRY_RUN)
        .long(DRY_RUN)
        .action(ArgAction::SetTrue)
        .help("say what would start, stop and restart, and change nothing");
    Command::new("agent")
        .about("Shows what the services do, and has them read their configuration again")
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .subcommand(leave_command())
        .subcommand(
            Command::new("metrics")
                .about("Prints what the services count, as Prometheus reads it")
                .arg(command_line::configuration())
                .after_help(
                    "For a collector that reads files:\n  netwrightd agent metrics >/var/lib/prometheus/node-exporter/netwright.prom",
                ),
        )
        .subcommand(
            Command::new("reload")
                .about("Checks the configuration, and has the services read it if it is sound")
                .arg(command_line::configuration())
                .arg(dry_run)
                .arg(output()),
        )
        .subcommand(
            Command::new("serve")
                .about("Answers /livez, /readyz and /metrics of all services, where something else starts them")
                .arg(command_line::configuration())
                .after_help(
                    "It answers at the agent's socket and where [agent] listen says. netwrightd without a command \
                     does that itself; with systemd, netwrightd@agent.service runs this command where listen is set.",
                ),
        )
        .subcommand(
            Command::new("status")
                .about("Shows what each service does; exit code 0 if every enabled one is ready")
                .arg(command_line::configuration())
                .arg(output())
                .arg(wait)
                .arg(live)
                .arg(services)
                .after_help(
                    "Examples:\n  netwrightd agent status --wait\n  netwrightd agent status -o json\n  netwrightd agent status multinet",
                ),
        )
}

/// Returns the command that the chart runs before it is uninstalled.
fn leave_command() -> Command {
    let file = |name: &'static str| Arg::new(name).long(name).value_name("FILE");
    Command::new("leave")
        .about("Turns all nodes of a cluster back to what they were, and names those that are not")
        .arg(
            file(DAEMON_SETS)
                .required(true)
                .help("the chart's DaemonSets with mode: remove, as a JSON list"),
        )
        .arg(file(KUBECONFIG).help("how to reach the API server [default: as a pod does]"))
        .arg(
            Arg::new(TIMEOUT)
                .long(TIMEOUT)
                .value_name("DURATION")
                .default_value("50m")
                .help("wait for the nodes at most so long"),
        )
        .after_help(
            "The chart calls it before helm uninstall. Containers that run keep their networks until they end; \
             exit code 1 if a node is not turned back in time.",
        )
}

fn leave(matches: &ArgMatches) -> Result<(), Stop> {
    let file = |name: &str| matches.get_one::<String>(name).map(Path::new);
    let mut timeout = Duration::ZERO;
    let text = matches.get_one::<String>(TIMEOUT).map(String::as_str).unwrap_or_default();
    timeout.read_flag(text).map_err(|wanted| {
        Stop::Usage(format!("error: --{TIMEOUT} must be {}, and not {text:?}\n", wanted.0))
    })?;
    removal::run(file(DAEMON_SETS).unwrap_or(Path::new("")), file(KUBECONFIG), timeout)
}

/// Runs one of its commands.
pub(crate) fn run(matches: &ArgMatches, around: Surroundings, roots: &Roots) -> Result<(), Stop> {
    let user = rustix::process::geteuid();
    if matches.subcommand_name() != Some("leave") && !user.is_root() {
        return Err(Stop::Failed(format!(
            "services answer root alone, and this is user {}: call it as root",
            user.as_raw()
        )));
    }
    match matches.subcommand() {
        Some(("leave", matches)) => leave(matches),
        Some(("reload", matches)) => reload(matches, around, roots),
        Some(("metrics", matches)) => print_metrics(matches, around, roots),
        Some(("status", matches)) => status(matches, around, roots),
        _ => Ok(()),
    }
}

fn print_metrics(matches: &ArgMatches, around: Surroundings, roots: &Roots) -> Result<(), Stop> {
    let file = command_line::configuration_of(matches);
    let found = look(roots, &file, around);
    file_that_counts(matches, &found)?;
    stdio::say(&metrics::of_all(&found));
    Ok(())
}

fn status(matches: &ArgMatches, around: Surroundings, roots: &Roots) -> Result<(), Stop> {
    let file = command_line::configuration_of(matches);
    let deadline = match matches.get_one::<String>(WAIT) {
        None => None,
        Some(text) => {
            let mut wait = Duration::ZERO;
            wait.read_flag(text).map_err(|wanted| {
                Stop::Usage(format!("error: --{WAIT} must be {}, and not {text:?}\n", wanted.0))
            })?;
            Some(Instant::now() + wait)
        }
    };
    let only: Vec<&String> = matches.get_many(SERVICES).into_iter().flatten().collect();
    let mut told = None;
    let (found, file) = loop {
        let found = look(roots, &file, around);
        let counts = file_that_counts(matches, &found)?;
        let found = select(found, &only);
        let trouble = trouble(&found, matches.get_flag(LIVE));
        if trouble.is_none() || deadline.is_none_or(|deadline| deadline <= Instant::now()) {
            break (found, counts);
        }
        if trouble != told {
            stdio::complain(&format!("waiting: {}\n", trouble.clone().unwrap_or_default()));
            told = trouble;
        }
        sleep(PAUSE);
    };
    let is_live = matches.get_flag(LIVE);
    let refused = match is_live {
        true => Vec::new(),
        false => accepted::standing(&file, roots, around)
            .map_or_else(|problems| problems, |standing| standing.refused),
    };
    if is_json(matches) {
        stdio::say(&json(&found));
    } else if refused.is_empty() || found.agent.is_some() || !found.services.is_empty() {
        stdio::say(&report::text(&found));
    }
    match trouble(&found, is_live) {
        Some(_) => Err(Stop::Said(NOT_READY)),
        None if refused.is_empty() => Ok(()),
        None => Err(Stop::Configuration(refused)),
    }
}

/// Returns what is wrong with the enabled services that are not ready, or, with `live`, that hang
/// or do not run; also with a supervisor that hangs.
fn trouble(status: &Status, live: bool) -> Option<String> {
    let bears = |state| live && !matches!(state, State::Hung | State::Failed | State::Stopped);
    let mut status = status.clone();
    let agent = status.agent.iter().filter(|agent| agent.state == State::Hung);
    let agent = agent.filter_map(|agent| Some(format!("{AGENT} {}", agent.trouble()?)));
    let agent: Vec<String> = agent.collect();
    status.services.retain(|report| !bears(report.state));
    let all: Vec<String> = agent.into_iter().chain(status.trouble()).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// Keeps the services that the user names, if there are any; they count as enabled.
fn select(mut status: Status, only: &[&String]) -> Status {
    if only.is_empty() {
        return status;
    }
    status.agent = None;
    let known = std::mem::take(&mut status.services);
    status.services = only
        .iter()
        .map(|name| {
            let found = known.iter().find(|report| report.service == **name);
            let found = found.cloned().unwrap_or_else(|| Report {
                hint: Some(format!("it is not enabled: set enable = true in [{name}]")),
                ..Report::stopped(name)
            });
            Report { enabled: true, ..found }
        })
        .collect();
    status
}

/// Returns the file that says what is enabled: the supervisor's, if one runs. Fails if the user names
/// another one, or one that does not exist.
fn file_that_counts(matches: &ArgMatches, found: &Status) -> Result<PathBuf, Stop> {
    let named = command_line::configuration_of(matches);
    let Some(own) = status::file_of(found) else {
        // A supervisor that does not say it has read one.
        if found.agent.is_none() {
            is_there(matches, &named)?;
        }
        return Ok(named);
    };
    let is_named = matches.get_one::<String>(command_line::CONFIGURATION).is_some();
    let same = std::path::absolute(&named).is_ok_and(|named| named == own);
    match is_named && !same {
        true => Err(Stop::Failed(format!(
            "the agent that runs reads {}, and not {}",
            own.display(),
            named.display()
        ))),
        false => Ok(own.to_owned()),
    }
}

/// Fails if a file is named that does not exist.
pub(crate) fn is_there(matches: &ArgMatches, file: &Path) -> Result<(), Stop> {
    let named = matches.get_one::<String>(command_line::CONFIGURATION).is_some();
    match named && !file.exists() {
        true => Err(Stop::Failed(format!("{}: there is no such file", file.display()))),
        false => Ok(()),
    }
}

/// What `agent reload` says as JSON.
#[derive(Debug, Serialize)]
struct ReloadReport<'a> {
    #[serde(flatten)]
    change: &'a Change,
    dry_run: bool,
    /// The services that have not read it, and why.
    failed: &'a [String],
}

fn reload(matches: &ArgMatches, around: Surroundings, roots: &Roots) -> Result<(), Stop> {
    let status = look(roots, &command_line::configuration_of(matches), around);
    let file = file_that_counts(matches, &status)?;
    let before = accepted::read(roots, around).unwrap_or_default();
    let new = accepted::renewed(&file, &before, around).map_err(Stop::Configuration)?;
    let change = for_running(&status, &new.config);
    let dry_run = matches.get_flag(DRY_RUN);
    let text = !is_json(matches);
    if text {
        let nothing = "nothing starts, stops or restarts\n".to_owned();
        stdio::say(&if change.is_empty() { nothing } else { change.to_string() });
    }
    let failed = match (dry_run, &status.agent) {
        (true, _) => Vec::new(),
        (false, Some(agent)) => follow(roots, &file, around, std::slice::from_ref(agent), true),
        (false, None) if systemd::manages() => match accepted::write(roots, &new) {
            Ok(()) => systemd::apply(&change, &new.config),
            Err(error) => vec![cni::Error::from_chain(0, &error).msg],
        },
        (false, None) => have_services_read(roots, &file, around, &status, &new),
    };
    if !text {
        stdio::say(&json(&ReloadReport { change: &change, dry_run, failed: &failed }));
    }
    if failed.is_empty() {
        return Ok(());
    }
    for failure in &failed {
        stdio::complain(&format!("error: {failure}\n"));
    }
    Err(Stop::Said(NOT_READY))
}

/// Makes each running service read the configuration, where no supervisor does. Returns what is not
/// in force yet.
fn have_services_read(
    roots: &Roots,
    file: &Path,
    around: Surroundings,
    status: &Status,
    new: &LoadedConfig,
) -> Vec<String> {
    let mut failed = Vec::new();
    if let Err(error) = accepted::write(roots, new) {
        failed.push(cni::Error::from_chain(0, &error).msg);
    }
    // A container follows its own configuration.
    let here = |report: &&Report| report.pid.is_some() && !report.contained;
    let running: Vec<Report> = status.services.iter().filter(here).cloned().collect();
    failed.extend(follow(roots, file, around, &running, false));
    for service in keys::services() {
        let wanted = keys::is_enabled(&new.config, service);
        let runs = running.iter().any(|report| report.service == service);
        match (wanted, runs) {
            (true, false) => failed.push(format!(
                "{service} is enabled and does not run: netwrightd starts the enabled services, and so does its unit"
            )),
            (false, true) => failed.push(format!(
                "{service} runs and is not enabled: what started it must stop it"
            )),
            _ => {}
        }
    }
    failed
}

/// Sends SIGHUP to processes, and waits until each has read its configuration. Returns a sentence
/// for each that has not, or that has to restart.
fn follow(
    roots: &Roots,
    file: &Path,
    around: Surroundings,
    before: &[Report],
    is_agent: bool,
) -> Vec<String> {
    let mut failed = Vec::new();
    for report in before {
        let name = &report.service;
        let pid = report.process().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let Some(pid) = pid else {
            failed.push(format!("{name} is in another PID namespace: call this command there"));
            continue;
        };
        if let Err(error) = kill_process(pid, Signal::HUP) {
            failed.push(format!("{name} cannot be told: {error}"));
            continue;
        }
        let deadline = Instant::now() + TIME_TO_READ;
        loop {
            let found = look(roots, file, around);
            let now = match is_agent {
                true => found.agent,
                false => found.services.into_iter().find(|one| one.service == *name),
            };
            if let Some(now) = now.filter(|now| report.reloads < now.reloads) {
                if !now.outdated.is_empty() {
                    failed.push(format!("restart {name}: {} changed", now.outdated.join(", ")));
                }
                let wrong = now.missing.iter().find(|missing| missing.what == CONFIGURATION);
                failed.extend(wrong.map(|missing| format!("{name}: {}", missing.why)));
                break;
            }
            if deadline <= Instant::now() {
                failed.push(format!("{name} has not read its configuration in {TIME_TO_READ:?}"));
                break;
            }
            sleep(PAUSE / 10);
        }
    }
    failed
}
