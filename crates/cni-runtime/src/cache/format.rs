//! The contents of cache files: libcni's first version, and the form before it.

use cni::{AddResult, Args, AttachmentKey, ContainerId, IfName, NetworkName, Version};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::base64;
use crate::{Attachment, CapabilityArgs, PluginRefusal};

/// The value of `kind` (libcni api.go `CNICacheV1`).
const KIND: &str = "cniCacheV1";

/// The content of a file.
#[derive(Debug)]
pub(super) enum Content {
    /// libcni's first version.
    Entry(Box<Entry>),
    /// A bare result, as written before there were versions.
    Legacy(Box<RawValue>),
    /// JSON of another kind.
    Kind(String),
    /// Anything else.
    Garbage(String),
}

/// One attachment as the file describes it.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) key: AttachmentKey,
    pub(super) attachment: Attachment,
    pub(super) config: Vec<u8>,
    /// Absent while ADD has not succeeded.
    pub(super) result: Option<Box<RawValue>>,
    /// The boot in which ADD recorded it; other runtimes do not record it.
    pub(super) boot_id: Option<String>,
    /// Why ADD failed; other runtimes do not record it.
    pub(super) failed: Option<String>,
    /// The plugin that refused its configuration then.
    pub(super) refused: Option<PluginRefusal>,
}

/// How an ADD ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum End<'a> {
    /// It has not ended, as far as the file knows.
    Open,
    /// With this result.
    Made(&'a RawValue),
    /// With this error, and something may be left of it; and which plugin refused its
    /// configuration.
    Failed(&'a str, Option<&'a PluginRefusal>),
}

#[derive(Serialize)]
struct WrittenFile<'a> {
    kind: &'static str,
    #[serde(rename = "containerId")]
    container_id: &'a ContainerId,
    config: String,
    #[serde(rename = "ifName")]
    ifname: &'a IfName,
    #[serde(rename = "networkName")]
    network: &'a NetworkName,
    #[serde(skip_serializing_if = "str::is_empty")]
    netns: &'a str,
    #[serde(rename = "cniArgs", skip_serializing_if = "Vec::is_empty")]
    args: Vec<(&'a str, &'a str)>,
    #[serde(rename = "capabilityArgs", skip_serializing_if = "CapabilityArgs::is_empty")]
    capability_args: &'a CapabilityArgs,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    // From here on, keys of ours: libcni ignores keys that it does not know.
    #[serde(rename = "netwright/pid-ns", skip_serializing_if = "Option::is_none")]
    pid_ns: Option<u64>,
    #[serde(rename = "netwright/boot-id", skip_serializing_if = "Option::is_none")]
    boot_id: Option<&'a str>,
    #[serde(rename = "netwright/failed", skip_serializing_if = "Option::is_none")]
    failed: Option<&'a str>,
    #[serde(rename = "netwright/refusal", skip_serializing_if = "Option::is_none")]
    refused: Option<&'a PluginRefusal>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Reading {
    kind: String,
    #[serde(rename = "containerId")]
    container_id: String,
    config: String,
    #[serde(rename = "ifName")]
    ifname: String,
    #[serde(rename = "networkName")]
    network: String,
    netns: String,
    #[serde(rename = "cniArgs")]
    args: Vec<(String, String)>,
    #[serde(rename = "capabilityArgs")]
    capability_args: CapabilityArgs,
    result: Option<Box<RawValue>>,
    #[serde(rename = "netwright/pid-ns")]
    pid_ns: Option<u64>,
    #[serde(rename = "netwright/boot-id")]
    boot_id: Option<String>,
    #[serde(rename = "netwright/failed")]
    failed: Option<String>,
    #[serde(rename = "netwright/refusal")]
    refused: Option<PluginRefusal>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct OnlyKind {
    kind: String,
}

/// Writes an entry, compact, its keys in libcni's order.
pub(super) fn write(
    network: &NetworkName,
    attachment: &Attachment,
    config: &[u8],
    end: End<'_>,
    boot_id: Option<&str>,
) -> Vec<u8> {
    let (result, failed, refused) = match end {
        End::Open => (None, None, None),
        End::Made(result) => (Some(result), None, None),
        End::Failed(error, refused) => (None, Some(error), refused),
    };
    let writing = WrittenFile {
        kind: KIND,
        container_id: &attachment.container_id,
        config: base64::encode(config),
        ifname: &attachment.ifname,
        network,
        netns: &attachment.netns,
        args: attachment.args.iter().collect(),
        capability_args: &attachment.capability_args,
        pid_ns: attachment.pid_ns,
        result,
        boot_id,
        failed,
        refused,
    };
    serde_json::to_vec(&writing).expect("text, maps of text and JSON texts serialise")
}

