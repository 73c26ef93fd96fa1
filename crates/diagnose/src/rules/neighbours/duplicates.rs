//! Addresses of containers on a network of other machines, for which another machine answers.
//!
//! Containers beside the node's own IP (macvlan, ipvlan, VLAN, a lent device) share a network with
//! machines of which this node knows nothing, and IPv4 looks for no other machine that has an address.

use std::net::IpAddr;

use super::super::{asks_links, interfaces};
use super::{all_ways, differs};
use crate::Look;
use crate::finding::{Finding, WayKind};
use crate::model::{Link, Scene};
use crate::path::{Interface, Joint, may_ask};
use crate::question::{Answer, Question};

/// A container's address on a network of other machines.
struct SharedAddress<'s> {
    interface: Interface<'s>,
    address: IpAddr,
    question: Question,
    /// The parent of the interface; `None`: the node has lent the device.
    parent: Option<&'s Link>,
}

fn shared(look: Look<'_>) -> impl Iterator<Item = SharedAddress<'_>> {
    interfaces(look).filter_map(SharedAddress::of)
}

impl<'s> SharedAddress<'s> {
    fn of(interface: Interface<'s>) -> Option<Self> {
        let address = interface.address()?;
        let mut own = interface.link.addresses.iter();
        let found = own.find(|one| one.address.addr() == address)?;
        // The kernel has found the other one itself, or still looks for it.
        if found.duplicate || found.tentative {
            return None;
        }
        let site = interface.site.as_ref();
        let parent = site.map(|site| site.host_end);
        let is_beside = site.is_none_or(|site| site.joint != Joint::Pair);
        // An ipvlan gets no answer that is for no address of its own, so the parent asks.
        let is_ipvlan = matches!(site.map(|site| site.joint), Some(Joint::Ipvlan(_)));
        let asker = if is_ipvlan { parent? } else { interface.link };
        let is_free = !is_ipvlan || asker.master.is_none();
        if !is_beside || !is_free || !may_ask(asker, interface.family, Some(address)) {
            return None;
        }
        let from = (!is_ipvlan).then_some(interface.container);
        let question = Question::who_has(from, &asker.name, address);
        Some(SharedAddress { interface, address, question, parent })
    }

    /// Returns the hardware addresses of others that answer.
    fn others<'a>(&self, macs: &'a [String]) -> Vec<&'a str> {
        // Other interfaces of the container on the same network answer for it, too.
        let own = self.interface.inside.links.iter().chain(self.parent);
        let own: Vec<&str> = own.filter_map(|link| link.mac.as_deref()).collect();
        let is_other = |mac: &&str| own.iter().all(|own| differs(own, mac));
        macs.iter().map(String::as_str).filter(is_other).collect()
    }
}

pub(super) fn asks(look: Look<'_>) -> Vec<Question> {
    if !asks_links(look) {
        return Vec::new();
    }
    shared(look).map(|one| one.question).collect()
}

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let found = shared(look).filter_map(|one| {
        let Some(Answer::Owners { macs }) = look.answers.to(&one.question) else { return None };
        let others = one.others(macs);
        (!others.is_empty()).then(|| claimed(look.scene, &one, &others))
    });
    found.collect()
}

fn claimed(scene: &Scene, one: &SharedAddress<'_>, others: &[&str]) -> Finding {
    let SharedAddress { interface, address, parent, .. } = one;
    let (called, link) = (interface.container.called(), interface.link);
    let ifname = &link.name;
    let macs = others.join(" and ");
    let owner = others.iter().find_map(|mac| owner(scene, mac));
    let is = owner.as_ref().map(|owner| format!(" ({owner})")).unwrap_or_default();
    let says = format!(
        "{macs}{is} answers for {address}, which is the address of {called}: what others send to it goes to either of them"
    );
    let own = link.mac.as_deref().unwrap_or("no hardware address");
    let place = match parent {
        Some(parent) => format!("{ifname} of {called}, on {}", parent.name),
        None => format!("{ifname} of {called}"),
    };
    let behind = parent.map_or_else(|| format!("{ifname} of {called}"), |one| one.name.clone());
    let advice = match owner {
        Some(owner) => format!("give {owner} or {called} another address"),
        None => format!(
            "find who has {macs} behind {behind}, at the switch, and give one of the two another address; a pool that leaves out addresses of other machines gives it to no other container"
        ),
    };
    let finding = Finding::error("address-claimed", address.to_string(), says)
        .at(place)
        .seen(format!("{macs} answered who has {address}; {called} has {own}"))
        .hits(interface.container.id.clone())
        .advise(advice)
        .breaks(WayKind::Between, Some(interface.family));
    all_ways(finding, interface.family)
}

