//! What is wrong with a configuration, and where.

use std::fmt;
use std::path::PathBuf;

use cni::excerpt::{Place, excerpt};
use cni::text::{lines, one_line};
use serde::Serialize;

/// One problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file that it is in; empty for what a command line says.
    pub file: PathBuf,
    /// Where in the file.
    #[serde(flatten)]
    pub place: Place,
    /// What is wrong.
    pub error: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The line with a caret below the place.
    #[serde(skip)]
    pub excerpt: String,
}

impl Problem {
    /// Returns a problem with a file as a whole.
    pub(crate) fn of_file(file: impl Into<PathBuf>, error: impl Into<String>) -> Self {
        Problem {
            file: file.into(),
            place: Place::default(),
            error: error.into(),
            hint: None,
            excerpt: String::new(),
        }
    }

    /// Says what to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Returns the place and what is wrong, in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let file = self.file.display().to_string();
        // A flag has no file.
        match file.is_empty() {
            true => one_line(&self.error),
            false => format!("{}{}: {}", one_line(file), self.place, one_line(&self.error)),
        }
    }

    /// Says where in the file's text it is.
    pub(crate) fn at(mut self, text: &str, place: Place) -> Self {
        (self.place, self.excerpt) = (place, excerpt(text, place));
        self
    }
}

/// Several lines: `FILE:LINE:COLUMN: what is wrong`, the excerpt, the hint.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.line())?;
        f.write_str(&lines(&self.excerpt))?;
        match &self.hint {
            Some(hint) => writeln!(f, "hint: {}", one_line(hint)),
            None => Ok(()),
        }
    }
}
