//! Expressions of nftables as steps of a scene.
//!
//! An expression without a step of its own is classified by its name: the rule always goes on after
//! it ([`Step::Effect`]), or it may end the rule or change a register ([`Step::Unknown`]).

use diagnose::model::filter::{
    Comparison, Connection, Header, MapTo, Meta, Rule, Set, Step, Verdict,
};
use kernel::nft::{
    CmpOp, CtKey, Expr, Family, FibResult, LookupTo, MetaKey, NatKind, PayloadBase, Register,
    RejectKind, RuleInfo, Verdict as KernelVerdict,
};

use super::xtables;

/// NF_NAT_RANGE_NETMAP (linux include/uapi/linux/netfilter/nf_nat.h): each address has its own.
const NETMAP: u32 = 1 << 6;

/// NF_QUEUE, in the low byte of a verdict (linux include/uapi/linux/netfilter.h).
const QUEUE: i32 = 3;

/// Maps a rule. Some matches of iptables name several values: for these we make up sets that only
/// this rule looks up.
pub(super) fn rule(rule: &RuleInfo) -> (Rule, Vec<Set>) {
    let (steps, sets) = steps(&rule.exprs, rule.table.family, rule.handle);
    let comment = rule.comment.clone().or_else(|| rule.iptables_comment());
    (Rule { handle: rule.handle, comment, steps }, sets)
}

fn steps(exprs: &[Expr], family: Family, handle: u64) -> (Vec<Step>, Vec<Set>) {
    let mut steps = Vec::with_capacity(exprs.len());
    let mut sets = Vec::new();
    for expr in exprs {
        match expr {
            Expr::XtMatch { name, revision, info } => {
                let mut made_up = |elements| xtables::make_up(&mut sets, handle, elements);
                steps.extend(xtables::matched(name, *revision, info, family, &mut made_up));
            }
            Expr::XtTarget { name, revision, info } => {
                steps.extend(xtables::target(name, *revision, info, family));
            }
            expr => steps.push(step(expr, family)),
        }
    }
    (steps, sets)
}

fn step(expr: &Expr, family: Family) -> Step {
    match expr {
        Expr::Meta { key, register } => Step::Meta { key: meta(*key), to: place(*register) },
        Expr::MetaSet { key: MetaKey::Mark, register } => Step::Mark { from: place(*register) },
        Expr::MetaSet { .. } => effect("meta-set"),
        Expr::Payload { base, offset, len, register } => match header(*base) {
            Some(base) => Step::Payload { base, offset: *offset, len: *len, to: place(*register) },
            None => unknown("payload"),
        },
        Expr::PayloadSet { base, offset, len, register } => match header(*base) {
            Some(base) => Step::Write { base, offset: *offset, len: *len, from: place(*register) },
            None => effect("payload"),
        },
        Expr::Cmp { op, register, data } => {
            Step::Compare { op: compare(*op), from: place(*register), with: data.clone() }
        }
        Expr::Range { invert, register, from, to } => Step::Range {
            invert: *invert,
            from: place(*register),
            first: from.clone(),
            last: to.clone(),
        },
        Expr::Bitwise(bitwise) => Step::Bitwise {
            from: place(bitwise.source),
            to: place(bitwise.register),
            mask: bitwise.mask.clone(),
            xor: bitwise.xor.clone(),
        },
        Expr::Lookup { set, register, to } => Step::Lookup {
            set: set.clone(),
            from: place(*register),
            invert: *to == LookupTo::NoMatch,
            to: match to {
                LookupTo::Match | LookupTo::NoMatch => None,
                LookupTo::Verdict => Some(MapTo::Verdict),
                LookupTo::Register(register) => Some(MapTo::Register(place(*register))),
            },
        },
        Expr::Ct { key, register, .. } => {
            Step::Connection { key: connection(*key), to: place(*register) }
        }
        Expr::CtSet { .. } => effect("ct-set"),
        Expr::Fib { result, flags, register } => Step::Fib {
            source: flags.0 & 1 != 0,
            kind: *result == FibResult::AddrType,
            to: place(*register),
        },
        Expr::TcpOptionSet { .. } => effect("tcpoption"),
        Expr::Immediate { register, data } => {
            Step::Immediate { to: place(*register), data: data.clone() }
        }
        Expr::Verdict(said) => verdict(said).map_or_else(|| unknown("VERDICT"), Step::Verdict),
        Expr::Nat { kind: NatKind::Destination, address, port, .. } => {
            Step::DestinationNat { address: address.map(place), port: port.map(place) }
        }
        Expr::Nat { kind: NatKind::Source, address: Some(address), flags, .. }
            if flags & NETMAP == 0 =>
        {
            Step::SourceNatTo { address: place(*address) }
        }
        Expr::Nat { kind: NatKind::Source, .. } | Expr::Masquerade { .. } => Step::SourceNat,
        Expr::Redirect { port, .. } => Step::Redirect { port: port.map(place) },
        Expr::Counter { packets, bytes } => Step::Counter { packets: *packets, bytes: *bytes },
        Expr::Limit { over, rate, seconds, .. } => {
            let says = format!("limit rate {}{rate} in {seconds} s", over_word(*over));
            Step::Limit { over: *over, says: Some(says) }
        }
        Expr::Log { .. } => effect("log"),
        Expr::Reject { kind, code } => Step::Reject { with: refusal(*kind, *code, family) },
        Expr::Notrack => effect("notrack"),
        Expr::Rt { .. } => unknown("rt"),
        Expr::ToNetworkOrder { .. } => unknown("byteorder"),
        Expr::Other { name, attributes } => other(name, attributes),
        _ => unknown("expression"),
    }
}

