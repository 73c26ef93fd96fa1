//! Many pods start, and the first thing that each does is to send what policies forbid, while the
//! service is killed again and again and the API server is slow.
//!
//! The test prints how long they wait, beside pods without policy that start in turn with them, and
//! asserts no time. `NETWRIGHTD_MEASURED` and `NETWRIGHT_MEASURED` name the executables of service
//! and plugins that are measured: the tests' own are not optimised. `NETWRIGHT_AT_ONCE` says how
//! many pods start at the same time: where they are more than the processors, they wait for those.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use testkit::{Chance, Place as _, feature, share, wait_until};

use super::{Cluster, OTHERS, Pod};

/// How many pods start in every run, and with `--full`.
const FEW: usize = 25;
const MANY: usize = 250;
const ALL: usize = 1000;

/// The ports to which pods send forbidden and allowed packets.
const FORBIDDEN: u16 = 5000;
const ALLOWED: u16 = 5001;

/// How many pods start at the same time, unless `NETWRIGHT_AT_ONCE` says so.
const AT_ONCE: usize = 8;

/// After so many pods one without policy starts; with `--full` after each.
const BESIDE: usize = 5;

/// A server of UDP that notes who has sent it something.
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

/// How long a pod waits.
#[derive(Clone, Copy, Default)]
struct Wait {
    /// For its namespace and the plugins before `policy`.
    connected: Duration,
    /// For `policy`.
    admitted: Duration,
    /// For an answer to what is allowed, after that.
    answered: Duration,
}

impl Wait {
    fn whole(&self) -> Duration {
        self.connected + self.admitted + self.answered
    }
}

/// The median, that of 99 in 100, and the most.
struct Figures([Duration; 3]);

impl Figures {
    fn of(waits: &[Wait], part: impl Fn(&Wait) -> Duration) -> Self {
        let mut times: Vec<Duration> = waits.iter().map(part).collect();
        times.sort_unstable();
        Figures([50, 99, 100].map(|hundredth| times[(times.len() - 1) * hundredth / 100]))
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, most_of_all, most] = self.0.map(|time| time.as_secs_f64() * 1e3);
        write!(f, "{median:.1} ms ({most_of_all:.1} of 99 in 100, {most:.1} at most)")
    }
}

/// Waits of pods, and of those without policy that started in turn with them.
#[derive(Default)]
struct Waits {
    pods: Vec<Wait>,
    beside: Vec<Wait>,
}

/// Attaches a pod to the pods' network.
fn connect(cluster: &Cluster, name: &str) -> (Pod, Duration) {
    let begin = Instant::now();
    let pod = cluster.connect("shop", name);
    (pod, begin.elapsed())
}

/// Starts a pod, which sends what is forbidden, then waits for an answer to what is allowed, and
/// ends.
fn start_pod(cluster: &Cluster, number: usize) -> Wait {
    let name = format!("p{number}");
    cluster.create(&name);
    let (pod, connected) = connect(cluster, &name);
    let begin = Instant::now();
    cluster.admit(&pod);
    let admitted = begin.elapsed();
    send_forbidden(&pod);
    let answered = wait_for_answer(&pod, ALLOWED);
    send_forbidden(&pod);
    cluster.detach(&pod);
    cluster.api.remove("pods", "shop", &name);
    Wait { connected, admitted, answered }
}

/// Starts a pod of which neither the plugin `policy` nor the API server hears: it is not judged.
fn start_beside(cluster: &Cluster, number: usize) -> Wait {
    let (pod, connected) = connect(cluster, &format!("q{number}"));
    let answered = wait_for_answer(&pod, ALLOWED);
    cluster.disconnect(&pod);
    Wait { connected, answered, ..Wait::default() }
}

/// Starts so many pods, some at a time.
fn start_pods(cluster: &Cluster, count: usize) -> Waits {
    let beside = if feature::available("full") { 1 } else { BESIDE };
    let (next, waits) = (Mutex::new(0..count), Mutex::new(Waits::default()));
    let at_once = std::env::var("NETWRIGHT_AT_ONCE");
    let at_once = at_once.map_or(AT_ONCE, |count| count.parse().unwrap());
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let Some(number) = next.lock().unwrap().next() else { return };
                    let wait = start_pod(cluster, number);
                    waits.lock().unwrap().pods.push(wait);
                    if number % beside == 0 {
                        let wait = start_beside(cluster, number);
                        waits.lock().unwrap().beside.push(wait);
                    }
                }
            });
        }
    });
    waits.into_inner().unwrap()
}

fn print(what: &str, Waits { pods, beside }: &Waits) {
    let (whole, without) = (Figures::of(pods, Wait::whole), Figures::of(beside, Wait::whole));
    let longer =
        |place: usize| (whole.0[place].as_secs_f64() - without.0[place].as_secs_f64()) * 1e3;
    eprintln!(
        "MEASURED policy, {what}: {} pods waited {whole} until an answer: for the plugins before \
         policy {}, for policy {}, and after that {}; {} without policy in turn with them waited \
         {without}: for the plugins {}, and after that {}; so the median is {:.1} ms longer, that \
         of 99 in 100 {:.1} ms, and the most {:.1} ms",
        pods.len(),
        Figures::of(pods, |wait| wait.connected),
        Figures::of(pods, |wait| wait.admitted),
        Figures::of(pods, |wait| wait.answered),
        beside.len(),
        Figures::of(beside, |wait| wait.connected),
        Figures::of(beside, |wait| wait.answered),
        longer(0),
        longer(1),
        longer(2),
    );
}

#[test]
fn no_first_packet_arrives_that_is_forbidden() {
    testkit::require!("root");
    let count = if feature::available("full") { share::count(ALL, MANY) } else { FEW };
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
    assert_eq!(waits.pods.len(), count);
    let arrived = forbidden.heard.into_inner().unwrap();
    assert_eq!(arrived, BTreeSet::new(), "packets arrived that are forbidden");
    assert!(!allowed.heard.into_inner().unwrap().is_empty());
    wait_until("the pods to be gone", || cluster.api.objects("pods").is_empty());
}
