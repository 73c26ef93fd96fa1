//! What a container has lost that nothing compares: its network sets `disableCheck`, its version
//! has no CHECK, or another project's plugin does not look. Only what surely breaks it is judged.

mod of_node;

use std::net::IpAddr;

use net::IpFamily;

use super::{Rule, containers, ip, is_on_parent, is_outbound};
use crate::Look;
use crate::command::within;
use crate::finding::{Finding, WayKind};
use crate::model::{Attachment, Container, Link, Namespace, Part};

pub(super) const RULE: Rule = Rule {
    judges: "interfaces of containers",
    ids: &["inside-differs"],
    inside: &[Part::Links, Part::Routes],
    judge,
    ..Rule::NONE
};

/// The node's side of them.
pub(super) const OF_NODE: Rule = Rule {
    judges: "links and addresses of containers on this node",
    ids: &[of_node::ID],
    needs: &[Part::Links],
    inside: &[Part::Links],
    judge: of_node::judge,
    ..Rule::NONE
};

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for container in containers(look) {
        let Some(inside) = &container.inside else { continue };
        for attachment in &container.attachments {
            let Some(link) = inside.link(&attachment.ifname) else { continue };
            // CHECK tells it, and what it says is more exact, but that IPv6 is switched off.
            let is_reported = !attachment.drifts.is_empty() || attachment.unfinished.is_some();
            let mut all = of_link(look, container, attachment, inside, link);
            all.retain(|finding| {
                !is_reported || is_ipv6_off(finding) || is_after_first(attachment, finding)
            });
            found.extend(all);
        }
    }
    found
}

/// Plugins of others report one difference at a time: of a default route that is lost, as the kernel
/// takes away those of both IP versions with a link that goes down, CHECK says only the first.
fn is_after_first(attachment: &Attachment, finding: &Finding) -> bool {
    let is_route = finding.says.contains(NO_DEFAULT);
    let mut drifts = attachment.drifts.iter();
    let is_of = |family: IpFamily| finding.breaks.iter().any(|way| way.family == Some(family));
    let names = |text: &str| {
        (text.contains("0.0.0.0/0") && is_of(IpFamily::V4))
            || (text.contains("::/0") && is_of(IpFamily::V6))
    };
    attachment.by_others
        && attachment.unfinished.is_none()
        && is_route
        && !drifts.any(|drift| names(&drift.what) || names(&drift.details))
}

const NO_DEFAULT: &str = " has no default route of ";

/// A link without addresses may be down by intent.
fn of_link(
    look: Look<'_>,
    container: &Container,
    attachment: &Attachment,
    inside: &Namespace,
    link: &Link,
) -> Vec<Finding> {
    let of_family = |family: IpFamily| {
        let all = attachment.addresses.iter().filter(|net| !is_of_link_alone(net.addr()));
        all.filter(move |net| IpFamily::of(net.addr()) == family)
    };
    let given = |family: IpFamily| of_family(family).next().is_some();
    let is_there = |family: IpFamily| {
        let mut all = link.addresses.iter().map(|own| own.address.addr());
        all.any(|address| IpFamily::of(address) == family && !is_of_link_alone(address))
    };
    let families = IpFamily::ALL;
    let name = &link.name;
    let route = |family| lost_route(look, container, attachment, inside, family);
    let is_gone = |family: IpFamily| given(family) && !is_there(family);
    // The kernel removes the routes of an address with it.
    let restored = |family: IpFamily| {
        let switch = ipv6_switch(inside, link, family).filter(|_| is_gone(family));
        let switch = switch.map(|switch| format!("sysctl -w {switch}=0"));
        let first = of_family(family).next().filter(|_| is_gone(family));
        let address = first.map(|first| format!("ip addr add {first} dev {name}"));
        let route = route(family).map(|(_, fix)| fix);
        switch.into_iter().chain(address).chain(route)
    };
    if !link.up && families.into_iter().any(given) {
        // With the link that goes down, it removes routes, and addresses of IPv6.
        let up = std::iter::once(format!("ip link set {name} up"));
        let fix: Vec<String> = up.chain(families.into_iter().flat_map(restored)).collect();
        return vec![told(container, attachment, &format!("{name} is down"), &fix, None)];
    }
    let of_one = |family: IpFamily| {
        if !is_gone(family) {
            let (what, fix) = route(family)?;
            return Some(without_route(container, attachment, &what, fix, family));
        }
        let own: Vec<String> = of_family(family).map(ToString::to_string).collect();
        let all = own.join(", ");
        let what = match ipv6_switch(inside, link, family) {
            Some(switch) => format!("{IPV6_OFF}{name} ({switch} is 1), and ADD gave {all}"),
            None => format!("{name} has no {family} address, and ADD gave {all}"),
        };
        let fix: Vec<String> = restored(family).collect();
        Some(told(container, attachment, &what, &fix, Some(family)))
    };
    families.into_iter().filter_map(of_one).collect()
}

