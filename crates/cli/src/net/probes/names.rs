//! Asks a name server whether it answers (RFC 1035).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use diagnose::Answer;

use super::{micros, of_error};

pub(super) const PORT: u16 = 53;

/// How often the question is sent.
const TRIES: u32 = 2;

/// The longest answer over UDP without an extension (RFC 1035 §2.3.4).
const LONGEST: usize = 512;

/// RFC 1035 §4.1.1: the answers of a server that works: the name is known, it does not exist, and
/// the server does not want to say.
const NO_ERROR: u8 = 0;
const SERVER_FAILURE: u8 = 2;
const NO_SUCH_NAME: u8 = 3;
const REFUSED: u8 = 5;

/// Asks for a name that no host has (RFC 6761 §6.4).
pub(super) fn ask(server: IpAddr, timeout: Duration) -> Answer {
    let began = Instant::now();
    match exchange(server, timeout / TRIES) {
        Ok(Some(code)) => {
            let error = match code {
                NO_ERROR | NO_SUCH_NAME | REFUSED => None,
                SERVER_FAILURE => Some("it answers SERVFAIL: it gets no answer itself".to_owned()),
                other => Some(format!("it answers with error {other} (RFC 1035 §4.1.1)")),
            };
            Answer::Named { after_us: micros(began.elapsed()), error }
        }
        Ok(None) => Answer::Silent { hops: Vec::new() },
        Err(error) => of_error(&error),
    }
}

/// Returns the answer's code; `None` if the server does not answer.
fn exchange(server: IpAddr, timeout: Duration) -> io::Result<Option<u8>> {
    let any: IpAddr = match server {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(SocketAddr::new(server, PORT))?;
    // The port is the kernel's choice, so the number need not be hard to guess.
    let number = socket.local_addr()?.port();
    let question = question(number);
    for _ in 0..TRIES {
        socket.send(&question)?;
        if let Some(code) = answer(&socket, number, timeout)? {
            return Ok(Some(code));
        }
    }
    Ok(None)
}

/// Waits for the answer with this number. Other answers do not end the wait.
fn answer(socket: &UdpSocket, number: u16, timeout: Duration) -> io::Result<Option<u8>> {
    let end = Instant::now() + timeout;
    let mut message = [0; LONGEST];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        // The kernel takes zero for no limit.
        if left.is_zero() {
            return Ok(None);
        }
        socket.set_read_timeout(Some(left))?;
        match socket.recv(&mut message) {
            Ok(length) => {
                if let Some(code) = code_of(&message[..length], number) {
                    return Ok(Some(code));
                }
            }
            Err(error) => {
                let is_late =
                    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
                return if is_late { Ok(None) } else { Err(error) };
            }
        }
    }
}

/// Builds the question for the addresses of `netwright.invalid.`.
pub(super) fn question(number: u16) -> Vec<u8> {
    let mut message = number.to_be_bytes().to_vec();
    // One question, recursion desired.
    message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in ["netwright", "invalid", ""] {
        message.push(u8::try_from(label.len()).unwrap_or_default());
        message.extend(label.as_bytes());
    }
    // Type A, class IN.
    message.extend([0, 1, 0, 1]);
    message
}

/// Returns the code of an answer to the question of this number.
fn code_of(message: &[u8], number: u16) -> Option<u8> {
    let head = message.get(..12)?;
    let is_answer = head[2] & 0x80 != 0;
    (is_answer && head[..2] == number.to_be_bytes()).then_some(head[3] & 0x0f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_answer_to_the_question_counts() {
        let asked = question(0x1234);
        assert_eq!(code_of(&asked, 0x1234), None, "a question is no answer");
        let mut answer = asked.clone();
        answer[2] |= 0x80;
        answer[3] = 0x83;
        assert_eq!(code_of(&answer, 0x1234), Some(NO_SUCH_NAME));
        assert_eq!(code_of(&answer, 0x1235), None);
        assert_eq!(code_of(&answer[..4], 0x1234), None);
    }

    /// A server may send anything before the answer, and anything instead of it.
    #[test]
    fn lies_do_not_end_the_waiting() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(server.local_addr().unwrap()).unwrap();
        let to = client.local_addr().unwrap();
        let mut told = question(7);
        told[2] |= 0x80;
        let mut other = told.clone();
        other[1] = 8;
        let long = [0xff; 4096];
        for lie in [&b""[..], &b"x"[..], other.as_slice(), long.as_slice()] {
            server.send_to(lie, to).unwrap();
        }
        assert_eq!(answer(&client, 7, Duration::from_millis(1)).unwrap(), None);
        server.send_to(&other, to).unwrap();
        server.send_to(&told, to).unwrap();
        assert_eq!(answer(&client, 7, Duration::from_secs(20)).unwrap(), Some(NO_ERROR));
    }
}
