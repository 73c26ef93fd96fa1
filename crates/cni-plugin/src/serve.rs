//! The entry point of a plugin that is an executable of its own.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::process::ExitCode;

use cni::CallEnv;
use cni_invoke::{Exec, Output, Status};

use crate::{Context, Plugin, respond};

/// The world of a plugin's process: passed in by `main`, so that nothing below it reads globals.
pub struct Serve<'a> {
    /// The environment, normally [`std::env::vars_os`].
    pub environment: Vec<(OsString, OsString)>,
    /// Standard input.
    pub stdin: &'a mut dyn Read,
    /// Standard output: the protocol.
    pub stdout: &'a mut dyn Write,
    /// Standard error: words.
    pub stderr: &'a mut dyn Write,
    /// The folders for state.
    pub roots: state::Roots,
    /// The version to print when asked what this is.
    pub build: &'a str,
}

impl std::fmt::Debug for Serve<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serve").field("roots", &self.roots).finish_non_exhaustive()
    }
}

impl Serve<'_> {
    /// Returns the protocol's part of the environment. Values that are not UTF-8 are passed on with
    /// replacement characters, which the checks then refuse where they name an object.
    #[must_use]
    pub fn call_env(&self) -> CallEnv {
        // The rest of an environment may be long.
        let vars = self.environment.iter().filter_map(|(key, value)| Some((key.to_str()?, value)));
        let may_be_read =
            |key: &str| key.starts_with("CNI_") || cni::call::TRACE_VARIABLES.contains(&key);
        let vars = vars.filter(|(key, _)| may_be_read(key));
        let text = |value: &OsString| value.to_string_lossy().into_owned();
        CallEnv::from_vars(vars.map(|(key, value)| (key.to_owned(), text(value))))
    }

    /// Writes an answer to the standard files and returns the exit code it stands for. A reader that has
    /// gone away is not an error, and nothing that befalls standard error keeps the answer back.
    pub fn write(&mut self, output: &Output) -> ExitCode {
        // The words are a courtesy, the answer is the protocol: a full disk behind the log must not turn a
        // success into a failure, nor swallow a result.
        let _ = self.stderr.write_all(&output.stderr);
        let written = self.stdout.write_all(&output.stdout).and_then(|()| self.stdout.flush());
        match written {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
            _ if output.status == Status::Success => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    }
}

/// Runs a plugin as the whole of a process: delegated plugins are executed.
#[must_use]
pub fn serve(plugin: &dyn Plugin, mut world: Serve<'_>) -> ExitCode {
    let env = world.call_env();
    let exec = Exec::new(std::mem::take(&mut world.environment));
    let context =
        Context { roots: &world.roots, executor: &exec, deadline: None, build: world.build };
    let output = respond(plugin, &env, world.stdin, &context);
    world.write(&output)
}
