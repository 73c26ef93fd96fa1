//! The bytes of a table: in its file, or in memory until they are written.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// How many places are cached: a call reads a few, a search through a crowded range many.
const MOST_SEEN: usize = 8;

/// The storage of the bytes.
#[derive(Debug)]
pub(super) enum Bytes {
    /// In the file, with a cache of what was read: a search and the change that follows it read the
    /// same places.
    File(File, RefCell<Vec<(u64, Vec<u8>)>>),
    Memory(Vec<u8>),
}

impl Bytes {
    pub(super) fn read(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        match self {
            Bytes::File(file, seen) => {
                let mut seen = seen.borrow_mut();
                let is_it = |one: &&(u64, Vec<u8>)| one.0 == at && one.1.len() == buffer.len();
                if let Some((_, bytes)) = seen.iter().find(is_it) {
                    buffer.copy_from_slice(bytes);
                    return Ok(());
                }
                file.read_exact_at(buffer, at)?;
                if seen.len() < MOST_SEEN {
                    seen.push((at, buffer.to_vec()));
                }
                Ok(())
            }
            Bytes::Memory(bytes) => {
                let at = index(at);
                let from = bytes.get(at..at + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
                buffer.copy_from_slice(from);
                Ok(())
            }
        }
    }

    pub(super) fn write(&mut self, at: u64, buffer: &[u8]) -> io::Result<()> {
        match self {
            Bytes::File(file, seen) => {
                let end = at + u64::try_from(buffer.len()).expect("a place is small");
                // A write lies within a cached part, outside of all, or invalidates it.
                seen.get_mut().retain_mut(|(from, bytes)| {
                    let to = *from + u64::try_from(bytes.len()).expect("a place is small");
                    if *from <= at && end <= to {
                        let at = index(at - *from);
                        bytes[at..at + buffer.len()].copy_from_slice(buffer);
                        return true;
                    }
                    end <= *from || to <= at
                });
                file.write_all_at(buffer, at)
            }
            Bytes::Memory(bytes) => {
                let at = index(at);
                let to =
                    bytes.get_mut(at..at + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
                to.copy_from_slice(buffer);
                Ok(())
            }
        }
    }
}

/// Turns a place in the table into one in memory.
pub(super) fn index(at: u64) -> usize {
    usize::try_from(at).expect("a table in memory is smaller than memory")
}
