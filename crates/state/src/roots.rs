//! Where the files are.

use std::path::{Path, PathBuf};

use crate::file::{FileError, read_optional};

/// The two directories that hold everything of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// What a reboot may forget; `/run/netwright` unless told otherwise.
    pub run: PathBuf,
    /// What must survive a reboot; `/var/lib/netwright` unless told otherwise.
    pub lib: PathBuf,
}

impl Roots {
    /// Takes both directories. Neither has to exist.
    pub fn new(run: impl Into<PathBuf>, lib: impl Into<PathBuf>) -> Self {
        Roots { run: run.into(), lib: lib.into() }
    }
}

impl Default for Roots {
    fn default() -> Self {
        Roots::new("/run/netwright", "/var/lib/netwright")
    }
}

/// Reads the identity of this boot, a random text that the kernel chooses (`man 4 random`).
///
/// # Errors
/// [`FileError`] when procfs cannot be read.
pub fn boot_id() -> Result<String, FileError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = read_optional(path)?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}
