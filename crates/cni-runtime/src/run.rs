//! Calls one plugin of a chain, in a version that both sides speak.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use cni::{
    AddResult, CallEnv, Command, Error, GcAttachment, Injection, NetworkList, PluginConfig,
    Version, code,
};
use cni_invoke::Request;
use serde_json::value::RawValue;

use crate::error::{PluginError, PluginFailure};
use crate::{Attachment, PluginStderr, Runtime};

mod add;
mod check;
mod del;
mod gc;
mod repair;
mod several;
mod version;

pub use add::AddedAttachment;
pub use del::DeletedAttachment;
pub use gc::GcReport;
pub use repair::{MovedInterface, Repairs};
pub use several::{FailedNetworks, Member, SeveralError};
pub use version::VersionInfo;

/// A result that is passed along a chain, in the version of the list.
#[derive(Debug, Clone)]
pub(crate) struct ChainResult {
    /// The text, which keeps keys that this library does not know.
    pub(crate) raw: Box<RawValue>,
    pub(crate) result: AddResult,
}

/// A plugin's answer.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It succeeded, called in this version.
    Said { stdout: Vec<u8>, asked: Version },
    /// It succeeded; the version is one that was never released.
    SaidUnknown { stdout: Vec<u8> },
    /// It does not have the verb in any version that both sides speak.
    NoSuchVerb,
}

/// What one call is about, apart from the plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) list: &'a NetworkList,
    pub(crate) command: Command,
    pub(crate) attachment: Option<&'a Attachment>,
    pub(crate) previous: Option<&'a ChainResult>,
    pub(crate) valid: Option<&'a [GcAttachment]>,
    /// CHECK: repair first.
    pub(crate) repair: bool,
    /// CHECK: tell each difference by itself.
    pub(crate) look: bool,
    /// CHECK: where the interface is, if not where ADD made it.
    pub(crate) moved: Option<&'a MovedInterface>,
    /// ADD: the types of the plugins after this one.
    pub(crate) followed_by: Option<&'a [&'a str]>,
}

impl<'a> Subject<'a> {
    /// Starts with a verb and a list, and nothing else.
    pub(crate) fn of(list: &'a NetworkList, command: Command) -> Self {
        Subject {
            list,
            command,
            attachment: None,
            previous: None,
            valid: None,
            repair: false,
            look: false,
            moved: None,
            followed_by: None,
        }
    }
}

/// The time limit for all plugins of a chain.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Time {
    /// Until the caller's deadline.
    Given(Option<Instant>),
    /// Until then; each plugin gets its share of what is left.
    Shared(Instant),
}

impl Time {
    /// Returns the deadline for the next of `left` plugins.
    pub(crate) fn next(self, left: usize) -> Option<Instant> {
        match self {
            Time::Given(deadline) => deadline,
            Time::Shared(end) => {
                let now = Instant::now();
                let left = u32::try_from(left.max(1)).unwrap_or(u32::MAX);
                Some(now + end.saturating_duration_since(now) / left)
            }
        }
    }

    pub(crate) fn is_up(self) -> bool {
        matches!(self, Time::Given(Some(deadline)) if deadline <= Instant::now())
    }

    pub(crate) fn shared(time: Duration) -> Self {
        Time::Shared(Instant::now() + time)
    }
}

/// Says whether a list's version has a verb; a version that cannot be ordered has none.
pub(crate) fn has_verb(cni_version: &str, command: Command) -> bool {
    cni::version::compare(cni_version, command.since().as_str())
        .is_ok_and(std::cmp::Ordering::is_ge)
}

