//! Reads what runtimes' configurations say about CNI.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// How deeply configurations may include others.
const DEPTH: usize = 8;

/// Where a runtime looks, as far as its files say.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct SearchPaths {
    pub(super) plugin_dirs: Option<Vec<PathBuf>>,
    pub(super) conf_dir: Option<PathBuf>,
    /// The file that names the plugin folders.
    pub(super) from: Option<PathBuf>,
    /// The runtime does not use CNI.
    pub(super) is_off: bool,
}

/// The machine's files, or those below a folder that stands for its root.
#[derive(Debug)]
pub(super) struct Machine<'r>(pub(super) &'r Path);

impl Machine<'_> {
    pub(super) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Reads a file; `None` if there is none.
    fn read(&self, path: &Path) -> Result<Option<Table>, String> {
        let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let bytes = state::read_optional(&self.at(path)).map_err(|error| failed(&error))?;
        let Some(bytes) = bytes else { return Ok(None) };
        let text = String::from_utf8(bytes).map_err(|error| failed(&error))?;
        // The first line says what is wrong; the others show the place.
        let first = |error: toml::de::Error| failed(&error.message());
        text.parse::<Table>().map(Some).map_err(first)
    }

    /// Returns the files of a folder with this prefix and ending, sorted by name.
    fn files(&self, folder: &Path, begin: &str, end: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.at(folder)).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names
            .filter(|name| begin.len() + end.len() <= name.len())
            .filter(|name| name.starts_with(begin) && name.ends_with(end))
            .collect();
        names.sort_unstable();
        names.into_iter().map(|name| folder.join(name)).collect()
    }

    /// Reads containerd's file and what it imports. A section of a later file replaces that of an
    /// earlier one (`man 5 containerd-config.toml` "imports"; containerd's `mergeConfig`).
    pub(super) fn containerd(&self, file: &str) -> Result<Option<SearchPaths>, String> {
        let mut said = SearchPaths::default();
        let mut pending = vec![(PathBuf::from(file), 0)];
        let mut seen = Vec::new();
        let mut is_there = false;
        while !pending.is_empty() {
            let (path, depth) = pending.remove(0);
            if seen.contains(&path) || DEPTH < depth {
                continue;
            }
            let Some(table) = self.read(&path)? else { continue };
            is_there = true;
            let disabled = strings(table.get("disabled_plugins")).unwrap_or_default();
            said.is_off |= disabled.iter().any(|name| CRI.contains(&name.as_str()));
            for section in CRI {
                let cri = table.get("plugins").and_then(|plugins| plugins.get(section));
                let Some(cri) = cri else { continue };
                let cni = cri.get("cni");
                let key = |name: &str| cni.and_then(|cni| cni.get(name));
                let one = text(key("bin_dir")).map(|dir| vec![dir]);
                let dirs = strings(key("bin_dirs")).or(one);
                said.from = dirs.is_some().then(|| path.clone());
                said.plugin_dirs = dirs.map(|dirs| dirs.into_iter().map(PathBuf::from).collect());
                said.conf_dir = text(key("conf_dir")).map(PathBuf::from);
            }
            for import in strings(table.get("imports")).unwrap_or_default() {
                let import = path.parent().unwrap_or(Path::new("/")).join(import);
                let name = import.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let folder = import.parent().unwrap_or(Path::new("/")).to_owned();
                let found = match name.split_once('*') {
                    Some((begin, end)) => self.files(&folder, begin, end),
                    None => vec![import],
                };
                pending.extend(found.into_iter().map(|found| (found, depth + 1)));
            }
            seen.push(path);
        }
        Ok(is_there.then_some(said))
    }

    /// Reads podman's files (`man 5 containers.conf`): a later one wins over an earlier one. `only`
    /// is what the environment names in place of all files, `last` a file after all of them.
    pub(super) fn podman(
        &self,
        only: Option<&str>,
        last: Option<&str>,
    ) -> Result<SearchPaths, String> {
        let mut files = Vec::new();
        match only {
            Some(file) => files.push(PathBuf::from(file)),
            None => files = self.containers(),
        }
        files.extend(last.map(PathBuf::from));
        self.merged(&files, |table, said, path| {
            let key = |name: &str| table.get("network").and_then(|network| network.get(name));
            if let Some(dirs) = strings(key("cni_plugin_dirs")) {
                said.plugin_dirs = Some(dirs.into_iter().map(PathBuf::from).collect());
                said.from = Some(path.to_owned());
            }
            if let Some(dir) = text(key("network_config_dir")) {
                said.conf_dir = Some(dir.into());
            }
            if let Some(backend) = text(key("network_backend")) {
                said.is_off = backend == "netavark";
            }
        })
    }

    /// Returns the files that podman reads, in order.
    fn containers(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for base in ["/usr/share/containers", "/etc/containers"] {
            files.push(Path::new(base).join("containers.conf"));
            files.extend(self.files(&Path::new(base).join("containers.conf.d"), "", ".conf"));
        }
        files
    }

    /// Returns the descriptions of hooks: those in the folders that podman and CRI-O read by
    /// default, and in the folders that podman's files name. A file that cannot be read names none.
    pub(super) fn hooks(&self) -> Vec<PathBuf> {
        let bases = ["/usr/share/containers", "/etc/containers"];
        let mut folders = bases.map(|base| Path::new(base).join("oci/hooks.d")).to_vec();
        for file in self.containers() {
            let table = self.read(&file).ok().flatten().unwrap_or_default();
            let engine = table.get("engine").and_then(|engine| engine.get("hooks_dir"));
            folders.extend(strings(engine).unwrap_or_default().into_iter().map(PathBuf::from));
        }
        let mut files: Vec<PathBuf> =
            folders.iter().flat_map(|folder| self.files(folder, "", ".json")).collect();
        files.sort_unstable();
        files.dedup();
        files
    }

    /// Reads CRI-O's files (`man 5 crio.conf`, `man 5 crio.conf.d`).
    pub(super) fn cri_o(&self) -> Result<SearchPaths, String> {
        let mut files = vec![PathBuf::from("/etc/crio/crio.conf")];
        files.extend(self.files(Path::new("/etc/crio/crio.conf.d"), "", ""));
        self.merged(&files, |table, said, path| {
            let network = table.get("crio").and_then(|crio| crio.get("network"));
            let key = |name: &str| network.and_then(|network| network.get(name));
            if let Some(dirs) = strings(key("plugin_dirs")) {
                said.plugin_dirs = Some(dirs.into_iter().map(PathBuf::from).collect());
                said.from = Some(path.to_owned());
            }
            if let Some(dir) = text(key("network_dir")) {
                said.conf_dir = Some(dir.into());
            }
        })
    }

    /// Reads nerdctl's file (its `docs/config.md`).
    pub(super) fn nerdctl(&self) -> Result<SearchPaths, String> {
        let file = PathBuf::from("/etc/nerdctl/nerdctl.toml");
        self.merged(&[file], |table, said, path| {
            if let Some(dir) = text(table.get("cni_path")) {
                said.plugin_dirs = Some(vec![dir.into()]);
                said.from = Some(path.to_owned());
            }
            said.conf_dir = text(table.get("cni_netconfpath")).map(PathBuf::from);
        })
    }

    fn merged(
        &self,
        files: &[PathBuf],
        mut take: impl FnMut(&Table, &mut SearchPaths, &Path),
    ) -> Result<SearchPaths, String> {
        let mut said = SearchPaths::default();
        for path in files {
            if let Some(table) = self.read(path)? {
                take(&table, &mut said, path);
            }
        }
        Ok(said)
    }
}

/// The names of containerd's CRI plugin, in versions 1, 2 and 3 of its configuration.
const CRI: [&str; 3] = ["cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"];

fn text(value: Option<&Value>) -> Option<String> {
    value?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn strings(value: Option<&Value>) -> Option<Vec<String>> {
    let list = value?.as_array()?;
    Some(list.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect())
}
