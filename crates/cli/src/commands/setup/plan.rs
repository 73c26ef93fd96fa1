//! What `setup` will do: a pure function of what is on the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent::Config;
use agent::rights::{self, RIGHTS};
use agent::{keys, load, show, units};
use cni::code;
use serde::Serialize;

use super::record::{self, Digest, ForeignUnit, Options, PathState, Record, WrittenFile};
use super::systemctl::Unit;
use crate::VERSION;
use crate::daemon_process::DAEMON;
use crate::failure::Failure;

/// The folders of systemd for what an administrator adds.
const UNITS: &str = "/etc/systemd/system";
const GENERATORS: &str = "/etc/systemd/system-generators";

/// The name under which systemd calls `netwrightd` as a generator.
pub(super) const GENERATOR: &str = "netwright-generator";

/// Units of other projects that matter to containers' networks.
pub(super) const NETWORK_MANAGER: &str = "NetworkManager.service";
pub(super) const FIREWALLD: &str = "firewalld.service";
pub(super) const NETWORKD: &str = "systemd-networkd.service";

/// Our file for NetworkManager, those for systemd-networkd, and the one for `systemd-tmpfiles`.
pub(super) const NETWORK_MANAGERS: &str = "/etc/NetworkManager/conf.d/90-netwright.conf";
const NETWORK_MANAGERS_TEXT: &str =
    include_str!("../../../../../deploy/network-manager/90-netwright.conf");
const NETWORKDS: [(&str, &str); 2] = [
    (
        "/etc/systemd/network/00-netwright.network",
        include_str!("../../../../../deploy/systemd-networkd/00-netwright.network"),
    ),
    (
        "/etc/systemd/networkd.conf.d/90-netwright.conf",
        include_str!("../../../../../deploy/systemd-networkd/90-netwright.conf"),
    ),
];
const TEMPORARY: &str = "/etc/tmpfiles.d/netwright.conf";

/// Units of the reference plugins' packages, whose socket has the path of ours.
pub(super) const OTHERS: [&str; 2] = ["cni-dhcp.socket", "cni-dhcp.service"];

/// Folders that systemd and the services make, and that go with them when they are empty.
const MADE_LATER: [&str; 5] = [
    "/etc/systemd/system/multi-user.target.wants",
    "/run/cni",
    "/run/docker/plugins",
    "/run/k8s.cni.cncf.io",
    "/var/lib/cni",
];

/// A folder for plugins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plugins {
    pub(super) dir: PathBuf,
    /// Nothing of ours is in it.
    pub(super) is_new: bool,
    /// An installation would change nothing.
    pub(super) is_done: bool,
}

/// What is on the machine.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    /// The same for people.
    pub(super) found: Vec<String>,
    pub(super) notes: Vec<String>,
    /// The folder for the executables.
    pub(super) programs: PathBuf,
    /// Whether a package has them, and units that start them.
    pub(super) is_packaged: bool,
    pub(super) plugins: Vec<Plugins>,
    /// The configuration of `netwrightd`, if there is one.
    pub(super) configuration: Option<Config>,
    /// Those of [`unit_names`].
    pub(super) units: BTreeMap<String, Unit>,
    pub(super) record: Option<Record>,
    pub(super) options: Options,
}

/// What is at the paths that matter.
#[derive(Debug, Clone, Default)]
pub(super) struct Paths {
    pub(super) here: BTreeMap<PathBuf, PathState>,
    /// Folders that do not exist, with those above them.
    pub(super) missing: BTreeSet<PathBuf>,
    /// Paths at which nothing can be written, each with the reason.
    pub(super) unwritable: BTreeMap<PathBuf, String>,
    /// Units with our names where packages put theirs.
    pub(super) packaged: Vec<PathBuf>,
    /// Folders that the installation of plugins made, and that go with it if they are empty then.
    pub(super) made: Vec<PathBuf>,
    /// Folders with an installation that is none of ours to undo.
    pub(super) remaining: Vec<PathBuf>,
}

impl Paths {
    pub(super) fn at(&self, path: &Path) -> &PathState {
        self.here.get(path).unwrap_or(&PathState::Absent)
    }

    /// Says whether another program's file is still in its place, although the record says that we
    /// keep it: then `setup` was interrupted.
    pub(super) fn is_others(&self, written: &WrittenFile) -> bool {
        let (here, kept) = (self.at(&written.path), self.at(&record::kept(&written.path)));
        written.kept
            && *here != PathState::Absent
            && !written.is(here)
            && (*kept == PathState::Absent || kept == here)
    }
}

/// What a file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    File { bytes: Arc<Vec<u8>>, mode: u32 },
    Link(PathBuf),
}

/// What is to be done with a file that another program or an administrator wrote or changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It is replaced, and kept unless it was ours.
    Program,
    /// One that was copied from `deploy` by hand is replaced and kept; another one is refused. One
    /// of ours that was changed stays.
    Unit,
    /// It stays.
    Configuration,
    /// It stays, even if it is ours and unchanged: an administrator continues from it.
    First,
}

/// A file that setup writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) content: Content,
    pub(super) digest: Digest,
    kind: Kind,
}

