//! A plugin that is a line: the executable which contains it (`man 2 execve`, "Interpreter scripts").
//!
//! A folder of plugins belongs to several projects, and some copy their plugin over whatever has its
//! name (`cp -f`). That writes through a symbolic link, and into every name of a hard link: it would
//! destroy the executable that has all of our plugins. So each of our names is a file of its own.
//! The kernel starts the executable with the file's path as the first argument.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// How much of a file the kernel reads to find the line
/// (linux include/uapi/linux/binfmts.h BINPRM_BUF_SIZE).
const BUFFER: usize = 256;

const BEGINNING: &[u8] = b"#!";

/// Returns what is in the file of a plugin of that executable; `None` if the kernel would read its
/// path as something else.
#[must_use]
pub fn script_of(executable: &Path) -> Option<Vec<u8>> {
    let path = executable.as_os_str().as_bytes();
    let line = [BEGINNING, path, b"\n"].concat();
    let is_plain = path.iter().all(u8::is_ascii_graphic) && executable.is_absolute();
    (is_plain && line.len() < BUFFER).then_some(line)
}

/// Returns the executable that a file names, if that is all there is in the file.
#[must_use]
pub fn executable_of(file: &Path) -> Option<PathBuf> {
    let mut text = Vec::new();
    let most = u64::try_from(BUFFER).unwrap_or(u64::MAX);
    File::open(file).ok()?.take(most).read_to_end(&mut text).ok()?;
    let path = Path::new(OsStr::from_bytes(text.strip_prefix(BEGINNING)?.strip_suffix(b"\n")?));
    (script_of(path).as_deref() == Some(text.as_slice())).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_line_that_names_an_executable_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("bridge");
        let named = |text: &[u8]| {
            std::fs::write(&file, text).unwrap();
            executable_of(&file)
        };
        let executable = Path::new("/opt/cni/bin/netwright");
        let text = script_of(executable).unwrap();
        assert_eq!(text, b"#!/opt/cni/bin/netwright\n");
        assert_eq!(named(&text).as_deref(), Some(executable));
        for other in
            ["", "#!", "#!/bin/sh\nexit 1\n", "#!/bin/sh -e\n", "#! /bin/sh\n", "/bin/sh\n"]
        {
            assert_eq!(named(other.as_bytes()), None, "{other:?}");
        }
        assert_eq!(named(&[0x7f; 1000]), None);
        assert_eq!(executable_of(&dir.path().join("gone")), None);
        let long = format!("/{}", "x".repeat(BUFFER));
        for path in ["bin/netwright", "/with a space/netwright", "/tab\t/netwright", &long] {
            assert_eq!(script_of(Path::new(path)), None, "{path}");
        }
    }
}
