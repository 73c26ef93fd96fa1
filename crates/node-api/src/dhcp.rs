//! The protocol between the plugin `dhcp` and `netwrightd dhcp`.
//!
//! The plugin connects to a Unix socket ([`SOCKET`]) and sends one line, the daemon answers with
//! one line, and both close. A line is a JSON object of at most [`MAX_LINE`] octets with a closing
//! newline. The reference's protocol (Go's net/rpc with gob) is not supported: plugin and daemon
//! are installed together.
//!
//! ```json
//! {"version":1,"ask":{"acquire":{"attachment":{"network":"lan","containerID":"c1","ifname":"eth0"},
//!   "netns":"/run/netns/c1","netnsId":{"dev":4,"ino":4026532513},"client":{"families":["v4"]}}}}
//! {"version":1,"answer":{"lease":{"cniVersion":"1.1.0","ips":[{"address":"192.0.2.9/24","gateway":"192.0.2.1"}]}}}
//! ```
//!
//! - The daemon serves root and the user it runs as (SO_PEERCRED); the plugin accepts root and its
//!   own user.
//! - The daemon closes a connection on which no complete line arrives within ten seconds.
//! - While the plugin waits for a lease the connection stays open. If the plugin closes it, the
//!   daemon stops trying.
//! - A daemon that does not know the version or the question answers `failed`. It ignores unknown
//!   keys.
//! - DEL does not depend on an answer: a plugin that reaches no daemon leaves a [`Note`].

use std::path::{Path, PathBuf};

use cni::{AttachmentKey, GcAttachment, NetworkName, Version};
use net::IpFamily;
use serde::{Deserialize, Serialize};
use state::{FileError, NetnsIdentity};

use crate::inbox;
use crate::line::{LineError, Message, read_any, write_any};

/// The version of the protocol.
pub const VERSION: u32 = 1;

/// Where the daemon listens: the socket of the reference's daemon and of ours.
pub const SOCKET: &str = "/run/cni/dhcp.sock";

/// The longest line. GC's list of attachments is the longest message: this has room for some ten
/// thousand.
pub const MAX_LINE: usize = 2 * 1024 * 1024;

/// The CNI version of the results in which leases are written.
pub const RESULT_VERSION: Version = Version::V1_1_0;

/// The line that the plugin sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// [`VERSION`].
    pub version: u32,
    /// The request.
    pub ask: Request,
}

/// What the plugin asks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Request {
    /// Get a lease; the present one, if there is one. Answered by [`Answer::Lease`].
    Acquire(Box<LeaseRequest>),
    /// Show the present lease. Answered by [`Answer::Lease`] or [`Answer::Unknown`].
    Inspect {
        /// Its holder.
        attachment: AttachmentKey,
    },
    /// Release the lease. Answered by [`Answer::Done`] or [`Answer::Unknown`].
    Release {
        /// Its holder.
        attachment: AttachmentKey,
    },
    /// Release every lease of a network except those of these attachments. Answered by
    /// [`Answer::Done`].
    Collect {
        /// The network.
        network: NetworkName,
        /// The valid attachments.
        valid: Vec<GcAttachment>,
    },
    /// Report readiness. Answered by [`Answer::Done`] when a lease could be requested.
    Status,
}

/// What [`Request::Acquire`] asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseRequest {
    /// The attachment that it is for.
    pub attachment: AttachmentKey,
    /// The namespace of the interface: a path as the host sees it.
    pub netns: PathBuf,
    /// The namespace that the plugin found there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns_id: Option<NetnsIdentity>,
    /// The PID namespace of the plugin, unless that is the machine's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_ns: Option<u64>,
    /// How to ask the servers.
    pub client: Client,
}

/// How to ask the servers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Client {
    /// The wanted families; an empty list means IPv4.
    #[serde(with = "families")]
    pub families: Vec<IpFamily>,
    /// Options to request before the default ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub request: Vec<u8>,
    /// Whether to leave out the default options.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skip_default: bool,
    /// Options to send.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub provide: Vec<ProvidedOption>,
    /// The metric of every route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
}

