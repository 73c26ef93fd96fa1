//! Network configurations: what an administrator writes and what a plugin is given.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::{Error, code};
use crate::json::{self, Object};
use crate::name::check_plugin_type;
use crate::result::{AddResult, Dns, check_family};
use crate::version::{self, Version};

/// A network list (CNI 1.1.0 §1 "Network configuration format").
///
/// The name is text as written: the library loads lists whose name plugins will refuse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkList {
    /// The network's name.
    pub name: String,
    /// The version chosen among `cniVersion` and `cniVersions`; see [`NetworkList::parse`].
    pub cni_version: String,
    /// Runtimes must not call CHECK.
    pub disable_check: bool,
    /// Runtimes must not call GC.
    pub disable_gc: bool,
    /// The drop-in folder is not looked at.
    pub load_only_inlined_plugins: bool,
    /// The plugins, in the order of ADD.
    pub plugins: Vec<PluginConfig>,
    /// The document as read, which the result cache keeps.
    pub source: Vec<u8>,
}

/// One plugin's object in a network list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginConfig {
    /// The `type`: the name of the executable.
    pub plugin_type: String,
    /// The capabilities set to true, sorted.
    pub capabilities: Vec<String>,
    /// The object as written.
    pub object: Object,
}

/// What the runtime adds to a plugin's object for one call.
#[derive(Debug, Clone, Copy, Default)]
pub struct Injection<'a> {
    /// `runtimeConfig`: one value per capability that the plugin has and the runtime provides.
    pub capability_args: Option<&'a BTreeMap<String, Box<RawValue>>>,
    /// `prevResult`, as JSON text.
    pub prev_result: Option<&'a RawValue>,
    /// `cni.dev/valid-attachments`.
    pub valid_attachments: Option<&'a [crate::GcAttachment]>,
}

impl PluginConfig {
    /// Reads one plugin's object.
    ///
    /// # Errors
    /// Code 6 when it is not an object, code 7 when `type` is missing or could leave its directory.
    pub fn parse(document: &[u8]) -> Result<Self, Error> {
        let object = Object::parse(document)
            .map_err(|error| invalid(format!("error parsing configuration: {error}")))?;
        PluginConfig::from_object(object)
    }

    /// Takes an object apart; see [`PluginConfig::parse`].
    ///
    /// # Errors
    /// As [`PluginConfig::parse`].
    pub fn from_object(object: Object) -> Result<Self, Error> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Head {
            r#type: String,
            capabilities: BTreeMap<String, bool>,
        }
        let head: Head = object
            .read()
            .map_err(|error| invalid(format!("error parsing configuration: {error}")))?;
        if head.r#type.is_empty() {
            return Err(invalid("error parsing configuration: missing 'type'".to_owned()));
        }
        check_plugin_type(&head.r#type)?;
        let capabilities = head.capabilities.into_iter().filter(|(_, on)| *on).map(|(key, _)| key);
        Ok(PluginConfig {
            plugin_type: head.r#type,
            capabilities: capabilities.collect(),
            object,
        })
    }

    /// Derives the object a plugin is given (CNI 1.1.0 §3 "Deriving request configuration from plugin
    /// configuration"): name and version of the list, `capabilities` removed, what the runtime adds.
    #[must_use]
    pub fn request(&self, name: &str, cni_version: &str, injection: &Injection<'_>) -> Vec<u8> {
        let mut object = self.object.clone();
        object.set_value("cniVersion", cni_version);
        object.set_value("name", name);
        object.remove("capabilities");
        if let Some(args) = injection.capability_args {
            let wanted: BTreeMap<&String, &Box<RawValue>> =
                args.iter().filter(|(key, _)| self.capabilities.contains(key)).collect();
            if !wanted.is_empty() {
                object.set_value("runtimeConfig", &wanted);
            }
        }
        if let Some(result) = injection.prev_result {
            object.set("prevResult", result.to_owned());
        }
        if let Some(attachments) = injection.valid_attachments {
            object.set_value("cni.dev/valid-attachments", attachments);
            // The name in the text tagged 1.1.0, which plugins built then look for (cni#1101).
            object.set_value("cni.dev/attachments", attachments);
        }
        object.to_vec()
    }
}

