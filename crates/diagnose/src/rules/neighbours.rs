//! Hardware addresses: configured entries that are wrong, and addresses for which another machine
//! answers.

mod duplicates;
mod replaced;
mod routers;

use std::net::IpAddr;

use net::IpFamily;

use super::{Rule, asks_links, containers, ip, is_outbound};
use crate::Look;
use crate::command::within;
use crate::finding::{Finding, WayKind};
use crate::model::{Container, Link, Namespace};
use crate::path::{Site, address_of, uplink};
use crate::question::{Answer, Question};

pub(super) const RULE: Rule = Rule {
    judges: "neighbours",
    ids: &["neighbour-wrong", "address-claimed", "hop-silent"],
    asks,
    judge,
    ..Rule::NONE
};

fn sites(look: Look<'_>) -> Vec<Site<'_>> {
    let families = IpFamily::ALL.into_iter();
    families
        .flat_map(|family| {
            containers(look).flat_map(move |container| Site::all(look.scene, container, family))
        })
        .collect()
}

/// The node asks who has a container's address, and the container who has its gateway's.
fn questions<'s>(site: &Site<'s>) -> Vec<(Question, IpAddr, Option<&'s str>)> {
    let asked = Question::who_has(None, &site.seen_by.name, site.address);
    let mut all = vec![(asked, site.address, site.link.mac.as_deref())];
    if let Some(gateway) = site.gateway {
        let asked = Question::who_has(Some(site.container), &site.attachment.ifname, gateway);
        all.push((asked, gateway, site.seen_by.mac.as_deref()));
    }
    all
}

fn asks(look: Look<'_>) -> Vec<Question> {
    if !asks_links(look) {
        return Vec::new();
    }
    let sites = sites(look);
    let of_sites = sites.iter().flat_map(questions).map(|(question, _, _)| question);
    let of_uplink = own(look).map(|own| own.question);
    of_sites.chain(of_uplink).chain(routers::asks(look)).chain(duplicates::asks(look)).collect()
}

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let everybody = sites(Look { only: None, ..look });
    for site in sites(look) {
        for (question, address, mac) in questions(&site) {
            found.extend(claimed(look, &site, &question, address, mac));
        }
        found.extend(on_node(look, &site));
        found.extend(in_bridge(look, &site));
        found.extend(in_container(&site, &everybody));
    }
    for family in IpFamily::ALL {
        let every = containers(look).flat_map(|one| Site::every(look.scene, one, family));
        found.extend(every.filter_map(|site| of_router(look, &site)));
    }
    found.extend(own(look).and_then(|own| contested(look, own)));
    found.extend(routers::judge(look));
    found.extend(duplicates::judge(look));
    found
}

/// The node's own address on its way out. The kernel looks whether another machine has it for IPv6
/// alone.
struct OwnAddress<'s> {
    question: Question,
    address: IpAddr,
    link: &'s str,
    hits: Vec<String>,
}