impl File {
    fn text(path: impl Into<PathBuf>, text: String, kind: Kind) -> Self {
        let bytes = text.into_bytes();
        let digest = Digest::of(&bytes);
        let content = Content::File { bytes: Arc::new(bytes), mode: 0o644 };
        File { path: path.into(), content, digest, kind }
    }
}

/// What a machine is to have.
#[derive(Debug)]
pub(super) struct DesiredMachine {
    pub(super) files: Vec<File>,
    /// Folders that the configuration names, each with its mode.
    pub(super) folders: Vec<(PathBuf, u32)>,
    /// The services that the configuration enables.
    services: Vec<&'static str>,
    /// Whether `netwrightd dhcp` listens where the reference's daemon does.
    takes_over: bool,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub(super) enum Step {
    InstallPlugins {
        folders: Vec<PathBuf>,
    },
    MakeFolder {
        path: PathBuf,
        #[serde(skip)]
        mode: u32,
    },
    WriteFile {
        path: PathBuf,
        /// Whether the present file of another program is kept beside it.
        keeps: bool,
        #[serde(skip)]
        content: Content,
    },
    /// A file of an earlier version; if the file of another program that it replaced is kept, that
    /// is restored.
    RemoveFile {
        path: PathBuf,
        restores: bool,
    },
    TakeOver {
        unit: String,
    },
    Reload,
    Enable {
        unit: &'static str,
    },
    Start {
        units: Vec<String>,
    },
    Restart {
        units: Vec<String>,
    },
    ReloadNetworkManager,
    SendPacket,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::InstallPlugins { folders } => {
                write!(f, "install netwright {VERSION} and its plugins in {}", all(folders))
            }
            Step::MakeFolder { path, .. } => write!(f, "make the folder {}", path.display()),
            Step::WriteFile { path, keeps, content } => {
                write!(f, "write {}", path.display())?;
                if let Content::Link(target) = content {
                    write!(f, ", a link to {}", target.display())?;
                }
                if *keeps { write!(f, ", and keep what is there") } else { Ok(()) }
            }
            Step::RemoveFile { path, restores } => {
                write!(f, "remove {}, which this version does not have", path.display())?;
                if *restores { write!(f, ", and put back what was there") } else { Ok(()) }
            }
            Step::TakeOver { unit } => write!(f, "stop and disable {unit}, in whose place ours is"),
            Step::Reload => write!(f, "have systemd read its units again"),
            Step::Enable { unit } => write!(f, "enable {unit}"),
            Step::Start { units } => write!(f, "start {}", units.join(", ")),
            Step::Restart { units } => write!(f, "restart {}", units.join(", ")),
            Step::ReloadNetworkManager => {
                write!(f, "have NetworkManager read its configuration again")
            }
            Step::SendPacket => {
                write!(f, "send packets from a new container, to its gateway and to the outside")
            }
        }
    }
}

pub(super) fn all(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ")
}

/// What will be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    pub(super) notes: Vec<String>,
    /// What is recorded of it.
    pub(super) record: Record,
}

/// Returns what this machine is to have. `own` and `daemon` are the executables.
pub(super) fn wanted(facts: &Facts, own: &Arc<Vec<u8>>, daemon: &Arc<Vec<u8>>) -> DesiredMachine {
    let config = facts.configuration.clone().unwrap_or_else(|| first_configuration(facts));
    let mut files = Vec::new();
    // A package replaces its own executables and units, and removes them.
    if !facts.is_packaged {
        files.extend(programs(facts, own, daemon));
    }
    let text = show::first(&config);
    files.push(File::text(load::FILE, text, Kind::First));
    if !facts.is_packaged {
        files.extend(systemds(&facts.programs));
    }
    if facts.units.get(NETWORK_MANAGER).is_some_and(|unit| unit.is_loaded) {
        let text = NETWORK_MANAGERS_TEXT.to_owned();
        files.push(File::text(NETWORK_MANAGERS, text, Kind::Configuration));
    }
    // systemd's package has it on every machine.
    if is_in_use(facts, NETWORKD) {
        let texts = NETWORKDS.map(|(path, text)| (path, text.to_owned()));
        files.extend(texts.map(|(path, text)| File::text(path, text, Kind::Configuration)));
    }
    let services: Vec<&'static str> =
        keys::services().filter(|service| keys::is_enabled(&config, service)).collect();
    let folders = folders(&config, &services);
    // The next boot empties /run.
    let lines = folders.iter().filter(|(path, _)| path.starts_with("/run"));
    let lines: Vec<String> = lines
        .map(|(path, mode)| format!("d {} {mode:04o} root root -\n", units::quoted(path)))
        .collect();
    if !lines.is_empty() {
        let text =
            format!("# Folders that {} names for its services.\n{}", load::FILE, lines.concat());
        files.push(File::text(TEMPORARY, text, Kind::Configuration));
    }
    let takes_over = config.dhcp.enable
        && units::socket("dhcp", &config) == units::socket("dhcp", &Config::default());
    DesiredMachine { files, folders, services, takes_over }
}

