//! One call of a plugin, checked.

use std::cell::OnceCell;
use std::fmt;
use std::path::Path;
use std::sync::Mutex;

use cni::{
    AddResult, Args, AttachmentKey, CallEnv, Command, CommonConfig, ContainerId, Error,
    GcAttachment, IfName, NetworkName, Version, code,
};
use kernel::living::{Census, Life};
use kernel::netns::{Netns, NetnsError};
use serde::de::DeserializeOwned;
use state::{Index, Record};

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
    /// The interface's name in the container, which differs from the attachment's if another
    /// program has moved the interface.
    pub(crate) ifname: Option<IfName>,
    /// The container's namespace, if the guard has opened it.
    pub(crate) netns: Option<Netns>,
    /// Whether the path is known to lead to a namespace other than the one that was attached.
    pub(crate) is_another: OnceCell<bool>,
    pub(crate) context: &'a Context<'a>,
    pub(crate) stderr: &'a Mutex<Vec<u8>>,
}

impl<'a> Call<'a> {
    /// Returns the verb.
    #[must_use]
    pub fn command(&self) -> Command {
        self.command
    }

    /// Returns the environment as given.
    #[must_use]
    pub fn env(&self) -> &CallEnv {
        self.env
    }

    /// Returns the keys that every plugin has.
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
    /// In GC and STATUS, which do not concern a single attachment.
    #[must_use]
    pub fn attachment(&self) -> &AttachmentKey {
        self.attachment.as_ref().expect("ADD, DEL and CHECK name an attachment")
    }

    /// Returns the container's ID. See [`Call::attachment`].
    #[must_use]
    pub fn container_id(&self) -> &ContainerId {
        &self.attachment().container_id
    }

    /// Returns the interface's name in the container: the attachment's, unless another program has
    /// moved the interface ([`cni::ATTACHED_AS`]). Use it for the namespace and for `prevResult`;
    /// records go by the attachment.
    ///
    /// # Panics
    /// As [`Call::attachment`].
    #[must_use]
    pub fn ifname(&self) -> &IfName {
        self.ifname.as_ref().expect("ADD, DEL and CHECK name an interface")
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
        let netns = self.open_path()?;
        // If an interface was moved, the caller knows its present namespace, and the records the
        // old one.
        let is_moved = self.config.attached_as.is_some();
        if self.command == Command::Check && !is_moved && self.is_another(&netns) {
            let path = &self.env.netns;
            let text = format!("the container's namespace is gone, or {path:?} leads to another");
            return Err(Error::new(code::INVALID_NETNS, text));
        }
        Ok(netns)
    }

    fn open_path(&self) -> Result<Netns, Error> {
        let path = self
            .netns_path()
            .ok_or_else(|| Error::new(code::INVALID_ENVIRONMENT, "CNI_NETNS is empty"))?;
        Netns::open(path).map_err(|error| Error::from_chain(code::INVALID_NETNS, &error))
    }

    /// Opens the container's namespace for removal. Returns `None` if it was not given, is gone, or
    /// the path has become something else: a file left behind after the mount vanished, or a
    /// namespace other than the one in a record of the attachment.
    ///
    /// # Errors
    /// As [`Call::open_any_netns`].
    pub fn open_netns_if_there(&self) -> Result<Option<Netns>, Error> {
        let found = self.open_any_netns()?;
        Ok(found.filter(|found| self.command != Command::Del || !self.is_another(found)))
    }

    /// Opens what the path leads to, for removal: it may be a namespace other than the container's
    /// ([`Call::is_another`]). If the path cannot be followed, the attachment's records lead to the
    /// namespace, wherever it is; without records nothing was created in it.
    ///
    /// # Errors
    /// Code 8 when the path cannot be followed and the namespace may exist.
    pub fn open_any_netns(&self) -> Result<Option<Netns>, Error> {
        if let Some(netns) = &self.netns {
            return Ok(Some(netns.clone()));
        }
        let Some(path) = self.netns_path() else { return Ok(None) };
        match Netns::open(path) {
            Ok(netns) => Ok(Some(netns)),
            Err(error) if error.leads_nowhere() => Ok(None),
            Err(error) => self.open_recorded_netns(&error),
        }
    }

    /// Opens the namespace in the attachment's records, for a path that cannot be followed.
    fn open_recorded_netns(&self, why: &NetnsError) -> Result<Option<Netns>, Error> {
        let records = Index::new(self.roots()).of_attachment(self.attachment()).found;
        let (noted, census) = (state::noted_in(&records), Census::new());
        if let Some(netns) = noted.iter().find_map(|noted| census.find(noted)) {
            return Ok(Some(netns));
        }
        if noted.iter().all(|noted| census.life(noted) == Life::Gone) {
            return Ok(None);
        }
        let hint = "the namespace may be there, and what is in it: try again once the path can be followed, or without CNI_NETNS \
                    once the container is gone";
        Err(Error::from_chain(code::INVALID_NETNS, why).with_details(hint))
    }

    /// Reports whether the given path leads to a namespace other than the one that was attached, as
    /// far as a record tells.
    #[must_use]
    pub fn leads_to_another(&self) -> bool {
        self.open_any_netns().ok().flatten().is_some_and(|found| self.is_another(&found))
    }

