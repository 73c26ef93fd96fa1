//! The command line of a service, made from the keys of the configuration
//! ([`agent::keys::KEYS`]): each key is a flag of its table's service.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use agent::keys::{self, Key, Table};
use agent::load::{self, FILE, Identity, Source};
use agent::setting::Form;
use agent::{Config, LoadedConfig, accepted};
use clap::builder::{PossibleValuesParser, ValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde::Serialize;
use state::Roots;

use crate::service::Service;
use crate::stdio;
use crate::stop::Stop;

/// The flag that names the configuration's file.
pub const CONFIGURATION: &str = "configuration";

const OUTPUT: &str = "output";

const SOCKET: &str = "socketpath";

/// The flag by which a service confines itself.
const CONFINE: &str = "confine";

/// The flag by which root makes what a service needs that is not root, and starts nothing.
const PREPARE: &str = "prepare";

/// The flag by which a service goes on with the configuration that was accepted last.
const OR_ACCEPTED: &str = "or-accepted";

/// The flag by which a person takes a service off the node, if the service has it.
pub const UNINSTALL: &str = "uninstall";

/// The flag by which a service follows its configuration.
const FOLLOW: &str = "follow";

/// A call of a service: what it is to do.
#[derive(Debug)]
pub struct Invocation {
    /// The configuration with the flags in it.
    pub loaded: LoadedConfig,
    /// Flags that are not keys of the configuration.
    pub more: ArgMatches,
    /// The files as they were before they were read.
    read: Identity,
}

impl Invocation {
    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// Reports whether the service is to give up what it does not need.
    pub fn is_confined(&self) -> bool {
        self.more.get_flag(CONFINE)
    }

    /// Reports whether the service is only to be prepared.
    pub fn only_prepares(&self) -> bool {
        self.more.get_flag(PREPARE)
    }

    /// Reports whether the service is to be taken off the node.
    pub fn takes_off(&self) -> bool {
        matches!(self.more.try_get_one(UNINSTALL), Ok(Some(true)))
    }

    /// Returns the configuration's file and what was read, if the service is to follow it.
    pub fn follows(&self) -> Option<(PathBuf, Identity)> {
        let follows = self.more.get_flag(FOLLOW);
        follows.then(|| (configuration_of(&self.more), self.read.clone()))
    }
}

/// Returns arguments of a service for its process when it starts itself again: it is confined.
pub fn without_confinement(arguments: Vec<OsString>) -> Vec<OsString> {
    let confine = |argument: &OsString| {
        argument.to_str().is_some_and(|text| text.trim_start_matches('-') == CONFINE)
    };
    arguments.into_iter().filter(|argument| !confine(argument)).collect()
}

/// Names that flags had before.
const OLD_NAMES: [(&str, &str, &str); 2] =
    [("docker", "timeout", "patience"), ("ipam", "socketpath", "socket")];

/// Returns the command of a service. `more` are flags that are not keys.
pub fn command(table: &Table, more: &[Arg]) -> Command {
    let mut defaults = Config::default();
    let examples: Vec<String> =
        table.examples.iter().map(|example| format!("  {example}")).collect();
    let mut command = Command::new(table.name)
        .bin_name(format!("netwrightd {}", table.name))
        .about(format!("{}.", table.about))
        .override_usage(format!("netwrightd {} [FLAG…]", table.name))
        .after_help(format!(
            "Each flag but --{CONFIGURATION} takes precedence over the same key of [{}] in the configuration. \
             Durations are written as 10s, 1m30s, 500ms.\n\nExamples:\n{}",
            table.name,
            examples.join("\n")
        ))
        .args_override_self(true)
        .disable_help_subcommand(true)
        .arg(configuration())
        .arg(Arg::new(CONFINE).long(CONFINE).action(ArgAction::SetTrue).help(
            "keep only the rights that the service needs, as its systemd unit does; for service managers that cannot limit rights",
        ));
    command = command.arg(Arg::new(PREPARE).long(PREPARE).action(ArgAction::SetTrue).hide(true));
    command = command.arg(
        Arg::new(OR_ACCEPTED)
            .long(OR_ACCEPTED)
            .action(ArgAction::SetTrue)
            .help("while the configuration's file is wrong, use the last one that was accepted"),
    );
    command = command.arg(Arg::new(FOLLOW).long(FOLLOW).action(ArgAction::SetTrue).help(
        "read the configuration again whenever its files change, and start again where that is needed",
    ));
    for key in keys::of_table(table.name).filter(|key| key.name != "enable") {
        command = command.arg(flag(key, &mut defaults));
    }
    command.args(more)
}

/// The flag that names the configuration's file.
pub fn configuration() -> Arg {
    Arg::new(CONFIGURATION)
        .long(CONFIGURATION)
        .value_name("FILE")
        .help(format!("the configuration's file [default: {FILE}]"))
}

/// The flag that chooses text or JSON.
pub fn output() -> Arg {
    Arg::new(OUTPUT)
        .long(OUTPUT)
        .short('o')
        .value_name("FORMAT")
        .value_parser(PossibleValuesParser::new(["text", "json"]))
        .default_value("text")
        .help("text or json")
}

/// The flag that names the socket of the service that is asked.
pub fn socket(help: &'static str) -> Arg {
    let path = Arg::new(SOCKET).long(SOCKET).value_name("PATH");
    path.value_parser(ValueParser::path_buf()).help(help)
}

/// Returns the socket that a command line names.
pub fn socket_of(matches: &ArgMatches) -> Option<PathBuf> {
    matches.get_one::<PathBuf>(SOCKET).cloned()
}

/// Reports whether a command line asks for JSON.
pub fn is_json(matches: &ArgMatches) -> bool {
    matches.get_one::<String>(OUTPUT).is_some_and(|format| format == "json")
}

/// Returns a value as JSON for people and programs.
pub fn json(value: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(value).expect("our types serialise to JSON");
    text.push('\n');
    text
}

/// Returns the configuration's file that a command line names, or else the default one.
pub fn configuration_of(matches: &ArgMatches) -> PathBuf {
    matches.get_one::<String>(CONFIGURATION).map_or_else(|| FILE.into(), PathBuf::from)
}

/// Returns the flags of keys, for a command that is not a service.
pub fn flags(keys: impl Iterator<Item = &'static Key>) -> Vec<Arg> {
    let mut defaults = Config::default();
    keys.map(|key| flag(key, &mut defaults)).collect()
}

/// Returns a key's flag.
fn flag(key: &Key, defaults: &mut Config) -> Arg {
    let setting = (key.setting)(defaults);
    let arg = Arg::new(key.name).long(key.name);
    let arg = match setting.form() {
        Form::Switch => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_name("true|false"),
        Form::One(value) => arg.value_name(value),
        Form::Several(values) => arg.value_name(values).action(ArgAction::Append),
    };
    let default = setting.show().filter(|text| !matches!(text.as_str(), "false" | "[]"));
    let help = match default {
        Some(default) => format!("{} [default: {}]", key.about, default.replace('"', "")),
        None => key.about.to_owned(),
    };
    let old = OLD_NAMES.iter().find(|(table, name, _)| (*table, *name) == (key.table, key.name));
    arg.help(help).aliases(old.map(|(_, _, old)| *old))
}

/// Reads the arguments after a service's name, and the configuration.
pub fn read(
    service: &Service,
    arguments: &[OsString],
    around: load::Surroundings,
    roots: &Roots,
) -> Result<Invocation, Stop> {
    let (table, more) = (service.table(), (service.more_flags)());
    let (arguments, one_dash) = with_two_dashes(arguments);
    let command = command(table, &more).no_binary_name(true);
    let matches = command.try_get_matches_from(arguments).map_err(refusal)?;
    let file = configuration_of(&matches);
    let read = Identity::of(&file);
    let (mut loaded, problems) = load::read(&file);
    if !problems.is_empty() {
        // All of them, in the words of `config check`.
        let problems = load::load(&file, around).err().unwrap_or(problems);
        let accepted = matches.get_flag(OR_ACCEPTED).then(|| accepted::read(roots, around));
        match accepted.flatten() {
            Some(accepted) => {
                stdio::complain(&format!(
                    "{}netwrightd: warning: the configuration that was accepted last counts\n",
                    stdio::all_of(&problems)
                ));
                loaded = accepted;
            }
            None => return Err(Stop::Configuration(problems)),
        }
    }
    if matches.value_source(CONFIGURATION).is_some() && !loaded.files.contains(&file) {
        return Err(Stop::Failed(format!("{}: there is no such file", file.display())));
    }
    apply(table, &matches, &mut loaded)?;
    // The flags of dhcp are the reference's, which have one dash.
    if one_dash && table.name != "dhcp" {
        warn_of_one_dash(table, &matches, &file);
    }
    // The user who starts a service wants it, also if `enable` is false.
    if let Some(key) = keys::find(table.name, "enable") {
        let _ = (key.setting)(&mut loaded.config).read_flag("true");
    }
    let problems = load::check(&loaded, (service.surroundings)(&matches, around));
    if problems.is_empty() {
        Ok(Invocation { loaded, more: matches, read })
    } else if problems.iter().all(|problem| problem.file.as_os_str().is_empty()) {
        Err(Stop::Usage(problems.iter().map(|problem| format!("error: {problem}")).collect()))
    } else {
        Err(Stop::Configuration(problems))
    }
}

/// Returns what clap says of arguments, which may be the help that was asked for.
pub fn refusal(error: clap::Error) -> Stop {
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Stop::Print(text),
        _ => Stop::Usage(text),
    }
}

