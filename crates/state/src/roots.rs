//! Where the files are, and the system's message bus.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::file::FileError;
use crate::record::Damaged;

/// The two directories that hold everything of ours, and how to reach the host's services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// What a reboot may forget; `/run/netwright` unless told otherwise.
    pub run: PathBuf,
    /// What must survive a reboot; `/var/lib/netwright` unless told otherwise.
    pub lib: PathBuf,
    /// The address of the system's message bus (`DBUS_SYSTEM_BUS_ADDRESS`); where it always is when not told.
    pub system_bus: Option<String>,
    /// What could not be read on behalf of one call.
    pub(crate) unread: Unread,
}

/// The first file or folder of ours that was there and could not be read: not garbled, refused by the kernel.
///
/// A record that is garbled is passed over for good. One that could not be read says something that the call did not learn,
/// and would say it to the next: so a call that removes keeps it, and must not say that it is done. Copies share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unread(Arc<OnceLock<Damaged>>);

impl Unread {
    pub(crate) fn note(&self, damaged: &Damaged) {
        let _ = self.0.set(damaged.clone());
    }

    pub(crate) fn is_some(&self) -> bool {
        self.0.get().is_some()
    }
}

/// Two values lead to the same folders, whatever was met there.
impl PartialEq for Unread {
    fn eq(&self, _: &Unread) -> bool {
        true
    }
}

impl Eq for Unread {}

impl Roots {
    /// Takes both directories. Neither has to exist.
    pub fn new(run: impl Into<PathBuf>, lib: impl Into<PathBuf>) -> Self {
        Roots { run: run.into(), lib: lib.into(), system_bus: None, unread: Unread::default() }
    }

    /// Takes the directories and the message bus that an environment names: `variable` looks one up. A
    /// variable that is empty counts as not set.
    #[must_use]
    pub fn of_environment(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let mut roots = Roots::default();
        if let Some(run) = set("NETWRIGHT_RUN_DIR") {
            roots.run = run.into();
        }
        if let Some(lib) = set("NETWRIGHT_STATE_DIR") {
            roots.lib = lib.into();
        }
        let bus = set("DBUS_SYSTEM_BUS_ADDRESS");
        roots.system_bus = bus.map(|address| address.to_string_lossy().into_owned());
        roots
    }

    /// Returns the same folders for one call, which will learn what could not be read on its behalf.
    #[must_use]
    pub fn for_one_call(&self) -> Roots {
        Roots { unread: Unread::default(), ..self.clone() }
    }

    /// Tells the first file or folder that was there and could not be read since [`Roots::for_one_call`].
    #[must_use]
    pub fn unread(&self) -> Option<&Damaged> {
        self.unread.0.get()
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
