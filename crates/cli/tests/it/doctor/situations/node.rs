//! A node with two containers, a router, and a server behind it.
//!
//! | | address | answers |
//! |---|---|---|
//! | server | 203.0.113.2, 2001:db8:5::2 | TCP 80, and names at UDP 53 |
//! | router (`outside`) | 198.51.100.2 towards the node, 203.0.113.1 towards the server | |
//! | node | 198.51.100.1, `up0` | |
//! | c1 on `mynet`, bridge `cni0` | of 10.88.0.0/24 and fd00:88::/64 | TCP 80, published as 8080 |
//! | c2 on `mynet` | of the same | TCP 80 |
//!
//! `c3` and `c4` are namespaces that are not attached.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::traffic::{SILENCE, Server, try_tcp};
use testkit::{Container, FrozenCgroup, Lab, Place, RunningProgram, wait_until};

use crate::support::{CommandOutput, EXECUTABLE, call_in};
use crate::system::address_of;

const MYNET: &str = r#"{"cniVersion": "1.0.0", "name": "mynet", "plugins": [
    {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
     "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]]}},
    {"type": "portmap", "capabilities": {"portMappings": true}},
    {"type": "firewall"}]}"#;

/// Reads queue 7 of the packet filter (`linux include/uapi/linux/netfilter/nfnetlink_queue.h`), and
/// accepts all packets, or gives no verdict.
const QUEUE: &str = r#"
import signal, socket, struct, sys

queue = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
queue.bind((0, 0))

def send(kind, flags, data):
    body = struct.pack("!BBH", 0, 0, 7) + data
    queue.send(struct.pack("IHHII", 16 + len(body), kind, flags, 1, 0) + body)

def configure(data):
    send(0x302, 5, data)
    error = struct.unpack_from("i", queue.recv(4096), 16)[0]
    assert error == 0, error

# NFQNL_CFG_CMD_BIND, and NFQNL_COPY_META.
configure(struct.pack("HHBBH", 8, 1, 1, 0, 0))
configure(struct.pack("HHIB3x", 9, 2, 0, 1))
while sys.argv[1] == "accept":
    # The first attribute is NFQA_PACKET_HDR, which begins with the packet's number.
    packet = queue.recv(65536)[24:28]
    send(0x301, 1, struct.pack("HH", 12, 2) + struct.pack("!I", 1) + packet)
signal.pause()
"#;

const NAMES: &str = "nameserver 203.0.113.2\nnameserver 2001:db8:5::2\n";

/// How long mended traffic may take to work: the kernel resolves neighbours again, and checks
/// addresses for duplicates.
pub(super) const MENDED: Duration = Duration::from_secs(10);

/// The pause between tries.
const PAUSE: Duration = Duration::from_millis(20);

/// How long the name server waits before it checks whether it must end.
const POLL: Duration = Duration::from_millis(20);

/// A way of packets that a situation tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::doctor) enum Way {
    /// c1 to the server.
    Out4,
    Out6,
    /// c1 to c2.
    Between,
    /// The server to c1, by the port of the node.
    Published,
    /// The node to c1, by its own port.
    PublishedHere,
    /// The node to c1.
    FromNode,
    /// c1 to itself, over loopback.
    Inside,
    /// c1 to its first name server.
    Names,
    /// c1 to the server, with 1400 bytes that may not be fragmented.
    Large,
    /// The server to a program of the node at port 8080.
    Program,
}

impl Way {
    /// The ways that work on a sound node.
    const ALL: [Way; 9] = [
        Way::Out4,
        Way::Out6,
        Way::Between,
        Way::Published,
        Way::PublishedHere,
        Way::FromNode,
        Way::Inside,
        Way::Names,
        Way::Large,
    ];

    /// The ways on which small packets pass the link of c1.
    pub(super) const BY_ITS_LINK: &[Way] = &[
        Way::Out4,
        Way::Out6,
        Way::Between,
        Way::Published,
        Way::PublishedHere,
        Way::FromNode,
        Way::Names,
    ];

    /// The complaint of a person for whom this way does not work.
    pub(in crate::doctor) fn words(self) -> &'static str {
        match self {
            Way::Out4 => "c1 does not reach the server 203.0.113.2, port 80",
            Way::Out6 => "c1 does not reach the server 2001:db8:5::2, port 80",
            Way::Between => "c1 does not reach c2",
            Way::Published => "the server does not reach c1 by port 8080 of this node",
            Way::PublishedHere => "this node does not reach c1 by its own port 8080",
            Way::FromNode => "this node does not reach c1 at its own address",
            Way::Inside => "c1 does not reach itself by 127.0.0.1",
            Way::Names => "c1 finds no names",
            Way::Large => "packets of 1400 bytes from c1 do not come to the server",
            Way::Program => "the server does not reach the program of this node at port 8080",
        }
    }
}

