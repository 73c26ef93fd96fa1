//! firewalld, reached over the system message bus.
//!
//! firewalld rejects what no zone forwards, and its tables are its own. It lets an address through
//! that is a *source* of an accepting zone (`trusted`); its documentation names this as the place
//! for other programs. Like the reference, we add sources at run time only: they disappear with
//! firewalld, with a reload and with a reboot, and nothing of a container outlives it in
//! firewalld's files.
//!
//! Sources carry no owner. Our own state records which attachments use one, and the last of them
//! removes it.

mod bus;

use std::net::IpAddr;
use std::time::Duration;

use cni::AttachmentKey;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use state::{FileError, Index, LockError, Release};

use crate::iptables::host;

/// The zone that lets everything through, as firewalld ships it and the reference uses it.
pub const TRUSTED: &str = "trusted";

/// How long a conversation with firewalld may take. firewalld does one thing at a time, and a
/// reload takes seconds.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// A documentation address, used to ask about a zone: its answer does not matter, only whether the
/// zone exists.
const ANY_ADDRESS: &str = "192.0.2.1/32";

/// An address in a zone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Source {
    /// The zone.
    pub zone: String,
    /// The address.
    pub address: IpAddr,
}

impl Source {
    /// Returns the name of the shared object that stands for it.
    fn object(&self) -> String {
        format!("firewalld {} {}", self.zone, host(self.address))
    }
}

/// Why a call to firewalld failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FirewalldError {
    /// No process listens on the bus, or firewalld is not on it.
    #[error("firewalld is not running")]
    Absent,
    /// The bus could not be used.
    #[error("speak to firewalld over the system's message bus")]
    Bus(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No answer came.
    #[error("firewalld has not answered after {} ms", timeout.as_millis())]
    Late {
        /// The length of the wait.
        timeout: Duration,
    },
    /// firewalld did not put an address into a zone.
    #[error("failed to add the address {range} to {zone} zone: {message}")]
    Add {
        /// The zone.
        zone: String,
        /// The address, with a prefix length.
        range: String,
        /// firewalld's message.
        message: String,
    },
    /// firewalld did not take an address out of a zone.
    #[error("failed to remove the address {range} from {zone} zone: {message}")]
    Remove {
        /// The zone.
        zone: String,
        /// The address, with a prefix length.
        range: String,
        /// firewalld's message.
        message: String,
    },
    /// firewalld did not answer a query.
    #[error("ask firewalld about zone {zone:?}: {message}")]
    Query {
        /// The zone.
        zone: String,
        /// firewalld's message.
        message: String,
    },
    /// Other processes of ours held the lock for too long.
    #[error("lock the sources of firewalld")]
    Lock(#[source] LockError),
    /// A file of ours failed.
    #[error("record the users of {object:?}")]
    State {
        /// The shared object.
        object: String,
        /// The failure.
        source: FileError,
    },
}

impl FirewalldError {
    /// Says whether the named zone does not exist.
    #[must_use]
    pub fn is_no_zone(&self) -> bool {
        use FirewalldError::{Add, Query, Remove};
        let (Add { message, .. } | Remove { message, .. } | Query { message, .. }) = self else {
            return false;
        };
        says(message, "INVALID_ZONE")
    }

    /// Says whether the address is in another zone already.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, FirewalldError::Add { message, .. } if says(message, "ZONE_CONFLICT"))
    }

    /// Returns what the operator can do, if the message alone does not say it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            FirewalldError::Absent => {
                "start firewalld, or choose a backend other than firewalld in the list".to_owned()
            }
            FirewalldError::Late { .. } => {
                "see whether firewalld is reloading or stuck: systemctl status firewalld".to_owned()
            }
            error if error.is_no_zone() => {
                "firewalldZone is one of those that firewall-cmd --get-zones lists".to_owned()
            }
            FirewalldError::Add { range, .. } if self.is_conflict() => {
                format!("see firewall-cmd --get-zone-of-source={range}")
            }
            FirewalldError::Lock(_) => {
                "the process that holds the lock does not release it: see what it waits for"
                    .to_owned()
            }
            _ => return None,
        })
    }
}

/// firewalld's answer to one question.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    /// It did as asked.
    Done,
    /// Yes or no.
    Is(bool),
    /// It refused, with a message of its own: a code, a colon, an explanation.
    Refused(String),
}

/// A question to firewalld about a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Add,
    Remove,
    Query,
}

impl Method {
    const fn name(self) -> &'static str {
        match self {
            Method::Add => "addSource",
            Method::Remove => "removeSource",
            Method::Query => "querySource",
        }
    }
}

/// firewalld, reached over a bus.
#[derive(Debug, Clone)]
pub struct Firewalld {
    bus: Option<String>,
    timeout: Duration,
}

