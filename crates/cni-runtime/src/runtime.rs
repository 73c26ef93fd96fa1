//! The runtime: where plugins are, how they are called, where attachments are recorded.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cni::order::gather;
use cni::{AttachmentKey, Command, ContainerId, Error, GoneNetns, NetworkList, NetworkName, code};
use cni_invoke::Executor;
use state::Record;

use crate::cache::{Cache, CacheError, CachedAttachment, Listing};
use crate::{Attachment, TraceContext};

/// How long undoing may take after the caller's deadline; see [`Runtime::with_cleanup_time`].
pub const CLEANUP_TIME: Duration = Duration::from_secs(30);

/// What a plugin that succeeded wrote to its standard error.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct PluginStderr<'a> {
    /// The plugin.
    pub plugin_type: &'a str,
    /// The verb.
    pub command: Command,
    /// What it wrote.
    pub text: &'a [u8],
}

type StderrSink = Arc<dyn Fn(&PluginStderr<'_>) + Send + Sync>;

/// Runs plugins for a container runtime.
///
/// What it calls plugins with may be borrowed, for as long as `'e`.
///
/// A runtime holds no state but its settings: it is cheap to clone, and several threads may use it
/// at once for different containers. The caller orders the operations of one container, as the
/// specification demands (CNI 1.1.0 §1 "Lifecycle & Ordering").
#[derive(Clone)]
pub struct Runtime<'e> {
    pub(crate) plugin_path: Vec<PathBuf>,
    pub(crate) executor: Arc<dyn Executor + 'e>,
    pub(crate) cache: Cache,
    pub(crate) trace: Option<TraceContext>,
    pub(crate) stderr: Option<StderrSink>,
    pub(crate) cleanup_time: Duration,
    pub(crate) roll_back: bool,
    pub(crate) netns_override: String,
    pub(crate) gone: Option<Vec<GoneNetns>>,
    /// DEL undoes an ADD that failed.
    pub(crate) undo: bool,
    /// Whose plugins are called.
    pub(crate) whose: PluginChoice,
}

/// Which of several plugins of one type is called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum PluginChoice {
    /// The first in the path.
    #[default]
    First,
    /// For these types the executor's own, wherever it is in the path; without it, and for others,
    /// the first.
    OwnOf(BTreeSet<String>),
    /// The executor's own, and no other.
    Own,
}

impl fmt::Debug for Runtime<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("plugin_path", &self.plugin_path)
            .field("executor", &self.executor)
            .field("cache", &self.cache)
            .field("trace", &self.trace)
            .field("cleanup_time", &self.cleanup_time)
            .field("roll_back", &self.roll_back)
            .finish_non_exhaustive()
    }
}

impl<'e> Runtime<'e> {
    /// Takes the folders in which plugins are looked up (`CNI_PATH`), in order, and what calls
    /// them.
    ///
    /// The cache is [`crate::DEFAULT_CACHE_DIR`] unless [`Runtime::with_cache`] sets another.
    pub fn new<P: Into<PathBuf>>(
        plugin_path: impl IntoIterator<Item = P>,
        executor: Arc<dyn Executor + 'e>,
    ) -> Self {
        Runtime {
            plugin_path: plugin_path.into_iter().map(Into::into).collect(),
            executor,
            cache: Cache::default(),
            trace: None,
            stderr: None,
            cleanup_time: CLEANUP_TIME,
            roll_back: true,
            netns_override: String::new(),
            gone: None,
            undo: false,
            whose: PluginChoice::default(),
        }
    }

    /// Records attachments in another cache.
    #[must_use]
    pub fn with_cache(mut self, cache: Cache) -> Self {
        self.cache = cache;
        self
    }

    /// Passes the caller's trace context on to plugins. Traces differ from call to call: clone the
    /// runtime for each.
    #[must_use]
    pub fn with_trace(mut self, trace: Option<TraceContext>) -> Self {
        self.trace = trace;
        self
    }

