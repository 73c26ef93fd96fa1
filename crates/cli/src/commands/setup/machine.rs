//! Looks at the machine, and changes nothing.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use agent::load::{self, Surroundings};
use agent::units;
use cni::code;
use rustix::fs::{Access, access};

use super::plan::{
    DesiredMachine, FIREWALLD, Facts, GENERATOR, NETWORK_MANAGER, NETWORKD, OTHERS, Paths, Plugins,
    unit_names,
};
use super::record::{self, Options, PathState, Record};
use super::systemctl::{self, Unit};
use crate::args::{Install, Setup};
use crate::commands::install::{self, Goods, InstallPlan};
use crate::failure::Failure;
use crate::net::runtimes::Runtimes;
use crate::net::session::Session;
use crate::world::World;

/// The socket of `netwrightd` that starts services itself, below our folder in `/run`.
const SUPERVISOR: &str = "agent/agent.sock";

/// Where packages put their units.
const PACKAGED: [&str; 3] =
    ["/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];

/// systemd's folder for packages.
const PACKAGES: &str = "/usr/lib/systemd";

/// Looks for everything that the plan depends on.
pub(super) fn facts(
    args: &Setup,
    install: &Install,
    goods: &Goods,
    record: Option<Record>,
    session: &Session,
    world: &World,
) -> Result<Facts, Failure> {
    let runtimes = Runtimes::find(world);
    let dirs = install::dirs(install, goods, &runtimes, world)?;
    let (used_by, mut notes) = runtimes.tell(&dirs, &|dir| goods.present(dir));
    let mut plugins = Vec::new();
    for dir in &dirs {
        let created = InstallPlan::to_create(dir, install, session);
        let planned = InstallPlan::of(dir, created, goods, install, session)?;
        for note in planned.notes() {
            if !notes.contains(note) {
                notes.push(note.clone());
            }
        }
        plugins.push(Plugins {
            dir: dir.clone(),
            is_new: planned.is_new(),
            is_done: planned.is_done(goods),
        });
    }
    let packaged = packaged(goods).filter(|_| args.program_dir.is_none());
    let is_packaged = packaged.is_some();
    let programs = match (packaged, &args.program_dir, &record) {
        (Some(dir), _, _) => dir,
        (None, Some(dir), _) => world.absolute(dir),
        (None, None, Some(record)) => record.programs.clone(),
        (None, None, None) => units::PROGRAMS.into(),
    };
    // systemd would split or replace anything else.
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+".contains(letter);
    if !programs.to_str().is_some_and(|text| text.chars().all(is_plain)) {
        return Err(Failure::usage(format!(
            "--program-dir {}: a unit takes only letters, digits and ./_-+",
            programs.display()
        )));
    }
    let loaded =
        load::load(Path::new(load::FILE), Surroundings::default()).map_err(|problems| {
            let text: Vec<String> = problems.iter().map(ToString::to_string).collect();
            Failure::new(code::INVALID_CONFIG, "the configuration of netwrightd is wrong")
                .excerpt(text.concat())
                .hint("correct it: `netwrightd config check` says the same")
        })?;
    // Each service would run twice.
    if UnixStream::connect(session.roots.run.join(SUPERVISOR)).is_ok() {
        return Err(Failure::new(code::INVALID_CONFIG, "netwrightd starts the services here")
            .hint("end it first: systemd is to start them"));
    }
    let known = systemctl::units(&unit_names())?;
    let mut found: Vec<String> = used_by;
    for (unit, what) in [
        (NETWORK_MANAGER, "NetworkManager"),
        (FIREWALLD, "firewalld"),
        (NETWORKD, "systemd-networkd"),
        (OTHERS[0], OTHERS[0]),
        (units::TARGET, units::TARGET),
    ] {
        // systemd's package has this unit on every machine.
        let counts = |known: &&Unit| {
            known.is_loaded && (unit != NETWORKD || known.is.enabled || known.is.active)
        };
        if let Some(unit) = known.iter().filter(counts).find(|known| known.name == unit) {
            let state = if unit.is.active { "active" } else { "not active" };
            found.push(format!("{what} ({state})"));
        }
    }
    if let Some(record) = &record {
        found.push(format!("an earlier setup, of version {}", record.version));
    }
    Ok(Facts {
        found,
        notes,
        programs,
        is_packaged,
        plugins,
        configuration: (!loaded.files.is_empty()).then_some(loaded.config),
        units: cni::order::gather(known.into_iter().map(|unit| (unit.name.clone(), unit))),
        options: Options {
            bin_dir: install.bin_dir.as_deref().map(|dir| world.absolute(dir)),
            also: install.also.iter().map(|name| (*name).to_owned()).collect(),
            no_config: install.no_config,
        },
        record,
    })
}

/// Returns the folder of the executables that run, if a package installed them, and units that start
/// them: those of this version, all of them, and the generator.
pub(super) fn packaged(goods: &Goods) -> Option<PathBuf> {
    let programs = goods.own.parent()?;
    let folder = Path::new(PACKAGES);
    let is_there = |(name, text): &(String, String)| {
        std::fs::read(folder.join("system").join(name)).is_ok_and(|is| is == text.as_bytes())
    };
    let generator = folder.join("system-generators").join(GENERATOR);
    let all = generator.exists() && units::all(programs).iter().all(is_there);
    all.then(|| programs.to_owned())
}

/// Returns the options about plugins: those of the command line, and for the rest those of the last
/// time.
pub(super) fn options(args: &Setup, record: Option<&Record>) -> Install {
    let mut install = args.install.clone();
    let Some(Record { options, .. }) = record else { return install };
    if install.bin_dir.is_none() {
        install.bin_dir.clone_from(&options.bin_dir);
    }
    if install.also.is_empty() {
        let named = |name: &&str| options.also.iter().any(|also| also == name);
        install.also = plugins::aliases().map(|(name, _)| name).filter(named).collect();
    }
    install.no_config |= options.no_config;
    install
}

/// Looks at the files that are to be written, and at those that were written before.
pub(super) fn paths(wanted: &DesiredMachine, record: Option<&Record>) -> Result<Paths, Failure> {
    let mut paths = Paths::default();
    let recorded = record.iter().flat_map(|record| &record.files).map(|written| &written.path);
    for path in wanted.files.iter().map(|file| &file.path).chain(recorded) {
        paths.here.insert(path.clone(), PathState::at(path)?);
        let kept = record::kept(path);
        paths.here.insert(kept.clone(), PathState::at(&kept)?);
        paths.unwritable.extend(unwritable(path));
    }
    for (folder, _) in &wanted.folders {
        paths.unwritable.extend(unwritable(folder));
    }
    for folder in wanted.all_folders() {
        paths.missing.extend(install::missing(&folder));
    }
    let names = units::all(Path::new(units::PROGRAMS)).into_iter().map(|(name, _)| name);
    for name in names.filter(|name| !name.contains('/')) {
        let packaged = PACKAGED.iter().map(|folder| Path::new(folder).join(&name));
        paths.packaged.extend(packaged.filter(|path| path.symlink_metadata().is_ok()));
    }
    Ok(paths)
}

/// Returns a path at which nothing can be written, with the reason.
fn unwritable(path: &Path) -> Option<(PathBuf, String)> {
    let above = path.ancestors().skip(1).find(|above| above.symlink_metadata().is_ok())?;
    let why = match access(above, Access::WRITE_OK) {
        Ok(()) if above.is_dir() => return None,
        Ok(()) => "it is not a folder".to_owned(),
        Err(error) => std::io::Error::from(error).to_string(),
    };
    Some((path.to_owned(), format!("{}: {why}", above.display())))
}
