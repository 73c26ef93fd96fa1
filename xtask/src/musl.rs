//! Links everything that ships, and everything that tests it, statically with musl.
//!
//! A plugin is a process that lives for a millisecond. glibc's start-up asks the processor some
//! thirty questions, and in a virtual machine each of them traps: that is half of a call's cost.
//! musl asks none. Rust's standard library for musl is a download of rustup's. But its standard
//! library for GNU systems, which every toolchain has, links with musl as well, since musl keeps
//! glibc's binary interface (types, constants, calls) on purpose. The few lines that musl lacks are
//! in `musl.c`.
//!
//! `cargo build --release` still builds the ordinary way, with the system's C library.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use crate::run::{Program, exists, host_triple, quiet, target_dir};
use crate::setup;

/// gcc with musl's headers, start files and archive (Debian: `musl-tools`).
const LINKER: &str = "musl-gcc";

const LACKING: &str = include_str!("musl.c");
/// The functions of musl that `musl_quicker.c` replaces.
const WRAPPED: [&str; 3] = ["pthread_getattr_np", "memcpy", "memmove"];
const QUICKER: &str = include_str!("musl_quicker.c");

/// Without position independence: that saves relocations at every start, and plugins start often.
/// Segments share pages, so there are fewer to fault in. Hashes of a few dozen bytes do not justify
/// asking the processor for its features: three questions that trap in a virtual machine.
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

/// No line numbers for foreign crates: otherwise every test binary would be linked with those of
/// all crates.
const NO_LINES: &str = "profile.dev.package.\"*\".debug=false";

/// The compiler that also lints: what `cargo clippy` has check the crates of the workspace. It can
/// compile them too.
const LINTER: &str = "clippy-driver";

/// The separator between flags in cargo's variables: a path may contain a space.
const BETWEEN: &str = "\u{1f}";

/// What cargo's programs need for this way of linking.
#[derive(Debug)]
pub(crate) struct Linked {
    triple: String,
    flags: String,
}

impl Linked {
    /// Checks for the linker and compiles what musl lacks.
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

    /// Returns a program of cargo that links this way. The flags are given here and not in
    /// `.cargo/config.toml`, so that ordinary development builds do not change; with `--target`
    /// they do not reach build scripts and procedural macros, which cannot be static. The program's
    /// options follow; options of what it runs come after these, behind `--`.
    pub(crate) fn program(&self, line: &str) -> Program {
        let (cargo, rest) = line.split_once(" -- ").map_or((line, None), |(a, b)| (a, Some(b)));
        let rest = rest.map(|rest| format!(" -- {rest}")).unwrap_or_default();
        Program::new(&format!("{cargo} --target {} --config {NO_LINES}{rest}", self.triple))
            .variable("CARGO_ENCODED_RUSTFLAGS", self.flags.clone())
            .variable("CARGO_ENCODED_RUSTDOCFLAGS", self.flags.clone())
    }

    /// Returns a program of cargo that builds tests this way. Clippy compiles them, so that linting
    /// takes no second look at all crates: its warnings are in the output, also when nothing is
    /// compiled again ([`crate::suite::lints`]). It optimises nothing, so what ships is not built
    /// so.
    pub(crate) fn tests(&self, line: &str) -> Program {
        let program = self.program(line);
        if exists(LINTER) { program.variable("RUSTC_WORKSPACE_WRAPPER", LINTER) } else { program }
    }

    /// Returns the target directory of such programs.
    pub(crate) fn target_dir(&self) -> PathBuf {
        target_dir().join(&self.triple)
    }
}

/// Returns the compiler's flags in the format of cargo's variables.
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

/// Compiles a source once. Cargo compares only the flags, so different content gets a different
/// name.
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
