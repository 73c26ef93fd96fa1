//! Removes what ADD created.

use cni::AttachmentKey;
use cni_plugin::Call;
use state::Index;

use super::connect::RecordData;
use super::{Bridge, bridge_link};
use crate::engine::{Kind as _, Removal};
use crate::shared::failure::Failure;
use crate::shared::failures::Failures;
use crate::shared::shared_object::ReleaseReason;
use crate::shared::{attachment, forwarding, pair};

/// Removes everything that ADD created: the link, filter elements, and holds on shared objects.
pub(super) fn take_down(removal: &Removal<'_, Bridge>, failures: &mut Failures) {
    let Removal { call, index, key, recorded, .. } = removal;
    let host = recorded.as_ref().map(|recorded| recorded.host_ifname.as_str());
    let filter = recorded.as_ref().map(|recorded| (&recorded.filter, recorded.ips.as_slice()));
    pair::take_down(removal, host, filter, failures);
    // Not while its port may exist: the bridge would stay, without a known owner.
    if failures.is_empty() {
        let leased = recorded.as_ref().is_some_and(|recorded| recorded.leased);
        let recorded = recorded.as_ref().map(|recorded| recorded.bridge.clone());
        let bridge = match recorded.or_else(|| held_bridge(index, key)) {
            None => failures.note("find the bridge", configured_bridge(call, index)).flatten(),
            known => known,
        };
        if let Some(bridge) = bridge {
            let released = bridge_link::release(index, &bridge, key);
            failures.note(format_args!("release bridge {bridge:?}"), released);
            if leased {
                let dropped = drop_leased(index, &bridge, key);
                failures.note(format_args!("remove leased addresses of {bridge:?}"), dropped);
            }
        }
    }
    forwarding::release(index, key, ReleaseReason::of(call), failures);
}

/// Removes the gateways' addresses that the attachment's lease has brought, unless another attachment
/// to the bridge has an address of their subnet.
fn drop_leased(index: &Index, bridge: &str, key: &AttachmentKey) -> Result<(), Failure> {
    let all = index.list();
    // One that cannot be read may have such an address.
    if !all.damaged.is_empty() {
        return Ok(());
    }
    let records = all.found.into_iter().filter(|record| record.attachment != *key);
    let others: Vec<RecordData> = records
        .filter(|record| record.plugin == Bridge::NAME)
        .filter_map(|record| attachment::recorded_in::<RecordData>(&record))
        .filter(|recorded| recorded.bridge == bridge)
        .collect();
    bridge_link::drop_leased(index, bridge, &|gateway| {
        others.iter().flat_map(|other| &other.ips).any(|ip| gateway.contains(&ip.addr()))
    })
}

/// Finds the bridge that an attachment holds when its record is lost.
fn held_bridge(index: &Index, key: &AttachmentKey) -> Option<String> {
    index.objects().found.into_iter().find_map(|object| {
        let bridge = object.strip_prefix("bridge ")?;
        index.holders(&object).found.contains(key).then(|| bridge.to_owned())
    })
}

/// Returns the bridge that the configuration names, if our files know it: an ADD that was killed may
/// have created it without recording the attachment yet. A DEL by what was recorded has no
/// configuration, and nothing is locked for a bridge that no attachment has used.
fn configured_bridge(call: &Call<'_>, index: &Index) -> Result<Option<String>, Failure> {
    #[derive(serde::Deserialize, Default)]
    #[serde(default)]
    struct OnlyBridge {
        bridge: String,
    }
    let Ok(OnlyBridge { bridge }) = call.read_config() else { return Ok(None) };
    let bridge = match bridge.as_str() {
        "" => super::config::DEFAULT_BRIDGE.to_owned(),
        _ => bridge,
    };
    Ok(index.may_exist(&bridge_link::object(&bridge))?.then_some(bridge))
}
