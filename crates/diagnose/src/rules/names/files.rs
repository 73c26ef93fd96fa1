//! What a container's hosts and nsswitch.conf say of names.

use std::net::IpAddr;

use ipnet::IpNet;
use net::IpFamily;

use super::super::{Rule, containers};
use super::{reaches_others, servers};
use crate::Look;
use crate::finding::{Finding, WayKind};
use crate::model::{Container, Namespace, Part};

pub(in crate::rules) const RULE: Rule = Rule {
    judges: "files of names in containers",
    ids: &["nameserver-skipped", "hosts-wrong"],
    inside: &[Part::Links],
    judge,
    ..Rule::NONE
};

/// Sources of hosts that ask no server, on this machine or another (`man 5 nsswitch.conf`).
const LOCAL: [&str; 5] = ["compat", "db", "files", "myhostname", "mymachines"];

fn judge(look: Look<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for container in containers(look) {
        let Some(inside) = &container.inside else { continue };
        found.extend(skipped(look, container, inside));
        found.extend(with_carriage_return(look, container, inside));
        found.extend(localhost(container));
        found.extend(own_name(container, inside));
    }
    found
}

/// A container that reaches others has servers, and programs of the C library do not ask them.
fn skipped(look: Look<'_>, container: &Container, inside: &Namespace) -> Option<Finding> {
    let sources = container.names.sources.as_deref()?;
    let has_servers = servers(container).next().is_some();
    if !has_servers || asks_servers(sources) || !reaches_others(look, container, inside) {
        return None;
    }
    let called = container.called();
    let says = format!(
        "nsswitch.conf of {called} lets programs of the GNU C library ask no server for names"
    );
    Some(
        Finding::warning("nameserver-skipped", container.id.clone(), says)
            .at(format!("nsswitch.conf of {called}"))
            .seen(format!("it says \"hosts: {sources}\", and resolv.conf names a server"))
            .hits(container.id.clone())
            .advise(format!("write \"hosts: files dns\" into nsswitch.conf of {called}"))
            .breaks(WayKind::Names, None),
    )
}

/// A resolv.conf that was written as on another system.
fn with_carriage_return(
    look: Look<'_>,
    container: &Container,
    inside: &Namespace,
) -> Option<Finding> {
    if !container.names.carriage_return || !reaches_others(look, container, inside) {
        return None;
    }
    let called = container.called();
    let says = format!(
        "resolv.conf of {called} has lines that programs of the GNU C library pass over, so they do not ask those servers"
    );
    let object = format!("{}: resolv.conf", container.id);
    Some(
        Finding::warning("nameserver-skipped", object, says)
            .at(format!("resolv.conf of {called}"))
            .seen("a line that names a server ends with a carriage return")
            .hits(container.id.clone())
            .advise(format!("write resolv.conf of {called} with line feeds alone"))
            .breaks(WayKind::Names, None),
    )
}

/// Says whether programs may ask a server, before a source ends the search for names that it does
/// not know. Of an unknown source it is not known what it asks.
fn asks_servers(sources: &str) -> bool {
    let mut rest = sources.trim();
    let is_empty = rest.is_empty();
    while !rest.is_empty() {
        if let Some(action) = rest.strip_prefix('[') {
            let Some((action, behind)) = action.split_once(']') else { return true };
            if ends(action) {
                return false;
            }
            rest = behind.trim_start();
            continue;
        }
        let end = rest.find(|one: char| one.is_whitespace() || one == '[').unwrap_or(rest.len());
        let (source, behind) = rest.split_at(end);
        if !LOCAL.contains(&source) {
            return true;
        }
        rest = behind.trim_start();
    }
    is_empty
}

/// Says whether an action ends the search if a source does not know the name: `NOTFOUND=return`, or
/// `!UNAVAIL=return`, which is about all other statuses.
fn ends(action: &str) -> bool {
    action.split_whitespace().any(|word| {
        let word = word.to_ascii_lowercase();
        let Some((status, "return")) = word.split_once('=') else { return false };
        match status.strip_prefix('!') {
            Some(other) => other != "notfound",
            None => status == "notfound",
        }
    })
}

/// Returns the addresses of one IP version, for each.
fn by_family(all: &[IpAddr]) -> impl Iterator<Item = Vec<IpAddr>> {
    IpFamily::ALL.into_iter().map(move |family| {
        all.iter().copied().filter(|address| IpFamily::of(*address) == family).collect::<Vec<_>>()
    })
}

/// Says whether an address surely leads to another host. `0.0.0.0` leads to this one, and on which
/// link an address is that has one of its own is not known.
fn is_elsewhere(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let is_of_link = matches!(address, IpAddr::V6(own) if own.is_unicast_link_local());
    !address.is_loopback() && !address.is_unspecified() && !is_of_link
}

/// The hosts file leads `localhost` elsewhere.
fn localhost(container: &Container) -> Option<Finding> {
    let all_elsewhere = |all: &Vec<IpAddr>| all.iter().all(|address| is_elsewhere(*address));
    let mut wrong = by_family(&container.names.localhost).filter(all_elsewhere).flatten();
    let address = wrong.next()?;
    let called = container.called();
    let says = format!("hosts of {called} has {address} for localhost, which is not loopback's");
    let right = if address.is_ipv4() { "127.0.0.1" } else { "::1" };
    Some(
        Finding::warning("hosts-wrong", format!("{}: localhost", container.id), says)
            .at(format!("hosts of {called}"))
            .seen(format!("it has no other address of {} for localhost", IpFamily::of(address)))
            .hits(container.id.clone())
            .advise(format!("write {right} for localhost into hosts of {called}"))
            .breaks(WayKind::Inside, Some(IpFamily::of(address))),
    )
}

