//! The holders of addresses, and which addresses are taken, in one small file of which each call
//! reads only a few places.
//!
//! | part | size | content |
//! |---|---|---|
//! | head | 256 | which folder in which state it describes, and how large the parts are |
//! | slots | 32 each | a hash table from holder to address: 15 bytes of the holder's key, a byte of kind, the address |
//! | blocks | 528 each | a hash table from 4096 addresses to a bit for each of them, set when it is taken |
//!
//! Numbers are little-endian. The table does not interpret holders: it gets keys. It is not the
//! truth; see [`super::known`] for when it is believed.

mod bytes;
mod head;
mod slot;

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileExt as _;

use super::folder::Stamp;
use crate::range::{Run, to_number};
use bytes::{Bytes, index};
use head::{HEAD, Head};
use slot::{EMPTY, REMOVED, SLOT, Slot, V4, V6};

/// Identifies a holder: 120 bits.
pub(crate) type Key = u128;

/// How many slots one read fetches: even at the highest load, nearly always one of them is free.
const CHUNK: u64 = 16;
/// How many addresses a block covers.
const SPAN: u128 = 4096;
const BITMAP: usize = 512;
const BLOCK: usize = 16 + BITMAP;
/// How many slots the smallest tables have: with few addresses held, a new table is needed once in
/// a hundred calls.
const FEWEST: u64 = 128;
/// Blocks cost memory if addresses are scattered over an IPv6 subnet, and are of no use there: no
/// part of it is crowded. A table that would need more than this has none.
const MOST_BLOCKS: usize = 4096;

/// A holder's key and an address that it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) address: IpAddr,
}

/// The table, in its file or not written yet.
#[derive(Debug)]
pub(crate) struct Table {
    head: Head,
    bytes: Bytes,
}

impl Table {
    /// Reads the head of a table's file; `None` if it is not one of ours.
    pub(crate) fn open(file: File) -> Option<Table> {
        let mut head = [0; HEAD];
        file.read_exact_at(&mut head, 0).ok()?;
        Some(Table { head: Head::parse(&head)?, bytes: Bytes::File(file, RefCell::default()) })
    }

    /// Creates a table in memory.
    pub(crate) fn build(entries: &[Entry], strays: bool) -> Table {
        let count = u64::try_from(entries.len()).unwrap_or(u64::MAX);
        let slots = (count * 2).next_power_of_two().max(FEWEST);
        let mut bases = HashSet::new();
        for entry in entries {
            bases.insert(base_of(entry.address).0);
            if MOST_BLOCKS < bases.len() {
                break;
            }
        }
        let blocks = match bases.len() {
            most if MOST_BLOCKS < most => 0,
            // More than enough for one more; otherwise each addition would create a new table.
            some => u64::try_from(some * 2 + 4).unwrap_or(0).next_power_of_two(),
        };
        let head = Head {
            boot: String::new(),
            stamp: Stamp::default(),
            strays,
            slots,
            blocks,
            live: 0,
            used: 0,
            used_blocks: 0,
        };
        let length = block_at(&head, blocks);
        let mut table = Table { head, bytes: Bytes::Memory(vec![0; index(length)]) };
        for entry in entries {
            table.put(*entry).expect("the table was made large enough");
        }
        table
    }

    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    /// Counts the addresses.
    pub(crate) fn live(&self) -> u64 {
        self.head.live
    }

    /// Returns whether the table, with its changes, is in its file.
    pub(crate) fn is_written(&self) -> bool {
        matches!(self.bytes, Bytes::File(..))
    }

    /// Sets the folder and boot that the table describes. Writes this to the file if there is one;
    /// otherwise returns the bytes to write.
    pub(crate) fn seal(&mut self, boot: &str, stamp: Stamp) -> io::Result<&[u8]> {
        boot.clone_into(&mut self.head.boot);
        self.head.stamp = stamp;
        self.bytes.write(0, &self.head.to_bytes())?;
        Ok(match &self.bytes {
            Bytes::File(..) => &[],
            Bytes::Memory(bytes) => bytes,
        })
    }

