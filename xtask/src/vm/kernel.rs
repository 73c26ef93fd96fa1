//! Debian's kernel, unpacked once.

use std::fs;
use std::path::{Path, PathBuf};

use crate::deb;
use crate::run::{Program, quiet};

/// The package that depends on the current kernel: the full one, since `-cloud` has no 9p.
const META_PACKAGE: &str = "linux-image-amd64";

/// A kernel and its modules.
#[derive(Debug)]
pub(super) struct Kernel {
    /// The folder that contains `boot` and `lib/modules`.
    pub(super) dir: PathBuf,
    pub(super) image: PathBuf,
    pub(super) version: String,
}

/// Unpacks the kernel below `dir`, unless that was done before. Delete `dir/kernel` to get a newer
/// one.
pub(super) fn unpacked(dir: &Path) -> Result<Kernel, String> {
    let kernel = dir.join("kernel");
    if !kernel.is_dir() {
        // apt-get updates its package lists if they are missing or old.
        fetch(dir, &kernel).or_else(|_| {
            println!("  apt-get update");
            Program::new("apt-get update --quiet").logged("vm-update", quiet)?;
            fetch(dir, &kernel)
        })?;
    }
    let modules = kernel.join("lib/modules");
    let version = fs::read_dir(&modules)
        .ok()
        .and_then(|mut entries| entries.next()?.ok()?.file_name().into_string().ok())
        .ok_or_else(|| format!("no kernel in {}", modules.display()))?;
    Ok(Kernel {
        image: kernel.join("boot").join(format!("vmlinuz-{version}")),
        dir: kernel,
        version,
    })
}

fn fetch(dir: &Path, kernel: &Path) -> Result<(), String> {
    let description =
        Program::new("apt-cache show --no-all-versions").arg(META_PACKAGE).output()?;
    let package = description
        .lines()
        .find_map(|line| {
            line.strip_prefix("Depends: ")?
                .split([' ', ','])
                .find(|name| name.starts_with("linux-image-"))
        })
        .ok_or_else(|| format!("{META_PACKAGE} depends on no kernel"))?;
    let new = dir.join("kernel.unpacked");
    deb::unpack(&[package], &[], &new)?;
    let version = package.trim_start_matches("linux-image-");
    Program::new("depmod --basedir")
        .arg(new.display().to_string())
        .arg(version)
        .logged("vm-depmod", quiet)?;
    fs::rename(&new, kernel).map_err(|error| format!("rename {}: {error}", new.display()))
}
