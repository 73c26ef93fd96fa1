//! Debian's Docker Engine.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::cgroup::Cgroup;
use super::image::image;
use super::root::in_root;
use super::succeeded;
use crate::lab::{Lab, Visit};
use crate::place::{Place as _, RunningProgram};
use crate::reference;
use crate::service::{self, TIMEOUT};

/// How long to wait for an answer at its socket before the client is asked.
const LOOK: Duration = Duration::from_secs(2);

/// The pause between tries to connect to it.
const PAUSE: Duration = Duration::from_millis(20);

/// How long one docker command may take.
const DEADLINE: &str = "120s";

/// Debian's client, which another of the same name may hide.
const CLIENT: &str = "/usr/bin/docker";

/// Which engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// The machine's, of Debian's stable release: 20.10, which creates a container's namespace
    /// after its interfaces.
    Installed,
    /// Debian unstable's, which `cargo xtask setup` unpacks: 28 or later, which creates the
    /// namespace first. A test that uses it needs `require!("newest-engine")` too.
    Newest,
}

impl Engine {
    /// Returns its name among runtimes ([`tell`](super::tell)).
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Engine::Installed => "docker",
            Engine::Newest => "docker-unstable",
        }
    }

    /// The root that its programs run in; `None` for the machine's.
    fn root(self) -> Option<PathBuf> {
        match self {
            Engine::Installed => None,
            Engine::Newest => Some(reference::engine_root()),
        }
    }
}

/// Its plugin for compose files, which also works as a program of its own.
const COMPOSE: &str = "/usr/libexec/docker/cli-plugins/docker-compose";

/// The engine in a lab made by [`Lab::with_processes`], and its client.
///
/// Its storage is an in-memory file system that only the lab's processes see; the control groups of
/// its containers are removed on drop. It finds drivers in `/run/docker/plugins` of the lab.
///
/// A test that uses it needs `require!("root", "program:dockerd", "program:containerd",
/// "program:runc", "file:/usr/bin/docker", "file:/usr/bin/busybox")`.
#[derive(Debug)]
pub struct Docker<'lab> {
    lab: &'lab Lab,
    daemon: Option<RunningProgram>,
    cgroup: Cgroup,
    flags: Vec<String>,
    engine: Engine,
}

impl<'lab> Docker<'lab> {
    /// The available image: busybox.
    pub const IMAGE: &'static str = "busybox:test";

    /// What the engine itself leaves after containers: lines of
    /// [`Snapshot::diff`](crate::Snapshot::diff) contain this.
    ///
    /// Directories of its own, those of shims, and the folder where libcni keeps results.
    pub const LEAVES: [&'static str; 4] = [
        "files: /run/containerd",
        "files: /run/docker-engine",
        "files: /var/lib/cni is new",
        "files: /var/lib/cni/results is new",
    ];

    /// Starts the machine's engine and gives it the image.
    #[must_use]
    pub fn new(lab: &'lab Lab) -> Self {
        Self::of(lab, Engine::Installed, &[])
    }

    /// Starts an engine with further flags.
    #[must_use]
    pub fn of(lab: &'lab Lab, engine: Engine, flags: &[&str]) -> Self {
        let flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        let mut docker = Self { lab, daemon: None, cgroup: Cgroup::new(), flags, engine };
        let home = docker.home();
        lab.sh(&format!(
            "mkdir -p {home} && mount -t tmpfs tmpfs {home} && mkdir -p {home}/client"
        ));
        docker.start();
        let archive = image(
            lab,
            Self::IMAGE,
            // The shell ends on SIGTERM; a first process does not do so by default.
            &["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 2147483647 & wait"],
        );
        docker.run(&["load", "--quiet", "--input", &archive.display().to_string()]);
        docker
    }

    /// Starts the engine after [`Docker::kill`] or [`Docker::stop`]; returns how long it took until
    /// it answered.
    pub fn start(&mut self) -> Duration {
        let home = self.home();
        let script = format!(
            "exec dockerd --data-root {home}/root --exec-root /run/docker-engine --pidfile {home}/pid \
             --host unix://{home}/socket --storage-driver overlay2 --cgroup-parent {} {} >> {home}/log 2>&1",
            self.cgroup.path(),
            self.flags.join(" "),
        );
        let began = Instant::now();
        let (program, arguments) = in_root(self.engine.root().as_deref(), &script);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.daemon = Some(self.lab.start(program, &arguments));
        loop {
            self.wait_for_answer();
            if self.try_run(&["version"]).status.success() {
                return began.elapsed();
            }
            assert!(began.elapsed() < TIMEOUT, "dockerd does not answer:\n{}", self.log());
        }
    }

    /// Waits a short time until the engine answers at its socket. A client that is started for each
    /// check would take the processor from the engine.
    fn wait_for_answer(&self) {
        let socket = self.lab.path(format!("{}/socket", self.home()));
        let ask = || -> io::Result<bool> {
            let mut stream = UnixStream::connect(&socket)?;
            stream.set_read_timeout(Some(LOOK))?;
            stream.write_all(b"GET /_ping HTTP/1.0\r\n\r\n")?;
            let mut status = [0; b"HTTP/1.0 200".len()];
            stream.read_exact(&mut status)?;
            Ok(status.ends_with(b" 200"))
        };
        let end = Instant::now() + LOOK;
        while !matches!(ask(), Ok(true)) && Instant::now() < end {
            thread::sleep(PAUSE);
        }
    }

