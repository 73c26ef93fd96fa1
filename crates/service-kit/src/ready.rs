//! Records regularly that the service can do its work: a plugin's STATUS tolerates a daemon that is
//! away for a moment ([`node_api::ready`]).

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock;

/// The pause before the first record, and after each: a small part of the time that STATUS
/// tolerates.
const FIRST_DELAY: Duration = Duration::from_millis(250);
const INTERVAL: Duration = Duration::from_secs(5);

/// The file in which a daemon records it. The last record stays: either another daemon follows, or
/// none.
#[derive(Debug)]
pub struct ReadyFile {
    socket: PathBuf,
    /// The log already says that the file cannot be written.
    told: bool,
}

impl ReadyFile {
    /// Takes the socket at which the daemon serves.
    pub fn of(socket: &Path) -> Self {
        ReadyFile { socket: socket.to_owned(), told: false }
    }

    /// Records that the daemon is ready now.
    pub fn say(&mut self) {
        let now = Duration::from_millis(clock::boot_ms());
        let said = node_api::ready::record(&self.socket, now);
        if let (Err(error), false) = (&said, self.told) {
            tracing::warn!(%error, "STATUS will fail while this daemon is restarted");
        }
        self.told = said.is_err();
    }
}

/// Records it for ever, while `is_ready` is true.
pub async fn run(socket: PathBuf, is_ready: impl Fn() -> bool + Send + 'static) {
    let mut file = ReadyFile::of(&socket);
    let mut pause = FIRST_DELAY;
    loop {
        if is_ready() {
            file.say();
            pause = INTERVAL;
        }
        tokio::time::sleep(pause).await;
    }
}
