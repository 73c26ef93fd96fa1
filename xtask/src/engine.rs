//! A root file system with Debian unstable's Docker Engine, in which the newest engine runs beside
//! the machine's own.
//!
//! It contains only the packages' files: the packages' own scripts did not run, and it has no apt.
//! This module makes those of the scripts' results that the engine needs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::deb;

/// The engine, its clients, and the programs it calls.
const PACKAGES: [&str; 6] =
    ["base-files", "busybox-static", "docker-cli", "docker-compose", "docker.io", "iptables"];

/// Links that packages' scripts would make, where a package manager has to choose.
const LINKS: [(&str, &str); 10] = [
    // base-files
    ("bin", "usr/bin"),
    ("sbin", "usr/sbin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
    // iptables' alternatives
    ("usr/sbin/iptables", "iptables-nft"),
    ("usr/sbin/ip6tables", "ip6tables-nft"),
    // The shell with which tests enter the root (testkit, real/docker.rs).
    ("usr/bin/sh", "busybox"),
    ("usr/bin/mount", "busybox"),
    ("usr/bin/umount", "busybox"),
    ("usr/bin/modprobe", "busybox"),
];

/// Mount points of other file systems.
const MOUNT_POINTS: [&str; 6] = ["proc", "sys", "dev", "run", "mnt", "var/tmp"];

/// Makes the root at `into`, with packages downloaded by apt-get with these options.
pub(crate) fn unpack(options: &[String], into: &Path) -> Result<(), String> {
    deb::unpack_with_dependencies(&PACKAGES, options, into, finish)
}

fn finish(root: &Path) -> Result<(), String> {
    let failed = |path: &Path, error: std::io::Error| format!("make {}: {error}", path.display());
    for point in MOUNT_POINTS {
        let path = root.join(point);
        fs::create_dir_all(&path).map_err(|error| failed(&path, error))?;
    }
    for (name, target) in LINKS {
        let path = root.join(name);
        if path.symlink_metadata().is_err() {
            symlink(target, &path).map_err(|error| failed(&path, error))?;
        }
    }
    for (name, line) in [("passwd", "root:x:0:0:root:/root:/bin/sh\n"), ("group", "root:x:0:\n")] {
        let path = root.join("etc").join(name);
        fs::write(&path, line).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}
