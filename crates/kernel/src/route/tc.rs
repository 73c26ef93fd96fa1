//! Traffic control: queueing disciplines and filters of links (`man 8 tc`).
//!
//! Only what shaping a container needs: a token bucket ([`Tbf`]), fair queueing inside it
//! ([`FqCodel`]), the hook for incoming traffic ([`QdiscKind::Ingress`]) and a filter that sends
//! everything to another link ([`Redirect`]). Of other disciplines only the name is read, and what
//! they lose ([`QdiscInfo::loss`]), and of htb its classes ([`ClassInfo`]); of other filters,
//! whether they drop ([`FilterInfo::drops`]).
//!
//! ```no_run
//! use kernel::route::{Change, Qdisc, QdiscKind, RouteSocket, Tbf, TcHandle};
//!
//! let mut netlink = RouteSocket::open()?;
//! let link = netlink.link_by_name("veth1")?.ok_or("no such link")?;
//! let tbf = Tbf { rate: 2_500_000, burst: 25_000, limit: 60_000, peak: None };
//! netlink.apply(&[Change::ReplaceQdisc(Qdisc {
//!     ifindex: link.index,
//!     handle: TcHandle::new(1, 0),
//!     parent: TcHandle::ROOT,
//!     kind: QdiscKind::Tbf(tbf),
//! })])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod class;
mod filter;
mod tbf;

use std::fmt;
use std::time::Duration;

pub use class::ClassInfo;
pub use filter::{FilterInfo, Redirect};
pub use tbf::{Peak, Tbf, TickRate};

pub(crate) use class::RTM_GETTCLASS;
pub(crate) use filter::{RTM_DELTFILTER, RTM_GETTFILTER, RTM_NEWTFILTER, encode_dump};

use crate::wire::{self, Attribute, Message, Writer};

/// `linux include/uapi/linux/rtnetlink.h`.
pub(crate) const RTM_NEWQDISC: u16 = 36;
pub(crate) const RTM_DELQDISC: u16 = 37;
pub(crate) const RTM_GETQDISC: u16 = 38;
/// Size of `struct tcmsg`.
const TCMSG: usize = 20;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_STATS2: u16 = 7;
/// `linux include/uapi/linux/gen_stats.h`.
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
/// `linux include/uapi/linux/pkt_sched.h`.
const TCA_FQ_CODEL_TARGET: u16 = 1;
const TCA_FQ_CODEL_LIMIT: u16 = 2;
const TCA_FQ_CODEL_INTERVAL: u16 = 3;
const TCA_FQ_CODEL_MEMORY_LIMIT: u16 = 9;
const TCA_NETEM_LOSS: u16 = 5;
const TCA_NETEM_LATENCY64: u16 = 10;
/// Size of `struct tc_netem_qopt`, which attributes follow, and where its `loss` is.
const NETEM_QOPT: usize = 24;
const NETEM_QOPT_LOSS: usize = 8;

/// The number of a queueing discipline or of a parent in one: a major and a minor half, `1:` or
/// `ffff:fff1`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TcHandle(pub u32);

impl TcHandle {
    /// No number: the kernel chooses one, or any matches.
    pub const UNSPECIFIED: Self = Self(0);
    /// The parent of the discipline for everything that leaves a link (TC_H_ROOT).
    pub const ROOT: Self = Self(0xffff_ffff);
    /// The parent of the discipline for everything that comes in (TC_H_INGRESS, also TC_H_CLSACT).
    pub const INGRESS: Self = Self(0xffff_fff1);
    /// The discipline in that place.
    pub const INGRESS_QDISC: Self = Self(0xffff_0000);
    /// The parent of filters for incoming packets (TC_H_CLSACT with TC_H_MIN_INGRESS).
    pub const INGRESS_FILTERS: Self = Self(0xffff_fff2);
    /// The parent of filters for outgoing packets (TC_H_CLSACT with TC_H_MIN_EGRESS).
    pub const EGRESS_FILTERS: Self = Self(0xffff_fff3);

