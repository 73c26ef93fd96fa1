//! What was delegated for a container, in flannel's own place and format: `dataDir` holds a file
//! for each container, named by its ID, with the delegate's whole configuration. So flannel's
//! plugin detaches what this one attached, and this one what flannel's attached.
//!
//! The file knows nothing of the interface: of a container's two attachments it has the later one.
//! Flannel's plugin writes it in place, so a power cut may leave a part of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cni::{Command, PluginConfig};
use cni_plugin::{Call, codes};
use state::{Durability, Index};

use super::NAME;
use crate::engine::GC_TIMEOUT;
use crate::shared::attachment::{ADD_TIMEOUT, DEL_TIMEOUT};
use crate::shared::failure::Failure;
use crate::shared::files;

const FILE_MODE: u32 = 0o600;

/// A container's record.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    /// The container's ID.
    container_id: String,
}

/// What a record says of one network.
#[derive(Debug)]
pub(super) enum RecordContent {
    /// There is none of this network.
    Nothing,
    /// There is one, and it cannot be read.
    Illegible(String),
    /// The delegate that attached the container.
    Delegate(PluginConfig),
}

/// A record of a container that GC's list does not name.
#[derive(Debug)]
pub(super) struct StaleRecord {
    pub(super) record: Record,
    pub(super) delegate: PluginConfig,
    bytes: Vec<u8>,
}

impl Record {
    /// Returns the record of the call's container.
    pub(super) fn of(call: &Call<'_>, data_dir: &Path) -> Self {
        Self::in_folder(data_dir, call.container_id().as_str())
    }

    fn in_folder(data_dir: &Path, container_id: &str) -> Self {
        Record { path: data_dir.join(container_id), container_id: container_id.to_owned() }
    }

    /// Returns its bytes; `None` when there is none.
    pub(super) fn bytes(&self) -> Result<Option<Vec<u8>>, Failure> {
        Ok(state::read_optional(&self.path)?)
    }

    /// Reads what it says of the call's network.
    pub(super) fn read(&self, call: &Call<'_>) -> Result<RecordContent, Failure> {
        let Some(bytes) = self.bytes()? else { return Ok(RecordContent::Nothing) };
        Ok(match PluginConfig::parse(&bytes) {
            Ok(delegate) if is_of_network(&delegate, call) => RecordContent::Delegate(delegate),
            // The container's other attachment was made later.
            Ok(_) => RecordContent::Nothing,
            Err(error) => RecordContent::Illegible(format!("{}: {error}", self.path.display())),
        })
    }

    /// Writes it. As with flannel's plugin it is on the disk before the container is attached.
    pub(super) fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(files::write(&self.path, bytes, FILE_MODE, Durability::Synced)?)
    }

    /// Makes it as it was before [`Record::write`].
    pub(super) fn put_back(&self, before: Option<&[u8]>) -> Result<(), Failure> {
        match before {
            Some(bytes) => self.write(bytes),
            None => self.remove(),
        }
    }

    /// Removes it; a missing one is no error.
    pub(super) fn remove(&self) -> Result<(), Failure> {
        Ok(state::remove_file(&self.path).map(drop)?)
    }

    /// Works on it while no other call of this plugin does. DEL goes on without the lock, unless it
    /// is for a container that was gone and may have come back ([`cni::GONE`]).
    ///
    /// # Errors
    /// Code 11, naming the holder; those of `work`.
    pub(super) fn alone<T>(
        &self,
        call: &Call<'_>,
        work: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (index, object) = (Index::new(call.roots()), format!("{NAME}:{}", self.container_id));
        let timeout: Duration = match call.command() {
            Command::Add => ADD_TIMEOUT,
            Command::Gc => GC_TIMEOUT,
            _ => DEL_TIMEOUT,
        };
        let must_finish = call.command() == Command::Del && call.common().gone.is_none();
        match index.lock(&object, timeout) {
            Ok(lock) => {
                let done = work();
                index.end_lock(&object, lock);
                done
            }
            Err(error) if error.is_busy() && !must_finish => Err(error.into()),
            Err(error) if error.is_busy() => {
                call.warn(format_args!("an ADD may be under way: {error}"));
                work()
            }
            // If the lock's file cannot be made, the delegate reports that itself.
            Err(_) => work(),
        }
    }
}

impl StaleRecord {
    /// Lists the records of the call's network whose containers GC's list does not name. Illegible
    /// ones are skipped with a warning: they do not say of which network they are.
    pub(super) fn list(call: &Call<'_>, data_dir: &Path) -> Result<Vec<Self>, Failure> {
        let failed = |error: std::io::Error| {
            let what = format!("list directory {}", data_dir.display());
            Failure::from_chain(codes::STATE, &error).context(what)
        };
        let entries = match std::fs::read_dir(data_dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut stale = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            let container_id = name.to_str().filter(|id| cni::ContainerId::new(id).is_ok());
            let Some(container_id) = container_id else { continue };
            let mut valid = call.valid_attachments().iter();
            if valid.any(|valid| valid.container_id == container_id) {
                continue;
            }
            let record = Record::in_folder(data_dir, container_id);
            let Some(bytes) = record.bytes()? else { continue };
            match PluginConfig::parse(&bytes) {
                Ok(delegate) if is_of_network(&delegate, call) => {
                    stale.push(StaleRecord { record, delegate, bytes });
                }
                Ok(_) => {}
                Err(error) => {
                    call.warn(format_args!("ignored {}: {error}", record.path.display()));
                }
            }
        }
        Ok(stale)
    }

    /// Reports whether a plugin has recorded something of the container.
    pub(super) fn is_among(&self, recorded: &[state::Record]) -> bool {
        let id = self.record.container_id.as_str();
        recorded.iter().any(|one| one.attachment.container_id.as_str() == id)
    }

    /// Removes the record, unless another call has written it since it was listed.
    pub(super) fn forget(&self, call: &Call<'_>) -> Result<(), Failure> {
        self.record.alone(call, || match self.record.bytes()? {
            Some(now) if now == self.bytes => self.record.remove(),
            _ => Ok(()),
        })
    }
}

fn is_of_network(delegate: &PluginConfig, call: &Call<'_>) -> bool {
    let name = delegate.object.get_ignore_case("name").map(cni::json::from_raw::<String>);
    name.is_some_and(|name| name.is_ok_and(|name| name == call.network().as_str()))
}
