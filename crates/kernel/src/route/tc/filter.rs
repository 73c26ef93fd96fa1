//! A filter that sends all packets to another link, and other filters by their name and by what
//! their first action does.

use super::{TCA_KIND, TCA_OPTIONS, TCMSG, TcHandle, header};
use crate::wire::{self, Attribute, Message, Writer};

/// `linux include/uapi/linux/rtnetlink.h`.
pub(crate) const RTM_NEWTFILTER: u16 = 44;
pub(crate) const RTM_DELTFILTER: u16 = 45;
pub(crate) const RTM_GETTFILTER: u16 = 46;
/// `linux include/uapi/linux/if_ether.h`.
const ETH_P_ALL: u16 = 3;
/// `linux include/uapi/linux/pkt_cls.h` TCA_U32_*, TCA_MATCHALL_*.
const TCA_U32_SEL: u16 = 5;
const TCA_U32_ACT: u16 = 7;
const TCA_MATCHALL_ACT: u16 = 2;
const TCA_FLOWER_ACT: u16 = 3;
const TCA_BASIC_ACT: u16 = 3;
const TCA_FW_ACT: u16 = 4;
const TCA_BPF_ACT: u16 = 1;
const TC_U32_TERMINAL: u8 = 1;
/// TCA_ACT_*.
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
/// `linux include/uapi/linux/tc_act/tc_mirred.h`.
const TCA_MIRRED_PARMS: u16 = 2;
const TCA_EGRESS_REDIR: u32 = 1;
const TC_ACT_SHOT: u32 = 2;
const TC_ACT_STOLEN: u32 = 4;
/// `linux include/uapi/linux/tc_act/tc_gact.h`.
const TCA_GACT_PARMS: u16 = 2;
const TCA_GACT_PROB: u16 = 3;
/// Filters that compare bytes of the packet, and do what their actions say.
const KNOWN: [&str; 5] = ["basic", "flower", "fw", "matchall", "u32"];
/// Size of `struct tc_u32_sel` without keys, and of `struct tc_u32_key`.
const SEL_HEADER: usize = 16;
const KEY: usize = 16;
/// Size of `struct tc_u32_sel` with one `struct tc_u32_key`.
const SEL: usize = 32;
/// Size of `struct tc_mirred`.
const MIRRED: usize = 28;

/// A filter that sends all packets of a link out by another link. Kernel: CONFIG_NET_CLS_U32,
/// CONFIG_NET_ACT_MIRRED.
///
/// It is a `u32` filter without conditions; more kernels have `u32` than `matchall`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redirect {
    /// The link whose packets are redirected.
    pub ifindex: u32,
    /// The parent of its filters: [`TcHandle::INGRESS_FILTERS`] for incoming packets.
    pub parent: TcHandle,
    /// Its order: lower first. Not zero.
    pub preference: u16,
    /// The link that they are sent to.
    pub to: u32,
}

/// A filter as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilterInfo {
    /// Its order: lower first.
    pub preference: u16,
    /// What it is: `u32`, `matchall`, `bpf`, …
    pub kind: String,
    /// The EtherType of the frames that it looks at; 3 (ETH_P_ALL) is every one.
    pub protocol: u16,
    /// Whether it takes every frame of that EtherType: a `matchall`, or a `u32` without conditions.
    pub takes_all: bool,
    /// Whether its first action always drops.
    pub drops: bool,
    /// The link it sends packets to, if that is its first action; 0 if that link is gone, and the
    /// packets with it.
    pub redirects_to: Option<u32>,
    /// Whether a BPF program decides, or it is of a kind that this code does not know: then it may
    /// drop anything.
    pub opaque: bool,
}

impl Redirect {
    /// Writes `struct tcmsg` and the attributes.
    pub(crate) fn encode(&self, writer: &mut Writer) {
        self.encode_key(writer);
        writer.put_text(TCA_KIND, "u32");
        writer.nest_plain(TCA_OPTIONS, |writer| {
            let mut sel = [0; SEL];
            sel[0] = TC_U32_TERMINAL;
            sel[2] = 1;
            writer.put(TCA_U32_SEL, &sel);
            writer.nest_plain(TCA_U32_ACT, |writer| {
                writer.nest_plain(1, |writer| {
                    writer.put_text(TCA_ACT_KIND, "mirred");
                    writer.nest_plain(TCA_ACT_OPTIONS, |writer| self.encode_mirred(writer));
                });
            });
        });
    }

    fn encode_mirred(&self, writer: &mut Writer) {
        let mut parms = [0; MIRRED];
        parms[8..12].copy_from_slice(&TC_ACT_STOLEN.to_ne_bytes());
        parms[20..24].copy_from_slice(&TCA_EGRESS_REDIR.to_ne_bytes());
        parms[24..28].copy_from_slice(&self.to.to_ne_bytes());
        writer.put(TCA_MIRRED_PARMS, &parms);
    }

    /// Writes what identifies the filters of this preference.
    pub(crate) fn encode_key(&self, writer: &mut Writer) {
        let info = u32::from(self.preference) << 16 | u32::from(ETH_P_ALL.to_be());
        writer.raw(&header(self.ifindex, TcHandle::UNSPECIFIED, self.parent, info));
    }
}

