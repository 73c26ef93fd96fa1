//! What is marked as ours and belongs to no attachment that anybody knows: records and cache may be
//! lost, and the kernel keeps links and the packet filter's entries all the same.
//!
//! The marks are on the host only. What a plugin made in a container goes with the container.

use std::collections::{BTreeMap, BTreeSet};

use cni::{AttachmentKey, GcAttachment, Version};
use kernel::route::{Link, RouteSocket};
use serde_json::json;
use state::Index;

use crate::interface::bridge;
use crate::shared::failure::Failure;
use crate::shared::owner;

/// The plugins whose marks are on the host: those that change an interface first.
pub const PLUGINS: [&str; 6] = ["portmap", "firewall", "policy", "bandwidth", "ptp", "bridge"];

/// What is marked and not known.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The attachments that links are marked with.
    pub attachments: BTreeSet<AttachmentKey>,
    /// The number of entries of the packet filter of attachments that no link is marked with, for
    /// each network.
    pub entries: BTreeMap<String, usize>,
    /// Bridges that attachments made.
    pub bridges: BTreeSet<String>,
}

impl Marks {
    /// Finds what is marked and belongs to none of these attachments.
    ///
    /// # Errors
    /// Code 100 when the kernel does not answer, 101 when the packet filter does not.
    pub fn find(index: &Index, known: &[AttachmentKey]) -> Result<Self, Failure> {
        let mut found = Marks::default();
        let mut host = RouteSocket::open()?;
        let links = host.links()?;
        found.attachments = cni::order::gather(links.iter().filter_map(owner::of));
        found.attachments.retain(|key| !known.contains(key));
        for link in links.iter().filter(|link| bridge::is_marked(link)) {
            if is_unused(index, &links, link)? {
                found.bridges.insert(link.name.clone());
            }
        }
        let hashes = known.iter().chain(&found.attachments).map(AttachmentKey::hash);
        let hashes: BTreeSet<String> = cni::order::gather(hashes);
        for (hash, network) in firewall::owners()? {
            if !hashes.contains(&hash) {
                *found.entries.entry(network).or_default() += 1;
            }
        }
        Ok(found)
    }

    /// Lists the networks with marks.
    #[must_use]
    pub fn networks(&self) -> BTreeSet<String> {
        let of_links = self.attachments.iter().map(|key| key.network.to_string());
        cni::order::gather(of_links.chain(self.entries.keys().cloned()))
    }

    /// Deletes the bridges that nothing uses, each under its lock: an ADD may be making one.
    ///
    /// # Errors
    /// Code 100 with the kernel's words, 11 when a lock cannot be taken in time.
    pub fn delete_bridges(index: &Index) -> Result<BTreeSet<String>, Failure> {
        let links = RouteSocket::open()?.links()?;
        let mut deleted = BTreeSet::new();
        for link in links.into_iter().filter(bridge::is_marked) {
            if bridge::delete_ownerless(index, &link.name)? {
                deleted.insert(link.name);
            }
        }
        Ok(deleted)
    }
}

/// Says whether neither our own files nor ports of others show that a bridge is used.
fn is_unused(index: &Index, links: &[Link], bridge: &Link) -> Result<bool, Failure> {
    let mut ports = links.iter().filter(|port| port.master == Some(bridge.index));
    let foreign = ports.any(|port| owner::of(port).is_none());
    Ok(!foreign && !bridge::is_known(index, &bridge.name)?)
}

/// Returns the configuration of GC of one plugin in a network of which only these attachments stay.
#[must_use]
pub fn configuration(plugin: &str, network: &str, stay: &[GcAttachment]) -> Vec<u8> {
    let document = json!({
        "cniVersion": Version::CURRENT.as_str(), "name": network, "type": plugin,
        "cni.dev/valid-attachments": stay,
    });
    document.to_string().into_bytes()
}
