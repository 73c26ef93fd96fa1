//! Looks values up in sets and maps.

use super::bits::{Registers, Truth, within};
use crate::model::filter::{Element, Set};

/// The elements that a value is, or may be.
pub(crate) struct Matches<'n> {
    /// Each with whether the value is it. If one surely is, it is the only one.
    pub(crate) elements: Vec<(&'n Element, Truth)>,
    /// There may be others, which were not read.
    pub(crate) others: bool,
}

impl Matches<'_> {
    /// Says whether the set has the value.
    pub(crate) fn holds(&self) -> Truth {
        let none = if self.others { Truth::Maybe } else { Truth::No };
        self.elements.iter().fold(none, |holds, (_, element)| holds.or(*element))
    }
}

/// Looks up the value that begins at a register.
pub(crate) fn look_up<'n>(set: &'n Set, registers: &Registers, from: u32) -> Matches<'n> {
    let mut elements = Vec::new();
    for element in &set.elements {
        match is(element, registers, from) {
            Truth::Yes => {
                return Matches { elements: vec![(element, Truth::Yes)], others: false };
            }
            Truth::Maybe => elements.push((element, Truth::Maybe)),
            Truth::No => {}
        }
    }
    Matches { elements, others: set.truncated }
}

/// Says whether the value is an element, or lies in it.
fn is(element: &Element, registers: &Registers, from: u32) -> Truth {
    if element.parts.len() < 2 {
        return part(registers, from, &element.first, element.last.as_deref());
    }
    // In registers each part begins at a multiple of four bytes. In an element it may be written
    // without the zeros between.
    let lens: Vec<usize> =
        element.parts.iter().map(|len| usize::try_from(*len).unwrap_or(usize::MAX)).collect();
    let packed = lens.iter().fold(0_usize, |sum, len| sum.saturating_add(*len));
    let is_packed = packed == element.first.len();
    let (mut in_element, mut in_registers) = (0_usize, 0_usize);
    let mut holds = Truth::Yes;
    for len in lens {
        let padded = len.checked_next_multiple_of(4).unwrap_or(usize::MAX);
        let at = in_element..in_element.saturating_add(len);
        let Some(first) = element.first.get(at.clone()) else { return Truth::Maybe };
        let last = element.last.as_ref().and_then(|last| last.get(at));
        let Ok(register) = u32::try_from(in_registers / 4) else { return Truth::Maybe };
        holds = holds.and(part(registers, from.saturating_add(register), first, last));
        in_element = in_element.saturating_add(if is_packed { len } else { padded });
        in_registers = in_registers.saturating_add(padded);
    }
    holds
}

fn part(registers: &Registers, from: u32, first: &[u8], last: Option<&[u8]>) -> Truth {
    match last {
        Some(last) if last != first => within(registers.load(from, first.len()), first, last),
        _ => registers.equals(from, first),
    }
}

#[cfg(test)]
mod tests {
    use super::super::bits::known;
    use super::*;

    fn element(first: &[u8], last: Option<&[u8]>, parts: &[u32]) -> Element {
        Element {
            first: first.to_vec(),
            last: last.map(<[u8]>::to_vec),
            parts: parts.to_vec(),
            data: None,
            verdict: None,
        }
    }

    fn set(elements: Vec<Element>, truncated: bool) -> Set {
        Set { name: "s".to_owned(), elements, truncated }
    }

    #[test]
    fn values_ranges_and_parts_are_found() {
        let mut registers = Registers::new();
        registers.store(0, &known(&[6]));
        registers.store(1, &known(&[0x1f, 0x90]));
        let found = |element: Element| look_up(&set(vec![element], false), &registers, 0).holds();
        assert_eq!(found(element(&[6], None, &[])), Truth::Yes);
        assert_eq!(found(element(&[17], None, &[])), Truth::No);
        assert_eq!(found(element(&[1], Some(&[6]), &[])), Truth::Yes);
        let padded = [6, 0, 0, 0, 0x1f, 0x90, 0, 0];
        for parts in [[1, 2], [4, 4]] {
            assert_eq!(found(element(&padded, None, &parts)), Truth::Yes);
        }
        assert_eq!(found(element(&[6, 0x1f, 0x90], None, &[1, 2])), Truth::Yes);
        assert_eq!(found(element(&[6, 0x1f, 0x91], None, &[1, 2])), Truth::No);
        assert_eq!(found(element(&[6, 0, 1], Some(&[6, 0x20, 0]), &[1, 2])), Truth::Yes);
        assert_eq!(found(element(&[6, 0, 1], Some(&[6, 0x1f, 0]), &[1, 2])), Truth::No);
    }

    #[test]
    fn what_was_not_read_may_be_there() {
        let mut registers = Registers::new();
        registers.store(0, &known(&[6]));
        assert_eq!(look_up(&set(Vec::new(), true), &registers, 0).holds(), Truth::Maybe);
        assert_eq!(look_up(&set(Vec::new(), false), &registers, 0).holds(), Truth::No);
        let unknown = Registers::new();
        let found = set(vec![element(&[1], None, &[]), element(&[2], None, &[])], false);
        assert_eq!(look_up(&found, &unknown, 0).elements.len(), 2);
    }
}
