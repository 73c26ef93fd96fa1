//! VERSION, and the choice of a version for a plugin that does not support the list's.

use std::path::Path;
use std::time::Instant;

use cni::{Command, Error, NetworkList, PluginConfig, Version, code};
use cni_invoke::Request;
use serde::Deserialize;

use crate::Runtime;
use crate::error::{PluginError, PluginFailure, ValidateError, ValidateProblem};
use crate::runtime::require_usable;

/// What a plugin answers to VERSION.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VersionInfo {
    /// The versions it supports, as it lists them.
    pub supported: Vec<String>,
}

/// The answer of plugins that do not know VERSION (libcni invoke/raw_exec.go).
const UNKNOWN_VERSION_VERB: &str = "unknown CNI_COMMAND: VERSION";

/// The value of variables that VERSION does not use, because old plugins insist on them (as libcni
/// does).
const DUMMY: &str = "dummy";

impl VersionInfo {
    fn of(versions: &[Version]) -> Self {
        VersionInfo { supported: versions.iter().map(Version::to_string).collect() }
    }

    /// Says whether a version is supported.
    #[must_use]
    pub fn supports(&self, version: Version) -> bool {
        self.supported.iter().any(|text| Version::parse(text) == Some(version))
    }

    /// Returns the highest version that both sides speak and that is not above `wanted`; if there
    /// is none, the lowest above it. Ignores versions below `floor`.
    #[must_use]
    pub fn nearest(&self, wanted: Version, floor: Version) -> Option<Version> {
        let mut common: Vec<Version> =
            self.supported.iter().filter_map(|text| Version::parse(text)).collect();
        common.retain(|version| floor <= *version);
        cni::order::sort(&mut common);
        let below = common.iter().rev().find(|version| **version <= wanted);
        below.or(common.first()).copied()
    }

    /// Reads an answer.
    fn parse(document: &[u8]) -> Result<Self, Error> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Raw {
            #[serde(rename = "cniVersion")]
            cni_version: String,
            #[serde(rename = "supportedVersions")]
            supported: Vec<String>,
        }
        let decode = |text: String| Error::new(code::DECODE_FAILURE, text);
        let raw: Raw = cni::json::from_slice(document)
            .map_err(|error| decode(format!("decoding version info: {error}")))?;
        if raw.cni_version.is_empty() {
            return Err(decode("decoding version info: missing field cniVersion".to_owned()));
        }
        if raw.supported.is_empty() {
            // CNI 0.2.0 had no such list.
            if raw.cni_version == Version::V0_2_0.as_str() {
                return Ok(VersionInfo::of(&[Version::V0_1_0, Version::V0_2_0]));
            }
            return Err(decode(
                "decoding version info: missing field supportedVersions".to_owned(),
            ));
        }
        Ok(VersionInfo { supported: raw.supported })
    }
}

impl Runtime<'_> {
    /// Asks a plugin which versions it supports.
    ///
    /// A plugin that does not know VERSION supports 0.1.0 and nothing else.
    ///
    /// # Errors
    /// [`PluginFailure`] when it is not found, does not run, or answers something else.
    pub fn version_info(
        &self,
        plugin_type: &str,
        deadline: Option<Instant>,
    ) -> Result<VersionInfo, PluginFailure> {
        let fail = |error| PluginFailure {
            plugin_type: plugin_type.to_owned(),
            plugin_name: None,
            command: Command::Version,
            error: Box::new(error),
        };
        let executable =
            self.find_plugin(plugin_type).map_err(|error| fail(PluginError::NotFound(error)))?;
        self.version_of(plugin_type, &executable, deadline).map_err(fail)
    }

    pub(super) fn ask_versions(
        &self,
        plugin: &PluginConfig,
        executable: &Path,
        deadline: Option<Instant>,
    ) -> Result<VersionInfo, PluginError> {
        self.version_of(&plugin.plugin_type, executable, deadline)
    }

    fn version_of(
        &self,
        plugin_type: &str,
        executable: &Path,
        deadline: Option<Instant>,
    ) -> Result<VersionInfo, PluginError> {
        let mut env = self.env(Command::Version);
        for variable in [&mut env.netns, &mut env.ifname, &mut env.path] {
            DUMMY.clone_into(variable);
        }
        let stdin = format!("{{\"cniVersion\":\"{}\"}}", Version::CURRENT).into_bytes();
        let request = Request { env, stdin };
        match self.execute(plugin_type, executable, Command::Version, &request, deadline) {
            Ok(stdout) => VersionInfo::parse(&stdout).map_err(PluginError::Answer),
            Err(PluginError::Reported(error)) if error.msg == UNKNOWN_VERSION_VERB => {
                Ok(VersionInfo::of(&[Version::V0_1_0]))
            }
            Err(error) => Err(error),
        }
    }

    /// Checks that every plugin of a list is there and supports the list's version. Returns the
    /// capabilities that the plugins have, sorted.
    ///
    /// A list that fails only for a plugin's version may still work: ADD negotiates.
    ///
    /// # Errors
    /// [`ValidateError`] with every problem.
    pub fn validate_list(
        &self,
        list: &NetworkList,
        deadline: Option<Instant>,
    ) -> Result<Vec<String>, ValidateError> {
        let mut problems = Vec::new();
        if let Err(error) = require_usable(list) {
            problems.push(ValidateProblem::List(error));
        }
        let wanted = if list.cni_version.is_empty() { "0.1.0" } else { &list.cni_version };
        let mut capabilities = Vec::new();
        for plugin in &list.plugins {
            capabilities.extend(plugin.capabilities.iter().cloned());
            match self.version_info(&plugin.plugin_type, deadline) {
                Ok(info) if info.supported.iter().any(|version| version == wanted) => {}
                Ok(info) => problems.push(ValidateProblem::Version {
                    plugin_type: plugin.plugin_type.clone(),
                    cni_version: list.cni_version.clone(),
                    supported: info.supported,
                }),
                Err(failure) => problems.push(ValidateProblem::Plugin(failure)),
            }
        }
        capabilities.sort_unstable();
        capabilities.dedup();
        if problems.is_empty() { Ok(capabilities) } else { Err(ValidateError { problems }) }
    }
}
