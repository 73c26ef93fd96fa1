//! Messages that plugins left while no daemon listened.

use std::path::Path;

use npwg::wire::{self, Answer};

use super::super::inbox;
use super::service::Service;

/// Handles these messages now.
pub(super) fn look(service: &Service, folder: &Path) {
    inbox::look(folder, |path, text| match wire::read_request(text) {
        Ok(request) => service.hear(request) == Answer::Ok,
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "a plugin left nonsense");
            true
        }
    });
}
