//! The machine itself.

use std::io;

use thiserror::Error;

/// Where Linux tells this boot from every other (`man 5 proc`, `/proc/sys/kernel/random`).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The machine could not be asked about itself.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HostError {
    /// The boot ID could not be read; `/proc` may not be mounted.
    #[error("read the boot ID from {BOOT_ID:?}")]
    BootId {
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Reads the ID of this boot: a UUID that changes with every start of the machine.
///
/// State that describes the kernel (links, rules) means nothing once the ID has changed.
///
/// # Errors
/// [`HostError::BootId`].
pub fn boot_id() -> Result<String, HostError> {
    let text = std::fs::read_to_string(BOOT_ID).map_err(|source| HostError::BootId { source })?;
    Ok(text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_id_is_stable_and_a_uuid() {
        let id = boot_id().unwrap();
        assert_eq!(id, boot_id().unwrap());
        assert_eq!(id.len(), 36, "{id}");
        assert_eq!(id.matches('-').count(), 4, "{id}");
    }
}