/// The node on which situations are tried.
#[derive(Debug)]
pub(in crate::doctor) struct Node {
    pub(in crate::doctor) lab: Lab,
    pub(in crate::doctor) server: Container,
    pub(in crate::doctor) c1: Container,
    /// The program of c1.
    web: Option<Server>,
    /// A program of the node.
    program: Option<Server>,
    /// A listening socket of c1 whose program accepts no connections.
    idle: Option<TcpListener>,
    /// A control group in which a process of `others` is frozen. It ends that, so it goes first.
    frozen: Option<FrozenCgroup>,
    /// Processes of the node or of c1.
    others: Vec<RunningProgram>,
    addresses: [IpAddr; 2],
    /// The node's ends of the links of c1 and c2.
    ports: [String; 2],
    _names: Resolver,
    _servers: [Server; 2],
    _others: [Container; 4],
}

impl Node {
    pub(in crate::doctor) fn new(name: &str) -> Self {
        Self::prepared(Lab::new(name), |_| {})
    }

    /// Makes a node on which something else is set up before the first container.
    pub(in crate::doctor) fn prepared(lab: Lab, prepare: impl FnOnce(&Lab)) -> Self {
        Self::on(lab, MYNET, prepare)
    }

    /// Makes a node whose network asks no firewall to let its containers through.
    pub(in crate::doctor) fn without_firewall(lab: Lab) -> Self {
        let network = MYNET.replace(",\n    {\"type\": \"firewall\"}", "");
        assert!(!network.contains("firewall"), "{network}");
        Self::on(lab, &network, |_| {})
    }

    fn on(lab: Lab, network: &str, prepare: impl FnOnce(&Lab)) -> Self {
        let router = lab.outside();
        let server = lab.container("server");
        router.sh(&format!(
            "ip link add eth1 type veth peer name eth0 netns server && {} && \
             sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1",
            link("eth1", 1)
        ));
        server.sh(&format!(
            "ip link set lo up && {} && ip route add default via 203.0.113.1 && \
             ip -6 route add default via 2001:db8:5::1",
            link("eth0", 2)
        ));
        prepare(&lab);
        lab.sh("mkdir -p /etc/cni/net.d /opt/cni/bin /etc/netns/c1 /etc/netns/c2");
        std::fs::write(lab.path("/etc/cni/net.d/10-mynet.conflist"), network).unwrap();
        for name in ["c1", "c2"] {
            std::fs::write(lab.path(format!("/etc/netns/{name}/resolv.conf")), NAMES).unwrap();
        }
        let [c1, c2, c3, c4] = ["c1", "c2", "c3", "c4"].map(|name| {
            let container = lab.container(name);
            container.sh("ip link set lo up");
            container
        });
        let add = ["add", "mynet", "c1", "--container-id", "c1", "--publish", "8080:80"];
        call_in(&lab, &add).succeeded();
        call_in(&lab, &["add", "mynet", "c2", "--container-id", "c2"]).succeeded();
        let web = Some(web(&c1, "[::]:80"));
        let servers =
            [(&server, "server"), (&c2, "c2")].map(|(at, name)| Server::tcp(at, "[::]:80", name));
        let addresses = [&c1, &c2].map(|container| address_of(container, "eth0", "inet"));
        let ports = ["c1", "c2"].map(|name| host_end(&lab, name));
        let names = Resolver::start(&server);
        Node {
            lab,
            server,
            c1,
            web,
            program: None,
            idle: None,
            frozen: None,
            others: Vec::new(),
            addresses,
            ports,
            _names: names,
            _servers: servers,
            _others: [router, c2, c3, c4],
        }
    }

    /// Replaces the placeholders by this node's values: `{a1}` and `{a2}` are the addresses of c1
    /// and c2, `{p1}` and `{p2}` are the node's ends of their links.
    pub(in crate::doctor) fn filled(&self, text: &str) -> String {
        text.replace("{a1}", &self.addresses[0].to_string())
            .replace("{a2}", &self.addresses[1].to_string())
            .replace("{p1}", &self.ports[0])
            .replace("{p2}", &self.ports[1])
    }

