//! The search for a plugin's executable.

use std::path::{Path, PathBuf};

use cni::{Error, code};

use crate::Executor;

/// The reason why a plugin was not found.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum FindError {
    /// The type cannot be the name of an executable.
    #[error("{0}")]
    Type(Error),
    /// There are no directories to search.
    #[error("no paths provided")]
    NoPath,
    /// No directory holds a regular file of that name.
    #[error("failed to find plugin {plugin_type:?} in path [{}]", listed(.path))]
    Missing {
        /// The type.
        plugin_type: String,
        /// The directories, in the order in which they were searched.
        path: Vec<PathBuf>,
    },
}

impl FindError {
    /// Returns the error object for it.
    #[must_use]
    pub fn to_cni(&self) -> Error {
        match self {
            FindError::Type(error) => error.clone(),
            FindError::NoPath => Error::new(code::INVALID_ENVIRONMENT, self.to_string())
                .with_details("CNI_PATH lists the directories that hold plugins"),
            FindError::Missing { .. } => Error::new(code::INVALID_CONFIG, self.to_string()),
        }
    }
}

fn listed(path: &[PathBuf]) -> String {
    let dirs: Vec<_> = path.iter().map(|dir| dir.to_string_lossy()).collect();
    dirs.join(" ")
}

/// Finds the first regular file named `plugin_type` in `path`. It follows links and ignores the
/// mode.
///
/// # Errors
/// [`FindError`].
pub fn find(plugin_type: &str, path: &[PathBuf]) -> Result<PathBuf, FindError> {
    cni::name::check_plugin_type(plugin_type).map_err(FindError::Type)?;
    if path.is_empty() {
        return Err(FindError::NoPath);
    }
    path.iter().map(|dir| dir.join(plugin_type)).find(|file| is_regular(file)).ok_or_else(|| {
        FindError::Missing { plugin_type: plugin_type.to_owned(), path: path.to_vec() }
    })
}

/// Finds the first file named `plugin_type` in `path` that is the executor's own executable, or a
/// link to it.
///
/// # Errors
/// As [`find`].
pub fn find_own(
    plugin_type: &str,
    path: &[PathBuf],
    executor: &dyn Executor,
) -> Result<PathBuf, FindError> {
    let first = find(plugin_type, path)?;
    let mut files = path.iter().map(|dir| dir.join(plugin_type));
    let own = files.find(|file| is_regular(file) && executor.is_own(file));
    let missing = || {
        let path = first.parent().map(Path::to_owned).into_iter().collect();
        FindError::Missing { plugin_type: plugin_type.to_owned(), path }
    };
    own.ok_or_else(missing)
}

fn is_regular(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file())
}
