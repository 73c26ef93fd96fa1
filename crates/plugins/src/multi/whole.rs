//! Attachments that consist of several networks, each an attachment of its own: which are wholes,
//! and which are parts of one.

use std::collections::{BTreeMap, BTreeSet};

use cni::AttachmentKey;
use cni_runtime::KnownAttachment;
use state::Roots;

use super::parts as parts_of;

/// Attachments to show, and which of them consist of several networks.
#[derive(Debug)]
pub struct AttachmentList {
    /// All attachments; where one consists of several networks, also each of these with its result.
    pub known: Vec<KnownAttachment>,
    /// The attachments whose networks are listed too.
    pub wholes: BTreeSet<AttachmentKey>,
    /// Those of the listed attachments that are networks of others. Only the plugin of the whole
    /// knows their results: a CHECK or a repair of the whole is one of each part.
    pub parts: BTreeSet<AttachmentKey>,
}

/// Adds what `multi` and `netwright-multi` recorded of their networks to what is known. This is for
/// people to read: to detach or repair, a command calls the plugin, which acts on all of its
/// networks.
#[must_use]
pub fn with_parts(roots: &Roots, known: Vec<KnownAttachment>) -> AttachmentList {
    let mut parts = BTreeMap::new();
    let mut wholes = BTreeSet::new();
    for whole in &known {
        for record in &whole.records {
            for cached in parts_of(roots, record) {
                wholes.insert(whole.key.clone());
                parts.insert(cached.key(), (cached, whole.clone()));
            }
        }
    }
    // A part may have the key of the whole.
    let keys = parts.iter().filter(|(key, (_, whole))| **key != whole.key);
    let keys = cni::order::gather(keys.map(|(key, _)| key.clone()));
    let mut known = known;
    for one in &mut known {
        if let Some((cached, _)) = parts.remove(&one.key) {
            wholes.remove(&one.key);
            one.cached.get_or_insert(cached);
        }
    }
    known.extend(parts.into_values().map(|(cached, whole)| KnownAttachment::part(&whole, cached)));
    cni::order::sort_by(&mut known, |one, other| one.key.cmp(&other.key));
    AttachmentList { known, wholes, parts: keys }
}

/// Returns the attachments that plugins are asked about: without those that are networks of others.
/// A network's name means the whole to which such a network belongs, too.
#[must_use]
pub fn wholes(
    roots: &Roots,
    known: Vec<KnownAttachment>,
    network: Option<&str>,
) -> Vec<KnownAttachment> {
    let mut parts = Vec::new();
    for whole in &known {
        for record in &whole.records {
            let keys = parts_of(roots, record).into_iter();
            parts.extend(keys.map(|cached| (cached.key(), whole.key.clone())));
        }
    }
    let is_part =
        |key: &AttachmentKey| parts.iter().any(|(part, whole)| part == key && whole != key);
    let is_of = |known: &KnownAttachment, name: &str| {
        let mut own = parts.iter().filter(|(_, whole)| *whole == known.key);
        known.key.network.as_str() == name || own.any(|(part, _)| part.network.as_str() == name)
    };
    let mut known = known;
    known.retain(|known| !is_part(&known.key) && network.is_none_or(|name| is_of(known, name)));
    known
}
