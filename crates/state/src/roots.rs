//! Where the files are, and the address of the system message bus.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::file::FileError;
use crate::record::DamagedFile;

/// The folder, below [`Roots::run`], of the namespaces in which interfaces are made for containers
/// of Docker's: Docker's driver moves them on from there (docs/files.md).
pub const PASSAGES: &str = "docker/netns";

/// How the names of these namespaces begin. Docker has a folder of the same name for its
/// containers, and names them by digits.
pub const PASSAGE: &str = "nwd";

/// Says whether a path is that of a namespace in [`PASSAGES`], below any folder: the end of such a
/// namespace says nothing about the container.
#[must_use]
pub fn is_passage(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| name.starts_with(PASSAGE))
        && path.parent().is_some_and(|folder| folder.ends_with(PASSAGES))
}

/// The two directories that hold everything of ours, and how to reach the host's services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// What a reboot may lose; `/run/netwright` by default.
    pub run: PathBuf,
    /// What must survive a reboot; `/var/lib/netwright` by default.
    pub lib: PathBuf,
    /// The address of the system message bus (`DBUS_SYSTEM_BUS_ADDRESS`); the standard address by
    /// default.
    pub system_bus: Option<String>,
    /// What one call could not read.
    pub(crate) unread: UnreadFile,
}

/// The first file or folder of ours that existed and could not be read: not garbled, but refused by
/// the kernel.
///
/// A garbled record is always skipped. A record that could not be read contains something that
/// this call did not learn, and the next call may read it. So a call that removes keeps such a
/// record, and must not report success. Copies share this value.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnreadFile(Arc<OnceLock<DamagedFile>>);

impl UnreadFile {
    pub(crate) fn note(&self, damaged: &DamagedFile) {
        let _ = self.0.set(damaged.clone());
    }

    pub(crate) fn is_some(&self) -> bool {
        self.0.get().is_some()
    }
}

/// Two values are equal if they lead to the same folders; what could not be read there does not
/// matter.
impl PartialEq for UnreadFile {
    fn eq(&self, _: &UnreadFile) -> bool {
        true
    }
}

impl Eq for UnreadFile {}

impl Roots {
    /// Takes both directories. Neither has to exist.
    pub fn new(run: impl Into<PathBuf>, lib: impl Into<PathBuf>) -> Self {
        Roots { run: run.into(), lib: lib.into(), system_bus: None, unread: UnreadFile::default() }
    }

    /// Reads the directories and the message bus from an environment, of which `variable` returns
    /// one variable. An empty variable counts as unset.
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

    /// Returns the same folders for one call, and collects what that call cannot read.
    ///
    /// A garbled record no longer says anything, and is skipped. One that the kernel refused to
    /// read (EIO, EMFILE, …) says something that the next call may find out. So DEL and GC then do
    /// everything else, fail with code 105, and leave the record.
    #[must_use]
    pub fn for_one_call(&self) -> Roots {
        Roots { unread: UnreadFile::default(), ..self.clone() }
    }

    /// Returns the first file or folder that existed and could not be read since
    /// [`Roots::for_one_call`].
    #[must_use]
    pub fn unread(&self) -> Option<&DamagedFile> {
        self.unread.0.get()
    }

    /// Returns the directory for what is known of address pools without reading them. It contains
    /// only hints, each worthless after a reboot: it may be removed at any time.
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

/// Reads the identity of this boot, a random text that the kernel chooses (`man 4 random`). A
/// process reads it only once.
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
    // 36 characters and a newline, in one read.
    let mut text = [0; 64];
    let length = match File::open(path) {
        Ok(mut file) => file.read(&mut text).map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(failed(error)),
    };
    Ok(READ.get_or_init(|| String::from_utf8_lossy(&text[..length]).trim().to_owned()).clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passage_is_told_from_the_namespaces_of_docker() {
        let is = |path: &str| is_passage(Path::new(path));
        assert!(is("/run/netwright/docker/netns/nwd0123456789ab"));
        assert!(is("/host/run/other/docker/netns/nwd0123456789ab"));
        assert!(!is("/var/run/docker/netns/0123456789ab") && !is("/run/netns/nwd0"));
        assert!(!is("/run/netwright/docker/netns") && !is(""));
    }
}