    /// Lists what a holder with that key holds.
    pub(crate) fn find(&self, key: Key) -> io::Result<Vec<IpAddr>> {
        let mut found = Vec::new();
        self.probe(key, |_, slot| {
            if slot.key == key && !matches!(slot.kind, EMPTY | REMOVED) {
                found.push(slot.address());
            }
            false
        })?;
        Ok(found)
    }

    /// Adds an address. This may create a new table, in memory.
    pub(crate) fn insert(&mut self, entry: Entry) -> io::Result<()> {
        let is_full = |used: u64, of: u64| of * 3 <= (used + 1) * 4;
        if is_full(self.head.used, self.head.slots)
            || self.head.blocks != 0 && is_full(self.head.used_blocks, self.head.blocks)
        {
            *self = Table::build(&self.entries()?, self.head.strays);
        }
        self.put(entry)
    }

    fn put(&mut self, entry: Entry) -> io::Result<()> {
        let (mut free, mut is_there) = (None, false);
        self.probe(entry.key, |at, slot| {
            is_there |= slot.is(entry);
            if matches!(slot.kind, EMPTY | REMOVED) {
                free.get_or_insert((at, slot.kind));
            }
            is_there
        })?;
        if is_there {
            return Ok(());
        }
        let Some((at, before)) = free else { return Err(io::ErrorKind::StorageFull.into()) };
        self.bytes.write(slot_at(at), &Slot::of(entry).to_bytes())?;
        self.head.live += 1;
        self.head.used += u64::from(before == EMPTY);
        self.mark(entry.address, true)
    }

    /// Removes an address. If it is missing, nothing happens.
    pub(crate) fn remove(&mut self, entry: Entry) -> io::Result<()> {
        let (mut place, mut is_last) = (None, false);
        self.probe(entry.key, |at, slot| {
            if place.is_some() {
                is_last = slot.kind == EMPTY;
                return true;
            }
            if slot.is(entry) {
                place = Some(at);
            }
            false
        })?;
        let Some(at) = place else { return Ok(()) };
        // If slots follow, a search must continue past this one; otherwise it can be empty.
        let kind = if is_last { EMPTY } else { REMOVED };
        let slot = Slot { key: 0, kind, number: 0 };
        self.bytes.write(slot_at(at), &slot.to_bytes())?;
        self.head.live -= 1;
        self.head.used -= u64::from(is_last);
        self.mark(entry.address, false)
    }

    /// Finds the first address of a run that is not taken and that `is_free` accepts; `Err` of kind
    /// `Unsupported` if the table has no blocks.
    pub(crate) fn first_free(
        &self,
        run: &Run<'_>,
        is_free: impl Fn(IpAddr) -> bool,
    ) -> io::Result<Option<IpAddr>> {
        let mut found = None;
        self.each_block(run, |base, first, last, bitmap| {
            let mut number = first;
            while number <= last {
                let bit = index_in(base, number);
                let skips = bit.is_multiple_of(8) && bitmap[bit / 8] == u8::MAX;
                if bitmap[bit / 8] & 1 << (bit % 8) == 0 && is_free(run.address(number)) {
                    found = Some(run.address(number));
                    return true;
                }
                let step = if skips { 8 } else { 1 };
                let Some(next) = number.checked_add(step) else { return false };
                number = next;
            }
            false
        })?;
        Ok(found)
    }

    /// Counts the taken addresses of a run.
    pub(crate) fn taken(&self, run: &Run<'_>) -> io::Result<u128> {
        let mut taken = 0;
        self.each_block(run, |base, first, last, bitmap| {
            for bit in index_in(base, first)..=index_in(base, last) {
                taken += u128::from(bitmap[bit / 8] >> (bit % 8) & 1);
            }
            false
        })?;
        Ok(taken)
    }

    /// Passes the blocks of a run in turn, until the caller stops it: where each begins, the run's
    /// part of it, its bits.
    fn each_block(
        &self,
        run: &Run<'_>,
        mut show: impl FnMut(u128, u128, u128, &[u8; BITMAP]) -> bool,
    ) -> io::Result<()> {
        if self.head.blocks == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let kind = if run.is_ipv4() { V4 } else { V6 };
        let mut first = run.first;
        loop {
            let base = first & !(SPAN - 1);
            let end = base | (SPAN - 1);
            let (_, bitmap) = self.block(base | u128::from(kind))?;
            if show(base, first, end.min(run.last), &bitmap) || run.last <= end {
                return Ok(());
            }
            first = end + 1;
        }
    }

