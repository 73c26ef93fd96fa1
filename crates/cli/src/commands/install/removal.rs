//! `uninstall`.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use agent::installed::is_recorded;
use cni::{NetworkName, code};
use ipam::Store;
use plugins::shared::forwarding;
use serde::Serialize;
use state::{Index, Roots};

use super::attached::{
    detach, detach_gone, is_living, keep_executable, listed, living, name, ours, refuse_living,
    stays,
};
use super::callers::{self, DockerUse};
use super::conflist::{Conflist, Files};
use super::folder::{Entry, Folder};
use super::lost::lost;
use super::manifest::{self, Manifest};
use super::places::{self, Place};
use super::{DAEMON, EXECUTABLE, Outcome, forget};
use crate::args::{Common, Uninstall};
use crate::commands::setup;
use crate::failure::Failure;
use crate::net::runtimes::{Runtimes, USUAL};
use crate::net::session::{PluginSource, Session};
use crate::shell::{Report, Shell};
use crate::world::World;

/// The services that would restore what is removed.
const RESTORING: [&str; 3] = ["multinet", "repair", "routing"];

/// The pause between looks whether containers and services have ended.
const PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::commands) struct RemovalReport {
    dir: PathBuf,
    /// Further folders.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    also_in: Vec<PathBuf>,
    /// Whether this is only what would be done.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
    pub(in crate::commands) removed: Vec<String>,
    pub(in crate::commands) restored: Vec<String>,
    pub(in crate::commands) detached: Vec<String>,
    /// What could not be removed, each with its reason.
    pub(in crate::commands) left: Vec<String>,
    /// What stays of attachments that other plugins have made again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::commands) attached_again: Vec<String>,
}

impl RemovalReport {
    fn of(places: &[Place]) -> Self {
        let mut dirs = places.iter().map(|place| place.dir.clone());
        let dir = dirs.next().unwrap_or_default();
        RemovalReport { dir, also_in: dirs.collect(), ..RemovalReport::default() }
    }
}