    /// Runs commands on the node, as a person there would. Returns whether they succeeded, and
    /// their output.
    pub(in crate::doctor) fn run(&self, commands: &str) -> (bool, String) {
        let folder = Path::new(EXECUTABLE).parent().unwrap().display();
        let commands = self.filled(commands);
        let output = self.lab.try_sh(&format!("PATH={folder}:$PATH\nset -e\n{commands}"));
        let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    /// Writes the configuration of a network.
    pub(in crate::doctor) fn network(&self, file: &str, text: &str) {
        let path = format!("/etc/cni/net.d/{file}.conflist");
        std::fs::write(self.lab.path(path), text).unwrap();
    }

    /// Writes a plugin.
    pub(in crate::doctor) fn plugin(&self, name: &str, text: &str) {
        let path = format!("/opt/cni/bin/{name}");
        std::fs::write(self.lab.path(&path), text).unwrap();
        self.lab.sh(&format!("chmod 755 {path}"));
    }

    /// Lets the program of c1 listen at another address, or end.
    pub(in crate::doctor) fn serve(&mut self, at: Option<&str>) {
        drop(self.web.take());
        self.web = at.map(|at| web(&self.c1, at));
    }

    /// Lets a program of the node listen at port 8080, or end.
    pub(in crate::doctor) fn listen(&mut self, listens: bool) {
        drop(self.program.take());
        self.program = listens.then(|| Server::tcp(&self.lab, "0.0.0.0:8080", "program"));
    }

    /// Lets the program of c1 accept no connections, with room for two that wait, or serve as
    /// before.
    pub(in crate::doctor) fn hang(&mut self, hangs: bool) {
        self.serve(None);
        self.idle = None;
        let backlog = if hangs { 1 } else { 4096 };
        self.c1.sh(&format!("sysctl -qw net.core.somaxconn={backlog}"));
        if hangs {
            self.idle = Some(self.c1.enter(|| TcpListener::bind("[::]:80")).unwrap());
        } else {
            self.serve(Some("[::]:80"));
        }
    }

    /// Starts a process of c1 that listens, and stops it.
    pub(in crate::doctor) fn stop_program(&mut self) {
        let pid = self.serve_by_process();
        self.lab.sh(&format!("kill -STOP {pid}"));
    }

    /// Lets a process of c1 listen whose control group is frozen then.
    pub(in crate::doctor) fn freeze_program(&mut self) {
        let pid = self.serve_by_process();
        self.frozen = Some(FrozenCgroup::new(pid));
    }

    /// Lets a process of c1 listen in place of the program that this test is. Returns its number.
    fn serve_by_process(&mut self) -> u32 {
        self.serve(None);
        let serve = ["-m", "http.server", "80", "--bind", "::"];
        let mut program = self.c1.start("python3", &serve);
        let listens = "grep -q ':0050 0*:0000 0A ' /proc/net/tcp6";
        wait_until("the program", || self.c1.try_sh(listens).status.success());
        let pid = program.child().id();
        self.others.push(program);
        pid
    }

    /// Lets a program of the node read a queue of the packet filter, and `accept` the packets, or
    /// `hold` them.
    pub(in crate::doctor) fn read_queue(&mut self, what: &str) {
        let script = self.lab.dir().join("queue.py");
        std::fs::write(&script, QUEUE).unwrap();
        self.others.push(self.lab.start("python3", &[script.to_str().unwrap(), what]));
        let is_read = "grep -q '^ *7 ' /proc/net/netfilter/nfnetlink_queue";
        wait_until("the queue", || self.lab.try_sh(is_read).status.success());
    }

    /// Ends what [`Self::stop_program`], [`Self::freeze_program`] and [`Self::read_queue`] have
    /// started.
    pub(in crate::doctor) fn end_others(&mut self) {
        self.frozen = None;
        self.others.clear();
    }

    pub(in crate::doctor) fn doctor(&self, more: &[&str]) -> CommandOutput {
        call_in(&self.lab, &[&["doctor", "--output", "json"], more].concat())
    }

    /// Returns the ways that get no answer.
    pub(in crate::doctor) fn silent(&self, ways: &[Way]) -> Vec<Way> {
        thread::scope(|scope| {
            let asked: Vec<_> =
                ways.iter().map(|way| (*way, scope.spawn(move || self.answers(*way)))).collect();
            let silent = asked.into_iter().filter_map(|(way, thread)| {
                let answered = thread.join().unwrap();
                (!answered).then_some(way)
            });
            silent.collect()
        })
    }

    /// Returns what is wrong with a node that should be sound: ways that stay silent, and findings.
    pub(in crate::doctor) fn complaints(&self) -> Vec<String> {
        let deadline = Instant::now() + MENDED;
        let mut silent = self.silent(&Way::ALL);
        while !silent.is_empty() && Instant::now() < deadline {
            thread::sleep(PAUSE);
            silent = self.silent(&silent);
        }
        let mut complaints: Vec<String> =
            silent.iter().map(|way| format!("{way:?} gets no answer")).collect();
        let said = self.doctor(&[]);
        let findings = findings(&said);
        if said.code != 0 || !findings.is_empty() {
            complaints.push(format!("doctor ends with {}: {findings:#?}", said.code));
        }
        complaints
    }

    fn answers(&self, way: Way) -> bool {
        let of_c1 = SocketAddr::new(self.addresses[0], 80);
        let of_c2 = SocketAddr::new(self.addresses[1], 80);
        match way {
            Way::Out4 => serves(&self.c1, at("203.0.113.2:80"), "server"),
            Way::Out6 => serves(&self.c1, at("[2001:db8:5::2]:80"), "server"),
            Way::Between => serves(&self.c1, of_c2, "c2"),
            Way::Published => serves(&self.server, at("198.51.100.1:8080"), "c1"),
            Way::PublishedHere => serves(&self.lab, at("127.0.0.1:8080"), "c1"),
            Way::FromNode => serves(&self.lab, of_c1, "c1"),
            Way::Inside => serves(&self.c1, at("127.0.0.1:80"), "c1"),
            Way::Names => self.resolves(),
            Way::Large => self.carries_large_packets(),
            Way::Program => serves(&self.server, at("198.51.100.1:8080"), "program"),
        }
    }

    fn resolves(&self) -> bool {
        let text = std::fs::read_to_string(self.lab.path("/etc/netns/c1/resolv.conf")).unwrap();
        let line = text.lines().next().unwrap();
        let server: IpAddr = line.strip_prefix("nameserver ").unwrap().parse().unwrap();
        let socket = self.c1.enter(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect((server, 53)).map(|()| socket)
        });
        let Ok(socket) = socket else { return false };
        socket.set_read_timeout(Some(SILENCE)).unwrap();
        let mut answer = [0; 64];
        socket.send(&[0; 12]).and_then(|_| socket.recv(&mut answer)).is_ok()
    }

