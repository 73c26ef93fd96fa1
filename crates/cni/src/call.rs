//! What the environment tells a plugin: the verb, the attachment, the search path.

use std::fmt;
use std::path::PathBuf;

use crate::error::{Error, code};
use crate::text::{quote, quote_list};
use crate::version::Version;

/// A verb of the protocol (CNI 1.1.0 §2 `CNI_COMMAND`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// Connect a container, or change a connection.
    Add,
    /// Undo ADD.
    Del,
    /// Verify that what ADD made is still there.
    Check,
    /// Remove what no valid attachment owns.
    Gc,
    /// Say whether ADD would be served.
    Status,
    /// Say which versions are supported.
    Version,
}

impl Command {
    /// Every verb.
    pub const ALL: &'static [Command] = &[
        Command::Add,
        Command::Del,
        Command::Check,
        Command::Gc,
        Command::Status,
        Command::Version,
    ];

    /// Returns the verb as the environment writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Command::Add => "ADD",
            Command::Del => "DEL",
            Command::Check => "CHECK",
            Command::Gc => "GC",
            Command::Status => "STATUS",
            Command::Version => "VERSION",
        }
    }

    /// Returns the version of the specification that first has the verb (CNI 1.1.0 §2).
    #[must_use]
    pub const fn since(self) -> Version {
        match self {
            Command::Add | Command::Del => Version::V0_1_0,
            Command::Version => Version::V0_2_0,
            Command::Check => Version::V0_4_0,
            Command::Gc | Command::Status => Version::V1_1_0,
        }
    }

    /// Reads a verb; upper case only.
    #[must_use]
    pub fn parse(text: &str) -> Option<Command> {
        Command::ALL.iter().copied().find(|command| command.as_str() == text)
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The environment of one call, as unchecked text. A variable that is not set is empty here: the
/// protocol treats both alike.
///
/// The same value serves a process (as its environment) and a call within this process, so that
/// both see the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallEnv {
    /// `CNI_COMMAND`.
    pub command: String,
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_NETNS`.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_ARGS`.
    pub args: String,
    /// `CNI_PATH`.
    pub path: String,
    /// `CNI_NETNS_OVERRIDE`.
    pub netns_override: String,
    /// All other variables that the plugin inherits by contract: `TRACEPARENT`, `TRACESTATE`,
    /// `BAGGAGE`.
    pub trace: Vec<(String, String)>,
}

/// The variables that carry W3C trace context.
pub const TRACE_VARIABLES: &[&str] = &["TRACEPARENT", "TRACESTATE", "BAGGAGE"];

impl CallEnv {
    /// Picks the protocol's variables out of an environment.
    pub fn from_vars(vars: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut env = CallEnv::default();
        for (key, value) in vars {
            let slot = match key.as_str() {
                "CNI_COMMAND" => &mut env.command,
                "CNI_CONTAINERID" => &mut env.container_id,
                "CNI_NETNS" => &mut env.netns,
                "CNI_IFNAME" => &mut env.ifname,
                "CNI_ARGS" => &mut env.args,
                "CNI_PATH" => &mut env.path,
                "CNI_NETNS_OVERRIDE" => &mut env.netns_override,
                _ => {
                    if TRACE_VARIABLES.contains(&key.as_str()) {
                        env.trace.push((key, value));
                    }
                    continue;
                }
            };
            *slot = value;
        }
        env
    }

