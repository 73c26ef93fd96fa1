//! Which devices the kubelet has allocated to a pod: from its checkpoint, which it writes before it starts the pod's containers.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Deserialize;

/// Where the kubelet has it.
pub(super) const CHECKPOINT: &str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Checkpoint {
    data: Data,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Data {
    pod_device_entries: Option<Vec<Entry>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    /// By NUMA node.
    #[serde(rename = "DeviceIDs")]
    ids: BTreeMap<String, Vec<String>>,
}

/// A pod's devices: each is handed out once, in the order of their names (as Multus does).
#[derive(Debug)]
pub(super) struct Devices {
    left: Result<HashMap<String, Vec<String>>, String>,
}

impl Devices {
    pub(super) fn of_pod(checkpoint: &Path, uid: &str) -> Self {
        let read = || {
            let text = std::fs::read(checkpoint).map_err(|error| {
                format!("the kubelet's checkpoint {}: {error}", checkpoint.display())
            })?;
            let read: Checkpoint = serde_json::from_slice(&text).map_err(|error| {
                format!("the kubelet's checkpoint {}: {error}", checkpoint.display())
            })?;
            let mut all: HashMap<String, Vec<String>> = HashMap::new();
            let entries = read.data.pod_device_entries.unwrap_or_default();
            for entry in entries.into_iter().filter(|entry| entry.pod_uid == uid) {
                all.entry(entry.resource).or_default().extend(entry.ids.into_values().flatten());
            }
            for ids in all.values_mut() {
                ids.sort();
                ids.dedup();
                ids.reverse();
            }
            Ok(all)
        };
        Devices { left: read() }
    }

    /// Hands out the next of a resource.
    pub(super) fn next(&mut self, resource: &str) -> Result<String, String> {
        let left = self.left.as_mut().map_err(|error| error.clone())?;
        let next = left.get_mut(resource).and_then(Vec::pop);
        next.ok_or_else(|| {
            "the kubelet has allocated none, or fewer than the pod has networks of it".to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_handed_out_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint");
        let text = r#"{"Data":{"PodDeviceEntries":[
            {"PodUID":"7","ContainerName":"c","ResourceName":"v/nic","DeviceIDs":{"1":["b"],"0":["a"]},"AllocResp":"x"},
            {"PodUID":"8","ContainerName":"c","ResourceName":"v/nic","DeviceIDs":{"-1":["c"]}}
        ],"RegisteredDevices":{}},"Checksum":1}"#;
        std::fs::write(&path, text).unwrap();
        let mut devices = Devices::of_pod(&path, "7");
        assert_eq!(devices.next("v/nic").as_deref(), Ok("a"));
        assert_eq!(devices.next("v/nic").as_deref(), Ok("b"));
        assert!(devices.next("v/nic").unwrap_err().contains("allocated none"));
        let missing = Devices::of_pod(&dir.path().join("none"), "7").next("v/nic").unwrap_err();
        assert!(missing.contains("the kubelet's checkpoint"), "{missing}");
    }
}
