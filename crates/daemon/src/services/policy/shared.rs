//! The engine, for the loop and for whoever asks.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::engine::Engine;

/// The engine. It is held for decisions only, never while something waits; copies share it.
#[derive(Debug, Clone)]
pub(super) struct Shared(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    engine: Mutex<Engine>,
    /// Somebody has confirmed what lists lack.
    accepted: AtomicBool,
    bell: UnixStream,
    ringer: UnixStream,
}

impl Shared {
    pub(super) fn new(engine: Engine) -> std::io::Result<Self> {
        let (bell, ringer) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        ringer.set_nonblocking(true)?;
        let (engine, accepted) = (Mutex::new(engine), AtomicBool::new(false));
        Ok(Shared(Arc::new(Inner { engine, accepted, bell, ringer })))
    }

    /// An engine of the node `one` that knows these objects, and nothing else.
    #[cfg(test)]
    pub(super) fn knowing(world: policy::World) -> Self {
        Shared::new(Engine::knowing(world)).unwrap()
    }

    pub(super) fn engine(&self) -> MutexGuard<'_, Engine> {
        self.0.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what is readable when somebody wants something done.
    pub(super) fn bell(&self) -> &UnixStream {
        &self.0.bell
    }

    /// Drops what is kept since a list lacked it: somebody has confirmed that.
    pub(super) fn accept(&self) {
        self.0.accepted.store(true, Ordering::SeqCst);
        // If the socket is full, the loop is about to look.
        let _ = (&self.0.ringer).write(&[0]);
    }

    /// Says whether somebody has confirmed it since the last call.
    pub(super) fn take_accepted(&self) -> bool {
        crate::poll::drain(&self.0.bell);
        self.0.accepted.swap(false, Ordering::SeqCst)
    }
}