    /// Returns the variables to set for a process. The six of the protocol are always there,
    /// possibly empty; the override only when it is not empty.
    #[must_use]
    pub fn to_vars(&self) -> Vec<(&str, &str)> {
        let mut vars = vec![
            ("CNI_COMMAND", self.command.as_str()),
            ("CNI_CONTAINERID", &self.container_id),
            ("CNI_NETNS", &self.netns),
            ("CNI_ARGS", &self.args),
            ("CNI_IFNAME", &self.ifname),
            ("CNI_PATH", &self.path),
        ];
        if !self.netns_override.is_empty() {
            vars.push(("CNI_NETNS_OVERRIDE", &self.netns_override));
        }
        vars.extend(self.trace.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        vars
    }

    /// Returns the directories of `CNI_PATH`.
    #[must_use]
    pub fn plugin_path(&self) -> Vec<PathBuf> {
        std::env::split_paths(&self.path).filter(|dir| !dir.as_os_str().is_empty()).collect()
    }

    /// Says whether the namespace guard is switched off: `true` in any case, or `1`.
    #[must_use]
    pub fn overrides_netns(&self) -> bool {
        self.netns_override == "1" || self.netns_override.eq_ignore_ascii_case("true")
    }
}

/// The one key that every plugin which reads `CNI_ARGS` knows.
const IGNORE_UNKNOWN: &str = "IgnoreUnknown";

/// The pairs of `CNI_ARGS`, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Args(Vec<(String, String)>);

impl Args {
    /// Reads `K=V;K2=V2`, each piece with exactly one `=`, as the reference plugins do.
    ///
    /// # Errors
    /// Code 4, `ARGS: invalid pair "…"`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Ok(Args::default());
        }
        text.split(';')
            .map(|pair| match pair.split_once('=') {
                Some((key, value)) if !value.contains('=') => {
                    Ok((key.to_owned(), value.to_owned()))
                }
                _ => Err(Error::new(
                    code::INVALID_ENVIRONMENT,
                    format!("ARGS: invalid pair {}", quote(pair)),
                )
                .with_details("CNI_ARGS is a list of KEY=VALUE separated by semicolons")),
            })
            .collect::<Result<_, _>>()
            .map(Args)
    }

    /// Reads the same text leniently: ignores pieces without `=`, and values may contain `=`.
    #[must_use]
    pub fn parse_lenient(text: &str) -> Self {
        let pairs = text.split(';').filter_map(|pair| pair.split_once('='));
        Args(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    /// Takes pairs as they are.
    #[must_use]
    pub fn from_pairs(pairs: Vec<(String, String)>) -> Self {
        Args(pairs)
    }

    /// Returns the last value of a key; keys differ by case.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().rev().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// Lists the pairs.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Refuses keys that no plugin reads, unless `IgnoreUnknown` allows them.
    ///
    /// # Errors
    /// Code 4, `ARGS: unknown args ["K=V"]`, or the text for an `IgnoreUnknown` that is not a
    /// boolean.
    pub fn require_known(&self, known: &[&str]) -> Result<(), Error> {
        let mut ignore_unknown = false;
        for (_, value) in self.iter().filter(|(key, _)| *key == IGNORE_UNKNOWN) {
            let lower = value.to_lowercase();
            ignore_unknown = match lower.as_str() {
                "1" | "true" => true,
                "0" | "false" => false,
                _ => {
                    return Err(Error::new(
                        code::INVALID_ENVIRONMENT,
                        format!(
                            "ARGS: error parsing value of pair {}: \
                             boolean unmarshal error: invalid input {lower}",
                            quote(&format!("{IGNORE_UNKNOWN}={value}")),
                        ),
                    )
                    .with_details("IgnoreUnknown is one of 1, true, 0, false"));
                }
            };
        }
        let unknown: Vec<String> = self
            .iter()
            .filter(|(key, _)| *key != IGNORE_UNKNOWN && !known.contains(key))
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        if unknown.is_empty() || ignore_unknown {
            return Ok(());
        }
        Err(Error::new(
            code::INVALID_ENVIRONMENT,
            format!("ARGS: unknown args {}", quote_list(unknown.iter().map(String::as_str))),
        )
        .with_details(
            "add IgnoreUnknown=1 to CNI_ARGS to let plugins ignore keys they do not know",
        ))
    }
}

impl fmt::Display for Args {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, value)) in self.iter().enumerate() {
            if index != 0 {
                f.write_str(";")?;
            }
            write!(f, "{key}={value}")?;
        }
        Ok(())
    }
}
