//! Errors of database calls.

use std::{fmt, io};

use thiserror::Error;

/// The server's error in place of a result (RFC 7047 §3.1 `<error>`).
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

/// A call to the database failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OvsdbError {
    /// An address that is none.
    #[error("{text:?} is not the address of a database: {why}")]
    Address {
        /// The given value.
        text: String,
        /// Its error.
        why: &'static str,
    },
    /// No server listens at the address.
    #[error("connect to {remote}")]
    Connect {
        /// The address.
        remote: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file that a TLS connection needs is missing or unusable.
    #[error("{what} for {remote}")]
    Keys {
        /// The address.
        remote: String,
        /// Which file, and its purpose.
        what: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The TLS handshake failed: the server is not the expected one, rejects us, or does not speak
    /// TLS.
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
    /// The deadline passed. It is unknown whether a transaction was committed.
    #[error("{remote} did not answer {doing} in time")]
    Deadline {
        /// The address.
        remote: String,
        /// The method that was called.
        doing: &'static str,
    },
    /// The server closed the connection. It is unknown whether a transaction was committed.
    #[error("{remote} hung up during {doing}")]
    Closed {
        /// The address.
        remote: String,
        /// The method that was called.
        doing: &'static str,
    },
    /// The server sent something that is not OVSDB.
    #[error("{remote} sent an invalid answer: {what}")]
    Nonsense {
        /// The address.
        remote: String,
        /// What was expected and not found.
        what: String,
    },
    /// The server sent more than the client is prepared to store.
    #[error("{remote} sent more than {limit} {what}")]
    TooMuch {
        /// The address.
        remote: String,
        /// What exceeds the limit.
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
        /// The operation's index, from 0.
        index: usize,
        /// Its kind.
        operation: &'static str,
        /// Its table; empty if it has none.
        table: String,
        /// Its words.
        #[source]
        source: ServerError,
    },
    /// Every operation succeeded and the transaction as a whole was refused; nothing was committed.
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
        /// The missing table or column.
        missing: String,
    },
}

impl OvsdbError {
    /// Says whether the transaction failed because a `wait` did not hold, or because another client
    /// was first.
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

    /// Returns the server's own message, if it refused.
    #[must_use]
    pub fn refusal(&self) -> Option<&ServerError> {
        match self {
            Self::Refused { source, .. }
            | Self::Operation { source, .. }
            | Self::Commit { source } => Some(source),
            _ => None,
        }
    }

    /// Says whether trying again later may help: no server listens, or it is too slow.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            Self::Connect { .. } | Self::Io { .. } | Self::Deadline { .. } | Self::Closed { .. }
        )
    }
}
