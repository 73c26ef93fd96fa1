//! Filters between two containers of a network.
//!
//! A connection, a datagram and an echo request are tried: many firewalls let only the last one
//! pass, and then `ping` shows nothing.

use std::net::IpAddr;

use super::say::{self, Sort};
use super::{FilterStop, caught};
use crate::Look;
use crate::filter::{Payload, Port};
use crate::finding::Finding;
use crate::model::{Scene, Transport};
use crate::path::{Site, Trip, carries, echo};

/// The protocols of connections and of echo requests, by name.
pub(super) const TCP: &str = "TCP";
const ICMP: &str = "ICMP";

/// What is sent to an address, with the name of its protocol.
fn tried(to: IpAddr) -> [(&'static str, Payload); 3] {
    [
        (TCP, carries(Transport::Tcp, Port::Any)),
        ("UDP", carries(Transport::Udp, Port::Any)),
        (ICMP, echo(to)),
    ]
}

/// Returns the filters that stop what a container sends to another one, each with the protocols.
pub(super) fn stopped(
    scene: &Scene,
    from: &Site<'_>,
    to: &Site<'_>,
) -> Vec<(FilterStop, Vec<&'static str>)> {
    let mut stopped: Vec<(FilterStop, Vec<&'static str>)> = Vec::new();
    for (name, with) in tried(to.address) {
        for one in caught(scene, &Trip::Between { from, to, with }) {
            match stopped.iter_mut().find(|(known, _)| known.is_at(&one)) {
                Some((_, names)) => names.push(name),
                None => stopped.push((one, vec![name])),
            }
        }
    }
    // Who drops echo requests alone means to.
    stopped.retain(|(_, names)| *names != [ICMP]);
    stopped
}

pub(super) fn judge(look: Look<'_>, from: &Site<'_>, to: &Site<'_>) -> Vec<Finding> {
    let trips = tried(to.address).map(|(_, with)| Trip::Between { from, to, with });
    let stopped = stopped(look.scene, from, to).into_iter();
    let found = stopped.flat_map(|(one, names)| {
        say::all(look, from, &Sort::Between(&names, to.address), &trips, &[one])
    });
    found.collect()
}

/// Names the protocols that do not pass, if others do.
pub(super) fn by(names: &[&str]) -> String {
    match names.len() {
        3 => String::new(),
        _ => format!(" by {}", names.join(" and ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::samples::{base, drop, established, protocol, rule, table};
    use crate::model::filter::{Family as Kin, Hook, LegacyTable, Step};
    use crate::path::samples::{node, with};
    use crate::question::Answers;

    /// A bridge on which the node has no address, whose frames the filters of IP see.
    fn isolated() -> Scene {
        let mut scene = node();
        scene.networks[0].outbound = false;
        let host = &mut scene.host;
        host.filter.tables.clear();
        host.links.iter_mut().find(|link| link.name == "cni0").unwrap().addresses.clear();
        host.routes.retain(|route| route.hops[0].link != Some(3));
        host.sysctls.insert("net.bridge.bridge-nf-call-iptables".to_owned(), "1".to_owned());
        for container in &mut scene.containers {
            let attachment = &mut container.attachments[0];
            attachment.gateways.clear();
            attachment.ports.clear();
            attachment.plugins = vec!["bridge".to_owned()];
            let inside = container.inside.as_mut().unwrap();
            inside.routes.retain(|route| route.hops[0].via.is_none());
        }
        scene
    }

    /// What is said, and the fixes.
    fn told(scene: &Scene) -> Vec<String> {
        let answers = Answers::default();
        let found = super::super::judge(Look { scene, answers: &answers, only: None, to: None });
        let line =
            |one: Finding| format!("{}; {}", one.says, [one.fix, one.advice].concat().join("; "));
        let mut lines: Vec<String> = found.into_iter().map(line).collect();
        lines.dedup();
        lines
    }

    fn legacy(chains: &[&str], rules: &[&str]) -> Scene {
        let text = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<String>>();
        let mut scene = isolated();
        scene.host.filter.legacy = vec![LegacyTable {
            ipv4: true,
            name: "filter".to_owned(),
            policies: vec![("FORWARD".to_owned(), "DROP".to_owned())],
            chains: text(chains),
            rules: text(rules),
        }];
        scene
    }

    const DOCKER: [&str; 4] = [
        "-A FORWARD -j DOCKER-USER",
        "-A FORWARD -j DOCKER-FORWARD",
        "-A DOCKER-FORWARD -o docker0 -j DOCKER",
        "-A DOCKER-FORWARD -i docker0 -j ACCEPT",
    ];

    const UFW: [&str; 6] = [
        "-A FORWARD -j ufw-before-logging-forward",
        "-A FORWARD -j ufw-before-forward",
        "-A FORWARD -j ufw-track-forward",
        "-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-A ufw-before-forward -p icmp -m icmp --icmp-type 8 -j ACCEPT",
        "-A ufw-before-forward -j ufw-user-forward",
    ];

    /// Both have chains without rules, and Docker a policy that drops. Echo requests pass.
    #[test]
    fn docker_and_ufw_in_legacy_iptables() {
        let chains = [
            "DOCKER",
            "DOCKER-USER",
            "DOCKER-FORWARD",
            "ufw-before-logging-forward",
            "ufw-before-forward",
            "ufw-track-forward",
            "ufw-user-forward",
        ];
        let policy = "iptables filter/FORWARD policy drops the packets";
        let mut both = legacy(&chains, &[&DOCKER[..], &UFW].concat());
        let says = |fix: &str| {
            format!("containers of mynet do not reach each other by TCP and UDP: {policy}; {fix}")
        };
        let accept = "-s 10.88.0.0/24 -d 10.88.0.0/24 -j ACCEPT";
        let left_over = format!("iptables-legacy -t filter -A FORWARD {accept}");
        let route = "ufw route allow from 10.88.0.0/24 to 10.88.0.0/24".to_owned();
        for (firewalls, fix) in [(vec![], left_over), (vec!["ufw".to_owned()], route)] {
            both.firewalls = firewalls;
            assert_eq!(told(&both), [says(&fix)]);
        }
        assert_eq!(
            told(&legacy(&chains[..3], &DOCKER)),
            [format!(
                "containers of mynet do not reach each other: {policy}; \
                 iptables-legacy -t filter -A DOCKER-USER -s 10.88.0.0/24 -d 10.88.0.0/24 \
                 -j ACCEPT"
            )]
        );
        let mut hidden = legacy(&chains[..3], &DOCKER);
        hidden.host.sysctls.clear();
        assert_eq!(told(&hidden), [""; 0]);
    }

    #[test]
    fn the_protocols_that_do_not_pass_are_named() {
        let says = |parts: &[Vec<Step>]| -> Vec<String> {
            let forward = base("FORWARD", Hook::Forward, 0, vec![rule(parts)]);
            let lines = told(&with(isolated(), table(Kin::Ip, "filter", vec![forward])));
            lines.iter().filter_map(|line| Some(line.split_once(';')?.0.to_owned())).collect()
        };
        let place = "ip filter/FORWARD rule 1 drops";
        let all = "containers of mynet do not reach each other";
        assert_eq!(says(&[drop()]), [format!("{all}: {place} the packets")]);
        assert_eq!(says(&[protocol(6), drop()]), [format!("{all} by TCP: {place} the packets")]);
        assert_eq!(says(&[protocol(17), drop()]), [format!("{all} by UDP: {place} the packets")]);
        assert_eq!(says(&[protocol(1), drop()]), [""; 0]);
        assert_eq!(says(&[established(), drop()]), [format!("{all}: {place} the answers")]);
    }
}
