//! Bridges that distinguish VLANs. A container's frames have no tag: they belong to the VLAN of such
//! frames of its port (PVID), and reach the links of the bridge that have this VLAN.

use super::StopCause;
use super::steps::{Halt, Tracer};
use crate::model::{Link, Part};

/// Returns the VLAN of a link's frames without a tag.
pub(crate) fn untagged(port: &Link) -> Option<u16> {
    port.vlans.iter().find(|vlan| vlan.pvid).map(|vlan| vlan.first)
}

/// Says whether a link has a VLAN, and if so, whether its frames leave without a tag.
pub(crate) fn has(port: &Link, vlan: u16) -> Option<bool> {
    port.vlans.iter().find(|own| own.contains(vlan)).map(|own| own.untagged)
}

impl<'s> Tracer<'s> {
    /// Returns the tag that a frame has as it leaves a bridge by a port, which does not lead to a
    /// container. `tag` is the one that it comes with.
    pub(super) fn retagged(
        &mut self,
        bridge: &Link,
        [from, to]: [&'s Link; 2],
        tag: Option<u16>,
    ) -> Result<Option<u16>, Halt<'s>> {
        if !bridge.vlan_filtering {
            return Ok(tag);
        }
        if self.scene.lacks(Part::Links, None) || (from.vlans.is_empty() && to.vlans.is_empty()) {
            self.unsure = true;
            return Ok(tag);
        }
        let Some(vlan) = tag.or(untagged(from)) else {
            return self.stop(StopCause::Vlan { port: from, vlan: None });
        };
        if has(from, vlan).is_none() {
            return self.stop(StopCause::Vlan { port: from, vlan: Some(vlan) });
        }
        match has(to, vlan) {
            None => self.stop(StopCause::Vlan { port: to, vlan: Some(vlan) }),
            Some(true) => Ok(None),
            Some(false) => Ok(Some(vlan)),
        }
    }

    /// Says whether a bridge takes a frame from one of its links to another one; the bridge itself
    /// stands for the node. `seen_by` is the link by which the node's IP takes part: if that is a
    /// VLAN of the bridge, the frames have its tag.
    pub(super) fn tagged(
        &mut self,
        bridge: &'s Link,
        [from, to]: [&'s Link; 2],
        seen_by: &'s Link,
    ) -> Result<(), Halt<'s>> {
        if !bridge.vlan_filtering {
            return Ok(());
        }
        // In a scene of an older program they are missing.
        if self.scene.lacks(Part::Links, None) || (from.vlans.is_empty() && to.vlans.is_empty()) {
            self.unsure = true;
            return Ok(());
        }
        let tag = seen_by.vlan.filter(|_| seen_by.peer == Some(bridge.index));
        let is_node = |link: &Link| link.index == bridge.index;
        let vlan = if is_node(from) { tag.or(untagged(from)) } else { untagged(from) };
        let Some(vlan) = vlan else { return self.stop(StopCause::Vlan { port: from, vlan: None }) };
        // What the node tags must be in that VLAN there as well.
        let starts_in = !is_node(from) || tag.is_none() || has(from, vlan).is_some();
        if !starts_in {
            return self.stop(StopCause::Vlan { port: from, vlan: Some(vlan) });
        }
        if let Some(tag) = tag.filter(|tag| is_node(to) && *tag != vlan) {
            return self.stop(StopCause::Vlan { port: from, vlan: Some(tag) });
        }
        match has(to, vlan) {
            None => self.stop(StopCause::Vlan { port: to, vlan: Some(vlan) }),
            Some(is_untagged) => {
                // A tag that is left may be meant.
                let keeps_tag = tag.is_some() && is_node(to);
                self.unsure |= is_untagged == keeps_tag;
                Ok(())
            }
        }
    }
}
