//! Asks all plugins of an attachment what differs from what ADD made, and makes them restore it.

use cni::{NetworkList, PluginConfig};
use cni_plugin::Role;
use cni_runtime::{Attachment, KnownAttachment, Repairs};
use plugins::judge;

use super::session::Session;

/// Says whether other projects' plugins attached it, before ours took their names: each of ours that
/// makes an interface records it.
pub(crate) fn is_by_others(known: &KnownAttachment) -> bool {
    let Some(cached) = known.cached.as_ref().filter(|cached| cached.result.is_some()) else {
        return false;
    };
    let is_recorded =
        |plugin: &PluginConfig| judge::role(&plugin.plugin_type) == Some(Role::Interface);
    let list = cached.list();
    known.records.is_empty() && list.is_ok_and(|list| list.plugins.iter().any(is_recorded))
}

/// Looks, and changes nothing.
pub(crate) fn look(known: &KnownAttachment, session: &Session) -> Result<Repairs, cni::Error> {
    let (list, attachment) = subject(known)?;
    let runtime = session.runtime.for_records(&known.records);
    let looked = runtime.survey_list(&list, attachment, session.deadline());
    looked.map_err(|error| error.to_cni())
}

/// Restores what it can.
pub(crate) fn repair(known: &KnownAttachment, session: &Session) -> Result<Repairs, cni::Error> {
    let (list, attachment) = subject(known)?;
    let runtime = session.runtime.for_records(&known.records);
    let repaired = runtime.repair_list(&list, attachment, session.deadline());
    repaired.map_err(|error| error.to_cni())
}

/// Returns the configuration with which it was attached, and the runtime's description. The
/// attachment must not be [`KnownAttachment::apart`].
fn subject(known: &KnownAttachment) -> Result<(NetworkList, &Attachment), cni::Error> {
    if let Some(damage) = known.damage() {
        return Err(damage);
    }
    let cached = known.cached.as_ref().expect("what has no file is damaged or apart");
    Ok((cached.list()?, &cached.attachment))
}
