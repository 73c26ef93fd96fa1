//! Matches and targets of iptables, in rules that `iptables-nft` made, as steps of a scene.
//!
//! The kernel keeps their settings as the C structures of `linux include/uapi/linux/netfilter`
//! (`xt_*.h`), in the machine's byte order. The usual ones are translated to what nft would write;
//! of the others only the name is kept.

use diagnose::model::filter::{Comparison, Connection, Element, Header, Meta, Set, Step, Verdict};
use kernel::nft::Family;

use super::steps::{self, effect, unknown};

/// `linux include/uapi/linux/icmp.h`, `icmpv6.h` and `netfilter/nf_tables.h` NFT_REJECT_ICMPX_*,
/// with nft's words.
pub(super) const ICMP: &[(u8, &str)] = &[
    (0, "net-unreachable"),
    (1, "host-unreachable"),
    (2, "prot-unreachable"),
    (3, "port-unreachable"),
    (9, "net-prohibited"),
    (10, "host-prohibited"),
    (13, "admin-prohibited"),
];
pub(super) const ICMPV6: &[(u8, &str)] = &[
    (0, "no-route"),
    (1, "admin-prohibited"),
    (3, "addr-unreachable"),
    (4, "port-unreachable"),
    (5, "policy-fail"),
    (6, "reject-route"),
];
pub(super) const ICMPX: &[(u8, &str)] =
    &[(0, "no-route"), (1, "port-unreachable"), (2, "host-unreachable"), (3, "admin-prohibited")];

/// The words for `enum ipt_reject_with` and `enum ip6t_reject_with`, in the order of their numbers.
const REJECT_V4: [&str; 9] = [
    "icmp net-unreachable",
    "icmp host-unreachable",
    "icmp prot-unreachable",
    "icmp port-unreachable",
    "icmp echo-reply",
    "icmp net-prohibited",
    "icmp host-prohibited",
    "tcp reset",
    "icmp admin-prohibited",
];
const REJECT_V6: [&str; 9] = [
    "icmpv6 no-route",
    "icmpv6 admin-prohibited",
    "icmpv6 not-neighbour",
    "icmpv6 addr-unreachable",
    "icmpv6 port-unreachable",
    "icmpv6 echo-reply",
    "tcp reset",
    "icmpv6 policy-fail",
    "icmpv6 reject-route",
];

/// Targets that change or note something and let the packet go on.
const EFFECTS: [&str; 21] = [
    "AUDIT",
    "CHECKSUM",
    "CLASSIFY",
    "CONNMARK",
    "CONNSECMARK",
    "CT",
    "DSCP",
    "HMARK",
    "IDLETIMER",
    "LED",
    "LOG",
    "MARK",
    "NFLOG",
    "NOTRACK",
    "RATEEST",
    "SECMARK",
    "SET",
    "TCPMSS",
    "TEE",
    "TOS",
    "TRACE",
];

/// The register that translated matches use, and a second one behind an IPv6 address. Each
/// expression of such a rule loads its own registers, so that nothing is lost.
const FIRST: u32 = 0;
const SECOND: u32 = 4;

/// Adds a set of values for one match of a rule. Returns its name, which no set of nft's can have.
pub(super) fn make_up(sets: &mut Vec<Set>, handle: u64, elements: Vec<Element>) -> String {
    let name = format!("(rule {handle}, {})", sets.len());
    sets.push(Set { name: name.clone(), elements, truncated: false });
    name
}

