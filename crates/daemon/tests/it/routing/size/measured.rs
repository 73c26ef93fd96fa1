//! The time and the memory that the service takes with as many nodes as a list may have. The tests
//! print the times, which docs/routing.md has, and assert none of them.
//!
//! `NETWRIGHTD_MEASURED` names the executable that is measured, such as `target/dist/netwrightd`:
//! the tests' own is not optimised.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use kernel::route::RouteSocket;
use testkit::kube::KubeApi;
use testkit::{MemoryLimit, Place as _, Service, feature, wait_until};

use super::super::Fabric;
use super::super::cluster::cluster;
use super::bare::{BareProgram, Ear};
use super::{MOST, OtherNode};

/// The memory that the service may use with this many nodes, in bytes: its control group allows no
/// more. The group also counts what the kernel holds for the service. It does not count pages of
/// the executable that were in memory before: all processes share them, and the kernel takes them
/// back when it lacks memory. The largest resident size (`VmHWM`) counts them for each process, and
/// the tests' own executable has many.
const MEMORY: u64 = 48 << 20;

/// The pause before a measurement, so that it does not include late work for earlier changes: after
/// a look the service rests four times as long as the look took.
const SETTLE: Duration = Duration::from_secs(4);

/// Scripts that make tunnels as the service does, and that delete them with everything on them.
const TUNNELS: &str = "set -e; \
    ip link add nw-vxlan4 mtu 1450 type vxlan id 1 dstport 8472 local 192.0.2.11 dev eth0 nolearning; \
    ip link add nw-vxlan6 mtu 1430 type vxlan id 1 dstport 8472 local 2001:db8:0::10 dev eth0 nolearning; \
    ip link set nw-vxlan4 addrgenmode none up; ip link set nw-vxlan6 addrgenmode none up";
const NO_TUNNELS: &str = "ip link del nw-vxlan4; ip link del nw-vxlan6";

/// How many nodes there are, and how often each measurement is repeated.
struct Extent {
    nodes: u16,
    turns: usize,
}

impl Extent {
    fn here() -> Self {
        match std::env::var_os(feature::VM_VARIABLE) {
            Some(_) => Extent { nodes: 200, turns: 1 },
            // One place in the list stays free for the node that is added.
            None => Extent { nodes: MOST - 1, turns: 9 },
        }
    }
}

/// Median and quartiles, in milliseconds.
struct Spread([f64; 3]);

impl Spread {
    fn of(times: &[Duration]) -> Self {
        let mut times = times.to_vec();
        times.sort();
        Spread([1, 2, 3].map(|quarter| times[(times.len() - 1) * quarter / 4].as_secs_f64() * 1e3))
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [low, median, high] = self.0;
        write!(f, "{median:.0} ms ({low:.0}–{high:.0})")
    }
}

/// A node, and a source that lists many others.
struct Bench {
    fabric: Fabric,
    others: Vec<OtherNode>,
    /// Not in the virtual machine, which may have no such groups.
    memory: Option<MemoryLimit>,
    cold: Vec<Duration>,
    bare: Vec<Duration>,
    /// Processor time of each: other programs on the machine change it less.
    cold_worked: Vec<Duration>,
    bare_worked: Vec<Duration>,
}

impl Bench {
    fn new(name: &str, extent: &Extent) -> Self {
        let fabric = Fabric::for_many(name);
        Bench {
            fabric,
            others: OtherNode::many(extent.nodes).collect(),
            memory: (1 < extent.turns).then(|| MemoryLimit::new(MEMORY)),
            cold: Vec::new(),
            bare: Vec::new(),
            cold_worked: Vec::new(),
            bare_worked: Vec::new(),
        }
    }

    fn ear(&self) -> Ear {
        Ear::open(&self.fabric.nodes[0].host)
    }

    fn routes(&self) -> usize {
        2 * self.others.len()
    }

    fn pid(&self) -> u32 {
        self.fabric.nodes[0].service.as_ref().unwrap().pid()
    }

