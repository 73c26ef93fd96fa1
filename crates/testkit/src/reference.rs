//! The programs of others that ours are compared with, such as the Go plugins, and the newest
//! Docker Engine.

use std::env;
use std::path::{Path, PathBuf};

/// A release of the Go plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// The installed ones, of Debian's stable release.
    Installed,
    /// Those of Debian's unstable release, which `cargo xtask setup` unpacks.
    Unstable,
}

impl Release {
    /// The folder of the executables.
    #[must_use]
    pub fn directory(self) -> PathBuf {
        match self {
            Release::Installed => PathBuf::from("/usr/lib/cni"),
            Release::Unstable => unpacked().join("unstable/usr/lib/cni"),
        }
    }

    /// Returns the executable of a plugin, if this release has it.
    #[must_use]
    pub fn plugin(self, name: &str) -> Option<PathBuf> {
        let path = self.directory().join(name);
        path.is_file().then_some(path)
    }
}

/// Returns the root of a system with Debian unstable's Docker Engine, which `cargo xtask setup`
/// unpacks.
#[must_use]
pub fn engine_root() -> PathBuf {
    unpacked().join("engine")
}

/// Returns the folders of Debian's NetworkManager and of those of its dependencies that are laid
/// out like `/usr`, which `cargo xtask setup` unpacks; `None` if one is missing.
#[must_use]
pub fn network_manager() -> Option<Vec<PathBuf>> {
    // As in xtask/src/reference.rs.
    let packages = [
        "network-manager",
        "libbluetooth3",
        "libmm-glib0",
        "libndp0",
        "libnewt0.52",
        "libteamdctl0",
    ];
    let folder = |package| unpacked().join("network-manager").join(package).join("usr");
    packages.into_iter().map(|package| Some(folder(package)).filter(|usr| usr.is_dir())).collect()
}

/// Returns the root of a Debian that has no more than it needs to boot, which `cargo xtask setup
/// --full` makes, if it is there.
#[must_use]
pub fn empty_debian() -> Option<PathBuf> {
    Some(unpacked().join("empty-debian")).filter(|root| root.is_dir())
}

/// Returns the path of Helm or kubectl, which `cargo xtask setup` fetches.
#[must_use]
pub fn kubernetes(program: &str) -> PathBuf {
    unpacked().join("kubernetes").join(program)
}

/// Where `cargo xtask setup` unpacks: beside cargo's output, where the running test is.
fn unpacked() -> PathBuf {
    let own = env::current_exe().unwrap_or_default();
    // target/debug/deps/it-0123456789abcdef, or target/x86_64-unknown-linux-gnu/debug/deps/…
    let target = own.ancestors().skip(3).take(2).map(|folder| folder.join("reference"));
    target
        .into_iter()
        .find(|folder| folder.is_dir())
        .unwrap_or_else(|| Path::new("target/reference").to_owned())
}
