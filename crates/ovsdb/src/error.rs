//! What can go wrong.

use std::{fmt, io};

use thiserror::Error;

/// What the server said instead of a result (RFC 7047 §3.1 `<error>`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    /// The kind, such as `constraint violation`.
    pub error: String,
    /// The server's explanation; may be empty.
    pub details: String,
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.details.is_empty() {
            true => f.write_str(&self.error),
            false => write!(f, "{}: {}", self.error, self.details),
        }
    }
}

impl std::error::Error for ServerError {}

/// A call of the database failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OvsdbError {
    /// An address that is none.
    #[error("{text:?} is no address of a database: {why}")]
    Address {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There is nobody at the address.
    #[error("connect to {remote}")]
    Connect {
        /// The address.
        remote: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file that a TLS connection takes is missing or of no use.
    #[error("{what} for {remote}")]
    Keys {
        /// The address.
        remote: String,
        /// Which file, and what it is for.
        what: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Both sides could not agree on TLS: the server is not who it should be, does not believe us, or does not speak it.
    #[error("TLS with {remote}")]
    Tls {
        /// The address.
        remote: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The connection broke.
    #[error("{doing} of {remote}")]
    Io {
        /// The address.
        remote: String,
        /// The method that was called.
        doing: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The deadline passed. Whether a transaction was committed is not known.
    #[error("{remote} did not answer {doing} in time")]
    Deadline {
        /// The address.
        remote: String,
        /// The method that was called.
        doing: &'static str,
    },
    /// The server hung up. Whether a transaction was committed is not known.
    #[error("{remote} hung up during {doing}")]
    Closed {
        /// The address.
        remote: String,
        /// The method that was called.
        doing: &'static str,
    },
    /// What the server sent is not OVSDB.
    #[error("{remote} answers nonsense: {what}")]
    Nonsense {
        /// The address.
        remote: String,
        /// What was expected and not found.
        what: String,
    },
    /// The server sent more than the client is ready to hold.
    #[error("{remote} sent more than {limit} {what}")]
    TooMuch {
        /// The address.
        remote: String,
        /// What of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The server refused a whole request.
    #[error("{doing} was refused")]
    Refused {
        /// The method that was called.
        doing: &'static str,
        /// Its words.
        #[source]
        source: ServerError,
    },
    /// The server refused one operation of a transaction; nothing was committed.
    #[error("operation {index} ({operation} {table}) was refused")]
    Operation {
        /// Which, from 0.
        index: usize,
        /// Its kind.
        operation: &'static str,
        /// Its table; empty where it has none.
        table: String,
        /// Its words.
        #[source]
        source: ServerError,
    },
    /// Every operation was done and the whole was refused; nothing was committed.
    #[error("the transaction was refused")]
    Commit {
        /// Its words.
        #[source]
        source: ServerError,
    },
    /// The database lacks a table or column.
    #[error("database {database:?} version {version} has no {missing}")]
    Schema {
        /// The database.
        database: String,
        /// Its schema's version.
        version: String,
        /// What it lacks.
        missing: String,
    },
}

impl OvsdbError {
    /// Says whether the transaction failed because a `wait` did not hold, or because somebody else got there first.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Operation { operation, source, .. } => {
                *operation == "wait" && source.error == "timed out"
            }
            _ => false,
        }
    }

    /// Says whether a name or another index is taken already.
    #[must_use]
    pub fn is_duplicate(&self) -> bool {
        match self {
            Self::Operation { source, .. } | Self::Commit { source } => {
                source.error == "constraint violation"
                    && source.details.contains("identical values")
            }
            _ => false,
        }
    }

    /// Returns the server's own words, if it refused.
    #[must_use]
    pub fn refusal(&self) -> Option<&ServerError> {
        match self {
            Self::Refused { source, .. }
            | Self::Operation { source, .. }
            | Self::Commit { source } => Some(source),
            _ => None,
        }
    }

    /// Says whether trying again later may help: nobody is there, or too slow.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            Self::Connect { .. } | Self::Io { .. } | Self::Deadline { .. } | Self::Closed { .. }
        )
    }
}
