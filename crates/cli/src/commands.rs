//! The commands.

pub(crate) mod attach;
pub(crate) mod cnitool;
pub(crate) mod conformance;
pub(crate) mod doctor;
pub(crate) mod gc;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod install;
pub(crate) mod lint;
pub(crate) mod list;
pub(crate) mod names;
pub(crate) mod oci_hook;
pub(crate) mod probe;
pub(crate) mod repair;
pub(crate) mod run;
pub(crate) mod setup;
pub(crate) mod status;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use cni::code;
use serde::Serialize;

use crate::VERSION;
use crate::args::{Command, CommandLine, Common};
use crate::daemon_process;
use crate::failure::{EXIT_ENVIRONMENT, EXIT_USAGE, Failure};
use crate::shell::{Format, Report, Shell};
use crate::world::World;

/// What a command returns: the exit code, which may be other than 0 without a failure.
pub(crate) type Outcome = Result<ExitCode, Failure>;

/// Runs the command line.
pub(crate) fn main(
    program: OsString,
    arguments: Vec<OsString>,
    world: &World,
    shell: &mut Shell,
) -> ExitCode {
    if asks_for_json(&arguments) {
        shell.format = Format::Json;
    }
    if let [asked, kind] = &arguments[..]
        && asked == names::ASKED
    {
        names::main(kind, world, shell);
        return ExitCode::SUCCESS;
    }
    if let [one, other] = &arguments[..]
        && ["--version", "-V"].iter().any(|asked| one == asked)
        && other == "--verbose"
    {
        shell.raw(about_this_build().as_bytes());
        return if shell.lost() { ExitCode::from(EXIT_ENVIRONMENT) } else { ExitCode::SUCCESS };
    }
    let parsed = CommandLine::try_parse_from(std::iter::once(program).chain(arguments));
    let line = match parsed {
        Ok(line) => line,
        Err(error) => return explain(&error, shell),
    };
    shell.format = line.common.output;
    let outcome = match &line.command {
        _ if line.list => {
            shell.print(&PluginList {
                plugins: plugins::all().iter().map(|plugin| plugin.name()).collect(),
            });
            Ok(ExitCode::SUCCESS)
        }
        None => {
            shell.raw(crate::args::command().render_help().to_string().as_bytes());
            return ExitCode::from(EXIT_USAGE);
        }
        Some(command) => dispatch(command, &line, world, shell),
    };
    match outcome {
        Ok(code) if code == ExitCode::SUCCESS && shell.lost() => ExitCode::from(EXIT_ENVIRONMENT),
        Ok(code) => code,
        Err(failure) => {
            shell.fail(&failure);
            failure.exit_code()
        }
    }
}

/// Returns the version, and what the executable is linked with.
fn about_this_build() -> String {
    let library = match (cfg!(target_env = "musl"), cfg!(target_feature = "crt-static")) {
        (true, _) => "musl, by Rust's target for it",
        (false, true) => "musl, by Rust's target for GNU systems",
        (false, false) => "the system's",
    };
    let architecture = std::env::consts::ARCH;
    format!("netwright {VERSION}\narchitecture: {architecture}\nC library: {library}\n")
}

fn dispatch(command: &Command, line: &CommandLine, world: &World, shell: &mut Shell) -> Outcome {
    let common = &line.common;
    refuse_missing_folder(command, common, world)?;
    match command {
        Command::Run(args) => run::main(args, common, world, shell),
        Command::Probe(args) => probe::main(args, shell),
        Command::Add(args) => attach::add(args, common, world, shell),
        Command::Del(args) => attach::del(args, common, world, shell),
        Command::Check(args) => attach::check(args, common, world, shell),
        Command::Status(args) => status::main(args, common, world, shell),
        Command::Gc(args) => gc::main(args, common, world, shell),
        Command::Repair(args) => repair::main(args, common, world, shell),
        Command::Doctor(args) => doctor::main(args, common, world, shell),
        Command::Agent(args) => Ok(become_daemon("agent", &args.arguments, common)),
        Command::Routes(args) => Ok(become_daemon("routes", &args.arguments, common)),
        Command::Policy(args) => Ok(become_daemon("policies", &args.arguments, common)),
        Command::List(args) => list::main(args, common, world, shell),
        Command::Inspect(args) => inspect::main(args, common, world, shell),
        Command::Lint(args) => lint::main(args, common, world, shell),
        Command::Install(args) => install::install(args, common, world, shell),
        Command::Uninstall(args) => install::uninstall(args, common, world, shell),
        Command::Setup(args) => setup::main(args, common, world, shell),
        Command::Conformance(args) => conformance::main(args, world, shell),
        Command::OciHook(args) => oci_hook::main(args, common, world, shell),
        Command::Completions(args) => generate::completions(args, shell),
        Command::Man(args) => generate::man(args, world, shell),
    }
}

