//! Asks the plugins of a network list whether ADD would be served now, for whoever has time to ask
//! more than a runtime does: `status`, `doctor`, and STATUS of a plugin that attaches several
//! networks.
//!
//! A runtime asks STATUS of lists from version 1.1.0 on. Our plugins have that verb whatever version
//! a list has, so those of an older list are asked in a version with the verb, as long as nothing
//! that they would pass the question on to is another project's. What was not asked is named: it is
//! neither ready nor not ready.

use std::time::Instant;

use cni::{Error, NetworkList, PluginConfig, Version, code};
use cni_plugin::Inner;
use cni_runtime::{Runtime, ValidateError, ValidateProblem};

use crate::judge;

/// How deep networks may be within networks before the search stops: a list that leads back to
/// itself has no end.
const DEPTH: usize = 4;

/// Asks plugins.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "it holds a closure")]
pub struct Inquiry<'a> {
    runtime: &'a Runtime<'a>,
    is_own: &'a dyn Fn(&str) -> bool,
    deadline: Option<Instant>,
    depth: usize,
    /// Otherwise it only finds out who could be asked.
    asks: bool,
}

impl<'a> Inquiry<'a> {
    /// Takes what calls plugins. `is_own` says, by its type, whether a plugin that it finds is ours.
    #[must_use]
    pub fn new(
        runtime: &'a Runtime<'a>,
        is_own: &'a dyn Fn(&str) -> bool,
        deadline: Option<Instant>,
    ) -> Self {
        Inquiry { runtime, is_own, deadline, depth: 0, asks: true }
    }

    /// Asks about a list. Returns the plugins that could not be asked, each with the reason.
    ///
    /// # Errors
    /// The first reason why ADD would fail: a plugin that is missing, cannot be executed or speaks
    /// no version of the list's, a configuration that it refuses, its STATUS.
    pub fn ask(&self, list: &NetworkList) -> Result<Vec<String>, Error> {
        let has_status = has_status(list);
        let list = &if has_status { list.clone() } else { flat(list) };
        if self.asks {
            self.validate(list)?;
        }
        let mut unasked = Vec::new();
        for plugin in &list.plugins {
            unasked.extend(self.plugin(list, plugin, has_status)?);
        }
        unasked.sort_unstable();
        unasked.dedup();
        Ok(unasked)
    }

    fn plugin(
        &self,
        list: &NetworkList,
        plugin: &PluginConfig,
        has_status: bool,
    ) -> Result<Vec<String>, Error> {
        let name = &plugin.plugin_type;
        if !(self.is_own)(name) {
            if !has_status {
                return Ok(vec![format!("{name} ({NO_VERB} in version {})", list.cni_version)]);
            }
            self.status(list, plugin)?;
            return Ok(if self.speaks_status(name) {
                Vec::new()
            } else {
                vec![format!("{name} ({NO_VERB})")]
            });
        }
        let networks = || judge::networks(plugin, &list.name, &list.cni_version);
        match crate::info(name).and_then(|info| info.inner) {
            Some(Inner::Networks(_) | Inner::Delegates(_)) if self.depth == DEPTH => {
                Ok(vec![format!("{name} (networks within networks without an end)")])
            }
            Some(Inner::Networks(_)) => self.networks(&networks()?),
            Some(Inner::Delegates(_)) => {
                // In a folder of its own it may find other plugins than are found here.
                let asks = self.asks && plugin.object.get_ignore_case(BIN_DIR).is_none();
                let unasked = Inquiry { asks, ..*self }.networks(&networks()?)?;
                self.status(list, plugin)?;
                Ok(unasked)
            }
            Some(Inner::Plugins(_) | Inner::Delegate { .. }) | None => {
                let passed_on = passed_on(plugin);
                let foreign = passed_on.iter().find(|name| !(self.is_own)(name));
                match foreign.filter(|_| !has_status) {
                    None => self.status(list, plugin).map(|()| Vec::new()),
                    Some(other) => {
                        let why =
                            format!("asks {other}, {NO_VERB} in version {}", list.cni_version);
                        Ok(vec![format!("{name} ({why})")])
                    }
                }
            }
        }
    }

