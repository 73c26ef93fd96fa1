//! What can go wrong, per operation.

use std::fmt;

use cni::{AttachmentKey, Command, Error, Refusal, code};
use cni_invoke::{FindError, InvokeError};
use serde::{Deserialize, Serialize};

use crate::cache::CacheError;

/// One plugin of a chain failed.
///
/// Shown as the reference library shows it: `plugin type="T" name="N" failed (add): …`.
#[derive(Debug)]
#[non_exhaustive]
pub struct PluginFailure {
    /// The plugin's type.
    pub plugin_type: String,
    /// The name in the plugin's own object, which single configurations have.
    pub plugin_name: Option<String>,
    /// The verb.
    pub command: Command,
    /// What happened.
    pub error: Box<PluginError>,
}

impl PluginFailure {
    /// Returns the error object: the plugin's own code and details, with the plugin named in the
    /// message.
    #[must_use]
    pub fn to_cni(&self) -> Error {
        self.error.to_cni().context(self.what())
    }

    fn what(&self) -> String {
        let verb = match self.command {
            Command::Add => "add",
            Command::Del => "delete",
            Command::Check => "check",
            Command::Gc => "gc",
            Command::Status => "status",
            Command::Version => "version",
        };
        match &self.plugin_name {
            Some(name) => {
                format!("plugin type={:?} name={name:?} failed ({verb})", self.plugin_type)
            }
            None => format!("plugin type={:?} failed ({verb})", self.plugin_type),
        }
    }
}

impl fmt::Display for PluginFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what(), self.error)
    }
}

/// No source: the text already holds it.
impl std::error::Error for PluginFailure {}

/// Which plugin refused its configuration at ADD, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PluginRefusal {
    /// The plugin of the list. It may have called the one that refused.
    #[serde(rename = "type")]
    pub plugin_type: String,
    /// The code and the words.
    #[serde(flatten)]
    pub refusal: Refusal,
}

/// Why a plugin's call failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum PluginError {
    /// Its executable was not found.
    NotFound(FindError),
    /// It could not be run until it ended.
    NotRun(InvokeError),
    /// The deadline had passed before it could be started.
    NoTimeLeft,
    /// It reported an error.
    Reported(Error),
    /// It succeeded, but its answer cannot be used.
    Answer(Error),
}

impl PluginFailure {
    /// Returns how a plugin refused its configuration, if that is what happened.
    pub(crate) fn refused(&self) -> Option<PluginRefusal> {
        let PluginError::Reported(error) = &*self.error else { return None };
        let refusal = error.refusal()?;
        Some(PluginRefusal { plugin_type: self.plugin_type.clone(), refusal })
    }

    /// Says whether this DEL met nothing but the refusal with which ADD had failed:
    /// [`Error::is_only`].
    pub(crate) fn is_only(&self, refused: &PluginRefusal) -> bool {
        matches!(&*self.error, PluginError::Reported(error) if error.is_only(&refused.refusal))
            && self.plugin_type == refused.plugin_type
    }
}

impl PluginError {
    /// Says whether the plugin may have changed something before this happened.
    pub(crate) fn may_have_acted(&self) -> bool {
        !matches!(
            self,
            PluginError::NotFound(_)
                | PluginError::NoTimeLeft
                | PluginError::NotRun(InvokeError::Start { .. })
        )
    }

    /// Returns the error object for it.
    #[must_use]
    pub fn to_cni(&self) -> Error {
        match self {
            PluginError::NotFound(error) => error.to_cni(),
            PluginError::NotRun(error) => error.to_cni(),
            PluginError::NoTimeLeft => {
                Error::new(code::TRY_AGAIN_LATER, "the deadline passed before it could be started")
            }
            PluginError::Reported(error) | PluginError::Answer(error) => error.clone(),
        }
    }
}

impl fmt::Display for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_cni().fmt(f)
    }
}

/// What happened to the plugins that had run when ADD failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum RollBack {
    /// Nothing had been run.
    NotNeeded,
    /// DEL succeeded on every plugin that had run, the failed one included if it had not undone its
    /// part itself.
    Done,
    /// DEL failed on some. The cache keeps the attachment, so that DEL or GC can try again.
    Failed(Vec<PluginFailure>),
    /// The attachment existed before this ADD, in the same namespace: it was left alone.
    Withheld,
    /// The runtime was created without roll-back: the caller must run DEL.
    Disabled,
}

impl RollBack {
    fn describe(&self) -> String {
        match self {
            RollBack::NotNeeded => "nothing was changed".to_owned(),
            RollBack::Done => "what ADD had done was undone".to_owned(),
            RollBack::Failed(failures) => {
                format!("undoing what ADD had done failed, run DEL again: {}", join(failures, "; "))
            }
            RollBack::Withheld => {
                "the attachment existed before and was left as it is; run DEL before another ADD"
                    .to_owned()
            }
            RollBack::Disabled => "nothing was undone, run DEL".to_owned(),
        }
    }
}

