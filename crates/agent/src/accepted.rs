//! The configuration that was accepted last. It stays in force while the file is wrong or gone.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use state::{Durability, FileError, Roots};

use crate::load::{self, LoadedConfig, Surroundings};
use crate::problem::Problem;
use crate::show;

/// The mode of the folder: every user that may read the copy can pass through it.
const FOLDER_MODE: u32 = 0o711;
/// The modes of the copy. No user can read in it what that user could not read in the files: a
/// configuration may name what only root should know. A service that is not root reads the copy
/// again.
const MODES: (u32, u32) = (0o600, 0o644);

/// Returns the path of the copy: one file, without drop-ins.
#[must_use]
pub fn path(roots: &Roots) -> PathBuf {
    roots.lib.join("agent/accepted.toml")
}

/// Stores a configuration as the accepted one.
///
/// # Errors
/// [`FileError`]; the copy is as it was.
pub fn write(roots: &Roots, loaded: &LoadedConfig) -> Result<(), FileError> {
    let path = path(roots);
    if let Some(folder) = path.parent() {
        state::create_directory(folder, FOLDER_MODE)?;
    }
    let text = format!(
        "# What netwrightd accepted last. It is written again at each reload: edit {} instead.\n{}",
        loaded.files.first().map_or(load::FILE.into(), |file| file.display().to_string()),
        show::minimal(loaded)
    );
    let is_open = |file: &PathBuf| file.metadata().is_ok_and(|of| of.mode() & 0o004 != 0);
    let mode = if loaded.files.iter().all(is_open) { MODES.1 } else { MODES.0 };
    state::write_atomic(&path, text.as_bytes(), mode, Durability::Synced)
}

/// Reads the configuration for a reload. `counts` is the one that is in force until now.
///
/// # Errors
/// Every problem of the file and its drop-ins. A file that is gone is a problem too: an
/// administrator who wants the defaults writes an empty file.
pub fn renewed(
    file: &Path,
    counts: &LoadedConfig,
    around: Surroundings,
) -> Result<LoadedConfig, Vec<Problem>> {
    let new = load::load(file, around)?;
    if new.files.is_empty() && !counts.sources.is_empty() {
        let gone = Problem::of_file(file, "is gone")
            .hint("write an empty file where every key is to have its default");
        return Err(vec![gone]);
    }
    Ok(new)
}

/// Returns the accepted copy; `None` if there is none that is sound.
#[must_use]
pub fn read(roots: &Roots, around: Surroundings) -> Option<LoadedConfig> {
    let copy = path(roots);
    load::load(&copy, around).ok().filter(|loaded| loaded.files.contains(&copy))
}

/// A configuration that is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveConfig {
    /// The configuration.
    pub loaded: LoadedConfig,
    /// Why it is the accepted copy and not what the file says; empty if it is what the file says.
    pub refused: Vec<Problem>,
}

/// Reads the configuration; if it is wrong, the copy that was accepted last.
///
/// # Errors
/// Every problem of the file and its drop-ins, if there is no copy that is sound.
pub fn standing(
    file: &Path,
    roots: &Roots,
    around: Surroundings,
) -> Result<ActiveConfig, Vec<Problem>> {
    let refused = match load::load(file, around) {
        Ok(loaded) => return Ok(ActiveConfig { loaded, refused: Vec::new() }),
        Err(problems) => problems,
    };
    match read(roots, around) {
        Some(loaded) => Ok(ActiveConfig { loaded, refused }),
        None => Err(refused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_accepted_copy_counts_while_the_file_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("netwrightd.toml");
        let roots = Roots::new(folder.path().join("run"), folder.path().join("lib"));
        let around = Surroundings::default();
        fs::write(&file, "[repair]\nenable = 1\n").unwrap();
        assert!(standing(&file, &roots, around).is_err());
        fs::write(&file, "[repair]\nenable = true\ninterval = \"3s\"\n").unwrap();
        let sound = standing(&file, &roots, around).unwrap();
        assert_eq!(sound.refused, []);
        let mode = || path(&roots).metadata().unwrap().mode() & 0o777;
        for (of_file, of_copy) in [(0o600, 0o600), (0o644, 0o644)] {
            fs::set_permissions(&file, PermissionsExt::from_mode(of_file)).unwrap();
            write(&roots, &sound.loaded).unwrap();
            assert_eq!(mode(), of_copy);
        }
        fs::write(&file, "nonsense").unwrap();
        let stands = standing(&file, &roots, around).unwrap();
        assert_eq!(stands.loaded.config, sound.loaded.config);
        assert!(stands.refused[0].to_string().contains("netwrightd.toml:1:"), "{stands:?}");
        fs::remove_file(&file).unwrap();
        let gone = renewed(&file, &sound.loaded, around).unwrap_err();
        assert!(gone[0].line().ends_with("netwrightd.toml: is gone"), "{gone:?}");
        fs::write(&file, "").unwrap();
        assert_eq!(renewed(&file, &sound.loaded, around).unwrap().sources.len(), 0);
        fs::write(&file, "nonsense").unwrap();
        fs::write(path(&roots), "nonsense").unwrap();
        assert!(standing(&file, &roots, around).is_err());
    }
}
