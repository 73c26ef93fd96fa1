//! What a rule means, however it is written.
//!
//! `nft -f` writes other expressions for the rules that `nft list ruleset` has shown. Two rules
//! have equal meanings if they differ only in this:
//!
//! - A prefix is compared by a mask, or by its first bytes alone.
//! - Bytes that follow each other are compared at once, or one after the other.
//! - More bytes of the packet are loaded than are compared.
//! - One bit is compared with 0 by `!=`, or with 1 by `==`.
//! - A range is compared by its two ends, or at once; a range of one value by `==`.
//! - The EtherType of a frame is compared in the frame, or beside it.
//! - The IP version is compared, or ICMPv6 or a translation implies it; TCP is compared, or a reset
//!   implies it.
//! - Registers, the order of comparisons, and counters.
//!
//! nft does not show a protocol that a field implies, but it writes that comparison again when it
//! loads the rule (nftables src/payload.c `payload_gen_dependency`).
//!
//! A later kernel or nft may write a match in a form that we cannot read. Then that match may be any
//! of those that the rule should have, and that are missing.

use kernel::nft::{
    BitwiseExpr, CmpOp, CtDirection, CtKey, Expr, Family, FibFlags, FibResult, KeyType, LookupTo,
    MetaKey, NatKind, PayloadBase, Register, RejectKind, RtKey, Verdict,
};

/// Returns the types of a set's key, by the set's name; none of a set that is not ours.
pub(crate) type SetKeys<'a> = &'a dyn Fn(&str) -> Vec<KeyType>;

/// What is known of the EtherType beside the packet.
const ETHERTYPE: Source = Source::Meta(MetaKey::Protocol);
/// RFC 4443 §2.1: the protocol number of ICMPv6.
const ICMP6: Bits = Bits { of: Source::Meta(MetaKey::L4Proto), byte: 0, mask: u8::MAX, value: 58 };
/// RFC 9293 §7: the protocol number of TCP.
const TCP: Bits = Bits { of: Source::Meta(MetaKey::L4Proto), byte: 0, mask: u8::MAX, value: 6 };
/// `linux include/uapi/linux/netfilter/nf_nat.h` NF_NAT_RANGE_MAP_IPS and
/// NF_NAT_RANGE_PROTO_SPECIFIED: the kernel adds them where there is an address, and a port.
const IMPLIED: u32 = 0b11;
/// The number of places that registers have.
const PLACES: usize = 16;
/// How long a place is.
const PLACE: usize = 4;

/// A rule.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Meaning {
    /// What a packet must be; sorted.
    conditions: Vec<Condition>,
    /// What else happens, in this order.
    acts: Vec<Act>,
    /// There are conditions that we cannot read.
    is_unread: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Act {
    Decides(Verdict),
    /// It looks a key up in a set or map: where the parts come from, if the set is ours. `to` names
    /// the first register, if it names one.
    Asks {
        set: String,
        key: Vec<(Source, u32)>,
        to: LookupTo,
    },
    /// It translates to an address and a port. `flags` are those that it does not imply.
    Translates {
        kind: NatKind,
        family: Family,
        to: [Option<Box<RegisterContent>>; 2],
        flags: u32,
    },
    Masquerades {
        flags: u32,
    },
    /// It writes into the packet.
    Writes {
        base: PayloadBase,
        offset: u32,
        len: u32,
        value: Box<RegisterContent>,
    },
    /// It changes what is known of the packet.
    Sets {
        key: MetaKey,
        value: Box<RegisterContent>,
    },
    /// It writes into an option of the TCP header.
    WritesOption {
        option: u8,
        offset: u32,
        len: u32,
        value: Box<RegisterContent>,
    },
    /// It does something for which it needs no register.
    Does(Box<Expr>),
    /// It does what no rule of ours does.
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Condition {
    Is(Bits),
    Compares(CmpOp, Vec<Bits>),
    /// Both ends of a range.
    Outside(Vec<Bits>),
}

impl Condition {
    /// Says whether it compares what we could not read.
    fn is_unread(&self) -> bool {
        match self {
            Condition::Is(bits) => bits.of == Source::Other,
            Condition::Compares(_, all) | Condition::Outside(all) => {
                all.iter().any(|bits| bits.of == Source::Other)
            }
        }
    }
}

/// Some bits of one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Bits {
    of: Source,
    byte: u32,
    mask: u8,
    value: u8,
}

