//! Archives of `tar`, compressed with gzip: the same bytes for the same tree and time.
//!
//! Everything belongs to root and has the release's time. The order is that of the paths.

use std::io::{self, Read as _, Write as _};

use flate2::read::GzDecoder;
use flate2::{Compression, GzBuilder};
use tar::{Archive, Builder, EntryType, Header};

use crate::epoch::Epoch;
use crate::tree::{Content, Entry, FOLDER, Tree, TreeError};

/// The longest name that has room in a header (`man 5 tar`); GNU's extension has longer ones.
const NAME: usize = 100;

/// gzip's number for "unknown" (RFC 1952, section 2.3.1, OS): the compressing system says nothing.
const NO_SYSTEM: u8 = 255;

/// How hard gzip compresses archives: as hard as it can, except in tests, which have no time for
/// that.
const EFFORT: Compression = Compression::new(if cfg!(test) { 1 } else { 9 });

/// How much one entry or stream that is read may hold: an executable has some 20 MB.
const LARGEST: u64 = 1 << 30;

/// An archive cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ArchiveError {
    /// An entry has no room in the format.
    #[error("write {path:?} to the archive")]
    Write {
        path: String,
        #[source]
        source: io::Error,
    },
    /// The archive cannot be finished.
    #[error("finish the archive")]
    Finish(#[source] io::Error),
    /// It is damaged.
    #[error("read the archive")]
    Read(#[source] io::Error),
    /// It has an entry of a kind that no release has.
    #[error("{path:?} is neither a file, nor a folder, nor a symbolic link")]
    Kind { path: String },
    /// It has an entry where none can be.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

/// Where the entries of an archive are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Top<'t> {
    /// Below `./`, as in Debian's packages; the folder itself is in it.
    Here,
    /// Nowhere in particular, as in images.
    Bare,
    /// In a folder of this name, which is in it.
    In(&'t str),
}

/// Writes an archive.
pub(crate) fn tar(tree: &Tree, top: Top<'_>, epoch: Epoch) -> Result<Vec<u8>, ArchiveError> {
    let mut builder = Builder::new(Vec::new());
    let mut put = |path: &str, entry: &Entry| {
        let name = match top {
            Top::Here => format!("./{path}"),
            Top::Bare => path.to_owned(),
            Top::In(folder) if path.is_empty() => folder.to_owned(),
            Top::In(folder) => format!("{folder}/{path}"),
        };
        let slash = entry.content == Content::Folder && !name.ends_with('/');
        let name = if slash { format!("{name}/") } else { name };
        append(&mut builder, &name, entry, epoch)
            .map_err(|source| ArchiveError::Write { path: name, source })
    };
    if !matches!(top, Top::Bare) {
        put("", &Entry { mode: FOLDER, content: Content::Folder })?;
    }
    for (path, entry) in tree.entries() {
        put(path, entry)?;
    }
    builder.into_inner().map_err(ArchiveError::Finish)
}

fn append(
    builder: &mut Builder<Vec<u8>>,
    name: &str,
    entry: &Entry,
    epoch: Epoch,
) -> io::Result<()> {
    let bytes = entry.bytes();
    let mut header = Header::new_gnu();
    header.set_uid(0);
    header.set_gid(0);
    header.set_username("root")?;
    header.set_groupname("root")?;
    header.set_mtime(epoch.seconds());
    header.set_mode(entry.mode);
    header.set_size(u64::try_from(bytes.len()).map_err(io::Error::other)?);
    let kind = match &entry.content {
        Content::Folder => EntryType::Directory,
        Content::File(_) => EntryType::Regular,
        Content::Link(target) => {
            header.set_link_name_literal(target)?;
            EntryType::Symlink
        }
    };
    header.set_entry_type(kind);
    // The crate would drop the "./" of Debian's packages.
    if let Some(gnu) = header.as_gnu_mut().filter(|_| name.len() <= NAME) {
        gnu.name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        return builder.append(&header, bytes);
    }
    builder.append_data(&mut header, name, bytes)
}

/// Compresses an archive.
pub(crate) fn gzip(bytes: &[u8]) -> Result<Vec<u8>, ArchiveError> {
    compress(bytes, EFFORT)
}

/// Compresses a document of a package as hard as gzip can, as Debian's policy requires (sections
/// 12.1 and 12.7).
pub(crate) fn gzip_document(bytes: &[u8]) -> Result<Vec<u8>, ArchiveError> {
    compress(bytes, Compression::best())
}

fn compress(bytes: &[u8], effort: Compression) -> Result<Vec<u8>, ArchiveError> {
    let mut encoder = GzBuilder::new().operating_system(NO_SYSTEM).write(Vec::new(), effort);
    encoder.write_all(bytes).and_then(|()| encoder.finish()).map_err(ArchiveError::Finish)
}

/// Decompresses.
pub(crate) fn gunzip(bytes: &[u8]) -> Result<Vec<u8>, ArchiveError> {
    let mut plain = Vec::new();
    GzDecoder::new(bytes).take(LARGEST).read_to_end(&mut plain).map_err(ArchiveError::Read)?;
    Ok(plain)
}

/// Reads an archive back, with the names as they are in it, but for `./` before and `/` behind.
pub(crate) fn untar(bytes: &[u8]) -> Result<Tree, ArchiveError> {
    let mut tree = Tree::default();
    let mut archive = Archive::new(bytes);
    for entry in archive.entries().map_err(ArchiveError::Read)? {
        let mut entry = entry.map_err(ArchiveError::Read)?;
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let path = path.trim_start_matches("./").trim_end_matches('/').to_owned();
        let mode = entry.header().mode().map_err(ArchiveError::Read)?;
        let content = match entry.header().entry_type() {
            EntryType::Directory => Content::Folder,
            EntryType::Regular => {
                let mut bytes = Vec::new();
                (&mut entry).take(LARGEST).read_to_end(&mut bytes).map_err(ArchiveError::Read)?;
                Content::File(bytes.into())
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default();
                Content::Link(String::from_utf8_lossy(&target).into_owned())
            }
            _ => return Err(ArchiveError::Kind { path }),
        };
        // The top folder, and folders that an earlier entry has added.
        let is_known = tree.get(&path).is_some_and(|known| known.content == Content::Folder);
        if !(content == Content::Folder && (path.is_empty() || is_known)) {
            tree.add(&path, Entry { mode, content })?;
        }
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::{ArchiveError, Top, gunzip, gzip, gzip_document, tar, untar};
    use crate::epoch::Epoch;
    use crate::tests::said;
    use crate::tree::{Content, FILE, PROGRAM, Tree};

    fn epoch() -> Epoch {
        "1795687200".parse().unwrap()
    }

    fn tree() -> Tree {
        let mut tree = Tree::default();
        tree.file("bin/netwright", PROGRAM, *b"\x7fELF").unwrap();
        tree.link("bin/bridge", "netwright").unwrap();
        let long = format!("share/{}/page", "folder-with-a-long-name".repeat(5));
        tree.file(&long, FILE, *b"long\n").unwrap();
        tree
    }

    #[test]
    fn what_was_written_is_read() {
        for top in [Top::Here, Top::Bare] {
            let archive = tar(&tree(), top, epoch()).unwrap();
            assert_eq!(untar(&archive).unwrap(), tree());
        }
        let mut inside = Tree::default();
        for (path, entry) in tree().entries().filter(|(_, entry)| entry.content != Content::Folder)
        {
            inside.add(&format!("netwright-1/{path}"), entry.clone()).unwrap();
        }
        let archive = gzip(&tar(&tree(), Top::In("netwright-1"), epoch()).unwrap()).unwrap();
        assert_eq!(untar(&gunzip(&archive).unwrap()).unwrap(), inside);
    }

    #[test]
    fn the_same_tree_is_the_same_bytes() {
        let make = || gzip(&tar(&tree(), Top::Here, epoch()).unwrap()).unwrap();
        assert_eq!(make(), make());
        assert_eq!(make()[4..10], [0, 0, 0, 0, 4, 255], "no time, no system (RFC 1952)");
        assert_eq!(gzip_document(b"x").unwrap()[4..10], [0, 0, 0, 0, 2, 255], "the hardest");
    }

    #[test]
    fn gnu_tar_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.tar.gz");
        let archive = gzip(&tar(&tree(), Top::Here, epoch()).unwrap()).unwrap();
        std::fs::write(&path, archive).unwrap();
        let listed = said("tar", &["--utc", "--full-time", "-tvzf", path.to_str().unwrap()]);
        let long = "folder-with-a-long-name".repeat(5);
        assert_eq!(
            listed,
            format!(
                "drwxr-xr-x root/root         0 2026-11-26 10:00:00 ./\n\
                 drwxr-xr-x root/root         0 2026-11-26 10:00:00 ./bin/\n\
                 lrwxrwxrwx root/root         0 2026-11-26 10:00:00 ./bin/bridge -> netwright\n\
                 -rwxr-xr-x root/root         4 2026-11-26 10:00:00 ./bin/netwright\n\
                 drwxr-xr-x root/root         0 2026-11-26 10:00:00 ./share/\n\
                 drwxr-xr-x root/root         0 2026-11-26 10:00:00 ./share/{long}/\n\
                 -rw-r--r-- root/root         5 2026-11-26 10:00:00 ./share/{long}/page\n"
            )
        );
    }

    #[test]
    fn damage_is_an_error() {
        let archive = gzip(&tar(&tree(), Top::Here, epoch()).unwrap()).unwrap();
        for end in [0, 5, archive.len() / 2, archive.len() - 1] {
            assert!(gunzip(&archive[..end]).is_err(), "{end}");
        }
        let plain = gunzip(&archive).unwrap();
        assert!(matches!(untar(&plain[..700]), Err(ArchiveError::Read(_))));
        let mut flipped = plain;
        flipped[3] ^= 1;
        assert!(untar(&flipped).is_err(), "the header's sum");
    }
}
