//! The only file that speaks D-Bus.
//!
//! firewalld is asked with two texts and answers yes, no, or an error. That is little of D-Bus, so
//! it is written here: one connection to a Unix socket, one call after the other, and it blocks
//! until a deadline.
//!
//! The crate `zbus` can do all of D-Bus; it is asynchronous and brought twelve crates and 0.6 MB.
//! As a cargo feature it was missing in the daemon that was shipped, so `routing` never reached
//! firewalld. Of an answer only the forms are read that the bus and firewalld send. Anything else
//! is an error, and so is an answer of more than 1 MiB. Signals and calls are passed over unread,
//! because any user of the host may send them. Calls carry the flag that keeps the bus from
//! starting firewalld. Addresses of the bus are those of Unix sockets (`unix:path=`,
//! `unix:abstract=`), also several with `;` between them. If more of D-Bus is needed than calls
//! with texts, consider the crate again before this file grows.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{Answer, FirewalldError, Method};

/// The bus's default address (D-Bus specification, "System message bus").
const SYSTEM_BUS: &str = "unix:path=/var/run/dbus/system_bus_socket";
/// The bus itself.
const BUS: Object = Object {
    name: "org.freedesktop.DBus",
    path: "/org/freedesktop/DBus",
    interface: "org.freedesktop.DBus",
};
/// firewalld's zones on the bus (`man 5 firewalld.dbus`).
const ZONES: Object = Object {
    name: "org.fedoraproject.FirewallD1",
    path: "/org/fedoraproject/FirewallD1",
    interface: "org.fedoraproject.FirewallD1.zone",
};
/// The errors that the bus returns if nobody has the name that a call goes to.
const NOBODY: [&str; 2] =
    ["org.freedesktop.DBus.Error.NameHasNoOwner", "org.freedesktop.DBus.Error.ServiceUnknown"];

/// "Authentication Protocol", mechanism EXTERNAL: who we are the kernel tells the bus, so no name is
/// given. As systemd's `busctl` does, all of it is sent at once.
const HANDSHAKE: &[u8] = b"\0AUTH EXTERNAL\r\nDATA\r\nBEGIN\r\n";
/// How the two lines begin that the bus answers.
const ACCEPTED: [&str; 2] = ["DATA", "OK "];
/// The longest such line.
const LONGEST_LINE: u64 = 1024;

/// "Message Format": the types of messages, a flag, and the codes of header fields.
const CALL: u8 = 1;
const RETURN: u8 = 2;
const ERROR: u8 = 3;
const NO_AUTO_START: u8 = 2;
const PROTOCOL: u8 = 1;
const FIELD_PATH: u8 = 1;
const FIELD_INTERFACE: u8 = 2;
const FIELD_MEMBER: u8 = 3;
const FIELD_ERROR_NAME: u8 = 4;
const FIELD_REPLY_SERIAL: u8 = 5;
const FIELD_DESTINATION: u8 = 6;
const FIELD_SIGNATURE: u8 = 8;

/// The length of the part of a header that every message has.
const FIXED: usize = 16;
/// The largest header or body of an answer that is read. firewalld's errors are a line; the
/// specification allows 128 MiB.
const LARGEST: usize = 1 << 20;

/// Has one conversation: one question for each pair of zone and source. It ends in time, whatever
/// the other side does.
pub(super) fn ask(
    address: Option<&str>,
    timeout: Duration,
    method: Method,
    questions: &[(String, String)],
) -> Result<Vec<Answer>, FirewalldError> {
    let until = Instant::now() + timeout;
    let answers = Connection::open(address.unwrap_or(SYSTEM_BUS), until)
        .and_then(|mut bus| converse(&mut bus, method, questions));
    answers.map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => FirewalldError::Absent,
        // The socket's timeouts (`man 7 socket`, SO_RCVTIMEO).
        ErrorKind::WouldBlock => FirewalldError::Late { timeout },
        _ => FirewalldError::Bus(Box::new(error)),
    })
}

