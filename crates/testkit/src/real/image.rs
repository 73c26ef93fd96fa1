//! An image for runtimes that take them as files.

use std::path::PathBuf;

use serde_json::json;

use super::rootfs::root_filesystem;
use crate::lab::Lab;
use crate::place::Place as _;

/// Writes an archive, as `docker save` does, of an image of busybox, and returns its path.
pub(super) fn image(lab: &Lab, name: &str, command: &[&str]) -> PathBuf {
    let root = root_filesystem(lab);
    let dir = lab.dir().join("image");
    let (at, archive) = (dir.display(), lab.dir().join("image.tar"));
    lab.sh(&format!("mkdir -p {at} && tar -C {} -cf {at}/layer.tar .", root.display()));
    let sum = lab.sh(&format!("sha256sum {at}/layer.tar"));
    let layer = sum.split_whitespace().next().unwrap_or_default();
    let configuration = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": {"Cmd": command, "Env": ["PATH=/bin"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer}")]},
    });
    let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]);
    for (file, content) in [("config.json", configuration), ("manifest.json", manifest)] {
        let path = dir.join(file);
        std::fs::write(&path, content.to_string())
            .unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
    }
    lab.sh(&format!("tar -C {at} -cf {} .", archive.display()));
    archive
}
