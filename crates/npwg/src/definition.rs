//! The contents of a NetworkAttachmentDefinition: the network's configuration, or the statement
//! that the node has it.

use cni::NetworkList;
use cni::json::{JsonError, Object};

use crate::selection::{self, ElementError};

/// The group of definitions.
pub const GROUP: &str = "k8s.cni.cncf.io";

/// The version of definitions.
pub const VERSION: &str = "v1";

/// The kind of definitions.
pub const KIND: &str = "NetworkAttachmentDefinition";

/// The plural of definitions in an API path.
pub const PLURAL: &str = "network-attachment-definitions";

/// The content of a definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Definition {
    /// A network list, with a name.
    Here(Object),
    /// The network with this name in the node's folder of configurations.
    OnNode(String),
}

/// Why a definition cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// The object's own name is invalid.
    #[error(transparent)]
    Name(ElementError),
    /// `spec.config` is not JSON, or not an object.
    #[error("spec.config is not a JSON object: {0}")]
    Json(#[source] JsonError),
    /// It is neither a plugin nor a list of plugins.
    #[error("spec.config names no plugin: it needs \"type\", or \"plugins\" with several")]
    NoPlugin,
    /// It says twice which plugins to call.
    #[error(
        "spec.config has both \"type\" and \"plugins\": put the first into the list of the second"
    )]
    Both,
    /// It is not a valid CNI configuration.
    #[error("spec.config: {}", config(.0))]
    Config(#[source] cni::Error),
    /// One of its plugins attaches several networks.
    #[error("spec.config calls {0:?}, which would attach the pod's networks again")]
    Ourselves(String),
}

impl Definition {
    /// Reads the definition of this name from its `spec.config` (NPWG v1.3 §3.4). A configuration
    /// without a name gets the definition's. It may not call a plugin that attaches the pod's
    /// networks, which `attaches` tells by its type: that would never end.
    ///
    /// # Errors
    /// [`DefinitionError`].
    pub fn of(
        name: &str,
        config: Option<&str>,
        attaches: &dyn Fn(&str) -> bool,
    ) -> Result<Self, DefinitionError> {
        selection::subdomain("name", name).map_err(DefinitionError::Name)?;
        let Some(config) = config.filter(|config| !config.trim().is_empty()) else {
            return Ok(Definition::OnNode(name.to_owned()));
        };
        list(name, config, attaches).map(Definition::Here)
    }
}

/// Reads a configuration of one plugin or a list of plugins, and returns it as a list. It gets this
/// name if it has none. `attaches` is as in [`Definition::of`].
///
/// # Errors
/// [`DefinitionError`].
pub fn list(
    name: &str,
    config: &str,
    attaches: &dyn Fn(&str) -> bool,
) -> Result<Object, DefinitionError> {
    let mut object = match cni::json::from_str::<Object>(config) {
        Ok(object) if config.trim_start().starts_with('{') => object,
        Ok(_) => return Err(DefinitionError::NoPlugin),
        Err(error) => return Err(DefinitionError::Json(error)),
    };
    if is_absent(&object, "name") {
        object.set_value("name", name);
    }
    let is_list = object.get("plugins").is_some();
    let list = match (is_list, is_absent(&object, "type")) {
        (true, true) => NetworkList::parse(&object.to_vec()),
        (false, false) => NetworkList::from_plugin(&object.to_vec()),
        (true, false) => return Err(DefinitionError::Both),
        (false, true) => return Err(DefinitionError::NoPlugin),
    };
    let list = list.map_err(DefinitionError::Config)?;
    cni::NetworkName::new(&list.name).map_err(DefinitionError::Config)?;
    if let Some(plugin) = list.plugins.iter().find(|plugin| attaches(&plugin.plugin_type)) {
        return Err(DefinitionError::Ourselves(plugin.plugin_type.clone()));
    }
    let source = Object::parse(&list.source).map_err(DefinitionError::Json)?;
    Ok(source)
}

/// Says whether a key is absent or empty.
fn is_absent(object: &Object, key: &str) -> bool {
    object.get_ignore_case(key).is_none_or(|raw| matches!(raw.get(), "null" | "\"\""))
}

/// Describes what is wrong without the library's words that the reader cannot know.
fn config(error: &cni::Error) -> String {
    let mut text = error.msg.replace("error parsing configuration list: ", "");
    text = text.replace("error parsing configuration: ", "");
    if let Some((place, rest)) =
        text.strip_prefix("failed to parse plugin config ").and_then(|text| text.split_once(": "))
    {
        text = format!("plugins[{place}]: {rest}");
    }
    // Details that begin with a key repeat the message in the words of a Go program.
    if error.details.starts_with('"') {
        text.clone_from(&error.details);
    } else if !error.details.is_empty() {
        text = format!("{text}: {:?}", error.details);
    }
    text
}
