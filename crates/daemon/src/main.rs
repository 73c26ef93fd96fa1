//! The node daemon: work that a program which is called and ends cannot do.
//!
//! It keeps DHCP leases ([`services::dhcp`]) and is Docker's network driver ([`services::docker`]).
//! While it is down, the network keeps working.
//!
//! Only this file reads the arguments and the environment.

#![cfg_attr(test, allow(clippy::unwrap_used))]

// Its tests are shared and refer to it by its full name.
#[cfg(test)]
extern crate cluster_ipam as netwright_cluster_ipam;

mod clock;
mod log;
mod notify;
mod poll;
mod services;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use services::{Stop, collect, dhcp, docker, ipam, multinet, repair};

/// What is printed when the arguments name nothing that is known.
const HELP: &str = "\
Usage: netwrightd SERVICE [FLAG…]

Services:
  dhcp      keeps DHCP leases for the CNI plugin dhcp; netwrightd dhcp -help lists its flags
  collect   removes what deleted containers left behind; netwrightd collect -help lists its flags
  docker    makes CNI networks into Docker networks; netwrightd docker -help lists its flags
  ipam      gives addresses of networks that span nodes; netwrightd ipam -help lists its flags
  multinet  gives pods several networks; netwrightd multinet -help lists its flags
  repair    puts back what other programs change under containers; netwrightd repair -help lists its flags

  --version prints the version
";

/// The exit code for wrong flags, as Go's flag package has it.
const USAGE: u8 = 2;

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
    log::start(variable("NETWRIGHT_LOG"), variable("JOURNAL_STREAM").is_some());
    let service = if arguments.is_empty() { OsString::new() } else { arguments.remove(0) };
    let (help, stop) = match service.to_str() {
        Some("dhcp") => (dhcp::HELP, dhcp::run(&arguments, &environment)),
        Some("collect") => (collect::HELP, collect::run(&arguments, &environment)),
        Some("repair") => (repair::HELP, repair::run(&arguments, &environment)),
        Some("docker") => (docker::HELP, docker::run(&arguments, &environment)),
        Some("ipam") => (ipam::HELP, ipam::run(&arguments, &environment)),
        Some("multinet") => (multinet::HELP, multinet::run(&arguments, &environment)),
        Some("--version" | "-V" | "version") => {
            return say(&format!("netwrightd {}\n", env!("CARGO_PKG_VERSION")));
        }
        Some("--help" | "-h" | "help") => {
            return say(HELP);
        }
        Some("") => {
            complain(HELP);
            return ExitCode::from(USAGE);
        }
        _ => {
            let asked = service.to_string_lossy();
            complain(&format!("netwrightd has no service {asked:?}\n{HELP}"));
            return ExitCode::from(USAGE);
        }
    };
    match stop {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Help) => say(help),
        Err(Stop::Usage(message)) => {
            complain(&format!("{message}\n{help}"));
            ExitCode::from(USAGE)
        }
        Err(Stop::Failed(message)) => {
            tracing::error!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the requested text. A reader that is gone is not an error.
fn say(text: &str) -> ExitCode {
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

fn complain(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}
