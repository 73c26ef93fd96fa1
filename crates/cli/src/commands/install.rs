//! `install` and `uninstall`: put this executable under every plugin's name where runtimes look,
//! and remove it.
//!
//! Runtimes may call plugins at any moment, so each name is switched in one step: the new entry is
//! made under another name in the same folder and renamed over the old one. The old entry is linked
//! into `DIR/.netwright-replaced` before, so that it exists at every moment. The manifest there is
//! written first: if the rest is interrupted, `uninstall` and a second `install` know what was
//! meant. Another package may remove the manifest, with all that is in the folder: then the record
//! in our state ([`agent::installed`]) says what was there, and `--put-back` follows that.
//!
//! A plugin's name is a file of its own, of one line, `#!DIR/netwright`. Other projects copy their
//! plugins over names (flannel's manifest calls `cp -f /flannel /opt/cni/bin/flannel`): through a
//! link, symbolic or hard, the copy would replace the one executable, and every plugin with it. The
//! kernel starts the executable with the file's path as its first argument (`man 2 execve`,
//! "Interpreter scripts"): there is no shell and no second exec. So the folder must have the same
//! path for whoever executes the plugins. If that path has white space or more than 250 bytes,
//! names are still links. Rejected: `chattr +i` and fs-verity (not on every file system), a
//! read-only mount (gone after a reboot), a small program (one exec more) or a copy (300 MB) for
//! each name.
//!
//! A call that has begun still needs the executable. So it is removed only once no process has the
//! file of a former name open ([`kernel::opened`]), or after ten seconds. Without the wait 68 of
//! 224,000 calls failed; with it none of 88,000.

mod attached;
mod callers;
mod conflist;
mod folder;
mod lost;
mod manifest;
mod places;
mod put_back;
mod removal;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use agent::installed::{self, InstallRecord};
use cni::code;
use cni_runtime::ConfigFolder;
use kernel::ipv6::Ipv6Obstacle;
use serde::Serialize;
use state::Roots;

use super::Outcome;
use crate::VERSION;
use crate::args::{Common, Install, InstallHere};
use crate::daemon_process::DAEMON;
use crate::failure::Failure;
use crate::net::default;
use crate::net::runtimes::Runtimes;
use crate::net::session::{PluginSource, Session, load_failure};
use crate::shell::{Report, Shell};
use crate::world::World;
pub(super) use attached::{detach, detach_ended, keep_executable, listed, living, stays};
pub(super) use callers::{DockerUse, left_by_hooks, refuse_hooks};
use folder::{Entry, Folder, Undo};
pub(super) use folder::{duplicate, replace_by_link};
pub(super) use lost::lost;
use manifest::{Config, Manifest};
pub(super) use manifest::{missing, remove_created};
pub(super) use places::{Place, remaining, vanishing};
pub(crate) use removal::uninstall;
pub(super) use removal::{RemovalReport, remove_from, remove_state};

/// The executable's own name in the folder, which the plugins' files name.
const EXECUTABLE: &str = "netwright";

/// Both executables: the second is installed when it is beside the one that runs.
const EXECUTABLES: [&str; 2] = [EXECUTABLE, DAEMON];

/// The default network's file. It sorts last: a runtime that takes the first file must not find
/// ours instead of the one it has been using.
const CONFIG_FILE: &str = "99-netwright.conflist";

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct InstallReport {
    dir: PathBuf,
    /// Further folders, needed where the runtimes have no folder in common.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    also_in: Vec<PathBuf>,
    /// The runtimes that take their plugins from there, each with the file that says so.
    used_by: Vec<String>,
    version: &'static str,
    /// Whether netwrightd was installed too.
    daemon: bool,
    links: Vec<&'static str>,
    /// Foreign files that were there and are kept.
    replaced: Vec<String>,
    config: Option<PathBuf>,
    notes: Vec<String>,
}

