//! What lets packets pass where no rule knows connections: in filters of frames, and in those of IP
//! before connection tracking. Only addresses and ports tell there what is meant.

use std::net::IpAddr;

use ipnet::IpNet;
use net::IpFamily;

use super::FilterStop;
use super::fix::is_for_all;
use super::matches::{Fields, Match, PortOf};
use super::say::Sort;
use crate::Look;
use crate::filter::{Layer, Place};
use crate::model::filter::{Chain, Hook, Table};
use crate::model::{Link, Port as PublishedPort, Scene};
use crate::path::Site;

/// Returns what is to pass; `None` if addresses and ports do not tell it from what the filter is to
/// stop. `nets` are those of the container's network; at a link its own address counts.
pub(super) fn matches<'n>(
    look: Look<'_>,
    site: &Site<'_>,
    sort: &Sort<'_>,
    caught: &FilterStop,
    nets: &'n [IpNet],
) -> Option<Vec<Match<'n>>> {
    if let Sort::Between(_, other) = sort {
        return Some(between(look, site, *other, caught, nets));
    }
    let own = [IpNet::from(site.address)];
    let nets = if caught.layer == Layer::Device { &own } else { nets };
    if let Sort::Resolve = sort {
        return Some(neighbours(site.family(), caught.back, nets));
    }
    let all = first(sort, site, is_far(look, site, sort, caught), nets);
    // What answers whatever a container has asked has no address or port of its own.
    if all.is_empty() || (caught.back && matches!(sort, Sort::Outside)) {
        return None;
    }
    let turned = |fields: Fields| if caught.back { fields.answer() } else { fields };
    Some(all.into_iter().map(|fields| Match::Packet(turned(fields))).collect())
}

/// What containers send each other, with their questions for hardware addresses where the filter
/// drops whatever comes: at a link, of the container that it leads to.
fn between<'n>(
    look: Look<'_>,
    site: &Site<'_>,
    other: IpAddr,
    caught: &FilterStop,
    nets: &'n [IpNet],
) -> Vec<Match<'n>> {
    let place = &caught.place;
    let is_closed = place.rule.is_none_or(|(_, rule)| is_for_all(look.scene, place, rule));
    if caught.layer != Layer::Device {
        let who = if site.address.is_ipv4() { Match::Arp } else { Match::Neighbours };
        let is_asked = is_closed && caught.layer != Layer::Ip;
        return nets.iter().map(Match::Within).chain(is_asked.then_some(who)).collect();
    }
    let (sender, receiver) =
        if caught.back { (other, site.address) } else { (site.address, other) };
    let is_senders = (caught.hook == Hook::Ingress) == caught.inside.is_none();
    let own = IpNet::from(if is_senders { sender } else { receiver });
    let fields = nets.iter().map(|net| match is_senders {
        true => Fields { from: Some(own), to: Some(*net), port: None },
        false => Fields { from: Some(*net), to: Some(own), port: None },
    });
    let asked = if is_closed { neighbours(site.family(), !is_senders, &[own]) } else { Vec::new() };
    fields.map(Match::Packet).chain(asked).collect()
}

/// Questions for hardware addresses, or the answers.
fn neighbours<'n>(family: IpFamily, back: bool, nets: &[IpNet]) -> Vec<Match<'n>> {
    match (family, back) {
        (IpFamily::V6, _) => vec![Match::Neighbours],
        (IpFamily::V4, false) => nets.iter().copied().map(Match::ArpFrom).collect(),
        (IpFamily::V4, true) => nets.iter().copied().map(Match::ArpTo).collect(),
    }
}

/// Returns all that a container sends by its link, with its questions for hardware addresses if
/// these do not pass (`is_closed`).
pub(super) fn sent<'n>(site: &Site<'_>, is_closed: bool) -> Vec<Match<'n>> {
    let own = IpNet::from(site.address);
    let asked = if is_closed { neighbours(site.family(), false, &[own]) } else { Vec::new() };
    let all = Match::Packet(Fields { from: Some(own), to: None, port: None });
    asked.into_iter().chain([all]).collect()
}

