//! What the daemon knows of each service.

use agent::keys::{TABLES, Table};
use agent::load::Surroundings;
use clap::{Arg, ArgMatches};

use crate::command_line::Invocation;
use crate::process::Process;
use crate::stop::Stop;

/// Runs a service.
pub type Run = fn(&Invocation, &Process) -> Result<(), Stop>;

/// A service.
#[derive(Debug, Clone, Copy)]
pub struct Service {
    /// Its name, as the configuration has it.
    pub name: &'static str,
    /// Its flags that are not keys of the configuration.
    pub more_flags: fn() -> Vec<Arg>,
    /// Adapts what is found around the process to what these flags want.
    pub surroundings: fn(&ArgMatches, Surroundings) -> Surroundings,
    /// Refuses what the service would refuse when it starts, besides the configuration.
    pub check: fn(&Invocation) -> Result<(), Stop>,
    /// Runs it until a signal ends it.
    pub run: Run,
}

impl Service {
    /// A service without flags of its own.
    pub const fn new(name: &'static str, run: Run) -> Self {
        let surroundings = |_: &ArgMatches, around| around;
        Service { name, more_flags: Vec::new, surroundings, check: |_| Ok(()), run }
    }

    /// Returns its table of the configuration.
    pub fn table(&self) -> &'static Table {
        let table = TABLES.iter().find(|table| table.name == self.name);
        table.expect("each service has a table: a test looks")
    }
}
