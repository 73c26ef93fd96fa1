//! Links everything that ships, and everything that tests it, statically with musl.
//!
//! A plugin is a process that lives for a millisecond. At its start glibc queries the processor's
//! features some thirty times, and in a virtual machine each query traps: that is half of a call's
//! cost. musl makes no such query. There are two ways to link with musl ([`Way`]):
//!
//! - The ordinary one is the target `…-unknown-linux-musl`. `rustup target add` downloads its
//!   standard library. Where that is installed, it is used.
//! - Where it is not, the standard library for GNU systems, which every toolchain has, is linked
//!   with musl, since musl keeps glibc's binary interface (types, constants, calls) on purpose. The
//!   few lines that musl lacks are in `musl.c`.
//!
//! `cargo build --release` still builds the ordinary way, with the system's C library.
//!
//! Releases are made in the first way, which contributors expect. The second is for machines that
//! cannot download Rust's standard library. Tests are linked in the same way, so that what ships is
//! tested. With musl, VERSION went from 0.64 ms to 0.31, and a plain ADD of `bridge` from 2.57 ms
//! to 1.88. `kernel::heap` and `musl_quicker.c` replace what is slow in musl: its allocator, its
//! copying and comparing, `open` and `pthread_getattr_np`.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use crate::run::{Program, exists, host_triple, quiet, target_dir};
use crate::{remap, setup};

/// gcc with musl's headers, start files and archive (Debian: `musl-tools`).
const LINKER: &str = "musl-gcc";

const LACKING: &str = include_str!("musl.c");
/// The functions of musl that `musl_quicker.c` replaces.
const WRAPPED: [&str; 4] = ["pthread_getattr_np", "memcpy", "memmove", "memcmp"];
const QUICKER: &str = include_str!("musl_quicker.c");

/// How they are compiled. What copies is not to be made into a call of what it replaces: musl's own
/// copies are compiled so, too.
const OPTIONS: &str = "-Os -ffunction-sections -fno-builtin -fno-tree-loop-distribute-patterns \
                       -Wall -Werror -c -o";

/// The executables are not position independent: that saves relocations at every start, and plugins
/// start often. Their segments share pages, so that fewer pages are faulted in. They do not query
/// the processor's features for faster hashes: that takes three queries, each of which traps in a
/// virtual machine, and we hash only a few dozen bytes.
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

/// Foreign crates get no line numbers: otherwise those of all crates would be linked into every
/// test binary.
const NO_LINES: &str = "profile.dev.package.\"*\".debug=false";

/// The compiler that also lints. `cargo clippy` runs it on the crates of the workspace, and it can
/// compile them too.
const LINTER: &str = "clippy-driver";

/// The flags for an architecture that is not this machine's. They are those of [`STATIC`], as
/// options of Rust's linker, which is called without a compiler.
const CROSS: [&str; 10] = [
    "-C",
    "target-feature=+crt-static",
    "-C",
    "relocation-model=static",
    "-C",
    "linker=rust-lld",
    "-C",
    "link-arg=-znoseparate-code",
    "--cfg",
    "sha2_backend=\"soft\"",
];

/// The C compiler for arm64, and the Debian packages with it and with its headers.
pub(crate) const CROSS_COMPILER: &str = "aarch64-linux-gnu-gcc";
const CROSS_PACKAGES: &str = "gcc-aarch64-linux-gnu, libc6-dev-arm64-cross";

/// Cargo's variable for the compiler's flags.
pub(crate) const RUSTFLAGS: &str = "CARGO_ENCODED_RUSTFLAGS";

/// The separator between flags in cargo's variables: a path may contain a space.
pub(crate) const BETWEEN: &str = "\u{1f}";

/// How an executable is linked with musl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// By Rust's target for musl.
    Target,
    /// By the target for GNU systems, linked with musl.
    Shim,
}

/// What cargo's commands need for this way of linking.
#[derive(Debug)]
pub(crate) struct LinkSettings {
    way: Way,
    triple: String,
    flags: Vec<String>,
}

impl LinkSettings {
    /// Chooses the way, checks for the linker, and compiles what musl lacks.
    pub(crate) fn prepare() -> Result<Self, String> {
        if !exists(LINKER) {
            setup::install_only("musl-tools")?;
        }
        let dir = target_dir().join("musl");
        fs::create_dir_all(&dir).map_err(|error| format!("create {}: {error}", dir.display()))?;
        let quicker = compile(&dir, "quicker", QUICKER)?;
        let host = host_triple()?;
        let ordinary = host.replace("-gnu", "-musl");
        if has_standard_library(&ordinary)? {
            let flags = flags(Way::Target, &[quicker]);
            return Ok(Self { way: Way::Target, triple: ordinary, flags });
        }
        let lacking = compile(&dir, "lacking", LACKING)?;
        Ok(Self { way: Way::Shim, triple: host, flags: flags(Way::Shim, &[lacking, quicker]) })
    }