impl Report for InstallReport {
    fn text(&self) -> String {
        let mut text = format!(
            "installed netwright {}{} in {} with {} plugins: {}\n",
            self.version,
            if self.daemon { format!(" and {DAEMON}") } else { String::new() },
            [&self.dir]
                .into_iter()
                .chain(&self.also_in)
                .map(|dir| dir.display().to_string())
                .collect::<Vec<_>>()
                .join(" and "),
            self.links.len(),
            self.links.join(", ")
        );
        if !self.used_by.is_empty() {
            text.push_str(&format!("used by {}\n", self.used_by.join(" and ")));
        }
        if !self.replaced.is_empty() {
            text.push_str(&format!(
                "replaced, and kept in {}: {}\n",
                manifest::folder_of(&self.dir).display(),
                self.replaced.join(", ")
            ));
        }
        if let Some(config) = &self.config {
            text.push_str(&format!("wrote the default network to {}\n", config.display()));
        }
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        text
    }
}

pub(crate) fn install(
    args: &InstallHere,
    common: &Common,
    world: &World,
    shell: &mut Shell,
) -> Outcome {
    if args.put_back {
        return put_back::main(&args.install, common, world, shell);
    }
    let args = &Install { linked: args.linked, ..args.install.clone() };
    let session = Session::open(world, common, shell, PluginSource::None)?;
    let runtimes = Runtimes::find(world);
    let goods = Goods::of_this_process(args)?;
    let dirs = dirs(args, &goods, &runtimes, world)?;
    let (used_by, warnings) = runtimes.tell(&dirs, &|dir| goods.present(dir));
    let done = put(&dirs, &goods, args, &session)?;
    let unrecorded = record(&done, &goods, &session.roots);
    let mut report = InstallReport {
        dir: PathBuf::new(),
        also_in: dirs,
        used_by,
        version: VERSION,
        daemon: goods.daemon.is_some(),
        links: goods.links,
        replaced: Vec::new(),
        config: None,
        notes: Vec::new(),
    };
    report.dir = report.also_in.remove(0);
    for done in done {
        report.replaced.extend(done.replaced);
        report.config = report.config.or(done.config);
        for note in done.notes {
            if !report.notes.contains(&note) {
                report.notes.push(note);
            }
        }
    }
    report.notes.extend(unrecorded);
    report.notes.extend(warnings);
    if report.config.is_some() {
        report.notes.extend(runtimes.unread(&session.conf_dir));
    }
    report.notes.extend(renew_tables(&session));
    shell.confirm(&report);
    Ok(ExitCode::SUCCESS)
}

/// What is put into each folder.
#[derive(Debug)]
pub(super) struct Goods {
    pub(super) links: Vec<&'static str>,
    /// The path of the executable that runs.
    pub(super) own: PathBuf,
    pub(super) executable: Arc<Vec<u8>>,
    /// The daemon's executable, if it is beside the one that runs.
    pub(super) daemon: Option<Arc<Vec<u8>>>,
}

impl Goods {
    /// Takes this process's executable, and the one beside it.
    pub(super) fn of_this_process(args: &Install) -> Result<Self, Failure> {
        let own = plugins::all().iter().map(|plugin| plugin.name());
        let also = plugins::aliases().map(|(name, _)| name).filter(|name| args.also.contains(name));
        let executable = std::fs::read("/proc/self/exe").map_err(|error| {
            let failure = Failure::of(code::IO_FAILURE, &error).context("read this executable");
            match Path::new("/proc/self").exists() {
                true => failure,
                false => failure.hint("mount /proc: a chroot may lack it"),
            }
        })?;
        let links = own.chain(also).collect();
        let own = std::fs::read_link("/proc/self/exe").unwrap_or_default();
        let daemon = std::fs::read(own.with_file_name(DAEMON)).ok().map(Arc::new);
        Ok(Goods { links, own, executable: Arc::new(executable), daemon })
    }

    /// Returns which plugins a folder has already, made by any program.
    pub(super) fn present(&self, dir: &Path) -> Vec<&'static str> {
        let is_there = |name: &&&str| dir.join(name).symlink_metadata().is_ok();
        self.links.iter().filter(is_there).copied().collect()
    }
}

