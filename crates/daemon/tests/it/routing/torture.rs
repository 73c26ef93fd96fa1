//! Random acts of other programs on three nodes, while the pods ping each other.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::kube::KubeApi;
use testkit::real::Etcd;
use testkit::{Chance, Place as _, RunningProgram, Snapshot, feature, share, wait_until};

use super::flannel::Backend;
use super::{FLANNELS_TUNNELS, Fabric, Node, TUNNELS, cluster, damage, etcd, with_tunnels};

/// The number of acts: in every run and in the virtual machine, which is slow; with `--full`; and in a
/// run that tries all.
const ACTS: usize = 20;
const ACTS_OF_A_SHARE: usize = 250;
const ALL_ACTS: usize = 2_000;

/// The number of acts where an API server or etcd must answer first. Clients wait longer after each
/// failure, so these acts take one to three minutes. Each round makes other acts.
const ACTS_ON_A_CLUSTER: usize = 150;
const ACTS_WITH_LEASES: usize = 100;

/// The time within which everything is to be right again: with the file, and where a server must
/// answer. The test prints how often it takes longer.
const IN_TIME: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// The largest number of acts at once.
const BURST: usize = 6;

/// How often a service whose nodes are in a file may look at all of the kernel's objects, from the
/// last act of a burst until all is right. The test asserts this instead of a time, which depends
/// on what else the machine does. Only events make the service look, and it collects them.
const LOOKS: u64 = 20;

/// The objects of a node, without the numbers of its nexthops: a service that starts while their
/// routes are gone chooses other numbers.
pub(super) fn objects(node: &Node) -> Vec<String> {
    unnumbered(damage::objects(node))
}

pub(super) fn unnumbered(lines: Vec<String>) -> Vec<String> {
    let unnumbered = |line: String| {
        let mut words: Vec<&str> = line.split(' ').collect();
        if let Some(at) = words.iter().position(|word| ["id", "nhid"].contains(word)) {
            words.remove((at + 1).min(words.len() - 1));
        }
        words.join(" ")
    };
    let mut lines: Vec<String> = lines.into_iter().map(unnumbered).collect();
    lines.sort();
    lines
}

/// The lines of the whole that a node lacks, and the lines that it has in addition.
pub(super) fn differences(whole: &[String], is: &[String]) -> String {
    let gone: Vec<_> = whole.iter().filter(|line| !is.contains(line)).collect();
    let new: Vec<_> = is.iter().filter(|line| !whole.contains(line)).collect();
    format!("gone {gone:#?}\nnew {new:#?}")
}

/// What other programs do to a node, each a command. `$peers` are the prefixes of the other nodes.
const TO_THE_KERNEL: [&str; 17] = [
    "ip link set nw-vxlan4 down; ip link set nw-vxlan4 up",
    "ip link set nw-vxlan6 down",
    "ip link del nw-vxlan4",
    "ip link del nw-vxlan4; ip link del nw-vxlan6",
    "ip link set nw-vxlan6 address 02:00:00:00:00:07",
    "ip link set nw-vxlan4 mtu 600",
    "ip link set nw-vxlan4 alias other",
    "ip addr flush dev nw-vxlan4",
    "ip addr add 10.99.0.1/32 dev nw-vxlan6",
    "for to in $peers; do ip route del $to; done",
    "for to in $peers; do ip -N nexthop del id $(ip -N nexthop show proto 78 | head -1 | cut -d' ' -f2); done",
    "for of in 78 79; do ip route flush type unreachable proto $of; ip -6 route flush type unreachable proto $of; done",
    "ip nexthop flush proto 78",
    "ip neigh flush nud permanent dev nw-vxlan4",
    "bridge fdb show dev nw-vxlan4 | while read mac rest; do bridge fdb replace $mac dst 192.0.2.250 dev nw-vxlan4 self permanent; done",
    "bridge fdb show dev nw-vxlan6 | while read mac rest; do bridge fdb del $mac dev nw-vxlan6; done",
    "nft flush ruleset",
];

