//! flanneld's configuration as a server had it last, as it is kept on the disk.
//!
//! ```json
//! {"version":1,"sum":"…","known":"{\"Network\": \"10.244.0.0/16\", …}"}
//! ```
//!
//! The text is kept as it was. If a person or a fault changed one digit, it would be the
//! configuration of another cluster, with other ranges and tunnels: so it has a sum.

use super::config;
use crate::sealed;

/// The version of the format.
pub const VERSION: u32 = 1;

/// The longest document that is read, in bytes: of each byte of the text, JSON makes six at most.
const LONGEST: usize = 8 * config::LONGEST;

/// Why a document was not read. Nothing of it counts: the server will send the configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the copy of flanneld's configuration on the disk cannot be used: {0}")]
pub struct DamagedConfig(pub String);

/// Writes a configuration.
#[must_use]
pub fn write(configuration: &str) -> String {
    sealed::write(VERSION, &configuration)
}

/// Reads the configuration that [`write()`] has written.
///
/// # Errors
/// If anything at all is wrong, nothing is taken. Before there were versions and sums, the file was
/// the configuration itself: that is refused too, since it has no sum that shows whether it is
/// whole.
pub fn read(document: &[u8]) -> Result<String, DamagedConfig> {
    sealed::read(document, VERSION, LONGEST).map_err(|why| {
        let text = std::str::from_utf8(document).unwrap_or_default();
        let is_plain = config::Config::read(text).is_ok();
        DamagedConfig(if is_plain { "it has no sum".to_owned() } else { why })
    })
}
