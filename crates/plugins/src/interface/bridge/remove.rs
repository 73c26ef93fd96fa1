//! Runs DEL, the undo of ADD, and GC.

use cni::{AttachmentKey, Error};
use cni_plugin::Call;
use kernel::netns::Netns;
use state::Index;

use super::connect::Recorded;
use super::{NAME, bridge_link};
use crate::shared::failures::Failures;
use crate::shared::shared_object::Leaving;
use crate::shared::{attachment, claim, forwarding, pair, rules};

/// Runs DEL. Needs only the attachment's key; everything else makes it cheaper.
pub(super) fn del(call: &Call<'_>) -> Result<(), Error> {
    attachment::del_pair(call, |netns| all(call, netns))
}

/// Removes everything that ADD created except the reservation of the addresses.
pub(super) fn all(call: &Call<'_>, netns: Option<&Netns>) -> Result<(), Error> {
    let key = call.attachment();
    let index = Index::new(call.roots());
    let mut failures = Failures::new();
    failures.note("remove the link", remove_pair(call, &index, key, netns));
    objects(call, &index, key, &mut failures);
    failures.into_result()
}

fn remove_pair(
    call: &Call<'_>,
    index: &Index,
    key: &AttachmentKey,
    netns: Option<&Netns>,
) -> Result<(), Error> {
    let known = Recorded::read(index, key).map(|recorded| recorded.host_ifname);
    pair::remove(call, key, known.as_deref(), netns)
}

/// Removes everything except the link: filter elements, holds on shared objects, and last their
/// record.
fn objects(call: &Call<'_>, index: &Index, key: &AttachmentKey, failures: &mut Failures) {
    let recorded = Recorded::read(index, key);
    let claims = recorded.as_ref().map(|recorded| recorded.claims.clone());
    let filter = recorded.as_ref().map(|recorded| (&recorded.filter, recorded.ips.as_slice()));
    failures.note("remove filter rules", rules::remove(index, key, filter));
    let bridge = recorded
        .map(|recorded| recorded.bridge)
        .or_else(|| held_bridge(index, key))
        .or_else(|| configured_bridge(call));
    // Not while its port may exist: the bridge would stay, without a known owner.
    if let Some(bridge) = bridge.filter(|_| failures.is_empty()) {
        failures.note(
            format_args!("let go of bridge {bridge:?}"),
            bridge_link::release(index, &bridge, key),
        );
    }
    forwarding::release(index, key, Leaving::of(call), failures);
    claim::release(index, key, claims.as_deref(), failures);
    if failures.is_empty() {
        failures.note("forget the attachment", attachment::forget(index, key, NAME));
    }
}

/// Finds the bridge that an attachment holds when its record is lost.
fn held_bridge(index: &Index, key: &AttachmentKey) -> Option<String> {
    index.objects().found.into_iter().find_map(|object| {
        let bridge = object.strip_prefix("bridge ")?;
        index.holders(&object).found.contains(key).then(|| bridge.to_owned())
    })
}

/// Returns the bridge that the configuration names. An ADD that was killed may have created it
/// without recording the attachment yet.
fn configured_bridge(call: &Call<'_>) -> Option<String> {
    #[derive(serde::Deserialize, Default)]
    #[serde(default)]
    struct Only {
        bridge: String,
    }
    let only: Only = call.read_config().ok()?;
    Some(if only.bridge.is_empty() {
        super::config::DEFAULT_BRIDGE.to_owned()
    } else {
        only.bridge
    })
}

/// Runs GC.
pub(super) fn gc(call: &Call<'_>) -> Result<(), Error> {
    let index = Index::new(call.roots());
    let remove_link = |key: &AttachmentKey| remove_pair(call, &index, key, None);
    let remove_rest = |key: &AttachmentKey, own: &mut Failures| objects(call, &index, key, own);
    let collected = pair::gc(call, &index, NAME, remove_link, remove_rest);
    let mut failures = Failures::new();
    failures.note("collect attachments", collected);
    failures.note("put away bridges", bridge_link::collect(&index));
    forwarding::collect(&index, &mut failures);
    failures.into_result()
}