impl NetworkList {
    /// Reads a network list. It may lack plugins when they are to come from the drop-in folder.
    ///
    /// The version is the highest of `cniVersion` and `cniVersions` that is not newer than
    /// [`Version::CURRENT`]; `cniVersion` alone is taken as it is, whatever it says, for plugins to judge.
    ///
    /// # Errors
    /// Code 6 or 7 in the reference library's words.
    pub fn parse(document: &[u8]) -> Result<Self, Error> {
        let object = Object::parse(document)
            .map_err(|error| parsing(format!("error parsing configuration list: {error}")))?;
        let name = match object.get_ignore_case("name") {
            None => return Err(invalid("error parsing configuration list: no name".to_owned())),
            Some(raw) => string(raw)
                .ok_or_else(|| invalid(format!("error parsing configuration list: invalid name type {}", kind(raw))))?,
        };
        let cni_version = match object.get_ignore_case("cniVersion") {
            None => String::new(),
            Some(raw) => string(raw).ok_or_else(|| {
                invalid(format!("error parsing configuration list: invalid cniVersion type {}", kind(raw)))
            })?,
        };
        let cni_version = choose_version(&object, cni_version)?;
        let load_only_inlined_plugins = boolean(&object, "loadOnlyInlinedPlugins")?;
        let plugins = plugins(&object, load_only_inlined_plugins)?;
        Ok(NetworkList {
            name,
            cni_version,
            disable_check: boolean(&object, "disableCheck")?,
            disable_gc: boolean(&object, "disableGC")?,
            load_only_inlined_plugins,
            plugins,
            source: document.to_vec(),
        })
    }

    /// Makes a list of one plugin's configuration, as `.conf` and `.json` files hold it.
    ///
    /// # Errors
    /// As [`PluginConfig::parse`], and as [`NetworkList::parse`] for the list around it.
    pub fn from_plugin(document: &[u8]) -> Result<Self, Error> {
        let plugin = PluginConfig::parse(document)?;
        let mut list = Object::new();
        if let Some(name) = plugin.object.get_ignore_case("name") {
            list.set("name", name.to_owned());
        }
        if let Some(cni_version) = plugin.object.get_ignore_case("cniVersion") {
            list.set("cniVersion", cni_version.to_owned());
        }
        list.set_value("plugins", &[&plugin.object]);
        NetworkList::parse(&list.to_vec())
    }
}

fn plugins(object: &Object, only_inlined: bool) -> Result<Vec<PluginConfig>, Error> {
    let Some(raw) = object.get_ignore_case("plugins").filter(|raw| raw.get() != "null") else {
        if only_inlined {
            return Err(invalid(
                "error parsing configuration list: 'loadOnlyInlinedPlugins' is true, and no 'plugins' key"
                    .to_owned(),
            ));
        }
        return Ok(Vec::new());
    };
    let elements: Vec<Box<RawValue>> = serde_json::from_str(raw.get()).map_err(|_| {
        invalid(format!("error parsing configuration list: invalid 'plugins' type {}", kind(raw)))
    })?;
    if elements.is_empty() {
        return Err(invalid("error parsing configuration list: no plugins in list".to_owned()));
    }
    elements
        .iter()
        .enumerate()
        .map(|(index, element)| {
            PluginConfig::parse(element.get().as_bytes())
                .map_err(|error| error.context(format_args!("failed to parse plugin config {index}")))
        })
        .collect()
}

/// Chooses the highest version this library speaks (libcni's rule).
fn choose_version(object: &Object, cni_version: String) -> Result<String, Error> {
    let Some(raw) = object.get_ignore_case("cniVersions") else { return Ok(cni_version) };
    let listed: Vec<String> = json::from_raw(raw).map_err(|error| {
        invalid(format!("error parsing configuration list: invalid cniVersions: {error}"))
    })?;
    let current = version::triple(Version::CURRENT.as_str()).expect("our own version is three numbers");
    let mut best: Option<((u32, u32, u32), String)> = None;
    let own = (!cni_version.is_empty()).then(|| cni_version.clone());
    for (index, text) in listed.into_iter().chain(own).enumerate() {
        let triple = version::triple(&text).map_err(|error| {
            invalid(format!(
                "error parsing configuration list: invalid cniVersions entry {text:?} at index {index}: {error}"
            ))
        })?;
        if triple <= current && best.as_ref().is_none_or(|(highest, _)| *highest < triple) {
            best = Some((triple, text));
        }
    }
    Ok(best.map_or(cni_version, |(_, text)| text))
}

