#![doc = include_str!("../README.md")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod attachment;
mod cache;
mod error;
mod known;
mod load;
mod run;
mod runtime;
mod trace;

pub use attachment::{Attachment, CapabilityArgs};
pub use cache::{Cache, CacheError, CachedAttachment, DEFAULT_CACHE_DIR, Listing, SkippedFile};
pub use error::{
    AddError, CheckError, DelError, GcError, GcFailure, PluginError, PluginFailure, PluginRefusal,
    RollBack, StatusError, ValidateError, ValidateProblem,
};
pub use known::{Inventory, KnownAttachment, Presence, Removal, RepairObstacle};
pub use load::{ConfigFolder, ConsideredFile, Kind, LoadError, Outcome, Refusal, load_file};
pub use run::{
    AddedAttachment, DeletedAttachment, FailedNetworks, GcReport, Member, MovedInterface, Repairs,
    SeveralError, VersionInfo,
};
pub use runtime::{CLEANUP_TIME, PluginStderr, Runtime};
pub use trace::{TraceContext, TraceError};
