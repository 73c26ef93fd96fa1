//! Network configurations: what an administrator writes and what a plugin gets.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::{Error, code};
use crate::json::{self, Object};
use crate::name::check_plugin_type;
use crate::order::gather;
use crate::result::{self, AddResult, Dns};
use crate::version::Version;

mod list;

pub use list::NetworkList;

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

/// The keys of a plugin's object whose types are checked when it is loaded, as the reference
/// library does.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Head {
    #[serde(rename = "type")]
    plugin_type: String,
    capabilities: BTreeMap<String, bool>,
    name: String,
    #[serde(rename = "cniVersion")]
    cni_version: String,
    #[serde(rename = "ipam")]
    _ipam: IpamHead,
    #[serde(rename = "dns")]
    _dns: DnsConfig,
    #[serde(rename = "prevResult")]
    _prev_result: Object,
}

fn undecodable(error: json::JsonError) -> Error {
    Error::new(code::DECODE_FAILURE, format!("error parsing configuration: {error}"))
}

/// Puts values into `args.cni` of a plugin's object, where they win over those that are there (CNI
/// conventions, "dynamic plugin specific fields").
///
/// # Errors
/// When `args` or `args.cni` is there and is not an object.
pub fn set_cni_args(object: &mut Object, values: &Object) -> Result<(), json::JsonError> {
    let within = |object: &Object, key| match object.get_ignore_case(key) {
        Some(raw) => Object::parse(raw.get().as_bytes()),
        None => Ok(Object::new()),
    };
    let mut args = within(object, "args")?;
    let mut of_cni = within(&args, "cni")?;
    for (key, value) in values.iter() {
        of_cni.set(key, value.to_owned());
    }
    args.set_value("cni", &of_cni);
    object.set_value("args", &args);
    Ok(())
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
    /// [`crate::REPAIR`]: CHECK restores what it can before it checks.
    pub repair: bool,
    /// [`crate::LOOK`]: CHECK returns each difference separately.
    pub look: bool,
    /// [`crate::ATTACHED_AS`]: CHECK gets the interface's present place, and this is the name that
    /// ADD gave it.
    pub attached_as: Option<&'a crate::IfName>,
    /// [`crate::GONE`]: DEL removes only what belongs to these namespaces.
    pub gone: Option<&'a [crate::GoneNetns]>,
    /// [`crate::UNDO`]: DEL undoes an ADD that failed.
    pub undo: bool,
    /// [`crate::FOLLOWED_BY`]: the types of the plugins after this one. `None` leaves what the
    /// object says.
    pub followed_by: Option<&'a [&'a str]>,
}

impl PluginConfig {
    /// Reads one plugin's object.
    ///
    /// # Errors
    /// Code 6 when it is not an object or a key every plugin has is of the wrong type, code 7 when
    /// `type` is missing or could leave its directory.
    pub fn parse(document: &[u8]) -> Result<Self, Error> {
        let document = json::utf8(document).map_err(undecodable)?;
        PluginConfig::check(
            json::from_str(document).map_err(undecodable)?,
            json::from_str(document).map_err(undecodable)?,
        )
    }

    /// Takes an object apart; see [`PluginConfig::parse`].
    ///
    /// # Errors
    /// As [`PluginConfig::parse`].
    pub fn from_object(object: Object) -> Result<Self, Error> {
        let head = object.read().map_err(undecodable)?;
        PluginConfig::check(head, object)
    }

    /// Reads a part of `document`.
    fn from_part(raw: &RawValue, document: &str) -> Result<Self, Error> {
        PluginConfig::check(
            json::from_part(raw, document).map_err(undecodable)?,
            json::from_part(raw, document).map_err(undecodable)?,
        )
    }

    fn check(head: Head, object: Object) -> Result<Self, Error> {
        if head.plugin_type.is_empty() {
            return Err(Error::new(
                code::INVALID_CONFIG,
                "error parsing configuration: missing 'type'",
            ));
        }
        check_plugin_type(&head.plugin_type)?;
        let capabilities = head.capabilities.into_iter().filter(|(_, on)| *on).map(|(key, _)| key);
        Ok(PluginConfig {
            plugin_type: head.plugin_type,
            capabilities: capabilities.collect(),
            object,
        })
    }

