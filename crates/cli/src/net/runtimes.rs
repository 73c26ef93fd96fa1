//! The container runtimes of this machine that use CNI: where each looks for plugins and for
//! networks, and which versions it reads.
//!
//! | runtime | files | by default |
//! |---|---|---|
//! | containerd, and those of k3s and RKE2 | `/etc/containerd/config.toml` and what it imports; `/var/lib/rancher/*/agent/etc/containerd/config.toml` | `/opt/cni/bin` |
//! | podman | `containers.conf` and `containers.conf.d/*.conf` in `/usr/share/containers` and `/etc/containers`, `CONTAINERS_CONF` | five folders, `/usr/lib/cni` before `/opt/cni/bin` |
//! | CRI-O | `/etc/crio/crio.conf`, `/etc/crio/crio.conf.d/` | `/opt/cni/bin` |
//! | nerdctl | `/etc/nerdctl/nerdctl.toml` | the first of five folders that has `loopback` |
//!
//! A runtime with several folders takes each plugin from the first folder that has it.

mod files;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cni::{NetworkList, Version};
use doctor::programs;
use serde::Serialize;

use crate::world::World;
use files::{Machine, SearchPaths};

/// Where most runtimes look.
pub(crate) const USUAL: &str = "/opt/cni/bin";

/// Where runtimes look for networks by default.
const NETWORKS: &str = "/etc/cni/net.d";

/// podman's folders (`man 5 containers.conf` "cni_plugin_dirs").
const PODMANS: [&str; 5] = [
    "/usr/local/libexec/cni",
    "/usr/libexec/cni",
    "/usr/local/lib/cni",
    "/usr/lib/cni",
    "/opt/cni/bin",
];

/// nerdctl's folders: it takes the first that has `loopback`.
const NERDCTLS: [&str; 5] = [
    "/opt/cni/bin",
    "/usr/local/libexec/cni",
    "/usr/local/lib/cni",
    "/usr/libexec/cni",
    "/usr/lib/cni",
];

