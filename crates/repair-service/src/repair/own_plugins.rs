//! The folders of plugins that `netwright install` filled ([`agent::installed`]): another package
//! may empty one when it is upgraded, or put its own plugins there.
//!
//! The service hears of it at once, logs it, and puts ours back where the key `keep-plugins` has the
//! folder. It calls the executable `netwright` for that.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use agent::installed::{self, DPKG, Disturbance, InstallRecord};
use service_kit::folders::Folders;
use state::Roots;

use crate::runtimes::Flags;

/// How long putting back may take: another `install` may hold the folder's lock for half a minute.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The pause between looks whether it has ended.
const PAUSE: Duration = Duration::from_millis(10);
/// The pause before what could not be put back is tried again.
const AGAIN: Duration = Duration::from_secs(60);

/// A folder's device and inode, and when it was made: another folder may get the same inode.
type Identity = Option<(u64, u64, Option<SystemTime>)>;

#[derive(Debug)]
pub(super) struct OwnPlugins {
    roots: Roots,
    /// Folders that are kept as they were installed, each as it was when this process started: its
    /// mounts may let it write there, and not in another folder that is made in its place.
    keep: BTreeMap<PathBuf, Identity>,
    netwright: PathBuf,
    watched: Folders,
    /// Folders that were there at some look. In a container, the node's record names folders that
    /// the container does not have.
    seen: BTreeSet<PathBuf>,
    /// What has been logged.
    told: Vec<Disturbance>,
    /// When putting back failed.
    failed: Option<Instant>,
}

impl OwnPlugins {
    pub(super) fn new(flags: &Flags, roots: &Roots) -> io::Result<Self> {
        let keep = flags.keep_plugins.iter().map(|dir| (dir.clone(), identity(dir)));
        Ok(OwnPlugins {
            roots: roots.clone(),
            keep: keep.collect(),
            netwright: flags.executable(),
            watched: Folders::watching(flags.keep_plugins.iter().map(PathBuf::as_path))?,
            seen: BTreeSet::new(),
            told: Vec::new(),
            failed: None,
        })
    }

    /// Returns what reports changes of the folders.
    pub(super) fn watched(&self) -> &Folders {
        &self.watched
    }

    /// Compares the folders with what was installed, and puts back what is to be kept. Returns what
    /// is gone, in a line.
    ///
    /// # Errors
    /// If a folder was made anew, and only another process may write there.
    pub(super) fn look(&mut self, now: Instant) -> io::Result<Result<(), String>> {
        let mut disturbed = self.disturbed();
        let may_try = self.failed.is_none_or(|failed| AGAIN <= now - failed);
        if may_try && disturbed.iter().any(|one| self.keep.contains_key(&one.dir)) {
            self.failed = None;
            for one in disturbed.iter().filter(|one| self.keep.contains_key(&one.dir)) {
                let dir = one.dir.display();
                match put_back(&self.installer(), &one.dir) {
                    Ok(()) => tracing::info!(%dir, names = ?named(one), "put plugins back"),
                    Err(error) if self.keep[&one.dir] != identity(&one.dir) => {
                        return Err(io::Error::other(format!(
                            "{dir} was made anew, and only a new process may write there: {error}"
                        )));
                    }
                    Err(error) => {
                        tracing::error!(%dir, error, "cannot put plugins back");
                        self.failed = Some(now);
                    }
                }
            }
            disturbed = self.disturbed();
        }
        self.told.retain(|told| disturbed.iter().any(|one| one.is_as(told)));
        let gone = self.told.iter().filter(|one| !one.gone.is_empty()).map(ToString::to_string);
        let gone: Vec<String> = gone.collect();
        Ok(if gone.is_empty() { Ok(()) } else { Err(gone.join("; ")) })
    }

    /// Returns the executable that installs. The configured one may be among the plugins that are
    /// gone: in a container it is the node's, and the image's is beside this process's.
    fn installer(&self) -> PathBuf {
        if self.netwright.exists() { self.netwright.clone() } else { Flags::beside() }
    }

    /// Returns what is not as it was installed, and logs what is new of it.
    fn disturbed(&mut self) -> Vec<Disturbance> {
        let mut recorded = installed::all(&self.roots).found;
        // Before the look, so that no change in between is missed.
        self.watched.add(recorded.iter().map(|one| one.dir.clone()));
        let there = recorded.iter().map(|one| &one.dir).filter(|dir| dir.is_dir());
        self.seen.extend(there.cloned());
        recorded.retain(|one| self.seen.contains(&one.dir) || self.keep.contains_key(&one.dir));
        let found: Vec<Disturbance> =
            recorded.iter().filter_map(InstallRecord::disturbed).collect();
        for one in &found {
            if !self.told.iter().any(|told| told.is_as(one)) {
                let one = one.clone().with_packages(Path::new(DPKG));
                tracing::warn!("another program changed the plugins in {one}");
                self.told.push(one);
            }
        }
        found
    }
}

fn named(disturbed: &Disturbance) -> Vec<&String> {
    disturbed.gone.iter().chain(&disturbed.replaced).collect()
}

fn identity(dir: &Path) -> Identity {
    dir.metadata().ok().map(|found| (found.dev(), found.ino(), found.created().ok()))
}

