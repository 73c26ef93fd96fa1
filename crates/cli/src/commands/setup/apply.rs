//! Does what was planned. If a step fails, those before it are undone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use agent::units;
use cni::code;
use state::{Durability, Roots};

use super::packet;
use super::plan::{Content, Facts, NETWORK_MANAGER, Plan, Step};
use super::record::{self, Record, UnitState};
use super::systemctl::call;
use crate::args::Install;
use crate::commands::install::{self, Goods, Installation, duplicate, replace_by_link};
use crate::failure::Failure;
use crate::net::session::Session;

/// What the steps need.
pub(super) struct Work<'w> {
    pub(super) facts: &'w Facts,
    pub(super) goods: &'w Goods,
    pub(super) install: &'w Install,
    pub(super) session: &'w Session,
}

/// How to undo one step.
enum Undo {
    Plugins(Vec<Installation>),
    /// The file is new, or its old content is at the second path.
    Written(PathBuf, Option<PathBuf>),
    /// The removed file, and whether the earlier file of another program was restored in its place.
    Removed(PathBuf, bool),
    TakenOver(String, UnitState),
    Enabled,
    Started,
}

/// Does all steps; returns what the packets found.
pub(super) fn apply(plan: &Plan, work: &Work<'_>) -> Result<Vec<String>, Failure> {
    let roots = &work.session.roots;
    let created = install::missing(&record::folder(roots));
    let mut undo = Vec::new();
    let mut packets = Vec::new();
    let done = (|| {
        // Whenever it is interrupted from here on, the record says what there may be.
        plan.record.over(work.facts.record.as_ref()).write(roots)?;
        plan.steps.iter().try_for_each(|step| one(step, work, &mut undo, &mut packets))?;
        plan.record.write(roots)
    })();
    if let Err(failure) = done {
        let mut errors = roll_back(undo, plan, work);
        errors.extend(restore_record(work.facts.record.as_ref(), roots).err());
        install::remove_created(&created);
        return Err(match errors.first() {
            None if failure.to_cni().details.contains(PUT_BACK) => failure,
            None => failure.because(PUT_BACK),
            Some(error) => {
                failure.because(format_args!("putting things back failed too: {}", error.message()))
            }
        });
    }
    for undo in undo {
        match undo {
            Undo::Plugins(done) => {
                for note in install::record(&done, work.goods, roots) {
                    tracing::warn!("{note}");
                }
            }
            Undo::Written(path, _) | Undo::Removed(path, _) => {
                let _ = fs::remove_file(record::old(&path));
            }
            Undo::TakenOver(..) | Undo::Enabled | Undo::Started => {}
        }
    }
    Ok(packets)
}

const PUT_BACK: &str = "everything was put back as it was";

fn one(
    step: &Step,
    work: &Work<'_>,
    undo: &mut Vec<Undo>,
    packets: &mut Vec<String>,
) -> Result<(), Failure> {
    match step {
        Step::InstallPlugins { folders } => {
            let done = install::put(folders, work.goods, work.install, work.session)?;
            undo.push(Undo::Plugins(done));
            install::renew_tables(work.session);
        }
        Step::MakeFolder { path, mode } => {
            state::create_directory(path, *mode)
                .map_err(|error| Failure::of(code::IO_FAILURE, &error))?;
        }
        Step::WriteFile { path, keeps, content } => write(path, *keeps, content, undo)?,
        Step::RemoveFile { path, restores } => {
            let failed = |error: io::Error| io_failure("remove", path, &error);
            let _ = fs::remove_file(record::old(path));
            fs::rename(path, record::old(path)).map_err(failed)?;
            undo.push(Undo::Removed(path.clone(), *restores));
            if *restores {
                fs::rename(record::kept(path), path).map_err(failed)?;
            }
        }
        Step::TakeOver { unit } => {
            let was = work.facts.units.get(unit).map_or(UnitState::default(), |unit| unit.is);
            undo.push(Undo::TakenOver(unit.clone(), was));
            call(&["stop", unit])?;
            if was.enabled {
                call(&["--quiet", "disable", unit])?;
            }
        }
        Step::Reload => {
            call(&["daemon-reload"])?;
        }
        Step::Enable { unit } => {
            undo.push(Undo::Enabled);
            call(&["--quiet", "enable", unit])?;
        }
        Step::Start { units } => {
            undo.push(Undo::Started);
            start(units)?;
        }
        Step::Restart { units } => {
            undo.push(Undo::Started);
            call(&["restart", units::TARGET])?;
            start(units)?;
        }
        Step::ReloadNetworkManager => {
            call(&["reload", NETWORK_MANAGER])?;
        }
        Step::SendPacket => {
            let plugins = work.facts.plugins.iter().map(|plugins| plugins.dir.clone());
            let plugins: Vec<PathBuf> = plugins.collect();
            let own = work.facts.programs.join("netwright");
            *packets = packet::send(&own, &plugins, &work.session.conf_dir)?;
        }
    }
    Ok(())
}