    /// Reports whether the attachment's records name a namespace other than this one: a process ID
    /// or a name was reused. The plugin's own record decides, then those of the other plugins; the
    /// answer holds for the whole call.
    ///
    /// A DEL of an attachment without a record reads all records: a namespace in which another
    /// container was attached belongs to that container.
    #[must_use]
    pub fn is_another(&self, found: &Netns) -> bool {
        *self.is_another.get_or_init(|| {
            let index = Index::new(self.roots());
            let own = index.get(self.attachment(), self.plugin).found;
            let tells = |record: &Record| record.noted().filter(|noted| noted.id.is_some());
            if let Some(noted) = own.as_ref().and_then(tells) {
                return !noted.is(found);
            }
            let others = index.of_attachment(self.attachment()).found;
            let mut noted = others.iter().filter_map(tells).peekable();
            if noted.peek().is_some() {
                return !noted.any(|noted| noted.is(found));
            }
            let container_id = &self.attachment().container_id;
            let is_anothers = |record: &Record| {
                record.attachment.container_id != *container_id
                    && tells(record).is_some_and(|noted| noted.is(found))
            };
            if self.command != Command::Del {
                return false;
            }
            let all = index.list().found;
            let theirs = all.iter().find(|record| is_anothers(record));
            if let Some(theirs) = theirs {
                let path = &self.env.netns;
                self.warn(format_args!(
                    "{path:?} belongs to {}: nothing is removed there",
                    theirs.attachment
                ));
            }
            theirs.is_some()
        })
    }

    /// Reports whether the attachment's names belong to another life of the container, which plugins
    /// made that are not ours: what can be found by these names alone is not to be removed.
    #[must_use]
    pub fn is_renewed(&self) -> bool {
        let gone = self.config.gone.as_deref().filter(|_| self.command == Command::Del);
        gone.is_some_and(|gone| gone.iter().any(|one| one.renewed))
    }

    /// Refuses a DEL that is meant for a container that was gone and came back under its ID: the
    /// plugin's record then names a namespace that is not among those known to be gone
    /// ([`cni::GONE`]). A plugin checks again under the attachment's lock.
    ///
    /// # Errors
    /// Code 11; the plugin must not change anything.
    pub fn refuse_if_back(&self) -> Result<(), Error> {
        let Some(gone) = &self.config.gone else { return Ok(()) };
        let record = Index::new(self.roots()).get(self.attachment(), self.plugin).found;
        let Some((id, cookie)) =
            record.and_then(|record| Some((record.netns_id?, record.netns_cookie)))
        else {
            return Ok(());
        };
        let is_gone = gone.iter().any(|one| {
            (one.dev, one.ino) == (id.dev, id.ino)
                && one.cookie.zip(cookie).is_none_or(|(one, now)| one == now)
        });
        if is_gone {
            return Ok(());
        }
        let text = format!("the container of {} came back", self.attachment());
        Err(Error::new(code::TRY_AGAIN_LATER, text).with_details("nothing was removed"))
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

    /// Reads the result of the previous plugin (ADD) or the final result of ADD (CHECK, DEL).
    ///
    /// # Errors
    /// Code 6 when it cannot be read or belongs to another family than the configuration's version.
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

    /// Returns the attachments that GC must leave alone; empty if the runtime listed none as valid.
    /// GC does not reach a plugin if the runtime gave no list.
    #[must_use]
    pub fn valid_attachments(&self) -> &[GcAttachment] {
        let given = self.config.valid_attachments.as_deref();
        given.or(self.config.attachments.as_deref()).unwrap_or_default()
    }

    pub(crate) fn names_valid_attachments(&self) -> bool {
        self.config.valid_attachments.is_some() || self.config.attachments.is_some()
    }

    /// Reports whether GC's list names the attachment.
    #[must_use]
    pub fn is_valid_attachment(&self, container_id: &str, ifname: &str) -> bool {
        self.valid_attachments()
            .iter()
            .any(|valid| valid.container_id == container_id && valid.ifname == ifname)
    }

    /// Returns the folders that hold state.
    #[must_use]
    pub fn roots(&self) -> &state::Roots {
        self.context.roots
    }

    /// Returns the context of the call.
    #[must_use]
    pub fn context(&self) -> &Context<'a> {
        self.context
    }

    /// Prepares calls of a delegated plugin with this call's configuration and environment.
    #[must_use]
    pub fn delegate<'c>(&'c self, plugin_type: &'c str) -> Delegate<'c> {
        Delegate { call: self, plugin_type, document: self.document }
    }

    /// Returns a delegated plugin that gets a document of its own.
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

    /// Returns the configuration of the delegated IPAM plugin, if the configuration names one.
    #[must_use]
    pub fn ipam_object(&self) -> Option<serde_json::Value> {
        #[derive(Default, serde::Deserialize)]
        #[serde(default)]
        struct OnlyIpam {
            ipam: Option<serde_json::Value>,
        }
        self.ipam()?;
        self.read_config::<OnlyIpam>().ok()?.ipam
    }

    /// Reports whether the removal is the undo of a failed ADD, of this call or an earlier one: no
    /// program has relied on the result.
    #[must_use]
    pub fn is_undo(&self) -> bool {
        self.command == Command::Add || (self.command == Command::Del && self.config.undo)
    }

    /// Writes a warning to standard error: something was wrong and the plugin coped.
    pub fn warn(&self, message: impl fmt::Display) {
        let message = cni::text::one_line(message);
        let line = format!("{} {}: warning: {message}\n", self.plugin, self.command);
        self.write_stderr(line.as_bytes());
    }

    /// Writes to standard error what a plugin wrote there that this one has called.
    pub fn write_stderr(&self, text: &[u8]) {
        let mut stderr = self.stderr.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        stderr.extend_from_slice(text);
    }
}