/// Translates a match. `made_up` adds a set and returns its name.
pub(super) fn matched(
    name: &str,
    revision: u32,
    info: &[u8],
    family: Family,
    made_up: &mut dyn FnMut(Vec<Element>) -> String,
) -> Vec<Step> {
    let info = Info(info);
    let steps = match (name, revision) {
        ("comment", _) => Some(vec![effect("comment")]),
        ("conntrack", 1..=3) => conntrack(info, revision),
        ("state", _) => info.u32(0).and_then(|mask| state(mask, false)),
        ("tcp", _) => tcp(info),
        ("udp", _) => udp(info),
        ("multiport", 1) => multiport(info, made_up),
        ("addrtype", _) => address_type(info, revision, made_up),
        ("mark", 1) => mark(info, Step::Meta { key: Meta::Mark, to: FIRST }),
        ("connmark", 1) => mark(info, Step::Connection { key: Connection::Mark, to: FIRST }),
        ("iprange", 1) => range(info, family),
        ("icmp" | "icmp6", _) => icmp(info),
        ("limit" | "hashlimit", _) => {
            Some(vec![Step::Limit { over: false, says: Some(format!("-m {name}")) }])
        }
        // linux include/uapi/linux/netfilter/xt_connlimit.h `struct xt_connlimit_info`: a mask of 16
        // bytes, the limit, flags of which the first inverts.
        ("connlimit", _) => {
            let over = info.u32(20).unwrap_or_default() & 1 == 0;
            let flag = if over { "above" } else { "upto" };
            let count = info.u32(16).map(|count| format!(" --connlimit-{flag} {count}"));
            let says = Some(format!("-m connlimit{}", count.unwrap_or_default()));
            Some(vec![Step::Limit { over, says }])
        }
        _ => None,
    };
    steps.unwrap_or_else(|| vec![unknown(name)])
}

/// Translates a target.
pub(super) fn target(name: &str, revision: u32, info: &[u8], family: Family) -> Vec<Step> {
    let info = Info(info);
    let steps = match name {
        "ACCEPT" => Some(vec![Step::Verdict(Verdict::Accept)]),
        "DROP" => Some(vec![Step::Verdict(Verdict::Drop)]),
        "RETURN" => Some(vec![Step::Verdict(Verdict::Return)]),
        // It is the first queue, and has no settings.
        "QUEUE" => Some(vec![Step::Queue { first: 0, last: 0, bypass: false }]),
        "NFQUEUE" => queue(info, revision),
        "MARK" if revision == 2 => set_mark(info),
        "TTL" => Some(hops(name, info, 8)),
        "HL" => Some(hops(name, info, 7)),
        "MASQUERADE" => Some(vec![Step::SourceNat]),
        "SNAT" => source(info, revision, family),
        "DNAT" => destination(info, revision, family),
        "REDIRECT" => redirect(info, family),
        "REJECT" => reject(info, family),
        // linux include/uapi/linux/netfilter/xt_CT.h XT_CT_NOTRACK.
        "CT" if info.u16(0).is_some_and(|flags| flags & 1 != 0) => Some(vec![effect("notrack")]),
        _ if EFFECTS.contains(&name) => Some(vec![effect(name)]),
        _ => None,
    };
    steps.unwrap_or_else(|| vec![unknown(name)])
}

/// A C structure.
#[derive(Debug, Clone, Copy)]
struct Info<'i>(&'i [u8]);

impl<'i> Info<'i> {
    fn bytes(self, at: usize, len: usize) -> Option<&'i [u8]> {
        self.0.get(at..at.checked_add(len)?)
    }

    fn u8(self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    fn u16(self, at: usize) -> Option<u16> {
        self.bytes(at, 2)?.try_into().ok().map(u16::from_ne_bytes)
    }

    fn u32(self, at: usize) -> Option<u32> {
        self.bytes(at, 4)?.try_into().ok().map(u32::from_ne_bytes)
    }
}

/// `struct xt_conntrack_mtinfo1` to `3`: of the many things that it can compare, state and status.
fn conntrack(info: Info<'_>, revision: u32) -> Option<Vec<Step>> {
    /// XT_CONNTRACK_*.
    const STATE: u16 = 1;
    const STATUS: u16 = 1 << 6;
    const STATE_ALIAS: u16 = 1 << 13;
    let (wanted, inverted) = (info.u16(146)?, info.u16(148)?);
    let (states, statuses): (u32, u32) = match revision {
        1 => (info.u8(150)?.into(), info.u8(151)?.into()),
        _ => (info.u16(150)?.into(), info.u16(152)?.into()),
    };
    match wanted & !STATE_ALIAS {
        STATE => state(states, inverted & STATE != 0),
        STATUS => Some(bits(Connection::Status, statuses, inverted & STATUS != 0)),
        _ => None,
    }
}