    /// Finds the block of a name: its place, or the one it would have, and its bits, none set if it
    /// is missing.
    fn block(&self, name: u128) -> io::Result<(Place, [u8; BITMAP])> {
        let hash = (name >> 12) ^ (name >> 76);
        let mut at = u64::try_from(hash & u128::from(u64::MAX)).expect("the rest is masked");
        let mut block = [0; BLOCK];
        for _ in 0..self.head.blocks {
            at %= self.head.blocks;
            self.bytes.read(block_at(&self.head, at), &mut block)?;
            let found = u128::from_le_bytes(block[..16].try_into().expect("sixteen bytes"));
            if found == name || found == 0 {
                let bitmap = block[16..].try_into().expect("a block is a name and a bitmap");
                return Ok((Place { at, is_new: found == 0 }, bitmap));
            }
            at += 1;
        }
        Err(io::ErrorKind::StorageFull.into())
    }

    /// Sets or clears the bit of an address.
    fn mark(&mut self, address: IpAddr, is_taken: bool) -> io::Result<()> {
        if self.head.blocks == 0 {
            return Ok(());
        }
        let (name, bit) = base_of(address);
        let (place, bitmap) = self.block(name)?;
        let at = block_at(&self.head, place.at);
        if place.is_new {
            self.bytes.write(at, &name.to_le_bytes())?;
            self.head.used_blocks += 1;
        }
        let mask = 1 << (bit % 8);
        let byte = if is_taken { bitmap[bit / 8] | mask } else { bitmap[bit / 8] & !mask };
        self.bytes.write(at + 16 + u64::try_from(bit / 8).expect("a small number"), &[byte])
    }

    /// Passes the slots at which a key may be, in turn, until the caller stops it or one is empty.
    fn probe(&self, key: Key, mut show: impl FnMut(u64, Slot) -> bool) -> io::Result<()> {
        let slots = self.head.slots;
        let home = u64::from_le_bytes(key.to_le_bytes()[1..9].try_into().expect("eight bytes"));
        let mut at = home % slots;
        let mut left = slots;
        let mut chunk = [0; SLOT * 16];
        while left != 0 {
            let count = CHUNK.min(slots - at).min(left);
            let length = SLOT * index(count);
            self.bytes.read(slot_at(at), &mut chunk[..length])?;
            for bytes in chunk[..length].chunks_exact(SLOT) {
                let slot = Slot::parse(bytes.try_into().expect("chunks of a slot each"));
                if show(at, slot) || slot.kind == EMPTY {
                    return Ok(());
                }
                at += 1;
            }
            at %= slots;
            left -= count;
        }
        Ok(())
    }

    /// Lists everything.
    fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut bytes = vec![0; SLOT * index(self.head.slots)];
        self.bytes.read(slot_at(0), &mut bytes)?;
        let slots = bytes.chunks_exact(SLOT);
        Ok(slots
            .map(|bytes| Slot::parse(bytes.try_into().expect("chunks of a slot each")))
            .filter(|slot| !matches!(slot.kind, EMPTY | REMOVED))
            .map(|slot| Entry { key: slot.key, address: slot.address() })
            .collect())
    }
}

/// Where a block is, or would be.
#[derive(Debug, Clone, Copy)]
struct Place {
    at: u64,
    is_new: bool,
}

/// Returns the name of an address's block (the block's first address, with the family in the bits
/// below that) and the address's bit.
fn base_of(address: IpAddr) -> (u128, usize) {
    let number = to_number(address);
    let base = number & !(SPAN - 1);
    let kind = if address.is_ipv4() { V4 } else { V6 };
    (base | u128::from(kind), index_in(base, number))
}

fn index_in(base: u128, number: u128) -> usize {
    usize::try_from(number - base).expect("the number lies in the block")
}

fn slot_at(slot: u64) -> u64 {
    u64::try_from(HEAD + SLOT * index(slot)).expect("tables are far smaller")
}

fn block_at(head: &Head, block: u64) -> u64 {
    slot_at(head.slots) + u64::try_from(BLOCK * index(block)).expect("tables are far smaller")
}

#[cfg(test)]
mod tests;