fn converse(
    bus: &mut Connection,
    method: Method,
    questions: &[(String, String)],
) -> io::Result<Vec<Answer>> {
    // Asked also if there is no question: whether firewalld runs is one.
    if !bus.call(&BUS, "NameHasOwner", &[ZONES.name])?.returned()?.is_true()? {
        return Err(ErrorKind::NotFound.into());
    }
    let mut answers = Vec::with_capacity(questions.len());
    for (zone, source) in questions {
        let reply = bus.call(&ZONES, method.name(), &[zone.as_str(), source.as_str()])?;
        answers.push(match &reply.error {
            Some(name) if NOBODY.contains(&name.as_str()) => {
                return Err(ErrorKind::NotFound.into());
            }
            // firewalld has one error for everything; its code is the first word of the message.
            Some(_) => Answer::Refused(reply.text()?),
            None if method == Method::Query => Answer::Is(reply.is_true()?),
            None => Answer::Done,
        });
    }
    Ok(answers)
}

/// Whom a call goes to.
struct Object {
    name: &'static str,
    path: &'static str,
    interface: &'static str,
}

/// A connection to a bus.
struct Connection {
    socket: BufReader<TimedSocket>,
    /// The number of the last call.
    serial: u32,
}

impl Connection {
    /// Connects, and has the bus accept us.
    fn open(address: &str, until: Instant) -> io::Result<Self> {
        let socket = connect(address, until)?;
        let mut socket = BufReader::new(TimedSocket { socket, until });
        socket.get_mut().write_all(HANDSHAKE)?;
        for beginning in ACCEPTED {
            let mut line = String::new();
            socket.by_ref().take(LONGEST_LINE).read_line(&mut line)?;
            if !line.starts_with(beginning) {
                let line = line.trim_end();
                return Err(io::Error::other(format!("the bus refuses us: {line:?}")));
            }
        }
        let mut bus = Connection { socket, serial: 0 };
        bus.call(&BUS, "Hello", &[])?.returned()?;
        Ok(bus)
    }

    /// Calls a method whose arguments are texts, and waits for its answer.
    fn call(&mut self, object: &Object, method: &str, arguments: &[&str]) -> io::Result<Reply> {
        self.serial += 1;
        let call = encoded(self.serial, object, method, arguments)?;
        self.socket.get_mut().write_all(&call)?;
        loop {
            let reply = Reply::read(&mut self.socket)?;
            if reply.answers == self.serial {
                return Ok(reply);
            }
        }
    }
}

/// A socket that waits until a moment. The other side may send a byte now and then.
struct TimedSocket {
    socket: UnixStream,
    until: Instant,
}

impl Read for TimedSocket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(left(self.until)?))?;
        self.socket.read(into)
    }
}

impl Write for TimedSocket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(left(self.until)?))?;
        self.socket.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the time that is left. None left is what the kernel says when a timeout passes.
fn left(until: Instant) -> io::Result<Duration> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ErrorKind::WouldBlock.into()),
        left => Ok(left),
    }
}

/// Connects to the first of an address's sockets that is there ("Server Addresses").
fn connect(address: &str, until: Instant) -> io::Result<UnixStream> {
    let mut outcome = Err(io::Error::other(format!("no Unix socket in the address {address:?}")));
    for one in address.split(';') {
        let keys = one.strip_prefix("unix:").unwrap_or_default();
        for (key, value) in keys.split(',').filter_map(|key| key.split_once('=')) {
            let name = unescaped(value);
            outcome = match key {
                "path" => SocketAddrUnix::new(OsStr::from_bytes(&name)),
                "abstract" => SocketAddrUnix::new_abstract_name(&name),
                _ => continue,
            }
            .map_err(io::Error::from)
            .and_then(|socket| connect_to(&socket, until));
            if outcome.is_ok() {
                return outcome;
            }
        }
    }
    outcome
}

