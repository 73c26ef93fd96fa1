//! A scene in a file, for a bug report or another machine.

use std::path::Path;

use scene::{MAX_BYTES, Scene};

use crate::failure::Failure;

/// Only root may read it: it has addresses and names.
const MODE: u32 = 0o600;

/// Writes a scene whole, or not at all.
pub(super) fn write(path: &Path, scene: &Scene) -> Result<(), Failure> {
    // An empty folder would be replaced.
    if path.is_dir() {
        let text = format!("{} is a folder; name a file", path.display());
        return Err(Failure::new(cni::code::IO_FAILURE, text));
    }
    state::write_atomic(path, scene.to_json().as_bytes(), MODE, state::Durability::Synced)
        .map_err(|error| Failure::of(cni::code::IO_FAILURE, &error))
}

/// Reads what [`write()`] has written.
pub(super) fn read(path: &Path) -> Result<Scene, Failure> {
    let failed = |text: String| Failure::new(cni::code::DECODE_FAILURE, text);
    let metadata = std::fs::metadata(path).map_err(|error| {
        Failure::new(cni::code::IO_FAILURE, format!("read {}", path.display())).because(error)
    })?;
    if !metadata.is_file() {
        return Err(failed(format!("{} is not a file", path.display())));
    }
    if u64::try_from(MAX_BYTES).is_ok_and(|most| most < metadata.len()) {
        return Err(failed(format!("{} is too large for a scene", path.display())));
    }
    let bytes = std::fs::read(path).map_err(|error| {
        Failure::new(cni::code::IO_FAILURE, format!("read {}", path.display())).because(error)
    })?;
    Scene::from_json(&bytes).map_err(|error| Failure::of(cni::code::DECODE_FAILURE, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.json");
        let scene = Scene { node: "node1".to_owned(), ..Scene::default() };
        write(&path, &scene).unwrap();
        assert_eq!(read(&path).unwrap(), scene);
        std::fs::write(&path, "{\"version\":").unwrap();
        assert!(read(&path).is_err());
        assert!(read(dir.path()).is_err());
        assert!(write(dir.path(), &scene).is_err());
        assert!(write(&dir.path().join("absent/node.json"), &scene).is_err());
    }
}
