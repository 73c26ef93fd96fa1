//! Finds the devices that the kubelet has allocated to a pod: in its checkpoint, which it writes
//! before it starts the pod's containers.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::Path;

use serde::Deserialize;

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
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    /// By NUMA node.
    #[serde(rename = "DeviceIDs")]
    ids: BTreeMap<String, Vec<String>>,
}

/// The devices allocated to a pod: by resource, then by container.
#[derive(Debug, Default)]
pub(super) struct PodDevices(HashMap<String, BTreeMap<String, BTreeSet<String>>>);

/// A pod's devices. Each is handed out once, in the order of its containers, and within each in the
/// order of their names (as Multus does).
#[derive(Debug)]
pub(super) struct Devices {
    left: Result<HashMap<String, VecDeque<String>>, String>,
}

impl PodDevices {
    /// Reads what the kubelet recorded for a pod.
    ///
    /// # Errors
    /// Why the devices are not known.
    pub(super) fn of_pod(checkpoint: &Path, uid: &str) -> Result<Self, String> {
        let unknown = |error: &dyn std::fmt::Display| {
            format!("the kubelet's checkpoint {}: {error}", checkpoint.display())
        };
        let text = std::fs::read(checkpoint).map_err(|error| unknown(&error))?;
        let read: Checkpoint = serde_json::from_slice(&text).map_err(|error| unknown(&error))?;
        let mut all = PodDevices::default();
        let entries = read.data.pod_device_entries.unwrap_or_default();
        for entry in entries.into_iter().filter(|entry| entry.pod_uid == uid) {
            let of_resource = all.0.entry(entry.resource).or_default();
            let ids = of_resource.entry(entry.container).or_default();
            ids.extend(entry.ids.into_values().flatten());
        }
        Ok(all)
    }

    /// Says whether several containers have devices of one of these resources, so that their order
    /// matters.
    pub(super) fn is_of_several(
        &self,
        mut resources: impl Iterator<Item = impl AsRef<str>>,
    ) -> bool {
        resources.any(|one| self.0.get(one.as_ref()).is_some_and(|by| 1 < by.len()))
    }

    /// Returns the devices in the order of these containers.
    pub(super) fn in_order(self, containers: &[String]) -> Devices {
        let place = |name: &String| containers.iter().position(|one| one == name);
        let ordered = |by_container: BTreeMap<String, BTreeSet<String>>| {
            let mut all: Vec<_> = by_container.into_iter().collect();
            all.sort_by_key(|(name, _)| place(name).unwrap_or(usize::MAX));
            // An init container leaves its devices to another container.
            let mut seen = BTreeSet::new();
            let ids = all.into_iter().flat_map(|(_, ids)| ids);
            ids.filter(|id| seen.insert(id.clone())).collect()
        };
        let left = self.0.into_iter().map(|(resource, by)| (resource, ordered(by)));
        Devices { left: Ok(left.collect()) }
    }
}

impl Devices {
    /// Returns devices that are not known, for this reason.
    pub(super) fn unknown(why: String) -> Self {
        Devices { left: Err(why) }
    }

    /// Hands out this device of a resource; `false` if it is not the pod's, or is handed out
    /// already.
    ///
    /// # Errors
    /// Why the devices are not known.
    pub(super) fn take(&mut self, resource: &str, id: &str) -> Result<bool, String> {
        let left = self.left.as_mut().map_err(|error| error.clone())?;
        let Some(ids) = left.get_mut(resource) else { return Ok(false) };
        let place = ids.iter().position(|one| one == id);
        Ok(place.and_then(|place| ids.remove(place)).is_some())
    }

    /// Hands out the next device of a resource.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn next(&mut self, resource: &str) -> Result<String, String> {
        let left = self.left.as_mut().map_err(|error| error.clone())?;
        let next = left.get_mut(resource).and_then(VecDeque::pop_front);
        next.ok_or_else(|| {
            "the kubelet has allocated none, or fewer than the pod has networks of it".to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocated(entries: &str) -> PodDevices {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint");
        let text = format!(
            r#"{{"Data":{{"PodDeviceEntries":[{entries}],"RegisteredDevices":{{}}}},"Checksum":1}}"#
        );
        std::fs::write(&path, text).unwrap();
        PodDevices::of_pod(&path, "7").unwrap()
    }

    fn all(mut devices: Devices) -> Vec<String> {
        std::iter::from_fn(|| devices.next("v/nic").ok()).collect()
    }

    const ONE: &str = r#"{"PodUID":"7","ContainerName":"c","ResourceName":"v/nic","DeviceIDs":{"1":["b"],"0":["a"]},"AllocResp":"x"},
        {"PodUID":"8","ContainerName":"c","ResourceName":"v/nic","DeviceIDs":{"-1":["c"]}}"#;

    #[test]
    fn each_is_handed_out_once() {
        let mut devices = allocated(ONE).in_order(&[]);
        assert_eq!(devices.next("v/nic").as_deref(), Ok("a"));
        assert_eq!(devices.take("v/nic", "a"), Ok(false));
        assert_eq!(devices.take("v/nic", "c"), Ok(false), "another pod has it");
        assert_eq!(devices.take("v/other", "b"), Ok(false));
        assert_eq!(devices.take("v/nic", "b"), Ok(true));
        assert!(devices.next("v/nic").unwrap_err().contains("allocated none"));
        let dir = tempfile::tempdir().unwrap();
        let missing = PodDevices::of_pod(&dir.path().join("none"), "7").unwrap_err();
        assert!(missing.contains("the kubelet's checkpoint"), "{missing}");
        let mut unknown = Devices::unknown(missing.clone());
        assert_eq!(unknown.next("v/nic"), Err(missing.clone()));
        assert_eq!(unknown.take("v/nic", "a"), Err(missing));
    }

    #[test]
    fn they_are_in_the_order_of_the_containers_and_sorted_within_each() {
        assert!(!allocated(ONE).is_of_several(["v/nic"].iter()));
        let several = || {
            allocated(
                r#"{"PodUID":"7","ContainerName":"c2","ResourceName":"v/nic","DeviceIDs":{"0":["a"]}},
                {"PodUID":"7","ContainerName":"c1","ResourceName":"v/nic","DeviceIDs":{"1":["d"],"0":["e","b"]}},
                {"PodUID":"7","ContainerName":"init","ResourceName":"v/nic","DeviceIDs":{"0":["a","b"]}}"#,
            )
        };
        assert!(several().is_of_several(["v/other", "v/nic"].iter()));
        assert!(!several().is_of_several(["v/other"].iter()));
        let order = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(all(several().in_order(&order(&["c1", "c2", "init"]))), ["b", "d", "e", "a"]);
        assert_eq!(all(several().in_order(&order(&["c2", "c1", "init"]))), ["a", "b", "d", "e"]);
    }
}
