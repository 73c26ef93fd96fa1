//! Routes of a container that lead what it sends elsewhere: to another network than the one that leads
//! beyond the node, or to its own link for an address that is not there. A probe that was lost, and
//! that the node itself gets answered, shows it.

use std::net::{IpAddr, SocketAddr};

use net::IpFamily;

use super::obstacles::{near_inside, past, subnet_of};
use super::taken::taken;
use super::{ip, obstacles, text};
use crate::Look;
use crate::command::within;
use crate::finding::{Finding, Help, WayKind};
use crate::model::{Attachment, Container, Link, Namespace, Route, Transport};
use crate::path::{Joint, Site};
use crate::question::{Answer, NAMES, Probe, Question};
use crate::routes::{RouteDecision, look_up};
use crate::rules::containers;

/// The finding of a container's route.
pub(super) const ID: &str = "inside-diverts";

/// The node asks the servers of names that a container takes for machines on its link.
pub(super) fn asks(look: Look<'_>) -> Vec<Question> {
    let mut all = Vec::new();
    for container in containers(look) {
        let Some(inside) = &container.inside else { continue };
        let mut servers: Vec<IpAddr> = container.nameservers.iter().flatten().copied().collect();
        servers.retain(|server| elsewhere(look, container, inside, *server).is_some());
        for server in servers {
            let to = SocketAddr::new(server, NAMES);
            all.extend(obstacles::asks(look, container, to));
            all.push(Question { from: None, asked: Probe::name(container, server) });
        }
    }
    all
}

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for container in containers(look) {
        for (asked, answer) in look.answers.from(Some(&container.id)) {
            if answer.is_lost() && is_answered(look, asked) {
                found.extend(of_probe(look, container, asked));
            }
        }
    }
    found
}

/// Says whether the node itself gets an answer to the same question.
fn is_answered(look: Look<'_>, asked: &Probe) -> bool {
    let own = look.answers.to(&Question { from: None, asked: asked.clone() });
    own.is_some_and(Answer::is_of_other_end)
}

fn of_probe(look: Look<'_>, container: &Container, asked: &Probe) -> Option<Finding> {
    let to = asked.destination()?;
    let (at, by) = asked.program().unwrap_or((SocketAddr::new(to, 0), Transport::Tcp));
    let inside = container.inside.as_ref()?;
    on_link(look, container, inside, to).or_else(|| by_other(look, container, inside, at, by))
}

fn finding_of(container: &Container, inside: &Namespace, route: &Route, says: String) -> Finding {
    let family = Some(IpFamily::of(route.to.addr()));
    let route = text(route, inside);
    let finding = Finding::error(ID, format!("{}: {route}", container.id), says)
        .at(format!("in {} route {route}", container.called()))
        .hits(container.id.clone());
    finding.breaks(WayKind::Outside, family).breaks(WayKind::Names, family)
}

/// Returns where a container looks for an address on its link, its route, and the link by which the
/// node reaches the address instead.
fn elsewhere<'l>(
    look: Look<'l>,
    container: &'l Container,
    inside: &'l Namespace,
    to: IpAddr,
) -> Option<(Site<'l>, &'l Route, &'l Link)> {
    let (link, route) = near_inside(inside, to)?;
    let mut sites = Site::every(look.scene, container, IpFamily::of(to));
    let site = sites.find(|site| site.link.index == link.index)?;
    let routed = look_up(&look.scene.host, None, to, None, Some(0));
    let RouteDecision::By { link: out, .. } = routed else { return None };
    let near = match site.joint {
        Joint::Pair => site.seen_by,
        _ => site.host_end,
    };
    (out.index != near.index).then_some((site, route, out))
}

