//! Finding and calling real executables.

#![allow(clippy::unwrap_used, reason = "tests")]

mod exec;
mod find;
mod mixed;
mod trust;

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Writes a shell script and makes it executable.
///
/// Another test's child may hold the file open for a moment between its fork and its exec; `Exec`
/// waits for that.
fn script(dir: &Path, name: &str, body: &str) -> PathBuf {
    use std::io::Write as _;
    let path = dir.join(name);
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(&path).unwrap();
    writeln!(file, "#!/bin/sh\n{body}").unwrap();
    path
}
