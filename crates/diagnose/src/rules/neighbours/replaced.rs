//! The default route that ADD made for a container, and another one that has taken its place, as a DHCP
//! client or a person made it.

use std::net::IpAddr;

use net::IpFamily;

use super::super::ip;
use super::routers::RouteTarget;
use crate::Look;
use crate::command::within;
use crate::finding::Help;
use crate::model::Attachment;
use crate::routes::TABLE_MAIN;

/// The default route that ADD made by another gateway than the one to which a route leads.
pub(super) struct MadeDefault<'l> {
    pub(super) attachment: &'l Attachment,
    pub(super) gateway: IpAddr,
}

/// Finds it, if a route takes its place: another default route, or half of all addresses.
pub(super) fn made<'l>(look: Look<'l>, given: &RouteTarget<'l>) -> Option<MadeDefault<'l>> {
    let family = IpFamily::of(given.via);
    let inside = given.container.inside.as_ref()?;
    let asks = |attachment: &&Attachment| {
        let mut networks = look.scene.networks.iter();
        let network = networks.find(|network| network.name == attachment.network);
        let mut asked = network.iter().flat_map(|network| &network.default_routes);
        asked.any(|net| IpFamily::of(net.addr()) == family)
            && inside.link(&attachment.ifname).is_some()
    };
    let mut all = given.container.attachments.iter().filter(asks);
    let takes_its_place = given.route.to.prefix_len() <= 1;
    all.find_map(|attachment| {
        let mut gateways = attachment.gateways.iter().copied();
        let gateway = gateways.find(|gateway| IpFamily::of(*gateway) == family)?;
        (takes_its_place && gateway != given.via).then_some(MadeDefault { attachment, gateway })
    })
}

impl MadeDefault<'_> {
    /// The command that brings it back in the place of another default route.
    pub(super) fn instead_of(&self, other: &RouteTarget<'_>) -> Help {
        let MadeDefault { attachment, gateway } = self;
        let RouteTarget { container, link, route, via, .. } = other;
        let inside = container.inside.iter().flat_map(|inside| &inside.routes);
        let is_left = inside
            .filter(|one| one.table == TABLE_MAIN && one.to == route.to)
            .any(|one| one.hops.iter().any(|hop| hop.via == Some(*gateway)));
        let ip = ip(IpFamily::of(*via));
        let tool = format!("{}{ip}", within(container.netns.as_str()));
        let metric = match route.metric {
            0 => String::new(),
            metric => format!(" metric {metric}"),
        };
        let ifname = &attachment.ifname;
        match is_left {
            _ if route.table != TABLE_MAIN => Help::Advice(format!(
                "remove that route from table {}, or lead it by {gateway} on {ifname}",
                route.table
            )),
            true => Help::Command(format!("{tool} route del default via {via} dev {link}{metric}")),
            false => Help::Command(format!(
                "{tool} route replace default via {gateway} dev {ifname}{metric}"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::routers::{asks, judge};
    use super::*;
    use crate::model::{MacvlanMode, Scene};
    use crate::path::samples::{ip, node};
    use crate::question::{Answer, Answers, Probe, Question};
    use crate::routes::samples::{link, route};

    const DEAD: &str = "192.0.2.250";

    /// A container with a second network, on the uplink.
    fn attached_twice() -> Scene {
        let mut scene = node();
        scene.containers.truncate(1);
        scene.networks[0].default_routes = vec!["0.0.0.0/0".parse().unwrap()];
        let first = &mut scene.containers[0];
        let mut second = first.attachments[0].clone();
        second.network = "san".to_owned();
        second.ifname = "net1".to_owned();
        second.plugins = vec!["macvlan".to_owned()];
        second.addresses = vec!["192.0.2.77/24".parse().unwrap()];
        second.gateways.clear();
        second.host_links.clear();
        second.ports.clear();
        first.attachments.push(second);
        let inside = first.inside.as_mut().unwrap();
        let net1 = link(3, "net1", &["192.0.2.77/24"]);
        inside.links.push(crate::model::Link {
            kind: Some("macvlan".to_owned()),
            mac: Some("02:00:00:00:00:77".to_owned()),
            macvlan: Some(MacvlanMode::Bridge),
            peer: Some(2),
            peer_netnsid: Some(0),
            ..net1
        });
        scene
    }

    fn told(scene: &Scene, macs: &[&str]) -> Vec<(String, String)> {
        let asked = Probe::WhoHas { address: ip(DEAD), link: "net1".to_owned() };
        let question = Question { from: Some("c2".to_owned()), asked };
        let nothing = Answers::default();
        let look = Look { scene, answers: &nothing, only: None, to: None };
        if !asks(look).contains(&question) {
            return Vec::new();
        }
        let macs = macs.iter().map(|mac| (*mac).to_owned()).collect();
        let answers = Answers { all: vec![(question, Answer::Owners { macs })] };
        let found = judge(Look { scene, answers: &answers, only: None, to: None });
        let help = |one: crate::Finding| [one.fix, one.advice].concat().join("; ");
        found.into_iter().map(|one| (one.says.clone(), help(one))).collect()
    }

    #[test]
    fn a_dead_default_route_in_the_place_of_the_one_that_add_made() {
        let mut scene = attached_twice();
        assert_eq!(told(&scene, &[]), []);
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.routes[0] = route("0.0.0.0/0", 3, Some(DEAD));
        let says = "c2 sends packets for default to 192.0.2.250, for which no machine on net1 answers; \
                    ADD gave it 10.88.0.1 on eth0 for that";
        let netns = "nsenter --net=/run/netns/c2 ip route";
        let fix = format!("{netns} replace default via 10.88.0.1 dev eth0");
        assert_eq!(told(&scene, &[]), [(says.to_owned(), fix)]);
        assert_eq!(told(&scene, &["02:00:00:00:00:fa"]), []);
        // Beside the one that ADD made.
        let inside = scene.containers[0].inside.as_mut().unwrap();
        let own = crate::model::Route { metric: 100, ..route("0.0.0.0/0", 2, Some("10.88.0.1")) };
        inside.routes.push(own);
        let fix = format!("{netns} del default via 192.0.2.250 dev net1");
        assert_eq!(told(&scene, &[])[0].1, fix);
        // A network that asks for no default route has not lost one.
        scene.networks[0].default_routes.clear();
        let advice = "look at 192.0.2.250, and at what is behind net1 of c2";
        assert_eq!(told(&scene, &[])[0].1, advice);
    }
}
