//! Real packets between places.

use std::io::{self, PipeWriter, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::place::Place;

/// How long an answer may take before it counts as missing.
pub const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

/// How long we wait for an answer that must not come.
pub const SILENCE: Duration = Duration::from_millis(400);

/// The pause before another try.
const POLL: Duration = Duration::from_millis(20);

/// How long the answer to one ping may take.
const LONGEST_PING: Duration = Duration::from_secs(3);

/// The longest question and answer.
const MESSAGE: usize = 256;

/// Whether an address answers a ping within the deadline.
#[must_use]
pub fn pings_within(from: &impl Place, to: &str, deadline: Duration) -> bool {
    let end = Instant::now() + deadline;
    let mut wait = Duration::from_millis(300);
    loop {
        let seconds = wait.as_secs_f32();
        if from.try_sh(&format!("exec ping -n -q -c 1 -W {seconds} {to}")).status.success() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        // The first one may be lost, and on a busy machine each answer may be late.
        wait = (wait * 2).min(LONGEST_PING);
        thread::sleep(POLL); // it fails at once while there is no route or the source address is tentative
    }
}

/// Asserts that an address answers.
#[track_caller]
pub fn assert_pings(from: &impl Place, to: &str) {
    let answered = pings_within(from, to, ANSWER_DEADLINE);
    assert!(answered, "{to} does not answer pings from {}:\n{}", from.place_name(), state(from));
}

/// Asserts that an address does not answer.
#[track_caller]
pub fn assert_no_ping(from: &impl Place, to: &str) {
    assert!(!pings_within(from, to, SILENCE), "{to} answers pings from {}", from.place_name());
}

fn state(of: &impl Place) -> String {
    let script = "ip addr; ip route; ip -6 route; ip neigh";
    String::from_utf8_lossy(&of.try_sh(script).stdout).into_owned()
}

/// A server that answers every TCP connection or UDP datagram with its name and the peer it sees.
///
/// Stops when dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    /// The server stops when this is written to. Closing it is not enough: a program that another
    /// thread starts at this moment holds it open too.
    stop: PipeWriter,
    thread: Option<JoinHandle<()>>,
}

/// A [`Server`]'s answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The name of the server that answered.
    pub server: String,
    /// The client's address as the server saw it. After source address translation it is the
    /// translator's address.
    pub seen: SocketAddr,
}

impl Server {
    /// Listens for TCP on an address of the place, for example `0.0.0.0:80` or `[::]:80`.
    #[must_use]
    pub fn tcp(place: &impl Place, address: &str, name: &str) -> Self {
        let listener = place.enter(|| TcpListener::bind(address));
        let listener = listener.unwrap_or_else(|error| {
            panic!("listen on {address} in {}: {error}", place.place_name())
        });
        let at = listener.local_addr().and_then(|at| listener.set_nonblocking(true).map(|()| at));
        let at = at.unwrap_or_else(|error| panic!("socket on {address}: {error}"));
        Self::serve(at, name, listener, |listener, name| match listener.accept() {
            Ok((mut stream, peer)) => {
                // The peer may be gone already; the next one counts.
                let _ = stream.write_all(answer(name, peer).as_bytes());
                true
            }
            Err(_) => false,
        })
    }

    /// Answers UDP datagrams on an address of the place.
    #[must_use]
    pub fn udp(place: &impl Place, address: &str, name: &str) -> Self {
        let socket = place.enter(|| UdpSocket::bind(address));
        let socket = socket
            .unwrap_or_else(|error| panic!("bind {address} in {}: {error}", place.place_name()));
        let at = socket.local_addr().and_then(|at| socket.set_nonblocking(true).map(|()| at));
        let at = at.unwrap_or_else(|error| panic!("socket on {address}: {error}"));
        Self::serve(at, name, socket, |socket, name| match socket.recv_from(&mut [0; MESSAGE]) {
            Ok((_, peer)) => {
                let _ = socket.send_to(answer(name, peer).as_bytes(), peer);
                true
            }
            Err(_) => false,
        })
    }

