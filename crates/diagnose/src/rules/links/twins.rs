//! Addresses and hardware addresses that two on one bridge have.
//!
//! Each of them answers now and then, so connections work for a while and then hang.

use std::collections::BTreeMap;
use std::net::IpAddr;

use net::IpFamily;

use super::super::containers;
use crate::Look;
use crate::finding::{Finding, WayKind};
use crate::model::{Container, Link};
use crate::path::{Joint, Site, untagged_vlan};

/// A container, or the node, on a bridge.
#[derive(Debug, Clone, Copy)]
struct BridgeMember<'o> {
    /// `None`: the node itself.
    container: Option<&'o Container>,
    link: &'o Link,
}

impl BridgeMember<'_> {
    fn called(self) -> String {
        let name = &self.link.name;
        match self.container {
            Some(container) => format!("{name} of {}", container.called()),
            None => format!("{name} of this node"),
        }
    }
}

/// A bridge by its index, and the VLAN of a port's frames if it distinguishes them: each VLAN has
/// addresses of its own.
type Segment = (u32, Option<u16>);

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut by_mac: BTreeMap<(Segment, String), Vec<BridgeMember<'_>>> = BTreeMap::new();
    let mut by_address: BTreeMap<(Segment, IpAddr), Vec<BridgeMember<'_>>> = BTreeMap::new();
    // A twin that was not asked for is one all the same.
    for container in containers(Look { only: None, ..look }) {
        for family in IpFamily::ALL {
            let sites = Site::every(look.scene, container, family);
            for site in sites.filter(|site| site.joint == Joint::Pair) {
                let Some(bridge) = site.bridge else { continue };
                let vlan = bridge.vlan_filtering.then(|| untagged_vlan(site.host_end)).flatten();
                // A port without one takes only frames with tags.
                if bridge.vlan_filtering && vlan.is_none() {
                    continue;
                }
                let segment = (bridge.index, vlan);
                let one = BridgeMember { container: Some(container), link: site.link };
                if let Some(mac) = &site.link.mac {
                    let key = (segment, mac.to_ascii_lowercase());
                    let is_bridges = vlan.is_none()
                        && bridge.mac.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(mac));
                    let all = by_mac.entry(key).or_default();
                    if is_bridges {
                        note(all, BridgeMember { container: None, link: bridge });
                    }
                    note(all, one);
                }
                if site.link.addresses.iter().any(|own| own.address.addr() == site.address) {
                    note(by_address.entry((segment, site.address)).or_default(), one);
                }
            }
        }
    }
    let is_asked = |all: &[BridgeMember<'_>]| {
        look.only.is_none_or(|only| {
            all.iter().filter_map(|one| one.container).any(|container| container.id == only)
        })
    };
    let mut found = Vec::new();
    for ((_, mac), all) in by_mac.iter().filter(|(_, all)| 1 < all.len() && is_asked(all)) {
        let kinds = [WayKind::Gateway, WayKind::Between, WayKind::FromNode];
        let says = format!("{} have the same hardware address {mac}", names(all));
        let finding = Finding::error("mac-duplicate", mac.clone(), says).advise(
            "attach one of them again, or leave out the hardware address that was given to them",
        );
        found.push(twins(finding, all, &kinds, None));
    }
    for ((_, address), all) in by_address.iter().filter(|(_, all)| 1 < all.len() && is_asked(all)) {
        let family = super::IpFamily::of(*address);
        let kinds = [WayKind::Gateway, WayKind::Between, WayKind::FromNode, WayKind::Published];
        let says = format!("{} have the same address {address}", names(all));
        let finding = Finding::error("address-duplicate", address.to_string(), says)
            .advise("attach one of them again: its addresses come from a pool that knows nothing of the other's");
        found.push(twins(finding, all, &kinds, Some(family)));
    }
    found
}

