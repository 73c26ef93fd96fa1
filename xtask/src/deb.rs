//! Unpacks Debian packages without installing them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::run::{Program, quiet};

/// Downloads packages, with these options of apt-get, and unpacks them into `into`, which appears
/// when it is complete.
pub(crate) fn unpack(packages: &[&str], options: &[String], into: &Path) -> Result<(), String> {
    let new = empty(into.with_extension("new"))?;
    let download = empty(into.with_extension("download"))?;
    let list = packages.join(" ");
    println!("  apt-get download {list}");
    // apt-get downloads into the current directory.
    let program = Program::new("env --chdir").arg(download.display().to_string()).arg("apt-get");
    let program = with_options(program, options).arg("download");
    packages
        .iter()
        .fold(program, |program, package| program.arg(*package))
        .logged(&format!("{}-download", name(into)), quiet)?;
    let files = packages_in(&download)?;
    if files.len() != packages.len() {
        return Err(format!("apt-get download {list} left {} files", files.len()));
    }
    for file in &files {
        extract(file, &new)?;
    }
    let _ = fs::remove_dir_all(&download);
    complete(&new, into)
}

/// Downloads the packages and their dependencies, as on a system without any package, and unpacks
/// all of them into `into`, which appears once `finish` has processed it. None of the packages' own
/// scripts is run.
pub(crate) fn unpack_with_dependencies(
    packages: &[&str],
    options: &[String],
    into: &Path,
    finish: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<(), String> {
    let new = empty(into.with_extension("new"))?;
    let download = empty(into.with_extension("download"))?;
    empty(download.join("partial"))?;
    // The folder where dpkg records what is installed and takes its locks.
    let dpkg = empty(into.with_extension("dpkg"))?;
    let nothing = dpkg.join("status");
    fs::write(&nothing, "").map_err(|error| format!("write {}: {error}", nothing.display()))?;
    println!("  apt-get install --download-only {}", packages.join(" "));
    let mut program = with_options(Program::new("apt-get"), options)
        .arg(format!("--option=Dir::State::status={}", nothing.display()))
        .arg(format!("--option=Dir::Cache::archives={}", download.display()));
    for word in ["--yes", "--no-install-recommends", "--download-only", "install"] {
        program = program.arg(word);
    }
    packages
        .iter()
        .fold(program, |program, package| program.arg(*package))
        .logged(&format!("{}-download", name(into)), quiet)?;
    for file in packages_in(&download)? {
        extract(&file, &new)?;
    }
    finish(&new)?;
    let _ = fs::remove_dir_all(&download);
    let _ = fs::remove_dir_all(&dpkg);
    complete(&new, into)
}

fn with_options(program: Program, options: &[String]) -> Program {
    options.iter().fold(program, Program::arg)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Creates an empty directory at this path.
fn empty(path: PathBuf) -> Result<PathBuf, String> {
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).map_err(|error| format!("create {}: {error}", path.display()))?;
    Ok(path)
}

/// The packages in a directory, in the order of their names.
fn packages_in(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(dir).map_err(|error| format!("read {}: {error}", dir.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "deb"));
    files.sort();
    Ok(files)
}

/// The log of the last package stays. If one failed, it is that one.
fn extract(file: &Path, into: &Path) -> Result<(), String> {
    Program::new("dpkg-deb -x")
        .arg(file.display().to_string())
        .arg(into.display().to_string())
        .logged(&format!("{}-unpack", name(into)), quiet)?;
    Ok(())
}

fn complete(new: &Path, into: &Path) -> Result<(), String> {
    let _ = fs::remove_dir_all(into);
    fs::rename(new, into).map_err(|error| format!("rename {}: {error}", new.display()))
}