/// The source of the nodes, which suffers acts too.
enum Source<'lab> {
    /// A file; its right content is this list.
    File(String),
    /// An API server.
    Cluster(KubeApi),
    /// etcd; its right leases are these.
    Etcd(Etcd<'lab>, BTreeMap<String, String>),
}

impl Source<'_> {
    const OF_A_FILE: [&'static str; 4] = ["gone", "empty", "torn", "without the last"];
    const OF_A_CLUSTER: [&'static str; 8] = [
        "away",
        "silent",
        "failing",
        "cut off",
        "forgetful",
        "without the last",
        "without an annotation",
        "with a wrong annotation",
    ];
    const OF_ETCD: [&'static str; 9] = [
        "away",
        "without its leader",
        "with a member that is silent",
        "forgetful",
        "made anew",
        "without leases",
        "with a lease that has ended",
        "with a lease that is wrong",
        "with a lease of a stranger",
    ];

    /// The names of the tunnels.
    fn tunnels(&self) -> [&'static str; 2] {
        if matches!(self, Source::Etcd(..)) { FLANNELS_TUNNELS } else { TUNNELS }
    }

    /// How many of ten acts are on the source.
    fn share(&self) -> usize {
        if matches!(self, Source::Etcd(..)) { 3 } else { 1 }
    }

    /// Starts the service on a node.
    fn start_on(&self, fabric: &mut Fabric, node: usize) {
        match self {
            Source::Etcd(..) => etcd::replace(fabric, node),
            _ => fabric.start_on(node),
        }
    }

    /// Ends the service, and removes everything that it made.
    fn uninstall(&self, fabric: &mut Fabric, node: usize) {
        match self {
            Source::Etcd(..) => drop(etcd::uninstall(fabric, node, &["--uninstall"])),
            _ => drop(fabric.uninstall(node)),
        }
    }

    /// The objects of a node.
    fn objects(&self, node: &Node) -> Vec<String> {
        unnumbered(damage::objects_with(node, self.tunnels()))
    }

    /// Does a random act to the source, and returns its description.
    fn suffer(&mut self, fabric: &Fabric, chance: &mut Chance) -> String {
        match self {
            Source::Etcd(members, _) => {
                let what = *chance.of(&Source::OF_ETCD);
                let (member, number) = (chance.below(3), 1 + chance.below(3));
                etcd::suffer(members, what, member, number);
                format!("etcd is {what}")
            }
            Source::File(list) => {
                let what = *chance.of(&Source::OF_A_FILE);
                let last = list.rfind("[[node]]").unwrap();
                match what {
                    "gone" => fs::remove_file(fabric.list()).unwrap_or_default(),
                    "empty" => fabric.write_list(""),
                    "torn" => fabric.write_list(&list[..last + 12]),
                    _ => fabric.write_list(&list[..last]),
                }
                format!("the list is {what}")
            }
            Source::Cluster(api) => {
                let what = *chance.of(&Source::OF_A_CLUSTER);
                let annotate = |text: Value| {
                    if api.object("nodes", "", "a").is_some() {
                        let annotations =
                            json!({"metadata": {"annotations": {cluster::KEY: text}}});
                        api.change("nodes", "", "a", &annotations);
                    }
                };
                match what {
                    "away" => api.refuse(),
                    "silent" => api.hang(),
                    "failing" => api.fail(503),
                    "cut off" => api.cut(),
                    "forgetful" => {
                        api.compact();
                        api.cut();
                    }
                    "without the last" => {
                        let last = fabric.nodes.last().unwrap().name();
                        if api.object("nodes", "", &last).is_some() {
                            api.remove("nodes", "", &last);
                        }
                    }
                    "without an annotation" => annotate(Value::Null),
                    _ => annotate(json!("{\"version\": 1}")),
                }
                format!("the API server is {what}")
            }
        }
    }

    /// Repairs the source.
    fn recover(&mut self, fabric: &Fabric) {
        match self {
            Source::Etcd(members, _) => etcd::recover(members),
            Source::File(list) => fabric.write_list(list),
            Source::Cluster(api) => {
                api.restore();
                for number in 0..fabric.nodes.len() {
                    if api.object("nodes", "", &fabric.nodes[number].name()).is_none() {
                        api.create(&cluster::node(fabric, number));
                    }
                }
            }
        }
    }

    /// Whether the source has what the others need to know of each node.
    fn is_whole(&self, fabric: &Fabric) -> bool {
        match self {
            Source::File(_) => true,
            Source::Etcd(members, leases) => etcd::values(members) == *leases,
            Source::Cluster(api) => fabric
                .nodes
                .iter()
                .all(|node| cluster::annotation(api, &node.name())["underlay"].is_array()),
        }
    }

    /// Details for the message if the source does not become right.
    fn said(&self) -> String {
        match self {
            Source::Etcd(members, leases) => {
                format!("{:#?}, not {leases:#?}\n{}", etcd::values(members), members.log())
            }
            Source::File(_) | Source::Cluster(_) => String::new(),
        }
    }
}