/// Connects to a socket. If its listener does not accept, and its queue is full, that would wait for
/// ever without a timeout (linux net/unix/af_unix.c `unix_stream_connect`).
fn connect_to(address: &SocketAddrUnix, until: Instant) -> io::Result<UnixStream> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    loop {
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(left(until)?))?;
        match rustix::net::connect(&socket, address) {
            // A signal ends a wait that has a timeout, also one whose handler restarts calls
            // (`man 7 signal`).
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(()) => return Ok(UnixStream::from(socket)),
        }
    }
}

/// Replaces `%` and two digits by the byte that they mean.
fn unescaped(value: &str) -> Vec<u8> {
    let mut parts = value.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part.split_at_checked(2).map(|(code, rest)| (u8::from_str_radix(code, 16), rest)) {
            Some((Ok(byte), rest)) => {
                bytes.push(byte);
                bytes.extend(rest.as_bytes());
            }
            _ => {
                bytes.push(b'%');
                bytes.extend(part.as_bytes());
            }
        }
    }
    bytes
}

/// Encodes a call ("Marshaling"). It never starts the program that it goes to.
fn encoded(serial: u32, object: &Object, method: &str, arguments: &[&str]) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    for argument in arguments {
        put_text(&mut body, argument)?;
    }
    let mut fields = Vec::new();
    for (code, kind, text) in [
        (FIELD_PATH, b'o', object.path),
        (FIELD_INTERFACE, b's', object.interface),
        (FIELD_MEMBER, b's', method),
        (FIELD_DESTINATION, b's', object.name),
    ] {
        pad(&mut fields, 8);
        fields.extend([code, 1, kind, 0]);
        put_text(&mut fields, text)?;
    }
    if !arguments.is_empty() {
        let count = u8::try_from(arguments.len()).map_err(io::Error::other)?;
        pad(&mut fields, 8);
        fields.extend([FIELD_SIGNATURE, 1, b'g', 0, count]);
        fields.extend(arguments.iter().map(|_| b's'));
        fields.push(0);
    }
    let mut call = vec![b'l', CALL, NO_AUTO_START, PROTOCOL];
    call.extend(length(&body)?);
    call.extend(serial.to_le_bytes());
    call.extend(length(&fields)?);
    call.extend(fields);
    pad(&mut call, 8);
    call.extend(body);
    Ok(call)
}

fn put_text(into: &mut Vec<u8>, text: &str) -> io::Result<()> {
    pad(into, 4);
    into.extend(length(text.as_bytes())?);
    into.extend(text.as_bytes());
    into.push(0);
    Ok(())
}

fn length(bytes: &[u8]) -> io::Result<[u8; 4]> {
    Ok(u32::try_from(bytes.len()).map_err(io::Error::other)?.to_le_bytes())
}

fn pad(bytes: &mut Vec<u8>, to: usize) {
    bytes.resize(bytes.len().next_multiple_of(to), 0);
}

fn broken(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the bus sent {what}"))
}

fn bounded(length: u32) -> io::Result<usize> {
    let length = usize::try_from(length).map_err(io::Error::other)?;
    if LARGEST < length { Err(broken("too much")) } else { Ok(length) }
}

/// An answer from the bus.
#[derive(Debug, Default)]
struct Reply {
    /// The number of the call that it answers; no call has 0, but a message that is no answer.
    answers: u32,
    /// The name of the error that it is.
    error: Option<String>,
    signature: Vec<u8>,
    body: Vec<u8>,
    is_big_endian: bool,
}

