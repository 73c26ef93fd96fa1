//! Delegation (CNI 1.1.0 §4).

use cni::{AddResult, Command, Error, code};
use cni_invoke::{Request, find};

use crate::{Call, codes};

/// A plugin called by another with the other's configuration, most often for addresses.
///
/// It is looked up in `CNI_PATH`, gets the same bytes on standard input and the same environment but for
/// the verb, and its standard error joins the caller's.
#[derive(Debug, Clone, Copy)]
pub struct Delegate<'c> {
    pub(crate) call: &'c Call<'c>,
    pub(crate) plugin_type: &'c str,
}

impl Delegate<'_> {
    /// Returns the delegate's type.
    #[must_use]
    pub fn plugin_type(&self) -> &str {
        self.plugin_type
    }

    /// Runs ADD.
    ///
    /// # Errors
    /// The delegate's own error, unchanged; code 7 when it is not found; code 107 when it does not run.
    pub fn add(&self) -> Result<AddResult, Error> {
        let stdout = self.run(Command::Add)?;
        AddResult::parse(&stdout, self.call.version).map_err(|error| {
            error.context(format_args!("read the result of plugin {:?}", self.plugin_type))
        })
    }

    /// Runs DEL.
    ///
    /// # Errors
    /// As [`Delegate::add`].
    pub fn del(&self) -> Result<(), Error> {
        self.run(Command::Del).map(drop)
    }

    /// Runs CHECK.
    ///
    /// # Errors
    /// As [`Delegate::add`].
    pub fn check(&self) -> Result<(), Error> {
        self.run(Command::Check).map(drop)
    }

    /// Runs GC.
    ///
    /// # Errors
    /// As [`Delegate::add`].
    pub fn gc(&self) -> Result<(), Error> {
        self.run(Command::Gc).map(drop)
    }

    /// Runs STATUS.
    ///
    /// # Errors
    /// As [`Delegate::add`].
    pub fn status(&self) -> Result<(), Error> {
        self.run(Command::Status).map(drop)
    }

    fn run(&self, command: Command) -> Result<Vec<u8>, Error> {
        let env = &self.call.env;
        let executable =
            find(self.plugin_type, &env.plugin_path()).map_err(|error| error.to_cni())?;
        let mut request = Request { env: (*env).clone(), stdin: self.call.document.to_vec() };
        command.as_str().clone_into(&mut request.env.command);
        let context = self.call.context;
        let output =
            context.executor.call(&executable, &request, context.deadline).map_err(|error| {
                let mut error = error.to_cni();
                if error.code == code::IO_FAILURE {
                    error.code = codes::DELEGATE;
                }
                error
            })?;
        self.call.write_stderr(&output.stderr);
        output.into_stdout()
    }
}