/// Sets what a service's flags say.
fn apply(table: &Table, matches: &ArgMatches, loaded: &mut LoadedConfig) -> Result<(), Stop> {
    apply_keys(keys::of_table(table.name).filter(|key| key.name != "enable"), matches, loaded)
}

/// Sets what the flags of these keys say. The command has each of them.
pub fn apply_keys(
    keys: impl Iterator<Item = &'static Key>,
    matches: &ArgMatches,
    loaded: &mut LoadedConfig,
) -> Result<(), Stop> {
    for key in keys {
        if matches.value_source(key.name) != Some(ValueSource::CommandLine) {
            continue;
        }
        let setting = (key.setting)(&mut loaded.config);
        setting.clear();
        for value in matches.get_many::<String>(key.name).into_iter().flatten() {
            // Docker's timeout was a number of seconds.
            let seconds = (key.table, key.name) == ("docker", "timeout")
                && !value.is_empty()
                && value.bytes().all(|byte| byte.is_ascii_digit());
            let given = if seconds { format!("{value}s") } else { value.clone() };
            match setting.read_flag(&given) {
                Ok(()) => {}
                // As the reference reads it: an empty path means the usual one.
                Err(_) if value.is_empty() && (key.table, key.name) == ("dhcp", "socketpath") => {}
                Err(wanted) => {
                    let name = key.name;
                    return Err(Stop::Usage(format!(
                        "error: --{name} must be {}, and not {value:?}\n",
                        wanted.0
                    )));
                }
            }
        }
        loaded.sources.insert((key.table, key.name), Source::default());
    }
    Ok(())
}

