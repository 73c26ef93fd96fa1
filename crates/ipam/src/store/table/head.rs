//! The head of a table's file.

use super::MOST_BLOCKS;
use crate::store::folder::Stamp;

/// The first bytes of the file, with the version of the format.
pub(super) const MAGIC: [u8; 8] = *b"nwtaddr1";
pub(super) const HEAD: usize = 256;
/// Room for the boot's identity, 36 characters.
const BOOT: usize = 40;
/// The highest accepted number of slots: no node has sixteen million containers.
const MOST_SLOTS: u64 = 1 << 24;

/// The head of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    /// The boot in which it was written.
    pub(crate) boot: String,
    /// The folder's state when it was last sealed.
    pub(crate) stamp: Stamp,
    /// Whether the folder contains something that the table does not cover: a sub-folder, or a file
    /// whose name is not an address.
    pub(crate) strays: bool,
    pub(super) slots: u64,
    pub(super) blocks: u64,
    pub(super) live: u64,
    /// How many slots are or were filled, and how many blocks.
    pub(super) used: u64,
    pub(super) used_blocks: u64,
}

impl Head {
    pub(super) fn to_bytes(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        bytes[..8].copy_from_slice(&MAGIC);
        let boot = self.boot.as_bytes();
        let length = boot.len().min(BOOT);
        bytes[8..8 + length].copy_from_slice(&boot[..length]);
        let stamp = self.stamp.to_numbers();
        let sizes = [self.slots, self.blocks, self.live, self.used, self.used_blocks];
        let numbers = stamp.into_iter().chain(sizes).chain([u64::from(self.strays)]);
        for (number, to) in numbers.zip(bytes[8 + BOOT..].chunks_exact_mut(8)) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    pub(super) fn parse(bytes: &[u8; HEAD]) -> Option<Head> {
        if bytes[..8] != MAGIC {
            return None;
        }
        let boot = bytes[8..8 + BOOT].split(|byte| *byte == 0).next()?;
        let mut numbers = bytes[8 + BOOT..]
            .chunks_exact(8)
            .map(|number| u64::from_le_bytes(number.try_into().expect("eight bytes")));
        let stamp = Stamp::from_numbers(std::array::from_fn(|_| numbers.next().unwrap_or(0)));
        let mut next = || numbers.next().unwrap_or(0);
        let head = Head {
            boot: std::str::from_utf8(boot).ok()?.to_owned(),
            stamp,
            slots: next(),
            blocks: next(),
            live: next(),
            used: next(),
            used_blocks: next(),
            strays: next() != 0,
        };
        let most_blocks = u64::try_from(MOST_BLOCKS).expect("a small number") * 4;
        let is_sane = head.slots.is_power_of_two()
            && head.slots <= MOST_SLOTS
            && (head.blocks == 0 || head.blocks.is_power_of_two())
            && head.blocks <= most_blocks
            && head.live <= head.used
            && head.used < head.slots
            && head.used_blocks <= head.blocks;
        is_sane.then_some(head)
    }
}
