//! `status`: says whether a container could be attached now, and whether the plugins that `install`
//! put where runtimes look are still there.

use std::process::ExitCode;

use agent::installed::{self, DPKG, Disturbance, InstallRecord};
use cni::code;
use cni::text::one_line;
use doctor::judgement::{self, Judgement};
use kernel::remedy;
use serde::Serialize;
use state::Index;

use super::Outcome;
use crate::args::{Common, Status};
use crate::failure::{EXIT_ENVIRONMENT, EXIT_PERMANENT, Failure, look_around};
use crate::net::runtimes::Runtimes;
use crate::net::session::{Network, PluginSource, Session};
use crate::net::{default, forwarding};
use crate::shell::{Report, Shell};
use crate::table::Table;
use crate::world::World;

#[derive(Debug, Serialize)]
struct Networks {
    networks: Vec<State>,
    /// Files that cannot be used, each with its reason.
    broken: Vec<String>,
    /// Folders in which another program removed or replaced what `install` put there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    disturbed: Vec<Disturbance>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct State {
    network: String,
    file: Option<String>,
    cni_version: String,
    plugins: Vec<String>,
    /// `None` if finding out takes rights that the caller lacks, or if a plugin could not be asked.
    ready: Option<bool>,
    /// The plugins that could not be asked, each with the reason. Nothing that was asked refuses.
    #[serde(rename = "notAsked", skip_serializing_if = "Vec::is_empty")]
    unasked: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<cni::Error>,
    /// What does not stop ADD, but will be missing.
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
            let ready = match state.ready {
                Some(true) => "ready",
                Some(false) => "not ready",
                None if state.error.is_none() => "partly asked",
                None => "unknown",
            };
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
                text.push_str(&format!(
                    "{}: {} (code {})\n",
                    one_line(&state.network),
                    one_line(error),
                    error.code
                ));
                // Containers that are attached already may suffer too.
                if error.code == code::LIMITED_CONNECTIVITY {
                    text.push_str(&format!("hint: {}\n", look_around(None)));
                }
            }
            for plugin in &state.unasked {
                let (network, plugin) = (one_line(&state.network), one_line(plugin));
                text.push_str(&format!("{network}: not asked: {plugin}\n"));
            }
            for warning in &state.warnings {
                text.push_str(&format!("warning: {}\n", one_line(warning)));
            }
        }
        for broken in &self.broken {
            text.push_str(&format!("broken: {}\n", one_line(broken)));
        }
        for disturbed in &self.disturbed {
            text.push_str(&format!("plugins: {}\n", one_line(disturbed)));
        }
        text
    }
}

pub(crate) fn main(args: &Status, common: &Common, world: &World, shell: &mut Shell) -> Outcome {
    let (session, refused) = match Session::open(world, common, shell, PluginSource::WithOwn) {
        Ok(session) => (session, None),
        Err(failure) if remedy::is_root() => return Err(failure),
        Err(failure) => {
            (Session::open(world, common, shell, PluginSource::None)?, Some(failure.to_cni()))
        }
    };
    let (networks, broken) = match &args.network {
        Some(name) => (vec![session.network(name)?], Vec::new()),
        None => {
            let folder = session.scan()?;
            let broken = folder.refusals().map(ToString::to_string).collect();
            (session.networks(&folder), broken)
        }
    };
    let folder = session.scan().ok();
    let all = folder.map(|folder| session.networks(&folder)).unwrap_or_default();
    let waiting = shell.waiting("asking the plugins");
    let runtimes = Runtimes::find(world);
    let states = networks
        .iter()
        .map(|network| state(&session, network, &runtimes, refused.as_ref(), &all))
        .collect();
    drop(waiting);
    let installed = installed::all(&session.roots);
    for damaged in &installed.damaged {
        shell.warn(damaged);
    }
    let disturbed = installed.found.iter().filter_map(InstallRecord::disturbed);
    let disturbed = disturbed.map(|one| one.with_packages(DPKG.as_ref())).collect();
    let report = Networks { networks: states, broken, disturbed };
    shell.print(&report);
    let broken = (!report.broken.is_empty()).then_some(EXIT_PERMANENT);
    let gone = report.disturbed.iter().any(|one| !one.gone.is_empty()).then_some(EXIT_ENVIRONMENT);
    let failed = report.networks.iter().find(|state| state.error.is_some()).map(|state| state.exit);
    Ok(ExitCode::from(failed.or(broken).or(gone).unwrap_or(0)))
}

