//! What a release is made of: read once from the checkout and from what was built, and only data
//! from then on.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::epoch::Epoch;
use crate::third_party;

/// The executables.
pub(crate) const PROGRAMS: [&str; 2] = ["netwright", "netwrightd"];

/// The ending of the name of the file with debug symbols, which the executable names.
pub(crate) const SYMBOLS: &str = "debug";

/// The folder of the executables that the units in `deploy/systemd` name.
const UNITS_PROGRAMS: &str = "/usr/local/bin/netwrightd ";

/// A processor that releases are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Architecture {
    X86_64,
    Aarch64,
}

impl Architecture {
    pub(crate) const ALL: [Architecture; 2] = [Architecture::X86_64, Architecture::Aarch64];

    /// Returns Rust's name of the target.
    pub(crate) fn triple(self) -> &'static str {
        match self {
            Architecture::X86_64 => "x86_64-unknown-linux-musl",
            Architecture::Aarch64 => "aarch64-unknown-linux-musl",
        }
    }

    /// Returns the name that Debian and Go's world give it.
    pub(crate) fn short(self) -> &'static str {
        match self {
            Architecture::X86_64 => "amd64",
            Architecture::Aarch64 => "arm64",
        }
    }

    /// Returns the name that rpm and the kernel give it.
    pub(crate) fn long(self) -> &'static str {
        match self {
            Architecture::X86_64 => "x86_64",
            Architecture::Aarch64 => "aarch64",
        }
    }

    /// Returns the machine's number in an executable (linux include/uapi/linux/elf-em.h
    /// `EM_X86_64`, `EM_AARCH64`).
    fn machine(self) -> u16 {
        match self {
            Architecture::X86_64 => 62,
            Architecture::Aarch64 => 183,
        }
    }
}

/// An executable with its bill of materials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) bytes: Vec<u8>,
    /// In CycloneDX's JSON.
    pub(crate) bill: Vec<u8>,
    /// The debug symbols, if they were separated from the executable.
    pub(crate) symbols: Option<Vec<u8>>,
}

/// What is the same for every architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Texts {
    pub(crate) version: String,
    /// The commit.
    pub(crate) revision: String,
    pub(crate) epoch: Epoch,
    /// Pages of the manual by their file names: `netwright.1`.
    pub(crate) pages: BTreeMap<String, Vec<u8>>,
    /// Completions by the shells' names of the files: `netwright.bash`, `_netwright`.
    pub(crate) completions: BTreeMap<String, Vec<u8>>,
    /// systemd's units and drop-ins by their paths below its folder; executables are in
    /// `/usr/local/bin`.
    pub(crate) units: BTreeMap<String, Vec<u8>>,
    /// The Helm chart, by the paths in it.
    pub(crate) chart: BTreeMap<String, Vec<u8>>,
    /// What the chart renders, by the files' names.
    pub(crate) manifests: BTreeMap<String, Vec<u8>>,
    /// The files of `deploy/packages`, by their paths there.
    pub(crate) packaging: BTreeMap<String, Vec<u8>>,
    /// The configuration with all keys, commented out.
    pub(crate) configuration: Vec<u8>,
    pub(crate) readme: Vec<u8>,
    pub(crate) licence: Vec<u8>,
    pub(crate) changelog: Vec<u8>,
}

/// What one architecture has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Build {
    pub(crate) architecture: Architecture,
    pub(crate) programs: Vec<Program>,
    /// The licences of what is linked into them.
    pub(crate) third_party: Vec<u8>,
}

/// Something is missing or wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GoodsError {
    #[error("read {path:?}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path:?} is not an executable for {wanted}")]
    Executable { path: PathBuf, wanted: &'static str },
    #[error("{path:?} is a name that is not UTF-8")]
    Name { path: PathBuf },
    #[error("licences of what is in {executable}")]
    ThirdParty {
        executable: &'static str,
        #[source]
        source: third_party::ThirdPartyError,
    },
}

impl Texts {
    /// Reads them from a checkout.
    pub(crate) fn read(
        checkout: &Path,
        version: &str,
        revision: &str,
        epoch: Epoch,
    ) -> Result<Self, GoodsError> {
        let file = |path: &str| read(&checkout.join(path));
        let folder = |path: &str| folder(&checkout.join(path));
        Ok(Texts {
            version: version.to_owned(),
            revision: revision.to_owned(),
            epoch,
            pages: folder("docs/man")?,
            completions: folder("docs/completions")?,
            units: folder("deploy/systemd")?,
            chart: folder("deploy/chart/netwright")?,
            manifests: folder("deploy/kubernetes")?,
            packaging: folder("deploy/packages")?,
            configuration: file("docs/netwrightd.toml")?,
            readme: file("README.md")?,
            licence: file("LICENSE")?,
            changelog: file("CHANGELOG.md")?,
        })
    }

    /// Returns the units for executables in a folder.
    pub(crate) fn units_for(&self, programs: &str) -> BTreeMap<String, Vec<u8>> {
        let here = |text: &[u8]| {
            let text = String::from_utf8_lossy(text);
            text.replace(UNITS_PROGRAMS, &format!("{programs}/netwrightd ")).into_bytes()
        };
        self.units.iter().map(|(path, text)| (path.clone(), here(text))).collect()
    }
}

