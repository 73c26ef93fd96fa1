//! One plugin's connection: one line in, one line out.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use dhcp::Timestamp;
use node_api::Message;
use node_api::dhcp::{Answer, Failure, MAX_LINE, Reply, Request, read_question};

/// How long a plugin may take to send its request, and to take its answer.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Conversation {
    pub(crate) stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    phase: Phase,
    /// When the connection is closed.
    pub(crate) until: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Asking,
    Waiting,
    Answering,
}

/// What reading from the connection gave.
#[derive(Debug)]
pub(crate) enum Input {
    /// Not a whole line yet.
    Nothing,
    /// A request.
    Question(Request),
    /// A line that is not a request; the answer to it.
    Nonsense(Failure),
    /// The plugin is gone, or sends more than it should.
    End,
}

impl Conversation {
    /// Takes a connection from root, or from the user the daemon runs as.
    pub(crate) fn new(stream: UnixStream, now: Timestamp) -> Option<Self> {
        let uid = kernel::peer::of(&stream).ok()?.uid;
        if uid != 0 && uid != rustix::process::geteuid().as_raw() {
            tracing::warn!(uid, "refused a connection: only root and the daemon's user may ask");
            return None;
        }
        stream.set_nonblocking(true).ok()?;
        Some(Conversation {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            phase: Phase::Asking,
            until: Some(now + TIMEOUT),
        })
    }

    /// Reads what has arrived.
    pub(crate) fn hear(&mut self) -> Input {
        let mut buffer = [0; 16 * 1024];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Input::End,
                Ok(_) if self.phase != Phase::Asking => return Input::End,
                Ok(length) => self.input.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Input::Nothing,
                Err(_) => return Input::End,
            }
            if let Some(end) = self.input.iter().position(|octet| *octet == b'\n') {
                let line = std::mem::take(&mut self.input);
                self.phase = Phase::Waiting;
                self.until = None;
                return match read_question(&line[..end]) {
                    Ok(ask) => Input::Question(ask),
                    Err(failure) => Input::Nonsense(failure),
                };
            }
            if MAX_LINE < self.input.len() {
                return Input::End;
            }
        }
    }

    /// Starts the answer and writes as much of it as the socket takes now; says whether all of it
    /// is written.
    pub(crate) fn answer(&mut self, answer: Answer, now: Timestamp) -> io::Result<bool> {
        self.output = Reply::new(answer).to_line().unwrap_or_default();
        self.phase = Phase::Answering;
        self.until = Some(now + TIMEOUT);
        self.go_on()
    }

    /// Writes more of the answer; says whether all of it is written.
    pub(crate) fn go_on(&mut self) -> io::Result<bool> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => drop(self.output.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Says whether its request has not come yet.
    pub(crate) fn is_asking(&self) -> bool {
        self.phase == Phase::Asking
    }

    /// Says whether an answer is on its way.
    pub(crate) fn is_answering(&self) -> bool {
        self.phase == Phase::Answering
    }
}