    /// Prepares to build for an architecture that is not this machine's, with Rust's target, its
    /// linker, and Debian's compiler for the C code of foreign crates.
    pub(crate) fn cross(triple: &str) -> Result<Self, String> {
        if !has_standard_library(triple)? {
            return Err(format!("rustup target add {triple}"));
        }
        if !exists(CROSS_COMPILER) {
            return Err(format!("{CROSS_COMPILER} is not installed ({CROSS_PACKAGES})"));
        }
        let flags = CROSS.map(str::to_owned).to_vec();
        Ok(Self { way: Way::Target, triple: triple.to_owned(), flags })
    }

    /// Returns the way of linking.
    pub(crate) fn way(&self) -> Way {
        self.way
    }

    /// Describes the way of linking to people, and says what to install for the ordinary one.
    pub(crate) fn about(&self) -> String {
        match self.way {
            Way::Target => format!("for {}", self.triple),
            Way::Shim => format!(
                "musl under {}; for the ordinary way: rustup target add {}",
                self.triple,
                self.triple.replace("-gnu", "-musl")
            ),
        }
    }

    /// Returns the target's name.
    pub(crate) fn triple(&self) -> &str {
        &self.triple
    }

    /// Returns a cargo command that links this way, and compiles no path of this machine into what
    /// it builds.
    pub(crate) fn release(&self, line: &str) -> Result<Program, String> {
        let folders = remap::folders()?;
        let flags = [self.flags.clone(), remap::flags(&folders)].concat();
        let of_c = format!("CFLAGS_{}", self.triple.replace('-', "_"));
        let program = self.program(line).variable(RUSTFLAGS, flags.join(BETWEEN));
        Ok(program
            .variable(&of_c, remap::c_flags(&folders))
            // The user's own flags would be added to these.
            .variable("CFLAGS", "")
            // They are quoted.
            .variable("CC_SHELL_ESCAPED_FLAGS", "1"))
    }

    /// Returns a cargo command that links this way. The flags are given here and not in
    /// `.cargo/config.toml`, so that ordinary development builds do not change; with `--target`
    /// they do not reach build scripts and procedural macros, which cannot be static. The caller
    /// appends the command's options, and after `--` the options of the program that cargo runs.
    pub(crate) fn program(&self, line: &str) -> Program {
        let (cargo, rest) = line.split_once(" -- ").map_or((line, None), |(a, b)| (a, Some(b)));
        let rest = rest.map(|rest| format!(" -- {rest}")).unwrap_or_default();
        let flags = self.flags.join(BETWEEN);
        let program =
            Program::new(&format!("{cargo} --target {} --config {NO_LINES}{rest}", self.triple));
        // The C compiler, if the target is not this machine's.
        let program = match self.triple.split('-').next() {
            Some("aarch64") if cfg!(not(target_arch = "aarch64")) => {
                program.variable(&format!("CC_{}", self.triple), CROSS_COMPILER)
            }
            _ => program,
        };
        program.variable(RUSTFLAGS, flags.clone()).variable("CARGO_ENCODED_RUSTDOCFLAGS", flags)
    }

    /// Returns a cargo command that builds tests this way. Clippy compiles them, so that linting
    /// needs no second pass over all crates. Its warnings are in the output, even if nothing is
    /// compiled again ([`crate::suite::lints`]). Clippy does not optimise, so what ships is not
    /// built this way.
    pub(crate) fn tests(&self, line: &str) -> Program {
        let program = self.program(line);
        if exists(LINTER) { program.variable("RUSTC_WORKSPACE_WRAPPER", LINTER) } else { program }
    }

    /// Returns the target directory of such commands.
    pub(crate) fn target_dir(&self) -> PathBuf {
        target_dir().join(&self.triple)
    }
}

