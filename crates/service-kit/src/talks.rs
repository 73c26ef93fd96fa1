//! The clients of a socket at which each connection asks one question ([`crate::exchange`]). A
//! client that has not asked, or does not read its answer, keeps no other client waiting.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use cnm::http::{IncomingMessage, Kind};
use rustix::event::{PollFd, PollFlags};

use crate::exchange::{self, Answer};
use crate::listen::ACCEPT_RETRY_DELAY;

/// How many clients are listened to at a socket. One more takes the place of the oldest.
pub const MOST: usize = 64;
/// How long a client has for its question.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long a client has to read the answer, which may have megabytes.
const TIMEOUT_OF_ANSWER: Duration = Duration::from_secs(10);
/// The most bytes of answers that clients have not read, of all clients together: four of the
/// longest. A new answer beyond that is still kept; older ones go.
const MOST_UNREAD: usize = 64 << 20;

/// The clients, the oldest first.
pub struct Talks<S> {
    all: Vec<Talk<S>>,
    /// The last connection could not be accepted, which has been logged.
    cannot_accept: bool,
}

impl<S> std::fmt::Debug for Talks<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Talks").finish_non_exhaustive()
    }
}

/// A client.
struct Talk<S> {
    stream: S,
    turn: Turn,
    until: Instant,
}

/// What a client does.
enum Turn {
    /// It asks.
    Asks(IncomingMessage),
    /// It reads the answer; `written` counts the bytes that its socket has taken.
    Reads { answer: Vec<u8>, written: usize },
}

impl Turn {
    fn waits_for(&self) -> PollFlags {
        match self {
            Turn::Asks(_) => PollFlags::IN,
            Turn::Reads { .. } => PollFlags::OUT,
        }
    }

    /// Returns how many bytes are kept for the client.
    fn keeps(&self) -> usize {
        match self {
            Turn::Asks(_) => 0,
            Turn::Reads { answer, .. } => answer.len(),
        }
    }
}

impl<S> Default for Talks<S> {
    fn default() -> Self {
        Talks { all: Vec::new(), cannot_accept: false }
    }
}

impl<S: Read + Write + AsFd> Talks<S> {
    /// Returns what each client waits for.
    pub fn waits(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.all.iter().map(|talk| PollFd::new(&talk.stream, talk.turn.waits_for()))
    }

    /// Returns when the time of a client is over.
    pub fn until(&self) -> Option<Instant> {
        self.all.iter().map(|talk| talk.until).min()
    }

    /// Reads what clients send, and writes to each as much of its answer as its socket takes.
    /// `ready` says of each client of [`Talks::waits`] whether its event has come.
    ///
    /// One question is answered at a time, so that room is made before the next answer is.
    pub fn go_on(&mut self, ready: &[bool], answer: &mut dyn FnMut(&str) -> Answer) {
        let now = Instant::now();
        let mut ready = ready.iter();
        let mut is_answered = false;
        self.all.retain_mut(|talk| {
            let is_ready = ready.next().is_some_and(|ready| *ready);
            let asked = matches!(talk.turn, Turn::Asks(_));
            if is_ready && asked && is_answered {
                return true;
            }
            // A client that has asked gets its answer, however late it is.
            let is_done = is_ready && talk.go_on(answer);
            is_answered |= asked && !matches!(talk.turn, Turn::Asks(_));
            !is_done && now < talk.until
        });
        make_room(&mut self.all, MOST_UNREAD);
    }

    /// Takes a client. `accept` returns its connection, which must not block. If none can be
    /// accepted, the oldest client gives its descriptor to the next; without one there is a pause,
    /// since the connection stays ready.
    pub fn accept(&mut self, accept: impl FnOnce() -> io::Result<S>) {
        match accept() {
            Ok(stream) => {
                self.cannot_accept = false;
                if MOST <= self.all.len() {
                    self.all.remove(0);
                }
                let turn = Turn::Asks(IncomingMessage::new(Kind::Request, 0));
                self.all.push(Talk { stream, turn, until: Instant::now() + TIMEOUT });
            }
            // The client has gone.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted
                ) => {}
            Err(error) => {
                if !self.cannot_accept {
                    tracing::warn!(%error, "cannot take a connection");
                }
                self.cannot_accept = true;
                if self.all.is_empty() {
                    std::thread::sleep(ACCEPT_RETRY_DELAY);
                } else {
                    self.all.remove(0);
                }
            }
        }
    }
}

