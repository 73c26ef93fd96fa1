//! Many pods start while the service is killed repeatedly and the API server is slow. Each pod
//! first sends packets that policies forbid.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use testkit::{Chance, Place as _, feature, wait_until};

use super::{Cluster, OTHERS, Pod};

/// How many pods start in every run, and with `--full`.
const FEW: usize = 25;
const MANY: usize = 1000;

/// The ports to which pods send forbidden and allowed packets.
const FORBIDDEN: u16 = 5000;
const ALLOWED: u16 = 5001;

/// How many pods start at the same time.
const AT_ONCE: usize = 8;

/// A UDP server that records which addresses have sent it something.
struct Listener {
    socket: UdpSocket,
    heard: Mutex<BTreeSet<IpAddr>>,
}

impl Listener {
    fn new(cluster: &Cluster, port: u16) -> Self {
        let bound = cluster.others.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)));
        let socket = bound.unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        Listener { socket, heard: Mutex::default() }
    }

    /// Receives and answers until it is told to end.
    fn run(&self, end: &AtomicBool) {
        let mut buffer = [0; 64];
        // Packets that are still queued count too.
        loop {
            match self.socket.recv_from(&mut buffer) {
                Ok((_, from)) => {
                    self.heard.lock().unwrap().insert(from.ip());
                    let _ = self.socket.send_to(b"!", from);
                }
                Err(_) if end.load(Ordering::Relaxed) => return,
                Err(_) => {}
            }
        }
    }
}

/// Sends from a pod until an answer comes; returns how long that took.
fn wait_for_answer(pod: &Pod, port: u16) -> Duration {
    let begin = Instant::now();
    let to = SocketAddr::new(OTHERS[0].parse().unwrap(), port);
    let socket = pod.container.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    loop {
        let _ = socket.send_to(b"?", to);
        if socket.recv_from(&mut [0; 8]).is_ok() {
            return begin.elapsed();
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "no answer from port {port}");
    }
}

/// Sends a burst of forbidden packets.
fn send_forbidden(pod: &Pod) {
    let to = SocketAddr::new(OTHERS[0].parse().unwrap(), FORBIDDEN);
    let socket = pod.container.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
    for _ in 0..20 {
        let _ = socket.send_to(b"?", to);
    }
}

/// Forbids pods to send to the port.
fn policies(cluster: &Cluster) {
    cluster.api.create(&json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "egress"},
        "spec": {
            "podSelector": {}, "policyTypes": ["Egress"],
            "egress": [{"ports": [{"protocol": "UDP", "port": ALLOWED}]}],
        },
    }));
}

/// How long pods waited for the plugin, and then for an answer to an allowed packet; sorted.
struct Waits {
    for_plugin: Vec<Duration>,
    for_answer: Vec<Duration>,
}

impl Waits {
    fn of(both: Vec<(Duration, Duration)>) -> Self {
        let (mut for_plugin, mut for_answer): (Vec<_>, Vec<_>) = both.into_iter().unzip();
        for_plugin.sort_unstable();
        for_answer.sort_unstable();
        Waits { for_plugin, for_answer }
    }
}

/// Starts `count` pods, some at a time. Each sends forbidden packets, and then waits for an answer
/// to an allowed one.
fn start_pods(cluster: &Cluster, count: usize) -> Waits {
    let (next, waits) = (Mutex::new(0..count), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(number) = next.lock().unwrap().next() else { return };
                    let name = format!("p{number}");
                    cluster.create(&name);
                    let pod = cluster.connect("shop", &name);
                    let begin = Instant::now();
                    cluster.admit(&pod);
                    let admitted = begin.elapsed();
                    send_forbidden(&pod);
                    let wait = wait_for_answer(&pod, ALLOWED);
                    send_forbidden(&pod);
                    waits.lock().unwrap().push((admitted, wait));
                    cluster.detach(&pod);
                    cluster.api.remove("pods", "shop", &name);
                }
            });
        }
    });
    Waits::of(waits.into_inner().unwrap())
}

fn print(what: &str, Waits { for_plugin, for_answer }: &Waits) {
    for (whom, waits) in [("the plugin", for_plugin), ("an answer after that", for_answer)] {
        let at = |part: usize| waits[(waits.len() - 1) * part / 100];
        eprintln!(
            "{what}: {} pods waited for {whom} {:?} (median), {:?} (of 99 in 100), {:?} at most",
            waits.len(),
            at(50),
            at(99),
            at(100)
        );
    }
}

#[test]
fn no_first_packet_arrives_that_is_forbidden() {
    testkit::require!("root");
    let count = if feature::available("full") { MANY } else { FEW };
    let mut cluster = Cluster::new("policy-load");
    policies(&cluster);
    let (forbidden, allowed) =
        (Listener::new(&cluster, FORBIDDEN), Listener::new(&cluster, ALLOWED));
    cluster.start();
    let (end, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let waits = std::thread::scope(|scope| {
        scope.spawn(|| forbidden.run(&end));
        scope.spawn(|| allowed.run(&end));
        let quiet = start_pods(&cluster, count);
        print("the service lives", &quiet);

        // From now on the service is killed at random moments, and the API server answers slowly.
        cluster.api.slow(Duration::from_millis(30));
        let log = cluster.log_path();
        let mut service = cluster.service.take();
        let (cluster, over) = (&cluster, &over);
        let killer = scope.spawn(move || {
            let mut chance = Chance::new(5);
            let mut kills = 0;
            while !over.load(Ordering::Relaxed) {
                std::thread::park_timeout(Duration::from_millis(
                    u64::try_from(50 + chance.below(400)).unwrap(),
                ));
                if let Some(service) = service.take() {
                    service.kill();
                }
                kills += 1;
                service = Some(testkit::Service::start(cluster.command(), &log));
            }
            (service, kills)
        });
        let troubled = start_pods(cluster, count);
        over.store(true, Ordering::Relaxed);
        killer.thread().unpark();
        let (service, kills) = killer.join().unwrap();
        eprintln!("it was killed {kills} times");
        print("the service is killed", &troubled);
        assert!(0 < kills);
        drop(service);
        end.store(true, Ordering::Relaxed);
        troubled
    });
    assert_eq!(waits.for_answer.len(), count);
    let arrived = forbidden.heard.into_inner().unwrap();
    assert_eq!(arrived, BTreeSet::new(), "packets arrived that are forbidden");
    assert!(!allowed.heard.into_inner().unwrap().is_empty());
    wait_until("the pods to be gone", || cluster.api.objects("pods").is_empty());
}
