//! What is wrong, in a form that a person and a program can use.

use net::IpFamily;
use serde::{Serialize, Serializer};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// Packets that should arrive do not.
    Error,
    /// It works, and will not in a case that is named.
    Warning,
    /// It could not be looked at.
    Unknown,
}

/// What a container's packets do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum WayKind {
    /// Within the container, over loopback.
    Inside,
    /// To its gateway.
    Gateway,
    /// To hosts beyond the node.
    Outside,
    /// To other containers of its network.
    Between,
    /// From the node to it.
    FromNode,
    /// From others to its published ports.
    Published,
    /// From the node's own programs to its published ports, by 127.0.0.1.
    PublishedHere,
    /// To its servers of names.
    Names,
    /// To other nodes' pods.
    Nodes,
}

impl WayKind {
    /// Everything that goes through the container's link.
    pub const BY_LINK: [WayKind; 8] = [
        WayKind::Gateway,
        WayKind::Outside,
        WayKind::Between,
        WayKind::FromNode,
        WayKind::Published,
        WayKind::PublishedHere,
        WayKind::Names,
        WayKind::Nodes,
    ];

    /// What goes between the container and the node's IP.
    pub(crate) const BY_NODE: [WayKind; 7] = [
        WayKind::Gateway,
        WayKind::Outside,
        WayKind::FromNode,
        WayKind::Published,
        WayKind::PublishedHere,
        WayKind::Names,
        WayKind::Nodes,
    ];
}

/// A way of packets that a finding breaks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Way {
    /// The container's ID; `None`: of every container that the finding hits.
    pub container: Option<String>,
    /// Which way.
    pub kind: WayKind,
    /// The IP version; `None`: both.
    #[serde(serialize_with = "family_name")]
    pub family: Option<IpFamily>,
}

/// Writes an IP version by its name.
pub(crate) fn family_name<S: Serializer>(
    family: &Option<IpFamily>,
    to: S,
) -> Result<S::Ok, S::Error> {
    family.map(IpFamily::name).serialize(to)
}

/// Something that is wrong, or could not be looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Its stable ID, of `docs/findings.md`.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What it is about: a link, a rule, a file, a container. Together with the ID it identifies
    /// the finding.
    pub object: String,
    /// What is wrong, as a sentence without a full stop that names the object.
    pub says: String,
    /// Where exactly: table, chain and rule; file and line; interface and address.
    #[serde(rename = "where")]
    pub place: Option<String>,
    /// Whose the object is, and why that is thought.
    pub whose: Option<String>,
    /// What was read or sent that shows it.
    pub seen: Vec<String>,
    /// The IDs of the containers that it hits.
    pub hits: Vec<String>,
    /// Commands that mend it if a shell of root runs all of them as they stand, in this order.
    pub fix: Vec<String>,
    /// Sentences for what no command does alone: what a person decides, or does elsewhere.
    pub advice: Vec<String>,
    /// What it breaks.
    pub breaks: Vec<Way>,
}

impl Finding {
    /// Creates an error of an object.
    #[must_use]
    pub fn error(id: &'static str, object: impl Into<String>, says: impl Into<String>) -> Self {
        Finding {
            id,
            severity: Severity::Error,
            object: object.into(),
            says: says.into(),
            place: None,
            whose: None,
            seen: Vec::new(),
            hits: Vec::new(),
            fix: Vec::new(),
            advice: Vec::new(),
            breaks: Vec::new(),
        }
    }

    /// Creates a warning of an object.
    #[must_use]
    pub fn warning(id: &'static str, object: impl Into<String>, says: impl Into<String>) -> Self {
        Finding { severity: Severity::Warning, ..Finding::error(id, object, says) }
    }

    /// Creates what says that something could not be looked at.
    #[must_use]
    pub fn unknown(id: &'static str, object: impl Into<String>, says: impl Into<String>) -> Self {
        Finding { severity: Severity::Unknown, ..Finding::error(id, object, says) }
    }

    /// Says where exactly.
    #[must_use]
    pub fn at(self, place: impl Into<String>) -> Self {
        Finding { place: Some(place.into()), ..self }
    }

    /// Says whose it is.
    #[must_use]
    pub fn of(self, whose: impl Into<String>) -> Self {
        Finding { whose: Some(whose.into()), ..self }
    }

    /// Adds what shows it.
    #[must_use]
    pub fn seen(mut self, seen: impl Into<String>) -> Self {
        self.seen.push(seen.into());
        self
    }

    /// Adds a container that it hits.
    #[must_use]
    pub fn hits(mut self, container: impl Into<String>) -> Self {
        self.hits.push(container.into());
        self
    }

    /// Adds a command that mends it.
    ///
    /// # Panics
    /// In a build with debug assertions, if it does not begin with a program of `PROGRAMS`.
    #[must_use]
    pub fn fix(mut self, command: impl Into<String>) -> Self {
        let command = command.into();
        debug_assert!(is_command(&command), "{command:?} is no command");
        self.fix.push(command);
        self
    }

    /// Adds a sentence for what no command does alone.
    ///
    /// # Panics
    /// In a build with debug assertions, if it begins with a program of `PROGRAMS`.
    #[must_use]
    pub fn advise(mut self, sentence: impl Into<String>) -> Self {
        let sentence = sentence.into();
        debug_assert!(!is_command(&sentence), "{sentence:?} is a command");
        self.advice.push(sentence);
        self
    }

    /// Adds a command or a sentence.
    #[must_use]
    pub(crate) fn help(self, help: Help) -> Self {
        match help {
            Help::Command(command) => self.fix(command),
            Help::Advice(sentence) => self.advise(sentence),
        }
    }

    /// Adds a way that it breaks, of every container that it hits.
    #[must_use]
    pub fn breaks(mut self, kind: WayKind, family: Option<IpFamily>) -> Self {
        self.breaks.push(Way { container: None, kind, family });
        self
    }
}

/// The programs that mend something.
const PROGRAMS: [&str; 23] = [
    "arptables-nft",
    "bridge",
    "conntrack",
    "ebtables-nft",
    "echo",
    "ethtool",
    "firewall-cmd",
    "ip",
    "ip6tables",
    "ip6tables-legacy",
    "ip6tables-nft",
    "iptables",
    "iptables-legacy",
    "iptables-nft",
    "kill",
    "netwright",
    "nft",
    "nsenter",
    "printf",
    "sysctl",
    "tc",
    "ufw",
    "wg",
];

/// Says whether a text is a command: nothing in it has to be filled in.
fn is_command(text: &str) -> bool {
    let program = text.split(' ').next().unwrap_or_default();
    PROGRAMS.contains(&program)
}

/// What helps against a finding.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Help {
    /// A command that mends it as it stands.
    Command(String),
    /// A sentence for what no command does alone.
    Advice(String),
}

/// A finding that the caller does not want to hear of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ignore {
    /// Its ID.
    pub id: String,
    /// Its object; `None`: of every object.
    pub object: Option<String>,
}

impl Ignore {
    /// Reads `ID` or `ID=OBJECT`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text.split_once('=') {
            Some((id, object)) => Ignore { id: id.to_owned(), object: Some(object.to_owned()) },
            None => Ignore { id: text.to_owned(), object: None },
        }
    }

    /// Says whether a finding is meant.
    #[must_use]
    pub fn is_of(&self, finding: &Finding) -> bool {
        self.id == finding.id && self.object.as_ref().is_none_or(|object| *object == finding.object)
    }
}
