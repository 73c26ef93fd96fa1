//! Gateways that other machines are, and that do not answer a container.
//!
//! This node asks for the same gateway. If it is answered, the gateway is there, and what lies between
//! it and the container tells the two apart.

use std::net::IpAddr;

use net::IpFamily;

use super::super::ways::{obstacles, samples};
use super::super::{asks_links, interfaces};
use super::{OUT, hears};
use crate::Look;
use crate::finding::Finding;
use crate::model::Link;
use crate::path::{Interface, Joint, Site, may_ask, uplinks_of};
use crate::question::{Answer, Question};
use crate::routes::{RouteDecision, look_up};

/// A container's interface with the gateway that another machine is, or should be.
struct GatewayInterface<'s> {
    interface: Interface<'s>,
    gateway: IpAddr,
}

fn gateways(look: Look<'_>) -> impl Iterator<Item = GatewayInterface<'_>> {
    interfaces(look).filter_map(move |interface| {
        let gateway = interface.router(look.scene)?;
        Some(GatewayInterface { interface, gateway })
    })
}

/// A container with a device that the node has lent asks by it, and the node asks who has the gateway's
/// address, too. Of others, `segments` asks.
pub(super) fn asks(look: Look<'_>) -> Vec<Question> {
    let mut all: Vec<Question> = Vec::new();
    for GatewayInterface { interface, gateway } in gateways(look) {
        let Interface { container, link, site, .. } = &interface;
        if site.is_none() {
            all.push(super::echo(container, gateway));
            if asks_links(look) && interface.may_ask() {
                all.push(Question::who_has(Some(container), &link.name, gateway));
            }
        }
        let of_node = near(look, &interface, gateway).filter(|_| asks_links(look));
        let of_node = of_node.map(|near| Question::who_has(None, &near.name, gateway));
        all.extend(of_node.filter(|question| !all.contains(question)));
    }
    all
}

/// Returns the node's link by which it can ask for a container's gateway: the parent, the bridge, or
/// the one to which its own route leads.
fn near<'s>(look: Look<'s>, interface: &Interface<'s>, gateway: IpAddr) -> Option<&'s Link> {
    let host = &look.scene.host;
    let site = interface.site.as_ref();
    let own = site.and_then(|site| match site.joint {
        Joint::Macvlan(_) | Joint::Ipvlan(_) => Some(site.host_end),
        Joint::Pair => site.bridge,
        Joint::Vlan | Joint::Switch => None,
    });
    let routed = match look_up(host, None, gateway, None, Some(0)) {
        RouteDecision::By { link, via: None, .. } => Some(link),
        _ => None,
    };
    // A port of a bridge hears nothing itself. The end of a pair leads to the container.
    let is_usable = |link: &&Link| {
        link.master.is_none()
            && site.is_none_or(|site| !site.is_routed() || site.host_end.index != link.index)
            && may_ask(link, interface.family, None)
    };
    own.filter(is_usable).or(routed.filter(is_usable))
}

/// What this node heard of the same gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeHearing<'s> {
    /// It was answered by a link.
    Answer(&'s Link),
    /// Nobody answered it by a link either.
    Silence(&'s Link),
    /// It has not asked.
    Unasked,
}

impl<'s> NodeHearing<'s> {
    fn of(look: Look<'s>, one: &GatewayInterface<'s>) -> Self {
        let Some(link) = near(look, &one.interface, one.gateway) else { return Self::Unasked };
        let asked = Question::who_has(None, &link.name, one.gateway);
        match look.answers.to(&asked).and_then(Answer::has_owner) {
            Some(false) => Self::Silence(link),
            Some(true) => Self::Answer(link),
            None => Self::Unasked,
        }
    }
}

/// Gateways of one interface that do not answer: one for each IP version.
struct SilentGateways<'s> {
    interface: Interface<'s>,
    gateways: Vec<IpAddr>,
    node: NodeHearing<'s>,
}

pub(super) fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut all: Vec<SilentGateways<'_>> = Vec::new();
    for one in gateways(look) {
        let GatewayInterface { interface, gateway } = &one;
        let heard = hears(look, interface.container, interface.link, *gateway);
        // Without a carrier nothing can be asked.
        let is_cut = interface.site.is_none() && interface.link.up && !interface.link.carrier;
        if heard != Some(false) && !(heard.is_none() && is_cut) {
            continue;
        }
        let node = NodeHearing::of(look, &one);
        // The other IP version of the same interface comes right after it, or not far from it.
        let same = all
            .iter_mut()
            .rev()
            .take_while(|known| known.interface.container.id == interface.container.id);
        let mut same = same.filter(|known| {
            known.interface.link.index == interface.link.index && known.node == node
        });
        match same.next() {
            Some(known) => known.gateways.push(*gateway),
            None => {
                let gateways = vec![one.gateway];
                all.push(SilentGateways { interface: one.interface, gateways, node });
            }
        }
    }
    all.iter().map(|silent| silent.tell(look)).collect()
}

