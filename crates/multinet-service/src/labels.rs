//! Labels of this node: the networks it can serve, so that a scheduler places pods on the right
//! nodes.
//!
//! `networks.netwright/NAMESPACE.NAME: "true"` says that every plugin of the definition is here,
//! and every link that it names as its parent. A definition without a configuration is served if
//! the node has its network.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kernel::route::RouteSocket;
use npwg::definition::Definition;
use plugins::netwright_multi;

use super::api::{Api, ApiError};
use super::facts::DefinitionFacts;
use super::service::Service;

/// The prefix of our labels.
pub(super) const PREFIX: &str = "networks.netwright/";
/// The longest name after it (API, "Labels and Selectors").
const LONGEST: usize = 63;
/// How often the node is checked even without a change in the API: links come and go.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// The keys by which plugins name their parent.
const PARENTS: [&str; 3] = ["master", "device", "linkInContainer"];

/// Keeps the labels, for ever.
pub(super) async fn run(service: Arc<Service>, path: Vec<PathBuf>) {
    let mut written: Option<BTreeMap<String, String>> = None;
    loop {
        let wanted = wanted(&service, &path);
        // No other program may write them, so they are read only once.
        if written.as_ref() != Some(&wanted) && service.definitions.is_usable() {
            match write(&service.api, &service.flags.node, &wanted).await {
                Ok(()) => {
                    tracing::info!(networks = wanted.len(), "labelled the node");
                    written = Some(wanted);
                }
                Err(error) => tracing::warn!(%error, "the node is not labelled"),
            }
        }
        let _ = tokio::time::timeout(POLL_INTERVAL, service.defined.notified()).await;
    }
}

fn wanted(service: &Service, path: &[PathBuf]) -> BTreeMap<String, String> {
    // The kernel is asked directly: `/sys` shows the links of the namespace from which it was
    // mounted.
    let mut links = RouteSocket::open().ok();
    let mut served = |definition: &DefinitionFacts| {
        let has_link = |name: &str| {
            let asked = links.as_mut().map(|links| links.link_by_name(name));
            asked.is_some_and(|found| found.is_ok_and(|link| link.is_some()))
        };
        serves(definition, path, has_link, |name| service.is_on_node(name))
    };
    let all = service.definitions.all();
    let labels = all.iter().filter(|one| served(one)).filter_map(label);
    labels.map(|label| (label, "true".to_owned())).collect()
}

fn label(definition: &DefinitionFacts) -> Option<String> {
    let name = format!("{}.{}", definition.namespace, definition.name);
    (name.len() <= LONGEST).then(|| format!("{PREFIX}{name}"))
}

/// Gives the node these labels of ours and no others.
pub(super) async fn write(
    api: &Api,
    node: &str,
    wanted: &BTreeMap<String, String>,
) -> Result<(), ApiError> {
    let has = api.labels(node).await?;
    let ours = has.iter().filter(|(key, _)| key.starts_with(PREFIX));
    let mut change: BTreeMap<String, Option<String>> = ours
        .filter(|(key, _)| !wanted.contains_key(*key))
        .map(|(key, _)| (key.clone(), None))
        .collect();
    let missing = wanted.iter().filter(|(key, value)| has.get(*key) != Some(*value));
    change.extend(missing.map(|(key, value)| (key.clone(), Some(value.clone()))));
    if change.is_empty() {
        return Ok(());
    }
    api.label(node, &change).await
}

/// Says whether a definition's plugins and parents are here.
fn serves(
    definition: &DefinitionFacts,
    path: &[PathBuf],
    mut has_link: impl FnMut(&str) -> bool,
    is_on_node: impl Fn(&str) -> bool,
) -> bool {
    let list = match Definition::of(
        &definition.name,
        Some(&definition.config),
        &netwright_multi::is_called_by,
    ) {
        Ok(Definition::OnNode(name)) => return is_on_node(&name),
        Ok(Definition::Here(list)) => cni::NetworkList::parse(&list.to_vec()),
        Err(_) => return false,
    };
    let mut has_all = |plugin: &cni::PluginConfig| {
        let parent = |key: &str| {
            let raw = plugin.object.get_ignore_case(key)?;
            serde_json::from_str::<String>(raw.get()).ok().filter(|name| !name.is_empty())
        };
        let mut parents = PARENTS.iter().filter_map(|key| parent(key));
        cni_invoke::find(&plugin.plugin_type, path).is_ok() && parents.all(|name| has_link(&name))
    };
    list.is_ok_and(|list| list.plugins.iter().all(&mut has_all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_served_where_its_plugins_and_parents_are() {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        std::fs::write(bin.join("macvlan"), "").unwrap();
        let serves = |config: &str| {
            let definition = DefinitionFacts {
                namespace: "ns".to_owned(),
                name: "a".to_owned(),
                config: config.to_owned(),
                resource: None,
            };
            serves(
                &definition,
                std::slice::from_ref(&bin),
                |link| link == "eth1",
                |name| name == "a",
            )
        };
        assert!(serves(r#"{"type":"macvlan","master":"eth1"}"#));
        assert!(serves(r#"{"type":"macvlan"}"#));
        assert!(!serves(r#"{"type":"macvlan","master":"eth2"}"#));
        assert!(!serves(r#"{"plugins":[{"type":"macvlan"},{"type":"tuning"}]}"#));
        assert!(!serves("{"));
        assert!(serves(""), "the node has it");
    }

    #[test]
    fn labels_are_as_long_as_labels_may_be() {
        let of = |name: &str| {
            let (namespace, name) = ("ns".to_owned(), name.to_owned());
            label(&DefinitionFacts { namespace, name, ..DefinitionFacts::default() })
        };
        assert_eq!(of("a").as_deref(), Some("networks.netwright/ns.a"));
        assert_eq!(of(&"a".repeat(61)), None);
    }
}
