//! Writes each record twice, so that damage to one file is reported and repaired.
//!
//! The copy is below `/run` and is written first: while it exists and is whole it is never older
//! than the record on the disk. A reboot deletes it, together with all containers. Each file has a
//! checksum of its content in `sum`, so that a changed digit is noticed, and its own name, so that
//! another record's content is noticed.
//!
//! Docker sends a network's options only once, so the driver could not ask for a damaged record
//! again.

use std::fmt;
use std::path::{Path, PathBuf};

use cni::Error;
use cni_plugin::codes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use state::Durability;

/// What is recorded.
pub(super) trait Record: Serialize + DeserializeOwned {
    /// The record's name, which is its file's name.
    fn id(&self) -> &str;
}

/// The text around a record's checksum, and the checksum's length.
const HEAD: &[u8] = br#"{"sum":""#;
const NECK: &[u8] = br#"","#;
const SUM_LENGTH: usize = 16;

/// Where a record is.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) record: PathBuf,
    pub(super) copy: PathBuf,
}

/// Why a file is not the record it should be.
#[derive(Debug)]
enum Damage {
    Unreadable(state::FileError),
    NoRecord(serde_json::Error),
    Changed,
    Anothers(String),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Unreadable(error) => write!(f, "{error}"),
            Damage::NoRecord(error) => f.write_str(&cni::json::plain(&error.to_string())),
            Damage::Changed => f.write_str("its content is not what was written"),
            Damage::Anothers(id) => write!(f, "it holds the record of {id}"),
        }
    }
}

impl Place {
    /// Reads a record: the file on the disk decides whether there is a record, and the copy what it
    /// says. A reader may not hold the record, so nothing is restored here.
    ///
    /// # Errors
    /// When both are damaged.
    pub(super) fn read<T: Record>(&self, id: &str) -> Result<Option<T>, Error> {
        match (load::<T>(&self.record, id), load::<T>(&self.copy, id)) {
            (Ok(None), _) => Ok(None),
            // A driver that was killed between the two writes had written the copy; an older one
            // writes no copies.
            (Ok(Some(found)), Ok(Some(copied))) if found.is_summed => Ok(Some(copied.record)),
            (Ok(Some(found)), _) => Ok(Some(found.record)),
            (Err(_), Ok(Some(copied))) => Ok(Some(copied.record)),
            (Err(damage), Ok(None) | Err(_)) => {
                let path = &self.record;
                Err(Error::new(codes::STATE, format!("read {path:?}: {damage}")).with_details(
                    "the record is damaged: remove the network or container that it described (docker network rm, docker rm), and create it again",
                ))
            }
        }
    }

    /// Restores the damaged one of the two files, and writes the copy where it is missing. Call it
    /// only while there is no other writer: otherwise the restored file may replace a newer one, or
    /// come back after its removal.
    pub(super) fn heal<T: Record>(&self, id: &str) {
        let (record, copy) = (self.record.display(), self.copy.display());
        let (path, found, durability) = match (
            load::<T>(&self.record, id),
            load::<T>(&self.copy, id),
        ) {
            (Err(damage), Ok(Some(copied))) => {
                tracing::warn!(%damage, "record {record} was damaged; it is put back from {copy}");
                (&self.record, copied, Durability::Synced)
            }
            (Ok(Some(found)), Err(damage)) => {
                tracing::warn!(%damage, "the copy {copy} of a record was damaged; it is put back");
                (&self.copy, found, Durability::Volatile)
            }
            (Ok(Some(found)), Ok(None)) => (&self.copy, found, Durability::Volatile),
            _ => return,
        };
        if let Err(error) = state::write_atomic(path, &found.bytes, 0o600, durability) {
            tracing::warn!(%error, "cannot write the second copy of a record");
        }
    }

    pub(super) fn write<T: Record>(&self, content: &T) -> Result<(), state::FileError> {
        let bytes = summed(content);
        state::write_atomic(&self.copy, &bytes, 0o600, Durability::Volatile)?;
        state::write_atomic(&self.record, &bytes, 0o600, Durability::Synced)
    }

    /// Writes only the copy of a record that exists: for what has no meaning after a reboot.
    pub(super) fn write_copy<T: Record>(&self, content: &T) -> Result<(), state::FileError> {
        state::write_atomic(&self.copy, &summed(content), 0o600, Durability::Volatile)
    }

    /// Removes a record; it is gone when the file on the disk is.
    pub(super) fn remove(&self) -> Result<(), state::FileError> {
        state::remove_file(&self.record)?;
        state::remove_file(&self.copy).map(drop)
    }
}

/// What a file holds.
struct StoredRecord<T> {
    record: T,
    bytes: Vec<u8>,
    /// The file has a checksum; an older driver's has none.
    is_summed: bool,
}

