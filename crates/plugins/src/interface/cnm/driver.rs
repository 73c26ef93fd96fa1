//! A driver: where it listens, and the calls to it.
//!
//! Every call is a connection of its own, and ends by its deadline even if the driver does not
//! answer. A driver that once did not answer gets little time from then on: the undo must finish
//! too.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cni::code;
use cni_plugin::codes;
use cnm::Nothing;
use cnm::http::{HttpError, IncomingMessage, Kind, Message, request};
use cnm::method::Method;
use cnm::network::ActivateAnswer;
use cnm::place::{
    Address, AddressError, Candidate, SOCKET_DIR, SPEC_DIRS, address_in_json, candidates,
};
use node_api::socket;
use rustix::net::sockopt::Timeout;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, recv, send};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::shared::failure::Failure;

/// The longest answer that is read. Known drivers answer with some hundred bytes; an answer with a
/// thousand routes has a hundred thousand.
const MAX_ANSWER: usize = 1024 * 1024;

/// How much of a driver's message an error repeats.
const MAX_WORDS: usize = 1000;

/// How long a call waits for a driver that did not answer before.
const SILENT_TIMEOUT: Duration = Duration::from_secs(2);

/// How a configuration names a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// By its name, as Docker finds it.
    Named(String),
    /// By its address.
    At(Address),
    /// By a file that holds its address.
    File(PathBuf),
}

impl Place {
    /// Reads a name, the path of a socket, of a `.spec` or `.json` file, or an address.
    ///
    /// # Errors
    /// The text that follows the key in the message.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.contains("://") {
            return text.parse().map(Place::At).map_err(|error: AddressError| error.to_string());
        }
        let path = Path::new(text);
        if path.is_absolute() {
            let is_file = path.extension().is_some_and(|end| end == "spec" || end == "json");
            let at = || Place::At(Address::Unix(path.into()));
            return Ok(if is_file { Place::File(path.into()) } else { at() });
        }
        let is_name = !text.is_empty()
            && !text.starts_with('.')
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte));
        if is_name {
            return Ok(Place::Named(text.to_owned()));
        }
        Err(format!("{text:?} is neither a driver's name nor the absolute path of its socket"))
    }

    /// Finds the address. `root` is `/` outside tests.
    fn find(&self, root: &Path) -> Result<Address, String> {
        match self {
            Place::At(address) => Ok(address.clone()),
            Place::File(path) => read_address(path),
            Place::Named(name) => {
                for place in candidates(root, name) {
                    match place {
                        Candidate::Socket(path) if is_socket(&path) => {
                            return Ok(Address::Unix(path));
                        }
                        Candidate::Spec(path) | Candidate::Json(path) if path.exists() => {
                            return read_address(&path);
                        }
                        _ => {}
                    }
                }
                let dirs = [SOCKET_DIR, SPEC_DIRS[0], SPEC_DIRS[1]].join(", ");
                Err(format!("no driver of that name in {dirs}"))
            }
        }
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

fn read_address(path: &Path) -> Result<Address, String> {
    let told = |error: &dyn fmt::Display| format!("{}: {error}", path.display());
    let bytes = state::read_optional(path).map_err(|error| told(&error))?;
    let bytes = bytes.ok_or_else(|| told(&"no such file"))?;
    let address = if path.extension().is_some_and(|end| end == "json") {
        address_in_json(&bytes).map_err(|error| told(&error))?
    } else {
        String::from_utf8_lossy(&bytes).into_owned()
    };
    address.parse().map_err(|error: AddressError| told(&error))
}

/// A recorded driver: DEL must find it even if the configuration is gone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct DriverRecord {
    /// As configured.
    pub(super) name: String,
    /// Where it listened.
    pub(super) address: String,
}