/// What is said of a link on which a kernel parameter switches IPv6 off.
const IPV6_OFF: &str = "IPv6 is switched off on ";

/// Says whether a finding is that IPv6 is switched off: all that CHECK misses of it is so because of
/// that.
pub(crate) fn is_ipv6_off(finding: &Finding) -> bool {
    finding.id == "inside-differs" && finding.says.contains(IPV6_OFF)
}

/// Returns the kernel parameter that switches IPv6 off on a link, as `sysctl` takes it. If that of all
/// links is set, it switches links off that come later, too.
pub(super) fn ipv6_switch(namespace: &Namespace, link: &Link, family: IpFamily) -> Option<String> {
    let switch = |name: &str| format!("net.ipv6.conf.{name}.disable_ipv6");
    let is_off = namespace.number(&switch(&link.name)) == Some(1);
    (family == IpFamily::V6 && is_off).then(|| match is_ipv6_off_on_all(namespace) {
        true => OFF_ON_ALL.to_owned(),
        false => switch(&link.name.replace('.', "/")),
    })
}

const OFF_ON_ALL: &str = "net.ipv6.conf.all.disable_ipv6";

/// Says whether IPv6 was switched off on all links (linux net/ipv6/addrconf.c
/// `addrconf_disable_ipv6`).
pub(super) fn is_ipv6_off_on_all(namespace: &Namespace) -> bool {
    namespace.number(OFF_ON_ALL) == Some(1)
}

