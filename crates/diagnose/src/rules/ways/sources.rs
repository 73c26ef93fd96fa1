//! A container with several networks, whose answers from the address on one of them leave by another
//! one, where the node drops them.
//!
//! That is so of most containers with several networks, and no fault while only hosts on the link ask
//! at the further address. It is one if the container has a routing table for that address, and no
//! routing rule leads the address there.

use std::net::IpAddr;

use ipnet::IpNet;
use net::IpFamily;

use super::samples;
use crate::Look;
use crate::command::within;
use crate::finding::{Finding, Severity};
use crate::model::{
    Attachment, Container, ItemKind, Link, Namespace, RouteRule, RuleAction, Transport,
};
use crate::path::Site;
use crate::routes::{RouteDecision, TABLE_DEFAULT, TABLE_LOCAL, TABLE_MAIN, look_up};
use crate::rules::containers;

/// A reverse path filter that asks for the link by which an answer would go (linux
/// Documentation/networking/ip-sysctl.rst).
const STRICT: i64 = 1;

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for container in containers(look).filter(|container| 1 < container.attachments.len()) {
        let Some(inside) = &container.inside else { continue };
        for attachment in container.attachments.iter().filter(|one| !tells_rules(one)) {
            let of_v4 = attachment.addresses.iter().map(IpNet::addr).filter(IpAddr::is_ipv4);
            let told = |address| astray(look, container, inside, attachment, address);
            found.extend(of_v4.filter_map(told));
        }
    }
    found
}

/// Says whether CHECK tells that a routing rule is missing.
fn tells_rules(attachment: &Attachment) -> bool {
    let mut items = attachment.drifts.iter().flat_map(|drift| &drift.items);
    items.any(|item| item.kind == ItemKind::PolicyRoute)
}

fn astray(
    look: Look<'_>,
    container: &Container,
    inside: &Namespace,
    attachment: &Attachment,
    address: IpAddr,
) -> Option<Finding> {
    let link = inside.link(&attachment.ifname)?;
    if !link.addresses.iter().any(|own| own.address.addr() == address) {
        return None;
    }
    let table = table_of(inside, link)?;
    let [client, ..] = samples(IpFamily::V4);
    let RouteDecision::By { link: out, .. } = look_up(inside, Some(address), client, None, Some(0))
    else {
        return None;
    };
    if out.index == link.index {
        return None;
    }
    let other = container.attachments.iter().find(|one| one.ifname == out.name)?;
    let site = Site::of(look.scene, container, other, IpFamily::V4)?;
    let why = dropped(&look.scene.host, &site, address, client)?;
    let called = container.called();
    let says = format!(
        "what {called} answers from {address} ({}) leaves by {}, where this node drops it: no routing rule leads it to table {table}, which has the way by {}",
        link.name, out.name, link.name
    );
    let object = format!("{}: {address}", container.id);
    let finding = Finding::error("source-rule-missing", object, says)
        .at(format!("routing rules of {called}"))
        .seen(format!("in {called}, what comes from {address} goes by {}: ip route get {client} from {address}", out.name))
        .seen(why)
        .hits(container.id.clone())
        .fix(format!("{}ip rule add from {address} lookup {table}", within(container.netns.as_str())
        ))
        .advise(format!(
            "let what set up {} restore the rule when it is lost: the plugin sbr in the list of {}, or the program that made table {table}",
            link.name, attachment.network
        ));
    let severity = if serves(inside, address) { Severity::Error } else { Severity::Warning };
    Some(Finding { severity, ..finding })
}

/// Returns the table that was made for what leaves by a link: it has a default route there, and no
/// rule asks it for another reason than the source.
fn table_of(inside: &Namespace, link: &Link) -> Option<u32> {
    let is_usual = |table: u32| [0, TABLE_LOCAL, TABLE_MAIN, TABLE_DEFAULT].contains(&table);
    let mut routes = inside.routes.iter().filter(|route| {
        let mut hops = route.hops.iter();
        !is_usual(route.table)
            && route.to.addr().is_ipv4()
            && route.to.prefix_len() == 0
            && hops.any(|hop| hop.link == Some(link.index))
    });
    let table = routes.next()?.table;
    let is_by_source = |rule: &RouteRule| {
        rule.from.is_some()
            && rule.to.is_none()
            && rule.iif.is_none()
            && rule.oif.is_none()
            && rule.mark.is_none()
            && !rule.invert
    };
    let asks = |rule: &&RouteRule| rule.ipv4 && rule.action == RuleAction::Table(table);
    inside.rules.iter().filter(asks).all(is_by_source).then_some(table)
}

