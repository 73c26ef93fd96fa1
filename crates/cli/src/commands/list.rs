//! `list`: who is attached to what.

use std::process::ExitCode;

use serde::Serialize;

use super::Outcome;
use crate::args::{Common, List};
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
                row.container_id.clone(),
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
        Some(name) => attachments::of_container(all.known, &container::resolve(name, world)?),
        None => all.known,
    };
    shell.print(&Attachments { attachments: known.iter().map(Row::from).collect() });
    Ok(ExitCode::SUCCESS)
}