impl Reply {
    fn read(socket: &mut impl Read) -> io::Result<Self> {
        let mut fixed = [0; FIXED];
        socket.read_exact(&mut fixed)?;
        let is_big_endian = match fixed[0] {
            b'l' => false,
            b'B' => true,
            _ => return Err(broken("a message of no known byte order")),
        };
        // After the byte order: type, flags, version; then the number of the message.
        let mut head = MarshaledValues { bytes: &fixed, at: 4, is_big_endian };
        let (body, _, fields) = (head.number()?, head.number()?, head.number()?);
        if !matches!(fixed[1], RETURN | ERROR) {
            // Any user may send us a signal, and any header and length with it. An answer comes from
            // whom we have asked: the bus passes on no other (`man 1 dbus-daemon`,
            // send_requested_reply).
            let rest = u64::from(fields).next_multiple_of(8) + u64::from(body);
            io::copy(&mut socket.take(rest), &mut io::sink())?;
            return Ok(Reply::default());
        }
        let (body, fields) = (bounded(body)?, bounded(fields)?);
        let mut rest = vec![0; fields.next_multiple_of(8) + body];
        socket.read_exact(&mut rest)?;
        let body = rest.split_off(fields.next_multiple_of(8));
        rest.truncate(fields);
        let mut reply = Reply { body, is_big_endian, ..Reply::default() };
        reply.take_fields(&rest)?;
        Ok(reply)
    }

    fn take_fields(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut fields = MarshaledValues { bytes, at: 0, is_big_endian: self.is_big_endian };
        loop {
            fields.align(8);
            if bytes.len() <= fields.at {
                return Ok(());
            }
            let code = fields.byte()?;
            match (fields.signature()?, code) {
                (b"u", FIELD_REPLY_SERIAL) => self.answers = fields.number()?,
                (b"u", _) => {
                    fields.number()?;
                }
                (b"s", FIELD_ERROR_NAME) => self.error = Some(fields.text()?),
                (b"s" | b"o", _) => {
                    fields.text()?;
                }
                (b"g", FIELD_SIGNATURE) => self.signature = fields.signature()?.to_vec(),
                _ => return Err(broken("a header of an unknown form")),
            }
        }
    }

    /// Makes an error of an answer that is one.
    fn returned(self) -> io::Result<Self> {
        match &self.error {
            Some(name) => Err(io::Error::other(format!("{name}: {}", self.text()?))),
            None => Ok(self),
        }
    }

    fn body(&self) -> MarshaledValues<'_> {
        MarshaledValues { bytes: &self.body, at: 0, is_big_endian: self.is_big_endian }
    }

    /// Returns the answer to a question.
    fn is_true(&self) -> io::Result<bool> {
        match self.signature.as_slice() {
            b"b" => Ok(self.body().number()? != 0),
            _ => Err(broken("neither yes nor no")),
        }
    }

    /// Returns the text that it begins with, if it does.
    fn text(&self) -> io::Result<String> {
        if self.signature.starts_with(b"s") { self.body().text() } else { Ok(String::new()) }
    }
}

/// Values as they come over the bus. Each lies at a multiple of its size.
struct MarshaledValues<'b> {
    bytes: &'b [u8],
    at: usize,
    is_big_endian: bool,
}