/// The hosts file has an address of the container's own subnet for its own name, and the container
/// does not have that: it had it before. Another address may be meant, such as that of a proxy.
fn own_name(container: &Container, inside: &Namespace) -> Option<Finding> {
    let name = container.names.own.as_deref()?;
    let given = container.attachments.iter().flat_map(|one| &one.addresses);
    let given: Vec<IpNet> = given.copied().collect();
    let is_stale = |address: IpAddr| {
        !address.is_loopback()
            && inside.owner_of(address).is_none()
            && given.iter().any(|net| net.contains(&address))
    };
    let all_stale = |all: &Vec<IpAddr>| all.iter().all(|address| is_stale(*address));
    let mut wrong = by_family(&container.names.own_addresses).filter(all_stale).flatten();
    let address = wrong.next()?;
    let called = container.called();
    let says = format!("hosts of {called} has {address} for its own name {name}");
    let own = given.iter().find(|net| net.contains(&address))?.addr();
    Some(
        Finding::warning("hosts-wrong", format!("{}: own name", container.id), says)
            .at(format!("hosts of {called}"))
            .seen(format!("{called} does not have that address, and ADD gave it {own}"))
            .hits(container.id.clone())
            .advise(format!("write {own} in place of {address} into hosts of {called}")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{NameFiles, Scene};
    use crate::path::samples::{ip, node};
    use crate::question::Answers;

    fn told(scene: &Scene) -> Vec<(&'static str, String)> {
        let answers = Answers::default();
        let look = Look { scene, answers: &answers, only: None, to: None };
        RULE.findings(look).into_iter().map(|one| (one.id, one.says)).collect()
    }

    fn with(names: NameFiles) -> Scene {
        let mut scene = node();
        scene.containers[0].nameservers = Some(vec![ip("198.51.100.53")]);
        scene.containers[0].names = names;
        scene
    }

    #[test]
    fn sources_that_ask_no_server() {
        for sources in [
            "",
            "dns",
            "files dns",
            "files mdns4_minimal [NOTFOUND=return] dns",
            "mymachines resolve [!UNAVAIL=return] files myhostname dns",
            "files [SUCCESS=continue] dns",
            "files [!NOTFOUND=return] dns",
            "files something",
            "files [NOTFOUND",
        ] {
            assert!(asks_servers(sources), "{sources}");
        }
        for sources in [
            "files",
            "files myhostname",
            "files [NOTFOUND=return] dns",
            "files[!unavail=RETURN] dns",
        ] {
            assert!(!asks_servers(sources), "{sources}");
        }
    }

    #[test]
    fn a_resolv_conf_of_another_system() {
        let names = NameFiles { carriage_return: true, ..NameFiles::default() };
        let mut scene = with(names);
        let found = told(&scene);
        let [(id, says)] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(*id, "nameserver-skipped");
        assert!(says.starts_with("resolv.conf of c2 has lines"), "{says}");
        // It leads nowhere by intent.
        scene.networks[0].outbound = false;
        assert_eq!(told(&scene), []);
    }

    #[test]
    fn a_container_that_asks_no_server() {
        let of = |sources: Option<&str>| {
            with(NameFiles { sources: sources.map(str::to_owned), ..NameFiles::default() })
        };
        assert_eq!(told(&of(None)), []);
        assert_eq!(told(&of(Some("files dns"))), []);
        let found = told(&of(Some("files")));
        let [(id, says)] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(*id, "nameserver-skipped");
        let words =
            "nsswitch.conf of c2 lets programs of the GNU C library ask no server for names";
        assert_eq!(says, words);
        // It is given none, or leads nowhere by intent.
        let mut alone = of(Some("files"));
        alone.networks[0].outbound = false;
        assert_eq!(told(&alone), []);
        let mut unnamed = of(Some("files"));
        unnamed.containers[0].nameservers = None;
        assert_eq!(told(&unnamed), []);
    }

    #[test]
    fn localhost_is_loopback() {
        let of = |all: &[&str]| {
            let localhost = all.iter().map(|one| ip(one)).collect();
            told(&with(NameFiles { localhost, ..NameFiles::default() }))
        };
        assert_eq!(of(&[]), []);
        assert_eq!(of(&["127.0.0.1", "::1", "fe80::1"]), []);
        assert_eq!(of(&["127.0.1.1", "10.88.0.2"]), []);
        // They lead to the container, too.
        assert_eq!(of(&["0.0.0.0", "::ffff:127.0.0.1"]), []);
        assert_eq!(of(&["fe80::1"]), []);
        let says = "hosts of c2 has 10.9.9.9 for localhost, which is not loopback's".to_owned();
        assert_eq!(of(&["10.9.9.9", "::1"]), [("hosts-wrong", says)]);
    }

    #[test]
    fn the_containers_own_name_leads_to_it() {
        let of = |all: &[&str]| {
            let own_addresses = all.iter().map(|one| ip(one)).collect();
            let own = Some("web".to_owned());
            told(&with(NameFiles { own, own_addresses, ..NameFiles::default() }))
        };
        assert_eq!(of(&[]), []);
        assert_eq!(of(&["10.88.0.2", "fd00:88::2"]), []);
        assert_eq!(of(&["127.0.1.1"]), []);
        // A proxy's address, perhaps.
        assert_eq!(of(&["192.0.2.80"]), []);
        assert_eq!(of(&["10.88.0.7", "10.88.0.2"]), []);
        let says = "hosts of c2 has 10.88.0.7 for its own name web".to_owned();
        assert_eq!(of(&["10.88.0.7"]), [("hosts-wrong", says)]);
    }
}