/// Has `netwright` put back what was installed in a folder.
fn put_back(netwright: &Path, dir: &Path) -> Result<(), String> {
    #[expect(clippy::disallowed_methods, reason = "the executable that installs plugins")]
    let mut command = Command::new(netwright);
    command.args(["install", "--put-back", "--bin-dir"]).arg(dir);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let run = |error: io::Error| format!("run {}: {error}", netwright.display());
    let mut child = command.spawn().map_err(run)?;
    let deadline = Instant::now() + TIMEOUT;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(run)? {
            break status;
        }
        if deadline <= Instant::now() {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("it did not end within {} s", TIMEOUT.as_secs()));
        }
        sleep(PAUSE);
    };
    if status.success() {
        return Ok(());
    }
    let mut said = Vec::new();
    // What was read before an error counts.
    let _ = child.stderr.take().map(|mut pipe| pipe.read_to_end(&mut said));
    let said = String::from_utf8_lossy(&said);
    Err(cni::text::one_line(said.trim().trim_start_matches("error: ")))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    /// A folder with one plugin, recorded, and an executable in the place of `netwright`.
    struct Machine {
        dir: tempfile::TempDir,
        roots: Roots,
    }

    impl Machine {
        fn new(netwright: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let roots = Roots::new(dir.path().join("run"), dir.path().join("lib"));
            let machine = Machine { dir, roots };
            fs::create_dir(machine.bin()).unwrap();
            symlink("netwright", machine.bin().join("bridge")).unwrap();
            let links = vec!["bridge".to_owned()];
            let executables = Vec::new();
            let installed = InstallRecord { dir: machine.bin(), executables, linked: false, links };
            installed.write(&machine.roots).unwrap();
            let script = machine.dir.path().join("netwright");
            let bin = machine.bin();
            let text = format!("#!/bin/sh\nset -e\ncd {}\n{netwright}\n", bin.display());
            fs::write(&script, text).unwrap();
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
            machine
        }

        fn bin(&self) -> PathBuf {
            self.dir.path().join("bin")
        }

        fn plugins(&self, keep: &[PathBuf]) -> OwnPlugins {
            let netwright = Some(self.dir.path().join("netwright"));
            let keep_plugins = keep.to_vec();
            let flags = Flags { netwright, keep_plugins, ..Flags::default() };
            OwnPlugins::new(&flags, &self.roots).unwrap()
        }
    }

    const PUTS_BACK: &str =
        r#"[ "$*" = "install --put-back --bin-dir $PWD" ]; ln -s netwright bridge"#;

    #[test]
    fn what_is_gone_is_said_until_it_is_back() {
        let machine = Machine::new("exit 1");
        let mut plugins = machine.plugins(&[]);
        let now = Instant::now();
        assert_eq!(plugins.look(now).unwrap(), Ok(()));
        fs::remove_file(machine.bin().join("bridge")).unwrap();
        let gone = plugins.look(now).unwrap().unwrap_err();
        assert!(gone.contains("/bin: bridge is gone; "), "{gone}");
        assert!(gone.ends_with("`netwright install --put-back` puts ours back"), "{gone}");
        assert_eq!(plugins.look(now).unwrap(), Err(gone));
        // The plugin of another package serves containers too: the log names it, and nothing is
        // missing.
        fs::write(machine.bin().join("bridge"), "theirs").unwrap();
        assert_eq!(plugins.look(now).unwrap(), Ok(()));
        assert_eq!(plugins.told[0].replaced, ["bridge"]);
        fs::remove_file(machine.bin().join("bridge")).unwrap();
        symlink("netwright", machine.bin().join("bridge")).unwrap();
        assert_eq!(plugins.look(now).unwrap(), Ok(()));
        assert_eq!(plugins.told, []);
    }

    #[test]
    fn a_folder_that_a_container_does_not_have_is_not_missed() {
        let machine = Machine::new("exit 1");
        let there = machine.plugins(&[]).look(Instant::now());
        assert_eq!(there.unwrap(), Ok(()));
        fs::remove_dir_all(machine.bin()).unwrap();
        assert_eq!(machine.plugins(&[]).look(Instant::now()).unwrap(), Ok(()));
        assert!(machine.plugins(&[machine.bin()]).look(Instant::now()).unwrap().is_err());
    }

    #[test]
    fn a_kept_folder_is_filled_again() {
        let machine = Machine::new(PUTS_BACK);
        let mut plugins = machine.plugins(&[machine.bin()]);
        fs::remove_file(machine.bin().join("bridge")).unwrap();
        assert_eq!(plugins.look(Instant::now()).unwrap(), Ok(()));
        assert!(machine.bin().join("bridge").is_symlink());
        assert_eq!(plugins.told, []);
    }

    #[test]
    fn what_cannot_be_put_back_is_tried_again_after_a_pause() {
        let machine = Machine::new("echo x >>../tried; echo 'error: no' >&2; exit 3");
        let mut plugins = machine.plugins(&[machine.bin()]);
        fs::remove_file(machine.bin().join("bridge")).unwrap();
        let tried = || fs::read_to_string(machine.dir.path().join("tried")).unwrap().len() / 2;
        let now = Instant::now();
        for (at, wanted) in [(now, 1), (now + AGAIN / 2, 1), (now + AGAIN, 2)] {
            assert!(plugins.look(at).unwrap().is_err());
            assert_eq!(tried(), wanted);
        }
    }

    #[test]
    fn a_folder_that_was_made_anew_needs_a_new_process() {
        let machine = Machine::new("echo 'error: read-only' >&2; exit 3");
        let mut plugins = machine.plugins(&[machine.bin()]);
        // The old one exists until the new one does: it has another inode.
        fs::rename(machine.bin(), machine.dir.path().join("old")).unwrap();
        fs::create_dir(machine.bin()).unwrap();
        let error = plugins.look(Instant::now()).unwrap_err().to_string();
        assert!(error.ends_with(" only a new process may write there: read-only"), "{error}");
        // That one does not start again and again.
        let mut plugins = machine.plugins(&[machine.bin()]);
        assert!(plugins.look(Instant::now()).unwrap().is_err());
    }
}
