//! Which folders `netwright install` put plugins into, and what became of them since.
//!
//! A package with plugins of its own may empty such a folder when it is upgraded, together with the
//! manifest that `install` keeps in it. So each folder is recorded in our state too, in a file of
//! its own. A process that writes or removes that file holds the folder's lock.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use cni_invoke::executable_of;
use serde::{Deserialize, Serialize};
use state::{DamagedFile, Durability, FileError, ReadOutcome, Roots};

/// The folder of the records, below our state, and the ending of their names.
const FOLDER: &str = "installed";
const ENDING: &str = "json";
/// The version of the format.
const FORMAT: u32 = 1;
/// The mode of the folder, and of those above it: every user can pass through and read a record.
const FOLDER_MODE: u32 = 0o711;
const MODE: u32 = 0o644;

/// The executable that has the plugins.
const EXECUTABLE: &str = "netwright";

/// What puts everything back.
pub const COMMAND: &str = "netwright install --put-back";

/// Where dpkg lists the files of each package, in `PACKAGE.list` or `PACKAGE:ARCHITECTURE.list`.
pub const DPKG: &str = "/var/lib/dpkg/info";

/// The folders of rpm's database, which only rpm can read.
const RPM: [&str; 2] = ["/usr/lib/sysimage/rpm", "/var/lib/rpm"];

/// Our own packages: their files in a folder do not point to another package.
const OWN: [&str; 2] = ["netwright", "netwright-cni-plugins"];

/// How many names a message lists.
const LISTED: usize = 3;

/// What was installed in one folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstallRecord {
    /// The folder.
    pub dir: PathBuf,
    /// The executables in it.
    pub executables: Vec<String>,
    /// Whether these are links to those of a package.
    pub linked: bool,
    /// The plugins, each a file that names the executable beside it, or a link to it.
    pub links: Vec<String>,
}

/// The form on the disk.
#[derive(Serialize, Deserialize)]
struct InstallFile {
    format: u32,
    installed: InstallRecord,
}

/// The part of every format's form that says which one it is.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

impl InstallRecord {
    /// Records the installation in our state.
    ///
    /// # Errors
    /// [`FileError`]; an older record of this folder is as it was.
    pub fn write(&self, roots: &Roots) -> Result<(), FileError> {
        let on_disk = InstallFile { format: FORMAT, installed: self.clone() };
        let bytes = serde_json::to_vec_pretty(&on_disk).expect("a record has string keys only");
        state::create_directory(&roots.lib.join(FOLDER), FOLDER_MODE)?;
        state::write_atomic(&file(roots, &self.dir), &bytes, MODE, Durability::Synced)
    }

    /// Looks whether everything is as it was installed; `None` if it is. What the process may not
    /// look at counts as unchanged.
    #[must_use]
    pub fn disturbed(&self) -> Option<Disturbance> {
        let mut disturbed = Disturbance::of(&self.dir);
        let executables = self.executables.iter().map(|name| (name, self.executable(name)));
        let links = self.links.iter().map(|name| (name, plugin(&self.dir, name)));
        for (name, found) in executables.chain(links) {
            match found {
                EntryState::AsInstalled => {}
                EntryState::Gone => disturbed.gone.push(name.clone()),
                EntryState::Other => disturbed.replaced.push(name.clone()),
            }
        }
        (!disturbed.gone.is_empty() || !disturbed.replaced.is_empty()).then_some(disturbed)
    }

    fn executable(&self, name: &str) -> EntryState {
        let path = self.dir.join(name);
        // A link to an executable that is gone counts as gone.
        match (path.metadata(), path.symlink_metadata()) {
            (Err(error), _) | (_, Err(error)) => of_error(&error),
            (Ok(_), Ok(found)) if found.is_symlink() == self.linked => EntryState::AsInstalled,
            _ => EntryState::Other,
        }
    }
}

/// Returns the record of each folder, and those that could not be read.
#[must_use]
pub fn all(roots: &Roots) -> ReadOutcome<Vec<InstallRecord>> {
    let mut read = ReadOutcome { found: Vec::new(), damaged: Vec::new() };
    let entries = fs::read_dir(roots.lib.join(FOLDER)).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == ENDING));
    cni::order::sort(&mut paths);
    for path in paths {
        match of_file(&path) {
            Ok(installed) => read.found.extend(installed),
            Err(reason) => read.damaged.push(DamagedFile { path, reason }),
        }
    }
    read
}

