//! The annotations that flanneld writes to its Node, and reads of others.

use std::collections::BTreeMap;

use crate::kubernetes::NodeFields;
use crate::node::Node;
use crate::refused::Refused;
use crate::settings::{FlannelSettings, Settings};

/// What annotations of flanneld begin with by default.
pub const PREFIX: &str = "flannel.alpha.coreos.com/";

/// Returns the annotations of this node, byte for byte as flanneld writes them.
///
/// `there` are those that the Node has: `public-ip-overwrite` is written into `public-ip`, as
/// flanneld does.
#[must_use]
pub fn write(
    node: &Node,
    flannel: &FlannelSettings,
    there: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    todo!()
}

/// Reads the annotations of a Node; `None` if flanneld does not manage it.
///
/// # Errors
/// What is wrong with them.
pub fn read(
    fields: &NodeFields,
    flannel: &FlannelSettings,
    settings: &Settings,
) -> Option<Result<Node, Refused>> {
    todo!()
}