    /// Starts the service, and waits until everything is programmed.
    fn start(&mut self) {
        let mut command = self.fabric.command(0, "routing");
        command.args(&self.fabric.source).args(&self.fabric.cluster).args(["--interval", "1m"]);
        let ear = self.ear();
        let log = self.fabric.nodes[0].dir.join("log");
        let begin = Instant::now();
        let service = Service::start(command, &log);
        if let Some(memory) = &self.memory {
            memory.hold(service.pid());
        }
        ear.until(self.routes(), true);
        self.cold.push(begin.elapsed());
        self.cold_worked.push(worked(service.pid()));
        self.fabric.nodes[0].service = Some(service);
    }

    /// Makes the same objects with the bare program, after the service was uninstalled.
    fn start_bare(&mut self) {
        let rules = self.fabric.nodes[0].dir.join("rules");
        let shown = rules.display();
        if !rules.exists() {
            let show = format!("nft list table inet netwright-routing >{shown}");
            self.fabric.nodes[0].host.sh(&show);
        }
        self.fabric.uninstall(0);
        let host = &self.fabric.nodes[0].host;
        host.sh(TUNNELS);
        let indices = host.enter(|| {
            let netlink = RouteSocket::open().unwrap();
            ["nw-vxlan4", "nw-vxlan6"].map(|name| netlink.link_index(name).unwrap().unwrap())
        });
        host.sh(NO_TUNNELS);
        // The kernel numbers the next two by the next numbers.
        let bare = BareProgram::new(&self.others, indices.map(|index| index + 2));
        sleep(SETTLE);
        let ear = self.ear();
        let own = std::process::id();
        let (begin, before) = (Instant::now(), worked(own));
        host.sh(TUNNELS);
        host.enter(|| bare.run());
        host.sh(&format!("nft -f {shown}"));
        // The kernel has answered the last message.
        self.bare.push(begin.elapsed());
        self.bare_worked.push(worked(own) - before);
        ear.until(self.routes(), true);
        host.sh(NO_TUNNELS);
        host.sh("nft delete table inet netwright-routing");
        sleep(SETTLE);
    }

    /// Makes this many cold starts, each followed by the bare program. One more start leaves the
    /// service running.
    fn starts(&mut self, turns: usize) {
        for _ in 0..turns {
            self.start();
            self.start_bare();
        }
        self.start();
    }

    /// The time from an act until the node that it adds is in the kernel.
    fn change(&self, brings: impl FnOnce()) -> Duration {
        let ear = self.ear();
        let begin = Instant::now();
        brings();
        ear.until(2, false);
        begin.elapsed()
    }

    /// Waits until another node is gone.
    fn wait_for_end(&self, other: OtherNode) {
        let [v4, _] = other.prefixes();
        let show = format!("ip route show {v4} proto 78");
        wait_until("it to go", || self.fabric.nodes[0].host.sh(&show).is_empty());
    }

    /// The time until everything on a deleted tunnel exists again.
    fn recovery(&self) -> Duration {
        let host = &self.fabric.nodes[0].host;
        let count = "ip -4 route show proto 78 | wc -l; ip -6 route show proto 78 | wc -l; \
             ip nexthop show proto 78 | wc -l; ip neigh show dev nw-vxlan4 nud permanent | wc -l; \
             bridge fdb show dev nw-vxlan4 | wc -l";
        let before = host.sh(count);
        sleep(SETTLE);
        let ear = self.ear();
        let begin = Instant::now();
        host.sh("ip link del nw-vxlan4");
        ear.until(self.others.len(), false);
        let took = begin.elapsed();
        assert_eq!(host.sh(count), before);
        took
    }