fn boolean(object: &Object, key: &str) -> Result<bool, Error> {
    let Some(raw) = object.get_ignore_case(key).filter(|raw| raw.get() != "null") else {
        return Ok(false);
    };
    let said = match raw.get() {
        "true" => Some(true),
        "false" => Some(false),
        _ => string(raw).and_then(|text| text.to_ascii_lowercase().parse().ok()),
    };
    said.ok_or_else(|| {
        invalid(format!(
            "error parsing configuration list: invalid {key} value {}: must be true or false",
            raw.get()
        ))
    })
}

fn string(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

/// Names the JSON type of a value for a message.
fn kind(raw: &RawValue) -> &'static str {
    match raw.get().bytes().next() {
        Some(b'"') => "string",
        Some(b'{') => "object",
        Some(b'[') => "array",
        Some(b't' | b'f') => "bool",
        Some(b'n') => "null",
        _ => "number",
    }
}

fn invalid(msg: String) -> Error {
    Error::new(code::INVALID_CONFIG, msg)
}

fn parsing(msg: String) -> Error {
    Error::new(code::DECODE_FAILURE, msg)
}

/// The keys every plugin's configuration may hold beside its own.
///
/// Plugins read their own keys from the same document with a type of their own.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct CommonConfig {
    /// The version in which to answer.
    #[serde(rename = "cniVersion")]
    pub cni_version: String,
    /// The network's name.
    pub name: String,
    /// The plugin's own type.
    #[serde(rename = "type")]
    pub plugin_type: String,
    /// The delegated IPAM plugin.
    pub ipam: Option<IpamHead>,
    /// Name resolution; present but empty is not the same as absent.
    pub dns: Option<DnsConfig>,
    /// What the plugin before this one returned.
    #[serde(rename = "prevResult")]
    pub prev_result: Option<Box<RawValue>>,
    /// GC: the attachments that stay.
    #[serde(rename = "cni.dev/valid-attachments")]
    pub valid_attachments: Option<Vec<crate::GcAttachment>>,
    /// The same under the name of the text tagged 1.1.0.
    #[serde(rename = "cni.dev/attachments")]
    pub attachments: Option<Vec<crate::GcAttachment>>,
}

/// The one key of `ipam` that the delegating plugin reads.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct IpamHead {
    /// The IPAM plugin; empty for none.
    #[serde(rename = "type")]
    pub plugin_type: String,
}

/// `dns` in a configuration, which tells "absent" from "empty".
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DnsConfig {
    /// Name servers.
    pub nameservers: Option<Vec<String>>,
    /// Domain.
    pub domain: Option<String>,
    /// Search list.
    pub search: Option<Vec<String>>,
    /// Options.
    pub options: Option<Vec<String>>,
}

impl DnsConfig {
    /// Says whether any field was given, even an empty one.
    #[must_use]
    pub fn is_given(&self) -> bool {
        *self != DnsConfig::default()
    }

    /// Returns the plain form.
    #[must_use]
    pub fn to_dns(&self) -> Dns {
        Dns {
            nameservers: self.nameservers.clone().unwrap_or_default(),
            domain: self.domain.clone().unwrap_or_default(),
            search: self.search.clone().unwrap_or_default(),
            options: self.options.clone().unwrap_or_default(),
        }
    }
}

impl CommonConfig {
    /// Reads `prevResult`, if there is one, in the family of the configuration's version.
    ///
    /// # Errors
    /// Code 6 when it cannot be read or is of another family.
    pub fn previous(&self, config_version: Version) -> Result<Option<AddResult>, Error> {
        let Some(raw) = &self.prev_result else { return Ok(None) };
        let document = raw.get().as_bytes();
        let version = AddResult::version_of(document)
            .map_err(|error| error.context("could not parse prevResult"))?
            .unwrap_or(config_version);
        check_family(version, config_version)?;
        AddResult::parse(document, version)
            .map(Some)
            .map_err(|error| error.context("could not parse prevResult"))
    }
}
