//! One netlink socket: send, receive, match, retry.

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink_sys::SocketAddr;
use rustix::buffer::spare_capacity;
use rustix::io::Errno as SysErrno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{RecvFlags, SendFlags};

use super::{Errno, ExtAck, NetlinkError, by_name};
use crate::linger;
use crate::netns::{Netns, within};
use crate::wire::{self, Message, Writer};

/// `man 7 netlink`.
pub(crate) const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
/// In replies: the tables changed during the dump.
const NLM_F_DUMP_INTR: u16 = 0x10;
/// In error replies: the request is not repeated after the error.
const NLM_F_CAPPED: u16 = 0x100;
/// In error replies: attributes follow.
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSG_NOOP: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// How long the kernel may take for one reply. A busy node holds the lock for links for seconds
/// (measured right after a thousand attachments); a runtime's own timeout is 55 s and more.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
/// A dump that is interrupted every time fails after this many tries, and not before
/// [`DUMP_TIMEOUT`]: on a busy node a single try takes a second.
const DUMP_TRIES: u32 = 5;
/// A dump that is interrupted every time is repeated for at least this long: while hundreds of
/// containers are connected at once, most dumps of links are interrupted. It is short, so that a
/// container that changes its own links all the time does not hold up the others for long.
const DUMP_TIMEOUT: Duration = Duration::from_secs(2);
/// The wait after the first interruption; each is twice as long as the one before.
const FIRST_DUMP_DELAY: Duration = Duration::from_millis(1);
const LONGEST_DUMP_DELAY: Duration = Duration::from_millis(64);
/// Receive buffer: twice the largest datagram of a dump (32 KiB, `netlink_dump` in linux
/// net/netlink/af_netlink.c). The description of a single object is far smaller; virtual functions,
/// of which a link may have hundreds, are not requested.
const RECEIVE_BUFFER: usize = 64 * 1024;
/// A generous bound of what the kernel charges a receive buffer for one acknowledgement.
const ACK_COST: usize = 2048;
/// What every socket buffer holds without being enlarged (net.core.*mem_default is 212992).
const SMALL_BUFFER: usize = 128 * 1024;
/// No socket buffer grows beyond this, so that we do not use up the kernel's memory.
const MAX_SOCKET_BUFFER: usize = 256 * 1024 * 1024;

/// A blocking netlink socket. It keeps the namespace it was opened in.
#[derive(Debug)]
pub(crate) struct Socket {
    inner: netlink_sys::Socket,
    seq: u32,
    received: Vec<u8>,
    send_buffer: usize,
    receive_buffer: usize,
    overrun: bool,
    /// How many objects a dump returns at most, and whether a dump had more.
    most: usize,
    cut: bool,
}

/// The parts of a request besides its sequence number.
pub(crate) struct Request<'a> {
    /// The request's description for errors; formatted only when one happens.
    pub(crate) operation: &'a dyn Display,
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) body: &'a dyn Fn(&mut Writer),
}

/// The reply that ends a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    Accepted,
    Refused(Errno, Option<ExtAck>),
}

