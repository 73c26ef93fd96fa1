//! Reads the headers of an executable, and cuts off what only unwinding reads (`man 5 elf`).
//!
//! `.eh_frame`, its index and `.gcc_except_table` are read by exceptions, backtraces and debuggers,
//! and were 0.84 MB of 10.24. A panic of ours ends the process and prints place and message.
//! Linkers put these tables last in their segment, so the segment ends earlier, and what follows in
//! the file moves by whole pages: every address in memory stays. `netwright.debug` is the whole
//! file as it was linked; debuggers are given it.
//!
//! No code may capture a backtrace: gcc's unwinder calls `abort` if it finds no table for its own
//! caller. Clippy refuses `Backtrace::capture`, and crates that capture one with each error are not
//! for what ships. `cargo build --release` keeps the tables. Neither `force-unwind-tables=no` (the
//! standard library comes with them) nor `objcopy --remove-section` (the file stays as large)
//! removes them.

/// Types of program headers and of sections (linux include/uapi/linux/elf.h).
pub(crate) const PT_INTERP: usize = 3;
const PT_LOAD: usize = 1;
const PT_GNU_EH_FRAME: usize = 0x6474_e550;
const SHT_NOBITS: usize = 8;

/// What unwinders read: where registers lie in each function's frame, an index of that, and what to
/// clean up. A program whose panics abort, and that captures no backtrace, has no unwinder but a
/// debugger.
const FRAMES: &str = ".eh_frame";
const UNWINDING: [&str; 3] = [".eh_frame_hdr", FRAMES, ".gcc_except_table"];

const TRUNCATED: &str = "truncated ELF file";

/// A table of headers: where the file's header says where it begins, how long an entry is, and how
/// many there are.
struct Table {
    start: usize,
    size: usize,
    count: usize,
}

const SEGMENTS: Table = Table { start: 32, size: 54, count: 56 };
const SECTIONS: Table = Table { start: 40, size: 58, count: 60 };
/// Where the file's header has the number of the section with the sections' names.
const NAMES: usize = 62;

/// A segment, by its part of the file.
#[derive(Debug)]
struct Segment {
    header: usize,
    kind: usize,
    start: usize,
    end: usize,
    align: usize,
}

/// A section, by its part of the file.
#[derive(Debug)]
struct Section {
    header: usize,
    name: String,
    start: usize,
    end: usize,
}

impl Section {
    fn is_in(&self, segment: &Segment) -> bool {
        segment.start <= self.start && self.end <= segment.end
    }

    fn is_for_unwinding(&self) -> bool {
        UNWINDING.contains(&self.name.as_str())
    }
}

/// A 64-bit little-endian ELF file.
#[derive(Debug)]
pub(crate) struct Elf {
    bytes: Vec<u8>,
}

impl Elf {
    pub(crate) fn new(bytes: Vec<u8>) -> Result<Self, String> {
        match bytes.starts_with(b"\x7fELF\x02\x01") {
            true => Ok(Elf { bytes }),
            false => Err("not a 64-bit little-endian ELF file".to_owned()),
        }
    }

    /// Returns the whole file.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Says whether it has a segment of a type.
    pub(crate) fn has_segment(&self, kind: usize) -> Result<bool, String> {
        Ok(self.segments()?.iter().any(|segment| segment.kind == kind))
    }

    /// Cuts off the tables for unwinding, if they are the last in their segment: linkers put them
    /// there. What follows moves by whole pages, so no address changes.
    pub(crate) fn cut_unwinding(&mut self) -> Result<(), String> {
        let (segments, sections) = (self.segments()?, self.sections()?);
        let Some(segment) = segments.iter().find(|segment| {
            let has = |section: &Section| section.name == FRAMES && section.is_in(segment);
            segment.kind == PT_LOAD && sections.iter().any(has)
        }) else {
            return Ok(());
        };
        let mut cut: Vec<&Section> =
            sections.iter().filter(|section| section.is_in(segment)).collect();
        let kept = cut.iter().filter(|section| !section.is_for_unwinding());
        let from = kept.map(|section| section.end).max().unwrap_or(segment.end);
        cut.retain(|section| from <= section.start && section.is_for_unwinding());
        let is_last = cut.iter().any(|section| section.name == FRAMES);
        let is_shared = segments.iter().any(|other| {
            let is_other = other.header != segment.header && other.kind != PT_GNU_EH_FRAME;
            is_other && other.start < segment.end && from < other.end
        });
        if !is_last || is_shared {
            return Ok(());
        }
        let loaded = segments.iter().filter(|segment| segment.kind == PT_LOAD);
        let page = loaded.map(|segment| segment.align).max().unwrap_or_default().max(1);
        let gone = (segment.end - from) / page * page;
        for other in &segments {
            if other.kind == PT_GNU_EH_FRAME {
                self.empty(other.header, &SEGMENTS)?;
            } else if segment.end <= other.start {
                self.put(other.header + 8, 8, other.start - gone)?;
            }
        }
        for size in [32, 40] {
            self.put(segment.header + size, 8, from - segment.start)?;
        }
        for section in &cut {
            self.empty(section.header, &SECTIONS)?;
        }
        for section in sections.iter().filter(|section| segment.end <= section.start) {
            self.put(section.header + 24, 8, section.start - gone)?;
        }
        let headers = self.number(SECTIONS.start, 8)?;
        if segment.end <= headers {
            self.put(SECTIONS.start, 8, headers - gone)?;
        }
        self.bytes.drain(from..from + gone);
        // Less than a page of the tables is left.
        self.bytes.get_mut(from..segment.end - gone).ok_or(TRUNCATED)?.fill(0);
        Ok(())
    }