    /// Kills the engine, as a crash would; its containers continue.
    pub fn kill(&mut self) {
        self.signal("KILL");
    }

    /// Ends the engine, and with it its containers.
    pub fn stop(&mut self) {
        self.signal("TERM");
    }

    fn signal(&mut self, signal: &str) {
        let home = self.home();
        // The PID file is that of the engine, not of its containerd.
        self.lab.sh(&format!("kill -{signal} $(cat {home}/pid)"));
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.child().wait();
        }
        self.lab.sh(&format!("rm -f {home}/pid"));
    }

    /// Makes a network of our driver; `rest` is the rest of the command line, with words separated
    /// by spaces.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn create_network(&self, rest: &str) -> String {
        let command = ["network", "create", "--driver", "netwright"].into_iter();
        self.run(&command.chain(rest.split_whitespace()).collect::<Vec<_>>())
    }

    /// Runs a docker command and returns its standard output without the final newline.
    ///
    /// # Panics
    /// When it fails, with its standard error and the end of the engine's log.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> String {
        succeeded("docker", arguments, &self.try_run(arguments), || self.log())
    }

    /// Runs a docker command that must fail, and returns its standard error.
    #[track_caller]
    pub fn refused(&self, arguments: &[&str]) -> String {
        let output = self.try_run(arguments);
        assert!(!output.status.success(), "docker {} succeeded", arguments.join(" "));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Runs a docker command and returns its output, whether it succeeds or not.
    #[track_caller]
    pub fn try_run(&self, arguments: &[&str]) -> Output {
        let output = self.command().args(arguments).stdin(Stdio::null()).output();
        output.unwrap_or_else(|error| panic!("docker: {error}"))
    }

    /// Returns the environment that selects this engine for the client, when run in the lab.
    #[must_use]
    pub fn environment(&self) -> [(String, String); 2] {
        let home = self.home();
        [
            ("DOCKER_HOST", format!("unix://{home}/socket")),
            ("DOCKER_CONFIG", format!("{home}/client")),
        ]
        .map(|(key, value)| (key.to_owned(), value))
    }

    /// Returns the client, to run in the lab.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = self.lab.command("timeout");
        command.args([DEADLINE, CLIENT]).envs(self.environment());
        command
    }

    /// Runs `docker compose` with a file, and returns its output. It is Debian unstable's, whatever
    /// the engine: the test needs `require!("newest-engine")`.
    ///
    /// # Panics
    /// When it fails, with its output and the end of the engine's log.
    #[track_caller]
    pub fn compose(&self, file: &Path, arguments: &[&str]) -> String {
        let home = self.home();
        let script = format!(
            "export HOME={home}/client DOCKER_HOST=unix://{home}/socket && exec {COMPOSE} --ansi never --file {} {}",
            file.display(),
            arguments.join(" "),
        );
        let (program, words) = in_root(Engine::Newest.root().as_deref(), &script);
        let mut command = self.lab.command("timeout");
        let output = command.arg(DEADLINE).arg(program).args(words).stdin(Stdio::null()).output();
        let output = output.unwrap_or_else(|error| panic!("docker compose: {error}"));
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).trim_end().to_owned();
        let words = arguments.join(" ");
        assert!(output.status.success(), "docker compose {words}: {said}\n{}", self.log());
        said
    }

    /// Starts a container that does nothing, with these options of `docker run`, and returns its
    /// namespace.
    #[track_caller]
    pub fn start_container(&self, name: &str, options: &[&str]) -> Visit {
        let mut arguments = vec!["run", "--detach", "--name", name, "--stop-timeout", "0"];
        arguments.extend(options);
        arguments.push(Self::IMAGE);
        self.run(&arguments);
        self.netns(name)
    }

    /// A container's namespace. Waits for it: an engine that has just started makes its containers'
    /// namespaces again.
    #[must_use]
    #[track_caller]
    pub fn netns(&self, name: &str) -> Visit {
        let asked = ["inspect", "--format", "{{.NetworkSettings.SandboxKey}}", name];
        let key = service::wait_for(&format!("the namespace of {name}"), || {
            // Engines before 28 return a path in their own folder.
            Some(self.run(&asked)).filter(|key| !key.is_empty() && self.lab.path(key).exists())
        });
        self.lab.visit(key)
    }

    /// Returns what the engine knows of a container, network or other object.
    #[must_use]
    #[track_caller]
    pub fn inspect(&self, name: &str) -> Value {
        let said: Value = serde_json::from_str(&self.run(&["inspect", name])).unwrap_or_default();
        said[0].clone()
    }

    /// Stops and removes containers, without waiting for them to end by themselves.
    #[track_caller]
    pub fn remove(&self, names: &[&str]) {
        self.run(&[&["rm", "--force"], names].concat());
    }

    /// Returns the end of the engine's log.
    #[must_use]
    pub fn log(&self) -> String {
        let log = fs::read_to_string(self.lab.path(format!("{}/log", self.home())));
        let log = log.unwrap_or_default();
        let lines: Vec<&str> =
            log.lines().filter(|line| !line.contains("level=info msg=\"[core]")).collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    fn home(&self) -> String {
        self.lab.dir().join("docker").display().to_string()
    }
}
