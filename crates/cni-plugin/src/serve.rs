//! The entry point of a plugin that is an executable of its own.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::process::ExitCode;

use cni::json::Object;
use cni::{CallEnv, Command};
use cni_invoke::{Exec, Output, Status};

use crate::{Context, Plugin, respond};

/// The inputs and outputs of a plugin's process: passed in by `main`, so that nothing below it
/// reads globals.
pub struct ProcessIo<'a> {
    /// The environment, normally [`std::env::vars_os`].
    pub environment: Vec<(OsString, OsString)>,
    /// Standard input.
    pub stdin: &'a mut dyn Read,
    /// Standard output: the protocol.
    pub stdout: &'a mut dyn Write,
    /// Standard error: free text.
    pub stderr: &'a mut dyn Write,
    /// The folders that hold state.
    pub roots: state::Roots,
    /// The version to print when the plugin is asked what it is.
    pub build: &'a str,
}

impl std::fmt::Debug for ProcessIo<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessIo").field("roots", &self.roots).finish_non_exhaustive()
    }
}

impl ProcessIo<'_> {
    /// Returns the protocol's part of the environment. Values that are not UTF-8 are passed on with
    /// replacement characters, which the checks then refuse if they name an object.
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

    /// Writes an answer to the standard files and returns its exit code. If the answer cannot be
    /// written or its reader is gone, that is a failure. A problem with standard error does not
    /// stop the answer.
    ///
    /// That the reader is gone can only be detected if SIGPIPE is ignored, as Rust's runtime does
    /// before `main`.
    pub fn write(&mut self, output: &Output) -> ExitCode {
        // Standard error is optional, the answer is the protocol: a full disk under the log must
        // neither turn a success into a failure nor lose a result.
        let _ = self.stderr.write_all(&output.stderr);
        let written = self.stdout.write_all(&output.stdout).and_then(|()| self.stdout.flush());
        match written {
            Ok(()) if output.status == Status::Success => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    }
}

/// Answers one call, writes the answer, and returns the exit code. If the result of an ADD cannot
/// be written, or its reader is gone, the ADD is undone: its caller would not know what was
/// created.
pub fn answer(
    plugin: &dyn Plugin,
    env: &CallEnv,
    stdin: &mut dyn Read,
    context: &Context<'_>,
    world: &mut ProcessIo<'_>,
) -> ExitCode {
    let mut stdin = KeptInput { stdin, read: Vec::new() };
    let output = respond(plugin, env, &mut stdin, context);
    let code = world.write(&output);
    let lost = output.status == Status::Success && code != ExitCode::SUCCESS;
    if lost && Command::parse(&env.command) == Some(Command::Add) {
        let env = CallEnv { command: Command::Del.to_string(), ..env.clone() };
        let undone = respond(plugin, &env, &mut undoing(&stdin.read).as_slice(), context);
        let _ = world.stderr.write_all(&undone.stderr);
        let text: &[u8] = match undone.status {
            Status::Success => b"the result cannot be written to standard output; ADD was undone\n",
            _ => {
                b"the result cannot be written to standard output, and undoing ADD failed: run DEL\n"
            }
        };
        let _ = world.stderr.write_all(text);
    }
    code
}

/// Turns the configuration of an ADD into that of the DEL that undoes it.
fn undoing(config: &[u8]) -> Vec<u8> {
    let Ok(mut object) = Object::parse(config) else { return config.to_owned() };
    object.set_value(cni::UNDO, &true);
    object.to_vec()
}

/// Standard input that keeps what was read from it.
struct KeptInput<'a> {
    stdin: &'a mut dyn Read,
    read: Vec<u8>,
}

impl Read for KeptInput<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.stdin.read(buffer)?;
        self.read.extend_from_slice(&buffer[..length]);
        Ok(length)
    }
}

/// Runs a plugin as a whole process: delegated plugins are executed.
#[must_use]
pub fn serve(plugin: &dyn Plugin, mut world: ProcessIo<'_>) -> ExitCode {
    let env = world.call_env();
    let exec = Exec::new(std::mem::take(&mut world.environment));
    let ProcessIo { environment, stdin, stdout, stderr, roots, build } = world;
    let context = Context { roots: &roots, executor: &exec, deadline: None, build };
    let mut nothing = io::empty();
    let roots = roots.clone();
    let mut world = ProcessIo { environment, stdin: &mut nothing, stdout, stderr, roots, build };
    answer(plugin, &env, stdin, &context, &mut world)
}
