//! Debian's containerds with their CRI plugin, driven as by a kubelet but without one.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::cgroup::Cgroup;
use super::image::{image, scratch_image};
use super::manifest::{CONTAINER, Manifest, NODE};
use super::proto::{self, Message};
use super::root::{self, in_root};
use super::succeeded;
use crate::lab::{Lab, Visit};
use crate::place::{Place as _, RunningProgram};
use crate::service::TIMEOUT;

/// How long one call may take, in curl's format.
const CALL_SECONDS: &str = "60";

/// The length of a message's head in gRPC: one byte for compression, four for the length.
const HEAD: usize = 5;

/// containerd in a lab made by [`Lab::with_processes`], configured with one folder of plugins, and
/// a small CRI client.
///
/// Networks are in `/etc/cni/net.d` of the lab. Its storage is an in-memory file system that only
/// the lab's processes see; the control groups of its pods are removed on drop.
///
/// A test that uses it needs `require!("root", "program:containerd", "program:runc",
/// "program:curl", "file:/usr/bin/busybox")`.
#[derive(Debug)]
pub struct Containerd<'lab> {
    lab: &'lab Lab,
    daemon: Option<RunningProgram>,
    cgroup: Cgroup,
    /// The root of its programs, plugins and networks; `None` for the lab's own root.
    root: Option<PathBuf>,
}

/// The parameters of a pod sandbox.
#[derive(Debug, Clone, Default)]
pub struct Pod {
    name: String,
    ports: Vec<(u64, u64, u64)>,
    annotations: Vec<(String, String)>,
    on_host: bool,
    host_pids: bool,
}

impl Pod {
    /// Describes a pod with this name, which has a network and nothing else.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Publishes a TCP port of the pod at a port of the host.
    #[must_use]
    pub fn tcp(mut self, host: u16, pod: u16) -> Self {
        self.ports.push((0, pod.into(), host.into()));
        self
    }

    /// Publishes a UDP port of the pod at a port of the host.
    #[must_use]
    pub fn udp(mut self, host: u16, pod: u16) -> Self {
        self.ports.push((1, pod.into(), host.into()));
        self
    }

    /// Uses the host's network, and lets containers be privileged, as a kubelet requests if a
    /// manifest contains `hostNetwork`.
    #[must_use]
    pub fn on_host(mut self) -> Self {
        self.on_host = true;
        self
    }

    /// Sees the host's processes too, as a kubelet requests if a manifest contains `hostPID`.
    #[must_use]
    pub fn with_host_pids(mut self, sees: bool) -> Self {
        self.host_pids = sees;
        self
    }

    /// Annotates the pod.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.push((key.to_owned(), value.to_owned()));
        self
    }
}

impl<'lab> Containerd<'lab> {
    /// The available image: busybox.
    pub const IMAGE: &'static str = "registry.test/busybox:1";

    /// Where it looks for networks in the lab. It uses the first by name.
    pub const NETWORKS: &'static str = "/etc/cni/net.d";

    /// What containerd itself leaves after pods: lines of [`Snapshot::diff`](crate::Snapshot::diff)
    /// contain this.
    ///
    /// Directories of runc and of shims, and the folder where libcni keeps results.
    pub const LEAVES: [&'static str; 6] = [
        "files: /run/containerd is new",
        "files: /run/containerd/runc is new",
        "files: /run/containerd/runc/k8s.io is new",
        "files: /run/containerd/s is new",
        "files: /var/lib/cni is new",
        "files: /var/lib/cni/results is new",
    ];

    /// Starts it with a folder of CNI plugins and one network, and gives it the image.
    #[must_use]
    pub fn new(lab: &'lab Lab, plugins: &str, conflist: &str) -> Self {
        let containerd = Self::prepared(lab);
        containerd.write_network(conflist);
        containerd.ready(plugins)
    }

    /// Starts it with a folder of CNI plugins and the existing networks, and gives it the image.
    #[must_use]
    pub fn without_network(lab: &'lab Lab, plugins: &str) -> Self {
        Self::prepared(lab).ready(plugins)
    }

