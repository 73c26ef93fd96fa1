//! Being a plugin: one call, then the end.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Instant;

use cni::{Error, code};
use cni_invoke::{Exec, Executor, InvokeError, Mixed, Output, Request, Status};
use cni_plugin::{Context, Plugin, Serve, respond};
use plugins::Builtins;

use crate::{VERSION, world};

/// Answers one call and returns the exit code.
pub(crate) fn serve(plugin: &dyn Plugin, environment: Vec<(OsString, OsString)>) -> ExitCode {
    let roots = world::roots(&environment);
    let executor = OnDemand {
        builtins: Builtins { roots: roots.clone(), build: VERSION },
        environment: environment.clone(),
        mixed: OnceLock::new(),
    };
    let mut stdin = io::stdin();
    let (mut stdout, mut stderr) = (io::stdout(), io::stderr());
    let mut world = Serve {
        environment,
        stdin: &mut io::empty(),
        stdout: &mut stdout,
        stderr: &mut stderr,
        roots: roots.clone(),
        build: VERSION,
    };
    let context = Context { roots: &roots, executor: &executor, deadline: None, build: VERSION };
    let output = respond(plugin, &world.call_env(), &mut stdin, &context);
    world.write(&output)
}

/// Answers a runtime whose configuration names this executable as a plugin's type.
pub(crate) fn refuse() -> ExitCode {
    let names: Vec<_> = plugins::all().iter().map(|plugin| plugin.name()).collect();
    let error = Error::new(code::INVALID_CONFIG, "netwright is not the type of a plugin")
        .with_details(format!("the plugins it holds are: {}", names.join(", ")));
    let output = Output { stdout: error.to_json(), stderr: Vec::new(), status: Status::Exit(1) };
    let (mut stdout, mut stderr) = (io::stdout(), io::stderr());
    Serve {
        environment: Vec::new(),
        stdin: &mut io::empty(),
        stdout: &mut stdout,
        stderr: &mut stderr,
        roots: state::Roots::default(),
        build: VERSION,
    }
    .write(&output)
}

/// Calls delegated plugins, in process where the executable found is this one. Nothing is looked at until
/// the first call, because most plugins delegate nothing.
#[derive(Debug)]
struct OnDemand {
    builtins: Builtins,
    environment: Vec<(OsString, OsString)>,
    mixed: OnceLock<Mixed<Builtins>>,
}

impl Executor for OnDemand {
    fn call(
        &self,
        executable: &Path,
        request: &Request,
        deadline: Option<Instant>,
    ) -> Result<Output, InvokeError> {
        let mixed = self.mixed.get_or_init(|| mixed(&self.builtins, &self.environment));
        mixed.call(executable, request, deadline)
    }
}

/// Makes an executor that knows this executable; without procfs, one that starts a process for everything.
pub(crate) fn mixed(builtins: &Builtins, environment: &[(OsString, OsString)]) -> Mixed<Builtins> {
    let exec = Exec::new(environment.iter().cloned());
    Mixed::new(builtins.clone(), exec.clone())
        .unwrap_or_else(|_| Mixed::always_exec(builtins.clone(), exec))
}