impl SilentGateways<'_> {
    fn tell(&self, look: Look<'_>) -> Finding {
        let Interface { container, link, .. } = &self.interface;
        let (called, ifname) = (container.called(), &link.name);
        let names: Vec<String> = self.gateways.iter().map(ToString::to_string).collect();
        let names = names.join(" and ");
        let (which, does) = match self.gateways.len() {
            1 => ("the gateway", "does"),
            _ => ("the gateways", "do"),
        };
        let is_routed = self.interface.site.as_ref().is_some_and(Site::is_routed);
        let says = match self.node {
            NodeHearing::Answer(near) => format!(
                "{which} {names} {} this node by {}, and not {called}",
                if self.gateways.len() == 1 { "answers" } else { "answer" },
                near.name
            ),
            _ if is_routed => format!(
                "{which} {names}, for which this node should answer, {does} not answer {called}"
            ),
            _ => format!("{which} {names}, another machine, {does} not answer {called}"),
        };
        let own = format!(
            "no request for its hardware address that {called} sent by its {ifname} was answered"
        );
        let seen = match self.node {
            NodeHearing::Answer(near) => {
                format!("{own}; one that this node sent by its {} was", near.name)
            }
            NodeHearing::Silence(near) => {
                format!("{own}, and none that this node sent by its {}", near.name)
            }
            NodeHearing::Unasked if !link.carrier => format!("{ifname} of {called} has no carrier"),
            NodeHearing::Unasked => own,
        };
        let finding = Finding::error("router-silent", format!("{called}: {names}"), says)
            .seen(seen)
            .hits(container.id.clone());
        let finding = self.to_do(look, &names).into_iter().fold(finding, Finding::advise);
        let finding = self.instead(look).into_iter().fold(finding, Finding::advise);
        self.gateways.iter().fold(finding, |finding, gateway| {
            let family = Some(IpFamily::of(*gateway));
            OUT.iter().fold(finding, |finding, kind| finding.breaks(*kind, family))
        })
    }

    /// Gateways that the node does not hear either, in whose subnet its own router is.
    fn instead(&self, look: Look<'_>) -> Vec<String> {
        if matches!(self.node, NodeHearing::Answer(_)) {
            return Vec::new();
        }
        let Interface { container, attachment, link, .. } = &self.interface;
        let of = |gateway: &IpAddr| {
            let [to, ..] = samples(IpFamily::of(*gateway));
            let router = obstacles::node_router(look.scene, link, *gateway, to)?;
            Some(obstacles::instead(look.scene, container, attachment, *gateway, router))
        };
        self.gateways.iter().filter_map(of).collect()
    }

    /// Where to look.
    fn to_do(&self, look: Look<'_>, names: &str) -> Vec<String> {
        let Interface { container, link, site, .. } = &self.interface;
        let (called, ifname) = (container.called(), &link.name);
        let Some(site) = site else {
            let port = format!("the switch's port behind {ifname} of {called}");
            return vec![match self.node {
                NodeHearing::Answer(near) => format!(
                    "look at {port}, and at its VLAN: {names} is there, and this node reaches it by its own {}, another port",
                    near.name
                ),
                _ => format!("look at {names}, at {port}, and at its VLAN"),
            }];
        };
        let end = &site.host_end.name;
        let is_answered = matches!(self.node, NodeHearing::Answer(_));
        let mac = link.mac.as_deref().unwrap_or("its hardware address");
        vec![match (site.joint, site.bridge) {
            (Joint::Macvlan(_), _) if is_answered => format!(
                "let what is behind {end} take frames of {mac}, too, which {ifname} of {called} has: a switch may take one address of a port alone (port security), or a hypervisor only that of its guest (\"forged transmits\"), or it is a wireless link; an ipvlan has the address of {end} itself"
            ),
            (Joint::Vlan, _) => format!(
                "look at {names}, and at whether what is behind {end} carries VLAN {}",
                link.vlan.map_or("of the link".to_owned(), |vlan| vlan.to_string())
            ),
            (Joint::Pair, Some(bridge)) if is_answered => {
                format!("look at {end}, the port of {} that leads to {called}", bridge.name)
            }
            (Joint::Pair, Some(bridge)) if uplinks_of(look.scene, bridge).is_empty() => format!(
                "give bridge {} a port that leads to {names}: each port that it has leads to a container",
                bridge.name
            ),
            (Joint::Pair, Some(bridge)) => {
                format!("look at {names}, and at the switch behind {}", bridge.name)
            }
            (Joint::Pair, None) => format!(
                "look at what should answer for {names} on {end}: proxy_arp of {end}, the node's route to {names}, and its packet filters"
            ),
            _ => format!("look at {names}, and at the switch behind {end}"),
        }]
    }
}
