//! A call of a plugin: one call, then the process ends.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cni::{Command, Error, code};
use cni_invoke::{
    Exec, Executor, InvokeError, MixedExecutor, Output, REQUIRE_TRUSTED_PLUGINS, Request, Status,
};
use cni_plugin::{Context, Plugin, ProcessIo, answer};
use kernel::linger;
use kernel::stdout::Stdout;
use plugins::Builtins;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{VERSION, world};

/// How long VERSION waits for its input. Callers write it as soon as we run; a caller that writes
/// nothing and leaves standard input open gets an answer that names the newest version.
const VERSION_TIMEOUT: Duration = Duration::from_millis(200);

/// Answers one call and returns the exit code.
pub(crate) fn serve(plugin: &dyn Plugin, environment: Vec<(OsString, OsString)>) -> ExitCode {
    let roots = world::roots(&environment);
    let (mut stdout, mut stderr) = (Stdout, io::stderr());
    let mut world = ProcessIo {
        environment,
        stdin: &mut io::empty(),
        stdout: &mut stdout,
        stderr: &mut stderr,
        roots: roots.clone(),
        build: VERSION,
    };
    let env = world.call_env();
    let executor = LazyExecutor {
        builtins: Builtins { roots: roots.clone(), build: VERSION },
        environment: std::mem::take(&mut world.environment),
        mixed: OnceLock::new(),
    };
    let context = Context { roots: &roots, executor: &executor, deadline: None, build: VERSION };
    let mut stdin: Box<dyn Read> = match Command::parse(&env.command) {
        Some(Command::Version) => Box::new(TimedInput::new()),
        _ => Box::new(io::stdin()),
    };
    linger::by_process();
    let code = answer(plugin, &env, &mut stdin, &context, &mut world);
    let asked = crate::HEAP.asked();
    tracing::debug!(blocks = asked.blocks, bytes = asked.bytes, "allocated");
    linger::end();
    code
}

/// Standard input that ends when nothing is written to it: for VERSION, which many callers use
/// without input, some of them with standard input left open.
struct TimedInput {
    deadline: Instant,
}

impl TimedInput {
    fn new() -> Self {
        TimedInput { deadline: Instant::now() + VERSION_TIMEOUT }
    }
}

impl Read for TimedInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let stdin = io::stdin();
        let left = self.deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], timeout.as_ref())? {
            0 => Ok(0),
            _ => Ok(rustix::io::read(&stdin, buffer)?),
        }
    }
}

/// Answers a runtime whose configuration names this executable itself as a plugin's type, or a file
/// by which it is called under a name of somebody's own.
pub(crate) fn refuse(program: &OsStr) -> ExitCode {
    let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy();
    let names: Vec<_> = plugins::all().iter().map(|plugin| plugin.name()).collect();
    let text = format!("{name} is not the type of a plugin");
    let mut error = Error::new(code::INVALID_CONFIG, text);
    if let Some(meant) = plugins::meant(&name) {
        let text = format!("name the type {meant:?}: netwright is a plugin by its own names only");
        error = error.with_details(text);
    }
    let error = error.with_details(format!("the plugins it holds are: {}", names.join(", ")));
    let output = Output { stdout: error.to_json(), stderr: Vec::new(), status: Status::Exit(1) };
    let (mut stdout, mut stderr) = (Stdout, io::stderr());
    ProcessIo {
        environment: Vec::new(),
        stdin: &mut io::empty(),
        stdout: &mut stdout,
        stderr: &mut stderr,
        roots: state::Roots::default(),
        build: VERSION,
    }
    .write(&output)
}

/// Calls delegated plugins, in this process where the executable found is this one. It reads
/// nothing before the first call, because most plugins delegate nothing.
#[derive(Debug)]
struct LazyExecutor {
    builtins: Builtins,
    environment: Vec<(OsString, OsString)>,
    mixed: OnceLock<MixedExecutor<Builtins>>,
}

impl Executor for LazyExecutor {
    fn call(
        &self,
        executable: &Path,
        request: &Request,
        deadline: Option<Instant>,
    ) -> Result<Output, InvokeError> {
        let mixed = self.mixed.get_or_init(|| mixed(&self.builtins, &self.environment));
        mixed.call(executable, request, deadline)
    }

    fn is_own(&self, executable: &Path) -> bool {
        let mixed = self.mixed.get_or_init(|| mixed(&self.builtins, &self.environment));
        mixed.is_own(executable)
    }
}

/// Creates an executor that knows this executable; without procfs, one that starts a process for
/// every call.
pub(crate) fn mixed(
    builtins: &Builtins,
    environment: &[(OsString, OsString)],
) -> MixedExecutor<Builtins> {
    let exec =
        Exec::new(environment.iter().cloned()).refusing_untrusted_if(REQUIRE_TRUSTED_PLUGINS);
    MixedExecutor::new(builtins.clone(), exec.clone())
        .unwrap_or_else(|_| MixedExecutor::always_exec(builtins.clone(), exec))
}
