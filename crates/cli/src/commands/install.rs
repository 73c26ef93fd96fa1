//! `install` and `uninstall`: put this executable under every plugin's name where runtimes look,
//! and remove it.
//!
//! Runtimes may call plugins at any moment, so each name is switched in one step: the new entry is
//! made under another name in the same folder and renamed over the old one. The old entry is linked
//! into `DIR/.netwright-replaced` before, so that it exists at every moment. The manifest there is
//! written first: if the rest is interrupted, `uninstall` and a second `install` know what was
//! meant.

mod conflist;
mod folder;
mod manifest;
mod take_back;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cni::code;
use cni_runtime::ConfigFolder;
use serde::Serialize;

use super::Outcome;
use crate::VERSION;
use crate::args::{Common, Install};
use crate::daemon_process::DAEMON;
use crate::failure::Failure;
use crate::net::default;
use crate::net::runtimes::Runtimes;
use crate::net::session::{PluginSource, Session, load_failure};
use crate::shell::{Report, Shell};
use crate::world::World;
use folder::{Entry, Folder};
use manifest::{Config, Manifest};
pub(crate) use take_back::uninstall;

/// The executable's own name in the folder, which the links point at.
const EXECUTABLE: &str = "netwright";

/// Both executables: the second is installed when it is beside the one that runs.
const EXECUTABLES: [&str; 2] = [EXECUTABLE, DAEMON];

