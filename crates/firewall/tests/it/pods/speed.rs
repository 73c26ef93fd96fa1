//! What policies cost packets. The test measures the kinds of nodes in turn and prints the figures,
//! but does not judge them.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use policy::program::{LineAction, Match, Set};
use policy::{Change, Compiler, Direction, IpFamily, Name, Program, World};
use serde_json::json;
use testkit::Place;
use testkit::probe::Ends;

use super::clusters::support::{namespace, network, node, pod};
use super::clusters::{NODE, of_pod};
use super::cost::{addresses, many};
use super::lab::{OWN, PodLab, Site};

const TURNS: usize = 9;
/// How many slices a turn has.
const SLICES: usize = 10;
/// The kind with which the others are compared.
const BASE: usize = 1;
/// The node's other pods, and the policies for each: a thousand policies, with those of the two
/// pods.
const OTHERS: usize = 198;
const EACH: usize = 5;
const PORT: u16 = 5432;

/// A node on which a thousand policies select pods. Five of them select pod 2, and with `both`
/// another five select pod 1, each with a selector of its own. Only the last one lets the packet
/// pass.
fn program(both: bool) -> Program {
    let mut objects: Vec<Change> =
        vec![node(NODE, json!({}), &OWN).into(), namespace("shop", json!({})).into()];
    let mut select = |name: &str, addresses: [String; 2]| {
        let labels = json!({"app": name});
        let [v4, v6] = &addresses;
        objects.push(pod(&format!("shop/{name}"), NODE, labels, &[v4, v6]).into());
        for number in 0..EACH {
            let is_last = number + 1 == EACH;
            let peer = |last: &str| {
                let app = if is_last { last.to_owned() } else { format!("{name}-{number}") };
                json!([{"podSelector": {"matchLabels": {"app": app}}}])
            };
            let mut spec = json!({"podSelector": {"matchLabels": {"app": name}}});
            if name != "pod-1" {
                spec["ingress"] = json!([{"from": peer("pod-1")}]);
            } else if both {
                spec["policyTypes"] = json!(["Egress"]);
                spec["egress"] = json!([{"to": peer("pod-2")}]);
            } else {
                continue;
            }
            objects.push(network(&format!("shop/{name}-{number}"), spec).into());
        }
    };
    for number in [1, 2] {
        let addresses = of_pod(number).map(|address| address.to_string());
        select(&format!("pod-{number}"), addresses);
    }
    for number in 0..OTHERS {
        let last = number + 10;
        let addresses = [format!("10.244.1.{last}"), format!("fd00:244:1::{last}")];
        select(&format!("other-{number}"), addresses);
    }
    Compiler::new(World::of(None, objects), NODE).program().clone()
}

/// The same with a hundred thousand more pods in each selector of pod 2's policies.
fn crowded(mut program: Program) -> Program {
    let class = &program.verdicts[&(Direction::Ingress, of_pod(2)[0])];
    let jumps = program.chains[class].iter().filter_map(|line| match &line.then {
        LineAction::Jump(chain) => Some(chain),
        _ => None,
    });
    let lines = jumps.flat_map(|chain| &program.chains[chain]);
    let matches = lines.flat_map(|line| &line.matches).filter_map(|wanted| match wanted {
        Match::Address { family: IpFamily::V4, set, .. } => Some(set.clone()),
        _ => None,
    });
    let sets: Vec<Name> = matches.collect();
    assert_eq!(sets.len(), EACH);
    let many = addresses(many());
    for name in sets {
        let Some(Set::Addresses(all)) = program.sets.get_mut(&name) else { panic!("{name}") };
        all.extend(&many);
    }
    program
}

struct Kind {
    name: &'static str,
    lab: PodLab,
    /// For each turn: the number per second, and its ratio to that without a table.
    rates: Vec<f64>,
    shares: Vec<f64>,
}

/// How long this thread has run, without the time of other threads: the kernel passes a packet on
/// in the thread that sends it (`man 5 proc` /proc/PID/schedstat).
fn on_processor() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Opens and closes connections one after the other.
fn connections(lab: &PodLab, count: u32) -> Duration {
    let at = SocketAddr::new(of_pod(2)[0], PORT);
    let listener = lab.pods[1].enter(|| TcpListener::bind(at).unwrap());
    lab.pods[0].enter(|| {
        let begin = on_processor();
        for _ in 0..count {
            let client = TcpStream::connect(at).unwrap();
            let (server, _) = listener.accept().unwrap();
            drop(server);
            drop(client);
        }
        on_processor() - begin
    })
}

/// Sends first packets of UDP flows, each from another port.
fn first_packets(lab: &mut PodLab, count: u32) -> Duration {
    let ends = Ends { source: of_pod(1)[0], destination: of_pod(2)[0] };
    let packets: Vec<_> =
        (0..count).map(|number| ends.udp(u16::try_from(1024 + number).unwrap(), PORT)).collect();
    let station = lab.station(Site::Pod(1));
    let begin = on_processor();
    packets.iter().for_each(|packet| station.send(packet));
    on_processor() - begin
}

