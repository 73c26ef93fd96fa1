//! What a container has lost that nothing compares: its network sets `disableCheck`, its version
//! has no CHECK, or another project's plugin does not look. Only what surely breaks it is judged.

mod of_node;

use std::net::IpAddr;

use net::IpFamily;
use scene::{Attachment, Container, Link, Namespace, Part};

use super::{Rule, containers, ip, is_outbound};
use crate::Look;
use crate::command::within;
use crate::finding::{Finding, WayKind};

pub(super) const RULE: Rule = Rule {
    judges: "interfaces of containers",
    ids: &["inside-differs"],
    inside: &[Part::Links, Part::Routes],
    judge,
    ..Rule::NONE
};

/// The node's side of them.
pub(super) const OF_NODE: Rule = Rule {
    judges: "links and addresses of containers on this node",
    ids: &[of_node::ID],
    needs: &[Part::Links],
    inside: &[Part::Links],
    judge: of_node::judge,
    ..Rule::NONE
};

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for container in containers(look) {
        let Some(inside) = &container.inside else { continue };
        for attachment in &container.attachments {
            // CHECK tells it, and what it says is more exact.
            let is_told = !attachment.drifts.is_empty() || attachment.unfinished.is_some();
            if let Some(link) = inside.link(&attachment.ifname).filter(|_| !is_told) {
                found.extend(of_link(container, attachment, link));
                found.extend(of_routes(look, container, attachment, inside));
            }
        }
    }
    found
}

/// A link without addresses may be down by intent.
fn of_link(container: &Container, attachment: &Attachment, link: &Link) -> Vec<Finding> {
    let of_family = |family: IpFamily| {
        let all = attachment.addresses.iter().filter(|net| !is_of_link_alone(net.addr()));
        all.filter(move |net| IpFamily::of(net.addr()) == family)
    };
    let given = |family: IpFamily| of_family(family).next().is_some();
    let is_there = |family: IpFamily| {
        let mut all = link.addresses.iter().map(|own| own.address.addr());
        all.any(|address| IpFamily::of(address) == family && !is_of_link_alone(address))
    };
    let families = IpFamily::ALL;
    if !link.up && families.into_iter().any(given) {
        let what = format!("{} is down", link.name);
        let fix = format!("ip link set {} up", link.name);
        return vec![told(container, attachment, &what, &fix, None)];
    }
    let lost = families.into_iter().filter(|family| given(*family) && !is_there(*family));
    lost.map(|family| {
        let own: Vec<String> = of_family(family).map(ToString::to_string).collect();
        let all = own.join(", ");
        let what = format!("{} has no {family} address, and ADD gave {all}", link.name);
        let first = own.first().map(String::as_str).unwrap_or_default();
        let fix = format!("ip addr add {first} dev {}", link.name);
        told(container, attachment, &what, &fix, Some(family))
    })
    .collect()
}

