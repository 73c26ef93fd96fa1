//! The socket that plugins connect to: passed in by systemd, or created here.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

/// The pause after a connection could not be accepted, for want of descriptors or memory: it stays
/// ready, and other connections may end meanwhile.
pub const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The mode of the socket's folder when the daemon creates it.
const FOLDER_MODE: u32 = 0o700;

/// Why there is no socket.
#[derive(Debug, Error)]
pub enum ListenError {
    /// The service manager passed in more than one.
    #[error("Too many ({0}) FDs passed through socket activation")]
    TooMany(usize),
    /// What it passed in cannot be used.
    #[error("take the socket that the service manager opened")]
    HandedOver(#[source] io::Error),
    /// Another process serves there.
    #[error("{path:?} is in use: a daemon answers there")]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something else has the path.
    #[error("listen at {path:?}: a file that is not a socket is there")]
    Foreign {
        /// The path.
        path: PathBuf,
    },
    /// The system refuses.
    #[error("listen at {path:?}")]
    Bind {
        /// The socket.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// Its folder, or a file that was left there, is in the way.
    #[error(transparent)]
    Folder(#[from] state::FileError),
}

/// A socket to listen at.
#[derive(Debug)]
pub struct Listener {
    /// The socket; it does not block.
    pub socket: UnixListener,
    /// The path at which plugins find it.
    pub path: PathBuf,
    /// The daemon created the socket's file, and removes it at the end.
    made: bool,
}

impl Listener {
    /// Takes the one socket that was passed in, or listens at `path`.
    pub fn open(handed_over: Vec<OwnedFd>, path: &Path) -> Result<Self, ListenError> {
        let count = handed_over.len();
        let mut handed_over = handed_over.into_iter();
        let listener = match (count, handed_over.next()) {
            (1, Some(fd)) => Self::take(fd, path)?,
            (0, _) => Self::bind(path)?,
            _ => return Err(ListenError::TooMany(count)),
        };
        listener.socket.set_nonblocking(true).map_err(ListenError::HandedOver)?;
        Ok(listener)
    }

    fn take(fd: OwnedFd, path: &Path) -> Result<Self, ListenError> {
        let socket = UnixListener::from(fd);
        let local = socket.local_addr().map_err(ListenError::HandedOver)?;
        let path = local.as_pathname().unwrap_or(path).to_owned();
        Ok(Listener { socket, path, made: false })
    }

    fn bind(path: &Path) -> Result<Self, ListenError> {
        let failed = |source| ListenError::Bind { path: path.to_owned(), source };
        if let Some(folder) = path.parent() {
            state::create_directory(folder, FOLDER_MODE)?;
        }
        match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
            Ok(found) if !found.file_type().is_socket() => {
                return Err(ListenError::Foreign { path: path.to_owned() });
            }
            // A killed daemon left it, unless something answers.
            Ok(_) => match UnixStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    state::remove_file(path)?;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error)),
                Ok(_) => return Err(ListenError::InUse { path: path.to_owned() }),
            },
        }
        let socket = UnixListener::bind(path).map_err(failed)?;
        // Only the daemon's own user may connect: the credentials of each peer are checked as well.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o660);
        std::fs::set_permissions(path, mode).map_err(failed)?;
        Ok(Listener { socket, path: path.to_owned(), made: true })
    }

    /// Stops listening.
    pub fn close(self) {
        if self.made {
            // If it stays, the next daemon finds it stale.
            let _ = state::remove_file(&self.path);
        }
    }
}

/// Reads from the environment which sockets were passed in.
pub fn handed_over(environment: &[(OsString, OsString)]) -> Result<Vec<OwnedFd>, ListenError> {
    let variable = |name: &str| {
        let found = environment.iter().find(|(key, _)| key == name);
        found.and_then(|(_, value)| value.to_str())
    };
    kernel::inherited::take(variable("LISTEN_PID"), variable("LISTEN_FDS"))
        .map_err(ListenError::HandedOver)
}