/// Where a byte comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Packet(PayloadBase),
    Meta(MetaKey),
    Connection(CtKey, Option<CtDirection>),
    Routes(FibResult, FibFlags),
    Route(RtKey),
    /// The rule has it.
    Constant,
    /// The map that was asked last.
    Map,
    /// From where no rule of ours has it.
    Other,
}

/// What a register contains.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RegisterContent {
    of: Source,
    first: u32,
    /// How many bytes, if it says so: the kernel puts zeros behind them.
    len: Option<u32>,
    mask: Vec<u8>,
    xor: Vec<u8>,
}

impl RegisterContent {
    fn new(of: Source, first: u32) -> Self {
        RegisterContent { of, first, len: None, mask: Vec::new(), xor: Vec::new() }
    }

    fn constant(data: &[u8]) -> Self {
        let (mask, xor) = (vec![0; data.len()], data.to_vec());
        RegisterContent { mask, xor, ..RegisterContent::new(Source::Constant, 0) }
    }

    /// Returns where it comes from, as the part of a key that has this many bytes.
    fn part(&self, size: usize) -> (Source, u32) {
        let is_changed = !self.mask.is_empty() || !self.xor.is_empty();
        let is_whole = self.len.is_none_or(|len| usize::try_from(len) == Ok(size));
        if is_changed || !is_whole { (Source::Other, 0) } else { (self.of, self.first) }
    }

    fn mask(&self, at: usize) -> u8 {
        self.mask.get(at).copied().unwrap_or(u8::MAX)
    }

    fn xor(&self, at: usize) -> u8 {
        self.xor.get(at).copied().unwrap_or(0)
    }

    fn masked(&self, by: &BitwiseExpr) -> Self {
        let mask = by.mask.iter().enumerate().map(|(at, mask)| self.mask(at) & mask);
        let both = by.mask.iter().zip(&by.xor).enumerate();
        let xor = both.map(|(at, (mask, xor))| (self.xor(at) & mask) ^ xor);
        let (mask, xor) = (mask.collect(), xor.collect());
        RegisterContent { of: self.of, first: self.first, len: self.len, mask, xor }
    }

    /// The bits that are compared with these bytes. A byte that is masked away counts only if it
    /// never has its value.
    fn bits(&self, data: &[u8]) -> Vec<Bits> {
        let bits = data.iter().zip(0_u32..).enumerate().map(|(at, (value, byte))| Bits {
            of: if self.len.is_none_or(|len| byte < len) { self.of } else { Source::Other },
            byte: self.first.saturating_add(byte),
            mask: self.mask(at),
            value: value ^ self.xor(at),
        });
        bits.filter(|bits| bits.mask != 0 || bits.value != 0).collect()
    }
}

impl Bits {
    fn is_one_bit(&self) -> bool {
        self.mask.is_power_of_two() && (self.value == 0 || self.value == self.mask)
    }
}

/// What the registers contain.
#[derive(Debug, Default)]
struct Registers([Option<RegisterContent>; PLACES]);

impl Registers {
    fn put(&mut self, register: Register, loaded: RegisterContent) {
        let place = usize::from(register.place());
        if loaded.of == Source::Map {
            // A map's value takes more than one place.
            self.0.iter_mut().skip(place).for_each(|behind| *behind = None);
        }
        if let Some(at) = self.0.get_mut(place) {
            *at = Some(loaded);
        }
    }

    fn at(&self, register: Register) -> RegisterContent {
        let place = usize::from(register.place());
        let before = self.0.get(..=place).unwrap_or_default();
        let mut held = before.iter().rev().enumerate();
        let nearest = held.find_map(|(behind, held)| Some((behind, held.as_ref()?)));
        match nearest {
            Some((0, loaded)) => loaded.clone(),
            Some((behind, RegisterContent { of: Source::Map, .. })) => {
                let first = u32::try_from(behind * PLACE).unwrap_or(u32::MAX);
                RegisterContent::new(Source::Map, first)
            }
            _ => RegisterContent::new(Source::Other, 0),
        }
    }

