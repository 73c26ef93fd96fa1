//! What the daemon does, one module for each service.

use agent::keys::{TABLES, Table};
use agent::load::Surroundings;
use clap::{Arg, ArgMatches};

use crate::command_line::Invocation;
use setup::Process;

mod collect;
mod dhcp;
mod docker;
mod ipam;
mod kubernetes;
mod line_server;
mod multinet;
mod ovs;
mod ready;
mod repair;
mod runtimes;
pub(crate) mod setup;

/// Runs a service.
type Run = fn(&Invocation, &Process) -> Result<(), Stop>;

/// A service.
pub(crate) struct Service {
    name: &'static str,
    /// Its flags that are no keys of the configuration.
    pub(crate) more_flags: fn() -> Vec<Arg>,
    /// Adapts what is found around the process to what these flags want.
    pub(crate) surroundings: fn(&ArgMatches, Surroundings) -> Surroundings,
    /// Refuses what the service would refuse when it starts, besides the configuration.
    pub(crate) check: fn(&Invocation) -> Result<(), Stop>,
    /// Runs it until a signal ends it.
    pub(crate) run: Run,
}

impl Service {
    /// Returns the service of this name.
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        SERVICES.iter().find(|service| service.name == name)
    }

    /// Returns its table of the configuration.
    pub(crate) fn table(&self) -> &'static Table {
        let table = TABLES.iter().find(|table| table.name == self.name);
        table.expect("each service has a table: a test looks")
    }
}

const fn plain(name: &'static str, run: Run) -> Service {
    Service { name, more_flags: Vec::new, surroundings: |_, around| around, check: |_| Ok(()), run }
}

const SERVICES: &[Service] = &[
    Service { more_flags: collect::more_flags, ..plain("collect", collect::run) },
    plain("dhcp", dhcp::run),
    plain("docker", docker::run),
    Service {
        more_flags: ipam::more_flags,
        surroundings: ipam::surroundings,
        ..plain("ipam", ipam::run)
    },
    Service {
        more_flags: multinet::more_flags,
        check: multinet::check,
        ..plain("multinet", multinet::run)
    },
    plain("repair", repair::run),
];

/// Why a service could not start or continue.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Text to print to standard output.
    Print(String),
    /// The flags are wrong.
    Usage(String),
    /// The configuration is wrong.
    Configuration(Vec<agent::Problem>),
    /// Something failed.
    Failed(String),
    /// Everything is said; the process ends with this exit code.
    Said(u8),
}

impl Stop {
    /// Returns what is wrong, in lines.
    pub(crate) fn lines(&self) -> Vec<String> {
        match self {
            Stop::Configuration(problems) => problems.iter().map(agent::Problem::line).collect(),
            Stop::Usage(text) | Stop::Failed(text) => vec![text.trim_end().to_owned()],
            Stop::Print(_) | Stop::Said(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_those_of_the_configuration() {
        let names: Vec<&str> = SERVICES.iter().map(|service| service.table().name).collect();
        assert_eq!(names, agent::keys::services().collect::<Vec<_>>());
    }
}
