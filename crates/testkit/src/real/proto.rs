//! The part of protobuf that a client of containerd needs
//! (<https://protobuf.dev/programming-guides/encoding/>): numbers, and fields with a length.

/// Wire types: a variable number of bytes, and bytes preceded by their count.
const VARINT: u64 = 0;
const LENGTH: u64 = 2;

/// A message being built: numbers identify its fields.
#[derive(Debug, Clone, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn number(mut self, field: u64, value: u64) -> Self {
        self.varint((field << 3) | VARINT);
        self.varint(value);
        self
    }

    pub(super) fn text(self, field: u64, text: &str) -> Self {
        self.lengthy(field, text.as_bytes())
    }

    pub(super) fn message(self, field: u64, message: &Message) -> Self {
        self.lengthy(field, &message.0)
    }

    /// One entry of a map from text to text.
    pub(super) fn entry(self, field: u64, key: &str, value: &str) -> Self {
        self.message(field, &Message::default().text(1, key).text(2, value))
    }

    fn lengthy(mut self, field: u64, bytes: &[u8]) -> Self {
        self.varint((field << 3) | LENGTH);
        self.varint(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        self.0.extend_from_slice(bytes);
        self
    }

    fn varint(&mut self, mut value: u64) {
        while 0x7f < value {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }
}

/// A field of a message that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field<'m> {
    Number(u64),
    Bytes(&'m [u8]),
}

/// Reads a message: each field with its number, in order.
///
/// # Panics
/// When it is not a message, or has fields of other kinds, which no message that we read has.
pub(super) fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = take_varint(&mut bytes);
        let field = match key & 7 {
            VARINT => Field::Number(take_varint(&mut bytes)),
            LENGTH => {
                let length = usize::try_from(take_varint(&mut bytes)).unwrap_or(usize::MAX);
                let taken = bytes.split_at_checked(length);
                let (inside, rest) = taken.unwrap_or_else(|| panic!("a message that was cut"));
                bytes = rest;
                Field::Bytes(inside)
            }
            other => panic!("a field of kind {other}"),
        };
        found.push((key >> 3, field));
    }
    found
}

/// The bytes of every field with that number.
pub(super) fn all(bytes: &[u8], number: u64) -> Vec<&[u8]> {
    let found = fields(bytes).into_iter().filter(|(at, _)| *at == number);
    let found = found.filter_map(|(_, field)| match field {
        Field::Bytes(bytes) => Some(bytes),
        Field::Number(_) => None,
    });
    found.collect()
}

/// Returns the bytes of a field; none when it is absent, which is how protobuf encodes an empty
/// one.
pub(super) fn one(bytes: &[u8], number: u64) -> &[u8] {
    all(bytes, number).pop().unwrap_or_default()
}

/// A field's text.
pub(super) fn text(bytes: &[u8], number: u64) -> String {
    String::from_utf8_lossy(one(bytes, number)).into_owned()
}

/// Returns a numeric field; 0 when it is absent.
pub(super) fn number(bytes: &[u8], number: u64) -> u64 {
    let found = fields(bytes).into_iter().rev().find(|(at, _)| *at == number);
    match found {
        Some((_, Field::Number(value))) => value,
        _ => 0,
    }
}

fn take_varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().unwrap_or_else(|| panic!("a number that was cut"));
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return value;
        }
    }
    panic!("a number that does not end")
}

#[cfg(test)]
mod tests {
    use super::{Message, all, number, one, text};

    /// The examples of the encoding's documentation.
    #[test]
    fn documented_examples() {
        assert_eq!(Message::default().number(1, 150).bytes(), [0x08, 0x96, 0x01]);
        let testing = Message::default().text(2, "testing");
        assert_eq!(testing.bytes(), b"\x12\x07testing");
        let nested = Message::default().message(3, &Message::default().number(1, 150));
        assert_eq!(nested.bytes(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
    }

    #[test]
    fn what_was_written_is_read() {
        let message =
            Message::default().number(1, u64::MAX).text(2, "a").text(2, "b").entry(7, "k", "v");
        let bytes = message.bytes();
        assert_eq!(number(bytes, 1), u64::MAX);
        assert_eq!(all(bytes, 2), [b"a", b"b"]);
        assert_eq!(text(bytes, 2), "b");
        assert_eq!((text(one(bytes, 7), 1), text(one(bytes, 7), 2)), ("k".into(), "v".into()));
        assert_eq!((number(bytes, 9), text(bytes, 9)), (0, String::new()));
    }
}
