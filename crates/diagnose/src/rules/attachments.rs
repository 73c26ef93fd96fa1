//! What CHECK says of each attachment, and attachments that were not made.

mod tried;
mod ways;

use std::collections::HashSet;

use net::IpFamily;

use super::{Rule, containers, is_outbound};
use crate::Look;
use crate::finding::{Finding, Help, Severity, Way, WayKind};
use crate::model::{Attachment, Container, Drift, Item, ItemKind, UnfinishedAdd};
use crate::restored;
use crate::trial::Trials;

pub(super) const RULE: Rule = Rule {
    judges: "attachments",
    ids: &["attachment-differs", "attachment-unfinished", "namespace-gone", "not-checked"],
    asks: tried::asks,
    judge,
    ..Rule::NONE
};

/// CHECK's words for an interface that is in the container no more. No repair makes another one.
const GONE: &str = "is gone from the container";

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for container in &look.scene.containers {
        let is_asked = look.only.is_some_and(|only| container.id == only);
        if container.alive == Some(false) && (is_asked || look.only.is_none()) {
            found.push(gone(container));
        }
    }
    let harmful = harmful(look);
    for container in containers(look) {
        for attachment in &container.attachments {
            let drifts = drifts(look, container, attachment);
            found.extend(drifts.iter().map(|drift| {
                let is_harmful = harmful.contains(&of_network(attachment, drift));
                differs(is_harmful, container, attachment, drift)
            }));
            let ended = attachment.unfinished.as_ref();
            found.extend(ended.map(|ended| unfinished(container, attachment, ended)));
            if let Some(reason) = &attachment.not_checked {
                let object = object(container, attachment);
                let says =
                    format!("{} was not compared with what ADD made", named(container, attachment));
                found.push(
                    Finding::unknown("not-checked", object, says)
                        .seen(reason.clone())
                        .hits(container.id.clone()),
                );
            }
        }
    }
    found
}

/// A network, and what differs in it.
type NetworkDrift = (String, String);

fn of_network(attachment: &Attachment, drift: &Drift) -> NetworkDrift {
    (attachment.network.clone(), drift.what.clone())
}

/// Returns the differences of which probes do not show that they do no harm. What several plugins
/// tell, or several containers of a network have, is one finding.
fn harmful(look: Look<'_>) -> HashSet<NetworkDrift> {
    let trials = Trials::of(look);
    let mut harmful = HashSet::new();
    for container in containers(look) {
        for attachment in &container.attachments {
            for drift in drifts(look, container, attachment) {
                if !tried::works(look.scene, &trials, container, &drift) {
                    harmful.insert(of_network(attachment, &drift));
                }
            }
        }
    }
    harmful
}

/// Returns the differences without the switches of the whole node, of which `switches` tells once.
fn drifts(look: Look<'_>, container: &Container, attachment: &Attachment) -> Vec<Drift> {
    let off = |family: IpFamily| {
        look.scene.host.number(switch(family)) == Some(0)
            && is_outbound(look.scene, container, family)
    };
    let theirs = |drift: &Drift| match attachment.by_others {
        true => without(drift, &|item: &Item| item.ours),
        false => Some(drift.clone()),
    };
    let all = attachment.drifts.iter().filter_map(theirs);
    all.filter_map(|drift| told_here(&drift, &off)).collect()
}

/// Returns a difference without the switches that are off; `None` if nothing is left of it.
fn told_here(drift: &Drift, off: &dyn Fn(IpFamily) -> bool) -> Option<Drift> {
    if drift.items.is_empty() {
        let is_switch =
            |(words, family): (&str, IpFamily)| drift.what.contains(words) && off(family);
        let switches =
            [("IPv4 forwarding is off", IpFamily::V4), ("IPv6 forwarding is off", IpFamily::V6)];
        return (!switches.into_iter().any(is_switch)).then(|| drift.clone());
    }
    let is_switch = |item: &Item| {
        item.kind == ItemKind::Forwarding
            && item.addresses.iter().all(|net| off(IpFamily::of(net.addr())))
    };
    without(drift, &is_switch)
}

/// Returns a difference without some of what differs; `None` if nothing is left of it.
fn without(drift: &Drift, goes: &dyn Fn(&Item) -> bool) -> Option<Drift> {
    if !drift.items.iter().any(goes) {
        return Some(drift.clone());
    }
    let mut items: Vec<Item> = drift.items.clone();
    items.retain(|item| !goes(item));
    let (first, others) = items.split_first()?;
    let others: Vec<&str> = others.iter().map(|item| item.what.as_str()).collect();
    let (what, details) = (first.what.clone(), others.join("; "));
    Some(Drift { what, details, items, ..drift.clone() })
}

/// The kernel parameter by which the whole node forwards.
fn switch(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "net.ipv4.ip_forward",
        IpFamily::V6 => "net.ipv6.conf.all.forwarding",
    }
}

