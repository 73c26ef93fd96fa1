//! Encodes and decodes netlink messages and attributes.
//!
//! Reading never fails and never panics: bytes that do not fit their declared length end the
//! iteration, and a value too short for a number is ignored. Kernels newer than this code may send
//! more than it knows.
//!
//! It is written here, because the `netlink-packet-*` crates refuse a whole dump for one attribute
//! that they cannot parse, cut lengths above 64 KiB without an error, and leave most expressions of
//! nftables as raw attributes. ADD must not fail on a newer kernel for an attribute that it does
//! not know. These crates are the second opinion: `second_opinion.rs` has them decode each change
//! and encode it again, and compares the bytes. No type of theirs is in a public signature.

use std::iter;

/// `linux include/uapi/linux/netlink.h` NLA_F_NESTED.
pub(crate) const NLA_F_NESTED: u16 = 0x8000;
/// The type without NLA_F_NESTED and NLA_F_NET_BYTEORDER.
const NLA_TYPE_MASK: u16 = 0x3fff;
/// Size of `struct nlattr`.
const ATTRIBUTE_HEADER: usize = 4;
/// Size of `struct nlmsghdr`.
pub(crate) const MESSAGE_HEADER: usize = 16;

/// Takes one message: its type, its flags beside NLM_F_REQUEST and NLM_F_ACK, and a function that
/// writes its body.
pub(crate) type Emitter<'a> = &'a mut dyn FnMut(u16, u16, &dyn Fn(&mut Writer));

/// Writes messages one after another.
///
/// A value that netlink cannot express is remembered ([`Writer::problem`]) instead of being cut
/// silently.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    /// Where the last message starts.
    last: usize,
    problem: Option<&'static str>,
}

impl Writer {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Forgets what was written, and keeps its room.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        (self.last, self.problem) = (0, None);
    }

    /// Returns why the written bytes must not be sent.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        self.problem
    }

    /// Records that the written bytes must not be sent.
    pub(crate) fn set_problem(&mut self, problem: &'static str) {
        self.problem = self.problem.or(Some(problem));
    }

    /// Writes one message: the header, then the body by calling `body`, then the length into the
    /// header.
    pub(crate) fn message(
        &mut self,
        kind: u16,
        flags: u16,
        seq: u32,
        body: impl FnOnce(&mut Self),
    ) {
        let start = self.bytes.len();
        self.last = start;
        let mut header = [0; MESSAGE_HEADER];
        header[4..6].copy_from_slice(&kind.to_ne_bytes());
        header[6..8].copy_from_slice(&flags.to_ne_bytes());
        header[8..12].copy_from_slice(&seq.to_ne_bytes());
        self.bytes.extend_from_slice(&header);
        body(self);
        let Ok(length) = u32::try_from(self.bytes.len() - start) else {
            self.set_problem("the message is too large");
            return;
        };
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        self.pad();
    }

    /// Adds flags to the header of the last message, if there is one.
    pub(crate) fn flag_last_message(&mut self, flags: u16) {
        let at = self.last + 6..self.last + 8;
        if let Some(old) = u16_at(&self.bytes, at.start) {
            self.bytes[at].copy_from_slice(&(old | flags).to_ne_bytes());
        }
    }

    /// Writes bytes unchanged: a fixed header.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    pub(crate) fn put(&mut self, kind: u16, value: &[u8]) {
        self.attribute(kind, |writer| writer.bytes.extend_from_slice(value));
    }

    pub(crate) fn put_u8(&mut self, kind: u16, value: u8) {
        self.put(kind, &[value]);
    }

    pub(crate) fn put_u16(&mut self, kind: u16, value: u16) {
        self.put(kind, &value.to_ne_bytes());
    }

    pub(crate) fn put_u32(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_ne_bytes());
    }

    pub(crate) fn put_u32_be(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_be_bytes());
    }

    pub(crate) fn put_u64_be(&mut self, kind: u16, value: u64) {
        self.put(kind, &value.to_be_bytes());
    }

    /// Writes a text with the NUL that ends it.
    pub(crate) fn put_text(&mut self, kind: u16, value: &str) {
        if value.contains('\0') {
            // The kernel would take the part before it for the whole.
            self.set_problem("a name contains a NUL byte");
        }
        self.attribute(kind, |writer| {
            writer.bytes.extend_from_slice(value.as_bytes());
            writer.bytes.push(0);
        });
    }

    /// Writes attributes inside an attribute that is marked as nested (nfnetlink).
    pub(crate) fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        self.attribute(kind | NLA_F_NESTED, body);
    }

    /// Writes attributes inside an attribute without marking it (rtnetlink; some of its readers
    /// compare the bare type).
    pub(crate) fn nest_plain(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        self.attribute(kind, body);
    }

    fn attribute(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        let [first, second] = kind.to_ne_bytes();
        self.bytes.extend_from_slice(&[0, 0, first, second]);
        body(self);
        match u16::try_from(self.bytes.len() - start) {
            Ok(length) => self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes()),
            Err(_) => self.set_problem("an attribute is too large"),
        }
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// One message as received.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) seq: u32,
    pub(crate) body: &'a [u8],
}

