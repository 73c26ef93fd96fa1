//! Packets that rules of the packet filter log to a group (nflog).
//!
//! A rule with `log group` ([`NewRule::log_to_group`](crate::nft::NewRule::log_to_group)) passes
//! the beginning of a packet, with a prefix, to the one socket that is bound to the group. The
//! kernel does not wait for the listener: what does not fit into the socket's queue is lost, and
//! counted.
//!
//! ```no_run
//! use kernel::nflog::{NflogSocket, Settings};
//!
//! let mut socket = NflogSocket::open(7, &Settings::default())?;
//! // … once its descriptor is readable:
//! let heard = socket.heard()?;
//! for logged in &heard.packets {
//!     if let Some(packet) = logged.packet() {
//!         println!("{}{} to {}", logged.prefix, packet.source, packet.destination);
//!     }
//! }
//! # Ok::<(), kernel::NetlinkError>(())
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::buffer::spare_capacity;
use rustix::io::Errno as SysErrno;
use rustix::net::{RecvFlags, sockopt};

use crate::netlink::{Errno, NetlinkError, Request, Socket};
use crate::netns::Netns;
use crate::nft::{NFGENMSG, nfgenmsg};
use crate::wire::{self, Attribute, Message, Writer};

mod packet;

pub use packet::Packet;

/// `linux include/uapi/linux/netlink.h` NETLINK_NETFILTER.
const NETLINK_NETFILTER: isize = 12;
/// `linux include/uapi/linux/netfilter/nfnetlink.h` NFNL_SUBSYS_ULOG.
const SUBSYSTEM: u16 = 4;
/// `linux include/uapi/linux/netfilter/nfnetlink_log.h`: NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_*.
const LOG_PACKET: u16 = SUBSYSTEM << 8;
const LOG_CONFIG: u16 = SUBSYSTEM << 8 | 1;
const NFULNL_CFG_CMD_BIND: u8 = 1;
const NFULNL_COPY_PACKET: u8 = 2;
/// Each packet has a number, without gaps.
const NFULNL_CFG_F_SEQ: u16 = 1;
const NFULA_CFG_CMD: u16 = 1;
const NFULA_CFG_MODE: u16 = 2;
const NFULA_CFG_TIMEOUT: u16 = 4;
const NFULA_CFG_QTHRESH: u16 = 5;
const NFULA_CFG_FLAGS: u16 = 6;
const NFULA_PACKET_HDR: u16 = 1;
const NFULA_TIMESTAMP: u16 = 3;
const NFULA_IFINDEX_INDEV: u16 = 4;
const NFULA_IFINDEX_OUTDEV: u16 = 5;
const NFULA_PAYLOAD: u16 = 9;
const NFULA_PREFIX: u16 = 10;
const NFULA_SEQ: u16 = 12;

/// The largest message: the kernel's own bound of its buffer (NFULNL_NLBUFSIZ_MAX).
const MESSAGE: usize = 128 * 1024;
/// The most packets that one call returns, so that a flood does not detain the caller.
const MOST_AT_ONCE: usize = 4096;

/// How packets are passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How many bytes of each packet, if the rule does not say less.
    pub copy: u32,
    /// How many bytes may be queued for us. Best effort.
    pub queue: usize,
    /// How long the kernel may collect packets before it passes them, in hundredths of a second; 0
    /// passes each at once.
    pub delay: Duration,
}

impl Default for Settings {
    /// The headers of packets, some ten thousand of them, ten times a second.
    fn default() -> Self {
        Settings { copy: 128, queue: 4 << 20, delay: Duration::from_millis(100) }
    }
}

/// A packet that was logged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LoggedPacket {
    /// What the rule says.
    pub prefix: String,
    /// When the packet arrived, if the kernel took the time.
    pub time: Option<SystemTime>,
    /// The hook, NF_INET_*: 2 is forward.
    pub hook: Option<u8>,
    /// The link it came in by.
    pub ifindex_in: Option<u32>,
    /// The link it was to leave by.
    pub ifindex_out: Option<u32>,
    /// Its beginning, from the IP header on.
    pub payload: Vec<u8>,
}

impl LoggedPacket {
    /// Reads its headers; `None` if it is not an IP packet or too little of it is there.
    #[must_use]
    pub fn packet(&self) -> Option<Packet> {
        Packet::read(&self.payload)
    }
}

/// What came in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogBatch {
    /// The packets, in their order.
    pub packets: Vec<LoggedPacket>,
    /// How many were lost before the last of these and after those of the last call.
    pub lost: u64,
    /// Whether the queue was full. How many were lost then is known with the next packet that
    /// arrives.
    pub overrun: bool,
}

