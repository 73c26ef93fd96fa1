//! What `setup` did, for `--undo` and for the next `setup`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use cni::{code, owner};
use serde::{Deserialize, Serialize};
use state::{Durability, Roots};

use crate::failure::Failure;

/// The folder of the record, below our state.
const FOLDER: &str = "setup";
const FILE: &str = "record.json";
/// The version of the record's format.
const FORMAT: u32 = 1;

/// How many digits of the SHA-512 tell whether a file is still what was written.
const DIGITS: usize = 32;

/// The size of a file of which samples are enough, their number and their size.
const WHOLE: usize = 1 << 20;
const SAMPLES: usize = 64;
const SAMPLE: usize = 1 << 10;

/// What `setup` did. It is written before the first step, so that an interrupted `setup` can be
/// undone, too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    /// The version that was set up.
    pub(super) version: String,
    /// The folder of the executables.
    pub(super) programs: PathBuf,
    pub(super) options: Options,
    /// The folders of plugins in which nothing of ours was before.
    pub(super) plugins: Vec<PathBuf>,
    pub(super) files: Vec<WrittenFile>,
    /// The folders that did not exist before, the outer ones first.
    pub(super) folders: Vec<PathBuf>,
    /// Units of others that were stopped and disabled.
    pub(super) taken_over: Vec<ForeignUnit>,
    /// What `netwright.target` was before.
    pub(super) target: UnitState,
    /// Whether nothing of ours was on the machine before, so that our state goes with the rest.
    pub(super) owns_state: bool,
}

/// What the command line said about plugins; without these options, a later `setup` does the same
/// again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Options {
    pub(super) bin_dir: Option<PathBuf>,
    pub(super) also: Vec<String>,
    pub(super) no_config: bool,
}

/// A file that `setup` wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WrittenFile {
    pub(super) path: PathBuf,
    pub(super) content: Digest,
    /// What an earlier `setup` wrote there, while it is being replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) older: Option<Digest>,
    /// Whether the file of another program that was there is kept beside it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) kept: bool,
}

impl WrittenFile {
    pub(super) fn new(path: &Path, content: Digest, kept: bool) -> Self {
        WrittenFile { path: path.to_owned(), content, older: None, kept }
    }

    /// Says whether it is still what was written.
    pub(super) fn is(&self, here: &PathState) -> bool {
        here.holds(&self.content) || self.older.as_ref().is_some_and(|older| here.holds(older))
    }
}

/// What a file holds, or where a link leads, so that two can be compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Digest {
    Sha512(String),
    Link(PathBuf),
}

impl Digest {
    /// It takes samples of a large file, such as an executable: two builds differ in their sizes
    /// and in many places, and the whole file would take seconds in an unoptimised build.
    pub(super) fn of(bytes: &[u8]) -> Self {
        if bytes.len() <= WHOLE {
            return Digest::Sha512(owner::sha512_hex(bytes, DIGITS));
        }
        let mut sampled = bytes.len().to_le_bytes().to_vec();
        for chunk in bytes.chunks(bytes.len().div_ceil(SAMPLES)) {
            sampled.extend(&chunk[..chunk.len().min(SAMPLE)]);
        }
        Digest::Sha512(owner::sha512_hex(sampled, DIGITS))
    }
}

/// A unit of another package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ForeignUnit {
    pub(super) unit: String,
    pub(super) was: UnitState,
}

/// What a unit was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UnitState {
    pub(super) enabled: bool,
    pub(super) active: bool,
}

#[derive(Serialize, Deserialize)]
struct RecordFile {
    format: u32,
    #[serde(rename = "setup")]
    record: Record,
}

/// Returns the folder of the record.
pub(super) fn folder(roots: &Roots) -> PathBuf {
    roots.lib.join(FOLDER)
}

fn file(roots: &Roots) -> PathBuf {
    folder(roots).join(FILE)
}

/// Says whether `setup` was here and was not undone.
pub(crate) fn is_recorded(roots: &Roots) -> bool {
    file(roots).symlink_metadata().is_ok()
}

impl Record {
    /// Returns the paths of the executable that others may call.
    pub(super) fn executables(&self) -> Vec<PathBuf> {
        let folders = std::iter::once(&self.programs).chain(&self.plugins);
        folders.map(|folder| folder.join("netwright")).collect()
    }