/// Maps an expression that the kernel crate does not decode.
fn other(name: &str, attributes: &[u8]) -> Step {
    match name {
        // NFTA_OBJREF_IMM_TYPE: the rule goes on after counters, helpers, timeouts and marks of
        // security modules; quotas and limits may end it.
        "objref" => match number(attributes, 1) {
            Some(1 | 3 | 7 | 8) => effect("objref"),
            _ => unknown("objref"),
        },
        // With NFTA_PAYLOAD_SREG it writes.
        "payload" if number(attributes, 5).is_some() => {
            write(attributes).unwrap_or_else(|| effect("payload"))
        }
        // NFTA_QUEUE_NUM, _TOTAL and _FLAGS. Without the first, a register has the number.
        "queue" => match short(attributes, 1) {
            Some(first) => {
                let total = short(attributes, 2).unwrap_or(1);
                queue(first, total, short(attributes, 3).unwrap_or_default())
            }
            None => Step::Verdict(Verdict::Queue),
        },
        "masq" => Step::SourceNat,
        // To a range of addresses. NFTA_NAT_TYPE: 0 is the source.
        "nat" if number(attributes, 1) == Some(0) => Step::SourceNat,
        "nat" => Step::DestinationNat { address: None, port: None },
        // NFTA_LIMIT_FLAGS and NFTA_CONNLIMIT_FLAGS: the first bit inverts.
        "limit" => limit(name, attributes),
        "connlimit" => limit(name, attributes),
        "dynset" => dynamic(attributes).unwrap_or_else(|| unknown(name)),
        "last" | "dup" | "flow_offload" => effect(name),
        _ => unknown(name),
    }
}

fn over_word(over: bool) -> &'static str {
    if over { "over " } else { "" }
}

/// Maps a limit of a rate, or of connections.
fn limit(name: &str, attributes: &[u8]) -> Step {
    match name {
        "connlimit" => {
            let over = number(attributes, 2).unwrap_or_default() & 1 == 1;
            let count = number(attributes, 1);
            let says = count.map(|count| format!("ct count {}{count}", over_word(over)));
            Step::Limit { over, says }
        }
        _ => {
            let over = number(attributes, 5).unwrap_or_default() & 1 == 1;
            Step::Limit {
                over,
                says: Some(format!("limit rate {}", over_word(over)).trim().to_owned()),
            }
        }
    }
}