/// Says why ADD failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// The network cannot be used; nothing was run.
    #[error("{0}")]
    Invalid(Error),
    /// A plugin failed.
    #[error("{failure}")]
    Plugin {
        /// The plugin and its error.
        failure: PluginFailure,
        /// What happened to the plugins before it.
        roll_back: RollBack,
    },
    /// The attachment could not be recorded, so that it could not have been undone properly.
    #[error("failed to set network {network:?} cached result: {cause}")]
    Cache {
        /// The network.
        network: String,
        /// What failed.
        cause: Box<CacheError>,
        /// What happened to the plugins.
        roll_back: RollBack,
    },
}

impl AddError {
    /// Returns the error object: the plugin's own code; its details describe the roll-back.
    #[must_use]
    pub fn to_cni(&self) -> Error {
        let (error, roll_back) = match self {
            AddError::Invalid(error) => return error.clone(),
            AddError::Plugin { failure, roll_back } => (failure.to_cni(), roll_back),
            AddError::Cache { roll_back, .. } => {
                (Error::new(code::IO_FAILURE, self.to_string()), roll_back)
            }
        };
        let left = matches!(roll_back, RollBack::Failed(_) | RollBack::Disabled);
        Error { left, ..error }.with_details(roll_back.describe())
    }

    /// Returns what happened to the plugins that had run.
    #[must_use]
    pub fn roll_back(&self) -> &RollBack {
        match self {
            AddError::Invalid(_) => &RollBack::NotNeeded,
            AddError::Plugin { roll_back, .. } | AddError::Cache { roll_back, .. } => roll_back,
        }
    }
}

/// Says why DEL failed. The cache keeps the attachment.
#[derive(Debug)]
#[non_exhaustive]
pub enum DelError {
    /// The network cannot be used; nothing was run.
    Invalid(Error),
    /// The configuration is not known: none was given and the cache holds none that can be read.
    NoConfig {
        /// The attachment.
        attachment: Box<AttachmentKey>,
        /// What is wrong with the cached one.
        reason: String,
    },
    /// Plugins failed, in the order in which they ran. Every other plugin was run all the same.
    Plugins(Vec<PluginFailure>),
    /// GC's deadline had passed before the attachment's turn came; nothing was run.
    NoTimeLeft,
    /// The container was gone, and came back under its ID before DEL reached it; nothing was run.
    Back {
        /// The attachment.
        attachment: Box<AttachmentKey>,
    },
}

impl DelError {
    /// Returns the error object: the first failure's code and message, the others in the details.
    #[must_use]
    pub fn to_cni(&self) -> Error {
        match self {
            DelError::Invalid(error) => error.clone(),
            DelError::NoConfig { .. } => Error::new(code::INVALID_CONFIG, self.to_string())
                .with_details("give the configuration with which it was attached"),
            DelError::Plugins(failures) => first_with_others(failures),
            DelError::NoTimeLeft | DelError::Back { .. } => {
                Error::new(code::TRY_AGAIN_LATER, self.to_string())
            }
        }
    }
}

impl fmt::Display for DelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DelError::Invalid(error) => error.fmt(f),
            DelError::NoConfig { attachment, reason } => {
                write!(f, "no configuration for attachment {attachment}: {reason}")
            }
            DelError::Plugins(failures) => f.write_str(&join(failures, "; ")),
            DelError::NoTimeLeft => f.write_str("the deadline passed before it could be started"),
            DelError::Back { attachment } => {
                write!(f, "the container of {attachment} came back; nothing was removed")
            }
        }
    }
}

impl std::error::Error for DelError {}

/// Says why CHECK failed. A plugin's error is shown in the plugin's words.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The network cannot be used; nothing was run.
    #[error("{0}")]
    Invalid(Error),
    /// The configuration's version does not have the verb.
    #[error("configuration version {0:?} does not support the CHECK command")]
    Version(String),
    /// The cached result cannot be read.
    #[error("failed to get network {network:?} cached result: {cause}")]
    Cache {
        /// The network.
        network: String,
        /// What is wrong.
        cause: CacheError,
    },
    /// A plugin found something wrong, or failed.
    #[error("{}", .first.error)]
    Plugin {
        /// The first that failed.
        first: PluginFailure,
        /// Those behind it, if they were asked.
        others: Vec<PluginFailure>,
    },
}

impl CheckError {
    /// Returns the error object; for a plugin's own error, its details name the plugin, and then
    /// the failures of the plugins behind it.
    #[must_use]
    pub fn to_cni(&self) -> Error {
        match self {
            CheckError::Invalid(error) => error.clone(),
            CheckError::Version(_) => Error::new(code::INCOMPATIBLE_VERSION, self.to_string()),
            CheckError::Cache { .. } => Error::new(code::DECODE_FAILURE, self.to_string()),
            CheckError::Plugin { first, others } => {
                let mut error = unwrapped(first);
                for other in others {
                    error = error.with_details(other.to_string());
                }
                error
            }
        }
    }
}