/// Returns the compiler's flags.
fn flags(way: Way, objects: &[PathBuf]) -> Vec<String> {
    let mut flags = STATIC.map(str::to_owned).to_vec();
    let mut codegen = |flag: String| flags.extend(["-C".to_owned(), flag]);
    if way == Way::Shim {
        codegen(format!("linker={LINKER}"));
    }
    for name in WRAPPED {
        codegen(format!("link-arg=-Wl,--wrap={name}"));
    }
    for object in objects {
        codegen(format!("link-arg={}", object.display()));
    }
    if way == Way::Shim {
        codegen("link-arg=-l:libc.a".to_owned());
    }
    flags
}

/// Says whether the standard library for a target is installed.
fn has_standard_library(triple: &str) -> Result<bool, String> {
    let dir = Program::new("rustc --print target-libdir --target").arg(triple).output()?;
    let entries = fs::read_dir(dir.trim_end()).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name());
    Ok(names.any(|name| name.to_string_lossy().starts_with("libstd-")))
}

/// Compiles a source once. Cargo compares only the flags, so different content, or other options of
/// the compiler, get a different name.
fn compile(dir: &Path, name: &str, content: &str) -> Result<PathBuf, String> {
    let mut hasher = DefaultHasher::new();
    (OPTIONS, content).hash(&mut hasher);
    let name = format!("{name}-{:016x}", hasher.finish());
    let [source, object] = ["c", "o"].map(|kind| dir.join(format!("{name}.{kind}")));
    if !object.exists() {
        fs::write(&source, content)
            .map_err(|error| format!("write {}: {error}", source.display()))?;
        Program::new(&format!("{LINKER} {OPTIONS}"))
            .arg(object.display().to_string())
            .arg(source.display().to_string())
            .logged("musl", quiet)?;
    }
    Ok(object)
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::{BETWEEN, LINKER, LinkSettings, Way, flags, has_standard_library, host_triple};

    #[test]
    fn an_object_in_a_folder_with_a_space_is_one_flag() {
        let object = "link-arg=/tmp/my checkout/target/musl/a.o";
        for way in [Way::Target, Way::Shim] {
            let flags = flags(way, &["/tmp/my checkout/target/musl/a.o".into()]);
            assert!(flags.iter().any(|flag| flag == object), "{flags:?}");
            assert!(flags.iter().all(|flag| !flag.is_empty() && !flag.contains(BETWEEN)));
            let by_gcc = flags.contains(&format!("linker={LINKER}"));
            assert_eq!(by_gcc, way == Way::Shim, "the ordinary target brings its own start files");
        }
    }

    /// By `musl_quicker.c`, as everything that is linked here.
    #[test]
    fn the_first_byte_that_differs_decides_the_order() {
        for length in 0..40 {
            let one: Vec<u8> = (100..100 + length).collect();
            let same = one.clone();
            assert_eq!(one.cmp(&same), Ordering::Equal, "{length}");
            for (at, was) in one.iter().enumerate() {
                for byte in [0, 99, 200, 255] {
                    let mut other = one.clone();
                    other[at] = byte;
                    other[at + 1..].fill(255 - byte);
                    assert_eq!(one.cmp(&other), was.cmp(&byte), "{length}, {at}, {byte}");
                    assert_eq!(other.cmp(&one), byte.cmp(was), "{length}, {at}, {byte}");
                }
            }
        }
    }

    /// By `musl_quicker.c`, too: where the two ranges overlap, and where they do not.
    #[test]
    fn a_copy_has_what_was_there_before_it() {
        let before: Vec<u8> = (0..=250).cycle().take(1500).collect();
        for length in (0..70).chain([1024, 1025, 1400]) {
            for (from, to) in [(0, 1), (1, 0), (0, 17), (17, 0), (0, 100), (100, 0), (50, 50)] {
                let mut after = before.clone();
                after.copy_within(from..from + length, to);
                let is_right = |(at, byte): (usize, &u8)| {
                    let is_copied = (to..to + length).contains(&at);
                    *byte == before[if is_copied { at - to + from } else { at }]
                };
                assert!(after.iter().enumerate().all(is_right), "{length}, {from}, {to}");
            }
        }
    }

    #[test]
    fn the_ordinary_way_is_taken_where_it_can_be() {
        let host = host_triple().unwrap();
        assert!(has_standard_library(&host).unwrap(), "this test is built with it");
        assert!(!has_standard_library("riscv64gc-unknown-linux-musl").unwrap());
        let linked = LinkSettings::prepare().unwrap();
        let can = has_standard_library(&host.replace("-gnu", "-musl")).unwrap();
        assert_eq!(linked.way() == Way::Target, can);
        assert_eq!(linked.triple().ends_with("-musl"), can);
        assert_eq!(linked.about().contains("rustup target add"), !can);
    }
}