    pub(super) fn read(roots: &Roots) -> Result<Option<Self>, Failure> {
        let path = file(roots);
        let bytes =
            state::read_optional(&path).map_err(|error| Failure::of(code::IO_FAILURE, &error))?;
        let Some(bytes) = bytes else { return Ok(None) };
        let broken = |failure: Failure| {
            failure.hint("it says what `setup --undo` removes: restore it from a backup")
        };
        match serde_json::from_slice::<RecordFile>(&bytes) {
            Ok(read) if read.format == FORMAT => Ok(Some(read.record)),
            Ok(read) => Err(Failure::of_format(&path, read.format, FORMAT)
                .hint("use the version that wrote it")),
            Err(error) => Err(broken(
                Failure::of(code::DECODE_FAILURE, &error)
                    .context(format_args!("read {}", path.display())),
            )),
        }
    }

    pub(super) fn write(&self, roots: &Roots) -> Result<(), Failure> {
        let failed = |error: state::FileError| Failure::of(code::IO_FAILURE, &error);
        let on_disk = RecordFile { format: FORMAT, record: self.clone() };
        let bytes = serde_json::to_vec_pretty(&on_disk).expect("a record has string keys only");
        state::create_directory(&folder(roots), 0o700).map_err(failed)?;
        state::write_atomic(&file(roots), &bytes, 0o600, Durability::Synced).map_err(failed)
    }

    pub(super) fn remove(roots: &Roots) -> Result<(), Failure> {
        state::remove_file(&file(roots))
            .map(drop)
            .map_err(|error| Failure::of(code::IO_FAILURE, &error))
    }

    /// Returns the record for the time of a `setup`, which may be interrupted: it includes
    /// everything that an earlier one recorded.
    pub(super) fn over(&self, old: Option<&Record>) -> Record {
        let mut both = self.clone();
        for was in old.iter().flat_map(|old| &old.files) {
            match both.files.iter_mut().find(|written| written.path == was.path) {
                Some(written) => written.older = Some(was.content.clone()),
                None => both.files.push(was.clone()),
            }
        }
        both
    }

    /// Returns what was recorded of a file.
    pub(super) fn of_file(&self, path: &Path) -> Option<&WrittenFile> {
        self.files.iter().find(|written| written.path == path)
    }
}

/// Returns where another program's file is kept while ours is in its place: beside it, so that one
/// rename restores it.
pub(super) fn kept(path: &Path) -> PathBuf {
    beside(path, "kept")
}

/// Returns where the old content of a file is until `setup` has succeeded.
pub(super) fn old(path: &Path) -> PathBuf {
    beside(path, "old")
}

fn beside(path: &Path, what: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.netwright-{what}"))
}

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PathState {
    Absent,
    /// A file or a link, and whether an administrator seems to have copied it from our `deploy`
    /// folder.
    There {
        content: Digest,
        by_hand: bool,
    },
    /// A folder, a socket or the like.
    Other,
}

/// What the files in `deploy` have in common.
const MARKS: [&str; 2] = [
    "https://github.com/netwright/netwright/",
    "# Made from the service's rights (crates/agent/src/rights.rs).",
];

impl PathState {
    /// Looks at a path.
    pub(super) fn at(path: &Path) -> Result<Self, Failure> {
        let failed = |error: &std::io::Error| {
            Failure::of(code::IO_FAILURE, error).context(format_args!("look at {}", path.display()))
        };
        let found = match path.symlink_metadata() {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(PathState::Absent),
            // A file stands where a folder of the path should be.
            Err(error) if error.kind() == ErrorKind::NotADirectory => return Ok(PathState::Absent),
            Err(error) => return Err(failed(&error)),
        };
        if found.is_symlink() {
            let target = fs::read_link(path).map_err(|error| failed(&error))?;
            let by_hand = target.file_name().is_some_and(|name| name == "netwrightd");
            return Ok(PathState::There { content: Digest::Link(target), by_hand });
        }
        if !found.is_file() {
            return Ok(PathState::Other);
        }
        let bytes = fs::read(path).map_err(|error| failed(&error))?;
        let text = std::str::from_utf8(&bytes).unwrap_or_default();
        let by_hand = MARKS.iter().any(|mark| text.contains(mark));
        Ok(PathState::There { content: Digest::of(&bytes), by_hand })
    }

    pub(super) fn holds(&self, wanted: &Digest) -> bool {
        matches!(self, PathState::There { content, .. } if content == wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_tells_files_apart() {
        let small = b"[Unit]\n".to_vec();
        let mut large = vec![7; 5_000_001];
        let of = [Digest::of(&small), Digest::of(b"[Unit] "), Digest::of(b""), Digest::of(&large)];
        large.push(7);
        let longer = Digest::of(&large);
        large.pop();
        large[0] = 8;
        let all = [&of[..], &[longer, Digest::of(&large)]].concat();
        for (number, one) in all.iter().enumerate() {
            assert!(!all[number + 1..].contains(one), "{number}");
        }
    }
}
