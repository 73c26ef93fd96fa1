//! Bytes of which some bits are not known, and what can be said of them all the same.

use crate::model::filter::Comparison;

/// Whether something holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Truth {
    /// It does not.
    No,
    /// That is not known.
    Maybe,
    /// It does.
    Yes,
}

impl Truth {
    /// Says that something is known.
    pub(crate) fn known(holds: bool) -> Self {
        if holds { Truth::Yes } else { Truth::No }
    }

    /// Both hold.
    pub(crate) fn and(self, other: Self) -> Self {
        self.min(other)
    }

    /// One of them holds.
    pub(crate) fn or(self, other: Self) -> Self {
        self.max(other)
    }

    /// It holds if the condition does not ask for the contrary.
    pub(crate) fn unless(self, inverted: bool) -> Self {
        match (self, inverted) {
            (Truth::Yes, true) => Truth::No,
            (Truth::No, true) => Truth::Yes,
            (same, _) => same,
        }
    }
}

/// A byte of which some bits are known. Bits that are not known are 0 in `bits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Byte {
    bits: u8,
    known: u8,
}

impl Byte {
    /// A byte of which nothing is known.
    pub(crate) const UNKNOWN: Byte = Byte { bits: 0, known: 0 };

    /// A byte that is known.
    pub(crate) const fn of(bits: u8) -> Self {
        Byte { bits, known: 0xff }
    }

    /// A byte of which the bits in `known` are known.
    pub(crate) const fn partly(bits: u8, known: u8) -> Self {
        Byte { bits: bits & known, known }
    }

    /// Returns the byte if all of it is known.
    pub(crate) fn value(self) -> Option<u8> {
        (self.known == 0xff).then_some(self.bits)
    }

    fn least(self) -> u8 {
        self.bits
    }

    fn most(self) -> u8 {
        self.bits | !self.known
    }

    fn equals(self, other: u8) -> Truth {
        if (self.bits ^ other) & self.known != 0 {
            Truth::No
        } else if self.known == 0xff {
            Truth::Yes
        } else {
            Truth::Maybe
        }
    }

    /// A bit that the mask takes away is known to be 0.
    pub(crate) fn masked(self, mask: u8, xor: u8) -> Self {
        let known = self.known | !mask;
        Byte { bits: ((self.bits & mask) ^ xor) & known, known }
    }
}

/// Returns bytes that are known.
pub(crate) fn known(bytes: &[u8]) -> Vec<Byte> {
    bytes.iter().copied().map(Byte::of).collect()
}

/// Returns the bytes of a number of which some bits are known, in the host's byte order.
pub(crate) fn number(bits: u32, known: u32) -> [Byte; 4] {
    let (bits, known) = (bits.to_ne_bytes(), known.to_ne_bytes());
    std::array::from_fn(|at| Byte::partly(bits[at], known[at]))
}

/// Returns the bytes of a number that is known, in the host's byte order.
pub(crate) fn host(value: u32) -> Vec<Byte> {
    number(value, u32::MAX).to_vec()
}

/// Compares as the kernel does: as many bytes as `with` has.
pub(crate) fn compare(op: Comparison, value: &[Byte], with: &[u8]) -> Truth {
    match op {
        Comparison::Equal => equals(value, with),
        Comparison::NotEqual => equals(value, with).unless(true),
        Comparison::Less => less(value, with),
        Comparison::LessOrEqual => greater(value, with).unless(true),
        Comparison::Greater => greater(value, with),
        Comparison::GreaterOrEqual => less(value, with).unless(true),
    }
}

/// Says whether a value lies between two others, which belong to the range.
pub(crate) fn within(value: &[Byte], first: &[u8], last: &[u8]) -> Truth {
    less(value, first).unless(true).and(greater(value, last).unless(true))
}

pub(crate) fn equals(value: &[Byte], with: &[u8]) -> Truth {
    if value.len() < with.len() {
        return Truth::Maybe;
    }
    value.iter().zip(with).fold(Truth::Yes, |holds, (byte, other)| holds.and(byte.equals(*other)))
}

fn less(value: &[Byte], than: &[u8]) -> Truth {
    if value.len() < than.len() {
        return Truth::Maybe;
    }
    let value = &value[..than.len()];
    if value.iter().map(|byte| byte.most()).lt(than.iter().copied()) {
        Truth::Yes
    } else if value.iter().map(|byte| byte.least()).ge(than.iter().copied()) {
        Truth::No
    } else {
        Truth::Maybe
    }
}

