//! What plugins left when nobody listened.
//!
//! A file is taken by renaming it, so that what a plugin leaves meanwhile under its name is not taken for it. A file that was
//! taken by a daemon that was killed is done first.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use npwg::wire::{self, Answer};

use super::service::Service;

/// The pause between looks into the folder.
const PAUSE: Duration = Duration::from_millis(500);
/// How a file is called that was taken.
const TAKEN: &str = ".taken";

/// Does what is left, for ever.
pub(super) async fn run(service: Arc<Service>, folder: PathBuf) {
    loop {
        look(&service, &folder);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Does what is left now.
pub(super) fn look(service: &Service, folder: &Path) {
    let names = || {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.retain(|name| !name.starts_with('.'));
        names.sort();
        names
    };
    let all = names();
    for name in all.iter().filter(|name| name.ends_with(TAKEN)) {
        finish(service, &folder.join(name));
    }
    for name in all.iter().filter(|name| !name.ends_with(TAKEN)) {
        let taken = folder.join(format!("{name}{TAKEN}"));
        // One that could not be done is still there: the newer one waits.
        if taken.exists() || std::fs::rename(folder.join(name), &taken).is_err() {
            continue;
        }
        finish(service, &taken);
    }
}

fn finish(service: &Service, path: &Path) {
    let text = match state::read_optional(path) {
        Ok(Some(text)) => text,
        Ok(None) => return,
        Err(error) => {
            tracing::warn!(%error, "cannot read what a plugin left");
            return;
        }
    };
    match wire::read_request(&text) {
        // Tried again at the next look.
        Ok(request) => {
            if service.hear(request) != Answer::Ok {
                return;
            }
        }
        Err(error) => tracing::warn!(%error, path = %path.display(), "a plugin left nonsense"),
    }
    if let Err(error) = state::remove_file(path) {
        tracing::warn!(%error, "cannot remove what is done");
    }
}
