//! `setup --undo`.

use std::fmt;
use std::path::{Path, PathBuf};

use agent::units;
use cni::code;
use serde::Serialize;
use state::Roots;

use super::apply::{give_back, put_back, stop};
use super::plan::{NETWORK_MANAGER, NETWORK_MANAGERS, Paths, is_unit};
use super::record::{self, Before, Here, Record};
use super::systemctl::{Unit, call};
use crate::commands::install::{self, Removed};
use crate::failure::Failure;
use crate::net::session::Session;

/// What the service `dhcp` leaves beside its socket (docs/files.md).
const DHCP_READY: &str = "/run/cni/dhcp.sock.ready";
const DHCP_TODO: &str = "/run/cni/dhcp.sock.todo";

/// One step back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub(super) enum Back {
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
            Back::RestoreUnit { unit, enables, starts } => match (enables, starts) {
                (true, true) => write!(f, "enable and start {unit}"),
                (true, false) => write!(f, "enable {unit}"),
                (false, _) => write!(f, "start {unit}"),
            },
            Back::ReloadNetworkManager => {
                write!(f, "have NetworkManager read its configuration again")
            }
            Back::RemovePlugins { folders, made, .. } => {
                write!(f, "remove the plugins from {}", super::plan::all(folders))?;
                match made.as_slice() {
                    [] => Ok(()),
                    made => write!(f, ", and {} if empty then", super::plan::all(made)),
                }
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

/// The attachments of our plugins whose containers are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Living<'a> {
    /// What they need stays.
    Keep(&'a [String]),
    /// They stay attached, and everything else goes; a line says what stays of them.
    Leave(&'a [String], &'a str),
}

impl Living<'_> {
    /// Says whether the plugins must stay.
    fn keeps_plugins(&self) -> bool {
        matches!(self, Living::Keep(living) if !living.is_empty())
    }
}

/// Decides how to undo what is recorded; `network_manager` is its unit.
pub(super) fn plan(
    record: &Record,
    paths: &Paths,
    target: &Unit,
    network_manager: &Unit,
    living: Living<'_>,
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
        if living.keeps_plugins() && is_program(path) {
            continue;
        }
        let here = paths.at(path);
        // `setup` was interrupted before it replaced the file: at most the copy beside it is
        // removed.
        let is_others = paths.is_others(written);
        if is_others && *paths.at(&record::kept(path)) == Here::Absent {
            continue;
        }
        if is_others || written.is(here) || (*here == Here::Absent && written.kept) {
            changes_units |= is_unit(path);
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
        plan.steps.push(Back::RestoreUnit { unit, enables: enabled, starts: active });
    }
    let is_network_managers = |back: &Back| matches!(back, Back::RemoveFile { path, .. } if path == Path::new(NETWORK_MANAGERS));
    if network_manager.is.active && plan.steps.iter().any(is_network_managers) {
        plan.steps.push(Back::ReloadNetworkManager);
    }
    let living = match living {
        Living::Keep(living) if !living.is_empty() => living,
        of => {
            let left = match of {
                Living::Leave(living, stays) if !living.is_empty() => Some(stays),
                _ => None,
            };
            if !record.plugins.is_empty() {
                plan.steps.push(Back::RemovePlugins {
                    folders: record.plugins.clone(),
                    leaves: left.is_some(),
                    made: paths.made.clone(),
                    remaining: paths.remaining.clone(),
                });
            }
            match left {
                Some(stays) => plan.notes.push(stays.to_owned()),
                None if record.owns_state => plan.steps.push(Back::RemoveState),
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
        // Our state has the record, which must be removed last.
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
    let left = removed.left.into_iter().chain(removed.attached_again).collect();
    (errors, left)
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
        Back::RemoveFile { path, restores: false } => {
            state::withdraw(path).map(drop).map_err(|error| Failure::of(code::IO_FAILURE, &error))
        }
        Back::Reload => call(&["daemon-reload"]).map(drop),
        Back::Start { unit } => call(&["start", unit]).map(drop),
        Back::RestoreUnit { unit, enables, starts } => {
            give_back(unit, Before { enabled: *enables, active: *starts })
        }
        Back::ReloadNetworkManager => call(&["reload", NETWORK_MANAGER]).map(drop),
        Back::RemovePlugins { folders, leaves, remaining, .. } => {
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
        Back::RemoveState => {
            install::remove_state(&open(false)?, removed);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::super::record::{Digest, Options, TakenOver, Written};
    use super::*;

    fn there(text: &str) -> Here {
        Here::There { content: Digest::of(text.as_bytes()), by_hand: true }
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
            files.push(Written::new(Path::new(path), content, kept));
        }
        let was = Before { enabled: true, active: true };
        let record = Record {
            version: "0.1.0".to_owned(),
            programs: "/usr/local/bin".into(),
            options: Options::default(),
            plugins: vec!["/usr/lib/cni".into()],
            files,
            folders: vec!["/etc/netwright".into()],
            taken_over: vec![TakenOver { unit: "cni-dhcp.socket".to_owned(), was }],
            target: Before::default(),
            owns_state: true,
        };
        (record, paths)
    }

    fn unit(enabled: bool, active: bool) -> Unit {
        Unit { is: Before { enabled, active }, ..Unit::default() }
    }

    #[track_caller]
    fn check(record: &Record, paths: &Paths, living: &[&str], expected: &Expect) -> Return {
        let living: Vec<String> = living.iter().map(|name| (*name).to_owned()).collect();
        let living = Living::Keep(&living);
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
        paths.here.insert("/etc/systemd/system/netwrightd@.service".into(), Here::Absent);
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
        let steps = super::plan(&rest, &paths, &none, &none, Living::Keep(&[])).steps;
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
        let plan = super::plan(&record, &paths, &none, &none, Living::Leave(&web, "it stays"));
        let programs = PathBuf::from("/usr/local/bin/netwright");
        assert!(plan.steps.contains(&Back::RemoveFile { path: programs, restores: true }));
        let (folders, leaves) = (vec!["/usr/lib/cni".into()], true);
        let (made, remaining) = (Vec::new(), Vec::new());
        let last = Back::RemovePlugins { folders, leaves, made, remaining };
        assert_eq!(plan.steps.last(), Some(&last));
        assert_eq!((plan.notes, plan.rest), (vec!["it stays".to_owned()], None));
        let plan = super::plan(&record, &paths, &none, &none, Living::Leave(&[], "it stays"));
        assert_eq!((plan.notes, plan.steps.last()), (Vec::new(), Some(&Back::RemoveState)));
    }

    /// What ran before runs again.
    #[test]
    fn units_that_were_there_before_are_started_again() {
        let (mut record, paths) = recorded();
        record.target = Before { enabled: true, active: true };
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
        let again = super::plan(&record, &paths, &none, &none, Living::Keep(&[]));
        assert!(!again.steps.iter().any(|step| matches!(step, Back::RemoveFile { .. })));
        assert_eq!((again.notes, plan.notes), (Vec::new(), Vec::new()));
    }
}
