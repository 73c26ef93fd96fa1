//! Makes the checkout visible at one path, wherever it is.
//!
//! Checkouts may be below `/tmp`, `/opt` and `/var`, which labs and the virtual machine cover with
//! file systems of their own. They may be in folders with spaces in their names, at which
//! compilers' flags and tests' scripts are split. They may be moved, while executables contain the
//! paths at which they were built. So tests run where none of this applies: in a mount namespace in
//! which the checkout is mounted on an empty folder of the machine. Nothing on the machine changes.
//!
//! If Netwright is installed on this machine, it has taken the place of Debian's Go plugins, with
//! which tests compare. In that namespace the replaced plugins are in their old folder again.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{CHECKOUT, TARGET, root, target_dir};

/// Folders that every Debian system has and few use. No lab covers any of them.
const FOLDERS: [&str; 3] = ["/srv", "/media", "/boot"];

/// Mounts and changes directory: the folder, the checkout, cargo's target directory, and the
/// program with its arguments.
const SCRIPT: &str = r#"
set -e
mount -t tmpfs -o mode=0755 tmpfs "$1"
mkdir "$1/netwright" "$1/target"
mount --rbind "$2" "$1/netwright"
mkdir -p "$3"
mount --rbind "$3" "$1/target"
replaced=/usr/lib/cni/.netwright-replaced
if [ -d "$replaced" ]; then mount --bind "$replaced" /usr/lib/cni; fi
cd "$1/netwright"
shift 3
exec "$@"
"#;

/// The path where something is, and the path where it is visible.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    folder: PathBuf,
    checkout: PathBuf,
    target: PathBuf,
}

/// Starts this program again with the checkout at its place, unless it is there already, or this is
/// not root.
///
/// # Errors
/// When the program cannot be started; a failing mount ends it with its own message.
pub(crate) fn enter() -> Result<(), String> {
    if std::env::var_os(CHECKOUT).is_some() || !is_root() {
        return Ok(());
    }
    let Some(folder) = FOLDERS.into_iter().map(Path::new).find(|folder| is_empty(folder)) else {
        println!("{} have something in them: the checkout stays where it is", FOLDERS.join(", "));
        return Ok(());
    };
    let place = Place { folder: folder.to_owned(), checkout: root(), target: target_dir() };
    let own = std::env::current_exe().map_err(|error| format!("find this program: {error}"))?;
    let error = place.command(&own).args(std::env::args_os().skip(1)).exec();
    Err(format!("unshare (util-linux): {error}"))
}

impl Place {
    /// Returns a command that runs with the checkout at its place.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh"]);
        command.args([&self.folder, &self.checkout, &self.target]).arg(self.shown(program));
        command.env("CARGO_MANIFEST_DIR", self.shown(&self.checkout.join("xtask")));
        command.env("CARGO_TARGET_DIR", self.folder.join("target"));
        command.env(CHECKOUT, &self.checkout).env(TARGET, &self.target);
        command
    }

    /// Returns where a path of the checkout or of cargo's output is visible.
    fn shown(&self, path: &Path) -> OsString {
        let parts = [(&self.target, "target"), (&self.checkout, "netwright")];
        let shown = parts.into_iter().find_map(|(real, name)| {
            Some(self.folder.join(name).join(path.strip_prefix(real).ok()?))
        });
        shown.unwrap_or_else(|| path.to_owned()).into_os_string()
    }
}

fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Uid:\t0\t0\t"))
}

fn is_empty(folder: &Path) -> bool {
    let real = folder.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    real && fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::{Path, Place, fs, is_root};

    /// The test uses a mount namespace of its own: `/srv` may be in use, even by this run.
    #[test]
    fn a_checkout_anywhere_is_shown_at_one_place() {
        if !is_root() {
            println!("SKIP place::a_checkout_anywhere_is_shown_at_one_place: needs root");
            return;
        }
        let base = std::env::temp_dir().join(format!("netwright place {}", std::process::id()));
        let [folder, checkout, target] =
            ["folder", "a checkout", "built here"].map(|name| base.join(name));
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(&checkout).unwrap();
        fs::write(checkout.join("Cargo.lock"), "").unwrap();
        let place = Place { folder: folder.clone(), checkout, target: target.clone() };
        let output = place
            .command(Path::new("/bin/sh"))
            .args([
                "-c",
                "pwd; ls; echo made >\"$CARGO_TARGET_DIR/here\"; echo \"$NETWRIGHT_TARGET\"",
            ])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let inside = format!("{}/netwright\nCargo.lock\n{}\n", folder.display(), target.display());
        assert_eq!(said, inside, "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(fs::read(target.join("here")).unwrap(), b"made\n");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "the machine's folder is as it was");
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn paths_are_named_as_they_are_shown() {
        let place = Place {
            folder: "/srv".into(),
            checkout: "/tmp/nw ci".into(),
            target: "/tmp/nw ci/target".into(),
        };
        for (path, shown) in [
            ("/tmp/nw ci/target/debug/xtask", "/srv/target/debug/xtask"),
            ("/tmp/nw ci/xtask", "/srv/netwright/xtask"),
            ("/usr/bin/sh", "/usr/bin/sh"),
        ] {
            assert_eq!(place.shown(Path::new(path)), shown);
        }
    }
}
