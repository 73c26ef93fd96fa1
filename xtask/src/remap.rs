//! The names that stand in built files for paths of the machine that builds them.
//!
//! The messages of panics, and debug symbols, contain paths of sources: in the registry's folder
//! below the builder's home, in the checkout, in the toolchain. We give the compiler a name for
//! each of these folders ([`flags`]). The names are the same on every machine, so builds are equal
//! and do not show where they were made. [`found`] checks that no path is left.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::run::{CHECKOUT, Program, TARGET, root, target_dir};

/// The names for the folders with sources. A debugger looks for the sources there.
const OURS: &str = "/usr/src/netwright";
const BUILT: &str = "/usr/src/netwright/target";
const OTHERS: &str = "/usr/src/crates";

/// A folder of this machine, and its name in what is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Folder {
    real: PathBuf,
    name: String,
}

/// Returns the folders whose paths the compiler sees.
pub(crate) fn folders() -> Result<Vec<Folder>, String> {
    let of = |real: PathBuf, name: &str| Folder { real, name: name.to_owned() };
    // The compiler uses the last name that fits. So the target folder comes after the checkout,
    // which may contain it.
    let mut folders = vec![of(root(), OURS), of(target_dir(), BUILT)];
    folders.extend(registries().into_iter().map(|folder| of(folder, OTHERS)));
    // The compiler's own name for its sources, where it finds them in the toolchain.
    let version = Program::new("rustc --version --verbose").output()?;
    let commit = version.lines().find_map(|line| line.strip_prefix("commit-hash: "));
    let sysroot = Program::new("rustc --print sysroot").output()?;
    let sources = Path::new(sysroot.trim_end()).join("lib/rustlib/src/rust");
    folders.push(of(sources, &format!("/rustc/{}", commit.unwrap_or("unknown"))));
    Ok(folders)
}

/// Returns the folders with the sources of crates. Cargo names each after the address by which it
/// reaches a registry.
pub(crate) fn registries() -> Vec<PathBuf> {
    let folder = cargo_home().map(|home| home.join("registry/src"));
    let entries = folder.and_then(|folder| fs::read_dir(folder).ok());
    let mut folders: Vec<PathBuf> =
        entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    folders.sort();
    folders
}

/// Returns the compiler's flags for these names.
pub(crate) fn flags(folders: &[Folder]) -> Vec<String> {
    let flag =
        |folder: &Folder| format!("--remap-path-prefix={}={}", folder.real.display(), folder.name);
    folders.iter().map(flag).collect()
}

/// Returns the flags for these names for a C compiler, as a shell would read them. Crates may have
/// C and assembler code, with lines for a debugger even if cargo's profile has none.
pub(crate) fn c_flags(folders: &[Folder]) -> String {
    let flag = |folder: &Folder| {
        let flag = format!("-ffile-prefix-map={}={}", folder.real.display(), folder.name);
        format!("'{}'", flag.replace('\'', r"'\''"))
    };
    folders.iter().map(flag).collect::<Vec<_>>().join(" ")
}

/// Returns the folders of this machine that an executable names: the user's, the toolchain's, the
/// checkout's.
pub(crate) fn found(executable: &[u8]) -> Vec<PathBuf> {
    let outside = [CHECKOUT, TARGET].map(|name| env::var_os(name).map(PathBuf::from));
    let own = [Some(root()), Some(target_dir()), cargo_home()];
    let mut folders: Vec<PathBuf> = own.into_iter().chain(outside).flatten().collect();
    folders.sort();
    folders.dedup();
    // The name of a folder of the root directory may be part of another path.
    folders.retain(|folder| 2 < folder.components().count() && names(executable, folder));
    folders
}

/// Says whether bytes contain the path of a folder.
fn names(bytes: &[u8], folder: &Path) -> bool {
    let path = folder.as_os_str().as_encoded_bytes();
    let Some((first, rest)) = path.split_first() else { return false };
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|byte| byte == first) {
        at += found + 1;
        if bytes[at..].starts_with(rest) {
            return true;
        }
    }
    false
}

/// Returns cargo's folder.
pub(crate) fn cargo_home() -> Option<PathBuf> {
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home)
}

#[cfg(test)]
mod tests {
    use super::{Folder, OTHERS, OURS, PathBuf, c_flags, flags, folders, names, root};

    #[test]
    fn what_the_compiler_sees_has_a_name_that_is_the_same_everywhere() {
        let all = folders().unwrap();
        assert_eq!(all[0], Folder { real: root(), name: OURS.to_owned() });
        assert!(all.iter().any(|folder| folder.name == OTHERS), "this is built from the registry");
        let compilers = all.last().unwrap();
        assert!(compilers.name.starts_with("/rustc/") && 40 < compilers.name.len());
        assert_eq!(
            flags(&[Folder { real: PathBuf::from("/a b"), name: "/c".to_owned() }]),
            ["--remap-path-prefix=/a b=/c"]
        );
        assert_eq!(
            c_flags(&[
                Folder { real: PathBuf::from("/a b"), name: "/c".to_owned() },
                Folder { real: PathBuf::from("/it's"), name: "/d".to_owned() },
            ]),
            r"'-ffile-prefix-map=/a b=/c' '-ffile-prefix-map=/it'\''s=/d'"
        );
    }

    #[test]
    fn a_path_in_an_executable_is_found() {
        let home = PathBuf::from("/home/somebody");
        assert!(names(b"\x7fELF\0/home/some\0/home/somebody/x.rs\0", &home));
        assert!(names(b"//home/somebody", &home));
        assert!(!names(b"/home/someone and /home/somebod", &home));
        assert!(!names(b"", &home));
    }
}
