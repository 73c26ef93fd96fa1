//! A filter that sends all packets to another link, and other filters by their name.

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
const TC_U32_TERMINAL: u8 = 1;
/// TCA_ACT_*.
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
/// `linux include/uapi/linux/tc_act/tc_mirred.h`.
const TCA_MIRRED_PARMS: u16 = 2;
const TCA_EGRESS_REDIR: u32 = 1;
const TC_ACT_STOLEN: u32 = 4;
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
    /// The link it sends packets to, if that is its first action; 0 if that link is gone, and the
    /// packets with it.
    pub redirects_to: Option<u32>,
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
        let preference = u16::try_from(wire::u32_at(message.body, 16)? >> 16).ok()?;
        let (mut kind, mut options) = (String::new(), None);
        for attribute in message.attributes(TCMSG) {
            match attribute.kind {
                TCA_KIND => kind = attribute.text(),
                TCA_OPTIONS => options = Some(attribute),
                _ => {}
            }
        }
        let actions = match kind.as_str() {
            "u32" => {
                let options = options?;
                // Without a selector it is one of u32's own tables.
                options.find(TCA_U32_SEL)?;
                options.find(TCA_U32_ACT)
            }
            "matchall" => options?.find(TCA_MATCHALL_ACT),
            _ => None,
        };
        let redirects_to = actions.and_then(|actions| redirect_of(&actions));
        Some(Self { preference, kind, redirects_to })
    }
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
