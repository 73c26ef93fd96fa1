//! `setup --undo`.

use std::fmt;
use std::path::{Path, PathBuf};

use agent::units;
use cni::code;
use serde::Serialize;
use state::Roots;

use super::apply::{give_back, put_back, stop};
use super::plan::{NETWORK_MANAGER, NETWORK_MANAGERS, Paths, is_unit};
use super::record::{self, PathState, Record, UnitState};
use super::systemctl::{Unit, call};
use crate::commands::install::{self, RemovalReport};
use crate::failure::Failure;
use crate::net::session::Session;

/// What the service `dhcp` leaves beside its socket (docs/files.md).
const DHCP_READY: &str = "/run/cni/dhcp.sock.ready";
const DHCP_TODO: &str = "/run/cni/dhcp.sock.todo";

/// How many files of others in a folder are named one by one: it may be a service's state.
const OTHERS_MAX: usize = 5;

/// One step back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub(super) enum UndoStep {
    Stop,
    Disable {
        unit: &'static str,
    },
    RemoveFile {
        path: PathBuf,
        restores: bool,
    },
    Reload,
    Start {
        unit: &'static str,
    },
    RestoreUnit {
        unit: String,
        enables: bool,
        starts: bool,
    },
    ReloadNetworkManager,
    /// `leaves` says whether containers that are attached stay so.
    /// `made` are the folders that go too if they are empty then; `remaining` have an installation
    /// that nobody undoes.
    RemovePlugins {
        folders: Vec<PathBuf>,
        leaves: bool,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        made: Vec<PathBuf>,
        #[serde(skip)]
        remaining: Vec<PathBuf>,
    },
    RemoveState,
}

impl fmt::Display for UndoStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UndoStep::Stop => write!(f, "stop {} and the services", units::TARGET),
            UndoStep::Disable { unit } => write!(f, "disable {unit}"),
            UndoStep::RemoveFile { path, restores: true } => {
                write!(f, "put back what was at {}", path.display())
            }
            UndoStep::RemoveFile { path, restores: false } => {
                write!(f, "remove {}", path.display())
            }
            UndoStep::Reload => write!(f, "have systemd read its units again"),
            UndoStep::Start { unit } => write!(f, "start {unit}"),
            UndoStep::RestoreUnit { unit, enables, starts } => match (enables, starts) {
                (true, true) => write!(f, "enable and start {unit}"),
                (true, false) => write!(f, "enable {unit}"),
                (false, _) => write!(f, "start {unit}"),
            },
            UndoStep::ReloadNetworkManager => {
                write!(f, "have NetworkManager read its configuration again")
            }
            UndoStep::RemovePlugins { folders, made, .. } => {
                write!(f, "remove the plugins from {}", super::plan::all(folders))?;
                match made.as_slice() {
                    [] => Ok(()),
                    made => write!(f, ", and {} if empty then", super::plan::all(made)),
                }
            }
            UndoStep::RemoveState => write!(f, "remove our state, and our tables of nftables"),
        }
    }
}

/// What will be undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UndoPlan {
    pub(super) steps: Vec<UndoStep>,
    pub(super) notes: Vec<String>,
    /// What is still recorded afterwards; `None` if everything is undone.
    pub(super) rest: Option<Record>,
}

/// The attachments of our plugins whose containers are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LiveAttachments<'a> {
    /// What they need stays.
    Keep(&'a [String]),
    /// They stay attached, and everything else goes; a line says what stays of them.
    Leave(&'a [String], &'a str),
}

impl LiveAttachments<'_> {
    /// Says whether the plugins must stay.
    fn keeps_plugins(&self) -> bool {
        matches!(self, LiveAttachments::Keep(living) if !living.is_empty())
    }
}

