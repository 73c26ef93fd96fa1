//! What rules do to single packets: what `nft monitor trace` shows (nftables wiki, "Ruleset
//! debug/tracing").
//!
//! A [`FlowTrace`] has tables of its own in one namespace. Their only rules mark the packets of the
//! given [`Flow`]s and of their answers, before any other rule sees them; from then on the kernel
//! reports what each rule does to these packets, and to no others. The mark is in the kernel's
//! description of the packet, not in the packet, and ends when the packet leaves the namespace.
//!
//! The tables belong to the socket: the kernel removes them with it, also when the process is
//! killed.
//!
//! ```no_run
//! use kernel::nft::trace::{Flow, FlowTrace, Protocol};
//! use kernel::nft::{Family, Verdict};
//!
//! let flow = Flow {
//!     protocol: Protocol::Tcp,
//!     source: "10.88.0.2".parse()?,
//!     source_port: 40_000,
//!     destination: "192.0.2.1".parse()?,
//!     destination_port: 80,
//! };
//! let mut trace = FlowTrace::open("example", &[Family::Inet], &[flow])?;
//! // … packets …
//! for judged in trace.heard()? {
//!     if judged.verdict == Some(Verdict::Drop) {
//!         println!("{} {} drops it", judged.table, judged.chain);
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::{Socket, SocketAddr};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, sockopt};

use super::expr_encode::{NFTA_VERDICT_CHAIN, NFTA_VERDICT_CODE};
use super::socket::NETLINK_NETFILTER;
use super::{
    Batch, CmpOp, Expr, Family, Hook, HookPoint, MetaKey, NFGENMSG, NewChain, NewRule, NftSocket,
    PayloadBase, Register, SUBSYSTEM, TableRef, Value, Verdict, field,
};
use crate::netlink::NetlinkError;
use crate::nflog::Packet;
use crate::wire::{self, Attribute, Message};

/// `linux include/uapi/linux/netfilter/nfnetlink.h` NFNLGRP_NFTRACE.
const GROUP: u32 = 9;
/// `linux include/uapi/linux/netfilter/nf_tables.h` NFT_MSG_TRACE.
const TRACE: u16 = SUBSYSTEM << 8 | 17;
/// NFT_META_NFTRACE.
const MARK: MetaKey = MetaKey::Other(12);
/// Before all priorities that have names: before packets are put together, translated or dropped.
const FIRST: i32 = -450;
/// Just after the kernel gives an answer its sender's address back (NF_IP_PRI_NAT_DST): an answer
/// whose port was translated cannot be recognised before.
const TRANSLATED: i32 = -99;

/// NFTA_TRACE_*.
mod attribute {
    pub(super) const TABLE: u16 = 1;
    pub(super) const CHAIN: u16 = 2;
    pub(super) const RULE_HANDLE: u16 = 3;
    pub(super) const VERDICT: u16 = 5;
    pub(super) const ID: u16 = 6;
    pub(super) const NETWORK_HEADER: u16 = 8;
    pub(super) const TRANSPORT_HEADER: u16 = 9;
    pub(super) const IIF: u16 = 10;
    pub(super) const OIF: u16 = 12;
    pub(super) const POLICY: u16 = 16;
}

/// How much may be queued for us: the traces of a few hundred packets. Best effort.
const QUEUE: usize = 4 << 20;
/// A message has at most headers, names and numbers.
const MESSAGE: usize = 16 * 1024;
/// The most messages that one call returns, so that another program's trace does not detain the
/// caller.
const MOST: usize = 20_000;

/// RFC 792, RFC 4443 §4: the types of an echo request and of its reply.
const ECHO: [u8; 2] = [8, 0];
const ECHO_6: [u8; 2] = [128, 129];

/// A protocol above IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// Echo requests of ICMP or ICMPv6, and their replies.
    Echo,
}

/// The packets of one exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// The protocol.
    pub protocol: Protocol,
    /// The address that begins.
    pub source: IpAddr,
    /// Its port, or the identifier of its echo requests.
    pub source_port: u16,
    /// The address that answers.
    pub destination: IpAddr,
    /// Its port; 0 for an echo.
    pub destination_port: u16,
}

