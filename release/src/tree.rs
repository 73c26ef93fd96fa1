//! What a release has, as data: a tree of entries, each with a path, a mode and its content.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The mode of folders, of files, and of programs.
pub(crate) const FOLDER: u32 = 0o755;
pub(crate) const FILE: u32 = 0o644;
pub(crate) const PROGRAM: u32 = 0o755;

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    Folder,
    File(Arc<[u8]>),
    /// A symbolic link, with what it says.
    Link(String),
}

/// An entry of a [`Tree`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) mode: u32,
    pub(crate) content: Content,
}

impl Entry {
    /// Returns the bytes of a file; anything else has none.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::File(bytes) => bytes,
            Content::Folder | Content::Link(_) => &[],
        }
    }
}

/// Entries by their paths, which are relative and have no `.` and no `..`. A folder comes before
/// what is in it, and the folders above an entry are always there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tree(BTreeMap<String, Entry>);

/// An entry cannot be added.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum TreeError {
    /// The path could lead elsewhere.
    #[error("{path:?} is not a path within the tree")]
    Path { path: String },
    /// Something is there already.
    #[error("{path:?} is there already")]
    Twice { path: String },
    /// Something above it is a file or a link.
    #[error("{path:?} would be below {above:?}, which is no folder")]
    Below { path: String, above: String },
}

impl Tree {
    /// Adds a file.
    pub(crate) fn file(
        &mut self,
        path: &str,
        mode: u32,
        bytes: impl Into<Arc<[u8]>>,
    ) -> Result<(), TreeError> {
        self.add(path, Entry { mode, content: Content::File(bytes.into()) })
    }

    /// Adds a symbolic link.
    pub(crate) fn link(&mut self, path: &str, target: &str) -> Result<(), TreeError> {
        self.add(path, Entry { mode: 0o777, content: Content::Link(target.to_owned()) })
    }

    /// Adds an entry, and the folders above it.
    pub(crate) fn add(&mut self, path: &str, entry: Entry) -> Result<(), TreeError> {
        let is_plain = |part: &str| !["", ".", ".."].contains(&part) && !part.contains('\0');
        if !path.split('/').all(is_plain) {
            return Err(TreeError::Path { path: path.to_owned() });
        }
        for (end, _) in path.match_indices('/') {
            let above = &path[..end];
            let folder = Entry { mode: FOLDER, content: Content::Folder };
            let there = self.0.entry(above.to_owned()).or_insert(folder);
            if there.content != Content::Folder {
                let above = above.to_owned();
                return Err(TreeError::Below { path: path.to_owned(), above });
            }
        }
        if self.0.contains_key(path) {
            return Err(TreeError::Twice { path: path.to_owned() });
        }
        self.0.insert(path.to_owned(), entry);
        Ok(())
    }

    /// Returns the entries, each after the folders above it.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.0.iter().map(|(path, entry)| (path.as_str(), entry))
    }

    /// Returns the files with their bytes.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.entries().filter_map(|(path, entry)| match &entry.content {
            Content::File(bytes) => Some((path, &bytes[..])),
            Content::Folder | Content::Link(_) => None,
        })
    }

    /// Returns what is at a path.
    pub(crate) fn get(&self, path: &str) -> Option<&Entry> {
        self.0.get(path)
    }
}

#[cfg(test)]
mod tests {
    use super::{Content, FILE, FOLDER, PROGRAM, Tree, TreeError};

    #[test]
    fn folders_come_before_what_is_in_them() {
        let mut tree = Tree::default();
        tree.file("usr/share/doc/x", FILE, *b"x").unwrap();
        tree.file("usr/share-more", FILE, *b"y").unwrap();
        tree.link("usr/bin/plugin", "netwright").unwrap();
        tree.file("usr/bin/netwright", PROGRAM, *b"z").unwrap();
        let paths: Vec<&str> = tree.entries().map(|(path, _)| path).collect();
        assert_eq!(
            paths,
            [
                "usr",
                "usr/bin",
                "usr/bin/netwright",
                "usr/bin/plugin",
                "usr/share",
                "usr/share-more",
                "usr/share/doc",
                "usr/share/doc/x"
            ]
        );
        assert_eq!(tree.get("usr/share").unwrap().content, Content::Folder);
        assert_eq!(tree.get("usr/share").unwrap().mode, FOLDER);
        let files: Vec<_> = tree.files().collect();
        assert_eq!(files.len(), 3);
        assert_eq!(files[0], ("usr/bin/netwright", &b"z"[..]));
    }

    #[test]
    fn what_would_lead_elsewhere_is_refused() {
        for path in ["", "/etc/passwd", "a//b", "a/../b", "./a", "a/", "..", "a\0b"] {
            let refused = Tree::default().file(path, FILE, *b"");
            assert_eq!(refused, Err(TreeError::Path { path: path.to_owned() }));
        }
    }

    #[test]
    fn nothing_is_there_twice_or_below_a_file() {
        let mut tree = Tree::default();
        tree.file("a/b", FILE, *b"").unwrap();
        assert!(matches!(tree.link("a/b", "c"), Err(TreeError::Twice { .. })));
        assert!(matches!(tree.link("a", "c"), Err(TreeError::Twice { .. })));
        let below = tree.file("a/b/c", FILE, *b"").unwrap_err();
        assert_eq!(below.to_string(), "\"a/b/c\" would be below \"a/b\", which is no folder");
    }
}
