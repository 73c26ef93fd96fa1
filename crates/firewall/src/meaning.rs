//! What a rule means, however it is written.
//!
//! `nft -f` writes other expressions for the rules that `nft list ruleset` has shown. Two rules
//! have equal meanings if they differ only in this:
//!
//! - A prefix is compared by a mask, or by its first bytes alone.
//! - Bytes that follow each other are compared at once, or one after the other.
//! - One bit is compared with 0 by `!=`, or with 1 by `==`.
//! - A range is compared by its two ends, or at once; a range of one value by `==`.
//! - The protocol that a packet must have is compared, or is not: nft leaves it out where a field
//!   implies it, and adds it again.
//! - Registers, the order of comparisons, and counters.
//!
//! A later kernel or nft may write a match in a form that we cannot read. Then only what the rule
//! does is compared.

use std::collections::BTreeMap;

use kernel::nft::{
    BitwiseExpr, CmpOp, CtDirection, CtKey, Expr, FibFlags, FibResult, LookupTo, MetaKey, NatKind,
    PayloadBase, Register, Verdict,
};

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
    /// It asks a set or map; `absent`: it continues if the set does not have the key.
    Asks {
        set: String,
        absent: bool,
    },
    Translates(NatKind),
    Masquerades,
    /// It changes the packet, or what is known of it.
    Sets,
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
    /// From where no rule of ours has it.
    Other,
}

/// What a register contains.
#[derive(Debug, Clone)]
struct Loaded {
    of: Source,
    first: u32,
    mask: Vec<u8>,
    xor: Vec<u8>,
}

impl Loaded {
    fn new(of: Source, first: u32) -> Self {
        Loaded { of, first, mask: Vec::new(), xor: Vec::new() }
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
        Loaded { of: self.of, first: self.first, mask: mask.collect(), xor: xor.collect() }
    }

