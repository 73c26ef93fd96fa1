//! Continuous traffic between containers, and how long it was interrupted.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use testkit::{Container, Place as _, RunningProgram};

/// The time between two requests, and how long each waits for its answer.
const BEAT: Duration = Duration::from_millis(20);

/// How long connecting may take, and how often a server checks whether it must end.
const TURN: Duration = Duration::from_millis(200);

/// The times of the answers.
type Answers = Arc<Mutex<Vec<Instant>>>;

/// Requests and answers, until it is dropped.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) name: &'static str,
    answers: Answers,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    ping: Option<RunningProgram>,
}

impl Flow {
    /// `ping`, twenty times a second.
    pub(super) fn icmp(from: &Container, to: &str) -> Self {
        let mut flow = Flow::new("ICMP");
        let mut command = from.command("ping");
        command.args(["-n", "-i", "0.05", to]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let answers = Arc::clone(&flow.answers);
        flow.threads.push(thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if line.contains("bytes from") {
                    answers.lock().unwrap().push(Instant::now());
                }
            }
        }));
        flow.ping = Some(child.into());
        flow
    }

    /// Datagrams to a server that sends them back.
    pub(super) fn udp(from: &Container, to: &Container, address: &str) -> Self {
        let mut flow = Flow::new("UDP");
        let server = to.enter(|| UdpSocket::bind((address, 7001))).unwrap();
        let client = from.enter(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
        let target: SocketAddr = server.local_addr().unwrap();
        server.set_read_timeout(Some(TURN)).unwrap();
        client.set_read_timeout(Some(BEAT)).unwrap();
        flow.spawn(move |_| {
            let mut buffer = [0; 64];
            if let Ok((count, from)) = server.recv_from(&mut buffer) {
                let _ = server.send_to(&buffer[..count], from);
            }
        });
        let mut number = 0_u64;
        flow.spawn(move |answers| {
            number += 1;
            let _ = client.send_to(&number.to_be_bytes(), target);
            // A late answer belongs to an earlier request.
            let mut buffer = [0; 8];
            while client.recv_from(&mut buffer).is_ok() {
                if buffer == number.to_be_bytes() {
                    answers.lock().unwrap().push(Instant::now());
                    thread::sleep(BEAT);
                    break;
                }
            }
        });
        flow
    }

    /// One connection that stays in use; it is never opened again.
    pub(super) fn tcp(from: &Container, to: &Container, address: &str) -> Self {
        let mut flow = Flow::new("TCP");
        let listener = to.enter(|| TcpListener::bind((address, 7002))).unwrap();
        let target = listener.local_addr().unwrap();
        let mut client = from.enter(|| TcpStream::connect(target)).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        server.set_read_timeout(Some(TURN)).unwrap();
        client.set_read_timeout(Some(TURN)).unwrap();
        flow.spawn(move |_| {
            let mut byte = [0; 1];
            if server.read_exact(&mut byte).is_ok() {
                let _ = server.write_all(&byte);
            }
        });
        let mut asked = false;
        flow.spawn(move |answers| {
            if !asked {
                asked = client.write_all(b"?").is_ok();
            }
            if client.read_exact(&mut [0; 1]).is_ok() {
                asked = false;
                answers.lock().unwrap().push(Instant::now());
                thread::sleep(BEAT);
            }
        });
        flow
    }

    fn new(name: &'static str) -> Self {
        let (answers, stop) = (Answers::default(), Arc::default());
        Flow { name, answers, stop, threads: Vec::new(), ping: None }
    }

    fn spawn(&mut self, mut turn: impl FnMut(&Answers) + Send + 'static) {
        let (answers, stop) = (Arc::clone(&self.answers), Arc::clone(&self.stop));
        self.threads.push(thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                turn(&answers);
            }
        }));
    }

    /// Waits for an answer after `since`, and returns how long after that it came.
    pub(super) fn answered_after(&self, since: Instant, timeout: Duration) -> Option<Duration> {
        let end = Instant::now() + timeout;
        loop {
            let first = self.answers.lock().unwrap().iter().find(|at| since < **at).copied();
            match first {
                Some(at) => return Some(at - since),
                None if end < Instant::now() => return None,
                None => thread::sleep(BEAT),
            }
        }
    }

    /// How many answers came, and the longest time between two of them.
    pub(super) fn account(&self) -> (usize, Duration) {
        let answers = self.answers.lock().unwrap();
        let longest = answers.windows(2).map(|pair| pair[1] - pair[0]).max();
        (answers.len(), longest.unwrap_or_default())
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.ping = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
