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
pub use cache::{Cache, CacheError, CachedAttachment, DEFAULT_CACHE_DIR, Listing, PassedOver};
pub use error::{
    AddError, CheckError, DelError, GcError, GcFailure, PluginError, PluginFailure, Refused,
    RollBack, StatusError, ValidateError, ValidateProblem,
};
pub use known::{Apart, Everything, Known, Presence, Removal};
pub use load::{ConfigFolder, Considered, Kind, LoadError, Outcome, Refusal, load_file};
pub use run::{Added, Deleted, GcReport, Left, Member, Moved, Repairs, SeveralError, VersionInfo};
pub use runtime::{CLEANUP_TIME, PluginStderr, Runtime};
pub use trace::{TraceContext, TraceError};