/// What a rule, or the policy of a chain, did to a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceStep {
    /// The table.
    pub table: TableRef,
    /// The chain.
    pub chain: String,
    /// The rule's handle; `None`: the end of the chain.
    pub rule: Option<u64>,
    /// What was decided; `None`: the end of a chain that decides nothing.
    pub verdict: Option<Verdict>,
    /// The index of the link it came in by.
    pub ifindex_in: Option<u32>,
    /// The index of the link it was to leave by.
    pub ifindex_out: Option<u32>,
    /// The packet, as it was when its way through the base chain began; `None` if the kernel did
    /// not report it.
    pub packet: Option<Packet>,
    /// The identifier of an echo request or reply.
    pub identifier: Option<u16>,
}

/// Traces packets in one namespace.
///
/// # Privileges
/// CAP_NET_ADMIN.
///
/// # Kernel
/// 5.12.
#[derive(Debug)]
pub struct FlowTrace {
    listener: Socket,
    /// It owns the tables.
    _owner: NftSocket,
    name: String,
    buffer: Vec<u8>,
    /// What the kernel reports once for each pass of a packet through a base chain, by the number
    /// of that pass.
    heads: BTreeMap<u32, Head>,
}

/// What only the first message about a packet contains.
#[derive(Debug, Clone, Copy, Default)]
struct Head {
    ifindex_in: Option<u32>,
    ifindex_out: Option<u32>,
    packet: Option<Packet>,
    identifier: Option<u16>,
}

impl FlowTrace {
    /// Begins to trace these flows, and their answers, in the calling thread's namespace, with a
    /// table of this name in each of these families: [`Family::Inet`], and [`Family::Bridge`] for
    /// packets that a bridge forwards.
    ///
    /// # Errors
    /// Those of [`NetlinkError`]: the kernel is too old, or has no such family; a table of the name
    /// exists. Nothing is left then.
    pub fn open(name: &str, families: &[Family], flows: &[Flow]) -> Result<Self, NetlinkError> {
        let listener = listen()?;
        let mut owner = NftSocket::open()?;
        owner.commit(&marking(name, families, flows)).map_err(|error| error.source)?;
        Ok(FlowTrace {
            listener,
            _owner: owner,
            name: name.to_owned(),
            buffer: Vec::with_capacity(MESSAGE),
            heads: BTreeMap::new(),
        })
    }

    /// Returns what was done to packets since the last call, without waiting. It includes the
    /// traces of other programs, but not our own tables. What does not fit the queue is lost.
    ///
    /// # Errors
    /// [`NetlinkError::Transfer`].
    pub fn heard(&mut self) -> Result<Vec<TraceStep>, NetlinkError> {
        let mut found = Vec::new();
        while found.len() < MOST {
            self.buffer.clear();
            let buffer = spare_capacity(&mut self.buffer);
            match rustix::net::recv(&self.listener, buffer, RecvFlags::DONTWAIT) {
                Ok(_) => {
                    let heads = &mut self.heads;
                    let judged = wire::messages(&self.buffer)
                        .filter_map(|message| decode(&message, heads))
                        .filter(|judged| judged.table.name != self.name);
                    found.extend(judged);
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR | Errno::NOBUFS) => {}
                Err(errno) => {
                    return Err(NetlinkError::Transfer {
                        operation: "listen to the packet filter's trace".to_owned(),
                        step: "receive",
                        source: io::Error::from(errno),
                    });
                }
            }
        }
        Ok(found)
    }
}

impl AsFd for FlowTrace {
    /// The descriptor to poll.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl TraceStep {
    /// Says whether the packet ends here.
    #[must_use]
    pub fn is_drop(&self) -> bool {
        self.verdict == Some(Verdict::Drop)
    }

    /// Says whether the packet is one of a flow, as [`Flow::way_of`] does.
    #[must_use]
    pub fn of_flow(&self, flow: &Flow) -> Option<bool> {
        flow.way_of(self.packet.as_ref()?, self.identifier)
    }
}

