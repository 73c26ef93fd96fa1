//! The node daemon: work that a program which is called and ends cannot do.
//!
//! Each of its services ([`services`]) is a process of its own, and a crate beside this one. While
//! it is down, the network keeps working.
//!
//! | file | what it is |
//! |---|---|
//! | `config_command`, `agent_command`, `removal`, `reference` | the commands that concern no service alone |
//! | `confinement` | gives a service its rights, where no service manager does |
//! | `generator`, `systemd` | systemd starts the enabled services |
//! | `supervisor` | `netwrightd` alone: starts the enabled services and looks after them |
//! | `status` | what all services say |
//! | `probes`, `serve` | `/livez`, `/readyz` and `/metrics` of all services, by TCP, and where systemd starts them |
//!
//! What every service has, such as its log and its status, is in the crate `service-kit`.
//!
//! Only this file reads the arguments and the environment.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod agent_command;
mod config_command;
mod confinement;
mod generator;
mod probes;
mod reference;
mod removal;
mod serve;
mod services;
mod status;
mod supervisor;
mod systemd;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent::load::Surroundings;
use clap::{Arg, ArgAction, Command};
use kernel::heap::Heap;
use service_kit::health::{Health, Manager};
use service_kit::process::variable;
use service_kit::process::{ConfigReader, Process};
use service_kit::service::Service;
use service_kit::stdio::{all_of, complain, say};
use service_kit::stop::{Stop, failed};
use service_kit::{attendant, command_line, log, own_user};
use signal_hook::consts::SIGHUP;

use confinement::ConfinementOutcome;

/// A service may have hundreds of thousands of small blocks, those of thousands of nodes: musl's
/// allocator takes more time for each. This one takes more room while a list is read
/// (docs/evidence/measurements.md).
#[global_allocator]
static HEAP: Heap = Heap::new();

/// The exit code for wrong flags, as Go's flag package and clap have it.
const USAGE: u8 = 2;
/// The exit code for a wrong configuration (`sysexits.h` EX_CONFIG, which systemd names).
const CONFIGURATION: u8 = 78;
/// The exit code of everything else that fails.
const FAILED: u8 = 1;

fn main() -> ExitCode {
    // Does what std does, but escapes the message: a panic may quote text of other programs, and
    // terminals and journals obey escape sequences in it.
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        complain(&cni::text::lines(format_args!("thread {name:?} {info}\n")));
    }));
    let environment: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    let program = if arguments.is_empty() { OsString::new() } else { arguments.remove(0) };
    let variable = |name: &str| variable(&environment, name);
    let in_pod = variable("KUBERNETES_SERVICE_HOST").is_some_and(|host| !host.is_empty());
    let around = Surroundings { api_server: in_pod, ..Surroundings::default() };
    let word = arguments.first().and_then(|word| word.to_str()).unwrap_or_default();
    let done = match services::find(word) {
        Some(service) => {
            arguments.remove(0);
            let done = run_service(service, arguments, environment.clone(), around);
            if let Err(Stop::Failed(error)) = &done {
                let name = service.table().name;
                attendant::leave_last_words(&roots(&environment), name, error);
            }
            done
        }
        None if Path::new(&program).file_name() == Some(OsStr::new(generator::NAME)) => {
            generator::run(&arguments, &roots(&environment))
        }
        None => other_command(&arguments, around, &environment),
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
            log::start("", None, &agent::config::Log::default(), None, journal, None);
            tracing::error!("{message}");
            ExitCode::FAILURE
        }
        Err(Stop::Said(code)) => ExitCode::from(code),
    }
}

/// Runs a service until a signal ends it.
fn run_service(
    service: &'static Service,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    around: Surroundings,
) -> Result<(), Stop> {
    // A user may ask for a reload as soon as the process is there.
    let hung_up = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGHUP, Arc::clone(&hung_up))
        .map_err(|error| Stop::Failed(format!("listen for SIGHUP: {error}")))?;
    let roots = roots(&environment);
    let invocation = command_line::read(service, &arguments, around, &roots)?;
    let (name, config) = (service.table().name, invocation.config());
    if invocation.only_prepares() {
        let user = own_user::of_state(name, &roots).map_err(failed)?;
        return own_user::prepare(name, config, &roots, user).map_err(Stop::Failed);
    }
    let ConfinementOutcome { undone, socket } = match invocation.is_confined() {
        true => confinement::apply(name, config, &roots, &environment)?,
        false => ConfinementOutcome::default(),
    };
    // A process that becomes another user forgets this (man 2 PR_SET_PDEATHSIG).
    if let Some(parent) = variable(&environment, supervisor::VARIABLE) {
        supervisor::follow(parent)?;
    }
    let follows = invocation.follows();
    let health = Health::new(name, manager(&environment), config.agent.watchdog);
    let journal = variable(&environment, "JOURNAL_STREAM").is_some();
    let level = variable(&environment, "NETWRIGHT_LOG");
    // The lines of several services are in one log.
    let label = variable(&environment, supervisor::VARIABLE).map(|_| name);
    let log = log::start(name, label, &config.log, level, journal, Some(health.clone()));
    let is_contained = follows.is_some() && invocation.is_confined();
    if is_contained {
        health.is_contained();
    }
    for step in &undone {
        let why = &step.source;
        // The container's runtime confines it, and permits no more.
        match is_contained {
            true => tracing::info!(%why, "confined by its container: cannot {step}"),
            false => tracing::warn!(%why, "less confined than its rights say: cannot {step}"),
        }
    }
    let undone = undone.iter().map(|step| format!("cannot {step}: {}", step.source));
    health.is_less_confined(undone.collect());
    let (again, same) = (Arc::new(AtomicBool::new(false)), arguments.clone());
    let reread: ConfigReader = Arc::new(move || {
        let read = command_line::read(service, &arguments, around, &roots)?;
        (service.check)(&read)?;
        Ok(read.loaded.config)
    });
    // Only root can open that socket again.
    let is_other = socket.is_some();
    let socket = Arc::new(Mutex::new(socket));
    let process = Process {
        environment,
        health,
        log,
        reread,
        hung_up,
        socket,
        follows,
        again: Arc::clone(&again),
    };
    let done = (service.run)(&invocation, &process);
    done.map_err(|stop| if invocation.takes_off() { print_failure(stop) } else { stop })?;
    match again.load(Ordering::SeqCst) {
        true if is_other => {
            Err(Stop::Failed("the changed configuration needs another start, by root".to_owned()))
        }
        true => Err(start_again(name, same)),
        false => Ok(()),
    }
}