/// Says whether an installation in this folder is recorded.
#[must_use]
pub fn is_recorded(roots: &Roots, dir: &Path) -> bool {
    file(roots, dir).symlink_metadata().is_ok()
}

/// Removes the record of a folder; succeeds if there is none.
///
/// # Errors
/// [`FileError`].
pub fn forget(roots: &Roots, dir: &Path) -> Result<(), FileError> {
    state::remove_file(&file(roots, dir))?;
    state::remove_directory(&roots.lib.join(FOLDER)).map(drop)
}

fn file(roots: &Roots, dir: &Path) -> PathBuf {
    let name = state::file_name_of(&dir.to_string_lossy());
    roots.lib.join(FOLDER).join(format!("{name}.{ENDING}"))
}

/// Reads a record; `None` if it has gone meanwhile.
fn of_file(path: &Path) -> Result<Option<InstallRecord>, String> {
    let read = state::read_optional(path);
    let Some(bytes) = read.map_err(|error| cni::Error::from_chain(0, &error).msg)? else {
        return Ok(None);
    };
    let words = |error: serde_json::Error| cni::json::plain(&error.to_string());
    let Format { format } = serde_json::from_slice(&bytes).map_err(words)?;
    if format != FORMAT {
        return Err(format!("format {format} is not known, only {FORMAT} is"));
    }
    serde_json::from_slice(&bytes).map_err(words).map(|read: InstallFile| Some(read.installed))
}

/// What a name in a folder leads to.
enum EntryState {
    AsInstalled,
    Gone,
    Other,
}

fn plugin(dir: &Path, name: &str) -> EntryState {
    let path = dir.join(name);
    match path.symlink_metadata() {
        Err(error) => of_error(&error),
        Ok(found) if !found.is_symlink() => match executable_of(&path) {
            Some(executable) if executable == dir.join(EXECUTABLE) => EntryState::AsInstalled,
            _ => EntryState::Other,
        },
        Ok(_) => match fs::read_link(path) {
            Ok(target) if target != Path::new(EXECUTABLE) => EntryState::Other,
            _ => EntryState::AsInstalled,
        },
    }
}

fn of_error(error: &io::Error) -> EntryState {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => EntryState::Gone,
        _ => EntryState::AsInstalled,
    }
}

/// What is no longer as it was installed in a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Disturbance {
    /// The folder.
    pub dir: PathBuf,
    /// The names that are gone.
    pub gone: Vec<String>,
    /// The names that are another file now.
    pub replaced: Vec<String>,
    /// The packages of others that have files of these names, or else any in that folder.
    pub packages: Vec<String>,
    /// What puts everything back.
    pub command: String,
}

impl Disturbance {
    fn of(dir: &Path) -> Self {
        Disturbance {
            dir: dir.to_owned(),
            gone: Vec::new(),
            replaced: Vec::new(),
            packages: Vec::new(),
            command: COMMAND.to_owned(),
        }
    }

    /// Looks up the packages in dpkg's lists, which are in the folder `lists` ([`DPKG`]).
    #[must_use]
    pub fn with_packages(self, lists: &Path) -> Self {
        let names: Vec<&str> = self.gone.iter().chain(&self.replaced).map(String::as_str).collect();
        Disturbance { packages: packages(lists, &self.dir, &names), ..self }
    }

    /// Says whether both name the same folder, and the same names as gone and as replaced. The
    /// packages and the command do not matter.
    #[must_use]
    pub fn is_as(&self, other: &Self) -> bool {
        (&self.dir, &self.gone, &self.replaced) == (&other.dir, &other.gone, &other.replaced)
    }
}

/// In one line, with the command.
impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.dir.display())?;
        let mut parts = Vec::new();
        if !self.gone.is_empty() {
            parts.push(format!("{} gone", listed(&self.gone)));
        }
        if !self.replaced.is_empty() {
            parts.push(format!("{} replaced by another file", listed(&self.replaced)));
        }
        f.write_str(&parts.join(", "))?;
        match self.packages.as_slice() {
            [] if is_rpms() => {
                write!(f, "; `rpm --query --file {}` names a package", self.dir.display())?;
            }
            [] => {}
            packages => {
                let word = if packages.len() == 1 { "package" } else { "packages" };
                let has = if packages.len() == 1 { "has" } else { "have" };
                write!(f, "; the {word} {} {has} files there", packages.join(", "))?;
            }
        }
        write!(f, "; `{}` puts ours back", self.command)
    }
}