/// Chooses the folders: the one that is given, or those from which every runtime of this machine
/// takes its plugins.
pub(super) fn dirs(
    args: &Install,
    goods: &Goods,
    runtimes: &Runtimes,
    world: &World,
) -> Result<Vec<PathBuf>, Failure> {
    if let Some(dir) = &args.bin_dir {
        return Ok(vec![world.absolute(dir)]);
    }
    if !runtimes.unknown.is_empty() {
        return Err(Failure::new(
            code::IO_FAILURE,
            "the folder in which this machine's runtimes look for plugins is not known",
        )
        .because(runtimes.unknown.join("; "))
        .hint("correct that file, or choose the folder with --bin-dir"));
    }
    Ok(runtimes.folders(&|dir| !goods.present(dir).is_empty()))
}

/// Updates the packet filter's tables to this version's layout, if an older one made some here. If
/// that fails the next container's ADD does it, so a failure is only reported. Where our state is
/// missing, the tables may belong to another root folder: in a chroot they are the host's.
pub(super) fn renew_tables(session: &Session) -> Option<String> {
    if !session.roots.run.exists() {
        return None;
    }
    let index = state::Index::new(&session.roots);
    match firewall::Firewall::renew(&index) {
        Ok(true) => {
            Some("the tables \"netwright\" of nftables have this version's rules now".to_owned())
        }
        Ok(false) => None,
        Err(error) => {
            tracing::debug!(%error, "the next ADD updates the tables of nftables");
            None
        }
    }
}

/// An installation in one folder, which can be taken back as long as this value is there.
#[derive(Debug)]
pub(super) struct Installation {
    folder: Folder,
    undo: Undo,
    created: Vec<PathBuf>,
    replaced: Vec<String>,
    linked: bool,
    config: Option<PathBuf>,
    notes: Vec<String>,
}

impl Installation {
    /// Restores what was there before.
    pub(super) fn revert(self) -> Result<(), Failure> {
        let undone = self.undo.run(&self.folder);
        drop(self.folder);
        manifest::remove_created(&self.created);
        undone
    }
}

/// Installs into all folders, or into none.
pub(super) fn put(
    dirs: &[PathBuf],
    goods: &Goods,
    args: &Install,
    session: &Session,
) -> Result<Vec<Installation>, Failure> {
    let mut all: Vec<Installation> = Vec::new();
    for dir in dirs {
        let created = InstallPlan::to_create(dir, args, session);
        let done = Folder::open(dir).and_then(|folder| {
            let planned = InstallPlan::of(dir, created.clone(), goods, args, session)?;
            planned.apply(folder, goods)
        });
        match done {
            Ok(done) => all.push(done),
            Err(mut failure) => {
                manifest::remove_created(&created);
                for done in all.into_iter().rev() {
                    if let Err(error) = done.revert() {
                        failure = failure.because(format_args!(
                            "putting things back failed too: {}",
                            error.message()
                        ));
                    }
                }
                return Err(failure);
            }
        }
    }
    Ok(all)
}

/// Records installations in our state. Returns what could not be recorded: an installation works
/// without a record, as in a container that sees the host's plugins and not its state.
pub(super) fn record(all: &[Installation], goods: &Goods, roots: &Roots) -> Vec<String> {
    let executables = [Some(EXECUTABLE), goods.daemon.as_ref().map(|_| DAEMON)];
    let executables: Vec<String> = executables.into_iter().flatten().map(str::to_owned).collect();
    let unrecorded = |done: &Installation| {
        let recorded = InstallRecord {
            dir: done.folder.dir().to_owned(),
            executables: executables.clone(),
            linked: done.linked,
            links: goods.links.iter().map(|name| (*name).to_owned()).collect(),
        };
        let error = recorded.write(roots).err()?;
        let error = cni::Error::from_chain(code::IO_FAILURE, &error).msg;
        Some(format!(
            "if another package changes {}, nothing will notice: {error}",
            recorded.dir.display()
        ))
    };
    all.iter().filter_map(unrecorded).collect()
}

/// Forgets what is recorded of a folder, which is locked, before its plugins are given back.
fn forget(roots: &Roots, folder: &Folder) -> Result<(), Failure> {
    installed::forget(roots, folder.dir()).map_err(|error| Failure::of(code::IO_FAILURE, &error))
}