    /// Starts Debian unstable's containerd, which reads newer versions of CNI, in a root of its
    /// own. Plugins and networks are those of that root, and `prepare` is run there first
    /// ([`Containerd::sh_in_root`]). A test that uses it needs `require!("newest-engine")` too.
    #[must_use]
    pub fn newest(lab: &'lab Lab, plugins: &str, prepare: impl FnOnce(&Self)) -> Self {
        let mut containerd = Self::prepared(lab);
        containerd.root = Some(root::newest(lab, &containerd.home()));
        prepare(&containerd);
        containerd.ready(plugins)
    }

    fn prepared(lab: &'lab Lab) -> Self {
        let containerd = Self { lab, daemon: None, cgroup: Cgroup::new(), root: None };
        lab.sh(&format!(
            "mkdir -p {0} && mount -t tmpfs tmpfs {0} && mkdir -p {1}",
            containerd.home().display(),
            Self::NETWORKS
        ));
        containerd
    }

    fn ready(mut self, plugins: &str) -> Self {
        self.configure(plugins);
        self.start();
        let archive = image(self.lab, Self::IMAGE, &["/bin/sleep", "2147483647"]);
        self.take(&archive);
        self
    }

    /// Runs a shell script where its programs are, and returns its standard output.
    ///
    /// # Panics
    /// When it fails, with its output.
    #[track_caller]
    pub fn sh_in_root(&self, script: &str) -> String {
        let (program, words) = in_root(self.root.as_deref(), script);
        let output = self.lab.command(program).args(&words).stdin(Stdio::null()).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
        succeeded("sh", &[script], &output, || self.log())
    }

    /// Writes the network's list.
    pub fn write_network(&self, conflist: &str) {
        let file = self.lab.path(Self::NETWORKS).join("10-pods.conflist");
        fs::write(&file, conflist)
            .unwrap_or_else(|error| panic!("write {}: {error}", file.display()));
    }

    /// Configures another folder of plugins, which needs a restart to take effect.
    pub fn use_plugins(&mut self, plugins: &str) {
        self.configure(plugins);
        self.restart();
    }