    fn carries_large_packets(&self) -> bool {
        let mut ping = self.c1.command("ping");
        ping.args(["-n", "-q", "-c", "1", "-W", "0.4", "-M", "do", "-s", "1400", "203.0.113.2"]);
        ping.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        ping.status().unwrap().success()
    }
}

/// Brings up a link between router and server, with addresses that end in this number. Duplicate
/// address detection is off, because no other machine is on that cable.
fn link(name: &str, end: u8) -> String {
    format!(
        "ip link set {name} addrgenmode none && ip link set {name} up && \
         ip addr add fe80::{end}/64 dev {name} nodad && ip addr add 203.0.113.{end}/24 dev {name} && \
         ip addr add 2001:db8:5::{end}/64 dev {name} nodad"
    )
}

fn web(c1: &Container, at: &str) -> Server {
    Server::tcp(c1, at, "c1")
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn serves(from: &impl Place, to: SocketAddr, name: &str) -> bool {
    try_tcp(from, to, SILENCE).is_ok_and(|answer| answer.server == name)
}

/// Returns the node's end of a container's link.
pub(in crate::doctor) fn host_end(lab: &Lab, name: &str) -> String {
    let links = |command: &str| -> Value { serde_json::from_str(&lab.sh(command)).unwrap() };
    let inside = links(&format!("ip -n {name} -json link show eth0"));
    let all = links("ip -json link");
    let mut all = all.as_array().unwrap().iter();
    let end = all.find(|link| link["ifindex"] == inside[0]["link_index"]).unwrap();
    end["ifname"].as_str().unwrap().to_owned()
}

/// The causes in the output of `doctor --output json`, in its order.
#[track_caller]
pub(in crate::doctor) fn findings(said: &CommandOutput) -> Vec<Value> {
    said.json()["findings"].as_array().unwrap_or_else(|| panic!("{said:#?}")).clone()
}

/// The domain below which the name server has the address 203.0.113.66 for any name, as a message has
/// it (RFC 1035 §4.1).
const WILD: &[u8] = b"\x04wild\x07example\0\0\x01";

/// A record with that address, for the name of the question.
const RECORD: [u8; 16] = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 203, 0, 113, 66];

/// A name server that knows no names but those below [`WILD`].
#[derive(Debug)]
pub(in crate::doctor) struct Resolver {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Resolver {
    pub(in crate::doctor) fn start(place: &impl Place) -> Self {
        let socket = place.enter(|| UdpSocket::bind("[::]:53")).unwrap();
        socket.set_read_timeout(Some(POLL)).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopping.load(Ordering::Relaxed) {
                let mut message = [0; 512];
                // No query has arrived yet, or a client is gone: wait for the next one.
                let Ok((length, from)) = socket.recv_from(&mut message) else { continue };
                if 12 <= length {
                    let mut answer = message[..length].to_vec();
                    // The flags say: this is a response (RFC 1035 §4.1.1).
                    answer[2] |= 0x80;
                    if answer.windows(WILD.len()).any(|part| part == WILD) {
                        answer[7] = 1;
                        answer.extend(RECORD);
                    } else {
                        // There is no such name.
                        answer[3] = 3;
                    }
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Resolver { stop, thread: Some(thread) }
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
