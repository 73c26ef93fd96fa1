//! `netwrightd config`: the configuration as people and editors need it.

use std::ffi::OsString;
use std::path::PathBuf;

use agent::load::{self, Surroundings};
use agent::{Problem, schema, show};
use clap::{Arg, ArgMatches, Command};
use serde::Serialize;
use service_kit::command_line::{self, is_json, json, output};
use service_kit::stdio;
use service_kit::stop::Stop;

use crate::agent_command::is_there;

/// Returns the command.
pub(crate) fn command() -> Command {
    let flags = Arg::new("flags").value_name("SERVICE [FLAG…]").num_args(1..).last(true);
    Command::new("config")
        .about("Prints and checks the configuration")
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .subcommand(
            Command::new("check")
                .about("Says everything that is wrong with the configuration")
                .arg(command_line::configuration())
                .arg(output()),
        )
        .subcommand(
            Command::new("default")
                .about("Prints every key with its default, commented out, and what it means"),
        )
        .subcommand(
            Command::new("from-flags")
                .about("Prints the configuration that has the same effect as a service's flags")
                .arg(flags.required(true).help("a service and its flags, as after netwrightd")),
        )
        .subcommand(Command::new("schema").about("Prints the JSON schema, for editors"))
        .subcommand(
            Command::new("show")
                .about("Prints the effective values, each with the file and line that it is from")
                .arg(command_line::configuration())
                .arg(output()),
        )
}

/// What `config check` says as JSON.
#[derive(Debug, Serialize)]
struct CheckReport<'a> {
    files: &'a [PathBuf],
    problems: &'a [Problem],
}

/// Runs one of its commands.
pub(crate) fn run(matches: &ArgMatches, around: Surroundings) -> Result<(), Stop> {
    match matches.subcommand() {
        Some(("check", matches)) => check(matches, around),
        Some(("default", _)) => Err(Stop::Print(show::defaults())),
        Some(("schema", _)) => Err(Stop::Print(json(&schema::schema()))),
        Some(("show", matches)) => {
            let file = command_line::configuration_of(matches);
            is_there(matches, &file)?;
            let loaded = load::load(&file, around).map_err(Stop::Configuration)?;
            Err(Stop::Print(match is_json(matches) {
                true => json(&show::values(&loaded)),
                false => show::effective(&loaded),
            }))
        }
        Some(("from-flags", matches)) => from_flags(matches),
        _ => Ok(()),
    }
}

fn check(matches: &ArgMatches, around: Surroundings) -> Result<(), Stop> {
    let file = command_line::configuration_of(matches);
    is_there(matches, &file)?;
    let loaded = load::load(&file, around);
    let (files, problems) = match &loaded {
        Ok(loaded) => (loaded.files.as_slice(), [].as_slice()),
        Err(problems) => ([].as_slice(), problems.as_slice()),
    };
    if is_json(matches) {
        stdio::say(&json(&CheckReport { files, problems }));
        return match problems {
            [] => Ok(()),
            _ => Err(Stop::Configuration(Vec::new())),
        };
    }
    let loaded = loaded.map_err(Stop::Configuration)?;
    let text = match loaded.files.as_slice() {
        [] => format!("{}: not there: every key has its default\n", file.display()),
        files => files.iter().map(|file| format!("{}: sound\n", file.display())).collect(),
    };
    Err(Stop::Print(text))
}

fn from_flags(matches: &ArgMatches) -> Result<(), Stop> {
    let words = matches.get_many::<String>("flags").into_iter().flatten();
    let words: Vec<OsString> = words.map(OsString::from).collect();
    let Some((name, arguments)) = words.split_first() else { return Ok(()) };
    let Some(service) = name.to_str().and_then(crate::services::find) else {
        let services: Vec<&str> = agent::keys::services().collect();
        return Err(Stop::Usage(format!(
            "error: there is no service {:?}\nhint: services are {}\n",
            name.to_string_lossy(),
            services.join(", ")
        )));
    };
    command_line::to_toml(service, arguments).map(Stop::Print).and_then(Err)
}