/// Decides how to undo what is recorded; `network_manager` is its unit.
pub(super) fn plan(
    record: &Record,
    paths: &Paths,
    target: &Unit,
    network_manager: &Unit,
    living: LiveAttachments<'_>,
) -> UndoPlan {
    let mut plan = UndoPlan { steps: Vec::new(), notes: Vec::new(), rest: None };
    if target.is.active {
        plan.steps.push(UndoStep::Stop);
    }
    if target.is.enabled && !record.target.enabled {
        plan.steps.push(UndoStep::Disable { unit: units::TARGET });
    }
    let is_program = |path: &Path| path.parent() == Some(&record.programs);
    let mut changes_units = false;
    for written in record.files.iter().rev() {
        let path = &written.path;
        if living.keeps_plugins() && is_program(path) {
            continue;
        }
        let here = paths.at(path);
        // `setup` was interrupted before it replaced the file: at most the copy beside it is
        // removed.
        let is_others = paths.is_others(written);
        if is_others && *paths.at(&record::kept(path)) == PathState::Absent {
            continue;
        }
        if is_others || written.is(here) || (*here == PathState::Absent && written.kept) {
            changes_units |= is_unit(path);
            plan.steps.push(UndoStep::RemoveFile { path: path.clone(), restores: written.kept });
        } else if *here != PathState::Absent {
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
        plan.steps.push(UndoStep::Reload);
    }
    if changes_units && record.target.active {
        plan.steps.push(UndoStep::Start { unit: units::TARGET });
    }
    for taken in record.taken_over.iter().rev() {
        let UnitState { enabled, active } = taken.was;
        let unit = taken.unit.clone();
        plan.steps.push(UndoStep::RestoreUnit { unit, enables: enabled, starts: active });
    }
    let is_network_managers = |back: &UndoStep| matches!(back, UndoStep::RemoveFile { path, .. } if path == Path::new(NETWORK_MANAGERS));
    if network_manager.is.active && plan.steps.iter().any(is_network_managers) {
        plan.steps.push(UndoStep::ReloadNetworkManager);
    }
    let living = match living {
        LiveAttachments::Keep(living) if !living.is_empty() => living,
        of => {
            let left = match of {
                LiveAttachments::Leave(living, stays) if !living.is_empty() => Some(stays),
                _ => None,
            };
            if !record.plugins.is_empty() {
                plan.steps.push(UndoStep::RemovePlugins {
                    folders: record.plugins.clone(),
                    leaves: left.is_some(),
                    made: paths.made.clone(),
                    remaining: paths.remaining.clone(),
                });
            }
            match left {
                Some(stays) => plan.notes.push(stays.to_owned()),
                None if record.owns_state => plan.steps.push(UndoStep::RemoveState),
                None => {}
            }
            return plan;
        }
    };
    plan.notes.push(format!(
        "containers are attached, and keep their networks: {}. The plugins, the executables in {} and \
         our state stay for them; once they are gone, `netwright setup --undo` removes these, too",
        install::listed(living),
        record.programs.display()
    ));
    plan.rest = Some(Record {
        files: record.files.iter().filter(|file| is_program(&file.path)).cloned().collect(),
        taken_over: Vec::new(),
        target: UnitState::default(),
        ..record.clone()
    });
    plan
}

/// Does the steps, also after one that failed. Returns what failed, in which case the record stays,
/// and what is left.
pub(super) fn apply(
    plan: &UndoPlan,
    record: &Record,
    roots: &Roots,
    open: &dyn Fn(bool) -> Result<Session, Failure>,
) -> (Vec<Failure>, Vec<String>) {
    let mut errors: Vec<Failure> = Vec::new();
    let mut removed = RemovalReport::default();
    for step in &plan.steps {
        // Our state has the record, which must be removed last.
        if !errors.is_empty()
            && matches!(step, UndoStep::RemovePlugins { .. } | UndoStep::RemoveState)
        {
            break;
        }
        errors.extend(one(step, open, &mut removed).err());
        // Services must not run without their files.
        if !errors.is_empty() && *step == UndoStep::Stop {
            break;
        }
    }
    if errors.is_empty() {
        let _ = std::fs::remove_file(DHCP_READY);
        install::remove_created(&[DHCP_TODO.into()]);
        install::remove_created(&record.folders);
        let done = match &plan.rest {
            Some(rest) => rest.write(roots),
            None => Record::remove(roots).map(|()| {
                install::remove_created(&[roots.lib.clone(), record::folder(roots)]);
            }),
        };
        errors.extend(done.err());
    }
    let mut left: Vec<String> = removed.left.into_iter().chain(removed.attached_again).collect();
    let written: Vec<&Path> = record.files.iter().map(|file| file.path.as_path()).collect();
    for folder in &record.folders {
        let mut others = others_in(folder, &written);
        if OTHERS_MAX < others.len() {
            let count = others.len();
            others = vec![format!("{}: {count} files that setup did not write", folder.display())];
        }
        // The folder may be in another one.
        others.retain(|other| !left.contains(other));
        left.extend(others);
    }
    (errors, left)
}

/// Lists what is in a folder that setup made, and that setup did not write.
fn others_in(folder: &Path, written: &[&Path]) -> Vec<String> {
    let mut others = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let kept = written.iter().any(|written| path == **written || path == record::kept(written));
        match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => others.extend(others_in(&path, written)),
            false if kept => {}
            false => others.push(format!("{}: setup did not write it", path.display())),
        }
    }
    cni::order::sort(&mut others);
    others
}