fn greater(value: &[Byte], than: &[u8]) -> Truth {
    if value.len() < than.len() {
        return Truth::Maybe;
    }
    let value = &value[..than.len()];
    if value.iter().map(|byte| byte.least()).gt(than.iter().copied()) {
        Truth::Yes
    } else if value.iter().map(|byte| byte.most()).le(than.iter().copied()) {
        Truth::No
    } else {
        Truth::Maybe
    }
}

/// How many registers there are (NFT_REG32_00 to NFT_REG32_15), and how many bytes each has.
const REGISTERS: usize = 16;
const WIDTH: usize = 4;

/// The registers of a rule.
#[derive(Debug, Clone)]
pub(crate) struct Registers {
    bytes: [Byte; REGISTERS * WIDTH],
    /// The register of a value that is not known, and is not 0.
    not_zero: Option<u32>,
    /// Registers of values that are not known, each with values that it does not have.
    excluded: Vec<(u32, Vec<Vec<u8>>)>,
    /// A register of which the bytes are not known, and all that a map may have put there.
    chosen: Option<(u32, Vec<Vec<u8>>)>,
}

impl Registers {
    /// Returns registers of which nothing is known.
    pub(crate) fn new() -> Self {
        let bytes = [Byte::UNKNOWN; REGISTERS * WIDTH];
        Registers { bytes, not_zero: None, excluded: Vec::new(), chosen: None }
    }

    /// Stores bytes, and zeros up to the next register, as the kernel does.
    pub(crate) fn store(&mut self, to: u32, bytes: &[Byte]) {
        if self.not_zero == Some(to) {
            self.not_zero = None;
        }
        let len = bytes.len().next_multiple_of(WIDTH);
        let written = start(to)..start(to).saturating_add(len);
        self.excluded.retain(|(register, _)| !written.contains(&start(*register)));
        // It is what it was before, or not.
        self.chosen =
            self.chosen.take().filter(|(register, _)| !written.contains(&start(*register)));
        let start = start(to);
        let Some(room) = self.bytes.get_mut(start..start.saturating_add(len)) else { return };
        let padded = bytes.iter().copied().chain(std::iter::repeat(Byte::of(0)));
        for (place, byte) in room.iter_mut().zip(padded) {
            *place = byte;
        }
    }

    /// Notes all that a map may have put into a register.
    pub(crate) fn choose(&mut self, to: u32, all: Vec<Vec<u8>>) {
        self.chosen = (!all.is_empty()).then_some((to, all));
    }

    /// Returns these registers once with each value that a map may have put into one.
    pub(crate) fn choices(&self, register: u32) -> Vec<Self> {
        let Some((to, all)) = self.chosen.as_ref().filter(|(to, _)| *to == register) else {
            return Vec::new();
        };
        let with = |data: &Vec<u8>| {
            let mut registers = self.clone();
            registers.store(*to, &known(data));
            registers
        };
        all.iter().map(with).collect()
    }

    /// Returns bytes; fewer if there are not so many.
    pub(crate) fn load(&self, from: u32, len: usize) -> &[Byte] {
        let start = start(from).min(self.bytes.len());
        let end = start.saturating_add(len).min(self.bytes.len());
        &self.bytes[start..end]
    }

    /// Stores something of which is known only that it is not 0.
    pub(crate) fn store_not_zero(&mut self, to: u32) {
        self.store(to, &[Byte::UNKNOWN; WIDTH]);
        self.not_zero = Some(to);
    }

    /// Notes values that a register does not have.
    pub(crate) fn exclude(&mut self, to: u32, values: Vec<Vec<u8>>) {
        if !values.is_empty() {
            self.excluded.push((to, values));
        }
    }

    /// Says whether a register has a value.
    pub(crate) fn equals(&self, from: u32, with: &[u8]) -> Truth {
        let is_excluded = self.excluded.iter().any(|(register, values)| {
            *register == from && values.iter().any(|value| is_same(value, with))
        });
        if is_excluded { Truth::No } else { equals(self.load(from, with.len()), with) }
    }

    /// Compares a value.
    pub(crate) fn compare(&self, from: u32, op: Comparison, with: &[u8]) -> Truth {
        let is_zero = with.iter().all(|byte| *byte == 0);
        match op {
            Comparison::Equal if is_zero && self.not_zero == Some(from) => Truth::No,
            Comparison::NotEqual if is_zero && self.not_zero == Some(from) => Truth::Yes,
            Comparison::Equal => self.equals(from, with),
            Comparison::NotEqual => self.equals(from, with).unless(true),
            _ => compare(op, self.load(from, with.len()), with),
        }
    }