impl Report for RemovalReport {
    fn text(&self) -> String {
        let mut text = String::new();
        let would = ["would detach", "would remove", "would put back"];
        let [detached, removed, restored] = match self.dry_run {
            true => would,
            false => ["detached", "removed", "put back"],
        };
        for (what, names) in
            [(detached, &self.detached), (removed, &self.removed), (restored, &self.restored)]
        {
            if !names.is_empty() {
                text.push_str(&format!("{what}: {}\n", names.join(", ")));
            }
        }
        let left = if self.dry_run { "would leave" } else { "left" };
        for line in self.left.iter().chain(&self.attached_again) {
            text.push_str(&format!("{left}: {line}\n"));
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
    let mut places = match installations(args, world) {
        Ok(found) => found,
        Err(failure) => {
            // A user who runs plugins without an installation does not see this warning elsewhere.
            let index = Index::new(&world.roots());
            forwarding::left_on(&index).into_iter().for_each(|line| shell.warn(line));
            return Err(failure);
        }
    };
    let mut report = RemovalReport { dry_run: args.dry_run, ..RemovalReport::of(&places) };
    let roots = world.roots();
    let remaining = places::remaining(&places, &Runtimes::find(world), &roots);
    let executables = executables(&places, args.keep_state);
    if args.conflist.is_none() && args.routing_conflist.is_none() {
        let attached = living(&Session::open(world, common, shell, PluginSource::None)?)?;
        let lost = lost(&places, &remaining, &attached.keys, (world, common));
        refuse_lost(lost, args.force || args.keep_state, shell)?;
    }
    if args.keep_state {
        let open = |source| Session::open(world, common, shell, source);
        if !args.force {
            DockerUse::find(&roots)?.refuse()?;
            callers::refuse_hooks(&executables)?;
            refuse_living(&open(PluginSource::None)?)?;
        }
        if args.dry_run {
            return Ok(ExitCode::SUCCESS);
        }
        report.left.extend(DockerUse::find(&roots)?.left());
        report.left.extend(callers::left_by_hooks(&executables));
        return give_back_only(&places, &remaining, open, report).map(|report| {
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
            refuse_services(&roots)?;
            DockerUse::find(&roots)?.refuse()?;
        }
    }
    if args.wait && !args.dry_run {
        wait_for_services(&roots, shell);
    }
    let [multinet, routing] = [&args.conflist, &args.routing_conflist]
        .map(|path| path.as_ref().map(|path| world.absolute(path)));
    let files = Files { multinet: multinet.as_deref(), routing: routing.as_deref() };
    let mut conflists = Vec::new();
    for place in &places {
        let next = args.next_network.as_deref();
        conflists = Conflist::check(&files, next, &place.dir, place.installed.as_ref())?;
    }
    if args.dry_run {
        let session = Session::open(world, common, shell, PluginSource::None)?;
        if !args.wait && !args.force {
            living(&session)?.refuse()?;
        }
        let files = conflists.iter().map(|conflist| conflist.path().display().to_string());
        report.removed.extend(files);
        plan(args, &places, &remaining, &session, &mut report)?;
        shell.confirm(&report);
        return Ok(ExitCode::SUCCESS);
    }
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
    report.left.extend(DockerUse::find(&roots)?.left());
    if args.wait {
        for place in &mut places {
            if let Some(installed) = &mut place.installed {
                give_back_replaced(&place.dir, installed, &roots, &mut report)?;
            }
        }
        let mut told = String::new();
        loop {
            let attached = detach_gone(args.force, &session()?, &mut report)?;
            // A runtime deletes a container some time after its end, and calls the hook then.
            let called: Vec<String> = places
                .iter()
                .flat_map(|place| callers::containers(&place.dir.join(EXECUTABLE)))
                .collect();
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
    let mut taken_back = Vec::new();
    for place in &places {
        if let Some(installed) = &place.installed {
            let folder = remove_installed(&place.dir, installed, &remaining, &roots, &mut report)?;
            taken_back.push((installed, folder));
        }
    }
    if remaining.is_empty() {
        // A new session: the first one's folder of links was below the state that is removed now.
        let session = Session::open(world, common, shell, PluginSource::None)?;
        remove_state(&session, &mut report);
    } else {
        report.left.extend(remaining.iter().map(|dir| state_stays(dir, &roots)));
    }
    // Last: a removal that is killed before is not found to be done.
    for (installed, folder) in taken_back {
        finish(folder, installed, &mut report)?;
    }
    shell.confirm(&report);
    Ok(ExitCode::SUCCESS)
}

/// Says which installation needs our state, and what removes both.
fn state_stays(dir: &Path, roots: &Roots) -> String {
    format!(
        "{} and {}, with our tables of nftables: {} has an installation. `netwright uninstall \
         --bin-dir {}` removes it too",
        roots.run.display(),
        roots.lib.display(),
        dir.display(),
        dir.display()
    )
}

/// Says what would be done.
fn plan(
    args: &Uninstall,
    places: &[Place],
    remaining: &[PathBuf],
    session: &Session,
    report: &mut RemovalReport,
) -> Result<(), Failure> {
    for known in ours(session)?.0 {
        match is_living(&known) && args.wait && !args.force {
            true => report.left.push(format!("{}: until it has ended", known.key)),
            false => report.detached.push(name(&known)),
        }
    }
    for installed in places.iter().filter_map(|place| place.installed.as_ref()) {
        let own = [DAEMON, EXECUTABLE].into_iter().filter(|name| installed.owns(name));
        for name in installed.links.iter().map(String::as_str).chain(own) {
            let comes_back = installed.replaced.iter().any(|replaced| replaced == name);
            let list = if comes_back { &mut report.restored } else { &mut report.removed };
            list.push(name.to_owned());
        }
        if let Some(config) = installed.config.as_ref().filter(|_| remaining.is_empty()) {
            let path = config.path.display();
            match config.is_unchanged() {
                true => report.removed.push(path.to_string()),
                false => report.left.push(format!("{path}: it was changed since we wrote it")),
            }
        }
    }
    for folder in places::vanishing(places) {
        report.removed.push(format!("{} if it is empty then", folder.display()));
    }
    let roots = &session.roots;
    if remaining.is_empty() {
        let own = [&roots.run, &roots.lib].into_iter().filter(|dir| dir.exists());
        report.removed.extend(own.map(|dir| dir.display().to_string()));
        report.left.extend(others_files(session));
    } else {
        report.left.extend(remaining.iter().map(|dir| state_stays(dir, roots)));
    }
    Ok(())
}

/// Returns the services that run and would restore what is removed.
fn restoring(roots: &Roots) -> Vec<&'static str> {
    let runs = |name: &&str| {
        UnixStream::connect(roots.run.join("agent").join(format!("{name}.sock"))).is_ok()
    };
    RESTORING.into_iter().filter(runs).collect()
}

/// Refuses while services run that would restore what is removed.
fn refuse_services(roots: &Roots) -> Result<(), Failure> {
    let running = restoring(roots);
    if running.is_empty() {
        return Ok(());
    }
    let names = running.join(" and ");
    let text = format!("netwrightd {names} would restore what is removed");
    Err(Failure::new(code::INVALID_CONFIG, text)
        .hint("stop it first, as by `systemctl stop netwright.target`; --wait waits for its end, and --force goes on"))
}

/// Waits for services that would restore what is removed: configurations and plugins.
fn wait_for_services(roots: &Roots, shell: &mut Shell) {
    let mut told = Vec::new();
    loop {
        let running = restoring(roots);
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
    while let Some(name) = DockerUse::find(roots)?.name() {
        if name != told {
            shell.say(format_args!("waiting for the end of {name}"));
            told = name;
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Returns the paths by which others call the executables that go. A package takes also the file to
/// which the folder's one leads.
fn executables(places: &[Place], is_packages: bool) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for place in places {
        let own = place.dir.join(EXECUTABLE);
        let target = own.canonicalize().ok().filter(|target| is_packages && *target != own);
        all.extend(std::iter::once(own).chain(target));
    }
    all
}

/// Refuses while configurations need plugins that go and do not come back: runtimes would use them
/// all the same, and start no container. Where it goes on all the same, it says so before.
fn refuse_lost(lines: Vec<String>, goes_on: bool, shell: &Shell) -> Result<(), Failure> {
    if goes_on || lines.is_empty() {
        lines.iter().for_each(|line| shell.warn(line));
        return Ok(());
    }
    let refused = Failure::new(code::INVALID_CONFIG, "configurations would lose their plugins");
    let refused = lines.into_iter().fold(refused, Failure::because);
    Err(refused.hint(
        "move these files away, or install the plugins that they need; --force leaves them as they are",
    ))
}

/// Restores the earlier plugins, as when a package is removed. What ended containers have left is
/// removed first, while our plugins are still there.
fn give_back_only(
    places: &[Place],
    remaining: &[PathBuf],
    session: impl Fn(PluginSource) -> Result<Session, Failure>,
    mut report: RemovalReport,
) -> Result<RemovalReport, Failure> {
    let attached = detach_gone(false, &session(PluginSource::WithOwn)?, &mut report)?;
    let session = session(PluginSource::None)?;
    if attached.is_some() {
        keep_executable(&session.roots)?;
    }
    for Place { dir, installed } in places {
        match installed {
            Some(installed) => remove(dir, installed, remaining, &session.roots, &mut report)?,
            // Another package may have emptied the folder. Or an earlier process was killed at its
            // first step or its last: opening the folder removes what that left.
            None => {
                if dir.is_dir() {
                    let _ = Folder::open(dir);
                }
                agent::installed::forget(&session.roots, dir)
                    .map_err(|error| Failure::of(code::IO_FAILURE, &error))?;
            }
        }
    }
    match attached {
        Some(attached) => report.left.push(stays(&attached, &session)),
        None if remaining.is_empty() => remove_tables(&session, &mut report),
        None => {}
    }
    Ok(report)
}

/// Gives new containers the plugins that they would have without us. Our plugins keep the other
/// names, for the DEL of attached containers. The manifest records that this is done.
fn give_back_replaced(
    dir: &Path,
    installed: &mut Manifest,
    roots: &Roots,
    report: &mut RemovalReport,
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
    remaining: &[PathBuf],
    roots: &Roots,
    report: &mut RemovalReport,
) -> Result<(), Failure> {
    match Manifest::read(dir)? {
        Some(installed) => remove(dir, &installed, remaining, roots, report),
        None => Ok(()),
    }
}

/// Removes what is installed, and puts back what was there.
fn remove(
    dir: &Path,
    installed: &Manifest,
    remaining: &[PathBuf],
    roots: &Roots,
    report: &mut RemovalReport,
) -> Result<(), Failure> {
    finish(remove_installed(dir, installed, remaining, roots, report)?, installed, report)
}

/// Does that in the folder, which stays locked, and for the configuration, unless that is of folders
/// in `remaining` too. The manifest stays.
fn remove_installed(
    dir: &Path,
    installed: &Manifest,
    remaining: &[PathBuf],
    roots: &Roots,
    report: &mut RemovalReport,
) -> Result<Folder, Failure> {
    let is_shared = places::hand_over(installed, remaining)?;
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
        if is_shared {
            let dirs: Vec<String> = remaining.iter().map(|dir| dir.display().to_string()).collect();
            report.left.push(format!("{path}: for the plugins in {}", dirs.join(" and ")));
        } else if config.is_unchanged() {
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
fn keep_called(folder: &Folder, report: &mut RemovalReport) -> bool {
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
fn finish(folder: Folder, installed: &Manifest, report: &mut RemovalReport) -> Result<(), Failure> {
    Manifest::remove(folder.dir())?;
    drop(folder);
    let (created, watched) = places::made(installed);
    for dir in manifest::remove_created(&created) {
        report.removed.push(dir.display().to_string());
    }
    // containerd 1.6 whose folder is removed notices no configuration until it is restarted.
    if let Some(dir) = watched.last().filter(|dir| dir.exists()) {
        report.left.push(format!("{}: runtimes may watch this folder", dir.display()));
    }
    Ok(())
}

/// Finds the requested installations: without a folder, that of each folder in which runtimes look.
/// There may be none in three cases: the command has waited, and the removal is done; a package
/// manager removes plugins that it may never have installed; another package has emptied the folder.
fn installations(args: &Uninstall, world: &World) -> Result<Vec<Place>, Failure> {
    let may_be_gone = args.wait || args.keep_state;
    let Some(dir) = args.bin_dir.as_ref().map(|dir| world.absolute(dir)) else {
        let dirs = places::filled(&Runtimes::find(world));
        if dirs.is_empty() && may_be_gone {
            // There is nothing left to do.
            return Ok(vec![Place { dir: USUAL.into(), installed: None }]);
        }
        if dirs.is_empty() {
            let text =
                "no folder that a runtime looks at has an installation of `netwright install`";
            return Err(Failure::new(code::INVALID_CONFIG, text)
                .hint("give the folder that was given to `install`, with --bin-dir"));
        }
        return dirs.iter().map(|dir| Place::read(dir)).collect();
    };
    let place = Place::read(&dir)?;
    if place.installed.is_some() || may_be_gone || is_recorded(&world.roots(), &dir) {
        return Ok(vec![place]);
    }
    // A removal may have been killed at its last step: opening the folder removes what that left.
    if manifest::folder_of(&dir).is_dir() {
        let _ = Folder::open(&dir);
    }
    Err(Failure::new(
        code::INVALID_CONFIG,
        format!("nothing was installed in {} by `netwright install`", dir.display()),
    )
    .hint("give the folder that was given to `install`"))
}

fn give_back(folder: &Folder, name: &str, report: &mut RemovalReport) -> Result<(), Failure> {
    let restored = folder.give_back(name)?;
    let list = if restored { &mut report.restored } else { &mut report.removed };
    list.push(name.to_owned());
    Ok(())
}

fn leave(folder: &Folder, name: &str, report: &mut RemovalReport) {
    let path = folder.dir().join(name);
    let mut line = format!("{}: another program replaced our link", path.display());
    if folder.has_kept(name) {
        line.push_str("; the file from before the installation is still kept");
    }
    report.left.push(line);
}

/// Removes our tables of the packet filter; reports what cannot be removed.
fn remove_tables(session: &Session, report: &mut RemovalReport) {
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
pub(in crate::commands) fn remove_state(session: &Session, report: &mut RemovalReport) {
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
    report.left.extend(others_files(session));
}

/// Says which files stay that have other projects' formats: their plugins may need them.
fn others_files(session: &Session) -> Vec<String> {
    let mut lines = Vec::new();
    let results = session.runtime.cache().results_dir();
    if let Some(shared) = results.parent().filter(|shared| shared.exists()) {
        let reserved = holds_reservations(&shared.join("networks"));
        let what = match (holds_files(results), reserved) {
            (true, true) => "results and reserved addresses",
            (true, false) => "results",
            (false, true) => "reserved addresses",
            (false, false) => "folders without results or reserved addresses",
        };
        let shared = shared.display();
        lines.push(format!("{shared}: {what}, in the formats of libcni and host-local"));
    }
    let tuning = Path::new(plugins::chained::tuning::DATA_DIR);
    if tuning.exists() {
        let what =
            if holds_files(tuning) { "what interfaces were before" } else { "an empty folder" };
        lines
            .push(format!("{}: {what}, in the format of the reference's tuning", tuning.display()));
    }
    lines
}

/// Says whether a folder has entries. One that cannot be read may have some.
fn holds_files(dir: &Path) -> bool {
    match std::fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

/// Says whether addresses are reserved on some network. What cannot be read may be reserved.
fn holds_reservations(networks: &Path) -> bool {
    let entries = match std::fs::read_dir(networks) {
        Ok(entries) => entries,
        Err(error) => return error.kind() != std::io::ErrorKind::NotFound,
    };
    entries.flatten().any(|entry| {
        let name = NetworkName::new(&entry.file_name().to_string_lossy());
        let addresses = name.map(|name| Store::new(networks, &name).addresses());
        !addresses.is_ok_and(|found| found.is_ok_and(|found| found.is_empty()))
    })
}