fn own(look: Look<'_>) -> Option<OwnAddress<'_>> {
    let outbound = containers(look).filter(|one| is_outbound(look.scene, one, IpFamily::V4));
    let hits: Vec<String> = outbound.map(|container| container.id.clone()).collect();
    let carries = |link: &&Link| link.up && link.carrier && link.mac.is_some() && !link.no_arp;
    let link = uplink(look.scene, true).filter(carries)?;
    let address = address_of(link, true)?;
    let question = Question::who_has(None, &link.name, address);
    (!hits.is_empty()).then_some(OwnAddress { question, address, link: &link.name, hits })
}

/// Another machine answers for the node's address. Another link of the node on the same cable may.
fn contested(look: Look<'_>, own: OwnAddress<'_>) -> Option<Finding> {
    let OwnAddress { question, address, link, hits } = own;
    let Some(Answer::Owners { macs }) = look.answers.to(&question) else { return None };
    let other = macs.iter().find(|found| !has_mac(&look.scene.host, found))?;
    let says = format!("{other} answers for {address}, which is this node's address on {link}");
    let finding = Finding::error("address-claimed", address.to_string(), says)
        .at(format!("link {link}"))
        .seen(format!("{} answered for {address}", macs.join(" and ")))
        .advise(format!(
            "find who has {other} behind {link}, and give one of the two another address"
        ))
        .breaks(WayKind::Outside, Some(IpFamily::V4))
        .breaks(WayKind::Names, Some(IpFamily::V4))
        .breaks(WayKind::Published, Some(IpFamily::V4));
    Some(Finding { hits, ..finding })
}

/// Says whether a link of a namespace has a hardware address. A machine answers on each of its links
/// for all of its addresses (linux net/ipv4/arp.c `arp_ignore`).
fn has_mac(namespace: &Namespace, mac: &str) -> bool {
    namespace.links.iter().any(|link| link.mac.as_deref().is_some_and(|own| !differs(own, mac)))
}

fn differs(one: &str, other: &str) -> bool {
    !one.eq_ignore_ascii_case(other)
}

/// Another machine than the owner answers for an address.
fn claimed(
    look: Look<'_>,
    site: &Site<'_>,
    question: &Question,
    address: IpAddr,
    mac: Option<&str>,
) -> Option<Finding> {
    let Some(Answer::Owners { macs }) = look.answers.to(question) else { return None };
    let own = mac?;
    let (owner, namespace) = match address == site.address {
        true => (site.container.called(), site.inside),
        false => ("this node", &look.scene.host),
    };
    // It may be attached to the network several times.
    let other = macs.iter().find(|found| differs(found, own) && !has_mac(namespace, found))?;
    let says = format!("{other} answers for {address}, which is the address of {owner}");
    let finding = Finding::error("address-claimed", address.to_string(), says)
        .at(format!("link {}", site.seen_by.name))
        .seen(format!("{} answered for {address}; {owner} has {own}", macs.join(" and ")))
        .hits(site.container.id.clone())
        .advise(format!("find who has {other}: bridge fdb show | grep -i {other}"));
    Some(all_ways(finding, site.family()))
}

fn all_ways(finding: Finding, family: IpFamily) -> Finding {
    let kinds = [
        WayKind::Gateway,
        WayKind::Outside,
        WayKind::Names,
        WayKind::FromNode,
        WayKind::Published,
        WayKind::PublishedHere,
    ];
    kinds.into_iter().fold(finding, |finding, kind| finding.breaks(kind, Some(family)))
}

/// Returns the hardware address that is configured for an address on a link.
fn configured(namespace: &Namespace, link: u32, address: IpAddr) -> Option<&str> {
    let mut entries = namespace.neighbours.iter();
    let entry = entries.find(|one| one.permanent && one.link == link && one.address == address)?;
    entry.mac.as_deref()
}

/// The node has an entry for the container that leads elsewhere.
fn on_node(look: Look<'_>, site: &Site<'_>) -> Option<Finding> {
    let link = site.seen_by;
    let found = configured(&look.scene.host, link.index, site.address)?;
    let own = site.link.mac.as_deref()?;
    if !differs(found, own) {
        return None;
    }
    let called = site.container.called();
    let says = format!(
        "this node sends packets for {called} ({}) to {found}, but {called} has {own}",
        site.address
    );
    let object = format!("{} on {}", site.address, link.name);
    let finding = Finding::error("neighbour-wrong", object, says)
        .at(format!("neighbour {} dev {} lladdr {found} PERMANENT", site.address, link.name))
        .seen(format!("{} of {called} has {own}", site.link.name))
        .hits(site.container.id.clone())
        .fix(format!("ip neigh del {} dev {}", site.address, link.name));
    Some(all_ways(finding, site.family()))
}

/// The container has an entry for its gateway, or for another container, that leads elsewhere.
fn in_container(site: &Site<'_>, everybody: &[Site<'_>]) -> Vec<Finding> {
    if !site.inside.neighbours.iter().any(|one| one.permanent) {
        return Vec::new();
    }
    let gateway = site.gateway.map(|gateway| (gateway, site.seen_by.mac.as_deref(), None));
    let others = everybody.iter().filter(|other| {
        other.container.id != site.container.id
            && other.bridge.is_some()
            && other.bridge.map(|bridge| bridge.index) == site.bridge.map(|bridge| bridge.index)
            && other.family() == site.family()
    });
    let others =
        others.map(|other| (other.address, other.link.mac.as_deref(), Some(other.container)));
    let wrong = gateway.into_iter().chain(others).filter_map(|(address, mac, other)| {
        let found = configured(site.inside, site.link.index, address)?;
        let own = mac.filter(|own| differs(found, own))?;
        let called = site.container.called();
        let owner = other.map_or("its gateway", Container::called);
        let says = format!(
            "{called} sends packets for {owner} ({address}) to {found}, but {owner} has {own}"
        );
        let name = &site.link.name;
        let object = format!("{address} on {name} of {called}");
        let finding = Finding::error("neighbour-wrong", object, says)
            .at(format!("in {called}: neighbour {address} dev {name} lladdr {found} PERMANENT"))
            .seen(format!("{owner} has {own}"))
            .hits(site.container.id.clone())
            .fix(format!(
                "{}ip neigh del {address} dev {name}",
                within(site.container.netns.as_str())
            ));
        Some(match other {
            Some(_) => finding.breaks(WayKind::Between, Some(site.family())),
            None => all_ways(finding, site.family()),
        })
    });
    wrong.collect()
}

