//! Rules that lead what containers send beyond the node elsewhere: all of it to one machine, or what
//! is for some ports to a program of the node, or of the container itself: a proxy. Where none
//! listens, the kernel refuses the connections.

use std::net::{IpAddr, SocketAddr};

use super::say::Sort;
use super::{fix, tried};
use crate::Look;
use crate::filter::{Layer, NewDestination, Packet, Payload, Port, walk};
use crate::finding::{Finding, Severity, WayKind};
use crate::model::filter::Hook;
use crate::model::{Container, Listener, Part, Transport};
use crate::path::{RARE_PORT, Site, carries, echo};
use crate::question::NAMES;
use crate::trial::Trial;
use crate::whose::{self, Owner};

/// The ports for which there are proxies: of HTTP and HTTPS.
const PORTS: [u16; 2] = [80, 443];

pub(super) fn judge(look: Look<'_>, site: &Site<'_>, beyond: &[IpAddr]) -> Vec<Finding> {
    let of_all = diverted(look, site, beyond);
    let mut found = Vec::new();
    for port in PORTS {
        for inside in [None, Some(site.container)] {
            if inside.is_none() && of_all.is_some() {
                continue;
            }
            found.extend(missing(look, site, beyond, port, inside));
        }
    }
    found
}

/// Returns the finding of a rule of the node that leads all that a container sends beyond the node
/// elsewhere, whatever the port. One that names a port of the node is for a proxy.
pub(super) fn diverted(look: Look<'_>, site: &Site<'_>, beyond: &[IpAddr]) -> Option<Finding> {
    let host = &look.scene.host;
    if !site.is_the_nodes() {
        return None;
    }
    let led = |to: IpAddr, with: Payload| site.enter(host, to, with).destination;
    let port = |by: Transport, port: u16| carries(by, Port::Is(port));
    // Rules for one port may come first, and that one is not among these.
    let (place, new) = led(*beyond.first()?, port(Transport::Tcp, RARE_PORT))?;
    let is_led = |to: IpAddr, with: Payload| led(to, with).is_some_and(|(one, _)| one == place);
    let is_all = |by: Transport, own: &[u16]| {
        let ports = || own.iter().chain([&RARE_PORT]);
        beyond.iter().all(|to| ports().all(|one| is_led(*to, port(by, *one))))
    };
    let to = match new {
        NewDestination::Here(Some(_)) => return None,
        NewDestination::To(Some(address), Some(_)) if host.owner_of(address).is_some() => {
            return None;
        }
        NewDestination::To(Some(address), None) => address.to_string(),
        NewDestination::To(Some(address), Some(port)) => SocketAddr::new(address, port).to_string(),
        NewDestination::To(None, Some(port)) => format!("port {port} alone"),
        NewDestination::Here(None) => "this node itself".to_owned(),
        NewDestination::To(None, None) | NewDestination::Unknown => "other machines".to_owned(),
    };
    let is_ours = whose::owner_of(&place, look.scene).is_some_and(|(one, _)| one == Owner::Ours);
    if is_ours || !is_all(Transport::Tcp, &PORTS) {
        return None;
    }
    let is_udp = is_all(Transport::Udp, &[NAMES]);
    let by = if is_udp { "" } else { " by TCP" };
    let (name, family) = (place.name(), Some(site.family()));
    let says = format!(
        "what containers of {} send beyond this node{by} goes to {to}: {name} leads all of it there",
        site.attachment.network
    );
    let finding = Finding::error("port-redirected", name, says)
        .at(place.to_string())
        .seen(format!(
            "by the rules as they are, a packet from {}{by} to any address beyond this node is led there",
            site.address
        ))
        .hits(site.container.id.clone())
        .breaks(WayKind::Outside, family);
    let is_gateway = site.gateway.is_some_and(|gateway| is_led(gateway, echo(gateway)));
    let more = [(is_udp, WayKind::Names), (is_gateway, WayKind::Gateway)];
    let finding = more
        .into_iter()
        .filter(|(is_led, _)| *is_led)
        .fold(finding, |finding, (_, kind)| finding.breaks(kind, family));
    // Who answers may be meant to.
    let severity = match tried::tried(look, site, &Sort::Outside, false) {
        Trial::Works => Severity::Warning,
        Trial::Fails | Trial::Never => Severity::Error,
    };
    let finding = Finding { severity, whose: whose::of_place(&place, look.scene), ..finding };
    let finding = fix::removal(&place, None).into_iter().fold(finding, Finding::help);
    Some(finding.advise(
        "or let the rule match no more than it is for, as by the link where packets come in",
    ))
}