/// Says why STATUS failed. A plugin's error is shown in the plugin's words, so that codes 50 and 51
/// stay visible.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatusError {
    /// The network cannot be used; nothing was run.
    #[error("{0}")]
    Invalid(Error),
    /// A plugin is not ready, or failed.
    #[error("{}", .0.error)]
    Plugin(PluginFailure),
}

impl StatusError {
    /// Returns the error object; for a plugin's own error, its details name the plugin.
    #[must_use]
    pub fn to_cni(&self) -> Error {
        match self {
            StatusError::Invalid(error) => error.clone(),
            StatusError::Plugin(failure) => unwrapped(failure),
        }
    }
}

/// Says why a network list does not work on this machine: every problem, not only the first.
#[derive(Debug)]
#[non_exhaustive]
pub struct ValidateError {
    /// The problems, in the order of the chain.
    pub problems: Vec<ValidateProblem>,
}

/// One reason why a network list does not work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ValidateProblem {
    /// The list itself is wrong.
    #[error("{0}")]
    List(Error),
    /// A plugin is missing or does not report its versions.
    #[error("{}", .0.error)]
    Plugin(PluginFailure),
    /// A plugin does not support the list's version.
    #[error("plugin {plugin_type} does not support config version {cni_version:?}")]
    Version {
        /// The plugin.
        plugin_type: String,
        /// The list's version.
        cni_version: String,
        /// What the plugin supports.
        supported: Vec<String>,
    },
}

impl ValidateError {
    /// Returns the error object for all of them.
    #[must_use]
    pub fn to_cni(&self) -> Error {
        let code = match self.problems.first() {
            Some(ValidateProblem::List(error)) => error.code,
            Some(ValidateProblem::Plugin(failure)) => failure.error.to_cni().code,
            Some(ValidateProblem::Version { .. }) => code::INCOMPATIBLE_VERSION,
            None => code::INTERNAL,
        };
        let mut problems = self.problems.iter().map(ValidateProblem::to_string);
        let first = problems.next().unwrap_or_else(|| "the plugins named no problem".to_owned());
        problems.fold(Error::new(code, first), Error::with_details)
    }
}

/// Shown as the reference library shows it: `[first second]`.
impl fmt::Display for ValidateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}]", join(&self.problems, " "))
    }
}

impl std::error::Error for ValidateError {}

/// Says what GC could not do. The rest was done; see [`GcError::report`].
#[derive(Debug)]
#[non_exhaustive]
pub struct GcError {
    /// What was done.
    pub report: Box<crate::GcReport>,
    /// What failed.
    pub failures: Vec<GcFailure>,
}

/// One step of GC that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GcFailure {
    /// The network cannot be used.
    #[error("{0}")]
    Invalid(Error),
    /// The cache cannot be listed.
    #[error("{0}")]
    Cache(CacheError),
    /// An attachment that is not valid could not be removed.
    #[error("failed to delete stale attachment {} {}: {error}", .attachment.container_id, .attachment.ifname)]
    Attachment {
        /// The attachment.
        attachment: AttachmentKey,
        /// What failed.
        error: DelError,
    },
    /// A plugin's own GC failed.
    #[error("failed to GC plugin {}: {}", .0.plugin_type, .0.error)]
    Plugin(PluginFailure),
}

impl GcFailure {
    /// Returns the error object for it.
    #[must_use]
    pub fn to_cni(&self) -> Error {
        let inner = match self {
            GcFailure::Invalid(error) => error.clone(),
            GcFailure::Cache(error) => error.to_cni(),
            GcFailure::Attachment { error, .. } => error.to_cni(),
            GcFailure::Plugin(failure) => failure.error.to_cni(),
        };
        Error { msg: self.to_string(), details: String::new(), ..inner }
    }
}

impl GcError {
    /// Returns the error object: the first failure's code and message, the others in the details.
    #[must_use]
    pub fn to_cni(&self) -> Error {
        let mut errors = self.failures.iter().map(GcFailure::to_cni);
        let first = errors
            .next()
            .unwrap_or_else(|| Error::new(code::INTERNAL, "GC failed without a reason"));
        errors.fold(first, |error, other| error.with_details(other.to_string()))
    }
}

/// Shown as the reference library shows it: one failure a line.
impl fmt::Display for GcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&join(&self.failures, "\n"))
    }
}

impl std::error::Error for GcError {}

fn unwrapped(failure: &PluginFailure) -> Error {
    failure.error.to_cni().with_details(format!("reported by plugin {:?}", failure.plugin_type))
}

fn first_with_others(failures: &[PluginFailure]) -> Error {
    let mut errors = failures.iter().map(PluginFailure::to_cni);
    let first =
        errors.next().unwrap_or_else(|| Error::new(code::INTERNAL, "DEL failed without a reason"));
    errors.fold(first, |error, other| error.with_details(other.to_string()))
}

fn join<T: fmt::Display>(items: &[T], separator: &str) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(separator)
}
