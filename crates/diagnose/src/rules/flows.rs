//! Flows that the kernel tracks, and that lead to no container.
//!
//! Only the first packet of a flow is translated by rules; the others follow it. A client of UDP
//! that goes on sending from one port never begins again.

mod led;

use std::collections::BTreeSet;
use std::net::IpAddr;

use net::IpFamily;

use super::{Rule, containers};
use crate::Look;
use crate::finding::{Finding, WayKind};
use crate::model::{Attachment, Container, Flow, Part, Port, Scene, Transport};

pub(super) const RULE: Rule = Rule {
    judges: "flows of UDP that were translated",
    ids: &["flow-stale"],
    // Without them an address seems to have no owner, and a port no listener.
    needs: &[Part::Links, Part::Listeners, Part::Conntrack],
    asks: led::asks,
    judge,
    ..Rule::NONE
};

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    if look.scene.flows.is_empty() {
        return found;
    }
    for container in containers(look) {
        for attachment in &container.attachments {
            for port in attachment.ports.iter().filter(|port| port.transport == Transport::Udp) {
                let flows = look.scene.flows.iter();
                let stale: Vec<&Flow> = flows
                    .filter(|flow| is_to(look.scene, flow, port))
                    .filter(|flow| leads_to_nobody(look.scene, flow, attachment))
                    .collect();
                found.extend(told(container, port, &stale));
            }
        }
    }
    found.extend(led::judge(look));
    found
}

/// Says whether a flow is to a published port, at an address of this node.
fn is_to(scene: &Scene, flow: &Flow, port: &Port) -> bool {
    let at = flow.to.ip();
    let address = port.host_ip.filter(|address| !address.is_unspecified());
    flow.to.port() == port.host
        && address.is_none_or(|address| address == at)
        && (scene.host.owner_of(at).is_some() || at.is_loopback())
}

/// Says whether packets of a flow surely go neither to the container nor to another machine.
fn leads_to_nobody(scene: &Scene, flow: &Flow, attachment: &Attachment) -> bool {
    let end = flow.leads_to.ip();
    let mut own = attachment.addresses.iter().map(ipnet::IpNet::addr);
    // Without an address of this IP version the port is not published by it.
    if !own.clone().any(|address| address.is_ipv4() == end.is_ipv4()) || own.any(|one| one == end) {
        return false;
    }
    if end == flow.to.ip() {
        return !is_listened_on(scene, flow);
    }
    let mut pools = scene.networks.iter().flat_map(|network| &network.subnets);
    pools.any(|pool| pool.contains(&end)) && !has_owner(scene, end)
}

fn is_listened_on(scene: &Scene, flow: &Flow) -> bool {
    scene.host.listeners.iter().any(|listener| {
        listener.transport == Transport::Udp && listener.at.port() == flow.leads_to.port()
    })
}

/// A container whose namespace could not be read has what ADD gave it.
fn has_owner(scene: &Scene, address: IpAddr) -> bool {
    let living = scene.containers.iter().filter(|container| container.alive != Some(false));
    let mut given = living.flat_map(|one| &one.attachments).flat_map(|one| &one.addresses);
    scene.host.owner_of(address).is_some() || given.any(|net| net.addr() == address)
}

fn told(container: &Container, port: &Port, stale: &[&Flow]) -> Option<Finding> {
    let first = stale.first()?;
    let called = container.called();
    let (host, end) = (port.host, first.leads_to.ip());
    let whose = if end == first.to.ip() {
        "this node, where no program listens".to_owned()
    } else {
        format!("{end}, which no machine has")
    };
    let says = format!("UDP packets to published port {host} of {called} still go to {whose}");
    let mut ends: BTreeSet<(IpAddr, IpAddr)> = BTreeSet::new();
    ends.extend(stale.iter().map(|flow| (flow.to.ip(), flow.leads_to.ip())));
    let finding = Finding::error("flow-stale", format!("{host}/udp of {}", container.id), says)
        .at(format!("{} to {}, answered by {}", first.client, first.to, first.leads_to))
        .seen(format!("the kernel tracks {} such flows", stale.len()))
        .hits(container.id.clone());
    // Sound flows to the port stay as they are.
    let finding = ends.into_iter().fold(finding, |finding, (to, end)| {
        let version = if end.is_ipv4() { "" } else { "-f ipv6 " };
        finding.fix(format!(
            "conntrack {version}-D -p udp --orig-dst {to} --orig-port-dst {host} --reply-src {end}"
        ))
    });
    Some(finding.breaks(WayKind::Published, Some(IpFamily::of(end))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::samples::node;
    use crate::question::Answers;

    fn found(scene: &Scene) -> Vec<Finding> {
        let answers = Answers::default();
        judge(Look { scene, answers: &answers, only: None, to: None })
    }

    fn told(scene: &Scene) -> Vec<String> {
        found(scene).into_iter().map(|finding| finding.says).collect()
    }

    fn fixes(scene: &Scene) -> Vec<String> {
        found(scene).into_iter().flat_map(|finding| finding.fix).collect()
    }

    fn flow(to: &str, leads_to: &str) -> Flow {
        Flow {
            client: "198.51.100.9:5060".parse().unwrap(),
            to: to.parse().unwrap(),
            leads_to: leads_to.parse().unwrap(),
        }
    }

    #[test]
    fn flows_that_lead_to_the_container_or_to_others_are_sound() {
        let mut scene = node();
        scene.containers[0].attachments[0].ports =
            vec![Port { transport: Transport::Udp, host: 5060, host_ip: None, container: 60 }];
        scene.flows = vec![
            flow("192.0.2.2:5060", "10.88.0.2:60"),
            // Another container's, another machine's, and another port.
            flow("192.0.2.2:5060", "10.88.0.3:60"),
            flow("192.0.2.77:5060", "192.0.2.77:5060"),
            flow("192.0.2.2:53", "10.88.0.99:53"),
            // Another program's translation.
            flow("192.0.2.2:5060", "172.17.0.2:60"),
        ];
        assert_eq!(told(&scene), [""; 0]);
        scene.flows = vec![flow("192.0.2.2:5060", "10.88.0.99:60")];
        let says =
            "UDP packets to published port 5060 of c2 still go to 10.88.0.99, which no machine has";
        assert_eq!(told(&scene), [says]);
        // One line for each address and each end.
        scene.flows.push(scene.flows[0]);
        scene.flows.push(flow("192.0.2.2:5060", "10.88.0.98:60"));
        let line = |end: &str| {
            format!(
                "conntrack -D -p udp --orig-dst 192.0.2.2 --orig-port-dst 5060 --reply-src {end}"
            )
        };
        assert_eq!(fixes(&scene), [line("10.88.0.98"), line("10.88.0.99")]);
        scene.flows = vec![flow("[2001:db8::2]:5060", "[2001:db8::2]:5060")];
        let says = "UDP packets to published port 5060 of c2 still go to this node, where no program listens";
        assert_eq!(told(&scene), [says]);
        scene.containers[0].attachments[0].ports[0].transport = Transport::Tcp;
        assert_eq!(told(&scene), [""; 0]);
    }
}
