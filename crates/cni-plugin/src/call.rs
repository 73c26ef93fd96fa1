//! One call of a plugin, checked.

use std::fmt;
use std::path::Path;
use std::sync::Mutex;

use cni::{
    AddResult, Args, AttachmentKey, CallEnv, Command, CommonConfig, ContainerId, Error,
    GcAttachment, IfName, NetworkName, Version, code,
};
use kernel::netns::{Netns, NetnsError};
use serde::de::DeserializeOwned;

use crate::{Context, Delegate};

/// One call of a plugin after the checks of [`respond`](crate::respond()).
#[derive(Debug)]
pub struct Call<'a> {
    pub(crate) plugin: &'static str,
    pub(crate) command: Command,
    pub(crate) env: &'a CallEnv,
    pub(crate) config: CommonConfig,
    pub(crate) document: &'a [u8],
    pub(crate) version: Version,
    pub(crate) network: NetworkName,
    pub(crate) attachment: Option<AttachmentKey>,
    /// The container's namespace, where the guard has opened it.
    pub(crate) netns: Option<Netns>,
    pub(crate) context: &'a Context<'a>,
    pub(crate) stderr: &'a Mutex<Vec<u8>>,
}

impl<'a> Call<'a> {
    /// Returns the verb.
    #[must_use]
    pub fn command(&self) -> Command {
        self.command
    }

    /// Returns the environment as it was given.
    #[must_use]
    pub fn env(&self) -> &CallEnv {
        self.env
    }

    /// Returns the keys every plugin has.
    #[must_use]
    pub fn common(&self) -> &CommonConfig {
        &self.config
    }

    /// Returns the configuration's bytes, exactly as they came.
    #[must_use]
    pub fn document(&self) -> &[u8] {
        self.document
    }

    /// Returns the version in which to answer.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the network's name.
    #[must_use]
    pub fn network(&self) -> &NetworkName {
        &self.network
    }

    /// Returns the attachment.
    ///
    /// # Panics
    /// In GC and STATUS, which are not about one attachment.
    #[must_use]
    pub fn attachment(&self) -> &AttachmentKey {
        self.attachment.as_ref().expect("ADD, DEL and CHECK name an attachment")
    }

    /// Returns the container's ID. See [`Call::attachment`].
    #[must_use]
    pub fn container_id(&self) -> &ContainerId {
        &self.attachment().container_id
    }

    /// Returns the interface's name in the container. See [`Call::attachment`].
    #[must_use]
    pub fn ifname(&self) -> &IfName {
        &self.attachment().ifname
    }

    /// Returns the path of the container's namespace, if one was given.
    #[must_use]
    pub fn netns_path(&self) -> Option<&Path> {
        (!self.env.netns.is_empty()).then(|| Path::new(&self.env.netns))
    }

    /// Opens the container's namespace.
    ///
    /// # Errors
    /// Code 4 when none was given, code 8 when the path is not a namespace.
    pub fn open_netns(&self) -> Result<Netns, Error> {
        if let Some(netns) = &self.netns {
            return Ok(netns.clone());
        }
        let path = self
            .netns_path()
            .ok_or_else(|| Error::new(code::INVALID_ENVIRONMENT, "CNI_NETNS is empty"))?;
        Netns::open(path).map_err(|error| Error::from_chain(code::INVALID_NETNS, &error))
    }

    /// Opens the container's namespace for removal: `None` when it was not given, is gone, or the path
    /// has become something else (a file left behind after the mount vanished).
    ///
    /// # Errors
    /// Code 8 when it is there but cannot be opened.
    pub fn open_netns_if_there(&self) -> Result<Option<Netns>, Error> {
        if let Some(netns) = &self.netns {
            return Ok(Some(netns.clone()));
        }
        let Some(path) = self.netns_path() else { return Ok(None) };
        match Netns::open(path) {
            Ok(netns) => Ok(Some(netns)),
            Err(NetnsError::Missing { .. } | NetnsError::NotANamespace { .. }) => Ok(None),
            Err(error) => Err(Error::from_chain(code::INVALID_NETNS, &error)),
        }
    }

