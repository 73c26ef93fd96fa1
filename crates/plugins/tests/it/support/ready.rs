//! What a daemon has said of itself before it went away.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The file in which it says when it was ready last.
pub(crate) struct Ready(PathBuf);

impl Ready {
    pub(crate) fn of(socket: &Path) -> Self {
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        Ready(node_api::ready::file(socket))
    }

    /// It was ready so long ago.
    pub(crate) fn said_before(&self, age: Duration) {
        let now = Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap();
        // A machine that was booted a moment ago cannot know anything that is older.
        self.says(&now.saturating_sub(age).as_millis().to_string());
    }

    pub(crate) fn says(&self, text: &str) {
        fs::write(&self.0, text).unwrap();
    }
}
