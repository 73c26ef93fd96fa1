//! The executable: the command line and every CNI plugin.
//!
//! [`dispatch`] decides what the process is to be before anything else, so that a plugin's call
//! runs nothing of the command line. Only this file reads the environment, the clock and the
//! standard files; everything below gets them as values ([`world::World`], [`shell::Shell`]) and
//! returns what to print.
//!
//! - [`plugin_process`]: a call of a plugin.
//! - [`daemon_process`]: becoming the daemon.
//! - [`commands`]: one module per command, described by [`args`].
//! - [`net`]: what commands share: networks, containers, ports, and a runtime to drive plugins.
//! - [`mod@shell`], [`failure`], [`table`]: the only way to standard output and error.

#![cfg_attr(test, allow(clippy::unwrap_used))]

#[allow(
    rustdoc::broken_intra_doc_links,
    reason = "doc comments there are help texts, brackets and all"
)]
mod args;
mod commands;
mod daemon_process;
mod dispatch;
mod failure;
mod log;
mod net;
mod panic;
mod plugin_process;
mod shell;
mod table;
mod world;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::ExitCode;

use dispatch::Role;
use kernel::heap::Heap;
use shell::{Shell, Stdio};
use world::World;

/// A plugin's call allocates a few hundred times and ends: musl's allocator asks the kernel
/// separately for each size, this one for as much at a time as a call needs.
#[global_allocator]
static HEAP: Heap = Heap::new();

/// The version of this build.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    let arguments: Vec<OsString> = arguments.collect();
    log::start(std::env::var_os(log::VARIABLE).as_deref());
    let has_verb = std::env::var_os("CNI_COMMAND").is_some_and(|verb| !verb.is_empty());
    match dispatch::role(&program, &arguments, has_verb) {
        Role::Plugin(plugin) => {
            panic::answer_for_plugin(plugin.name());
            plugin_process::serve(plugin, std::env::vars_os().collect())
        }
        Role::NotAPlugin(called) => plugin_process::refuse(&called),
        Role::DhcpDaemon(name) => daemon_process::become_it("dhcp", &arguments[name..]),
        Role::Enter => commands::run::enter(&arguments, &mut shell()),
        Role::Cnitool => {
            panic::tell_person();
            commands::cnitool::main(&arguments, &world(), &mut shell())
        }
        Role::CommandLine => {
            panic::tell_person();
            commands::main(program, arguments, &world(), &mut shell())
        }
    }
}

fn world() -> World {
    World {
        environment: std::env::vars_os().collect(),
        directory: std::env::current_dir().unwrap_or_default(),
    }
}

fn shell() -> Shell {
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_some_and(|term| term != "dumb");
    let (answers, terminal) = (io::stdin().is_terminal(), io::stderr().is_terminal());
    Shell::new(Stdio {
        input: Box::new(io::stdin()),
        output: Box::new(kernel::stdout::Stdout),
        errors: Box::new(io::stderr()),
        answers,
        terminal,
        colour: colour && terminal,
    })
}