/// The reason why a driver gave no usable answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum AskError {
    /// The driver was not found.
    #[error("driver {driver:?} is not there: {reason}")]
    Missing {
        /// The driver.
        driver: String,
        /// The reason.
        reason: String,
    },
    /// No process listens on the address.
    #[error("driver {driver:?} is not there: connect to {address}")]
    Connect {
        /// The driver.
        driver: String,
        /// Where it should listen.
        address: Address,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The driver does not answer.
    #[error("driver {driver:?} did not answer {method} within {timeout:?}")]
    Slow {
        /// The driver.
        driver: String,
        /// The call.
        method: Method,
        /// How long the call waited.
        timeout: Duration,
    },
    /// The connection broke.
    #[error("driver {driver:?} did not answer {method}")]
    Broken {
        /// The driver.
        driver: String,
        /// The call.
        method: Method,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The answer is not HTTP.
    #[error("driver {driver:?} answered {method} with what is not HTTP")]
    Http {
        /// The driver.
        driver: String,
        /// The call.
        method: Method,
        /// What is wrong with it.
        source: HttpError,
    },
    /// The driver does not know the call.
    #[error("driver {driver:?} does not know the call {method}")]
    Unsupported {
        /// The driver.
        driver: String,
        /// The call.
        method: Method,
    },
    /// The driver refuses with a message.
    #[error("driver {driver:?} refused {method}: {words}")]
    Refused {
        /// The driver.
        driver: String,
        /// The call.
        method: Method,
        /// The message.
        words: String,
    },
    /// The content of the answer is not as expected.
    #[error("driver {driver:?} answered {method} with something else: {reason}")]
    Content {
        /// The driver.
        driver: String,
        /// The call.
        method: Method,
        /// What is wrong with it.
        reason: String,
    },
}

impl AskError {
    /// Reports whether the driver has received and understood the call, and refuses it.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, AskError::Refused { .. } | AskError::Unsupported { .. })
    }

    /// Reports whether the driver does not support the call.
    pub(super) fn is_unsupported(&self) -> bool {
        matches!(self, AskError::Unsupported { .. })
    }
}

impl From<AskError> for Failure {
    fn from(error: AskError) -> Self {
        let code = match error {
            AskError::Slow { .. } => code::TRY_AGAIN_LATER,
            _ => codes::DRIVER,
        };
        let failure = Failure::from_chain(code, &error);
        match error {
            AskError::Missing { .. } | AskError::Connect { .. } | AskError::Slow { .. } => {
                failure.with_details("is the driver running? its own log says more")
            }
            _ => failure,
        }
    }
}

/// How long one call of the plugin waits for drivers.
#[derive(Debug)]
pub(crate) struct Timeouts {
    timeout: Duration,
    /// When the whole call must be over.
    deadline: Option<Instant>,
    silent: Cell<bool>,
}

impl Timeouts {
    /// Creates it with `timeout` for each request, all before `deadline`.
    pub(super) fn new(timeout: Duration, deadline: Option<Instant>) -> Self {
        Timeouts { timeout, deadline, silent: Cell::new(false) }
    }

    fn left(&self) -> Duration {
        if self.silent.get() {
            return self.timeout.min(SILENT_TIMEOUT);
        }
        let left = self.deadline.map(|end| end.saturating_duration_since(Instant::now()));
        // The undo gets some time even if all of it is used up.
        let left = left.map_or(self.timeout, |left| left.max(SILENT_TIMEOUT));
        self.timeout.min(left)
    }
}

/// A driver that can be called.
#[derive(Debug)]
pub(super) struct Driver<'p> {
    known: DriverRecord,
    address: Address,
    timeouts: &'p Timeouts,
}

impl<'p> Driver<'p> {
    /// Finds a driver. `name` is as configured.
    ///
    /// # Errors
    /// [`AskError::Missing`].
    pub(super) fn find(name: &str, timeouts: &'p Timeouts) -> Result<Self, AskError> {
        let missing = |reason| AskError::Missing { driver: name.to_owned(), reason };
        let place = Place::parse(name).map_err(missing)?;
        let address = place.find(Path::new("/")).map_err(missing)?;
        let known = DriverRecord { name: name.to_owned(), address: address.to_string() };
        Ok(Driver { known, address, timeouts })
    }