    /// Prints the measurements, and asserts those that are not times.
    fn tell(&self, source: &str, changes: &[Duration], recoveries: &[Duration], list: &str) {
        let (cold, bare) = (Spread::of(&self.cold), Spread::of(&self.bare));
        let times = cold.0[1] / bare.0[1];
        let (worked, bare_worked) = (Spread::of(&self.cold_worked), Spread::of(&self.bare_worked));
        let work = worked.0[1] / bare_worked.0[1];
        let nodes = self.others.len() + 1;
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let kib = |key: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.trim_start_matches(':').trim_end_matches("kB").trim().parse().unwrap()
        };
        let group = self.memory.as_ref().map_or(0, |memory| memory.most_used() / 1024);
        let (most, anonymous, of_files) = (kib("VmHWM"), kib("RssAnon"), kib("RssFile"));
        let (changes, recoveries) = (Spread::of(changes), Spread::of(recoveries));
        eprintln!(
            "MEASURED routing, {source}, {nodes} nodes: all programmed after {cold}, by a bare program \
             {bare}, {times:.2} times; processor time {worked} and {bare_worked}, {work:.2} times{list}; \
             a node comes: {changes}; a tunnel is deleted: {recoveries}; memory: group at most \
             {group} KiB, now {anonymous} KiB anonymous; resident at most {most} KiB, and {of_files} \
             KiB of files, such as the executable, are in that now"
        );
    }
}

/// The processor time so far of a process and of those that it has started and that have ended.
fn worked(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    // `man 5 proc_pid_stat`: utime, stime, cutime and cstime are the 14th to 17th, in hundredths of a
    // second; the third is next.
    let ticks = fields.split(' ').skip(11).take(4).map(|ticks| ticks.parse::<u64>().unwrap());
    Duration::from_millis(ticks.sum::<u64>() * 10)
}

/// As many nodes as a list may have, from a file.
#[test]
fn vm_a_full_list() {
    testkit::require!("root", "vxlan", "round:2/3", "program:nft", "program:bridge");
    let extent = Extent::here();
    let mut bench = Bench::new("routing-full-list", &extent);
    let list = bench.fabric.list_of(extent.nodes);
    bench.fabric.write_list(&list);
    bench.starts(extent.turns);
    let changes: Vec<Duration> = (0..3 * extent.turns)
        .map(|turn| {
            let new = OtherNode::new(9000 + u16::try_from(turn).unwrap());
            let longer = list.clone() + &new.entry();
            sleep(SETTLE / 4);
            let took = bench.change(|| bench.fabric.write_list(&longer));
            bench.fabric.write_list(&list);
            bench.wait_for_end(new);
            took
        })
        .collect();
    let recoveries: Vec<Duration> = (0..extent.turns).map(|_| bench.recovery()).collect();
    bench.tell("file", &changes, &recoveries, "");
}

/// As many Nodes, from an API server. The server is the test kit's, which is not optimised. So the
/// test also prints the time in which a client gets the list from it without using it.
#[test]
fn vm_a_large_cluster() {
    testkit::require!("root", "vxlan", "round:0/3", "program:nft", "program:bridge");
    let extent = Extent::here();
    let mut bench = Bench::new("routing-large-cluster", &extent);
    let api = cluster(&mut bench.fabric);
    for other in &bench.others {
        api.create(&other.object());
    }
    let lists: Vec<Duration> =
        (0..extent.turns).map(|_| bench.fabric.lab.enter(|| read_list(&api))).collect();
    bench.starts(extent.turns);
    let changes: Vec<Duration> = (0..3 * extent.turns)
        .map(|turn| {
            let new = OtherNode::new(9000 + u16::try_from(turn).unwrap());
            let object = new.object();
            sleep(SETTLE / 4);
            let took = bench.change(|| {
                api.create(&object);
            });
            api.remove("nodes", "", &new.name());
            bench.wait_for_end(new);
            took
        })
        .collect();
    let recoveries: Vec<Duration> = (0..extent.turns).map(|_| bench.recovery()).collect();
    let list = format!("; the server takes {} for the list alone", Spread::of(&lists));
    bench.tell("kubernetes", &changes, &recoveries, &list);
}

/// Reads the list of Nodes in pages of the service's size; returns how long that takes.
fn read_list(api: &KubeApi) -> Duration {
    let begin = Instant::now();
    let mut path = "/api/v1/nodes?limit=200".to_owned();
    loop {
        let (code, answer) = api.send("GET", &path, &serde_json::Value::Null);
        assert_eq!(code, 200);
        let Some((_, rest)) = answer.split_once("\"continue\":\"") else { break };
        let Some((token, _)) = rest.split_once('"') else { break };
        if token.is_empty() {
            break;
        }
        path = format!("/api/v1/nodes?limit=200&continue={token}");
    }
    begin.elapsed()
}
