//! How a netlink request fails.

use std::fmt;
use std::io;

use thiserror::Error;

use super::Errno;

/// A netlink request that failed.
///
/// The text starts with the operation and its object: `create link "veth0": file exists (EEXIST)`.
/// The kernel's own explanation follows, if there is one.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NetlinkError {
    /// The kernel said no.
    #[error("{operation}: {errno}{}", Suffix(.ext_ack))]
    Refused {
        /// The request, with its object.
        operation: String,
        /// The error number.
        errno: Errno,
        /// The kernel's extended error.
        ext_ack: Option<ExtAck>,
    },
    /// A socket could not be created or set up.
    #[error("open a netlink socket: {step}")]
    Open {
        /// The operation.
        step: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The request could not be sent, or its reply not received.
    #[error("{operation}: {step}")]
    Transfer {
        /// The request, with its object.
        operation: String,
        /// The operation.
        step: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The kernel did not answer in time.
    #[error("{operation}: no reply from the kernel within {waited_s} s")]
    TimedOut {
        /// The request, with its object.
        operation: String,
        /// The length of the wait.
        waited_s: u64,
    },
    /// The tables kept changing while we read them.
    #[error("{operation}: the dump was interrupted {tries} times")]
    Interrupted {
        /// The request, with its object.
        operation: String,
        /// The number of tries.
        tries: u32,
    },
    /// The request, or its reply, is larger than our limit.
    #[error("{operation}: {what} is too large")]
    TooLarge {
        /// The request, with its object.
        operation: String,
        /// The part that is too large.
        what: &'static str,
    },
    /// Netlink cannot express the request, or would change its meaning. Nothing was sent.
    #[error("{operation}: {what}")]
    Unsendable {
        /// The request, with its object.
        operation: String,
        /// Why not.
        what: &'static str,
    },
    /// The kernel's reply lacks a required part.
    #[error("{operation}: the kernel's reply lacks {what}")]
    Incomplete {
        /// The request, with its object.
        operation: String,
        /// The missing part.
        what: &'static str,
    },
}

/// What the kernel adds to an error number (`linux include/uapi/linux/netlink.h`,
/// `NLMSGERR_ATTR_*`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExtAck {
    /// The kernel's explanation (NLMSGERR_ATTR_MSG); may be empty.
    pub message: String,
    /// Type number of the faulty attribute (from NLMSGERR_ATTR_OFFS).
    pub attribute: Option<u16>,
    /// Type number of an attribute that is missing (NLMSGERR_ATTR_MISS_TYPE).
    pub missing_attribute: Option<u32>,
}

impl NetlinkError {
    /// Returns the request, with its object.
    #[must_use]
    pub fn operation(&self) -> &str {
        match self {
            Self::Open { .. } => "open a netlink socket",
            Self::Refused { operation, .. }
            | Self::Transfer { operation, .. }
            | Self::TimedOut { operation, .. }
            | Self::Interrupted { operation, .. }
            | Self::TooLarge { operation, .. }
            | Self::Unsendable { operation, .. }
            | Self::Incomplete { operation, .. } => operation,
        }
    }

    /// The kernel's error number, if the kernel refused.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// What the kernel added to the error number.
    #[must_use]
    pub fn ext_ack(&self) -> Option<&ExtAck> {
        match self {
            Self::Refused { ext_ack, .. } => ext_ack.as_ref(),
            _ => None,
        }
    }