/// Folders of programs.
const PROGRAMS: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// The timeout for a runtime to print its version.
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Runtime {
    pub(crate) name: &'static str,
    /// Where it looks for plugins; the first folder that has a plugin wins.
    pub(crate) plugin_dirs: Vec<PathBuf>,
    /// Where it looks for networks.
    pub(crate) conf_dir: PathBuf,
    /// The file that says so; without it these are the defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<PathBuf>,
    /// The program that prints its version.
    #[serde(skip)]
    program: Option<PathBuf>,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Runtimes {
    pub(crate) found: Vec<Runtime>,
    /// Files that cannot be read: we do not know where their runtimes look.
    pub(crate) unknown: Vec<String>,
}

impl Runtimes {
    /// Looks for the runtimes of this machine.
    pub(crate) fn find(world: &World) -> Self {
        Self::below(Path::new("/"), &|name| world.variable(name))
    }

    /// Returns the files by which podman and CRI-O know hooks (`man 5 oci-hooks`).
    pub(crate) fn hooks() -> Vec<PathBuf> {
        Machine(Path::new("/")).hooks()
    }

    fn below(root: &Path, variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let machine = Machine(root);
        let mut all = Runtimes::default();
        let program = |name: &str| {
            let mut paths = PROGRAMS.iter().map(|dir| Path::new(dir).join(name));
            paths.find(|path| machine.at(path).is_file())
        };
        let usual = || vec![PathBuf::from(USUAL)];
        for (name, file) in [
            ("containerd", "/etc/containerd/config.toml"),
            ("k3s", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"),
            ("rke2", "/var/lib/rancher/rke2/agent/etc/containerd/config.toml"),
        ] {
            let own = if name == "containerd" { program(name) } else { None };
            match machine.containerd(file) {
                Ok(None) if own.is_none() => {}
                said => all.take(name, own, said.map(Option::unwrap_or_default), usual()),
            }
        }
        if let Some(own) = program("podman") {
            let only = variable("CONTAINERS_CONF");
            let last = variable("CONTAINERS_CONF_OVERRIDE");
            let said = machine.podman(only.as_deref(), last.as_deref());
            all.take("podman", Some(own), said, PODMANS.map(PathBuf::from).into());
        }
        if let Some(own) = program("crio") {
            all.take("CRI-O", Some(own), machine.cri_o(), usual());
        }
        if let Some(own) = program("nerdctl") {
            let mut candidates = NERDCTLS.iter().map(PathBuf::from);
            let has = candidates.find(|dir| machine.at(dir).join("loopback").exists());
            all.take(
                "nerdctl",
                Some(own),
                machine.nerdctl(),
                has.map_or_else(usual, |dir| vec![dir]),
            );
        }
        all
    }

    fn take(
        &mut self,
        name: &'static str,
        program: Option<PathBuf>,
        said: Result<SearchPaths, String>,
        by_default: Vec<PathBuf>,
    ) {
        match said {
            Ok(said) if said.is_off => {}
            Ok(said) => self.found.push(Runtime {
                name,
                plugin_dirs: said.plugin_dirs.unwrap_or(by_default),
                conf_dir: said.conf_dir.unwrap_or_else(|| NETWORKS.into()),
                from: said.from,
                program,
            }),
            Err(why) => self.unknown.push(format!("{name}: {why}")),
        }
    }

    /// Returns the folders for plugins from which every runtime takes them: as few as possible.
    /// `has` says whether a folder has some already.
    pub(crate) fn folders(&self, has: &dyn Fn(&Path) -> bool) -> Vec<PathBuf> {
        let mut chosen: Vec<PathBuf> = Vec::new();
        let mut choices: Vec<Vec<&PathBuf>> =
            self.found.iter().map(|runtime| runtime.effective(has)).collect();
        // A runtime that takes plugins from only one folder decides for the others.
        cni::order::sort_by_key(&mut choices, Vec::len);
        for choices in choices {
            if choices.iter().any(|dir| chosen.contains(dir)) {
                continue;
            }
            let with_plugins = choices.last().filter(|dir| has(dir));
            let usual = choices.iter().find(|dir| **dir == Path::new(USUAL));
            if let Some(dir) = with_plugins.or(usual).or(choices.first()) {
                chosen.push((*dir).clone());
            }
        }
        if chosen.is_empty() {
            chosen.push(USUAL.into());
        }
        chosen
    }

    /// Reports which runtimes take their plugins from these folders, and why others do not. `has`
    /// lists the plugins of a folder.
    pub(crate) fn tell(
        &self,
        folders: &[PathBuf],
        has: &dyn Fn(&Path) -> Vec<&'static str>,
    ) -> (Vec<String>, Vec<String>) {
        let (mut used, mut notes) = (Vec::new(), Vec::new());
        for runtime in &self.found {
            let (name, by) = (runtime.name, runtime.said_by());
            let at = runtime.plugin_dirs.iter().position(|dir| folders.contains(dir));
            let Some(at) = at else {
                let dirs: Vec<_> =
                    runtime.plugin_dirs.iter().map(|dir| dir.display().to_string()).collect();
                notes.push(format!(
                    "{name} looks for plugins elsewhere: in {} ({by})",
                    dirs.join(", ")
                ));
                continue;
            };
            let before = runtime.plugin_dirs[..at].iter();
            let first = before.map(|dir| (dir, has(dir))).find(|(_, names)| !names.is_empty());
            match first {
                None => used.push(format!("{name} ({by})")),
                Some((dir, names)) => {
                    let more = names.len().saturating_sub(LISTED);
                    let mut names = names.into_iter().take(LISTED).collect::<Vec<_>>().join(", ");
                    if more != 0 {
                        names.push_str(&format!(" and {more} more"));
                    }
                    notes.push(format!("{name} takes {names} from {} first ({by})", dir.display()));
                }
            }
        }
        notes.extend(
            self.unknown.iter().map(|why| format!("a folder of plugins is not known: {why}")),
        );
        (used, notes)
    }

    /// Reports that no runtime looks for networks in a folder. In a container the folder is the
    /// container's own, and the user may take it for the host's.
    pub(crate) fn unread(&self, networks: &Path) -> Option<String> {
        let reads = |runtime: &Runtime| runtime.conf_dir == networks;
        if !self.unknown.is_empty() || self.found.iter().any(reads) {
            return None;
        }
        let elsewhere = |runtime: &Runtime| {
            format!("{} reads {} ({})", runtime.name, runtime.conf_dir.display(), runtime.said_by())
        };
        let elsewhere: Vec<String> = self.found.iter().map(elsewhere).collect();
        let why = match elsewhere.is_empty() {
            true => "none was found on this machine, or in this container".to_owned(),
            false => elsewhere.join(", "),
        };
        Some(format!("no container runtime reads networks from {}: {why}", networks.display()))
    }

    /// Reports which runtimes that look into a list's folder cannot run a container on it, because
    /// of its version.
    pub(crate) fn too_old_for(&self, list: &NetworkList, file: &Path) -> Vec<String> {
        #[derive(Default, serde::Deserialize)]
        #[serde(default)]
        struct RawConfig {
            #[serde(rename = "cniVersion")]
            cni_version: String,
        }
        let raw: RawConfig = serde_json::from_slice(&list.source).unwrap_or_default();
        // A version that every runtime reads needs no program to be run.
        let wanted = Version::parse(&raw.cni_version).filter(|wanted| Version::V0_4_0 < *wanted);
        let Some(wanted) = wanted else { return Vec::new() };
        let here = |runtime: &&Runtime| file.parent() == Some(runtime.conf_dir.as_path());
        let mut lines = Vec::new();
        for runtime in self.found.iter().filter(here) {
            let Some(version) = runtime.version() else { continue };
            if let Some(reads) = reads(runtime.name, &version)
                && reads < wanted
            {
                lines.push(format!(
                    "{} {version} reads CNI up to {}: it starts no container on network {:?}, whose \"cniVersion\" is {wanted}",
                    runtime.name, reads.as_str(), list.name
                ));
            }
        }
        lines
    }
}

/// How many plugins a line lists.
const LISTED: usize = 3;

/// What to do about a runtime that is too old for a list.
pub(crate) const VERSION_HINT: &str = "give \"cniVersion\": \"1.0.0\" and \"cniVersions\": [\"1.0.0\", \"1.1.0\"]: older runtimes take the first, newer ones the \
                                       best they know";

impl Runtime {
    /// Returns the folders from which it would take plugins that are put there now.
    fn effective(&self, has: &dyn Fn(&Path) -> bool) -> Vec<&PathBuf> {
        let first = self.plugin_dirs.iter().position(|dir| has(dir));
        let count = first.map_or(self.plugin_dirs.len(), |first| first + 1);
        self.plugin_dirs.iter().take(count).collect()
    }

    fn said_by(&self) -> String {
        self.from
            .as_ref()
            .map_or_else(|| "its default".to_owned(), |path| path.display().to_string())
    }

    /// Returns its version, in its own words.
    #[expect(clippy::disallowed_methods, reason = "only the runtime knows its version")]
    fn version(&self) -> Option<String> {
        let mut command = Command::new(self.program.as_ref()?);
        let output = programs::output(command.arg("--version"), TIMEOUT).ok()?;
        version_in(&String::from_utf8_lossy(&output.stdout))
    }
}

/// Returns the first word that is a version: `1.6.20` of "containerd
/// github.com/containerd/containerd 1.6.20~ds1 …".
fn version_in(text: &str) -> Option<String> {
    let is_digit = |letter: char| letter.is_ascii_digit() || letter == '.';
    let numbers = text.split_whitespace().map(|word| word.trim_start_matches('v'));
    let mut numbers =
        numbers.map(|word| word.split(|letter| !is_digit(letter)).next().unwrap_or(""));
    numbers
        .find(|number| {
            number.contains('.') && number.starts_with(|first: char| first.is_ascii_digit())
        })
        .map(str::to_owned)
}

/// Returns the newest version of CNI whose results a runtime reads, by the library in its releases
/// (`github.com/containernetworking/cni` in their `go.mod`: 1.0 and 1.1 read 1.0.0, 1.2 and later
/// 1.1.0). `None` if that is not known.
fn reads(name: &str, version: &str) -> Option<Version> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    let number = (parts.next()??, parts.next()??);
    match name {
        "containerd" if (2, 0) <= number => Some(Version::V1_1_0),
        "containerd" if (1, 6) <= number => Some(Version::V1_0_0),
        "podman" if (5, 0) <= number => None,
        "podman" if (4, 0) <= number => Some(Version::V1_0_0),
        "nerdctl" if (2, 0) <= number => Some(Version::V1_1_0),
        "CRI-O" if (1, 32) <= number => Some(Version::V1_1_0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Root(tempfile::TempDir);

    impl Root {
        fn new(files: &[(&str, &str)]) -> Self {
            let root = Root(tempfile::tempdir().unwrap());
            for (path, text) in files {
                let path = root.0.path().join(path.trim_start_matches('/'));
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            root
        }

        fn find(&self, environment: &[(&str, &str)]) -> Runtimes {
            let variable = |name: &str| {
                let found = environment.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            Runtimes::below(self.0.path(), &variable)
        }

        fn has(&self, dir: &Path) -> bool {
            !self.plugins(dir).is_empty()
        }

        fn plugins(&self, dir: &Path) -> Vec<&'static str> {
            let dir = self.0.path().join(dir.strip_prefix("/").unwrap());
            ["bridge", "portmap"].into_iter().filter(|name| dir.join(name).exists()).collect()
        }
    }

    fn dirs(runtime: &Runtime) -> Vec<&str> {
        runtime.plugin_dirs.iter().map(|dir| dir.to_str().unwrap()).collect()
    }

    const DEBIANS: &str = "version = 2\n[plugins]\n  [plugins.\"io.containerd.grpc.v1.cri\"]\n    [plugins.\"io.containerd.grpc.v1.cri\".cni]\n      \
                           bin_dir = \"/usr/lib/cni\"\n      conf_dir = \"/etc/cni/net.d\"\n";

    #[test]
    fn debians_containerd_and_podman_share_a_folder() {
        let root = Root::new(&[
            ("/usr/bin/containerd", ""),
            ("/usr/bin/podman", ""),
            ("/etc/containerd/config.toml", DEBIANS),
            ("/usr/share/containers/containers.conf", "[network]\n#cni_plugin_dirs = []\n"),
            ("/usr/lib/cni/bridge", ""),
        ]);
        let all = root.find(&[]);
        assert_eq!(all.unknown, [""; 0]);
        let names: Vec<_> = all.found.iter().map(|one| one.name).collect();
        assert_eq!(names, ["containerd", "podman"]);
        assert_eq!(dirs(&all.found[0]), ["/usr/lib/cni"]);
        assert_eq!(dirs(&all.found[1]), PODMANS);
        assert_eq!(all.folders(&|dir| root.has(dir)), [Path::new("/usr/lib/cni")]);
        // With another folder given, what wins is said.
        let plugins = |dir: &Path| root.plugins(dir);
        let (used, notes) = all.tell(&[PathBuf::from(USUAL)], &plugins);
        assert_eq!(used, [""; 0]);
        assert_eq!(
            notes,
            [
                "containerd looks for plugins elsewhere: in /usr/lib/cni (/etc/containerd/config.toml)",
                "podman takes bridge from /usr/lib/cni first (its default)",
            ]
        );
        let (used, notes) = all.tell(&[PathBuf::from("/usr/lib/cni")], &plugins);
        assert_eq!(used, ["containerd (/etc/containerd/config.toml)", "podman (its default)"]);
        assert_eq!(notes, [""; 0]);
    }

    #[test]
    fn a_folder_of_networks_that_nobody_reads_is_said() {
        let root =
            Root::new(&[("/usr/bin/containerd", ""), ("/etc/containerd/config.toml", DEBIANS)]);
        let all = root.find(&[]);
        assert_eq!(all.unread(Path::new(NETWORKS)), None);
        assert_eq!(
            all.unread(Path::new("/tmp/networks")).as_deref(),
            Some(
                "no container runtime reads networks from /tmp/networks: containerd reads /etc/cni/net.d \
                 (/etc/containerd/config.toml)"
            )
        );
        assert_eq!(
            Root::new(&[]).find(&[]).unread(Path::new(NETWORKS)).as_deref(),
            Some(
                "no container runtime reads networks from /etc/cni/net.d: none was found on this \
                 machine, or in this container"
            )
        );
        // What is not known is said elsewhere.
        let root = Root::new(&[
            ("/usr/bin/containerd", ""),
            ("/etc/containerd/config.toml", "version = [\n"),
        ]);
        assert_eq!(root.find(&[]).unread(Path::new(NETWORKS)), None);
    }

    /// As k3s 1.31 and RKE2 write them for the containerd within them; no program of that name is
    /// in a folder of programs.
    #[test]
    fn the_containerd_within_k3s_and_rke2_is_found() {
        for name in ["k3s", "rke2"] {
            let own = format!("/var/lib/rancher/{name}");
            let file = format!("{own}/agent/etc/containerd/config.toml");
            let config = format!(
                "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\n  bin_dir = \"{own}/data/cni\"\n  \
                 conf_dir = \"{own}/agent/etc/cni/net.d\"\n"
            );
            let root = Root::new(&[(&file, &config)]);
            let all = root.find(&[]);
            assert_eq!(all.unknown, [""; 0]);
            let names: Vec<_> = all.found.iter().map(|one| one.name).collect();
            assert_eq!(names, [name]);
            let dir = PathBuf::from(format!("{own}/data/cni"));
            assert_eq!(all.folders(&|dir| root.has(dir)), [dir.as_path()]);
            assert_eq!(all.found[0].conf_dir, Path::new(&format!("{own}/agent/etc/cni/net.d")));
            let (used, notes) = all.tell(std::slice::from_ref(&dir), &|dir| root.plugins(dir));
            assert_eq!(used, [format!("{name} ({file})")]);
            assert_eq!(notes, [""; 0]);
        }
    }

    #[test]
    fn without_a_runtime_it_is_where_most_look() {
        let root = Root::new(&[]);
        assert_eq!(root.find(&[]).folders(&|dir| root.has(dir)), [Path::new(USUAL)]);
        // Without plugins anywhere, too.
        let root = Root::new(&[("/usr/bin/podman", "")]);
        assert_eq!(root.find(&[]).folders(&|dir| root.has(dir)), [Path::new(USUAL)]);
    }

    /// Later files win, and settings that they do not name stay; a containerd section is replaced
    /// as a whole.
    #[test]
    fn drop_ins_and_imports_are_read_in_their_order() {
        let root = Root::new(&[
            ("/usr/bin/containerd", ""),
            ("/usr/bin/podman", ""),
            ("/usr/bin/crio", ""),
            ("/usr/local/bin/nerdctl", ""),
            (
                "/etc/containerd/config.toml",
                "version = 3\nimports = [\"conf.d/*.toml\", \"/etc/absent.toml\"]\n[plugins.\"io.containerd.cri.v1.runtime\".cni]\nbin_dir = \"/a\"\n",
            ),
            (
                "/etc/containerd/conf.d/20.toml",
                "[plugins.\"io.containerd.cri.v1.runtime\".cni]\nbin_dirs = [\"/b\", \"/c\"]\nconf_dir = \"/n\"\n",
            ),
            (
                "/etc/containerd/conf.d/10.toml",
                "imports = [\"/etc/containerd/config.toml\"]\n[plugins.cri.cni]\nbin_dir = \"/d\"\n",
            ),
            ("/etc/containerd/conf.d/30.txt", "garbage ="),
            (
                "/usr/share/containers/containers.conf",
                "[network]\ncni_plugin_dirs = [\"/p\"]\nnetwork_config_dir = \"/q\"\n",
            ),
            (
                "/etc/containers/containers.conf.d/b.conf",
                "[network]\ncni_plugin_dirs = [\n \"/r\", # a comment\n \"/s\",\n]\n",
            ),
            ("/etc/containers/containers.conf.d/a.conf", "[network]\ncni_plugin_dirs = [\"/t\"]\n"),
            ("/etc/crio/crio.conf.d/10-x", "[crio.network]\nplugin_dirs = [\"/u\"]\n"),
            ("/etc/nerdctl/nerdctl.toml", "cni_path = \"/v\"\n"),
            ("/own.conf", "[network]\nnetwork_backend = \"netavark\"\n"),
        ]);
        let all = root.find(&[]);
        assert_eq!(all.unknown, [""; 0]);
        let said: Vec<_> = all.found.iter().map(|one| (one.name, dirs(one))).collect();
        assert_eq!(
            said,
            [
                ("containerd", vec!["/b", "/c"]),
                ("podman", vec!["/r", "/s"]),
                ("CRI-O", vec!["/u"]),
                ("nerdctl", vec!["/v"]),
            ]
        );
        assert_eq!(all.found[0].conf_dir, Path::new("/n"));
        assert_eq!(all.found[1].conf_dir, Path::new("/q"));
        let from = all.found[1].from.as_deref();
        assert_eq!(from, Some(Path::new("/etc/containers/containers.conf.d/b.conf")));
        // podman's variable names one file in place of all; podman without CNI does not concern us.
        let all = root.find(&[("CONTAINERS_CONF", "/own.conf")]);
        assert!(all.found.iter().all(|one| one.name != "podman"));
    }

    #[test]
    fn a_configuration_that_cannot_be_read_is_said() {
        let root = Root::new(&[
            ("/usr/bin/containerd", ""),
            ("/etc/containerd/config.toml", "version = [\n"),
        ]);
        let all = root.find(&[]);
        assert_eq!(all.found, []);
        assert!(all.unknown[0].starts_with("containerd: /etc/containerd/config.toml: "));
        // A runtime whose CRI plugin is switched off, as Docker's packages do, uses no CNI.
        let root = Root::new(&[
            ("/usr/bin/containerd", ""),
            ("/etc/containerd/config.toml", "disabled_plugins = [\"cri\"]\n"),
        ]);
        assert_eq!(root.find(&[]).found, []);
    }

    #[test]
    fn versions_are_told_by_the_programs_words() {
        for (words, version) in [
            ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+b1", "1.6.20"),
            ("containerd containerd.io v2.1.4 75cb2b7", "2.1.4"),
            ("podman version 4.3.1", "4.3.1"),
            ("crio version 1.32.0\nVersion: 1.32.0", "1.32.0"),
        ] {
            assert_eq!(version_in(words).as_deref(), Some(version));
        }
        assert_eq!(version_in("nothing of the kind"), None);
        assert_eq!(reads("containerd", "1.6.20"), Some(Version::V1_0_0));
        assert_eq!(reads("containerd", "2.1.4"), Some(Version::V1_1_0));
        assert_eq!(reads("podman", "4.3.1"), Some(Version::V1_0_0));
        assert_eq!(reads("k3s", "1.31.0"), None);
    }
}
