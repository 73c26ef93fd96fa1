//! firewalld, asked over the system's message bus.
//!
//! firewalld rejects what no zone forwards, and its tables are its own. An address that is a *source* of a zone which
//! accepts (`trusted`) is let through: that is the place its documentation gives to others. Sources are put in at run
//! time only, like the reference's: they go with firewalld, with a reload and with a reboot, and nothing of a container
//! outlives it in firewalld's files.
//!
//! Sources carry no owner, so who uses one is kept in our own state: the last that uses it takes it out.
//!
//! The cargo feature `firewalld` brings the bus (`zbus`). Without it [`BUILT`] is false and every question is answered
//! with [`FirewalldError::NotBuilt`].

#[cfg(feature = "firewalld")]
mod bus;

use std::net::IpAddr;
use std::time::Duration;

use cni::AttachmentKey;
use serde::{Deserialize, Serialize};
use state::{FileError, Index, LockError, Release};

use crate::iptables::Family;

/// Whether this build can speak to firewalld.
pub const BUILT: bool = cfg!(feature = "firewalld");

/// The zone that lets everything through, as firewalld ships it and the reference uses it.
pub const TRUSTED: &str = "trusted";

/// How long a conversation with firewalld may take. It does one thing at a time, and a reload takes it seconds.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// An address of documentation, to ask a zone about: what is in a zone does not matter, only whether there is one.
const NOBODY: &str = "192.0.2.1/32";

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
        format!("firewalld {} {}", self.zone, Family::host(self.address))
    }
}

/// Why firewalld did not do what it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FirewalldError {
    /// This build has no message bus.
    #[error("this build cannot speak to firewalld")]
    NotBuilt,
    /// Nobody listens on the bus, or nobody there is firewalld.
    #[error("firewalld is not running")]
    Absent,
    /// The bus could not be used.
    #[error("speak to firewalld over the system's message bus")]
    Bus(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No answer came.
    #[error("firewalld has not answered after {} ms", timeout.as_millis())]
    Late {
        /// How long was waited.
        timeout: Duration,
    },
    /// It did not put an address into a zone.
    #[error("failed to add the address {} to {} zone: {message}", Family::host(at.address), at.zone)]
    Add {
        /// The address and the zone.
        at: Source,
        /// firewalld's words.
        message: String,
    },
    /// It did not take an address out of a zone.
    #[error("failed to remove the address {} from {} zone: {message}", Family::host(at.address), at.zone)]
    Remove {
        /// The address and the zone.
        at: Source,
        /// firewalld's words.
        message: String,
    },
    /// It did not answer a question.
    #[error("ask firewalld about zone {zone:?}: {message}")]
    Query {
        /// The zone.
        zone: String,
        /// firewalld's words.
        message: String,
    },
    /// Others of ours were at it for too long.
    #[error("lock the sources of firewalld")]
    Lock(#[source] LockError),
    /// A file of ours failed.
    #[error("keep account of {object:?}")]
    State {
        /// The shared object.
        object: String,
        /// The failure.
        source: FileError,
    },
}

impl FirewalldError {
    /// Says whether the zone that was named does not exist.
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

    /// Returns what the person who meets this can do, if there is something beside reading the message.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            FirewalldError::NotBuilt => {
                "it was built without the cargo feature \"firewalld\"".to_owned()
            }
            FirewalldError::Absent => {
                "start firewalld, or have the list ask for another backend than firewalld"
                    .to_owned()
            }
            FirewalldError::Late { .. } => {
                "see whether firewalld is reloading or stuck: systemctl status firewalld".to_owned()
            }
            error if error.is_no_zone() => {
                "firewalldZone is one of those that firewall-cmd --get-zones lists".to_owned()
            }
            FirewalldError::Add { at, .. } if self.is_conflict() => {
                format!("see firewall-cmd --get-zone-of-source={}", Family::host(at.address))
            }
            FirewalldError::Lock(_) => "whoever holds the lock is stuck; it is named".to_owned(),
            _ => return None,
        })
    }
}

/// What firewalld said to one question.
#[cfg_attr(not(feature = "firewalld"), expect(dead_code, reason = "the bus makes them"))]
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    /// It did as asked.
    Done,
    /// Yes or no.
    Is(bool),
    /// It refused, in its own words: a code, a colon, an explanation.
    Refused(String),
}

/// What firewalld can be asked about a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Add,
    Remove,
    Query,
}

impl Method {
    #[cfg_attr(not(feature = "firewalld"), expect(dead_code, reason = "for the bus"))]
    const fn name(self) -> &'static str {
        match self {
            Method::Add => "addSource",
            Method::Remove => "removeSource",
            Method::Query => "querySource",
        }
    }
}

/// firewalld, by way of a bus.
#[derive(Debug, Clone)]
pub struct Firewalld {
    bus: Option<String>,
    timeout: Duration,
}

impl Firewalld {
    /// Takes the bus's address, as `DBUS_SYSTEM_BUS_ADDRESS` has it; where it always is when there is none. Nothing
    /// is opened yet.
    #[must_use]
    pub fn new(bus: Option<&str>, timeout: Duration) -> Self {
        Firewalld { bus: bus.map(str::to_owned), timeout }
    }

