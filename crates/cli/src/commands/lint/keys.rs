//! Keys that no plugin reads, values of the wrong type, plugins that are not there.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use cni::excerpt::Place;
use cni::json::{JsonError, UnknownKey};
use cni::nearest::nearest;
use cni::{NetworkList, PluginConfig, Version};
use cni_plugin::{Inner, Plugin};
use cni_runtime::PluginError;
use plugins::judge::{self, Refusal};
use plugins::own_folder;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Examination, Severity};
use crate::net::session::Session;

/// The keys of a network list (CNI 1.1.0 §1).
const LIST_KEYS: [&str; 7] = [
    "cniVersion",
    "cniVersions",
    "disableCheck",
    "disableGC",
    "loadOnlyInlinedPlugins",
    "name",
    "plugins",
];

/// The keys that every plugin's object may hold, whether the plugin reads them or not (CNI 1.1.0 §1
/// "Plugin configuration objects").
const COMMON_KEYS: [&str; 9] =
    ["args", "capabilities", "cniVersion", "dns", "ipMasq", "ipam", "name", "prevResult", "type"];

/// The entries of a JSON object, each a slice of the text from which it was read.
pub(super) struct Top<'a>(BTreeMap<String, &'a RawValue>);

impl<'a> Top<'a> {
    /// Reads the object. Text that cannot be read has no entries; another check has reported it.
    pub(super) fn of(text: &'a str) -> Self {
        Top(serde_json::from_str(text).unwrap_or_default())
    }

    /// Returns the text of a key's value; keys are compared without regard to case.
    pub(super) fn value(&self, key: &str) -> Option<&'a str> {
        let found = self.0.iter().find(|(name, _)| name.eq_ignore_ascii_case(key));
        found.map(|(_, raw)| raw.get())
    }

    /// Returns the texts of a list's elements.
    pub(super) fn elements(&self, key: &str) -> Vec<&'a str> {
        let elements: Vec<&'a RawValue> =
            self.value(key).and_then(|raw| serde_json::from_str(raw).ok()).unwrap_or_default();
        elements.into_iter().map(RawValue::get).collect()
    }

    fn keys(&self) -> impl Iterator<Item = (&str, &'a str)> {
        self.0.iter().map(|(key, raw)| (key.as_str(), raw.get()))
    }
}

/// What an object is checked against beside its own text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) session: &'a Session,
    pub(super) network: &'a str,
    pub(super) cni_version: &'a str,
}

/// Checks the keys of a network list, or of a single plugin's configuration.
pub(super) fn lint_document(list: &NetworkList, session: &Session, examined: &mut Examination<'_>) {
    let text = examined.text;
    let top = Top::of(text);
    let around = Context { session, network: &list.name, cni_version: &list.cni_version };
    if top.value("plugins").is_none() && top.value("type").is_some() {
        return lint_object(text, around, examined);
    }
    for (key, value) in top.keys() {
        if !LIST_KEYS.iter().any(|known| known.eq_ignore_ascii_case(key)) {
            let place = before(text, Place::of(text, value), key);
            unknown(key, &LIST_KEYS, place, "a network list", examined);
        }
    }
    let objects = top.elements("plugins");
    if objects.is_empty() {
        // Every plugin comes from the drop-in folder, whose files are checked one by one.
        return;
    }
    for object in objects.iter().take(list.plugins.len()) {
        lint_object(object, around, examined);
    }
}