/// Compares the connection's state, whose first four bits are nft's. For iptables "translated" is a
/// state; for the kernel it is a part of the connection's status.
fn state(mask: u32, inverted: bool) -> Option<Vec<Step>> {
    /// INVALID, ESTABLISHED, RELATED, NEW.
    const SAME: u32 = 0xf;
    const SOURCE: u32 = 1 << 6;
    const DESTINATION: u32 = 1 << 7;
    const UNTRACKED: u32 = 1 << 8;
    /// IPS_SRC_NAT, IPS_DST_NAT, NF_CT_STATE_UNTRACKED_BIT.
    const IPS_SOURCE: u32 = 1 << 4;
    const IPS_DESTINATION: u32 = 1 << 5;
    const NFT_UNTRACKED: u32 = 1 << 6;
    match mask {
        SOURCE => Some(bits(Connection::Status, IPS_SOURCE, inverted)),
        DESTINATION => Some(bits(Connection::Status, IPS_DESTINATION, inverted)),
        _ if mask & (SOURCE | DESTINATION) != 0 => None,
        _ => {
            let untracked = if mask & UNTRACKED == 0 { 0 } else { NFT_UNTRACKED };
            Some(bits(Connection::State, mask & SAME | untracked, inverted))
        }
    }
}

/// Goes on if one of the bits is set, or if none is.
fn bits(key: Connection, mask: u32, inverted: bool) -> Vec<Step> {
    masked(Step::Connection { key, to: FIRST }, mask, compare(inverted), 0)
}

/// Compares what a step loads into the first register, masked.
fn masked(load: Step, mask: u32, op: Comparison, with: u32) -> Vec<Step> {
    let number = |number: u32| number.to_ne_bytes().to_vec();
    vec![
        load,
        Step::Bitwise { from: FIRST, to: FIRST, mask: number(mask), xor: number(0) },
        Step::Compare { op, from: FIRST, with: number(with) },
    ]
}

fn compare(is_equal: bool) -> Comparison {
    if is_equal { Comparison::Equal } else { Comparison::NotEqual }
}

/// Loads a part of the transport header.
fn transport(offset: u32, len: u32) -> Step {
    Step::Payload { base: Header::Transport, offset, len, to: FIRST }
}

/// `struct xt_tcp`.
fn tcp(info: Info<'_>) -> Option<Vec<Step>> {
    let (option, mask, flags, inverted) = (info.u8(8)?, info.u8(9)?, info.u8(10)?, info.u8(11)?);
    let mut steps = ports(info, inverted)?;
    if mask != 0 {
        steps.push(transport(13, 1));
        steps.push(Step::Bitwise { from: FIRST, to: FIRST, mask: vec![mask], xor: vec![0] });
        let op = compare(inverted & 4 == 0);
        steps.push(Step::Compare { op, from: FIRST, with: vec![flags] });
    }
    (option == 0).then_some(steps)
}

/// `struct xt_udp`.
fn udp(info: Info<'_>) -> Option<Vec<Step>> {
    ports(info, info.u8(8)?)
}

/// Compares source and destination ports, which both structures begin with.
fn ports(info: Info<'_>, inverted: u8) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    for (offset, at, bit) in [(0, 0, 1), (2, 4, 2)] {
        let (first, last) = (info.u16(at)?, info.u16(at + 2)?);
        if (first, last) != (0, u16::MAX) {
            steps.push(transport(offset, 2));
            steps.push(Step::Range {
                invert: inverted & bit != 0,
                from: FIRST,
                first: first.to_be_bytes().to_vec(),
                last: last.to_be_bytes().to_vec(),
            });
        }
    }
    Some(steps)
}

/// `struct xt_multiport_v1`.
fn multiport(info: Info<'_>, made_up: &mut dyn FnMut(Vec<Element>) -> String) -> Option<Vec<Step>> {
    let offset = match info.u8(0)? {
        0 => 0,
        1 => 2,
        // Either of the two.
        _ => return None,
    };
    let count = usize::from(info.u8(1)?).min(15);
    let mut elements = Vec::new();
    let mut at = 0;
    while at < count {
        let first = info.u16(2 + 2 * at)?;
        // The port is the first of a range, and the next one its last.
        let last = if info.u8(32 + at)? == 0 {
            None
        } else {
            at += 1;
            Some(info.u16(2 + 2 * at)?.to_be_bytes().to_vec())
        };
        elements.push(element(first.to_be_bytes().to_vec(), last));
        at += 1;
    }
    let invert = info.u8(47)? != 0;
    Some(vec![
        transport(offset, 2),
        Step::Lookup { set: made_up(elements), from: FIRST, invert, to: None },
    ])
}

fn element(first: Vec<u8>, last: Option<Vec<u8>>) -> Element {
    Element { first, last, parts: Vec::new(), data: None, verdict: None }
}

