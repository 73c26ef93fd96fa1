//! `completions` and `man`: what is made from the description of the command line.

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

Made from the program's own description; a test compares the two, and `UPDATE_EXPECT=1 cargo test -p netwright` writes it
anew.
";

/// Writes a completion script to standard output.
pub(crate) fn completions(args: &Completions, shell: &mut Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::command(), NAME, &mut script);
    shell.raw(&script);
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
    shell.print(&Written { written });
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Serialize)]
struct Written {
    written: Vec<String>,
}

impl Report for Written {
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
    Ok((format!("{name}.1"), text))
}

/// Returns every command's help as one page.
fn markdown() -> String {
    let mut command = args::command().term_width(100);
    command.build();
    let mut text = MARKDOWN_HEAD.to_owned();
    section(&mut text, NAME, &mut command.clone());
    for subcommand in command.get_subcommands_mut().filter(|subcommand| !subcommand.is_hide_set()) {
        let name = format!("{NAME} {}", subcommand.get_name());
        section(&mut text, &name, subcommand);
    }
    text
}

fn section(text: &mut String, name: &str, command: &mut clap::Command) {
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    text.push_str(&format!("\n## `{name}`\n\n```text\n{}\n```\n", lines.join("\n")));
}
