//! HTTP/1.1 as drivers use it: one message in, one message out (RFC 9112).
//!
//! [`IncomingMessage`] takes bytes as they arrive and returns a message once it is complete; it never
//! stores more than its limit. `httparse` reads heads; an empty `Host`, which engines up to 25
//! send, is accepted.
//!
//! It is written here, for the driver and for the plugin `cnm`: one local peer asks one thing at a
//! time, which needs no asynchronous runtime, and the executable must not link one.

use thiserror::Error;

/// The longest head that is read. An engine's has 250 bytes.
const MAX_HEAD: usize = 16 * 1024;
/// The most header fields that are read.
const MAX_FIELDS: usize = 64;
/// The longest line at the start of a chunk.
const MAX_CHUNK_LINE: usize = 256;

/// Which side sent a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The engine.
    Request,
    /// The driver.
    Answer,
}

/// A message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// A request's method.
    pub method: String,
    /// A request's target.
    pub target: String,
    /// An answer's status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
    /// Whether the sender closes the connection after it.
    pub close: bool,
    /// Whether the sender waits for `100 Continue` before its body.
    pub expects_continue: bool,
}

/// Why bytes are not a message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The head is not HTTP/1.
    #[error("not HTTP/1.1: {0}")]
    Head(String),
    /// The head is too long.
    #[error("the head of the message is longer than {MAX_HEAD} bytes")]
    LongHead,
    /// The body is too long.
    #[error("the body of the message is longer than {limit} bytes")]
    LongBody {
        /// The limit.
        limit: usize,
    },
    /// Its length is unknown.
    #[error("the length of the message's body is not clear: {0}")]
    Length(String),
    /// It ended early.
    #[error("the message ended before its end")]
    Truncated,
}

/// How long a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    /// Known.
    Exactly(usize),
    /// In chunks.
    Chunked,
    /// Until the end of the connection.
    ToTheEnd,
}

/// A message that is being received.
#[derive(Debug)]
pub struct IncomingMessage {
    kind: Kind,
    limit: usize,
    bytes: Vec<u8>,
    head: Option<(Message, Length)>,
    /// How much of `bytes` has been read as chunks.
    read: usize,
}

impl IncomingMessage {
    /// Waits for a message with a body of at most `limit` bytes.
    #[must_use]
    pub fn new(kind: Kind, limit: usize) -> Self {
        IncomingMessage { kind, limit, bytes: Vec::new(), head: None, read: 0 }
    }

    /// Says whether nothing has arrived yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.head.is_none()
    }

    /// Says whether the head has arrived, the body has not, and the sender waits for `100
    /// Continue`.
    #[must_use]
    pub fn waits_to_continue(&self) -> bool {
        self.head.as_ref().is_some_and(|(message, _)| message.expects_continue)
            && self.bytes.is_empty()
    }

    /// Adds bytes; returns the message once it is complete. Bytes after it stay for the next one.
    ///
    /// # Errors
    /// [`HttpError`]; the connection can no longer be used.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Option<Message>, HttpError> {
        self.bytes.extend_from_slice(bytes);
        if self.head.is_none() {
            self.head = self.read_head()?;
        }
        let Some((_, length)) = &self.head else { return Ok(None) };
        match *length {
            Length::Exactly(length) if length <= self.bytes.len() => {
                let rest = self.bytes.split_off(length);
                Ok(Some(self.complete(rest)))
            }
            Length::Exactly(_) => Ok(None),
            Length::ToTheEnd if self.limit < self.bytes.len() => {
                Err(HttpError::LongBody { limit: self.limit })
            }
            Length::ToTheEnd => Ok(None),
            Length::Chunked => self.read_chunks(),
        }
    }

    /// Handles the end of the connection; returns the message that ends with it.
    ///
    /// # Errors
    /// [`HttpError::Truncated`] when there is none.
    pub fn end(&mut self) -> Result<Message, HttpError> {
        match &self.head {
            Some((_, Length::ToTheEnd)) => Ok(self.complete(Vec::new())),
            _ => Err(HttpError::Truncated),
        }
    }

    fn complete(&mut self, rest: Vec<u8>) -> Message {
        let body = std::mem::replace(&mut self.bytes, rest);
        self.read = 0;
        let (message, _) = self.head.take().expect("a body has a head before it");
        Message { body, ..message }
    }

    fn read_head(&mut self) -> Result<Option<(Message, Length)>, HttpError> {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let wrong = |error: httparse::Error| HttpError::Head(error.to_string());
        let mut message = Message::default();
        let (parsed, version, fields) = match self.kind {
            Kind::Request => {
                let mut request = httparse::Request::new(&mut fields);
                let parsed = request.parse(&self.bytes).map_err(wrong)?;
                message.method = request.method.unwrap_or_default().to_owned();
                message.target = request.path.unwrap_or_default().to_owned();
                (parsed, request.version, request.headers)
            }
            Kind::Answer => {
                let mut answer = httparse::Response::new(&mut fields);
                let parsed = answer.parse(&self.bytes).map_err(wrong)?;
                message.status = answer.code.unwrap_or_default();
                (parsed, answer.version, answer.headers)
            }
        };
        let httparse::Status::Complete(end) = parsed else {
            return if MAX_HEAD < self.bytes.len() { Err(HttpError::LongHead) } else { Ok(None) };
        };
        // HTTP/1.0 closes by default.
        message.close = version == Some(0);
        let length = read_fields(fields, self.kind, &mut message)?;
        if let Length::Exactly(length) = length
            && self.limit < length
        {
            return Err(HttpError::LongBody { limit: self.limit });
        }
        // An interim answer: the final one follows it (RFC 9110 §15.2).
        let interim = self.kind == Kind::Answer && (100..200).contains(&message.status);
        self.bytes.drain(..end);
        if interim {
            return self.read_head();
        }
        Ok(Some((message, length)))
    }

    /// Removes chunk headers and moves the content of the chunks to the front.
    fn read_chunks(&mut self) -> Result<Option<Message>, HttpError> {
        let wrong = |what: &str| HttpError::Length(what.to_owned());
        loop {
            let rest = &self.bytes[self.read..];
            let (start, size) = match httparse::parse_chunk_size(rest) {
                Ok(httparse::Status::Complete(found)) => found,
                Ok(httparse::Status::Partial) if MAX_CHUNK_LINE < rest.len() => {
                    return Err(wrong("a chunk without a size"));
                }
                Ok(httparse::Status::Partial) => return Ok(None),
                Err(_) => return Err(wrong("a chunk without a size")),
            };
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            if self.limit.saturating_sub(self.read) < size {
                return Err(HttpError::LongBody { limit: self.limit });
            }
            if size == 0 {
                return self.read_trailer(start);
            }
            let end = start + size;
            let Some(after) = rest.get(end..end + 2) else { return Ok(None) };
            if after != b"\r\n" {
                return Err(wrong("a chunk longer than its size"));
            }
            // Removes the head of the chunk and the line's end after it.
            self.bytes.drain(self.read + end..self.read + end + 2);
            self.bytes.drain(self.read..self.read + start);
            self.read += size;
        }
    }

    /// After the last chunk: fields that are ignored, and an empty line.
    fn read_trailer(&mut self, start: usize) -> Result<Option<Message>, HttpError> {
        let trailer = &self.bytes[self.read + start..];
        let length = if trailer.starts_with(b"\r\n") {
            Some(2)
        } else {
            trailer.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
        };
        let Some(length) = length else {
            return if MAX_HEAD < trailer.len() { Err(HttpError::LongHead) } else { Ok(None) };
        };
        let rest = self.bytes.split_off(self.read + start + length);
        self.bytes.truncate(self.read);
        Ok(Some(self.complete(rest)))
    }
}