/// Says whether rpm is this machine's package manager: Debian has it as a tool.
fn is_rpms() -> bool {
    let is_there = |folder: &str| Path::new(folder).is_dir();
    RPM.into_iter().any(is_there) && !is_there(DPKG)
}

/// Names with their verb: `bridge is`, `bridge, host-local are`.
fn listed(names: &[String]) -> String {
    let (shown, more) = names.split_at(names.len().min(LISTED));
    let shown = shown.join(", ");
    match (names.len(), more.len()) {
        (1, _) => format!("{shown} is"),
        (_, 0) => format!("{shown} are"),
        (_, more) => format!("{shown} and {more} more are"),
    }
}

/// Returns the packages that have files of these names in a folder, or else any file there.
fn packages(lists: &Path, dir: &Path, names: &[&str]) -> Vec<String> {
    let folder = dir.as_os_str().as_bytes();
    let (mut owners, mut neighbours) = (BTreeSet::new(), BTreeSet::new());
    for entry in fs::read_dir(lists).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(package) = name.to_str().and_then(|name| name.strip_suffix(".list")) else {
            continue;
        };
        let package = package.split_once(':').map_or(package, |(package, _)| package);
        if OWN.contains(&package) {
            continue;
        }
        let Ok(Some(bytes)) = state::read_optional(&entry.path()) else { continue };
        for line in bytes.split(|byte| *byte == b'\n') {
            let below = line.strip_prefix(folder).and_then(|rest| rest.strip_prefix(b"/"));
            let Some(below) = below else { continue };
            if names.iter().any(|name| name.as_bytes() == below) {
                owners.insert(package.to_owned());
            } else {
                neighbours.insert(package.to_owned());
            }
        }
    }
    let found = if owners.is_empty() { neighbours } else { owners };
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use expect_test::expect;

    use super::*;

    /// A folder of plugins as `install` leaves it, its record, and dpkg's lists.
    struct Machine {
        dir: tempfile::TempDir,
        roots: Roots,
    }

    impl Machine {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let roots = Roots::new(dir.path().join("run"), dir.path().join("lib"));
            let machine = Machine { dir, roots };
            fs::create_dir(machine.bin()).unwrap();
            fs::write(machine.bin().join("netwright"), "").unwrap();
            for name in ["bridge", "portmap", "tuning", "vlan", "vrf"] {
                symlink("netwright", machine.bin().join(name)).unwrap();
            }
            fs::create_dir(machine.lists()).unwrap();
            machine.list("netwright-cni-plugins", &["", "/bridge"]);
            machine.list("libc6:amd64", &[]);
            machine
        }

        fn bin(&self) -> PathBuf {
            self.dir.path().join("bin")
        }

        fn lists(&self) -> PathBuf {
            self.dir.path().join("info")
        }

        /// Writes a package's list of files below the folder of plugins.
        fn list(&self, package: &str, files: &[&str]) {
            let bin = self.bin().display().to_string();
            let lines: String = files.iter().map(|file| format!("{bin}{file}\n")).collect();
            let text = format!("/.\n{}\n{lines}", bin.trim_end_matches("/bin"));
            fs::write(self.lists().join(format!("{package}.list")), text).unwrap();
        }

        fn installed(&self, linked: bool) -> InstallRecord {
            let links = ["bridge", "portmap", "tuning", "vlan", "vrf"].map(str::to_owned).into();
            InstallRecord {
                dir: self.bin(),
                executables: vec!["netwright".to_owned()],
                linked,
                links,
            }
        }

        /// What the message says of the recorded folder.
        fn told(&self) -> String {
            let read = all(&self.roots);
            let disturbed = read.found.iter().filter_map(InstallRecord::disturbed);
            let lines = disturbed.map(|one| format!("{}\n", one.with_packages(&self.lists())));
            let damaged = read.damaged.iter().map(|one| format!("{one}\n"));
            let text: String = lines.chain(damaged).collect();
            let text = text.replace(self.dir.path().to_str().unwrap(), "");
            // On a machine that has rpm's database.
            text.replace("; `rpm --query --file /bin` names a package", "")
        }
    }

    #[test]
    fn a_folder_that_is_as_it_was_installed_is_not_disturbed() {
        let machine = Machine::new();
        let installed = machine.installed(false);
        assert_eq!(all(&machine.roots).found, []);
        installed.write(&machine.roots).unwrap();
        assert_eq!(all(&machine.roots).found, std::slice::from_ref(&installed));
        assert!(is_recorded(&machine.roots, &installed.dir));
        assert_eq!(machine.told(), "");
        forget(&machine.roots, &installed.dir).unwrap();
        forget(&machine.roots, &installed.dir).unwrap();
        assert!(!is_recorded(&machine.roots, &installed.dir));
        assert_eq!(fs::read_dir(&machine.roots.lib).unwrap().count(), 0);
    }

    #[test]
    fn what_is_gone_or_replaced_is_named_with_the_package_of_that_name() {
        let machine = Machine::new();
        machine.installed(false).write(&machine.roots).unwrap();
        fs::remove_file(machine.bin().join("vlan")).unwrap();
        fs::remove_file(machine.bin().join("bridge")).unwrap();
        fs::write(machine.bin().join("bridge"), "theirs").unwrap();
        fs::remove_file(machine.bin().join("vrf")).unwrap();
        symlink("/usr/lib/other/vrf", machine.bin().join("vrf")).unwrap();
        machine.list("kubernetes-cni", &["", "/bridge", "/portmap"]);
        machine.list("neighbour", &["", "/other"]);
        expect![[r"
            /bin: vlan is gone, bridge, vrf are replaced by another file; the package kubernetes-cni has files there; `netwright install --put-back` puts ours back
        "]]
        .assert_eq(&machine.told());
    }

    #[test]
    fn an_emptied_folder_is_noticed_without_its_manifest() {
        let machine = Machine::new();
        machine.installed(false).write(&machine.roots).unwrap();
        fs::remove_dir_all(machine.bin()).unwrap();
        expect![[r"
            /bin: netwright, bridge, portmap and 3 more are gone; `netwright install --put-back` puts ours back
        "]]
        .assert_eq(&machine.told());
        machine.list("one:amd64", &["/other"]);
        machine.list("two", &["/another"]);
        expect![[r"
            /bin: netwright, bridge, portmap and 3 more are gone; the packages one, two have files there; `netwright install --put-back` puts ours back
        "]]
        .assert_eq(&machine.told());
    }

    #[test]
    fn a_link_to_a_packages_executable_must_be_one_and_lead_there() {
        let machine = Machine::new();
        let installed = machine.installed(true);
        let names = |what: Option<Disturbance>| what.map(|one| (one.gone, one.replaced));
        let own = vec!["netwright".to_owned()];
        assert_eq!(names(installed.disturbed()), Some((Vec::new(), own.clone())), "a copy");
        fs::remove_file(machine.bin().join("netwright")).unwrap();
        let package = machine.dir.path().join("netwright");
        symlink(&package, machine.bin().join("netwright")).unwrap();
        assert_eq!(names(installed.disturbed()), Some((own, Vec::new())), "it leads nowhere");
        fs::write(package, "").unwrap();
        assert_eq!(installed.disturbed(), None);
    }

    #[test]
    fn a_damaged_record_is_named_and_hides_no_other() {
        let machine = Machine::new();
        machine.installed(false).write(&machine.roots).unwrap();
        let folder = machine.roots.lib.join(FOLDER);
        fs::write(folder.join("a.json"), r#"{"format": 2, "installed": []}"#).unwrap();
        fs::write(folder.join("b.json"), "{").unwrap();
        fs::write(folder.join("c.tmp"), "{").unwrap();
        fs::remove_file(machine.bin().join("vrf")).unwrap();
        let told = machine.told();
        assert!(told.starts_with("/bin: vrf is gone; "), "{told}");
        assert!(told.contains("a.json\": format 2 is not known, only 1 is\n"), "{told}");
        assert_eq!(told.lines().count(), 3, "{told}");
    }
}