/// Closes the connections of clients that do not read, the oldest first, until the unread answers
/// have at most `most` bytes.
fn make_room<S>(talks: &mut Vec<Talk<S>>, most: usize) {
    let mut kept: usize = talks.iter().map(|talk| talk.turn.keeps()).sum();
    talks.retain(|talk| {
        let of_it = talk.turn.keeps();
        let stays = kept <= most || of_it == 0;
        if !stays {
            kept -= of_it;
        }
        stays
    });
}

impl<S: Read + Write> Talk<S> {
    /// Reads what the client says, and writes of the answer what it takes now. Reports whether the
    /// client is done with.
    fn go_on(&mut self, answer: &mut dyn FnMut(&str) -> Answer) -> bool {
        if let Turn::Asks(incoming) = &mut self.turn {
            let mut bytes = [0; 4096];
            let asked = match self.stream.read(&mut bytes) {
                Ok(0) => return true,
                Ok(count) => incoming.feed(&bytes[..count]),
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            };
            match asked {
                Ok(Some(asked)) => {
                    let answer = exchange::respond(&asked, answer).into_bytes();
                    self.turn = Turn::Reads { answer, written: 0 };
                    self.until = Instant::now() + TIMEOUT_OF_ANSWER;
                }
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
        if let Turn::Reads { answer, written } = &mut self.turn {
            while *written < answer.len() {
                match self.stream.write(&answer[*written..]) {
                    Ok(count) => *written += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                    Err(error) => {
                        tracing::debug!(%error, "the client is gone");
                        return true;
                    }
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::os::unix::net::UnixStream;

    /// Creates a client that has asked.
    #[expect(clippy::disallowed_methods, reason = "a connection, not a bell")]
    fn asking(talks: &mut Talks<UnixStream>) -> UnixStream {
        let (mut client, stream) = UnixStream::pair().unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        stream.set_nonblocking(true).unwrap();
        talks.accept(|| Ok(stream));
        client
    }

    /// Each answer may have megabytes, and all of them used to be made before room was.
    #[test]
    fn one_question_is_answered_before_room_is_made() {
        let mut talks = Talks::default();
        let clients: Vec<UnixStream> = (0..3).map(|_| asking(&mut talks)).collect();
        // More than a socket's buffers hold.
        let mut long = |_: &str| Answer::text(200, &"x".repeat(1 << 20));
        for answered in 1..=3 {
            talks.go_on(&[true; 3], &mut long);
            assert_eq!(talks.all.iter().filter(|talk| 0 < talk.turn.keeps()).count(), answered);
        }
        drop(clients);
    }

    /// At the limit of descriptors the connection that waits stays ready: the loop used to turn
    /// without a pause.
    #[test]
    fn the_oldest_gives_way_if_nobody_can_be_accepted() {
        let mut talks = Talks::default();
        let clients: Vec<UnixStream> = (0..2).map(|_| asking(&mut talks)).collect();
        talks.accept(|| Err(Errno::MFILE.into()));
        assert_eq!(talks.all.len(), 1);
        talks.accept(|| Err(Errno::AGAIN.into()));
        assert_eq!(talks.all.len(), 1);
        drop(clients);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a connection, not a bell")]
    fn who_does_not_read_goes_when_memory_is_short() {
        let talk = |turn| {
            let (stream, _) = UnixStream::pair().unwrap();
            Talk { stream, turn, until: Instant::now() }
        };
        let reads = |length| talk(Turn::Reads { answer: vec![b'x'; length], written: 0 });
        let asks = || talk(Turn::Asks(IncomingMessage::new(Kind::Request, 0)));
        let mut talks = vec![asks(), reads(5), reads(3), asks(), reads(4)];
        let mut left = |most| {
            make_room(&mut talks, most);
            talks.iter().map(|talk| talk.turn.keeps()).collect::<Vec<_>>()
        };
        assert_eq!(left(12), [0, 5, 3, 0, 4]);
        assert_eq!(left(11), [0, 3, 0, 4]);
        assert_eq!(left(3), [0, 0]);
    }
}
