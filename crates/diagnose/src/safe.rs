//! Commands that people run as printed, and in which others have chosen a name.
//!
//! Who owns a container's namespace names links, tables and chains there, and may put anything into
//! a name that a shell obeys. A command with such a name is not printed.

use crate::finding::Finding;
use crate::model::{Container, Namespace, Scene};

/// What is printed in place of it.
const BY_HAND: &str = "do it by hand: a name in the command for it means something to a shell";

/// The characters of names besides letters and digits that mean nothing to a shell and to `nft`.
const HARMLESS: &str = "-_.:/@%+=,";

/// What a shell obeys between double quotes, in which the programs of iptables put what may have
/// spaces.
const OBEYED: &str = "$`\\";

/// Takes commands out that have a name in them which is not safe in a shell.
pub(crate) fn mend(findings: &mut [Finding], scene: &Scene) {
    let mut of_node = names(&scene.host);
    of_node.extend(others(scene).filter(|name| !is_harmless(name)));
    // Their names are only in findings of their own.
    let of_containers: Vec<(&str, Vec<&str>)> = (scene.containers.iter())
        .filter_map(|container| {
            let mut found = container.inside.as_ref().map(names).unwrap_or_default();
            found.extend(own_names(container).filter(|name| !is_harmless(name)));
            (!found.is_empty()).then_some((container.id.as_str(), found))
        })
        .collect();
    if of_node.is_empty() && of_containers.is_empty() {
        return;
    }
    for finding in findings {
        let own = of_containers.iter().filter(|(id, _)| finding.hits.iter().any(|hit| hit == id));
        let names: Vec<&str> = own.flat_map(|(_, names)| names).chain(&of_node).copied().collect();
        let is_safe = |text: &String| !names.iter().any(|name| text.contains(*name));
        let before = finding.fix.len() + finding.advice.len();
        // A sentence may have a command in it, too.
        finding.fix.retain(is_safe);
        finding.advice.retain(is_safe);
        if finding.fix.len() + finding.advice.len() < before {
            finding.advice.push(BY_HAND.to_owned());
        }
    }
}

/// Returns the names that a container and its attachments have. On the node itself they are checked
/// before they are used; a scene may come from anywhere.
fn own_names(container: &Container) -> impl Iterator<Item = &str> {
    let attachments = container.attachments.iter();
    let attachments = attachments.flat_map(|one| [one.network.as_str(), one.ifname.as_str()]);
    let own = [container.id.as_str(), container.netns.as_str()];
    own.into_iter().chain(container.name.as_deref()).chain(attachments)
}

/// Returns the names that networks, plugins and files have.
fn others(scene: &Scene) -> impl Iterator<Item = &str> {
    let networks = scene.networks.iter().flat_map(|network| {
        let others = [network.file.as_deref(), network.link.as_deref()];
        [network.name.as_str()].into_iter().chain(others.into_iter().flatten())
    });
    let files = scene.broken.iter().map(|(file, _)| file.as_str());
    let pools = scene.pools.iter().map(|pool| pool.folder.as_str());
    let plugins = scene.plugins.iter().flat_map(|plugin| {
        let names = [Some(plugin.plugin_type.as_str()), plugin.near.as_deref()];
        names.into_iter().flatten()
    });
    networks.chain(files).chain(pools).chain(plugins)
}

/// Returns the names of a namespace that are not safe in a shell.
fn names(namespace: &Namespace) -> Vec<&str> {
    let links = namespace.links.iter().map(|link| link.name.as_str());
    let tables = &namespace.filter.tables;
    let chains = tables.iter().flat_map(|table| &table.chains).map(|chain| chain.name.as_str());
    let tables = tables.iter().map(|table| table.name.as_str());
    let legacy = namespace.filter.legacy.iter().flat_map(|table| &table.rules);
    let legacy = legacy.map(|rule| rule.strip_prefix("-A ").unwrap_or(rule));
    let is_obeyed = |letter: char| OBEYED.contains(letter) || letter.is_control();
    // The owner of a container may name control groups below its own.
    let groups = namespace.listeners.iter().filter_map(|listener| listener.frozen.as_deref());
    let others = links.chain(tables).chain(chains).chain(groups);
    let mut found: Vec<&str> = others.filter(|name| !is_harmless(name)).collect();
    // The name of a program may have spaces.
    let programs = namespace.listeners.iter().filter_map(|listener| listener.program.as_deref());
    found.extend(legacy.chain(programs).filter(|name| name.contains(is_obeyed)));
    found.sort_unstable();
    found.dedup();
    found
}

fn is_harmless(name: &str) -> bool {
    name.chars().all(|letter| letter.is_ascii_alphanumeric() || HARMLESS.contains(letter))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Link;
    use crate::model::filter::{Chain, Family, LegacyTable, Table};

    fn table(name: &str, chain: &str) -> Table {
        let chain = Chain { name: chain.to_owned(), base: None, rules: Vec::new() };
        Table {
            family: Family::Inet,
            name: name.to_owned(),
            dormant: false,
            chains: vec![chain],
            sets: Vec::new(),
        }
    }

    fn scene(inside: Namespace) -> Scene {
        let container =
            |id: &str, inside| Container { id: id.to_owned(), inside, ..Container::default() };
        let other = Namespace::default();
        Scene {
            containers: vec![container("c1", Some(inside)), container("c2", Some(other))],
            ..Scene::default()
        }
    }

    fn fixes(scene: &Scene, hits: &str, command: &str) -> Vec<String> {
        let finding = Finding::error("inside-dropped", "c1", "dropped").hits(hits);
        let mut findings = [finding.fix(command).fix("netwright repair")];
        mend(&mut findings, scene);
        [findings[0].fix.clone(), findings[0].advice.clone()].concat()
    }

    #[test]
    fn a_command_that_a_name_would_change_is_not_printed() {
        let link = Link { name: "x|y".to_owned(), ..Link::default() };
        let legacy = LegacyTable {
            ipv4: true,
            name: "filter".to_owned(),
            policies: Vec::new(),
            chains: Vec::new(),
            rules: vec![
                "-A FORWARD -m comment --comment \"$(reboot)\" -j DROP".to_owned(),
                "-A FORWARD -m comment --comment \"a b\" -j DROP".to_owned(),
            ],
        };
        let mut inside = Namespace { links: vec![link], ..Namespace::default() };
        inside.filter.tables = vec![table("a; reboot", "b"), table("good", "`reboot`")];
        inside.filter.legacy = vec![legacy];
        let scene = scene(inside);
        for command in [
            "nft delete rule inet a; reboot b handle 7",
            "nft delete rule inet good `reboot` handle 7",
            "nsenter --net=/run/netns/c1 ip link set x|y up",
            "iptables-legacy -t filter -D FORWARD -m comment --comment \"$(reboot)\" -j DROP",
        ] {
            assert_eq!(fixes(&scene, "c1", command), ["netwright repair", BY_HAND], "{command}");
            // A container does not choose the names of others.
            assert_eq!(fixes(&scene, "c2", command), [command, "netwright repair"]);
        }
        let sound = "iptables-legacy -t filter -D FORWARD -m comment --comment \"a b\" -j DROP";
        assert_eq!(fixes(&scene, "c1", sound), [sound, "netwright repair"]);
    }
}