/// What an installation changes in one folder. All checks that may refuse it have passed.
#[derive(Debug)]
pub(super) struct InstallPlan {
    dir: PathBuf,
    old: Option<Manifest>,
    manifest: Manifest,
    /// Names that files of other projects have.
    foreign: Vec<String>,
    /// Plugins that an older version had and this one does not.
    obsolete: Vec<String>,
    /// The folders that it creates, the outer ones first.
    created: Vec<PathBuf>,
    /// Whether the executables there are links to those of a package.
    linked: bool,
    config: Option<PathBuf>,
    notes: Vec<String>,
}

impl InstallPlan {
    /// Lists the folders that must be created.
    pub(super) fn to_create(dir: &Path, args: &Install, session: &Session) -> Vec<PathBuf> {
        let mut created = manifest::missing(dir);
        if !args.no_config {
            created.extend(manifest::missing(&session.conf_dir));
        }
        created
    }

    pub(super) fn of(
        dir: &Path,
        created: Vec<PathBuf>,
        goods: &Goods,
        args: &Install,
        session: &Session,
    ) -> Result<Self, Failure> {
        let old = Manifest::read(dir)?;
        if let Some(old) = &old
            && !args.allow_downgrade
            && old.is_newer_than(VERSION)
        {
            return Err(Failure::new(
                code::INVALID_CONFIG,
                format!(
                    "version {} is installed in {}, and this is {VERSION}",
                    old.version,
                    dir.display()
                ),
            )
            .hint("to downgrade, give --allow-downgrade"));
        }
        let daemon = goods.daemon.is_some();
        let mut names: Vec<&str> = goods.links.clone();
        names.push(EXECUTABLE);
        names.extend(daemon.then_some(DAEMON));
        let owns = |name: &str| {
            old.as_ref().is_some_and(|old| old.owns(name) && !old.is_theirs(dir, name))
        };
        let mut foreign = Vec::new();
        for name in &names {
            match folder::look(dir, name)? {
                Entry::Ours => {}
                Entry::Foreign if EXECUTABLES.contains(name) && owns(name) => {}
                Entry::Foreign => foreign.push((*name).to_owned()),
                Entry::Absent => {}
            }
        }
        let (config, mut notes) = plan_config(args, session, old.as_ref())?;
        let mut replaced = old.as_ref().map(|old| old.replaced.clone()).unwrap_or_default();
        replaced.extend(foreign.iter().cloned());
        replaced.sort_unstable();
        replaced.dedup();
        let written = config.as_ref().map(|path| Config::of(path, &default::document()));
        let manifest = Manifest {
            version: VERSION.to_owned(),
            links: goods.links.iter().map(|name| (*name).to_owned()).collect(),
            daemon: daemon || old.as_ref().is_some_and(|old| old.daemon),
            replaced,
            config: written.or_else(|| old.as_ref().and_then(|old| old.config.clone())),
            created_dirs: old
                .iter()
                .flat_map(|old| old.created_dirs.iter())
                .chain(&created)
                .cloned()
                .collect(),
        };
        let obsolete = old
            .iter()
            .flat_map(|old| old.links.iter().filter(|name| !manifest.links.contains(name)).cloned())
            .collect();
        if !manifest.daemon {
            notes.push(format!(
                "{DAEMON} is not beside this executable: the plugin dhcp has no daemon"
            ));
        }
        if goods.links.is_empty() {
            notes.push("this build holds no plugins".to_owned());
        }
        let is_link = |target: PathBuf| target == goods.own;
        let linked = args.linked || std::fs::read_link(dir.join(EXECUTABLE)).is_ok_and(is_link);
        Ok(InstallPlan {
            dir: dir.to_owned(),
            old,
            manifest,
            foreign,
            obsolete,
            created,
            linked,
            config,
            notes,
        })
    }