impl Outcome {
    pub(crate) fn into_result(self, operation: &dyn Display) -> Result<(), NetlinkError> {
        match self {
            Self::Accepted => Ok(()),
            Self::Refused(errno, ext_ack) => {
                Err(NetlinkError::Refused { operation: operation.to_string(), errno, ext_ack })
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl Socket {
    /// Opens a socket of a netlink family in the calling thread's namespace.
    pub(crate) fn open(protocol: isize) -> Result<Self, NetlinkError> {
        let failed = |step| move |source| NetlinkError::Open { step, source };
        let inner = netlink_sys::Socket::new(protocol).map_err(failed("socket"))?;
        // This also binds it; from then on it receives only from the kernel.
        inner.connect(&SocketAddr::new(0, 0)).map_err(failed("connect"))?;
        inner.set_ext_ack(true).map_err(failed("NETLINK_EXT_ACK"))?;
        // Then the kernel does not send our own request back with an error.
        inner.set_cap_ack(true).map_err(failed("NETLINK_CAP_ACK"))?;
        inner.set_netlink_get_strict_chk(true).map_err(failed("NETLINK_GET_STRICT_CHK"))?;
        sockopt::set_socket_timeout(&inner, Timeout::Recv, Some(REPLY_TIMEOUT))
            .map_err(|errno| NetlinkError::Open { step: "SO_RCVTIMEO", source: errno.into() })?;
        Ok(Self {
            inner,
            seq: 0,
            // Not filled: the kernel touches its pages, and most stay untouched.
            received: Vec::with_capacity(RECEIVE_BUFFER),
            send_buffer: SMALL_BUFFER,
            receive_buffer: SMALL_BUFFER,
            overrun: false,
            most: usize::MAX,
            cut: false,
        })
    }

    /// Opens a socket in another namespace; the calling thread enters it and returns.
    pub(crate) fn open_in(netns: &Netns, protocol: isize) -> Result<Self, NetlinkError> {
        within(netns, || Self::open(protocol)).map_err(|error| NetlinkError::Open {
            step: "enter its network namespace",
            source: io::Error::other(error),
        })?
    }

    /// Returns the index of a link in the socket's namespace, without the lock that every other
    /// query about links waits for ([`by_name`]).
    pub(crate) fn link_index(
        &self,
        name: &str,
        operation: &dyn Display,
    ) -> Result<Option<u32>, NetlinkError> {
        by_name::link_index(self.as_fd(), name).map_err(|errno| NetlinkError::Transfer {
            operation: operation.to_string(),
            step: "ask",
            source: errno.into(),
        })
    }

    /// Says whether replies were lost since the last call of this function: the kernel had more to
    /// send than the socket's buffer holds.
    pub(crate) fn take_overrun(&mut self) -> bool {
        std::mem::take(&mut self.overrun)
    }

    /// From now on dumps return at most this many objects.
    pub(crate) fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    /// Says whether a dump since the last call of this function left objects out.
    pub(crate) fn take_cut(&mut self) -> bool {
        std::mem::take(&mut self.cut)
    }

    /// Returns the number by which the kernel names the socket (`nl_pid`, `man 7 netlink`), also in
    /// its messages to listeners about what the socket changed.
    pub(crate) fn port(&self) -> io::Result<u32> {
        let mut address = SocketAddr::new(0, 0);
        self.inner.get_address(&mut address)?;
        Ok(address.port_number())
    }

    /// Returns the next sequence number; zero is reserved for the kernel.
    pub(crate) fn next_seq(&mut self) -> u32 {
        self.seq = self.seq.checked_add(1).unwrap_or(1);
        self.seq
    }

    /// Sends one request and waits for its acknowledgement.
    pub(crate) fn execute(&mut self, request: &Request<'_>) -> Result<(), NetlinkError> {
        let seq = self.next_seq();
        let mut writer = Writer::new();
        writer.message(request.kind, NLM_F_REQUEST | NLM_F_ACK | request.flags, seq, request.body);
        self.send(&writer, 1, request.operation)?;
        let mut outcome = None;
        self.receive(seq, request.operation, writer.bytes(), |_, end| {
            outcome = end;
            outcome.is_some()
        })?;
        outcome.map_or(Ok(()), |outcome| outcome.into_result(request.operation))
    }

    /// Lets a helper send a request ([`crate::linger`]) and waits until it is refused or accepted,
    /// or until a message of one of these multicast groups makes `done` return true. Returns `None`
    /// if such messages may have been lost: then ask whether it is done.
    pub(crate) fn execute_lingering(
        &mut self,
        request: &Request<'_>,
        groups: &[u32],
        done: impl Fn(&Message<'_>) -> bool,
    ) -> Result<Option<()>, NetlinkError> {
        let failed = |step| {
            move |source| NetlinkError::Transfer {
                operation: request.operation.to_string(),
                step,
                source,
            }
        };
        let seq = self.next_seq();
        let mut writer = Writer::new();
        writer.message(request.kind, NLM_F_REQUEST | NLM_F_ACK | request.flags, seq, request.body);
        if let Some(what) = writer.problem() {
            return Err(NetlinkError::Unsendable {
                operation: request.operation.to_string(),
                what,
            });
        }
        for group in groups {
            self.inner.add_membership(*group).map_err(failed("listen"))?;
        }
        let sent = linger::send(&self.inner, writer.bytes()).map_err(io::Error::from);
        let result = sent.map_err(failed("send")).and_then(|mut sent| {
            let mut outcome = None;
            // Messages of the group carry the sequence numbers of the requests that caused them.
            let mut each = |message: &Message<'_>, end: Option<Outcome>| {
                if end.is_some() {
                    outcome = end.filter(|_| message.seq == seq);
                    return outcome.is_some();
                }
                done(message)
            };
            let received = loop {
                match sent.wait(&self.inner, writer.bytes(), REPLY_TIMEOUT) {
                    Ok(()) => {}
                    Err(SysErrno::TIMEDOUT) => break Err(timed_out(request.operation)),
                    Err(errno) => break Err(failed("send")(errno.into())),
                }
                if let Err(error) = self.receive_datagram(request.operation, false) {
                    break Err(error);
                }
                if self.read_datagram(0, writer.bytes(), &mut each) {
                    break Ok(());
                }
            };
            match received {
                Ok(()) => outcome
                    .map_or(Ok(()), |outcome| outcome.into_result(request.operation))
                    .map(Some),
                Err(NetlinkError::Transfer { source, .. }) if is_overrun(&source) => Ok(None),
                Err(error) => Err(error),
            }
        });
        for group in groups {
            self.inner.drop_membership(*group).map_err(failed("leave a multicast group"))?;
        }
        self.discard_received();
        result
    }

    /// Discards what can be received, so that no message of a group is taken for an answer to us.
    fn discard_received(&mut self) {
        loop {
            self.received.clear();
            let buffer = spare_capacity(&mut self.received);
            match rustix::net::recv(&self.inner, buffer, RecvFlags::DONTWAIT) {
                Ok(_) | Err(SysErrno::INTR | SysErrno::NOBUFS) => {}
                Err(_) => return,
            }
        }
    }

    /// Requests one object; from the error number the caller decides whether a refusal means that
    /// it is absent.
    pub(crate) fn get<T>(
        &mut self,
        request: &Request<'_>,
        decode: impl Fn(&Message<'_>) -> Option<T>,
    ) -> Result<Option<T>, NetlinkError> {
        let seq = self.next_seq();
        let mut writer = Writer::new();
        // Not acknowledged: the first reply is the object or the refusal.
        writer.message(request.kind, NLM_F_REQUEST | request.flags, seq, request.body);
        self.send(&writer, 1, request.operation)?;
        let mut found = None;
        let mut outcome = None;
        self.receive(seq, request.operation, writer.bytes(), |message, end| {
            outcome = end;
            if outcome.is_none() {
                found = decode(message);
            }
            true
        })?;
        outcome.map_or(Ok(()), |outcome| outcome.into_result(request.operation))?;
        Ok(found)
    }

    /// Requests all objects, and again from the start if they changed meanwhile ([`DUMP_TRIES`]).
    pub(crate) fn dump<T>(
        &mut self,
        request: &Request<'_>,
        decode: impl Fn(&Message<'_>) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        let (found, more) = self.dump_at_most(request, self.most, |_| 1, decode)?;
        self.cut |= more;
        Ok(found)
    }

    /// Does what [`Socket::dump`] does, but stops keeping objects once the sum of their `count`
    /// reaches `limit`. Also returns whether there were more.
    pub(crate) fn dump_at_most<T>(
        &mut self,
        request: &Request<'_>,
        limit: usize,
        count: impl Fn(&T) -> usize,
        decode: impl Fn(&Message<'_>) -> Option<T>,
    ) -> Result<(Vec<T>, bool), NetlinkError> {
        self.dump_until(request, limit, false, count, decode)
    }

    /// Does what [`Socket::dump_at_most`] does for this many objects, and does not wait for the
    /// rest: the kernel stops at the latest when the socket is closed, so this takes the socket.
    pub(crate) fn dump_first<T>(
        mut self,
        request: &Request<'_>,
        limit: usize,
        decode: impl Fn(&Message<'_>) -> Option<T>,
    ) -> Result<(Vec<T>, bool), NetlinkError> {
        self.dump_until(request, limit, true, |_| 1, decode)
    }

    /// `stops`: the rest is not received, and no other request may follow.
    fn dump_until<T>(
        &mut self,
        request: &Request<'_>,
        limit: usize,
        stops: bool,
        count: impl Fn(&T) -> usize,
        decode: impl Fn(&Message<'_>) -> Option<T>,
    ) -> Result<(Vec<T>, bool), NetlinkError> {
        let mut found = Vec::new();
        let mut keep = |message: Option<&Message<'_>>| {
            let Some(message) = message else {
                found.clear();
                return 0;
            };
            let Some(one) = decode(message) else { return 0 };
            let counted = count(&one);
            found.push(one);
            counted
        };
        let more = self.dump_each(request, limit, stops, &mut keep)?;
        Ok((found, more))
    }

    /// Does what [`Socket::dump_until`] does, whatever the type of the objects: `keep` keeps the one
    /// of a message and counts it, and forgets all without a message.
    fn dump_each(
        &mut self,
        request: &Request<'_>,
        limit: usize,
        stops: bool,
        keep: &mut dyn FnMut(Option<&Message<'_>>) -> usize,
    ) -> Result<bool, NetlinkError> {
        let (begin, mut tries, mut delay) = (Instant::now(), 0, FIRST_DUMP_DELAY);
        loop {
            tries += 1;
            let seq = self.next_seq();
            let mut writer = Writer::new();
            writer.message(
                request.kind,
                NLM_F_REQUEST | NLM_F_DUMP | request.flags,
                seq,
                request.body,
            );
            self.send(&writer, 1, request.operation)?;
            keep(None);
            let (mut counted, mut more) = (0_usize, false);
            let mut interrupted = false;
            let mut outcome = None;
            self.receive(seq, request.operation, writer.bytes(), |message, end| {
                interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                outcome = end;
                if outcome.is_none() && limit <= counted {
                    more = true;
                } else if outcome.is_none() {
                    counted = counted.saturating_add(keep(Some(message)));
                }
                outcome.is_some() || (stops && more)
            })?;
            match outcome {
                // The kernel's other way of reporting an interrupted dump: it cannot be continued
                // (nf_tables).
                Some(Outcome::Refused(SYS_INTR, _)) => interrupted = true,
                Some(outcome) => outcome.into_result(request.operation)?,
                None => {}
            }
            if !interrupted || (stops && more) {
                return Ok(more);
            }
            if tries >= DUMP_TRIES && begin.elapsed() >= DUMP_TIMEOUT {
                let operation = request.operation.to_string();
                return Err(NetlinkError::Interrupted { operation, tries });
            }
            std::thread::sleep(delay);
            delay = (delay * 2).min(LONGEST_DUMP_DELAY);
        }
    }

    /// Sends everything written as one datagram; the caller expects `replies` acknowledgements for
    /// it.
    pub(crate) fn send(
        &mut self,
        writer: &Writer,
        replies: usize,
        operation: &dyn Display,
    ) -> Result<(), NetlinkError> {
        let too_large = |what| NetlinkError::TooLarge { operation: operation.to_string(), what };
        if let Some(what) = writer.problem() {
            return Err(NetlinkError::Unsendable { operation: operation.to_string(), what });
        }
        // The kernel accepts a datagram only if it fits the send buffer, with some space to spare.
        let needed = writer.bytes().len().saturating_add(4096);
        if MAX_SOCKET_BUFFER < needed {
            return Err(too_large("the request"));
        }
        self.grow_send_buffer(needed);
        self.grow_receive_buffer(replies.saturating_mul(ACK_COST));
        let sent = retry_interrupted(|| {
            rustix::net::send(&self.inner, writer.bytes(), SendFlags::empty())
        });
        sent.map(|_| ()).map_err(|errno| NetlinkError::Transfer {
            operation: operation.to_string(),
            step: "send",
            source: errno.into(),
        })
    }

    /// Receives messages of one request until `each` returns true. `each` is called with every
    /// message, and with the outcome for the one that ends the request.
    pub(crate) fn receive(
        &mut self,
        seq: u32,
        operation: &dyn Display,
        sent: &[u8],
        mut each: impl FnMut(&Message<'_>, Option<Outcome>) -> bool,
    ) -> Result<(), NetlinkError> {
        self.receive_from(seq, operation, sent, |message, outcome| {
            message.seq == seq && each(message, outcome)
        })
    }

    /// Receives messages with sequence number `first` or later until `each` returns true.
    pub(crate) fn receive_from(
        &mut self,
        first: u32,
        operation: &dyn Display,
        sent: &[u8],
        mut each: impl FnMut(&Message<'_>, Option<Outcome>) -> bool,
    ) -> Result<(), NetlinkError> {
        loop {
            self.receive_datagram(operation, true)?;
            if self.read_datagram(first, sent, &mut each) {
                return Ok(());
            }
        }
    }

    /// Reads a received datagram, and says whether `each` returned true.
    fn read_datagram(
        &self,
        first: u32,
        sent: &[u8],
        each: &mut dyn FnMut(&Message<'_>, Option<Outcome>) -> bool,
    ) -> bool {
        for message in wire::messages(&self.received) {
            // Replies to an earlier request that we gave up, and duplicate acknowledgements.
            if message.seq < first || message.kind == NLMSG_NOOP {
                continue;
            }
            let outcome = match message.kind {
                NLMSG_ERROR => Some(read_error(&message, sent)),
                NLMSG_DONE => Some(read_done(&message, sent)),
                _ => None,
            };
            if each(&message, outcome) {
                return true;
            }
        }
        false
    }

    /// Receives one datagram. `is_there`: the kernel has already answered, as it does before
    /// sending returns, so a failed receive is tried once more for its reply. If an answer is lost,
    /// it is unknown whether the request was carried out.
    fn receive_datagram(
        &mut self,
        operation: &dyn Display,
        is_there: bool,
    ) -> Result<(), NetlinkError> {
        let failed = |errno: SysErrno| match errno {
            SysErrno::AGAIN => timed_out(operation),
            _ => NetlinkError::Transfer {
                operation: operation.to_string(),
                step: "receive",
                source: errno.into(),
            },
        };
        let mut receive = |flags| {
            retry_interrupted(|| {
                self.received.clear();
                let buffer = spare_capacity(&mut self.received);
                rustix::net::recv(&self.inner, buffer, flags).map(|(_, length)| length)
            })
        };
        let received = receive(RecvFlags::TRUNC);
        let overrun = received == Err(SysErrno::NOBUFS);
        let length = match received {
            Err(error) if is_there => {
                receive(RecvFlags::TRUNC | RecvFlags::DONTWAIT).map_err(|_| failed(error))
            }
            received => received.map_err(failed),
        };
        self.overrun |= overrun;
        let length = length?;
        if self.received.len() < length {
            return Err(NetlinkError::TooLarge {
                operation: operation.to_string(),
                what: "the reply",
            });
        }
        Ok(())
    }

    /// Enlarges the send buffer, past net.core.wmem_max if permitted. A failure shows when sending.
    fn grow_send_buffer(&mut self, needed: usize) {
        if needed <= self.send_buffer {
            return;
        }
        if sockopt::set_socket_send_buffer_size_force(&self.inner, needed).is_err() {
            let _ = sockopt::set_socket_send_buffer_size(&self.inner, needed);
        }
        self.send_buffer = needed;
    }

    /// Enlarges the receive buffer, past net.core.rmem_max if permitted. A failure shows as ENOBUFS
    /// when receiving.
    fn grow_receive_buffer(&mut self, needed: usize) {
        let needed = needed.min(MAX_SOCKET_BUFFER);
        if needed <= self.receive_buffer {
            return;
        }
        if sockopt::set_socket_recv_buffer_size_force(&self.inner, needed).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&self.inner, needed);
        }
        self.receive_buffer = needed;
    }
}

fn timed_out(operation: &dyn Display) -> NetlinkError {
    NetlinkError::TimedOut { operation: operation.to_string(), waited_s: REPLY_TIMEOUT.as_secs() }
}

/// EINTR as the kernel sends it at the end of a dump.
const SYS_INTR: Errno = Errno(4);

/// Whether the kernel had more to send than the socket's buffer holds.
fn is_overrun(error: &io::Error) -> bool {
    error.raw_os_error() == Some(SysErrno::NOBUFS.raw_os_error())
}

fn retry_interrupted<T>(mut call: impl FnMut() -> Result<T, SysErrno>) -> Result<T, SysErrno> {
    loop {
        match call() {
            Err(SysErrno::INTR) => {}
            other => return other,
        }
    }
}

/// `struct nlmsgerr`: the negative error number, the request's header (and, unless capped, all of
/// it), attributes.
fn read_error(message: &Message<'_>, sent: &[u8]) -> Outcome {
    let code = wire::i32_at(message.body, 0).unwrap_or(0);
    if code == 0 {
        return Outcome::Accepted;
    }
    let repeated = match wire::u32_at(message.body, 4) {
        Some(length) if message.flags & NLM_F_CAPPED == 0 => usize::try_from(length).unwrap_or(0),
        _ => wire::MESSAGE_HEADER,
    };
    let attributes = if message.flags & NLM_F_ACK_TLVS == 0 {
        &[]
    } else {
        message.body.get(4_usize.saturating_add(repeated).next_multiple_of(4)..).unwrap_or_default()
    };
    let request = wire::messages(sent)
        .position(|request| request.seq == message.seq)
        .and_then(|position| sent.get(offset_of(sent, position)..));
    Outcome::Refused(
        Errno(code.saturating_neg()),
        read_ext_ack(attributes, request.unwrap_or_default()),
    )
}

/// The end of a dump: an error number that is zero on success, then attributes.
fn read_done(message: &Message<'_>, sent: &[u8]) -> Outcome {
    match wire::i32_at(message.body, 0) {
        Some(code) if code < 0 => {
            let attributes = message.body.get(4..).unwrap_or_default();
            Outcome::Refused(Errno(code.saturating_neg()), read_ext_ack(attributes, sent))
        }
        _ => Outcome::Accepted,
    }
}

/// Returns where the n-th message starts in the sent bytes.
fn offset_of(sent: &[u8], position: usize) -> usize {
    wire::messages(sent)
        .take(position)
        .map(|message| (wire::MESSAGE_HEADER + message.body.len()).next_multiple_of(4))
        .sum()
}

/// `linux include/uapi/linux/netlink.h` NLMSGERR_ATTR_*.
fn read_ext_ack(attributes: &[u8], request: &[u8]) -> Option<ExtAck> {
    const NLMSGERR_ATTR_MSG: u16 = 1;
    const NLMSGERR_ATTR_OFFS: u16 = 2;
    const NLMSGERR_ATTR_MISS_TYPE: u16 = 5;
    const NLA_TYPE_MASK: u16 = 0x3fff;
    let mut ext_ack = ExtAck::default();
    for attribute in wire::attributes(attributes) {
        match attribute.kind {
            NLMSGERR_ATTR_MSG => ext_ack.message = attribute.text(),
            NLMSGERR_ATTR_OFFS => {
                let offset = attribute.u32().and_then(|offset| usize::try_from(offset).ok());
                ext_ack.attribute = offset
                    .and_then(|offset| wire::u16_at(request, offset.checked_add(2)?))
                    .map(|kind| kind & NLA_TYPE_MASK);
            }
            NLMSGERR_ATTR_MISS_TYPE => ext_ack.missing_attribute = attribute.u32(),
            _ => {}
        }
    }
    (ext_ack != ExtAck::default()).then_some(ext_ack)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reply_keeps_the_kernels_words() {
        let mut sent = Writer::new();
        sent.message(16, 5, 6, |_| {});
        sent.message(16, 5, 7, |writer| {
            writer.raw(&[0; 16]);
            writer.put_text(3, "lo");
        });
        let mut reply = Writer::new();
        reply.message(NLMSG_ERROR, NLM_F_CAPPED | NLM_F_ACK_TLVS, 7, |writer| {
            writer.raw(&(-17_i32).to_ne_bytes());
            writer.raw(&[0; 16]);
            writer.put_text(1, "words");
            writer.put_u32(2, 32);
        });
        let message = wire::messages(reply.bytes()).next().unwrap();
        let Outcome::Refused(errno, Some(ext_ack)) = read_error(&message, sent.bytes()) else {
            panic!("not refused");
        };
        assert_eq!(errno, Errno::EXIST);
        assert_eq!(ext_ack.message, "words");
        assert_eq!(ext_ack.attribute, Some(3));
    }

    proptest::proptest! {
        #[test]
        fn reading_any_reply_ends(body: Vec<u8>, flags: u16, sent: Vec<u8>) {
            let message = Message { kind: NLMSG_ERROR, flags, seq: 0, body: &body };
            read_error(&message, &sent);
            read_done(&message, &sent);
        }
    }
}