impl Firewalld {
    /// Takes the bus's address as `DBUS_SYSTEM_BUS_ADDRESS` gives it, or the standard address if
    /// there is none. Nothing is opened yet.
    #[must_use]
    pub fn new(bus: Option<&str>, timeout: Duration) -> Self {
        Firewalld { bus: bus.map(str::to_owned), timeout }
    }

    /// Says whether firewalld runs.
    ///
    /// # Errors
    /// [`FirewalldError`] when that cannot be found out.
    pub fn is_running(&self) -> Result<bool, FirewalldError> {
        match self.ask(Method::Query, &[]) {
            Ok(_) => Ok(true),
            Err(FirewalldError::Absent) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes sure that a zone of that name exists.
    ///
    /// # Errors
    /// [`FirewalldError`]; [`FirewalldError::is_no_zone`] when it does not exist.
    pub fn require_zone(&self, zone: &str) -> Result<(), FirewalldError> {
        let question = [(zone.to_owned(), ANY_ADDRESS.to_owned())];
        match self.ask(Method::Query, &question)?.pop() {
            Some(Answer::Refused(message)) => {
                Err(FirewalldError::Query { zone: zone.to_owned(), message })
            }
            _ => Ok(()),
        }
    }

    /// Adds an attachment's sources. Sources that are already there stay.
    ///
    /// # Errors
    /// [`FirewalldError`]; [`Firewalld::release`] removes what was added.
    pub fn hold(
        &self,
        index: &Index,
        key: &AttachmentKey,
        sources: &[Source],
    ) -> Result<(), FirewalldError> {
        let _lock = lock(index)?;
        for source in sources {
            let object = source.object();
            index.hold(&object, key).map_err(|source| FirewalldError::State { object, source })?;
        }
        self.add(&questions(sources))
    }

    /// Adds ranges to a zone. Those that are already there stay.
    ///
    /// # Errors
    /// [`FirewalldError`]; [`Firewalld::remove_ranges`] removes what was added.
    pub fn add_ranges(&self, zone: &str, ranges: &[IpNet]) -> Result<(), FirewalldError> {
        self.add(&range_questions(zone, ranges))
    }

    /// Removes ranges from a zone.
    ///
    /// **Idempotence**: a range that is already gone is success. So is everything when firewalld
    /// does not run: its sources disappeared with it.
    ///
    /// # Errors
    /// [`FirewalldError`]; the other ranges are tried all the same.
    pub fn remove_ranges(&self, zone: &str, ranges: &[IpNet]) -> Result<(), FirewalldError> {
        self.remove(&range_questions(zone, ranges))
    }

    /// Describes the ranges that are missing from a zone.
    ///
    /// # Errors
    /// [`FirewalldError`] when firewalld does not answer.
    pub fn missing_ranges(
        &self,
        zone: &str,
        ranges: &[IpNet],
    ) -> Result<Vec<String>, FirewalldError> {
        self.missing(&range_questions(zone, ranges))
    }

    fn add(&self, questions: &[Question]) -> Result<(), FirewalldError> {
        let answers = self.ask(Method::Add, questions)?;
        for ((zone, range), answer) in questions.iter().zip(answers) {
            match answer {
                Answer::Refused(message) if !is_there(&message) => {
                    let (zone, range) = (zone.clone(), range.clone());
                    return Err(FirewalldError::Add { zone, range, message });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes an attachment's sources, except those that other attachments use.
    ///
    /// **Idempotence**: a source that is already gone is success. So is everything when firewalld
    /// does not run: its sources disappeared with it.
    ///
    /// # Errors
    /// [`FirewalldError`]; sources that are still there stay recorded.
    pub fn release(
        &self,
        index: &Index,
        key: &AttachmentKey,
        sources: &[Source],
    ) -> Result<(), FirewalldError> {
        let may_be_held = |source: &Source| index.may_exist(&source.object()).unwrap_or(true);
        // Nothing of ours and no firewalld: leave not even a lock behind.
        if !sources.iter().any(may_be_held)
            && matches!(
                self.ask(Method::Query, &questions(sources.get(..1).unwrap_or_default())),
                Err(FirewalldError::Absent)
            )
        {
            return Ok(());
        }
        let _lock = lock(index)?;
        let mut last = Vec::new();
        for source in sources {
            let holders = index.holders(&source.object());
            // An unreadable holder counts as a holder.
            let others = !holders.damaged.is_empty() || holders.found.iter().any(|one| one != key);
            if !others {
                last.push(source.clone());
            }
        }
        let removed = if last.is_empty() { Ok(()) } else { self.remove(&questions(&last)) };
        for source in sources.iter().filter(|source| removed.is_ok() || !last.contains(source)) {
            let object = source.object();
            let released = index.release(&object, key);
            let _: Release = released.map_err(|source| FirewalldError::State { object, source })?;
        }
        removed
    }

    fn remove(&self, questions: &[Question]) -> Result<(), FirewalldError> {
        let answers = match self.ask(Method::Remove, questions) {
            Ok(answers) => answers,
            Err(FirewalldError::Absent) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut outcome = Ok(());
        for ((zone, range), answer) in questions.iter().zip(answers) {
            match answer {
                Answer::Refused(message) if !is_gone(&message) && outcome.is_ok() => {
                    let (zone, range) = (zone.clone(), range.clone());
                    outcome = Err(FirewalldError::Remove { zone, range, message });
                }
                _ => {}
            }
        }
        outcome
    }

    /// Describes the missing sources; returns nothing when all is well.
    ///
    /// # Errors
    /// [`FirewalldError`] when firewalld does not answer.
    pub fn check(&self, sources: &[Source]) -> Result<Vec<String>, FirewalldError> {
        self.missing(&questions(sources))
    }

    fn missing(&self, questions: &[Question]) -> Result<Vec<String>, FirewalldError> {
        let answers = self.ask(Method::Query, questions)?;
        let missing =
            questions.iter().zip(answers).filter(|(_, answer)| *answer != Answer::Is(true));
        Ok(missing
            .map(|((zone, range), answer)| {
                let why = match answer {
                    Answer::Refused(message) => format!(": {message}"),
                    _ => String::new(),
                };
                format!("failed to find the address {range} in {zone} zone{why}")
            })
            .collect())
    }

    /// Asks one question after the other. Fails if firewalld does not run, even without a question.
    fn ask(&self, method: Method, questions: &[Question]) -> Result<Vec<Answer>, FirewalldError> {
        bus::ask(self.bus.as_deref(), self.timeout, method, questions)
    }
}

/// A zone, and an address with its prefix length.
type Question = (String, String);

fn questions(sources: &[Source]) -> Vec<Question> {
    let one = |source: &Source| (source.zone.clone(), host(source.address));
    sources.iter().map(one).collect()
}

fn range_questions(zone: &str, ranges: &[IpNet]) -> Vec<Question> {
    ranges.iter().map(|range| (zone.to_owned(), range.to_string())).collect()
}

fn lock(index: &Index) -> Result<state::Lock, FirewalldError> {
    index.lock("firewalld", crate::LOCK_TIMEOUT).map_err(FirewalldError::Lock)
}

/// Says whether a message begins with one of firewalld's codes.
fn says(message: &str, code: &str) -> bool {
    message.strip_prefix(code).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

fn is_there(message: &str) -> bool {
    ["ZONE_ALREADY_SET", "ALREADY_ENABLED"].iter().any(|code| says(message, code))
}

/// A zone that no longer exists has no sources; an address in another zone is not ours.
fn is_gone(message: &str) -> bool {
    ["UNKNOWN_SOURCE", "NOT_ENABLED", "INVALID_ZONE", "ZONE_CONFLICT"]
        .iter()
        .any(|code| says(message, code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_whole_words() {
        assert!(
            says("INVALID_ZONE: nozone", "INVALID_ZONE") && says("INVALID_ZONE", "INVALID_ZONE")
        );
        assert!(
            !says("INVALID_ZONES: x", "INVALID_ZONE") && !says("x INVALID_ZONE", "INVALID_ZONE")
        );
        assert!(is_there("ZONE_ALREADY_SET: '10.1.0.2/32' already bound to 'trusted'"));
        assert!(is_gone("UNKNOWN_SOURCE: '10.1.0.2/32' is not in any zone"));
    }

    #[test]
    fn a_missing_bus_is_a_missing_firewalld() {
        let dir = tempfile::tempdir().unwrap();
        let bus = format!("unix:path={}/none", dir.path().display());
        let firewalld = Firewalld::new(Some(&bus), TIMEOUT);
        assert!(!firewalld.is_running().unwrap());
        assert!(firewalld.remove_ranges("z", &["10.1.0.0/16".parse().unwrap()]).is_ok());
    }

    /// A bus that never answers: the process that holds its socket is stuck.
    #[test]
    fn a_silent_bus_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bus");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let bus = format!("unix:path={}", path.display());
        let firewalld = Firewalld::new(Some(&bus), Duration::from_millis(100));
        assert!(matches!(firewalld.is_running(), Err(FirewalldError::Late { .. })));
    }

    /// Its queue of connections is full.
    #[test]
    fn a_bus_that_accepts_nobody_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bus");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _waiting = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let bus = format!("unix:path={}", path.display());
        let firewalld = Firewalld::new(Some(&bus), Duration::from_millis(100));
        assert!(matches!(firewalld.is_running(), Err(FirewalldError::Late { .. })));
    }

    #[test]
    fn a_wrong_address_is_told() {
        let firewalld = Firewalld::new(Some("nonsense"), TIMEOUT);
        assert!(matches!(firewalld.is_running(), Err(FirewalldError::Bus(_))));
    }
}
