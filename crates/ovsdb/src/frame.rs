//! Splits a stream into JSON objects: OVSDB puts nothing between them (RFC 7047 §4).

use thiserror::Error;

/// How deep an object may be nested. OVSDB needs seven levels; the parser that reads the object has
/// a limit of its own at 128.
const MAX_DEPTH: usize = 64;

/// Bytes that are not a sequence of JSON objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Something other than an object.
    #[error("a message begins with byte {0:#04x} and not with {{")]
    NoObject(u8),
    /// Brackets that do not match, or too many of them.
    #[error("a message's brackets do not match or are too deep")]
    Brackets,
    /// A message longer than agreed.
    #[error("a message is longer than {0} bytes")]
    TooLong(usize),
}

/// Collects bytes and returns whole objects.
#[derive(Debug)]
pub struct Framer {
    bytes: Vec<u8>,
    limit: usize,
    /// The bytes before this index were scanned.
    seen: usize,
    /// The brackets that are open.
    open: Vec<u8>,
    in_string: bool,
    escaped: bool,
}

impl Framer {
    /// Starts empty; a message may have `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Framer {
            bytes: Vec::new(),
            limit,
            seen: 0,
            open: Vec::new(),
            in_string: false,
            escaped: false,
        }
    }

    /// Adds bytes that were read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Says whether it contains part of a message.
    #[must_use]
    pub fn is_within(&self) -> bool {
        !self.open.is_empty()
    }

    /// Returns the next whole object, if it has arrived.
    ///
    /// # Errors
    /// [`FrameError`]: nothing that follows can be made sense of.
    pub fn next_object(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        while self.seen < self.bytes.len() {
            let byte = self.bytes[self.seen];
            self.seen += 1;
            if self.open.is_empty() {
                match byte {
                    b'{' => {
                        self.bytes.drain(..self.seen - 1);
                        self.seen = 1;
                        self.open.push(b'}');
                    }
                    b' ' | b'\t' | b'\r' | b'\n' => {}
                    other => return Err(FrameError::NoObject(other)),
                }
                continue;
            }
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
            } else {
                match byte {
                    b'"' => self.in_string = true,
                    b'{' => self.open.push(b'}'),
                    b'[' => self.open.push(b']'),
                    b'}' | b']' if self.open.pop() != Some(byte) => {
                        return Err(FrameError::Brackets);
                    }
                    _ => {}
                }
            }
            if MAX_DEPTH < self.open.len() {
                return Err(FrameError::Brackets);
            }
            if self.limit < self.seen {
                return Err(FrameError::TooLong(self.limit));
            }
            if self.open.is_empty() {
                let rest = self.bytes.split_off(self.seen);
                self.seen = 0;
                return Ok(Some(std::mem::replace(&mut self.bytes, rest)));
            }
        }
        if self.open.is_empty() {
            // White space.
            self.bytes.clear();
            self.seen = 0;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(framer: &mut Framer) -> Result<Vec<String>, FrameError> {
        let mut found = Vec::new();
        while let Some(object) = framer.next_object()? {
            found.push(String::from_utf8(object).unwrap());
        }
        Ok(found)
    }

    #[test]
    fn objects_follow_each_other_without_anything_between() {
        let mut framer = Framer::new(100);
        framer.push(br#"{"a":"}\"{"}{"b":[{}]} {"c":"#);
        assert_eq!(all(&mut framer).unwrap(), [r#"{"a":"}\"{"}"#, r#"{"b":[{}]}"#]);
        assert!(framer.is_within());
        framer.push(b"1}");
        assert_eq!(all(&mut framer).unwrap(), [r#"{"c":1}"#]);
    }

    #[test]
    fn what_is_no_object_ends_it() {
        for (bytes, error) in [
            (&b"HTTP/1.1 400"[..], FrameError::NoObject(b'H')),
            (b"[]", FrameError::NoObject(b'[')),
            (b"{]", FrameError::Brackets),
            (b"{\"a\":\"0123456789\"}", FrameError::TooLong(8)),
        ] {
            let mut framer = Framer::new(8);
            framer.push(bytes);
            assert_eq!(all(&mut framer), Err(error));
        }
        let mut framer = Framer::new(1000);
        framer.push(b"{\"a\":");
        framer.push(&[b'['; 100]);
        assert_eq!(all(&mut framer), Err(FrameError::Brackets));
    }

    proptest! {
        /// However the bytes arrive, the same objects come out.
        #[test]
        fn pieces_make_no_difference(texts in prop::collection::vec(".{0,9}", 1..5), cut in 1..9usize) {
            let objects: Vec<String> =
                texts.iter().map(|text| serde_json::json!({ "k": [text] }).to_string()).collect();
            let stream = objects.concat();
            let mut framer = Framer::new(1 << 10);
            let mut found = Vec::new();
            for piece in stream.as_bytes().chunks(cut) {
                framer.push(piece);
                found.extend(all(&mut framer).unwrap());
            }
            prop_assert_eq!(found, objects);
        }
    }
}
