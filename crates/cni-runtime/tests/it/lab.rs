//! A folder of fake plugins, a cache and a runtime that uses both.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cni::{ContainerId, IfName, NetworkList};
use cni_invoke::Exec;
use netwright_cni_runtime::{Attachment, Cache, Runtime};
use serde_json::Value;

const FAKE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fake-plugin.sh");

/// Everything of one test, removed with it.
#[derive(Debug)]
pub(crate) struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    pub(crate) fn new(plugins: &[&str]) -> Self {
        let lab = Lab { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir(lab.bin()).unwrap();
        for plugin in plugins {
            lab.plugin(plugin);
        }
        lab
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn bin(&self) -> PathBuf {
        self.path().join("bin")
    }

    pub(crate) fn results(&self) -> PathBuf {
        self.path().join("cache/results")
    }

    pub(crate) fn plugin(&self, name: &str) {
        symlink(FAKE, self.bin().join(name)).unwrap();
    }

    pub(crate) fn remove_plugin(&self, name: &str) {
        std::fs::remove_file(self.bin().join(name)).unwrap();
    }

    /// Replaces what a plugin does for a verb by a piece of shell.
    pub(crate) fn on(&self, plugin: &str, verb: &str, script: &str) -> &Self {
        std::fs::write(self.bin().join(format!("{plugin}.{verb}")), script).unwrap();
        self
    }

    /// Restores a plugin's normal behaviour.
    pub(crate) fn off(&self, plugin: &str, verb: &str) {
        std::fs::remove_file(self.bin().join(format!("{plugin}.{verb}"))).unwrap();
    }

    pub(crate) fn runtime(&self) -> Runtime<'static> {
        Runtime::new([self.bin()], Arc::new(Exec::new(std::env::vars_os())))
            .with_cache(Cache::new(self.path().join("cache")).volatile())
    }

    /// Returns the calls since the last call of this function, as `VERB type`.
    pub(crate) fn calls(&self) -> Vec<String> {
        let calls = self.calls_with_container();
        calls.iter().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
    }

    /// Returns the calls since the last call of this function, as `VERB type container`.
    pub(crate) fn calls_with_container(&self) -> Vec<String> {
        let log = self.bin().join("log");
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let _ = std::fs::remove_file(log);
        text.lines().map(str::to_owned).collect()
    }

    /// Returns a plugin's standard input, as text.
    pub(crate) fn stdin(&self, plugin: &str, verb: &str) -> String {
        std::fs::read_to_string(self.bin().join(format!("{plugin}.{verb}.stdin"))).unwrap()
    }

    /// Returns a plugin's standard input.
    pub(crate) fn config(&self, plugin: &str, verb: &str) -> Value {
        serde_json::from_str(&self.stdin(plugin, verb)).unwrap()
    }

    /// Returns a variable of a plugin's environment.
    pub(crate) fn variable(&self, plugin: &str, verb: &str, name: &str) -> Option<String> {
        let env = std::fs::read_to_string(self.bin().join(format!("{plugin}.{verb}.env"))).unwrap();
        let start = format!("{name}=");
        env.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
    }

    /// Lists the cache's files.
    pub(crate) fn cached(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.results()) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub(crate) fn write_cached(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::create_dir_all(self.results()).unwrap();
        std::fs::write(self.results().join(name), content).unwrap();
    }

    pub(crate) fn read_cached(&self, name: &str) -> Value {
        serde_json::from_slice(&std::fs::read(self.results().join(name)).unwrap()).unwrap()
    }
}

/// Makes a list named `net` of plugins without options.
pub(crate) fn chain(cni_version: &str, plugins: &[&str]) -> NetworkList {
    network("net", cni_version, plugins)
}

pub(crate) fn network(name: &str, cni_version: &str, plugins: &[&str]) -> NetworkList {
    let plugins: Vec<Value> =
        plugins.iter().map(|plugin| serde_json::json!({ "type": plugin })).collect();
    list(&serde_json::json!({ "name": name, "cniVersion": cni_version, "plugins": plugins }))
}

pub(crate) fn list(document: &Value) -> NetworkList {
    NetworkList::parse(document.to_string().as_bytes()).unwrap()
}

/// Describes the interface `eth0` of a container.
pub(crate) fn container(id: &str) -> Attachment {
    let netns = format!("/run/netns/nwt-{id}");
    Attachment::new(ContainerId::new(id).unwrap(), IfName::new("eth0").unwrap(), netns)
}

pub(crate) fn soon(time: Duration) -> Option<Instant> {
    Some(Instant::now() + time)
}