/// A rule of the node, or of the container, leads all connections to a port elsewhere.
fn missing(
    look: Look<'_>,
    site: &Site<'_>,
    beyond: &[IpAddr],
    port: u16,
    inside: Option<&Container>,
) -> Option<Finding> {
    let is_hidden = look.scene.lacks(Part::Listeners, inside.map(|one| one.id.as_str()));
    if is_hidden || (inside.is_none() && !site.is_the_nodes()) {
        return None;
    }
    let (namespace, hook) = match inside {
        None => (&look.scene.host, Hook::Prerouting),
        Some(_) => (site.inside, Hook::Output),
    };
    let with = carries(Transport::Tcp, Port::Is(port));
    let mut led = beyond.iter().map(|to| {
        let packet = Packet { macs: site.macs_out(), ..Packet::first(site.address, *to, with) };
        let packet = match inside {
            None => packet.between(Some(&site.seen_by.name), None),
            Some(_) => packet.between(None, Some(&site.link.name)),
        };
        walk(namespace, Layer::Ip, hook, &packet).destination
    });
    let (place, new) = led.next()??;
    if !led.all(|other| other.is_some_and(|(other, _)| other == place)) {
        return None;
    }
    let at = match new {
        NewDestination::Here(at) => at.unwrap_or(port),
        NewDestination::To(Some(address), at) if namespace.owner_of(address).is_some() => {
            at.unwrap_or(port)
        }
        _ => return None,
    };
    // What comes in by a link is not for loopback.
    let serves = |one: &Listener| {
        one.transport == Transport::Tcp
            && one.at.port() == at
            && (inside.is_some() || !one.at.ip().is_loopback())
    };
    if namespace.listeners.iter().any(serves) {
        return None;
    }
    let (name, called) = (place.name(), site.container.called());
    let (object, sender, of_whom, netns) = match inside {
        None => {
            let sender = format!("containers of {}", site.attachment.network);
            (name.clone(), sender, "this node", None)
        }
        Some(own) => {
            let object = format!("{}: {name}", own.id);
            (object, called.to_owned(), called, Some(own.netns.as_str()))
        }
    };
    let says = format!(
        "connections of {sender} to port {port} are led to port {at} of {of_whom} by {name}, and no program listens there"
    );
    let finding = Finding::error("proxy-missing", object, says)
        .at(place.to_string())
        .seen(format!("no program of {of_whom} listens on port {at}/tcp"))
        .hits(site.container.id.clone())
        .breaks(WayKind::Outside, Some(site.family()));
    let whose = match inside {
        None => whose::of_place(&place, look.scene),
        Some(own) => Some(format!("{}, or who set it up", own.called())),
    };
    let finding = Finding { whose, ..finding };
    let start = format!("start the program that is to listen on port {at}");
    let removed = fix::remove(&place, netns);
    // A container's owner may have it so that nothing goes past the program.
    Some(match inside {
        None => {
            finding.advise(format!("{start}; if there is to be none, remove the rule")).fix(removed)
        }
        Some(_) => finding.advise(format!(
            "{start}; if there is to be none, and {sender} may send past it, remove the rule: {removed}"
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::samples::{iifname, nat, rule, table, tcp_port};
    use crate::model::Scene;
    use crate::model::filter::{Family as Kin, Step};
    use crate::path::samples::{node, with};
    use crate::question::Answers;

    fn told(scene: &Scene) -> Vec<String> {
        let answers = Answers::default();
        let found = super::super::judge(Look { scene, answers: &answers, only: None, to: None });
        let mut told: Vec<String> =
            found.into_iter().map(|one| format!("{} {}", one.id, one.object)).collect();
        told.dedup();
        told
    }

    fn listen(listeners: &mut Vec<Listener>, at: &str) {
        listeners.push(Listener {
            transport: Transport::Tcp,
            at: at.parse().unwrap(),
            v6only: false,
            pid: None,
            program: None,
            full: None,
            stopped: false,
            frozen: None,
        });
    }

    fn redirect(hook: Hook, parts: &[Vec<Step>]) -> crate::model::filter::Table {
        let parts = [parts, &[vec![Step::Redirect { port: None }]]].concat();
        table(Kin::Ip, "proxy", vec![nat("lead", hook, -100, vec![rule(&parts)])])
    }

    #[test]
    fn a_proxy_of_the_node_that_does_not_run() {
        let own = redirect(Hook::Prerouting, &[iifname("cni0"), tcp_port(80)]);
        let mut scene = with(node(), own);
        let object = "proxy-missing ip proxy/lead rule 1";
        assert_eq!(told(&scene), [object]);
        listen(&mut scene.host.listeners, "127.0.0.1:80");
        assert_eq!(told(&scene), [object]);
        listen(&mut scene.host.listeners, "0.0.0.0:80");
        assert_eq!(told(&scene), [""; 0]);
    }

    #[test]
    fn a_proxy_within_a_container() {
        let mut scene = node();
        let inside = scene.containers[0].inside.as_mut().unwrap();
        inside.filter.tables = vec![redirect(Hook::Output, &[tcp_port(443)])];
        assert_eq!(told(&scene), ["proxy-missing c2: ip proxy/lead rule 1"]);
        let answers = Answers::default();
        let look = Look { scene: &scene, answers: &answers, only: None, to: None };
        let found = super::super::judge(look);
        assert_eq!(found[0].fix, [""; 0]);
        let advice = "start the program that is to listen on port 443; if there is to be none, and c2 \
                      may send past it, remove the rule: nsenter --net=/run/netns/c2 nft delete rule";
        assert!(found[0].advice[0].starts_with(advice), "{found:#?}");
        let inside = scene.containers[0].inside.as_mut().unwrap();
        listen(&mut inside.listeners, "127.0.0.1:443");
        assert_eq!(told(&scene), [""; 0]);
    }
}