    /// Whether the object exists already (EEXIST).
    #[must_use]
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(Errno::EXIST)
    }

    /// Whether the object does not exist: ENOENT (nftables, FDB), ENODEV (link), ESRCH (route),
    /// EADDRNOTAVAIL (address).
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        const ABSENT: [Errno; 4] = [Errno::NOENT, Errno::NODEV, Errno::SRCH, Errno::ADDRNOTAVAIL];
        self.errno().is_some_and(|errno| ABSENT.contains(&errno))
    }

    /// Whether the kernel does not support it (EOPNOTSUPP): an old kernel or one without the
    /// option.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.errno() == Some(Errno::OPNOTSUPP)
    }

    /// Whether the caller lacks a capability (EPERM).
    #[must_use]
    pub fn is_permission(&self) -> bool {
        self.errno() == Some(Errno::PERM)
    }

    /// Whether the same request may succeed later: an interrupted dump, no reply in time, EAGAIN or
    /// EBUSY.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.is_unanswered() || matches!(self.errno(), Some(Errno::AGAIN | Errno::BUSY))
    }

    /// Whether the kernel was too busy to answer: no reply in time, or an interrupted dump.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Self::TimedOut { .. } | Self::Interrupted { .. })
    }
}

/// Takes an answer with one of these numbers for nothing: `None`, or an empty list. They are what
/// the kernel answers to a question about something that does not exist.
///
/// # Errors
/// All others.
pub fn nothing_if<T: Default>(
    found: Result<T, NetlinkError>,
    absent: &[Errno],
) -> Result<T, NetlinkError> {
    match found {
        Err(error) if error.errno().is_some_and(|errno| absent.contains(&errno)) => {
            Ok(T::default())
        }
        found => found,
    }
}

impl fmt::Display for ExtAck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message.trim_end_matches('.'))?;
        let separator = if self.message.is_empty() { "" } else { " " };
        match (self.attribute, self.missing_attribute) {
            (Some(attribute), _) => write!(f, "{separator}(attribute {attribute})"),
            (None, Some(missing)) => write!(f, "{separator}(attribute {missing} is missing)"),
            (None, None) => Ok(()),
        }
    }
}

struct Suffix<'a>(&'a Option<ExtAck>);

impl fmt::Display for Suffix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |ext_ack| write!(f, ": {ext_ack}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        let refused = |ext_ack| NetlinkError::Refused {
            operation: "create link \"veth0\"".to_owned(),
            errno: Errno::EXIST,
            ext_ack,
        };
        let error = refused(None);
        assert_eq!(error.to_string(), r#"create link "veth0": file exists (EEXIST)"#);
        assert!(error.is_exists() && !error.is_not_found());
        let ext_ack =
            ExtAck { message: "Nexthop has invalid gateway.".to_owned(), ..ExtAck::default() };
        let error = refused(Some(ext_ack.clone()));
        assert_eq!(
            error.to_string(),
            r#"create link "veth0": file exists (EEXIST): Nexthop has invalid gateway"#
        );
        let error = refused(Some(ExtAck { attribute: Some(3), ..ext_ack }));
        assert!(error.to_string().ends_with("invalid gateway (attribute 3)"), "{error}");
        let error = refused(Some(ExtAck { missing_attribute: Some(1), ..ExtAck::default() }));
        assert!(error.to_string().ends_with("(EEXIST): (attribute 1 is missing)"), "{error}");
    }

    #[test]
    fn only_the_numbers_that_say_so_mean_nothing() {
        let refused = |errno| NetlinkError::Refused {
            operation: "look up link 7".to_owned(),
            errno,
            ext_ack: None,
        };
        let absent = [Errno::NODEV, Errno::NOENT];
        assert_eq!(nothing_if::<Option<u8>>(Err(refused(Errno::NODEV)), &absent).unwrap(), None);
        assert!(nothing_if::<Vec<u8>>(Err(refused(Errno::NOENT)), &absent).unwrap().is_empty());
        assert_eq!(nothing_if(Ok(Some(7)), &absent).unwrap(), Some(7));
        let error = nothing_if::<Option<u8>>(Err(refused(Errno::PERM)), &absent).unwrap_err();
        assert!(error.is_permission());
        let silent = NetlinkError::TimedOut { operation: "look up link 7".to_owned(), waited_s: 5 };
        assert!(nothing_if::<Option<u8>>(Err(silent), &absent).unwrap_err().is_unanswered());
    }
}
