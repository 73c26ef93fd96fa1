#![doc = include_str!("../README.md")]
//!
//! # Where things are
//!
//! - A runtime reads a [`NetworkList`], derives each plugin's request with
//!   [`PluginConfig::request`] and reads the answer with [`AddResult::parse`].
//! - A plugin reads a [`CallEnv`] and a [`CommonConfig`] and answers with
//!   [`AddResult::write_indented`] or an [`Error`].
//! - The rules for reading JSON are those of [`json`]; [`json::unknown_keys`] finds keys that
//!   nothing reads.
//! - [`AttachmentKey`] is the owner of everything that is made for an attachment.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod call;
pub mod config;
pub mod error;
pub mod excerpt;
mod follow;
mod gone;
pub mod json;
pub mod name;
pub mod nearest;
pub mod order;
pub mod owner;
mod repair;
pub mod result;
pub mod text;
mod undo;
pub mod version;

pub use call::{Args, CallEnv, Command};
pub use config::{CommonConfig, Injection, NetworkList, PluginConfig, set_cni_args};
pub use error::{Error, Refusal, code};
pub use follow::FOLLOWED_BY;
pub use gone::{GONE, GoneNetns};
pub use name::{ContainerId, IfName, NetworkName};
pub use owner::{AttachmentKey, GcAttachment};
pub use repair::{ATTACHED_AS, ItemDrift, LOOK, REPAIR, RepairReport};
pub use result::{AddResult, Dns, DropKind, Interface, IpConfig, Route};
pub use undo::UNDO;
pub use version::Version;

/// Writes a value as the reference prints JSON: indented by four spaces, without a closing newline.
pub(crate) fn to_json_indented<T: serde::Serialize>(value: &T) -> Vec<u8> {
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
    value.serialize(&mut serializer).expect("our types serialise to JSON");
    text
}