/// Runs the service anew in place of this process, which keeps its confinement.
fn start_again(service: &str, arguments: Vec<OsString>) -> Stop {
    #[expect(clippy::disallowed_methods, reason = "it is this program")]
    let mut command = std::process::Command::new("/proc/self/exe");
    let arguments = command_line::without_confinement(arguments);
    let error = command.arg0("netwrightd").arg(service).args(arguments).exec();
    Stop::Failed(format!("start again: {error}"))
}

/// Returns the service manager.
fn manager(environment: &[(OsString, OsString)]) -> Manager {
    let socket = environment.iter().find(|(key, _)| key == "NOTIFY_SOCKET");
    // The variable may be meant for another process, which started this one.
    let is_ours = variable(environment, "WATCHDOG_PID")
        .is_none_or(|pid| pid == std::process::id().to_string());
    let micros = variable(environment, "WATCHDOG_USEC").and_then(|text| text.parse().ok());
    Manager {
        socket: socket.map(|(_, value)| value.clone()),
        watchdog: micros.filter(|_| is_ours).map(Duration::from_micros),
    }
}

/// Returns where our files are.
fn roots(environment: &[(OsString, OsString)]) -> state::Roots {
    state::Roots::of_environment(|name| {
        let found = environment.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.clone())
    })
}

/// Runs a command that is not a service.
fn other_command(
    arguments: &[OsString],
    around: Surroundings,
    environment: &[(OsString, OsString)],
) -> Result<(), Stop> {
    // What clap says of a service that does not exist names the nearest one.
    let matches = command().no_binary_name(true).try_get_matches_from(arguments);
    let matches = matches.map_err(command_line::refusal)?;
    let roots = roots(environment);
    match matches.subcommand() {
        Some(("agent", matches)) => match matches.subcommand() {
            Some(("serve", matches)) => {
                let file = command_line::configuration_of(matches);
                serve::run(&file, around, environment, &roots, manager(environment))
            }
            _ => agent_command::run(matches, around, &roots).map_err(print_failure),
        },
        Some(("config", matches)) => config_command::run(matches, around).map_err(print_failure),
        Some(("policies", matches)) => {
            policy_service::command::run(matches, &roots).map_err(print_failure)
        }
        Some(("routes", matches)) => routing_service::command::run(matches).map_err(print_failure),
        Some(("completions", matches)) => {
            reference::completions(matches, command()).map_err(print_failure)
        }
        Some(("man", matches)) => reference::man(matches, command()).map_err(print_failure),
        _ => {
            let file = command_line::configuration_of(&matches);
            agent_command::is_there(&matches, &file)?;
            supervisor::run(file, around, environment, &roots, manager(environment))
        }
    }
}

/// Prints why a command of a person's failed. Only what goes on running logs.
fn print_failure(stop: Stop) -> Stop {
    let Stop::Failed(message) = stop else { return stop };
    complain(&format!("error: {message}\n"));
    Stop::Said(FAILED)
}

/// Returns the whole command line.
fn command() -> Command {
    let mut command = Command::new("netwrightd")
        .about("The node agent: services that attach, repair and collect on their own")
        .version(env!("CARGO_PKG_VERSION"))
        .disable_version_flag(true)
        .disable_help_subcommand(true)
        .override_usage("netwrightd [--configuration FILE]\n       netwrightd <COMMAND>")
        .after_help(
            "Without a command, netwrightd starts every service that the configuration enables, each as a \
             process of its own with its own rights, and supervises them. Where systemd starts the \
             services, this is not needed.",
        )
        .args_conflicts_with_subcommands(true)
        .arg(command_line::configuration())
        .arg(
            Arg::new("version")
                .long("version")
                .short('V')
                .action(ArgAction::Version)
                .help("Print the version"),
        );
    for name in agent::keys::services() {
        let Some(service) = services::find(name) else { continue };
        command = command
            .subcommand(command_line::command(service.table(), &(service.more_flags)()).name(name));
    }
    command
        .subcommand(agent_command::command())
        .subcommand(config_command::command())
        .subcommand(policy_service::command::command())
        .subcommand(routing_service::command::command())
        .subcommands(reference::commands())
}