impl FilterInfo {
    /// Reads RTM_NEWTFILTER; `None` if the message is another, or the head of a list of filters.
    pub(crate) fn decode(message: &Message<'_>) -> Option<Self> {
        // Without a handle it is a container of filters.
        if message.kind != RTM_NEWTFILTER || wire::u32_at(message.body, 8)? == 0 {
            return None;
        }
        let info = wire::u32_at(message.body, 16)?;
        let preference = u16::try_from(info >> 16).ok()?;
        let protocol = u16::from_be(u16::try_from(info & 0xffff).ok()?);
        let (mut kind, mut options) = (String::new(), None);
        for attribute in message.attributes(TCMSG) {
            match attribute.kind {
                TCA_KIND => kind = attribute.text(),
                TCA_OPTIONS => options = Some(attribute),
                _ => {}
            }
        }
        let mut takes_all = false;
        let actions = match (kind.as_str(), options) {
            ("u32", options) => {
                let options = options?;
                // Without a selector it is one of u32's own tables.
                takes_all = is_unconditional(options.find(TCA_U32_SEL)?.value);
                options.find(TCA_U32_ACT)
            }
            ("matchall", options) => {
                takes_all = true;
                options?.find(TCA_MATCHALL_ACT)
            }
            ("flower", Some(options)) => options.find(TCA_FLOWER_ACT),
            ("basic", Some(options)) => options.find(TCA_BASIC_ACT),
            ("fw", Some(options)) => options.find(TCA_FW_ACT),
            ("bpf", Some(options)) => options.find(TCA_BPF_ACT),
            _ => None,
        };
        let opaque = !KNOWN.contains(&kind.as_str())
            || actions.as_ref().and_then(kind_of_first).is_some_and(|action| action == "bpf");
        let is_sender = matches!(kind.as_str(), "u32" | "matchall");
        let redirects_to = actions.filter(|_| is_sender).and_then(|found| redirect_of(&found));
        let drops = actions.is_some_and(|actions| is_drop(&actions) == Some(true));
        Some(Self { preference, kind, protocol, takes_all, drops, redirects_to, opaque })
    }
}

/// Says whether a selector of `u32` compares nothing: the masks of all of its keys are 0.
fn is_unconditional(sel: &[u8]) -> bool {
    let keys = usize::from(sel.get(2).copied().unwrap_or(u8::MAX));
    (0..keys).all(|key| wire::u32_at(sel, SEL_HEADER + key * KEY) == Some(0))
}

/// Returns what the first of several actions is: `gact`, `mirred`, …
fn kind_of_first(actions: &Attribute<'_>) -> Option<String> {
    Some(actions.nested().next()?.find(TCA_ACT_KIND)?.text())
}

/// Says whether the first of several actions drops what it is given, and not by chance.
fn is_drop(actions: &Attribute<'_>) -> Option<bool> {
    let first = actions.nested().next()?;
    if first.find(TCA_ACT_KIND)?.text() != "gact" {
        return Some(false);
    }
    let options = first.find(TCA_ACT_OPTIONS)?;
    // `tc_gen`: index, capabilities, action.
    let action = wire::u32_at(options.find(TCA_GACT_PARMS)?.value, 8)?;
    Some(action == TC_ACT_SHOT && options.find(TCA_GACT_PROB).is_none())
}

/// Reads where the first of several actions sends packets.
fn redirect_of(actions: &Attribute<'_>) -> Option<u32> {
    let first = actions.nested().next()?;
    if first.find(TCA_ACT_KIND)?.text() != "mirred" {
        return None;
    }
    let parms = first.find(TCA_ACT_OPTIONS)?.find(TCA_MIRRED_PARMS)?.value;
    let redirects = wire::u32_at(parms, 20)? == TCA_EGRESS_REDIR;
    wire::u32_at(parms, 24).filter(|_| redirects)
}

/// Writes a request for all filters of a parent.
pub(crate) fn encode_dump(writer: &mut Writer, ifindex: u32, parent: TcHandle) {
    writer.raw(&header(ifindex, TcHandle::UNSPECIFIED, parent, 0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::messages;

    /// A filter as the kernel describes it, without what it compares with.
    fn read(kind: &str, action: Option<(u16, &str)>) -> FilterInfo {
        let mut writer = Writer::new();
        writer.message(RTM_NEWTFILTER, 0, 1, |writer| {
            writer.raw(&header(2, TcHandle(1), TcHandle::INGRESS_FILTERS, 5 << 16 | 0x0300));
            writer.put_text(TCA_KIND, kind);
            writer.nest_plain(TCA_OPTIONS, |writer| {
                if let Some((place, name)) = action {
                    writer.nest_plain(place, |writer| {
                        writer.nest_plain(1, |writer| writer.put_text(TCA_ACT_KIND, name));
                    });
                }
            });
        });
        messages(writer.bytes()).find_map(|message| FilterInfo::decode(&message)).unwrap()
    }

    #[test]
    fn a_program_or_an_unknown_kind_may_do_anything() {
        let opaque = |kind, action| read(kind, action).opaque;
        assert!(!opaque("matchall", None));
        assert!(!opaque("flower", Some((TCA_FLOWER_ACT, "mirred"))));
        assert!(opaque("matchall", Some((TCA_MATCHALL_ACT, "bpf"))));
        assert!(opaque("bpf", None));
        assert!(opaque("cgroup", None));
    }
}