    /// Returns where the parts of a key come from; nothing for a set that is not ours.
    fn key(&self, kinds: Vec<KeyType>, first: Register) -> Vec<(Source, u32)> {
        let mut parts = Vec::with_capacity(kinds.len());
        let mut next = Some(first);
        for kind in kinds {
            let Some(register) = next else { break };
            parts.push(self.at(register).part(kind.size()));
            next = register.behind(kind.size());
        }
        parts
    }
}

impl Meaning {
    /// Reads a rule of a table of this family, whose sets have these keys.
    pub(crate) fn of(family: Family, sets: SetKeys<'_>, rule: &[Expr]) -> Self {
        let mut meaning = Meaning::default();
        let mut registers = Registers::default();
        for expr in rule {
            match loads(expr) {
                Some((register, loaded)) => registers.put(register, loaded),
                None => meaning.read(expr, sets, &mut registers),
            }
        }
        meaning.join_ranges();
        meaning.join_protocols(family);
        cni::order::sort(&mut meaning.conditions);
        meaning.conditions.dedup();
        meaning
    }

    /// Says whether a rule means the same as one of ours, as far as we can read it.
    pub(crate) fn agrees(&self, ours: &Meaning) -> bool {
        let is_ours = |found: &Condition| found.is_unread() || ours.conditions.contains(found);
        let is_missing = |wanted: &Condition| !self.conditions.contains(wanted);
        let agree = match self.is_unread {
            true => self.conditions.iter().all(is_ours) && ours.conditions.iter().any(is_missing),
            false => self.conditions == ours.conditions,
        };
        agree && self.acts == ours.acts
    }

    fn read(&mut self, expr: &Expr, sets: SetKeys<'_>, registers: &mut Registers) {
        match expr {
            Expr::Bitwise(by) => {
                let masked = registers.at(by.source).masked(by);
                registers.put(by.register, masked);
            }
            Expr::Cmp { op, register, data } => {
                self.note_condition();
                self.compare(*op, registers.at(*register).bits(data));
            }
            Expr::Range { invert, register, from, to } => {
                self.note_condition();
                let loaded = registers.at(*register);
                let (from, to) = (loaded.bits(from), loaded.bits(to));
                if *invert {
                    self.conditions.push(Condition::Outside([from, to].concat()));
                } else {
                    self.compare(CmpOp::Ge, from);
                    self.compare(CmpOp::Le, to);
                }
            }
            Expr::Lookup { set, register, to } => {
                let key = registers.key(sets(set), *register);
                let to = match to {
                    LookupTo::Register(register) => {
                        registers.put(*register, RegisterContent::new(Source::Map, 0));
                        LookupTo::Register(Register::FIRST)
                    }
                    other => *other,
                };
                self.acts.push(Act::Asks { set: set.clone(), key, to });
            }
            Expr::ToNetworkOrder { register, .. } => {
                self.is_unread = true;
                registers.put(*register, RegisterContent::new(Source::Other, 0));
            }
            Expr::Other { name, .. } if only_matches(name) => {
                self.note_condition();
                self.is_unread = true;
                // It may have written to any.
                *registers = Registers::default();
            }
            other => self.acts.extend(act(other, registers)),
        }
    }

    /// Notes that a condition comes. After something has happened, no rule of ours has one.
    fn note_condition(&mut self) {
        if self.acts.iter().any(|act| !matches!(act, Act::Asks { .. })) {
            self.acts.push(Act::Other);
        }
    }

    fn compare(&mut self, op: CmpOp, bits: Vec<Bits>) {
        let single = match bits.as_slice() {
            [bits] if bits.is_one_bit() => Some(*bits),
            _ => None,
        };
        match (op, single) {
            (CmpOp::Eq, _) => self.conditions.extend(bits.into_iter().map(Condition::Is)),
            (CmpOp::Ne, Some(bit)) => {
                let value = bit.value ^ bit.mask;
                self.conditions.push(Condition::Is(Bits { value, ..bit }));
            }
            _ => self.conditions.push(Condition::Compares(op, bits)),
        }
    }