/// Returns who on this node has a hardware address.
fn owner(scene: &Scene, mac: &str) -> Option<String> {
    let has = |link: &&Link| link.mac.as_deref().is_some_and(|own| !differs(own, mac));
    if let Some(link) = scene.host.links.iter().find(has) {
        return Some(format!("{} of this node", link.name));
    }
    scene.containers.iter().find_map(|container| {
        let link = container.inside.as_ref()?.links.iter().find(has)?;
        Some(format!("{} of {}", link.name, container.called()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Ipvlan, IpvlanMode, IpvlanReach, MacvlanMode};
    use crate::path::samples::{ip, on_parent};
    use crate::question::Answers;
    use crate::question::Probe;

    const OTHER: &str = "02:00:00:00:00:99";

    fn macvlan() -> Scene {
        on_parent("macvlan", |link| link.macvlan = Some(MacvlanMode::Bridge))
    }

    /// A device of the node's that the container has.
    fn lent() -> Scene {
        on_parent("host-device", |link| {
            link.kind = None;
            link.peer = None;
            link.peer_netnsid = None;
        })
    }

    fn look<'l>(scene: &'l Scene, answers: &'l Answers) -> Look<'l> {
        Look { scene, answers, only: None, to: None }
    }

    /// What is told if these answer for c2's IPv4 address, wherever it is asked.
    fn told(scene: &Scene, macs: &[&str]) -> Vec<String> {
        let nothing = Answers::default();
        let is_meant = |question: &Question| matches!(&question.asked, Probe::WhoHas { address, .. } if *address == ip("10.88.0.2"));
        let asked = asks(look(scene, &nothing)).into_iter().filter(is_meant);
        let macs: Vec<String> = macs.iter().map(|mac| (*mac).to_owned()).collect();
        let answer = || Answer::Owners { macs: macs.clone() };
        let answers = Answers { all: asked.map(|question| (question, answer())).collect() };
        let found = judge(look(scene, &answers)).into_iter();
        found.map(|one| format!("{} {} {}", one.id, one.object, one.advice.join("; "))).collect()
    }

    #[test]
    fn another_machine_has_the_address_of_a_container() {
        for scene in [macvlan(), lent()] {
            let found = told(&scene, &["02:00:00:00:00:02", OTHER]);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(
                found[0].starts_with("address-claimed 10.88.0.2 find who has 02:00:00:00:00:99")
            );
            assert_eq!(told(&scene, &[]), [""; 0]);
            // Its own answer.
            assert_eq!(told(&scene, &["02:00:00:00:00:02"]), [""; 0]);
            let found = told(&scene, &["02:00:00:00:00:03"]);
            assert!(found[0].ends_with("give eth0 of c3 or c2 another address"), "{found:?}");
        }
    }

    /// It answers for each address by all of its interfaces.
    #[test]
    fn a_container_that_has_two_interfaces_on_the_network_claims_its_own_address() {
        let mut scene = macvlan();
        let inside = scene.containers[0].inside.as_mut().unwrap();
        let second = Link {
            index: 9,
            name: "net2".to_owned(),
            mac: Some("02:00:00:00:00:22".to_owned()),
            ..inside.links[1].clone()
        };
        inside.links.push(second);
        let count = |mac: &str| told(&scene, &["02:00:00:00:00:22", mac]).len();
        assert_eq!((count("02:00:00:00:00:02"), count(OTHER)), (0, 1));
    }

    /// All ipvlans of a parent have its hardware address, and only the parent hears the answer.
    #[test]
    fn the_parent_asks_for_an_ipvlan() {
        let with = |mode| {
            let ipvlan = Some(Ipvlan { mode, reach: IpvlanReach::Bridge });
            let mut scene = on_parent("ipvlan", |link| link.ipvlan = ipvlan);
            scene.host.links[1].mac = Some("02:00:00:00:00:50".to_owned());
            scene
        };
        let scene = with(IpvlanMode::L2);
        let nothing = Answers::default();
        let asked = asks(look(&scene, &nothing));
        assert!(!asked.is_empty() && asked.iter().all(|question| question.from.is_none()));
        assert_eq!(told(&scene, &[OTHER]).len(), 1);
        assert_eq!(told(&scene, &["02:00:00:00:00:50"]), [""; 0]);
        assert_eq!(told(&with(IpvlanMode::L3), &[OTHER]), [""; 0]);
    }

    /// Others tell of pairs, of addresses that are gone, and of those that the kernel has found.
    #[test]
    fn what_is_told_elsewhere_is_not_asked() {
        let asked = |scene: &Scene| {
            let nothing = Answers::default();
            asks(look(scene, &nothing)).len()
        };
        assert_eq!(asked(&crate::path::samples::node()), 0);
        let mut scene = macvlan();
        // The IPv6 address is the only one, and nothing asks for it but itself.
        assert_eq!(asked(&scene), 2);
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.links[1].addresses[0].duplicate = true;
        scene.containers[1].inside.as_mut().unwrap().links[1].addresses.remove(0);
        assert_eq!(asked(&scene), 0);
    }
}
