//! Finds out which containers the runtimes on this node have, by the folders that they keep below
//! `/run`.
//!
//! A runtime makes such a folder before its container starts and removes it when the container is
//! gone; a reboot removes all of them. So a folder that exists says that the container may live,
//! even if the runtime's database calls it stopped.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Where runtimes keep their containers, by ID; `*` is any one folder.
const PLACES: [&str; 31] = [
    // containerd's shims: for Kubernetes, nerdctl and Docker (`moby`).
    "/run/containerd/io.containerd.runtime.v2.task/*",
    "/run/containerd/io.containerd.grpc.v1.cri/sandboxes",
    "/run/containerd/io.containerd.grpc.v1.cri/containers",
    "/run/containerd/io.containerd.sandbox.controller.v1.shim/*",
    // The same for K3s and RKE2, which bring their own containerd.
    "/run/k3s/containerd/io.containerd.runtime.v2.task/*",
    "/run/k3s/containerd/io.containerd.grpc.v1.cri/sandboxes",
    "/run/k3s/containerd/io.containerd.grpc.v1.cri/containers",
    "/run/k3s/containerd/io.containerd.sandbox.controller.v1.shim/*",
    "/run/k3s/containerd/runc/*",
    // For k0s.
    "/run/k0s/containerd/io.containerd.runtime.v2.task/*",
    "/run/k0s/containerd/io.containerd.grpc.v1.cri/sandboxes",
    "/run/k0s/containerd/io.containerd.grpc.v1.cri/containers",
    "/run/k0s/containerd/io.containerd.sandbox.controller.v1.shim/*",
    "/run/k0s/containerd/runc/*",
    // For MicroK8s, a snap.
    "/var/snap/microk8s/common/run/containerd/io.containerd.runtime.v2.task/*",
    "/var/snap/microk8s/common/run/containerd/io.containerd.grpc.v1.cri/sandboxes",
    "/var/snap/microk8s/common/run/containerd/io.containerd.grpc.v1.cri/containers",
    "/var/snap/microk8s/common/run/containerd/io.containerd.sandbox.controller.v1.shim/*",
    "/var/snap/microk8s/common/run/containerd/runc/*",
    // Kata's sandboxes, whose processes run in a virtual machine.
    "/run/vc/sbs",
    "/run/vc/vm",
    "/run/kata",
    // Nomad's allocations, which it keeps with its data and not below /run.
    "/opt/nomad/data/alloc",
    "/var/lib/nomad/alloc",
    // Those of podman and CRI-O, by storage driver.
    "/run/containers/storage/*",
    // Those of the OCI runtimes themselves.
    "/run/runc",
    "/run/crun",
    "/run/youki",
    "/run/containerd/runc/*",
    "/run/docker/runtime-runc/*",
    "/run/docker/containerd/daemon/io.containerd.runtime.v2.task/*",
];

/// Returns the folder that a runtime keeps for a container, if there is one, or what cannot be
/// examined, where it may be.
pub(super) fn keeps(container_id: &str) -> Option<PathBuf> {
    keeps_below(Path::new("/"), container_id)
}

fn keeps_below(root: &Path, container_id: &str) -> Option<PathBuf> {
    let place = |place: &str| root.join(place.trim_start_matches('/'));
    PLACES.iter().find_map(|at| match at.strip_suffix("/*") {
        None => in_folder(&place(at), container_id),
        Some(parent) => {
            let parent = place(parent);
            let mut inner = match std::fs::read_dir(&parent) {
                Ok(inner) => inner,
                Err(error) => return (!is_absent(&error)).then_some(parent),
            };
            inner.find_map(|entry| {
                let Ok(entry) = entry else { return Some(parent.clone()) };
                let namespace = entry.file_name();
                // nerdctl puts containerd's namespace before the name of its containers.
                let of_nerdctl = namespace
                    .to_str()
                    .and_then(|namespace| container_id.strip_prefix(namespace)?.strip_prefix('-'));
                let names = [Some(container_id), of_nerdctl].into_iter().flatten();
                names.filter_map(|name| in_folder(&entry.path(), name)).next()
            })
        }
    })
}

/// A container ID has no slash and does not name a parent folder.
fn in_folder(folder: &Path, container_id: &str) -> Option<PathBuf> {
    let path = folder.join(container_id);
    match path.symlink_metadata() {
        Err(error) if is_absent(&error) => None,
        _ => Some(path),
    }
}

/// Reports whether nothing can be there.
fn is_absent(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_runtime_is_believed() {
        for folder in [
            "run/containerd/io.containerd.runtime.v2.task/k8s.io/c1",
            "run/containerd/io.containerd.runtime.v2.task/moby/c1",
            "run/containerd/io.containerd.grpc.v1.cri/sandboxes/c1",
            "run/containerd/io.containerd.sandbox.controller.v1.shim/k8s.io/c1",
            "run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/c1",
            "run/k3s/containerd/io.containerd.grpc.v1.cri/sandboxes/c1",
            "run/k3s/containerd/runc/k8s.io/c1",
            "run/k0s/containerd/io.containerd.runtime.v2.task/k8s.io/c1",
            "run/k0s/containerd/io.containerd.grpc.v1.cri/sandboxes/c1",
            "var/snap/microk8s/common/run/containerd/io.containerd.runtime.v2.task/k8s.io/c1",
            "var/snap/microk8s/common/run/containerd/io.containerd.grpc.v1.cri/sandboxes/c1",
            "run/containers/storage/overlay-containers/c1",
            "run/vc/sbs/c1",
            "run/kata/c1",
            "run/crun/c1",
            "opt/nomad/data/alloc/c1",
        ] {
            let root = tempfile::tempdir().unwrap();
            assert_eq!(keeps_below(root.path(), "c1"), None);
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
            assert_eq!(keeps_below(root.path(), "c1"), Some(root.path().join(folder)));
            assert_eq!(keeps_below(root.path(), "c"), None);
        }
    }

    /// As when no descriptor is free. Here the folder is a link to itself.
    #[test]
    fn a_folder_that_cannot_be_examined_may_have_the_container() {
        let root = tempfile::tempdir().unwrap();
        let storage = root.path().join("run/containers/storage");
        std::fs::create_dir_all(root.path().join("run/containers")).unwrap();
        std::os::unix::fs::symlink(&storage, &storage).unwrap();
        assert_eq!(keeps_below(root.path(), "c1"), Some(storage));
    }

    #[test]
    fn a_container_of_nerdctl_is_known_without_its_namespace() {
        let root = tempfile::tempdir().unwrap();
        let task = root.path().join("run/containerd/io.containerd.runtime.v2.task/my-space/c1");
        std::fs::create_dir_all(&task).unwrap();
        assert_eq!(keeps_below(root.path(), "my-space-c1"), Some(task));
        assert_eq!(keeps_below(root.path(), "my-c1"), None);
    }
}