/// The default network's file. It sorts last: a runtime that takes the first file must not find
/// ours instead of the one it has been using.
const CONFIG_FILE: &str = "99-netwright.conflist";

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Installed {
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

impl Installed {
    fn dirs(&self) -> String {
        let dirs = [&self.dir].into_iter().chain(&self.also_in);
        dirs.map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(" and ")
    }
}

impl Report for Installed {
    fn text(&self) -> String {
        let mut text = format!(
            "installed netwright {}{} in {} with {} plugins: {}\n",
            self.version,
            if self.daemon { format!(" and {DAEMON}") } else { String::new() },
            self.dirs(),
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
    args: &Install,
    common: &Common,
    world: &World,
    shell: &mut Shell,
) -> Outcome {
    let session = Session::open(world, common, shell, PluginSource::None)?;
    let runtimes = Runtimes::find(world);
    let own = plugins::all().iter().map(|plugin| plugin.name());
    let also = plugins::aliases().map(|(name, _)| name).filter(|name| args.also.contains(name));
    let links: Vec<&'static str> = own.chain(also).collect();
    let present = |dir: &Path| -> Vec<&'static str> {
        links.iter().copied().filter(|name| dir.join(name).symlink_metadata().is_ok()).collect()
    };
    let dirs = match &args.bin_dir {
        Some(dir) => vec![world.absolute(dir)],
        None => folders(&runtimes, &|dir| !present(dir).is_empty())?,
    };
    let executable = std::fs::read("/proc/self/exe")
        .map_err(|error| Failure::of(code::IO_FAILURE, &error).context("read this executable"))?;
    let daemon = std::fs::read_link("/proc/self/exe")
        .and_then(|own| std::fs::read(own.with_file_name(DAEMON)))
        .ok();
    let (used_by, warnings) = runtimes.tell(&dirs, &present);
    let mut report = Installed {
        dir: PathBuf::new(),
        also_in: Vec::new(),
        used_by,
        version: VERSION,
        daemon: daemon.is_some(),
        links: links.clone(),
        replaced: Vec::new(),
        config: None,
        notes: Vec::new(),
    };
    for dir in dirs {
        let mut created = manifest::missing(&dir);
        if !args.no_config {
            created.extend(manifest::missing(&session.conf_dir));
        }
        let done = Folder::open(&dir).and_then(|folder| {
            let executables = (executable.as_slice(), daemon.as_deref());
            place(&folder, &links, executables, &created, args, &session)
        });
        let (replaced, config, notes) = done.map_err(|failure| {
            manifest::remove_created(&created);
            match report.dirs() {
                done if report.dir.as_os_str().is_empty() || done.is_empty() => failure,
                done => failure.because(format_args!("what was installed in {done} stays")),
            }
        })?;
        report.replaced.extend(replaced);
        report.config = report.config.or(config);
        for note in notes {
            if !report.notes.contains(&note) {
                report.notes.push(note);
            }
        }
        if report.dir.as_os_str().is_empty() {
            report.dir = dir;
        } else {
            report.also_in.push(dir);
        }
    }
    report.notes.extend(warnings);
    report.notes.extend(renew_tables(&session));
    shell.confirm(&report);
    Ok(ExitCode::SUCCESS)
}

/// Chooses the folders from which every runtime of this machine takes its plugins.
fn folders(runtimes: &Runtimes, has: &dyn Fn(&Path) -> bool) -> Result<Vec<PathBuf>, Failure> {
    if !runtimes.unknown.is_empty() {
        return Err(Failure::new(
            code::IO_FAILURE,
            "the folder in which this machine's runtimes look for plugins is not known",
        )
        .because(runtimes.unknown.join("; "))
        .hint("correct that file, or choose the folder with --bin-dir"));
    }
    Ok(runtimes.folders(has))
}

/// Updates the packet filter's tables to this version's layout, if an older one made some here. If
/// that fails the next container's ADD does it, so a failure is only reported.
fn renew_tables(session: &Session) -> Option<String> {
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

type Done = (Vec<String>, Option<PathBuf>, Vec<String>);

fn place(
    folder: &Folder,
    links: &[&'static str],
    (executable, daemon): (&[u8], Option<&[u8]>),
    created: &[PathBuf],
    args: &Install,
    session: &Session,
) -> Result<Done, Failure> {
    let old = Manifest::read(folder.dir())?;
    if let Some(old) = &old
        && !args.allow_downgrade
        && old.is_newer_than(VERSION)
    {
        return Err(Failure::new(
            code::INVALID_CONFIG,
            format!(
                "version {} is installed in {}, and this is {VERSION}",
                old.version,
                folder.dir().display()
            ),
        )
        .hint("to downgrade, give --allow-downgrade"));
    }
    // Everything that can be refused is refused before any change.
    let mut names: Vec<&str> = links.to_vec();
    names.push(EXECUTABLE);
    names.extend(daemon.map(|_| DAEMON));
    let owns = |name: &str| old.as_ref().is_some_and(|old| old.owns(name));
    let mut foreign = Vec::new();
    for name in &names {
        match folder.look(name)? {
            Entry::Ours => {}
            Entry::Foreign if EXECUTABLES.contains(name) && owns(name) => {}
            Entry::Foreign => foreign.push((*name).to_owned()),
            Entry::Absent => {}
        }
    }
    let (config, mut notes) = plan_config(args, session, old.as_ref())?;
    let mut replaced = old.as_ref().map(|old| old.replaced.clone()).unwrap_or_default();
    replaced.extend(foreign.iter().cloned());
    replaced.sort();
    replaced.dedup();
    let written = config.as_ref().map(|path| Config::of(path, default::DOCUMENT));
    let manifest = Manifest {
        version: VERSION.to_owned(),
        links: links.iter().map(|name| (*name).to_owned()).collect(),
        daemon: daemon.is_some() || old.as_ref().is_some_and(|old| old.daemon),
        replaced,
        config: written.or_else(|| old.as_ref().and_then(|old| old.config.clone())),
        created_dirs: old
            .iter()
            .flat_map(|old| old.created_dirs.iter())
            .chain(created)
            .cloned()
            .collect(),
    };
    // Plugins that an older version had and this one does not.
    let obsolete: Vec<String> = old
        .iter()
        .flat_map(|old| old.links.iter().filter(|name| !manifest.links.contains(name)).cloned())
        .collect();

    let mut undo = folder.undo(old.as_ref());
    let outcome = (|| {
        manifest.write(folder.dir())?;
        for name in &foreign {
            folder.keep(name)?;
            undo.kept(name);
        }
        for (name, bytes) in [(EXECUTABLE, Some(executable)), (DAEMON, daemon)] {
            if let Some(bytes) = bytes {
                undo.executable(name);
                folder.put_executable(name, bytes)?;
            }
        }
        for name in links {
            undo.link(name);
            folder.put_link(name, EXECUTABLE)?;
        }
        for name in &obsolete {
            folder.give_back(name)?;
        }
        if let Some(path) = &config {
            write_config(path)?;
        }
        folder.sync()
    })();
    if let Err(failure) = outcome {
        return Err(match undo.run(folder) {
            Ok(()) => failure.because("everything was put back as it was"),
            Err(error) => {
                failure.because(format_args!("putting things back failed too: {}", error.message()))
            }
        });
    }
    if !manifest.daemon {
        notes
            .push(format!("{DAEMON} is not beside this executable: the plugin dhcp has no daemon"));
    }
    if links.is_empty() {
        notes.push("this build holds no plugins".to_owned());
    }
    Ok((foreign, config, notes))
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
        let same = own || existing == default::DOCUMENT.as_bytes();
        let note = format!("{} existed before and was left as it is", path.display());
        return Ok(if same { (Some(path), Vec::new()) } else { (None, vec![note]) });
    }
    if folder.networks().any(|list| list.name == default::NAME) {
        let note =
            format!("a network named {:?} is configured: no file was written", default::NAME);
        return Ok((None, vec![note]));
    }
    let mut notes = Vec::new();
    let first = folder.networks().next();
    if let Some(first) = first {
        notes.push(format!("runtimes that take the first network go on using {:?}", first.name));
    }
    Ok((Some(path), notes))
}

fn write_config(path: &Path) -> Result<(), Failure> {
    let failed = |error: state::FileError| Failure::of(code::IO_FAILURE, &error);
    if let Some(parent) = path.parent() {
        state::create_directory(parent, 0o755).map_err(failed)?;
    }
    state::publish(path, default::DOCUMENT.as_bytes(), 0o644, state::Durability::Synced)
        .map_err(|error| failed(error).hint("give --no-config to leave configurations alone"))
}
