//! Questions and answers between the agent's processes: HTTP/1.1 over a Unix socket, one request on
//! each connection, so that `curl --unix-socket` and probes can ask too.
//!
//! A question is a target, such as `/status`, or `POST` and a target if something is to be done.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use cnm::http::{IncomingMessage, Kind, Message};
use node_api::socket::{self, ConnectFailure};
use thiserror::Error;

/// The longest answer that is read: the routes to several thousand nodes.
const LONGEST_ANSWER: usize = 16 << 20;
/// What a question begins with if something is to be done.
const POST: &str = "POST ";

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status of HTTP.
    pub status: u16,
    /// What the body is: `text/plain` or `application/json`.
    pub media: &'static str,
    /// What is said.
    pub body: String,
}

impl Answer {
    /// Answers with a line of text.
    pub fn text(status: u16, line: &str) -> Self {
        Answer { status, media: "text/plain; charset=utf-8", body: format!("{line}\n") }
    }

    /// Answers with a value.
    pub fn json(value: &impl serde::Serialize) -> Self {
        let body = serde_json::to_string(value).expect("our types serialise to JSON");
        Answer { status: 200, media: "application/json", body }
    }

    /// Answers with metrics.
    pub fn metrics(body: String) -> Self {
        Answer { status: 200, media: agent::metrics::MEDIA, body }
    }

    /// Answers whether all is well: nothing, or what is wrong.
    pub fn verdict(wrong: Option<String>) -> Self {
        match wrong {
            None => Answer::text(200, "ok"),
            Some(why) => Answer::text(503, &cni::text::one_line(why)),
        }
    }
}

/// Returns the answer to a question as it is sent.
pub fn respond(asked: &Message, answer: impl FnOnce(&str) -> Answer) -> String {
    let target = asked.target.split('?').next().unwrap_or_default();
    let answer = match asked.method.as_str() {
        "GET" => answer(target),
        "POST" => answer(&format!("{POST}{target}")),
        _ => Answer::text(405, "there are only GET and POST"),
    };
    let reason = match answer.status {
        200 => "OK",
        404 => "Not Found",
        405 => "Method Not Allowed",
        _ => "Service Unavailable",
    };
    format!(
        "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
        answer.status,
        answer.media,
        answer.body.len(),
        answer.body
    )
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum NoAnswer {
    /// No process listens.
    #[error("no program listens at {0}")]
    Nobody(String),
    /// A process listens and does not answer in time.
    #[error("it does not answer")]
    Silent,
    /// It cannot be asked, or its answer makes no sense.
    #[error("it cannot be asked: {0}")]
    Failed(String),
}

/// Asks a question. Returns the status and the body.
pub fn ask(path: &Path, question: &str, timeout: Duration) -> Result<(u16, Vec<u8>), NoAnswer> {
    let (method, target) = match question.strip_prefix(POST) {
        Some(target) => ("POST", target),
        None => ("GET", question),
    };
    let mut stream = socket::connect_now(path).map_err(|error| match error {
        ConnectFailure::Nobody => NoAnswer::Nobody(path.display().to_string()),
        ConnectFailure::Full => NoAnswer::Silent,
        other => NoAnswer::Failed(other.to_string()),
    })?;
    let late = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => NoAnswer::Silent,
        // The process has ended meanwhile.
        std::io::ErrorKind::BrokenPipe
        | std::io::ErrorKind::ConnectionReset
        | std::io::ErrorKind::UnexpectedEof => NoAnswer::Nobody(path.display().to_string()),
        _ => NoAnswer::Failed(error.to_string()),
    };
    let mut talk = || -> std::io::Result<Message> {
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        let text =
            format!("{method} {target} HTTP/1.1\r\nHost: netwrightd\r\nConnection: close\r\n\r\n");
        stream.write_all(text.as_bytes())?;
        receive(&mut stream, IncomingMessage::new(Kind::Answer, LONGEST_ANSWER))
    };
    let answered = talk().map_err(late)?;
    Ok((answered.status, answered.body))
}

fn receive(stream: &mut UnixStream, mut incoming: IncomingMessage) -> std::io::Result<Message> {
    let wrong = |error| std::io::Error::new(std::io::ErrorKind::InvalidData, error);
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes)? {
            0 if incoming.is_empty() => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            0 => return incoming.end().map_err(wrong),
            count => {
                if let Some(message) = incoming.feed(&bytes[..count]).map_err(wrong)? {
                    return Ok(message);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    const SHORT: Duration = Duration::from_millis(200);

    #[test]
    fn questions_are_answered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        assert!(matches!(ask(&path, "/", SHORT), Err(NoAnswer::Nobody(_))));
        let listener = UnixListener::bind(&path).unwrap();
        assert!(matches!(ask(&path, "/", SHORT), Err(NoAnswer::Silent)));
        let server = std::thread::spawn(move || {
            // The connection whose question was given up is still there.
            for _ in 0..3 {
                let (mut stream, _) = listener.accept().unwrap();
                if let Ok(asked) = receive(&mut stream, IncomingMessage::new(Kind::Request, 0)) {
                    let no = |target: &str| Answer::verdict(Some(format!("no {target}")));
                    let _ = stream.write_all(respond(&asked, no).as_bytes());
                }
            }
        });
        let (status, body) = ask(&path, "/readyz?verbose", SHORT).unwrap();
        assert_eq!((status, body.as_slice()), (503, &b"no /readyz\n"[..]));
        let (_, body) = ask(&path, "POST /do", SHORT).unwrap();
        assert_eq!(body, b"no POST /do\n");
        server.join().unwrap();
        assert!(matches!(ask(&path, "/", SHORT), Err(NoAnswer::Nobody(_))));
    }
}