    /// Combines two halves to a number.
    #[must_use]
    pub const fn new(major: u16, minor: u16) -> Self {
        let [a, b] = major.to_be_bytes();
        let [c, d] = minor.to_be_bytes();
        Self(u32::from_be_bytes([a, b, c, d]))
    }
}

impl fmt::Display for TcHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ROOT => f.write_str("root"),
            Self(number) if number & 0xffff == 0 => write!(f, "{:x}:", number >> 16),
            Self(number) => write!(f, "{:x}:{:x}", number >> 16, number & 0xffff),
        }
    }
}

impl fmt::Debug for TcHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcHandle({self})")
    }
}

/// A queueing discipline of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qdisc {
    /// The link.
    pub ifindex: u32,
    /// Its number.
    pub handle: TcHandle,
    /// Its place.
    pub parent: TcHandle,
    /// Its kind and settings.
    pub kind: QdiscKind,
}

/// The kind of a queueing discipline, with its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum QdiscKind {
    /// A token bucket. Kernel: CONFIG_NET_SCH_TBF.
    Tbf(Tbf),
    /// Fair queueing that keeps queues short. Kernel: CONFIG_NET_SCH_FQ_CODEL.
    FqCodel(FqCodel),
    /// The hook for incoming traffic. Kernel: CONFIG_NET_SCH_INGRESS.
    Ingress,
    /// The hook for incoming and outgoing traffic. Kernel: CONFIG_NET_SCH_INGRESS.
    Clsact,
    /// One unknown to this code, by the kernel's name. It cannot be created.
    Other(String),
}

/// Settings of fq_codel; `None` is left to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FqCodel {
    /// How long packets may wait permanently, in microseconds (TCA_FQ_CODEL_TARGET).
    pub target_us: Option<u32>,
    /// The time over which that is measured, in microseconds (TCA_FQ_CODEL_INTERVAL).
    pub interval_us: Option<u32>,
    /// How many packets may wait (TCA_FQ_CODEL_LIMIT).
    pub limit: Option<u32>,
    /// How much memory they may take, in bytes (TCA_FQ_CODEL_MEMORY_LIMIT).
    pub memory_bytes: Option<u32>,
}

/// A queueing discipline as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QdiscInfo {
    /// The discipline.
    pub qdisc: Qdisc,
    /// Its counters.
    pub stats: QdiscStats,
    /// The share of the packets that it loses on purpose, of 2^32: netem's `loss`; 1 for one of
    /// netem's loss models; all for `blackhole` and for a queue in which nothing may wait.
    pub loss: u32,
    /// How long it holds each packet on purpose: netem's `delay`.
    pub delay: Duration,
    /// The class of what no filter picks: htb's `default`. It may not exist.
    pub default_class: Option<TcHandle>,
}

/// Counters of a queueing discipline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct QdiscStats {
    /// Bytes let through.
    pub bytes: u64,
    /// Packets let through.
    pub packets: u64,
    /// Packets dropped.
    pub drops: u32,
    /// How often it had to delay something.
    pub overlimits: u32,
    /// Packets waiting now.
    pub queue_len: u32,
    /// Bytes waiting now.
    pub backlog_bytes: u32,
}

impl QdiscKind {
    /// Returns the kernel's name for it (TCA_KIND).
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Tbf(_) => "tbf",
            Self::FqCodel(_) => "fq_codel",
            Self::Ingress => "ingress",
            Self::Clsact => "clsact",
            Self::Other(name) => name,
        }
    }
}

impl Qdisc {
    /// Writes `struct tcmsg` and the attributes.
    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.raw(&header(self.ifindex, self.handle, self.parent, 0));
        writer.put_text(TCA_KIND, self.kind.name());
        match &self.kind {
            QdiscKind::Tbf(tbf) => writer.nest_plain(TCA_OPTIONS, |writer| tbf.encode(writer)),
            QdiscKind::FqCodel(settings) => {
                writer.nest_plain(TCA_OPTIONS, |writer| settings.encode(writer));
            }
            QdiscKind::Ingress | QdiscKind::Clsact => {}
            QdiscKind::Other(_) => writer.set_problem("a queueing discipline of unknown settings"),
        }
    }
}

