//! What plugins left when nobody listened: a folder of one-line messages, a file each.
//!
//! A file is taken by renaming it, so that what a plugin leaves meanwhile under its name is not taken for it. A file that was
//! taken by a daemon that was killed is done first.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// The pause between looks into the folder.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How a file is called that was taken.
const TAKEN: &str = ".taken";

/// Does what is left now: `done` says whether a message needs to be kept no more.
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

/// Has what is left done, for ever, on a thread that may wait.
pub(super) async fn run(look: impl Fn() + Clone + Send + 'static) {
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        if tokio::task::spawn_blocking(look.clone()).await.is_err() {
            return;
        }
    }
}

/// Does what is left under a name.
pub(super) fn look_at(folder: &Path, name: &str, done: impl Fn(&Path, &[u8]) -> bool) {
    let taken = folder.join(format!("{name}{TAKEN}"));
    if taken.exists() {
        finish(&taken, &done);
    }
    // One that could not be done is still there: the newer one waits.
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
