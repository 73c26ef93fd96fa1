//! How everything that ships, and everything that tests it, is linked: static, over musl.
//!
//! A plugin is a process that lives for a millisecond, and glibc's start-up asks the processor some thirty questions, each of
//! which traps in a virtual machine: half of what a call costs. musl asks none. Rust's standard library for musl is a
//! download of rustup's; its standard library for GNU systems, which every toolchain has, links with musl as well, since
//! musl keeps glibc's binary interface (types, constants, calls) on purpose. What it lacks is in `musl.c`, a few lines.
//!
//! `cargo build --release` remains the plain way, over the system's C library.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use crate::run::{Program, exists, host_triple, quiet, target_dir};
use crate::setup;

/// gcc with musl's headers, start files and archive (Debian: `musl-tools`).
const LINKER: &str = "musl-gcc";

const LACKING: &str = include_str!("musl.c");
/// What of musl's has its place taken by `musl_quicker.c`.
const WRAPPED: [&str; 3] = ["pthread_getattr_np", "memcpy", "memmove"];
const QUICKER: &str = include_str!("musl_quicker.c");

/// Without position independence: it saves relocations at every start, and a plugin starts often. Segments
/// share pages, which are fewer to fault in then. Hashes of a few dozen bytes
/// are not worth asking the processor what it can: three questions that trap in a virtual machine.
const STATIC: [&str; 8] = [
    "-C",
    "target-feature=+crt-static",
    "-C",
    "relocation-model=static",
    "-C",
    "link-arg=-Wl,-z,noseparate-code",
    "--cfg",
    "sha2_backend=\"soft\"",
];

/// Of others' crates no line numbers: every test binary would be linked with those of all.
const NO_LINES: &str = "profile.dev.package.\"*\".debug=false";

/// What stands between flags in cargo's variables: a space may be in a path.
const BETWEEN: &str = "\u{1f}";

/// What programs of cargo need so that the result is linked so.
#[derive(Debug)]
pub(crate) struct Linked {
    triple: String,
    flags: String,
}

impl Linked {
    /// Sees to the linker and compiles what musl lacks.
    pub(crate) fn prepare() -> Result<Self, String> {
        if !exists(LINKER) {
            setup::install_only("musl-tools")?;
        }
        let dir = target_dir().join("musl");
        fs::create_dir_all(&dir).map_err(|error| format!("create {}: {error}", dir.display()))?;
        let [lacking, quicker] =
            [compile(&dir, "lacking", LACKING)?, compile(&dir, "quicker", QUICKER)?];
        Ok(Self { triple: host_triple()?, flags: flags(&[lacking, quicker]) })
    }

    /// A program of cargo that links so. The flags are given here and not in `.cargo/config.toml`, so that nobody's
    /// development build changes; with `--target` they do not reach build scripts and procedural macros, which cannot be
    /// static. Options of the program follow; those of what it runs follow these, behind `--`.
    pub(crate) fn program(&self, line: &str) -> Program {
        let (cargo, rest) = line.split_once(" -- ").map_or((line, None), |(a, b)| (a, Some(b)));
        let rest = rest.map(|rest| format!(" -- {rest}")).unwrap_or_default();
        Program::new(&format!("{cargo} --target {} --config {NO_LINES}{rest}", self.triple))
            .variable("CARGO_ENCODED_RUSTFLAGS", self.flags.clone())
            .variable("CARGO_ENCODED_RUSTDOCFLAGS", self.flags.clone())
    }

    /// Where such programs build.
    pub(crate) fn target_dir(&self) -> PathBuf {
        target_dir().join(&self.triple)
    }
}

/// The compiler's flags, as cargo's variables have them.
fn flags(objects: &[PathBuf]) -> String {
    let mut flags = STATIC.map(str::to_owned).to_vec();
    let mut codegen = |flag: String| flags.extend(["-C".to_owned(), flag]);
    codegen(format!("linker={LINKER}"));
    for name in WRAPPED {
        codegen(format!("link-arg=-Wl,--wrap={name}"));
    }
    for object in objects {
        codegen(format!("link-arg={}", object.display()));
    }
    codegen("link-arg=-l:libc.a".to_owned());
    flags.join(BETWEEN)
}

/// Compiles a source once. Cargo looks at the flags alone: another content has another name.
fn compile(dir: &Path, name: &str, content: &str) -> Result<PathBuf, String> {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    let name = format!("{name}-{:016x}", hasher.finish());
    let [source, object] = ["c", "o"].map(|kind| dir.join(format!("{name}.{kind}")));
    if !object.exists() {
        fs::write(&source, content)
            .map_err(|error| format!("write {}: {error}", source.display()))?;
        Program::new(&format!("{LINKER} -Os -ffunction-sections -fno-builtin -Wall -Werror -c -o"))
            .arg(object.display().to_string())
            .arg(source.display().to_string())
            .logged("musl", quiet)?;
    }
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::{BETWEEN, flags};

    #[test]
    fn an_object_in_a_folder_with_a_space_is_one_flag() {
        let flags = flags(&["/tmp/my checkout/target/musl/a.o".into()]);
        let flags: Vec<&str> = flags.split(BETWEEN).collect();
        assert!(flags.contains(&"link-arg=/tmp/my checkout/target/musl/a.o"), "{flags:?}");
        assert!(flags.iter().all(|flag| !flag.is_empty()));
    }
}
