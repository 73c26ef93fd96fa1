//! What an asynchronous service runs on, and its start and end.

use agent::LoadedConfig;
use tokio::runtime::Runtime;

use crate::bell::Bell;
use crate::health::Health;
use crate::listen::Listener;
use crate::process::{Attendance, LONG, Process, raise_descriptor_limit, stop_signals};
use crate::stop::{Stop, failed};

/// An asynchronous service before it serves.
#[derive(Debug)]
pub struct AsyncService<'p> {
    process: &'p Process,
    signals: Bell,
    runtime: Runtime,
    _attendance: Attendance,
}

impl<'p> AsyncService<'p> {
    /// Listens for signals, and answers for the service's status. `loaded` is what the service runs
    /// with; the runtime is that of [`runtime`].
    ///
    /// # Errors
    /// What the system says.
    pub fn new(
        process: &'p Process,
        loaded: &LoadedConfig,
        runtime: Runtime,
    ) -> Result<Self, Stop> {
        let signals = stop_signals().map_err(failed)?;
        raise_descriptor_limit();
        let attendance = process.attend(process.health.service(), loaded)?;
        Ok(AsyncService { process, signals, runtime, _attendance: attendance })
    }

    /// Serves until a signal ends it. `start` begins to serve at the socket, and says that the
    /// service is ready; what it spawns goes on until then. Work under way is dropped at the end: it
    /// must be on the disk, or nobody has had an answer about it.
    ///
    /// # Errors
    /// Why the service could not start, or cannot go on.
    pub fn serve(
        self,
        listener: Listener,
        start: impl AsyncFnOnce(&Listener) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let served = self.runtime.block_on(async {
            start(&listener).await?;
            tokio::spawn(go_on(self.process.health.clone()));
            self.signals.rung().await.map_err(failed)
        });
        self.process.tell_stopping();
        self.runtime.shutdown_background();
        listener.close();
        served
    }
}

/// Creates what an asynchronous service runs on: one thread, and at most `blocking` threads that
/// may wait for disks, plugins and servers.
pub fn runtime(blocking: usize) -> Result<Runtime, Stop> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().enable_time().max_blocking_threads(blocking).build().map_err(failed)
}

/// Shows for ever that the asynchronous thread goes on.
async fn go_on(health: Health) {
    loop {
        health.turns();
        tokio::time::sleep(health.pause(LONG)).await;
    }
}
