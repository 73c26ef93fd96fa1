//! From a source's thread to the loop: what was heard, and a bell that wakes the loop.

use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;

/// The loop's end.
#[derive(Debug)]
pub(super) struct Inlet<T> {
    heard: mpsc::Receiver<T>,
    bell: UnixStream,
}

impl<T> Inlet<T> {
    /// Returns what is readable when something was heard.
    pub(super) fn bell(&self) -> &UnixStream {
        &self.bell
    }

    /// Takes what was heard since the last call.
    pub(super) fn heard(&self) -> Vec<T> {
        crate::poll::drain(&self.bell);
        self.heard.try_iter().collect()
    }
}

/// The thread's end.
#[derive(Debug)]
pub(super) struct Outlet<T> {
    to: mpsc::Sender<T>,
    ringer: UnixStream,
}

impl<T> Outlet<T> {
    /// Says what was heard, and rings. The loop is gone only when the process ends.
    pub(super) fn tell(&self, heard: T) {
        let _ = self.to.send(heard);
        // If the socket is full, the loop is about to look.
        let _ = (&self.ringer).write(&[0]);
    }
}

/// Creates both ends.
pub(super) fn pair<T>() -> io::Result<(Inlet<T>, Outlet<T>)> {
    let (bell, ringer) = UnixStream::pair()?;
    bell.set_nonblocking(true)?;
    ringer.set_nonblocking(true)?;
    let (to, heard) = mpsc::channel();
    Ok((Inlet { heard, bell }, Outlet { to, ringer }))
}