/// What happens to the link by which a node reaches the others.
const TO_THE_UPLINK: [&str; 3] = ["goes down and up", "has another address", "has a smaller MTU"];

/// What happens to the service.
const TO_THE_SERVICE: [&str; 3] = ["killed", "ended", "stopped"];

fn act(fabric: &mut Fabric, chance: &mut Chance, source: &mut Source<'_>) -> String {
    let number = chance.below(fabric.nodes.len());
    let name = fabric.nodes[number].name();
    let share = source.share();
    match chance.below(10) {
        die if die < share => source.suffer(fabric, chance),
        die if die == share => {
            let what = *chance.of(&TO_THE_SERVICE);
            match what {
                "killed" => fabric.nodes[number].service.take().unwrap().kill(),
                "ended" => {
                    assert_eq!(fabric.nodes[number].service.take().unwrap().stop(), Some(0));
                }
                _ => {
                    let pid = fabric.nodes[number].service.as_ref().unwrap().pid();
                    fabric.lab.sh(&format!("kill -STOP {pid}; sleep 0.05; kill -CONT {pid}"));
                }
            }
            if fabric.nodes[number].service.is_none() {
                source.start_on(fabric, number);
            }
            format!("{name}: the service is {what}")
        }
        die if die == share + 1 => {
            let node = &fabric.nodes[number];
            let what = *chance.of(&TO_THE_UPLINK);
            match what {
                "goes down and up" => drop(node.host.sh(&uplink_flaps(node))),
                // The link may have another address already.
                "has another address" => drop(node.host.try_sh(&uplink_renumbered(node))),
                _ => drop(node.host.sh("ip link set eth0 mtu 1400")),
            }
            format!("{name}: eth0 {what}")
        }
        _ => {
            let what = *chance.of(&TO_THE_KERNEL);
            let others = fabric.nodes.iter().filter(|other| other.name() != name);
            let peers: Vec<String> = others
                .flat_map(|of| {
                    [format!("10.244.{}.0/24", of.number), format!("fd00:244:{}::/64", of.number)]
                })
                .collect();
            // An object that an earlier act removed cannot be removed again.
            let what = with_tunnels(what, source.tunnels());
            let script = format!("peers='{}'; {what}", peers.join(" "));
            let _ = fabric.nodes[number].host.try_sh(&script);
            format!("{name}: {what}")
        }
    }
}

/// The link goes down and comes back with its addresses and routes, as a network manager restores
/// it.
fn uplink_flaps(node: &Node) -> String {
    let ((v4, v6), number, segment) = (node.underlay(), node.number, node.segment);
    format!(
        "ip link set eth0 down; ip link set eth0 up; ip addr replace fe80::{number}/64 dev eth0 nodad; \
         ip addr replace {v4}/26 dev eth0; ip addr replace {v6}/64 dev eth0 nodad; \
         ip route replace default via 192.0.2.{}; ip route replace default via 2001:db8:{segment}::1",
        segment * 64 + 1
    )
}

/// The link gets another address of its segment, and again the default route, which vanished with
/// the first address.
pub(super) fn uplink_renumbered(node: &Node) -> String {
    let (from, to) = (node.underlay().0, other_address(node));
    let gateway = node.segment * 64 + 1;
    format!(
        "ip addr del {from}/26 dev eth0; ip addr add {to}/26 dev eth0; \
         ip route replace default via 192.0.2.{gateway}"
    )
}

