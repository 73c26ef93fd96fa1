//! `install --put-back`.

use std::path::PathBuf;
use std::process::ExitCode;

use agent::installed::{self, Disturbance};
use cni::code;
use serde::Serialize;

use super::{Goods, Outcome, put, record};
use crate::args::{Common, Install};
use crate::failure::Failure;
use crate::net::session::{PluginSource, Session};
use crate::shell::{Report, Shell};
use crate::world::World;

/// What was put back in one folder.
#[derive(Debug, Serialize)]
struct Folder {
    dir: PathBuf,
    names: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
struct RestoreReport {
    folders: Vec<Folder>,
    notes: Vec<String>,
}

impl Report for RestoreReport {
    fn text(&self) -> String {
        let mut text = String::new();
        for Folder { dir, names } in &self.folders {
            text.push_str(&format!("put back in {}: {}\n", dir.display(), names.join(", ")));
        }
        if self.folders.is_empty() {
            text.push_str("everything is as it was installed\n");
        }
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        text
    }
}

/// Installs again in each recorded folder that another program has changed.
pub(super) fn main(args: &Install, common: &Common, world: &World, shell: &mut Shell) -> Outcome {
    let session = Session::open(world, common, shell, PluginSource::None)?;
    let only = args.bin_dir.as_ref().map(|dir| world.absolute(dir));
    let read = installed::all(&session.roots);
    for damaged in &read.damaged {
        shell.warn(damaged);
    }
    let mut recorded = read.found;
    recorded.retain(|one| only.as_ref().is_none_or(|dir| *dir == one.dir));
    if recorded.is_empty() {
        return Err(Failure::new(
            code::INVALID_CONFIG,
            match &only {
                Some(dir) => format!("no installation in {} is recorded", dir.display()),
                None => "no installation is recorded".to_owned(),
            },
        )
        .hint("`netwright install` installs, and records it"));
    }
    let mut report = RestoreReport::default();
    for recorded in recorded {
        let Some(Disturbance { dir, gone, replaced, .. }) = recorded.disturbed() else { continue };
        let is_linked = |name: &&str| recorded.links.iter().any(|link| link == name);
        let also = plugins::aliases().map(|(name, _)| name).filter(is_linked).collect();
        let args = Install {
            bin_dir: Some(dir.clone()),
            also,
            no_config: true,
            linked: recorded.linked,
            allow_downgrade: args.allow_downgrade,
        };
        let goods = Goods::of_this_process(&args)?;
        let done = put(std::slice::from_ref(&dir), &goods, &args, &session)?;
        // An `uninstall` in between forgot it under the lock that `done` holds.
        if !installed::is_recorded(&session.roots, &dir) {
            for done in done {
                done.revert()?;
            }
            continue;
        }
        report.notes.extend(record(&done, &goods, &session.roots));
        for note in done.iter().flat_map(|done| &done.notes) {
            if !report.notes.contains(note) {
                report.notes.push(note.clone());
            }
        }
        report.folders.push(Folder { dir, names: [gone, replaced].concat() });
    }
    shell.confirm(&report);
    Ok(ExitCode::SUCCESS)
}
