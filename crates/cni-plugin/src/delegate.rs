//! Delegation (CNI 1.1.0 §4).

use std::time::{Duration, Instant};

use cni::json::Object;
use cni::{AddResult, AttachmentKey, Command, Error, GcAttachment, RepairReport, code};
use cni_invoke::{InvokeError, Request, find, find_own};

use crate::{Call, codes};

/// How long a delegate may take if the caller set no deadline: as long as the kubelet allows for a
/// whole sandbox. After that no caller waits for the answer.
pub const TIMEOUT: Duration = Duration::from_secs(240);

/// The minimum time for the DEL after a failed ADD, even if the time for the ADD is used up.
const CLEANUP_TIME: Duration = Duration::from_secs(10);

/// A plugin called by another with the other's configuration, most often for addresses.
///
/// It is looked up in `CNI_PATH`. It gets the same bytes on standard input (unless it has others:
/// [`Call::delegate_with`](crate::Call::delegate_with), [`Delegate::gc_keeping`]) and the same
/// environment except for the verb. Its standard error joins the caller's.
#[derive(Debug, Clone, Copy)]
pub struct Delegate<'c> {
    pub(crate) call: &'c Call<'c>,
    pub(crate) plugin_type: &'c str,
    pub(crate) document: &'c [u8],
}

