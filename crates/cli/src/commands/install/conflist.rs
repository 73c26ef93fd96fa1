//! Removes the configurations that daemons of ours wrote: without them, runtimes use the next one
//! of their folder.

use std::path::{Path, PathBuf};

use cni::{NetworkList, code};
use cni_runtime::{ConfigFolder, Outcome, load_file};
use plugins::netwright_multi;
use serde::Deserialize;

use super::folder::{self, Entry};
use super::manifest::Manifest;
use crate::failure::Failure;
use crate::net::session::load_failure;

/// The keys of a plugin that name plugins and networks.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Names {
    ipam: Ipam,
    cluster_network: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Ipam {
    r#type: String,
}

/// A configuration of ours that can go.
#[derive(Debug)]
pub(super) struct Conflist(PathBuf);

/// The files that daemons of ours wrote, as far as the caller names them.
#[derive(Debug)]
pub(super) struct Files<'f> {
    /// That of `netwrightd multinet`.
    pub(super) multinet: Option<&'f Path>,
    /// That of `netwrightd routing`.
    pub(super) routing: Option<&'f Path>,
}

impl Conflist {
    /// Checks that pods get the right network without our files, and returns those that exist. The
    /// next file must hold the wanted network, by default the one that pods have now, and must not
    /// need plugins that only we have. Another network than that of `routing` is as good as any.
    ///
    /// Where none of the files exists any more, the plugins of the next network must still be there
    /// without ours.
    pub(super) fn check(
        files: &Files<'_>,
        next: Option<&str>,
        dir: &Path,
        installed: Option<&Manifest>,
    ) -> Result<Vec<Self>, Failure> {
        let is_there = |path: &&Path| path.symlink_metadata().is_ok();
        let multinet = files.multinet.filter(is_there);
        let routing = files.routing.filter(is_there);
        let default = multinet.map(default_network).transpose()?;
        let given_up = routing.map(name_of).transpose()?;
        let wanted =
            next.or(default.as_deref().filter(|default| given_up.as_deref() != Some(default)));
        let ours: Vec<&Path> = [multinet, routing].into_iter().flatten().collect();
        let Some(folder) = [files.multinet, files.routing].into_iter().flatten().next() else {
            return Ok(Vec::new());
        };
        let folder = folder.parent().unwrap_or(folder);
        let found = ours.iter().map(|path| Conflist((*path).to_owned())).collect();
        if ours.is_empty() && (installed.is_none() || !folder.is_dir()) {
            return Ok(found);
        }
        let scanned = ConfigFolder::scan(folder).map_err(|error| load_failure(&error))?;
        let others =
            scanned.considered().iter().filter_map(|considered| match &considered.outcome {
                Outcome::Network(list) if !ours.contains(&considered.path.as_path()) => {
                    Some((&considered.path, &**list))
                }
                _ => None,
            });
        // Runtimes of Kubernetes take the first name, with any ending.
        let Some((other, list)) = others.min_by_key(|(path, _)| *path) else {
            let Some(first) = ours.first() else { return Ok(found) };
            return Err(refused(format!(
                "without {}, there is no network in {}",
                first.display(),
                folder.display()
            ))
            .hint("put the configuration of the cluster's own network there first"));
        };
        let other = other.display();
        if let (Some(wanted), Some(first)) = (wanted, ours.first())
            && list.name != wanted
        {
            return Err(refused(format!(
                "without {}, runtimes use the network {:?} of {other}, and not {wanted:?}",
                first.display(),
                list.name
            ))
            .hint(format!(
                "move that file away, or give --next-network {} if pods are to have that network",
                list.name
            )));
        }
        if let Some(name) = going(list, dir, installed).first() {
            return Err(refused(format!(
                "the network {:?} of {other} needs the plugin {name:?}, which only Netwright has in {}",
                list.name,
                dir.display()
            ))
            .hint("take it out of that configuration, or put another one there first: remove ours, and install the plugins of that network"));
        }
        for name in types(list) {
            if matches!(folder::look(dir, &name), Ok(Entry::Absent)) {
                return Err(refused(format!(
                    "the network {:?} of {other} needs the plugin {name:?}, which is not in {}",
                    list.name,
                    dir.display()
                ))
                .hint("install the plugins of that network there first"));
            }
        }
        Ok(found)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Removes it, so that runtimes notice.
    pub(super) fn withdraw(&self) -> Result<(), Failure> {
        state::withdraw(&self.0).map(drop).map_err(|error| Failure::of(code::IO_FAILURE, &error))
    }
}

fn refused(text: String) -> Failure {
    Failure::new(code::INVALID_CONFIG, text)
}

/// Returns the default network of the file of `netwrightd multinet`.
fn default_network(path: &Path) -> Result<String, Failure> {
    let ours = load_file(path).map_err(|refusal| refused(refusal.to_string()))?;
    match ours.plugins.as_slice() {
        [plugin] if netwright_multi::is_called_by(&plugin.plugin_type) => {
            Ok(names(plugin).cluster_network)
        }
        _ => Err(refused(format!("{} is none of netwrightd multinet", path.display()))),
    }
}

fn name_of(path: &Path) -> Result<String, Failure> {
    load_file(path).map(|list| list.name).map_err(|refusal| refused(refusal.to_string()))
}

/// Returns the plugins of a network that go with the installation in this folder, and in whose place
/// none comes back.
pub(super) fn going(list: &NetworkList, dir: &Path, installed: Option<&Manifest>) -> Vec<String> {
    let mut going = types(list);
    going.retain(|name| {
        let keeps = installed.is_some_and(|installed| installed.replaced.contains(name));
        !keeps && matches!(folder::look(dir, name), Ok(Entry::Ours))
    });
    going
}

/// Returns the types of a network's plugins, and of those that give them addresses, each once.
pub(super) fn types(list: &NetworkList) -> Vec<String> {
    let mut types: Vec<String> = Vec::new();
    for plugin in &list.plugins {
        for name in [plugin.plugin_type.clone(), names(plugin).ipam.r#type] {
            if !name.is_empty() && !types.contains(&name) {
                types.push(name);
            }
        }
    }
    types
}

fn names(plugin: &cni::PluginConfig) -> Names {
    serde_json::from_slice(&plugin.object.to_vec()).unwrap_or_default()
}