impl Runtime<'_> {
    pub(crate) fn failure(
        plugin: &PluginConfig,
        command: Command,
        error: PluginError,
    ) -> PluginFailure {
        let name = plugin.object.get_ignore_case("name");
        let name = name.and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
        PluginFailure {
            plugin_type: plugin.plugin_type.clone(),
            plugin_name: name.filter(|name| !name.is_empty()),
            command,
            error: Box::new(error),
        }
    }

    /// Calls a plugin, in the list's version or, when it does not support that one, in the nearest.
    /// The plugin is asked for its versions only after it has refused the list's, so that the usual
    /// call costs one execution.
    pub(crate) fn call(
        &self,
        plugin: &PluginConfig,
        subject: Subject<'_>,
        deadline: Option<Instant>,
    ) -> Result<Answer, PluginError> {
        let executable = self.find_plugin(&plugin.plugin_type).map_err(PluginError::NotFound)?;
        let list_version = Version::parse(&subject.list.cni_version);
        let raw = subject.previous.map(|previous| &*previous.raw);
        let refused = match self.ask(
            plugin,
            &executable,
            subject,
            &subject.list.cni_version,
            raw,
            deadline,
        ) {
            Ok(stdout) => {
                return Ok(match list_version {
                    Some(asked) => Answer::Said { stdout, asked },
                    None => Answer::SaidUnknown { stdout },
                });
            }
            Err(PluginError::Reported(error)) if error.code == code::INCOMPATIBLE_VERSION => error,
            Err(error) => return Err(error),
        };
        let Some(list_version) = list_version else { return Err(PluginError::Reported(refused)) };
        let info = match self.ask_versions(plugin, &executable, deadline) {
            Ok(info) => info,
            Err(error) => {
                return Err(PluginError::Reported(
                    refused.with_details(format!("and it does not report its versions: {error}")),
                ));
            }
        };
        if info.supports(list_version) {
            // The plugin refused something else than the configuration's version.
            return Err(PluginError::Reported(refused));
        }
        // A plugin older than 0.3.0 does not take part in a chain: it would return its own result
        // and drop the one before it.
        let floor = if subject.command == Command::Add && raw.is_some() {
            Version::V0_3_0
        } else {
            Version::V0_1_0
        };
        let Some(version) = info.nearest(list_version, floor) else {
            return Err(PluginError::Reported(
                refused.with_details(format!("it supports {}", info.supported.join(", "))),
            ));
        };
        if version < subject.command.since() {
            return Ok(Answer::NoSuchVerb);
        }
        tracing::debug!(
            plugin = plugin.plugin_type,
            list_version = %list_version,
            version = %version,
            "plugin does not support the list's version"
        );
        let converted = match subject.previous {
            Some(previous) if subject.command == Command::Add || Version::V0_4_0 <= version => {
                Some(to_raw(&previous.result, version).map_err(PluginError::Reported)?)
            }
            _ => None,
        };
        let raw = converted.as_deref();
        let stdout = self.ask(plugin, &executable, subject, version.as_str(), raw, deadline)?;
        Ok(Answer::Said { stdout, asked: version })
    }

    fn ask(
        &self,
        plugin: &PluginConfig,
        executable: &std::path::Path,
        subject: Subject<'_>,
        cni_version: &str,
        prev_result: Option<&RawValue>,
        deadline: Option<Instant>,
    ) -> Result<Vec<u8>, PluginError> {
        let injection = Injection {
            capability_args: subject.attachment.map(|attachment| &attachment.capability_args),
            prev_result,
            valid_attachments: subject.valid,
            repair: subject.repair,
            look: subject.look,
            attached_as: subject
                .attachment
                .filter(|_| subject.moved.is_some())
                .map(|attachment| &attachment.ifname),
            gone: self.gone.as_deref().filter(|_| subject.command == Command::Del),
            undo: self.undo && subject.command == Command::Del,
            followed_by: subject.followed_by,
        };
        let mut env = self.env(subject.command);
        if let Some(attachment) = subject.attachment {
            env.container_id = attachment.container_id.to_string();
            env.ifname = attachment.ifname.to_string();
            env.netns.clone_from(&attachment.netns);
            env.args = attachment.args.to_string();
        }
        if let Some(moved) = subject.moved {
            env.ifname = moved.ifname.to_string();
            env.netns.clone_from(&moved.netns);
        }
        let stdin = plugin.request(&subject.list.name, cni_version, &injection);
        self.execute(
            &plugin.plugin_type,
            executable,
            subject.command,
            &Request { env, stdin },
            deadline,
        )
    }

    pub(crate) fn env(&self, command: Command) -> CallEnv {
        CallEnv {
            command: command.to_string(),
            path: self.path_variable(),
            netns_override: self.netns_override.clone(),
            trace: self.trace.as_ref().map(crate::TraceContext::to_vars).unwrap_or_default(),
            ..CallEnv::default()
        }
    }

    pub(crate) fn execute(
        &self,
        plugin_type: &str,
        executable: &std::path::Path,
        command: Command,
        request: &Request,
        deadline: Option<Instant>,
    ) -> Result<Vec<u8>, PluginError> {
        let span = tracing::debug_span!(
            "plugin",
            cmd = %command,
            plugin = plugin_type,
            container_id = request.env.container_id,
            ifname = request.env.ifname,
            netns = request.env.netns,
        );
        let _entered = span.enter();
        // A plugin that is started only to be killed could leave its work half done.
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(PluginError::NoTimeLeft);
        }
        let output =
            self.executor.call(executable, request, deadline).map_err(PluginError::NotRun)?;
        let stderr = if output.status == cni_invoke::Status::Success {
            output.stderr.clone()
        } else {
            Vec::new()
        };
        let stdout = output.into_stdout().map_err(|error| {
            let is_own = self.executor.is_own(executable);
            PluginError::Reported(if is_own { error } else { error.of_foreign() })
        })?;
        if let Some(sink) = &self.stderr
            && !stderr.is_empty()
        {
            sink(&PluginStderr { plugin_type, command, text: &stderr });
        }
        Ok(stdout)
    }

    /// Returns the executables of every plugin of a list.
    pub(crate) fn find_all(
        &self,
        list: &NetworkList,
        command: Command,
    ) -> Result<Vec<PathBuf>, PluginFailure> {
        list.plugins
            .iter()
            .map(|plugin| {
                self.find_plugin(&plugin.plugin_type)
                    .map_err(|error| Self::failure(plugin, command, PluginError::NotFound(error)))
            })
            .collect()
    }
}

/// Writes a result in a version, as text.
pub(crate) fn to_raw(result: &AddResult, version: Version) -> Result<Box<RawValue>, Error> {
    let document = result.write(version)?;
    serde_json::from_slice(&document)
        .map_err(|error| Error::new(code::INTERNAL, format!("write result as JSON: {error}")))
}
