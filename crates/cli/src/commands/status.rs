//! `status`: could a container be attached now?

use std::process::ExitCode;

use cni_runtime::ValidateProblem;
use serde::Serialize;

use super::Outcome;
use crate::args::{Common, Status};
use crate::failure::{EXIT_PERMANENT, Failure};
use crate::net::session::{Network, PluginSource, Session};
use crate::net::{forwarding, trust};
use crate::shell::{Report, Shell};
use crate::table::Table;
use crate::world::World;

#[derive(Debug, Serialize)]
struct Networks {
    networks: Vec<State>,
    /// Files that cannot be used, each with its reason.
    broken: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct State {
    network: String,
    file: Option<String>,
    cni_version: String,
    plugins: Vec<String>,
    ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<cni::Error>,
    /// What does not stop ADD, and will be missed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip)]
    origin: String,
    #[serde(skip)]
    exit: u8,
}

impl Report for Networks {
    fn text(&self) -> String {
        let mut table = Table::new(&["NETWORK", "VERSION", "PLUGINS", "STATE", "FROM"]);
        for state in &self.networks {
            let ready = if state.ready { "ready" } else { "not ready" };
            table.row([
                state.network.clone(),
                state.cni_version.clone(),
                state.plugins.join(","),
                ready.to_owned(),
                state.origin.clone(),
            ]);
        }
        let mut text = table.to_string();
        for state in &self.networks {
            if let Some(error) = &state.error {
                text.push_str(&format!("{}: {error} (code {})\n", state.network, error.code));
            }
            for warning in &state.warnings {
                text.push_str(&format!("warning: {warning}\n"));
            }
        }
        for broken in &self.broken {
            text.push_str(&format!("broken: {broken}\n"));
        }
        text
    }
}

pub(crate) fn main(args: &Status, common: &Common, world: &World, shell: &mut Shell) -> Outcome {
    let session = Session::open(world, common, shell, PluginSource::WithOwn)?;
    let (networks, broken) = match &args.network {
        Some(name) => (vec![session.network(name)?], Vec::new()),
        None => {
            let folder = session.scan()?;
            let broken = folder.refusals().map(ToString::to_string).collect();
            (session.networks(&folder), broken)
        }
    };
    let waiting = shell.waiting("asking the plugins");
    let states = networks.iter().map(|network| state(&session, network)).collect();
    drop(waiting);
    let report = Networks { networks: states, broken };
    shell.print(&report);
    let broken = (!report.broken.is_empty()).then_some(EXIT_PERMANENT);
    let failed = report.networks.iter().find(|state| !state.ready).map(|state| state.exit);
    Ok(ExitCode::from(failed.or(broken).unwrap_or(0)))
}

/// Asks every plugin of a network. A missing one is told apart from one that is not ready.
fn state(session: &Session, network: &Network) -> State {
    let runtime = &session.runtime;
    let failure = match runtime.validate_list(&network.list, session.deadline()) {
        Err(error) if error.problems.iter().any(stops_add) => Some(error.to_cni()),
        _ => runtime.status_list(&network.list, session.deadline()).err().map(|e| e.to_cni()),
    };
    let mut warnings = forwarding::warnings(&network.list);
    warnings.extend(trust::warnings(&network.list, runtime));
    let exit = failure.as_ref().map(|error| Failure::from(error.clone()).exit_number());
    State {
        network: network.list.name.clone(),
        file: network.file.as_ref().map(|path| path.display().to_string()),
        cni_version: network.list.cni_version.clone(),
        plugins: network.chain(),
        ready: failure.is_none(),
        error: failure,
        warnings,
        origin: network.origin(),
        exit: exit.unwrap_or_default(),
    }
}

/// A version that a plugin lacks is negotiated by ADD; everything else stops it.
fn stops_add(problem: &ValidateProblem) -> bool {
    !matches!(problem, ValidateProblem::Version { .. })
}