/// The first packet of a way. `is_far`: beyond the node, where it has an address and a port of the
/// node in place of the container's.
fn first(sort: &Sort<'_>, site: &Site<'_>, is_far: bool, nets: &[IpNet]) -> Vec<Fields> {
    let receiver = |(protocol, port)| PortOf::Receiver(protocol, port);
    let to = |to: Option<IpAddr>, port| Fields { from: None, to: to.map(IpNet::from), port };
    let each = |of: &dyn Fn(IpNet) -> Fields| nets.iter().copied().map(of).collect();
    let of_host = |port: &PublishedPort| Some(receiver((port.transport.as_str(), port.host)));
    match (sort, sort.port().map(receiver)) {
        (Sort::Outside, _) if !is_far => {
            each(&|net| Fields { from: Some(net), to: None, port: None })
        }
        (Sort::To(server, _), port @ Some(_)) if is_far => vec![to(Some(*server), port)],
        (Sort::To(server, _), Some(port)) => {
            each(&|net| Fields { from: Some(net), ..to(Some(*server), Some(port)) })
        }
        (Sort::Published(port) | Sort::PublishedHere(port), _) if is_far => {
            vec![to(None, of_host(port))]
        }
        (Sort::Published(_) | Sort::PublishedHere(_), port) => vec![to(Some(site.address), port)],
        (Sort::FromNode, _) => match site.gateway.filter(|_| !is_far) {
            Some(gateway) => {
                each(&|net| Fields { from: Some(IpNet::from(gateway)), to: Some(net), port: None })
            }
            None => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Says whether a filter sees packets as other machines do: the node has translated them, or has not
/// yet translated them back.
fn is_far(look: Look<'_>, site: &Site<'_>, sort: &Sort<'_>, caught: &FilterStop) -> bool {
    let place = &caught.place;
    if caught.inside.is_some() {
        return false;
    }
    match caught.layer {
        Layer::Device => !is_near(look.scene, site, place),
        Layer::Ip => place.hook == Hook::Prerouting && matches!(sort, Sort::Outside | Sort::To(..)),
        _ => false,
    }
}

/// Says whether a chain is at a link of the node that leads to the container.
fn is_near(scene: &Scene, site: &Site<'_>, place: &Place) -> bool {
    let is_table =
        |table: &&Table| table.name == place.table && table.family.as_str() == place.family;
    let chains = scene.host.filter.tables.iter().filter(is_table).flat_map(|table| &table.chains);
    let device = |chain: &Chain| chain.base.as_ref().and_then(|base| base.device.clone());
    let mut devices = chains.filter(|chain| chain.name == place.base).filter_map(device);
    let near: [Option<&Link>; 4] =
        [Some(site.host_end), site.node_port, site.bridge, Some(site.seen_by)];
    devices.any(|device| near.iter().flatten().any(|link| link.name == device))
}

#[cfg(test)]
mod tests {
    use crate::model::filter::{Family as Kin, Step};

    use super::*;
    use crate::filter::samples::{accept, base, drop, dropping, iifname, rule, table};
    use crate::finding::Finding;
    use crate::path::samples::{node, with};
    use crate::question::Answers;

    /// A chain at a link.
    fn at(link: &str, hook: Hook, parts: &[Vec<Step>]) -> Scene {
        let mut chain = base("c", hook, 0, vec![rule(parts)]);
        chain.base.as_mut().unwrap().device = Some(link.to_owned());
        with(node(), table(Kin::Netdev, "own", vec![chain]))
    }

    fn bridge(name: &str, chain: Chain) -> Scene {
        with(node(), table(Kin::Bridge, name, vec![chain]))
    }

    /// The commands and the sentences of IPv4.
    fn help(scene: &Scene) -> [Vec<String>; 2] {
        let answers = Answers::default();
        let look = Look { scene, answers: &answers, only: None, to: None };
        let is_v4 = |one: &Finding| one.breaks[0].family == Some(IpFamily::V4);
        let found = crate::causes::sort(
            super::super::judge(look).into_iter().filter(is_v4).collect(),
            scene,
        );
        let all = || found.causes.iter().map(|cause| cause.finding.clone());
        [all().flat_map(|one| one.fix).collect(), all().flat_map(|one| one.advice).collect()]
    }

    const REMOVE: &str =
        "or remove the rule, if nobody needs it any more: nft delete rule netdev own c handle 7";

    #[test]
    fn a_chain_at_a_containers_link_is_opened_for_its_address() {
        let [fix, advice] = help(&at("veth2", Hook::Ingress, &[drop()]));
        assert_eq!(
            fix,
            [
                "nft insert rule netdev own c handle 7 arp saddr ip 10.88.0.2 accept",
                "nft insert rule netdev own c handle 7 ip saddr 10.88.0.2 ip daddr 10.88.0.1 accept",
                "nft insert rule netdev own c handle 7 ip saddr 10.88.0.2 accept",
                "nft insert rule netdev own c handle 7 ip saddr 10.88.0.2 tcp sport 80 accept",
                "nft insert rule netdev own c handle 7 ip saddr 10.88.0.2 ip daddr 10.88.0.0/24 accept",
            ]
        );
        assert_eq!(advice, [REMOVE]);
    }

    /// What answers a container has the node's address there, as the rest has.
    #[test]
    fn no_rule_at_the_uplink_tells_answers() {
        let mut scene = at("up0", Hook::Ingress, &[drop()]);
        scene.containers[0].attachments[0].ports.clear();
        let [fix, advice] = help(&scene);
        assert_eq!(fix, [""; 0]);
        let says = "let netdev own/c rule 1 except what containers send and get; doctor names no command, since no rule there tells answers from other packets";
        let says = format!("{says}; {REMOVE}");
        assert_eq!(advice, [says]);
        // A published port has a number of its own.
        let [fix, _] = help(&at("up0", Hook::Ingress, &[drop()]));
        assert_eq!(fix, ["nft insert rule netdev own c handle 7 tcp dport 8080 accept"]);
    }

    #[test]
    fn a_table_of_ebtables_is_changed_by_ebtables() {
        let drops = |name: &str, hook: Hook| base(name, hook, 0, vec![rule(&[drop()])]);
        let [fix, _] = help(&bridge("filter", drops("FORWARD", Hook::Forward)));
        assert_eq!(
            fix,
            [
                "ebtables-nft -t filter -I FORWARD 1 -p IPv4 --ip-src 10.88.0.0/24 --ip-dst 10.88.0.0/24 -j ACCEPT",
                "ebtables-nft -t filter -I FORWARD 1 -p ARP -j ACCEPT",
            ]
        );
        let [fix, advice] = help(&bridge("filter", drops("OUTPUT", Hook::Output)));
        assert_eq!(
            fix,
            [
                "ebtables-nft -t filter -I OUTPUT 1 -p ARP --arp-ip-dst 10.88.0.0/24 -j ACCEPT",
                "ebtables-nft -t filter -I OUTPUT 1 -p IPv4 --ip-src 10.88.0.1 --ip-dst 10.88.0.0/24 -j ACCEPT",
                "ebtables-nft -t filter -I OUTPUT 1 -p IPv4 --ip-dst 10.88.0.2 --ip-proto tcp --ip-dport 80 -j ACCEPT",
            ]
        );
        assert!(advice.iter().any(|one| one.contains("no rule there tells answers")), "{advice:?}");
    }

    /// A policy stays, too.
    #[test]
    fn a_policy_that_drops_frames_stays() {
        let parts = vec![rule(&[iifname("veth3"), accept()])];
        let policy = dropping(base("c", Hook::Input, 0, parts));
        let [fix, _] = help(&bridge("own", policy));
        assert_eq!(
            fix,
            [
                "nft add rule bridge own c arp saddr ip 10.88.0.0/24 accept",
                "nft add rule bridge own c ip saddr 10.88.0.0/24 ip daddr 10.88.0.1 accept",
                "nft add rule bridge own c ip saddr 10.88.0.0/24 accept",
                "nft add rule bridge own c ip saddr 10.88.0.2 tcp sport 80 accept",
            ]
        );
    }

    #[test]
    fn arptables_lets_requests_pass() {
        let chain = base("INPUT", Hook::Input, 0, vec![rule(&[drop()])]);
        let [fix, _] = help(&with(node(), table(Kin::Arp, "filter", vec![chain])));
        assert_eq!(fix, ["arptables-nft -t filter -I INPUT 1 -s 10.88.0.0/24 -j ACCEPT"]);
    }
}
