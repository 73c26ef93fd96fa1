//! The link's original values, in the reference's file: either implementation's DEL can restore
//! them.

use std::path::{Path, PathBuf};

use cni::AttachmentKey;
use kernel::mac::MacAddr;
use serde::{Deserialize, Serialize};
use state::Durability;

use crate::shared::failure::Failure;
use crate::shared::files;

use super::config::LinkValues;

const FILE_MODE: u32 = 0o600;

/// The keys of the file, in the reference's order. It has only the values that were changed.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Raw {
    #[serde(skip_serializing_if = "String::is_empty")]
    mac: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    promisc: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allmulti: Option<bool>,
    #[serde(rename = "txQLen", skip_serializing_if = "Option::is_none")]
    tx_queue_length: Option<u32>,
}

/// Returns the file's path: `<dataDir>/<container ID>_<interface>.json`.
pub(super) fn path(data_dir: &Path, key: &AttachmentKey) -> PathBuf {
    data_dir.join(format!("{}_{}.json", key.container_id, key.ifname))
}

/// Reads a backup; `None` if there is none. An invalid one is skipped with a warning.
///
/// # Errors
/// Code 105 when the kernel refuses to read it: it may have what must be restored.
pub(super) fn read(path: &Path, warn: impl FnOnce(String)) -> Result<Option<LinkValues>, Failure> {
    let parsed = match state::read_optional(path) {
        Ok(None) => return Ok(None),
        Ok(Some(bytes)) => parse(&bytes),
        Err(error) if error.is_refused() => return Err(Failure::from(error)),
        Err(error) => Err(Failure::from(error).message().to_owned()),
    };
    Ok(parsed.map_err(|reason| warn(format!("ignored backup {path:?}: {reason}"))).ok())
}

/// Writes a backup.
///
/// # Errors
/// Code 105.
pub(super) fn write(path: &Path, values: &LinkValues) -> Result<(), Failure> {
    Ok(files::write(path, &format(values), FILE_MODE, Durability::Volatile)?)
}

/// Removes a backup; a missing one is not an error.
///
/// # Errors
/// Code 105.
pub(super) fn remove(path: &Path) -> Result<(), Failure> {
    Ok(state::remove_file(path).map(drop)?)
}

fn format(values: &LinkValues) -> Vec<u8> {
    let raw = Raw {
        mac: values.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        promisc: values.promisc,
        mtu: values.mtu.filter(|mtu| *mtu != 0),
        allmulti: values.allmulti,
        tx_queue_length: values.tx_queue_length,
    };
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b" ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
    raw.serialize(&mut serializer).expect("strings, numbers and booleans serialise");
    text
}

fn parse(bytes: &[u8]) -> Result<LinkValues, String> {
    let raw: Raw = cni::json::from_slice(bytes).map_err(|error| error.to_string())?;
    let mac: Option<MacAddr> = match raw.mac.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|_| format!("{text:?} is not a MAC address"))?),
    };
    Ok(LinkValues {
        mac,
        mtu: raw.mtu.filter(|mtu| *mtu != 0),
        promisc: raw.promisc,
        allmulti: raw.allmulti,
        tx_queue_length: raw.tx_queue_length,
    })
}

/// See [`super::reads_a_backup_as_it_writes_it`].
#[cfg(feature = "fuzz")]
pub(super) fn assert_round_trip(bytes: &[u8]) {
    if let Ok(values) = parse(bytes) {
        assert_eq!(parse(&format(&values)), Ok(values));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use cni_plugin::codes;
    use expect_test::expect;

    use super::*;

    fn everything() -> LinkValues {
        LinkValues {
            mac: Some("02:00:5e:00:53:01".parse().unwrap()),
            mtu: Some(1500),
            promisc: Some(false),
            allmulti: Some(true),
            tx_queue_length: Some(0),
        }
    }

    #[test]
    fn the_file_is_the_references() {
        expect![[r#"
            {
             "mac": "02:00:5e:00:53:01",
             "promisc": false,
             "mtu": 1500,
             "allmulti": true,
             "txQLen": 0
            }"#]]
        .assert_eq(std::str::from_utf8(&format(&everything())).unwrap());
        let only_mtu = LinkValues { mtu: Some(9000), ..LinkValues::default() };
        expect![[r#"
            {
             "mtu": 9000
            }"#]]
        .assert_eq(std::str::from_utf8(&format(&only_mtu)).unwrap());
        let key = AttachmentKey {
            network: "n".parse().unwrap(),
            container_id: "c1".parse().unwrap(),
            ifname: "eth0.5".parse().unwrap(),
        };
        assert_eq!(
            path(Path::new("/run/cni/tuning"), &key),
            Path::new("/run/cni/tuning/c1_eth0.5.json")
        );
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/c1_eth0.json");
        let silent = |warning| panic!("{warning}");
        assert_eq!(read(&path, silent).unwrap(), None);
        write(&path, &everything()).unwrap();
        assert_eq!(read(&path, silent).unwrap(), Some(everything()));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert_eq!(read(&path, silent).unwrap(), None);
    }

    #[test]
    fn garbage_is_passed_over_with_a_warning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c1_eth0.json");
        for garbage in ["", "{\"mtu\":", "[]", "{\"mtu\": \"x\"}", "{\"mac\": \"zz\"}"] {
            std::fs::write(&path, garbage).unwrap();
            let mut warned = false;
            assert_eq!(read(&path, |_| warned = true).unwrap(), None, "{garbage}");
            assert!(warned, "{garbage}");
        }
    }

    /// It used to count as missing, and DEL removed it without restoring anything.
    #[test]
    fn one_that_the_kernel_does_not_read_is_not_missing() {
        let read = |path: &str| read(Path::new(path), drop);
        assert_eq!(read("/run/a\0b").unwrap_err().code(), codes::STATE);
        assert_eq!(read(&format!("/run/{}", "x".repeat(300))).unwrap(), None);
    }
}