/// Asks every plugin of a network.
fn state(
    session: &Session,
    network: &Network,
    runtimes: &Runtimes,
    refused: Option<&cni::Error>,
    all: &[Network],
) -> State {
    let Judgement { failure, unknown, unasked } =
        judgement::of(&session.runtime, &network.list, refused, session.deadline());
    let failure = failure.map(|error| advised(error, unknown));
    let cache = session.runtime.cache().results_dir();
    let failure = failure.or_else(|| {
        let why = state::obstacle(cache)?;
        let text = format!("attachments cannot be written down in {}: {why}", cache.display());
        Some(cni::Error::new(code::PLUGIN_NOT_AVAILABLE, text))
    });
    let mut warnings = forwarding::warnings(&network.list, None, &Index::new(&session.roots));
    warnings.extend(judgement::warnings(&session.runtime, &network.list, all));
    warnings.extend(default::lacks_ipv6(network));
    if let Some(file) = &network.file {
        warnings.extend(runtimes.too_old_for(&network.list, file));
    }
    let exit = match (&failure, unknown) {
        (Some(_), true) => Some(EXIT_ENVIRONMENT),
        (failure, _) => failure.as_ref().map(|error| Failure::from(error.clone()).exit_number()),
    };
    State {
        network: network.list.name.clone(),
        file: network.file.as_ref().map(|path| path.display().to_string()),
        cni_version: network.list.cni_version.clone(),
        plugins: network.chain(),
        ready: (!unknown && (failure.is_some() || unasked.is_empty())).then_some(failure.is_none()),
        error: failure,
        unasked,
        warnings,
        origin: network.origin(),
        exit: exit.unwrap_or_default(),
    }
}

/// Adds what to do, if it is not known whether the network is ready: root gets more details.
fn advised(error: cni::Error, unknown: bool) -> cni::Error {
    if !unknown {
        return Failure::from(error).into_cni();
    }
    let error = Failure::from(error).to_cni();
    match remedy::is_root() || error.details.contains(remedy::BE_ROOT) {
        true => error,
        false => error.with_details(remedy::BE_ROOT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    /// What keeps a container from others may concern those that are attached, which `doctor` looks
    /// at; what only ADD needs does not.
    #[test]
    fn where_attached_containers_may_suffer_doctor_is_named() {
        let text = |code: u32| {
            let state = State {
                network: "blue".to_owned(),
                file: None,
                cni_version: "1.1.0".to_owned(),
                plugins: vec!["bridge".to_owned()],
                ready: Some(false),
                unasked: Vec::new(),
                error: Some(cni::Error::new(code, "no way out")),
                warnings: Vec::new(),
                origin: "here".to_owned(),
                exit: EXIT_ENVIRONMENT,
            };
            let networks =
                Networks { networks: vec![state], broken: Vec::new(), disturbed: Vec::new() };
            let text = networks.text();
            text.lines().skip(2).map(|line| format!("{line}\n")).collect::<String>()
        };
        expect![[r#"
            blue: no way out (code 51)
            hint: `netwright doctor` looks for the cause on this node
        "#]]
        .assert_eq(&text(code::LIMITED_CONNECTIVITY));
        expect![[r#"
            blue: no way out (code 50)
        "#]]
        .assert_eq(&text(code::PLUGIN_NOT_AVAILABLE));
    }
}
