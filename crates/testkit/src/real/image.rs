//! An image for runtimes that load it from files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::rootfs::root_filesystem;
use crate::lab::Lab;
use crate::place::Place as _;

/// Writes an archive of a busybox image, as `docker save` does, and returns its path.
pub(super) fn image(lab: &Lab, name: &str, command: &[&str]) -> PathBuf {
    archive(lab, "image", &root_filesystem(lab), name, command)
}

/// Writes such an archive of an image with only these files, each with its path. For a file that is
/// not linked statically (a plain `cargo test` links dynamically) its libraries are added.
pub(super) fn scratch_image(lab: &Lab, name: &str, files: &[(&Path, &str)]) -> PathBuf {
    let root = lab.dir().join("scratch-root");
    let put = |from: &Path, to: &str| {
        let to = root.join(to.trim_start_matches('/'));
        let folder = to.parent().unwrap_or(&root);
        let copied = fs::create_dir_all(folder).and_then(|()| fs::copy(from, &to));
        copied
            .unwrap_or_else(|error| panic!("copy {} to {}: {error}", from.display(), to.display()));
        to
    };
    for (file, place) in files {
        let copy = put(file, place);
        // Debug information is left out: it is many times as large as the rest.
        let _ = Command::new("strip").arg(&copy).output();
        let libraries = Command::new("ldd").arg(file).output();
        let libraries = libraries.map(|said| said.stdout).unwrap_or_default();
        for library in String::from_utf8_lossy(&libraries).split_whitespace() {
            if library.starts_with('/') && Path::new(library).exists() {
                put(Path::new(library), library);
            }
        }
    }
    archive(lab, "scratch-image", &root, name, &[])
}

fn archive(lab: &Lab, folder: &str, root: &Path, name: &str, command: &[&str]) -> PathBuf {
    let dir = lab.dir().join(folder);
    let (at, archive) = (dir.display(), lab.dir().join(format!("{folder}.tar")));
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
        fs::write(&path, content.to_string())
            .unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
    }
    lab.sh(&format!("tar -C {at} -cf {} .", archive.display()));
    archive
}
