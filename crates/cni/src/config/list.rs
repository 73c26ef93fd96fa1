//! Network lists: several plugins under one name.

use serde_json::Value;
use serde_json::value::RawValue;

use super::{Head, PluginConfig, set_cni_args, undecodable};
use crate::error::{Error, code};
use crate::json::{self, Object};
use crate::text::quote;
use crate::version::{self, InvalidVersion, Version};

/// A network list (CNI 1.1.0 §1 "Network configuration format").
///
/// The name is the unchecked text: the library also loads lists with names that plugins will
/// refuse.
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
    /// The drop-in folder is ignored.
    pub load_only_inlined_plugins: bool,
    /// The plugins, in the order of ADD.
    pub plugins: Vec<PluginConfig>,
    /// The document as read, which the result cache keeps.
    pub source: Vec<u8>,
}

impl NetworkList {
    /// Reads a network list. It may have no plugins if they are to come from the drop-in folder.
    ///
    /// Unlike elsewhere, the keys of the list itself are compared exactly and `null` is a value of
    /// the wrong type, because the reference library reads lists that way.
    ///
    /// The version is the highest of `cniVersion` and `cniVersions` that is not newer than
    /// [`Version::CURRENT`]; `cniVersion` alone is taken unchecked, for plugins to judge.
    ///
    /// # Errors
    /// Code 6 when it is not a JSON object or a plugin's object has a wrong type in it; code 7, in
    /// the reference library's words, when the list makes no sense.
    pub fn parse(document: &[u8]) -> Result<Self, Error> {
        let undecodable = |error| {
            Error::new(code::DECODE_FAILURE, format!("error parsing configuration list: {error}"))
        };
        let text = json::utf8(document).map_err(undecodable)?;
        let list = RawList { entries: json::entries(text).map_err(undecodable)?, text };
        let name = list.string("name")?.ok_or_else(|| invalid("no name"))?;
        let cni_version = list.string("cniVersion")?.unwrap_or_default();
        let cni_version = match list.get("cniVersions") {
            Some(raw) => choose_version(raw, cni_version)?,
            None => cni_version,
        };
        let disable_check = list.boolean("disableCheck")?;
        let disable_gc = list.boolean("disableGC")?;
        let load_only_inlined_plugins = list.boolean("loadOnlyInlinedPlugins")?;
        Ok(NetworkList {
            name,
            cni_version,
            disable_check,
            disable_gc,
            load_only_inlined_plugins,
            plugins: list.plugins(load_only_inlined_plugins)?,
            source: document.to_vec(),
        })
    }

    /// Makes a list of one plugin's configuration, as in `.conf` and `.json` files. Of the list's
    /// own keys it has only `name` and `cniVersion`, each possibly empty.
    ///
    /// # Errors
    /// As [`PluginConfig::parse`].
    pub fn from_plugin(document: &[u8]) -> Result<Self, Error> {
        let head: Head = json::from_slice(document).map_err(undecodable)?;
        let plugin = PluginConfig::parse(document)?;
        let mut list = Object::new();
        list.set_value("cniVersion", &head.cni_version);
        list.set_value("name", &head.name);
        list.set_value("plugins", &[&plugin.object]);
        Ok(NetworkList {
            name: head.name,
            cni_version: head.cni_version,
            disable_check: false,
            disable_gc: false,
            load_only_inlined_plugins: false,
            plugins: vec![plugin],
            source: list.to_vec(),
        })
    }

    /// Says whether a capability with this value changes nothing in the network: the value is empty,
    /// and no plugin's `runtimeConfig` has one that it would replace.
    #[must_use]
    pub fn is_unchanged_by(&self, json: &str) -> bool {
        let is_empty = match serde_json::from_str(json) {
            Ok(Value::Null) => true,
            Ok(Value::Array(items)) => items.is_empty(),
            Ok(Value::String(text)) => text.is_empty(),
            _ => false,
        };
        let is_given =
            |plugin: &PluginConfig| plugin.object.get_ignore_case("runtimeConfig").is_some();
        is_empty && !self.plugins.iter().any(is_given)
    }

    /// Returns the list with these values in `args.cni` of every plugin; see [`set_cni_args`].
    ///
    /// # Errors
    /// Code 6 when `args` or `args.cni` of a plugin is not an object.
    pub fn with_cni_args(&self, values: &Object) -> Result<Self, Error> {
        let mut list = self.clone();
        for plugin in &mut list.plugins {
            set_cni_args(&mut plugin.object, values).map_err(|error| {
                let what = format!("args of plugin {}", quote(&plugin.plugin_type));
                Error::new(code::DECODE_FAILURE, format!("{what}: {error}"))
            })?;
        }
        let objects: Vec<&Object> = list.plugins.iter().map(|plugin| &plugin.object).collect();
        let mut source = Object::parse(&list.source).map_err(undecodable)?;
        source.set_value("plugins", &objects);
        list.source = source.to_vec();
        Ok(list)
    }
}