/// Starts units, and waits until the services serve.
fn start(units: &[String]) -> Result<(), Failure> {
    let words: Vec<&str> =
        std::iter::once("start").chain(units.iter().map(String::as_str)).collect();
    let unit = units.last().map_or("", String::as_str);
    call(&words).map(drop).map_err(|failure| {
        failure.hint(format!("journalctl --unit {unit}, and of its likes, has more"))
    })
}

fn write(path: &Path, keeps: bool, content: &Content, undo: &mut Vec<Undo>) -> Result<(), Failure> {
    let failed = |error: state::FileError| Failure::of(code::IO_FAILURE, &error);
    if let Some(folder) = path.parent() {
        state::create_directory(folder, 0o755).map_err(failed)?;
    }
    let copy = match keeps {
        true => record::kept(path),
        false => record::old(path),
    };
    let had = path.symlink_metadata().is_ok();
    if had {
        let _ = fs::remove_file(&copy);
        duplicate(path, &copy).map_err(|error| io_failure("keep a copy of", path, &error))?;
    }
    undo.push(Undo::Written(path.to_owned(), had.then_some(copy)));
    match content {
        Content::File { bytes, mode } => {
            state::publish(path, bytes, *mode, Durability::Synced).map_err(failed)
        }
        Content::Link(target) => {
            let temporary = path.with_file_name(".netwright-link.tmp");
            let _ = fs::remove_file(&temporary);
            replace_by_link(path, target, &temporary)
                .map_err(|error| io_failure("link", path, &error))
        }
    }
}

/// Undoes the steps, the last first, and tries all of them; returns what failed.
fn roll_back(undo: Vec<Undo>, plan: &Plan, work: &Work<'_>) -> Vec<Failure> {
    let mut errors: Vec<Failure> = Vec::new();
    let unit = |name: &str| work.facts.units.get(name).is_some_and(|unit| unit.is.active);
    let (mut changes_units, mut restarts) = (false, false);
    for undo in undo.into_iter().rev() {
        let done = match undo {
            Undo::Plugins(done) => done.into_iter().rev().try_for_each(Installation::revert),
            Undo::Written(path, copy) => {
                changes_units |= path.starts_with("/etc");
                match copy {
                    Some(copy) => put_back(&copy, &path),
                    None => state::withdraw(&path)
                        .map(drop)
                        .map_err(|error| Failure::of(code::IO_FAILURE, &error)),
                }
            }
            Undo::Removed(path, restored) => {
                changes_units |= path.starts_with("/etc");
                let others = match restored {
                    true => put_back(&path, &record::kept(&path)),
                    false => Ok(()),
                };
                others.and_then(|()| put_back(&record::old(&path), &path))
            }
            Undo::TakenOver(unit, was) => give_back(&unit, was),
            Undo::Enabled => call(&["--quiet", "disable", units::TARGET]).map(drop),
            Undo::Started if unit(units::TARGET) => {
                restarts = true;
                Ok(())
            }
            Undo::Started => stop(),
        };
        errors.extend(done.err());
    }
    if changes_units {
        errors.extend(call(&["daemon-reload"]).err());
        if plan.steps.contains(&Step::ReloadNetworkManager) {
            errors.extend(call(&["reload", NETWORK_MANAGER]).err());
        }
    }
    if restarts {
        errors.extend(call(&["restart", units::TARGET]).err());
    }
    let before = work.facts.record.as_ref().map(|record| record.folders.as_slice());
    let new = plan.record.folders.iter().filter(|dir| !before.unwrap_or_default().contains(dir));
    install::remove_created(&new.cloned().collect::<Vec<_>>());
    errors
}

/// Renames a file to where it was.
pub(super) fn put_back(copy: &Path, path: &Path) -> Result<(), Failure> {
    fs::rename(copy, path).map_err(|error| io_failure("put back", path, &error))?;
    // Two names of one file stay when one is renamed to the other (man 2 rename).
    let _ = fs::remove_file(copy);
    Ok(())
}

/// Enables and starts another package's unit again, if it was so before.
pub(super) fn give_back(unit: &str, was: UnitState) -> Result<(), Failure> {
    if was.enabled {
        call(&["--quiet", "enable", unit])?;
    }
    if was.active {
        call(&["start", unit])?;
    }
    Ok(())
}

/// Stops all services and their sockets, and waits until they have ended.
pub(super) fn stop() -> Result<(), Failure> {
    call(&["stop", units::TARGET, "netwrightd@*.socket", "netwrightd@*.service"]).map(drop)
}

fn restore_record(old: Option<&Record>, roots: &Roots) -> Result<(), Failure> {
    match old {
        Some(old) => old.write(roots),
        None => Record::remove(roots),
    }
}

fn io_failure(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::of(code::IO_FAILURE, error).context(format_args!("{what} {}", path.display()))
}