/// Reads one of the two.
fn load<T: Record>(path: &Path, id: &str) -> Result<Option<StoredRecord<T>>, Damage> {
    let bytes = match state::read_optional(path) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(None),
        Err(error) => return Err(Damage::Unreadable(error)),
    };
    let record: T = serde_json::from_slice(&bytes).map_err(Damage::NoRecord)?;
    let summed = bytes.strip_prefix(HEAD).and_then(|rest| rest.split_at_checked(SUM_LENGTH));
    let is_summed = summed.is_some();
    if summed.is_some_and(|(recorded, rest)| {
        rest.strip_prefix(NECK).is_none_or(|content| sum(content).as_bytes() != recorded)
    }) {
        return Err(Damage::Changed);
    }
    if record.id() != id {
        return Err(Damage::Anothers(record.id().to_owned()));
    }
    Ok(Some(StoredRecord { record, bytes, is_summed }))
}

/// Returns a record's file: an object whose first key is the checksum of all that follows.
fn summed<T: Record>(content: &T) -> Vec<u8> {
    let content = serde_json::to_vec(content).expect("records have string keys only");
    let content = content.get(1..).unwrap_or_default();
    [HEAD, sum(content).as_bytes(), NECK, content].concat()
}

/// Returns a content's checksum in sixteen digits (FNV-1a). It protects against accidents, not
/// against attackers, who are root.
fn sum(content: &[u8]) -> String {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let sum = content.iter().fold(0xcbf2_9ce4_8422_2325, step);
    format!("{sum:016x}")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct ExampleRecord {
        id: String,
        content: Vec<u8>,
    }

    impl Record for ExampleRecord {
        fn id(&self) -> &str {
            &self.id
        }
    }

    fn one(id: &str, content: u8) -> ExampleRecord {
        ExampleRecord { id: id.to_owned(), content: vec![content; 9] }
    }

    #[test]
    fn either_file_may_be_anything() {
        let dir = tempfile::tempdir().unwrap();
        let place = |id: &str| Place {
            record: dir.path().join(id),
            copy: dir.path().join(format!("{id}.copy")),
        };
        let (a, b) = (place("a"), place("b"));
        assert_eq!(a.read::<ExampleRecord>("a").unwrap(), None);
        b.write(&one("b", 7)).unwrap();
        let anothers = std::fs::read(&b.record).unwrap();
        a.write(&one("a", 5)).unwrap();
        let whole = std::fs::read(&a.record).unwrap();
        let mut wrong = vec![Vec::new(), b"[]".to_vec(), b"{}".to_vec(), vec![0; 400], anothers];
        wrong.extend((0..whole.len()).map(|at| whole[..at].to_vec()));
        wrong.extend((0..whole.len()).map(|at| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            bytes
        }));
        for bytes in &wrong {
            for path in [&a.record, &a.copy] {
                std::fs::write(path, bytes).unwrap();
                assert_eq!(
                    a.read::<ExampleRecord>("a").unwrap(),
                    Some(one("a", 5)),
                    "{path:?}: {bytes:?}"
                );
                a.write(&one("a", 5)).unwrap();
            }
            // Both: something exists, and neither file says what.
            std::fs::write(&a.record, bytes).unwrap();
            std::fs::write(&a.copy, bytes).unwrap();
            let read = a.read::<ExampleRecord>("a");
            assert!(read.is_err() || read.unwrap() == Some(one("a", 5)), "{bytes:?}");
            a.write(&one("a", 5)).unwrap();
        }
        a.write_copy(&one("a", 8)).unwrap();
        assert_eq!(a.read::<ExampleRecord>("a").unwrap(), Some(one("a", 8)));
        a.write(&one("a", 6)).unwrap();
        // After a reboot; and what an older driver wrote.
        std::fs::remove_file(&a.copy).unwrap();
        assert_eq!(a.read::<ExampleRecord>("a").unwrap(), Some(one("a", 6)));
        a.write(&one("a", 5)).unwrap();
        std::fs::write(&a.record, serde_json::to_vec(&one("a", 4)).unwrap()).unwrap();
        assert_eq!(a.read::<ExampleRecord>("a").unwrap(), Some(one("a", 4)));
        for damaged in [&b""[..], b"[1"] {
            a.write(&one("a", 6)).unwrap();
            std::fs::write(&a.copy, damaged).unwrap();
            a.heal::<ExampleRecord>("a");
            std::fs::write(&a.record, damaged).unwrap();
            assert_eq!(a.read::<ExampleRecord>("a").unwrap(), Some(one("a", 6)));
            a.heal::<ExampleRecord>("a");
            std::fs::remove_file(&a.copy).unwrap();
            assert_eq!(a.read::<ExampleRecord>("a").unwrap(), Some(one("a", 6)));
        }
        a.remove().unwrap();
        assert_eq!(a.read::<ExampleRecord>("a").unwrap(), None);
        assert!(!a.copy.exists());
    }
}
