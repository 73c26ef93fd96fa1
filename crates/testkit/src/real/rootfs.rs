//! A root file system for containers.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::lab::Lab;

/// The static busybox (Debian's `busybox-static`): a test that runs containers needs
/// `require!("file:/usr/bin/busybox")`.
pub const BUSYBOX: &str = "/usr/bin/busybox";

/// The directories that a runtime mounts on or a program writes to.
const DIRECTORIES: [&str; 9] = ["bin", "dev", "etc", "proc", "run", "sys", "tmp", "var", "root"];

/// Makes a root file system with busybox under all its names in the lab's scratch directory.
///
/// Made once per lab; runtimes that write to it share it.
///
/// # Panics
/// When it cannot be made, with the path.
#[must_use]
pub fn root_filesystem(lab: &Lab) -> PathBuf {
    let root = lab.dir().join("rootfs");
    if !root.exists() {
        fill(&root).unwrap_or_else(|error| panic!("make {}: {error}", root.display()));
    }
    root
}

fn fill(root: &Path) -> std::io::Result<()> {
    for directory in DIRECTORIES {
        fs::create_dir_all(root.join(directory))?;
    }
    fs::copy(BUSYBOX, root.join("bin/busybox"))?;
    let names = Command::new(BUSYBOX).arg("--list").output()?;
    for name in String::from_utf8_lossy(&names.stdout).lines().filter(|name| *name != "busybox") {
        symlink("busybox", root.join("bin").join(name))?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    fs::write(root.join("etc/group"), "root:x:0:\n")
}