impl Build {
    /// Reads what was built for an architecture. `sources` are folders with the sources of crates,
    /// each in a folder named after it and its version.
    pub(crate) fn read(
        dist: &Path,
        architecture: Architecture,
        sources: &[PathBuf],
    ) -> Result<Self, GoodsError> {
        let mut programs = Vec::new();
        let mut licences = third_party::Licences::default();
        for name in PROGRAMS {
            let path = dist.join(name);
            let bytes = read(&path)?;
            if machine_of(&bytes) != Some(architecture.machine()) {
                return Err(GoodsError::Executable { path, wanted: architecture.triple() });
            }
            let bill = read(&path.with_extension("cdx.json"))?;
            let of = |source| GoodsError::ThirdParty { executable: name, source };
            licences.add(name, &bill, sources).map_err(of)?;
            let symbols = path.with_extension(SYMBOLS);
            let symbols = if symbols.exists() { Some(read(&symbols)?) } else { None };
            programs.push(Program { name, bytes, bill, symbols });
        }
        Ok(Build { architecture, programs, third_party: licences.text().into_bytes() })
    }
}

/// Returns the machine of an ELF file (linux include/uapi/linux/elf.h `e_machine`).
fn machine_of(elf: &[u8]) -> Option<u16> {
    const E_MACHINE: usize = 18;
    let bytes =
        elf.starts_with(b"\x7fELF\x02\x01").then(|| elf.get(E_MACHINE..E_MACHINE + 2))??;
    Some(u16::from_le_bytes(bytes.try_into().ok()?))
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, GoodsError> {
    fs::read(path).map_err(|source| GoodsError::Read { path: path.to_owned(), source })
}

/// Reads all files below a folder, by their paths there.
pub(crate) fn folder(top: &Path) -> Result<BTreeMap<String, Vec<u8>>, GoodsError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| GoodsError::Read { path, source }
    };
    let mut files = BTreeMap::new();
    let mut open = vec![top.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).map_err(failed(&folder))? {
            let path = entry.map_err(failed(&folder))?.path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let name = path.strip_prefix(top).ok().and_then(Path::to_str).map(str::to_owned);
            let name = name.ok_or_else(|| GoodsError::Name { path: path.clone() })?;
            files.insert(name, read(&path)?);
        }
    }
    Ok(files)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::{Architecture, Build, GoodsError, Program, Texts, machine_of};

    /// The checkout's own texts.
    pub(crate) fn texts() -> Texts {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        Texts::read(&checkout, "0.1.0", "abc", "1795687200".parse().unwrap()).unwrap()
    }

    /// Bytes that begin like an executable.
    pub(crate) fn executable(architecture: Architecture) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01".to_vec();
        bytes.resize(18, 0);
        bytes.extend(architecture.machine().to_le_bytes());
        bytes
    }

    pub(crate) fn built(architecture: Architecture) -> Build {
        let program = |name| Program {
            name,
            bytes: executable(architecture),
            bill: format!("{{\"of\":\"{name}\"}}").into_bytes(),
            symbols: Some(format!("symbols of {name}").into_bytes()),
        };
        let programs = super::PROGRAMS.map(program).to_vec();
        Build { architecture, programs, third_party: b"their licences\n".to_vec() }
    }

    #[test]
    fn the_checkout_has_everything() {
        let texts = texts();
        let pages = ["netwright.1", "netwrightd.1", "netwright-run.1"];
        let others = ["netwright.7", "netwrightd.toml.5", "netwrightd.8"];
        for page in pages.into_iter().chain(others) {
            assert!(texts.pages.contains_key(page), "{page}");
        }
        assert_eq!(texts.completions.len(), 6, "two programs, three shells");
        let packaged = texts.units_for("/usr/bin");
        assert_eq!(packaged.len(), texts.units.len());
        let text = |path: &str| String::from_utf8(packaged[path].clone()).unwrap();
        assert!(text("netwrightd@.service").contains("\nExecStart=/usr/bin/netwrightd %i "));
        assert!(
            text("netwrightd@ipam.service.d/10-netwright.conf").contains("+/usr/bin/netwrightd ")
        );
        assert!(packaged.values().all(|text| !text.windows(10).any(|part| part == b"/usr/local")));
    }

    #[test]
    fn an_executable_of_another_machine_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let other = executable(Architecture::Aarch64);
        assert_eq!(machine_of(&other), Some(183));
        assert_eq!(machine_of(b"#!/bin/sh\n"), None);
        std::fs::write(dir.path().join("netwright"), other).unwrap();
        let refused = Build::read(dir.path(), Architecture::X86_64, &[]).unwrap_err();
        assert!(
            matches!(refused, GoodsError::Executable { wanted, .. } if wanted.starts_with("x86"))
        );
        let refused = Build::read(dir.path(), Architecture::Aarch64, &[]).unwrap_err();
        assert!(matches!(refused, GoodsError::Read { .. }), "no bill of materials: {refused}");
    }
}
