//! Links and addresses of the node that serve another purpose: an uplink that is a port, and an
//! address of a container that the node itself has.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use net::IpFamily;

use super::super::containers;
use super::default_families;
use crate::Look;
use crate::finding::{Finding, WayKind};
use crate::model::Link;
use crate::path::Site;
use crate::whose;

/// A default route leads by a link that is a port. What comes in by it goes to the link above (linux
/// net/core/dev.c, `rx_handler`). A bridge that is up gives the node what is for it: the address is the
/// node's, whatever link has it. So that may go well, and is a warning; one that is down drops it.
pub(super) fn ports(look: Look<'_>) -> Vec<Finding> {
    let host = &look.scene.host;
    let mut found = Vec::new();
    for link in &host.links {
        let above = link.master.and_then(|index| host.link_of(index));
        let Some(above) = above.filter(|above| takes_frames(above)) else { continue };
        let families = default_families(host, link.index);
        if families.is_empty() {
            continue;
        }
        let (name, master) = (&link.name, &above.name);
        let says = format!(
            "{name}, by which the default route leads, is a port of {master}, which takes all that comes in by it"
        );
        let may_go_well = above.up && above.kind.as_deref() == Some("bridge");
        let begin = if may_go_well { Finding::warning } else { Finding::error };
        let mut finding = begin("uplink-enslaved", name.clone(), says)
            .at(format!("link {name}, master {master}"))
            .fix(format!("ip link set {name} nomaster"));
        let broken = families.into_iter().filter(|_| !may_go_well);
        for family in broken {
            finding = finding
                .breaks(WayKind::Outside, Some(family))
                .breaks(WayKind::Names, Some(family))
                .breaks(WayKind::Published, Some(family));
        }
        found.push(Finding {
            whose: whose::of_link(above, look.scene),
            hits: containers(look).map(|container| container.id.clone()).collect(),
            ..finding
        });
    }
    found
}

/// Says whether a link gets all that its ports receive. A VRF leaves it to them.
fn takes_frames(above: &Link) -> bool {
    matches!(above.kind.as_deref(), Some("bridge" | "bond" | "team" | "openvswitch"))
}

/// The node has the address of a container, on the link that leads to it or as a single address.
/// What is for the container stays on the node. A whole subnet that is the node's is told as that.
pub(super) fn addresses(look: Look<'_>) -> Vec<Finding> {
    // A node may have very many containers, and few addresses.
    let mut of_node: BTreeMap<IpAddr, (&Link, IpNet)> = BTreeMap::new();
    for link in &look.scene.host.links {
        of_node.extend(link.addresses.iter().map(|own| (own.address.addr(), (link, own.address))));
    }
    let mut found = Vec::new();
    for container in containers(look) {
        let mut given = container.attachments.iter().flat_map(|one| &one.addresses);
        if !given.any(|net| of_node.contains_key(&net.addr())) {
            continue;
        }
        for family in IpFamily::ALL {
            for site in Site::all(look.scene, container, family) {
                let address = site.address;
                let Some((owner, own)) = of_node.get(&address) else { continue };
                let is_single = own.prefix_len() == own.max_prefix_len();
                if !is_single && owner.index != site.seen_by.index {
                    continue;
                }
                let (called, name) = (container.called(), &owner.name);
                let says = format!(
                    "this node has {address} on {name}, which is the address of {called}, and keeps what is for it"
                );
                let finding = Finding::error("address-duplicate", address.to_string(), says)
                    .at(format!("{own} on {name}"))
                    .hits(container.id.clone())
                    .fix(format!("ip addr del {own} dev {name}"));
                let kinds = [
                    WayKind::Gateway,
                    WayKind::Outside,
                    WayKind::Names,
                    WayKind::FromNode,
                    WayKind::Published,
                    WayKind::PublishedHere,
                ];
                let finding = kinds
                    .into_iter()
                    .fold(finding, |finding, kind| finding.breaks(kind, Some(family)));
                found.push(finding);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::model::{Address, Scene};
    use crate::path::samples::node;
    use crate::question::Answers;
    use crate::routes::samples::link;

    fn told(scene: &Scene, judge: fn(Look<'_>) -> Vec<Finding>) -> Vec<(String, String)> {
        let answers = Answers::default();
        let found = judge(Look { scene, answers: &answers, only: None, to: None });
        found.into_iter().map(|one| (one.object, one.fix.join("; "))).collect()
    }

    fn named<'s>(scene: &'s mut Scene, name: &str) -> &'s mut Link {
        scene.host.links.iter_mut().find(|link| link.name == name).unwrap()
    }

    #[test]
    fn an_uplink_that_became_a_port() {
        let mut scene = node();
        assert_eq!(told(&scene, ports), []);
        let above = Link { kind: Some("bridge".to_owned()), ..link(40, "br9", &[]) };
        scene.host.links.push(above);
        named(&mut scene, "up0").master = Some(40);
        let fix = "ip link set up0 nomaster".to_owned();
        assert_eq!(told(&scene, ports), [("up0".to_owned(), fix)]);
        let severity = |scene: &Scene| {
            let answers = Answers::default();
            ports(Look { scene, answers: &answers, only: None, to: None })[0].severity
        };
        for (up, expected) in [(true, Severity::Warning), (false, Severity::Error)] {
            named(&mut scene, "br9").up = up;
            assert_eq!(severity(&scene), expected);
        }
        named(&mut scene, "br9").kind = Some("vrf".to_owned());
        assert_eq!(told(&scene, ports), []);
    }

    #[test]
    fn an_address_that_the_node_has_too() {
        let give = |scene: &mut Scene, name: &str, address: &str| {
            let address = address.parse().unwrap();
            let address = Address { address, duplicate: false, tentative: false };
            named(scene, name).addresses.push(address);
        };
        assert_eq!(told(&node(), addresses), []);
        for (name, address) in [("cni0", "10.88.0.2/24"), ("lo", "10.88.0.2/32")] {
            let mut scene = node();
            give(&mut scene, name, address);
            let fix = format!("ip addr del {address} dev {name}");
            assert_eq!(told(&scene, addresses), [("10.88.0.2".to_owned(), fix)]);
        }
        // The uplink's subnet is the container's.
        let mut scene = node();
        give(&mut scene, "up0", "10.88.0.2/24");
        assert_eq!(told(&scene, addresses), []);
    }
}