    /// Finds a recorded driver: where it is now, else where it was.
    ///
    /// # Errors
    /// [`AskError::Missing`] when neither can be read.
    pub(super) fn again(known: &DriverRecord, timeouts: &'p Timeouts) -> Result<Self, AskError> {
        Driver::find(&known.name, timeouts).or_else(|missing| match known.address.parse() {
            Ok(address) => Ok(Driver { known: known.clone(), address, timeouts }),
            Err(_) => Err(missing),
        })
    }

    /// Returns what must be recorded.
    pub(super) fn known(&self) -> &DriverRecord {
        &self.known
    }

    /// Returns its name as configured.
    pub(super) fn name(&self) -> &str {
        &self.known.name
    }

    /// Makes sure that it exists and is a driver of this kind: `NetworkDriver`, `IpamDriver`.
    ///
    /// # Errors
    /// [`AskError`].
    pub(super) fn activate(&self, kind: &str) -> Result<(), AskError> {
        let method = Method::Activate;
        let activated: ActivateAnswer = self.ask(method, &Nothing {})?;
        if activated.implements.iter().any(|one| one == kind) {
            return Ok(());
        }
        let reason = match activated.implements.as_slice() {
            [] => format!("it implements nothing, and no {kind}"),
            all => format!("it implements {}, and no {kind}", all.join(", ")),
        };
        Err(AskError::Content { driver: self.name().to_owned(), method, reason })
    }

    /// Sends a request, and reads the answer.
    ///
    /// # Errors
    /// [`AskError`].
    pub(super) fn ask<A: DeserializeOwned>(
        &self,
        method: Method,
        question: &impl Serialize,
    ) -> Result<A, AskError> {
        let message = self.answer(method, &cnm::write(question))?;
        cnm::read(&message.body).map_err(|error| AskError::Content {
            driver: self.name().to_owned(),
            method,
            reason: error.to_string(),
        })
    }

    /// Returns the answer to a request that the driver did not refuse.
    fn answer(&self, method: Method, question: &[u8]) -> Result<Message, AskError> {
        let driver = || self.name().to_owned();
        let message = self.exchange(method, question);
        if matches!(message, Err(AskError::Slow { .. })) {
            self.timeouts.silent.set(true);
        }
        let message = message?;
        tracing::debug!(driver = self.name(), call = %method, status = message.status, "asked a driver");
        let failure = cnm::read::<cnm::Failure>(&message.body).unwrap_or_default();
        match message.status {
            200..=299 => {}
            404 => return Err(AskError::Unsupported { driver: driver(), method }),
            status => {
                let words = failure.text().map_or_else(|| words(&message.body), str::to_owned);
                let words = format!("status {status}: {}", self::words(words.as_bytes()));
                return Err(AskError::Refused { driver: driver(), method, words });
            }
        }
        if let Some(text) = failure.text() {
            let words = words(text.as_bytes());
            return Err(AskError::Refused { driver: driver(), method, words });
        }
        Ok(message)
    }

    /// Sends a request that has no answer but success.
    ///
    /// # Errors
    /// [`AskError`].
    pub(super) fn tell(&self, method: Method, question: &impl Serialize) -> Result<(), AskError> {
        self.ask::<Nothing>(method, question).map(drop)
    }