/// Reads a file's content, of any kind.
pub(super) fn read(document: &[u8]) -> Content {
    if document.is_empty() {
        return Content::Garbage("the file is empty".to_owned());
    }
    // The lenient reader would take `null` for an object.
    if document.trim_ascii_start().first() != Some(&b'{') {
        return Content::Garbage("it is not a JSON object".to_owned());
    }
    match cni::json::from_slice::<OnlyKind>(document) {
        Err(error) => Content::Garbage(error.to_string()),
        Ok(OnlyKind { kind }) if kind == KIND => match read_entry(document) {
            Ok(entry) => Content::Entry(Box::new(entry)),
            Err(reason) => Content::Garbage(reason),
        },
        Ok(OnlyKind { kind }) if kind.is_empty() => read_legacy(document),
        Ok(OnlyKind { kind }) => Content::Kind(kind),
    }
}

fn read_entry(document: &[u8]) -> Result<Entry, String> {
    let reading: Reading = cni::json::from_slice(document).map_err(|error| error.to_string())?;
    debug_assert_eq!(reading.kind, KIND);
    let key = AttachmentKey {
        network: NetworkName::new(&reading.network).map_err(|error| error.to_string())?,
        container_id: ContainerId::new(&reading.container_id).map_err(|error| error.to_string())?,
        ifname: IfName::new(&reading.ifname).map_err(|error| error.to_string())?,
    };
    let attachment = Attachment {
        container_id: key.container_id.clone(),
        ifname: key.ifname.clone(),
        netns: reading.netns,
        args: Args::from_pairs(reading.args),
        capability_args: reading.capability_args,
        pid_ns: reading.pid_ns,
    };
    let config = base64::decode(&reading.config).ok_or("config: it is not base64")?;
    let result = reading.result.filter(|raw| raw.get() != "null");
    let (boot_id, failed, refused) = (reading.boot_id, reading.failed, reading.refused);
    Ok(Entry { key, attachment, config, result, boot_id, failed, refused })
}

fn read_legacy(document: &[u8]) -> Content {
    if let Err(error) = AddResult::parse(document, Version::V0_1_0) {
        return Content::Garbage(error.to_string());
    }
    match serde_json::from_slice(document) {
        Ok(raw) => Content::Legacy(raw),
        Err(error) => Content::Garbage(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by podman 4.3.1 of Debian 12, whose libcni does not record the namespace.
    const PODMAN: &str = include_str!("../../tests/it/data/libcni-podman-4.3.1.json");

    #[test]
    fn what_libcni_wrote_is_written_the_same() {
        let Content::Entry(entry) = read(PODMAN.as_bytes()) else { panic!("not read") };
        assert_eq!(entry.key.network.as_str(), "n1");
        assert_eq!(entry.attachment.args.get("K8S_POD_NAME"), Some("w"));
        let Entry { key, attachment, config, result, .. } = &*entry;
        let written = |end, boot_id| {
            let written = write(&key.network, attachment, config, end, boot_id);
            String::from_utf8(written).unwrap()
        };
        let again = |boot_id| written(End::Made(result.as_deref().unwrap()), boot_id);
        assert_eq!((entry.boot_id.as_deref(), again(None).as_str()), (None, PODMAN));
        let Content::Entry(ours) = read(again(Some("b")).as_bytes()) else { panic!("not read") };
        assert_eq!((ours.boot_id.as_deref(), ours.failed.as_deref()), (Some("b"), None));
        let mut refused = PluginRefusal::default();
        refused.refusal.msg = "no range".to_owned();
        let failed = written(End::Failed("no address", Some(&refused)), Some("b"));
        let Content::Entry(failed) = read(failed.as_bytes()) else { panic!("not read") };
        assert_eq!((failed.result.is_none(), failed.failed.as_deref()), (true, Some("no address")));
        assert_eq!(failed.refused, Some(refused));
    }
}
