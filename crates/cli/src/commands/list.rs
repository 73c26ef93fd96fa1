//! `list`: shows the attachments.

use std::process::ExitCode;

use cni::code;
use serde::Serialize;

use super::Outcome;
use crate::args::{Common, List};
use crate::failure::Failure;
use crate::net::attachments::{self, Row};
use crate::net::container;
use crate::net::session::{PluginSource, Session};
use crate::shell::{Report, Shell};
use crate::table::Table;
use crate::world::World;

#[derive(Debug, Serialize)]
struct Attachments {
    attachments: Vec<Row>,
}

impl Report for Attachments {
    fn text(&self) -> String {
        if self.attachments.is_empty() {
            return "no attachments\n".to_owned();
        }
        let mut table =
            Table::new(&["NETWORK", "CONTAINER", "IFNAME", "ADDRESSES", "PORTS", "STATE", "NETNS"]);
        for row in &self.attachments {
            table.row([
                row.network.clone(),
                row.container(),
                row.ifname.clone(),
                row.addresses.join(","),
                row.ports.join(","),
                row.state.as_str().to_owned(),
                row.netns.clone(),
            ]);
        }
        table.to_string()
    }
}

pub(crate) fn main(args: &List, common: &Common, world: &World, shell: &mut Shell) -> Outcome {
    let session = Session::open(world, common, shell, PluginSource::None)?;
    let all = attachments::all(&session)?;
    for notice in &all.notices {
        shell.warn(notice);
    }
    let known = match &args.container {
        Some(name) => {
            attachments::of_container(all.known, &container::resolve(name, world)?, &session.roots)
        }
        None => all.known,
    };
    if let (Some(name), true) = (&args.container, known.is_empty()) {
        return Err(Failure::new(
            code::UNKNOWN_CONTAINER,
            format!("there is no attachment of {name:?}"),
        )
        .hint("`netwright list` alone shows every attachment"));
    }
    let shown = attachments::with_parts(&session.roots, known);
    // Each of several networks of one attachment has its own row.
    let rows = shown.known.iter().filter(|known| !shown.wholes.contains(&known.key));
    let rows = rows.map(|known| Row::of(known, &session.roots));
    shell.print(&Attachments { attachments: rows.collect() });
    Ok(ExitCode::SUCCESS)
}
