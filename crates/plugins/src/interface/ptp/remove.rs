//! Runs DEL, the undo of ADD, and GC.

use cni::{AttachmentKey, Error};
use cni_plugin::Call;
use kernel::netns::Netns;
use state::Index;

use super::NAME;
use super::connect::Recorded;
use crate::shared::failures::Failures;
use crate::shared::shared_object::Leaving;
use crate::shared::{attachment, claim, forwarding, pair, rules};

/// Runs DEL. Needs only the attachment's key; everything else makes it cheaper.
pub(super) fn del(call: &Call<'_>) -> Result<(), Error> {
    attachment::del_pair(call, |netns| all(call, call.attachment(), netns))
}

/// Removes everything that ADD created except the reservation of the addresses. The kernel removes
/// the host's addresses and routes with its end of the pair.
pub(super) fn all(
    call: &Call<'_>,
    key: &AttachmentKey,
    netns: Option<&Netns>,
) -> Result<(), Error> {
    let index = Index::new(call.roots());
    let mut failures = Failures::new();
    failures.note("remove the link", remove_pair(call, &index, key, netns));
    rest(&index, key, Leaving::of(call), &mut failures);
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
fn rest(index: &Index, key: &AttachmentKey, leaving: Leaving, failures: &mut Failures) {
    let recorded = Recorded::read(index, key);
    let claims = recorded.as_ref().map(|recorded| recorded.claims.clone());
    let recorded = recorded.as_ref().map(|recorded| (&recorded.filter, recorded.ips.as_slice()));
    failures.note("remove filter rules", rules::remove(index, key, recorded));
    forwarding::release(index, key, leaving, failures);
    claim::release(index, key, claims.as_deref(), failures);
    if failures.is_empty() {
        failures.note("forget the attachment", attachment::forget(index, key, NAME));
    }
}

/// Runs GC.
pub(super) fn gc(call: &Call<'_>) -> Result<(), Error> {
    let index = Index::new(call.roots());
    let remove_link = |key: &AttachmentKey| remove_pair(call, &index, key, None);
    let remove_rest =
        |key: &AttachmentKey, own: &mut Failures| rest(&index, key, Leaving::Ended, own);
    let collected = pair::gc(call, &index, NAME, remove_link, remove_rest);
    let mut failures = Failures::new();
    failures.note("collect attachments", collected);
    forwarding::collect(&index, &mut failures);
    failures.into_result()
}
