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

use super::record::{self, Digest, Here, Options, Record, TakenOver, Written};
use super::systemctl::Unit;
use crate::VERSION;
use crate::daemon_process::DAEMON;
use crate::failure::Failure;

/// The folders of systemd for what an administrator adds.
const UNITS: &str = "/etc/systemd/system";
const GENERATORS: &str = "/etc/systemd/system-generators";

/// The name under which systemd calls `netwrightd` as a generator.
const GENERATOR: &str = "netwright-generator";

/// Units of other projects that containers' networks have to do with.
pub(super) const NETWORK_MANAGER: &str = "NetworkManager.service";
pub(super) const FIREWALLD: &str = "firewalld.service";

/// Our file for NetworkManager, and the one for `systemd-tmpfiles`.
pub(super) const NETWORK_MANAGERS: &str = "/etc/NetworkManager/conf.d/90-netwright.conf";
const NETWORK_MANAGERS_TEXT: &str =
    include_str!("../../../../../deploy/network-manager/90-netwright.conf");
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
    pub(super) here: BTreeMap<PathBuf, Here>,
    /// Folders that do not exist, with those above them.
    pub(super) missing: BTreeSet<PathBuf>,
    /// Paths at which nothing can be written, each with the reason.
    pub(super) unwritable: BTreeMap<PathBuf, String>,
    /// Units with our names where packages put theirs.
    pub(super) packaged: Vec<PathBuf>,
}

impl Paths {
    /// Says whether a path has the very file that is kept for it.
    fn is_kept(&self, path: &Path) -> bool {
        let here = self.here.get(path);
        here.is_some() && here == self.here.get(&record::kept(path))
    }
}

/// What a file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    File { bytes: Arc<Vec<u8>>, mode: u32 },
    Link(PathBuf),
}

