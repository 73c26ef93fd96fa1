//! A host with a bridge, a DHCP server on it, and the daemon.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use kernel::packet::{Filter, PacketSocket};
use kernel::route::{Change, LinkSet, RouteSocket};
use serde_json::{Value, json};
pub(crate) use testkit::wait_until as wait_for;
use testkit::{Container, Place};

use crate::support::{Node, Run};

/// A host whose bridge `br0` has 192.0.2.1/24.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) node: Node,
    pub(crate) socket: PathBuf,
    pub(crate) state: PathBuf,
}

impl Rig {
    pub(crate) fn new(name: &str) -> Self {
        Self::on(Node::new(name))
    }

    pub(crate) fn on(node: Node) -> Self {
        // A port that is always up gives the bridge a carrier: kea looks for one when it starts.
        node.sh(
            "ip link add br0 address 02:00:00:00:00:01 type bridge && ip link set br0 up && \
             ip link add k0 type veth peer name k1 && ip link set k0 master br0 up && ip link set k1 up && \
             ip addr add 192.0.2.1/24 dev br0",
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
        // The daemon listens before it has read its leases, and is ready after that.
        let starts = |log: &Path| fs::read_to_string(log).unwrap().matches(" ready ").count();
        let before = starts(&log);
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
            before < starts(&daemon.log)
                && self.node.lab.enter(|| UnixStream::connect(&self.socket).is_ok())
        });
        daemon
    }

    /// A call of the plugin `bridge`, whose addresses come from `dhcp`.
    pub(crate) fn bridge(&self, verb: &str) -> Run<'_> {
        self.node.run("bridge", verb).config(json!({
            "bridge": "br0",
            "ipam": { "type": "dhcp", "daemonSocketPath": self.socket },
        }))
    }

    /// A direct call of the address plugin, as an interface plugin makes it.
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

    /// Starts dnsmasq on the bridge; leases last two minutes, its shortest. `more` are further
    /// lines of its configuration.
    pub(crate) fn dnsmasq(&self, more: &str) -> Dnsmasq {
        let dir = self.node.dir("dnsmasq");
        let (config, leases, log) = (dir.join("conf"), dir.join("leases"), dir.join("log"));
        fs::write(&config, dnsmasq_config(&dir, more)).unwrap();
        let running = start_dnsmasq(&self.node.lab, &config, &log);
        Dnsmasq { running, config, leases, log }
    }

    /// Starts dnsmasq in a container, whose `eth0` is on the bridge.
    pub(crate) fn dnsmasq_in(&self, container: &Container, more: &str) -> Dnsmasq {
        let dir = self.node.dir("dnsmasq");
        let (config, leases, log) = (dir.join("conf"), dir.join("leases"), dir.join("log"));
        let text = dnsmasq_config(&dir, more).replace("interface=br0", "interface=eth0");
        fs::write(&config, text).unwrap();
        let running = start_dnsmasq(container, &config, &log);
        Dnsmasq { running, config, leases, log }
    }

    /// Ends dnsmasq and starts it again.
    pub(crate) fn restart(&self, server: &mut Dnsmasq) {
        server.running.child().kill().unwrap();
        server.running.child().wait().unwrap();
        server.running = start_dnsmasq(&self.node.lab, &server.config.clone(), &server.log.clone());
    }

    /// The stored leases.
    pub(crate) fn kept(&self) -> Vec<Value> {
        let entries = fs::read_dir(self.state.join("leases")).into_iter().flatten();
        entries
            .map(|entry| serde_json::from_slice(&fs::read(entry.unwrap().path()).unwrap()).unwrap())
            .collect()
    }
}

fn start_dnsmasq(place: &impl Place, config: &Path, log: &Path) -> RunningProgram {
    let before = fs::read_to_string(log).unwrap_or_default().len();
    let mut command = place.command("dnsmasq");
    command.args(["-k", "-C", config.to_str().unwrap()]);
    let running = RunningProgram::new(command);
    wait_for("dnsmasq to start", || {
        fs::read_to_string(log)
            .unwrap_or_default()
            .get(before..)
            .is_some_and(|text| text.contains("DHCP, IP range"))
    });
    running
}

