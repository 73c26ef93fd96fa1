//! What a daemon recorded about itself before it went away.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The file with the time when the daemon was last ready.
pub(crate) struct Ready(PathBuf);

impl Ready {
    pub(crate) fn of(socket: &Path) -> Self {
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        Ready(node_api::ready::file(socket))
    }

    /// Sets the time at which the daemon was last ready to this long ago.
    pub(crate) fn said_before(&self, age: Duration) {
        let now = Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap();
        // On a machine that was booted a moment ago, no time can be that long ago.
        self.says(&now.saturating_sub(age).as_millis().to_string());
    }

    pub(crate) fn says(&self, text: &str) {
        fs::write(&self.0, text).unwrap();
    }
}