/// An address that the container takes for a machine on its link, and that the node reaches by another
/// link.
fn on_link(
    look: Look<'_>,
    container: &Container,
    inside: &Namespace,
    to: IpAddr,
) -> Option<Finding> {
    let (site, route, out) = elsewhere(look, container, inside, to)?;
    let link = site.link;
    let asked = Question::who_has(Some(container), &link.name, to);
    if look.answers.to(&asked).and_then(Answer::has_owner) == Some(true) {
        return None;
    }
    let (called, name) = (container.called(), &link.name);
    let says = format!(
        "{called} takes {to} for a machine on {name}, and this node reaches it by {}",
        out.name
    );
    let route_text = text(route, inside);
    let help = match subnet_of(link, to) {
        Some(_) => {
            let past =
                past(look, Some(container), to, route.table).map(|command| format!(" ({command})"));
            format!(
                "give network {} another subnet, or {called} a route of its own to {to}{}",
                site.attachment.network,
                past.unwrap_or_default()
            )
        }
        None => format!(
            "remove the route, if network {} does not ask for it: {}",
            site.attachment.network,
            removal(container, route, &route_text)
        ),
    };
    Some(
        finding_of(container, inside, route, says)
            .seen(format!(
                "route {route_text} covers {to}, so {called} asks no router for it; {to} answers this node, and not {called}"
            ))
            .advise(help),
    )
}

/// The command that removes a route of a container, which is written so.
fn removal(container: &Container, route: &Route, written: &str) -> String {
    let version = ip(IpFamily::of(route.to.addr()));
    format!("{}{version} route del {written}", within(container.netns.as_str()))
}

/// What a container sends by one network, although another one of its networks has a route there and
/// leads beyond the node.
fn by_other(
    look: Look<'_>,
    container: &Container,
    inside: &Namespace,
    to: SocketAddr,
    by: Transport,
) -> Option<Finding> {
    let RouteDecision::By { link, route, .. } = look_up(inside, None, to.ip(), None, Some(0))
    else {
        return None;
    };
    let attachment = container.attachments.iter().find(|one| one.ifname == link.name)?;
    let without = without(container, route)?;
    let others = without.inside.as_ref()?;
    let RouteDecision::By { link: other, route: next, .. } =
        look_up(others, None, to.ip(), None, Some(0))
    else {
        return None;
    };
    let is_translated =
        |one: &Container| taken(look, one, to, by).is_some_and(|way| way.is_translated());
    if other.index == link.index || is_translated(container) || !is_translated(&without) {
        return None;
    }
    let (called, ifname, network) = (container.called(), &attachment.ifname, &attachment.network);
    let is_meant = is_asked_for(look, attachment, route);
    let says = format!(
        "{called} sends what is for {} by {ifname} (network {network}), which leads no packets of it beyond this node",
        to.ip()
    );
    let (gone, stays) = (text(route, inside), text(next, others));
    let finding = finding_of(container, inside, route, says).seen(format!(
        "without route {gone} it would go by {} (route {stays}), where this node translates its source",
        other.name
    ));
    let remove = removal(container, route, &gone);
    Some(finding.help(match is_meant {
        false => Help::Command(remove),
        true => Help::Advice(format!(
            "let network {network} translate what {called} sends (ipMasq), or let its configuration ask for no such route; until then: {remove}"
        )),
    }))
}

/// The container without a route; `None` if its routes are not known.
fn without(container: &Container, route: &Route) -> Option<Container> {
    let mut without = container.clone();
    without.inside.as_mut()?.routes.retain(|one| one != route);
    Some(without)
}