/// `struct xt_addrtype_info` and `_v1`.
fn address_type(
    info: Info<'_>,
    revision: u32,
    made_up: &mut dyn FnMut(Vec<Element>) -> String,
) -> Option<Vec<Step>> {
    let (source, destination) = (info.u16(0)?, info.u16(2)?);
    let inverted = match revision {
        0 => [info.u32(4)? != 0, info.u32(8)? != 0],
        _ => {
            let flags = info.u32(4)?;
            // The address is looked up on one link only.
            if flags & 0b1100 != 0 {
                return None;
            }
            [flags & 1 != 0, flags & 2 != 0]
        }
    };
    let mut steps = Vec::new();
    for (types, is_source, invert) in
        [(source, true, inverted[0]), (destination, false, inverted[1])]
    {
        if types == 0 {
            continue;
        }
        // Bit N is RTN_*'s number N.
        let wanted = (0..16_u32).filter(|number| types & 1 << number != 0);
        let elements = wanted.map(|number| element(number.to_ne_bytes().to_vec(), None));
        steps.push(Step::Fib { source: is_source, kind: true, to: FIRST });
        steps.push(Step::Lookup {
            set: made_up(elements.collect()),
            from: FIRST,
            invert,
            to: None,
        });
    }
    Some(steps)
}

/// `struct xt_mark_tginfo2`: the bits of the mask are cleared, and then those of the mark flipped.
fn set_mark(info: Info<'_>) -> Option<Vec<Step>> {
    let (mark, mask) = (info.u32(0)?, info.u32(4)?);
    Some(vec![
        Step::Meta { key: Meta::Mark, to: FIRST },
        Step::Bitwise {
            from: FIRST,
            to: FIRST,
            mask: (!mask).to_ne_bytes().to_vec(),
            xor: mark.to_ne_bytes().to_vec(),
        },
        Step::Mark { from: FIRST },
    ])
}

/// `struct xt_mark_mtinfo1`, and `struct xt_connmark_mtinfo1`, which is the same.
fn mark(info: Info<'_>, load: Step) -> Option<Vec<Step>> {
    let (mark, mask, invert) = (info.u32(0)?, info.u32(4)?, info.u8(8)? != 0);
    Some(masked(load, mask, compare(!invert), mark))
}

/// `struct xt_iprange_mtinfo`.
fn range(info: Info<'_>, family: Family) -> Option<Vec<Step>> {
    let (len, offsets) = match family {
        Family::Ip => (4_usize, [12, 16]),
        Family::Ip6 => (16, [8, 24]),
        _ => return None,
    };
    let flags = info.u8(64)?;
    let mut steps = Vec::new();
    for (at, offset, bit) in [(0, offsets[0], 1), (32, offsets[1], 2)] {
        if flags & bit != 0 {
            let wide = u32::try_from(len).ok()?;
            steps.push(Step::Payload { base: Header::Network, offset, len: wide, to: FIRST });
            steps.push(Step::Range {
                invert: flags & bit << 4 != 0,
                from: FIRST,
                first: info.bytes(at, len)?.to_vec(),
                last: info.bytes(at + 16, len)?.to_vec(),
            });
        }
    }
    Some(steps)
}

/// `struct ipt_icmp` and `struct ip6t_icmp`.
fn icmp(info: Info<'_>) -> Option<Vec<Step>> {
    let (kind, first, last, inverted) = (info.u8(0)?, info.u8(1)?, info.u8(2)?, info.u8(3)?);
    if inverted & 1 != 0 {
        return None;
    }
    let mut steps = Vec::new();
    // Any type.
    if kind != u8::MAX {
        steps.push(transport(0, 1));
        steps.push(Step::Compare { op: Comparison::Equal, from: FIRST, with: vec![kind] });
    }
    if (first, last) != (0, u8::MAX) {
        steps.push(transport(1, 1));
        let (first, last) = (vec![first], vec![last]);
        steps.push(Step::Range { invert: false, from: FIRST, first, last });
    }
    Some(steps)
}

/// NF_NAT_RANGE_MAP_IPS and _PROTO_SPECIFIED.
const WITH_ADDRESS: u32 = 1;
const WITH_PORT: u32 = 2;

/// Where a translation leads: flags, address and port.
type Translation = (u32, Vec<u8>, [u8; 2]);

