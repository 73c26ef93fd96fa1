//! The messages that plugins left while no daemon listened: a folder with a file for each one-line
//! message.
//!
//! The daemon takes a file by renaming it, so that it does not confuse it with one that a plugin
//! leaves meanwhile under the same name. It does files first that a killed daemon had taken.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// The pause between looks at the folder.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The suffix of a file that was taken.
const TAKEN: &str = ".taken";

/// Handles the messages in the folder now; `done` says whether a message can be deleted.
pub(super) fn look(folder: &Path, done: impl Fn(&Path, &[u8]) -> bool) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let files = files.filter(|file| !file.starts_with('.'));
    let names: BTreeSet<String> =
        files.map(|file| file.strip_suffix(TAKEN).unwrap_or(&file).to_owned()).collect();
    for name in names {
        look_at(folder, &name, &done);
    }
}

/// Handles messages for ever, on a thread that may block.
pub(super) async fn run(look: impl Fn() + Clone + Send + 'static) {
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        if tokio::task::spawn_blocking(look.clone()).await.is_err() {
            return;
        }
    }
}

/// Handles the message with a given name.
pub(super) fn look_at(folder: &Path, name: &str, done: impl Fn(&Path, &[u8]) -> bool) {
    let taken = folder.join(format!("{name}{TAKEN}"));
    if taken.exists() {
        finish(&taken, &done);
    }
    // An older one that failed is still there: the newer one waits.
    if taken.exists() || std::fs::rename(folder.join(name), &taken).is_err() {
        return;
    }
    finish(&taken, &done);
}

fn finish(path: &Path, done: &impl Fn(&Path, &[u8]) -> bool) {
    let text = match state::read_optional(path) {
        Ok(Some(text)) => text,
        Ok(None) => return,
        Err(error) => {
            tracing::warn!(%error, "cannot read what a plugin left");
            return;
        }
    };
    // Tried again at the next look.
    if !done(path, &text) {
        return;
    }
    if let Err(error) = state::remove_file(path) {
        tracing::warn!(%error, "cannot remove what is done");
    }
}
