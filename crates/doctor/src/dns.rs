//! Asks a name server (RFC 1035), by UDP or by TCP, within a bounded time.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// RFC 1035 §4.2.
pub(crate) const PORT: u16 = 53;

/// A record's type (RFC 1035 §3.2.2, RFC 3596 §2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An IPv4 address.
    A,
    /// An IPv6 address.
    Aaaa,
}

/// A code of an answer (RFC 1035 §4.1.1).
pub(crate) mod code {
    /// The name is known.
    pub(crate) const NO_ERROR: u8 = 0;
    /// The server gets no answer itself.
    pub(crate) const SERVER_FAILURE: u8 = 2;
    /// The name does not exist.
    pub(crate) const NO_SUCH_NAME: u8 = 3;
    /// The server does not want to say.
    pub(crate) const REFUSED: u8 = 5;
}

/// How often a question is sent by UDP.
const TRIES: u32 = 2;

/// More than any answer by UDP is long, if the question does not offer more (RFC 1035 §2.3.4).
const DATAGRAM: usize = 1500;

/// RFC 1035 §2.3.4.
const LABEL_MAX: usize = 63;
const NAME_MAX: usize = 253;

/// No name in a message has more labels.
const LABELS_MAX: usize = 128;

const CLASS_IN: u16 = 1;

/// How long a message's header is (RFC 1035 §4.1.1).
const HEADER: usize = 12;

/// What a server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    /// See [`code`].
    pub(crate) code: u8,
    /// The answer did not fit into a datagram: it is to be asked for by TCP (RFC 7766 §5).
    pub(crate) is_cut: bool,
    /// The addresses; `None` if they cannot be read.
    pub(crate) addresses: Option<Vec<IpAddr>>,
}

/// Asks a server by UDP for records of a name, twice if needed. Returns the answers in the order of
/// the kinds; `None` for one that did not come within `timeout`.
pub(crate) fn by_udp(
    server: IpAddr,
    host: &str,
    kinds: &[Kind],
    timeout: Duration,
) -> io::Result<Vec<Option<Reply>>> {
    let any: IpAddr = match server {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(SocketAddr::new(server, PORT))?;
    // The port is the kernel's choice, so the number need not be hard to guess.
    let questions = Questions::new(host, kinds, socket.local_addr()?.port())?;
    let mut replies = vec![None; kinds.len()];
    for _ in 0..TRIES {
        for question in questions.unanswered(&replies) {
            socket.send(question)?;
        }
        questions.wait(&socket, &mut replies, timeout / TRIES)?;
        if !replies.contains(&None) {
            break;
        }
    }
    Ok(replies)
}

/// Asks a server by one TCP connection for records of a name. Returns the answers in the order of
/// the kinds. Each step takes no longer than `timeout`.
///
/// # Errors
///
/// If an answer does not come.
pub(crate) fn by_tcp(
    server: IpAddr,
    host: &str,
    kinds: &[Kind],
    timeout: Duration,
) -> io::Result<Vec<Reply>> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(server, PORT), timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let questions = Questions::new(host, kinds, stream.local_addr()?.port())?;
    let mut replies = Vec::new();
    for question in &questions.all {
        // RFC 1035 §4.2.2.
        let length = u16::try_from(question.len()).unwrap_or_default();
        stream.write_all(&[&length.to_be_bytes(), question.as_slice()].concat())?;
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut answer)?;
        let reply = Reply::read(&answer, question);
        replies.push(reply.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?);
    }
    Ok(replies)
}

/// Says whether a socket's error means that no answer came in time.
pub(crate) fn is_late(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(error.kind(), Kind::WouldBlock | Kind::TimedOut | Kind::Interrupted)
}

/// Messages, each with a number of its own.
struct Questions {
    all: Vec<Vec<u8>>,
}

impl Questions {
    fn new(host: &str, kinds: &[Kind], first: u16) -> io::Result<Self> {
        let numbers = (0..u16::MAX).map(|index| first.wrapping_add(index));
        let of = |(kind, number): (&Kind, u16)| question(host, *kind, number);
        Ok(Self { all: kinds.iter().zip(numbers).map(of).collect::<io::Result<_>>()? })
    }

