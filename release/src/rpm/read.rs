//! Reads packages of RPM back, to compare two.

use super::{HEADER, INDEX, IS_FILE, IS_FOLDER, IS_LINK, LEAD, LEAD_END, LEAD_NAME};
use crate::archive::gunzip;
use crate::tree::{Content, Entry, FILE, Tree};

/// The name of what a package says of itself: of its files too, such as their hashes.
const ABOUT: &str = "header";

/// The length of a header without index and values.
const LEAST: usize = HEADER.len() + 8;

/// A member of an archive of `cpio`: its first bytes, and the length of all that is before its name.
const MEMBER: &[u8] = b"070701";
const BEFORE_NAME: usize = MEMBER.len() + 13 * DIGITS;
const DIGITS: usize = 8;

/// The bits of a mode that say what it is the mode of.
const KIND: u32 = 0o170_000;

/// Returns a package's files, and its header as a file; nothing if it is damaged. The header before
/// that has hashes of all the rest, and is left out.
pub(crate) fn read(package: &[u8]) -> Option<Tree> {
    let hashes = package.get(LEAD.len() + LEAD_NAME + LEAD_END.len()..)?;
    let rest = hashes.get(header_length(hashes)?.next_multiple_of(8)..)?;
    let (header, payload) = rest.split_at_checked(header_length(rest)?)?;
    let mut tree = files(&gunzip(payload).ok()?)?;
    tree.file(ABOUT, FILE, header).ok()?;
    Some(tree)
}

/// Returns the length of the header with which bytes begin.
fn header_length(bytes: &[u8]) -> Option<usize> {
    let numbers = bytes.strip_prefix(&HEADER)?;
    let number = |at: usize| -> Option<usize> {
        let bytes: [u8; 4] = numbers.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_be_bytes(bytes)).ok()
    };
    let (entries, values) = (number(0)?, number(4)?);
    Some(LEAST + entries * INDEX + values)
}

/// Returns what is in an archive of `cpio`.
fn files(archive: &[u8]) -> Option<Tree> {
    let mut tree = Tree::default();
    let mut rest = archive;
    loop {
        let fields = rest.strip_prefix(MEMBER)?;
        let field = |number: usize| -> Option<u32> {
            let digits = fields.get(number * DIGITS..(number + 1) * DIGITS)?;
            u32::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
        };
        let length = |number: usize| usize::try_from(field(number)?).ok();
        let (mode, size, name_size) = (field(1)?, length(6)?, length(11)?);
        let name = rest.get(BEFORE_NAME..BEFORE_NAME + name_size)?.strip_suffix(b"\0")?;
        let content_at = (BEFORE_NAME + name_size).next_multiple_of(4);
        let content = rest.get(content_at..content_at + size)?;
        let Some(path) = str::from_utf8(name).ok()?.strip_prefix("./") else { return Some(tree) };
        rest = rest.get((content_at + size).next_multiple_of(4)..)?;
        let content = match mode & KIND {
            IS_FOLDER => Content::Folder,
            IS_FILE => Content::File(content.into()),
            IS_LINK => Content::Link(str::from_utf8(content).ok()?.to_owned()),
            _ => return None,
        };
        // A folder may be there for what is in it.
        let is_known = content == Content::Folder && tree.get(path).is_some();
        if !is_known {
            tree.add(path, Entry { mode: mode & !KIND, content }).ok()?;
        }
    }
}