/// Says why the node surely drops what comes from an address by the link of a site.
fn dropped(host: &Namespace, site: &Site<'_>, address: IpAddr, to: IpAddr) -> Option<String> {
    if !site.is_the_nodes() {
        return None;
    }
    let name = &site.seen_by.name;
    let of = |link: &str| host.number(&format!("net.ipv4.conf.{link}.rp_filter"));
    let filter = of("all").unwrap_or_default().max(of(name).unwrap_or_default());
    if filter != STRICT {
        return None;
    }
    match look_up(host, Some(to), address, None, Some(0)) {
        RouteDecision::By { link, .. } if link.index != site.seen_by.index => Some(format!(
            "net.ipv4.conf.{name}.rp_filter, or that of all, is 1, and this node reaches {address} by {}",
            link.name
        )),
        _ => None,
    }
}

/// Says whether a program of the container is asked at an address.
fn serves(inside: &Namespace, address: IpAddr) -> bool {
    inside.listeners.iter().any(|listener| {
        let at = listener.at.ip();
        let is_server = listener.transport == Transport::Tcp || at == address;
        is_server && (at.is_unspecified() || at == address)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Listener, Route, Scene};
    use crate::path::samples::{ip, node};
    use crate::question::Answers;
    use crate::routes::samples::{link, route, rule};

    /// c2 has a second interface on the network of the uplink, and a table for it.
    fn dual(rules: Vec<RouteRule>) -> Scene {
        let mut scene = node();
        scene.host.sysctls.insert("net.ipv4.conf.all.rp_filter".to_owned(), "1".to_owned());
        let container = &mut scene.containers[0];
        container.attachments.push(Attachment {
            network: "san".to_owned(),
            ifname: "net1".to_owned(),
            plugins: vec!["host-device".to_owned()],
            addresses: vec!["192.0.2.78/24".parse().unwrap()],
            ..Attachment::default()
        });
        let inside = container.inside.as_mut().unwrap();
        inside.links.push(link(5, "net1", &["192.0.2.78/24"]));
        inside.routes.push(route("192.0.2.0/24", 5, None));
        inside.routes.push(Route { table: 100, ..route("0.0.0.0/0", 5, Some("192.0.2.1")) });
        inside.rules = [0, 255, 32766, 254]
            .chunks(2)
            .map(|pair| rule(pair[0], RuleAction::Table(pair[1])))
            .collect();
        inside.rules.splice(1..1, rules);
        scene
    }

    fn from(address: &str) -> RouteRule {
        let from = Some(address.parse().unwrap());
        RouteRule { from, ..rule(100, RuleAction::Table(100)) }
    }

    fn told(scene: &Scene) -> Vec<(Severity, String)> {
        let answers = Answers::default();
        let found = judge(Look { scene, answers: &answers, only: None, to: None });
        found.into_iter().map(|one| (one.severity, one.fix.join("; "))).collect()
    }

    #[test]
    fn a_table_to_which_no_rule_leads_the_address() {
        let fix = "nsenter --net=/run/netns/c2 ip rule add from 192.0.2.78 lookup 100".to_owned();
        let mut scene = dual(Vec::new());
        assert_eq!(told(&scene), [(Severity::Warning, fix.clone())]);
        // The address has changed.
        assert_eq!(told(&dual(vec![from("192.0.2.77/32")])).len(), 1);
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.listeners.push(Listener {
            transport: Transport::Tcp,
            at: "0.0.0.0:80".parse().unwrap(),
            v6only: false,
            pid: None,
            program: None,
            full: None,
            stopped: false,
            frozen: None,
        });
        assert_eq!(told(&scene), [(Severity::Error, fix)]);
    }

    #[test]
    fn several_networks_are_no_fault() {
        assert_eq!(told(&dual(vec![from("192.0.2.78/32")])), []);
        // The table is for packets with a mark.
        let marked = RouteRule { mark: Some((1, 1)), ..rule(100, RuleAction::Table(100)) };
        assert_eq!(told(&dual(vec![marked])), []);
        // No table was made for it.
        let mut without = dual(Vec::new());
        let inside = without.containers[0].inside.as_mut().unwrap();
        inside.routes.retain(|route| route.table != 100);
        assert_eq!(told(&without), []);
        // The node takes the answers.
        let mut loose = dual(Vec::new());
        loose.host.sysctls.insert("net.ipv4.conf.cni0.rp_filter".to_owned(), "2".to_owned());
        assert_eq!(told(&loose), []);
        // Another one has the address.
        let mut gone = dual(Vec::new());
        let inside = gone.containers[0].inside.as_mut().unwrap();
        inside.links.last_mut().unwrap().addresses[0].address = "192.0.2.79/24".parse().unwrap();
        assert_eq!(told(&gone), []);
        assert_eq!(ip("192.0.2.78"), gone.containers[0].attachments[1].addresses[0].addr());
    }
}
