//! Calls plugins within this process if the executable found is this one.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use crate::{Exec, Executor, InvokeError, Output, Request, executable_of};

/// The plugins of an executable.
pub trait Builtin: std::fmt::Debug + Send + Sync {
    /// Calls the plugin of that name; `None` if there is none.
    ///
    /// `executor` is for the plugin's own delegation.
    fn call(
        &self,
        name: &str,
        request: &Request,
        executor: &dyn Executor,
        deadline: Option<Instant>,
    ) -> Option<Output>;
}

/// Calls plugins of this executable in process and starts all others.
///
/// Device and inode decide whether a file is this executable, after following links, or names it
/// ([`executable_of`]): a wrapper script or another project's plugin of the same name is always
/// executed.
#[derive(Debug)]
pub struct MixedExecutor<B> {
    builtin: B,
    exec: Exec,
    own: Option<(u64, u64)>,
    always_exec: bool,
}

impl<B: Builtin> MixedExecutor<B> {
    /// Creates it with the running executable as "this one".
    ///
    /// # Errors
    /// When the metadata of `/proc/self/exe` cannot be read.
    pub fn new(builtin: B, exec: Exec) -> io::Result<Self> {
        let metadata = fs::metadata("/proc/self/exe")?;
        Ok(MixedExecutor {
            builtin,
            exec,
            own: Some((metadata.dev(), metadata.ino())),
            always_exec: false,
        })
    }

    /// Creates it with another file as "this one": for a program that contains the same plugins as
    /// that file, built with it. If the file is replaced, the new one is executed from then on.
    ///
    /// # Errors
    /// When its metadata cannot be read.
    pub fn in_place_of(path: &Path, builtin: B, exec: Exec) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        Ok(MixedExecutor {
            builtin,
            exec,
            own: Some((metadata.dev(), metadata.ino())),
            always_exec: false,
        })
    }

    /// Creates one that executes everything, for comparing the two methods.
    #[must_use]
    pub fn always_exec(builtin: B, exec: Exec) -> Self {
        let own = fs::metadata("/proc/self/exe").ok();
        let own = own.map(|metadata| (metadata.dev(), metadata.ino()));
        MixedExecutor { builtin, exec, own, always_exec: true }
    }
}

impl<B: Builtin> Executor for MixedExecutor<B> {
    fn call(
        &self,
        executable: &Path,
        request: &Request,
        deadline: Option<Instant>,
    ) -> Result<Output, InvokeError> {
        if !self.always_exec
            && self.is_own(executable)
            && let Some(name) = executable.file_name().and_then(|name| name.to_str())
            && let Some(output) = self.builtin.call(name, request, self, deadline)
        {
            return Ok(output);
        }
        self.exec.call(executable, request, deadline)
    }

    fn is_own(&self, file: &Path) -> bool {
        let Some(own) = self.own else { return false };
        let is_it = |path: &Path| {
            path.metadata().is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == own)
        };
        is_it(file) || executable_of(file).is_some_and(|executable| is_it(&executable))
    }
}
