//! A container at the end of a pair that is in no bridge is reached by a route to it alone. Some
//! plugins make one, and their CHECK may not miss it.

use std::net::IpAddr;

use super::super::unanswered;
use super::{ip, knows, text, to_container};
use crate::Look;
use crate::finding::Finding;
use crate::model::{Part, Route};
use crate::path::Site;
use crate::routes::{RouteDecision, look_up};
use crate::whose;

/// The node has no route to a container by the link that leads there.
pub(super) fn missing(look: Look<'_>, site: &Site<'_>) -> Option<Finding> {
    let host = &look.scene.host;
    if !is_routed(look, site) {
        return None;
    }
    let routed = look_up(host, None, site.address, None, Some(0));
    let (where_to, seen) = match routed {
        RouteDecision::Refused { route: Some(route), rule: None }
            if is_wider(route, site.address) =>
        {
            let text = text(route, host);
            (
                format!("route {text} refuses it"),
                format!("the way to {} ends at {text}", site.address),
            )
        }
        // What is lost shows that it is not reached in another way, as by a program of BPF.
        _ if unanswered(look, site.container, site.family()).is_none() => return None,
        RouteDecision::By { link, route, rule: None, .. } if route.to.prefix_len() == 0 => (
            format!("it goes to {}", link.name),
            format!("the way to {} is by route {}", site.address, text(route, host)),
        ),
        RouteDecision::Nowhere => {
            ("it goes nowhere".to_owned(), format!("there is no route to {}", site.address))
        }
        _ => return None,
    };
    let (called, end, address) = (site.container.called(), &site.host_end.name, site.address);
    let says = format!(
        "this node has no route to {called} ({address}) by {end}, so what is for it does not arrive: {where_to}"
    );
    let scope = if address.is_ipv4() { " scope link" } else { "" };
    let finding = Finding::error("no-way-back", format!("{called}: {address}"), says)
        .at("routing table main")
        .seen(seen)
        .fix(format!("{} route add {address} dev {end}{scope}", ip(site.family())));
    let finding = Finding { whose: whose::of_link(site.host_end, look.scene), ..finding };
    Some(to_container(finding, site))
}

/// Says whether only a route of its own leads to a container. What ADD made is told by CHECK.
fn is_routed(look: Look<'_>, site: &Site<'_>) -> bool {
    site.is_routed()
        && site.link.up
        && site.host_end.up
        && site.attachment.drifts.is_empty()
        && !look.scene.lacks(Part::Unjudged, None)
        && !knows(&look.scene.host, site)
}

/// Says whether a route is to more than an address.
fn is_wider(route: &Route, address: IpAddr) -> bool {
    route.to.contains(&address) && route.to.prefix_len() < route.to.max_prefix_len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Hole, Link, RouteKind, Scene};
    use crate::path::samples::{ip as address, node};
    use crate::question::{Answer, Answers, Probe, Question};
    use crate::routes::samples::route;

    /// A node as Calico makes it: a route to each container, by a pair in no bridge.
    fn calico() -> Scene {
        let mut scene = node();
        scene.containers.truncate(1);
        let container = &mut scene.containers[0];
        let own = &mut container.attachments[0];
        own.plugins = vec!["calico".to_owned()];
        own.ports.clear();
        own.addresses = vec!["10.88.0.2/32".parse().unwrap()];
        own.gateways = vec![address("169.254.1.1")];
        own.host_links = vec!["veth2".to_owned()];
        let inside = container.inside.as_mut().unwrap();
        inside.links[1].addresses.retain(|own| own.address.addr().is_ipv4());
        inside.routes =
            vec![route("169.254.1.1/32", 2, None), route("0.0.0.0/0", 2, Some("169.254.1.1"))];
        let host = &mut scene.host;
        host.links.retain(|link| link.name != "cni0" && link.name != "veth3");
        let end: &mut Link = host.links.iter_mut().find(|link| link.name == "veth2").unwrap();
        end.master = None;
        host.routes.retain(|route| route.hops[0].link != Some(3));
        host.routes.push(route("10.88.0.2/32", 12, None));
        scene
    }

    fn told(scene: &Scene, is_lost: bool) -> Vec<Finding> {
        let asked = Probe::Name { server: address("198.51.100.53") };
        let answer = match is_lost {
            true => Answer::Silent { hops: Vec::new() },
            false => Answer::Named { after_us: 1, error: None },
        };
        let question = Question { from: Some("c2".to_owned()), asked };
        let answers = Answers { all: vec![(question, answer)] };
        let look = Look { scene, answers: &answers, only: None, to: None };
        super::super::ROUTES.findings(look)
    }

    const FIX: &str = "ip route add 10.88.0.2 dev veth2 scope link";

    #[test]
    fn a_container_whose_own_route_is_gone() {
        let mut scene = calico();
        assert_eq!(told(&scene, true), []);
        scene.host.routes.retain(|route| route.hops[0].link != Some(12));
        assert_eq!(told(&scene, false), [], "it is reached in another way");
        let found = told(&scene, true);
        assert_eq!((found.len(), found[0].id), (1, "no-way-back"));
        assert_eq!(found[0].object, "c2: 10.88.0.2");
        assert_eq!(found[0].fix, [FIX]);
        // CHECK tells it.
        let mut differs = scene.clone();
        differs.containers[0].attachments[0].drifts.push(crate::model::Drift {
            plugin: "ptp".to_owned(),
            code: 1,
            what: "a route is gone".to_owned(),
            details: String::new(),
            items: Vec::new(),
        });
        assert_eq!(told(&differs, true), []);
        // A program may lead the packets.
        let reason = "a program of BPF, of traffic control sees packets at ingress of veth2";
        let hole = Hole { part: Part::Unjudged, container: None, reason: reason.to_owned() };
        scene.holes.push(hole);
        assert_eq!(told(&scene, true), []);
    }

    /// The node routes what the container sends to a gateway that nobody has.
    #[test]
    fn a_rule_that_refuses_what_such_a_container_sends() {
        use crate::model::{RouteRule, RuleAction};
        use crate::routes::samples::rule;
        let mut scene = calico();
        let refuses =
            RouteRule { iif: Some("veth2".to_owned()), ..rule(90, RuleAction::Unreachable) };
        scene.host.rules =
            vec![rule(0, RuleAction::Table(255)), refuses, rule(32766, RuleAction::Table(254))];
        let found = told(&scene, false);
        assert_eq!((found.len(), found[0].id), (1, "route-refuses"), "{found:?}");
        assert_eq!(found[0].object, "IPv4 rule 90");
    }

    /// Who removed it left the route that refuses the rest of the node's part: that one is sound.
    #[test]
    fn a_route_that_refuses_the_rest_is_not_to_blame() {
        let mut scene = calico();
        let rest = route("10.88.0.0/26", 0, None);
        scene.host.routes.push(Route { kind: RouteKind::Blackhole, hops: Vec::new(), ..rest });
        assert_eq!(told(&scene, true), []);
        scene.host.routes.retain(|route| route.hops.first().is_none_or(|hop| hop.link != Some(12)));
        for is_lost in [true, false] {
            let found = told(&scene, is_lost);
            assert_eq!((found.len(), found[0].id), (1, "no-way-back"), "{found:?}");
            assert_eq!(found[0].fix, [FIX]);
        }
    }
}
