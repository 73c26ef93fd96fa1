//! The file of defaults: keys that a definition does not have.
//!
//! A user who writes definitions can name any file of the node. So the file must be an
//! administrator's file of a sane size, at that path itself; and error messages do not contain its
//! content.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::shared::failure::Failure;

use super::keys::{Ipam, invalid};

/// The paths that Whereabouts' installer uses.
const PLACES: [&str; 2] = [
    "/etc/kubernetes/cni/net.d/whereabouts.d/whereabouts.conf",
    "/etc/cni/net.d/whereabouts.d/whereabouts.conf",
];

/// The largest file that is read.
const MAX_SIZE: u64 = 64 * 1024;

/// The permission that users other than its owner must not have: to write.
const OTHERS_WRITE: u32 = 0o022;

/// Reads the defaults: from the file that the definition names, else from the first that exists.
///
/// # Errors
/// Code 7 when the named file does not exist, or when a file cannot be used.
pub(super) fn read(named: Option<&str>) -> Result<Ipam, Failure> {
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        let path = Path::new(named);
        if !path.is_absolute() {
            return Err(invalid(format!("ipam.configuration_path: {named:?} is not absolute")));
        }
        return read_one(path)?.ok_or_else(|| {
            invalid(format!("ipam.configuration_path: there is no file {named:?}"))
        });
    }
    for place in PLACES.map(PathBuf::from) {
        if let Some(found) = read_one(&place)? {
            return Ok(found);
        }
    }
    Ok(Ipam::default())
}

fn read_one(path: &Path) -> Result<Option<Ipam>, Failure> {
    let refused = |why: String| invalid(format!("{}: {why}", path.display()));
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(Errno::LOOP) => {
            return Err(refused("is a symbolic link, which is not followed".into()));
        }
        Err(errno) => return Err(refused(format!("cannot be opened: {errno}"))),
    };
    let metadata = file.metadata().map_err(|error| refused(error.to_string()))?;
    if !metadata.is_file() {
        return Err(refused("is no file".into()));
    }
    let own = rustix::process::geteuid().as_raw();
    if (metadata.uid() != 0 && metadata.uid() != own) || metadata.mode() & OTHERS_WRITE != 0 {
        return Err(refused("can be written by others than root".into()));
    }
    let mut bytes = Vec::new();
    let read = file.take(MAX_SIZE + 1).read_to_end(&mut bytes);
    let length = read.map_err(|error| refused(format!("cannot be read: {error}")))?;
    if MAX_SIZE < u64::try_from(length).unwrap_or(u64::MAX) {
        return Err(refused(format!("is longer than {MAX_SIZE} bytes")));
    }
    let found: Ipam = cni::json::from_slice(&bytes).map_err(|error| {
        let place = match error.path.as_str() {
            "" => String::new(),
            path => format!(", {path}"),
        };
        refused(format!(
            "line {}, column {}{place}: is not as it should be",
            error.line, error.column
        ))
        .with_details("it holds keys of \"ipam\" as one JSON object")
    })?;
    Ok(Some(found))
}
