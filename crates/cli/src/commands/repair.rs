//! `repair`: restores what other programs changed, container by container.

use std::collections::BTreeMap;
use std::process::ExitCode;

use cni::text::one_line;
use cni_plugin::codes;
use cni_runtime::{Inventory, KnownAttachment, PluginFailure, Presence, Repairs};
use plugins::recorded;
use plugins::shared::shared_object;
use serde::Serialize;
use state::Index;

use super::Outcome;
use crate::args::{Common, Repair};
use crate::failure::{Failure, is_around, look_around};
use crate::net::attachments;
use crate::net::container;
use crate::net::session::{PluginSource, Session};
use crate::shell::{Report, Shell};
use crate::world::World;

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct RepairReport {
    dry_run: bool,
    attachments: Vec<Item>,
    /// How many were unchanged.
    sound: usize,
    /// Links of the host that ignored its routers, because they came after forwarding was switched on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ignoring_routers: Vec<String>,
    /// How many cannot be checked: their network sets `disableCheck`, or its version is older than
    /// 0.4.0.
    skipped: usize,
    /// How many are not repaired, by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    apart: BTreeMap<&'static str, usize>,
    #[serde(skip)]
    exit: u8,
}

/// An attachment of which something had changed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    network: String,
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
    put_back: Vec<Line>,
    left: Vec<Leftover>,
    /// Other plugins attached it, before ours took their place.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    by_others: bool,
}

#[derive(Debug, Serialize)]
struct Line {
    plugin: String,
    what: String,
}

#[derive(Debug, Serialize)]
struct Leftover {
    plugin: String,
    error: cni::Error,
}

impl Report for RepairReport {
    fn text(&self) -> String {
        let mut text = String::new();
        for item in &self.attachments {
            let Item { network, container_id, ifname, put_back, left, by_others } = item;
            text.push_str(&format!("{ifname} of {container_id} on {network}\n"));
            for line in put_back {
                text.push_str(&format!(
                    "  put back ({}): {}\n",
                    one_line(&line.plugin),
                    one_line(&line.what)
                ));
            }
            for left in left {
                let what = if self.dry_run { "differs" } else { "left" };
                text.push_str(&format!(
                    "  {what} ({}): {}\n",
                    one_line(&left.plugin),
                    one_line(&left.error)
                ));
            }
            if *by_others && !left.is_empty() {
                text.push_str(&format!("  hint: {}\n", diagnose::BY_OTHERS));
            }
            if !self.dry_run && left.iter().any(|left| is_around(left.error.code)) {
                text.push_str(&format!("  hint: {}\n", look_around(Some(container_id))));
            }
        }
        for link in &self.ignoring_routers {
            let link = one_line(link);
            text.push_str(&match self.dry_run {
                true => format!(
                    "differs: link {link} ignores routers, because the host forwards IPv6\n"
                ),
                false => format!("put back: link {link} listens to routers (accept_ra is 2)\n"),
            });
        }
        let lines = |count: fn(&Item) -> usize| self.attachments.iter().map(count).sum::<usize>();
        let put_back = lines(|item| item.put_back.len());
        let left = lines(|item| item.left.len());
        let skipped = match self.skipped {
            0 => String::new(),
            count => format!(", {count} that cannot be checked"),
        };
        text.push_str(&match self.dry_run {
            true => format!("{left} differ, {} sound{skipped}\n", self.sound),
            false => format!("put back {put_back}, left {left}, {} sound{skipped}\n", self.sound),
        });
        for (why, count) in &self.apart {
            text.push_str(&format!("left alone: {count} {why}\n"));
        }
        text
    }
}

pub(crate) fn main(args: &Repair, common: &Common, world: &World, shell: &mut Shell) -> Outcome {
    let session = Session::open(world, common, shell, PluginSource::WithOwn)?;
    let Inventory { mut known, notices, .. } = attachments::at_paths(&session)?;
    for notice in notices {
        shell.warn(notice);
    }
    if let Some(name) = &args.container {
        known = attachments::of_container(known, &container::resolve(name, world)?, &session.roots);
    }
    known = attachments::wholes(&session.roots, known, args.network.as_deref());
    known.retain(|known| known.presence != Presence::Gone);
    if known.is_empty() && (args.container.is_some() || args.network.is_some()) {
        let container = args.container.iter().map(|name| format!("of {name:?}"));
        let network = args.network.iter().map(|name| format!("to network {name:?}"));
        let asked: Vec<String> = container.chain(network).collect();
        let text = format!("there is no attachment {}", asked.join(" "));
        return Err(Failure::new(cni::code::UNKNOWN_CONTAINER, text)
            .hint("`netwright list` shows what is attached"));
    }
    let mut report = RepairReport { dry_run: args.dry_run, ..RepairReport::default() };
    for (number, one) in known.iter().enumerate() {
        if let Some(apart) = one.apart(&session.roots) {
            *report.apart.entry(apart.as_str()).or_default() += 1;
            continue;
        }
        let place = format!("{} of {}", number + 1, known.len());
        let waiting = shell.waiting(format!("checking {}, {place}", one.key));
        let repaired = match args.dry_run {
            true => session.runtime.survey(one, session.deadline()),
            false => session.runtime.repair(one, session.deadline()),
        };
        drop(waiting);
        report.add(one, repaired);
    }
    if args.container.is_none() && args.network.is_none() {
        report.listen_to_routers(&Index::new(&session.roots), shell);
    }
    shell.print(&report);
    Ok(ExitCode::from(report.exit))
}

impl RepairReport {
    fn listen_to_routers(&mut self, index: &Index, shell: &Shell) {
        let found = match self.dry_run {
            true => shared_object::links_that_ignore_routers(index),
            false => shared_object::listen_on_new_links(index),
        };
        let failed = match found {
            Ok(links) => {
                self.ignoring_routers = links;
                let differs = self.dry_run && !self.ignoring_routers.is_empty();
                differs.then(|| cni::Error::new(codes::DRIFT, "links ignore routers"))
            }
            Err(error) => {
                let error = cni::Error::from(error);
                shell.warn(&error);
                Some(error)
            }
        };
        if let (Some(error), 0) = (failed, self.exit) {
            self.exit = Failure::from(error).exit_number();
        }
    }

    fn add(&mut self, known: &KnownAttachment, repaired: Result<Repairs, cni::Error>) {
        let key = &known.key;
        let (put_back, left) = match repaired {
            Ok(repairs) if repairs.skipped => {
                self.skipped += 1;
                return;
            }
            Ok(repairs) => {
                let lines =
                    repairs.put_back.into_iter().map(|(plugin, what)| Line { plugin, what });
                (lines.collect(), repairs.left.iter().map(left).collect())
            }
            Err(error) => (Vec::new(), vec![Leftover { plugin: String::new(), error }]),
        };
        let (put_back, left): (Vec<Line>, Vec<Leftover>) = (put_back, left);
        if put_back.is_empty() && left.is_empty() {
            self.sound += 1;
            return;
        }
        if let (Some(first), 0) = (left.first(), self.exit) {
            self.exit = Failure::from(first.error.clone()).exit_number();
        }
        self.attachments.push(Item {
            network: key.network.to_string(),
            container_id: key.container_id.to_string(),
            ifname: key.ifname.to_string(),
            put_back,
            left,
            by_others: recorded::is_by_others(known),
        });
    }
}

fn left(failure: &PluginFailure) -> Leftover {
    Leftover { plugin: failure.plugin_type.clone(), error: failure.error.to_cni() }
}