/// The kernel makes such an address itself.
fn is_of_link_alone(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// A container without a default route in any table, although the network leads beyond the node, and
/// ADD reported one of this IP version, or the configuration asks for it: what is so, and the command
/// that mends it.
fn lost_route(
    look: Look<'_>,
    container: &Container,
    attachment: &Attachment,
    inside: &Namespace,
    family: IpFamily,
) -> Option<(String, String)> {
    let network = look.scene.networks.iter().find(|one| one.name == attachment.network);
    let asked = network.iter().flat_map(|network| &network.default_routes);
    let mut asked = asked.chain(&attachment.default_routes);
    let mut routes = inside.routes.iter();
    let is_asked = asked.any(|net| IpFamily::of(net.addr()) == family);
    let is_there =
        routes.any(|route| route.to.prefix_len() == 0 && IpFamily::of(route.to.addr()) == family);
    // Without it, no link on a parent is known to lead beyond the node.
    let mut given = attachment.default_routes.iter();
    let is_given = given.any(|net| IpFamily::of(net.addr()) == family)
        && is_on_parent(attachment.plugins.first().map(String::as_str));
    if !is_asked || is_there || !(is_given || is_outbound(look.scene, container, family)) {
        return None;
    }
    let mut gateways = attachment.gateways.iter();
    let gateway = gateways.find(|gateway| IpFamily::of(**gateway) == family)?;
    Some((
        format!("{}{NO_DEFAULT}{family}", container.called()),
        format!("{} route add default via {gateway}", ip(family)),
    ))
}

fn without_route(
    container: &Container,
    attachment: &Attachment,
    what: &str,
    fix: String,
    family: IpFamily,
) -> Finding {
    let finding = told(container, attachment, what, &[fix], Some(family));
    let kinds = [WayKind::Outside, WayKind::Names, WayKind::Published];
    let breaks = Vec::new();
    kinds
        .into_iter()
        .fold(Finding { breaks, ..finding }, |finding, kind| finding.breaks(kind, Some(family)))
}

fn told(
    container: &Container,
    attachment: &Attachment,
    what: &str,
    fix: &[String],
    family: Option<IpFamily>,
) -> Finding {
    let Attachment { network, ifname, .. } = attachment;
    let says = format!("{ifname} of {} on {network}: {what}", container.called());
    let object = format!("{network}/{}/{ifname}: {what}", container.id);
    let finding = Finding::error("inside-differs", object, says)
        .seen("CHECK does not report this: it is off, or the plugin does not compare it")
        .hits(container.id.clone());
    let tool = within(container.netns.as_str());
    let finding = fix.iter().fold(finding, |finding, line| finding.fix(format!("{tool}{line}")));
    let kinds = [
        WayKind::Gateway,
        WayKind::Outside,
        WayKind::Between,
        WayKind::FromNode,
        WayKind::Published,
        WayKind::PublishedHere,
        WayKind::Names,
    ];
    kinds.into_iter().fold(finding, |finding, kind| finding.breaks(kind, family))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Drift, Scene};
    use crate::path::samples::node;
    use crate::question::Answers;

    fn told(scene: &Scene) -> Vec<String> {
        let answers = Answers::default();
        let found = judge(Look { scene, answers: &answers, only: None, to: None });
        found.into_iter().map(|finding| finding.says).collect()
    }

    fn differing(what: &str) -> Vec<Drift> {
        vec![Drift {
            plugin: "bridge".to_owned(),
            code: 104,
            what: what.to_owned(),
            details: String::new(),
            items: Vec::new(),
        }]
    }

    fn inside(scene: &mut Scene) -> &mut Namespace {
        scene.containers[0].inside.as_mut().unwrap()
    }

    #[test]
    fn what_no_check_tells_is_told() {
        assert_eq!(told(&node()), [""; 0]);
        let mut scene = node();
        inside(&mut scene).links[1].up = false;
        assert_eq!(told(&scene), ["eth0 of c2 on mynet: eth0 is down"]);
        scene.containers[0].attachments[0].drifts = differing("interface \"eth0\" is down");
        assert_eq!(told(&scene), [""; 0]);
        let mut scene = node();
        inside(&mut scene).links[1].addresses.remove(1);
        let says = "eth0 of c2 on mynet: eth0 has no IPv6 address, and ADD gave fd00:88::2/64";
        assert_eq!(told(&scene), [says]);
        scene.networks[0].default_routes = vec!["::/0".parse().unwrap()];
        inside(&mut scene).routes.retain(|route| route.to.addr().is_ipv4());
        let key = "net.ipv6.conf.eth0.disable_ipv6";
        inside(&mut scene).sysctls.insert(key.to_owned(), "1".to_owned());
        let says = format!(
            "eth0 of c2 on mynet: IPv6 is switched off on eth0 ({key} is 1), and ADD gave fd00:88::2/64"
        );
        assert_eq!(told(&scene), [says]);
        let answers = Answers::default();
        let fix =
            judge(Look { scene: &scene, answers: &answers, only: None, to: None }).remove(0).fix;
        let tool = "nsenter --net=/run/netns/c2 ";
        let lines = [
            format!("{tool}sysctl -w {key}=0"),
            format!("{tool}ip addr add fd00:88::2/64 dev eth0"),
            format!("{tool}ip -6 route add default via fd00:88::1"),
        ];
        assert_eq!(fix, lines);
        // On all links.
        inside(&mut scene).sysctls.insert(OFF_ON_ALL.to_owned(), "1".to_owned());
        assert!(told(&scene)[0].contains("(net.ipv6.conf.all.disable_ipv6 is 1)"));
        inside(&mut scene).sysctls.remove(OFF_ON_ALL);
        // CHECK does not say why the address is gone.
        scene.containers[0].attachments[0].drifts = differing("failed to find IP fd00:88::2/64");
        let answers = Answers::default();
        let look = Look { scene: &scene, answers: &answers, only: None, to: None };
        let rules = [RULE, crate::rules::attachments::RULE];
        let found = rules.iter().flat_map(|rule| rule.findings(look)).collect();
        let causes = crate::causes::sort(found, &scene).causes;
        let ids: Vec<(&str, usize)> =
            causes.iter().map(|one| (one.finding.id, one.explains.len())).collect();
        assert_eq!(ids, [("inside-differs", 1)]);
        scene.containers[0].attachments[0].drifts.clear();
        scene.networks[0].default_routes.clear();
        // An address of the link alone, which the kernel gives again.
        let address = "fe80::2/64".parse().unwrap();
        scene.containers[0].attachments[0].addresses[1] = address;
        assert_eq!(told(&scene), [""; 0]);
    }

    #[test]
    fn what_went_with_a_link_that_was_down_is_mended_at_once() {
        let fixes = |scene: &Scene| -> Vec<Vec<String>> {
            let answers = Answers::default();
            let found = judge(Look { scene, answers: &answers, only: None, to: None });
            found.into_iter().map(|one| one.fix).collect()
        };
        let tool = "nsenter --net=/run/netns/c2 ";
        let defaults =
            ["ip route add default via 10.88.0.1", "ip -6 route add default via fd00:88::1"];
        let mut scene = node();
        let both = vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()];
        scene.containers[0].attachments[0].default_routes = both;
        inside(&mut scene).routes.retain(|route| route.to.prefix_len() != 0);
        inside(&mut scene).links[1].addresses.truncate(1);
        inside(&mut scene).links[1].up = false;
        let lines =
            ["ip link set eth0 up", defaults[0], "ip addr add fd00:88::2/64 dev eth0", defaults[1]];
        assert_eq!(fixes(&scene), [lines.map(|line| format!("{tool}{line}"))]);
        // It is up again. CHECK of others says only the first, and a macvlan shows no other way out.
        inside(&mut scene).links[1].up = true;
        inside(&mut scene).links[1].addresses =
            node().containers[0].inside.as_ref().unwrap().links[1].addresses.clone();
        let attachment = &mut scene.containers[0].attachments[0];
        attachment.plugins = vec!["macvlan".to_owned()];
        assert_eq!(fixes(&scene), defaults.map(|line| [format!("{tool}{line}")]));
        let attachment = &mut scene.containers[0].attachments[0];
        attachment.drifts = differing("Expected Route {Dst:0.0.0.0/0} not found in routing table");
        assert_eq!(fixes(&scene), [[""; 0]; 0]);
        scene.containers[0].attachments[0].by_others = true;
        assert_eq!(fixes(&scene), [[format!("{tool}{}", defaults[1])]]);
    }

    #[test]
    fn a_default_route_in_any_table_will_do() {
        let mut scene = node();
        scene.networks[0].default_routes = vec!["0.0.0.0/0".parse().unwrap()];
        inside(&mut scene).routes[0].table = 100;
        assert_eq!(told(&scene), [""; 0]);
        // The network asks for none of IPv6.
        inside(&mut scene).routes.retain(|route| route.to.to_string() != "::/0");
        assert_eq!(told(&scene), [""; 0]);
        inside(&mut scene).routes.remove(0);
        assert_eq!(told(&scene), ["eth0 of c2 on mynet: c2 has no default route of IPv4"]);
        // The configuration is gone, and ADD reported it.
        let mut gone = scene.clone();
        gone.networks.clear();
        assert_eq!(told(&gone), [""; 0]);
        gone.containers[0].attachments[0].default_routes = vec!["0.0.0.0/0".parse().unwrap()];
        assert_eq!(told(&gone), ["eth0 of c2 on mynet: c2 has no default route of IPv4"]);
        // Its network leads nowhere by intent.
        scene.networks[0].outbound = false;
        assert_eq!(told(&scene), [""; 0]);
    }
}