    /// Reads the configuration as the plugin's own type.
    ///
    /// # Errors
    /// Code 6 with the key and the place.
    pub fn read_config<T: DeserializeOwned>(&self) -> Result<T, Error> {
        cni::json::from_slice(self.document).map_err(|error| {
            Error::new(code::DECODE_FAILURE, format!("failed to load netconf: {error}"))
        })
    }

    /// Reads `CNI_ARGS`, refusing keys that are not `known` unless `IgnoreUnknown` is set.
    ///
    /// # Errors
    /// Code 4.
    pub fn args(&self, known: &[&str]) -> Result<Args, Error> {
        let args = Args::parse(&self.env.args)?;
        args.require_known(known)?;
        Ok(args)
    }

    /// Reads what the plugin before this one returned (ADD) or what ADD returned in the end (CHECK, DEL).
    ///
    /// # Errors
    /// Code 6 when it cannot be read or is of another family than the configuration's version.
    pub fn prev_result(&self) -> Result<Option<AddResult>, Error> {
        self.config.previous(self.version)
    }

    /// Returns `prevResult`, or an error in the reference plugin's words.
    ///
    /// # Errors
    /// Code 7 with `message` when there is none; as [`Call::prev_result`] otherwise.
    pub fn require_prev_result(&self, message: &str) -> Result<AddResult, Error> {
        self.prev_result()?.ok_or_else(|| Error::new(code::INVALID_CONFIG, message))
    }

    /// Returns the attachments GC must leave alone; empty when the runtime said that none is valid. GC does not
    /// reach a plugin when the runtime said nothing.
    #[must_use]
    pub fn valid_attachments(&self) -> &[GcAttachment] {
        let given = self.config.valid_attachments.as_deref();
        given.or(self.config.attachments.as_deref()).unwrap_or_default()
    }

    pub(crate) fn names_valid_attachments(&self) -> bool {
        self.config.valid_attachments.is_some() || self.config.attachments.is_some()
    }

    /// Says whether GC's list names the attachment.
    #[must_use]
    pub fn is_valid_attachment(&self, container_id: &str, ifname: &str) -> bool {
        self.valid_attachments()
            .iter()
            .any(|valid| valid.container_id == container_id && valid.ifname == ifname)
    }

    /// Returns the folders for state.
    #[must_use]
    pub fn roots(&self) -> &state::Roots {
        self.context.roots
    }

    /// Returns what the call runs in.
    #[must_use]
    pub fn context(&self) -> &Context<'a> {
        self.context
    }

    /// Prepares calls of a delegated plugin with this call's configuration and environment.
    #[must_use]
    pub fn delegate<'c>(&'c self, plugin_type: &'c str) -> Delegate<'c> {
        Delegate { call: self, plugin_type, document: self.document }
    }

    /// Returns a plugin that is called with a document of its own.
    #[must_use]
    pub fn delegate_with<'c>(&'c self, plugin_type: &'c str, document: &'c [u8]) -> Delegate<'c> {
        Delegate { call: self, plugin_type, document }
    }

    /// Returns the delegated IPAM plugin, if the configuration names one.
    #[must_use]
    pub fn ipam(&self) -> Option<Delegate<'_>> {
        let ipam = self.config.ipam.as_ref()?;
        (!ipam.plugin_type.is_empty()).then(|| self.delegate(&ipam.plugin_type))
    }

    /// Writes a warning to standard error: something was not as it should be and we coped.
    pub fn warn(&self, message: impl fmt::Display) {
        let line = format!("{} {}: warning: {message}\n", self.plugin, self.command);
        self.write_stderr(line.as_bytes());
    }

    pub(crate) fn write_stderr(&self, text: &[u8]) {
        let mut stderr = self.stderr.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        stderr.extend_from_slice(text);
    }
}
