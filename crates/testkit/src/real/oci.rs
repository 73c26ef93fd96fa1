//! A container of an OCI runtime: runc or crun on a bundle of our own.

use std::fs;
use std::path::PathBuf;
use std::process::{Output, Stdio};

use serde_json::{Map, Value, json};

use super::cgroup::Cgroup;
use super::rootfs::root_filesystem;
use crate::lab::Lab;
use crate::place::Place as _;

/// How long a container may run.
const DEADLINE: &str = "60s";

/// A container that `runc` or `crun` runs in a lab made by [`Lab::with_processes`].
///
/// Its network namespace is new and unconnected, unless a hook connects it. The runtime's state is
/// in the lab's scratch directory; its control groups are removed on drop.
#[derive(Debug)]
pub struct Bundle<'lab> {
    lab: &'lab Lab,
    runtime: &'static str,
    name: String,
    script: String,
    annotations: Map<String, Value>,
    hooks: Map<String, Value>,
    cgroup: Cgroup,
}

impl<'lab> Bundle<'lab> {
    /// A container that runs a shell script. `runtime` is the program, `name` the container ID.
    #[must_use]
    pub fn new(lab: &'lab Lab, runtime: &'static str, name: &str, script: &str) -> Self {
        Self {
            lab,
            runtime,
            name: name.to_owned(),
            script: script.to_owned(),
            annotations: Map::new(),
            hooks: Map::new(),
            cgroup: Cgroup::new(),
        }
    }

    /// Adds an annotation.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.into());
        self
    }

    /// Adds a hook at a stage (`createRuntime`, `poststop`, …). `command` is a program's path and
    /// its arguments.
    ///
    /// It has the environment that the runtime was started with.
    #[must_use]
    pub fn hook(mut self, stage: &str, command: &[&str]) -> Self {
        let hook = json!({"path": command[0], "args": command, "timeout": 20});
        let hooks = self.hooks.entry(stage).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(hooks) = hooks {
            hooks.push(hook);
        }
        self
    }

    /// Runs the container to its end and returns its output and exit status.
    ///
    /// # Panics
    /// When the bundle cannot be made or the runtime cannot be started.
    #[must_use]
    #[track_caller]
    pub fn run(&self) -> Output {
        let dir = self.lab.dir().join(&self.name);
        let write = || {
            fs::create_dir_all(&dir)?;
            fs::write(dir.join("config.json"), self.configuration().to_string())
        };
        write().unwrap_or_else(|error| panic!("make bundle {}: {error}", dir.display()));
        let mut command = self.lab.command("timeout");
        command.args([DEADLINE, self.runtime]);
        command.arg("--root").arg(self.state()).arg("run").arg("--bundle").arg(&dir);
        let output = command.arg(&self.name).stdin(Stdio::null()).output();
        output.unwrap_or_else(|error| panic!("{}: {error}", self.runtime))
    }

    /// Returns the runtime's list of its containers.
    #[must_use]
    pub fn list(&self) -> String {
        let mut command = self.lab.command(self.runtime);
        let listed =
            command.arg("--root").arg(self.state()).arg("list").stdin(Stdio::null()).output();
        let listed = listed.unwrap_or_else(|error| panic!("{}: {error}", self.runtime));
        String::from_utf8_lossy(&listed.stdout).into_owned()
    }

    fn state(&self) -> PathBuf {
        self.lab.dir().join(self.runtime)
    }

    fn configuration(&self) -> Value {
        let capabilities =
            json!(["CAP_KILL", "CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_NET_RAW"]);
        json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": ["/bin/sh", "-c", self.script],
                "env": ["PATH=/bin"],
                "cwd": "/",
                "capabilities": {
                    "bounding": capabilities, "effective": capabilities, "permitted": capabilities
                },
            },
            "root": {"path": root_filesystem(self.lab), "readonly": false},
            "hostname": self.name,
            "annotations": self.annotations,
            "hooks": self.hooks,
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]},
            ],
            "linux": {
                "cgroupsPath": self.cgroup.path(),
                "namespaces": [
                    {"type": "pid"}, {"type": "network"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}
                ],
            },
        })
    }
}

impl Drop for Bundle<'_> {
    fn drop(&mut self) {
        // This has an effect only if the container still runs. Its control groups could not be
        // removed then.
        let state = self.state();
        let mut command = self.lab.command(self.runtime);
        command.arg("--root").arg(state).args(["delete", "--force", &self.name]);
        let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}
