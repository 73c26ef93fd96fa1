//! Which configurations, and which attached containers, no plugin serves once ours are gone.
//!
//! A runtime uses a list whose plugins are gone, or do not speak its version, all the same: it starts
//! no container on that network, and cannot detach one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cni::{AttachmentKey, NetworkList, Version};
use cni_invoke::Executor;
use cni_runtime::{ConfigFolder, Outcome, Runtime, VersionInfo};
use plugins::Builtins;

use super::attached::listed;
use super::conflist::{going, types};
use super::folder::{self, Entry};
use super::manifest;
use super::places::{Place, looked_at};
use crate::args::Common;
use crate::net::runtimes::Runtimes;
use crate::net::session::DEFAULT_CONF_DIR;
use crate::world::World;
use crate::{VERSION, plugin_process};

/// How long another project's plugin may take to say which versions it speaks.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The folders in which runtimes look, and what executes plugins.
struct RuntimeFolders {
    configurations: Vec<PathBuf>,
    plugins: Vec<PathBuf>,
    executor: Arc<dyn Executor>,
}

/// What other projects' plugins said of the versions that they speak; `None` if they did not.
type SpokenVersions = BTreeMap<PathBuf, Option<VersionInfo>>;

/// Says of each configuration in the runtimes' folders which of its plugins go with these
/// installations and do not come back, and which come back and do not speak its version; and which of
/// the `attached` are of its network. A configuration that goes too is not named: one that we wrote
/// and that no folder in `remaining` needs.
pub(in crate::commands) fn lost(
    places: &[Place],
    remaining: &[PathBuf],
    attached: &[AttachmentKey],
    (world, common): (&World, &Common),
) -> Vec<String> {
    let looked = RuntimeFolders::of(world, common);
    let configs = places.iter().flat_map(|place| &place.installed);
    let configs = configs.flat_map(|installed| &installed.config);
    let own: Vec<&Path> = configs
        .filter(|config| remaining.is_empty() && config.is_unchanged())
        .map(|config| config.path.as_path())
        .collect();
    let mut spoken = SpokenVersions::new();
    let mut lines = Vec::new();
    for folder in &looked.configurations {
        let Ok(scanned) = ConfigFolder::scan(folder) else { continue };
        for considered in scanned.considered() {
            let Outcome::Network(list) = &considered.outcome else { continue };
            if own.contains(&considered.path.as_path()) {
                continue;
            }
            let Some(why) = without(list, places, &looked, &mut spoken) else { continue };
            let path = considered.path.display();
            let mut line = format!("{path}: the network {:?} {why}", list.name);
            let keys = attached.iter().filter(|key| key.network.as_str() == list.name);
            let keys: Vec<String> = keys.map(ToString::to_string).collect();
            if !keys.is_empty() {
                let keys = listed(&keys);
                line.push_str(&format!(
                    ", and no other plugin can detach what is attached: {keys}"
                ));
            }
            lines.push(line);
        }
    }
    lines
}

impl RuntimeFolders {
    fn of(world: &World, common: &Common) -> Self {
        let runtimes = Runtimes::find(world);
        let given = common.conf_dir.clone();
        let given = given.or_else(|| world.variable("NETCONFPATH").map(Into::into));
        let mut configurations: Vec<PathBuf> =
            runtimes.found.iter().map(|one| one.conf_dir.clone()).collect();
        configurations.push(world.absolute(given.unwrap_or_else(|| DEFAULT_CONF_DIR.into())));
        cni::order::sort(&mut configurations);
        configurations.dedup();
        let builtins = Builtins { roots: world.roots(), build: VERSION };
        let executor = Arc::new(plugin_process::mixed(&builtins, &world.environment));
        RuntimeFolders { configurations, plugins: looked_at(&runtimes), executor }
    }

    /// Returns the folder that has a plugin when these installations are gone.
    fn folder_of(&self, name: &str, places: &[Place]) -> Option<PathBuf> {
        let is_replaced = |place: &&Place| {
            let installed = place.installed.as_ref();
            installed.is_some_and(|installed| installed.replaced.iter().any(|one| one == name))
        };
        if let Some(place) = places.iter().find(is_replaced) {
            return Some(manifest::folder_of(&place.dir));
        }
        let stays = |dir: &&PathBuf| match folder::look(dir, name) {
            Ok(Entry::Foreign) => true,
            Ok(Entry::Ours) => !places.iter().any(|place| place.dir == **dir),
            _ => false,
        };
        self.plugins.iter().find(stays).cloned()
    }
}

/// Says why nothing serves a network any more; `None` if something does.
fn without(
    list: &NetworkList,
    places: &[Place],
    looked: &RuntimeFolders,
    spoken: &mut SpokenVersions,
) -> Option<String> {
    let mut names: Vec<String> = Vec::new();
    for place in places {
        names.extend(going(list, &place.dir, place.installed.as_ref()));
    }
    names.retain(|name| looked.folder_of(name, places).is_none());
    cni::order::sort(&mut names);
    names.dedup();
    if let Some(first) = names.first() {
        let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        return Some(format!(
            "needs {}, which only Netwright has: runtimes will say: failed to find plugin {first:?}",
            quoted.join(", ")
        ));
    }
    // Every plugin that there is speaks an older version.
    let wanted = Version::parse(&list.cni_version).filter(|wanted| Version::V0_4_0 < *wanted)?;
    let is_ours = |name: &String| {
        places.iter().any(|place| matches!(folder::look(&place.dir, name), Ok(Entry::Ours)))
    };
    for name in types(list).into_iter().filter(is_ours) {
        let Some(dir) = looked.folder_of(&name, places) else { continue };
        let known = spoken.entry(dir.join(&name)).or_insert_with(|| {
            let runtime = Runtime::new([&dir], Arc::clone(&looked.executor));
            runtime.version_info(&name, Instant::now().checked_add(TIMEOUT)).ok()
        });
        // What does not answer says nothing of itself.
        let Some(known) = known.as_ref().filter(|known| !known.supports(wanted)) else { continue };
        let newest = known.supported.last().map_or("", String::as_str);
        return Some(format!(
            "has cniVersion {wanted}, and {:?}, which comes back, speaks {newest} at most",
            name
        ));
    }
    None
}
