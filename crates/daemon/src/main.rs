//! The node daemon: work that a program which is called and ends cannot do.
//!
//! Each of its services ([`services`]) is a process of its own. While it is down, the network keeps
//! working.
//!
//! [`command_line`] makes the services' flags from the keys of the configuration (the crate
//! `agent`); [`config_command`] is `netwrightd config`.
//!
//! Only this file reads the arguments and the environment.

#![cfg_attr(test, allow(clippy::unwrap_used))]

// Its tests are shared and refer to it by its full name.
#[cfg(test)]
extern crate cluster_ipam as netwright_cluster_ipam;

mod clock;
mod command_line;
mod config_command;
mod confinement;
mod log;
mod notify;
mod poll;
mod reference;
mod services;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use agent::Problem;
use agent::load::Surroundings;
use clap::{Arg, ArgAction, Command};

use services::{Service, Stop};

/// The exit code for wrong flags, as Go's flag package and clap have it.
const USAGE: u8 = 2;
/// The exit code for a wrong configuration (`sysexits.h` EX_CONFIG, which systemd names).
const CONFIGURATION: u8 = 78;

fn main() -> ExitCode {
    // Does what std does, but escapes the message: a panic may quote text of others, and terminals
    // and journals obey it.
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        complain(&cni::text::lines(format_args!("thread {name:?} {info}\n")));
    }));
    let environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let variable = |name: &str| {
        let found = environment.iter().find(|(key, _)| key == name);
        found.and_then(|(_, value)| value.to_str())
    };
    let in_pod = variable("KUBERNETES_SERVICE_HOST").is_some_and(|host| !host.is_empty());
    let around = Surroundings { api_server: in_pod, ..Surroundings::default() };
    let word = arguments.first().and_then(|word| word.to_str()).unwrap_or_default();
    let done = match Service::find(word) {
        Some(service) => {
            arguments.remove(0);
            command_line::read(service, &arguments, around).and_then(|invocation| {
                let (name, config) = (service.table().name, invocation.config());
                let undone = match invocation.is_confined() {
                    true => confinement::apply(name, config, &roots(&environment))?,
                    false => Vec::new(),
                };
                let journal = variable("JOURNAL_STREAM").is_some();
                log::start(name, &config.log, variable("NETWRIGHT_LOG"), journal);
                for step in undone {
                    let why = &step.source;
                    tracing::warn!(%why, "less confined than its rights say: cannot {step}");
                }
                (service.run)(&invocation, &environment)
            })
        }
        None => other_command(&arguments, around),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Print(text)) => say(&text),
        Err(Stop::Usage(message)) => {
            complain(&message);
            ExitCode::from(USAGE)
        }
        Err(Stop::Configuration(problems)) => {
            complain(&all_of(&problems));
            ExitCode::from(CONFIGURATION)
        }
        Err(Stop::Failed(message)) => {
            // Where no service has started, nothing logs.
            let journal = variable("JOURNAL_STREAM").is_some();
            log::start("", &agent::config::Log::default(), None, journal);
            tracing::error!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Returns where our files are.
fn roots(environment: &[(OsString, OsString)]) -> state::Roots {
    state::Roots::of_environment(|name| {
        let found = environment.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.clone())
    })
}

/// Runs a command that is no service.
fn other_command(arguments: &[OsString], around: Surroundings) -> Result<(), Stop> {
    let mut command = command();
    if arguments.is_empty() {
        return Err(Stop::Usage(command.render_help().to_string()));
    }
    // What clap says of a service that does not exist names the nearest one.
    let matches = command.no_binary_name(true).try_get_matches_from(arguments);
    let matches = matches.map_err(command_line::refusal)?;
    match matches.subcommand() {
        Some(("config", matches)) => config_command::run(matches, around),
        Some(("completions", matches)) => reference::completions(matches, self::command()),
        Some(("man", matches)) => reference::man(matches, self::command()),
        _ => Ok(()),
    }
}

/// Returns the whole command line.
fn command() -> Command {
    let mut command = Command::new("netwrightd")
        .about("The node agent: services that attach, repair and collect while nobody calls them")
        .version(env!("CARGO_PKG_VERSION"))
        .disable_version_flag(true)
        .disable_help_subcommand(true)
        .subcommand_required(true)
        .arg(
            Arg::new("version")
                .long("version")
                .short('V')
                .action(ArgAction::Version)
                .help("Print the version"),
        );
    for name in agent::keys::services() {
        let Some(service) = Service::find(name) else { continue };
        command = command
            .subcommand(command_line::command(service.table(), &(service.more_flags)()).name(name));
    }
    command.subcommand(config_command::command()).subcommands(reference::commands())
}

/// Returns every problem as people read it.
pub(crate) fn all_of(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("error: {problem}")).collect()
}

/// Prints the requested text. A reader that is gone is not an error.
pub(crate) fn say(text: &str) -> ExitCode {
    match print(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("write to standard output: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Writes to standard output; a reader that is gone is not an error.
fn print(text: &str) -> std::io::Result<()> {
    match kernel::stdout::Stdout.write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

pub(crate) fn complain(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