/// The container has an entry for its router, another machine, that is not that one's.
fn of_router(look: Look<'_>, site: &Site<'_>) -> Option<Finding> {
    let router = site.router(look.scene)?;
    let found = configured(site.inside, site.link.index, router)?;
    let id = &site.container.id;
    let question = Question::who_has(Some(site.container), &site.attachment.ifname, router);
    let Some(Answer::Owners { macs }) = look.answers.to(&question) else { return None };
    let [mac] = macs.as_slice() else { return None };
    if !differs(found, mac) {
        return None;
    }
    let (called, name) = (site.container.called(), &site.link.name);
    let says = format!(
        "{called} sends packets for its router ({router}) to {found}, but {mac} answers for it"
    );
    let version = ip(IpFamily::of(router));
    let finding =
        Finding::error("neighbour-wrong", format!("{router} on {name} of {called}"), says)
            .at(format!("in {called}: neighbour {router} dev {name} lladdr {found} PERMANENT"))
            .seen(format!("{mac} answered for {router}"))
            .hits(id.clone())
            .fix(format!(
                "{}{version} neigh del {router} dev {name}",
                within(site.container.netns.as_str())
            ));
    let kinds = [WayKind::Gateway, WayKind::Outside, WayKind::Names];
    Some(kinds.into_iter().fold(finding, |finding, kind| finding.breaks(kind, Some(site.family()))))
}