impl Flow {
    /// Says whether a packet is one of this flow on its way there (`Some(false)`) or back
    /// (`Some(true)`); `identifier` is that of an echo request or reply. Translation may have
    /// changed one end of the packet, except for an echo: for an echo, ask about each flow that
    /// translation may make of it.
    #[must_use]
    pub fn way_of(&self, packet: &Packet, identifier: Option<u16>) -> Option<bool> {
        let back = match self.protocol {
            Protocol::Echo => {
                if identifier? != self.source_port {
                    return None;
                }
                let types = if self.source.is_ipv4() { ECHO } else { ECHO_6 };
                types.iter().position(|kind| packet.icmp == Some((*kind, 0)))? == 1
            }
            protocol => {
                let (from, to) =
                    packet.ports.filter(|_| packet.protocol == protocol.number(self))?;
                match (from == self.source_port, to == self.source_port) {
                    (true, false) => false,
                    (false, true) => true,
                    (true, true) => to_source(packet, self),
                    (false, false) => return None,
                }
            }
        };
        let ends = match back {
            false => [packet.source, packet.destination],
            true => [packet.destination, packet.source],
        };
        let same = [ends[0] == self.source, ends[1] == self.destination];
        let is_one = match self.protocol {
            // A process has one identifier for all its echo requests.
            Protocol::Echo => same == [true, true],
            _ => same != [false, false],
        };
        is_one.then_some(back)
    }
}

/// Both ends have the same port.
fn to_source(packet: &Packet, flow: &Flow) -> bool {
    packet.destination == flow.source || packet.source == flow.destination
}

impl Protocol {
    pub(crate) fn number(self, flow: &Flow) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Echo if flow.source.is_ipv4() => 1,
            Protocol::Echo => 58,
        }
    }
}

/// Opens a socket that receives traces.
fn listen() -> Result<Socket, NetlinkError> {
    let failed = |step| move |source| NetlinkError::Open { step, source };
    let mut socket = Socket::new(NETLINK_NETFILTER).map_err(failed("socket"))?;
    socket.bind(&SocketAddr::new(0, 0)).map_err(failed("bind"))?;
    socket.add_membership(GROUP).map_err(failed("NETLINK_ADD_MEMBERSHIP"))?;
    // Only privileged processes may exceed the limit; otherwise the limit must do.
    let _ = sockopt::set_socket_recv_buffer_size_force(&socket, QUEUE);
    Ok(socket)
}

/// Returns the transaction that makes the tables.
fn marking(name: &str, families: &[Family], flows: &[Flow]) -> Batch {
    let mut batch = Batch::new();
    for family in families {
        let table = TableRef::new(*family, name);
        batch.add_own_table(&table);
        let chains: &[(&str, HookPoint, i32)] = match family {
            // What the host sends by a bridge is marked before it reaches the bridge.
            Family::Bridge => &[("prerouting", HookPoint::Prerouting, FIRST)],
            _ => &[
                ("prerouting", HookPoint::Prerouting, FIRST),
                ("translated", HookPoint::Prerouting, TRANSLATED),
                ("output", HookPoint::Output, FIRST),
            ],
        };
        for (chain, point, priority) in chains {
            let hook = Hook::filter(*point, *priority);
            batch.add_chain(NewChain::base(&table, *chain, hook));
            for flow in flows {
                batch.add_rule(rule(&table, chain, flow, false));
                batch.add_rule(rule(&table, chain, flow, true));
            }
        }
    }
    batch
}

