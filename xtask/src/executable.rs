//! The executable that is shipped: static, small.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::musl::Linked;
use crate::run::{quiet, target_dir};
use crate::sbom;

/// A release build with link-time optimisation takes a while on a small machine.
const DEADLINE: Duration = Duration::from_secs(1200);

/// Program header types (linux include/uapi/linux/elf.h).
const PT_INTERP: u32 = 3;

/// The executables that are shipped, each with its package and the most bytes it may have. Plugins are started for each call, and the
/// daemon once; a third of it is TLS and the Kubernetes API's types.
pub(crate) const SHIPPED: [(&str, &str, u64); 2] =
    [("netwright", "netwright", 10_000_000), ("netwright-daemon", "netwrightd", 12_000_000)];

/// Builds the static executables and copies them to `target/dist`, each with its bill of materials; returns the first.
///
/// Each package is built by itself: what one asks of a crate is not to get into the other.
pub(crate) fn build() -> Result<PathBuf, String> {
    let linked = Linked::prepare()?;
    for (package, name, _) in SHIPPED {
        // Niced: an emulated machine beside it that loses a processor for a moment loses more than that moment.
        let line = format!("nice cargo build --release --locked --package {package}");
        linked.program(&line).deadline(DEADLINE).logged("dist", quiet)?;
        let to = dist().join(name);
        place(&linked.target_dir().join("release").join(name), &to)?;
        sbom::write(package, &to)?;
    }
    Ok(path())
}

/// Copies a file over another. Renamed: that one may be running.
fn place(built: &Path, to: &Path) -> Result<(), String> {
    let new = to.with_extension("new");
    let dist = dist();
    fs::create_dir_all(&dist).map_err(|error| format!("create {}: {error}", dist.display()))?;
    fs::copy(built, &new).map_err(|error| format!("copy {}: {error}", built.display()))?;
    fs::rename(&new, to).map_err(|error| format!("rename to {}: {error}", to.display()))
}

fn dist() -> PathBuf {
    target_dir().join("dist")
}

/// Where the static executable is once it was built.
pub(crate) fn path() -> PathBuf {
    dist().join("netwright")
}

/// Checks that what was built is static and small; `path` is the first of them.
pub(crate) fn check(path: &Path) -> Result<String, String> {
    let texts = SHIPPED.map(|(_, name, most)| {
        check_one(&path.with_file_name(name), most).map(|text| format!("{name} {text}"))
    });
    Ok(texts.into_iter().collect::<Result<Vec<_>, _>>()?.join("; "))
}

fn check_one(path: &Path, most: u64) -> Result<String, String> {
    let bytes = fs::read(path).map_err(|error| format!("read {}: {error}", path.display()))?;
    let size = u64::try_from(bytes.len()).map_err(|error| error.to_string())?;
    if program_headers(&bytes)?.contains(&PT_INTERP) {
        return Err(format!("{} needs a dynamic loader", path.display()));
    }
    if most < size {
        return Err(format!("{} has {size} bytes, more than {most}", path.display()));
    }
    Ok(format!("static, {}.{:02} MB", size / 1_000_000, size % 1_000_000 / 10_000))
}

/// The types of an ELF64 little-endian file's program headers.
fn program_headers(elf: &[u8]) -> Result<Vec<u32>, String> {
    const E_PHOFF: usize = 32;
    const E_PHENTSIZE: usize = 54;
    const E_PHNUM: usize = 56;
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return Err("not a 64-bit little-endian ELF file".to_owned());
    }
    let headers = || -> Option<Vec<u32>> {
        let short = |at: usize| {
            Some(usize::from(u16::from_le_bytes(elf.get(at..at + 2)?.try_into().ok()?)))
        };
        let start = u64::from_le_bytes(elf.get(E_PHOFF..E_PHOFF + 8)?.try_into().ok()?);
        let start = usize::try_from(start).ok()?;
        let size = short(E_PHENTSIZE)?;
        let kind = |number: usize| {
            let at = start.checked_add(number.checked_mul(size)?)?;
            Some(u32::from_le_bytes(elf.get(at..at.checked_add(4)?)?.try_into().ok()?))
        };
        (0..short(E_PHNUM)?).map(kind).collect()
    };
    headers().ok_or_else(|| "truncated ELF file".to_owned())
}

#[cfg(test)]
mod tests {
    use super::{PT_INTERP, program_headers};

    #[test]
    fn a_dynamic_executable_is_told_from_others() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let shell = std::fs::read("/bin/sh").unwrap();
        assert!(program_headers(&shell).unwrap().contains(&PT_INTERP), "the shell is dynamic");
        assert_eq!(program_headers(&own[..60]), Err("truncated ELF file".to_owned()));
        assert!(program_headers(b"#!/bin/sh\n").is_err());
    }
}
