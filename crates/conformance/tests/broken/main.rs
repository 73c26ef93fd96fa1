//! A deliberately broken plugin: ours, with a fault that can be switched on.
//!
//! Linked under a plugin's name it is that plugin, with the fault that the file `fault` in the same
//! folder names. With `serve-case` as its argument it is the process of one case, so that tests
//! need no other program.

mod faults;

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::ExitCode;

use cni::CallEnv;
use cni_invoke::{Exec, Executor, InvokeError, Output, Request};
use cni_plugin::{Context, respond};
use faults::Fault;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if arguments.get(1).is_some_and(|first| first == "serve-case") {
        return conformance::serve_case(&mut io::stdin(), &mut io::stdout());
    }
    let program = Path::new(&arguments[0]);
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let fault = std::fs::read_to_string(program.with_file_name("fault")).unwrap_or_default();
    let Some(fault) = Fault::named(fault.trim()) else {
        return ExitCode::from(99);
    };
    plugin(name, fault)
}

/// Answers one call as a plugin, with the fault.
fn plugin(name: &str, fault: Fault) -> ExitCode {
    let plugin = plugins::find(name).expect("linked under a plugin's name");
    let vars: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let mut env =
        CallEnv::from_vars(vars.iter().filter_map(|(key, value)| {
            Some((key.to_str()?.to_owned(), value.to_str()?.to_owned()))
        }));
    let mut stdin = Vec::new();
    // VERSION may leave it open and empty, and a closed one is the plugin's own concern.
    let _ = io::stdin().read_to_end(&mut stdin);
    let verb = env.command.clone();
    if let Some(code) = fault.instead(&verb) {
        return code;
    }
    fault.before(&mut env, &mut stdin);
    let roots = state::Roots::default();
    let executor = Tampering { exec: Exec::new(vars), fault };
    let context = Context { roots: &roots, executor: &executor, deadline: None, build: "broken" };
    let mut output = match fault.skips(&verb) {
        true => Output::default(),
        false => respond(plugin, &env, &mut io::Cursor::new(&stdin), &context),
    };
    let code = fault.after(&verb, &env, &mut output);
    let _ = io::stderr().write_all(&output.stderr);
    let _ = io::stdout().write_all(&output.stdout);
    ExitCode::from(code)
}

/// Calls delegates, with the fault.
#[derive(Debug)]
struct Tampering {
    exec: Exec,
    fault: Fault,
}

impl Executor for Tampering {
    fn call(
        &self,
        executable: &Path,
        request: &Request,
        deadline: Option<std::time::Instant>,
    ) -> Result<Output, InvokeError> {
        let mut request = request.clone();
        if self.fault.delegate(&mut request) {
            return Ok(Output::default());
        }
        let mut output = self.exec.call(executable, &request, deadline)?;
        self.fault.delegated(&mut output);
        Ok(output)
    }

    /// All plugins of the folder are this program, as those of the executable that ships: each undoes
    /// what it did itself, and a chain leaves it that.
    fn is_own(&self, executable: &Path) -> bool {
        let id = |path: &Path| path.metadata().ok().map(|file| (file.dev(), file.ino()));
        let own = std::env::current_exe().ok().and_then(|own| id(&own));
        own.is_some() && id(executable) == own
    }
}