/// Sends packets of one UDP flow that is answered.
fn standing(lab: &PodLab, count: u32) -> Duration {
    let [one, two]: [IpAddr; 2] = [of_pod(1)[0], of_pod(2)[0]];
    let client = lab.pods[0].enter(|| UdpSocket::bind((one, 0)).unwrap());
    let server = lab.pods[1].enter(|| UdpSocket::bind((two, PORT)).unwrap());
    let mut buffer = [0; 64];
    client.connect((two, PORT)).unwrap();
    client.send(&buffer).unwrap();
    let (_, from) = server.recv_from(&mut buffer).unwrap();
    server.connect(from).unwrap();
    server.send(&buffer).unwrap();
    client.recv(&mut buffer).unwrap();
    let begin = on_processor();
    for _ in 0..count {
        client.send(&buffer).unwrap();
        server.recv(&mut buffer).unwrap();
    }
    on_processor() - begin
}

/// Sends this many mebibytes through a connection.
fn mebibytes(lab: &PodLab, count: u32) -> Duration {
    let at = SocketAddr::new(of_pod(2)[0], PORT);
    let listener = lab.pods[1].enter(|| TcpListener::bind(at).unwrap());
    let mut client = lab.pods[0].enter(|| TcpStream::connect(at).unwrap());
    let (mut server, _) = listener.accept().unwrap();
    std::thread::scope(|scope| {
        let begin = Instant::now();
        scope.spawn(move || {
            let block = vec![0; 1 << 20];
            (0..count).for_each(|_| client.write_all(&block).unwrap());
        });
        let mut block = vec![0; 1 << 20];
        while 0 < server.read(&mut block).unwrap() {}
        begin.elapsed()
    })
}

fn quartiles(mut sorted: Vec<f64>) -> [f64; 3] {
    sorted.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| sorted[(sorted.len() - 1) * quarter / 4])
}

/// Prints how many connections, first packets, and packets and bytes of standing flows nodes with and
/// without policies pass on, in turn.
#[test]
fn what_policies_cost_packets() {
    testkit::require!("root", "round:2/3");
    let (turns, slices) = if super::has_time() { (TURNS, SLICES) } else { (1, 1) };
    let policies = program(false);
    let crowd = crowded(policies.clone());
    let begun = |name: &'static str, tracked: bool, program: Option<&Program>| {
        let mut lab = PodLab::new("podsspeed");
        if tracked {
            // Connection tracking is on, as on each node that translates addresses.
            lab.lab.sh("nft 'add table inet other; add chain inet other forward { type filter hook forward priority 0; }; add rule inet other forward ct state invalid counter'");
        }
        if let Some(program) = program {
            lab.table.put(program).unwrap();
        }
        for pod in &lab.pods[..2] {
            pod.sh("echo 0 > /proc/sys/net/ipv4/tcp_max_tw_buckets");
        }
        Kind { name, lab, rates: Vec::new(), shares: Vec::new() }
    };
    let mut kinds = [
        begun("no connection tracking", false, None),
        begun("no table", true, None),
        begun("no policies", true, Some(&Program::empty())),
        begun("1,000 policies, 5 on the pod", true, Some(&policies)),
        begun("and 100,000 pods in each selector", true, Some(&crowd)),
        begun("1,000 policies, 5 on each end", true, Some(&program(true))),
    ];
    type Measure = fn(&mut PodLab, u32) -> Duration;
    let measures: [(&str, u32, Measure); 4] = [
        ("connections in a second of a processor", 200, |lab, count| connections(lab, count)),
        ("first packets in a second of a processor", 1_000, first_packets),
        ("packets of a standing flow in a second of a processor", 1_000, |lab, count| {
            standing(lab, count)
        }),
        ("mebibytes of a standing connection in a second", 64, |lab, count| mebibytes(lab, count)),
    ];
    for (what, count, measure) in measures {
        for turn in 0..=turns {
            // The kinds are measured in small slices in turn, so that other work of the machine
            // affects all of them.
            let mut took = vec![Vec::new(); kinds.len()];
            for slice in 0..slices {
                let mut order: Vec<usize> = (0..kinds.len()).collect();
                order.rotate_left(slice % kinds.len());
                for number in order {
                    let lab = &mut kinds[number].lab;
                    took[number].push(measure(lab, count).as_secs_f64());
                    lab.forget_flows();
                }
            }
            // In the first turn all caches are cold.
            for (number, kind) in kinds.iter_mut().enumerate().filter(|_| turn > 0) {
                let shares = took[BASE].iter().zip(&took[number]).map(|(base, own)| base / own);
                kind.shares.push(quartiles(shares.collect())[1]);
                kind.rates.push(f64::from(count) / quartiles(took[number].clone())[1]);
            }
        }
        println!("{what}, and of those without a table: medians of {turns} turns (quartiles)");
        for Kind { name, rates, shares, .. } in &mut kinds {
            let [low, rate, high] = quartiles(std::mem::take(rates));
            let shares = quartiles(std::mem::take(shares)).map(|share| 100.0 * share);
            let [least, share, most] = shares;
            println!(
                "  {name}: {rate:.0} ({low:.0} to {high:.0}), {share:.1} % ({least:.1} to {most:.1})"
            );
        }
    }
    // Nothing was dropped.
    for kind in &mut kinds {
        assert_eq!(
            kind.lab.table.dropped().unwrap(),
            netwright_firewall::pods::DroppedPackets::default()
        );
    }
}
