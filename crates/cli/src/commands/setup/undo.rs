//! `setup --undo`.

use std::fmt;
use std::path::{Path, PathBuf};

use agent::units;
use cni::code;
use serde::Serialize;
use state::Roots;

use super::apply::{give_back, put_back, stop};
use super::plan::{NETWORK_MANAGER, NETWORK_MANAGERS, Paths};
use super::record::{self, Before, Here, Record};
use super::systemctl::{Unit, call};
use crate::commands::install::{self, Removed};
use crate::failure::Failure;
use crate::net::session::Session;

/// What the service `dhcp` leaves in the folder of its socket (docs/files.md).
const LEFT_BY_DHCP: &str = "/run/cni/dhcp.sock.ready";

/// One step back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub(super) enum Back {
    Stop,
    Disable { unit: &'static str },
    RemoveFile { path: PathBuf, restores: bool },
    Reload,
    Start { unit: &'static str },
    GiveBack { unit: String, enables: bool, starts: bool },
    ReloadNetworkManager,
    RemovePlugins { folders: Vec<PathBuf> },
    RemoveState,
}

impl fmt::Display for Back {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Back::Stop => write!(f, "stop {} and the services", units::TARGET),
            Back::Disable { unit } => write!(f, "disable {unit}"),
            Back::RemoveFile { path, restores: true } => {
                write!(f, "put back what was at {}", path.display())
            }
            Back::RemoveFile { path, restores: false } => write!(f, "remove {}", path.display()),
            Back::Reload => write!(f, "have systemd read its units again"),
            Back::Start { unit } => write!(f, "start {unit}"),
            Back::GiveBack { unit, enables, starts } => match (enables, starts) {
                (true, true) => write!(f, "enable and start {unit}"),
                (true, false) => write!(f, "enable {unit}"),
                (false, _) => write!(f, "start {unit}"),
            },
            Back::ReloadNetworkManager => {
                write!(f, "have NetworkManager read its configuration again")
            }
            Back::RemovePlugins { folders } => {
                write!(f, "remove the plugins from {}", super::plan::all(folders))
            }
            Back::RemoveState => write!(f, "remove our state, and our tables of nftables"),
        }
    }
}

/// What will be undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Return {
    pub(super) steps: Vec<Back>,
    pub(super) notes: Vec<String>,
    /// What is still recorded afterwards; `None` if everything is undone.
    pub(super) rest: Option<Record>,
}

/// Decides how to undo what is recorded. `living` are the attachments of our plugins whose
/// containers are there; `network_manager` is its unit.
pub(super) fn plan(
    record: &Record,
    paths: &Paths,
    target: &Unit,
    network_manager: &Unit,
    living: &[String],
) -> Return {
    let mut plan = Return { steps: Vec::new(), notes: Vec::new(), rest: None };
    if target.is.active {
        plan.steps.push(Back::Stop);
    }
    if target.is.enabled && !record.target.enabled {
        plan.steps.push(Back::Disable { unit: units::TARGET });
    }
    let is_program = |path: &Path| path.parent() == Some(&record.programs);
    let mut changes_units = false;
    for written in record.files.iter().rev() {
        let path = &written.path;
        if !living.is_empty() && is_program(path) {
            continue;
        }
        let here = paths.here.get(path).unwrap_or(&Here::Absent);
        if here.holds(&written.content) || (*here == Here::Absent && written.kept) {
            changes_units |= path.starts_with("/etc/systemd");
            plan.steps.push(Back::RemoveFile { path: path.clone(), restores: written.kept });
        } else if *here != Here::Absent {
            let kept = match written.kept {
                true => format!("; what was there before is {}", record::kept(path).display()),
                false => String::new(),
            };
            plan.notes.push(format!(
                "{} was changed since setup wrote it: it stays{kept}",
                path.display()
            ));
        }
    }
    if changes_units {
        plan.steps.push(Back::Reload);
    }
    if changes_units && record.target.active {
        plan.steps.push(Back::Start { unit: units::TARGET });
    }
    for taken in record.taken_over.iter().rev() {
        let Before { enabled, active } = taken.was;
        let unit = taken.unit.clone();
        plan.steps.push(Back::GiveBack { unit, enables: enabled, starts: active });
    }
    let is_network_managers = |back: &Back| {
        matches!(back, Back::RemoveFile { path, .. } if path == Path::new(NETWORK_MANAGERS))
    };
    if network_manager.is.active && plan.steps.iter().any(is_network_managers) {
        plan.steps.push(Back::ReloadNetworkManager);
    }
    if living.is_empty() {
        if !record.plugins.is_empty() {
            plan.steps.push(Back::RemovePlugins { folders: record.plugins.clone() });
        }
        if record.owns_state {
            plan.steps.push(Back::RemoveState);
        }
        return plan;
    }
    plan.notes.push(format!(
        "containers are attached, and keep their networks: {}. The plugins, the executables in {} and \
         our state stay for them; once they are gone, `netwright setup --undo` removes these, too",
        install::listed(living),
        record.programs.display()
    ));
    plan.rest = Some(Record {
        files: record.files.iter().filter(|file| is_program(&file.path)).cloned().collect(),
        taken_over: Vec::new(),
        target: Before::default(),
        ..record.clone()
    });
    plan
}

