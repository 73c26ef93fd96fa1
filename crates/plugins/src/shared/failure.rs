//! The failure of a step, and the one place that says which code and words the caller gets for it.

use cni::{Error, ItemDrift, Refusal, code};
use cni_invoke::FindError;
use cni_plugin::codes;
use cni_runtime::{CacheError, CheckError, DelError, LoadError, StatusError};
use firewall::FirewallError;
use firewall::firewalld::FirewalldError;
use firewall::iptables::{ChangeError, IptablesError};
use kernel::NetlinkError;
use kernel::ethtool::EthtoolError;
use kernel::netns::NetnsError;
use kernel::route::ApplyError;
use kernel::routers::KeepError;
use kernel::sysctl::SysctlError;
use state::{FileError, LockError};

/// Why a step failed. Every error that a step can meet becomes one with `?`, and one becomes the
/// error object of CNI ([`Error`]) with `?` as well.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure(Error);

impl Failure {
    /// Creates a failure that is not another error's.
    #[must_use]
    pub fn new(code: u32, message: impl Into<String>) -> Self {
        Failure(Error::new(code, message))
    }

    /// Creates a failure from any other error: its text is the message, its sources follow.
    #[must_use]
    pub fn from_chain(code: u32, error: &dyn std::error::Error) -> Self {
        Failure(Error::from_chain(code, error))
    }

    /// Appends details.
    #[must_use]
    pub fn with_details(self, details: impl AsRef<str>) -> Self {
        Failure(self.0.with_details(details))
    }

    /// Appends what an ADD that failed could not undo: its caller then runs DEL ([`Error::left`]).
    #[must_use]
    pub fn with_left(self, details: impl AsRef<str>) -> Self {
        Failure(self.0.with_left(details))
    }

    /// As [`Error::leaving`].
    #[must_use]
    pub fn leaving(self) -> Self {
        Failure(self.0.leaving())
    }

    /// Returns whether something remains: [`Error::left`].
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.0.left
    }

    /// As [`Error::undone`].
    #[must_use]
    pub fn undone(self) -> Self {
        Failure(self.0.undone())
    }

    /// As [`Error::refusal`].
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        self.0.refusal()
    }

    /// As [`Error::is_only`].
    #[must_use]
    pub fn is_only(&self, refusal: &Refusal) -> bool {
        self.0.is_only(refusal)
    }

    /// As [`Error::leaves_nothing`].
    #[must_use]
    pub fn leaves_nothing(&self) -> bool {
        self.0.leaves_nothing()
    }

    /// Names what failed, before the words that are there.
    #[must_use]
    pub fn context(self, what: impl std::fmt::Display) -> Self {
        Failure(self.0.context(what))
    }

    /// Returns the code that the caller gets.
    #[must_use]
    pub fn code(&self) -> u32 {
        self.0.code
    }

    /// Returns its words, without details.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.msg
    }

    /// Returns its details: the causes, and what to do. Empty when there are none.
    #[must_use]
    pub fn details(&self) -> &str {
        &self.0.details
    }

    /// Adds what differs, each by itself.
    #[must_use]
    pub fn with_differences(self, differences: Vec<ItemDrift>) -> Self {
        Failure(Error { differences: differences.into(), ..self.0 })
    }

    /// Returns the failure with another code.
    #[must_use]
    pub fn with_code(self, code: u32) -> Self {
        Failure(Error { code, ..self.0 })
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure(error)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.0
    }
}

/// Gives errors of these types one code.
macro_rules! always {
    ($($error:ty => $code:expr),* $(,)?) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Failure(Error::from_chain($code, &error))
            }
        }
    )*};
}

always! {
    SysctlError => codes::KERNEL,
    EthtoolError => codes::KERNEL,
    IptablesError => codes::FIREWALL,
    FileError => codes::STATE,
    NetnsError => code::INVALID_NETNS,
}

impl From<KeepError> for Failure {
    fn from(error: KeepError) -> Self {
        let hint = error.hint().unwrap_or_default();
        Failure(Error::from_chain(codes::KERNEL, &error).with_details(hint))
    }
}

impl From<NetlinkError> for Failure {
    /// A kernel that is too busy to answer may do so later.
    fn from(error: NetlinkError) -> Self {
        let code = if error.is_unanswered() { code::TRY_AGAIN_LATER } else { codes::KERNEL };
        Failure(Error::from_chain(code, &error))
    }
}

/// Takes over errors that say themselves what the caller gets for them.
macro_rules! own_words {
    ($($error:ty),* $(,)?) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Failure(error.to_cni())
            }
        }
    )*};
}

own_words! {
    CacheError,
    CheckError,
    DelError,
    FindError,
    LoadError,
    StatusError,
    node_api::Refusal,
}

impl From<ApplyError> for Failure {
    /// Only the kernel's answer is reported: the caller knows which changes it asked for.
    fn from(error: ApplyError) -> Self {
        error.source.into()
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        let code = if error.is_busy() { code::TRY_AGAIN_LATER } else { codes::STATE };
        Failure(Error::from_chain(code, &error))
    }
}

impl From<FirewallError> for Failure {
    fn from(error: FirewallError) -> Self {
        let code = match &error {
            FirewallError::Held { .. } => codes::HOST_PORT,
            FirewallError::Lock(lock) if lock.is_busy() => code::TRY_AGAIN_LATER,
            _ => codes::FIREWALL,
        };
        let hint = error.hint().unwrap_or_default();
        Failure(Error::from_chain(code, &error).with_details(hint))
    }
}

impl From<FirewalldError> for Failure {
    fn from(error: FirewalldError) -> Self {
        let code = match &error {
            FirewalldError::Lock(lock) if lock.is_busy() => code::TRY_AGAIN_LATER,
            FirewalldError::Late { .. } => code::TRY_AGAIN_LATER,
            error if error.is_no_zone() => code::INVALID_CONFIG,
            error if error.is_conflict() => codes::CONFLICT,
            _ => codes::FIREWALL,
        };
        let hint = error.hint().unwrap_or_default();
        Failure(Error::from_chain(code, &error).with_details(hint))
    }
}

impl From<ChangeError> for Failure {
    fn from(error: ChangeError) -> Self {
        let code = match &error {
            ChangeError::Lock(lock) if lock.is_busy() => code::TRY_AGAIN_LATER,
            _ => codes::FIREWALL,
        };
        Failure(Error::from_chain(code, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_does_not_answer_is_asked_again_later() {
        let operation = || "delete link 7".to_owned();
        let late = NetlinkError::TimedOut { operation: operation(), waited_s: 20 };
        let late = Failure::from(late);
        assert_eq!(late.code(), code::TRY_AGAIN_LATER);
        assert_eq!(late.to_string(), "delete link 7: no reply from the kernel within 20 s");
        let changing = NetlinkError::Interrupted { operation: operation(), tries: 5 };
        assert_eq!(Failure::from(changing).code(), code::TRY_AGAIN_LATER);
        let wrong = NetlinkError::TooLarge { operation: operation(), what: "the name" };
        assert_eq!(Failure::from(wrong).code(), codes::KERNEL);
    }
}