/// Returns the arguments with two dashes before each flag that has one, as Go's flag package has
/// it, and whether there was one. A flag of one letter is clap's, and a number is a value.
fn with_two_dashes(arguments: &[OsString]) -> (Vec<OsString>, bool) {
    let mut one_dash = false;
    let two = |argument: &OsString| {
        let name = argument.to_str().and_then(|text| text.strip_prefix('-'));
        let is_word = |name: &&str| 1 < name.len() && name.starts_with(|c: char| c.is_alphabetic());
        match name.filter(is_word) {
            Some(name) => {
                one_dash = true;
                format!("--{name}").into()
            }
            None => argument.clone(),
        }
    };
    let arguments = arguments.iter().map(two).collect();
    (arguments, one_dash)
}

/// Returns the configuration that says what flags say.
pub fn to_toml(service: &Service, arguments: &[OsString]) -> Result<String, Stop> {
    let (table, more) = (service.table(), (service.more_flags)());
    let (arguments, _) = with_two_dashes(arguments);
    let command = command(table, &more).no_binary_name(true);
    let matches = command.try_get_matches_from(arguments).map_err(refusal)?;
    let mut loaded = LoadedConfig::default();
    if let Some(key) = keys::find(table.name, "enable") {
        let _ = (key.setting)(&mut loaded.config).read_flag("true");
        loaded.sources.insert((key.table, key.name), Source::default());
    }
    apply(table, &matches, &mut loaded)?;
    Ok(agent::show::minimal(&loaded))
}

/// Says what to write in place of flags with one dash.
fn warn_of_one_dash(table: &Table, matches: &ArgMatches, file: &Path) {
    let mut loaded = LoadedConfig::default();
    if apply(table, matches, &mut loaded).is_err() {
        return;
    }
    let toml = agent::show::minimal(&loaded);
    let instead = match toml.is_empty() {
        true => String::new(),
        false => format!(", or write this into {}:\n{}", file.display(), toml.trim_end()),
    };
    stdio::complain(&format!(
        "netwrightd: warning: the next release does not read flags with one dash; write two{instead}\n"
    ));
}
