//! `completions` and `man`: generated from the description of the command line.

use std::path::Path;
use std::process::ExitCode;

use cni::code;
use serde::Serialize;

use super::Outcome;
use crate::args::{self, Completions, Man};
use crate::failure::Failure;
use crate::shell::{Report, Shell};
use crate::world::World;

/// The name under which the executable is called.
const NAME: &str = "netwright";

const MARKDOWN_HEAD: &str = "\
# The command line

Made from the program's own description; a test compares the two, and `UPDATE_EXPECT=1 cargo test -p
netwright` writes it anew. Every command takes `--help`, and the common options of the first one.
";

/// Writes a completion script to standard output.
pub(crate) fn completions(args: &Completions, shell: &mut Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::command(), NAME, &mut script);
    let script = String::from_utf8_lossy(&script);
    shell.raw(super::names::offered(args.shell, &script).as_bytes());
    Ok(ExitCode::SUCCESS)
}

/// Writes man pages, or the Markdown page, into a folder.
pub(crate) fn man(args: &Man, world: &World, shell: &mut Shell) -> Outcome {
    let dir = world.absolute(&args.dir);
    let pages = if args.markdown {
        vec![("cli.md".to_owned(), markdown().into_bytes())]
    } else {
        man_pages()?
    };
    state::create_directory(&dir, 0o755).map_err(|error| Failure::of(code::IO_FAILURE, &error))?;
    let mut written = Vec::new();
    for (name, text) in pages {
        let path = dir.join(name);
        state::write_atomic(&path, &text, 0o644, state::Durability::Volatile)
            .map_err(|error| Failure::of(code::IO_FAILURE, &error))?;
        written.push(path.display().to_string());
    }
    shell.print(&WriteReport { written });
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Serialize)]
struct WriteReport {
    written: Vec<String>,
}

impl Report for WriteReport {
    fn text(&self) -> String {
        self.written.iter().map(|path| format!("{path}\n")).collect()
    }
}

/// Returns a page for the program and one for each command, by file name.
fn man_pages() -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let mut command = args::command().flatten_help(false);
    command.build();
    let mut pages = vec![page(&command, NAME)?];
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        let name = format!("{NAME}-{}", subcommand.get_name());
        pages.push(page(&subcommand.clone().display_name(name.clone()), &name)?);
    }
    Ok(pages)
}

fn page(command: &clap::Command, name: &str) -> Result<(String, Vec<u8>), Failure> {
    let mut text = Vec::new();
    let man = clap_mangen::Man::new(command.clone()).title(name.to_uppercase()).date("");
    man.render(&mut text).map_err(|error| {
        Failure::of(code::IO_FAILURE, &error).context(Path::new(name).display())
    })?;
    let text = String::from_utf8_lossy(&text);
    Ok((format!("{name}.1"), with_values(&text, &synopsis(command)).into_bytes()))
}

/// Replaces the synopsis that clap_mangen makes, which names options without their values, by ours.
fn with_values(page: &str, synopsis: &str) -> String {
    const HEAD: &str = ".SH SYNOPSIS\n";
    let parts = page.split_once(HEAD).and_then(|(before, rest)| {
        let end = rest.find("\n.SH ")?;
        Some((before, &rest[end + 1..]))
    });
    match parts {
        Some((before, after)) => format!("{before}{HEAD}{synopsis}\n{after}"),
        None => page.to_owned(),
    }
}

/// Returns a command and all its arguments, in roff.
fn synopsis(command: &clap::Command) -> String {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let mut words = vec![format!("\\fB{}\\fR", roff(&name.replacen('-', " ", 1)))];
    let shown = |arg: &&clap::Arg| !arg.is_hide_set() && !arg.is_positional();
    for arg in command.get_arguments().filter(shown) {
        words.push(optional(arg, &option(arg)));
    }
    for arg in command.get_positionals().filter(|arg| !arg.is_hide_set()) {
        let dashes = if arg.is_last_set() { "\\-\\- " } else { "" };
        words.push(optional(arg, &format!("{dashes}{}", values(arg))));
    }
    if command.has_subcommands() {
        words.push("\\fISUBCOMMAND\\fR".to_owned());
    }
    words.join(" ")
}

fn option(arg: &clap::Arg) -> String {
    let long = arg.get_long().map(|long| format!("--{long}"));
    let short = arg.get_short().map(|short| format!("-{short}"));
    let names: Vec<String> =
        short.into_iter().chain(long).map(|name| format!("\\fB{}\\fR", roff(&name))).collect();
    match arg.get_action().takes_values() {
        true => format!("{} {}", names.join("|"), values(arg)),
        false => names.join("|"),
    }
}

fn values(arg: &clap::Arg) -> String {
    let id = arg.get_id().as_str().to_uppercase();
    let names = arg.get_value_names().map(|names| names.iter().map(ToString::to_string).collect());
    let names: Vec<String> = names.unwrap_or_else(|| vec![id]);
    names.iter().map(|name| format!("\\fI{}\\fR", roff(name))).collect::<Vec<_>>().join(" ")
}

fn optional(arg: &clap::Arg, text: &str) -> String {
    let many = matches!(arg.get_action(), clap::ArgAction::Append)
        || arg.get_num_args().is_some_and(|count| 1 < count.max_values());
    let text = if many { format!("{text}...") } else { text.to_owned() };
    if arg.is_required_set() { text } else { format!("[{text}]") }
}

/// Escapes text so that roff reads no request in it.
fn roff(text: &str) -> String {
    text.replace('\\', "\\\\").replace('-', "\\-")
}

/// Returns every command's help as one page.
fn markdown() -> String {
    let mut command = args::command().term_width(100);
    command.build();
    let help = help_of(&mut command.clone());
    let common = format!("\n\n{}", common_options(&help));
    let mut text = MARKDOWN_HEAD.to_owned();
    section(&mut text, NAME, &help);
    for subcommand in command.get_subcommands_mut().filter(|subcommand| !subcommand.is_hide_set()) {
        let name = format!("{NAME} {}", subcommand.get_name());
        section(&mut text, &name, &without_common(&help_of(subcommand), &common));
    }
    text
}

fn help_of(command: &mut clap::Command) -> String {
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    lines.join("\n")
}

/// Returns what a help text says of the options that every command takes.
fn common_options(help: &str) -> String {
    let heading = format!("{}:", args::COMMON);
    let is_option = |line: &&str| line.is_empty() || line.starts_with(' ');
    let mut lines = help.lines().skip_while(|line| *line != heading);
    let found: Vec<&str> = lines.next().into_iter().chain(lines.take_while(is_option)).collect();
    found.join("\n").trim_end().to_owned()
}

/// Leaves out the options that every command takes: the program's own help has them.
fn without_common(help: &str, common: &str) -> String {
    let mut help = help.replace(common, "");
    for text in ["Print help (see a summary with '-h')", "Print help"] {
        let option = format!("  -h, --help\n          {text}");
        let alone = format!("\n\nOptions:\n{option}");
        help = help.replace(&alone, "").replace(&format!("\n\n{option}"), "");
    }
    help
}

fn section(text: &mut String, name: &str, help: &str) {
    text.push_str(&format!("\n## `{name}`\n\n```text\n{help}\n```\n"));
}