impl<'a> Message<'a> {
    /// The attributes after a fixed header of `header` bytes.
    pub(crate) fn attributes(
        &self,
        header: usize,
    ) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        attributes(self.body.get(header..).unwrap_or_default())
    }
}

/// Reads the messages of one datagram.
pub(crate) fn messages(bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    messages_from(bytes).map(|(_, message)| message)
}

/// Does the same, and says by which socket each was caused (`nl_pid`, `man 7 netlink`).
pub(crate) fn messages_from(mut bytes: &[u8]) -> impl Iterator<Item = (u32, Message<'_>)> {
    iter::from_fn(move || {
        let header = bytes.get(..MESSAGE_HEADER)?;
        let length = usize::try_from(u32_at(header, 0)?).ok()?;
        let body = bytes.get(MESSAGE_HEADER..length)?;
        let message = Message {
            kind: u16_at(header, 4)?,
            flags: u16_at(header, 6)?,
            seq: u32_at(header, 8)?,
            body,
        };
        let port = u32_at(header, 12)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((port, message))
    })
}

/// One attribute as received; the type without its flags.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attribute<'a> {
    pub(crate) kind: u16,
    pub(crate) value: &'a [u8],
}

/// Reads consecutive attributes.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & NLA_TYPE_MASK;
        let value = bytes.get(ATTRIBUTE_HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Attribute { kind, value })
    })
}

impl<'a> Attribute<'a> {
    pub(crate) fn nested(&self) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        attributes(self.value)
    }

    /// The first inner attribute of a type.
    pub(crate) fn find(&self, kind: u16) -> Option<Attribute<'a>> {
        self.nested().find(|attribute| attribute.kind == kind)
    }

    pub(crate) fn u8(&self) -> Option<u8> {
        self.value.first().copied()
    }

    pub(crate) fn u16(&self) -> Option<u16> {
        u16_at(self.value, 0)
    }

    pub(crate) fn u32(&self) -> Option<u32> {
        u32_at(self.value, 0)
    }

    pub(crate) fn i32(&self) -> Option<i32> {
        self.value.get(..4)?.try_into().ok().map(i32::from_ne_bytes)
    }

    pub(crate) fn u16_be(&self) -> Option<u16> {
        self.value.get(..2)?.try_into().ok().map(u16::from_be_bytes)
    }

    pub(crate) fn u32_be(&self) -> Option<u32> {
        self.value.get(..4)?.try_into().ok().map(u32::from_be_bytes)
    }

    pub(crate) fn i32_be(&self) -> Option<i32> {
        self.value.get(..4)?.try_into().ok().map(i32::from_be_bytes)
    }

    pub(crate) fn u64_be(&self) -> Option<u64> {
        self.value.get(..8)?.try_into().ok().map(u64::from_be_bytes)
    }

    /// The text before the first NUL; bytes that are not UTF-8 are replaced.
    pub(crate) fn text(&self) -> String {
        text(self.value)
    }
}

/// The text before the first NUL; bytes that are not UTF-8 are replaced.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_ne_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_ne_bytes)
}

pub(crate) fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(i32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut writer = Writer::new();
        writer.message(16, 5, 7, |writer| {
            writer.raw(&[1, 2, 3, 4]);
            writer.put_text(3, "lo");
            writer.nest(18, |writer| writer.put_u8(1, 9));
        });
        writer.message(17, 1, 8, |_| {});
        let read: Vec<_> = messages(writer.bytes()).collect();
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].kind, read[0].flags, read[0].seq), (16, 5, 7));
        let inner: Vec<_> = read[0].attributes(4).collect();
        assert_eq!((inner[0].kind, inner[0].text()), (3, "lo".to_owned()));
        assert_eq!(inner[1].find(1).unwrap().u8(), Some(9));
        assert!(read[1].body.is_empty());
        writer.flag_last_message(4);
        let flags: Vec<_> = messages(writer.bytes()).map(|message| message.flags).collect();
        assert_eq!(flags, [5, 5]);
        writer.flag_last_message(8);
        let flags: Vec<_> = messages(writer.bytes()).map(|message| message.flags).collect();
        assert_eq!(flags, [5, 13]);
    }

    #[test]
    fn a_too_long_attribute_is_noticed() {
        let mut writer = Writer::new();
        writer.put(1, &vec![0; 0xfffb]);
        assert_eq!(writer.problem(), None);
        writer.put(1, &vec![0; 0xfffc]);
        assert_eq!(writer.problem(), Some("an attribute is too large"));
    }

    #[test]
    fn a_text_is_not_cut() {
        let mut writer = Writer::new();
        writer.put_text(1, "veth\0");
        assert_eq!(writer.problem(), Some("a name contains a NUL byte"));
    }

    proptest::proptest! {
        #[test]
        fn reading_anything_ends(bytes: Vec<u8>) {
            for message in messages(&bytes) {
                for attribute in message.attributes(4) {
                    attribute.nested().count();
                }
            }
            proptest::prop_assert!(attributes(&bytes).count() <= bytes.len());
        }
    }
}