impl Delegate<'_> {
    /// Returns the delegate's type.
    #[must_use]
    pub fn plugin_type(&self) -> &str {
        self.plugin_type
    }

    /// Reports whether its executable exists.
    #[must_use]
    pub fn is_there(&self) -> bool {
        find(self.plugin_type, &self.call.env.plugin_path()).is_ok()
    }

    /// Reports whether it is a plugin of this executable, found under its name: another project's
    /// plugin of the same name is not.
    #[must_use]
    pub fn is_own(&self) -> bool {
        let executable = find(self.plugin_type, &self.call.env.plugin_path());
        executable.is_ok_and(|path| self.call.context.executor.is_own(&path))
    }

    /// Runs ADD, and DEL if ADD failed or left no readable result (CNI 1.1.0 §4 "Delegated plugin
    /// execution procedure"): the caller then has nothing to undo. A plugin of ours undoes what it
    /// did itself: a DEL would release what the attachment had before. One that refuses its
    /// configuration at DEL as it did at ADD has made nothing.
    ///
    /// # Errors
    /// The delegate's own error, unchanged; code 7 when it is not found, or is the calling plugin
    /// itself; code 107 when it does not run; code 11 when it did not end in time. If the DEL
    /// failed too, for another reason, the details say so, and [`Error::left`].
    pub fn add(&self) -> Result<AddResult, Error> {
        let failure = match self.run(Command::Add, self.deadline()) {
            Ok(stdout) => match AddResult::parse(&stdout, self.call.version) {
                Ok(result) => return Ok(result),
                Err(error) => {
                    error.context(format_args!("read the result of plugin {:?}", self.plugin_type))
                }
            },
            Err(Failure::NotRun(error)) => return Err(error),
            Err(Failure::Ran(error)) if error.leaves_nothing() && self.is_own() => {
                return Err(error);
            }
            Err(Failure::Ran(error)) => error,
        };
        let refusal = failure.refusal();
        let time_left = self.deadline().max(Instant::now() + CLEANUP_TIME);
        match self.undo_until(time_left) {
            Ok(()) => Err(failure.undone()),
            Err(undo) if refusal.is_some_and(|refusal| undo.is_only(&refusal)) => {
                Err(failure.undone())
            }
            Err(undo) => Err(failure.with_left(format!(
                "undoing it with DEL of plugin {:?} failed too: {undo}",
                self.plugin_type
            ))),
        }
    }

    /// Runs DEL so that it undoes an ADD of this call ([`cni::UNDO`]).
    ///
    /// # Errors
    /// As [`Delegate::add`].
    pub fn undo(&self) -> Result<(), Error> {
        self.undo_until(self.deadline())
    }

    fn undo_until(&self, deadline: Instant) -> Result<(), Error> {
        let mut document = self.document()?;
        document.set_value(cni::UNDO, &true);
        let undoing = Delegate { document: &document.to_vec(), ..*self };
        undoing.run(Command::Del, deadline).map(drop).map_err(Failure::into_error)
    }

    /// Runs DEL.
    ///
    /// # Errors
    /// As [`Delegate::add`].
    pub fn del(&self) -> Result<(), Error> {
        self.silent(Command::Del)
    }

    /// Runs CHECK without repair, even if the call repairs.
    ///
    /// # Errors
    /// As [`Delegate::add`].
    pub fn check(&self) -> Result<(), Error> {
        if self.call.config.repair != Some(true) {
            return self.silent(Command::Check);
        }
        let mut document = self.document()?;
        // Not removed: the delegate knows by it that its caller checks often.
        document.set_value(cni::REPAIR, &false);
        Delegate { document: &document.to_vec(), ..*self }.silent(Command::Check)
    }

    /// Runs the CHECK of a call that repairs: the delegate gets the same request, repairs and
    /// checks. Returns what it restored.
    ///
    /// # Errors
    /// As [`Delegate::add`].
    pub fn repair(&self) -> Result<Vec<String>, Error> {
        let stdout = self.run(Command::Check, self.deadline()).map_err(Failure::into_error)?;
        Ok(RepairReport::parse(&stdout).lines)
    }

    /// Runs GC.
    ///
    /// # Errors
    /// As [`Delegate::add`].
    pub fn gc(&self) -> Result<(), Error> {
        self.silent(Command::Gc)
    }

    /// Runs GC so that the delegate also keeps what some more attachments have, as if the runtime
    /// had listed them as valid.
    ///
    /// # Errors
    /// As [`Delegate::add`].
    pub fn gc_keeping(&self, kept: &[AttachmentKey]) -> Result<(), Error> {
        let mut document = self.document()?;
        let kept = kept.iter().map(|key| GcAttachment {
            container_id: key.container_id.to_string(),
            ifname: key.ifname.to_string(),
        });
        let valid: Vec<_> = self.call.valid_attachments().iter().cloned().chain(kept).collect();
        // The second key was its name before CNI 1.1.0 was final.
        document.set_value("cni.dev/valid-attachments", &valid);
        if document.get("cni.dev/attachments").is_some() {
            document.set_value("cni.dev/attachments", &valid);
        }
        Delegate { document: &document.to_vec(), ..*self }.gc()
    }

    /// Runs STATUS.
    ///
    /// # Errors
    /// As [`Delegate::add`].
    pub fn status(&self) -> Result<(), Error> {
        self.silent(Command::Status)
    }

    fn document(&self) -> Result<Object, Error> {
        Object::parse(self.document).map_err(|error| {
            Error::new(code::DECODE_FAILURE, format!("failed to load netconf: {error}"))
        })
    }

    /// Runs any verb without undoing anything; returns what the plugin printed.
    ///
    /// # Errors
    /// As [`Delegate::add`].
    pub fn call(&self, command: Command) -> Result<Vec<u8>, Error> {
        self.run(command, self.deadline()).map_err(Failure::into_error)
    }

    fn silent(&self, command: Command) -> Result<(), Error> {
        self.call(command).map(drop)
    }

    fn deadline(&self) -> Instant {
        self.call.context.deadline.unwrap_or_else(|| Instant::now() + TIMEOUT)
    }

    fn run(&self, command: Command, deadline: Instant) -> Result<Vec<u8>, Failure> {
        // It would get the same configuration, call itself again, and so on.
        if self.plugin_type == self.call.plugin {
            let text = format!("plugin {:?} cannot delegate to itself", self.plugin_type);
            return Err(Failure::NotRun(Error::new(code::INVALID_CONFIG, text)));
        }
        let env = &self.call.env;
        let path = env.plugin_path();
        let executable = match self.call.is_renewed() {
            // Another project's plugin would remove what the container's other life has.
            true => find_own(self.plugin_type, &path, self.call.context.executor),
            false => find(self.plugin_type, &path),
        };
        let executable = executable.map_err(|error| Failure::NotRun(error.to_cni()))?;
        let mut request = Request { env: (*env).clone(), stdin: self.document.to_vec() };
        command.as_str().clone_into(&mut request.env.command);
        let called = self.call.context.executor.call(&executable, &request, Some(deadline));
        let output = called.map_err(Failure::of_call)?;
        self.call.write_stderr(&output.stderr);
        output.into_stdout().map_err(|error| {
            let is_own = self.call.context.executor.is_own(&executable);
            let error = if is_own { error } else { error.of_foreign() };
            Failure::Ran(error.with_refusal())
        })
    }
}

/// The reason why a delegate gave no usable answer.
enum Failure {
    /// It never ran: there is nothing to undo.
    NotRun(Error),
    /// It ran, and may have done something.
    Ran(Error),
}

impl Failure {
    fn of_call(error: InvokeError) -> Self {
        let mut object = error.to_cni();
        if object.code == code::IO_FAILURE {
            object.code = codes::DELEGATE;
        }
        match error {
            InvokeError::Start { .. } => Failure::NotRun(object),
            _ => Failure::Ran(object),
        }
    }

    fn into_error(self) -> Error {
        match self {
            Failure::NotRun(error) | Failure::Ran(error) => error,
        }
    }
}
