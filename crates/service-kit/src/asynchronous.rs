//! What an asynchronous service runs on.

use crate::bell::Bell;
use crate::health::Health;
use crate::process::LONG;
use crate::stop::{Stop, failed};

/// Creates what an asynchronous service runs on: one thread, and at most `blocking` threads that
/// may wait for disks, plugins and servers.
pub fn runtime(blocking: usize) -> Result<tokio::runtime::Runtime, Stop> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().enable_time().max_blocking_threads(blocking).build().map_err(failed)
}

/// Shows for ever that the asynchronous thread goes on.
pub async fn go_on(health: Health) {
    loop {
        health.turns();
        tokio::time::sleep(health.pause(LONG)).await;
    }
}

/// Waits for a signal without blocking the asynchronous thread.
pub async fn wait(signals: Bell) -> std::io::Result<()> {
    signals.rung().await
}