/// Reads the fields that matter (RFC 9112 §6.3).
fn read_fields(
    fields: &[httparse::Header<'_>],
    kind: Kind,
    message: &mut Message,
) -> Result<Length, HttpError> {
    let wrong = |what: &str| HttpError::Length(what.to_owned());
    let (mut length, mut chunked) = (None, false);
    for field in fields {
        let value = std::str::from_utf8(field.value).unwrap_or_default().trim();
        match field.name.to_ascii_lowercase().as_str() {
            "content-length" => {
                let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
                let found = value.parse::<usize>().ok().filter(|_| digits);
                let found = found.ok_or_else(|| wrong("Content-Length is not a number"))?;
                if length.is_some_and(|before| before != found) {
                    return Err(wrong("Content-Length is given twice"));
                }
                length = Some(found);
            }
            "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => chunked = true,
            "transfer-encoding" => return Err(wrong("a transfer coding other than chunked")),
            "connection" if value.eq_ignore_ascii_case("close") => message.close = true,
            "connection" if value.eq_ignore_ascii_case("keep-alive") => message.close = false,
            "expect" => message.expects_continue = value.eq_ignore_ascii_case("100-continue"),
            _ => {}
        }
    }
    match (length, chunked) {
        (Some(_), true) => Err(wrong("both Content-Length and chunks")),
        (None, true) => Ok(Length::Chunked),
        (Some(length), false) => Ok(Length::Exactly(length)),
        // An answer without content (RFC 9110 §15.3.5).
        (None, false) if kind == Kind::Answer && !matches!(message.status, 204 | 304) => {
            Ok(Length::ToTheEnd)
        }
        (None, false) => Ok(Length::Exactly(0)),
    }
}

/// Writes a request as an engine does. `close`: the connection serves only this request.
#[must_use]
pub fn request(path: &str, body: &[u8], close: bool) -> Vec<u8> {
    let connection = if close { "Connection: close\r\n" } else { "" };
    let mut text = format!(
        "POST {path} HTTP/1.1\r\nHost: plugin.moby.localhost\r\nAccept: {media}\r\nContent-Length: {}\r\n{connection}\r\n",
        body.len(),
        media = crate::MEDIA_TYPE,
    )
    .into_bytes();
    text.extend_from_slice(body);
    text
}

/// Writes an answer. `close`: the connection ends after it.
#[must_use]
pub fn answer(status: u16, body: &[u8], close: bool) -> Vec<u8> {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        413 => "Content Too Large",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    };
    let connection = if close { "Connection: close\r\n" } else { "" };
    let mut text = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {media}\r\nContent-Length: {}\r\n{connection}\r\n",
        body.len(),
        media = crate::MEDIA_TYPE,
    )
    .into_bytes();
    text.extend_from_slice(body);
    text
}

#[cfg(test)]
mod tests;
