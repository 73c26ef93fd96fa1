//! VRFs of the node whose tables do not lead beyond it.

use std::net::IpAddr;

use net::IpFamily;

use super::{Rule, containers, is_outbound};
use crate::Look;
use crate::finding::{Finding, WayKind};
use crate::model::{Link, Part};
use crate::path::{Joint, Site, address_of, vrf_above};
use crate::routes::{RouteDecision, look_up};

pub(super) const RULE: Rule = Rule {
    judges: "tables of VRFs",
    ids: &["vrf-no-route"],
    needs: &[Part::Links, Part::Routes],
    judge,
    ..Rule::NONE
};

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for family in IpFamily::ALL {
        for container in containers(look) {
            if is_outbound(look.scene, container, family) {
                let sites = Site::every(look.scene, container, family);
                found.extend(sites.filter_map(|site| without_route(look, &site)));
            }
        }
    }
    found
}

/// An address that stands for the Internet. Nothing is sent to it.
fn sample(family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => [45_u8, 0, 0, 1].into(),
        IpFamily::V6 => [0x2600_u16, 0, 0, 0, 0, 0, 0, 1].into(),
    }
}

/// The table of a container's VRF has no way out, although a link of the VRF is on a network.
fn without_route(look: Look<'_>, site: &Site<'_>) -> Option<Finding> {
    let host = &look.scene.host;
    let (vrf, family) = (site.vrf.filter(|_| site.joint == Joint::Pair)?, site.family());
    let table = vrf.vrf_table?;
    // An administrator who gave it routes by gateways and no default route did so on purpose.
    let has_gateways = host.routes.iter().any(|route| {
        route.table == table
            && IpFamily::of(route.to.addr()) == family
            && route.hops.iter().any(|hop| hop.via.is_some())
    });
    let uplink = uplink(look, vrf, site).filter(|_| !has_gateways)?;
    let to = sample(family);
    let iif = Some(site.seen_by.name.as_str());
    let leaks = match look_up(host, Some(site.address), to, iif, Some(0)) {
        RouteDecision::Nowhere | RouteDecision::Refused { .. } => None,
        RouteDecision::By { link, .. }
            if vrf_above(host, link).is_none_or(|own| own.index != vrf.index) =>
        {
            let back = look_up(host, Some(to), site.address, Some(&link.name), Some(0));
            if matches!(back, RouteDecision::By { link, .. } if link.index == site.seen_by.index) {
                return None;
            }
            Some(link)
        }
        _ => return None,
    };
    let (name, network) = (&vrf.name, &site.attachment.network);
    let says = format!(
        "table {table} of VRF {name} has no default route for {family}, so containers of {network} do not reach beyond this node"
    );
    let ip = super::ip(family);
    let object = format!("table {table} of {name} {family}");
    let finding = Finding::error("vrf-no-route", object, says)
        .at(format!("{ip} route show vrf {name}"))
        .seen(format!("{} of {name} has an address, but there is no default route", uplink.name))
        .hits(site.container.id.clone())
        .advise(format!(
            "give the table its default route: {ip} route add default via GATEWAY dev {} table {table}",
            uplink.name
        ))
        .breaks(WayKind::Outside, Some(family))
        .breaks(WayKind::Names, Some(family))
        .breaks(WayKind::Published, Some(family));
    Some(match leaks {
        Some(link) => finding.seen(format!(
            "packets leave by {}, which is not in {name}, so answers do not find the way back",
            link.name
        )),
        None => finding,
    })
}

/// A link of the VRF by which it could reach others.
fn uplink<'s>(look: Look<'s>, vrf: &Link, site: &Site<'_>) -> Option<&'s Link> {
    let attachments = look.scene.containers.iter().flat_map(|one| &one.attachments);
    let of_containers: Vec<&String> = attachments.flat_map(|one| &one.host_links).collect();
    look.scene.host.links.iter().find(|link| {
        link.master == Some(vrf.index)
            && link.index != site.seen_by.index
            && !of_containers.contains(&&link.name)
            && address_of(link, site.family() == IpFamily::V4).is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Scene;
    use crate::path::samples::in_vrf;
    use crate::question::Answers;

    fn found(scene: &Scene) -> Vec<String> {
        let answers = Answers::default();
        let look = Look { scene, answers: &answers, only: None, to: None };
        judge(look).into_iter().map(|one| format!("{} {}", one.object, one.hits[0])).collect()
    }

    fn without(mut scene: Scene, is_gone: impl Fn(&crate::model::Route) -> bool) -> Scene {
        scene.host.routes.retain(|route| !is_gone(route));
        scene
    }

    #[test]
    fn a_vrf_without_a_default_route_is_named() {
        let sound = in_vrf(true);
        assert_eq!(found(&sound), [""; 0]);
        let is_v4 = |route: &crate::model::Route| route.to.addr().is_ipv4();
        let gone = without(sound.clone(), |route| route.to.prefix_len() == 0 && is_v4(route));
        assert_eq!(found(&gone), ["table 10 of blue IPv4 c2", "table 10 of blue IPv4 c3"]);
        // Its networks are reached by gateways, and nothing else is meant to be.
        let mut some = gone;
        let table = 10;
        let route = crate::routes::samples::route("10.0.0.0/8", 2, Some("192.0.2.1"));
        some.host.routes.push(crate::model::Route { table, ..route });
        assert_eq!(found(&some), [""; 0]);
    }

    #[test]
    fn a_vrf_of_containers_alone_leads_nowhere_on_purpose() {
        assert_eq!(found(&in_vrf(false)), [""; 0]);
    }
}
