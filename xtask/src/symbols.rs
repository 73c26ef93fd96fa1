//! Separates the debug symbols, and what only debuggers read, from an executable that ships.
//!
//! The tool comes with the compiler, so it is the same one wherever a release is made. Only our own
//! crates have line numbers: if a foreign crate has C code, its line numbers would name folders of
//! this machine.

use std::fs;
use std::path::{Path, PathBuf};

use crate::elf::Elf;
use crate::run::{Program, exists, host_triple, quiet};

/// The ending of the name of the file with debug symbols, which is beside the executable.
pub(crate) const ENDING: &str = "debug";

/// Makes cargo keep symbols and line numbers in what it builds.
pub(crate) const KEPT: &str = "--config profile.release.strip=\"none\" \
                               --config profile.release.debug=\"line-tables-only\" \
                               --config profile.release.package.\"*\".debug=false";

/// Copies what was built to `to`, without symbols and without the tables for unwinding, and as it is
/// to a file beside it. Both replace older files by a rename: the old executable may be running.
pub(crate) fn part(built: &Path, to: &Path) -> Result<(), String> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(|e| format!("create {}: {e}", folder.display()))?;
    }
    let sysroot = Program::new("rustc --print sysroot").output()?;
    let sysroot = Path::new(sysroot.trim_end());
    let symbols = to.with_extension(ENDING);
    let new = to.with_extension("new");
    let put = |into: &Path| {
        fs::rename(&new, into).map_err(|error| format!("rename to {}: {error}", into.display()))
    };
    // Whole: with the tables that the executable lacks, a debugger that is given this file in its
    // place finds the callers of a function.
    fs::copy(built, &new).map_err(|error| format!("copy to {}: {error}", new.display()))?;
    put(&symbols)?;
    Program::at(&tool(sysroot)?)
        .variable("LD_LIBRARY_PATH", sysroot.join("lib").display().to_string())
        .arg("--strip-all")
        // The executable contains the name of the other file, and its checksum.
        .arg(format!("--add-gnu-debuglink={}", symbols.display()))
        .arg(built.display().to_string())
        .arg(new.display().to_string())
        .logged("symbols", quiet)?;
    let read = fs::read(&new).map_err(|error| format!("read {}: {error}", new.display()))?;
    let mut elf = Elf::new(read)?;
    elf.cut_unwinding()?;
    fs::write(&new, elf.bytes()).map_err(|error| format!("write {}: {error}", new.display()))?;
    put(to)
}

/// Returns the path of the compiler's `objcopy`.
fn tool(sysroot: &Path) -> Result<PathBuf, String> {
    let tool = sysroot.join("lib/rustlib").join(host_triple()?).join("bin/rust-objcopy");
    match tool.is_file() {
        true => Ok(tool),
        // Distributions ship it separately from the compiler.
        false if exists("objcopy") => Ok(PathBuf::from("objcopy")),
        false => Err(format!("the toolchain has no {}, and there is no objcopy", tool.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::{ENDING, part};
    use crate::elf::{Elf, PT_INTERP};

    #[test]
    fn an_executable_runs_without_its_symbols_and_names_them() {
        let folder = std::env::temp_dir().join(format!("netwright-symbols-{}", std::process::id()));
        let own = std::env::current_exe().unwrap();
        let to = folder.join("netwright");
        part(&own, &to).unwrap();
        let listed = Command::new(&to).arg("--list").output().unwrap();
        assert!(listed.status.success());
        let sections = |name: &str| {
            let said = Command::new("readelf").arg("-SW").arg(folder.join(name)).output().unwrap();
            String::from_utf8_lossy(&said.stdout).into_owned()
        };
        let executable = sections("netwright");
        assert!(executable.contains(" .gnu_debuglink "), "{executable}");
        let is_there = |listed: &str, name: &str| listed.contains(&format!(" {name} "));
        let symbols = sections(&format!("netwright.{ENDING}"));
        for name in [".debug_line", ".symtab", ".eh_frame"] {
            assert!(!is_there(&executable, name), "{executable}");
            assert!(is_there(&symbols, name), "{symbols}");
        }
        // All that its headers name is in the file.
        Elf::new(fs::read(&to).unwrap()).unwrap().has_segment(PT_INTERP).unwrap();
        fs::remove_dir_all(folder).unwrap();
    }
}