    /// Answers whenever the socket has something; `step` says whether it could.
    fn serve<S: AsFd + Send + 'static>(
        address: SocketAddr,
        name: &str,
        socket: S,
        step: impl Fn(&S, &str) -> bool + Send + 'static,
    ) -> Self {
        let (stopping, stop) = io::pipe().unwrap_or_else(|error| panic!("make a pipe: {error}"));
        let name = name.to_owned();
        let thread = thread::spawn(move || {
            loop {
                let mut ready =
                    [PollFd::new(&socket, PollFlags::IN), PollFd::new(&stopping, PollFlags::IN)];
                // If a signal interrupts it, nothing is ready.
                let _ = poll(&mut ready, None);
                let [asked, stopped] = ready.map(|one| !one.revents().is_empty());
                if stopped {
                    return;
                }
                if asked && !step(&socket, &name) {
                    thread::sleep(POLL / 10);
                }
            }
        });
        Self { address, stop, thread: Some(thread) }
    }

    /// Returns where it listens, with the port that the kernel chose if port 0 was requested.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.write_all(b"!");
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(name: &str, peer: SocketAddr) -> String {
    let canonical = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    format!("{name} {canonical}\n")
}

fn parse_answer(text: &str) -> io::Result<Answer> {
    let parsed = text.trim_end().rsplit_once(' ').and_then(|(server, seen)| {
        Some(Answer { server: server.to_owned(), seen: seen.parse().ok()? })
    });
    parsed.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("answer {text:?}")))
}

/// Connects from a place to a [`Server`] and returns its answer.
///
/// # Errors
/// The error of the connection; a timeout after `deadline`.
pub fn try_tcp(from: &impl Place, to: SocketAddr, deadline: Duration) -> io::Result<Answer> {
    let mut stream = from.enter(|| TcpStream::connect_timeout(&to, deadline))?;
    stream.set_read_timeout(Some(deadline))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    parse_answer(&text)
}

/// Asks a [`Server`] by UDP and returns its answer. Asks again until the deadline.
///
/// # Errors
/// The error of the last try.
pub fn try_udp(from: &impl Place, to: SocketAddr, deadline: Duration) -> io::Result<Answer> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let socket = from.enter(|| {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(to).map(|()| socket)
    })?;
    socket.set_read_timeout(Some(deadline.min(SILENCE)))?;
    let end = Instant::now() + deadline;
    loop {
        let mut buffer = [0; MESSAGE];
        match socket.send(b"?").and_then(|_| socket.recv(&mut buffer)) {
            Ok(length) => return parse_answer(&String::from_utf8_lossy(&buffer[..length])),
            Err(error) if Instant::now() >= end => return Err(error),
            Err(_) => thread::sleep(POLL),
        }
    }
}

/// Asserts that a TCP server answers, trying again while the connection is refused, and returns its
/// answer.
#[track_caller]
pub fn assert_tcp(from: &impl Place, to: &str) -> Answer {
    asked(from, to, "TCP", |to| try_tcp(from, to, ANSWER_DEADLINE))
}

/// Asserts that a UDP server answers and returns its answer.
#[track_caller]
pub fn assert_udp(from: &impl Place, to: &str) -> Answer {
    asked(from, to, "UDP", |to| try_udp(from, to, ANSWER_DEADLINE))
}

/// Asserts that no TCP connection is established (refused or silence).
#[track_caller]
pub fn assert_no_tcp(from: &impl Place, to: &str) {
    let got = try_tcp(from, target(to), SILENCE);
    assert!(got.is_err(), "{to} answers {} by TCP: {got:?}", from.place_name());
}

/// Asserts that no UDP answer comes.
#[track_caller]
pub fn assert_no_udp(from: &impl Place, to: &str) {
    let got = try_udp(from, target(to), SILENCE);
    assert!(got.is_err(), "{to} answers {} by UDP: {got:?}", from.place_name());
}

#[track_caller]
fn target(to: &str) -> SocketAddr {
    to.parse().unwrap_or_else(|_| panic!("\"{to}\" is not ADDRESS:PORT"))
}

#[track_caller]
fn asked(
    from: &impl Place,
    to: &str,
    protocol: &str,
    ask: impl Fn(SocketAddr) -> io::Result<Answer>,
) -> Answer {
    let to = target(to);
    let end = Instant::now() + ANSWER_DEADLINE;
    loop {
        match ask(to) {
            Ok(answer) => return answer,
            Err(error) if Instant::now() >= end => {
                panic!("{protocol} {to} from {}: {error}\n{}", from.place_name(), state(from))
            }
            Err(_) => thread::sleep(POLL),
        }
    }
}
