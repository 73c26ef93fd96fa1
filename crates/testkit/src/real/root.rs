//! Programs of another release, in a root of their own.

use std::path::{Path, PathBuf};

use crate::lab::Lab;
use crate::place::Place as _;
use crate::reference;

/// Runs a script in a root, the lab's or another, in a mount namespace that has this root: runc
/// moves roots itself, which fails after a mere `chroot`. The lab's `/run` and scratch directory
/// are visible in both roots. The mount that contains the root must be private (man 2 pivot_root).
pub(super) fn in_root(root: Option<&Path>, script: &str) -> (&'static str, Vec<String>) {
    let Some(root) = root else {
        return ("sh", vec!["-c".to_owned(), script.to_owned()]);
    };
    let root = root.display();
    let enter = format!(
        "mount --make-private / && mount --make-private \"$(findmnt --noheadings --output TARGET --target {root})\" && \
         mount --bind {root} {root} && mount --make-private {root} && \
         for d in proc sys dev run var/tmp; do mount --rbind /$d {root}/$d; done && \
         cd {root} && pivot_root . mnt && mount --make-rprivate /mnt && umount -l /mnt && cd / && {{ {script}\n}}"
    );
    let words = ["--mount", "--propagation", "unchanged", "sh", "-c", &enter];
    ("unshare", words.map(str::to_owned).to_vec())
}

/// Makes a writable root with Debian unstable in the lab. Changes stay in the lab, below `home`.
pub(super) fn newest(lab: &Lab, home: &Path) -> PathBuf {
    let (home, below) = (home.display(), reference::engine_root());
    // The packages' own scripts, which were not run, would make the link, and a system's installer
    // would make these files.
    lab.sh(&format!(
        "mkdir {home}/system {home}/upper {home}/work && \
         mount -t overlay overlay -o lowerdir={},upperdir={home}/upper,workdir={home}/work {home}/system && \
         rmdir {home}/system/var/run && ln -s /run {home}/system/var/run && mkdir -p {home}/system/etc/cni/net.d && \
         echo 127.0.0.1 localhost >{home}/system/etc/hosts && : >{home}/system/etc/resolv.conf",
        below.display()
    ));
    PathBuf::from(format!("{home}/system"))
}
