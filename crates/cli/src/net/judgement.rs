//! Judges whether a container could be attached to a network now.

use cni::config::IpamHead;
use cni::{NetworkList, PluginConfig, Version};
use cni_runtime::{ValidateError, ValidateProblem};
use kernel::remedy;
use plugins::judge;
use serde::Deserialize;

use super::session::{Network, Session};
use super::{own_plugins, trust};
use crate::failure::Failure;

/// Whether ADD would succeed.
#[derive(Debug)]
pub(crate) struct Judgement {
    /// Why it would not.
    pub(crate) failure: Option<cni::Error>,
    /// There is a failure, but perhaps only because this caller lacks rights.
    pub(crate) unknown: bool,
}

/// Asks every plugin of a network. Distinguishes a missing plugin from one that is not ready. A
/// refusal to an unprivileged caller says nothing about the network.
pub(crate) fn of(session: &Session, list: &NetworkList, refused: Option<&cni::Error>) -> Judgement {
    let failure = match session.runtime.validate_list(list, session.deadline()) {
        _ if refused.is_some() => refused.cloned(),
        Err(error) if error.problems.iter().any(|problem| stops_add(problem, list)) => {
            Some(spoken(&error))
        }
        _ => find_failure(session, list),
    };
    let unknown = failure.is_some() && !remedy::is_root();
    let failure = failure.map(|error| match unknown {
        true => with_root(error),
        false => Failure::from(error).into_cni(),
    });
    Judgement { failure, unknown }
}

/// Lists what does not stop ADD: other networks that cannot be used beside this one, and plugins
/// that users other than root can change.
pub(crate) fn warnings(session: &Session, list: &NetworkList, all: &[Network]) -> Vec<String> {
    let excluded = all.iter().filter_map(|other| judge::exclude_each_other(list, &other.list));
    let mut warnings: Vec<String> = excluded.collect();
    warnings.extend(trust::warnings(list, &session.runtime));
    warnings
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
    let delegates: Vec<String> = list.plugins.iter().filter_map(judge::delegate).collect();
    let types = list.plugins.iter().map(|plugin| &plugin.plugin_type);
    let all_own = types
        .chain(&addresses)
        .chain(&delegates)
        .all(|plugin_type| is_own(plugin_type) && !judge::holds_others(plugin_type));
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