    /// Passes what successful plugins wrote to standard error to `sink`. This library never prints.
    ///
    /// What a failed plugin wrote there becomes the error's text if the plugin reported nothing
    /// else.
    #[must_use]
    pub fn with_stderr(mut self, sink: impl Fn(&PluginStderr<'_>) + Send + Sync + 'static) -> Self {
        self.stderr = Some(Arc::new(sink));
        self
    }

    /// Sets how long undoing may take: the roll-back of an ADD that failed, and the rest of a DEL
    /// after the caller's deadline has passed. The remaining plugins share the time, so that one
    /// that hangs cannot use up the others' share. [`CLEANUP_TIME`] by default.
    #[must_use]
    pub fn with_cleanup_time(mut self, time: Duration) -> Self {
        self.cleanup_time = time;
        self
    }

    /// Leaves it to the caller to run DEL after an ADD that failed, as libcni does.
    #[must_use]
    pub fn without_roll_back(mut self) -> Self {
        self.roll_back = false;
        self
    }

    /// Sets `CNI_NETNS_OVERRIDE`, which lets plugins work in the namespace in which they run.
    #[must_use]
    pub fn with_netns_override(mut self, value: impl Into<String>) -> Self {
        self.netns_override = value.into();
        self
    }

    /// Makes DEL remove only what was made in these namespaces, which are gone: see [`cni::GONE`].
    #[must_use]
    pub fn for_gone(mut self, gone: Vec<GoneNetns>) -> Self {
        self.gone = Some(gone);
        self
    }

    /// Makes DEL undo what an ADD has just made, as if that had never been: see [`cni::UNDO`].
    #[must_use]
    pub fn undoing(mut self) -> Self {
        self.undo = true;
        self
    }

    /// Returns the folders in which plugins are looked up.
    #[must_use]
    pub fn plugin_path(&self) -> &[PathBuf] {
        &self.plugin_path
    }

    /// Returns the cache.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Returns the executable of a plugin.
    ///
    /// # Errors
    /// [`cni_invoke::FindError`].
    pub fn find_plugin(&self, plugin_type: &str) -> Result<PathBuf, cni_invoke::FindError> {
        let own = || cni_invoke::find_own(plugin_type, &self.plugin_path, &*self.executor);
        let first = || cni_invoke::find(plugin_type, &self.plugin_path);
        match &self.whose {
            PluginChoice::OwnOf(types) if types.contains(plugin_type) => own().or_else(|_| first()),
            PluginChoice::First | PluginChoice::OwnOf(_) => first(),
            PluginChoice::Own => own(),
        }
    }

    /// Lists the attachments that the cache knows, of one container or of all.
    ///
    /// # Errors
    /// [`CacheError::File`] when the cache's folder cannot be read.
    pub fn cached_attachments(
        &self,
        container: Option<&ContainerId>,
    ) -> Result<Listing, CacheError> {
        self.cache.list(container)
    }

    /// Returns what the cache has for one attachment: its configuration, its arguments and its
    /// result.
    ///
    /// # Errors
    /// As [`Cache::attachment`].
    pub fn cached_attachment(
        &self,
        key: &AttachmentKey,
    ) -> Result<Option<CachedAttachment>, CacheError> {
        self.cache.attachment(key)
    }

    /// Returns the key of an attachment to a network.
    ///
    /// # Errors
    /// Code 7 when the network's name is empty or has characters that the specification does not
    /// allow.
    pub fn key(&self, list: &NetworkList, attachment: &Attachment) -> Result<AttachmentKey, Error> {
        Ok(AttachmentKey {
            network: NetworkName::new(&list.name)?,
            container_id: attachment.container_id.clone(),
            ifname: attachment.ifname.clone(),
        })
    }

    /// Returns a runtime for the attachment that these records are of. Only the plugin that made
    /// something knows how to compare and remove it: where the executor's own recorded something, it
    /// comes before others of its name, whichever the path names first. For the address plugins that
    /// it calls, the folders come first in which the executor's own is.
    #[must_use]
    pub fn for_records(&self, records: &[Record]) -> Self {
        let mut this = self.clone();
        if records.is_empty() {
            return this;
        }
        let types: BTreeSet<String> = gather(records.iter().map(|record| record.plugin.clone()));
        let pooled = records.iter().filter(|record| record.ipam.is_some());
        let pooled: Vec<&str> = pooled.map(|record| record.plugin.as_str()).collect();
        let has_own = |dir: &Path| pooled.iter().any(|name| this.executor.is_own(&dir.join(name)));
        let dirs = std::mem::take(&mut this.plugin_path);
        let (own, others) = dirs.into_iter().partition::<Vec<_>, _>(|dir| has_own(dir));
        this.plugin_path = [own, others].concat();
        this.whose = PluginChoice::OwnOf(types);
        this
    }

    /// Returns `CNI_PATH`.
    pub(crate) fn path_variable(&self) -> String {
        let dirs = self.plugin_path.iter().filter(|dir| !dir.as_os_str().is_empty());
        let dirs: Vec<_> = dirs.map(|dir| Path::to_string_lossy(dir)).collect();
        dirs.join(":")
    }
}

/// Refuses a list for which no plugin could be called.
pub(crate) fn require_usable(list: &NetworkList) -> Result<NetworkName, Error> {
    if list.plugins.is_empty() {
        return Err(Error::new(code::INVALID_CONFIG, "no plugin configs found")
            .with_details(format!("network {:?} lists no plugins", list.name)));
    }
    NetworkName::new(&list.name)
}
