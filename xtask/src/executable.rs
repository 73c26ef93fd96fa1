//! The shipped executables: static and small.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::ci::{Extent, Report};
use crate::elf::{Elf, PT_INTERP};
use crate::musl::LinkSettings;
use crate::run::{quiet, target_dir};
use crate::skips::Skip;
use crate::{remap, sbom, symbols};

/// A release build with link-time optimisation takes a while on a small machine.
const DEADLINE: Duration = Duration::from_secs(2700);

/// An executable that is shipped.
#[derive(Debug)]
pub(crate) struct ShippedExecutable {
    pub(crate) package: &'static str,
    pub(crate) name: &'static str,
    /// Its maximum size.
    most_bytes: u64,
}

/// The command line and every plugin, started for each call. It had 10.9 MB when `doctor` was
/// added, and 7.9 MB without zbus and the tables for unwinding, and with code for size alone where
/// speed does not matter. It grew by 1.1 MB after that, and lost 0.4 MB when the plugins' code was
/// built for size, too.
pub(crate) const NETWRIGHT: ShippedExecutable =
    ShippedExecutable { package: "netwright", name: "netwright", most_bytes: 9_000_000 };

/// The daemon, started once; a third of it is TLS and the Kubernetes API's types. It had 12.4 MB
/// with a command line and a configuration, and 16.6 MB with routes and network policy.
pub(crate) const NETWRIGHTD: ShippedExecutable =
    ShippedExecutable { package: "netwright-daemon", name: "netwrightd", most_bytes: 17_500_000 };

pub(crate) const SHIPPED: [ShippedExecutable; 2] = [NETWRIGHT, NETWRIGHTD];

impl ShippedExecutable {
    /// Builds the static executable and copies it to `target/dist`, with its bill of materials and,
    /// in a file of their own, its symbols.
    ///
    /// Each package is built by itself: crate features that one of them needs must not get into the
    /// other.
    pub(crate) fn build(&self) -> Result<PathBuf, String> {
        self.build_showing(quiet)
    }

    /// Builds it, and prints the lines of cargo that `show` chooses.
    pub(crate) fn build_showing(&self, show: impl Fn(&str) -> bool) -> Result<PathBuf, String> {
        self.build_into(&LinkSettings::prepare()?, &target_dir().join("dist"), show)
    }

    /// Builds the static executable with this way of linking, and copies it to a folder. Prints the
    /// lines of cargo that `show` chooses.
    pub(crate) fn build_into(
        &self,
        linked: &LinkSettings,
        dist: &Path,
        show: impl Fn(&str) -> bool,
    ) -> Result<PathBuf, String> {
        // The build runs at a low priority: an emulated machine beside it that loses a processor
        // for a moment loses more than that moment.
        let line = format!(
            "nice cargo build --release --locked --package {} {}",
            self.package,
            symbols::KEPT
        );
        linked.release(&line)?.deadline(DEADLINE).logged("dist", show)?;
        let to = dist.join(self.name);
        symbols::part(&linked.target_dir().join("release").join(self.name), &to)?;
        sbom::write(self.package, &to, linked)?;
        Ok(to)
    }

    /// Where cargo puts the executable.
    pub(crate) fn path(&self) -> PathBuf {
        target_dir().join("dist").join(self.name)
    }

    /// Where the tests' unoptimised build of the executable is.
    pub(crate) fn in_tests(&self) -> Result<PathBuf, String> {
        Ok(LinkSettings::prepare()?.target_dir().join("debug").join(self.name))
    }

    /// Checks that the built executable is static and small, and that neither it nor its symbols
    /// name a folder of this machine.
    pub(crate) fn check(&self) -> Result<String, String> {
        let path = self.path();
        let size = static_size(&path)?;
        for path in [&path, &path.with_extension(symbols::ENDING)] {
            let named = remap::found(&read(path)?);
            if !named.is_empty() {
                return Err(format!(
                    "{} contains paths of this machine: {named:?}",
                    path.display()
                ));
            }
        }
        if self.most_bytes < size {
            return Err(format!(
                "{} has {size} bytes, more than {}",
                path.display(),
                self.most_bytes
            ));
        }
        let (whole, hundredths) = (size / 1_000_000, size % 1_000_000 / 10_000);
        Ok(format!("{} static, {whole}.{hundredths:02} MB", self.name))
    }
}

/// A full run builds and checks what ships. Any other run checks that the executables that its
/// tests ran are static: they are linked in the same way, and building optimised ones would take as
/// long as building all tests.
pub(crate) fn ship(extent: Extent) -> Result<Report, String> {
    let mut report = Report { passed: 1, ..Report::default() };
    let mut notes = Vec::new();
    for shipped in &SHIPPED {
        if extent == Extent::Full {
            shipped.build()?;
            notes.push(shipped.check()?);
            continue;
        }
        static_size(&shipped.in_tests()?)?;
        notes.push(format!("{} static", shipped.name));
        let (name, reason) =
            (format!("executable::{}", shipped.name), "only with --full".to_owned());
        println!("    SKIP {name}: {reason}");
        report.skips.push(Skip { name, reason });
    }
    notes.push(LinkSettings::prepare()?.about());
    report.note = notes.join("; ");
    Ok(report)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("read {}: {error}", path.display()))
}

/// Returns the size of an executable; fails if it needs a dynamic loader.
fn static_size(path: &Path) -> Result<u64, String> {
    let elf = Elf::new(read(path)?)?;
    if elf.has_segment(PT_INTERP)? {
        return Err(format!("{} needs a dynamic loader", path.display()));
    }
    u64::try_from(elf.bytes().len()).map_err(|error| error.to_string())
}
