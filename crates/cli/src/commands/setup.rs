//! `setup`: puts Netwright on a machine with systemd, and takes it off again.
//!
//! It looks at the machine ([`machine`]), decides what to do ([`plan`]), shows it and asks, does it
//! ([`apply`]), and tries a container's network ([`packet`]). Before the first step it records what
//! it will do ([`record`]): `--undo` and a later `setup` follow that.
//!
//! Each step has an undo; if one fails, all are undone. The record is written before the first step
//! with all that the steps will write, so a `setup` that was killed is undone or finished like any
//! other. Before it removes or replaces a file, it compares the content with what it wrote (of a
//! file over 1 MiB the size and 64 samples of 1 KiB). Another program's file that it replaces stays
//! in the same folder, so that one rename restores it with owner, mode, times and labels, even on a
//! full disk. A file that `setup` is to write needs a line in `wanted`; plan, undo, record and
//! comparison follow.
//!
//! The executables are in `/usr/local/bin`: the upgrade of another package may remove a folder of
//! plugins with all that is in it (kubernetes#115629), and SELinux lets systemd run what is there.
//! If a package has units of these names, `setup` refuses. It never replaces a configuration. Units
//! of others are disabled and not masked, because a unit of the administrator's in
//! `/etc/systemd/system` cannot be masked. It calls `systemctl`: a client of D-Bus would be more
//! code, and no verb of a plugin waits for it.
//!
//! After a setup `netwright uninstall` refuses, because the services would lose their plugins.
//! While containers are attached, `--undo` removes the services only: the plugins have to detach
//! the containers.

mod apply;
mod machine;
mod packet;
mod plan;
mod record;
mod systemctl;
mod undo;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use agent::units;
use cni::code;
use doctor::observe::services;
use serde::Serialize;
use state::Lock;

use super::Outcome;
use super::install::{self, Goods, Place};
use crate::args::{Common, Setup};
use crate::daemon_process::DAEMON;
use crate::failure::{EXIT_LATER, EXIT_PERMANENT, Failure};
use crate::net::runtimes::Runtimes;
use crate::net::session::{PluginSource, Session};
use crate::shell::{Format, Report, Shell};
use crate::world::World;
use apply::Work;
use plan::{Facts, Paths, Plan};
use record::Record;
pub(crate) use record::is_recorded;
use undo::LiveAttachments;

/// The folder that is locked, so that two do not change it at the same time.
const LOCKED: &str = "/etc/systemd/system";

/// How long to wait for another `setup`, which may wait for services and packets.
const LOCK_TIMEOUT: Duration = Duration::from_secs(300);

/// What was found, and what is or was done about it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SetupReport<'p, S> {
    /// What the command is: `setup` or `setup --undo`.
    #[serde(skip)]
    title: &'static str,
    is_done: bool,
    found: &'p [String],
    steps: &'p [S],
    /// What the packets of a new container found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    packets: Vec<String>,
    notes: Vec<String>,
    /// What the services that run have not read of the configuration, a line for each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unread: Vec<String>,
    /// What is not undone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left: Vec<String>,
}

impl<S: Serialize + std::fmt::Display> Report for SetupReport<'_, S> {
    fn text(&self) -> String {
        let mut text = String::new();
        if !self.is_done {
            for found in self.found {
                text.push_str(&format!("found: {found}\n"));
            }
        }
        let title = self.title;
        match (self.steps.is_empty(), self.is_done, self.left.is_empty()) {
            (true, _, true) if self.unread.is_empty() => {
                text.push_str("everything is as it should be: nothing to do\n");
            }
            (true, _, true) => text.push_str("everything is installed\n"),
            (true, _, false) => {
                text.push_str(&format!(
                    "{title} can undo nothing more now, and something is left\n"
                ));
            }
            (false, true, true) => text.push_str(&format!("{title} is done\n")),
            (false, true, false) => {
                text.push_str(&format!("{title} is done, but something is left\n"));
            }
            (false, false, _) => {
                text.push_str(&format!("{title} will\n"));
                for step in self.steps {
                    text.push_str(&format!("  {step}\n"));
                }
            }
        }
        for packet in &self.packets {
            text.push_str(&format!("{packet}\n"));
        }
        if !self.unread.is_empty() {
            text.push_str(&format!(
                "the services have not read the changed configuration: `netwright agent reload` {}\n",
                self.unread.join("; ")
            ));
        }
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        for left in &self.left {
            text.push_str(&format!("left: {left}\n"));
        }
        text
    }
}

