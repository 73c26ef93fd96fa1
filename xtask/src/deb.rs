//! Debian packages that are unpacked, not installed.

use std::fs;
use std::path::Path;

use crate::run::{Program, quiet};

/// Downloads the package, with apt-get's options, and unpacks it as `into`, which appears when it is complete.
pub(crate) fn unpack(package: &str, options: &[String], into: &Path) -> Result<(), String> {
    let new = into.with_extension("new");
    let download = into.with_extension("download");
    for path in [&new, &download] {
        let _ = fs::remove_dir_all(path);
        fs::create_dir_all(path).map_err(|error| format!("create {}: {error}", path.display()))?;
    }
    println!("  apt-get download {package}");
    let name = into.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // apt-get downloads into the current directory.
    let mut program =
        Program::new("env --chdir").arg(download.display().to_string()).arg("apt-get");
    for option in options {
        program = program.arg(option);
    }
    program.arg("download").arg(package).logged(&format!("{name}-download"), quiet)?;
    let file =
        fs::read_dir(&download).ok().and_then(|mut entries| Some(entries.next()?.ok()?.path()));
    let file = file.ok_or_else(|| format!("apt-get download {package} left no file"))?;
    Program::new("dpkg-deb -x")
        .arg(file.display().to_string())
        .arg(new.display().to_string())
        .logged(&format!("{name}-unpack"), quiet)?;
    let _ = fs::remove_dir_all(&download);
    let _ = fs::remove_dir_all(into);
    fs::rename(&new, into).map_err(|error| format!("rename {}: {error}", new.display()))
}