/// The bridge has an entry that leads what is for the container to another port, or keeps what is for
/// it there: `bridge fdb add` makes such entries unless it is told otherwise.
fn in_bridge(look: Look<'_>, site: &Site<'_>) -> Option<Finding> {
    let bridge = site.bridge?;
    let host = &look.scene.host;
    let own = site.link.mac.as_deref()?;
    let entry = host.fdb.iter().find(|entry| {
        let is_the_nodes = entry.own && has_mac(host, &entry.mac);
        if is_the_nodes || differs(&entry.mac, own) {
            return false;
        }
        entry.port != site.host_end.index
            && (entry.vlan.is_none() || !bridge.vlan_filtering)
            && host.link_of(entry.port).is_some_and(|port| port.master == Some(bridge.index))
    })?;
    let port = host.link_of(entry.port)?;
    let called = site.container.called();
    let says = format!(
        "bridge {} sends frames for {called} ({own}) to port {} instead of {}",
        bridge.name, port.name, site.host_end.name
    );
    let vlan = entry.vlan.map(|vlan| format!(" vlan {vlan}")).unwrap_or_default();
    let finding = Finding::error("neighbour-wrong", format!("{own} on {}", port.name), says)
        .at(format!("fdb {own} dev {}{vlan} master {}", port.name, bridge.name))
        .seen(format!("{} is the other end of {called}", site.host_end.name))
        .hits(site.container.id.clone())
        .fix(format!("bridge fdb del {own} dev {}{vlan} master", port.name))
        .breaks(WayKind::Between, Some(site.family()));
    Some(all_ways(finding, site.family()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Fdb, Neighbour, Scene};
    use crate::path::samples::{ip, node};
    use crate::question::Answers;
    use crate::question::Probe;

    fn found_with(scene: &Scene, all: Vec<(Question, Answer)>) -> Vec<(String, String)> {
        let answers = Answers { all };
        let look = Look { scene, answers: &answers, only: None, to: None };
        let causes = crate::causes::sort(judge(look), scene).causes;
        let help = |one: Finding| [one.fix, one.advice].concat().join("; ");
        causes.into_iter().map(|one| (one.finding.says.clone(), help(one.finding))).collect()
    }

    fn found(scene: &Scene) -> Vec<(String, String)> {
        found_with(scene, Vec::new())
    }

    fn entry(link: u32, address: &str, mac: &str) -> Neighbour {
        Neighbour {
            link,
            address: ip(address),
            mac: Some(mac.to_owned()),
            permanent: true,
            failed: false,
        }
    }

    #[test]
    fn entries_that_are_right_are_no_faults() {
        let mut scene = node();
        scene.host.neighbours = vec![entry(3, "10.88.0.2", "02:00:00:00:00:02")];
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.neighbours = vec![entry(2, "10.88.0.1", "02:00:00:00:00:01")];
        assert!(found(&scene).is_empty());
        scene.host.neighbours[0] =
            Neighbour { permanent: false, ..entry(3, "10.88.0.2", "02:00:00:00:00:99") };
        assert!(found(&scene).is_empty());
    }

    #[test]
    fn entries_that_lead_elsewhere_are_found() {
        let wrong = "02:00:00:00:00:99";
        let mut scene = node();
        scene.host.neighbours = vec![entry(3, "10.88.0.2", wrong)];
        assert_eq!(
            found(&scene),
            [(
                "this node sends packets for c2 (10.88.0.2) to 02:00:00:00:00:99, but c2 has 02:00:00:00:00:02".to_owned(),
                "ip neigh del 10.88.0.2 dev cni0".to_owned()
            )]
        );
        let mut scene = node();
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.neighbours = vec![entry(2, "fd00:88::1", wrong), entry(2, "10.88.0.3", wrong)];
        assert_eq!(
            found(&scene),
            [
                (
                    "c2 sends packets for c3 (10.88.0.3) to 02:00:00:00:00:99, but c3 has 02:00:00:00:00:03".to_owned(),
                    "nsenter --net=/run/netns/c2 ip neigh del 10.88.0.3 dev eth0".to_owned()
                ),
                (
                    "c2 sends packets for its gateway (fd00:88::1) to 02:00:00:00:00:99, but its gateway has 02:00:00:00:00:01".to_owned(),
                    "nsenter --net=/run/netns/c2 ip neigh del fd00:88::1 dev eth0".to_owned()
                ),
            ]
        );
    }

    #[test]
    fn an_entry_of_a_container_for_its_router_is_compared_with_who_answers() {
        let macvlan = |link: &mut crate::model::Link| {
            link.macvlan = Some(crate::model::MacvlanMode::Bridge);
        };
        let mut scene = crate::path::samples::on_parent("macvlan", macvlan);
        let (own, wrong) = ("02:00:00:00:00:fe", "02:00:00:00:00:99");
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.neighbours = vec![entry(2, "10.88.0.254", wrong)];
        let asked = Probe::WhoHas { address: ip("10.88.0.254"), link: "eth0".to_owned() };
        let question = Question { from: Some("c2".to_owned()), asked };
        let answered =
            |mac: &str| vec![(question.clone(), Answer::Owners { macs: vec![mac.to_owned()] })];
        assert!(found(&scene).is_empty());
        assert!(found_with(&scene, answered(wrong)).is_empty());
        let says = format!(
            "c2 sends packets for its router (10.88.0.254) to {wrong}, but {own} answers for it"
        );
        let fix = "nsenter --net=/run/netns/c2 ip neigh del 10.88.0.254 dev eth0".to_owned();
        assert_eq!(found_with(&scene, answered(own)), [(says, fix)]);
    }

    #[test]
    fn a_bridge_that_sends_to_another_port() {
        let mut scene = node();
        let mac = "02:00:00:00:00:02".to_owned();
        scene.host.fdb = vec![Fdb { port: 12, mac: mac.clone(), vlan: None, own: false }];
        assert!(found(&scene).is_empty());
        for own in [false, true] {
            scene.host.fdb = vec![Fdb { port: 13, mac: mac.clone(), vlan: None, own }];
            assert_eq!(
                found(&scene),
                [(
                    "bridge cni0 sends frames for c2 (02:00:00:00:00:02) to port veth3 instead of veth2".to_owned(),
                    "bridge fdb del 02:00:00:00:00:02 dev veth3 master".to_owned()
                )]
            );
        }
        // It is the port's own.
        scene.host.links.iter_mut().find(|link| link.name == "veth3").unwrap().mac = Some(mac);
        assert!(found(&scene).is_empty());
    }

    /// The node's own address is another machine's, too.
    #[test]
    fn another_machine_answers_for_the_node() {
        let mut scene = node();
        let uplink = scene.host.links.iter_mut().find(|link| link.name == "up0").unwrap();
        uplink.mac = Some("02:00:00:00:00:20".to_owned());
        let answers = Answers::default();
        let look = Look { scene: &scene, answers: &answers, only: None, to: None };
        let asked = Probe::WhoHas { address: ip("192.0.2.2"), link: "up0".to_owned() };
        let question = Question { from: None, asked };
        assert!(asks(look).contains(&question));
        let told = |macs: &[&str]| {
            let macs = macs.iter().map(|mac| (*mac).to_owned()).collect();
            let said = found_with(&scene, vec![(question.clone(), Answer::Owners { macs })]);
            said.into_iter().map(|(says, _)| says).collect::<Vec<String>>()
        };
        let says = "02:00:00:00:00:99 answers for 192.0.2.2, which is this node's address on up0";
        assert_eq!(told(&["02:00:00:00:00:99"]), [says]);
        // A second link on the same cable.
        assert_eq!(told(&["02:00:00:00:00:01"]), [""; 0]);
        assert_eq!(told(&[]), [""; 0]);
    }

    #[test]
    fn somebody_else_answers() {
        let scene = node();
        let answers = Answers::default();
        let look = Look { scene: &scene, answers: &answers, only: Some("c2"), to: None };
        let asked = asks(look);
        let of = |macs: &[&str]| Answer::Owners {
            macs: macs.iter().map(|mac| (*mac).to_owned()).collect(),
        };
        let right = vec![
            (asked[0].clone(), of(&["02:00:00:00:00:02"])),
            (asked[1].clone(), of(&["02:00:00:00:00:01"])),
        ];
        assert!(found_with(&scene, right).is_empty());
        // It answers by another interface on the same network, too.
        let mut twice = scene.clone();
        let inside = twice.containers[0].inside.as_mut().unwrap();
        let mac = Some("02:00:00:00:00:22".to_owned());
        inside.links.push(crate::model::Link { index: 9, mac, ..inside.links[1].clone() });
        let both = vec![(asked[0].clone(), of(&["02:00:00:00:00:02", "02:00:00:00:00:22"]))];
        assert!(found_with(&twice, both).is_empty());
        let wrong = vec![(asked[0].clone(), of(&["02:00:00:00:00:02", "02:00:00:00:00:99"]))];
        assert_eq!(
            found_with(&scene, wrong)[0].0,
            "02:00:00:00:00:99 answers for 10.88.0.2, which is the address of c2"
        );
    }
}