/// Does the steps, also after one that failed. Returns what failed, in which case the record stays,
/// and what is left.
pub(super) fn apply(
    plan: &Return,
    record: &Record,
    roots: &Roots,
    open: &dyn Fn(bool) -> Result<Session, Failure>,
) -> (Vec<Failure>, Vec<String>) {
    let mut errors: Vec<Failure> = Vec::new();
    let mut removed = Removed::default();
    for step in &plan.steps {
        // Our state has the record, which must not go before everything else.
        if !errors.is_empty() && matches!(step, Back::RemovePlugins { .. } | Back::RemoveState) {
            break;
        }
        errors.extend(one(step, open, &mut removed).err());
        // Services must not run without their files.
        if !errors.is_empty() && *step == Back::Stop {
            break;
        }
    }
    if errors.is_empty() {
        let _ = std::fs::remove_file(LEFT_BY_DHCP);
        install::remove_created(&record.folders);
        let done = match &plan.rest {
            Some(rest) => rest.write(roots),
            None => Record::remove(roots).map(|()| {
                install::remove_created(&[roots.lib.clone(), record::folder(roots)]);
            }),
        };
        errors.extend(done.err());
    }
    (errors, removed.left)
}

fn one(
    step: &Back,
    open: &dyn Fn(bool) -> Result<Session, Failure>,
    removed: &mut Removed,
) -> Result<(), Failure> {
    match step {
        Back::Stop => stop(),
        Back::Disable { unit } => call(&["--quiet", "disable", unit]).map(drop),
        Back::RemoveFile { path, restores: true } => put_back(&record::kept(path), path),
        Back::RemoveFile { path, restores: false } => state::withdraw(path)
            .map(drop)
            .map_err(|error| Failure::of(code::IO_FAILURE, &error)),
        Back::Reload => call(&["daemon-reload"]).map(drop),
        Back::Start { unit } => call(&["start", unit]).map(drop),
        Back::GiveBack { unit, enables, starts } => {
            give_back(unit, Before { enabled: *enables, active: *starts })
        }
        Back::ReloadNetworkManager => call(&["reload", NETWORK_MANAGER]).map(drop),
        Back::RemovePlugins { folders } => {
            // If a container came meanwhile, its plugins stay.
            install::detach(false, &open(true)?, removed)?;
            folders.iter().try_for_each(|folder| install::remove_from(folder, removed))
        }
        Back::RemoveState => {
            install::remove_state(&open(false)?, removed);
            Ok(())
        }
    }
}