    fn unanswered<'q>(&'q self, replies: &'q [Option<Reply>]) -> impl Iterator<Item = &'q Vec<u8>> {
        self.all.iter().zip(replies).filter(|(_, reply)| reply.is_none()).map(|(one, _)| one)
    }

    /// Waits for all answers. Others do not end the wait.
    fn wait(
        &self,
        socket: &UdpSocket,
        replies: &mut [Option<Reply>],
        timeout: Duration,
    ) -> io::Result<()> {
        let end = Instant::now() + timeout;
        let mut buffer = [0; DATAGRAM];
        while replies.contains(&None) {
            let left = end.saturating_duration_since(Instant::now());
            // The kernel takes zero for no limit.
            if left.is_zero() {
                break;
            }
            socket.set_read_timeout(Some(left))?;
            let length = match socket.recv(&mut buffer) {
                Ok(length) => length,
                Err(error) if is_late(&error) => continue,
                Err(error) => return Err(error),
            };
            for (question, reply) in self.all.iter().zip(replies.iter_mut()) {
                if reply.is_none() {
                    *reply = Reply::read(&buffer[..length], question);
                }
            }
        }
        Ok(())
    }
}

/// Writes a question (RFC 1035 §4.1).
///
/// # Errors
///
/// If this is not a name.
pub(crate) fn question(host: &str, kind: Kind, number: u16) -> io::Result<Vec<u8>> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidInput);
    let mut message = Vec::with_capacity(64);
    message.extend(number.to_be_bytes());
    // Recursion desired; one question.
    message.extend([0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0]);
    let host = host.trim_end_matches('.');
    if NAME_MAX < host.len() {
        return Err(wrong());
    }
    for label in host.split('.') {
        let length = u8::try_from(label.len())
            .ok()
            .filter(|length| *length != 0 && usize::from(*length) <= LABEL_MAX);
        message.push(length.ok_or_else(wrong)?);
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend(kind.number().to_be_bytes());
    message.extend(CLASS_IN.to_be_bytes());
    Ok(message)
}

impl Kind {
    fn number(self) -> u16 {
        match self {
            Self::A => 1,
            Self::Aaaa => 28,
        }
    }
}

impl Reply {
    /// Reads an answer; `None` when it does not answer this question. An answer repeats the question
    /// (RFC 5452 §9.1); one that says that it failed may leave it out.
    fn read(message: &[u8], question: &[u8]) -> Option<Self> {
        let (head, rest) = message.split_at_checked(HEADER)?;
        let (asked, name) = question.split_at_checked(HEADER)?;
        let (is_answer, code) = (head[2] & 0x80 != 0, head[3] & 0x0f);
        let repeats = rest.get(..name.len()).is_some_and(|own| own.eq_ignore_ascii_case(name));
        let leaves_out = head[4..6] == [0, 0] && code != code::NO_ERROR;
        (is_answer && head[..2] == asked[..2] && (repeats || leaves_out)).then(|| Self {
            code,
            is_cut: head[2] & 0x02 != 0,
            addresses: addresses(message),
        })
    }
}

/// Reads the addresses in an answer.
fn addresses(message: &[u8]) -> Option<Vec<IpAddr>> {
    let word = |at: usize| Some(u16::from_be_bytes(message.get(at..at + 2)?.try_into().ok()?));
    let (questions, records) = (word(4)?, word(6)?);
    let mut at = HEADER;
    for _ in 0..questions {
        at = skip_name(message, at)? + 4;
    }
    let mut addresses = Vec::new();
    for _ in 0..records {
        at = skip_name(message, at)?;
        let (kind, length) = (word(at)?, usize::from(word(at + 8)?));
        let data = message.get(at + 10..at + 10 + length)?;
        if kind == Kind::A.number() {
            addresses.push(IpAddr::from(<[u8; 4]>::try_from(data).ok()?));
        } else if kind == Kind::Aaaa.number() {
            addresses.push(IpAddr::from(<[u8; 16]>::try_from(data).ok()?));
        }
        at += 10 + length;
    }
    Some(addresses)
}

