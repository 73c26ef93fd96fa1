//! A node, an API server and the daemon between them; the test sends the plugin's requests.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use node_api::multinet::{Answer, Plan, PlanRequest, Request, Sandbox};
use node_api::{Message, Pod, Refusal};
use serde_json::{Value, json};
use testkit::kube::KubeApi;
use testkit::{Lab, Place as _, Service, wait_for};

/// How long an answer may take.
const TIMEOUT: Duration = testkit::TIMEOUT;

/// A node of a cluster.
pub(crate) struct Cluster {
    pub(crate) lab: Lab,
    pub(crate) api: KubeApi,
    pub(crate) dir: PathBuf,
}

impl Cluster {
    /// Makes a node with the default network `cluster`, and no other.
    pub(crate) fn new(name: &str) -> Self {
        let lab = Lab::new(name);
        let api = lab.enter(KubeApi::start);
        let dir = lab.dir().to_owned();
        fs::create_dir_all(dir.join("net.d")).unwrap();
        let cluster = json!({
            "cniVersion": "1.0.0", "name": "cluster",
            "plugins": [{"type": "bridge", "bridge": "br0", "capabilities": {"portMappings": true}}],
        });
        fs::write(dir.join("net.d/cluster.conflist"), cluster.to_string()).unwrap();
        api.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}));
        Cluster { lab, api, dir }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("multinet.sock")
    }

    /// Makes a definition with a configuration as text.
    pub(crate) fn define(&self, namespace: &str, name: &str, config: &str) {
        self.api.create(&json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"namespace": namespace, "name": name}, "spec": {"config": config},
        }));
    }

    /// Makes a pod of the node, perhaps with an annotation; returns its UID.
    pub(crate) fn pod(&self, name: &str, networks: Option<&str>) -> String {
        let annotations = match networks {
            Some(networks) => json!({"k8s.v1.cni.cncf.io/networks": networks}),
            None => json!({}),
        };
        let made = self.api.create(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "ns", "name": name, "annotations": annotations},
            "spec": {"nodeName": "n1"},
        }));
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    pub(crate) fn daemon(&self) -> Daemon<'_> {
        self.daemon_with(&["--cluster-network", "cluster"])
    }

    /// Starts the daemon and waits until it listens.
    pub(crate) fn daemon_with(&self, flags: &[&str]) -> Daemon<'_> {
        let mut daemon = self.spawn(flags, &[]);
        daemon.wait_until_listening();
        daemon
    }

    /// Starts the daemon, perhaps with shell words before it.
    pub(crate) fn spawn(&self, flags: &[&str], before: &[&str]) -> Daemon<'_> {
        let kubeconfig = self.api.kubeconfig(&self.dir);
        self.start(before, |command| {
            command.arg("--kubeconfig").arg(kubeconfig).args(flags);
        })
    }

    /// Starts the daemon with a pod's way of finding the API server.
    pub(crate) fn spawn_in_pod(&self, flags: &[&str], host: &str, port: &str) -> Daemon<'_> {
        self.start(&[], |command| {
            command.env("KUBERNETES_SERVICE_HOST", host).env("KUBERNETES_SERVICE_PORT", port);
            command.args(flags);
        })
    }

    fn start(&self, before: &[&str], finish: impl FnOnce(&mut Command)) -> Daemon<'_> {
        let words: Vec<&str> =
            before.iter().copied().chain([env!("CARGO_BIN_EXE_netwrightd")]).collect();
        let mut command = self.lab.command(words[0]);
        command
            .args(&words[1..])
            .args(["multinet", "--node", "n1", "--socketpath"])
            .arg(self.socket())
            .arg("--confdir")
            .arg(self.dir.join("net.d"))
            .arg("--checkpoint")
            .arg(self.dir.join("checkpoint"))
            .env("NETWRIGHT_RUN_DIR", self.dir.join("run"))
            .env("NETWRIGHT_STATE_DIR", self.dir.join("lib"))
            .env("NETWRIGHT_LOG", "debug");
        finish(&mut command);
        let service = Service::start(command, &self.dir.join("daemon.log"));
        Daemon { cluster: self, service }
    }

    /// Starts the daemon with a limit on memory from its first moment.
    pub(crate) fn spawn_within(&self, limit: &testkit::MemoryLimit, flags: &[&str]) -> Daemon<'_> {
        let go = self.dir.join("go");
        let script = format!("while ! [ -e {} ]; do :; done; exec \"$@\"", go.display());
        let daemon = self.spawn(flags, &["/bin/sh", "-c", &script, "sh"]);
        limit.hold(daemon.service.pid());
        fs::write(go, "").unwrap();
        daemon
    }

    /// Sends the daemon a request.
    pub(crate) fn ask(&self, request: &Request) -> std::io::Result<Answer> {
        ask(&self.socket(), request)
    }

    pub(crate) fn plan(&self, name: &str, uid: &str) -> Result<Plan, Refusal> {
        let request = Request::Plan(PlanRequest {
            sandbox: sandbox(name),
            pod: Some(pod(name, uid)),
            ..PlanRequest::default()
        });
        match self.ask(&request).unwrap() {
            Answer::Plan(plan) => Ok(plan),
            Answer::Refused(refusal) => Err(refusal),
            Answer::Ok => panic!("a plan was asked for"),
        }
    }

    /// Asks until there is a plan: the daemon may not have received the latest objects.
    pub(crate) fn planned(&self, name: &str, uid: &str) -> Plan {
        wait_for("a plan", || self.plan(name, uid).ok())
    }

    pub(crate) fn annotation(&self, pod: &str, key: &str) -> Option<String> {
        let pod = self.api.object("pods", "ns", pod)?;
        pod["metadata"]["annotations"][key].as_str().map(str::to_owned)
    }

    pub(crate) fn status(&self, pod: &str) -> Option<Value> {
        let text = self.annotation(pod, "k8s.v1.cni.cncf.io/network-status")?;
        serde_json::from_str(&text).ok()
    }

    /// The messages of Events about a pod, with their reasons.
    pub(crate) fn events(&self, pod: &str) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let events = self.api.objects("events").into_iter();
        events
            .filter(|event| event["involvedObject"]["name"] == pod)
            .map(|event| (text(&event["reason"]), text(&event["message"])))
            .collect()
    }
}

pub(crate) fn ask(socket: &Path, request: &Request) -> std::io::Result<Answer> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(&request.to_line().unwrap())?;
    let mut line = Vec::new();
    BufReader::new(stream).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Answer::from_line(&line).unwrap())
}

pub(crate) fn sandbox(name: &str) -> Sandbox {
    Sandbox { container: format!("c-{name}"), ifname: "eth0".into(), netns: String::new() }
}

pub(crate) fn pod(name: &str, uid: &str) -> Pod {
    Pod { namespace: "ns".into(), name: name.into(), uid: uid.into() }
}

/// A daemon; killed when dropped.
pub(crate) struct Daemon<'c> {
    cluster: &'c Cluster,
    pub(crate) service: Service,
}

impl Daemon<'_> {
    pub(crate) fn wait_until_listening(&mut self) {
        let socket = self.cluster.socket();
        self.service.wait_until("the daemon to listen", || ask(&socket, &Request::Status).is_ok());
    }

    pub(crate) fn kill(self) {
        self.service.kill();
    }
}
