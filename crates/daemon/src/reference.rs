//! `netwrightd completions` and `netwrightd man`: made from the description of the command line.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;
use service_kit::stop::Stop;
use state::Durability;

/// The name under which the executable is called.
const NAME: &str = "netwrightd";

/// Returns both commands.
pub(crate) fn commands() -> [Command; 2] {
    let shell = Arg::new("shell").required(true).value_parser(value_parser!(Shell));
    let dir = Arg::new("dir").required(true).value_parser(value_parser!(PathBuf));
    [
        Command::new("completions")
            .about("Writes a completion script for a shell to standard output")
            .arg(shell.help("the shell")),
        Command::new("man")
            .about("Writes the man pages into a folder: commands, configuration, agent")
            .arg(dir.help("the folder; it is made if it is missing")),
    ]
}

/// Returns a completion script.
pub(crate) fn completions(matches: &ArgMatches, mut of: Command) -> Result<(), Stop> {
    let mut script = Vec::new();
    if let Some(shell) = matches.get_one::<Shell>("shell") {
        clap_complete::generate(*shell, &mut of, NAME, &mut script);
    }
    Err(Stop::Print(String::from_utf8_lossy(&script).into_owned()))
}

/// Writes the manual pages: one for each command, those of the configuration and of the agent.
/// Prints the path of each.
pub(crate) fn man(matches: &ArgMatches, mut of: Command) -> Result<(), Stop> {
    let failed = |error: &dyn std::error::Error| Stop::Failed(cni::Error::from_chain(0, error).msg);
    let Some(dir) = matches.get_one::<PathBuf>("dir") else { return Ok(()) };
    state::create_directory(dir, 0o755).map_err(|error| failed(&error))?;
    of.build();
    let mut pages = vec![(NAME.to_owned(), of.clone())];
    for command in of.get_subcommands() {
        let name = format!("{NAME}-{}", command.get_name());
        pages.push((name.clone(), command.clone().display_name(name)));
    }
    let mut texts = Vec::new();
    for (name, command) in pages {
        let mut text = Vec::new();
        let page = clap_mangen::Man::new(command).title(name.to_uppercase()).date("");
        page.render(&mut text).map_err(|error| failed(&error))?;
        texts.push((format!("{name}.1"), text));
    }
    texts.extend(agent::man::pages().map(|(name, text)| (name.to_owned(), text.into_bytes())));
    let mut written = String::new();
    for (name, text) in texts {
        let path = dir.join(name);
        state::write_atomic(&path, &text, 0o644, Durability::Volatile)
            .map_err(|error| failed(&error))?;
        written.push_str(&format!("{}\n", path.display()));
    }
    Err(Stop::Print(written))
}