fn one(
    step: &UndoStep,
    open: &dyn Fn(bool) -> Result<Session, Failure>,
    removed: &mut RemovalReport,
) -> Result<(), Failure> {
    match step {
        UndoStep::Stop => stop(),
        UndoStep::Disable { unit } => call(&["--quiet", "disable", unit]).map(drop),
        UndoStep::RemoveFile { path, restores: true } => put_back(&record::kept(path), path),
        UndoStep::RemoveFile { path, restores: false } => {
            state::withdraw(path).map(drop).map_err(|error| Failure::of(code::IO_FAILURE, &error))
        }
        UndoStep::Reload => call(&["daemon-reload"]).map(drop),
        UndoStep::Start { unit } => call(&["start", unit]).map(drop),
        UndoStep::RestoreUnit { unit, enables, starts } => {
            give_back(unit, UnitState { enabled: *enables, active: *starts })
        }
        UndoStep::ReloadNetworkManager => call(&["reload", NETWORK_MANAGER]).map(drop),
        UndoStep::RemovePlugins { folders, leaves, remaining, .. } => {
            let session = open(true)?;
            match leaves {
                true => install::detach_ended(&session, removed)?,
                // If a container was attached meanwhile, its plugins stay.
                false => install::detach(false, &session, removed)?,
            }
            folders.iter().try_for_each(|folder| {
                install::remove_from(folder, remaining, &session.roots, removed)
            })
        }
        UndoStep::RemoveState => {
            install::remove_state(&open(false)?, removed);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::super::record::{Digest, ForeignUnit, Options, WrittenFile};
    use super::*;

    fn there(text: &str) -> PathState {
        PathState::There { content: Digest::of(text.as_bytes()), by_hand: true }
    }

    /// A record of six files, of which two replaced another's.
    fn recorded() -> (Record, Paths) {
        let other = there("another's");
        let mut paths = Paths::default();
        let mut files = Vec::new();
        for (path, kept) in [
            ("/usr/local/bin/netwright", true),
            ("/usr/local/bin/netwrightd", false),
            ("/etc/netwright/netwrightd.toml", false),
            ("/etc/systemd/system/netwright.target", true),
            ("/etc/systemd/system/netwrightd@.service", false),
            (NETWORK_MANAGERS, false),
        ] {
            let content = Digest::of(path.as_bytes());
            paths.here.insert(path.into(), there(path));
            if kept {
                paths.here.insert(record::kept(Path::new(path)), other.clone());
            }
            files.push(WrittenFile::new(Path::new(path), content, kept));
        }
        let was = UnitState { enabled: true, active: true };
        let record = Record {
            version: "0.1.0".to_owned(),
            programs: "/usr/local/bin".into(),
            options: Options::default(),
            plugins: vec!["/usr/lib/cni".into()],
            files,
            folders: vec!["/etc/netwright".into()],
            taken_over: vec![ForeignUnit { unit: "cni-dhcp.socket".to_owned(), was }],
            target: UnitState::default(),
            owns_state: true,
        };
        (record, paths)
    }

    fn unit(enabled: bool, active: bool) -> Unit {
        Unit { is: UnitState { enabled, active }, ..Unit::default() }
    }

    #[track_caller]
    fn check(record: &Record, paths: &Paths, living: &[&str], expected: &Expect) -> UndoPlan {
        let living: Vec<String> = living.iter().map(|name| (*name).to_owned()).collect();
        let living = LiveAttachments::Keep(&living);
        let plan = plan(record, paths, &unit(true, true), &unit(true, true), living);
        let steps = plan.steps.iter().map(|step| format!("{step}\n"));
        let text: String =
            steps.chain(plan.notes.iter().map(|note| format!("note: {note}\n"))).collect();
        expected.assert_eq(&text);
        plan
    }

    #[test]
    fn everything_goes_the_way_back() {
        let (record, mut paths) = recorded();
        paths.made = ["/usr/lib", "/usr/lib/cni"].map(PathBuf::from).into();
        check(
            &record,
            &paths,
            &[],
            &expect![[r#"
            stop netwright.target and the services
            disable netwright.target
            remove /etc/NetworkManager/conf.d/90-netwright.conf
            remove /etc/systemd/system/netwrightd@.service
            put back what was at /etc/systemd/system/netwright.target
            remove /etc/netwright/netwrightd.toml
            remove /usr/local/bin/netwrightd
            put back what was at /usr/local/bin/netwright
            have systemd read its units again
            enable and start cni-dhcp.socket
            have NetworkManager read its configuration again
            remove the plugins from /usr/lib/cni, and /usr/lib and /usr/lib/cni if empty then
            remove our state, and our tables of nftables
        "#]],
        );
    }

    #[test]
    fn what_a_person_changed_stays_and_is_named() {
        let (record, mut paths) = recorded();
        paths.here.insert("/etc/netwright/netwrightd.toml".into(), there("edited"));
        paths.here.insert("/etc/systemd/system/netwright.target".into(), there("edited"));
        paths.here.insert("/etc/systemd/system/netwrightd@.service".into(), PathState::Absent);
        let plan = check(
            &record,
            &paths,
            &[],
            &expect![[r#"
            stop netwright.target and the services
            disable netwright.target
            remove /etc/NetworkManager/conf.d/90-netwright.conf
            remove /usr/local/bin/netwrightd
            put back what was at /usr/local/bin/netwright
            enable and start cni-dhcp.socket
            have NetworkManager read its configuration again
            remove the plugins from /usr/lib/cni
            remove our state, and our tables of nftables
            note: /etc/systemd/system/netwright.target was changed since setup wrote it: it stays; what was there before is /etc/systemd/system/.netwright.target.netwright-kept
            note: /etc/netwright/netwrightd.toml was changed since setup wrote it: it stays
        "#]],
        );
        assert_eq!(plan.rest, None);
    }

    #[test]
    fn containers_keep_their_plugins() {
        let (record, mut paths) = recorded();
        let plan = check(
            &record,
            &paths,
            &["net/web/eth0"],
            &expect![[r#"
            stop netwright.target and the services
            disable netwright.target
            remove /etc/NetworkManager/conf.d/90-netwright.conf
            remove /etc/systemd/system/netwrightd@.service
            put back what was at /etc/systemd/system/netwright.target
            remove /etc/netwright/netwrightd.toml
            have systemd read its units again
            enable and start cni-dhcp.socket
            have NetworkManager read its configuration again
            note: containers are attached, and keep their networks: net/web/eth0. The plugins, the executables in /usr/local/bin and our state stay for them; once they are gone, `netwright setup --undo` removes these, too
        "#]],
        );
        // The second undo, once they are gone.
        let rest = plan.rest.unwrap();
        paths.here.retain(|path, _| path.starts_with("/usr/local"));
        let none = Unit::default();
        let steps = super::plan(&rest, &paths, &none, &none, LiveAttachments::Keep(&[])).steps;
        let steps: Vec<String> = steps.iter().map(ToString::to_string).collect();
        expect![[r#"
            remove /usr/local/bin/netwrightd
            put back what was at /usr/local/bin/netwright
            remove the plugins from /usr/lib/cni
            remove our state, and our tables of nftables"#]]
        .assert_eq(&steps.join("\n"));
    }

    /// As when a package goes that has the executables: nothing may need them any longer.
    #[test]
    fn containers_that_are_left_keep_nothing_of_the_setup() {
        let (record, paths) = recorded();
        let (none, web) = (Unit::default(), ["net/web/eth0".to_owned()]);
        let plan =
            super::plan(&record, &paths, &none, &none, LiveAttachments::Leave(&web, "it stays"));
        let programs = PathBuf::from("/usr/local/bin/netwright");
        assert!(plan.steps.contains(&UndoStep::RemoveFile { path: programs, restores: true }));
        let (folders, leaves) = (vec!["/usr/lib/cni".into()], true);
        let (made, remaining) = (Vec::new(), Vec::new());
        let last = UndoStep::RemovePlugins { folders, leaves, made, remaining };
        assert_eq!(plan.steps.last(), Some(&last));
        assert_eq!((plan.notes, plan.rest), (vec!["it stays".to_owned()], None));
        let plan =
            super::plan(&record, &paths, &none, &none, LiveAttachments::Leave(&[], "it stays"));
        assert_eq!((plan.notes, plan.steps.last()), (Vec::new(), Some(&UndoStep::RemoveState)));
    }

    /// What ran before runs again.
    #[test]
    fn units_that_were_there_before_are_started_again() {
        let (mut record, paths) = recorded();
        record.target = UnitState { enabled: true, active: true };
        record.owns_state = false;
        record.plugins.clear();
        record.taken_over.clear();
        check(
            &record,
            &paths,
            &[],
            &expect![[r#"
            stop netwright.target and the services
            remove /etc/NetworkManager/conf.d/90-netwright.conf
            remove /etc/systemd/system/netwrightd@.service
            put back what was at /etc/systemd/system/netwright.target
            remove /etc/netwright/netwrightd.toml
            remove /usr/local/bin/netwrightd
            put back what was at /usr/local/bin/netwright
            have systemd read its units again
            start netwright.target
            have NetworkManager read its configuration again
        "#]],
        );
    }

    /// It was interrupted before the files of others were replaced: they stay, and the copies beside
    /// them go.
    #[test]
    fn what_was_never_replaced_stays() {
        let (record, mut paths) = recorded();
        paths.here.retain(|path, _| path.to_string_lossy().ends_with("-kept"));
        let others = paths.here.clone().into_values().next().unwrap();
        for path in ["/usr/local/bin/netwright", "/etc/systemd/system/netwright.target"] {
            paths.here.insert(path.into(), others.clone());
        }
        let plan = check(
            &record,
            &paths,
            &[],
            &expect![[r#"
            stop netwright.target and the services
            disable netwright.target
            put back what was at /etc/systemd/system/netwright.target
            put back what was at /usr/local/bin/netwright
            have systemd read its units again
            enable and start cni-dhcp.socket
            remove the plugins from /usr/lib/cni
            remove our state, and our tables of nftables
        "#]],
        );
        paths.here.retain(|path, _| !path.to_string_lossy().ends_with("-kept"));
        let none = Unit::default();
        let again = super::plan(&record, &paths, &none, &none, LiveAttachments::Keep(&[]));
        assert!(!again.steps.iter().any(|step| matches!(step, UndoStep::RemoveFile { .. })));
        assert_eq!((again.notes, plan.notes), (Vec::new(), Vec::new()));
    }
}