/// A socket bound to a group. It keeps the namespace it was opened in, and does not block.
///
/// # Privileges
/// CAP_NET_ADMIN in the user namespace that owns the network namespace.
///
/// # Kernel
/// CONFIG_NETFILTER_NETLINK_LOG.
#[derive(Debug)]
pub struct NflogSocket {
    socket: Socket,
    buffer: Vec<u8>,
    expected: u32,
}

/// Says whether the kernel has nflog. If that is a module, the kernel loads it.
///
/// # Privileges
/// As [`NflogSocket`].
///
/// # Errors
/// Those of [`NetlinkError`]: then it is not known.
pub fn is_there() -> Result<bool, NetlinkError> {
    knows(SUBSYSTEM)
}

/// Says whether the kernel knows messages of a part of netfilter's netlink.
///
/// It refuses nflog's first message, which only the kernel sends, with one error if it has nflog,
/// and with another if it does not (linux net/netfilter/nfnetlink.c `nfnetlink_rcv_msg`,
/// nfnetlink_log.c `nfulnl_recv_unsupp`).
fn knows(subsystem: u16) -> Result<bool, NetlinkError> {
    let mut socket = Socket::open(NETLINK_NETFILTER)?;
    let body = |writer: &mut Writer| writer.raw(&nfgenmsg(0, 0));
    let operation = format_args!("ask whether there is netfilter's part {subsystem}");
    let request = Request { operation: &operation, kind: subsystem << 8, flags: 0, body: &body };
    match socket.execute(&request) {
        Ok(()) => Ok(true),
        Err(error) => match error.errno() {
            Some(Errno::INVAL) => Ok(false),
            Some(Errno::PERM) | None => Err(error),
            Some(_) => Ok(true),
        },
    }
}

impl NflogSocket {
    /// Binds a group in the calling thread's namespace.
    ///
    /// # Errors
    /// Those of [`NetlinkError`]; EPERM also if another socket is bound to the group.
    pub fn open(group: u16, settings: &Settings) -> Result<Self, NetlinkError> {
        Socket::open(NETLINK_NETFILTER).and_then(|socket| Self::bind(socket, group, settings))
    }

    /// Binds a group in another namespace, without leaving the thread there.
    ///
    /// # Errors
    /// As [`NflogSocket::open`].
    pub fn open_in(netns: &Netns, group: u16, settings: &Settings) -> Result<Self, NetlinkError> {
        Socket::open_in(netns, NETLINK_NETFILTER)
            .and_then(|socket| Self::bind(socket, group, settings))
    }

    fn bind(mut socket: Socket, group: u16, settings: &Settings) -> Result<Self, NetlinkError> {
        // Only privileged processes may exceed the limit; otherwise the limit must do.
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, settings.queue);
        let body = |writer: &mut Writer| settings.encode(group, writer);
        let operation = format_args!("listen to group {group} of nflog");
        let request = Request { operation: &operation, kind: LOG_CONFIG, flags: 0, body: &body };
        socket.execute(&request)?;
        Ok(NflogSocket { socket, buffer: Vec::with_capacity(MESSAGE), expected: 0 })
    }

    /// Returns what is pending without waiting; if that is a lot, a part of it.
    ///
    /// A loss is no error: it is counted.
    ///
    /// # Errors
    /// [`NetlinkError::Transfer`].
    pub fn heard(&mut self) -> Result<LogBatch, NetlinkError> {
        let mut heard = LogBatch::default();
        while heard.packets.len() < MOST_AT_ONCE {
            self.buffer.clear();
            let buffer = spare_capacity(&mut self.buffer);
            match rustix::net::recv(&self.socket, buffer, RecvFlags::DONTWAIT) {
                Ok(_) => {
                    let found = wire::messages(&self.buffer).filter_map(|found| decode(&found));
                    for (number, logged) in found {
                        if let Some(number) = number {
                            heard.lost += u64::from(number.wrapping_sub(self.expected));
                            self.expected = number.wrapping_add(1);
                        }
                        heard.packets.push(logged);
                    }
                }
                Err(SysErrno::AGAIN) => break,
                Err(SysErrno::INTR) => {}
                Err(SysErrno::NOBUFS) => heard.overrun = true,
                Err(errno) => {
                    return Err(NetlinkError::Transfer {
                        operation: "listen to nflog".to_owned(),
                        step: "receive",
                        source: io::Error::from(errno),
                    });
                }
            }
        }
        Ok(heard)
    }
}

