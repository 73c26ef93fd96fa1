//! The socket: one thread per connection, one request each, an answer within a bounded time.
//!
//! Only root can send requests: the mode of the socket's file lets no other user write to it.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cnm::Failure;
use cnm::http::{self, HttpError, IncomingMessage, Kind, Message};
use cnm::method::Method;
use service_kit::event_loop::Rounds;
use service_kit::listen::ACCEPT_RETRY_DELAY;
use service_kit::log;
use service_kit::process::LONG;

use super::driver::Driver;
use super::sandbox::Engine;
use super::subject::with_short_ids;

/// The longest body that is read. A container that publishes every port of three protocols would
/// need 17 MB; none does.
const MAX_BODY: usize = 8 << 20;
/// The timeout for a request to arrive, and for an answer to be sent.
const TALK_TIME: Duration = Duration::from_secs(10);
/// How many connections are open at once. Docker starts as many containers at once as it is asked
/// to. One more takes the place of the connection that has been silent longest.
const MAX_CONNECTIONS: usize = 256;

/// What the server needs.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) driver: Arc<Driver>,
    /// The longest time that Docker waits for an answer, even if the work hangs.
    pub(super) answer_time: Duration,
    pub(super) open: AtomicUsize,
    /// Connections whose request has not come, in the order of their arrival.
    pub(super) silent: Mutex<BTreeMap<u64, Arc<UnixStream>>>,
    pub(super) count: AtomicU64,
}

/// The number of the socket in the loop.
pub(super) const LISTENER: u64 = 0;

/// The socket, from which the loop takes connections.
pub(super) struct Socket<'l> {
    pub(super) server: Arc<Server>,
    pub(super) listener: &'l UnixListener,
}

impl Rounds for Socket<'_> {
    fn until_due(&self) -> Duration {
        LONG
    }

    fn round(&mut self, ready: &[u64]) -> io::Result<()> {
        if !ready.contains(&LISTENER) {
            return Ok(());
        }
        match self.listener.accept() {
            Ok((stream, _)) => self.server.begin(stream),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => {
                tracing::error!(%error, "cannot take a connection");
                std::thread::sleep(ACCEPT_RETRY_DELAY);
            }
        }
        Ok(())
    }
}

impl Server {
    fn begin(self: &Arc<Self>, stream: UnixStream) {
        let server = Arc::clone(self);
        let many = MAX_CONNECTIONS <= server.open.fetch_add(1, Ordering::SeqCst);
        // The thread of that connection ends at once, and frees its place.
        let many = many && !self.end_silent();
        let (stream, number) = (Arc::new(stream), self.count.fetch_add(1, Ordering::SeqCst));
        self.silent().insert(number, Arc::clone(&stream));
        let spawned = std::thread::Builder::new().name("docker".to_owned()).spawn(move || {
            if many {
                say(&stream, 503, &Failure::new("netwright is answering too many calls at once"));
            } else if let Err(error) = server.talk(&stream, number) {
                tracing::debug!(%error, "a connection ended early");
            }
            server.silent().remove(&number);
            server.open.fetch_sub(1, Ordering::SeqCst);
        });
        if let Err(error) = spawned {
            self.silent().remove(&number);
            self.open.fetch_sub(1, Ordering::SeqCst);
            tracing::error!(%error, "cannot start a thread for a connection");
        }
    }