impl FqCodel {
    fn encode(&self, writer: &mut Writer) {
        for (kind, value) in [
            (TCA_FQ_CODEL_TARGET, self.target_us),
            (TCA_FQ_CODEL_LIMIT, self.limit),
            (TCA_FQ_CODEL_INTERVAL, self.interval_us),
            (TCA_FQ_CODEL_MEMORY_LIMIT, self.memory_bytes),
        ] {
            if let Some(value) = value {
                writer.put_u32(kind, value);
            }
        }
    }

    fn decode(options: &Attribute<'_>) -> Self {
        let number = |kind| options.find(kind).and_then(|found| found.u32());
        Self {
            target_us: number(TCA_FQ_CODEL_TARGET),
            interval_us: number(TCA_FQ_CODEL_INTERVAL),
            limit: number(TCA_FQ_CODEL_LIMIT),
            memory_bytes: number(TCA_FQ_CODEL_MEMORY_LIMIT),
        }
    }
}

impl QdiscInfo {
    /// Reads RTM_NEWQDISC; `None` if the message is another.
    pub(crate) fn decode(message: &Message<'_>, ticks: TickRate) -> Option<Self> {
        if message.kind != RTM_NEWQDISC {
            return None;
        }
        let (mut kind, mut options, mut stats) = (None, None, QdiscStats::default());
        for attribute in message.attributes(TCMSG) {
            match attribute.kind {
                TCA_KIND => kind = Some(attribute.text()),
                TCA_OPTIONS => options = Some(attribute),
                TCA_STATS2 => stats = QdiscStats::decode(&attribute),
                _ => {}
            }
        }
        let kind = kind?;
        let (loss, delay) = (loss_of(&kind, options), delay_of(&kind, options));
        let handle = TcHandle(wire::u32_at(message.body, 8)?);
        let default_class = class::default_of(&kind, options, handle);
        let kind = match (kind.as_str(), options) {
            ("tbf", Some(options)) => QdiscKind::Tbf(Tbf::decode(&options, ticks)?),
            ("fq_codel", Some(options)) => QdiscKind::FqCodel(FqCodel::decode(&options)),
            ("ingress", _) => QdiscKind::Ingress,
            ("clsact", _) => QdiscKind::Clsact,
            (other, _) => QdiscKind::Other(other.to_owned()),
        };
        let qdisc = Qdisc {
            ifindex: wire::u32_at(message.body, 4)?,
            handle,
            parent: TcHandle(wire::u32_at(message.body, 12)?),
            kind,
        };
        Some(Self { qdisc, stats, loss, delay, default_class })
    }
}

fn loss_of(kind: &str, options: Option<Attribute<'_>>) -> u32 {
    match (kind, options) {
        ("blackhole", _) => u32::MAX,
        // `struct tc_fifo_qopt`: the limit.
        ("pfifo" | "bfifo" | "pfifo_head_drop", Some(options))
            if wire::u32_at(options.value, 0) == Some(0) =>
        {
            u32::MAX
        }
        ("netem", Some(options)) => {
            let share = wire::u32_at(options.value, NETEM_QOPT_LOSS).unwrap_or_default();
            let further = options.value.get(NETEM_QOPT..).unwrap_or_default();
            let has_model = wire::attributes(further).any(|one| one.kind == TCA_NETEM_LOSS);
            share.max(u32::from(has_model))
        }
        _ => 0,
    }
}

/// Reads the delay of netem, in nanoseconds (since Linux 4.15).
fn delay_of(kind: &str, options: Option<Attribute<'_>>) -> Duration {
    let Some(options) = options.filter(|_| kind == "netem") else { return Duration::ZERO };
    let further = options.value.get(NETEM_QOPT..).unwrap_or_default();
    let found = wire::attributes(further).find(|one| one.kind == TCA_NETEM_LATENCY64);
    found.map_or(Duration::ZERO, |latency| Duration::from_nanos(u64_at(latency.value, 0)))
}