    /// Says whether everything is already as it would be.
    pub(super) fn is_done(&self, goods: &Goods) -> bool {
        let has = |path: PathBuf, bytes: &[u8]| std::fs::read(path).is_ok_and(|is| is == bytes);
        let ours = |name: &&str| folder::is_as_put(&self.dir, name);
        self.old.as_ref() == Some(&self.manifest)
            && self.foreign.is_empty()
            && goods.links.iter().all(ours)
            && has(self.dir.join(EXECUTABLE), &goods.executable)
            && goods.daemon.iter().all(|bytes| has(self.dir.join(DAEMON), bytes))
            && self.config.iter().all(|path| has(path.clone(), default::document().as_bytes()))
    }

    /// Says whether something of ours is in the folder before.
    pub(super) fn is_new(&self) -> bool {
        self.old.is_none()
    }

    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    fn apply(self, folder: Folder, goods: &Goods) -> Result<Installation, Failure> {
        let mut undo = folder.undo(self.old.as_ref());
        let outcome = (|| {
            self.manifest.write(folder.dir())?;
            for name in &self.foreign {
                folder.keep(name)?;
                undo.kept(name);
            }
            let executables =
                [(EXECUTABLE, Some(&goods.executable)), (DAEMON, goods.daemon.as_ref())];
            for (name, bytes) in executables {
                let Some(bytes) = bytes else { continue };
                undo.executable(name);
                if self.linked {
                    folder.put_link(name, &goods.own.with_file_name(name))?;
                } else {
                    folder.put_executable(name, bytes)?;
                }
            }
            for name in &goods.links {
                undo.link(name);
                folder.put_plugin(name)?;
            }
            for name in &self.obsolete {
                undo.obsolete(name);
                folder.give_back(name)?;
            }
            if let Some(path) = &self.config {
                undo.config(path);
                write_config(path)?;
            }
            folder.sync()
        })();
        if let Err(failure) = outcome {
            return Err(match undo.run(&folder) {
                Ok(()) => failure.because("everything was put back as it was"),
                Err(error) => failure
                    .because(format_args!("putting things back failed too: {}", error.message())),
            });
        }
        let InstallPlan { created, foreign: replaced, linked, config, notes, .. } = self;
        Ok(Installation { folder, undo, created, replaced, linked, config, notes })
    }
}

/// Decides where to write the default network, if at all.
fn plan_config(
    args: &Install,
    session: &Session,
    old: Option<&Manifest>,
) -> Result<(Option<PathBuf>, Vec<String>), Failure> {
    if args.no_config {
        return Ok((None, Vec::new()));
    }
    let folder = ConfigFolder::scan(&session.conf_dir).map_err(|error| load_failure(&error))?;
    let path = session.conf_dir.join(CONFIG_FILE);
    if let Ok(existing) = std::fs::read(&path) {
        // If an older version wrote it and it is unchanged, we may update it.
        let own = old.and_then(|old| old.config.as_ref());
        let own = own.is_some_and(|own| own.path == path && own.is_unchanged());
        let same = own || default::is_document(&existing);
        let note = format!("{} existed before and was left as it is", path.display());
        return Ok(if same { (Some(path), ipv4_alone()) } else { (None, vec![note]) });
    }
    if folder.networks().any(|list| list.name == default::NAME) {
        let note =
            format!("a network named {:?} is configured: no file was written", default::NAME);
        return Ok((None, vec![note]));
    }
    let mut notes = ipv4_alone();
    let first = folder.networks().next();
    if let Some(first) = first {
        notes.push(format!("runtimes that take the first network go on using {:?}", first.name));
    }
    Ok((Some(path), notes))
}

/// Says why the configuration that is written gives IPv4 addresses alone.
fn ipv4_alone() -> Vec<String> {
    Ipv6Obstacle::for_new_links().iter().map(default::why_file_has_ipv4_alone).collect()
}

fn write_config(path: &Path) -> Result<(), Failure> {
    let failed = |error: state::FileError| Failure::of(code::IO_FAILURE, &error);
    if let Some(parent) = path.parent() {
        state::create_directory(parent, 0o755).map_err(failed)?;
    }
    state::publish(path, default::document().as_bytes(), 0o644, state::Durability::Synced)
        .map_err(|error| failed(error).hint("give --no-config to leave configurations alone"))
}