    /// Forgets all of them.
    pub(crate) fn forget(&mut self) {
        *self = Registers::new();
    }
}

/// Says whether a rule compares with the whole of a value: of a name, with the zero at its end (a
/// rule that does not asks for its beginning).
fn is_same(value: &[u8], with: &[u8]) -> bool {
    with == value || with.strip_prefix(value).is_some_and(|rest| rest.iter().all(|byte| *byte == 0))
}

fn start(register: u32) -> usize {
    usize::try_from(register).unwrap_or(usize::MAX).saturating_mul(WIDTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_a_part_decides_where_it_can() {
        // A port of 32768 or more.
        let port = [Byte::partly(0x80, 0x80), Byte::UNKNOWN];
        let cases = [
            (Comparison::Equal, [0, 80], Truth::No),
            (Comparison::Equal, [0x80, 80], Truth::Maybe),
            (Comparison::NotEqual, [0, 80], Truth::Yes),
            (Comparison::GreaterOrEqual, [4, 0], Truth::Yes),
            (Comparison::Greater, [0xff, 0xff], Truth::No),
            (Comparison::Less, [4, 0], Truth::No),
            (Comparison::Less, [0x90, 0], Truth::Maybe),
            (Comparison::LessOrEqual, [0xff, 0xff], Truth::Yes),
        ];
        for (op, with, expected) in cases {
            assert_eq!(compare(op, &port, &with), expected, "{op:?} {with:?}");
        }
        assert_eq!(within(&port, &[4, 0], &[0xff, 0xff]), Truth::Yes);
        assert_eq!(within(&port, &[0, 1], &[3, 0xff]), Truth::No);
        assert_eq!(within(&port, &[0x90, 0], &[0x91, 0]), Truth::Maybe);
    }

    #[test]
    fn a_bit_that_is_masked_away_is_known() {
        let unknown = Byte::UNKNOWN.masked(0x0f, 0);
        assert_eq!(equals(&[unknown], &[0x10]), Truth::No);
        assert_eq!(equals(&[unknown], &[0x01]), Truth::Maybe);
        assert_eq!(Byte::UNKNOWN.masked(0, 0xff).value(), Some(0xff));
    }

    #[test]
    fn a_value_that_is_excluded_is_not_there_until_another_is_stored() {
        let mut registers = Registers::new();
        registers.exclude(1, vec![b"eth0".to_vec()]);
        let equals = |registers: &Registers, with: &[u8]| registers.equals(1, with);
        assert_eq!(equals(&registers, b"eth0\0\0\0\0"), Truth::No);
        assert_eq!(equals(&registers, b"eth1\0\0\0\0"), Truth::Maybe);
        assert_eq!(equals(&registers, b"eth"), Truth::Maybe);
        assert_eq!(registers.compare(1, Comparison::NotEqual, b"eth0\0"), Truth::Yes);
        registers.store(0, &[Byte::UNKNOWN; 16]);
        assert_eq!(equals(&registers, b"eth0\0\0\0\0"), Truth::Maybe);
    }

    #[test]
    fn registers_are_filled_up_with_zeros() {
        let mut registers = Registers::new();
        registers.store(1, &known(&[6]));
        assert_eq!(equals(registers.load(1, 4), &[6, 0, 0, 0]), Truth::Yes);
        assert_eq!(equals(registers.load(0, 8), &[0, 0, 0, 0, 6, 0, 0, 0]), Truth::Maybe);
        // Beyond the last one nothing is stored, and nothing is known.
        registers.store(15, &known(&[1, 2, 3, 4, 5]));
        assert_eq!(registers.load(15, 8).len(), 4);
        assert_eq!(equals(registers.load(15, 8), &[1, 2, 3, 4, 5]), Truth::Maybe);
        assert_eq!(registers.load(u32::MAX, 4).len(), 0);
        registers.store_not_zero(4);
        assert_eq!(registers.compare(4, Comparison::Equal, &[0; 4]), Truth::No);
        assert_eq!(registers.compare(4, Comparison::Equal, &[1, 0, 0, 0]), Truth::Maybe);
        registers.store(4, &[Byte::UNKNOWN; 4]);
        assert_eq!(registers.compare(4, Comparison::Equal, &[0; 4]), Truth::Maybe);
    }
}