/// The link gets its own address and MTU again, whatever has happened to them.
pub(super) fn uplink_is_whole(node: &Node) -> String {
    let (to, from) = (node.underlay().0, other_address(node));
    let gateway = node.segment * 64 + 1;
    format!(
        "ip link set eth0 mtu 1500; ip addr del {from}/26 dev eth0 2>/dev/null; \
         ip addr replace {to}/26 dev eth0; ip route replace default via 192.0.2.{gateway}"
    )
}

/// An address that no other node has.
fn other_address(node: &Node) -> String {
    format!("192.0.2.{}", node.segment * 64 + 50 + node.number)
}

/// How often a node's service has looked at everything that the kernel has.
fn looks(node: &Node) -> u64 {
    let mut stream = UnixStream::connect(node.dir.join("run/agent/routing.sock")).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    let mut lines = said.lines();
    let count = lines.find_map(|line| line.strip_prefix("netwright_routing_looks_total "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or_else(|| panic!("{said}"))
}

/// Whatever other programs do, and however fast, all is as before when they have finished, and the
/// service touches nothing of theirs. In the end nothing is left. There are 250 acts with
/// `--full`, and 20 otherwise.
#[test]
fn vm_random_acts_on_three_nodes_are_put_right() {
    testkit::require!("root", "vxlan", "vm-full", "program:bridge", "program:nft");
    let is_slow = std::env::var_os(feature::VM_VARIABLE).is_some();
    let acts = match feature::available("full") && !is_slow {
        true => share::count(ALL_ACTS, ACTS_OF_A_SHARE),
        false => ACTS,
    };
    let fabric = Fabric::new("routing-torture", &[2, 1]);
    let list = fs::read_to_string(fabric.list()).unwrap();
    torture(fabric, Source::File(list), acts);
}

/// The same with an API server that must answer, and that suffers acts too.
#[test]
fn random_acts_on_three_nodes_of_a_cluster_are_put_right() {
    testkit::require!("root", "full", "program:bridge", "program:nft");
    let mut fabric = Fabric::new("routing-torture-cluster", &[2, 1]);
    let api = cluster::cluster(&mut fabric);
    torture(fabric, Source::Cluster(api), share::count(ALL_ACTS, ACTS_ON_A_CLUSTER));
}

/// The same with leases in etcd as the list; every node holds one. etcd's members are killed,
/// stopped and made anew, and leases end, are deleted or get another content. In the end each lease
/// has its first content.
#[test]
fn random_acts_on_three_nodes_with_leases_are_put_right() {
    testkit::require!(
        "root",
        "full",
        "program:bridge",
        "program:nft",
        "program:etcd",
        "program:curl"
    );
    let mut fabric = Fabric::new("routing-torture-etcd", &[2, 1]);
    let lab = Rc::clone(&fabric.lab);
    let members = etcd::start(&mut fabric, &lab, &Backend::Vxlan.config());
    (0..3).for_each(|node| etcd::had_prefixes(&fabric, node));
    let acts = share::count(ALL_ACTS, ACTS_WITH_LEASES);
    torture(fabric, Source::Etcd(members, BTreeMap::new()), acts);
}

fn torture(mut fabric: Fabric, mut source: Source<'_>, acts: usize) {
    let is_file = matches!(source, Source::File(_));
    let round = if is_file { 0 } else { share::round() };
    let mut chance = Chance::new(20_261_126 + u64::try_from(round).unwrap());
    // Other programs have objects of every kind.
    for node in &fabric.nodes {
        node.host.sh(
            "ip link add other type vxlan id 7 dstport 7777 dev eth0; ip link set other addrgenmode none up; \
             ip route add 10.200.99.0/24 dev lo; ip route add unreachable 10.200.98.0/24; \
             ip neigh add 10.200.97.1 lladdr 02:00:00:00:00:08 dev other nud permanent",
        );
    }
    let before: Vec<Snapshot> = fabric.nodes.iter().map(|node| Snapshot::of(&node.host)).collect();
    (0..fabric.nodes.len()).for_each(|node| source.start_on(&mut fabric, node));
    fabric.assert_all_reach_all();
    if let Source::Etcd(members, leases) = &mut source {
        *leases = etcd::values(members);
        assert_eq!(leases.len(), 3, "{leases:?}");
    }
    let whole: Vec<Vec<String>> = fabric.nodes.iter().map(|node| source.objects(node)).collect();
    let open: Vec<Vec<String>> = fabric.nodes.iter().map(damage::descriptors).collect();
    let pings: Vec<RunningProgram> = (0..3)
        .map(|from| {
            let to = &fabric.nodes[(from + 1) % 3].pod_addresses()[from % 2];
            fabric.nodes[from].pod.start("ping", &["-n", "-q", "-i", "0.05", to])
        })
        .collect();
    let in_time = IN_TIME[usize::from(!is_file)];
    let mut left = acts;
    let mut times: Vec<Duration> = Vec::new();
    let mut most_looks = 0;
    while 0 < left {
        let burst = (1 + chance.below(BURST)).min(left);
        left -= burst;
        let mut acts: Vec<String> =
            (0..burst).map(|_| act(&mut fabric, &mut chance, &mut source)).collect();
        let looked: Vec<u64> = fabric.nodes.iter().map(looks).collect();
        if acts.iter().any(|act| act.contains(": eth0 has ")) {
            fabric.nodes.iter().for_each(|node| drop(node.host.sh(&uplink_is_whole(node))));
            acts.push("each eth0 is whole".to_owned());
        }
        source.recover(&fabric);
        acts.push("the source is whole".to_owned());
        let begin = Instant::now();
        let mut now: Vec<Vec<String>> = Vec::new();
        // Each check of a node starts a dozen programs, so the check ends at the first node that is
        // not right.
        let mut is_whole = || {
            now.clear();
            fabric.nodes.iter().zip(&whole).all(|(node, was)| {
                now.push(source.objects(node));
                now.last() == Some(was)
            })
        };
        wait_until("everything to be as before", || {
            is_whole() && source.is_whole(&fabric) || super::SOON < begin.elapsed()
        });
        times.push(begin.elapsed());
        if in_time < begin.elapsed() {
            eprintln!("right again after {:?}: {acts:?}", begin.elapsed());
        }
        for (node, (was, is)) in fabric.nodes.iter().zip(whole.iter().zip(&now)) {
            let log = || node.service.as_ref().unwrap().log();
            let (name, different) = (node.name(), differences(was, is));
            assert!(was == is, "{acts:#?}\n{name}: {different}\n{}", log());
        }
        for (node, looked) in fabric.nodes.iter().zip(looked) {
            let looks = looks(node) - looked;
            most_looks = most_looks.max(looks);
            if is_file {
                let log = || node.service.as_ref().unwrap().log();
                let name = node.name();
                assert!(looks <= LOOKS, "{acts:#?}\n{name}: {looks} looks\n{}", log());
            }
        }
        assert!(source.is_whole(&fabric), "{acts:#?}\n{}", source.said());
    }
    drop(pings);
    fabric.assert_all_reach_all();
    times.sort();
    let late = times.iter().filter(|time| in_time < **time).count();
    eprintln!(
        "MEASURED right again after {:?} (median), {:?} (longest) of {} bursts, {late} of them \
         later than {in_time:?}, and at most {most_looks} looks",
        times[times.len() / 2],
        times.last().unwrap(),
        times.len()
    );
    // Connections to servers come and go, and so do the sockets of probes. A leak would grow with
    // every act.
    if is_file {
        for (node, open) in fabric.nodes.iter().zip(&open) {
            let has_not_more = || damage::descriptors(node).len() <= open.len() + 2;
            wait_until("the service to have no more open than before", has_not_more);
        }
    }
    for (number, before) in before.iter().enumerate() {
        source.uninstall(&mut fabric, number);
        before.assert_same(&Snapshot::of(&fabric.nodes[number].host));
    }
}