/// A configuration of dnsmasq that keeps its files in `dir`.
pub(crate) fn dnsmasq_config(dir: &Path, more: &str) -> String {
    let (leases, log) = (dir.join("leases"), dir.join("log"));
    format!(
        "interface=br0\nbind-interfaces\nexcept-interface=lo\nport=0\nno-ping\nlog-dhcp\n\
         dhcp-authoritative\ndhcp-range=192.0.2.100,192.0.2.150,255.255.255.0,2m\n\
         dhcp-leasefile={}\nlog-facility={}\nuser=root\npid-file=\n{more}\n",
        leases.display(),
        log.display(),
    )
}

/// dnsmasq.
#[derive(Debug)]
pub(crate) struct Dnsmasq {
    running: RunningProgram,
    config: PathBuf,
    leases: PathBuf,
    log: PathBuf,
}

impl Dnsmasq {
    /// The leased addresses in its file.
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

    /// How often its log has a line with these words.
    pub(crate) fn logged(&self, words: &str) -> usize {
        self.log().lines().filter(|line| line.contains(words)).count()
    }
}

/// kea, for one family.
#[derive(Debug)]
pub(crate) struct Kea {
    running: RunningProgram,
    server: KeaServer,
    dir: PathBuf,
}

/// One of kea's servers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeaServer {
    program: &'static str,
    /// The top key of its configuration.
    section: &'static str,
    started: &'static str,
    /// Its particular configuration; its files are in the folder.
    terms: fn(LeaseTimes, &Path) -> Value,
}

const KEA4: KeaServer = KeaServer {
    program: "kea-dhcp4",
    section: "Dhcp4",
    started: "DHCP4_STARTED",
    terms: LeaseTimes::v4,
};
const KEA6: KeaServer = KeaServer {
    program: "kea-dhcp6",
    section: "Dhcp6",
    started: "DHCP6_STARTED",
    terms: LeaseTimes::v6,
};

/// The settings of kea's only subnet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaseTimes {
    pub(crate) valid_s: u32,
    pub(crate) t1_s: u32,
    pub(crate) t2_s: u32,
    /// For IPv4.
    pub(crate) router: &'static str,
}

impl LeaseTimes {
    fn v4(self, _: &Path) -> Value {
        json!({
            "interfaces-config": { "interfaces": ["br0"], "dhcp-socket-type": "raw" },
            "subnet4": [{
                "subnet": "192.0.2.0/24",
                "pools": [{ "pool": "192.0.2.100 - 192.0.2.150" }],
                "option-data": [{ "name": "routers", "data": self.router }],
            }],
        })
    }

    fn v6(self, dir: &Path) -> Value {
        json!({
            "interfaces-config": { "interfaces": ["br0"] },
            "data-directory": dir,
            "preferred-lifetime": self.valid_s,
            "subnet6": [{
                "subnet": "2001:db8::/64",
                "interface": "br0",
                "pools": [{ "pool": "2001:db8::100 - 2001:db8::1ff" }],
                "option-data": [{ "name": "dns-servers", "data": "2001:db8::53" }],
            }],
        })
    }
}

impl Rig {
    /// Starts kea on the bridge: the server for leases shorter than dnsmasq's two minutes.
    pub(crate) fn kea(&self, lasting: LeaseTimes) -> Kea {
        self.any_kea(KEA4, lasting)
    }

    /// Starts kea for IPv6 on the bridge, which must have a link-local address.
    pub(crate) fn kea6(&self, lasting: LeaseTimes) -> Kea {
        self.any_kea(KEA6, lasting)
    }

    fn any_kea(&self, server: KeaServer, lasting: LeaseTimes) -> Kea {
        let dir = self.node.dir(server.program);
        let running = self.start_kea(server, &dir, lasting);
        Kea { running, server, dir }
    }

    /// Starts kea again, perhaps with other settings.
    pub(crate) fn restart_kea(&self, kea: &mut Kea, lasting: LeaseTimes) {
        kea.stop();
        kea.running = self.start_kea(kea.server, &kea.dir, lasting);
    }