    fn segments(&self) -> Result<Vec<Segment>, String> {
        let one = |header: usize| -> Result<Segment, String> {
            let start = self.number(header + 8, 8)?;
            Ok(Segment {
                header,
                kind: self.number(header, 4)?,
                start,
                end: self.end(start, header + 32)?,
                align: self.number(header + 48, 8)?,
            })
        };
        self.entries(&SEGMENTS)?.into_iter().map(one).collect()
    }

    fn sections(&self) -> Result<Vec<Section>, String> {
        let headers = self.entries(&SECTIONS)?;
        let Some(names) = headers.get(self.number(NAMES, 2)?) else { return Ok(Vec::new()) };
        let names = self.number(names + 24, 8)?;
        let one = |header: usize| -> Result<Section, String> {
            let name = self.bytes.get(names + self.number(header, 4)?..).ok_or(TRUNCATED)?;
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            let start = self.number(header + 24, 8)?;
            let is_empty = self.number(header + 4, 4)? == SHT_NOBITS;
            Ok(Section {
                header,
                name: String::from_utf8_lossy(name).into_owned(),
                start,
                end: if is_empty { start } else { self.end(start, header + 32)? },
            })
        };
        headers.iter().copied().map(one).collect()
    }

    /// Returns where the entries of a table begin.
    fn entries(&self, table: &Table) -> Result<Vec<usize>, String> {
        let start = self.number(table.start, 8)?;
        let (size, count) = (self.number(table.size, 2)?, self.number(table.count, 2)?);
        // Both have 16 bits.
        match start <= self.bytes.len() {
            true => Ok((0..count).map(|number| start + number * size).collect()),
            false => Err(TRUNCATED.to_owned()),
        }
    }

    /// Makes all of an entry zero: its type is then `PT_NULL` or `SHT_NULL`, and it names no part
    /// of the file. Tools refuse a file with one that ends behind the file's end.
    fn empty(&mut self, header: usize, table: &Table) -> Result<(), String> {
        let end = header + self.number(table.size, 2)?;
        self.bytes.get_mut(header..end).ok_or(TRUNCATED)?.fill(0);
        Ok(())
    }

    /// Returns where a part ends whose size a header has.
    fn end(&self, start: usize, size: usize) -> Result<usize, String> {
        let end = start.checked_add(self.number(size, 8)?);
        end.filter(|end| *end <= self.bytes.len()).ok_or_else(|| TRUNCATED.to_owned())
    }

    /// Reads a number of some bytes.
    fn number(&self, at: usize, size: usize) -> Result<usize, String> {
        let mut number = [0; 8];
        number[..size].copy_from_slice(self.bytes.get(at..at + size).ok_or(TRUNCATED)?);
        usize::try_from(u64::from_le_bytes(number)).map_err(|error| error.to_string())
    }

    /// Writes a number of some bytes.
    fn put(&mut self, at: usize, size: usize, number: usize) -> Result<(), String> {
        let number = u64::try_from(number).map_err(|error| error.to_string())?.to_le_bytes();
        let into = self.bytes.get_mut(at..at + size).ok_or(TRUNCATED)?;
        into.copy_from_slice(&number[..size]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Elf, PT_INTERP, PT_LOAD, TRUNCATED};

    #[test]
    fn a_dynamic_executable_is_told_from_others() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let shell = Elf::new(std::fs::read("/bin/sh").unwrap()).unwrap();
        assert!(shell.has_segment(PT_INTERP).unwrap(), "the shell is dynamic");
        let short = Elf::new(own[..60].to_vec()).unwrap();
        assert_eq!(short.has_segment(PT_INTERP), Err(TRUNCATED.to_owned()));
        assert!(Elf::new(b"#!/bin/sh\n".to_vec()).is_err());
    }

    #[test]
    fn what_is_cut_off_is_for_unwinding_alone() {
        let own = Elf::new(std::fs::read(std::env::current_exe().unwrap()).unwrap()).unwrap();
        let mut cut = Elf::new(own.bytes().to_vec()).unwrap();
        cut.cut_unwinding().unwrap();
        assert!(cut.bytes().len() < own.bytes().len(), "nothing was cut off");
        for (old, new) in own.sections().unwrap().iter().zip(&cut.sections().unwrap()) {
            let [old_bytes, new_bytes] = [(&own, old), (&cut, new)]
                .map(|(elf, section)| elf.bytes().get(section.start..section.end));
            let is_same = new_bytes.is_some() && old_bytes == new_bytes;
            let is_gone = old.is_for_unwinding() && new.end == 0;
            assert!(is_same || is_gone, "{old:?} {new:?}");
        }
        let [old, new] = [&own, &cut].map(|elf| elf.segments().unwrap());
        for (old, new) in old.iter().zip(&new).filter(|(old, _)| old.kind == PT_LOAD) {
            let [old_place, new_place] =
                [old, new].map(|segment| segment.start % segment.align.max(1));
            assert_eq!(old_place, new_place, "the kernel maps whole pages");
        }
    }
}