/// Checks one plugin's object, which is a slice of the examined text.
pub(super) fn lint_object(object: &str, around: Context<'_>, examined: &mut Examination<'_>) {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Head {
        r#type: String,
        ipam: Option<Ipam>,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Ipam {
        r#type: String,
    }
    let start = Place::of(examined.text, object);
    let head: Head = match cni::json::from_str(object) {
        Ok(head) => head,
        Err(error) => return wrong(&error, start, examined),
    };
    let top = Top::of(object);
    let type_at = top.value("type").map_or(start, |raw| Place::of(examined.text, raw));
    require(&head.r#type, type_at, around, examined);
    let ipam_type = head.ipam.map(|ipam| ipam.r#type).unwrap_or_default();
    if !ipam_type.is_empty() {
        let ipam_text = top.value("ipam").unwrap_or(object);
        let ipam = Top::of(ipam_text);
        let place = Place::of(examined.text, ipam.value("type").unwrap_or(ipam_text));
        require(&ipam_type, place, around, examined);
    }
    let mut legible = true;
    match plugins::info(&head.r#type).and_then(|info| info.inner) {
        Some(Inner::Plugins(key) | Inner::Delegates(key)) => {
            for inner in top.elements(key) {
                lint_object(inner, around, examined);
            }
        }
        Some(Inner::Networks(key)) => {
            for network in top.elements(key) {
                lint_written(network, around, examined);
            }
        }
        Some(Inner::Delegate { key, default_type }) => {
            if let Some(inner) = top.value(key) {
                legible &= lint_delegate(inner, default_type, around, examined);
            }
        }
        None => {}
    }
    if let Some(plugin) = plugins::find(&head.r#type) {
        legible &= ask(plugin, object, start, examined, |key| !in_ipam(key) && !is_common(key));
        // Keys that an address plugin ignores are about `ipam`, which it does not have as a link of
        // a chain.
        tell_ignored(plugin, &top, examined);
    }
    if let Some(plugin) = plugins::find(&ipam_type) {
        legible &= ask(plugin, object, start, examined, in_ipam);
        tell_ignored(plugin, &Top::of(top.value("ipam").unwrap_or(object)), examined);
    }
    tell_unread_capabilities(&head.r#type, &ipam_type, &top, examined);
    if legible {
        tell_refusals(object, type_at, around, examined);
    }
}

/// Checks the part of a delegate's object that a configuration has. The plugin that completes it
/// judges the whole, if this returns that it can be read.
fn lint_delegate(
    object: &str,
    default_type: &str,
    around: Context<'_>,
    examined: &mut Examination<'_>,
) -> bool {
    let start = Place::of(examined.text, object);
    // The plugin reports what is wrong with the type.
    let written = Top::of(object).value("type");
    let named = written.and_then(|raw| serde_json::from_str::<String>(raw).ok());
    let plugin_type = named.as_deref().unwrap_or(default_type);
    let type_at = written.map_or(start, |raw| Place::of(examined.text, raw));
    require(plugin_type, type_at, around, examined);
    plugins::find(plugin_type).is_none_or(|plugin| {
        ask(plugin, object, start, examined, |key| !in_ipam(key) && !is_common(key))
    })
}

/// Reports capabilities whose arguments neither the plugin nor its IPAM plugin reads.
fn tell_unread_capabilities(
    plugin_type: &str,
    ipam_type: &str,
    object: &Top<'_>,
    examined: &mut Examination<'_>,
) {
    let Some(read) = judge::capabilities_read(plugin_type, ipam_type) else { return };
    let Some(capabilities) = object.value("capabilities") else { return };
    for (name, value) in Top::of(capabilities).keys() {
        if value != "true" || read.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            continue;
        }
        let place = before(examined.text, Place::of(examined.text, value), name);
        let message =
            format!("capability {name:?} has no effect: plugin {plugin_type:?} does not read it");
        let hint = match nearest(name, read.iter().copied()) {
            Some(near) => Some(format!("did you mean {near:?}?")),
            None if read.is_empty() => None,
            None => Some(format!("known are {}", read.join(", "))),
        };
        examined.find(Severity::Warning, place, message, hint);
    }
}

/// Reports what ADD would refuse in it, and what is doubtful. The plugins in a chain are checked one by one.
fn tell_refusals(
    object: &str,
    type_at: Place,
    around: Context<'_>,
    examined: &mut Examination<'_>,
) {
    let Ok(plugin) = PluginConfig::parse(object.as_bytes()) else { return };
    let top = Top::of(object);
    let is_asked = |plugin_type: &str| {
        let found = around.session.runtime.find_plugin(plugin_type);
        judge::is_own_name(plugin_type)
            || found.is_ok_and(|executable| own_folder::is_own(&executable))
    };
    let find = |refusal: Refusal, severity, examined: &mut Examination<'_>| {
        let ipam = top.value("ipam").filter(|_| refusal.is_ipam);
        let within = ipam.map(Top::of);
        let key = named_key(&refusal.error.details);
        let value = key.and_then(|key| within.as_ref().unwrap_or(&top).value(key));
        let place = match (key, value) {
            (Some(key), Some(value)) => before(examined.text, Place::of(examined.text, value), key),
            _ => ipam.map_or(type_at, |ipam| Place::of(examined.text, ipam)),
        };
        let host = if refusal.is_hosts { "on this host " } else { "" };
        let text = format!("{host}plugin {:?}: {}", refusal.plugin_type, refusal.error.msg);
        let hint = Some(refusal.error.details).filter(|details| !details.is_empty());
        examined.find(severity, place, text, hint);
    };
    let (network, version) = (around.network, around.cni_version);
    for refusal in judge::object(&plugin, network, version, &is_asked) {
        let severity = if refusal.is_hosts { Severity::Warning } else { Severity::Error };
        find(refusal, severity, examined);
    }
    for doubt in judge::doubts(&plugin, network, version, &is_asked) {
        find(doubt, Severity::Warning, examined);
    }
}

/// Returns the key that an error's details name.
fn named_key(details: &str) -> Option<&str> {
    let (_, rest) = details.split_once("key \"")?;
    let (key, _) = rest.split_once('"')?;
    key.split('.').next()
}

/// Lints a network that is written within a configuration: a plugin's object or a list.
fn lint_written(network: &str, around: Context<'_>, examined: &mut Examination<'_>) {
    let Some(config) = Top::of(network).value("config") else { return };
    match Top::of(config).elements("plugins") {
        plugins if plugins.is_empty() => lint_object(config, around, examined),
        plugins => plugins.into_iter().for_each(|plugin| lint_object(plugin, around, examined)),
    }
}

/// Asks one of our plugins which keys it would ignore. Returns whether it can read the rest.
fn ask(
    plugin: &dyn Plugin,
    object: &str,
    start: Place,
    examined: &mut Examination<'_>,
    concerns: impl Fn(&UnknownKey) -> bool,
) -> bool {
    match plugin.unknown_keys(object) {
        Err(error) => {
            wrong(&error, start, examined);
            false
        }
        Ok(keys) => {
            for key in keys.iter().filter(|key| concerns(key)) {
                let place = start.within(Place { line: key.line, column: key.column });
                let place = before(examined.text, place, &key.key);
                let reader = if key.parent.is_empty() {
                    format!("plugin {:?}", plugin.name())
                } else {
                    format!("{:?} of plugin {:?}", key.parent, plugin.name())
                };
                unknown(&key.key, &key.known, place, &reader, examined);
            }
            true
        }
    }
}

/// Reports the keys that a plugin accepts and ignores.
fn tell_ignored(plugin: &dyn Plugin, object: &Top<'_>, examined: &mut Examination<'_>) {
    for (key, value) in object.keys() {
        let mut ignored = plugin.ignored_keys().iter();
        let Some((_, why)) = ignored.find(|(name, _)| name.eq_ignore_ascii_case(key)) else {
            continue;
        };
        let place = before(examined.text, Place::of(examined.text, value), key);
        let message = format!("key {key:?} has no effect: {why}");
        examined.find(Severity::Warning, place, message, None);
    }
}

fn in_ipam(key: &UnknownKey) -> bool {
    let first = key.parent.split(['.', '[']).next().unwrap_or_default();
    first.eq_ignore_ascii_case("ipam")
}

fn is_common(key: &UnknownKey) -> bool {
    key.parent.is_empty() && COMMON_KEYS.iter().any(|common| common.eq_ignore_ascii_case(&key.key))
}

fn unknown(key: &str, known: &[&str], place: Place, reader: &str, examined: &mut Examination<'_>) {
    let hint = match nearest(key, known.iter().copied()) {
        Some(near) => Some(format!("did you mean {near:?}?")),
        None if known.is_empty() => None,
        None => Some(format!("known are {}", known.join(", "))),
    };
    examined.find(
        Severity::Warning,
        place,
        format!("unknown key {key:?}: {reader} does not read it"),
        hint,
    );
}

fn wrong(error: &JsonError, start: Place, examined: &mut Examination<'_>) {
    let place = start.within(Place { line: error.line, column: error.column });
    let message = match error.path.as_str() {
        "" => error.message.clone(),
        path => format!("{path}: {}", error.message),
    };
    examined.find(Severity::Error, place, message, None);
}

/// Reports a plugin that is neither one of ours nor found in the plugin folders.
fn require(plugin_type: &str, place: Place, around: Context<'_>, examined: &mut Examination<'_>) {
    if plugin_type.is_empty() {
        return;
    }
    let is_ours = judge::is_own_name(plugin_type);
    let error = match around.session.runtime.find_plugin(plugin_type) {
        Ok(executable) if !is_ours => {
            return answers(plugin_type, &executable, place, around, examined);
        }
        Ok(executable) => {
            is_executable(plugin_type, &executable, place, examined);
            return;
        }
        Err(_) if is_ours => return,
        Err(error) => error,
    };
    let ours = plugins::all().iter().map(|plugin| plugin.name());
    let is_alias = plugins::find(plugin_type).is_some();
    let hint = match nearest(plugin_type, ours) {
        _ if is_alias => format!("`install --also {plugin_type}` places ours under that name"),
        Some(near) => format!("did you mean {near:?}?"),
        None => "install it, or set CNI_PATH to the folders that hold it".to_owned(),
    };
    let message = own_folder::without_folder(&error.to_string());
    examined.find(Severity::Error, place, message, Some(hint));
}

/// Reports a plugin that is not ours and cannot be called: its file is not executable, or it speaks
/// no version with which the list could be served.
fn answers(
    plugin_type: &str,
    executable: &Path,
    place: Place,
    around: Context<'_>,
    examined: &mut Examination<'_>,
) {
    // A user who can change the file would have lint run their program: lint warns about that, and
    // then asks the plugin nothing.
    if !is_executable(plugin_type, executable, place, examined)
        || !cni_invoke::distrust(executable).is_empty()
    {
        return;
    }
    let session = around.session;
    let path = executable.display();
    let (text, hint) = match session.runtime.version_info(plugin_type, session.deadline()) {
        Err(failure) => {
            // What the plugin itself says to do counts.
            let (why, hint) = match *failure.error {
                PluginError::Reported(said) if !said.details.is_empty() => (said.msg, said.details),
                other => (
                    other.to_string(),
                    format!("the runtime would call {path}: is it a plugin for this machine?"),
                ),
            };
            (format!("plugin {plugin_type:?} does not report its versions: {why}"), hint)
        }
        Ok(info) => {
            let Some(wanted) = Version::parse(around.cni_version) else { return };
            if info.nearest(wanted, Version::V0_1_0).is_some() {
                return;
            }
            let spoken = info.supported.join(", ");
            (
                format!(
                    "plugin {plugin_type:?} supports no version that netwright knows, but {spoken}"
                ),
                format!("{path} is too old or too new: replace it"),
            )
        }
    };
    examined.find(Severity::Error, place, text, Some(hint));
}

/// Reports a file that cannot be executed.
fn is_executable(
    plugin_type: &str,
    executable: &Path,
    place: Place,
    examined: &mut Examination<'_>,
) -> bool {
    let mode = executable.metadata().map(|found| found.mode()).unwrap_or(0o111);
    if mode & 0o111 != 0 {
        return true;
    }
    let path = executable.display();
    examined.find(
        Severity::Error,
        place,
        format!("plugin {plugin_type:?} cannot be executed: {path} has mode {:04o}", mode & 0o7777),
        Some(format!("chmod 0755 {path}")),
    );
    false
}

/// Moves a place from a value to its key, if the key is before it on the same line.
fn before(text: &str, value: Place, key: &str) -> Place {
    let quoted = format!("{:?}", key);
    let line =
        value.line.checked_sub(1).and_then(|index| text.lines().nth(index)).unwrap_or_default();
    let head = line.get(..value.column.saturating_sub(1)).unwrap_or_default();
    match head.rfind(&quoted) {
        Some(at) => Place { line: value.line, column: at + 1 },
        None => value,
    }
}