    fn exchange(&self, method: Method, body: &[u8]) -> Result<Message, AskError> {
        let driver = self.name().to_owned();
        let timeout = self.timeouts.left();
        let deadline = Instant::now() + timeout;
        let failed = |source: io::Error| {
            let driver = driver.clone();
            match source.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    AskError::Slow { driver, method, timeout }
                }
                _ => AskError::Broken { driver, method, source },
            }
        };
        let stream = connect(&self.address, timeout).map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => failed(source),
            _ => {
                let address = self.address.clone();
                AskError::Connect { driver: driver.clone(), address, source }
            }
        })?;
        let request = request(&method.path(), body, true);
        let mut rest = request.as_slice();
        while !rest.is_empty() {
            socket::limit(&stream, Timeout::Send, deadline).map_err(failed)?;
            let sent =
                send(&stream, rest, SendFlags::NOSIGNAL).map_err(|errno| failed(errno.into()))?;
            rest = &rest[sent..];
        }
        let wrong = |source| AskError::Http { driver: driver.clone(), method, source };
        let mut incoming = IncomingMessage::new(Kind::Answer, MAX_ANSWER);
        let mut buffer = [0; 16 * 1024];
        loop {
            socket::limit(&stream, Timeout::Recv, deadline).map_err(failed)?;
            match recv(&stream, &mut buffer[..], RecvFlags::empty()) {
                Ok((0, _)) => return incoming.end().map_err(wrong),
                Ok((length, _)) => {
                    if let Some(message) = incoming.feed(&buffer[..length]).map_err(wrong)? {
                        return Ok(message);
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
            if deadline < Instant::now() {
                return Err(AskError::Slow { driver, method, timeout });
            }
        }
    }
}

/// Returns a message on one line of bounded length.
fn words(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    one_line.chars().take(MAX_WORDS).collect()
}

/// Connects; if the listener's queue is full, waits at most `timeout`.
fn connect(address: &Address, timeout: Duration) -> io::Result<OwnedFd> {
    let deadline = Instant::now() + timeout;
    match address {
        Address::Unix(path) => socket::connect_unix(path, deadline),
        Address::Tcp(address) => {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let socket = socket::stream(family, deadline)?;
            rustix::net::connect(&socket, address)?;
            Ok(socket)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_named_in_four_ways() {
        let socket = |path: &str| Ok(Place::At(Address::Unix(path.into())));
        assert_eq!(Place::parse("weave"), Ok(Place::Named("weave".to_owned())));
        assert_eq!(
            Place::parse("store/weave:2"),
            Err("\"store/weave:2\" is neither a driver's name nor the absolute path of its socket"
                .to_owned())
        );
        assert_eq!(Place::parse("/run/w.sock"), socket("/run/w.sock"));
        assert_eq!(Place::parse("unix:///run/w.sock"), socket("/run/w.sock"));
        assert_eq!(Place::parse("/etc/w.spec"), Ok(Place::File("/etc/w.spec".into())));
        assert!(Place::parse("tcp://192.0.2.1:80").unwrap_err().contains("not on this host"));
        assert!(Place::parse("").is_err() && Place::parse("../x").is_err());
    }

    #[test]
    fn files_lead_to_sockets() {
        let dir = tempfile::tempdir().unwrap();
        let etc = dir.path().join("etc/docker/plugins");
        std::fs::create_dir_all(etc.join("b")).unwrap();
        std::fs::write(etc.join("a.spec"), "unix:///run/a.sock\n").unwrap();
        std::fs::write(etc.join("b/b.json"), r#"{"Addr":"unix:///run/b.sock"}"#).unwrap();
        std::fs::write(etc.join("c.spec"), "tcp://192.0.2.1:1").unwrap();
        let find = |name: &str| Place::Named(name.to_owned()).find(dir.path());
        assert_eq!(find("a").unwrap().to_string(), "unix:///run/a.sock");
        assert_eq!(find("b").unwrap().to_string(), "unix:///run/b.sock");
        assert!(find("c").unwrap_err().contains("not on this host"));
        assert!(find("d").unwrap_err().contains("no driver of that name"));
    }

    #[test]
    fn words_of_drivers_are_bounded() {
        assert_eq!(words(b"a\n b\t\xff"), "a b \u{fffd}");
        assert_eq!(words(&[b'x'; 5000]).len(), MAX_WORDS);
    }
}