/// Maps what adds an element to a set, each with a limit of its own (NFTA_DYNSET_EXPR, _EXPRESSIONS).
/// With more than one expression, or another one, it is not known.
fn dynamic(attributes: &[u8]) -> Option<Step> {
    let inner = match attribute(attributes, 7) {
        Some(inner) => inner,
        None => attribute(attribute(attributes, 10)?, 1)?,
    };
    // NFTA_EXPR_NAME and NFTA_EXPR_DATA.
    let name = std::str::from_utf8(attribute(inner, 1)?).ok()?.trim_end_matches('\0');
    if !["limit", "connlimit"].contains(&name) {
        return None;
    }
    match limit(name, attribute(inner, 2)?) {
        Step::Limit { over, says } => {
            let says = says.map(|says| format!("{says} for each element of a set"));
            Some(Step::Limit { over, says })
        }
        _ => None,
    }
}

/// Maps an expression that writes to the packet, and to a header's own checksum.
fn write(attributes: &[u8]) -> Option<Step> {
    let number = |kind| number(attributes, kind);
    // NFTA_PAYLOAD_BASE, _OFFSET, _LEN and _SREG.
    let base = match number(2)? {
        0 => Header::Link,
        1 => Header::Network,
        2 => Header::Transport,
        _ => return None,
    };
    let from = place(Register::from_number(number(5)?)?);
    Some(Step::Write { base, offset: number(3)?, len: number(4)?, from })
}

/// Maps what puts packets into one of several queues. Expression and target have the same flags;
/// the first lets packets pass that no program reads (NFT_QUEUE_FLAG_BYPASS, NFQ_FLAG_BYPASS).
pub(super) fn queue(first: u16, total: u16, flags: u16) -> Step {
    let last = first.saturating_add(total.saturating_sub(1));
    Step::Queue { first, last, bypass: flags & 1 == 1 }
}

/// Returns a number of an expression's attributes, in the network's byte order.
fn number(attributes: &[u8], kind: u16) -> Option<u32> {
    attribute(attributes, kind)?.get(..4)?.try_into().ok().map(u32::from_be_bytes)
}

/// The same for a number of 16 bits.
fn short(attributes: &[u8], kind: u16) -> Option<u16> {
    attribute(attributes, kind)?.get(..2)?.try_into().ok().map(u16::from_be_bytes)
}

