//! The switch's own link on the host, the bridge's local port. The switch floods containers' frames
//! to it as to every port, so it must accept no router advertisements (CVE-2020-10749).
//!
//! The first attachment of a bridge notes the link's setting, and the last one restores it.

use cni::AttachmentKey;
use kernel::route::{Link, RouteSocket};
use serde_json::json;
use state::{Index, RestoreOutcome, SharedChange, SharedObject};

use crate::shared::advertisements;
use crate::shared::failure::Failure;

/// The kinds of links that a switch creates, in the kernel or in user space.
const KINDS: [&str; 2] = ["openvswitch", "tun"];

/// In the note: the value of the link's sysctl before.
const WAS: &str = "was";

/// Returns the name under which attachments share the setting.
fn object(bridge: &str) -> String {
    format!("sysctl net/ipv6/conf/{bridge}/accept_ra")
}

/// Makes the link of a bridge accept no router advertisements, and holds that for the attachment.
/// Returns whether the host has the link.
///
/// # Errors
/// Code 100 when the kernel refuses, 105 or 11 when our own files fail.
pub(super) fn quiet(
    index: &Index,
    host: &mut RouteSocket,
    bridge: &str,
    key: &AttachmentKey,
) -> Result<bool, Failure> {
    // No link can have a longer name.
    let named = if bridge.len() < 16 { host.link_by_name(bridge)? } else { None };
    let is_the_switchs =
        |link: &Link| link.name == bridge && KINDS.iter().any(|kind| link.is_kind(kind));
    let Some(link) = named.filter(is_the_switchs) else { return Ok(false) };
    let object = SharedObject::new(index, object(bridge));
    let held = object.hold(key, || {
        advertisements::refuse_way_out(host, &link)?;
        let was = advertisements::accepting_value(bridge)?;
        let accepts = was.is_some();
        let is_new = accepts && object.note()?.is_none();
        let note = was.filter(|_| is_new).map(|was| json!({ WAS: was }));
        let apply = move || if accepts { advertisements::refuse(bridge) } else { Ok(()) };
        Ok(Some(SharedChange { note, apply }))
    });
    held.map(|_| true)
}

/// Releases it for an attachment. The last one restores the setting.
///
/// # Errors
/// As [`quiet`].
pub(super) fn release(index: &Index, bridge: &str, key: &AttachmentKey) -> Result<(), Failure> {
    let object = SharedObject::new(index, object(bridge));
    object.release(key, || {
        if let Some(was) = object.note()?.as_ref().and_then(|note| note[WAS].as_str()) {
            advertisements::restore(bridge, was)?;
        }
        Ok(RestoreOutcome::Done)
    })
}