fn gone(container: &Container) -> Finding {
    let says = format!(
        "the network namespace of {} is gone, but its attachments are still recorded",
        container.called()
    );
    Finding::warning("namespace-gone", container.id.clone(), says)
        .at(container.netns.clone())
        .hits(container.id.clone())
        .fix("netwright gc")
}

fn differs(
    is_harmful: bool,
    container: &Container,
    attachment: &Attachment,
    drift: &Drift,
) -> Finding {
    let says = format!("{}: {}", named(container, attachment), drift.what);
    // Several things may differ, each with a finding of its own.
    let object = format!("{}: {}", object(container, attachment), drift.what);
    let finding = Finding::error("attachment-differs", object, says)
        .at(format!("plugin {} of network {}", drift.plugin, attachment.network))
        .hits(container.id.clone());
    let broken = ways::of(drift, attachment).into_iter();
    let breaks = broken.map(|(kind, family)| Way { container: None, kind, family }).collect();
    let finding = Finding { breaks, ..finding };
    let finding = match drift.details.is_empty() {
        true => finding,
        false => finding.seen(drift.details.clone()),
    };
    let repair = format!("netwright repair {}", container.id);
    let is_gone = drift.what.contains(GONE);
    if !is_gone && !is_harmful {
        let finding = Finding { severity: Severity::Warning, ..finding }.seen(WORKS);
        let undo = match attachment.by_others {
            true => restored::BY_OTHERS.to_owned(),
            false => repair,
        };
        return finding.advise(format!(
            "if the difference is not meant, undo it: {undo}; if a person made it so that packets \
             pass, that stops them: change the configuration of network {} instead",
            attachment.network
        ));
    }
    let helps = match is_gone {
        true => {
            vec![Help::Advice("attach the container again: repair makes no interface".to_owned())]
        }
        false if attachment.by_others => restored::by_others(),
        false => vec![Help::Command(repair)],
    };
    helps.into_iter().fold(finding, Finding::help)
}

/// What is said of a difference that does no harm that a probe would show.
const WORKS: &str = "a probe of every way that needs it was answered";

/// An ADD that failed, or that was killed. What it made before that may be left.
fn unfinished(container: &Container, attachment: &Attachment, ended: &UnfinishedAdd) -> Finding {
    let Attachment { network, ifname, .. } = attachment;
    let (what, seen) = match &ended.error {
        Some(error) => ("failed", error.clone()),
        None => ("did not complete", "its record has no result".to_owned()),
    };
    let says =
        format!("ADD of {} {what}, and was not undone completely", named(container, attachment));
    let ifname = if ifname == "eth0" { String::new() } else { format!(" --ifname {ifname}") };
    let netns = &container.netns;
    let fix = match netns.is_empty() {
        true => "netwright gc".to_owned(),
        false => format!("netwright del {network} {netns} --container-id {}{ifname}", container.id),
    };
    Finding::error("attachment-unfinished", object(container, attachment), says)
        .at(format!("network {network}"))
        .seen(seen)
        .hits(container.id.clone())
        .fix(fix)
        .breaks(WayKind::Gateway, None)
        .breaks(WayKind::Outside, None)
}

fn object(container: &Container, attachment: &Attachment) -> String {
    format!("{}/{}/{}", attachment.network, container.id, attachment.ifname)
}