/// The kernel makes such an address itself.
fn is_of_link_alone(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// A container without a default route in any table, although the network leads beyond the node, and
/// ADD reported one of this IP version, or the configuration asks for it.
fn of_routes(
    look: Look<'_>,
    container: &Container,
    attachment: &Attachment,
    inside: &Namespace,
) -> Vec<Finding> {
    let network = look.scene.networks.iter().find(|one| one.name == attachment.network);
    let asks = |family: &IpFamily| {
        let asked = network.iter().flat_map(|network| &network.default_routes);
        let mut asked = asked.chain(&attachment.default_routes);
        asked.any(|net| IpFamily::of(net.addr()) == *family)
    };
    let lacks = |family: &IpFamily| {
        let mut routes = inside.routes.iter();
        !routes.any(|route| route.to.prefix_len() == 0 && IpFamily::of(route.to.addr()) == *family)
    };
    let families = IpFamily::ALL.into_iter();
    families
        .filter(|family| asks(family) && is_outbound(look.scene, container, *family))
        .filter(lacks)
        .filter_map(|family| {
            let mut gateways = attachment.gateways.iter();
            let gateway = gateways.find(|gateway| IpFamily::of(**gateway) == family)?;
            let version = ip(family);
            let what = format!("{} has no default route of {family}", container.called());
            let fix = format!("{version} route add default via {gateway}");
            let finding = told(container, attachment, &what, &fix, Some(family));
            let kinds = [WayKind::Outside, WayKind::Names, WayKind::Published];
            let breaks = Vec::new();
            Some(kinds.into_iter().fold(Finding { breaks, ..finding }, |finding, kind| {
                finding.breaks(kind, Some(family))
            }))
        })
        .collect()
}

fn told(
    container: &Container,
    attachment: &Attachment,
    what: &str,
    fix: &str,
    family: Option<IpFamily>,
) -> Finding {
    let Attachment { network, ifname, .. } = attachment;
    let says = format!("{ifname} of {} on {network}: {what}", container.called());
    let object = format!("{network}/{}/{ifname}: {what}", container.id);
    let finding = Finding::error("inside-differs", object, says)
        .seen("CHECK does not report this: it is off, or the plugin does not compare it")
        .hits(container.id.clone())
        .fix(format!("{}{fix}", within(container.netns.as_str())));
    let kinds = [
        WayKind::Gateway,
        WayKind::Outside,
        WayKind::Between,
        WayKind::FromNode,
        WayKind::Published,
        WayKind::PublishedHere,
        WayKind::Names,
    ];
    kinds.into_iter().fold(finding, |finding, kind| finding.breaks(kind, family))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::samples::node;
    use crate::question::Answers;
    use scene::{Drift, Scene};

    fn told(scene: &Scene) -> Vec<String> {
        let answers = Answers::default();
        let found = judge(Look { scene, answers: &answers, only: None, to: None });
        found.into_iter().map(|finding| finding.says).collect()
    }

    fn inside(scene: &mut Scene) -> &mut Namespace {
        scene.containers[0].inside.as_mut().unwrap()
    }

    #[test]
    fn what_no_check_tells_is_told() {
        assert_eq!(told(&node()), [""; 0]);
        let mut scene = node();
        inside(&mut scene).links[1].up = false;
        assert_eq!(told(&scene), ["eth0 of c2 on mynet: eth0 is down"]);
        let drift = Drift {
            plugin: "bridge".to_owned(),
            code: 104,
            what: "interface \"eth0\" is down".to_owned(),
            details: String::new(),
            items: Vec::new(),
        };
        scene.containers[0].attachments[0].drifts = vec![drift];
        assert_eq!(told(&scene), [""; 0]);
        let mut scene = node();
        inside(&mut scene).links[1].addresses.remove(1);
        let says = "eth0 of c2 on mynet: eth0 has no IPv6 address, and ADD gave fd00:88::2/64";
        assert_eq!(told(&scene), [says]);
        // An address of the link alone, which the kernel gives again.
        let address = "fe80::2/64".parse().unwrap();
        scene.containers[0].attachments[0].addresses[1] = address;
        assert_eq!(told(&scene), [""; 0]);
    }

    #[test]
    fn a_default_route_in_any_table_will_do() {
        let mut scene = node();
        scene.networks[0].default_routes = vec!["0.0.0.0/0".parse().unwrap()];
        inside(&mut scene).routes[0].table = 100;
        assert_eq!(told(&scene), [""; 0]);
        // The network asks for none of IPv6.
        inside(&mut scene).routes.retain(|route| route.to.to_string() != "::/0");
        assert_eq!(told(&scene), [""; 0]);
        inside(&mut scene).routes.remove(0);
        assert_eq!(told(&scene), ["eth0 of c2 on mynet: c2 has no default route of IPv4"]);
        // The configuration is gone, and ADD reported it.
        let mut gone = scene.clone();
        gone.networks.clear();
        assert_eq!(told(&gone), [""; 0]);
        gone.containers[0].attachments[0].default_routes = vec!["0.0.0.0/0".parse().unwrap()];
        assert_eq!(told(&gone), ["eth0 of c2 on mynet: c2 has no default route of IPv4"]);
        // Its network leads nowhere by intent.
        scene.networks[0].outbound = false;
        assert_eq!(told(&scene), [""; 0]);
    }
}
