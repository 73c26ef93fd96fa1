//! Files in places that other projects' plugins share with ours.

use std::path::Path;

use state::{Durability, FileError};

const DIRECTORY_MODE: u32 = 0o700;

/// Replaces a file in one step ([`state::write_atomic`]), and makes its folder if that is missing.
///
/// # Errors
/// [`FileError`].
pub(crate) fn write(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    durability: Durability,
) -> Result<(), FileError> {
    match state::write_atomic(path, bytes, mode, durability) {
        Err(error) if error.is_not_found() => {
            state::create_directory(path.parent().unwrap_or(Path::new("/")), DIRECTORY_MODE)?;
            state::write_atomic(path, bytes, mode, durability)
        }
        written => written,
    }
}