/// Returns the rule that marks the packets of a flow, or its answers.
fn rule(table: &TableRef, chain: &str, flow: &Flow, back: bool) -> NewRule {
    let mut ends = [(flow.source, flow.source_port), (flow.destination, flow.destination_port)];
    if back {
        ends.reverse();
    }
    let [(source, source_port), (destination, destination_port)] = ends;
    let (source_field, destination_field) = match source {
        IpAddr::V4(_) => (field::ip_saddr(), field::ip_daddr()),
        IpAddr::V6(_) => (field::ip6_saddr(), field::ip6_daddr()),
    };
    let rule = NewRule::new(table, chain)
        .is(source_field, source)
        .is(destination_field, destination)
        .is(field::l4proto(), Value::Protocol(flow.protocol.number(flow)));
    let rule = match flow.protocol {
        Protocol::Echo => {
            let types = if flow.source.is_ipv4() { ECHO } else { ECHO_6 };
            let kind = types[usize::from(back)];
            let identifier = flow.source_port.to_be_bytes().to_vec();
            header_is(header_is(rule, 0, vec![kind]), 4, identifier)
        }
        Protocol::Tcp | Protocol::Udp => rule
            .is(field::th_sport(), Value::Port(source_port))
            .is(field::th_dport(), Value::Port(destination_port)),
    };
    rule.expr(Expr::Immediate { register: Register::FIRST, data: vec![1] })
        .expr(Expr::MetaSet { key: MARK, register: Register::FIRST })
}

/// Goes on if the header above IP has these bytes.
fn header_is(rule: NewRule, offset: u32, data: Vec<u8>) -> NewRule {
    let register = Register::FIRST;
    let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
    rule.expr(Expr::Payload { base: PayloadBase::Transport, offset, len, register })
        .expr(Expr::Cmp { op: CmpOp::Eq, register, data })
}

/// Reads a message, and remembers what only the first message about a packet contains.
fn decode(message: &Message<'_>, heads: &mut BTreeMap<u32, Head>) -> Option<TraceStep> {
    if message.kind != TRACE {
        return None;
    }
    let family = Family::from_number(*message.body.first()?)?;
    let mut judged = TraceStep {
        table: TableRef::new(family, ""),
        chain: String::new(),
        rule: None,
        verdict: None,
        ifindex_in: None,
        ifindex_out: None,
        packet: None,
        identifier: None,
    };
    let (mut id, mut head) = (None, Head::default());
    let mut headers: [&[u8]; 2] = [&[], &[]];
    for attribute in message.attributes(NFGENMSG) {
        match attribute.kind {
            attribute::TABLE => judged.table.name = attribute.text(),
            attribute::CHAIN => judged.chain = attribute.text(),
            attribute::RULE_HANDLE => judged.rule = attribute.u64_be(),
            attribute::VERDICT => judged.verdict = verdict(&attribute),
            attribute::POLICY => {
                let code = attribute.i32_be()?;
                judged.verdict = Some(Verdict::from_code(code, None));
            }
            attribute::ID => id = attribute.u32_be(),
            attribute::NETWORK_HEADER => headers[0] = attribute.value,
            attribute::TRANSPORT_HEADER => headers[1] = attribute.value,
            attribute::IIF => head.ifindex_in = attribute.u32_be(),
            attribute::OIF => head.ifindex_out = attribute.u32_be(),
            _ => {}
        }
    }
    let id = id?;
    if !headers[0].is_empty() {
        head.packet = Packet::read(&headers.concat());
        head.identifier = head.packet.and_then(|packet| identifier(&packet, headers[1]));
        heads.insert(id, head);
    }
    let head = heads.get(&id).copied().unwrap_or(head);
    judged.ifindex_in = head.ifindex_in;
    judged.ifindex_out = head.ifindex_out;
    judged.packet = head.packet;
    judged.identifier = head.identifier;
    Some(judged)
}

/// Returns the identifier of an echo request or reply; `header` is the one above IP.
pub(crate) fn identifier(packet: &Packet, header: &[u8]) -> Option<u16> {
    let (kind, _) = packet.icmp?;
    let is_echo = ECHO.contains(&kind) || ECHO_6.contains(&kind);
    let bytes = header.get(4..6).filter(|_| is_echo)?;
    bytes.try_into().ok().map(u16::from_be_bytes)
}

fn verdict(attribute: &Attribute<'_>) -> Option<Verdict> {
    let code = attribute.find(NFTA_VERDICT_CODE)?.i32_be()?;
    let chain = attribute.find(NFTA_VERDICT_CHAIN).map(|chain| chain.text());
    Some(Verdict::from_code(code, chain))
}

#[cfg(test)]
mod tests;