/// Returns the value of one of an expression's attributes (`struct nlattr`).
fn attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(attributes.get(..2)?.try_into().ok()?));
        let found = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?) & 0x3fff;
        let value = attributes.get(4..length)?;
        if found == kind {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

/// Maps a verdict; `None` for one whose meaning is not known.
pub(super) fn verdict(said: &KernelVerdict) -> Option<Verdict> {
    Some(match said {
        KernelVerdict::Accept => Verdict::Accept,
        KernelVerdict::Drop => Verdict::Drop,
        KernelVerdict::Continue => Verdict::Continue,
        KernelVerdict::Return => Verdict::Return,
        KernelVerdict::Jump(chain) => Verdict::Jump(chain.clone()),
        KernelVerdict::Goto(chain) => Verdict::Goto(chain.clone()),
        KernelVerdict::Other(code) if code & 0xff == QUEUE => Verdict::Queue,
        _ => return None,
    })
}

/// Returns how a refusal is written by nft.
fn refusal(kind: RejectKind, code: u8, family: Family) -> String {
    match kind {
        RejectKind::TcpReset => "tcp reset".to_owned(),
        RejectKind::Icmpx => with_code("icmpx", xtables::ICMPX, code),
        RejectKind::Icmp if family == Family::Ip6 => with_code("icmpv6", xtables::ICMPV6, code),
        RejectKind::Icmp => with_code("icmp", xtables::ICMP, code),
    }
}

fn with_code(protocol: &str, names: &[(u8, &str)], code: u8) -> String {
    match names.iter().find(|(number, _)| *number == code) {
        Some((_, name)) => format!("{protocol} {name}"),
        None => format!("{protocol} {code}"),
    }
}

pub(super) fn effect(name: &str) -> Step {
    Step::Effect { name: name.to_owned() }
}

pub(super) fn unknown(name: &str) -> Step {
    Step::Unknown { name: name.to_owned() }
}

fn place(register: Register) -> u32 {
    register.place().into()
}

fn meta(key: MetaKey) -> Meta {
    match key {
        MetaKey::IifName => Meta::IifName,
        MetaKey::OifName => Meta::OifName,
        MetaKey::Iif => Meta::Iif,
        MetaKey::Oif => Meta::Oif,
        MetaKey::L4Proto => Meta::L4Proto,
        MetaKey::NfProto => Meta::NfProto,
        MetaKey::Protocol => Meta::Protocol,
        MetaKey::Mark => Meta::Mark,
        // linux include/uapi/linux/netfilter/nf_tables.h NFT_META_*.
        MetaKey::IifType => Meta::Other(8),
        MetaKey::SocketUser => Meta::Other(10),
        MetaKey::BridgeIifName => Meta::Other(17),
        MetaKey::PktType => Meta::Other(19),
        MetaKey::Other(number) => Meta::Other(number),
        _ => Meta::Other(u32::MAX),
    }
}

fn header(base: PayloadBase) -> Option<Header> {
    match base {
        PayloadBase::Link => Some(Header::Link),
        PayloadBase::Network => Some(Header::Network),
        PayloadBase::Transport => Some(Header::Transport),
        _ => None,
    }
}

fn compare(op: CmpOp) -> Comparison {
    match op {
        CmpOp::Eq => Comparison::Equal,
        CmpOp::Ne => Comparison::NotEqual,
        CmpOp::Lt => Comparison::Less,
        CmpOp::Le => Comparison::LessOrEqual,
        CmpOp::Gt => Comparison::Greater,
        CmpOp::Ge => Comparison::GreaterOrEqual,
    }
}

fn connection(key: CtKey) -> Connection {
    match key {
        CtKey::State => Connection::State,
        CtKey::Status => Connection::Status,
        CtKey::Mark => Connection::Mark,
        // linux include/uapi/linux/netfilter/nf_tables.h NFT_CT_*.
        CtKey::Direction => Connection::Other(1),
        CtKey::L3Proto => Connection::Other(7),
        CtKey::Protocol => Connection::Other(10),
        CtKey::SourcePort => Connection::Other(11),
        CtKey::DestinationPort => Connection::Other(12),
        CtKey::SourceIp => Connection::Other(19),
        CtKey::DestinationIp => Connection::Other(20),
        CtKey::SourceIp6 => Connection::Other(21),
        CtKey::DestinationIp6 => Connection::Other(22),
        CtKey::Other(number) => Connection::Other(number),
        _ => Connection::Other(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(expr: &Expr) -> Step {
        step(expr, Family::Inet)
    }

    #[test]
    fn what_decides_keeps_its_meaning() {
        let first = Register::FIRST;
        assert_eq!(
            of(&Expr::Cmp { op: CmpOp::Ne, register: first, data: vec![6] }),
            Step::Compare { op: Comparison::NotEqual, from: 0, with: vec![6] }
        );
        let ninth = Register::new(9).unwrap();
        assert_eq!(
            of(&Expr::Lookup { set: "s".into(), register: ninth, to: LookupTo::NoMatch }),
            Step::Lookup { set: "s".into(), from: 9, invert: true, to: None }
        );
        assert_eq!(
            of(&Expr::Lookup { set: "m".into(), register: first, to: LookupTo::Verdict }),
            Step::Lookup { set: "m".into(), from: 0, invert: false, to: Some(MapTo::Verdict) }
        );
        assert_eq!(
            of(&Expr::Verdict(KernelVerdict::Goto("c".into()))),
            Step::Verdict(Verdict::Goto("c".into()))
        );
        // Queue 2, as the kernel numbers it.
        assert_eq!(
            of(&Expr::Verdict(KernelVerdict::Other(0x2_0003))),
            Step::Verdict(Verdict::Queue)
        );
        assert_eq!(of(&Expr::Verdict(KernelVerdict::Other(9))), unknown("VERDICT"));
        assert_eq!(
            of(&Expr::Reject { kind: RejectKind::Icmpx, code: 3 }),
            Step::Reject { with: "icmpx admin-prohibited".to_owned() }
        );
        assert_eq!(
            step(&Expr::Reject { kind: RejectKind::Icmp, code: 4 }, Family::Ip6),
            Step::Reject { with: "icmpv6 port-unreachable".to_owned() }
        );
    }

    #[test]
    fn what_is_not_decoded_is_unknown_unless_it_goes_on_in_any_case() {
        let attribute = |kind: u16, number: u32| {
            let mut bytes = 8_u16.to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(number.to_be_bytes());
            bytes
        };
        let other = |name: &str, attributes| of(&Expr::Other { name: name.into(), attributes });
        assert_eq!(other("quota", Vec::new()), unknown("quota"));
        assert_eq!(other("nat", attribute(1, 0)), Step::SourceNat);
        assert_eq!(other("objref", attribute(1, 1)), effect("objref"));
        assert_eq!(other("objref", attribute(1, 2)), unknown("objref"));
        let two = [attribute(1, 7), attribute(2, 1)].concat();
        let over = |says: Option<&str>| Step::Limit { over: true, says: says.map(str::to_owned) };
        assert_eq!(other("connlimit", two), over(Some("ct count over 7")));
        let count = [8, 0, 1, 0, 0, 0, 0, 5, 8, 0, 2, 0, 0, 0, 0, 1];
        assert_eq!(other("connlimit", count.to_vec()), over(Some("ct count over 5")));
        let padded = |kind: u16, value: &[u8]| {
            let length = u16::try_from(value.len() + 4).unwrap();
            let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        // A set whose elements each have a limit.
        let expr = [padded(1, b"connlimit\0"), padded(0x8002, &count)].concat();
        let one = padded(0x8007, &expr);
        let each = "ct count over 5 for each element of a set";
        assert_eq!(other("dynset", one), over(Some(each)));
        let list = padded(0x800a, &padded(0x8001, &expr));
        assert_eq!(other("dynset", list), over(Some(each)));
        let counter = padded(0x8007, &padded(1, b"counter\0"));
        assert_eq!(other("dynset", counter), unknown("dynset"));
        assert_eq!(other("payload", attribute(5, 1)), effect("payload"));
        // ip ttl set, which writes two bytes for the header's checksum.
        let parts = [(2, 1), (3, 8), (4, 2), (5, 1), (6, 1), (7, 10), (8, 0)];
        let ttl = parts.map(|(kind, number)| attribute(kind, number)).concat();
        let written = Step::Write { base: Header::Network, offset: 8, len: 2, from: 0 };
        assert_eq!(other("payload", ttl), written);
        assert_eq!(other("payload", attribute(1, 1)), unknown("payload"));
        // Cut off, and of a length that leads nowhere.
        let rate = Step::Limit { over: false, says: Some("limit rate".to_owned()) };
        assert_eq!(other("limit", vec![1]), rate);
        assert_eq!(other("limit", vec![0; 8]), rate);
        assert_eq!(
            of(&Expr::MetaSet { key: MetaKey::Mark, register: Register::FIRST }),
            Step::Mark { from: 0 }
        );
    }

    #[test]
    fn queues_are_told_by_their_numbers() {
        let attribute = |kind: u16, number: u16| {
            let mut bytes = 6_u16.to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(number.to_be_bytes());
            bytes.extend([0; 2]);
            bytes
        };
        let of = |parts: &[(u16, u16)]| {
            let parts = parts.iter().map(|(kind, number)| attribute(*kind, *number));
            let attributes = parts.collect::<Vec<_>>().concat();
            of(&Expr::Other { name: "queue".into(), attributes })
        };
        // queue num 7; queue flags bypass,fanout to 7-10; queue to symhash mod 4.
        assert_eq!(of(&[(1, 7), (2, 1), (3, 0)]), Step::Queue { first: 7, last: 7, bypass: false });
        assert_eq!(of(&[(1, 7), (2, 4), (3, 3)]), Step::Queue { first: 7, last: 10, bypass: true });
        assert_eq!(of(&[(3, 0)]), Step::Verdict(Verdict::Queue));
    }

    #[test]
    fn steps_keep_their_order() {
        let mut comment = b"kubernetes forwarding rules".to_vec();
        comment.resize(256, 0);
        let exprs = [
            Expr::XtMatch { name: "comment".into(), revision: 0, info: comment },
            Expr::Counter { packets: 3, bytes: 180 },
            Expr::Verdict(KernelVerdict::Drop),
        ];
        let (mapped, sets) = steps(&exprs, Family::Ip, 7);
        let expected = [
            effect("comment"),
            Step::Counter { packets: 3, bytes: 180 },
            Step::Verdict(Verdict::Drop),
        ];
        assert_eq!((mapped.as_slice(), sets.len()), (&expected[..], 0));
    }
}