    fn silent(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<UnixStream>>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the connection that has been silent longest; says whether there was one.
    fn end_silent(&self) -> bool {
        let Some((_, stream)) = self.silent().pop_first() else { return false };
        let _ = stream.shutdown(std::net::Shutdown::Both);
        true
    }

    fn talk(self: &Arc<Self>, stream: &UnixStream, number: u64) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(TALK_TIME))?;
        let heard = hear(stream)?;
        self.silent().remove(&number);
        match heard {
            Ok(message) => self.answer(stream, &message),
            Err(error) => {
                let status = if matches!(error, HttpError::LongBody { .. }) { 413 } else { 400 };
                tracing::warn!(%error, "refused a request");
                say(stream, status, &Failure::new(format!("netwright: {error}")));
            }
        }
        Ok(())
    }

    fn answer(self: &Arc<Self>, stream: &UnixStream, message: &Message) {
        if message.method != "POST" {
            return say(stream, 405, &Failure::new("netwright: calls are POSTed"));
        }
        let name = message.target.trim_start_matches('/').to_owned();
        let Some(method) = Method::parse(&name) else {
            return say(
                stream,
                404,
                &Failure::new(format!("netwright: there is no call {name:?}")),
            );
        };
        let began = Instant::now();
        let (sender, receiver) = mpsc::channel();
        let server = Arc::clone(self);
        let body = message.body.clone();
        let engine = Engine::at_the_other_end(stream);
        // On its own thread, so that Docker has its answer in time even if the work hangs; the work
        // continues until it ends.
        let spawned = std::thread::Builder::new().name(name.clone()).spawn(move || {
            let _ = sender.send(server.driver.answer(method, &body, engine));
        });
        if let Err(error) = spawned {
            return say(
                stream,
                500,
                &Failure::new(format!("netwright: no thread for the call: {error}")),
            );
        }
        let ms = || u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let received = receiver.recv_timeout(self.answer_time);
        let subject = received
            .as_ref()
            .map_or_else(|_| self.driver.subject(&message.body), |answer| answer.subject.clone());
        let _about = log::about(subject);
        match received.as_ref().map(|answer| &answer.answer) {
            Ok(Ok(body)) => {
                tracing::info!(call = %method, ms = ms(), "answered");
                send(stream, 200, body);
            }
            Ok(Err(error)) => {
                tracing::warn!(call = %method, ms = ms(), %error, "refused");
                // In the answer itself, so that Docker shows it to its user.
                let text = format!("netwright: {}", with_short_ids(&error.to_string()));
                send(stream, 200, &cnm::write(&Failure::new(text)));
            }
            Err(RecvTimeoutError::Timeout) => {
                tracing::error!(call = %method, ms = ms(), "not done in time; it goes on");
                let text =
                    format!("netwright: {method} was not done within {:?}", self.answer_time);
                send(stream, 200, &cnm::write(&Failure::new(text)));
            }
            Err(RecvTimeoutError::Disconnected) => {
                tracing::error!(call = %method, "a bug of ours ended the call");
                say(
                    stream,
                    500,
                    &Failure::new(format!("netwright: {method} ended by a bug; see its log")),
                );
            }
        }
    }
}

/// Reads a request within its time.
fn hear(mut stream: &UnixStream) -> io::Result<Result<Message, HttpError>> {
    let deadline = Instant::now() + TALK_TIME;
    let mut incoming = IncomingMessage::new(Kind::Request, MAX_BODY);
    let mut buffer = vec![0; 64 * 1024];
    let mut continued = false;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            if incoming.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            return Ok(incoming.end());
        }
        match incoming.feed(&buffer[..length]) {
            Ok(Some(message)) => return Ok(Ok(message)),
            Ok(None) => {}
            Err(error) => return Ok(Err(error)),
        }
        if incoming.waits_to_continue() && !continued {
            continued = true;
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
    }
}

fn say(stream: &UnixStream, status: u16, failure: &Failure) {
    send(stream, status, &cnm::write(failure));
}

/// Sends an answer. Ignores errors: Docker no longer waits for it.
fn send(mut stream: &UnixStream, status: u16, body: &[u8]) {
    let _ = stream.write_all(&http::answer(status, body, true));
    // A too long body has an unread rest, for which the kernel would reset the connection before
    // Docker reads the answer: Docker would see the reset and not the text.
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
    let mut buffer = vec![0; 64 * 1024];
    let deadline = Instant::now() + TALK_TIME;
    while matches!(stream.read(&mut buffer), Ok(length) if 0 < length) && Instant::now() < deadline
    {
    }
}
