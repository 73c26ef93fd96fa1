//! DEL, the undoing of ADD, and GC.

use cni::{AttachmentKey, Error};
use cni_plugin::Call;
use kernel::netns::Netns;
use state::Index;

use super::NAME;
use super::connect::Facts;
use crate::shared::failures::Failures;
use crate::shared::shared_object::{FORWARD_V4, FORWARD_V6};
use crate::shared::{attachment, pair, rules};

/// Runs DEL. Needs nothing but the attachment's key; everything else makes it cheaper.
pub(super) fn del(call: &Call<'_>) -> Result<(), Error> {
    attachment::del(call, |netns| all(call, call.attachment(), netns))
}

/// Removes everything that ADD made beside the addresses' reservation. The host's addresses and routes go with its end
/// of the pair.
pub(super) fn all(
    call: &Call<'_>,
    key: &AttachmentKey,
    netns: Option<&Netns>,
) -> Result<(), Error> {
    let index = Index::new(call.roots());
    let facts = Facts::read(&index, key);
    let known = facts.as_ref().map(|facts| facts.host_ifname.as_str());
    let recorded = facts.as_ref().map(|facts| (&facts.filter, facts.ips.as_slice()));
    let mut failures = Failures::new();
    failures.note("remove the link", pair::remove(call, key, known, netns));
    failures.note("remove filter rules", rules::remove(&index, key, recorded));
    for switch in [FORWARD_V4, FORWARD_V6] {
        failures.note("let go of forwarding", switch.release(&index, key));
    }
    if failures.is_empty() {
        failures.note("forget the attachment", attachment::forget(&index, key, NAME));
    }
    failures.into_result()
}

/// Runs GC: removes every attachment of this network that is not among the valid ones, found by our records
/// and by the marks on links, then forwards the verb to the address plugin.
pub(super) fn gc(call: &Call<'_>) -> Result<(), Error> {
    let index = Index::new(call.roots());
    let mut failures = Failures::new();
    for key in pair::stale(call, &index, NAME, &mut failures) {
        failures.note(format_args!("collect {key}"), all(call, &key, None));
    }
    failures.note("collect filter rules", rules::collect(call, &index));
    attachment::collect_addresses(call, &mut failures);
    failures.into_result()
}
