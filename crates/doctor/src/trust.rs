//! Finds plugins that users other than root can change.

use std::collections::BTreeSet;

use cni::{NetworkList, PluginConfig};
use cni_runtime::Runtime;

/// What to do about it.
pub const HINT: &str = "anyone who can change a plugin's file or folder gains root at the next ADD: chown it to root, chmod go-w; with /etc/netwright/require-trusted-plugins \
                               such plugins are not run";

/// Names, one line each, the files of a network's plugins and of the plugins that these call, if
/// users other than root can change them.
#[must_use]
pub fn warnings(list: &NetworkList, runtime: &Runtime<'_>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut lines = Vec::new();
    for plugin_type in list.plugins.iter().flat_map(types) {
        let Ok(executable) = runtime.find_plugin(&plugin_type) else { continue };
        for what in cni_invoke::distrust(&executable) {
            // Plugins in one folder share what is found about it.
            if seen.insert(what.path.clone()) {
                lines.push(format!("plugin {plugin_type:?}: {what}"));
            }
        }
    }
    lines
}

/// Returns the plugin, its address plugin, and the plugins in its chain.
fn types(plugin: &PluginConfig) -> Vec<String> {
    #[derive(Default, serde::Deserialize)]
    #[serde(default)]
    struct IpamType {
        r#type: String,
    }
    #[derive(Default, serde::Deserialize)]
    #[serde(default)]
    struct Keys {
        ipam: IpamType,
        plugins: Vec<cni::json::Object>,
    }
    let mut types = vec![plugin.plugin_type.clone()];
    if let Ok(keys) = plugin.object.read::<Keys>() {
        types.push(keys.ipam.r#type);
        let inner =
            keys.plugins.into_iter().filter_map(|object| PluginConfig::from_object(object).ok());
        types.extend(inner.flat_map(|plugin| self::types(&plugin)));
    }
    types.retain(|text| !text.is_empty());
    types
}