    /// Derives the object that a plugin gets (CNI 1.1.0 §3 "Deriving request configuration from
    /// plugin configuration"): with the list's name and version, without `capabilities`, with what
    /// the runtime adds.
    #[must_use]
    pub fn request(&self, name: &str, cni_version: &str, injection: &Injection<'_>) -> Vec<u8> {
        let mut object = self.object.clone();
        object.set_value("cniVersion", cni_version);
        object.set_value("name", name);
        object.remove("capabilities");
        if let Some(args) = injection.capability_args {
            let wanted: BTreeMap<&String, &Box<RawValue>> =
                gather(args.iter().filter(|(key, _)| self.capabilities.contains(key)));
            if !wanted.is_empty() {
                object.set_value("runtimeConfig", &wanted);
            }
        }
        if let Some(result) = injection.prev_result {
            object.set("prevResult", result.to_owned());
        }
        if let Some(attachments) = injection.valid_attachments {
            object.set_value("cni.dev/valid-attachments", attachments);
            // The key's name in the specification tagged 1.1.0; plugins built at that time read it
            // (cni#1101).
            object.set_value("cni.dev/attachments", attachments);
        }
        if injection.repair {
            object.set_value(crate::REPAIR, &true);
        } else {
            // Only a runtime may set this key, and only for one call.
            object.remove(crate::REPAIR);
        }
        match injection.look {
            true => object.set_value(crate::LOOK, &true),
            false => object.remove(crate::LOOK),
        }
        match injection.attached_as {
            Some(ifname) => object.set_value(crate::ATTACHED_AS, ifname.as_str()),
            None => object.remove(crate::ATTACHED_AS),
        }
        match injection.gone {
            Some(gone) => object.set_value(crate::GONE, gone),
            None => object.remove(crate::GONE),
        }
        match injection.undo {
            true => object.set_value(crate::UNDO, &true),
            false => object.remove(crate::UNDO),
        }
        if let Some(types) = injection.followed_by {
            let awaited = types.iter().filter(|name| crate::follow::AWAITED.contains(name));
            match Vec::from_iter(awaited).as_slice() {
                [] => object.remove(crate::FOLLOWED_BY),
                types => object.set_value(crate::FOLLOWED_BY, types),
            }
        }
        object.to_vec()
    }
}

/// The keys that every plugin's configuration may hold beside its own.
///
/// Plugins read their own keys from the same document with their own type.
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
    /// The same, under the key's name in the specification tagged 1.1.0.
    #[serde(rename = "cni.dev/attachments")]
    pub attachments: Option<Vec<crate::GcAttachment>>,
    /// CHECK: restore what can be restored first ([`crate::REPAIR`]); false if a plugin that
    /// restores only checks this one.
    #[serde(rename = "netwright/repair")]
    pub repair: Option<bool>,
    /// CHECK: return each difference separately ([`crate::LOOK`]).
    #[serde(rename = "netwright/look")]
    pub look: bool,
    /// CHECK: the name that ADD gave the interface, if it has another now ([`crate::ATTACHED_AS`]).
    #[serde(rename = "netwright/attached-as")]
    pub attached_as: Option<String>,
    /// DEL: the namespaces of the attachment that are known to be gone ([`crate::GONE`]).
    #[serde(rename = "netwright/gone")]
    pub gone: Option<Vec<crate::GoneNetns>>,
    /// DEL: this call undoes an ADD that failed ([`crate::UNDO`]).
    #[serde(rename = "netwright/undo")]
    pub undo: bool,
    /// ADD: the types of the plugins after this one ([`crate::FOLLOWED_BY`]).
    #[serde(rename = "netwright/followed-by")]
    pub followed_by: Vec<String>,
}

/// The one key of `ipam` that the delegating plugin reads.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct IpamHead {
    /// The IPAM plugin; empty for none.
    #[serde(rename = "type")]
    pub plugin_type: String,
}

/// `dns` in a configuration; distinguishes "absent" from "empty".
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
    /// Reads `prevResult`, if there is one, in the family of the configuration's version; a
    /// `prevResult` that names no version has the configuration's.
    ///
    /// # Errors
    /// Code 6 when it cannot be read or is of another family.
    pub fn previous(&self, config_version: Version) -> Result<Option<AddResult>, Error> {
        let Some(raw) = &self.prev_result else { return Ok(None) };
        result::parse_previous(raw.get().as_bytes(), config_version)
            .map(Some)
            .map_err(|error| error.context("could not parse prevResult"))
    }
}