/// Notes each one once: a link is seen for each IP version, and by several names of one namespace.
fn note<'o>(all: &mut Vec<BridgeMember<'o>>, one: BridgeMember<'o>) {
    let is_same = |known: &BridgeMember<'_>| {
        known.container.map(|container| &container.netns) == one.container.map(|own| &own.netns)
            && known.link.index == one.link.index
    };
    if !all.iter().any(is_same) {
        all.push(one);
    }
}

fn names(all: &[BridgeMember<'_>]) -> String {
    let names: Vec<String> = all.iter().map(|one| one.called()).collect();
    names.join(" and ")
}

fn twins(
    finding: Finding,
    all: &[BridgeMember<'_>],
    kinds: &[WayKind],
    family: Option<IpFamily>,
) -> Finding {
    let hit = all.iter().filter_map(|one| one.container);
    let finding = hit.fold(finding, |finding, container| finding.hits(container.id.clone()));
    kinds.iter().fold(finding, |finding, kind| finding.breaks(*kind, family))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Namespace, Scene};
    use crate::path::samples::node;
    use crate::question::Answers;

    fn told(scene: &Scene, only: Option<&str>) -> Vec<(&'static str, String)> {
        let answers = Answers::default();
        let found = judge(Look { scene, answers: &answers, only, to: None });
        found.into_iter().map(|one| (one.id, one.says)).collect()
    }

    fn eth0(scene: &mut Scene, number: usize) -> &mut Link {
        let inside: &mut Namespace = scene.containers[number].inside.as_mut().unwrap();
        &mut inside.links[1]
    }

    #[test]
    fn two_containers_with_one_hardware_address() {
        let mut scene = node();
        assert_eq!(told(&scene, None), []);
        let mac = eth0(&mut scene, 0).mac.clone().map(|mac| mac.to_uppercase());
        eth0(&mut scene, 1).mac = mac;
        let says = "eth0 of c2 and eth0 of c3 have the same hardware address 02:00:00:00:00:02";
        assert_eq!(told(&scene, None), [("mac-duplicate", says.to_owned())]);
        assert_eq!(told(&scene, Some("c3")).len(), 1);
        assert_eq!(told(&scene, Some("other")), []);
    }

    #[test]
    fn each_vlan_has_hardware_addresses_of_its_own() {
        let answers = Answers::default();
        let ids = |scene: &Scene| -> Vec<&'static str> {
            let look = Look { scene, answers: &answers, only: None, to: None };
            judge(look).into_iter().map(|one| one.id).collect()
        };
        let mut scene = crate::path::samples::with_vlans();
        let mac = eth0(&mut scene, 0).mac.clone();
        eth0(&mut scene, 1).mac = mac;
        assert_eq!(ids(&scene), ["mac-duplicate"]);
        let port = scene.host.links.iter_mut().find(|link| link.name == "veth3").unwrap();
        port.vlans = vec![crate::path::samples::access(8)];
        assert_eq!(ids(&scene), [""; 0]);
    }

    #[test]
    fn a_container_with_the_bridges_hardware_address() {
        let mut scene = node();
        eth0(&mut scene, 0).mac = Some("02:00:00:00:00:01".to_owned());
        let says =
            "cni0 of this node and eth0 of c2 have the same hardware address 02:00:00:00:00:01";
        assert_eq!(told(&scene, None), [("mac-duplicate", says.to_owned())]);
    }

    #[test]
    fn two_containers_with_one_address() {
        let mut scene = node();
        let address = eth0(&mut scene, 0).addresses[0].clone();
        eth0(&mut scene, 1).addresses[0] = address.clone();
        // What ADD gave is what counts, as long as it is there.
        assert_eq!(told(&scene, None), []);
        scene.containers[1].attachments[0].addresses[0] = address.address;
        let says = "eth0 of c2 and eth0 of c3 have the same address 10.88.0.2".to_owned();
        assert_eq!(told(&scene, None), [("address-duplicate", says)]);
    }
}
