//! A host with a bridge, a DHCP server on it, and the daemon.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{Container, Place, Running};

use crate::support::{Node, Run};

/// How long anything that is waited for may take: short leases are renewed after seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// A host whose bridge `br0` has 192.0.2.1/24 on it.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) node: Node,
    pub(crate) socket: PathBuf,
    pub(crate) state: PathBuf,
}

impl Rig {
    pub(crate) fn new(name: &str) -> Self {
        let node = Node::new(name);
        node.sh(
            "ip link add br0 address 02:00:00:00:00:01 type bridge && ip link set br0 up && ip addr add 192.0.2.1/24 dev br0",
        );
        let socket = node.lab.dir().join("d.sock");
        let state = node.lab.dir().join("state");
        Rig { node, socket, state }
    }

    /// Starts the daemon and waits until it listens.
    pub(crate) fn daemon(&self) -> Daemon {
        self.daemon_with(&[])
    }

    pub(crate) fn daemon_with(&self, flags: &[&str]) -> Daemon {
        let log = self.node.lab.dir().join("daemon.log");
        let out = fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let child = self
            .node
            .lab
            .command(env!("CARGO_BIN_EXE_netwrightd"))
            .args(["dhcp", "-socketpath", self.socket.to_str().unwrap()])
            .args(["--state", self.state.to_str().unwrap()])
            .args(flags)
            .env("NETWRIGHT_LOG", "debug")
            .stdin(Stdio::null())
            .stderr(out)
            .spawn()
            .unwrap();
        let daemon = Daemon { child, log };
        wait_for("the daemon to listen", || {
            self.node.lab.enter(|| std::os::unix::net::UnixStream::connect(&self.socket).is_ok())
        });
        daemon
    }

    /// The plugin, called for a network that is a bridge's.
    pub(crate) fn bridge(&self, verb: &str) -> Run<'_> {
        self.node.run("bridge", verb).config(json!({
            "bridge": "br0",
            "ipam": { "type": "dhcp", "daemonSocketPath": self.socket },
        }))
    }

    /// The address plugin itself, as an interface plugin calls it.
    pub(crate) fn dhcp(&self, verb: &str) -> Run<'_> {
        self.node
            .run("dhcp", verb)
            .config(json!({ "ipam": { "type": "dhcp", "daemonSocketPath": self.socket } }))
    }

    /// A container with an interface `eth0` on the bridge, down and without address.
    pub(crate) fn plugged(&self, name: &str) -> Container {
        let container = self.node.container(name);
        self.node.sh(&format!(
            "ip link add v{name} type veth peer name eth0 netns {name} && ip link set v{name} master br0 up"
        ));
        container
    }

    /// Starts dnsmasq on the bridge; leases last two minutes, its shortest. `more` are further lines of its configuration.
    pub(crate) fn dnsmasq(&self, more: &str) -> Dnsmasq {
        let dir = self.node.dir("dnsmasq");
        let (config, leases, log) = (dir.join("conf"), dir.join("leases"), dir.join("log"));
        fs::write(
            &config,
            format!(
                "interface=br0\nbind-interfaces\nexcept-interface=lo\nport=0\nno-ping\nlog-dhcp\nno-daemon\n\
                 dhcp-authoritative\ndhcp-range=192.0.2.100,192.0.2.150,255.255.255.0,2m\n\
                 dhcp-leasefile={}\nlog-facility={}\nuser=root\npid-file=\n{more}\n",
                leases.display(),
                log.display(),
            ),
        )
        .unwrap();
        let running = self.start_dnsmasq(&config, &log);
        Dnsmasq { running, config, leases, log }
    }

    fn start_dnsmasq(&self, config: &Path, log: &Path) -> Running {
        let before = fs::read_to_string(log).unwrap_or_default().len();
        let running = self.node.lab.start("dnsmasq", &["-k", "-C", config.to_str().unwrap()]);
        wait_for("dnsmasq to start", || {
            fs::read_to_string(log)
                .unwrap_or_default()
                .get(before..)
                .is_some_and(|text| text.contains("DHCP, IP range"))
        });
        running
    }

    /// Ends dnsmasq and starts it again.
    pub(crate) fn restart(&self, server: &mut Dnsmasq) {
        server.running.child().kill().unwrap();
        server.running.child().wait().unwrap();
        server.running = self.start_dnsmasq(&server.config.clone(), &server.log.clone());
    }

    /// What is kept of leases.
    pub(crate) fn kept(&self) -> Vec<Value> {
        let entries = fs::read_dir(self.state.join("leases")).into_iter().flatten();
        entries
            .map(|entry| serde_json::from_slice(&fs::read(entry.unwrap().path()).unwrap()).unwrap())
            .collect()
    }
}

/// dnsmasq.
#[derive(Debug)]
pub(crate) struct Dnsmasq {
    running: Running,
    config: PathBuf,
    leases: PathBuf,
    log: PathBuf,
}

impl Dnsmasq {
    /// The addresses that are leased, as its file says.
    pub(crate) fn leased(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.leases).unwrap_or_default();
        let mut all: Vec<String> =
            text.lines().filter_map(|line| line.split(' ').nth(2)).map(str::to_owned).collect();
        all.sort();
        all
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// How often a line with these words is in its log.
    pub(crate) fn logged(&self, words: &str) -> usize {
        self.log().lines().filter(|line| line.contains(words)).count()
    }
}

/// The daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: std::process::Child,
    log: PathBuf,
}

impl Daemon {
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends it as a service manager does; returns its exit code.
    pub(crate) fn stop(mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }

    /// Ends it without a warning.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
    }
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The first address of a result, without its prefix length.
pub(crate) fn address(result: &Value) -> String {
    let address =
        result["ips"][0]["address"].as_str().unwrap_or_else(|| panic!("no address: {result}"));
    address.split('/').next().unwrap().to_owned()
}
