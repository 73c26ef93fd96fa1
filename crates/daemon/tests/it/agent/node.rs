//! A node with the agent's configuration in its usual place, an API server for the services that
//! need one, and perhaps a supervisor.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::{panicking, sleep};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::kube::KubeApi;
use testkit::{Lab, Place as _};

use crate::rig::wait_for;

pub(crate) const DAEMON: &str = env!("CARGO_BIN_EXE_netwrightd");

/// Where the configuration is on a node.
pub(crate) const FILE: &str = "/etc/netwright/netwrightd.toml";
const KUBECONFIG: &str = "/etc/netwright/kubeconfig";
const AGENT: &str = "/run/netwright/agent/agent.sock";

/// The pause between checks.
const PAUSE: Duration = Duration::from_millis(20);

/// Every service.
pub(crate) const ALL: [&str; 8] =
    ["collect", "dhcp", "docker", "ipam", "multinet", "policy", "repair", "routing"];

/// The services that need nothing from outside.
pub(crate) const ALONE: &str = "
[agent]
watchdog = \"5s\"
[collect]
enable = true
[dhcp]
enable = true
[docker]
enable = true
[repair]
enable = true
";

/// The services that need an API server.
const IN_A_CLUSTER: &str = "
[ipam]
enable = true
node = \"n1\"
kubeconfig = \"/etc/netwright/kubeconfig\"
[multinet]
enable = true
node = \"n1\"
kubeconfig = \"/etc/netwright/kubeconfig\"
[policy]
enable = true
node = \"n1\"
source = \"kubernetes\"
kubeconfig = \"/etc/netwright/kubeconfig\"
[routing]
enable = true
node = \"n1\"
source = \"kubernetes\"
kubeconfig = \"/etc/netwright/kubeconfig\"
cluster = [\"10.244.0.0/16\"]
path = \"direct\"
";

pub(crate) struct Node {
    pub(crate) lab: Lab,
    pub(crate) api: Option<KubeApi>,
    supervisor: Option<Child>,
}

impl Node {
    pub(crate) fn new(name: &str) -> Self {
        Self::in_lab(Lab::new(name))
    }

    pub(crate) fn in_lab(lab: Lab) -> Self {
        lab.sh("mkdir -p -m 755 /etc/netwright /etc/cni/net.d");
        Node { lab, api: None, supervisor: None }
    }

    /// A node of a cluster, with every service enabled.
    pub(crate) fn with_all(name: &str) -> Self {
        let mut node = Self::new(name);
        node.joins();
        node.configure(&node.all());
        node
    }

    /// Starts an API server that knows the node.
    pub(crate) fn joins(&mut self) {
        let api = self.lab.enter(KubeApi::start);
        api.create(&json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
            "spec": {"podCIDR": "10.244.1.0/24"},
            "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]},
        }));
        // Only root can read the kubeconfig. It is in a folder that a service with a /tmp of its
        // own sees.
        let path = self.path(KUBECONFIG);
        fs::copy(api.kubeconfig(self.lab.dir()), &path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        self.api = Some(api);
    }

    /// The configuration that enables every service.
    pub(crate) fn all(&self) -> String {
        format!("{ALONE}{IN_A_CLUSTER}")
    }

    /// The machine's path of a path of the node.
    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        self.lab.path(inside)
    }

    pub(crate) fn configure(&self, content: &str) {
        fs::write(self.path(FILE), content).unwrap();
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.lab.command(DAEMON);
        command.args(arguments).stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.lab.dir().join("log")).unwrap_or_default()
    }

    pub(crate) fn start(&mut self) {
        let command = self.command(&[]);
        self.start_as(command);
    }

    /// Starts a command that becomes the supervisor.
    pub(crate) fn start_as(&mut self, mut command: Command) {
        let log = self.lab.dir().join("log");
        let log = fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.supervisor = Some(command.spawn().unwrap());
    }

    pub(crate) fn supervisor(&self) -> u64 {
        u64::from(self.supervisor.as_ref().unwrap().id())
    }

    pub(crate) fn signal(&self, with: Signal) {
        signal(self.supervisor(), with);
    }

    /// Ends the supervisor, and returns its exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.ended()
    }

    /// Waits for the supervisor's end, and returns its exit code.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        self.supervisor.take().unwrap().wait().unwrap().code()
    }

    /// The answer at a status socket; nothing if no service listens.
    pub(crate) fn ask(&self, socket: &str, target: &str) -> Option<String> {
        let mut stream = UnixStream::connect(self.path(socket)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").ok()?;
        let mut said = String::new();
        stream.read_to_string(&mut said).ok()?;
        Some(said.split_once("\r\n\r\n")?.1.to_owned())
    }

    /// What the supervisor reports; `null` if no supervisor runs.
    pub(crate) fn status(&self) -> Value {
        let said = self.ask(AGENT, "/status");
        said.map(|said| serde_json::from_str(&said).unwrap()).unwrap_or_default()
    }

    /// What `netwrightd agent status` prints.
    pub(crate) fn agent_status(&self) -> Value {
        let said = self.run(&["agent", "status", "-o", "json"]);
        serde_json::from_slice(&said.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", text(&said.stderr)))
    }

    pub(crate) fn service(&self, name: &str) -> Value {
        of(&self.status(), name)
    }

    /// The processes of the services that are ready.
    pub(crate) fn pids(&self) -> BTreeMap<String, u64> {
        let status = self.status();
        let services = status["services"].as_array().cloned().unwrap_or_default();
        let ready = services.iter().filter(|one| one["state"] == "ready");
        ready
            .map(|one| (one["service"].as_str().unwrap().to_owned(), one["pid"].as_u64().unwrap()))
            .collect()
    }

    /// Waits until all enabled services are ready, and there are `count` of them.
    #[track_caller]
    pub(crate) fn wait_until_ready(&self, count: usize) -> BTreeMap<String, u64> {
        let mut found = BTreeMap::new();
        until("the services to be ready", || {
            let ready = self.ask(AGENT, "/readyz");
            found = self.pids();
            ready.as_deref() == Some("ok\n") && found.len() == count
        });
        found
    }

    #[track_caller]
    pub(crate) fn reload(&self) -> String {
        let said = self.run(&["agent", "reload"]);
        assert!(said.status.success(), "{}{}", text(&said.stderr), self.log());
        text(&said.stdout)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if panicking() {
            eprintln!("the agent's log:\n{}\n{}", self.log(), self.status());
        }
        if let Some(mut supervisor) = self.supervisor.take() {
            let _ = supervisor.kill();
            let _ = supervisor.wait();
        }
    }
}

/// Waits until a condition holds. Each check asks several processes.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || {
        let is_so = is_so();
        if !is_so {
            sleep(PAUSE);
        }
        is_so
    });
}

/// The report of a service in a status.
pub(crate) fn of(status: &Value, name: &str) -> Value {
    let services = status["services"].as_array();
    services
        .and_then(|all| all.iter().find(|one| one["service"] == name).cloned())
        .unwrap_or_default()
}

pub(crate) fn text(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).into_owned()
}

pub(crate) fn signal(pid: u64, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

pub(crate) fn is_alive(pid: u64) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("\nState:\tZ")
}

/// The kernel's value for a process in the line that begins with `key`.
pub(crate) fn kernel_says(pid: u64, key: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(&format!("{key}:")));
    line.unwrap_or_default().trim().to_owned()
}

/// The private memory of a process, in KiB.
pub(crate) fn private_memory(pid: u64) -> u64 {
    kernel_says(pid, "RssAnon").trim_end_matches(" kB").trim().parse().unwrap()
}