    /// Makes one value of a range whose ends are equal.
    fn join_ranges(&mut self) {
        let start = |condition: &Condition| match condition {
            Condition::Compares(CmpOp::Ge, bits) => Some(bits.clone()),
            _ => None,
        };
        let starts: Vec<Vec<Bits>> = self.conditions.iter().filter_map(start).collect();
        for bits in starts {
            let start = Condition::Compares(CmpOp::Ge, bits.clone());
            let end = Condition::Compares(CmpOp::Le, bits.clone());
            if self.conditions.contains(&end) {
                self.conditions.retain(|condition| *condition != start && *condition != end);
                self.compare(CmpOp::Eq, bits);
            }
        }
    }

    /// Makes one comparison of those that say the same of the protocols below a field.
    fn join_protocols(&mut self, table: Family) {
        for condition in &mut self.conditions {
            if let Condition::Is(bits) = condition
                && table == Family::Bridge
                && bits.of == Source::Packet(PayloadBase::Link)
                && matches!(bits.byte, 12 | 13)
            {
                *bits = Bits { of: ETHERTYPE, byte: bits.byte - 12, ..*bits };
            }
        }
        // nftables src/evaluate.c `stmt_evaluate_reset`.
        if self.acts.iter().any(resets) {
            self.conditions.push(Condition::Is(TCP));
        }
        // A translation leaves packets of the other version alone (linux net/netfilter/nft_nat.c
        // `nft_nat_inet_eval`).
        let translates = |act: &Act| match act {
            Act::Translates { family, .. } => Some(*family),
            _ => None,
        };
        let is_icmp6 = self.conditions.contains(&Condition::Is(ICMP6));
        let implied =
            self.acts.iter().filter_map(translates).chain(is_icmp6.then_some(Family::Ip6));
        let implied: Vec<Family> = implied.collect();
        for version in implied {
            self.require(table, version);
        }
    }

    /// Adds the comparison that nft writes for an IP version.
    fn require(&mut self, table: Family, version: Family) {
        // NFPROTO_* of linux include/uapi/linux/netfilter.h, and EtherTypes (RFC 9542).
        let (number, ethertype): (u8, u16) = match version {
            Family::Ip => (2, 0x0800),
            Family::Ip6 => (10, 0x86dd),
            _ => return,
        };
        let (of, bytes) = match table {
            Family::Bridge => (ETHERTYPE, ethertype.to_be_bytes().to_vec()),
            _ => (Source::Meta(MetaKey::NfProto), vec![number]),
        };
        for (byte, value) in (0..).zip(bytes) {
            self.conditions.push(Condition::Is(Bits { of, byte, mask: u8::MAX, value }));
        }
    }
}

/// Returns the register into which an expression loads something of the packet, and what.
fn loads(expr: &Expr) -> Option<(Register, RegisterContent)> {
    let (register, of, first) = match expr {
        Expr::Payload { base, offset, len, register } => {
            let loaded = RegisterContent::new(Source::Packet(*base), *offset);
            return Some((*register, RegisterContent { len: Some(*len), ..loaded }));
        }
        Expr::Meta { key, register } => (register, Source::Meta(*key), 0),
        Expr::Ct { key, direction, register } => {
            (register, Source::Connection(*key, *direction), 0)
        }
        Expr::Fib { result, flags, register } => (register, Source::Routes(*result, *flags), 0),
        Expr::Rt { key: RtKey::Other(_), register } => (register, Source::Other, 0),
        Expr::Rt { key, register } => (register, Source::Route(*key), 0),
        Expr::Immediate { register, data } => {
            return Some((*register, RegisterContent::constant(data)));
        }
        _ => return None,
    };
    Some((*register, RegisterContent::new(of, first)))
}

/// Says whether an expression with this name changes nothing but registers.
fn only_matches(name: &str) -> bool {
    matches!(name, "cmp" | "range" | "bitwise" | "byteorder" | "fib")
}

fn resets(act: &Act) -> bool {
    matches!(act, Act::Does(expr) if matches!(**expr, Expr::Reject { kind: RejectKind::TcpReset, .. }))
}

