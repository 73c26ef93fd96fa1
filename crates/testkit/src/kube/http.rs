//! The part of HTTP/1.1 that is needed: requests with a length or in chunks, answers with a length,
//! streams in chunks.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, BufRead, Read as _, Write};

/// The longest accepted body: the same as a real server's.
const MAX_BODY: u64 = 3 << 20;
/// The longest head.
const MAX_HEAD: u64 = 64 << 10;

#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: BTreeMap<String, String>,
    /// Names in lower case.
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Vec<u8>,
    pub(super) raw_target: String,
}

impl Request {
    /// Reads the next request; `None` when the peer is done.
    pub(super) fn read(from: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut head = from.take(MAX_HEAD);
        let mut line = String::new();
        if head.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let mut words = line.split_whitespace();
        let method = words.next().ok_or_else(|| bad("no method"))?.to_owned();
        let target = words.next().ok_or_else(|| bad("no target"))?.to_owned();
        if words.next() != Some("HTTP/1.1") {
            return Err(bad("not HTTP/1.1"));
        }
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            head.read_line(&mut line)?;
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            let (name, value) =
                line.split_once(':').ok_or_else(|| bad("a header without colon"))?;
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let mut body = Vec::new();
        if headers.get("transfer-encoding").is_some_and(|value| value == "chunked") {
            loop {
                let mut size = String::new();
                from.take(32).read_line(&mut size)?;
                let size = u64::from_str_radix(size.trim(), 16).map_err(|_| bad("chunk size"))?;
                from.take(size.min(MAX_BODY)).read_to_end(&mut body)?;
                from.take(2).read_line(&mut String::new())?;
                if size == 0 {
                    break;
                }
            }
        } else if let Some(length) = headers.get("content-length") {
            let length: u64 = length.parse().map_err(|_| bad("content-length"))?;
            from.take(length.min(MAX_BODY)).read_to_end(&mut body)?;
        }
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let query = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(key, value)| (decoded(key), decoded(value)))
            .collect();
        let path = decoded(path);
        Ok(Some(Request { method, path, query, headers, body, raw_target: target }))
    }

    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub(super) fn asks(&self, key: &str) -> &str {
        self.query.get(key).map_or("", String::as_str)
    }
}

/// Percent-decodes, with `+` for a space.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::new(), 0);
    while let Some(&byte) = bytes.get(at) {
        let hex = bytes.get(at + 1..at + 3).and_then(|two| std::str::from_utf8(two).ok());
        match (byte, hex.and_then(|two| u8::from_str_radix(two, 16).ok())) {
            (b'%', Some(value)) => {
                out.push(value);
                at += 3;
                continue;
            }
            (b'+', _) => out.push(b' '),
            _ => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn phrase(code: u16) -> &'static str {
    match code {
        200 => "OK",
        201 => "Created",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        410 => "Gone",
        415 => "Unsupported Media Type",
        422 => "Unprocessable Entity",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Unknown",
    }
}

/// Sends an answer with its length.
pub(super) fn answer(to: &mut impl Write, code: u16, body: &str) -> io::Result<()> {
    let mut text = head(code);
    let retry = if matches!(code, 429 | 503) { "Retry-After: 1\r\n" } else { "" };
    let _ = write!(text, "{retry}Content-Length: {}\r\n\r\n{body}", body.len());
    to.write_all(text.as_bytes())?;
    to.flush()
}

/// Begins an answer that is sent in pieces.
pub(super) fn begin(to: &mut impl Write) -> io::Result<()> {
    let text = head(200) + "Transfer-Encoding: chunked\r\n\r\n";
    to.write_all(text.as_bytes())?;
    to.flush()
}

/// Sends a piece; the last one is empty.
pub(super) fn piece(to: &mut impl Write, text: &str) -> io::Result<()> {
    to.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())?;
    to.flush()
}

fn head(code: u16) -> String {
    format!(
        "HTTP/1.1 {code} {}\r\nContent-Type: application/json\r\nCache-Control: no-cache, private\r\n",
        phrase(code)
    )
}
