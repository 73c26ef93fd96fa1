//! `uninstall`.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use agent::installed::is_recorded;
use cni::code;
use plugins::shared::forwarding;
use serde::Serialize;
use state::{Index, Roots};

use super::callers::{self, Dockers};
use super::conflist::{self, Conflist, Files};
use super::folder::{Entry, Folder};
use super::manifest::{self, Manifest};
use super::{DAEMON, EXECUTABLE, Outcome, forget};
use crate::args::{Common, Uninstall};
use crate::commands::{gc, setup};
use crate::failure::Failure;
use crate::net::attachments::{self, Known};
use crate::net::presence::Presence;
use crate::net::runtimes::{Runtimes, USUAL};
use crate::net::session::{DEFAULT_CONF_DIR, PluginSource, Session};
use crate::shell::{Report, Shell};
use crate::world::World;

/// How many attachments an error lists.
const LISTED: usize = 5;

/// The services that would restore what is removed.
const RESTORING: [&str; 3] = ["multinet", "repair", "routing"];

/// The pause between looks whether containers and services have ended.
const PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug, Default, Serialize)]
pub(in crate::commands) struct Removed {
    dir: PathBuf,
    pub(in crate::commands) removed: Vec<String>,
    pub(in crate::commands) restored: Vec<String>,
    pub(in crate::commands) detached: Vec<String>,
    /// What could not be removed, each with its reason.
    pub(in crate::commands) left: Vec<String>,
}

impl Report for Removed {
    fn text(&self) -> String {
        let mut text = String::new();
        for (what, names) in
            [("detached", &self.detached), ("removed", &self.removed), ("put back", &self.restored)]
        {
            if !names.is_empty() {
                text.push_str(&format!("{what}: {}\n", names.join(", ")));
            }
        }
        for left in &self.left {
            text.push_str(&format!("left: {left}\n"));
        }
        text
    }
}

pub(crate) fn uninstall(
    args: &Uninstall,
    common: &Common,
    world: &World,
    shell: &mut Shell,
) -> Outcome {
    let (dir, mut installed) = match installation(args, world) {
        Ok(found) => found,
        Err(failure) => {
            // A user who runs plugins without an installation does not see this warning elsewhere.
            let index = Index::new(&world.roots());
            forwarding::left_on(&index).into_iter().for_each(|line| shell.warn(line));
            return Err(failure);
        }
    };
    let mut report = Removed { dir: dir.clone(), ..Removed::default() };
    let roots = world.roots();
    let executables = executables(&dir, args.keep_state);
    if args.conflist.is_none() && args.routing_conflist.is_none() {
        refuse_configurations((args, common), (&dir, installed.as_ref()), world, shell)?;
    }
    if args.keep_state {
        let open = |source| Session::open(world, common, shell, source);
        if !args.force {
            Dockers::find(&roots)?.refuse()?;
            callers::refuse_hooks(&executables)?;
            refuse_living(&open(PluginSource::None)?)?;
        }
        if args.dry_run {
            return Ok(ExitCode::SUCCESS);
        }
        report.left.extend(Dockers::find(&roots)?.left());
        report.left.extend(callers::left_by_hooks(&executables));
        return give_back_only(&dir, installed.as_ref(), open, report).map(|report| {
            shell.confirm(&report);
            ExitCode::SUCCESS
        });
    }
    if setup::is_recorded(&roots) {
        return Err(Failure::new(
            code::INVALID_CONFIG,
            "`netwright setup` installed it, and services run that need it",
        )
        .hint("`netwright setup --undo` removes both"));
    }
    if !args.force {
        callers::refuse_hooks(&executables)?;
        if !args.wait {
            Dockers::find(&roots)?.refuse()?;
        }
    }
    if args.wait {
        wait_for_services(&roots, shell);
    }
    let [multinet, routing] = [&args.conflist, &args.routing_conflist]
        .map(|path| path.as_ref().map(|path| world.absolute(path)));
    let files = Files { multinet: multinet.as_deref(), routing: routing.as_deref() };
    let conflists =
        Conflist::check(&files, args.next_network.as_deref(), &dir, installed.as_ref())?;
    let session = || Session::open(world, common, shell, PluginSource::WithOwn);
    if !args.wait {
        detach(args.force, &session()?, &mut report)?;
    }
    for conflist in &conflists {
        conflist.withdraw()?;
        report.removed.push(conflist.path().display().to_string());
    }
    if args.wait && !args.force {
        wait_for_docker(&roots, shell)?;
    }
    report.left.extend(Dockers::find(&roots)?.left());
    if args.wait {
        if let Some(installed) = &mut installed {
            give_back_replaced(&dir, installed, &roots, &mut report)?;
        }
        let mut told = String::new();
        loop {
            let attached = detach_gone(args.force, &session()?, &mut report)?;
            // A runtime deletes a container some time after its end, and calls the hook then.
            let called = callers::containers(&dir.join(EXECUTABLE));
            let deleted = called.is_empty() || args.force;
            let Some(listed) = attached.or_else(|| (!deleted).then(|| listed(&called))) else {
                break;
            };
            if listed != told {
                shell.say(format_args!("waiting for the end of {listed}"));
                told = listed;
            }
            // The next round tries again.
            report.left.clear();
            std::thread::sleep(PAUSE);
        }
    }
    report.left.extend(callers::left_by_hooks(&executables));
    let taken_back = match &installed {
        Some(installed) => Some((installed, take_back(&dir, installed, &roots, &mut report)?)),
        None => None,
    };
    // If the record was all of it, nothing is reported of our state.
    let _ = state::remove_directory(&roots.lib);
    // A new session: the first one's folder of links was below the state that is removed now.
    let session = Session::open(world, common, shell, PluginSource::None)?;
    remove_state(&session, &mut report);
    // Last: a removal that is killed before is not found to be done.
    if let Some((installed, folder)) = taken_back {
        finish(folder, installed, &mut report)?;
    }
    shell.confirm(&report);
    Ok(ExitCode::SUCCESS)
}