/// Returns the offset after a name, which ends with an empty label or a pointer (RFC 1035 §4.1.4).
fn skip_name(message: &[u8], mut at: usize) -> Option<usize> {
    for _ in 0..LABELS_MAX {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length if length & 0xc0 == 0xc0 => return Some(at + 2),
            length => at += 1 + usize::from(length),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read() {
        let asked = question("example.com", Kind::A, 1).unwrap();
        let mut message = asked.clone();
        assert_eq!(Reply::read(&message, &asked), None, "a question is no answer");
        message[2] |= 0x80;
        message[7] = 2;
        // CNAME (to the root), then an A record; both names are pointers to the question.
        message.extend([0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 60, 0, 1, 0]);
        message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 203, 0, 113, 9]);
        let expected = Reply {
            code: code::NO_ERROR,
            is_cut: false,
            addresses: Some(vec!["203.0.113.9".parse().unwrap()]),
        };
        assert_eq!(Reply::read(&message, &asked), Some(expected.clone()));
        let other = |host, kind, number| question(host, kind, number).unwrap();
        assert_eq!(Reply::read(&message, &other("EXAMPLE.com", Kind::A, 1)), Some(expected));
        for other in [
            other("example.com", Kind::A, 2),
            other("example.com", Kind::Aaaa, 1),
            other("example.org", Kind::A, 1),
        ] {
            assert_eq!(Reply::read(&message, &other), None);
        }
        assert_eq!(Reply::read(&message[..4], &asked), None);
        message[2] |= 0x02;
        message[3] = 0x83;
        let cut = Reply::read(&message, &asked).unwrap();
        assert_eq!((cut.code, cut.is_cut), (code::NO_SUCH_NAME, true));
        // It failed, and does not say what it was asked.
        let mut failed = message[..HEADER].to_vec();
        failed[3] = 0x82;
        failed[4..8].fill(0);
        assert_eq!(Reply::read(&failed, &asked).unwrap().code, code::SERVER_FAILURE);
        failed[3] = 0x80;
        assert_eq!(Reply::read(&failed, &asked), None);
    }

    #[test]
    fn no_answer_breaks_the_reader() {
        let asked = question("example.com", Kind::A, 1).unwrap();
        let mut message = asked.clone();
        message[2] |= 0x80;
        message[7] = 200;
        message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0xff, 0xff, 1]);
        for length in 0..message.len() {
            let _ = Reply::read(&message[..length], &asked);
        }
        assert_eq!(Reply::read(&message, &asked).unwrap().addresses, None);
        assert_eq!(Reply::read(&[], &asked), None);
    }

    #[test]
    fn only_names_are_asked_for() {
        assert!(question("a..b", Kind::A, 1).is_err());
        assert!(question(&"x".repeat(64), Kind::A, 1).is_err());
        assert!(question(&"x.".repeat(127), Kind::A, 1).is_ok());
        assert!(question(&"x.".repeat(128), Kind::A, 1).is_err());
    }

    /// A server may send anything before the answer, and anything instead of it.
    #[test]
    fn lies_do_not_end_the_waiting() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(server.local_addr().unwrap()).unwrap();
        let to = client.local_addr().unwrap();
        let questions = Questions::new("netwright.invalid", &[Kind::A], 7).unwrap();
        let mut told = questions.all[0].clone();
        told[2] |= 0x80;
        let mut other = told.clone();
        other[1] = 8;
        let long = [0xff; 4096];
        for lie in [&b""[..], &b"x"[..], other.as_slice(), long.as_slice()] {
            server.send_to(lie, to).unwrap();
        }
        let mut replies = [None];
        questions.wait(&client, &mut replies, Duration::from_millis(1)).unwrap();
        assert_eq!(replies, [None]);
        server.send_to(&other, to).unwrap();
        server.send_to(&told, to).unwrap();
        questions.wait(&client, &mut replies, Duration::from_secs(20)).unwrap();
        assert_eq!(replies[0].as_ref().map(|reply| reply.code), Some(code::NO_ERROR));
    }
}