pub(crate) fn main(args: &Setup, common: &Common, world: &World, shell: &mut Shell) -> Outcome {
    if !args.yes && !args.dry_run && (shell.format == Format::Json || !shell.can_ask()) {
        return Err(Failure::usage("setup asks before it changes anything, and cannot ask here")
            .hint("give --yes, or --dry-run to see what it would do"));
    }
    if !kernel::remedy::is_root() {
        return Err(Failure::new(
            code::IO_FAILURE,
            "setup installs services for the whole machine",
        )
        .because("you are not root")
        .hint(kernel::remedy::BE_ROOT));
    }
    if !systemctl::is_booted() {
        return Err(Failure::new(code::IO_FAILURE, "systemd does not run this machine")
            .hint("`netwright install` puts the plugins, and `netwrightd` starts the services (docs/agent.md)"));
    }
    match args.undo {
        true => undo_it(args, common, world, shell),
        false => set_up(args, common, world, shell),
    }
}

fn set_up(args: &Setup, common: &Common, world: &World, shell: &mut Shell) -> Outcome {
    let session = Session::open(world, common, shell, PluginSource::None)?;
    let record = Record::read(&session.roots)?;
    let mut install = machine::options(args, record.as_ref());
    let goods = Goods::of_this_process(&install)?;
    install.linked |= machine::packaged(&goods).is_some();
    let Some(daemon) = &goods.daemon else {
        return Err(Failure::new(
            code::INVALID_CONFIG,
            format!("{DAEMON} is not beside this executable, and its services are to be installed"),
        )
        .hint(format!("put {DAEMON} of the same version there")));
    };
    let look = || -> Result<(Facts, Plan), Failure> {
        let record = Record::read(&session.roots)?;
        let facts = machine::facts(args, &install, &goods, record, &session, world)?;
        let wanted = plan::wanted(&facts, &goods.executable, daemon);
        let paths = machine::paths(&wanted, facts.record.as_ref())?;
        let plan = plan::plan(&facts, &wanted, &paths, !args.no_packet)?;
        Ok((facts, plan))
    };
    let (facts, plan) = look()?;
    let unread = || -> Vec<String> {
        let Some(config) = &facts.configuration else { return Vec::new() };
        let unread = services::unread(&session.roots, config).to_string();
        unread.lines().map(ToOwned::to_owned).collect()
    };
    let told = |is_done: bool, packets: Vec<String>| SetupReport {
        title: "netwright setup",
        is_done,
        found: &facts.found,
        steps: &plan.steps,
        packets,
        notes: plan.notes.clone(),
        unread: if is_done || plan.steps.is_empty() { unread() } else { Vec::new() },
        left: Vec::new(),
    };
    if args.dry_run {
        shell.print(&told(false, Vec::new()));
        return Ok(ExitCode::SUCCESS);
    }
    if !plan.steps.is_empty() && !args.yes && !agrees(&told(false, Vec::new()), shell) {
        return Ok(ExitCode::from(EXIT_PERMANENT));
    }
    let _lock = lock()?;
    let (now, again) = look()?;
    if again != plan {
        return Err(changed());
    }
    let mut packets = Vec::new();
    if !plan.steps.is_empty() {
        let waiting = shell.waiting("setting up");
        let work = Work { facts: &now, goods: &goods, install: &install, session: &session };
        packets = apply::apply(&plan, &work)?;
        drop(waiting);
    } else if record.as_ref() != Some(&plan.record) {
        plan.record.write(&session.roots)?;
    }
    shell.confirm(&told(true, packets));
    Ok(ExitCode::SUCCESS)
}

