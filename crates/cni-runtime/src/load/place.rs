//! Finds the place in a document at which a configuration is wrong.
//!
//! `cni` checks configurations in the reference library's words, which name no place. This reads
//! the same document against the expected shape, with a reader that knows its position.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};

/// A place, and the network in which it is.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) network: Option<String>,
}

/// Finds the first place in `document` that does not have the shape of a list, or of a plugin.
pub(super) fn find(document: &[u8], single: bool) -> Place {
    let network = match cni::json::from_slice::<OnlyName>(document) {
        Ok(only) => only.name.0,
        Err(_) => name_before_the_error(document),
    };
    let error = if single {
        cni::json::from_slice::<PluginShape>(document).err()
    } else {
        cni::json::from_slice::<ListShape>(document).err()
    };
    match error {
        Some(error) if error.line != 0 => Place { line: error.line, column: error.column, network },
        // The shape is right and something is missing, or nothing is right: return the start of the
        // document.
        _ => Place { line: 1, column: 1, network },
    }
}

/// Reads the name in a document with an error after the name, such as one that is not written
/// completely.
fn name_before_the_error(document: &[u8]) -> Option<String> {
    struct Keys<'n>(&'n mut Option<String>);
    impl<'de> Visitor<'de> for Keys<'_> {
        type Value = ();
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(key) = map.next_key::<String>()? {
                match key.eq_ignore_ascii_case("name") {
                    true => *self.0 = map.next_value::<AnyText>()?.0.or(self.0.take()),
                    false => drop(map.next_value::<IgnoredAny>()?),
                }
            }
            Ok(())
        }
    }
    let mut name = None;
    // The caller reports what is wrong.
    let _ = serde_json::Deserializer::from_slice(document).deserialize_map(Keys(&mut name));
    name
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct OnlyName {
    name: AnyText,
}

/// A text, or a value of another type.
#[derive(Default)]
struct AnyText(Option<String>);

impl<'de> Deserialize<'de> for AnyText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<serde_json::value::RawValue>::deserialize(deserializer)?;
        Ok(AnyText(serde_json::from_str(raw.get()).ok()))
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
#[allow(dead_code, reason = "only whether it can be read matters")]
struct ListShape {
    name: String,
    #[serde(rename = "cniVersion")]
    cni_version: String,
    #[serde(rename = "cniVersions")]
    cni_versions: Vec<VersionShape>,
    #[serde(rename = "disableCheck")]
    disable_check: Flag,
    #[serde(rename = "disableGC")]
    disable_gc: Flag,
    #[serde(rename = "loadOnlyInlinedPlugins")]
    load_only_inlined_plugins: Flag,
    plugins: Vec<PluginShape>,
}

struct PluginShape;

impl<'de> Deserialize<'de> for PluginShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Raw {
            r#type: TypeShape,
            #[serde(rename = "capabilities")]
            _capabilities: BTreeMap<String, bool>,
        }
        let raw = Raw::deserialize(deserializer)?;
        if raw.r#type.0 { Ok(PluginShape) } else { Err(D::Error::custom("missing 'type'")) }
    }
}

/// Says whether there is a type; an invalid type is an error at its own place.
#[derive(Default)]
struct TypeShape(bool);

impl<'de> Deserialize<'de> for TypeShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        cni::name::check_plugin_type(&text).map_err(D::Error::custom)?;
        Ok(TypeShape(true))
    }
}

struct VersionShape;

impl<'de> Deserialize<'de> for VersionShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        cni::version::triple(&text).map_err(D::Error::custom)?;
        Ok(VersionShape)
    }
}

/// `true`, `false`, or one of them as text in any case.
#[derive(Default)]
struct Flag;

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FlagVisitor;
        impl Visitor<'_> for FlagVisitor {
            type Value = Flag;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true or false")
            }
            fn visit_bool<E: Error>(self, _: bool) -> Result<Flag, E> {
                Ok(Flag)
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Flag, E> {
                match text.to_ascii_lowercase().as_str() {
                    "true" | "false" => Ok(Flag),
                    _ => Err(E::custom("must be true or false")),
                }
            }
        }
        deserializer.deserialize_any(FlagVisitor)
    }
}