    /// Kills the daemon and starts it again; pods continue.
    pub fn restart(&mut self) {
        self.lab.sh(&format!("kill -KILL $(cat {})", self.home().join("pid").display()));
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.child().wait();
        }
        self.start();
    }

    /// Returns its name and version, in its own words.
    #[must_use]
    pub fn version(&self) -> String {
        let reply = self.call("Version", &Message::default()).unwrap_or_else(|why| panic!("{why}"));
        let [name, version, api] = [2, 3, 4].map(|field| proto::text(&reply, field));
        format!("{name} {version}, CRI {api}")
    }

    /// Whether pods can have a network, according to containerd.
    ///
    /// # Errors
    /// The reason why they cannot, in containerd's words.
    pub fn network_ready(&self) -> Result<(), String> {
        let reply = self.call("Status", &Message::default())?;
        let conditions = proto::all(proto::one(&reply, 1), 1);
        let network = conditions.into_iter().find(|one| proto::text(one, 1) == "NetworkReady");
        match network {
            Some(one) if proto::number(one, 2) == 1 => Ok(()),
            Some(one) => Err(proto::text(one, 4)),
            None => Err("containerd says nothing of its network".to_owned()),
        }
    }

    /// Returns the list that pods get, as containerd has loaded it; null when it has none.
    #[must_use]
    #[track_caller]
    pub fn loaded_network(&self) -> Value {
        let reply = self.must("Status", &Message::default().number(1, 1));
        let info = proto::all(&reply, 2).into_iter().find(|one| proto::text(one, 1) == "cniconfig");
        let config: Value =
            serde_json::from_str(&info.map(|one| proto::text(one, 2)).unwrap_or_default())
                .unwrap_or_default();
        // The loopback network does not come from the folder.
        let networks = config["Networks"].as_array().cloned().unwrap_or_default();
        let first = networks.iter().find(|one| one["Config"]["Name"] != "cni-loopback");
        let source = first.and_then(|one| one["Config"]["Source"].as_str()).unwrap_or_default();
        serde_json::from_str(source).unwrap_or_default()
    }

    /// Makes a pod sandbox and returns its ID.
    ///
    /// # Errors
    /// containerd's error.
    pub fn try_run_pod(&self, pod: &Pod) -> Result<String, String> {
        let request = Message::default().message(1, &self.pod_message(pod));
        self.call("RunPodSandbox", &request).map(|reply| proto::text(&reply, 1))
    }

    /// Makes a pod sandbox and returns its ID.
    ///
    /// # Panics
    /// When containerd does not.
    #[must_use]
    #[track_caller]
    pub fn run_pod(&self, pod: &Pod) -> String {
        self.try_run_pod(pod).unwrap_or_else(|why| panic!("pod {}: {why}", pod.name))
    }

    /// Runs a shell script as a container of a pod and returns the container's ID.
    #[track_caller]
    pub fn run_container(&self, id: &str, pod: &Pod, script: &str) -> String {
        let command = Message::default()
            .message(1, &Message::default().text(1, "main"))
            .message(2, &Message::default().text(1, Self::IMAGE))
            .text(3, "/bin/sh")
            .text(4, "-c")
            .text(4, script)
            .message(15, &Message::default());
        let request =
            Message::default().text(1, id).message(2, &command).message(3, &self.pod_message(pod));
        let container = proto::text(&self.must("CreateContainer", &request), 1);
        self.must("StartContainer", &Message::default().text(1, &container));
        container
    }

    /// Returns whether a container runs, in containerd's words.
    #[must_use]
    #[track_caller]
    pub fn container_state(&self, container: &str) -> &'static str {
        let reply = self.must("ContainerStatus", &Message::default().text(1, container));
        match proto::number(proto::one(&reply, 1), 3) {
            0 => "CONTAINER_CREATED",
            1 => "CONTAINER_RUNNING",
            2 => "CONTAINER_EXITED",
            _ => "CONTAINER_UNKNOWN",
        }
    }

    /// A pod's state, in containerd's words.
    #[must_use]
    #[track_caller]
    pub fn pod_state(&self, id: &str) -> &'static str {
        match proto::number(proto::one(&self.status(id, false), 1), 3) {
            0 => "SANDBOX_READY",
            _ => "SANDBOX_NOTREADY",
        }
    }

    /// Returns the addresses that containerd reports for a pod, in its order.
    #[must_use]
    #[track_caller]
    pub fn addresses(&self, id: &str) -> Vec<IpAddr> {
        let reply = self.status(id, false);
        let network = proto::one(proto::one(&reply, 1), 5);
        let more = proto::all(network, 2).into_iter().map(|more| proto::text(more, 1));
        let all = [proto::text(network, 1)].into_iter().chain(more);
        all.filter_map(|address| address.parse().ok()).collect()
    }

    /// A pod's network namespace.
    #[must_use]
    #[track_caller]
    pub fn netns(&self, id: &str) -> Visit {
        let reply = self.status(id, true);
        let said = proto::all(&reply, 2).into_iter().find(|entry| proto::text(entry, 1) == "info");
        let said = said.map(|entry| proto::text(entry, 2)).unwrap_or_default();
        let said: Value = serde_json::from_str(&said).unwrap_or_default();
        let namespaces = said["runtimeSpec"]["linux"]["namespaces"].as_array();
        let network = namespaces.into_iter().flatten().find(|one| one["type"] == "network");
        let path = network.and_then(|one| one["path"].as_str());
        self.lab.visit(path.unwrap_or_else(|| panic!("pod {id} has no network namespace: {said}")))
    }

    /// Stops a pod; its containers are killed and its network is removed.
    ///
    /// # Errors
    /// containerd's error.
    pub fn stop_pod(&self, id: &str) -> Result<(), String> {
        self.call("StopPodSandbox", &Message::default().text(1, id)).map(drop)
    }

    /// Removes a pod, stopping it first if necessary.
    ///
    /// # Errors
    /// containerd's error.
    pub fn remove_pod(&self, id: &str) -> Result<(), String> {
        self.call("RemovePodSandbox", &Message::default().text(1, id)).map(drop)
    }

    #[track_caller]
    fn status(&self, id: &str, verbose: bool) -> Vec<u8> {
        let request = Message::default().text(1, id).number(2, verbose.into());
        self.must("PodSandboxStatus", &request)
    }

    /// `PodSandboxConfig` of CRI v1.
    fn pod_message(&self, pod: &Pod) -> Message {
        let metadata = Message::default()
            .text(1, &pod.name)
            .text(2, &format!("uid-{}", pod.name))
            .text(3, "default");
        let mut message = Message::default().message(1, &metadata);
        // On the host's network a pod has the host's name, so a kubelet does not send one.
        if !pod.on_host {
            message = message.text(2, &pod.name);
        }
        for (protocol, inside, host) in &pod.ports {
            let port = Message::default().number(1, *protocol).number(2, *inside).number(3, *host);
            message = message.message(5, &port);
        }
        for (key, value) in &pod.annotations {
            message = message.entry(7, key, value);
        }
        message = message.text(3, &self.logs().display().to_string());
        let mut linux = Message::default().text(1, &self.cgroup.path());
        if pod.on_host {
            let pids = if pod.host_pids { NODE } else { CONTAINER };
            let namespaces = Message::default().number(1, NODE).number(2, pids);
            let context = Message::default().message(1, &namespaces).number(6, 1);
            linux = linux.message(2, &context);
        }
        message.message(8, &linux)
    }

    /// The folder with the containers' output.
    fn logs(&self) -> PathBuf {
        self.lab.dir().join("logs")
    }

    /// Makes an image of only these files, each with its path, and gives it to containerd.
    pub fn import(&self, name: &str, files: &[(&Path, &str)]) {
        self.take(&scratch_image(self.lab, name, files));
    }

    /// Gives containerd the images of an archive, for pods.
    pub fn take(&self, archive: &Path) {
        self.sh_in_root(&format!(
            "ctr --address {} --namespace k8s.io images import {}",
            self.socket().display(),
            archive.display()
        ));
    }

    /// Makes the image available to users of `ctr` under this name. Returns the environment that
    /// selects this containerd for a `ctr` run in the lab.
    #[must_use]
    pub fn for_ctr(&self, name: &str) -> [(String, String); 1] {
        let archive = image(self.lab, name, &["/bin/sh"]);
        let socket = self.socket().display().to_string();
        let archive = archive.display();
        self.sh_in_root(&format!("ctr --address {socket} images import {archive}"));
        [("CONTAINERD_ADDRESS".to_owned(), socket)]
    }

    /// Returns what containerd knows of the images for pods, a line each, and which parts of them
    /// it lacks.
    #[must_use]
    pub fn images(&self) -> String {
        let address = self.socket().display().to_string();
        let ctr = format!("ctr --address {address} --namespace k8s.io images");
        self.sh_in_root(&format!("{ctr} list && {ctr} check"))
    }

    /// Starts a container in a pod as a kubelet does for a manifest, and returns its ID.
    /// `environment` is what the kubelet adds.
    ///
    /// # Panics
    /// When the manifest contains something that is not understood here, or containerd refuses.
    #[track_caller]
    pub fn run_manifest(
        &self,
        id: &str,
        pod: &Pod,
        wanted: &Manifest,
        environment: &[(&str, &str)],
    ) -> String {
        for path in &wanted.to_make {
            self.lab.sh(&format!("mkdir -p {path}"));
        }
        let mut config = wanted.config.clone().text(11, &format!("{}.log", wanted.name));
        for (key, value) in environment {
            config = config.entry(6, key, value);
        }
        let request =
            Message::default().text(1, id).message(2, &config).message(3, &self.pod_message(pod));
        let container = proto::text(&self.must("CreateContainer", &request), 1);
        self.must("StartContainer", &Message::default().text(1, &container));
        container
    }

    /// Runs a container's probe of this kind (`readinessProbe`, `livenessProbe`), as a kubelet does.
    ///
    /// # Errors
    /// What the probe prints when it fails.
    ///
    /// # Panics
    /// When the container has no such probe.
    pub fn probe(&self, container: &str, of: &Manifest, kind: &str) -> Result<(), String> {
        let command = of.probes.get(kind).unwrap_or_else(|| panic!("{}: no {kind}", of.name));
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        self.exec(container, &words).map(drop)
    }

    /// Runs a program in a container, and returns its standard output.
    ///
    /// # Errors
    /// Both outputs when it fails.
    pub fn exec(&self, container: &str, command: &[&str]) -> Result<String, String> {
        let request = Message::default().text(1, container);
        let request = command.iter().fold(request, |all, word| all.text(2, word)).number(3, 10);
        let reply = self.call("ExecSync", &request)?;
        match proto::number(&reply, 3) {
            0 => Ok(proto::text(&reply, 1)),
            code => Err(format!(
                "exit code {code}: {}{}",
                proto::text(&reply, 1),
                proto::text(&reply, 2)
            )),
        }
    }

    /// Returns the code with which a container ended; `None` while it runs.
    #[must_use]
    #[track_caller]
    pub fn exit_code(&self, container: &str) -> Option<u64> {
        let reply = self.must("ContainerStatus", &Message::default().text(1, container));
        let status = proto::one(&reply, 1);
        (proto::number(status, 3) == 2).then(|| proto::number(status, 7))
    }

    /// Returns the output of the container with this name in a manifest.
    #[must_use]
    pub fn output(&self, name: &str) -> String {
        let path = self.lab.path(self.logs().join(format!("{name}.log")));
        fs::read_to_string(path).unwrap_or_default()
    }

    #[track_caller]
    fn must(&self, method: &str, request: &Message) -> Vec<u8> {
        self.call(method, request).unwrap_or_else(|why| panic!("{method}: {why}"))
    }

    /// Makes one gRPC call with curl: HTTP/2 over the socket, one message there and one back.
    fn call(&self, method: &str, request: &Message) -> Result<Vec<u8>, String> {
        let body = request.bytes();
        let length = u32::try_from(body.len()).map_err(|error| error.to_string())?;
        let framed = [&[0][..], &length.to_be_bytes(), body].concat();
        let (sent, headers) = (self.lab.dir().join("request"), self.lab.dir().join("headers"));
        fs::write(&sent, framed).map_err(|error| format!("write {}: {error}", sent.display()))?;
        let mut command = self.lab.command("curl");
        command
            .args(["--silent", "--show-error", "--max-time", CALL_SECONDS])
            .args(["--http2-prior-knowledge", "--header", "content-type: application/grpc"])
            .args(["--header", "te: trailers", "--data-binary"])
            .arg(format!("@{}", sent.display()))
            .arg("--dump-header")
            .arg(&headers)
            .arg("--unix-socket")
            .arg(self.socket())
            .arg(format!("http://localhost/runtime.v1.RuntimeService/{method}"));
        let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let headers = fs::read_to_string(&headers).map_err(|error| error.to_string())?;
        let header = |name: &str| {
            headers
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .map(|text| text.trim().to_owned())
        };
        match header("grpc-status: ").as_deref() {
            Some("0") => Ok(output.stdout.get(HEAD..).unwrap_or_default().to_vec()),
            _ => Err(header("grpc-message: ").unwrap_or(headers)),
        }
    }

    fn home(&self) -> PathBuf {
        self.lab.dir().join("containerd")
    }

    fn socket(&self) -> PathBuf {
        self.home().join("socket")
    }

    fn configure(&self, plugins: &str) {
        let home = self.home();
        let home = home.display();
        // Without CAP_SYS_RESOURCE a process may not lower oom_score_adj, as containerd does for
        // pods.
        let configuration = format!(
            "version = 2\nroot = \"{home}/root\"\nstate = \"{home}/state\"\n\
             [grpc]\naddress = \"{home}/socket\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"{}\"\nrestrict_oom_score_adj = true\n\
             [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"{plugins}\"\nconf_dir = \"{}\"\n",
            Self::IMAGE,
            Self::NETWORKS
        );
        let file = self.lab.path(self.home().join("config.toml"));
        fs::write(&file, configuration)
            .unwrap_or_else(|error| panic!("write {}: {error}", file.display()));
    }

    fn start(&mut self) {
        let home = self.home();
        let script = format!(
            "echo $$ > {0}/pid; exec containerd --config {0}/config.toml --log-level warn >> {0}/log 2>&1",
            home.display()
        );
        let (program, words) = in_root(self.root.as_deref(), &script);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.daemon = Some(self.lab.start(program, &words));
        let deadline = Instant::now() + TIMEOUT;
        while let Err(why) = self.call("Version", &Message::default()) {
            assert!(Instant::now() < deadline, "containerd does not answer: {why}\n{}", self.log());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the contents of its log.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.lab.path(self.home().join("log"))).unwrap_or_default()
    }
}
