//! Classes of a queueing discipline that shares a link's rate among them (`man 8 tc-htb`).

use super::{TCA_KIND, TCA_OPTIONS, TCMSG, TcHandle};
use crate::wire::{self, Attribute, Message};

/// `linux include/uapi/linux/rtnetlink.h`.
const RTM_NEWTCLASS: u16 = 40;
pub(crate) const RTM_GETTCLASS: u16 = 42;
/// `linux include/uapi/linux/pkt_sched.h` TCA_HTB_*.
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
/// Where `rate` and `ceil` of `struct tc_htb_opt` have their numbers, and `struct tc_htb_glob` the
/// minor half of the class for what no filter picks.
const RATE: usize = 8;
const CEIL: usize = 20;
const DEFAULT: usize = 8;

/// A class of htb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassInfo {
    /// Its number.
    pub handle: TcHandle,
    /// The class above it, or [`TcHandle::ROOT`].
    pub parent: TcHandle,
    /// How much it may send in any case, in bytes a second.
    pub rate: u64,
    /// How much it may send if the classes above it have something left, in bytes a second.
    pub ceil: u64,
}

impl ClassInfo {
    /// Reads RTM_NEWTCLASS; `None` if the message is another, or the class of another kind.
    pub(crate) fn decode(message: &Message<'_>) -> Option<Self> {
        if message.kind != RTM_NEWTCLASS {
            return None;
        }
        let (mut is_htb, mut options) = (false, None);
        for attribute in message.attributes(TCMSG) {
            match attribute.kind {
                TCA_KIND => is_htb = attribute.text() == "htb",
                TCA_OPTIONS => options = Some(attribute),
                _ => {}
            }
        }
        let options = options.filter(|_| is_htb)?;
        let parms = options.find(TCA_HTB_PARMS)?.value;
        let rate = |kind: u16, at: usize| {
            let long = options.find(kind).and_then(|found| found.value.try_into().ok());
            long.map(u64::from_ne_bytes).or_else(|| wire::u32_at(parms, at).map(u64::from))
        };
        Some(Self {
            handle: TcHandle(wire::u32_at(message.body, 8)?),
            parent: TcHandle(wire::u32_at(message.body, 12)?),
            rate: rate(TCA_HTB_RATE64, RATE)?,
            ceil: rate(TCA_HTB_CEIL64, CEIL)?,
        })
    }
}

/// Returns the class of htb for what no filter picks. It may not exist: then there is no limit.
pub(super) fn default_of(
    kind: &str,
    options: Option<Attribute<'_>>,
    handle: TcHandle,
) -> Option<TcHandle> {
    let init = options.filter(|_| kind == "htb")?.find(TCA_HTB_INIT)?;
    let minor = wire::u32_at(init.value, DEFAULT)?;
    (minor != 0).then_some(TcHandle(handle.0 & 0xffff_0000 | minor & 0xffff))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Writer, messages};

    fn read(kind: &str, body: impl FnOnce(&mut Writer)) -> Option<ClassInfo> {
        let (class, above) = (TcHandle::new(1, 0x10), TcHandle::ROOT);
        let mut writer = Writer::new();
        writer.message(RTM_NEWTCLASS, 0, 1, |writer| {
            writer.raw(&super::super::header(2, class, above, 0));
            writer.put_text(TCA_KIND, kind);
            writer.nest_plain(TCA_OPTIONS, body);
        });
        messages(writer.bytes()).find_map(|message| ClassInfo::decode(&message))
    }

    #[test]
    fn a_class_says_what_it_may_send() {
        let mut parms = [0; 44];
        parms[RATE..RATE + 4].copy_from_slice(&1000_u32.to_ne_bytes());
        parms[CEIL..CEIL + 4].copy_from_slice(&2000_u32.to_ne_bytes());
        let class = read("htb", |writer| writer.put(TCA_HTB_PARMS, &parms)).unwrap();
        assert_eq!((class.handle, class.parent), (TcHandle::new(1, 0x10), TcHandle::ROOT));
        assert_eq!((class.rate, class.ceil), (1000, 2000));
        let large = read("htb", |writer| {
            writer.put(TCA_HTB_PARMS, &parms);
            writer.put(TCA_HTB_CEIL64, &5_000_000_000_u64.to_ne_bytes());
        });
        assert_eq!(large.map(|class| class.ceil), Some(5_000_000_000));
        assert_eq!(read("hfsc", |writer| writer.put(TCA_HTB_PARMS, &parms)), None);
        assert_eq!(read("htb", |writer| writer.put(TCA_HTB_PARMS, &parms[..20])), None);
    }
}
