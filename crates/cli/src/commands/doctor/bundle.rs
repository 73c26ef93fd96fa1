//! A scene in a file, for a bug report or another machine.

use std::path::Path;

use diagnose::Answers;
use diagnose::model::{MAX_BYTES, Scene};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Only root may read it: it has addresses and names.
const MODE: u32 = 0o600;

/// A scene, with the answers to probes. A program that knows no answers reads the scene alone.
#[derive(Serialize)]
struct Bundle<'b> {
    #[serde(flatten)]
    scene: &'b Scene,
    answers: &'b Answers,
}

/// What a bundle has besides its scene: nothing if it was written by an older version.
#[derive(Default, Deserialize)]
#[serde(default)]
struct BundleAnswers {
    answers: Answers,
}

/// Writes a scene and the answers to probes whole, or not at all.
pub(super) fn write(path: &Path, scene: &Scene, answers: &Answers) -> Result<(), Failure> {
    // An empty folder would be replaced.
    if path.is_dir() {
        let text = format!("{} is a folder; name a file", path.display());
        return Err(Failure::new(cni::code::IO_FAILURE, text));
    }
    let text = serde_json::to_string(&Bundle { scene, answers })
        .expect("the keys of all maps are strings");
    state::write_atomic(path, text.as_bytes(), MODE, state::Durability::Synced)
        .map_err(|error| Failure::of(cni::code::IO_FAILURE, &error))
}

/// Reads what [`write()`] has written.
pub(super) fn read(path: &Path) -> Result<(Scene, Answers), Failure> {
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
    let scene =
        Scene::from_json(&bytes).map_err(|error| Failure::of(cni::code::DECODE_FAILURE, &error))?;
    let besides: BundleAnswers = serde_json::from_slice(&bytes)
        .map_err(|error| failed(format!("{}: its answers", path.display())).because(error))?;
    Ok((scene, besides.answers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use diagnose::{Answer, Probe, Question};

    #[test]
    fn a_bundle_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.json");
        let scene = Scene { node: "node1".to_owned(), ..Scene::default() };
        let asked = Probe::Echo { to: "192.0.2.1".parse().unwrap() };
        let question = Question { from: Some("c1".to_owned()), asked };
        let answers = Answers { all: vec![(question, Answer::Silent { hops: Vec::new() })] };
        write(&path, &scene, &answers).unwrap();
        assert_eq!(read(&path).unwrap(), (scene.clone(), answers.clone()));
        // Programs of before read and wrote the scene alone.
        assert_eq!(Scene::from_json(&std::fs::read(&path).unwrap()).unwrap(), scene);
        std::fs::write(&path, scene.to_json()).unwrap();
        assert_eq!(read(&path).unwrap(), (scene.clone(), Answers::default()));
        std::fs::write(&path, "{\"version\":").unwrap();
        assert!(read(&path).is_err());
        assert!(read(dir.path()).is_err());
        assert!(write(dir.path(), &scene, &answers).is_err());
        assert!(write(&dir.path().join("absent/node.json"), &scene, &answers).is_err());
    }
}
