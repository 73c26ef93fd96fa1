//! Routing rules: which table is used (`ip rule`).

use std::fmt;

use ipnet::IpNet;

use super::{IpFamily, af, ip_bytes, ip_from};
use crate::wire::{self, Message, Writer};

/// `linux include/uapi/linux/rtnetlink.h`.
pub(crate) const RTM_NEWRULE: u16 = 32;
pub(crate) const RTM_DELRULE: u16 = 33;
pub(crate) const RTM_GETRULE: u16 = 34;
/// Size of `struct fib_rule_hdr`.
const HEADER: usize = 12;
/// `linux include/uapi/linux/fib_rules.h`.
const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FRA_OIFNAME: u16 = 17;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_L3MDEV: u16 = 19;
/// Conditions that are not decoded: the tunnel's number, a group of links to pass over, users,
/// protocol, ports, DSCP and flow label.
const FURTHER: [u16; 8] = [12, 13, 20, 22, 23, 24, 25, 26];
const FIB_RULE_INVERT: u32 = 2;

/// A routing rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The IP version.
    pub family: IpFamily,
    /// Its priority: lower first; `None`: before all others but the first.
    pub priority: Option<u32>,
    /// Only packets with this source.
    pub source: Option<IpNet>,
    /// Only packets with this destination.
    pub destination: Option<IpNet>,
    /// Only packets that came in by this link.
    pub iifname: Option<String>,
    /// Only packets bound to leave by this link.
    pub oifname: Option<String>,
    /// Only packets with this mark, under this mask.
    pub mark: Option<(u32, u32)>,
    /// Matches if the conditions above do not.
    pub invert: bool,
    /// It asks the table of the VRF of the packet's link, and nothing for other packets (`l3mdev`).
    /// Only read.
    pub of_vrf: bool,
    /// It has conditions, or exceptions, that are not among these. Only read.
    pub further: bool,
    /// If only this makes it so: routes of at most this prefix length do not count
    /// (`suppress_prefixlength`). Only read.
    pub suppress: Option<u32>,
    /// Its action.
    pub action: RuleAction,
}

/// The action of a routing rule (FR_ACT_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuleAction {
    /// Looks up this table.
    Table(u32),
    /// The packet is dropped.
    Blackhole,
    /// Refuses the packet as unreachable.
    Unreachable,
    /// Refuses the packet as prohibited.
    Prohibit,
    /// A number unknown to this code.
    Other(u8),
}

impl Rule {
    /// A rule that sends everything to a table.
    #[must_use]
    pub fn to_table(family: IpFamily, table: u32) -> Self {
        Self {
            family,
            priority: None,
            source: None,
            destination: None,
            iifname: None,
            oifname: None,
            mark: None,
            invert: false,
            of_vrf: false,
            further: false,
            suppress: None,
            action: RuleAction::Table(table),
        }
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        let (action, table) = match self.action {
            RuleAction::Table(table) => (1, Some(table)),
            RuleAction::Blackhole => (6, None),
            RuleAction::Unreachable => (7, None),
            RuleAction::Prohibit => (8, None),
            RuleAction::Other(number) => (number, None),
        };
        let mut header = [0; HEADER];
        header[0] = af(self.family);
        header[1] = self.destination.map_or(0, |net| net.prefix_len());
        header[2] = self.source.map_or(0, |net| net.prefix_len());
        header[4] = table.and_then(|table| u8::try_from(table).ok()).unwrap_or(0);
        header[7] = action;
        let flags = if self.invert { FIB_RULE_INVERT } else { 0 };
        header[8..12].copy_from_slice(&flags.to_ne_bytes());
        writer.raw(&header);
        if let Some(table) = table {
            writer.put_u32(FRA_TABLE, table);
        }
        if let Some(priority) = self.priority {
            writer.put_u32(FRA_PRIORITY, priority);
        }
        if let Some(net) = self.source {
            writer.put(FRA_SRC, &ip_bytes(net.network()));
        }
        if let Some(net) = self.destination {
            writer.put(FRA_DST, &ip_bytes(net.network()));
        }
        if let Some(name) = &self.iifname {
            writer.put_text(FRA_IIFNAME, name);
        }
        if let Some(name) = &self.oifname {
            writer.put_text(FRA_OIFNAME, name);
        }
        if let Some((mark, mask)) = self.mark {
            writer.put_u32(FRA_FWMARK, mark);
            writer.put_u32(FRA_FWMASK, mask);
        }
    }

    /// Reads RTM_NEWRULE; `None` if the message is another, or of another family.
    pub(crate) fn decode(message: &Message<'_>) -> Option<Self> {
        if message.kind != RTM_NEWRULE {
            return None;
        }
        let &[family, dst_len, src_len, tos, table, _, _, action, ..] = message.body else {
            return None;
        };
        let family = match family {
            super::AF_INET => IpFamily::V4,
            super::AF_INET6 => IpFamily::V6,
            _ => return None,
        };
        let flags = wire::u32_at(message.body, 8)?;
        let mut table = u32::from(table);
        // The kernel sends the priority only when it is not zero.
        let mut rule = Self {
            priority: Some(0),
            invert: flags & FIB_RULE_INVERT != 0,
            further: tos != 0,
            ..Self::to_table(family, 0)
        };
        let (mut mark, mut mask, mut suppresses) = (None, u32::MAX, false);
        for attribute in message.attributes(HEADER) {
            let net = |length| IpNet::new(ip_from(attribute.value)?, length).ok();
            match attribute.kind {
                FRA_DST => rule.destination = net(dst_len),
                FRA_SRC => rule.source = net(src_len),
                FRA_IIFNAME => rule.iifname = Some(attribute.text()),
                FRA_OIFNAME => rule.oifname = Some(attribute.text()),
                FRA_PRIORITY => rule.priority = attribute.u32(),
                FRA_FWMARK => mark = attribute.u32(),
                FRA_FWMASK => mask = attribute.u32().unwrap_or(mask),
                FRA_TABLE => table = attribute.u32().unwrap_or(table),
                FRA_L3MDEV => rule.of_vrf = attribute.u8() == Some(1),
                // Sent always; -1: none.
                FRA_SUPPRESS_PREFIXLEN => {
                    rule.suppress = attribute.u32().filter(|length| *length != u32::MAX);
                    suppresses = rule.suppress.is_some();
                }
                other if FURTHER.contains(&other) => rule.further = true,
                _ => {}
            }
        }
        rule.suppress = rule.suppress.filter(|_| !rule.further);
        rule.further |= suppresses;
        rule.mark = mark.map(|mark| (mark, mask));
        rule.action = match action {
            1 => RuleAction::Table(table),
            6 => RuleAction::Blackhole,
            7 => RuleAction::Unreachable,
            8 => RuleAction::Prohibit,
            other => RuleAction::Other(other),
        };
        Some(rule)
    }
}

/// Writes a request for all rules of a family.
pub(crate) fn encode_dump(writer: &mut Writer, family: IpFamily) {
    let mut header = [0; HEADER];
    header[0] = af(family);
    writer.raw(&header);
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(priority) = self.priority {
            write!(f, "{priority} ")?;
        }
        if let Some(net) = self.source {
            write!(f, "from {net} ")?;
        }
        if let Some(net) = self.destination {
            write!(f, "to {net} ")?;
        }
        match self.action {
            RuleAction::Table(table) => write!(f, "table {table}"),
            other => write!(f, "{other:?}"),
        }
    }
}