/// `struct nf_nat_range` and `2`.
fn translation(info: Info<'_>, family: Family) -> Option<Translation> {
    let len = if family == Family::Ip6 { 16 } else { 4 };
    let port = info.bytes(36, 2)?.try_into().ok()?;
    Some((info.u32(0)?, info.bytes(4, len)?.to_vec(), port))
}

/// `struct nf_nat_ipv4_multi_range_compat`, with its only range.
fn old_translation(info: Info<'_>) -> Option<Translation> {
    let port = info.bytes(16, 2)?.try_into().ok()?;
    Some((info.u32(4)?, info.bytes(8, 4)?.to_vec(), port))
}

fn destination(info: Info<'_>, revision: u32, family: Family) -> Option<Vec<Step>> {
    let (flags, address, port) = match (family, revision) {
        (Family::Ip, 0) => old_translation(info)?,
        _ => translation(info, family)?,
    };
    let mut steps = Vec::new();
    let (mut to_address, mut to_port) = (None, None);
    if flags & WITH_ADDRESS != 0 {
        steps.push(Step::Immediate { to: FIRST, data: address });
        to_address = Some(FIRST);
    }
    if flags & WITH_PORT != 0 {
        steps.push(Step::Immediate { to: SECOND, data: port.to_vec() });
        to_port = Some(SECOND);
    }
    steps.push(Step::DestinationNat { address: to_address, port: to_port });
    Some(steps)
}

/// The same structures; where they have a range of addresses, none of them is certain.
fn source(info: Info<'_>, revision: u32, family: Family) -> Option<Vec<Step>> {
    let ((flags, address, _), last) = match (family, revision) {
        (Family::Ip, 0) => (old_translation(info)?, 12),
        _ => (translation(info, family)?, 20),
    };
    let is_one = info.bytes(last, address.len()) == Some(address.as_slice());
    if flags & WITH_ADDRESS == 0 || !is_one {
        return Some(vec![Step::SourceNat]);
    }
    let load = Step::Immediate { to: FIRST, data: address };
    Some(vec![load, Step::SourceNatTo { address: FIRST }])
}

fn redirect(info: Info<'_>, family: Family) -> Option<Vec<Step>> {
    let (flags, _, port) = match family {
        Family::Ip => old_translation(info)?,
        _ => translation(info, family)?,
    };
    if flags & WITH_PORT == 0 {
        return Some(vec![Step::Redirect { port: None }]);
    }
    let load = Step::Immediate { to: FIRST, data: port.to_vec() };
    Some(vec![load, Step::Redirect { port: Some(FIRST) }])
}

/// `struct xt_NFQ_info` and its later revisions, of which each has one number more.
fn queue(info: Info<'_>, revision: u32) -> Option<Vec<Step>> {
    let total = if revision < 1 { 1 } else { info.u16(2)? };
    let flags = if revision < 2 { 0 } else { info.u16(4)? };
    Some(vec![steps::queue(info.u16(0)?, total, flags)])
}

/// `struct ipt_TTL_info` and `struct ip6t_HL_info`, whose byte of IP's header is at an offset. An
/// operation that subtracts from the present number has that in its name; of one that adds to it only
/// the name is kept.
fn hops(name: &str, info: Info<'_>, offset: u32) -> Vec<Step> {
    /// IPT_TTL_SET and IP6T_HL_SET.
    const SET: u8 = 0;
    /// IPT_TTL_DEC and IP6T_HL_DEC.
    const DEC: u8 = 2;
    match (info.u8(0), info.u8(1)) {
        (Some(SET), Some(left)) => vec![
            Step::Immediate { to: FIRST, data: vec![left] },
            Step::Write { base: Header::Network, offset, len: 1, from: FIRST },
        ],
        (Some(DEC), Some(by)) => vec![effect(&format!("{name} -{by}"))],
        _ => vec![effect(name)],
    }
}

/// `struct ipt_reject_info` and `struct ip6t_reject_info`.
fn reject(info: Info<'_>, family: Family) -> Option<Vec<Step>> {
    let number = usize::try_from(info.u32(0)?).ok()?;
    let words = if family == Family::Ip6 { &REJECT_V6 } else { &REJECT_V4 };
    let with = words.get(number).copied().unwrap_or("an ICMP error");
    Some(vec![Step::Reject { with: with.to_owned() }])
}

#[cfg(test)]
mod tests;