/// Versions of IP as messages name them: `v4`, `v6`.
mod families {
    use net::IpFamily;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(remote = "IpFamily", rename_all = "lowercase")]
    enum FamilyWord {
        V4,
        V6,
    }

    #[derive(Serialize, Deserialize)]
    struct Word(#[serde(with = "FamilyWord")] IpFamily);

    pub(super) fn serialize<S: Serializer>(all: &[IpFamily], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(all.iter().copied().map(Word))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<IpFamily>, D::Error> {
        Ok(Vec::<Word>::deserialize(from)?.into_iter().map(|word| word.0).collect())
    }
}

/// An option to send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvidedOption {
    /// Its code.
    pub code: u8,
    /// Its value; hexadecimal on the wire.
    #[serde(with = "hex")]
    pub value: Vec<u8>,
}

/// The line that the daemon sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// [`VERSION`].
    pub version: u32,
    /// The answer.
    pub answer: Answer,
}

/// The daemon's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Answer {
    /// A lease, as the result of CNI [`RESULT_VERSION`].
    Lease(serde_json::Value),
    /// It is done.
    Done,
    /// There is no such lease.
    Unknown,
    /// The request failed.
    Failed(Failure),
}

/// The reason why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// A CNI error code or one of ours.
    pub code: u32,
    /// One line.
    pub msg: String,
    /// Causes and remedies.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub details: String,
}

impl Failure {
    /// Turns it into a CNI error.
    #[must_use]
    pub fn into_error(self) -> cni::Error {
        cni::Error::new(self.code, self.msg).with_details(self.details)
    }
}

impl From<cni::Error> for Failure {
    fn from(error: cni::Error) -> Self {
        Failure { code: error.code, msg: error.msg, details: error.details }
    }
}

impl Question {
    /// Creates a question in this version.
    #[must_use]
    pub fn new(ask: Request) -> Self {
        Question { version: VERSION, ask }
    }
}

impl Reply {
    /// Creates an answer in this version.
    #[must_use]
    pub fn new(answer: Answer) -> Self {
        Reply { version: VERSION, answer }
    }
}

impl Message for Question {
    fn from_line(line: &[u8]) -> Result<Self, LineError> {
        read_any(line, VERSION)
    }

    fn to_line(&self) -> Result<Vec<u8>, LineError> {
        Ok(write_any(self))
    }
}

impl Message for Reply {
    fn from_line(line: &[u8]) -> Result<Self, LineError> {
        read_any(line, VERSION)
    }

    fn to_line(&self) -> Result<Vec<u8>, LineError> {
        Ok(write_any(self))
    }
}

/// Reads a question; the error is the answer to send.
///
/// # Errors
/// Code 1 for another version, code 6 for anything that is not a question.
pub fn read_question(line: &[u8]) -> Result<Request, Failure> {
    let failed = |code, msg: String| Failure { code, msg, details: String::new() };
    match Question::from_line(line) {
        Ok(question) => Ok(question.ask),
        Err(LineError::Version { found, known }) => Err(failed(
            cni::code::INCOMPATIBLE_VERSION,
            format!(
                "the DHCP daemon has version {known} of its protocol, the plugin version {found}"
            ),
        )),
        Err(error) => Err(failed(
            cni::code::DECODE_FAILURE,
            format!("not a request of the DHCP protocol: {error}"),
        )),
    }
}

/// A message for the daemon's [inbox]: release the lease of this attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note(pub AttachmentKey);

impl Note {
    /// Leaves the note. If there is no inbox, no daemon has run since the machine started, and
    /// there is no lease to release.
    ///
    /// # Errors
    /// [`FileError`] when it cannot be written.
    pub fn leave(&self, socket: &Path) -> Result<(), FileError> {
        if !inbox::folder(socket).is_dir() {
            return Ok(());
        }
        let text = self.to_line().expect("a note has no limit");
        inbox::leave(socket, &format!("{}.json", self.0.hash()), &text)
    }
}

impl Message for Note {
    fn from_line(line: &[u8]) -> Result<Self, LineError> {
        cni::json::from_slice(line).map(Note).map_err(LineError::Shape)
    }

    fn to_line(&self) -> Result<Vec<u8>, LineError> {
        Ok(serde_json::to_vec(&self.0).expect("a key has string keys only"))
    }
}