    /// Says whether it runs.
    ///
    /// # Errors
    /// [`FirewalldError`] when that cannot be told.
    pub fn is_running(&self) -> Result<bool, FirewalldError> {
        match self.ask(Method::Query, &[]) {
            Ok(_) => Ok(true),
            Err(FirewalldError::Absent | FirewalldError::NotBuilt) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes sure that there is a zone of that name.
    ///
    /// # Errors
    /// [`FirewalldError`]; [`FirewalldError::is_no_zone`] when there is none.
    pub fn require_zone(&self, zone: &str) -> Result<(), FirewalldError> {
        let question = [(zone.to_owned(), NOBODY.to_owned())];
        match self.ask_all(Method::Query, &question)?.pop() {
            Some(Answer::Refused(message)) => {
                Err(FirewalldError::Query { zone: zone.to_owned(), message })
            }
            _ => Ok(()),
        }
    }

    /// Puts sources in for an attachment. What is there already stays.
    ///
    /// # Errors
    /// [`FirewalldError`]; [`Firewalld::release`] removes what was put in.
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
        let answers = self.ask(Method::Add, sources)?;
        for (source, answer) in sources.iter().zip(answers) {
            match answer {
                Answer::Refused(message) if !is_there(&message) => {
                    return Err(FirewalldError::Add { at: source.clone(), message });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes an attachment's sources out, but for those that others use.
    ///
    /// **Idempotence**: what is gone already is success, and so is everything when firewalld does not run: its
    /// sources went with it.
    ///
    /// # Errors
    /// [`FirewalldError`]; sources that are still there are still accounted for.
    pub fn release(
        &self,
        index: &Index,
        key: &AttachmentKey,
        sources: &[Source],
    ) -> Result<(), FirewalldError> {
        let is_held = |source: &Source| {
            let holders = index.holders(&source.object());
            !holders.damaged.is_empty() || !holders.found.is_empty()
        };
        // Nothing of ours and no firewalld: not even a lock is to be left.
        if !sources.iter().any(is_held)
            && matches!(
                self.ask(Method::Query, sources.get(..1).unwrap_or_default()),
                Err(FirewalldError::Absent | FirewalldError::NotBuilt)
            )
        {
            return Ok(());
        }
        let _lock = lock(index)?;
        let mut last = Vec::new();
        for source in sources {
            let holders = index.holders(&source.object());
            // One that cannot be read is somebody.
            let others = !holders.damaged.is_empty() || holders.found.iter().any(|one| one != key);
            if !others {
                last.push(source.clone());
            }
        }
        let removed = if last.is_empty() { Ok(()) } else { self.remove(&last) };
        for source in sources.iter().filter(|source| removed.is_ok() || !last.contains(source)) {
            let object = source.object();
            let released = index.release(&object, key);
            let _: Release = released.map_err(|source| FirewalldError::State { object, source })?;
        }
        removed
    }

    fn remove(&self, sources: &[Source]) -> Result<(), FirewalldError> {
        let answers = match self.ask(Method::Remove, sources) {
            Ok(answers) => answers,
            Err(FirewalldError::Absent | FirewalldError::NotBuilt) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut outcome = Ok(());
        for (source, answer) in sources.iter().zip(answers) {
            match answer {
                Answer::Refused(message) if !is_gone(&message) && outcome.is_ok() => {
                    outcome = Err(FirewalldError::Remove { at: source.clone(), message });
                }
                _ => {}
            }
        }
        outcome
    }

    /// Describes the sources that are missing; nothing when all is well.
    ///
    /// # Errors
    /// [`FirewalldError`] when firewalld does not say.
    pub fn check(&self, sources: &[Source]) -> Result<Vec<String>, FirewalldError> {
        let answers = self.ask(Method::Query, sources)?;
        let missing = sources.iter().zip(answers).filter(|(_, answer)| *answer != Answer::Is(true));
        Ok(missing
            .map(|(source, answer)| {
                let host = Family::host(source.address);
                let why = match answer {
                    Answer::Refused(message) => format!(": {message}"),
                    _ => String::new(),
                };
                format!("failed to find the address {host} in {} zone{why}", source.zone)
            })
            .collect())
    }

    fn ask(&self, method: Method, sources: &[Source]) -> Result<Vec<Answer>, FirewalldError> {
        let questions: Vec<(String, String)> = sources
            .iter()
            .map(|source| (source.zone.clone(), Family::host(source.address)))
            .collect();
        self.ask_all(method, &questions)
    }

    /// Asks one question after the other. Knows that firewalld runs, even when there is none.
    #[cfg(feature = "firewalld")]
    fn ask_all(
        &self,
        method: Method,
        questions: &[(String, String)],
    ) -> Result<Vec<Answer>, FirewalldError> {
        bus::ask(self.bus.clone(), self.timeout, method, questions.to_vec())
    }

    #[cfg(not(feature = "firewalld"))]
    fn ask_all(&self, _: Method, _: &[(String, String)]) -> Result<Vec<Answer>, FirewalldError> {
        let _ = (&self.bus, self.timeout);
        Err(FirewalldError::NotBuilt)
    }
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

/// A zone that is gone has no sources; an address in another zone is not ours.
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
        assert!(
            firewalld.remove(&[Source { zone: "z".into(), address: [10, 1, 0, 2].into() }]).is_ok()
        );
    }

    /// A bus that is not answered at all: whoever holds its socket is stuck.
    #[cfg(feature = "firewalld")]
    #[test]
    fn a_silent_bus_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bus");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let bus = format!("unix:path={}", path.display());
        let firewalld = Firewalld::new(Some(&bus), Duration::from_millis(100));
        assert!(matches!(firewalld.is_running(), Err(FirewalldError::Late { .. })));
    }

    #[cfg(feature = "firewalld")]
    #[test]
    fn a_wrong_address_is_told() {
        let firewalld = Firewalld::new(Some("nonsense"), TIMEOUT);
        assert!(matches!(firewalld.is_running(), Err(FirewalldError::Bus(_))));
    }
}