    fn start_kea(&self, server: KeaServer, dir: &Path, lasting: LeaseTimes) -> RunningProgram {
        let (config, log) = (dir.join("conf"), dir.join("log"));
        let mut settings = json!({
            "lease-database": { "type": "memfile", "persist": true, "name": dir.join("leases") },
            "valid-lifetime": lasting.valid_s, "renew-timer": lasting.t1_s, "rebind-timer": lasting.t2_s,
            "calculate-tee-times": false,
            "loggers": [{
                "name": server.program,
                "severity": "INFO",
                "output_options": [{ "output": log, "flush": true }],
            }],
        });
        let terms = (server.terms)(lasting, dir);
        settings.as_object_mut().unwrap().extend(terms.as_object().unwrap().clone());
        fs::write(&config, json!({ server.section: settings }).to_string()).unwrap();
        let started = |text: &str| text.matches(server.started).count();
        let before = started(&fs::read_to_string(&log).unwrap_or_default());
        let mut command = self.node.lab.command(server.program);
        command.args(["-c", config.to_str().unwrap()]);
        command.env("KEA_PIDFILE_DIR", dir).env("KEA_LOCKFILE_DIR", dir);
        let running = RunningProgram::new(command);
        wait_for("kea to start", || {
            before < started(&fs::read_to_string(&log).unwrap_or_default())
        });
        running
    }
}

impl Kea {
    pub(crate) fn stop(&mut self) {
        self.running.child().kill().unwrap();
        self.running.child().wait().unwrap();
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// How often its log has a line with these words.
    pub(crate) fn logged(&self, words: &str) -> usize {
        self.log().lines().filter(|line| line.contains(words)).count()
    }
}

/// A program that is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct RunningProgram(std::process::Child);

impl RunningProgram {
    pub(crate) fn new(mut command: std::process::Command) -> Self {
        RunningProgram(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }

    /// Starts a program whose output goes to a file.
    pub(crate) fn telling(mut command: std::process::Command, told: &Path) -> Self {
        let file = fs::File::create(told).unwrap();
        RunningProgram(command.stdin(Stdio::null()).stdout(file).spawn().unwrap())
    }

    pub(crate) fn child(&mut self) -> &mut std::process::Child {
        &mut self.0
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: std::process::Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts a service whose log goes to a file.
    pub(crate) fn start(mut command: std::process::Command, log: &Path) -> Self {
        let out = fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        let child = command.env("NETWRIGHT_LOG", "debug").stdin(Stdio::null()).stderr(out).spawn();
        Daemon { child: child.unwrap(), log: log.to_owned() }
    }

    /// Waits until it ends by itself, with success.
    #[track_caller]
    pub(crate) fn ended(mut self) {
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{}", self.log());
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as a service manager does; returns its exit code.
    pub(crate) fn stop(mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }

    /// Kills it.
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

/// Sends a frame repeatedly through a container's `eth0`, which it brings up as soon as it appears,
/// until `stop` is set.
pub(crate) fn flood(container: &Container, frame: &[u8], stop: &AtomicBool) {
    container.enter(|| {
        let mut links = RouteSocket::open().unwrap();
        let mut sender = None;
        while !stop.load(Ordering::Relaxed) {
            match &sender {
                None => {
                    if let Some(ifindex) = links.link_index("eth0").unwrap() {
                        let set = LinkSet::default().up(true);
                        links.apply_one(&Change::SetLink { ifindex, set }).unwrap();
                        sender = Some(PacketSocket::open(ifindex, &Filter::nothing()).unwrap());
                    }
                }
                // A queue may be full, and the link may be down for a moment.
                Some(sender) => drop(sender.send(frame)),
            }
        }
    });
}

/// Sets the flag when it is dropped, also by a failing test, which waits for its threads.
#[derive(Debug)]
pub(crate) struct StopGuard<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The first address of a result, without its prefix length.
pub(crate) fn address(result: &Value) -> String {
    let address =
        result["ips"][0]["address"].as_str().unwrap_or_else(|| panic!("no address: {result}"));
    address.split('/').next().unwrap().to_owned()
}

/// Raises this process's limit of open connections.
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}
