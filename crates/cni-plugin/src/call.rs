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
    /// The interface's name in the container, which is another than the attachment's where somebody has moved it.
    pub(crate) ifname: Option<IfName>,
    /// The container's namespace, where the guard has opened it.
    pub(crate) netns: Option<Netns>,
    /// Whether the path is known to lead to another namespace than the one that was attached.
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

    /// Returns the interface's name in the container: the attachment's, unless somebody has moved the interface
    /// ([`cni::ATTACHED_AS`]). So this is for the namespace and for `prevResult`; what is written down goes by the attachment.
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
        // Of an interface that was moved the caller knows where it is, and the records where it was.
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

    /// Opens the container's namespace for removal: `None` when it was not given, is gone, or the path
    /// has become something else (a file left behind after the mount vanished, another namespace than the one that a record of the
    /// attachment names).
    ///
    /// # Errors
    /// As [`Call::open_any_netns`].
    pub fn open_netns_if_there(&self) -> Result<Option<Netns>, Error> {
        let found = self.open_any_netns()?;
        Ok(found.filter(|found| self.command != Command::Del || !self.is_another(found)))
    }

    /// Opens what the path leads to, for removal: it may be another namespace than the container's ([`Call::is_another`]). Where the
    /// path cannot be followed, what the attachment's records tell of the namespace leads to it, wherever that may be; where there
    /// are none, nothing was made in it.
    ///
    /// # Errors
    /// Code 8 when the path cannot be followed and the namespace may be there.
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

    /// Opens the namespace that the attachment's records tell of, for a path that cannot be followed.
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

    /// Says whether the path that was given leads to another namespace than the one that was attached, as far as a record tells.
    #[must_use]
    pub fn leads_to_another(&self) -> bool {
        self.open_any_netns().ok().flatten().is_some_and(|found| self.is_another(&found))
    }

    /// Says whether what was written down of the attachment names another namespace than this one: a process ID or a name was
    /// given to another. The plugin's own record is asked, then those of the others; the answer is for the whole call.
    ///
    /// A DEL of an attachment of which nothing was written down looks at all records: a namespace in which another container
    /// was attached is that one's.
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

    /// Refuses a DEL that is meant for a container that was gone, and came back under its ID: the plugin has written down another
    /// namespace than those that are known to be gone ([`cni::GONE`]). A plugin asks again under the attachment's lock.
    ///
    /// # Errors
    /// Code 11; nothing is to be changed.
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

    /// Says whether what is removed is what an ADD has just made that failed, this one or one before: nobody has relied on it.
    #[must_use]
    pub fn is_undo(&self) -> bool {
        self.command == Command::Add || (self.command == Command::Del && self.config.undo)
    }

    /// Writes a warning to standard error: something was not as it should be and we coped.
    pub fn warn(&self, message: impl fmt::Display) {
        let message = cni::text::one_line(message);
        let line = format!("{} {}: warning: {message}\n", self.plugin, self.command);
        self.write_stderr(line.as_bytes());
    }

    pub(crate) fn write_stderr(&self, text: &[u8]) {
        let mut stderr = self.stderr.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        stderr.extend_from_slice(text);
    }
}