/// Octets as text, two hexadecimal digits each.
mod hex {
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        octets: &[u8],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        use std::fmt::Write as _;
        let text = octets.iter().fold(String::new(), |mut text, octet| {
            write!(text, "{octet:02x}").expect("writing to a String cannot fail");
            text
        });
        serializer.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.as_bytes();
        let pair = |pair: &[u8]| -> Option<u8> {
            let text = std::str::from_utf8(pair).ok().filter(|text| !text.starts_with('+'))?;
            u8::from_str_radix(text, 16).ok().filter(|_| pair.len() == 2)
        };
        let octets: Option<Vec<u8>> = digits.chunks(2).map(pair).collect();
        octets.ok_or_else(|| serde::de::Error::custom("not an even number of hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_survives_the_wire() {
        let key = r#"{"network":"n","containerID":"c","ifname":"eth0"}"#;
        let line = format!(
            r#"{{"version":1,"new":[],"ask":{{"acquire":{{"attachment":{key},"netns":"/n","client":{{"provide":[{{"code":12,"value":"00ff"}}],"other":1}}}}}}}}"#
        );
        let ask = read_question(line.as_bytes()).unwrap();
        let Request::Acquire(acquire) = &ask else { panic!("{ask:?}") };
        assert_eq!(acquire.client.provide[0].value, [0, 0xff]);
        let again = Question::new(ask.clone()).to_line().unwrap();
        assert_eq!(read_question(&again).unwrap(), ask);
    }

    #[test]
    fn an_answer_survives_the_wire() {
        let lease =
            serde_json::json!({ "cniVersion": "1.1.0", "ips": [{ "address": "192.0.2.9/24" }] });
        let failure = Failure { code: 102, msg: "no lease".into(), details: "ask again".into() };
        for (text, answer) in [
            (
                r#"{"lease":{"cniVersion":"1.1.0","ips":[{"address":"192.0.2.9/24"}]}}"#,
                Answer::Lease(lease),
            ),
            (r#""done""#, Answer::Done),
            (r#""unknown""#, Answer::Unknown),
            (
                r#"{"failed":{"code":102,"msg":"no lease","details":"ask again"}}"#,
                Answer::Failed(failure),
            ),
        ] {
            let reply = Reply::new(answer);
            let line = reply.to_line().unwrap();
            let want = format!("{{\"version\":1,\"answer\":{text}}}\n");
            assert_eq!(String::from_utf8(line.clone()).unwrap(), want);
            assert_eq!(Reply::from_line(&line).unwrap(), reply);
        }
        let line = Question::new(Request::Status).to_line().unwrap();
        assert_eq!(line, b"{\"version\":1,\"ask\":\"status\"}\n");
        assert_eq!(read_question(&line).unwrap(), Request::Status);
    }

    #[test]
    fn other_versions_and_garbage_are_told() {
        let code = |line: &str| read_question(line.as_bytes()).unwrap_err().code;
        assert_eq!(code(r#"{"version":2,"ask":"dance"}"#), 1);
        assert_eq!(code(r#"{"version":1,"ask":"dance"}"#), 6);
        assert_eq!(
            code(
                r#"{"version":1,"ask":{"release":{"attachment":{"network":"../x","containerID":"c","ifname":"e"}}}}"#
            ),
            6
        );
        assert_eq!(code("CONNECT /_goRPC_ HTTP/1.0"), 6);
        assert_eq!(code(""), 6);
    }

    #[test]
    fn a_note_is_a_key_in_a_file_of_its_own() {
        let text = r#"{"network":"n","containerID":"c","ifname":"eth0"}"#;
        let note = Note::from_line(text.as_bytes()).unwrap();
        assert_eq!(note.to_line().unwrap(), text.as_bytes());
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("dhcp.sock");
        note.leave(&socket).unwrap();
        assert!(!inbox::folder(&socket).exists(), "no daemon has ever run");
        let folder = inbox::open(&socket).unwrap();
        note.leave(&socket).unwrap();
        assert!(folder.join(format!("{}.json", note.0.hash())).exists());
        let mut seen = Vec::new();
        inbox::look(&folder, |note: Note| {
            seen.push(note);
            true
        });
        assert_eq!(seen, [note]);
    }
}