/// What is to be done with a file that somebody else wrote or changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It is replaced, and kept unless it was ours.
    Program,
    /// One that was copied from `deploy` by hand is replaced and kept; another one is refused. One
    /// of ours that was changed stays.
    Unit,
    /// It stays.
    Configuration,
    /// It stays, even if it is ours and unchanged: a person goes on from it.
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
pub(super) struct Wanted {
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
        /// Whether the file of another that is there is kept beside it.
        keeps: bool,
        #[serde(skip)]
        content: Content,
    },
    /// A file of an earlier version, in whose place another's is put back if one is kept.
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
pub(super) fn wanted(facts: &Facts, own: &Arc<Vec<u8>>, daemon: &Arc<Vec<u8>>) -> Wanted {
    let config = facts.configuration.clone().unwrap_or_else(|| first_configuration(facts));
    let mut files = Vec::new();
    // In a folder of plugins they are beside the plugins.
    if facts.plugins.iter().all(|plugins| plugins.dir != facts.programs) {
        for (name, bytes) in [("netwright", own), (DAEMON, daemon)] {
            files.push(File {
                path: facts.programs.join(name),
                digest: Digest::of(bytes),
                content: Content::File { bytes: Arc::clone(bytes), mode: 0o755 },
                kind: Kind::Program,
            });
        }
    }
    let text = show::first(&config);
    files.push(File::text(load::FILE, text, Kind::First));
    let folder = Path::new(UNITS);
    let systemds = units::all(&facts.programs).into_iter();
    files.extend(systemds.map(|(name, text)| File::text(folder.join(name), text, Kind::Unit)));
    let target = facts.programs.join(DAEMON);
    files.push(File {
        path: Path::new(GENERATORS).join(GENERATOR),
        digest: Digest::Link(target.clone()),
        content: Content::Link(target),
        kind: Kind::Unit,
    });
    if facts.units.get(NETWORK_MANAGER).is_some_and(|unit| unit.is_loaded) {
        let text = NETWORK_MANAGERS_TEXT.to_owned();
        files.push(File::text(NETWORK_MANAGERS, text, Kind::Configuration));
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
        let text = format!("# Folders that {} names for its services.\n{}", load::FILE, lines.concat());
        files.push(File::text(TEMPORARY, text, Kind::Configuration));
    }
    let takes_over = config.dhcp.enable
        && units::socket("dhcp", &config) == units::socket("dhcp", &Config::default());
    Wanted { files, folders, services, takes_over }
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

impl Wanted {
    /// Returns the folders that must exist, or will.
    pub(super) fn all_folders(&self) -> BTreeSet<PathBuf> {
        let above = self.files.iter().filter_map(|file| file.path.parent());
        let named = self.folders.iter().map(|(path, _)| path.as_path());
        above.chain(named).chain(MADE_LATER.iter().map(Path::new)).map(Path::to_path_buf).collect()
    }
}

/// Returns the names of all units that a plan depends on.
pub(super) fn unit_names() -> Vec<String> {
    let own = RIGHTS.iter().map(|rights| units::service(rights.service));
    let others = OTHERS.iter().chain(&[NETWORK_MANAGER, FIREWALLD]).map(|unit| (*unit).to_owned());
    std::iter::once(units::TARGET.to_owned()).chain(own).chain(others).collect()
}

/// Decides what to do.
pub(super) fn plan(
    facts: &Facts,
    wanted: &Wanted,
    paths: &Paths,
    sends_packet: bool,
) -> Result<Plan, Failure> {
    if let Some(path) = paths.packaged.first() {
        return Err(Failure::new(
            code::INVALID_CONFIG,
            format!("{} is there: a package installed Netwright's services", path.display()),
        )
        .hint("remove that package first, or use its units: systemctl enable --now netwright.target"));
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
    let mut plan = Plan { steps: Vec::new(), notes: facts.notes.clone(), record: Record::default() };

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
        if paths.here.get(&path).is_some_and(|here| here.holds(&written.content)) {
            plan.steps.push(Step::RemoveFile { path, restores: written.kept });
        } else if paths.here.get(&path).is_some_and(|here| *here != Here::Absent) {
            plan.notes.push(format!("{} was changed since setup wrote it: it stays", path.display()));
        }
    }
    plan.refuse_what_cannot_be_written(&facts.programs, paths)?;

    let changes_units = plan.steps.iter().any(|step| match step {
        Step::WriteFile { path, .. } | Step::RemoveFile { path, .. } => {
            path.starts_with("/etc/systemd") || path == Path::new(load::FILE)
        }
        _ => false,
    });
    let changes_programs = plan.steps.iter().any(|step| {
        matches!(step, Step::WriteFile { path, .. } if path.starts_with(&facts.programs))
    });
    if wanted.takes_over {
        for name in OTHERS.into_iter().filter(|name| is_in_use(facts, name)) {
            plan.steps.push(Step::TakeOver { unit: name.to_owned() });
            if record.taken_over.iter().all(|taken| taken.unit != name) {
                record.taken_over.push(TakenOver { unit: name.to_owned(), was: unit(name).is });
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
    if plan.steps.iter().any(is_network_managers)
        && unit(NETWORK_MANAGER).is.active
    {
        plan.steps.push(Step::ReloadNetworkManager);
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
        let here = paths.here.get(path).unwrap_or(&Here::Absent);
        let recorded = old.and_then(|old| old.of_file(path));
        let decision = match here {
            Here::Absent => Decision::Write { keeps: false },
            Here::Other => {
                return Err(Failure::new(
                    code::INVALID_CONFIG,
                    format!("{} is no file, and setup would write one", path.display()),
                )
                .hint("move it away"));
            }
            here if here.holds(&file.digest) => Decision::IsThere,
            Here::There { by_hand, .. } => match (file.kind, recorded) {
                (Kind::First, _) => Decision::Stays,
                (_, Some(written)) if here.holds(&written.content) => {
                    Decision::Write { keeps: false }
                }
                (Kind::Program, written) => Decision::Write { keeps: written.is_none() },
                // An earlier setup ended between the two.
                (Kind::Unit, Some(written)) if written.kept && paths.is_kept(path) => {
                    Decision::Write { keeps: true }
                }
                (Kind::Unit, None) if *by_hand => Decision::Write { keeps: true },
                (Kind::Unit, None) => {
                    return Err(Failure::new(
                        code::INVALID_CONFIG,
                        format!("{} is there, and it is not Netwright's", path.display()),
                    )
                    .hint("move it away, if nobody needs it"));
                }
                (Kind::Unit | Kind::Configuration, _) => Decision::Stays,
            },
        };
        let kept = recorded.is_some_and(|written| written.kept);
        let now = |kept| Written { path: path.clone(), content: file.digest.clone(), kept };
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
            let failure = Failure::new(
                code::IO_FAILURE,
                format!("{} cannot be written", path.display()),
            )
            .because(why);
            return Err(match path.starts_with(programs) {
                true => failure.hint("choose another folder with --program-dir"),
                false => failure,
            });
        }
        Ok(())
    }
}