/// A list's entries as unparsed text.
struct RawList<'a> {
    entries: Vec<(String, &'a RawValue)>,
    text: &'a str,
}

impl<'a> RawList<'a> {
    fn get(&self, key: &str) -> Option<&'a RawValue> {
        self.entries.iter().rev().find(|(k, _)| k == key).map(|(_, value)| *value)
    }

    fn string(&self, key: &str) -> Result<Option<String>, Error> {
        let Some(raw) = self.get(key) else { return Ok(None) };
        string(raw).map(Some).ok_or_else(|| {
            invalid(format_args!("invalid {key} type {}", go_type(raw)))
                .with_details(format!("{key:?} is {}, it must be a string", json_type(raw)))
        })
    }

    fn boolean(&self, key: &str) -> Result<bool, Error> {
        let Some(raw) = self.get(key) else { return Ok(false) };
        if let Ok(value) = serde_json::from_str(raw.get()) {
            return Ok(value);
        }
        let hint = || format!("{key:?} must be true or false");
        let Some(text) = string(raw) else {
            return Err(invalid(format_args!("invalid type {} for {key}", go_type(raw)))
                .with_details(hint()));
        };
        let text = text.to_lowercase();
        text.parse().map_err(|_| {
            invalid(format_args!("invalid value {} for {key}", quote(&text))).with_details(hint())
        })
    }

    fn plugins(&self, only_inlined: bool) -> Result<Vec<PluginConfig>, Error> {
        let Some(raw) = self.get("plugins") else {
            if only_inlined {
                return Err(invalid("`loadOnlyInlinedPlugins` is true, and no 'plugins' key"));
            }
            return Ok(Vec::new());
        };
        let elements: Vec<&RawValue> = serde_json::from_str(raw.get()).map_err(|_| {
            invalid(format_args!("invalid 'plugins' type {}", go_type(raw)))
                .with_details(format!("\"plugins\" is {}, it must be a list", json_type(raw)))
        })?;
        if elements.is_empty() {
            return Err(invalid("no plugins in list"));
        }
        let plugin = |(index, element): (usize, &&RawValue)| {
            PluginConfig::from_part(element, self.text).map_err(|error| {
                error.context(format_args!("failed to parse plugin config {index}"))
            })
        };
        elements.iter().enumerate().map(plugin).collect()
    }
}

/// Chooses the highest version that this library speaks (libcni's rule). Of several texts for the
/// same version it keeps the first.
fn choose_version(raw: &RawValue, cni_version: String) -> Result<String, Error> {
    let listed: Vec<&RawValue> = serde_json::from_str(raw.get()).map_err(|_| {
        invalid(format_args!("invalid type for cniVersions: {}", go_type(raw))).with_details(
            format!("\"cniVersions\" is {}, it must be a list of strings", json_type(raw)),
        )
    })?;
    let current =
        version::triple(Version::CURRENT.as_str()).expect("our own version is three numbers");
    let mut best: Option<((u32, u32, u32), String)> = None;
    let mut consider = |text: &str| -> Result<(), InvalidVersion> {
        let triple = version::triple(text)?;
        if triple <= current && best.as_ref().is_none_or(|(highest, _)| *highest < triple) {
            best = Some((triple, text.to_owned()));
        }
        Ok(())
    };
    for (index, raw) in listed.into_iter().enumerate() {
        let text = string(raw).ok_or_else(|| {
            invalid(format_args!("invalid type for cniVersions index {index}: {}", go_type(raw)))
                .with_details("versions are strings")
        })?;
        consider(&text).map_err(|error| {
            invalid(format_args!("invalid cniVersions entry {text} at index {index}: {error}"))
        })?;
    }
    if !cni_version.is_empty() {
        consider(&cni_version)
            .map_err(|error| invalid(format_args!("invalid cniVersion {cni_version}: {error}")))?;
    }
    Ok(best.map_or(cni_version, |(_, text)| text))
}

fn string(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

/// Names the type of a value as the reference library's messages do.
fn go_type(raw: &RawValue) -> &'static str {
    match raw.get().bytes().next() {
        Some(b'"') => "string",
        Some(b'{') => "map[string]interface {}",
        Some(b'[') => "[]interface {}",
        Some(b't' | b'f') => "bool",
        Some(b'n') => "<nil>",
        _ => "float64",
    }
}

/// Names the type of a value for people to read.
fn json_type(raw: &RawValue) -> &'static str {
    match raw.get().bytes().next() {
        Some(b'"') => "a string",
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

fn invalid(what: impl std::fmt::Display) -> Error {
    Error::new(code::INVALID_CONFIG, format!("error parsing configuration list: {what}"))
}
