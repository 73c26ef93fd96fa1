//! `[agent] listen`: `/livez`, `/readyz` and `/metrics` of all services, by TCP.
//!
//! Any client that reaches the port may ask, so nothing else is answered, no client keeps another
//! from its answer, and the services are asked once a second at most.
//!
//! The supervisor runs this for its services. Where something else starts them, `netwrightd agent
//! serve` is a process that runs only this, without capabilities; the generator starts its unit,
//! `netwrightd@agent.service`, only if `[agent] listen` is set. Both hold `agent.sock`, so only one
//! can run. By default no port is open, and a port without an address is one of the loopback
//! interface. A port for each service would be six to open, and none that answers for all.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use agent::config::Agent;
use agent::metrics;
use agent::report::Status;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use service_kit::bell::Bell;
use service_kit::exchange::Answer;
use service_kit::health::Health;
use service_kit::talks::Talks;

/// How long an answer of the services is repeated to further clients.
const FRESH: Duration = Duration::from_secs(1);

/// Looks at all services.
pub(crate) type Look = Arc<dyn Fn() -> Status + Send + Sync>;

/// Answers the questions about all services, at any of the sockets.
pub(crate) fn answer(target: &str, status: &Status) -> Answer {
    match target {
        "/readyz" => Answer::verdict(status.trouble()),
        "/livez" => Answer::verdict(status.hung()),
        "/metrics" => Answer::metrics(metrics::of_all(status)),
        _ => Answer::text(404, "there are /readyz, /livez and /metrics"),
    }
}

/// The port, if the configuration names one.
pub(crate) struct Probes {
    look: Look,
    health: Health,
    wanted: Option<SocketAddr>,
    port: Option<Port>,
}

impl Probes {
    pub(crate) fn new(look: Look, health: Health) -> Self {
        Probes { look, health, wanted: None, port: None }
    }

    /// Listens where this configuration says.
    pub(crate) fn follow(&mut self, config: &Agent) {
        let wanted = config.listen.map(|listen| listen.0);
        if self.wanted != wanted {
            (self.wanted, self.port) = (wanted, None);
        }
        self.look_again();
    }

    /// Tries again if it does not listen: its address may be there by now.
    pub(crate) fn look_again(&mut self) {
        let opened = match self.wanted {
            Some(address) if self.port.is_none() => Port::open(address, Arc::clone(&self.look))
                .map(Some)
                .map_err(|error| format!("listen at {address}: {error}")),
            _ => Ok(None),
        };
        match opened {
            Ok(Some(port)) => {
                tracing::info!(address = %port.address, "answers /livez, /readyz and /metrics");
                self.port = Some(port);
            }
            Ok(None) => {}
            Err(error) => return self.health.needs("port", Err(error)),
        }
        self.health.needs("port", Ok(()));
    }
}

/// A port and the thread that serves it, which ends when this is dropped.
struct Port {
    address: SocketAddr,
    end: Bell,
    thread: Option<JoinHandle<()>>,
}

impl Port {
    fn open(address: SocketAddr, look: Look) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let end = Bell::new()?;
        let ended = end.clone();
        let thread = std::thread::Builder::new().name("probes".to_owned());
        let thread = thread.spawn(move || serve(&listener, &ended, &look))?;
        Ok(Port { address, end, thread: Some(thread) })
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.end.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &TcpListener, ended: &Bell, look: &Look) {
    let mut talks: Talks<TcpStream> = Talks::default();
    let mut seen: Option<(Instant, Status)> = None;
    loop {
        let mut ready =
            vec![PollFd::new(ended, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        ready.extend(talks.waits());
        let left = talks.until().map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut ready, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                return tracing::error!(error = %errno, "no probe is answered from now on");
            }
        }
        let ready: Vec<bool> = ready.iter().map(|one| !one.revents().is_empty()).collect();
        if ready[0] {
            return;
        }
        talks.go_on(&ready[2..], &mut |target: &str| {
            let fresh = seen.take().filter(|(at, _)| at.elapsed() < FRESH);
            let (at, status) = fresh.unwrap_or_else(|| (Instant::now(), look()));
            let answer = answer(target, &status);
            seen = Some((at, status));
            answer
        });
        if ready[1] {
            talks.accept(|| {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(stream)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent::report::{Report, State};
    use service_kit::talks::MOST;
    use std::io::{Read as _, Write as _};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn ask(address: SocketAddr, target: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        said
    }

    #[test]
    fn probes_are_answered_whoever_else_is_silent() {
        let looks = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&looks);
        let look: Look = Arc::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let waits = Report { state: State::Waiting, enabled: true, ..Report::stopped("dhcp") };
            Status { agent: None, services: vec![waits] }
        });
        // The address is free, since the kernel chose it.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let taken = TcpListener::bind(address).unwrap();
        let health = Health::new("agent", service_kit::health::Manager::default(), FRESH * 60);
        health.serves(None);
        let mut probes = Probes::new(look, health.clone());
        let listen =
            |at| Agent { listen: Some(agent::setting::ListenAddress(at)), ..Agent::default() };
        probes.follow(&listen(address));
        let trouble = health.report().trouble().unwrap();
        assert!(trouble.starts_with(&format!("waiting: port: listen at {address}: ")), "{trouble}");
        drop(taken);
        probes.look_again();
        assert_eq!(health.report().trouble(), None);
        // More than are listened to; the oldest give way.
        let silent: Vec<TcpStream> =
            (0..MOST * 2).map(|_| TcpStream::connect(address).unwrap()).collect();
        let ready = ask(address, "/readyz?verbose");
        assert!(ready.starts_with("HTTP/1.1 503 ") && ready.ends_with("\r\n\r\ndhcp waiting\n"));
        let live = ask(address, "/livez");
        assert!(live.starts_with("HTTP/1.1 200 ") && live.ends_with("\r\n\r\nok\n"), "{live}");
        let metrics = ask(address, "/metrics");
        assert!(metrics.ends_with("_restarts_total{service=\"dhcp\"} 0\n"), "{metrics}");
        for other in ["/", "/status", "/explain", "/drops", "/metrics/x"] {
            let told = ask(address, other);
            assert!(told.starts_with("HTTP/1.1 404 "), "{other}: {told}");
            assert!(told.ends_with("there are /readyz, /livez and /metrics\n"), "{other}: {told}");
        }
        assert!(looks.load(Ordering::SeqCst) < 3);
        drop(silent);
        probes.follow(&Agent::default());
        assert!(TcpStream::connect(address).is_err());
    }
}