/// The executables. In a folder of plugins they are beside the plugins.
fn programs(facts: &Facts, own: &Arc<Vec<u8>>, daemon: &Arc<Vec<u8>>) -> Vec<File> {
    if facts.plugins.iter().any(|plugins| plugins.dir == facts.programs) {
        return Vec::new();
    }
    let file = |(name, bytes): (&str, &Arc<Vec<u8>>)| File {
        path: facts.programs.join(name),
        digest: Digest::of(bytes),
        content: Content::File { bytes: Arc::clone(bytes), mode: 0o755 },
        kind: Kind::Program,
    };
    [("netwright", own), (DAEMON, daemon)].map(file).into()
}

/// The units, and the link by which systemd calls the generator.
fn systemds(programs: &Path) -> Vec<File> {
    let folder = Path::new(UNITS);
    let unit = |(name, text): (String, String)| File::text(folder.join(name), text, Kind::Unit);
    let mut files: Vec<File> = units::all(programs).into_iter().map(unit).collect();
    let target = programs.join(DAEMON);
    files.push(File {
        path: Path::new(GENERATORS).join(GENERATOR),
        digest: Digest::Link(target.clone()),
        content: Content::Link(target),
        kind: Kind::Unit,
    });
    files
}

/// The configuration of a machine that has none: what needs no decision is enabled.
fn first_configuration(facts: &Facts) -> Config {
    let mut config = Config::default();
    config.collect.enable = true;
    config.repair.enable = true;
    config.dhcp.enable = OTHERS.iter().any(|unit| is_in_use(facts, unit));
    let paths = [
        &mut config.collect.path,
        &mut config.docker.pluginpath,
        &mut config.multinet.path,
        &mut config.repair.path,
    ];
    for path in paths {
        let usual = path.clone();
        let others = facts.plugins.iter().map(|plugins| &plugins.dir);
        let others = others.filter(|dir| !usual.contains(dir)).cloned();
        *path = others.chain(usual.clone()).collect();
    }
    config
}

/// Says whether a file is one of those that systemd starts units by.
pub(super) fn is_unit(path: &Path) -> bool {
    path.starts_with(UNITS) || path.starts_with(GENERATORS)
}

/// Says whether a unit of others was enabled, or runs.
fn is_in_use(facts: &Facts, unit: &str) -> bool {
    facts.units.get(unit).is_some_and(|unit| unit.is_loaded && (unit.is.enabled || unit.is.active))
}