impl<'b> MarshaledValues<'b> {
    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn take(&mut self, count: usize) -> io::Result<&'b [u8]> {
        let end = self.at + count;
        let taken = self.bytes.get(self.at..end).ok_or_else(|| broken("a message cut short"))?;
        self.at = end;
        Ok(taken)
    }

    fn byte(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> io::Result<u32> {
        self.align(4);
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4)?);
        Ok(if self.is_big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn text(&mut self) -> io::Result<String> {
        let length = bounded(self.number()?)?;
        let text = self.take(length)?;
        // A zero byte follows.
        self.take(1)?;
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    fn signature(&mut self) -> io::Result<&'b [u8]> {
        let length = self.byte()?;
        let signature = self.take(usize::from(length))?;
        self.take(1)?;
        Ok(signature)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use proptest::prelude::*;

    use super::super::TIMEOUT;
    use super::*;

    const SIGNAL: u8 = 4;

    /// Encodes a message of the bus, of either byte order.
    fn message(order: u8, answers: u32, error: &str, signature: &str, body: &[u8]) -> Vec<u8> {
        let number = |number: usize| {
            let number = u32::try_from(number).unwrap();
            if order == b'B' { number.to_be_bytes() } else { number.to_le_bytes() }
        };
        let mut fields = vec![FIELD_REPLY_SERIAL, 1, b'u', 0];
        fields.extend(number(usize::try_from(answers).unwrap()));
        if !error.is_empty() {
            fields.extend([FIELD_ERROR_NAME, 1, b's', 0]);
            fields.extend(number(error.len()));
            fields.extend(error.as_bytes());
            fields.push(0);
        }
        pad(&mut fields, 8);
        fields.extend([FIELD_SIGNATURE, 1, b'g', 0, u8::try_from(signature.len()).unwrap()]);
        fields.extend(signature.as_bytes());
        fields.push(0);
        let kind = if error.is_empty() { RETURN } else { ERROR };
        let mut message = vec![order, kind, 1, PROTOCOL];
        message.extend(number(body.len()));
        message.extend(number(7));
        message.extend(number(fields.len()));
        message.extend(fields);
        pad(&mut message, 8);
        message.extend(body);
        message
    }

    /// Asks a bus that has these words ready for two questions.
    fn asked(handshake: &str, messages: &[Vec<u8>]) -> Result<Vec<Answer>, FirewalldError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a bus");
        let listener = UnixListener::bind(&path).unwrap();
        let said = [handshake.as_bytes(), &messages.concat()].concat();
        let bus = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket.write_all(&said).unwrap();
            socket.shutdown(std::net::Shutdown::Write).unwrap();
            // Until the other side has read all or gives up.
            let _ = io::copy(&mut socket, &mut io::sink());
        });
        let address = format!("tcp:host=h;unix:path={}/a%20bus,guid=0", dir.path().display());
        let source = |address: &str| ("trusted".to_owned(), address.to_owned());
        let questions = [source("192.0.2.1/32"), source("192.0.2.2/32")];
        let answers = ask(Some(&address), TIMEOUT, Method::Query, &questions);
        bus.join().unwrap();
        answers
    }

    const WELCOME: &str = "DATA\r\nOK 0123456789abcdef\r\n";
    const YES: [u8; 4] = 1_u32.to_le_bytes();

    fn text(text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_text(&mut bytes, text).unwrap();
        bytes
    }

    #[test]
    fn answers_are_found_among_other_messages() {
        let answers = asked(
            WELCOME,
            &[
                message(b'l', 1, "", "s", &text(":1.7")),
                message(b'l', 0, "", "s", &text("a signal")),
                message(b'l', 2, "", "b", &YES),
                message(b'B', 3, "", "b", &1_u32.to_be_bytes()),
                message(b'l', 4, "org.fedoraproject.FirewallD1.Exception", "s", &text("NO: a")),
            ],
        );
        assert_eq!(answers.unwrap(), [Answer::Is(true), Answer::Refused("NO: a".to_owned())]);
    }

    /// Any user may send us signals with the number of our next call in them.
    #[test]
    fn only_who_is_asked_answers() {
        let forged = |answers, body: &[u8]| {
            let mut message = message(b'l', answers, "", "b", body);
            message[1] = SIGNAL;
            message
        };
        let mut unknown = forged(3, &[0; 4]);
        // The type of the first field of the header.
        unknown[FIXED + 2] = b'v';
        let answers = asked(
            WELCOME,
            &[
                message(b'l', 1, "", "s", &text(":1.7")),
                forged(2, &[0; 4]),
                message(b'l', 2, "", "b", &YES),
                forged(3, &[0; 4]),
                forged(3, &vec![0; LARGEST + 1]),
                unknown,
                message(b'l', 3, "", "b", &YES),
                message(b'l', 4, "", "b", &YES),
            ],
        );
        assert_eq!(answers.unwrap(), [Answer::Is(true), Answer::Is(true)]);
    }

    /// Something comes all the time, and no answer.
    #[test]
    fn a_bus_that_talks_for_ever_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bus");
        let listener = UnixListener::bind(&path).unwrap();
        let bus = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let other = message(b'l', 9, "", "b", &YES);
            let mut written = socket.write_all(WELCOME.as_bytes());
            while written.is_ok() {
                written = socket.write_all(&other);
            }
        });
        let address = format!("unix:path={}", path.display());
        let late = ask(Some(&address), Duration::from_millis(100), Method::Query, &[]);
        assert!(matches!(late, Err(FirewalldError::Late { .. })), "{late:?}");
        // The socket is closed, so the other side ends too.
        bus.join().unwrap();
    }

    #[test]
    fn a_name_that_nobody_has_is_an_absent_firewalld() {
        let hello = message(b'l', 1, "", "s", &text(":1.7"));
        let no = message(b'l', 2, "", "b", &[0; 4]);
        let absent = asked(WELCOME, &[hello.clone(), no]);
        assert!(matches!(absent, Err(FirewalldError::Absent)), "{absent:?}");
        // It ended between the two questions.
        let yes = message(b'l', 2, "", "b", &YES);
        let gone = message(b'l', 3, NOBODY[0], "s", &text("no such name"));
        let absent = asked(WELCOME, &[hello, yes, gone]);
        assert!(matches!(absent, Err(FirewalldError::Absent)), "{absent:?}");
    }

    #[test]
    fn a_bus_that_says_nonsense_is_told() {
        let hello = message(b'l', 1, "", "s", &text(":1.7"));
        let mut endless = hello.clone();
        endless[4..8].copy_from_slice(&[0xff; 4]);
        for (handshake, messages) in [
            ("REJECTED EXTERNAL\r\n", vec![]),
            ("", vec![]),
            (WELCOME, vec![]),
            (WELCOME, vec![hello[..20].to_vec()]),
            (WELCOME, vec![endless]),
            (WELCOME, vec![b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()]),
            (WELCOME, vec![message(b'l', 1, "org.freedesktop.DBus.Error.LimitsExceeded", "", &[])]),
            (WELCOME, vec![hello.clone(), message(b'l', 2, "", "s", &text("yes"))]),
            (WELCOME, vec![hello.clone(), message(b'l', 2, "", "b", &[1])]),
            (WELCOME, vec![message(b'l', 9, "", "b", &YES); 2]),
        ] {
            let outcome = asked(handshake, &messages);
            assert!(matches!(outcome, Err(FirewalldError::Bus(_))), "{handshake:?}: {outcome:?}");
        }
    }

    proptest! {
        /// No message of the bus makes us panic.
        #[test]
        fn a_changed_message_is_read_or_refused(
            at in 0..90_usize,
            byte in any::<u8>(),
            kept in 0..90_usize,
        ) {
            let mut bytes = message(b'l', 3, "a.b", "s", &text("NO: a"));
            if let Some(changed) = bytes.get_mut(at) {
                *changed = byte;
            }
            for length in [bytes.len(), kept.min(bytes.len())] {
                if let Ok(reply) = Reply::read(&mut &bytes[..length]) {
                    let _ = (reply.text(), reply.is_true());
                }
            }
        }
    }

    /// The specification's alignment, byte by byte.
    #[test]
    fn a_call_is_encoded_as_the_specification_says() {
        let object = Object { name: "a.b", path: "/p", interface: "i.j" };
        let call = encoded(5, &object, "M", &["z", "10"]).unwrap();
        let wanted: [&[u8]; 13] = [
            b"l\x01\x02\x01",
            &[15, 0, 0, 0],
            &[5, 0, 0, 0],
            &[72, 0, 0, 0],
            b"\x01\x01o\0\x02\0\0\0/p\0\0\0\0\0\0",
            b"\x02\x01s\0\x03\0\0\0i.j\0\0\0\0\0",
            b"\x03\x01s\0\x01\0\0\0M\0\0\0\0\0\0\0",
            b"\x06\x01s\0\x03\0\0\0a.b\0\0\0\0\0",
            b"\x08\x01g\0\x02ss\0",
            b"\x01\0\0\0",
            b"z\0\0\0",
            b"\x02\0\0\0",
            b"10\0",
        ];
        assert_eq!(call, wanted.concat());
    }
}
