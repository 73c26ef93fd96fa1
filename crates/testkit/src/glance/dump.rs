//! Dumps of all kernel objects of a kind.

use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, netlink};

/// Larger than any datagram of a dump (linux net/netlink/af_netlink.c).
const BUFFER: usize = 128 * 1024;

const REQUEST_DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const INTERRUPTED: u16 = 0x10;
const HEADER: usize = 16;

/// How often to restart a dump that other programs' changes interrupted.
const TRIES: usize = 100;

/// A netlink socket.
#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

/// One object: the kind's fixed part, and attributes.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub(super) kind: u16,
    pub(super) fixed: Vec<u8>,
    rest: Vec<u8>,
}

impl Object {
    /// Returns the content of an attribute.
    pub(super) fn attribute(&self, kind: u16) -> Option<&[u8]> {
        attributes(&self.rest).find(|(found, _)| *found == kind).map(|(_, content)| content)
    }

    /// Returns an attribute as text.
    pub(super) fn text(&self, kind: u16) -> String {
        self.attribute(kind).map(text).unwrap_or_default()
    }

    /// Returns an attribute as a number in the machine's byte order.
    pub(super) fn number(&self, kind: u16) -> u32 {
        self.attribute(kind).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
    }

    /// Returns some attributes as one text.
    pub(super) fn hex(&self, kinds: &[u16]) -> String {
        let found = attributes(&self.rest).filter(|(kind, _)| kinds.contains(kind));
        found.map(|(kind, content)| format!(" {kind}={}", hex(content))).collect()
    }

    /// Returns four bytes of the fixed part as a number.
    pub(super) fn fixed_number(&self, at: usize) -> u32 {
        let bytes = self.fixed.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_ne_bytes)
    }
}

/// Lists attributes, without decoding nested ones.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & 0x3fff;
        let content = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, content))
    })
}

pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Socket {
    pub(super) fn route() -> Self {
        Self::open(None)
    }

    pub(super) fn netfilter() -> Self {
        Self::open(Some(netlink::NETFILTER))
    }

    fn open(protocol: Option<rustix::net::Protocol>) -> Self {
        let socket = rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, protocol);
        Socket(socket.unwrap_or_else(|error| panic!("netlink socket: {error}")))
    }

    /// Lists all objects; none if the kernel does not know the kind.
    pub(super) fn dump(&self, kind: u16, fixed: &[u8], rest: &[u8]) -> Vec<Object> {
        for _ in 0..TRIES {
            if let Some(objects) = self.try_dump(kind, fixed, rest) {
                return objects;
            }
        }
        panic!("netlink: dump of {kind} interrupted {TRIES} times");
    }

    fn try_dump(&self, kind: u16, fixed: &[u8], rest: &[u8]) -> Option<Vec<Object>> {
        let length = HEADER + fixed.len() + rest.len();
        let mut request = Vec::with_capacity(length);
        request.extend(u32::try_from(length).expect("a short request").to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend(REQUEST_DUMP.to_ne_bytes());
        request.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        request.extend(fixed);
        request.extend(rest);
        rustix::io::retry_on_intr(|| rustix::net::send(&self.0, &request, SendFlags::empty()))
            .unwrap_or_else(|error| panic!("netlink: ask for {kind}: {error}"));
        let mut objects = Vec::new();
        let mut interrupted = false;
        let mut buffer = vec![0; BUFFER];
        loop {
            let (length, _) = rustix::io::retry_on_intr(|| {
                rustix::net::recv(&self.0, &mut *buffer, RecvFlags::empty())
            })
            .unwrap_or_else(|error| panic!("netlink: answer to {kind}: {error}"));
            let mut bytes = &buffer[..length];
            while let Some(header) = bytes.get(..HEADER) {
                let size = u32::from_ne_bytes(header[..4].try_into().expect("four bytes"));
                let size = usize::try_from(size).expect("lengths are small");
                let answered = u16::from_ne_bytes(header[4..6].try_into().expect("two bytes"));
                let flags = u16::from_ne_bytes(header[6..8].try_into().expect("two bytes"));
                interrupted |= flags & INTERRUPTED != 0;
                let body = &bytes[HEADER..size];
                bytes = bytes.get(size.next_multiple_of(4)..).unwrap_or(&[]);
                match answered {
                    DONE => return (!interrupted).then_some(objects),
                    ERROR => {
                        let errno = i32::from_ne_bytes(body[..4].try_into().expect("an errno"));
                        // EINTR, EAGAIN: the kernel's other ways to report changes during the dump.
                        return (!matches!(-errno, 4 | 11)).then_some(objects);
                    }
                    kind => objects.push(Object {
                        kind,
                        fixed: body[..fixed.len().min(body.len())].to_vec(),
                        rest: body.get(fixed.len()..).unwrap_or(&[]).to_vec(),
                    }),
                }
            }
        }
    }
}
