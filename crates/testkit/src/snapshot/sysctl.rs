//! Reads every sysctl of a network namespace.
//!
//! There are some thousand of them, and a test reads them several times. So reading a value takes
//! three system calls, and the kernel looks up one name for it instead of a whole path.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};

use crate::place::Place;

/// Sysctls that are counters, or that cannot be read.
const VOLATILE: [&str; 3] = ["nf_conntrack_count", "stable_secret", "dad_transmits_count"];

/// How much is read at once. The kernel clears as much memory each time, and few values need more
/// than a few bytes.
const AT_ONCE: usize = 256;

/// Returns every sysctl below `/proc/sys/net` that can be read and is not a counter, by its path
/// below `/proc/sys`.
#[must_use]
pub fn sysctls(place: &impl Place) -> BTreeMap<String, String> {
    place.enter(here)
}

/// Returns those of the calling thread's namespace.
pub(super) fn here() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    collect(Path::new("/proc/sys/net"), &mut found);
    found
}

fn collect(dir: &Path, found: &mut BTreeMap<String, String>) {
    let (Ok(opened), Ok(entries)) = (File::open(dir), fs::read_dir(dir)) else { return };
    for entry in entries.flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&path, found);
        } else if !VOLATILE.iter().any(|volatile| name == *volatile)
            && let Some(value) = read(&opened, &name)
        {
            let name = path.strip_prefix("/proc/sys").unwrap_or(&path).display().to_string();
            found.insert(name, value.trim_end().to_owned());
        }
    }
}

/// Returns a value. Some can only be written, some have no value yet, and some return only as much
/// as the first read has room for.
fn read(dir: &File, name: &OsStr) -> Option<String> {
    let opened = openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let file = File::from(opened);
    let mut value = vec![0; AT_ONCE];
    loop {
        let length = file.read_at(&mut value, 0).ok()?;
        if length < value.len() {
            value.truncate(length);
            return String::from_utf8(value).ok();
        }
        value.resize(2 * length, 0);
    }
}