/// Refuses a folder of networks that is named and is not there, where a command reads it: it would
/// take every network for deleted. Other commands create it, or remove something without it.
fn refuse_missing_folder(command: &Command, common: &Common, world: &World) -> Result<(), Failure> {
    let reads = matches!(
        command,
        Command::Run(_)
            | Command::Add(_)
            | Command::Check(_)
            | Command::Status(_)
            | Command::Gc(_)
            | Command::Repair(_)
            | Command::Doctor(_)
            | Command::List(_)
            | Command::Inspect(_)
    );
    let named =
        common.conf_dir.as_ref().filter(|_| reads).map(|named| world.absolute(named.clone()));
    match named {
        Some(folder) if !folder.is_dir() => {
            let text = format!("--conf-dir: {} is not a folder", folder.display());
            Err(Failure::new(code::INVALID_CONFIG, text))
        }
        _ => Ok(()),
    }
}

/// Runs a command of `netwrightd`. It knows one of the common options.
fn become_daemon(command: &str, arguments: &[OsString], common: &Common) -> ExitCode {
    let output = match common.output {
        Format::Json => &["--output", "json"][..],
        Format::Text => &[],
    };
    let arguments: Vec<OsString> =
        arguments.iter().cloned().chain(output.iter().map(OsString::from)).collect();
    daemon_process::become_it(command, &arguments)
}

/// Says whether the arguments request JSON, before they are known to be valid. A usage error is
/// answered in the requested form.
fn asks_for_json(arguments: &[OsString]) -> bool {
    let ours: Vec<_> = arguments
        .iter()
        .take_while(|argument| *argument != "--")
        .filter_map(|a| a.to_str())
        .collect();
    ours.iter().any(|argument| matches!(*argument, "--output=json" | "-ojson" | "-o=json"))
        || ours.windows(2).any(|pair| matches!(pair, ["--output" | "-o", "json"]))
}

/// Prints help to standard output, and usage errors where errors go.
fn explain(error: &clap::Error, shell: &mut Shell) -> ExitCode {
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            shell.raw(text.as_bytes());
            if shell.lost() { ExitCode::from(EXIT_ENVIRONMENT) } else { ExitCode::SUCCESS }
        }
        _ if shell.format == Format::Json => {
            shell.fail(&usage(&text));
            ExitCode::from(EXIT_USAGE)
        }
        _ => {
            shell.say(text.trim_end());
            ExitCode::from(EXIT_USAGE)
        }
    }
}

/// Splits clap's message: the first paragraph says what is wrong, with a list below it where there
/// are several; `tip:` says what to do. The usage is in the command's help.
fn usage(text: &str) -> Failure {
    let mut lines = text.lines().map(str::trim);
    let first = lines.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    let rest: Vec<&str> = lines.collect();
    let listed: Vec<&str> = rest.iter().copied().take_while(|line| !line.is_empty()).collect();
    let message = match listed.is_empty() {
        true => first,
        false => format!("{first} {}", listed.join(", ")),
    };
    let tips = rest.iter().filter_map(|line| line.strip_prefix("tip: "));
    tips.fold(Failure::usage(message), Failure::hint)
}

#[derive(Debug, Serialize)]
struct PluginList {
    plugins: Vec<&'static str>,
}

impl Report for PluginList {
    fn text(&self) -> String {
        self.plugins.iter().map(|name| format!("{name}\n")).collect()
    }
}