/// Returns the folders that services write because the configuration says so. systemd makes the
/// usual ones.
fn folders(config: &Config, services: &[&'static str]) -> Vec<(PathBuf, u32)> {
    let mut folders = Vec::new();
    for service in services {
        let usual = rights::configured(service, &Config::default());
        for folder in rights::configured(service, config) {
            let own = folder.starts_with("/var/lib/netwright");
            let folder = (folder, if own { 0o700 } else { 0o755 });
            if !usual.contains(&folder.0) && !folders.contains(&folder) {
                folders.push(folder);
            }
        }
    }
    folders
}

impl DesiredMachine {
    /// Returns the folders that must exist, or will.
    pub(super) fn all_folders(&self) -> BTreeSet<PathBuf> {
        let above = self.files.iter().filter_map(|file| file.path.parent());
        let named = self.folders.iter().map(|(path, _)| path.as_path());
        let later = MADE_LATER.iter().map(Path::new);
        cni::order::gather(above.chain(named).chain(later).map(Path::to_path_buf))
    }
}

/// Returns the names of all units that a plan depends on.
pub(super) fn unit_names() -> Vec<String> {
    let own = RIGHTS.iter().map(|rights| units::service(rights.service));
    let others =
        OTHERS.iter().chain(&[NETWORK_MANAGER, FIREWALLD, NETWORKD]).map(|unit| (*unit).to_owned());
    std::iter::once(units::TARGET.to_owned()).chain(own).chain(others).collect()
}

/// Decides what to do.
pub(super) fn plan(
    facts: &Facts,
    wanted: &DesiredMachine,
    paths: &Paths,
    sends_packet: bool,
) -> Result<Plan, Failure> {
    if let Some(path) = paths.packaged.first().filter(|_| !facts.is_packaged) {
        return Err(Failure::new(
            code::INVALID_CONFIG,
            format!("{} is there: a package installed Netwright's services", path.display()),
        )
        .hint("call the `netwright` of that package, or remove it first"));
    }
    let old = facts.record.as_ref();
    let nothing = Unit::default();
    let unit = |name: &str| facts.units.get(name).unwrap_or(&nothing);
    let target = unit(units::TARGET);
    let mut record = Record {
        version: VERSION.to_owned(),
        programs: facts.programs.clone(),
        options: facts.options.clone(),
        target: old.map_or(target.is, |old| old.target),
        owns_state: old.map_or_else(
            || facts.plugins.iter().all(|plugins| plugins.is_new),
            |old| old.owns_state,
        ),
        files: Vec::new(),
        ..old.cloned().unwrap_or_default()
    };
    let mut plan =
        Plan { steps: Vec::new(), notes: facts.notes.clone(), record: Record::default() };

    if facts.plugins.iter().any(|plugins| !plugins.is_done) {
        let folders = facts.plugins.iter().map(|plugins| plugins.dir.clone()).collect();
        plan.steps.push(Step::InstallPlugins { folders });
    }
    let new = facts.plugins.iter().filter(|plugins| plugins.is_new).map(|plugins| &plugins.dir);
    let new: Vec<PathBuf> = new.filter(|dir| !record.plugins.contains(dir)).cloned().collect();
    record.plugins.extend(new);

    let missing = paths.missing.iter().filter(|path| !record.folders.contains(path));
    let missing: Vec<PathBuf> = missing.cloned().collect();
    record.folders.extend(missing);
    for (path, mode) in wanted.folders.iter().filter(|(path, _)| paths.missing.contains(path)) {
        plan.steps.push(Step::MakeFolder { path: path.clone(), mode: *mode });
    }

    for file in &wanted.files {
        plan.file(file, old, &mut record, paths)?;
    }
    let wants = |path: &Path| wanted.files.iter().any(|file| file.path == path);
    for written in old.iter().flat_map(|old| &old.files).filter(|written| !wants(&written.path)) {
        let path = written.path.clone();
        let here = paths.at(&path);
        if written.is(here) {
            plan.steps.push(Step::RemoveFile { path, restores: written.kept });
        } else if *here != PathState::Absent && !paths.is_others(written) {
            plan.notes
                .push(format!("{} was changed since setup wrote it: it stays", path.display()));
        }
    }
    plan.refuse_what_cannot_be_written(&facts.programs, paths)?;

    let changes_units = plan.steps.iter().any(|step| match step {
        Step::WriteFile { path, .. } | Step::RemoveFile { path, .. } => {
            is_unit(path) || path == Path::new(load::FILE)
        }
        _ => false,
    });
    let changes_programs = plan.steps.iter().any(
        |step| matches!(step, Step::WriteFile { path, .. } if path.starts_with(&facts.programs)),
    );
    if wanted.takes_over {
        for name in OTHERS.into_iter().filter(|name| is_in_use(facts, name)) {
            plan.steps.push(Step::TakeOver { unit: name.to_owned() });
            if record.taken_over.iter().all(|taken| taken.unit != name) {
                record.taken_over.push(ForeignUnit { unit: name.to_owned(), was: unit(name).is });
            }
        }
    }
    if changes_units || !target.is_loaded || target.is_outdated {
        plan.steps.push(Step::Reload);
    }
    if !target.is.enabled {
        plan.steps.push(Step::Enable { unit: units::TARGET });
    }
    let services = wanted.services.iter().map(|service| units::service(service));
    let started: Vec<String> = std::iter::once(units::TARGET.to_owned()).chain(services).collect();
    let is_another = old.is_some_and(|old| old.version != VERSION);
    if target.is.active && (changes_units || changes_programs || is_another) {
        plan.steps.push(Step::Restart { units: started });
    } else if started.iter().any(|name| !unit(name).is.active) {
        plan.steps.push(Step::Start { units: started });
    }
    let is_network_managers = |step: &Step| {
        matches!(step, Step::WriteFile { path, .. } | Step::RemoveFile { path, .. }
            if path == Path::new(NETWORK_MANAGERS))
    };
    if plan.steps.iter().any(is_network_managers) && unit(NETWORK_MANAGER).is.active {
        plan.steps.push(Step::ReloadNetworkManager);
    }
    let is_networkds = |step: &Step| {
        matches!(step, Step::WriteFile { path, .. } | Step::RemoveFile { path, .. }
            if NETWORKDS.iter().any(|(of, _)| path == Path::new(of)))
    };
    if plan.steps.iter().any(is_networkds) && unit(NETWORKD).is.active {
        // The administrator decides whether to restart it: it configures the machine's links.
        plan.notes.push(
            "systemd-networkd reads its files when it starts: systemctl restart systemd-networkd"
                .to_owned(),
        );
    }
    if sends_packet && !plan.steps.is_empty() {
        plan.steps.push(Step::SendPacket);
    }
    if wanted.services.is_empty() {
        plan.notes.push(format!("{} enables no service", load::FILE));
    }
    plan.record = record;
    Ok(plan)
}

/// What becomes of a file.
enum Decision {
    Write { keeps: bool },
    IsThere,
    Stays,
}

impl Plan {
    /// Decides about one file.
    fn file(
        &mut self,
        file: &File,
        old: Option<&Record>,
        record: &mut Record,
        paths: &Paths,
    ) -> Result<(), Failure> {
        let path = &file.path;
        let here = paths.at(path);
        let recorded = old.and_then(|old| old.of_file(path));
        let decision = match here {
            PathState::Absent => Decision::Write { keeps: false },
            PathState::Other => {
                return Err(Failure::new(
                    code::INVALID_CONFIG,
                    format!("{} is not a file, and setup would write one", path.display()),
                )
                .hint("move it away"));
            }
            here if here.holds(&file.digest) => Decision::IsThere,
            PathState::There { by_hand, .. } => match (file.kind, recorded) {
                (Kind::First, _) => Decision::Stays,
                (_, Some(written)) if written.is(here) => Decision::Write { keeps: false },
                (_, Some(written)) if paths.is_others(written) => Decision::Write { keeps: true },
                (Kind::Program, written) => Decision::Write { keeps: written.is_none() },
                (Kind::Unit, None) if *by_hand => Decision::Write { keeps: true },
                (Kind::Unit, None) => {
                    return Err(Failure::new(
                        code::INVALID_CONFIG,
                        format!("{} is there, and it is not Netwright's", path.display()),
                    )
                    .hint("move it away, if it is not needed"));
                }
                (Kind::Unit | Kind::Configuration, _) => Decision::Stays,
            },
        };
        let kept = recorded.is_some_and(|written| written.kept);
        let now = |kept| WrittenFile::new(path, file.digest.clone(), kept);
        match decision {
            Decision::Write { keeps } => {
                let content = file.content.clone();
                self.steps.push(Step::WriteFile { path: path.clone(), keeps, content });
                record.files.push(now(kept || keeps));
            }
            Decision::IsThere => record.files.extend(recorded.map(|_| now(kept))),
            Decision::Stays => {
                record.files.extend(recorded.cloned());
                let why = match recorded {
                    Some(_) => "was changed since setup wrote it",
                    None => "is not setup's",
                };
                if file.kind != Kind::First {
                    self.notes.push(format!("{} {why}: it stays as it is", path.display()));
                }
            }
        }
        Ok(())
    }

    /// Refuses before anything is changed.
    fn refuse_what_cannot_be_written(&self, programs: &Path, paths: &Paths) -> Result<(), Failure> {
        for step in &self.steps {
            let (Step::WriteFile { path, .. }
            | Step::RemoveFile { path, .. }
            | Step::MakeFolder { path, .. }) = step
            else {
                continue;
            };
            let Some(why) = paths.unwritable.get(path) else { continue };
            let failure =
                Failure::new(code::IO_FAILURE, format!("{} cannot be written", path.display()))
                    .because(why);
            return Err(match path.starts_with(programs) {
                true => failure.hint("choose another folder with --program-dir"),
                false => failure,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::super::record::UnitState;
    use super::*;

    fn loaded(name: &str, enabled: bool, active: bool) -> (String, Unit) {
        let unit = Unit {
            name: name.to_owned(),
            is_loaded: true,
            is: UnitState { enabled, active },
            ..Unit::default()
        };
        (name.to_owned(), unit)
    }

    /// A machine with one runtime, and nothing of ours.
    fn machine() -> Facts {
        let dir = PathBuf::from("/usr/lib/cni");
        Facts {
            programs: units::PROGRAMS.into(),
            plugins: vec![Plugins { dir, is_new: true, is_done: false }],
            ..Facts::default()
        }
    }

    fn wants(facts: &Facts) -> DesiredMachine {
        wanted(facts, &Arc::new(b"netwright".to_vec()), &Arc::new(b"netwrightd".to_vec()))
    }

    /// The paths of a machine on which the folders of systemd are.
    fn fresh(wanted: &DesiredMachine) -> Paths {
        let new = wanted.all_folders().into_iter();
        let is_there = |dir: &PathBuf| {
            [UNITS, GENERATORS, units::PROGRAMS, "/etc"].iter().any(|is| dir == Path::new(is))
        };
        Paths { missing: new.filter(|dir| !is_there(dir)).collect(), ..Paths::default() }
    }

    fn planned(facts: &Facts, paths: &Paths) -> Result<Plan, Failure> {
        plan(facts, &wants(facts), paths, true)
    }

    /// What the machine is once a plan is done.
    fn done(facts: &Facts, paths: &Paths, plan: &Plan) -> (Facts, Paths) {
        let first = first_configuration(facts);
        let (mut facts, mut paths) = (facts.clone(), paths.clone());
        facts.configuration.get_or_insert(first);
        for step in &plan.steps {
            match step {
                Step::WriteFile { path, content, keeps } => {
                    let digest = match content {
                        Content::File { bytes, .. } => Digest::of(bytes),
                        Content::Link(target) => Digest::Link(target.clone()),
                    };
                    if *keeps {
                        let here = paths.here[path].clone();
                        paths.here.insert(record::kept(path), here);
                    }
                    let here = PathState::There { content: digest, by_hand: true };
                    paths.here.insert(path.clone(), here);
                }
                Step::RemoveFile { path, .. } => {
                    paths.here.insert(path.clone(), PathState::Absent);
                }
                Step::TakeOver { unit } => {
                    facts.units.get_mut(unit).unwrap().is = UnitState::default();
                }
                Step::Start { units } | Step::Restart { units } => {
                    facts.units.extend(units.iter().map(|unit| loaded(unit, true, true)));
                }
                _ => {}
            }
        }
        for plugins in &mut facts.plugins {
            *plugins = Plugins { is_new: false, is_done: true, ..plugins.clone() };
        }
        paths.missing.clear();
        facts.record = Some(plan.record.clone());
        (facts, paths)
    }

    #[track_caller]
    fn check(facts: &Facts, paths: &Paths, expected: &Expect) {
        let text = match planned(facts, paths) {
            Ok(plan) => {
                let steps = plan.steps.iter().map(|step| format!("{step}\n"));
                steps.chain(plan.notes.iter().map(|note| format!("note: {note}\n"))).collect()
            }
            Err(failure) => failure.text(),
        };
        expected.assert_eq(&text);
    }

    #[test]
    fn a_fresh_machine_gets_everything() {
        let facts = machine();
        let paths = fresh(&wants(&facts));
        check(
            &facts,
            &paths,
            &expect![[r#"
                install netwright 0.1.0 and its plugins in /usr/lib/cni
                write /usr/local/bin/netwright
                write /usr/local/bin/netwrightd
                write /etc/netwright/netwrightd.toml
                write /etc/systemd/system/netwright.target
                write /etc/systemd/system/netwrightd@.service
                write /etc/systemd/system/netwrightd@dhcp.socket
                write /etc/systemd/system/netwrightd@docker.socket
                write /etc/systemd/system/netwrightd@ipam.socket
                write /etc/systemd/system/netwright-ipam-user.service
                write /etc/systemd/system/netwrightd@collect.service.d/10-netwright.conf
                write /etc/systemd/system/netwrightd@dhcp.service.d/10-netwright.conf
                write /etc/systemd/system/netwrightd@docker.service.d/10-netwright.conf
                write /etc/systemd/system/netwrightd@ipam.service.d/10-netwright.conf
                write /etc/systemd/system/netwrightd@multinet.service.d/10-netwright.conf
                write /etc/systemd/system/netwrightd@policy.service.d/10-netwright.conf
                write /etc/systemd/system/netwrightd@repair.service.d/10-netwright.conf
                write /etc/systemd/system/netwrightd@routing.service.d/10-netwright.conf
                write /etc/systemd/system/netwrightd@agent.service.d/10-netwright.conf
                write /etc/systemd/system-generators/netwright-generator, a link to /usr/local/bin/netwrightd
                have systemd read its units again
                enable netwright.target
                start netwright.target, netwrightd@collect.service, netwrightd@repair.service
                send packets from a new container, to its gateway and to the outside
            "#]],
        );
    }

    #[test]
    fn a_package_keeps_its_executables_and_units() {
        let mut facts = machine();
        (facts.programs, facts.is_packaged) = ("/usr/bin".into(), true);
        let mut paths = fresh(&wants(&facts));
        paths.packaged.push("/usr/lib/systemd/system/netwright.target".into());
        check(
            &facts,
            &paths,
            &expect![[r#"
                install netwright 0.1.0 and its plugins in /usr/lib/cni
                write /etc/netwright/netwrightd.toml
                have systemd read its units again
                enable netwright.target
                start netwright.target, netwrightd@collect.service, netwrightd@repair.service
                send packets from a new container, to its gateway and to the outside
            "#]],
        );
        let first = planned(&facts, &paths).unwrap();
        let (facts, paths) = done(&facts, &paths, &first);
        assert_eq!(planned(&facts, &paths).unwrap().steps, []);
        // Files that an earlier setup wrote are not in the way.
        let mut before = machine();
        before.plugins = facts.plugins.clone();
        let fresh = fresh(&wants(&before));
        let by_hand = planned(&before, &fresh).unwrap();
        let (mut after, paths) = done(&before, &fresh, &by_hand);
        (after.programs, after.is_packaged) = ("/usr/bin".into(), true);
        let steps = planned(&after, &paths).unwrap().steps;
        let removed = |path: &str| {
            let step = Step::RemoveFile { path: path.into(), restores: false };
            steps.contains(&step)
        };
        assert!(
            removed("/usr/local/bin/netwright") && removed("/etc/systemd/system/netwright.target")
        );
    }

    #[test]
    fn a_second_setup_does_nothing() {
        let facts = machine();
        let paths = fresh(&wants(&facts));
        let first = planned(&facts, &paths).unwrap();
        let (facts, paths) = done(&facts, &paths, &first);
        let second = planned(&facts, &paths).unwrap();
        assert_eq!((second.steps, second.notes), (Vec::new(), Vec::new()));
        assert_eq!(second.record, first.record);
    }

    /// What a runtime, NetworkManager and the reference's packages have to do with it.
    #[test]
    fn what_others_have_is_respected() {
        let mut facts = machine();
        facts.plugins[0].dir = "/var/lib/rancher/k3s/data/cni".into();
        facts.units.extend([
            loaded(NETWORK_MANAGER, true, true),
            loaded("cni-dhcp.socket", true, true),
            loaded("cni-dhcp.service", false, false),
        ]);
        let mut paths = fresh(&wants(&facts));
        paths.here.insert(
            NETWORK_MANAGERS.into(),
            PathState::There { content: Digest::of(b"another's"), by_hand: false },
        );
        let plan = planned(&facts, &paths).unwrap();
        let of_others: Vec<String> = plan
            .steps
            .iter()
            .map(ToString::to_string)
            .filter(|step| step.contains("cni-dhcp") || step.contains("NetworkManager"))
            .collect();
        assert_eq!(of_others, ["stop and disable cni-dhcp.socket, in whose place ours is"]);
        assert_eq!(
            plan.notes,
            ["/etc/NetworkManager/conf.d/90-netwright.conf is not setup's: it stays as it is"]
        );
        let was = UnitState { enabled: true, active: true };
        assert_eq!(
            plan.record.taken_over,
            [ForeignUnit { unit: "cni-dhcp.socket".to_owned(), was }]
        );
        let config = first_configuration(&facts);
        assert!(config.dhcp.enable);
        assert_eq!(
            config.repair.path[..2],
            ["/var/lib/rancher/k3s/data/cni", "/opt/cni/bin"].map(PathBuf::from)
        );
        // A package that is upgraded may start it again; what it was first is what counts.
        let (mut facts, paths) = done(&facts, &paths, &plan);
        facts.units.extend([loaded("cni-dhcp.socket", false, true)]);
        let again = planned(&facts, &paths).unwrap();
        assert_eq!(
            again.steps.first(),
            plan.steps.iter().find(|step| matches!(step, Step::TakeOver { .. }))
        );
        assert_eq!(again.record, plan.record);
        // An administrator who does not want our daemon keeps theirs.
        facts.configuration = Some(Config::default());
        let kept = planned(&facts, &paths).unwrap();
        assert!(!kept.steps.iter().any(|step| matches!(step, Step::TakeOver { .. })));
    }

    /// Where systemd-networkd is in use, it leaves our links and routes alone.
    #[test]
    fn systemd_networkd_gets_its_files() {
        let of_networkd = |unit| {
            let mut facts = machine();
            facts.units.extend([unit]);
            let plan = planned(&facts, &fresh(&wants(&facts))).unwrap();
            let steps = plan.steps.iter().map(ToString::to_string);
            let steps: Vec<String> = steps.filter(|step| step.contains("/network")).collect();
            (steps, plan.notes)
        };
        let files = [
            "write /etc/systemd/network/00-netwright.network",
            "write /etc/systemd/networkd.conf.d/90-netwright.conf",
        ];
        let note =
            "systemd-networkd reads its files when it starts: systemctl restart systemd-networkd";
        let (steps, notes) = of_networkd(loaded(NETWORKD, true, true));
        assert_eq!(
            (&steps[..], &notes[..]),
            (&files.map(str::to_owned)[..], &[note.to_owned()][..])
        );
        let (steps, notes) = of_networkd(loaded(NETWORKD, true, false));
        assert_eq!((&steps[..], notes.len()), (&files.map(str::to_owned)[..], 0));
        assert_eq!(of_networkd(loaded(NETWORKD, false, false)).0, Vec::<String>::new());
        // Its files are not units: they restart nothing of ours.
        let facts = machine();
        let paths = fresh(&wants(&facts));
        let first = planned(&facts, &paths).unwrap();
        let (mut facts, paths) = done(&facts, &paths, &first);
        facts.units.extend([loaded(NETWORKD, true, false)]);
        let steps: Vec<String> =
            planned(&facts, &paths).unwrap().steps.iter().map(ToString::to_string).collect();
        assert_eq!(
            steps,
            [
                files[0],
                files[1],
                "send packets from a new container, to its gateway and to the outside",
            ]
        );
    }

    #[test]
    fn a_configuration_names_folders() {
        let mut facts = machine();
        let mut config = Config::default();
        config.collect.enable = true;
        config.collect.cache = vec!["/var/lib/cni".into(), "/var/lib/other".into()];
        config.ipam.enable = true;
        config.ipam.socketpath = "/run/other/ipam.sock".into();
        config.ipam.state = Some("/var/lib/netwright/blocks".into());
        config.multinet.conflist = Some("/etc/not-enabled/x.conflist".into());
        facts.configuration = Some(config);
        let wanted = wants(&facts);
        let folders: Vec<String> = wanted
            .folders
            .iter()
            .map(|(path, mode)| format!("{} {mode:o}", path.display()))
            .collect();
        assert_eq!(
            folders,
            ["/var/lib/other 755", "/run/other 755", "/var/lib/netwright/blocks 700"]
        );
        let file = wanted.files.iter().find(|file| file.path == Path::new(TEMPORARY)).unwrap();
        let Content::File { bytes, .. } = &file.content else { panic!("{file:?}") };
        expect![[r#"
            # Folders that /etc/netwright/netwrightd.toml names for its services.
            d "/run/other" 0755 root root -
        "#]]
        .assert_eq(std::str::from_utf8(bytes).unwrap());
        let made = planned(&facts, &fresh(&wanted)).unwrap();
        let made = made.steps.iter().filter(|step| matches!(step, Step::MakeFolder { .. }));
        assert_eq!(made.count(), 3);
    }

    /// An upgrade replaces what setup wrote, and nothing that an administrator changed since.
    #[test]
    fn an_upgrade_replaces_its_own_files_only() {
        let facts = machine();
        let paths = fresh(&wants(&facts));
        let first = planned(&facts, &paths).unwrap();
        let (mut facts, mut paths) = done(&facts, &paths, &first);
        // As an older version would have left it.
        let older = |path: &str, paths: &mut Paths, record: &mut Record| {
            let content = Digest::of(path.as_bytes());
            paths
                .here
                .insert(path.into(), PathState::There { content: content.clone(), by_hand: true });
            match record.files.iter_mut().find(|file| file.path == Path::new(path)) {
                Some(file) => file.content = content,
                None => record.files.push(WrittenFile::new(Path::new(path), content, false)),
            }
        };
        // Interrupted between two files.
        let mut record = facts.record.clone().unwrap();
        older("/usr/local/bin/netwright", &mut paths, &mut record);
        facts.record = facts.record.map(|new| new.over(Some(&record)));
        let steps = planned(&facts, &paths).unwrap().steps;
        assert_eq!(steps[0].to_string(), "write /usr/local/bin/netwright");
        let (mut facts, mut paths) = done(&facts, &paths, &planned(&facts, &paths).unwrap());
        let record = facts.record.as_mut().unwrap();
        record.version = "0.0.9".to_owned();
        older("/usr/local/bin/netwrightd", &mut paths, record);
        older("/etc/systemd/system/netwright.target", &mut paths, record);
        older("/etc/systemd/system/netwrightd@old.socket", &mut paths, record);
        let edited = PathState::There { content: Digest::of(b"edited"), by_hand: true };
        paths.here.insert("/etc/systemd/system/netwrightd@dhcp.socket".into(), edited.clone());
        paths.here.insert(load::FILE.into(), edited);
        check(
            &facts,
            &paths,
            &expect![[r#"
            write /usr/local/bin/netwrightd
            write /etc/systemd/system/netwright.target
            remove /etc/systemd/system/netwrightd@old.socket, which this version does not have
            have systemd read its units again
            restart netwright.target, netwrightd@collect.service, netwrightd@repair.service
            send packets from a new container, to its gateway and to the outside
            note: /etc/systemd/system/netwrightd@dhcp.socket was changed since setup wrote it: it stays as it is
        "#]],
        );
        let plan = planned(&facts, &paths).unwrap();
        let content = Digest::of(b"netwrightd");
        let written = plan.record.of_file(Path::new("/usr/local/bin/netwrightd"));
        assert_eq!(written.map(|written| &written.content), Some(&content));
        assert!(
            plan.record.of_file(Path::new("/etc/systemd/system/netwrightd@old.socket")).is_none()
        );
        let (facts, paths) = done(&facts, &paths, &plan);
        check(
            &facts,
            &paths,
            &expect![[r#"
            note: /etc/systemd/system/netwrightd@dhcp.socket was changed since setup wrote it: it stays as it is
        "#]],
        );
    }

    /// Units that an administrator copied, and programs of other packages, are kept and given back.
    #[test]
    fn what_is_replaced_is_kept() {
        let mut facts = machine();
        let mut paths = fresh(&wants(&facts));
        facts.units.extend([loaded(units::TARGET, true, true)]);
        for (path, by_hand) in
            [("/usr/local/bin/netwright", false), ("/etc/systemd/system/netwright.target", true)]
        {
            let content = Digest::of(b"another");
            paths.here.insert(path.into(), PathState::There { content, by_hand });
        }
        let plan = planned(&facts, &paths).unwrap();
        let kept: Vec<String> = plan
            .steps
            .iter()
            .map(ToString::to_string)
            .filter(|step| step.contains("keep"))
            .collect();
        assert_eq!(
            kept,
            [
                "write /usr/local/bin/netwright, and keep what is there",
                "write /etc/systemd/system/netwright.target, and keep what is there",
            ]
        );
        assert!(plan.steps.iter().any(|step| matches!(step, Step::Restart { .. })));
        assert_eq!(plan.record.target, UnitState { enabled: true, active: true });
        // Interrupted between the two: the record exists, and the file still belongs to the other
        // program.
        let theirs = paths.here.clone();
        let (facts, mut paths) = done(&facts, &paths, &plan);
        paths.here.extend(theirs);
        let keeps = |paths: &Paths| {
            let plan = planned(&facts, paths).unwrap();
            let steps = plan.steps.iter().map(ToString::to_string);
            let kept: Vec<String> = steps.filter(|step| step.contains("keep")).collect();
            (kept, plan.record.files.iter().filter(|file| file.kept).count())
        };
        assert_eq!(keeps(&paths), (kept.clone(), 2));
        // Interrupted earlier: no copy of theirs was made yet.
        paths.here.retain(|path, _| !path.to_string_lossy().ends_with("-kept"));
        assert_eq!(keeps(&paths), (kept, 2));
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let facts = machine();
        let usual = fresh(&wants(&facts));
        let with = |change: &dyn Fn(&mut Paths)| {
            let mut paths = usual.clone();
            change(&mut paths);
            planned(&facts, &paths).unwrap_err().text()
        };
        let foreign = PathState::There { content: Digest::of(b"x"), by_hand: false };
        let unit = |here: &PathState, paths: &mut Paths| {
            paths.here.insert("/etc/systemd/system/netwrightd@.service".into(), here.clone());
        };
        expect![[r#"
            error: /etc/systemd/system/netwrightd@.service is there, and it is not Netwright's
            hint: move it away, if it is not needed
        "#]]
        .assert_eq(&with(&|paths| unit(&foreign, paths)));
        expect![[r#"
            error: /etc/systemd/system/netwrightd@.service is not a file, and setup would write one
            hint: move it away
        "#]]
        .assert_eq(&with(&|paths| unit(&PathState::Other, paths)));
        expect![[r#"
            error: /usr/lib/systemd/system/netwright.target is there: a package installed Netwright's services
            hint: call the `netwright` of that package, or remove it first
        "#]].assert_eq(&with(&|paths| {
            paths.packaged.push("/usr/lib/systemd/system/netwright.target".into());
        }));
        let why = "/usr/local/bin: Read-only file system (os error 30)".to_owned();
        expect![[r#"
            error: /usr/local/bin/netwright cannot be written
            cause: /usr/local/bin: Read-only file system
            hint: what the message names is mounted read-only: mount it writable
            hint: choose another folder with --program-dir
        "#]]
        .assert_eq(&with(&|paths| {
            paths.unwritable.insert("/usr/local/bin/netwright".into(), why.clone());
        }));
    }
}
