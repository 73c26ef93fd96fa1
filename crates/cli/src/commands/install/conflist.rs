//! Removes the configuration that `netwrightd multinet` wrote: without it, runtimes use the next
//! one of its folder.

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

impl Conflist {
    /// Checks that pods get the right network without it. The next file must hold the wanted
    /// network, by default the one that pods have now, and must not need plugins that only we have.
    /// Returns `None` if there is no file.
    pub(super) fn check(
        path: &Path,
        next: Option<&str>,
        dir: &Path,
        installed: Option<&Manifest>,
    ) -> Result<Option<Self>, Failure> {
        if path.symlink_metadata().is_err() {
            return Ok(None);
        }
        let refused = |text: String| Failure::new(code::INVALID_CONFIG, text);
        let file = path.display();
        let ours = load_file(path).map_err(|refusal| refused(refusal.to_string()))?;
        let [plugin] = ours.plugins.as_slice() else {
            return Err(refused(format!("{file} is none of netwrightd multinet")));
        };
        if !netwright_multi::is_called_by(&plugin.plugin_type) {
            return Err(refused(format!("{file} is none of netwrightd multinet")));
        }
        let default = names(plugin).cluster_network;
        let wanted = next.unwrap_or(&default);
        let folder = path.parent().unwrap_or(path);
        let scanned = ConfigFolder::scan(folder).map_err(|error| load_failure(&error))?;
        let others =
            scanned.considered().iter().filter_map(|considered| match &considered.outcome {
                Outcome::Network(list) if considered.path != path => {
                    Some((&considered.path, &**list))
                }
                _ => None,
            });
        // Runtimes of Kubernetes take the first name, with any ending.
        let Some((other, list)) = others.min_by_key(|(path, _)| *path) else {
            return Err(refused(format!(
                "without {file}, there is no network in {}",
                folder.display()
            ))
            .hint("put the configuration of the cluster's own network there first"));
        };
        let other = other.display();
        if list.name != wanted {
            return Err(refused(format!(
                "without {file}, runtimes use the network {:?} of {other}, and not {wanted:?}",
                list.name
            ))
            .hint(format!(
                "move that file away, or give --next-network {} if pods are to have that network",
                list.name
            )));
        }
        if let Some(name) = going(list, dir, installed).first() {
            return Err(refused(format!(
                "the network {wanted:?} of {other} needs the plugin {name:?}, which only Netwright has in {}",
                dir.display()
            ))
            .hint("put another one there first: remove the link, and install the plugins of that network"));
        }
        for name in types(list) {
            if matches!(folder::look(dir, &name), Ok(Entry::Absent)) {
                return Err(refused(format!(
                    "the network {wanted:?} of {other} needs the plugin {name:?}, which is not in {}",
                    dir.display()
                ))
                .hint("install the plugins of that network there first"));
            }
        }
        Ok(Some(Conflist(path.to_owned())))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Removes it, so that runtimes notice.
    pub(super) fn withdraw(&self) -> Result<(), Failure> {
        state::withdraw(&self.0).map(drop).map_err(|error| Failure::of(code::IO_FAILURE, &error))
    }
}

/// Returns the plugins of a network that go with the installation in this folder, and in whose place
/// none comes back.
fn going(list: &NetworkList, dir: &Path, installed: Option<&Manifest>) -> Vec<String> {
    let mut going = types(list);
    going.retain(|name| {
        let keeps = installed.is_some_and(|installed| installed.replaced.contains(name));
        !keeps && matches!(folder::look(dir, name), Ok(Entry::Ours))
    });
    going
}

/// Returns the types of a network's plugins, and of those that give them addresses, each once.
fn types(list: &NetworkList) -> Vec<String> {
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

/// Says of each configuration in the runtimes' folders which of its plugins go with the installation
/// in `dir` and do not come back. A configuration at one of the paths in `but` goes too.
pub(super) fn left_without_plugins(
    folders: &[PathBuf],
    dirs: &[PathBuf],
    (dir, installed): (&Path, Option<&Manifest>),
    but: &[&Path],
) -> Vec<String> {
    let is_elsewhere = |name: &String| {
        let others = dirs.iter().filter(|other| *other != dir);
        let mut looked = others.map(|other| folder::look(other, name));
        looked.any(|found| matches!(found, Ok(Entry::Foreign)))
    };
    let mut lines = Vec::new();
    for folder in folders {
        let Ok(scanned) = ConfigFolder::scan(folder) else { continue };
        for considered in scanned.considered() {
            let Outcome::Network(list) = &considered.outcome else { continue };
            if but.contains(&considered.path.as_path()) {
                continue;
            }
            let mut names = going(list, dir, installed);
            names.retain(|name| !is_elsewhere(name));
            if let Some(first) = names.first() {
                let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
                lines.push(format!(
                    "{}: the network {:?} needs {}, which only Netwright has: runtimes will say: failed to find plugin {first:?}",
                    considered.path.display(),
                    list.name,
                    quoted.join(", "),
                ));
            }
        }
    }
    lines
}

fn names(plugin: &cni::PluginConfig) -> Names {
    serde_json::from_slice(&plugin.object.to_vec()).unwrap_or_default()
}