/// Says whether the configuration of a network may ask for a route: of routes other than default ones
/// that is not known.
fn is_asked_for(look: Look<'_>, attachment: &Attachment, route: &Route) -> bool {
    let network = look.scene.networks.iter().find(|one| one.name == attachment.network);
    let Some(network) = network.filter(|_| route.to.prefix_len() == 0) else { return true };
    network
        .default_routes
        .iter()
        .any(|net| IpFamily::of(net.addr()) == IpFamily::of(route.to.addr()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Network, Scene};
    use crate::path::samples::{ip as address, node};
    use crate::question::Answers;
    use crate::routes::samples::{link, route as route_of};

    const SERVER: &str = "198.51.100.1:80";

    fn found(scene: &Scene, to: &str, of_node: Answer, who: Option<bool>) -> Vec<Finding> {
        let to: SocketAddr = to.parse().unwrap();
        let asked = Probe::Connect { to };
        let of =
            |from: Option<&str>| Question { from: from.map(str::to_owned), asked: asked.clone() };
        let mut all =
            vec![(of(Some("c2")), Answer::Silent { hops: Vec::new() }), (of(None), of_node)];
        all.extend(who.map(|is_there| {
            let macs = is_there.then(|| "02:00:00:00:00:99".to_owned());
            let question = Question::who_has(Some(&scene.containers[0]), "eth0", to.ip());
            (question, Answer::Owners { macs: macs.into_iter().collect() })
        }));
        let answers = Answers { all };
        judge(Look { scene, answers: &answers, only: None, to: Some(to) })
    }

    fn reached() -> Answer {
        Answer::Reached { after_us: 1 }
    }

    /// A second network that leads nowhere, with a default route that is preferred.
    fn with_internal() -> Scene {
        let mut scene = node();
        scene.host.links.push(link(30, "br1", &["10.23.0.1/24"]));
        scene.host.links.push(crate::model::Link {
            kind: Some("veth".to_owned()),
            peer: Some(3),
            peer_netnsid: Some(1),
            master: Some(30),
            ..link(31, "veth31", &[])
        });
        scene.host.links.iter_mut().filter(|link| link.index == 30).for_each(|link| {
            link.kind = Some("bridge".to_owned());
        });
        scene.host.routes.push(route_of("10.23.0.0/24", 30, None));
        scene.networks.push(Network { name: "intern".to_owned(), ..Network::default() });
        let container = &mut scene.containers[0];
        container.attachments.push(Attachment {
            network: "intern".to_owned(),
            ifname: "eth1".to_owned(),
            plugins: vec!["bridge".to_owned()],
            addresses: vec!["10.23.0.2/24".parse().unwrap()],
            gateways: vec![address("10.23.0.1")],
            host_links: vec!["br1".to_owned(), "veth31".to_owned()],
            ..Attachment::default()
        });
        let inside = container.inside.as_mut().unwrap();
        inside.links.push(crate::model::Link {
            kind: Some("veth".to_owned()),
            peer: Some(31),
            peer_netnsid: Some(0),
            ..link(3, "eth1", &["10.23.0.2/24"])
        });
        for route in inside.routes.iter_mut().filter(|route| route.to.prefix_len() == 0) {
            route.metric = 100;
        }
        let mut preferred = route_of("0.0.0.0/0", 3, Some("10.23.0.1"));
        preferred.metric = 50;
        inside.routes.push(route_of("10.23.0.0/24", 3, None));
        inside.routes.push(preferred);
        scene
    }

    #[test]
    fn a_default_route_by_a_network_that_leads_nowhere() {
        let scene = with_internal();
        let all = found(&scene, SERVER, reached(), None);
        assert_eq!(all.len(), 1, "{all:#?}");
        assert_eq!(all[0].object, "c2: default via 10.23.0.1 dev eth1 metric 50");
        let fix =
            "nsenter --net=/run/netns/c2 ip route del default via 10.23.0.1 dev eth1 metric 50";
        assert_eq!(all[0].fix, [fix]);
        // The node is not answered either.
        let silent = Answer::Silent { hops: Vec::new() };
        assert_eq!(found(&scene, SERVER, silent, None), []);
        assert_eq!(found(&node(), SERVER, reached(), None), []);
        // The configuration asks for the route.
        let mut meant = with_internal();
        meant.networks[1].default_routes = vec!["0.0.0.0/0".parse().unwrap()];
        let all = found(&meant, SERVER, reached(), None);
        assert_eq!((all[0].fix.len(), all[0].advice.len()), (0, 1));
    }

    #[test]
    fn an_address_in_the_containers_subnet_that_is_elsewhere() {
        let mut scene = node();
        scene.host.routes.push(route_of("10.88.0.200/32", 2, Some("192.0.2.1")));
        let to = "10.88.0.200:80";
        let all = found(&scene, to, reached(), Some(false));
        let says = "c2 takes 10.88.0.200 for a machine on eth0, and this node reaches it by up0";
        assert_eq!(all[0].says, says);
        assert!(all[0].advice[0].contains("give network mynet another subnet"), "{all:#?}");
        // It is on the container's link all the same.
        assert_eq!(found(&scene, to, reached(), Some(true)), []);
        // The node, too, has it on the containers' bridge.
        assert_eq!(found(&node(), to, reached(), Some(false)), []);
    }
}
