//! Debian's containerd with its CRI plugin: what a kubelet drives, without a kubelet.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::cgroup::Cgroup;
use super::image::image;
use super::proto::{self, Message};
use crate::lab::{Lab, Visit};
use crate::place::{Place as _, Running};

/// How long the daemon may take to answer after its start.
const READY: Duration = Duration::from_secs(20);

/// How long one call may take, as curl wants it.
const CALL_SECONDS: &str = "60";

/// The length of a message's head in gRPC: a byte for compression, four for the length.
const HEAD: usize = 5;

/// containerd in a lab made by [`Lab::with_processes`], told to use one folder of plugins, and a small CRI client.
///
/// Networks are in `/etc/cni/net.d` of the lab. Its storage is a file system in memory that the lab's processes alone see;
/// the control groups of its pods are removed on drop.
///
/// A test that uses it says
/// `require!("root", "program:containerd", "program:runc", "program:curl", "file:/usr/bin/busybox")`.
#[derive(Debug)]
pub struct Containerd<'lab> {
    lab: &'lab Lab,
    daemon: Option<Running>,
    cgroup: Cgroup,
}

/// What a pod sandbox is asked to be.
#[derive(Debug, Clone, Default)]
pub struct Pod {
    name: String,
    ports: Vec<(u64, u64, u64)>,
    annotations: Vec<(String, String)>,
}

impl Pod {
    /// A pod of this name, with a network and nothing else.
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

    /// Annotates the pod.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.push((key.to_owned(), value.to_owned()));
        self
    }
}

impl<'lab> Containerd<'lab> {
    /// The image that is there: busybox.
    pub const IMAGE: &'static str = "registry.test/busybox:1";

    /// Where it looks for networks in the lab. It uses the first by name.
    pub const NETWORKS: &'static str = "/etc/cni/net.d";

    /// What containerd itself leaves after pods: lines of [`Snapshot::diff`](crate::Snapshot::diff) contain this.
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
        let mut containerd = Self { lab, daemon: None, cgroup: Cgroup::new() };
        let home = containerd.home();
        lab.sh(&format!(
            "mkdir -p {0} && mount -t tmpfs tmpfs {0} && mkdir -p {1}",
            home.display(),
            Self::NETWORKS
        ));
        containerd.write_network(conflist);
        containerd.configure(plugins);
        containerd.start();
        let archive = image(lab, Self::IMAGE, &["/bin/sleep", "2147483647"]);
        lab.sh(&format!(
            "ctr --address {} --namespace k8s.io images import {}",
            containerd.socket().display(),
            archive.display()
        ));
        containerd
    }

    /// Writes the network's list.
    pub fn write_network(&self, conflist: &str) {
        let file = self.lab.path(Self::NETWORKS).join("10-pods.conflist");
        fs::write(&file, conflist)
            .unwrap_or_else(|error| panic!("write {}: {error}", file.display()));
    }

    /// Points it at another folder of plugins, which it takes a restart to see.
    pub fn use_plugins(&mut self, plugins: &str) {
        self.configure(plugins);
        self.restart();
    }

    /// Kills the daemon and starts it anew; pods go on.
    pub fn restart(&mut self) {
        self.lab.sh(&format!("kill -KILL $(cat {})", self.home().join("pid").display()));
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.child().wait();
        }
        self.start();
    }

    /// Its name and version, in its own words.
    #[must_use]
    pub fn version(&self) -> String {
        let reply = self.call("Version", &Message::default()).unwrap_or_else(|why| panic!("{why}"));
        let [name, version, api] = [2, 3, 4].map(|field| proto::text(&reply, field));
        format!("{name} {version}, CRI {api}")
    }

    /// Makes a pod sandbox and returns its ID.
    ///
    /// # Errors
    /// What containerd says.
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

    /// Whether a container runs, in containerd's words.
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

    /// The addresses that containerd says a pod has, its first first.
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

    /// Stops a pod; its containers are killed and its network goes.
    ///
    /// # Errors
    /// What containerd says.
    pub fn stop_pod(&self, id: &str) -> Result<(), String> {
        self.call("StopPodSandbox", &Message::default().text(1, id)).map(drop)
    }

    /// Removes a pod, which is stopped first if it is not.
    ///
    /// # Errors
    /// What containerd says.
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
        let mut message = Message::default().message(1, &metadata).text(2, &pod.name);
        for (protocol, inside, host) in &pod.ports {
            let port = Message::default().number(1, *protocol).number(2, *inside).number(3, *host);
            message = message.message(5, &port);
        }
        for (key, value) in &pod.annotations {
            message = message.entry(7, key, value);
        }
        message.message(8, &Message::default().text(1, &self.cgroup.path()))
    }

    #[track_caller]
    fn must(&self, method: &str, request: &Message) -> Vec<u8> {
        self.call(method, request).unwrap_or_else(|why| panic!("{method}: {why}"))
    }

    /// One gRPC call, made by curl: HTTP/2 over the socket, one message there and one back.
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
        // Without CAP_SYS_RESOURCE nobody may lower oom_score_adj, as containerd does for pods.
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
        self.daemon = Some(self.lab.start("sh", &["-c", &script]));
        let deadline = Instant::now() + READY;
        while let Err(why) = self.call("Version", &Message::default()) {
            assert!(Instant::now() < deadline, "containerd does not answer: {why}\n{}", self.log());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// What it wrote to its log.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.lab.path(self.home().join("log"))).unwrap_or_default()
    }
}
