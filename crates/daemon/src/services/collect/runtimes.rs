//! Which containers the runtimes on this node have, as far as the folders tell that they keep below `/run`.
//!
//! A runtime makes such a folder before its container starts and removes it when the container is gone; a reboot removes all of
//! them. So one that is there says that the container may live, whatever the runtime's database says of stopped ones.

use std::path::{Path, PathBuf};

/// Where runtimes keep their containers, by ID; `*` is any one folder.
const PLACES: [&str; 10] = [
    // containerd's shims: of Kubernetes, nerdctl, and Docker (`moby`).
    "/run/containerd/io.containerd.runtime.v2.task/*",
    "/run/containerd/io.containerd.grpc.v1.cri/sandboxes",
    "/run/containerd/io.containerd.grpc.v1.cri/containers",
    // podman's and CRI-O's, by storage driver.
    "/run/containers/storage/*",
    // The OCI runtimes' own.
    "/run/runc",
    "/run/crun",
    "/run/youki",
    "/run/containerd/runc/*",
    "/run/docker/runtime-runc/*",
    "/run/docker/containerd/daemon/io.containerd.runtime.v2.task/*",
];

/// Returns a folder that a runtime keeps for a container.
pub(super) fn keeps(container_id: &str) -> Option<PathBuf> {
    PLACES.iter().find_map(|place| match place.strip_suffix("/*") {
        None => in_folder(Path::new(place), container_id),
        Some(parent) => {
            let inner = std::fs::read_dir(parent).ok()?;
            inner.flatten().find_map(|entry| in_folder(&entry.path(), container_id))
        }
    })
}

/// A container ID has no slash, and is no name of a parent.
fn in_folder(folder: &Path, container_id: &str) -> Option<PathBuf> {
    let path = folder.join(container_id);
    path.symlink_metadata().is_ok().then_some(path)
}
