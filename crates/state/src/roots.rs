//! Where the files are, and the system's message bus.

use std::path::{Path, PathBuf};

use crate::file::{FileError, read_optional};

/// The two directories that hold everything of ours, and how to reach the host's services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// What a reboot may forget; `/run/netwright` unless told otherwise.
    pub run: PathBuf,
    /// What must survive a reboot; `/var/lib/netwright` unless told otherwise.
    pub lib: PathBuf,
    /// The address of the system's message bus (`DBUS_SYSTEM_BUS_ADDRESS`); where it always is when not told.
    pub system_bus: Option<String>,
}

impl Roots {
    /// Takes both directories. Neither has to exist.
    pub fn new(run: impl Into<PathBuf>, lib: impl Into<PathBuf>) -> Self {
        Roots { run: run.into(), lib: lib.into(), system_bus: None }
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
