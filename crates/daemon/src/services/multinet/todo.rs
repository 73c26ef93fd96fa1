//! What plugins left when nobody listened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use npwg::wire::{self, Answer};

use super::super::left;
use super::service::Service;

/// Does what is left, for ever.
pub(super) async fn run(service: Arc<Service>, folder: PathBuf) {
    loop {
        look(&service, &folder);
        tokio::time::sleep(left::PAUSE).await;
    }
}

/// Does what is left now.
pub(super) fn look(service: &Service, folder: &Path) {
    left::look(folder, |path, text| match wire::read_request(text) {
        Ok(request) => service.hear(request) == Answer::Ok,
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "a plugin left nonsense");
            true
        }
    });
}