fn undo_it(args: &Setup, common: &Common, world: &World, shell: &mut Shell) -> Outcome {
    let session = Session::open(world, common, shell, PluginSource::None)?;
    let look = || -> Result<(Record, undo::UndoPlan, Vec<String>, Vec<String>), Failure> {
        let Some(record) = Record::read(&session.roots)? else {
            return Err(Failure::new(
                code::INVALID_CONFIG,
                "nothing was set up here by `netwright setup`",
            )
            .hint("`netwright uninstall` removes what `netwright install` installed"));
        };
        // Docker, and OCI runtimes, go on calling what is stopped and removed.
        let dockers = install::DockerUse::find(&session.roots)?;
        let executables = record.executables();
        let mut left = Vec::new();
        if args.force {
            left.extend(dockers.left());
            left.extend(install::left_by_hooks(&executables));
        } else {
            dockers.refuse()?;
            install::refuse_hooks(&executables)?;
        }
        let mut paths = Paths::default();
        for path in record.files.iter().map(|written| &written.path) {
            for path in [path.clone(), record::kept(path)] {
                let here = record::PathState::at(&path)?;
                paths.here.insert(path, here);
            }
        }
        let places: Vec<Place> =
            record.plugins.iter().map(|dir| Place::read(dir)).collect::<Result<_, Failure>>()?;
        paths.made = install::vanishing(&places);
        paths.remaining = install::remaining(&places, &Runtimes::find(world), &session.roots);
        let names = [units::TARGET, plan::NETWORK_MANAGER].map(str::to_owned);
        let known = systemctl::units(&names)?;
        let attached = install::living(&session)?;
        let living = attached.names();
        let stays = install::stays(&install::listed(&living), &session);
        let living = match args.force {
            true => LiveAttachments::Leave(&living, &stays),
            false => LiveAttachments::Keep(&living),
        };
        let plan = undo::plan(&record, &paths, &known[0], &known[1], living);
        let lost = match plan.rest {
            // Everything that they need stays.
            Some(_) => Vec::new(),
            None => install::lost(&places, &paths.remaining, &attached.keys, (world, common)),
        };
        Ok((record, plan, left, lost))
    };
    let (record, plan, callers, lost) = look()?;
    let before = || plan.notes.iter().chain(&lost).cloned().collect::<Vec<String>>();
    let told = |is_done: bool, notes: Vec<String>, left: Vec<String>| {
        // What a plan without a step notes is what keeps it from having one.
        let is_left = is_done || plan.steps.is_empty();
        let (notes, left) = match is_left {
            true => (Vec::new(), notes.into_iter().chain(left).collect()),
            false => (notes, left),
        };
        SetupReport {
            title: "netwright setup --undo",
            is_done,
            found: &[],
            steps: &plan.steps,
            packets: Vec::new(),
            notes,
            unread: Vec::new(),
            left,
        }
    };
    if args.dry_run {
        shell.print(&told(false, before(), callers.clone()));
        return Ok(ExitCode::SUCCESS);
    }
    if args.yes {
        lost.iter().for_each(|line| shell.warn(line));
    } else if !agrees(&told(false, before(), callers.clone()), shell) {
        return Ok(ExitCode::from(EXIT_PERMANENT));
    }
    let _lock = lock()?;
    if look()?.1 != plan {
        return Err(changed());
    }
    if args.force && !install::living(&session)?.names().is_empty() {
        install::keep_executable(&session.roots)?;
    }
    let open = |with_plugins: bool| {
        let source = if with_plugins { PluginSource::WithOwn } else { PluginSource::None };
        Session::open(world, common, shell, source)
    };
    let (errors, left) = undo::apply(&plan, &record, &session.roots, &open);
    if let Some((first, more)) = errors.split_first() {
        let failure = Failure::new(code::IO_FAILURE, "not everything was undone");
        let all = std::iter::once(first).chain(more);
        let failure = all.fold(failure, |failure, one| {
            let error = one.to_cni();
            let causes = if error.details.is_empty() { None } else { Some(error.details) };
            causes.into_iter().fold(failure.because(error.msg), Failure::because)
        });
        return Err(failure.hint("`netwright setup --undo` goes on with the rest"));
    }
    let left = callers.iter().cloned().chain(left).collect();
    shell.confirm(&told(true, plan.notes.clone(), left));
    Ok(if plan.rest.is_some() { ExitCode::from(EXIT_LATER) } else { ExitCode::SUCCESS })
}

/// Shows what will be done, and asks.
fn agrees<S: Serialize + std::fmt::Display>(told: &SetupReport<'_, S>, shell: &mut Shell) -> bool {
    shell.say(told.text().trim_end());
    let agrees = shell.ask("Do it? [y/N] ");
    if !agrees {
        shell.say("nothing was changed");
    }
    agrees
}

fn lock() -> Result<Option<Lock>, Failure> {
    Lock::acquire_directory(Path::new(LOCKED), LOCK_TIMEOUT)
        .map_err(|error| Failure::of(code::TRY_AGAIN_LATER, &error))
}

/// The person agreed to something else.
fn changed() -> Failure {
    Failure::new(code::TRY_AGAIN_LATER, "the machine has changed since the plan was made")
        .because("nothing was changed")
}