    /// Asks about several lists, as [`Inquiry::ask`]; the error names the list.
    ///
    /// # Errors
    /// As there; code 50 for what STATUS of a plugin refuses because of the host.
    pub fn networks(&self, lists: &[NetworkList]) -> Result<Vec<String>, Error> {
        let inside = Inquiry { depth: self.depth + 1, ..*self };
        let mut unasked = Vec::new();
        for list in lists {
            let named = |error: Error| error.context(format_args!("network {:?}", list.name));
            unasked.extend(inside.ask(list).map_err(named)?);
        }
        Ok(unasked)
    }

    /// Asks one plugin of a list, in a version that has the verb.
    fn status(&self, list: &NetworkList, plugin: &PluginConfig) -> Result<(), Error> {
        if !self.asks {
            return Ok(());
        }
        let cni_version = match has_status(list) {
            true => list.cni_version.clone(),
            false => Version::V1_1_0.to_string(),
        };
        let alone = NetworkList { cni_version, plugins: vec![plugin.clone()], ..list.clone() };
        self.runtime.status_list(&alone, self.deadline).map_err(|error| error.to_cni())
    }

    /// Says whether a plugin has STATUS: a runtime skips one that has not.
    fn speaks_status(&self, plugin_type: &str) -> bool {
        let info = self.runtime.version_info(plugin_type, self.deadline);
        info.is_ok_and(|info| {
            let mut spoken = info.supported.iter().filter_map(|text| Version::parse(text));
            spoken.any(|version| Version::V1_1_0 <= version)
        })
    }

    /// Finds what does not need STATUS: plugins that are missing or cannot run, and configurations
    /// that ours refuse.
    fn validate(&self, list: &NetworkList) -> Result<(), Error> {
        match self.runtime.validate_list(list, self.deadline) {
            Err(error) if error.problems.iter().any(|problem| stops_add(problem, list)) => {
                return Err(spoken(&error));
            }
            _ => {}
        }
        if let Some(refusal) = judge::list(list, self.is_own).into_iter().next() {
            if self.depth == 0 {
                return Err(refusal.to_error(&list.name));
            }
            let code =
                if refusal.is_hosts { code::PLUGIN_NOT_AVAILABLE } else { refusal.error.code };
            let error = Error { code, ..refusal.error };
            return Err(error.context(format_args!("plugin {:?}", refusal.plugin_type)));
        }
        for called in list.plugins.iter().flat_map(passed_on) {
            self.runtime
                .version_info(&called, self.deadline)
                .map_err(|failure| failure.to_cni())?;
        }
        Ok(())
    }
}

/// The key by which `netwright-multi` names a folder of plugins.
const BIN_DIR: &str = "binDir";

/// What a plugin lacks that is not asked.
const NO_VERB: &str = "which has no STATUS";

fn has_status(list: &NetworkList) -> bool {
    Version::parse(&list.cni_version).is_some_and(|version| Version::V1_1_0 <= version)
}

/// Returns the list with the plugins of a chain in its place: they are of the same network.
fn flat(list: &NetworkList) -> NetworkList {
    let mut plugins = Vec::new();
    for plugin in &list.plugins {
        match judge::inner(plugin) {
            inner if inner.is_empty() => plugins.push(plugin.clone()),
            inner => plugins.extend(inner),
        }
    }
    NetworkList { plugins, ..list.clone() }
}

/// Lists the plugins to which one of ours passes a question on.
fn passed_on(plugin: &PluginConfig) -> Vec<String> {
    let mut names: Vec<String> = judge::address_plugin(plugin).into_iter().collect();
    names.extend(judge::delegate(plugin));
    names.extend(judge::delegate_object(plugin).as_ref().and_then(judge::address_plugin));
    names
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
fn spoken(error: &ValidateError) -> Error {
    let told = error.problems.iter().filter_map(|problem| match problem {
        ValidateProblem::Version { plugin_type, supported, .. } => {
            Some(format!("plugin {plugin_type:?} supports {}", supported.join(", ")))
        }
        _ => None,
    });
    told.fold(error.to_cni(), Error::with_details)
}