fn act(expr: &Expr, registers: &Registers) -> Option<Act> {
    let held = |register: Option<Register>| register.map(|from| Box::new(registers.at(from)));
    Some(match expr {
        Expr::Verdict(verdict) => Act::Decides(verdict.clone()),
        Expr::Nat { kind, family, address, port, flags } => Act::Translates {
            kind: *kind,
            family: *family,
            to: [held(*address), held(*port)],
            flags: flags & !IMPLIED,
        },
        Expr::Masquerade { flags } => Act::Masquerades { flags: *flags },
        Expr::PayloadSet { base, offset, len, register } => Act::Writes {
            base: *base,
            offset: *offset,
            len: *len,
            value: Box::new(registers.at(*register)),
        },
        Expr::MetaSet { key, register } => {
            Act::Sets { key: *key, value: Box::new(registers.at(*register)) }
        }
        Expr::TcpOptionSet { option, offset, len, register } => Act::WritesOption {
            option: *option,
            offset: *offset,
            len: *len,
            value: Box::new(registers.at(*register)),
        },
        Expr::Limit { .. } | Expr::Log { .. } | Expr::Reject { .. } | Expr::Notrack => {
            Act::Does(Box::new(expr.clone()))
        }
        Expr::Counter { .. } => return None,
        _ => Act::Other,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::{IpAddr, Ipv6Addr};

    use kernel::nft::field::Ip6Address;
    use kernel::nft::{NewRule, TableRef, Value, field};
    use kernel::route::IpFamily;

    use super::*;
    use crate::element::Table;
    use crate::layout::{self, net, set_keys};

    fn read(family: Family, rule: &[Expr]) -> Meaning {
        Meaning::of(family, &set_keys, rule)
    }

    fn rule() -> NewRule {
        NewRule::new(&TableRef::new(Family::Inet, "t"), "c")
    }

    fn load(base: PayloadBase, offset: u32, len: u32) -> Expr {
        Expr::Payload { base, offset, len, register: Register::FIRST }
    }

    fn cmp(op: CmpOp, data: &[u8]) -> Expr {
        Expr::Cmp { op, register: Register::FIRST, data: data.to_vec() }
    }

    fn meta(key: MetaKey, data: &[u8]) -> Vec<Expr> {
        vec![Expr::Meta { key, register: Register::FIRST }, cmp(CmpOp::Eq, data)]
    }

    fn of(rule: &NewRule) -> Meaning {
        read(Family::Inet, &rule.exprs)
    }

    /// As nft writes them: nftables src/netlink_linearize.c `netlink_gen_relational`,
    /// `netlink_gen_range`, `netlink_gen_flagcmp`, src/rule.c `stmt_reduce`, and src/payload.c
    /// `payload_gen_dependency`.
    #[test]
    fn other_words_mean_the_same() {
        use CmpOp::{Eq, Ge, Le, Ne};
        let network = PayloadBase::Network;
        let group = rule().in_net(field::ip6_daddr(), net("ff00::/8"));
        let both = rule()
            .in_net(field::ip_saddr(), net("192.0.2.1/32"))
            .in_net(field::ip_daddr(), net("192.0.2.0/24"));
        let translated = rule().has_any(field::ct_status(), field::ct_status_bits::DNAT);
        let status = Expr::Ct { key: CtKey::Status, direction: None, register: Register::FIRST };
        let bit = field::ct_status_bits::DNAT.to_ne_bytes();
        let masked = Expr::Bitwise(BitwiseExpr {
            source: Register::FIRST,
            register: Register::FIRST,
            mask: bit.to_vec(),
            xor: vec![0; 4],
        });
        let one =
            rule().in_range(field::icmp6_type(), Value::Icmp6Type(133), Value::Icmp6Type(133));
        let range = |from: u8, to: u8| Expr::Range {
            invert: false,
            register: Register::FIRST,
            from: vec![from],
            to: vec![to],
        };
        let kind = load(PayloadBase::Transport, 0, 1);
        let some =
            rule().in_range(field::icmp6_type(), Value::Icmp6Type(135), Value::Icmp6Type(136));
        let elsewhere = rule().not_in_net(field::ip6_saddr(), net("ff00::/8"));
        let (ipv4, ipv6) = (meta(MetaKey::NfProto, &[2]), meta(MetaKey::NfProto, &[10]));
        let icmp6 = meta(MetaKey::L4Proto, &[58]);
        let tcp = meta(MetaKey::L4Proto, &[6]);
        let reset = Expr::Reject { kind: RejectKind::TcpReset, code: 0 };
        let (none, twice) = (Vec::new(), [ipv6.clone(), ipv6.clone()].concat());
        for (ours, protocol, theirs) in [
            (group, &ipv6, vec![load(network, 24, 1), cmp(Eq, &[0xff])]),
            (both, &ipv4, vec![load(network, 12, 7), cmp(Eq, &[192, 0, 2, 1, 192, 0, 2])]),
            (translated, &none, vec![status, masked, cmp(Eq, &bit)]),
            (one.clone(), &icmp6, vec![kind.clone(), cmp(Eq, &[133])]),
            (one, &icmp6, vec![kind.clone(), range(133, 133)]),
            (some.clone(), &icmp6, vec![kind.clone(), range(135, 136)]),
            (some, &icmp6, vec![kind, cmp(Le, &[136]), cmp(Ge, &[135])]),
            (rule().reject_with_reset(), &tcp, vec![reset]),
            (elsewhere, &twice, vec![load(network, 8, 1), cmp(Ne, &[0xff])]),
        ] {
            let theirs = [protocol.clone(), theirs].concat();
            assert_eq!(of(&ours), read(Family::Inet, &theirs), "{ours:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_makes_no_difference() {
        let shift = Expr::Other { name: "bitwise".to_owned(), attributes: vec![1] };
        let quota = Expr::Other { name: "quota".to_owned(), attributes: vec![1] };
        let ours = of(&rule().in_net(field::ip_saddr(), net("192.0.2.0/24")).drop());
        let ip_version = |number| meta(MetaKey::NfProto, &[number]);
        let load = load(PayloadBase::Network, 12, 4);
        let agrees = |version, what, verdict| {
            let unread = vec![load.clone(), what, cmp(CmpOp::Eq, &[1]), Expr::Verdict(verdict)];
            read(Family::Inet, &[ip_version(version), unread].concat()).agrees(&ours)
        };
        assert!(agrees(2, shift.clone(), Verdict::Drop));
        // What can be read is compared all the same.
        assert!(!agrees(10, shift.clone(), Verdict::Drop));
        assert!(!agrees(2, shift.clone(), Verdict::Accept));
        assert!(!agrees(2, quota, Verdict::Drop));
        // It is one more than there should be.
        let ours = of(&rule().masquerade());
        let theirs = [load.clone(), shift, cmp(CmpOp::Eq, &[1]), Expr::Masquerade { flags: 0 }];
        assert!(!read(Family::Inet, &theirs).agrees(&ours));
    }

    /// A frame with a tag has another type than its packet; nft writes either comparison.
    #[test]
    fn the_type_of_a_frame_is_read_in_it_or_beside_it() {
        let bridge = TableRef::new(Family::Bridge, "t");
        let ours = NewRule::new(&bridge, "c").in_net(field::ip_saddr(), net("192.0.2.1/32"));
        let ours = read(Family::Bridge, &ours.exprs);
        let ipv4 = cmp(CmpOp::Eq, &[0x08, 0x00]);
        for (protocol, is_same) in [
            (meta(MetaKey::Protocol, &[0x08, 0x00]), true),
            (vec![load(PayloadBase::Link, 12, 2), ipv4.clone()], true),
            (vec![load(PayloadBase::Link, 16, 2), ipv4], false),
            (meta(MetaKey::Protocol, &[0x08, 0x06]), false),
            (meta(MetaKey::NfProto, &[2]), false),
            (Vec::new(), false),
        ] {
            let address = [load(PayloadBase::Network, 12, 4), cmp(CmpOp::Eq, &[192, 0, 2, 1])];
            let theirs = [protocol, address.to_vec()].concat();
            assert_eq!(ours.agrees(&read(Family::Bridge, &theirs)), is_same, "{theirs:?}");
        }
    }

    /// Two rules that cannot be read would agree.
    #[test]
    fn every_rule_of_ours_is_read() {
        let of = |prefix: &str, source: Option<&str>| crate::masquerade::Outbound {
            network: "n".to_owned(),
            prefix: net(prefix),
            source: source.map(|source| source.parse().unwrap()),
        };
        let masquerades = BTreeSet::from([
            of("192.0.2.0/24", None),
            of("2001:db8::/64", None),
            of("192.0.2.0/24", Some("198.51.100.1")),
            of("2001:db8::/64", Some("2001:db8:1::1")),
        ]);
        for table in Table::ALL {
            let family = layout::table_ref(*table).family;
            for (chain, state) in layout::chains_with_rules(*table, &masquerades) {
                for rule in state.rules {
                    let rule = Meaning::of(family, &layout::set_keys, &rule);
                    let text = format!("{rule:?}");
                    assert!(!rule.is_unread, "{chain}: {text}");
                    assert!(!text.contains("Other") && !text.contains("key: []"), "{text}");
                }
            }
        }
    }

    #[test]
    fn a_constant_a_condition_or_a_set_makes_a_difference() {
        let from = |text: &str| rule().in_net(field::ip_saddr(), net(text));
        let links = |name: &str| rule().in_set(&[field::iifname()], name);
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        let rules = [
            rule().drop(),
            rule().accept(),
            from("192.0.2.0/24").drop(),
            from("192.0.2.0/25").drop(),
            from("192.0.2.128/25").drop(),
            from("0.0.0.0/0").is(field::ip_daddr(), address).drop(),
            rule().is(field::ip_saddr(), address).drop(),
            rule().is_not(field::ip_saddr(), address).drop(),
            rule().not_in_net(field::ip_saddr(), net("192.0.2.0/24")).drop(),
            rule().is(field::iifname(), Value::IfName("lo".to_owned())).drop(),
            rule().is_not(field::iifname(), Value::IfName("lo".to_owned())).drop(),
            rule().name_starts_with(field::iifname(), "lo").drop(),
            rule().has_any(field::ct_status(), field::ct_status_bits::DNAT).drop(),
            rule().has_none(field::ct_status(), field::ct_status_bits::DNAT).drop(),
            links("a").drop(),
            links("b").drop(),
            links("__set0").drop(),
            rule().not_in_set(&[field::iifname()], "a").drop(),
            rule().in_range(field::icmp6_type(), Value::Icmp6Type(1), Value::Icmp6Type(2)).drop(),
            rule().in_range(field::icmp6_type(), Value::Icmp6Type(1), Value::Icmp6Type(3)).drop(),
        ];
        all_differ(&rules);
    }

    #[track_caller]
    fn all_differ(rules: &[NewRule]) {
        for (at, one) in rules.iter().enumerate() {
            for other in &rules[..at] {
                assert!(!of(one).agrees(&of(other)), "{one:?}\n{other:?}");
            }
        }
    }

    #[test]
    fn a_protocol_makes_a_difference() {
        let port = |rule: NewRule| rule.is(field::th_dport(), Value::Port(67)).returns();
        let is = |field, value: Value| port(rule().is(field, value));
        all_differ(&[
            port(rule()),
            is(field::l4proto(), Value::TCP),
            is(field::l4proto(), Value::UDP),
            is(field::nfproto(), Value::NfProto(2)),
            is(field::nfproto(), Value::NfProto(10)),
            is(field::protocol(), Value::EtherType(0x0800)),
            is(field::protocol(), Value::EtherType(0x0806)),
            port(rule().is_not(field::l4proto(), Value::TCP)),
        ]);
    }

    #[test]
    fn what_a_rule_writes_and_what_it_looks_up_make_a_difference() {
        let [one, other]: [IpAddr; 2] = ["192.0.2.1", "192.0.2.2"].map(|at| at.parse().unwrap());
        let six = Ipv6Addr::LOCALHOST;
        let (iif, oif, mac) = (field::iifname(), field::oifname(), field::ether_saddr());
        let port = [field::l4proto(), field::th_dport()];
        let flags = |flags| rule().expr(Expr::Masquerade { flags });
        all_differ(&[
            rule().masquerade(),
            flags(4),
            rule().masquerade_fully_random(),
            rule().set_ip6(Ip6Address::Source, six),
            rule().set_ip6(Ip6Address::Source, Ipv6Addr::UNSPECIFIED),
            rule().set_ip6(Ip6Address::Destination, six),
            rule().set_mark(1),
            rule().snat(one),
            rule().dnat(one, None),
            rule().dnat(other, None),
            rule().dnat(one, Some(80)),
            rule().dnat(one, Some(81)),
            rule().dnat_to_map(IpFamily::V4, &port, "hostports4"),
            rule().dnat_to_map(IpFamily::V6, &port, "hostports4"),
            rule().dnat_to_map(IpFamily::V4, &[port[1], port[0]], "hostports4"),
            rule().in_set(&[iif], "localnet"),
            rule().in_set(&[oif], "localnet"),
            rule().load(&[iif]).expr(bitwise()).in_set(&[], "localnet"),
            rule().in_set(&[iif, mac], "spoof_allowed"),
            rule().in_set(&[iif, field::ether_daddr()], "spoof_allowed"),
            rule().vmap(&[iif, field::ip_saddr()], "masquerade4"),
            rule().vmap(&[iif, field::ip_daddr()], "masquerade4"),
            // What comes after it counts for nothing.
            rule().drop(),
            rule().is(field::nfproto(), Value::NfProto(2)).drop(),
            rule().drop().is(field::nfproto(), Value::NfProto(2)),
            rule().reject_with_reset(),
            rule().is(field::l4proto(), Value::UDP).reject_with_reset(),
            rule().limit(10, 10),
            rule().limit(10, 20),
            rule().log_to_group("a", 1, 64),
            rule().log_to_group("b", 1, 64),
            rule().log_to_group("a", 2, 64),
        ]);
    }

    /// nft does not write this: the kernel puts zeros in place of what is not loaded.
    #[test]
    fn how_much_is_loaded_makes_a_difference() {
        let compared = |len| {
            let exprs = [load(PayloadBase::Network, 12, len), cmp(CmpOp::Eq, &[192, 0])];
            read(Family::Inet, &exprs)
        };
        for (len, is_same) in [(1, false), (2, true), (4, true)] {
            assert_eq!(compared(len).agrees(&compared(2)), is_same, "{len}");
        }
        let key = [field::l4proto(), field::th_dport()];
        let ours = of(&rule().in_set(&key, "hostports4"));
        let asked = |len| {
            let register = Register::FIRST.behind(1).unwrap();
            let exprs = [
                Expr::Meta { key: MetaKey::L4Proto, register: Register::FIRST },
                Expr::Payload { base: PayloadBase::Transport, offset: 2, len, register },
                Expr::Lookup {
                    set: "hostports4".to_owned(),
                    register: Register::FIRST,
                    to: LookupTo::Match,
                },
            ];
            read(Family::Inet, &exprs)
        };
        for (len, is_same) in [(1, false), (2, true), (3, false)] {
            assert_eq!(asked(len).agrees(&ours), is_same, "{len}");
        }
    }

    fn bitwise() -> Expr {
        Expr::Bitwise(BitwiseExpr {
            source: Register::FIRST,
            register: Register::FIRST,
            mask: vec![0xff],
            xor: vec![0],
        })
    }

    /// The kernel adds flags that the registers imply, and nft may use others.
    #[test]
    fn a_translation_is_the_same_by_other_registers() {
        let port = [field::l4proto(), field::th_dport()];
        let ours = rule().dnat_to_map(IpFamily::V4, &port, "hostports4");
        let register = Register::new(4).unwrap();
        let family = Family::Ip;
        let theirs = rule()
            .is(field::nfproto(), Value::NfProto(2))
            .load(&port)
            .expr(Expr::Lookup {
                set: "hostports4".to_owned(),
                register: Register::FIRST,
                to: LookupTo::Register(register),
            })
            .expr(Expr::Nat {
                kind: NatKind::Destination,
                family,
                address: Some(register),
                port: register.behind(4),
                flags: IMPLIED,
            });
        assert_eq!(of(&ours), of(&theirs));
    }
}