impl AsFd for NflogSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Settings {
    /// Writes the request; the kernel binds first and then reads the rest.
    fn encode(&self, group: u16, writer: &mut Writer) {
        // In `struct nfgenmsg`, the resource is the group.
        writer.raw(&nfgenmsg(0, group));
        writer.put_u8(NFULA_CFG_CMD, NFULNL_CFG_CMD_BIND);
        // `struct nfulnl_msg_config_mode`: 6 bytes.
        let mut mode = self.copy.to_be_bytes().to_vec();
        mode.extend([NFULNL_COPY_PACKET, 0]);
        writer.put(NFULA_CFG_MODE, &mode);
        let hundredths = u32::try_from(self.delay.as_millis() / 10).unwrap_or(u32::MAX);
        if hundredths == 0 {
            writer.put_u32_be(NFULA_CFG_QTHRESH, 1);
        } else {
            writer.put_u32_be(NFULA_CFG_TIMEOUT, hundredths);
        }
        writer.put(NFULA_CFG_FLAGS, &NFULNL_CFG_F_SEQ.to_be_bytes());
    }
}

/// Reads a message, with the packet's number.
pub(crate) fn decode(message: &Message<'_>) -> Option<(Option<u32>, LoggedPacket)> {
    if message.kind != LOG_PACKET {
        return None;
    }
    let (mut logged, mut number) = (LoggedPacket::default(), None);
    for attribute in message.attributes(NFGENMSG) {
        match attribute.kind {
            // `struct nfulnl_msg_packet_hdr`: the EtherType, the hook.
            NFULA_PACKET_HDR => logged.hook = attribute.value.get(2).copied(),
            NFULA_TIMESTAMP => logged.time = time(&attribute),
            NFULA_IFINDEX_INDEV => logged.ifindex_in = attribute.u32_be(),
            NFULA_IFINDEX_OUTDEV => logged.ifindex_out = attribute.u32_be(),
            NFULA_PAYLOAD => logged.payload = attribute.value.to_vec(),
            NFULA_PREFIX => logged.prefix = attribute.text(),
            NFULA_SEQ => number = attribute.u32_be(),
            _ => {}
        }
    }
    Some((number, logged))
}

/// `struct nfulnl_msg_packet_timestamp`: seconds and microseconds.
fn time(attribute: &Attribute<'_>) -> Option<SystemTime> {
    let number = |at: usize| {
        let bytes = attribute.value.get(at..at + 8)?;
        bytes.try_into().ok().map(u64::from_be_bytes)
    };
    let since = Duration::from_secs(number(0)?).checked_add(Duration::from_micros(number(8)?))?;
    UNIX_EPOCH.checked_add(since)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `nfnetlink_log.h` describes it.
    #[test]
    fn a_message_is_read() {
        let mut writer = Writer::new();
        writer.raw(&nfgenmsg(2, 7));
        writer.put(NFULA_PACKET_HDR, &[0x08, 0x00, 2, 0]);
        writer.put_text(NFULA_PREFIX, "nwt-in ");
        writer.put_u32_be(NFULA_IFINDEX_INDEV, 4);
        writer.put_u32_be(NFULA_IFINDEX_OUTDEV, 5);
        let mut stamp = 1_800_000_000_u64.to_be_bytes().to_vec();
        stamp.extend(250_000_u64.to_be_bytes());
        writer.put(NFULA_TIMESTAMP, &stamp);
        writer.put_u32_be(NFULA_SEQ, 9);
        writer.put(NFULA_PAYLOAD, b"payload");
        let body = writer.bytes();
        let read = decode(&Message { kind: LOG_PACKET, flags: 0, seq: 0, body }).unwrap();
        let expected = LoggedPacket {
            prefix: "nwt-in ".to_owned(),
            time: Some(UNIX_EPOCH + Duration::from_millis(1_800_000_000_250)),
            hook: Some(2),
            ifindex_in: Some(4),
            ifindex_out: Some(5),
            payload: b"payload".to_vec(),
        };
        assert_eq!(read, (Some(9), expected));
        assert_eq!(decode(&Message { kind: LOG_CONFIG, flags: 0, seq: 0, body }), None);
    }

    /// The numbers of parts end at 12.
    #[test]
    fn a_part_that_no_kernel_has_is_not_there() {
        let asked = std::thread::spawn(|| {
            crate::netns::unshare_net().unwrap();
            (is_there().unwrap(), knows(200).unwrap())
        });
        assert_eq!(asked.join().unwrap(), (true, false));
    }

    proptest::proptest! {
        #[test]
        fn reading_anything_ends(body: Vec<u8>, stamp: Vec<u8>, payload: Vec<u8>) {
            decode(&Message { kind: LOG_PACKET, flags: 0, seq: 0, body: &body });
            let mut writer = Writer::new();
            writer.raw(&nfgenmsg(2, 7));
            writer.put(NFULA_TIMESTAMP, &stamp);
            writer.put(NFULA_PAYLOAD, &payload);
            let message = Message { kind: LOG_PACKET, flags: 0, seq: 0, body: writer.bytes() };
            let (_, logged) = decode(&message).unwrap();
            let _ = logged.packet();
            proptest::prop_assert_eq!(logged.payload, payload);
        }
    }
}
