//! The engine, for the loop and the other threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use service_kit::bell::Bell;

use super::engine::Engine;

/// The engine; copies share it. It is held for decisions, and by the loop while that compares the
/// packet filter with the program.
#[derive(Debug, Clone)]
pub(super) struct SharedEngine(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    engine: Mutex<Engine>,
    /// The thread that holds this lock gets the engine next.
    next: Mutex<()>,
    /// An administrator has confirmed what lists lack.
    accepted: AtomicBool,
    /// Every kind of objects was listed.
    listed: AtomicBool,
    bell: Bell,
}

impl SharedEngine {
    pub(super) fn new(engine: Engine) -> std::io::Result<Self> {
        let bell = Bell::new()?;
        let (engine, next) = (Mutex::new(engine), Mutex::new(()));
        let (accepted, listed) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(SharedEngine(Arc::new(Inner { engine, next, accepted, listed, bell })))
    }

    /// An engine of the node `one` that knows these objects, and nothing else.
    #[cfg(test)]
    pub(super) fn knowing(world: policy::World) -> Self {
        SharedEngine::new(Engine::knowing(world)).unwrap()
    }

    /// Waits for the engine. A thread that takes it again and again, for one packet or one
    /// connection after the other, gets it after the threads that wait meanwhile: the loop, and the
    /// plugins that wait for the loop, come first.
    pub(super) fn engine(&self) -> MutexGuard<'_, Engine> {
        let _next = self.0.next.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes whether every kind of objects was listed.
    pub(super) fn note_lists(&self, are_complete: bool) {
        self.0.listed.store(are_complete, Ordering::SeqCst);
    }

    /// Reports whether every kind of objects was listed, without waiting for the engine.
    pub(super) fn are_listed(&self) -> bool {
        self.0.listed.load(Ordering::SeqCst)
    }

    /// Returns what becomes readable when another thread wants something done.
    pub(super) fn bell(&self) -> &Bell {
        &self.0.bell
    }

    /// Drops what is kept since a list lacked it: an administrator has confirmed that.
    pub(super) fn accept(&self) {
        self.0.accepted.store(true, Ordering::SeqCst);
        self.0.bell.ring();
    }

    /// Says whether an administrator has confirmed it since the last call.
    pub(super) fn take_accepted(&self) -> bool {
        self.0.bell.heard();
        self.0.accepted.swap(false, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn who_waits_has_the_engine_before_who_has_just_had_it() {
        let shared = SharedEngine::knowing(policy::World::default());
        let turns = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let held = shared.engine();
            scope.spawn(|| {
                let _engine = shared.engine();
                turns.fetch_add(1, Ordering::SeqCst);
            });
            // The other thread is next, and waits.
            while shared.0.next.try_lock().is_ok() {
                std::thread::yield_now();
            }
            drop(held);
            let _engine = shared.engine();
            assert_eq!(turns.load(Ordering::SeqCst), 1);
        });
    }
}