/// Waits for services that would restore what is removed: configurations and plugins.
fn wait_for_services(roots: &Roots, shell: &mut Shell) {
    let mut told = Vec::new();
    loop {
        let runs = |name: &&str| {
            UnixStream::connect(roots.run.join("agent").join(format!("{name}.sock"))).is_ok()
        };
        let running: Vec<&str> = RESTORING.into_iter().filter(runs).collect();
        if running.is_empty() {
            return;
        }
        if running != told {
            let names = running.join(" and ");
            shell.say(format_args!("waiting for the end of netwrightd {names}"));
            told = running;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Waits until Docker has no network of ours: its containers need our plugins until Docker has
/// removed them.
fn wait_for_docker(roots: &Roots, shell: &Shell) -> Result<(), Failure> {
    let mut told = String::new();
    while let Some(name) = Dockers::find(roots)?.name() {
        if name != told {
            shell.say(format_args!("waiting for the end of {name}"));
            told = name;
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Returns the paths by which others call the executable that goes. A package takes also the file to
/// which the folder's one leads.
fn executables(dir: &Path, is_packages: bool) -> Vec<PathBuf> {
    let own = dir.join(EXECUTABLE);
    let target = own.canonicalize().ok().filter(|target| is_packages && *target != own);
    std::iter::once(own).chain(target).collect()
}

/// Refuses while containers are attached: another plugin's DEL knows nothing of our tables.
fn refuse_living(session: &Session) -> Result<(), Failure> {
    let living = living(session)?;
    if living.is_empty() {
        return Ok(());
    }
    Err(Failure::new(code::INVALID_CONFIG, "containers are still attached")
        .because(listed(&living))
        .because("other plugins do not remove their published ports and masquerade")
        .hint(
            "stop them first, or detach them by `netwright gc --all`; --force leaves them attached \
             (for a package: NETWRIGHT_LEAVE_ATTACHED=1 in the environment)",
        ))
}

/// Refuses while configurations need plugins that go and do not come back: runtimes would use them
/// all the same, and start no container. With --force, and where a package goes, it says so.
fn refuse_configurations(
    (args, common): (&Uninstall, &Common),
    (dir, installed): (&Path, Option<&Manifest>),
    world: &World,
    shell: &Shell,
) -> Result<(), Failure> {
    let found = Runtimes::find(world).found;
    let collect = |paths: &mut Vec<PathBuf>| {
        cni::order::sort(paths);
        paths.dedup();
    };
    let given = common.conf_dir.clone().or_else(|| world.variable("NETCONFPATH").map(Into::into));
    let mut folders: Vec<PathBuf> = found.iter().map(|one| one.conf_dir.clone()).collect();
    folders.push(world.absolute(given.unwrap_or_else(|| DEFAULT_CONF_DIR.into())));
    let mut dirs: Vec<PathBuf> = found.into_iter().flat_map(|one| one.plugin_dirs).collect();
    collect(&mut folders);
    collect(&mut dirs);
    let config = installed.and_then(|installed| installed.config.as_ref());
    let own: Vec<&Path> = config.iter().map(|config| config.path.as_path()).collect();
    let lines = conflist::left_without_plugins(&folders, &dirs, (dir, installed), &own);
    if args.force || args.keep_state {
        lines.iter().for_each(|line| shell.warn(line));
        return Ok(());
    }
    if lines.is_empty() {
        return Ok(());
    }
    let refused = Failure::new(code::INVALID_CONFIG, "configurations would lose their plugins");
    let refused = lines.into_iter().fold(refused, Failure::because);
    Err(refused.hint(
        "move these files away, or install the plugins that they need; --force leaves them as they are",
    ))
}

/// Says what stays of attached containers when our plugins go, and what removes it.
pub(in crate::commands) fn stays(attached: &str, session: &Session) -> String {
    format!(
        "{attached} are attached, and keep their networks; their published ports and masquerade \
         outlive them. Once they have ended: `{} gc --all && rm -rf {} {}`",
        kept_executable(&session.roots).display(),
        session.roots.run.display(),
        session.roots.lib.display()
    )
}

fn kept_executable(roots: &Roots) -> PathBuf {
    roots.lib.join(EXECUTABLE)
}

/// Keeps a copy of this executable: every other one may be removed, and what containers leave needs
/// one.
pub(in crate::commands) fn keep_executable(roots: &Roots) -> Result<(), Failure> {
    let kept = kept_executable(roots);
    let new = roots.lib.join(format!(".{EXECUTABLE}.{}.new", std::process::id()));
    let copied = std::fs::create_dir_all(&roots.lib)
        .and_then(|()| std::fs::copy("/proc/self/exe", &new))
        .and_then(|_| std::fs::rename(&new, &kept));
    copied.map_err(|error| {
        let _ = std::fs::remove_file(&new);
        let what = format!("keep the executable in {kept:?} for what attached containers leave");
        Failure::new(code::IO_FAILURE, what).because(&error)
    })
}

/// Restores the earlier plugins, as when a package is removed. What ended containers have left is
/// removed first, while our plugins are still there.
fn give_back_only(
    dir: &Path,
    installed: Option<&Manifest>,
    session: impl Fn(PluginSource) -> Result<Session, Failure>,
    mut report: Removed,
) -> Result<Removed, Failure> {
    let attached = detach_gone(false, &session(PluginSource::WithOwn)?, &mut report)?;
    let session = session(PluginSource::None)?;
    if attached.is_some() {
        keep_executable(&session.roots)?;
    }
    match installed {
        Some(installed) => remove(dir, installed, &session.roots, &mut report)?,
        // Another package may have emptied the folder. Or an earlier process was killed at its first
        // step or its last: opening the folder removes what that left.
        None => {
            if dir.is_dir() {
                let _ = Folder::open(dir);
            }
            agent::installed::forget(&session.roots, dir)
                .map_err(|error| Failure::of(code::IO_FAILURE, &error))?;
        }
    }
    match attached {
        Some(attached) => report.left.push(stays(&attached, &session)),
        None => remove_tables(&session, &mut report),
    }
    Ok(report)
}

/// Gives new containers the plugins that they would have without us. Our plugins keep the other
/// names, for the DEL of attached containers. The manifest records that this is done.
fn give_back_replaced(
    dir: &Path,
    installed: &mut Manifest,
    roots: &Roots,
    report: &mut Removed,
) -> Result<(), Failure> {
    let folder = Folder::open(dir)?;
    forget(roots, &folder)?;
    for name in std::mem::take(&mut installed.replaced) {
        if installed.links.contains(&name) && folder.look(&name)? == Entry::Ours {
            give_back(&folder, &name, report)?;
            installed.links.retain(|link| *link != name);
        } else {
            installed.replaced.push(name);
        }
    }
    installed.write(dir)?;
    folder.sync()?;
    // The rest may go at once.
    folder.wait_for_calls();
    Ok(())
}

/// Removes what an installation put into a folder, if there is one.
pub(in crate::commands) fn remove_from(
    dir: &Path,
    roots: &Roots,
    report: &mut Removed,
) -> Result<(), Failure> {
    match Manifest::read(dir)? {
        Some(installed) => remove(dir, &installed, roots, report),
        None => Ok(()),
    }
}

/// Removes what is installed, and puts back what was there.
fn remove(
    dir: &Path,
    installed: &Manifest,
    roots: &Roots,
    report: &mut Removed,
) -> Result<(), Failure> {
    finish(take_back(dir, installed, roots, report)?, installed, report)
}

/// Does that in the folder, which stays locked, and for the configuration. The manifest stays too.
fn take_back(
    dir: &Path,
    installed: &Manifest,
    roots: &Roots,
    report: &mut Removed,
) -> Result<Folder, Failure> {
    let folder = Folder::open(dir)?;
    forget(roots, &folder)?;
    for name in &installed.links {
        match folder.look(name) {
            Ok(Entry::Ours | Entry::Absent) => give_back(&folder, name, report)?,
            Ok(Entry::Foreign) if folder.has_back(name) => give_back(&folder, name, report)?,
            Ok(Entry::Foreign) if installed.is_theirs(dir, name) => {}
            Ok(Entry::Foreign) => leave(&folder, name, report),
            Err(failure) => report.left.push(failure.message().to_owned()),
        }
    }
    for name in [DAEMON, EXECUTABLE].into_iter().filter(|name| installed.owns(name)) {
        let is_foreign = matches!(folder.look(name), Ok(Entry::Foreign));
        if is_foreign && installed.is_theirs(dir, name) {
            continue;
        }
        if name == EXECUTABLE && keep_called(&folder, report) {
            continue;
        }
        give_back(&folder, name, report)?;
    }
    if let Some(config) = &installed.config {
        let path = config.path.display().to_string();
        if config.is_unchanged() {
            state::withdraw(&config.path).map_err(|error| Failure::of(code::IO_FAILURE, &error))?;
            report.removed.push(path);
        } else if config.path.exists() {
            report.left.push(format!("{path}: it was changed since we wrote it"));
        }
    }
    folder.sync()?;
    Ok(folder)
}

/// Leaves the executable in place, and says so, while runtimes call it when they delete containers.
fn keep_called(folder: &Folder, report: &mut Removed) -> bool {
    let path = folder.dir().join(EXECUTABLE);
    // What a link leads to goes with its package.
    if path.is_symlink() || folder.has_kept(EXECUTABLE) || !path.exists() {
        return false;
    }
    let called = callers::containers(&path);
    if called.is_empty() {
        return false;
    }
    let (path, called) = (path.display(), listed(&called));
    report.left.push(format!(
        "{path}: the runtime of {called} calls it as a hook when it deletes the container; then: rm {path}"
    ));
    true
}

/// Removes the manifest, and the folders that were created.
fn finish(folder: Folder, installed: &Manifest, report: &mut Removed) -> Result<(), Failure> {
    Manifest::remove(folder.dir())?;
    drop(folder);
    let configurations = installed.config.as_ref().and_then(|config| config.path.parent());
    let (watched, created): (Vec<PathBuf>, Vec<PathBuf>) = installed
        .created_dirs
        .iter()
        .cloned()
        .partition(|dir| configurations.is_some_and(|conf_dir| conf_dir.starts_with(dir)));
    for dir in manifest::remove_created(&created) {
        report.removed.push(dir.display().to_string());
    }
    // containerd 1.6 whose folder is removed notices no configuration until it is restarted.
    if let Some(dir) = watched.last().filter(|dir| dir.exists()) {
        report.left.push(format!("{}: runtimes may watch this folder", dir.display()));
    }
    Ok(())
}

/// Finds the requested installation and its manifest. There may be none in three cases: the command
/// has waited, and the removal is done; a package manager removes plugins that it may never have
/// installed; another package has emptied the folder.
fn installation(args: &Uninstall, world: &World) -> Result<(PathBuf, Option<Manifest>), Failure> {
    let dir = match &args.bin_dir {
        Some(dir) => world.absolute(dir),
        None => match only_folder(&Runtimes::find(world))? {
            Some(dir) => dir,
            // There is nothing left to do.
            None if args.wait || args.keep_state => return Ok((USUAL.into(), None)),
            None => {
                let text =
                    "no folder that a runtime looks at has an installation of `netwright install`";
                return Err(Failure::new(code::INVALID_CONFIG, text)
                    .hint("give the folder that was given to `install`, with --bin-dir"));
            }
        },
    };
    let installed = if dir.is_dir() { Manifest::read(&dir)? } else { None };
    let may_be_gone = args.wait || args.keep_state;
    match installed {
        Some(_) => Ok((dir, installed)),
        None if may_be_gone || is_recorded(&world.roots(), &dir) => Ok((dir, None)),
        None => {
            // A removal may have been killed at its last step: opening the folder removes what that
            // left.
            if manifest::folder_of(&dir).is_dir() {
                let _ = Folder::open(&dir);
            }
            Err(Failure::new(
                code::INVALID_CONFIG,
                format!("nothing was installed in {} by `netwright install`", dir.display()),
            )
            .hint("give the folder that was given to `install`"))
        }
    }
}

/// Finds the folder with an installation, among those in which runtimes look.
fn only_folder(runtimes: &Runtimes) -> Result<Option<PathBuf>, Failure> {
    let mut dirs: Vec<PathBuf> =
        runtimes.found.iter().flat_map(|runtime| runtime.plugin_dirs.iter().cloned()).collect();
    dirs.push(USUAL.into());
    cni::order::sort(&mut dirs);
    dirs.dedup();
    let mut with = Vec::new();
    for dir in dirs.into_iter().filter(|dir| dir.is_dir()) {
        if Manifest::read(&dir)?.is_some() {
            with.push(dir);
        }
    }
    match with.as_slice() {
        [dir] => Ok(Some(dir.clone())),
        [] => Ok(None),
        several => {
            let list: Vec<_> = several.iter().map(|dir| dir.display().to_string()).collect();
            Err(Failure::new(code::INVALID_CONFIG, "several folders have an installation")
                .because(list.join(", "))
                .hint("give one of them with --bin-dir"))
        }
    }
}

/// Returns the attachments of our plugins whose containers are there.
pub(in crate::commands) fn living(session: &Session) -> Result<Vec<String>, Failure> {
    Ok(living_of(&ours(session)?))
}

fn ours(session: &Session) -> Result<Vec<Known>, Failure> {
    let mut known = attachments::all(session)?.known;
    known.retain(|known| !known.records.is_empty());
    Ok(known)
}

fn living_of(known: &[Known]) -> Vec<String> {
    known.iter().filter(|known| is_living(known)).map(name).collect()
}

fn is_living(known: &Known) -> bool {
    known.presence != Presence::Gone
}

fn name(known: &Known) -> String {
    known.key.to_string()
}

/// Returns the first of these names, and how many more there are.
pub(in crate::commands) fn listed(names: &[String]) -> String {
    let more = names.len().saturating_sub(LISTED);
    let mut listed = names[..names.len() - more].join(", ");
    if more != 0 {
        listed.push_str(&format!(" and {more} more"));
    }
    listed
}

/// Detaches what our plugins have attached, or refuses to.
pub(in crate::commands) fn detach(
    force: bool,
    session: &Session,
    report: &mut Removed,
) -> Result<(), Failure> {
    let ours = ours(session)?;
    let living = living_of(&ours);
    if !living.is_empty() && !force {
        return Err(Failure::new(code::INVALID_CONFIG, "containers are still attached")
            .because(listed(&living))
            .hint("stop them first, or give --force to detach them now"));
    }
    detach_each(&ours, session, report);
    Ok(())
}

/// Detaches what containers that are gone had, and leaves the others attached.
pub(in crate::commands) fn detach_ended(
    session: &Session,
    report: &mut Removed,
) -> Result<(), Failure> {
    detach_gone(false, session, report).map(drop)
}

/// Detaches what containers that are gone had, or everything if it is forced. Returns a list of
/// what is still attached.
fn detach_gone(
    force: bool,
    session: &Session,
    report: &mut Removed,
) -> Result<Option<String>, Failure> {
    let (rest, gone): (Vec<Known>, Vec<Known>) =
        ours(session)?.into_iter().partition(|known| is_living(known) && !force);
    detach_each(&gone, session, report);
    let rest: Vec<String> = rest.iter().map(name).collect();
    Ok((!rest.is_empty()).then(|| listed(&rest)))
}

fn detach_each(all: &[Known], session: &Session, report: &mut Removed) {
    for known in all {
        match gc::remove(known, session) {
            Ok(()) => report.detached.push(name(known)),
            Err(failure) => report.left.push(format!("{}: {}", known.key, failure.message())),
        }
    }
}

fn give_back(folder: &Folder, name: &str, report: &mut Removed) -> Result<(), Failure> {
    let restored = folder.give_back(name)?;
    let list = if restored { &mut report.restored } else { &mut report.removed };
    list.push(name.to_owned());
    Ok(())
}

fn leave(folder: &Folder, name: &str, report: &mut Removed) {
    let path = folder.dir().join(name);
    let mut line = format!("{}: another program replaced our link", path.display());
    if folder.has_kept(name) {
        line.push_str("; the file from before the installation is still kept");
    }
    report.left.push(line);
}

/// Removes our tables of the packet filter; reports what cannot be removed.
fn remove_tables(session: &Session, report: &mut Removed) {
    if !session.roots.run.exists() {
        return;
    }
    let index = Index::new(&session.roots);
    report.left.extend(forwarding::left_on(&index));
    let removed = firewall::Firewall::open(&index).and_then(|mut firewall| firewall.remove_all());
    if let Err(error) = removed {
        report.left.push(format!("our tables in the packet filter: {error}"));
    }
    if let Err(error) = plugins::chained::policy::remove_table() {
        report.left.push(format!("the table of network policy: {error}"));
    }
}

/// Removes our tables and our state; reports what cannot be removed.
pub(in crate::commands) fn remove_state(session: &Session, report: &mut Removed) {
    let roots = &session.roots;
    remove_tables(session, report);
    for dir in [&roots.run, &roots.lib] {
        match std::fs::remove_dir_all(dir) {
            Ok(()) => report.removed.push(dir.display().to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            // In a container it is a mount: nothing is in it any more.
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {}
            Err(error) => report.left.push(format!("{}: {error}", dir.display())),
        }
    }
    if let Some(shared) = session.runtime.cache().results_dir().parent()
        && shared.exists()
    {
        report.left.push(format!(
            "{}: results and reserved addresses, in the formats of libcni and host-local",
            shared.display()
        ));
    }
}
