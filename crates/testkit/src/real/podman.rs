//! Debian's podman with its CNI back end.

use std::fs;
use std::process::{Command, Output, Stdio};

use super::rootfs::root_filesystem;
use super::succeeded;
use crate::lab::{Lab, Visit};
use crate::place::Place as _;

/// How long one podman command may take.
const DEADLINE: &str = "60s";

/// Podman in a lab made by [`Lab::with_processes`], configured with one folder of plugins.
///
/// Networks are in `/etc/cni/net.d` of the lab, where `netwright` looks too. Containers run under
/// crun without control groups of their own, so none are left on the machine. Storage is an
/// in-memory file system that only the lab's processes see.
///
/// A test that uses it needs `require!("root", "program:podman", "program:crun",
/// "file:/usr/bin/busybox")`.
#[derive(Debug)]
pub struct Podman<'lab> {
    lab: &'lab Lab,
}

impl<'lab> Podman<'lab> {
    /// The available image: busybox.
    pub const IMAGE: &'static str = "localhost/busybox:1";

    /// Where it looks for networks in the lab.
    pub const NETWORKS: &'static str = "/etc/cni/net.d";

    /// What podman itself, with crun and libcni, leaves after containers: lines of
    /// [`Snapshot::diff`] contain this.
    ///
    /// crun's state directory, the folder where libcni keeps results, which podman names at every
    /// start, and a mount of its storage, which comes and goes.
    ///
    /// [`Snapshot::diff`]: crate::Snapshot::diff
    pub const LEAVES: [&'static str; 4] = [
        "files: /run/crun is new",
        "files: /var/lib/cni is new",
        "files: /var/lib/cni/results is new",
        "/podman/storage/overlay is ",
    ];

    /// Prepares storage and the image. `plugins` is the folder of CNI plugins.
    #[must_use]
    pub fn new(lab: &'lab Lab, plugins: &str) -> Self {
        let podman = Self { lab };
        let home = lab.dir().join("podman");
        fs::create_dir(&home).unwrap_or_else(|error| panic!("create {}: {error}", home.display()));
        let home = home.display();
        lab.sh(&format!("mount -t tmpfs tmpfs {home} && mkdir -p {}", Self::NETWORKS));
        podman.use_plugins(plugins);
        let storage = format!(
            "[storage]\ndriver = \"overlay\"\ngraphroot = \"{home}/storage\"\nrunroot = \"{home}/run\"\n"
        );
        podman.write("storage.conf", &storage);
        let root = root_filesystem(lab);
        lab.sh(&format!("tar -C {} -cf {home}/image.tar .", root.display()));
        podman.run(&["import", "--quiet", &format!("{home}/image.tar"), Self::IMAGE]);
        podman
    }

    /// Configures another folder of plugins, as an administrator would with containers running.
    pub fn use_plugins(&self, plugins: &str) {
        let configuration = format!(
            "[containers]\ncgroups = \"disabled\"\n\
             [network]\nnetwork_backend = \"cni\"\ncni_plugin_dirs = [\"{plugins}\"]\nnetwork_config_dir = \"{}\"\n\
             [engine]\nruntime = \"crun\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"none\"\n",
            Self::NETWORKS
        );
        self.write("containers.conf", &configuration);
    }

    /// Makes podman use its default folders for plugins and networks.
    pub fn use_defaults(&self) {
        let configuration = "[containers]\ncgroups = \"disabled\"\n[network]\nnetwork_backend = \"cni\"\n\
                             [engine]\nruntime = \"crun\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"none\"\n";
        self.write("containers.conf", configuration);
    }

    /// Writes a network list `NAME.conflist` as by hand.
    pub fn write_network(&self, name: &str, conflist: &str) {
        let file = self.lab.path(Self::NETWORKS).join(format!("{name}.conflist"));
        fs::write(&file, conflist)
            .unwrap_or_else(|error| panic!("write {}: {error}", file.display()));
    }

    /// Runs a podman command and returns its standard output without the final newline.
    ///
    /// # Panics
    /// When it fails, with its standard error.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> String {
        succeeded("podman", arguments, &self.try_run(arguments), String::new)
    }

    /// Runs a podman command and returns its output, whether it succeeds or not.
    #[track_caller]
    pub fn try_run(&self, arguments: &[&str]) -> Output {
        let output = self.command().args(arguments).stdin(Stdio::null()).output();
        output.unwrap_or_else(|error| panic!("podman: {error}"))
    }

    /// Starts a container that does nothing, with these options of `podman run`, and returns its
    /// namespace.
    #[track_caller]
    pub fn start(&self, name: &str, options: &[&str]) -> Visit {
        self.start_script(name, options, "exec sleep 1000")
    }

    /// Starts a container that runs a shell script, and returns its namespace.
    #[track_caller]
    pub fn start_script(&self, name: &str, options: &[&str], script: &str) -> Visit {
        let mut arguments = vec!["run", "--detach", "--name", name];
        arguments.extend(options);
        arguments.extend([Self::IMAGE, "/bin/sh", "-c", script]);
        self.run(&arguments);
        self.lab.visit(self.netns(name))
    }

    /// The path of a container's network namespace in the lab.
    #[track_caller]
    pub fn netns(&self, name: &str) -> String {
        self.run(&["inspect", "--format", "{{.NetworkSettings.SandboxKey}}", name])
    }

    /// Stops and removes containers, without waiting for them to end by themselves.
    #[track_caller]
    pub fn remove(&self, names: &[&str]) {
        self.run(&[&["rm", "--force", "--time", "0"], names].concat());
    }

    /// Returns the environment that selects this storage and configuration for podman, when run in
    /// the lab.
    #[must_use]
    pub fn environment(&self) -> [(String, String); 2] {
        let home = self.lab.dir().join("podman");
        [("CONTAINERS_CONF", "containers.conf"), ("CONTAINERS_STORAGE_CONF", "storage.conf")]
            .map(|(key, file)| (key.to_owned(), home.join(file).display().to_string()))
    }

    fn command(&self) -> Command {
        let mut command = self.lab.command("timeout");
        command.args([DEADLINE, "podman"]).envs(self.environment());
        command
    }

    fn write(&self, name: &str, content: &str) {
        // The path is read through the lab, because the directory is a mount there.
        let file = self.lab.path(self.lab.dir().join("podman").join(name));
        fs::write(&file, content)
            .unwrap_or_else(|error| panic!("write {}: {error}", file.display()));
    }
}