impl QdiscStats {
    fn decode(stats: &Attribute<'_>) -> Self {
        let mut read = Self::default();
        if let Some(basic) = stats.find(TCA_STATS_BASIC) {
            read.bytes = u64_at(basic.value, 0);
            read.packets = wire::u32_at(basic.value, 8).unwrap_or_default().into();
        }
        if let Some(queue) = stats.find(TCA_STATS_QUEUE) {
            let number = |at| wire::u32_at(queue.value, at).unwrap_or_default();
            read.queue_len = number(0);
            read.backlog_bytes = number(4);
            read.drops = number(8);
            read.overlimits = number(16);
        }
        read
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let value = bytes.get(at..at + 8).and_then(|part| part.try_into().ok());
    value.map_or(0, u64::from_ne_bytes)
}

/// `struct tcmsg`.
pub(crate) fn header(ifindex: u32, handle: TcHandle, parent: TcHandle, info: u32) -> [u8; TCMSG] {
    let mut bytes = [0; TCMSG];
    for (place, number) in bytes[4..].chunks_exact_mut(4).zip([ifindex, handle.0, parent.0, info]) {
        place.copy_from_slice(&number.to_ne_bytes());
    }
    bytes
}

impl fmt::Display for Qdisc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qdisc {} {} at {}", self.kind.name(), self.handle, self.parent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::messages;

    fn read(kind: &str, options: &[u8]) -> QdiscInfo {
        let mut writer = Writer::new();
        writer.message(RTM_NEWQDISC, 0, 1, |writer| {
            writer.raw(&header(2, TcHandle::new(1, 0), TcHandle::ROOT, 0));
            writer.put_text(TCA_KIND, kind);
            writer.put(TCA_OPTIONS, options);
        });
        let decode = |message: Message<'_>| QdiscInfo::decode(&message, TickRate::default());
        messages(writer.bytes()).find_map(decode).unwrap()
    }

    fn loss(kind: &str, options: &[u8]) -> u32 {
        read(kind, options).loss
    }

    #[test]
    fn a_delay_is_read_in_nanoseconds() {
        let mut options = vec![0; NETEM_QOPT];
        assert_eq!(read("netem", &options).delay, Duration::ZERO);
        // `struct nlattr`: 12 bytes, and its type.
        options.extend(12_u16.to_ne_bytes());
        options.extend(TCA_NETEM_LATENCY64.to_ne_bytes());
        options.extend(3_000_000_000_u64.to_ne_bytes());
        assert_eq!(read("netem", &options).delay, Duration::from_secs(3));
        assert_eq!(read("other", &options).delay, Duration::ZERO);
        assert_eq!(read("netem", &[]).delay, Duration::ZERO);
    }

    #[test]
    fn htb_has_a_class_for_what_no_filter_picks() {
        // `struct nlattr`: 24 bytes, and its type; then the version, and before the class one more.
        let mut options = [24_u16, 2].map(u16::to_ne_bytes).concat();
        options.extend([3_u32, 10, 0x30, 0, 0].map(u32::to_ne_bytes).concat());
        assert_eq!(read("htb", &options).default_class, Some(TcHandle::new(1, 0x30)));
        assert_eq!(read("other", &options).default_class, None);
        assert_eq!(read("htb", &[]).default_class, None);
    }

    #[test]
    fn a_queue_in_which_nothing_may_wait_loses_all() {
        for kind in ["pfifo", "bfifo", "pfifo_head_drop"] {
            assert_eq!(loss(kind, &0_u32.to_ne_bytes()), u32::MAX, "{kind}");
            assert_eq!(loss(kind, &1000_u32.to_ne_bytes()), 0, "{kind}");
        }
        assert_eq!(loss("fq", &0_u32.to_ne_bytes()), 0);
        assert_eq!(loss("blackhole", &[]), u32::MAX);
    }
}
