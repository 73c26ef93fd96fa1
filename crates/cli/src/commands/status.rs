//! `status`: says whether a container could be attached now, and whether the plugins that `install`
//! put where runtimes look are still there.

use std::process::ExitCode;

use agent::installed::{self, DPKG, Disturbed, Installed};
use cni::config::IpamHead;
use cni::text::one_line;
use cni::{NetworkList, PluginConfig, Version};
use cni_runtime::{ValidateError, ValidateProblem};
use kernel::remedy;
use plugins::judge;
use serde::{Deserialize, Serialize};
use state::Index;

use super::Outcome;
use crate::args::{Common, Status};
use crate::failure::{EXIT_ENVIRONMENT, EXIT_PERMANENT, Failure};
use crate::net::runtimes::Runtimes;
use crate::net::session::{Network, PluginSource, Session};
use crate::net::{forwarding, own_plugins, trust};
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
    disturbed: Vec<Disturbed>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct State {
    network: String,
    file: Option<String>,
    cni_version: String,
    plugins: Vec<String>,
    /// `None` if finding out takes rights that the caller lacks.
    ready: Option<bool>,
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
    let disturbed = installed.found.iter().filter_map(Installed::disturbed);
    let disturbed = disturbed.map(|one| one.with_packages(DPKG.as_ref())).collect();
    let report = Networks { networks: states, broken, disturbed };
    shell.print(&report);
    let broken = (!report.broken.is_empty()).then_some(EXIT_PERMANENT);
    let gone = report.disturbed.iter().any(|one| !one.gone.is_empty()).then_some(EXIT_ENVIRONMENT);
    let failed =
        report.networks.iter().find(|state| state.ready != Some(true)).map(|state| state.exit);
    Ok(ExitCode::from(failed.or(broken).or(gone).unwrap_or(0)))
}

/// Asks every plugin of a network. It distinguishes a missing plugin from one that is not ready.
/// What an unprivileged caller is refused says nothing about the network.
fn state(
    session: &Session,
    network: &Network,
    runtimes: &Runtimes,
    refused: Option<&cni::Error>,
    all: &[Network],
) -> State {
    let runtime = &session.runtime;
    let failure = match runtime.validate_list(&network.list, session.deadline()) {
        _ if refused.is_some() => refused.cloned(),
        Err(error) if error.problems.iter().any(|problem| stops_add(problem, &network.list)) => {
            Some(spoken(&error))
        }
        _ => find_failure(session, &network.list),
    };
    let mut warnings = forwarding::warnings(&network.list, &Index::new(&session.roots));
    warnings.extend(
        all.iter().filter_map(|other| judge::exclude_each_other(&network.list, &other.list)),
    );
    warnings.extend(trust::warnings(&network.list, runtime));
    if let Some(file) = &network.file {
        warnings.extend(runtimes.too_old_for(&network.list, file));
    }
    let unknown = failure.is_some() && !remedy::is_root();
    let failure = failure.map(|error| match unknown {
        true => with_root(error),
        false => Failure::from(error).into_cni(),
    });
    let exit = match (&failure, unknown) {
        (Some(_), true) => Some(EXIT_ENVIRONMENT),
        (failure, _) => failure.as_ref().map(|error| Failure::from(error.clone()).exit_number()),
    };
    State {
        network: network.list.name.clone(),
        file: network.file.as_ref().map(|path| path.display().to_string()),
        cni_version: network.list.cni_version.clone(),
        plugins: network.chain(),
        ready: (!unknown).then_some(failure.is_none()),
        error: failure,
        warnings,
        origin: network.origin(),
        exit: exit.unwrap_or_default(),
    }
}

/// Adds that root gets more details.
fn with_root(error: cni::Error) -> cni::Error {
    let error = Failure::from(error).to_cni();
    match error.details.contains(remedy::BE_ROOT) {
        true => error,
        false => error.with_details(remedy::BE_ROOT),
    }
}

/// Says whether a problem stops ADD. A version that a plugin lacks is negotiated by ADD, if there
/// is another; everything else stops it.
fn stops_add(problem: &ValidateProblem, list: &NetworkList) -> bool {
    let ValidateProblem::Version { plugin_type, supported, .. } = problem else { return true };
    let speaks = |floor: Version| {
        let mut spoken = supported.iter().filter_map(|text| Version::parse(text));
        spoken.any(|version| floor <= version)
    };
    // From 0.3.0 on a plugin gets the result of the plugins before it.
    let is_first = list.plugins.first().is_some_and(|first| first.plugin_type == *plugin_type);
    let floor = if is_first { Version::V0_1_0 } else { Version::V0_3_0 };
    Version::parse(&list.cni_version).is_none() || !speaks(floor)
}

/// Describes the problem, and the versions of those plugins that do not speak the list's.
fn spoken(error: &ValidateError) -> cni::Error {
    let told = error.problems.iter().filter_map(|problem| match problem {
        ValidateProblem::Version { plugin_type, supported, .. } => {
            Some(format!("plugin {plugin_type:?} supports {}", supported.join(", ")))
        }
        _ => None,
    });
    told.fold(error.to_cni(), cni::Error::with_details)
}

/// Finds why ADD would fail: by how our plugins read their configurations, by the address plugins,
/// and by all plugins' answers to STATUS.
fn find_failure(session: &Session, list: &NetworkList) -> Option<cni::Error> {
    let runtime = &session.runtime;
    let is_own = |plugin_type: &str| {
        runtime.find_plugin(plugin_type).is_ok_and(|executable| own_plugins::is_own(&executable))
    };
    if let Some(refusal) = judge::list(list, &is_own).first() {
        return Some(refusal.to_error(&list.name));
    }
    let addresses: Vec<String> = list.plugins.iter().filter_map(address_plugin).collect();
    for plugin_type in &addresses {
        if let Err(failure) = runtime.version_info(plugin_type, session.deadline()) {
            return Some(failure.to_cni());
        }
    }
    let asked = |list: &NetworkList| {
        runtime.status_list(list, session.deadline()).err().map(|error| error.to_cni())
    };
    if Version::parse(&list.cni_version).is_some_and(|version| Version::V1_1_0 <= version) {
        return asked(list);
    }
    // Runtimes then ask no plugin. Ours answer all the same, in a version that has the verb.
    let delegates: Vec<String> = list.plugins.iter().filter_map(plugins::judge::delegate).collect();
    let types = list.plugins.iter().map(|plugin| &plugin.plugin_type);
    let all_own = types
        .chain(&addresses)
        .chain(&delegates)
        .all(|plugin_type| is_own(plugin_type) && !plugins::judge::holds_others(plugin_type));
    let newer = NetworkList { cni_version: Version::V1_1_0.to_string(), ..list.clone() };
    if all_own { asked(&newer) } else { None }
}

fn address_plugin(plugin: &PluginConfig) -> Option<String> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Keys {
        ipam: IpamHead,
    }
    let keys: Keys = plugin.object.read().ok()?;
    Some(keys.ipam.plugin_type).filter(|plugin_type| !plugin_type.is_empty())
}