fn named(container: &Container, attachment: &Attachment) -> String {
    format!("{} of {} on {}", attachment.ifname, container.called(), attachment.network)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Scene;
    use crate::question::Answers;

    #[test]
    fn each_difference_is_a_finding() {
        let drift = |what: &str| Drift {
            plugin: "bridge".to_owned(),
            code: 102,
            what: what.to_owned(),
            details: String::new(),
            items: Vec::new(),
        };
        let attachment = Attachment {
            network: "mynet".to_owned(),
            ifname: "eth0".to_owned(),
            drifts: vec![drift("link \"eth0\" is down"), drift("IPv4 forwarding is off")],
            ..Attachment::default()
        };
        let container = Container {
            id: "c1".to_owned(),
            alive: Some(true),
            attachments: vec![attachment],
            ..Container::default()
        };
        let dead = Container { id: "c2".to_owned(), alive: Some(false), ..Container::default() };
        let scene = Scene { containers: vec![container, dead], ..Scene::default() };
        let answers = Answers::default();
        let look = Look { scene: &scene, answers: &answers, only: None, to: None };
        let says: Vec<String> = judge(look).into_iter().map(|finding| finding.says).collect();
        assert_eq!(
            says,
            [
                "the network namespace of c2 is gone, but its attachments are still recorded",
                "eth0 of c1 on mynet: link \"eth0\" is down",
                "eth0 of c1 on mynet: IPv4 forwarding is off",
            ]
        );
        let only = Look { only: Some("c1"), ..look };
        assert_eq!(judge(only).len(), 2);
    }

    fn scene(attachment: Attachment) -> Scene {
        let attachment =
            Attachment { network: "mynet".to_owned(), ifname: "eth0".to_owned(), ..attachment };
        let container = Container {
            id: "c1".to_owned(),
            netns: "/run/netns/c1".to_owned(),
            attachments: vec![attachment],
            ..Container::default()
        };
        Scene { containers: vec![container], ..Scene::default() }
    }

    fn found(scene: &Scene) -> Vec<Finding> {
        let answers = Answers::default();
        judge(Look { scene, answers: &answers, only: None, to: None })
    }

    /// What is a switch of the whole node is told there; the rest of the plugin's words here.
    #[test]
    fn a_switch_of_the_node_does_not_hide_other_differences() {
        let item = |kind: ItemKind, what: &str, net: &str| Item {
            kind,
            what: what.to_owned(),
            addresses: vec![net.parse().unwrap()],
            ..Item::default()
        };
        let forwarding = item(ItemKind::Forwarding, "IPv4 forwarding is off", "0.0.0.0/0");
        let route = item(ItemKind::Route, "route ::/0 is gone", "::/0");
        let drift = Drift {
            plugin: "bridge".to_owned(),
            code: 104,
            what: forwarding.what.clone(),
            details: route.what.clone(),
            items: vec![forwarding.clone(), route],
        };
        let mut scene = scene(Attachment {
            plugins: vec!["bridge".to_owned()],
            gateways: vec!["10.88.0.1".parse().unwrap()],
            drifts: vec![drift],
            ..Attachment::default()
        });
        assert_eq!(found(&scene)[0].says, "eth0 of c1 on mynet: IPv4 forwarding is off");
        scene.host.sysctls.insert("net.ipv4.ip_forward".to_owned(), "0".to_owned());
        let told = found(&scene);
        assert_eq!(told[0].says, "eth0 of c1 on mynet: route ::/0 is gone");
        assert!(told[0].breaks.iter().all(|way| way.family == Some(IpFamily::V6)));
        let drift = &mut scene.containers[0].attachments[0].drifts[0];
        drift.items = vec![forwarding];
        assert_eq!(found(&scene), []);
    }

    #[test]
    fn what_no_repair_brings_back_needs_another_add() {
        let drift = |what: &str| Drift {
            plugin: "bridge".to_owned(),
            code: 104,
            what: what.to_owned(),
            details: String::new(),
            items: Vec::new(),
        };
        let help = |what: &str| {
            let drifts = vec![drift(what)];
            let all = found(&scene(Attachment { drifts, ..Attachment::default() }));
            [all[0].fix.clone(), all[0].advice.clone()].concat()
        };
        assert_eq!(help("interface \"eth0\" is down"), ["netwright repair c1"]);
        assert_eq!(
            help("interface \"eth0\" is gone from the container"),
            ["attach the container again: repair makes no interface"]
        );
    }

    /// Docker's chain has none of our rules for what other plugins attached.
    #[test]
    fn what_other_plugins_never_made_is_not_missing() {
        let item = |ours: bool, what: &str| Item {
            kind: ItemKind::Filter,
            what: format!("packet filter: {what}"),
            ours,
            ..Item::default()
        };
        let lines = |by_others: bool, all: &[(bool, &str)]| {
            let items: Vec<Item> = all.iter().map(|(ours, what)| item(*ours, what)).collect();
            let drift = Drift {
                plugin: "firewall".to_owned(),
                code: 104,
                what: items[0].what.clone(),
                details: String::new(),
                items,
            };
            let drifts = vec![drift];
            let found = found(&scene(Attachment { by_others, drifts, ..Attachment::default() }));
            found.into_iter().map(|one| one.says).collect::<Vec<String>>()
        };
        let ours = [
            (true, "missing: table inet netwright"),
            (true, "no longer ours (x): inet netwright hostports4 { tcp . 8080 : 10.88.0.2 . 80 }"),
            (true, "missing: -A DOCKER-USER -s 10.88.0.2/32 -j ACCEPT"),
        ];
        assert_eq!(lines(true, &ours), [""; 0]);
        assert_eq!(lines(false, &ours).len(), 1);
        let theirs = "missing: -A CNI-FORWARD -s 10.88.0.2/32 -j ACCEPT";
        let says = format!("eth0 of c1 on mynet: packet filter: {theirs}");
        assert_eq!(lines(true, &[ours[0], (false, theirs)]), [says]);
    }

    #[test]
    fn an_add_that_failed_is_told_in_the_plugins_words() {
        let error = "plugin type=\"portmap\" failed (add): port 8080 is taken".to_owned();
        let ended = Some(UnfinishedAdd { error: Some(error.clone()) });
        let scene = scene(Attachment { unfinished: ended, ..Attachment::default() });
        let told = found(&scene);
        assert_eq!(told[0].id, "attachment-unfinished");
        assert_eq!(
            told[0].says,
            "ADD of eth0 of c1 on mynet failed, and was not undone completely"
        );
        assert_eq!(told[0].seen, [error]);
        assert_eq!(told[0].fix, ["netwright del mynet /run/netns/c1 --container-id c1"]);
    }
}