    /// The bits that are compared with these bytes. A byte that is masked away counts only if it
    /// never has its value.
    fn bits(&self, data: &[u8]) -> Vec<Bits> {
        let bits = data.iter().enumerate().map(|(at, value)| Bits {
            of: self.of,
            byte: self.first.saturating_add(u32::try_from(at).unwrap_or(u32::MAX)),
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

    /// Says whether they are the protocol of the packet, or of what is in it.
    fn are_of_protocol(&self) -> bool {
        match self.of {
            Source::Meta(key) => matches!(
                key,
                MetaKey::NfProto | MetaKey::Protocol | MetaKey::L4Proto | MetaKey::IifType
            ),
            // The EtherType.
            Source::Packet(PayloadBase::Link) => matches!(self.byte, 12 | 13),
            _ => false,
        }
    }
}

impl Meaning {
    pub(crate) fn of(rule: &[Expr]) -> Self {
        let mut meaning = Meaning::default();
        let mut registers = BTreeMap::new();
        for expr in rule {
            match loads(expr) {
                Some((register, loaded)) => {
                    registers.insert(register, loaded);
                }
                None => meaning.read(expr, &mut registers),
            }
        }
        meaning.join_ranges();
        cni::order::sort(&mut meaning.conditions);
        meaning.conditions.dedup();
        meaning
    }

    /// Says whether two rules mean the same, as far as we can read them.
    pub(crate) fn agrees(&self, other: &Meaning) -> bool {
        let is_unread = self.is_unread || other.is_unread;
        self.acts == other.acts && (is_unread || self.conditions == other.conditions)
    }

    fn read(&mut self, expr: &Expr, registers: &mut BTreeMap<Register, Loaded>) {
        let at = |register: &Register| match registers.get(register) {
            Some(loaded) => loaded.clone(),
            None => Loaded::new(Source::Other, 0),
        };
        match expr {
            Expr::Bitwise(by) => {
                let masked = at(&by.source).masked(by);
                registers.insert(by.register, masked);
            }
            Expr::Cmp { op, register, data } => self.compare(*op, at(register).bits(data)),
            Expr::Range { invert, register, from, to } => {
                let loaded = at(register);
                let (from, to) = (loaded.bits(from), loaded.bits(to));
                if *invert {
                    self.conditions.push(Condition::Outside([from, to].concat()));
                } else {
                    self.compare(CmpOp::Ge, from);
                    self.compare(CmpOp::Le, to);
                }
            }
            Expr::Lookup { set, to, .. } => {
                if let LookupTo::Register(register) = to {
                    registers.insert(*register, Loaded::new(Source::Other, 0));
                }
                let absent = matches!(to, LookupTo::NoMatch);
                self.acts.push(Act::Asks { set: set.clone(), absent });
            }
            Expr::ToNetworkOrder { .. } => self.is_unread = true,
            Expr::Other { name, .. } if only_matches(name) => self.is_unread = true,
            other => self.acts.extend(act(other)),
        }
    }

    fn compare(&mut self, op: CmpOp, bits: Vec<Bits>) {
        let single = match bits.as_slice() {
            [bits] if bits.is_one_bit() => Some(*bits),
            _ => None,
        };
        match (op, single) {
            (CmpOp::Eq, _) => {
                let all = bits.into_iter().filter(|bits| !bits.are_of_protocol());
                self.conditions.extend(all.map(Condition::Is));
            }
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
}

/// Returns the register into which an expression loads something of the packet, and what.
fn loads(expr: &Expr) -> Option<(Register, Loaded)> {
    let (register, of, first) = match expr {
        Expr::Payload { base, offset, register, .. } => (register, Source::Packet(*base), *offset),
        Expr::Meta { key, register } => (register, Source::Meta(*key), 0),
        Expr::Ct { key, direction, register } => {
            (register, Source::Connection(*key, *direction), 0)
        }
        Expr::Fib { result, flags, register } => (register, Source::Routes(*result, *flags), 0),
        Expr::Rt { register, .. } | Expr::Immediate { register, .. } => {
            (register, Source::Other, 0)
        }
        _ => return None,
    };
    Some((*register, Loaded::new(of, first)))
}

/// Says whether an expression with this name changes nothing but registers.
fn only_matches(name: &str) -> bool {
    matches!(name, "cmp" | "range" | "bitwise" | "byteorder" | "fib")
}

fn act(expr: &Expr) -> Option<Act> {
    Some(match expr {
        Expr::Verdict(verdict) => Act::Decides(verdict.clone()),
        Expr::Nat { kind, .. } => Act::Translates(*kind),
        Expr::Masquerade { .. } => Act::Masquerades,
        Expr::MetaSet { .. }
        | Expr::CtSet { .. }
        | Expr::PayloadSet { .. }
        | Expr::TcpOptionSet { .. } => Act::Sets,
        Expr::Counter { .. } => return None,
        _ => Act::Other,
    })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use kernel::nft::{Family, NewRule, TableRef, Value, field};

    use super::*;
    use crate::layout::net;

    fn rule() -> NewRule {
        NewRule::new(&TableRef::new(Family::Inet, "t"), "c")
    }

    fn load(base: PayloadBase, offset: u32, len: u32) -> Expr {
        Expr::Payload { base, offset, len, register: Register::FIRST }
    }

    fn cmp(op: CmpOp, data: &[u8]) -> Expr {
        Expr::Cmp { op, register: Register::FIRST, data: data.to_vec() }
    }

    fn of(rule: &NewRule) -> Meaning {
        Meaning::of(&rule.exprs)
    }

    /// As nft writes them: nftables src/netlink_linearize.c `netlink_gen_relational`,
    /// `netlink_gen_range`, `netlink_gen_flagcmp`, and src/rule.c `stmt_reduce`.
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
        for (ours, theirs) in [
            (group, vec![load(network, 24, 1), cmp(Eq, &[0xff])]),
            (both, vec![load(network, 12, 7), cmp(Eq, &[192, 0, 2, 1, 192, 0, 2])]),
            (translated, vec![status, masked, cmp(Eq, &bit)]),
            (one.clone(), vec![kind.clone(), cmp(Eq, &[133])]),
            (one, vec![kind.clone(), range(133, 133)]),
            (some.clone(), vec![kind.clone(), range(135, 136)]),
            (some, vec![kind, cmp(Le, &[136]), cmp(Ge, &[135])]),
            (elsewhere, vec![load(network, 8, 1), cmp(Ne, &[0xff])]),
        ] {
            assert_eq!(of(&ours), Meaning::of(&theirs), "{ours:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_makes_no_difference() {
        let shift = Expr::Other { name: "bitwise".to_owned(), attributes: vec![1] };
        let quota = Expr::Other { name: "quota".to_owned(), attributes: vec![1] };
        let ours = of(&rule().in_net(field::ip_saddr(), net("192.0.2.0/24")).drop());
        let load = load(PayloadBase::Network, 12, 4);
        let theirs = |what, verdict| {
            Meaning::of(&[load.clone(), what, cmp(CmpOp::Eq, &[1]), Expr::Verdict(verdict)])
        };
        assert!(ours.agrees(&theirs(shift.clone(), Verdict::Drop)));
        assert!(!ours.agrees(&theirs(shift, Verdict::Accept)));
        assert!(!ours.agrees(&theirs(quota, Verdict::Drop)));
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
        for (at, one) in rules.iter().enumerate() {
            for other in &rules[..at] {
                assert!(!of(one).agrees(&of(other)), "{one:?}\n{other:?}");
            }
        }
    }
}
