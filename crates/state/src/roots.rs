//! Where the files are, and the system's message bus.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::file::FileError;

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

    /// Returns the directory of what is known of address pools without reading them. Only hints are in it, each worth
    /// nothing after a reboot: it may be removed at any time.
    #[must_use]
    pub fn addresses(&self) -> PathBuf {
        self.run.join("addresses")
    }
}

impl Default for Roots {
    fn default() -> Self {
        Roots::new("/run/netwright", "/var/lib/netwright")
    }
}

/// Reads the identity of this boot, a random text that the kernel chooses (`man 4 random`). It is read once in the life of
/// a process.
///
/// # Errors
/// [`FileError`] when procfs cannot be read.
pub fn boot_id() -> Result<String, FileError> {
    static READ: OnceLock<String> = OnceLock::new();
    if let Some(id) = READ.get() {
        return Ok(id.clone());
    }
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let failed = |source| FileError::Read { path: path.to_owned(), source };
    // 36 characters and a line's end, in one read.
    let mut text = [0; 64];
    let length = match File::open(path) {
        Ok(mut file) => file.read(&mut text).map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(failed(error)),
    };
    Ok(READ.get_or_init(|| String::from_utf8_lossy(&text[..length]).trim().to_owned()).clone())
}
